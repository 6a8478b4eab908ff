/* Attention of few rows from keys and values as they are stored (kernels/common/attention.h), for attention_avx2.c.
 *
 * Keys are turned round as they are stored, sixteen at a time, which takes half or a quarter of the shuffles that
 * floats take, and become floats where they are multiplied, as values do: neither is written to memory as floats. Every
 * score is one chain over the elements, every element of the result one over the keys of the chunk. */
#ifndef QN_KERNELS_AVX2_ATTENTION_STORED_H
#define QN_KERNELS_AVX2_ATTENTION_STORED_H

#include <math.h>

#include "kernels/common/attention.h"
#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/name.h"

#define ATT_STORED
#define TILE 16   /* keys, and elements of values */
#define VALUES 32 /* keys whose values are added up before the results go to memory and back */
#define TILE_ROWS 4
#define E4M3_UNIT 256.0f /* a code as f16 is its value over this */

QN_INLINE int64_t form_bytes(const qn_att_form form)
{
    return form == QN_ATT_F32 ? 4 : (form == QN_ATT_E4M3 ? 1 : 2);
}

/* Sixteen elements as floats; codes times their scales. */
QN_INLINE void tile_floats(const qn_att_form form, const char *p, const vf scales[2], vf out[2])
{
    switch (form) {
    case QN_ATT_F16:
        out[0] = vf_from_f16(p);
        out[1] = vf_from_f16(p + 16);
        break;
    case QN_ATT_BF16:
        out[0] = vf_from_bf16(p);
        out[1] = vf_from_bf16(p + 16);
        break;
    case QN_ATT_E4M3: { /* vf_from_e4m3 without NaN, its factor in the scales */
        const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)p);
        const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
        const __m256i bits = _mm256_and_si256(words, _mm256_set1_epi16((short)0xbfff));
        out[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), scales[0]);
        out[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)), scales[1]);
        break;
    }
    default:
        out[0] = vf_load((const float *)(const void *)p);
        out[1] = vf_load((const float *)(const void *)p + 8);
    }
}

/* ---- keys turned round ---- */

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

/* Step `step` of `steps` asks for its share of the rows. */
QN_INLINE void ask(const qn_att_ahead *soon, int64_t step, int64_t steps, const int64_t rows)
{
    for (int64_t i = step * rows / steps; i < (step + 1) * rows / steps && i < soon->count; i++) {
        for (int64_t at = 0; at < soon->bytes; at += 64) {
            vec_prefetch(soon->rows + i * soon->stride + at);
        }
    }
}

/* What is asked for beside `count` keys from key `first` on: as many that come QN_ATT_SOON later, of these or of the
 * next ones. */
QN_INLINE qn_att_ahead soon_of(const qn_att_stored *these, int64_t first, int64_t keys, const int64_t count,
                               int64_t bytes, qn_att_ahead next)
{
    const int64_t later = first + QN_ATT_SOON, end = (keys + count - 1) / count * count;
    qn_att_ahead soon = next;
    if (later < end) {
        soon.rows = these->rows + later * these->stride;
        soon.stride = these->stride;
        soon.bytes = bytes;
        soon.count = keys - later;
    } else if (next.rows) {
        soon.rows += (later - end) * next.stride;
        soon.count -= later - end;
    }
    soon.count = soon.count < count ? soon.count : count;
    return soon;
}

QN_INLINE void turn_keys(const qn_att_form form, const char *from, int64_t stride, int64_t d, char *to,
                         const qn_att_ahead *soon)
{
    const int64_t step = form == QN_ATT_E4M3 ? 32 : 8;
    const tile_at at = tile_from(from, stride);
    for (int64_t i = 0; i < d; i += step) {
        ask(soon, i / step, d / step, TILE);
        if (form == QN_ATT_E4M3) {
            turn8(&at, i, to + i * TILE);
        } else if (form != QN_ATT_F32) {
            turn16(&at, i * 2, to + i * 2 * TILE);
        } else {
            for (int64_t j = i; j < i + step; j += 4) {
                for (int64_t key = 0; key < TILE; key += 8) {
                    vf_columns4((const float *)(const void *)(from + key * stride) + j, stride / 4,
                                (float *)(void *)to + j * TILE + key, TILE);
                }
            }
        }
    }
}

/* ---- tiles ---- */

