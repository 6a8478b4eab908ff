/* Panel kernels of 4-bit floats times rows of int8 or of e2m1 codes: sums of products in spans of K are exact integers.
 * Included by a level's file, which owns the vectors:
 *     LANES                columns of a vector: 16, a panel, or 8, a half of one: a part
 *     FEW_ROWS, FEW_TWO    rows of the largest tile of one part whose codes are looked up on the way, and of two parts
 *     MANY_FROM, MR        rows from which on codes are looked up once for all, and of a tile of two parts then
 *     spans_of(code)       spans of a block, each within one group: 4, or as many as there are groups
 *     vb, vb_load, vb_store, vb_low(line), vb_high(line)  bytes; 2 v + 12 of the values v of their low, high four bits
 *     vd, vd_begin(offset), vd_add(sums, codes, x)        a span's integer sums; x: four bytes of a row
 *     vf, vd_end(sums, offset), vf_zero, vf_load, vf_store, vf_add, vf_scaled(a, x), vf_fma   as floats; times *x
 *     MOST_GROUPS, block_scales(code, block, scale)       scales of a block, [group][column]
 *     row_block(code, from, coded, out)                   a block of a row, but for its scales: elements k, k + 4, k +
 * 1, k + 5 of eight meet the low codes of a line, k + 2, k + 6, k + 3, k + 7 the high ones
 *
 * Dots of the unsigned bytes 2 v + 12 are less 12 times the sum of the span's elements of the row. A span's sum, twice
 * what it stands for, is multiplied by the row's scale of the group, of codes, and by the weights' into a chain of
 * CHAIN_BLOCKS blocks, and chains are added up: in one order, however many rows there are.
 *
 * Few rows: codes are looked up on the way to each tile. More rows: those of a chain once for all rows, so that a tile
 * does nothing but loads, dots and the scales; many rows are copied to scratch, a chain for all panels. */
#define PARTS (QN_PANEL_COLS / LANES) /* of a panel */
#define PART_BYTES (QN_PANEL_LINE / PARTS)
#define UNIT (2 / PARTS) /* panels that two parts are */
#define CHAIN_BLOCKS 8
#define SOME_ROWS 24   /* that the second cache holds beside weights */
#define ROWS_BLOCK 256 /* rows of a call that the scratch holds */
#define LINES 8        /* of codes of a block */
#define AHEAD 32       /* blocks of codes asked for ahead, into the second cache: loads need the lines of the first */
#define UNROLL _Pragma("GCC unroll 16")

#define X_BYTES ((int64_t)sizeof(qn_panel_bytes))
#define ROW_BYTES (CHAIN_BLOCKS * X_BYTES)

