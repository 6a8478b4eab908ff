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

#if ONCE
/* Two codes of integers, saturated, below what `above` has. */
static __device__ inline u32 pack_codes(int a, int b, u32 above)
{
    u32 word;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(b), "r"(a), "r"(above));
    return word;
}

/* A lane's codes. Of finite values and factors the products are small, or infinite: adding 1.5 * 2^23 rounds the former
 * to the integer that the sum's bits hold, and makes the latter large. Conversions have a quarter of the rate. */
static __device__ inline void write_lane(const rule &how, const uint4 *raw, char *q)
{
    float v[PER];
    unpack(raw, v);
    float most = how.factor;
#if X_FORMAT == 0
#pragma unroll
    for (int i = 0; i < PER; i++) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(v[i])));
    }
#else
    float both[2];
    widen(larger_pair_or_nan(larger_pair_or_nan(raw->x, raw->y), larger_pair_or_nan(raw->z, raw->w)), both);
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(both[0])));
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(both[1])));
#endif
    if (!(most < __int_as_float(0x7f800000))) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = apply(how, v[i]);
        }
        store_codes(q, v);
        return;
    }
    int code[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        code[i] = __float_as_int(v[i] * how.factor + 12582912.0f) - 0x4b400000;
#if ASYMMETRIC
        code[i] += how.azp;
#endif
    }
    uint2 out;
    out.x = pack_codes(code[0], code[1], pack_codes(code[2], code[3], 0));
    out.y = pack_codes(code[4], code[5], pack_codes(code[6], code[7], 0));
    *(uint2 *)q = out;
}
#endif

#define ENTRY qn_quantize_int8
#include "segments.h"
