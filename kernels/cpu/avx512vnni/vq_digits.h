/* Rows of x as digits and sums of digits as floats (kernels/common/vq.h, "Tiles"):
 * what the integer kernels of gptvq and of quip_e8p share. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_DIGITS_H
#define QN_KERNELS_AVX512VNNI_VQ_DIGITS_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

/* The sums of a tile's digits of sixteen rows of w, planes `first` to the last, to the running sums. */
QN_INLINE void add_tile(float *sums, const __m512i s[QN_VQ_PLANES], const int first, const int32_t *offsets,
                        float scale)
{
    const __m512 low =
        first ? _mm512_setzero_ps() : _mm512_cvtepi32_ps(_mm512_add_epi32(s[0], _mm512_set1_epi32(offsets[0])));
    const __m512 middle = _mm512_cvtepi32_ps(_mm512_add_epi32(s[1], _mm512_set1_epi32(offsets[1])));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_add_epi32(s[2], _mm512_set1_epi32(offsets[2])));
    const __m512 all =
        _mm512_fmadd_ps(high, _mm512_set1_ps(65536.0f), _mm512_fmadd_ps(middle, _mm512_set1_ps(256.0f), low));
    _mm512_store_ps(sums, _mm512_fmadd_ps(all, _mm512_set1_ps(scale), _mm512_load_ps(sums)));
}

/* Sixteen elements, zeros where fewer are left. */
QN_INLINE __m512 some_of(const float *x, int64_t left)
{
    const __mmask16 here = (__mmask16)(left >= 16 ? 0xffffu : left > 0 ? (1u << left) - 1 : 0u);
    return _mm512_maskz_loadu_ps(here, x);
}

/* The square of the error that rounding a tile of a row to two digits may add. Such errors are of random sign,
 * as those of f32 sums are, so their sum with weights is one sigma of norm * |w| / sqrt(k); six of them are to stay
 * within the error model of f32 sums (docs/operators.md), (2 sqrt(k) + 16) 2^-24 |x| |w|. */
QN_INLINE double error_of_tile(const float *x, int64_t k)
{
    __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (int64_t i = 0; i < k; i += 16) {
        const __m512 v = some_of(x + i, k - i);
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        squares[0] = _mm512_fmadd_pd(low, low, squares[0]);
        squares[1] = _mm512_fmadd_pd(high, high, squares[1]);
    }
    const double root = sqrt((double)k), share = (2.0 * root + 16.0) * root / 6.0 * 0x1p-24;
    return _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1])) * (share * share) /
           ceil((double)k / QN_VQ_TILE_K);
}

/* Up to 256 elements times a factor as integers, the last digit 0 when the error's square may be so much: 1. */
QN_INLINE int integers_of(const float *x, int64_t left, __m512 factor, float most_error, __m512i to[16])
{
    const __m512 down = _mm512_set1_ps(0x1p-8f), up = _mm512_set1_ps(256.0f);
    __m512 error = _mm512_setzero_ps();
    __m512i rounded[16];
    for (int i = 0; i < 16; i++) {
        const __m512 v = _mm512_mul_ps(some_of(x + i * 16, left - i * 16), factor);
        const __m512i digits = _mm512_cvtps_epi32(_mm512_mul_ps(v, down));
        const __m512 off = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(digits), up, v);
        error = _mm512_fmadd_ps(off, off, error);
        rounded[i] = _mm512_slli_epi32(digits, 8);
        to[i] = _mm512_cvtps_epi32(v);
    }
    if (!(_mm512_reduce_add_ps(error) <= most_error)) {
        return 0;
    }
    memcpy(to, rounded, sizeof rounded);
    return 1;
}

/* Digits of a tile, each sixteen elements in the given order; offsets take out the bias of unsigned weights. 1: it has
 * none. */
QN_INLINE int digits_of(const float *x, int64_t left, __m512i order, int32_t bias, double most_error, int8_t *planes,
                        float *scale, int32_t offsets[4])
{
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < QN_VQ_TILE_K; i += 16) {
        top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_castps_si512(some_of(x + i, left - i)), clear));
    }
    /* 2^e <= most < 2^(e + 1), the last 1 / 128 of which, where a digit would be 128, counts as the next power's */
    const int32_t most = _mm512_reduce_max_epi32(top), exponent = most >= 0x7f800000 ? 255 : (most + 0x18000) >> 23;
    offsets[0] = offsets[1] = offsets[2] = 0;
    offsets[3] = 1;
    if (most == 0 || exponent < 127 - 80 || exponent > 127 + 80) {
        memset(planes, 0, QN_VQ_PLANES * QN_VQ_TILE_K);
        *scale = 0.0f;
        return most != 0;
    }
    const int32_t up = (127 + 22 - (exponent - 127)) << 23, down = (127 - 22 + (exponent - 127)) << 23; /* 2^(22 - e) */
    float factor;
    __m512i integers[16], sums[QN_VQ_PLANES];
    memcpy(&factor, &up, sizeof factor);
    memcpy(scale, &down, sizeof *scale);
    offsets[3] =
        integers_of(x, left, _mm512_set1_ps(factor), (float)(most_error * (double)factor * (double)factor), integers);
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        sums[p] = _mm512_setzero_si512();
    }
    for (int i = 0; i < 16; i++) {
        __m512i rest = _mm512_permutexvar_epi32(order, integers[i]);
        for (int p = 0; p < QN_VQ_PLANES; p++) {
            const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(rest, 24), 24);
            rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, digit), 8);
            sums[p] = _mm512_add_epi32(sums[p], digit);
            _mm_storeu_si128((__m128i *)(planes + p * QN_VQ_TILE_K + i * 16), _mm512_cvtepi32_epi8(digit));
        }
    }
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        offsets[p] = -bias * _mm512_reduce_add_epi32(sums[p]);
    }
    return 0;
}

/* A row's tiles. */
QN_INLINE int digits_of_row(const float *x, int64_t k, __m512i order, int32_t bias, double most_error, int8_t *planes,
                            float *scales, int32_t *offsets)
{
    int special = 0;
    for (int64_t t = 0; t * QN_VQ_TILE_K < k; t++) {
        special |= digits_of(x + t * QN_VQ_TILE_K, k - t * QN_VQ_TILE_K, order, bias, most_error,
                             planes + t * QN_VQ_PLANES * QN_VQ_TILE_K, scales + t, offsets + t * 4);
    }
    return special;
}

#endif
