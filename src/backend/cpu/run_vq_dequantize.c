/* vq_dequantize on the CPU: the reference's decoder (src/ref/vq.h), a row a task, so that bits are the reference's.
 *
 * Transformed weights of quip_e8p are kept as rows in double, transformed along K;
 * then tasks of some columns, which a cache line of a row holds, transform them
 * along N and round. */
#include "backend/cpu/run_vq_dequantize.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "ref/slots.h"
#include "ref/vq.h"

#define COLUMNS 8 /* of a task */

typedef struct dequantize_job {
    qn_vq vq;
    const qn_mut_view *w;
    int transformed;
    double *rows; /* [n][k], transformed ones */
    char *scratch;
    size_t scratch_bytes; /* of a thread */
} dequantize_job;

static size_t thread_bytes(const qn_vq *vq)
{
    return qn_size_pad(qn_size_mul(qn_size_add((size_t)vq->n, (size_t)vq->k), 2 * sizeof(double)));
}

static size_t rows_bytes(const qn_vq *vq)
{
    return qn_size_pad(qn_size_mul(qn_size_mul((size_t)vq->n, (size_t)vq->k), sizeof(double)));
}

static void put(const dequantize_job *job, int64_t row, int64_t column, double value)
{
    const float rounded = (float)value;
    memcpy((char *)job->w->data + row * job->w->strides[0] + column * (int64_t)sizeof rounded, &rounded,
           sizeof rounded);
}

static void row_task(void *user, int64_t row, int32_t thread)
{
    const dequantize_job *job = user;
    double *const own = (double *)(void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    if (job->transformed) {
        qn_vq_input_row(&job->vq, row, job->rows + row * job->vq.k, own);
        return;
    }
    const double scale = qn_vq_value(&job->vq.tensor[QN_VQ_WSCALE], 0, 1.0);
    qn_vq_decode_row(&job->vq, row, own);
    for (int64_t i = 0; i < job->vq.k; i++) {
        put(job, row, i, own[i] * scale);
    }
}

static void columns_task(void *user, int64_t index, int32_t thread)
{
    const dequantize_job *job = user;
    const int64_t last = qn_min_i64(job->vq.k, (index + 1) * COLUMNS);
    double *const column = (double *)(void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    for (int64_t i = index * COLUMNS; i < last; i++) {
        qn_vq_output_column(&job->vq, job->rows, i, column, column + job->vq.n);
        for (int64_t row = 0; row < job->vq.n; row++) {
            put(job, row, i, column[row]);
        }
    }
}

const char *qn_vq_dequantize_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

size_t qn_vq_dequantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    qn_vq vq;
    qn_vq_describe(desc, -1, -1, &vq);
    const size_t own = qn_size_mul((size_t)threads, thread_bytes(&vq));
    return vq.format == QN_VQ_QUIP_E8P ? qn_size_add(own, rows_bytes(&vq)) : own;
}

void qn_vq_dequantize_run(const qn_kernel *kernel, const qn_run_call *call)
{
    (void)kernel;
    dequantize_job job = {.w = &call->args->out[QN_VQ_OUT_W]};
    qn_vq_bind(call->desc, call->args, &job.vq);
    if (job.vq.n == 0 || job.vq.k == 0) {
        return;
    }
    job.transformed = qn_vq_transformed(&job.vq);
    job.rows = call->workspace;
    job.scratch = (char *)call->workspace + (job.vq.format == QN_VQ_QUIP_E8P ? rows_bytes(&job.vq) : 0);
    job.scratch_bytes = thread_bytes(&job.vq);
    qn_parallel_for(call->exec, job.vq.n, row_task, &job);
    if (job.transformed) {
        qn_parallel_for(call->exec, qn_ceil_div(job.vq.k, COLUMNS), columns_task, &job);
    }
}
