/* The matmuls d[M,N] = x[M,K] b[N,K]^T.
 *
 * Products of two decoded elements are exact in double, and so are their sums
 * over the float8, float4 and int8 operands of any K below 2^17; sums over
 * float operands round to double. What follows:
 *
 *   scaled_mm        acc -> f32, t = acc * scale_b, d = t * scale_a or fma(scale_a, t, bias), each an f32
 *                    operation, then to the output type. int8: acc is int32 and wraps; with zero points
 *                    acc - azp[m] * azp_adj[n] (azp 1 where absent), wrapping too, before the f32 steps.
 *   block_scaled_mm  sum over blocks of 128 of K of scale_a * scale_b * partial in double, one rounding
 *   nvfp4_mm         sum over blocks of 16 of scale * partial in double, divided by the global scales, + bias
 *   mxfp4_mm         sum over blocks of 32 of 2^e * partial in double, + bias
 *                    both: times the scale of the row where x is int8 or e4m3, before the bias
 *   dense_mm         sum in double, + bias
 *
 * One rounding, to nearest even, from double to the output type. K = 0 gives
 * the bias, or 0. */
#include <math.h>

#include "base/checked.h"
#include "ref/ref_common.h"

/* All rows of x as floats, row by row. */
static void read_rows(qn_format format, const qn_view *x, int64_t rows, int64_t k, float *values)
{
    for (int64_t i = 0; i < rows; i++) {
        ref_decode(format, ref_row(x, i), k, values + i * k);
    }
}

/* Eight running sums over every eighth product, added in order: the only
 * concession to speed, so that whole layers can be verified. */
static double dot(const float *a, const float *b, int64_t count)
{
    double part[8] = {0.0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int j = 0; j < 8; j++) {
            part[j] += (double)a[i + j] * (double)b[i + j];
        }
    }
    for (int j = 0; i < count; i++, j++) {
        part[j] += (double)a[i] * (double)b[i];
    }
    double sum = 0.0;
    for (int j = 0; j < 8; j++) {
        sum += part[j];
    }
    return sum;
}

/* Element i of scales [1] or [count,1] or [count]. */
static float scale_at(const qn_view *scale, int64_t i)
{
    if (scale->shape.ndim == 2) {
        return ref_f32(ref_row(scale, i), 0);
    }
    return ref_f32(scale->data, qn_shape_elements(&scale->shape) == 1 ? 0 : i);
}

static int32_t dot_i8(const int8_t *a, const int8_t *b, int64_t count)
{
    uint32_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (uint32_t)((int32_t)a[i] * (int32_t)b[i]);
    }
    return (int32_t)sum;
}

static float scaled_epilogue(const qn_args *args, float acc, int64_t m, int64_t n)
{
    const float a = scale_at(&args->in[QN_SMM_SCALE_A], m);
    const float t = acc * scale_at(&args->in[QN_SMM_SCALE_B], n);
    const qn_view *bias = &args->in[QN_SMM_BIAS];
    return ref_has(bias) ? fmaf(a, t, ref_vector_at(bias, n)) : t * a;
}

static void scaled_mm_i8(const qn_args *args)
{
    const qn_view *a = &args->in[QN_SMM_A], *b = &args->in[QN_SMM_B];
    const qn_view *adjust = &args->in[QN_SMM_AZP_ADJ], *azp = &args->in[QN_SMM_AZP];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int64_t rows = a->shape.dims[0], k = a->shape.dims[1];
    for (int64_t n = 0; n < b->shape.dims[0]; n++) {
        for (int64_t m = 0; m < rows; m++) {
            int32_t acc = k > 0 ? dot_i8((const int8_t *)ref_row(a, m), (const int8_t *)ref_row(b, n), k) : 0;
            if (ref_has(adjust)) {
                uint32_t zero = (uint32_t)ref_i32(adjust->data, n);
                if (ref_has(azp)) {
                    zero *= (uint32_t)(azp->shape.ndim == 2 ? ref_i32(ref_row(azp, m), 0) : ref_i32(azp->data, m));
                }
                acc = (int32_t)((uint32_t)acc - zero);
            }
            ref_store(d->shape.format, ref_out_row(d, m), n, (double)scaled_epilogue(args, (float)acc, m, n));
        }
    }
}

void qn_ref_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const qn_view *a = &args->in[QN_SMM_A], *b = &args->in[QN_SMM_B];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    if (a->shape.format == QN_I8) {
        scaled_mm_i8(args);
        return;
    }
    const int64_t rows = a->shape.dims[0], k = a->shape.dims[1];
    float *left = scratch, *right = left + rows * k;
    read_rows(a->shape.format, a, rows, k, left);
    for (int64_t n = 0; n < b->shape.dims[0]; n++) {
        ref_decode(b->shape.format, ref_row(b, n), k, right);
        for (int64_t m = 0; m < rows; m++) {
            const float acc = (float)dot(left + m * k, right, k);
            ref_store(d->shape.format, ref_out_row(d, m), n, (double)scaled_epilogue(args, acc, m, n));
        }
    }
}

