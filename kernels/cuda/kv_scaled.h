/* A head of keys or values as e4m3 with a scale, as quantize_fp8 makes it by group (kv_keep.cu, kv_step.cu).
 *
 * Parameters: those of rows.h, 0 */
#ifndef QN_CUDA_KV_SCALED_H
#define QN_CUDA_KV_SCALED_H

#include "rows.h"
#include "cuda_vq_kv.h"

/* By a warp: elements index(j), of a lane's v[j]; index below 0: there is none, v[j] is 0. */
template <class element_index>
static __device__ inline void put_scaled(const float *v, char *y, float *scale, element_index index)
{
    range r = no_range();
#pragma unroll
    for (int j = 0; j < PER; j++) {
        widen_range(&r, v[j]);
    }
    reduce_lanes(&r, 32);
    const float s = ratio(fmaxf(r.high, 1e-10f), CODE_MAX);
    const divisor by = divide_by(s);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        if (index(j) >= 0) {
            ((u8 *)y)[index(j)] = (u8)two_codes(quotient(v[j], by), 0.0f);
        }
    }
    if (threadIdx.x % 32 == 0) {
        *scale = s;
    }
}

#endif
