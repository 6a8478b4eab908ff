/* Panel kernels of the 4-bit floats, level avx2 (kernels/common/panel.h). e2m1 doubled is an integer from -12 to 12,
 * which a table makes of a nibble, and sixteen elements of x are integers of a power of two, so that a group's sum is
 * exact in 32 bits; what follows is the same few float operations in the same order for every number of rows.
 *
 * An integer of x has 23 bits: d0 + 128 d1 - 32768 d2, d0 from 0 to 127. Mostly two digits are enough, what is nearest
 * to x with d0 = 0 (span_digits decides, by the row's own elements). One row: digits are bytes, pairs of products go to
 * 16 bits, which hold four such pairs, codes are looked up on the way and have no sign. More rows: the two upper digits
 * are a word. One row, or many: a group of a row is in eight registers while the columns of several panels pass by, for
 * many rows as words that were looked up once, in memory that stays in the first cache. A few rows: the codes of a
 * group of eight columns are in eight registers while the rows pass by, each number of x a vector in that cache. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"

#define QN_ISA avx2
#include "kernels/cpu/name.h"

#define GROUP 16
#define GROUPS (QN_PANEL_K / GROUP)
#define HALVES 2       /* of a panel: a vector holds eight columns */
#define LINES 4        /* vectors of codes of a group of a half, as bytes */
#define PANELS 4       /* of one row, read at once */
#define MOST_PANELS 8  /* of many rows */
#define FEW_ROWS 16    /* at most, of those that codes in registers serve */
#define ROWS_AT_ONCE 4 /* of them */
#define FEW_SUMS 256   /* vectors: panels of few rows, read at once, by rows */
#define ABOVE 12       /* doubled e2m1 and this has no sign */
#define SCALES_AT 512
#define SPAN 1024      /* elements of x that are rounded together, from multiples of it on */
#define AHEAD_BLOCKS 4 /* to what is prefetched */

#define UNROLL _Pragma("GCC unroll 8")

/* What digits are multiplied with. */
#define MIDDLE_DIGIT 128
#define HIGH_DIGIT (-32768)

QN_INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* ---- rows of x ---- */

QN_INLINE int32_t highest(__m256i v)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1)));
}

QN_INLINE int32_t sum_of(__m256i v)
{
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xB1)));
}

QN_INLINE float float_sum_of(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* Sixteen words of integers, in their order. */
QN_INLINE __m256i words_of(const __m256i v[2])
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(v[0], v[1]), 0xD8);
}

QN_INLINE __m128i bytes_of(const __m256i v[2])
{
    const __m256i words = words_of(v);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

/* Digits for one row: bytes in the order in which nibbles lie. */
QN_INLINE void put_digit(const __m256i v[2], int8_t *to)
{
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_shuffle_epi8(bytes_of(v), order));
}

/* What rounding a group to its upper digits leaves, and the group's own: squares of norms, in halves of e2m1. */
typedef struct rounded {
    double error, norm;
} rounded;

/* Group g of a block. With its lowest digits, or rounded to the others. */
QN_INLINE rounded group_digits(const float *x, int64_t rows, int lowest, int64_t g, qn_panel_digits *out)
{
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    const __m256i clear = _mm256_set1_epi32(0x7fffffff);
    const int32_t most = highest(_mm256_max_epi32(_mm256_and_si256(_mm256_castps_si256(a), clear),
                                                  _mm256_and_si256(_mm256_castps_si256(b), clear)));
    if (most >= 0x7f800000) {
        const uint32_t nan = 0x7fc00000;
        memcpy(&out->scale[g], &nan, sizeof nan);
    }
    if (most >= 0x7f800000 || most == 0) {
        return (rounded){0.0, 0.0};
    }
    /* 2^e <= most < 2^(e + 1), the last 1 / 128 of which, where the highest digit would be 128, counts as the next
     * power's: times 2^(21 - e); below 2^-80 digits are lost, which the runner looks after */
    const int32_t power = (most + 65796) >> 23, exponent = power < 47 ? 47 : power;
    const int32_t up = (127 + 21 + 127 - exponent) << 23, down = (exponent - 22) << 23; /* halves: e2m1 is doubled */
    float factor;
    memcpy(&factor, &up, sizeof factor);
    memcpy(&out->scale[g], &down, sizeof down);
    const __m256 v[2] = {_mm256_mul_ps(a, _mm256_set1_ps(factor)), _mm256_mul_ps(b, _mm256_set1_ps(factor))};
    __m256i upper[2], low[2], middle[2], high[2];
    for (int i = 0; i < 2; i++) {
        const __m256i whole = _mm256_cvtps_epi32(v[i]), half = _mm256_set1_epi32(lowest ? 0 : MIDDLE_DIGIT / 2);
        upper[i] = _mm256_srai_epi32(_mm256_add_epi32(whole, half), 7);
        low[i] = _mm256_sub_epi32(whole, _mm256_slli_epi32(upper[i], 7));
        middle[i] = _mm256_srai_epi32(_mm256_slli_epi32(upper[i], 24), 24);
        high[i] = _mm256_srai_epi32(_mm256_sub_epi32(middle[i], upper[i]), 8);
    }
    out->low[g] = lowest;
    if (rows > 1) {
        _mm256_storeu_si256((__m256i *)(void *)(out->word + g * GROUP), words_of(upper));
        _mm_storeu_si128((__m128i *)(void *)(out->under + g * GROUP), bytes_of(low));
    } else {
        __m256i sum = _mm256_slli_epi32(_mm256_add_epi32(upper[0], upper[1]), 7);
        if (lowest) {
            sum = _mm256_add_epi32(sum, _mm256_add_epi32(low[0], low[1]));
            put_digit(low, out->digit[0] + g * GROUP);
        }
        put_digit(middle, out->digit[1] + g * GROUP);
        put_digit(high, out->digit[2] + g * GROUP);
        out->high[g] = -ABOVE * sum_of(sum);
    }
    const __m256i squares = _mm256_add_epi32(_mm256_mullo_epi32(low[0], low[0]), _mm256_mullo_epi32(low[1], low[1]));
    const double unit = (double)out->scale[g] * (double)out->scale[g];
    const __m256 norms = _mm256_fmadd_ps(v[0], v[0], _mm256_mul_ps(v[1], v[1]));
    return (rounded){(double)sum_of(squares) * unit, (double)float_sum_of(norms) * unit};
}

