/* Rows of x as digits and sums of digits as floats (kernels/common/vq.h, "Tiles"):
 * what the integer kernels of gptvq and of quip_e8p share. Integers, and the order of all floats that decide them, are
 * those of level avx512vnni, so that bits are. */
#ifndef QN_KERNELS_AVX2_VQ_DIGITS_H
#define QN_KERNELS_AVX2_VQ_DIGITS_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"
#include "kernels/cpu/vq_dither.h"

/* One number a vector, in their order. */
QN_INLINE __m256i sums_of(const __m256i v[8])
{
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* The sums of a tile's digits of eight rows of w to the running sums. */
QN_INLINE void add_tile(float *sums, const __m256i s[QN_VQ_PLANES], float scale)
{
    const __m256 low = _mm256_cvtepi32_ps(s[0]), middle = _mm256_cvtepi32_ps(s[1]), high = _mm256_cvtepi32_ps(s[2]);
    const __m256 all =
        _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), _mm256_fmadd_ps(middle, _mm256_set1_ps(256.0f), low));
    _mm256_storeu_ps(sums, _mm256_fmadd_ps(all, _mm256_set1_ps(scale), _mm256_loadu_ps(sums)));
}

/* Eight elements, zeros where fewer are left. */
QN_INLINE __m256 some_of(const float *x, int64_t left)
{
    static const int32_t here[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    if (left >= 8) {
        return _mm256_loadu_ps(x);
    }
    if (left <= 0) {
        return _mm256_setzero_ps();
    }
    return _mm256_maskload_ps(x, _mm256_loadu_si256((const __m256i *)(const void *)(here + 8 - left)));
}

/* What is added to eight elements, from element `at` of their row on, before they are rounded. */
QN_INLINE __m256 dithers_of(int64_t at)
{
    __m256i z = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int32_t)at));
    z = _mm256_mullo_epi32(z, _mm256_set1_epi32((int32_t)DITHER_A));
    z = _mm256_xor_si256(z, _mm256_srli_epi32(z, DITHER_SHIFT));
    z = _mm256_mullo_epi32(z, _mm256_set1_epi32((int32_t)DITHER_B));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(z), _mm256_set1_ps(DITHER_UNIT));
}

/* Up to 256 elements, from element `at` of their row on, times a factor as integers; the last digit is 0 where it may
 * be, or is: 1. */
static int integers_of(const float *x, int64_t left, int64_t at, float factor, int coarse, __m256i to[32])
{
    const __m256 down = _mm256_set1_ps(0x1p-8f), up = _mm256_set1_ps(256.0f);
    __m256 off = _mm256_setzero_ps();
    __m256i rounded[32];
    for (int i = 0; i < 32; i++) {
        const __m256 v = _mm256_mul_ps(some_of(x + i * 8, left - i * 8), _mm256_set1_ps(factor));
        const __m256i digits = _mm256_cvtps_epi32(_mm256_fmadd_ps(v, down, dithers_of(at + i * 8)));
        off = _mm256_or_ps(off, _mm256_fnmadd_ps(_mm256_cvtepi32_ps(digits), up, v));
        rounded[i] = _mm256_slli_epi32(digits, 8);
        to[i] = _mm256_cvtps_epi32(v);
    }
    if (!coarse && !_mm256_testz_si256(_mm256_castps_si256(off), _mm256_set1_epi32(0x7fffffff))) {
        return 0;
    }
    memcpy(to, rounded, sizeof rounded);
    return 1;
}

QN_INLINE int32_t highest(__m256i v)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1)));
}

/* A tile as integers of a power of two; offsets[3]: 1 when their last digit is 0. 1: it has none. */
static int tile_integers(const float *x, int64_t left, int64_t at, double coarsest, __m256i integers[32], float *scale,
                         int32_t offsets[4])
{
    const __m256i clear = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < QN_VQ_TILE_K; i += 8) {
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(some_of(x + i, left - i)), clear));
    }
    /* 2^e <= most < 2^(e + 1), the last 1 / 128 of which, where a digit would be 128, counts as the next power's */
    const int32_t most = highest(top), exponent = most >= 0x7f800000 ? 255 : (most + 0x18000) >> 23;
    offsets[0] = offsets[1] = offsets[2] = 0;
    offsets[3] = 1;
    if (most == 0 || exponent < 127 - 80 || exponent > 127 + 80) {
        memset(integers, 0, QN_VQ_TILE_K * sizeof(int32_t));
        *scale = 0.0f;
        return most != 0;
    }
    const int32_t up = (127 + 22 - (exponent - 127)) << 23, down = (127 - 22 + (exponent - 127)) << 23; /* 2^(22 - e) */
    float factor;
    memcpy(&factor, &up, sizeof factor);
    memcpy(scale, &down, sizeof *scale);
    offsets[3] = integers_of(x, left, at, factor, 256.0 * (double)*scale <= coarsest, integers);
    return 0;
}

/* The lowest digit of integers, and takes it off. */
QN_INLINE __m256i next_digit(__m256i *rest)
{
    const __m256i digit = _mm256_srai_epi32(_mm256_slli_epi32(*rest, 24), 24);
    *rest = _mm256_srai_epi32(_mm256_sub_epi32(*rest, digit), 8);
    return digit;
}

/* Sixteen words, in their order, of two vectors of integers. */
QN_INLINE __m256i words_of(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

QN_INLINE __m128i bytes_of(__m256i words)
{
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

#endif
