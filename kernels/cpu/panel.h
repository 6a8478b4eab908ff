/* Panel kernels (kernels/common/panel.h) of the levels with columns in lanes.
 * Included once by a folder's panel_<isa>.c, after its pairs.h, which owns the
 * vectors and the unpacking of codes. A panel is PAIR_PARTS parts, of as many columns as a vector has lanes:
 *     vs       sums of a part's columns, float or int32: vs_zero, vs_load, vs_store, vs_set, vs_fma
 *     vl       a part of a line of the level's own code: vl_load, and vl_dot(code, sums, line, a), sums + line
 *              times the four bytes of a row at a: a pair of bf16 or int16, or one float
 *     vw       the weights of two steps of k of a part, as lines of the level's own code
 *     vw_unpack(code, unit, p)  pair p of the part's unit at `unit`
 *     vw_store(code, p, w)   its lines; code: the level's own
 *     vw_line(w, s)          line s of them: two of f32, one of pairs
 *     group_scales(code, block, part, out)  the block's scales of groups as floats [group][16]; block: of the part
 * and the constants PAIRS_F (the code floats are unpacked to), PAIR_I8 (int8 too, with I8_MR x I8_NR:
 * kernels/cpu/panel_i8.h),
 * PAIR_MR x PAIR_NR (the largest register tiles: rows x parts), PAIR_MR_MANY x PAIR_NR_MANY (many rows: rows x
 * panels; of codes with scales of groups, where fewer keep their sums, and of what is left of others PAIR_NR_GROUPS),
 * PAIR_KEEP (sums that stay in registers beside chains), PAIR_BLOCKS (blocks unpacked at once),
 * PAIR_FEW (rows of a tile that unpacks), FEW_NR(code, rows) (its parts), PARTS_BESIDE(code, rows, nr) (of them at
 * once), ARE_FEW(code, rows), FEW_GROUP x FEW_CHUNK(code) (panels x blocks that tiles of few rows take turns with).
 * A level may say CHAINS(code, rows), of a part beside each other where a tile unpacks without scales of groups, as
 * one chain of a row or two waits for its own sums, and AHEAD_BYTES(code), to what is prefetched beside all panels read
 * at once; 0: nothing, which is best where the processor alone keeps as many lines on their way. FAR_BYTES(code, rows),
 * of a level without CHAINS: to what the second cache is asked for, which may wait for more lines than the first; the
 * first then NEAR_BYTES ahead; 0: the first alone.
 * UNPACKS_NEXT: the level has vw_past, what unpacking parts' units in turn remembers, vw_past_none(), and
 * vw_unpack_next(code, unit, p, rows, n, past), which is vw_unpack() of part n's pairs in turn, for so many rows.
 * PAIR_AHEAD: the level has what kernels/cpu/panel_ahead.h asks for.
 * FP4_ELSEWHERE: 4-bit floats, the only codes with scales of groups, have another set; vw_unpack and group_scales need
 * not know them.
 * LOW_ALLOWED(): the level may, on this thread, unpack fp8 weights for LOW_ROWS(code) rows as its codes LOW_E4M3 and
 * LOW_E5M2, LOW_BY(code), a power of two, times what they are else. Rows are e4m3 then, so neither range nor bits
 * suffer.
 *
 * A unit is eight steps of k, four pairs, of a panel. One function, panel_tile, walks
 * the units for a constant number of rows and parts. With few rows it unpacks
 * on its way; with many it reads what was unpacked to scratch once for all
 * rows. Either way each output is one chain a group or 128 of K, which is what a block scale is for, with a chain over
 * them in call->sums: the same operations in the same order. A single chain of equal products, which all round the same
 * way, would leave the error model from K = 2048 on. */
#include "kernels/common/panel.h"
#include "kernels/cpu/ask.h"
#include "kernels/cpu/name.h"

#define PAIRS_I8 QN_PANEL_CODES /* int8 as pairs of int16: what int8 is unpacked to */
#define UNITS 8                 /* of a block */
#define CHAIN_BLOCKS (QN_PANEL_SCALE_K / QN_PANEL_K)

#ifndef CHAINS
#define CHAINS(code, rows) 1
#endif
#ifndef AHEAD_BYTES
#define AHEAD_BYTES(code) 8192
#endif
#ifndef FAR_BYTES
#define FAR_BYTES(code, rows) ((void)(rows), 0)
#endif
#define NEAR_BYTES 2048

