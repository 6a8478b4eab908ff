/* Panel kernels of the codes of groups, level amx: tiles of bf16 that hold integers.
 *
 * Rows are the digits that the other levels take, as terms of bf16 (qn_panel_places), weights code minus middle. The
 * sums of a tile instruction start at 0, and those of sixteen or 32 products of digits are exact in f32; where they
 * meet the sums of the higher digits they are rounded once. So three instructions, highest digits first, leave in a
 * tile what fma(high, 256, low) of kernels/cpu/panel_groups.h is, bit for bit, and what follows here is what follows
 * there. That is why the levels agree, and why few rows may go to kernels of byte dots.
 *
 * A step is the products of a group by sixteen rows and columns, a pair of steps 64 or 32 elements of K. Tiles keep
 * their unit busy while the sums of the pair before leave for memory and those of the pair before that are scaled and
 * added to sums that stay in registers as long as a visit, a run of pairs of the same rows and columns, takes.
 *
 * Many rows: a range of K of all panels is unpacked; sixteen rows of it stay in the first cache while panels pass by.
 * Up to sixteen rows: panel by panel along K, the next pair unpacked behind the products of this one. */
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA amx
#define QN_SHORT_PERMUTES /* a permute of two registers is three operations on these processors */
#include "kernels/cpu/avx512vnni/group_floats.h"

#include "kernels/cpu/amx/tile.h"
#include "kernels/cpu/amx/unpack_groups.h"
#include "kernels/cpu/group_affine.h"

#define HALF_K (QN_PANEL_K / 2)
#define HALF_ROWS (3 * TILE_BYTES)              /* tiles of rows of 32 elements of K */
#define BLOCK_ROWS (2 * HALF_ROWS + TILE_BYTES) /* the last: a line of scale and sums a row */
#define FEW_ROWS 4                              /* byte dots are faster */
#define MANY_ROWS 256                           /* of a call: each row passes by for so many panels */
#define MANY_PANELS 64
#define RANGE_BLOCKS 4                                /* of K: rows of so many stay in the first cache */
#define AHEAD 4096                                    /* bytes of codes of few rows */
#define WAITING 8                                     /* pairs in the ring */
#define UNPACK_AHEAD 5                                /* pairs of few rows */
#define STEP_AFFINE (2 * QN_PANEL_LINE)               /* scales, offsets */
#define BLOCK_MOST (2 * TILE_BYTES + 4 * STEP_AFFINE) /* of a block that is unpacked */
#define UNPACKED_AT (WAITING * 2 * TILE_BYTES)        /* in scratch, behind the tiles that wait */
#define UNPACKED_BYTES (MANY_PANELS * RANGE_BLOCKS * BLOCK_MOST)

#define ROWS_UNROLL _Pragma("GCC unroll 16")

_Static_assert(UNPACK_AHEAD + 3 <= WAITING, "scales of pairs whose sums wait stay");
_Static_assert(sizeof(qn_panel_places) * TILE_ROWS == BLOCK_ROWS, "rows of a block as tiles");

/* ---- rows ---- */

/* Sixteen bf16 numbers a and b, exact as floats, in the order of qn_panel_places. */
QN_INLINE __m512i places_of(__m512i a, __m512i b)
{
    uint16_t order[32]; /* upper words; from 32 on those of b */
    for (int i = 0; i < 32; i++) {
        const int k = i / 4 * 4 + (i % 4 == 1 ? 2 : (i % 4 == 2 ? 1 : i % 4));
        order[i] = (uint16_t)(k * 2 + 1);
    }
    const __m512 x = _mm512_cvtepi32_ps(a), y = _mm512_cvtepi32_ps(b);
    return _mm512_permutex2var_epi16(_mm512_castps_si512(x), _mm512_loadu_si512(order), _mm512_castps_si512(y));
}

