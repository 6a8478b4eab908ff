/* Few rows at level amx: the sums of tdpbf16ps by f32 FMAs, bit for bit. When
 * weights stream from memory once for a row or two, this needs fewer operations
 * than unpacking them to tiles. The terms of a single row take the places of rows
 * here, whose products all go to the same sums.
 *
 * The instruction adds, for 32 elements of K, the products of even k in one chain
 * from 0, those of odd k in another, then the two, then that to the sum; every
 * step rounds to nearest even and takes and makes no subnormals (Intel SDM,
 * TDPBF16PS). So does this, with flushing switched on in MXCSR (panel_amx.c). */
#include "kernels/common/panel.h"
#include "kernels/cpu/amx/unpack.h"
#include "kernels/cpu/ask.h"

#define ROWS_MOST 8
#define ROWS_BLOCKS 256 /* of 64, of all rows together: they are widened to f32 for so many at a time */
#define ROWS_SCRATCH (ROWS_BLOCKS * QN_PANEL_K * (int)sizeof(float))
/* Bytes of each panel that are asked for ahead; behind its last block, of those read next. Codes of 8 bits and more are
 * asked for twice; of 4-bit ones all once, ROWS_AHEAD. */
#define ROWS_AHEAD 2048
#define ROWS_NEAR 1024
#define ROWS_FAR 7168

#define SUMS_PANEL (TILE_BYTES / 4) /* from a panel's sums of a group of rows to the next one's */

#define ROWS_UNROLL _Pragma("GCC unroll 8")

QN_INLINE int is_fp4(const int code)
{
    return code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4;
}

QN_INLINE int64_t rows_block_bytes(const int code)
{
    return code == QN_PANEL_BF16 ? 2048 : (code == QN_PANEL_NVFP4 ? 576 : (code == QN_PANEL_MXFP4 ? 544 : 1024));
}

/* A pair of k of sixteen columns as floats. */
typedef struct pair_f32 {
    __m512 even, odd;
} pair_f32;

QN_INLINE pair_f32 widen(__m512i pair)
{
    return (pair_f32){_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)),
                      _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)))};
}

/* Chains of one half of a block: of rows and panels. */
typedef struct half_sums {
    __m512 even[ROWS_MOST][4], odd[ROWS_MOST][4];
} half_sums;

QN_INLINE void chain(half_sums *h, const int rows, const int n, pair_f32 w, const float *a, int64_t a_stride)
{
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        h->even[r][n] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * a_stride]), w.even, h->even[r][n]);
        h->odd[r][n] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * a_stride + 1]), w.odd, h->odd[r][n]);
    }
}

QN_INLINE __m512 e2m1_values(void)
{
    return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f,
                          -4.0f, -6.0f);
}

/* Entries of a table by the codes at a bit of each lane. The processors of this level let vpermps wait for what its
 * destination held before; the indices are there anyway, so it takes their register. */
QN_INLINE __m512 e2m1_floats(__m512i x, int shift, __m512 table)
{
    __m512i codes = shift ? _mm512_srli_epi32(x, (unsigned)shift) : x;
    __asm__ volatile("vpermps %1, %0, %0" : "+v"(codes) : "v"(table));
    return _mm512_castsi512_ps(codes);
}

/* Scales of the four groups of sixteen of a block. */
QN_INLINE void fp4_scales(const int code, const char *block, __m512 scales[4])
{
    if (code == QN_PANEL_NVFP4) {
        const __m512i x = line_load(block + 512), zero = _mm512_setzero_si512();
        __m512i high = e4m3_high(x), low = e4m3_low(x);
        const __mmask64 small = e4m3_is_small(x);
        if (small) {
            high = e4m3_high_small(x, high, small);
            low = e4m3_low_small(x, low, small);
        }
        const __m512i first = _mm512_unpacklo_epi8(low, high), last = _mm512_unpackhi_epi8(low, high);
        scales[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, first));
        scales[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, first));
        scales[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, last));
        scales[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, last));
        return;
    }
    for (int g = 0; g < 4; g++) {
        const __m128i e = _mm_loadu_si128((const __m128i *)(const void *)(block + 512 + g / 2 * QN_PANEL_COLS));
        scales[g] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(e), 23));
    }
}

