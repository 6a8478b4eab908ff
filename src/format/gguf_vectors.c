/* GGUF blocks whose codes are vectors of a grid (IQ1, IQ2, IQ3) or ternary digits (TQ), 256 elements each: rewritten,
 * exactly, as i8_k blocks, which operators take, and decoded through them (docs/formats/gguf-blocks.md). Codec of i8_k.
 *
 * An element of any of them is d times a small odd number of its 16 elements times an integer below 128: 11, 5 and 7
 * bits, so every product here is exact. */
#include <string.h>

#include "format/codecs.h"
#include "format/gguf_grids.h"

enum { BLOCK = 256, GROUP = 16, GROUPS = BLOCK / GROUP, VECTORS = BLOCK / 8 };

/* A block of i8_k, as it lies in memory. */
typedef struct i8_block {
    float d;
    int8_t scales[GROUPS], values[BLOCK];
} i8_block;

_Static_assert(sizeof(i8_block) == 276, "i8_k has no gaps");

QN_DECODER(i8_k)
{
    const char *from = source;
    for (int64_t i = 0; i < count; i += BLOCK, from += sizeof(i8_block)) {
        i8_block b;
        memcpy(&b, from, sizeof b);
        for (int j = 0; j < BLOCK; j++) {
            destination[i + j] = b.d * (float)b.scales[j / GROUP] * (float)b.values[j];
        }
    }
}

static uint32_t word_at(const uint8_t *p, int bytes)
{
    uint32_t word = 0;
    memcpy(&word, p, (size_t)bytes);
    return word;
}

static float half_at(const uint8_t *p)
{
    return qn_f16_to_f32((uint16_t)word_at(p, 2));
}

/* Eight coordinates out of two bits each, signs: bit j of coordinate j. */
static void put_eight(uint16_t entry, const int8_t levels[3], uint32_t signs, int8_t *to)
{
    for (int j = 0; j < 8; j++) {
        const int8_t level = levels[entry >> 2 * j & 3];
        to[j] = (int8_t)(signs >> j & 1 ? -level : level);
    }
}

static void put_four(uint16_t entry, const int8_t levels[8], uint32_t signs, int8_t *to)
{
    for (int j = 0; j < 4; j++) {
        const int8_t level = levels[entry >> 3 * j & 7];
        to[j] = (int8_t)(signs >> j & 1 ? -level : level);
    }
}

/* Eight signs out of seven bits: they are even in number. */
static uint32_t even_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (uint32_t)__builtin_parity(seven) << 7;
}

static const int8_t iq2_levels[3] = {8, 25, 43};
static const int8_t iq3_xxs_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t iq3_s_levels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* 1 + 2 s, of scales of four bits, the first in the low ones. */
static int8_t odd_scale(const uint8_t *scales, int i)
{
    return (int8_t)(1 + 2 * (scales[i / 2] >> i % 2 * 4 & 15));
}

static void read_iq2_xxs(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from) / 8;
    for (int v = 0; v < VECTORS; v++) {
        const uint8_t *const codes = from + 2 + v / 4 * 8;
        const uint32_t more = word_at(codes + 4, 4);
        b->scales[v / 2] = (int8_t)(1 + 2 * (more >> 28));
        put_eight(qn_grid_iq2_xxs[codes[v % 4]], iq2_levels, even_signs(more >> 7 * (v % 4)), b->values + v * 8);
    }
}

static void read_iq2_xs(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from) / 8;
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t code = word_at(from + 2 + v * 2, 2);
        b->scales[v / 2] = odd_scale(from + 66, v / 2);
        put_eight(qn_grid_iq2_xs[code & 511], iq2_levels, even_signs(code >> 9), b->values + v * 8);
    }
}

static void read_iq2_s(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from) / 8;
    for (int v = 0; v < VECTORS; v++) {
        const int code = from[2 + v] | (from[66 + v / 4] >> v % 4 * 2 & 3) << 8;
        b->scales[v / 2] = odd_scale(from + 74, v / 2);
        put_eight(qn_grid_iq2_s[code], iq2_levels, from[34 + v], b->values + v * 8);
    }
}

static void read_iq3_xxs(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from) / 4;
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t more = word_at(from + 66 + v / 4 * 4, 4), signs = even_signs(more >> 7 * (v % 4));
        b->scales[v / 2] = (int8_t)(1 + 2 * (more >> 28));
        for (int h = 0; h < 2; h++) {
            put_four(qn_grid_iq3_xxs[from[2 + 2 * v + h]], iq3_xxs_levels, signs >> 4 * h, b->values + v * 8 + h * 4);
        }
    }
}

