/* Sessions: the KV cache of one sequence, the registers, and the loop that runs
 * a model's steps over a batch of rows.
 *
 * A text may be cut into calls and batches anywhere: each operator computes
 * each row by itself in one fixed order, so the logits' bits do not change. */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "model/model.h"

struct qn_session {
    qn_model *model;
    qn_exec exec;
    int32_t capacity, batch, length;
    int64_t cache_row; /* floats a token of one layer's keys (or values) */
    float **keys, **values; /* [layers] -> [capacity, cache_row] */
    char **registers;       /* [register_count] -> [batch, row_bytes] */
    int32_t *positions;     /* [batch] */
    void *workspace;
    size_t workspace_bytes;
};

void qn_session_options_init(qn_session_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

static qn_status allocate(qn_session *s, qn_error *error)
{
    const qn_model *model = s->model;
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    const qn_ctx *ctx = model->ctx;
    s->cache_row = (int64_t)h->kv_heads * h->head_dim;
    size_t layer_bytes;
    int failed = qn_mul_size((size_t)s->cache_row * sizeof(float), (size_t)s->capacity, &layer_bytes);
    s->keys = qn_calloc(ctx, (size_t)h->layers, sizeof *s->keys);
    s->values = qn_calloc(ctx, (size_t)h->layers, sizeof *s->values);
    s->registers = qn_calloc(ctx, model->register_count, sizeof *s->registers);
    s->positions = qn_calloc(ctx, (size_t)s->batch, sizeof *s->positions);
    failed = failed || !s->keys || !s->values || !s->registers || !s->positions;
    for (int32_t l = 0; !failed && l < h->layers; l++) {
        s->keys[l] = qn_alloc(ctx, layer_bytes);
        s->values[l] = qn_alloc(ctx, layer_bytes);
        failed = !s->keys[l] || !s->values[l];
    }
    for (size_t i = 0; !failed && i < model->register_count; i++) {
        size_t bytes;
        failed = qn_mul_size(model->registers[i].row_bytes, (size_t)s->batch, &bytes);
        s->registers[i] = failed ? NULL : qn_alloc(ctx, bytes);
        failed = !s->registers[i];
    }
    for (size_t i = 0; !failed && i < model->plan_count; i++) {
        const size_t bytes = qn_plan_workspace_bytes(model->plans[i], s->batch, qn_exec_threads(&s->exec));
        s->workspace_bytes = bytes > s->workspace_bytes ? bytes : s->workspace_bytes;
    }
    if (!failed && s->workspace_bytes) {
        s->workspace = qn_alloc(ctx, s->workspace_bytes);
        failed = !s->workspace;
    }
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a session of %d tokens of context (%.1f MB of KV cache)",
               s->capacity, 2e-6 * (double)h->layers * (double)s->cache_row * sizeof(float) * (double)s->capacity);
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
    s->exec = options->exec;
    s->capacity = options->context_length ? options->context_length
                                          : (int32_t)qn_min_i64(h->context_length, 4096);
    s->batch = (int32_t)qn_min_i64(options->batch ? options->batch : 512, s->capacity);
    const qn_status status = allocate(s, error);
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
    for (int32_t l = 0; l < layers; l++) {
        qn_free(ctx, s->keys ? s->keys[l] : NULL);
        qn_free(ctx, s->values ? s->values[l] : NULL);
    }
    for (size_t i = 0; s->registers && i < s->model->register_count; i++) {
        qn_free(ctx, s->registers[i]);
    }
    qn_free(ctx, s->keys);
    qn_free(ctx, s->values);
    qn_free(ctx, s->registers);
    qn_free(ctx, s->positions);
    qn_free(ctx, s->workspace);
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
    session->length = length;
    return QN_OK;
}

/* Rows of one batch as the steps see them. */
typedef struct batch_rows {
    int32_t position; /* of the first row in the sequence */
    int32_t count;    /* rows */
    int32_t first;    /* row of the registers where this run begins */
    float *logits;    /* [count, vocab] for the output layer */
} batch_rows;

/* Memory and view of an operand for these rows. */
static qn_mut_view resolve(const qn_session *s, const qn_operand *operand, const batch_rows *rows)
{
    qn_mut_view view;
    memset(&view, 0, sizeof view);
    if (operand->place == QN_PLACE_NONE) {
        return view;
    }
    qn_shape shape = operand->shape;
    const int64_t cache_bytes = s->cache_row * (int64_t)sizeof(float);
    char *data = NULL;
    int64_t stride = cache_bytes;
    if (!operand->whole) {
        shape.dims[0] = rows->count;
    }
    switch (operand->place) {
    case QN_PLACE_NONE:
    case QN_PLACE_CONST: break;
    case QN_PLACE_REGISTER:
        if (operand->index < 0) {
            view = qn_mut_view_make(rows->logits, &shape);
            return view;
        }
        stride = (int64_t)s->model->registers[operand->index].row_bytes;
        if (shape.ndim == 1 || (shape.ndim == 2 && shape.dims[1] == 1)) {
            /* one number a row (scales, zero points): kept dense, as the operators take them */
            size_t element;
            (void)qn_format_row_bytes(shape.format, 1, &element, NULL);
            stride = (int64_t)element;
        }
        data = s->registers[operand->index] + (operand->whole ? 0 : rows->first * stride) + operand->offset;
        break;
    case QN_PLACE_POSITIONS:
        data = (char *)(s->positions + rows->first);
        stride = (int64_t)sizeof(int32_t);
        break;
    case QN_PLACE_KEYS:
    case QN_PLACE_VALUES:
        shape.dims[0] = rows->position + rows->count;
        data = (char *)(operand->place == QN_PLACE_KEYS ? s->keys : s->values)[operand->index];
        break;
    case QN_PLACE_NEW_KEYS:
    case QN_PLACE_NEW_VALUES:
        data = (char *)(operand->place == QN_PLACE_NEW_KEYS ? s->keys : s->values)[operand->index] +
               rows->position * cache_bytes;
        break;
    }
    view = qn_mut_view_make(data, &shape);
    view.strides[0] = stride;
    return view;
}