/* A line of codes, and its pairs' chains; of panel n. */
QN_INLINE void line_chains(const int code, half_sums *h, const int rows, const int n, const char *line, asked on,
                           const __m512 scale, const float *a, int64_t a_stride)
{
    if (is_fp4(code)) {
        _mm_prefetch(line + on.near, _MM_HINT_T0);
    } else {
        ask_twice(line, on);
    }
    const __m512i x = line_load(line);
    if (code == QN_PANEL_BF16) {
        chain(h, rows, n, widen(x), a, a_stride);
    } else if (is_fp4(code)) {
        ROWS_UNROLL for (int p = 0; p < 4; p++)
        {
            const pair_f32 w = {_mm512_mul_ps(e2m1_floats(x, 4 * p, e2m1_values()), scale),
                                _mm512_mul_ps(e2m1_floats(x, 16 + 4 * p, e2m1_values()), scale)};
            chain(h, rows, n, w, a + 2 * p, a_stride);
        }
    } else {
        __m512i high = code == QN_PANEL_E4M3 ? e4m3_high(x) : e5m2_high(x);
        __m512i low = code == QN_PANEL_E4M3 ? e4m3_low(x) : e5m2_low(x);
        const __mmask64 small = code == QN_PANEL_E4M3 ? e4m3_is_small(x) : e5m2_is_small(x);
        if (small) {
            high = code == QN_PANEL_E4M3 ? e4m3_high_small(x, high, small) : e5m2_high_small(x, high, small);
            low = code == QN_PANEL_E4M3 ? e4m3_low_small(x, low, small) : e5m2_low_small(x, low, small);
        }
        chain(h, rows, n, widen(_mm512_unpacklo_epi8(low, high)), a, a_stride);
        chain(h, rows, n, widen(_mm512_unpackhi_epi8(low, high)), a + 2, a_stride);
    }
}

/* One row of 4-bit codes by tables of its products: a times the sixteen values is exact, a code picks its product, and
 * one FMA scales and adds it. The product of the three numbers, 14 bits at most, is rounded once, as ever, with an
 * operation in four saved. For a of 0 or within PRODUCTS_LOW to PRODUCTS_HIGH alone, where no table entry leaves the
 * normal numbers. */
#define PRODUCTS_LOW 0x1p-100f
#define PRODUCTS_HIGH 0x1p100f
#define VALUES_LOW 0x1p-80f /* of values_half() */
#define VALUES_HIGH 0x1p80f

QN_INLINE int has_products(const int code, const float *a, int64_t count)
{
    const __m512 low = _mm512_set1_ps(code == QN_PANEL_MXFP4 ? VALUES_LOW : PRODUCTS_LOW);
    const __m512 high = _mm512_set1_ps(code == QN_PANEL_MXFP4 ? VALUES_HIGH : PRODUCTS_HIGH);
    __mmask16 out = 0;
    for (int64_t i = 0; i < count; i += 16) {
        const __m512 x = _mm512_abs_ps(_mm512_load_ps(a + i));
        const __mmask16 inside = _mm512_cmp_ps_mask(x, high, _CMP_LT_OQ) & _mm512_cmp_ps_mask(x, low, _CMP_GE_OQ);
        /* zeros by their bits: a subnormal number is none */
        out |= (__mmask16) ~(inside | _mm512_testn_epi32_mask(_mm512_castps_si512(x), _mm512_castps_si512(x)));
    }
    return !out;
}

/* Where a half of a block begins in each of n panels: addresses to be kept in registers as they are. */
QN_INLINE void half_lines(const int n, const char *w, int64_t w_stride, int half, const char *lines[4])
{
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        lines[i] = w + i * w_stride + half * 4 * QN_PANEL_LINE;
        __asm__("" : "+r"(lines[i]));
    }
}

/* Line l of n panels, held in registers; the one `distance` bytes on is asked for. */
QN_INLINE void load_lines(const int n, const char *const lines[4], int l, int64_t distance, __m512i x[4])
{
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        x[i] = line_load(lines[i] + l * QN_PANEL_LINE);
        __asm__("" : "+v"(x[i]));
        _mm_prefetch(lines[i] + distance + l * QN_PANEL_LINE, _MM_HINT_T0);
    }
}

