/* Partial-sum tables of aqlm (kernels/common/vq.h) of level avx2: an entry is an int32 and a lookup a load, of one row
 * of x into general registers, which take three loads a clock, of eight rows beside each other into a vector. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/name.h"
#include "kernels/cpu/vq_sums.h"

#define SIDE 8  /* rows of x beside each other */
#define AHEAD 4 /* blocks whose codes are prefetched */

/* ---- scales ---- */

/* Squares of eight elements and of their neighbours, summed. */
QN_INLINE __m256 sum_of_squares(__m256 v)
{
    __m256 s = _mm256_mul_ps(v, v);
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0xB1));
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0x4E));
    return _mm256_add_ps(s, _mm256_permute2f128_ps(s, s, 1));
}

static lengths lengths_of(const float *x, int64_t groups, int64_t vector)
{
    if (vector == 8) {
        __m256 most = _mm256_setzero_ps(), all = _mm256_setzero_ps(); /* the same in all lanes */
        for (int64_t g = 0; g < groups; g++) {
            const __m256 s = sum_of_squares(_mm256_loadu_ps(x + g * 8));
            all = _mm256_add_ps(all, s);
            most = _mm256_max_ps(most, s);
        }
        const lengths of = {_mm256_cvtss_f32(most), _mm256_cvtss_f32(all)};
        return of.all == of.all ? of : (lengths){NAN, NAN};
    }
    return lengths_by_one(x, groups, vector);
}

/* By Cauchy and Schwarz. */
static reach reach_of(const qn_vq_sums_row *row, const float *x, int64_t groups)
{
    const lengths of = lengths_of(x, groups, row->vector);
    return (reach){of, sqrtf(of.most) * row->longest_norm};
}

static int scale_row(const qn_vq_sums_row *row)
{
    return scales_of_row(row, reach_of);
}

/* ---- one row of x ---- */

/* 256 products as integers. */
QN_INLINE void make_table(const float *x, int64_t vector, const float *book, float factor, float dither, int32_t *to)
{
    for (int e = 0; e < ENTRIES; e += 64) {
        __m256 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm256_set1_ps(dither);
        }
        for (int64_t j = 0; j < vector; j++) {
            const __m256 v = _mm256_set1_ps(x[j] * factor);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = _mm256_fmadd_ps(v, _mm256_loadu_ps(book + j * ENTRIES + e + i * 8), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm256_store_si256((__m256i *)(void *)(to + e + i * 8), _mm256_cvtps_epi32(sum[i]));
        }
    }
}

/* Sums of the rows of w whose codes are word w of `lookups` lines: half of the codes come by loads of their own, half
 * out of a register, as neither loads nor shifts are then alone what takes the time. */
QN_INLINE void word_by_one(const int32_t *table, const uint8_t *codes, const int64_t lookups, int w, int32_t *total)
{
    int32_t s[8] = {0};
#pragma GCC unroll 4
    for (int64_t l = 0; l < lookups; l++, table += ENTRIES, codes += 64) {
        const uint8_t *const at = codes + w * 8;
        uint32_t half;
        memcpy(&half, at + 4, sizeof half);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            s[i] += table[at[i]];
            s[4 + i] += table[(uint8_t)(half >> 8 * i)];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        total[ROW_OF(w, i)] = s[i];
    }
}

static void sums_one(const qn_vq_sums_call *c)
{
    int32_t *const tables = (int32_t *)(void *)c->tables;
    const float factor = c->scales->factor, unit = c->scales->unit;
    if (c->scales->plain) {
        sums_plain(c, 0, c->sums, 1);
        return;
    }
    for (int64_t l = 0; l < c->lookups; l++) {
        const float *const book = c->book + l % c->books * c->vector * ENTRIES;
        make_table(c->x + l / c->books * c->vector, c->vector, book, factor, dither_of(c->first + l),
                   tables + l * ENTRIES);
    }
    for (int64_t block = 0; block < c->blocks; block++) {
        const uint8_t *const codes = c->codes + block * c->lookups * 64;
        float *const sums = c->sums + block * 64;
        _Alignas(32) int32_t total[64];
        for (int64_t l = 0; l < c->lookups; l++) {
            _mm_prefetch((const char *)codes + (AHEAD * c->lookups + l) * 64, _MM_HINT_T0);
        }
        for (int w = 0; w < 8; w++) {
            if (c->lookups == QN_VQ_LOOKUPS) {
                word_by_one(tables, codes, QN_VQ_LOOKUPS, w, total);
            } else {
                word_by_one(tables, codes, c->lookups, w, total);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 64; i += 8) {
            const __m256 t = _mm256_cvtepi32_ps(_mm256_load_si256((const __m256i *)(const void *)(total + i)));
            _mm256_store_ps(sums + i, _mm256_fmadd_ps(t, _mm256_set1_ps(unit), _mm256_load_ps(sums + i)));
        }
    }
}

/* ---- rows of x beside each other ---- */

/* Integers of a (group, codebook): xs[vector][WIDE] times 256 vectors, each product the chain that make_table has. */
QN_INLINE void make_side(const float *xs, int64_t vector, const float *book, float dither, int32_t *to)
{
    for (int e = 0; e < ENTRIES; e += 8) {
        __m256 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm256_set1_ps(dither);
        }
        for (int64_t j = 0; j < vector; j++) {
            const __m256 x = _mm256_load_ps(xs + j * WIDE);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = _mm256_fmadd_ps(x, _mm256_broadcast_ss(book + j * ENTRIES + e + i), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm256_store_si256((__m256i *)(void *)(to + (e + i) * SIDE), _mm256_cvtps_epi32(sum[i]));
        }
    }
}

/* Where the entries of a line's codes are in their table. */
QN_INLINE void put_offsets(const uint8_t *codes, uint16_t *to)
{
#pragma GCC unroll 4
    for (int i = 0; i < 64; i += 16) {
        const __m256i some = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(codes + i)));
        _mm256_store_si256((__m256i *)(void *)(to + i), _mm256_slli_epi16(some, 5));
    }
}

