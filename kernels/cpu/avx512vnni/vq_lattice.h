/* quip_e8p by exact integers (kernels/common/vq.h, "Lattice"): codes to bytes, and one
 * row of x, which levels avx512vnni and amx share.
 *
 * Magnitudes of 64 codes are looked up in registers; a group of eight rows then is
 * one vector of 8 rows by 8 elements: fields of two bits spread to bytes, signs by a
 * mask that lies in memory as it is used. A dot of it with 8 digits, the same for all
 * rows, leaves two halves a row, which are added at the end of a tile. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_LATTICE_H
#define QN_KERNELS_AVX512VNNI_VQ_LATTICE_H

#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/avx512vnni/vq_digits.h"

#define GROUPS 8   /* of a unit */
#define UNITS 4    /* of a tile */
#define AHEAD 2048 /* prefetched in a stream of codes */
#define E8P_BYTES 128
#define E8_BYTES 64

typedef struct points {
    byte_table low, high; /* magnitudes */
    const uint8_t *e8;
} points;

QN_INLINE points points_of(const qn_vq_lattice_call *c)
{
    points p = {.e8 = c->e8};
    table_load(&p.low, c->magnitudes);
    table_load(&p.high, c->magnitudes + 256);
    return p;
}

/* Bytes of a unit's half. */
QN_INLINE int64_t half_bytes(const int is_e8)
{
    return is_e8 ? E8_BYTES : E8P_BYTES;
}

QN_INLINE void fetch_ahead(const uint8_t *codes, const int is_e8)
{
    _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
    if (!is_e8) {
        _mm_prefetch((const char *)codes + AHEAD + 64, _MM_HINT_T0);
    }
}

/* 64 codes of E8P on their way: by lanes of 16 bytes, which are two groups of eight rows, the first ones and the
 * second ones of each. */
typedef struct e8p_unit {
    __m512i magnitudes[2], shifts[2];
    uint64_t signs[GROUPS];
} e8p_unit;

QN_INLINE void unit_load(e8p_unit *u, const points *p, const uint8_t *codes)
{
    const __m512i parity = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0));
    const __m512i index = _mm512_loadu_si512(codes), signs = _mm512_loadu_si512(codes + 64);
    const byte_parts parts = parts_of(index);
    const __m512i low = look_up(&p->low, index, parts), high = look_up(&p->high, index, parts);
    const __m512i odd = _mm512_and_si512(_mm512_xor_si512(low, high), _mm512_set1_epi8(0x55));
    const __m512i bits = _mm512_xor_si512(odd, signs);
    const __m512i four = _mm512_and_si512(_mm512_xor_si512(bits, _mm512_srli_epi16(bits, 4)), _mm512_set1_epi8(15));
    const __m512i minus = _mm512_shuffle_epi8(parity, four);
    const __m512i shift = _mm512_sub_epi8(_mm512_set1_epi8(0x12), _mm512_add_epi8(minus, minus));
    u->magnitudes[0] = _mm512_unpacklo_epi8(low, high);
    u->magnitudes[1] = _mm512_unpackhi_epi8(low, high);
    u->shifts[0] = _mm512_unpacklo_epi8(shift, shift);
    u->shifts[1] = _mm512_unpackhi_epi8(shift, shift);
    _mm512_storeu_si512(u->signs, _mm512_xor_si512(signs, minus));
}

/* Bytes of group g, 8 rows by 8 elements: 16 + 4 m, or 12 - 4 m by turning bits over where the sign is minus, plus 2
 * where the shift is 1/4: 4 m ^ 16, 4 m ^ 12. */
QN_INLINE __m512i e8p_group(const e8p_unit *u, int g)
{
    const __m512i spread = _mm512_add_epi8(_mm512_setr_epi64(0x0100010001000100, 0x0302030203020302, 0x0504050405040504,
                                                             0x0706070607060706, 0x0908090809080908, 0x0b0a0b0a0b0a0b0a,
                                                             0x0d0c0d0c0d0c0d0c, 0x0f0e0f0e0f0e0f0e),
                                           _mm512_set1_epi8((char)(g / 2 * 16)));
    const __m512i fields = _mm512_set1_epi64(0x0c0a08060402003e); /* field i to bits 2 and 3 of byte i */
    const __m512i word = _mm512_permutexvar_epi8(spread, u->magnitudes[g % 2]);
    const __m512i bits = _mm512_multishift_epi64_epi8(fields, word);
    const __m512i shift = _mm512_permutexvar_epi8(spread, u->shifts[g % 2]);
    const __m512i flip = _mm512_mask_sub_epi8(shift, _cvtu64_mask64(u->signs[g]), shift, _mm512_set1_epi8(4));
    return _mm512_ternarylogic_epi32(bits, _mm512_set1_epi8(0x0c), flip, 0x6a); /* bits & 12 ^ flip */
}

QN_INLINE __m512i e8_group(const uint8_t *e8, const uint8_t *codes)
{
    const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)codes));
    return _mm512_i32gather_epi64(index, e8, 8);
}

QN_INLINE __m512i eight(const int8_t *digits)
{
    int64_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi64(word);
}

/* Rows of both halves of a panel, from halves of their sums. */
QN_INLINE __m512i joined(__m512i first, __m512i second)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, second),
                            _mm512_permutex2var_epi32(first, odd, second));
}

/* One row of x by a panel's `units` units of a tile: weights are never stored. */
QN_INLINE void one_by_panel(const points *p, const int is_e8, const uint8_t *codes, int64_t units, const int8_t *digits,
                            __m512i s[QN_VQ_PLANES])
{
    __m512i half[2][QN_VQ_PLANES];
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        half[0][d] = half[1][d] = _mm512_setzero_si512();
    }
    for (int64_t i = 0; i < units; i++, digits += QN_VQ_UNIT_K) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++, codes += half_bytes(is_e8)) {
            e8p_unit u;
            fetch_ahead(codes, is_e8);
            if (!is_e8) {
                unit_load(&u, p, codes);
            }
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS; g++) {
                const __m512i w = is_e8 ? e8_group(p->e8, codes + g * 8) : e8p_group(&u, g);
#pragma GCC unroll 3
                for (int d = 0; d < QN_VQ_PLANES; d++) {
                    half[h][d] = _mm512_dpbusd_epi32(half[h][d], w, eight(digits + d * QN_VQ_TILE_K + g * 8));
                }
            }
        }
    }
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        s[d] = joined(half[0][d], half[1][d]);
    }
}

/* Tile t of a book by one row of x. */
QN_INLINE void tile_by_one(const qn_vq_lattice_call *c, int64_t t, int64_t units, int book, const int is_e8)
{
    const points p = points_of(c);
    const uint8_t *codes = c->codes[book] + t * UNITS * c->panels * 2 * half_bytes(is_e8);
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * 2 * half_bytes(is_e8)) {
        __m512i s[QN_VQ_PLANES];
        one_by_panel(&p, is_e8, codes, units, c->digits + t * QN_VQ_PLANES * QN_VQ_TILE_K, s);
        add_tile(c->sums + panel * QN_VQ_PANEL, s, 0, c->offsets + t * 4, c->scales[t] * c->unit[book]);
    }
}

#endif
