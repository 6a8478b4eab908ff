/* Batches: the registers, and the loop that runs a model's steps over the rows of
 * one sequence or of several.
 *
 * Rows of all sequences go through a linear layer together; a step that reads a KV
 * cache runs once a sequence. Each operator computes each row by itself in one
 * fixed order, so the logits' bits of a sequence depend neither on how its text is
 * cut into calls and passes nor on the sequences beside it. */
#include <string.h>

#include <quern/device.h>

#include "base/checked.h"
#include "base/error.h"
#include "exec/pool.h"
#include "format/format.h"
#include "model/batch.h"
#include "model/device.h"
#include "model/ready.h"
#include "model/strips.h"

#define FEW_ROWS 16    /* of a pass that reads weights faster than it computes */
#define LOGITS_ROWS 32 /* rows of logits that are made together when they belong in different places */

/* ---- making ---- */

void qn_batch_options_init(qn_batch_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* rows of row_bytes each on the host; NULL when there is no such memory. */
static void *host_rows(const qn_ctx *ctx, int32_t rows, size_t row_bytes)
{
    size_t bytes;
    return qn_mul_size(row_bytes, (size_t)rows, &bytes) ? NULL : qn_alloc(ctx, bytes);
}

/* Memory where the model's operands live. */
static void *operands_alloc(const qn_model *model, size_t bytes)
{
    void *memory = NULL;
    if (model->device) {
        return qn_device_alloc(model->ctx, bytes, &memory, NULL) == QN_OK ? memory : NULL;
    }
    memory = qn_alloc(model->ctx, bytes);
    if (memory) {
        qn_want_large_pages(memory, bytes);
    }
    return memory;
}

static void operands_free(const qn_model *model, void *memory)
{
    if (model->device) {
        qn_device_free(model->ctx, memory);
    } else {
        qn_free(model->ctx, memory);
    }
}

static int allocate_input(qn_batch *b)
{
    const qn_model *model = b->model;
    if (!model->device) {
        b->input = host_rows(model->ctx, b->tokens, 3 * sizeof *b->input);
        b->positions = b->input ? b->input + b->tokens : NULL;
        return b->input != NULL;
    }
    void *input = NULL;
    b->chains = qn_calloc(model->ctx, model->step_count + 1, sizeof *b->chains);
    if (!b->chains || qn_host_alloc(model->ctx, (size_t)b->tokens * 3 * sizeof *b->input, &input, NULL) != QN_OK) {
        return 0;
    }
    b->input = input;
    b->device_input = operands_alloc(model, (size_t)b->tokens * 3 * sizeof *b->input);
    b->positions = b->device_input ? b->device_input + b->tokens : NULL;
    return b->device_input != NULL;
}

#define APART 256 /* bytes that parts of the batch's memory begin at a multiple of */

/* The next rows of the batch's memory; *bytes grows, to SIZE_MAX when they are too many. */
static char *next_rows(char *memory, size_t *bytes, int64_t rows, size_t row_bytes)
{
    char *const here = memory ? memory + *bytes : NULL;
    size_t own;
    if (qn_mul_size(row_bytes, (size_t)rows, &own) || own > SIZE_MAX - APART ||
        qn_add_size(*bytes, qn_align_up(own, APART), bytes)) {
        *bytes = SIZE_MAX;
    }
    return here;
}

/* Registers and what else operators read and write, in one piece, for the sake of large pages: a pass of many tokens
 * goes through all of it layer by layer. memory NULL: only its size. */
static size_t place_operands(qn_batch *b, int several, char *memory)
{
    const qn_model *model = b->model;
    const size_t vocab = (size_t)qn_checkpoint_hparams(model->checkpoint)->vocab_size;
    size_t bytes = 0;
    for (size_t i = 0; i < model->register_count; i++) {
        b->registers[i] = next_rows(memory, &bytes, b->tokens, model->registers[i].row_bytes);
    }
    if (several) {
        b->new_keys = next_rows(memory, &bytes, b->tokens, model->kv_row_bytes);
        b->new_values = next_rows(memory, &bytes, b->tokens, model->kv_row_bytes);
    }
    if (several || model->device) {
        b->logits =
            (float *)(void *)next_rows(memory, &bytes, qn_min_i64(b->tokens, LOGITS_ROWS), vocab * sizeof(float));
    }
    b->workspace = next_rows(memory, &bytes, 1, b->workspace_bytes);
    return bytes;
}

static int allocate(qn_batch *b, int several)
{
    const qn_model *model = b->model;
    const qn_ctx *ctx = model->ctx;
    b->registers = qn_calloc(ctx, model->register_count, sizeof *b->registers);
    b->segments = host_rows(ctx, several ? b->tokens : 1, sizeof *b->segments);
    b->wanted = host_rows(ctx, b->tokens, sizeof *b->wanted);
    if (!b->registers || !b->segments || !b->wanted || !allocate_input(b)) {
        return 0;
    }
    for (size_t i = 0; i < model->plan_count; i++) {
        const size_t bytes = qn_plan_workspace_bytes(model->plans[i], b->tokens, qn_exec_threads(&b->exec));
        b->workspace_bytes = bytes > b->workspace_bytes ? bytes : b->workspace_bytes;
    }
    if (!model->device && !qn_strips_prepare(b)) {
        return 0;
    }
    const size_t bytes = place_operands(b, several, NULL);
    b->operands = bytes == SIZE_MAX ? NULL : operands_alloc(model, bytes);
    (void)place_operands(b, several, b->operands);
    return b->operands != NULL;
}

/* The stream, and what a device does besides the operators: the lookup of embeddings, the sums, recent rows. */
static qn_status prepare_device(qn_batch *b, qn_error *error)
{
    const qn_model *model = b->model;
    const qn_backend_chains *chains = model->device->chains;
    qn_chain_step step;
    int32_t taken = 0;
    QN_TRY(qn_stream_create(model->ctx, &b->stream, error));
    b->exec.stream = b->stream;
    b->exec.constant_weights = 1;
    qn_batch_lookup_step(b, &step);
    QN_TRY(chains->create(model->ctx, &step, 1, b->positions, &b->chains[0], &taken, error));
    QN_FAIL_IF(!taken, error, QN_E_UNSUPPORTED, "tensor %s: no kernel of the device looks up rows of its format",
               model->embedding->name);
    for (size_t i = 0; i < model->step_count; i++) {
        if (!model->steps[i].plan) {
            qn_batch_chain_step(b, &model->steps[i], NULL, &step);
            QN_TRY(chains->create(model->ctx, &step, 1, b->positions, &b->chains[1 + i], &taken, error));
        }
    }
    return QN_OK;
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
        const int made = allocate(b, several);
        qn_status status = QN_OK;
        if (made) {
            status =
                model->device ? prepare_device(b, error) : qn_ready_create(model, 1 + b->strips.most, &b->ready, error);
        }
        if (made && status == QN_OK) {
            *out = b;
            return QN_OK;
        }
        qn_batch_destroy(b);
        if (status != QN_OK) {
            return status;
        }
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
    const qn_model *model = b->model;
    const qn_ctx *ctx = model->ctx;
    qn_decode_destroy(b->decode);
    qn_ready_destroy(ctx, b->ready);
    for (size_t i = 0; b->chains && i < model->step_count + 1; i++) {
        model->device->chains->destroy(ctx, b->chains[i]);
    }
    qn_free(ctx, b->chains);
    qn_stream_destroy(model->ctx, b->stream);
    operands_free(model, b->operands);
    qn_free(ctx, b->registers);
    qn_free(ctx, b->strips.steps);
    if (model->device) {
        qn_host_free(model->ctx, b->input);
        qn_device_free(model->ctx, b->device_input);
    } else {
        qn_free(ctx, b->input);
    }
    qn_free(ctx, b->segments);
    qn_free(ctx, b->wanted);
    qn_free(ctx, b);
}

/* ---- steps ---- */

static int is_new(const qn_operand *operand)
{
    return operand->place == QN_PLACE_NEW_KEYS || operand->place == QN_PLACE_NEW_VALUES;
}

/* Memory and view of an operand for these rows. */
static qn_mut_view resolve(const qn_batch *b, const qn_operand *operand, const qn_row_range *rows)
{
    qn_mut_view view;
    memset(&view, 0, sizeof view);
    if (operand->place == QN_PLACE_NONE) {
        return view;
    }
    const qn_session *s = rows->session;
    qn_shape shape = operand->shape;
    char *data = NULL;
    int64_t stride = (int64_t)b->model->kv_row_bytes, first = rows->first;
    const int batched = shape.ndim == 4; /* rows are its second dimension */
    if (!operand->whole) {
        shape.dims[batched] = rows->count;
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
        if (!operand->whole) {
            const int64_t each = operand->shape.dims[batched];
            shape.dims[batched] *= each;
            stride /= each;
            first *= each;
        }
        if (shape.ndim == 1 || (shape.ndim == 2 && shape.dims[1] == 1)) {
            /* one number a row (scales, zero points): kept dense, as the operators take them */
            size_t element;
            (void)qn_format_row_bytes(shape.format, 1, &element, NULL);
            stride = (int64_t)element;
        }
        data = b->registers[operand->index] + (operand->whole ? 0 : first * stride) + operand->offset;
        break;
    case QN_PLACE_POSITIONS:
        data = (char *)(b->positions + rows->first);
        stride = (int64_t)sizeof(int32_t);
        break;
    case QN_PLACE_LENGTHS:
        data = (char *)(b->positions + b->tokens + rows->first);
        stride = (int64_t)sizeof(int32_t);
        break;
    case QN_PLACE_KEYS:
    case QN_PLACE_VALUES:
        shape.dims[batched] = s->length + rows->count;
        shape.dims[0] = batched ? rows->count : shape.dims[0];
        data = (operand->place == QN_PLACE_KEYS ? s->keys : s->values)[operand->index] + operand->offset;
        break;
    case QN_PLACE_RECENT_KEYS:
    case QN_PLACE_RECENT_VALUES: {
        const int values = operand->place == QN_PLACE_RECENT_VALUES;
        shape.dims[batched] = s ? s->recent_rows : shape.dims[batched];
        shape.dims[0] = batched ? rows->count : shape.dims[0];
        data = s ? s->recent[2 * operand->index + values] : NULL; /* a step as such, in prepare_device */
        stride = shape.dims[batched + 1] * shape.dims[batched + 2] * 2;
        break;
    }
    case QN_PLACE_NEW_KEYS:
    case QN_PLACE_NEW_VALUES:
        data = s ? (operand->place == QN_PLACE_NEW_KEYS ? s->keys : s->values)[operand->index] + s->length * stride
                 : (operand->place == QN_PLACE_NEW_KEYS ? b->new_keys : b->new_values);
        data += rows->skipped * stride + operand->offset;
        break;
    }
    view = qn_mut_view_make(data, &shape);
    view.strides[0] = batched ? 0 : stride; /* a cache's batch is one cache */
    view.strides[batched] = stride;
    return view;
}

/* x += y or x = y, in the format of x, rows at a time */
typedef struct add_job {
    qn_mut_view x;
    qn_view y;
    int64_t per_task;
    int copies;
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
    const qn_mut_view *x = &job->x;
    const qn_view *y = &job->y;
    const int64_t last = qn_min_i64(x->shape.dims[0], (index + 1) * job->per_task);
    for (int64_t m = index * job->per_task; m < last; m++) {
        float *const to = (float *)(void *)((char *)x->data + m * x->strides[0]);
        const float *const from = (const float *)(const void *)((const char *)y->data + m * y->strides[0]);
        if (job->copies && x->shape.format == QN_F32) {
            memcpy(to, from, (size_t)x->shape.dims[1] * sizeof *to);
        } else if (job->copies) {
            qn_format_get_row(x->shape.format)->encode(from, x->shape.dims[1], (char *)to);
        } else {
            add_row(to, from, x->shape.dims[1]);
        }
    }
}

static void add_rows(const qn_batch *b, const qn_step *step, const qn_row_range *rows, const qn_exec *exec)
{
    const qn_mut_view from = resolve(b, &step->in[0], rows);
    add_job job = {.x = resolve(b, &step->out[0], rows),
                   .y = step->in[0].place == QN_PLACE_CONST ? step->in[0].view : qn_view_of(&from),
                   .copies = step->copies};
    job.per_task = qn_max_i64(1, ADD_BYTES / (job.x.shape.dims[1] * (int64_t)sizeof(float) + 1));
    qn_parallel_for(exec, qn_ceil_div(job.x.shape.dims[0], job.per_task), add_task, &job);
}

static int is_recent(const qn_operand *operand)
{
    return operand->place == QN_PLACE_RECENT_KEYS || operand->place == QN_PLACE_RECENT_VALUES;
}

/* New keys or values of one sequence into its recent rows. */
static void keep_recent(const qn_batch *b, const qn_step *step, const qn_row_range *rows)
{
    const qn_session *s = rows->session;
    const qn_mut_view from = resolve(b, &step->in[0], rows), to = resolve(b, &step->out[0], rows);
    for (int64_t m = 0; m < from.shape.dims[0]; m++) {
        const float *x = (const float *)(const void *)((const char *)from.data + m * from.strides[0]);
        qn_format_get_row(QN_F16)->encode(x, from.shape.dims[1],
                                          (char *)to.data + (s->length + m) % s->recent_rows * to.strides[0]);
    }
}

void qn_batch_args(const qn_batch *b, const qn_step *step, const qn_row_range *rows, qn_args *args)
{
    memset(args, 0, sizeof *args);
    for (int j = 0; j < QN_MAX_IN; j++) {
        const qn_mut_view view = resolve(b, &step->in[j], rows);
        args->in[j] = step->in[j].place == QN_PLACE_CONST ? step->in[j].view : qn_view_of(&view);
    }
    for (int j = 0; j < QN_MAX_OUT; j++) {
        args->out[j] = resolve(b, &step->out[j], rows);
    }
    args->packed = step->packed;
}

static qn_lane all_threads(const qn_batch *b)
{
    return (qn_lane){.exec = &b->exec, .workspace = b->workspace, .workspace_bytes = b->workspace_bytes};
}

qn_status qn_batch_run_step(qn_batch *b, const qn_step *step, const qn_row_range *rows, const qn_lane *lane,
                            qn_error *error)
{
    const size_t index = (size_t)(step - b->model->steps);
    const int ready = b->ready && !b->model->observe;
    if (ready && qn_ready_did(b->ready, index, rows, lane)) {
        return QN_OK;
    }
    if (!step->plan && b->chains) {
        const qn_backend_chains *chains = b->model->device->chains;
        const qn_chain *chain = b->chains[1 + (step - b->model->steps)];
        if (!is_recent(&step->out[0]) && !step->copies) {
            return chains->run(chain, rows->count, b->stream, error);
        }
        qn_args args;
        qn_batch_args(b, step, rows, &args);
        return chains->keep(chain, &args, step->copies ? NULL : b->positions + rows->first, b->stream, error);
    }
    if (!step->plan && is_recent(&step->out[0])) {
        keep_recent(b, step, rows);
        return QN_OK;
    }
    if (!step->plan) {
        add_rows(b, step, rows, lane->exec);
        return QN_OK;
    }
    qn_status status;
    if (ready && qn_ready_takes(b->ready, index, rows, lane)) {
        size_t bytes;
        const void *const next = qn_ready_next(b->ready, index, &bytes);
        if (next && lane->index == 0) {
            qn_exec_ahead(&b->exec, rows->count <= FEW_ROWS ? next : NULL, bytes);
        }
        status = qn_ready_run(b, index, rows, lane, error);
    } else {
        qn_args args;
        qn_batch_args(b, step, rows, &args);
        if (b->model->observe) {
            QN_TRY(b->model->observe(b->model->observe_user, step, &args, error));
        }
        status = qn_run(step->plan, &args, lane->workspace, lane->workspace_bytes, lane->exec, error);
    }
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "layer %d, %s %s", step->layer, qn_op_get_info(step->op)->name,
                               step->label);
    }
    return QN_OK;
}

