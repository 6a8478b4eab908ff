/* Attention over keys and values of BF16 on tiles (kernels/common/attention.h).
 *
 * Tiles of a are sixteen keys by 32 dimensions, or sixteen dimensions by 32 keys;
 * tiles of b pairs of them by sixteen rows of q, a term each. What a column
 * computes depends on its own row and the keys that it sees: weights of others
 * are zeros, which change no sum. */
#include <math.h>

#include "kernels/common/attention.h"
#include "kernels/cpu/avx512/vec.h"
#undef QN_ISA
#define QN_ISA amx
#include "kernels/cpu/amx/tile.h"

#define HALVES (QN_ATT_STRIP / VL)
#define STEP_BYTES (QN_ATT_TERMS * HALVES * TILE_BYTES) /* of terms of 32 dimensions or keys */
#define STEP_KEYS 32
#define KEY_STEPS (QN_ATT_CHUNK / STEP_KEYS)
#define LINE_BYTES 64
#define SCORES_BYTES (QN_ATT_CHUNK * QN_ATT_STRIP * 4)
#define STRIP_BYTES (QN_ATT_STRIP * 4) /* from row to row of scores and outputs */

/* ---- terms ---- */

/* A line of each term from a pair of rows. Infinities are whole in the first term. */
QN_INLINE void split_pair(vf a, vf b, char *line)
{
    const vi upper = vi_set(0xffff0000u), infinite = vi_set(0x7f800000u);
#pragma GCC unroll 3
    for (int t = 0; t < QN_ATT_TERMS; t++) {
        const vi x = vi_and(vi_bits(a), upper), y = vi_and(vi_bits(b), upper);
        vi_store(line + t * HALVES * TILE_BYTES, _mm512_or_si512(vi_shr(vi_bits(a), 16), y));
        a = _mm512_maskz_sub_ps(_mm512_cmplt_epi32_mask(vi_and(x, infinite), infinite), a, vf_bits(x));
        b = _mm512_maskz_sub_ps(_mm512_cmplt_epi32_mask(vi_and(y, infinite), infinite), b, vf_bits(y));
    }
}

/* x, where NaN stays NaN in its upper half */
QN_INLINE vf quiet(vf x)
{
    return vf_bits(vi_where_nan(x, vi_set(0x7fc00000), vi_bits(x)));
}

static void att_queries(const float *q, int64_t rows, int64_t d, char *terms)
{
    for (int64_t i = 0; i < d; i += 4) {
        for (int64_t h = 0; h * VL < rows; h++) {
            float x[4][VL];
            vf_columns4(q + h * VL * d + i, d, x[0], VL);
            char *const line = terms + i / QN_ATT_DIMS * STEP_BYTES + h * TILE_BYTES + i % QN_ATT_DIMS / 2 * LINE_BYTES;
            split_pair(quiet(vf_load(x[0])), quiet(vf_load(x[1])), line);
            split_pair(quiet(vf_load(x[2])), quiet(vf_load(x[3])), line + LINE_BYTES);
        }
    }
}

/* ---- keys and values ---- */

/* 32 elements of a row from element i on, zeros from `width` on */
QN_INLINE vi row_part(const char *row, int64_t i, int64_t width)
{
    return width - i >= 32 ? vi_load(row + 2 * i)
                           : _mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << (width - i)) - 1), row + 2 * i);
}

#define BF16_INFINITE 0x7f80

/* x into the largest magnitudes so far, as integers */
QN_INLINE vi magnitudes(vi most, vi x)
{
    return vi_umax16(most, vi_and(x, vi_set(0x7fff7fffu)));
}

/* The first row with an element that is not finite; most: the largest magnitudes of all. */
static int64_t first_special(vi most, const char *rows, int64_t stride, int64_t count, int64_t width)
{
    for (int64_t key = 0; vi_top16(most) >= BF16_INFINITE && key < count; key++) {
        vi own = vi_set(0);
        for (int64_t i = 0; i < width; i += 32) {
            own = magnitudes(own, row_part(rows + key * stride, i, width));
        }
        if (vi_top16(own) >= BF16_INFINITE) {
            return key;
        }
    }
    return count;
}

static int64_t att_keys(const char *rows, int64_t stride, int64_t count, int64_t width, int64_t d, char *tiles)
{
    vi most = vi_set(0);
    for (int64_t key = 0; key < count || key % STEP_KEYS; key++) {
        char *const to = tiles + key / TILE_ROWS * (d / QN_ATT_DIMS) * TILE_BYTES + key % TILE_ROWS * LINE_BYTES;
        for (int64_t i = 0; i < d; i += QN_ATT_DIMS) {
            const vi x = key < count && i < width ? row_part(rows + key * stride, i, width) : vi_set(0);
            most = magnitudes(most, x);
            vi_store(to + i / QN_ATT_DIMS * TILE_BYTES, x);
        }
    }
    return first_special(most, rows, stride, count, width);
}