static void block_places(const float *x, int group, char *to)
{
    __m512 v[4];
    __m512i most = _mm512_setzero_si512();
    float rest[16] = {0};
    for (int i = 0; i < 4; i++) {
        v[i] = _mm512_loadu_ps(x + 16 * i);
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(v[i]), _mm512_set1_epi32(0x7fffffff)));
    }
    const int32_t top = _mm512_reduce_max_epi32(most);
    memset(to, 0, sizeof(qn_panel_places));
    char *const last = to + offsetof(qn_panel_places, scale);
    if (top == 0) {
        return;
    }
    if (top >= 0x7f800000) {
        const uint32_t nan = 0x7fc00000;
        memcpy(last, &nan, sizeof nan);
        return;
    }
    /* as kernels/cpu/panel_groups.h has it */
    const int32_t exponent = top >> 23 < 47 ? 47 : top >> 23;
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32((127 + 21 + 127 - exponent) << 23));
    const int32_t down = (exponent - 21) << 23;
    memcpy(rest, &down, sizeof down);
    __m512i n[4], place[3][4];
    for (int i = 0; i < 4; i++) {
        const __m512 magic = _mm512_set1_ps(0x1.8p23f);
        n[i] =
            _mm512_sub_epi32(_mm512_castps_si512(_mm512_fmadd_ps(v[i], factor, magic)), _mm512_set1_epi32(0x4b400000));
        const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(n[i], 24), 24);
        const __m512i upper = _mm512_sub_epi32(n[i], low);
        place[1][i] = _mm512_srai_epi32(_mm512_slli_epi32(upper, 16), 16);
        place[0][i] = _mm512_sub_epi32(upper, place[1][i]);
        place[2][i] = low;
    }
    for (int h = 0; h < 2; h++) {
        for (int t = 0; t < 3; t++) {
            _mm512_storeu_si512(to + (h * 3 + t) * QN_PANEL_LINE, places_of(place[t][2 * h], place[t][2 * h + 1]));
        }
    }
    for (int i = 0; i < 4; i++) {
        const int32_t sum = _mm512_reduce_add_epi32(n[i]);
        if (group == 16) {
            rest[1 + i] = (float)sum;
        } else if (i % 2) {
            rest[1 + i / 2] = (float)(sum + _mm512_reduce_add_epi32(n[i - 1]));
        }
    }
    memcpy(last, rest, sizeof rest);
}

static void row_places(const float *x, int64_t blocks, const qn_panel_rounding *how, void *out)
{
    const int group = qn_panel_group_code_of((int)how->code).group;
    for (int64_t b = 0; b < blocks; b++) {
        block_places(x + b * QN_PANEL_K, group, (char *)out + b * (int64_t)sizeof(qn_panel_places));
    }
}

/* ---- pairs of steps ---- */

/* Pairs of a block, and bytes of one that is unpacked: tiles, then scales and offsets of each step. */
QN_INLINE int64_t pairs_of(const int code)
{
    return HALF_K / qn_panel_group_code_of(code).group;
}

QN_INLINE int64_t step_tile(const int code)
{
    return qn_panel_group_code_of(code).group * QN_PANEL_COLS * 2;
}

QN_INLINE int64_t pair_bytes(const int code)
{
    return 2 * (step_tile(code) + STEP_AFFINE);
}

/* Pair u of a panel. part: its first or second half alone. */
QN_INLINE void unpack_part(const int code, const group_tables *t, const char *panel, int64_t u, const int part,
                           char *to)
{
    const int64_t of = pairs_of(code), inner = u % of;
    const char *const block = panel + u / of * qn_panel_group_bytes(code);
    char *const affine = to + 2 * step_tile(code) + part * STEP_AFFINE;
    const group_affine a = group_affine_of(code, block, inner * 2 + part, 0);
    _mm512_store_ps(affine, a.scale);
    _mm512_store_ps(affine + QN_PANEL_LINE, a.offset);
    if (of == 1) {
        group_lines(code, t, block, part, 0, 4, to + part * TILE_BYTES);
    } else {
        group_lines(code, t, block, inner, 2 * part, 2 * part + 2, to);
    }
}

