#include "quant/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "io/kv_books.h"
#include "io/quant_config.h"
#include "text/tokenizer.h"

qn_status qn_folder_check_paths(const char *input, const char *output, qn_error *error)
{
    /* canonical names; what does not exist cannot be touched */
    char *in = realpath(input, NULL);
    char *out = realpath(output, NULL);
    const size_t n = out ? strlen(out) : 0;
    const int inside = in && out && strncmp(in, out, n) == 0 && (in[n] == 0 || in[n] == '/' || n == 1);
    free(in);
    free(out);
    QN_FAIL_IF(inside, error, QN_E_ARGUMENT, "the output %s is, or holds, the input %s; choose another folder", output,
               input);
    return QN_OK;
}

qn_status qn_folder_check_space(const char *path, uint64_t bytes, qn_error *error)
{
    struct statvfs s;
    QN_FAIL_IF(statvfs(path, &s) != 0, error, QN_E_IO, "cannot ask for the free space of %s: %s", path,
               strerror(errno));
    uint64_t have;
    if (qn_mul_u64(s.f_bavail, s.f_frsize, &have)) {
        return QN_OK;
    }
    QN_FAIL_IF(have < bytes, error, QN_E_IO, "the output needs %" PRIu64 " MB, the disk of %s has %" PRIu64 " MB free",
               (bytes + 999999) / 1000000, path, have / 1000000);
    return QN_OK;
}

char *qn_folder_path(qn_ctx *ctx, const char *folder, const char *name)
{
    const size_t a = strlen(folder), b = strlen(name);
    char *path = qn_alloc(ctx, a + b + 2);
    if (path) {
        memcpy(path, folder, a);
        path[a] = '/';
        memcpy(path + a + 1, name, b + 1);
    }
    return path;
}

void qn_folder_shard_name(const qn_outputs *outputs, int32_t shard, char *name, size_t capacity)
{
    if (outputs->shard_count == 1) {
        snprintf(name, capacity, "model.safetensors");
    } else {
        snprintf(name, capacity, "model-%05d-of-%05d.safetensors", shard + 1, outputs->shard_count);
    }
}

/* ---- Plain files ---- */

static qn_status write_all(int fd, const char *path, const char *data, size_t bytes, qn_error *error)
{
    while (bytes) {
        const ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        QN_FAIL_IF(n <= 0, error, QN_E_IO, "cannot write %s: %s", path,
                   n < 0 ? strerror(errno) : "nothing was written");
        data += n;
        bytes -= (size_t)n;
    }
    return QN_OK;
}

static qn_status write_file(qn_ctx *ctx, const char *folder, const char *name, const char *data, size_t bytes,
                            qn_error *error)
{
    char *path = qn_folder_path(ctx, folder, name);
    QN_FAIL_IF(!path, error, QN_E_MEMORY, "out of memory writing %s", name);
    qn_status status = QN_OK;
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = qn_error_set(error, QN_E_IO, "cannot create %s: %s", path, strerror(errno));
    } else {
        status = write_all(fd, path, data, bytes, error);
        if (close(fd) != 0 && status == QN_OK) {
            status = qn_error_set(error, QN_E_IO, "cannot write %s: %s", path, strerror(errno));
        }
    }
    qn_free(ctx, path);
    return status;
}

/* Copy SOURCE/NAME if there is such a file. */
static qn_status copy_file(qn_ctx *ctx, const char *source, const char *folder, const char *name, qn_error *error)
{
    qn_status status = QN_OK;
    int in = -1, out = -1;
    struct stat s;
    char *from = qn_folder_path(ctx, source, name), *to = qn_folder_path(ctx, folder, name);
    char *block = qn_alloc(ctx, 65536);
    if (!from || !to || !block) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory copying %s", name);
        goto done;
    }
    in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (in < 0 && errno == ENOENT) {
        goto done;
    }
    if (in < 0 || fstat(in, &s) != 0 || !S_ISREG(s.st_mode)) {
        status =
            qn_error_set(error, QN_E_IO, "cannot read %s: %s", from, in < 0 ? strerror(errno) : "not a plain file");
        goto done;
    }
    out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out < 0) {
        status = qn_error_set(error, QN_E_IO, "cannot create %s: %s", to, strerror(errno));
        goto done;
    }
    for (;;) {
        const ssize_t n = read(in, block, 65536);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            status = qn_error_set(error, QN_E_IO, "cannot read %s: %s", from, strerror(errno));
        }
        if (n <= 0) {
            break;
        }
        status = write_all(out, to, block, (size_t)n, error);
        if (status != QN_OK) {
            break;
        }
    }
done:
    if (in >= 0) {
        close(in);
    }
    if (out >= 0 && close(out) != 0 && status == QN_OK) {
        status = qn_error_set(error, QN_E_IO, "cannot write %s: %s", to, strerror(errno));
    }
    qn_free(ctx, block);
    qn_free(ctx, to);
    qn_free(ctx, from);
    return status;
}

