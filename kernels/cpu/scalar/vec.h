/* Vectors of plain C: four floats, multiply then add (no fused operation at
 * the baseline of the build target). */
#ifndef QN_KERNELS_SCALAR_VEC_H
#define QN_KERNELS_SCALAR_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define QN_ISA scalar
#define VL 4
#define QN_MR 2
#define QN_NR 2

typedef struct vf {
    float v[4];
} vf;

#define EACH(i) for (int i = 0; i < 4; i++)

static inline float bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t f32_to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline vf vf_load(const float *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void vf_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}

static inline vf vf_set(float x)
{
    return (vf){{x, x, x, x}};
}

static inline vf vf_mul(vf a, vf b)
{
    EACH(i) a.v[i] *= b.v[i];
    return a;
}

static inline vf vf_add(vf a, vf b)
{
    EACH(i) a.v[i] += b.v[i];
    return a;
}

static inline vf vf_sub(vf a, vf b)
{
    EACH(i) a.v[i] -= b.v[i];
    return a;
}

static inline vf vf_div(vf a, vf b)
{
    EACH(i) a.v[i] /= b.v[i];
    return a;
}

static inline vf vf_max(vf a, vf b)
{
    EACH(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vf vf_min(vf a, vf b)
{
    EACH(i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    EACH(i) c.v[i] += a.v[i] * b.v[i];
    return c;
}

static inline vf vf_round(vf a)
{
    EACH(i) a.v[i] = rintf(a.v[i]);
    return a;
}

/* p * 2^n for integral n; infinity where x > 88.7, anything where x < -87.3 */
static inline vf vf_scale2(vf p, vf n, vf x)
{
    EACH(i) {
        const float whole = n.v[i] > 128.0f ? 128.0f : (n.v[i] >= -126.0f ? n.v[i] : -126.0f);
        const float half = bits_to_f32((uint32_t)((int32_t)whole + 126) << 23);
        p.v[i] = x.v[i] > 88.722839f ? INFINITY : p.v[i] * 2.0f * half;
    }
    return p;
}

/* lanes of a where k < limit for k = first + lane, else lanes of b */
static inline vf vf_keep(vf a, vf b, int64_t count)
{
    EACH(i) a.v[i] = i < count ? a.v[i] : b.v[i];
    return a;
}

/* lanes of a where x >= limit, else 0 */
static inline vf vf_zero_below(vf a, vf x, float limit)
{
    EACH(i) a.v[i] = x.v[i] < limit ? 0.0f : a.v[i];
    return a;
}

static inline float vf_sum(vf a)
{
    return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}

static inline float vf_highest(vf a)
{
    a = vf_max(a, (vf){{a.v[2], a.v[3], a.v[2], a.v[3]}});
    return a.v[0] > a.v[1] ? a.v[0] : a.v[1];
}

static inline float f16_value(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) {
        return bits_to_f32(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    }
    const float f = bits_to_f32(rest << 13) * 0x1p112f;
    return bits_to_f32(f32_to_bits(f) | sign);
}

static inline uint16_t f16_bits(float x)
{
    const uint32_t bits = f32_to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    }
    if (rest >= 0x47800000u) {
        return (uint16_t)(sign | 0x7c00);
    }
    if (rest < 0x38800000u) {
        /* adding 0.5 leaves the rounded subnormal in the low bits */
        return (uint16_t)(sign | (f32_to_bits(bits_to_f32(rest) + 0.5f) - 0x3f000000u));
    }
    const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

static inline vf vf_from_f16(const void *p)
{
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (vf){{f16_value(h[0]), f16_value(h[1]), f16_value(h[2]), f16_value(h[3])}};
}

static inline vf vf_from_bf16(const void *p)
{
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    vf r;
    EACH(i) r.v[i] = bits_to_f32((uint32_t)h[i] << 16);
    return r;
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    EACH(i) p[i] = f16_bits(a.v[i]);
}

static inline vf vf_from_e4m3(const uint8_t *p)
{
    vf r;
    EACH(i) {
        const uint32_t c = p[i], sign = (c & 0x80) << 24;
        const float f = bits_to_f32((c & 0x7f) << 20) * 0x1p120f;
        r.v[i] = (c & 0x7f) == 0x7f ? bits_to_f32(sign | 0x7fc00000u) : bits_to_f32(f32_to_bits(f) | sign);
    }
    return r;
}

static inline vf vf_from_i8(const uint8_t *p)
{
    vf r;
    EACH(i) r.v[i] = (float)(int8_t)p[i];
    return r;
}

static const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* VL codes of half as many bytes, low nibble first */
static inline vf vf_from_e2m1(const uint8_t *p)
{
    return (vf){{e2m1_values[p[0] & 15], e2m1_values[p[0] >> 4], e2m1_values[p[1] & 15], e2m1_values[p[1] >> 4]}};
}

/* VL integers: the low (shift 0) or high (shift 4) nibble of each of VL bytes */
static inline vf vf_from_nibbles(const uint8_t *p, int shift)
{
    vf r;
    EACH(i) r.v[i] = (float)(p[i] >> shift & 15);
    return r;
}

#undef EACH
#endif
