/* What steps of a pass are matched in, and products among them: what chain.c and chain_product.c share. */
#ifndef QN_BACKEND_CUDA_CHAIN_MATCH_H
#define QN_BACKEND_CUDA_CHAIN_MATCH_H

#include "backend/cuda/chain.h"

/* What a pattern is matched in. */
typedef struct qn_cuda_matcher {
    const qn_chain_step *steps;
    int32_t count;
    const int32_t *position;
    qn_cuda *cuda;
    const qn_chain_step *norms; /* two, of the heads of the query and of the key, in front of steps; NULL: none */
} qn_cuda_matcher;

/* Step i, if it is that operator; NULL: it is not, or there is none. */
const qn_chain_step *qn_cuda_operator_at(const qn_cuda_matcher *m, int32_t i, qn_op op);

const void *qn_cuda_step_x(const qn_chain_step *s);

/* Whether a step from `from` on reads what lies at data, or outputs of s, before it is written anew. */
int qn_cuda_is_needed(const qn_cuda_matcher *m, int32_t from, const void *data);
int qn_cuda_outputs_needed(const qn_cuda_matcher *m, int32_t from, const qn_chain_step *s);

int qn_cuda_dense_f32(const qn_view *v);

/* What stands before a product: values of the parameter PRE of kernels/cuda/mm_before.h. */
enum { QN_CUDA_PRE_NONE = 0, QN_CUDA_PRE_NORM, QN_CUDA_PRE_SILU, QN_CUDA_PRE_ATTENTION };

/* A product, or a few neighbours that read the same rows and differ in weights alone, and what stands around. */
typedef struct qn_cuda_product {
    const qn_chain_step *before, *quantize, *mm[QN_CUDA_MM_PARTS], *add, *copy; /* copy: of the last one's results */
    const qn_chain_step *bias[QN_CUDA_MM_PARTS]; /* sums of biases that mm has no place for: all or none */
    int32_t parts, taken, pre, quant, floors;
    int32_t silu;      /* 1: of two weights, whose results become silu_mul of them */
    qn_format rounded; /* of the row before its quantisation */
} qn_cuda_product;

/* Match a product from step i on, its rows made by `from` (an attention; NULL: the steps themselves say). */
int qn_cuda_match_product(const qn_cuda_matcher *m, int32_t i, const qn_chain_step *from, qn_cuda_product *p);

/* The launch of a product; *possible 0: its weights or sizes are not for a chain's kernels. */
qn_status qn_cuda_make_product(const qn_cuda_matcher *m, const qn_cuda_product *p, qn_cuda_chain_launch *l,
                               int *possible, qn_error *error);

/* K of a product. */
int64_t qn_cuda_product_depth(const qn_op_desc *desc);

#endif
