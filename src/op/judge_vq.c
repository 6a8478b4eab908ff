/* The error model of the vector-quantised operators (docs/operators.md):
 *
 *   vq_dequantize   2 ulp; with Hadamard transforms 2^-18 of the coded matrix' mean size, in the output's scale
 *   vq_mm           as the other matmuls, the norm of a row of w taken over sums of the magnitudes of its terms
 *                   (codewords, residuals, shifts); with transforms the norm of the coded matrix, per row. Kernels
 *                   whose sums are QN_SUMS_HALF: + 2^-11 of the norms' product
 *   vq_encode       another code than the reference's must be as near: squared distances within 2^-18 of
 *                   |x|^2 + |c|^2
 *   vq_attention    as attention, over the largest centroids and recent tokens */
#include "base/checked.h"
#include "op/judge.h"
#include "ref/vq.h"

int qn_judge_vq_is_exact(const qn_op_desc *desc)
{
    if (desc->op == QN_OP_VQ_ATTENTION) {
        return 0;
    }
    const int32_t first = desc->op == QN_OP_VQ_MM ? QN_VQMM_FIRST : 0;
    qn_vq vq;
    qn_vq_describe(desc, -1, first ? desc->in[QN_VQMM_X].dims[1] : -1, &vq);
    return vq.format != QN_VQ_QUIP_E8P || (vq.codebook == QN_VQ_E8P12 && !qn_op_has(desc, first + QN_VQ_SU) &&
                                           !qn_op_has(desc, first + QN_VQ_SV));
}

/* Each factor is rounded by 2^-12 of itself at most, and a sum of terms once more; |w x| summed is about 0.64 of the
 * product of norms. */
#define HALF_CUT 0x1p-11

#define COLUMNS 512 /* sizes of rows of w kept at a time */

static double wscale(const qn_vq *vq)
{
    return fabs(qn_vq_value(&vq->tensor[QN_VQ_WSCALE], 0, 1.0));
}

/* Hout mixes all rows: their mean size. 0 where there is no such transform. */
static double mean_size(const qn_vq *vq)
{
    double total = 0.0;
    for (int64_t r = 0; r < vq->n && vq->k > 0 && vq->tensor[QN_VQ_SV].shape.format != QN_FORMAT_NONE; r++) {
        const double size = qn_vq_row_size(vq, r);
        total += size * size;
    }
    return vq->n > 0 ? sqrt(total / (double)vq->n) : 0.0;
}

/* Size of row n of w, in front of the input's own scale. */
static double row_size(const qn_vq *vq, double mean, int64_t n)
{
    if (vq->k == 0) {
        return 0.0;
    }
    if (vq->tensor[QN_VQ_SV].shape.format == QN_FORMAT_NONE) {
        return qn_vq_row_size(vq, n) * wscale(vq);
    }
    return mean * wscale(vq) * fabs(qn_vq_value(&vq->tensor[QN_VQ_SV], n, 1.0));
}

/* |SU . / scaleWH| at i. */
static double input_size(const qn_vq *vq, int64_t i)
{
    const double scale = qn_vq_value(&vq->tensor[QN_VQ_SU], i, 1.0) / qn_vq_value(&vq->tensor[QN_VQ_SCALE_WH], i, 1.0);
    return fabs(scale);
}

static double input_norm(const qn_vq *vq, const qn_view *x, int64_t m)
{
    double squares = 0.0;
    for (int64_t i = 0; i < vq->k; i++) {
        const double v = element(x->shape.format, row_of(x, m), i);
        const double scaled = qn_vq_transformed(vq) ? v * input_size(vq, i) : v;
        squares += scaled * scaled;
    }
    return sqrt(squares);
}

