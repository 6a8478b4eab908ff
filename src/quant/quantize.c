/* Quantising a checkpoint: plan, encode, write, commit.
 *
 * Weights are taken a few rows at a time: decoded, checked, encoded and handed to
 * the file, so that memory is bounded by one piece of codes and a few rows a
 * thread. Which thread takes which rows never shows in the output. */
#include "quant/quantize.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/fit.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/commit.h"
#include "base/error.h"
#include "quant/calibrate.h"
#include "quant/folder.h"
#include "quant/kv.h"
#include "quant/resume.h"
#include "quant/smooth.h"

#define PIECE_BYTES ((size_t)32 << 20) /* codes in memory at a time */
#define TASK_ROWS 128                  /* rows a task, when no more share a scale: a band of feedback.c */
#define PRODUCT_BYTES ((uint64_t)4 << 30)
#define DEFAULT_SHARD_BYTES 4000000000u

void qn_quantize_options_init(qn_quantize_options *options)
{
    *options = (qn_quantize_options){.size = sizeof *options, .keep_first = -1, .keep_last = -1, .keep_qkv = -1};
}

qn_quant_tuning qn_quant_default_tuning(void)
{
    return (qn_quant_tuning){.search = 1, .feedback = 1, .smooth = -1};
}

/* ---- Rows of one weight ---- */

typedef struct piece {
    const qn_output *output;
    int64_t first, rows, step; /* rows of this piece, rows a task */
    float *scratch;            /* rows and the encoder's own, scratch_floats a thread */
    size_t scratch_floats;
    uint8_t *data, *scales; /* of the first row; NULL: only look */
    qn_encode_sums *sums;   /* a task */
    float *amax;            /* a task */
    int64_t *bad;           /* a task: index of its first non-finite element, or -1 */
} piece;

static void encode_task(void *user, int64_t index, int32_t thread)
{
    const piece *p = user;
    const qn_encoder *e = &p->output->encoder;
    const int64_t start = index * p->step, rows = qn_min_i64(p->step, p->rows - start);
    float *x = p->scratch + (size_t)thread * p->scratch_floats;
    float amax = 0;
    p->bad[index] = -1;
    p->sums[index] = (qn_encode_sums){0, 0};
    for (int64_t r = 0; r < rows; r++) {
        qn_output_decode_row(p->output, p->first + start + r, x + r * e->k);
    }
    for (int64_t i = 0; i < rows * e->k; i++) {
        const float a = fabsf(x[i]);
        if (!(a <= 0x1.fffffep127f)) {
            p->bad[index] = (p->first + start) * e->k + i;
            return;
        }
        amax = a > amax ? a : amax;
    }
    p->amax[index] = amax;
    if (p->data) {
        uint8_t *scales = p->scales ? p->scales + (size_t)(start / e->tile_n) * e->scale_row_bytes : NULL;
        qn_encode_rows(e, x, rows, p->data + (size_t)start * e->row_bytes, scales, x + p->step * e->k, &p->sums[index]);
    }
}

/* Buffers for the pieces of one weight. */
typedef struct work {
    qn_ctx *ctx;
    piece p;
    int64_t piece_rows;
    uint8_t *scales; /* of the whole weight */
    size_t scale_bytes;
} work;

static void work_free(work *w)
{
    qn_free(w->ctx, w->p.scratch);
    qn_free(w->ctx, w->p.data);
    qn_free(w->ctx, w->p.sums);
    qn_free(w->ctx, w->p.amax);
    qn_free(w->ctx, w->p.bad);
    qn_free(w->ctx, w->scales);
}

