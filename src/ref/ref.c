/* Which reference serves which operator, the scratch they need, and the
 * roundings they share. */
#include "ref/ref.h"

#include <math.h>

#include "base/checked.h"
#include "ref/ref_common.h"
#include "ref/vq.h"

qn_ref_fn qn_ref_get(qn_op op)
{
    switch (op) {
    case QN_OP_QUANTIZE_FP8: return qn_ref_quantize_fp8;
    case QN_OP_QUANTIZE_INT8: return qn_ref_quantize_int8;
    case QN_OP_QUANTIZE_NVFP4: return qn_ref_quantize_nvfp4;
    case QN_OP_QUANTIZE_MXFP4: return qn_ref_quantize_mxfp4;
    case QN_OP_DEQUANTIZE: return qn_ref_dequantize;
    case QN_OP_SCALED_MM: return qn_ref_scaled_mm;
    case QN_OP_BLOCK_SCALED_MM: return qn_ref_block_scaled_mm;
    case QN_OP_GROUPED_BLOCK_SCALED_MM: return qn_ref_grouped_block_scaled_mm;
    case QN_OP_NVFP4_MM: return qn_ref_nvfp4_mm;
    case QN_OP_MXFP4_MM: return qn_ref_mxfp4_mm;
    case QN_OP_DENSE_MM: return qn_ref_dense_mm;
    case QN_OP_SILU_MUL_QUANT: return qn_ref_silu_mul_quant;
    case QN_OP_SILU_MUL: return qn_ref_silu_mul;
    case QN_OP_RMSNORM: return qn_ref_rmsnorm;
    case QN_OP_ROPE: return qn_ref_rope;
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION: return qn_ref_attention;
    case QN_OP_VQ_DEQUANTIZE: return qn_ref_vq_dequantize;
    case QN_OP_VQ_MM: return qn_ref_vq_mm;
    case QN_OP_VQ_ENCODE: return qn_ref_vq_encode;
    case QN_OP_VQ_ATTENTION: return qn_ref_vq_attention;
    case QN_OP_NONE:
    case QN_OP_LIMIT: break;
    }
    return NULL;
}

/* (rows + more) * columns * size + 64; SIZE_MAX, which no allocation gives, when that does not fit. */
static size_t scratch_bytes(int64_t rows, int64_t more, int64_t columns, size_t size)
{
    size_t total, bytes;
    if (qn_add_size((size_t)rows, (size_t)more, &total) || qn_mul_size(total, (size_t)columns, &bytes) ||
        qn_mul_size(bytes, size, &bytes) || qn_add_size(bytes, 64, &bytes)) {
        return SIZE_MAX;
    }
    return bytes;
}

/* Doubles, floats counted as such: a row of weights, a column, a transform's scratch, inputs and sums of all rows;
 * transformed weights as a whole. */
static size_t vq_scratch_bytes(const qn_op_desc *desc)
{
    const int mm = desc->op == QN_OP_VQ_MM;
    qn_vq vq;
    qn_vq_describe(desc, -1, mm ? desc->in[QN_VQMM_X].dims[1] : -1, &vq);
    const int64_t rows = mm ? desc->in[QN_VQMM_X].dims[0] : (vq.format == QN_VQ_QUIP_E8P ? vq.n : 0);
    return scratch_bytes(rows, 4, vq.n + vq.k, sizeof(double));
}

