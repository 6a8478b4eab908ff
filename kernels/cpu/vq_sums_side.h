/* Rows of x beside each other by partial-sum tables of aqlm (kernels/common/vq.h): an entry is a register of 32 bytes.
 * A level has its own make_side(), put_offsets() and put_elements() before this. */
#ifndef QN_KERNELS_CPU_VQ_SUMS_SIDE_H
#define QN_KERNELS_CPU_VQ_SUMS_SIDE_H

#include <immintrin.h>

#include "kernels/cpu/name.h"
#include "kernels/cpu/vq_sums.h"

#define SIDE_AHEAD 4 /* blocks whose codes are prefetched */

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

/* Rows' scales; 0 for those that are not there. */
QN_INLINE void factors_of(const qn_vq_sums_call *c, float *factor, float *unit)
{
    for (int64_t r = 0; r < c->rows; r++) {
        factor[r] = c->scales[r * c->scale_stride].factor;
        unit[r] = c->scales[r * c->scale_stride].unit;
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

#endif
