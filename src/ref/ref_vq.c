/* vq_dequantize, vq_mm: weights in double as src/ref/vq_decode.c has them, rounded
 * to f32 once; products and sums in double, one rounding.
 *
 * quip_e8p with SU or SV keeps its codes in a transformed space:
 *
 *     y = SV . Hout(Wscale Wq Hin^T(SU . x / scaleWH)),   Hin where SU is given, Hout where SV is
 *
 * all in double, so vq_mm does not go through rounded weights there. */
#include <math.h>

#include "base/checked.h"
#include "format/lattice.h"
#include "ref/ref_common.h"
#include "ref/vq.h"

static int given(const qn_vq *vq, int32_t slot)
{
    return vq->tensor[slot].shape.format != QN_FORMAT_NONE;
}

static double dot(const float *a, const float *b, int64_t count)
{
    double part[8] = {0.0};
    for (int64_t i = 0; i < count; i++) {
        part[i % 8] += (double)a[i] * (double)b[i];
    }
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

/* SU . / scaleWH of an input, or of a column of weights. */
static double input_scale(const qn_vq *vq, int64_t i)
{
    return qn_vq_value(&vq->tensor[QN_VQ_SU], i, 1.0) / qn_vq_value(&vq->tensor[QN_VQ_SCALE_WH], i, 1.0);
}

static double output_scale(const qn_vq *vq, int64_t i)
{
    return qn_vq_value(&vq->tensor[QN_VQ_SV], i, 1.0) * qn_vq_value(&vq->tensor[QN_VQ_WSCALE], 0, 1.0);
}

void qn_vq_input_row(const qn_vq *vq, int64_t row, double *value, double *scratch)
{
    qn_vq_decode_row(vq, row, value);
    if (given(vq, QN_VQ_SU)) {
        qn_hadamard(value, vq->k, 0, scratch);
    }
}

void qn_vq_output_column(const qn_vq *vq, const double *rows, int64_t i, double *column, double *scratch)
{
    const double scale = input_scale(vq, i);
    for (int64_t row = 0; row < vq->n; row++) {
        column[row] = rows[row * vq->k + i];
    }
    if (given(vq, QN_VQ_SV)) {
        qn_hadamard(column, vq->n, 0, scratch);
    }
    for (int64_t row = 0; row < vq->n; row++) {
        column[row] = column[row] * output_scale(vq, row) * scale;
    }
}

/* values: [n][k], then max(n, k) and n numbers of scratch. */
static void transformed_weights(const qn_vq *vq, const qn_mut_view *w, double *values)
{
    double *const scratch = values + vq->n * vq->k, *const column = scratch + qn_max_i64(vq->n, vq->k);
    for (int64_t row = 0; row < vq->n; row++) {
        qn_vq_input_row(vq, row, values + row * vq->k, scratch);
    }
    for (int64_t i = 0; i < vq->k; i++) {
        qn_vq_output_column(vq, values, i, column, scratch);
        for (int64_t row = 0; row < vq->n; row++) {
            ref_put_f32(ref_out_row(w, row), i, (float)column[row]);
        }
    }
}

void qn_ref_vq_dequantize(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_mut_view *w = &args->out[QN_VQ_OUT_W];
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    if (vq.n == 0 || vq.k == 0) {
        return;
    }
    if (qn_vq_transformed(&vq)) {
        transformed_weights(&vq, w, scratch);
        return;
    }
    double *const values = scratch;
    const double scale = qn_vq_value(&vq.tensor[QN_VQ_WSCALE], 0, 1.0);
    for (int64_t row = 0; row < vq.n; row++) {
        qn_vq_decode_row(&vq, row, values);
        for (int64_t i = 0; i < vq.k; i++) {
            ref_put_f32(ref_out_row(w, row), i, (float)(values[i] * scale));
        }
    }
}

static void plain_mm(const qn_vq *vq, const qn_args *args, double *values)
{
    const qn_view *x = &args->in[QN_VQMM_X];
    const qn_mut_view *y = &args->out[QN_MM_OUT_D];
    const int64_t rows = x->shape.dims[0], k = vq->k;
    float *const left = (float *)(values + k), *const right = left + rows * k;
    const double scale = qn_vq_value(&vq->tensor[QN_VQ_WSCALE], 0, 1.0);
    for (int64_t m = 0; m < rows; m++) {
        ref_decode(x->shape.format, ref_row(x, m), k, left + m * k);
    }
    for (int64_t n = 0; n < vq->n; n++) {
        const double bias = (double)ref_vector_at(&args->in[QN_VQMM_BIAS], n);
        if (k > 0) {
            qn_vq_decode_row(vq, n, values);
        }
        for (int64_t i = 0; i < k; i++) {
            right[i] = (float)(values[i] * scale);
        }
        for (int64_t m = 0; m < rows; m++) {
            ref_store(y->shape.format, ref_out_row(y, m), n, dot(left + m * k, right, k) + bias);
        }
    }
}

/* values: a row of weights, max(n, k) of scratch, inputs [m][k], sums [m][n], one row of floats. */
static void transformed_mm(const qn_vq *vq, const qn_args *args, double *values)
{
    const qn_view *x = &args->in[QN_VQMM_X];
    const qn_mut_view *y = &args->out[QN_MM_OUT_D];
    const int64_t rows = x->shape.dims[0], n = vq->n, k = vq->k;
    double *const scratch = values + k, *const left = scratch + qn_max_i64(n, k), *const sums = left + rows * k;
    float *const row = (float *)(sums + rows * n);
    for (int64_t m = 0; m < rows && k > 0; m++) {
        ref_decode(x->shape.format, ref_row(x, m), k, row);
        for (int64_t i = 0; i < k; i++) {
            left[m * k + i] = (double)row[i] * input_scale(vq, i);
        }
        if (given(vq, QN_VQ_SU)) {
            qn_hadamard(left + m * k, k, 1, scratch);
        }
    }
    for (int64_t r = 0; r < n; r++) {
        if (k > 0) {
            qn_vq_decode_row(vq, r, values);
        }
        for (int64_t m = 0; m < rows; m++) {
            double sum = 0.0;
            for (int64_t i = 0; i < k; i++) {
                sum += values[i] * left[m * k + i];
            }
            sums[m * n + r] = sum;
        }
    }
    for (int64_t m = 0; m < rows; m++) {
        if (given(vq, QN_VQ_SV) && n > 0) {
            qn_hadamard(sums + m * n, n, 0, scratch);
        }
        for (int64_t r = 0; r < n; r++) {
            const double bias = (double)ref_vector_at(&args->in[QN_VQMM_BIAS], r);
            ref_store(y->shape.format, ref_out_row(y, m), r, sums[m * n + r] * output_scale(vq, r) + bias);
        }
    }
}

void qn_ref_vq_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    if (qn_vq_transformed(&vq)) {
        transformed_mm(&vq, args, scratch);
    } else {
        plain_mm(&vq, args, scratch);
    }
}