/* Four sums, of four vectors. */
QN_INLINE __m128i four_sums(const __m256i v[GROUPS])
{
    const __m256i a = _mm256_hadd_epi32(v[0], v[1]), b = _mm256_hadd_epi32(v[2], v[3]), c = _mm256_hadd_epi32(a, b);
    return _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
}

QN_INLINE __m128 four_float_sums(const __m256 v[GROUPS])
{
    const __m256 a = _mm256_hadd_ps(v[0], v[1]), b = _mm256_hadd_ps(v[2], v[3]), c = _mm256_hadd_ps(a, b);
    return _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
}

/* The largest of each of four vectors. */
QN_INLINE __m128i four_highest(const __m256i v[GROUPS])
{
    __m256i pairs[2];
    for (int i = 0; i < 2; i++) {
        const __m256i a = v[2 * i], b = v[2 * i + 1];
        pairs[i] = _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    }
    const __m256i all =
        _mm256_max_epi32(_mm256_unpacklo_epi64(pairs[0], pairs[1]), _mm256_unpackhi_epi64(pairs[0], pairs[1]));
    return _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

/* The digits of one row of words that lie as packing two vectors leaves them, in the order in which nibbles lie. */
QN_INLINE void put_upper(__m256i words, int64_t g, qn_panel_digits *out)
{
    const __m256i above = _mm256_add_epi16(words, _mm256_set1_epi16(MIDDLE_DIGIT)); /* in its upper bytes: -high */
    const __m128i low = _mm_set1_epi16(0xff), w = _mm256_castsi256_si128(words), v = _mm256_castsi256_si128(above);
    const __m128i middle = _mm_or_si128(_mm_and_si128(w, low), _mm_slli_epi16(_mm256_extracti128_si256(words, 1), 8));
    const __m128i high = _mm_or_si128(_mm_srli_epi16(v, 8), _mm_andnot_si128(low, _mm256_extracti128_si256(above, 1)));
    _mm_storeu_si128((__m128i *)(void *)(out->digit[1] + g * GROUP), middle);
    _mm_storeu_si128((__m128i *)(void *)(out->digit[2] + g * GROUP), _mm_sub_epi8(_mm_setzero_si128(), high));
}

/* What rounding the groups of a span to their upper digits leaves, squares of norms; and the elements' own. */
typedef struct span {
    double error[SPAN / GROUP];
    __m256d errors, norms;
} span;

/* What group_digits does without lowest digits, for the groups of a block together. 0: one of them has nothing, or not
 * finite elements. */
QN_INLINE int block_digits(const float *x, int64_t rows, qn_panel_digits *out, int64_t first, span *s)
{
    __m256i most[GROUPS], sums[GROUPS], squares[GROUPS];
    __m256 norms[GROUPS];
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        const __m256i clear = _mm256_set1_epi32(0x7fffffff);
        most[g] = _mm256_max_epi32(_mm256_and_si256(load(x + g * GROUP), clear),
                                   _mm256_and_si256(load(x + g * GROUP + 8), clear));
    }
    const __m128i all = four_highest(most), none = _mm_cmpeq_epi32(all, _mm_setzero_si128());
    if (_mm_movemask_epi8(_mm_or_si128(none, _mm_cmpgt_epi32(all, _mm_set1_epi32(0x7f7fffff))))) {
        return 0;
    }
    const __m128i power = _mm_srli_epi32(_mm_add_epi32(all, _mm_set1_epi32(65796)), 23);
    const __m128i exponent = _mm_max_epi32(power, _mm_set1_epi32(47));
    const __m128i up = _mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(127 + 21 + 127), exponent), 23);
    const __m128 scale = _mm_castsi128_ps(_mm_slli_epi32(_mm_sub_epi32(exponent, _mm_set1_epi32(22)), 23));
    const __m256 factors = _mm256_castsi256_ps(_mm256_broadcastsi128_si256(up));
    const __m256 factor[GROUPS] = {_mm256_permute_ps(factors, 0x00), _mm256_permute_ps(factors, 0x55),
                                   _mm256_permute_ps(factors, 0xaa), _mm256_permute_ps(factors, 0xff)};
    UNROLL for (int g = 0; g < GROUPS; g++)
    {
        const __m256 v[2] = {_mm256_mul_ps(_mm256_loadu_ps(x + g * GROUP), factor[g]),
                             _mm256_mul_ps(_mm256_loadu_ps(x + g * GROUP + 8), factor[g])};
        __m256i upper[2], low[2];
        UNROLL for (int i = 0; i < 2; i++)
        {
            const __m256i whole = _mm256_cvtps_epi32(v[i]);
            upper[i] = _mm256_srai_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(MIDDLE_DIGIT / 2)), 7);
            low[i] = _mm256_sub_epi32(whole, _mm256_slli_epi32(upper[i], 7));
        }
        const __m256i words = _mm256_packs_epi32(upper[0], upper[1]), left = _mm256_packs_epi32(low[0], low[1]);
        if (rows > 1) {
            _mm256_storeu_si256((__m256i *)(void *)(out->word + g * GROUP), _mm256_permute4x64_epi64(words, 0xD8));
        } else {
            put_upper(words, g, out);
        }
        sums[g] = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
        squares[g] = _mm256_madd_epi16(left, left);
        norms[g] = _mm256_fmadd_ps(v[0], v[0], _mm256_mul_ps(v[1], v[1]));
    }
    const __m128i high = _mm_mullo_epi32(four_sums(sums), _mm_set1_epi32(-ABOVE * MIDDLE_DIGIT));
    const __m128 error = _mm_cvtepi32_ps(four_sums(squares)), norm = four_float_sums(norms);
    _mm_storeu_ps(out->scale, scale);
    _mm_storeu_si128((__m128i *)(void *)out->high, high);
    _mm_storeu_si128((__m128i *)(void *)out->low, _mm_setzero_si128());
    const __m256d wide = _mm256_cvtps_pd(scale), unit = _mm256_mul_pd(wide, wide);
    const __m256d errors = _mm256_mul_pd(_mm256_cvtps_pd(error), unit);
    _mm256_storeu_pd(s->error + first, errors);
    s->errors = _mm256_add_pd(errors, s->errors);
    s->norms = _mm256_fmadd_pd(_mm256_cvtps_pd(norm), unit, s->norms);
    return 1;
}

