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
#define PAIR_I8 1
#define I8_MR 4
#define I8_NR 1
#define PAIR_PARTS 2
#define PAIR_MR 6
#define PAIR_NR 4
#define PAIR_MR_MANY 6
#define PAIR_NR_MANY 1
#define PAIR_BLOCKS 4
#define PAIR_FEW 4
#define PAIR_KEEP 4
#define LOW_E4M3 (QN_PANEL_CODES + 1)
#define LOW_E5M2 (QN_PANEL_CODES + 2)
#define IS_LOW(code) ((code) == LOW_E4M3 || (code) == LOW_E5M2)
#define LOW_BY(code) ((code) == LOW_E4M3 ? 0x1p-112f : 0x1p-96f)
#define LOW_ROWS(code) ((code) == QN_PANEL_E4M3 ? 1 : PAIR_FEW)
#define LOW_ALLOWED() (!(_mm_getcsr() & 0x8040)) /* this thread flushes no subnormals */
#define IS_F8(code) ((code) == QN_PANEL_E4M3 || (code) == QN_PANEL_E5M2 || IS_LOW(code))
#define FEW_NR(code, rows) ((rows) <= (IS_F8(code) ? 1 : 2) ? 4 : 2)
#define PARTS_BESIDE(code, rows, nr) ((nr) == 1 || (rows) == 1 ? (nr) : 2)
#define ARE_FEW(code, rows)                                                                                            \
    ((rows) <= 4 || ((code) == QN_PANEL_F32 && ((rows) == 7 || (rows) == 8)) || ((code) == QN_PANEL_I8 && (rows) <= 16))
#define PAIR_AHEAD
#define AHEAD_MR 4
#define IS_AHEAD(code, rows) ((code) != QN_PANEL_F32 && (rows) >= AHEAD_FROM(code) && (rows) <= AHEAD_ROWS)
#define AHEAD_FROM(code) ((code) == QN_PANEL_E4M3 ? 3 : 6)
#define FP4_ELSEWHERE /* fp4_avx2.c */
#define FEW_GROUP 1
#define FEW_CHUNK(code) ((code) == QN_PANEL_I8 ? 16 : 4)

typedef __m256 vs;
typedef __m256i vl;
typedef struct vw {
    vl even, odd; /* int8: even alone */
} vw;

QN_INLINE vs vs_zero(void)
{
    return _mm256_setzero_ps();
}

QN_INLINE vs vs_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

QN_INLINE void vs_store(float *p, vs a)
{
    _mm256_storeu_ps(p, a);
}

QN_INLINE vs vs_set(float x)
{
    return _mm256_set1_ps(x);
}

QN_INLINE vs vs_fma(vs a, vs b, vs c)
{
    return _mm256_fmadd_ps(a, b, c);
}

