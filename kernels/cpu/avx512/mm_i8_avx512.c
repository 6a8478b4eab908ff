/* Exact int8 tiles by vpmaddwd on int16 (kernels/cpu/mm_i8.h). */
#include <immintrin.h>
#include <stdint.h>

#define QN_ISA avx512
#define QN_MR 4
#define QN_NR 4
#define VI_LANES 16
#define VI_STEP 32
#define VI_A_BYTES 2

typedef __m512i va;
typedef __m512i vb;
typedef __m512i vi;

static inline va va_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline vb vb_load(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline void vi_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

static inline vi vi_dot(vi acc, va a, vb b)
{
    return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
}

static inline int32_t vi_sum(vi a)
{
    const __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
    return _mm_cvtsi128_si32(x);
}

#include "kernels/cpu/mm_i8.h"
