/* Panel kernels of 4-bit floats times rows of bf16, level avx512vnni: the template of kernels/cpu/fp4_integers.h for
 * words. The elements of x that meet a group of weights, 16 or 32, are 23-bit integers of a power of two, 128 times a
 * word and a rest of seven bits. Pairs of words meet pairs of doubled e2m1 values, so a group's sum is exact. Bf16 has
 * eight bits, so a rest is 0 unless the element is less than a 64th of the largest of its group: few are, and of those
 * only so many are multiplied, a pair at a time, that the others, together, are off by no more than the error model
 * leaves for it. */
#include "kernels/cpu/avx512vnni/fp4.h"

#define FEW_ROWS 6
#define FEW_TWO 6
#define MANY_FROM 7
#define LOOKS 4
#define CHAIN_BLOCKS 4
#define AHEAD 4
#define AHEAD_TO 3
#define FAR 24
#define RESTS 1

#define GROUP 16
#define GROUPS (QN_PANEL_K / GROUP)
#define PAIRS (QN_PANEL_K / 2)
#define SPAN 1024            /* elements of x that are rounded together, from multiples of it on */
#define WORD 128             /* what it is multiplied with */
#define MOST_WORDS 699000.0f /* 2^31 / (256 x 12) */
#define LEAST_POWER 47       /* of f32's exponents: below 2^-80 bits are lost, which the runner looks after */

typedef qn_panel_words xb;
typedef struct qn_panel_word_block xt;

QN_INLINE int spans_of(const int code)
{
    return code == QN_PANEL_MXFP4 ? GROUPS / 2 : GROUPS;
}

/* Doubled values of the low codes of bytes; the permute looks at six bits. */
QN_INLINE vb look_up(vb line)
{
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm512_permutexvar_epi8(line, _mm512_broadcast_i32x4(table));
}

/* Words, 512 times the values: codes of their lower bytes, then of their upper ones. */
QN_INLINE vb vb_look(vb line, const int i)
{
    const vb values = look_up(i % 2 ? _mm512_srli_epi16(line, 4) : line);
    return i < 2 ? _mm512_slli_epi16(values, 8) : _mm512_and_si512(values, _mm512_set1_epi16(-256));
}

QN_INLINE vb vb_look_any(vb line, int i)
{
    const vb values = look_up(_mm512_srl_epi16(line, _mm_cvtsi32_si128(4 * i)));
    return _mm512_slli_epi16(values, 8);
}

QN_INLINE const int16_t *x_at(const xt *x, int64_t l, int i)
{
    return x->word + 8 * l + 2 * i;
}

QN_INLINE vd vd_begin(const xt *x, int s)
{
    (void)x, (void)s;
    return _mm512_setzero_si512();
}

QN_INLINE vd vd_add(vd sums, vb codes, const int16_t *x)
{
    int32_t pair;
    memcpy(&pair, x, 4);
    return _mm512_dpwssd_epi32(sums, codes, _mm512_set1_epi32(pair));
}

/* Scales of mxfp4 come last: theirs are up to 2^123. */
QN_INLINE vf scaled_added(const int code, vd sums, const float *unit, vf scale, vf chain)
{
    const vf v = _mm512_cvtepi32_ps(sums);
    if (code == QN_PANEL_MXFP4) {
        return vf_fma(vf_scaled(v, unit), scale, chain);
    }
    return vf_fma(_mm512_mul_ps(v, scale), _mm512_set1_ps(*unit), chain);
}

QN_INLINE vf span_added(const int code, const int coded, vd sums, const xt *x, int s, vf scale, vf chain)
{
    (void)coded;
    return scaled_added(code, sums, &x->scale[s * GROUPS / spans_of(code)], scale, chain);
}

/* Of a pair's rests and codes. */
QN_INLINE float rest_unit(const xb *x, int pair)
{
    return x->x.scale[pair / (GROUP / 2)] / WORD;
}

struct listed_rest;
QN_INLINE vf rest_added(const int code, const struct listed_rest *rest, vb codes, vf scale, vf chain);

#include "kernels/cpu/fp4_integers.h"

