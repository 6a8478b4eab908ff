/* Vectors of AVX2 with FMA and F16C: eight floats. Same names as every vec.h. */
#ifndef QN_KERNELS_AVX2_VEC_H
#define QN_KERNELS_AVX2_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define QN_ISA avx2
#define VL 8
#define QN_MR 4
#define QN_NR 2

typedef __m256 vf;

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for integral n; infinity where x > 88.7, anything where x < -87.3 */
static inline vf vf_scale2(vf p, vf n, vf x)
{
    const __m256i half = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(126)), 23);
    const vf y = _mm256_mul_ps(_mm256_add_ps(p, p), _mm256_castsi256_ps(half));
    const vf high = _mm256_cmp_ps(x, _mm256_set1_ps(88.722839f), _CMP_GT_OQ);
    return _mm256_blendv_ps(y, _mm256_set1_ps(__builtin_inff()), high);
}

static inline vf vf_keep(vf a, vf b, int64_t count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t n = count < 0 ? 0 : (count > 8 ? 8 : (int32_t)count);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
}

static inline vf vf_zero_below(vf a, vf x, float limit)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}

static inline float vf_sum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float vf_highest(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline vf vf_from_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vf vf_from_bf16(const void *p)
{
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* An e4m3 code shifted left by 7 is an f16 with 2^-8 of its value, subnormals
 * too; the sign fills bits 15 and 14 on the way and bit 14 is cleared. */
static inline vf vf_from_e4m3(const uint8_t *p)
{
    const __m128i c = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m128i h = _mm_and_si128(_mm_slli_epi16(c, 7), _mm_set1_epi16((short)0xbfff));
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(c, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));
    const __m128i fixed = _mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(fixed), _mm256_set1_ps(256.0f));
}

static inline vf vf_from_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline vf vf_from_e2m1(const uint8_t *p)
{
    int32_t bytes;
    memcpy(&bytes, p, 4);
    const __m128i w = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(bytes));
    const __m256i i = _mm256_cvtepu8_epi32(_mm_or_si128(w, _mm_slli_epi16(w, 4)));
    const __m256 lut = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(i, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(lut, i), _mm256_castsi256_ps(sign));
}

static inline vf vf_from_nibbles(const uint8_t *p, int shift)
{
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    const __m256i n = _mm256_and_si256(_mm256_srli_epi32(x, shift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(n);
}

static inline float f16_value(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

#endif
