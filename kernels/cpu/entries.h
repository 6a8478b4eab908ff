/* Entries of f16 codebooks side by side: what the vec.h of levels avx2 and avx512 share. */
#ifndef QN_KERNELS_CPU_ENTRIES_H
#define QN_KERNELS_CPU_ENTRIES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Eight halves of 8 / channels entries, channels 2, 4 or 8. */
static inline __m128i vec_eight_halves(const uint16_t *const *entry, const int channels)
{
    if (channels == 8) {
        return _mm_loadu_si128((const __m128i *)(const void *)entry[0]);
    }
    if (channels == 4) {
        const __m128d low = _mm_load_sd((const double *)(const void *)entry[0]);
        return _mm_castpd_si128(_mm_loadh_pd(low, (const double *)(const void *)entry[1]));
    }
    int32_t word[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        memcpy(&word[i], entry[i], sizeof word[i]);
    }
    return _mm_insert_epi32(_mm_insert_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(word[0]), word[1], 1), word[2], 2),
                            word[3], 3);
}

#endif
