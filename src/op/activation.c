/* Shapes and rules of silu_mul_quant, silu_mul and rmsnorm. */
#include "base/checked.h"
#include "base/error.h"
#include "op/op.h"

static int has_pairs(const qn_op_desc *desc)
{
    return desc->op != QN_OP_RMSNORM;
}

static qn_status activation_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const char *name = qn_op_get_info(desc->op)->name;
    const qn_shape *x = &desc->in[QN_ACT_X];
    QN_FAIL_IF(x->ndim != 2, error, QN_E_SHAPE, "%s: input x has %d dimensions, expected 2", name, x->ndim);
    QN_FAIL_IF(has_pairs(desc) && x->dims[1] % 2 != 0, error, QN_E_SHAPE,
               "%s: input x has rows of %lld elements, expected an even number (gate, then up)", name,
               (long long)x->dims[1]);
    sizes->m = x->dims[0];
    sizes->k = has_pairs(desc) ? x->dims[1] / 2 : x->dims[1];
    return QN_OK;
}

static void activation_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    layout->in[QN_ACT_X] = qn_shape_make(QN_F32, 2, s->m, has_pairs(desc) ? 2 * s->k : s->k, 1, 1);
    layout->required = 1u << QN_ACT_X;
    if (desc->op == QN_OP_SILU_MUL_QUANT) {
        const int32_t group = desc->attr[QN_ATTR_GROUP].i;
        const int64_t groups = group > 0 ? qn_ceil_div(s->k, group) : 1;
        const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
        const int32_t type = desc->attr[QN_ATTR_TYPE].i;
        layout->out[QN_ACT_OUT_Q] = qn_shape_make(qn_op_type_format(type), 2, s->m, s->k, 1, 1);
        layout->out[QN_ACT_OUT_SCALE] = qn_shape_make(QN_F32, 2, col ? groups : s->m, col ? s->m : groups, 1, 1);
        if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
            layout->out[QN_ACT_OUT_AZP] = layout->out[QN_ACT_OUT_SCALE];
            layout->out[QN_ACT_OUT_AZP].format = QN_I32;
        }
    } else {
        layout->out[QN_ACT_OUT_Y] = qn_shape_make(qn_op_out_format(desc), 2, s->m, s->k, 1, 1);
    }
    if (desc->op == QN_OP_RMSNORM) {
        layout->in[QN_ACT_W] = qn_shape_make(QN_F32, 1, s->k, 1, 1, 1);
        layout->required |= 1u << QN_ACT_W;
    }
    layout->allowed = layout->required;
}

static qn_status activation_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    (void)s;
    if (desc->op == QN_OP_SILU_MUL_QUANT) {
        QN_FAIL_IF(!desc->attr[QN_ATTR_SYMMETRIC].i && desc->attr[QN_ATTR_TYPE].i != QN_TYPE_INT8, error, QN_E_ARGUMENT,
                   "silu_mul_quant: symmetric=0 needs type=int8");
        QN_FAIL_IF(!desc->attr[QN_ATTR_SYMMETRIC].i && desc->attr[QN_ATTR_SCALE_UB].f > 0.0f, error, QN_E_ARGUMENT,
                   "silu_mul_quant: scale_ub does not go with symmetric=0");
    }
    return QN_OK;
}

const qn_op_family qn_family_activation = {activation_sizes, activation_layout, activation_rules, "mk", NULL};