/* Rows and weights of the products of a pair. */
typedef struct pair {
    const char *a, *b;
} pair;

/* A pair whose sums are still to be added. */
typedef struct waiting {
    const char *lines; /* of the rows' block: scale, sums of groups */
    const float *affine;
    float *sums;
    int32_t group;            /* of the first step in its block */
    int8_t zero, first, last; /* of a visit; zero: sums begin at 0 */
} waiting;

/* Products of a step in tile i. Rows stay in the first cache, weights pass it by. */
#define STEP(i, rows, weights)                                                                                         \
    do {                                                                                                               \
        _tile_zero(i);                                                                                                 \
        _tile_stream_loadd(7, weights, 64);                                                                            \
        _tile_loadd(4, rows, 64);                                                                                      \
        _tile_dpbf16ps(i, 4, 7);                                                                                       \
        _tile_loadd(4, (rows) + TILE_BYTES, 64);                                                                       \
        _tile_dpbf16ps(i, 4, 7);                                                                                       \
        _tile_loadd(4, (rows) + 2 * TILE_BYTES, 64);                                                                   \
        _tile_dpbf16ps(i, 4, 7);                                                                                       \
    } while (0)

QN_INLINE const char *second_rows(const int code, const char *rows)
{
    return rows + (pairs_of(code) == 1 ? HALF_ROWS : QN_PANEL_LINE / 2);
}

/* Scales and adds the sums of a step. */
QN_INLINE void add_step(const int code, const int rows, const waiting *w, const int step, const char *tile,
                        __m512 sums[TILE_ROWS])
{
    const float *const affine = w->affine + step * STEP_AFFINE / 4;
    const __m512 scale = _mm512_load_ps(affine), offset = _mm512_load_ps(affine + QN_PANEL_COLS);
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        const float *const line = (const float *)(const void *)(w->lines + r * QN_PANEL_LINE);
        __m512 part = _mm512_mul_ps(_mm512_load_ps(tile + r * QN_PANEL_LINE), scale);
        if (qn_panel_group_code_of(code).minima) {
            part = _mm512_fmadd_ps(_mm512_set1_ps(line[1 + w->group + step]), offset, part);
        }
        sums[r] = _mm512_fmadd_ps(part, _mm512_set1_ps(line[0]), sums[r]);
    }
}

QN_INLINE void sums_take(const int rows, const waiting *w, __m512 sums[TILE_ROWS])
{
    if (!w->first) {
        return;
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        sums[r] = w->zero ? _mm512_setzero_ps() : _mm512_load_ps(w->sums + r * QN_PANEL_COLS);
    }
}

QN_INLINE void sums_leave(const int rows, const waiting *w, const __m512 sums[TILE_ROWS])
{
    if (!w->last) {
        return;
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        _mm512_store_ps(w->sums + r * QN_PANEL_COLS, sums[r]);
    }
}

QN_INLINE char *waiting_tiles(const qn_panel_call *q, int64_t t)
{
    return q->scratch + t % WAITING * 2 * TILE_BYTES;
}

/* The ring: pair t is multiplied, the sums of t - 1 leave their tiles, those of t - 2 are added. */
typedef struct ring {
    waiting w[WAITING];
    int64_t t;
} ring;

static void ring_begin(ring *o, const qn_panel_call *q)
{
    for (int i = 0; i < WAITING; i++) { /* before the first pair: added to nothing */
        o->w[i] = (waiting){.lines = q->a, .affine = (const float *)(const void *)(q->scratch + UNPACKED_AT)};
    }
    o->t = WAITING;
}

