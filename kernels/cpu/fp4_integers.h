/* Panel kernels of 4-bit floats times rows of integers: sums of products in spans of K are exact. Included by a level's
 * file, which owns the vectors:
 *
 *     LANES                columns of a vector: 16, a panel, or 8, a half of one: a part
 *     FEW_ROWS, FEW_TWO    rows of the largest tile of one part whose codes are looked up on the way, and of two parts
 *     MANY_FROM, MR        rows from which on codes are looked up once for all, and of a tile of two parts then
 *     LOOKS, CHAIN_BLOCKS  vectors that a line of codes becomes; blocks that are looked up at once
 *     AHEAD, AHEAD_TO      blocks ahead that few rows ask for, and to where: 3, the first cache, or 2, the second
 *     FAR                  blocks ahead that they ask the second cache for, too (AHEAD_TO 3); 0: nothing
 *     spans_of(code)       spans of a block, each within one group: 4, or as many as there are groups
 *     xb, xt               a block of a row, and what of it tiles read, which comes first
 *     x_at(x, l, i)        what meets vector i of line l: four bytes
 *     vb, vb_load, vb_store, vb_look(line, i)             codes, and vector i of a line of them: integers
 *     vd, vd_begin(x, s), vd_add(sums, codes, x)          a span's integer sums
 *     vf, vf_zero, vf_load, vf_store, vf_add              floats
 *     span_added(code, coded, sums, x, s, scale, chain)   a span's sums, times the scales of the row and the weights
 *     MOST_GROUPS, block_scales(code, block, scale)       scales of a block, [group][column]
 *     RESTS                rows have rests of pairs (qn_panel_words): vb_look_any(line, i), as vb_look for any i;
 *                          rest_unit(x, pair), rest_added(code, rest, codes, scale, chain)
 *
 * In one order, however many rows there are: a chain of CHAIN_BLOCKS blocks is added up, then their rests, then the
 * next ones. Few rows: codes are looked up on the way to each tile. More rows: those of some blocks once for all rows,
 * so that a tile does nothing but loads, dots and the scales; many rows are copied to scratch, as many blocks for all
 * panels. Rests are listed for all panels of a call, those of many rows a chain at a time. */
#define PARTS (QN_PANEL_COLS / LANES) /* of a panel */
#define PART_BYTES (QN_PANEL_LINE / PARTS)
#define UNIT (2 / PARTS) /* panels that two parts are */
#define SOME_ROWS 24     /* that the second cache holds beside weights */
#define ROWS_BLOCK 256   /* rows of a call that the scratch holds */
#define LINES 8          /* of codes of a block */
#define UNROLL _Pragma("GCC unroll 16")

#define X_BYTES ((int64_t)sizeof(xb))
#define ROW_BYTES (CHAIN_BLOCKS * (int64_t)sizeof(xt)) /* of a row that the scratch holds */

typedef struct staged_block {
    char codes[LINES * LOOKS][QN_PANEL_LINE]; /* what each line becomes */
    float scale[MOST_GROUPS][QN_PANEL_COLS];
} staged_block;

typedef struct staged {
    staged_block panel[UNIT][CHAIN_BLOCKS];
} staged;

QN_INLINE int64_t block_bytes(const int code)
{
    return code == QN_PANEL_NVFP4 ? 576 : 544;
}

QN_INLINE int groups_of(const int code)
{
    return code == QN_PANEL_NVFP4 ? 4 : 2;
}

/* Of m rows and n parts. */
QN_INLINE void begin_chain(vf chain[][2], const int m, const int n)
{
    UNROLL for (int i = 0; i < m; i++)
    {
        UNROLL for (int j = 0; j < n; j++)
        {
            chain[i][j] = vf_zero();
        }
    }
}

