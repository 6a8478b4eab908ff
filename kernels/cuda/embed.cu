/* Rows of a table of weights, decoded to f32, by ids.
 * Parameters: those of mm_unpack.h (formats without scales beside the data)
 * Launch: block 128, grid {rows, parts of a row}. */
#include "mm_unpack.h"
#include "cuda_activation.h"

extern "C" __global__ void __launch_bounds__(128) qn_embed(const __grid_constant__ qn_cuda_embed a)
{
    release_next();
    wait_before();
    const u8 *const from = (const u8 *)a.b + a.ids[blockIdx.x] * a.b_row;
    float *const y = (float *)((char *)a.y + blockIdx.x * a.y_row);
    for (int unit = (int)(blockIdx.y * 128 + threadIdx.x); unit * UNIT < a.k; unit += (int)gridDim.y * 128) {
        const raw r = load_raw(from, (const u8 *)a.b_scale + a.ids[blockIdx.x] * a.b_scale_row, unit, a.k);
#pragma unroll
        for (int j = 0; j < (UNIT + 7) / 8; j++) {
            float v[8];
            decode8(r, j, v);
            const int first = unit * UNIT + 8 * j, count = UNIT < 8 ? UNIT : 8;
            if (first + count <= a.k && (u64)y % 16 == 0) {
#pragma unroll
                for (int i = 0; i < count; i += 4) {
                    *(float4 *)(y + first + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < count; i++) {
                    if (first + i < a.k) {
                        y[first + i] = v[i];
                    }
                }
            }
        }
    }
}
