/* Vectors of AVX-512 F, BW, DQ, VL: sixteen floats. Same names as every vec.h. */
#ifndef QN_KERNELS_AVX512_VEC_H
#define QN_KERNELS_AVX512_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/entries.h"

#define QN_ISA avx512
#define VL 16
#define QN_MR 4
#define QN_NR 4

typedef __m512 vf;

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

static inline vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

static inline vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf vf_keep(vf a, vf b, int64_t count)
{
    const unsigned lanes = count >= 16 ? 0xffffu : (count <= 0 ? 0u : (1u << count) - 1u);
    const __mmask16 mask = (__mmask16)lanes;
    return _mm512_mask_mov_ps(b, mask, a);
}

static inline vf vf_zero_below(vf a, vf x, float limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}

/* a where x is below the limit, else b */
static inline vf vf_where_below(vf x, float limit, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_LT_OQ), a);
}

/* Whether all lanes are below the limit. */
static inline int vf_all_below(vf x, float limit)
{
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ) == 0;
}

static inline float vf_sum(vf a)
{
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline float vf_highest(vf a)
{
    return _mm512_reduce_max_ps(a);
}

static inline vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline vf vf_from_bf16(const void *p)
{
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

static inline void vf_to_f16(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* An e4m3 code shifted left by 7 is an f16 with 2^-8 of its value, subnormals
 * too; the sign fills bits 15 and 14 on the way and bit 14 is cleared. */
static inline vf vf_from_e4m3(const uint8_t *p)
{
    const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i h = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16((short)0xbfff));
    const __m256i low = _mm256_and_si256(c, _mm256_set1_epi16(0x7f));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(low, _mm256_set1_epi16(0x7f));
    const __m256i fixed = _mm256_mask_mov_epi16(h, nan, _mm256_or_si256(h, _mm256_set1_epi16(0x7e00)));
    return _mm512_mul_ps(_mm512_cvtph_ps(fixed), _mm512_set1_ps(256.0f));
}

static inline vf vf_from_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vf vf_from_e2m1(const uint8_t *p)
{
    const __m128i w = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    const __m512i i = _mm512_cvtepu8_epi32(_mm_or_si128(w, _mm_slli_epi16(w, 4)));
    const __m512 lut = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    return _mm512_permutexvar_ps(i, lut);
}

/* to[j][i] = from[i][j] for 16 rows of 4 columns; strides in floats */
static inline void vf_columns4(const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    vf x[4];
    for (int i = 0; i < 4; i++) {
        const float *const p = from + i * from_stride;
        const int64_t step = 4 * from_stride;
        x[i] = _mm512_castps128_ps512(_mm_loadu_ps(p));
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + step), 1);
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 2 * step), 2);
        x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 3 * step), 3);
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
    const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
    vf_store(to, _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)));
    vf_store(to + to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    vf_store(to + 2 * to_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(c, d)));
    vf_store(to + 3 * to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
}

static inline float f16_value(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* Sixteen floats of 16 / channels entries. */
static inline void vec_entries(const uint16_t *const *entry, const int channels, float *out)
{
    const __m256i low = _mm256_castsi128_si256(vec_eight_halves(entry, channels));
    _mm512_storeu_ps(
        out, _mm512_cvtph_ps(_mm256_inserti128_si256(low, vec_eight_halves(entry + 8 / channels, channels), 1)));
}

/* ---- integers, for the row-wise parts (kernels/cpu/rows.h) ---- */

typedef __m512i vi; /* sixteen int32, or 32 uint16 where a name says so */

static inline vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* a, in a register: for what is used twice the compiler would load twice, and processors that load one such vector a
 * cycle (Zen 4) wait for that. */
#define VEC_ONCE 1
static inline vi vec_once(vi a)
{
    __asm__("" : "+v"(a));
    return a;
}

static inline void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

static inline vi vi_set(uint32_t x)
{
    return _mm512_set1_epi32((int32_t)x);
}

static inline vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}

static inline vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

/* Low 32 bits of the products. */
static inline vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}

static inline vi vi_shl(vi a, unsigned count)
{
    return _mm512_slli_epi32(a, count);
}

static inline vi vi_shr(vi a, unsigned count)
{
    return _mm512_srli_epi32(a, count);
}