static qn_status work_init(work *w, qn_ctx *ctx, const qn_output *o, const qn_exec *exec, int encode, qn_error *error)
{
    const qn_encoder *e = &o->encoder;
    *w = (work){.ctx = ctx, .p = {.output = o}};
    const int64_t share = qn_min_i64(TASK_ROWS, qn_ceil_div(e->n, qn_exec_threads(exec)));
    w->p.step = qn_min_i64(qn_max_i64(qn_ceil_div(share, e->unit), 1) * e->unit, qn_max_i64(e->n, 1));
    const size_t row_bytes = e->row_bytes ? e->row_bytes : 1;
    w->piece_rows = qn_max_i64((int64_t)(PIECE_BYTES / row_bytes) / w->p.step, 1) * w->p.step;
    w->piece_rows = qn_min_i64(w->piece_rows, qn_max_i64(e->n, 1));
    const size_t tasks = (size_t)qn_ceil_div(w->piece_rows, w->p.step);
    const size_t threads = (size_t)qn_exec_threads(exec);
    size_t scratch, data;
    int failed = qn_mul_size((size_t)w->p.step, (size_t)e->k, &w->p.scratch_floats) ||
                 qn_add_size(w->p.scratch_floats, qn_encode_scratch(e, w->p.step), &w->p.scratch_floats) ||
                 qn_mul_size(w->p.scratch_floats, threads * sizeof(float), &scratch) ||
                 qn_mul_size((size_t)w->piece_rows, e->row_bytes, &data);
    if (!failed) {
        w->scale_bytes = (size_t)qn_ceil_div(e->n, e->tile_n) * e->scale_row_bytes;
        w->p.scratch = qn_alloc(ctx, scratch);
        w->p.sums = qn_calloc(ctx, tasks, sizeof *w->p.sums);
        w->p.amax = qn_calloc(ctx, tasks, sizeof *w->p.amax);
        w->p.bad = qn_calloc(ctx, tasks, sizeof *w->p.bad);
        w->p.data = encode ? qn_alloc(ctx, data) : NULL;
        w->scales = encode && w->scale_bytes ? qn_alloc(ctx, w->scale_bytes) : NULL;
        failed = !w->p.scratch || !w->p.sums || !w->p.amax || !w->p.bad || (encode && !w->p.data) ||
                 (encode && w->scale_bytes && !w->scales);
    }
    if (failed) {
        work_free(w);
        QN_FAIL(error, QN_E_MEMORY, "out of memory quantising tensor %s", o->weight->name);
    }
    return QN_OK;
}

/* Run the piece that starts at row `first`; its figures are added in task order. */
static qn_status work_piece(work *w, int64_t first, const qn_exec *exec, qn_encode_sums *sums, float *amax,
                            qn_error *error)
{
    const qn_encoder *e = &w->p.output->encoder;
    w->p.first = first;
    w->p.rows = qn_min_i64(w->piece_rows, e->n - first);
    w->p.scales = w->scales ? w->scales + (size_t)(first / e->tile_n) * e->scale_row_bytes : NULL;
    const int64_t tasks = qn_ceil_div(w->p.rows, w->p.step);
    qn_parallel_for(exec, tasks, encode_task, &w->p);
    for (int64_t i = 0; i < tasks; i++) {
        QN_FAIL_IF(w->p.bad[i] >= 0, error, QN_E_FILE,
                   "tensor %s: element [%lld, %lld] is not finite; quantising it would spoil the model",
                   w->p.output->weight->name, (long long)(w->p.bad[i] / e->k), (long long)(w->p.bad[i] % e->k));
        sums->error += w->p.sums[i].error;
        sums->weight += w->p.sums[i].weight;
        *amax = w->p.amax[i] > *amax ? w->p.amax[i] : *amax;
    }
    return QN_OK;
}

/* ---- Global scales ---- */

/* Absolute maxima of the linear weights, shared with their leaders; finds elements that are not finite. */
static qn_status find_amax(qn_ctx *ctx, qn_outputs *outputs, const qn_exec *exec, qn_error *error)
{
    for (int32_t i = 0; i < outputs->count; i++) {
        outputs->list[i].amax = 0;
    }
    for (int32_t i = 0; i < outputs->count; i++) {
        qn_output *o = &outputs->list[i];
        if (!o->linear) {
            continue;
        }
        work w;
        QN_TRY(work_init(&w, ctx, o, exec, 0, error));
        qn_encode_sums sums = {0, 0};
        float amax = 0;
        qn_status status = QN_OK;
        for (int64_t r = 0; r < o->encoder.n && status == QN_OK; r += w.piece_rows) {
            status = work_piece(&w, r, exec, &sums, &amax, error);
        }
        work_free(&w);
        QN_TRY(status);
        qn_output *leader = &outputs->list[o->leader];
        leader->amax = amax > leader->amax ? amax : leader->amax;
    }
    for (int32_t i = 0; i < outputs->count && outputs->scheme->global_scale; i++) {
        qn_output *o = &outputs->list[i];
        if (o->linear) {
            o->encoder.global_scale = qn_encode_global_scale(&o->encoder, outputs->list[o->leader].amax);
        }
    }
    return QN_OK;
}

