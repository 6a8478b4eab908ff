/* Sums of groups as vectors of sixteen columns (kernels/cpu/panel_groups.h): what levels avx512vnni and amx share. */
#ifndef QN_KERNELS_AVX512VNNI_GROUP_FLOATS_H
#define QN_KERNELS_AVX512VNNI_GROUP_FLOATS_H

#include <immintrin.h>

#include "kernels/cpu/name.h"

typedef __m512i vg;
typedef __m512 vgf;

QN_INLINE vgf vgf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

QN_INLINE void vgf_store(float *p, vgf a)
{
    _mm512_storeu_ps(p, a);
}

QN_INLINE vgf vgf_set(float x)
{
    return _mm512_set1_ps(x);
}

QN_INLINE vgf vgf_mul(vgf a, vgf b)
{
    return _mm512_mul_ps(a, b);
}

QN_INLINE vgf vgf_fma(vgf a, vgf b, vgf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

QN_INLINE vgf vgf_fnma(vgf a, vgf b, vgf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

QN_INLINE vgf vgf_of(vg a)
{
    return _mm512_cvtepi32_ps(a);
}

QN_INLINE vgf vgf_of_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

QN_INLINE vgf vgf_of_u8(const char *p)
{
    return vgf_of(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

QN_INLINE vgf vgf_of_i8(const char *p)
{
    return vgf_of(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

#endif
