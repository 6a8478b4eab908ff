/* The contract between the runners of row-wise operators (src/backend/cpu/
 * run_rows.c, run_quantize.c, run_fp4.c, run_dequantize.c) and the per-level
 * parts: functions on a row, or a part of a row, of elements as they are stored. */
#ifndef QN_KERNELS_COMMON_ROWS_H
#define QN_KERNELS_COMMON_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/common/mm.h"

#define QN_ROWS_PAST_BYTES 16
#define QN_ROWS_HELD 16384.0f
#define QN_ROWS_REALS 3 /* functions by element format, indexed by qn_mm_real */
/* One more that is encoded only: f32 of which every 32 elements lie in an order that is the level's own, the last ones,
 * if they are fewer, in order. */
#define QN_ROWS_PAIRED QN_ROWS_REALS

/* What values span: low = min(0, v), high = max(0, v), NaN left out; nan: there was one. */
typedef struct qn_rows_range {
    float low, high;
    int32_t nan;
} qn_rows_range;

/* ahead: bytes from x to what is fetched meanwhile; 0: nothing. */
typedef void (*qn_rows_range_fn)(const void *x, int64_t n, int64_t ahead, qn_rows_range *range);

typedef enum qn_rows_code {
    QN_ROWS_E4M3,
    QN_ROWS_E4M3FNUZ, /* held to +-224 */
    QN_ROWS_E5M2,
    QN_ROWS_I8,
    QN_ROWS_CODES
} qn_rows_code;

#define QN_ROWS_STEPS 16

/* How bf16 elements become codes of three mantissa bits by integers: for the magnitude bits v the code is
 * (v + add[the upper four of seven mantissa bits] + 256 add[0] - base) >> 4, 0 where that is below 0; codes below the
 * smallest normal number excepted. */
typedef struct qn_rows_steps {
    const uint8_t *add; /* QN_ROWS_STEPS of them, the first below 64; NULL: not known */
    uint32_t base;      /* in both halves */
} qn_rows_steps;

/* The same for elements of one exponent, whose codes are 112 to 126: (v's mantissa + add[] + base) >> 4. */
typedef struct qn_rows_steps_entry {
    uint8_t add[QN_ROWS_STEPS];
    int16_t base;
} qn_rows_steps_entry;

#define QN_ROWS_STEPS_POWER 128

/* Groups of bf16 whose scale is their largest magnitude through the largest code, or the power of two above that. */
typedef struct qn_rows_groups {
    const qn_rows_steps_entry *entries; /* by the mantissa of the largest magnitude; the last one of powers of two */
    float most;                         /* the largest code */
    int32_t code;                       /* e4m3, fnuz or int8, which has no entries */
    int32_t power;
    uint32_t least_top, most_top; /* what a largest magnitude may be, as bits */
} qn_rows_groups;

#define QN_ROWS_GROUP 128

/* How values become codes: t = v * factor, or v / scale; then the code nearest to t, ties to even (int8: plus azp). */
typedef struct qn_rows_rule {
    float scale, factor; /* without multiply factor is 1 / scale */
    int32_t multiply;
    int32_t azp; /* |azp| <= 65536 */
    /* 0: there is no NaN, no t rounds beyond the codes' range (with multiply: no |t| is above QN_ROWS_HELD), and scale
     * is finite and far from the ends of f32 */
    int32_t careful;
    qn_rows_steps steps; /* the same codes for bf16, when careful is 0: where qn_rows_set.steps is 1 */
} qn_rows_rule;

#define QN_ROWS_TOGETHER 16 /* groups */

/* The largest code; limits of magnitudes and of scales. */
typedef struct qn_rows_bounds {
    float most, least_top, most_top, least_scale, most_scale;
} qn_rows_bounds;

/* Elements [g * group, (g + 1) * group) by rules[g], the last ones short. Here and below:
 * ahead: bytes from x to what will be read next, which is fetched on the way; 0: nothing.
 * past: results leave the caches alone, fence() before another thread may read. They start at a multiple of
 * QN_ROWS_PAST_BYTES, and so do those of every group. */
typedef void (*qn_rows_encode_fn)(const qn_rows_rule *rules, const void *x, int64_t n, int64_t group, int64_t ahead,
                                  int past, void *codes);

