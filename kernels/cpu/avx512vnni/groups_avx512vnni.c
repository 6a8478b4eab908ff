/* Panel kernels of the codes of groups, level avx512vnni: codes as bytes, dots of four bytes. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx512vnni
#include "kernels/cpu/avx512vnni/group_floats.h"
#include "kernels/cpu/name.h"

#define GROUP_LANES 16
#define GROUP_ROWS 8
#define GROUP_PANELS 4
#define GROUP_WORDS(bits) 0

typedef __m512i vw;

QN_INLINE vw vw_load(const char *p)
{
    return _mm512_loadu_si512(p);
}

QN_INLINE vw vw_nibbles(vw w, const int high)
{
    return _mm512_and_si512(high ? _mm512_srli_epi16(w, 4) : w, _mm512_set1_epi8(15));
}

QN_INLINE vw vw_with(vw w, vw plane, int from, const int mask)
{
    const __m512i up = _mm512_slli_epi32(_mm512_srl_epi32(plane, _mm_cvtsi32_si128(from)), 4);
    return _mm512_ternarylogic_epi32(w, up, _mm512_set1_epi8((char)(mask << 4)), 0xf8); /* w | (up & mask) */
}

QN_INLINE vw vw_table(vw w)
{
    const __m128i table = _mm_loadu_si128((const __m128i *)(const void *)qn_panel_table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), w);
}

QN_INLINE vg vg_begin(const int bits, int32_t start)
{
    (void)bits;
    return _mm512_set1_epi32(start);
}

QN_INLINE vg vg_dot(const int bits, vg sums, vw w, const char *x)
{
    (void)bits;
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(four));
}

QN_INLINE vg vg_end(const int bits, vg sums, int32_t start)
{
    (void)bits;
    (void)start;
    return sums;
}

QN_INLINE vg vg_plus(vg a, vg b, const int up)
{
    return _mm512_add_epi32(a, _mm512_slli_epi32(b, (unsigned)up));
}

#include "kernels/cpu/panel_groups.h"