#ifndef UNPACKS_NEXT
typedef char vw_past;
#define vw_past_none() 0
#define vw_unpack_next(code, unit, p, rows, n, past) ((void)(past), vw_unpack(code, unit, p))
#endif

#ifndef PAIR_NR_GROUPS
#define PAIR_NR_GROUPS PAIR_NR_MANY
#endif

#ifndef LOW_ALLOWED
#define IS_LOW(code) 0
#define LOW_BY(code) 1.0f
#endif

#define PART_COLS (QN_PANEL_COLS / PAIR_PARTS)
#define PART_BYTES (QN_PANEL_LINE / PAIR_PARTS)

#define UNROLL _Pragma("GCC unroll 8")

/* Rows and panels of one tile. */
typedef struct tile {
    const char *w; /* the first part; w_stride from panel to panel */
    int64_t w_stride;
    int part;      /* of its panel the first is; tiles of several begin with a whole panel */
    const char *a; /* row r at a + r * a_stride */
    int64_t a_stride;
    int64_t blocks;
    int32_t groups;      /* of a block; 0: no group scales */
    const float *scales; /* of groups, [panel][PAIR_BLOCKS][groups][16]; NULL: read from w */
    const float *sa, *sb;
    int64_t sa_stride, sb_stride;
    float *sums;
    int64_t sums_stride;
    int64_t after; /* bytes from the end of these panels to the panels read next; prefetching */
    int again;     /* the panels were read before: nothing to prefetch */
} tile;

/* ---- codes ---- */

QN_INLINE int64_t unit_bytes(const int code)
{
    switch (IS_LOW(code) ? QN_PANEL_E4M3 : code) {
    case QN_PANEL_BF16: return 256;
    case QN_PANEL_E4M3:
    case QN_PANEL_E5M2:
    case QN_PANEL_I8: return 128;
    case QN_PANEL_NVFP4:
    case QN_PANEL_MXFP4: return 64;
    case PAIRS_I8: return 256;
    default: return 512;
    }
}

QN_INLINE int64_t block_bytes(const int code)
{
    return UNITS * unit_bytes(code) + (code == QN_PANEL_NVFP4 ? 64 : (code == QN_PANEL_MXFP4 ? 32 : 0));
}

QN_INLINE int32_t groups_of(const int code)
{
    return code == QN_PANEL_NVFP4 ? 4 : (code == QN_PANEL_MXFP4 ? 2 : 0);
}

#ifdef FP4_ELSEWHERE
#define HAS_GROUPS 0
QN_INLINE void group_scales(const int code, const char *block, const int part, float *out)
{
    (void)code, (void)block, (void)part, (void)out; /* not called */
}
#else
#define HAS_GROUPS 1
#endif

/* Bytes of a pair of a row. */
QN_INLINE int64_t row_pair_bytes(const int code)
{
    return code == QN_PANEL_I8 || code == PAIRS_I8 || PAIRS_F == QN_PANEL_BF16 ? 4 : 8;
}

/* Addresses of mr rows as a few bases plus one or three strides: more would not stay in registers. */
QN_INLINE void each_row(const char **row, const int mr, const char *a, int64_t stride)
{
    int64_t triple = 3 * stride;
    __asm__("" : "+r"(triple));
    UNROLL for (int r = 0; r < mr; r++)
    {
        if (r && r % 4 == 0) {
            a += 4 * stride;
            __asm__("" : "+r"(a));
        }
        row[r] = a + (r % 4 == 3 ? triple : r % 4 * stride);
    }
}

/* ---- the tile ---- */

#define SUMS(r, n) (t->sums + (r)*t->sums_stride + (n)*PART_COLS)

/* Bytes from a tile's first part to part n. */
QN_INLINE int64_t to_part(const tile *t, const int n)
{
    return n / PAIR_PARTS * t->w_stride + n % PAIR_PARTS * PART_BYTES;
}

/* From block b, `distance` beside all panels. turn: b, were all blocks read in turn. */
QN_INLINE int64_t bytes_ahead(const int code, const int nr, const tile *t, int64_t b, int64_t turn, int64_t distance)
{
    const int64_t bytes = block_bytes(code), panels = nr < PAIR_PARTS ? 1 : nr / PAIR_PARTS;
    const int64_t to = turn + (t->again ? 0 : (distance / panels + bytes - 1) / bytes);
    return (to - b) * bytes + (t->again || to < t->blocks ? 0 : t->after);
}

