/* Unpack fragments: coded elements to panel rows of f32, one function a format.
 * Included after vec.h. A tail that does not fill a vector is copied to zeroed
 * memory first: code 0 is the number 0 in every format, and nothing outside the
 * operand is read. Scales of groups are exact powers or short mantissas, so
 * value * scale is exact in f32. */
#include "kernels/common/mm.h"
#include "kernels/cpu/name.h"

QN_INLINE int64_t panel_zeros(float *p, int64_t from, int64_t count)
{
    const int64_t end = (count + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    for (; from < end; from += VL) {
        vf_store(p + from, vf_set(0.0f));
    }
    return end;
}

QN_INLINE const uint8_t *row_at(const qn_mm_operand *o, int64_t row)
{
    return (const uint8_t *)o->data + row * o->stride;
}

#define UNPACK_ELEMENTS(name, bytes, FROM)                                                                         \
    static void name(const qn_mm_operand *o, int64_t row, int64_t k, int64_t count, void *panel)                   \
    {                                                                                                              \
        const uint8_t *const src = row_at(o, row) + k * (bytes);                                                   \
        float *const p = panel;                                                                                    \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= count; i += VL) {                                                                         \
            vf_store(p + i, FROM(src + i * (bytes)));                                                              \
        }                                                                                                          \
        if (i < count) {                                                                                           \
            uint8_t tail[VL * 4] = {0};                                                                            \
            memcpy(tail, src + i * (bytes), (size_t)((count - i) * (bytes)));                                      \
            vf_store(p + i, FROM(tail));                                                                           \
            i += VL;                                                                                               \
        }                                                                                                          \
        panel_zeros(p, i, count);                                                                                  \
    }

QN_INLINE vf from_f32(const uint8_t *p)
{
    return vf_load((const float *)(const void *)p);
}

UNPACK_ELEMENTS(unpack_f32, 4, from_f32)
UNPACK_ELEMENTS(unpack_f16, 2, vf_from_f16)
UNPACK_ELEMENTS(unpack_bf16, 2, vf_from_bf16)
UNPACK_ELEMENTS(unpack_e4m3, 1, vf_from_e4m3)

/* An e5m2 code is the high byte of the f16 of the same value. */
QN_INLINE vf from_e5m2(const uint8_t *p)
{
    uint16_t h[VL];
    for (int i = 0; i < VL; i++) {
        h[i] = (uint16_t)(p[i] << 8);
    }
    return vf_from_f16(h);
}

UNPACK_ELEMENTS(unpack_e5m2, 1, from_e5m2)

QN_INLINE float real_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* 2^(c - 127); code 0 is 2^-127, 255 is NaN */
QN_INLINE float e8m0_value(uint8_t c)
{
    return real_bits(c == 0 ? 0x00400000u : c == 255 ? 0x7fc00000u : (uint32_t)c << 23);
}

/* Scales of n groups as floats. */
QN_INLINE void e4m3_scales(const uint8_t *p, int64_t n, float *scales)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        vf_store(scales + i, vf_from_e4m3(p + i));
    }
    if (i < n) {
        uint8_t tail[VL] = {0};
        memcpy(tail, p + i, (size_t)(n - i));
        vf_store(scales + i, vf_from_e4m3(tail));
    }
}

QN_INLINE void e8m0_scales(const uint8_t *p, int64_t n, float *scales)
{
    for (int64_t i = 0; i < n; i++) {
        scales[i] = e8m0_value(p[i]);
    }
}

#define SCALES_AT_ONCE 64 /* groups whose scales are decoded together */

/* Rows of groups of 16 (e4m3 scale) or 32 (e8m0 scale) e2m1 codes; K is a multiple of the group. */
#define UNPACK_FP4(name, group, SCALES)                                                                            \
    static void name(const qn_mm_operand *o, int64_t row, int64_t k, int64_t count, void *panel)                   \
    {                                                                                                              \
        const uint8_t *const src = row_at(o, row) + k / 2;                                                         \
        const uint8_t *const codes = (const uint8_t *)o->scales + row * o->scale_stride + k / (group);             \
        const int64_t groups = count / (group);                                                                    \
        float scales[SCALES_AT_ONCE + VL];                                                                         \
        float *const p = panel;                                                                                    \
        for (int64_t g0 = 0; g0 < groups; g0 += SCALES_AT_ONCE) {                                                  \
            const int64_t n = groups - g0 < SCALES_AT_ONCE ? groups - g0 : SCALES_AT_ONCE;                         \
            SCALES(codes + g0, n, scales);                                                                         \
            for (int64_t g = 0; g < n; g++) {                                                                      \
                const vf s = vf_set(scales[g]);                                                                    \
                const int64_t at = (g0 + g) * (group);                                                             \
                for (int j = 0; j < (group); j += VL) {                                                            \
                    vf_store(p + at + j, vf_mul(vf_from_e2m1(src + (at + j) / 2), s));                             \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        panel_zeros(p, groups * (group), count);                                                                   \
    }

UNPACK_FP4(unpack_nvfp4, 16, e4m3_scales)
UNPACK_FP4(unpack_mxfp4, 32, e8m0_scales)

static void unpack_any(const qn_mm_operand *o, int64_t row, int64_t k, int64_t count, void *panel)
{
    float *const p = panel;
    o->decode(row_at(o, row) + k / o->block_elements * o->block_bytes, count, p);
    for (int64_t i = count; i < (count + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD; i++) {
        p[i] = 0.0f;
    }
}