static inline vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}

static inline vi vi_min(vi a, vi b)
{
    return _mm512_min_epi32(a, b);
}

static inline vi vi_umax(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}

static inline vi vi_max16(vi a, vi b)
{
    return _mm512_max_epi16(a, b);
}

static inline vi vi_add16(vi a, vi b)
{
    return _mm512_add_epi16(a, b);
}

static inline vi vi_umax16(vi a, vi b)
{
    return _mm512_max_epu16(a, b);
}

static inline vi vi_min16(vi a, vi b)
{
    return _mm512_min_epi16(a, b);
}

static inline vi vi_umin16(vi a, vi b)
{
    return _mm512_min_epu16(a, b);
}

static inline vi vi_shr16(vi a, unsigned count)
{
    return _mm512_srli_epi16(a, (unsigned char)count);
}

/* bits of a where mask has ones, of b where it has zeros */
static inline vi vi_select(vi mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
}

/* b in the lanes where x is NaN, else a */
static inline vi vi_where_nan(vf x, vi b, vi a)
{
    return _mm512_mask_mov_epi32(a, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), b);
}

/* 0 in the words where a == b, else a */
static inline vi vi_zero_if16(vi a, vi b)
{
    return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(a, b), a);
}

/* The largest of the lanes, unsigned; and of 32 uint16. */
static inline uint32_t vi_top(vi a)
{
    return _mm512_reduce_max_epu32(a);
}

static inline uint32_t vi_top16(vi a)
{
    const __m256i b = _mm256_max_epu16(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    const __m128i c = _mm_max_epu16(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(c, _mm_set1_epi32(-1)));
    return 0xffff - ((uint32_t)_mm_cvtsi128_si32(least) & 0xffff);
}

/* a, but 0 in the lanes where b is 0 */
static inline vi vi_zero_if_zero(vi a, vi b)
{
    return _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(b, b), a);
}

/* nearest even; INT32_MIN where x has no int32 */
static inline vi vi_round(vf x)
{
    return _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_from_i32(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

/* a where the sign of x is set, else b */
static inline vf vf_where_negative(vf x, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_movepi32_mask(_mm512_castps_si512(x)), a);
}

/* x / s rounded to nearest even, r = 1 / s: right where neither overflows nor is near underflow */
static inline vf vf_quotient(vf x, vf s, vf r)
{
    const vf q = _mm512_mul_ps(x, r);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(q, s, x), r, q);
}

/* 1 / s - r for r = 1 / s rounded; and x / s from both: right for x of 8 bits, else wrong once in 10^8. */
static inline vf vf_inverse_rest(vf s, vf r)
{
    return _mm512_mul_ps(_mm512_fnmadd_ps(s, r, _mm512_set1_ps(1.0f)), r);
}

static inline vf vf_times_inverse(vf x, vf s, vf r, vf rest)
{
    (void)s;
    return _mm512_fmadd_ps(x, r, _mm512_mul_ps(x, rest));
}

/* 2^n, the last bits of z counting n in steps of 1 / VEC_ROOTS; d as it is, which such powers make infinite; and
 * (e^-r - 1) / r for |r| <= ln2 / 32, within 2^-21 / r. */
#define VEC_ROOTS 16
static inline vf vec_power(vf z, vf n)
{
    const __m512i roots = _mm512_setr_epi32(0x3f800000, 0x3f85aac3, 0x3f8b95c2, 0x3f91c3d3, 0x3f9837f0, 0x3f9ef532,
                                            0x3fa5fed7, 0x3fad583f, 0x3fb504f3, 0x3fbd08a4, 0x3fc5672a, 0x3fce248c,
                                            0x3fd744fd, 0x3fe0ccdf, 0x3feac0c7, 0x3ff5257d);
    const __m512 root = _mm512_castsi512_ps(_mm512_permutexvar_epi32(_mm512_castps_si512(z), roots));
    return _mm512_scalef_ps(root, n); /* of n rounded down */
}

static inline vf vec_held_sum(vf g, vf d)
{
    (void)g;
    return d;
}

/* x + n ln2: f32 has ln2 to 2^-28.9, which times the 125 of the largest sum is 2^-22. */
static inline vf vec_plus_octaves(vf x, vf n)
{
    return _mm512_fmadd_ps(n, _mm512_set1_ps(0.693147182f), x);
}

