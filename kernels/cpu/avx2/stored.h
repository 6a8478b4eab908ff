/* Stored keys and values of level avx2 (kernels/cpu/attention_stored.h). */
#ifndef QN_KERNELS_AVX2_STORED_H
#define QN_KERNELS_AVX2_STORED_H

#include <immintrin.h>

#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/name.h"

#define TILE 16
#define TILE_ROWS 4
#define STORED_F32 1
#define TURN16 8
#define TURN8 32
#define ATT_NARROW NULL
#define E4M3_UNIT 256.0f /* a code as f16 is its value over this */

/* vf_from_e4m3 without NaN, its factor in the scales */
QN_INLINE void codes_tile(const char *p, const vf scales[2], vf out[2])
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    const __m256i bits = _mm256_and_si256(words, _mm256_set1_epi16((short)0xbfff));
    out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), scales[0]);
    out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)), scales[1]);
}

/* In each half, word j of vector i goes to word i of vector j. */
QN_INLINE void turn_words(__m256i x[8])
{
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        a[i + 4] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) { /* b[0], b[1]: words 0 to 3 of vectors 0 to 3; b[2], b[3]: of 4 to 7 */
        const int from = i / 2 * 4 + i % 2;
        x[2 * i] = _mm256_unpacklo_epi64(b[from], b[from + 2]);
        x[2 * i + 1] = _mm256_unpackhi_epi64(b[from], b[from + 2]);
    }
}

/* Addresses of sixteen rows as four bases plus none, one, two or three strides: more would not stay in registers. */
typedef struct tile_at {
    const char *base[4];
    int64_t stride, triple;
} tile_at;

QN_INLINE tile_at tile_from(const char *from, int64_t stride)
{
    tile_at t = {.stride = stride, .triple = 3 * stride};
    for (int i = 0; i < 4; i++) {
        t.base[i] = from + 4 * i * stride;
    }
    __asm__("" : "+r"(t.base[1]), "+r"(t.base[2]), "+r"(t.base[3]), "+r"(t.triple));
    return t;
}

QN_INLINE const char *tile_row(const tile_at *t, const int i)
{
    return t->base[i / 4] + (i % 4 == 3 ? t->triple : i % 4 * t->stride);
}

/* Eight elements of 16 bits of sixteen keys. */
QN_INLINE void turn16(const tile_at *from, int64_t at, char *to)
{
    __m256i x[8];
    for (int i = 0; i < 8; i++) {
        const __m128i *const p = (const __m128i *)(const void *)(tile_row(from, i) + at);
        const __m128i *const q = (const __m128i *)(const void *)(tile_row(from, i + 8) + at);
        x[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p)), _mm_loadu_si128(q), 1);
    }
    turn_words(x);
    for (int i = 0; i < 8; i++) {
        _mm256_storeu_si256((__m256i *)(void *)(to + i * 2 * TILE), x[i]);
    }
}

/* Thirty-two bytes of sixteen keys. */
QN_INLINE void turn8(const tile_at *from, int64_t at, char *to)
{
    for (int high = 0; high < 2; high++) {
        __m256i x[8];
        for (int i = 0; i < 8; i++) {
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(tile_row(from, 2 * i) + at));
            const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(tile_row(from, 2 * i + 1) + at));
            x[i] = high ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
        }
        turn_words(x);
        for (int i = 0; i < 8; i++) {
            char *const line = to + (8 * high + i) * TILE;
            _mm_storeu_si128((__m128i *)(void *)line, _mm256_castsi256_si128(x[i]));
            _mm_storeu_si128((__m128i *)(void *)(line + 16 * TILE), _mm256_extracti128_si256(x[i], 1));
        }
    }
}

/* No code of the keys is NaN. */
QN_INLINE int nan_free(const char *rows, int64_t stride, int64_t d, int64_t keys)
{
    const __m256i magnitude = _mm256_set1_epi8(0x7f);
    __m256i most = _mm256_setzero_si256();
    for (int64_t key = 0; key < keys; key++) {
        for (int64_t i = 0; i < d; i += 32) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(rows + key * stride + i));
            most = _mm256_max_epu8(most, _mm256_and_si256(x, magnitude));
        }
    }
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, magnitude)) == 0;
}

#endif
