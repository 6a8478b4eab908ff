/* Vectors of AVX-512 F, BW, DQ, VL: sixteen floats. Same names as every vec.h. */
#ifndef QN_KERNELS_AVX512_VEC_H
#define QN_KERNELS_AVX512_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define QN_ISA avx512
#define VL 16
#define QN_MR 4
#define QN_NR 4

typedef __m512 vf;

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for integral n; infinity where x > 88.7, anything where x < -87.3 */
static inline vf vf_scale2(vf p, vf n, vf x)
{
    const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(88.722839f), _CMP_GT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(p, n), high, _mm512_set1_ps(__builtin_inff()));
}

static inline vf vf_keep(vf a, vf b, int64_t count)
{
    const unsigned lanes = count >= 16 ? 0xffffu : (count <= 0 ? 0u : (1u << count) - 1u);
    const __mmask16 mask = (__mmask16)lanes;
    return _mm512_mask_mov_ps(b, mask, a);
}

static inline vf vf_zero_below(vf a, vf x, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}

static inline float vf_sum(vf a)
{
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float vf_highest(vf a)
{
    return _mm512_reduce_max_ps(a);
}

static inline vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vf vf_from_bf16(const void *p)
{
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* An e4m3 code shifted left by 7 is an f16 with 2^-8 of its value, subnormals
 * too; the sign fills bits 15 and 14 on the way and bit 14 is cleared. */
static inline vf vf_from_e4m3(const uint8_t *p)
{
    const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i h = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16((short)0xbfff));
    const __m256i low = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(low, _mm256_set1_epi16(0x7f));
    const __m256i fixed = _mm256_mask_mov_epi16(h, nan, _mm256_or_si256(h, _mm256_set1_epi16(0x7e00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(fixed), _mm512_set1_ps(256.0f));
}

static inline vf vf_from_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vf vf_from_e2m1(const uint8_t *p)
{
    const __m128i w = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m512i i = _mm512_cvtepu8_epi32(_mm_or_si128(w, _mm_slli_epi16(w, 4)));
    const __m512 lut = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(i, lut);
}

static inline vf vf_from_nibbles(const uint8_t *p, int shift)
{
    const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m512i n = _mm512_and_si512(_mm512_srli_epi32(x, (unsigned)shift), _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(n);
}

static inline float f16_value(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

#endif
