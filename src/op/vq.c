/* Shapes and rules of vq_dequantize and vq_mm. What the tensors of each format
 * look like is here; what they mean is in src/ref/vq.h. */
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/lattice.h"
#include "op/op.h"
#include "ref/vq.h"

#define BIT(slot) (1u << (slot))

static int32_t first_slot(const qn_op_desc *desc)
{
    return desc->op == QN_OP_VQ_MM ? QN_VQMM_FIRST : 0;
}

static int has_tensor(const qn_op_desc *desc, int32_t slot)
{
    return qn_op_has(desc, first_slot(desc) + slot);
}

static qn_status vq_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    int64_t k = -1;
    if (desc->op == QN_OP_VQ_MM) {
        const qn_shape *x = &desc->in[QN_VQMM_X];
        QN_FAIL_IF(x->ndim != 2, error, QN_E_SHAPE, "vq_mm: input x has %d dimensions, expected [M,K]", x->ndim);
        sizes->m = x->dims[0];
        k = x->dims[1];
    }
    qn_vq vq;
    qn_vq_describe(desc, -1, k, &vq);
    sizes->n = vq.n;
    sizes->k = vq.k;
    if (desc->op == QN_OP_VQ_DEQUANTIZE) {
        sizes->m = vq.n; /* its rows are those of w */
    }
    return QN_OK;
}

static qn_shape vector_shape(qn_format format, int64_t count)
{
    return qn_shape_make(format, 1, count, 1, 1, 1);
}

static void aqlm_layout(const qn_op_desc *desc, const qn_vq *vq, qn_shape *in)
{
    const int64_t rows = vq->out_group > 0 ? qn_ceil_div(vq->n, vq->out_group) : 0;
    const int64_t groups = vq->in_group > 0 ? qn_ceil_div(vq->k, vq->in_group) : 0;
    const int64_t books = qn_max_i64(0, qn_min_i64(vq->codebooks, QN_VQ_MAX_BOOKS)), bits = qn_min_i64(vq->bits, 16);
    const qn_shape *scales = &desc->in[first_slot(desc) + QN_VQ_SCALES];
    in[QN_VQ_CODES] = qn_shape_make(bits > 8 ? QN_I16 : QN_I8, 3, rows, groups, books, 1);
    if (vq->packed) {
        const int64_t a_group = qn_max_i64(1, books * bits), limit = INT64_MAX / QN_VQ_MAX_BOOKS / 32;
        in[QN_VQ_CODES].ndim = 2;
        in[QN_VQ_CODES].dims[1] = qn_ceil_div(qn_min_i64(groups, limit) * a_group, 8);
        in[QN_VQ_CODES].dims[2] = 1;
    }
    in[QN_VQ_CODEBOOKS] =
        qn_shape_make(QN_F16, 4, books, bits > 0 ? INT64_C(1) << bits : 0, vq->out_group, vq->in_group);
    in[QN_VQ_SCALES] = scales->ndim == 1 ? vector_shape(QN_F16, rows) : qn_shape_make(QN_F16, 4, rows, 1, 1, 1);
}

static int64_t quip_words(const qn_vq *vq)
{
    const int64_t tiles = vq->k / 64;
    return vq->codebook == QN_VQ_E8P12RVQ4B ? tiles * 4 : (vq->codebook == QN_VQ_E8P12RVQ3B ? tiles * 3 : tiles * 2);
}

static void vptq_layout(const qn_vq *vq, qn_shape *in)
{
    const int64_t v = qn_max_i64(1, qn_min_i64(vq->vector_len, QN_VQ_MAX_VECTOR)), vo = qn_max_i64(1, vq->outlier_len);
    in[QN_VQ_CENTROIDS] = qn_shape_make(QN_F16, 2, vq->groups, vq->entries * v, 1, 1);
    in[QN_VQ_RES_CENTROIDS] = qn_shape_make(QN_F16, 2, vq->groups, vq->res_entries * v, 1, 1);
    in[QN_VQ_INDICES] = qn_shape_make(QN_I32, 3, vq->groups, qn_ceil_div(vq->n, v),
                                      qn_vq_index_words(vq, qn_min_i64(vq->group_size, QN_OP_SIZE_LIMIT)), 1);
    in[QN_VQ_OUTLIER_CENTROIDS] =
        qn_shape_make(QN_F16, 2, 1, vq->outlier_entries * qn_min_i64(vo, QN_VQ_MAX_VECTOR), 1, 1);
    in[QN_VQ_OUTLIER_INDICES] = qn_shape_make(QN_I16, 3, 1, qn_ceil_div(vq->n, vo), vq->outlier_size, 1);
}