static void judge_mm(const qn_vq *vq, qn_sums sums, const qn_sizes *sizes, const qn_view *want, const qn_view *got,
                     const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    double rows[COLUMNS];
    const double rounded = sums == QN_SUMS_HALF ? HALF_CUT : 0.0, mean = mean_size(vq);
    const double growth = (2.0 * sqrt((double)sizes->k) + 16.0) * 0x1p-24 + rounded;
    const qn_format format = want->shape.format;
    for (int64_t n0 = 0; n0 < sizes->n; n0 += COLUMNS) {
        const int64_t count = qn_min_i64(COLUMNS, sizes->n - n0);
        for (int64_t i = 0; i < count; i++) {
            rows[i] = row_size(vq, mean, n0 + i);
        }
        for (int64_t m = 0; m < sizes->m; m++) {
            const double norm = input_norm(vq, &in[QN_VQMM_X], m);
            for (int64_t i = 0; i < count; i++) {
                const double a = element(format, row_of(want, m), n0 + i);
                const double b = element(format, row_of(got, m), n0 + i);
                const double add = fabs((double)ref_vector_at(&in[QN_VQMM_BIAS], n0 + i));
                const double allowed = ulp_at(format, a) + growth * (norm * rows[i] + add);
                note(result, 0, m * sizes->n + n0 + i, a, b, error_of(a, b, allowed));
            }
        }
    }
}

static void judge_weights(const qn_vq *vq, const qn_sizes *sizes, const qn_view *want, const qn_view *got,
                          qn_case_result *result)
{
    const double mean = qn_vq_transformed(vq) ? mean_size(vq) : 0.0;
    for (int64_t n = 0; n < sizes->n; n++) {
        const double size = qn_vq_transformed(vq) ? row_size(vq, mean, n) / sqrt((double)sizes->k) : 0.0;
        for (int64_t i = 0; i < sizes->k; i++) {
            const double a = element(QN_F32, row_of(want, n), i), b = element(QN_F32, row_of(got, n), i);
            const double allowed = 2.0 * ulp_at(QN_F32, a) + (size > 0.0 ? 0x1p-18 * size * input_size(vq, i) : 0.0);
            note(result, 0, n * sizes->k + i, a, b, error_of(a, b, allowed));
        }
    }
}

static int64_t code_at(const qn_view *codes, int64_t row, int64_t i)
{
    const uint8_t *at = (const uint8_t *)row_of(codes, row);
    return codes->shape.format == QN_U16 ? at[2 * i] | at[2 * i + 1] << 8 : at[i];
}

/* Squared distance of a vector of row `row` of x to a centroid of its head; *size: squares of both. */
static double distance_of(const qn_view in[QN_MAX_IN], int64_t row, int64_t g, int64_t code, double *size)
{
    const qn_view *x = &in[QN_VQE_X], *book = &in[QN_VQE_CODEBOOK];
    const int64_t *b = book->shape.dims;
    const int64_t head = row % b[0];
    double distance = 0.0;
    *size = 0.0;
    for (int64_t j = 0; j < b[3]; j++) {
        const double v = element(x->shape.format, row_of(x, row), g * b[3] + j);
        const double c = qn_vq_value(book, ((head * b[1] + g) * b[2] + code) * b[3] + j, 0.0);
        distance += (v - c) * (v - c);
        *size += v * v + c * c;
    }
    return distance;
}

static void judge_codes(const qn_view *want, const qn_view *got, const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    const int64_t rows = rows_of(&want->shape), groups = columns_of(&want->shape);
    const int64_t entries = in[QN_VQE_CODEBOOK].shape.dims[2];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const int64_t a = code_at(want, r, g), b = code_at(got, r, g);
            double size, other, error = 0.0;
            if (b >= entries) {
                error = HUGE_VAL;
            } else if (a != b) {
                const double nearest = distance_of(in, r, g, a, &size), found = distance_of(in, r, g, b, &other);
                error = (found - nearest) / (0x1p-18 * (size + other));
                error = error >= 0.0 ? error : HUGE_VAL; /* NaN: it must be code 0 */
            }
            note(result, 0, r * groups + g, (double)a, (double)b, error);
        }
    }
}

