/* Elements of f32, f16 and bf16 (numbers QN_MM_F32, ... of kernels/common/cuda_mm.h), and the launch dependencies that
 * every kernel of the portable families begins with. */
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

#endif