size_t qn_ref_scratch_bytes(const qn_op_desc *desc)
{
    const qn_shape *x = &desc->in[0];
    switch (desc->op) {
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8:
    case QN_OP_QUANTIZE_NVFP4:
    case QN_OP_QUANTIZE_MXFP4:
    case QN_OP_SILU_MUL:
    case QN_OP_ROPE: return scratch_bytes(1, 0, x->dims[x->ndim > 0 ? x->ndim - 1 : 0], sizeof(float));
    case QN_OP_DEQUANTIZE:
    case QN_OP_RMSNORM: return scratch_bytes(2, 0, x->dims[1], sizeof(float));
    case QN_OP_SILU_MUL_QUANT: return scratch_bytes(2, 0, x->dims[1], sizeof(float));
    case QN_OP_SCALED_MM:
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_MXFP4_MM:
    case QN_OP_DENSE_MM: return scratch_bytes(x->dims[0], 1, x->dims[1], sizeof(float));
    case QN_OP_GROUPED_BLOCK_SCALED_MM:
        return scratch_bytes(x->dims[x->ndim - 2], 1, x->dims[x->ndim - 1], sizeof(float));
    case QN_OP_NVFP4_MM:
        if (desc->in[QN_NVMM_A].format != QN_FORMAT_NONE) {
            x = &desc->in[QN_NVMM_A];
            return scratch_bytes(x->dims[0], 1, x->dims[1], 2 * sizeof(float));
        }
        return scratch_bytes(x->dims[0], 1, x->dims[1], sizeof(float));
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION:
        /* scores, then the accumulated row (doubles), then one decoded row */
        return scratch_bytes(desc->in[QN_ATT_K].dims[0], 2 * x->dims[2], 1, sizeof(double));
    case QN_OP_VQ_DEQUANTIZE:
    case QN_OP_VQ_MM: return vq_scratch_bytes(desc);
    case QN_OP_VQ_ENCODE: return scratch_bytes(1, 0, x->dims[3] + desc->in[QN_VQE_CODEBOOK].dims[3], sizeof(float));
    case QN_OP_VQ_ATTENTION: return scratch_bytes(qn_vq_room(desc), 2 * x->dims[2], 1, sizeof(double));
    case QN_OP_NONE:
    case QN_OP_LIMIT: break;
    }
    return 0;
}

float ref_vector_at(const qn_view *view, int64_t i)
{
    float value = 0.0f;
    if (ref_has(view)) {
        const qn_format_row *row = qn_format_get_row(view->shape.format);
        row->decode((const char *)view->data + i * row->info.block_bytes, 1, &value);
    }
    return value;
}

/* To f32 with the last bit sticky ("round to odd"): rounding that to 16 bits
 * then gives what one rounding from double gives. */
static float round_to_odd(double value)
{
    float f = (float)value;
    if (isnan(value) || isinf(value) || (double)f == value) {
        return f;
    }
    if (isinf(f)) {
        return f; /* far above the 16-bit formats' halfway to infinity */
    }
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (!(bits & 1)) {
        /* f is a neighbour with an even last bit: the odd one is on value's side */
        f = nextafterf(f, value > (double)f ? INFINITY : -INFINITY);
    }
    return f;
}

void ref_store(qn_format format, void *row, int64_t i, double value)
{
    if (format == QN_F32) {
        ref_put_f32(row, i, (float)value);
        return;
    }
    const float f = round_to_odd(value);
    const uint16_t bits = format == QN_F16 ? qn_f32_to_f16(f) : qn_f32_to_bf16(f);
    memcpy((char *)row + i * 2, &bits, sizeof bits);
}

float ref_fp8_max(int32_t type)
{
    return type == QN_TYPE_E4M3FNUZ ? 224.0f : type == QN_TYPE_E5M2 ? 57344.0f : 448.0f;
}

uint8_t ref_fp8_code(int32_t type, float value)
{
    if (type == QN_TYPE_E5M2) {
        return qn_f32_to_e5m2(value);
    }
    if (type == QN_TYPE_E4M3FNUZ) {
        return qn_f32_to_e4m3fnuz(value > 224.0f ? 224.0f : value < -224.0f ? -224.0f : value);
    }
    return qn_f32_to_e4m3(value);
}

int32_t ref_round_i32(float value)
{
    if (isnan(value)) {
        return 0;
    }
    const float r = rintf(value); /* the default mode: nearest even */
    return r >= 0x1p31f ? INT32_MAX : r < -0x1p31f ? INT32_MIN : (int32_t)r;
}

void ref_int8_asymmetric(float low, float high, float *scale, int32_t *azp)
{
    low = low < 0.0f ? low : 0.0f;
    high = high > 0.0f ? high : 0.0f;
    *scale = (high - low) / 255.0f;
    if (*scale == 0.0f) {
        *scale = 1.0f;
        *azp = 0;
        return;
    }
    const int32_t z = ref_round_i32(-128.0f - low / *scale);
    *azp = z < -128 ? -128 : z > 127 ? 127 : z;
}

int8_t ref_int8_code_azp(float value, float inverse, int32_t azp)
{
    const int64_t q = (int64_t)ref_round_i32(value * inverse) + azp;
    return (int8_t)(q < -128 ? -128 : q > 127 ? 127 : q);
}
