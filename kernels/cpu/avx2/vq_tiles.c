/* gptvq tiles (kernels/common/vq.h) of level avx2: a code is a load of four weights of 16 bits from a table of 2 KB.
 *
 * A tile of a row of x lies as 256 words, the two upper digits as one number, and 256 bytes, the lowest digit. The
 * product of words with a tile's weights is below 2^31 and exact, and rounded as the digits' own sums would be. */
#include "kernels/cpu/avx2/vq_digits.h"

#define LINES 16   /* of codes of a tile */
#define AHEAD 4096 /* prefetched in a stream of codes */
#define TOGETHER 8 /* rows of w in registers */
#define TILE_DIGITS (QN_VQ_PLANES * QN_VQ_TILE_K)
#define BLOCK_PANELS (QN_VQ_BLOCK / QN_VQ_PANEL)
#define BOOK_BYTES 2048

/* Entries as four words. */
static void put_book(const uint8_t *book, int16_t *to)
{
    const __m128i middle = _mm_set1_epi8((char)128);
    for (int e = 0; e < 256; e += 16, to += 64) {
        __m128i plane[4], pair[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            plane[j] = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(const void *)(book + j * 256 + e)), middle);
        }
        for (int h = 0; h < 2; h++) {
            pair[2 * h] = _mm_unpacklo_epi8(plane[2 * h], plane[2 * h + 1]);
            pair[2 * h + 1] = _mm_unpackhi_epi8(plane[2 * h], plane[2 * h + 1]);
        }
        for (int h = 0; h < 2; h++) { /* four bytes each of entries e + 8 h on */
            const __m128i low = _mm_unpacklo_epi16(pair[h], pair[2 + h]),
                          high = _mm_unpackhi_epi16(pair[h], pair[2 + h]);
            _mm256_store_si256((__m256i *)(void *)(to + h * 32), _mm256_cvtepi8_epi16(low));
            _mm256_store_si256((__m256i *)(void *)(to + h * 32 + 16), _mm256_cvtepi8_epi16(high));
        }
    }
}

/* Four neighbouring vectors of a row of w. */
QN_INLINE __m256i four_vectors(const double *book, const uint8_t *codes)
{
    uint32_t word;
    memcpy(&word, codes, sizeof word);
    const __m128d low = _mm_loadh_pd(_mm_load_sd(book + (uint8_t)word), book + (uint8_t)(word >> 8));
    const __m128d high = _mm_loadh_pd(_mm_load_sd(book + (uint8_t)(word >> 16)), book + (word >> 24));
    return _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(low), high, 1));
}