/* The same of rules that are not careful and do not multiply, with scales and factors `stride` floats apart. */
typedef void (*qn_rows_quotients_fn)(const float *scale, const float *factor, int64_t stride, const void *x, int64_t n,
                                     int64_t group, int64_t ahead, int past, void *codes);

/* out[i] = code * scale; int8: (code - azp) * scale, |azp| <= 65536 */
typedef void (*qn_rows_decode_fn)(const void *codes, int64_t n, float scale, int32_t azp, int past, float *out);

/* top[b] = largest magnitude of block b, NaN left out; block is 16, 32, 64 or 128, the last one may be short. Returns 1
 * when there was a NaN or an infinity. */
typedef int (*qn_rows_tops_fn)(const void *x, int64_t n, int64_t block, float *top);

/* What is known of the values that become e2m1 codes. */
typedef enum qn_rows_care {
    QN_ROWS_PLAIN, /* finite, products below 7 in magnitude; blocks of 32: of 0, or none above zero below 2^-120 */
    QN_ROWS_HOLD,  /* finite */
    QN_ROWS_NAN    /* there may be NaN, which becomes +0 */
} qn_rows_care;

/* e2m1 codes of v * factor[block], held to 6, two a byte. block is 16, or 32 and factors are powers of two. */
typedef void (*qn_rows_e2m1_fn)(const void *x, int64_t n, int64_t block, const float *factor, int care, int64_t ahead,
                                int past, uint8_t *q);

#define QN_ROWS_BESIDE 512
#define QN_ROWS_E2M1_SCALES 127

/* How bf16 elements in blocks of 16 become e2m1 codes by integers, by the e4m3 code of their block's scale: for the
 * magnitude bits v, (v + add[the upper four of seven mantissa bits] + 256 add[0] - base) >> 5, 0 where that is below 0,
 * says how many quarters of binades the quotient has met since 0.25. */
typedef struct qn_rows_e2m1_steps {
    uint8_t add[QN_ROWS_E2M1_SCALES][QN_ROWS_STEPS];
    uint32_t base[QN_ROWS_E2M1_SCALES]; /* in both halves */
} qn_rows_e2m1_steps;

typedef int64_t (*qn_rows_groups_fn)(const qn_rows_groups *groups, const void *x, int64_t n, int64_t ahead, int past,
                                     float *top, void *codes);