QN_INLINE double double_sum_of(__m256d v)
{
    const __m128d a = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)));
}

/* The most that a group may leave, so that those that leave no more do not leave more than `all` together. */
static double most_of_a_group(const double *error, int64_t groups, double all)
{
    for (double most = all;; most /= 2) {
        const __m256d limit = _mm256_set1_pd(most);
        __m256d left = _mm256_setzero_pd();
        for (int64_t i = 0; i < groups; i += GROUPS) {
            const __m256d x = _mm256_loadu_pd(error + i);
            left = _mm256_add_pd(left, _mm256_and_pd(x, _mm256_cmp_pd(x, limit, _CMP_LE_OQ)));
        }
        if (double_sum_of(left) <= all) {
            return most;
        }
    }
}

/* Up to SPAN elements: rounded, as many of them as the error allows, of the norm of all: the groups that lose least. */
static void span_digits(const float *x, int64_t blocks, const qn_panel_rounding *how, qn_panel_digits *out)
{
    double error = 0.0, norm = 0.0;
    span s;
    s.errors = s.norms = _mm256_setzero_pd();
    for (int64_t b = 0; b < blocks; b++) {
        if (block_digits(x + b * QN_PANEL_K, how->rows, out + b, b * GROUPS, &s)) {
            continue;
        }
        memset(out + b, 0, sizeof *out);
        for (int64_t i = b * GROUPS; i < (b + 1) * GROUPS; i++) {
            const rounded r = group_digits(x + i * GROUP, how->rows, 0, i % GROUPS, out + b);
            s.error[i] = r.error;
            error += r.error;
            norm += r.norm;
        }
    }
    const double all = (double)how->most_error * (double)how->most_error * (norm + double_sum_of(s.norms));
    if (error + double_sum_of(s.errors) <= all) {
        return;
    }
    const double most = most_of_a_group(s.error, blocks * GROUPS, all);
    for (int64_t i = 0; i < blocks * GROUPS; i++) {
        if (s.error[i] > most) {
            (void)group_digits(x + i * GROUP, how->rows, 1, i % GROUPS, out + i / GROUPS);
        }
    }
}

