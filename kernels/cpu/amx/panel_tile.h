/* The loops of the panel kernels of level amx (kernels/common/panel.h), for weights
 * that are tiles as they lie in memory (int8, bf16) and for codes that are
 * unpacked to them.
 *
 * A block of K is one tile of int8 or two of bf16. Each sum is one chain of tile
 * products along K, in a block by halves and in a half by terms, whatever the
 * loops around it do: sums that leave the tiles between ranges of K return as
 * they were. With block scales the chain of 128 of K starts at 0 and is added
 * to the sums in memory. */
#include "kernels/common/panel.h"
#include "kernels/cpu/amx/tile.h"

#define RANGE_TILES 8 /* of K: two panels of a range and two groups of rows stay in the first cache */
#define FEW_PANELS 4  /* read at once when rows are few: as many chains as there are sums */
#define SCALE_BLOCKS (QN_PANEL_SCALE_K / QN_PANEL_K)

#define PART_BYTES (4 * TILE_BYTES)
#define PAIR_BYTES (2 * TILE_BYTES) /* an unpacked block */
#define RING_BYTES (2 * FEW_PANELS * PAIR_BYTES)
#define SCRATCH_BYTES (2 * PART_BYTES + 2 * RING_BYTES)

_Static_assert(RANGE_TILES == 2 * 2 * SCALE_BLOCKS, "a range is two block scales of bf16 tiles");
_Static_assert(2 * RANGE_TILES * TILE_BYTES <= RING_BYTES, "a range of two panels");

typedef void (*unpack_fn)(const char *block, char *lines);

/* What a kernel is made for; a constant of each. */
typedef struct panel_kind {
    tile_kind tile;
    int64_t bytes;    /* of a block */
    unpack_fn unpack; /* NULL: blocks are tiles */
} panel_kind;

QN_INLINE int64_t halves_of(panel_kind k)
{
    return k.tile == TILE_I8 ? 1 : 2;
}

/* Blocks of a range, an even number. */
QN_INLINE int64_t range_blocks(panel_kind k)
{
    return RANGE_TILES / halves_of(k);
}

QN_INLINE int64_t terms_of(const qn_panel_call *q, panel_kind k)
{
    return k.tile == TILE_I8 ? 1 : q->terms;
}

/* Bytes from the start of a group of rows to the tiles of block b. */
QN_INLINE int64_t row_tiles(int64_t b, panel_kind k, int64_t terms)
{
    return b * terms * halves_of(k) * TILE_BYTES;
}

QN_INLINE int has_scales(const qn_panel_call *q, panel_kind k)
{
    return k.tile == TILE_BF16 && q->sa;
}

/* Tile of the sums of panel p of the group of rows from r0 on. */
QN_INLINE float *sums_at(const qn_panel_call *q, int64_t r0, int64_t p)
{
    return (float *)q->sums + r0 * q->sums_stride + p * (TILE_BYTES / 4);
}

/* sums += part * sa * sb, n panels of the rows from r0 on, for one or two block scales from kb on. A part is tiles,
 * panels inside groups of rows; the second part follows the first. */
QN_INLINE void add_scaled(const qn_panel_call *q, int64_t r0, int64_t rows, int64_t p, int64_t n, int64_t kb, int parts,
                          const float *part)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *const sa = q->sa + (r0 + r) * q->sa_stride + kb;
        const int64_t group = r / TILE_ROWS, line = r % TILE_ROWS * QN_PANEL_COLS;
        for (int64_t i = 0; i < n; i++) {
            const float *const sb = q->sb + (p + i) * q->sb_stride + kb;
            const float *const x = part + (group * n + i) * (TILE_BYTES / 4) + line;
            float *const at = sums_at(q, r0 + group * TILE_ROWS, p + i) + line;
            __m512 sum = _mm512_fmadd_ps(_mm512_load_ps(x), _mm512_set1_ps(sa[0] * sb[0]), _mm512_load_ps(at));
            if (parts > 1) {
                sum = _mm512_fmadd_ps(_mm512_load_ps(x + PART_BYTES / 4), _mm512_set1_ps(sa[1] * sb[1]), sum);
            }
            _mm512_store_ps(at, sum);
        }
    }
}

