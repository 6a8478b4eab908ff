/* Reading codes of vector-quantised weights out of the tensors that checkpoints
 * have. Every layout of docs/formats/vq.md is here once. */
#include "ref/vq.h"

#include <string.h>

#include "base/checked.h"
#include "ref/slots.h"

int64_t qn_vq_bits_for(int64_t count)
{
    int64_t bits = 0;
    while (bits < 62 && (INT64_C(1) << bits) < count) {
        bits++;
    }
    return bits;
}

int64_t qn_vq_index_words(const qn_vq *vq, int64_t columns)
{
    return qn_ceil_div(columns * (qn_vq_bits_for(vq->entries) + qn_vq_bits_for(vq->res_entries)), 32);
}

/* An integer of 1, 2, 4 or 8 bytes. */
static uint64_t word_at(const char *at, int64_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, at, (size_t)bytes);
    return word;
}

/* `count` bits from bit `first` of a little-endian stream of `bytes` bytes. */
static uint32_t bits_at(const uint8_t *stream, int64_t bytes, int64_t first, int64_t count)
{
    uint64_t word = 0;
    const int64_t at = first / 8, last = qn_min_i64(bytes, at + 8);
    for (int64_t i = at; i < last; i++) {
        word |= (uint64_t)stream[i] << (8 * (i - at));
    }
    return (uint32_t)(word >> (first % 8) & ((UINT64_C(1) << count) - 1));
}

uint32_t qn_vq_aqlm_code(const qn_vq *vq, int64_t r, int64_t g, int64_t c, int *beyond)
{
    const qn_view *codes = &vq->tensor[QN_VQ_CODES];
    const char *const row = (const char *)codes->data + r * codes->strides[0];
    if (vq->packed) {
        return bits_at((const uint8_t *)row, codes->shape.dims[1], (g * vq->codebooks + c) * vq->bits, vq->bits);
    }
    const int64_t size = codes->shape.format == QN_I8 || codes->shape.format == QN_U8 ? 1 : 2;
    const uint32_t stored = (uint32_t)word_at(row + g * codes->strides[1] + c * size, size);
    const uint32_t mask = (uint32_t)((UINT64_C(1) << vq->bits) - 1);
    const uint32_t high = (uint32_t)((UINT64_C(1) << (8 * size)) - 1) & ~(mask >> 1);
    if (beyond && (stored & ~mask) && (stored & high) != high) {
        *beyond = 1;
    }
    return stored & mask;
}

void qn_vq_aqlm_group(const qn_vq *vq, int64_t r, int64_t g, uint32_t *codes)
{
    const qn_view *view = &vq->tensor[QN_VQ_CODES];
    const int bytes = view->shape.format == QN_I8 || view->shape.format == QN_U8;
    const uint8_t *const at =
        (const uint8_t *)view->data + r * view->strides[0] + (vq->packed ? 0 : g * view->strides[1]);
    const uint32_t mask = (uint32_t)((UINT64_C(1) << vq->bits) - 1);
    for (int64_t c = 0; c < vq->codebooks; c++) {
        codes[c] = vq->packed ? qn_vq_aqlm_code(vq, r, g, c, NULL)
                   : bytes    ? at[c] & mask
                              : (uint32_t)(at[2 * c] | at[2 * c + 1] << 8) & mask;
    }
}

/* Where word w of the packed codes of a part of Qidxs is. Tiles of 16 rows by 8 groups follow one another, each
 * eight pairs of rows by four pairs of groups. */
static uint64_t quip_word(const qn_vq *vq, int64_t row, int64_t g, int64_t first_column)
{
    const qn_view *q = &vq->tensor[QN_VQ_QIDXS];
    const int64_t columns = vq->k / 32; /* words of a row of this part */
    const int64_t tile = row / 16 * (vq->k / 64) + g / 8;
    const int64_t word = (tile * 8 + row / 2 % 8) * 4 + g / 2 % 4;
    return word_at((const char *)q->data + word / columns * q->strides[0] + (first_column + word % columns) * 8, 8);
}

static uint32_t quip_code(const qn_vq *vq, int64_t row, int64_t g, int64_t first_column)
{
    const uint64_t word = quip_word(vq, row, g, first_column);
    const int64_t i = row % 2 + 2 * (g % 2);
    uint32_t signs = 0;
    for (int j = 0; j < 8; j++) {
        signs |= (uint32_t)(word >> (32 + 4 * j + i) & 1) << j;
    }
    return (uint32_t)(word >> (8 * i) & 255) << 8 | signs;
}

uint32_t qn_vq_quip_code(const qn_vq *vq, int64_t row, int64_t g)
{
    return quip_code(vq, row, g, 0);
}

uint32_t qn_vq_quip_residual(const qn_vq *vq, int64_t row, int64_t g)
{
    if (vq->codebook == QN_VQ_E8P12RVQ4B) {
        return quip_code(vq, row, g, vq->k / 32);
    }
    if (vq->codebook == QN_VQ_E8P12RVQ3B) {
        const qn_view *q = &vq->tensor[QN_VQ_QIDXS];
        return ((const uint8_t *)q->data + row * q->strides[0] + vq->k / 32 * 8)[g];
    }
    return 0;
}

void qn_vq_vptq_index(const qn_vq *vq, int64_t g, int64_t r, int64_t i, uint32_t *main, uint32_t *residual)
{
    const qn_view *indices = &vq->tensor[QN_VQ_INDICES];
    const int64_t bits = qn_vq_bits_for(vq->entries), more = qn_vq_bits_for(vq->res_entries);
    const uint8_t *const row = (const uint8_t *)indices->data + g * indices->strides[0] + r * indices->strides[1];
    const uint32_t word = bits_at(row, indices->shape.dims[2] * 4, i * (bits + more), bits + more);
    *main = word & (uint32_t)((UINT64_C(1) << bits) - 1);
    *residual = (uint32_t)((uint64_t)word >> bits);
}

int64_t qn_vq_vptq_column(const qn_vq *vq, int64_t p)
{
    const qn_view *perm = &vq->tensor[QN_VQ_PERM];
    if (perm->shape.format == QN_FORMAT_NONE) {
        return p;
    }
    return (int64_t)word_at((const char *)perm->data + p * 2, 2);
}
