/* Partial-sum tables of aqlm (kernels/common/vq.h) of level avx512vnni: tables of
 * bytes in registers, 128 rows of w at a time. */
#include <math.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/avx512vnni/bytes.h"

#define PLANES 3
#define MIDDLE (1 << 23)
#define AHEAD 4096 /* prefetched in each stream */

/* ---- tables ---- */

/* The largest |x . vector| there can be, by Cauchy and Schwarz, and a little more. */
static float largest(const float *x, int64_t groups, int64_t books, int64_t vector, const float *norms)
{
    float most = 0.0f, norm = 0.0f;
    for (int64_t c = 0; c < books; c++) {
        norm = norms[c] > norm ? norms[c] : norm;
    }
    for (int64_t g = 0; g < groups; g++) {
        float squares = 0.0f;
        for (int64_t j = 0; j < vector; j++) {
            squares = fmaf(x[g * vector + j], x[g * vector + j], squares);
        }
        most = squares > most || squares != squares ? squares : most;
    }
    return sqrtf(most) * norm * 1.001f;
}

/* Bytes of 64 integers: where bytes 0 and 1, and where bytes 2, of two registers go. */
QN_INLINE void put_planes(uint8_t *to, const __m512i q[4], __m512i low, __m512i high)
{
    const __m512i a = _mm512_permutex2var_epi8(q[0], low, q[1]), b = _mm512_permutex2var_epi8(q[2], low, q[3]);
    const __m512i c = _mm512_permutex2var_epi8(q[0], high, q[1]), d = _mm512_permutex2var_epi8(q[2], high, q[3]);
    _mm512_storeu_si512(to, _mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1));
    _mm512_storeu_si512(to + 256, _mm512_shuffle_i64x2(a, b, 0xEE));
    _mm512_storeu_si512(to + 512, _mm512_inserti64x4(c, _mm512_castsi512_si256(d), 1));
}

static __m512i byte_order(int first)
{
    uint8_t at[64];
    for (int i = 0; i < 64; i++) {
        at[i] = (uint8_t)((i % 32 < 16 ? 0 : 64) + i % 16 * 4 + first + i / 32);
    }
    return _mm512_loadu_si512(at);
}

/* 64 entries' products go on with up to eight elements of their vectors. */
QN_INLINE void add_products(__m512 sum[4], const float *x, const int vector, const float *book, float factor)
{
    __m512 xs[8];
#pragma GCC unroll 8
    for (int j = 0; j < vector; j++) {
        xs[j] = _mm512_set1_ps(x[j] * factor);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < vector; j++) {
            const __m512 w = _mm512_loadu_ps(book + i * 16 + j * QN_VQ_TABLE_ENTRIES);
            sum[i] = _mm512_fmadd_ps(xs[j], w, sum[i]);
        }
    }
}

QN_INLINE void make_table(const float *x, int64_t vector, const float *book, float factor, __m512i low, __m512i high,
                          uint8_t *to)
{
    for (int e = 0; e < QN_VQ_TABLE_ENTRIES; e += 64) {
        __m512 sum[4];
        __m512i q[4];
        sum[0] = sum[1] = sum[2] = sum[3] = _mm512_setzero_ps();
        int64_t j = 0;
        for (; j + 8 <= vector; j += 8) {
            add_products(sum, x + j, 8, book + e + j * QN_VQ_TABLE_ENTRIES, factor);
        }
        for (; j < vector; j++) {
            add_products(sum, x + j, 1, book + e + j * QN_VQ_TABLE_ENTRIES, factor);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            q[i] = _mm512_add_epi32(_mm512_cvtps_epi32(sum[i]), _mm512_set1_epi32(MIDDLE));
        }
        put_planes(to + e, q, low, high);
    }
}

/* What a slab's products are multiplied by and its inverse, both 0 for zeros; 1 when there is no such factor. */
static int factor_of(const float *x, int64_t groups, int64_t books, int64_t vector, const float *norms, float *factor,
                     float *unit)
{
    const float most = largest(x, groups, books, vector, norms);
    *factor = *unit = 0.0f;
    if (!(most <= 0x1p80f) || (most > 0.0f && most < 0x1p-80f)) {
        return 1;
    }
    if (most > 0.0f) { /* most * factor in [2^22, 2^23) */
        *factor = ldexpf(1.0f, 22 - ilogbf(most));
        *unit = 1.0f / *factor;
    }
    return 0;
}

