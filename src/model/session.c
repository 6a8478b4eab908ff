/* Sessions: the KV cache of one sequence. What runs the model is a batch
 * (batch.c); a session has one of its own, for a sequence by itself. */
#include <string.h>

#include <quern/device.h>

#include "base/checked.h"
#include "base/error.h"
#include "model/session.h"
#include "ref/slots.h"

void qn_session_options_init(qn_session_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* Most rows before a position that its window reads. */
enum { KEPT_ROWS = QN_KV_WINDOW + QN_WINDOW_BLOCK };

static size_t recent_row_bytes(const qn_session *s)
{
    const qn_hparams *h = qn_checkpoint_hparams(s->model->checkpoint);
    return (size_t)h->kv_heads * (size_t)h->head_dim * 2;
}

/* Recent keys and values, for a window and the tokens of a pass, and room to put a window aside. */
static int allocate_recent(qn_session *s, int32_t tokens)
{
    const qn_hparams *h = qn_checkpoint_hparams(s->model->checkpoint);
    const qn_ctx *ctx = s->model->ctx;
    const size_t count = 2 * (size_t)h->layers;
    size_t rows, bytes;
    s->recent_rows = QN_KV_WINDOW + QN_WINDOW_BLOCK + tokens;
    if (qn_mul_size(recent_row_bytes(s), (size_t)s->recent_rows + KEPT_ROWS, &rows) ||
        qn_mul_size(rows, count, &bytes)) {
        return 1;
    }
    if (s->model->device) {
        void *memory = NULL;
        s->recent_memory = qn_device_alloc(s->model->ctx, bytes, &memory, NULL) == QN_OK ? memory : NULL;
    } else {
        s->recent_memory = qn_calloc(ctx, 1, bytes);
    }
    s->recent = s->recent_memory ? qn_calloc(ctx, count, sizeof *s->recent) : NULL;
    for (size_t i = 0; s->recent && i < count; i++) {
        s->recent[i] = s->recent_memory + i * rows;
    }
    return !s->recent;
}

/* The rows that the next token's window reads, between the ring and where they are put aside behind it. */
static qn_status move_window(const qn_session *s, int32_t length, int aside, void *stream, qn_error *error)
{
    const size_t row = recent_row_bytes(s);
    const int32_t layers = qn_checkpoint_hparams(s->model->checkpoint)->layers;
    for (int64_t at = qn_window_first((int64_t)length + 1, QN_KV_WINDOW), done = 0; at < length;) {
        const int64_t first = at % s->recent_rows, count = qn_min_i64(length - at, s->recent_rows - first);
        for (int32_t i = 0; i < 2 * layers; i++) {
            char *const ring = s->recent[i] + (size_t)first * row;
            char *const kept = s->recent[i] + ((size_t)s->recent_rows + (size_t)done) * row;
            char *const to = aside ? kept : ring, *const from = aside ? ring : kept;
            if (s->model->device) {
                QN_TRY(qn_device_copy(s->model->ctx, to, from, (size_t)count * row, stream, error));
            } else {
                memcpy(to, from, (size_t)count * row);
            }
        }
        at += count;
        done += count;
    }
    return QN_OK;
}

qn_status qn_session_begin(qn_session *s, int32_t tokens, void *stream, qn_error *error)
{
    s->before = s->length;
    s->aside =
        s->recent && tokens > qn_session_room(s) && s->intact <= qn_window_first((int64_t)s->length + 1, QN_KV_WINDOW);
    const qn_status status = s->aside ? move_window(s, s->length, 1, stream, error) : QN_OK;
    s->aside = s->aside && status == QN_OK;
    return status;
}

qn_status qn_session_end(qn_session *s, int failed, void *stream, qn_error *error)
{
    qn_status status = QN_OK;
    if (failed) {
        s->length = s->before;
        if (s->aside) {
            status = move_window(s, s->length, 0, stream, error);
            s->intact = (int32_t)qn_window_first((int64_t)s->length + 1, QN_KV_WINDOW);
        }
    }
    s->before = -1;
    return status;
}

static qn_status allocate(qn_session *s, int32_t tokens, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(s->model->checkpoint);
    const qn_ctx *ctx = s->model->ctx;
    size_t layer_bytes;
    int failed = qn_mul_size(s->model->kv_row_bytes, (size_t)s->capacity, &layer_bytes);
    s->keys = qn_calloc(ctx, (size_t)h->layers, sizeof *s->keys);
    s->values = qn_calloc(ctx, (size_t)h->layers, sizeof *s->values);
    failed = failed || !s->keys || !s->values;
    if (s->model->device && !failed) {
        size_t bytes;
        failed = qn_mul_size(layer_bytes, 2 * (size_t)h->layers, &bytes);
        if (!failed) {
            const qn_status status = qn_device_alloc(s->model->ctx, bytes, &s->device_memory, error);
            if (status != QN_OK) {
                return qn_error_prefix(error, status, "a session of %d tokens of context", s->capacity);
            }
        }
        for (int32_t l = 0; !failed && l < h->layers; l++) {
            s->keys[l] = (char *)s->device_memory + 2 * (size_t)l * layer_bytes;
            s->values[l] = s->keys[l] + layer_bytes;
        }
    }
    for (int32_t l = 0; !s->model->device && !failed && l < h->layers; l++) {
        s->keys[l] = qn_alloc(ctx, layer_bytes);
        s->values[l] = qn_alloc(ctx, layer_bytes);
        failed = !s->keys[l] || !s->values[l];
    }
    if (!failed && qn_kv_lossy(s->model->kv)) {
        failed = allocate_recent(s, tokens);
    }
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a session of %d tokens of context (%.1f MB of KV cache)",
               s->capacity, 2e-6 * (double)h->layers * (double)s->model->kv_row_bytes * (double)s->capacity);
    return QN_OK;
}

