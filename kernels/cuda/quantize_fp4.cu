/* quantize_nvfp4 and quantize_mxfp4: a lane eight elements, two or four lanes a block of 16 or 32.
 * Parameters: X_FORMAT; BLOCK 16: nvfp4, 32: mxfp4; ALIGNED 1: rows of x begin at 16 bytes, of q at 4
 * Launch
 *   qn_quantize_fp4  block of whole warps, at most 256 threads, grid {rows, ceil(K / (8 UNROLL threads))}; padding of
 * swizzled scales is set by the host qn_fp4_range     first, where no global scale is given: the same, fewer blocks
 * along x at will; most is 0 before */
#define TYPE 0
#define ASYMMETRIC 0
#define BOUNDED 0
#include "rows.h"
#include "cuda_fp4.h"
#include "fp4_code.h"

#define INFINITE __int_as_float(0x7f800000)

#define LANES (BLOCK / PER)
#define UNROLL 4 /* places of a lane in a row, all loads in flight */

/* The lane's elements at column, which is a multiple of PER; zeros behind the row. */
static __device__ inline void load_lane(const char *x, int column, int k, uint4 *raw)
{
#pragma unroll
    for (int w = 0; w < X_WORDS; w++) {
        raw[w] = make_uint4(0, 0, 0, 0);
        if (column < k) {
#if ALIGNED
            raw[w] = load_once(x + column * X_BYTES + w * 16);
#else
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if X_FORMAT == 0
                words[i] = ((const u32 *)x)[column + 4 * w + i];
#else
                const u16 *const p = (const u16 *)x + column + 2 * i;
                words[i] = (u32)p[0] | (u32)p[1] << 16;
#endif
            }
            raw[w] = make_uint4(words[0], words[1], words[2], words[3]);
#endif
        }
    }
}

/* The bits of magnitudes order as the magnitudes do, so the result is the same in any order. */
extern "C" __global__ void __launch_bounds__(256) qn_fp4_range(const __grid_constant__ qn_cuda_fp4 a)
{
    begin_kernel();
    range r = no_range();
    const int k = (int)a.blocks * BLOCK, first = (int)(blockIdx.y * UNROLL * blockDim.x + threadIdx.x) * PER;
    const int step = (int)blockDim.x * PER;
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        uint4 raw[UNROLL][X_WORDS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            load_lane(a.x + row * a.x_row, first + u * step, k, raw[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float v[PER];
            unpack(raw[u], v);
#pragma unroll
            for (int i = 0; i < PER; i++) {
                widen_range(&r, v[i]);
            }
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

/* The largest magnitude of a lane's elements; NaN or infinite where one of them is. */
static __device__ inline float largest(const uint4 *raw)
{
#if X_FORMAT == 0
    float most = 0.0f, v[PER];
    unpack(raw, v);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(v[i])));
    }
    return most;
#else
    u32 most[4] = {raw->x & 0x7fff7fffu, raw->y & 0x7fff7fffu, raw->z & 0x7fff7fffu, raw->w & 0x7fff7fffu};
#pragma unroll
    for (int i = 2; i > 0; i /= 2) {
#pragma unroll
        for (int j = 0; j < i; j++) {
#if X_FORMAT == 1
            asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(most[j]) : "r"(most[j + i]));
#else
            asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(most[j]) : "r"(most[j + i]));
#endif
        }
    }
    float v[2], both;
    widen(most[0], v);
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(both) : "f"(v[0]), "f"(v[1]));
    return both;
#endif
}

extern "C" __global__ void __launch_bounds__(256, X_FORMAT == 0 ? 3 : 4)
    qn_quantize_fp4(const __grid_constant__ qn_cuda_fp4 a)
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
    const float inverse = 1.0f / global;
#endif
    const int k = (int)a.blocks * BLOCK, first = (int)(blockIdx.y * UNROLL * blockDim.x + threadIdx.x) * PER;
    const int step = (int)blockDim.x * PER;
    for (i64 row = blockIdx.x; row < a.m; row += gridDim.x) {
        uint4 raw[UNROLL][X_WORDS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            load_lane(a.x + row * a.x_row, first + u * step, k, raw[u]);
        }
        char *q = a.q + row * a.q_row;
#if BLOCK == 16
        const i64 inside = row / 128 * ((a.blocks + 3) / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4;
        char *scale = a.scale + (a.swizzled ? inside : row * a.scale_row);
#else
        char *scale = a.scale + row * a.scale_row;
#endif
        asm volatile("" : "+l"(q), "+l"(scale)); /* once a row: the compiler would do it for every block */
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int column = first + u * step, block = column / BLOCK;
            const float found = largest(raw[u]);
            float v[PER], most = found;
            unpack(raw[u], v);
            if (!(found < INFINITE)) { /* NaN does not count */
                most = 0.0f;
                for (int i = 0; i < PER; i++) {
                    most = fmaxf(most, fabsf(v[i]));
                }
            }
#pragma unroll
            for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
            }
#if BLOCK == 16
            const u32 code = two_codes(global * (most * (1.0f / 6.0f)), 0.0f) & 0xff;
            const u32 bits = (code & 0x7f) << 7; /* as f16, 2^-8 of its value */
            const float s = from_f16((u16)bits) * 256.0f;
            const float factor = s == 0.0f ? 0.0f : 1.0f / (s * inverse);
#else
            const int e = exponent_of(most, a.rule);
            const float factor = power_of_two(-e);
#endif
            if (column < k) {
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    v[i] = v[i] * factor;
                }
                u32 word;
                if (most * factor < 7.0f && found < INFINITE) {
                    word = e2m1_codes(v);
                } else { /* NaN, infinite or cut off */
                    word = 0;
#pragma unroll
                    for (int i = 0; i < PER; i++) {
                        word |= e2m1_code(v[i]) << 4 * i;
                    }
                }
                char *const to = q + column / 2;
#if ALIGNED
                *(u32 *)to = word;
#else
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    to[i] = (char)(word >> 8 * i);
                }
#endif
                if (threadIdx.x % LANES == 0) {
#if BLOCK == 16
                    scale[a.swizzled ? (i64)(block / 4) * 512 + block % 4 : block] = (char)code;
#else
                    scale[block] = (char)(e + 127);
#endif
                }
            }
        }
    }
}
