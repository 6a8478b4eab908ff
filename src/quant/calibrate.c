#include "quant/calibrate.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/fit.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/file_map.h"
#include "base/map.h"
#include "model/model.h"

#define SEQUENCE 512 /* tokens evaluated together, each sequence from an empty context */
#define MAX_TOKENS 4096
#define MAX_TEXT_BYTES ((size_t)1 << 20) /* of a file, far more than the tokens need */
#define DAMP 0.01f                       /* of the mean square of the inputs, added to each */
#define MAX_WIDTHS 8                     /* plans kept, one an input width */
#define STRIPS 8                         /* of a symmetric product's columns, each from the diagonal down */

typedef struct observer {
    qn_ctx *ctx;
    qn_calibration *calibration;
    const qn_outputs *outputs;
    const qn_exec *exec;
    const qn_quantize_options *quantize; /* the text's path, and whom to ask whether to go on */
    qn_map map;                          /* weight name -> output */
    int channels;                        /* 1: largest inputs are looked for, so that all of the model has to run */
    int32_t asked, left;                 /* products of a sequence; of this one still to come */
    /* rows of the layer that is being met, transposed: [k][SEQUENCE] */
    float *rows;
    int32_t owner;           /* output they belong to */
    int64_t count, expected; /* rows so far; of this evaluation */
    float *product;          /* of a strip */
    qn_plan *plans[MAX_WIDTHS];
    int64_t widths[MAX_WIDTHS];
} observer;

/* ---- Products of the inputs ---- */

/* Columns of product[k,k] = rows[k,SEQUENCE] rows^T that are made together. */
static int64_t strip_of(int64_t k)
{
    return k % STRIPS == 0 ? k / STRIPS : k;
}

/* A plan for a strip of them. */
static qn_status plan_of(observer *o, int64_t k, const qn_plan **plan, qn_error *error)
{
    int i = 0;
    while (i < MAX_WIDTHS && o->plans[i] && o->widths[i] != k) {
        i++;
    }
    if (i == MAX_WIDTHS) {
        qn_plan_destroy(o->plans[--i]);
        o->plans[i] = NULL;
    }
    if (!o->plans[i]) {
        qn_op_desc desc;
        qn_op_desc_init(&desc, QN_OP_DENSE_MM);
        desc.in[qn_op_in_slot(QN_OP_DENSE_MM, "x")] = qn_shape_make(QN_F32, 2, k, SEQUENCE, 1, 1);
        desc.in[qn_op_in_slot(QN_OP_DENSE_MM, "b")] = qn_shape_make(QN_F32, 2, strip_of(k), SEQUENCE, 1, 1);
        desc.attr[QN_ATTR_OUT].i = QN_OUT_F32;
        QN_TRY(qn_plan_create(o->ctx, &desc, NULL, &o->plans[i], error));
        o->widths[i] = k;
    }
    *plan = o->plans[i];
    return QN_OK;
}

/* product[first.., first..+strip] of the rows that are there. */
static qn_status make_strip(observer *o, const qn_plan *plan, int64_t k, int64_t first, qn_error *error)
{
    const int64_t strip = strip_of(k);
    const float *const rows = o->rows + first * SEQUENCE;
    const qn_shape x = qn_shape_make(QN_F32, 2, k - first, SEQUENCE, 1, 1);
    const qn_shape b = qn_shape_make(QN_F32, 2, strip, SEQUENCE, 1, 1);
    const qn_shape out = qn_shape_make(QN_F32, 2, k - first, strip, 1, 1);
    qn_args args;
    memset(&args, 0, sizeof args);
    args.in[qn_op_in_slot(QN_OP_DENSE_MM, "x")] = qn_view_make(rows, &x);
    args.in[qn_op_in_slot(QN_OP_DENSE_MM, "b")] = qn_view_make(rows, &b);
    args.out[0] = qn_mut_view_make(o->product, &out);
    const size_t pack_bytes = qn_plan_pack_bytes(plan);
    const size_t work_bytes = qn_plan_workspace_bytes(plan, k - first, qn_exec_threads(o->exec));
    void *packed = pack_bytes ? qn_alloc(o->ctx, pack_bytes) : NULL;
    void *workspace = work_bytes ? qn_alloc(o->ctx, work_bytes) : NULL;
    qn_status status = QN_OK;
    if ((pack_bytes && !packed) || (work_bytes && !workspace)) {
        status =
            qn_error_set(error, QN_E_MEMORY, "out of memory for the inputs of %s", o->outputs->list[o->owner].name);
    }
    if (status == QN_OK && packed) {
        status = qn_pack(plan, &args, packed, pack_bytes, error);
        args.packed = packed;
    }
    if (status == QN_OK) {
        status = qn_run(plan, &args, workspace, work_bytes, o->exec, error);
    }
    qn_free(o->ctx, workspace);
    qn_free(o->ctx, packed);
    return status;
}

