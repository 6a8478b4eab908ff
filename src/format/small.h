/* Small binary floats: the one decoder and the one rounding rule that f16, the
 * float8 formats and e2m1 share.
 *
 * A small float is a sign bit above `mantissa` + exponent bits; without the sign
 * it is its magnitude code. Codes grow with the value, so saturation is a
 * minimum of codes and the tie of two neighbours goes to the even code. All
 * functions are branch free, so the loops of the codecs vectorise; with constant
 * arguments everything folds. They assume the default rounding mode and no
 * flushing of subnormals. */
#ifndef QN_FORMAT_SMALL_H
#define QN_FORMAT_SMALL_H

#include <stdint.h>
#include <string.h>

#define QN_F32_INFINITY 0x7F800000u
#define QN_F32_NAN 0x7FC00000u

static inline uint32_t qn_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float qn_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Bits of the float 2^exponent, -126 <= exponent <= 127. */
static inline uint32_t qn_power_bits(int exponent)
{
    return (uint32_t)(127 + exponent) << 23;
}

/* chosen when the condition holds, else other; as a mask, so that compilers keep the loops free of branches. */
static inline uint32_t qn_select(int condition, uint32_t chosen, uint32_t other)
{
    const uint32_t mask = 0u - (uint32_t)(condition != 0);
    return (chosen & mask) | (other & ~mask);
}

/* Bits of the float a finite magnitude code stands for; exact. 1 <= bias < 127. */
static inline uint32_t qn_small_decode(uint32_t magnitude, int mantissa, int bias)
{
    const float step = qn_bits_float(qn_power_bits(1 - bias - mantissa)); /* the smallest subnormal */
    const uint32_t subnormal = qn_float_bits((float)(int32_t)magnitude * step);
    const uint32_t normal = (magnitude << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23);
    return qn_select(magnitude >> mantissa == 0, subnormal, normal);
}

/* Magnitude code nearest to the float with bits `absolute` (sign clear), ties to
 * even, at most `limit`. Infinity gives limit; the result for NaN is meaningless. */
static inline uint32_t qn_small_encode(uint32_t absolute, int mantissa, int bias, uint32_t limit)
{
    /* Normal: add just under half of the last kept bit, one more if that bit is odd; carries run into the exponent. */
    const int drop = 23 - mantissa;
    const uint32_t half = (1u << (drop - 1)) - 1 + (absolute >> drop & 1);
    const uint32_t normal = ((absolute + half) >> drop) - ((uint32_t)(127 - bias) << mantissa);
    /* Subnormal: the sum with a float whose unit in the last place is the subnormal step rounds in the addition. */
    const uint32_t anchor = qn_power_bits(23 + 1 - bias - mantissa);
    const uint32_t subnormal = qn_float_bits(qn_bits_float(absolute) + qn_bits_float(anchor)) - anchor;
    const uint32_t code = qn_select(absolute < qn_power_bits(1 - bias), subnormal, normal);
    return qn_select(code < limit, code, limit);
}

#endif
