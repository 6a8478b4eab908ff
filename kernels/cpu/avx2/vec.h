/* Vectors of AVX2 with FMA and F16C: eight floats. Same names as every vec.h. */
#ifndef QN_KERNELS_AVX2_VEC_H
#define QN_KERNELS_AVX2_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/entries.h"

#define QN_ISA avx2
#define VL 8
#define QN_MR 4
#define QN_NR 2

typedef __m256 vf;

static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a);
}

static inline vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf vf_keep(vf a, vf b, int64_t count)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t n = count < 0 ? 0 : (count > 8 ? 8 : (int32_t)count);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
}

static inline vf vf_zero_below(vf a, vf x, float limit)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}

/* a where x is below the limit, else b */
static inline vf vf_where_below(vf x, float limit, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ));
}

/* Whether all lanes are below the limit. */
static inline int vf_all_below(vf x, float limit)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ)) == 0;
}

static inline float vf_sum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float vf_highest(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static inline vf vf_from_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline vf vf_from_bf16(const void *p)
{
    const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* An e4m3 code shifted left by 7 is an f16 with 2^-8 of its value, subnormals
 * too; the sign fills bits 15 and 14 on the way and bit 14 is cleared. */
static inline vf vf_from_e4m3(const uint8_t *p)
{
    const __m128i c = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m128i h = _mm_and_si128(_mm_slli_epi16(c, 7), _mm_set1_epi16((short)0xbfff));
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(c, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7f));
    const __m128i fixed = _mm_or_si128(h, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(fixed), _mm256_set1_ps(256.0f));
}

static inline vf vf_from_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline vf vf_from_e2m1(const uint8_t *p)
{
    int32_t bytes;
    memcpy(&bytes, p, 4);
    const __m128i w = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(bytes));
    const __m256i i = _mm256_cvtepu8_epi32(_mm_or_si128(w, _mm_slli_epi16(w, 4)));
    const __m256 lut = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(i, _mm256_set1_epi32(8)), 28);
    return _mm256_or_ps(_mm256_permutevar8x32_ps(lut, i), _mm256_castsi256_ps(sign));
}

/* The magnitudes of e2m1 codes; and of eight codes what a table has for their magnitudes, with their signs. */
#define VEC_E2M1_TABLE 1
static inline vf vec_e2m1_sizes(void)
{
    return _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
}

static inline vf vec_e2m1_of(vf table, const uint8_t *p)
{
    int32_t bytes;
    memcpy(&bytes, p, 4);
    const __m256i i = _mm256_srlv_epi32(_mm256_set1_epi32(bytes), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(i, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, i), _mm256_castsi256_ps(sign));
}

/* to[j][i] = from[i][j] for 8 rows of 4 columns; strides in floats */
static inline void vf_columns4(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    vf x[4];
    for (int i = 0; i < 4; i++) {
        const float *const p = from + i * from_stride;
        x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * from_stride), 1);
    }
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[0], x[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(x[2], x[3]));
    const __m256d c = _mm256_castps_pd(_mm256_unpackhi_ps(x[0], x[1]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(x[2], x[3]));
    vf_store(to, _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)));
    vf_store(to + to_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    vf_store(to + 2 * to_stride, _mm256_castpd_ps(_mm256_unpacklo_pd(c, d)));
    vf_store(to + 3 * to_stride, _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}

static inline float f16_value(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* Sixteen floats of 16 / channels entries. */
static inline void vec_entries(const uint16_t *const *entry, const int channels, float *out)
{
    _mm256_storeu_ps(out, _mm256_cvtph_ps(vec_eight_halves(entry, channels)));
    _mm256_storeu_ps(out + 8, _mm256_cvtph_ps(vec_eight_halves(entry + 8 / channels, channels)));
}

/* ---- integers, for the row-wise parts (kernels/cpu/rows.h) ---- */

typedef __m256i vi; /* eight int32, or 16 uint16 where a name says so */

static inline vi vi_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void vi_store(void *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}

static inline vi vi_set(uint32_t x)
{
    return _mm256_set1_epi32((int32_t)x);
}

static inline vi vi_bits(vf a)
{
    return _mm256_castps_si256(a);
}

static inline vf vf_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

/* Low 32 bits of the products. */
static inline vi vi_mul(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}

static inline vi vi_shl(vi a, unsigned count)
{
    return _mm256_slli_epi32(a, (int)count);
}

static inline vi vi_shr(vi a, unsigned count)
{
    return _mm256_srli_epi32(a, (int)count);
}

static inline vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}

static inline vi vi_min(vi a, vi b)
{
    return _mm256_min_epi32(a, b);
}

static inline vi vi_umax(vi a, vi b)
{
    return _mm256_max_epu32(a, b);
}

static inline vi vi_max16(vi a, vi b)
{
    return _mm256_max_epi16(a, b);
}

static inline vi vi_add16(vi a, vi b)
{
    return _mm256_add_epi16(a, b);
}

static inline vi vi_umax16(vi a, vi b)
{
    return _mm256_max_epu16(a, b);
}

static inline vi vi_min16(vi a, vi b)
{
    return _mm256_min_epi16(a, b);
}

static inline vi vi_umin16(vi a, vi b)
{
    return _mm256_min_epu16(a, b);
}

static inline vi vi_shr16(vi a, unsigned count)
{
    return _mm256_srli_epi16(a, (int)count);
}

/* bits of a where mask has ones, of b where it has zeros */
static inline vi vi_select(vi mask, vi a, vi b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

/* b in the lanes where x is NaN, else a */
static inline vi vi_where_nan(vf x, vi b, vi a)
{
    return _mm256_blendv_epi8(a, b, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

/* 0 in the words where a == b, else a */
static inline vi vi_zero_if16(vi a, vi b)
{
    return _mm256_andnot_si256(_mm256_cmpeq_epi16(a, b), a);
}

/* The largest of the lanes, unsigned; and of 16 uint16. */
static inline uint32_t vi_top(vi a)
{
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1)));
}

static inline uint32_t vi_top16(vi a)
{
    const __m128i x = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint32_t)_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1))), 0) ^ 0xffff;
}

