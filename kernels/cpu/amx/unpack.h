/* Unpack fragments: one block (kernels/common/panel.h) of a coded panel to its 32
 * lines of bf16 pairs, two tiles. Everything is exact: bits are moved, table
 * entries added to exponents; no rounding takes place. Codes a normal number
 * never has (exponent 0) are corrected in a branch that weights rarely take. */
#ifndef QN_KERNELS_AMX_UNPACK_H
#define QN_KERNELS_AMX_UNPACK_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

#define PAIR_LINES 32 /* of a block */

QN_INLINE __m512i line_load(const char *p)
{
    return _mm512_loadu_si512(p);
}

QN_INLINE void line_store(char *p, __m512i v)
{
    _mm512_store_si512(p, v);
}

/* Sixteen bytes in each quarter. */
QN_INLINE __m512i bytes16(uint64_t low, uint64_t high)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)high, (long long)low));
}

/* An 8-bit float as the two bytes of value / factor in bf16. HIGH and LOW are matrices of vgf2p8affineqb
 * (byte 7 - i picks the bits that make bit i), ONES the bits of the high byte by which the exponents' biases
 * differ. A code without EXPONENT bits is zero or subnormal: its bytes come from SMALL_ tables by MANTISSA.
 *
 *   e4m3  s e3..e0 m2..m0  high s 0111 e3 e2 e1, low e0 m2 m1 m0 0000; subnormals m 2^-17
 *   e5m2  s e4..e0 m1 m0   high s 011 e4 e3 e2 e1, low e0 m1 m0 00000; subnormals m 2^-32 */
#define F8_BYTES(name, HIGH, LOW, ONES, EXPONENT, MANTISSA, SMALL_HIGH, SMALL_LOW)                                     \
    QN_INLINE __mmask64 name##_is_small(__m512i x)                                                                     \
    {                                                                                                                  \
        return _mm512_testn_epi8_mask(x, _mm512_set1_epi8(EXPONENT));                                                  \
    }                                                                                                                  \
    QN_INLINE __m512i name##_high(__m512i x)                                                                           \
    {                                                                                                                  \
        return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((int64_t)(HIGH)), ONES);                             \
    }                                                                                                                  \
    QN_INLINE __m512i name##_low(__m512i x)                                                                            \
    {                                                                                                                  \
        return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((int64_t)(LOW)), 0);                                 \
    }                                                                                                                  \
    QN_INLINE __m512i name##_high_small(__m512i x, __m512i high, __mmask64 small)                                      \
    {                                                                                                                  \
        const __m512i m = _mm512_and_si512(x, _mm512_set1_epi8(MANTISSA));                                             \
        const __m512i sign = _mm512_and_si512(x, _mm512_set1_epi8(-128));                                              \
        const __m512i bytes = _mm512_or_si512(sign, _mm512_shuffle_epi8(bytes16(SMALL_HIGH, 0), m));                   \
        return _mm512_mask_mov_epi8(high, small, bytes);                                                               \
    }                                                                                                                  \
    QN_INLINE __m512i name##_low_small(__m512i x, __m512i low, __mmask64 small)                                        \
    {                                                                                                                  \
        const __m512i m = _mm512_and_si512(x, _mm512_set1_epi8(MANTISSA));                                             \
        return _mm512_mask_shuffle_epi8(low, small, bytes16(SMALL_LOW, 0), m);                                         \
    }

F8_BYTES(e4m3, 0x1020400000000080, 0x0000000001020408, 0x38, 0x78, 7, 0x3838383837373700, 0x60402000c0800000)
F8_BYTES(e5m2, 0x0810204000000080, 0x0000000000010204, 0x30, 0x7c, 3, 0x30302f00, 0x40008000)

