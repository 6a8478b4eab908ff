/* The second pass of vq_attention where tokens are cut: parts of a head in their order.
 *
 * Host contract
 *   Parameters: OUT, the result's format; LENS as for vq_attention_plain.cu
 *   Launch: block 128, grid {query heads, sequences} */
#include "formats.h"
#include "vq_attention_parts.h"

extern "C" __global__ void __launch_bounds__(128) qn_vq_attention_join(const __grid_constant__ qn_cuda_vq_attention a)
{
    const int head = (int)blockIdx.x, sequence = (int)blockIdx.y;
    release_next();
    wait_before();
    const float *const p = part_of(a, sequence, head, 0);
    const int pitch = a.size + 2, length = length_of(a, sequence);
    float most = NONE;
    for (int i = 0; i < a.all_parts; i++) {
        most = fmaxf(most, p[i * pitch + a.size]);
    }
    for (int d = (int)threadIdx.x; d < a.size; d += 128) {
        float all = 0.0f, sum = 0.0f;
        for (int i = 0; i < a.all_parts; i++) {
            const float weight = part_weight(p[i * pitch + a.size], most);
            all = __fmaf_rn(weight, p[i * pitch + a.size + 1], all);
            sum = __fmaf_rn(weight, p[i * pitch + d], sum);
        }
        put_result(a, sequence, head, d, length, most, all, sum);
    }
}