static inline vf vec_rest(vf r)
{
    return _mm512_fmadd_ps(r, _mm512_set1_ps(0.5f), _mm512_set1_ps(-1.00005865f));
}

/* Whether a lane is above the limit, and a word: both signed. */
static inline int vec_any_above(vi a, int32_t limit)
{
    return _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(limit)) != 0;
}

static inline int vec_any_above16(vi a, int16_t limit)
{
    return _mm512_cmpgt_epi16_mask(a, _mm512_set1_epi16(limit)) != 0;
}

/* Steps of silu whose gates are looked at together; of magnitudes up to 43 two sums have a product below 2^125. */
#define VEC_NEAR 4
#define VEC_NEAR_BF16 0x422c
#define VEC_NEAR_F16 0x5160

/* Even and odd elements of two vectors' worth into the first and the second half. */
static inline void vf_interleave(vf *a, vf *b)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    const vf even = *a;
    *a = _mm512_permutex2var_ps(even, low, *b);
    *b = _mm512_permutex2var_ps(even, high, *b);
}

/* a in the lower half of the lanes, b in the upper */
static inline vf vf_set2(float a, float b)
{
    return _mm512_mask_mov_ps(_mm512_set1_ps(a), 0xff00, _mm512_set1_ps(b));
}

/* Two vectors of 2 VL elements: elements 0, 2, ... and 1, 3, ... */
static inline void vf_pairs_from_bf16(const void *p, vf *even, vf *odd)
{
    const __m512i w = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int32_t)0xffff0000)));
}

/* The low halves of a's lanes, the high ones of b's. */
static inline vi vi_halves(vi a, vi b)
{
    return _mm512_mask_mov_epi16(a, 0xaaaaaaaa, b);
}

/* a rounded to nearest even at its high half, what is below it being of no use. */
static inline vi vec_round_high(vi a)
{
    /* plus 0x8000, less 1 where the half is even: ~(a >> 16) & 1 beside the ones of -0x8000 */
    const __m512i odd = _mm512_srli_epi32(a, 16);
    return _mm512_sub_epi32(a, _mm512_ternarylogic_epi32(odd, _mm512_set1_epi32(1), _mm512_set1_epi32(-0x8000), 0xAE));
}

/* The high halves of both, rounded: a's in the low half of each lane. */
#define VEC_ROUND_HALVES 1
static inline vi vec_round_halves(vi a, vi b)
{
    const __m512i down =
        _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return _mm512_mask_shuffle_epi8(vec_round_high(b), 0x3333333333333333, vec_round_high(a), down);
}

/* The low halves of the lanes of both: a's in the low half of each lane, b's in the high one. */
static inline vi vi_pairs(vi a, vi b)
{
    return _mm512_mask_mov_epi16(a, 0xaaaaaaaa, _mm512_slli_epi32(b, 16));
}

/* Pairs as words: a's, then b's. */
static inline vi vi_in_order(vi w)
{
    const __m512i step = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22,
                                          20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutexvar_epi16(step, w);
}

/* The low bytes of words. */
static inline void vi_put_bytes(uint8_t *p, vi w)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi16_epi8(w));
}

/* A whole vector, past the caches if that is asked for: then p is aligned to 16 bytes. */
static inline void vec_put(uint8_t *p, __m512i a, const int past)
{
    if (!past) {
        _mm512_storeu_si512(p, a);
    } else if ((uintptr_t)p & 63) {
        _mm_stream_si128((__m128i *)p, _mm512_castsi512_si128(a));
        _mm_stream_si128((__m128i *)p + 1, _mm512_extracti32x4_epi32(a, 1));
        _mm_stream_si128((__m128i *)p + 2, _mm512_extracti32x4_epi32(a, 2));
        _mm_stream_si128((__m128i *)p + 3, _mm512_extracti32x4_epi32(a, 3));
    } else {
        _mm512_stream_si512((void *)p, a);
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
    const __m512i lanes = is_signed ? _mm512_packs_epi16(a, b) : _mm512_packus_epi16(a, b);
    vec_put(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), lanes), past);
}

/* Words below 16, two a byte, the first in the low nibble. */
static inline void vi_put_nibbles(uint8_t *p, vi w)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_or_si512(w, _mm512_srli_epi32(w, 12))));
}

