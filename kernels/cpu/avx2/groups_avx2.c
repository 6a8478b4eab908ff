/* Panel kernels of the codes of groups, level avx2: pairs of bytes to 16 bits, which hold a group's sum of 4-bit
 * codes, and pairs of words where values have eight bits; sixteen columns are two halves. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx2
#include "kernels/cpu/name.h"

#define GROUP_LANES 8
#define GROUP_ROWS 4
#define GROUP_PANELS 2
#define GROUP_WORDS(bits) ((bits) == 8)

typedef __m256i vg;
typedef __m256 vgf;
typedef __m256i vw;

QN_INLINE vgf vgf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

QN_INLINE void vgf_store(float *p, vgf a)
{
    _mm256_storeu_ps(p, a);
}

QN_INLINE vgf vgf_set(float x)
{
    return _mm256_set1_ps(x);
}

QN_INLINE vgf vgf_mul(vgf a, vgf b)
{
    return _mm256_mul_ps(a, b);
}

QN_INLINE vgf vgf_fma(vgf a, vgf b, vgf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

QN_INLINE vgf vgf_fnma(vgf a, vgf b, vgf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

QN_INLINE vgf vgf_of(vg a)
{
    return _mm256_cvtepi32_ps(a);
}

QN_INLINE vgf vgf_of_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

QN_INLINE vgf vgf_of_u8(const char *p)
{
    return vgf_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

QN_INLINE vgf vgf_of_i8(const char *p)
{
    return vgf_of(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

QN_INLINE vw vw_load(const char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

QN_INLINE vw vw_nibbles(vw w, const int high)
{
    return _mm256_and_si256(high ? _mm256_srli_epi16(w, 4) : w, _mm256_set1_epi8(15));
}

QN_INLINE vw vw_with(vw w, vw plane, int from, const int mask)
{
    const __m256i up = _mm256_slli_epi32(_mm256_srl_epi32(plane, _mm_cvtsi32_si128(from)), 4);
    return _mm256_or_si256(w, _mm256_and_si256(up, _mm256_set1_epi8((char)(mask << 4))));
}

QN_INLINE vw vw_table(vw w)
{
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)qn_panel_table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), w);
}

QN_INLINE vg vg_begin(const int bits, int32_t start)
{
    return bits == 4 ? _mm256_setzero_si256() : _mm256_set1_epi32(start);
}

/* Pairs of products of 4 bits are at most 2 * 15 * 128, eight of them below 2^15; of 6 bits one is. */
QN_INLINE vg vg_dot(const int bits, vg sums, vw w, const char *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    const __m256i v = _mm256_set1_epi32(four);
    if (bits == 4) {
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, v));
    } else {
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(w, v), _mm256_set1_epi16(1)));
    }
    __asm__("" : "+x"(sums)); /* added in this order: in another one products wait in memory */
    return sums;
}

QN_INLINE __m256i four_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Bytes of even places meet the words of elements k and k + 2, of odd ones k + 1 and k + 3. */
QN_INLINE void vg_words(vg *high, vg *low, vw w, const qn_panel_digits *x, int64_t step)
{
    const __m256i even = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(w, 8);
    const __m256i under = four_bytes(x->under + step * 4);
    const __m256i first = _mm256_srai_epi16(_mm256_slli_epi16(under, 8), 8), second = _mm256_srai_epi16(under, 8);
    vg h = _mm256_add_epi32(*high, _mm256_madd_epi16(even, four_bytes(x->word + step * 4)));
    vg l = _mm256_add_epi32(*low, _mm256_madd_epi16(even, first));
    h = _mm256_add_epi32(h, _mm256_madd_epi16(odd, four_bytes(x->word + step * 4 + 2)));
    l = _mm256_add_epi32(l, _mm256_madd_epi16(odd, second));
    __asm__("" : "+x"(h), "+x"(l)); /* as in vg_dot */
    *high = h;
    *low = l;
}

QN_INLINE vg vg_end(const int bits, vg sums, int32_t start)
{
    if (bits != 4) {
        return sums;
    }
    return _mm256_add_epi32(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)), _mm256_set1_epi32(start));
}

QN_INLINE vg vg_plus(vg a, vg b, const int up)
{
    return _mm256_add_epi32(a, _mm256_slli_epi32(b, up));
}

#include "kernels/cpu/panel_groups.h"
