/* Shapes and rules of the quantize operators and dequantize. */
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

/* Shape of the scales of an [m,k] matrix. */
static qn_shape scale_shape(const qn_op_desc *desc, qn_format format, int64_t m, int64_t k)
{
    const int32_t group = desc->attr[QN_ATTR_GROUP].i > 0 ? desc->attr[QN_ATTR_GROUP].i : 1;
    const int64_t groups = qn_ceil_div(k, group);
    switch (desc->attr[QN_ATTR_GRANULARITY].i) {
    case QN_PER_TOKEN: return shape2(format, m, 1);
    case QN_PER_GROUP:
        return desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL ? shape2(format, groups, m)
                                                                  : shape2(format, m, groups);
    case QN_PER_BLOCK: return shape2(format, qn_ceil_div(m, 128), qn_ceil_div(k, 128));
    default: return shape1(format, 1);
    }
}

static qn_shape nvfp4_scale_shape(const qn_op_desc *desc, int64_t m, int64_t k)
{
    if (desc->attr[QN_ATTR_SWIZZLED].i) {
        return shape2(QN_U8, qn_ceil_div(m, 128) * 128, qn_ceil_div(k / 16, 4) * 4);
    }
    return shape2(QN_F8_E4M3, m, k / 16);
}

static int is_fp4(const qn_op_desc *desc)
{
    const int32_t format = desc->attr[QN_ATTR_FORMAT].i;
    return desc->op == QN_OP_DEQUANTIZE && (format == QN_QUANT_NVFP4 || format == QN_QUANT_MXFP4);
}

static qn_status quantize_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_op_info *op = qn_op_get_info(desc->op);
    const qn_shape *x = &desc->in[0];
    QN_FAIL_IF(x->ndim != 2, error, QN_E_SHAPE, "%s: input %s has %d dimensions, expected %s", op->name, op->in[0].name,
               x->ndim, op->in[0].shape);
    sizes->m = x->dims[0];
    sizes->k = is_fp4(desc) ? x->dims[1] * 2 : x->dims[1];
    return QN_OK;
}

static void dequantize_layout(const qn_op_desc *desc, int64_t m, int64_t k, qn_op_layout *layout)
{
    layout->required = BIT(QN_DEQ_Q) | BIT(QN_DEQ_SCALE);
    switch (desc->attr[QN_ATTR_FORMAT].i) {
    case QN_QUANT_FP8:
        layout->in[QN_DEQ_Q] = shape2(qn_op_type_format(desc->attr[QN_ATTR_TYPE].i), m, k);
        layout->in[QN_DEQ_SCALE] = scale_shape(desc, QN_F32, m, k);
        break;
    case QN_QUANT_INT8:
        layout->in[QN_DEQ_Q] = shape2(QN_I8, m, k);
        layout->in[QN_DEQ_SCALE] = scale_shape(desc, QN_F32, m, k);
        layout->in[QN_DEQ_AZP] = scale_shape(desc, QN_I32, m, k);
        layout->required |= desc->attr[QN_ATTR_SYMMETRIC].i ? 0 : BIT(QN_DEQ_AZP);
        break;
    case QN_QUANT_NVFP4:
        layout->in[QN_DEQ_Q] = shape2(QN_U8, m, k / 2);
        layout->in[QN_DEQ_SCALE] = nvfp4_scale_shape(desc, m, k);
        layout->in[QN_DEQ_GLOBAL] = shape1(QN_F32, 1);
        layout->required |= BIT(QN_DEQ_GLOBAL);
        break;
    default:
        layout->in[QN_DEQ_Q] = shape2(QN_U8, m, k / 2);
        layout->in[QN_DEQ_SCALE] = shape2(QN_U8, m, k / 32);
        break;
    }
    layout->allowed = layout->required;
    layout->out[QN_DEQ_OUT_X] = shape2(QN_F32, m, k);
}

static void quantize_layout(const qn_op_desc *desc, const qn_sizes *sizes, qn_op_layout *layout)
{
    const int64_t m = sizes->m, k = sizes->k;
    if (desc->op == QN_OP_DEQUANTIZE) {
        dequantize_layout(desc, m, k, layout);
        return;
    }
    layout->in[QN_QUANT_X] = shape2(QN_F32, m, k);
    layout->required = BIT(QN_QUANT_X);
    const int is_static = desc->attr[QN_ATTR_MODE].i == QN_STATIC;
    switch (desc->op) {
    case QN_OP_QUANTIZE_FP8:
        layout->in[QN_QUANT_SCALE] = scale_shape(desc, QN_F32, m, k);
        layout->required |= is_static ? BIT(QN_QUANT_SCALE) : 0;
        layout->out[QN_QUANT_OUT_Q] = shape2(qn_op_type_format(desc->attr[QN_ATTR_TYPE].i), m, k);
        layout->out[QN_QUANT_OUT_SCALE] = scale_shape(desc, QN_F32, m, k);
        break;
    case QN_OP_QUANTIZE_INT8:
        layout->in[QN_QUANT_SCALE] = scale_shape(desc, QN_F32, m, k);
        layout->in[QN_QUANT_AZP] = scale_shape(desc, QN_I32, m, k);
        layout->required |= is_static ? BIT(QN_QUANT_SCALE) : 0;
        layout->out[QN_QUANT_OUT_Q] = shape2(QN_I8, m, k);
        layout->out[QN_QUANT_OUT_SCALE] = scale_shape(desc, QN_F32, m, k);
        if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
            layout->required |= is_static ? BIT(QN_QUANT_AZP) : 0;
            layout->out[QN_QUANT_OUT_AZP] = scale_shape(desc, QN_I32, m, k);
        }
        break;
    case QN_OP_QUANTIZE_NVFP4:
        layout->in[QN_FP4_GLOBAL] = shape1(QN_F32, 1);
        layout->allowed = BIT(QN_FP4_GLOBAL);
        layout->out[QN_FP4_OUT_Q] = shape2(QN_U8, m, k / 2);
        layout->out[QN_FP4_OUT_SCALE] = nvfp4_scale_shape(desc, m, k);
        layout->out[QN_FP4_OUT_GLOBAL] = shape1(QN_F32, 1);
        break;
    default:
        layout->out[QN_FP4_OUT_Q] = shape2(QN_U8, m, k / 2);
        layout->out[QN_FP4_OUT_SCALE] = shape2(QN_U8, m, k / 32);
        break;
    }
    layout->allowed |= layout->required;
}