static int sums_tables(const float *x, int64_t groups, int64_t books, int64_t vector, const float *book,
                       const float *norms, uint8_t *tables, float *unit)
{
    const __m512i low = byte_order(0), high = byte_order(2);
    float factor;
    if (factor_of(x, groups, books, vector, norms, &factor, unit)) {
        return 1;
    }
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t c = 0; c < books; c++) {
            const float *const from = book + c * vector * QN_VQ_TABLE_ENTRIES;
            uint8_t *const to = tables + (g * books + c) * QN_VQ_TABLE_BYTES;
            make_table(x + g * vector, vector, from, factor, low, high, to);
        }
    }
    return 0;
}

/* ---- lookups ---- */

/* Sums of bytes of 64 rows, a plane: of all pairs as 16-bit numbers, and of the upper bytes. */
typedef struct pairs {
    __m512i all, upper;
} pairs;

/* Integers of rows 16 r to 16 r + 15, from the pairs of three planes, to the running sums. */
QN_INLINE void add_rows(const pairs p[PLANES], int r, __m512i middle, __m512 unit, float *sums)
{
    __m512i total = _mm512_sub_epi32(_mm512_setzero_si512(), middle);
#pragma GCC unroll 3
    for (int i = 0; i < PLANES; i++) {
        const __m512i lower = _mm512_sub_epi16(p[i].all, _mm512_slli_epi16(p[i].upper, 8));
        const __m512i two = r % 2 ? p[i].upper : lower;
        const __m512i one = r / 2 ? _mm512_srli_epi32(two, 16) : _mm512_and_si512(two, _mm512_set1_epi32(0xffff));
        total = _mm512_add_epi32(total, _mm512_slli_epi32(one, (unsigned)(8 * i)));
    }
    float *const at = sums + r * 16;
    _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), unit, _mm512_loadu_ps(at)));
}

QN_INLINE void add_bytes(pairs *p, __m512i bytes)
{
    p->all = _mm512_add_epi16(p->all, bytes);
    p->upper = _mm512_add_epi16(p->upper, _mm512_srli_epi16(bytes, 8));
}

static void sums_look_up(const uint8_t *codes, int64_t lines, int64_t lookups, const uint8_t *tables, float unit,
                         float *sums)
{
    const __m512i middle = _mm512_set1_epi32((int32_t)lookups * MIDDLE);
    for (int64_t n = 0; n < lines; n++) {
        const uint8_t *const first = codes + n * lookups * 64, *const second = first + lines * lookups * 64;
        pairs p[2][PLANES];
        for (int i = 0; i < PLANES; i++) {
            p[0][i] = p[1][i] = (pairs){_mm512_setzero_si512(), _mm512_setzero_si512()};
        }
        for (int64_t l = 0; l < lookups; l++) {
            const __m512i a = _mm512_loadu_si512(first + l * 64), b = _mm512_loadu_si512(second + l * 64);
            _mm_prefetch((const char *)first + l * 64 + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)second + l * 64 + AHEAD, _MM_HINT_T0);
            const byte_quarters qa = quarters_of(a), qb = quarters_of(b);
#pragma GCC unroll 3
            for (int i = 0; i < PLANES; i++) {
                byte_table t;
                table_load(&t, tables + l * QN_VQ_TABLE_BYTES + i * QN_VQ_TABLE_ENTRIES);
                add_bytes(&p[0][i], look_up(&t, a, qa));
                add_bytes(&p[1][i], look_up(&t, b, qb));
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
            add_rows(p[r / 4], r % 4, middle, _mm512_set1_ps(unit), sums + (r / 4 * lines + n) * 64);
        }
    }
}

/* ---- rows of x beside each other ---- */

#define SIDE QN_VQ_SIDE_ROWS
#define SIDE_AHEAD 4 /* blocks whose codes are prefetched */