/* Add the product of the rows that are there to their owner's, which is symmetric: what is above the diagonal's strips
 * is left to qn_calibration_settle. */
static qn_status add_product(observer *o, qn_error *error)
{
    const int64_t k = o->outputs->list[o->owner].encoder.k, strip = strip_of(k);
    float *const sum = o->calibration->list[o->owner].squares;
    const qn_plan *plan;
    for (int64_t i = 0; i < k && o->count < SEQUENCE; i++) {
        memset(o->rows + i * SEQUENCE + o->count, 0, (size_t)(SEQUENCE - o->count) * sizeof(float));
    }
    o->count = 0;
    QN_TRY(plan_of(o, k, &plan, error));
    for (int64_t first = 0; first < k; first += strip) {
        QN_TRY(make_strip(o, plan, k, first, error));
        for (int64_t i = first; i < k; i++) {
            for (int64_t j = 0; j < strip; j++) {
                sum[i * k + first + j] += o->product[(i - first) * strip + j];
            }
        }
    }
    return QN_OK;
}

#define TILE 16 /* rows and columns that are turned together */

/* Keep m rows of k, `stride` floats apart, no more than there is room for. */
static qn_status keep_rows(observer *o, const float *x, int64_t stride, int64_t m, int64_t k, qn_error *error)
{
    float *to = o->rows + o->count;
    for (int64_t c = 0; c < k; c += TILE) {
        const int64_t columns = qn_min_i64(TILE, k - c);
        for (int64_t r = 0; r < m; r += TILE) {
            const int64_t rows = qn_min_i64(TILE, m - r);
            for (int64_t i = c; i < c + columns; i++) {
                for (int64_t j = r; j < r + rows; j++) {
                    to[i * SEQUENCE + j] = x[j * stride + i];
                }
            }
        }
    }
    o->count += m;
    if (o->count < o->expected) {
        return QN_OK;
    }
    o->left--;
    return add_product(o, error);
}

/* Whether the caller wants to go on. */
static qn_status ask(const observer *o, qn_error *error)
{
    const qn_quantize_progress progress = {.total = o->outputs->count, .name = "calibration"};
    QN_FAIL_IF(o->quantize->progress && o->quantize->progress(o->quantize->progress_user, &progress) != 0, error,
               QN_E_CANCELLED, "cancelled while calibrating; no folder was written");
    return QN_OK;
}

/* The largest of each channel, of rows that must be finite. */
static qn_status look_at_channels(const observer *o, int32_t i, const float *rows, int64_t stride, int64_t m,
                                  qn_error *error)
{
    qn_observed *seen = &o->calibration->list[i];
    const int64_t k = o->outputs->list[i].encoder.k;
    seen->rows += m;
    for (int64_t r = 0; seen->channels && r < m; r++) {
        int finite = 1;
        for (int64_t j = 0; j < k; j++) {
            const float a = fabsf(rows[r * stride + j]);
            seen->channels[j] = a > seen->channels[j] ? a : seen->channels[j];
            finite &= a <= 0x1.fffffep127f;
        }
        QN_FAIL_IF(!finite, error, QN_E_FILE, "tensor %s: its input is not finite on the calibration text",
                   o->outputs->list[i].name);
    }
    return QN_OK;
}

/* The input of a linear layer: x of a step in plain floats. QN_E_CANCELLED with none left: the rest of the model has
 * nothing to tell. */
