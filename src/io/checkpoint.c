/* Opening and describing checkpoints: decides which container a path is, owns
 * the memory, answers questions. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/format.h"
#include "io/checkpoint_internal.h"

#define HEADER_BYTES (2 * sizeof(qn_owned *) < QN_ALIGN ? QN_ALIGN : 2 * sizeof(qn_owned *))

void *qn_checkpoint_own(qn_checkpoint *c, size_t count, size_t size)
{
    size_t bytes;
    if (qn_mul_size(count, size, &bytes) || qn_add_size(bytes, HEADER_BYTES, &bytes)) {
        return NULL;
    }
    qn_owned *block = qn_calloc(c->ctx, 1, bytes);
    if (!block) {
        return NULL;
    }
    block->next = c->owned;
    c->owned = block;
    return (char *)block + HEADER_BYTES;
}

char *qn_checkpoint_own_text(qn_checkpoint *c, const char *text, size_t bytes)
{
    char *copy = bytes < SIZE_MAX ? qn_checkpoint_own(c, bytes + 1, 1) : NULL;
    if (copy) {
        memcpy(copy, text, bytes);
    }
    return copy;
}

qn_status qn_checkpoint_add_weight(qn_checkpoint *c, const qn_weight *weight, qn_error *error)
{
    if (c->weight_count == c->weight_capacity) {
        const int32_t capacity = c->weight_capacity ? c->weight_capacity * 2 : 256;
        qn_weight *bigger = capacity < INT32_MAX / 4 ? qn_calloc(c->ctx, (size_t)capacity, sizeof *bigger) : NULL;
        QN_FAIL_IF(!bigger, error, QN_E_MEMORY, "out of memory for %d weights", (int)capacity);
        if (c->weight_count) {
            memcpy(bigger, c->weights, (size_t)c->weight_count * sizeof *bigger);
        }
        qn_free(c->ctx, c->weights);
        c->weights = bigger;
        c->weight_capacity = capacity;
    }
    const int added = qn_map_add(&c->weight_names, weight->name, strlen(weight->name), c->weight_count);
    QN_FAIL_IF(added < 0, error, QN_E_MEMORY, "out of memory for weight names");
    QN_FAIL_IF(added > 0, error, QN_E_FILE, "the weight %s is there twice", weight->name);
    c->weights[c->weight_count++] = *weight;
    return QN_OK;
}

const qn_file_tensor *qn_checkpoint_file_tensor(const qn_checkpoint *c, const char *name)
{
    const int32_t i = qn_map_get(&c->tensor_names, name, strlen(name));
    return i < 0 ? NULL : &c->tensors[i];
}

static int is_float(qn_format format)
{
    return format == QN_F32 || format == QN_F16 || format == QN_BF16;
}

qn_status qn_checkpoint_add_dense(qn_checkpoint *c, const char *name, const qn_file_tensor *tensor,
                                  int32_t rope_interleaved, qn_error *error)
{
    const qn_shape *s = &tensor->view.shape;
    const qn_format_row *row = qn_format_get_row(s->format);
    QN_FAIL_IF(s->ndim != 1 && s->ndim != 2, error, QN_E_FILE, "tensor %s has %d dimensions, expected 1 or 2",
               tensor->name, (int)s->ndim);
    QN_FAIL_IF(!row || !row->decode || (!is_float(s->format) && row->info.block_elements < 32), error, QN_E_FILE,
               "tensor %s is in the format %s, which plain weights are not stored in", tensor->name,
               row ? row->info.name : "none");
    QN_FAIL_IF(s->ndim == 1 && !is_float(s->format), error, QN_E_FILE,
               "tensor %s is a vector in the format %s, expected f32, f16 or bf16", tensor->name, row->info.name);
    for (int32_t d = 0; d < s->ndim; d++) {
        QN_FAIL_IF(s->dims[d] < 1, error, QN_E_FILE, "tensor %s has no elements", tensor->name);
    }
    qn_weight weight = {.name = name,
                        .scheme = qn_scheme_dense(),
                        .ndim = s->ndim,
                        .n = s->dims[0],
                        .k = s->ndim == 2 ? s->dims[1] : 1,
                        .data = tensor->view,
                        .rope_interleaved = rope_interleaved};
    if (row->taken_as) {
        const qn_shape taken = qn_shape_make(row->taken_as, 2, weight.n, weight.k, 1, 1);
        weight.data = qn_view_make(tensor->view.data, &taken);
        weight.blocks = s->format;
    }
    return qn_checkpoint_add_weight(c, &weight, error);
}

/* What most weights are stored as, and how many there are. */
static void summarise(qn_checkpoint *c)
{
    const qn_scheme *scheme = c->quant ? qn_quant_config_scheme(c->quant) : NULL;
    int64_t by_format[QN_FORMAT_LIMIT] = {0}, quantised = 0, dynamic = 0;
    for (int32_t i = 0; i < c->weight_count; i++) {
        const qn_weight *w = &c->weights[i];
        int64_t elements = INT64_MAX;
        (void)qn_mul_i64(w->n, w->k, &elements);
        c->parameters = c->parameters > INT64_MAX - elements ? INT64_MAX : c->parameters + elements;
        if (w->scheme == qn_scheme_dense()) {
            by_format[qn_weight_format(w)] += elements;
        } else {
            quantised += elements;
            scheme = scheme ? scheme : w->scheme;
            dynamic += w->scheme == scheme->dynamic ? elements : 0;
        }
    }
    int best = 0;
    for (int f = 1; f < QN_FORMAT_LIMIT; f++) {
        best = by_format[f] > by_format[best] ? f : best;
    }
    const qn_format_info *info = qn_format_get_info((qn_format)best);
    const int64_t plain = c->quant ? 0 : by_format[best]; /* a file whose config names a scheme is in it */
    c->scheme_name = dynamic > quantised / 2 ? scheme->dynamic->name
                     : quantised > plain     ? scheme->name
                     : info                  ? info->name
                                             : "none";
    for (int32_t i = 0; i < c->tensor_count; i++) {
        c->tensor_bytes += c->tensors[i].bytes;
    }
    for (int32_t i = 0; i < c->file_count; i++) {
        c->file_bytes += c->files[i].map.size;
    }
}

