/* The panel runner: every matmul on weights packed into panels.
 *
 * Rows of a are made ready once, in the form the level's kernels take. Then one
 * grid of tasks, blocks of rows by runs of panels, consecutive tasks sharing
 * weights. A task calls the level's kernel for the whole of K and finishes the
 * sums: scales, zero points, bias, rounding. The kernels' order over K is fixed,
 * so neither the grid nor the threads can change a bit.
 *
 * What kernels must not compute (panel_pack.c: NaN codes, scales out of range) is
 * computed in double instead, as the formula has it (panel_exact.c).
 * A run without packed weights packs in its tasks, each the panels it needs. */
#include "backend/cpu/panel_job.h"

#include <string.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/panel_exact.h"
#include "backend/cpu/run_rows.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

#define PREPARE_ROWS 16       /* rows of a a task, at most; a multiple of every set's row_group */
#define SERIAL_ELEMENTS 32768 /* activations worth more than one thread */

/* ---- acceptance and packing ---- */

const char *qn_panel_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_panel_impl *impl = kernel->impl;
    if (desc->in[qn_panel_weight_slot(kernel->op)].format != impl->weight) {
        return "made for another weight format";
    }
    const qn_format rows = qn_panel_row_format(desc);
    const int integers = rows == QN_I8 || rows == QN_U8; /* of int8 or e2m1 codes */
    if (impl->code != QN_PANEL_I8 && impl->set->rows_f == QN_PANEL_ROWS_BYTES && !integers) {
        return "made for activations that are int8 or e2m1 codes";
    }
    if (impl->set->rows_f == QN_PANEL_ROWS_WORDS && rows != QN_BF16) {
        return "made for activations that are bf16";
    }
    const int bf16_rows = impl->code != QN_PANEL_I8 && impl->set->rows_f == QN_PANEL_ROWS_BF16;
    if (bf16_rows && kernel->isa < QN_ISA_AMX && (rows == QN_F32 || rows == QN_F16)) {
        return "f32 and f16 activations take three and two bf16 terms, which the fp32 kernels beat";
    }
    if (bf16_rows && kernel->isa < QN_ISA_AMX && integers) {
        return "activations that are integers are for the byte dots of level avx512vnni";
    }
    return NULL;
}

size_t qn_panel_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_panel_impl *impl = kernel->impl;
    return qn_panel_layout_of(desc, impl->code).total;
}

void qn_panel_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    const qn_panel_impl *impl = kernel->impl;
    const qn_panel_layout l = qn_panel_layout_of(desc, impl->code);
    char *const base = body;
    memset(base + l.flags, 0, l.total - l.flags);
    for (int64_t i = 0; i < l.experts * l.panels; i++) {
        qn_panel_pack_one(&l, impl->code, desc, args, i / l.panels, i % l.panels, base + i * l.panel_bytes,
                          (uint8_t *)base + l.flags + i, (float *)(void *)(base + l.block_scales) + i * l.scale_blocks);
    }
    qn_panel_pack_rest(&l, desc, args, base + l.scales);
}

/* Blocks of the longest panels that a row or two read one after the other, one run of lines for a processor. Where two
 * short runs end and two others begin AMD's cores wait; Intel's keep more lines on their way from several runs
 * (docs/experiments/cpu-matmul.md). */
qn_status qn_panel_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                        qn_error *error)
{
    static const int64_t intel = 0, others = 32;
    (void)kernel;
    (void)ctx;
    (void)desc;
    (void)error;
    *state = (void *)(uintptr_t)(qn_cpu_is_intel() ? &intel : &others);
    return QN_OK;
}

static qn_panel_small *small_of(const qn_panel_job *job, const qn_panel_memory *at, int32_t thread)
{
    return (qn_panel_small *)(void *)(job->scratch + (size_t)thread * at->thread + at->small);
}

/* Where silu of the left half of the columns, times the other half, goes. */
typedef struct silu_rows {
    const qn_rows_set *set; /* NULL: the product itself is wanted */
    qn_mm_real real;
    char *data;
    int64_t stride;
} silu_rows;

