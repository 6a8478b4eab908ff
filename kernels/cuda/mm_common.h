/* What the matrix products with weights of any format share beside the weights:
 * activations as floats (or int8), and what becomes of a sum.
 *
 * Parameters beside those of mm_unpack.h
 *   A_FORMAT, X_FORMAT   of activations: QN_MM_PLAIN: X_FORMAT; else codes (kernels/common/cuda_mm.h)
 *   OUT, BIAS            format of d; of the bias + 1, 0: none
 *   AZP                  1: azp_adj is subtracted from int8 sums; 2: times the row's azp */
#ifndef QN_CUDA_MM_COMMON_H
#define QN_CUDA_MM_COMMON_H

#include "mm_unpack.h"

#define INT_SUMS (B_FORMAT == QN_MM_I8)
#define CHANNEL_SCALES (B_FORMAT == QN_MM_E4M3 || B_FORMAT == QN_MM_I8)
#define ROW_SCALES (A_FORMAT == QN_MM_A_E4M3 || A_FORMAT == QN_MM_A_I8)

#if INT_SUMS
typedef int sum_t;
#else
typedef float sum_t;
#endif

/* The weight that column n of d belongs to; *n becomes the row of it. */
DEV int part_of(const qn_cuda_mm &a, int *n)
{
#if CHAIN
    int i = 0;
    while (i + 1 < QN_CUDA_MM_PARTS && *n >= a.part[i].n) {
        *n -= a.part[i++].n;
    }
    return i;
#else
    return 0;
#endif
}

/* Element i of row m as the number that is multiplied; codes whose scale is of the row without it. */
DEV float load_x(const qn_cuda_mm &a, int m, int i)
{
    const char *const row = a.x + m * a.x_row;
#if A_FORMAT == QN_MM_A_E4M3
    return e4m3_float(((const u8 *)row)[i]);
#elif A_FORMAT == QN_MM_A_I8
    return (float)((const signed char *)row)[i];
#elif A_FORMAT == QN_MM_A_BLOCK
    const char *const scale = a.x_scale + m * a.x_scale_row + i / 128 * a.x_scale_block;
    return e4m3_float(((const u8 *)row)[i]) * *(const float *)scale;
#elif A_FORMAT == QN_MM_A_NVFP4
    float v[8];
    const u32 two = ((const u8 *)row)[i / 2];
    e2m1_floats(two >> i % 2 * 4 & 15, e4m3_float(((const u8 *)a.x_scale)[m * a.x_scale_row + i / 16]), v);
    return v[0];
#else
    return load_float(row, i, X_FORMAT);
#endif
}

/* What a column's sums are finished with: read before they are there. */
struct tail {
    float scale, bias, global;
    int azp_adj;
};

DEV tail load_tail(const qn_cuda_mm_part &p, int n)
{
    tail t = {1.0f, 0.0f, 1.0f, 0};
#if BIAS
    t.bias = load_float(p.bias, n, BIAS - 1);
#endif
#if CHANNEL_SCALES
    t.scale = *(const float *)(p.b_scale + n * p.b_scale_row);
#elif B_FORMAT == QN_MM_AQLM
    t.scale = load_float(p.b_scale + n * p.b_scale_row, 0, SCALE_FORMAT);
#endif
#if B_FORMAT == QN_MM_NVFP4
    t.global = *(const float *)p.b_global;
#endif
#if AZP
    t.azp_adj = ((const int *)p.azp_adj)[n];
#endif
    return t;
}

/* A sum's result. scale_a, azp, a_global: of the row, where the format has them. */
DEV float finish(const tail &t, sum_t sum, float scale_a, int azp, float a_global)
{
#if CHANNEL_SCALES
#if AZP == 2
    sum = (int)((u32)sum - (u32)azp * (u32)t.azp_adj);
#elif AZP == 1
    sum = (int)((u32)sum - (u32)t.azp_adj);
#endif
    const float v = (float)sum * t.scale;
#else
    float v = sum;
#if B_FORMAT == QN_MM_NVFP4
    v = v / (A_FORMAT == QN_MM_A_NVFP4 ? t.global * a_global : t.global);
#elif B_FORMAT == QN_MM_AQLM
    v = v * t.scale;
#endif
#endif
#if ROW_SCALES
    return BIAS ? __fmaf_rn(scale_a, v, t.bias) : v * scale_a;
#else
    return BIAS ? v + t.bias : v;
#endif
}

DEV float row_scale(const qn_cuda_mm &a, int m)
{
#if ROW_SCALES
    return *(const float *)(a.x_scale + m * a.x_scale_row);
#else
    return 1.0f;
#endif
}

DEV int row_azp(const qn_cuda_mm &a, int m)
{
#if AZP == 2
    return *(const int *)(a.azp + m * a.azp_row);
#else
    return 0;
#endif
}

DEV float row_global(const qn_cuda_mm &a)
{
#if A_FORMAT == QN_MM_A_NVFP4
    return *(const float *)a.x_global;
#else
    return 1.0f;
#endif
}

/* Scales of weight row n: a row of the table, or of its 128-block, or its tile of 256. */
DEV const u8 *scales_of(const qn_cuda_mm_part &p, int n)
{
#if B_FORMAT == QN_MM_E4M3_BLOCK || B_FORMAT == QN_MM_E5M2_BLOCK
    return (const u8 *)p.b_scale + n / 128 * p.b_scale_row;
#elif B_FORMAT == QN_MM_GPTVQ
    return (const u8 *)p.b_scale + n / 256 * p.b_scale_row;
#else
    return (const u8 *)p.b_scale + n * p.b_scale_row;
#endif
}

#endif
