/* Pairs of AVX-512 F, BW, DQ, VL (kernels/cpu/panel.h): floats as two f32 vectors, int8 as pairs of int16. */
#ifndef QN_KERNELS_AVX512_PAIRS_H
#define QN_KERNELS_AVX512_PAIRS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

#define QN_ISA avx512
#define PAIRS_F QN_PANEL_F32
#define PAIR_I8 1
#define I8_MR 6
#define I8_NR 4
#define PAIR_PARTS 1
#define PAIR_MR 8
#define PAIR_NR 4
#define PAIR_MR_MANY 6
#define PAIR_NR_MANY 4
#define PAIR_BLOCKS 2
#define PAIR_FEW 8
#define PAIR_KEEP 12
#define PAIR_NR_GROUPS 2
#define UNPACKS_NEXT
#define FEW_NR(code, rows) ((rows) <= 2 ? 4 : 2)
#define MOST_FEW(code) ((code) == QN_PANEL_BF16 ? 32 : (groups_of(code) ? 16 : 8))
#define ARE_FEW(code, rows) ((code) == QN_PANEL_I8 || (rows) <= MOST_FEW(code))
#define PARTS_BESIDE(code, rows, nr) (nr)
#define FEW_GROUP 2
#define FEW_CHUNK(code) 8
#define FAR_BYTES(code, rows)                                                                                          \
    ((rows) > 2 ? 0 : (code) == QN_PANEL_BF16 ? 16384 : (code) == QN_PANEL_E4M3 || (code) == QN_PANEL_E5M2 ? 8192 : 0)

typedef __m512 vs;
typedef __m512i vl;
typedef struct vw {
    vl even, odd; /* int8: even alone */
} vw;

QN_INLINE vs vs_zero(void)
{
    return _mm512_setzero_ps();
}

QN_INLINE vs vs_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

QN_INLINE void vs_store(float *p, vs a)
{
    _mm512_storeu_ps(p, a);
}

QN_INLINE vs vs_set(float x)
{
    return _mm512_set1_ps(x);
}

QN_INLINE vs vs_fma(vs a, vs b, vs c)
{
    return _mm512_fmadd_ps(a, b, c);
}

QN_INLINE vl vl_load(const char *p)
{
    return _mm512_loadu_si512(p);
}

QN_INLINE vs vl_dot(const int code, vs sums, vl w, const char *a)
{
    if (code < QN_PANEL_I8) {
        float x;
        memcpy(&x, a, sizeof x);
        return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_set1_ps(x), sums);
    }
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    const __m512i products = _mm512_madd_epi16(w, _mm512_set1_epi32(pair));
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sums), products));
}

QN_INLINE vw from_bf16(__m512i x)
{
    return (vw){_mm512_slli_epi32(x, 16), _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))};
}

/* The two bytes of bf16 numbers. */
typedef struct bytes2 {
    __m512i high, low;
} bytes2;

/* Bytes of e4m3 as value / 256, of e5m2 as value / 65536. An exponent field of 0, zero and subnormals, would
 * become another number: there both bytes are corrected by tables of the mantissa, if *small, to which this line's
 * such codes are added, has any. */
QN_INLINE bytes2 from_f8(const int code, __m512i x, uint64_t *small)
{
    const int e4m3 = code != QN_PANEL_E5M2;
    const __m512i high_fix = _mm512_set1_epi64(e4m3 ? 0x000000000f0f0f38 : 0x0000000000001f30);
    const __m512i low_fix = _mm512_set1_epi64(e4m3 ? 0x10207040f0a01000 : 0x000000002040a000);
    const __mmask64 here = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(e4m3 ? 0x78 : 0x7c));
    const __m512i mantissa = _mm512_and_si512(x, _mm512_set1_epi8(e4m3 ? 7 : 3));
    /* exponents lose their lowest bit to the low byte; (a & b) | c */
    const __m512i shifted = e4m3 ? _mm512_srli_epi16(x, 4) : _mm512_srli_epi16(x, 3);
    const __m512i bits = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi8(e4m3 ? 0x07 : 0x0f),
                                                   _mm512_set1_epi8(e4m3 ? 0x38 : 0x30), 0xea);
    const __m512i high = _mm512_ternarylogic_epi32(x, _mm512_set1_epi8((char)0x80), bits, 0xea);
    const __m512i low = e4m3 ? _mm512_and_si512(_mm512_slli_epi16(x, 4), _mm512_set1_epi8((char)0xf0))
                             : _mm512_and_si512(_mm512_slli_epi16(x, 5), _mm512_set1_epi8((char)0xe0));
    *small |= here;
    if (__builtin_expect(*small != 0, 0)) {
        return (bytes2){_mm512_xor_si512(high, _mm512_maskz_shuffle_epi8(here, high_fix, mantissa)),
                        _mm512_xor_si512(low, _mm512_maskz_shuffle_epi8(here, low_fix, mantissa))};
    }
    return (bytes2){high, low};
}

