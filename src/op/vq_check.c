/* Values of vector-quantised weights that shapes cannot vouch for: codes beyond
 * their codebook, centroids that are not finite, a perm that is no permutation.
 * Called where weights are read as they are stored: by qn_pack, and by qn_run
 * without a blob. A format whose codes fill their bits is not walked. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "op/op.h"
#include "ref/vq.h"

static int32_t first_slot(const qn_op_desc *desc)
{
    return desc->op == QN_OP_VQ_MM ? QN_VQMM_FIRST : 0;
}

static const char *name_of(const qn_op_desc *desc, int32_t slot)
{
    return qn_op_get_info(desc->op)->in[slot].name;
}

/* Every element of a float tensor, row by row, is finite. */
static qn_status all_finite(const qn_op_desc *desc, const qn_args *args, int32_t slot, qn_error *error)
{
    const qn_view *view = &args->in[slot];
    if (!qn_op_has(desc, slot) || view->shape.format == QN_I8) {
        return QN_OK;
    }
    const int64_t count = qn_shape_elements(&view->shape);
    const int64_t row = view->shape.ndim ? view->shape.dims[view->shape.ndim - 1] : 1;
    float values[64];
    for (int64_t i = 0; i < count; i += row) {
        for (int64_t j = 0; j < row; j += 64) {
            const int64_t some = qn_min_i64(64, row - j);
            qn_vq_values(view, i + j, some, values);
            for (int64_t s = 0; s < some; s++) {
                QN_FAIL_IF(!isfinite(values[s]), error, QN_E_ARGUMENT,
                           "%s: element %lld of %s is %g, expected a finite number", qn_op_get_info(desc->op)->name,
                           (long long)(i + j + s), name_of(desc, slot), (double)values[s]);
            }
        }
    }
    return QN_OK;
}

static qn_status aqlm_codes(const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    const qn_format stored = desc->in[first_slot(desc) + QN_VQ_CODES].format;
    if (vq->packed || vq->bits == (stored == QN_I8 || stored == QN_U8 ? 8 : 16)) {
        return QN_OK;
    }
    for (int64_t r = 0; r < vq->n / vq->out_group; r++) {
        for (int64_t g = 0; g < vq->k / vq->in_group; g++) {
            for (int64_t c = 0; c < vq->codebooks; c++) {
                int beyond = 0;
                qn_vq_aqlm_code(vq, r, g, c, &beyond);
                QN_FAIL_IF(beyond, error, QN_E_ARGUMENT,
                           "%s: codes[%lld,%lld,%lld] is none of the codebook's %lld bits",
                           qn_op_get_info(desc->op)->name, (long long)r, (long long)g, (long long)c,
                           (long long)vq->bits);
            }
        }
    }
    return QN_OK;
}

static qn_status vptq_codes(const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    const char *op = qn_op_get_info(desc->op)->name;
    const int whole = (INT64_C(1) << qn_vq_bits_for(vq->entries)) == vq->entries &&
                      (!vq->res_entries || (INT64_C(1) << qn_vq_bits_for(vq->res_entries)) == vq->res_entries);
    for (int64_t r = 0; !whole && r < qn_ceil_div(vq->n, vq->vector_len); r++) {
        for (int64_t p = vq->outlier_size; p < vq->k; p++) {
            const int64_t g = (p - vq->outlier_size) / vq->group_size, i = (p - vq->outlier_size) % vq->group_size;
            uint32_t main, residual;
            qn_vq_vptq_index(vq, g, r, i, &main, &residual);
            QN_FAIL_IF(main >= vq->entries || (vq->res_entries && residual >= vq->res_entries), error, QN_E_ARGUMENT,
                       "%s: indices[%lld,%lld], column %lld, is %u and %u, expected codes below %lld and %lld", op,
                       (long long)g, (long long)r, (long long)i, main, residual, (long long)vq->entries,
                       (long long)vq->res_entries);
        }
    }
    const qn_view *outliers = &vq->tensor[QN_VQ_OUTLIER_INDICES];
    for (int64_t r = 0; vq->outlier_size && vq->outlier_entries < 65536 && r < outliers->shape.dims[1]; r++) {
        const uint8_t *at = (const uint8_t *)outliers->data + r * outliers->strides[1];
        for (int64_t i = 0; i < vq->outlier_size; i++) {
            const int64_t code = at[2 * i] | at[2 * i + 1] << 8;
            QN_FAIL_IF(code >= vq->outlier_entries, error, QN_E_ARGUMENT,
                       "%s: outlier_indices[0,%lld,%lld] is %lld, expected a code below %lld", op, (long long)r,
                       (long long)i, (long long)code, (long long)vq->outlier_entries);
        }
    }
    return QN_OK;
}

