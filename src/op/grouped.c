/* Shapes and rules of grouped_block_scaled_mm, and the check of its offsets. */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "op/op.h"

#define BIT(slot) (1u << (slot))

static int is_masked(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
}

static qn_status grouped_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_shape *a = &desc->in[QN_BMM_A], *b = &desc->in[QN_BMM_B];
    const int32_t dims = is_masked(desc) ? 3 : 2;
    QN_FAIL_IF(a->ndim != dims, error, QN_E_SHAPE, "grouped_block_scaled_mm: input a has %d dimensions, expected %s",
               a->ndim, dims == 3 ? "[E,Mmax,K]" : "[Mtot,K]");
    QN_FAIL_IF(b->ndim != 3, error, QN_E_SHAPE, "grouped_block_scaled_mm: input b has %d dimensions, expected [E,N,K]",
               b->ndim);
    sizes->e = b->dims[0];
    sizes->n = b->dims[1];
    sizes->k = b->dims[2];
    sizes->m = a->dims[dims - 2];
    return QN_OK;
}

static void grouped_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    const int64_t kb = qn_ceil_div(s->k, 128), nb = qn_ceil_div(s->n, 128);
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    const int64_t rows = col ? kb : s->m, columns = col ? s->m : kb;
    const qn_format d = qn_op_out_format(desc);
    layout->in[QN_BMM_B] = qn_shape_make(QN_F8_E4M3, 3, s->e, s->n, s->k, 1);
    layout->in[QN_BMM_SCALE_B] = qn_shape_make(QN_F32, 3, s->e, nb, kb, 1);
    layout->in[QN_BMM_OFFSETS] = qn_shape_make(QN_I32, 1, s->e + 1, 1, 1, 1);
    layout->in[QN_BMM_MASKED_M] = qn_shape_make(QN_I32, 1, s->e, 1, 1, 1);
    layout->required = BIT(QN_BMM_A) | BIT(QN_BMM_SCALE_A) | BIT(QN_BMM_B) | BIT(QN_BMM_SCALE_B);
    if (is_masked(desc)) {
        layout->in[QN_BMM_A] = qn_shape_make(QN_F8_E4M3, 3, s->e, s->m, s->k, 1);
        layout->in[QN_BMM_SCALE_A] = qn_shape_make(QN_F32, 3, s->e, rows, columns, 1);
        layout->out[QN_MM_OUT_D] = qn_shape_make(d, 3, s->e, s->m, s->n, 1);
        layout->required |= BIT(QN_BMM_MASKED_M);
    } else {
        layout->in[QN_BMM_A] = qn_shape_make(QN_F8_E4M3, 2, s->m, s->k, 1, 1);
        layout->in[QN_BMM_SCALE_A] = qn_shape_make(QN_F32, 2, rows, columns, 1, 1);
        layout->out[QN_MM_OUT_D] = qn_shape_make(d, 2, s->m, s->n, 1, 1);
        layout->required |= BIT(QN_BMM_OFFSETS);
    }
    layout->allowed = layout->required;
}

static qn_status grouped_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    (void)desc;
    (void)s;
    (void)error;
    return QN_OK;
}

const qn_op_family qn_family_grouped = {grouped_sizes, grouped_layout, grouped_rules, "mnke", NULL};

static int32_t read_i32(const qn_view *view, int64_t i)
{
    int32_t value;
    memcpy(&value, (const char *)view->data + i * (int64_t)sizeof value, sizeof value);
    return value;
}

qn_status qn_grouped_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error)
{
    if (is_masked(desc)) {
        const qn_view *masked = &args->in[QN_BMM_MASKED_M];
        const int64_t rows = args->in[QN_BMM_A].shape.dims[1];
        for (int64_t e = 0; e < masked->shape.dims[0]; e++) {
            const int32_t m = read_i32(masked, e);
            QN_FAIL_IF(m < 0 || m > rows, error, QN_E_ARGUMENT,
                       "grouped_block_scaled_mm: masked_m[%lld] is %d, expected 0 to %lld", (long long)e, m,
                       (long long)rows);
        }
        return QN_OK;
    }
    const qn_view *offsets = &args->in[QN_BMM_OFFSETS];
    const int64_t rows = args->in[QN_BMM_A].shape.dims[0];
    int32_t before = 0;
    for (int64_t e = 0; e < offsets->shape.dims[0]; e++) {
        const int32_t at = read_i32(offsets, e);
        QN_FAIL_IF(at < before || at > rows, error, QN_E_ARGUMENT,
                   "grouped_block_scaled_mm: offsets[%lld] is %d, expected %d to %lld (offsets do not decrease)",
                   (long long)e, at, before, (long long)rows);
        before = at;
    }
    return QN_OK;
}
