/* Partial-sum tables of aqlm (kernels/common/vq.h) of level avx512vnni: one row of x (vq_sums.h), and rows beside each
 * other. */
#include "kernels/cpu/avx512vnni/vq_sums.h"

/* ---- rows of x beside each other ---- */

#define SIDE QN_VQ_SIDE_ROWS
#define WIDE QN_VQ_MANY_ROWS
#define SIDE_AHEAD 4 /* blocks whose codes are prefetched */

/* Integers of a (group, codebook): xs[vector][WIDE] times 256 vectors, each product the chain that make_table has. Two
 * entries and eight rows a register, [row][entry] until they are stored. */
QN_INLINE void make_side(const float *xs, int64_t vector, const float *book, char *to)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i by_entry = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (int e = 0; e < QN_VQ_TABLE_ENTRIES; e += 16) {
        __m512 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm512_setzero_ps();
        }
        for (int64_t j = 0; j < vector; j++) {
            const __m512 x = _mm512_permutexvar_ps(twice, _mm512_load_ps(xs + j * WIDE));
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                double two;
                memcpy(&two, book + e + 2 * i + j * QN_VQ_TABLE_ENTRIES, sizeof two);
                sum[i] = _mm512_fmadd_ps(x, _mm512_castpd_ps(_mm512_set1_pd(two)), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm512_store_si512(to + (e + 2 * i) * SIDE * 4,
                               _mm512_permutexvar_epi32(by_entry, _mm512_cvtps_epi32(sum[i])));
        }
    }
}

/* Where the entries of a line's codes are in their table. */
QN_INLINE void put_offsets(const uint8_t *codes, uint16_t *to)
{
#pragma GCC unroll 2
    for (int i = 0; i < 64; i += 32) {
        const __m512i half = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(codes + i)));
        _mm512_store_si512(to + i, _mm512_slli_epi16(half, 5));
    }
}

/* Rows of w with a word of codes: byte 4 i + r of a line is row 16 r + i. */
#define ROW_OF(w, i) ((i) % 4 * 16 + 2 * (w) + (i) / 4)

/* SIDE rows of x by rows of w whose codes are word w of `lookups` lines. */
QN_INLINE void word_by_side(const char *tables, const uint16_t offsets[][64], int w, const int lookups, int first,
                            int last, __m256 unit, int32_t *totals, float *sums)
{
    __m256i total[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m256i *const at = (const __m256i *)(const void *)(totals + ROW_OF(w, i) * SIDE);
        total[i] = first ? _mm256_setzero_si256() : _mm256_load_si256(at);
    }
#pragma GCC unroll 4
    for (int l = 0; l < lookups; l++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const char *const at = tables + l * QN_VQ_SIDE_TABLE + offsets[l][w * 8 + i];
            total[i] = _mm256_add_epi32(total[i], _mm256_load_si256((const __m256i *)(const void *)at));
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        float *const at = sums + ROW_OF(w, i) * SIDE;
        if (last) {
            _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), unit, _mm256_load_ps(at)));
        } else {
            _mm256_store_si256((__m256i *)(void *)(totals + ROW_OF(w, i) * SIDE), total[i]);
        }
    }
}

/* Lookups l0 to l0 + lookups - 1 of all rows of w. */
QN_INLINE void look_up_side(const qn_vq_sums_call *c, int64_t l0, const int lookups, int last, __m256 unit)
{
    for (int64_t block = 0; block < c->blocks; block++) {
        const uint8_t *const codes = c->codes + (block * c->lookups + l0) * 64;
        _Alignas(64) uint16_t offsets[QN_VQ_SIDE_LOOKUPS][64];
        int32_t *const totals = c->totals + block * 64 * SIDE;
        float *const sums = c->sums + block * 64 * SIDE;
#pragma GCC unroll 4
        for (int l = 0; l < lookups; l++) {
            _mm_prefetch((const char *)codes + (SIDE_AHEAD * c->lookups + l) * 64, _MM_HINT_T0);
            put_offsets(codes + l * 64, offsets[l]);
        }
        for (int w = 0; w < 8; w++) {
            word_by_side(c->tables, offsets, w, lookups, l0 == 0, last, unit, totals, sums);
        }
    }
}

/* What rows' products are multiplied by, and the inverse; 0 for those that have none or are not there. */
QN_INLINE void factors_of(const qn_vq_sums_call *c, float *factor, float *unit)
{
    for (int64_t r = 0; r < c->rows; r++) {
        if (factor_of(c->x + r * c->x_stride, c->lookups / c->books, c->books, c->vector, c->norms, &factor[r],
                      &unit[r])) {
            c->special[r] = 1;
        }
    }
}

/* Elements first to first + count - 1 times their rows' factors: to[element][WIDE], zeros where there is no factor
 * (such a row may hold anything) or no row. Sixteen by sixteen are turned over. */