/* Every column once. */
static qn_status permutation(const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    uint8_t seen[65536 / 8];
    memset(seen, 0, sizeof seen);
    for (int64_t p = 0; vq->tensor[QN_VQ_PERM].shape.format && p < vq->k; p++) {
        const int64_t column = qn_vq_vptq_column(vq, p);
        QN_FAIL_IF(column >= vq->k || (seen[column / 8] >> (column % 8) & 1), error, QN_E_ARGUMENT,
                   "%s: perm[%lld] is %lld, expected every column from 0 to %lld once", qn_op_get_info(desc->op)->name,
                   (long long)p, (long long)column, (long long)vq->k - 1);
        seen[column / 8] |= (uint8_t)(1 << column % 8);
    }
    return QN_OK;
}

static qn_status codebook_id(const qn_op_desc *desc, const qn_vq *vq, qn_error *error)
{
    const qn_view *id = &vq->tensor[QN_VQ_CODEBOOK_ID];
    if (id->shape.format == QN_FORMAT_NONE) {
        return QN_OK;
    }
    const int want = vq->codebook == QN_VQ_E8P12RVQ4B ? 17 : (vq->codebook == QN_VQ_E8P12RVQ3B ? 18 : 7);
    int64_t found = 0;
    memcpy(&found, id->data, id->shape.format == QN_I64 ? 8 : 4);
    QN_FAIL_IF(found != want, error, QN_E_ARGUMENT,
               "%s: codebook_id is %lld, expected %d, as the attribute codebook or the shape of Qidxs says",
               qn_op_get_info(desc->op)->name, (long long)found, want);
    return QN_OK;
}

static int has_no_elements(const qn_op_desc *desc)
{
    const qn_op_info *info = qn_op_get_info(desc->op);
    for (int32_t i = 0; i < info->in_count; i++) {
        if (info->in[i].weight && qn_op_has(desc, i) && qn_shape_elements(&desc->in[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

qn_status qn_op_weights_check(const qn_op_desc *desc, const qn_args *args, qn_error *error)
{
    static const int32_t tensors[] = {QN_VQ_CODEBOOKS, QN_VQ_CODEBOOK_SCALES, QN_VQ_CENTROIDS, QN_VQ_RES_CENTROIDS,
                                      QN_VQ_OUTLIER_CENTROIDS};
    switch (desc->op) {
    case QN_OP_ROPE: return qn_rope_factors_check(desc, args, QN_ACT_FACTORS, error);
    case QN_OP_VQ_ENCODE: return all_finite(desc, args, QN_VQE_CODEBOOK, error);
    case QN_OP_VQ_ATTENTION:
        QN_TRY(qn_rope_factors_check(desc, args, QN_VQA_ROPE_FACTORS, error));
        QN_TRY(all_finite(desc, args, QN_VQA_K_CODEBOOK, error));
        return all_finite(desc, args, QN_VQA_V_CODEBOOK, error);
    case QN_OP_VQ_DEQUANTIZE:
    case QN_OP_VQ_MM: break;
    default: return QN_OK;
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        QN_TRY(all_finite(desc, args, first_slot(desc) + tensors[i], error));
    }
    if (has_no_elements(desc)) {
        return QN_OK;
    }
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    switch (vq.format) {
    case QN_VQ_AQLM: return aqlm_codes(desc, &vq, error);
    case QN_VQ_QUIP_E8P: return codebook_id(desc, &vq, error);
    case QN_VQ_VPTQ: QN_TRY(permutation(desc, &vq, error)); return vptq_codes(desc, &vq, error);
    case QN_VQ_GPTVQ: break;
    }
    return QN_OK;
}

qn_status qn_op_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error)
{
    if (desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM) {
        return qn_grouped_args_check(desc, args, error);
    }
    if (desc->op == QN_OP_VQ_ATTENTION) {
        QN_TRY(qn_vq_kv_args_check(desc, args, error));
    }
    return args->packed ? QN_OK : qn_op_weights_check(desc, args, error);
}
