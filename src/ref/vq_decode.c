/* Vector-quantised weights as numbers, in double: the definition that the
 * reference rounds once. Sums are taken in the order of docs/formats/vq.md. */
#include <math.h>

#include "base/checked.h"
#include "format/format.h"
#include "format/lattice.h"
#include "ref/slots.h"
#include "ref/vq.h"

void qn_vq_values(const qn_view *view, int64_t first, int64_t count, float *value)
{
    const qn_format_row *row = qn_format_get_row(view->shape.format);
    int64_t at = 0;
    for (int32_t d = view->shape.ndim - 1; d >= 0; d--) {
        const int64_t size = view->shape.dims[d];
        at += first % size * (d == view->shape.ndim - 1 ? row->info.block_bytes : view->strides[d]);
        first /= size;
    }
    row->decode((const char *)view->data + at, count, value);
}

double qn_vq_value(const qn_view *view, int64_t i, double absent)
{
    float value;
    if (view->shape.format == QN_FORMAT_NONE) {
        return absent;
    }
    qn_vq_values(view, i, 1, &value);
    return (double)value;
}

double qn_vq_quip_resid_scale(qn_vq_codebook codebook)
{
    return codebook == QN_VQ_E8P12RVQ4B ? 3.45 : (codebook == QN_VQ_E8P12RVQ3B ? 2.04 : 1.0);
}

/* A part of a row is what one code stands for: value[count] and sizes[count] from column *column on. Each returns
 * count. */
static int64_t aqlm_part(const qn_vq *vq, int64_t row, int64_t g, int64_t *column, double *value, double *sizes)
{
    const qn_view *books = &vq->tensor[QN_VQ_CODEBOOKS];
    const int64_t r = row / vq->out_group, within = row % vq->out_group, v = vq->in_group;
    const double scale = qn_vq_value(&vq->tensor[QN_VQ_SCALES], r, 1.0);
    *column = g * v;
    for (int64_t j = 0; j < v; j++) {
        value[j] = sizes[j] = 0.0;
    }
    for (int64_t c = 0; c < vq->codebooks; c++) {
        const int64_t entry = (c << vq->bits) + qn_vq_aqlm_code(vq, r, g, c, NULL);
        float term[QN_VQ_MAX_VECTOR];
        qn_vq_values(books, (entry * vq->out_group + within) * v, v, term);
        for (int64_t j = 0; j < v; j++) {
            value[j] += (double)term[j];
            sizes[j] += fabs((double)term[j] * scale);
        }
    }
    for (int64_t j = 0; j < v; j++) {
        value[j] *= scale;
    }
    return v;
}

static int64_t quip_part(const qn_vq *vq, int64_t row, int64_t g, int64_t *column, double *value, double *sizes)
{
    float main[8], residual[8] = {0};
    qn_e8p_decode(qn_vq_quip_code(vq, row, g), main);
    if (vq->codebook == QN_VQ_E8P12RVQ4B) {
        qn_e8p_decode(qn_vq_quip_residual(vq, row, g), residual);
    } else if (vq->codebook == QN_VQ_E8P12RVQ3B) {
        qn_e8_decode(qn_vq_quip_residual(vq, row, g), residual);
    }
    *column = g * 8;
    for (int j = 0; j < 8; j++) {
        const double rest = (double)residual[j] / vq->resid_scale;
        value[j] = (double)main[j] + rest;
        sizes[j] = fabs((double)main[j]) + fabs(rest);
    }
    return 8;
}

