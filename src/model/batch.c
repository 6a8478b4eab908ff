/* Batches: the registers, and the loop that runs a model's steps over the rows of
 * one sequence or of several.
 *
 * Rows of all sequences go through a linear layer together; a step that reads a KV
 * cache runs once a sequence. Each operator computes each row by itself in one
 * fixed order, so the logits' bits of a sequence depend neither on how its text is
 * cut into calls and passes nor on the sequences beside it. */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "model/session.h"

#define LOGITS_ROWS 32 /* rows of logits that are made together when they belong in different places */

/* Rows of one sequence in a pass. */
typedef struct segment {
    qn_session *session;
    int32_t first, count;
} segment;

/* A row whose logits are asked for. */
typedef struct wanted_row {
    int32_t row;
    float *logits;
} wanted_row;

struct qn_batch {
    qn_model *model;
    qn_exec exec;
    int32_t tokens;              /* most rows of a pass */
    char **registers;            /* [register_count] -> [tokens, row_bytes] */
    int32_t *positions;          /* [tokens] */
    char *new_keys, *new_values; /* [tokens, cache_row] on their way to several caches; NULL: one sequence only */
    float *logits;               /* [LOGITS_ROWS, vocab] on their way to several places; NULL: one sequence only */
    segment *segments;           /* [tokens] */
    wanted_row *wanted;          /* [tokens] */
    int32_t segment_count, wanted_count, rows; /* of the pass */
    void *workspace;
    size_t workspace_bytes;
};

/* ---- making ---- */

void qn_batch_options_init(qn_batch_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

static int64_t cache_bytes(const qn_model *model)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    return (int64_t)h->kv_heads * h->head_dim * (int64_t)sizeof(float);
}

/* rows of row_bytes each; NULL when there is no such memory. */
static void *rows_alloc(const qn_ctx *ctx, int32_t rows, size_t row_bytes)
{
    size_t bytes;
    return qn_mul_size(row_bytes, (size_t)rows, &bytes) ? NULL : qn_alloc(ctx, bytes);
}

static int allocate(qn_batch *b, int several)
{
    const qn_model *model = b->model;
    const qn_ctx *ctx = model->ctx;
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    b->registers = qn_calloc(ctx, model->register_count, sizeof *b->registers);
    b->positions = rows_alloc(ctx, b->tokens, sizeof *b->positions);
    b->segments = rows_alloc(ctx, several ? b->tokens : 1, sizeof *b->segments);
    b->wanted = rows_alloc(ctx, b->tokens, sizeof *b->wanted);
    int failed = !b->registers || !b->positions || !b->segments || !b->wanted;
    for (size_t i = 0; !failed && i < model->register_count; i++) {
        b->registers[i] = rows_alloc(ctx, b->tokens, model->registers[i].row_bytes);
        failed = !b->registers[i];
    }
    if (!failed && several) {
        b->new_keys = rows_alloc(ctx, b->tokens, (size_t)cache_bytes(model));
        b->new_values = rows_alloc(ctx, b->tokens, (size_t)cache_bytes(model));
        b->logits = rows_alloc(ctx, (int32_t)qn_min_i64(b->tokens, LOGITS_ROWS), (size_t)h->vocab_size * sizeof(float));
        failed = !b->new_keys || !b->new_values || !b->logits;
    }
    for (size_t i = 0; !failed && i < model->plan_count; i++) {
        const size_t bytes = qn_plan_workspace_bytes(model->plans[i], b->tokens, qn_exec_threads(&b->exec));
        b->workspace_bytes = bytes > b->workspace_bytes ? bytes : b->workspace_bytes;
    }
    if (!failed && b->workspace_bytes) {
        b->workspace = qn_alloc(ctx, b->workspace_bytes);
        failed = !b->workspace;
    }
    return !failed;
}

qn_status qn_batch_make(qn_model *model, int32_t tokens, const qn_exec *exec, int several, qn_batch **out,
                        qn_error *error)
{
    qn_batch *b = qn_calloc(model->ctx, 1, sizeof *b);
    *out = NULL;
    if (b) {
        b->model = model;
        b->exec = *exec;
        b->tokens = tokens;
        if (allocate(b, several)) {
            *out = b;
            return QN_OK;
        }
        qn_batch_destroy(b);
    }
    QN_FAIL(error, QN_E_MEMORY, "out of memory for a batch of %d tokens", tokens);
}

