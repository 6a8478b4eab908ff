/* Sums of the parts that attention_tiles.cu leaves, in their order. A warp has a row.
 *
 * Host contract
 *   Parameters: WINDOW 0 or 1; OUT; SIZE: a multiple of 16, at most 128
 *   Launch: block 128, grid {ceil(queries * group / 4), key heads} */
#include "attention_tiles.h"

extern "C" __global__ void __launch_bounds__(128) qn_attention_join(const __grid_constant__ qn_cuda_attention_tiles a)
{
    const int r = (int)blockIdx.x * 4 + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, head = (int)blockIdx.y;
    release_next();
    wait_before();
    if (r >= a.queries * a.group) {
        return;
    }
    const int seen = end_of(seen_by(a, r)), parts = seen > a.part_keys ? (seen + a.part_keys - 1) / a.part_keys : 1;
    const float *const from = a.partials + ((i64)head * a.queries * a.group + r) * a.parts * (SIZE + 2);
    float most = NONE, total = 0.0f, o[PAIRS][2] = {};
    for (int i = 0; i < parts; i++) {
        const float2 of = *(const float2 *)(from + i * (SIZE + 2) + SIZE);
        const float high = fmaxf(most, of.x), base = high == NONE ? 0.0f : high;
        const float keep = weight_of(most - base), weight = weight_of(of.x - base);
        most = high;
        total = __fmaf_rn(total, keep, weight * of.y);
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const int d = 2 * lane + 64 * j;
            const float2 v = d < SIZE ? *(const float2 *)(from + i * (SIZE + 2) + d) : make_float2(0.0f, 0.0f);
            o[j][0] = __fmaf_rn(o[j][0], keep, weight * v.x);
            o[j][1] = __fmaf_rn(o[j][1], keep, weight * v.y);
        }
    }
    const row_place p = place_of(a, r);
    const float by = seen > 0 ? reciprocal(total) : 0.0f;
    char *const to = a.o + p.query * a.o_row + (head * a.group + p.head) * a.o_head;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int d = 2 * lane + 64 * j;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (d < SIZE) {
                store_float(to, d + e, seen > 0 ? o[j][e] * by : 0.0f, OUT);
            }
        }
    }
}
