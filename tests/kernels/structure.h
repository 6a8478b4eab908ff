/* Operands without chance in them: equal elements, repeated codes, numbers of very different sizes beside each other.
 * Roundings that agree add up over K, and what fits the largest number may be nothing to the others. */
#ifndef QN_TESTS_KERNELS_STRUCTURE_H
#define QN_TESTS_KERNELS_STRUCTURE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <quern/experimental.h>
#include <quern/quern.h>

#include "ref/slots.h"

#define STRUCTURES 8

static inline float structured(int64_t structure, int64_t i, int64_t count)
{
    switch (structure % STRUCTURES) {
    case 0: return 1.1f;
    case 1: return i % 2 ? -1.0f / 3.0f : 1.0f / 3.0f;
    case 2: return i == count / 7 ? 0.7f : 0.0f;
    case 3: return i == count / 3 ? 1000.0f : 0.37f;
    case 4: return ldexpf(1.1f, (int)(i % 21) - 10);
    case 5: return 1.1f * (float)(i % 3 - 1);
    case 6: return i < count / 2 ? 1e-4f : 1.1f;
    default: return 0.01f * (float)(i + 1);
    }
}

/* Rows of floats, each with a structure of its own. */
static inline void structure_rows(const qn_shape *shape, char *data)
{
    const int64_t columns = shape->ndim > 0 ? shape->dims[shape->ndim - 1] : 0,
                  size = qn_format_get_info(shape->format)->block_bytes;
    for (int64_t i = 0; i < (columns ? qn_shape_elements(shape) : 0); i++) {
        const float value = structured(i / columns, i % columns, columns);
        qn_encode(shape->format, &value, 1, data + i * size, NULL);
    }
}

static inline int is_plain_float(qn_format format)
{
    return format == QN_F32 || format == QN_F16 || format == QN_BF16 || format == QN_F8_E4M3;
}

/* Rows of codes: one code, two in turn, or as they are. */
static inline void structure_codes(const qn_shape *shape, uint8_t *data)
{
    const int64_t rows = shape->dims[0], bytes = rows ? qn_shape_elements(shape) / rows : 0;
    for (int64_t i = 0; i < rows * bytes; i++) {
        const int64_t row = i / bytes, turn = row % 3 == 1 ? i / 2 % 2 : 0;
        data[i] = row % 3 == 2 ? data[i] : (uint8_t)(row * 37 + turn);
    }
}

/* Vectors [books][256][elements] where some are tiny, one is huge, and some of a book are nearly minus those of the one
 * before. */
static inline void structure_books(const qn_shape *shape, char *data)
{
    const int64_t elements = shape->dims[shape->ndim - 1], size = qn_format_get_info(shape->format)->block_bytes;
    const int64_t book = 256 * elements;
    for (int64_t i = 0; i < qn_shape_elements(shape); i++) {
        const int64_t entry = i / elements % 256;
        float value, other;
        qn_decode(shape->format, data + i * size, 1, &value, NULL);
        if (entry == 255) {
            value *= 1024.0f;
        } else if (entry % 4 == 1) {
            value *= 0x1p-10f;
        } else if (entry % 4 == 2 && i >= book) {
            qn_decode(shape->format, data + (i - book) * size, 1, &other, NULL);
            value = other * -1.01f;
        }
        qn_encode(shape->format, &value, 1, data + i * size, NULL);
    }
}

/* What can be of a case, in its operands; sizes: codebooks and scales of very different ones. */
static inline void structure_operands(const qn_op_desc *desc, void *const in[QN_MAX_IN], int sizes)
{
    const int32_t weights = QN_VQMM_FIRST + QN_VQ_CODES, books = QN_VQMM_FIRST + QN_VQ_CODEBOOKS;
    const int32_t scales = QN_VQMM_FIRST + QN_VQ_CODEBOOK_SCALES;
    const int vq = desc->op == QN_OP_VQ_MM;
    for (int32_t i = 0; i < (vq ? 1 : (desc->op == QN_OP_ATTENTION ? 3 : 2)); i++) {
        if (is_plain_float(desc->in[i].format)) {
            structure_rows(&desc->in[i], in[i]);
        }
    }
    if (vq && (desc->in[weights].format == QN_U8 || desc->in[weights].format == QN_I8)) {
        structure_codes(&desc->in[weights], in[weights]);
    }
    if (vq && sizes && is_plain_float(desc->in[books].format)) {
        structure_books(&desc->in[books], in[books]);
    }
    for (int64_t i = 0; vq && sizes && desc->in[scales].format == QN_F32 && i < qn_shape_elements(&desc->in[scales]);
         i++) {
        ((float *)in[scales])[i] = i % 3 ? 1e-6f : 1.0f;
    }
}

#endif
