/* silu_mul_quant: v = gate / (1 + exp(-gate)) * up in f32, never rounded to 16
 * bits, and its 8-bit codes with a scale a group or a row.
 * Parameters: those of rows.h and segments.h.
 *
 * The sigmoid is one exponential and one reciprocal of the special function unit,
 * the exponential's argument carried in two parts, together within 2^-21 where silu is not negligible. */
#include "rows.h"
#include "cuda_rows.h"

struct lane {
    uint4 gate[X_WORDS], up[X_WORDS];
};

struct kept {
    float v[PER];
};

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

static __device__ inline void load_lane(const qn_cuda_rows &a, const char *x, i64 column, lane *to)
{
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        to->gate[i] = load_once(x + column * X_BYTES + i * 16);
        to->up[i] = load_once(x + (a.k + column) * X_BYTES + i * 16);
    }
}

static __device__ inline float value_at(const qn_cuda_rows &a, const char *x, i64 column)
{
    return silu_mul(load_one(x, column), load_one(x, a.k + column));
}

static __device__ inline void keep(const lane &from, kept *to)
{
    float u[PER];
    unpack(from.gate, to->v);
    unpack(from.up, u);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        to->v[i] = silu_mul(to->v[i], u[i]);
    }
}

static __device__ inline void restore(const kept &from, float *v)
{
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = from.v[i];
    }
}

struct rule {
    float scale;
    divisor by;
    int azp;
};

static __device__ inline rule make_rule(const qn_cuda_rows &a, range r, i64 row, i64 segment)
{
    rule how;
#if ASYMMETRIC
    float s = (r.high - r.low) / 255.0f;
    int azp = 0;
    if (s == 0.0f) {
        s = 1.0f;
    } else {
        azp = __float2int_rn(-128.0f - r.low / s); /* NaN is 0 */
        azp = azp < -128 ? -128 : azp > 127 ? 127 : azp;
    }
    how.azp = azp;
    how.by.r = 1.0f / s;
#else
    float s = ratio(r.high, CODE_MAX);
    s = a.bound > 0.0f && s > a.bound ? a.bound : s;
    s = fmaxf(s, INT8 ? 1.1920928955078125e-7f : 1.0f / (CODE_MAX * 512.0f));
    how.by = divide_by(s);
#endif
    how.scale = s;
    return how;
}

static __device__ inline void write_rule(const qn_cuda_rows &a, const rule &how, i64 row, i64 segment)
{
    *(float *)(a.scale + row * a.scale_row + segment * a.scale_segment) = how.scale;
#if ASYMMETRIC
    *(int *)(a.azp + row * a.azp_row + segment * a.azp_segment) = how.azp;
#endif
}

static __device__ inline float apply(const rule &how, float v)
{
#if ASYMMETRIC
    const float t = v * how.by.r;
    return t == t ? fminf(fmaxf(rintf(t), -1e6f), 1e6f) + (float)how.azp : (float)how.azp;
#else
    return quotient(v, how.by);
#endif
}

#define ENTRY qn_silu_mul_quant
#include "segments.h"