typedef struct run {
    qn_panel_job job;
    silu_rows silu;
    qn_panel_memory at;
    int64_t prepare_rows; /* of a task */
} run;

/* ---- blocks ---- */

typedef struct block {
    int64_t expert, row, rows; /* row: of a; rows to compute */
    int64_t prepared;          /* their first prepared row */
    int64_t zero_rows;         /* rows after them to clear (masked layout) */
    int64_t panel, panels;
} block;

static int64_t expert_first(const qn_panel_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e] : e * job->expert_rows;
}

static int64_t expert_count(const qn_panel_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e + 1] - job->offsets[e] : (job->expert_rows ? job->expert_rows : job->m);
}

static int64_t row_blocks(const qn_panel_job *job, int64_t rows)
{
    int64_t total = 0;
    for (int64_t e = 0; e < job->experts; e++) {
        total += qn_ceil_div(expert_count(job, e), rows);
    }
    return total;
}

/* Block i of all experts' rows in blocks of `rows`. */
static block row_block(const qn_panel_job *job, int64_t i, int64_t rows)
{
    int64_t e = 0;
    for (int64_t count; i >= (count = qn_ceil_div(expert_count(job, e), rows)); e++) {
        i -= count;
    }
    const int64_t first = expert_first(job, e);
    block b = {.expert = e, .row = first + i * rows, .rows = qn_min_i64(rows, expert_count(job, e) - i * rows)};
    b.prepared = qn_panel_prepared_first(job->set->row_group, first, e) + i * rows;
    if (job->masked_m) {
        const int64_t valid = qn_max_i64(0, qn_min_i64(b.rows, job->masked_m[e] - i * rows));
        b.zero_rows = job->keep ? 0 : b.rows - valid;
        b.rows = valid;
    }
    return b;
}

static block locate(const qn_panel_job *job, int64_t index)
{
    const int64_t blocks = row_blocks(job, job->task_rows);
    block b = row_block(job, index % blocks, job->task_rows);
    b.panel = index / blocks * job->task_panels;
    b.panels = qn_min_i64(job->task_panels, job->span - b.panel);
    return b;
}

static void prepare_task(void *user, int64_t index, int32_t thread)
{
    const run *const p = user;
    const qn_panel_job *job = &p->job;
    const block b = row_block(job, index, p->prepare_rows);
    qn_panel_prepare_rows(job, b.row, b.prepared, b.rows, small_of(job, &p->at, thread));
    for (int64_t r = b.row; job->odd_rows && r < b.row + b.rows; r++) {
        job->odd_rows[r] =
            (uint8_t)(job->sa ? qn_panel_has_odd_scale(job, r) : qn_panel_has_odd_digits(job, b.prepared + r - b.row));
    }
}

static char *out_at(const qn_panel_job *job, const block *b, int64_t row, int64_t column)
{
    const int64_t size = job->out_real == QN_MM_F32 ? 4 : 2;
    const int64_t local = row - b->expert * job->expert_rows;
    return job->out + (job->expert_rows ? b->expert * job->out_expert : 0) + local * job->out_stride + column * size;
}

/* Weights of a block, packed before or now. */
typedef struct weights {
    const char *panels;
    const uint8_t *flags;
    const float *block_scales;
} weights;

static weights weights_of(const run *p, const block *b, char *scratch, qn_panel_small *s)
{
    const qn_panel_job *job = &p->job;
    const qn_panel_layout *l = &job->layout;
    const int64_t first = b->expert * l->panels + b->panel;
    if (job->panels) {
        return (weights){job->panels + first * l->panel_bytes, job->flags + first,
                         job->block_scales + first * l->scale_blocks};
    }
    float *const scales = (float *)(void *)(scratch + p->at.pack_scales);
    char *const panels = scratch + p->at.pack;
    for (int64_t i = 0; i < b->panels; i++) {
        qn_panel_pack_one(l, job->impl->code, job->call->desc, job->call->args, b->expert, b->panel + i,
                          panels + i * l->panel_bytes, &s->flags[i], scales + i * l->scale_blocks);
    }
    return (weights){panels, s->flags, scales};
}

