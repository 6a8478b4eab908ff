/* quantize_fp8 by token or by group, with scales from the ranges or given.
 * Parameters: those of rows.h and segments.h, and
 *   STATIC   1: scales are given and values multiplied by their reciprocals
 *   GROUPED  1: the scale rule of groups, 0: that of rows */
#include "rows.h"
#include "cuda_rows.h"

struct lane {
    uint4 raw[X_WORDS];
};
typedef lane kept;

static __device__ inline void load_lane(const qn_cuda_rows &a, const char *x, i64 column, lane *to)
{
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        to->raw[i] = load_once(x + column * X_BYTES + i * 16);
    }
}

static __device__ inline float value_at(const qn_cuda_rows &a, const char *x, i64 column)
{
    return load_one(x, column);
}

static __device__ inline void keep(const lane &from, kept *to)
{
    *to = from;
}

static __device__ inline void restore(const kept &from, float *v)
{
    unpack(from.raw, v);
}

struct rule {
    float scale;
    divisor by;
};

static __device__ inline rule make_rule(const qn_cuda_rows &a, range r, i64 row, i64 segment)
{
    rule how;
#if STATIC
    how.scale = *(const float *)(a.given + row * a.given_row + segment * a.given_segment);
    how.by.r = 1.0f / how.scale;
#else
    float most = r.high;
    most = a.bound > 0.0f && most > a.bound ? a.bound : most;
    float s;
#if GROUPED
    s = ratio(fmaxf(most, 1e-10f), CODE_MAX);
#else
    s = fmaxf(ratio(most, CODE_MAX), 1.0f / (CODE_MAX * 512.0f));
#endif
    if (a.power_of_two && s < __int_as_float(0x7f800000)) {
        const u32 bits = __float_as_uint(fmaxf(s, 1e-10f));
        s = __uint_as_float((bits + 0x007fffffu) & 0x7f800000u);
    }
    how.scale = s;
    how.by = divide_by(s);
#endif
    return how;
}

static __device__ inline void write_rule(const qn_cuda_rows &a, const rule &how, i64 row, i64 segment)
{
    *(float *)(a.scale + row * a.scale_row + segment * a.scale_segment) = how.scale;
}

static __device__ inline float apply(const rule &how, float v)
{
#if STATIC
    return v * how.by.r;
#else
    return quotient(v, how.by);
#endif
}

#define ENTRY qn_quantize_fp8
#include "segments.h"
