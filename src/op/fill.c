/* Reproducible operand values for tests and benches (qn_case_fill).
 *
 * exact = 1: integers in [-2, 2] (int8 [-3, 3]), scales that are powers of two
 * near 1, GGUF blocks with scale 1: every product and partial sum is a small
 * multiple of a power of two that f32 holds, so all summation orders agree.
 * silu gates are 0, 32 or 64, where silu is 0 or the gate itself in f32.
 * rmsnorm, rope and attention have no such grid: their exact values are only small.
 * exact = 0: activations of deviation about 1 with some outliers, weights about
 * 0.05, and scales as a quantiser would make them. */
#include <quern/experimental.h>

#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/rng.h"
#include "format/format.h"
#include "op/fill.h"
#include "op/op.h"

int64_t qn_fill_pick(qn_filler *f, int64_t low, int64_t high)
{
    return low + (int64_t)(qn_rng_next(&f->rng) % (uint64_t)(high - low + 1));
}

/* Roughly normal with deviation 1; one in 64 eight times larger. */
static float normal(qn_filler *f)
{
    double sum = -2.0;
    for (int i = 0; i < 4; i++) {
        sum += qn_rng_uniform(&f->rng);
    }
    const double v = sum * 1.7320508;
    return (float)(qn_fill_pick(f, 0, 63) == 0 ? v * 8.0 : v);
}

void qn_fill_put(qn_format format, void *data, int64_t i, float value)
{
    const qn_format_row *row = qn_format_get_row(format);
    row->encode(&value, 1, (char *)data + i * row->info.block_bytes);
}

void qn_fill_values(qn_filler *f, const qn_shape *shape, void *data, double deviation)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        qn_fill_put(shape->format, data, i,
                    f->exact ? (float)qn_fill_pick(f, -2, 2) : (float)((double)normal(f) * deviation));
    }
}

/* Positive scales. */
void qn_fill_scales(qn_filler *f, const qn_shape *shape, void *data, double typical)
{
    static const float powers[] = {0.5f, 1.0f, 2.0f};
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        const double v = typical * (0.5 + qn_rng_uniform(&f->rng));
        qn_fill_put(shape->format, data, i, f->exact ? powers[qn_fill_pick(f, 0, 2)] : (float)v);
    }
}

/* Bytes 2^(b-127); also for U8, which holds the same bytes. */
static void fill_e8m0(qn_filler *f, const qn_shape *shape, void *data)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        ((uint8_t *)data)[i] = (uint8_t)(f->exact ? qn_fill_pick(f, 126, 128) : qn_fill_pick(f, 118, 124));
    }
}

void qn_fill_int8(qn_filler *f, const qn_shape *shape, void *data)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        ((int8_t *)data)[i] = (int8_t)(f->exact ? qn_fill_pick(f, -3, 3) : qn_fill_pick(f, -128, 127));
    }
}

void qn_fill_int32(qn_filler *f, const qn_shape *shape, void *data, int64_t low, int64_t high)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        const int32_t value = (int32_t)qn_fill_pick(f, low, high);
        memcpy((char *)data + i * 4, &value, sizeof value);
    }
}

static void fill_e4m3(qn_filler *f, const qn_shape *shape, void *data)
{
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        ((uint8_t *)data)[i] = qn_f32_to_e4m3(f->exact ? (float)qn_fill_pick(f, -2, 2) : normal(f) * 80.0f);
    }
}

/* Two e2m1 codes a byte; exact: 0, +-1, +-2 only. */
static void fill_fp4(qn_filler *f, const qn_shape *shape, void *data)
{
    static const uint8_t small[] = {0x0, 0x2, 0x4, 0xA, 0xC};
    const int64_t count = qn_shape_elements(shape);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t low = f->exact ? small[qn_fill_pick(f, 0, 4)] : (uint64_t)qn_fill_pick(f, 0, 15);
        const uint64_t high = f->exact ? small[qn_fill_pick(f, 0, 4)] : (uint64_t)qn_fill_pick(f, 0, 15);
        ((uint8_t *)data)[i] = (uint8_t)(low | high << 4);
    }
}

