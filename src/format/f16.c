/* Codecs of f16 (IEEE 754 binary16) and bf16 (docs/formats/floats.md).
 *
 * Software conversion, so that every machine gives the same bits: nearest even,
 * overflow to infinity, subnormals kept, a NaN keeps the top of its payload and
 * becomes quiet. The loops vectorise; kernels may use the instructions of the
 * machine where these give the same. */
#include <string.h>

#include "format/codecs.h"
#include "format/small.h"

enum { F16_MANTISSA = 10, F16_BIAS = 15 };

float qn_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t magnitude = bits & 0x7FFF;
    const uint32_t finite = qn_small_decode(magnitude, F16_MANTISSA, F16_BIAS);
    const uint32_t quiet = magnitude > 0x7C00 ? 0x00400000u : 0;
    const uint32_t special = QN_F32_INFINITY | (magnitude & 0x3FF) << 13 | quiet;
    return qn_bits_float(sign | qn_select(magnitude < 0x7C00, finite, special));
}

uint16_t qn_f32_to_f16(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t absolute = bits & 0x7FFFFFFF;
    const uint32_t number = qn_small_encode(absolute, F16_MANTISSA, F16_BIAS, 0x7C00);
    const uint32_t nan = 0x7E00 | (absolute >> 13 & 0x1FF);
    return (uint16_t)(bits >> 31 << 15 | qn_select(absolute > QN_F32_INFINITY, nan, number));
}

float qn_bf16_to_f32(uint16_t bits)
{
    const uint32_t quiet = (bits & 0x7FFF) > 0x7F80 ? 0x00400000u : 0;
    return qn_bits_float((uint32_t)bits << 16 | quiet);
}

uint16_t qn_f32_to_bf16(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t number = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)qn_select((bits & 0x7FFFFFFF) > QN_F32_INFINITY, nan, number);
}

QN_DECODER(f16)
{
    const uint8_t *bytes = source;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, bytes + i * 2, 2);
        destination[i] = qn_f16_to_f32(bits);
    }
}

QN_ENCODER(f16)
{
    uint8_t *bytes = destination;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t bits = qn_f32_to_f16(source[i]);
        memcpy(bytes + i * 2, &bits, 2);
    }
}

QN_DECODER(bf16)
{
    const uint8_t *bytes = source;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, bytes + i * 2, 2);
        destination[i] = qn_bf16_to_f32(bits);
    }
}

QN_ENCODER(bf16)
{
    uint8_t *bytes = destination;
    for (int64_t i = 0; i < count; i++) {
        const uint16_t bits = qn_f32_to_bf16(source[i]);
        memcpy(bytes + i * 2, &bits, 2);
    }
}
