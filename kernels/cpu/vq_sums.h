/* What the levels' partial-sum tables of aqlm (kernels/common/vq.h) share: names, and what products of x and vectors
 * are multiplied by to be integers. */
#ifndef QN_KERNELS_CPU_VQ_SUMS_H
#define QN_KERNELS_CPU_VQ_SUMS_H

#include <math.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/vq_dither.h"

#define MIDDLE (1 << 20)        /* products are below it; ... */
#define MIDDLE_COARSE (1 << 15) /* ... of coarse slabs */
#define WIDE QN_VQ_MANY_ROWS
#define ENTRIES QN_VQ_TABLE_ENTRIES

/* Rows of w with a word of codes: byte 4 i + r of a line is row 16 r + i. */
#define ROW_OF(w, i) ((i) % 4 * 16 + 2 * (w) + (i) / 4)

/* Of some vectors of x: the largest square of their lengths, the squares' sum, NaN where x has one. */
typedef struct lengths {
    float most, all;
} lengths;

/* An element at a time. */
static inline lengths lengths_by_one(const float *x, int64_t groups, int64_t vector)
{
    lengths of = {0.0f, 0.0f};
    for (int64_t g = 0; g < groups; g++) {
        float square = 0.0f;
        for (int64_t j = 0; j < vector; j++) {
            square = fmaf(x[g * vector + j], x[g * vector + j], square);
        }
        of.most = square > of.most ? square : of.most;
        of.all += square;
    }
    return of.all == of.all ? of : (lengths){NAN, NAN};
}

#define MOST_EXPONENT 80 /* of a slab's largest possible product, either sign */

/* The square of what rounding may add to the sums of the smallest row of w (vq_dither.h), in units of lookups *
 * unit^2. */
static inline double rounding_limit(const qn_vq_sums_row *row, double squares)
{
    const double unit = dither_unit(squares, row->k) * (double)row->least;
    return unit * unit;
}

/* Exponents up to the one returned are those of slabs whose products may be integers below `middle`: lookups[e +
 * MOST_EXPONENT] products are of slabs whose largest is 2^e to 2^(e + 1). */
static inline int rounded_until(const int64_t lookups[2 * MOST_EXPONENT + 1], double middle, double limit)
{
    double sum = 0.0, square = ldexp(4.0 / middle / middle, -2 * MOST_EXPONENT); /* of the unit */
    int e = -MOST_EXPONENT;
    for (; e <= MOST_EXPONENT; e++, square *= 4.0) {
        sum += (double)lookups[e + MOST_EXPONENT] * square;
        if (sum > limit) {
            break;
        }
    }
    return e - 1;
}

static inline int is_zero(const float *x, int64_t count)
{
    int64_t i = 0;
    while (i < count && x[i] == 0.0f) {
        i++;
    }
    return i == count;
}

/* A slab of x as its level finds it: no product is larger than `most`. */
typedef struct reach {
    lengths x;
    float most;
} reach;

typedef reach (*reach_fn)(const qn_vq_sums_row *row, const float *x, int64_t groups);

/* The exponent of a slab's largest product, a little added for roundings: most < 2^(exponent + 1). */
static inline int exponent_of(float most)
{
    return ilogbf(most * 1.001f);
}