static qn_status observe(void *user, const qn_step *step, const qn_args *args, qn_error *error)
{
    observer *o = user;
    const qn_view *x = &args->in[0];
    const int32_t i = step->op == QN_OP_DENSE_MM && x->shape.format == QN_F32
                          ? qn_map_get(&o->map, step->label, strlen(step->label))
                          : -1;
    const int64_t m = x->shape.dims[0], k = x->shape.dims[1], stride = x->strides[0] / (int64_t)sizeof(float);
    if (i < 0 || o->outputs->list[i].encoder.k != k) {
        return QN_OK;
    }
    QN_TRY(ask(o, error));
    const float *const rows = x->data;
    if (o->channels) {
        QN_TRY(look_at_channels(o, i, rows, stride, m, error));
    }
    if (!o->calibration->list[i].squares) {
        return QN_OK;
    }
    if (o->owner != i) {
        o->count = 0;
        o->owner = i;
    }
    for (int64_t r = 0; r < m;) {
        const int64_t part = qn_min_i64(m - r, o->expected - o->count);
        QN_TRY(keep_rows(o, rows + r * stride, stride, part, k, error));
        r += part;
    }
    return o->left == 0 && !o->channels ? QN_E_CANCELLED : QN_OK;
}

/* ---- The run ---- */

/* Tokens worth running: some for each column of the widest input. */
static size_t useful_tokens(const qn_outputs *outputs)
{
    int64_t widest = 0;
    for (int32_t i = 0; i < outputs->count; i++) {
        if (outputs->list[i].linear) {
            widest = qn_max_i64(widest, outputs->list[i].encoder.k);
        }
    }
    return (size_t)qn_min_i64(qn_max_i64(4 * widest, 256), MAX_TOKENS);
}

qn_status qn_calibration_encode(const char *path, const qn_model *model, int32_t *ids, size_t capacity, size_t *count,
                                qn_error *error)
{
    const char *text = qn_calibration_text();
    size_t n = 0, bytes = strlen(text);
    qn_file_map map = {0};
    QN_FAIL_IF(!qn_model_tokenizer(model), error, QN_E_FILE, "the model has no tokenizer to calibrate with");
    if (path) {
        QN_TRY(qn_file_map_open(path, &map, error));
        text = map.data;
        bytes = map.size < MAX_TEXT_BYTES ? map.size : MAX_TEXT_BYTES;
        while (bytes < map.size && bytes > 0 && ((unsigned char)text[bytes] & 0xC0) == 0x80) {
            bytes--; /* not inside a character */
        }
    }
    const qn_status status = qn_tokenizer_encode(qn_model_tokenizer(model), text, bytes, 0, ids, capacity, &n, error);
    qn_file_map_close(&map);
    if (status != QN_OK && status != QN_E_WORKSPACE) {
        return status;
    }
    *count = n > capacity ? capacity : n;
    QN_FAIL_IF(*count < 1, error, QN_E_FILE, "the tokenizer makes no tokens of the calibration text%s%s",
               path ? " " : "", path ? path : "");
    return QN_OK;
}

static qn_status run_text(observer *o, qn_model *model, qn_error *error)
{
    qn_model_info info;
    qn_model_get_info(model, &info);
    const int32_t most = info.context_length > 0 && info.context_length < SEQUENCE ? info.context_length : SEQUENCE;
    int32_t *ids = qn_calloc(o->ctx, MAX_TOKENS, sizeof *ids);
    QN_FAIL_IF(!ids, error, QN_E_MEMORY, "out of memory for the calibration text");
    size_t count = 0;
    qn_session *session = NULL;
    qn_status status =
        qn_calibration_encode(o->quantize->calibration, model, ids, useful_tokens(o->outputs), &count, error);
    if (status == QN_OK) {
        qn_session_options options;
        qn_session_options_init(&options);
        options.context_length = most;
        options.batch = most;
        options.exec = *o->exec;
        status = qn_session_create(model, &options, &session, error);
    }
    for (size_t i = 0; i < count && status == QN_OK; i += (size_t)most) {
        const int32_t n = count - i < (size_t)most ? (int32_t)(count - i) : most;
        o->expected = n;
        o->left = o->asked;
        status = qn_session_truncate(session, 0, error);
        if (status == QN_OK) {
            status = qn_session_eval(session, ids + i, n, 0, NULL, error);
        }
        if (status == QN_E_CANCELLED && o->left == 0 && !o->channels) {
            status = QN_OK;
        }
    }
    qn_session_destroy(session);
    qn_free(o->ctx, ids);
    return status;
}

