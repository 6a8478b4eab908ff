/* Weighted k-means: the centroids of vectors that the columns of a matrix are cut
 * into, as codebooks start from (vq.c).
 *
 * Sum of row_weights[r] column_weights[c] (x[r][c] - centroid)^2. Starts from points drawn by
 * k-means++ (Arthur and Vassilvitskii 2007), a sixteenth of them at a time: drawn with a chance in proportion to
 * the weighted distance from those drawn before. Then assignments and means in turn (Lloyd);
 * a centroid nobody is nearest to is put on a point drawn the same way. Where there are no more points than
 * centroids, each point is one. Sums run over
 * chunks of CHUNK rows and then over the chunks in order: the result does not depend on the threads. */
#ifndef QN_QUANT_KMEANS_H
#define QN_QUANT_KMEANS_H

#include <quern/exec.h>

#include "kernels/common/fit.h"

typedef struct qn_kmeans_job {
    const float *x; /* [rows][stride], the first groups * vector columns */
    int64_t rows, groups, stride;
    int32_t vector, entries;     /* entries: a multiple of QN_FIT_LANES, at most 65536 */
    const float *row_weights;    /* [rows]; NULL: 1 */
    const float *column_weights; /* [groups * vector]; NULL: 1 */
    int32_t iterations;          /* at most */
    double gain;                 /* stop after one that lessens the sum by less than this part of it */
    uint64_t seed;
} qn_kmeans_job;

/* centroids[entries][vector]; codes[rows][groups] of the nearest ones and error, the sum above: NULL, not asked for.
 * QN_E_MEMORY. */
qn_status qn_kmeans(qn_ctx *ctx, const qn_fit_set *set, const qn_kmeans_job *job, const qn_exec *exec,
                    float *centroids, uint16_t *codes, double *error, qn_error *why);

#endif
