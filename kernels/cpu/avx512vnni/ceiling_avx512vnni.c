/* Ceiling loops of level avx512vnni. */
#include <immintrin.h>

#define QN_ISA avx512vnni
#include "kernels/cpu/ceiling.h"

#define SETUP_I                                               \
    __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5); \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(int8, __m512i, _mm512_setzero_si512(), SETUP_I, _mm512_dpbusd_epi32(acc[i], x, y), 128.0,
        _mm512_cvtss_f32(_mm512_castsi512_ps(acc[i])));
CEILING(int16, __m512i, _mm512_setzero_si512(), SETUP_I, _mm512_dpwssd_epi32(acc[i], x, y), 64.0,
        _mm512_cvtss_f32(_mm512_castsi512_ps(acc[i])));
