/* The error model: may these outputs stand beside the reference's?
 * docs/operators.md, "Error model", is its text. For every element:
 *
 *   exact grid       bit for bit (rmsnorm, rope, attention: as below)
 *   matmuls          |d| <= ulp_T(want) + (2 sqrt(K) + 16) 2^-24 (|a_m| |b_n| + |bias_n|), |.| the Euclidean norms
 *                    of the dequantised rows, whose product bounds sum |a b|.
 *                    int8: ulp_T(want) + 2^-21 (|want| + |bias_n|)
 *                    kernels whose sums are QN_SUMS_FP8_MMA: + FP8_MMA_CUT <a_m> <b_n>, see side_norms
 *   quantise         scales within 1 ulp (silu_mul_quant 2^-20 of their size), zero points within 1, codes within
 *                    1 step and fewer than 1 in 1000 (but one is always allowed) different
 *   others           ulp_T(want) + what each function below says
 *
 * NaN agrees with NaN, infinities with themselves. */
#include <quern/experimental.h>

#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "op/judge.h"
#include "op/op.h"
#include "ref/ref_common.h"

#define CHUNK 256   /* elements decoded at a time: a multiple of every block */
#define COLUMNS 512 /* norms of b kept at a time */
#define BLOCK 128   /* of K: what tensor cores sum on their own before the sum is added in f32 */

/* What a block's sum may be off by, of the product of the norms of its operands. The tensor core cuts the products of a
 * step of 32 and the sum so far to 13 bits below the largest of them, which is at most that product: simulated on
 * random operands, the four steps of a block stay below 2^-12.9 of it. */
#define FP8_MMA_CUT 0x1p-12

static int is_exact(const qn_op_desc *desc)
{
    const qn_op op = desc->op;
    if (op == QN_OP_VQ_DEQUANTIZE || op == QN_OP_VQ_MM || op == QN_OP_VQ_ATTENTION) {
        return qn_judge_vq_is_exact(desc);
    }
    return op != QN_OP_RMSNORM && op != QN_OP_ROPE && op != QN_OP_ATTENTION && op != QN_OP_SCALED_ATTENTION;
}

/* Rows [first, end) of an output, bit for bit. */
static void judge_exact(const qn_view *want, const qn_view *got, int32_t slot, int64_t first, int64_t end,
                        qn_case_result *result)
{
    const int64_t columns = columns_of(&want->shape);
    const int64_t size = qn_format_get_info(want->shape.format)->block_bytes;
    for (int64_t r = first; r < end; r++) {
        const char *a = row_of(want, r), *b = row_of(got, r);
        for (int64_t c = 0; c < columns; c++) {
            if (memcmp(a + c * size, b + c * size, (size_t)size) != 0) {
                const double x = element(want->shape.format, a, c), y = element(want->shape.format, b, c);
                note(result, slot, r * columns + c, x, y, isnan(x) && isnan(y) ? 0.0 : HUGE_VAL);
            }
        }
    }
}

/* Squares of a dequantised row of one side of a matmul, summed. scale(user, k0) is the scale at column k0. */
typedef struct side {
    qn_format format;
    const char *row;
    double (*scale)(const struct side *side, int64_t column);
    const char *scales;
    int64_t scale_step; /* bytes between scales along K */
    int64_t block;      /* columns a scale */
    double factor;
} side;

static double scale_f32(const side *s, int64_t column)
{
    return (double)ref_f32(s->scales + column / s->block * s->scale_step, 0);
}

static double scale_e4m3(const side *s, int64_t column)
{
    return (double)qn_e4m3_to_f32((uint8_t)s->scales[column / s->block]);
}

static double scale_e8m0(const side *s, int64_t column)
{
    return (double)qn_e8m0_to_f32((uint8_t)s->scales[column / s->block]);
}