QN_INLINE void stored_tile(const qn_att_form form, const int mr, const float *a, int64_t a_stride, const char *b,
                           int64_t b_stride, int64_t count, const float *scales, const int each, float *c,
                           int64_t c_stride, const int accumulate)
{
    vf acc[TILE_ROWS][2], scale[2] = {vf_set(0.0f), vf_set(0.0f)};
    if (form == QN_ATT_E4M3 && !each) {
        scale[0] = vf_load(scales);
        scale[1] = vf_load(scales + 8);
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        acc[r][0] = accumulate ? vf_load(c + r * c_stride) : vf_set(0.0f);
        acc[r][1] = accumulate ? vf_load(c + r * c_stride + 8) : vf_set(0.0f);
    }
    for (int64_t k = 0; k < count; k++) {
        vf x[2];
        if (form == QN_ATT_E4M3 && each) {
            scale[0] = scale[1] = vf_set(scales[k]);
        }
        tile_floats(form, b + k * b_stride, scale, x);
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            const vf y = vf_set(a[r * a_stride + k]);
            acc[r][0] = vf_fma(y, x[0], acc[r][0]);
            acc[r][1] = vf_fma(y, x[1], acc[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        vf_store(c + r * c_stride, acc[r][0]);
        vf_store(c + r * c_stride + 8, acc[r][1]);
    }
}

/* All rows, a few at a time. each: b's rows have a scale each; else its columns. */
QN_INLINE void stored_rows(const qn_att_form form, const float *a, int64_t a_stride, const char *b, int64_t b_stride,
                           int64_t count, const float *scales, const int each, float *c, int64_t c_stride, int64_t rows,
                           const int accumulate)
{
    for (int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS; tiles > 0; tiles--) {
        const int64_t mr = (rows + tiles - 1) / tiles;
#define ROWS(mr)                                                                                                       \
    case mr: stored_tile(form, mr, a, a_stride, b, b_stride, count, scales, each, c, c_stride, accumulate); break
        switch (mr) {
            ROWS(1);
            ROWS(2);
            ROWS(3);
            ROWS(4);
        }
#undef ROWS
        a += mr * a_stride;
        c += mr * c_stride;
        rows -= mr;
    }
}

QN_INLINE void scores_of(const qn_att_form form, const float *q, int64_t q_stride, const qn_att_stored *k, int64_t d,
                         int64_t keys, int64_t rows, float *s, char *scratch, qn_att_ahead next)
{
    const int64_t row = d * form_bytes(form);
    char *const copy = scratch + TILE * row;
    for (int64_t key = 0; key < keys; key += TILE) {
        const qn_att_ahead soon = soon_of(k, key, keys, TILE, row, next);
        const char *from = k->rows + key * k->stride;
        int64_t stride = k->stride;
        float scales[TILE] = {0};
        if (keys - key < TILE) { /* what is there, and zeros */
            for (int64_t i = 0; i < keys - key; i++) {
                memcpy(copy + i * row, from + i * stride, (size_t)row);
            }
            memset(copy + (keys - key) * row, 0, (size_t)((TILE - (keys - key)) * row));
            from = copy;
            stride = row;
        }
        if (form == QN_ATT_E4M3) {
            memcpy(scales, k->scales + key, sizeof(float) * (size_t)(keys - key < TILE ? keys - key : TILE));
        }
        turn_keys(form, from, stride, d, scratch, &soon);
        stored_rows(form, q, q_stride, scratch, TILE * form_bytes(form), d, scales, 0, s + key, QN_ATT_CHUNK, rows, 0);
    }
}

QN_INLINE void values_of(const qn_att_form form, const float *p, const qn_att_stored *v, int64_t d, int64_t keys,
                         int64_t rows, int start, float *o, qn_att_ahead next)
{
    const int64_t size = form_bytes(form);
    for (int64_t key = 0; key < keys; key += VALUES) {
        const int64_t count = keys - key < VALUES ? keys - key : VALUES;
        const qn_att_ahead soon = soon_of(v, key, keys, VALUES, d * size, next);
        const float *const scales = form == QN_ATT_E4M3 ? v->scales + key : NULL;
        for (int64_t i = 0; i < d; i += TILE) {
            const char *const from = v->rows + key * v->stride + i * size;
            ask(&soon, i / TILE, d / TILE, VALUES);
            if (start && key == 0) {
                stored_rows(form, p + key, QN_ATT_CHUNK, from, v->stride, count, scales, 1, o + i, d, rows, 0);
            } else {
                stored_rows(form, p + key, QN_ATT_CHUNK, from, v->stride, count, scales, 1, o + i, d, rows, 1);
            }
        }
    }
}

/* ---- the set's functions ---- */

static void stored_scores(const float *q, int64_t q_stride, const qn_att_stored *k, int64_t d, int64_t keys,
                          int64_t rows, float *s, float *scratch, qn_att_ahead next)
{
    char *const room = (char *)scratch;
    switch (k->form) {
    case QN_ATT_F16: scores_of(QN_ATT_F16, q, q_stride, k, d, keys, rows, s, room, next); break;
    case QN_ATT_BF16: scores_of(QN_ATT_BF16, q, q_stride, k, d, keys, rows, s, room, next); break;
    case QN_ATT_E4M3: scores_of(QN_ATT_E4M3, q, q_stride, k, d, keys, rows, s, room, next); break;
    default: scores_of(QN_ATT_F32, q, q_stride, k, d, keys, rows, s, room, next);
    }
}

static void stored_values(const float *p, const qn_att_stored *v, int64_t d, int64_t keys, int64_t rows, int start,
                          float *o, qn_att_ahead next)
{
    switch (v->form) {
    case QN_ATT_F16: values_of(QN_ATT_F16, p, v, d, keys, rows, start, o, next); break;
    case QN_ATT_BF16: values_of(QN_ATT_BF16, p, v, d, keys, rows, start, o, next); break;
    case QN_ATT_E4M3: values_of(QN_ATT_E4M3, p, v, d, keys, rows, start, o, next); break;
    default: values_of(QN_ATT_F32, p, v, d, keys, rows, start, o, next);
    }
}

static int stored_ready(const qn_att_stored *codes, int64_t d, int64_t keys, const char *scales, int64_t stride,
                        float *ready)
{
    const __m256i magnitude = _mm256_set1_epi8(0x7f);
    __m256i most = _mm256_setzero_si256();
    int finite = 1;
    for (int64_t key = 0; key < keys; key++) {
        const char *const row = codes->rows + key * codes->stride;
        for (int64_t i = 0; i < d; i += 32) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(row + i));
            most = _mm256_max_epu8(most, _mm256_and_si256(x, magnitude));
        }
        memcpy(ready + key, scales + key * stride, sizeof *ready);
        ready[key] *= E4M3_UNIT;
        finite &= fabsf(ready[key]) < INFINITY;
    }
    return finite && _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, magnitude)) == 0;
}

#endif