/* a, but 0 in the lanes where b is 0 */
static inline vi vi_zero_if_zero(vi a, vi b)
{
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(b, _mm256_setzero_si256()), a);
}

/* nearest even; INT32_MIN where x has no int32 */
static inline vi vi_round(vf x)
{
    return _mm256_cvtps_epi32(x);
}

static inline vf vf_from_i32(vi a)
{
    return _mm256_cvtepi32_ps(a);
}

/* a where the sign of x is set, else b */
static inline vf vf_where_negative(vf x, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, x);
}

/* x / s rounded to nearest even, r = 1 / s: right where neither overflows nor is near underflow */
static inline vf vf_quotient(vf x, vf s, vf r)
{
    const vf q = _mm256_mul_ps(x, r);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(q, s, x), r, q);
}

/* 1 / s - r for r = 1 / s rounded; and x / s from both: right for x of 8 bits, else wrong once in 10^8. */
static inline vf vf_inverse_rest(vf s, vf r)
{
    return _mm256_mul_ps(_mm256_fnmadd_ps(s, r, _mm256_set1_ps(1.0f)), r);
}

static inline vf vf_times_inverse(vf x, vf s, vf r, vf rest)
{
    (void)s;
    return _mm256_fmadd_ps(x, r, _mm256_mul_ps(x, rest));
}

/* 2^n, the last bits of z counting n in steps of 1 / VEC_ROOTS; d, infinite where g has no such power; and
 * (e^-r - VEC_AT_0) / r for |r| <= ln2 / 8, e^-r within 2^-21.5. Four roots are looked up in a lane of 128 bits, which
 * takes a third of the time of eight. */
#define VEC_ROOTS 4
#define VEC_AT_0 0.999999702f
static inline vf vec_power(vf z, vf n)
{
    (void)n;
    const __m256i steps = _mm256_castps_si256(z);
    /* bits of 2^(i/4), less what i adds to n's multiples of 4 */
    const __m256 roots = _mm256_castsi256_ps(
        _mm256_broadcastsi128_si256(_mm_setr_epi32(0x3f800000, 0x3f7837f0, 0x3f7504f3, 0x3f7744fd)));
    const __m256i root = _mm256_castps_si256(_mm256_permutevar_ps(roots, steps));
    return _mm256_castsi256_ps(_mm256_add_epi32(root, _mm256_slli_epi32(steps, 21)));
}

static inline vf vec_held_sum(vf g, vf d)
{
    return vf_where_below(g, -86.5f, _mm256_set1_ps(INFINITY), d);
}

/* x + n ln2: f32 has ln2 to 2^-28.9, which times the 125 of the largest sum is 2^-22. */
static inline vf vec_plus_octaves(vf x, vf n)
{
    return _mm256_fmadd_ps(n, _mm256_set1_ps(0.693147182f), x);
}

