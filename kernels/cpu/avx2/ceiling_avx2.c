/* Ceiling loops of level avx2: arithmetic and memory. */
#include <immintrin.h>

#define QN_ISA avx2
#include "kernels/cpu/ceiling.h"

#define SETUP                                                   \
    __m256 x = _mm256_set1_ps(1.0001f), y = _mm256_set1_ps(1e-9f); \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(fp32, __m256, _mm256_setzero_ps(), SETUP, _mm256_fmadd_ps(x, y, acc[i]), 16.0, _mm256_cvtss_f32(acc[i]));

/* For the compiler x is another one every time, or it would multiply once. */
static inline __m256i dot(__m256i sum, __m256i *x, __m256i y)
{
    __asm__ volatile("" : "+x"(*x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(*x, y));
}

#define SETUP_I                                                 \
    __m256i x = _mm256_set1_epi16(3), y = _mm256_set1_epi16(5); \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(int8, __m256i, _mm256_setzero_si256(), SETUP_I, dot(acc[i], &x, y), 32.0,
        _mm256_cvtss_f32(_mm256_castsi256_ps(acc[i])));

#define VECTOR __m256i
#define LOAD(p) _mm256_load_si256((const __m256i *)(const void *)(p))
#define XOR(a, b) _mm256_xor_si256(a, b)
#define STORE(p, v) _mm256_store_si256((__m256i *)(void *)(p), v)
#define STORE_PAST(p, v) _mm256_stream_si256((__m256i *)(void *)(p), v)
#define FENCE() _mm_sfence()
#define PREFETCH(p) _mm_prefetch(p, _MM_HINT_T0)
#include "kernels/cpu/ceiling_stream.h"
