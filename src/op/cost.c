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

/* Rows that belong to a group and experts that have any, as the sizes read from the inputs say. Without inputs: all
 * rows, and as many experts as these can be of. */
typedef struct groups {
    double rows, experts;
} groups;

static groups groups_of(const qn_op_desc *desc, const qn_view *in, const qn_sizes *s)
{
    const int masked = desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
    const int32_t *sizes = in ? in[masked ? QN_BMM_MASKED_M : QN_BMM_OFFSETS].data : NULL;
    groups g = {0.0, 0.0};
    if (!sizes) {
        const double m = (double)s->m, e = (double)s->e;
        g.rows = masked ? m * e : m;
        g.experts = masked || m > e ? e : m;
        return g;
    }
    for (int64_t i = 0; i < s->e; i++) {
        const int32_t rows = masked ? sizes[i] : sizes[i + 1] - sizes[i];
        g.rows += rows;
        g.experts += rows > 0;
    }
    return g;
}

/* Bytes of a grouped product without the rows that no group has and the weights of experts without rows. */
static void cost_groups(const qn_op_desc *desc, const qn_shape *out, const groups *g, const qn_sizes *s,
                        qn_case_cost *cost)
{
    const double m = (double)s->m, e = (double)s->e;
    const double all = desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED ? m * e : m;
    if (all > 0.0) {
        const double kept = desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP ? shape_bytes(out) : 0.0;
        cost->bytes -=
            (1.0 - g->rows / all) * (shape_bytes(&desc->in[QN_BMM_A]) + shape_bytes(&desc->in[QN_BMM_SCALE_A]) + kept);
    }
    if (e > 0.0) {
        cost->bytes -=
            (1.0 - g->experts / e) * (shape_bytes(&desc->in[QN_BMM_B]) + shape_bytes(&desc->in[QN_BMM_SCALE_B]));
    }
    cost->flops = 2.0 * g->rows * (double)s->n * (double)s->k;
}

qn_status qn_case_get_cost(const qn_op_desc *desc, const qn_view in[QN_MAX_IN], qn_case_cost *cost, qn_error *error)
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
        const groups g = groups_of(desc, in, &s);
        cost_groups(desc, &out[0], &g, &s, cost);
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
