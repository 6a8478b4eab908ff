/* Attention of several queries by tensor cores (kernels/cuda/attention_tiles.cu), for attention and scaled_attention. */
#ifndef QN_BACKEND_CUDA_ATTENTION_TILES_H
#define QN_BACKEND_CUDA_ATTENTION_TILES_H

#include "backend/cuda/cuda.h"

/* Programs of a plan, in their order. */
enum { QN_CUDA_TILES_PLANES = 0, QN_CUDA_TILES_MAIN, QN_CUDA_TILES_JOIN, QN_CUDA_TILES_PROGRAMS };

/* NULL, or why there are no tiles for this head size, these formats or this window. */
const char *qn_cuda_tiles_refusal(const qn_op_desc *desc);

/* Whether a run is theirs: it has enough queries, and operands that are read in place begin where copies may. */
int qn_cuda_tiles_take(const qn_op_desc *desc, const qn_args *args, int64_t queries);

void qn_cuda_tiles_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out);

/* Bytes for at most m queries. */
size_t qn_cuda_tiles_workspace(const qn_op_desc *desc, int64_t m);

/* first: the plan's program QN_CUDA_TILES_PLANES. */
qn_status qn_cuda_tiles_launch(const qn_cuda_run *run, int32_t first, qn_error *error);

/* A line for explain. */
void qn_cuda_tiles_describe(const qn_op_desc *desc, const qn_cuda_device *device, const qn_sizes *sizes, qn_text *text);

#endif
