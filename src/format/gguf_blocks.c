/* Codecs of the GGUF block formats of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
 * and the decoder of IQ4_NL (docs/formats/gguf-blocks.md).
 *
 * A block is an f16 scale d, for the _1 formats an f16 minimum m, for the Q5
 * formats the fifth bits, then the codes. Four-bit codes: byte j holds element j
 * in the low and element j + 16 in the high nibble. Products and sums are single
 * f32 operations in the order written here. */
#include <math.h>
#include <string.h>

#include "format/codecs.h"

enum { BLOCK = 32, HALF = 16 };

static inline float get_f16(const uint8_t *bytes)
{
    uint16_t bits;
    memcpy(&bits, bytes, 2);
    return qn_f16_to_f32(bits);
}

static inline void put_f16(uint8_t *bytes, float value)
{
    const uint16_t bits = qn_f32_to_f16(value);
    memcpy(bytes, &bits, 2);
}

/* Codes of a block, 0..15 or, with the fifth bits at high, 0..31. */
static inline void get_codes(const uint8_t *low, const uint8_t *high, int32_t codes[BLOCK])
{
    for (int j = 0; j < HALF; j++) {
        codes[j] = low[j] & 15;
        codes[j + HALF] = low[j] >> 4;
    }
    if (high) {
        uint32_t bits;
        memcpy(&bits, high, 4);
        for (int j = 0; j < BLOCK; j++) {
            codes[j] |= (int32_t)(bits >> j & 1) << 4;
        }
    }
}

static inline void put_codes(uint8_t *low, uint8_t *high, const uint8_t codes[BLOCK])
{
    for (int j = 0; j < HALF; j++) {
        low[j] = (uint8_t)((codes[j] & 15) | (codes[j + HALF] & 15) << 4);
    }
    if (high) {
        uint32_t bits = 0;
        for (int j = 0; j < BLOCK; j++) {
            bits |= (uint32_t)(codes[j] >> 4) << j;
        }
        memcpy(high, &bits, 4);
    }
}

/* x = d * (code - middle) */
static inline void decode_symmetric(const uint8_t *codes, const uint8_t *high, float d, int32_t middle, float *x)
{
    int32_t q[BLOCK];
    get_codes(codes, high, q);
    for (int j = 0; j < BLOCK; j++) {
        x[j] = d * (float)(q[j] - middle);
    }
}

/* x = d * code + m */
static inline void decode_affine(const uint8_t *codes, const uint8_t *high, float d, float m, float *x)
{
    int32_t q[BLOCK];
    get_codes(codes, high, q);
    for (int j = 0; j < BLOCK; j++) {
        x[j] = d * (float)q[j] + m;
    }
}

QN_DECODER(q4_0)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 18) {
        decode_symmetric(block + 2, NULL, get_f16(block), 8, destination + i);
    }
}

QN_DECODER(q4_1)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 20) {
        decode_affine(block + 4, NULL, get_f16(block), get_f16(block + 2), destination + i);
    }
}

QN_DECODER(q5_0)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 22) {
        decode_symmetric(block + 6, block + 2, get_f16(block), 16, destination + i);
    }
}

QN_DECODER(q5_1)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 24) {
        decode_affine(block + 8, block + 4, get_f16(block), get_f16(block + 2), destination + i);
    }
}

QN_DECODER(q8_0)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 34) {
        const float d = get_f16(block);
        for (int j = 0; j < BLOCK; j++) {
            destination[i + j] = (float)(int8_t)block[2 + j] * d;
        }
    }
}

const int8_t qn_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

QN_DECODER(iq4_nl)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += BLOCK, block += 18) {
        const float d = get_f16(block);
        int32_t q[BLOCK];
        get_codes(block + 2, NULL, q);
        for (int j = 0; j < BLOCK; j++) {
            destination[i + j] = d * (float)qn_iq4_values[q[j]];
        }
    }
}

/* Integer part of a value, held to 0..highest; NaN becomes 0. */
static inline uint8_t truncate(float value, int highest)
{
    return (uint8_t)(value >= (float)highest ? highest : value > 0 ? (int)value : 0);
}