/* ---- products ---- */

/* A block whose products are done: finished row by row. */
typedef struct products {
    block b;
    weights w;
    qn_panel_call call;
    qn_panel_small *s;
} products;

/* Sums of row r of what a call left (kernels/common/panel.h). */
static float *sums_of_row(const qn_panel_call *call, int64_t group, int64_t r)
{
    return (float *)call->sums + r / group * group * call->sums_stride + r % group * QN_PANEL_COLS;
}

/* ---- what kernels must not compute ---- */

static int is_odd(const qn_panel_job *job, const products *d, int64_t r)
{
    return job->odd_rows && job->odd_rows[d->b.row + r];
}

/* Whether some sums of the row are computed here; then all are in units of one. */
static int is_mended(const qn_panel_job *job, const products *d, int64_t r)
{
    return d->s->special || is_odd(job, d, r);
}

/* A row of a block that has such sums. */
typedef struct odd_row {
    int64_t r;
    float *sums; /* piece: elements from panel to panel */
    int64_t piece;
    int odd, is_nan; /* all of it; all of it, and is `nan` */
    float nan;
} odd_row;

static odd_row odd_row_of(const qn_panel_job *job, const products *d, int64_t r)
{
    const int64_t group = job->set->row_group;
    odd_row o = {.r = r, .sums = sums_of_row(&d->call, group, r), .piece = group * QN_PANEL_COLS};
    o.odd = is_odd(job, d, r);
    o.is_nan = o.odd && qn_panel_is_nan_row(job, d->b.row + r, d->b.prepared + r, &o.nan);
    for (int64_t p = 0; p < d->b.panels; p++) {
        for (int c = 0; c < QN_PANEL_COLS; c++) {
            o.sums[p * o.piece + c] = o.is_nan ? o.nan : o.sums[p * o.piece + c] * d->s->finish.unit;
        }
    }
    return o;
}

/* Sums of some rows with panel p. */
static void mend_panel(const qn_panel_job *job, const products *d, int64_t p, const odd_row *rows, int64_t count)
{
    const int special = d->w.flags[p] & QN_PANEL_SPECIAL;
    qn_panel_exact exact = {0};
    for (int64_t i = 0; i < count; i++) {
        const odd_row *o = &rows[i];
        if (special || (o->odd && !o->is_nan)) {
            exact.of[exact.rows].row = d->b.row + o->r;
            exact.of[exact.rows].prepared = d->b.prepared + o->r;
            exact.of[exact.rows++].sums = o->sums + p * o->piece;
        }
    }
    if (exact.rows) {
        qn_panel_exact_sums(job, d->w.panels + p * job->layout.panel_bytes,
                            d->w.block_scales + p * job->layout.scale_blocks, &exact);
    }
}

static void mend(const qn_panel_job *job, const products *d)
{
    odd_row rows[QN_PANEL_EXACT_ROWS];
    int64_t count = 0;
    for (int64_t r = 0; r < d->b.rows; r++) {
        if (is_mended(job, d, r)) {
            rows[count++] = odd_row_of(job, d, r);
        }
        if (count == QN_PANEL_EXACT_ROWS || (count && r + 1 == d->b.rows)) {
            for (int64_t p = 0; p < d->b.panels; p++) {
                mend_panel(job, d, p, rows, count);
            }
            count = 0;
        }
    }
}

/* ---- finishing ---- */