/* Tiles i and j are this pair's, k and l of the one before. */
#define TURN(i, j, k, l)                                                                                               \
    do {                                                                                                               \
        STEP(i, p.a, p.b);                                                                                             \
        _tile_stored(k, leaving, 64);                                                                                  \
        tile_fence();                                                                                                  \
        add_step(code, rows, w, 0, added, sums);                                                                       \
        if (next) {                                                                                                    \
            unpack_part(code, tables, next, u, 0, to);                                                                 \
        }                                                                                                              \
        tile_fence();                                                                                                  \
        STEP(j, second_rows(code, p.a), p.b + step_tile(code));                                                        \
        _tile_stored(l, leaving + TILE_BYTES, 64);                                                                     \
        tile_fence();                                                                                                  \
        add_step(code, rows, w, 1, added + TILE_BYTES, sums);                                                          \
        if (next) {                                                                                                    \
            unpack_part(code, tables, next, u, 1, to);                                                                 \
        }                                                                                                              \
        tile_fence();                                                                                                  \
    } while (0)

/* Pair u of panel `next` is unpacked to `to` on the way, unless NULL. */
QN_INLINE void turn(const int code, const int rows, const qn_panel_call *q, ring *o, pair p, const group_tables *tables,
                    const char *next, int64_t u, char *to, __m512 sums[TILE_ROWS])
{
    const waiting *const w = &o->w[(o->t - 2) % WAITING];
    char *const leaving = waiting_tiles(q, o->t - 1);
    const char *const added = waiting_tiles(q, o->t - 2);
    sums_take(rows, w, sums);
    if (o->t % 2) {
        TURN(2, 3, 0, 1);
    } else {
        TURN(0, 1, 2, 3);
    }
    sums_leave(rows, w, sums);
    o->t++;
}

/* What is left when the last pair is multiplied. */
QN_INLINE void ring_end(const int code, const int rows, const qn_panel_call *q, ring *o, __m512 sums[TILE_ROWS])
{
    char *const leaving = waiting_tiles(q, o->t - 1);
    if (o->t % 2) {
        _tile_stored(0, leaving, 64);
        _tile_stored(1, leaving + TILE_BYTES, 64);
    } else {
        _tile_stored(2, leaving, 64);
        _tile_stored(3, leaving + TILE_BYTES, 64);
    }
    tile_fence();
    for (int64_t t = o->t - 2; t < o->t; t++) {
        const waiting *const w = &o->w[t % WAITING];
        sums_take(rows, w, sums);
        add_step(code, rows, w, 0, waiting_tiles(q, t), sums);
        add_step(code, rows, w, 1, waiting_tiles(q, t) + TILE_BYTES, sums);
        sums_leave(rows, w, sums);
    }
}