/* Sixteen rows of sixteen words become columns: word 4 l + c of all rows to line 8 l + c. */
QN_INLINE void transpose(const vi r[16], char *to)
{
    vi t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const vi a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88), b = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
        const vi e = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd), f = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
        vi_store(to + c * LINE_BYTES, _mm512_shuffle_i32x4(a, b, 0x88));
        vi_store(to + (8 + c) * LINE_BYTES, _mm512_shuffle_i32x4(e, f, 0x88));
        vi_store(to + KEY_STEPS * TILE_BYTES + c * LINE_BYTES, _mm512_shuffle_i32x4(a, b, 0xdd));
        vi_store(to + KEY_STEPS * TILE_BYTES + (8 + c) * LINE_BYTES, _mm512_shuffle_i32x4(e, f, 0xdd));
    }
}

static int64_t att_values(const char *rows, int64_t stride, int64_t count, int64_t width, int64_t d, char *tiles)
{
    vi most = vi_set(0);
    for (int64_t first = 0; first < count; first += STEP_KEYS) {
        for (int64_t i = 0; i < d; i += QN_ATT_DIMS) {
            vi low[16], high[16]; /* pairs of keys: of each eight dimensions the first four, the others */
#pragma GCC unroll 16
            for (int j = 0; j < 16; j++) {
                const int64_t key = first + 2 * j;
                const vi x = key < count && i < width ? row_part(rows + key * stride, i, width) : vi_set(0);
                const vi y = key + 1 < count && i < width ? row_part(rows + (key + 1) * stride, i, width) : vi_set(0);
                most = magnitudes(magnitudes(most, x), y);
                low[j] = _mm512_unpacklo_epi16(x, y);
                high[j] = _mm512_unpackhi_epi16(x, y);
            }
            char *const to = tiles + (i / TILE_ROWS * KEY_STEPS + first / STEP_KEYS) * TILE_BYTES;
            transpose(low, to);
            transpose(high, to + 4 * LINE_BYTES);
        }
    }
    return first_special(most, rows, stride, count, width);
}

/* ---- products ---- */

/* A step of 2 x n tiles: lines of a by the terms of b, least first. */
QN_INLINE void step(const char *a, int64_t a_row, const char *b, const int n)
{
    _tile_loadd(4, a, LINE_BYTES);
    _tile_loadd(5, a + a_row, LINE_BYTES);
#pragma GCC unroll 3
    for (int t = QN_ATT_TERMS - 1; t >= 0; t--) {
        const char *const at = b + t * HALVES * TILE_BYTES;
        _tile_loadd(6, at, LINE_BYTES);
        if (n > 1) {
            _tile_loadd(7, at + TILE_BYTES, LINE_BYTES);
        }
        TILE_DOT(TILE_BF16, 0, 4, 6);
        TILE_DOT(TILE_BF16, 2, 5, 6);
        if (n > 1) {
            TILE_DOT(TILE_BF16, 1, 4, 7);
            TILE_DOT(TILE_BF16, 3, 5, 7);
        }
    }
}

/* `blocks` blocks of two rows of tiles, a_row bytes apart, of `steps` steps each; rows of `to` are STRIP_BYTES. */
QN_INLINE void products(const char *a, int64_t a_row, const char *b, int64_t blocks, int64_t steps, const int n,
                        float *sums)
{
    char *to = (char *)sums;
    for (int64_t i = 0; i < blocks; i++, a += 2 * a_row, to += 2 * TILE_ROWS * STRIP_BYTES) {
        sums_zero(2, n);
        for (int64_t s = 0; s < steps; s++) {
            step(a + s * TILE_BYTES, a_row, b + s * STEP_BYTES, n);
        }
        _tile_stored(0, to, STRIP_BYTES);
        _tile_stored(2, to + TILE_ROWS * STRIP_BYTES, STRIP_BYTES);
        if (n > 1) {
            _tile_stored(1, to + LINE_BYTES, STRIP_BYTES);
            _tile_stored(3, to + TILE_ROWS * STRIP_BYTES + LINE_BYTES, STRIP_BYTES);
        }
    }
    tile_fence();
}

/* ---- softmax ---- */

#define QUAD 4 /* keys that go together, an operation of each at a time: their chains of operations are long */

#define EACH _Pragma("GCC unroll 4") for (int j = 0; j < QUAD; j++)

/* The columns that see a key. */
QN_INLINE __mmask16 seeing(vi visible, int64_t key)
{
    return _mm512_cmpgt_epi32_mask(visible, vi_set((uint32_t)key));
}

