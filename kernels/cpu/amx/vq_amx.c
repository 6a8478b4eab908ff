/* Vector-quantised weights of level amx (kernels/common/vq.h): looked-up lines of
 * gptvq are tiles as they lie, digits of sixteen rows of x the other operand. */
#define QN_ISA amx
#define QN_SHORT_PERMUTES /* a permute of two registers is three operations on these processors */
#include "kernels/cpu/avx512vnni/vq_tiles.h"

#include "kernels/cpu/amx/vq_planes.h"

#define LINE_TILES 4             /* tiles of sixteen looked-up lines */
#define SUMS_AT (4 * LINES * 64) /* in scratch, behind the lines */

/* Up to sixteen rows by a tile in scratch. */
QN_INLINE void rows_by_lines(const qn_vq_tiles_call *c, int64_t m, int64_t rows, int64_t t, int p)
{
    const int8_t *const digits = c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K;
    int32_t *const sums = (int32_t *)(void *)(c->scratch + SUMS_AT);
    planes_by_tiles(c->scratch, LINE_TILES, digits, c->digit_stride, sums);
    for (int64_t r = 0; r < rows; r++) {
        __m512i s[QN_VQ_PLANES];
        planes_of_row(sums, r, s);
        add_tile(c->sums + (m + r) * QN_VQ_BLOCK + p * QN_VQ_PANEL, s, 0, c->offsets + ((m + r) * c->tiles + t) * 4,
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
    tile_begin(c->rows < TILE_ROWS ? c->rows : TILE_ROWS);
    for (int64_t t = 0; t < c->tiles; t++) {
        book b;
        for (int p = 0; p < QN_VQ_BLOCK / QN_VQ_PANEL; p++) {
            book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
            look_up_tile(&b, panel_codes(c, t, p), c->scratch);
            tile_fence();
            for (int64_t m = 0; m < c->rows; m += TILE_ROWS) {
                rows_by_lines(c, m, c->rows - m < TILE_ROWS ? c->rows - m : TILE_ROWS, t, p);
            }
        }
    }
    tile_end();
}

const qn_vq_tiles_set qn_vq_tiles__amx = {tiles_mm, tile_digits};
