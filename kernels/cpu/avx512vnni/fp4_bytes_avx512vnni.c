/* Panel kernels of 4-bit floats times rows of bytes (kernels/cpu/fp4_bytes.h), level avx512vnni. */
#include "kernels/cpu/avx512vnni/fp4.h"

#define FEW_ROWS 12
#define FEW_TWO 6
#define MANY_FROM 25

typedef qn_panel_bytes xb;

QN_INLINE int spans_of(const int code)
{
    return code == QN_PANEL_NVFP4 ? 4 : 2;
}

/* The permute looks at six bits of a byte. */
QN_INLINE vb vb_look(vb line, const int i)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_permutexvar_epi8(i ? _mm512_srli_epi16(line, 4) : line, _mm512_broadcast_i32x4(table));
}

QN_INLINE vd vd_begin(const xb *x, int s)
{
    return _mm512_set1_epi32(x->offset[s]);
}

QN_INLINE vd vd_add(vd sums, vb codes, const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}

QN_INLINE vf vd_end(vd sums, const xb *x, int s)
{
    (void)x, (void)s; /* they began with its offset */
    return _mm512_cvtepi32_ps(sums);
}

/* Twice the values of 64 codes, as int8. */
static __m512i from_codes(const char *codes)
{
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m512i pairs = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)codes));
    const __m512i each = _mm512_or_si512(pairs, _mm512_slli_epi16(pairs, 4));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), _mm512_and_si512(each, _mm512_set1_epi8(15)));
}

QN_INLINE void row_block(const int code, const char *from, int coded, qn_panel_bytes *out)
{
    const __m128i order = _mm_set_epi64x(0x0f0b0e0a0d090c08, 0x0703060205010400);
    const int lanes = 16 / spans_of(code);
    const __m512i line = coded ? from_codes(from) : vb_load(from);
    int32_t sums[16];
    _mm512_storeu_si512(sums, _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(12), line));
    _mm512_storeu_si512(out->x, _mm512_shuffle_epi8(line, _mm512_broadcast_i32x4(order)));
    memset(out->offset, 0, sizeof out->offset);
    for (int i = 0; i < 16; i++) {
        out->offset[i / lanes] -= sums[i];
    }
}

#include "kernels/cpu/fp4_bytes.h"