/* The same for their inputs, as calibration saw them. */
static void share_input_amax(qn_outputs *outputs, const qn_calibration *calibration)
{
    for (int32_t i = 0; i < outputs->count; i++) {
        qn_output *o = &outputs->list[i];
        const float *channels = calibration->list[o->leader].channels;
        for (int64_t k = 0; channels && k < o->encoder.k; k++) {
            o->input_amax = channels[k] > o->input_amax ? channels[k] : o->input_amax;
        }
    }
}

/* ---- Writing ---- */

typedef struct run {
    qn_ctx *ctx;
    const qn_quantize_options *options;
    const qn_quant_tuning *tuning;
    qn_outputs outputs;
    qn_calibration calibration;
    int feedback;      /* 1: outputs need products */
    uint64_t products; /* of which so many bytes are there at a time */
    qn_resume resume;
    const char *input, *folder;
    int32_t done, resumed;
} run;

/* Where the tensors of an output go: the folder's file, and what keeps them for a run that goes on (NULL: nothing). */
typedef struct sink {
    qn_safetensors_writer *writer;
    qn_resume_file *kept;
} sink;

static qn_status put(const sink *to, int32_t item, const void *data, size_t bytes, qn_error *error)
{
    qn_resume_add(to->kept, data, bytes);
    return qn_safetensors_writer_put(to->writer, item, data, bytes, error);
}

typedef struct rows_of {
    const qn_output *output;
    float *w;
    int64_t *bad; /* a row: its first non-finite element, or -1 */
} rows_of;

static void decode_task(void *user, int64_t row, int32_t thread)
{
    (void)thread;
    const rows_of *d = user;
    const int64_t k = d->output->encoder.k;
    qn_output_decode_row(d->output, row, d->w + row * k);
    d->bad[row] = -1;
    for (int64_t i = k; i-- > 0;) {
        d->bad[row] = fabsf(d->w[row * k + i]) <= 0x1.fffffep127f ? d->bad[row] : i;
    }
}

/* A vector-quantised weight, which is fitted whole. */
static qn_status put_vectors(run *r, const qn_output *o, const sink *to, double *rms, qn_error *error)
{
    const qn_encoder *e = &o->encoder;
    const qn_exec *exec = &r->options->exec;
    size_t count;
    QN_FAIL_IF(qn_mul_size((size_t)e->n, (size_t)e->k, &count), error, QN_E_SHAPE, "tensor %s is too large",
               o->weight->name);
    const rows_of d = {o, qn_calloc(r->ctx, count, sizeof(float)), qn_calloc(r->ctx, (size_t)e->n, sizeof(int64_t))};
    void *parts[QN_VQ_PARTS] = {NULL};
    const int32_t written = r->outputs.scheme->vq.written;
    int failed = !d.w || !d.bad;
    for (int i = 0; i < written; i++) {
        parts[i] = qn_calloc(r->ctx, 1, (size_t)o->bytes[i]);
        failed = failed || !parts[i];
    }
    qn_status status = QN_OK;
    if (failed) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory quantising tensor %s", o->weight->name);
    } else {
        qn_parallel_for(exec, e->n, decode_task, (void *)&d);
    }
    for (int64_t row = 0; row < e->n && status == QN_OK; row++) {
        if (d.bad[row] >= 0) {
            status = qn_error_set(error, QN_E_FILE,
                                  "tensor %s: element [%lld, %lld] is not finite; quantising it would spoil the model",
                                  o->weight->name, (long long)row, (long long)d.bad[row]);
        }
    }
    if (status == QN_OK) {
        status = qn_vq_quantise(r->ctx, r->outputs.scheme, d.w, e->n, e->k, o->squares, exec, parts, rms, error);
    }
    for (int i = 0; i < written && status == QN_OK; i++) {
        status = put(to, o->first_item + i, parts[i], (size_t)o->bytes[i], error);
    }
    for (int i = 0; i < QN_VQ_PARTS; i++) {
        qn_free(r->ctx, parts[i]);
    }
    qn_free(r->ctx, d.bad);
    qn_free(r->ctx, d.w);
    return status;
}

