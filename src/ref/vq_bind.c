/* From an operator's descriptor to a qn_vq: what attributes leave open (0) the
 * shapes of the tensors say, and where there are none yet the usual scheme of
 * the format (aqlm 2x8 in groups of 8, vptq v8 with 256 centroids). */
#include <string.h>

#include "base/checked.h"
#include "ref/slots.h"
#include "ref/vq.h"

static const qn_shape *tensor_shape(const qn_op_desc *desc, int32_t slot)
{
    return &desc->in[slot + (desc->op == QN_OP_VQ_MM ? QN_VQMM_FIRST : 0)];
}

/* Dimension d of a tensor that has its shape already; -1: not known. */
static int64_t dim_of(const qn_op_desc *desc, int32_t slot, int32_t ndim, int32_t d)
{
    const qn_shape *shape = tensor_shape(desc, slot);
    return shape->format != QN_FORMAT_NONE && shape->ndim == ndim ? shape->dims[d] : -1;
}

/* An attribute, else what a shape says, else the usual. */
static int64_t choose(const qn_op_desc *desc, qn_attr attr, int64_t shaped, int64_t usual)
{
    const int32_t given = desc->attr[attr].i;
    return given ? given : (shaped >= 0 ? shaped : usual);
}

static int64_t quotient(int64_t a, int64_t b)
{
    return a >= 0 && b > 0 ? a / b : -1;
}

/* A size that is not known yet: count * unit, dimensions below QN_OP_SIZE_LIMIT by counts below 2^31; -1: no news. */
static void take(int64_t *size, int64_t count, int64_t unit)
{
    int64_t product;
    if (*size < 0 && count >= 0 && qn_mul_i64(count, unit, &product) == 0) {
        *size = product;
    }
}

static void describe_aqlm(const qn_op_desc *desc, qn_vq *vq)
{
    const int64_t entries = dim_of(desc, QN_VQ_CODEBOOKS, 4, 1);
    const qn_shape *codes = tensor_shape(desc, QN_VQ_CODES);
    vq->codebooks = qn_min_i64(choose(desc, QN_ATTR_NUM_CODEBOOKS, dim_of(desc, QN_VQ_CODEBOOKS, 4, 0), 2), INT32_MAX);
    vq->bits = choose(desc, QN_ATTR_NBITS, entries < 0 ? -1 : qn_vq_bits_for(entries), 8);
    vq->out_group = choose(desc, QN_ATTR_OUT_GROUP, dim_of(desc, QN_VQ_CODEBOOKS, 4, 2), 1);
    vq->in_group = choose(desc, QN_ATTR_IN_GROUP, dim_of(desc, QN_VQ_CODEBOOKS, 4, 3), 8);
    vq->packed = codes->ndim == 2 || (codes->ndim == 0 && codes->format == QN_U8);
    if (codes->format == QN_FORMAT_NONE || codes->ndim < 2) {
        return;
    }
    int64_t groups = codes->dims[1];
    if (codes->ndim == 2) {
        const int64_t bits = vq->codebooks * vq->bits;
        groups = bits > 0 && groups < INT64_MAX / 8 ? groups * 8 / bits : 0;
    }
    take(&vq->n, codes->dims[0], vq->out_group);
    take(&vq->k, desc->attr[QN_ATTR_IN_FEATURES].i > 0 ? desc->attr[QN_ATTR_IN_FEATURES].i : -1, 1);
    take(&vq->k, groups, vq->in_group);
}

static void describe_quip(const qn_op_desc *desc, qn_vq *vq)
{
    const int64_t columns = dim_of(desc, QN_VQ_QIDXS, 2, 1);
    take(&vq->n, dim_of(desc, QN_VQ_QIDXS, 2, 0), 1);
    take(&vq->k, dim_of(desc, QN_VQ_SU, 1, 0), 1);
    take(&vq->k, desc->attr[QN_ATTR_IN_FEATURES].i > 0 ? desc->attr[QN_ATTR_IN_FEATURES].i : -1, 1);
    vq->codebook = (qn_vq_codebook)desc->attr[QN_ATTR_CODEBOOK].i;
    if (vq->codebook == QN_VQ_CODEBOOK_AUTO) {
        vq->codebook = columns > 0 && columns == vq->k / 16                         ? QN_VQ_E8P12RVQ4B
                       : columns > 0 && vq->k >= 64 && columns == vq->k / 64 * 3 ? QN_VQ_E8P12RVQ3B
                                                                                     : QN_VQ_E8P12;
    }
    switch (vq->codebook) {
    case QN_VQ_E8P12RVQ4B: take(&vq->k, columns, 16); break;
    case QN_VQ_E8P12RVQ3B: take(&vq->k, columns < 0 ? -1 : columns / 3, 64); break;
    default: take(&vq->k, columns, 32); break;
    }
    const float given = desc->attr[QN_ATTR_RESID_SCALE].f;
    vq->resid_scale = given > 0.0f ? (double)given : qn_vq_quip_resid_scale(vq->codebook);
}