/* e2m1 codes in the low four bits of 32-bit lanes; other bits are ignored */
QN_INLINE __m512i from_e2m1(__m512i nibbles)
{
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_castps_si512(_mm512_permutexvar_ps(nibbles, table));
}

QN_INLINE vw f8_pair(bytes2 b, const int p)
{
    return from_bf16(p % 2 ? _mm512_unpackhi_epi8(b.low, b.high) : _mm512_unpacklo_epi8(b.low, b.high));
}

QN_INLINE vw vw_unpack(const int code, const char *unit, const int p)
{
    if (code == QN_PANEL_BF16) {
        return from_bf16(vl_load(unit + p * QN_PANEL_LINE));
    }
    if (code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4) {
        const __m512i x = vl_load(unit);
        switch (p) {
        case 0: return (vw){from_e2m1(x), from_e2m1(_mm512_srli_epi32(x, 16))};
        case 1: return (vw){from_e2m1(_mm512_srli_epi32(x, 4)), from_e2m1(_mm512_srli_epi32(x, 20))};
        case 2: return (vw){from_e2m1(_mm512_srli_epi32(x, 8)), from_e2m1(_mm512_srli_epi32(x, 24))};
        default: return (vw){from_e2m1(_mm512_srli_epi32(x, 12)), from_e2m1(_mm512_srli_epi32(x, 28))};
        }
    }
    if (code == QN_PANEL_I8) {
        const __m512i x = vl_load(unit + p / 2 * QN_PANEL_LINE);
        const __m512i pair = _mm512_srai_epi16(p % 2 ? x : _mm512_slli_epi16(x, 8), 8);
        return (vw){pair, pair};
    }
    uint64_t any = 1;
    return f8_pair(from_f8(code, vl_load(unit + p / 2 * QN_PANEL_LINE), &any), p);
}

/* Most lines of fp8 have no code to correct. Behind one that has all of the block are corrected, of all parts where a
 * row or two hide little else: a processor that guesses wrong for each loses more. */
typedef struct vw_past {
    uint64_t small[PAIR_NR];
    bytes2 line[PAIR_NR]; /* of a part, two pairs */
} vw_past;

QN_INLINE vw_past vw_past_none(void)
{
    return (vw_past){.small = {0}};
}

QN_INLINE vw vw_unpack_next(const int code, const char *unit, const int p, const int rows, const int n, vw_past *past)
{
    if (code != QN_PANEL_E4M3 && code != QN_PANEL_E5M2) {
        return vw_unpack(code, unit, p);
    }
    if (p % 2 == 0) {
        past->line[n] = from_f8(code, vl_load(unit + p / 2 * QN_PANEL_LINE), &past->small[rows > 2 ? n : 0]);
    }
    return f8_pair(past->line[n], p);
}

QN_INLINE void vw_store(const int code, char *p, vw w)
{
    _mm512_storeu_si512(p, w.even);
    if (code == QN_PANEL_F32) {
        _mm512_storeu_si512(p + QN_PANEL_LINE, w.odd);
    }
}

QN_INLINE vl vw_line(vw w, const int s)
{
    return s ? w.odd : w.even;
}

QN_INLINE void group_scales(const int code, const char *block, const int part, float *out)
{
    (void)part;
    const char *const scales = block + 512;
    if (code == QN_PANEL_NVFP4) {
        const __m512i zero = _mm512_setzero_si512();
        uint64_t any = 1;
        const bytes2 b = from_f8(QN_PANEL_E4M3, vl_load(scales), &any);
        const __m512i low = _mm512_unpacklo_epi8(b.low, b.high), high = _mm512_unpackhi_epi8(b.low, b.high);
        _mm512_storeu_si512(out, _mm512_unpacklo_epi16(zero, low));
        _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi16(zero, low));
        _mm512_storeu_si512(out + 32, _mm512_unpacklo_epi16(zero, high));
        _mm512_storeu_si512(out + 48, _mm512_unpackhi_epi16(zero, high));
    } else {
        for (int g = 0; g < 2; g++) {
            const __m128i e = _mm_loadu_si128((const __m128i *)(const void *)(scales + g * QN_PANEL_COLS));
            _mm512_storeu_si512(out + g * QN_PANEL_COLS, _mm512_slli_epi32(_mm512_cvtepu8_epi32(e), 23));
        }
    }
}

#endif
