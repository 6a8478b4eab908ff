/* What a run must move and compute at least: the rooflines of benches. */
#include <quern/experimental.h>

#include "base/error.h"
#include "op/op.h"

static double shape_bytes(const qn_shape *shape)
{
    size_t bytes = 0;
    return shape->format != QN_FORMAT_NONE && qn_shape_bytes(shape, &bytes, NULL) == QN_OK ? (double)bytes : 0.0;
}

/* Query and key pairs of an attention: causal queries are the last ones and do not see what comes after them. */
static double attended(const qn_op_desc *desc, double queries, double keys)
{
    if (!desc->attr[QN_ATTR_CAUSAL].i) {
        return queries * keys;
    }
    return keys >= queries ? queries * (keys - queries) + queries * (queries + 1.0) / 2.0 : keys * (keys + 1.0) / 2.0;
}

/* One scale for the whole tensor, found first: no code can be made before the last element is read. */
static int needs_two_passes(const qn_op_desc *desc)
{
    switch (desc->op) {
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8:
        return desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_TENSOR && desc->attr[QN_ATTR_MODE].i != QN_STATIC;
    case QN_OP_QUANTIZE_NVFP4: return desc->in[QN_FP4_GLOBAL].format == QN_FORMAT_NONE;
    default: return 0;
    }
}

qn_status qn_case_get_cost(const qn_op_desc *desc, qn_case_cost *cost, qn_error *error)
{
    QN_FAIL_IF(!desc || !cost, error, QN_E_ARGUMENT, "qn_case_get_cost: a parameter is NULL");
    qn_shape out[QN_MAX_OUT];
    qn_sizes s;
    QN_TRY(qn_op_desc_check(desc, out, &s, error));
    *cost = (qn_case_cost){0.0, 0.0, "read"};
    for (int i = 0; i < QN_MAX_IN; i++) {
        cost->bytes += shape_bytes(&desc->in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        cost->bytes += shape_bytes(&out[i]);
    }
    if (needs_two_passes(desc)) {
        cost->bytes += shape_bytes(&desc->in[0]);
    }
    const double m = (double)s.m, n = (double)s.n, k = (double)s.k, e = (double)s.e;
    switch (desc->op) {
    case QN_OP_SCALED_MM:
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_NVFP4_MM:
    case QN_OP_MXFP4_MM:
    case QN_OP_DENSE_MM:
    case QN_OP_VQ_MM: cost->flops = 2.0 * m * n * k; break;
    case QN_OP_VQ_ENCODE: cost->flops = 3.0 * m * n * k * e * (double)desc->in[QN_VQE_CODEBOOK].dims[2]; break;
    case QN_OP_VQ_ATTENTION: cost->flops = 4.0 * m * n * k * e; break;
    case QN_OP_GROUPED_BLOCK_SCALED_MM: {
        const int masked = desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
        if (!masked && m < e) { /* as many experts have no row, whose weights are not read */
            cost->bytes -= (e - m) / e * (shape_bytes(&desc->in[QN_BMM_B]) + shape_bytes(&desc->in[QN_BMM_SCALE_B]));
        }
        cost->flops = 2.0 * m * n * k * (masked ? e : 1.0);
        break;
    }
    case QN_OP_SILU_MUL:
    case QN_OP_SILU_MUL_QUANT: cost->flops = 8.0 * m * k; break;
    case QN_OP_ROPE: cost->flops = 3.0 * m * k * e; break;
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION: cost->flops = 4.0 * attended(desc, m, n) * k * e; break;
    default: cost->flops = 4.0 * m * k; break;
    }
    switch (desc->op) {
    case QN_OP_SCALED_MM:
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_GROUPED_BLOCK_SCALED_MM:
    case QN_OP_NVFP4_MM:
    case QN_OP_MXFP4_MM:
    case QN_OP_DENSE_MM:
    case QN_OP_VQ_MM:
    case QN_OP_VQ_ATTENTION:
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION: break;
    default: cost->memory = "copy"; break;
    }
    return QN_OK;
}
