/* Partial-sum tables of aqlm (kernels/common/vq.h) of level avx2: an entry is an int32 and a lookup a load, of one row
 * of x into general registers, which take three loads a clock, of eight rows beside each other into a vector. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

#define MIDDLE (1 << 20) /* products are below it */
#define SIDE QN_VQ_SIDE_ROWS
#define WIDE QN_VQ_MANY_ROWS
#define ENTRIES QN_VQ_TABLE_ENTRIES
#define AHEAD 4 /* blocks whose codes are prefetched */

/* Rows of w with a word of codes: byte 4 i + r of a line is row 16 r + i. */
#define ROW_OF(w, i) ((i) % 4 * 16 + 2 * (w) + (i) / 4)

/* ---- factors ---- */

/* Squares of eight elements and of their neighbours, summed. */
QN_INLINE __m256 sum_of_squares(__m256 v)
{
    __m256 s = _mm256_mul_ps(v, v);
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0xB1));
    s = _mm256_add_ps(s, _mm256_permute_ps(s, 0x4E));
    return _mm256_add_ps(s, _mm256_permute2f128_ps(s, s, 1));
}

/* The largest square of a length of x's vectors. */
static float largest_square(const float *x, int64_t groups, int64_t vector)
{
    float most = 0.0f;
    if (vector == 8) {
        __m256 all = _mm256_setzero_ps(), none = _mm256_setzero_ps();
        for (int64_t g = 0; g < groups; g++) {
            const __m256 s = sum_of_squares(_mm256_loadu_ps(x + g * 8));
            none = _mm256_or_ps(none, _mm256_cmp_ps(s, s, _CMP_UNORD_Q));
            all = _mm256_max_ps(all, s); /* the same in all lanes */
        }
        return _mm256_movemask_ps(none) ? NAN : _mm256_cvtss_f32(all);
    }
    for (int64_t g = 0; g < groups; g++) {
        float squares = 0.0f;
        for (int64_t j = 0; j < vector; j++) {
            squares = fmaf(x[g * vector + j], x[g * vector + j], squares);
        }
        most = squares > most || squares != squares ? squares : most;
    }
    return most;
}

/* What a slab's products of a row of x are multiplied by and its inverse, both 0 for zeros; 1 when there is no such
 * factor. By Cauchy and Schwarz, and a little more, no product is larger than `most`. */
static int factor_of(const qn_vq_sums_call *c, int64_t row, float *factor, float *unit)
{
    float norm = 0.0f;
    for (int64_t b = 0; b < c->books; b++) {
        norm = c->norms[b] > norm ? c->norms[b] : norm;
    }
    const float square = largest_square(c->x + row * c->x_stride, c->lookups / c->books, c->vector);
    const float most = sqrtf(square) * norm * 1.001f;
    *factor = *unit = 0.0f;
    if (!(most <= 0x1p80f) || (most > 0.0f && most < 0x1p-80f)) {
        return 1;
    }
    if (most > 0.0f) { /* most * factor in [MIDDLE / 2, MIDDLE) */
        *factor = ldexpf((float)MIDDLE / 2, -ilogbf(most));
        *unit = 1.0f / *factor;
    }
    return 0;
}

/* ---- one row of x ---- */

/* 256 products as integers. */
QN_INLINE void make_table(const float *x, int64_t vector, const float *book, float factor, int32_t *to)
{
    for (int e = 0; e < ENTRIES; e += 64) {
        __m256 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm256_setzero_ps();
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
    float factor, unit;
    if (factor_of(c, 0, &factor, &unit)) {
        *c->special = 1;
        return;
    }
    for (int64_t l = 0; l < c->lookups; l++) {
        const float *const book = c->book + l % c->books * c->vector * ENTRIES;
        make_table(c->x + l / c->books * c->vector, c->vector, book, factor, tables + l * ENTRIES);
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

/* at a time: their tables leave room in a first cache of 32 KB */

/* Integers of a (group, codebook): xs[vector][WIDE] times 256 vectors, each product the chain that make_table has. */
QN_INLINE void make_side(const float *xs, int64_t vector, const float *book, int32_t *to)
{
    for (int e = 0; e < ENTRIES; e += 8) {
        __m256 sum[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = _mm256_setzero_ps();
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
        _Alignas(32) uint16_t offsets[QN_VQ_SIDE_LOOKUPS][64];
#pragma GCC unroll 4
        for (int l = 0; l < lookups; l++) {
            _mm_prefetch((const char *)codes + (AHEAD * c->lookups + l) * 64, _MM_HINT_T0);
            put_offsets(codes + l * 64, offsets[l]);
        }
        for (int w = 0; w < 8; w++) {
            word_by_side(c->tables, offsets, w, lookups, l0 == 0, last, unit, c->totals + block * 64 * SIDE,
                         c->sums + block * 64 * SIDE);
        }
    }
}

/* What rows' products are multiplied by, and the inverse; 0 for those that have none or are not there. */
static void factors_of(const qn_vq_sums_call *c, float *factor, float *unit)
{
    for (int64_t r = 0; r < c->rows; r++) {
        if (factor_of(c, r, &factor[r], &unit[r])) {
            c->special[r] = 1;
        }
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
            make_side(xs, c->vector, c->book + book * c->vector * ENTRIES,
                      (int32_t *)(void *)(c->tables + l * QN_VQ_SIDE_TABLE));
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
            __m256 sum[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = _mm256_setzero_ps();
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

static void sums_many(const qn_vq_sums_call *c)
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

const qn_vq_sums_fn qn_vq_sums_one__avx2 = sums_one;
const qn_vq_sums_set qn_vq_sums__avx2 = {sums_side, sums_many};