static inline vf vec_rest(vf r)
{
    const vf p = _mm256_fmadd_ps(r, _mm256_set1_ps(-0.166729301f), _mm256_set1_ps(0.500313163f));
    return _mm256_fmadd_ps(p, r, _mm256_set1_ps(-0.99999994f));
}

/* Whether a lane is above the limit, and a word: both signed. */
static inline int vec_any_above(vi a, int32_t limit)
{
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(a, _mm256_set1_epi32(limit))) != 0;
}

static inline int vec_any_above16(vi a, int16_t limit)
{
    return _mm256_movemask_epi8(_mm256_cmpgt_epi16(a, _mm256_set1_epi16(limit))) != 0;
}

/* A quotient takes no longer than a half of one and what goes with it (kernels/cpu/rows.h). */
#define VEC_DIVIDES 1

/* Steps of silu whose gates are looked at together; magnitudes up to 86.5 need no limit. */
#define VEC_NEAR 8
#define VEC_NEAR_BF16 0x42ad
#define VEC_NEAR_F16 0x5568

/* Even and odd elements of two vectors' worth into the first and the second half. */
static inline void vf_interleave(vf *a, vf *b)
{
    const vf low = _mm256_unpacklo_ps(*a, *b), high = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

/* a in the lower half of the lanes, b in the upper */
static inline vf vf_set2(float a, float b)
{
    return _mm256_set_m128(_mm_set1_ps(b), _mm_set1_ps(a));
}

/* Two vectors of 2 VL elements: elements 0, 2, ... and 1, 3, ... */
static inline void vf_pairs_from_bf16(const void *p, vf *even, vf *odd)
{
    const __m256i w = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32((int32_t)0xffff0000)));
}

/* The low halves of a's lanes, the high ones of b's. */
static inline vi vi_halves(vi a, vi b)
{
    return _mm256_blend_epi16(a, b, 0xaa);
}

/* The low halves of the lanes of both: a's in the low half of each lane, b's in the high one. */
static inline vi vi_pairs(vi a, vi b)
{
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}

/* Pairs as words: a's, then b's. */
static inline vi vi_in_order(vi w)
{
    const __m256i low = _mm256_and_si256(w, _mm256_set1_epi32(0xffff));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, _mm256_srli_epi32(w, 16)), 0xd8);
}

/* The low bytes of words. */
static inline void vi_put_bytes(uint8_t *p, vi w)
{
    const __m256i low = _mm256_and_si256(w, _mm256_set1_epi16(255));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}

/* A whole vector, past the caches if that is asked for: then p is aligned to 16 bytes. */
static inline void vec_put(uint8_t *p, __m256i a, const int past)
{
    if (!past) {
        _mm256_storeu_si256((__m256i *)p, a);
    } else if ((uintptr_t)p & 31) {
        _mm_stream_si128((__m128i *)p, _mm256_castsi256_si128(a));
        _mm_stream_si128((__m128i *)p + 1, _mm256_extracti128_si256(a, 1));
    } else {
        _mm256_stream_si256((__m256i *)p, a);
    }
}

static inline void vi_put(void *p, vi a, const int past)
{
    vec_put(p, a, past);
}

static inline void vf_put(float *p, vf a, const int past)
{
    vec_put((uint8_t *)p, vi_bits(a), past);
}

/* Two vectors of words as bytes; words of 0 to 255, or with is_signed any, which are held to -128 to 127. */
static inline void vi_put_bytes2(uint8_t *p, vi a, vi b, const int is_signed, const int past)
{
    const __m256i lanes = is_signed ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
    vec_put(p, _mm256_permute4x64_epi64(lanes, 0xd8), past);
}

/* Words below 16, two a byte, the first in the low nibble. */
static inline __m128i vec_nibbles(vi w)
{
    const __m256i both = _mm256_and_si256(_mm256_or_si256(w, _mm256_srli_epi32(w, 12)), _mm256_set1_epi32(255));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    return _mm_packus_epi16(words, words);
}

static inline void vi_put_nibbles(uint8_t *p, vi w)
{
    _mm_storel_epi64((__m128i *)p, vec_nibbles(w));
}

/* Words to bytes, lane by lane: a's, then b's. */
static inline vi vi_bytes(vi a, vi b)
{
    return _mm256_packus_epi16(a, b);
}

/* The same of four vectors of words, which come as vi_bytes of the first two and of the last two. */
static inline void vi_put_nibbles4(uint8_t *p, vi ab, vi cd, const int past)
{
    const __m256i ones = _mm256_set1_epi16(0x1001);
    const __m256i lanes = _mm256_packus_epi16(_mm256_maddubs_epi16(ab, ones), _mm256_maddubs_epi16(cd, ones));
    vec_put(p, _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), past);
}

