/* gate / (1 + exp(-gate)) * up in f32.
 *
 * The sigmoid is one exponential and one reciprocal of the special function unit,
 * the exponential's argument carried in two parts, together within 2^-21 where silu is not negligible. */
#ifndef QN_CUDA_SILU_H
#define QN_CUDA_SILU_H

static __device__ inline float silu_mul(float g, float u)
{
    const float log2e = 1.4426950216293335f;
    const float held = fminf(g, 87.0f);
    const float high = -held * log2e;
    const float low = __fmaf_rn(-held, log2e, -high); /* what high lacks */
    float e, s;
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(high));
    e = __fmaf_rn(e, low * 0.6931471805599453f, e);
    asm("rcp.approx.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return g * (g >= -87.0f ? s : 0.0f) * u; /* below, and for NaN and -infinity, as the formula has it */
}

#endif
