/* The int8 panel kernel of level avx512vnni. vpdpbusd multiplies unsigned by
 * signed bytes: weights become w + 128 (one exclusive or a line), and 128 times
 * the row's sum is taken off, which is what the sum starts with. The instruction
 * wraps, so sums are exact modulo 2^32 in any order. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx512vnni
#include "kernels/cpu/name.h"

#define LINES 16      /* of a block */
#define MR 12         /* rows of a register tile of two panels */
#define RANGE_BLOCKS 16 /* blocks of 64: two panels of a range stay in the first cache */

QN_INLINE __m512i weights(const char *line)
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

/* m rows times n panels over a range of K; sums begin with the rows' offsets. */
QN_INLINE void tile(const char *a, int64_t a_stride, const char *w, int64_t panel_bytes, int64_t blocks, int32_t *sums,
                    int64_t sums_stride, int m, int n)
{
    __m512i acc[MR][4];
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            acc[i][j] = _mm512_load_si512(sums + i * sums_stride + j * QN_PANEL_COLS);
        }
    }
    for (int64_t l = 0; l < blocks * LINES; l++) {
        __m512i b[4];
        for (int j = 0; j < n; j++) {
            b[j] = weights(w + j * panel_bytes + l * QN_PANEL_LINE);
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

#define ROWS(m, n)                                                                                                     \
    case m: tile(a, call->a_stride, w, call->panel_bytes, blocks, sums, call->sums_stride, m, n); break

/* n panels, all rows. */
QN_INLINE void rows_of_panels(const qn_panel_call *call, int64_t p, int64_t from, int64_t blocks, int n)
{
    const char *const w = call->w + p * call->panel_bytes + from * LINES * QN_PANEL_LINE;
    for (int64_t r = 0; r < call->rows; r += MR) {
        const char *const a = call->a + r * call->a_stride + from * QN_PANEL_K;
        int32_t *const sums = (int32_t *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
        switch (call->rows - r < MR ? call->rows - r : MR) {
            ROWS(1, n);
            ROWS(2, n);
            ROWS(3, n);
            ROWS(4, n);
            ROWS(5, n);
            ROWS(6, n);
            ROWS(7, n);
            ROWS(8, n);
            ROWS(9, n);
            ROWS(10, n);
            ROWS(11, n);
            ROWS(12, n);
        }
    }
}

static void panel_i8(const qn_panel_call *call)
{
    for (int64_t r = 0; r < call->rows; r++) {
        const __m512i offset = offset_of(call->a + r * call->a_stride, call->blocks);
        int32_t *const sums = (int32_t *)call->sums + r * call->sums_stride;
        for (int64_t p = 0; p < call->panels; p++) {
            _mm512_store_si512(sums + p * QN_PANEL_COLS, offset);
        }
    }
    /* few rows: memory is the limit and a panel streams from front to back */
    const int64_t range = call->rows <= MR ? call->blocks : RANGE_BLOCKS;
    for (int64_t from = 0; from < call->blocks; from += range) {
        const int64_t blocks = call->blocks - from < range ? call->blocks - from : range;
        int64_t p = 0;
        for (; p + 2 <= call->panels; p += 2) {
            rows_of_panels(call, p, from, blocks, 2);
        }
        if (p < call->panels) {
            rows_of_panels(call, p, from, blocks, 1);
        }
    }
}

const qn_panel_set QN_NAME(panel) = {.rows_i8 = QN_PANEL_ROWS_I8,
                                     .row_group = 1,
                                     .row_multiple = 1,
                                     .mr = MR,
                                     .nr = 2 * QN_PANEL_COLS,
                                     .rows_block = 504,
                                     .panels_block = 32,
                                     .mm = {[QN_PANEL_I8] = panel_i8}};