static uint32_t required_of(int32_t format, uint32_t *allowed)
{
    switch (format) {
    case QN_VQ_AQLM: return *allowed = BIT(QN_VQ_CODES) | BIT(QN_VQ_CODEBOOKS) | BIT(QN_VQ_SCALES);
    case QN_VQ_GPTVQ: return *allowed = BIT(QN_VQ_CODES) | BIT(QN_VQ_CODEBOOKS) | BIT(QN_VQ_CODEBOOK_SCALES);
    case QN_VQ_QUIP_E8P:
        *allowed = BIT(QN_VQ_QIDXS) | BIT(QN_VQ_SU) | BIT(QN_VQ_SV) | BIT(QN_VQ_WSCALE) | BIT(QN_VQ_SCALE_WH) |
                   BIT(QN_VQ_CODEBOOK_ID);
        return BIT(QN_VQ_QIDXS);
    default: break;
    }
    const uint32_t outliers = BIT(QN_VQ_OUTLIER_CENTROIDS) | BIT(QN_VQ_OUTLIER_INDICES);
    const uint32_t required = BIT(QN_VQ_CENTROIDS) | BIT(QN_VQ_INDICES);
    *allowed = required | outliers | BIT(QN_VQ_RES_CENTROIDS) | BIT(QN_VQ_PERM) | BIT(QN_VQ_WEIGHT_SCALE) |
               BIT(QN_VQ_WEIGHT_BIAS);
    return required;
}

static void vq_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    const int32_t first = first_slot(desc);
    qn_shape *const in = layout->in + first;
    qn_vq vq;
    qn_vq_describe(desc, s->n, s->k, &vq);
    if (vq.format == QN_VQ_AQLM) {
        aqlm_layout(desc, &vq, in);
    } else if (vq.format == QN_VQ_GPTVQ) {
        const int64_t rows = qn_ceil_div(vq.n, QN_VQ_TILE), columns = qn_ceil_div(vq.k, QN_VQ_TILE);
        in[QN_VQ_CODES] = qn_shape_make(QN_U8, 2, vq.n, vq.k / 4, 1, 1);
        in[QN_VQ_CODEBOOKS] = qn_shape_make(QN_I8, 4, rows, columns, 256, 4);
        in[QN_VQ_CODEBOOK_SCALES] = qn_shape_make(QN_F32, 2, rows, columns, 1, 1);
    } else if (vq.format == QN_VQ_QUIP_E8P) {
        in[QN_VQ_QIDXS] = qn_shape_make(QN_I64, 2, vq.n, quip_words(&vq), 1, 1);
        in[QN_VQ_SU] = vector_shape(QN_F16, vq.k);
        in[QN_VQ_SV] = vector_shape(QN_F16, vq.n);
        in[QN_VQ_WSCALE] = vector_shape(QN_F32, 1);
        in[QN_VQ_SCALE_WH] = vector_shape(QN_F32, vq.k);
        in[QN_VQ_CODEBOOK_ID] = vector_shape(QN_I64, 1);
    } else {
        vptq_layout(&vq, in);
    }
    in[QN_VQ_PERM] = vector_shape(QN_I16, vq.k);
    in[QN_VQ_WEIGHT_SCALE] = in[QN_VQ_WEIGHT_BIAS] = vector_shape(QN_F16, vq.k);
    uint32_t allowed = 0;
    layout->required = required_of((int32_t)vq.format, &allowed) << first;
    layout->allowed = allowed << first;
    if (desc->op == QN_OP_VQ_MM) {
        layout->in[QN_VQMM_X] = qn_shape_make(QN_F16, 2, s->m, s->k, 1, 1);
        layout->in[QN_VQMM_BIAS] = vector_shape(QN_F32, s->n);
        layout->required |= BIT(QN_VQMM_X);
        layout->allowed |= BIT(QN_VQMM_X) | BIT(QN_VQMM_BIAS);
        layout->out[QN_MM_OUT_D] = qn_shape_make(qn_op_out_format(desc), 2, s->m, s->n, 1, 1);
    } else {
        layout->out[QN_VQ_OUT_W] = qn_shape_make(QN_F32, 2, s->n, s->k, 1, 1);
    }
}