/* Sums and rows have `rows` lines, weights those of half a group. */
QN_INLINE void groups_begin(int64_t rows, const int code)
{
    const int group = qn_panel_group_code_of(code).group;
    tile_config c = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        c.line_bytes[t] = (uint16_t)(t >= 4 && t < 7 ? 2 * group : 64);
        c.lines[t] = (uint8_t)(t < 7 ? rows : group / 2);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

/* Rows' tiles of pair u of K, and the lines behind those of its block. */
QN_INLINE const char *rows_of_pair(const int code, const char *a, int64_t u)
{
    return a + u / pairs_of(code) * BLOCK_ROWS + u % pairs_of(code) * HALF_ROWS;
}

QN_INLINE const char *lines_of_pair(const int code, const char *a, int64_t u)
{
    return a + u / pairs_of(code) * BLOCK_ROWS + 2 * HALF_ROWS;
}

/* ---- up to 16 rows ---- */

/* The pair that is unpacked next, on its way through the panels. */
typedef struct ahead {
    const char *panel; /* NULL: behind the last */
    int64_t p, u;
} ahead;

QN_INLINE void ahead_step(ahead *o, const qn_panel_call *q, int64_t pairs)
{
    if (++o->u == pairs) {
        o->u = 0;
        o->panel = ++o->p < q->panels ? o->panel + q->panel_bytes : NULL;
    }
}

/* UNPACK_AHEAD pairs are unpacked before their turn: a tile waits for lines that are still on their way to the cache.
 */
QN_INLINE void few_groups(const int code, const int rows, const qn_panel_call *q, const group_tables *tables)
{
    const int64_t pairs = q->blocks * pairs_of(code), bytes = pair_bytes(code), block = qn_panel_group_bytes(code);
    char *const unpacked = q->scratch + UNPACKED_AT;
    ahead next = {.panel = q->w};
    __m512 sums[TILE_ROWS];
    ring o;
    ring_begin(&o, q);
    for (int r = 0; r < TILE_ROWS; r++) {
        sums[r] = _mm512_setzero_ps();
    }
    for (int i = 0; i < UNPACK_AHEAD && next.panel; i++) {
        char *const to = unpacked + (o.t + i) % WAITING * bytes;
        unpack_part(code, tables, next.panel, next.u, 0, to);
        unpack_part(code, tables, next.panel, next.u, 1, to);
        ahead_step(&next, q, pairs);
    }
    tile_fence();
    groups_begin(q->rows, code);
    for (int64_t p = 0; p < q->panels; p++) {
        const char *const panel = q->w + p * q->panel_bytes;
        for (int64_t u = 0; u < pairs; u++) {
            const char *const b = unpacked + o.t % WAITING * bytes;
            const char *const further = panel + u / pairs_of(code) * block + AHEAD;
            for (int64_t i = 0; u % pairs_of(code) == 0 && i < block; i += QN_PANEL_LINE) {
                _mm_prefetch(further + i, _MM_HINT_T0);
            }
            o.w[o.t % WAITING] = (waiting){.lines = lines_of_pair(code, q->a, u),
                                           .affine = (const float *)(const void *)(b + 2 * step_tile(code)),
                                           .sums = (float *)q->sums + p * (TILE_BYTES / 4),
                                           .group = (int32_t)(u % pairs_of(code) * 2),
                                           .zero = 1,
                                           .first = u == 0,
                                           .last = u + 1 == pairs};
            turn(code, rows, q, &o, (pair){rows_of_pair(code, q->a, u), b}, tables, next.panel, next.u,
                 unpacked + (o.t + UNPACK_AHEAD) % WAITING * bytes, sums);
            if (next.panel) {
                ahead_step(&next, q, pairs);
            }
        }
    }
    ring_end(code, rows, q, &o, sums);
    tile_end();
}

/* ---- many rows ---- */

/* Codes of a range of all panels. */
QN_INLINE void unpack_range(const int code, const qn_panel_call *q, const group_tables *tables, int64_t from,
                            int64_t pairs)
{
    char *to = q->scratch + UNPACKED_AT;
    for (int64_t p = 0; p < q->panels; p++) {
        for (int64_t u = 0; u < pairs; u++, to += pair_bytes(code)) {
            unpack_part(code, tables, q->w + p * q->panel_bytes, from + u, 0, to);
            unpack_part(code, tables, q->w + p * q->panel_bytes, from + u, 1, to);
        }
    }
    tile_fence();
}

QN_INLINE void ask(const char *at, int64_t bytes, int64_t i, int64_t of)
{
    const int64_t lines = bytes / QN_PANEL_LINE, last = (i + 1) * lines / of;
    for (int64_t l = i * lines / of; l < last; l++) {
        _mm_prefetch(at + l * QN_PANEL_LINE, _MM_HINT_T1);
    }
}

/* What the next range of K needs of a panel and of sixteen rows, a share a visit. */
QN_INLINE void ask_ahead(const int code, const qn_panel_call *q, int64_t block, int64_t g, int64_t p)
{
    const int64_t groups = (q->rows + TILE_ROWS - 1) / TILE_ROWS, rest = q->blocks - block;
    const int64_t blocks = rest < RANGE_BLOCKS ? rest : RANGE_BLOCKS, bytes = qn_panel_group_bytes(code);
    if (blocks > 0) {
        ask(q->w + p * q->panel_bytes + block * bytes, blocks * bytes, g, groups);
        ask(q->a + g * q->a_stride + block * BLOCK_ROWS, blocks * BLOCK_ROWS, p, q->panels);
    }
}

QN_INLINE void many_groups(const int code, const qn_panel_call *q, const group_tables *tables)
{
    const int64_t of = pairs_of(code), all = q->blocks * of;
    const int64_t groups = (q->rows + TILE_ROWS - 1) / TILE_ROWS;
    __m512 sums[TILE_ROWS];
    groups_begin(TILE_ROWS, code);
    for (int64_t from = 0; from < all; from += RANGE_BLOCKS * of) {
        const int64_t pairs = all - from < RANGE_BLOCKS * of ? all - from : RANGE_BLOCKS * of;
        ring o;
        unpack_range(code, q, tables, from, pairs);
        ring_begin(&o, q);
        for (int r = 0; r < TILE_ROWS; r++) {
            sums[r] = _mm512_setzero_ps();
        }
        for (int64_t g = 0; g < groups; g++) {
            const char *const a = q->a + g * q->a_stride;
            const char *b = q->scratch + UNPACKED_AT;
            for (int64_t p = 0; p < q->panels; p++) {
                float *const at = (float *)q->sums + g * TILE_ROWS * q->sums_stride + p * (TILE_BYTES / 4);
                ask_ahead(code, q, (from + pairs) / of, g, p);
                for (int64_t u = from; u < from + pairs; u++, b += pair_bytes(code)) {
                    o.w[o.t % WAITING] = (waiting){.lines = lines_of_pair(code, a, u),
                                                   .affine = (const float *)(const void *)(b + 2 * step_tile(code)),
                                                   .sums = at,
                                                   .group = (int32_t)(u % of * 2),
                                                   .zero = from == 0,
                                                   .first = u == from,
                                                   .last = u + 1 == from + pairs};
                    turn(code, TILE_ROWS, q, &o, (pair){rows_of_pair(code, a, u), b}, tables, NULL, 0, NULL, sums);
                }
            }
        }
        ring_end(code, TILE_ROWS, q, &o, sums);
    }
    tile_end();
}

static void zero_groups(const qn_panel_call *q)
{
    for (int64_t r = 0; r < q->rows; r += TILE_ROWS) {
        memset((float *)q->sums + r * q->sums_stride, 0, (size_t)q->panels * TILE_BYTES);
    }
}

#define GROUP_MM(name, code)                                                                                           \
    static void name(const qn_panel_call *q)                                                                           \
    {                                                                                                                  \
        group_tables tables;                                                                                           \
        if (q->blocks == 0) {                                                                                          \
            zero_groups(q);                                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        group_tables_load(code, &tables);                                                                              \
        if (q->rows > TILE_ROWS) {                                                                                     \
            many_groups(code, q, &tables);                                                                             \
        } else if (q->rows > TILE_ROWS / 2) {                                                                          \
            few_groups(code, TILE_ROWS, q, &tables);                                                                   \
        } else {                                                                                                       \
            few_groups(code, TILE_ROWS / 2, q, &tables);                                                               \
        }                                                                                                              \
    }

EACH_GROUP_CODE(GROUP_MM)

const qn_panel_set QN_NAME(groups) = {.rows_f = QN_PANEL_ROWS_PLACES,
                                      .row_group = TILE_ROWS,
                                      .row_multiple = TILE_ROWS,
                                      .mr = TILE_ROWS,
                                      .nr = QN_PANEL_COLS,
                                      .rows_block = MANY_ROWS,
                                      .panels_block = MANY_PANELS,
                                      .scratch_bytes = UNPACKED_AT + UNPACKED_BYTES,
                                      .digits = row_places,
                                      .mm = {EACH_GROUP_CODE(GROUP_ENTRY)},
                                      .few = &qn_groups__avx512vnni,
                                      .few_rows = FEW_ROWS};
