/* What the levels' partial-sum tables of aqlm (kernels/common/vq.h) share: names, and what products of x and vectors
 * are multiplied by to be integers. */
#ifndef QN_KERNELS_CPU_VQ_SUMS_H
#define QN_KERNELS_CPU_VQ_SUMS_H

#include <math.h>

#include "kernels/common/vq.h"

#define MIDDLE (1 << 20) /* products are below it */
#define SIDE QN_VQ_SIDE_ROWS
#define WIDE QN_VQ_MANY_ROWS
#define ENTRIES QN_VQ_TABLE_ENTRIES

/* Rows of w with a word of codes: byte 4 i + r of a line is row 16 r + i. */
#define ROW_OF(w, i) ((i) % 4 * 16 + 2 * (w) + (i) / 4)

/* The largest square of a length of x's vectors, an element at a time. */
static inline float largest_square_by_one(const float *x, int64_t groups, int64_t vector)
{
    float most = 0.0f;
    for (int64_t g = 0; g < groups; g++) {
        float squares = 0.0f;
        for (int64_t j = 0; j < vector; j++) {
            squares = fmaf(x[g * vector + j], x[g * vector + j], squares);
        }
        most = squares > most || squares != squares ? squares : most;
    }
    return most;
}

/* A slab's factor of a row of x and its inverse, both 0 for zeros, from the largest square of the row's vectors; 1 when
 * there is no such factor. By Cauchy and Schwarz, and a little more, no product is larger than `most`. */
static int factor_of(const qn_vq_sums_call *c, float square, float *factor, float *unit)
{
    float norm = 0.0f;
    for (int64_t b = 0; b < c->books; b++) {
        norm = c->norms[b] > norm ? c->norms[b] : norm;
    }
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

#endif
