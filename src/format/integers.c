/* Codecs of integers and bool (docs/formats/floats.md). Decoding rounds to the
 * nearest float (exact up to 24 bits); encoding rounds to the nearest even
 * integer, saturates and takes NaN as 0. */
#include <string.h>

#include "format/codecs.h"

/* Nearest integer, ties to even; infinities and NaN stay. Plain arithmetic, so
 * that it vectorises everywhere: adding 2^23 leaves no room for a fraction. */
static inline float round_even(float value)
{
    const float shift = value < 0 ? -0x1p23f : 0x1p23f;
    const float rounded = (value + shift) - shift;
    return value > -0x1p23f && value < 0x1p23f ? rounded : value;
}

/* Rounded and held to limits that are floats themselves; NaN becomes 0. */
static inline float round_clamp(float value, float low, float high)
{
    const float rounded = round_even(value);
    const float held = rounded < low ? low : rounded > high ? high : rounded;
    return value == value ? held : 0.0f;
}

int8_t qn_f32_to_i8(float value)
{
    return (int8_t)(int32_t)round_clamp(value, -128.0f, 127.0f);
}

#define DECODE_INTEGER(name, type)                              \
    QN_DECODER(name)                                            \
    {                                                           \
        const uint8_t *bytes = source;                          \
        for (int64_t i = 0; i < count; i++) {                   \
            type value;                                         \
            memcpy(&value, bytes + i * (int64_t)sizeof value, sizeof value); \
            destination[i] = (float)value;                      \
        }                                                       \
    }

/* Up to 16 bits: the limits are floats. */
#define ENCODE_NARROW(name, type, low, high)                                       \
    QN_ENCODER(name)                                                               \
    {                                                                              \
        uint8_t *bytes = destination;                                              \
        for (int64_t i = 0; i < count; i++) {                                      \
            const type value = (type)(int32_t)round_clamp(source[i], (low), (high)); \
            memcpy(bytes + i * (int64_t)sizeof value, &value, sizeof value);       \
        }                                                                          \
    }

/* From 32 bits: the largest value is no float, the power of two above it is. */
#define ENCODE_WIDE(name, type, low, lowest, above, highest)                                      \
    QN_ENCODER(name)                                                                              \
    {                                                                                             \
        uint8_t *bytes = destination;                                                             \
        for (int64_t i = 0; i < count; i++) {                                                     \
            const float x = round_even(source[i]);                                                \
            const type value = x != x ? 0 : x >= (above) ? (highest) : x <= (low) ? (lowest) : (type)x; \
            memcpy(bytes + i * (int64_t)sizeof value, &value, sizeof value);                      \
        }                                                                                         \
    }

DECODE_INTEGER(i8, int8_t)
DECODE_INTEGER(u8, uint8_t)
DECODE_INTEGER(i16, int16_t)
DECODE_INTEGER(u16, uint16_t)
DECODE_INTEGER(i32, int32_t)
DECODE_INTEGER(u32, uint32_t)
DECODE_INTEGER(i64, int64_t)
DECODE_INTEGER(u64, uint64_t)

ENCODE_NARROW(i8, int8_t, -128.0f, 127.0f)
ENCODE_NARROW(u8, uint8_t, 0.0f, 255.0f)
ENCODE_NARROW(i16, int16_t, -32768.0f, 32767.0f)
ENCODE_NARROW(u16, uint16_t, 0.0f, 65535.0f)
ENCODE_NARROW(bool, uint8_t, 0.0f, 1.0f)
ENCODE_WIDE(i32, int32_t, -0x1p31f, INT32_MIN, 0x1p31f, INT32_MAX)
ENCODE_WIDE(u32, uint32_t, 0.0f, 0, 0x1p32f, UINT32_MAX)
ENCODE_WIDE(i64, int64_t, -0x1p63f, INT64_MIN, 0x1p63f, INT64_MAX)
ENCODE_WIDE(u64, uint64_t, 0.0f, 0, 0x1p64f, UINT64_MAX)

QN_DECODER(bool)
{
    const uint8_t *bytes = source;
    for (int64_t i = 0; i < count; i++) {
        destination[i] = bytes[i] ? 1.0f : 0.0f;
    }
}
