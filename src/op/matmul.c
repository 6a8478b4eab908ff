/* Shapes and rules of the matmuls d[M,N] = x[M,K] b[N,K]^T. */
#include "base/checked.h"
#include "base/error.h"
#include "op/op.h"

#define BIT(slot) (1u << (slot))

static qn_shape shape1(qn_format format, int64_t a)
{
    return qn_shape_make(format, 1, a, 1, 1, 1);
}

static qn_shape shape2(qn_format format, int64_t a, int64_t b)
{
    return qn_shape_make(format, 2, a, b, 1, 1);
}

/* [1] or [count,1] or [count], whichever the given shape is nearer to. */
static qn_shape scale_choice(const qn_shape *given, int64_t count)
{
    if (given->format != QN_FORMAT_NONE && given->ndim == 2) {
        return shape2(QN_F32, count, 1);
    }
    const int many = given->format != QN_FORMAT_NONE && given->ndim == 1 && given->dims[0] != 1;
    return shape1(QN_F32, many ? count : 1);
}

static int32_t activation_slot(const qn_op_desc *desc)
{
    return desc->op == QN_OP_NVFP4_MM && qn_op_has(desc, QN_NVMM_A) ? QN_NVMM_A : 0;
}

int32_t qn_op_x_scale_slot(qn_op op)
{
    return op == QN_OP_NVFP4_MM ? QN_NVMM_X_SCALE : op == QN_OP_MXFP4_MM ? QN_MXMM_X_SCALE : -1;
}

static int32_t weight_slot(qn_op op)
{
    switch (op) {
    case QN_OP_BLOCK_SCALED_MM: return QN_BMM_B;
    case QN_OP_NVFP4_MM: return QN_NVMM_B;
    default: return 1; /* scaled_mm, mxfp4_mm, dense_mm */
    }
}

static qn_status matmul_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_op_info *op = qn_op_get_info(desc->op);
    const int32_t slots[2] = {activation_slot(desc), weight_slot(desc->op)};
    for (int i = 0; i < 2; i++) {
        QN_FAIL_IF(desc->in[slots[i]].ndim != 2, error, QN_E_SHAPE, "%s: input %s has %d dimensions, expected %s",
                   op->name, op->in[slots[i]].name, desc->in[slots[i]].ndim, op->in[slots[i]].shape);
    }
    const int packed = desc->op == QN_OP_NVFP4_MM && slots[0] == QN_NVMM_A;
    sizes->m = desc->in[slots[0]].dims[0];
    sizes->k = desc->in[slots[0]].dims[1] * (packed ? 2 : 1);
    sizes->n = desc->in[slots[1]].dims[0];
    return QN_OK;
}

static void scaled_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    const qn_format a = qn_op_has(desc, QN_SMM_A) ? desc->in[QN_SMM_A].format : QN_I8;
    layout->in[QN_SMM_A] = shape2(QN_I8, s->m, s->k);
    layout->in[QN_SMM_B] = shape2(a, s->n, s->k);
    layout->in[QN_SMM_SCALE_A] = scale_choice(&desc->in[QN_SMM_SCALE_A], s->m);
    layout->in[QN_SMM_SCALE_B] = scale_choice(&desc->in[QN_SMM_SCALE_B], s->n);
    layout->in[QN_SMM_BIAS] = shape1(QN_F32, s->n);
    layout->in[QN_SMM_AZP_ADJ] = shape1(QN_I32, s->n);
    layout->in[QN_SMM_AZP] = desc->in[QN_SMM_AZP].ndim == 2 ? shape2(QN_I32, s->m, 1) : shape1(QN_I32, s->m);
    layout->required = BIT(QN_SMM_A) | BIT(QN_SMM_B) | BIT(QN_SMM_SCALE_A) | BIT(QN_SMM_SCALE_B);
    layout->allowed = layout->required | BIT(QN_SMM_BIAS) | BIT(QN_SMM_AZP_ADJ) | BIT(QN_SMM_AZP);
}

static void block_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    const int64_t kb = qn_ceil_div(s->k, 128), nb = qn_ceil_div(s->n, 128);
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    layout->in[QN_BMM_A] = shape2(QN_F8_E4M3, s->m, s->k);
    layout->in[QN_BMM_SCALE_A] = col ? shape2(QN_F32, kb, s->m) : shape2(QN_F32, s->m, kb);
    layout->in[QN_BMM_B] = shape2(QN_F8_E4M3, s->n, s->k);
    layout->in[QN_BMM_SCALE_B] = shape2(QN_F32, nb, kb);
    layout->required = BIT(QN_BMM_A) | BIT(QN_BMM_SCALE_A) | BIT(QN_BMM_B) | BIT(QN_BMM_SCALE_B);
    layout->allowed = layout->required;
}

/* Rows of 8-bit codes, whose scales are a slot of their own; the weights are 4-bit floats. */
static int is_scaled(const qn_op_desc *desc)
{
    return desc->in[0].format == QN_I8 || desc->in[0].format == QN_F8_E4M3;
}

