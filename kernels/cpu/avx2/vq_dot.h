/* Vectors of eight weights looked up and multiplied at once (kernels/common/vq.h), level avx2. */
#include <string.h>

#include "kernels/common/mm.h"
#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

#define DOT_TOGETHER 8 /* sums in registers, at most */

/* Vector g of a run. each: bits of every code, where the codes of a group begin at a byte and are at most 32 bits; 0 of
 * others. */
QN_INLINE vf vector_at(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits,
                       const uint8_t *codes, int64_t g)
{
    int64_t bit = run->first_bit + g * bits;
    uint32_t word = 0;
    vf sum = vf_set(0.0f);
    if (each) {
        memcpy(&word, codes + (bit >> 3), sizeof word);
    }
    for (int32_t c = 0; c < books; c++) {
        const uint32_t code =
            (each ? word >> (c * each & 31) : word_at(codes, bit)) & ((1u << (each ? each : run->bits[c])) - 1);
        const vf from = vf_load(run->table[c] + code * run->stride);
        sum = c ? vf_add(sum, from) : from;
        bit += run->bits[c];
    }
    return sum;
}

#define DOT_LANES(r, c) (lanes + ((r)*QN_MM_COLS + (c)) * VL)

QN_INLINE void dot_tile(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, int64_t stream,
                        const int columns, const float *x, int64_t x_stride, const int rows, float *lanes)
{
    vf sum[DOT_TOGETHER];
#pragma GCC unroll 8
    for (int i = 0; i < rows * columns; i++) {
        sum[i] = vf_load(DOT_LANES(i % rows, i / rows));
    }
    for (int64_t g = 0; g < run->groups; g++) {
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const vf w = vector_at(run, books, each, bits, run->codes + c * stream, g);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                sum[c * rows + r] = vf_fma(vf_load(x + r * x_stride + g * VL), w, sum[c * rows + r]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * columns; i++) {
        vf_store(DOT_LANES(i % rows, i / rows), sum[i]);
    }
}

QN_INLINE void dot_rows(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, int64_t stream,
                        int64_t columns, const float *x, int64_t x_stride, const int rows, float *lanes)
{
    const int together = rows == 1 ? 4 : DOT_TOGETHER / rows;
    qn_vq_run r = *run;
    for (; columns >= together; columns -= together) {
        dot_tile(&r, books, each, bits, stream, together, x, x_stride, rows, lanes);
        r.codes += together * stream;
        lanes += together * VL;
    }
    for (; columns > 0; columns--) {
        dot_tile(&r, books, each, bits, stream, 1, x, x_stride, rows, lanes);
        r.codes += stream;
        lanes += VL;
    }
}

QN_INLINE void dot_books(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, int64_t stream,
                         int64_t columns, const float *x, int64_t x_stride, int64_t rows, float *lanes)
{
    while (rows > 0) {
        const int64_t some = rows >= 8 ? 8 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        switch (some) {
        case 8: dot_rows(run, books, each, bits, stream, columns, x, x_stride, 8, lanes); break;
        case 4: dot_rows(run, books, each, bits, stream, columns, x, x_stride, 4, lanes); break;
        case 2: dot_rows(run, books, each, bits, stream, columns, x, x_stride, 2, lanes); break;
        default: dot_rows(run, books, each, bits, stream, columns, x, x_stride, 1, lanes);
        }
        rows -= some;
        x += some * x_stride;
        lanes += some * QN_MM_COLS * VL;
    }
}

static void vq_dot(const qn_vq_run *run, int64_t stream, int64_t columns, const float *x, int64_t x_stride,
                   int64_t rows, float *lanes)
{
    int32_t bits = 0;
    for (int32_t c = 0; c < run->books; c++) {
        bits += run->bits[c];
    }
    if (run->books == 1 && bits == 16) {
        dot_books(run, 1, 16, 16, stream, columns, x, x_stride, rows, lanes);
    } else if (run->books == 2 && run->bits[0] == 12 && run->bits[1] == 12) {
        dot_books(run, 2, 12, 24, stream, columns, x, x_stride, rows, lanes);
    } else {
        dot_books(run, run->books, 0, bits, stream, columns, x, x_stride, rows, lanes);
    }
}

/* Eight vectors' lanes turned over. */
QN_INLINE void turn_eight(vf v[8])
{
    vf pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256d a = _mm256_castps_pd(pairs[i + h]), b = _mm256_castps_pd(pairs[i + h + 2]);
            fours[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            fours[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

QN_INLINE void dot_across(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, const float *x,
                          float *lanes)
{
    vf sum[8]; /* of the elements of a lane: eight columns */
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        sum[i] = vf_load(lanes + i * VL);
    }
    turn_eight(sum);
    int64_t g = 0;
    for (; g + 8 <= run->groups; g += 8) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = vf_fma(vf_set(x[g + i]), vector_at(run, books, each, bits, run->codes, g + i), sum[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (g + i < run->groups) {
            sum[i] = vf_fma(vf_set(x[g + i]), vector_at(run, books, each, bits, run->codes, g + i), sum[i]);
        }
    }
    turn_eight(sum);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        vf_store(lanes + i * VL, sum[i]);
    }
}

static void vq_dot_across(const qn_vq_run *run, const float *x, float *lanes)
{
    int32_t bits = 0;
    for (int32_t c = 0; c < run->books; c++) {
        bits += run->bits[c];
    }
    if (run->books == 1 && bits == 16) {
        dot_across(run, 1, 16, 16, x, lanes);
    } else if (run->books == 1) {
        dot_across(run, 1, 0, bits, x, lanes);
    } else {
        dot_across(run, run->books, 0, bits, x, lanes);
    }
}
