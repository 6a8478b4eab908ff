/* quip_e8p of level avx512vnni (vq_lattice.h), rows of x as digits, and Hadamard
 * transforms. */
#include "kernels/cpu/avx512vnni/vq_lattice.h"

#define ROWS 8 /* of x beside each other in registers */

/* `rows` rows of x by the lines of a panel: to[row][plane]. */
QN_INLINE void rows_by_lines(const int rows, const char *lines, int64_t units, const int8_t *digits, int64_t stride,
                             __m512i *to)
{
    __m512i s[ROWS][QN_VQ_PLANES];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            s[r][d] = _mm512_setzero_si512();
        }
    }
    for (int64_t l = 0; l < units * LINES * 8; l += 2, digits += 8) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const __m512i w = _mm512_load_si512(lines + (l + i) * 64);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
                for (int d = 0; d < QN_VQ_PLANES; d++) {
                    s[r][d] = _mm512_dpbusd_epi32(s[r][d], w, four(digits + r * stride + d * QN_VQ_TILE_K + i * 4));
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 3
        for (int d = 0; d < QN_VQ_PLANES; d++) {
            _mm512_store_si512(to + r * QN_VQ_PLANES + d, s[r][d]);
        }
    }
}

/* Functions of their own have all registers. */
#define ROWS_BY_LINES(rows)                                                                                            \
    static __attribute__((noinline)) void rows_##rows(const char *lines, int64_t units, const int8_t *digits,          \
                                                      int64_t stride, __m512i *to)                                     \
    {                                                                                                                  \
        rows_by_lines(rows, lines, units, digits, stride, to);                                                         \
    }
ROWS_BY_LINES(8)
ROWS_BY_LINES(4)
ROWS_BY_LINES(2)
ROWS_BY_LINES(1)

/* All rows by the lines of a panel. */
QN_INLINE void panel_by_rows(const qn_vq_lattice_call *c, int64_t t, int64_t units, int book, int64_t panel)
{
    const int64_t tiles = (c->units + UNITS - 1) / UNITS;
    const int8_t *digits = c->digits + t * QN_VQ_PLANES * QN_VQ_TILE_K;
    __m512i s[ROWS * QN_VQ_PLANES];
    for (int64_t m = 0, some; m < c->rows; m += some, digits += some * c->digit_stride) {
        const int64_t left = c->rows - m;
        some = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        (some == 8   ? rows_8
         : some == 4 ? rows_4
         : some == 2 ? rows_2
                     : rows_1)(c->scratch, units, digits, c->digit_stride, s);
        for (int64_t r = 0; r < some; r++) {
            const int64_t at = (m + r) * tiles + t;
            add_tile(c->sums + (m + r) * QN_VQ_BLOCK + panel * QN_VQ_PANEL, s + r * QN_VQ_PLANES, 0,
                     c->offsets + at * 4, c->scales[at] * c->unit[book]);
        }
    }
}

/* Tile t by a book. */
QN_INLINE void tile_by_book(const qn_vq_lattice_call *c, int64_t t, int book, const int is_e8)
{
    const int64_t units = tile_units(c, t);
    const uint8_t *codes = tile_codes(c, t, book, is_e8);
    if (c->rows == 1) {
        tile_by_one(c, t, book, is_e8);
        return;
    }
    for (int64_t panel = 0; panel < c->panels; panel++, codes += units * LINES * line_bytes(is_e8)) {
        decode_panel(is_e8 ? c->e8 : c->magnitudes, is_e8, codes, units, c->scratch);
        panel_by_rows(c, t, units, book, panel);
    }
}

static void lattice_mm(const qn_vq_lattice_call *c)
{
    memset(c->sums, 0, (size_t)c->rows * QN_VQ_BLOCK * sizeof *c->sums);
    for (int64_t t = 0; t * UNITS < c->units; t++) {
        for (int book = 0; book < c->books; book++) {
            if (c->last_is_e8 && book == c->books - 1) {
                tile_by_book(c, t, book, 1);
            } else {
                tile_by_book(c, t, book, 0);
            }
        }
    }
}

/* All digits, whatever f32 sums would be off by: a transform of the sums adds up what they are off by. They are put
 * into the order of lines. */
static int lattice_digits(const float *x, int64_t k, int8_t *planes, float *scales, int32_t *offsets)
{
    const __m128i fourth = _mm_setr_epi8(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 34, 35, 36, 37, 38, 39);
    const __m512i order =
        _mm512_add_epi8(_mm512_mullo_epi32(first, _mm512_set1_epi32(0x01010101)), _mm512_set1_epi32(0x18100800));
    const int special = digits_of_row(x, k, fourth, QN_VQ_LATTICE_BIAS, -1.0, planes, scales, offsets);
    for (int64_t t = 0; t * QN_VQ_TILE_K < k; t++) {
        for (int i = 0; i < QN_VQ_PLANES * QN_VQ_TILE_K; i += 64, planes += 64) {
            _mm512_storeu_si512(planes, _mm512_permutexvar_epi8(order, _mm512_loadu_si512(planes)));
        }
    }
    return special;
}

/* ---- Hadamard transforms ---- */

QN_INLINE __mmask16 first_lanes(int64_t count)
{
    return (__mmask16)(count < 16 ? (1u << count) - 1u : 0xffffu);
}

QN_INLINE __m512 butterfly(__m512 v, const int half)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i bit = _mm512_set1_epi32(half);
    const __m512 other = _mm512_permutexvar_ps(_mm512_xor_si512(lane, bit), v);
    return _mm512_mask_sub_ps(_mm512_add_ps(v, other), _mm512_test_epi32_mask(lane, bit), other, v);
}

/* Walsh-Hadamard transforms of x[n], n a power of two, times a scale that comes first: no sum is then larger than the
 * norm of x. */
static void walsh(float *x, int64_t n, float scale)
{
    const __mmask16 some = first_lanes(n);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, x + i), _mm512_set1_ps(scale));
        v = n > 1 ? butterfly(v, 1) : v;
        v = n > 2 ? butterfly(v, 2) : v;
        v = n > 4 ? butterfly(v, 4) : v;
        v = n > 8 ? butterfly(v, 8) : v;
        _mm512_mask_storeu_ps(x + i, some, v);
    }
    for (int64_t half = 16; half < n; half *= 2) {
        for (int64_t i = 0; i < n; i += 2 * half) {
            for (int64_t j = i; j < i + half; j += 16) {
                const __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + half);
                _mm512_storeu_ps(x + j, _mm512_add_ps(a, b));
                _mm512_storeu_ps(x + j + half, _mm512_sub_ps(a, b));
            }
        }
    }
}

/* out[base][fast] = mix x; bases are multiples of four. */
static void multiply(const float *x, int64_t base, int64_t fast, const float *mix, float *out)
{
    for (int64_t f = 0; f < fast; f += 16) {
        const __mmask16 some = first_lanes(fast - f);
        for (int64_t i = 0; i < base; i += 4) {
            __m512 s[4];
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                s[r] = _mm512_setzero_ps();
            }
            for (int64_t j = 0; j < base; j++) {
                const __m512 v = _mm512_maskz_loadu_ps(some, x + j * fast + f);
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) {
                    s[r] = _mm512_fmadd_ps(_mm512_set1_ps(mix[(i + r) * base + j]), v, s[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                _mm512_mask_storeu_ps(out + (i + r) * fast + f, some, s[r]);
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

const qn_vq_lattice_set qn_vq_lattice__avx512vnni = {lattice_mm};
const qn_vq_lattice_rows qn_vq_lattice_rows__avx512vnni = {lattice_digits, turn};