/* Room for the products of outputs from `first` on that together take no more than `most` bytes; of one at least. */
static qn_status open_products(observer *o, int32_t first, uint64_t most, qn_error *error)
{
    qn_calibration *c = o->calibration;
    uint64_t sum = 0;
    int64_t widest = 0;
    int64_t strips = 0; /* floats of the largest */
    c->first = c->last = first;
    for (; c->last < c->count; c->last++) {
        const qn_output *output = &o->outputs->list[c->last];
        qn_observed *seen = &c->list[output->leader];
        if (!output->linear || seen->squares) {
            continue;
        }
        const size_t k = (size_t)o->outputs->list[output->leader].encoder.k;
        size_t squares, bytes = 0;
        const int failed = qn_mul_size(k, k, &squares) || qn_mul_size(squares, sizeof(float), &bytes);
        if (widest && (failed || bytes > most - sum)) {
            break;
        }
        seen->squares = failed ? NULL : qn_calloc(o->ctx, squares, sizeof(float));
        seen->importance = qn_calloc(o->ctx, k, sizeof(float));
        seen->order = qn_calloc(o->ctx, k, sizeof(int32_t));
        QN_FAIL_IF(!seen->squares || !seen->importance || !seen->order, error, QN_E_MEMORY,
                   "out of memory calibrating tensor %s", output->weight->name);
        sum = bytes < most - sum ? sum + bytes : most;
        widest = qn_max_i64(widest, (int64_t)k);
        strips = qn_max_i64(strips, (int64_t)k * strip_of((int64_t)k));
        o->asked++;
    }
    o->rows = qn_calloc(o->ctx, (size_t)widest, SEQUENCE * sizeof(float));
    o->product = qn_calloc(o->ctx, (size_t)strips, sizeof(float));
    QN_FAIL_IF(!o->rows || !o->product, error, QN_E_MEMORY, "out of memory for inputs of %lld columns",
               (long long)widest);
    return QN_OK;
}

static void drop_products(qn_calibration *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        qn_observed *seen = &c->list[i];
        qn_free(c->ctx, seen->squares);
        qn_free(c->ctx, seen->importance);
        qn_free(c->ctx, seen->order);
        seen->squares = seen->importance = NULL;
        seen->order = NULL;
    }
    c->first = c->last = 0;
}

/* The outputs to watch, and room for their figures. */
static qn_status open_list(qn_ctx *ctx, const qn_outputs *outputs, qn_calibration *c, qn_error *error)
{
    c->list = qn_calloc(ctx, (size_t)outputs->count, sizeof *c->list);
    QN_FAIL_IF(!c->list, error, QN_E_MEMORY, "out of memory calibrating %d tensors", outputs->count);
    c->count = outputs->count;
    for (int32_t i = 0; i < outputs->count; i++) {
        const qn_output *output = &outputs->list[i];
        if (output->linear && output->leader == i) {
            c->list[i].channels = qn_calloc(ctx, (size_t)output->encoder.k, sizeof(float));
            QN_FAIL_IF(!c->list[i].channels, error, QN_E_MEMORY, "out of memory calibrating tensor %s",
                       output->weight->name);
        }
    }
    return QN_OK;
}

/* Every watched layer must have been met. */
static qn_status check(const observer *o, qn_error *error)
{
    for (int32_t i = 0; i < o->outputs->count; i++) {
        QN_FAIL_IF(o->outputs->list[i].linear && o->calibration->list[i].rows == 0, error, QN_E_UNSUPPORTED,
                   "tensor %s cannot be calibrated: the source must be plain (f32, f16, bf16 or GGUF), not quantised",
                   o->outputs->list[i].weight->name);
    }
    return QN_OK;
}