static void put_elements(const qn_vq_sums_call *c, const float *factor, int64_t first, int64_t count, float *to)
{
    for (int64_t e = 0; e < count; e += 16) {
        const __mmask16 here = first_of(count - e);
        __m512 a[WIDE], b[WIDE];
#pragma GCC unroll 16
        for (int64_t r = 0; r < WIDE; r++) {
            a[r] = _mm512_setzero_ps();
            if (r < c->rows && factor[r] != 0.0f) {
                const __m512 x = _mm512_maskz_loadu_ps(here, c->x + r * c->x_stride + first + e);
                a[r] = _mm512_mul_ps(x, _mm512_set1_ps(factor[r]));
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < WIDE; r += 2) { /* pairs of rows */
            b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
            b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < WIDE; r += 4) { /* a[r + i]: elements 4 l + i of rows r to r + 3 in lane l */
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m512d low = _mm512_castps_pd(b[r + i]), high = _mm512_castps_pd(b[r + i + 2]);
                a[r + 2 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                a[r + 2 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512 p = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x44), q = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xEE);
            const __m512 s = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x44);
            const __m512 t = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xEE);
            b[i] = _mm512_shuffle_f32x4(p, s, 0x88);
            b[4 + i] = _mm512_shuffle_f32x4(p, s, 0xDD);
            b[8 + i] = _mm512_shuffle_f32x4(q, t, 0x88);
            b[12 + i] = _mm512_shuffle_f32x4(q, t, 0xDD);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (e + i < count) {
                _mm512_store_ps(to + (e + i) * WIDE, b[i]);
            }
        }
    }
}

static void sums_side(const qn_vq_sums_call *c)
{
    _Alignas(64) float xs[QN_VQ_SIDE_VECTOR * WIDE];
    float factor[SIDE] = {0}, unit[SIDE] = {0};
    factors_of(c, factor, unit);
    const __m256 units = _mm256_loadu_ps(unit);
    for (int64_t l0 = 0; l0 < c->lookups; l0 += QN_VQ_SIDE_LOOKUPS) {
        const int64_t left = c->lookups - l0, count = left < QN_VQ_SIDE_LOOKUPS ? left : QN_VQ_SIDE_LOOKUPS;
        for (int64_t l = 0; l < count; l++) {
            const int64_t book = (l0 + l) % c->books;
            if (l == 0 || book == 0) {
                put_elements(c, factor, (l0 + l) / c->books * c->vector, c->vector, xs);
            }
            make_side(xs, c->vector, c->book + book * c->vector * QN_VQ_TABLE_ENTRIES,
                      c->tables + l * QN_VQ_SIDE_TABLE);
        }
        switch (count) { /* fewer only at the end */
        case 1: look_up_side(c, l0, 1, 1, units); break;
        case 2: look_up_side(c, l0, 2, 1, units); break;
        case 3: look_up_side(c, l0, 3, 1, units); break;
        default: look_up_side(c, l0, QN_VQ_SIDE_LOOKUPS, left == QN_VQ_SIDE_LOOKUPS, units);
        }
    }
}

/* ---- products of chosen vectors ---- */

/* Sixteen rows of x, xs[groups][vector][WIDE], by the rows of w whose codes are word w of all lookups. Each product is
 * the chain that make_table has. */
QN_INLINE void word_by_many(const qn_vq_sums_call *c, const float *xs, const uint8_t *codes, __m512i total[8])
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        total[i] = _mm512_setzero_si512();
    }
    for (int64_t l = 0; l < c->lookups; xs += c->vector * WIDE) {
        const float *book = c->book;
        for (int64_t b = 0; b < c->books; b++, l++, book += c->vector * QN_VQ_TABLE_ENTRIES) {
            __m512 sum[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = _mm512_setzero_ps();
            }
            for (int64_t j = 0; j < c->vector; j++) {
                const __m512 x = _mm512_load_ps(xs + j * WIDE);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    const float w = book[j * QN_VQ_TABLE_ENTRIES + codes[l * 64 + i]];
                    sum[i] = _mm512_fmadd_ps(x, _mm512_set1_ps(w), sum[i]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                total[i] = _mm512_add_epi32(total[i], _mm512_cvtps_epi32(sum[i]));
            }
        }
    }
}

static void sums_many(const qn_vq_sums_call *c)
{
    float *const xs = (float *)(void *)c->tables;
    float factor[WIDE] = {0}, unit[WIDE] = {0};
    factors_of(c, factor, unit);
    put_elements(c, factor, 0, c->lookups / c->books * c->vector, xs);
    const __m512 units = _mm512_loadu_ps(unit);
    for (int64_t word = 0; word < c->blocks * 8; word++) {
        const uint8_t *const codes = c->codes + word / 8 * c->lookups * 64 + word % 8 * 8;
        __m512i total[8];
        word_by_many(c, xs, codes, total);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            float *const at = c->sums + (word / 8 * 64 + ROW_OF(word % 8, i)) * WIDE;
            _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[i]), units, _mm512_load_ps(at)));
        }
    }
}

const qn_vq_sums_fn qn_vq_sums_one__avx512vnni = sums_one;
const qn_vq_sums_set qn_vq_sums__avx512vnni = {sums_side, sums_many};
