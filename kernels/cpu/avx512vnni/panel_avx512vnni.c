/* The int8 panel kernel of level avx512vnni. vpdpbusd multiplies unsigned by
 * signed bytes, so one side becomes x + 128 (one exclusive or a line) and 128
 * times the other side's sum is taken off, which is what sums start with. The
 * instruction wraps, so sums are exact modulo 2^32 in any order.
 *
 * Few rows: weights stream from memory, changed on the way. Many rows: ranges of
 * K short enough for four panels of one to stay in the first cache; the rows of a
 * range are copied to scratch once for all panels, changed there, so that a tile
 * reads them as one stream and does nothing but loads and dots: ten loads for
 * twenty-four dots. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx512vnni
#include "kernels/cpu/name.h"

#define LINES 16    /* of a block */
#define FEW_ROWS 12 /* rows of a register tile of two panels */
#define FEW_CHUNK 8 /* blocks of them that two such tiles take turns with */
#define MR 6        /* rows of a register tile of NR panels, many rows */
#define NR 4
#define ROWS_BLOCK 256 /* rows of a call that the scratch holds */
#define RANGE_BLOCKS 6 /* blocks of 64 of a range */
#define RANGE_K (RANGE_BLOCKS * QN_PANEL_K)

/* Bytes x + 128. */
QN_INLINE __m512i raised(const char *line)
{
    return _mm512_xor_si512(_mm512_load_si512(line), _mm512_set1_epi8(-128));
}

/* Four bytes of a row in every lane. */
QN_INLINE __m512i row_bytes(const char *a)
{
    int32_t four;
    memcpy(&four, a, 4);
    return _mm512_set1_epi32(four);
}

/* -128 times the sum of a row's blocks, in every lane. */
static __m512i offset_of(const char *a, int64_t blocks)
{
    __m512i sum = _mm512_setzero_si512();
    for (int64_t b = 0; b < blocks; b++) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_load_si512(a + b * QN_PANEL_K));
    }
    return _mm512_set1_epi32(-128 * _mm512_reduce_add_epi32(sum));
}

/* ---- few rows ---- */

/* m rows times n panels; sums begin with the rows' offsets. */
QN_INLINE void few_tile(const char *a, int64_t a_stride, const char *w, int64_t panel_bytes, int64_t blocks,
                        int32_t *sums, int64_t sums_stride, int m, int n)
{
    __m512i acc[FEW_ROWS][2];
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            acc[i][j] = _mm512_load_si512(sums + i * sums_stride + j * QN_PANEL_COLS);
        }
    }
    for (int64_t l = 0; l < blocks * LINES; l++) {
        __m512i b[2];
        for (int j = 0; j < n; j++) {
            b[j] = raised(w + j * panel_bytes + l * QN_PANEL_LINE);
        }
        for (int i = 0; i < m; i++) {
            const __m512i r = row_bytes(a + i * a_stride + l * 4);
            for (int j = 0; j < n; j++) {
                acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], b[j], r);
            }
        }
    }
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            _mm512_store_si512(sums + i * sums_stride + j * QN_PANEL_COLS, acc[i][j]);
        }
    }
}

#define FEW(m)                                                                                                         \
    case m: few_tile(a, call->a_stride, w, call->panel_bytes, blocks, sums, call->sums_stride, m, n); break

/* Blocks from b on of some rows from r on by panels p to p + n - 1. */
QN_INLINE void few_rows(const qn_panel_call *call, int64_t r, int64_t rows, int64_t p, int n, int64_t b, int64_t blocks)
{
    const char *const a = call->a + r * call->a_stride + b * QN_PANEL_K;
    const char *const w = call->w + p * call->panel_bytes + b * LINES * QN_PANEL_LINE;
    int32_t *const sums = (int32_t *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
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

/* Two tiles, of nearly the same number of rows, take turns with what the first cache holds. */
QN_INLINE void few_panels(const qn_panel_call *call, int64_t p, int n)
{
    const int64_t first = call->rows > FEW_ROWS ? call->rows / 2 : call->rows;
    const int64_t chunk = call->rows > FEW_ROWS ? FEW_CHUNK : call->blocks;
    for (int64_t b = 0; b < call->blocks; b += chunk) {
        const int64_t blocks = call->blocks - b < chunk ? call->blocks - b : chunk;
        few_rows(call, 0, first, p, n, b, blocks);
        few_rows(call, first, call->rows - first, p, n, b, blocks);
    }
}

static void few(const qn_panel_call *call)
{
    for (int64_t r = 0; r < call->rows; r++) {
        const __m512i offset = offset_of(call->a + r * call->a_stride, call->blocks);
        int32_t *const sums = (int32_t *)call->sums + r * call->sums_stride;
        for (int64_t p = 0; p < call->panels; p++) {
            _mm512_store_si512(sums + p * QN_PANEL_COLS, offset);
        }
    }
    int64_t p = 0;
    for (; !call->alone && p + 2 <= call->panels; p += 2) {
        few_panels(call, p, 2);
    }
    for (; p < call->panels; p++) {
        few_panels(call, p, 1);
    }
}

/* ---- many rows ---- */

/* A range of K of n panels, and the rows of all. */
typedef struct range {
    const char *rows; /* rows + 128, RANGE_K bytes each */
    const char *w;    /* panel n at w + n * panel_bytes */
    int64_t panel_bytes;
    int64_t lines;
    __m512i offset[NR]; /* -128 times the sums of the panels' columns */
    int32_t *sums;
    int64_t sums_stride;
    int first; /* sums hold nothing yet */
    /* what the calls after this one read: the next panels, and a line of each row's next range */
    const char *next_w, *next_rows;
    int64_t next_rows_stride;
} range;

/* m rows from r on times n panels. */
QN_INLINE void tile(const range *g, int64_t r, int m, int n)
{
    const char *a = g->rows + r * RANGE_K, *w = g->w;
    const int64_t stride = g->sums_stride, panel_bytes = g->panel_bytes;
    int32_t *const sums = g->sums + r * stride;
    __m512i acc[MR][NR];
    for (int i = 0; i < m; i++) {
        _mm_prefetch(g->next_rows + (r + i) * g->next_rows_stride, _MM_HINT_T1);
        for (int j = 0; j < n; j++) {
            const __m512i sum = _mm512_load_si512(sums + i * stride + j * QN_PANEL_COLS);
            acc[i][j] = g->first ? g->offset[j] : _mm512_add_epi32(sum, g->offset[j]);
        }
    }
    /* half a line of the next panels a row: two hundred rows bring all of them */
    for (int i = 0; i < m / 2; i++) {
        for (int j = 0; j < n; j++) {
            _mm_prefetch(g->next_w + j * panel_bytes + (r / 2 + i) * QN_PANEL_LINE, _MM_HINT_T1);
        }
    }
    for (int64_t l = 0; l < g->lines; l++, a += 4, w += QN_PANEL_LINE) {
        __m512i b[NR];
        for (int j = 0; j < n; j++) {
            b[j] = _mm512_load_si512(w + j * panel_bytes);
        }
        for (int i = 0; i < m; i++) {
            const __m512i x = row_bytes(a + i * RANGE_K);
            for (int j = 0; j < n; j++) {
                acc[i][j] = _mm512_dpbusd_epi32(acc[i][j], x, b[j]);
            }
        }
    }
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            _mm512_store_si512(sums + i * stride + j * QN_PANEL_COLS, acc[i][j]);
        }
    }
}