static qn_status put_output(run *r, const qn_output *o, const sink *to, double *rms, qn_error *error)
{
    const qn_encoder *e = &o->encoder;
    if (o->scheme->scales == QN_SCALES_VECTOR) {
        return put_vectors(r, o, to, rms, error);
    }
    work w;
    QN_TRY(work_init(&w, r->ctx, o, &r->options->exec, 1, error));
    qn_encode_sums sums = {0, 0};
    float amax = 0;
    qn_status status = QN_OK;
    for (int64_t row = 0; row < e->n && status == QN_OK; row += w.piece_rows) {
        status = work_piece(&w, row, &r->options->exec, &sums, &amax, error);
        if (status == QN_OK) {
            status = put(to, o->first_item, w.p.data, (size_t)w.p.rows * e->row_bytes, error);
        }
    }
    if (status == QN_OK && !isfinite(sums.error)) {
        status = qn_error_set(error, QN_E_FILE, "tensor %s holds %g, which %s cannot; choose bf16 or f32",
                              o->weight->name, (double)amax, e->element->info.name);
    }
    int32_t item = o->first_item + 1;
    if (status == QN_OK && o->names[QN_PART_SCALE]) {
        status = put(to, item++, w.scales, w.scale_bytes, error);
    }
    if (status == QN_OK && o->names[QN_PART_GLOBAL]) {
        status = put(to, item++, &e->global_scale, sizeof(float), error);
    }
    if (status == QN_OK && o->names[QN_PART_INPUT_GLOBAL]) {
        const float scale = qn_encode_global_scale(e, o->input_amax);
        status = put(to, item, &scale, sizeof scale, error);
    }
    work_free(&w);
    *rms = sums.weight > 0 ? sqrt(sums.error / sums.weight) : 0;
    return status;
}

/* The tensors of an output that an earlier run has finished. */
static qn_status put_found(const qn_output *o, const uint8_t *data, qn_safetensors_writer *writer, qn_error *error)
{
    int32_t item = o->first_item;
    for (int p = 0; p < QN_PART_COUNT; p++) {
        if (o->names[p]) {
            QN_TRY(qn_safetensors_writer_put(writer, item++, data, (size_t)o->bytes[p], error));
            data += o->bytes[p];
        }
    }
    return QN_OK;
}

static qn_status put_or_resume(run *r, const qn_output *o, qn_safetensors_writer *writer, double *rms, qn_error *error)
{
    sink to = {writer, NULL};
    if (!r->resume.folder || !qn_resume_worth(o)) {
        return put_output(r, o, &to, rms, error);
    }
    qn_resume_key key;
    qn_file_map map;
    const uint8_t *data;
    QN_TRY(qn_resume_key_of(&r->resume, o, &key, error));
    if (qn_resume_find(&r->resume, &key, o, &map, &data, rms)) {
        const qn_status status = put_found(o, data, writer, error);
        qn_file_map_close(&map);
        r->resumed++;
        return status;
    }
    to.kept = qn_resume_start(&r->resume, &key);
    const qn_status status = put_output(r, o, &to, rms, error);
    qn_resume_finish(to.kept, status == QN_OK, *rms);
    return status;
}

/* Name of how a weight is stored. */
static const char *stored_as(const qn_weight *w)
{
    if (w->scheme != qn_scheme_dense() && w->scheme->scales != QN_SCALES_NONE) {
        return w->scheme->name;
    }
    const qn_format_info *info = qn_format_get_info(qn_weight_format(w));
    return info ? info->name : "?";
}