/* 2^x of each for x up to 0: 2^n times a polynomial of degree 6 for |r| <= 1/2, relative error below
 * 2^-25; 0 below -126 and in lanes that a mask leaves out. NaN stays NaN. */
QN_INLINE void power_each(vf x[QUAD], const __mmask16 *lanes)
{
    static const float factors[] = {0.00134004280f, 0.00961805694f, 0.0555032715f, 0.240226507f, 0.693147182f, 1.0f};
    const vf round = vf_set(12582912.0f); /* 1.5 * 2^23: the sum's last bits are the rounded integer */
    vf z[QUAD], r[QUAD], p[QUAD];
    __mmask16 some[QUAD];
    EACH some[j] = _mm512_mask_cmp_ps_mask(lanes[j], x[j], vf_set(-126.0f), _CMP_NLT_UQ);
    EACH z[j] = vf_add(x[j], round);
    EACH r[j] = vf_sub(z[j], round);
    EACH r[j] = vf_sub(x[j], r[j]);
    EACH p[j] = vf_set(0.000154614449f);
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) {
        EACH p[j] = vf_fma(p[j], r[j], vf_set(factors[i]));
    }
    EACH x[j] = vf_bits(_mm512_maskz_add_epi32(some[j], vi_bits(p[j]), vi_shl(vi_bits(z[j]), 23)));
}

static const __mmask16 all_lanes[QUAD] = {0xffff, 0xffff, 0xffff, 0xffff};

/* Lines of the terms of two pairs of rows. */
QN_INLINE void split_quad(vf x[QUAD], char *line)
{
    const vi upper = vi_set(0xffff0000u);
    vi high[QUAD];
#pragma GCC unroll 3
    for (int t = 0; t < QN_ATT_TERMS; t++, line += HALVES * TILE_BYTES) {
        EACH high[j] = vi_and(vi_bits(x[j]), upper);
        vi_store(line, vi_select(upper, high[1], vi_shr(vi_bits(x[0]), 16)));
        vi_store(line + LINE_BYTES, vi_select(upper, high[3], vi_shr(vi_bits(x[2]), 16)));
        EACH x[j] = vf_sub(x[j], vf_bits(high[j]));
    }
}

/* Weights of four keys, as terms; their sum is returned. */
QN_INLINE vf weights(const float *s, vf scale, vf max, const int masked, vi visible, int64_t key, char *terms)
{
    vf p[QUAD];
    EACH p[j] = vf_sub(vf_mul(vf_load(s + (key + j) * QN_ATT_STRIP), scale), max);
    if (masked) {
        __mmask16 lanes[QUAD];
        EACH lanes[j] = seeing(visible, key + j);
        power_each(p, lanes);
    } else {
        power_each(p, all_lanes);
    }
    const vf sum = vf_add(vf_add(p[0], p[1]), vf_add(p[2], p[3]));
    split_quad(p, terms + key / STEP_KEYS * STEP_BYTES + key % STEP_KEYS / 2 * LINE_BYTES);
    return sum;
}

/* The largest of scale times the scores; NaN counts for nothing. */
QN_INLINE vf highest_score(const float *s, int64_t common, int64_t keys, vf scale, vi visible)
{
    vf most[QUAD];
    EACH most[j] = vf_set(-INFINITY);
    for (int64_t key = 0; key < common; key += QUAD) {
        EACH most[j] = vf_max(vf_mul(vf_load(s + (key + j) * QN_ATT_STRIP), scale), most[j]);
    }
    for (int64_t key = common; key < keys; key += QUAD) {
        EACH most[j] = _mm512_mask_max_ps(most[j], seeing(visible, key + j),
                                          vf_mul(vf_load(s + (key + j) * QN_ATT_STRIP), scale), most[j]);
    }
    return vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3]));
}

/* Sixteen columns: scores of `keys` keys become terms of weights, of which all see the first `common`; both numbers are
 * whole quads. Weights up to the next whole step are zeros. */
static void softmax(const float *s, int64_t common, int64_t keys, const int32_t *sees, float scale, char *terms,
                    float *max, float *sum)
{
    const vf factor = vf_set(scale);
    const vi visible = vi_load(sees);
    const vf highest = highest_score(s, common, keys, factor, visible);
    vf_store(max, highest);
    /* where it is -infinity only weights of 0 are left */
    const vf least = _mm512_mask_mov_ps(highest, _mm512_cmp_ps_mask(highest, vf_set(-INFINITY), _CMP_EQ_OQ), vf_set(0));
    vf total = vf_set(0.0f);
    for (int64_t key = 0; key < keys; key += QUAD) {
        total = vf_add(total, key < common ? weights(s, factor, least, 0, visible, key, terms)
                                           : weights(s, factor, least, 1, visible, key, terms));
    }
    for (int64_t key = keys; key % STEP_KEYS; key += QUAD) {
        vf none[QUAD];
        EACH none[j] = vf_set(0.0f);
        split_quad(none, terms + key / STEP_KEYS * STEP_BYTES + key % STEP_KEYS / 2 * LINE_BYTES);
    }
    vf_store(sum, total);
}

