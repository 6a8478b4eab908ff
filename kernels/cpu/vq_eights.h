/* Vectors of eight weights, which are registers from level avx2 on (kernels/common/vq.h): decoded, or multiplied as
 * they are looked up. */
#include <string.h>

#include "kernels/common/mm.h"
#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

#define EIGHT 8
#define ANY 0 /* number of books */
#define CHAIN_GROUPS (QN_MM_CHAIN / EIGHT)

/* What of a run each vector needs, where stores do not make the compiler read it again. */
typedef struct eights {
    const qn_vq_run *run;
    const void *table[2];
    const uint8_t *codes;
    int64_t first_bit, stride;
    uint32_t second, mask[2]; /* of up to two books: the second code's place behind the first */
} eights;

QN_INLINE uint32_t mask_of(int32_t bits)
{
    return (1u << bits) - 1;
}

QN_INLINE eights eights_of(const qn_vq_run *run)
{
    return (eights){.run = run,
                    .table = {run->table[0], run->table[1]},
                    .codes = run->codes,
                    .first_bit = run->first_bit,
                    .stride = run->stride,
                    .second = (uint32_t)run->bits[0],
                    .mask = {mask_of(run->bits[0]), mask_of(run->books > 1 ? run->bits[1] : 0)}};
}

/* Elements i to i + 7 of a table. */
QN_INLINE __m256 eight_at(const void *table, const qn_vq_entry entry, int64_t i)
{
    if (entry == QN_VQ_ENTRY_F32) {
        return _mm256_loadu_ps((const float *)table + i);
    }
    const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)table + i));
    if (entry == QN_VQ_ENTRY_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Vector g of a run. books: 1, 2 or ANY. each: bits of every code, where the codes of a group begin at a byte and are
 * at most 32 bits; 0 of others. */
QN_INLINE __m256 vector_at(const eights *e, const qn_vq_entry entry, const int32_t books, const int32_t each,
                           int32_t bits, const uint8_t *codes, int64_t g)
{
    int64_t bit = e->first_bit + g * bits;
    __m256 sum = _mm256_setzero_ps();
    if (books != ANY) {
        uint64_t word = 0;
        memcpy(&word, codes + (bit >> 3), each ? sizeof(uint32_t) : sizeof word);
        word = each ? word : word >> (bit & 7);
        for (int32_t c = 0; c < books; c++) {
            const uint32_t code = (uint32_t)(word >> (uint32_t)c * (each ? (uint32_t)each : e->second)) &
                                  (each ? mask_of(each) : e->mask[c]);
            const __m256 from = eight_at(e->table[c], entry, code * e->stride);
            sum = c ? _mm256_add_ps(sum, from) : from;
        }
        return sum;
    }
    for (int32_t c = 0; c < e->run->books; c++) {
        const uint32_t code = word_at(codes, bit) & mask_of(e->run->bits[c]);
        const __m256 from = eight_at(e->run->table[c], entry, code * e->stride);
        sum = c ? _mm256_add_ps(sum, from) : from;
        bit += e->run->bits[c];
    }
    return sum;
}

/* Calls F with what is constant of the usual codes. The second branch of 8 + 8 bits is never taken: without it GCC 12
 * makes loops of the first that take 1.11 of the time (VPTQ, 25 cases on a Zen 4). */
#define OF_CODES(F, run, entry, ...)                                                                                   \
    do {                                                                                                               \
        int32_t all = 0;                                                                                               \
        for (int32_t c = 0; c < (run)->books; c++) {                                                                   \
            all += (run)->bits[c];                                                                                     \
        }                                                                                                              \
        if ((run)->books == 1 && all == 16) {                                                                          \
            F(run, entry, 1, 16, 16, __VA_ARGS__);                                                                     \
        } else if ((run)->books == 1 && all == 8) {                                                                    \
            F(run, entry, 1, 8, 8, __VA_ARGS__);                                                                       \
        } else if ((run)->books == 2 && (run)->bits[0] == 12 && (run)->bits[1] == 12) {                                \
            F(run, entry, 2, 12, 24, __VA_ARGS__);                                                                     \
        } else if ((run)->books == 2 && (run)->bits[0] == 8 && (run)->bits[1] == 8) {                                  \
            F(run, entry, 2, 8, 16, __VA_ARGS__);                                                                      \
        } else if ((run)->books == 2 && (run)->bits[0] == 8 && (run)->bits[1] == 8) {                                  \
            F(run, entry, 2, 8, 16, __VA_ARGS__);                                                                      \
        } else if ((run)->books == 1) {                                                                                \
            F(run, entry, 1, 0, all, __VA_ARGS__);                                                                     \
        } else if ((run)->books == 2) {                                                                                \
            F(run, entry, 2, 0, all, __VA_ARGS__);                                                                     \
        } else {                                                                                                       \
            F(run, entry, ANY, 0, all, __VA_ARGS__);                                                                   \
        }                                                                                                              \
    } while (0)

#define OF_BOOKS(F, run, ...)                                                                                          \
    switch ((run)->entry) {                                                                                            \
    case QN_VQ_ENTRY_F32: OF_CODES(F, run, QN_VQ_ENTRY_F32, __VA_ARGS__); break;                                       \
    case QN_VQ_ENTRY_F16: OF_CODES(F, run, QN_VQ_ENTRY_F16, __VA_ARGS__); break;                                       \
    case QN_VQ_ENTRY_BF16: OF_CODES(F, run, QN_VQ_ENTRY_BF16, __VA_ARGS__); break;                                     \
    }

/* ---- decoded ---- */

/* Codes that come next. */
QN_INLINE void fetch_codes(const uint8_t *codes, int64_t bit, int64_t bits)
{
    for (int64_t i = 0; i < bits >> 3; i += 64) {
        vec_prefetch(codes + (bit >> 3) + i);
    }
}

/* A run may be a piece of a longer one: the next piece's codes. */
QN_INLINE void fetch_next(const qn_vq_run *run, int32_t bits)
{
    fetch_codes(run->codes, run->first_bit + run->groups * bits, run->groups * bits);
}

QN_INLINE void decode_eights(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each,
                             int32_t bits, float *out)
{
    const eights e = eights_of(run);
    const int64_t groups = run->groups;
    fetch_next(run, bits);
    for (int64_t g = 0; g < groups; g++) {
        _mm256_storeu_ps(out + g * EIGHT, vector_at(&e, entry, books, each, bits, e.codes, g));
    }
}

static void vq_decode_eights(const qn_vq_run *run, float *out)
{
    if (run->vector != EIGHT) {
        int32_t bits = 0;
        for (int32_t c = 0; c < run->books; c++) {
            bits += run->bits[c];
        }
        fetch_next(run, bits);
        vq_decode(run, out);
        return;
    }
    OF_BOOKS(decode_eights, run, out);
}

/* Eight vectors' lanes turned over. */
QN_INLINE void turn_eight(__m256 v[8])
{
    __m256 pairs[8], fours[8];
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

QN_INLINE void across_eights(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each,
                             int32_t bits, float *out, int64_t stride)
{
    const eights e = eights_of(run);
    const int32_t columns = run->vector; /* fewer than eight at the end of w */
    int64_t g = 0;
    fetch_next(run, bits);
    for (; g + 8 <= run->groups; g += 8) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            v[i] = vector_at(&e, entry, books, each, bits, e.codes, g + i);
        }
        turn_eight(v);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (i < columns) {
                _mm256_storeu_ps(out + i * stride + g, v[i]);
            }
        }
    }
    for (; g < run->groups; g++) {
        float v[8];
        _mm256_storeu_ps(v, vector_at(&e, entry, books, each, bits, e.codes, g));
        for (int i = 0; i < columns; i++) {
            out[i * stride + g] = v[i];
        }
    }
}

