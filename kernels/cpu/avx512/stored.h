/* Stored keys and values of level avx512 (kernels/cpu/attention_stored.h). */
#ifndef QN_KERNELS_AVX512_STORED_H
#define QN_KERNELS_AVX512_STORED_H

#include <immintrin.h>

#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/name.h"

#define TILE 32
#define TILE_ROWS 8
#define STORED_F32 0
#define TURN16 32
#define TURN8 64
#define ATT_NARROW (&qn_att__avx2)
#define E4M3_UNIT 256.0f /* a code as f16 is its value over this */

/* vf_from_e4m3 without NaN, its factor in the scales */
QN_INLINE void codes_tile(const char *p, const vf scales[2], vf out[2])
{
    const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)p);
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
    const __m512i bits = _mm512_and_si512(words, _mm512_set1_epi16((short)0xbfff));
    out[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(bits)), scales[0]);
    out[1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)), scales[1]);
}

/* In each quarter, word j of vector i goes to word i of vector j. */
QN_INLINE void turn_words(__m512i x[8])
{
    __m512i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        a[i + 4] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* b[0], b[1]: words 0 to 3 of vectors 0 to 3; b[2], b[3]: of 4 to 7 */
        const int from = i / 2 * 4 + i % 2;
        x[2 * i] = _mm512_unpacklo_epi64(b[from], b[from + 2]);
        x[2 * i + 1] = _mm512_unpackhi_epi64(b[from], b[from + 2]);
    }
}

typedef struct tile_at {
    const char *from;
    int64_t stride;
} tile_at;

QN_INLINE tile_at tile_from(const char *from, int64_t stride)
{
    return (tile_at){from, stride};
}

/* Thirty-two elements of 16 bits of the keys: whole lines, each read once. Keys that are a large power of two apart
 * share few sets of the first cache, which does not hold thirty-two of their lines. */
QN_INLINE void turn16(const tile_at *from, int64_t at, char *to)
{
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int first = 0; first < TILE; first += 16) {
        __m512i x[2][8];
        for (int i = 0; i < 16; i++) {
            x[i / 8][i % 8] = _mm512_loadu_si512(from->from + (first + i) * from->stride + at);
        }
        turn_words(x[0]);
        turn_words(x[1]);
        for (int i = 0; i < 8; i++) { /* quarter j of x[][i]: element 8 j + i of eight keys */
            char *const line = to + i * 2 * TILE + first * 2;
            const __m512i a = _mm512_permutex2var_epi64(x[0][i], low, x[1][i]);
            const __m512i b = _mm512_permutex2var_epi64(x[0][i], high, x[1][i]);
            _mm256_storeu_si256((__m256i *)(void *)line, _mm512_castsi512_si256(a));
            _mm256_storeu_si256((__m256i *)(void *)(line + 16 * TILE), _mm512_extracti64x4_epi64(a, 1));
            _mm256_storeu_si256((__m256i *)(void *)(line + 32 * TILE), _mm512_castsi512_si256(b));
            _mm256_storeu_si256((__m256i *)(void *)(line + 48 * TILE), _mm512_extracti64x4_epi64(b, 1));
        }
    }
}

/* Sixty-four bytes of the keys. */
QN_INLINE void turn8(const tile_at *from, int64_t at, char *to)
{
    for (int part = 0; part < 4; part++) { /* sixteen keys, half of each sixteen elements */
        const int first = part / 2 * 16, high = part % 2;
        __m512i x[8];
        for (int i = 0; i < 8; i++) {
            const __m512i a = _mm512_loadu_si512(from->from + (first + 2 * i) * from->stride + at);
            const __m512i b = _mm512_loadu_si512(from->from + (first + 2 * i + 1) * from->stride + at);
            x[i] = high ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
        }
        turn_words(x);
        for (int i = 0; i < 8; i++) {
            char *const line = to + (8 * high + i) * TILE + first;
            _mm_storeu_si128((__m128i *)(void *)line, _mm512_castsi512_si128(x[i]));
            _mm_storeu_si128((__m128i *)(void *)(line + 16 * TILE), _mm512_extracti32x4_epi32(x[i], 1));
            _mm_storeu_si128((__m128i *)(void *)(line + 32 * TILE), _mm512_extracti32x4_epi32(x[i], 2));
            _mm_storeu_si128((__m128i *)(void *)(line + 48 * TILE), _mm512_extracti32x4_epi32(x[i], 3));
        }
    }
}

/* No code of the keys is NaN. */
QN_INLINE int nan_free(const char *rows, int64_t stride, int64_t d, int64_t keys)
{
    const __m512i magnitude = _mm512_set1_epi8(0x7f);
    __m512i most = _mm512_setzero_si512();
    for (int64_t key = 0; key < keys; key++) {
        for (int64_t i = 0; i < d; i += 64) {
            const __m512i x = _mm512_loadu_si512(rows + key * stride + i);
            most = _mm512_max_epu8(most, _mm512_and_si512(x, magnitude));
        }
    }
    return _mm512_cmpeq_epi8_mask(most, magnitude) == 0;
}

#endif