/* ---- strips ---- */

/* How many keys all columns see, and any does, in whole quads. */
static void seen_by(const qn_att_strip *c, int64_t *common, int64_t *keys)
{
    *common = QN_ATT_CHUNK;
    *keys = 0;
    for (int64_t r = 0; r < (c->rows > VL ? QN_ATT_STRIP : VL); r++) {
        *common = c->visible[r] < *common ? c->visible[r] : *common;
        *keys = c->visible[r] > *keys ? c->visible[r] : *keys;
    }
    *common &= -QUAD;
    *keys = (*keys + QUAD - 1) & -QUAD;
}

QN_INLINE void strip_of(const qn_att_strip *c, const char *keys, const char *values, int64_t d, float scale,
                        char *scratch, const int n)
{
    float *const s = (float *)(void *)scratch;
    char *const terms = scratch + SCORES_BYTES;
    int64_t common, seen;
    seen_by(c, &common, &seen);
    const int64_t steps = (seen + STEP_KEYS - 1) / STEP_KEYS;
    products(keys, d / QN_ATT_DIMS * TILE_BYTES, c->terms, steps, d / QN_ATT_DIMS, n, s);
    for (int h = 0; h < n; h++) {
        softmax(s + h * VL, common, seen, c->visible + h * VL, scale, terms + h * TILE_BYTES, c->state + h * VL,
                c->state + QN_ATT_STRIP + h * VL);
    }
    tile_fence();
    products(values, KEY_STEPS * TILE_BYTES, terms, d / (2 * TILE_ROWS), steps, n, c->state + 2 * QN_ATT_STRIP);
}

static void att_strips(const qn_att_strip *strips, int64_t count, const char *keys, const char *values, int64_t d,
                       float scale, char *scratch)
{
    tile_begin(TILE_ROWS);
    for (int64_t i = 0; i < count; i++) {
        if (strips[i].rows > VL) {
            strip_of(&strips[i], keys, values, d, scale, scratch, 2);
        } else {
            strip_of(&strips[i], keys, values, d, scale, scratch, 1);
        }
    }
    tile_end();
}

/* ---- states ---- */

static void att_join(float *all, const float *part, const int32_t *visible, int64_t d, int first)
{
    const vf zero = vf_set(0.0f), lowest = vf_set(-INFINITY);
    for (int h = 0; h < HALVES; h++, all += VL, part += VL, visible += VL) {
        const __mmask16 sees = _mm512_cmpgt_epi32_mask(vi_load(visible), vi_set(0));
        if (!sees) {
            continue;
        }
        const vf a = first ? lowest : vf_load(all), b = vf_load(part), most = _mm512_max_ps(b, a);
        const vf base = _mm512_mask_mov_ps(most, _mm512_cmp_ps_mask(most, lowest, _CMP_EQ_OQ), zero);
        vf shares[QUAD] = {vf_sub(a, base), vf_sub(b, base), zero, zero};
        power_each(shares, all_lanes);
        const vf old = shares[0], new = shares[1];
        _mm512_mask_storeu_ps(all, sees, most);
        for (int64_t i = QN_ATT_STRIP; i < (2 + d) * QN_ATT_STRIP; i += QN_ATT_STRIP) {
            const vf was = first ? zero : vf_load(all + i);
            /* + 0: a sum that vanished has no sign */
            const vf now = vf_fma(was, old, vf_fma(vf_load(part + i), new, zero));
            _mm512_mask_storeu_ps(all + i, sees, now);
        }
    }
}

static void att_rows(float *all, int64_t d, int64_t rows, float *o)
{
    float *const values = all + 2 * QN_ATT_STRIP;
    for (int64_t h = 0; h < rows; h += VL) {
        const vf factor = vf_div(vf_set(1.0f), vf_load(all + QN_ATT_STRIP + h));
        for (int64_t i = 0; i < d; i++) {
            vf_store(values + i * QN_ATT_STRIP + h, vf_mul(vf_load(values + i * QN_ATT_STRIP + h), factor));
        }
        for (int64_t i = 0; i < d; i += VL) {
            for (int64_t r = h; r < h + VL; r += 4) {
                vf_columns4(values + i * QN_ATT_STRIP + r, QN_ATT_STRIP, o + r * d + i, d);
            }
        }
    }
}

const qn_att_tiles_set qn_att_tiles__amx = {.queries = att_queries,
                                            .keys = att_keys,
                                            .values = att_values,
                                            .strips = att_strips,
                                            .join = att_join,
                                            .rows = att_rows};
