/* A folder with config.json and safetensors: one file, or shards with an index. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "io/checkpoint_internal.h"

/* folder/name in memory of the checkpoint; NULL when there is none. */
static char *join(qn_checkpoint *c, const char *folder, const char *name)
{
    const size_t a = strlen(folder), b = strlen(name);
    char *path = qn_checkpoint_own(c, a + b + 2, 1);
    if (path) {
        memcpy(path, folder, a);
        path[a] = '/';
        memcpy(path + a + (a && folder[a - 1] == '/' ? 0 : 1), name, b + 1);
    }
    return path;
}

/* Map one of the small files; an absent one is fine when not required. */
static qn_status map_text(qn_checkpoint *c, const char *folder, const char *name, int required, int slot, char **path,
                          qn_error *error)
{
    *path = join(c, folder, name);
    QN_FAIL_IF(!*path, error, QN_E_MEMORY, "out of memory for %s", name);
    if (!required && access(*path, F_OK) != 0) {
        return QN_OK;
    }
    QN_TRY(qn_file_map_open(*path, &c->texts[slot], error));
    QN_FAIL_IF(c->texts[slot].size > QN_MAX_TEXT_BYTES, error, QN_E_FILE, "%s has %zu bytes, at most %zu are allowed",
               *path, c->texts[slot].size, QN_MAX_TEXT_BYTES);
    return QN_OK;
}

static qn_status map_tokenizer(qn_checkpoint *c, const char *folder, qn_error *error)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json"};
    qn_string *const out[] = {&c->tokenizer.tokenizer_json, &c->tokenizer.tokenizer_config_json,
                              &c->tokenizer.chat_template_jinja, &c->tokenizer.generation_config_json};
    for (int i = 0; i < 4; i++) {
        char *path;
        const int slot = QN_TEXT_TOKENIZER + i;
        QN_TRY(map_text(c, folder, names[i], 0, slot, &path, error));
        if (c->texts[slot].data) {
            *out[i] = (qn_string){c->texts[slot].data, c->texts[slot].size};
        }
    }
    return QN_OK;
}

/* hf_quant_config.json, which ModelOpt writes beside a config.json that says nothing. */
static qn_status read_quant_file(qn_checkpoint *c, const char *folder, qn_error *error)
{
    char *path;
    json_t *object = NULL;
    QN_TRY(map_text(c, folder, "hf_quant_config.json", 0, QN_TEXT_QUANT, &path, error));
    const qn_file_map *map = &c->texts[QN_TEXT_QUANT];
    if (!map->data) {
        return QN_OK;
    }
    qn_status status = qn_json_parse(map->data, map->size, "it", &object, error);
    if (status == QN_OK) {
        status = qn_quant_config_parse_file(c->ctx, object, &c->quant, error);
    }
    json_decref(object);
    return status == QN_OK ? QN_OK : qn_error_prefix(error, status, "%s", path);
}

static qn_status read_config(qn_checkpoint *c, const char *folder, qn_error *error)
{
    char *path;
    QN_TRY(map_text(c, folder, "config.json", 1, QN_TEXT_CONFIG, &path, error));
    const qn_file_map *map = &c->texts[QN_TEXT_CONFIG];
    qn_status status = qn_json_parse(map->data, map->size, "it", &c->config, error);
    if (status == QN_OK) {
        status = qn_hparams_from_config(c->config, &c->hparams, error);
    }
    const json_t *quant = json_object_get(c->config, "quantization_config");
    if (!quant) {
        quant = json_object_get(c->config, "compression_config"); /* the name of years ago */
    }
    if (status == QN_OK && quant && !json_is_null(quant)) {
        status = qn_quant_config_parse(c->ctx, quant, &c->quant, error);
    }
    const json_t *quip = json_object_get(c->config, "quip_params");
    if (status == QN_OK && quip && !json_is_null(quip)) {
        status = c->quant ? qn_error_set(error, QN_E_FILE, "there are both quantization_config and quip_params")
                          : qn_quant_config_parse_quip(c->ctx, quip, &c->quant, error);
    }
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "%s", path);
    }
    (void)json_object_del(c->config, "quantization_config"); /* qn_quant_config keeps them alive */
    (void)json_object_del(c->config, "compression_config");
    (void)json_object_del(c->config, "quip_params");
    return c->quant ? QN_OK : read_quant_file(c, folder, error);
}

