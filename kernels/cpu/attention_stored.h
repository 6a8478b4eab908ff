/* Attention of few rows from keys and values as they are stored (kernels/common/attention.h). Included by
 * attention_<isa>.c of the levels that have it, after stored.h of its folder, which has
 *     TILE                keys, and elements of values, of a tile: two vectors of floats
 *     TILE_ROWS           rows of queries of a tile
 *     STORED_F32          whether floats, too, are faster so than in place
 *     ATT_NARROW          the set that takes heads of other sizes, or NULL
 *     TURN16, TURN8       elements of a key that turn16 and turn8 take
 *     turn16, turn8       keys turned round, TILE of them
 *     codes_tile          TILE codes of e4m3 as floats over E4M3_UNIT, times their scales
 *     nan_free            whether codes of e4m3 are
 *
 * Keys are turned round as they are stored, TILE at a time, which takes half or a quarter of the shuffles that
 * floats take, and become floats where they are multiplied, as values do: neither is written to memory as floats. Every
 * score is one chain over the elements, every element of the result one over the keys of the chunk. */
#include <math.h>

#include "kernels/common/attention.h"
#include "kernels/cpu/name.h"

#define ATT_STORED
#define WHOLE(turned) ((turned) > TILE ? (turned) : TILE) /* elements that both keys and values are taken by */
#define VALUES 32 /* keys whose values are added up before the results go to memory and back */

QN_INLINE int64_t form_bytes(const qn_att_form form)
{
    return form == QN_ATT_F32 ? 4 : (form == QN_ATT_E4M3 ? 1 : 2);
}

/* TILE elements as floats; codes times their scales. */
QN_INLINE void tile_floats(const qn_att_form form, const char *p, const vf scales[2], vf out[2])
{
    switch (form) {
    case QN_ATT_F16:
        out[0] = vf_from_f16(p);
        out[1] = vf_from_f16(p + 2 * VL);
        break;
    case QN_ATT_BF16:
        out[0] = vf_from_bf16(p);
        out[1] = vf_from_bf16(p + 2 * VL);
        break;
    case QN_ATT_E4M3: codes_tile(p, scales, out); break;
    default: out[0] = vf_load((const float *)(const void *)p); out[1] = vf_load((const float *)(const void *)p + VL);
    }
}

/* Lines that are asked for one at a time beside the multiplications: many at once would wait for each other, and what
 * is read meanwhile behind them. */
typedef struct asking {
    const char *at;
    int64_t in_row, row, gap, left; /* lines left of this row, of every row; bytes between rows; lines left in all */
} asking;

/* The share of the next rows that is asked for beside `count` of these keys from key `first` on. */
QN_INLINE asking share_of(const qn_att_ahead *next, int64_t first, int64_t count, int64_t keys)
{
    const int64_t end = first + count < keys ? first + count : keys, row = (next->bytes + 63) / 64;
    const int64_t from = next->count * first / keys, to = next->count * end / keys;
    return next->rows ? (asking){.at = next->rows + from * next->stride,
                                 .in_row = row,
                                 .row = row,
                                 .gap = next->stride - row * 64,
                                 .left = (to - from) * row}
                      : (asking){0};
}

QN_INLINE void ask(asking *a)
{
    if (a->left > 0) {
        vec_prefetch(a->at);
        a->at += 64;
        a->left--;
        if (--a->in_row == 0) {
            a->in_row = a->row;
            a->at += a->gap;
        }
    }
}

QN_INLINE void turn_keys(const qn_att_form form, const char *from, int64_t stride, int64_t d, char *to)
{
    const int64_t step = form == QN_ATT_E4M3 ? TURN8 : (form == QN_ATT_F32 ? 8 : TURN16);
    const tile_at at = tile_from(from, stride);
    for (int64_t i = 0; i < d; i += step) {
        if (form == QN_ATT_E4M3) {
            turn8(&at, i, to + i * TILE);
        } else if (form != QN_ATT_F32) {
            turn16(&at, i * 2, to + i * 2 * TILE);
        } else {
            for (int64_t j = i; j < i + step; j += 4) {
                for (int64_t key = 0; key < TILE; key += VL) {
                    vf_columns4((const float *)(const void *)(from + key * stride) + j, stride / 4,
                                (float *)(void *)to + j * TILE + key, TILE);
                }
            }
        }
    }
}

/* ---- tiles ---- */

