/* quantize_fp8, quantize_int8, dequantize of both.
 *
 * A matrix is cut into regions that share a scale: the whole, a row, a group of
 * a row, a block of 128x128; the last ones of a row or column are short. For
 * each region: its range (NaN ignored), the scale from it, the codes.
 *
 *   fp8, FMAX = 448, 224 (fnuz), 57344 (e5m2), amax = max |x|, bounded by scale_ub if that is > 0:
 *     tensor        s = max(amax / FMAX, 1 / (512 FMAX))   q = fp8(x * (1 / s))
 *     token         s = max(amax / FMAX, 1 / (512 FMAX))   q = fp8(x / s)
 *     group, block  s = max(amax, 1e-10) / FMAX            q = fp8(x / s)
 *     ue8m0         then s = 2^ceil(log2(max(s, 1e-10)))
 *     static        s given                                q = fp8(x * (1 / s))
 *   int8:
 *     tensor, token s = amax / 127                         q = sat8(rint(x * (127 / amax))), 0 when amax = 0
 *     group         s = max(amax, 1e-10) / 127             q = sat8(rint(x / s))
 *     asymmetric    s = (max - min) / 255, azp = rint(-128 - min / s), range includes 0; 1, 0 when it is empty
 *                                                          q = sat8(sat32(rint(x * (1 / s))) + azp)
 *     static        symmetric q = sat8(rint(x / s)); asymmetric as above
 *
 * Every operation is one f32 operation, rounded to nearest even. */
#include <math.h>

#include "base/checked.h"
#include "ref/ref_common.h"

typedef struct region {
    int64_t r0, r1, c0, c1; /* rows and columns, ends excluded */
    int64_t i, j;           /* index of its scale as stored */
} region;

typedef struct range {
    float amax, low, high;
} range;

/* How many regions there are, down and across. */
static void region_counts(const qn_op_desc *desc, int64_t m, int64_t k, int64_t *down, int64_t *across)
{
    *down = *across = 1;
    switch (desc->attr[QN_ATTR_GRANULARITY].i) {
    case QN_PER_TOKEN: *down = m; break;
    case QN_PER_GROUP:
        *down = m;
        *across = qn_ceil_div(k, desc->attr[QN_ATTR_GROUP].i);
        break;
    case QN_PER_BLOCK:
        *down = qn_ceil_div(m, 128);
        *across = qn_ceil_div(k, 128);
        break;
    default: break;
    }
}

static region region_at(const qn_op_desc *desc, int64_t m, int64_t k, int64_t i, int64_t j)
{
    int64_t rows = m, columns = k;
    switch (desc->attr[QN_ATTR_GRANULARITY].i) {
    case QN_PER_TOKEN: rows = 1; break;
    case QN_PER_GROUP:
        rows = 1;
        columns = desc->attr[QN_ATTR_GROUP].i;
        break;
    case QN_PER_BLOCK: rows = columns = 128; break;
    default: break;
    }
    region r = {i * rows, qn_min_i64(m, (i + 1) * rows), j * columns, qn_min_i64(k, (j + 1) * columns), i, j};
    if (desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL) {
        r.i = j;
        r.j = i;
    }
    return r;
}

/* Where the scale of a region is: row pointer and index in it. */
static void *out_scale_row(const qn_mut_view *scale, const region *r)
{
    return scale->shape.ndim == 2 ? ref_out_row(scale, r->i) : scale->data;
}

static const void *in_scale_row(const qn_view *scale, const region *r)
{
    return scale->shape.ndim == 2 ? ref_row(scale, r->i) : scale->data;
}

/* Columns [c0,c1) of row i as floats. */
static void read_part(const qn_view *x, int64_t i, const region *r, float *values)
{
    const int64_t size = qn_format_get_row(x->shape.format)->info.block_bytes;
    ref_decode(x->shape.format, ref_row(x, i) + r->c0 * size, r->c1 - r->c0, values);
}

static range range_of(const qn_view *x, const region *r, float *values)
{
    range out = {0.0f, 0.0f, 0.0f};
    for (int64_t i = r->r0; i < r->r1; i++) {
        read_part(x, i, r, values);
        for (int64_t c = 0; c < r->c1 - r->c0; c++) {
            const float v = values[c];
            out.amax = fabsf(v) > out.amax ? fabsf(v) : out.amax; /* false for NaN */
            out.low = v < out.low ? v : out.low;
            out.high = v > out.high ? v : out.high;
        }
    }
    return out;
}

