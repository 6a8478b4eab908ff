/* The matmul runner: one loop over blocks for every operator of the family.
 *
 * Grid: blocks of QN_MM_ROWS rows by QN_MM_COLS columns, fixed by the shapes and
 * never by the number of threads; consecutive tasks share weights. With few rows
 * a task walks QN_MR columns at a time along the whole of K, so that weights
 * stream; with many it unpacks a panel of all its columns, a chunk of K at a
 * time, and uses it for all its rows. Both give the same bits (kernels/common/mm.h). */
#include "backend/cpu/run_mm.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/mm_job.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

#define FEW_ROWS 8
#define FEW_COLS 4
#define CHUNK_FEW 1024
#define CHUNK_MANY 512
#define CHUNK_I8 4096
#define SERIAL_ELEMENTS 32768 /* activations worth more than one thread */

_Static_assert(CHUNK_FEW <= QN_MM_SCALES * 128 && CHUNK_MANY % 256 == 0, "tiles rely on these");

typedef struct small_arrays {
    float sa[QN_MM_ROWS * QN_MM_SCALES];
    float sb[QN_MM_COLS * QN_MM_SCALES];
    int32_t sums[QN_MM_COLS], column_sums[QN_MM_COLS];
    float reals[QN_MM_COLS + QN_MM_PAD];
    qn_mm_finish finish;
    uint8_t ones[CHUNK_I8];
} small_arrays;

/* ---- acceptance ---- */

static int weight_slot(qn_op op)
{
    switch ((int)op) {
    case QN_OP_DENSE_MM: return QN_DMM_B;
    case QN_OP_MXFP4_MM: return QN_MXMM_B;
    case QN_OP_NVFP4_MM: return QN_NVMM_B;
    case QN_OP_SCALED_MM: return QN_SMM_B;
    default: return QN_BMM_B;
    }
}

const char *qn_mm_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_mm_impl *impl = kernel->impl;
    return desc->in[weight_slot(kernel->op)].format == impl->weight ? NULL : "made for another weight format";
}

/* ---- memory ---- */

static int64_t lanes_of(const qn_mm_impl *impl)
{
    return impl->i8 ? impl->i8->lanes : impl->set->lanes;
}

static size_t panel_bytes(const qn_mm_impl *impl, int64_t rows)
{
    if (impl->i8) {
        return (size_t)QN_MM_COLS * CHUNK_I8;
    }
    return rows <= FEW_ROWS ? (size_t)FEW_COLS * CHUNK_FEW * 4 : (size_t)QN_MM_COLS * CHUNK_MANY * 4;
}

/* Scratch of a thread: panel, lanes (one row more for column sums), small arrays. */
static size_t scratch_layout(const qn_mm_impl *impl, int64_t rows, size_t *lanes_at, size_t *small_at)
{
    const int64_t most = qn_min_i64(rows, QN_MM_ROWS);
    *lanes_at = panel_bytes(impl, rows);
    *small_at = *lanes_at + (size_t)((most + 1) * QN_MM_COLS * lanes_of(impl) * 4);
    return qn_align_up(*small_at + sizeof(small_arrays), 64);
}

static size_t a_panel_bytes(const qn_mm_impl *impl, int64_t rows, int64_t k)
{
    const size_t row = qn_size_mul(qn_size_pad((size_t)k), (size_t)(impl->i8 ? impl->i8->a_bytes : 4));
    return qn_size_pad(qn_size_mul((size_t)rows, row));
}

/* Rows of a's panel for m rows of the operator, and elements along K. */
static int64_t panel_rows(const qn_op_desc *desc, int64_t m, int64_t *k)
{
    const int slot = weight_slot(desc->op);
    const qn_shape *b = &desc->in[slot];
    const int64_t codes = b->dims[b->ndim - 1];
    const int fp4 = desc->op == QN_OP_NVFP4_MM || desc->op == QN_OP_MXFP4_MM;
    *k = fp4 && codes <= INT64_MAX / 2 ? codes * 2 : codes;
    if (desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM && desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED) {
        const qn_shape *a = &desc->in[QN_BMM_A];
        int64_t rows;
        return qn_mul_i64(a->dims[0], qn_max_i64(a->dims[1], m), &rows) ? INT64_MAX : rows;
    }
    return m;
}

size_t qn_mm_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    int64_t k;
    size_t lanes_at, small_at;
    const int64_t rows = panel_rows(desc, m, &k);
    return qn_size_add(a_panel_bytes(kernel->impl, rows, k),
                       (size_t)threads * scratch_layout(kernel->impl, rows, &lanes_at, &small_at));
}

/* ---- activations ---- */

#define A_ROWS 16