QN_INLINE asked asked_at(const int code, const int mr, const int nr, const tile *t, int64_t b, int64_t turn)
{
    const int64_t far = FAR_BYTES(code, mr), near = far ? NEAR_BYTES : AHEAD_BYTES(code);
    return (asked){bytes_ahead(code, nr, t, b, turn, near), far ? bytes_ahead(code, nr, t, b, turn, far) : 0};
}

/* Units [first, last) of block b. acc[][n]: part n % nr, chain n / nr of CHAIN_BLOCKS each. */
QN_INLINE void tile_units(const int code, const int mr, const int nr, const int chains, const tile *t,
                          vs acc[PAIR_MR][PAIR_NR], int64_t b, int64_t first, int64_t last, const int prefetch,
                          asked ahead)
{
    const int64_t ub = unit_bytes(code), pb = row_pair_bytes(code);
    const int steps = (int)pb / 4; /* lines of a pair */
    const char *const block = t->w + b * block_bytes(code);
    const char *const rows = t->a + b * (UNITS * 4 * pb);
    vw_past past = vw_past_none();
    for (int64_t u = first; u < last; u++) {
        const char *const w = block + u * ub;
        const char *const a = rows + u * 4 * pb;
        const int twice = prefetch && FAR_BYTES(code, mr) > 0; /* before each line */
        if (prefetch && !twice && AHEAD_BYTES(code) > 0) {     /* a panel's lines in turn, whatever the chains */
            UNROLL for (int n = 0; n < nr; n += PAIR_PARTS)
            {
                UNROLL for (int64_t i = 0; i < chains * ub; i += QN_PANEL_LINE)
                {
                    __builtin_prefetch(w + to_part(t, n) + u * (chains - 1) * ub + i + ahead.near, 0, 3);
                }
            }
        }
        const char *row[PAIR_MR];
        each_row(row, mr, a, t->a_stride);
        if (code == PAIRS_F) {
            const char *line = w;
            __asm__("" : "+r"(line)); /* one base for all lines: nvfp4 of 64 rows takes 8 % longer without */
            UNROLL for (int l = 0; l < ub / QN_PANEL_LINE; l++)
            {
                vl v[PAIR_NR];
                UNROLL for (int n = 0; n < nr; n++)
                {
                    v[n] = vl_load(line + to_part(t, n) + l * QN_PANEL_LINE);
                }
                UNROLL for (int r = 0; r < mr; r++)
                {
                    UNROLL for (int n = 0; n < nr; n++)
                    {
                        acc[r][n] = vl_dot(code, acc[r][n], v[n], row[r] + l * 4);
                    }
                }
            }
            continue;
        }
        const int all = nr * chains;
        const int beside = PARTS_BESIDE(code, mr, all); /* parts at once; for the next ones rows are read again */
        UNROLL for (int n0 = 0; n0 < all; n0 += beside)
        {
            const char *again = a;
            __asm__("" : "+r"(again));
            each_row(row, mr, again, t->a_stride);
            UNROLL for (int p = 0; p < 4; p++)
            {
                vw v[PAIR_NR];
                UNROLL for (int n = n0; n < n0 + beside; n++)
                {
                    const char *const unit =
                        w + to_part(t, n % nr) + n / nr * CHAIN_BLOCKS * block_bytes(code);
                    if (twice && p * ub / 4 % QN_PANEL_LINE == 0) {
                        ask_twice(unit + p * ub / 4, ahead);
                    }
                    v[n] = vw_unpack_next(code, unit, p, mr, n, &past);
                }
                UNROLL for (int r = 0; r < mr; r++)
                {
                    UNROLL for (int s = 0; s < steps; s++)
                    {
                        UNROLL for (int n = n0; n < n0 + beside; n++)
                        {
                            const int64_t chain = n / nr * CHAIN_BLOCKS * UNITS * 4 * pb;
                            acc[r][n] = vl_dot(code, acc[r][n], vw_line(v[n], s), row[r] + chain + p * pb + 4 * s);
                        }
                    }
                }
            }
        }
    }
}