static qn_status report(run *r, const qn_output *o, double rms, qn_error *error)
{
    r->done++;
    if (!r->options->progress) {
        return QN_OK;
    }
    const qn_weight *w = o->weight;
    const int vectors = o->scheme->scales == QN_SCALES_VECTOR;
    qn_quantize_progress progress = {.index = r->done,
                                     .total = r->outputs.count,
                                     .name = o->name,
                                     .shape = qn_shape_make(qn_weight_format(w), w->ndim, w->n, w->k, 1, 1),
                                     .from = stored_as(w),
                                     .to = vectors ? o->scheme->name : o->encoder.element->info.name,
                                     .bytes_before = o->bytes_before,
                                     .rms_error = rms};
    for (int p = 0; p < QN_PART_COUNT; p++) {
        progress.bytes_after += o->bytes[p];
    }
    if (r->options->progress(r->options->progress_user, &progress) == 0) {
        return QN_OK;
    }
    QN_FAIL_IF(r->resume.folder, error, QN_E_CANCELLED,
               "cancelled after %d of %d tensors; what is finished is kept in %s", r->done, r->outputs.count,
               r->resume.folder);
    QN_FAIL(error, QN_E_CANCELLED, "cancelled after %d of %d tensors; nothing was written", r->done, r->outputs.count);
}

/* Products that are there to the outputs that they are for. */
static void use_products(run *r)
{
    const int vectors = r->outputs.scheme->scales == QN_SCALES_VECTOR;
    const qn_calibration *c = &r->calibration;
    qn_calibration_settle(&r->calibration, &r->outputs, !vectors, &r->options->exec);
    for (int32_t i = c->first; i < c->last; i++) {
        qn_output *o = &r->outputs.list[i];
        const qn_observed *seen = &c->list[o->leader];
        if (!o->linear) {
            continue;
        }
        if (vectors) {
            o->squares = seen->squares;
            continue;
        }
        o->encoder.feedback = seen->squares;
        o->encoder.importance = seen->importance;
        o->encoder.order = seen->order;
        o->encoder.set = qn_cpu_fit(r->ctx);
    }
}

/* Products for output i, and as many behind it as there is room for, in the place of those of outputs before it. */
static qn_status reach_products(run *r, int32_t i, qn_error *error)
{
    if (!r->feedback || !r->outputs.list[i].linear || i < r->calibration.last) {
        return QN_OK;
    }
    for (int32_t j = r->calibration.first; j < r->calibration.last; j++) {
        qn_output *o = &r->outputs.list[j];
        o->squares = o->encoder.feedback = o->encoder.importance = NULL;
        o->encoder.order = NULL;
    }
    QN_TRY(qn_calibration_go_on(&r->calibration, r->input, r->options, &r->outputs, i, r->products, error));
    use_products(r);
    return QN_OK;
}

/* Outputs [first, last) are those of one shard. */
static qn_status write_shard(run *r, int32_t first, int32_t last, qn_error *error)
{
    static const char *const metadata[] = {"format", "pt"};
    char name[64];
    qn_folder_shard_name(&r->outputs, r->outputs.list[first].shard, name, sizeof name);
    qn_safetensors_writer *writer = NULL;
    int32_t items = 0;
    char *path = qn_folder_path(r->ctx, r->folder, name);
    qn_safetensors_item *list = qn_calloc(r->ctx, (size_t)(last - first) * QN_PART_COUNT, sizeof *list);
    qn_status status = path && list ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory writing %s", name);
    for (int32_t i = first; i < last && status == QN_OK; i++) {
        const qn_output *o = &r->outputs.list[i];
        for (int p = 0; p < QN_PART_COUNT; p++) {
            if (o->names[p]) {
                list[items++] = (qn_safetensors_item){o->names[p], o->shapes[p]};
            }
        }
    }
    if (status == QN_OK) {
        status = qn_safetensors_writer_create(r->ctx, path, list, items, metadata, 1, 1, &writer, error);
    }
    for (int32_t i = first; i < last && status == QN_OK; i++) {
        double rms = 0;
        status = reach_products(r, i, error);
        if (status == QN_OK) {
            status = put_or_resume(r, &r->outputs.list[i], writer, &rms, error);
        }
        if (status == QN_OK) {
            status = report(r, &r->outputs.list[i], rms, error);
        }
    }
    if (status == QN_OK) {
        status = qn_safetensors_writer_finish(writer, error);
    }
    qn_safetensors_writer_destroy(writer);
    qn_free(r->ctx, list);
    qn_free(r->ctx, path);
    return status;
}

static qn_status write_shards(run *r, qn_error *error)
{
    for (int32_t first = 0; first < r->outputs.count;) {
        int32_t last = first + 1;
        while (last < r->outputs.count && r->outputs.list[last].shard == r->outputs.list[first].shard) {
            last++;
        }
        QN_TRY(write_shard(r, first, last, error));
        first = last;
    }
    return QN_OK;
}