qn_status qn_batch_create(qn_model *model, const qn_batch_options *options, qn_batch **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_batch_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!model, error, QN_E_ARGUMENT, "qn_batch_create: model is NULL");
    qn_batch_options defaults;
    if (!options) {
        qn_batch_options_init(&defaults);
        options = &defaults;
    }
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_batch_create: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_FAIL_IF(options->tokens < 0, error, QN_E_ARGUMENT, "qn_batch_create: tokens is %d, expected 0 or more",
               options->tokens);
    return qn_batch_make(model, options->tokens ? options->tokens : 512, &options->exec, 1, out, error);
}

void qn_batch_destroy(qn_batch *b)
{
    if (!b) {
        return;
    }
    const qn_ctx *ctx = b->model->ctx;
    for (size_t i = 0; b->registers && i < b->model->register_count; i++) {
        qn_free(ctx, b->registers[i]);
    }
    qn_free(ctx, b->registers);
    qn_free(ctx, b->positions);
    qn_free(ctx, b->new_keys);
    qn_free(ctx, b->new_values);
    qn_free(ctx, b->logits);
    qn_free(ctx, b->segments);
    qn_free(ctx, b->wanted);
    qn_free(ctx, b->workspace);
    qn_free(ctx, b);
}

/* ---- steps ---- */

/* Rows of the registers as a step sees them. */
typedef struct row_range {
    int32_t first, count;
    const qn_session *session; /* whose they are; NULL: of several sequences */
    float *logits;             /* [count, vocab] for the output layer */
} row_range;

static int is_new(const qn_operand *operand)
{
    return operand->place == QN_PLACE_NEW_KEYS || operand->place == QN_PLACE_NEW_VALUES;
}

/* Memory and view of an operand for these rows. */
static qn_mut_view resolve(const qn_batch *b, const qn_operand *operand, const row_range *rows)
{
    qn_mut_view view;
    memset(&view, 0, sizeof view);
    if (operand->place == QN_PLACE_NONE) {
        return view;
    }
    const qn_session *s = rows->session;
    qn_shape shape = operand->shape;
    char *data = NULL;
    int64_t stride = cache_bytes(b->model);
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
        stride = (int64_t)b->model->registers[operand->index].row_bytes;
        if (shape.ndim == 1 || (shape.ndim == 2 && shape.dims[1] == 1)) {
            /* one number a row (scales, zero points): kept dense, as the operators take them */
            size_t element;
            (void)qn_format_row_bytes(shape.format, 1, &element, NULL);
            stride = (int64_t)element;
        }
        data = b->registers[operand->index] + (operand->whole ? 0 : rows->first * stride) + operand->offset;
        break;
    case QN_PLACE_POSITIONS:
        data = (char *)(b->positions + rows->first);
        stride = (int64_t)sizeof(int32_t);
        break;
    case QN_PLACE_KEYS:
    case QN_PLACE_VALUES:
        shape.dims[0] = s->length + rows->count;
        data = (char *)(operand->place == QN_PLACE_KEYS ? s->keys : s->values)[operand->index];
        break;
    case QN_PLACE_NEW_KEYS:
    case QN_PLACE_NEW_VALUES:
        data =
            s ? (char *)(operand->place == QN_PLACE_NEW_KEYS ? s->keys : s->values)[operand->index] + s->length * stride
              : (operand->place == QN_PLACE_NEW_KEYS ? b->new_keys : b->new_values);
        break;
    }
    view = qn_mut_view_make(data, &shape);
    view.strides[0] = stride;
    return view;
}

/* x += y */
static void add_rows(const qn_batch *b, const qn_step *step, const row_range *rows)
{
    const qn_mut_view x = resolve(b, &step->out[0], rows), y = resolve(b, &step->in[0], rows);
    for (int64_t m = 0; m < x.shape.dims[0]; m++) {
        float *to = (float *)((char *)x.data + m * x.strides[0]);
        const float *from = (const float *)((const char *)y.data + m * y.strides[0]);
        for (int64_t i = 0; i < x.shape.dims[1]; i++) {
            to[i] += from[i];
        }
    }
}

static void observe(const qn_model *model, const qn_step *step, const qn_view *x)
{
    if (step->op != QN_OP_DENSE_MM || x->shape.format != QN_F32) {
        return;
    }
    for (int64_t m = 0; m < x->shape.dims[0]; m++) {
        const float *row = (const float *)((const char *)x->data + m * x->strides[0]);
        model->observe(model->observe_user, step->label, row, 1, x->shape.dims[1]);
    }
}

