/* Vectors of level avx512vnni for 4-bit floats times rows of integers (kernels/cpu/fp4_integers.h). */
#ifndef QN_KERNELS_AVX512VNNI_FP4_H
#define QN_KERNELS_AVX512VNNI_FP4_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx512vnni
#include "kernels/cpu/name.h"

#define LANES 16
#define MR 6
#define MOST_GROUPS 4 /* of a block */
#define SCALES_AT 512 /* in it */

typedef __m512i vb;
typedef __m512i vd;
typedef __m512 vf;

QN_INLINE vb vb_load(const char *p)
{
    return _mm512_loadu_si512(p);
}

QN_INLINE void vb_store(char *p, vb v)
{
    _mm512_store_si512(p, v);
}

QN_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

QN_INLINE vf vf_load(const float *p)
{
    return _mm512_load_ps(p);
}

QN_INLINE void vf_store(float *p, vf v)
{
    _mm512_store_ps(p, v);
}

QN_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

QN_INLINE vf vf_scaled(vf a, const float *x)
{
    return _mm512_mul_ps(a, _mm512_set1_ps(*x));
}

QN_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

/* The two bytes of bf16 numbers, a 256th of what e4m3 codes without their sign stand for. */
#define EIGHT(x) x, x, x, x, x, x, x, x
#define RISING(x) x, (x) + 0x10, (x) + 0x20, (x) + 0x30, (x) + 0x40, (x) + 0x50, (x) + 0x60, (x) + 0x70
static const _Alignas(64) uint8_t high_bytes[128] = {
    0,           0x37,        0x37,        0x37,        0x38,        0x38,        0x38,        0x38,
    EIGHT(0x38), EIGHT(0x39), EIGHT(0x39), EIGHT(0x3a), EIGHT(0x3a), EIGHT(0x3b), EIGHT(0x3b), EIGHT(0x3c),
    EIGHT(0x3c), EIGHT(0x3d), EIGHT(0x3d), EIGHT(0x3e), EIGHT(0x3e), EIGHT(0x3f), EIGHT(0x3f)};
/* clang-format off */
static const _Alignas(64) uint8_t low_bytes[128] = {
    0,         0,            0x80,      0xc0,         0,         0x20,         0x40,      0x60, RISING(0x80),
    RISING(0), RISING(0x80), RISING(0), RISING(0x80), RISING(0), RISING(0x80), RISING(0), RISING(0x80),
    RISING(0), RISING(0x80), RISING(0), RISING(0x80), RISING(0), RISING(0x80)};
/* clang-format on */
#undef EIGHT
#undef RISING

/* Scales of a block, [group][column]. */
QN_INLINE void block_scales(const int code, const char *block, float scale[MOST_GROUPS][QN_PANEL_COLS])
{
    const char *const from = block + SCALES_AT;
    if (code == QN_PANEL_MXFP4) {
        for (int g = 0; g < 2; g++) {
            const __m128i e = _mm_loadu_si128((const __m128i *)(const void *)(from + g * QN_PANEL_COLS));
            _mm512_store_si512(scale[g], _mm512_slli_epi32(_mm512_cvtepu8_epi32(e), 23));
        }
        return;
    }
    const __m512i x = _mm512_loadu_si512(from), zero = _mm512_setzero_si512();
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(low_bytes), x, _mm512_load_si512(low_bytes + 64));
    const __m512i size = _mm512_permutex2var_epi8(_mm512_load_si512(high_bytes), x, _mm512_load_si512(high_bytes + 64));
    const __m512i high = _mm512_ternarylogic_epi32(size, x, _mm512_set1_epi8((char)0x80), 0xf8); /* a | (b & c) */
    const __m512i first = _mm512_unpacklo_epi8(low, high), second = _mm512_unpackhi_epi8(low, high);
    _mm512_store_si512(scale[0], _mm512_unpacklo_epi16(zero, first));
    _mm512_store_si512(scale[1], _mm512_unpackhi_epi16(zero, first));
    _mm512_store_si512(scale[2], _mm512_unpacklo_epi16(zero, second));
    _mm512_store_si512(scale[3], _mm512_unpackhi_epi16(zero, second));
}

#endif
