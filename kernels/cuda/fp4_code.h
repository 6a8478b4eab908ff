/* Floats to e2m1. */
#ifndef QN_CUDA_FP4_CODE_H
#define QN_CUDA_FP4_CODE_H

/* Code of v, ties to even; NaN is +0. */
static __device__ inline unsigned int e2m1_code(float v)
{
    const float s = fabsf(v);
    const unsigned int code = (unsigned int)(s > 0.25f) + (s >= 0.75f) + (s > 1.25f) + (s >= 1.75f) + (s > 2.5f) +
                              (s >= 3.5f) + (s > 5.0f);
    return v == v ? code | (__float_as_uint(v) >> 28 & 8) : 0;
}

#endif
