/* New keys and values into a cache that is not of floats, at positions that the device knows: rows as f16 into those of
 * a window, and heads as e4m3 with a scale each, as quantize_fp8 makes them by group. Or rows as they are or as bf16, into
 * a cache of floats from the position on (one row) or from the first on.
 *
 * Host contract
 *   Parameters: X_FORMAT 0, TYPE 0 (rows.h)
 *   qn_keep_recent, qn_keep_rows, qn_keep_rounded   block 128, grid {ceil(width / 256), rows}; position NULL: from the
 *     first row on
 *   qn_keep_scaled   block 32, grid {heads, rows}; heads of at most 256 elements */
#include "formats.h"
#include "kv_scaled.h"

extern "C" __global__ void __launch_bounds__(128) qn_keep_recent(const __grid_constant__ qn_cuda_kv_keep a)
{
    begin_kernel();
    for (int m = (int)blockIdx.y; m < a.rows; m += (int)gridDim.y) {
        const float *const x = (const float *)(a.x + m * a.x_row);
        u16 *const y = (u16 *)(a.y + (i64)(a.position[m] % a.ring) * a.y_row);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = ((int)blockIdx.x * 2 + j) * 128 + (int)threadIdx.x;
            if (i < a.width) {
                asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y[i]) : "f"(x[i]));
            }
        }
    }
}

template <int format> DEV void keep_floats(const qn_cuda_kv_keep &a)
{
    begin_kernel();
    for (int m = (int)blockIdx.y; m < a.rows; m += (int)gridDim.y) {
        const float *const x = (const float *)(a.x + m * a.x_row);
        char *const y = a.y + (i64)(a.position ? *a.position + m : m) * a.y_row;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = ((int)blockIdx.x * 2 + j) * 128 + (int)threadIdx.x;
            if (i < a.width) {
                store_float(y, i, x[i], format);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) qn_keep_rows(const __grid_constant__ qn_cuda_kv_keep a)
{
    keep_floats<QN_MM_F32>(a);
}

extern "C" __global__ void __launch_bounds__(128) qn_keep_rounded(const __grid_constant__ qn_cuda_kv_keep a)
{
    keep_floats<QN_MM_BF16>(a);
}

extern "C" __global__ void __launch_bounds__(32) qn_keep_scaled(const __grid_constant__ qn_cuda_kv_keep a)
{
    begin_kernel();
    const int head = (int)blockIdx.x, lane = (int)threadIdx.x;
    for (int m = (int)blockIdx.y; m < a.rows; m += (int)gridDim.y) {
        const float *const x = (const float *)(a.x + m * a.x_row) + head * a.size;
        char *const y = a.y + a.position[m] * a.y_row + head * a.size;
        float v[PER];
#pragma unroll
        for (int j = 0; j < PER; j++) {
            v[j] = lane + 32 * j < a.size ? x[lane + 32 * j] : 0.0f;
        }
        put_scaled(v, y, (float *)(a.scale + a.position[m] * a.scale_row + head * 4),
                   [&](int j) { return lane + 32 * j < a.size ? lane + 32 * j : -1; });
    }
}
