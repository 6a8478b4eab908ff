/* Ceiling loops of level avx512: arithmetic and memory. */
#include <immintrin.h>

#define QN_ISA avx512
#include "kernels/cpu/ceiling.h"

#define SETUP                                                      \
    __m512 x = _mm512_set1_ps(1.0001f), y = _mm512_set1_ps(1e-9f); \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(fp32, __m512, _mm512_setzero_ps(), SETUP, _mm512_fmadd_ps(x, y, acc[i]), 32.0, _mm512_cvtss_f32(acc[i]));

/* For the compiler x is another one every time, or it would multiply once. */
static inline __m512i dot(__m512i sum, __m512i *x, __m512i y)
{
    __asm__ volatile("" : "+x"(*x));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(*x, y));
}

#define SETUP_I                                                 \
    __m512i x = _mm512_set1_epi16(3), y = _mm512_set1_epi16(5); \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(int8, __m512i, _mm512_setzero_si512(), SETUP_I, dot(acc[i], &x, y), 64.0,
        _mm512_cvtss_f32(_mm512_castsi512_ps(acc[i])));

#define VECTOR __m512i
#define LOAD(p) _mm512_load_si512(p)
#define XOR(a, b) _mm512_xor_si512(a, b)
#define STORE(p, v) _mm512_store_si512(p, v)
#define STORE_PAST(p, v) _mm512_stream_si512((__m512i *)(void *)(p), v)
#define FENCE() _mm_sfence()
#define PREFETCH(p) _mm_prefetch(p, _MM_HINT_T0)
#include "kernels/cpu/ceiling_stream.h"
