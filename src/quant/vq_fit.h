/* Fitting codes and codebooks to a weight: what the passes (vq_pass.c) and the
 * update of codebooks (vq_refit.c) share. Driven by vq.c.
 *
 * A weight w[N,K] is cut into groups of v columns; q = scale[row] * the sum of one vector of each book. Rows
 * and groups are cut into cells that have books of their own (gptvq: 256 x 256; aqlm: one cell). With h = X^T X of
 * the inputs the layer meets, the error is
 *
 *     L = sum over rows of d h d^T,     d = q - w
 *
 * Groups come in an order of the caller's (columns of w, h already in it). Every choice of a vector c for group g
 * minimises c S c^T - 2 c t^T for an S[v,v] of the group:
 *
 *     feedback   h = R R^T, R upper: L is the sum over groups of |d_g R_gg + a|^2, a = sum_{i<g} d_i R_ig.
 *                S = R_gg R_gg^T, t = S w_g - R_gg a: errors so far are made good, first group to last (LDLQ in
 *                blocks: Chee et al. 2023; GPTVQ: van Baalen et al. 2024)
 *     descent    S = h_gg, t = S q_g - (d h)_g: the best vector with all others as they are, never worse than before
 *     refit      books by conjugate gradients on L with the codes as they are (vq_refit.c); AQLM (Egiazarian et al.
 *                2024) alternates in the same way, with Adam
 *
 * A book is searched as a whole, by tables of c S c^T. E8P points are searched by their structure: the nearest
 * to S^-1 t in plain distance, one a lane, of which the best by S is taken.
 *
 * Rows go in bands of BAND; nothing crosses bands but the books' gradients, summed in order. */
#ifndef QN_QUANT_VQ_FIT_H
#define QN_QUANT_VQ_FIT_H

#include <quern/exec.h>

#include "kernels/common/fit.h"

#define QN_VQ_BAND 16
#define QN_VQ_CHUNK 64 /* rows of a task that adds up gradients */

typedef struct qn_vq_fit {
    qn_ctx *ctx;
    const qn_exec *exec;
    const qn_fit_set *set;
    int64_t n, k, stride, groups; /* stride: floats of a row of w, h, r and q; a multiple of 16, zeros behind k */
    int32_t vector, books, entries;
    int32_t beam;             /* sums of vectors kept while books are searched one after the other */
    int32_t polish;           /* times each vector of the best sum is chosen again with the others as they are */
    int64_t cell_rows;        /* rows of a cell, a multiple of QN_VQ_CHUNK, or at least n */
    int64_t across, down;     /* cells */
    const int32_t *across_of; /* [groups]: a group's cell */
    const float *w, *h, *r;   /* [n][stride], [k][stride], [k][stride] */
    float *scales;            /* [n] */
    float *q;                 /* [n][stride] */
    uint16_t *codes;          /* [n][groups][books] */
    float *table;             /* [down][across][books][entries][vector] */
    float *turned;            /* the same with entries side by side; qn_vq_pass makes it */
    float *norms;             /* [down][groups][books][entries]; likewise */
    float *metric;            /* [groups][vector][vector]; likewise */
    const qn_fit_lattice *lattice; /* NULL: none; else books are E8P points, entries codes, norms and turned not used */
    const float *sizes;            /* [books] of a lattice: the factor of each book's points in table */
    float *inverse;                /* [groups][vector][vector]: of metric, where there is a lattice */
} qn_vq_fit;

static inline int64_t qn_vq_cell(const qn_vq_fit *f, int64_t row, int64_t group)
{
    return row / f->cell_rows * f->across + f->across_of[group];
}

/* Floats of the books of a cell. */
static inline int64_t qn_vq_cell_floats(const qn_vq_fit *f)
{
    return (int64_t)f->books * f->entries * f->vector;
}

/* Choose all codes anew and set q: feedback 1: the first pass, first group to last; 0: descent from the codes and q as
 * they are. *loss (may be NULL): L afterwards. QN_E_MEMORY. */
qn_status qn_vq_pass(qn_vq_fit *f, int feedback, double *loss, qn_error *error);

/* A square form of tables' elements: out[size] becomes half its gradient where the table is (table NULL), the form
 * times the table, or its diagonal (diagonal 1, table NULL). */
typedef void (*qn_vq_gather_fn)(void *user, const float *table, int diagonal, float *out);

/* Move table[size] to lessen the form, at most that many steps of conjugate gradients with its diagonal as
 * preconditioner; elements without one stay. work: 5 * size floats. */
void qn_vq_solve(qn_vq_gather_fn sums, void *user, int steps, float *table, int64_t size, float *work);

/* Multiply all scales by what lessens L most with the codes as they are, and set q. QN_E_MEMORY. */
qn_status qn_vq_rescale(qn_vq_fit *f, qn_error *error);

/* Set q from codes, table and scales. */
void qn_vq_decode(qn_vq_fit *f);

/* Move the table to lessen L, at most that many steps, and set q. QN_E_MEMORY. */
qn_status qn_vq_refit(qn_vq_fit *f, int steps, qn_error *error);

#endif
