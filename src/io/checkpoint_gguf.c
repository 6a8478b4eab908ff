/* A GGUF file as a checkpoint: names translated, tokenizer arrays handed over,
 * config.json made from the metadata. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "io/checkpoint_internal.h"
#include "io/checkpoint_llama.h"

/* Logical name of a GGUF tensor, into name[128]; *rotated: llama's rows are reordered. 1 when unknown. */
static int translate(const char *gguf, char name[128], int *rotated)
{
    static const char *const fixed[][2] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                           {"output_norm.weight", "model.norm.weight"},
                                           {"output.weight", "lm_head.weight"}};
    *rotated = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        if (strcmp(gguf, fixed[i][0]) == 0) {
            snprintf(name, 128, "%s", fixed[i][1]);
            return 0;
        }
    }
    if (strncmp(gguf, "blk.", 4) != 0 || gguf[4] < '0' || gguf[4] > '9') {
        return 1;
    }
    char *rest;
    const long layer = strtol(gguf + 4, &rest, 10);
    char canonical[32];
    const int used = snprintf(canonical, sizeof canonical, "blk.%ld.", layer);
    if (layer > 99999 || *rest != '.' || strncmp(gguf, canonical, (size_t)used) != 0) {
        return 1;
    }
    rest++;
    for (int i = 0; i < QN_LLAMA_LAYER_NAMES; i++) {
        const qn_llama_name *n = &qn_llama_layer_names[i];
        const size_t length = strlen(n->gguf);
        const char *const suffix = rest + length;
        if (strncmp(rest, n->gguf, length) == 0 && (strcmp(suffix, ".weight") == 0 || strcmp(suffix, ".bias") == 0)) {
            snprintf(name, 128, "model.layers.%ld.%s%s", layer, n->hf, suffix);
            *rotated = n->rotated;
            return 0;
        }
    }
    return 1;
}

static qn_status add_weights(qn_checkpoint *c, qn_error *error)
{
    const int32_t count = c->gguf.tensor_count;
    const int32_t heads = strcmp(c->hparams.architecture, "llama") == 0 ? c->hparams.head_dim : 0;
    c->tensors = qn_calloc(c->ctx, (size_t)count + 1, sizeof *c->tensors);
    QN_FAIL_IF(!c->tensors, error, QN_E_MEMORY, "out of memory for %d tensors", (int)count);
    for (int32_t i = 0; i < count; i++) {
        const qn_gguf_tensor *t = &c->gguf.tensors[i];
        qn_file_tensor *file = &c->tensors[c->tensor_count++];
        *file = (qn_file_tensor){.name = t->name, .view = t->view, .bytes = t->end - t->begin};
        char name[128];
        int rotated = 0;
        if (strcmp(t->name, QN_ROPE_TABLE) == 0) {
            continue; /* rope.c has read it */
        }
        QN_FAIL_IF(translate(t->name, name, &rotated) != 0, error, QN_E_UNSUPPORTED,
                   "tensor %s is not one of a %s model known here", t->name, c->hparams.architecture);
        const char *logical = qn_checkpoint_own_text(c, name, strlen(name));
        QN_FAIL_IF(!logical, error, QN_E_MEMORY, "out of memory for tensor names");
        QN_TRY(qn_checkpoint_add_dense(c, logical, file, rotated ? heads : 0, error));
    }
    return QN_OK;
}