static float fp8_scale(const qn_op_desc *desc, float amax)
{
    const float most = ref_fp8_max(desc->attr[QN_ATTR_TYPE].i);
    const float bound = desc->attr[QN_ATTR_SCALE_UB].f;
    const int32_t granularity = desc->attr[QN_ATTR_GRANULARITY].i;
    if (bound > 0.0f && amax > bound) {
        amax = bound;
    }
    float s;
    if (granularity == QN_PER_GROUP || granularity == QN_PER_BLOCK) {
        s = (amax > 1e-10f ? amax : 1e-10f) / most;
    } else {
        const float floor = 1.0f / (most * 512.0f);
        s = amax / most;
        s = s > floor ? s : floor;
    }
    if (desc->attr[QN_ATTR_SCALE_FORMAT].i == QN_SCALE_UE8M0 && !isinf(s)) {
        s = qn_e8m0_to_f32(qn_f32_to_e8m0_ceil(s > 1e-10f ? s : 1e-10f));
    }
    return s;
}

void qn_ref_quantize_fp8(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_QUANT_X];
    const qn_mut_view *q = &args->out[QN_QUANT_OUT_Q], *scale = &args->out[QN_QUANT_OUT_SCALE];
    const int64_t m = x->shape.dims[0], k = x->shape.dims[1];
    const int32_t type = desc->attr[QN_ATTR_TYPE].i;
    const int is_static = desc->attr[QN_ATTR_MODE].i == QN_STATIC;
    const int multiply = is_static || desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_TENSOR;
    float *values = scratch;
    int64_t down, across;
    region_counts(desc, m, k, &down, &across);
    for (int64_t i = 0; i < down; i++) {
        for (int64_t j = 0; j < across; j++) {
            const region r = region_at(desc, m, k, i, j);
            const float s = is_static ? ref_f32(in_scale_row(&args->in[QN_QUANT_SCALE], &r), r.j)
                                      : fp8_scale(desc, range_of(x, &r, values).amax);
            ref_put_f32(out_scale_row(scale, &r), r.j, s);
            const float inverse = 1.0f / s;
            for (int64_t row = r.r0; row < r.r1; row++) {
                read_part(x, row, &r, values);
                uint8_t *codes = (uint8_t *)ref_out_row(q, row) + r.c0;
                for (int64_t c = 0; c < r.c1 - r.c0; c++) {
                    codes[c] = ref_fp8_code(type, multiply ? values[c] * inverse : values[c] / s);
                }
            }
        }
    }
}

typedef struct int8_rule {
    float scale, factor; /* factor: what x is multiplied by; unused when divide */
    int32_t azp;
    int divide, asymmetric;
} int8_rule;

static int8_rule int8_dynamic(const qn_op_desc *desc, const range *v)
{
    int8_rule rule = {0};
    if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
        rule.asymmetric = 1;
        ref_int8_asymmetric(v->low, v->high, &rule.scale, &rule.azp);
        rule.factor = 1.0f / rule.scale;
    } else if (desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP) {
        rule.scale = (v->amax > 1e-10f ? v->amax : 1e-10f) / 127.0f;
        rule.divide = 1;
    } else {
        rule.scale = v->amax / 127.0f;
        rule.factor = v->amax == 0.0f ? 0.0f : 127.0f / v->amax;
    }
    return rule;
}

static int8_rule int8_static(const qn_op_desc *desc, const qn_args *args, const region *r)
{
    int8_rule rule = {0};
    rule.scale = ref_f32(in_scale_row(&args->in[QN_QUANT_SCALE], r), r->j);
    if (desc->attr[QN_ATTR_SYMMETRIC].i) {
        rule.divide = 1;
    } else {
        rule.asymmetric = 1;
        rule.azp = ref_i32(in_scale_row(&args->in[QN_QUANT_AZP], r), r->j);
        rule.factor = 1.0f / rule.scale;
    }
    return rule;
}

