/* Numbers of PTX's types as their bits: floats of 8 to 64 bits to and from what the host computes with. */
#ifndef QN_TESTS_FAKE_PTX_NUMBERS_H
#define QN_TESTS_FAKE_PTX_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/fake/ptx_code.h"

static inline float f32_of(uint64_t bits)
{
    const uint32_t b = (uint32_t)bits;
    float f;
    memcpy(&f, &b, 4);
    return f;
}

static inline uint64_t f32_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static inline double f64_of(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, 8);
    return f;
}

static inline uint64_t f64_bits(double f)
{
    uint64_t b;
    memcpy(&b, &f, 8);
    return b;
}

static inline float f16_of(uint64_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, e = bits >> 10 & 31, m = bits & 1023;
    if (e == 0) {
        return (sign ? -1.0f : 1.0f) * ldexpf((float)m, -24);
    }
    return f32_of(e == 31 ? sign | 0x7f800000u | m << 13 : sign | (e + 112) << 23 | m << 13);
}

/* v to the nearest of a float format, ties to even: `bits` of significand below the point, exponents from `low` on. */
static inline double to_grid(double v, int bits, int low)
{
    if (v == 0.0 || isnan(v) || isinf(v)) {
        return v;
    }
    int e;
    frexp(v, &e);
    e = e - 1 < low ? low : e - 1;
    return ldexp(nearbyint(ldexp(v, bits - e)), e - bits);
}

static inline uint64_t f16_bits(double v)
{
    const uint64_t sign = signbit(v) ? 0x8000 : 0;
    if (isnan(v)) {
        return 0x7fff;
    }
    v = fabs(to_grid(v, 10, -14));
    if (v > 65504.0) {
        return sign | 0x7c00;
    }
    if (v < 0x1p-14) {
        return sign | (uint64_t)ldexp(v, 24);
    }
    int e;
    const double m = frexp(v, &e);
    return sign | (uint64_t)(e + 14) << 10 | ((uint64_t)ldexp(m, 11) & 1023);
}

static inline float bf16_of(uint64_t bits)
{
    return f32_of(bits << 16);
}

static inline uint64_t bf16_bits(float f)
{
    const uint64_t b = f32_bits(f);
    return isnan(f) ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16 & 0xffff;
}

static inline float e4m3_of(uint64_t bits)
{
    const int e = (int)(bits >> 3 & 15), m = (int)(bits & 7);
    const float v = (bits & 127) == 127 ? NAN : e ? ldexpf(8.0f + (float)m, e - 10) : ldexpf((float)m, -9);
    return bits & 128 ? -v : v;
}

static inline float e5m2_of(uint64_t bits)
{
    return f16_of(bits << 8);
}

/* The largest finite value holds what is above it. */
static inline uint64_t e4m3_bits(double v)
{
    const uint64_t sign = signbit(v) ? 128 : 0;
    if (isnan(v)) {
        return 0x7f;
    }
    v = fabs(v) > 448.0 ? 448.0 : fabs(to_grid(v, 3, -6));
    v = v > 448.0 ? 448.0 : v;
    if (v < 0x1p-6) {
        return sign | (uint64_t)ldexp(v, 9);
    }
    int e;
    const double m = frexp(v, &e);
    return sign | (uint64_t)(e + 6) << 3 | ((uint64_t)ldexp(m, 4) & 7);
}

static inline uint64_t e5m2_bits(double v)
{
    const uint64_t sign = signbit(v) ? 128 : 0;
    if (isnan(v)) {
        return 0x7f;
    }
    v = fabs(to_grid(fabs(v) > 57344.0 ? 57344.0 : v, 2, -14));
    return sign | f16_bits(v > 57344.0 ? 57344.0 : v) >> 8;
}

static inline int64_t signed_of(uint64_t bits, int bytes)
{
    const int shift = 64 - 8 * bytes;
    return (int64_t)(bits << shift) >> shift;
}

static inline double real_of(uint64_t bits, ptx_type type)
{
    switch (type) {
    case PTX_F32:
    case PTX_TF32: return f32_of(bits);
    case PTX_F64: return f64_of(bits);
    case PTX_F16: return f16_of(bits);
    case PTX_BF16: return bf16_of(bits);
    default: return NAN;
    }
}

static inline uint64_t real_bits(double v, ptx_type type)
{
    switch (type) {
    case PTX_F32: return f32_bits((float)v);
    case PTX_F64: return f64_bits(v);
    case PTX_F16: return f16_bits(v);
    case PTX_BF16: return bf16_bits((float)v);
    default: return 0;
    }
}

#endif
