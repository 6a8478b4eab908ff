/* Tables of 256 bytes in registers, looked up 64 codes at a time: two permutes of 128 bytes.
 *
 * A masked permute of two tables leaves its index where the mask is clear, so the second one finds the codes of its
 * half where the first one left them. Where a permute of two registers is three operations (QN_SHORT_PERMUTES), four of
 * 64 bytes, each merged where the code may be its quarter's, the last of them right, are the shorter way. */
#ifndef QN_KERNELS_AVX512VNNI_BYTES_H
#define QN_KERNELS_AVX512VNNI_BYTES_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/name.h"

/* The same number in all bytes of each of four lanes. */
QN_INLINE __m512i lanes_of(int a, int b, int c, int d)
{
    const __m128i lane[4] = {_mm_set1_epi8((char)a), _mm_set1_epi8((char)b), _mm_set1_epi8((char)c),
                             _mm_set1_epi8((char)d)};
    __m512i all = _mm512_castsi128_si512(lane[0]);
    all = _mm512_inserti32x4(all, lane[1], 1);
    all = _mm512_inserti32x4(all, lane[2], 2);
    return _mm512_inserti32x4(all, lane[3], 3);
}

typedef struct byte_table {
    __m512i quarter[4];
} byte_table;

QN_INLINE void table_load(byte_table *t, const uint8_t *from)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t->quarter[i] = _mm512_loadu_si512(from + i * 64);
    }
}

#ifdef QN_SHORT_PERMUTES
/* Which codes have bit 6, bit 7, both. */
typedef struct byte_parts {
    __mmask64 low, high, both;
} byte_parts;

QN_INLINE byte_parts parts_of(__m512i codes)
{
    const __mmask64 high = _mm512_movepi8_mask(codes), low = _mm512_movepi8_mask(_mm512_add_epi8(codes, codes));
    return (byte_parts){low, high, _kand_mask64(high, low)};
}

QN_INLINE __m512i look_up(const byte_table *t, __m512i codes, byte_parts p)
{
    __m512i r = _mm512_permutexvar_epi8(codes, t->quarter[0]);
    r = _mm512_mask_permutexvar_epi8(r, p.low, codes, t->quarter[1]);
    r = _mm512_mask_permutexvar_epi8(r, p.high, codes, t->quarter[2]);
    return _mm512_mask_permutexvar_epi8(r, p.both, codes, t->quarter[3]);
}
#else
/* Which codes are the lower half's, the upper one's. */
typedef struct byte_parts {
    __mmask64 low, high;
} byte_parts;

QN_INLINE byte_parts parts_of(__m512i codes)
{
    const __mmask64 high = _mm512_movepi8_mask(codes);
    return (byte_parts){_knot_mask64(high), high};
}

QN_INLINE __m512i look_up(const byte_table *t, __m512i codes, byte_parts p)
{
    const __m512i r = _mm512_mask2_permutex2var_epi8(t->quarter[0], codes, p.low, t->quarter[1]);
    return _mm512_mask2_permutex2var_epi8(t->quarter[2], r, p.high, t->quarter[3]);
}
#endif

#endif
