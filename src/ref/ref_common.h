/* What the reference functions share: rows of views, decoding, and the one
 * rounding of a result. Plain and slow on purpose. */
#ifndef QN_REF_REF_COMMON_H
#define QN_REF_REF_COMMON_H

#include <string.h>

#include "format/format.h"
#include "ref/ref.h"
#include "ref/slots.h"

/* Row i of a matrix, or of [i][j] of three dimensions. */
static inline const char *ref_row(const qn_view *view, int64_t i)
{
    return (const char *)view->data + i * view->strides[0];
}

static inline const char *ref_row3(const qn_view *view, int64_t i, int64_t j)
{
    return (const char *)view->data + i * view->strides[0] + j * view->strides[1];
}

static inline char *ref_out_row(const qn_mut_view *view, int64_t i)
{
    return (char *)view->data + i * view->strides[0];
}

static inline char *ref_out_row3(const qn_mut_view *view, int64_t i, int64_t j)
{
    return (char *)view->data + i * view->strides[0] + j * view->strides[1];
}

static inline void ref_decode(qn_format format, const void *source, int64_t count, float *destination)
{
    if (count > 0) {
        qn_format_get_row(format)->decode(source, count, destination);
    }
}

static inline float ref_f32(const void *at, int64_t i)
{
    float value;
    memcpy(&value, (const char *)at + i * 4, sizeof value);
    return value;
}

static inline int32_t ref_i32(const void *at, int64_t i)
{
    int32_t value;
    memcpy(&value, (const char *)at + i * 4, sizeof value);
    return value;
}

static inline void ref_put_f32(void *at, int64_t i, float value)
{
    memcpy((char *)at + i * 4, &value, sizeof value);
}

static inline void ref_put_i32(void *at, int64_t i, int32_t value)
{
    memcpy((char *)at + i * 4, &value, sizeof value);
}

static inline int ref_has(const qn_view *view)
{
    return view->shape.format != QN_FORMAT_NONE;
}

/* Element i of a float vector of any float format; 0 when the vector is absent. */
float ref_vector_at(const qn_view *view, int64_t i);

/* Put value at element i of a row of F32, F16 or BF16, rounded once, to nearest even. */
void ref_store(qn_format format, void *row, int64_t i, double value);

/* Largest magnitude the scale of an 8-bit type is made for, and values are held to: 448, 224 (fnuz), 57344. */
float ref_fp8_max(int32_t type);

/* Code of value: held to +-ref_fp8_max, nearest even, NaN to the type's NaN. */
uint8_t ref_fp8_code(int32_t type, float value);

/* Nearest even, saturated to 32 bits; NaN is 0. */
int32_t ref_round_i32(float value);

/* Scale and zero point of values in [low, high] (widened to include 0) for int8. */
void ref_int8_asymmetric(float low, float high, float *scale, int32_t *azp);

/* sat8(round(x / s) + azp) as the asymmetric rule does it: times 1 / s. */
int8_t ref_int8_code_azp(float value, float inverse, int32_t azp);

void qn_ref_quantize_fp8(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_quantize_int8(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_quantize_nvfp4(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_quantize_mxfp4(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_dequantize(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_block_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_grouped_block_scaled_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_nvfp4_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_mxfp4_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_dense_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_silu_mul_quant(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_silu_mul(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_rmsnorm(const qn_op_desc *desc, const qn_args *args, void *scratch);

/* The angle by which pair i of a head of `size` turns from one position to the next: theta^(-2i/size), divided by
 * factors[i] where there are factors. */
double ref_rope_frequency(double theta, const qn_view *factors, int64_t i, int64_t size);

void qn_ref_rope(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_attention(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_vq_dequantize(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_vq_mm(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_vq_encode(const qn_op_desc *desc, const qn_args *args, void *scratch);
void qn_ref_vq_attention(const qn_op_desc *desc, const qn_args *args, void *scratch);

#endif