/* The first chain is what sums begin with. */
QN_INLINE void end_chain(vf chain[][2], float *sums, int64_t stride, int first, const int m, const int n)
{
    UNROLL for (int i = 0; i < m; i++)
    {
        UNROLL for (int j = 0; j < n; j++)
        {
            float *const to = sums + i * stride + j * LANES;
            vf_store(to, first ? chain[i][j] : vf_add(vf_load(to), chain[i][j]));
        }
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#if RESTS
/* A pair's rests, of a row and a block of a chain. */
typedef struct listed_rest {
    int16_t x[2];
    float unit; /* of them and codes as they are looked up */
    uint32_t row;
    uint16_t block, pair;
} listed_rest;

/* Of rows in some chains. Block by block, so that sums which follow one another are mostly of several rows. */
#define PAIRS_A_BLOCK (QN_PANEL_K / 2)
#define MOST_RESTS (ROWS_BLOCK * CHAIN_BLOCKS * PAIRS_A_BLOCK)
#define MOST_CHAINS 64
#define RESTS_AT_ONCE 4 /* of a block, always: how many are, nothing waits for, and more are rare */
typedef struct rest_list {
    listed_rest rest[MOST_RESTS + RESTS_AT_ONCE];
    int64_t from[MOST_CHAINS + 1]; /* of each chain's */
} rest_list;

QN_INLINE listed_rest *list_rests(const char *rows, int64_t stride, int64_t count, int64_t blocks, listed_rest *to)
{
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t r = 0; r < count; r++) {
            const xb *const x = (const xb *)(const void *)(rows + r * stride) + b;
            for (int64_t from = 0; from == 0 || from < x->rests; from += RESTS_AT_ONCE) {
                UNROLL for (int i = 0; i < RESTS_AT_ONCE; i++)
                {
                    const qn_panel_rest *const rest = &x->rest[from + i];
                    const uint16_t pair = rest->pair % PAIRS_A_BLOCK; /* of what may be no rest, too */
                    to[from + i] =
                        (listed_rest){{rest->x[0], rest->x[1]}, rest_unit(x, pair), (uint32_t)r, (uint16_t)b, pair};
                }
            }
            to += x->rests;
        }
    }
    return to;
}

/* Of `count` rows of the call from a row on, of at most so many chains from block `from` on, and as many as there is
 * room for; the block behind them. */
QN_INLINE int64_t list_chains(const qn_panel_call *call, int64_t row, int64_t count, int64_t from, int64_t chains,
                              rest_list *list)
{
    listed_rest *to = list->rest;
    int64_t n = 0;
    for (; n < chains && from < call->blocks; n++, from += CHAIN_BLOCKS) {
        list->from[n] = to - list->rest;
        if (list->from[n] + count * CHAIN_BLOCKS * PAIRS_A_BLOCK > MOST_RESTS) {
            return from;
        }
        to = list_rests(call->a + row * call->a_stride + from * X_BYTES, call->a_stride, count,
                        least(CHAIN_BLOCKS, call->blocks - from), to);
    }
    list->from[n] = to - list->rest;
    return least(from, call->blocks);
}
#else
#define MOST_CHAINS 1
typedef struct listed_rest {
    char none;
} listed_rest;

typedef struct rest_list {
    listed_rest rest[1];
    int64_t from[2];
} rest_list;

QN_INLINE int64_t list_chains(const qn_panel_call *call, int64_t row, int64_t count, int64_t from, int64_t chains,
                              rest_list *list)
{
    (void)row, (void)count, (void)from, (void)chains, (void)list;
    return call->blocks;
}
#endif

/* A chain's rests. */
typedef struct chain_rests {
    const listed_rest *rest;
    int64_t count;
} chain_rests;

QN_INLINE chain_rests rests_of(const rest_list *list, int64_t chain)
{
    return (chain_rests){list->rest + (RESTS ? list->from[chain] : 0),
                         RESTS ? list->from[chain + 1] - list->from[chain] : 0};
}

QN_INLINE rest_list *list_of(const qn_panel_call *call)
{
    return (rest_list *)(void *)(call->scratch + sizeof(staged) + ROWS_BLOCK * ROW_BYTES);
}

/* ---- few rows ---- */

/* The compiler would ask for all lines of a block at once, which then wait for each other. */
QN_INLINE const char *ask(const char *line, int64_t ahead, int64_t far)
{
    if (FAR) {
        __asm__ volatile("prefetcht0 (%0, %1)\n\tprefetcht1 (%0, %2)" : "+r"(line) : "r"(ahead), "r"(far));
    } else {
        __builtin_prefetch(line + ahead, 0, AHEAD_TO);
    }
    return line;
}