QN_INLINE vl vl_load(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

QN_INLINE vs vl_dot(const int code, vs sums, vl w, const char *a)
{
    if (code < QN_PANEL_I8 || IS_LOW(code)) {
        float x;
        memcpy(&x, a, sizeof x);
        return _mm256_fmadd_ps(_mm256_castsi256_ps(w), _mm256_set1_ps(x), sums);
    }
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    const __m256i products = _mm256_madd_epi16(w, _mm256_set1_epi32(pair));
    __m256i all = _mm256_add_epi32(_mm256_castps_si256(sums), products);
    __asm__("" : "+x"(all)); /* in this order: others keep more than there are registers */
    return _mm256_castsi256_ps(all);
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

QN_INLINE vw vw_unpack(const int code, const char *unit, const int p)
{
    if (code == QN_PANEL_BF16) {
        const __m256i x = vl_load(unit + p * QN_PANEL_LINE);
        return (vw){low_of_pair(x), high_of_pair(x)};
    }
    const __m256i x = vl_load(unit + p / 2 * QN_PANEL_LINE);
    if (IS_LOW(code)) { /* bits to the places that f32 has for them; the bias of the exponent stays */
        const __m256i zero = _mm256_setzero_si256();
        const __m256i pair = p % 2 ? _mm256_unpackhi_epi8(zero, x) : _mm256_unpacklo_epi8(zero, x);
        const __m256i down = _mm256_srai_epi16(pair, code == LOW_E4M3 ? 4 : 3);
        const __m256i kept = _mm256_set1_epi32((int)(code == LOW_E4M3 ? 0x87f00000 : 0x8fe00000));
        return (vw){_mm256_and_si256(low_of_pair(down), kept), _mm256_and_si256(down, kept)};
    }
    if (code == QN_PANEL_I8) {
        const __m256i pair = _mm256_srai_epi16(p % 2 ? x : _mm256_slli_epi16(x, 8), 8);
        return (vw){pair, pair};
    }
    const bytes2 b = from_f8(code, x);
    const __m256i pair = p % 2 ? _mm256_unpackhi_epi8(b.low, b.high) : _mm256_unpacklo_epi8(b.low, b.high);
    return (vw){low_of_pair(pair), high_of_pair(pair)};
}

QN_INLINE void vw_store(const int code, char *p, vw w)
{
    _mm256_storeu_si256((__m256i *)(void *)p, w.even);
    if (code == QN_PANEL_F32) {
        _mm256_storeu_si256((__m256i *)(void *)(p + QN_PANEL_LINE), w.odd);
    }
}

QN_INLINE vl vw_line(vw w, const int s)
{
    return s ? w.odd : w.even;
}

/* Weights of e4m3 are staged as f16, which a load turns to f32, and which they take fewer operations to than to f32;
 * others as f32. */
QN_INLINE int64_t staged_bytes(const int code)
{
    return code == QN_PANEL_E4M3 ? 16 : 32;
}

QN_INLINE vl vl_staged(const int code, const char *p)
{
    if (code == QN_PANEL_E4M3) {
        return _mm256_castps_si256(_mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)p)));
    }
    return vl_load(p);
}

/* Bytes that lie together in 32-bit lanes, four of a column, those of the same place side by side: places 0 and 1 of
 * eight columns in the lower half, 2 and 3 in the upper one. */
QN_INLINE __m256i by_place(__m256i x, __m256i order)
{
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(x, order), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Two vectors of f16, value / 256, subnormal ones too, from codes as their upper bytes: all but the sign goes one bit
 * down. Of places 0 and 2, and of 1 and 3. */
QN_INLINE void stage_bytes(__m256i x, char *even, char *odd)
{
    const __m256i zero = _mm256_setzero_si256(), kept = _mm256_set1_epi16((short)0xbfff);
    const __m256i a = _mm256_unpacklo_epi8(zero, x), b = _mm256_unpackhi_epi8(zero, x);
    _mm256_store_si256((__m256i *)(void *)even, _mm256_and_si256(_mm256_srai_epi16(a, 1), kept));
    _mm256_store_si256((__m256i *)(void *)odd, _mm256_and_si256(_mm256_srai_epi16(b, 1), kept));
}

QN_INLINE void stage_part(const int code, const char *unit, char *to)
{
    if (code == QN_PANEL_E4M3) {
        const __m256i order = table_of(0x0e0c0a0806040200, 0x0f0d0b0907050301);
        stage_bytes(by_place(vl_load(unit), order), to, to + 32);
        stage_bytes(by_place(vl_load(unit + QN_PANEL_LINE), order), to + 64, to + 96);
        return;
    }
    _Pragma("GCC unroll 4") for (int p = 0; p < 4; p++)
    {
        const vw w = vw_unpack(code, unit, p);
        _mm256_store_si256((__m256i *)(void *)(to + p * 64), w.even);
        _mm256_store_si256((__m256i *)(void *)(to + p * 64 + 32), w.odd);
    }
}

#endif
