/* scaled_mm for operands of any alignment and size: where the tensor maps of scaled_mm.cu cannot be (K, strides or
 * addresses that are no multiple of 16, K = 0). Bytes are read one by one; FP8 sums are f32, INT8 ones int32.
 *
 * Host contract
 *   Parameters: INT8, OUT, BIAS, AZP as in scaled_mm.cu
 *   Arguments: a[row * a_row + k], b[n * b_row + k], the rest as there
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / 64), ceil(M / 64), 1}
 *   Limits: N >= 1, M >= 1. */
#include "ptx.h"

#define TILE 64
#define STEP 32 /* of K at a time */

#if INT8
typedef int value;
DEV value decode(u8 code)
{
    return (signed char)code;
}
#define MULTIPLY_ADD(a, b, c) ((int)((u32)(c) + (u32)((a) * (b))))
#else
typedef float value;
DEV value decode(u8 code)
{
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)code));
    return widen_f16((u16)pair);
}
#define MULTIPLY_ADD(a, b, c) __fmaf_rn(a, b, c)
#endif

DEV void store(void *d, i64 at, float v)
{
#if OUT == 2
    ((float *)d)[at] = v;
#elif OUT == 0
    ((u16 *)d)[at] = (u16)pack_bf16(v, 0.0f);
#else
    ((u16 *)d)[at] = (u16)pack_f16(v, 0.0f);
#endif
}

DEV float load_bias(const void *bias, int n)
{
#if BIAS == 1
    return ((const float *)bias)[n];
#else
    const u16 bits = ((const u16 *)bias)[n];
    return BIAS == 2 ? widen_f16(bits) : __uint_as_float((u32)bits << 16);
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2)
    qn_scaled_mm_plain(const u8 *a, i64 a_row, const u8 *b, i64 b_row, const float *scale_a, i64 scale_a_step,
                       const float *scale_b, i64 scale_b_step, const void *bias, const int *adjust, const int *azp,
                       i64 azp_step, void *d, i64 d_row, int m, int n, int k)
{
    __shared__ value a_tile[STEP][TILE + 1], b_tile[STEP][TILE + 1];
    const int row0 = (int)blockIdx.y * TILE, column0 = (int)blockIdx.x * TILE;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    value sums[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += STEP) {
        for (int i = (int)threadIdx.x; i < TILE * STEP; i += 256) {
            const int row = i / STEP, kk = i % STEP, inside = k0 + kk < k;
            a_tile[kk][row] = inside && row0 + row < m ? decode(a[(row0 + row) * a_row + k0 + kk]) : (value)0;
            b_tile[kk][row] = inside && column0 + row < n ? decode(b[(column0 + row) * b_row + k0 + kk]) : (value)0;
        }
        __syncthreads();
#pragma unroll 8
        for (int kk = 0; kk < STEP; kk++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sums[i][j] = MULTIPLY_ADD(a_tile[kk][y + 16 * i], b_tile[kk][x + 16 * j], sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = row0 + y + 16 * i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = column0 + x + 16 * j;
            if (row < m && column < n) {
#if AZP == 2
                sums[i][j] = (int)((u32)sums[i][j] - (u32)azp[row * azp_step] * (u32)adjust[column]);
#elif AZP == 1
                sums[i][j] = (int)((u32)sums[i][j] - (u32)adjust[column]);
#endif
                const float t = (float)sums[i][j] * scale_b[column * scale_b_step], sa = scale_a[row * scale_a_step];
#if BIAS
                store(d, row * d_row + column, __fmaf_rn(sa, t, load_bias(bias, column)));
#else
                store(d, row * d_row + column, t * sa);
#endif
            }
        }
    }
}
