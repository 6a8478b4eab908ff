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
#include "kernels/cpu/exp.h"

#define HALVES (QN_ATT_STRIP / VL)
#define STEP_BYTES (QN_ATT_TERMS * HALVES * TILE_BYTES) /* of terms of 32 dimensions or keys */
#define STEP_KEYS 32
#define KEY_STEPS (QN_ATT_CHUNK / STEP_KEYS)
#define LINE_BYTES 64
#define SCORES_BYTES (QN_ATT_CHUNK * QN_ATT_STRIP * 4)
#define STRIP_BYTES (QN_ATT_STRIP * 4) /* from row to row of scores and outputs */

/* ---- terms ---- */

/* A line of each term from a pair of rows. Infinities are whole in the first term. */
QN_INLINE void split_pair(vf a, vf b, const int may_be_infinite, char *line)
{
    const vi upper = vi_set(0xffff0000u);
#pragma GCC unroll 3
    for (int t = 0; t < QN_ATT_TERMS; t++) {
        const vi x = vi_and(vi_bits(a), upper), y = vi_and(vi_bits(b), upper);
        vi_store(line + t * HALVES * TILE_BYTES, _mm512_or_si512(vi_shr(vi_bits(a), 16), y));
        a = vf_sub(a, vf_bits(x));
        b = vf_sub(b, vf_bits(y));
        if (may_be_infinite && t == 0) {
            a = _mm512_maskz_mov_ps(_mm512_cmpneq_epi32_mask(vi_and(x, vi_set(0x7fffffff)), vi_set(0x7f800000)), a);
            b = _mm512_maskz_mov_ps(_mm512_cmpneq_epi32_mask(vi_and(y, vi_set(0x7fffffff)), vi_set(0x7f800000)), b);
        }
    }
}

/* x, where NaN stays NaN in its upper half */
QN_INLINE vf quiet(vf x)
{
    return vf_bits(vi_where_nan(x, vi_set(0x7fc00000), vi_bits(x)));
}

