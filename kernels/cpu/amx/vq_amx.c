/* Vector-quantised weights of level amx (kernels/common/vq.h): looked-up lines of
 * gptvq are tiles as they lie, digits of sixteen rows of x the other operand.
 *
 * Two panels go together: a tile of digits meets a tile of each. Their products are under way while the next two are
 * looked up, or, of many rows of x, while the sums of the last sixteen are added. */
#define QN_ISA amx
#define QN_SHORT_PERMUTES /* a permute of two registers is three operations on these processors */
#include "kernels/cpu/avx512vnni/vq_tiles.h"

#include "kernels/cpu/amx/tile.h"

#define LINE_TILES 4 /* tiles of sixteen looked-up lines of a panel */
#define PAIR 2       /* panels */
#define PAIR_BYTES (PAIR * LINE_TILES * TILE_BYTES)
#define SUMS_AT (2 * PAIR_BYTES) /* in scratch, behind the lines of two pairs: [3 planes][2 panels][16 rows][16] */

/* Sixteen rows of x by a pair of panels of a tile of K. */
typedef struct unit {
    int64_t m, rows, t, p;
    const char *lines;
    int first; /* plane that they have */
} unit;

QN_INLINE const int8_t *unit_digits(const qn_vq_tiles_call *c, const unit *u, int plane)
{
    return c->digits + u->m * c->digit_stride + (u->t * QN_VQ_PLANES + plane) * QN_VQ_TILE_K;
}

QN_INLINE int32_t *unit_sums(const qn_vq_tiles_call *c)
{
    return (int32_t *)(void *)(c->scratch + SUMS_AT);
}

/* Products with the two upper planes: tiles 0 to 3. */
QN_INLINE void multiply(const qn_vq_tiles_call *c, const unit *u)
{
    const int8_t *const middle = unit_digits(c, u, 1), *const high = unit_digits(c, u, 2);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
#pragma GCC unroll 4
    for (int64_t l = 0; l < LINE_TILES; l++) {
        _tile_loadd(6, u->lines + l * TILE_BYTES, 64);
        _tile_loadd(4, middle + l * 64, c->digit_stride);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, u->lines + (LINE_TILES + l) * TILE_BYTES, 64);
        _tile_dpbsud(1, 4, 7);
        _tile_loadd(4, high + l * 64, c->digit_stride);
        _tile_dpbsud(2, 4, 6);
        _tile_dpbsud(3, 4, 7);
    }
}

/* The same with the lowest. */
QN_INLINE void multiply_low(const qn_vq_tiles_call *c, const unit *u)
{
    const int8_t *const low = unit_digits(c, u, 0);
    _tile_zero(0);
    _tile_zero(1);
#pragma GCC unroll 4
    for (int64_t l = 0; l < LINE_TILES; l++) {
        _tile_loadd(4, low + l * 64, c->digit_stride);
        _tile_loadd(6, u->lines + l * TILE_BYTES, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, u->lines + (LINE_TILES + l) * TILE_BYTES, 64);
        _tile_dpbsud(1, 4, 7);
    }
}

QN_INLINE void add_unit(const qn_vq_tiles_call *c, const unit *u, const int first)
{
    const int32_t *const sums = unit_sums(c);
    for (int64_t r = 0; r < u->rows; r++) {
        const int64_t m = u->m + r, at = m * c->tiles + u->t;
        const float scale = c->scales[at] * c->book_scales[u->t];
#pragma GCC unroll 2
        for (int i = 0; i < PAIR; i++) {
            __m512i s[QN_VQ_PLANES] = {_mm512_setzero_si512()};
#pragma GCC unroll 3
            for (int d = first; d < QN_VQ_PLANES; d++) {
                s[d] = _mm512_load_si512(sums + ((d * PAIR + i) * TILE_ROWS + r) * QN_VQ_PANEL);
            }
            add_tile(panel_sums(c, m, u->p + i), s, first, c->offsets + at * 4, scale);
        }
    }
}

/* What multiply() has begun. */
QN_INLINE void finish(const qn_vq_tiles_call *c, const unit *u)
{
    int32_t *const sums = unit_sums(c);
    _tile_stored(0, sums + 2 * 256, 64);
    _tile_stored(1, sums + 3 * 256, 64);
    _tile_stored(2, sums + 4 * 256, 64);
    _tile_stored(3, sums + 5 * 256, 64);
    if (u->first) {
        tile_fence();
        add_unit(c, u, 1);
        return;
    }
    multiply_low(c, u);
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    tile_fence();
    add_unit(c, u, 0);
}

QN_INLINE void look_up_pair(const qn_vq_tiles_call *c, int64_t t, int64_t p, char *lines)
{
    book b;
    book_load(&b, c->books + t * QN_VQ_TILE_BYTES);
    look_up_tile(&b, panel_codes(c, t, p), LINES, lines);
    look_up_tile(&b, panel_codes(c, t, p + 1), LINES, lines + LINE_TILES * TILE_BYTES);
    tile_fence();
}

/* Units one after the other: the products of one, then what the next one needs, then the sums of the first. */
static void tiles_mm(const qn_vq_tiles_call *c)
{
    unit u = {.rows = 0}; /* under way, when it has rows */
    int64_t pairs = 0;
    clear_sums(c);
    if (c->rows == 1) {
        tiles_one(c);
        return;
    }
    tile_begin(c->rows < TILE_ROWS ? c->rows : TILE_ROWS);
    for (int64_t t = 0; t < c->tiles; t++) {
        for (int64_t p = 0; p < c->panels; p += PAIR) {
            char *const lines = c->scratch + pairs++ % 2 * PAIR_BYTES;
            look_up_pair(c, t, p, lines);
            for (int64_t m = 0; m < c->rows; m += TILE_ROWS) {
                if (u.rows) {
                    finish(c, &u);
                }
                u = (unit){.m = m, .rows = c->rows - m < TILE_ROWS ? c->rows - m : TILE_ROWS, .t = t, .p = p};
                u.lines = lines;
                u.first = first_plane(c->offsets + (m * c->tiles + t) * 4, u.rows, c->tiles);
                multiply(c, &u);
            }
        }
    }
    if (u.rows) {
        finish(c, &u);
    }
    tile_end();
}

const qn_vq_tiles_set qn_vq_tiles__amx = {tiles_mm, tile_digits};
