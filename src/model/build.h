/* Builder of a model's step list. A family file calls these in data-flow order;
 * each call appends one step (a linear layer: its activation quantisation too,
 * unless the same rows were quantised the same way just before). */
#ifndef QN_MODEL_BUILD_H
#define QN_MODEL_BUILD_H

#include "model/model.h"

/* Register of that name, at least width elements of format a row. */
qn_status qn_build_register(qn_model *model, const char *name, qn_format format, int64_t width, int32_t *index,
                            qn_error *error);

/* The distinct plan for a descriptor. */
qn_status qn_build_plan(qn_model *model, const qn_op_desc *desc, const qn_plan **plan, qn_error *error);

/* Whether an operator has an attribute. */
int qn_build_takes(qn_op op, qn_attr attr);

/* Insert a copy of step i behind it. */
qn_status qn_build_repeat(qn_model *model, size_t i, qn_error *error);

/* Free plans that no step uses any more. */
void qn_build_drop_plans(qn_model *model);

/* Memory owned by the model, freed with it; NULL when there is none. */
void *qn_build_own(qn_model *model, size_t bytes);

/* Columns of a register from `column` on. */
typedef struct qn_columns {
    int32_t reg;
    int64_t column;
} qn_columns;

/* out[M, width] = rmsnorm(in) * weight; or of each of `heads` heads, which are all that the rows of in and out have. */
qn_status qn_build_norm(qn_model *model, int32_t layer, int32_t in, int32_t out, const char *weight, qn_error *error);
qn_status qn_build_head_norm(qn_model *model, int32_t layer, int32_t in, int32_t out, int32_t heads, const char *weight,
                             qn_error *error);

/* Whether new values have a register of their own before they are kept: those of codes, and on a device those of any
 * scheme that keeps other bits than are made, so that products of the same rows are alike. */
int qn_build_values_apart(const qn_model *model);

/* Whether the product of a weight can write new rows of values: on a device not that of vectors, and none that its bias
 * is added to by a step of its own. */
int qn_build_writes_values(const qn_model *model, const char *weight);

/* out columns [column, column + N) = in[M,K] W[N,K]^T (+ bias) by the weight's scheme. out: a register, or a
 * new row of the layer's values when to_values is 1. An operator without a bias is followed by a sum. */
qn_status qn_build_linear(qn_model *model, int32_t layer, int32_t in, int32_t out, int64_t column, int to_values,
                          const char *weight, qn_error *error);

/* Keep the new keys, as they are before rotation, and the new values as a KV scheme other than f32 does; rotated: a
 * register for rotated keys. Values that are not apart are kept by the product that makes them. */
qn_status qn_build_keep(qn_model *model, int32_t layer, qn_columns keys, qn_columns values, int32_t rotated,
                        qn_error *error);

/* Rotate columns of in from `column` on, [M, heads, head_dim], by position; to_keys: into the layer's key cache, else
 * into out. */
qn_status qn_build_rope(qn_model *model, int32_t layer, int32_t in, int64_t column, int32_t out, int to_keys,
                        int32_t heads, qn_error *error);

/* out = causal attention of in over the layer's cache; sums: a register for the logarithms that vq_attention gives */
qn_status qn_build_attention(qn_model *model, int32_t layer, int32_t in, int32_t out, int32_t sums, qn_error *error);

/* out[M,H] = silu(in[:, :H]) * in[:, H:] */
qn_status qn_build_silu_mul(qn_model *model, int32_t layer, int32_t in, int32_t out, int64_t width, qn_error *error);

/* into += in */
qn_status qn_build_add(qn_model *model, int32_t layer, int32_t into, int32_t in, int64_t width, qn_error *error);

/* Columns [column, column + width) of in, to columns from to_column on of out, or to a new row of the layer's values
 * when to_values is 1. */
qn_status qn_build_copy(qn_model *model, int32_t layer, int32_t in, int64_t column, int32_t out, int64_t to_column,
                        int to_values, int64_t width, qn_error *error);

/* The output layer: logits of rows of `in`, f32, written where the caller of a session wants them. */
qn_status qn_build_output(qn_model *model, int32_t in, const char *weight, qn_error *error);

/* The slot of an operator's weight scales; -1 when it has none. */
int32_t qn_build_scale_slot(qn_op mm);

/* Replace neighbouring steps by fused operators where a plan accepts them; notes what was fused and what not.
 * join 1: also linear layers that share their input and write side by side. */
qn_status qn_model_fuse(qn_model *model, int join, qn_error *error);

/* Let linear layers of 16-bit and 4-bit weights without quantised activations read BF16 rows. */
qn_status qn_model_narrow(qn_model *model, qn_error *error);

/* Make the weights of all steps what their kernels read: blobs of the packed file, blobs packed here, or copies in
 * the right order; gives the files' memory back. The last pass over the steps. */
qn_status qn_model_pack(qn_model *model, const qn_exec *exec, int use_file, qn_error *error);

/* Parts of making weights ready (pack.c) that upload.c needs too: sums[n] = sum over k of W[n,k], what zero points of
 * activations are corrected with, times a zero point that is the same for all rows; the slot they go to, -1 when the
 * step has none. */
void qn_weight_sum_columns(const qn_weight *weight, const qn_view *rows, int32_t *sums);
int32_t qn_weight_sums_slot(const qn_step *step);

/* Families. */
qn_status qn_llama_build(qn_model *model, qn_error *error);

#endif