QN_INLINE void tiles(range *g, int64_t rows, int n)
{
    for (int j = 0; j < n; j++) {
        __m512i sum = _mm512_setzero_si512();
        for (int64_t l = 0; l < g->lines; l++) {
            const __m512i line = _mm512_load_si512(g->w + j * g->panel_bytes + l * QN_PANEL_LINE);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(-128), line);
        }
        g->offset[j] = _mm512_sub_epi32(_mm512_setzero_si512(), sum);
    }
    int64_t r = 0;
    for (; r + MR <= rows; r += MR) {
        tile(g, r, MR, n);
    }
    switch (rows - r) {
    case 1: tile(g, r, 1, n); break;
    case 2: tile(g, r, 2, n); break;
    case 3: tile(g, r, 3, n); break;
    case 4: tile(g, r, 4, n); break;
    case 5: tile(g, r, 5, n); break;
    }
}

static __attribute__((noinline)) void tiles_1(range *g, int64_t rows)
{
    tiles(g, rows, 1);
}

static __attribute__((noinline)) void tiles_4(range *g, int64_t rows)
{
    tiles(g, rows, NR);
}

static void copy_rows(const qn_panel_call *call, int64_t row, int64_t rows, int64_t from, int64_t blocks)
{
    for (int64_t r = 0; r < rows; r++) {
        const char *const a = call->a + (row + r) * call->a_stride + from * QN_PANEL_K;
        for (int64_t b = 0; b < blocks; b++) {
            _mm512_store_si512(call->scratch + r * RANGE_K + b * QN_PANEL_K, raised(a + b * QN_PANEL_K));
        }
    }
}

/* Rows [row, row + rows), at most ROWS_BLOCK. */
static void many(const qn_panel_call *call, int64_t row, int64_t rows)
{
    for (int64_t from = 0; from < call->blocks; from += RANGE_BLOCKS) {
        const int64_t blocks = call->blocks - from < RANGE_BLOCKS ? call->blocks - from : RANGE_BLOCKS;
        const int last = from + blocks == call->blocks;
        copy_rows(call, row, rows, from, blocks);
        for (int64_t p = 0, i = 0; p < call->panels; i++) {
            const int64_t n = p + NR <= call->panels ? NR : 1;
            const char *const w = call->w + p * call->panel_bytes + from * LINES * QN_PANEL_LINE;
            range g = {.rows = call->scratch,
                       .w = w,
                       .panel_bytes = call->panel_bytes,
                       .lines = blocks * LINES,
                       .sums = (int32_t *)call->sums + row * call->sums_stride + p * QN_PANEL_COLS,
                       .sums_stride = call->sums_stride,
                       .first = from == 0,
                       .next_w = p + n < call->panels ? w + n * call->panel_bytes : w,
                       .next_rows = call->scratch};
            if (!last && i < RANGE_BLOCKS) {
                g.next_rows = call->a + row * call->a_stride + (from + RANGE_BLOCKS + i) * QN_PANEL_K;
                g.next_rows_stride = call->a_stride;
            }
            if (n == NR) {
                tiles_4(&g, rows);
            } else {
                tiles_1(&g, rows);
            }
            p += n;
        }
    }
}

static void panel_i8(const qn_panel_call *call)
{
    if (call->rows <= 2 * FEW_ROWS || call->blocks == 0) {
        few(call);
        return;
    }
    for (int64_t r = 0; r < call->rows; r += ROWS_BLOCK) {
        many(call, r, call->rows - r < ROWS_BLOCK ? call->rows - r : ROWS_BLOCK);
    }
}

const qn_panel_set QN_NAME(panel) = {.rows_i8 = QN_PANEL_ROWS_I8,
                                     .row_group = 1,
                                     .row_multiple = 1,
                                     .mr = MR,
                                     .nr = NR * QN_PANEL_COLS,
                                     .rows_block = ROWS_BLOCK,
                                     .panels_block = 32,
                                     .scratch_bytes = ROWS_BLOCK * RANGE_K,
                                     .mm = {[QN_PANEL_I8] = panel_i8}};