#define EACH_SUM(statement)                                                                                            \
    UNROLL for (int r = 0; r < mr; r++)                                                                                \
    {                                                                                                                  \
        UNROLL for (int n = 0; n < nr; n++)                                                                            \
        {                                                                                                              \
            statement;                                                                                                 \
        }                                                                                                              \
    }

/* Chains beside each other, each of `blocks` blocks, from block b on. */
QN_INLINE void tile_chains(const int code, const int mr, const int nr, const int chains, const int prefetch,
                           const tile *t, int64_t b, int64_t blocks)
{
    const int exact = code == QN_PANEL_I8 || code == PAIRS_I8; /* integers */
    vs acc[PAIR_MR][PAIR_NR];
    UNROLL for (int c = 0; c < chains; c++)
    {
        EACH_SUM(acc[r][c * nr + n] = exact ? vs_load(SUMS(r, n)) : vs_zero());
    }
    for (int64_t i = 0; i < blocks; i++) {
        tile_units(code, mr, nr, chains, t, acc, b + i, 0, UNITS, prefetch,
                   asked_at(code, mr, nr, t, b + i, b + i * chains));
    }
    if (exact) {
        EACH_SUM(vs_store(SUMS(r, n), acc[r][n]));
        return;
    }
    UNROLL for (int c = 0; c < chains; c++)
    {
        const int64_t i = b / CHAIN_BLOCKS + c;
        if (IS_LOW(code)) {
            EACH_SUM(acc[r][c * nr + n] = vs_fma(acc[r][c * nr + n], vs_set(1.0f / LOW_BY(code)), vs_zero()));
        }
        EACH_SUM(const vs s =
                     vs_set(t->sa ? t->sa[r * t->sa_stride + i] * t->sb[n / PAIR_PARTS * t->sb_stride + i] : 1.0f);
                 vs_store(SUMS(r, n), vs_fma(acc[r][c * nr + n], s, vs_load(SUMS(r, n)))));
    }
}

/* call->sums continue with blocks [0, t->blocks) of mr rows and nr panels. */
QN_INLINE void panel_tile(const int code, const int mr, const int nr, const int prefetch, const tile *t)
{
    if (HAS_GROUPS && t->groups) {
        vs acc[PAIR_MR][PAIR_NR];
        const int keep = mr * nr <= PAIR_KEEP; /* in registers, where there are so many */
        vs kept[PAIR_MR][PAIR_NR];
        if (keep) {
            EACH_SUM(kept[r][n] = vs_load(SUMS(r, n)));
        }
        const int64_t units = UNITS / t->groups;
        _Alignas(64) float local[PAIR_NR][4 * QN_PANEL_COLS];
        const int64_t panel_scales = PAIR_BLOCKS * t->groups * QN_PANEL_COLS;
        for (int64_t b = 0; b < t->blocks; b++) {
            const asked ahead = asked_at(code, mr, nr, t, b, b);
            if (!t->scales) {
                UNROLL for (int n = 0; n < nr; n++)
                {
                    group_scales(code, t->w + to_part(t, n) + b * block_bytes(code), t->part + n % PAIR_PARTS,
                                 local[n]);
                }
            }
            for (int64_t g = 0; g < t->groups; g++) {
                EACH_SUM(acc[r][n] = vs_zero());
                tile_units(code, mr, nr, 1, t, acc, b, g * units, (g + 1) * units, prefetch, ahead);
                UNROLL for (int n = 0; n < nr; n++)
                {
                    const float *const from = t->scales ? t->scales + n / PAIR_PARTS * panel_scales +
                                                              b * t->groups * QN_PANEL_COLS + n % PAIR_PARTS * PART_COLS
                                                        : local[n];
                    const vs s = vs_load(from + g * QN_PANEL_COLS);
                    UNROLL for (int r = 0; r < mr; r++)
                    {
                        if (keep) {
                            kept[r][n] = vs_fma(acc[r][n], s, kept[r][n]);
                        } else {
                            vs_store(SUMS(r, n), vs_fma(acc[r][n], s, vs_load(SUMS(r, n))));
                        }
                    }
                }
            }
        }
        if (keep) {
            EACH_SUM(vs_store(SUMS(r, n), kept[r][n]));
        }
        return;
    }
    const int exact = code == QN_PANEL_I8 || code == PAIRS_I8;
    const int64_t step = exact ? t->blocks : CHAIN_BLOCKS;
    int64_t b = 0;
    if (CHAINS(code, mr) > 1) {
        for (; b + CHAINS(code, mr) * step <= t->blocks; b += CHAINS(code, mr) * step) {
            tile_chains(code, mr, nr, CHAINS(code, mr), prefetch, t, b, step);
        }
    }
    for (; b < t->blocks; b += step) {
        tile_chains(code, mr, nr, 1, prefetch, t, b, b + step < t->blocks ? step : t->blocks - b);
    }
}