QN_INLINE void zero_sums(const qn_panel_call *q, int64_t p, int64_t n)
{
    for (int64_t r = 0; r < q->rows; r += TILE_ROWS) {
        memset(sums_at(q, r, p), 0, (size_t)n * TILE_BYTES);
    }
}

/* What is asked for ahead of its use, a few lines at a time: `lines` of each of two panels, or of two groups of rows.
 */
typedef struct ahead {
    const char *at, *end;
    int64_t stride, lines;
} ahead;

QN_INLINE void ahead_step(ahead *o)
{
    if (o->at >= o->end) {
        return;
    }
    for (int64_t i = 0; i < o->lines; i++) {
        _mm_prefetch(o->at + i * QN_PANEL_LINE, _MM_HINT_T1);
        _mm_prefetch(o->at + i * QN_PANEL_LINE + o->stride, _MM_HINT_T1);
    }
    o->at += o->lines * QN_PANEL_LINE;
}

/* ---- many rows: 2 x 2 tiles, ranges of K ---- */

/* m x n tiles (each 1 or 2) over blocks of K; groups of rows at a and a + a_stride, the panels' tiles at b and
 * b + b_stride. */
QN_INLINE void products(const char *a, int64_t a_stride, const char *b, int64_t b_stride, int64_t blocks, int64_t terms,
                        int m, int n, panel_kind k, ahead *next, ahead *next_rows)
{
    const int64_t halves = halves_of(k);
    for (int64_t s = 0; s < blocks * halves; s++, b += TILE_BYTES) {
        ahead_step(next);
        ahead_step(next_rows);
        _tile_loadd(6, b, 64);
        if (n > 1) {
            _tile_loadd(7, b + b_stride, 64);
        }
        const char *at = a + ((s / halves) * terms * halves + s % halves) * TILE_BYTES;
        for (int64_t t = 0; t < terms; t++, at += halves * TILE_BYTES) {
            _tile_loadd(4, at, 64);
            TILE_DOT(k.tile, 0, 4, 6);
            if (n > 1) {
                TILE_DOT(k.tile, 1, 4, 7);
            }
            if (m > 1) {
                _tile_loadd(5, at + a_stride, 64);
                TILE_DOT(k.tile, 2, 5, 6);
                if (n > 1) {
                    TILE_DOT(k.tile, 3, 5, 7);
                }
            }
        }
    }
}

/* One range of K of n panels from p. */
typedef struct range {
    int64_t p, from, blocks;
    const char *b; /* tiles of the first panel's range */
    int64_t b_stride;
    ahead next;
} range;

/* The next range of m groups of rows at a, which the visits of all pairs of panels share. */
QN_INLINE ahead rows_ahead(const qn_panel_call *q, const range *g, const char *a, int m, panel_kind k)
{
    const int64_t rest = q->blocks - g->from - g->blocks, most = range_blocks(k), terms = terms_of(q, k);
    const int64_t lines = row_tiles(rest < most ? rest : most, k, terms) / QN_PANEL_LINE;
    const int64_t visits = (q->panels + 1) / 2, steps = g->blocks * halves_of(k);
    const int64_t part = (lines + visits - 1) / visits;
    const char *const next = a + row_tiles(g->blocks, k, terms), *const at = next + g->p / 2 * part * QN_PANEL_LINE;
    const char *const end = next + lines * QN_PANEL_LINE, *const own = at + part * QN_PANEL_LINE;
    return (ahead){at, own < end ? own : end, m > 1 ? q->a_stride : 0, steps ? (part + steps - 1) / steps : 0};
}

