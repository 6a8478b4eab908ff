/* Panel kernels of 4-bit floats times rows of int8 or of e2m1 codes, level avx512vnni: a group's sum of products is an
 * exact integer.
 *
 * A code becomes the unsigned byte 2 v + 12, v its value, by one permute of a table; dots of four bytes begin with -12
 * times the sum of the group's elements of the row. The group's sum, twice what it stands for, is multiplied by the
 * row's scale of the group, of codes, and by the weights' into a chain of CHAIN_BLOCKS blocks, and chains are added up:
 * in one order, however many rows there are.
 *
 * Few rows: codes are looked up on the way to each tile. Many rows: those of a chain once for all rows, which are
 * copied to scratch for all panels, so that a tile does nothing but loads, dots and the scales. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx512vnni
#include "kernels/cpu/name.h"

#define CHAIN_BLOCKS 8
#define FEW_ROWS 12    /* of a tile of one panel */
#define FEW_TWO 6      /* rows up to which a tile has two */
#define MANY_FROM 25   /* rows */
#define MR 6           /* rows of a tile of two panels, many rows */
#define ROWS_BLOCK 256 /* rows of a call that the scratch holds */
#define MOST_GROUPS 4  /* of a block */
#define LINES 8        /* of codes of a block */
#define AHEAD 32       /* blocks of codes asked for ahead, into the second cache: loads need the lines of the first */
#define UNROLL _Pragma("GCC unroll 16")

#define X_BYTES ((int64_t)sizeof(qn_panel_bytes))
#define ROW_BYTES (CHAIN_BLOCKS * X_BYTES)

typedef struct staged_block {
    char bytes[2 * LINES][QN_PANEL_LINE]; /* of low, then of high nibbles of each line */
    float scale[MOST_GROUPS][QN_PANEL_COLS];
} staged_block;

typedef struct staged {
    staged_block panel[2][CHAIN_BLOCKS];
} staged;

QN_INLINE int groups_of(const int code)
{
    return code == QN_PANEL_NVFP4 ? 4 : 2;
}

QN_INLINE int64_t block_bytes(const int code)
{
    return code == QN_PANEL_NVFP4 ? 576 : 544;
}

/* Bytes 2 v + 12 of the low four bits of each byte; the permute looks at six of them. */
QN_INLINE __m512i raised(__m512i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_permutexvar_epi8(nibbles, _mm512_broadcast_i32x4(table));
}

QN_INLINE __m512i row_bytes(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}

/* The two bytes of bf16 numbers, a 256th of what e4m3 codes without their sign stand for. */
#define EIGHT(x) x, x, x, x, x, x, x, x
#define RISING(x) x, (x) + 0x10, (x) + 0x20, (x) + 0x30, (x) + 0x40, (x) + 0x50, (x) + 0x60, (x) + 0x70
static const _Alignas(64) uint8_t upper[128] = {
    0,           0x37,        0x37,        0x37,        0x38,        0x38,        0x38,        0x38,
    EIGHT(0x38), EIGHT(0x39), EIGHT(0x39), EIGHT(0x3a), EIGHT(0x3a), EIGHT(0x3b), EIGHT(0x3b), EIGHT(0x3c),
    EIGHT(0x3c), EIGHT(0x3d), EIGHT(0x3d), EIGHT(0x3e), EIGHT(0x3e), EIGHT(0x3f), EIGHT(0x3f)};
static const _Alignas(64) uint8_t lower[128] = {0,
                                                0,
                                                0x80,
                                                0xc0,
                                                0,
                                                0x20,
                                                0x40,
                                                0x60,
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80),
                                                RISING(0),
                                                RISING(0x80)};
#undef EIGHT
#undef RISING

/* Scales of a block, [group][column]. */
QN_INLINE void block_scales(const int code, const char *block, float scale[MOST_GROUPS][QN_PANEL_COLS])
{
    const char *const from = block + LINES * QN_PANEL_LINE;
    if (code == QN_PANEL_MXFP4) {
        for (int g = 0; g < 2; g++) {
            const __m128i e = _mm_loadu_si128((const __m128i *)(const void *)(from + g * QN_PANEL_COLS));
            _mm512_store_si512(scale[g], _mm512_slli_epi32(_mm512_cvtepu8_epi32(e), 23));
        }
        return;
    }
    const __m512i x = _mm512_loadu_si512(from), zero = _mm512_setzero_si512();
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(lower), x, _mm512_load_si512(lower + 64));
    const __m512i size = _mm512_permutex2var_epi8(_mm512_load_si512(upper), x, _mm512_load_si512(upper + 64));
    const __m512i high = _mm512_ternarylogic_epi32(size, x, _mm512_set1_epi8((char)0x80), 0xf8); /* a | (b & c) */
    const __m512i first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
    _mm512_store_si512(scale[0], _mm512_unpacklo_epi16(zero, first));
    _mm512_store_si512(scale[1], _mm512_unpackhi_epi16(zero, first));
    _mm512_store_si512(scale[2], _mm512_unpacklo_epi16(zero, second));
    _mm512_store_si512(scale[3], _mm512_unpackhi_epi16(zero, second));
}