QN_INLINE __m256i load(const int16_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Panel p of tile t of the blocks. */
QN_INLINE const uint8_t *panel_codes(const qn_vq_tiles_call *c, int64_t t, int64_t p)
{
    return c->codes + ((p / 2 * c->tiles + t) * 2 + p % 2) * QN_VQ_TILE_BYTES;
}

/* Sums of row m by panel p of the blocks. */
QN_INLINE float *panel_sums(const qn_vq_tiles_call *c, int64_t m, int64_t p)
{
    return c->sums + (p / BLOCK_PANELS * c->rows + m) * QN_VQ_BLOCK + p % BLOCK_PANELS * QN_VQ_PANEL;
}

QN_INLINE const int16_t *words_at(const qn_vq_tiles_call *c, int64_t m, int64_t t)
{
    return (const int16_t *)(const void *)(c->digits + m * c->digit_stride + t * TILE_DIGITS);
}

QN_INLINE int has_words_only(const qn_vq_tiles_call *c, int64_t m, int64_t t)
{
    return c->offsets[(m * c->tiles + t) * 4 + 3];
}

QN_INLINE float scale_at(const qn_vq_tiles_call *c, int64_t m, int64_t t)
{
    return c->scales[m * c->tiles + t] * c->book_scales[t];
}

/* Sums of words, 256 of them each, of a tile to the running sums of four or eight rows of w. */
QN_INLINE __m256 plus_words(__m256i words, __m256 scale, __m256 sums)
{
    const __m256 all = _mm256_mul_ps(_mm256_cvtepi32_ps(words), _mm256_set1_ps(256.0f));
    return _mm256_fmadd_ps(all, scale, sums);
}

/* ---- one row of x: weights are never stored ---- */

QN_INLINE void rows_by_one(const double *book, const uint8_t *codes, const int16_t *x, float scale, float *sums)
{
    __m256i s[TOGETHER];
#pragma GCC unroll 8
    for (int r = 0; r < TOGETHER; r++) {
        s[r] = _mm256_setzero_si256();
    }
    for (int q = 0; q < LINES; q++) {
        const __m256i v = load(x + q * 16);
        _mm_prefetch((const char *)codes + AHEAD + q * 64, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int r = 0; r < TOGETHER; r++) {
            const __m256i w = four_vectors(book, codes + q * 64 + r * 4);
            s[r] = _mm256_add_epi32(s[r], _mm256_madd_epi16(w, v));
        }
    }
    _mm256_storeu_ps(sums, plus_words(sums_of(s), _mm256_set1_ps(scale), _mm256_loadu_ps(sums)));
}

/* ---- looked-up panels ---- */

/* A panel's weights, [row][256]. */
static void look_up_panel(const double *book, const uint8_t *codes, int16_t *to)
{
    for (int q = 0; q < LINES; q++) {
        _mm_prefetch((const char *)codes + AHEAD + q * 64, _MM_HINT_T0);
#pragma GCC unroll 16
        for (int r = 0; r < QN_VQ_PANEL; r++) {
            _mm256_store_si256((__m256i *)(void *)(to + r * QN_VQ_TILE_K + q * 16),
                               four_vectors(book, codes + q * 64 + r * 4));
        }
    }
}

/* Two rows of x, words only, by four rows of w. */
QN_INLINE void two_by_four(const int16_t *w, const int16_t *x0, const int16_t *x1, __m256 scale, float *sums0,
                           float *sums1)
{
    __m256i s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s[i] = _mm256_setzero_si256();
    }
#pragma GCC unroll 2
    for (int q = 0; q < QN_VQ_TILE_K; q += 16) {
        const __m256i a = load(x0 + q), b = load(x1 + q);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m256i v = load(w + i * QN_VQ_TILE_K + q);
            s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(v, a));
            s[4 + i] = _mm256_add_epi32(s[4 + i], _mm256_madd_epi16(v, b));
        }
    }
    const __m256 before = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(sums0)), _mm_loadu_ps(sums1), 1);
    const __m256 after = plus_words(sums_of(s), scale, before);
    _mm_storeu_ps(sums0, _mm256_castps256_ps128(after));
    _mm_storeu_ps(sums1, _mm256_extractf128_ps(after, 1));
}

/* A row of x, words only, by eight rows of w. */
QN_INLINE void one_by_eight(const int16_t *w, const int16_t *x, float scale, float *sums)
{
    __m256i s[TOGETHER];
#pragma GCC unroll 8
    for (int i = 0; i < TOGETHER; i++) {
        s[i] = _mm256_setzero_si256();
    }
    for (int q = 0; q < QN_VQ_TILE_K; q += 16) {
        const __m256i v = load(x + q);
#pragma GCC unroll 8
        for (int i = 0; i < TOGETHER; i++) {
            s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(load(w + i * QN_VQ_TILE_K + q), v));
        }
    }
    _mm256_storeu_ps(sums, plus_words(sums_of(s), _mm256_set1_ps(scale), _mm256_loadu_ps(sums)));
}

/* A row of x with all its digits by eight rows of w. */
static void all_digits_by_eight(const int16_t *w, const int16_t *x, float scale, float *sums)
{
    const int8_t *const lowest = (const int8_t *)(const void *)(x + QN_VQ_TILE_K);
    __m256i planes[QN_VQ_PLANES];
    for (int p = 0; p < QN_VQ_PLANES; p++) {
        __m256i s[TOGETHER];
#pragma GCC unroll 8
        for (int i = 0; i < TOGETHER; i++) {
            s[i] = _mm256_setzero_si256();
        }
        for (int q = 0; q < QN_VQ_TILE_K; q += 16) {
            const __m256i middle = _mm256_srai_epi16(_mm256_slli_epi16(load(x + q), 8), 8);
            const __m256i v = p == 0 ? _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(const void *)(lowest + q)))
                              : p == 1 ? middle
                                       : _mm256_srai_epi16(_mm256_sub_epi16(load(x + q), middle), 8);
#pragma GCC unroll 8
            for (int i = 0; i < TOGETHER; i++) {
                s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(load(w + i * QN_VQ_TILE_K + q), v));
            }
        }
        planes[p] = sums_of(s);
    }
    add_tile(sums, planes, scale);
}

