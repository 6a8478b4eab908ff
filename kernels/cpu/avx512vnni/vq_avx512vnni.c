/* Vector-quantised weights of level avx512vnni (kernels/common/vq.h). */
#include "kernels/cpu/avx512vnni/vq_tiles.h"

#define ROWS 4 /* of x beside each other in registers */

/* `rows` rows by a tile in scratch. */
QN_INLINE void rows_by_lines(const qn_vq_tiles_call *c, const int rows, int64_t m, int64_t t, int p)
{
    const int8_t *const digits = c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K;
    __m512i s[ROWS][QN_VQ_PLANES];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (int i = 0; i < QN_VQ_PLANES; i++) {
            s[r][i] = _mm512_setzero_si512();
        }
    }
    for (int l = 0; l < 4 * LINES; l++) {
        const __m512i w = _mm512_load_si512(c->scratch + l * 64);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
            for (int i = 0; i < QN_VQ_PLANES; i++) {
                const int8_t *const at = digits + r * c->digit_stride + i * QN_VQ_TILE_K + l * 4;
                s[r][i] = _mm512_dpbusd_epi32(s[r][i], w, broadcast(at));
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        add_tile(c->sums + (m + r) * QN_VQ_BLOCK + p * QN_VQ_PANEL, s[r], c->offsets + ((m + r) * c->tiles + t) * 4,
                 c->scales[(m + r) * c->tiles + t] * c->book_scales[t]);
    }
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
        for (int p = 0; p < QN_VQ_BLOCK / QN_VQ_PANEL; p++) {
            book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
            look_up_tile(&b, panel_codes(c, t, p), c->scratch);
            int64_t m = 0;
            for (; m + ROWS <= c->rows; m += ROWS) {
                rows_by_lines(c, ROWS, m, t, p);
            }
            for (; m < c->rows; m++) {
                rows_by_lines(c, 1, m, t, p);
            }
        }
    }
}

const qn_vq_tiles_set qn_vq_tiles__avx512vnni = {tiles_mm, tile_digits};
