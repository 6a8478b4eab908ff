/* Sums over a warp and over a block of so many threads, in an order that nothing changes; every thread has them. */
#ifndef QN_CUDA_SUMS_H
#define QN_CUDA_SUMS_H

#include "ptx.h"

DEV float sum_warp(float v)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, step);
    }
    return v;
}

/* Before the next one of a loop the block meets. */
template <int threads> DEV float sum_block(float v)
{
    __shared__ float parts[threads / 32];
    v = sum_warp(v);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = 0.0f;
#pragma unroll
    for (int i = 0; i < threads / 32; i++) {
        v += parts[i];
    }
    return v;
}

#endif
