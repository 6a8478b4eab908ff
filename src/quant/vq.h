/* Vector-quantised weights: from a matrix of floats to the tensors of a scheme with
 * codebooks (format/scheme.h, docs/formats/vq.md). Called by quantize.c, one weight at
 * a time; the mathematics is in vq_fit.h.
 *
 *     start     a scale a row (aqlm: its rms), weighted k-means of the cells' vectors, residual k-means for
 *               further books
 *     fit       one pass with feedback, then refit of the books and descent in turn, ROUNDS times
 *     store     books rounded as the format stores them (INT8 with a scale, FP16), a last descent with those
 *
 * quip_e8p has a lattice for a book: no start and no refit but of one scale, all in the space of vq_lattice.h.
 *
 * vptq has vectors along the outputs and a fit of its own: vq_columns.h.
 *
 * Without the inputs' X^T X: the start, and the nearest sums of vectors. */
#ifndef QN_QUANT_VQ_H
#define QN_QUANT_VQ_H

#include <quern/exec.h>

#include "format/scheme.h"

#define QN_VQ_PARTS 5 /* most tensors of a weight; the first scheme->vq.written of scheme->vq.tensors are made */

/* Shapes of the tensors of a weight [n,k]. QN_E_SHAPE: k does not fill whole vectors, or what else the format asks
 * for. */
qn_status qn_vq_shapes(const qn_scheme *scheme, int64_t n, int64_t k, qn_shape shapes[QN_VQ_PARTS], qn_error *error);

/* Quantise finite w[n,k] into parts[] of those shapes. squares[k,k]: X^T X, NULL: none. *rms: relative root
 * mean square error of the weights. The bytes do not depend on the threads. QN_E_MEMORY. */
qn_status qn_vq_quantise(qn_ctx *ctx, const qn_scheme *scheme, const float *w, int64_t n, int64_t k,
                         const float *squares, const qn_exec *exec, void *const parts[QN_VQ_PARTS], double *rms,
                         qn_error *error);

#endif
