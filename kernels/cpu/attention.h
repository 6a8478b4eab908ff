/* Attention parts (kernels/common/attention.h): outer products with the keys, or
 * the elements of v, in the lanes. Included once by attention.c of each folder,
 * after its vec.h. ATT_STORED: the folder has the functions for few rows. */
#include "kernels/common/attention.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/name.h"

#include <math.h>

#define ATT_NV (VL == 16 ? 4 : 2) /* vectors a register tile is wide */
#define ATT_MR (VL == 4 ? 2 : 6)

/* c[r][..] = or += sum over k ascending of a[r][k] b[k][..], ATT_NV vectors wide. */
QN_INLINE void outer(const int mr, const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count,
                     float *c, int64_t c_stride, const int accumulate, const int asks, qn_att_ahead ahead)
{
    vf acc[ATT_MR][ATT_NV];
    int64_t due = 0;
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            acc[r][v] = accumulate ? vf_load(c + r * c_stride + v * VL) : vf_set(0.0f);
        }
    }
    for (int64_t k = 0; k < count; k++) {
        vf bv[ATT_NV];
        if (asks) {
            for (due += ahead.count; due >= count; due -= count) {
                for (int64_t i = 0; i < ahead.bytes; i += 64) {
                    vec_prefetch(ahead.rows + i);
                }
                ahead.rows += ahead.stride;
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            bv[v] = vf_load(b + k * b_stride + v * VL);
        }
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++) {
            const vf av = vf_set(a[r * a_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < ATT_NV; v++) {
                acc[r][v] = vf_fma(av, bv[v], acc[r][v]);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATT_NV; v++) {
            vf_store(c + r * c_stride + v * VL, acc[r][v]);
        }
    }
}

/* The first rows, and the first columns of them, ask. */
QN_INLINE void outer_rows(const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t count, float *c,
                          int64_t c_stride, int64_t rows, int64_t width, const int accumulate, const int asks,
                          qn_att_ahead ahead)
{
    for (int64_t w = 0; w < width; w += ATT_NV * VL) {
        for (int64_t r = 0; r < rows; r += ATT_MR) {
            const float *const at = a + r * a_stride;
            float *const to = c + r * c_stride + w;
            ahead.count = r == 0 && w == 0 ? ahead.count : 0;
#define OUTER(mr) outer(mr, at, a_stride, b + w, b_stride, count, to, c_stride, accumulate, asks, ahead)
            switch (rows - r) {
            case 1: OUTER(1); break;
#if ATT_MR > 2
            case 2: OUTER(2); break;
            case 3: OUTER(3); break;
            case 4: OUTER(4); break;
            case 5: OUTER(5); break;
#endif
            default: OUTER(ATT_MR); break;
            }
#undef OUTER
        }
    }
}

static void att_scores(const float *q, int64_t q_stride, const float *kt, int64_t d, int64_t rows, float *s,
                       qn_att_ahead ahead)
{
    if (ahead.rows) {
        outer_rows(q, q_stride, kt, QN_ATT_PANEL, d, s, QN_ATT_CHUNK, rows, QN_ATT_PANEL, 0, 1, ahead);
    } else {
        outer_rows(q, q_stride, kt, QN_ATT_PANEL, d, s, QN_ATT_CHUNK, rows, QN_ATT_PANEL, 0, 0, ahead);
    }
}

/* exp(x - max), where a largest score of -infinity leaves only weights of 0 */
QN_INLINE vf weight(vf x, float max)
{
    return vf_exp(vf_sub(x, vf_set(max == -INFINITY ? 0.0f : max)));
}

static void att_softmax(float *s, int64_t visible, float scale, float *max, float *sum)
{
    const vf lowest = vf_set(-INFINITY), factor = vf_set(scale);
    vf most = lowest, total = vf_set(0.0f);
    for (int64_t i = 0; i < visible; i += VL) {
        const vf x = vf_keep(vf_mul(vf_load(s + i), factor), lowest, visible - i);
        vf_store(s + i, x);
        most = vf_max(x, most); /* the second operand where x is NaN */
    }
    *max = vf_highest(most);
    for (int64_t i = 0; i < visible; i += VL) {
        const vf p = weight(vf_load(s + i), *max);
        vf_store(s + i, p);
        total = vf_add(total, p);
    }
    *sum = vf_sum(total);
}

static void att_values(const float *p, const float *v, int64_t v_stride, int64_t d_pad, int64_t keys, int64_t rows,
                       int start, float *o, qn_att_ahead ahead)
{
    if (ahead.rows && start) {
        outer_rows(p, QN_ATT_CHUNK, v, v_stride, keys, o, d_pad, rows, d_pad, 0, 1, ahead);
    } else if (ahead.rows) {
        outer_rows(p, QN_ATT_CHUNK, v, v_stride, keys, o, d_pad, rows, d_pad, 1, 1, ahead);
    } else if (start) {
        outer_rows(p, QN_ATT_CHUNK, v, v_stride, keys, o, d_pad, rows, d_pad, 0, 0, ahead);
    } else {
        outer_rows(p, QN_ATT_CHUNK, v, v_stride, keys, o, d_pad, rows, d_pad, 1, 0, ahead);
    }
}

static void att_merge(float *max, float *sum, float *o, float part_max, float part_sum, const float *part_o,
                      int64_t d_pad)
{
    const float most = part_max > *max ? part_max : *max;
    const vf old = weight(vf_set(*max), most), new = weight(vf_set(part_max), most);
    for (int64_t i = 0; i < d_pad; i += VL) {
        vf_store(o + i, vf_fma(vf_load(o + i), old, vf_mul(vf_load(part_o + i), new)));
    }
    float both[VL];
    vf_store(both, vf_fma(vf_set(*sum), old, vf_mul(vf_set(part_sum), new)));
    *sum = both[0];
    *max = most;
}

static void att_finish(const float *o, float sum, int64_t d, float *out)
{
    for (int64_t i = 0; i < d; i++) {
        out[i] = o[i] / sum;
    }
}

static void att_transpose(const float *k, int64_t k_stride, int64_t d, float *kt)
{
    for (int64_t key = 0; key < QN_ATT_PANEL; key += VL) {
        for (int64_t i = 0; i < d; i += 4) {
            vf_columns4(k + key * k_stride + i, k_stride, kt + i * QN_ATT_PANEL + key, QN_ATT_PANEL);
        }
    }
}

const qn_att_set QN_NAME(att) = {.scores = att_scores,
                                 .softmax = att_softmax,
                                 .values = att_values,
                                 .merge = att_merge,
                                 .finish = att_finish,
                                 .transpose = att_transpose,
#ifdef ATT_STORED
                                 .stored_dims = {[QN_ATT_F32] = STORED_F32 ? TILE : 0,
                                                 [QN_ATT_F16] = WHOLE(TURN16),
                                                 [QN_ATT_BF16] = WHOLE(TURN16),
                                                 [QN_ATT_E4M3] = WHOLE(TURN8)},
                                 .stored_scores = stored_scores,
                                 .stored_values = stored_values,
                                 .stored_ready = stored_ready,
                                 .narrow = ATT_NARROW
#endif
};
