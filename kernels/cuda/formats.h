/* Elements of f32, f16 and bf16 (numbers QN_MM_F32, ... of kernels/common/cuda_mm.h), e4m3 codes, and the launch
 * dependencies that every kernel of the portable families begins with. */
#ifndef QN_CUDA_FORMATS_H
#define QN_CUDA_FORMATS_H

#include "ptx.h"
#include "cuda_mm.h"

DEV float half_float(u32 bits)
{
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((u16)bits));
    return v;
}

DEV void half_floats(u32 pair, float *v)
{
    v[0] = half_float(pair & 0xffffu);
    v[1] = half_float(pair >> 16);
}

/* Two e4m3 codes in the low bytes: the exponent's bias is 8 less than that of f16. */
#if __CUDA_ARCH__ >= 890
DEV u32 e4m3_halves(u32 codes)
{
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)codes));
    return pair;
}
#endif

DEV void e4m3_floats(u32 codes, float *v)
{
#if __CUDA_ARCH__ >= 890
    half_floats(e4m3_halves(codes), v);
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 code = codes >> 8 * i & 0xff;
        const float size = half_float((code & 0x80) << 8 | (code & 0x7f) << 7) * 256.0f;
        v[i] = (code & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : size;
    }
#endif
}

DEV float load_float(const char *p, i64 i, int format)
{
    if (format == QN_MM_F32) {
        return ((const float *)p)[i];
    }
    const u32 bits = ((const u16 *)p)[i];
    return format == QN_MM_F16 ? half_float(bits) : __uint_as_float(bits << 16);
}

DEV void store_float(char *p, i64 i, float v, int format)
{
    if (format == QN_MM_F32) {
        ((float *)p)[i] = v;
    } else if (format == QN_MM_F16) {
        ((u16 *)p)[i] = (u16)pack_f16(v, 0.0f);
    } else {
        ((u16 *)p)[i] = (u16)pack_bf16(v, 0.0f);
    }
}

/* Let the next kernel of the stream start its blocks; wait for the one before. */
DEV void release_next(void)
{
#if __CUDA_ARCH__ >= 900
    grid_release();
#endif
}

DEV void wait_before(void)
{
#if __CUDA_ARCH__ >= 900
    grid_wait();
#endif
}

/* 1 / v, exactly, of a power of two whose inverse is a normal number too. */
DEV float inverse_of(float v)
{
    return __uint_as_float(0x7F000000u - __float_as_uint(v));
}

#endif
