/* Packing the block formats of GGUF as codes of groups (kernels/common/panel.h) and reading single elements back. */
#include <string.h>

#include "backend/cpu/panel_pack.h"
#include "format/format.h"

#define MOST_ELEMENTS 256

/* A block as it is in a file, codes one a byte. Blocks of 32: d and dmin are the f16 scale and minimum; of 8 bits and
 * super blocks they are the halves of an f32 scale. */
typedef struct source_block {
    uint8_t codes[MOST_ELEMENTS];
    uint16_t d, dmin;
    uint8_t scales[16], minima[16]; /* of the groups of a super block; scales of codes without minima are signed */
} source_block;

static uint16_t half_at(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
}

/* Byte j has element j in the low and element j + count in the high nibble. */
static void split_nibbles(const uint8_t *from, int count, uint8_t *codes)
{
    for (int j = 0; j < count; j++) {
        codes[j] = from[j] & 15;
        codes[j + count] = from[j] >> 4;
    }
}

/* ---- blocks of 32 ---- */

static void read_fifth_bits(const uint8_t *from, uint8_t *codes)
{
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    for (int j = 0; j < 32; j++) {
        codes[j] |= (uint8_t)((bits >> j & 1) << 4);
    }
}

static void read_q4_0(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    split_nibbles(from + 2, 16, b->codes);
}

static void read_q4_1(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    b->dmin = half_at(from + 2);
    split_nibbles(from + 4, 16, b->codes);
}

static void read_q5_0(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    split_nibbles(from + 6, 16, b->codes);
    read_fifth_bits(from + 2, b->codes);
}

static void read_q5_1(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    b->dmin = half_at(from + 2);
    split_nibbles(from + 8, 16, b->codes);
    read_fifth_bits(from + 4, b->codes);
}

static void read_q8_0(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    for (int j = 0; j < 32; j++) {
        b->codes[j] = from[2 + j] ^ 0x80;
    }
}

/* ---- super blocks of 256; where things are: src/format/gguf_super_blocks.c ---- */

