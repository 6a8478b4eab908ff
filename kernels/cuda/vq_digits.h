/* Numbers as digits of exact integer products: x = scale * (d0 + 256 d1 + 65536 d2), digits int8, one scale a span of
 * 256 elements, which a warp makes. Shared by vq_books.cu, vq_bytes.cu and vq_points.cu. */
#ifndef QN_CUDA_VQ_DIGITS_H
#define QN_CUDA_VQ_DIGITS_H

#include "vq_parts.h"

/* Eight elements from k on, a multiple of 8; zeros from `limit` on. */
DEV void load_eight(const char *row, int k, int limit, int format, float *v)
{
    if (k >= limit) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[e] = 0.0f;
        }
        return;
    }
    if (((u64)row & 15) == 0 && format == QN_MM_F32) {
        const float4 low = ((const float4 *)row)[k / 4], high = ((const float4 *)row)[k / 4 + 1];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
    if (((u64)row & 15) == 0) {
        const uint4 all = ((const uint4 *)row)[k / 8];
        const u32 words[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            v[e] = load_float((const char *)&words[e / 2], 0, format);
            v[e + 1] = load_float((const char *)&words[e / 2], 1, format);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        v[e] = load_float(row, k + e, format);
    }
}

/* Eight elements as words of three digits each, where the span's largest has the bits `most`; returns what they are to
 * be multiplied by. */
DEV float digits_below(const float *v, u32 most, u32 *digits)
{
    /* the largest becomes 2^21 to 2^22 */
    const u32 exponent = most >> 23, shift = exponent > 24 ? exponent - 21 : 3;
    const float inverse = __uint_as_float((254 - shift) << 23);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        /* rounded in front of 2^23; digits from -128 to 127 are bytes 128 less */
        digits[e] = __float_as_uint(__fmaf_rn(v[e], inverse, 12582912.0f)) - (0x4b400000u - 0x00808080u);
    }
    return __uint_as_float(exponent == 255 ? 0x7fc00000u : shift << 23);
}

/* The bits of the largest of the warp's 256 elements, eight a lane. */
DEV u32 largest_of(const float *v)
{
    u32 most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        most = max(most, __float_as_uint(v[e]) & 0x7fffffffu);
    }
    return __reduce_max_sync(~0u, most);
}

/* Those elements by themselves. */
DEV float digits_of(const float *v, u32 *digits)
{
    return digits_below(v, largest_of(v), digits);
}

/* Digit d of four elements. */
DEV u32 four_digits(u32 a, u32 b, u32 c, u32 e, u32 d)
{
    const u32 which = d == 0 ? 0x0040 : d == 1 ? 0x0051 : 0x0062;
    return __byte_perm(__byte_perm(a, b, which), __byte_perm(c, e, which), 0x5410) ^ 0x80808080u;
}

DEV uint2 load_digits(u32 at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

#endif