/* Rows of x by a looked-up panel. */
static void rows_by_panel(const qn_vq_tiles_call *c, int64_t t, int64_t p, const int16_t *w)
{
    int64_t m = 0;
    while (m < c->rows) {
        const int words = has_words_only(c, m, t);
        float *const sums = panel_sums(c, m, p);
        if (words && m + 1 < c->rows && has_words_only(c, m + 1, t)) {
            const __m256 scale =
                _mm256_insertf128_ps(_mm256_set1_ps(scale_at(c, m, t)), _mm_set1_ps(scale_at(c, m + 1, t)), 1);
            for (int i = 0; i < QN_VQ_PANEL; i += 4) {
                two_by_four(w + i * QN_VQ_TILE_K, words_at(c, m, t), words_at(c, m + 1, t), scale, sums + i,
                            panel_sums(c, m + 1, p) + i);
            }
            m += 2;
            continue;
        }
        for (int i = 0; i < QN_VQ_PANEL; i += TOGETHER) {
            if (words) {
                one_by_eight(w + i * QN_VQ_TILE_K, words_at(c, m, t), scale_at(c, m, t), sums + i);
            } else {
                all_digits_by_eight(w + i * QN_VQ_TILE_K, words_at(c, m, t), scale_at(c, m, t), sums + i);
            }
        }
        m++;
    }
}

static void tiles_mm(const qn_vq_tiles_call *c)
{
    int16_t *const book = (int16_t *)(void *)c->scratch, *const lines = book + BOOK_BYTES / 2;
    const double *const vectors = (const double *)(const void *)book;
    memset(c->sums, 0, (size_t)(c->blocks * c->rows * QN_VQ_BLOCK) * sizeof *c->sums);
    for (int64_t t = 0; t < c->tiles; t++) {
        put_book(c->books + t * QN_VQ_TILE_BYTES, book);
        for (int64_t p = 0; p < c->panels; p++) {
            const uint8_t *const codes = panel_codes(c, t, p);
            if (c->rows == 1 && has_words_only(c, 0, t)) {
                for (int i = 0; i < QN_VQ_PANEL; i += TOGETHER) {
                    rows_by_one(vectors, codes + i * 4, words_at(c, 0, t), scale_at(c, 0, t), panel_sums(c, 0, p) + i);
                }
            } else {
                look_up_panel(vectors, codes, lines);
                rows_by_panel(c, t, p, lines);
            }
        }
    }
}

/* What elements may be rounded to multiples of. */
static double coarsest_of(const float *x, int64_t k)
{
    __m256d squares[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
    for (int64_t i = 0; i < k; i += 16) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m256 v = some_of(x + i + 8 * h, k - i - 8 * h);
            const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
            const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
            squares[2 * h] = _mm256_fmadd_pd(low, low, squares[2 * h]);
            squares[2 * h + 1] = _mm256_fmadd_pd(high, high, squares[2 * h + 1]);
        }
    }
    const __m256d four = _mm256_add_pd(_mm256_add_pd(squares[1], squares[3]), _mm256_add_pd(squares[0], squares[2]));
    const __m128d two = _mm_add_pd(_mm256_extractf128_pd(four, 1), _mm256_castpd256_pd128(four));
    return dither_unit(_mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two)), k);
}

static int tile_digits(const float *x, int64_t k, int8_t *planes, float *scales, int32_t *offsets)
{
    const double coarsest = coarsest_of(x, k);
    int special = 0;
    for (int64_t t = 0; t * QN_VQ_TILE_K < k; t++, planes += TILE_DIGITS) {
        __m256i integers[32];
        const int64_t at = t * QN_VQ_TILE_K;
        special |= tile_integers(x + at, k - at, at, coarsest, integers, scales + t, offsets + t * 4);
        for (int i = 0; i < 32; i += 2) {
            const __m256i lowest = words_of(next_digit(&integers[i]), next_digit(&integers[i + 1]));
            const __m256i words = words_of(integers[i], integers[i + 1]);
            _mm256_storeu_si256((__m256i *)(void *)(planes + i * 16), words);
            _mm_storeu_si128((__m128i *)(void *)(planes + 2 * QN_VQ_TILE_K + i * 8), bytes_of(lowest));
        }
    }
    return special;
}

const qn_vq_tiles_set qn_vq_tiles__avx2 = {tiles_mm, tile_digits};
