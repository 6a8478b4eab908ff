/* GGUF blocks of e2m1 codes with their scales, MXFP4 and NVFP4 (docs/formats/gguf-blocks.md): decoders, and the blocks
 * taken apart into the codes and scales that the operators have as tensors of their own (docs/formats/fp4.md).
 *
 * A unit is the elements that have one scale; a block is its scales, then the codes of its units. Byte j of a unit of u
 * elements holds element j in the low nibble and element j + u / 2 in the high one; operators want 2 j and 2 j + 1. */
#include "format/codecs.h"
#include "format/small.h"

enum { MX_UNIT = 32, NV_UNIT = 16, NV_UNITS = 4, NV_NAN = 127 };

typedef struct fp4_block {
    int units, elements; /* of a block, of a unit */
} fp4_block;

static fp4_block block_of(qn_format format)
{
    return format == QN_MXFP4 ? (fp4_block){1, MX_UNIT} : (fp4_block){NV_UNITS, NV_UNIT};
}

/* A scale as operators take it: ggml reads NVFP4's without a sign, and the code of NaN as 0. */
static uint8_t scale_code(qn_format format, uint8_t byte)
{
    return format == QN_MXFP4 ? byte : byte == NV_NAN ? 0 : byte & NV_NAN;
}

/* The value that a code of value 0.5 has. */
static float half_of(qn_format format, uint8_t byte)
{
    const uint8_t code = scale_code(format, byte);
    float scale;
    if (format == QN_MXFP4) {
        qn_decode_e8m0(&code, 1, &scale);
    } else {
        qn_decode_f8_e4m3(&code, 1, &scale);
    }
    return 0.5f * scale;
}

static void decode(qn_format format, const uint8_t *block, int64_t count, float *x)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const fp4_block f = block_of(format);
    const int half = f.elements / 2;
    for (int64_t i = 0; i < count; i += f.units * f.elements, block += f.units + f.units * half) {
        for (int u = 0; u < f.units; u++) {
            const uint8_t *const codes = block + f.units + u * half;
            float *const to = x + i + u * f.elements;
            const float d = half_of(format, block[u]);
            for (int j = 0; j < half; j++) {
                to[j] = d * (float)doubled[codes[j] & 15];
                to[half + j] = d * (float)doubled[codes[j] >> 4];
            }
        }
    }
}

QN_DECODER(mxfp4)
{
    decode(QN_MXFP4, source, count, destination);
}

QN_DECODER(nvfp4)
{
    decode(QN_NVFP4, source, count, destination);
}

void qn_fp4_blocks_codes(qn_format format, const void *blocks, int64_t count, uint8_t *codes)
{
    const fp4_block f = block_of(format);
    const int half = f.elements / 2;
    const uint8_t *from = (const uint8_t *)blocks + f.units;
    for (int64_t i = 0; i < count; i += f.units * f.elements, from += f.units) {
        for (int u = 0; u < f.units; u++, from += half, codes += half) {
            for (int j = 0; j < half / 2; j++) {
                const uint8_t a = from[2 * j], b = from[2 * j + 1];
                codes[j] = (uint8_t)((a & 15) | b << 4);
                codes[half / 2 + j] = (uint8_t)(a >> 4 | (b & 0xf0));
            }
        }
    }
}

void qn_fp4_blocks_scales(qn_format format, const void *blocks, int64_t count, uint8_t *scales)
{
    const fp4_block f = block_of(format);
    const uint8_t *block = blocks;
    for (int64_t i = 0; i < count; i += f.units * f.elements, block += f.units + f.units * f.elements / 2) {
        for (int u = 0; u < f.units; u++) {
            *scales++ = scale_code(format, block[u]);
        }
    }
}