/* One run of the text: for the largest inputs too, or for products alone. */
static qn_status run_model(qn_calibration *c, const char *input, const qn_quantize_options *quantize,
                           const qn_outputs *outputs, int channels, int32_t first, uint64_t most, qn_error *error)
{
    observer o = {.ctx = c->ctx,
                  .calibration = c,
                  .outputs = outputs,
                  .exec = &quantize->exec,
                  .quantize = quantize,
                  .map = qn_map_make(c->ctx),
                  .channels = channels,
                  .owner = -1};
    qn_model *model = NULL;
    qn_model_options options;
    qn_model_options_init(&options);
    options.kv = "f32";
    options.exec = quantize->exec;
    options.unfused = 1; /* each layer by itself, with the F32 rows that the observer is shown */
    qn_status status = most ? open_products(&o, first, most, error) : QN_OK;
    for (int32_t i = 0; i < outputs->count && status == QN_OK; i++) {
        const char *name = outputs->list[i].weight->name;
        if (outputs->list[i].linear && qn_map_add(&o.map, name, strlen(name), i) < 0) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory calibrating tensor %s", name);
        }
    }
    if (status == QN_OK) {
        status = qn_model_open(c->ctx, input, &options, &model, error);
    }
    if (status == QN_OK) {
        qn_model_set_observer(model, observe, &o);
        status = run_text(&o, model, error);
    }
    if (status == QN_OK) {
        status = check(&o, error);
    }
    qn_model_close(model);
    for (int i = 0; i < MAX_WIDTHS; i++) {
        qn_plan_destroy(o.plans[i]);
    }
    qn_map_free(&o.map);
    qn_free(c->ctx, o.rows);
    qn_free(c->ctx, o.product);
    return status == QN_OK ? QN_OK : qn_error_prefix(error, status, "calibration");
}

qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_quantize_options *quantize,
                             const qn_outputs *outputs, uint64_t most, qn_calibration *out, qn_error *error)
{
    *out = (qn_calibration){.ctx = ctx};
    qn_status status = open_list(ctx, outputs, out, error);
    if (status == QN_OK) {
        status = run_model(out, input, quantize, outputs, 1, 0, most, error);
    }
    if (status != QN_OK) {
        qn_calibration_free(out);
    }
    return status;
}

qn_status qn_calibration_go_on(qn_calibration *calibration, const char *input, const qn_quantize_options *quantize,
                               const qn_outputs *outputs, int32_t first, uint64_t most, qn_error *error)
{
    drop_products(calibration);
    return run_model(calibration, input, quantize, outputs, 0, first, most, error);
}

typedef struct settling {
    const qn_outputs *outputs;
    qn_calibration *calibration;
    int factor;
} settling;

static void settle_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const settling *s = user;
    const qn_output *o = &s->outputs->list[index];
    qn_observed *seen = &s->calibration->list[index];
    const int64_t k = o->encoder.k;
    if (!seen->squares) {
        return;
    }
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j <= i; j++) {
            const float d = o->columns ? o->columns[i] * o->columns[j] : 1;
            seen->squares[i * k + j] /= d;
            seen->squares[j * k + i] = seen->squares[i * k + j];
        }
    }
    if (s->factor) {
        qn_feedback_factor(qn_cpu_fit(s->calibration->ctx), seen->squares, k, DAMP, seen->importance, seen->order,
                           seen->channels);
    }
}

void qn_calibration_settle(qn_calibration *calibration, const qn_outputs *outputs, int factor, const qn_exec *exec)
{
    settling s = {.outputs = outputs, .calibration = calibration, .factor = factor};
    qn_parallel_for(exec, calibration->count, settle_task, &s);
}

void qn_calibration_free(qn_calibration *calibration)
{
    drop_products(calibration);
    for (int32_t i = 0; i < calibration->count; i++) {
        qn_free(calibration->ctx, calibration->list[i].channels);
    }
    if (calibration->list) {
        qn_free(calibration->ctx, calibration->list);
    }
    calibration->list = NULL;
    calibration->count = 0;
}