/* ---- calls ---- */

/* The tile at row r and panel p of a call, from block b on. */
QN_INLINE tile tile_at(const qn_panel_call *call, const int code, int64_t r, int64_t p, int64_t b, int64_t blocks)
{
    const int64_t i = b * QN_PANEL_K / QN_PANEL_SCALE_K;
    return (tile){.w = call->w + p * call->panel_bytes + b * block_bytes(code),
                  .w_stride = call->panel_bytes,
                  .a = call->a + r * call->a_stride + b * (UNITS * 4 * row_pair_bytes(code)),
                  .a_stride = call->a_stride,
                  .blocks = blocks,
                  .groups = groups_of(code),
                  .sa = call->sa ? call->sa + r * call->sa_stride + i : NULL,
                  .sb = call->sa ? call->sb + p * call->sb_stride + i : NULL,
                  .sa_stride = call->sa_stride,
                  .sb_stride = call->sb_stride,
                  .sums = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS,
                  .sums_stride = call->sums_stride};
}

QN_INLINE void zero_sums(const qn_panel_call *call)
{
    for (int64_t r = 0; r < call->rows; r++) {
        for (int64_t p = 0; p < call->panels * PAIR_PARTS; p++) {
            vs_store((float *)call->sums + r * call->sums_stride + p * PART_COLS, vs_zero());
        }
    }
}

/* mr rows times the tile's first panel and those after it, nr parts at a time, unpacked on the way. */
QN_INLINE void few_panels(const int code, const int mr, const int nr, tile t, int64_t panels)
{
    for (int64_t parts = panels * PAIR_PARTS; parts > 0;) {
        const int64_t n = parts >= nr ? nr : (parts >= 2 ? 2 : 1);
        if (n == nr) {
            panel_tile(code, mr, nr, 1, &t);
        } else if (n == 2) {
            panel_tile(code, mr, nr > 2 ? 2 : 1, 1, &t); /* dead where nr is no more than that */
        } else {
            panel_tile(code, mr, 1, 1, &t);
        }
        const int64_t next = t.part + n, passed = next / PAIR_PARTS;
        t.w += passed * t.w_stride + (next % PAIR_PARTS - t.part) * PART_BYTES;
        t.part = (int)(next % PAIR_PARTS);
        t.sums += n * PART_COLS;
        t.sb = t.sb ? t.sb + passed * t.sb_stride : NULL;
        parts -= n;
    }
}

#define FEW(mr)                                                                                                        \
    case mr:                                                                                                           \
        if ((mr) <= QN_PANEL_ALONE && alone) {                                                                         \
            few_panels(code, (mr) <= QN_PANEL_ALONE ? (mr) : 1, PAIR_PARTS, *t, panels);                       \
        } else {                                                                                                       \
            few_panels(code, (mr) <= PAIR_FEW ? (mr) : 1, FEW_NR(code, mr), *t, panels);                       \
        }                                                                                                              \
        break

/* alone: one panel after the other, of up to QN_PANEL_ALONE rows. */
QN_INLINE void few_rows(const int code, const tile *t, int64_t rows, int64_t panels, int alone)
{
    switch (rows) {
        FEW(1);
        FEW(2);
        FEW(3);
        FEW(4);
        FEW(5);
        FEW(6);
        FEW(7);
        FEW(8);
    }
}

#undef FEW

typedef void (*few_fn)(const tile *t, int64_t rows, int64_t panels, int alone);

/* Few rows: tiles of nearly the same number of them. One tile of whole panels streams their whole length; else tiles
 * take turns with a chunk of FEW_GROUP panels while it is in the first cache. */