QN_INLINE vf rest_added(const int code, const listed_rest *rest, vb codes, vf scale, vf chain)
{
    return scaled_added(code, vd_add(vd_begin(NULL, 0), codes, rest->x), &rest->unit, scale, chain);
}

/* ---- rows of x ---- */

QN_INLINE __m512i size_bits(const float *x)
{
    return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
}

QN_INLINE float power_of_two(int biased)
{
    const int32_t bits = biased << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The exponent as f32 has it of the power of two that `size` elements are words of: 0 of zeros, -1: not finite. Sums of
 * their words times codes are to be less than 2^31, those of 32 by one bit less where they are large alike. */
QN_INLINE int power_of(const float *x, const int size)
{
    const __m512i first = size_bits(x), second = size_bits(x + size - GROUP);
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(first, second));
    if (bits == 0 || bits >= 0x7f800000) {
        return bits ? -1 : 0;
    }
    /* 2^e <= x < 2^(e + 1), the end of which, where a word would be 2^15, counts as the next power's */
    const int power = (bits + 512) >> 23, held = power < LEAST_POWER ? LEAST_POWER : power;
    if (size > GROUP) {
        const __m512 sizes = _mm512_mul_ps(_mm512_add_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)),
                                           _mm512_set1_ps(power_of_two(127 + 14 + 127 - held)));
        return held + (_mm512_reduce_add_ps(sizes) > MOST_WORDS);
    }
    return held;
}

/* A span while it is rounded. Squares are in units of the largest group's, of rests of pairs and of all elements. */
typedef struct span {
    int power[SPAN / GROUP]; /* exponents as f32 has them; 0: zeros, or not finite */
    int most;                /* of them */
    int8_t rest[SPAN];
    float error[SPAN / 2];
    __m256 errors;
    __m512 norm;
} span;

/* Group i of the span, group g of a block. */
QN_INLINE void group_words(const float *x, int64_t i, int g, span *s, xb *out)
{
    const int power = s->power[i];
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(power_of_two(127 + 21 + 127 - power)));
    const __m512i whole = _mm512_cvtps_epi32(v);
    const __m512i word = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(WORD / 2)), 7);
    const __m512i rest = _mm512_sub_epi32(whole, _mm512_slli_epi32(word, 7));
    const __m256i rests = _mm512_cvtepi32_epi16(rest);
    const float unit = s->most - power > 60 ? 0.0f : power_of_two(127 + power - s->most), square = unit * unit;
    const __m256 error = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(rests, rests)), _mm256_set1_ps(square));
    _mm256_storeu_si256((__m256i *)(void *)(out->x.word + g * GROUP), _mm512_cvtepi32_epi16(word));
    _mm_storeu_si128((__m128i *)(void *)(s->rest + i * GROUP), _mm512_cvtepi32_epi8(rest));
    _mm256_storeu_ps(s->error + i * GROUP / 2, error);
    out->x.scale[g] = power_of_two(power - 23); /* 2^-14 of a word, and a 512th */
    s->errors = _mm256_add_ps(s->errors, error);
    s->norm = _mm512_fmadd_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(square), s->norm);
}

/* The most that a pair may leave, so that those that leave no more do not leave more than `all` together. */
static float most_of_a_pair(const float *error, int64_t pairs, float all)
{
    float most = all, step = 0.0f;
    while (most > 0.0f) {
        __m512 left = _mm512_setzero_ps();
        for (int64_t i = 0; i < pairs; i += 16) {
            const __m512 e = _mm512_loadu_ps(error + i);
            left = _mm512_mask_add_ps(left, _mm512_cmp_ps_mask(e, _mm512_set1_ps(most), _CMP_LE_OQ), left, e);
        }
        if (_mm512_reduce_add_ps(left) <= all) {
            if (step > 0.0f || most == all) {
                return most;
            }
            step = most / 2.0f; /* between this and twice as much */
            most += step;
        } else if (step > 0.0f) {
            return most - step;
        } else {
            most /= 2.0f;
        }
    }
    return 0.0f;
}

