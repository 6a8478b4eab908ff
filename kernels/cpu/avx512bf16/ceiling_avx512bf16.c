/* Ceiling loop of level avx512bf16. */
#include <immintrin.h>

#define QN_ISA avx512bf16
#include "kernels/cpu/ceiling.h"

#define SETUP_B                                                                                        \
    __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f)), y = x;               \
    __asm__ volatile("" : "+x"(x), "+x"(y))

CEILING(bf16, __m512, _mm512_setzero_ps(), SETUP_B, _mm512_dpbf16_ps(acc[i], x, y), 64.0, _mm512_cvtss_f32(acc[i]));