/* A group's sum of products, times the row's scale of it. */
QN_INLINE __m512 group_sum(const int coded, __m512i sum, const qn_panel_bytes *x, int g)
{
    const __m512 s = _mm512_cvtepi32_ps(sum);
    return coded ? _mm512_mul_ps(s, _mm512_set1_ps(x->scale[g])) : s;
}

/* Sums of m rows and n panels from `sums` on: the chain, or it is added to what is there. */
QN_INLINE void end_chain(__m512 chain[][2], float *sums, int64_t stride, int first, const int m, const int n)
{
    UNROLL for (int i = 0; i < m; i++)
    {
        UNROLL for (int j = 0; j < n; j++)
        {
            float *const to = sums + i * stride + j * QN_PANEL_COLS;
            _mm512_store_ps(to, first ? chain[i][j] : _mm512_add_ps(_mm512_load_ps(to), chain[i][j]));
        }
    }
}

/* ---- few rows ---- */

/* Blocks [from, from + blocks) of m rows from r on by panels p to p + n - 1. */
QN_INLINE void few_tile(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t p, int64_t from,
                        int64_t blocks, const int m, const int n)
{
    const int groups = groups_of(code), lines = LINES / groups;
    const int64_t bytes = block_bytes(code), stride = call->panel_bytes;
    const char *w = call->w + p * stride + from * bytes;
    const qn_panel_bytes *x[FEW_ROWS];
    __m512 chain[FEW_ROWS][2];
    UNROLL for (int i = 0; i < m; i++)
    {
        x[i] = (const qn_panel_bytes *)(const void *)(call->a + (r + i) * call->a_stride) + from;
        UNROLL for (int j = 0; j < n; j++)
        {
            chain[i][j] = _mm512_setzero_ps();
        }
    }
    for (int64_t b = 0; b < blocks; b++, w += bytes) {
        const int64_t past = from + b + AHEAD < call->blocks ? 0 : (n - 1) * stride; /* of the panels read next */
        const int64_t ahead = AHEAD * bytes + past;
        _Alignas(64) float scale[2][MOST_GROUPS][QN_PANEL_COLS];
        UNROLL for (int j = 0; j < n; j++)
        {
            block_scales(code, w + j * stride, scale[j]);
            __builtin_prefetch(w + j * stride + ahead + LINES * QN_PANEL_LINE, 0, 2);
        }
        UNROLL for (int g = 0; g < groups; g++)
        {
            __m512i sum[FEW_ROWS][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = _mm512_set1_epi32(x[i][b].offset[g]);
                }
            }
            UNROLL for (int l = g * lines; l < (g + 1) * lines; l++)
            {
                __m512i low[2], high[2];
                UNROLL for (int j = 0; j < n; j++)
                {
                    const char *const at = w + j * stride + l * QN_PANEL_LINE;
                    const __m512i line = _mm512_loadu_si512(at);
                    __builtin_prefetch(at + ahead, 0, 2);
                    low[j] = raised(line);
                    high[j] = raised(_mm512_srli_epi16(line, 4));
                }
                UNROLL for (int i = 0; i < m; i++)
                {
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], low[j], row_bytes(x[i][b].x + 8 * l));
                        sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], high[j], row_bytes(x[i][b].x + 8 * l + 4));
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                UNROLL for (int j = 0; j < n; j++)
                {
                    chain[i][j] = _mm512_fmadd_ps(group_sum(coded, sum[i][j], &x[i][b], g), _mm512_load_ps(scale[j][g]),
                                                  chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS, call->sums_stride, from == 0, m,
              n);
}

#define FEW(m)                                                                                                         \
    case m:                                                                                                            \
        if (n == 2 && (m) <= FEW_TWO) {                                                                                \
            few_tile(code, coded, call, r, p, from, blocks, m, 2);                                                     \
        } else {                                                                                                       \
            few_tile(code, coded, call, r, p, from, blocks, m, 1);                                                     \
        }                                                                                                              \
        break

QN_INLINE void few_rows(const int code, const int coded, const qn_panel_call *call, int64_t r, int64_t rows, int64_t p,
                        int n, int64_t from, int64_t blocks)
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
        FEW(9);
        FEW(10);
        FEW(11);
        FEW(12);
    }
}

