/* The range of a whole tensor, for quantisers with one scale: a launch before theirs leaves a part a block, which every
 * block of theirs joins. No word has to be set first, and no order of blocks changes the result. That launch reads the
 * rows from the first on and theirs from the last on, so that what the L2 cache still holds is not read again. */
#ifndef QN_CUDA_TENSOR_RANGE_H
#define QN_CUDA_TENSOR_RANGE_H

#include "rows.h"

#define RANGE_THREADS 512
#define RANGE_DEPTH (8 / X_WORDS) /* lanes in flight */

/* Launch: block RANGE_THREADS, any grid along x (rows) and y (within rows); parts gridDim.x gridDim.y. aligned 1: rows
 * are multiples of 16 bytes from each other and of whole lanes. */
static __device__ inline void find_tensor_range(const char *x, i64 x_row, i64 m, i64 k, int aligned, range *parts)
{
    range r = no_range();
    for (i64 row = blockIdx.x; row < m; row += gridDim.x) {
        const char *const from = x + row * x_row;
        if (aligned) {
            const i64 step = (i64)RANGE_THREADS * PER * RANGE_DEPTH;
            for (i64 first = blockIdx.y * step; first < k; first += gridDim.y * step) {
                uint4 raw[RANGE_DEPTH][X_WORDS];
#pragma unroll
                for (int u = 0; u < RANGE_DEPTH; u++) {
                    const i64 column = first + (u * RANGE_THREADS + (int)threadIdx.x) * PER;
#pragma unroll
                    for (int w = 0; w < X_WORDS; w++) {
                        raw[u][w] = column < k ? load_once(from + column * X_BYTES + w * 16) : make_uint4(0, 0, 0, 0);
                    }
                }
#pragma unroll
                for (int u = 0; u < RANGE_DEPTH; u++) {
                    float v[PER];
                    unpack(raw[u], v);
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        widen_range(&r, v[i]);
                    }
                }
            }
        } else {
            for (i64 i = blockIdx.y * RANGE_THREADS + threadIdx.x; i < k; i += gridDim.y * RANGE_THREADS) {
                widen_range(&r, load_one(from, i));
            }
        }
    }
    reduce_block(&r);
    if (threadIdx.x == 0) {
        parts[blockIdx.x + blockIdx.y * gridDim.x] = r;
    }
}

/* By all threads of a block. */
static __device__ inline range join_tensor_range(const range *parts, int count)
{
    range r = no_range();
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        const range part = parts[i];
#if ASYMMETRIC
        r.low = fminf(r.low, part.low);
#endif
        r.high = fmaxf(r.high, part.high);
    }
    reduce_block(&r);
    return r;
}

#endif
