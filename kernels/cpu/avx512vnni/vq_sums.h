/* Partial-sum tables of aqlm (kernels/common/vq.h), one row of x or two: tables of bytes in
 * registers, 128 rows of w at a time. What levels avx512vnni and amx share. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_SUMS_H
#define QN_KERNELS_AVX512VNNI_VQ_SUMS_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/vq_sums.h"

#define PLANES 3 /* of seven bits, so that two bytes' sum is a byte, ... */
#define PLANE_BITS 7
#define PLANES_COARSE 2 /* ... or of eight */
#define ONE_ROWS 2      /* of x that share codes, when both are coarse */
#define AHEAD 3072      /* prefetched in each stream, ... */
#define AHEAD_TABLE 128 /* ... and while a table is made */

/* ---- tables ---- */

/* 64 integers as planes of bytes: bits are moved into bytes of their own, then bytes are brought together, the first
 * two planes' by one permute. */
QN_INLINE void put_planes(uint8_t *to, const __m512i q[4])
{
    const __m512i middle = _mm512_set1_epi32(MIDDLE);
    const __m512i fields = _mm512_set1_epi64(0x2e2e27200e0e0700); /* from bit 0, 7, 14 of each integer on */
    const __m512i bits = _mm512_set1_epi8((1 << PLANE_BITS) - 1);
    const __m512i fourth =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60));
    const __m512i two = _mm512_add_epi8(fourth, lanes_of(0, 64, 1, 65));
    const __m512i third = _mm512_add_epi8(fourth, lanes_of(2, 66, 2, 66));
    __m512i b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_multishift_epi64_epi8(fields, _mm512_add_epi32(q[i], middle));
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

/* 64 coarse integers: pairs of registers as words, four words of each in turn, then their bytes are brought together.
 */
QN_INLINE void put_planes_coarse(uint8_t *to, const __m512i q[4])
{
    const __m512i top = _mm512_set1_epi8((char)0x80); /* + MIDDLE_COARSE */
    const __m512i bytes = _mm512_add_epi8(
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54)),
        lanes_of(0, 8, 1, 9));
    const __m512i low = _mm512_permutexvar_epi8(bytes, _mm512_packs_epi32(q[0], q[1]));
    const __m512i high = _mm512_permutexvar_epi8(bytes, _mm512_packs_epi32(q[2], q[3]));
    _mm512_storeu_si512(to, _mm512_shuffle_i64x2(low, high, 0x44));
    _mm512_storeu_si512(to + ENTRIES, _mm512_xor_si512(_mm512_shuffle_i64x2(low, high, 0xEE), top));
}

/* 64 entries' products go on with an element of their vectors. */
QN_INLINE void add_products(__m512 sum[4], __m512 x, const float *book)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sum[i] = _mm512_fmadd_ps(x, _mm512_loadu_ps(book + i * 16), sum[i]);
    }
}

/* Of vectors of `fixed` elements, which are in registers all along, or of any number: 0. */
QN_INLINE void make_table(const float *x, const int fixed, int64_t vector, const float *book, float factor,
                          float dither, const int coarse, uint8_t *to)
{
    __m512 xs[16];
#pragma GCC unroll 16
    for (int j = 0; j < fixed; j++) {
        xs[j] = _mm512_set1_ps(x[j] * factor);
    }
    for (int e = 0; e < ENTRIES; e += 64) {
        __m512 sum[4];
        __m512i q[4];
        sum[0] = sum[1] = sum[2] = sum[3] = _mm512_set1_ps(dither);
#pragma GCC unroll 16
        for (int j = 0; j < fixed; j++) {
            add_products(sum, xs[j], book + e + j * ENTRIES);
        }
        for (int64_t j = fixed; j < vector; j++) {
            add_products(sum, _mm512_set1_ps(x[j] * factor), book + e + j * ENTRIES);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            q[i] = _mm512_cvtps_epi32(sum[i]);
        }
        if (coarse) {
            put_planes_coarse(to + e, q);
        } else {
            put_planes(to + e, q);
        }
    }
}

/* ---- lookups ---- */

/* Sums of bytes of 64 rows, a plane: of all pairs as 16-bit numbers, and of the upper bytes. */
typedef struct pairs {
    __m512i all, upper;
} pairs;

/* Integers of 64 rows, from the pairs of their planes, to the running sums: a dot of two numbers takes one of them
 * times its plane's place. */