static const void *a_source_row(const qn_mm_job *job, int64_t row)
{
    if (job->expert_rows) {
        return (const char *)job->a.data + row / job->expert_rows * job->a_expert +
               row % job->expert_rows * job->a.stride;
    }
    return (const char *)job->a.data + row * job->a.stride;
}

static void unpack_a_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const qn_mm_job *job = user;
    const int64_t last = qn_min_i64(job->m, (index + 1) * A_ROWS);
    for (int64_t r = index * A_ROWS; r < last; r++) {
        if (job->masked_m && r % job->expert_rows >= job->masked_m[r / job->expert_rows]) {
            continue;
        }
        qn_mm_operand row = job->a;
        row.data = a_source_row(job, r);
        if (row.scales) {
            row.scales = (const char *)row.scales + r * row.scale_stride;
        }
        job->unpack_a(&row, 0, 0, job->k, job->a_panel + r * job->a_panel_stride);
    }
}

static void prepare_a(qn_mm_job *job, char *panel, const qn_exec *exec)
{
    if (job->a_direct) {
        job->a_panel = (char *)(uintptr_t)job->a.data;
        job->a_panel_stride = job->a.stride;
        return;
    }
    job->a_panel = panel;
    job->a_panel_stride = job->k_pad * (job->i8 ? job->i8->a_bytes : 4);
    const int64_t tasks = qn_ceil_div(job->m, A_ROWS);
    const int serial = job->m * job->k <= SERIAL_ELEMENTS;
    qn_parallel_for(serial ? NULL : exec, tasks, unpack_a_task, job);
}

/* ---- blocks ---- */

typedef struct block {
    int64_t expert, row, rows; /* row: of a's panel; rows to compute */
    int64_t zero_rows;         /* rows after them to clear (masked layout) */
    int64_t col, cols;
} block;

static int64_t expert_first(const qn_mm_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e] : e * job->expert_rows;
}

static int64_t expert_count(const qn_mm_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e + 1] - job->offsets[e] : (job->expert_rows ? job->expert_rows : job->m);
}

static int64_t row_blocks(const qn_mm_job *job)
{
    int64_t total = 0;
    for (int64_t e = 0; e < job->experts; e++) {
        total += qn_ceil_div(expert_count(job, e), QN_MM_ROWS);
    }
    return total;
}

static block locate(const qn_mm_job *job, int64_t index)
{
    const int64_t blocks = job->experts == 1 ? qn_ceil_div(expert_count(job, 0), QN_MM_ROWS) : row_blocks(job);
    int64_t i = index % blocks, e = 0;
    block b = {.col = index / blocks * QN_MM_COLS};
    b.cols = qn_min_i64(QN_MM_COLS, job->n - b.col);
    while (i >= qn_ceil_div(expert_count(job, e), QN_MM_ROWS)) {
        i -= qn_ceil_div(expert_count(job, e++), QN_MM_ROWS);
    }
    b.expert = e;
    b.row = expert_first(job, e) + i * QN_MM_ROWS;
    b.rows = qn_min_i64(QN_MM_ROWS, expert_count(job, e) - i * QN_MM_ROWS);
    if (job->masked_m) {
        const int64_t valid = qn_max_i64(0, qn_min_i64(b.rows, job->masked_m[e] - i * QN_MM_ROWS));
        b.zero_rows = b.rows - valid;
        b.rows = valid;
    }
    return b;
}

static char *out_row(const qn_mm_job *job, const block *b, int64_t r)
{
    const int64_t row = b->row + r, size = job->out_real == QN_MM_F32 ? 4 : 2;
    const int64_t at = job->expert_rows
                           ? b->expert * job->out_expert + (row - b->expert * job->expert_rows) * job->out_stride
                           : row * job->out_stride;
    return job->out + at + b->col * size;
}

/* Scales of the blocks of K in [k, k + count) for the task's rows and the columns [c0, c0 + cols). */
static void gather_scales(const qn_mm_job *job, const block *b, int64_t c0, int64_t cols, int64_t k, int64_t count,
                          small_arrays *s)
{
    const int64_t first = k / 128, n = qn_ceil_div(count, 128);
    const int64_t local = job->expert_rows ? b->row - b->expert * job->expert_rows : b->row;
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&s->sa[r * QN_MM_SCALES + i],
                   job->sa + b->expert * job->sa_expert + (local + r) * job->sa_row + (first + i) * job->sa_block, 4);
        }
    }
    for (int64_t c = c0; c < c0 + cols; c++) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&s->sb[c * QN_MM_SCALES + i],
                   job->sb + b->expert * job->b_scale_expert + (b->col + c) / 128 * job->sb_row +
                       (first + i) * job->sb_block,
                   4);
        }
    }
}