static void read_two_bits(const uint8_t *from, uint8_t *codes)
{
    for (int i = 0; i < 256; i++) {
        codes[i] = from[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

static void read_q2_k(const uint8_t *from, source_block *b)
{
    b->d = half_at(from + 80);
    b->dmin = half_at(from + 82);
    for (int g = 0; g < 16; g++) {
        b->scales[g] = from[g] & 15;
        b->minima[g] = from[g] >> 4;
    }
    read_two_bits(from + 16, b->codes);
}

static void read_q3_k(const uint8_t *from, source_block *b)
{
    const uint8_t *const scales = from + 96;
    b->d = half_at(from + 108);
    for (int g = 0; g < 16; g++) {
        const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
        const int top = scales[8 + g % 4] >> (g / 4 * 2) & 3;
        b->scales[g] = (uint8_t)((low | top << 4) - 32);
    }
    read_two_bits(from + 32, b->codes);
    for (int i = 0; i < 256; i++) {
        b->codes[i] |= (uint8_t)((from[i % 32] >> (i / 32) & 1) << 2);
    }
}

/* Scales and minima of six bits of Q4_K and Q5_K. */
static void read_scales_k(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    b->dmin = half_at(from + 2);
    const uint8_t *const s = from + 4;
    for (int g = 0; g < 4; g++) {
        b->scales[g] = s[g] & 63;
        b->minima[g] = s[g + 4] & 63;
        b->scales[g + 4] = (uint8_t)((s[g + 8] & 15) | (s[g] >> 6) << 4);
        b->minima[g + 4] = (uint8_t)(s[g + 8] >> 4 | (s[g + 4] >> 6) << 4);
    }
}

static void read_q4_k(const uint8_t *from, source_block *b)
{
    read_scales_k(from, b);
    for (int i = 0; i < 4; i++) {
        split_nibbles(from + 16 + i * 32, 32, b->codes + i * 64);
    }
}

static void read_q5_k(const uint8_t *from, source_block *b)
{
    read_scales_k(from, b);
    for (int i = 0; i < 4; i++) {
        split_nibbles(from + 48 + i * 32, 32, b->codes + i * 64);
    }
    for (int i = 0; i < 256; i++) {
        b->codes[i] |= (uint8_t)((from[16 + i % 32] >> (i / 32) & 1) << 4);
    }
}

static void read_q6_k(const uint8_t *from, source_block *b)
{
    b->d = half_at(from + 208);
    memcpy(b->scales, from + 192, sizeof b->scales);
    for (int i = 0; i < 2; i++) {
        split_nibbles(from + i * 64, 64, b->codes + i * 128);
    }
    for (int i = 0; i < 256; i++) {
        b->codes[i] |= (uint8_t)((from[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4);
    }
}

static void read_iq4_xs(const uint8_t *from, source_block *b)
{
    const uint16_t high = half_at(from + 2);
    b->d = half_at(from);
    for (int g = 0; g < 8; g++) {
        b->scales[g] = (uint8_t)(((from[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> 2 * g & 3) << 4) - 32);
        split_nibbles(from + 8 + g * 16, 16, b->codes + g * 32);
    }
}

static void read_i8_k(const uint8_t *from, source_block *b)
{
    b->d = half_at(from);
    b->dmin = half_at(from + 2);
    memcpy(b->scales, from + 4, sizeof b->scales);
    for (int i = 0; i < 256; i++) {
        b->codes[i] = from[20 + i] ^ 0x80;
    }
}

typedef struct source_format {
    int32_t elements, bytes;
    void (*read)(const uint8_t *from, source_block *block);
} source_format;

/* The format that a code is made for. */
static source_format format_of(qn_panel_code code)
{
    switch ((int)code) {
    case QN_PANEL_G4: return (source_format){32, 18, read_q4_0};
    case QN_PANEL_G4M: return (source_format){32, 20, read_q4_1};
    case QN_PANEL_G5: return (source_format){32, 22, read_q5_0};
    case QN_PANEL_G5M: return (source_format){32, 24, read_q5_1};
    case QN_PANEL_G8: return (source_format){32, 34, read_q8_0};
    case QN_PANEL_S4M: return (source_format){256, 144, read_q4_k};
    case QN_PANEL_S5M: return (source_format){256, 176, read_q5_k};
    case QN_PANEL_S6: return (source_format){256, 210, read_q6_k};
    case QN_PANEL_S3: return (source_format){256, 110, read_q3_k};
    case QN_PANEL_G4T: return (source_format){32, 18, read_q4_0};
    case QN_PANEL_S4T: return (source_format){256, 136, read_iq4_xs};
    case QN_PANEL_S8: return (source_format){256, 276, read_i8_k};
    default: return (source_format){256, 84, read_q2_k};
    }
}

/* ---- panels ---- */

static uint32_t four_at(const void *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return four;
}

static void put_four(char *p, uint32_t four)
{
    memcpy(p, &four, sizeof four);
}

/* Codes of elements k to k + count of a block of 64, of column c; planes are zeros before. */
static void put_codes(int bits, const uint8_t *codes, int k, int count, char *block, int c)
{
    char *const column = block + c * 4;
    for (int i = 0; bits == 8 && i < count; i += 4) {
        put_four(column + (k + i) / 4 * QN_PANEL_LINE, four_at(codes + i));
    }
    for (int i = 0; bits < 8 && i < count; i += 8) {
        const uint32_t low = four_at(codes + i), high = four_at(codes + i + 4);
        const int line = (k + i) / 8;
        put_four(column + line * QN_PANEL_LINE, (low & 0x0f0f0f0f) | (high & 0x0f0f0f0f) << 4);
        char *const planes = column + 8 * QN_PANEL_LINE;
        if (bits == 5) {
            char *const at = planes + line / 4 * QN_PANEL_LINE;
            const uint32_t two = (low >> 4 & 0x01010101) | (high >> 4 & 0x01010101) << 1;
            put_four(at, four_at(at) | two << (line % 4 * 2));
        } else if (bits == 6) {
            char *const at = planes + line / 2 * QN_PANEL_LINE;
            const uint32_t two = (low >> 4 & 0x03030303) | (high >> 4 & 0x03030303) << 2;
            put_four(at, four_at(at) | two << (line % 2 * 4));
        }
    }
}

/* Scales of the elements k to k + count of a block of 64; `first`: of its groups, the source's first. */
static void put_scales(const qn_panel_group_code *code, const source_block *b, int first, int k, int count,
                       char *scales, int c)
{
    const int groups = QN_PANEL_K / code->group * QN_PANEL_COLS;
    if (!code->super) {
        memcpy(scales + (k / code->group * QN_PANEL_COLS + c) * 2, &b->d, 2);
        if (code->minima) {
            memcpy(scales + (groups + k / code->group * QN_PANEL_COLS + c) * 2, &b->dmin, 2);
        }
        return;
    }
    if (code->bits == 8) {
        memcpy(scales + c * 4, &b->d, 2);
        memcpy(scales + c * 4 + 2, &b->dmin, 2);
    } else {
        memcpy(scales + c * 2, &b->d, 2);
        memcpy(scales + (QN_PANEL_COLS + c) * 2, &b->dmin, 2);
    }
    for (int g = 0; g < count / code->group; g++) {
        char *const at = scales + 4 * QN_PANEL_COLS + (k / code->group + g) * QN_PANEL_COLS + c;
        at[0] = (char)b->scales[first + g];
        if (code->minima) {
            at[groups] = (char)b->minima[first + g];
        }
    }
}

static int is_finite(const qn_panel_group_code *code, const source_block *b)
{
    if (code->super && code->bits == 8) {
        return (b->dmin & 0x7f80) != 0x7f80;
    }
    return (b->d & 0x7c00) != 0x7c00 && (b->dmin & 0x7c00) != 0x7c00;
}

int qn_panel_pack_groups(qn_panel_code code, const uint8_t *row, int64_t k, char *panel, int c)
{
    const qn_panel_group_code of = qn_panel_group_code_of((int)code);
    const source_format format = format_of(code);
    const int64_t bytes = qn_panel_group_bytes((int)code);
    const int step = format.elements < QN_PANEL_K ? format.elements : QN_PANEL_K;
    source_block b;
    int special = 0;
    memset(&b, 0, sizeof b);
    for (int64_t i = 0; i < k; i += format.elements, row += format.bytes) {
        format.read(row, &b);
        special |= !is_finite(&of, &b);
        for (int j = 0; j < format.elements; j += step) {
            char *const block = panel + (i + j) / QN_PANEL_K * bytes;
            const int at = (int)((i + j) % QN_PANEL_K);
            put_codes(of.bits, b.codes + j, at, step, block, c);
            put_scales(&of, &b, j / of.group, at, step, block + qn_panel_group_codes_bytes((int)code), c);
        }
    }
    return special;
}

/* ---- reading back ---- */

/* Codes of a block of column c, one a byte. */
static void get_codes(int bits, const char *block, int c, uint8_t *codes)
{
    const char *const column = block + c * 4;
    for (int k = 0; bits == 8 && k < QN_PANEL_K; k += 4) {
        memcpy(codes + k, column + k / 4 * QN_PANEL_LINE, 4);
    }
    for (int line = 0; bits < 8 && line < QN_PANEL_K / 8; line++) {
        const char *const planes = column + 8 * QN_PANEL_LINE;
        const uint32_t four = four_at(column + line * QN_PANEL_LINE);
        uint32_t low = four & 0x0f0f0f0f, high = four >> 4 & 0x0f0f0f0f;
        if (bits == 5) {
            const uint32_t two = four_at(planes + line / 4 * QN_PANEL_LINE) >> (line % 4 * 2);
            low |= (two & 0x01010101) << 4;
            high |= (two >> 1 & 0x01010101) << 4;
        } else if (bits == 6) {
            const uint32_t two = four_at(planes + line / 2 * QN_PANEL_LINE) >> (line % 2 * 4);
            low |= (two & 0x03030303) << 4;
            high |= (two >> 2 & 0x03030303) << 4;
        }
        put_four((char *)codes + line * 8, low);
        put_four((char *)codes + line * 8 + 4, high);
    }
}

/* What a group's codes, less `less`, are multiplied with, and what is added, or of super blocks subtracted. */
typedef struct group_scale {
    float scale, minimum;
    int less;
} group_scale;

static group_scale scale_at(const qn_panel_group_code *code, const char *scales, int g, int c)
{
    const uint8_t *const halves = (const uint8_t *)scales;
    const int groups = QN_PANEL_K / code->group * QN_PANEL_COLS, at = g * QN_PANEL_COLS + c;
    group_scale s = {0.0f, 0.0f, code->minima ? 0 : code->middle};
    if (!code->super) {
        s.scale = qn_f16_to_f32(half_at(halves + at * 2));
        s.minimum = code->minima ? qn_f16_to_f32(half_at(halves + (groups + at) * 2)) : 0.0f;
        return s;
    }
    const uint8_t *const bytes = halves + 4 * QN_PANEL_COLS + at;
    float d = qn_f16_to_f32(half_at(halves + c * 2));
    if (code->bits == 8) {
        memcpy(&d, scales + c * 4, sizeof d);
    }
    s.scale = d * (code->minima ? (float)bytes[0] : (float)(int8_t)bytes[0]);
    if (code->minima) {
        s.minimum = qn_f16_to_f32(half_at(halves + (QN_PANEL_COLS + c) * 2)) * (float)bytes[groups];
    }
    return s;
}

void qn_panel_decode_groups(qn_panel_code code, const char *block, qn_panel_values *w)
{
    const qn_panel_group_code of = qn_panel_group_code_of((int)code);
    const char *const scales = block + qn_panel_group_codes_bytes((int)code);
    uint8_t codes[QN_PANEL_K];
    for (int c = 0; c < QN_PANEL_COLS; c++) {
        get_codes(of.bits, block, c, codes);
        group_scale s = {0};
        for (int k = 0; k < QN_PANEL_K; k++) {
            s = k % of.group ? s : scale_at(&of, scales, k / of.group, c);
            const int q = (of.table ? qn_panel_table[codes[k]] : codes[k]) - s.less;
            const float product = s.scale * (float)q;
            w->at[k][c] = (double)(!of.minima ? product : of.super ? product - s.minimum : product + s.minimum);
        }
    }
}
