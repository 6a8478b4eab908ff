/* dense_mm on weights read as they are stored: f16 and, at level scalar, the GGUF block formats,
 * whose blocks run along K and mix several bits of scale with the codes.
 *
 * Grid: blocks of QN_MM_ROWS rows by QN_MM_COLS columns, fixed by the shapes and
 * never by the number of threads; consecutive tasks share weights. With few rows
 * a task walks FEW_COLS columns at a time along the whole of K, so that weights
 * stream; with many it unpacks a panel of all its columns, a chunk of K at a
 * time, and uses it for all its rows. Both give the same bits (kernels/common/mm.h). */
#include "backend/cpu/run_dense.h"

#include <string.h>

#include "backend/cpu/mm_fragment.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

#define FEW_ROWS 8
#define FEW_COLS 4
#define CHUNK_FEW 1024
#define CHUNK_MANY 512
#define A_ROWS 16
#define SERIAL_ELEMENTS 32768 /* activations worth more than one thread */

_Static_assert(CHUNK_FEW % QN_MM_CHAIN == 0 && CHUNK_MANY % QN_MM_CHAIN == 0, "chains are whole");

typedef struct small_arrays {
    float reals[QN_MM_COLS], bias[QN_MM_COLS + QN_MM_PAD];
    qn_mm_finish finish;
} small_arrays;

typedef struct dense_job {
    const qn_mm_f32_set *set;
    qn_mm_unpack_fn unpack_a, unpack_b, unpack_bias; /* unpack_bias NULL: no bias */
    int64_t m, n, k, k_pad;
    qn_mm_operand a, b, bias;
    char *a_panel; /* [m][k_pad] floats, or a itself */
    int64_t a_panel_stride;
    qn_mm_real out_real;
    char *out;
    int64_t out_stride;
    char *scratch; /* of thread 0 */
    size_t scratch_bytes, lanes_at, small_at;
} dense_job;

const char *qn_dense_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_dense_impl *impl = kernel->impl;
    return desc->in[QN_DMM_B].format == impl->weight ? NULL : "made for another weight format";
}

/* ---- memory ---- */

static size_t scratch_layout(const qn_dense_impl *impl, int64_t rows, size_t *lanes_at, size_t *small_at)
{
    const int64_t most = qn_min_i64(rows, QN_MM_ROWS);
    *lanes_at = rows <= FEW_ROWS ? (size_t)FEW_COLS * CHUNK_FEW * 4 : (size_t)QN_MM_COLS * CHUNK_MANY * 4;
    *small_at = *lanes_at + (size_t)(most * QN_MM_COLS * impl->set->lanes * 4);
    return qn_align_up(*small_at + sizeof(small_arrays), 64);
}

static size_t a_panel_bytes(int64_t rows, int64_t k)
{
    return qn_size_pad(qn_size_mul((size_t)rows, qn_size_mul(qn_size_pad((size_t)k), 4)));
}

size_t qn_dense_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    size_t lanes_at, small_at;
    return qn_size_add(a_panel_bytes(m, desc->in[QN_DMM_X].dims[1]),
                       (size_t)threads * scratch_layout(kernel->impl, m, &lanes_at, &small_at));
}

/* ---- activations ---- */

static void unpack_a_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const dense_job *job = user;
    const int64_t last = qn_min_i64(job->m, (index + 1) * A_ROWS);
    for (int64_t r = index * A_ROWS; r < last; r++) {
        job->unpack_a(&job->a, r, 0, job->k, job->a_panel + r * job->a_panel_stride);
    }
}

static void prepare_a(dense_job *job, qn_format format, char *panel, const qn_exec *exec)
{
    if (format == QN_F32 && job->k % QN_MM_PAD == 0) {
        job->a_panel = (char *)(uintptr_t)job->a.data;
        job->a_panel_stride = job->a.stride;
        return;
    }
    job->a_panel = panel;
    job->a_panel_stride = job->k_pad * 4;
    const int serial = job->m * job->k <= SERIAL_ELEMENTS;
    qn_parallel_for(serial ? NULL : exec, qn_ceil_div(job->m, A_ROWS), unpack_a_task, job);
}

/* ---- blocks ---- */

typedef struct block {
    int64_t row, rows, col, cols;
} block;

