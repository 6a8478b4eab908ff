/* Rows of x as digits for mm_digits.cu: 32 elements are integers of one power of two, 22 bits and a sign, of three int8
 * digits each, 65536 d0 + 256 d1 + d2. Where an element is not finite the power is NaN.
 *
 * Host contract
 *   Parameters: those of mm_common.h
 *   Launch: block 256, eight threads a group, grid {ceil(steps / 16), M rounded up to ROWS} */
#include "mm_common.h"

#define STEP_GROUPS (QN_CUDA_DIGITS_STEP / 32)

extern "C" __global__ void __launch_bounds__(256)
    qn_mm_digits_rows(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_mm_cut,
                      const __grid_constant__ qn_cuda_digits by)
{
    const int word = (int)threadIdx.x % 8, m = (int)blockIdx.y, row = m % QN_CUDA_DIGITS_ROWS;
    const int group = (int)blockIdx.x * 32 + (int)threadIdx.x / 8, first = group * 32 + word * 4;
    const int step = group / STEP_GROUPS, in_step = group % STEP_GROUPS;
    release_next();
    wait_before();
    if (step >= by.steps) {
        return; /* all eight */
    }
    float v[4];
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = m < a.m && first + i < a.k ? load_x(a, m, first + i) : 0.0f;
        top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    const u32 eight = 0xffu << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) {
        top = max(top, __shfl_xor_sync(eight, top, lane));
    }
    /* largest magnitudes of less than 2^-105 count as that: the power of all is a normal number */
    const int finite = top < 0x7f800000u, exponent = top >> 23 > 22 ? (int)(top >> 23) : 22;
    const float up = __uint_as_float((u32)(127 + 21 + 127 - exponent) << 23);
    const float scale = __uint_as_float(finite ? (u32)(exponent - 21) << 23 : 0x7fc00000u);
    u32 digits[3] = {};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int x = finite ? __float2int_rn(v[i] * up) : 0;
        const int high = (x + 0x8080) >> 16, rest = x - high * 65536, middle = (rest + 128) >> 8;
        digits[0] |= (u32)(high & 0xff) << 8 * i;
        digits[1] |= (u32)(middle & 0xff) << 8 * i;
        digits[2] |= (u32)((rest - middle * 256) & 0xff) << 8 * i;
        sum += x;
    }
    sum += __shfl_xor_sync(eight, sum, 1);
    sum += __shfl_xor_sync(eight, sum, 2);
    const int second = __shfl_xor_sync(eight, sum, 4);
    char *const to =
        (char *)by.x + ((i64)(m / QN_CUDA_DIGITS_ROWS) * by.steps + step) * QN_CUDA_DIGITS_X_BYTES;
    const int lane = row % 8 * 4 + word % 4, part = word / 4 * 2 + row / 8 % 2;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        *(u32 *)(to + (in_step * 3 + i) * QN_CUDA_DIGITS_ROWS * 32 + row / 16 * 512 + lane * 16 + part * 4) = digits[i];
    }
    if (word == 0) {
        *(float4 *)(to + QN_CUDA_DIGITS_X_FLOATS + (in_step * QN_CUDA_DIGITS_ROWS + row) * 16) =
            make_float4(scale, (float)sum * scale, (float)second * scale, 0.0f);
    }
}
