/* The bias of products whose kernels are made for its format: BIAS 0 none, 1 f32, 2 f16, 3 bf16. */
#ifndef QN_KERNELS_CUDA_BIAS_H
#define QN_KERNELS_CUDA_BIAS_H

#include "ptx.h"

/* Of column n. */
DEV float load_bias(const void *bias, int n)
{
#if BIAS == 1
    return __ldg((const float *)bias + n);
#elif BIAS > 1
    const u16 bits = __ldg((const u16 *)bias + n);
    return BIAS == 2 ? widen_f16(bits) : __uint_as_float((u32)bits << 16);
#else
    return 0.0f;
#endif
}

#endif