#undef FEW

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Two tiles, of nearly the same number of rows, take turns with what the first cache holds. */
QN_INLINE void few(const int code, const int coded, const qn_panel_call *call)
{
    const int64_t first = call->rows > FEW_ROWS ? call->rows / 2 : call->rows;
    for (int64_t p = 0; p < call->panels;) {
        const int n = call->rows <= FEW_TWO && p + 2 <= call->panels ? 2 : 1;
        for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
            const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from);
            few_rows(code, coded, call, 0, first, p, n, from, blocks);
            few_rows(code, coded, call, first, call->rows - first, p, n, from, blocks);
        }
        p += n;
    }
}

/* ---- many rows ---- */

QN_INLINE void stage_block(const int code, const char *block, staged_block *to)
{
    block_scales(code, block, to->scale);
    UNROLL for (int l = 0; l < LINES; l++)
    {
        const __m512i line = _mm512_loadu_si512(block + l * QN_PANEL_LINE);
        _mm512_store_si512(to->bytes[2 * l], raised(line));
        _mm512_store_si512(to->bytes[2 * l + 1], raised(_mm512_srli_epi16(line, 4)));
    }
}

/* m copied rows by n staged panels. */
QN_INLINE void tile(const int code, const int coded, const char *rows, const staged *w, int64_t blocks, float *sums,
                    int64_t stride, int first, const int m, const int n)
{
    __m512 chain[MR][2];
    UNROLL for (int i = 0; i < m; i++)
    {
        UNROLL for (int j = 0; j < n; j++)
        {
            chain[i][j] = _mm512_setzero_ps();
        }
    }
    for (int64_t b = 0; b < blocks; b++, rows += sizeof(qn_panel_bytes)) {
        for (int g = 0; g < groups_of(code); g++) {
            const int lines = 2 * LINES / groups_of(code);
            __m512i sum[MR][2];
            UNROLL for (int i = 0; i < m; i++)
            {
                const qn_panel_bytes *const x = (const qn_panel_bytes *)(const void *)(rows + i * ROW_BYTES);
                UNROLL for (int j = 0; j < n; j++)
                {
                    sum[i][j] = _mm512_set1_epi32(x->offset[g]);
                }
            }
            UNROLL for (int l = 0; l < lines; l++)
            {
                UNROLL for (int i = 0; i < m; i++)
                {
                    const qn_panel_bytes *const x = (const qn_panel_bytes *)(const void *)(rows + i * ROW_BYTES);
                    const __m512i four = row_bytes(x->x + 4 * (g * lines + l));
                    UNROLL for (int j = 0; j < n; j++)
                    {
                        const __m512i bytes = _mm512_load_si512(w->panel[j][b].bytes[g * lines + l]);
                        sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], bytes, four);
                    }
                }
            }
            UNROLL for (int i = 0; i < m; i++)
            {
                const qn_panel_bytes *const x = (const qn_panel_bytes *)(const void *)(rows + i * ROW_BYTES);
                UNROLL for (int j = 0; j < n; j++)
                {
                    chain[i][j] = _mm512_fmadd_ps(group_sum(coded, sum[i][j], x, g),
                                                  _mm512_load_ps(w->panel[j][b].scale[g]), chain[i][j]);
                }
            }
        }
    }
    end_chain(chain, sums, stride, first, m, n);
}

#define TILE(m)                                                                                                        \
    case m: tile(code, coded, rows + r * ROW_BYTES, w, blocks, sums + r * stride, stride, first, m, n); break

/* What comes after n panels: the next ones, and a line of each row's next chain. */
typedef struct after {
    const char *w, *rows;
    int64_t w_stride, w_bytes, rows_stride;
} after;

/* The share of tile r of `count` rows. */
QN_INLINE void ask_ahead(const after *next, int64_t r, int64_t count)
{
    const int64_t share = (next->w_bytes * MR / count + QN_PANEL_LINE) / QN_PANEL_LINE * QN_PANEL_LINE;
    for (int i = 0; i < MR; i++) {
        _mm_prefetch(next->rows + (r + i) * next->rows_stride, _MM_HINT_T1);
    }
    for (int64_t i = 0; i < share; i += QN_PANEL_LINE) {
        _mm_prefetch(next->w + r / MR * share + i, _MM_HINT_T1);
        _mm_prefetch(next->w + next->w_stride + r / MR * share + i, _MM_HINT_T1);
    }
}

/* All rows by n staged panels. */
QN_INLINE void tiles(const int code, const int coded, const char *rows, int64_t count, const staged *w, int64_t blocks,
                     float *sums, int64_t stride, int first, const after *next, const int n)
{
    int64_t r = 0;
    for (; r + MR <= count; r += MR) {
        ask_ahead(next, r, count);
        tile(code, coded, rows + r * ROW_BYTES, w, blocks, sums + r * stride, stride, first, MR, n);
    }
    switch (count - r) {
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
    }
}