/* What vi_put_nibbles4 takes, of two vectors of bf16: e2m1 codes by their bits alone, first of each vector, then of
 * both. base: the bits of a quarter of the scale, a power of two; magnitudes below 8 scales.
 *
 * Bits above base are 128 an octave. Codes begin at (or, where a tie goes down to an even code, behind) 0, 192, 288,
 * 352, 416, 480 and 544 of them, which are multiples of 32: of the quotient by 32, after one is taken away where a tie
 * goes down, a table knows the code. */
#define VEC_E2M1_BITS 1
static inline vi vec_e2m1_bits(vi a, vi base)
{
    const __m256i d = _mm256_subs_epu16(_mm256_and_si256(a, _mm256_set1_epi16(0x7fff)), base);
    const __m256i down = _mm256_andnot_si256(_mm256_srli_epi16(d, 6), _mm256_set1_epi16(1));
    return _mm256_srli_epi16(_mm256_sub_epi16(d, down), 5); /* 0 becomes 2047 */
}

static inline vi vec_e2m1_of_bits(vi a, vi b, vi bits_a, vi bits_b)
{
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7)); /* of 4 to 19 */
    const __m256i index = _mm256_subs_epu8(_mm256_packus_epi16(bits_a, bits_b), _mm256_set1_epi8(4));
    const __m256i code = _mm256_shuffle_epi8(table, index); /* 0 of an index above 127 */
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(_mm256_packs_epi16(a, b), 4), _mm256_set1_epi8(8));
    return _mm256_or_si256(sign, code);
}

static inline __m256i vec_top32(__m256i a, __m256i b)
{
    return _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

static inline __m256i vec_top64(__m256i a, __m256i b)
{
    return _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

static inline __m256i vec_top128(__m256i a, __m256i b)
{
    return _mm256_max_epu32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Largest magnitude bits of 16 blocks of `block` floats, a multiple of 16. */
static inline void vec_block_tops32(const void *p, const int64_t block, uint32_t top[16])
{
    const __m256i clear = _mm256_set1_epi32(0x7fffffff);
    for (int h = 0; h < 2; h++) {
        __m256i t[2];
        for (int i = 0; i < 2; i++) {
            __m256i x[4];
            for (int j = 0; j < 4; j++) {
                const char *const at = (const char *)p + (8 * h + 4 * i + j) * block * 4;
                x[j] = _mm256_and_si256(vi_load(at), clear);
                for (int64_t k = 32; k < block * 4; k += 32) {
                    x[j] = _mm256_max_epu32(x[j], _mm256_and_si256(vi_load(at + k), clear));
                }
            }
            t[i] = vec_top64(vec_top32(x[0], x[1]), vec_top32(x[2], x[3]));
        }
        _mm256_storeu_si256((__m256i *)(top + 8 * h), vec_top128(t[0], t[1]));
    }
}

/* Of 16-bit elements: of 16 blocks of 16, or of 8 blocks of a multiple of 32. */
static inline void vec_block_tops16(const void *p, const int64_t block, uint32_t top[16])
{
    const __m256i clear = _mm256_set1_epi16(0x7fff);
    for (int h = 0; h < (block > 16 ? 1 : 2); h++) {
        __m256i t[4], u[2];
        for (int i = 0; i < 4; i++) {
            __m256i x[2];
            for (int j = 0; j < 2; j++) {
                const char *const at = (const char *)p + (8 * h + 2 * i + j) * block * 2;
                x[j] = _mm256_and_si256(vi_load(at), clear);
                for (int64_t k = 32; k < block * 2; k += 32) {
                    x[j] = _mm256_max_epu16(x[j], _mm256_and_si256(vi_load(at + k), clear));
                }
            }
            t[i] = _mm256_max_epu16(_mm256_unpacklo_epi16(x[0], x[1]), _mm256_unpackhi_epi16(x[0], x[1]));
        }
        for (int i = 0; i < 2; i++) {
            u[i] = _mm256_max_epu16(_mm256_unpacklo_epi32(t[2 * i], t[2 * i + 1]),
                                    _mm256_unpackhi_epi32(t[2 * i], t[2 * i + 1]));
        }
        const __m256i v = _mm256_max_epu16(_mm256_unpacklo_epi64(u[0], u[1]), _mm256_unpackhi_epi64(u[0], u[1]));
        const __m128i both = _mm_max_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm256_storeu_si256((__m256i *)(top + 8 * h), _mm256_cvtepu16_epi32(both));
    }
}

static inline vf vf_from_e5m2(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p)), 8));
}