/* Norms of a row: |v|, the Euclidean one, and <v>, the fourth root of the sum over blocks of 128 of their Euclidean
 * norms to the fourth. Errors of blocks are independent: the root of the sum of the squares of |a_kb| |b_kb| bounds
 * theirs, and <a> <b> bounds that (Cauchy and Schwarz). */
typedef struct norms {
    double row, blocks;
} norms;

static norms side_norms(const side *s, int64_t k)
{
    float values[CHUNK];
    const qn_format_row *codec = qn_format_get_row(s->format);
    const int64_t chunk_bytes = CHUNK / codec->info.block_elements * codec->info.block_bytes;
    double sum = 0.0, fourths = 0.0;
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        const int64_t count = qn_min_i64(CHUNK, k - k0);
        codec->decode(s->row + k0 / CHUNK * chunk_bytes, count, values);
        for (int64_t b0 = 0; b0 < count; b0 += BLOCK) {
            double block = 0.0;
            for (int64_t i = b0; i < qn_min_i64(b0 + BLOCK, count); i++) {
                const double v = (double)values[i] * (s->scale ? s->scale(s, k0 + i) : 1.0);
                block += v * v;
            }
            sum += block;
            fourths += block * block;
        }
    }
    return (norms){sqrt(sum) * s->factor, sqrt(sqrt(fourths)) * s->factor};
}

static double vector_f32(const qn_view *scale, int64_t i)
{
    if (scale->shape.ndim == 2) {
        return (double)ref_f32(ref_row(scale, i), 0);
    }
    return (double)ref_f32(scale->data, qn_shape_elements(&scale->shape) == 1 ? 0 : i);
}

/* Activation row m (of expert e where a has three dimensions). */
static side left_side(const qn_op_desc *desc, const qn_view in[QN_MAX_IN], int64_t e, int64_t m)
{
    side s = {.factor = 1.0, .block = 1};
    const qn_view *x = &in[0];
    if (desc->op == QN_OP_NVFP4_MM && ref_has(&in[QN_NVMM_A])) {
        s.format = QN_F4_E2M1;
        s.row = ref_row(&in[QN_NVMM_A], m);
        s.scale = scale_e4m3;
        s.scales = ref_row(&in[QN_NVMM_A_SCALE], m);
        s.block = 16;
        s.factor = 1.0 / (double)ref_f32(in[QN_NVMM_A_GLOBAL].data, 0);
        return s;
    }
    s.format = x->shape.format;
    s.row = x->shape.ndim == 3 ? ref_row3(x, e, m) : ref_row(x, m);
    const int32_t scales = desc->op == QN_OP_SCALED_MM ? QN_SMM_SCALE_A : qn_op_x_scale_slot(desc->op);
    if (scales >= 0 && ref_has(&in[scales])) {
        s.factor = fabs(vector_f32(&in[scales], m));
    } else if (desc->op == QN_OP_BLOCK_SCALED_MM || desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM) {
        const qn_view *scale = &in[QN_BMM_SCALE_A];
        const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
        const int three = scale->shape.ndim == 3;
        const int64_t stride = scale->strides[three ? 1 : 0];
        s.scale = scale_f32;
        s.block = 128;
        s.scale_step = col ? stride : 4;
        s.scales = (three ? ref_row(scale, e) : (const char *)scale->data) + m * (col ? 4 : stride);
    }
    return s;
}

