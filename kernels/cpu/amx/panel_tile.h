/* The loops of the panel kernels of level amx, for weights that are tiles as
 * they lie in memory (int8, bf16) and for codes that are unpacked to them.
 *
 * A step is one tile of b: 64 elements of int8, 32 of bf16. Each sum is one
 * chain of tile products in the order of K (halves of a block, terms of a half),
 * whatever the loops around it do: sums that leave the tiles between ranges of
 * K return as they were. */
#include "kernels/common/panel.h"
#include "kernels/cpu/amx/tile.h"

#ifndef RANGE_BLOCKS
#define RANGE_BLOCKS 8 /* of 64: two panels of a range of K stay in the first cache */
#endif

/* Where the bytes of step s of a row are: [K/64][terms][64] bf16, or int8 as they come. */
QN_INLINE int64_t row_step(int64_t s, int64_t terms)
{
    return (s >> 1) * 128 * terms + (s & 1) * 64;
}

/* m x n tiles (each 1 or 2) over `steps` of K. */
QN_INLINE void products(const char *a, int64_t a_stride, const char *b0, const char *b1, int64_t steps, int64_t terms,
                        int m, int n, tile_kind kind)
{
    for (int64_t s = 0; s < steps; s++) {
        const char *at = a + row_step(s, terms);
        _tile_loadd(6, b0 + s * TILE_BYTES, 64);
        if (n > 1) {
            _tile_loadd(7, b1 + s * TILE_BYTES, 64);
        }
        for (int64_t t = 0; t < terms; t++, at += 128) {
            _tile_loadd(4, at, a_stride);
            TILE_DOT(kind, 0, 4, 6);
            if (n > 1) {
                TILE_DOT(kind, 1, 4, 7);
            }
            if (m > 1) {
                _tile_loadd(5, at + TILE_ROWS * a_stride, a_stride);
                TILE_DOT(kind, 2, 5, 6);
                if (n > 1) {
                    TILE_DOT(kind, 3, 5, 7);
                }
            }
        }
    }
}

/* Sums of one register block of `rows` rows between ranges; a partial block passes through scratch. */
typedef struct block {
    char *sums;
    int64_t stride; /* bytes */
    int64_t rows;
    char *scratch; /* 32 lines of 128 bytes */
} block;

#define SCRATCH_STRIDE 128
#define SCRATCH_SUMS (2 * TILE_ROWS * SCRATCH_STRIDE)

QN_INLINE void copy_rows(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows, int n)
{
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * to_stride, from + r * from_stride, (size_t)n * 64);
    }
}

QN_INLINE void block_load(const block *o, int first, int whole, int m, int n)
{
    if (first) {
        sums_zero(m, n);
    } else if (whole) {
        sums_load(o->sums, o->stride, m, n);
    } else {
        copy_rows(o->scratch, SCRATCH_STRIDE, o->sums, o->stride, o->rows, n);
        tile_fence();
        sums_load(o->scratch, SCRATCH_STRIDE, m, n);
    }
}

QN_INLINE void block_store(const block *o, int whole, int m, int n)
{
    if (whole) {
        sums_store(o->sums, o->stride, m, n);
    } else {
        sums_store(o->scratch, SCRATCH_STRIDE, m, n);
        tile_fence();
        copy_rows(o->sums, o->stride, o->scratch, SCRATCH_STRIDE, o->rows, n);
    }
}

