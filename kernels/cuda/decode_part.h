/* What kernels that leave parts of one token's attention (parts.h) share: a block of 128 threads has a part, a thread a
 * key for the scores, a warp the values of its own keys. */
#ifndef QN_CUDA_DECODE_PART_H
#define QN_CUDA_DECODE_PART_H

#include "parts.h"

#define WARPS 4
#define NONE __int_as_float(0xff800000u)

DEV void copy_async_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

/* Weights of the part's keys, beside its largest score, which is returned; all: their sums, a warp's each. */
DEV float weigh(float score, float *weights, float *high, float *all, int lane, int warp)
{
    float most = score;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    if (lane == 0) {
        high[warp] = most;
    }
    __syncthreads();
    most = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    const float weight = score == NONE ? 0.0f : exp_base2(score - most);
    weights[threadIdx.x] = weight;
    float total = weight;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        total += __shfl_xor_sync(0xffffffffu, total, step);
    }
    if (lane == 0) {
        all[warp] = total;
    }
    return most;
}

/* The part of head blockIdx.y, from the warps' sums of values. */
DEV void leave_part(char *partials, int heads, const float (*sums)[SIZE], float most, const float *all)
{
    float *const out = (float *)partials + ((i64)blockIdx.x * heads + (int)blockIdx.y) * PART_PITCH(SIZE);
    for (int i = (int)threadIdx.x; i < SIZE; i += 128) {
        out[i] = sums[0][i] + sums[1][i] + sums[2][i] + sums[3][i];
    }
    if (threadIdx.x == 0) {
        out[SIZE] = most;
        out[SIZE + 1] = all[0] + all[1] + all[2] + all[3];
    }
}

#endif