static void row_digits(const float *x, int64_t blocks, const qn_panel_rounding *how, void *out)
{
    for (int64_t b = 0; b < blocks; b += SPAN / QN_PANEL_K) {
        const int64_t some = blocks - b < SPAN / QN_PANEL_K ? blocks - b : SPAN / QN_PANEL_K;
        span_digits(x + b * QN_PANEL_K, some, how, (qn_panel_digits *)out + b);
    }
}

/* ---- weights ---- */

QN_INLINE int64_t block_bytes(const int code)
{
    return code == QN_PANEL_NVFP4 ? 576 : 544;
}

/* nvfp4's scales of a block as f16 [half][group][8] of a 256th, which has e4m3's bits. */
QN_INLINE void halve_scales(const int code, const char *block, uint16_t halves[HALVES * GROUPS * 8])
{
    UNROLL for (int i = 0; i < 2 * HALVES && code == QN_PANEL_NVFP4; i++)
    {
        const __m256i x = load(block + SCALES_AT + i / 2 * 32), zero = _mm256_setzero_si256();
        const __m256i bits = i % 2 ? _mm256_unpackhi_epi8(zero, x) : _mm256_unpacklo_epi8(zero, x);
        const __m256i two = _mm256_permute4x64_epi64(_mm256_srli_epi16(bits, 1), 0xD8);
        _mm256_storeu_si256((__m256i *)(void *)(halves + i * 16), two);
    }
}

/* The scales of group g of a half. */
QN_INLINE __m256 group_scale(const int code, const char *block, const uint16_t halves[HALVES * GROUPS * 8], int64_t g,
                             int h)
{
    if (code == QN_PANEL_NVFP4) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(halves + (h * GROUPS + g) * 8)));
    }
    const char *const at = block + SCALES_AT + g / 2 * QN_PANEL_COLS + h * 8;
    const __m256i bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}

#define DOUBLED _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

/* Codes of a group of eight columns as bytes: doubled e2m1 and ABOVE. */
QN_INLINE void group_codes(const char *lines, __m256i w[LINES])
{
    const __m256i table = _mm256_add_epi8(_mm256_broadcastsi128_si256(DOUBLED), _mm256_set1_epi8(ABOVE));
    const __m256i low = _mm256_set1_epi8(15);
    UNROLL for (int l = 0; l < 2; l++)
    {
        __m256i x = load(lines + l * QN_PANEL_LINE);
        __asm__("" : "+x"(x)); /* one load */
        w[2 * l] = _mm256_shuffle_epi8(table, _mm256_and_si256(x, low));
        w[2 * l + 1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
    }
}

/* ---- products ---- */

/* Numbers of 32 bits, one a vector. */
QN_INLINE void spread(const int count, const void *from, __m256i *x)
{
    UNROLL for (int i = 0; i < count; i++)
    {
        int32_t one;
        memcpy(&one, (const char *)from + i * 4, sizeof one);
        x[i] = _mm256_set1_epi32(one);
    }
}

/* Sums of products of unsigned and signed bytes, in pairs of 16 bits, times a factor. */
QN_INLINE __m256i dot(const __m256i unsigned_bytes[LINES], const __m256i signed_bytes[LINES], int16_t factor)
{
    __m256i sums = _mm256_maddubs_epi16(unsigned_bytes[0], signed_bytes[0]);
    UNROLL for (int l = 1; l < LINES; l++)
    {
        sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(unsigned_bytes[l], signed_bytes[l]));
        __asm__("" : "+x"(sums)); /* in this order: others keep more than there are registers */
    }
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(factor));
}

/* A group's exact sum is scaled and added. Scales of mxfp4 come last: theirs are up to 2^123. */
QN_INLINE __m256 group_added(const int code, __m256i all, __m256 row_scale, __m256 scale, __m256 sums)
{
    const int last = code == QN_PANEL_MXFP4;
    const __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(all), last ? row_scale : scale);
    return _mm256_fmadd_ps(part, last ? scale : row_scale, sums);
}

