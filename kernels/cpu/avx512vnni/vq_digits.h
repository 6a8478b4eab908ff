/* Rows of x as digits and sums of digits as floats (kernels/common/vq.h, "Tiles"):
 * what the integer kernels of gptvq and of quip_e8p share. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_DIGITS_H
#define QN_KERNELS_AVX512VNNI_VQ_DIGITS_H

#include <immintrin.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

/* The sums of a tile's three digits of sixteen rows of w, to the running sums. */
QN_INLINE void add_tile(float *sums, const __m512i s[QN_VQ_PLANES], const int32_t *offsets, float scale)
{
    const __m512 low = _mm512_cvtepi32_ps(_mm512_add_epi32(s[0], _mm512_set1_epi32(offsets[0])));
    const __m512 middle = _mm512_cvtepi32_ps(_mm512_add_epi32(s[1], _mm512_set1_epi32(offsets[1])));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_add_epi32(s[2], _mm512_set1_epi32(offsets[2])));
    const __m512 all =
        _mm512_fmadd_ps(high, _mm512_set1_ps(65536.0f), _mm512_fmadd_ps(middle, _mm512_set1_ps(256.0f), low));
    _mm512_store_ps(sums, _mm512_fmadd_ps(all, _mm512_set1_ps(scale), _mm512_load_ps(sums)));
}

/* Digits of 256 elements, each sixteen of them in the given order; offsets take out the bias of unsigned weights. */
QN_INLINE int digits_of(const float *x, __m512i order, int32_t bias, int8_t *planes, float *scale, int32_t offsets[4])
{
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < QN_VQ_TILE_K; i += 16) {
        top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_loadu_si512(x + i), clear));
    }
    const int32_t most = _mm512_reduce_max_epi32(top), exponent = most >> 23;
    offsets[0] = offsets[1] = offsets[2] = offsets[3] = 0;
    if (most == 0 || exponent < 127 - 80 || exponent > 127 + 80) {
        memset(planes, 0, QN_VQ_PLANES * QN_VQ_TILE_K);
        *scale = 0.0f;
        return most != 0;
    }
    /* 2^e <= most < 2^(e + 1): times 2^(21 - e) */
    const int32_t up = (127 + 21 - (exponent - 127)) << 23, down = (127 - 21 + (exponent - 127)) << 23;
    float factor;
    memcpy(&factor, &up, sizeof factor);
    memcpy(scale, &down, sizeof *scale);
    __m512i sums[QN_VQ_PLANES];
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        sums[p] = _mm512_setzero_si512();
    }
    for (int i = 0; i < QN_VQ_TILE_K; i += 16) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(factor));
        __m512i left = _mm512_permutexvar_epi32(order, _mm512_cvtps_epi32(v));
        for (int p = 0; p < QN_VQ_PLANES; p++) {
            const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(left, 24), 24);
            left = _mm512_srai_epi32(_mm512_sub_epi32(left, digit), 8);
            sums[p] = _mm512_add_epi32(sums[p], digit);
            _mm_storeu_si128((__m128i *)(planes + p * QN_VQ_TILE_K + i), _mm512_cvtepi32_epi8(digit));
        }
    }
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        offsets[p] = -bias * _mm512_reduce_add_epi32(sums[p]);
    }
    return 0;
}

#endif
