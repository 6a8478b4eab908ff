/* Angles of rotary positions: cosine and sine of pos * theta^(-2 i / size). The angle and its quadrant in double, the
 * rest by polynomials within an ulp of f32.
 *
 * Parameters: FACTORS 1: that is divided by factors[i], which are weights: kernels may read them before they wait */
#ifndef QN_CUDA_TURN_H
#define QN_CUDA_TURN_H

#ifndef FACTORS
#define FACTORS 0
#endif

struct turn {
    float c, s;
};

static __device__ inline double frequency_of(int i, int size, double log2_theta, const float *factors)
{
    const double plain = exp2(-2.0 * (double)i / (double)size * log2_theta);
#if FACTORS
    return plain / (double)factors[i];
#else
    (void)factors;
    return plain;
#endif
}

static __device__ inline turn turn_by(double angle)
{
    const double quarter = rint(angle * 0.63661977236758134308);
    const float x = (float)(angle - quarter * 1.57079632679489661923);
    const int quadrant = (int)(long long)quarter & 3;
    const float z = x * x;
    const float s = __fmaf_rn(
        z * x, __fmaf_rn(z, __fmaf_rn(z, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f), x);
    const float c = __fmaf_rn(
        z * z, __fmaf_rn(z, __fmaf_rn(z, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f),
        __fmaf_rn(z, -0.5f, 1.0f));
    turn t;
    t.c = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    t.s = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    return t;
}

static __device__ inline turn turn_of(int pos, int i, int size, double log2_theta, const float *factors)
{
    return turn_by((double)pos * frequency_of(i, size, log2_theta, factors));
}

#endif
