/* Partial-sum tables of aqlm (kernels/common/vq.h), one row of x: tables of bytes in
 * registers, 128 rows of w at a time. What levels avx512vnni and amx share. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_SUMS_H
#define QN_KERNELS_AVX512VNNI_VQ_SUMS_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/vq_sums.h"

#define PLANES 3
#define PLANE_BITS 7 /* two bytes' sum is a byte */
#define AHEAD 3072   /* prefetched in each stream */

/* ---- tables ---- */

/* Which of a register's sixteen numbers are among the last `left`. */
QN_INLINE __mmask16 first_of(int64_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
}

/* The largest square of a length of x's vectors: of 4, 8 and 16 elements sixteen elements at a time. */
QN_INLINE float largest_square(const float *x, int64_t groups, int64_t vector)
{
    if (vector == 4 || vector == 8 || vector == 16) {
        __m512 most = _mm512_setzero_ps();
        __mmask16 none = 0;
        for (int64_t i = 0; i < groups * vector; i += 16) {
            const __m512 v = _mm512_maskz_loadu_ps(first_of(groups * vector - i), x + i);
            __m512 s = _mm512_mul_ps(v, v);
            s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
            s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
            s = vector >= 8 ? _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0xB1)) : s;
            s = vector >= 16 ? _mm512_add_ps(s, _mm512_shuffle_f32x4(s, s, 0x4E)) : s;
            none = (__mmask16)(none | _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q));
            most = _mm512_max_ps(most, s);
        }
        return none ? NAN : _mm512_reduce_max_ps(most);
    }
    return largest_square_by_one(x, groups, vector);
}

/* The same number in all bytes of each of four lanes. */
QN_INLINE __m512i lanes_of(int a, int b, int c, int d)
{
    const __m128i lane[4] = {_mm_set1_epi8((char)a), _mm_set1_epi8((char)b), _mm_set1_epi8((char)c),
                             _mm_set1_epi8((char)d)};
    __m512i all = _mm512_castsi128_si512(lane[0]);
    all = _mm512_inserti32x4(all, lane[1], 1);
    all = _mm512_inserti32x4(all, lane[2], 2);
    return _mm512_inserti32x4(all, lane[3], 3);
}

/* 64 integers as planes of bytes: bits are moved into bytes of their own, then bytes are brought together, the first
 * two planes' by one permute. */
QN_INLINE void put_planes(uint8_t *to, const __m512i q[4])
{
    const __m512i fields = _mm512_set1_epi64(0x2e2e27200e0e0700); /* from bit 0, 7, 14 of each integer on */
    const __m512i bits = _mm512_set1_epi8((1 << PLANE_BITS) - 1);
    const __m512i fourth =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60));
    const __m512i two = _mm512_add_epi8(fourth, lanes_of(0, 64, 1, 65));
    const __m512i third = _mm512_add_epi8(fourth, lanes_of(2, 66, 2, 66));
    __m512i b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_multishift_epi64_epi8(fields, q[i]);
    }
    const __m512i low = _mm512_permutex2var_epi8(b[0], two, b[1]), high = _mm512_permutex2var_epi8(b[2], two, b[3]);
    const __m512i plane[PLANES] = {_mm512_shuffle_i64x2(low, high, 0x44), _mm512_shuffle_i64x2(low, high, 0xEE),
                                   _mm512_shuffle_i64x2(_mm512_permutex2var_epi8(b[0], third, b[1]),
                                                        _mm512_permutex2var_epi8(b[2], third, b[3]), 0x44)};
#pragma GCC unroll 3
    for (int p = 0; p < PLANES; p++) {
        _mm512_storeu_si512(to + p * ENTRIES, _mm512_and_si512(plane[p], bits));
    }
}

/* 64 entries' products go on with an element of their vectors. */
QN_INLINE void add_products(__m512 sum[4], __m512 x, const float *book)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sum[i] = _mm512_fmadd_ps(x, _mm512_loadu_ps(book + i * 16), sum[i]);
    }
}

/* Vectors of 8 have their elements in registers all along. */
QN_INLINE void make_table(const float *x, int64_t vector, const float *book, float factor, uint8_t *to)
{
    __m512 xs[8];
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; j++) {
        xs[j] = _mm512_set1_ps(vector == 8 ? x[j] * factor : 0.0f);
    }
    for (int e = 0; e < ENTRIES; e += 64) {
        __m512 sum[4];
        __m512i q[4];
        sum[0] = sum[1] = sum[2] = sum[3] = _mm512_setzero_ps();
        if (vector == 8) {
#pragma GCC unroll 8
            for (int64_t j = 0; j < 8; j++) {
                add_products(sum, xs[j], book + e + j * ENTRIES);
            }
        } else {
            for (int64_t j = 0; j < vector; j++) {
                add_products(sum, _mm512_set1_ps(x[j] * factor), book + e + j * ENTRIES);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            q[i] = _mm512_add_epi32(_mm512_cvtps_epi32(sum[i]), _mm512_set1_epi32(MIDDLE));
        }
        put_planes(to + e, q);
    }
}