QN_INLINE void add_group(const int code, __m256i all, __m256 row_scale, __m256 scale, float *sums)
{
    _mm256_storeu_ps(sums, group_added(code, all, row_scale, scale, _mm256_loadu_ps(sums)));
}

/* Group g of a row times panels from block on, looked up on the way. */
QN_INLINE void one_row(const int code, const int lowest, const qn_panel_digits *row, int64_t g, const char *block,
                       int64_t panel_bytes, int64_t panels, int64_t ahead, uint16_t halves[][HALVES * GROUPS * 8],
                       float *sums)
{
    __m256i low[LINES], middle[LINES], high[LINES];
    spread(LINES, row->digit[1] + g * GROUP, middle);
    spread(LINES, row->digit[2] + g * GROUP, high);
    const __m256i start = _mm256_set1_epi32(row->high[g]);
    const __m256 row_scale = _mm256_set1_ps(row->scale[g]);
    for (int64_t n = 0; n < panels; n++) {
        const char *const w = block + n * panel_bytes, *const lines = w + g * 2 * QN_PANEL_LINE;
        __builtin_prefetch(lines + ahead, 0, 2);
        __builtin_prefetch(lines + ahead + QN_PANEL_LINE, 0, 2);
        UNROLL for (int h = 0; h < HALVES; h++)
        {
            __m256i codes[LINES];
            group_codes(lines + h * 32, codes);
            __m256i all = _mm256_add_epi32(start, dot(codes, middle, MIDDLE_DIGIT));
            all = _mm256_add_epi32(all, dot(codes, high, HIGH_DIGIT));
            if (lowest) {
                spread(LINES, row->digit[0] + g * GROUP, low);
                all = _mm256_add_epi32(all, dot(codes, low, 1));
            }
            add_group(code, all, row_scale, group_scale(code, w, halves[n], g, h), sums + n * QN_PANEL_COLS + h * 8);
        }
    }
}

/* A group of eight columns, looked up for several rows. */
typedef struct staged {
    __m256i pairs[GROUP / 2]; /* words of doubled e2m1 times 256, of k and k + 1 */
    __m256 scale;
} staged;

/* Pairs of a group of eight columns: what the nibbles of bytes stand for comes to the upper byte of its word. */
QN_INLINE void group_pairs(const char *lines, __m256i pairs[GROUP / 2])
{
    const __m256i table = _mm256_broadcastsi128_si256(DOUBLED);
    const __m256i low = _mm256_set1_epi8(15), upper = _mm256_set1_epi16(-256);
    UNROLL for (int l = 0; l < 2; l++)
    {
        __m256i x = load(lines + l * QN_PANEL_LINE);
        __asm__("" : "+x"(x)); /* one load */
        const __m256i even = _mm256_shuffle_epi8(table, _mm256_and_si256(x, low));
        const __m256i odd = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
        pairs[4 * l] = _mm256_slli_epi16(even, 8);
        pairs[4 * l + 1] = _mm256_slli_epi16(odd, 8);
        pairs[4 * l + 2] = _mm256_and_si256(even, upper);
        pairs[4 * l + 3] = _mm256_and_si256(odd, upper);
    }
}

/* A block of panels to memory, group by group. */
QN_INLINE void stage_block(const int code, const char *block, int64_t panel_bytes, int64_t panels,
                           staged to[GROUPS][MOST_PANELS * HALVES])
{
    for (int64_t n = 0; n < panels; n++) {
        const char *const w = block + n * panel_bytes;
        uint16_t halves[HALVES * GROUPS * 8];
        halve_scales(code, w, halves);
        for (int64_t g = 0; g < GROUPS; g++) {
            UNROLL for (int h = 0; h < HALVES; h++)
            {
                staged *const s = &to[g][n * HALVES + h];
                group_pairs(w + g * 2 * QN_PANEL_LINE + h * 32, s->pairs);
                s->scale = group_scale(code, w, halves, g, h);
            }
        }
    }
}

/* 256 times the sum of products of words. */
QN_INLINE __m256i pair_sums(const __m256i x[GROUP / 2], const __m256i pairs[GROUP / 2])
{
    __m256i sums[2];
    UNROLL for (int i = 0; i < GROUP / 2; i++)
    {
        const __m256i products = _mm256_madd_epi16(x[i], pairs[i]);
        sums[i % 2] = i < 2 ? products : _mm256_add_epi32(sums[i % 2], products);
        __asm__("" : "+x"(sums[i % 2])); /* in this order: others keep more than there are registers */
    }
    return _mm256_add_epi32(sums[0], sums[1]);
}

/* Sums of all digits, where there are lowest ones. */
QN_INLINE __m256i sums_with_lowest(const __m256i x[GROUP / 2], const __m256i lowest[GROUP / 2],
                                   const __m256i pairs[GROUP / 2])
{
    const __m256i upper = _mm256_srai_epi32(pair_sums(x, pairs), 1);
    return _mm256_add_epi32(upper, _mm256_srai_epi32(pair_sums(lowest, pairs), 8));
}