static int ends_with(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* FILE.packed beside a file, quern.packed in a folder. */
static qn_status name_packed_file(qn_checkpoint *c, int folder, qn_error *error)
{
    size_t length = strlen(c->path);
    while (folder && length > 1 && c->path[length - 1] == '/') {
        length--;
    }
    const char *end = folder ? "/quern.packed" : ".packed";
    c->packed_path = qn_checkpoint_own(c, length + strlen(end) + 1, 1);
    QN_FAIL_IF(!c->packed_path, error, QN_E_MEMORY, "out of memory for %s", c->path);
    memcpy(c->packed_path, c->path, length);
    strcpy(c->packed_path + length, end);
    return QN_OK;
}

/* A lone .safetensors file: its folder holds config.json. */
static qn_status open_single(qn_checkpoint *c, qn_error *error)
{
    const char *slash = strrchr(c->path, '/');
    const size_t length = slash ? (size_t)(slash - c->path) : 0;
    const char *folder = !slash ? "." : length ? qn_checkpoint_own_text(c, c->path, length) : "/";
    QN_FAIL_IF(!folder, error, QN_E_MEMORY, "out of memory for %s", c->path);
    return qn_checkpoint_open_folder(c, folder, slash ? slash + 1 : c->path, error);
}

static qn_status open_any(qn_checkpoint *c, qn_error *error)
{
    struct stat st;
    QN_FAIL_IF(stat(c->path, &st) != 0, error, QN_E_IO, "cannot open %s: %s", c->path, strerror(errno));
    QN_TRY(name_packed_file(c, S_ISDIR(st.st_mode), error));
    if (S_ISDIR(st.st_mode)) {
        QN_TRY(qn_checkpoint_open_folder(c, c->path, NULL, error));
    } else if (ends_with(c->path, ".safetensors")) {
        QN_TRY(open_single(c, error));
    } else {
        for (size_t i = 0; i < 4; i++) {
            static const char *const pickles[] = {".bin", ".pt", ".pth", ".ckpt"};
            QN_FAIL_IF(ends_with(c->path, pickles[i]), error, QN_E_UNSUPPORTED,
                       "%s looks like a pickle file, which can run code and is never read; use safetensors or GGUF",
                       c->path);
        }
        QN_TRY(qn_checkpoint_open_gguf(c, error));
    }
    const qn_status status = qn_checkpoint_check_llama(c, error);
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "%s", c->path);
    }
    summarise(c);
    return QN_OK;
}

qn_status qn_checkpoint_open(qn_ctx *ctx, const char *path, qn_checkpoint **out, qn_error *error)
{
    QN_FAIL_IF(!ctx || !path || !out, error, QN_E_ARGUMENT, "qn_checkpoint_open: ctx, path or out is NULL");
    *out = NULL;
    qn_checkpoint *c = qn_calloc(ctx, 1, sizeof *c);
    QN_FAIL_IF(!c, error, QN_E_MEMORY, "out of memory for %s", path);
    c->ctx = ctx;
    c->tensor_names = qn_map_make(ctx);
    c->weight_names = qn_map_make(ctx);
    qn_tokenizer_source *t = &c->tokenizer;
    t->bos_id = t->eos_id = t->eot_id = t->unk_id = t->pad_id = t->add_bos = t->add_eos = -1;
    c->path = qn_strdup(ctx, path);
    qn_status status = c->path ? open_any(c, error) : qn_error_set(error, QN_E_MEMORY, "out of memory for %s", path);
    if (status != QN_OK) {
        qn_checkpoint_close(c);
        return status;
    }
    *out = c;
    return QN_OK;
}

