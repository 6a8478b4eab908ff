/* Tables of 256 bytes in registers, looked up 64 codes at a time.
 *
 * Four permutes of 64 bytes, each merged where the code may be its quarter's, the
 * last of them right: on processors whose permute of two registers is three
 * operations this is the shorter way, on the others it costs the same. */
#ifndef QN_KERNELS_AVX512VNNI_BYTES_H
#define QN_KERNELS_AVX512VNNI_BYTES_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/cpu/name.h"

typedef struct byte_table {
    __m512i quarter[4];
} byte_table;

/* Which codes have bit 6, bit 7, both. */
typedef struct byte_quarters {
    __mmask64 low, high, both;
} byte_quarters;

QN_INLINE void table_load(byte_table *t, const uint8_t *from)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t->quarter[i] = _mm512_loadu_si512(from + i * 64);
    }
}

QN_INLINE byte_quarters quarters_of(__m512i codes)
{
    const __mmask64 high = _mm512_movepi8_mask(codes), low = _mm512_movepi8_mask(_mm512_add_epi8(codes, codes));
    return (byte_quarters){low, high, _kand_mask64(high, low)};
}

QN_INLINE __m512i look_up(const byte_table *t, __m512i codes, byte_quarters q)
{
    __m512i r = _mm512_permutexvar_epi8(codes, t->quarter[0]);
    r = _mm512_mask_permutexvar_epi8(r, q.low, codes, t->quarter[1]);
    r = _mm512_mask_permutexvar_epi8(r, q.high, codes, t->quarter[2]);
    return _mm512_mask_permutexvar_epi8(r, q.both, codes, t->quarter[3]);
}

#endif