QN_INLINE void add_rows(const pairs p[PLANES], const int planes, int64_t lookups, __m512 unit, float *sums)
{
    const int bits = planes == PLANES ? PLANE_BITS : 8;
    const __m512i middle = _mm512_set1_epi32(-(int32_t)lookups * (planes == PLANES ? MIDDLE : MIDDLE_COARSE));
    __m512i lower[PLANES];
#pragma GCC unroll 3
    for (int i = 0; i < planes; i++) {
        lower[i] = _mm512_sub_epi16(p[i].all, _mm512_slli_epi16(p[i].upper, 8));
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        __m512i total = middle;
#pragma GCC unroll 3
        for (int i = 0; i < planes; i++) {
            const __m512i place = _mm512_set1_epi32(r / 2 ? 1 << (16 + bits * i) : 1 << bits * i);
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

typedef struct line_codes {
    __m512i codes;
    byte_parts parts;
} line_codes;

QN_INLINE line_codes load_codes(const uint8_t *at, const uint8_t *ahead)
{
    _mm_prefetch((const char *)ahead, _MM_HINT_T0);
    const __m512i codes = _mm512_loadu_si512(at);
    return (line_codes){codes, parts_of(codes)};
}

/* `count` lookups, 1 or 2, of 64 rows of each stream. */
QN_INLINE void look_up_fine(pairs p[2][PLANES], const uint8_t *codes, int64_t stream, const uint8_t *ahead,
                            const uint8_t *tables, const int count)
{
    __m512i sum[2][PLANES];
#pragma GCC unroll 2
    for (int l = 0; l < count; l++) {
        const line_codes line[2] = {load_codes(codes + l * 64, ahead + l * 64),
                                    load_codes(codes + stream + l * 64, ahead + stream + l * 64)};
#pragma GCC unroll 3
        for (int q = 0; q < PLANES; q++) {
            byte_table t;
            table_load(&t, tables + l * QN_VQ_TABLE_BYTES + q * ENTRIES);
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const __m512i found = look_up(&t, line[i].codes, line[i].parts);
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

/* What is fetched at line n of each stream: codes ahead, behind the last those of the next call up to where making its
 * tables goes on. */
QN_INLINE const uint8_t *ahead_of(const qn_vq_sums_call *c, int64_t n)
{
    const int64_t line = c->lookups * 64, stream = c->lines * line;
    const int64_t at = n * line + AHEAD + c->lookups * AHEAD_TABLE;
    return at < stream ? c->codes + at : at < stream + AHEAD ? c->next + (at - stream) : c->codes + n * line;
}

static void look_up_codes(const qn_vq_sums_call *c, const uint8_t *tables)
{
    const int64_t stream = c->lines * c->lookups * 64;
    const __m512 unit = _mm512_set1_ps(c->scales->unit);
    for (int64_t n = 0; n < c->lines; n++) {
        const uint8_t *const codes = c->codes + n * c->lookups * 64, *const ahead = ahead_of(c, n);
        pairs p[2][PLANES] = {{{_mm512_setzero_si512(), _mm512_setzero_si512()}}};
        for (int64_t l = 0; l < c->lookups - 1; l += 2) {
            look_up_fine(p, codes + l * 64, stream, ahead + l * 64, tables + l * QN_VQ_TABLE_BYTES, 2);
        }
        if (c->lookups % 2) {
            const int64_t l = c->lookups - 1;
            look_up_fine(p, codes + l * 64, stream, ahead + l * 64, tables + l * QN_VQ_TABLE_BYTES, 1);
        }
        add_rows(p[0], PLANES, c->lookups, unit, c->sums + n * 64);
        add_rows(p[1], PLANES, c->lookups, unit, c->sums + (c->lines + n) * 64);
    }
}

/* Tables of rows of x are behind each other in each lookup's place. */
QN_INLINE void look_up_coarse(const qn_vq_sums_call *c, const uint8_t *tables, const int rows)
{
    const int64_t stream = c->lines * c->lookups * 64;
    for (int64_t n = 0; n < c->lines; n++) {
        const uint8_t *const codes = c->codes + n * c->lookups * 64, *const ahead = ahead_of(c, n);
        pairs p[2][ONE_ROWS][PLANES];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                p[i][r][0] = p[i][r][1] = (pairs){_mm512_setzero_si512(), _mm512_setzero_si512()};
            }
        }
        for (int64_t l = 0; l < c->lookups; l++) {
            const line_codes line[2] = {load_codes(codes + l * 64, ahead + l * 64),
                                        load_codes(codes + stream + l * 64, ahead + stream + l * 64)};
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
                for (int q = 0; q < PLANES_COARSE; q++) {
                    byte_table t;
                    table_load(&t, tables + ((l * rows + r) * PLANES_COARSE + q) * ENTRIES);
#pragma GCC unroll 2
                    for (int i = 0; i < 2; i++) {
                        add_bytes(&p[i][r][q], look_up(&t, line[i].codes, line[i].parts));
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++) {
            const __m512 unit = _mm512_set1_ps(c->scales[r * c->scale_stride].unit);
            float *const sums = c->sums + r * c->sums_stride;
            add_rows(p[0][r], PLANES_COARSE, c->lookups, unit, sums + n * 64);
            add_rows(p[1][r], PLANES_COARSE, c->lookups, unit, sums + (c->lines + n) * 64);
        }
    }
}

/* Tables of row r of x, `step` bytes apart, a book's after the other's: it is in the first cache then. */
QN_INLINE void make_tables(const qn_vq_sums_call *c, int64_t r, const int coarse, uint8_t *to, int64_t step)
{
    const float factor = c->scales[r * c->scale_stride].factor;
    for (int64_t i = 0, b = 0, l = 0; i < c->lookups; i++, l += c->books) {
        if (l >= c->lookups) {
            l = ++b;
        }
        const char *const ahead = (const char *)c->codes + AHEAD + i * AHEAD_TABLE;
#pragma GCC unroll 4
        for (int j = 0; j < AHEAD_TABLE; j += 64) {
            _mm_prefetch(ahead + j, _MM_HINT_T0);
            _mm_prefetch(ahead + c->lines * c->lookups * 64 + j, _MM_HINT_T0);
        }
        const float *const x = c->x + r * c->x_stride + l / c->books * c->vector;
        const float *const book = c->book + b * c->vector * ENTRIES;
        const float dither = dither_of(c->first + l);
        switch (c->vector) {
        case 4: make_table(x, 4, 4, book, factor, dither, coarse, to + l * step); break;
        case 8: make_table(x, 8, 8, book, factor, dither, coarse, to + l * step); break;
        case 16: make_table(x, 16, 16, book, factor, dither, coarse, to + l * step); break;
        default: make_table(x, 0, c->vector, book, factor, dither, coarse, to + l * step);
        }
    }
}

static void sums_coarse_1(const qn_vq_sums_call *c)
{
    uint8_t *const tables = (uint8_t *)c->tables;
    make_tables(c, 0, 1, tables, PLANES_COARSE * ENTRIES);
    look_up_coarse(c, tables, 1);
}

static void sums_coarse_2(const qn_vq_sums_call *c)
{
    uint8_t *const tables = (uint8_t *)c->tables;
    make_tables(c, 0, 1, tables, ONE_ROWS * PLANES_COARSE * ENTRIES);
    make_tables(c, 1, 1, tables + PLANES_COARSE * ENTRIES, ONE_ROWS * PLANES_COARSE * ENTRIES);
    look_up_coarse(c, tables, ONE_ROWS);
}

static void sums_fine(const qn_vq_sums_call *c)
{
    uint8_t *const tables = (uint8_t *)c->tables;
    make_tables(c, 0, 0, tables, QN_VQ_TABLE_BYTES);
    look_up_codes(c, tables);
}

/* Row r of c alone. */
static void sums_row(const qn_vq_sums_call *c, int64_t r)
{
    qn_vq_sums_call row = *c;
    row.x += r * c->x_stride;
    row.scales += r * c->scale_stride;
    row.sums += r * c->sums_stride;
    if (row.scales->plain) {
        sums_plain(&row, 0, row.sums, 1);
        return;
    }
    (row.scales->coarse ? sums_coarse_1 : sums_fine)(&row);
}

static void sums_one(const qn_vq_sums_call *c)
{
    if (c->rows == ONE_ROWS && c->scales->coarse && c->scales[c->scale_stride].coarse) {
        sums_coarse_2(c);
        return;
    }
    for (int64_t r = 0; r < c->rows; r++) {
        sums_row(c, r);
    }
}

#endif
