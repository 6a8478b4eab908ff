/* Vectors along the outputs: from a matrix of floats to the tensors of a vptq scheme
 * (docs/formats/vq.md). Called by vq.c for schemes of that format. */
#ifndef QN_QUANT_VQ_COLUMNS_H
#define QN_QUANT_VQ_COLUMNS_H

#include "kernels/common/fit.h"
#include "quant/vq.h"

/* qn_vq_quantise for QN_VQ_VPTQ. */
qn_status qn_vq_columns_quantise(qn_ctx *ctx, const qn_fit_set *set, const qn_scheme *scheme, const float *w, int64_t n,
                                 int64_t k, const float *squares, const qn_exec *exec, void *const parts[QN_VQ_PARTS],
                                 double *rms, qn_error *error);

#endif
