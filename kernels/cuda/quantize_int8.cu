/* quantize_int8 by tensor, token or group, symmetric or with zero points, scales from the ranges or given.
 * Parameters: those of rows.h (TYPE 3) and segments.h, and STATIC and GROUPED as in quantize_fp8.cu */
#include "rows.h"
#include "cuda_rows.h"
#include "plain_lanes.h"

struct rule {
    float scale, factor;
    divisor by;
    int azp;
};

static __device__ inline rule make_rule(const qn_cuda_rows &a, range r, i64 row, i64 segment)
{
    rule how;
#if STATIC
    how.scale = *(const float *)(a.given + row * a.given_row + segment * a.given_segment);
#if ASYMMETRIC
    how.azp = *(const int *)(a.given_azp + row * a.given_azp_row + segment * a.given_azp_segment);
    how.factor = 1.0f / how.scale;
#endif
#elif ASYMMETRIC
    const zero_point z = find_zero_point(r);
    how.scale = z.scale;
    how.azp = z.azp;
    how.factor = 1.0f / z.scale;
#elif GROUPED
    how.scale = ratio(fmaxf(r.high, 1e-10f), 127.0f);
    how.by = divide_by(how.scale);
#else
    how.scale = r.high / 127.0f;
    how.factor = r.high == 0.0f ? 0.0f : 127.0f / r.high;
#endif
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
#if STATIC && ASYMMETRIC
    int i; /* a given zero point may be any int32: whole numbers, saturated; NaN is 0 */
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(v * how.factor));
    i64 sum = (i64)(v == v ? i : 0) + how.azp;
    sum = sum < -128 ? -128 : sum > 127 ? 127 : sum;
    return (float)(int)sum;
#elif STATIC
    return v / how.scale;
#elif ASYMMETRIC
    return with_zero_point(v * how.factor, how.azp);
#elif GROUPED
    return quotient(v, how.by);
#else
    return v * how.factor;
#endif
}

#define ENTRY qn_quantize_int8
#include "segments.h"
