/* vq_dequantize of aqlm and gptvq: the definition as it stands, in double, rounded once. A thread has a group of a row.
 *
 * Host contract
 *   Parameters: TILES 1: gptvq, a codebook for every 256 x 256 elements; 0: aqlm
 *   Launch: block 256, grid {ceil(groups of a row / 256), rows or as many as a grid has} */
#include "formats.h"
#include "cuda_vq_weights.h"

#define TILE 256

/* Element i of a tensor. */
DEV double value_at(const qn_cuda_vq_tensor &t, i64 i)
{
    i64 at = 0;
#pragma unroll
    for (int d = 3; d >= 0; d--) {
        at += i % t.dims[d] * (d == 3 ? t.bytes : t.strides[d]);
        i /= t.dims[d];
    }
    return t.format == 3 ? (double)*(const signed char *)(t.data + at) : (double)load_float(t.data + at, 0, t.format);
}

DEV u32 code_at(const qn_cuda_vq_weights &a, i64 row, i64 group, int book)
{
    const char *const codes = a.codes + row * a.codes_row;
    const u32 mask = (1u << a.bits) - 1;
    if (a.code_bytes == 1) {
        return ((const u8 *)(codes + group * a.codes_group))[book] & mask;
    }
    if (a.code_bytes == 2) {
        return ((const u16 *)(codes + group * a.codes_group))[book] & mask;
    }
    const i64 first = (group * a.codebooks + book) * a.bits;
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) { /* at most 16 bits from any bit on */
        if (first / 8 + i < a.stream) {
            word |= (u32)((const u8 *)codes)[first / 8 + i] << (8 * i);
        }
    }
    return word >> (first % 8) & mask;
}

extern "C" __global__ void __launch_bounds__(256) qn_vq_dequantize(const __grid_constant__ qn_cuda_vq_weights a)
{
    const i64 group = (i64)blockIdx.x * 256 + threadIdx.x;
    release_next();
    wait_before();
    if (group >= a.k / a.in_group) {
        return;
    }
    for (i64 n = blockIdx.y; n < a.n; n += gridDim.y) {
        float *const w = (float *)(a.w + n * a.w_row) + group * a.in_group;
#if TILES
        const u32 code = ((const u8 *)(a.codes + n * a.codes_row))[group];
        const i64 tile = n / TILE * ((a.k + TILE - 1) / TILE) + group * 4 / TILE;
        const double scale = value_at(a.scales, tile);
        for (int j = 0; j < 4; j++) {
            w[j] = (float)(scale * value_at(a.books, (tile * 256 + code) * 4 + j));
        }
#else
        const i64 row = n / a.out_group, within = n % a.out_group;
        const double scale = a.scales.data ? value_at(a.scales, row) : 1.0;
        for (int j = 0; j < a.in_group; j++) {
            double sum = 0.0;
            for (int c = 0; c < a.codebooks; c++) {
                const i64 entry = ((i64)c << a.bits) + code_at(a, row, group, c);
                sum = sum + value_at(a.books, (entry * a.out_group + within) * a.in_group + j);
            }
            w[j] = (float)(sum * scale);
        }
#endif
    }
}