static void vq_across_eights(const qn_vq_run *run, float *out, int64_t stride)
{
    if (run->vector != EIGHT && run->entry == QN_VQ_ENTRY_F32) {
        vq_across(run, out, stride);
        return;
    }
    OF_BOOKS(across_eights, run, out, stride);
}

/* ---- multiplied ---- */

#define HALVES (VL / EIGHT) /* of a register: groups go to them in turn */
#define DOT_ROWS 4          /* of x together; more rows find the vectors in the first cache */
#define DOT_COLUMNS(rows) (VL == EIGHT && (rows) > 2 ? 2 : 4)
#define CODES_AHEAD 1024 /* bytes of vectors across */

/* Groups g and, where a register has two halves, g + 1, whose lanes are 0 where there is none. */
QN_INLINE vf weights_at(const eights *e, const qn_vq_entry entry, const int32_t books, const int32_t each, int32_t bits,
                        const uint8_t *codes, int64_t g, const int whole)
{
#if VL == EIGHT
    (void)whole;
    return vector_at(e, entry, books, each, bits, codes, g);
#else
    const vf first = _mm512_zextps256_ps512(vector_at(e, entry, books, each, bits, codes, g));
    return whole ? _mm512_insertf32x8(first, vector_at(e, entry, books, each, bits, codes, g + 1), 1) : first;
#endif
}

