/* Row-wise operators that give floats: silu_mul, rmsnorm, rope. The operations
 * are those of the reference in f32 or double (kernels/common/rows.h). */
#include "backend/cpu/run_rows.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define CHUNK 2048 /* elements of silu_mul done together */

typedef struct rows_job {
    const qn_rows_set *set;
    const qn_op_desc *desc;
    const qn_args *args;
    const qn_view *x;
    const qn_mut_view *y;
    int64_t rows, k, per_task;
    qn_mm_real real, out;
    void (*row)(const struct rows_job *job, int64_t row, float *scratch);
    int stream;
    char *scratch;
    size_t scratch_bytes;
    const float *weights; /* rmsnorm: as f32 */
    const double *turns;  /* rope: theta^(-2i/D), / factors[i] */
} rows_job;

const char *qn_rows_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

qn_status qn_rows_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                       qn_error *error)
{
    (void)ctx;
    (void)desc;
    (void)error;
    const qn_rows_impl *const impl = kernel->impl;
    *state = (void *)(impl->other && !qn_cpu_is_intel() ? impl->other : impl->set);
    return QN_OK;
}

static char *out_at(const rows_job *job, int64_t m)
{
    return (char *)job->y->data + m * job->y->strides[0];
}

/* n elements as f32: where they are, or in scratch. */
static const float *as_floats(const rows_job *job, const void *x, int64_t n, float *scratch)
{
    if (job->real == QN_MM_F32) {
        return x;
    }
    job->set->load[job->real](x, n, scratch);
    return scratch;
}

static void silu_row(const rows_job *job, int64_t m, float *scratch)
{
    const int64_t size = qn_rows_real_bytes(job->real), out_size = qn_rows_real_bytes(job->out);
    const int once = job->out == QN_MM_F32 || (job->out == QN_MM_BF16 && job->real == QN_MM_BF16);
    const char *const x = (const char *)job->x->data + m * job->x->strides[0];
    void *const packed = scratch + CHUNK;
    for (int64_t c = 0; c < job->k; c += CHUNK) {
        const int64_t n = qn_min_i64(CHUNK, job->k - c);
        const int64_t ahead =
            qn_rows_ahead(m, job->rows, job->x->strides[0], job->k * size, c * size, n * size + QN_ROWS_AHEAD_BYTES);
        const char *const gate = x + c * size, *const up = gate + job->k * size;
        void *const out = out_at(job, m) + c * out_size;
        const int past = job->stream && once && qn_rows_aligned(out), copied = job->stream && !past;
        void *const to = copied ? packed : out;
        float *const v = once ? to : scratch;
        if (once && job->out == QN_MM_BF16) {
            job->set->silu_bf16(gate, up, n, ahead, past, to);
        } else {
            job->set->silu_mul[job->real](gate, up, n, ahead, past, v);
        }
        if (!once) {
            job->set->store[job->out](v, n, to);
        }
        if (copied) {
            job->set->stream(out, packed, (size_t)(n * out_size));
        }
    }
}

static void rmsnorm_row(const rows_job *job, int64_t m, float *scratch)
{
    const float *const x = as_floats(job, (const char *)job->x->data + m * job->x->strides[0], job->k, scratch);
    const int direct = job->out == QN_MM_F32, past = job->stream && direct && qn_rows_aligned(out_at(job, m));
    float *const v = direct ? (float *)(void *)out_at(job, m) : scratch + qn_size_pad((size_t)job->k);
    const int64_t row = job->k * 4, next = qn_rows_ahead(m, job->rows, job->x->strides[0], row, 0, row);
    const double mean = job->set->squares(x, job->k) / (double)job->k;
    const double factor = 1.0 / sqrt(mean + (double)job->desc->attr[QN_ATTR_EPS].f);
    job->set->scale(x, factor, job->weights, job->k, job->real == QN_MM_F32 ? next : 0, past, v);
    if (job->out != QN_MM_F32) {
        job->set->store[job->out](v, job->k, out_at(job, m));
    }
}

/* A row is a token: all its heads share the angles. scratch: a head, cosines, sines. */
static void rope_row(const rows_job *job, int64_t m, float *scratch)
{
    const int64_t half = job->k / 2, heads = job->x->shape.dims[1];
    const int pairs = job->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED;
    float *const cosines = scratch + qn_size_pad((size_t)job->k), *const sines = cosines + half;
    int32_t position;
    memcpy(&position, (const char *)job->args->in[QN_ACT_POS].data + m * 4, 4);
    job->set->angles(position, job->turns, half, cosines, sines);
    for (int64_t h = 0; h < heads; h++) {
        const char *const head =
            (const char *)job->x->data + m * job->x->strides[0] + (heads > 1 ? h * job->x->strides[1] : 0);
        const float *const x = as_floats(job, head, job->k, scratch);
        float *const y = (float *)(void *)(out_at(job, m) + (heads > 1 ? h * job->y->strides[1] : 0));
        const int past = job->stream && qn_rows_aligned(y) && qn_rows_aligned(y + half);
        if (pairs) {
            job->set->rotate(x, x + 1, cosines, sines, half, 2, 0, y, y + 1);
        } else {
            job->set->rotate(x, x + half, cosines, sines, half, 1, past, y, y + half);
        }
    }
}