#undef TILE

/* Rows [row, row + rows), at most ROWS_BLOCK. */
QN_INLINE void many(const int code, const int coded, const qn_panel_call *call, int64_t row, int64_t rows)
{
    staged *const w = (staged *)(void *)call->scratch;
    char *const copies = call->scratch + sizeof *w;
    const int64_t stride = call->sums_stride;
    for (int64_t from = 0; from < call->blocks; from += CHAIN_BLOCKS) {
        const int64_t blocks = least(CHAIN_BLOCKS, call->blocks - from);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(copies + r * ROW_BYTES, call->a + (row + r) * call->a_stride + from * X_BYTES,
                   (size_t)(blocks * X_BYTES));
        }
        for (int64_t p = 0; p < call->panels; p += 2) {
            const int64_t n = least(2, call->panels - p);
            float *const sums = (float *)call->sums + row * stride + p * QN_PANEL_COLS;
            for (int64_t j = 0; j < n; j++) {
                for (int64_t b = 0; b < blocks; b++) {
                    stage_block(code, call->w + (p + j) * call->panel_bytes + (from + b) * block_bytes(code),
                                &w->panel[j][b]);
                }
            }
            const char *const x = call->a + row * call->a_stride + (from + CHAIN_BLOCKS) * X_BYTES;
            const int asks = from + CHAIN_BLOCKS < call->blocks && p / 2 * QN_PANEL_LINE < ROW_BYTES;
            const after next = {.w = call->w + least(p + 2, call->panels - 1) * call->panel_bytes +
                                     from * block_bytes(code),
                                .w_stride = p + 3 < call->panels ? call->panel_bytes : 0,
                                .w_bytes = blocks * block_bytes(code),
                                .rows = asks ? x + p / 2 * QN_PANEL_LINE : copies,
                                .rows_stride = asks ? call->a_stride : 0};
            if (n == 2) {
                tiles(code, coded, copies, rows, w, blocks, sums, stride, from == 0, &next, 2);
            } else {
                tiles(code, coded, copies, rows, w, blocks, sums, stride, from == 0, &next, 1);
            }
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

/* Half of what an e4m3 code stands for. */
static float half_scale(uint8_t code)
{
    const int size = code & 0x7f;
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, nan = 0x7fc00000;
    const uint32_t bits = size == 0x7f ? nan : sign | (uint32_t)upper[size] << 24 | (uint32_t)lower[size] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value * 128.0f;
}

/* Twice the values of 64 codes, as int8. */
static __m512i from_codes(const char *codes)
{
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    const __m512i each = _mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), _mm512_and_si512(each, _mm512_set1_epi8(15)));
}

/* Elements k, k + 4, k + 1, k + 5 of eight meet the low nibbles of a line, k + 2, k + 6, k + 3, k + 7 the high ones. */
static void fp4_bytes(const void *x, const uint8_t *scales, int64_t blocks, qn_panel_code code, qn_panel_bytes *out)
{
    const __m128i order = _mm_set_epi64x(0x0f0b0e0a0d090c08, 0x0703060205010400);
    const int groups = groups_of((int)code), lanes = 16 / groups;
    for (int64_t b = 0; b < blocks; b++, out++) {
        const __m512i line = scales ? from_codes((const char *)x + b * (QN_PANEL_K / 2))
                                    : _mm512_loadu_si512((const char *)x + b * QN_PANEL_K);
        const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(12), line);
        int32_t sums[16];
        _mm512_storeu_si512(sums, fours);
        _mm512_storeu_si512(out->x, _mm512_shuffle_epi8(line, _mm512_broadcast_i32x4(order)));
        memset(out->offset, 0, sizeof out->offset);
        for (int i = 0; i < 16; i++) {
            out->offset[i / lanes] -= sums[i];
        }
        for (int g = 0; g < 4; g++) {
            out->scale[g] = scales ? half_scale(scales[b * 4 + g]) : 1.0f;
        }
    }
}

const qn_panel_set QN_NAME(fp4) = {.rows_f = QN_PANEL_ROWS_BYTES,
                                   .row_group = 1,
                                   .row_multiple = 1,
                                   .mr = MR,
                                   .nr = 2 * QN_PANEL_COLS,
                                   .rows_block = ROWS_BLOCK,
                                   .panels_block = 32,
                                   .scratch_bytes = sizeof(staged) + ROWS_BLOCK * ROW_BYTES,
                                   .unit = 0.5f,
                                   .bytes = fp4_bytes,
                                   .mm = {[QN_PANEL_NVFP4] = mm_nvfp4, [QN_PANEL_MXFP4] = mm_mxfp4}};