/* Strings of an array, pointing into the file. */
static qn_status get_strings(qn_checkpoint *c, const char *key, const qn_string **out, int32_t *count, qn_error *error)
{
    const qn_gguf_value *value = qn_gguf_find(&c->gguf, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(!value->is_array || value->type != QN_GGUF_STRING, error, QN_E_FILE,
               "metadata %s is not an array of strings", key);
    QN_FAIL_IF(value->count > INT32_MAX / 2, error, QN_E_FILE, "metadata %s has too many elements", key);
    qn_string *strings = qn_checkpoint_own(c, (size_t)value->count + 1, sizeof *strings);
    QN_FAIL_IF(!strings, error, QN_E_MEMORY, "out of memory for %s", key);
    const unsigned char *at = value->data;
    for (uint64_t i = 0; i < value->count; i++) {
        strings[i].data = qn_gguf_next_string(&at, &strings[i].bytes);
    }
    *out = strings;
    *count = (int32_t)value->count;
    return QN_OK;
}

/* A string as zero-terminated text; *out stays NULL when absent. */
static qn_status get_text(qn_checkpoint *c, const char *key, const char **out, qn_error *error)
{
    const char *text;
    size_t bytes;
    QN_TRY(qn_gguf_get_string(&c->gguf, key, &text, &bytes, error));
    if (text) {
        QN_FAIL_IF(memchr(text, 0, bytes) != NULL, error, QN_E_FILE, "metadata %s holds a zero byte", key);
        QN_FAIL_IF(!qn_is_name_text(text, bytes), error, QN_E_FILE, "metadata %s is not valid UTF-8", key);
        *out = qn_checkpoint_own_text(c, text, bytes);
        QN_FAIL_IF(!*out, error, QN_E_MEMORY, "out of memory for %s", key);
    }
    return QN_OK;
}

static qn_status get_token_types(qn_checkpoint *c, qn_error *error)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const qn_gguf_value *value = qn_gguf_find(&c->gguf, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(!value->is_array || (value->type != QN_GGUF_I32 && value->type != QN_GGUF_U32), error, QN_E_FILE,
               "metadata %s is not an array of 32-bit integers", key);
    QN_FAIL_IF(value->count != (uint64_t)c->tokenizer.token_count, error, QN_E_FILE,
               "metadata %s has %llu elements for %d tokens", key, (unsigned long long)value->count,
               (int)c->tokenizer.token_count);
    int32_t *types = qn_checkpoint_own(c, (size_t)value->count + 1, sizeof *types);
    QN_FAIL_IF(!types, error, QN_E_MEMORY, "out of memory for %s", key);
    for (uint64_t i = 0; i < value->count; i++) {
        const int64_t type = qn_gguf_int_at(value, i);
        QN_FAIL_IF(type < 0 || type > 1000, error, QN_E_FILE, "metadata %s: token %llu has type %lld", key,
                   (unsigned long long)i, (long long)type);
        types[i] = (int32_t)type;
    }
    c->tokenizer.token_types = types;
    return QN_OK;
}

static qn_status get_scores(qn_checkpoint *c, qn_error *error)
{
    static const char key[] = "tokenizer.ggml.scores";
    const qn_gguf_value *value = qn_gguf_find(&c->gguf, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(!value->is_array || value->type != QN_GGUF_F32, error, QN_E_FILE, "metadata %s is not an array of f32",
               key);
    QN_FAIL_IF(value->count != (uint64_t)c->tokenizer.token_count, error, QN_E_FILE,
               "metadata %s has %llu elements for %d tokens", key, (unsigned long long)value->count,
               (int)c->tokenizer.token_count);
    float *scores = qn_checkpoint_own(c, (size_t)value->count + 1, sizeof *scores);
    QN_FAIL_IF(!scores, error, QN_E_MEMORY, "out of memory for %s", key);
    memcpy(scores, value->data, (size_t)value->count * sizeof *scores);
    c->tokenizer.scores = scores;
    return QN_OK;
}

static qn_status get_id(const qn_checkpoint *c, const char *key, int32_t *out, qn_error *error)
{
    int64_t id = -1;
    QN_TRY(qn_gguf_get_int(&c->gguf, key, -1, UINT32_MAX, &id, error));
    *out = id >= 0 && id < INT32_MAX ? (int32_t)id : -1;
    return QN_OK;
}

static qn_status get_flag(const qn_checkpoint *c, const char *key, int32_t *out, qn_error *error)
{
    int flag = -1;
    QN_TRY(qn_gguf_get_bool(&c->gguf, key, &flag, error));
    *out = flag;
    return QN_OK;
}

static qn_status read_tokenizer(qn_checkpoint *c, qn_error *error)
{
    qn_tokenizer_source *t = &c->tokenizer;
    QN_TRY(get_text(c, "tokenizer.ggml.model", &t->model, error));
    QN_TRY(get_text(c, "tokenizer.ggml.pre", &t->pre, error));
    QN_TRY(get_text(c, "tokenizer.chat_template", &t->chat_template, error));
    QN_TRY(get_strings(c, "tokenizer.ggml.tokens", &t->tokens, &t->token_count, error));
    QN_TRY(get_strings(c, "tokenizer.ggml.merges", &t->merges, &t->merge_count, error));
    QN_TRY(get_token_types(c, error));
    QN_TRY(get_scores(c, error));
    QN_TRY(get_id(c, "tokenizer.ggml.bos_token_id", &t->bos_id, error));
    QN_TRY(get_id(c, "tokenizer.ggml.eos_token_id", &t->eos_id, error));
    QN_TRY(get_id(c, "tokenizer.ggml.eot_token_id", &t->eot_id, error));
    QN_TRY(get_id(c, "tokenizer.ggml.unknown_token_id", &t->unk_id, error));
    QN_TRY(get_id(c, "tokenizer.ggml.padding_token_id", &t->pad_id, error));
    QN_TRY(get_flag(c, "tokenizer.ggml.add_space_prefix", &t->add_space, error));
    QN_TRY(get_flag(c, "tokenizer.ggml.add_bos_token", &t->add_bos, error));
    return get_flag(c, "tokenizer.ggml.add_eos_token", &t->add_eos, error);
}

qn_status qn_checkpoint_open_gguf(qn_checkpoint *c, qn_error *error)
{
    c->container = "gguf";
    c->files = qn_calloc(c->ctx, 1, sizeof *c->files);
    QN_FAIL_IF(!c->files, error, QN_E_MEMORY, "out of memory for %s", c->path);
    c->file_count = 1;
    c->files[0].path = qn_strdup(c->ctx, c->path);
    QN_FAIL_IF(!c->files[0].path, error, QN_E_MEMORY, "out of memory for %s", c->path);
    QN_TRY(qn_file_map_open(c->path, &c->files[0].map, error));
    QN_TRY(qn_gguf_parse(c->ctx, c->files[0].map.data, c->files[0].map.size, c->path, &c->gguf, error));
    qn_status status = qn_hparams_from_gguf(&c->gguf, &c->hparams, error);
    if (status == QN_OK) {
        status = read_tokenizer(c, error);
    }
    if (status == QN_OK) {
        status = add_weights(c, error);
    }
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "%s", c->path);
    }
    c->config = qn_hparams_to_config(&c->hparams);
    QN_FAIL_IF(!c->config, error, QN_E_MEMORY, "out of memory for the configuration of %s", c->path);
    return QN_OK;
}
