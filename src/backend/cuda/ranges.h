/* The launch that finds the range of a whole tensor for quantisers with one scale (kernels/cuda/tensor_range.h): how it
 * is laid out, for run_quantize.c and run_quantize_fp4.c. */
#ifndef QN_BACKEND_CUDA_RANGES_H
#define QN_BACKEND_CUDA_RANGES_H

#include "backend/cuda/cuda.h"

enum { QN_RANGE_BYTES = 2 * 256 * 4 }; /* of what it leaves: two floats for each of at most 256 blocks */

typedef struct qn_cuda_ranges {
    int64_t m, k; /* as the launch sees the tensor: rows without gaps are one */
    int64_t keep; /* elements of a row from which on the L2 cache keeps them */
    qn_cuda_geometry geometry;
} qn_cuda_ranges;

/* Of a tensor of m rows of k elements, m and k at least 1, x_row bytes apart and row bytes long. */
qn_cuda_ranges qn_cuda_ranges_of(const qn_cuda_device *device, int64_t m, int64_t k, int64_t x_row, int64_t row);

/* Arguments of that launch after the quantiser's own. */
#define QN_RANGES_ARGUMENTS(r) &(r)->m, &(r)->k, &(r)->keep

#endif
