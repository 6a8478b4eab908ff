/* What the files that judge outputs share (judge.c, judge_vq.c). */
#ifndef QN_OP_JUDGE_H
#define QN_OP_JUDGE_H

#include <quern/experimental.h>

#include <math.h>

#include "op/op.h"
#include "ref/ref_common.h"

/* Spacing of a float format's values at |value|. */
static inline double ulp_at(qn_format format, double value)
{
    const int bits = format == QN_F16 ? 10 : format == QN_BF16 ? 7 : 23;
    const int lowest = format == QN_F16 ? -14 : -126;
    int e = lowest;
    if (value != 0.0 && isfinite(value)) {
        frexp(value, &e);
        e = e - 1 < lowest ? lowest : e - 1;
    }
    return ldexp(1.0, e - bits);
}

static inline void note(qn_case_result *result, int32_t slot, int64_t index, double want, double got, double error)
{
    const double distance = fabs(got - want);
    if (distance > result->max_abs) {
        result->max_abs = distance;
    }
    if (error > result->max_error) {
        result->max_error = error;
        result->slot = slot;
        result->index = index;
        result->want = want;
        result->got = got;
    }
}

/* |got - want| over allowed; NaN and infinities only agree with themselves. */
static inline double error_of(double want, double got, double allowed)
{
    if (isnan(want) || isnan(got) || isinf(want) || isinf(got)) {
        return (isnan(want) && isnan(got)) || want == got ? 0.0 : HUGE_VAL;
    }
    return fabs(got - want) / allowed;
}

/* Rows of a tensor: all dimensions but the last. */
static inline int64_t rows_of(const qn_shape *shape)
{
    int64_t rows = 1;
    for (int32_t i = 0; i + 1 < shape->ndim; i++) {
        rows *= shape->dims[i];
    }
    return rows;
}

static inline const char *row_of(const qn_view *view, int64_t row)
{
    const int32_t n = view->shape.ndim;
    const char *at = view->data;
    for (int32_t i = n - 2; i >= 0; i--) {
        at += row % view->shape.dims[i] * view->strides[i];
        row /= view->shape.dims[i];
    }
    return at;
}

static inline int64_t columns_of(const qn_shape *shape)
{
    return shape->ndim > 0 ? shape->dims[shape->ndim - 1] : 1;
}

static inline double element(qn_format format, const char *row, int64_t i)
{
    if (format == QN_I32) {
        return (double)ref_i32(row, i);
    }
    const qn_format_row *codec = qn_format_get_row(format);
    float value = 0.0f;
    codec->decode(row + i * codec->info.block_bytes, 1, &value);
    return (double)value;
}

/* Outputs of the vector-quantised operators. */
void qn_judge_vq(const qn_op_desc *desc, qn_sums sums, const qn_sizes *sizes, int32_t slot, const qn_view *want, const qn_view *got,
                 const qn_view in[QN_MAX_IN], qn_case_result *result);

/* 1 when the exact grid makes every order of an operation give the same bits. */
int qn_judge_vq_is_exact(const qn_op_desc *desc);

#endif