/* Where the f16 scales of a GGUF block are (of i8_k an f32 one), and bytes whose bits the exact grid limits. */
typedef struct block_fields {
    qn_format format;
    int32_t d, min; /* byte offsets of the f16 fields; -1: none */
    int32_t small, small_count;
    uint8_t mask;
} block_fields;

static const block_fields gguf[] = {
    {QN_Q4_0, 0, -1, 0, 0, 0},         {QN_Q4_1, 0, 2, 0, 0, 0},     {QN_Q5_0, 0, -1, 0, 0, 0},
    {QN_Q5_1, 0, 2, 0, 0, 0},          {QN_Q8_0, 0, -1, 0, 0, 0},    {QN_Q2_K, 80, 82, 0, 0, 0},
    {QN_Q3_K, 108, -1, 0, 0, 0},       {QN_Q4_K, 0, 2, 4, 12, 0x33}, {QN_Q5_K, 0, 2, 4, 12, 0x33},
    {QN_Q6_K, 208, -1, 192, 16, 0x03}, {QN_IQ4_NL, 0, -1, 0, 0, 0},  {QN_IQ4_XS, 0, -1, 0, 0, 0},
    {QN_I8_K, 0, -1, 4, 16, 0x01},
};

static void fill_blocks(qn_filler *f, const qn_shape *shape, void *data)
{
    const qn_format_info *info = qn_format_get_info(shape->format);
    const block_fields *fields = NULL;
    for (size_t i = 0; i < sizeof gguf / sizeof *gguf; i++) {
        if (gguf[i].format == shape->format) {
            fields = &gguf[i];
        }
    }
    const int64_t blocks = qn_shape_elements(shape) / info->block_elements;
    for (int64_t b = 0; b < blocks && fields; b++) {
        uint8_t *block = (uint8_t *)data + b * info->block_bytes;
        for (int32_t i = 0; i < info->block_bytes; i++) {
            block[i] = (uint8_t)qn_rng_next(&f->rng);
        }
        for (int32_t i = 0; f->exact && i < fields->small_count; i++) {
            block[fields->small + i] &= fields->mask;
        }
        const float scale = f->exact ? 1.0f : (float)(0.0005 * (1.0 + qn_rng_uniform(&f->rng)));
        const uint16_t d = qn_f32_to_f16(scale);
        const uint16_t min = qn_f32_to_f16(f->exact ? -1.0f : (float)(-0.004 * qn_rng_uniform(&f->rng)));
        if (fields->format == QN_I8_K) {
            memcpy(block + fields->d, &scale, sizeof scale);
        } else {
            memcpy(block + fields->d, &d, sizeof d);
        }
        if (fields->min >= 0) {
            memcpy(block + fields->min, &min, sizeof min);
        }
    }
}

/* Non-decreasing, from 0 to rows; some experts empty. */
static void fill_offsets(qn_filler *f, const qn_shape *shape, void *data, int64_t rows)
{
    const int64_t count = shape->dims[0];
    int64_t at = 0;
    for (int64_t e = 0; e < count; e++) {
        if (e > 0) {
            const int64_t fair = rows / (count - 1) + 1;
            at = e == count - 1 ? rows : qn_min_i64(rows, at + qn_fill_pick(f, 0, 2 * fair));
        }
        const int32_t value = (int32_t)at;
        memcpy((char *)data + e * 4, &value, sizeof value);
    }
}

/* gate | up rows on the exact grid. */
static void fill_gate_up(qn_filler *f, const qn_shape *shape, void *data)
{
    const int64_t rows = shape->dims[0], half = shape->dims[1] / 2;
    for (int64_t m = 0; m < rows; m++) {
        for (int64_t i = 0; i < 2 * half; i++) {
            const int64_t v = i < half ? 32 * qn_fill_pick(f, 0, 2) : qn_fill_pick(f, -4, 4);
            qn_fill_put(shape->format, data, m * 2 * half + i, (float)v);
        }
    }
}

