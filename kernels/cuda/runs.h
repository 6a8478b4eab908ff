/* Runs of neighbouring elements in accesses as wide as their address allows: rmsnorm.cu, silu_mul.cu, rope.cu, add.cu. */
#ifndef QN_CUDA_RUNS_H
#define QN_CUDA_RUNS_H

#include "formats.h"

#define PER 8
#define BYTES_OF(format) ((format) == QN_MM_F32 ? 4 : 2)
#define WORDS_OF(count, format) ((count)*BYTES_OF(format) / 4)

/* `per` neighbouring elements, an even number, of which `count` are there, as words; the others are 0. */
DEV void load_run(const char *p, int per, int count, int format, u32 *w)
{
    const int words = WORDS_OF(per, format);
    const u32 at = (u32)(u64)p;
    if (count >= per && words % 4 == 0 && at % 16 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            const uint4 v = ((const uint4 *)p)[i / 4];
            w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
        }
    } else if (count >= per && words % 2 == 0 && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            const uint2 v = ((const uint2 *)p)[i / 2];
            w[i] = v.x, w[i + 1] = v.y;
        }
    } else if (count >= per && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = ((const u32 *)p)[i];
        }
    } else if (format == QN_MM_F32) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = i < count ? ((const u32 *)p)[i] : 0;
        }
    } else if (count >= per) { /* the first and the last by themselves */
        const u32 *const inner = (const u32 *)(p + 2);
        u32 before = (u32) * (const u16 *)p << 16;
#pragma unroll
        for (int i = 0; i < words; i++) {
            const u32 next = i + 1 < words ? inner[i] : *(const u16 *)(inner + i);
            w[i] = __funnelshift_r(before, next, 16);
            before = next;
        }
    } else {
#pragma unroll
        for (int i = 0; i < words; i++) {
            w[i] = 2 * i < count ? ((const u16 *)p)[2 * i] : 0;
            w[i] |= 2 * i + 1 < count ? (u32)((const u16 *)p)[2 * i + 1] << 16 : 0;
        }
    }
}

/* Element i of them. */
DEV float run_float(const u32 *w, int i, int format)
{
    if (format == QN_MM_F32) {
        return __uint_as_float(w[i]);
    }
    const u32 bits = i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xffffu;
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

DEV void store_run(char *p, int per, int count, int format, const float *v)
{
    const int words = WORDS_OF(per, format);
    const u32 at = (u32)(u64)p;
    u32 w[16];
#pragma unroll
    for (int i = 0; i < words; i++) {
        w[i] = format == QN_MM_F32   ? __float_as_uint(v[i])
               : format == QN_MM_F16 ? pack_f16(v[2 * i], v[2 * i + 1])
                                     : pack_bf16(v[2 * i], v[2 * i + 1]);
    }
    if (count >= per && words % 4 == 0 && at % 16 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            ((uint4 *)p)[i / 4] = make_uint4(w[i], w[i + 1], w[i + 2], w[i + 3]);
        }
    } else if (count >= per && words % 2 == 0 && at % 8 == 0) {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            ((uint2 *)p)[i / 2] = make_uint2(w[i], w[i + 1]);
        }
    } else if (count >= per && at % 4 == 0) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            ((u32 *)p)[i] = w[i];
        }
    } else if (count >= per) {
        u32 *const inner = (u32 *)(p + 2);
        *(u16 *)p = (u16)w[0];
#pragma unroll
        for (int i = 0; i + 1 < words; i++) {
            inner[i] = __funnelshift_r(w[i], w[i + 1], 16);
        }
        *(u16 *)(inner + words - 1) = (u16)(w[words - 1] >> 16);
    } else {
#pragma unroll
        for (int i = 0; i < per; i++) {
            if (i < count) {
                store_float(p, i, v[i], format);
            }
        }
    }
}

#define EACH_RUN(a, row, at)                                                                                           \
    for (i64 row = (i64)blockIdx.y * blockDim.y + threadIdx.y; row < (a).m; row += (i64)gridDim.y * blockDim.y)        \
        for (i64 at = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * PER; at < (a).k;                                  \
             at += (i64)gridDim.x * blockDim.x * PER)

DEV int run_length(i64 k, i64 at)
{
    return k - at < PER ? (int)(k - at) : PER;
}

#endif
