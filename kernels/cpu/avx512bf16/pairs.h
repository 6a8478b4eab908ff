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
#define PAIR_I8 0
#define PAIR_PARTS 1
#define PAIR_MR 8
#define PAIR_NR 4
#define PAIR_MR_MANY 6
#define PAIR_NR_MANY 4
#define PAIR_NR_GROUPS 2
#define PAIR_BLOCKS 4
#define PAIR_FEW 8
#define PAIR_KEEP 12
#define FEW_NR(code, rows) ((rows) <= 6 || (code) <= QN_PANEL_E5M2 ? 2 : 1)
#define ARE_FEW(code, rows) ((rows) <= ((code) == QN_PANEL_BF16 ? 9 : 16))
#define PARTS_BESIDE(code, rows, nr) (nr)
#define IS_F8(code) ((code) == QN_PANEL_E4M3 || (code) == QN_PANEL_E5M2)
#define CHAINS(code, rows) ((rows) <= 2 && IS_F8(code) ? 2 : 1)
#define AHEAD_BYTES(code) (IS_F8(code) ? 4096 : ((code) == QN_PANEL_BF16 ? 0 : 8192))
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

/* bf16 bits of a magnitude: e4m3 / 256, e5m2 / 65536. The first codes are zero and subnormals. */
#define E4M3_BITS(c)                                                                                                   \
    ((c) >= 8 ? 0x3800 + ((c) << 4) : (c) >= 4 ? 0x3780 + ((c) << 5) : (c) >= 2 ? 0x3700 + ((c) << 6) : (c)*0x3700)
#define E5M2_BITS(c) ((c) >= 4 ? 0x3000 + ((c) << 5) : ((c) >= 2 ? 0x2f80 + ((c) << 6) : (c)*0x2f80))

#define BYTES_4(shift, bits, c)                                                                                        \
    (bits(c) >> (shift)) & 0xff, (bits((c) + 1) >> (shift)) & 0xff, (bits((c) + 2) >> (shift)) & 0xff,                 \
        (bits((c) + 3) >> (shift)) & 0xff
#define BYTES_16(shift, bits, c)                                                                                       \
    BYTES_4(shift, bits, c), BYTES_4(shift, bits, (c) + 4), BYTES_4(shift, bits, (c) + 8),                             \
        BYTES_4(shift, bits, (c) + 12)
#define BYTES_64(shift, bits, c)                                                                                       \
    {                                                                                                                  \
        BYTES_16(shift, bits, c), BYTES_16(shift, bits, (c) + 16), BYTES_16(shift, bits, (c) + 32),                    \
            BYTES_16(shift, bits, (c) + 48)                                                                            \
    }
#define TABLES(bits)                                                                                                   \
    {                                                                                                                  \
        BYTES_64(8, bits, 0), BYTES_64(8, bits, 64), BYTES_64(0, bits, 0), BYTES_64(0, bits, 64)                       \
    }

_Alignas(64) static const uint8_t e4m3_tables[4][64] = TABLES(E4M3_BITS);
_Alignas(64) static const uint8_t e5m2_tables[4][64] = TABLES(E5M2_BITS);

/* Bytes of bf16 numbers. */
typedef struct bytes2 {
    __m512i high, low;
} bytes2;

/* Lookups leave the ports of dot products alone. They pass over the sign. */
QN_INLINE bytes2 from_f8(const int code, __m512i x)
{
    const __m512i *const t = (const void *)(code == QN_PANEL_E5M2 ? e5m2_tables : e4m3_tables);
    const __m512i high = _mm512_permutex2var_epi8(t[0], x, t[1]);
    return (bytes2){_mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8((char)0x80), 0xf8), /* a | (b & c) */
                    _mm512_permutex2var_epi8(t[2], x, t[3])};
}

/* bf16 of e2m1 codes; words are looked up by their low five bits */
QN_INLINE vw from_e2m1(__m512i nibbles)
{
    const __m512i table = _mm512_set_epi64((int64_t)0xc0c0c080c040c000, (int64_t)0xbfc0bf80bf008000, 0x40c0408040404000,
                                           0x3fc03f803f000000, (int64_t)0xc0c0c080c040c000, (int64_t)0xbfc0bf80bf008000,
                                           0x40c0408040404000, 0x3fc03f803f000000);
    return _mm512_permutexvar_epi16(nibbles, table);
}

QN_INLINE vw vw_unpack(const int code, const char *unit, const int p)
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
    const bytes2 b = from_f8(code, x);
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
        const bytes2 b = from_f8(QN_PANEL_E4M3, vl_load(scales));
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
