/* silu_mul_quant: v = gate / (1 + exp(-gate)) * up in f32, never rounded to 16
 * bits, and its 8-bit codes with a scale a group or a row.
 * Parameters: those of rows.h and segments.h.
 */
#include "rows.h"
#include "cuda_rows.h"
#include "silu.h"

struct lane {
    uint4 gate[X_WORDS], up[X_WORDS];
};

struct kept {
    float v[PER];
};

static __device__ inline void load_lane(const qn_cuda_rows &a, const char *x, i64 column, lane *to)
{
#if LOOSE
    load_loose(x + column * X_BYTES, a.k - column, to->gate);
    load_loose(x + (a.k + column) * X_BYTES, a.k - column, to->up);
#else
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        to->gate[i] = load_once(x + column * X_BYTES + i * 16);
        to->up[i] = load_once(x + (a.k + column) * X_BYTES + i * 16);
    }
#endif
}

static __device__ inline void ask_for_lane(const qn_cuda_rows &a, const char *x, i64 column)
{
    ask_for(x + column * X_BYTES);
    ask_for(x + (a.k + column) * X_BYTES);
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

static __device__ inline void widen_by_kept(range *r, const kept &from)
{
#pragma unroll
    for (int i = 0; i < PER; i++) {
        widen_range(r, from.v[i]);
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
    const zero_point z = find_zero_point(r);
    const float s = z.scale;
    how.azp = z.azp;
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
    return with_zero_point(v * how.by.r, how.azp);
#else
    return quotient(v, how.by);
#endif
}

#define ENTRY qn_silu_mul_quant
#include "segments.h"
