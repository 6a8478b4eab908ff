/* Host side of matrix products by weights of any format: what operands are to device code (mm.c), for all that have
 * such products; of the portable kernels (run_mm.c) how kernels/cuda/mm_few.cu is cut, for chains (chain.c), and what
 * families of one architecture (run_fp4_mm.c, run_dense_mm.c, run_planes.c) have beside their own. */
#ifndef QN_BACKEND_CUDA_MM_H
#define QN_BACKEND_CUDA_MM_H

#include "backend/cuda/cuda.h"
#include "kernels/common/cuda_mm.h"

/* A matrix product's rows, and weights, which vq_mm has no one operand of. */
const qn_shape *qn_cuda_mm_x(const qn_op_desc *desc);
const qn_shape *qn_cuda_mm_b(const qn_op_desc *desc);

/* Number of f32, f16 or bf16 in device code. */
int32_t qn_cuda_float_format(qn_format format);

/* Number of a matrix product's weights in device code; -1: none that is known there. */
int32_t qn_cuda_weight_format(const qn_op_desc *desc);

/* What rows of x are: QN_MM_PLAIN or QN_MM_A_*. */
int32_t qn_cuda_row_format(const qn_op_desc *desc);

/* Number of a stored format without scales beside it; -1: none. */
int32_t qn_cuda_stored_format(qn_format format);

/* Elements of a unit of weights, and the alignment that its wide loads want. */
int32_t qn_cuda_weight_unit(int32_t format);
int32_t qn_cuda_weight_align(int32_t format);

/* Weights of a GGUF format that share a scale. */
int64_t qn_cuda_code_group(int32_t format);

/* How mm_few.cu is cut for n columns and k, by itself or in a chain. */
typedef struct qn_cuda_few {
    int32_t columns, split, steps, whole;
    int32_t shared_bytes;
} qn_cuda_few;

qn_cuda_few qn_cuda_few_shape(int32_t format, int64_t n, int64_t k, int32_t rows, int32_t chain, int32_t sms);

/* Blocks of that cut for n columns. */
uint32_t qn_cuda_few_blocks(const qn_cuda_few *few, int64_t n);

/* How mm_ring.cu is cut for a chain's products of n columns in all; threads 0: weights are not for it, or too small. */
typedef struct qn_cuda_ring {
    int32_t k, threads, lines, depth, ahead;
    int32_t edge;  /* 1: the last weight's rows are no whole tiles */
    int32_t begin; /* of the rings in shared memory */
    int32_t shared_bytes;
} qn_cuda_ring;

qn_cuda_ring qn_cuda_ring_shape(int32_t format, const qn_cuda_mm_part *parts, int32_t count, int64_t n, int64_t k,
                                const qn_cuda_device *device);
void qn_cuda_ring_define(const qn_cuda_ring *ring, qn_cuda_program *program);

/* The weight, bias and the like of a run. */
qn_cuda_mm_part qn_cuda_mm_part_of(const qn_op_desc *desc, const qn_args *args);

/* K of a matrix product. */
int64_t qn_cuda_mm_depth(const qn_op_desc *desc);

/* The argument of a run. */
qn_cuda_mm qn_cuda_mm_arguments(const qn_run_call *call);

/* All portable programs of a descriptor (how many), and a run of theirs: where they are the first of a plan. */
int32_t qn_cuda_mm_program_count(const qn_op_desc *desc);
int32_t qn_cuda_mm_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out);
qn_status qn_cuda_mm_launch(const qn_cuda_run *run, qn_error *error);

/* The same with what the portable kernels of a plan of their own have beside these: programs that join parts of K,
 * large tiles, digits of GGUF blocks. */
int32_t qn_cuda_mm_own_count(const qn_op_desc *desc);
int32_t qn_cuda_mm_own_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out);
size_t qn_cuda_mm_own_workspace(const qn_op_desc *desc, int64_t m);
qn_status qn_cuda_mm_own_launch(const qn_cuda_run *run, qn_error *error);
void qn_cuda_mm_own_describe(const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes, qn_text *text);

/* A product of planes of 16-bit floats by mma.sync (run_planes.c), f16 or bf16, of the descriptor's results: its
 * programs; what parts of K of up to m rows and n columns take; its launch, whose first program is the plan's `first`.
 */
enum { QN_CUDA_MM_PLANES_PROGRAMS = 3 };
void qn_cuda_mm_planes_programs(const qn_op_desc *desc, int32_t f16, int32_t x_planes, int32_t b_planes,
                                qn_cuda_program *out);
size_t qn_cuda_mm_planes_workspace(int64_t m, int64_t n, int64_t k);
qn_status qn_cuda_mm_planes_launch(const qn_cuda_run *run, int32_t first, qn_cuda_mm *a, qn_cuda_mm_planes *planes,
                                   void *workspace, qn_error *error);
void qn_cuda_mm_planes_describe(const qn_cuda_device *device, const qn_sizes *sizes, qn_text *text);

/* Rows that become planes of 16-bit floats (kernels/cuda/mm_planes.cu; run_planes.c), also for products of other
 * families: the program for rows of a format in device code; its launch, which is program i of a plan, for so many
 * rows; how many of `count` rows, each of so many bytes of planes, are made at a time. is_blocks: GGUF. */
void qn_cuda_planes_program(int32_t format, int32_t planes, int32_t f16, qn_cuda_program *program);
qn_status qn_cuda_planes_make(const qn_cuda_run *run, int32_t i, qn_cuda_planes *p, int64_t rows, int32_t planes,
                              int is_blocks, qn_error *error);
int64_t qn_cuda_planes_at_once(int64_t count, int64_t bytes);

/* The portable kernel that takes operands of any alignment: its program, and the launch of program i of a plan. */
void qn_cuda_mm_any_program(const qn_op_desc *desc, qn_cuda_program *program);
qn_status qn_cuda_mm_launch_any(const qn_cuda_run *run, int32_t i, qn_error *error);

/* The same kernel of grouped_block_scaled_mm, tiles of 64 or 128 rows and columns. */
void qn_cuda_mm_group_program(const qn_op_desc *desc, int32_t aligned, int32_t tile, qn_cuda_program *program);

/* Parameters that follow from the descriptor: B_FORMAT, OUT, AZP; and BIAS, of the descriptor's bias where there is no
 * other. */
qn_format qn_cuda_mm_bias(const qn_op_desc *desc);
void qn_cuda_mm_define(const qn_op_desc *desc, qn_format bias, qn_cuda_program *program);
void qn_cuda_few_define(const qn_cuda_few *few, int32_t rows, qn_cuda_program *program);

/* Whether rows of b may be loaded by whole units. */
int qn_cuda_mm_aligned(int32_t format, const qn_cuda_mm_part *part, int64_t k);

#endif