static void describe_vptq(const qn_op_desc *desc, qn_vq *vq)
{
    const int64_t rows = dim_of(desc, QN_VQ_INDICES, 3, 1), words = dim_of(desc, QN_VQ_INDICES, 3, 2);
    const int residual = tensor_shape(desc, QN_VQ_RES_CENTROIDS)->format != QN_FORMAT_NONE;
    const int outliers = tensor_shape(desc, QN_VQ_OUTLIER_INDICES)->format != QN_FORMAT_NONE;
    vq->vector_len = choose(desc, QN_ATTR_VECTOR_LEN, -1, 8);
    vq->groups = choose(desc, QN_ATTR_GROUP_NUM, dim_of(desc, QN_VQ_INDICES, 3, 0), 1);
    const int64_t stored = quotient(dim_of(desc, QN_VQ_CENTROIDS, 2, 1), vq->vector_len);
    vq->entries = choose(desc, QN_ATTR_NUM_CENTROIDS, stored, 256);
    if (residual) {
        vq->res_entries = choose(desc, QN_ATTR_NUM_RES_CENTROIDS,
                                 quotient(dim_of(desc, QN_VQ_RES_CENTROIDS, 2, 1), vq->vector_len), 256);
    }
    if (outliers) {
        vq->outlier_len = choose(desc, QN_ATTR_OUTLIER_VECTOR_LEN, -1, 4);
        vq->outlier_size = choose(desc, QN_ATTR_OUTLIER_SIZE, dim_of(desc, QN_VQ_OUTLIER_INDICES, 3, 2), 8);
        vq->outlier_entries = choose(desc, QN_ATTR_NUM_OUTLIER_CENTROIDS,
                                     quotient(dim_of(desc, QN_VQ_OUTLIER_CENTROIDS, 2, 1), vq->outlier_len), 256);
    }
    take(&vq->n, desc->attr[QN_ATTR_OUT_FEATURES].i > 0 ? desc->attr[QN_ATTR_OUT_FEATURES].i : -1, 1);
    if (desc->op == QN_OP_VQ_MM && desc->in[QN_VQMM_BIAS].format && desc->in[QN_VQMM_BIAS].ndim == 1) {
        take(&vq->n, desc->in[QN_VQMM_BIAS].dims[0], 1);
    }
    take(&vq->n, rows, vq->vector_len);
    take(&vq->k, desc->attr[QN_ATTR_IN_FEATURES].i > 0 ? desc->attr[QN_ATTR_IN_FEATURES].i : -1, 1);
    take(&vq->k, dim_of(desc, QN_VQ_PERM, 1, 0), 1);
    take(&vq->k, dim_of(desc, QN_VQ_WEIGHT_SCALE, 1, 0), 1);
    const int64_t bits = qn_vq_bits_for(vq->entries) + qn_vq_bits_for(vq->res_entries);
    if (vq->k < 0 && words >= 0 && words < INT64_MAX / 32 && bits > 0) {
        take(&vq->k, words * 32 / bits, vq->groups);
        vq->k += vq->k >= 0 && vq->k <= INT64_MAX - vq->outlier_size ? vq->outlier_size : 0;
    }
    vq->group_size = qn_ceil_div(qn_max_i64(vq->k - vq->outlier_size, 0), qn_max_i64(vq->groups, 1));
}

static void describe_gptvq(const qn_op_desc *desc, qn_vq *vq)
{
    take(&vq->n, dim_of(desc, QN_VQ_CODES, 2, 0), 1);
    take(&vq->k, dim_of(desc, QN_VQ_CODES, 2, 1), 4);
}

void qn_vq_describe(const qn_op_desc *desc, int64_t n, int64_t k, qn_vq *vq)
{
    memset(vq, 0, sizeof *vq);
    vq->format = (qn_vq_format)desc->attr[QN_ATTR_FORMAT].i;
    vq->n = n;
    vq->k = k;
    switch (vq->format) {
    case QN_VQ_AQLM: describe_aqlm(desc, vq); break;
    case QN_VQ_QUIP_E8P: describe_quip(desc, vq); break;
    case QN_VQ_VPTQ: describe_vptq(desc, vq); break;
    case QN_VQ_GPTVQ: describe_gptvq(desc, vq); break;
    }
    vq->n = qn_max_i64(vq->n, 0);
    vq->k = qn_max_i64(vq->k, 0);
}

void qn_vq_bind(const qn_op_desc *desc, const qn_args *args, qn_vq *vq)
{
    const int mm = desc->op == QN_OP_VQ_MM;
    qn_vq_describe(desc, -1, mm ? desc->in[QN_VQMM_X].dims[1] : -1, vq);
    vq->tensor = args->in + (mm ? QN_VQMM_FIRST : 0);
}