/* n panels, b0 and b1 at the range's first step, all rows of the call. */
QN_INLINE void range_of_panels(const qn_panel_call *q, int64_t p, const char *b0, const char *b1, int64_t from,
                               int64_t steps, int n, tile_kind kind)
{
    const int64_t terms = kind == TILE_I8 ? 1 : q->terms;
    const char *a = q->a + row_step(from, terms);
    block o = {(char *)q->sums + p * 64, q->sums_stride * 4, 2 * TILE_ROWS, q->scratch};
    int64_t r = 0;
    for (; r + 2 * TILE_ROWS <= q->rows; r += 2 * TILE_ROWS) {
        block_load(&o, from == 0, 1, 2, n);
        products(a, q->a_stride, b0, b1, steps, terms, 2, n, kind);
        block_store(&o, 1, 2, n);
        a += 2 * TILE_ROWS * q->a_stride;
        o.sums += 2 * TILE_ROWS * o.stride;
    }
    o.rows = q->rows - r;
    if (o.rows > TILE_ROWS) {
        block_load(&o, from == 0, 0, 2, n);
        products(a, q->a_stride, b0, b1, steps, terms, 2, n, kind);
        block_store(&o, 0, 2, n);
    } else if (o.rows > 0) {
        block_load(&o, from == 0, 0, 1, n);
        products(a, q->a_stride, b0, b1, steps, terms, 1, n, kind);
        block_store(&o, 0, 1, n);
    }
}

/* Up to 16 rows: panels p to p + n, n at most 4, along the whole of K. */
QN_INLINE void few_rows(const qn_panel_call *q, int64_t p, int64_t all, int n, tile_kind kind)
{
    const int64_t terms = kind == TILE_I8 ? 1 : q->terms, stride = q->sums_stride * 4;
    const char *const b = q->w + p * q->panel_bytes;
    char *const sums = (char *)q->sums + p * 64;
    sums_zero(2, 2);
    for (int64_t s = 0; s < all; s++) {
        const char *at = q->a + row_step(s, terms), *line = b + s * TILE_BYTES;
        for (int64_t t = 0; t < terms; t++, at += 128) {
            _tile_loadd(4, at, q->a_stride);
            _tile_loadd(6, line, 64);
            TILE_DOT(kind, 0, 4, 6);
            if (n > 1) {
                _tile_loadd(7, line + q->panel_bytes, 64);
                TILE_DOT(kind, 1, 4, 7);
            }
            if (n > 2) {
                _tile_loadd(6, line + 2 * q->panel_bytes, 64);
                TILE_DOT(kind, 2, 4, 6);
                _tile_loadd(7, line + 3 * q->panel_bytes, 64);
                TILE_DOT(kind, 3, 4, 7);
            }
        }
    }
    _tile_stored(0, sums, stride);
    if (n > 1) {
        _tile_stored(1, sums + 64, stride);
    }
    if (n > 2) {
        _tile_stored(2, sums + 128, stride);
        _tile_stored(3, sums + 192, stride);
    }
}

/* Weights that are tiles as they lie in memory. */
QN_INLINE void panels_of_tiles(const qn_panel_call *q, tile_kind kind)
{
    const int64_t per_block = kind == TILE_I8 ? 1 : 2, all = q->blocks * per_block, range = RANGE_BLOCKS * per_block;
    if (q->rows <= TILE_ROWS) {
        tile_begin(q->rows);
        int64_t p = 0;
        for (; p + 4 <= q->panels; p += 4) {
            few_rows(q, p, all, 4, kind);
        }
        for (; p + 2 <= q->panels; p += 2) {
            few_rows(q, p, all, 2, kind);
        }
        if (p < q->panels) {
            few_rows(q, p, all, 1, kind);
        }
        tile_end();
        return;
    }
    tile_begin(TILE_ROWS);
    int64_t from = 0;
    do { /* once when K is 0: sums are written whole */
        const int64_t steps = all - from < range ? all - from : range;
        int64_t p = 0;
        for (; p + 2 <= q->panels; p += 2) {
            const char *const b = q->w + p * q->panel_bytes + from * TILE_BYTES;
            range_of_panels(q, p, b, b + q->panel_bytes, from, steps, 2, kind);
        }
        if (p < q->panels) {
            const char *const b = q->w + p * q->panel_bytes + from * TILE_BYTES;
            range_of_panels(q, p, b, b, from, steps, 1, kind);
        }
        from += range;
    } while (from < all);
    tile_end();
}