/* Weight row n (of expert e). */
static side right_side(const qn_op_desc *desc, const qn_view in[QN_MAX_IN], int64_t e, int64_t n)
{
    side s = {.factor = 1.0, .block = 1};
    switch (desc->op) {
    case QN_OP_SCALED_MM:
        s.format = in[QN_SMM_B].shape.format;
        s.row = ref_row(&in[QN_SMM_B], n);
        s.factor = fabs(vector_f32(&in[QN_SMM_SCALE_B], n));
        break;
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_GROUPED_BLOCK_SCALED_MM: {
        const qn_view *b = &in[QN_BMM_B], *scale = &in[QN_BMM_SCALE_B];
        const int three = b->shape.ndim == 3;
        s.format = b->shape.format;
        s.row = three ? ref_row3(b, e, n) : ref_row(b, n);
        s.scale = scale_f32;
        s.block = 128;
        s.scale_step = 4;
        s.scales = three ? ref_row3(scale, e, n / 128) : ref_row(scale, n / 128);
        break;
    }
    case QN_OP_NVFP4_MM:
        s.format = QN_F4_E2M1;
        s.row = ref_row(&in[QN_NVMM_B], n);
        s.scale = scale_e4m3;
        s.scales = ref_row(&in[QN_NVMM_B_SCALE], n);
        s.block = 16;
        s.factor = 1.0 / (double)ref_f32(in[QN_NVMM_B_GLOBAL].data, 0);
        break;
    case QN_OP_MXFP4_MM:
        s.format = QN_F4_E2M1;
        s.row = ref_row(&in[QN_MXMM_B], n);
        s.scale = scale_e8m0;
        s.scales = ref_row(&in[QN_MXMM_B_SCALE], n);
        s.block = 32;
        break;
    default:
        s.format = in[QN_DMM_B].shape.format;
        s.row = ref_row(&in[QN_DMM_B], n);
        break;
    }
    return s;
}

static const qn_view *bias_of(const qn_op_desc *desc, const qn_view in[QN_MAX_IN])
{
    switch (desc->op) {
    case QN_OP_SCALED_MM: return &in[QN_SMM_BIAS];
    case QN_OP_NVFP4_MM: return &in[QN_NVMM_BIAS];
    case QN_OP_MXFP4_MM: return &in[QN_MXMM_BIAS];
    case QN_OP_DENSE_MM: return &in[QN_DMM_BIAS];
    default: return NULL;
    }
}

/* One expert's rows [first, end) of the outputs want and got. */
static void judge_product(const qn_op_desc *desc, qn_sums sums, const qn_sizes *sizes, const qn_view *want,
                          const qn_view *got, const qn_view in[QN_MAX_IN], int64_t e, int64_t first, int64_t end,
                          qn_case_result *result)
{
    norms right[COLUMNS];
    const double cut = sums == QN_SUMS_FP8_MMA ? FP8_MMA_CUT : 0.0;
    const qn_format format = want->shape.format;
    const int int8 = desc->op == QN_OP_SCALED_MM && in[QN_SMM_A].shape.format == QN_I8;
    const double growth = (2.0 * sqrt((double)sizes->k) + 16.0) * 0x1p-24;
    const qn_view *bias = bias_of(desc, in);
    const int three = want->shape.ndim == 3;
    for (int64_t n0 = 0; n0 < sizes->n && first < end; n0 += COLUMNS) {
        const int64_t count = qn_min_i64(COLUMNS, sizes->n - n0);
        for (int64_t i = 0; i < count && sizes->k > 0 && !int8; i++) {
            const side s = right_side(desc, in, e, n0 + i);
            right[i] = side_norms(&s, sizes->k);
        }
        for (int64_t m = first; m < end; m++) {
            norms left = {0.0, 0.0};
            if (sizes->k > 0 && !int8) {
                const side s = left_side(desc, in, e, m);
                left = side_norms(&s, sizes->k);
            }
            const char *a = three ? ref_row3(want, e, m) : ref_row(want, m);
            const char *b = three ? ref_row3(got, e, m) : ref_row(got, m);
            for (int64_t i = 0; i < count; i++) {
                const double x = element(format, a, n0 + i), y = element(format, b, n0 + i);
                const double add = bias ? fabs((double)ref_vector_at(bias, n0 + i)) : 0.0;
                double allowed = 0x1p-21 * (fabs(x) + add);
                if (!int8) {
                    const int none = sizes->k == 0;
                    allowed = growth * ((none ? 0.0 : left.row * right[i].row) + add) +
                              cut * (none ? 0.0 : left.blocks * right[i].blocks);
                }
                allowed += ulp_at(format, x);
                const int64_t row = three ? e * want->shape.dims[1] + m : m;
                note(result, 0, row * sizes->n + n0 + i, x, y, error_of(x, y, allowed));
            }
        }
    }
}