QN_INLINE void few(const int code, const qn_panel_call *call, few_fn run)
{
    const int64_t tiles = (call->rows + PAIR_FEW - 1) / PAIR_FEW;
    const int nr = call->alone ? PAIR_PARTS : FEW_NR(code, call->rows);
    const int whole = tiles == 1 && nr >= PAIR_PARTS;
    const int64_t group = whole ? call->panels : FEW_GROUP, chunk = whole ? call->blocks : FEW_CHUNK(code);
    const int64_t beside = whole ? nr / PAIR_PARTS : group;
    for (int64_t p = 0; p < call->panels; p += group) {
        const int64_t panels = call->panels - p < group ? call->panels - p : group;
        for (int64_t b = 0; b < call->blocks; b += chunk) {
            const int64_t blocks = call->blocks - b < chunk ? call->blocks - b : chunk;
            for (int64_t i = 0, r = 0; i < tiles; i++) {
                const int64_t rows = (call->rows - r) / (tiles - i);
                tile t = tile_at(call, code, r, p, b, blocks);
                t.again = i > 0;
                t.after = b + blocks < call->blocks ? 0 : beside * call->panel_bytes - call->blocks * block_bytes(code);
                run(&t, rows, panels, call->alone);
                r += rows;
            }
        }
    }
}

/* Rows [0, rows) of the tile's panels, in tiles of nearly the same number of rows. */
QN_INLINE void tile_rows(const int code, const int nr, tile t, int64_t rows)
{
    for (int64_t tiles = (rows + PAIR_MR_MANY - 1) / PAIR_MR_MANY; tiles > 0; tiles--) {
        const int64_t mr = (rows + tiles - 1) / tiles;
        switch (mr) {
#define MANY(mr)                                                                                                       \
    case mr: panel_tile(code, (mr) <= PAIR_MR_MANY ? (mr) : 1, nr, 0, &t); break
            MANY(1);
            MANY(2);
            MANY(3);
            MANY(4);
            MANY(5);
            MANY(6);
#undef MANY
        }
        t.a += mr * t.a_stride;
        t.sums += mr * t.sums_stride;
        t.sa = t.sa ? t.sa + mr * t.sa_stride : NULL;
        rows -= mr;
    }
}

/* The tiles over unpacked pairs, so many panels: one function for all codes. */
#define TILE_ROWS(name, code, panels)                                                                                  \
    static __attribute__((noinline)) void name(const tile *t, int64_t rows)                                            \
    {                                                                                                                  \
        tile_rows(code, (panels)*PAIR_PARTS, *t, rows);                                                                \
    }

TILE_ROWS(rows_f, PAIRS_F, PAIR_NR_MANY)
TILE_ROWS(rows_f_1, PAIRS_F, 1)
#if PAIR_NR_GROUPS != PAIR_NR_MANY
TILE_ROWS(rows_f_few, PAIRS_F, PAIR_NR_GROUPS)
#else
#define rows_f_few rows_f
#endif

/* Unpacked pairs of a panel in scratch; the scales of groups follow those of all panels. */
#define LINES_BYTES(code) (PAIR_BLOCKS * block_bytes(code))
#define PANEL_SCRATCH (PAIR_NR_MANY * PAIR_BLOCKS * (4096 + 4 * QN_PANEL_COLS * (int)sizeof(float)))

QN_INLINE void unpack_panel(const int code, const int to, const char *w, int64_t blocks, char *lines, float *scales)
{
    const int64_t ub = unit_bytes(code), tb = unit_bytes(to);
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t u = 0; u < UNITS; u++) {
            const char *const unit = w + b * block_bytes(code) + u * ub;
            UNROLL for (int64_t i = 0; i < ub; i += QN_PANEL_LINE)
            {
                __builtin_prefetch(unit + PAIR_BLOCKS * block_bytes(code) + i, 0, 2);
            }
            UNROLL for (int p = 0; p < 4; p++)
            {
                UNROLL for (int h = 0; h < PAIR_PARTS; h++)
                {
                    char *const line = lines + (b * UNITS + u) * tb + p * (tb / 4);
                    vw_store(to, line + h * PART_BYTES, vw_unpack(code, unit + h * PART_BYTES, p));
                }
            }
        }
        if (HAS_GROUPS && groups_of(code)) {
            UNROLL for (int h = 0; h < PAIR_PARTS; h++)
            {
                group_scales(code, w + b * block_bytes(code) + h * PART_BYTES, h,
                             scales + b * groups_of(code) * QN_PANEL_COLS + h * PART_COLS);
            }
        }
    }
}