QN_INLINE void spread_lowest(const qn_panel_digits *row, int64_t g, __m256i lowest[GROUP / 2])
{
    const __m256i words =
        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(row->under + g * GROUP)));
    spread(GROUP / 2, &words, lowest);
}

/* Group g of a row times the staged groups of panels. */
QN_INLINE void staged_row(const int code, const qn_panel_digits *row, int64_t g, const staged *w, int64_t panels,
                          float *sums)
{
    __m256i x[GROUP / 2];
    spread(GROUP / 2, row->word + g * GROUP, x);
    const __m256 scale = _mm256_set1_ps(row->scale[g] * (MIDDLE_DIGIT / 256.0f));
    for (int64_t n = 0; n < panels * HALVES; n++) {
        add_group(code, pair_sums(x, w[n].pairs), scale, w[n].scale, sums + n * 8);
    }
}

/* The same where there are lowest digits. */
static __attribute__((noinline)) void staged_row_lowest(const int code, const qn_panel_digits *row, int64_t g,
                                                        const staged *w, int64_t panels, float *sums)
{
    __m256i x[GROUP / 2], lowest[GROUP / 2];
    spread(GROUP / 2, row->word + g * GROUP, x);
    spread_lowest(row, g, lowest);
    const __m256 scale = _mm256_set1_ps(row->scale[g]);
    for (int64_t n = 0; n < panels * HALVES; n++) {
        add_group(code, sums_with_lowest(x, lowest, w[n].pairs), scale, w[n].scale, sums + n * 8);
    }
}

QN_INLINE void prefetch_block(const int code, const char *block)
{
    UNROLL for (int64_t i = 0; i < block_bytes(code); i += QN_PANEL_LINE)
    {
        __builtin_prefetch(block + i, 0, 2);
    }
}

/* One row times up to PANELS panels from p, the whole of K. */
QN_INLINE void row_panels(const int code, const qn_panel_call *call, int64_t p, int64_t panels)
{
    float *const sums = (float *)call->sums + p * QN_PANEL_COLS;
    for (int64_t b = 0; b < call->blocks; b++) {
        const qn_panel_digits *const row = (const qn_panel_digits *)(const void *)call->a + b;
        const char *const block = call->w + p * call->panel_bytes + b * block_bytes(code);
        const int64_t ahead =
            AHEAD_BLOCKS * block_bytes(code) + (b + AHEAD_BLOCKS < call->blocks ? 0 : (panels - 1) * call->panel_bytes);
        uint16_t halves[PANELS][HALVES * GROUPS * 8];
        for (int64_t n = 0; n < panels; n++) {
            const char *const w = block + n * call->panel_bytes;
            __builtin_prefetch(w + ahead + SCALES_AT, 0, 2);
            halve_scales(code, w, halves[n]);
        }
        for (int64_t g = 0; g < GROUPS; g++) {
            if (row->low[g]) {
                one_row(code, 1, row, g, block, call->panel_bytes, panels, ahead, halves, sums);
            } else {
                one_row(code, 0, row, g, block, call->panel_bytes, panels, ahead, halves, sums);
            }
        }
    }
}

/* All rows times up to MOST_PANELS panels from p, block b. */
QN_INLINE void rows_block(const int code, const qn_panel_call *call, int64_t p, int64_t panels, int64_t b)
{
    staged w[GROUPS][MOST_PANELS * HALVES];
    const char *const block = call->w + p * call->panel_bytes + b * block_bytes(code);
    for (int64_t n = 0; n < panels; n++) {
        prefetch_block(code, block + n * call->panel_bytes + AHEAD_BLOCKS * block_bytes(code));
    }
    stage_block(code, block, call->panel_bytes, panels, w);
    for (int64_t r = 0; r < call->rows; r++) {
        const qn_panel_digits *const row = (const qn_panel_digits *)(const void *)(call->a + r * call->a_stride) + b;
        float *const sums = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
        if (p == 0) {
            for (int i = 0; i < 4; i++) {
                __builtin_prefetch((const char *)(row + 1) + i * 64, 0, 3);
            }
        }
        for (int64_t g = 0; g < GROUPS; g++) {
            if (row->low[g]) {
                staged_row_lowest(code, row, g, w[g], panels, sums);
            } else {
                staged_row(code, row, g, w[g], panels, sums);
            }
        }
    }
}

/* A group of a row of x, numbers of 32 bits, one a vector. */
typedef struct spread_group {
    __m256i pairs[GROUP / 2];
    __m256 scale;
} spread_group;

