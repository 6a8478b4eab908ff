/* Pairs of AVX2 with FMA (kernels/cpu/panel.h): floats as two f32 vectors, int8 as pairs of
 * int16; sixteen columns are two vectors. */
#ifndef QN_KERNELS_AVX2_PAIRS_H
#define QN_KERNELS_AVX2_PAIRS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

#define QN_ISA avx2
#define PAIRS_F QN_PANEL_F32
#define PAIR_TERMS 0
#define PAIR_I8 1
#define I8_MR 4
#define I8_NR 1
#define PAIR_MR 6
#define PAIR_NR 2
#define PAIR_MR_MANY 6
#define PAIR_NR_MANY 1
#define PAIR_BLOCKS 4
#define PAIR_FEW 4
#define FP4_DOT 1
#define FEW_NR(rows) ((rows) <= 2 ? 2 : 1)

typedef struct vs {
    __m256 v[2]; /* columns 0 to 7, 8 to 15 */
} vs;

typedef struct vl {
    __m256i v[2];
} vl;

typedef struct vw {
    vl even, odd; /* int8: even alone */
} vw;

QN_INLINE vs vs_zero(void)
{
    return (vs){{_mm256_setzero_ps(), _mm256_setzero_ps()}};
}

QN_INLINE vs vs_load(const float *p)
{
    return (vs){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}

QN_INLINE void vs_store(float *p, vs a)
{
    _mm256_storeu_ps(p, a.v[0]);
    _mm256_storeu_ps(p + 8, a.v[1]);
}

QN_INLINE vs vs_set(float x)
{
    return (vs){{_mm256_set1_ps(x), _mm256_set1_ps(x)}};
}

QN_INLINE vs vs_fma(vs a, vs b, vs c)
{
    return (vs){{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}

/* half h of a line: columns 8h to 8h + 7 */
QN_INLINE __m256i half_at(const char *line, const int h)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(line + 32 * h));
}

QN_INLINE vl vl_load(const char *p)
{
    return (vl){{half_at(p, 0), half_at(p, 1)}};
}

QN_INLINE vs vl_dot(const int code, vs sums, vl w, const char *a)
{
    if (code < QN_PANEL_I8) {
        float x;
        memcpy(&x, a, sizeof x);
        const __m256 v = _mm256_set1_ps(x);
        return (vs){{_mm256_fmadd_ps(_mm256_castsi256_ps(w.v[0]), v, sums.v[0]),
                     _mm256_fmadd_ps(_mm256_castsi256_ps(w.v[1]), v, sums.v[1])}};
    }
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    const __m256i v = _mm256_set1_epi32(pair), p0 = _mm256_madd_epi16(w.v[0], v), p1 = _mm256_madd_epi16(w.v[1], v);
    return (vs){{_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sums.v[0]), p0)),
                 _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(sums.v[1]), p1))}};
}

QN_INLINE __m256i low_of_pair(__m256i x)
{
    return _mm256_slli_epi32(x, 16);
}

QN_INLINE __m256i high_of_pair(__m256i x)
{
    return _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000));
}

QN_INLINE __m256i table_of(int64_t low, int64_t high)
{
    return _mm256_set_epi64x(high, low, high, low);
}

/* The two bytes of bf16 numbers. */
typedef struct bytes2 {
    __m256i high, low;
} bytes2;

/* Bytes of e4m3 as value / 256, of e5m2 as value / 65536. An exponent field of 0, zero and subnormals, would
 * become another number: there both bytes are corrected by tables of the mantissa. Larger codes select nothing
 * of these tables, since adding `above` to them carries into bit 7. */
QN_INLINE bytes2 from_f8(const int code, __m256i x)
{
    const int e4m3 = code != QN_PANEL_E5M2;
    const __m256i high_fix = table_of(0, e4m3 ? 0x000000000f0f0f38 : 0x00001f3000000000);
    const __m256i low_fix = table_of(0, e4m3 ? 0x10207040f0a01000 : 0x2040a00000000000);
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    const __m256i fix = _mm256_add_epi8(magnitude, _mm256_set1_epi8(e4m3 ? 0x78 : 0x7c));
    const __m256i shifted = e4m3 ? _mm256_srli_epi16(x, 4) : _mm256_srli_epi16(magnitude, 3);
    const __m256i bits = _mm256_and_si256(shifted, _mm256_set1_epi8(0x0f));
    const __m256i high = e4m3 ? _mm256_shuffle_epi8(table_of(0x3f3e3d3c3b3a3938, (int64_t)0xbfbebdbcbbbab9b8), bits)
                              : _mm256_or_si256(_mm256_and_si256(x, _mm256_set1_epi8((char)0x80)),
                                                _mm256_or_si256(bits, _mm256_set1_epi8(0x30)));
    const __m256i low = e4m3 ? _mm256_and_si256(_mm256_slli_epi16(x, 4), _mm256_set1_epi8((char)0xf0))
                             : _mm256_and_si256(_mm256_slli_epi16(x, 5), _mm256_set1_epi8((char)0xe0));
    return (bytes2){_mm256_xor_si256(high, _mm256_shuffle_epi8(high_fix, fix)),
                    _mm256_xor_si256(low, _mm256_shuffle_epi8(low_fix, fix))};
}

