/* Vectors of eight weights, which are registers from level avx2 on (kernels/common/vq.h): decoded, or, where a row's
 * chains have eight lanes, multiplied as they are looked up. */
#include <string.h>

#include "kernels/common/mm.h"
#include "kernels/common/vq.h"
#include "kernels/cpu/name.h"

#define EIGHT 8
#define DOT_TOGETHER 4 /* columns */
#define CHAIN_GROUPS (QN_MM_CHAIN / EIGHT)

/* What of a run each vector needs, where stores do not make the compiler read it again. */
typedef struct eights {
    const qn_vq_run *run;
    const float *table[2];
    const uint8_t *codes;
    int64_t first_bit, stride;
} eights;

QN_INLINE eights eights_of(const qn_vq_run *run)
{
    return (eights){run, {run->table[0], run->table[1]}, run->codes, run->first_bit, run->stride};
}

/* Vector g of a run. each: bits of every code, where the codes of a group begin at a byte and are at most 32 bits; 0 of
 * others. */
QN_INLINE __m256 vector_at(const eights *e, const int32_t books, const int32_t each, int32_t bits, const uint8_t *codes,
                           int64_t g)
{
    int64_t bit = e->first_bit + g * bits;
    uint32_t word = 0;
    __m256 sum = _mm256_setzero_ps();
    if (each) {
        memcpy(&word, codes + (bit >> 3), sizeof word);
        for (int32_t c = 0; c < books; c++) {
            const uint32_t code = word >> c * each & ((1u << each) - 1);
            const __m256 from = _mm256_loadu_ps(e->table[c] + code * e->stride);
            sum = c ? _mm256_add_ps(sum, from) : from;
        }
        return sum;
    }
    for (int32_t c = 0; c < books; c++) {
        const uint32_t code = word_at(codes, bit) & ((1u << e->run->bits[c]) - 1);
        const __m256 from = _mm256_loadu_ps(e->run->table[c] + code * e->stride);
        sum = c ? _mm256_add_ps(sum, from) : from;
        bit += e->run->bits[c];
    }
    return sum;
}

/* Calls F with what is constant of the usual codes. */
#define OF_BOOKS(F, run, ...)                                                                                          \
    do {                                                                                                               \
        int32_t all = 0;                                                                                               \
        for (int32_t c = 0; c < (run)->books; c++) {                                                                   \
            all += (run)->bits[c];                                                                                     \
        }                                                                                                              \
        if ((run)->books == 1 && all == 16) {                                                                          \
            F(run, 1, 16, 16, __VA_ARGS__);                                                                            \
        } else if ((run)->books == 2 && (run)->bits[0] == 12 && (run)->bits[1] == 12) {                                \
            F(run, 2, 12, 24, __VA_ARGS__);                                                                            \
        } else {                                                                                                       \
            F(run, (run)->books, 0, all, __VA_ARGS__);                                                                 \
        }                                                                                                              \
    } while (0)

/* ---- decoded ---- */

/* A run may be a piece of a longer one: the next piece's codes. */
QN_INLINE void fetch_next(const qn_vq_run *run, int32_t bits)
{
    const uint8_t *const next = run->codes + ((run->first_bit + run->groups * bits) >> 3);
    for (int64_t i = 0; i < run->groups * bits >> 3; i += 64) {
        vec_prefetch(next + i);
    }
}

QN_INLINE void decode_eights(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, float *out)
{
    const eights e = eights_of(run);
    const int64_t groups = run->groups;
    fetch_next(run, bits);
    for (int64_t g = 0; g < groups; g++) {
        _mm256_storeu_ps(out + g * EIGHT, vector_at(&e, books, each, bits, e.codes, g));
    }
}

static void vq_decode_eights(const qn_vq_run *run, float *out)
{
    if (run->vector != EIGHT) {
        vq_decode(run, out);
        return;
    }
    OF_BOOKS(decode_eights, run, out);
}