/* Rows [first, end) of an output, of expert e where it has three dimensions, that belong to no group: zeros, or the
 * bytes that were there before, which are the same in both. */
static void judge_tail(const qn_op_desc *desc, const qn_view *want, const qn_view *got, int64_t e, int64_t first,
                       int64_t end, qn_case_result *result)
{
    const int three = got->shape.ndim == 3;
    const int64_t columns = columns_of(&got->shape);
    if (desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP) {
        const int64_t at = three ? e * got->shape.dims[1] : 0;
        judge_exact(want, got, 0, at + first, at + end, result);
        return;
    }
    for (int64_t m = first; m < end; m++) {
        for (int64_t n = 0; n < columns; n++) {
            const double y = element(got->shape.format, three ? ref_row3(got, e, m) : ref_row(got, m), n);
            const int64_t row = three ? e * got->shape.dims[1] + m : m;
            note(result, 0, row * columns + n, 0.0, y, y == 0.0 ? 0.0 : HUGE_VAL);
        }
    }
}

static void judge_matmul(const qn_op_desc *desc, qn_sums sums, const qn_sizes *sizes, const qn_view *want,
                         const qn_view *got, const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    if (desc->op != QN_OP_GROUPED_BLOCK_SCALED_MM) {
        judge_product(desc, sums, sizes, want, got, in, 0, 0, sizes->m, result);
        return;
    }
    const int masked = desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
    for (int64_t e = 0; e < sizes->e; e++) {
        const int64_t first = masked ? 0 : ref_i32(in[QN_BMM_OFFSETS].data, e);
        const int64_t end = masked ? ref_i32(in[QN_BMM_MASKED_M].data, e) : ref_i32(in[QN_BMM_OFFSETS].data, e + 1);
        judge_product(desc, sums, sizes, want, got, in, e, first, end, result);
        if (masked) {
            judge_tail(desc, want, got, e, end, sizes->m, result);
        }
    }
    if (!masked) {
        judge_tail(desc, want, got, 0, 0, ref_i32(in[QN_BMM_OFFSETS].data, 0), result);
        judge_tail(desc, want, got, 0, ref_i32(in[QN_BMM_OFFSETS].data, sizes->e), sizes->m, result);
    }
}

/* Place of a code in the order of its format's values: codes within 1 step differ by 1. */
static int32_t code_rank(qn_format format, uint8_t code)
{
    if (format == QN_I8) {
        return (int8_t)code;
    }
    return code & 0x80 ? -(int32_t)(code & 0x7F) : (int32_t)code;
}

static void judge_codes(const qn_view *want, const qn_view *got, int nibbles, int32_t slot, qn_case_result *result)
{
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    int64_t different = 0, total = 0, last = 0;
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *a = (const uint8_t *)row_of(want, r), *b = (const uint8_t *)row_of(got, r);
        for (int64_t c = 0; c < columns; c++) {
            for (int half = 0; half < (nibbles ? 2 : 1); half++) {
                int32_t x = nibbles ? a[c] >> (4 * half) & 15 : code_rank(want->shape.format, a[c]);
                int32_t y = nibbles ? b[c] >> (4 * half) & 15 : code_rank(want->shape.format, b[c]);
                if (nibbles) {
                    x = x & 8 ? -(x & 7) : x;
                    y = y & 8 ? -(y & 7) : y;
                }
                total++;
                if (x != y) {
                    different++;
                    last = r * columns + c;
                    note(result, slot, last, (double)x, (double)y, (double)abs(x - y));
                }
            }
        }
    }
    if (different > 1 && different * 1000 > total) {
        note(result, slot, last, 0.0, (double)different, 2.0);
    }
}