/* lines: of asks. */
QN_INLINE void stored_tile(const qn_att_form form, const int mr, const float *a, int64_t a_stride, const char *b,
                           int64_t b_stride, int64_t count, const float *scales, const int each, float *c,
                           int64_t c_stride, const int accumulate, asking *asks, int64_t lines)
{
    asking next = *asks;
    int64_t due = 0;
    vf acc[TILE_ROWS][2], scale[2] = {vf_set(0.0f), vf_set(0.0f)};
    if (form == QN_ATT_E4M3 && !each) {
        scale[0] = vf_load(scales);
        scale[1] = vf_load(scales + VL);
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        acc[r][0] = accumulate ? vf_load(c + r * c_stride) : vf_set(0.0f);
        acc[r][1] = accumulate ? vf_load(c + r * c_stride + VL) : vf_set(0.0f);
    }
    for (int64_t k = 0; k < count; k++) {
        vf x[2];
        for (due += lines; due >= count; due -= count) {
            ask(&next);
        }
        if (form == QN_ATT_E4M3 && each) {
            scale[0] = scale[1] = vf_set(scales[k]);
        }
        tile_floats(form, b + k * b_stride, scale, x);
#pragma GCC unroll 8
        for (int r = 0; r < mr; r++) {
            const vf y = vf_set(a[r * a_stride + k]);
            acc[r][0] = vf_fma(y, x[0], acc[r][0]);
            acc[r][1] = vf_fma(y, x[1], acc[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < mr; r++) {
        vf_store(c + r * c_stride, acc[r][0]);
        vf_store(c + r * c_stride + VL, acc[r][1]);
    }
    *asks = next;
}

/* All rows, a few at a time. each: b's rows have a scale each; else its columns. lines: of asks, beside the first. */
QN_INLINE void stored_rows(const qn_att_form form, const float *a, int64_t a_stride, const char *b, int64_t b_stride,
                           int64_t count, const float *scales, const int each, float *c, int64_t c_stride, int64_t rows,
                           const int accumulate, asking *asks, int64_t lines)
{
    for (int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS; tiles > 0; tiles--) {
        const int64_t mr = (rows + tiles - 1) / tiles;
#define ROWS(mr)                                                                                                       \
    case mr:                                                                                                           \
        stored_tile(form, mr, a, a_stride, b, b_stride, count, scales, each, c, c_stride, accumulate, asks, lines);    \
        break
        switch (mr) {
            ROWS(1);
            ROWS(2);
            ROWS(3);
            ROWS(4);
#if TILE_ROWS > 4
            ROWS(5);
            ROWS(6);
            ROWS(7);
            ROWS(8);
#endif
        }
#undef ROWS
        a += mr * a_stride;
        c += mr * c_stride;
        rows -= mr;
        lines = 0;
    }
}

QN_INLINE void scores_of(const qn_att_form form, const float *q, int64_t q_stride, const qn_att_stored *k, int64_t d,
                         int64_t keys, int64_t rows, float *s, char *scratch, qn_att_ahead next)
{
    const int64_t row = d * form_bytes(form);
    char *const copy = scratch + TILE * row;
    for (int64_t key = 0; key < keys; key += TILE) {
        asking asks = share_of(&next, key, TILE, keys);
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
        turn_keys(form, from, stride, d, scratch);
        stored_rows(form, q, q_stride, scratch, TILE * form_bytes(form), d, scales, 0, s + key, QN_ATT_CHUNK, rows, 0,
                    &asks, asks.left);
    }
}

QN_INLINE void values_of(const qn_att_form form, const float *p, const qn_att_stored *v, int64_t d, int64_t keys,
                         int64_t rows, int start, float *o, int64_t o_stride, qn_att_ahead next)
{
    const int64_t size = form_bytes(form);
    for (int64_t key = 0; key < keys; key += VALUES) {
        const int64_t count = keys - key < VALUES ? keys - key : VALUES;
        asking asks = share_of(&next, key, VALUES, keys);
        const float *const scales = form == QN_ATT_E4M3 ? v->scales + key : NULL;
        const int64_t lines = (asks.left * TILE + d - 1) / d;
        for (int64_t i = 0; i < d; i += TILE) {
            const char *const from = v->rows + key * v->stride + i * size;
            if (start && key == 0) {
                stored_rows(form, p + key, QN_ATT_CHUNK, from, v->stride, count, scales, 1, o + i, o_stride, rows, 0,
                            &asks, lines);
            } else {
                stored_rows(form, p + key, QN_ATT_CHUNK, from, v->stride, count, scales, 1, o + i, o_stride, rows, 1,
                            &asks, lines);
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
#if STORED_F32
    case QN_ATT_F32: scores_of(QN_ATT_F32, q, q_stride, k, d, keys, rows, s, room, next); break;
#endif
    default: break;
    }
}

static void stored_values(const float *p, const qn_att_stored *v, int64_t d, int64_t keys, int64_t rows, int start,
                          float *o, int64_t o_stride, qn_att_ahead next)
{
    switch (v->form) {
    case QN_ATT_F16: values_of(QN_ATT_F16, p, v, d, keys, rows, start, o, o_stride, next); break;
    case QN_ATT_BF16: values_of(QN_ATT_BF16, p, v, d, keys, rows, start, o, o_stride, next); break;
    case QN_ATT_E4M3: values_of(QN_ATT_E4M3, p, v, d, keys, rows, start, o, o_stride, next); break;
#if STORED_F32
    case QN_ATT_F32: values_of(QN_ATT_F32, p, v, d, keys, rows, start, o, o_stride, next); break;
#endif
    default: break;
    }
}

static int stored_ready(const qn_att_stored *codes, int64_t d, int64_t keys, const char *scales, int64_t stride,
                        float *ready)
{
    int finite = 1;
    for (int64_t key = 0; key < keys; key++) {
        memcpy(ready + key, scales + key * stride, sizeof *ready);
        ready[key] *= E4M3_UNIT;
        finite &= fabsf(ready[key]) < INFINITY;
    }
    return finite && nan_free(codes->rows, codes->stride, d, keys);
}
