/* gptvq tiles (kernels/common/vq.h) by byte permutes and VNNI dots: what levels
 * avx512vnni and amx share. A looked-up line holds element j of four neighbouring
 * vectors of sixteen rows, which is what a dot of four bytes wants. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_TILES_H
#define QN_KERNELS_AVX512VNNI_VQ_TILES_H

#include <immintrin.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/avx512vnni/vq_digits.h"
#include "kernels/cpu/name.h"

#define LINES 16         /* of codes of a tile */
#define AHEAD 4096       /* prefetched in each stream of codes, ... */
#define AHEAD_LINES 2048 /* ... where looked-up lines are kept in the first cache, too */

typedef struct book {
    byte_table element[4];
} book;

QN_INLINE void book_load(book *b, const uint8_t *from)
{
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        table_load(&b->element[j], from + j * 256);
    }
}

QN_INLINE __m512i broadcast(const int8_t *digits)
{
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi32(word);
}

/* Panel p of tile t of the blocks. */
QN_INLINE const uint8_t *panel_codes(const qn_vq_tiles_call *c, int64_t t, int64_t p)
{
    return c->codes + ((p / 2 * c->tiles + t) * 2 + p % 2) * QN_VQ_TILE_BYTES;
}

#define BLOCK_PANELS (QN_VQ_BLOCK / QN_VQ_PANEL)

/* Lines of codes that tile t has. */
QN_INLINE int lines_of(const qn_vq_tiles_call *c, int64_t t)
{
    const int64_t left = c->k - t * QN_VQ_TILE_K;
    return left < QN_VQ_TILE_K ? (int)((left + 15) / 16) : LINES;
}

/* Sums of row m by panel p of the blocks. */
QN_INLINE float *panel_sums(const qn_vq_tiles_call *c, int64_t m, int64_t p)
{
    return c->sums + (p / BLOCK_PANELS * c->rows + m) * QN_VQ_BLOCK + p % BLOCK_PANELS * QN_VQ_PANEL;
}

/* The first plane that any of `rows` rows of x has in a tile; offsets of the first one, of `tiles` tiles a row. */
QN_INLINE int first_plane(const int32_t *offsets, int64_t rows, int64_t tiles)
{
    int32_t first = 1;
    for (int64_t r = 0; r < rows; r++) {
        first &= offsets[r * tiles * 4 + 3];
    }
    return first;
}

/* One row by a panel of a tile: codes are looked up on their way, weights are never stored. A line's elements go to two
 * chains. */
QN_INLINE void panel_by_one(const book *b, const uint8_t *codes, int lines, const int8_t *digits, const int first,
                            __m512i s[QN_VQ_PLANES])
{
    __m512i other[QN_VQ_PLANES];
#pragma GCC unroll 3
    for (int d = first; d < QN_VQ_PLANES; d++) {
        s[d] = other[d] = _mm512_setzero_si512();
    }
    for (int q = 0; q < lines; q++) {
        _mm_prefetch((const char *)codes + AHEAD + q * 64, _MM_HINT_T0);
        const __m512i line = _mm512_loadu_si512(codes + q * 64);
        const byte_parts parts = parts_of(line);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512i w = look_up(&b->element[j], line, parts);
#pragma GCC unroll 3
            for (int d = first; d < QN_VQ_PLANES; d++) {
                __m512i *const to = j % 2 ? &other[d] : &s[d];
                *to = _mm512_dpbusd_epi32(*to, w, broadcast(digits + d * QN_VQ_TILE_K + q * 16 + j * 4));
            }
        }
    }
#pragma GCC unroll 3
    for (int d = first; d < QN_VQ_PLANES; d++) {
        s[d] = _mm512_add_epi32(s[d], other[d]);
    }
}

QN_INLINE void tile_by_one(const qn_vq_tiles_call *c, const book *b, int64_t t, const int first)
{
    for (int i = 0; i < 4; i++) { /* panels of both halves of the block take turns: two streams of codes */
        const int p = i / 2 + i % 2 * 2;
        __m512i s[QN_VQ_PLANES];
        if (p >= c->panels) {
            continue;
        }
        panel_by_one(b, panel_codes(c, t, p), lines_of(c, t), c->digits + t * QN_VQ_PLANES * QN_VQ_TILE_K, first, s);
        add_tile(c->sums + p * QN_VQ_PANEL, s, first, c->offsets + t * 4, c->scales[t] * c->book_scales[t]);
    }
}

static void tiles_one(const qn_vq_tiles_call *c)
{
    for (int64_t t = 0; t < c->tiles; t++) {
        book b;
        book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
        if (c->offsets[t * 4 + 3]) {
            tile_by_one(c, &b, t, 1);
        } else {
            tile_by_one(c, &b, t, 0);
        }
    }
}

/* A tile's weights as 64 lines of sixteen rows by four elements. */
QN_INLINE void look_up_tile(const book *b, const uint8_t *codes, int count, char *lines)
{
    for (int q = 0; q < count; q++) {
        _mm_prefetch((const char *)codes + AHEAD_LINES + q * 64, _MM_HINT_T0);
        const __m512i line = _mm512_loadu_si512(codes + q * 64);
        const byte_parts parts = parts_of(line);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            _mm512_store_si512(lines + (q * 4 + j) * 64, look_up(&b->element[j], line, parts));
        }
    }
}

static void clear_sums(const qn_vq_tiles_call *c)
{
    memset(c->sums, 0, (size_t)(c->blocks * c->rows * QN_VQ_BLOCK) * sizeof *c->sums);
}

static int tile_digits(const float *x, int64_t k, int8_t *planes, float *scales, int32_t *offsets)
{
    const __m128i fourth = _mm_setr_epi8(0, 16, 32, 48, 4, 20, 36, 52, 8, 24, 40, 56, 12, 28, 44, 60);
    return digits_of_row(x, k, fourth, 128, coarsest_of(x, k), planes, scales, offsets);
}

#endif