static void att_queries(const float *q, int64_t d, char *terms)
{
    for (int64_t i = 0; i < d; i += 4) {
        for (int h = 0; h < HALVES; h++) {
            float x[4][VL];
            vf_columns4(q + h * VL * d + i, d, x[0], VL);
            char *const line = terms + i / QN_ATT_DIMS * STEP_BYTES + h * TILE_BYTES + i % QN_ATT_DIMS / 2 * LINE_BYTES;
            split_pair(quiet(vf_load(x[0])), quiet(vf_load(x[1])), 1, line);
            split_pair(quiet(vf_load(x[2])), quiet(vf_load(x[3])), 1, line + LINE_BYTES);
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
    for (int64_t key = 0; key < QN_ATT_CHUNK; key++) {
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
    for (int64_t first = 0; first < QN_ATT_CHUNK; first += STEP_KEYS) {
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

/* ---- a chunk ---- */

/* 2 x n tiles: lines of a by the terms of b, least first, over `steps` steps; tiles of a are a_step bytes apart. */
QN_INLINE void products(const char *a, int64_t a_stride, int64_t a_step, const char *b, int64_t steps, const int n,
                        char *to)
{
    sums_zero(2, n);
    for (int64_t s = 0; s < steps; s++) {
        _tile_loadd(4, a + s * a_step, LINE_BYTES);
        _tile_loadd(5, a + a_stride + s * a_step, LINE_BYTES);
#pragma GCC unroll 3
        for (int t = QN_ATT_TERMS - 1; t >= 0; t--) {
            const char *const at = b + s * STEP_BYTES + t * HALVES * TILE_BYTES;
            _tile_loadd(6, at, LINE_BYTES);
            TILE_DOT(TILE_BF16, 0, 4, 6);
            TILE_DOT(TILE_BF16, 2, 5, 6);
            if (n > 1) {
                _tile_loadd(7, at + TILE_BYTES, LINE_BYTES);
                TILE_DOT(TILE_BF16, 1, 4, 7);
                TILE_DOT(TILE_BF16, 3, 5, 7);
            }
        }
    }
    _tile_stored(0, to, STRIP_BYTES);
    _tile_stored(2, to + TILE_ROWS * STRIP_BYTES, STRIP_BYTES);
    if (n > 1) {
        _tile_stored(1, to + LINE_BYTES, STRIP_BYTES);
        _tile_stored(3, to + TILE_ROWS * STRIP_BYTES + LINE_BYTES, STRIP_BYTES);
    }
}

/* Scale times the scores of a key; that of columns which do not see it is -infinity. */
QN_INLINE vf score(const float *s, vf scale, const int masked, vi visible, int64_t key)
{
    const vf x = vf_mul(vf_load(s + key * QN_ATT_STRIP), scale);
    return masked ? _mm512_mask_mov_ps(vf_set(-INFINITY), _mm512_cmpgt_epi32_mask(visible, vi_set((uint32_t)key)), x)
                  : x;
}

/* Weights of two keys, as terms; their sum is returned. */
QN_INLINE vf weights(const float *s, vf scale, vf max, const int masked, vi visible, int64_t key, char *terms)
{
    const vf p0 = vf_exp(vf_sub(score(s, scale, masked, visible, key), max));
    const vf p1 = vf_exp(vf_sub(score(s, scale, masked, visible, key + 1), max));
    split_pair(p0, p1, 0, terms + key / STEP_KEYS * STEP_BYTES + key % STEP_KEYS / 2 * LINE_BYTES);
    return vf_add(p0, p1);
}

/* Sixteen columns: scores of `keys` keys become terms of weights, of which all see the first `common`, an even
 * number; weights up to the next whole step are zeros. */
static void softmax(const float *s, int64_t common, int64_t keys, const int32_t *sees, float scale, char *terms,
                    float *max, float *sum)
{
    const vf factor = vf_set(scale);
    const vi visible = vi_load(sees);
    vf most[2] = {vf_set(-INFINITY), vf_set(-INFINITY)}, total = vf_set(0.0f);
    for (int64_t key = 0; key < common; key += 2) {
        most[0] = vf_max(score(s, factor, 0, visible, key), most[0]); /* the second operand where a score is NaN */
        most[1] = vf_max(score(s, factor, 0, visible, key + 1), most[1]);
    }
    for (int64_t key = common; key < keys; key += 2) {
        most[0] = vf_max(score(s, factor, 1, visible, key), most[0]);
        most[1] = vf_max(score(s, factor, 1, visible, key + 1), most[1]);
    }
    const vf highest = vf_max(most[0], most[1]);
    vf_store(max, highest);
    /* where it is -infinity only weights of 0 are left */
    const vf least = _mm512_mask_mov_ps(highest, _mm512_cmp_ps_mask(highest, vf_set(-INFINITY), _CMP_EQ_OQ), vf_set(0));
    for (int64_t key = 0; key < common; key += 2) {
        total = vf_add(total, weights(s, factor, least, 0, visible, key, terms));
    }
    int64_t key = common;
    for (; key < keys; key += 2) {
        total = vf_add(total, weights(s, factor, least, 1, visible, key, terms));
    }
    for (; key % STEP_KEYS; key += 2) {
        split_pair(vf_set(0.0f), vf_set(0.0f), 0,
                   terms + key / STEP_KEYS * STEP_BYTES + key % STEP_KEYS / 2 * LINE_BYTES);
    }
    vf_store(sum, total);
}

QN_INLINE void strip_of(const qn_att_strip *c, const int n)
{
    float *const s = (float *)(void *)c->scratch, *const o = c->state + 2 * QN_ATT_STRIP;
    char *const terms = c->scratch + SCORES_BYTES;
    const int64_t steps = c->d / QN_ATT_DIMS;
    int64_t common = QN_ATT_CHUNK, keys = 0;
    for (int64_t r = 0; r < n * VL; r++) {
        common = c->visible[r] < common ? c->visible[r] : common;
        keys = c->visible[r] > keys ? c->visible[r] : keys;
    }
    common = common > 0 ? common & ~1 : 0;
    tile_begin(TILE_ROWS);
    for (int64_t key = 0; key < keys; key += 2 * TILE_ROWS) {
        products(c->keys + key * c->d * 2, TILE_ROWS * c->d * 2, TILE_BYTES, c->terms, steps, n,
                 (char *)(s + key * QN_ATT_STRIP));
    }
    tile_fence();
    for (int h = 0; h < n; h++) {
        softmax(s + h * VL, common, keys, c->visible + h * VL, c->scale, terms + h * TILE_BYTES, c->state + h * VL,
                c->state + QN_ATT_STRIP + h * VL);
    }
    tile_fence();
    for (int64_t i = 0; i < c->d; i += 2 * TILE_ROWS) {
        products(c->values + i * QN_ATT_CHUNK * 2, KEY_STEPS * TILE_BYTES, TILE_BYTES, terms,
                 (keys + STEP_KEYS - 1) / STEP_KEYS, n, (char *)(o + i * QN_ATT_STRIP));
    }
    tile_fence();
    tile_end();
}

static void att_strip(const qn_att_strip *c)
{
    if (c->rows > VL) {
        strip_of(c, 2);
    } else {
        strip_of(c, 1);
    }
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
        const vf old = vf_exp(vf_sub(a, base)), new = vf_exp(vf_sub(b, base));
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
        const vf sum = vf_load(all + QN_ATT_STRIP + h);
        for (int64_t i = 0; i < d; i++) {
            vf_store(values + i * QN_ATT_STRIP + h, vf_div(vf_load(values + i * QN_ATT_STRIP + h), sum));
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
                                            .strip = att_strip,
                                            .join = att_join,
                                            .rows = att_rows};
