/* Vector-quantised weights of level avx512vnni (kernels/common/vq.h). */
#include "kernels/cpu/avx512vnni/vq_tiles.h"

#define PAIR 2 /* panels beside each other: a broadcast digit meets lines of both, as loads are what is scarce */
#define PANEL_BYTES 4096 /* of lines of a panel, in scratch */
#define ROWS 4           /* of x beside each other in registers, at most */

/* `rows` rows by `lines` lines of codes of a pair of panels, planes `first` to the last of their digits:
 * to[panel][row][plane]. */
QN_INLINE void rows_by_lines(const int rows, const int first, const char *w, int lines, const int8_t *digits,
                             int64_t stride, __m512i *to)
{
    __m512i s[PAIR][ROWS][QN_VQ_PLANES];
#pragma GCC unroll 2
    for (int h = 0; h < PAIR; h++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int i = first; i < QN_VQ_PLANES; i++) {
                s[h][r][i] = _mm512_setzero_si512();
            }
        }
    }
    for (int q = 0; q < lines; q++) { /* four at a time: a round's sums are moved between registers */
#pragma GCC unroll 4
        for (int l = 4 * q; l < 4 * q + 4; l++) {
            const __m512i pair[PAIR] = {_mm512_load_si512(w + l * 64), _mm512_load_si512(w + PANEL_BYTES + l * 64)};
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
                for (int i = first; i < QN_VQ_PLANES; i++) {
                    const __m512i digit = broadcast(digits + r * stride + i * QN_VQ_TILE_K + l * 4);
#pragma GCC unroll 2
                    for (int h = 0; h < PAIR; h++) {
                        s[h][r][i] = _mm512_dpbusd_epi32(s[h][r][i], pair[h], digit);
                    }
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < PAIR; h++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int i = first; i < QN_VQ_PLANES; i++) {
                _mm512_store_si512(to + (h * ROWS + r) * QN_VQ_PLANES + i, s[h][r][i]);
            }
        }
    }
}

/* Functions of their own have all registers, and no sums in use behind the loop, which would be stored in it. */
#define ROWS_BY_LINES(rows, first)                                                                                     \
    static __attribute__((noinline)) void rows_##rows##_from_##first(const char *w, int lines, const int8_t *digits,   \
                                                                     int64_t stride, __m512i *to)                      \
    {                                                                                                                  \
        rows_by_lines(rows, first, w, lines, digits, stride, to);                                                      \
    }
ROWS_BY_LINES(4, 1)
ROWS_BY_LINES(2, 1)
ROWS_BY_LINES(1, 1)
ROWS_BY_LINES(4, 0)
ROWS_BY_LINES(2, 0)
ROWS_BY_LINES(1, 0)

/* Rows from m on by a pair of panels of tile t in scratch, the more together the better; all three planes where one has
 * them. Returns how many. */
static int64_t some_rows(const qn_vq_tiles_call *c, int64_t m, int64_t t, int64_t p)
{
    static void (*const ways[2][3])(const char *, int, const int8_t *, int64_t, __m512i *) = {
        {rows_4_from_0, rows_2_from_0, rows_1_from_0}, {rows_4_from_1, rows_2_from_1, rows_1_from_1}};
    const int size = c->rows - m >= 4 ? 0 : c->rows - m >= 2 ? 1 : 2, rows = 4 >> size;
    const int first = first_plane(c->offsets + (m * c->tiles + t) * 4, rows, c->tiles);
    __m512i s[PAIR][ROWS][QN_VQ_PLANES];
    ways[first][size](c->scratch, lines_of(c, t), c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K,
                      c->digit_stride, s[0][0]);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (m + r) * c->tiles + t;
        for (int h = 0; h < PAIR; h++) {
            add_tile(panel_sums(c, m + r, p + h), s[h][r], first, c->offsets + at * 4,
                     c->scales[at] * c->book_scales[t]);
        }
    }
    return rows;
}

static void tiles_mm(const qn_vq_tiles_call *c)
{
    clear_sums(c);
    if (c->rows == 1) {
        tiles_one(c);
        return;
    }
    for (int64_t t = 0; t < c->tiles; t++) {
        book b;
        for (int64_t p = 0; p < c->panels; p += PAIR) {
            book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
            look_up_tile(&b, panel_codes(c, t, p), lines_of(c, t), c->scratch);
            look_up_tile(&b, panel_codes(c, t, p + 1), lines_of(c, t), c->scratch + PANEL_BYTES);
            for (int64_t m = 0; m < c->rows;) {
                m += some_rows(c, m, t, p);
            }
        }
    }
}

const qn_vq_tiles_set qn_vq_tiles__avx512vnni = {tiles_mm, tile_digits};