/* A block of few rows. */
typedef struct spread_rows {
    spread_group group[GROUPS][FEW_ROWS];
    __m256i lowest[GROUPS][FEW_ROWS][GROUP / 2]; /* of the rows that have them */
    uint32_t low[GROUPS];                        /* a bit a row: has lowest digits */
} spread_rows;

QN_INLINE void spread_block(const qn_panel_call *call, int64_t b, spread_rows *x)
{
    memset(x->low, 0, sizeof x->low);
    for (int64_t r = 0; r < call->rows; r++) {
        const qn_panel_digits *const row = (const qn_panel_digits *)(const void *)(call->a + r * call->a_stride) + b;
        UNROLL for (int i = 0; i < 4; i++)
        {
            __builtin_prefetch((const char *)(row + 1) + i * 64, 0, 3);
        }
        for (int g = 0; g < GROUPS; g++) {
            spread_group *const to = &x->group[g][r];
            spread(GROUP / 2, row->word + g * GROUP, to->pairs);
            to->scale = _mm256_set1_ps(row->scale[g] * (row->low[g] ? 1.0f : MIDDLE_DIGIT / 256.0f));
            if (row->low[g]) {
                x->low[g] |= 1U << r;
                spread_lowest(row, g, x->lowest[g][r]);
            }
        }
    }
}

/* Holds a value in a register, and its place in the order. */
#define HERE(v) __asm__ volatile("" : "+x"(v))

QN_INLINE __m256i product(const __m256i *a, const __m256i *b, int i)
{
    __m256i p = _mm256_madd_epi16(a[i], b[i]);
    HERE(p);
    return p;
}

QN_INLINE __m256i sum(__m256i a, __m256i b)
{
    __m256i s = _mm256_add_epi32(a, b);
    HERE(s);
    return s;
}

/* A group of eight columns times rows without lowest digits. Nothing is asked for soon after it was begun, or it would
 * wait where others could: what follows a row's exact sum is among the products of the next row. */
QN_INLINE void rows_at_once(const int code, const int rows, const __m256i w[GROUP / 2], __m256 scale,
                            const spread_group *x, __m256 *sums)
{
    const int last_scale = code == QN_PANEL_MXFP4; /* as group_added has it */
    __m256i last = _mm256_setzero_si256();
    UNROLL for (int r = 0; r < rows; r++)
    {
        const __m256i *const pairs = x[r].pairs;
        __m256 part = scale;
        __m256i a = product(w, pairs, 0), b = product(w, pairs, 1), c = product(w, pairs, 2);
        if (r) {
            part = _mm256_cvtepi32_ps(last);
            HERE(part);
        }
        __m256i d = product(w, pairs, 3);
        a = sum(a, b);
        b = product(w, pairs, 4);
        c = sum(c, d);
        d = product(w, pairs, 5);
        if (r) {
            part = _mm256_mul_ps(part, last_scale ? x[r - 1].scale : scale);
            HERE(part);
        }
        a = sum(a, c);
        c = product(w, pairs, 6);
        b = sum(b, d);
        d = product(w, pairs, 7);
        a = sum(a, b);
        if (r) {
            part = _mm256_fmadd_ps(part, last_scale ? scale : x[r - 1].scale, sums[r - 1]);
            HERE(part);
        }
        c = sum(c, d);
        if (r) {
            sums[r - 1] = part;
        }
        last = sum(a, c);
    }
    sums[rows - 1] = group_added(code, last, x[rows - 1].scale, scale, sums[rows - 1]);
}

/* A group of eight columns times all rows, without lowest digits. whole: no rows are left by fours. */
QN_INLINE void group_rows(const int code, const int whole, const __m256i w[GROUP / 2], __m256 scale,
                          const spread_group *x, int64_t rows, __m256 *sums)
{
    int64_t r = 0;
    for (; r + ROWS_AT_ONCE <= rows; r += ROWS_AT_ONCE) {
        rows_at_once(code, ROWS_AT_ONCE, w, scale, x + r, sums + r);
    }
    switch (whole ? 0 : rows - r) {
    case 3: rows_at_once(code, 3, w, scale, x + r, sums + r); break;
    case 2: rows_at_once(code, 2, w, scale, x + r, sums + r); break;
    case 1: rows_at_once(code, 1, w, scale, x + r, sums + r); break;
    }
}

/* The same where some rows have them. */
QN_INLINE void group_rows_lowest(const int code, const __m256i w[GROUP / 2], __m256 scale, const spread_rows *x,
                                 int64_t g, int64_t rows, __m256 *sums)
{
    for (int64_t r = 0; r < rows;) {
        const spread_group *const row = &x->group[g][r];
        if (r + ROWS_AT_ONCE <= rows && !(x->low[g] >> r & ((1U << ROWS_AT_ONCE) - 1))) {
            rows_at_once(code, ROWS_AT_ONCE, w, scale, row, sums + r);
            r += ROWS_AT_ONCE;
            continue;
        }
        const __m256i all =
            x->low[g] >> r & 1 ? sums_with_lowest(row->pairs, x->lowest[g][r], w) : pair_sums(row->pairs, w);
        sums[r] = group_added(code, all, row->scale, scale, sums[r]);
        r++;
    }
}