/* One expert's, or the whole, block-scaled product: a rows at a, their scales
 * at (row, kb) -> scale_a[row * scale_row + kb * scale_block] bytes. */
typedef struct block_job {
    qn_format a_format, b_format, out_format;
    const char *a, *scale_a, *b, *scale_b;
    char *d;
    int64_t a_stride, scale_row, scale_block, b_stride, scale_b_stride, d_stride;
    int64_t rows, n, k;
} block_job;

static void block_product(const block_job *job, float *scratch)
{
    const int64_t k = job->k;
    float *left = scratch, *right = left + job->rows * k;
    for (int64_t m = 0; m < job->rows; m++) {
        ref_decode(job->a_format, job->a + m * job->a_stride, k, left + m * k);
    }
    for (int64_t n = 0; n < job->n && job->rows > 0; n++) {
        ref_decode(job->b_format, job->b + n * job->b_stride, k, right);
        for (int64_t m = 0; m < job->rows; m++) {
            double sum = 0.0;
            for (int64_t kb = 0; kb * 128 < k; kb++) {
                const double partial = dot(left + m * k + kb * 128, right + kb * 128, qn_min_i64(128, k - kb * 128));
                const float sa = ref_f32(job->scale_a + m * job->scale_row + kb * job->scale_block, 0);
                const float sb = ref_f32(job->scale_b + n / 128 * job->scale_b_stride, kb);
                sum += (double)sa * (double)sb * partial;
            }
            ref_store(job->out_format, job->d + m * job->d_stride, n, sum);
        }
    }
}

void qn_ref_block_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *a = &args->in[QN_BMM_A], *sa = &args->in[QN_BMM_SCALE_A];
    const qn_view *b = &args->in[QN_BMM_B], *sb = &args->in[QN_BMM_SCALE_B];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    const block_job job = {.a_format = a->shape.format,
                           .b_format = b->shape.format,
                           .out_format = d->shape.format,
                           .a = a->data,
                           .scale_a = sa->data,
                           .b = b->data,
                           .scale_b = sb->data,
                           .d = d->data,
                           .a_stride = a->strides[0],
                           .scale_row = col ? 4 : sa->strides[0],
                           .scale_block = col ? sa->strides[0] : 4,
                           .b_stride = b->strides[0],
                           .scale_b_stride = sb->strides[0],
                           .d_stride = d->strides[0],
                           .rows = a->shape.dims[0],
                           .n = b->shape.dims[0],
                           .k = a->shape.dims[1]};
    block_product(&job, scratch);
}

/* Every output row starts as zeros, or as it was; then each expert's rows by its own b. */
void qn_ref_grouped_block_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *a = &args->in[QN_BMM_A], *sa = &args->in[QN_BMM_SCALE_A];
    const qn_view *b = &args->in[QN_BMM_B], *sb = &args->in[QN_BMM_SCALE_B];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    const int masked = desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
    const int64_t experts = b->shape.dims[0], n = b->shape.dims[1], k = b->shape.dims[2];
    const int64_t row_dim = masked ? 1 : 0, total = a->shape.dims[row_dim];
    const size_t row_bytes = (size_t)n * (d->shape.format == QN_F32 ? 4 : 2);
    const int zeros = n > 0 && desc->attr[QN_ATTR_TAIL].i == QN_TAIL_ZEROS;
    for (int64_t i = 0; zeros && i < (masked ? experts * total : total); i++) {
        memset(masked ? ref_out_row3(d, i / total, i % total) : ref_out_row(d, i), 0, row_bytes);
    }
    for (int64_t e = 0; e < experts && n > 0; e++) {
        const int64_t first = masked ? 0 : ref_i32(args->in[QN_BMM_OFFSETS].data, e);
        const int64_t end =
            masked ? ref_i32(args->in[QN_BMM_MASKED_M].data, e) : ref_i32(args->in[QN_BMM_OFFSETS].data, e + 1);
        if (end <= first) {
            continue;
        }
        const int64_t scale_stride = sa->strides[row_dim];
        block_job job = {.a_format = a->shape.format,
                         .b_format = b->shape.format,
                         .out_format = d->shape.format,
                         .a_stride = a->strides[row_dim],
                         .scale_row = col ? 4 : scale_stride,
                         .scale_block = col ? scale_stride : 4,
                         .b_stride = b->strides[1],
                         .scale_b_stride = sb->strides[1],
                         .d_stride = d->strides[row_dim],
                         .rows = end - first,
                         .n = n,
                         .k = k};
        job.d = (masked ? ref_out_row(d, e) : (char *)d->data) + first * job.d_stride;
        if (k > 0) {
            job.a = (masked ? ref_row(a, e) : (const char *)a->data) + first * job.a_stride;
            job.scale_a = (masked ? ref_row(sa, e) : (const char *)sa->data) + first * job.scale_row;
            job.b = ref_row(b, e);
            job.scale_b = ref_row(sb, e);
        }
        block_product(&job, scratch);
    }
}

