/* Several rows, for levels of few registers (kernels/cpu/panel.h, which includes this). Rows are cut into small tiles,
 * which fewer loads feed than tall ones. A block of a panel is unpacked once for all of them, and the next one between
 * their multiply-adds: it is stored long before it is loaded, by ports that multiply-adds leave free. For codes without
 * scales of groups. From the level:
 *     AHEAD_MR                        most rows of a tile, which is one panel wide
 *     IS_AHEAD(code, rows)            up to AHEAD_ROWS rows that come here
 *     staged_bytes(code)              bytes of a part's weights of one k, as they are stored between
 *     stage_part(code, unit, to)      stores those of a part's unit, in the order of k
 *     vl_staged(code, from)           loads those of one k as a line of PAIRS_F */

#define AHEAD_ROWS 16
#define STAGED_BLOCK (QN_PANEL_K * QN_PANEL_LINE) /* bytes, at most; of two blocks in scratch: unit, part, k */
#define AHEAD_SCRATCH (2 * STAGED_BLOCK)

_Static_assert(AHEAD_SCRATCH <= PANEL_SCRATCH, "room for what is staged");

/* What a tile does with a block. */
typedef struct ahead_tile {
    const char *staged, *a;
    int64_t a_stride;
    float *chain;     /* is continued */
    const char *next; /* units of the next block that the tile stages */
    char *to;
    int32_t share; /* parts it stages beside each of its units: 0, 1 or 2 */
} ahead_tile;

QN_INLINE int64_t staged_part(const int code)
{
    return 8 * staged_bytes(code);
}

/* Unit u of the tile's block. */
QN_INLINE void ahead_unit(const int code, const int mr, const ahead_tile *t, int64_t u, vs acc[AHEAD_MR][PAIR_PARTS])
{
    const char *row[AHEAD_MR];
    each_row(row, mr, t->a + u * 4 * row_pair_bytes(code), t->a_stride);
    const char *const from = t->staged + u * PAIR_PARTS * staged_part(code);
    UNROLL for (int k = 0; k < 8; k++)
    {
        vl v[PAIR_PARTS];
        UNROLL for (int n = 0; n < PAIR_PARTS; n++)
        {
            v[n] = vl_staged(code, from + n * staged_part(code) + k * staged_bytes(code));
        }
        UNROLL for (int r = 0; r < mr; r++)
        {
            UNROLL for (int n = 0; n < PAIR_PARTS; n++)
            {
                acc[r][n] = vl_dot(PAIRS_F, acc[r][n], v[n], row[r] + k * 4);
            }
        }
    }
}

#define EACH_CHAIN(statement)                                                                                          \
    UNROLL for (int r = 0; r < mr; r++)                                                                                \
    {                                                                                                                  \
        UNROLL for (int n = 0; n < PAIR_PARTS; n++)                                                                    \
        {                                                                                                              \
            statement;                                                                                                 \
        }                                                                                                              \
    }

#define CHAIN(r, n) (t->chain + (r)*QN_PANEL_COLS + (n)*PART_COLS)

/* Part i of those at t->next. */
QN_INLINE void stage_next(const int code, const ahead_tile *t, int64_t i)
{
    const char *const unit = t->next + i / PAIR_PARTS * unit_bytes(code);
    stage_part(code, unit + i % PAIR_PARTS * PART_BYTES, t->to + i * staged_part(code));
    if (i % PAIR_PARTS == 0) {
        UNROLL for (int64_t j = 0; j < unit_bytes(code); j += QN_PANEL_LINE)
        {
            __builtin_prefetch(unit + AHEAD_BYTES(code) + j, 0, 3);
        }
    }
}

QN_INLINE void ahead_block(const int code, const int mr, const int share, const ahead_tile *t)
{
    vs acc[AHEAD_MR][PAIR_PARTS];
    EACH_CHAIN(acc[r][n] = vs_load(CHAIN(r, n)));
    for (int64_t u = 0; u < UNITS; u += 2) {
        UNROLL for (int h = 0; h < 2; h++)
        {
            ahead_unit(code, mr, t, u + h, acc);
            UNROLL for (int i = 0; i < share; i++)
            {
                stage_next(code, t, (u + h) * share + i);
            }
        }
    }
    EACH_CHAIN(vs_store(CHAIN(r, n), acc[r][n]));
}