/* Words to bytes, lane by lane: a's, then b's. */
static inline vi vi_bytes(vi a, vi b)
{
    return _mm512_packus_epi16(a, b);
}

/* The same of four vectors of words, which come as vi_bytes of the first two and of the last two. */
static inline void vi_put_nibbles4(uint8_t *p, vi ab, vi cd, const int past)
{
    const __m512i ones = _mm512_set1_epi16(0x1001);
    const __m512i lanes = _mm512_packus_epi16(_mm512_maddubs_epi16(ab, ones), _mm512_maddubs_epi16(cd, ones));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    vec_put(p, _mm512_permutexvar_epi32(order, lanes), past);
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
    const __m512i d = _mm512_subs_epu16(_mm512_and_si512(a, _mm512_set1_epi16(0x7fff)), base);
    const __m512i down = _mm512_andnot_si512(_mm512_srli_epi16(d, 6), _mm512_set1_epi16(1));
    return _mm512_srli_epi16(_mm512_sub_epi16(d, down), 5); /* 0 becomes 2047 */
}

static inline vi vec_e2m1_of_bits(vi a, vi b, vi bits_a, vi bits_b)
{
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7)); /* of 4 to 19 */
    const __m512i index = _mm512_subs_epu8(_mm512_packus_epi16(bits_a, bits_b), _mm512_set1_epi8(4));
    const __m512i code = _mm512_shuffle_epi8(table, index); /* 0 of an index above 127 */
    const __m512i sign = _mm512_srli_epi16(_mm512_packs_epi16(a, b), 4);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(8), sign, code, 0xCA);
}

static inline __m512i vec_top32(__m512i a, __m512i b)
{
    return _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

static inline __m512i vec_top64(__m512i a, __m512i b)
{
    return _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

static inline __m512i vec_top128(__m512i a, __m512i b)
{
    return _mm512_max_epu32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Largest magnitude bits of 16 blocks of `block` floats, a multiple of 16. */
static inline void vec_block_tops32(const void *p, const int64_t block, uint32_t top[16])
{
    const __m512i clear = _mm512_set1_epi32(0x7fffffff);
    __m512i t[4];
    for (int i = 0; i < 4; i++) {
        __m512i x[4];
        for (int j = 0; j < 4; j++) {
            const char *const at = (const char *)p + (4 * i + j) * block * 4;
            x[j] = _mm512_and_si512(_mm512_loadu_si512(at), clear);
            for (int64_t k = 64; k < block * 4; k += 64) {
                x[j] = _mm512_max_epu32(x[j], _mm512_and_si512(_mm512_loadu_si512(at + k), clear));
            }
        }
        t[i] = vec_top64(vec_top32(x[0], x[1]), vec_top32(x[2], x[3]));
    }
    _mm512_storeu_si512(top, vec_top128(vec_top128(t[0], t[1]), vec_top128(t[2], t[3])));
}

/* Of 16-bit elements, as words: of 16 blocks of 16, or of 8 blocks of a multiple of 32 the first 8. */
static inline __m256i vec_top_words(const void *p, const int64_t block)
{
    const __m512i clear = _mm512_set1_epi16(0x7fff);
    const int64_t step = block > 16 ? block * 2 : 64;
    __m512i t[4], u[2];
    for (int i = 0; i < 4; i++) {
        __m512i x[2];
        for (int j = 0; j < 2; j++) {
            const char *const at = (const char *)p + (2 * i + j) * step;
            x[j] = _mm512_and_si512(_mm512_loadu_si512(at), clear);
            for (int64_t k = 64; k < step; k += 64) {
                x[j] = _mm512_max_epu16(x[j], _mm512_and_si512(_mm512_loadu_si512(at + k), clear));
            }
        }
        t[i] = _mm512_max_epu16(_mm512_unpacklo_epi16(x[0], x[1]), _mm512_unpackhi_epi16(x[0], x[1]));
    }
    for (int i = 0; i < 2; i++) {
        u[i] = _mm512_max_epu16(_mm512_unpacklo_epi32(t[2 * i], t[2 * i + 1]),
                                _mm512_unpackhi_epi32(t[2 * i], t[2 * i + 1]));
    }
    __m512i v = _mm512_max_epu16(_mm512_unpacklo_epi64(u[0], u[1]), _mm512_unpackhi_epi64(u[0], u[1]));
    v = _mm512_max_epu16(v, _mm512_shuffle_i32x4(v, v, 0xb1)); /* first halves of steps in lane 0, second in lane 2 */
    const __m128i first = _mm512_castsi512_si128(v), second = _mm512_extracti32x4_epi32(v, 2);
    return block > 16 ? _mm256_zextsi128_si256(_mm_max_epu16(first, second))
                      : _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second));
}

/* Of 16 blocks. One store: a load that follows can take it from the store buffer, where it would have to wait for two,
 * and for all that is being stored past the caches before them. */
#define VEC_TOPS_TOGETHER 16
static inline void vec_block_tops16(const void *p, const int64_t block, uint32_t top[16])
{
    __m256i words = vec_top_words(p, block);
    if (block > 16) {
        words = _mm256_inserti128_si256(words,
                                        _mm256_castsi256_si128(vec_top_words((const char *)p + 16 * block, block)), 1);
    }
    _mm512_storeu_si512(top, _mm512_cvtepu16_epi32(words));
}

static inline vf vf_from_e5m2(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 8));
}

