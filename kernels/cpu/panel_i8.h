/* Many rows of int8 as pairs of int16, for the levels without a byte dot product
 * (kernels/cpu/panel.h, which includes this). A range of K at a time: the pairs
 * of I8_NR panels are stored to scratch once for all rows, the rows once for all panels.
 * A tile of I8_MR rows then walks two streams at constant distances: it loads,
 * multiplies and adds, and the addresses take no registers of their own. */

#define I8_RANGE_K (PAIR_BLOCKS * QN_PANEL_K)
#define I8_ROW_BYTES (I8_RANGE_K * 2)
#define I8_PANEL_BYTES (I8_RANGE_K / 2 * QN_PANEL_LINE)
#define I8_ROWS 256 /* of a call that the scratch holds */
#define I8_SCRATCH (I8_NR * I8_PANEL_BYTES + I8_ROWS * I8_ROW_BYTES)

/* Bytes 0 and 2 as words. */
QN_INLINE uint32_t even_words(uint32_t bytes)
{
    const uint32_t low = bytes & 0x00ff00ffu, signs = bytes & 0x00800080u;
    return low | ((signs << 9) - (signs << 1));
}

static void i8_words(const int8_t *x, int64_t count, int16_t *out)
{
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t bytes;
        memcpy(&bytes, x + i, sizeof bytes);
        const uint32_t words[2] = {even_words(bytes), even_words(bytes >> 8)};
        memcpy(out + i, words, sizeof words);
    }
}

/* sums continue with `lines` pairs of k of mr rows and nr panels. */
QN_INLINE void i8_tile(const char *w, const char *a, int64_t lines, int32_t *sums, int64_t stride, const int mr,
                       const int nr)
{
    vs acc[I8_MR][I8_NR * PAIR_PARTS];
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int n = 0; n < nr; n++)
        {
            acc[r][n] = vs_load((const float *)(const void *)(sums + r * stride + n * PART_COLS));
        }
    }
    for (int64_t l = 0; l < lines; l++, w += QN_PANEL_LINE, a += 4) {
        vl v[I8_NR * PAIR_PARTS];
        UNROLL for (int n = 0; n < nr; n++)
        {
            v[n] = vl_load(w + n / PAIR_PARTS * I8_PANEL_BYTES + n % PAIR_PARTS * PART_BYTES);
        }
        UNROLL for (int r = 0; r < mr; r++)
        {
            UNROLL for (int n = 0; n < nr; n++)
            {
                acc[r][n] = vl_dot(PAIRS_I8, acc[r][n], v[n], a + r * I8_ROW_BYTES);
            }
        }
    }
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int n = 0; n < nr; n++)
        {
            vs_store((float *)(void *)(sums + r * stride + n * PART_COLS), acc[r][n]);
        }
    }
}

QN_INLINE void i8_tiles(const char *w, const char *a, int64_t lines, int32_t *sums, int64_t stride, int64_t rows,
                        const int nr)
{
#define STEP(mr)                                                                                                       \
    for (; rows >= (mr); rows -= (mr)) {                                                                               \
        i8_tile(w, a, lines, sums, stride, mr, nr);                                                                    \
        a += (mr)*I8_ROW_BYTES;                                                                                        \
        sums += (mr)*stride;                                                                                           \
    }
    STEP(I8_MR)
    STEP(1)
#undef STEP
}

static __attribute__((noinline)) void i8_tiles_all(const char *w, const char *a, int64_t lines, int32_t *sums,
                                                   int64_t stride, int64_t rows)
{
    i8_tiles(w, a, lines, sums, stride, rows, I8_NR * PAIR_PARTS);
}

#if I8_NR > 1
static __attribute__((noinline)) void i8_tiles_1(const char *w, const char *a, int64_t lines, int32_t *sums,
                                                 int64_t stride, int64_t rows)
{
    i8_tiles(w, a, lines, sums, stride, rows, PAIR_PARTS);
}
#else
#define i8_tiles_1 i8_tiles_all
#endif

/* Rows [row, row + rows), at most I8_ROWS; sums are zeros. */
static void many_i8(const qn_panel_call *call, int64_t row, int64_t rows)
{
    char *const copy = call->scratch + I8_NR * I8_PANEL_BYTES;
    for (int64_t b = 0; b < call->blocks; b += PAIR_BLOCKS) {
        const int64_t blocks = call->blocks - b < PAIR_BLOCKS ? call->blocks - b : PAIR_BLOCKS;
        for (int64_t r = 0; r < rows; r++) {
            memcpy(copy + r * I8_ROW_BYTES, call->a + (row + r) * call->a_stride + b * QN_PANEL_K * 2,
                   (size_t)blocks * QN_PANEL_K * 2);
        }
        for (int64_t p = 0; p < call->panels;) {
            const int64_t panels = p + I8_NR <= call->panels ? I8_NR : 1;
            for (int64_t n = 0; n < panels; n++) {
                unpack_panel(QN_PANEL_I8, PAIRS_I8,
                             call->w + (p + n) * call->panel_bytes + b * block_bytes(QN_PANEL_I8), blocks,
                             call->scratch + n * I8_PANEL_BYTES, NULL);
            }
            int32_t *const sums = (int32_t *)call->sums + row * call->sums_stride + p * QN_PANEL_COLS;
            const int64_t lines = blocks * QN_PANEL_K / 2;
            if (panels == I8_NR) {
                i8_tiles_all(call->scratch, copy, lines, sums, call->sums_stride, rows);
            } else {
                i8_tiles_1(call->scratch, copy, lines, sums, call->sums_stride, rows);
            }
            p += panels;
        }
    }
}

FEW_OF(mm_i8_few, QN_PANEL_I8)

static void mm_i8(const qn_panel_call *call)
{
    zero_sums(call);
    if (ARE_FEW(QN_PANEL_I8, call->rows)) {
        few(QN_PANEL_I8, call, mm_i8_few);
        return;
    }
    for (int64_t r = 0; r < call->rows; r += I8_ROWS) {
        many_i8(call, r, call->rows - r < I8_ROWS ? call->rows - r : I8_ROWS);
    }
}
