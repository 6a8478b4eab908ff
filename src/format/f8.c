/* Codecs of the eight-bit floats: e4m3 (OCP, "fn"), e4m3fnuz, e5m2 and the scale
 * format e8m0 (docs/formats/fp8.md).
 *
 * Encoders saturate: finite values and infinities beyond the largest finite value
 * become it. NaN becomes the positive NaN 0x7F (0x80 for fnuz, 0xFF for e8m0)
 * whatever its sign and payload. */
#include "format/codecs.h"
#include "format/small.h"

enum { E4M3_MANTISSA = 3, E4M3_BIAS = 7, FNUZ_BIAS = 8, E5M2_MANTISSA = 2, E5M2_BIAS = 15 };

float qn_e4m3_to_f32(uint8_t code)
{
    const uint32_t magnitude = code & 0x7F;
    const uint32_t finite = qn_small_decode(magnitude, E4M3_MANTISSA, E4M3_BIAS);
    return qn_bits_float((uint32_t)(code & 0x80) << 24 | qn_select(magnitude == 0x7F, QN_F32_NAN, finite));
}

uint8_t qn_f32_to_e4m3(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t absolute = bits & 0x7FFFFFFF;
    const uint32_t number = qn_small_encode(absolute, E4M3_MANTISSA, E4M3_BIAS, 0x7E) | (bits >> 31 << 7);
    return (uint8_t)qn_select(absolute > QN_F32_INFINITY, 0x7F, number);
}

float qn_e4m3fnuz_to_f32(uint8_t code)
{
    const uint32_t finite = qn_small_decode(code & 0x7F, E4M3_MANTISSA, FNUZ_BIAS) | (uint32_t)(code & 0x80) << 24;
    return qn_bits_float(qn_select(code == 0x80, QN_F32_NAN, finite));
}

uint8_t qn_f32_to_e4m3fnuz(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t absolute = bits & 0x7FFFFFFF;
    const uint32_t magnitude = qn_small_encode(absolute, E4M3_MANTISSA, FNUZ_BIAS, 0x7F);
    const uint32_t number = qn_select(magnitude != 0, magnitude | bits >> 31 << 7, 0); /* one zero only: 0x80 is NaN */
    return (uint8_t)qn_select(absolute > QN_F32_INFINITY, 0x80, number);
}

float qn_e5m2_to_f32(uint8_t code)
{
    const uint32_t magnitude = code & 0x7F;
    const uint32_t finite = qn_small_decode(magnitude, E5M2_MANTISSA, E5M2_BIAS);
    const uint32_t special = QN_F32_INFINITY | (uint32_t)(magnitude > 0x7C) << 22;
    return qn_bits_float((uint32_t)(code & 0x80) << 24 | qn_select(magnitude < 0x7C, finite, special));
}

uint8_t qn_f32_to_e5m2(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t absolute = bits & 0x7FFFFFFF;
    const uint32_t number = qn_small_encode(absolute, E5M2_MANTISSA, E5M2_BIAS, 0x7B) | (bits >> 31 << 7);
    return (uint8_t)qn_select(absolute > QN_F32_INFINITY, 0x7F, number);
}

float qn_e8m0_to_f32(uint8_t code)
{
    const uint32_t normal = (uint32_t)code << 23;
    const uint32_t edge = code ? QN_F32_NAN : 0x00400000u; /* 2^-127 is a subnormal float */
    return qn_bits_float(code == 0 || code == 255 ? edge : normal);
}

uint8_t qn_f32_to_e8m0_ceil(float value)
{
    const uint32_t bits = qn_float_bits(value);
    if ((bits & 0x7FFFFFFF) >= QN_F32_INFINITY) {
        return 255;
    }
    if (bits >> 31 || bits <= 0x00400000u) {
        return 0;
    }
    const uint32_t code = (bits + 0x007FFFFFu) >> 23; /* a mantissa bit anywhere moves the exponent up */
    return (uint8_t)(code < 254 ? code : 254);
}

QN_DECODER(f8_e4m3)
{
    const uint8_t *codes = source;
    for (int64_t i = 0; i < count; i++) {
        destination[i] = qn_e4m3_to_f32(codes[i]);
    }
}

QN_ENCODER(f8_e4m3)
{
    uint8_t *codes = destination;
    for (int64_t i = 0; i < count; i++) {
        codes[i] = qn_f32_to_e4m3(source[i]);
    }
}

QN_DECODER(f8_e4m3fnuz)
{
    const uint8_t *codes = source;
    for (int64_t i = 0; i < count; i++) {
        destination[i] = qn_e4m3fnuz_to_f32(codes[i]);
    }
}

QN_ENCODER(f8_e4m3fnuz)
{
    uint8_t *codes = destination;
    for (int64_t i = 0; i < count; i++) {
        codes[i] = qn_f32_to_e4m3fnuz(source[i]);
    }
}

QN_DECODER(f8_e5m2)
{
    const uint8_t *codes = source;
    for (int64_t i = 0; i < count; i++) {
        destination[i] = qn_e5m2_to_f32(codes[i]);
    }
}

QN_ENCODER(f8_e5m2)
{
    uint8_t *codes = destination;
    for (int64_t i = 0; i < count; i++) {
        codes[i] = qn_f32_to_e5m2(source[i]);
    }
}

QN_DECODER(e8m0)
{
    const uint8_t *codes = source;
    for (int64_t i = 0; i < count; i++) {
        destination[i] = qn_e8m0_to_f32(codes[i]);
    }
}

QN_ENCODER(e8m0)
{
    uint8_t *codes = destination;
    for (int64_t i = 0; i < count; i++) {
        codes[i] = qn_f32_to_e8m0_ceil(source[i]);
    }
}
