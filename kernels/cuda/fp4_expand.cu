/* FP4 codes with their block scales written out as bf16 or f16: what the products of fp4_mm.cu take as rows of x where
 * those are codes too, and dense_mm.cu as weights where there are many rows. Exact: a product of a code and its scale
 * has at most six significant bits; those of MXFP4 are a quarter of what they stand for, so that the largest is a bf16
 * and the smallest still is one.
 *
 * Host contract
 *   Parameters: B_FORMAT QN_MM_NVFP4 or QN_MM_MXFP4; X_FORMAT what is written: bf16, with NVFP4 also f16
 *   Arguments: rows of codes and of scales with their steps in bytes, codes by words; to: [rows][k] without gaps,
 *     16-aligned; factors: NULL or `count` numbers that a sum of written-out weights is multiplied by; global and
 *     x_global: scales that NVFP4's sums are divided by, x_global may be NULL
 *   Launch: block 256, any grid. K a multiple of the format's block. */
#define ALIGNED 1
#include "mm_unpack.h"

#define THREADS 256
#define UNROLL 4

DEV u32 pack(float low, float high)
{
    return X_FORMAT == QN_MM_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qn_fp4_expand(const u8 *codes, i64 row_step, const u8 *scales, i64 scale_step, uint4 *to, float *factors,
                  const float *global, const float *x_global, int rows, int k, int count)
{
    const u32 words = (u32)k / 8, thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    const i64 all = (i64)rows * words;
    release_next();
    wait_before(); /* the product before reads what is overwritten here */
    if (factors) {
        for (u32 i = thread; i < (u32)count; i += threads) {
            factors[i] = B_FORMAT == QN_MM_MXFP4 ? 4.0f : 1.0f / (x_global ? *global * *x_global : *global);
        }
    }
    for (i64 first = thread; first < all; first += (i64)UNROLL * threads) {
        u32 word[UNROLL], scale[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const i64 at = first + (i64)i * threads < all ? first + (i64)i * threads : first, row = at / words;
            const u32 column = (u32)(at - row * words);
            word[i] = ((const u32 *)(codes + row * row_step))[column];
            scale[i] = scales[row * scale_step + column / (UNIT / 8)];
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            float v[8];
            if (first + (i64)i * threads < all) {
                e2m1_floats(word[i], B_FORMAT == QN_MM_NVFP4 ? e4m3_float(scale[i]) : e8m0_float(scale[i]) * 0.25f, v);
                to[first + (i64)i * threads] =
                    make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
            }
        }
    }
}