/* Rows r0 to r0 + rows, m tiles of them. */
QN_INLINE void range_rows(const qn_panel_call *q, range *g, int64_t r0, int64_t rows, int m, int n, panel_kind k)
{
    const int64_t terms = terms_of(q, k), stride = TILE_ROWS * q->sums_stride * 4;
    const char *const a = q->a + r0 / TILE_ROWS * q->a_stride + row_tiles(g->from, k, terms);
    char *const sums = (char *)sums_at(q, r0, g->p), *const part = q->scratch;
    ahead next_rows = rows_ahead(q, g, a, m, k);
    if (has_scales(q, k) && g->blocks == 0) {
        return; /* sums are 0, and there are no scales */
    }
    if (has_scales(q, k)) {
        const int64_t first = g->blocks < SCALE_BLOCKS ? g->blocks : SCALE_BLOCKS, second = g->blocks - first;
        sums_zero(m, n);
        products(a, q->a_stride, g->b, g->b_stride, first, terms, m, n, k, &g->next, &next_rows);
        sums_store(part, n * TILE_BYTES, m, n);
        if (second) {
            sums_zero(m, n);
            products(a + row_tiles(first, k, terms), q->a_stride, g->b + first * PAIR_BYTES, g->b_stride, second, terms,
                     m, n, k, &g->next, &next_rows);
            sums_store(part + PART_BYTES, n * TILE_BYTES, m, n);
        }
        tile_fence();
        add_scaled(q, r0, rows, g->p, n, g->from / SCALE_BLOCKS, second ? 2 : 1, (const float *)(const void *)part);
        return;
    }
    if (g->from == 0) {
        sums_zero(m, n);
    } else {
        sums_load(sums, stride, m, n);
    }
    products(a, q->a_stride, g->b, g->b_stride, g->blocks, terms, m, n, k, &g->next, &next_rows);
    sums_store(sums, stride, m, n);
}

QN_INLINE void range_panels(const qn_panel_call *q, int64_t p, int64_t from, int64_t blocks, int n, panel_kind k)
{
    const char *const w = q->w + p * q->panel_bytes + from * k.bytes;
    range g = {.p = p, .from = from, .blocks = blocks, .b = w, .b_stride = q->panel_bytes};
    const int64_t rest = q->blocks - from - blocks; /* next: two more panels, or the next range of the first */
    const int64_t next = p + 2 < q->panels ? blocks : (rest < range_blocks(k) ? rest : range_blocks(k));
    g.next.at = p + 2 < q->panels ? w + 2 * q->panel_bytes : q->w + (from + blocks) * k.bytes;
    g.next.end = g.next.at + next * k.bytes;
    g.next.stride = p + 3 < q->panels || p + 2 >= q->panels ? q->panel_bytes : 0;
    const int64_t steps = (q->rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS) * blocks * halves_of(k);
    g.next.lines = steps ? (next * k.bytes / QN_PANEL_LINE + steps) / steps : 0;
    if (k.unpack) {
        char *const lines = q->scratch + 2 * PART_BYTES;
        g.b = lines;
        g.b_stride = RANGE_TILES * TILE_BYTES;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t b = 0; b < blocks; b++) {
                k.unpack(w + i * q->panel_bytes + b * k.bytes, lines + i * g.b_stride + b * PAIR_BYTES);
            }
        }
        tile_fence();
    }
    if (from == 0 && has_scales(q, k)) {
        zero_sums(q, p, n);
    }
    int64_t r = 0;
    for (; r + 2 * TILE_ROWS <= q->rows; r += 2 * TILE_ROWS) {
        range_rows(q, &g, r, 2 * TILE_ROWS, 2, n, k);
    }
    if (q->rows - r > TILE_ROWS) {
        range_rows(q, &g, r, q->rows - r, 2, n, k);
    } else if (q->rows > r) {
        range_rows(q, &g, r, q->rows - r, 1, n, k);
    }
}

QN_INLINE void many_rows(const qn_panel_call *q, panel_kind k)
{
    int64_t from = 0;
    do { /* once when K is 0: sums are written whole */
        const int64_t blocks = q->blocks - from < range_blocks(k) ? q->blocks - from : range_blocks(k);
        int64_t p = 0;
        for (; p + 2 <= q->panels; p += 2) {
            range_panels(q, p, from, blocks, 2, k);
        }
        if (p < q->panels) {
            range_panels(q, p, from, blocks, 1, k);
        }
        from += range_blocks(k);
    } while (from < q->blocks);
}

/* ---- up to 16 rows: one tile of them, panels stream ---- */

/* Tiles of n panels, one after the other. */
QN_INLINE void few_store(char *to, int n)
{
    _tile_stored(0, to, 64);
    if (n > 1) {
        _tile_stored(1, to + TILE_BYTES, 64);
    }
    if (n > 2) {
        _tile_stored(2, to + 2 * TILE_BYTES, 64);
        _tile_stored(3, to + 3 * TILE_BYTES, 64);
    }
}