/* sums of n panels += entries by their codes at a bit, times the scales of group g. First the look-ups, then the sums,
 * an order that compilers must keep: mixed, they get in each other's way at the ports. */
QN_INLINE void add_products(const int n, const __m512i x[4], int shift, __m512 table, const __m512 scales[4][4], int g,
                            __m512 sums[4])
{
    __m512 entries[4];
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        entries[i] = e2m1_floats(x[i], shift, table);
    }
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        sums[i] = _mm512_fmadd_ps(entries[i], scales[i][g], sums[i]);
        __asm__ volatile("" : "+v"(sums[i]));
    }
}

/* Half `half` of a block of n panels. */
QN_INLINE void products_half(const int n, const char *w, int64_t w_stride, int64_t distance, int half,
                             const __m512 scales[4][4], const float *a, float *sums)
{
    __m512 even[4], odd[4];
    const char *lines[4];
    half_lines(n, w, w_stride, half, lines);
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        even[i] = odd[i] = _mm512_setzero_ps();
    }
    const __m512 values = e2m1_values();
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++) {
        const float *const at = a + half * 32 + l * 8;
        __m512i x[4];
        load_lines(n, lines, l, distance, x);
        ROWS_UNROLL for (int p = 0; p < 4; p++)
        {
            const __m512 e = _mm512_mul_ps(_mm512_set1_ps(at[2 * p]), values);
            const __m512 o = _mm512_mul_ps(_mm512_set1_ps(at[2 * p + 1]), values);
            add_products(n, x, 4 * p, e, scales, half * 2 + l / 2, even);
            add_products(n, x, 16 + 4 * p, o, scales, half * 2 + l / 2, odd);
        }
    }
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        float *const to = sums + i * SUMS_PANEL;
        _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even[i], odd[i])));
    }
}

/* The same of mxfp4, where a scale is a power of two that a whole half shares: the codes' values as they are, and one
 * FMA that scales the half's sum. Every sum is what it would be with scaled weights, a power of two apart, as long as
 * neither leaves the normal numbers: a within VALUES_LOW to VALUES_HIGH or 0, scales as has_plain_scales() has them. */
#define SCALE_LEAST (127 - 38)
#define SCALE_MOST (127 + 30)

QN_INLINE int has_plain_scales(const int n, const char *block, int64_t stride)
{
    __mmask32 out = 0;
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        const __m256i e = _mm256_loadu_si256((const __m256i *)(const void *)(block + i * stride + 512));
        out |= _mm256_cmpgt_epu8_mask(_mm256_sub_epi8(e, _mm256_set1_epi8(SCALE_LEAST)),
                                      _mm256_set1_epi8(SCALE_MOST - SCALE_LEAST));
    }
    return !out;
}

QN_INLINE void values_half(const int n, const char *w, int64_t w_stride, int64_t distance, int half,
                           const __m512 scales[4][4], const float *a, float *sums)
{
    __m512 even[4], odd[4];
    const char *lines[4];
    half_lines(n, w, w_stride, half, lines);
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        even[i] = odd[i] = _mm512_setzero_ps();
    }
    const __m512 values = e2m1_values();
#pragma GCC unroll 4
    for (int l = 0; l < 4; l++) {
        const float *const at = a + half * 32 + l * 8;
        __m512i x[4];
        load_lines(n, lines, l, distance, x);
        ROWS_UNROLL for (int p = 0; p < 4; p++)
        {
            const __m512 e = _mm512_set1_ps(at[2 * p]), o = _mm512_set1_ps(at[2 * p + 1]);
            ROWS_UNROLL for (int i = 0; i < n; i++)
            {
                even[i] = _mm512_fmadd_ps(e2m1_floats(x[i], 4 * p, values), e, even[i]);
                odd[i] = _mm512_fmadd_ps(e2m1_floats(x[i], 16 + 4 * p, values), o, odd[i]);
            }
        }
    }
    ROWS_UNROLL for (int i = 0; i < n; i++)
    {
        float *const to = sums + i * SUMS_PANEL;
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_add_ps(even[i], odd[i]), scales[i][half * 2], _mm512_load_ps(to)));
    }
}

