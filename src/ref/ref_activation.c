/* silu_mul_quant, silu_mul, rmsnorm, rope.
 *
 *   silu_mul        v = gate / (1 + exp(-gate)) * up in double, one rounding
 *   silu_mul_quant  v as above rounded to f32 (never to 16 bits); per group s = amax / FMAX (127), bounded by
 *                   scale_ub if that is > 0, then at least 1 / (512 FMAX) (int8: FLT_EPSILON); q = conv(v / s).
 *                   int8 asymmetric: scale, azp and codes as quantize_int8 makes them
 *   rmsnorm         y = x / sqrt(sum(x^2) / K + eps) * w in double, one rounding
 *   rope            angle = pos * theta^(-2i/D) / factors[i] in double; y = rotated pair, one rounding to f32 */
#include <float.h>
#include <math.h>

#include "base/checked.h"
#include "ref/ref_common.h"

static double silu_mul(float gate, float up)
{
    const double g = (double)gate;
    return g / (1.0 + exp(-g)) * (double)up;
}

typedef struct group_out {
    void *codes; /* of the group */
    float *scale;
    int32_t *azp;
} group_out;

static void quantize_group(const qn_op_desc *desc, const float *v, int64_t count, const group_out *out)
{
    const int32_t type = desc->attr[QN_ATTR_TYPE].i;
    const float bound = desc->attr[QN_ATTR_SCALE_UB].f;
    float amax = 0.0f, low = 0.0f, high = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        amax = fabsf(v[i]) > amax ? fabsf(v[i]) : amax;
        low = v[i] < low ? v[i] : low;
        high = v[i] > high ? v[i] : high;
    }
    if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
        ref_int8_asymmetric(low, high, out->scale, out->azp);
        const float inverse = 1.0f / *out->scale;
        for (int64_t i = 0; i < count; i++) {
            ((int8_t *)out->codes)[i] = ref_int8_code_azp(v[i], inverse, *out->azp);
        }
        return;
    }
    const float most = type == QN_TYPE_INT8 ? 127.0f : ref_fp8_max(type);
    const float floor = type == QN_TYPE_INT8 ? FLT_EPSILON : 1.0f / (most * 512.0f);
    float s = amax / most;
    s = bound > 0.0f && s > bound ? bound : s;
    s = s > floor ? s : floor;
    *out->scale = s;
    for (int64_t i = 0; i < count; i++) {
        if (type == QN_TYPE_INT8) {
            ((int8_t *)out->codes)[i] = qn_f32_to_i8(v[i] / s);
        } else {
            ((uint8_t *)out->codes)[i] = ref_fp8_code(type, v[i] / s);
        }
    }
}

void qn_ref_silu_mul_quant(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_ACT_X];
    const qn_mut_view *q = &args->out[QN_ACT_OUT_Q], *scale = &args->out[QN_ACT_OUT_SCALE];
    const qn_mut_view *azp = &args->out[QN_ACT_OUT_AZP];
    const int64_t rows = x->shape.dims[0], k = x->shape.dims[1] / 2;
    const int64_t group = desc->attr[QN_ATTR_GROUP].i > 0 ? desc->attr[QN_ATTR_GROUP].i : qn_max_i64(k, 1);
    const int64_t groups = desc->attr[QN_ATTR_GROUP].i > 0 ? qn_ceil_div(k, group) : 1;
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    float *in = scratch, *v = in + 2 * k;
    for (int64_t m = 0; m < rows; m++) {
        ref_decode(x->shape.format, ref_row(x, m), 2 * k, in);
        for (int64_t i = 0; i < k; i++) {
            v[i] = (float)silu_mul(in[i], in[k + i]);
        }
        for (int64_t g = 0; g < groups; g++) {
            float s = 0.0f;
            int32_t z = 0;
            const group_out out = {ref_out_row(q, m) + g * group, &s, &z};
            quantize_group(desc, v + g * group, qn_min_i64(group, k - g * group), &out);
            ref_put_f32(ref_out_row(scale, col ? g : m), col ? m : g, s);
            if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
                ref_put_i32(ref_out_row(azp, col ? g : m), col ? m : g, z);
            }
        }
    }
}

void qn_ref_silu_mul(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const qn_view *x = &args->in[QN_ACT_X];
    const qn_mut_view *y = &args->out[QN_ACT_OUT_Y];
    const int64_t k = x->shape.dims[1] / 2;
    float *in = scratch;
    for (int64_t m = 0; m < x->shape.dims[0]; m++) {
        ref_decode(x->shape.format, ref_row(x, m), 2 * k, in);
        for (int64_t i = 0; i < k; i++) {
            ref_store(y->shape.format, ref_out_row(y, m), i, silu_mul(in[i], in[k + i]));
        }
    }
}

void qn_ref_rmsnorm(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_ACT_X], *w = &args->in[QN_ACT_W];
    const qn_mut_view *y = &args->out[QN_ACT_OUT_Y];
    const int64_t k = x->shape.dims[1];
    float *in = scratch, *weight = in + k;
    ref_decode(w->shape.format, w->data, k, weight);
    for (int64_t m = 0; m < x->shape.dims[0] && k > 0; m++) {
        ref_decode(x->shape.format, ref_row(x, m), k, in);
        double sum = 0.0;
        for (int64_t i = 0; i < k; i++) {
            sum += (double)in[i] * (double)in[i];
        }
        const double factor = 1.0 / sqrt(sum / (double)k + (double)desc->attr[QN_ATTR_EPS].f);
        for (int64_t i = 0; i < k; i++) {
            ref_store(y->shape.format, ref_out_row(y, m), i, (double)in[i] * factor * (double)weight[i]);
        }
    }
}

double ref_rope_frequency(double theta, const qn_view *factors, int64_t i, int64_t size)
{
    const double plain = pow(theta, -2.0 * (double)i / (double)size);
    return factors->shape.format ? plain / (double)ref_f32(factors->data, i) : plain;
}

void qn_ref_rope(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *x = &args->in[QN_ACT_X];
    const int64_t heads = x->shape.dims[1], size = x->shape.dims[2], half = size / 2;
    const int interleaved = desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED;
    const double theta = (double)desc->attr[QN_ATTR_THETA].f;
    float *in = scratch;
    for (int64_t t = 0; t < x->shape.dims[0]; t++) {
        const double pos = (double)ref_i32(args->in[QN_ACT_POS].data, t);
        for (int64_t h = 0; h < heads && size > 0; h++) {
            ref_decode(x->shape.format, ref_row3(x, t, h), size, in);
            char *out = ref_out_row3(&args->out[QN_ACT_OUT_Y], t, h);
            for (int64_t i = 0; i < half; i++) {
                const double angle = pos * ref_rope_frequency(theta, &args->in[QN_ACT_FACTORS], i, size);
                const int64_t at0 = interleaved ? 2 * i : i, at1 = interleaved ? 2 * i + 1 : i + half;
                const double a = (double)in[at0], b = (double)in[at1];
                ref_put_f32(out, at0, (float)(a * cos(angle) - b * sin(angle)));
                ref_put_f32(out, at1, (float)(b * cos(angle) + a * sin(angle)));
            }
        }
    }
}