/* What the calibration run is for. */
typedef struct wishes {
    int feedback, scale; /* error feedback; scales of the activations */
    float smooth;        /* 0: none */
} wishes;

static wishes make_wishes(const run *r, const qn_checkpoint *checkpoint)
{
    const qn_scheme *scheme = r->outputs.scheme;
    wishes w = {.scale = qn_scheme_needs_calibration(scheme)};
    int linear = 0;
    for (int32_t i = 0; i < r->outputs.count; i++) {
        const qn_output *o = &r->outputs.list[i];
        linear |= o->linear;
        if (o->linear && o->weight->scheme->scales != QN_SCALES_NONE) {
            return w; /* inputs of quantised layers are not to be seen */
        }
    }
    if (!linear) {
        return (wishes){0};
    }
    const qn_tokenizer_source *tokenizer = qn_checkpoint_tokenizer(checkpoint);
    if (!w.scale && !tokenizer->tokenizer_json.bytes && !tokenizer->token_count) {
        if (scheme->scales != QN_SCALES_NONE) {
            qn_log(r->ctx, QN_LOG_WARN,
                   "the model has no tokenizer to calibrate with: weights are rounded to nearest, "
                   "without smoothing and error feedback");
        }
        return w;
    }
    w.smooth = r->tuning->smooth < 0 ? qn_smooth_alpha(scheme) : r->tuning->smooth;
    w.feedback = r->tuning->feedback && scheme->scales != QN_SCALES_NONE;
    return w;
}

/* Look at the weights and at their inputs; set scales that are shared, smoothing and feedback. */
static qn_status calibrate(run *r, const qn_checkpoint *checkpoint, qn_error *error)
{
    const qn_exec *exec = &r->options->exec;
    const wishes w = make_wishes(r, checkpoint);
    const int observe = w.feedback || w.scale || w.smooth > 0;
    if (observe || r->outputs.scheme->global_scale) {
        QN_TRY(find_amax(r->ctx, &r->outputs, exec, error));
    }
    if (!observe) {
        return QN_OK;
    }
    r->feedback = w.feedback;
    QN_TRY(qn_calibration_run(r->ctx, r->input, r->options, &r->outputs, w.feedback ? r->products : 0, &r->calibration,
                              error));
    if (w.smooth > 0) {
        QN_TRY(
            qn_smooth(r->ctx, qn_checkpoint_hparams(checkpoint), &r->outputs, &r->calibration, w.smooth, exec, error));
        if (r->outputs.scheme->global_scale) {
            QN_TRY(find_amax(r->ctx, &r->outputs, exec, error));
        }
    }
    share_input_amax(&r->outputs, &r->calibration);
    use_products(r);
    return QN_OK;
}

/* The packed file of the folder that was just written. */
static qn_status write_packed(const run *r, uint64_t *bytes, qn_error *error)
{
    qn_model *model = NULL;
    qn_model_options options;
    qn_model_options_init(&options);
    options.exec = r->options->exec;
    qn_status status = qn_model_open(r->ctx, r->folder, &options, &model, error);
    if (status == QN_OK) {
        qn_packed_file file;
        status = qn_model_write_packed(model, NULL, 0, &r->options->exec, &file, error);
        *bytes = file.bytes;
    }
    qn_model_close(model);
    return status;
}

/* Everything between the opened checkpoint and the finished folder. */
static qn_status write_folder(run *r, const qn_checkpoint *checkpoint, qn_error *error)
{
    uint64_t need;
    QN_FAIL_IF(qn_add_u64(r->outputs.bytes_after, ((uint64_t)r->outputs.count << 9) + (1u << 20), &need) ||
                   qn_add_u64(need, r->resume.folder ? r->outputs.bytes_after : 0, &need),
               error, QN_E_SHAPE, "the output is too large");
    QN_TRY(qn_folder_check_space(r->folder, need, error));
    QN_TRY(qn_folder_write_tokenizer(r->ctx, r->input, checkpoint, r->folder, error));
    QN_TRY(calibrate(r, checkpoint, error));
    QN_TRY(write_shards(r, error));
    return qn_folder_write_config(checkpoint, &r->outputs, r->options->kv, r->folder, error);
}