/* The epilogue of the block's columns from `column`; a sum is counted in units. */
static void prepare_finish(const qn_panel_job *job, int64_t column, int64_t columns, qn_panel_small *s)
{
    qn_mm_finish *const f = &s->finish;
    const size_t rest = (size_t)(qn_ceil_div(columns, QN_MM_STEP) * QN_MM_STEP - columns);
    memset(f, 0, sizeof *f);
    f->integers = job->impl->code == QN_PANEL_I8;
    f->unit = job->sa ? 1.0f : qn_panel_factor(job->impl->code) * (job->set->unit > 0.0f ? job->set->unit : 1.0f);
    f->scaled = job->scaled;
    f->factor = job->factor;
    f->out = job->out_real;
    f->adds = job->adds;
    if (job->scaled) {
        for (int64_t c = 0; c < columns; c++) {
            s->scale_b[c] = job->scale_b[(column + c) * job->scale_b_step];
        }
        memset(s->scale_b + columns, 0, rest * sizeof *s->scale_b);
        f->scale_b = s->scale_b;
    }
    if (job->bias) {
        memcpy(s->bias, job->bias + column, (size_t)columns * sizeof *s->bias);
        memset(s->bias + columns, 0, rest * sizeof *s->bias);
        f->bias = s->bias;
    }
    if (job->azp_adj) {
        memcpy(s->azp_adj, job->azp_adj + column, (size_t)columns * sizeof *s->azp_adj);
        memset(s->azp_adj + columns, 0, rest * sizeof *s->azp_adj);
        f->azp_adj = s->azp_adj;
    }
}

/* Row r of the block, in the output format. */
static void finish_row(const qn_panel_job *job, const products *d, int64_t r, void *out)
{
    const int64_t row = d->b.row + r;
    const int64_t columns = qn_min_i64(d->b.panels * QN_PANEL_COLS, job->n - d->b.panel * QN_PANEL_COLS);
    const int64_t group = job->set->row_group;
    const qn_mm_sums from = {sums_of_row(&d->call, group, r), group * QN_PANEL_COLS};
    const float scale_a = job->scaled ? qn_panel_float_at(job->scale_a + row * job->scale_a_stride) : 1.0f;
    qn_mm_finish finish = d->s->finish;
    finish.unit = is_mended(job, d, r) ? 1.0f : finish.unit;
    job->impl->parts->finish(&finish, from, scale_a, job->azp ? job->azp[row] : 1, columns, out);
}

/* Rows of f32 gates, and as many columns of the other half: both to small memory, from there through silu. */
static void finish_silu(const run *p, const products *gate, const products *up)
{
    const silu_rows *to = &p->silu;
    const int64_t n = gate->b.panels * QN_PANEL_COLS;
    for (int64_t r = 0; r < gate->b.rows; r++) {
        char *const out =
            to->data + (gate->b.row + r) * to->stride + gate->b.panel * QN_PANEL_COLS * (to->real == QN_MM_F32 ? 4 : 2);
        float *const v = to->real == QN_MM_F32 ? (float *)(void *)out : gate->s->values;
        finish_row(&p->job, gate, r, gate->s->row);
        finish_row(&p->job, up, r, up->s->row);
        to->set->silu_mul[QN_MM_F32](gate->s->row, up->s->row, n, 0, 0, v);
        if (to->real != QN_MM_F32) {
            to->set->store[to->real](v, n, out);
        }
    }
}

/* Scales of a block's rows, in the order of kernels/common/panel.h; the stride. */
static int64_t gather_scales(const qn_panel_job *job, const block *b, float *sa)
{
    const int64_t n = job->layout.scale_blocks, group = job->set->row_group;
    const int64_t padded = qn_ceil_div(b->rows, group) * group;
    const int64_t row = group > 1 ? 1 : n, step = group > 1 ? padded : 1;
    const float factor = qn_panel_factor(job->impl->code);
    for (int64_t r = 0; r < b->rows; r++) {
        const char *const from = qn_panel_row_scales(job, b->row + r);
        for (int64_t i = 0; i < n; i++) {
            sa[r * row + i * step] = qn_panel_float_at(from + i * job->sa_block) * factor;
        }
    }
    for (int64_t r = b->rows; r < padded; r++) {
        for (int64_t i = 0; i < n; i++) {
            sa[r * row + i * step] = 0.0f;
        }
    }
    return group > 1 ? step : row;
}