static inline float reciprocal(float d)
{
    return d == 0 ? 0.0f : 1.0f / d;
}

/* d = e / -middle where e is the first element of greatest magnitude, so that e
 * itself becomes code 0; code = trunc(x / d + middle + 0.5), at most 2 middle - 1. */
static float encode_symmetric(const float *x, int middle, uint8_t codes[BLOCK])
{
    float most = 0, extreme = x[0];
    for (int j = 0; j < BLOCK; j++) {
        const float a = fabsf(x[j]);
        if (a > most || a != a) { /* a NaN stays */
            most = a;
            extreme = x[j];
        }
    }
    const float d = extreme / (float)-middle;
    const float r = reciprocal(d);
    for (int j = 0; j < BLOCK; j++) {
        codes[j] = truncate(x[j] * r + ((float)middle + 0.5f), 2 * middle - 1);
    }
    return d;
}

/* m = min, d = (max - min) / highest; code = trunc((x - m) / d + 0.5), at most highest. */
static float encode_affine(const float *x, int highest, uint8_t codes[BLOCK], float *m)
{
    float low = x[0], high = x[0];
    for (int j = 1; j < BLOCK; j++) {
        low = x[j] < low || x[j] != x[j] ? x[j] : low; /* a NaN stays, and makes d one */
        high = x[j] > high ? x[j] : high;
    }
    const float d = (high - low) / (float)highest;
    const float r = reciprocal(d);
    for (int j = 0; j < BLOCK; j++) {
        codes[j] = truncate((x[j] - low) * r + 0.5f, highest);
    }
    *m = low;
    return d;
}

QN_ENCODER(q4_0)
{
    uint8_t *block = destination;
    for (int64_t i = 0; i < count; i += BLOCK, block += 18) {
        uint8_t codes[BLOCK];
        put_f16(block, encode_symmetric(source + i, 8, codes));
        put_codes(block + 2, NULL, codes);
    }
}

QN_ENCODER(q4_1)
{
    uint8_t *block = destination;
    for (int64_t i = 0; i < count; i += BLOCK, block += 20) {
        uint8_t codes[BLOCK];
        float m;
        put_f16(block, encode_affine(source + i, 15, codes, &m));
        put_f16(block + 2, m);
        put_codes(block + 4, NULL, codes);
    }
}

QN_ENCODER(q5_0)
{
    uint8_t *block = destination;
    for (int64_t i = 0; i < count; i += BLOCK, block += 22) {
        uint8_t codes[BLOCK];
        put_f16(block, encode_symmetric(source + i, 16, codes));
        put_codes(block + 6, block + 2, codes);
    }
}

QN_ENCODER(q5_1)
{
    uint8_t *block = destination;
    for (int64_t i = 0; i < count; i += BLOCK, block += 24) {
        uint8_t codes[BLOCK];
        float m;
        put_f16(block, encode_affine(source + i, 31, codes, &m));
        put_f16(block + 2, m);
        put_codes(block + 8, block + 4, codes);
    }
}

/* Nearest integer, halves away from zero, held to +-127; NaN becomes 0. */
static inline int8_t round_away(float value)
{
    const float a = fabsf(value);
    const float held = a > 127.0f ? 127.0f : a == a ? a : 0.0f;
    const int whole = (int)held;
    const int rounded = whole + (held - (float)whole >= 0.5f);
    return (int8_t)(value < 0 ? -rounded : rounded);
}

/* d = max |x| / 127, code = round(x / d). */
QN_ENCODER(q8_0)
{
    uint8_t *block = destination;
    for (int64_t i = 0; i < count; i += BLOCK, block += 34) {
        float most = 0;
        for (int j = 0; j < BLOCK; j++) {
            const float a = fabsf(source[i + j]);
            most = a > most || a != a ? a : most;
        }
        const float d = most / 127.0f;
        const float r = reciprocal(d);
        put_f16(block, d);
        for (int j = 0; j < BLOCK; j++) {
            block[2 + j] = (uint8_t)round_away(source[i + j] * r);
        }
    }
}