/* Four lines of codes at a time: eight lines of pairs. */
#define F8_UNPACK(name)                                                                                                \
    QN_INLINE void unpack_##name(const char *block, char *lines)                                                       \
    {                                                                                                                  \
        for (int i = 0; i < PAIR_LINES / 2; i += 4) {                                                                  \
            __m512i x[4], high[4], low[4];                                                                             \
            __mmask64 small = 0;                                                                                       \
            for (int j = 0; j < 4; j++) {                                                                              \
                x[j] = line_load(block + (i + j) * QN_PANEL_LINE);                                                     \
                small |= name##_is_small(x[j]);                                                                        \
                high[j] = name##_high(x[j]);                                                                           \
                low[j] = name##_low(x[j]);                                                                             \
            }                                                                                                          \
            if (small) {                                                                                               \
                for (int j = 0; j < 4; j++) {                                                                          \
                    const __mmask64 these = name##_is_small(x[j]);                                                     \
                    high[j] = name##_high_small(x[j], high[j], these);                                                 \
                    low[j] = name##_low_small(x[j], low[j], these);                                                    \
                }                                                                                                      \
            }                                                                                                          \
            for (int j = 0; j < 4; j++) {                                                                              \
                char *const to = lines + 2 * (i + j) * QN_PANEL_LINE;                                                  \
                line_store(to, _mm512_unpacklo_epi8(low[j], high[j]));                                                 \
                line_store(to + QN_PANEL_LINE, _mm512_unpackhi_epi8(low[j], high[j]));                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

F8_UNPACK(e4m3)
F8_UNPACK(e5m2)

/* e2m1 codes, four to a 16-bit word. Magnitudes are 0, .5, 1, 1.5, 2, 3, 4, 6: zero, or the bits of the scale moved by
 * whole exponents, and for codes 3, 5, 7 what times 1.5 adds: `half` when it is the same for every scale. A weight is
 * what the table's entry leaves, by saturating subtraction, of the scale's bits three exponents up, with a sign (LIFT):
 * nothing where the code is zero. Entries of positive codes take the sign away, too. An index has five bits, of which
 * the highest belongs to the next code. */
#define LIFT (-0x8000 + 3 * 0x80)

QN_INLINE __m512i e2m1_table(short half)
{
    short t[32];
    for (int i = 0; i < 32; i++) {
        const int code = i & 7, steps = code / 2 - 1, odd = code > 1 && code % 2;
        const int down = (3 - steps) * 0x80 - (odd ? half : 0);
        t[i] = (short)(code == 0 ? -1 : (i & 8 ? down : down - 0x8000));
    }
    return _mm512_loadu_si512(t);
}

/* Codes p of the words x, p from 0 to 3, of scales with LIFT. The processors of this level let vpermw wait for what its
 * destination held before, so that is the indices' register. */
QN_INLINE __m512i e2m1_weights(__m512i x, __m512i table, __m512i lifted, int p)
{
    switch (p) {
    case 1: x = _mm512_srli_epi16(x, 4); break;
    case 2: x = _mm512_srli_epi16(x, 8); break;
    case 3: x = _mm512_srli_epi16(x, 12); break;
    default: break;
    }
    __asm__("vpermw %1, %0, %0" : "+v"(x) : "v"(table));
    return _mm512_subs_epu16(lifted, x);
}

/* Scales of the four groups of a block: in every word of a column the bits of scale / 256 with LIFT, and what times
 * 1.5 adds to them. */
typedef struct nvfp4_scales {
    __m512i lifted[4], half[4];
    __mmask64 small; /* zero or subnormal */
} nvfp4_scales;

/* Words of four groups, each twice, from the two bytes of each, in the order of a block's line of scales. */
QN_INLINE void group_words(__m512i low, __m512i high, __m512i out[4])
{
    const __m512i first = _mm512_unpacklo_epi8(low, high), last = _mm512_unpackhi_epi8(low, high);
    out[0] = _mm512_unpacklo_epi16(first, first);
    out[1] = _mm512_unpackhi_epi16(first, first);
    out[2] = _mm512_unpacklo_epi16(last, last);
    out[3] = _mm512_unpackhi_epi16(last, last);
}

QN_INLINE void nvfp4_load(nvfp4_scales *o, const char *line)
{
    const __m512i x = line_load(line), m = _mm512_and_si512(x, _mm512_set1_epi8(7));
    __m512i high = e4m3_high(x), low = e4m3_low(x), half = _mm512_shuffle_epi8(bytes16(0x44484c5054504840, 0), m);
    o->small = e4m3_is_small(x);
    if (o->small) {
        high = e4m3_high_small(x, high, o->small);
        low = e4m3_low_small(x, low, o->small);
        half = _mm512_mask_shuffle_epi8(half, o->small, bytes16(0x4850504050404000, 0), m);
    }
    group_words(low, high, o->lifted);
    group_words(half, _mm512_setzero_si512(), o->half);
    for (int g = 0; g < 4; g++) {
        o->lifted[g] = _mm512_add_epi16(o->lifted[g], _mm512_set1_epi16(LIFT));
    }
}

/* zeros: scales may be zero. */
QN_INLINE void nvfp4_lines(const char *block, char *lines, const nvfp4_scales *o, int zeros)
{
    const __m512i table = e2m1_table(0);
    for (int i = 0; i < PAIR_LINES / 4; i++) {
        const __m512i x = line_load(block + i * QN_PANEL_LINE);
        /* lowest bit and one of the others: codes 3, 5, 7 */
        const __m512i odd = _mm512_and_si512(x, _mm512_or_si512(_mm512_srli_epi16(x, 1), _mm512_srli_epi16(x, 2)));
        const __m512i lifted = o->lifted[i / 2], half = o->half[i / 2];
        for (int p = 0; p < 4; p++) {
            const __mmask32 halves = _mm512_test_epi16_mask(odd, _mm512_set1_epi16((short)(1 << 4 * p)));
            __m512i v = e2m1_weights(x, table, lifted, p);
            v = _mm512_mask_add_epi16(v, halves, v, half);
            if (zeros) {
                v = _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(lifted, _mm512_set1_epi16(LIFT)), v);
            }
            line_store(lines + (4 * i + p) * QN_PANEL_LINE, v);
        }
    }
}

QN_INLINE void unpack_nvfp4(const char *block, char *lines)
{
    nvfp4_scales o;
    nvfp4_load(&o, block + PAIR_LINES / 4 * QN_PANEL_LINE);
    if (o.small) {
        nvfp4_lines(block, lines, &o, 1);
    } else {
        nvfp4_lines(block, lines, &o, 0);
    }
}

/* Groups of 32: a scale is an exponent. */
QN_INLINE void unpack_mxfp4(const char *block, char *lines)
{
    const __m512i table = e2m1_table(0x40);
    for (int g = 0; g < 2; g++) {
        const char *const codes = block + PAIR_LINES / 4 * QN_PANEL_LINE + 16 * g;
        const __m512i scale = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)codes));
        const __m512i bits = _mm512_or_si512(_mm512_slli_epi32(scale, 7), _mm512_slli_epi32(scale, 23));
        const __m512i lifted = _mm512_add_epi16(bits, _mm512_set1_epi16(LIFT));
        for (int i = 4 * g; i < 4 * g + 4; i++) {
            const __m512i x = line_load(block + i * QN_PANEL_LINE);
            for (int p = 0; p < 4; p++) {
                const __m512i v = e2m1_weights(x, table, lifted, p);
                line_store(lines + (4 * i + p) * QN_PANEL_LINE, v);
            }
        }
    }
}

#endif