/* A chain of some columns by some rows. */
QN_INLINE void dot_tile(const eights *e, const qn_vq_entry entry, const int32_t books, const int32_t each, int32_t bits,
                        const uint8_t *codes, int64_t stream, const int columns, const int rows, const float *x,
                        int64_t x_stride, int64_t groups, float *lanes)
{
    vf sum[DOT_ROWS][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            sum[r][c] = vf_set(0.0f);
        }
    }
    int64_t g = 0;
    for (; g + HALVES <= groups; g += HALVES) {
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const vf w = weights_at(e, entry, books, each, bits, codes + c * stream, g, 1);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                sum[r][c] = vf_fma(vf_load(x + r * x_stride + g * EIGHT), w, sum[r][c]);
            }
        }
    }
    for (; g < groups; g++) {
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const vf w = weights_at(e, entry, books, each, bits, codes + c * stream, g, 0);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                sum[r][c] = vf_fma(vf_load(x + r * x_stride + g * EIGHT), w, sum[r][c]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            float *const to = lanes + (r * QN_MM_COLS + c) * VL;
            vf_store(to, vf_add(vf_load(to), sum[r][c]));
        }
    }
}

/* All columns, a chain after the other, in which the same elements of x are used. */
QN_INLINE void dot_rows(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each,
                        int32_t bits, int64_t stream, int64_t columns, const float *x, int64_t x_stride, const int rows,
                        float *lanes)
{
    const int together = DOT_COLUMNS(rows);
    eights e = eights_of(run);
    for (int64_t g = 0; g < run->groups; g += CHAIN_GROUPS) {
        const int64_t some = run->groups - g < CHAIN_GROUPS ? run->groups - g : CHAIN_GROUPS;
        int64_t c = 0;
        e.first_bit = run->first_bit + g * bits;
        for (; c + together <= columns; c += together) {
            for (int i = 0; i < together; i++) {
                fetch_codes(e.codes + (c + i) * stream, e.first_bit + some * bits, some * bits);
            }
            dot_tile(&e, entry, books, each, bits, e.codes + c * stream, stream, together, rows, x + g * EIGHT,
                     x_stride, some, lanes + c * VL);
        }
        for (; c < columns; c++) {
            dot_tile(&e, entry, books, each, bits, e.codes + c * stream, stream, 1, rows, x + g * EIGHT, x_stride, some,
                     lanes + c * VL);
        }
    }
}

/* Rows in tiles of nearly the same number of them. */
QN_INLINE void dot(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each, int32_t bits,
                   int64_t stream, int64_t columns, const float *x, int64_t x_stride, int64_t rows, float *lanes)
{
    for (int64_t tiles = (rows + DOT_ROWS - 1) / DOT_ROWS; tiles > 0; tiles--) {
        const int64_t some = (rows + tiles - 1) / tiles;
#define ROWS(n)                                                                                                        \
    case n: dot_rows(run, entry, books, each, bits, stream, columns, x, x_stride, n, lanes); break
        switch (some) {
            ROWS(1);
            ROWS(2);
            ROWS(3);
            ROWS(4);
        }
#undef ROWS
        x += some * x_stride;
        lanes += some * QN_MM_COLS * VL;
        rows -= some;
    }
}

