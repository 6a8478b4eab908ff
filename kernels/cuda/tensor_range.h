/* The range of a whole tensor, for quantisers with one scale: a launch before theirs leaves it in parts, which
 * every warp of theirs joins. No word has to be set first, and no order of blocks changes the result. That launch
 * reads the rows from the first on and asks the L2 cache to keep the last; theirs reads from the last on. */
#ifndef QN_CUDA_TENSOR_RANGE_H
#define QN_CUDA_TENSOR_RANGE_H

#include "rows.h"

#define RANGE_THREADS 512
#define RANGE_DEPTH (8 / X_WORDS) /* lanes in flight */
#define RANGE_PARTS 256           /* largest magnitudes or values, then as many magnitudes of lowest values */

/* Launch: block RANGE_THREADS, grid of at most RANGE_PARTS blocks along x (rows) and y (within rows). aligned 1:
 * rows are multiples of 16 bytes from each other and of whole lanes. keep: the element of a row from which on the
 * cache keeps. */
static __device__ inline void find_tensor_range(const char *x, i64 x_row, i64 m, i64 k, i64 keep, int aligned,
                                                float *parts)
{
    range r = no_range();
    const u64 kept = keep_policy(), passed = pass_policy();
    for (i64 row = blockIdx.x; row < m; row += gridDim.x) {
        const char *const from = x + row * x_row;
        if (aligned) {
            const i64 step = (i64)RANGE_THREADS * PER * RANGE_DEPTH;
            for (i64 first = blockIdx.y * step; first < k; first += gridDim.y * step) {
                const u64 policy = first >= keep ? kept : passed;
                uint4 raw[RANGE_DEPTH][X_WORDS];
#pragma unroll
                for (int u = 0; u < RANGE_DEPTH; u++) {
                    const i64 column = first + (u * RANGE_THREADS + (int)threadIdx.x) * PER;
#pragma unroll
                    for (int w = 0; w < X_WORDS; w++) {
                        raw[u][w] = column < k ? load_by(policy, from + column * X_BYTES + w * 16) : uint4();
                    }
                }
#pragma unroll
                for (int u = 0; u < RANGE_DEPTH; u++) {
                    widen_by_lane(&r, raw[u]);
                }
            }
        } else {
            for (i64 i = blockIdx.y * RANGE_THREADS + threadIdx.x; i < k; i += gridDim.y * RANGE_THREADS) {
                widen_range(&r, load_one(from, i));
            }
        }
    }
    reduce_block(&r);
    const int part = (int)(blockIdx.x + blockIdx.y * gridDim.x), parted = (int)(gridDim.x * gridDim.y);
    for (int i = part + (int)threadIdx.x * parted; i < RANGE_PARTS; i += RANGE_THREADS * parted) { /* and the rest: 0 */
        parts[i] = i == part ? r.high : 0.0f;
#if ASYMMETRIC
        parts[RANGE_PARTS + i] = i == part ? fabsf(r.low) : 0.0f;
#endif
    }
}

/* Bits of floats that are not negative order as the floats do. */
static __device__ inline float join_parts(const float *parts)
{
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < RANGE_PARTS / 128; i++) {
        const uint4 v = ((const uint4 *)parts)[i * 32 + (int)threadIdx.x % 32];
        most = max(max(max(most, v.x), max(v.y, v.z)), v.w);
    }
    return __uint_as_float(__reduce_max_sync(0xffffffffu, most));
}

/* By whole warps; parts NULL: of no elements. */
static __device__ inline range join_tensor_range(const float *parts)
{
    range r = no_range();
    if (parts) {
        r.high = join_parts(parts);
#if ASYMMETRIC
        r.low = -join_parts(parts + RANGE_PARTS);
#endif
    }
    return r;
}

#endif
