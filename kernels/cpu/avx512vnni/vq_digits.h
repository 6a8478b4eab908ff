/* Rows of x as digits and sums of digits as floats (kernels/common/vq.h, "Tiles"):
 * what the integer kernels of gptvq and of quip_e8p share. */
#ifndef QN_KERNELS_AVX512VNNI_VQ_DIGITS_H
#define QN_KERNELS_AVX512VNNI_VQ_DIGITS_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/avx512vnni/bytes.h"
#include "kernels/cpu/name.h"
#include "kernels/cpu/vq_dither.h"

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

/* What elements may be rounded to multiples of. */
QN_INLINE double coarsest_of(const float *x, int64_t k)
{
    __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (int64_t i = 0; i < k; i += 16) {
        const __m512 v = some_of(x + i, k - i);
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        squares[0] = _mm512_fmadd_pd(low, low, squares[0]);
        squares[1] = _mm512_fmadd_pd(high, high, squares[1]);
    }
    return dither_unit(_mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1])), k);
}

/* What is added to sixteen elements, from element `at` of their row on, before they are rounded. */
QN_INLINE __m512 dithers_of(int64_t at)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i z = _mm512_add_epi32(lanes, _mm512_set1_epi32((int32_t)at));
    z = _mm512_mullo_epi32(z, _mm512_set1_epi32((int32_t)DITHER_A));
    z = _mm512_xor_si512(z, _mm512_srli_epi32(z, DITHER_SHIFT));
    z = _mm512_mullo_epi32(z, _mm512_set1_epi32((int32_t)DITHER_B));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(z), _mm512_set1_ps(DITHER_UNIT));
}

/* Sixteen elements, from element `at` of their row on, times a factor as integers, where `coarse` multiples of 256;
 * byte p is digit p then. */
QN_INLINE __m512i sixteen_digits(const float *x, int64_t left, int64_t at, __m512 factor, int coarse)
{
    const __m512i bias = _mm512_set1_epi32(0x808080);
    const __m512 v = _mm512_mul_ps(some_of(x, left), factor);
    const __m512i n =
        coarse ? _mm512_slli_epi32(_mm512_cvtps_epi32(_mm512_fmadd_ps(v, _mm512_set1_ps(0x1p-8f), dithers_of(at))), 8)
               : _mm512_cvtps_epi32(v);
    return _mm512_xor_si512(_mm512_add_epi32(n, bias), bias);
}

/* A tile's planes, each sixteen elements in the order of `fourth`, bytes that count by four; sums of its digits.
 * 1: the last digits are zeros. */
QN_INLINE int put_digits(const float *x, int64_t left, int64_t at, __m512 factor, int coarse, __m128i fourth,
                         int8_t *planes, int32_t sums[QN_VQ_PLANES])
{
    const __m512i lane = _mm512_broadcast_i32x4(fourth), ones = _mm512_set1_epi8(1);
    const __m512i two = _mm512_add_epi8(lane, lanes_of(0, 64, 1, 65));
    const __m512i third = _mm512_add_epi8(lane, lanes_of(2, 66, 2, 66));
    __m512i any = _mm512_setzero_si512(), sum[QN_VQ_PLANES] = {any, any, any};
    for (int i = 0; i < QN_VQ_TILE_K; i += 64) {
        __m512i d[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            d[j] = sixteen_digits(x + i + j * 16, left - i - j * 16, at + i + j * 16, factor, coarse);
        }
        const __m512i low = _mm512_permutex2var_epi8(d[0], two, d[1]), high = _mm512_permutex2var_epi8(d[2], two, d[3]);
        const __m512i plane[QN_VQ_PLANES] = {_mm512_shuffle_i64x2(low, high, 0x44),
                                             _mm512_shuffle_i64x2(low, high, 0xEE),
                                             _mm512_shuffle_i64x2(_mm512_permutex2var_epi8(d[0], third, d[1]),
                                                                  _mm512_permutex2var_epi8(d[2], third, d[3]), 0x44)};
        any = _mm512_or_si512(any, plane[0]);
#pragma GCC unroll 3
        for (int p = 0; p < QN_VQ_PLANES; p++) {
            sum[p] = _mm512_dpbusd_epi32(sum[p], ones, plane[p]);
            _mm512_storeu_si512(planes + p * QN_VQ_TILE_K + i, plane[p]);
        }
    }
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        sums[p] = _mm512_reduce_add_epi32(sum[p]);
    }
    return !_mm512_test_epi32_mask(any, any);
}

/* Digits of a tile; offsets take out the bias of unsigned weights. 1: it has none. */
QN_INLINE int digits_of(const float *x, int64_t left, int64_t at, __m128i fourth, int32_t bias, double coarsest,
                        int8_t *planes, float *scale, int32_t offsets[4])
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
    int32_t sums[QN_VQ_PLANES];
    memcpy(&factor, &up, sizeof factor);
    memcpy(scale, &down, sizeof *scale);
    const __m512 factors = _mm512_set1_ps(factor);
    offsets[3] = 256.0 * (double)*scale <= coarsest ? put_digits(x, left, at, factors, 1, fourth, planes, sums)
                                                    : put_digits(x, left, at, factors, 0, fourth, planes, sums);
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        offsets[p] = -bias * sums[p];
    }
    return 0;
}

/* A row's tiles. */
QN_INLINE int digits_of_row(const float *x, int64_t k, __m128i fourth, int32_t bias, double coarsest, int8_t *planes,
                            float *scales, int32_t *offsets)
{
    int special = 0;
    for (int64_t t = 0; t * QN_VQ_TILE_K < k; t++) {
        const int64_t at = t * QN_VQ_TILE_K;
        special |= digits_of(x + at, k - at, at, fourth, bias, coarsest, planes + at * QN_VQ_PLANES, scales + t,
                             offsets + t * 4);
    }
    return special;
}

#endif