static uint32_t bits_of(const qn_operand *operands, int count, qn_place keys, qn_place values)
{
    uint32_t bits = 0;
    for (int j = 0; j < count; j++) {
        bits |= (uint32_t)(operands[j].place == keys || operands[j].place == values) << j;
    }
    return bits;
}

void qn_batch_chain_step(const qn_batch *b, const qn_step *step, const qn_session *session, qn_chain_step *out)
{
    const qn_row_range row = {.count = 1, .session = session, .logits = b->logits};
    memset(out, 0, sizeof *out);
    out->kind = step->plan                 ? QN_CHAIN_OPERATOR
                : is_recent(&step->out[0]) ? QN_CHAIN_KEEP
                : step->copies             ? QN_CHAIN_COPY
                                           : QN_CHAIN_ADD;
    out->desc = step->plan ? qn_plan_desc(step->plan) : NULL;
    qn_batch_args(b, step, &row, &out->args);
    out->cached_in = bits_of(step->in, QN_MAX_IN, QN_PLACE_KEYS, QN_PLACE_VALUES);
    out->cached_out = bits_of(step->out, QN_MAX_OUT, QN_PLACE_NEW_KEYS, QN_PLACE_NEW_VALUES);
    for (int j = 0; j < QN_MAX_IN; j++) {
        if (out->cached_in >> j & 1) {
            qn_shape *rows = &out->args.in[j].shape;
            rows->dims[rows->ndim == 4] = session->capacity;
        }
    }
}