#define FEW_AHEAD 4096 /* bytes of each panel */

/* Block b + FEW_AHEAD / bytes of n panels, behind the last block those of the next n. */
QN_INLINE void few_ahead(const qn_panel_call *q, const char *w, int64_t b, int n, panel_kind k)
{
    const int64_t to = b + FEW_AHEAD / k.bytes;
    const char *const at = w + to * k.bytes + (to >= q->blocks ? (n - 1) * q->panel_bytes : 0);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t l = 0; l < k.bytes; l += QN_PANEL_LINE) {
            _mm_prefetch(at + i * q->panel_bytes + l, _MM_HINT_T0);
        }
    }
}

/* n panels from p: 1, 2 or 4. Of unpacked codes scratch holds two blocks: one is unpacked while the
 * products of the other run. */
QN_INLINE void few_panels(const qn_panel_call *q, int64_t p, int n, panel_kind k)
{
    const int64_t terms = terms_of(q, k), halves = halves_of(k);
    const int scales = has_scales(q, k);
    const char *const w = q->w + p * q->panel_bytes;
    char *const part = q->scratch, *const ring = q->scratch + PART_BYTES;
    const int64_t stride = k.unpack ? PAIR_BYTES : q->panel_bytes;
    if (scales) {
        zero_sums(q, p, n);
    }
    sums_zero(2, 2);
    for (int64_t b = k.unpack ? -1 : 0; b < q->blocks; b++) {
        if (k.unpack && b + 1 < q->blocks) {
            char *const to = ring + ((b + 1) & 1) * FEW_PANELS * PAIR_BYTES;
            for (int64_t i = 0; i < n; i++) {
                k.unpack(w + i * q->panel_bytes + (b + 1) * k.bytes, to + i * PAIR_BYTES);
            }
            tile_fence();
        }
        if (b < 0) {
            continue;
        }
        few_ahead(q, w, b, n, k);
        const char *const tiles = k.unpack ? ring + (b & 1) * FEW_PANELS * PAIR_BYTES : w + b * k.bytes;
        for (int64_t h = 0; h < halves; h++) {
            const char *const line = tiles + h * TILE_BYTES;
            const char *at = q->a + row_tiles(b, k, terms) + h * TILE_BYTES;
            for (int64_t t = 0; t < terms; t++, at += halves * TILE_BYTES) {
                _tile_loadd(4, at, 64);
                _tile_loadd(6, line, 64);
                TILE_DOT(k.tile, 0, 4, 6);
                if (n > 1) {
                    _tile_loadd(7, line + stride, 64);
                    TILE_DOT(k.tile, 1, 4, 7);
                }
                if (n > 2) {
                    _tile_loadd(6, line + 2 * stride, 64);
                    TILE_DOT(k.tile, 2, 4, 6);
                    _tile_loadd(7, line + 3 * stride, 64);
                    TILE_DOT(k.tile, 3, 4, 7);
                }
            }
        }
        if (scales && ((b + 1) % SCALE_BLOCKS == 0 || b + 1 == q->blocks)) {
            few_store(part, n);
            tile_fence();
            add_scaled(q, 0, q->rows, p, n, b / SCALE_BLOCKS, 1, (const float *)(const void *)part);
            sums_zero(2, 2);
        }
    }
    if (!scales) {
        few_store((char *)sums_at(q, 0, p), n);
    }
}

QN_INLINE void few_rows(const qn_panel_call *q, panel_kind k)
{
    int64_t p = 0;
    for (; p + 4 <= q->panels; p += 4) {
        few_panels(q, p, 4, k);
    }
    for (; p + 2 <= q->panels; p += 2) {
        few_panels(q, p, 2, k);
    }
    if (p < q->panels) {
        few_panels(q, p, 1, k);
    }
}

QN_INLINE void panel_mm(const qn_panel_call *q, panel_kind k)
{
    if (q->rows <= TILE_ROWS) {
        tile_begin(q->rows);
        few_rows(q, k);
    } else {
        tile_begin(TILE_ROWS);
        many_rows(q, k);
    }
    tile_end();
}