/* The products of a block, their sums from `sums` on, and what its rows are finished with. */
static void multiply(const run *p, const block *b, char *scratch, char *sums, qn_panel_small *s, products *d)
{
    const qn_panel_job *job = &p->job;
    const int64_t column = b->panel * QN_PANEL_COLS;
    d->b = *b;
    d->w = weights_of(p, b, scratch, s);
    d->s = s;
    float *const sa = (float *)(void *)(scratch + p->at.scales);
    const int64_t sa_stride = job->sa ? gather_scales(job, b, sa) : 0;
    d->call =
        (qn_panel_call){.w = d->w.panels,
                        .panel_bytes = job->layout.panel_bytes,
                        .panels = b->panels,
                        .blocks = job->layout.blocks,
                        .a = qn_panel_line(job, b->prepared, 0),
                        .a_stride = job->row_stride,
                        .rows = b->rows,
                        .terms = job->terms,
                        .coded = job->a.scales != NULL,
                        .alone = b->rows <= QN_PANEL_ALONE && job->layout.blocks <= *(const int64_t *)job->call->state,
                        .several = job->m > 1,
                        .sa = job->sa ? sa : NULL,
                        .sb = job->sa ? d->w.block_scales : NULL,
                        .sa_stride = sa_stride,
                        .sb_stride = job->layout.scale_blocks,
                        .sums = sums,
                        .sums_stride = qn_panel_sums_stride(b->panels),
                        .flags = d->w.flags,
                        .scratch = scratch};
    job->set->mm[job->impl->code](&d->call);
    s->special = 0;
    for (int64_t i = 0; i < b->panels; i++) {
        s->special |= d->w.flags[i] & QN_PANEL_SPECIAL;
    }
    prepare_finish(job, column, qn_min_i64(b->panels * QN_PANEL_COLS, job->n - column), s);
    mend(job, d);
}

/* Sums of two blocks of that many panels fit where those of the largest one do. */
static int room_for_two(const qn_panel_set *set, int64_t panels)
{
    return 2 * qn_panel_sums_stride(panels) <= qn_panel_sums_room(qn_panel_largest_grid(set).panels);
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const run *const p = user;
    const qn_panel_job *job = &p->job;
    const block b = locate(job, index);
    const int64_t column = b.panel * QN_PANEL_COLS;
    const int64_t columns = qn_min_i64(b.panels * QN_PANEL_COLS, job->n - column);
    for (int64_t r = b.rows; r < b.rows + b.zero_rows; r++) {
        memset(out_at(job, &b, b.row + r, column), 0, (size_t)columns * (job->out_real == QN_MM_F32 ? 4 : 2));
    }
    if (b.rows == 0) {
        return;
    }
    char *const scratch = job->scratch + (size_t)thread * p->at.thread, *const sums = scratch + p->at.sums;
    qn_panel_small *const s = small_of(job, &p->at, thread);
    products done, other;
    multiply(p, &b, scratch, sums, s, &done);
    if (p->silu.set) {
        block half = b;
        half.panel += job->span;
        const int64_t rows = qn_ceil_div(b.rows, job->set->row_group) * job->set->row_group;
        multiply(p, &half, scratch, sums + rows * qn_panel_sums_stride(b.panels) * (int64_t)sizeof(float), s + 1,
                 &other);
        finish_silu(p, &done, &other);
        return;
    }
    for (int64_t r = 0; r < b.rows; r++) {
        finish_row(job, &done, r, out_at(job, &b, b.row + r, column));
    }
}

/* Rows that no expert owns become zeros. */
static void zero_rows(const qn_panel_job *job, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        memset(job->out + r * job->out_stride, 0, (size_t)job->n * (job->out_real == QN_MM_F32 ? 4 : 2));
    }
}

int qn_panel_takes_next(const qn_kernel *kernel, const qn_op_desc *desc, const qn_kernel *next,
                        const qn_op_desc *next_desc)
{
    const qn_panel_impl *impl = kernel->impl;
    if (desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM || desc->attr[QN_ATTR_OUT].i != QN_OUT_F32) {
        return 0;
    }
    if (!next) {
        return 1;
    }
    const int64_t n = next_desc->in[0].dims[1];
    const int quantizes = next->op == QN_OP_SILU_MUL_QUANT;
    /* silu takes QN_MM_STEP values together, from the beginning of a row or of a group */
    return next->backend == QN_BACKEND_CPU && (quantizes || next->op == QN_OP_SILU_MUL) &&
           next_desc->in[0].format == QN_F32 && next_desc->in[0].ndim == 2 && n % (2 * QN_MM_STEP) == 0 &&
           !(quantizes && next_desc->attr[QN_ATTR_GROUP].i % QN_MM_STEP) && room_for_two(impl->set, 2);
}

