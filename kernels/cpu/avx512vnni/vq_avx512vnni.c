/* Vector-quantised weights of level avx512vnni (kernels/common/vq.h). */
#include "kernels/cpu/avx512vnni/vq_tiles.h"

#define PAIR 2 /* panels beside each other: a broadcast digit meets lines of both, as loads are what is scarce */
#define PANEL_BYTES 4096 /* of lines of a panel, in scratch */
#define ROWS 4           /* of x beside each other in registers, at most */

/* `rows` rows by a pair of panels of a tile in scratch, planes `first` to the last of their digits. */
QN_INLINE void rows_by_lines(const qn_vq_tiles_call *c, const int rows, const int first, int64_t m, int64_t t,
                             int64_t p)
{
    const int8_t *const digits = c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K;
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
    for (int q = 0; q < LINES; q++) { /* four at a time: a round's sums are moved between registers */
#pragma GCC unroll 4
        for (int l = 4 * q; l < 4 * q + 4; l++) {
            const __m512i w[PAIR] = {_mm512_load_si512(c->scratch + l * 64),
                                     _mm512_load_si512(c->scratch + PANEL_BYTES + l * 64)};
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
                for (int i = first; i < QN_VQ_PLANES; i++) {
                    const __m512i digit = broadcast(digits + r * c->digit_stride + i * QN_VQ_TILE_K + l * 4);
#pragma GCC unroll 2
                    for (int h = 0; h < PAIR; h++) {
                        s[h][r][i] = _mm512_dpbusd_epi32(s[h][r][i], w[h], digit);
                    }
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const float scale = c->scales[(m + r) * c->tiles + t] * c->book_scales[t];
#pragma GCC unroll 2
        for (int h = 0; h < PAIR; h++) {
            add_tile(panel_sums(c, m + r, p + h), s[h][r], first, c->offsets + ((m + r) * c->tiles + t) * 4, scale);
        }
    }
}

/* Functions of their own have all registers. */
#define ROWS_BY_LINES(rows, first)                                                                                     \
    static __attribute__((noinline)) void rows_##rows##_from_##first(const qn_vq_tiles_call *c, int64_t m, int64_t t,  \
                                                                     int64_t p)                                        \
    {                                                                                                                  \
        rows_by_lines(c, rows, first, m, t, p);                                                                        \
    }
ROWS_BY_LINES(4, 1)
ROWS_BY_LINES(2, 1)
ROWS_BY_LINES(1, 1)
ROWS_BY_LINES(4, 0)
ROWS_BY_LINES(2, 0)
ROWS_BY_LINES(1, 0)

typedef struct rows_way {
    int64_t rows;
    void (*run)(const qn_vq_tiles_call *c, int64_t m, int64_t t, int64_t p);
} rows_way;

/* How many rows from m on go together by a tile: the more the better; all three planes where one has them. */
static rows_way way_of(const qn_vq_tiles_call *c, int64_t m, int64_t t)
{
    static const rows_way ways[2][3] = {{{4, rows_4_from_0}, {2, rows_2_from_0}, {1, rows_1_from_0}},
                                        {{4, rows_4_from_1}, {2, rows_2_from_1}, {1, rows_1_from_1}}};
    const int64_t left = c->rows - m;
    const int size = left >= 4 ? 0 : left >= 2 ? 1 : 2;
    const int first = first_plane(c->offsets + (m * c->tiles + t) * 4, ways[1][size].rows, c->tiles);
    return ways[first][size];
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
        for (int64_t p = 0; p < c->blocks * BLOCK_PANELS; p += PAIR) {
            int64_t m = 0;
            book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
            look_up_tile(&b, panel_codes(c, t, p), c->scratch);
            look_up_tile(&b, panel_codes(c, t, p + 1), c->scratch + PANEL_BYTES);
            while (m < c->rows) {
                const rows_way way = way_of(c, m, t);
                way.run(c, m, t, p);
                m += way.rows;
            }
        }
    }
}

const qn_vq_tiles_set qn_vq_tiles__avx512vnni = {tiles_mm, tile_digits};
