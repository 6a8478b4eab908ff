/* Sums of the parts that attention_tiles.cu leaves, in their order. A warp has a row.
 *
 * Host contract
 *   Parameters: WINDOW 0 or 1; OUT; SIZE: a multiple of 16, at most 128
 *   Launch: block 128, grid {ceil(queries * group / 4), key heads} */
#include "attention_tiles.h"

#define AT_ONCE 8 /* parts whose reading is waited for together */

extern "C" __global__ void __launch_bounds__(128, 4)
    qn_attention_join(const __grid_constant__ qn_cuda_attention_tiles a)
{
    const int r = (int)blockIdx.x * 4 + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, head = (int)blockIdx.y;
    release_next();
    wait_before();
    if (r >= a.queries * a.group) {
        return;
    }
    const int seen = end_of(seen_by(a, r)), parts = seen > a.part_keys ? (seen + a.part_keys - 1) / a.part_keys : 1;
    const float *const from = a.partials + ((i64)head * a.queries * a.group + r) * a.parts * PARTIAL;
    float most = NONE, total = 0.0f, o[PAIRS][2] = {};
#pragma unroll 1
    for (int first = 0; first < parts; first += AT_ONCE) {
        float2 of[AT_ONCE], v[AT_ONCE][PAIRS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int part = first + i < parts ? first + i : parts - 1;
            of[i] = *(const float2 *)(from + part * PARTIAL + SIZE);
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                const int d = 2 * lane + 64 * j;
                v[i][j] = d < SIZE ? *(const float2 *)(from + part * PARTIAL + d) : make_float2(0.0f, 0.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float top = first + i < parts ? of[i].x : NONE; /* the last one again has no weight */
            const float high = fmaxf(most, top), base = high == NONE ? 0.0f : high;
            const float keep = weight_of(most - base), weight = weight_of(top - base);
            most = high;
            total = __fmaf_rn(total, keep, weight * of[i].y);
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                o[j][0] = __fmaf_rn(o[j][0], keep, weight * v[i][j].x);
                o[j][1] = __fmaf_rn(o[j][1], keep, weight * v[i][j].y);
            }
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
                const int column = d / 16 * 16 + d % 4 * 4 + d % 16 / 4 * 2 + e; /* of the d-th sum */
                store_float(to, column, seen > 0 ? o[j][e] * by : 0.0f, OUT);
            }
        }
    }
}