/* Blocks [from, from + blocks) of m rows from r on by n parts of panel p from part h on. */
QN_INLINE void few_tile(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t p, int h,
                        int64_t from, int64_t blocks, chain_rests rests, const int m, const int n)
{
    const int spans = spans_of(code), lines = LINES / spans, groups = groups_of(code);
    const int64_t bytes = block_bytes(code), step = PARTS == 1 ? call->panel_bytes : PART_BYTES;
    const char *const rows = call->a + r * call->a_stride + from * X_BYTES;
    const char *w = call->w + p * call->panel_bytes + from * bytes;
    float *const sums = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS + h * LANES;
    vf chain[FEW_ROWS][2];
    _Alignas(64) float scales_of[RESTS ? CHAIN_BLOCKS : 1][2][MOST_GROUPS][QN_PANEL_COLS];
    begin_chain(chain, m, n);
    for (int64_t b = 0; b < blocks; b++, w += bytes) {
        const int panels = PARTS == 1 ? n : 1;
        const int64_t left = call->blocks - from - b, past = (panels - 1) * call->panel_bytes; /* read already */
        const int64_t ahead = AHEAD * bytes + (AHEAD < left ? 0 : past), far = FAR * bytes + (FAR < left ? 0 : past);
        float(*const scale)[MOST_GROUPS][QN_PANEL_COLS] = scales_of[RESTS ? b : 0];
        const xt *x[FEW_ROWS];
        UNROLL for (int i = 0; i < m; i++)
        {
            x[i] = (const xt *)(const void *)(rows + i * call->a_stride + b * X_BYTES);
        }
        UNROLL for (int j = 0; j < panels; j++)
        {
            block_scales(code, w + j * step, scale[j]);
            ask(w + j * step + LINES * QN_PANEL_LINE, ahead, far);
        }
        UNROLL for (int s = 0; s < spans; s++)
        {
            vd sum[FEW_ROWS][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = vd_begin(x[i], s);
                }
            }
            UNROLL for (int l = s * lines; l < (s + 1) * lines; l++)
            {
                vb line[2];
                UNROLL for (int j = 0; j < n; j++)
                {
                    const char *at = w + (h + j) * step + l * QN_PANEL_LINE;
                    if (PARTS == 1 || j == 0) {
                        at = ask(at, ahead, far);
                    }
                    line[j] = vb_load(at);
                }
                UNROLL for (int k = 0; k < LOOKS; k++)
                {
                    vb codes[2];
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        codes[j] = vb_look(line[j], k);
                    }
                    UNROLL for (int i = 0; i < m; i++)
                    {
                        UNROLL for (int j = 0; j < n; j++)
                        {
                            sum[i][j] = vd_add(sum[i][j], codes[j], x_at(x[i], l, k));
                        }
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    const float *const scales = scale[PARTS == 1 ? j : 0][s * groups / spans];
                    const vf of_part = vf_load(scales + (PARTS == 1 ? 0 : (h + j) * LANES));
                    chain[i][j] = span_added(code, coded, sum[i][j], x[i], s, of_part, chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, sums, call->sums_stride, from == 0, m, n);
#if RESTS
    w -= blocks * bytes;
    for (int64_t i = 0; i < rests.count; i++) {
        const listed_rest rest = rests.rest[i];
        const int64_t b = rest.block, pair = rest.pair;
        UNROLL for (int j = 0; j < n; j++)
        {
            const vb line = vb_load(w + (h + j) * step + b * bytes + pair / LOOKS * QN_PANEL_LINE);
            const float *const scales = scales_of[b][PARTS == 1 ? j : 0][pair * groups / PAIRS_A_BLOCK];
            float *const to = sums + rest.row * call->sums_stride + j * LANES;
            vf_store(to, rest_added(code, &rest, vb_look_any(line, (int)(pair % LOOKS)),
                                    vf_load(scales + (PARTS == 1 ? 0 : (h + j) * LANES)), vf_load(to)));
        }
    }
#else
    (void)rests;
#endif
}

#define FEW(m)                                                                                                         \
    case m:                                                                                                            \
        if (n == 2 && (m) <= FEW_TWO) {                                                                                \
            few_tile(code, coded, call, r, p, 0, from, blocks, rests, m, 2);                                           \
        } else {                                                                                                       \
            for (int h = 0; h < PARTS; h++) {                                                                          \
                few_tile(code, coded, call, r, p, h, from, blocks, rests, m, 1);                                       \
            }                                                                                                          \
        }                                                                                                              \
        break

/* By two parts, or one panel. */
QN_INLINE void few_rows(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t rows, int64_t p,
                        int n, int64_t from, int64_t blocks, chain_rests rests)
{
    switch (rows) {
        FEW(1);
        FEW(2);
        FEW(3);
        FEW(4);
#if FEW_ROWS >= 6
        FEW(5);
        FEW(6);
#endif
#if FEW_ROWS == 12
        FEW(7);
        FEW(8);
        FEW(9);
        FEW(10);
        FEW(11);
        FEW(12);
#endif
    }
}

#undef FEW

/* Two tiles, of nearly the same number of rows, take turns with what the first cache holds; rows with rests are one. */
QN_INLINE void few(const int code, const int coded, const qn_panel_call *call)
{
    const int64_t first = call->rows > FEW_ROWS ? call->rows / 2 : call->rows;
    rest_list *const list = list_of(call);
    for (int64_t begin = 0, end; begin < call->blocks; begin = end) {
        end = list_chains(call, 0, call->rows, begin, MOST_CHAINS, list);
        for (int64_t p = 0; p < call->panels;) {
            const int two = !call->alone && call->rows <= FEW_TWO && p + UNIT <= call->panels;
            for (int64_t from = begin; from < end; from += CHAIN_BLOCKS) {
                const int64_t blocks = least(CHAIN_BLOCKS, end - from);
                const chain_rests rests = rests_of(list, (from - begin) / CHAIN_BLOCKS);
                few_rows(code, coded, call, 0, first, p, 1 + two, from, blocks, rests);
                few_rows(code, coded, call, first, call->rows - first, p, 1 + two, from, blocks, rests);
            }
            p += two ? UNIT : 1;
        }
    }
}

_Static_assert(!RESTS || MANY_FROM <= FEW_ROWS + 1, "one tile");

/* ---- many rows ---- */

QN_INLINE void stage_block(const int code, const char *block, staged_block *to)
{
    block_scales(code, block, to->scale);
    UNROLL for (int l = 0; l < LINES; l++)
    {
        UNROLL for (int h = 0; h < QN_PANEL_LINE; h += PART_BYTES)
        {
            const vb line = vb_load(block + l * QN_PANEL_LINE + h);
            UNROLL for (int i = 0; i < LOOKS; i++)
            {
                vb_store(to->codes[l * LOOKS + i] + h, vb_look(line, i));
            }
        }
    }
}

/* Rows of xt, or of xb. */
typedef struct tile_rows {
    const char *x;
    int64_t stride, step, count;
} tile_rows;

/* m rows by n parts. */
QN_INLINE void tile(const int code, const int coded, const tile_rows *rows, int64_t r, const staged *w, int64_t blocks,
                    float *sums, int64_t stride, int first, const int m, const int n)
{
    const int spans = spans_of(code), lines = LINES / spans, groups = groups_of(code);
    const char *at = rows->x + r * rows->stride;
    vf chain[MR][2];
    sums += r * stride;
    begin_chain(chain, m, n);
    for (int64_t b = 0; b < blocks; b++, at += rows->step) {
        const staged_block *block[2];
        const xt *x[MR];
        UNROLL for (int j = 0; j < n; j++)
        {
            block[j] = &w->panel[j / PARTS][b];
        }
        UNROLL for (int i = 0; i < m; i++)
        {
            x[i] = (const xt *)(const void *)(at + i * rows->stride);
        }
        for (int s = 0; s < spans; s++) {
            vd sum[MR][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = vd_begin(x[i], s);
                }
            }
            UNROLL for (int l = 0; l < lines; l++)
            {
                UNROLL for (int k = 0; k < LOOKS; k++)
                {
                    vb codes[2];
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        codes[j] = vb_load(block[j]->codes[(s * lines + l) * LOOKS + k] + j % PARTS * PART_BYTES);
                    }
                    UNROLL for (int i = 0; i < m; i++)
                    {
                        UNROLL for (int j = 0; j < n; j++)
                        {
                            sum[i][j] = vd_add(sum[i][j], codes[j], x_at(x[i], s * lines + l, k));
                        }
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    const float *const scales = block[j]->scale[s * groups / spans] + j % PARTS * LANES;
                    chain[i][j] = span_added(code, coded, sum[i][j], x[i], s, vf_load(scales), chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, sums, stride, first, m, n);
}

#if RESTS
/* The rests of rows by n staged parts. */
QN_INLINE void add_rests(const int code, chain_rests rests, const staged *w, float *sums, int64_t stride, const int n)
{
    for (int64_t i = 0; i < rests.count; i++) {
        const listed_rest rest = rests.rest[i];
        float *const to = sums + rest.row * stride;
        UNROLL for (int j = 0; j < n; j++)
        {
            const staged_block *const block = &w->panel[j / PARTS][rest.block];
            const float *const scale = block->scale[rest.pair * groups_of(code) / PAIRS_A_BLOCK];
            vf_store(to + j * LANES, rest_added(code, &rest, vb_load(block->codes[rest.pair] + j % PARTS * PART_BYTES),
                                                vf_load(scale + j % PARTS * LANES), vf_load(to + j * LANES)));
        }
    }
}
#endif

/* What comes after: the next weights, and a line of each row's next chain. */
typedef struct after {
    const char *w, *rows;
    int64_t w_stride, w_bytes, rows_stride;
} after;

/* The share of m rows from r on of `count`. */
QN_INLINE void ask_ahead(const after *next, int64_t r, int64_t count, int64_t m)
{
    const int64_t calls = (count + MR - 1) / MR;
    const int64_t share = (next->w_bytes / calls + QN_PANEL_LINE) / QN_PANEL_LINE * QN_PANEL_LINE;
    for (int64_t i = 0; i < m; i++) {
        __builtin_prefetch(next->rows + (r + i) * next->rows_stride, 0, 2);
    }
    for (int64_t i = 0; i < share; i += QN_PANEL_LINE) {
        for (int j = 0; j < UNIT; j++) {
            __builtin_prefetch(next->w + j * next->w_stride + r / MR * share + i, 0, 2);
        }
    }
}

#define TILE(m)                                                                                                        \
    case m: tile(code, coded, rows, r, w, blocks, sums, stride, first, m, n); break

/* All rows by n staged parts. */
QN_INLINE void tiles(const int code, const int coded, const tile_rows *rows, const staged *w, int64_t blocks,
                     float *sums, int64_t stride, int first, chain_rests rests, const after *next, const int n)
{
    const int64_t count = rows->count;
    int64_t r = 0;
    for (; r + MR <= count; r += MR) {
        ask_ahead(next, r, count, MR);
        tile(code, coded, rows, r, w, blocks, sums, stride, first, MR, n);
    }
    if (r < count) {
        ask_ahead(next, r, count, count - r);
    }
    switch (count - r) {
        TILE(1);
        TILE(2);
#if MR == 6
        TILE(3);
        TILE(4);
        TILE(5);
#endif
    }
#if RESTS
    add_rests(code, rests, w, sums, stride, n);
#else
    (void)rests;
#endif
}

#undef TILE

/* The blocks of a chain of a unit of panels from p on, all rows. */
QN_INLINE void unit(const int code, const int coded, const qn_panel_call *call, int64_t p, int64_t from,
                    const tile_rows *rows, float *sums, chain_rests rests, const after *next)
{
    staged *const w = (staged *)(void *)call->scratch;
    const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from), n = least(UNIT, call->panels - p);
    const int64_t stride = call->sums_stride;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t b = 0; b < blocks; b++) {
            stage_block(code, call->w + (p + j) * call->panel_bytes + (from + b) * block_bytes(code), &w->panel[j][b]);
        }
    }
    if (n == UNIT) {
        tiles(code, coded, rows, w, blocks, sums, stride, from == 0, rests, next, 2);
    } else {
        tiles(code, coded, rows, w, blocks, sums, stride, from == 0, rests, next, 1);
    }
}

/* Rows that the second cache holds: weights stream, once. */
QN_INLINE void some(const int code, const int coded, const qn_panel_call *call)
{
    rest_list *const list = list_of(call);
    for (int64_t begin = 0, end; begin < call->blocks; begin = end) {
        end = list_chains(call, 0, call->rows, begin, MOST_CHAINS, list);
        for (int64_t p = 0; p < call->panels; p += UNIT) {
            for (int64_t from = begin; from < end; from += CHAIN_BLOCKS) {
                const after next = {.w = call->w + p * call->panel_bytes + (from + CHAIN_BLOCKS) * block_bytes(code),
                                    .w_stride = p + 1 < call->panels ? call->panel_bytes : 0,
                                    .w_bytes = CHAIN_BLOCKS * block_bytes(code),
                                    .rows = call->a};
                const tile_rows rows = {
                    .x = call->a + from * X_BYTES, .stride = call->a_stride, .step = X_BYTES, .count = call->rows};
                unit(code, coded, call, p, from, &rows, (float *)call->sums + p * QN_PANEL_COLS,
                     rests_of(list, (from - begin) / CHAIN_BLOCKS), &next);
            }
        }
    }
}

/* Rows [row, row + rows), at most ROWS_BLOCK. */
QN_INLINE void many(const int code, const int coded, const qn_panel_call *call, int64_t row, int64_t rows)
{
    char *const copies = call->scratch + sizeof(staged);
    rest_list *const list = list_of(call);
    const tile_rows copied = {.x = copies, .stride = ROW_BYTES, .step = sizeof(xt), .count = rows};
    for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
        const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from);
        const char *const x = call->a + row * call->a_stride + from * X_BYTES;
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t b = 0; b < blocks; b++) {
                memcpy(copies + r * ROW_BYTES + b * (int64_t)sizeof(xt), x + r * call->a_stride + b * X_BYTES,
                       sizeof(xt));
            }
        }
        (void)list_chains(call, row, rows, from, 1, list);
        for (int64_t p = 0; p < call->panels; p += UNIT) {
            const int64_t line = p / UNIT * QN_PANEL_LINE;
            const int asks = from + CHAIN_BLOCKS < call->blocks && line < CHAIN_BLOCKS * X_BYTES;
            const after next = {.w = call->w + least(p + UNIT, call->panels - 1) * call->panel_bytes +
                                     from * block_bytes(code),
                                .w_stride = p + UNIT + 1 < call->panels ? call->panel_bytes : 0,
                                .w_bytes = blocks * block_bytes(code),
                                .rows = asks ? x + CHAIN_BLOCKS * X_BYTES + line : copies,
                                .rows_stride = asks ? call->a_stride : 0};
            unit(code, coded, call, p, from, &copied, (float *)call->sums + row * call->sums_stride + p * QN_PANEL_COLS,
                 rests_of(list, 0), &next);
        }
    }
}

QN_INLINE void fp4_mm(const int code, const int coded, const qn_panel_call *call)
{
    if (call->blocks == 0) {
        for (int64_t r = 0; r < call->rows; r++) {
            memset((float *)call->sums + r * call->sums_stride, 0,
                   (size_t)call->panels * QN_PANEL_COLS * sizeof(float));
        }
    } else if (call->rows < MANY_FROM) {
        few(code, coded, call);
    } else if (call->rows <= SOME_ROWS) {
        some(code, coded, call);
    } else {
        for (int64_t r = 0; r < call->rows; r += ROWS_BLOCK) {
            many(code, coded, call, r, least(ROWS_BLOCK, call->rows - r));
        }
    }
}

static void mm_mxfp4(const qn_panel_call *call)
{
    fp4_mm(QN_PANEL_MXFP4, 0, call);
}

#define SCRATCH_BYTES (sizeof(staged) + ROWS_BLOCK * ROW_BYTES + sizeof(rest_list))
