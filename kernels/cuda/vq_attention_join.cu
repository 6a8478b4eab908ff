/* The second pass of vq_attention where tokens are cut: parts of a head in their order, those with tokens, and the
 * recent ones'.
 *
 * Host contract
 *   Parameters: OUT, the result's format; LENS as for vq_attention_plain.cu
 *   Launch: block 128, grid {query heads, sequences} */
#include "formats.h"
#include "vq_attention_parts.h"

#define MOST_PARTS 1025 /* and the recent ones */

extern "C" __global__ void __launch_bounds__(128) qn_vq_attention_join(const __grid_constant__ qn_cuda_vq_attention a)
{
    __shared__ float weights[MOST_PARTS], totals[MOST_PARTS], high[4];
    const int head = (int)blockIdx.x, sequence = (int)blockIdx.y;
    release_next();
    wait_before();
    const int pitch = a.size + 2, length = length_of(a, sequence), coded = used_parts(a, length);
    const int count = coded + a.all_parts - a.parts;
    const float *const p = part_of(a, sequence, head, 0);
    float most = NONE;
    for (int i = (int)threadIdx.x; i < count; i += 128) {
        const float *const of_all = p + (i < coded ? i : a.parts) * pitch + a.size;
        weights[i] = of_all[0];
        totals[i] = of_all[1];
        most = fmaxf(most, weights[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    high[threadIdx.x / 32] = most;
    __syncthreads();
    most = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    for (int i = (int)threadIdx.x; i < count; i += 128) {
        weights[i] = part_weight(weights[i], most);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < a.size; d += 128) {
        float all = 0.0f, sum = 0.0f;
#pragma unroll 8
        for (int i = 0; i < count; i++) {
            all = __fmaf_rn(weights[i], totals[i], all);
            sum = __fmaf_rn(weights[i], p[(i < coded ? i : a.parts) * pitch + d], sum);
        }
        put_result(a, sequence, head, d, length, most, all, sum);
    }
}
