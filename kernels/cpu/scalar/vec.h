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

/* a where x is below the limit, else b */
static inline vf vf_where_below(vf x, float limit, vf a, vf b)
{
    EACH(i) b.v[i] = x.v[i] < limit ? a.v[i] : b.v[i];
    return b;
}

/* Whether all lanes are below the limit. */
static inline int vf_all_below(vf x, float limit)
{
    int all = 1;
    EACH(i) all &= x.v[i] < limit;
    return all;
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

/* to[j][i] = from[i][j] for 4 rows of 4 columns; strides in floats */
static inline void vf_columns4(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    EACH(i)
    {
        for (int j = 0; j < 4; j++) {
            to[j * to_stride + i] = from[i * from_stride + j];
        }
    }
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

/* Sixteen floats of 16 / channels entries. */
static inline void vec_entries(const uint16_t *const *entry, const int channels, float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = f16_value(entry[i / channels][i % channels]);
    }
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
    EACH(i)
    {
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

/* ---- integers, for the row-wise parts (kernels/cpu/rows.h) ---- */

typedef struct vi {
    uint32_t v[4]; /* four int32, or eight uint16 where a name says so */
} vi;

static inline vi vi_load(const void *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void vi_store(void *p, vi a)
{
    memcpy(p, &a, sizeof a);
}

static inline vi vi_set(uint32_t x)
{
    return (vi){{x, x, x, x}};
}

static inline vi vi_bits(vf a)
{
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}

static inline vf vf_bits(vi a)
{
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}

static inline vi vi_and(vi a, vi b)
{
    EACH(i) a.v[i] &= b.v[i];
    return a;
}

static inline vi vi_add(vi a, vi b)
{
    EACH(i) a.v[i] += b.v[i];
    return a;
}

static inline vi vi_sub(vi a, vi b)
{
    EACH(i) a.v[i] -= b.v[i];
    return a;
}

/* Low 32 bits of the products. */
static inline vi vi_mul(vi a, vi b)
{
    EACH(i) a.v[i] *= b.v[i];
    return a;
}

static inline vi vi_shl(vi a, unsigned count)
{
    EACH(i) a.v[i] <<= count;
    return a;
}

static inline vi vi_shr(vi a, unsigned count)
{
    EACH(i) a.v[i] >>= count;
    return a;
}

static inline vi vi_max(vi a, vi b)
{
    EACH(i) a.v[i] = (int32_t)a.v[i] > (int32_t)b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vi vi_min(vi a, vi b)
{
    EACH(i) a.v[i] = (int32_t)a.v[i] < (int32_t)b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vi vi_umax(vi a, vi b)
{
    EACH(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}

static inline vi vi_max16(vi a, vi b)
{
    int16_t x[8], y[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++) {
        x[i] = x[i] > y[i] ? x[i] : y[i];
    }
    memcpy(&a, x, sizeof x);
    return a;
}

static inline vi vi_add16(vi a, vi b)
{
    EACH(i) a.v[i] = ((a.v[i] + b.v[i]) & 0xffff) | ((a.v[i] & 0xffff0000u) + (b.v[i] & 0xffff0000u));
    return a;
}

static inline vi vi_umax16(vi a, vi b)
{
    uint16_t x[8], y[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++) {
        x[i] = x[i] > y[i] ? x[i] : y[i];
    }
    memcpy(&a, x, sizeof x);
    return a;
}

static inline vi vi_min16(vi a, vi b)
{
    int16_t x[8], y[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++) {
        x[i] = x[i] < y[i] ? x[i] : y[i];
    }
    memcpy(&a, x, sizeof x);
    return a;
}

static inline vi vi_umin16(vi a, vi b)
{
    uint16_t x[8], y[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++) {
        x[i] = x[i] < y[i] ? x[i] : y[i];
    }
    memcpy(&a, x, sizeof x);
    return a;
}

static inline vi vi_shr16(vi a, unsigned count)
{
    EACH(i) a.v[i] = (a.v[i] & 0xffff) >> count | a.v[i] >> 16 >> count << 16;
    return a;
}

/* bits of a where mask has ones, of b where it has zeros */
static inline vi vi_select(vi mask, vi a, vi b)
{
    EACH(i) a.v[i] = (a.v[i] & mask.v[i]) | (b.v[i] & ~mask.v[i]);
    return a;
}

/* b in the lanes where x is NaN, else a */
static inline vi vi_where_nan(vf x, vi b, vi a)
{
    EACH(i) a.v[i] = x.v[i] != x.v[i] ? b.v[i] : a.v[i];
    return a;
}

/* 0 in the words where a == b, else a */
static inline vi vi_zero_if16(vi a, vi b)
{
    EACH(i)
    {
        const uint32_t same = a.v[i] ^ b.v[i];
        a.v[i] &= (same & 0xffff ? 0xffffu : 0) | (same >> 16 ? 0xffff0000u : 0);
    }
    return a;
}

/* The largest of the lanes, unsigned; and of eight uint16. */
static inline uint32_t vi_top(vi a)
{
    uint32_t top = 0;
    EACH(i) top = a.v[i] > top ? a.v[i] : top;
    return top;
}

static inline uint32_t vi_top16(vi a)
{
    EACH(i) a.v[i] = a.v[i] >> 16 > (a.v[i] & 0xffff) ? a.v[i] >> 16 : a.v[i] & 0xffff;
    return vi_top(a);
}

/* a, but 0 in the lanes where b is 0 */
static inline vi vi_zero_if_zero(vi a, vi b)
{
    EACH(i) a.v[i] = b.v[i] ? a.v[i] : 0;
    return a;
}

/* nearest even; INT32_MIN where x has no int32 */
static inline vi vi_round(vf x)
{
    vi r;
    EACH(i)
    {
        const float y = rintf(x.v[i]);
        r.v[i] = y >= -0x1p31f && y < 0x1p31f ? (uint32_t)(int32_t)y : 0x80000000u;
    }
    return r;
}

static inline vf vf_from_i32(vi a)
{
    vf r;
    EACH(i) r.v[i] = (float)(int32_t)a.v[i];
    return r;
}

/* a where the sign of x is set, else b */
static inline vf vf_where_negative(vf x, vf a, vf b)
{
    EACH(i) b.v[i] = f32_to_bits(x.v[i]) >> 31 ? a.v[i] : b.v[i];
    return b;
}

/* x / s rounded to nearest even, r = 1 / s: right where neither overflows nor is near underflow */
static inline vf vf_quotient(vf x, vf s, vf r)
{
    (void)r;
    return vf_div(x, s);
}

/* What other levels add to r = 1 / s rounded, and x / s from both. */
static inline vf vf_inverse_rest(vf s, vf r)
{
    (void)r;
    return s;
}

static inline vf vf_times_inverse(vf x, vf s, vf r, vf rest)
{
    (void)r;
    (void)rest;
    return vf_div(x, s);
}

/* 2^n of the integer n, which the last 23 bits of z count; d, infinite where g has no such power; and
 * (e^-r - 1) / r for |r| <= ln2 / 2, within 2^-23 / r. */
#define VEC_ROOTS 1
static inline vf vec_power(vf z, vf n)
{
    (void)n;
    return vf_bits(vi_add(vi_shl(vi_bits(z), 23), vi_set(127u << 23)));
}

static inline vf vec_held_sum(vf g, vf d)
{
    return vf_where_below(g, -86.5f, vf_set(INFINITY), d);
}

/* x + n ln2 in two parts: products with the first one are exact. */
static inline vf vec_plus_octaves(vf x, vf n)
{
    return vf_fma(n, vf_set(-2.12194440e-4f), vf_fma(n, vf_set(0.693359375f), x));
}

static inline vf vec_rest(vf r)
{
    vf p = vf_fma(r, vf_set(-0.00829031109f), vf_set(0.0418979388f));
    p = vf_fma(p, r, vf_set(-0.166676363f));
    p = vf_fma(p, r, vf_set(0.499991495f));
    return vf_fma(p, r, vf_set(-0.999999707f));
}

/* Even and odd elements of two vectors' worth into the first and the second half. */
static inline void vf_interleave(vf *a, vf *b)
{
    const vf even = *a, odd = *b;
    EACH(i)
    {
        a->v[i] = i % 2 ? odd.v[i / 2] : even.v[i / 2];
        b->v[i] = i % 2 ? odd.v[2 + i / 2] : even.v[2 + i / 2];
    }
}

/* a in the lower half of the lanes, b in the upper */
static inline vf vf_set2(float a, float b)
{
    return (vf){{a, a, b, b}};
}

/* Two vectors of 2 VL elements: elements 0, 2, ... and 1, 3, ... */
static inline void vf_pairs_from_bf16(const void *p, vf *even, vf *odd)
{
    const vi w = vi_load(p);
    *even = vf_bits(vi_shl(w, 16));
    *odd = vf_bits(vi_and(w, vi_set(0xffff0000)));
}

/* The low halves of a's lanes, the high ones of b's. */
static inline vi vi_halves(vi a, vi b)
{
    EACH(i) a.v[i] = (a.v[i] & 0xffff) | (b.v[i] & 0xffff0000);
    return a;
}

/* The low halves of the lanes of both: a's in the low half of each lane, b's in the high one. */
static inline vi vi_pairs(vi a, vi b)
{
    EACH(i) a.v[i] = (a.v[i] & 0xffff) | b.v[i] << 16;
    return a;
}

/* Pairs as words: a's, then b's. */
static inline vi vi_in_order(vi w)
{
    const uint32_t *const v = w.v;
    return (vi){{(v[0] & 0xffff) | v[1] << 16, (v[2] & 0xffff) | v[3] << 16, v[0] >> 16 | (v[1] & 0xffff0000),
                 v[2] >> 16 | (v[3] & 0xffff0000)}};
}

/* The low bytes of words. */
static inline void vi_put_bytes(uint8_t *p, vi w)
{
    EACH(i)
    {
        p[2 * i] = (uint8_t)w.v[i];
        p[2 * i + 1] = (uint8_t)(w.v[i] >> 16);
    }
}

/* Other levels put what these do past the caches if that is asked for. */
static inline void vi_put(void *p, vi a, const int past)
{
    (void)past;
    vi_store(p, a);
}

static inline void vf_put(float *p, vf a, const int past)
{
    (void)past;
    vf_store(p, a);
}

/* Two vectors of words, with is_signed held to -128 to 127; other levels put them past the caches if that is asked for.
 */
static inline void vi_put_bytes2(uint8_t *p, vi a, vi b, const int is_signed, const int past)
{
    (void)past;
    if (is_signed) {
        a = vi_max16(vi_set(0xff80ff80u), vi_min16(vi_set(0x007f007f), a));
        b = vi_max16(vi_set(0xff80ff80u), vi_min16(vi_set(0x007f007f), b));
    }
    vi_put_bytes(p, a);
    vi_put_bytes(p + 8, b);
}

/* Words below 16, two a byte, the first in the low nibble. */
static inline void vi_put_nibbles(uint8_t *p, vi w)
{
    EACH(i) p[i] = (uint8_t)(w.v[i] | w.v[i] >> 12);
}

/* Words to bytes: a's, then b's. */
static inline vi vi_bytes(vi a, vi b)
{
    uint8_t bytes[16];
    vi_put_bytes(bytes, a);
    vi_put_bytes(bytes + 8, b);
    return vi_load(bytes);
}

/* The same of four vectors of words, which come as vi_bytes of the first two and of the last two. */
static inline void vi_put_nibbles4(uint8_t *p, vi ab, vi cd, const int past)
{
    uint8_t bytes[32];
    (void)past;
    vi_store(bytes, ab);
    vi_store(bytes + 16, cd);
    for (int i = 0; i < 16; i++) {
        p[i] = (uint8_t)(bytes[2 * i] | bytes[2 * i + 1] << 4);
    }
}

/* Largest magnitude bits of 16 blocks of `block` floats, a multiple of 16. */
static inline void vec_block_tops32(const void *p, const int64_t block, uint32_t top[16])
{
    for (int b = 0; b < 16; b++) {
        top[b] = 0;
        for (int64_t i = 0; i < block; i++) {
            uint32_t x;
            memcpy(&x, (const char *)p + (b * block + i) * 4, sizeof x);
            x &= 0x7fffffffu;
            top[b] = x > top[b] ? x : top[b];
        }
    }
}

/* Of 16-bit elements: of 16 blocks of 16, or of 8 blocks of a multiple of 32. */
static inline void vec_block_tops16(const void *p, const int64_t block, uint32_t top[16])
{
    for (int b = 0; b < (block > 16 ? 8 : 16); b++) {
        top[b] = 0;
        for (int64_t i = 0; i < block; i++) {
            uint16_t x;
            memcpy(&x, (const char *)p + (b * block + i) * 2, sizeof x);
            const uint32_t size = x & 0x7fffu;
            top[b] = size > top[b] ? size : top[b];
        }
    }
}

static inline vf vf_from_e5m2(const uint8_t *p)
{
    vf r;
    EACH(i) r.v[i] = f16_value((uint16_t)(p[i] << 8));
    return r;
}

static inline vf vf_from_e4m3fnuz(const uint8_t *p)
{
    vf r;
    EACH(i)
    {
        const uint32_t c = p[i], sign = (c & 0x80) << 24;
        const float f = bits_to_f32((c & 0x7f) << 20) * 0x1p119f;
        r.v[i] = c == 0x80 ? bits_to_f32(0x7fc00000u) : bits_to_f32(f32_to_bits(f) | sign);
    }
    return r;
}

/* Copy past the caches, where a level can; vec_fence() before others may read. */
static inline void vec_stream(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static inline void vec_fence(void)
{
}

#define vec_prefetch(p) ((void)(p))

#undef EACH
#endif
