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

/* Recent keys and values, for a window and the tokens of a pass. */
static int allocate_recent(qn_session *s, int32_t tokens)
{
    const qn_hparams *h = qn_checkpoint_hparams(s->model->checkpoint);
    const qn_ctx *ctx = s->model->ctx;
    size_t bytes;
    s->recent_rows = QN_KV_WINDOW + QN_WINDOW_BLOCK + tokens;
    int failed = qn_mul_size((size_t)h->kv_heads * (size_t)h->head_dim * 2, (size_t)s->recent_rows, &bytes);
    s->recent = failed ? NULL : qn_calloc(ctx, 2 * (size_t)h->layers, sizeof *s->recent);
    failed = !s->recent;
    for (int32_t i = 0; i < 2 * h->layers && !failed; i++) {
        s->recent[i] = qn_calloc(ctx, 1, bytes);
        failed = !s->recent[i];
    }
    return failed;
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
    for (int32_t i = 0; s->recent && i < 2 * layers; i++) {
        qn_free(ctx, s->recent[i]);
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
