/* The loops of the panel kernels of level amx (kernels/common/panel.h), for weights
 * that are tiles as they lie in memory (int8, bf16) and for codes that are
 * unpacked to them.
 *
 * A block of K is one tile of int8 or two of bf16. Each sum is one chain of tile
 * products along K, in a block by halves and in a half by terms, whatever the
 * loops around it do: sums that leave the tiles between ranges of K return as
 * they were. With block scales the chain of 128 of K starts at 0 and is added
 * to the sums in memory.
 *
 * Many rows. A strip, two panels of a range of K, stays in the first cache while
 * all rows pass by, a visit two groups of them. Tiles keep one unit of the core
 * busy and leave the vectors idle, so what vectors have to do is done beside the
 * products, some of it every step of K: adding the scaled sums of the visit before,
 * unpacking the next strip. */
#include "kernels/common/panel.h"
#include "kernels/cpu/amx/tile.h"

#define RANGE_TILES 12 /* of K, at most: a strip stays in the first cache while rows pass */
#define STRIP_TILES 18 /* at most: a K that needs no more is one range, and its sums stay in tiles */
#define FEW_PANELS 4   /* read at once when rows are few: as many chains as there are sums */
#define SCALE_BLOCKS (QN_PANEL_SCALE_K / QN_PANEL_K)

#define FLUSH 0x8040u /* MXCSR: results and operands that are subnormal count as zero, as in tiles */

#define PART_BYTES (4 * TILE_BYTES)
#define PAIR_BYTES (2 * TILE_BYTES) /* an unpacked block */
#define RING_BYTES (2 * FEW_PANELS * PAIR_BYTES)
#define STRIP_BYTES (2 * STRIP_TILES * TILE_BYTES)
#define STRIP_AT (2 * 2 * PART_BYTES) /* in scratch: two parts of two visits, then a strip */
#define SCRATCH_BYTES (64 << 10)

_Static_assert(STRIP_TILES >= 2 * 2 * SCALE_BLOCKS, "two block scales of bf16 tiles");
_Static_assert(STRIP_AT + STRIP_BYTES <= SCRATCH_BYTES, "many rows");
_Static_assert(PART_BYTES + RING_BYTES <= SCRATCH_BYTES, "few rows");

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

QN_INLINE int64_t terms_of(const qn_panel_call *q, panel_kind k)
{
    return k.tile == TILE_I8 ? 1 : q->terms;
}

/* Bytes from the start of a group of rows to the tiles of block b. */
QN_INLINE int64_t row_tiles(int64_t b, panel_kind k, int64_t terms)
{
    return b * terms * halves_of(k) * TILE_BYTES;
}