/* Two pairs of bf16 of e2m1 codes: even steps of pairs p and p + 2 in .low, odd steps in .high. Nibbles p % 2 of
 * the bytes; bytes are brought in the order of the result first. */
QN_INLINE bytes2 from_e2m1(__m256i x, const int p)
{
    const __m256i order = table_of(0x0d0c090805040100, 0x0f0e0b0a07060302);
    const __m256i bytes = _mm256_shuffle_epi8(x, order);
    const __m256i nibbles = _mm256_and_si256(p % 2 ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15));
    const __m256i h = _mm256_shuffle_epi8(table_of(0x404040403f3f3f00, (int64_t)0xc0c0c0c0bfbfbf80), nibbles);
    const __m256i l = _mm256_shuffle_epi8(table_of((int64_t)0xc0804000c0800000, (int64_t)0xc0804000c0800000), nibbles);
    return (bytes2){.low = _mm256_unpacklo_epi8(l, h), .high = _mm256_unpackhi_epi8(l, h)};
}

/* A unit of e2m1 codes times mr rows, one half after the other: a half's words and its sums fit into
 * registers, and rows are read again rather than kept from half to half. */
QN_INLINE void fp4_dot(const int mr, vs *sums, const char *unit, const char *a, int64_t a_stride)
{
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const char *row = a;
        __asm__("" : "+r"(row));
        const __m256i x = half_at(unit, h);
        const bytes2 words[2] = {from_e2m1(x, 0), from_e2m1(x, 1)};
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            const bytes2 of = words[k / 2 % 2];
            const __m256i word = k % 2 ? of.high : of.low;
            const __m256 w = _mm256_castsi256_ps(k < 4 ? low_of_pair(word) : high_of_pair(word));
#pragma GCC unroll 8
            for (int r = 0; r < mr; r++) {
                const float *const v = (const float *)(const void *)(row + r * a_stride + 4 * k);
                sums[r].v[h] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(v), sums[r].v[h]);
            }
        }
    }
}

QN_INLINE vw vw_unpack(const int code, const char *unit, const int p)
{
    vw w;
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        if (code == QN_PANEL_BF16) {
            const __m256i x = half_at(unit + p * QN_PANEL_LINE, h);
            w.even.v[h] = low_of_pair(x);
            w.odd.v[h] = high_of_pair(x);
        } else if (code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4) {
            const bytes2 b = from_e2m1(half_at(unit, h), p);
            w.even.v[h] = p < 2 ? low_of_pair(b.low) : high_of_pair(b.low);
            w.odd.v[h] = p < 2 ? low_of_pair(b.high) : high_of_pair(b.high);
        } else if (code == QN_PANEL_I8) {
            const __m256i x = half_at(unit + p / 2 * QN_PANEL_LINE, h);
            w.even.v[h] = w.odd.v[h] = _mm256_srai_epi16(p % 2 ? x : _mm256_slli_epi16(x, 8), 8);
        } else {
            const bytes2 b = from_f8(code, half_at(unit + p / 2 * QN_PANEL_LINE, h));
            const __m256i x = p % 2 ? _mm256_unpackhi_epi8(b.low, b.high) : _mm256_unpacklo_epi8(b.low, b.high);
            w.even.v[h] = low_of_pair(x);
            w.odd.v[h] = high_of_pair(x);
        }
    }
    return w;
}

QN_INLINE void vw_store(const int code, char *p, vw w)
{
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        _mm256_storeu_si256((__m256i *)(void *)(p + 32 * h), w.even.v[h]);
        if (code == QN_PANEL_F32) {
            _mm256_storeu_si256((__m256i *)(void *)(p + QN_PANEL_LINE + 32 * h), w.odd.v[h]);
        }
    }
}

QN_INLINE vs vw_dot(const int code, vs sums, vw w, const char *a)
{
    sums = vl_dot(code, sums, w.even, a);
    return code < QN_PANEL_I8 ? vl_dot(code, sums, w.odd, a + 4) : sums;
}

QN_INLINE void group_scales(const int code, const char *block, float *out)
{
    const char *const scales = block + 512;
    if (code == QN_PANEL_NVFP4) {
        const __m256i zero = _mm256_setzero_si256();
        for (int h = 0; h < 2; h++) {
            const bytes2 b = from_f8(QN_PANEL_E4M3, half_at(scales, h));
            const __m256i low = _mm256_unpacklo_epi8(b.low, b.high), high = _mm256_unpackhi_epi8(b.low, b.high);
            _mm256_storeu_ps(out + 8 * h, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, low)));
            _mm256_storeu_ps(out + 8 * h + 16, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, low)));
            _mm256_storeu_ps(out + 8 * h + 32, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, high)));
            _mm256_storeu_ps(out + 8 * h + 48, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, high)));
        }
    } else {
        for (int i = 0; i < 2 * QN_PANEL_COLS; i += 8) {
            const __m128i e = _mm_loadl_epi64((const __m128i *)(const void *)(scales + i));
            const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(e), 23);
            _mm256_storeu_ps(out + i, _mm256_castsi256_ps(bits));
        }
    }
}

#endif