/* sum over blocks of scale * partial, both sides' scales where there are two. */
static double fp4_sum(const float *a, const uint8_t *a_scale, const float *b, const uint8_t *b_scale, int64_t k,
                      int64_t block)
{
    double sum = 0.0;
    for (int64_t i = 0; i * block < k; i++) {
        const double partial = dot(a + i * block, b + i * block, block);
        double scale = (double)(block == 16 ? qn_e4m3_to_f32(b_scale[i]) : qn_e8m0_to_f32(b_scale[i]));
        if (a_scale) {
            scale *= (double)qn_e4m3_to_f32(a_scale[i]);
        }
        sum += scale * partial;
    }
    return sum;
}

/* What the sums of row m are multiplied with: 1 where x has no scales. */
static double row_scale(const qn_view *scale, int64_t m)
{
    return ref_has(scale) ? (double)scale_at(scale, m) : 1.0;
}

void qn_ref_nvfp4_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const int quantised = ref_has(&args->in[QN_NVMM_A]);
    const qn_view *x = &args->in[quantised ? QN_NVMM_A : QN_NVMM_X], *a_scale = &args->in[QN_NVMM_A_SCALE];
    const qn_view *b = &args->in[QN_NVMM_B], *b_scale = &args->in[QN_NVMM_B_SCALE];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int64_t rows = x->shape.dims[0], k = x->shape.dims[1] * (quantised ? 2 : 1);
    float *left = scratch, *right = left + rows * k;
    double global = (double)ref_f32(args->in[QN_NVMM_B_GLOBAL].data, 0);
    if (quantised) {
        global *= (double)ref_f32(args->in[QN_NVMM_A_GLOBAL].data, 0);
    }
    read_rows(quantised ? QN_F4_E2M1 : x->shape.format, x, rows, k, left);
    for (int64_t n = 0; n < b->shape.dims[0]; n++) {
        ref_decode(QN_F4_E2M1, ref_row(b, n), k, right);
        const double bias = (double)ref_vector_at(&args->in[QN_NVMM_BIAS], n);
        for (int64_t m = 0; m < rows; m++) {
            const uint8_t *scale = quantised && k > 0 ? (const uint8_t *)ref_row(a_scale, m) : NULL;
            const double sum =
                k > 0 ? fp4_sum(left + m * k, scale, right, (const uint8_t *)ref_row(b_scale, n), k, 16) / global : 0.0;
            ref_store(d->shape.format, ref_out_row(d, m), n, sum * row_scale(&args->in[QN_NVMM_X_SCALE], m) + bias);
        }
    }
}

void qn_ref_mxfp4_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const qn_view *x = &args->in[QN_MXMM_X], *b = &args->in[QN_MXMM_B], *b_scale = &args->in[QN_MXMM_B_SCALE];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int64_t rows = x->shape.dims[0], k = x->shape.dims[1];
    float *left = scratch, *right = left + rows * k;
    read_rows(x->shape.format, x, rows, k, left);
    for (int64_t n = 0; n < b->shape.dims[0]; n++) {
        ref_decode(QN_F4_E2M1, ref_row(b, n), k, right);
        const double bias = (double)ref_vector_at(&args->in[QN_MXMM_BIAS], n);
        for (int64_t m = 0; m < rows; m++) {
            const double sum =
                k > 0 ? fp4_sum(left + m * k, NULL, right, (const uint8_t *)ref_row(b_scale, n), k, 32) : 0.0;
            ref_store(d->shape.format, ref_out_row(d, m), n, sum * row_scale(&args->in[QN_MXMM_X_SCALE], m) + bias);
        }
    }
}

void qn_ref_dense_mm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const qn_view *x = &args->in[QN_DMM_X], *b = &args->in[QN_DMM_B];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int64_t rows = x->shape.dims[0], k = x->shape.dims[1];
    float *left = scratch, *right = left + rows * k;
    read_rows(x->shape.format, x, rows, k, left);
    for (int64_t n = 0; n < b->shape.dims[0]; n++) {
        ref_decode(b->shape.format, ref_row(b, n), k, right);
        const double bias = (double)ref_vector_at(&args->in[QN_DMM_BIAS], n);
        for (int64_t m = 0; m < rows; m++) {
            ref_store(d->shape.format, ref_out_row(d, m), n, dot(left + m * k, right, k) + bias);
        }
    }
}