static int64_t vptq_part(const qn_vq *vq, int64_t row, int64_t p, int64_t *column, double *value, double *sizes)
{
    const qn_view *t = vq->tensor;
    double first, second = 0.0;
    *column = qn_vq_vptq_column(vq, p);
    if (p < vq->outlier_size) {
        const qn_view *indices = &t[QN_VQ_OUTLIER_INDICES];
        const uint8_t *at = (const uint8_t *)indices->data + row / vq->outlier_len * indices->strides[1] + p * 2;
        const int64_t entry = at[0] | at[1] << 8;
        first = qn_vq_value(&t[QN_VQ_OUTLIER_CENTROIDS], entry * vq->outlier_len + row % vq->outlier_len, 0.0);
    } else {
        const int64_t g = (p - vq->outlier_size) / vq->group_size, i = (p - vq->outlier_size) % vq->group_size;
        const int64_t j = row % vq->vector_len, v = vq->vector_len;
        uint32_t main, residual;
        qn_vq_vptq_index(vq, g, row / v, i, &main, &residual);
        first = qn_vq_value(&t[QN_VQ_CENTROIDS], (g * vq->entries + main) * v + j, 0.0);
        if (vq->res_entries) {
            second = qn_vq_value(&t[QN_VQ_RES_CENTROIDS], (g * vq->res_entries + residual) * v + j, 0.0);
        }
    }
    const double scale = qn_vq_value(&t[QN_VQ_WEIGHT_SCALE], *column, 1.0);
    const double shift = qn_vq_value(&t[QN_VQ_WEIGHT_BIAS], *column, 0.0);
    value[0] = scale * (first + second) + shift;
    sizes[0] = fabs(scale) * (fabs(first) + fabs(second)) + fabs(shift);
    return 1;
}

static int64_t gptvq_part(const qn_vq *vq, int64_t row, int64_t g, int64_t *column, double *value, double *sizes)
{
    const qn_view *codes = &vq->tensor[QN_VQ_CODES], *books = &vq->tensor[QN_VQ_CODEBOOKS];
    const int64_t code = ((const uint8_t *)codes->data + row * codes->strides[0])[g];
    const int64_t tile = row / QN_VQ_TILE * qn_ceil_div(vq->k, QN_VQ_TILE) + g * 4 / QN_VQ_TILE;
    const double scale = qn_vq_value(&vq->tensor[QN_VQ_CODEBOOK_SCALES], tile, 1.0);
    float entry[4];
    qn_vq_values(books, (tile * 256 + code) * 4, 4, entry);
    *column = g * 4;
    for (int j = 0; j < 4; j++) {
        value[j] = scale * (double)entry[j];
        sizes[j] = fabs(value[j]);
    }
    return 4;
}

static int64_t decode_part(const qn_vq *vq, int64_t row, int64_t i, int64_t *column, double *value, double *sizes)
{
    switch (vq->format) {
    case QN_VQ_AQLM: return aqlm_part(vq, row, i, column, value, sizes);
    case QN_VQ_QUIP_E8P: return quip_part(vq, row, i, column, value, sizes);
    case QN_VQ_VPTQ: return vptq_part(vq, row, i, column, value, sizes);
    case QN_VQ_GPTVQ: return gptvq_part(vq, row, i, column, value, sizes);
    }
    return 1;
}

void qn_vq_decode_row(const qn_vq *vq, int64_t row, double *out)
{
    double value[QN_VQ_MAX_VECTOR], sizes[QN_VQ_MAX_VECTOR];
    for (int64_t i = 0, done = 0, column; done < vq->k; i++) {
        const int64_t count = decode_part(vq, row, i, &column, value, sizes);
        for (int64_t j = 0; j < count; j++) {
            out[column + j] = value[j];
        }
        done += count;
    }
}

double qn_vq_row_size(const qn_vq *vq, int64_t row)
{
    double value[QN_VQ_MAX_VECTOR], sizes[QN_VQ_MAX_VECTOR], squares = 0.0;
    for (int64_t i = 0, done = 0, column; done < vq->k; i++) {
        const int64_t count = decode_part(vq, row, i, &column, value, sizes);
        for (int64_t j = 0; j < count; j++) {
            squares += sizes[j] * sizes[j];
        }
        done += count;
    }
    return sqrt(squares);
}

int qn_vq_transformed(const qn_vq *vq)
{
    return vq->format == QN_VQ_QUIP_E8P && (vq->tensor[QN_VQ_SU].shape.format != QN_FORMAT_NONE ||
                                            vq->tensor[QN_VQ_SV].shape.format != QN_FORMAT_NONE);
}
