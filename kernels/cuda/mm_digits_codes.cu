/* Weights of GGUF blocks as int8 codes for mm_digits.cu, and of each group its scale and what is taken off.
 *
 * Host contract
 *   Parameters: those of mm_common.h, of GGUF formats, ALIGNED 1
 *   Launch: block 256, a thread a unit, grid {ceil(steps * STEP / (16 * UNIT)), N rounded up to COLUMNS, / 16} */
#include "mm_common.h"

#define SIDE 16                   /* units and columns of a block */
#define GROUPS (SIDE * UNIT / 32) /* of K */
#define STEP_GROUPS (QN_CUDA_DIGITS_STEP / 32)
#define COLUMN_BLOCKS (QN_CUDA_DIGITS_COLUMNS / SIDE) /* of a tile */

extern "C" __global__ void __launch_bounds__(SIDE *SIDE)
    qn_mm_digits_codes(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_mm_cut,
                       const __grid_constant__ qn_cuda_digits by)
{
    __shared__ __align__(16) u32 codes[GROUPS][33][4]; /* lanes; a place more, so that groups begin at other banks */
    __shared__ float2 floats[SIDE][SIDE + 1];
    const int along = (int)threadIdx.x % SIDE, across = (int)threadIdx.x / SIDE;
    const int unit = (int)blockIdx.x * SIDE + along, n = (int)blockIdx.y * SIDE + across;
    release_next();
    wait_before();
    float2 of_unit = make_float2(0.0f, 0.0f);
    u32 four[UNIT / 4] = {};
    if (n < a.part[0].n && unit * UNIT < a.k) {
        const raw r = load_raw((const u8 *)a.part[0].b + n * a.part[0].b_row, scales_of(a.part[0], n), unit, a.k);
#pragma unroll
        for (int i = 0; i < UNIT / 4; i++) {
            four[i] = four_codes(r, i);
        }
        of_unit = make_float2(code_scale(r), code_minimum(r));
    }
    floats[along][across] = of_unit;
#pragma unroll
    for (int i = 0; i < UNIT / 4; i++) {
        const int word = (along * UNIT / 4 + i) % 8;
        codes[along * UNIT / 32][across % 8 * 4 + word % 4][across / 8 * 2 + word / 4] = four[i];
    }
    __syncthreads();
    char *const tile = (char *)by.b +
                       (i64)(blockIdx.y / COLUMN_BLOCKS) * by.steps * QN_CUDA_DIGITS_B_BYTES(CODE_GROUP);
    const int block = (int)blockIdx.y % COLUMN_BLOCKS;
#pragma unroll
    for (int i = (int)threadIdx.x; i < GROUPS * 32; i += SIDE * SIDE) {
        const int group = (int)blockIdx.x * GROUPS + i / 32, step = group / STEP_GROUPS;
        if (step < by.steps) {
            *(uint4 *)(tile + (i64)step * QN_CUDA_DIGITS_B_BYTES(CODE_GROUP) +
                       (group % STEP_GROUPS * COLUMN_BLOCKS + block) * 512 + i % 32 * 16) =
                *(const uint4 *)codes[i / 32][i % 32];
        }
    }
    const int first = ((int)blockIdx.x * SIDE + across) * UNIT, step = first / QN_CUDA_DIGITS_STEP; /* of K */
    if (step < by.steps && first % CODE_GROUP == 0) {
        const int group = first % QN_CUDA_DIGITS_STEP / CODE_GROUP;
        *(float2 *)(tile + (i64)step * QN_CUDA_DIGITS_B_BYTES(CODE_GROUP) + QN_CUDA_DIGITS_B_FLOATS +
                    (group * QN_CUDA_DIGITS_COLUMNS + block * SIDE + along) * 8) = floats[across][along];
    }
}