typedef struct staged_block {
    char bytes[2 * LINES][QN_PANEL_LINE]; /* of low, then of high codes of each line */
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

/* A span's sums, times the row's scale of it. */
QN_INLINE vf span_sum(const int coded, vd sums, const qn_panel_bytes *x, int s)
{
    const vf v = vd_end(sums, x->offset[s]);
    return coded ? vf_scaled(v, &x->scale[s]) : v;
}

/* Sums of m rows and n parts from `sums` on: the chain, or it is added to what is there. */
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

/* ---- few rows ---- */

/* Blocks [from, from + blocks) of m rows from r on by n parts of panel p from part h on. */
QN_INLINE void few_tile(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t p, int h,
                        int64_t from, int64_t blocks, const int m, const int n)
{
    const int spans = spans_of(code), lines = LINES / spans, groups = groups_of(code);
    const int64_t bytes = block_bytes(code), step = PARTS == 1 ? call->panel_bytes : PART_BYTES;
    const char *w = call->w + p * call->panel_bytes + from * bytes;
    const qn_panel_bytes *x[FEW_ROWS];
    vf chain[FEW_ROWS][2];
    UNROLL for (int i = 0; i < m; i++)
    {
        x[i] = (const qn_panel_bytes *)(const void *)(call->a + (r + i) * call->a_stride) + from;
        UNROLL for (int j = 0; j < n; j++)
        {
            chain[i][j] = vf_zero();
        }
    }
    for (int64_t b = 0; b < blocks; b++, w += bytes) {
        const int panels = PARTS == 1 ? n : 1;
        const int64_t past = from + b + AHEAD < call->blocks ? 0 : (panels - 1) * call->panel_bytes; /* read already */
        const int64_t ahead = AHEAD * bytes + past;
        _Alignas(64) float scale[2][MOST_GROUPS][QN_PANEL_COLS];
        UNROLL for (int j = 0; j < panels; j++)
        {
            block_scales(code, w + j * step, scale[j]);
            __builtin_prefetch(w + j * step + ahead + LINES * QN_PANEL_LINE, 0, 2);
        }
        UNROLL for (int s = 0; s < spans; s++)
        {
            vd sum[FEW_ROWS][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = vd_begin(x[i][b].offset[s]);
                }
            }
            UNROLL for (int l = s * lines; l < (s + 1) * lines; l++)
            {
                vb low[2], high[2];
                UNROLL for (int j = 0; j < n; j++)
                {
                    const char *const at = w + (h + j) * step + l * QN_PANEL_LINE;
                    const vb line = vb_load(at);
                    if (PARTS == 1 || j == 0) {
                        __builtin_prefetch(at + ahead, 0, 2);
                    }
                    low[j] = vb_low(line);
                    high[j] = vb_high(line);
                }
                UNROLL for (int i = 0; i < m; i++)
                {
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        sum[i][j] = vd_add(sum[i][j], low[j], x[i][b].x + 8 * l);
                        sum[i][j] = vd_add(sum[i][j], high[j], x[i][b].x + 8 * l + 4);
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    const float *const scales = scale[PARTS == 1 ? j : 0][s * groups / spans];
                    chain[i][j] = vf_fma(span_sum(coded, sum[i][j], &x[i][b], s),
                                         vf_load(scales + (PARTS == 1 ? 0 : (h + j) * LANES)), chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS + h * LANES, call->sums_stride,
              from == 0, m, n);
}

#define FEW(m)                                                                                                         \
    case m:                                                                                                            \
        if (n == 2 && (m) <= FEW_TWO) {                                                                                \
            few_tile(code, coded, call, r, p, 0, from, blocks, m, 2);                                                  \
        } else {                                                                                                       \
            for (int h = 0; h < PARTS; h++) {                                                                          \
                few_tile(code, coded, call, r, p, h, from, blocks, m, 1);                                              \
            }                                                                                                          \
        }                                                                                                              \
        break

/* By two parts, or one panel. */
QN_INLINE void few_rows(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t rows, int64_t p,
                        int n, int64_t from, int64_t blocks)
{
    switch (rows) {
        FEW(1);
        FEW(2);
        FEW(3);
        FEW(4);
#if FEW_ROWS == 12
        FEW(5);
        FEW(6);
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

/* Two tiles, of nearly the same number of rows, take turns with what the first cache holds. */
QN_INLINE void few(const int code, const int coded, const qn_panel_call *call)
{
    const int64_t first = call->rows > FEW_ROWS ? call->rows / 2 : call->rows;
    for (int64_t p = 0; p < call->panels;) {
        const int two = !call->alone && call->rows <= FEW_TWO && p + UNIT <= call->panels;
        for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
            const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from);
            few_rows(code, coded, call, 0, first, p, 1 + two, from, blocks);
            few_rows(code, coded, call, first, call->rows - first, p, 1 + two, from, blocks);
        }
        p += two ? UNIT : 1;
    }
}

/* ---- many rows ---- */

QN_INLINE void stage_block(const int code, const char *block, staged_block *to)
{
    block_scales(code, block, to->scale);
    UNROLL for (int l = 0; l < LINES; l++)
    {
        UNROLL for (int h = 0; h < QN_PANEL_LINE; h += PART_BYTES)
        {
            const vb line = vb_load(block + l * QN_PANEL_LINE + h);
            vb_store(to->bytes[2 * l] + h, vb_low(line));
            vb_store(to->bytes[2 * l + 1] + h, vb_high(line));
        }
    }
}

/* m rows by n parts. */
QN_INLINE void tile(const int code, const int coded, const char *rows, int64_t row_stride, const staged *w,
                    int64_t blocks, float *sums, int64_t stride, int first, const int m, const int n)
{
    const int spans = spans_of(code), lines = 2 * LINES / spans, groups = groups_of(code);
    vf chain[MR][2];
    UNROLL for (int i = 0; i < m; i++)
    {
        UNROLL for (int j = 0; j < n; j++)
        {
            chain[i][j] = vf_zero();
        }
    }
    for (int64_t b = 0; b < blocks; b++, rows += X_BYTES) {
        const staged_block *block[2];
        const qn_panel_bytes *x[MR];
        UNROLL for (int j = 0; j < n; j++)
        {
            block[j] = &w->panel[j / PARTS][b];
        }
        UNROLL for (int i = 0; i < m; i++)
        {
            x[i] = (const qn_panel_bytes *)(const void *)(rows + i * row_stride);
        }
        for (int s = 0; s < spans; s++) {
            vd sum[MR][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = vd_begin(x[i]->offset[s]);
                }
            }
            UNROLL for (int l = 0; l < lines; l++)
            {
                UNROLL for (int i = 0; i < m; i++)
                {
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        const vb codes = vb_load(block[j]->bytes[s * lines + l] + j % PARTS * PART_BYTES);
                        sum[i][j] = vd_add(sum[i][j], codes, x[i]->x + 4 * (s * lines + l));
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    const float *const scales = block[j]->scale[s * groups / spans] + j % PARTS * LANES;
                    chain[i][j] = vf_fma(span_sum(coded, sum[i][j], x[i], s), vf_load(scales), chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, sums, stride, first, m, n);
}

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
    case m:                                                                                                            \
        tile(code, coded, rows + r * row_stride, row_stride, w, blocks, sums + r * stride, stride, first, m, n);       \
        break

/* All rows by n staged parts. */
QN_INLINE void tiles(const int code, const int coded, const char *rows, int64_t row_stride, int64_t count,
                     const staged *w, int64_t blocks, float *sums, int64_t stride, int first, const after *next,
                     const int n)
{
    int64_t r = 0;
    for (; r + MR <= count; r += MR) {
        ask_ahead(next, r, count, MR);
        tile(code, coded, rows + r * row_stride, row_stride, w, blocks, sums + r * stride, stride, first, MR, n);
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
}

#undef TILE

/* The blocks of a chain of a unit of panels from p on, all rows. */
QN_INLINE void unit(const int code, const int coded, const qn_panel_call *call, int64_t p, int64_t from,
                    const char *rows, int64_t row_stride, int64_t count, float *sums, const after *next)
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
        tiles(code, coded, rows, row_stride, count, w, blocks, sums, stride, from == 0, next, 2);
    } else {
        tiles(code, coded, rows, row_stride, count, w, blocks, sums, stride, from == 0, next, 1);
    }
}

/* Rows that the second cache holds: weights stream, once. */
QN_INLINE void some(const int code, const int coded, const qn_panel_call *call)
{
    for (int64_t p = 0; p < call->panels; p += UNIT) {
        for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
            const after next = {.w = call->w + p * call->panel_bytes + (from + CHAIN_BLOCKS) * block_bytes(code),
                                .w_stride = p + 1 < call->panels ? call->panel_bytes : 0,
                                .w_bytes = CHAIN_BLOCKS * block_bytes(code),
                                .rows = call->a};
            unit(code, coded, call, p, from, call->a + from * X_BYTES, call->a_stride, call->rows,
                 (float *)call->sums + p * QN_PANEL_COLS, &next);
        }
    }
}

/* Rows [row, row + rows), at most ROWS_BLOCK. */
QN_INLINE void many(const int code, const int coded, const qn_panel_call *call, int64_t row, int64_t rows)
{
    char *const copies = call->scratch + sizeof(staged);
    for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
        const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(copies + r * ROW_BYTES, call->a + (row + r) * call->a_stride + from * X_BYTES,
                   (size_t)(blocks * X_BYTES));
        }
        for (int64_t p = 0; p < call->panels; p += UNIT) {
            const char *const x = call->a + row * call->a_stride + (from + CHAIN_BLOCKS) * X_BYTES;
            const int asks = from + CHAIN_BLOCKS < call->blocks && p / UNIT * QN_PANEL_LINE < ROW_BYTES;
            const after next = {.w = call->w + least(p + UNIT, call->panels - 1) * call->panel_bytes +
                                     from * block_bytes(code),
                                .w_stride = p + UNIT + 1 < call->panels ? call->panel_bytes : 0,
                                .w_bytes = blocks * block_bytes(code),
                                .rows = asks ? x + p / UNIT * QN_PANEL_LINE : copies,
                                .rows_stride = asks ? call->a_stride : 0};
            unit(code, coded, call, p, from, copies, ROW_BYTES, rows,
                 (float *)call->sums + row * call->sums_stride + p * QN_PANEL_COLS, &next);
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

static void mm_nvfp4(const qn_panel_call *call)
{
    if (call->coded) {
        fp4_mm(QN_PANEL_NVFP4, 1, call);
    } else {
        fp4_mm(QN_PANEL_NVFP4, 0, call);
    }
}

static void mm_mxfp4(const qn_panel_call *call)
{
    fp4_mm(QN_PANEL_MXFP4, 0, call);
}

/* Half of what an e4m3 code stands for: its bits are those of a 256th as f16. */
static float half_scale(uint8_t code)
{
    const int size = code & 0x7f;
    const float value = size == 0x7f ? __builtin_nanf("") : _cvtsh_ss((unsigned short)(size << 7)) * 128.0f;
    return code & 0x80 ? -value : value;
}

static void fp4_bytes(const void *x, const uint8_t *scales, int64_t blocks, qn_panel_code code, qn_panel_bytes *out)
{
    const int64_t bytes = scales ? QN_PANEL_K / 2 : QN_PANEL_K;
    for (int64_t b = 0; b < blocks; b++) {
        row_block((int)code, (const char *)x + b * bytes, scales != NULL, &out[b]);
        for (int g = 0; g < 4; g++) {
            out[b].scale[g] = scales ? half_scale(scales[b * 4 + g]) : 1.0f;
        }
    }
}

const qn_panel_set QN_NAME(bytes) = {.rows_f = QN_PANEL_ROWS_BYTES,
                                     .row_group = 1,
                                     .row_multiple = 1,
                                     .mr = FEW_ROWS,
                                     .nr = QN_PANEL_COLS,
                                     .rows_block = ROWS_BLOCK,
                                     .panels_block = 32,
                                     .scratch_bytes = sizeof(staged) + ROWS_BLOCK * ROW_BYTES,
                                     .unit = 0.5f,
                                     .bytes = fp4_bytes,
                                     .mm = {[QN_PANEL_NVFP4] = mm_nvfp4, [QN_PANEL_MXFP4] = mm_mxfp4}};
