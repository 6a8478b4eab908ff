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

static int sums_tables(const float *x, int64_t groups, int64_t books, int64_t vector, const float *book,
                       const float *norms, uint8_t *tables, float *unit)
{
    const __m512i low = byte_order(0), high = byte_order(2);
    const float most = largest(x, groups, books, vector, norms);
    float factor = 0.0f;
    *unit = 0.0f;
    if (!(most <= 0x1p80f) || (most > 0.0f && most < 0x1p-80f)) {
        return 1;
    }
    if (most > 0.0f) { /* most * factor in [2^22, 2^23) */
        factor = ldexpf(1.0f, 22 - ilogbf(most));
        *unit = 1.0f / factor;
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

const qn_vq_sums_set qn_vq_sums__avx512vnni = {sums_tables, sums_look_up};
