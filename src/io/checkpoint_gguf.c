/* A GGUF file as a checkpoint: names translated, tokenizer arrays handed over,
 * config.json made from the metadata. */
#include <math.h>
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

/* ---- blocks of e2m1 codes ---- */

static int is_fp4(const qn_file_tensor *file)
{
    return file->view.shape.format == QN_MXFP4 || file->view.shape.format == QN_NVFP4;
}

/* The file's tensor of a name that is `length` bytes of another and an end; NULL: there is none. */
static const qn_gguf_tensor *find_tensor(const qn_checkpoint *c, const char *name, size_t length, const char *end)
{
    char text[QN_GGUF_MAX_NAME + 16];
    const int used = snprintf(text, sizeof text, "%.*s%s", (int)length, name, end);
    const int32_t i = qn_map_get(&c->gguf.names, text, (size_t)used);
    return i < 0 ? NULL : &c->gguf.tensors[i];
}

/* Whether a tensor is a number that belongs to an NVFP4 weight: X.scale, which its values are multiplied by, or
 * X.input_scale, of activations in four bits, which are taken as they are. */
static int is_fp4_scale(const qn_checkpoint *c, const char *name)
{
    static const char *const ends[] = {".scale", ".input_scale"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(dot, ends[i]) == 0) {
            const qn_gguf_tensor *weight = find_tensor(c, name, (size_t)(dot - name), ".weight");
            return weight && weight->view.shape.format == QN_NVFP4;
        }
    }
    return 0;
}

/* What a NVFP4 weight's values are divided by: 1 over the file's X.scale, 1 where there is none. */
static qn_status global_scale(const qn_checkpoint *c, const qn_file_tensor *file, float *out, qn_error *error)
{
    const qn_gguf_tensor *t = find_tensor(c, file->name, strlen(file->name) - strlen(".weight"), ".scale");
    *out = 1.0f;
    if (t) {
        const qn_file_tensor scale = {.name = t->name, .view = t->view};
        QN_TRY(qn_checkpoint_one_float(&scale, out, error));
        *out = 1.0f / *out;
        QN_FAIL_IF(isinf(*out), error, QN_E_FILE, "tensor %s is so small that it has no reciprocal", t->name);
    }
    return QN_OK;
}

/* A tensor of MXFP4 or NVFP4 blocks as a weight of that scheme. */
static qn_status add_fp4(qn_checkpoint *c, const char *name, const qn_file_tensor *file, int32_t rope_interleaved,
                         qn_error *error)
{
    const qn_shape *s = &file->view.shape;
    const int mx = s->format == QN_MXFP4;
    QN_FAIL_IF(s->ndim != 2 || !strstr(file->name, ".weight"), error, QN_E_FILE,
               "tensor %s has %d dimensions in the format %s, expected a matrix of weights", file->name, (int)s->ndim,
               qn_format_get_info(s->format)->name);
    qn_weight w = {.name = name,
                   .scheme = qn_scheme_find(qn_format_get_info(s->format)->name),
                   .ndim = 2,
                   .n = s->dims[0],
                   .k = s->dims[1],
                   .blocks = s->format,
                   .rope_interleaved = rope_interleaved};
    const qn_shape codes = qn_shape_make(QN_U8, 2, w.n, w.k / 2, 1, 1);
    const qn_shape scales = qn_shape_make(mx ? QN_U8 : QN_F8_E4M3, 2, w.n, w.k / w.scheme->block_k, 1, 1);
    w.data = qn_view_make(file->view.data, &codes);
    w.scale = qn_view_make(file->view.data, &scales);
    if (!mx) {
        QN_TRY(global_scale(c, file, &w.global_scale, error));
    }
    return qn_checkpoint_add_weight(c, &w, error);
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
        if (strcmp(t->name, QN_ROPE_TABLE) == 0 || is_fp4_scale(c, t->name)) {
            continue; /* rope.c has read it; its weight does */
        }
        QN_FAIL_IF(translate(t->name, name, &rotated) != 0, error, QN_E_UNSUPPORTED,
                   "tensor %s is not one of a %s model known here", t->name, c->hparams.architecture);
        const char *logical = qn_checkpoint_own_text(c, name, strlen(name));
        QN_FAIL_IF(!logical, error, QN_E_MEMORY, "out of memory for tensor names");
        QN_TRY((is_fp4(file) ? add_fp4 : qn_checkpoint_add_dense)(c, logical, file, rotated ? heads : 0, error));
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
