/* quip_e8p by exact integers (kernels/common/vq.h, "Lattice") of level avx2, rows of x as digits, and Hadamard
 * transforms.
 *
 * A point of E8P is two loads of eight bytes and an exclusive or: magnitudes as 4 m ^ 18, m of 0, 1, 2, which is the
 * byte of a point that is not shifted; signs as 28 where a coordinate is negative, and 2 everywhere where it is
 * shifted. Each has the other sign of coordinate 0, 28, where its own bits are odd in number. */
#include "kernels/cpu/avx2/vq_digits.h"

#define GROUPS 4 /* of a line */
#define UNITS 4  /* of a tile */
#define LINES 2  /* of a unit */
#define LINE_K 32
#define AHEAD 2048 /* prefetched in a stream of codes */
#define MINUS 28
#define SHIFTED UINT64_C(0x0202020202020202)
#define TABLE 256
#define TILE_DIGITS (QN_VQ_PLANES * QN_VQ_TILE_K)

typedef struct points {
    uint64_t magnitudes[TABLE], signs[TABLE], e8[TABLE];
} points;

/* Entry i of tables of coordinates, which are bytes of `mask`. */
QN_INLINE uint64_t point_of(const uint8_t *tables, int i, uint64_t mask)
{
    uint64_t bytes = 0;
    for (int j = 0; j < 8; j++) {
        bytes |= (tables[j * TABLE + i] & mask) << 8 * j;
    }
    return bytes;
}

static void put_points(const qn_vq_lattice_call *c, points *to)
{
    for (int i = 0; i < TABLE; i++) {
        const uint64_t odd = c->magnitudes[i] >> 7 ? MINUS : 0;
        to->magnitudes[i] = point_of(c->magnitudes, i, 12) ^ UINT64_C(0x1212121212121212) ^ odd;
        to->e8[i] = c->last_is_e8 ? point_of(c->e8, i, 255) : 0;
    }
    to->signs[0] = 0;
    for (int bit = 0; bit < 8; bit++) {
        const uint64_t one = bit ? (uint64_t)MINUS << 8 * bit ^ MINUS : SHIFTED;
        for (int i = 0; i < 1 << bit; i++) {
            to->signs[(1 << bit) + i] = to->signs[i] ^ one;
        }
    }
}

QN_INLINE int64_t line_bytes(const int is_e8)
{
    return is_e8 ? 64 : 128;
}

/* A panel's units of a tile as bytes, [row][256]. */
QN_INLINE void decode_panel(const points *p, const int is_e8, const uint8_t *codes, int64_t units, uint8_t *to)
{
    for (int64_t l = 0; l < units * LINES; l++, codes += line_bytes(is_e8), to += LINE_K) {
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)codes + AHEAD + 64, _MM_HINT_T0);
        for (int r = 0; r < QN_VQ_PANEL; r += 2) { /* signs out of a register: loads are what the time is */
            uint64_t signs;
            memcpy(&signs, codes + (is_e8 ? 0 : 64) + r * GROUPS, sizeof signs);
#pragma GCC unroll 8
            for (int i = 0; i < 2 * GROUPS; i++) {
                const uint8_t code = codes[r * GROUPS + i];
                const uint64_t bytes = is_e8 ? p->e8[code] : p->magnitudes[code] ^ p->signs[(uint8_t)(signs >> 8 * i)];
                memcpy(to + (r + i / GROUPS) * QN_VQ_TILE_K + i % GROUPS * 8, &bytes, sizeof bytes);
            }
        }
    }
}

QN_INLINE __m256i load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* A row of x by two rows of w along `columns` of a tile, eight sums a digit and row. Weights are at most 30, so that
 * two pairs' products are within 16 bits. */