static void nvfp4_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    layout->in[QN_NVMM_X] = shape2(QN_F32, s->m, s->k);
    layout->in[QN_NVMM_A] = shape2(QN_U8, s->m, s->k / 2);
    layout->in[QN_NVMM_A_SCALE] = shape2(QN_F8_E4M3, s->m, s->k / 16);
    layout->in[QN_NVMM_A_GLOBAL] = shape1(QN_F32, 1);
    layout->in[QN_NVMM_B] = shape2(QN_U8, s->n, s->k / 2);
    layout->in[QN_NVMM_B_SCALE] = shape2(QN_F8_E4M3, s->n, s->k / 16);
    layout->in[QN_NVMM_B_GLOBAL] = shape1(QN_F32, 1);
    layout->in[QN_NVMM_BIAS] = shape1(QN_F32, s->n);
    layout->in[QN_NVMM_X_SCALE] = scale_choice(&desc->in[QN_NVMM_X_SCALE], s->m);
    const uint32_t weights = BIT(QN_NVMM_B) | BIT(QN_NVMM_B_SCALE) | BIT(QN_NVMM_B_GLOBAL);
    const uint32_t quantised = BIT(QN_NVMM_A_SCALE) | BIT(QN_NVMM_A_GLOBAL);
    if (qn_op_has(desc, QN_NVMM_A)) {
        layout->required = weights | quantised;
        layout->allowed = layout->required | BIT(QN_NVMM_A) | BIT(QN_NVMM_BIAS);
    } else {
        layout->required = weights | BIT(QN_NVMM_X) | (is_scaled(desc) ? BIT(QN_NVMM_X_SCALE) : 0u);
        layout->allowed = layout->required | BIT(QN_NVMM_BIAS);
    }
}

static void matmul_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    switch (desc->op) {
    case QN_OP_SCALED_MM: scaled_layout(desc, s, layout); break;
    case QN_OP_BLOCK_SCALED_MM: block_layout(desc, s, layout); break;
    case QN_OP_NVFP4_MM: nvfp4_layout(desc, s, layout); break;
    case QN_OP_MXFP4_MM:
        layout->in[QN_MXMM_X] = shape2(QN_F32, s->m, s->k);
        layout->in[QN_MXMM_B] = shape2(QN_U8, s->n, s->k / 2);
        layout->in[QN_MXMM_B_SCALE] = shape2(QN_U8, s->n, s->k / 32);
        layout->in[QN_MXMM_BIAS] = shape1(QN_F32, s->n);
        layout->in[QN_MXMM_X_SCALE] = scale_choice(&desc->in[QN_MXMM_X_SCALE], s->m);
        layout->required = BIT(QN_MXMM_X) | BIT(QN_MXMM_B) | BIT(QN_MXMM_B_SCALE);
        layout->required |= is_scaled(desc) ? BIT(QN_MXMM_X_SCALE) : 0u;
        layout->allowed = layout->required | BIT(QN_MXMM_BIAS);
        break;
    default: /* dense_mm */
        layout->in[QN_DMM_X] = shape2(QN_F32, s->m, s->k);
        layout->in[QN_DMM_B] = shape2(QN_F32, s->n, s->k);
        layout->in[QN_DMM_BIAS] = shape1(QN_F32, s->n);
        layout->required = BIT(QN_DMM_X) | BIT(QN_DMM_B);
        layout->allowed = layout->required | BIT(QN_DMM_BIAS);
        break;
    }
    layout->out[QN_MM_OUT_D] = shape2(qn_op_out_format(desc), s->m, s->n);
}

static qn_status matmul_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    const char *name = qn_op_get_info(desc->op)->name;
    int64_t multiple = 1;
    switch (desc->op) {
    case QN_OP_SCALED_MM: {
        const qn_format a = desc->in[QN_SMM_A].format, b = desc->in[QN_SMM_B].format;
        QN_FAIL_IF(a != b, error, QN_E_FORMAT, "%s: input a is %s and input b is %s, expected both the same", name,
                   qn_format_get_info(a)->name, qn_format_get_info(b)->name);
        QN_FAIL_IF(a != QN_I8 && qn_op_has(desc, QN_SMM_AZP_ADJ), error, QN_E_FORMAT,
                   "%s: input azp_adj is given with %s operands, expected i8", name, qn_format_get_info(a)->name);
        QN_FAIL_IF(qn_op_has(desc, QN_SMM_AZP) && !qn_op_has(desc, QN_SMM_AZP_ADJ), error, QN_E_FORMAT,
                   "%s: input azp is given without azp_adj, expected the column sums of b there", name);
        return QN_OK;
    }
    case QN_OP_NVFP4_MM: multiple = 16; break;
    case QN_OP_MXFP4_MM: multiple = 32; break;
    case QN_OP_DENSE_MM: {
        const qn_format_info *b = qn_format_get_info(desc->in[QN_DMM_B].format);
        multiple = b ? b->block_elements : 1;
        break;
    }
    default: break;
    }
    QN_FAIL_IF(s->k % multiple != 0, error, QN_E_SHAPE,
               "%s: K is %lld, expected a multiple of %lld, the elements of a block of b", name, (long long)s->k,
               (long long)multiple);
    return QN_OK;
}

const qn_op_family qn_family_matmul = {matmul_sizes, matmul_layout, matmul_rules, "mnk", NULL};