static qn_status run_step(qn_batch *b, const qn_step *step, const row_range *rows, qn_error *error)
{
    if (!step->plan) {
        add_rows(b, step, rows);
        return QN_OK;
    }
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int j = 0; j < QN_MAX_IN; j++) {
        const qn_mut_view view = resolve(b, &step->in[j], rows);
        args.in[j] = step->in[j].place == QN_PLACE_CONST ? step->in[j].view : qn_view_of(&view);
    }
    for (int j = 0; j < QN_MAX_OUT; j++) {
        args.out[j] = resolve(b, &step->out[j], rows);
    }
    args.packed = step->packed;
    if (b->model->observe) {
        observe(b->model, step, &args.in[0]);
    }
    const qn_status status = qn_run(step->plan, &args, b->workspace, b->workspace_bytes, &b->exec, error);
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "layer %d, %s %s", step->layer, qn_op_get_info(step->op)->name,
                               step->label);
    }
    return QN_OK;
}

static int reads_cache(const qn_step *step)
{
    for (int j = 0; j < QN_MAX_IN; j++) {
        if (step->in[j].place == QN_PLACE_KEYS || step->in[j].place == QN_PLACE_VALUES) {
            return 1;
        }
    }
    return 0;
}

/* New keys or values of all rows to the caches they belong to. */
static void scatter(const qn_batch *b, const qn_operand *operand)
{
    const int64_t row = cache_bytes(b->model);
    const char *const from = operand->place == QN_PLACE_NEW_KEYS ? b->new_keys : b->new_values;
    for (int32_t i = 0; i < b->segment_count; i++) {
        const segment *seg = &b->segments[i];
        const row_range rows = {.first = seg->first, .count = seg->count, .session = seg->session};
        memcpy(resolve(b, operand, &rows).data, from + seg->first * row, (size_t)(seg->count * row));
    }
}

/* The layers, for all rows of the pass. */
static qn_status run_body(qn_batch *b, qn_error *error)
{
    const row_range all = {.count = b->rows, .session = b->segment_count == 1 ? b->segments[0].session : NULL};
    for (size_t i = 0; i < b->model->body_steps; i++) {
        const qn_step *step = &b->model->steps[i];
        if (all.session || !reads_cache(step)) {
            QN_TRY(run_step(b, step, &all, error));
        } else {
            for (int32_t j = 0; j < b->segment_count; j++) {
                const segment *seg = &b->segments[j];
                const row_range rows = {.first = seg->first, .count = seg->count, .session = seg->session};
                QN_TRY(run_step(b, step, &rows, error));
            }
        }
        for (int j = 0; !all.session && j < QN_MAX_OUT; j++) {
            if (is_new(&step->out[j])) {
                scatter(b, &step->out[j]);
            }
        }
    }
    return QN_OK;
}

/* The output steps, for the rows whose logits are asked for; these move to the front of the stream. */
static qn_status run_output(qn_batch *b, qn_error *error)
{
    const qn_model *model = b->model;
    const size_t vocab = (size_t)qn_checkpoint_hparams(model->checkpoint)->vocab_size;
    char *const stream = b->registers[model->reg_stream];
    const size_t row_bytes = model->registers[model->reg_stream].row_bytes;
    for (int32_t i = 0; i < b->wanted_count; i++) {
        if (b->wanted[i].row != i) {
            memcpy(stream + (size_t)i * row_bytes, stream + (size_t)b->wanted[i].row * row_bytes, row_bytes);
        }
    }
    for (int32_t i = 0; i < b->wanted_count;) {
        row_range rows = {.first = i, .count = 1, .logits = b->wanted[i].logits};
        while (i + rows.count < b->wanted_count &&
               b->wanted[i + rows.count].logits == rows.logits + (size_t)rows.count * vocab) {
            rows.count++;
        }
        const int apart = rows.count == 1 && i + 1 < b->wanted_count;
        if (apart) {
            rows.count = (int32_t)qn_min_i64(b->wanted_count - i, LOGITS_ROWS);
            rows.logits = b->logits;
        }
        for (size_t s = model->body_steps; s < model->step_count; s++) {
            QN_TRY(run_step(b, &model->steps[s], &rows, error));
        }
        for (int32_t j = 0; apart && j < rows.count; j++) {
            memcpy(b->wanted[i + j].logits, b->logits + (size_t)j * vocab, vocab * sizeof(float));
        }
        i += rows.count;
    }
    return QN_OK;
}

/* ---- passes ---- */