/* The rests of a block that are multiplied. */
QN_INLINE void keep_rests(const int8_t rest[QN_PANEL_K], const float *error, float most, xb *out)
{
    int count = 0;
    for (int g = 0; g < GROUPS; g++) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(rest + g * GROUP));
        const __m256i pair =
            _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(g * GROUP / 2));
        const __m256i all = _mm256_or_si256(_mm256_cvtepu16_epi32(bytes), _mm256_slli_epi32(pair, 16));
        const __m256 errors = _mm256_loadu_ps(error + g * GROUP / 2);
        const __mmask8 kept = _mm256_cmp_ps_mask(errors, _mm256_set1_ps(most), _CMP_GT_OQ);
        _mm256_storeu_si256((__m256i *)(void *)(out->rest + count), _mm256_maskz_compress_epi32(kept, all));
        count += __builtin_popcount(kept);
    }
    out->rests = count;
}

/* Up to SPAN elements as words, and of the rests as many as the error asks for, of the norm of all: of the pairs that
 * would lose most. */
QN_INLINE void span_words(const float *x, int64_t blocks, const int size, float most_error, xb *out)
{
    span s;
    s.most = 0;
    s.errors = _mm256_setzero_ps();
    s.norm = _mm512_setzero_ps();
    for (int64_t i = 0; i < blocks * GROUPS; i += size / GROUP) {
        const int power = power_of(x + i * GROUP, size);
        for (int64_t j = i; j < i + size / GROUP; j++) {
            s.power[j] = power > 0 ? power : 0;
            out[j / GROUPS].x.scale[j % GROUPS] = power < 0 ? __builtin_nanf("") : 0.0f;
        }
        s.most = power > s.most ? power : s.most;
    }
    for (int64_t i = 0; i < blocks * GROUPS; i++) {
        xb *const block = out + i / GROUPS;
        if (s.power[i]) {
            group_words(x + i * GROUP, i, (int)(i % GROUPS), &s, block);
        } else {
            memset(block->x.word + i % GROUPS * GROUP, 0, GROUP * sizeof *block->x.word);
            memset(s.rest + i * GROUP, 0, GROUP);
            memset(s.error + i * GROUP / 2, 0, GROUP / 2 * sizeof *s.error);
        }
    }
    const float all = most_error * most_error * _mm512_reduce_add_ps(s.norm);
    const float errors = _mm512_reduce_add_ps(_mm512_zextps256_ps512(s.errors));
    const float most = errors <= all ? errors : most_of_a_pair(s.error, blocks * PAIRS, all);
    for (int64_t b = 0; b < blocks; b++) {
        keep_rests(s.rest + b * QN_PANEL_K, s.error + b * PAIRS, most, out + b);
    }
}

static void row_words(const float *x, int64_t blocks, const qn_panel_rounding *how, void *out)
{
    const float most_error = 1.5f * how->most_error; /* the other quarter is for chains of at most 16 additions */
    xb *const to = out;
    for (int64_t b = 0; b < blocks; b += SPAN / QN_PANEL_K) {
        const int64_t some = least(blocks - b, SPAN / QN_PANEL_K);
        if (how->code == QN_PANEL_MXFP4) {
            span_words(x + b * QN_PANEL_K, some, 2 * GROUP, most_error, to + b);
        } else {
            span_words(x + b * QN_PANEL_K, some, GROUP, most_error, to + b);
        }
    }
}

static void mm_nvfp4(const qn_panel_call *call)
{
    fp4_mm(QN_PANEL_NVFP4, 0, call);
}

const qn_panel_set QN_NAME(fp4) = {.rows_f = QN_PANEL_ROWS_WORDS,
                                   .row_group = 1,
                                   .row_multiple = 1,
                                   .mr = FEW_ROWS,
                                   .nr = QN_PANEL_COLS,
                                   .rows_block = ROWS_BLOCK,
                                   .panels_block = 32,
                                   .scratch_bytes = SCRATCH_BYTES,
                                   .digits = row_words,
                                   .mm = {[QN_PANEL_NVFP4] = mm_nvfp4, [QN_PANEL_MXFP4] = mm_mxfp4}};