/* Half `half` of block b of n panels. first: the chain of a block scale begins. */
QN_INLINE void rows_half(const int code, const int rows, const int n, const char *w, int64_t w_stride, asked on,
                         int half, const __m512 scales[4][4], const float *a, int64_t a_stride, float *sums,
                         int64_t row_stride, int64_t panel_stride)
{
    const int k_line = code == QN_PANEL_BF16 ? 2 : (is_fp4(code) ? 8 : 4);
    const int lines = 32 / k_line;
    half_sums h;
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        ROWS_UNROLL for (int i = 0; i < n; i++)
        {
            h.even[r][i] = h.odd[r][i] = _mm512_setzero_ps();
        }
    }
    const float *const at = a + half * 32;
#pragma GCC unroll 16
    for (int l = 0; l < lines; l++) {
        ROWS_UNROLL for (int i = 0; i < n; i++)
        {
            line_chains(code, &h, rows, i, w + i * w_stride + (half * lines + l) * QN_PANEL_LINE, on,
                        scales[i][half * 2 + l * k_line / 16], at + l * k_line, a_stride);
        }
    }
    ROWS_UNROLL for (int r = 0; r < rows; r++)
    {
        ROWS_UNROLL for (int i = 0; i < n; i++)
        {
            float *const s = sums + r * row_stride + i * panel_stride;
            _mm512_store_ps(s, _mm512_add_ps(_mm512_load_ps(s), _mm512_add_ps(h.even[r][i], h.odd[r][i])));
        }
    }
}

/* From block b to `distance` bytes on, behind block `to` of the panels read next. */
QN_INLINE int64_t bytes_on(int64_t distance, int64_t b, int64_t to, int64_t bytes, int64_t over)
{
    return distance + (b + distance / bytes < to ? 0 : over);
}

/* Blocks [from, to) of n panels from p; rows (or the terms of one) as floats at a. products: has_products(). */
QN_INLINE void rows_panels(const int code, const int rows, const int n, const int products, const qn_panel_call *q,
                           int64_t p, int64_t from, int64_t to, const float *a, int64_t a_stride)
{
    const int64_t bytes = rows_block_bytes(code);
    const char *const w = q->w + p * q->panel_bytes;
    _Alignas(64) float part[ROWS_MOST * 4 * QN_PANEL_COLS];
    float *const sums = (float *)q->sums + p * SUMS_PANEL;
    __m512 scales[4][4];
    for (int64_t b = from; b < to; b++) {
        const char *const block = w + b * bytes;
        const int64_t over = n * q->panel_bytes - (to - from) * bytes; /* behind the last block: to the next panels */
        const asked on = {bytes_on(is_fp4(code) ? ROWS_AHEAD : ROWS_NEAR, b, to, bytes, over),
                          bytes_on(ROWS_FAR, b, to, bytes, over)};
        ROWS_UNROLL for (int i = 0; i < n; i++)
        {
            if (is_fp4(code)) {
                fp4_scales(code, block + i * q->panel_bytes, scales[i]);
            } else {
                scales[i][0] = scales[i][1] = scales[i][2] = scales[i][3] = _mm512_setzero_ps();
            }
        }
        for (int i = 0; q->sa && b % 2 == 0 && i < rows * 4; i++) {
            _mm512_store_ps(part + i * QN_PANEL_COLS, _mm512_setzero_ps());
        }
        if (products && code == QN_PANEL_MXFP4 && has_plain_scales(n, block, q->panel_bytes)) {
            for (int half = 0; half < 2; half++) {
                values_half(n, block, q->panel_bytes, on.near, half, (const __m512(*)[4])scales,
                            a + (b - from) * QN_PANEL_K, sums);
            }
            continue;
        }
        for (int half = 0; half < 2 && products; half++) {
            products_half(n, block, q->panel_bytes, on.near, half, (const __m512(*)[4])scales,
                          a + (b - from) * QN_PANEL_K, sums);
        }
        for (int half = 0; half < 2 && !products; half++) {
            rows_half(code, rows, n, block, q->panel_bytes, on, half, (const __m512(*)[4])scales,
                      a + (b - from) * QN_PANEL_K, a_stride, q->sa ? part : sums,
                      q->sa ? 4 * QN_PANEL_COLS : (q->terms > 1 ? 0 : QN_PANEL_COLS),
                      q->sa ? QN_PANEL_COLS : SUMS_PANEL);
        }
        if (q->sa && (b % 2 == 1 || b + 1 == q->blocks)) {
            ROWS_UNROLL for (int r = 0; r < rows; r++)
            {
                ROWS_UNROLL for (int i = 0; i < n; i++)
                {
                    const __m512 s =
                        _mm512_set1_ps(q->sa[b / 2 * q->sa_stride + r] * q->sb[(p + i) * q->sb_stride + b / 2]);
                    float *const at = sums + r * QN_PANEL_COLS + i * SUMS_PANEL;
                    const __m512 v = _mm512_load_ps(part + (r * 4 + i) * QN_PANEL_COLS);
                    _mm512_store_ps(at, _mm512_fmadd_ps(v, s, _mm512_load_ps(at)));
                }
            }
        }
    }
}