/* x += y, rows at a time */
typedef struct add_job {
    qn_mut_view x, y;
    int64_t per_task;
} add_job;

#define ADD_BYTES 65536 /* of a task: little work stays on the calling thread */

static void add_row(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}

static void add_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const add_job *job = user;
    const qn_mut_view *x = &job->x, *y = &job->y;
    const int64_t last = qn_min_i64(x->shape.dims[0], (index + 1) * job->per_task);
    for (int64_t m = index * job->per_task; m < last; m++) {
        add_row((float *)((char *)x->data + m * x->strides[0]),
                (const float *)((const char *)y->data + m * y->strides[0]), x->shape.dims[1]);
    }
}

static void add_rows(const qn_session *s, const qn_step *step, const batch_rows *rows)
{
    add_job job = {.x = resolve(s, &step->out[0], rows), .y = resolve(s, &step->in[0], rows)};
    job.per_task = qn_max_i64(1, ADD_BYTES / (job.x.shape.dims[1] * (int64_t)sizeof(float) + 1));
    qn_parallel_for(&s->exec, qn_ceil_div(job.x.shape.dims[0], job.per_task), add_task, &job);
}

static void observe(const qn_session *s, const qn_step *step, const qn_view *x)
{
    const qn_model *model = s->model;
    if (step->op != QN_OP_DENSE_MM || x->shape.format != QN_F32) {
        return;
    }
    for (int64_t m = 0; m < x->shape.dims[0]; m++) {
        const float *row = (const float *)((const char *)x->data + m * x->strides[0]);
        model->observe(model->observe_user, step->label, row, 1, x->shape.dims[1]);
    }
}

static qn_status run_steps(qn_session *s, size_t begin, size_t end, const batch_rows *rows, qn_error *error)
{
    for (size_t i = begin; i < end; i++) {
        const qn_step *step = &s->model->steps[i];
        if (!step->plan) {
            add_rows(s, step, rows);
            continue;
        }
        qn_args args;
        memset(&args, 0, sizeof args);
        for (int j = 0; j < QN_MAX_IN; j++) {
            const qn_mut_view view = resolve(s, &step->in[j], rows);
            args.in[j] = step->in[j].place == QN_PLACE_CONST ? step->in[j].view : qn_view_of(&view);
        }
        for (int j = 0; j < QN_MAX_OUT; j++) {
            args.out[j] = resolve(s, &step->out[j], rows);
        }
        args.packed = step->packed;
        if (s->model->observe) {
            observe(s, step, &args.in[0]);
        }
        const qn_status status = qn_run(step->plan, &args, s->workspace, s->workspace_bytes, &s->exec, error);
        if (status != QN_OK) {
            return qn_error_prefix(error, status, "layer %d, %s %s", step->layer, qn_op_get_info(step->op)->name,
                                   step->label);
        }
    }
    return QN_OK;
}

static qn_status eval_batch(qn_session *s, const int32_t *ids, int32_t count, int all, int last, float *logits,
                            qn_error *error)
{
    const qn_model *model = s->model;
    char *stream = s->registers[model->reg_stream];
    const size_t stride = model->registers[model->reg_stream].row_bytes;
    for (int32_t i = 0; i < count; i++) {
        qn_weight_decode_row(model->embedding, ids[i], (float *)(stream + (size_t)i * stride));
        s->positions[i] = s->length + i;
    }
    batch_rows rows = {.position = s->length, .count = count};
    QN_TRY(run_steps(s, 0, model->body_steps, &rows, error));
    if (logits && (all || last)) {
        rows.first = all ? 0 : count - 1;
        rows.count = count - rows.first;
        rows.logits = logits;
        QN_TRY(run_steps(s, model->body_steps, model->step_count, &rows, error));
    }
    s->length += count;
    return QN_OK;
}

qn_status qn_session_eval(qn_session *s, const int32_t *ids, int32_t count, int all, float *logits, qn_error *error)
{
    const int32_t vocab = qn_checkpoint_hparams(s->model->checkpoint)->vocab_size;
    QN_FAIL_IF(count < 0 || (count > 0 && !ids), error, QN_E_ARGUMENT, "qn_session_eval: count is %d", count);
    for (int32_t i = 0; i < count; i++) {
        QN_FAIL_IF(ids[i] < 0 || ids[i] >= vocab, error, QN_E_ARGUMENT,
                   "token %d is %d, outside the vocabulary of %d", i, ids[i], vocab);
    }
    QN_FAIL_IF(count > s->capacity - s->length, error, QN_E_SHAPE,
               "%d tokens do not fit: the context holds %d of %d", count, s->length, s->capacity);
    const int32_t before = s->length;
    for (int32_t done = 0; done < count;) {
        const int32_t n = (int32_t)qn_min_i64(count - done, s->batch);
        float *rows = logits && all ? logits + (int64_t)done * vocab : logits;
        const qn_status status = eval_batch(s, ids + done, n, all, done + n == count, rows, error);
        if (status != QN_OK) {
            s->length = before;
            return status;
        }
        done += n;
    }
    return QN_OK;
}
