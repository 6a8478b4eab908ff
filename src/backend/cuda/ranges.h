/* Quantisers with one scale for a whole tensor, for run_quantize.c and run_quantize_fp4.c: the launch that finds the
 * range before theirs (kernels/cuda/tensor_range.h), and the only launch of large tensors without gaps, which keeps
 * what it can of x between range and codes (kernels/cuda/tensor_once.h). */
#ifndef QN_BACKEND_CUDA_RANGES_H
#define QN_BACKEND_CUDA_RANGES_H

#include "backend/cuda/cuda.h"

/* Of what it leaves, two floats for each of at most 256 blocks; blocks of the only launch tell each other as much. */
enum { QN_RANGE_BYTES = 2 * 256 * 4 };

typedef struct qn_cuda_ranges {
    int64_t m, k; /* as the launch sees the tensor: rows without gaps are one */
    int64_t keep; /* elements of a row from which on the L2 cache keeps them */
    qn_cuda_geometry geometry;
} qn_cuda_ranges;

/* Of a tensor of m rows of k elements, m and k at least 1, x_row bytes apart and row bytes long. */
qn_cuda_ranges qn_cuda_ranges_of(const qn_cuda_device *device, int64_t m, int64_t k, int64_t x_row, int64_t row);

/* Arguments of that launch after the quantiser's own. */
#define QN_RANGES_ARGUMENTS(r) &(r)->m, &(r)->k, &(r)->keep

/* How a block of it is laid out: bytes of a slot that a thread has, slots in shared memory, of which `ring` are a ring,
 * and slots in registers. wide: a thread takes four times eight elements of 16 bits of a slot, not two. */
typedef struct qn_cuda_once {
    int32_t place, slots, ring, held;
} qn_cuda_once;
extern const qn_cuda_once qn_cuda_once_narrow, qn_cuda_once_wide;

/* Whether the device can make it and so many elements of format x are worth it: at least so many KB a multiprocessor.
 */
int qn_cuda_once_takes(const qn_cuda_device *device, int32_t least, int64_t elements, qn_format x);

/* What its program has beside the operator's own parameters. */
void qn_cuda_once_define(qn_cuda_program *program, const qn_cuda_once *once);

/* Program i. own: the operator's argument, whose ranges are QN_RANGE_BYTES. */
qn_status qn_cuda_once_launch(const qn_cuda_run *run, int32_t i, const qn_cuda_once *once, void *own, int64_t elements,
                              qn_format x, qn_error *error);

/* A line for explain: this launch or two. */
void qn_cuda_once_describe(const qn_cuda_device *device, const qn_cuda_once *once, int32_t least, int64_t elements,
                           qn_format x, qn_text *text);

#endif