/* A shard lies in the folder itself: no separators, no dots in front, the right ending. */
static int is_plain_shard(const char *name)
{
    const size_t length = strlen(name);
    if (length < 13 || length > 255 || name[0] == '.' || strcmp(name + length - 12, ".safetensors") != 0) {
        return 0;
    }
    for (size_t i = 0; i < length; i++) {
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20) {
            return 0;
        }
    }
    return 1;
}

qn_status qn_index_check(const json_t *index, const json_t **weight_map, qn_error *error)
{
    const json_t *map = json_object_get(index, "weight_map");
    QN_FAIL_IF(!json_is_object(index), error, QN_E_FILE, "it is not a JSON object");
    QN_FAIL_IF(!json_is_object(map) || json_object_size(map) == 0, error, QN_E_FILE,
               "weight_map is not an object with entries");
    QN_FAIL_IF(json_object_size(map) > QN_SAFETENSORS_MAX_TENSORS, error, QN_E_FILE, "weight_map has %zu entries",
               json_object_size(map));
    const char *tensor;
    json_t *shard;
    json_object_foreach((json_t *)map, tensor, shard)
    {
        QN_TRY(qn_safetensors_check_name(tensor, strlen(tensor), error));
        QN_FAIL_IF(!json_is_string(shard), error, QN_E_FILE, "weight_map: the file of %s is not a string", tensor);
        QN_FAIL_IF(!is_plain_shard(json_string_value(shard)), error, QN_E_FILE,
                   "weight_map: the file of %s is \"%.80s\", expected a plain name ending in .safetensors", tensor,
                   json_string_value(shard));
    }
    *weight_map = map;
    return QN_OK;
}

/* Map and parse one weight file into the next slot. */
static qn_status open_file(qn_checkpoint *c, const char *folder, const char *name, qn_error *error)
{
    qn_weight_file *file = &c->files[c->file_count];
    const char *path = join(c, folder, name);
    file->path = path ? qn_strdup(c->ctx, path) : NULL;
    QN_FAIL_IF(!file->path, error, QN_E_MEMORY, "out of memory for %s", name);
    c->file_count++;
    QN_TRY(qn_file_map_open(file->path, &file->map, error));
    return qn_safetensors_parse(c->ctx, file->map.data, file->map.size, file->path, &file->safetensors, error);
}

/* Open the shards in the order the index names them first. */
static qn_status open_shards(qn_checkpoint *c, const char *folder, const json_t *weight_map, qn_error *error)
{
    qn_map seen = qn_map_make(c->ctx);
    qn_status status = QN_OK;
    c->files = qn_calloc(c->ctx, QN_MAX_SHARDS, sizeof *c->files);
    if (!c->files) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for the shards of %s", c->path);
    }
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)weight_map, tensor, value)
    {
        if (status != QN_OK) {
            break;
        }
        const char *name = json_string_value(value);
        int32_t index = qn_map_get(&seen, name, strlen(name));
        if (index < 0) {
            index = c->file_count;
            if (index == QN_MAX_SHARDS) {
                status = qn_error_set(error, QN_E_FILE, "more than %d weight files", QN_MAX_SHARDS);
            } else if (qn_map_add(&seen, name, strlen(name), index) != 0) {
                status = qn_error_set(error, QN_E_MEMORY, "out of memory for the shards of %s", c->path);
            } else {
                status = open_file(c, folder, name, error);
            }
        }
        if (status == QN_OK && qn_safetensors_find(&c->files[index].safetensors, tensor) < 0) {
            status = qn_error_set(error, QN_E_FILE, "tensor %s should be in %s by the index, and is not", tensor,
                                  c->files[index].path);
        }
    }
    qn_map_free(&seen);
    return status;
}