/* Elements allowed relative * |want| plus ulps of their format. */
static void judge_floats(const qn_view *want, const qn_view *got, double ulps, double relative, int32_t slot,
                         qn_case_result *result)
{
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    for (int64_t r = 0; r < rows; r++) {
        const char *a = row_of(want, r), *b = row_of(got, r);
        for (int64_t c = 0; c < columns; c++) {
            const double x = element(want->shape.format, a, c), y = element(want->shape.format, b, c);
            const double allowed = ulps * ulp_at(want->shape.format, x) + relative * fabs(x);
            note(result, slot, r * columns + c, x, y, error_of(x, y, allowed));
        }
    }
}

static void judge_zero_points(const qn_view *want, const qn_view *got, int32_t slot, qn_case_result *result)
{
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            const double x = element(QN_I32, row_of(want, r), c), y = element(QN_I32, row_of(got, r), c);
            note(result, slot, r * columns + c, x, y, fabs(x - y));
        }
    }
}

static void judge_quantize(const qn_op_desc *desc, int32_t slot, const qn_view *want, const qn_view *got,
                           qn_case_result *result)
{
    const qn_format format = want->shape.format;
    const int fp4 = desc->op == QN_OP_QUANTIZE_NVFP4 || desc->op == QN_OP_QUANTIZE_MXFP4;
    if (format == QN_F32) {
        const int silu = desc->op == QN_OP_SILU_MUL_QUANT;
        judge_floats(want, got, 1.0, silu ? 0x1p-20 : 0.0, slot, result);
    } else if (format == QN_I32) {
        judge_zero_points(want, got, slot, result);
    } else {
        judge_codes(want, got, fp4 && slot == QN_FP4_OUT_Q, slot, result);
    }
}

/* |y| <= the rotated vector's largest element: 2^-20 of it. */
static void judge_rope(const qn_view *want, const qn_view *got, qn_case_result *result)
{
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    for (int64_t r = 0; r < rows; r++) {
        const char *a = row_of(want, r), *b = row_of(got, r);
        double most = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            most = fmax(most, fabs(element(QN_F32, a, c)));
        }
        for (int64_t c = 0; c < columns; c++) {
            const double x = element(QN_F32, a, c), y = element(QN_F32, b, c);
            note(result, 0, r * columns + c, x, y, error_of(x, y, ulp_at(QN_F32, x) + 0x1p-20 * most));
        }
    }
}

/* Largest element, or norm of a row, of a tensor whose rows have a scale each; scales NULL: 1. */
static double largest(const qn_view *view, const qn_view *scales, int norm)
{
    double most = 0.0;
    const int64_t rows = rows_of(&view->shape), columns = columns_of(&view->shape);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            const double v = fabs(element(view->shape.format, row_of(view, r), c));
            sum = norm ? sum + v * v : fmax(sum, v);
        }
        const double scale =
            scales && scales->shape.format
                ? fabs(element(QN_F32, row_of(scales, r / scales->shape.dims[1]), r % scales->shape.dims[1]))
                : 1.0;
        most = fmax(most, scale * (norm ? sqrt(sum) : sum));
    }
    return most;
}

/* The same of the recent keys or values; 0: there are none. */
static double recent(const qn_op_desc *desc, const qn_view in[QN_MAX_IN], int32_t slot, int norm)
{
    return desc->attr[QN_ATTR_WINDOW].i > 0 ? largest(&in[slot], NULL, norm) : 0.0;
}

