/* Operand values of the vector-quantised operators: every code of a codebook,
 * centroids of the size weights have, permutations that are some. */
#include <string.h>

#include "op/fill.h"
#include "ref/vq.h"

static void fill_bytes(qn_filler *f, const qn_shape *shape, void *data)
{
    size_t bytes = 0;
    (void)qn_shape_bytes(shape, &bytes, NULL);
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)data)[i] = (uint8_t)qn_fill_pick(f, 0, 255);
    }
}

/* Codes below `entries` of one or two bytes; signed ones in two's complement of their bits. */
static void fill_codes(qn_filler *f, const qn_shape *shape, void *data, int64_t entries)
{
    const int64_t count = qn_shape_elements(shape);
    const int narrow = shape->format == QN_I8 || shape->format == QN_U8;
    const int is_signed = shape->format == QN_I8 || shape->format == QN_I16;
    for (int64_t i = 0; i < count; i++) {
        int64_t code = qn_fill_pick(f, 0, entries - 1);
        code -= is_signed && code >= entries / 2 ? entries : 0;
        const uint16_t word = (uint16_t)code;
        if (narrow) {
            ((uint8_t *)data)[i] = (uint8_t)word;
        } else {
            memcpy((char *)data + i * 2, &word, sizeof word);
        }
    }
}

static void put_bits(uint8_t *stream, int64_t first, int64_t count, uint64_t value)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = first + i;
        stream[at / 8] = (uint8_t)(stream[at / 8] | (value >> i & 1) << (at % 8));
    }
}

static void fill_indices(qn_filler *f, const qn_vq *vq, const qn_shape *shape, uint8_t *data)
{
    const int64_t bits = qn_vq_bits_for(vq->entries), more = qn_vq_bits_for(vq->res_entries);
    const int64_t row = shape->dims[2] * 4;
    memset(data, 0, (size_t)(shape->dims[0] * shape->dims[1] * row));
    for (int64_t r = 0; r < shape->dims[0] * shape->dims[1]; r++) {
        for (int64_t i = 0; i < vq->group_size; i++) {
            put_bits(data + r * row, i * (bits + more), bits, (uint64_t)qn_fill_pick(f, 0, vq->entries - 1));
            put_bits(data + r * row, i * (bits + more) + bits, more,
                     (uint64_t)qn_fill_pick(f, 0, vq->res_entries ? vq->res_entries - 1 : 0));
        }
    }
}

static void fill_perm(qn_filler *f, const qn_shape *shape, void *data)
{
    for (int64_t i = 0; i < shape->dims[0]; i++) {
        const int64_t j = qn_fill_pick(f, 0, i);
        uint16_t word = (uint16_t)i, other = word;
        if (j < i) {
            memcpy(&other, (char *)data + j * 2, 2);
        }
        memcpy((char *)data + j * 2, &word, 2);
        memcpy((char *)data + i * 2, &other, 2);
    }
}

/* Scales of either sign. */
static void fill_signs(qn_filler *f, const qn_shape *shape, void *data, float size)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        const float v = f->exact ? 1.0f : size * (1.0f + 0.125f * (float)qn_fill_pick(f, -3, 3));
        qn_fill_put(shape->format, data, i, qn_fill_pick(f, 0, 1) ? v : -v);
    }
}

static void fill_weight(qn_filler *f, const qn_op_desc *desc, const qn_shape *shape, int32_t tensor, void *data)
{
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->op == QN_OP_VQ_MM ? desc->in[QN_VQMM_X].dims[1] : -1, &vq);
    const int64_t id = vq.codebook == QN_VQ_E8P12RVQ4B ? 17 : (vq.codebook == QN_VQ_E8P12RVQ3B ? 18 : 7);
    switch (tensor) {
    case QN_VQ_CODES:
        if (vq.format == QN_VQ_GPTVQ || vq.packed) {
            fill_bytes(f, shape, data);
        } else {
            fill_codes(f, shape, data, INT64_C(1) << vq.bits);
        }
        break;
    case QN_VQ_CODEBOOKS:
        if (shape->format == QN_I8) {
            qn_fill_int8(f, shape, data);
        } else {
            qn_fill_values(f, shape, data, 0.04);
        }
        break;
    case QN_VQ_SCALES: qn_fill_scales(f, shape, data, 1.0); break;
    case QN_VQ_CODEBOOK_SCALES: qn_fill_scales(f, shape, data, 0.0008); break;
    case QN_VQ_QIDXS: fill_bytes(f, shape, data); break;
    case QN_VQ_SU: fill_signs(f, shape, data, 1.0f); break;
    case QN_VQ_SV: fill_signs(f, shape, data, 0.05f); break;
    case QN_VQ_WSCALE:
    case QN_VQ_SCALE_WH:
    case QN_VQ_WEIGHT_SCALE: qn_fill_scales(f, shape, data, 1.0); break;
    case QN_VQ_CODEBOOK_ID: memcpy(data, &id, shape->format == QN_I64 ? 8 : 4); break;
    case QN_VQ_RES_CENTROIDS:
    case QN_VQ_WEIGHT_BIAS: qn_fill_values(f, shape, data, 0.01); break;
    case QN_VQ_INDICES: fill_indices(f, &vq, shape, data); break;
    case QN_VQ_OUTLIER_INDICES: {
        qn_shape plain = *shape;
        plain.format = QN_U16;
        fill_codes(f, &plain, data, vq.outlier_entries);
        break;
    }
    case QN_VQ_PERM: fill_perm(f, shape, data); break;
    default: qn_fill_values(f, shape, data, 0.05); break; /* centroids */
    }
}

static void fill_lengths(qn_filler *f, const qn_shape *shape, void *data, int64_t room)
{
    qn_fill_int32(f, shape, data, 0, room);
    if (shape->dims[0] > 0) { /* one sequence fills its room */
        const int32_t all = (int32_t)room;
        memcpy((char *)data + (shape->dims[0] - 1) * 4, &all, sizeof all);
    }
}

void qn_fill_vq(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data)
{
    const qn_shape *shape = &desc->in[slot];
    if (desc->op == QN_OP_VQ_ATTENTION && (slot == QN_VQA_K_CODES || slot == QN_VQA_V_CODES)) {
        fill_codes(f, shape, data, desc->in[QN_VQA_K_CODEBOOK].dims[2]);
    } else if (desc->op == QN_OP_VQ_ATTENTION && slot == QN_VQA_SEQ_LENS) {
        fill_lengths(f, shape, data, qn_vq_room(desc));
    } else if (desc->op == QN_OP_VQ_ATTENTION && slot == QN_VQA_PAGES) {
        qn_fill_int32(f, shape, data, 0, desc->in[QN_VQA_K_CODES].dims[0] - 1);
    } else if (desc->op == QN_OP_VQ_ATTENTION && slot == QN_VQA_ROPE_FACTORS) {
        qn_fill_scales(f, shape, data, 4.0);
    } else if (desc->op == QN_OP_VQ_ATTENTION || desc->op == QN_OP_VQ_ENCODE) {
        qn_fill_values(f, shape, data, 1.0);
    } else if (desc->op == QN_OP_VQ_MM && slot == QN_VQMM_X) {
        qn_fill_values(f, shape, data, 1.0);
    } else if (desc->op == QN_OP_VQ_MM && slot == QN_VQMM_BIAS) {
        qn_fill_values(f, shape, data, 0.5);
    } else {
        fill_weight(f, desc, shape, slot - (desc->op == QN_OP_VQ_MM ? QN_VQMM_FIRST : 0), data);
    }
}