void qn_batch_lookup_step(const qn_batch *b, qn_chain_step *out)
{
    const qn_model *model = b->model;
    const qn_shape ids = qn_shape_make(QN_I32, 1, b->tokens, 1, 1, 1);
    const qn_shape rows = qn_shape_make(QN_F32, 2, b->tokens, model->embedding->k, 1, 1);
    memset(out, 0, sizeof *out);
    out->kind = QN_CHAIN_LOOKUP;
    out->args.in[0] = model->table;
    out->args.in[1] = qn_view_make(b->device_input, &ids);
    out->args.out[0] = qn_mut_view_make(b->registers[model->reg_stream], &rows);
    out->args.out[0].strides[0] = (int64_t)model->registers[model->reg_stream].row_bytes;
}

int qn_batch_needs_session(const qn_step *step)
{
    for (int j = 0; j < QN_MAX_IN; j++) {
        if (step->in[j].place == QN_PLACE_KEYS || step->in[j].place == QN_PLACE_VALUES) {
            return 1;
        }
    }
    return is_recent(&step->out[0]);
}

/* Rows where the model's operands live, after what was enqueued before. */
static qn_status copy_rows(const qn_batch *b, void *to, const void *from, size_t bytes, qn_error *error)
{
    if (b->model->device) {
        return qn_device_copy(b->model->ctx, to, from, bytes, b->stream, error);
    }
    memcpy(to, from, bytes);
    return QN_OK;
}