static qn_status fp8_rules(const qn_op_desc *desc, const char *name, qn_error *error)
{
    const int32_t granularity = desc->attr[QN_ATTR_GRANULARITY].i;
    QN_FAIL_IF(granularity == QN_PER_GROUP && desc->attr[QN_ATTR_GROUP].i < 1, error, QN_E_ARGUMENT,
               "%s: attribute group is 0, expected a positive number with granularity=group", name);
    QN_FAIL_IF(granularity != QN_PER_GROUP && desc->attr[QN_ATTR_SCALE_LAYOUT].i != QN_SCALE_ROW, error, QN_E_ARGUMENT,
               "%s: scale_layout=col needs granularity=group", name);
    return QN_OK;
}

static qn_status quantize_rules(const qn_op_desc *desc, const qn_sizes *sizes, qn_error *error)
{
    const char *name = qn_op_get_info(desc->op)->name;
    const int is_static = desc->attr[QN_ATTR_MODE].i == QN_STATIC;
    int64_t multiple = 1;
    switch (desc->op) {
    case QN_OP_QUANTIZE_FP8:
        QN_FAIL_IF(is_static && desc->attr[QN_ATTR_SCALE_FORMAT].i != QN_SCALE_F32, error, QN_E_ARGUMENT,
                   "%s: scale_format=ue8m0 needs mode=dynamic, with mode=static the scale is an input", name);
        QN_FAIL_IF(is_static && desc->attr[QN_ATTR_SCALE_UB].f > 0.0f, error, QN_E_ARGUMENT,
                   "%s: scale_ub needs mode=dynamic, with mode=static the scale is an input", name);
        return fp8_rules(desc, name, error);
    case QN_OP_QUANTIZE_INT8: return fp8_rules(desc, name, error);
    case QN_OP_QUANTIZE_NVFP4: multiple = 16; break;
    case QN_OP_QUANTIZE_MXFP4: multiple = 32; break;
    default:
        if (!is_fp4(desc)) {
            const int int8 = desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_INT8;
            QN_FAIL_IF(!int8 && desc->attr[QN_ATTR_TYPE].i == QN_TYPE_INT8, error, QN_E_ARGUMENT,
                       "%s: type=int8 does not go with format=fp8, expected format=int8", name);
            QN_FAIL_IF(int8 && desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_BLOCK, error, QN_E_ARGUMENT,
                       "%s: granularity=block does not go with format=int8", name);
            const qn_format q = desc->in[QN_DEQ_Q].format;
            const qn_format want = int8 ? QN_I8 : qn_op_type_format(desc->attr[QN_ATTR_TYPE].i);
            const int fnuz = want == QN_U8 && q == QN_F8_E4M3FNUZ;
            QN_FAIL_IF(q != QN_FORMAT_NONE && q != want && !fnuz, error, QN_E_FORMAT,
                       "%s: input q is %s, expected %s with these attributes", name, qn_format_get_info(q)->name,
                       qn_format_get_info(want)->name);
            const qn_format scale = desc->in[QN_DEQ_SCALE].format;
            QN_FAIL_IF(scale != QN_FORMAT_NONE && scale != QN_F32, error, QN_E_FORMAT,
                       "%s: input scale is %s, expected f32 with these attributes", name,
                       qn_format_get_info(scale)->name);
            return fp8_rules(desc, name, error);
        }
        multiple = desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_NVFP4 ? 16 : 32;
        const qn_format q = desc->in[QN_DEQ_Q].format, scale = desc->in[QN_DEQ_SCALE].format;
        QN_FAIL_IF(q != QN_FORMAT_NONE && q != QN_U8, error, QN_E_FORMAT, "%s: input q is %s, expected u8", name,
                   qn_format_get_info(q)->name);
        const int e8m0 = multiple == 32 && scale == QN_E8M0;
        const qn_format want = multiple == 32 || desc->attr[QN_ATTR_SWIZZLED].i ? QN_U8 : QN_F8_E4M3;
        QN_FAIL_IF(scale != QN_FORMAT_NONE && scale != want && !e8m0, error, QN_E_FORMAT,
                   "%s: input scale is %s, expected %s with these attributes", name, qn_format_get_info(scale)->name,
                   qn_format_get_info(want)->name);
        break;
    }
    QN_FAIL_IF(sizes->k % multiple != 0, error, QN_E_SHAPE,
               "%s: K is %lld, expected a multiple of %lld, the elements that share a scale in this format", name,
               (long long)sizes->k, (long long)multiple);
    return QN_OK;
}

const qn_op_family qn_family_quantize = {quantize_sizes, quantize_layout, quantize_rules, "mk", NULL};
