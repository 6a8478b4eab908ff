/* quantize_fp8 by tensor, token, group or block of 128 x 128, with scales from the ranges or given.
 * Parameters: those of rows.h and segments.h, and
 *   STATIC    1: scales are given
 *   MULTIPLY  1: values are multiplied by the reciprocal of their scale: of given ones and of a whole tensor's
 *   GROUPED   1: the scale rule of groups and blocks, 0: that of rows */
#include "rows.h"
#include "cuda_rows.h"
#include "plain_lanes.h"

struct rule {
    float scale;
    divisor by;
};

static __device__ inline rule make_rule(const qn_cuda_rows &a, range r, i64 row, i64 segment)
{
    rule how;
#if STATIC
    how.scale = *(const float *)(a.given + row * a.given_row + segment * a.given_segment);
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
#endif
#if MULTIPLY
    how.by.r = 1.0f / how.scale;
#else
    how.by = divide_by(how.scale);
#endif
    return how;
}

static __device__ inline void write_rule(const qn_cuda_rows &a, const rule &how, i64 row, i64 segment)
{
    *(float *)(a.scale + row * a.scale_row + segment * a.scale_segment) = how.scale;
}

static __device__ inline float apply(const rule &how, float v)
{
#if MULTIPLY
    return v * how.by.r;
#else
    return quotient(v, how.by);
#endif
}

#define ENTRY qn_quantize_fp8
#include "segments.h"