QN_INLINE void one_by_two(const uint8_t *w, const int8_t *digits, int64_t columns, __m256i s[QN_VQ_PLANES][2])
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 3
    for (int d = 0; d < QN_VQ_PLANES; d++) {
        s[d][0] = s[d][1] = _mm256_setzero_si256();
    }
    for (int64_t k = 0; k < columns; k += QN_VQ_UNIT_K) {
        const uint8_t *const a = w + k, *const b = a + QN_VQ_TILE_K;
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            const __m256i x = load(digits + d * QN_VQ_TILE_K + k), y = load(digits + d * QN_VQ_TILE_K + k + 32);
            const __m256i first =
                _mm256_add_epi16(_mm256_maddubs_epi16(load(a), x), _mm256_maddubs_epi16(load(a + 32), y));
            const __m256i second =
                _mm256_add_epi16(_mm256_maddubs_epi16(load(b), x), _mm256_maddubs_epi16(load(b + 32), y));
            s[d][0] = _mm256_add_epi32(s[d][0], _mm256_madd_epi16(first, ones));
            s[d][1] = _mm256_add_epi32(s[d][1], _mm256_madd_epi16(second, ones));
        }
    }
}

/* Row m of x by a decoded panel. */
static void row_by_panel(const qn_vq_lattice_call *c, const uint8_t *lines, int64_t m, int64_t t, int64_t units,
                         int book, int64_t panel)
{
    const int64_t tiles = (c->units + UNITS - 1) / UNITS, tile = m * tiles + t;
    const int8_t *const digits = c->digits + m * c->digit_stride + t * TILE_DIGITS;
    float *const sums = c->sums + m * QN_VQ_BLOCK + panel * QN_VQ_PANEL;
    for (int i = 0; i < QN_VQ_PANEL; i += 8) {
        __m256i s[QN_VQ_PLANES][8], all[QN_VQ_PLANES];
        for (int r = 0; r < 8; r += 2) {
            __m256i two[QN_VQ_PLANES][2];
            one_by_two(lines + (i + r) * QN_VQ_TILE_K, digits, units * QN_VQ_UNIT_K, two);
#pragma GCC unroll 3
            for (int d = 0; d < QN_VQ_PLANES; d++) {
                s[d][r] = two[d][0];
                s[d][r + 1] = two[d][1];
            }
        }
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            all[d] = _mm256_add_epi32(sums_of(s[d]), _mm256_set1_epi32(c->offsets[tile * 4 + d]));
        }
        add_tile(sums + i, all, c->scales[tile] * c->unit[book]);
    }
}

/* Tile t by a book. */
QN_INLINE void tile_by_book(const qn_vq_lattice_call *c, const points *p, uint8_t *lines, int64_t t, int book,
                            const int is_e8)
{
    const int64_t left = c->units - t * UNITS, units = left < UNITS ? left : UNITS;
    const uint8_t *codes = c->codes[book] + t * UNITS * c->panels * LINES * line_bytes(is_e8);
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * LINES * line_bytes(is_e8)) {
        decode_panel(p, is_e8, codes, units, lines);
        for (int64_t m = 0; m < c->rows; m++) {
            row_by_panel(c, lines, m, t, units, book, panel);
        }
    }
}

static void lattice_mm(const qn_vq_lattice_call *c)
{
    points *const p = (points *)(void *)c->scratch;
    uint8_t *const lines = (uint8_t *)(p + 1);
    put_points(c, p);
    memset(c->sums, 0, (size_t)c->rows * QN_VQ_BLOCK * sizeof *c->sums);
    for (int64_t t = 0; t * UNITS < c->units; t++) {
        for (int book = 0; book < c->books; book++) {
            if (c->last_is_e8 && book == c->books - 1) {
                tile_by_book(c, p, lines, t, book, 1);
            } else {
                tile_by_book(c, p, lines, t, book, 0);
            }
        }
    }
}

