/* Operators inside the library: what a family of operators provides, and the
 * check of the data that shapes cannot say.
 *
 * A family file (quantize.c, matmul.c, grouped.c, activation.c, attention.c)
 * knows how the shapes of its operators hang together; desc.c does the rest for
 * all of them from the table. */
#ifndef QN_OP_OP_H
#define QN_OP_OP_H

#include <quern/experimental.h>
#include <quern/op.h>
#include <quern/plan.h>

#include "ref/slots.h"

/* What a descriptor's attributes and sizes ask of every slot. Formats of in[]
 * are the default ones (what a case string leaves out). */
typedef struct qn_op_layout {
    qn_shape in[QN_MAX_IN];
    qn_shape out[QN_MAX_OUT]; /* absent ones QN_FORMAT_NONE */
    uint32_t required;        /* bit per input slot that must be there */
    uint32_t allowed;         /* bit per input slot that may be there */
} qn_op_layout;

typedef struct qn_op_family {
    /* Sizes from the shapes in desc->in, which have formats of the table and
     * non-negative dimensions. QN_E_SHAPE: wrong number of dimensions. */
    qn_status (*sizes)(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error);
    /* Shapes from attributes and sizes; reads desc->in only to choose between
     * alternatives (which optional slots are there, [1] or [M,1]). */
    void (*layout)(const qn_op_desc *desc, const qn_sizes *sizes, qn_op_layout *layout);
    /* What attributes and sizes must obey beside that. */
    qn_status (*rules)(const qn_op_desc *desc, const qn_sizes *sizes, qn_error *error);
    const char *size_names; /* the letters of qn_sizes it uses, in case string order: "mnk" */
    /* Attributes that shapes decide, as a case string has them: 0 where usual. NULL: there are none. */
    void (*attributes)(qn_op_desc *desc);
} qn_op_family;

extern const qn_op_family qn_family_quantize, qn_family_matmul, qn_family_grouped, qn_family_activation, qn_family_rope,
    qn_family_attention, qn_family_vq, qn_family_vq_mm, qn_family_vq_encode, qn_family_vq_attention;

/* Family of an operator; NULL when it is none. */
const qn_op_family *qn_op_get_family(qn_op op);

/* No dimension or size is above this: sums and small multiples of sizes cannot overflow. */
#define QN_OP_SIZE_LIMIT ((int64_t)1 << 48)

/* 1 when the formats of a slot ("f32|f16|bf16") have this one. */
int qn_op_slot_takes(const qn_slot_info *slot, qn_format format);

/* First format of a slot. */
qn_format qn_op_slot_default(const qn_slot_info *slot);

/* A shape as text, "f32[3,4]"; text has room for 128 bytes. Returns text. */
const char *qn_shape_text(const qn_shape *shape, char *text);

/* Output element format that attribute out asks for. */
qn_format qn_op_out_format(const qn_op_desc *desc);

/* Slot of the scales of rows x of 8-bit codes, beside weights of 4-bit floats; -1: the operator has none. */
int32_t qn_op_x_scale_slot(qn_op op);

/* Element format of codes that attribute type asks for (fnuz: QN_U8). */
qn_format qn_op_type_format(int32_t type);

/* Check input values that could lead a kernel outside its operands or that no checkpoint means: offsets and masked_m
 * of grouped_block_scaled_mm, seq_lens, and what qn_op_weights_check looks at where weights are read as they are
 * stored. qn_run calls it after its shape checks; the other operators have nothing to check. QN_E_ARGUMENT. */
qn_status qn_op_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error);

/* The same of the weight slots alone, which qn_pack reads: codes beyond their codebook, centroids that are not finite,
 * a perm that is no permutation (src/op/vq_check.c). QN_E_ARGUMENT. */
qn_status qn_op_weights_check(const qn_op_desc *desc, const qn_args *args, qn_error *error);

qn_status qn_grouped_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error);
/* The recent keys and values of a windowed attention, in slots k and v: how many rows there are, and their checks. */
int64_t qn_window_rows(const qn_op_desc *desc, int32_t k);
qn_status qn_window_rules(const qn_op_desc *desc, int32_t k, qn_error *error);
/* The frequency factors of rotary positions, in that slot where there are any. */
qn_status qn_rope_factors_check(const qn_op_desc *desc, const qn_args *args, int32_t slot, qn_error *error);
qn_status qn_vq_kv_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error);

/* The rows of qn_case_at for the vector-quantised operators, counted from 0 (cases_vq.c). */
const char *qn_vq_case_at(int32_t i, int32_t *bench);

/* How a kernel sums the products of a matmul: what the error model has to allow it. */
typedef enum qn_sums {
    QN_SUMS_F32 = 0,    /* f32 in any order, or wider */
    QN_SUMS_FP8_MMA = 1, /* Hopper's FP8 tensor core within 128 of K, those sums added in f32 */
    QN_SUMS_HALF = 2     /* decoded weights and scaled rows of x rounded to f16, their products summed in f32 */
} qn_sums;

/* qn_case_judge for a kernel with such sums. */
qn_status qn_judge(const qn_op_desc *desc, qn_sums sums, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                   const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error);

static inline int qn_op_has(const qn_op_desc *desc, int32_t slot)
{
    return desc->in[slot].format != QN_FORMAT_NONE;
}

#endif
