/* Decoders of the GGUF super-block formats of 256 elements: Q2_K, Q3_K, Q4_K,
 * Q5_K, Q6_K, IQ4_XS (docs/formats/gguf-blocks.md).
 *
 * A super block has 8 sub-blocks of 32 or 16 of 16 elements; each has a small
 * integer scale (Q2_K, Q4_K, Q5_K: a minimum too) that the block's f16 d (dmin)
 * multiplies first. Products and differences are single f32 operations in the
 * order written here. Encoding is a search, not a rounding, and is not offered. */
#include <string.h>

#include "format/codecs.h"

enum { SUPER = 256 };

static inline float get_f16(const uint8_t *bytes)
{
    uint16_t bits;
    memcpy(&bits, bytes, 2);
    return qn_f16_to_f32(bits);
}

/* scales[16] (low nibble scale, high nibble minimum), codes[64] of two bits, d, dmin */
QN_DECODER(q2_k)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 84) {
        const float d = get_f16(block + 80), dmin = get_f16(block + 82);
        float *x = destination + i;
        for (int group = 0; group < 16; group++) {
            const float scale = d * (float)(block[group] & 15);
            const float minimum = dmin * (float)(block[group] >> 4);
            const uint8_t *codes = block + 16 + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            for (int j = 0; j < 16; j++) {
                x[group * 16 + j] = scale * (float)(codes[j] >> shift & 3) - minimum;
            }
        }
    }
}

/* high[32], codes[64] of two bits, scales[12] (16 of six bits, offset 32), d;
 * a clear high bit takes 4 off the code */
QN_DECODER(q3_k)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 110) {
        const uint8_t *scales = block + 96;
        const float d = get_f16(block + 108);
        float *x = destination + i;
        for (int group = 0; group < 16; group++) {
            const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
            const int top = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            const float scale = d * (float)((low | top << 4) - 32);
            const uint8_t *codes = block + 32 + group / 8 * 32 + group % 2 * 16;
            const uint8_t *high = block + group % 2 * 16;
            const int shift = group % 8 / 2 * 2, bit = group / 2;
            for (int j = 0; j < 16; j++) {
                const int code = (codes[j] >> shift & 3) - ((high[j] >> bit & 1) ? 0 : 4);
                x[group * 16 + j] = scale * (float)code;
            }
        }
    }
}

/* Scale and minimum (six bits each) of sub-block j out of Q4_K's and Q5_K's 12 bytes. */
static inline void get_scale(const uint8_t *scales, int j, int *scale, int *minimum)
{
    if (j < 4) {
        *scale = scales[j] & 63;
        *minimum = scales[j + 4] & 63;
    } else {
        *scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
        *minimum = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
    }
}

/* d, dmin, scales[12], codes[128] of four bits */
QN_DECODER(q4_k)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 144) {
        const float d = get_f16(block), dmin = get_f16(block + 2);
        float *x = destination + i;
        for (int sub = 0; sub < 8; sub++) {
            int scale_code, minimum_code;
            get_scale(block + 4, sub, &scale_code, &minimum_code);
            const float scale = d * (float)scale_code, minimum = dmin * (float)minimum_code;
            const uint8_t *codes = block + 16 + sub / 2 * 32;
            const int shift = sub % 2 * 4;
            for (int j = 0; j < 32; j++) {
                x[sub * 32 + j] = scale * (float)(codes[j] >> shift & 15) - minimum;
            }
        }
    }
}

/* d, dmin, scales[12], high[32], codes[128] of four bits */
QN_DECODER(q5_k)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 176) {
        const float d = get_f16(block), dmin = get_f16(block + 2);
        const uint8_t *high = block + 16;
        float *x = destination + i;
        for (int sub = 0; sub < 8; sub++) {
            int scale_code, minimum_code;
            get_scale(block + 4, sub, &scale_code, &minimum_code);
            const float scale = d * (float)scale_code, minimum = dmin * (float)minimum_code;
            const uint8_t *codes = block + 48 + sub / 2 * 32;
            const int shift = sub % 2 * 4;
            for (int j = 0; j < 32; j++) {
                const int code = (codes[j] >> shift & 15) | (high[j] >> sub & 1) << 4;
                x[sub * 32 + j] = scale * (float)code - minimum;
            }
        }
    }
}

/* low[128] of four bits, high[64] of two bits, scales[16] signed bytes, d; offset 32 */
QN_DECODER(q6_k)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 210) {
        const float d = get_f16(block + 208);
        float *x = destination + i;
        for (int group = 0; group < 16; group++) {
            const float scale = d * (float)(int8_t)block[192 + group];
            const uint8_t *low = block + group / 8 * 64 + group % 4 * 16;
            const uint8_t *high = block + 128 + group / 8 * 32 + group % 2 * 16;
            const int low_shift = group % 8 / 4 * 4, high_shift = group % 8 / 2 * 2;
            for (int j = 0; j < 16; j++) {
                const int code = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
                x[group * 16 + j] = scale * (float)(code - 32);
            }
        }
    }
}

/* d, high[2] (two bits of the eight scales each), low[4] (four bits), codes[128] of four bits; scales have offset 32 */
QN_DECODER(iq4_xs)
{
    const uint8_t *block = source;
    for (int64_t i = 0; i < count; i += SUPER, block += 136) {
        const float d = get_f16(block);
        float *x = destination + i;
        for (int sub = 0; sub < 8; sub++) {
            const int low = block[4 + sub / 2] >> (sub % 2 * 4) & 15, high = block[2 + sub / 4] >> (sub % 4 * 2) & 3;
            const float scale = d * (float)((low | high << 4) - 32);
            const uint8_t *codes = block + 8 + sub * 16;
            for (int j = 0; j < 16; j++) {
                x[sub * 32 + j] = scale * (float)qn_iq4_values[codes[j] & 15];
                x[sub * 32 + 16 + j] = scale * (float)qn_iq4_values[codes[j] >> 4];
            }
        }
    }
}