/* All digits, whatever f32 sums would be off by: a transform of the sums adds up what they are off by. */
static int lattice_digits(const float *x, int64_t k, int8_t *planes, float *scales, int32_t *offsets)
{
    const __m256i ones = _mm256_set1_epi16(1);
    int special = 0;
    for (int64_t t = 0; t * QN_VQ_TILE_K < k; t++, planes += TILE_DIGITS, offsets += 4) {
        __m256i integers[32], sums[8];
        const int64_t at = t * QN_VQ_TILE_K;
        special |= tile_integers(x + at, k - at, at, -1.0, integers, scales + t, offsets);
        for (int d = 0; d < 8; d++) {
            sums[d] = _mm256_setzero_si256();
        }
        for (int i = 0; i < 32; i += 2) {
            for (int d = 0; d < QN_VQ_PLANES; d++) {
                const __m256i words = words_of(next_digit(&integers[i]), next_digit(&integers[i + 1]));
                sums[d] = _mm256_add_epi32(sums[d], _mm256_madd_epi16(words, ones));
                _mm_storeu_si128((__m128i *)(void *)(planes + d * QN_VQ_TILE_K + i * 8), bytes_of(words));
            }
        }
        int32_t all[8];
        _mm256_storeu_si256((__m256i *)(void *)all, sums_of(sums));
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            offsets[d] = -QN_VQ_LATTICE_BIAS * all[d];
        }
    }
    return special;
}

/* ---- Hadamard transforms ---- */

/* Numbers whose lane has the bit `half` become what their neighbour is more than they are, others the sum. */
QN_INLINE __m256 butterfly(__m256 v, const int half)
{
    const __m256 other = half == 1   ? _mm256_permute_ps(v, 0xB1)
                         : half == 2 ? _mm256_permute_ps(v, 0x4E)
                                     : _mm256_permute2f128_ps(v, v, 1);
    const __m256 sum = _mm256_add_ps(v, other), difference = _mm256_sub_ps(other, v);
    return half == 1   ? _mm256_blend_ps(sum, difference, 0xAA)
           : half == 2 ? _mm256_blend_ps(sum, difference, 0xCC)
                       : _mm256_blend_ps(sum, difference, 0xF0);
}

QN_INLINE void put_some(float *to, int64_t left, __m256 v)
{
    float all[8];
    if (left >= 8) {
        _mm256_storeu_ps(to, v);
        return;
    }
    _mm256_storeu_ps(all, v);
    memcpy(to, all, (size_t)left * sizeof *to);
}

/* Walsh-Hadamard transforms of x[n], n a power of two, times a scale that comes first: no sum is then larger than the
 * norm of x. */
static void walsh(float *x, int64_t n, float scale)
{
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(some_of(x + i, n - i), _mm256_set1_ps(scale));
        v = n > 1 ? butterfly(v, 1) : v;
        v = n > 2 ? butterfly(v, 2) : v;
        v = n > 4 ? butterfly(v, 4) : v;
        put_some(x + i, n - i, v);
    }
    for (int64_t half = 8; half < n; half *= 2) {
        for (int64_t i = 0; i < n; i += 2 * half) {
            for (int64_t j = i; j < i + half; j += 8) {
                const __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + half);
                _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
                _mm256_storeu_ps(x + j + half, _mm256_sub_ps(a, b));
            }
        }
    }
}

/* out[base][fast] = mix x; bases are multiples of four. */
static void multiply(const float *x, int64_t base, int64_t fast, const float *mix, float *out)
{
    for (int64_t f = 0; f < fast; f += 8) {
        for (int64_t i = 0; i < base; i += 4) {
            __m256 s[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                s[r] = _mm256_setzero_ps();
            }
            for (int64_t j = 0; j < base; j++) {
                const __m256 v = some_of(x + j * fast + f, fast - f);
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) {
                    s[r] = _mm256_fmadd_ps(_mm256_set1_ps(mix[(i + r) * base + j]), v, s[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                put_some(out + (i + r) * fast + f, fast - f, s[r]);
            }
        }
    }
}

static void turn(float *x, int64_t n, int64_t base, const float *mix, float *scratch)
{
    const int64_t fast = n / base;
    const float scale = (float)(1.0 / __builtin_sqrt((double)n));
    for (int64_t i = 0; i < base; i++) {
        walsh(x + i * fast, fast, scale);
    }
    if (base > 1) {
        multiply(x, base, fast, mix, scratch);
        memcpy(x, scratch, (size_t)n * sizeof *x);
    }
}

const qn_vq_lattice_set qn_vq_lattice__avx2 = {lattice_mm};
const qn_vq_lattice_rows qn_vq_lattice_rows__avx2 = {lattice_digits, turn};