static inline vf vf_from_e4m3fnuz(const uint8_t *p)
{
    const __m256i c = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    const __m256i h = _mm256_and_si256(_mm256_slli_epi16(c, 7), _mm256_set1_epi16((short)0xbfff));
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(c, _mm256_set1_epi16(-128));
    const __m256i fixed = _mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(fixed), _mm512_set1_ps(128.0f));
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
        _mm512_stream_si512((void *)(to + i), _mm512_loadu_si512(from + i));
    }
    memcpy(to + i, from + i, bytes - i);
}

static inline void vec_fence(void)
{
    _mm_sfence();
}

/* Small floats of m mantissa bits and smallest normal exponent e_min (kernels/cpu/rows_codes.h: round_small), by
 * addends that are looked up by exponent, modulo 32. Besides the power of two that rounds, an addend has what the
 * exponent makes of the code in its last bits, so that the sum's are the code. */
#define VEC_ADDENDS 1
typedef struct vec_addends {
    __m512 low, high, least; /* least: half of the smallest number, which rounds to 0 */
} vec_addends;

static inline vec_addends vec_addends_of(const int m, const int e_min)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_set1_epi32(126 + e_min - m); /* exponent, biased */
    __m512 half[2];
    for (int h = 0; h < 2; h++) {
        const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(16 * h));
        const __m512i from_first = _mm512_and_si512(_mm512_sub_epi32(index, first), _mm512_set1_epi32(31));
        const __m512i up =
            _mm512_max_epi32(_mm512_sub_epi32(from_first, _mm512_set1_epi32(m + 1)), _mm512_setzero_si512());
        const __m512i power = _mm512_add_epi32(up, _mm512_set1_epi32(150 - m + e_min));
        half[h] =
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(power, 23), _mm512_slli_epi32(up, (unsigned)m)));
    }
    return (vec_addends){half[0], half[1], _mm512_castsi512_ps(_mm512_slli_epi32(first, 23))};
}

/* Codes of |t| in the low half of each lane; t beyond 16 with `held` counts as 16. */
static inline vi vec_round(vf t, const int held, const vec_addends *a)
{
    __m512 size = _mm512_range_ps(t, a->least, 0xB); /* max(|t|, least) */
    if (held) {
        size = _mm512_min_ps(size, _mm512_set1_ps(16.0f));
    }
    const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(size), 23);
    return _mm512_castps_si512(_mm512_add_ps(size, _mm512_permutex2var_ps(a->low, exponent, a->high)));
}

/* ---- bf16 to codes of three mantissa bits by integers (kernels/cpu/rows_steps.h) ---- */

#define VEC_STEPS 1

/* Sixteen bytes for every 128 bits. */
static inline vi vec_table16(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}

/* 16-bit words, sign aside, with what their mantissas' table adds, beyond the base. */
static inline vi vec_step_sums(vi x, vi table, vi base)
{
    const __m512i bin = _mm512_and_si512(_mm512_srli_epi16(x, 3), _mm512_set1_epi16(15));
    const __m512i v = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    return _mm512_subs_epu16(_mm512_add_epi16(v, _mm512_shuffle_epi8(table, bin)), base);
}

