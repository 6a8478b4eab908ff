/* quip_e8p by exact integers (kernels/common/vq.h, "Lattice"): codes to bytes, and one
 * row of x, which levels avx512vnni and amx share.
 *
 * A line of 64 codes is looked up once a coordinate: four groups' coordinate i of sixteen
 * rows, which is what a dot of four bytes wants. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_LATTICE_H
#define QN_KERNELS_AVX512VNNI_VQ_LATTICE_H

#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/avx512vnni/vq_digits.h"

#define UNITS 4 /* of a tile */
#define LINES 2 /* of a unit */
#define LINE_K 32
#define AHEAD 2048 /* prefetched in a stream of codes */
#define E8P_BYTES 128
#define E8_BYTES 64

/* Bytes of a line. */
QN_INLINE int64_t line_bytes(const int is_e8)
{
    return is_e8 ? E8_BYTES : E8P_BYTES;
}

typedef struct points {
    __m512i index;
    byte_parts parts;
    __m512i signs, parity, base; /* base: of a coordinate that is not negative, 18, shifted 16 */
    __mmask64 shifted;
} points;

QN_INLINE points points_of(const uint8_t *codes, const int is_e8)
{
    const __m512i parity =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
    points p = {.index = _mm512_loadu_si512(codes)};
    p.parts = parts_of(p.index);
    _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
    if (!is_e8) {
        _mm_prefetch((const char *)codes + AHEAD + 64, _MM_HINT_T0);
        p.signs = _mm512_loadu_si512(codes + 64);
        const __m512i four = _mm512_ternarylogic_epi32(p.signs, _mm512_srli_epi16(p.signs, 4), _mm512_set1_epi8(15),
                                                       0x28); /* (a ^ b) & c */
        p.parity = _mm512_shuffle_epi8(parity, four);
        p.shifted = _mm512_test_epi8_mask(p.signs, _mm512_set1_epi8(1));
        p.base = _mm512_mask_blend_epi8(p.shifted, _mm512_set1_epi8(18), _mm512_set1_epi8(16));
    }
    return p;
}

/* Coordinate i of a line: of E8P base + 4 m, which is 4 m ^ base, or base - 4 - 4 m, which is 4 m ^ (base - 4). */
QN_INLINE __m512i coordinate(const points *p, const uint8_t *tables, const int is_e8, const int i)
{
    byte_table table;
    table_load(&table, tables + i * 256);
    const __m512i looked = look_up(&table, p->index, p->parts);
    if (is_e8) {
        return looked;
    }
    const __mmask64 minus = i ? _mm512_test_epi8_mask(p->signs, _mm512_set1_epi8((char)(1 << i)))
                              : _kxor_mask64(_mm512_movepi8_mask(_mm512_xor_si512(looked, p->parity)), p->shifted);
    const __m512i flip = _mm512_mask_sub_epi8(p->base, minus, p->base, _mm512_set1_epi8(4));
    return _mm512_ternarylogic_epi32(looked, _mm512_set1_epi8(12), flip, 0x6a); /* looked & 12 ^ flip */
}

/* A panel's units of a tile as lines of bytes, [line][coordinate][64], which two by two are tiles of AMX. */
QN_INLINE void decode_panel(const uint8_t *tables, const int is_e8, const uint8_t *codes, int64_t units, char *to)
{
    for (int64_t l = 0; l < units * LINES; l++, codes += line_bytes(is_e8), to += LINE_K * QN_VQ_PANEL) {
        const points p = points_of(codes, is_e8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm512_store_si512(to + i * 64, coordinate(&p, tables, is_e8, i));
        }
    }
}

QN_INLINE __m512i four(const int8_t *digits)
{
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi32(word);
}

/* One row of x by a panel's units of a tile: weights are never stored. Coordinates take turns in two chains. */
QN_INLINE void one_by_panel(const uint8_t *tables, const int is_e8, const uint8_t *codes, int64_t units,
                            const int8_t *digits, __m512i s[QN_VQ_PLANES])
{
    __m512i other[QN_VQ_PLANES];
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        s[d] = other[d] = _mm512_setzero_si512();
    }
    for (int64_t l = 0; l < units * LINES; l++, codes += line_bytes(is_e8), digits += LINE_K) {
        const points p = points_of(codes, is_e8);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512i w = coordinate(&p, tables, is_e8, i);
#pragma GCC unroll 3
            for (int d = 0; d < QN_VQ_PLANES; d++) {
                __m512i *const to = i % 2 ? &other[d] : &s[d];
                *to = _mm512_dpbusd_epi32(*to, w, four(digits + d * QN_VQ_TILE_K + i * 4));
            }
        }
    }
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        s[d] = _mm512_add_epi32(s[d], other[d]);
    }
}

/* Codes of tile t of a book, of its first panel; units that the tile has. */
QN_INLINE const uint8_t *tile_codes(const qn_vq_lattice_call *c, int64_t t, int book, const int is_e8)
{
    return c->codes[book] + t * UNITS * c->panels * LINES * line_bytes(is_e8);
}

QN_INLINE int64_t tile_units(const qn_vq_lattice_call *c, int64_t t)
{
    const int64_t left = c->units - t * UNITS;
    return left < UNITS ? left : UNITS;
}

/* Tile t of a book by one row of x. */
QN_INLINE void tile_by_one(const qn_vq_lattice_call *c, int64_t t, int book, const int is_e8)
{
    const int64_t units = tile_units(c, t);
    const uint8_t *codes = tile_codes(c, t, book, is_e8);
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * LINES * line_bytes(is_e8)) {
        __m512i s[QN_VQ_PLANES];
        one_by_panel(is_e8 ? c->e8 : c->magnitudes, is_e8, codes, units, c->digits + t * QN_VQ_PLANES * QN_VQ_TILE_K,
                     s);
        add_tile(c->sums + panel * QN_VQ_PANEL, s, 0, c->offsets + t * 4, c->scales[t] * c->unit[book]);
    }
}

#endif
