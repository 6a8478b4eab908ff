/* Rows of x beside each other by partial-sum tables of aqlm (kernels/common/vq.h): an entry is a register of SIDE
 * integers. A level has its own SIDE, make_side(), put_offsets(), put_elements(), and registers `side_ints` with
 * side_zero(), side_load(), side_add(), side_store() and side_finish() before this. */
#ifndef QN_KERNELS_CPU_VQ_SUMS_SIDE_H
#define QN_KERNELS_CPU_VQ_SUMS_SIDE_H

#include <immintrin.h>

#include "kernels/cpu/name.h"
#include "kernels/cpu/vq_sums.h"

#define SIDE_AHEAD 4                    /* blocks whose codes are prefetched */
#define SIDE_TABLE (SIDE * ENTRIES * 4) /* bytes */

/* SIDE rows of x by rows of w whose codes are word w of `lookups` lines. */
QN_INLINE void word_by_side(const char *tables, const uint16_t offsets[][64], int w, const int lookups, int first,
                            int last, const float *unit, int32_t *totals, float *sums)
{
    side_ints total[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        total[i] = first ? side_zero() : side_load(totals + ROW_OF(w, i) * SIDE);
    }
#pragma GCC unroll 4
    for (int l = 0; l < lookups; l++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            total[i] = side_add(total[i], tables + l * SIDE_TABLE + offsets[l][w * 8 + i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (last) {
            side_finish(sums + ROW_OF(w, i) * SIDE, total[i], unit);
        } else {
            side_store(totals + ROW_OF(w, i) * SIDE, total[i]);
        }
    }
}

/* Lookups l0 to l0 + lookups - 1 of all rows of w. */
QN_INLINE void look_up_side(const qn_vq_sums_call *c, int64_t l0, const int lookups, int last, const float *unit)
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

static void sums_side_rounded(const qn_vq_sums_call *c)
{
    _Alignas(64) float xs[QN_VQ_SIDE_VECTOR * WIDE];
    float factor[SIDE] = {0}, unit[SIDE] = {0};
    factors_of(c, factor, unit);
    for (int64_t l0 = 0; l0 < c->lookups; l0 += QN_VQ_SIDE_LOOKUPS) {
        const int64_t left = c->lookups - l0, count = left < QN_VQ_SIDE_LOOKUPS ? left : QN_VQ_SIDE_LOOKUPS;
        for (int64_t l = 0; l < count; l++) {
            const int64_t book = (l0 + l) % c->books;
            if (l == 0 || book == 0) {
                put_elements(c, factor, (l0 + l) / c->books * c->vector, c->vector, xs);
            }
            make_side(xs, c->vector, c->book + book * c->vector * ENTRIES, dither_of(c->first + l0 + l),
                      (int32_t *)(void *)(c->tables + l * SIDE_TABLE));
        }
        switch (count) { /* fewer only at the end */
        case 1: look_up_side(c, l0, 1, 1, unit); break;
        case 2: look_up_side(c, l0, 2, 1, unit); break;
        case 3: look_up_side(c, l0, 3, 1, unit); break;
        default: look_up_side(c, l0, QN_VQ_SIDE_LOOKUPS, left == QN_VQ_SIDE_LOOKUPS, unit);
        }
    }
}

static void sums_side(const qn_vq_sums_call *c)
{
    if (!all_plain(c)) {
        sums_side_rounded(c);
    }
    sums_plain_rows(c, SIDE);
}

#endif
