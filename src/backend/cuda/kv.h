/* What families of attention over kept keys and values share (run_vq_kv.c, run_scaled_attention.c), and what chains
 * (chain_kv.c) take of them: how tokens are cut into parts, the part of a window's recent tokens, the joining of parts.
 *
 * A run is one launch that reads codes, one for the window if there is one, one that joins if there are several parts.
 */
#ifndef QN_BACKEND_CUDA_KV_H
#define QN_BACKEND_CUDA_KV_H

#include "backend/cuda/mm.h"
#include "kernels/common/cuda_vq_kv.h"

/* Programs of a plan that follow those of its codes. */
enum { QN_CUDA_KV_JOIN = 0, QN_CUDA_KV_RECENT, QN_CUDA_KV_RECENT_ALIGNED, QN_CUDA_KV_PROGRAMS };

enum { QN_CUDA_KV_STRIP = 32, QN_CUDA_KV_WARPS = 4, QN_CUDA_KV_SIZE = 256, QN_CUDA_KV_UNITS = 264 };

/* The window's rows are of one format, a head is not too long; else why not. recent: slot of k_recent. */
const char *qn_cuda_kv_window_refusal(const qn_op_desc *desc, int32_t recent);

/* Join and window; returns how many, as program_count does. */
int32_t qn_cuda_kv_program_count(const qn_op_desc *desc, int32_t recent);
int32_t qn_cuda_kv_programs(const qn_op_desc *desc, int32_t recent, qn_cuda_program *out);

/* The window's operands. */
void qn_cuda_kv_window(qn_cuda_vq_attention *a, const qn_op_desc *desc, const qn_args *args, int32_t recent);

/* Cut for `units` independent pieces of work, as many blocks at a time as `blocks`, at least `least` tokens a part. */
void qn_cuda_kv_cut(qn_cuda_vq_attention *a, int64_t units, int32_t blocks, int32_t least);

/* The most parts of a piece of work that a cut makes: 2 * QN_CUDA_KV_UNITS of all pieces, of `least` tokens. */
int64_t qn_cuda_kv_most_parts(int64_t units, int64_t room, int32_t least);

/* Bytes of the parts of m queries, however they are cut; group: heads that a unit of work has. A unit is of one query.
 */
size_t qn_cuda_kv_workspace(int64_t m, int64_t heads, int64_t group, int64_t size, int32_t window);

/* Programs of a rows kernel (kernels/cuda/vq_attention_plain.cu) and its launches. */
void qn_cuda_kv_rows_program(const qn_op_desc *desc, int32_t kind, int32_t format, int32_t vector, int32_t aligned,
                             qn_cuda_program *out);
int32_t qn_cuda_kv_recent_choice(const qn_cuda_vq_attention *a, const qn_op_desc *desc, int32_t recent);
qn_cuda_geometry qn_cuda_kv_rows_geometry(const qn_cuda_vq_attention *a, int32_t parts);
qn_cuda_geometry qn_cuda_kv_join_geometry(const qn_cuda_vq_attention *a);

/* What follows the codes; first: the plan's program QN_CUDA_KV_JOIN. */
qn_status qn_cuda_kv_finish(const qn_cuda_run *run, int32_t first, int32_t recent, qn_cuda_vq_attention *a,
                            qn_error *error);

/* One query of scaled_attention over a cache that has room for all its tokens: programs and geometries of its two or
 * three launches in their order, and their argument. Returns how many; 0: not for these kernels. */
int32_t qn_cuda_scaled_attention_chain(const qn_op_desc *desc, const qn_args *args, const qn_cuda_device *device,
                                       qn_cuda_program programs[3], qn_cuda_geometry geometries[3],
                                       qn_cuda_vq_attention *a);

/* vq_encode as a launch. */
void qn_cuda_encode_program(const qn_op_desc *desc, qn_cuda_program *out);
qn_cuda_vq_encode qn_cuda_encode_arguments(const qn_args *args);
qn_cuda_geometry qn_cuda_encode_geometry(const qn_cuda_vq_encode *a, const qn_cuda_device *device);

#endif