/* Codes of 16-bit words, sign aside, before they are packed. */
static inline vi vec_step_codes(vi x, vi table, vi base)
{
    return _mm512_srli_epi16(vec_step_sums(x, table, base), 4);
}

/* Of two blocks of bf16: quarters of binades as qn_rows_e2m1_steps tells them. */
static inline vi vec_e2m1_met(vi x, const uint8_t *sf, const uint8_t (*add)[16], const uint32_t *bases)
{
    const uint8_t s = sf[0], t = sf[1];
    const __m512i table = _mm512_mask_broadcast_i32x4(vec_table16(add[s]), 0xff00,
                                                      _mm_loadu_si128((const __m128i *)(const void *)add[t]));
    const __m512i base = _mm512_mask_set1_epi32(vi_set(bases[s]), 0xff00, (int32_t)bases[t]);
    return _mm512_srli_epi16(vec_step_sums(x, table, base), 5);
}

/* What vi_put_nibbles4 takes, of both: five and more have their codes in a table, one to four the code 1. */
static inline vi vec_e2m1_stepped(vi x, vi y, vi met_x, vi met_y)
{
    const __m512i codes = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7));
    const __m512i held = _mm512_min_epu8(_mm512_packus_epi16(met_x, met_y), _mm512_set1_epi8(20));
    const __m512i none_last = _mm512_sub_epi8(held, _mm512_set1_epi8(1));
    const __m512i code = _mm512_shuffle_epi8(codes, _mm512_subs_epu8(none_last, _mm512_set1_epi8(4)));
    return vi_select(_mm512_set1_epi8(8), _mm512_srli_epi16(_mm512_packs_epi16(x, y), 4), code);
}

/* Whether one of the bytes is below that. */
static inline int vec_any_below(vi bytes, uint8_t least)
{
    return _mm512_cmplt_epu8_mask(bytes, _mm512_set1_epi8((char)least)) != 0;
}

/* Whether one of the words, sign aside, is in [first, first + count). */
static inline int vec_any_in(vi x, vi first, vi count)
{
    const __m512i from_first = _mm512_sub_epi16(_mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), first);
    return _mm512_cmplt_epu16_mask(from_first, count) != 0;
}

static inline vi vi_umin8(vi a, vi b)
{
    return _mm512_min_epu8(a, b);
}

/* Codes as vi_bytes leaves them, with the signs of the words a and b that they are of. */
static inline void vec_put_signed(uint8_t *p, vi codes, vi a, vi b, const int past)
{
    const __m512i both = vi_select(_mm512_set1_epi8((char)0x80), _mm512_packs_epi16(a, b), codes);
    vec_put(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), both), past);
}

/* Into the second cache: the first one's few outstanding lines are not for what comes later. A macro: gcc finds that a
 * function which only prefetches has no effect, and leaves out its calls. */
#define vec_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

/* The same behind what gives a and before what takes b, and some cycles behind the one before, whose turn it was: a
 * chain of products that are 0. Lines that are asked for in one cycle reach the second cache in any order, and that of
 * an Intel processor then sees no stream. */
#define VEC_FETCH_BETWEEN 1
/* What takes b comes behind what gives a. */
static inline void vec_together(vi *a, vi *b)
{
    __asm__("" : "+v"(*a), "+v"(*b));
}

#define VEC_AHEAD 6144
#define VEC_LOOK 2048
#define VEC_KEPT 524288

/* Processors that are not Intel's (measured: Zen 4) have a set of their own, without those two: what is kept does not
 * stay in their second cache, and reading needs no help. Int8 scales of groups are found sixteen together, not one by
 * one between codes; 4-bit codes ask for what comes 12 KB behind the next piece. Values are the same: a level's bits do
 * not depend on who made the processor. */
#define VEC_OTHER_AHEAD 12288
static inline void vec_fetch_between(vi *a, vi *b, const char *p, uint64_t *turn)
{
    __asm__ volatile("imul %2, %2\n\timul %2, %2\n\tprefetcht1 (%3, %2)" : "+v"(*a), "+v"(*b), "+r"(*turn) : "r"(p));
}

#endif
