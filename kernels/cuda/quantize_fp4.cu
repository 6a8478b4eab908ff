/* quantize_nvfp4 and quantize_mxfp4: a thread a block of 16 or 32 elements.
 * Parameters: X_FORMAT; BLOCK 16: nvfp4, 32: mxfp4; ALIGNED 1: rows of x begin at 16 bytes, of q at 8
 * Launch: qn_quantize_fp4 block 128, grid {ceil(blocks / 128), rows}; padding of swizzled scales is set by the host.
 *   qn_fp4_range first, where no global scale is given: block 256, any grid; most is 0 before */
#define TYPE 0
#define ASYMMETRIC 0
#define BOUNDED 0
#include "rows.h"
#include "cuda_fp4.h"
#include "fp4_code.h"

#define INFINITE __int_as_float(0x7f800000)

/* The bits of magnitudes order as the magnitudes do, so the result is the same in any order. */
extern "C" __global__ void __launch_bounds__(256) qn_fp4_range(const __grid_constant__ qn_cuda_fp4 a)
{
    begin_kernel();
    range r = no_range();
    const i64 all = a.m * a.blocks;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += (i64)gridDim.x * 256) {
        const char *const x = a.x + i / a.blocks * a.x_row;
        for (int j = 0; j < BLOCK; j++) {
            widen_range(&r, load_one(x, i % a.blocks * BLOCK + j));
        }
    }
    reduce_block(&r);
    if (threadIdx.x == 0) {
        atomicMax(a.most, __float_as_uint(r.high));
    }
}

#if BLOCK == 32
static __device__ inline int exponent_of(float most, int rule)
{
    if (most == 0.0f) {
        return -127;
    }
    if (most == INFINITE) {
        return 127;
    }
    const float held = most < 1.17549435e-38f ? most * 16777216.0f : most; /* subnormal ones made normal */
    const u32 bits = __float_as_uint(held), fraction = bits & 0x7fffffu;
    int e = (int)(bits >> 23) - 127 - (most < 1.17549435e-38f ? 24 : 0); /* most = 1.f * 2^e */
    if (rule == 0) {
        e = fraction <= 0x400000u ? e - 2 : e - 1;
    } else {
        e = e - 2 + (rule == 2 && fraction >= 0x600000u);
    }
    return e < -127 ? -127 : e > 127 ? 127 : e;
}

static __device__ inline float power_of_two(int e)
{
    return e >= -126 ? __uint_as_float((u32)(e + 127) << 23) : 5.877471754111438e-39f; /* -127 */
}
#endif

extern "C" __global__ void __launch_bounds__(128) qn_quantize_fp4(const __grid_constant__ qn_cuda_fp4 a)
{
    begin_kernel();
#if BLOCK == 16
    float global;
    if (a.given) {
        global = *(const float *)a.given;
    } else {
        global = 2688.0f / fminf(fmaxf(__uint_as_float(*a.most), 9.094947017729282e-13f), 3.40282347e38f);
    }
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        *(float *)a.global = global;
    }
#endif
    const i64 block = (i64)blockIdx.x * 128 + threadIdx.x;
    if (block >= a.blocks) {
        return;
    }
    for (i64 row = blockIdx.y; row < a.m; row += gridDim.y) {
        const char *const x = a.x + row * a.x_row;
        float v[BLOCK];
#if ALIGNED
#pragma unroll
        for (int i = 0; i < BLOCK / PER; i++) {
            uint4 words[X_WORDS];
#pragma unroll
            for (int w = 0; w < X_WORDS; w++) {
                words[w] = load_once(x + (block * BLOCK + i * PER) * X_BYTES + w * 16);
            }
            unpack(words, v + i * PER);
        }
#else
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            v[i] = load_one(x, block * BLOCK + i);
        }
#endif
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            most = fmaxf(most, fabsf(v[i]));
        }
#if BLOCK == 16
        const u32 code = two_codes(global * (most * (1.0f / 6.0f)), 0.0f) & 0xff;
        const u32 bits = (code & 0x7f) << 7; /* as f16, 2^-8 of its value */
        const float s = from_f16((u16)bits) * 256.0f;
        const float factor = s == 0.0f ? 0.0f : 1.0f / (s * (1.0f / global));
        const i64 tiles = (a.blocks + 3) / 4;
        const i64 inside = row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
        const i64 swizzled = (row / 128 * tiles + block / 4) * 512 + inside;
        a.scale[a.swizzled ? swizzled : row * a.scale_row + block] = (char)code;
#else
        const int e = exponent_of(most, a.rule);
        const float factor = power_of_two(-e);
        a.scale[row * a.scale_row + block] = (char)(e + 127);
#endif
        u32 words[BLOCK / 8];
#pragma unroll
        for (int i = 0; i < BLOCK / 8; i++) {
            words[i] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                words[i] |= e2m1_code(v[8 * i + j] * factor) << 4 * j;
            }
        }
        char *const q = a.q + row * a.q_row + block * (BLOCK / 2);
#if ALIGNED
#pragma unroll
        for (int i = 0; i < BLOCK / 16; i++) {
            *(uint2 *)(q + 8 * i) = make_uint2(words[2 * i], words[2 * i + 1]);
        }
#else
#pragma unroll
        for (int i = 0; i < BLOCK / 2; i++) {
            q[i] = (char)(words[i / 4] >> i % 4 * 8);
        }
#endif
    }
}