/* New keys or values that the step wrote for rows of several sequences, whole rows at once, to the caches they belong
 * to. */
static qn_status scatter(const qn_batch *b, const qn_step *step, qn_error *error)
{
    const int64_t row = (int64_t)b->model->kv_row_bytes;
    for (int j = 0; j < QN_MAX_OUT; j++) {
        const qn_operand *const operand = &step->out[j];
        const char *const from = operand->place == QN_PLACE_NEW_KEYS ? b->new_keys : b->new_values;
        for (int32_t i = 0; i < b->segment_count && is_new(operand) && operand->offset == 0; i++) {
            const qn_segment *seg = &b->segments[i];
            const qn_row_range rows = {.first = seg->first, .count = seg->count, .session = seg->session};
            QN_TRY(copy_rows(b, resolve(b, operand, &rows).data, from + seg->first * row, (size_t)(seg->count * row),
                             error));
        }
    }
    return QN_OK;
}

/* The layers, for all rows of the pass. */
static qn_status run_body(qn_batch *b, qn_error *error)
{
    const qn_row_range all = {.count = b->rows, .session = b->segment_count == 1 ? b->segments[0].session : NULL};
    if (b->model->device) {
        const size_t bytes = (size_t)b->tokens * 3 * sizeof *b->input;
        QN_TRY(qn_device_copy_in(b->model->ctx, b->device_input, b->input, bytes, b->stream, error));
        QN_TRY(b->model->device->chains->run(b->chains[0], b->rows, b->stream, error));
    }
    const qn_lane lane = all_threads(b);
    for (size_t i = 0; i < b->model->body_steps; i++) {
        const qn_step *step = &b->model->steps[i];
        const int32_t by_strips = qn_strips_at(b, i);
        if (by_strips) {
            QN_TRY(qn_strips_run(b, i, &all, error));
        } else if (all.session || !qn_batch_needs_session(step)) {
            QN_TRY(qn_batch_run_step(b, step, &all, &lane, error));
        } else {
            for (int32_t j = 0; j < b->segment_count; j++) {
                const qn_segment *seg = &b->segments[j];
                const qn_row_range rows = {.first = seg->first, .count = seg->count, .session = seg->session};
                QN_TRY(qn_batch_run_step(b, step, &rows, &lane, error));
            }
        }
        i += (size_t)(by_strips ? by_strips - 1 : 0);
        for (; !all.session && step <= &b->model->steps[i]; step++) {
            QN_TRY(scatter(b, step, error));
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
    const qn_lane lane = all_threads(b);
    for (int32_t i = 0; i < b->wanted_count; i++) {
        if (b->wanted[i].row != i) {
            QN_TRY(copy_rows(b, stream + (size_t)i * row_bytes, stream + (size_t)b->wanted[i].row * row_bytes,
                             row_bytes, error));
        }
    }
    for (int32_t i = 0; i < b->wanted_count;) {
        qn_row_range rows = {.first = i, .count = 1, .logits = b->wanted[i].logits};
        while (i + rows.count < b->wanted_count &&
               b->wanted[i + rows.count].logits == rows.logits + (size_t)rows.count * vocab) {
            rows.count++;
        }
        const int apart = model->device || (rows.count == 1 && i + 1 < b->wanted_count);
        if (apart) {
            rows.count = (int32_t)qn_min_i64(b->wanted_count - i, LOGITS_ROWS);
            rows.logits = b->logits;
        }
        for (size_t s = model->body_steps; s < model->step_count; s++) {
            QN_TRY(qn_batch_run_step(b, &model->steps[s], &rows, &lane, error));
        }
        for (int32_t j = 0; apart && j < rows.count; j++) {
            const float *const from = b->logits + (size_t)j * vocab;
            if (model->device) {
                QN_TRY(qn_device_copy_out(model->ctx, b->wanted[i + j].logits, from, vocab * sizeof(float), b->stream,
                                          error));
            } else {
                memcpy(b->wanted[i + j].logits, from, vocab * sizeof(float));
            }
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
    const int64_t most = qn_min_i64(qn_session_room(item->session), b->tokens - b->rows);
    const int32_t n = (int32_t)qn_min_i64(item->count - done, most);
    const size_t vocab = (size_t)qn_checkpoint_hparams(model->checkpoint)->vocab_size;
    const size_t row_bytes = model->registers[model->reg_stream].row_bytes;
    if (n == 0) {
        return 0;
    }
    b->segments[b->segment_count++] = (qn_segment){.session = item->session, .first = b->rows, .count = n};
    for (int32_t i = 0; i < n; i++, b->rows++) {
        b->input[b->rows] = item->ids[done + i];
        b->input[b->tokens + b->rows] = item->session->length + i;
        b->input[2 * b->tokens + b->rows] = item->session->length + i + 1;
        if (!model->device) {
            char *row = b->registers[model->reg_stream] + (size_t)b->rows * row_bytes;
            qn_weight_decode_row(model->embedding, item->ids[done + i], (float *)(void *)row);
        }
        if (item->logits && (item->all || done + i == item->count - 1)) {
            b->wanted[b->wanted_count++] =
                (qn_wanted_row){.row = b->rows, .logits = item->logits + (item->all ? (size_t)(done + i) * vocab : 0)};
        }
    }
    return n;
}

static qn_status run_pass(qn_batch *b, qn_error *error)
{
    if (b->ready) {
        qn_ready_begin(b->ready);
    }
    qn_status status = run_body(b, error);
    if (status == QN_OK) {
        status = run_output(b, error);
    }
    qn_exec_ahead(&b->exec, NULL, 0);
    if (b->stream) { /* the input is written again, and the logits are read */
        qn_error ignored;
        const qn_status synced = qn_stream_sync(b->model->ctx, b->stream, status == QN_OK ? error : &ignored);
        status = status == QN_OK ? synced : status;
    }
    return status;
}

/* A pass of one row, of the session that the graph is of. */
static qn_status run_decode(qn_batch *b, qn_error *error)
{
    float *const logits = b->wanted_count ? b->wanted[0].logits : NULL;
    return qn_decode_run(b->decode, b->input[0], b->segments[0].session->length, logits, error);
}

qn_status qn_batch_run(qn_batch *b, const qn_batch_item *items, int32_t count, qn_error *error)
{
    qn_status status = QN_OK;
    for (int32_t i = 0; i < count; i++) {
        const qn_status begun = qn_session_begin(items[i].session, items[i].count, b->stream, error);
        status = status == QN_OK ? begun : status;
    }
    for (int32_t i = 0, done = 0; status == QN_OK && i < count;) {
        b->rows = b->segment_count = b->wanted_count = 0;
        while (i < count && b->rows < b->tokens) {
            done += add_tokens(b, &items[i], done);
            if (done < items[i].count) {
                break; /* its next tokens need those before in the cache */
            }
            i++;
            done = 0;
        }
        if (b->rows == 0) {
            break;
        }
        status = b->decode && b->rows == 1 ? run_decode(b, error) : run_pass(b, error);
        for (int32_t j = 0; j < b->segment_count; j++) {
            qn_session *s = b->segments[j].session;
            s->length += b->segments[j].count;
            s->intact = (int32_t)qn_max_i64(s->intact, s->length - s->recent_rows);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        qn_error ignored;
        const qn_status ended = qn_session_end(items[i].session, status != QN_OK, b->stream, &ignored);
        if (ended != QN_OK && status == QN_OK) {
            status = qn_error_set(error, ended, "%s", ignored.text);
        }
    }
    return status;
}

qn_status qn_batch_prepare_decode(qn_batch *b, qn_session *session, qn_error *error)
{
    return qn_decode_create(b, session, &b->decode, error);
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