/* Largest centroid element, and norm of the vector of largest centroids, over all heads. */
static void book_sizes(const qn_view *book, double *most, double *norm)
{
    const int64_t *d = book->shape.dims;
    *most = *norm = 0.0;
    for (int64_t h = 0; h < d[0]; h++) {
        double squares = 0.0;
        for (int64_t g = 0; g < d[1]; g++) {
            double largest = 0.0;
            for (int64_t e = 0; e < d[2]; e++) {
                double sum = 0.0;
                for (int64_t j = 0; j < d[3]; j++) {
                    const double v = fabs(qn_vq_value(book, ((h * d[1] + g) * d[2] + e) * d[3] + j, 0.0));
                    *most = fmax(*most, v);
                    sum += v * v;
                }
                largest = fmax(largest, sum);
            }
            squares += largest;
        }
        *norm = fmax(*norm, sqrt(squares));
    }
}

/* The same with the rows of recent tokens. */
static void recent_sizes(const qn_view *recent, double *most, double *norm)
{
    const int64_t rows = rows_of(&recent->shape), columns = columns_of(&recent->shape);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0.0;
        for (int64_t c = 0; c < columns; c++) {
            const double v = element(recent->shape.format, row_of(recent, r), c);
            *most = fmax(*most, fabs(v));
            squares += v * v;
        }
        *norm = fmax(*norm, sqrt(squares));
    }
}

static void judge_attention(const qn_op_desc *desc, const qn_sizes *sizes, int32_t slot, const qn_view *want,
                            const qn_view *got, const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    const double given = (double)desc->attr[QN_ATTR_SCALE].f;
    const double scale = given > 0.0 ? given : 1.0 / sqrt((double)qn_max_i64(sizes->k, 1));
    const int64_t rows = rows_of(&want->shape), columns = columns_of(&want->shape);
    const int64_t heads = slot == QN_VQA_OUT_O ? 1 : columns;
    double key_most, key_norm, value_most, value_norm;
    book_sizes(&in[QN_VQA_K_CODEBOOK], &key_most, &key_norm);
    book_sizes(&in[QN_VQA_V_CODEBOOK], &value_most, &value_norm);
    if (desc->attr[QN_ATTR_WINDOW].i > 0) {
        recent_sizes(&in[QN_VQA_K_RECENT], &key_most, &key_norm);
        recent_sizes(&in[QN_VQA_V_RECENT], &value_most, &value_norm);
    }
    const double keys = 2.0 * sqrt((double)sizes->n) + 32.0, size = 2.0 * sqrt((double)sizes->k) + 16.0;
    /* a kernel's angle of position t is good to 2^-24 of t radians */
    const double turn = desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f ? 2.0 * (double)sizes->n : 0.0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            double squares = 0.0;
            const qn_view *q = &in[QN_VQA_Q];
            const int64_t query = r * heads + (slot == QN_VQA_OUT_O ? 0 : c);
            for (int64_t i = 0; i < sizes->k; i++) {
                const double v = element(q->shape.format, row_of(q, query), i);
                squares += v * v;
            }
            const double score = scale * sqrt(squares) * key_norm * (size + turn);
            const double allowed = 0x1p-24 * (keys + score) * (slot == QN_VQA_OUT_O ? value_most : 1.0);
            const double x = element(QN_F32, row_of(want, r), c), y = element(QN_F32, row_of(got, r), c);
            note(result, slot, r * columns + c, x, y, error_of(x, y, ulp_at(QN_F32, x) + allowed));
        }
    }
}

void qn_judge_vq(const qn_op_desc *desc, qn_sums sums, const qn_sizes *sizes, int32_t slot, const qn_view *want, const qn_view *got,
                 const qn_view in[QN_MAX_IN], qn_case_result *result)
{
    if (desc->op == QN_OP_VQ_ENCODE) {
        judge_codes(want, got, in, result);
        return;
    }
    if (desc->op == QN_OP_VQ_ATTENTION) {
        judge_attention(desc, sizes, slot, want, got, in, result);
        return;
    }
    qn_args args;
    memset(&args, 0, sizeof args);
    memcpy(args.in, in, sizeof args.in);
    qn_vq vq;
    qn_vq_bind(desc, &args, &vq);
    if (desc->op == QN_OP_VQ_MM) {
        judge_mm(&vq, sums, sizes, want, got, in, result);
    } else {
        judge_weights(&vq, sizes, want, got, result);
    }
}
