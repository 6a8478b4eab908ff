/* Unpack fragments of the codes of groups (kernels/common/panel.h): integers, code minus middle, as lines of bf16 pairs
 * for tiles. In every four of K the pairs are (k, k + 2) and (k + 1, k + 3), which is how nibbles lie in words; rows of
 * qn_panel_places have the same order. Scales stay beside. */
#ifndef QN_KERNELS_AMX_UNPACK_GROUPS_H
#define QN_KERNELS_AMX_UNPACK_GROUPS_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/name.h"

#define CODE_LINES_UNROLL _Pragma("GCC unroll 8")

/* Integers by their codes: of up to 6 bits words, of 8 the bytes of a word apart. */
typedef struct group_tables {
    __m512i words[2];
    byte_table low, high;
} group_tables;

/* An integer of at most 8 bits as bf16. */
QN_INLINE uint16_t word_of(int value)
{
    const float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void group_tables_load(const int code, group_tables *t)
{
    const qn_panel_group_code c = qn_panel_group_code_of(code);
    uint16_t words[256];
    const int count = 1 << c.bits;
    for (int i = 0; i < 256; i++) {
        const int q = i % count; /* 4 bits: an index of five has one of the next code */
        words[i] = word_of((c.table ? qn_panel_table[q] : q) - c.middle);
    }
    t->words[0] = _mm512_loadu_si512(words);
    t->words[1] = _mm512_loadu_si512(words + 32);
    if (c.bits == 8) {
        uint8_t low[256], high[256];
        for (int i = 0; i < 256; i++) {
            low[i] = (uint8_t)words[i];
            high[i] = (uint8_t)(words[i] >> 8);
        }
        table_load(&t->low, low);
        table_load(&t->high, high);
    }
}

/* Bits of words from `from` on to place 4. */
QN_INLINE __m512i bits_to_4(__m512i words, const int from)
{
    return from < 4 ? _mm512_slli_epi16(words, (uint8_t)(4 - from)) : _mm512_srli_epi16(words, (uint8_t)(from - 4));
}

/* Codes of words that have a nibble at `shift`, and the bits above it from bit `from` of plane on, of mask. */
QN_INLINE __m512i group_words_of(const int bits, const group_tables *t, __m512i x, __m512i plane, const int shift,
                                 const int from)
{
    __m512i index = shift ? _mm512_srli_epi16(x, (uint8_t)shift) : x;
    if (bits > 4) {
        const __m512i mask = _mm512_set1_epi16(bits == 5 ? 0x10 : 0x30);
        index = _mm512_ternarylogic_epi32(mask, bits_to_4(plane, from), index, 0xca); /* mask ? plane : index */
    }
    if (bits == 6) {
        return _mm512_permutex2var_epi16(t->words[0], index, t->words[1]);
    }
    __asm__("vpermw %1, %0, %0" : "+v"(index) : "v"(t->words[0]));
    return index;
}

/* Lines of codes from `first` to `last` of `half`, 32 elements of K of a block: four lines of nibbles, eight of bytes;
 * to their places among the sixteen lines of pairs. */
QN_INLINE void group_lines(const int code, const group_tables *t, const char *block, int64_t half, const int first,
                           const int last, char *lines)
{
    const int bits = qn_panel_group_code_of(code).bits;
    if (bits == 8) {
        const char *const codes = block + half * 8 * QN_PANEL_LINE;
        const __m512i even = _mm512_set1_epi16(0xff);
        CODE_LINES_UNROLL for (int i = 2 * first; i < 2 * last; i++)
        {
            const __m512i x = _mm512_loadu_si512(codes + i * QN_PANEL_LINE);
            const byte_parts p = parts_of(x);
            const __m512i low = look_up(&t->low, x, p), high = look_up(&t->high, x, p);
            char *const to = lines + 2 * i * QN_PANEL_LINE;
            _mm512_store_si512(to, _mm512_ternarylogic_epi32(even, low, _mm512_slli_epi16(high, 8), 0xca));
            _mm512_store_si512(to + QN_PANEL_LINE,
                               _mm512_ternarylogic_epi32(even, _mm512_srli_epi16(low, 8), high, 0xca));
        }
        return;
    }
    const char *const codes = block + half * 4 * QN_PANEL_LINE, *const planes = block + 8 * QN_PANEL_LINE;
    CODE_LINES_UNROLL for (int i = first; i < last; i++)
    {
        const __m512i x = _mm512_loadu_si512(codes + i * QN_PANEL_LINE);
        __m512i plane = x;
        int at = 0, upper = 0; /* where bits of low and high nibbles begin in it */
        if (bits == 5) {
            plane = _mm512_loadu_si512(planes + half * QN_PANEL_LINE);
            at = 2 * i;
            upper = at + 1;
        } else if (bits == 6) {
            plane = _mm512_loadu_si512(planes + (half * 2 + i / 2) * QN_PANEL_LINE);
            at = i % 2 * 4;
            upper = at + 2;
        }
        char *const to = lines + 4 * i * QN_PANEL_LINE;
        _mm512_store_si512(to, group_words_of(bits, t, x, plane, 0, at));
        _mm512_store_si512(to + QN_PANEL_LINE, group_words_of(bits, t, x, plane, 8, 8 + at));
        _mm512_store_si512(to + 2 * QN_PANEL_LINE, group_words_of(bits, t, x, plane, 4, upper));
        _mm512_store_si512(to + 3 * QN_PANEL_LINE, group_words_of(bits, t, x, plane, 12, 8 + upper));
    }
}

#endif