/* Panels of the next tiles of many rows. */
QN_INLINE int64_t many_panels(const int code, int64_t left)
{
    const int64_t most = groups_of(code) ? PAIR_NR_GROUPS : PAIR_NR_MANY;
    return left >= most ? most : (left >= PAIR_NR_GROUPS ? PAIR_NR_GROUPS : 1);
}

/* Many rows: PAIR_BLOCKS blocks of some panels at a time, for all rows. */
QN_INLINE void many(const int code, const qn_panel_call *call)
{
    float *const scales = (float *)(void *)(call->scratch + PAIR_NR_MANY * LINES_BYTES(PAIRS_F));
    for (int64_t b = 0; b < call->blocks; b += PAIR_BLOCKS) {
        const int64_t blocks = call->blocks - b < PAIR_BLOCKS ? call->blocks - b : PAIR_BLOCKS;
        for (int64_t p = 0; p < call->panels;) {
            const int64_t panels = many_panels(code, call->panels - p);
            tile t = tile_at(call, code, 0, p, b, blocks);
            if (code != PAIRS_F) {
                for (int64_t n = 0; n < panels; n++) {
                    unpack_panel(code, PAIRS_F, t.w + n * t.w_stride, blocks, call->scratch + n * LINES_BYTES(PAIRS_F),
                                 scales + n * PAIR_BLOCKS * groups_of(code) * QN_PANEL_COLS);
                }
                t.w = call->scratch;
                t.w_stride = LINES_BYTES(PAIRS_F);
                t.scales = scales;
            }
            (panels == PAIR_NR_MANY ? rows_f : (panels == PAIR_NR_GROUPS ? rows_f_few : rows_f_1))(&t, call->rows);
            p += panels;
        }
    }
}

#ifdef PAIR_AHEAD
#include "kernels/cpu/panel_ahead.h"
#else
#define IS_AHEAD(code, rows) 0
QN_INLINE void ahead(const int code, const qn_panel_call *call)
{
    (void)code;
    (void)call;
}
#endif

#define FEW_OF(name, code)                                                                                             \
    static __attribute__((noinline)) void name(const tile *t, int64_t rows, int64_t panels, int alone)                 \
    {                                                                                                                  \
        few_rows(code, t, rows, panels, alone);                                                                \
    }

#define PANEL_MM_BY(name, code, few_of_rows)                                                                           \
    static void name(const qn_panel_call *call)                                                                        \
    {                                                                                                                  \
        zero_sums(call);                                                                                               \
        if (IS_AHEAD(code, call->rows)) {                                                                              \
            ahead(code, call);                                                                                         \
        } else if (ARE_FEW(code, call->rows)) {                                                                        \
            few(code, call, few_of_rows);                                                                              \
        } else {                                                                                                       \
            many(code, call);                                                                                          \
        }                                                                                                              \
    }

#define PANEL_MM(name, code)                                                                                           \
    FEW_OF(name##_few, code)                                                                                           \
    PANEL_MM_BY(name, code, name##_few)

/* The codes of 8 bits, whose panels without many subnormal codes may be unpacked lower. */
#ifdef LOW_ALLOWED
QN_INLINE int may_be_low(const int code, const qn_panel_call *call)
{
    if (call->rows > LOW_ROWS(code)) {
        return 0;
    }
    int flags = 0;
    for (int64_t p = 0; p < call->panels; p++) {
        flags |= call->flags[p];
    }
    return !(flags & QN_PANEL_SUBNORMAL) && LOW_ALLOWED();
}

#define PANEL_MM_F8(name, type)                                                                                        \
    FEW_OF(name##_few, QN_PANEL_##type)                                                                                \
    FEW_OF(name##_low, LOW_##type)                                                                                     \
    PANEL_MM_BY(name, QN_PANEL_##type, may_be_low(QN_PANEL_##type, call) ? name##_low : name##_few)
#else
#define PANEL_MM_F8(name, type) PANEL_MM(name, QN_PANEL_##type)
#endif

#if PAIR_I8
#include "kernels/cpu/panel_i8.h"
#endif