/* The same to the tile of a step, which is a tile of columns, and a term. */
QN_INLINE int64_t row_tile(int64_t step, int64_t term, panel_kind k, int64_t terms)
{
    const int64_t halves = halves_of(k);
    return row_tiles(step / halves, k, terms) + (term * halves + step % halves) * TILE_BYTES;
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

/* Bytes to the sums of the next group of rows. */
QN_INLINE int64_t sums_group(const qn_panel_call *q)
{
    return TILE_ROWS * q->sums_stride * (int64_t)sizeof(float);
}

/* Products of block scales: of a part, of a panel, of two groups of rows. */
typedef struct scale_products {
    _Alignas(64) float of[2][FEW_PANELS][2 * TILE_ROWS];
} scale_products;

QN_INLINE void multiply_scales(const qn_panel_call *q, int64_t r0, int64_t rows, int64_t p, int64_t n, int64_t kb,
                               int parts, scale_products *o)
{
    for (int t = 0; t < parts; t++) {
        for (int64_t i = 0; i < n; i++) {
            const __m512 sb = _mm512_set1_ps(q->sb[(p + i) * q->sb_stride + kb + t]);
            const float *const sa = q->sa + (kb + t) * q->sa_stride + r0;
            for (int64_t r = 0; r < rows; r += TILE_ROWS) {
                _mm512_store_ps(o->of[t][i] + r, _mm512_mul_ps(_mm512_loadu_ps(sa + r), sb));
            }
        }
    }
}

/* sums += part * scale of rows first to last of those from r0 on, n panels, of one or two block scales; `clear`: sums
 * count as 0. A part is tiles, panels inside groups of rows; the second part follows the first. */
QN_INLINE void add_scaled(const qn_panel_call *q, int64_t r0, int64_t first, int64_t last, int64_t p, int64_t n,
                          int parts, int clear, const scale_products *scales, const float *part)
{
    for (int64_t r = first; r < last; r++) {
        const int64_t group = r / TILE_ROWS, line = r % TILE_ROWS * QN_PANEL_COLS;
        for (int64_t i = 0; i < n; i++) {
            const float *const x = part + (group * n + i) * (TILE_BYTES / 4) + line;
            float *const at = sums_at(q, r0 + group * TILE_ROWS, p + i) + line;
            const __m512 before = clear ? _mm512_setzero_ps() : _mm512_load_ps(at);
            __m512 sum = _mm512_fmadd_ps(_mm512_load_ps(x), _mm512_set1_ps(scales->of[0][i][r]), before);
            if (parts > 1) {
                sum = _mm512_fmadd_ps(_mm512_load_ps(x + PART_BYTES / 4), _mm512_set1_ps(scales->of[1][i][r]), sum);
            }
            _mm512_store_ps(at, sum);
        }
    }
}

QN_INLINE void zero_sums(const qn_panel_call *q)
{
    for (int64_t r = 0; r < q->rows; r += TILE_ROWS) {
        memset(sums_at(q, r, 0), 0, (size_t)q->panels * TILE_BYTES);
    }
}

/* ---- many rows: strips and visits ---- */

/* One range of K of one or two panels. */
typedef struct strip {
    int64_t p, from, blocks; /* blocks 0: behind the last one */
    int n;
} strip;

/* Blocks of a range: with block scales two of them, else ranges of equal length. */
QN_INLINE int64_t range_blocks(const qn_panel_call *q, panel_kind k)
{
    const int64_t tiles = q->blocks * halves_of(k);
    const int64_t ranges = tiles <= STRIP_TILES ? 1 : (tiles + RANGE_TILES - 1) / RANGE_TILES;
    return has_scales(q, k) ? 2 * SCALE_BLOCKS : (q->blocks + ranges - 1) / ranges;
}

QN_INLINE strip strip_at(const qn_panel_call *q, int64_t p, int64_t from, panel_kind k)
{
    const int64_t rest = q->blocks - from, most = range_blocks(q, k);
    return (strip){p, from, rest > most ? most : (rest > 0 ? rest : 0), q->panels - p > 1 ? 2 : 1};
}

QN_INLINE strip strip_after(const qn_panel_call *q, strip s, panel_kind k)
{
    return s.p + 2 < q->panels ? strip_at(q, s.p + 2, s.from, k) : strip_at(q, 0, s.from + s.blocks, k);
}

QN_INLINE const char *strip_codes(const qn_panel_call *q, strip s, panel_kind k)
{
    return q->w + s.p * q->panel_bytes + s.from * k.bytes;
}

/* What is asked for ahead of its use, a few lines a step: runs of lines, one after the other, which the processor
 * sees as one stream and fetches itself after a few lines. */
typedef struct ahead {
    const char *at, *end; /* of a run */
    int64_t run, stride;  /* bytes; from run to run */
    int64_t runs, lines;  /* runs left; lines a step */
} ahead;

QN_INLINE ahead ahead_of(const char *at, int64_t run, int64_t stride, int64_t runs, int64_t steps)
{
    const int64_t lines = run / QN_PANEL_LINE * runs;
    return (ahead){at, at + run, run, stride, runs, (lines + steps - 1) / steps};
}

QN_INLINE void ahead_step(ahead *o)
{
    if (o->runs <= 0) {
        return;
    }
    for (int64_t i = 0; i < o->lines; i++) {
        _mm_prefetch(o->at + i * QN_PANEL_LINE, _MM_HINT_T1);
    }
    o->at += o->lines * QN_PANEL_LINE;
    if (o->at >= o->end) {
        o->runs--;
        o->end += o->stride;
        o->at = o->end - o->run;
    }
}

/* Sums, of one or two groups of rows at once, for the first cache. */
typedef struct ahead_sums {
    const char *at, *end;
    int64_t stride, lines;
} ahead_sums;

QN_INLINE void ahead_sums_step(ahead_sums *o)
{
    if (o->at >= o->end) {
        return;
    }
    for (int64_t i = 0; i < o->lines; i++) {
        _mm_prefetch(o->at + i * QN_PANEL_LINE, _MM_HINT_ET0);
        _mm_prefetch(o->at + i * QN_PANEL_LINE + o->stride, _MM_HINT_ET0);
    }
    o->at += o->lines * QN_PANEL_LINE;
}

typedef struct prefetches {
    ahead codes, rows;
    ahead_sums sums;
} prefetches;

#define BESIDE_ROWS 4 /* a step; groups have whole ones */

/* What vectors do beside the products. */
typedef struct beside {
    const qn_panel_call *q;
    /* sums of the visit before: scaled parts to add */
    int64_t row, rows, r0, p;
    int n, parts, first; /* first: the sums are 0 */
    int turn;            /* of two places for parts */
    const char *tiles;   /* the parts */
    scale_products scales;
    /* blocks of the next strip to unpack in the last visit of this one, a block a step, to where tiles have been
     * loaded for the last time: block b of the panels after step 2 b */
    unpack_fn unpack;
    const char *codes;
    char *lines;
    int64_t block, blocks, bytes;
    int panels;
} beside;

/* BESIDE_ROWS rows of one group of two panels of two parts, as add_scaled does it, in few instructions: each takes a
 * place in which a later load of a tile could wait. Lines behind the last row of a group are there, and nobody reads
 * them. before: none of the sums where they count as 0. */
static __attribute__((noinline)) void beside_full_rows(const float *part, const float *scales, float *at,
                                                       __mmask16 before)
{
    for (int l = 0; l < BESIDE_ROWS; l++) {
        for (int i = 0; i < 2; i++) {
            const int line = i * (TILE_BYTES / 4) + l * QN_PANEL_COLS;
            const float *const scale = scales + i * 2 * TILE_ROWS + l;
            const __m512 second = _mm512_set1_ps(scale[FEW_PANELS * 2 * TILE_ROWS]);
            __m512 sum = _mm512_maskz_load_ps(before, at + line);
            sum = _mm512_fmadd_ps(_mm512_load_ps(part + line), _mm512_set1_ps(*scale), sum);
            sum = _mm512_fmadd_ps(_mm512_load_ps(part + PART_BYTES / 4 + line), second, sum);
            _mm512_store_ps(at + line, sum);
        }
    }
}

static __attribute__((noinline)) void beside_rows(beside *o)
{
    const int64_t next = o->row + BESIDE_ROWS, last = next < o->rows ? next : o->rows;
    const float *const tiles = (const float *)(const void *)o->tiles;
    if (o->parts > 1) {
        add_scaled(o->q, o->r0, o->row, last, o->p, o->n, 2, o->first, &o->scales, tiles);
    } else if (o->parts) {
        add_scaled(o->q, o->r0, o->row, last, o->p, o->n, 1, o->first, &o->scales, tiles);
    }
    o->row = last;
}

static __attribute__((noinline)) void beside_unpack(beside *o)
{
    const int64_t b = o->block / o->panels, i = o->block % o->panels;
    o->unpack(o->codes + i * o->q->panel_bytes + b * o->bytes, o->lines + i * STRIP_BYTES / 2 + b * PAIR_BYTES);
    o->block++;
    tile_fence();
}

QN_INLINE void beside_step(beside *o, panel_kind k)
{
    if (o->row < o->rows && o->parts > 1 && o->n > 1) {
        const int64_t group = o->row / TILE_ROWS, line = o->row % TILE_ROWS * QN_PANEL_COLS;
        beside_full_rows((const float *)(const void *)o->tiles + group * 2 * (TILE_BYTES / 4) + line,
                         o->scales.of[0][0] + o->row, sums_at(o->q, o->r0 + group * TILE_ROWS, o->p) + line,
                         o->first ? 0 : 0xffff);
        o->row += BESIDE_ROWS;
    } else if (o->row < o->rows) {
        beside_rows(o);
    }
    if (k.unpack && o->panels > 1 && o->block < 2 * o->blocks) {
        beside_unpack(o);
    }
}

/* The visit's rest, before another one takes its place. */
QN_INLINE void beside_end(beside *o, panel_kind k)
{
    while (o->row < o->rows) {
        beside_rows(o);
    }
    while (k.unpack && o->block < o->panels * o->blocks) {
        beside_unpack(o);
    }
}

/* Where tiles of rows and columns are: of one or two groups of rows, of one or two panels. */
typedef struct operands {
    const char *a[2], *b[2];
} operands;

QN_INLINE void operands_load(operands o, int n)
{
    _tile_stream_loadd(4, o.a[0], 64);
    _tile_loadd(6, o.b[0], 64);
    if (n > 1) {
        _tile_loadd(7, o.b[1], 64);
    }
}

/* m x n tiles (each 1 or 2) over blocks of K from `at` on, whose first tiles are loaded. Rows are read once a visit and
 * need not stay in the first cache. A tile is loaded as soon as the one before it in its place has met its last
 * product, and behind the last step those of `then`. Both groups of rows take turns in one tile: the processor has
 * places for more values than a tile has, but few, and fewer where its core has two threads. */
QN_INLINE void products(operands at, operands then, int64_t blocks, int64_t terms, int m, int n, panel_kind k,
                        prefetches *next, beside *work)
{
    const int64_t halves = halves_of(k), steps = blocks * halves;
    for (int64_t s = 0; s < steps; s++) {
        const int last = s + 1 == steps;
        const char *const b0 = last ? then.b[0] : at.b[0] + (s + 1) * TILE_BYTES;
        const char *const b1 = last ? then.b[1] : at.b[1] + (s + 1) * TILE_BYTES;
        ahead_step(&next->codes);
        ahead_step(&next->rows);
        ahead_sums_step(&next->sums);
        for (int64_t t = 0; t < terms; t++) {
            const int rest = t + 1 < terms;
            const int64_t to = rest ? row_tile(s, t + 1, k, terms) : row_tile(s + 1, 0, k, terms);
            TILE_DOT(k.tile, 0, 4, 6);
            if (n > 1) {
                TILE_DOT(k.tile, 1, 4, 7);
            }
            if (m > 1) {
                _tile_stream_loadd(4, at.a[1] + row_tile(s, t, k, terms), 64);
                TILE_DOT(k.tile, 2, 4, 6);
            }
            if (!rest) {
                _tile_loadd(6, b0, 64);
            }
            if (m > 1 && n > 1) {
                TILE_DOT(k.tile, 3, 4, 7);
            }
            if (!rest && n > 1) {
                _tile_loadd(7, b1, 64);
            }
            _tile_stream_loadd(4, last && !rest ? then.a[0] : at.a[0] + to, 64);
        }
        beside_step(work, k);
    }
}

/* Visits of all rows, of two groups of them; their steps. */
QN_INLINE int64_t visits_of(const qn_panel_call *q)
{
    return (q->rows + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
}

QN_INLINE int64_t steps_of(const qn_panel_call *q, strip s, panel_kind k)
{
    return visits_of(q) * s.blocks * halves_of(k);
}

/* Those of two more panels, or of the next range of the first; before the last visit when that unpacks them, of a
 * single visit a strip later. */
QN_INLINE ahead codes_ahead(const qn_panel_call *q, strip s, panel_kind k)
{
    const int64_t visits = visits_of(q), before = k.unpack && visits > 1 ? visits - 1 : visits;
    strip next = strip_after(q, s, k);
    if (k.unpack && visits == 1 && next.blocks) {
        next = strip_after(q, next, k);
    }
    if (next.blocks == 0) {
        return (ahead){0};
    }
    return ahead_of(strip_codes(q, next, k), next.blocks * k.bytes, q->panel_bytes, next.n,
                    steps_of(q, s, k) / visits * before);
}

/* The next range of rows, of which the strips of this range ask for some groups each. */
QN_INLINE ahead rows_ahead(const qn_panel_call *q, strip s, panel_kind k)
{
    const int64_t terms = terms_of(q, k), strips = (q->panels + 1) / 2, i = s.p / 2;
    const int64_t groups = (q->rows + TILE_ROWS - 1) / TILE_ROWS, first = i * groups / strips;
    const int64_t run = row_tiles(strip_at(q, 0, s.from + s.blocks, k).blocks, k, terms);
    if (run == 0) {
        return (ahead){0};
    }
    return ahead_of(q->a + first * q->a_stride + row_tiles(s.from + s.blocks, k, terms), run, q->a_stride,
                    (i + 1) * groups / strips - first, steps_of(q, s, k));
}

/* Sums that the next visit loads or stores; with block scales, that are added to in the next visit. */
QN_INLINE ahead_sums sums_ahead(const qn_panel_call *q, strip s, int64_t r0, panel_kind k)
{
    const int64_t steps = s.blocks * halves_of(k);
    const int64_t lines = s.n * TILE_BYTES / QN_PANEL_LINE;
    if (!has_scales(q, k)) {
        r0 += 2 * TILE_ROWS;
        if (r0 >= q->rows) {
            r0 = 0;
            s.p = s.p + 2 < q->panels ? s.p + 2 : 0;
        }
    }
    const char *const at = (const char *)sums_at(q, r0, s.p);
    return (ahead_sums){at, at + s.n * TILE_BYTES, q->rows - r0 > TILE_ROWS ? sums_group(q) : 0,
                        (lines + steps - 1) / steps};
}

/* Groups of rows of the visit from row r0 on: two, or what is left. */
QN_INLINE int groups_at(const qn_panel_call *q, int64_t r0)
{
    const int64_t rest = q->rows - r0;
    return rest > TILE_ROWS ? 2 : (rest > 0 ? 1 : 0);
}

/* The first tiles of m groups of rows from r0 on, from block `from` on, and of a strip of them whose tiles are at b. */
QN_INLINE operands operands_at(const qn_panel_call *q, int64_t r0, int64_t from, const char *b, int64_t m, panel_kind k)
{
    const char *const a = q->a + r0 / TILE_ROWS * q->a_stride + row_tiles(from, k, terms_of(q, k));
    return (operands){{a, m > 1 ? a + q->a_stride : a}, {b, b + (k.unpack ? STRIP_BYTES / 2 : q->panel_bytes)}};
}

/* Sums of a strip's first visit; with block scales they stay in memory, and parts begin at 0. */
QN_INLINE void sums_begin(const qn_panel_call *q, strip s, int m, int n, panel_kind k)
{
    if (s.from == 0 || has_scales(q, k)) {
        sums_zero(m, n);
    } else {
        sums_load((const char *)sums_at(q, 0, s.p), sums_group(q), m, n);
    }
}

/* Rows r0 to r0 + rows, m groups of them, by a strip of n panels whose tiles are at b; the first of them and the sums
 * are loaded. Those of the visit behind it, of then_m groups (0: none by this strip), are when it ends. Parts that
 * scales wait for are left to what is done beside the next visit. */
QN_INLINE void visit(const qn_panel_call *q, strip s, const char *b, int64_t r0, int64_t rows, int m, int then_m, int n,
                     panel_kind k, prefetches *next, beside *work)
{
    const int64_t terms = terms_of(q, k), after = then_m ? r0 + 2 * TILE_ROWS : r0;
    const operands at = operands_at(q, r0, s.from, b, m, k);
    const operands then = operands_at(q, after, s.from, b, then_m ? then_m : m, k);
    char *const part = q->scratch + work->turn * 2 * PART_BYTES;
    int parts = 0;
    next->sums = sums_ahead(q, s, r0, k);
    if (has_scales(q, k)) {
        const int64_t first = s.blocks < SCALE_BLOCKS ? s.blocks : SCALE_BLOCKS, second = s.blocks - first;
        char *to = part;
        parts = second ? 2 : 1;
        if (second) {
            const operands half = operands_at(q, r0, s.from + first, b + first * halves_of(k) * TILE_BYTES, m, k);
            products(at, half, first, terms, m, n, k, next, work);
            sums_turn(part, n * TILE_BYTES, NULL, 0, m, m, n);
            products(half, then, second, terms, m, n, k, next, work);
            to = part + PART_BYTES;
        } else {
            products(at, then, first, terms, m, n, k, next, work);
        }
        sums_turn(to, n * TILE_BYTES, NULL, 0, m, m, n);
    } else {
        const char *const sums = s.from && then_m ? (const char *)sums_at(q, after, s.p) : NULL;
        products(at, then, s.blocks, terms, m, n, k, next, work);
        sums_turn((char *)sums_at(q, r0, s.p), sums_group(q), sums, sums_group(q), m, then_m ? then_m : m, n);
    }
    beside_end(work, k);
    tile_fence();
    if (parts) {
        work->row = 0;
        work->rows = rows;
        work->r0 = r0;
        work->p = s.p;
        work->n = n;
        work->parts = parts;
        work->first = s.from == 0;
        work->tiles = part;
        work->turn ^= 1;
        multiply_scales(q, r0, rows, s.p, n, s.from / SCALE_BLOCKS, parts, &work->scales);
    }
}

/* All rows by a strip whose tiles are at b; the last visit leaves the next one there when it is to be unpacked. */
QN_INLINE void strip_rows(const qn_panel_call *q, strip s, const char *b, int n, panel_kind k, beside *work)
{
    const strip next_strip = strip_after(q, s, k);
    const int64_t visits = visits_of(q);
    prefetches next = {.codes = codes_ahead(q, s, k), .rows = rows_ahead(q, s, k)};
    operands_load(operands_at(q, 0, s.from, b, groups_at(q, 0), k), n);
    sums_begin(q, s, groups_at(q, 0), n, k);
    for (int64_t v = 0; v < visits; v++) {
        const int64_t r = v * 2 * TILE_ROWS, rest = q->rows - r;
        const int then_m = groups_at(q, r + 2 * TILE_ROWS);
        if (k.unpack && v + 1 == visits && next_strip.blocks) {
            work->codes = strip_codes(q, next_strip, k);
            work->block = 0;
            work->blocks = next_strip.blocks;
            work->panels = next_strip.n;
        }
        if (rest > TILE_ROWS) {
            visit(q, s, b, r, rest < 2 * TILE_ROWS ? rest : 2 * TILE_ROWS, 2, then_m, n, k, &next, work);
        } else {
            visit(q, s, b, r, rest, 1, 0, n, k, &next, work);
        }
    }
}

QN_INLINE void many_rows(const qn_panel_call *q, panel_kind k)
{
    char *const lines = q->scratch + STRIP_AT;
    beside work = {.q = q, .unpack = k.unpack, .bytes = k.bytes, .lines = lines};
    const unsigned control = _mm_getcsr();
    strip s = strip_at(q, 0, 0, k);
    if (s.blocks == 0) {
        zero_sums(q);
        return;
    }
    if (k.unpack) {
        work.codes = strip_codes(q, s, k);
        work.blocks = s.blocks;
        work.panels = s.n;
        beside_end(&work, k);
    }
    if (has_scales(q, k)) {
        _mm_setcsr(control | FLUSH);
    }
    tile_begin(TILE_ROWS);
    while (s.blocks) {
        const char *const b = k.unpack ? lines : strip_codes(q, s, k);
        if (s.n > 1) {
            strip_rows(q, s, b, 2, k, &work);
        } else {
            strip_rows(q, s, b, 1, k, &work);
        }
        s = strip_after(q, s, k);
    }
    tile_end();
    beside_end(&work, k);
    _mm_setcsr(control);
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

/* Where block b + FEW_AHEAD / bytes of n panels is, behind the last block that of the next n. */
QN_INLINE const char *few_ahead(const qn_panel_call *q, const char *w, int64_t b, int n, panel_kind k)
{
    const int64_t to = b + FEW_AHEAD / k.bytes;
    return w + to * k.bytes + (to >= q->blocks ? (n - 1) * q->panel_bytes : 0);
}

QN_INLINE void few_ask(const char *block, panel_kind k)
{
    for (int64_t l = 0; l < k.bytes; l += QN_PANEL_LINE) {
        _mm_prefetch(block + l, _MM_HINT_T0);
    }
}

/* Block b of n panels, whose tiles stream from memory: panel after panel, so that each line is one of a stream. */
QN_INLINE void few_streamed(const qn_panel_call *q, int64_t b, const char *tiles, int n, panel_kind k)
{
    const int64_t terms = terms_of(q, k), halves = halves_of(k), stride = q->panel_bytes;
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
}

/* The products of a block of unpacked codes, its rows at a, by panel i whose tiles are at b. */
#define FEW_UNPACKED(i, a, b, terms)                                                                                   \
    do {                                                                                                               \
        _tile_loadd(6, b, 64);                                                                                         \
        for (int64_t t = 0; t < (terms); t++) {                                                                        \
            if ((terms) > 1) {                                                                                         \
                _tile_loadd(4, (a) + 2 * t * TILE_BYTES, 64);                                                          \
            }                                                                                                          \
            _tile_dpbf16ps(i, 4, 6);                                                                                   \
        }                                                                                                              \
        _tile_loadd(7, (b) + TILE_BYTES, 64);                                                                          \
        for (int64_t t = 0; t < (terms); t++) {                                                                        \
            if ((terms) > 1) {                                                                                         \
                _tile_loadd(5, (a) + (2 * t + 1) * TILE_BYTES, 64);                                                    \
            }                                                                                                          \
            _tile_dpbf16ps(i, 5, 7);                                                                                   \
        }                                                                                                              \
    } while (0)

/* The next block of panel i: its lines further on are asked for, its codes unpacked to `lines` unless NULL. */
QN_INLINE void few_unpack(const qn_panel_call *q, const char *codes, const char *further, char *lines, int64_t i,
                          panel_kind k)
{
    few_ask(further + i * q->panel_bytes, k);
    if (lines) {
        k.unpack(codes + i * q->panel_bytes, lines + i * PAIR_BYTES);
    }
}

/* Block b of n panels that were unpacked to the ring. The next block of a panel is unpacked behind the panel's
 * products, so that tiles and vectors are busy at a time. */
QN_INLINE void few_coded(const qn_panel_call *q, int64_t b, const char *codes, char *ring, const char *further, int n,
                         panel_kind k)
{
    const int64_t terms = terms_of(q, k);
    const char *const a = q->a + row_tiles(b, k, terms);
    const char *const tiles = ring + (b & 1) * FEW_PANELS * PAIR_BYTES;
    char *const lines = b + 1 < q->blocks ? ring + ((b + 1) & 1) * FEW_PANELS * PAIR_BYTES : NULL;
    if (terms == 1) {
        _tile_loadd(4, a, 64);
        _tile_loadd(5, a + TILE_BYTES, 64);
    }
    FEW_UNPACKED(0, a, tiles, terms);
    few_unpack(q, codes, further, lines, 0, k);
    if (n > 1) {
        FEW_UNPACKED(1, a, tiles + PAIR_BYTES, terms);
        few_unpack(q, codes, further, lines, 1, k);
    }
    if (n > 2) {
        FEW_UNPACKED(2, a, tiles + 2 * PAIR_BYTES, terms);
        few_unpack(q, codes, further, lines, 2, k);
        FEW_UNPACKED(3, a, tiles + 3 * PAIR_BYTES, terms);
        few_unpack(q, codes, further, lines, 3, k);
    }
}

/* sums += the part of block scale kb of n panels from p. */
QN_INLINE void add_part(const qn_panel_call *q, int64_t p, int n, int64_t kb)
{
    scale_products scales;
    multiply_scales(q, 0, q->rows, p, n, kb, 1, &scales);
    add_scaled(q, 0, 0, q->rows, p, n, 1, kb == 0, &scales, (const float *)(const void *)q->scratch);
}

/* n panels from p: 1, 2 or 4. Of unpacked codes scratch holds two blocks: one is unpacked while the products of the
 * other run. A part that scales wait for is added behind the products of the next block, when it has long left its
 * tiles. */
QN_INLINE void few_panels(const qn_panel_call *q, int64_t p, int n, panel_kind k)
{
    const int scales = has_scales(q, k);
    const int asks = k.tile == TILE_I8 || q->terms > 1; /* else the processor's own fetching is faster */
    const char *const w = q->w + p * q->panel_bytes;
    char *const ring = q->scratch + PART_BYTES;
    int64_t waits = -1; /* the block scale of the part */
    if (q->blocks == 0) {
        zero_sums(q);
        return;
    }
    for (int64_t i = 0; k.unpack && i < n; i++) {
        k.unpack(w + i * q->panel_bytes, ring + i * PAIR_BYTES);
    }
    tile_fence();
    sums_zero(2, 2);
    for (int64_t b = 0; b < q->blocks; b++) {
        const char *const further = few_ahead(q, w, b, n, k);
        if (k.unpack) {
            few_coded(q, b, w + (b + 1) * k.bytes, ring, further, n, k);
        } else {
            for (int64_t i = 0; asks && i < n; i++) {
                few_ask(further + i * q->panel_bytes, k);
            }
            few_streamed(q, b, w + b * k.bytes, n, k);
        }
        if (waits >= 0) {
            add_part(q, p, n, waits);
            waits = -1;
        }
        tile_fence();
        if (scales && ((b + 1) % SCALE_BLOCKS == 0 || b + 1 == q->blocks)) {
            few_store(q->scratch, n);
            sums_zero(2, 2);
            tile_fence();
            waits = b / SCALE_BLOCKS;
        }
    }
    if (waits >= 0) {
        add_part(q, p, n, waits);
    }
    if (!scales) {
        few_store((char *)sums_at(q, 0, p), n);
    }
}

QN_INLINE void few_rows(const qn_panel_call *q, panel_kind k)
{
    int64_t p = 0;
    tile_begin(q->rows);
    for (; p + 4 <= q->panels; p += 4) {
        few_panels(q, p, 4, k);
    }
    for (; p + 2 <= q->panels; p += 2) {
        few_panels(q, p, 2, k);
    }
    if (p < q->panels) {
        few_panels(q, p, 1, k);
    }
    tile_end();
}

/* ---- up to 32 rows: two groups of them by two panels, sums stay in tiles ---- */

#define PASS_ROWS (2 * TILE_ROWS)
#define PASS_PANELS 2

/* Tiles of sums and of rows of the second group get the lines that are left for it. */
QN_INLINE void pass_begin(int64_t rows)
{
    tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.line_bytes[t] = 64;
        c.lines[t] = (uint8_t)(t == 2 || t == 3 || t == 5 ? rows - TILE_ROWS : TILE_ROWS);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

/* Half h of a block of n panels, `stride` bytes apart; a: the block's rows. */
QN_INLINE void pass_half(const qn_panel_call *q, int64_t h, const char *a, const char *tiles, int64_t stride, int n,
                         panel_kind k)
{
    const int64_t terms = terms_of(q, k), halves = halves_of(k);
    const char *at = a + h * TILE_BYTES;
    _tile_loadd(6, tiles + h * TILE_BYTES, 64);
    if (n > 1) {
        _tile_loadd(7, tiles + stride + h * TILE_BYTES, 64);
    }
    for (int64_t t = 0; t < terms; t++, at += halves * TILE_BYTES) {
        _tile_loadd(4, at, 64);
        TILE_DOT(k.tile, 0, 4, 6);
        if (n > 1) {
            TILE_DOT(k.tile, 1, 4, 7);
        }
        _tile_loadd(5, at + q->a_stride, 64);
        TILE_DOT(k.tile, 2, 5, 6);
        if (n > 1) {
            TILE_DOT(k.tile, 3, 5, 7);
        }
    }
}

/* n panels from p, in the order and beside each other as few_panels has it. */
QN_INLINE void pass_panels(const qn_panel_call *q, int64_t p, int n, panel_kind k)
{
    const int scales = has_scales(q, k);
    const char *const w = q->w + p * q->panel_bytes;
    char *const ring = q->scratch + PART_BYTES;
    const int64_t stride = k.unpack ? PAIR_BYTES : q->panel_bytes;
    int64_t waits = -1; /* the block scale of the part */
    for (int64_t i = 0; k.unpack && i < n; i++) {
        k.unpack(w + i * q->panel_bytes, ring + i * PAIR_BYTES);
    }
    tile_fence();
    sums_zero(2, n);
    for (int64_t b = 0; b < q->blocks; b++) {
        const char *const further = few_ahead(q, w, b, n, k), *const codes = w + (b + 1) * k.bytes;
        const char *const tiles = k.unpack ? ring + (b & 1) * PASS_PANELS * PAIR_BYTES : w + b * k.bytes;
        char *const lines = k.unpack && b + 1 < q->blocks ? ring + (~b & 1) * PASS_PANELS * PAIR_BYTES : NULL;
        const char *const a = q->a + row_tiles(b, k, terms_of(q, k));
        pass_half(q, 0, a, tiles, stride, n, k);
        few_unpack(q, codes, further, lines, 0, k);
        if (halves_of(k) > 1) {
            pass_half(q, 1, a, tiles, stride, n, k);
        }
        if (n > 1) {
            few_unpack(q, codes, further, lines, 1, k);
        }
        if (waits >= 0) {
            add_part(q, p, n, waits);
            waits = -1;
        }
        tile_fence();
        if (scales && ((b + 1) % SCALE_BLOCKS == 0 || b + 1 == q->blocks)) {
            sums_turn(q->scratch, n * TILE_BYTES, NULL, 0, 2, 2, n);
            tile_fence();
            waits = b / SCALE_BLOCKS;
        }
    }
    if (waits >= 0) {
        add_part(q, p, n, waits);
    }
    if (!scales) {
        sums_turn((char *)sums_at(q, 0, p), sums_group(q), NULL, 0, 2, 2, n);
    }
}

QN_INLINE void pass_rows(const qn_panel_call *q, panel_kind k)
{
    int64_t p = 0;
    if (q->blocks == 0) {
        zero_sums(q);
        return;
    }
    pass_begin(q->rows);
    for (; p + PASS_PANELS <= q->panels; p += PASS_PANELS) {
        pass_panels(q, p, 2, k);
    }
    if (p < q->panels) {
        pass_panels(q, p, 1, k);
    }
    tile_end();
}