/* Tasks of gates, with as many panels of the other half, and where silu's values go; of codes to the memory of the
 * product. */
static void choose_silu(run *p, const qn_run_next *next)
{
    qn_panel_job *const job = &p->job;
    const qn_mut_view *const y = &next->args->out[QN_ACT_OUT_Y];
    const int quantizes = next->kernel->op == QN_OP_SILU_MUL_QUANT;
    p->silu = (silu_rows){.set = qn_rows_set_of(next->kernel, next->state),
                          .real = quantizes ? QN_MM_F32 : qn_rows_real(y->shape.format),
                          .data = quantizes ? job->out : y->data,
                          .stride = quantizes ? job->n / 2 * (int64_t)sizeof(float) : y->strides[0]};
    job->span = job->layout.panels / 2;
    int64_t panels = qn_max_i64(2, job->task_panels / 4 * 2);
    while (panels > 2 && !room_for_two(job->set, panels)) {
        panels -= 2;
    }
    job->task_panels = panels;
}

void qn_panel_run(const qn_kernel *kernel, const qn_run_call *call)
{
    run p = {0};
    qn_panel_job *const job = &p.job;
    qn_panel_bind(kernel, call, job);
    if (job->m == 0 || job->n == 0) {
        return;
    }
    if (job->offsets && !job->keep) {
        zero_rows(job, 0, qn_min_i64(job->offsets[0], job->m));
        zero_rows(job, job->offsets[job->experts], job->m);
    }
    char *const workspace = call->workspace;
    p.at = qn_panel_memory_of(job->impl, call->desc, call->sizes.m, qn_exec_threads(call->exec));
    job->rows = workspace;
    job->row_stride = (int64_t)qn_panel_row_stride(job->set, job->kind, job->terms, job->layout.blocks);
    job->odd_rows = qn_panel_has_odd_rows(&job->layout, job->kind) ? (uint8_t *)workspace + p.at.odd_rows : NULL;
    job->scratch = workspace + p.at.scratch;
    job->scratch_bytes = p.at.thread;
    if (!job->panels) {
        qn_panel_pack_rest(&job->layout, call->desc, call->args, workspace + p.at.rest);
        qn_panel_bind_rest(job, workspace + p.at.rest);
    }
    const qn_panel_grid g = qn_panel_grid_of(job->set, job->m, job->layout.panels, qn_exec_threads(call->exec));
    job->task_rows = g.rows;
    job->task_panels = g.panels;
    job->span = job->layout.panels;
    const qn_run_next *const next = call->next;
    if (next && next->kernel) {
        choose_silu(&p, next);
    } else if (next) {
        job->out = next->sum.data;
        job->out_stride = next->sum.strides[0];
        job->adds = 1;
    }
    const int64_t blocks = row_blocks(job, job->task_rows);
    if (blocks == 0) {
        return;
    }
    const int serial = job->m * job->k <= SERIAL_ELEMENTS, groups = job->set->row_group > 1;
    const int64_t share = qn_ceil_div(job->m, qn_exec_threads(call->exec));
    p.prepare_rows = serial || groups ? PREPARE_ROWS : qn_min_i64(PREPARE_ROWS, share);
    qn_parallel_for(serial ? NULL : call->exec, row_blocks(job, p.prepare_rows), prepare_task, &p);
    qn_parallel_for(call->exec, blocks * qn_ceil_div(job->span, job->task_panels), block_task, &p);
    if (next && next->kernel && next->kernel->op == QN_OP_SILU_MUL_QUANT) {
        qn_quantize_silu(next, (const float *)(const void *)job->out, workspace, call->exec);
    }
}