static void read_iq3_s(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from);
    for (int v = 0; v < VECTORS; v++) {
        b->scales[v / 2] = odd_scale(from + 106, v / 4);
        for (int h = 0; h < 2; h++) {
            const int i = 2 * v + h, code = from[2 + i] | (from[66 + i / 8] >> i % 8 & 1) << 8;
            put_four(qn_grid_iq3_s[code], iq3_s_levels, (uint32_t)from[74 + v] >> 4 * h, b->values + i * 4);
        }
    }
}

/* Eight times the coordinates, one of a vector's more or less. */
static void put_ternary(int code, int less, int8_t *to)
{
    for (int j = 0; j < 8; j++) {
        to[j] = (int8_t)(8 * ((qn_grid_iq1_s[code] >> 2 * j & 3) - 1) + (less ? -1 : 1));
    }
}

static void read_iq1_s(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from) / 8;
    for (int v = 0; v < VECTORS; v++) {
        const uint32_t more = word_at(from + 34 + v / 4 * 2, 2);
        b->scales[v / 2] = (int8_t)(1 + 2 * (more >> 12 & 7));
        put_ternary((int)(from[2 + v] | (more >> 3 * (v % 4) & 7) << 8), more >> 15 != 0, b->values + v * 8);
    }
}

/* d's nibbles are the highest of the four words of scales. */
static void read_iq1_m(const uint8_t *from, i8_block *b)
{
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        d |= word_at(from + 48 + 2 * i, 2) >> 12 << 4 * i;
    }
    b->d = qn_f16_to_f32((uint16_t)d) / 8;
    for (int v = 0; v < VECTORS; v++) {
        const int more = from[32 + v / 2] >> v % 2 * 4;
        b->scales[v / 2] = (int8_t)(1 + 2 * (word_at(from + 48 + v / 8 * 2, 2) >> 3 * (v / 2 % 4) & 7));
        put_ternary(from[v] | (more & 7) << 8, more & 8, b->values + v * 8);
    }
}

static const uint8_t powers_of_3[5] = {1, 3, 9, 27, 81};

/* Digit i of a byte that holds five of base 3 as a fraction of 256, less 1. */
static int8_t digit_of(uint8_t byte, int i)
{
    return (int8_t)(((uint32_t)(uint8_t)(byte * powers_of_3[i]) * 3 >> 8) - 1);
}

static void read_tq1_0(const uint8_t *from, i8_block *b)
{
    int8_t *to = b->values;
    b->d = half_at(from + 52);
    memset(b->scales, 1, sizeof b->scales);
    const struct {
        int at, bytes, digits;
    } runs[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < runs[r].digits; i++) {
            for (int j = 0; j < runs[r].bytes; j++) {
                *to++ = digit_of(from[runs[r].at + j], i);
            }
        }
    }
}

static void read_tq2_0(const uint8_t *from, i8_block *b)
{
    b->d = half_at(from + 64);
    memset(b->scales, 1, sizeof b->scales);
    for (int i = 0; i < BLOCK; i++) {
        b->values[i] = (int8_t)((from[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) - 1);
    }
}

#define VECTOR_BLOCKS(name, bytes)                                                                                     \
    void qn_rewrite_##name(const void *blocks, int64_t count, void *out)                                               \
    {                                                                                                                  \
        const uint8_t *from = blocks;                                                                                  \
        char *to = out;                                                                                                \
        for (int64_t i = 0; i < count; i += BLOCK, from += (bytes), to += sizeof(i8_block)) {                          \
            i8_block b;                                                                                                \
            read_##name(from, &b);                                                                                     \
            memcpy(to, &b, sizeof b);                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    QN_DECODER(name)                                                                                                   \
    {                                                                                                                  \
        const uint8_t *from = source;                                                                                  \
        for (int64_t i = 0; i < count; i += BLOCK, from += (bytes)) {                                                  \
            i8_block b;                                                                                                \
            read_##name(from, &b);                                                                                     \
            qn_decode_i8_k(&b, BLOCK, destination + i);                                                                \
        }                                                                                                              \
    }

VECTOR_BLOCKS(iq2_xxs, 66)
VECTOR_BLOCKS(iq2_xs, 74)
VECTOR_BLOCKS(iq2_s, 82)
VECTOR_BLOCKS(iq3_xxs, 98)
VECTOR_BLOCKS(iq3_s, 110)
VECTOR_BLOCKS(iq1_s, 50)
VECTOR_BLOCKS(iq1_m, 56)
VECTOR_BLOCKS(tq1_0, 54)
VECTOR_BLOCKS(tq2_0, 66)