/* ---- lookups ---- */

/* Sums of bytes of 64 rows, a plane: of all pairs as 16-bit numbers, and of the upper bytes. */
typedef struct pairs {
    __m512i all, upper;
} pairs;

/* Integers of 64 rows, from the pairs of three planes, to the running sums: a dot of two numbers takes one of them
 * times its plane's place. */
QN_INLINE void add_rows(const pairs p[PLANES], __m512i middle, __m512 unit, float *sums)
{
    __m512i lower[PLANES];
#pragma GCC unroll 3
    for (int i = 0; i < PLANES; i++) {
        lower[i] = _mm512_sub_epi16(p[i].all, _mm512_slli_epi16(p[i].upper, 8));
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        __m512i total = middle;
#pragma GCC unroll 3
        for (int i = 0; i < PLANES; i++) {
            const __m512i place = _mm512_set1_epi32(r / 2 ? 1 << (16 + PLANE_BITS * i) : 1 << PLANE_BITS * i);
            total = _mm512_dpwssd_epi32(total, r % 2 ? p[i].upper : lower[i], place);
        }
        float *const at = sums + r * 16;
        _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), unit, _mm512_loadu_ps(at)));
    }
}

QN_INLINE void add_bytes(pairs *p, __m512i bytes)
{
    p->all = _mm512_add_epi16(p->all, bytes);
    p->upper = _mm512_add_epi16(p->upper, _mm512_srli_epi16(bytes, 8));
}

/* `count` lookups, 1 or 2, of 64 rows of each stream. */
QN_INLINE void look_up_rows(pairs p[2][PLANES], const uint8_t *codes, int64_t stream, const uint8_t *tables,
                            const int count)
{
    __m512i sum[2][PLANES];
#pragma GCC unroll 2
    for (int l = 0; l < count; l++) {
        __m512i line[2];
        byte_parts parts[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const uint8_t *const at = codes + i * stream + l * 64;
            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            line[i] = _mm512_loadu_si512(at);
            parts[i] = parts_of(line[i]);
        }
#pragma GCC unroll 3
        for (int q = 0; q < PLANES; q++) {
            byte_table t;
            table_load(&t, tables + l * QN_VQ_TABLE_BYTES + q * ENTRIES);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m512i found = look_up(&t, line[i], parts[i]);
                sum[i][q] = l ? _mm512_add_epi8(sum[i][q], found) : found;
            }
        }
    }
#pragma GCC unroll 3
    for (int q = 0; q < PLANES; q++) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            add_bytes(&p[i][q], sum[i][q]);
        }
    }
}

static void look_up_codes(const qn_vq_sums_call *c, const uint8_t *tables, float unit)
{
    const __m512i middle = _mm512_set1_epi32(-(int32_t)c->lookups * MIDDLE);
    const int64_t stream = c->lines * c->lookups * 64;
    for (int64_t n = 0; n < c->lines; n++) {
        const uint8_t *codes = c->codes + n * c->lookups * 64, *table = tables;
        pairs p[2][PLANES];
        for (int i = 0; i < PLANES; i++) {
            p[0][i] = p[1][i] = (pairs){_mm512_setzero_si512(), _mm512_setzero_si512()};
        }
        for (int64_t l = c->lookups; l >= 2; l -= 2, codes += 2 * 64, table += 2 * QN_VQ_TABLE_BYTES) {
            look_up_rows(p, codes, stream, table, 2);
        }
        if (c->lookups % 2) {
            look_up_rows(p, codes, stream, table, 1);
        }
        add_rows(p[0], middle, _mm512_set1_ps(unit), c->sums + n * 64);
        add_rows(p[1], middle, _mm512_set1_ps(unit), c->sums + (c->lines + n) * 64);
    }
}

static void sums_one(const qn_vq_sums_call *c)
{
    uint8_t *const tables = (uint8_t *)c->tables;
    float factor, unit;
    if (factor_of(c, largest_square(c->x, c->lookups / c->books, c->vector), &factor, &unit)) {
        *c->special = 1;
        return;
    }
    for (int64_t l = 0; l < c->lookups; l++) {
        const float *const book = c->book + l % c->books * c->vector * ENTRIES;
        make_table(c->x + l / c->books * c->vector, c->vector, book, factor, tables + l * QN_VQ_TABLE_BYTES);
    }
    look_up_codes(c, tables, unit);
}

#endif
