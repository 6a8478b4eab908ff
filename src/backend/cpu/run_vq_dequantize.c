/* vq_dequantize on the CPU, a row a task, with the bits of the reference (src/ref/vq.h): codebooks of aqlm, gptvq and
 * vptq become floats once, whose sums and products are the reference's, in double.
 *
 * Weights of quip_e8p come from its decoder. Transformed ones are kept as rows in
 * double, transformed along K; then tasks of some columns, which a cache line of a
 * row holds, transform them along N and round. */
#include "backend/cpu/run_vq_dequantize.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "ref/slots.h"
#include "ref/vq.h"

#define COLUMNS 8  /* of a task */
#define VECTORS 64 /* of a book's table, likewise */
#define PIECE 8    /* elements of a vector */

typedef struct dequantize_job {
    qn_vq vq;
    const qn_mut_view *w;
    float *table;            /* vectors of the books as floats, in their order */
    int64_t vectors, vector; /* of the table, elements of one; vptq: the residual's behind the others */
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

/* Vectors of the books, and how long they are; 0 where the decoder has none. */
static int64_t vectors_of(const qn_vq *vq, int64_t *vector)
{
    switch (vq->format) {
    case QN_VQ_AQLM: *vector = vq->in_group; return (vq->codebooks << vq->bits) * vq->out_group;
    case QN_VQ_GPTVQ: *vector = 4; return qn_ceil_div(vq->n, QN_VQ_TILE) * qn_ceil_div(vq->k, QN_VQ_TILE) * 256;
    case QN_VQ_VPTQ: *vector = vq->vector_len; return vq->groups * (vq->entries + vq->res_entries);
    default: *vector = 0; return 0;
    }
}

static size_t table_bytes(const qn_vq *vq)
{
    int64_t vector;
    const size_t vectors = (size_t)vectors_of(vq, &vector);
    return qn_size_pad(qn_size_mul(qn_size_mul(vectors, (size_t)vector), sizeof(float)));
}

static void put(const dequantize_job *job, int64_t row, int64_t column, double value)
{
    const float rounded = (float)value;
    memcpy((char *)job->w->data + row * job->w->strides[0] + column * (int64_t)sizeof rounded, &rounded,
           sizeof rounded);
}

static void table_task(void *user, int64_t index, int32_t thread)
{
    const dequantize_job *job = user;
    const qn_view *t = job->vq.tensor;
    const int64_t v = job->vector, main = job->vq.groups * job->vq.entries;
    (void)thread;
    for (int64_t i = index * VECTORS; i < qn_min_i64(job->vectors, (index + 1) * VECTORS); i++) {
        if (job->vq.format != QN_VQ_VPTQ) {
            qn_vq_values(&t[QN_VQ_CODEBOOKS], i * v, v, job->table + i * v);
        } else if (i < main) {
            qn_vq_values(&t[QN_VQ_CENTROIDS], i * v, v, job->table + i * v);
        } else {
            qn_vq_values(&t[QN_VQ_RES_CENTROIDS], (i - main) * v, v, job->table + i * v);
        }
    }
}

/* ---- rows ---- */

/* Elements j on of a vector, as many as compilers make vectors of: the sum of `books` vectors, times a scale. */
static inline void put_piece(const float *const *entry, const int64_t books, int64_t j, double scale,
                             float *restrict out)
{
    double sum[PIECE] = {0.0};
    for (int64_t c = 0; c < books; c++) {
        const float *const from = entry[c] + j;
        for (int i = 0; i < PIECE; i++) {
            sum[i] += (double)from[i];
        }
    }
    for (int i = 0; i < PIECE; i++) {
        out[j + i] = (float)(sum[i] * scale);
    }
}

static void put_sum(const float *const *entry, int64_t books, int64_t v, double scale, float *out)
{
    int64_t j = 0;
    for (; j + PIECE <= v; j += PIECE) {
        if (books == 2) {
            put_piece(entry, 2, j, scale, out);
        } else {
            put_piece(entry, books, j, scale, out);
        }
    }
    for (; j < v; j++) {
        double sum = 0.0;
        for (int64_t c = 0; c < books; c++) {
            sum += (double)entry[c][j];
        }
        out[j] = (float)(sum * scale);
    }
}

static void aqlm_row(const dequantize_job *job, int64_t row, float *out)
{
    const qn_vq *vq = &job->vq;
    const int64_t r = row / vq->out_group, within = row % vq->out_group, v = job->vector;
    const double scale = qn_vq_value(&vq->tensor[QN_VQ_SCALES], r, 1.0);
    for (int64_t g = 0; g < vq->k / v; g++, out += v) {
        uint32_t codes[QN_VQ_MAX_BOOKS];
        const float *entry[QN_VQ_MAX_BOOKS];
        qn_vq_aqlm_group(vq, r, g, codes);
        for (int64_t c = 0; c < vq->codebooks; c++) {
            entry[c] = job->table + (((c << vq->bits) + codes[c]) * vq->out_group + within) * v;
        }
        put_sum(entry, vq->codebooks, v, scale, out);
    }
}

/* A product of two floats is a double's, so rounding it once is what a float's does. */
static void gptvq_row(const dequantize_job *job, int64_t row, float *restrict out)
{
    const qn_vq *vq = &job->vq;
    const qn_view *view = &vq->tensor[QN_VQ_CODES];
    const uint8_t *const codes = (const uint8_t *)view->data + row * view->strides[0];
    const int64_t tiles = qn_ceil_div(vq->k, QN_VQ_TILE), first = row / QN_VQ_TILE * tiles;
    for (int64_t t = 0; t < tiles; t++) {
        const float scale = (float)qn_vq_value(&vq->tensor[QN_VQ_CODEBOOK_SCALES], first + t, 1.0);
        const float *const book = job->table + (first + t) * 256 * 4;
        const int64_t end = qn_min_i64(vq->k, (t + 1) * QN_VQ_TILE);
        for (int64_t i = t * QN_VQ_TILE; i < end; i += 4) {
            const float *const entry = book + codes[i / 4] * 4;
            for (int64_t j = 0; j < 4; j++) {
                out[i + j] = scale * entry[j];
            }
        }
    }
}

/* The rows that vectors lie across, without outliers. */
static void vptq_task(void *user, int64_t r, int32_t thread)
{
    const dequantize_job *job = user;
    const qn_vq *vq = &job->vq;
    const int64_t v = job->vector, rows = qn_min_i64(v, vq->n - r * v);
    const float *const rest = job->table + vq->groups * vq->entries * v;
    (void)thread;
    for (int64_t p = 0; p < vq->k; p++) {
        const int64_t g = p / vq->group_size, i = p % vq->group_size, column = qn_vq_vptq_column(vq, p);
        const double scale = qn_vq_value(&vq->tensor[QN_VQ_WEIGHT_SCALE], column, 1.0);
        const double shift = qn_vq_value(&vq->tensor[QN_VQ_WEIGHT_BIAS], column, 0.0);
        uint32_t main, residual;
        qn_vq_vptq_index(vq, g, r, i, &main, &residual);
        const float *const first = job->table + (g * vq->entries + main) * v;
        const float *const second = vq->res_entries ? rest + (g * vq->res_entries + residual) * v : NULL;
        for (int64_t j = 0; j < rows; j++) {
            const double sum = (double)first[j] + (second ? (double)second[j] : 0.0);
            put(job, r * v + j, column, scale * sum + shift);
        }
    }
}

static void row_task(void *user, int64_t row, int32_t thread)
{
    const dequantize_job *job = user;
    double *const own = (double *)(void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    float *const out = (float *)(void *)((char *)job->w->data + row * job->w->strides[0]);
    if (job->transformed) {
        qn_vq_input_row(&job->vq, row, job->rows + row * job->vq.k, own);
    } else if (job->vq.format == QN_VQ_AQLM) {
        aqlm_row(job, row, out);
    } else if (job->vq.format == QN_VQ_GPTVQ) {
        gptvq_row(job, row, out);
    } else {
        const double scale = qn_vq_value(&job->vq.tensor[QN_VQ_WSCALE], 0, 1.0);
        qn_vq_decode_row(&job->vq, row, own);
        for (int64_t i = 0; i < job->vq.k; i++) {
            put(job, row, i, own[i] * scale);
        }
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
    const size_t own = qn_size_add(qn_size_mul((size_t)threads, thread_bytes(&vq)), table_bytes(&vq));
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
    job.table = call->workspace;
    job.vectors = vectors_of(&job.vq, &job.vector);
    job.rows = (double *)(void *)((char *)call->workspace + table_bytes(&job.vq));
    job.scratch = (char *)job.rows + (job.vq.format == QN_VQ_QUIP_E8P ? rows_bytes(&job.vq) : 0);
    job.scratch_bytes = thread_bytes(&job.vq);
    qn_parallel_for(call->exec, qn_ceil_div(job.vectors, VECTORS), table_task, &job);
    if (job.vq.format == QN_VQ_VPTQ && job.vq.outlier_size == 0) {
        qn_parallel_for(call->exec, qn_ceil_div(job.vq.n, job.vector), vptq_task, &job);
        return;
    }
    qn_parallel_for(call->exec, job.vq.n, row_task, &job);
    if (job.transformed) {
        qn_parallel_for(call->exec, qn_ceil_div(job.vq.k, COLUMNS), columns_task, &job);
    }
}
