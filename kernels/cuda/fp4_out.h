/* Sums of products with FP4 weights to results: what fp4_mm_few.cu, fp4_mm.cu and fp4_mm_wide.cu end with.
 *
 * Parameter SUMS_ONLY 1: rows of x are planes of others', whose sums mm_join.cu adds and finishes: d has them as they
 * are, as f32.
 */
#ifndef QN_CUDA_FP4_OUT_H
#define QN_CUDA_FP4_OUT_H

#include "fp4_pairs.h"
#include "mm_common.h"

/* What four sums are finished with. */
typedef struct tails {
    tail of[4];
    float row_scale;
} tails;

DEV tails load_tails(const qn_cuda_mm &a, int row, int n)
{
    tails t;
    t.row_scale = row_scale(a, row);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        t.of[c] = load_tail(a.part[0], n + c < a.n ? n + c : a.n - 1);
    }
    return t;
}

#if !IS_MX
/* Whether a number is far from the ends of f32. */
DEV bool is_middling(float v)
{
    return (__float_as_uint(v) << 1) - (67u << 24) < 120u << 24;
}

/* Four numbers divided by one: the steps of a division, whose branch for numbers near the ends of f32 is there once. */
DEV void divide_four(float *v, float by)
{
    float r, q[4];
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(by));
    r = __fmaf_rn(r, __fmaf_rn(-by, r, 1.0f), r);
    bool middling = is_middling(by);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        q[c] = v[c] * r;
        q[c] = __fmaf_rn(r, __fmaf_rn(-by, q[c], v[c]), q[c]);
        middling &= v[c] == 0.0f || is_middling(v[c]); /* rows of zeros are common */
    }
    if (middling) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            v[c] = q[c];
        }
        return;
    }
#pragma unroll 1
    for (int c = 0; c < 4; c++) {
        const float first = v[0] / by;
        v[0] = v[1], v[1] = v[2], v[2] = v[3], v[3] = first;
    }
}
#endif

/* Four sums of row `row` and columns from n on, finished and stored. */
DEV void store_four(const qn_cuda_mm &a, int row, int n, const tails &t, float *v)
{
    const qn_cuda_mm_part &w = a.part[0];
    const u32 out_bytes = OUT == QN_MM_F32 ? 4 : 2;
    const int vector = ((u64)w.d | (u64)w.d_row) % (4 * out_bytes) == 0;
    char *const to = w.d + row * w.d_row;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        v[c] *= FACTOR;
    }
#if !SUMS_ONLY
#if !IS_MX
    divide_four(v, t.of[0].global * row_global(a));
#endif
#pragma unroll
    for (int c = 0; c < 4; c++) {
        tail own = t.of[c];
        own.global = 1.0f;
        v[c] = finish(own, v[c], t.row_scale, 0, 1.0f);
    }
#endif
    if (vector && n + 3 < a.n) {
#if OUT == QN_MM_F32
        *(float4 *)(to + (i64)n * 4) = make_float4(v[0], v[1], v[2], v[3]);
#elif OUT == QN_MM_F16
        *(uint2 *)(to + (i64)n * 2) = make_uint2(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]));
#else
        *(uint2 *)(to + (i64)n * 2) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
#endif
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            if (n + c < a.n) {
                store_float(to, n + c, v[c], OUT);
            }
        }
    }
}

#endif