static inline vf vf_from_e4m3fnuz(const uint8_t *p)
{
    const __m128i c = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m128i h = _mm_and_si128(_mm_slli_epi16(c, 7), _mm_set1_epi16((short)0xbfff));
    const __m128i nan = _mm_cmpeq_epi16(c, _mm_set1_epi16(-128));
    const __m128i fixed = _mm_blendv_epi8(h, _mm_set1_epi16(0x7e00), nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(fixed), _mm256_set1_ps(128.0f));
}

/* Copy past the caches; vec_fence() before others may read. */
static inline void vec_stream(char *to, const char *from, size_t bytes)
{
    const size_t head = (64 - (size_t)((uintptr_t)to & 63)) & 63;
    if (bytes < 128) {
        memcpy(to, from, bytes);
        return;
    }
    memcpy(to, from, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64) {
        _mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
        _mm256_stream_si256((__m256i *)(to + i + 32), _mm256_loadu_si256((const __m256i *)(from + i + 32)));
    }
    memcpy(to + i, from + i, bytes - i);
}

static inline void vec_fence(void)
{
    _mm_sfence();
}

/* ---- bf16 to codes of three mantissa bits by integers (kernels/cpu/rows_steps.h) ---- */

#define VEC_STEPS 1

/* Sixteen bytes for every 128 bits. */
static inline vi vec_table16(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* 16-bit words, sign aside, with what their mantissas' table adds, beyond the base. */
static inline vi vec_step_sums(vi x, vi table, vi base)
{
    const __m256i bin = _mm256_and_si256(_mm256_srli_epi16(x, 3), _mm256_set1_epi16(15));
    const __m256i v = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
    return _mm256_subs_epu16(_mm256_add_epi16(v, _mm256_shuffle_epi8(table, bin)), base);
}

/* Codes of 16-bit words, sign aside, before they are packed. */
static inline vi vec_step_codes(vi x, vi table, vi base)
{
    return _mm256_srli_epi16(vec_step_sums(x, table, base), 4);
}

/* Of a block of bf16: quarters of binades as qn_rows_e2m1_steps tells them. */
static inline vi vec_e2m1_met(vi x, const uint8_t *sf, const uint8_t (*add)[16], const uint32_t *bases)
{
    return _mm256_srli_epi16(vec_step_sums(x, vec_table16(add[*sf]), vi_set(bases[*sf])), 5);
}

/* What vi_put_nibbles4 takes, of both: five and more have their codes in a table, one to four the code 1. */
static inline vi vec_e2m1_stepped(vi x, vi y, vi met_x, vi met_y)
{
    const __m256i codes = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7));
    const __m256i held = _mm256_min_epu8(_mm256_packus_epi16(met_x, met_y), _mm256_set1_epi8(20));
    const __m256i none_last = _mm256_sub_epi8(held, _mm256_set1_epi8(1));
    const __m256i code = _mm256_shuffle_epi8(codes, _mm256_subs_epu8(none_last, _mm256_set1_epi8(4)));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi16(_mm256_packs_epi16(x, y), 4), _mm256_set1_epi8(8));
    return _mm256_or_si256(sign, code);
}

/* Whether one of the bytes, which are below 128 or count as negative, is below that. */
static inline int vec_any_below(vi bytes, uint8_t least)
{
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8((char)least), bytes)) != 0;
}

/* Whether one of the words, sign aside, is in [first, first + count). */
static inline int vec_any_in(vi x, vi first, vi count)
{
    const __m256i from_first = _mm256_sub_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x7fff)), first);
    const __m256i below = _mm256_subs_epu16(count, from_first);
    return !_mm256_testz_si256(below, below);
}

static inline vi vi_umin8(vi a, vi b)
{
    return _mm256_min_epu8(a, b);
}

/* Codes as vi_bytes leaves them, with the signs of the words a and b that they are of. */
static inline void vec_put_signed(uint8_t *p, vi codes, vi a, vi b, const int past)
{
    const __m256i sign = _mm256_and_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8((char)0x80));
    vec_put(p, _mm256_permute4x64_epi64(_mm256_or_si256(codes, sign), 0xd8), past);
}

/* Into the second cache: the first one's few outstanding lines are not for what comes later. A macro: gcc finds that a
 * function which only prefetches has no effect, and leaves out its calls. */
#define vec_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

#endif