static qn_status check_arguments(const qn_ctx *ctx, const char *input, const char *output,
                                 const qn_quantize_options *options, const qn_scheme **scheme, qn_error *error)
{
    QN_FAIL_IF(!ctx || !input || !output || !options, error, QN_E_ARGUMENT,
               "qn_quantize: ctx, input, output and options must not be NULL");
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_quantize: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    *scheme = options->scheme ? qn_scheme_find(options->scheme) : NULL;
    QN_FAIL_IF(!*scheme, error, QN_E_ARGUMENT, "'%s' is no scheme of weights",
               options->scheme ? options->scheme : "(null)");
    QN_TRY(options->kv ? qn_kv_books_check(options->kv, error) : QN_OK);
    QN_FAIL_IF(options->keep_first < -1 || options->keep_last < -1, error, QN_E_ARGUMENT,
               "qn_quantize: keep_first and keep_last are %d and %d, must be -1 or more", options->keep_first,
               options->keep_last);
    return QN_OK;
}

qn_status qn_quantize_with(qn_ctx *ctx, const char *input, const char *output, const qn_quantize_options *options,
                           const qn_quant_tuning *tuning, qn_quantize_result *result, qn_error *error)
{
    const uint64_t start = qn_clock_ns();
    const qn_scheme *scheme = NULL;
    if (result) {
        *result = (qn_quantize_result){0};
    }
    QN_TRY(check_arguments(ctx, input, output, options, &scheme, error));
    QN_TRY(qn_folder_check_paths(input, output, error));
    run r = {.ctx = ctx,
             .options = options,
             .tuning = tuning,
             .input = input,
             .products = tuning->products ? tuning->products : PRODUCT_BYTES};
    qn_checkpoint *checkpoint = NULL;
    qn_commit *commit = NULL;
    qn_status status = qn_checkpoint_open(ctx, input, &checkpoint, error);
    if (status == QN_OK) {
        status = qn_outputs_plan(ctx, checkpoint, scheme, options,
                                 options->shard_bytes ? options->shard_bytes : DEFAULT_SHARD_BYTES, &r.outputs, error);
    }
    for (int32_t i = 0; status == QN_OK && i < r.outputs.count; i++) {
        r.outputs.list[i].encoder.search = tuning->search;
    }
    if (status == QN_OK) {
        status = qn_commit_begin(ctx, output, 1, options->force, &commit, error);
    }
    if (status == QN_OK && options->resume) {
        status = qn_resume_begin(ctx, output, &r.resume, error);
    }
    if (status == QN_OK) {
        r.folder = qn_commit_path(commit);
        status = write_folder(&r, checkpoint, error);
    }
    if (status == QN_OK && options->kv) {
        status = qn_kv_books_of_folder(ctx, input, r.folder, options, error);
    }
    uint64_t packed_bytes = 0;
    if (status == QN_OK && options->pack) {
        status = write_packed(&r, &packed_bytes, error);
    }
    if (status == QN_OK) {
        status = qn_commit_finish(commit, error);
    }
    if (status == QN_OK && result) {
        *result = (qn_quantize_result){.tensors = r.outputs.count,
                                       .parameters = r.outputs.parameters,
                                       .bytes_before = r.outputs.bytes_before,
                                       .bytes_after = r.outputs.bytes_after,
                                       .resumed = r.resumed,
                                       .packed_bytes = packed_bytes,
                                       .seconds = (double)(qn_clock_ns() - start) * 1e-9};
        result->bits_per_weight = result->parameters ? (double)result->bytes_after * 8 / (double)result->parameters : 0;
    }
    qn_commit_destroy(commit);
    qn_resume_end(&r.resume, status == QN_OK);
    qn_calibration_free(&r.calibration);
    qn_outputs_free(&r.outputs);
    qn_checkpoint_close(checkpoint);
    return status;
}

qn_status qn_quantize(qn_ctx *ctx, const char *input, const char *output, const qn_quantize_options *options,
                      qn_quantize_result *result, qn_error *error)
{
    const qn_quant_tuning tuning = qn_quant_default_tuning();
    return qn_quantize_with(ctx, input, output, options, &tuning, result, error);
}
