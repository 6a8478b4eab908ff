/* Attention parts (kernels/common/attention.h): outer products with the keys, or
 * the elements of v, in the lanes; softmax with a running maximum. Included once
 * by attention.c of each folder, after its vec.h. */
#include "kernels/common/attention.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/name.h"

#include <math.h>

#define ATT_NV (VL == 16 ? 4 : 2) /* vectors a register tile is wide */
#define ATT_MR 4

/* c[r][..] (+)= sum over k ascending of a[r][k] b[k][..], ATT_NV vectors wide. */
QN_INLINE void outer(const int mr, const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count,
                     float *c, int64_t c_stride, const int accumulate)
{
    vf acc[ATT_MR][ATT_NV];
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            acc[r][v] = accumulate ? vf_load(c + r * c_stride + v * VL) : vf_set(0.0f);
        }
    }
    for (int64_t k = 0; k < count; k++) {
        vf bv[ATT_NV];
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            bv[v] = vf_load(b + k * b_stride + v * VL);
        }
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            const vf av = vf_set(a[r * a_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < ATT_NV; v++) {
                acc[r][v] = vf_fma(av, bv[v], acc[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            vf_store(c + r * c_stride + v * VL, acc[r][v]);
        }
    }
}

QN_INLINE void outer_rows(const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count, float *c,
                          int64_t c_stride, int64_t rows, int64_t width, const int accumulate)
{
    for (int64_t w = 0; w < width; w += ATT_NV * VL) {
        int64_t r = 0;
        for (; r + ATT_MR <= rows; r += ATT_MR) {
            outer(ATT_MR, a + r * a_stride, a_stride, b + w, b_stride, count, c + r * c_stride + w, c_stride,
                  accumulate);
        }
        if (r + 3 == rows) {
            outer(3, a + r * a_stride, a_stride, b + w, b_stride, count, c + r * c_stride + w, c_stride, accumulate);
        } else {
            for (; r < rows; r++) {
                outer(1, a + r * a_stride, a_stride, b + w, b_stride, count, c + r * c_stride + w, c_stride,
                      accumulate);
            }
        }
    }
}

static void att_scores(const float *q, int64_t q_stride, const float *kt, int64_t d, int64_t rows, float *s)
{
    outer_rows(q, q_stride, kt, QN_ATT_KEYS, d, s, QN_ATT_KEYS, rows, QN_ATT_KEYS, 0);
}

static void att_softmax(float *s, int64_t visible, float scale, float *max, float *lanes, float *o, int64_t d_pad)
{
    const vf lowest = vf_set(-INFINITY);
    vf most = vf_set(*max);
    for (int i = 0; i < QN_ATT_KEYS; i += VL) {
        const vf x = vf_keep(vf_mul(vf_load(s + i), vf_set(scale)), lowest, visible - i);
        vf_store(s + i, x);
        most = vf_max(x, most);
    }
    const float now = vf_highest(most);
    if (now != *max) {
        const vf factor = vf_exp(vf_set(*max - now));
        for (int i = 0; i < QN_ATT_LANES; i += VL) {
            vf_store(lanes + i, vf_mul(vf_load(lanes + i), factor));
        }
        for (int64_t i = 0; i < d_pad; i += VL) {
            vf_store(o + i, vf_mul(vf_load(o + i), factor));
        }
        *max = now;
    }
    for (int i = 0; i < QN_ATT_KEYS; i += VL) {
        const vf p = vf_keep(vf_exp(vf_sub(vf_load(s + i), vf_set(now))), vf_set(0.0f), visible - i);
        vf_store(s + i, p);
        float *const l = lanes + i % QN_ATT_LANES;
        vf_store(l, vf_add(vf_load(l), p));
    }
}

static void att_values(const float *p, const float *v, int64_t d_pad, int64_t keys, int64_t rows, float *o)
{
    outer_rows(p, QN_ATT_KEYS, v, d_pad, keys, o, d_pad, rows, d_pad, 1);
}

static void att_finish(const float *o, const float *lanes, int64_t d, float *out)
{
    vf sum = vf_load(lanes);
    for (int i = VL; i < QN_ATT_LANES; i += VL) {
        sum = vf_add(sum, vf_load(lanes + i));
    }
    const float total = vf_sum(sum);
    for (int64_t i = 0; i < d; i++) {
        out[i] = o[i] / total;
    }
}

static void att_transpose(const float *k, int64_t k_stride, int64_t d, float *kt)
{
    for (int64_t i0 = 0; i0 < d; i0 += 16) {
        const int64_t i1 = i0 + 16 < d ? i0 + 16 : d;
        for (int64_t key = 0; key < QN_ATT_KEYS; key++) {
            for (int64_t i = i0; i < i1; i++) {
                kt[i * QN_ATT_KEYS + key] = k[key * k_stride + i];
            }
        }
    }
}

const qn_att_set QN_NAME(att) = {.scores = att_scores,
                                 .softmax = att_softmax,
                                 .values = att_values,
                                 .finish = att_finish,
                                 .transpose = att_transpose};