/* ---- rules ---- */

static qn_status within(const char *op, const char *what, int64_t value, int64_t low, int64_t high, qn_error *error)
{
    QN_FAIL_IF(value < low || value > high, error, QN_E_SHAPE, "%s: %s is %lld, expected %lld to %lld", op, what,
               (long long)value, (long long)low, (long long)high);
    return QN_OK;
}

static qn_status multiple(const char *op, const char *size, int64_t value, int64_t unit, const char *why,
                          qn_error *error)
{
    QN_FAIL_IF(value % unit != 0, error, QN_E_SHAPE, "%s: %s is %lld, expected a multiple of %lld, %s", op, size,
               (long long)value, (long long)unit, why);
    return QN_OK;
}

static qn_status aqlm_rules(const char *op, const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    const qn_shape *in = desc->in + first_slot(desc);
    QN_TRY(within(op, "the number of codebooks", vq->codebooks, 1, QN_VQ_MAX_BOOKS, error));
    QN_TRY(within(op, "bits of a code", vq->bits, 1, 16, error));
    QN_TRY(within(op, "the group size (last dimension of codebooks)", vq->in_group, 1, QN_VQ_MAX_VECTOR, error));
    QN_TRY(within(op, "the group of rows (dimension 2 of codebooks)", vq->out_group, 1, QN_VQ_MAX_VECTOR, error));
    QN_TRY(multiple(op, "K", vq->k, vq->in_group, "the group size", error));
    QN_TRY(multiple(op, "N", vq->n, vq->out_group, "the group of rows", error));
    const qn_format codes = in[QN_VQ_CODES].format;
    QN_FAIL_IF(in[QN_VQ_CODEBOOKS].format == QN_I8, error, QN_E_FORMAT,
               "%s: input codebooks is i8, expected f16|bf16|f32 for format=aqlm", op);
    QN_FAIL_IF(vq->bits > 8 && !vq->packed && (codes == QN_I8 || codes == QN_U8), error, QN_E_FORMAT,
               "%s: input codes is %s, expected i16 or packed u8[N,bytes] for codes of %lld bits", op,
               qn_format_get_info(codes)->name, (long long)vq->bits);
    QN_FAIL_IF(vq->packed && codes != QN_U8, error, QN_E_FORMAT,
               "%s: input codes is %s with two dimensions, expected u8 (packed) or three dimensions", op,
               qn_format_get_info(codes)->name);
    return QN_OK;
}

static qn_status quip_rules(const char *op, const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    QN_TRY(multiple(op, "N", vq->n, 16, "the rows of a tile of Qidxs", error));
    QN_TRY(multiple(op, "K", vq->k, 64, "the columns of a tile of Qidxs", error));
    QN_FAIL_IF(has_tensor(desc, QN_VQ_SU) && vq->k > 0 && !qn_hadamard_base(vq->k), error, QN_E_SHAPE,
               "%s: K is %lld, for which no Hadamard transform is known", op, (long long)vq->k);
    QN_FAIL_IF(has_tensor(desc, QN_VQ_SV) && vq->n > 0 && !qn_hadamard_base(vq->n), error, QN_E_SHAPE,
               "%s: N is %lld, for which no Hadamard transform is known", op, (long long)vq->n);
    QN_FAIL_IF(has_tensor(desc, QN_VQ_SCALE_WH) && !has_tensor(desc, QN_VQ_SU), error, QN_E_FORMAT,
               "%s: input scaleWH is given without SU, expected the signs of the input there", op);
    return QN_OK;
}

