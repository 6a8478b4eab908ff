/* Panel kernels of 4-bit floats times rows of bytes (kernels/cpu/fp4_bytes.h), level avx2: sums of sixteen elements fit
 * int16. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx2
#include "kernels/cpu/name.h"

#define LANES 8
#define FEW_ROWS 4
#define FEW_TWO 2
#define MANY_FROM 5
#define MR 3
#define MOST_GROUPS 4 /* of a block */
#define SCALES_AT 512 /* in it */

typedef qn_panel_bytes xb;
typedef __m256i vb;
typedef __m256i vd; /* pairs of int16 */
typedef __m256 vf;

QN_INLINE int spans_of(const int code)
{
    (void)code;
    return 4;
}

QN_INLINE vb vb_load(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

QN_INLINE void vb_store(char *p, vb v)
{
    _mm256_store_si256((__m256i *)(void *)p, v);
}

QN_INLINE vb vb_look(vb line, const int i)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i nibbles = _mm256_and_si256(i ? _mm256_srli_epi16(line, 4) : line, _mm256_set1_epi8(15));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

QN_INLINE vd vd_begin(const xb *x, int s)
{
    (void)x, (void)s; /* they end with its offset */
    return _mm256_setzero_si256();
}

QN_INLINE vd vd_add(vd sums, vb codes, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four)));
}

QN_INLINE vf vd_end(vd sums, const xb *x, int s)
{
    const __m256i whole = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(whole, _mm256_set1_epi32(x->offset[s])));
}

QN_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

QN_INLINE vf vf_load(const float *p)
{
    return _mm256_load_ps(p);
}

QN_INLINE void vf_store(float *p, vf v)
{
    _mm256_store_ps(p, v);
}

QN_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

QN_INLINE vf vf_scaled(vf a, const float *x)
{
    return _mm256_mul_ps(a, _mm256_broadcast_ss(x));
}

QN_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* Floats of a 256th of eight e4m3 codes in the upper halves of words: as f16, which has their bits but for the place of
 * the sign. */
QN_INLINE void store_scales(__m128i words, float *to)
{
    const __m128i sign = _mm_and_si128(words, _mm_set1_epi16((short)0x8000));
    const __m128i size = _mm_srli_epi16(_mm_slli_epi16(words, 1), 2);
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm_or_si128(size, sign)));
}

/* Scales of a block, [group][column]. */
QN_INLINE void block_scales(const int code, const char *block, float scale[MOST_GROUPS][QN_PANEL_COLS])
{
    const char *const from = block + SCALES_AT;
    if (code == QN_PANEL_MXFP4) {
        for (int i = 0; i < 4; i++) {
            const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(from + i * 8)));
            _mm256_store_si256((__m256i *)(void *)(scale[i / 2] + i % 2 * 8), _mm256_slli_epi32(e, 23));
        }
        return;
    }
    for (int h = 0; h < 2; h++) { /* quarters 2h and 2h + 1 of the columns, each [group][4] */
        const __m128i *const quarters = (const __m128i *)(const void *)(from + h * 32);
        const __m128i a = _mm_loadu_si128(quarters), b = _mm_loadu_si128(quarters + 1), zero = _mm_setzero_si128();
        const __m128i first = _mm_unpacklo_epi32(a, b), second = _mm_unpackhi_epi32(a, b);
        store_scales(_mm_unpacklo_epi8(zero, first), scale[0] + h * 8);
        store_scales(_mm_unpackhi_epi8(zero, first), scale[1] + h * 8);
        store_scales(_mm_unpacklo_epi8(zero, second), scale[2] + h * 8);
        store_scales(_mm_unpackhi_epi8(zero, second), scale[3] + h * 8);
    }
}

/* Twice the values of 32 codes, as int8. */
static __m256i from_codes(const char *codes)
{
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)codes));
    const __m256i each = _mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), _mm256_and_si256(each, _mm256_set1_epi8(15)));
}

QN_INLINE void row_block(const int code, const char *from, int coded, qn_panel_bytes *out)
{
    (void)code; /* sums are of sixteen */
    const __m256i order = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0f0b0e0a0d090c08, 0x0703060205010400));
    for (int h = 0; h < 2; h++) {
        const __m256i line = coded ? from_codes(from + h * 16) : vb_load(from + h * 32);
        const __m256i twos = _mm256_maddubs_epi16(_mm256_set1_epi8(12), line);
        int32_t fours[8];
        _mm256_storeu_si256((__m256i *)(void *)fours, _mm256_madd_epi16(twos, _mm256_set1_epi16(-1)));
        _mm256_storeu_si256((__m256i *)(void *)(out->x + h * 32), _mm256_shuffle_epi8(line, order));
        out->offset[2 * h] = fours[0] + fours[1] + fours[2] + fours[3];
        out->offset[2 * h + 1] = fours[4] + fours[5] + fours[6] + fours[7];
    }
}

#include "kernels/cpu/fp4_bytes.h"
