/* gate / (1 + exp(-gate)) * up in f32.
 *
 * The sigmoid is one exponential and one reciprocal of the special function unit, the exponential's argument carried
 * in two parts, together within 2^-21 where silu is not negligible. Between the ends that gate is held to, the
 * exponential and its reciprocal are normal numbers or vanish beside 1, so that flushing others to zero (a third of
 * the instructions less) changes nothing. */
#ifndef QN_CUDA_SILU_H
#define QN_CUDA_SILU_H

static __device__ inline float silu_mul(float g, float u)
{
    const float log2e = 1.4426950216293335f;
    const float held = fmaxf(fminf(g, 87.0f), -88.0f); /* NaN and -infinity become NaN in the product, as they should */
    const float high = held * -log2e;
    const float over = __fmaf_rn(held, log2e, high); /* what high has too much */
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(high));
    e = __fmaf_rn(e, over * -0.6931471805599453f, e);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return g * s * u;
}

#endif