void qn_checkpoint_close(qn_checkpoint *c)
{
    if (!c) {
        return;
    }
    const qn_ctx *ctx = c->ctx;
    qn_quant_config_destroy(c->quant);
    json_decref(c->config);
    qn_map_free(&c->tensor_names);
    qn_map_free(&c->weight_names);
    qn_free(ctx, c->tensors);
    qn_free(ctx, c->weights);
    qn_gguf_free(&c->gguf);
    for (int32_t i = 0; i < c->file_count; i++) {
        qn_safetensors_free(&c->files[i].safetensors);
        qn_file_map_close(&c->files[i].map);
        qn_free(ctx, c->files[i].path);
    }
    qn_free(ctx, c->files);
    for (int i = 0; i < QN_TEXT_COUNT; i++) {
        qn_file_map_close(&c->texts[i]);
    }
    while (c->owned) {
        qn_owned *next = c->owned->next;
        qn_free(ctx, c->owned);
        c->owned = next;
    }
    qn_free(ctx, c->path);
    qn_free(ctx, c);
}

void qn_checkpoint_release(const qn_checkpoint *c, const void *data, size_t bytes)
{
    for (int32_t i = 0; i < c->file_count; i++) {
        if (qn_file_map_holds(&c->files[i].map, data, bytes)) {
            qn_file_map_release(&c->files[i].map, data, bytes);
            return;
        }
    }
}

void qn_checkpoint_release_all(const qn_checkpoint *c)
{
    for (int32_t i = 0; i < c->file_count; i++) {
        qn_file_map_release(&c->files[i].map, c->files[i].map.data, c->files[i].map.size);
    }
    for (int i = 0; i < QN_TEXT_COUNT; i++) {
        qn_file_map_release(&c->texts[i], c->texts[i].data, c->texts[i].size);
    }
}

void qn_checkpoint_get_info(const qn_checkpoint *c, qn_model_info *info)
{
    const qn_hparams *h = &c->hparams;
    *info =
        (qn_model_info){.path = c->path,
                        .container = c->container,
                        .architecture = h->architecture,
                        .name = h->name,
                        .scheme = c->scheme_name,
                        .parameters = c->parameters,
                        .tensor_bytes = c->tensor_bytes,
                        .file_bytes = c->file_bytes,
                        .bits_per_weight = c->parameters ? (double)c->tensor_bytes * 8.0 / (double)c->parameters : 0.0,
                        .tensor_count = c->tensor_count,
                        .file_count = c->file_count,
                        .layers = h->layers,
                        .hidden = h->hidden,
                        .heads = h->heads,
                        .kv_heads = h->kv_heads,
                        .head_dim = h->head_dim,
                        .intermediate = h->intermediate,
                        .vocab_size = h->vocab_size,
                        .context_length = h->context_length,
                        .tied_embeddings = h->tied_embeddings,
                        .rope_theta = h->rope_theta,
                        .rms_eps = h->rms_eps,
                        .rope_type = h->rope_type};
}

qn_status qn_checkpoint_tensor(const qn_checkpoint *c, int32_t i, qn_tensor_info *info)
{
    if (!c || !info || i < 0 || i >= c->tensor_count) {
        return QN_E_ARGUMENT;
    }
    const qn_file_tensor *t = &c->tensors[i];
    *info = (qn_tensor_info){.name = t->name, .shape = t->view.shape, .bytes = t->bytes, .file = t->file};
    return QN_OK;
}

const qn_hparams *qn_checkpoint_hparams(const qn_checkpoint *c)
{
    return &c->hparams;
}

const qn_tokenizer_source *qn_checkpoint_tokenizer(const qn_checkpoint *c)
{
    return &c->tokenizer;
}

int32_t qn_checkpoint_weight_count(const qn_checkpoint *c)
{
    return c->weight_count;
}

const qn_weight *qn_checkpoint_weight_at(const qn_checkpoint *c, int32_t i)
{
    return i >= 0 && i < c->weight_count ? &c->weights[i] : NULL;
}

const qn_weight *qn_checkpoint_find(const qn_checkpoint *c, const char *name)
{
    const int32_t i = qn_map_get(&c->weight_names, name, strlen(name));
    return i < 0 ? NULL : &c->weights[i];
}

const json_t *qn_checkpoint_config(const qn_checkpoint *c)
{
    return c->config;
}