static void fill_scaled(qn_filler *f, const qn_shape *shape, int32_t slot, void *data)
{
    switch (slot) {
    case QN_SMM_SCALE_A: qn_fill_scales(f, shape, data, 0.02); break;
    case QN_SMM_SCALE_B: qn_fill_scales(f, shape, data, 0.002); break;
    case QN_SMM_BIAS: qn_fill_values(f, shape, data, 0.5); break;
    case QN_SMM_AZP_ADJ: qn_fill_int32(f, shape, data, -400, 400); break;
    case QN_SMM_AZP: qn_fill_int32(f, shape, data, -128, 127); break;
    default:
        if (shape->format == QN_I8) {
            qn_fill_int8(f, shape, data);
        } else {
            fill_e4m3(f, shape, data);
        }
        break;
    }
}

static void fill_grouped(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data)
{
    const qn_shape *shape = &desc->in[slot];
    switch (slot) {
    case QN_BMM_SCALE_A: qn_fill_scales(f, shape, data, 0.01); break;
    case QN_BMM_SCALE_B: qn_fill_scales(f, shape, data, 0.0005); break;
    case QN_BMM_OFFSETS: fill_offsets(f, shape, data, desc->in[QN_BMM_A].dims[0]); break;
    case QN_BMM_MASKED_M: qn_fill_int32(f, shape, data, 0, desc->in[QN_BMM_A].dims[1]); break;
    default:
        if (shape->format == QN_F8_E4M3) {
            fill_e4m3(f, shape, data);
        } else {
            qn_fill_values(f, shape, data, 80.0);
        }
        break;
    }
}

static void fill_fp4_mm(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data)
{
    const qn_shape *shape = &desc->in[slot];
    const int nvfp4 = desc->op == QN_OP_NVFP4_MM;
    if (slot == 0 && shape->format == QN_I8) {
        qn_fill_int8(f, shape, data);
    } else if (slot == 0 && shape->format == QN_F8_E4M3) {
        fill_e4m3(f, shape, data);
    } else if (nvfp4 ? slot == QN_NVMM_X : slot == QN_MXMM_X) {
        qn_fill_values(f, shape, data, 1.0);
    } else if (slot == qn_op_x_scale_slot(desc->op)) {
        qn_fill_scales(f, shape, data, 0.02);
    } else if (nvfp4 ? slot == QN_NVMM_BIAS : slot == QN_MXMM_BIAS) {
        qn_fill_values(f, shape, data, 0.5);
    } else if (!nvfp4 && slot == QN_MXMM_B_SCALE) {
        fill_e8m0(f, shape, data);
    } else if (nvfp4 && (slot == QN_NVMM_A_SCALE || slot == QN_NVMM_B_SCALE)) {
        qn_fill_scales(f, shape, data, 60.0);
    } else if (nvfp4 && (slot == QN_NVMM_A_GLOBAL || slot == QN_NVMM_B_GLOBAL)) {
        qn_fill_scales(f, shape, data, slot == QN_NVMM_A_GLOBAL ? 300.0 : 8000.0);
    } else {
        fill_fp4(f, shape, data);
    }
}

static void fill_dequantize(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data)
{
    const qn_shape *shape = &desc->in[slot];
    const int32_t format = desc->attr[QN_ATTR_FORMAT].i;
    if (slot == QN_DEQ_AZP) {
        qn_fill_int32(f, shape, data, -128, 127);
    } else if (slot == QN_DEQ_GLOBAL) {
        qn_fill_scales(f, shape, data, 500.0);
    } else if (slot == QN_DEQ_SCALE && format == QN_QUANT_MXFP4) {
        fill_e8m0(f, shape, data);
    } else if (slot == QN_DEQ_SCALE && format == QN_QUANT_NVFP4) {
        const int64_t count = qn_shape_elements(shape);
        for (int64_t i = 0; i < count; i++) {
            ((uint8_t *)data)[i] = (uint8_t)qn_fill_pick(f, 0x30, 0x7E);
        }
    } else if (slot == QN_DEQ_SCALE) {
        qn_fill_scales(f, shape, data, 0.01);
    } else if (format == QN_QUANT_INT8) {
        qn_fill_int8(f, shape, data);
    } else if (format == QN_QUANT_FP8) {
        const int64_t count = qn_shape_elements(shape);
        for (int64_t i = 0; i < count; i++) { /* finite codes of every 8-bit float */
            ((uint8_t *)data)[i] = (uint8_t)(qn_fill_pick(f, 0, 0x7B) | (qn_fill_pick(f, 0, 1) ? 0x80 : 0));
            if (((uint8_t *)data)[i] == 0x80) {
                ((uint8_t *)data)[i] = 0;
            }
        }
    } else {
        fill_fp4(f, shape, data);
    }
}