/* Blocks [from, to) of the rows, or of the terms of one, as floats. */
QN_INLINE void rows_widen(const qn_panel_call *q, int64_t from, int64_t to, float *out, int64_t stride)
{
    const int64_t terms = q->terms;
    for (int64_t r = 0; r < q->rows * terms; r++) {
        const char *const row = q->a + (terms > 1 ? r * 2 * TILE_BYTES : r * QN_PANEL_LINE); /* of one group */
        for (int64_t i = 0; i < (to - from) * 2; i++) {
            const int64_t block = from + i / 2;
            const __m512i x = line_load(row + (block * terms * 2 + i % 2) * TILE_BYTES);
            _mm512_store_si512(out + r * stride + i * 32,
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16));
            _mm512_store_si512(out + r * stride + i * 32 + 16,
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16));
        }
    }
}

QN_INLINE void all_panels(const int code, const int rows, const int n, const int products, const qn_panel_call *q,
                          int64_t from, int64_t to, const float *a, int64_t a_stride)
{
    int64_t p = 0;
    for (; p + n <= q->panels; p += n) {
        rows_panels(code, rows, n, products, q, p, from, to, a, a_stride);
    }
    for (; n > 2 && p + 2 <= q->panels; p += 2) {
        rows_panels(code, rows, 2, products, q, p, from, to, a, a_stride);
    }
    for (; p < q->panels; p++) {
        rows_panels(code, rows, 1, products, q, p, from, to, a, a_stride);
    }
}

/* All panels of a call of `rows` rows or terms, n at a time; ROWS_SCRATCH of scratch. */
QN_INLINE void rows_call(const int code, const int rows, const int n, const qn_panel_call *q)
{
    float *const a = (float *)(void *)q->scratch;
    const int64_t most = ROWS_BLOCKS / rows / 2 * 2; /* whole block scales */
    const int64_t stride = most * QN_PANEL_K;
    for (int64_t p = 0; p < q->panels; p++) {
        memset((float *)q->sums + p * SUMS_PANEL, 0, (size_t)q->rows * QN_PANEL_COLS * sizeof(float));
    }
    for (int64_t from = 0; from < q->blocks; from += most) {
        const int64_t to = q->blocks - from < most ? q->blocks : from + most;
        rows_widen(q, from, to, a, stride);
        if (q->terms == 1 && rows == 1 && is_fp4(code) && has_products(code, a, (to - from) * QN_PANEL_K)) {
            all_panels(code, rows, n, 1, q, from, to, a, stride);
        } else {
            all_panels(code, rows, n, 0, q, from, to, a, stride);
        }
    }
}

#define ROWS_CASE(rows, n)                                                                                             \
    case rows: rows_call(code, rows, n, q); return 1

/* 1: done; 0: too many rows for it to pay. */
QN_INLINE int few_rows_by_fma(const int code, const int most, const qn_panel_call *q)
{
    if (q->rows > most || (q->terms > 1 && (q->rows > 1 || q->sa))) {
        return 0;
    }
    if (code == QN_PANEL_BF16 && q->terms == 3) {
        rows_call(code, 3, 4, q);
        return 1;
    }
    switch (q->rows * q->terms) {
        ROWS_CASE(1, 4);
        ROWS_CASE(2, 2);
        ROWS_CASE(3, 2);
        ROWS_CASE(4, 2);
        ROWS_CASE(5, 1);
        ROWS_CASE(6, 1);
        ROWS_CASE(7, 1);
        ROWS_CASE(8, 1);
    default: return 0;
    }
}