static qn_status write_json(qn_ctx *ctx, const char *folder, const char *name, const json_t *object, qn_error *error)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    QN_FAIL_IF(!text, error, QN_E_MEMORY, "out of memory writing %s", name);
    qn_buffer buffer = qn_buffer_make(ctx);
    qn_buffer_print(&buffer, "%s\n", text);
    free(text);
    const qn_status status = buffer.failed ? qn_error_set(error, QN_E_MEMORY, "out of memory writing %s", name)
                                           : write_file(ctx, folder, name, buffer.data, buffer.length, error);
    qn_buffer_free(&buffer);
    return status;
}

/* ---- Tokenizer ---- */

static const char *const tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",      "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json",
};

static qn_status copy_tokenizer(qn_ctx *ctx, const char *input, const char *folder, qn_error *error)
{
    char *source = qn_strdup(ctx, input);
    QN_FAIL_IF(!source, error, QN_E_MEMORY, "out of memory copying the tokenizer");
    struct stat s;
    if (stat(source, &s) == 0 && !S_ISDIR(s.st_mode)) {
        char *slash = strrchr(source, '/');
        if (slash) {
            slash[slash == source] = 0;
        } else {
            strcpy(source, ".");
        }
    }
    qn_status status = QN_OK;
    for (size_t i = 0; i < sizeof tokenizer_files / sizeof *tokenizer_files && status == QN_OK; i++) {
        status = copy_file(ctx, source, folder, tokenizer_files[i], error);
    }
    qn_free(ctx, source);
    return status;
}

static qn_status write_generation_config(qn_ctx *ctx, const qn_hparams *h, const char *folder, qn_error *error)
{
    json_t *object = json_object();
    int failed = !object || json_object_set_new(object, "_from_model_config", json_true());
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {{"bos_token_id", h->bos_id}, {"eos_token_id", h->eos_id}, {"pad_token_id", h->pad_id}};
    for (size_t i = 0; i < 3; i++) {
        if (ids[i].id >= 0) {
            failed |= json_object_set_new(object, ids[i].name, json_integer(ids[i].id));
        }
    }
    const qn_status status = failed ? qn_error_set(error, QN_E_MEMORY, "out of memory writing generation_config.json")
                                    : write_json(ctx, folder, "generation_config.json", object, error);
    json_decref(object);
    return status;
}

static qn_status export_tokenizer(qn_ctx *ctx, const qn_checkpoint *checkpoint, const char *folder, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(checkpoint);
    const qn_tokenizer_source *source = qn_checkpoint_tokenizer(checkpoint);
    if (source->token_count > 0) {
        qn_tokenizer *tokenizer = NULL;
        qn_buffer json = qn_buffer_make(ctx), config = qn_buffer_make(ctx);
        qn_status status = qn_tokenizer_create(ctx, source, h->vocab_size, &tokenizer, error);
        if (status == QN_OK) {
            status = qn_tokenizer_export(tokenizer, &json, &config, error);
        }
        if (status == QN_OK && (json.failed || config.failed)) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory exporting the tokenizer");
        }
        if (status == QN_OK) {
            status = write_file(ctx, folder, "tokenizer.json", json.data, json.length, error);
        }
        if (status == QN_OK) {
            status = write_file(ctx, folder, "tokenizer_config.json", config.data, config.length, error);
        }
        qn_buffer_free(&json);
        qn_buffer_free(&config);
        qn_tokenizer_destroy(tokenizer);
        QN_TRY(status);
    }
    return write_generation_config(ctx, h, folder, error);
}

qn_status qn_folder_write_tokenizer(qn_ctx *ctx, const char *input, const qn_checkpoint *checkpoint, const char *folder,
                                    qn_error *error)
{
    qn_model_info info;
    qn_checkpoint_get_info(checkpoint, &info);
    return strcmp(info.container, "gguf") == 0 ? export_tokenizer(ctx, checkpoint, folder, error)
                                               : copy_tokenizer(ctx, input, folder, error);
}

/* ---- Index and config ---- */

static qn_status write_index(const qn_outputs *outputs, const char *folder, qn_error *error)
{
    static const char name[] = "model.safetensors.index.json";
    json_t *root = json_object(), *metadata = json_object(), *map = json_object();
    int failed = !root || !metadata || !map ||
                 json_object_set_new(metadata, "total_size", json_integer((json_int_t)outputs->bytes_after));
    for (int32_t i = 0; i < outputs->count && !failed; i++) {
        const qn_output *o = &outputs->list[i];
        char shard[64];
        qn_folder_shard_name(outputs, o->shard, shard, sizeof shard);
        for (int p = 0; p < QN_PART_COUNT && !failed; p++) {
            failed = o->names[p] && json_object_set_new(map, o->names[p], json_string(shard));
        }
    }
    failed = failed || json_object_set(root, "metadata", metadata) || json_object_set(root, "weight_map", map);
    const qn_status status = failed ? qn_error_set(error, QN_E_MEMORY, "out of memory writing %s", name)
                                    : write_json(outputs->ctx, folder, name, root, error);
    json_decref(map);
    json_decref(metadata);
    json_decref(root);
    return status;
}