/* Eight vectors' lanes turned over. */
QN_INLINE void turn_eight(__m256 v[8])
{
    __m256 pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256d a = _mm256_castps_pd(pairs[i + h]), b = _mm256_castps_pd(pairs[i + h + 2]);
            fours[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            fours[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

QN_INLINE void across_eights(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, float *out,
                             int64_t stride)
{
    const eights e = eights_of(run);
    int64_t g = 0;
    fetch_next(run, bits);
    for (; g + 8 <= run->groups; g += 8) {
        __m256 v[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            v[i] = vector_at(&e, books, each, bits, e.codes, g + i);
        }
        turn_eight(v);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            _mm256_storeu_ps(out + i * stride + g, v[i]);
        }
    }
    for (; g < run->groups; g++) {
        float v[8];
        _mm256_storeu_ps(v, vector_at(&e, books, each, bits, e.codes, g));
        for (int i = 0; i < 8; i++) {
            out[i * stride + g] = v[i];
        }
    }
}

static void vq_across_eights(const qn_vq_run *run, float *out, int64_t stride)
{
    if (run->vector != EIGHT) {
        vq_across(run, out, stride);
        return;
    }
    OF_BOOKS(across_eights, run, out, stride);
}

#if VL == EIGHT
/* ---- multiplied ---- */

QN_INLINE void dot_some(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits,
                        const uint8_t *codes, int64_t stream, const int columns, const float *x, float *lanes)
{
    const eights e = eights_of(run);
    for (int64_t g = 0; g < run->groups;) {
        const int64_t end = g + CHAIN_GROUPS < run->groups ? g + CHAIN_GROUPS : run->groups;
        vf sum[DOT_TOGETHER];
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            sum[c] = vf_set(0.0f);
        }
        for (; g < end; g++) {
            const vf v = vf_load(x + g * VL);
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) {
                sum[c] = vf_fma(v, vector_at(&e, books, each, bits, codes + c * stream, g), sum[c]);
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            vf_store(lanes + c * VL, vf_add(vf_load(lanes + c * VL), sum[c]));
        }
    }
}

QN_INLINE void dot(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, int64_t stream,
                   int64_t columns, const float *x, float *lanes)
{
    int64_t c = 0;
    for (; c + DOT_TOGETHER <= columns; c += DOT_TOGETHER) {
        dot_some(run, books, each, bits, run->codes + c * stream, stream, DOT_TOGETHER, x, lanes + c * VL);
    }
    for (; c < columns; c++) {
        dot_some(run, books, each, bits, run->codes + c * stream, stream, 1, x, lanes + c * VL);
    }
}

static void vq_dot(const qn_vq_run *run, int64_t stream, int64_t columns, const float *x, float *lanes)
{
    OF_BOOKS(dot, run, stream, columns, x, lanes);
}

QN_INLINE void dot_across(const qn_vq_run *run, const int32_t books, const int32_t each, int32_t bits, const float *x,
                          float *lanes)
{
    const eights e = eights_of(run);
    for (int64_t g = 0; g < run->groups;) {
        const int64_t end = g + QN_MM_CHAIN < run->groups ? g + QN_MM_CHAIN : run->groups;
        vf sum[8]; /* of the elements of a lane: eight columns */
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            sum[i] = vf_set(0.0f);
        }
        for (; g + 8 <= end; g += 8) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                sum[i] = vf_fma(vf_set(x[g + i]), vector_at(&e, books, each, bits, e.codes, g + i), sum[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (g + i < end) {
                sum[i] = vf_fma(vf_set(x[g + i]), vector_at(&e, books, each, bits, e.codes, g + i), sum[i]);
            }
        }
        g = end;
        turn_eight(sum);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            vf_store(lanes + i * VL, vf_add(vf_load(lanes + i * VL), sum[i]));
        }
    }
}

static void vq_dot_across(const qn_vq_run *run, const float *x, float *lanes)
{
    OF_BOOKS(dot_across, run, x, lanes);
}
#endif