/* Eight vectors of sixteen entries, one a row of x, as sixteen entries of eight rows. */
QN_INLINE void put_side(const __m512i v[SIDE], char *to)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i last = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i a[SIDE], b[SIDE];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* rows 2 i and 2 i + 1: entries 4 l, 4 l + 1; 4 l + 2, 4 l + 3 of lane l */
        a[i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
        a[i + 4] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* entry 4 l + 2 i, 4 l + 2 i + 1: rows 0 to 3, rows 4 to 7 */
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 1]);
        b[4 * i + 1] = _mm512_unpacklo_epi64(a[4 * i + 2], a[4 * i + 3]);
        b[4 * i + 2] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 1]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 2], a[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++) { /* entries e and 4 + e, 8 + e and 12 + e */
        const __m512i low = _mm512_permutex2var_epi64(b[2 * e], first, b[2 * e + 1]);
        const __m512i high = _mm512_permutex2var_epi64(b[2 * e], last, b[2 * e + 1]);
        _mm256_store_si256((__m256i *)(void *)(to + e * SIDE * 4), _mm512_castsi512_si256(low));
        _mm256_store_si256((__m256i *)(void *)(to + (4 + e) * SIDE * 4), _mm512_extracti64x4_epi64(low, 1));
        _mm256_store_si256((__m256i *)(void *)(to + (8 + e) * SIDE * 4), _mm512_castsi512_si256(high));
        _mm256_store_si256((__m256i *)(void *)(to + (12 + e) * SIDE * 4), _mm512_extracti64x4_epi64(high, 1));
    }
}

/* Integers of a (group, codebook): xs[j][row] times 256 vectors, each product the chain that make_table has. */
QN_INLINE void make_side(const float *xs, int64_t vector, const float *book, char *to)
{
    for (int e = 0; e < QN_VQ_TABLE_ENTRIES; e += 32) {
        __m512 sum[2][SIDE];
        __m512i q[SIDE];
#pragma GCC unroll 8
        for (int r = 0; r < SIDE; r++) {
            sum[0][r] = sum[1][r] = _mm512_setzero_ps();
        }
        for (int64_t j = 0; j < vector; j++) {
            const __m512 a = _mm512_loadu_ps(book + e + j * QN_VQ_TABLE_ENTRIES);
            const __m512 b = _mm512_loadu_ps(book + e + 16 + j * QN_VQ_TABLE_ENTRIES);
#pragma GCC unroll 8
            for (int r = 0; r < SIDE; r++) {
                const __m512 x = _mm512_set1_ps(xs[j * SIDE + r]);
                sum[0][r] = _mm512_fmadd_ps(x, a, sum[0][r]);
                sum[1][r] = _mm512_fmadd_ps(x, b, sum[1][r]);
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
#pragma GCC unroll 8
            for (int r = 0; r < SIDE; r++) {
                q[r] = _mm512_cvtps_epi32(sum[i][r]);
            }
            put_side(q, to + (e + i * 16) * SIDE * 4);
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
    for (int64_t block = 0; block < 2 * c->lines; block++) {
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

static void sums_side(const qn_vq_sums_call *c)
{
    const int64_t groups = c->lookups / c->books;
    float factor[SIDE] = {0}, unit[SIDE] = {0};
    for (int64_t r = 0; r < c->rows; r++) {
        if (factor_of(c->x + r * c->x_stride, groups, c->books, c->vector, c->norms, &factor[r], &unit[r])) {
            c->special[r] = 1;
        }
    }
    const __m256 units = _mm256_loadu_ps(unit);
    for (int64_t l0 = 0; l0 < c->lookups; l0 += QN_VQ_SIDE_LOOKUPS) {
        const int64_t left = c->lookups - l0, count = left < QN_VQ_SIDE_LOOKUPS ? left : QN_VQ_SIDE_LOOKUPS;
        for (int64_t l = 0; l < count; l++) {
            const int64_t g = (l0 + l) / c->books;
            float xs[QN_VQ_SIDE_VECTOR * SIDE];
            for (int64_t j = 0; j < c->vector; j++) {
                for (int64_t r = 0; r < SIDE; r++) { /* a row without a factor may hold anything, or not be there */
                    const int here = factor[r] != 0.0f;
                    xs[j * SIDE + r] = here ? c->x[r * c->x_stride + g * c->vector + j] * factor[r] : 0.0f;
                }
            }
            make_side(xs, c->vector, c->book + (l0 + l) % c->books * c->vector * QN_VQ_TABLE_ENTRIES,
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

const qn_vq_sums_set qn_vq_sums__avx512vnni = {sums_tables, sums_look_up, sums_side};
