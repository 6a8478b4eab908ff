/* Planes of f16 of keys and values, which attention_tiles.cu reads and describes. A warp has a row.
 *
 * Host contract
 *   Parameters: K_FORMAT, V_FORMAT, of the latter QN_MM_E4M3 too; WINDOW 0 or 1, with RECENT_FORMAT, f16 or bf16;
 *     SIZE: a multiple of 16, at most 128
 *   Operands: planes begin at 16 bytes
 *   Launch: block 256, grid {ceil(rows / 8), key heads, 2 or with a window 4} */
#include "attention_tiles.h"

template <int format, bool factors> DEV void spread(const qn_cuda_attention_rows &a, int i, int head, int lane)
{
    if (i >= a.count) {
        return;
    }
    const int from = a.ring ? (a.first + i) % a.ring : a.first + i;
    const char *const row = a.x + from * a.row + head * a.head;
    float v[PAIRS][2], factor = 1.0f;
    load_row<format>(v, row, lane, true);
    if (format == QN_MM_F32 || format == QN_MM_BF16) {
        factor = normalise<PAIRS, 32>(v);
    } else if (format == QN_MM_E4M3) {
        factor = *(const float *)(a.scale + from * a.scale_row + head * 4);
    }
    char *const to = a.planes + head * a.planes_head + i * (i64)(SIZE * 2);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int d = 2 * lane + 64 * j;
        u32 high, low;
        split_pair(v[j][0], v[j][1], &high, &low);
        if (d < SIZE) {
            *(u32 *)(to + d * 2) = high;
            if (format == QN_MM_F32) {
                *(u32 *)(to + a.plane + d * 2) = low;
            }
        }
    }
    if (factors && lane == 0) {
        a.factors[head * a.factors_head + i] = factor;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    qn_attention_planes(const __grid_constant__ qn_cuda_attention_planes a)
{
    const int i = (int)blockIdx.x * 8 + (int)threadIdx.x / 32, head = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    release_next();
    wait_before();
    if (blockIdx.z == 0) {
        spread<K_FORMAT, K_FACTORS>(a.k, i, head, lane);
    } else if (blockIdx.z == 1) {
        spread<V_FORMAT, V_FACTORS>(a.v, i, head, lane);
#if WINDOW
    } else if (blockIdx.z == 2) {
        spread<RECENT_FORMAT, K_FACTORS>(a.k_recent, i, head, lane);
    } else {
        spread<RECENT_FORMAT, V_FACTORS>(a.v_recent, i, head, lane);
#endif
    }
}
