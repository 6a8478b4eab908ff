/* Partial-sum tables of aqlm (kernels/common/vq.h) of level avx512vnni: one row of x (vq_sums.h), and rows beside each
 * other. */
#include "kernels/cpu/avx512vnni/vq_sums.h"

#define SIDE 16 /* rows of x beside each other */

/* Which of a register's sixteen numbers are among the last `left`. */
QN_INLINE __mmask16 first_of(int64_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
}

/* ---- scales ---- */

/* Vectors of 4, 8 and 16 go sixteen elements at a time. */
static lengths lengths_of(const float *x, int64_t groups, int64_t vector)
{
    if (vector == 4 || vector == 8 || vector == 16) {
        __m512 most = _mm512_setzero_ps(), all = _mm512_setzero_ps();
        for (int64_t i = 0; i < groups * vector; i += 16) {
            const __m512 v = _mm512_maskz_loadu_ps(first_of(groups * vector - i), x + i);
            __m512 s = _mm512_mul_ps(v, v);
            all = _mm512_add_ps(all, s);
            s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
            s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
            s = vector >= 8 ? _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1)) : s;
            s = vector >= 16 ? _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0x4E)) : s;
            most = _mm512_max_ps(most, s);
        }
        const lengths of = {_mm512_reduce_max_ps(most), _mm512_reduce_add_ps(all)};
        return of.all == of.all ? of : (lengths){NAN, NAN};
    }
    return lengths_by_one(x, groups, vector);
}

/* The largest of some products and those of `groups` vectors with a codebook's longest. */
QN_INLINE __m512 longest_products(__m512 most, const float *x, const int groups, int64_t vector, const float *longest)
{
    __m512 sum[4];
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) {
        sum[g] = _mm512_setzero_ps();
    }
    for (int64_t j = 0; j < vector; j++) {
        const __m512 v = _mm512_loadu_ps(longest + j * QN_VQ_LONGEST);
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) {
            sum[g] = _mm512_fmadd_ps(_mm512_set1_ps(x[g * vector + j]), v, sum[g]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) {
        most = _mm512_max_ps(most, _mm512_abs_ps(sum[g]));
    }
    return most;
}

/* Products with the longest vectors as they will be, and what others may reach by Cauchy and Schwarz: an outlier among
 * them would cost all products a bit or two. */
static reach reach_of(const qn_vq_sums_row *row, const float *x, int64_t groups)
{
    const lengths of = lengths_of(x, groups, row->vector);
    __m512 most = _mm512_set1_ps(sqrtf(of.most) * row->next_norm);
    for (int64_t b = 0; b < row->books; b++) {
        const float *const longest = row->longest + b * row->vector * QN_VQ_LONGEST;
        int64_t g = 0;
        for (; g + 4 <= groups; g += 4) {
            most = longest_products(most, x + g * row->vector, 4, row->vector, longest);
        }
        for (; g < groups; g++) {
            most = longest_products(most, x + g * row->vector, 1, row->vector, longest);
        }
    }
    return (reach){of, _mm512_reduce_max_ps(most)};
}

static int scale_row(const qn_vq_sums_row *row)
{
    return scales_of_row(row, reach_of);
}

/* ---- rows of x beside each other ---- */

/* Integers of a (group, codebook): xs[vector][WIDE] times 256 vectors, each product the chain that make_table has. */
QN_INLINE void make_side(const float *xs, int64_t vector, const float *book, float dither, int32_t *to)
{
    for (int e = 0; e < ENTRIES; e += 8) {
        __m512 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm512_set1_ps(dither);
        }
        for (int64_t j = 0; j < vector; j++) {
            const __m512 x = _mm512_load_ps(xs + j * WIDE);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = _mm512_fmadd_ps(x, _mm512_set1_ps(book[e + i + j * ENTRIES]), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm512_store_si512(to + (e + i) * SIDE, _mm512_cvtps_epi32(sum[i]));
        }
    }
}

/* Where the entries of a line's codes are in their table. */
QN_INLINE void put_offsets(const uint8_t *codes, uint16_t *to)
{
#pragma GCC unroll 2
    for (int i = 0; i < 64; i += 32) {
        const __m512i half = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(codes + i)));
        _mm512_store_si512(to + i, _mm512_slli_epi16(half, 6));
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

typedef __m512i side_ints;

QN_INLINE side_ints side_zero(void)
{
    return _mm512_setzero_si512();
}

QN_INLINE side_ints side_load(const int32_t *from)
{
    return _mm512_load_si512(from);
}

QN_INLINE side_ints side_add(side_ints total, const char *entry)
{
    return _mm512_add_epi32(total, _mm512_load_si512(entry));
}

QN_INLINE void side_store(int32_t *to, side_ints total)
{
    _mm512_store_si512(to, total);
}

QN_INLINE void side_finish(float *to, side_ints total, const float *unit)
{
    _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), _mm512_loadu_ps(unit), _mm512_load_ps(to)));
}

#include "kernels/cpu/vq_sums_side.h"

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
        for (int64_t b = 0; b < c->books; b++, l++, book += c->vector * ENTRIES) {
            const __m512 dither = _mm512_set1_ps(dither_of(c->first + l));
            __m512 sum[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = dither;
            }
            for (int64_t j = 0; j < c->vector; j++) {
                const __m512 x = _mm512_load_ps(xs + j * WIDE);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    const float w = book[j * ENTRIES + codes[l * 64 + i]];
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

static void sums_many_rounded(const qn_vq_sums_call *c)
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

static void sums_many(const qn_vq_sums_call *c)
{
    if (!all_plain(c)) {
        sums_many_rounded(c);
    }
    sums_plain_rows(c, WIDE);
}

const qn_vq_sums_fn qn_vq_sums_one__avx512vnni = sums_one;
const qn_vq_sums_set qn_vq_sums__avx512vnni = {scale_row, sums_side, sums_many};