static void fill_slot(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data)
{
    const qn_shape *shape = &desc->in[slot];
    switch (desc->op) {
    case QN_OP_SCALED_MM: fill_scaled(f, shape, slot, data); break;
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_GROUPED_BLOCK_SCALED_MM: fill_grouped(f, desc, slot, data); break;
    case QN_OP_NVFP4_MM:
    case QN_OP_MXFP4_MM: fill_fp4_mm(f, desc, slot, data); break;
    case QN_OP_DEQUANTIZE: fill_dequantize(f, desc, slot, data); break;
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8:
        if (slot == QN_QUANT_SCALE) {
            qn_fill_scales(f, shape, data, 0.03);
        } else if (slot == QN_QUANT_AZP) {
            qn_fill_int32(f, shape, data, -128, 127);
        } else {
            qn_fill_values(f, shape, data, 1.0);
        }
        break;
    case QN_OP_QUANTIZE_NVFP4:
        if (slot == QN_FP4_GLOBAL) {
            qn_fill_scales(f, shape, data, 256.0);
        } else {
            qn_fill_values(f, shape, data, 1.0);
        }
        break;
    case QN_OP_SILU_MUL_QUANT:
    case QN_OP_SILU_MUL:
        if (f->exact) {
            fill_gate_up(f, shape, data);
        } else {
            qn_fill_values(f, shape, data, 1.5);
        }
        break;
    case QN_OP_DENSE_MM:
        if (slot == QN_DMM_B && qn_format_get_info(shape->format)->block_elements > 1) {
            fill_blocks(f, shape, data);
        } else {
            qn_fill_values(f, shape, data, slot == QN_DMM_X ? 1.0 : 0.05);
        }
        break;
    case QN_OP_ROPE:
        if (slot == QN_ACT_POS) {
            qn_fill_int32(f, shape, data, 0, 4095);
        } else if (slot == QN_ACT_FACTORS) {
            qn_fill_scales(f, shape, data, 4.0);
        } else {
            qn_fill_values(f, shape, data, 1.0);
        }
        break;
    case QN_OP_SCALED_ATTENTION:
        if (slot == QN_ATT_K_SCALE || slot == QN_ATT_V_SCALE) {
            qn_fill_scales(f, shape, data, 0.012);
        } else if (slot == QN_ATT_K || slot == QN_ATT_V) {
            fill_e4m3(f, shape, data);
        } else {
            qn_fill_values(f, shape, data, 1.0);
        }
        break;
    case QN_OP_VQ_DEQUANTIZE:
    case QN_OP_VQ_MM:
    case QN_OP_VQ_ENCODE:
    case QN_OP_VQ_ATTENTION: qn_fill_vq(f, desc, slot, data); break;
    default: qn_fill_values(f, shape, data, 1.0); break;
    }
}

qn_status qn_case_fill(const qn_op_desc *desc, uint64_t seed, int32_t exact, void *const in[QN_MAX_IN], qn_error *error)
{
    QN_FAIL_IF(!desc || !in, error, QN_E_ARGUMENT, "qn_case_fill: a parameter is NULL");
    QN_TRY(qn_op_desc_check(desc, NULL, NULL, error));
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        if (qn_op_has(desc, i) && qn_shape_elements(&desc->in[i]) > 0) {
            QN_FAIL_IF(!in[i], error, QN_E_ARGUMENT, "qn_case_fill: the buffer of input %s is NULL",
                       qn_op_get_info(desc->op)->in[i].name);
            qn_filler f = {{seed * 64 + (uint64_t)i}, exact != 0};
            fill_slot(&f, desc, i, in[i]);
        }
    }
    return QN_OK;
}
