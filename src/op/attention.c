/* Shapes and rules of rope, attention and scaled_attention. */
#include <math.h>

#include "base/error.h"
#include "op/op.h"
#include "ref/slots.h"

static qn_status rope_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_shape *x = &desc->in[QN_ACT_X];
    QN_FAIL_IF(x->ndim != 3, error, QN_E_SHAPE, "rope: input x has %d dimensions, expected [T,H,D]", x->ndim);
    sizes->m = x->dims[0];
    sizes->e = x->dims[1];
    sizes->k = x->dims[2];
    return QN_OK;
}

static void rope_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    (void)desc;
    layout->in[QN_ACT_X] = qn_shape_make(QN_F32, 3, s->m, s->e, s->k, 1);
    layout->in[QN_ACT_POS] = qn_shape_make(QN_I32, 1, s->m, 1, 1, 1);
    layout->in[QN_ACT_FACTORS] = qn_shape_make(QN_F32, 1, s->k / 2, 1, 1, 1);
    layout->out[QN_ACT_OUT_Y] = qn_shape_make(QN_F32, 3, s->m, s->e, s->k, 1);
    layout->required = 1u << QN_ACT_X | 1u << QN_ACT_POS;
    layout->allowed = layout->required | 1u << QN_ACT_FACTORS;
}

static qn_status rope_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    (void)desc;
    QN_FAIL_IF(s->k % 2 != 0, error, QN_E_SHAPE, "rope: the head size is %lld, expected an even number",
               (long long)s->k);
    return QN_OK;
}

qn_status qn_rope_factors_check(const qn_op_desc *desc, const qn_args *args, int32_t slot, qn_error *error)
{
    const int64_t count = qn_op_has(desc, slot) ? desc->in[slot].dims[0] : 0;
    const float *factors = args->in[slot].data;
    for (int64_t i = 0; i < count; i++) {
        QN_FAIL_IF(!(isfinite(factors[i]) && factors[i] > 0.0f), error, QN_E_ARGUMENT,
                   "%s: %s[%lld] is %g, expected a finite number above 0", qn_op_get_info(desc->op)->name,
                   qn_op_get_info(desc->op)->in[slot].name, (long long)i, (double)factors[i]);
    }
    return QN_OK;
}

const qn_op_family qn_family_rope = {rope_sizes, rope_layout, rope_rules, "mke", NULL};

static qn_status attention_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_shape *q = &desc->in[QN_ATT_Q], *k = &desc->in[QN_ATT_K];
    const char *op = qn_op_get_info(desc->op)->name;
    QN_FAIL_IF(q->ndim != 3, error, QN_E_SHAPE, "%s: input q has %d dimensions, expected [T,Hq,D]", op, q->ndim);
    QN_FAIL_IF(k->ndim != 3, error, QN_E_SHAPE, "%s: input k has %d dimensions, expected [S,Hkv,D]", op, k->ndim);
    sizes->m = q->dims[0];
    sizes->e = q->dims[1];
    sizes->k = q->dims[2];
    sizes->n = k->dims[0];
    sizes->g = k->dims[1];
    return QN_OK;
}

static void attention_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    layout->in[QN_ATT_Q] = qn_shape_make(QN_F32, 3, s->m, s->e, s->k, 1);
    layout->in[QN_ATT_K] = qn_shape_make(QN_F32, 3, s->n, s->g, s->k, 1);
    layout->required = 1u << QN_ATT_Q | 1u << QN_ATT_K | 1u << QN_ATT_V;
    if (desc->op == QN_OP_SCALED_ATTENTION) {
        layout->in[QN_ATT_K].format = QN_F8_E4M3;
        layout->in[QN_ATT_K_SCALE] = layout->in[QN_ATT_V_SCALE] = qn_shape_make(QN_F32, 2, s->n, s->g, 1, 1);
        layout->required |= 1u << QN_ATT_K_SCALE | 1u << QN_ATT_V_SCALE;
        if (desc->attr[QN_ATTR_WINDOW].i > 0) {
            const int64_t rows = qn_window_rows(desc, QN_ATT_K_RECENT);
            layout->in[QN_ATT_K_RECENT] = layout->in[QN_ATT_V_RECENT] = qn_shape_make(QN_F16, 3, rows, s->g, s->k, 1);
            layout->required |= 1u << QN_ATT_K_RECENT | 1u << QN_ATT_V_RECENT;
        }
    }
    layout->in[QN_ATT_V] = layout->in[QN_ATT_K];
    layout->out[QN_ATT_OUT_O] = qn_shape_make(qn_op_out_format(desc), 3, s->m, s->e, s->k, 1);
    layout->allowed = layout->required;
}

static qn_status attention_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    QN_FAIL_IF(s->g == 0 ? s->e != 0 : s->e % s->g != 0, error, QN_E_SHAPE,
               "%s: q has %lld heads and k has %lld, expected a multiple", qn_op_get_info(desc->op)->name,
               (long long)s->e, (long long)s->g);
    return desc->op == QN_OP_SCALED_ATTENTION ? qn_window_rules(desc, QN_ATT_K_RECENT, error) : QN_OK;
}

int64_t qn_window_rows(const qn_op_desc *desc, int32_t k)
{
    const qn_shape *recent = &desc->in[k];
    return recent->format && recent->ndim >= 3 ? recent->dims[recent->ndim - 3]
                                               : desc->attr[QN_ATTR_WINDOW].i + QN_WINDOW_BLOCK;
}

qn_status qn_window_rules(const qn_op_desc *desc, int32_t k, qn_error *error)
{
    const int32_t window = desc->attr[QN_ATTR_WINDOW].i;
    const char *op = qn_op_get_info(desc->op)->name;
    QN_FAIL_IF(window < 0 || window > 1 << 24, error, QN_E_ARGUMENT, "%s: window is %d, expected 0 to 2^24", op,
               window);
    QN_FAIL_IF(window > 0 && qn_window_rows(desc, k) < window + QN_WINDOW_BLOCK, error, QN_E_SHAPE,
               "%s: k_recent has %lld rows, a window of %d needs %d", op, (long long)qn_window_rows(desc, k), window,
               window + QN_WINDOW_BLOCK);
    return QN_OK;
}

const qn_op_family qn_family_attention = {attention_sizes, attention_layout, attention_rules, "mnkeg", NULL};
