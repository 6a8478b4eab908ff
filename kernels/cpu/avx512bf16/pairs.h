/* Pairs of bf16 in 32-bit lanes, for vdpbf16ps (kernels/cpu/panel.h). */
#ifndef QN_KERNELS_AVX512BF16_PAIRS_H
#define QN_KERNELS_AVX512BF16_PAIRS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

#define QN_ISA avx512bf16
#define PAIRS_F QN_PANEL_BF16
#define PAIR_TERMS 1
#define PAIR_I8 0
#define PAIR_PARTS 1
#define PAIR_MR 8
#define PAIR_NR 4
#define PAIR_MR_MANY 6
#define PAIR_NR_MANY 4
#define PAIR_BLOCKS 4
#define PAIR_FEW 8
#define PAIR_KEEP 12
#define FEW_NR(code, rows) ((rows) == 2 ? 4 : ((rows) <= 6 || (code) <= QN_PANEL_E5M2 ? 2 : 1))
#define ARE_FEW(code, rows) ((rows) <= ((code) == QN_PANEL_BF16 ? 9 : 16))
#define PARTS_BESIDE(code, rows, nr) (nr)
#define FEW_GROUP 2
#define FEW_CHUNK(code) 16

typedef __m512 vs;
typedef __m512i vl;
typedef vl vw;

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
    int32_t pair;
    (void)code;
    memcpy(&pair, a, sizeof pair);
    return _mm512_dpbf16_ps(sums, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
}

/* The two bytes of bf16 numbers. */
typedef struct bytes2 {
    __m512i high, low;
} bytes2;

/* Bytes of e4m3 as value / 256, of e5m2 as value / 65536. An exponent field of 0, zero and subnormals, would
 * become another number: there both bytes are corrected by tables of the mantissa. */

/* The fewest operations, a third of them on the ports of the dot product: bits moved by constant matrices. */
QN_INLINE bytes2 from_f8_maps(const int code, __m512i x)
{
    const int e4m3 = code != QN_PANEL_E5M2;
    const __m512i high_map = _mm512_set1_epi64(e4m3 ? 0x1020400000000080 : 0x0810204000000080);
    const __m512i low_map = _mm512_set1_epi64(e4m3 ? 0x0000000001020408 : 0x0000000000010204);
    const __m512i high_fix = _mm512_set1_epi64(e4m3 ? 0x000000000f0f0f38 : 0x0000000000001f30);
    const __m512i low_fix = _mm512_set1_epi64(e4m3 ? 0x10207040f0a01000 : 0x000000002040a000);
    const __mmask64 small = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(e4m3 ? 0x78 : 0x7c));
    const __m512i high =
        e4m3 ? _mm512_gf2p8affine_epi64_epi8(x, high_map, 0x38) : _mm512_gf2p8affine_epi64_epi8(x, high_map, 0x30);
    const __m512i low = _mm512_gf2p8affine_epi64_epi8(x, low_map, 0);
    return (bytes2){_mm512_xor_si512(high, _mm512_maskz_permutexvar_epi8(small, x, high_fix)),
                    _mm512_xor_si512(low, _mm512_maskz_permutexvar_epi8(small, x, low_fix))};
}

/* Nothing on the ports that only dot products need. Codes beyond the corrections' select nothing of their tables,
 * since adding to them carries into bit 7. */
QN_INLINE bytes2 from_f8_beside_dots(const int code, __m512i x)
{
    const int e4m3 = code != QN_PANEL_E5M2;
    const __m512i high_fix = _mm512_set4_epi32(e4m3 ? 0 : 0x00001f30, e4m3 ? 0x0f0f0f38 : 0, 0, 0);
    const __m512i low_fix = _mm512_set4_epi32(e4m3 ? 0x10207040 : 0x2040a000, e4m3 ? (int)0xf0a01000 : 0, 0, 0);
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi8(0x7f));
    const __m512i fix = _mm512_add_epi8(magnitude, _mm512_set1_epi8(e4m3 ? 0x78 : 0x7c));
    __m512i high, left;
    if (e4m3) {
        /* sign and the exponent's upper bits; the permute does not look at what is above them but for two bits,
         * for which the table repeats itself */
        const __m512i table = _mm512_set4_epi32((int)0xbfbebdbc, (int)0xbbbab9b8, 0x3f3e3d3c, 0x3b3a3938);
        high = _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table);
        left = _mm512_slli_epi16(x, 4);
    } else {
        /* (a & b) | c */
        const __m512i bits =
            _mm512_ternarylogic_epi32(_mm512_srli_epi16(x, 3), _mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x30), 0xea);
        high = _mm512_ternarylogic_epi32(x, _mm512_set1_epi8((char)0x80), bits, 0xea);
        left = _mm512_slli_epi16(x, 5);
    }
    /* low: (a & b) ^ c */
    const __m512i kept = _mm512_set1_epi8((char)(e4m3 ? 0xf0 : 0xe0));
    return (bytes2){_mm512_xor_si512(high, _mm512_shuffle_epi8(high_fix, fix)),
                    _mm512_ternarylogic_epi32(left, kept, _mm512_shuffle_epi8(low_fix, fix), 0x6a)};
}

#define ROWS_OF_DOTS 4 /* from here on dot products are what time goes to */

/* bf16 of e2m1 codes; words are looked up by their low five bits */
QN_INLINE vw from_e2m1(__m512i nibbles)
{
    const __m512i table = _mm512_set_epi64((int64_t)0xc0c0c080c040c000, (int64_t)0xbfc0bf80bf008000, 0x40c0408040404000,
                                           0x3fc03f803f000000, (int64_t)0xc0c0c080c040c000, (int64_t)0xbfc0bf80bf008000,
                                           0x40c0408040404000, 0x3fc03f803f000000);
    return _mm512_permutexvar_epi16(nibbles, table);
}

QN_INLINE vw vw_unpack(const int code, const int rows, const char *unit, const int p)
{
    if (code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4) {
        const __m512i x = vl_load(unit);
        switch (p) {
        case 0: return from_e2m1(x);
        case 1: return from_e2m1(_mm512_srli_epi16(x, 4));
        case 2: return from_e2m1(_mm512_srli_epi16(x, 8));
        default: return from_e2m1(_mm512_srli_epi16(x, 12));
        }
    }
    const __m512i x = vl_load(unit + p / 2 * QN_PANEL_LINE);
    const bytes2 b = rows < ROWS_OF_DOTS ? from_f8_maps(code, x) : from_f8_beside_dots(code, x);
    return p % 2 ? _mm512_unpackhi_epi8(b.low, b.high) : _mm512_unpacklo_epi8(b.low, b.high);
}

QN_INLINE void vw_store(const int code, char *p, vw w)
{
    (void)code;
    _mm512_storeu_si512(p, w);
}

QN_INLINE vl vw_line(vw w, const int s)
{
    (void)s;
    return w;
}

QN_INLINE void group_scales(const int code, const char *block, const int part, float *out)
{
    (void)part;
    const char *const scales = block + 512;
    if (code == QN_PANEL_NVFP4) {
        const __m512i zero = _mm512_setzero_si512();
        const bytes2 b = from_f8_maps(QN_PANEL_E4M3, vl_load(scales));
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