/* Errors of the scores move the weights in proportion; sums over keys add theirs. */
static void judge_attention(const qn_op_desc *desc, const qn_sizes *sizes, const qn_view *want, const qn_view *got,
                            const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    const double given = (double)desc->attr[QN_ATTR_SCALE].f;
    const double scale = given > 0.0 ? given : 1.0 / sqrt((double)qn_max_i64(sizes->k, 1));
    const double score = scale * largest(&in[QN_ATT_Q], NULL, 1) *
                         fmax(largest(&in[QN_ATT_K], &in[QN_ATT_K_SCALE], 1), recent(desc, in, QN_ATT_K_RECENT, 1));
    const double keys = 2.0 * sqrt((double)sizes->n) + 32.0, size = 2.0 * sqrt((double)sizes->k) + 16.0;
    const double allowed = 0x1p-24 * (keys + size * score) *
                           fmax(largest(&in[QN_ATT_V], &in[QN_ATT_V_SCALE], 0), recent(desc, in, QN_ATT_V_RECENT, 0));
    const qn_format format = want->shape.format;
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            const double x = element(format, row_of(want, r), c), y = element(format, row_of(got, r), c);
            note(result, 0, r * columns + c, x, y, error_of(x, y, ulp_at(format, x) + allowed));
        }
    }
}

static void judge_slot(const qn_op_desc *desc, qn_sums sums, const qn_sizes *sizes, int32_t slot, const qn_view *want,
                       const qn_view *got, const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    switch (desc->op) {
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8:
    case QN_OP_QUANTIZE_NVFP4:
    case QN_OP_QUANTIZE_MXFP4:
    case QN_OP_SILU_MUL_QUANT: judge_quantize(desc, slot, want, got, result); break;
    case QN_OP_DEQUANTIZE: judge_floats(want, got, 2.0, 0.0, slot, result); break;
    case QN_OP_SILU_MUL: judge_floats(want, got, 1.0, 0x1p-20, slot, result); break;
    case QN_OP_RMSNORM:
        judge_floats(want, got, 1.0, (2.0 * sqrt((double)sizes->k) + 16.0) * 0x1p-24, slot, result);
        break;
    case QN_OP_ROPE: judge_rope(want, got, result); break;
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION: judge_attention(desc, sizes, want, got, in, result); break;
    case QN_OP_VQ_DEQUANTIZE:
    case QN_OP_VQ_MM:
    case QN_OP_VQ_ENCODE:
    case QN_OP_VQ_ATTENTION: qn_judge_vq(desc, sums, sizes, slot, want, got, in, result); break;
    default: judge_matmul(desc, sums, sizes, want, got, in, result); break;
    }
}

qn_status qn_judge(const qn_op_desc *desc, qn_sums sums, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                   const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error)
{
    QN_FAIL_IF(!desc || !want || !got || !in || !result, error, QN_E_ARGUMENT, "qn_case_judge: a parameter is NULL");
    *result = (qn_case_result){0};
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    QN_TRY(qn_op_desc_check(desc, out, &sizes, error));
    for (int32_t i = 0; i < QN_MAX_OUT; i++) {
        if (out[i].format == QN_FORMAT_NONE || qn_shape_elements(&out[i]) == 0) {
            continue;
        }
        const char *name = qn_op_get_info(desc->op)->out[i].name;
        const qn_view *pair[2] = {&want[i], &got[i]};
        for (int p = 0; p < 2; p++) {
            QN_FAIL_IF(!pair[p]->data || pair[p]->shape.format != out[i].format || pair[p]->shape.ndim != out[i].ndim ||
                           memcmp(pair[p]->shape.dims, out[i].dims, sizeof out[i].dims) != 0,
                       error, QN_E_SHAPE, "qn_case_judge: output %s of %s does not have the descriptor's shape", name,
                       p ? "got" : "want");
        }
        if (exact && is_exact(desc)) {
            judge_exact(&want[i], &got[i], i, 0, rows_of(&want[i].shape), result);
        } else {
            judge_slot(desc, sums, &sizes, i, &want[i], &got[i], in, result);
        }
    }
    result->pass = result->max_error <= 1.0;
    return QN_OK;
}

qn_status qn_case_judge(const qn_op_desc *desc, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                        const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error)
{
    return qn_judge(desc, QN_SUMS_F32, want, got, in, exact, result, error);
}