static void rows_task(void *user, int64_t index, int32_t thread)
{
    const rows_job *job = user;
    float *const scratch = (float *)(void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    const int64_t last = qn_min_i64(job->rows, (index + 1) * job->per_task);
    for (int64_t m = index * job->per_task; m < last; m++) {
        job->row(job, m, scratch);
    }
    if (job->stream) {
        job->set->fence();
    }
}

static int64_t row_elements(const qn_op_desc *desc)
{
    const qn_shape *x = &desc->in[0];
    const int64_t last = x->dims[x->ndim - 1];
    return desc->op == QN_OP_SILU_MUL ? last / 2 : last;
}

/* A thread: two chunks of silu, a row and its result, or a head and its angles. */
static size_t thread_bytes(const qn_op_desc *desc)
{
    if (desc->op == QN_OP_SILU_MUL) {
        return 2 * CHUNK * sizeof(float);
    }
    return qn_size_mul(qn_size_pad((size_t)row_elements(desc)), 2 * sizeof(float));
}

/* Before the threads: weights or angles. */
static size_t shared_bytes(const qn_op_desc *desc)
{
    return desc->op == QN_OP_SILU_MUL ? 0 : qn_size_mul(qn_size_pad((size_t)row_elements(desc)), sizeof(float));
}

size_t qn_rows_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    return qn_size_add(shared_bytes(desc), qn_size_mul((size_t)threads, thread_bytes(desc)));
}

static void prepare_rmsnorm(rows_job *job, float *shared)
{
    const qn_view *w = &job->args->in[QN_ACT_W];
    job->weights = w->data;
    if (w->shape.format != QN_F32) {
        job->set->load[qn_rows_real(w->shape.format)](w->data, job->k, shared);
        job->weights = shared;
    }
    job->row = rmsnorm_row;
}

/* Powers of one root: each product is off by half an ulp of double at most. */
static void prepare_rope(rows_job *job, double *turns)
{
    const double step = pow((double)job->desc->attr[QN_ATTR_THETA].f, -2.0 / (double)job->k);
    const float *factors = qn_op_has(job->desc, QN_ACT_FACTORS) ? job->args->in[QN_ACT_FACTORS].data : NULL;
    double turn = 1.0;
    for (int64_t i = 0; i < job->k / 2; i++) {
        turns[i] = factors ? turn / (double)factors[i] : turn;
        turn *= step;
    }
    job->turns = turns;
    job->row = rope_row;
}

void qn_rows_run(const qn_kernel *kernel, const qn_run_call *call)
{
    rows_job job = {.set = qn_rows_set_of(kernel, call->state),
                    .desc = call->desc,
                    .args = call->args,
                    .x = &call->args->in[QN_ACT_X],
                    .y = &call->args->out[QN_ACT_OUT_Y],
                    .rows = call->args->in[0].shape.dims[0],
                    .k = row_elements(call->desc),
                    .row = silu_row};
    if (job.k == 0 || job.rows == 0) {
        return;
    }
    job.real = qn_rows_real(job.x->shape.format);
    job.out = qn_rows_real(job.y->shape.format);
    job.scratch = (char *)call->workspace + shared_bytes(call->desc);
    job.scratch_bytes = thread_bytes(call->desc);
    int64_t row_bytes = qn_min_i64(job.k, QN_ROWS_TASK_BYTES) * 2 * qn_rows_real_bytes(job.real);
    int64_t heads = 1;
    if (job.desc->op == QN_OP_RMSNORM) {
        prepare_rmsnorm(&job, call->workspace);
    } else if (job.desc->op == QN_OP_ROPE) {
        prepare_rope(&job, call->workspace);
        heads = qn_max_i64(1, job.x->shape.dims[1]);
        row_bytes = qn_min_i64(row_bytes * heads, QN_ROWS_TASK_BYTES);
    }
    job.stream = job.rows > QN_ROWS_STREAM_BYTES / qn_rows_real_bytes(job.out) / job.k / heads;
    job.per_task = qn_rows_per_task(row_bytes);
    if (job.stream) {
        job.per_task = qn_rows_per_far_task(job.per_task, job.rows, qn_exec_threads(call->exec));
    }
    qn_parallel_for(call->exec, qn_ceil_div(job.rows, job.per_task), rows_task, &job);
}
