/* Row-wise parts (kernels/common/rows.h). Mostly plain loops that the compiler
 * vectorises at the folder's level. Included once by rows.c of each folder,
 * after its vec.h. */
#include "kernels/common/rows.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/name.h"

#include <math.h>

static void rows_silu_mul(const float *gate, const float *up, int64_t n, float *v)
{
    const vf one = vf_set(1.0f), zero = vf_set(0.0f);
    for (int64_t i = 0; i < n; i += VL) {
        const vf g = vf_load(gate + i);
        vf_store(v + i, vf_mul(vf_div(g, vf_add(one, vf_exp(vf_sub(zero, g)))), vf_load(up + i)));
    }
}

static void rows_range(const float *v, int64_t n, float *low, float *high)
{
    vf lo = vf_set(0.0f), hi = lo;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        const vf x = vf_load(v + i);
        lo = vf_min(x, lo); /* the second operand where x is NaN */
        hi = vf_max(x, hi);
    }
    float l = -vf_highest(vf_sub(vf_set(0.0f), lo)), h = vf_highest(hi);
    for (; i < n; i++) {
        l = v[i] < l ? v[i] : l;
        h = v[i] > h ? v[i] : h;
    }
    *low = l;
    *high = h;
}

static double rows_squares(const float *v, int64_t n)
{
    double sums[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++) {
            sums[j] += (double)v[i + j] * (double)v[i + j];
        }
    }
    for (; i < n; i++) {
        sums[i % 8] += (double)v[i] * (double)v[i];
    }
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

static void rows_scale(const float *restrict x, double factor, const float *restrict w, int64_t n, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] = (float)((double)x[i] * factor * (double)w[i]);
    }
}

static void rows_rotate(const float *restrict a, const float *restrict b, const double *restrict c,
                        const double *restrict s, int64_t n, int64_t step, float *restrict y0, float *restrict y1)
{
    if (step == 1) {
        for (int64_t i = 0; i < n; i++) {
            y0[i] = (float)((double)a[i] * c[i] - (double)b[i] * s[i]);
            y1[i] = (float)((double)b[i] * c[i] + (double)a[i] * s[i]);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y0[i * step] = (float)((double)a[i * step] * c[i] - (double)b[i * step] * s[i]);
        y1[i * step] = (float)((double)b[i * step] * c[i] + (double)a[i * step] * s[i]);
    }
}

static void rows_divide(const float *restrict v, float factor, int multiply, float limit, int64_t n,
                        float *restrict t)
{
    if (multiply) {
        for (int64_t i = 0; i < n; i++) {
            t[i] = v[i] * factor;
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            t[i] = v[i] / factor;
        }
    }
    for (int64_t i = 0; limit > 0.0f && i < n; i++) {
        const float low = t[i] < -limit ? -limit : t[i];
        t[i] = low > limit ? limit : low;
    }
}

QN_INLINE uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Normal codes: add just under half of the last kept bit and the tie's parity.
 * Subnormal ones: 2^14 has the step 2^-9 of the codes as its last bit, so the
 * addition rounds. */
static void rows_to_e4m3(const float *restrict v, int64_t n, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = float_bits(v[i]), size = bits & 0x7fffffffu;
        const uint32_t normal = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);
        const uint32_t tiny = float_bits(fabsf(v[i]) + 16384.0f) - 0x46800000u;
        uint32_t code = size < 0x3c800000u ? tiny : normal;
        code = code > 0x7e ? 0x7e : code;
        code |= bits >> 24 & 0x80;
        codes[i] = (uint8_t)(size > 0x7f800000u ? 0x7f : code);
    }
}

static void rows_to_i8(const float *restrict v, int64_t n, int32_t azp, int8_t *restrict codes)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = v[i] == v[i] ? v[i] : 0.0f;
        const float low = x < -1e6f ? -1e6f : x;
        const float held = low > 1e6f ? 1e6f : low;
        const int32_t q = (int32_t)rintf(held) + azp;
        const int32_t up = q < -128 ? -128 : q;
        codes[i] = (int8_t)(up > 127 ? 127 : up);
    }
}

static void rows_store(qn_mm_real format, const float *v, int64_t n, void *out)
{
    uint16_t *const h = out;
    if (format == QN_MM_F32) {
        memcpy(out, v, (size_t)n * 4);
        return;
    }
    if (format == QN_MM_BF16) {
        for (int64_t i = 0; i < n; i++) {
            const uint32_t bits = float_bits(v[i]);
            const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            h[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40) : rounded);
        }
        return;
    }
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_to_f16(h + i, vf_load(v + i));
    }
    if (i < n) {
        float tail[VL] = {0};
        uint16_t bits[VL];
        memcpy(tail, v + i, (size_t)(n - i) * 4);
        vf_to_f16(bits, vf_load(tail));
        memcpy(h + i, bits, (size_t)(n - i) * 2);
    }
}

const qn_rows_set QN_NAME(rows) = {.silu_mul = rows_silu_mul,
                                   .range = rows_range,
                                   .squares = rows_squares,
                                   .scale = rows_scale,
                                   .rotate = rows_rotate,
                                   .divide = rows_divide,
                                   .to_e4m3 = rows_to_e4m3,
                                   .to_i8 = rows_to_i8,
                                   .store = rows_store};
