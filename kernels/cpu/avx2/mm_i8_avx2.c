/* Exact int8 tiles by vpmaddwd on int16 (kernels/cpu/mm_i8.h): |a b| <= 2^14, so a
 * pair of products fits an int32 with room. */
#include <immintrin.h>
#include <stdint.h>

#define QN_ISA avx2
#define QN_MR 4
#define QN_NR 2
#define VI_LANES 8
#define VI_STEP 16
#define VI_A_BYTES 2

typedef __m256i va;
typedef __m256i vb;
typedef __m256i vi;

static inline va va_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline vb vb_load(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

static inline vi vi_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void vi_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a);
}

static inline vi vi_dot(vi acc, va a, vb b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

static inline int32_t vi_sum(vi a)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return _mm_cvtsi128_si32(x);
}

#include "kernels/cpu/mm_i8.h"