/* Elements first to first + count - 1 times their rows' factors: to[element][WIDE], zeros where there is no factor
 * (such a row may hold anything) or no row. */
static void put_elements(const qn_vq_sums_call *c, const float *factor, int64_t first, int64_t count, float *to)
{
    for (int64_t r = 0; r < WIDE; r++) {
        const int here = r < c->rows && factor[r] != 0.0f;
        for (int64_t e = 0; e < count; e++) {
            to[e * WIDE + r] = here ? c->x[r * c->x_stride + first + e] * factor[r] : 0.0f;
        }
    }
}

typedef __m256i side_ints;

QN_INLINE side_ints side_zero(void)
{
    return _mm256_setzero_si256();
}

QN_INLINE side_ints side_load(const int32_t *from)
{
    return _mm256_load_si256((const __m256i *)(const void *)from);
}

QN_INLINE side_ints side_add(side_ints total, const char *entry)
{
    return _mm256_add_epi32(total, _mm256_load_si256((const __m256i *)(const void *)entry));
}

QN_INLINE void side_store(int32_t *to, side_ints total)
{
    _mm256_store_si256((__m256i *)(void *)to, total);
}

QN_INLINE void side_finish(float *to, side_ints total, const float *unit)
{
    _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), _mm256_loadu_ps(unit), _mm256_load_ps(to)));
}

#include "kernels/cpu/vq_sums_side.h"

/* ---- products of chosen vectors ---- */

/* Eight of WIDE rows of x, xs[groups][vector][WIDE], by the rows of w whose codes are a word of all lookups. Each
 * product is the chain that make_table has. */
QN_INLINE void word_by_many(const qn_vq_sums_call *c, const float *xs, const uint8_t *codes, __m256i total[8])
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        total[i] = _mm256_setzero_si256();
    }
    for (int64_t l = 0; l < c->lookups; xs += c->vector * WIDE) {
        const float *book = c->book;
        for (int64_t b = 0; b < c->books; b++, l++, book += c->vector * ENTRIES) {
            const __m256 dither = _mm256_set1_ps(dither_of(c->first + l));
            __m256 sum[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = dither;
            }
            for (int64_t j = 0; j < c->vector; j++) {
                const __m256 x = _mm256_load_ps(xs + j * WIDE);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
                    const __m256 w = _mm256_broadcast_ss(book + j * ENTRIES + codes[l * 64 + i]);
                    sum[i] = _mm256_fmadd_ps(x, w, sum[i]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                total[i] = _mm256_add_epi32(total[i], _mm256_cvtps_epi32(sum[i]));
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
    for (int64_t word = 0; word < c->blocks * 8; word++) {
        const uint8_t *const codes = c->codes + word / 8 * c->lookups * 64 + word % 8 * 8;
        for (int half = 0; half < (c->rows > 8 ? WIDE : 8); half += 8) {
            const __m256 units = _mm256_loadu_ps(unit + half);
            __m256i total[8];
            word_by_many(c, xs + half, codes, total);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                float *const at = c->sums + (word / 8 * 64 + ROW_OF(word % 8, i)) * WIDE + half;
                _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), units, _mm256_load_ps(at)));
            }
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

const qn_vq_sums_fn qn_vq_sums_one__avx2 = sums_one;
const qn_vq_sums_set qn_vq_sums__avx2 = {scale_row, sums_side, sums_many};