typedef struct qn_rows_set {
    int64_t ahead; /* bytes behind the next piece that is to be fetched while a piece becomes 4-bit codes */
    int64_t look;  /* bytes that range() should fetch ahead; 0: none */
    int64_t kept;  /* bytes of blocks of a band that a thread's second cache keeps; 0: none */
    int steps;     /* uses qn_rows_rule.steps and qn_rows_e2m1_steps, and has what follows */
    /* sf[b] = e4m3(g * (top[b] * (1/6))), g above 0 and finite */
    void (*nvfp4_codes)(float g, const float *top, int64_t blocks, uint8_t *sf);
    /* e2m1 codes, held to 6, of finite bf16 with these scales, n a multiple of 16 */
    void (*e2m1_steps)(const void *x, int64_t n, const uint8_t *sf, const qn_rows_e2m1_steps *steps, int64_t ahead,
                       int past, uint8_t *q);
    /* fp8 codes of groups of QN_ROWS_GROUP bf16, n a multiple of that: top[g] = largest magnitude. Returns the
     * elements done: a group whose largest magnitude is not within the limits is left, with all behind it. */
    qn_rows_groups_fn fp8_groups;
    qn_rows_groups_fn int8_groups; /* the same of int8; NULL: the level has no such loop */
    /* Codes of n bf16 by a rule that needs no care: fp8 by its steps, int8 by multiplication; and the range of n
     * others, or the same, at look, from where on `ahead` counts: of fp8 as if all were magnitudes. range->nan: there
     * was a NaN, the range is not known. NULL: the level has no such loop. */
    void (*beside)(qn_rows_code code, const qn_rows_rule *rule, const void *x, const void *look, int64_t n,
                   int64_t ahead, int past, void *codes, qn_rows_range *range);
    /* The same of 4-bit codes, n a multiple of QN_ROWS_BESIDE: e2m1_steps and to_e2m1 of blocks of 32 without care,
     * with the largest magnitudes of as many blocks at look; 1: there was a NaN or an infinity, and they are not known.
     */
    int (*nvfp4_beside)(const void *x, int64_t n, const uint8_t *sf, const qn_rows_e2m1_steps *steps, const void *look,
                        int64_t ahead, int past, uint8_t *q, float *top);
    int (*mxfp4_beside)(const void *x, int64_t n, const float *factor, const void *look, int64_t ahead, int past,
                        uint8_t *q, float *top);
    qn_rows_range_fn range[QN_ROWS_REALS];
    qn_rows_encode_fn encode[QN_ROWS_REALS + 1][QN_ROWS_CODES];
    qn_rows_quotients_fn quotients[QN_ROWS_REALS + 1][QN_ROWS_CODES];
    qn_rows_decode_fn decode[QN_ROWS_CODES];
    qn_rows_tops_fn tops[QN_ROWS_REALS];
    qn_rows_e2m1_fn to_e2m1[QN_ROWS_REALS];
    /* scale[g] = top[g] between its limits, through the largest code, between the scales' limits; factor[g] = 1 /
     * scale. Arrays have room for a multiple of QN_ROWS_TOGETHER, tops behind the groups are 0. Returns 1 when no rule
     * of these scales needs care, 0 when one may. */
    int (*scales)(const qn_rows_bounds *bounds, const float *top, int64_t groups, float *scale, float *factor);
    /* sf[b] = e4m3(g * (top[b] * (1/6))), factor[b] = 1 / (sf * (1/g)), 0 where sf is 0; returns the care to take of
     * finite values */
    int (*nvfp4_scales)(float g, const float *top, int64_t blocks, uint8_t *sf, float *factor);
    /* scale[b] = e + 127, factor[b] = 2^-e for the exponent e + 2 of top[b], after the addend to its bits, not below
     * -125; of infinity e is 127; returns the care to take of finite values */
    int (*mxfp4_scales)(uint32_t addend, const float *top, int64_t blocks, uint8_t *scale, float *factor);
    /* out = (e2m1 * scale[block]) / g, block 16; e2m1 * scale[block], block 32; n a multiple of block */
    void (*from_e2m1)(const uint8_t *q, int64_t n, int64_t block, const float *scale, float g, int past, float *out);
    void (*from_e4m3)(const uint8_t *codes, int64_t n, float *out);
    void (*load[QN_ROWS_REALS])(const void *x, int64_t n, float *v);
    void (*store[QN_ROWS_REALS])(const float *v, int64_t n, void *out);
    /* v[i] = gate[i] / (1 + exp(-gate[i])) * up[i] in f32 */
    void (*silu_mul[QN_ROWS_REALS])(const void *gate, const void *up, int64_t n, int64_t ahead, int past, float *v);
    /* The same of bf16: paired, n a multiple of 32 or what is left of a row; rounded to bf16. */
    void (*silu_paired)(const void *gate, const void *up, int64_t n, int64_t ahead, float *v);
    void (*silu_bf16)(const void *gate, const void *up, int64_t n, int64_t ahead, int past, void *out);
    /* sum of squares in f32, in double where that would overflow or underflow */
    double (*squares)(const float *v, int64_t n);
    /* y[i] = x[i] * factor * w[i] in f32, in double where factor is near the ends of f32 */
    void (*scale)(const float *x, double factor, const float *w, int64_t n, int64_t ahead, int past, float *y);
    /* cosines and sines of position * turns[i], within 2^-22 */
    void (*angles)(int32_t position, const double *turns, int64_t n, float *cosines, float *sines);
    /* y0 = a c - b s, y1 = b c + a s in f32; pairs step floats apart; past: of step 1 */
    void (*rotate)(const float *a, const float *b, const float *c, const float *s, int64_t n, int64_t step, int past,
                   float *y0, float *y1);
    /* Copy that leaves the caches alone; fence() before another thread may read. */
    void (*stream)(void *to, const void *from, size_t bytes);
    void (*fence)(void);
} qn_rows_set;

extern const qn_rows_set qn_rows__scalar, qn_rows__avx2, qn_rows__avx512;
extern const qn_rows_set qn_rows_other__avx512; /* of processors that are not Intel's */

#endif
