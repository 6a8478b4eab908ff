/* Codes written out as bf16 or f16: FP4 with their block scales, what the products of fp4_mm.cu take as rows of x where
 * those are codes too, and dense_mm.cu as weights where there are many rows; and rows of x of int8 or e4m3, whose scales
 * are for sums. Exact: a product of a FP4 code and its scale has at most six significant bits, an int8 eight; those of
 * MXFP4 are a quarter of what they stand for, so that the largest is a bf16 and the smallest still is one.
 *
 * Host contract
 *   Parameters: B_FORMAT QN_MM_NVFP4, QN_MM_MXFP4, QN_MM_I8 or QN_MM_E4M3; X_FORMAT what is written: bf16, with NVFP4
 *     also f16
 *   Arguments: rows of codes and of scales with their steps in bytes, codes by words, of 8 bits by two; to: [rows][k]
 *     without gaps, 16-aligned; factors: NULL or `count` numbers that sums are multiplied by: of FP4 those of
 *     written-out weights, of 8 bits the rows' f32 scales without gaps (scale_step 0: there is one for all); global and
 *     x_global: scales that NVFP4's sums are divided by, x_global may be NULL
 *   Launch: block 256, any grid. K a multiple of the format's block, of 8 bits of 8. */
#define ALIGNED 1
#include "mm_unpack.h"

#define THREADS 256
#define UNROLL 4
#define IS_FP4 (B_FORMAT == QN_MM_NVFP4 || B_FORMAT == QN_MM_MXFP4)

/* Eight codes. */
#if IS_FP4
typedef u32 eight;
#else
typedef uint2 eight;
#endif

DEV u32 pack(float low, float high)
{
    return X_FORMAT == QN_MM_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

/* scale: of FP4. */
DEV void decode(eight codes, u32 scale, float *v)
{
#if IS_FP4
    e2m1_floats(codes, B_FORMAT == QN_MM_NVFP4 ? e4m3_float(scale) : e8m0_float(scale) * 0.25f, v);
#else
    const raw r = {{codes.x, codes.y}};
    decode8(r, 0, v);
#endif
}

/* What sums of row i are multiplied by. */
DEV float factor_of(const u8 *scales, i64 scale_step, const float *global, const float *x_global, u32 i)
{
#if B_FORMAT == QN_MM_NVFP4
    return 1.0f / (x_global ? *global * *x_global : *global);
#elif B_FORMAT == QN_MM_MXFP4
    return 4.0f;
#else
    return *(const float *)(scales + i * scale_step);
#endif
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
            factors[i] = factor_of(scales, scale_step, global, x_global, i);
        }
    }
    for (i64 first = thread; first < all; first += (i64)UNROLL * threads) {
        eight word[UNROLL];
        u32 scale[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const i64 at = first + (i64)i * threads < all ? first + (i64)i * threads : first, row = at / words;
            const u32 column = (u32)(at - row * words);
            word[i] = ((const eight *)(codes + row * row_step))[column];
            scale[i] = IS_FP4 ? scales[row * scale_step + column / (UNIT / 8)] : 0;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            float v[8];
            if (first + (i64)i * threads < all) {
                decode(word[i], scale[i], v);
                to[first + (i64)i * threads] =
                    make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
            }
        }
    }
}