/* Few rows times panels from p, block b: sums of a half of a panel are `stride` vectors. */
QN_INLINE void few_block(const int code, const int whole, const qn_panel_call *call, int64_t p, int64_t panels,
                         int64_t b, __m256 *sums, int64_t stride)
{
    spread_rows x;
    spread_block(call, b, &x);
    for (int64_t n = 0; n < panels; n++) {
        const char *const w = call->w + (p + n) * call->panel_bytes + b * block_bytes(code);
        uint16_t halves[HALVES * GROUPS * 8];
        prefetch_block(code, w + AHEAD_BLOCKS * block_bytes(code));
        halve_scales(code, w, halves);
        for (int64_t g = 0; g < GROUPS; g++) {
            for (int h = 0; h < HALVES; h++) {
                __m256i pairs[GROUP / 2];
                group_pairs(w + g * 2 * QN_PANEL_LINE + h * 32, pairs);
                const __m256 scale = group_scale(code, w, halves, g, h);
                __m256 *const to = sums + (n * HALVES + h) * stride;
                if (x.low[g]) {
                    group_rows_lowest(code, pairs, scale, &x, g, call->rows, to);
                } else {
                    group_rows(code, whole, pairs, scale, x.group[g], call->rows, to);
                }
            }
        }
    }
}

/* Few rows times panels from p, the whole of K. */
QN_INLINE void few_rows(const int code, const int whole, const qn_panel_call *call, int64_t p, int64_t panels,
                        int64_t stride)
{
    __m256 sums[FEW_SUMS];
    memset(sums, 0, (size_t)(panels * HALVES * stride) * sizeof *sums);
    for (int64_t b = 0; b < call->blocks; b++) {
        few_block(code, whole, call, p, panels, b, sums, stride);
    }
    for (int64_t r = 0; r < call->rows; r++) {
        float *const to = (float *)call->sums + r * call->sums_stride + p * QN_PANEL_COLS;
        for (int64_t n = 0; n < panels * HALVES; n++) {
            _mm256_storeu_ps(to + n * 8, sums[n * stride + r]);
        }
    }
}

QN_INLINE void few_mm(const int code, const qn_panel_call *call)
{
    const int64_t stride = call->rows <= FEW_ROWS / 2 ? FEW_ROWS / 2 : FEW_ROWS, step = FEW_SUMS / HALVES / stride;
    for (int64_t p = 0; p < call->panels; p += step) {
        const int64_t panels = call->panels - p < step ? call->panels - p : step;
        if (call->rows % ROWS_AT_ONCE == 0) {
            few_rows(code, 1, call, p, panels, stride);
        } else {
            few_rows(code, 0, call, p, panels, stride);
        }
    }
}

QN_INLINE void fp4_mm(const int code, const qn_panel_call *call)
{
    if (call->several && call->rows <= FEW_ROWS) {
        few_mm(code, call);
        return;
    }
    for (int64_t r = 0; r < call->rows; r++) {
        memset((float *)call->sums + r * call->sums_stride, 0, (size_t)call->panels * QN_PANEL_COLS * sizeof(float));
    }
    const int64_t step = call->several ? MOST_PANELS : PANELS, passes = call->several ? call->blocks : 1;
    for (int64_t b = 0; b < passes; b++) {
        for (int64_t p = 0; p < call->panels; p += step) {
            const int64_t panels = call->panels - p < step ? call->panels - p : step;
            if (call->several) {
                rows_block(code, call, p, panels, b);
            } else {
                row_panels(code, call, p, panels);
            }
        }
    }
}

static void mm_nvfp4(const qn_panel_call *call)
{
    fp4_mm(QN_PANEL_NVFP4, call);
}

static void mm_mxfp4(const qn_panel_call *call)
{
    fp4_mm(QN_PANEL_MXFP4, call);
}

const qn_panel_set QN_NAME(fp4) = {.rows_f = QN_PANEL_ROWS_DIGITS,
                                   .row_group = 1,
                                   .row_multiple = 1,
                                   .mr = 1,
                                   .nr = QN_PANEL_COLS,
                                   .rows_block = 64,
                                   .panels_block = 16,
                                   .few_panels = 16,
                                   .digits = row_digits,
                                   .mm = {[QN_PANEL_NVFP4] = mm_nvfp4, [QN_PANEL_MXFP4] = mm_mxfp4}};
