/* Exact int8 tiles by vpdpbusd (kernels/cpu/mm_i8.h). Its left side is unsigned:
 * A is kept as a + 128 and the runner takes 128 times B's column sums off. The
 * instruction wraps, so the sum is exact modulo 2^32. */
#include <immintrin.h>
#include <stdint.h>

#define QN_ISA avx512vnni
#define QN_MR 4
#define QN_NR 4
#define VI_LANES 16
#define VI_STEP 64
#define VI_A_BYTES 1

typedef __m512i va;
typedef __m512i vb;
typedef __m512i vi;

static inline va va_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

static inline vb vb_load(const int8_t *p)
{
    return _mm512_loadu_si512(p);
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
    return _mm512_dpbusd_epi32(acc, a, b);
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