static qn_status vptq_rules(const char *op, const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    QN_TRY(within(op, "the vector length", vq->vector_len, 1, QN_VQ_MAX_VECTOR, error));
    QN_TRY(within(op, "the number of groups", vq->groups, 1, 65536, error));
    QN_TRY(within(op, "the number of centroids", vq->entries, 2, 65536, error));
    if (has_tensor(desc, QN_VQ_RES_CENTROIDS)) {
        QN_TRY(within(op, "the number of residual centroids", vq->res_entries, 2, 65536, error));
    }
    QN_FAIL_IF(has_tensor(desc, QN_VQ_OUTLIER_INDICES) != has_tensor(desc, QN_VQ_OUTLIER_CENTROIDS), error, QN_E_FORMAT,
               "%s: one of outlier_indices and outlier_centroids.weight is missing, expected both or neither", op);
    if (has_tensor(desc, QN_VQ_OUTLIER_INDICES)) {
        QN_TRY(within(op, "the outliers' vector length", vq->outlier_len, 1, QN_VQ_MAX_VECTOR, error));
        QN_TRY(within(op, "the number of outlier centroids", vq->outlier_entries, 1, 65536, error));
        QN_TRY(within(op, "the number of outlier columns", vq->outlier_size, 0, vq->k, error));
    }
    if (has_tensor(desc, QN_VQ_PERM)) {
        QN_TRY(within(op, "K of permuted columns", vq->k, 0, 65536, error));
    }
    return QN_OK;
}

static qn_status vq_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    const char *op = qn_op_get_info(desc->op)->name;
    const qn_shape *in = desc->in + first_slot(desc);
    qn_vq vq;
    qn_vq_describe(desc, s->n, s->k, &vq);
    switch (vq.format) {
    case QN_VQ_AQLM: return aqlm_rules(op, desc, &vq, error);
    case QN_VQ_QUIP_E8P: return quip_rules(op, desc, &vq, error);
    case QN_VQ_VPTQ: return vptq_rules(op, desc, &vq, error);
    case QN_VQ_GPTVQ: break;
    }
    QN_FAIL_IF(in[QN_VQ_CODES].format != QN_U8, error, QN_E_FORMAT, "%s: input codes is %s, expected u8", op,
               qn_format_get_info(in[QN_VQ_CODES].format)->name);
    QN_FAIL_IF(in[QN_VQ_CODEBOOKS].format != QN_I8, error, QN_E_FORMAT, "%s: input codebooks is %s, expected i8", op,
               qn_format_get_info(in[QN_VQ_CODEBOOKS].format)->name);
    return multiple(op, "K", vq.k, 4, "the elements of a code", error);
}

/* ---- case strings ---- */

static void canonical(qn_op_desc *desc, qn_attr attr, int64_t value, int64_t usual)
{
    desc->attr[attr].i = value == usual ? 0 : (int32_t)value;
}

static void vq_attributes(qn_op_desc *desc)
{
    qn_op_desc bare = *desc;
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->op == QN_OP_VQ_MM ? desc->in[QN_VQMM_X].dims[1] : -1, &vq);
    qn_vq usual;
    for (int i = 0; i < QN_MAX_IN; i++) {
        bare.in[i].ndim = 0;
    }
    for (int i = QN_ATTR_NUM_CODEBOOKS; i <= QN_ATTR_OUT_FEATURES; i++) {
        bare.attr[i].i = 0;
    }
    qn_vq_describe(&bare, vq.n, vq.k, &usual);
    canonical(desc, QN_ATTR_NUM_CODEBOOKS, vq.codebooks, usual.codebooks);
    canonical(desc, QN_ATTR_NBITS, vq.bits, usual.bits);
    canonical(desc, QN_ATTR_IN_GROUP, vq.in_group, usual.in_group);
    canonical(desc, QN_ATTR_OUT_GROUP, vq.out_group, usual.out_group);
    canonical(desc, QN_ATTR_CODEBOOK, vq.codebook, usual.codebook);
    canonical(desc, QN_ATTR_VECTOR_LEN, vq.vector_len, usual.vector_len);
    canonical(desc, QN_ATTR_NUM_CENTROIDS, vq.entries, usual.entries);
    canonical(desc, QN_ATTR_NUM_RES_CENTROIDS, vq.res_entries, usual.res_entries);
    canonical(desc, QN_ATTR_GROUP_NUM, vq.groups, usual.groups);
    canonical(desc, QN_ATTR_OUTLIER_SIZE, vq.outlier_size, usual.outlier_size);
    canonical(desc, QN_ATTR_OUTLIER_VECTOR_LEN, vq.outlier_len, usual.outlier_len);
    canonical(desc, QN_ATTR_NUM_OUTLIER_CENTROIDS, vq.outlier_entries, usual.outlier_entries);
}

const qn_op_family qn_family_vq = {vq_sizes, vq_layout, vq_rules, "nk", vq_attributes};
const qn_op_family qn_family_vq_mm = {vq_sizes, vq_layout, vq_rules, "mnk", vq_attributes};