void qn_ref_quantize_int8(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_QUANT_X];
    const qn_mut_view *q = &args->out[QN_QUANT_OUT_Q];
    const int64_t m = x->shape.dims[0], k = x->shape.dims[1];
    float *values = scratch;
    int64_t down, across;
    region_counts(desc, m, k, &down, &across);
    for (int64_t i = 0; i < down; i++) {
        for (int64_t j = 0; j < across; j++) {
            const region r = region_at(desc, m, k, i, j);
            int8_rule rule;
            if (desc->attr[QN_ATTR_MODE].i == QN_STATIC) {
                rule = int8_static(desc, args, &r);
            } else {
                const range v = range_of(x, &r, values);
                rule = int8_dynamic(desc, &v);
            }
            ref_put_f32(out_scale_row(&args->out[QN_QUANT_OUT_SCALE], &r), r.j, rule.scale);
            if (rule.asymmetric) {
                ref_put_i32(out_scale_row(&args->out[QN_QUANT_OUT_AZP], &r), r.j, rule.azp);
            }
            for (int64_t row = r.r0; row < r.r1; row++) {
                read_part(x, row, &r, values);
                int8_t *codes = (int8_t *)ref_out_row(q, row) + r.c0;
                for (int64_t c = 0; c < r.c1 - r.c0; c++) {
                    codes[c] = rule.asymmetric
                                   ? ref_int8_code_azp(values[c], rule.factor, rule.azp)
                                   : qn_f32_to_i8(rule.divide ? values[c] / rule.scale : values[c] * rule.factor);
                }
            }
        }
    }
}

static qn_format code_format(const qn_op_desc *desc)
{
    switch (desc->attr[QN_ATTR_TYPE].i) {
    case QN_TYPE_E4M3FNUZ: return QN_F8_E4M3FNUZ;
    case QN_TYPE_E5M2: return QN_F8_E5M2;
    default: return QN_F8_E4M3;
    }
}

/* x = q * s; int8: x = (q - azp) * s. */
static void dequantize_8bit(const qn_op_desc *desc, const qn_args *args, float *values)
{
    const qn_view *q = &args->in[QN_DEQ_Q], *scale = &args->in[QN_DEQ_SCALE], *azp = &args->in[QN_DEQ_AZP];
    const int int8 = desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_INT8;
    const int64_t m = q->shape.dims[0], k = q->shape.dims[1];
    int64_t down, across;
    region_counts(desc, m, k, &down, &across);
    for (int64_t i = 0; i < down; i++) {
        for (int64_t j = 0; j < across; j++) {
            const region r = region_at(desc, m, k, i, j);
            const float s = ref_f32(in_scale_row(scale, &r), r.j);
            const int32_t z = ref_has(azp) ? ref_i32(in_scale_row(azp, &r), r.j) : 0;
            for (int64_t row = r.r0; row < r.r1; row++) {
                const char *codes = ref_row(q, row) + r.c0;
                char *out = ref_out_row(&args->out[QN_DEQ_OUT_X], row);
                if (!int8) {
                    ref_decode(code_format(desc), codes, r.c1 - r.c0, values);
                }
                for (int64_t c = 0; c < r.c1 - r.c0; c++) {
                    const float v = int8 ? (float)((int64_t)(int8_t)codes[c] - z) : values[c];
                    ref_put_f32(out, r.c0 + c, v * s);
                }
            }
        }
    }
}

/* nvfp4: x = (e2m1 * e4m3 scale) / global; mxfp4: x = e2m1 * 2^(scale - 127). */
static void dequantize_fp4(const qn_op_desc *desc, const qn_args *args, float *values)
{
    const qn_view *q = &args->in[QN_DEQ_Q], *scale = &args->in[QN_DEQ_SCALE];
    const int nvfp4 = desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_NVFP4;
    const int swizzled = nvfp4 && desc->attr[QN_ATTR_SWIZZLED].i;
    const int64_t m = q->shape.dims[0], k = q->shape.dims[1] * 2, block = nvfp4 ? 16 : 32;
    const float global = nvfp4 ? ref_f32(args->in[QN_DEQ_GLOBAL].data, 0) : 1.0f;
    for (int64_t row = 0; row < m; row++) {
        ref_decode(QN_F4_E2M1, ref_row(q, row), k, values);
        char *out = ref_out_row(&args->out[QN_DEQ_OUT_X], row);
        for (int64_t c = 0; c < k; c++) {
            const int64_t b = c / block;
            const int64_t columns = scale->shape.dims[1];
            const int64_t at = swizzled ? qn_scale_swizzle(row, b, k / 16) : row * columns + b;
            const uint8_t code = ((const uint8_t *)ref_row(scale, at / columns))[at % columns];
            ref_put_f32(out, c, nvfp4 ? values[c] * qn_e4m3_to_f32(code) / global : values[c] * qn_e8m0_to_f32(code));
        }
    }
}

void qn_ref_dequantize(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const int32_t format = desc->attr[QN_ATTR_FORMAT].i;
    if (format == QN_QUANT_FP8 || format == QN_QUANT_INT8) {
        dequantize_8bit(desc, args, scratch);
    } else {
        dequantize_fp4(desc, args, scratch);
    }
}
