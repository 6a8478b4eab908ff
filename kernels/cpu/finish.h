/* Epilogue of every matmul: scales, bias, rounding to the output format.
 * Included after vec.h. Whole vectors are computed on arrays of QN_MM_COLS and
 * only the wanted part is copied out. */
#include "kernels/common/mm.h"
#include "kernels/cpu/name.h"

#include <math.h>

/* To bf16: nearest even, NaN stays a quiet NaN. */
QN_INLINE uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static void mm_finish(const qn_mm_finish *f, const float *sums, float scale_a, int64_t count, void *out)
{
    float v[QN_MM_COLS];
    if (!f->scaled) {
        for (int i = 0; i < QN_MM_COLS; i++) {
            v[i] = sums[i] * f->factor;
        }
        for (int i = 0; f->has_bias && i < QN_MM_COLS; i++) {
            v[i] += f->bias[i];
        }
    } else if (f->has_bias) {
        for (int i = 0; i < QN_MM_COLS; i++) {
            v[i] = fmaf(scale_a, sums[i] * f->scale_b[i], f->bias[i]);
        }
    } else {
        for (int i = 0; i < QN_MM_COLS; i++) {
            v[i] = scale_a * (sums[i] * f->scale_b[i]);
        }
    }
    uint16_t h[QN_MM_COLS];
    switch (f->out) {
    case QN_MM_F32: memcpy(out, v, (size_t)count * 4); break;
    case QN_MM_F16:
        for (int i = 0; i < QN_MM_COLS; i += VL) {
            vf_to_f16(h + i, vf_load(v + i));
        }
        memcpy(out, h, (size_t)count * 2);
        break;
    case QN_MM_BF16:
        for (int i = 0; i < QN_MM_COLS; i++) {
            h[i] = bf16_bits(v[i]);
        }
        memcpy(out, h, (size_t)count * 2);
        break;
    }
}
