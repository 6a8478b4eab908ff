/* block_scaled_mm and grouped_block_scaled_mm for operands of any alignment and size: the path where the tensor maps
 * of block_scaled_mm.cu cannot be (K, strides or addresses that are no multiple of 16). Bytes are read one by one,
 * and decoded to floats in shared memory; needs nothing of Hopper but the conversion of e4m3 (sm_89).
 * Sums of a k-block and their promotion in the order of K, like there.
 *
 * Host contract
 *   Parameters: OUT 0 bf16, 1 f16, 2 f32; LAYOUT 0 one matrix, 1 offsets, 2 masked (as in block_scaled_mm.cu)
 *   Arguments: a[row * a_row + k + e * a_group (masked)], b[n * b_row + k + e * b_group], the rest as there
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / 64), y, z}: y = ceil(M / 64), z = 1 for one matrix;
 *           y = ceil(Mtot / 64) + E, z = 1 for offsets; y = ceil(Mmax / 64), z = E for masked
 *   tail: rows of d that belong to no group become zeros (1) or stay as they are (2). */
#include "groups.h"

#define ONE 0
#define OFFSETS 1
#define MASKED 2
#define TILE 64
#define STEP 32     /* of K at a time; divides 128 */

DEV float decode(u8 code)
{
    u32 pair;
    float v;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)code));
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)pair));
    return v;
}

DEV void store(void *d, i64 at, float v)
{
#if OUT == 2
    ((float *)d)[at] = v;
#elif OUT == 0
    ((u16 *)d)[at] = (u16)pack_bf16(v, 0.0f);
#else
    ((u16 *)d)[at] = (u16)pack_f16(v, 0.0f);
#endif
}

extern "C" __global__ void __launch_bounds__(256, 2)
    qn_block_scaled_mm_plain(const u8 *a, i64 a_row, i64 a_group, const u8 *b, i64 b_row, i64 b_group,
                             const float *scale_a, i64 scale_a_row, i64 scale_a_block, i64 scale_a_group,
                             const float *scale_b, i64 scale_b_row, i64 scale_b_group, void *d, i64 d_row,
                             i64 d_group, const int *groups, int m, int n, int k, int experts, int tail)
{
    __shared__ float a_tile[STEP][TILE + 1], b_tile[STEP][TILE + 1];
    int group = 0, first = 0, rows = m, tile = (int)blockIdx.y;
#if LAYOUT != ONE
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (tail == TAIL_ZEROS) {
        zero_rest((char *)d, d_row, d_group, OUT == 2 ? 4 : 2, LAYOUT == MASKED, groups, experts, m, n,
                  (int)(block * 8 + threadIdx.x / 32), (int)(gridDim.x * gridDim.y * gridDim.z * 8), threadIdx.x % 32);
    }
#endif
#if LAYOUT == OFFSETS
    for (;; group++) {
        if (group == experts) {
            return;
        }
        first = groups[group];
        rows = groups[group + 1] - first;
        const int tiles = (rows + TILE - 1) / TILE;
        if (tile < tiles) {
            break;
        }
        tile -= tiles;
    }
#elif LAYOUT == MASKED
    group = (int)blockIdx.z;
    rows = groups[group];
#endif
    const i64 outer = LAYOUT == MASKED ? group : 0;
    const int row0 = tile * TILE, column0 = (int)blockIdx.x * TILE;
    if (row0 >= rows) {
        return;
    }
    a += outer * a_group + (i64)(first + row0) * a_row;
    b += group * b_group + (i64)column0 * b_row;
    scale_a += outer * scale_a_group + (i64)(first + row0) * scale_a_row;
    scale_b += group * scale_b_group + (i64)(column0 / 128) * scale_b_row;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    float sums[4][4] = {}, part[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += STEP) {
        for (int i = (int)threadIdx.x; i < TILE * STEP; i += 256) {
            const int row = i / STEP, kk = i % STEP, inside = k0 + kk < k;
            a_tile[kk][row] = inside && row0 + row < rows ? decode(a[row * a_row + k0 + kk]) : 0.0f;
            b_tile[kk][row] = inside && column0 + row < n ? decode(b[row * b_row + k0 + kk]) : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int kk = 0; kk < STEP; kk++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    part[i][j] = __fmaf_rn(a_tile[kk][y + 16 * i], b_tile[kk][x + 16 * j], part[i][j]);
                }
            }
        }
        __syncthreads();
        if (k0 % 128 == 128 - STEP || k0 + STEP >= k) {
            const int kb = k0 / 128;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = y + 16 * i;
                const int inside = row0 + row < rows;
                const float s = inside ? scale_a[row * scale_a_row + kb * scale_a_block] * scale_b[kb] : 0.0f;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    sums[i][j] = __fmaf_rn(s, part[i][j], sums[i][j]);
                    part[i][j] = 0.0f;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = row0 + y + 16 * i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int column = column0 + x + 16 * j;
            if (row < rows && column < n) {
                store(d, outer * d_group + (i64)(first + row) * d_row + column, sums[i][j]);
            }
        }
    }
}