/* Lanes of columns [c0, c0 + cols) of the block continue with elements [k, k + count). */
static void accumulate(const dense_job *job, const block *b, int64_t c0, int64_t cols, int64_t k, int64_t count,
                       char *panel, char *lanes)
{
    const int64_t padded = (count + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    for (int64_t c = 0; c < cols; c++) {
        job->unpack_b(&job->b, b->col + c0 + c, k, count, panel + c * padded * 4);
    }
    job->set->tile(job->a_panel + b->row * job->a_panel_stride + k * 4, job->a_panel_stride, panel, padded * 4,
                   b->rows, cols, padded, lanes + c0 * job->set->lanes * 4);
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const dense_job *job = user;
    const int64_t blocks = qn_ceil_div(job->m, QN_MM_ROWS);
    block b = {.row = index % blocks * QN_MM_ROWS, .col = index / blocks * QN_MM_COLS};
    b.rows = qn_min_i64(QN_MM_ROWS, job->m - b.row);
    b.cols = qn_min_i64(QN_MM_COLS, job->n - b.col);
    char *const scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    char *const lanes = scratch + job->lanes_at;
    small_arrays *const s = (small_arrays *)(void *)(scratch + job->small_at);
    const int64_t lane_row = QN_MM_COLS * job->set->lanes * 4;
    const int few = b.rows <= FEW_ROWS;
    const int64_t step = few ? CHUNK_FEW : CHUNK_MANY, width = few ? FEW_COLS : QN_MM_COLS;
    memset(lanes, 0, (size_t)(b.rows * lane_row));
    memset(s, 0, sizeof *s);
    for (int64_t c = 0; c < b.cols; c += width) {
        for (int64_t k = 0; k < job->k; k += step) {
            accumulate(job, &b, c, qn_min_i64(width, b.cols - c), k, qn_min_i64(step, job->k - k), scratch, lanes);
        }
    }
    s->finish.unit = 1.0f;
    s->finish.factor = 1.0f;
    s->finish.out = job->out_real;
    if (job->unpack_bias) {
        s->finish.bias = s->bias;
        job->unpack_bias(&job->bias, 0, b.col, b.cols, s->bias);
    }
    for (int64_t r = 0; r < b.rows; r++) {
        job->set->sum(lanes + r * lane_row, s->reals);
        char *const out = job->out + (b.row + r) * job->out_stride + b.col * (job->out_real == QN_MM_F32 ? 4 : 2);
        job->set->finish(&s->finish, (qn_mm_sums){s->reals, QN_MM_PIECE}, 1.0f, 0, b.cols, out);
    }
}

static qn_mm_operand operand(const qn_view *view)
{
    const qn_format_row *row = qn_format_get_row(view->shape.format);
    return (qn_mm_operand){.data = view->data,
                           .stride = view->shape.ndim > 1 ? view->strides[0] : 0,
                           .decode = row->decode,
                           .block_elements = row->info.block_elements,
                           .block_bytes = row->info.block_bytes};
}

void qn_dense_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_dense_impl *impl = kernel->impl;
    const qn_view *x = &call->args->in[QN_DMM_X], *bias = &call->args->in[QN_DMM_BIAS];
    const qn_mut_view *out = &call->args->out[QN_MM_OUT_D];
    dense_job job = {.set = impl->set, .m = call->sizes.m, .n = call->sizes.n, .k = call->sizes.k};
    if (job.m == 0 || job.n == 0) {
        return;
    }
    job.k_pad = (job.k + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    job.a = operand(x);
    job.b = operand(&call->args->in[QN_DMM_B]);
    job.unpack_a = impl->set->unpack[qn_mm_fragment_of(x->shape.format)];
    job.unpack_b = impl->set->unpack[impl->fragment];
    if (call->desc->in[QN_DMM_BIAS].format != QN_FORMAT_NONE) {
        job.bias = operand(bias);
        job.unpack_bias = impl->set->unpack[qn_mm_fragment_of(bias->shape.format)];
    }
    job.out = out->data;
    job.out_stride = out->strides[0];
    job.out_real = out->shape.format == QN_F32 ? QN_MM_F32 : (out->shape.format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
    char *const workspace = call->workspace;
    prepare_a(&job, x->shape.format, workspace, call->exec);
    job.scratch = workspace + a_panel_bytes(job.m, job.k);
    job.scratch_bytes = scratch_layout(impl, job.m, &job.lanes_at, &job.small_at);
    qn_parallel_for(call->exec, qn_ceil_div(job.m, QN_MM_ROWS) * qn_ceil_div(job.n, QN_MM_COLS), block_task, &job);
}