/* Next tokens of an item, from token `done` of it, into the pass; returns how many. */
static int32_t add_tokens(qn_batch *b, const qn_batch_item *item, int32_t done)
{
    const qn_model *model = b->model;
    const int32_t n = (int32_t)qn_min_i64(item->count - done, b->tokens - b->rows);
    const size_t vocab = (size_t)qn_checkpoint_hparams(model->checkpoint)->vocab_size;
    const size_t row_bytes = model->registers[model->reg_stream].row_bytes;
    if (n == 0) {
        return 0;
    }
    b->segments[b->segment_count++] = (segment){.session = item->session, .first = b->rows, .count = n};
    for (int32_t i = 0; i < n; i++, b->rows++) {
        char *row = b->registers[model->reg_stream] + (size_t)b->rows * row_bytes;
        qn_weight_decode_row(model->embedding, item->ids[done + i], (float *)(void *)row);
        b->positions[b->rows] = item->session->length + i;
        if (item->logits && (item->all || done + i == item->count - 1)) {
            b->wanted[b->wanted_count++] =
                (wanted_row){.row = b->rows, .logits = item->logits + (item->all ? (size_t)(done + i) * vocab : 0)};
        }
    }
    return n;
}

qn_status qn_batch_run(qn_batch *b, const qn_batch_item *items, int32_t count, qn_error *error)
{
    for (int32_t i = 0; i < count; i++) {
        items[i].session->before = items[i].session->length;
    }
    qn_status status = QN_OK;
    for (int32_t i = 0, done = 0; status == QN_OK && i < count;) {
        b->rows = b->segment_count = b->wanted_count = 0;
        while (i < count && b->rows < b->tokens) {
            done += add_tokens(b, &items[i], done);
            if (done == items[i].count) {
                i++;
                done = 0;
            }
        }
        if (b->rows == 0) {
            break;
        }
        status = run_body(b, error);
        if (status == QN_OK) {
            status = run_output(b, error);
        }
        for (int32_t j = 0; j < b->segment_count; j++) {
            b->segments[j].session->length += b->segments[j].count;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (status != QN_OK) {
            items[i].session->length = items[i].session->before;
        }
        items[i].session->before = -1;
    }
    return status;
}

qn_status qn_batch_check_item(const qn_batch_item *item, qn_error *error)
{
    const qn_session *s = item->session;
    const int32_t vocab = qn_checkpoint_hparams(s->model->checkpoint)->vocab_size;
    QN_FAIL_IF(item->count < 0 || (item->count > 0 && !item->ids), error, QN_E_ARGUMENT, "%s%d",
               item->count < 0 ? "count is " : "ids is NULL, count is ", item->count);
    for (int32_t i = 0; i < item->count; i++) {
        QN_FAIL_IF(item->ids[i] < 0 || item->ids[i] >= vocab, error, QN_E_ARGUMENT,
                   "token %d is %d, outside the vocabulary of %d", i, item->ids[i], vocab);
    }
    QN_FAIL_IF(item->count > s->capacity - s->length, error, QN_E_SHAPE,
               "%d tokens do not fit: the context holds %d of %d", item->count, s->length, s->capacity);
    return QN_OK;
}

/* Check item i and mark its session as one of this batch. */
static qn_status admit(const qn_batch *b, const qn_batch_item *item, qn_error *error)
{
    QN_FAIL_IF(!item->session, error, QN_E_ARGUMENT, "session is NULL");
    QN_FAIL_IF(item->session->model != b->model, error, QN_E_ARGUMENT, "the session is of another model");
    QN_FAIL_IF(item->session->before >= 0, error, QN_E_ARGUMENT, "the session is in the batch already");
    QN_TRY(qn_batch_check_item(item, error));
    item->session->before = item->session->length;
    return QN_OK;
}

qn_status qn_batch_eval(qn_batch *b, const qn_batch_item *items, int32_t count, qn_error *error)
{
    QN_FAIL_IF(!b, error, QN_E_ARGUMENT, "qn_batch_eval: batch is NULL");
    QN_FAIL_IF(count < 0 || (count > 0 && !items), error, QN_E_ARGUMENT, "qn_batch_eval: count is %d", count);
    for (int32_t i = 0; i < count; i++) {
        const qn_status status = admit(b, &items[i], error);
        if (status != QN_OK) {
            for (int32_t j = 0; j < i; j++) {
                items[j].session->before = -1;
            }
            return qn_error_prefix(error, status, "item %d", i);
        }
    }
    return qn_batch_run(b, items, count, error);
}
