/* A chain's launches: what chain.c and chain_kv.c share. */
#ifndef QN_BACKEND_CUDA_CHAIN_H
#define QN_BACKEND_CUDA_CHAIN_H

#include "backend/cuda/mm.h"
#include "kernels/common/cuda_activation.h"
#include "kernels/common/cuda_mm_points.h"
#include "kernels/common/cuda_vq_kv.h"

enum { QN_CUDA_CHAIN_LAUNCHES = 3 };

typedef union qn_cuda_chain_arguments {
    qn_cuda_mm mm;
    qn_cuda_mm_points points;
    qn_cuda_decode decode;
    qn_cuda_embed embed;
    qn_cuda_activation activation;
    qn_cuda_vq_attention kv;
    qn_cuda_vq_encode encode;
    qn_cuda_kv_keep keep;
    qn_cuda_kv_step kv_step;
    qn_cuda_decode_coded decode_coded;
} qn_cuda_chain_arguments;

typedef struct qn_cuda_chain_launch {
    qn_cuda_function function;
    qn_cuda_geometry geometry;
    qn_cuda_chain_arguments arguments;
} qn_cuda_chain_launch;

struct qn_chain {
    qn_cuda *cuda;
    qn_chain_kind kind;
    int32_t count;
    cu_pointer partials;
    qn_cuda_chain_launch launches[QN_CUDA_CHAIN_LAUNCHES];
};

/* Of `count` steps the first that keep keys or values, or that attend over what is kept otherwise than as floats: their
 * launches into the chain. *taken 0: they are no such steps. */
qn_status qn_cuda_chain_kv(const qn_chain_step *steps, int32_t count, const int32_t *position, qn_chain *chain,
                           int32_t *taken, qn_error *error);

/* The steps that decode_scaled.cu or decode_coded.cu does, the attention the last of them: how many, or 0. normed:
 * heads are normalised before, which the latter, whose codes are made by other blocks, leaves to others. */
int32_t qn_cuda_chain_kept(const qn_chain_step *steps, int32_t count, int normed);

/* An attention in parts, whose memory the chain has. */
typedef struct qn_cuda_parted {
    int64_t parts, together; /* together: query heads of a block; more than 1 are decode_group.cu's */
    float *out;              /* where decode_group.cu joins parts, and counts them; NULL: it leaves them */
    int32_t *arrived;
} qn_cuda_parted;

/* Their launch. norms: the two steps that normalise heads of the query and of the key, or NULL. */
qn_status qn_cuda_chain_decode_kept(const qn_chain_step *steps, const qn_chain_step *norms, const int32_t *position,
                                    const qn_cuda_parted *parted, qn_chain *chain, qn_error *error);

/* Make a launch of decode.cu or decode_scaled.cu, of heads of 128, one of decode_group.cu. */
void qn_cuda_decode_together(const qn_cuda_parted *parted, qn_cuda_program *program, qn_cuda_geometry *geometry);
qn_cuda_head_norms qn_cuda_head_norms_of(const qn_chain_step *norms);

/* qn_backend_chains.keep */
qn_status qn_cuda_chain_keep(const qn_chain *chain, const qn_args *args, const int32_t *positions, void *stream,
                             qn_error *error);

/* Programs that no shape changes: of kv_keep.cu rows into a window, scaled codes, rows as they are, as bf16; kv_step.cu
 * for scaled codes and for the vectors of every KV scheme. */
typedef enum qn_cuda_keep {
    QN_CUDA_KEEP_RECENT = 0,
    QN_CUDA_KEEP_SCALED,
    QN_CUDA_KEEP_ROWS,
    QN_CUDA_KEEP_ROUNDED,
    QN_CUDA_STEP_SCALED,
    QN_CUDA_STEP_CODED,
    QN_CUDA_STEP_LAST = QN_CUDA_STEP_CODED + 2,
    QN_CUDA_KEEP_COUNT
} qn_cuda_keep;

void qn_cuda_keep_program(qn_cuda_keep what, qn_cuda_program *program);

#endif