/* Scales of a row: most * factor is in [MIDDLE / 2, MIDDLE). */
static inline int scales_of_row(const qn_vq_sums_row *row, reach_fn reach_of)
{
    int64_t lookups[2 * MOST_EXPONENT + 1] = {0};
    double squares = 0.0;
    qn_vq_sums_scale *scale = row->scales;
    if (!(row->longest_norm < HUGE_VALF)) {
        return 1;
    }
    for (int64_t g = 0; g < row->groups; g += row->slab_groups, scale++) {
        const int64_t groups = row->groups - g < row->slab_groups ? row->groups - g : row->slab_groups;
        const float *const x = row->x + g * row->vector;
        const reach of = reach_of(row, x, groups);
        const int zero = of.x.most == 0.0f && is_zero(x, groups * row->vector);
        const int e = of.most > 0.0f ? exponent_of(of.most) : 0;
        /* a square far below 1 is not what it should be */
        if (!(of.x.most < HUGE_VALF) || (!zero && of.x.most < 0x1p-120f) || e < -MOST_EXPONENT || e > MOST_EXPONENT) {
            return 1;
        }
        *scale = (qn_vq_sums_scale){.factor = of.most};
        squares += (double)of.x.all;
        if (of.most > 0.0f) {
            lookups[e + MOST_EXPONENT] += groups * row->books;
        }
    }
    const double limit = rounding_limit(row, squares);
    const int coarse = row->coarse ? rounded_until(lookups, MIDDLE_COARSE, limit) : -MOST_EXPONENT - 1;
    const int fine = rounded_until(lookups, MIDDLE, limit / 8.0); /* beside coarse slabs */
    for (qn_vq_sums_scale *to = row->scales; to < scale; to++) {
        const int e = to->factor > 0.0f ? exponent_of(to->factor) : -MOST_EXPONENT;
        to->coarse = e <= coarse;
        to->plain = to->factor > 0.0f && !to->coarse && e > fine;
        to->factor =
            to->factor > 0.0f && !to->plain ? ldexpf((float)(to->coarse ? MIDDLE_COARSE : MIDDLE) / 2, -e) : 0.0f;
        to->unit = to->factor > 0.0f ? 1.0f / to->factor : 0.0f;
    }
    return 0;
}

/* The products of a vector of x and those of a book. */
static inline void products_plain(const float *x, const float *book, int64_t vector, float *table)
{
    for (int e = 0; e < ENTRIES; e++) {
        table[e] = 0.0f;
    }
    for (int64_t j = 0; j < vector; j++) {
        for (int e = 0; e < ENTRIES; e++) {
            table[e] = fmaf(x[j], book[j * ENTRIES + e], table[e]);
        }
    }
}

#define PLAIN 8 /* chains of sums beside each other: one waits for every addition */

/* Products of row r of x as they are, where integers would lose too much of a small row of w: seldom from K of 2048 on.
 * Sums of rows of w are `step` apart. */
static inline void sums_plain(const qn_vq_sums_call *c, int64_t r, float *sums, int64_t step)
{
    float *const tables = (float *)(void *)c->tables;
    for (int64_t l = 0; l < c->lookups; l++) {
        products_plain(c->x + r * c->x_stride + l / c->books * c->vector, c->book + l % c->books * c->vector * ENTRIES,
                       c->vector, tables + l * ENTRIES);
    }
    for (int64_t i = 0; i < c->blocks * 64; i += PLAIN) {
        const uint8_t *const codes = c->codes + i / 64 * c->lookups * 64 + i % 64;
        float sum[PLAIN] = {0.0f};
        for (int64_t l = 0; l < c->lookups; l++) {
#pragma GCC unroll 8
            for (int j = 0; j < PLAIN; j++) {
                sum[j] += tables[l * ENTRIES + codes[l * 64 + j]];
            }
        }
        for (int64_t j = i; j < i + PLAIN; j++) { /* byte 4 a + b: row 16 b + a */
            sums[(j / 64 * 64 + j % 4 * 16 + j % 64 / 4) * step] += sum[j - i];
        }
    }
}

/* Whether no row has integers. */
static inline int all_plain(const qn_vq_sums_call *c)
{
    int64_t r = 0;
    while (r < c->rows && c->scales[r * c->scale_stride].plain) {
        r++;
    }
    return r == c->rows;
}

/* Such products of rows beside each other. */
static inline void sums_plain_rows(const qn_vq_sums_call *c, int64_t wide)
{
    for (int64_t r = 0; r < c->rows; r++) {
        if (c->scales[r * c->scale_stride].plain) {
            sums_plain(c, r, c->sums + r, wide);
        }
    }
}

#endif