/* All tensors of all files; the index, if any, must name each in its file. */
static qn_status list_tensors(qn_checkpoint *c, const json_t *weight_map, qn_error *error)
{
    int64_t total = 0;
    for (int32_t f = 0; f < c->file_count; f++) {
        total += c->files[f].safetensors.count;
    }
    QN_FAIL_IF(total > QN_SAFETENSORS_MAX_TENSORS, error, QN_E_FILE, "%lld tensors, at most %d are allowed",
               (long long)total, QN_SAFETENSORS_MAX_TENSORS);
    c->tensors = qn_calloc(c->ctx, (size_t)total + 1, sizeof *c->tensors);
    QN_FAIL_IF(!c->tensors, error, QN_E_MEMORY, "out of memory for %lld tensors", (long long)total);
    for (int32_t f = 0; f < c->file_count; f++) {
        for (int32_t i = 0; i < c->files[f].safetensors.count; i++) {
            const qn_safetensors_tensor *t = &c->files[f].safetensors.tensors[i];
            const int added = qn_map_add(&c->tensor_names, t->name, strlen(t->name), c->tensor_count);
            QN_FAIL_IF(added < 0, error, QN_E_MEMORY, "out of memory for tensor names");
            QN_FAIL_IF(added > 0, error, QN_E_FILE, "tensor %s is in %s and in another file", t->name,
                       c->files[f].path);
            QN_FAIL_IF(weight_map && !json_object_get(weight_map, t->name), error, QN_E_FILE,
                       "tensor %s is in %s but not in the index", t->name, c->files[f].path);
            c->tensors[c->tensor_count++] =
                (qn_file_tensor){.name = t->name, .view = t->view, .bytes = t->end - t->begin, .file = f};
        }
    }
    return QN_OK;
}

static qn_status open_index(qn_checkpoint *c, const char *folder, qn_error *error)
{
    char *path;
    QN_TRY(map_text(c, folder, "model.safetensors.index.json", 1, QN_TEXT_INDEX, &path, error));
    const qn_file_map *map = &c->texts[QN_TEXT_INDEX];
    json_t *index = NULL;
    const json_t *weight_map = NULL;
    qn_status status = qn_json_parse(map->data, map->size, "it", &index, error);
    if (status == QN_OK) {
        status = qn_index_check(index, &weight_map, error);
    }
    if (status != QN_OK) {
        status = qn_error_prefix(error, status, "%s", path);
    }
    if (status == QN_OK) {
        status = open_shards(c, folder, weight_map, error);
    }
    if (status == QN_OK) {
        status = list_tensors(c, weight_map, error);
    }
    json_decref(index);
    return status;
}

qn_status qn_checkpoint_open_folder(qn_checkpoint *c, const char *folder, const char *single, qn_error *error)
{
    c->container = "safetensors";
    QN_TRY(read_config(c, folder, error));
    QN_TRY(map_tokenizer(c, folder, error));
    const char *name = single ? single : "model.safetensors";
    const char *path = join(c, folder, name), *index = join(c, folder, "model.safetensors.index.json");
    QN_FAIL_IF(!path || !index, error, QN_E_MEMORY, "out of memory for %s", c->path);
    if (single || access(path, F_OK) == 0) {
        c->files = qn_calloc(c->ctx, 1, sizeof *c->files);
        QN_FAIL_IF(!c->files, error, QN_E_MEMORY, "out of memory for %s", c->path);
        QN_TRY(open_file(c, folder, name, error));
        QN_TRY(list_tensors(c, NULL, error));
    } else {
        QN_FAIL_IF(access(index, F_OK) != 0, error, QN_E_IO,
                   "%s has neither model.safetensors nor model.safetensors.index.json", folder);
        QN_TRY(open_index(c, folder, error));
    }
    const qn_status status = qn_checkpoint_assemble(c, error);
    return status == QN_OK ? QN_OK : qn_error_prefix(error, status, "%s", c->path);
}
