/* quip_e8p of level amx (kernels/common/vq.h, "Lattice"): a panel's bytes as tiles of
 * 16 rows of w by 64 elements, sixteen rows of x the other operand. Sums are the integers of
 * level avx512vnni, which runs single rows. */
#define QN_ISA amx
#define QN_SHORT_PERMUTES /* a permute of two registers is three operations on these processors */
#include "kernels/cpu/avx512vnni/vq_lattice.h"

#include "kernels/cpu/amx/vq_planes.h"

#define SUMS_AT (UNITS * TILE_BYTES) /* in scratch, behind the lines */

/* Up to sixteen rows by the tiles of a panel. */
QN_INLINE void rows_by_tiles(const qn_vq_lattice_call *c, int64_t m, int64_t t, int64_t units, int book, int64_t panel)
{
    const int64_t tiles = (c->units + UNITS - 1) / UNITS, left = c->rows - m,
                  rows = left < TILE_ROWS ? left : TILE_ROWS;
    const int8_t *const digits = c->digits + m * c->digit_stride + t * QN_VQ_PLANES * QN_VQ_TILE_K;
    int32_t *const sums = (int32_t *)(void *)(c->scratch + SUMS_AT);
    planes_by_tiles(c->scratch, units, digits, c->digit_stride, sums);
    for (int64_t r = 0; r < rows; r++) {
        __m512i s[QN_VQ_PLANES];
        planes_of_row(sums, r, s);
        add_tile(c->sums + (m + r) * QN_VQ_BLOCK + panel * QN_VQ_PANEL, s, 0, c->offsets + ((m + r) * tiles + t) * 4,
                 c->scales[(m + r) * tiles + t] * c->unit[book]);
    }
}

/* Tile t by a book. */
QN_INLINE void tile_by_book(const qn_vq_lattice_call *c, int64_t t, int book, const int is_e8)
{
    const int64_t units = tile_units(c, t);
    const uint8_t *codes = tile_codes(c, t, book, is_e8);
    if (c->rows == 1) {
        tile_by_one(c, t, book, is_e8);
        return;
    }
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * LINES * line_bytes(is_e8)) {
        decode_panel(is_e8 ? c->e8 : c->magnitudes, is_e8, codes, units, c->scratch);
        tile_fence();
        for (int64_t m = 0; m < c->rows; m += TILE_ROWS) {
            rows_by_tiles(c, m, t, units, book, panel);
        }
    }
}

static void lattice_mm(const qn_vq_lattice_call *c)
{
    memset(c->sums, 0, (size_t)c->rows * QN_VQ_BLOCK * sizeof *c->sums);
    if (c->rows > 1) {
        tile_begin(c->rows < TILE_ROWS ? c->rows : TILE_ROWS);
    }
    for (int64_t t = 0; t * UNITS < c->units; t++) {
        for (int book = 0; book < c->books; book++) {
            if (c->last_is_e8 && book == c->books - 1) {
                tile_by_book(c, t, book, 1);
            } else {
                tile_by_book(c, t, book, 0);
            }
        }
    }
    if (c->rows > 1) {
        tile_end();
    }
}

const qn_vq_lattice_set qn_vq_lattice__amx = {lattice_mm};
