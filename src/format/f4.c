/* Codec of e2m1 and the 128x4 tiled order of block scales (docs/formats/fp4.md).
 * Two elements a byte, the first in the low nibble. The scales that make NVFP4
 * or MXFP4 of it are tensors of their own; the operators apply them. */
#include "base/checked.h"
#include "format/codecs.h"
#include "format/small.h"

enum { E2M1_MANTISSA = 1, E2M1_BIAS = 1 };

float qn_e2m1_to_f32(uint8_t code)
{
    return qn_bits_float((uint32_t)(code & 8) << 28 | qn_small_decode(code & 7, E2M1_MANTISSA, E2M1_BIAS));
}

uint8_t qn_f32_to_e2m1(float value)
{
    const uint32_t bits = qn_float_bits(value);
    const uint32_t absolute = bits & 0x7FFFFFFF;
    const uint32_t number = qn_small_encode(absolute, E2M1_MANTISSA, E2M1_BIAS, 7) | (bits >> 31 << 3);
    return (uint8_t)qn_select(absolute > QN_F32_INFINITY, 0, number);
}

QN_DECODER(f4_e2m1)
{
    const uint8_t *bytes = source;
    for (int64_t i = 0; i < count / 2; i++) {
        destination[2 * i] = qn_e2m1_to_f32(bytes[i] & 15);
        destination[2 * i + 1] = qn_e2m1_to_f32(bytes[i] >> 4);
    }
}

QN_ENCODER(f4_e2m1)
{
    uint8_t *bytes = destination;
    for (int64_t i = 0; i < count / 2; i++) {
        bytes[i] = (uint8_t)(qn_f32_to_e2m1(source[2 * i]) | qn_f32_to_e2m1(source[2 * i + 1]) << 4);
    }
}

/* Tiles of 128 rows by 4 columns, 512 bytes each, stored row of tiles after row
 * of tiles. Inside a tile: 32 groups of 16 bytes, group r % 32 holding rows r,
 * r + 32, r + 64 and r + 96, four columns each. */
int64_t qn_scale_swizzle(int64_t row, int64_t column, int64_t scale_columns)
{
    const int64_t tiles = scale_columns / 4 + (scale_columns % 4 != 0);
    const int64_t tile = row / 128 * tiles + column / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

int64_t qn_scale_swizzle_bytes(int64_t rows, int64_t scale_columns)
{
    const int64_t tile_rows = rows / 128 + (rows % 128 != 0);
    const int64_t tiles = scale_columns / 4 + (scale_columns % 4 != 0);
    int64_t bytes = 0;
    if (qn_mul_i64(tile_rows, tiles, &bytes) || qn_mul_i64(bytes, 512, &bytes)) {
        return INT64_MAX;
    }
    return bytes;
}
