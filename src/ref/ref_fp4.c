/* quantize_nvfp4 and quantize_mxfp4.
 *
 *   nvfp4, blocks of 16:  G  = 2688 / clamp(amax of the tensor, 2^-40, FLT_MAX), unless given (2688 = 448 * 6)
 *                         sf = e4m3(G * (amax of the block * (1 / 6)))
 *                         r  = 1 / (sf * (1 / G)), 0 when sf is 0;   q = e2m1(x * r)
 *   mxfp4, blocks of 32:  e  = by rule, held to -127..127;           q = e2m1(x * 2^-e)
 *                         ceil: smallest e with 6 * 2^e >= amax
 *                         ocp:  floor(log2(amax)) - 2
 *                         even: the same of amax with its fraction rounded to two bits (>= 1.75 moves up)
 *
 * f32 operations, 1 / x correctly rounded. amax ignores NaN; NaN elements
 * become +0 (e2m1 has none). */
#include <float.h>
#include <math.h>

#include "ref/ref_common.h"

static float amax_of(const float *values, int64_t count)
{
    float amax = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        amax = fabsf(values[i]) > amax ? fabsf(values[i]) : amax;
    }
    return amax;
}

static float global_scale(const qn_args *args, float *values)
{
    const qn_view *x = &args->in[QN_FP4_X];
    if (ref_has(&args->in[QN_FP4_GLOBAL])) {
        return ref_f32(args->in[QN_FP4_GLOBAL].data, 0);
    }
    float amax = 0x1p-40f;
    for (int64_t i = 0; i < x->shape.dims[0]; i++) {
        ref_decode(x->shape.format, ref_row(x, i), x->shape.dims[1], values);
        const float row = amax_of(values, x->shape.dims[1]);
        amax = row > amax ? row : amax;
    }
    return 2688.0f / (amax < FLT_MAX ? amax : FLT_MAX);
}

/* Two codes a byte, the first in the low nibble. */
static void put_codes(uint8_t *packed, int64_t first, const float *values, int64_t count, float factor)
{
    for (int64_t i = 0; i < count; i += 2) {
        const uint8_t low = qn_f32_to_e2m1(values[i] * factor), high = qn_f32_to_e2m1(values[i + 1] * factor);
        packed[(first + i) / 2] = (uint8_t)((low & 15) | (high & 15) << 4);
    }
}

void qn_ref_quantize_nvfp4(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_FP4_X];
    const qn_mut_view *scale = &args->out[QN_FP4_OUT_SCALE];
    const int64_t m = x->shape.dims[0], k = x->shape.dims[1];
    const int swizzled = desc->attr[QN_ATTR_SWIZZLED].i;
    float *values = scratch;
    const float g = global_scale(args, values);
    ref_put_f32(args->out[QN_FP4_OUT_GLOBAL].data, 0, g);
    if (swizzled) {
        for (int64_t i = 0; i < scale->shape.dims[0]; i++) {
            memset(ref_out_row(scale, i), 0, (size_t)scale->shape.dims[1]);
        }
    }
    for (int64_t i = 0; i < m; i++) {
        ref_decode(x->shape.format, ref_row(x, i), k, values);
        for (int64_t b = 0; b < k / 16; b++) {
            const float amax = amax_of(values + b * 16, 16);
            const uint8_t sf = qn_f32_to_e4m3(g * (amax * (1.0f / 6.0f)));
            const float s = qn_e4m3_to_f32(sf);
            const float factor = s == 0.0f ? 0.0f : 1.0f / (s * (1.0f / g));
            if (swizzled) {
                const int64_t at = qn_scale_swizzle(i, b, k / 16), columns = scale->shape.dims[1];
                ((uint8_t *)ref_out_row(scale, at / columns))[at % columns] = sf;
            } else {
                ((uint8_t *)ref_out_row(scale, i))[b] = sf;
            }
            put_codes((uint8_t *)ref_out_row(&args->out[QN_FP4_OUT_Q], i), b * 16, values + b * 16, 16, factor);
        }
    }
}

static int mx_exponent(int32_t rule, float amax)
{
    if (amax == 0.0f) {
        return -127;
    }
    if (isinf(amax)) {
        return 127;
    }
    int e;
    float fraction = frexpf(amax, &e); /* amax = fraction * 2^e, fraction in [0.5, 1) */
    if (rule == QN_RULE_CEIL) {
        e = fraction <= 0.75f ? e - 3 : e - 2; /* 6 = 0.75 * 2^3 */
    } else {
        e = e - 1 - 2 + (rule == QN_RULE_EVEN && fraction >= 0.875f);
    }
    return e < -127 ? -127 : e > 127 ? 127 : e;
}

void qn_ref_quantize_mxfp4(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_FP4_X];
    const int64_t m = x->shape.dims[0], k = x->shape.dims[1];
    float *values = scratch;
    for (int64_t i = 0; i < m; i++) {
        ref_decode(x->shape.format, ref_row(x, i), k, values);
        uint8_t *scales = (uint8_t *)ref_out_row(&args->out[QN_FP4_OUT_SCALE], i);
        for (int64_t b = 0; b < k / 32; b++) {
            const int e = mx_exponent(desc->attr[QN_ATTR_RULE].i, amax_of(values + b * 32, 32));
            scales[b] = (uint8_t)(e + 127);
            put_codes((uint8_t *)ref_out_row(&args->out[QN_FP4_OUT_Q], i), b * 32, values + b * 32, 32,
                      ldexpf(1.0f, -e));
        }
    }
}