static void free_ignored(const qn_outputs *outputs, char **list, int32_t count)
{
    for (int32_t i = 0; list && i < count; i++) {
        qn_free(outputs->ctx, list[i]);
    }
    qn_free(outputs->ctx, list);
}

/* Names of the linear modules that stay plain: lm_head unless it has a scheme, and those of the kept layers. NULL: out
 * of memory. */
static char **list_ignored(const qn_outputs *outputs, int32_t *count, qn_error *error)
{
    char **list = qn_calloc(outputs->ctx, (size_t)outputs->count + 1, sizeof *list);
    int failed = !list;
    *count = 0;
    for (int32_t i = outputs->head == outputs->kept ? -1 : 0; i < outputs->count && !failed; i++) {
        if (i >= 0 && !outputs->list[i].left_out) {
            continue;
        }
        char *name = qn_strdup(outputs->ctx, i < 0 ? "lm_head" : outputs->list[i].weight->name);
        failed = !name;
        if (name) {
            char *dot = strrchr(name, '.');
            if (dot) {
                *dot = 0; /* without ".weight" */
            }
            list[(*count)++] = name;
        }
    }
    if (failed) {
        qn_error_set(error, QN_E_MEMORY, "out of memory writing config.json");
        free_ignored(outputs, list, *count);
        return NULL;
    }
    return list;
}

/* What config.json says of codebooks of keys and values; 1: out of memory. */
static int set_kv(json_t *config, const char *kv)
{
    char name[40];
    json_object_del(config, "quern_kv_cache");
    if (!kv) {
        return 0;
    }
    qn_kv_books_name(qn_kv_find(kv), name);
    json_t *entry = json_pack("{s:s, s:s}", "scheme", kv, "codebooks", name);
    return !entry || json_object_set_new(config, "quern_kv_cache", entry);
}

/* Every quantised module, where the scheme's config describes them one by one; 1: out of memory. */
static int add_modules(const qn_checkpoint *checkpoint, const qn_outputs *outputs, json_t *quantization)
{
    int failed = 0;
    for (int32_t i = 0; i < outputs->count && !failed && quantization; i++) {
        const qn_output *o = &outputs->list[i];
        const char *dot = strrchr(o->name, '.');
        if (!o->linear || !dot) {
            continue;
        }
        const size_t length = (size_t)(dot - o->name);
        char *module = qn_alloc(outputs->ctx, length + sizeof ".bias");
        if (module) {
            memcpy(module, o->name, length);
            memcpy(module + length, ".bias", sizeof ".bias");
            const int bias = qn_checkpoint_find(checkpoint, module) != NULL;
            module[length] = 0;
            failed =
                qn_quant_config_add_module(quantization, outputs->scheme, module, o->encoder.n, o->encoder.k, bias);
        }
        failed = failed || !module;
        qn_free(outputs->ctx, module);
    }
    return failed;
}

qn_status qn_folder_write_config(const qn_checkpoint *checkpoint, const qn_outputs *outputs, const char *kv,
                                 const char *folder, qn_error *error)
{
    if (outputs->shard_count > 1) {
        QN_TRY(write_index(outputs, folder, error));
    }
    int32_t ignored = 0;
    char **ignore = list_ignored(outputs, &ignored, error);
    if (!ignore) {
        return QN_E_MEMORY;
    }
    const char *dtype = outputs->kept->weight == QN_F32   ? "float32"
                        : outputs->kept->weight == QN_F16 ? "float16"
                                                          : "bfloat16";
    const qn_scheme *const head = outputs->head == outputs->kept ? NULL : outputs->head;
    qn_status status = QN_OK;
    json_t *config = json_deep_copy(qn_checkpoint_config(checkpoint));
    json_t *quantization = qn_quant_config_make(outputs->scheme, head, (const char *const *)ignore, ignored, &status);
    if (status == QN_OK) {
        int failed = !config || add_modules(checkpoint, outputs, quantization);
        if (!failed) {
            json_object_del(config, "quantization_config");
            json_object_del(config, "quip_params");
            json_object_del(config, "dtype");
            failed = json_object_set_new(config, "torch_dtype", json_string(dtype)) ||
                     (head && json_object_set_new(config, "tie_word_embeddings", json_false())) ||
                     (quantization && json_object_set(config, qn_quant_config_key(outputs->scheme), quantization)) ||
                     set_kv(config, kv);
        }
        status = failed ? QN_E_MEMORY : write_json(outputs->ctx, folder, "config.json", config, error);
    }
    if (status == QN_E_MEMORY) {
        qn_error_set(error, QN_E_MEMORY, "out of memory writing config.json");
    }
    json_decref(quantization);
    json_decref(config);
    free_ignored(outputs, ignore, ignored);
    return status;
}