qn_status qn_session_create(qn_model *model, const qn_session_options *options, qn_session **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_session_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!model, error, QN_E_ARGUMENT, "qn_session_create: model is NULL");
    qn_session_options defaults;
    if (!options) {
        qn_session_options_init(&defaults);
        options = &defaults;
    }
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_session_create: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    QN_FAIL_IF(options->context_length < 0 || options->batch < 0, error, QN_E_ARGUMENT,
               "qn_session_create: context_length is %d and batch %d, expected 0 or more", options->context_length,
               options->batch);
    QN_FAIL_IF(options->context_length > h->context_length, error, QN_E_ARGUMENT,
               "context length %d is beyond the model's %d", options->context_length, h->context_length);
    qn_session *s = qn_calloc(model->ctx, 1, sizeof *s);
    QN_FAIL_IF(!s, error, QN_E_MEMORY, "out of memory for the session");
    s->model = model;
    s->before = -1;
    s->capacity = options->context_length ? options->context_length : (int32_t)qn_min_i64(h->context_length, 4096);
    const int32_t tokens = (int32_t)qn_min_i64(options->batch ? options->batch : 512, s->capacity);
    qn_status status = allocate(s, tokens, error);
    if (status == QN_OK) {
        status = qn_batch_make(model, tokens, &options->exec, 0, &s->own, error);
    }
    if (status == QN_OK && model->device) {
        status = qn_batch_prepare_decode(s->own, s, error);
    }
    if (status != QN_OK) {
        qn_session_destroy(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

void qn_session_destroy(qn_session *s)
{
    if (!s) {
        return;
    }
    const qn_ctx *ctx = s->model->ctx;
    const int32_t layers = qn_checkpoint_hparams(s->model->checkpoint)->layers;
    qn_batch_destroy(s->own); /* its work on the caches ends first */
    for (int32_t l = 0; !s->device_memory && l < layers; l++) {
        qn_free(ctx, s->keys ? s->keys[l] : NULL);
        qn_free(ctx, s->values ? s->values[l] : NULL);
    }
    qn_free(ctx, s->keys);
    qn_free(ctx, s->values);
    if (s->model->device) {
        qn_device_free(s->model->ctx, s->recent_memory);
    } else {
        qn_free(ctx, s->recent_memory);
    }
    qn_free(ctx, s->recent);
    qn_device_free(s->model->ctx, s->device_memory);
    qn_free(ctx, s);
}

int32_t qn_session_length(const qn_session *session)
{
    return session->length;
}

int32_t qn_session_capacity(const qn_session *session)
{
    return session->capacity;
}

qn_status qn_session_truncate(qn_session *session, int32_t length, qn_error *error)
{
    QN_FAIL_IF(length < 0 || length > session->length, error, QN_E_ARGUMENT,
               "cannot truncate to %d tokens, the session holds %d", length, session->length);
    QN_FAIL_IF(
        session->recent && length > 0 && qn_window_first(length + 1, QN_KV_WINDOW) < session->intact, error,
        QN_E_UNSUPPORTED,
        "cannot truncate to %d tokens: recent keys and values are kept from token %d on, and the next token would "
        "read them from token %lld; truncate to 0 or to more",
        length, session->intact, (long long)qn_window_first(length + 1, QN_KV_WINDOW));
    session->length = length;
    session->intact = length ? session->intact : 0;
    return QN_OK;
}

int32_t qn_session_room(const qn_session *session)
{
    return session->recent ? session->recent_rows - QN_KV_WINDOW - QN_WINDOW_BLOCK : INT32_MAX;
}

qn_status qn_session_eval(qn_session *s, const int32_t *ids, int32_t count, int all, float *logits, qn_error *error)
{
    const qn_batch_item item = {.session = s, .ids = ids, .count = count, .all = all, .logits = logits};
    QN_TRY(qn_batch_check_item(&item, error));
    return qn_batch_run(s->own, &item, 1, error);
}