static void vq_dot(const qn_vq_run *run, int64_t stream, int64_t columns, const float *x, int64_t x_stride,
                   int64_t rows, float *lanes)
{
    OF_BOOKS(dot, run, stream, columns, x, x_stride, rows, lanes);
}

/* Lanes first to first + count - 1 of a chain of eight columns by some rows: sums[row][lane]. */
QN_INLINE void across_lanes(const eights *e, const qn_vq_entry entry, const int32_t books, const int32_t each,
                            int32_t bits, const int first, const int count, const int rows, const float *x,
                            int64_t x_stride, int64_t groups, float sums[QN_VQ_ACROSS_ROWS][VL][EIGHT])
{
    __m256 sum[QN_VQ_ACROSS_ROWS][VL];
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            sum[r][i] = _mm256_setzero_ps();
        }
    }
    int64_t g = 0;
    for (; g + VL <= groups; g += VL) {
        if (first == 0) {
            vec_prefetch(e->codes + ((e->first_bit + g * bits) >> 3) + CODES_AHEAD);
        }
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            const __m256 v = vector_at(e, entry, books, each, bits, e->codes, g + first + i);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                sum[r][i] = _mm256_fmadd_ps(_mm256_set1_ps(x[r * x_stride + g + first + i]), v, sum[r][i]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < count; i++) {
        if (g + first + i < groups) {
            const __m256 v = vector_at(e, entry, books, each, bits, e->codes, g + first + i);
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                sum[r][i] = _mm256_fmadd_ps(_mm256_set1_ps(x[r * x_stride + g + first + i]), v, sum[r][i]);
            }
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < count; i++) {
            _mm256_storeu_ps(sums[r][first + i], sum[r][i]);
        }
    }
}

QN_INLINE void across_rows(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each,
                           int32_t bits, const float *x, int64_t x_stride, const int rows, float *lanes)
{
    eights e = eights_of(run);
    for (int64_t g = 0; g < run->groups; g += QN_MM_CHAIN) {
        const int64_t some = run->groups - g < QN_MM_CHAIN ? run->groups - g : QN_MM_CHAIN;
        float sums[QN_VQ_ACROSS_ROWS][VL][EIGHT];
        e.first_bit = run->first_bit + g * bits;
#pragma GCC unroll 2
        for (int first = 0; first < VL; first += VL / rows) { /* as many sums as a register has lanes */
            across_lanes(&e, entry, books, each, bits, first, VL / rows, rows, x + g, x_stride, some, sums);
        }
        for (int i = 0; i < rows * HALVES; i++) {
            const int r = i / HALVES, half = i % HALVES * EIGHT;
            __m256 v[EIGHT];
#pragma GCC unroll 8
            for (int j = 0; j < EIGHT; j++) {
                v[j] = _mm256_loadu_ps(sums[r][half + j]);
            }
            turn_eight(v);
#pragma GCC unroll 8
            for (int j = 0; j < EIGHT; j++) {
                float *const to = lanes + (r * QN_MM_COLS + j) * VL + half;
                _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), v[j]));
            }
        }
    }
}

QN_INLINE void dot_across(const qn_vq_run *run, const qn_vq_entry entry, const int32_t books, const int32_t each,
                          int32_t bits, const float *x, int64_t x_stride, int64_t rows, float *lanes)
{
    if (rows == 1) {
        across_rows(run, entry, books, each, bits, x, x_stride, 1, lanes);
    } else {
        across_rows(run, entry, books, each, bits, x, x_stride, 2, lanes);
    }
}

static void vq_dot_across(const qn_vq_run *run, const float *x, int64_t x_stride, int64_t rows, float *lanes)
{
    OF_BOOKS(dot_across, run, x, x_stride, rows, lanes);
}