#define AHEAD(mr)                                                                                                      \
    case mr:                                                                                                           \
        switch (t->share) {                                                                                            \
        case 0: ahead_block(code, mr, 0, t); break;                                                                    \
        case 1: ahead_block(code, mr, 1, t); break;                                                                    \
        default: ahead_block(code, mr, 2, t); break;                                                                   \
        }                                                                                                              \
        break

QN_INLINE void ahead_rows(const int code, const ahead_tile *t, int64_t rows)
{
    switch (rows) {
        AHEAD(2);
        AHEAD(3);
        AHEAD(4);
    }
}

#undef AHEAD

/* Chains of 128 of K come to their end. */
QN_INLINE void end_chains(const qn_panel_call *call, int64_t p, int64_t b, float *chain)
{
    const int64_t i = b / (QN_PANEL_SCALE_K / QN_PANEL_K);
    for (int64_t r = 0; r < call->rows; r++) {
        const vs s = vs_set(call->sa ? call->sa[r * call->sa_stride + i] * call->sb[p * call->sb_stride + i] : 1.0f);
        float *const sums = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
        UNROLL for (int n = 0; n < PAIR_PARTS; n++)
        {
            float *const from = chain + r * QN_PANEL_COLS + n * PART_COLS;
            vs_store(sums + n * PART_COLS, vs_fma(vs_load(from), s, vs_load(sums + n * PART_COLS)));
            vs_store(from, vs_zero());
        }
    }
}

/* All tiles of block b of panel p, whose weights are staged; those at next are staged to `to`. NULL: none. */
QN_INLINE void ahead_tiles(const int code, const qn_panel_call *call, int64_t p, int64_t b, const char *staged,
                           const char *next, char *to, float *chain)
{
    const int64_t tiles = (call->rows + AHEAD_MR - 1) / AHEAD_MR;
    const int64_t staging = tiles < PAIR_PARTS ? tiles : PAIR_PARTS, units = UNITS / staging; /* tiles; units of each */
    for (int64_t i = 0, r = 0; i < tiles; i++) {
        const int64_t rows = (call->rows - r) / (tiles - i);
        const int stages = next && i < staging;
        const ahead_tile t = {.staged = staged,
                              .a = call->a + r * call->a_stride + b * (UNITS * 4 * row_pair_bytes(code)),
                              .a_stride = call->a_stride,
                              .chain = chain + r * QN_PANEL_COLS,
                              .next = stages ? next + i * units * unit_bytes(code) : NULL,
                              .to = stages ? to + i * units * PAIR_PARTS * staged_part(code) : NULL,
                              .share = stages ? (int32_t)(PAIR_PARTS / staging) : 0};
        ahead_rows(code, &t, rows);
        r += rows;
    }
    if ((b + 1) % (QN_PANEL_SCALE_K / QN_PANEL_K) == 0 || b + 1 == call->blocks) {
        end_chains(call, p, b, chain);
    }
}

/* Sums are zeros. */
QN_INLINE void ahead(const int code, const qn_panel_call *call)
{
    _Alignas(64) float chain[AHEAD_ROWS * QN_PANEL_COLS] = {0};
    char *staged = call->scratch, *to = call->scratch + STAGED_BLOCK;
    for (int64_t i = 0; call->blocks && i < UNITS * PAIR_PARTS; i++) {
        stage_part(code, call->w + i / PAIR_PARTS * unit_bytes(code) + i % PAIR_PARTS * PART_BYTES,
                   staged + i * staged_part(code));
    }
    for (int64_t p = 0; p < call->panels; p++) {
        const char *const panel = call->w + p * call->panel_bytes;
        for (int64_t b = 0; b < call->blocks; b++) {
            const char *const next = b + 1 < call->blocks ? panel + (b + 1) * block_bytes(code)
                                                          : (p + 1 < call->panels ? panel + call->panel_bytes : NULL);
            ahead_tiles(code, call, p, b, staged, next, to, chain);
            char *const done = staged;
            staged = to;
            to = done;
        }
    }
}