/* Lanes of columns [c0, c0 + cols) of the block continue with elements [k, k + count). */
static void accumulate(const qn_mm_job *job, const block *b, int64_t c0, int64_t cols, int64_t k, int64_t count,
                       char *panel, char *lanes, small_arrays *s)
{
    const int64_t padded = (count + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    const int64_t a_bytes = job->i8 ? job->i8->a_bytes : 4, b_bytes = job->i8 ? 1 : 4;
    const int64_t lane_bytes = (job->i8 ? job->i8->lanes : job->set->lanes) * 4;
    qn_mm_operand w = job->b;
    w.data = (const char *)w.data + b->expert * job->b_expert;
    const char *src = panel;
    int64_t stride = padded * b_bytes;
    if (job->b_direct) {
        src = (const char *)w.data + (b->col + c0) * w.stride + k * b_bytes;
        stride = w.stride;
    } else if (job->i8) {
        for (int64_t c = 0; c < cols; c++) {
            memcpy(panel + c * stride, (const char *)w.data + (b->col + c0 + c) * w.stride + k, (size_t)count);
            memset(panel + c * stride + count, 0, (size_t)(padded - count));
        }
    } else {
        for (int64_t c = 0; c < cols; c++) {
            job->unpack_b(&w, b->col + c0 + c, k, count, panel + c * stride);
        }
    }
    const char *const a = job->a_panel + b->row * job->a_panel_stride + k * a_bytes;
    char *const at = lanes + c0 * lane_bytes;
    if (job->sa) {
        gather_scales(job, b, c0, cols, k, count, s);
        job->set->tile128((const float *)(const void *)a, job->a_panel_stride, (const float *)(const void *)src, stride,
                          b->rows, cols, padded, s->sa, s->sb + c0 * QN_MM_SCALES, at);
    } else if (job->i8) {
        job->i8->tile(a, job->a_panel_stride, src, stride, b->rows, cols, padded, at);
        if (job->i8->a_bytes == 1 && !job->column_sums) {
            job->i8->tile(s->ones, 0, src, stride, 1, cols, padded, at + b->rows * QN_MM_COLS * lane_bytes);
        }
    } else {
        job->set->tile(a, job->a_panel_stride, src, stride, b->rows, cols, padded, at);
    }
}

static void compute_lanes(const qn_mm_job *job, const block *b, char *panel, char *lanes, small_arrays *s)
{
    const int few = b->rows <= FEW_ROWS && !job->i8;
    const int64_t step = job->i8 ? CHUNK_I8 : (few ? CHUNK_FEW : CHUNK_MANY);
    const int64_t width = few ? FEW_COLS : QN_MM_COLS;
    for (int64_t c = 0; c < b->cols; c += width) {
        for (int64_t k = 0; k < job->k; k += step) {
            accumulate(job, b, c, qn_min_i64(width, b->cols - c), k, qn_min_i64(step, job->k - k), panel, lanes, s);
        }
    }
}

static void prepare_finish(const qn_mm_job *job, const block *b, small_arrays *s)
{
    qn_mm_finish *f = &s->finish;
    f->scaled = job->scaled;
    f->factor = job->factor;
    f->out = job->out_real;
    f->has_bias = job->unpack_bias != NULL;
    for (int64_t c = 0; job->scaled && c < b->cols; c++) {
        memcpy(&f->scale_b[c], (const char *)job->scale_b + (b->col + c) * job->scale_b_stride, 4);
    }
    if (job->unpack_bias) {
        job->unpack_bias(&job->bias, 0, b->col, b->cols, s->reals);
        memcpy(f->bias, s->reals, sizeof f->bias);
    }
}

/* int32 sums of row r to float: zero point and the +128 of unsigned rows taken off, modulo 2^32. */
static void convert_sums(const qn_mm_job *job, const block *b, int64_t r, small_arrays *s)
{
    const int offset = job->i8->a_bytes == 1;
    const uint32_t azp = job->azp ? (uint32_t)job->azp[b->row + r] : 1;
    for (int64_t c = 0; c < b->cols; c++) {
        uint32_t sum = (uint32_t)s->sums[c];
        if (offset) {
            sum -= 128u * (uint32_t)(job->column_sums ? job->column_sums[b->col + c] : s->column_sums[c]);
        }
        if (job->azp_adj) {
            sum -= azp * (uint32_t)job->azp_adj[b->col + c];
        }
        s->reals[c] = (float)(int32_t)sum;
    }
}

static float scale_at(const char *scales, int64_t offset)
{
    float value;
    memcpy(&value, scales + offset, sizeof value);
    return value;
}

/* Block scales are applied to lanes, before these are added up. An infinite scale
 * makes NaN of lanes that are 0 or differ in sign, where the formula scales the sum
 * of the block: such a result is computed again as the formula has it. */
static void repair_infinite(const qn_mm_job *job, const block *b, int64_t r, small_arrays *s)
{
    const int64_t local = (job->expert_rows ? b->row - b->expert * job->expert_rows : b->row) + r;
    const int64_t sa = b->expert * job->sa_expert + local * job->sa_row;
    const float *const a = (const float *)(const void *)(job->a_panel + (b->row + r) * job->a_panel_stride);
    qn_mm_operand w = job->b;
    w.data = (const char *)w.data + b->expert * job->b_expert;
    for (int64_t c = 0; c < b->cols; c++) {
        const int64_t sb = b->expert * job->b_scale_expert + (b->col + c) / 128 * job->sb_row;
        int infinite = 0;
        for (int64_t i = 0; isnan(s->reals[c]) && i * 128 < job->k; i++) {
            infinite |=
                isinf(scale_at(job->sa, sa + i * job->sa_block)) || isinf(scale_at(job->sb, sb + i * job->sb_block));
        }
        if (!infinite) {
            continue;
        }
        double total = 0.0;
        for (int64_t i = 0; i * 128 < job->k; i++) {
            float values[128 + QN_MM_PAD];
            const int64_t count = qn_min_i64(128, job->k - i * 128);
            double sum = 0.0;
            job->unpack_b(&w, b->col + c, i * 128, count, values);
            for (int64_t k = 0; k < count; k++) {
                sum += (double)a[i * 128 + k] * values[k];
            }
            total +=
                (double)scale_at(job->sa, sa + i * job->sa_block) * scale_at(job->sb, sb + i * job->sb_block) * sum;
        }
        s->reals[c] = (float)total;
    }
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const qn_mm_job *job = user;
    const block b = locate(job, index);
    const int64_t row_bytes = b.cols * (job->out_real == QN_MM_F32 ? 4 : 2);
    for (int64_t r = b.rows; r < b.rows + b.zero_rows; r++) {
        memset(out_row(job, &b, r), 0, (size_t)row_bytes);
    }
    if (b.rows == 0) {
        return;
    }
    char *const scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    char *const lanes = scratch + job->lanes_at;
    small_arrays *const s = (small_arrays *)(void *)(scratch + job->small_at);
    const int64_t lane_row = QN_MM_COLS * (job->i8 ? job->i8->lanes : job->set->lanes) * 4;
    memset(lanes, 0, (size_t)((b.rows + 1) * lane_row));
    memset(s->reals, 0, sizeof s->reals);
    memset(&s->finish, 0, sizeof s->finish);
    if (job->i8) {
        memset(s->ones, 1, sizeof s->ones);
    }
    compute_lanes(job, &b, scratch, lanes, s);
    prepare_finish(job, &b, s);
    if (job->i8) {
        job->i8->sum(lanes + b.rows * lane_row, s->column_sums);
    }
    for (int64_t r = 0; r < b.rows; r++) {
        if (job->i8) {
            job->i8->sum(lanes + r * lane_row, s->sums);
            convert_sums(job, &b, r, s);
        } else {
            job->set->sum(lanes + r * lane_row, s->reals);
            if (job->sa) {
                repair_infinite(job, &b, r, s);
            }
        }
        float scale_a = 1.0f;
        if (job->scaled) {
            memcpy(&scale_a, (const char *)job->scale_a + (b.row + r) * job->scale_a_stride, 4);
        }
        job->set->finish(&s->finish, s->reals, scale_a, b.cols, out_row(job, &b, r));
    }
}

/* Rows that no expert owns become zeros. */
static void zero_rows(const qn_mm_job *job, int64_t first, int64_t last)
{
    const int64_t row_bytes = job->n * (job->out_real == QN_MM_F32 ? 4 : 2);
    for (int64_t r = first; r < last; r++) {
        memset(job->out + r * job->out_stride, 0, (size_t)row_bytes);
    }
}

void qn_mm_run(const qn_kernel *kernel, const qn_run_call *call)
{
    qn_mm_job job;
    qn_mm_bind(kernel, call, &job);
    if (job.m == 0 || job.n == 0) {
        return;
    }
    if (job.offsets) {
        zero_rows(&job, 0, qn_min_i64(job.offsets[0], job.m));
        zero_rows(&job, job.offsets[job.experts], job.m);
    }
    const int64_t blocks = row_blocks(&job);
    if (blocks == 0) {
        return;
    }
    char *const workspace = call->workspace;
    prepare_a(&job, workspace, call->exec);
    job.scratch = workspace + a_panel_bytes(kernel->impl, job.m, job.k);
    job.scratch_bytes = scratch_layout(kernel->impl, job.m, &job.lanes_at, &job.small_at);
    qn_parallel_for(call->exec, blocks * qn_ceil_div(job.n, QN_MM_COLS), block_task, &job);
}
