/* quantize_fp8, quantize_int8 and silu_mul_quant: ranges, scales, codes.
 *
 * A piece is a whole row with one scale, or a run of its groups that the first
 * cache holds: all ranges, all rules, all codes, so that no step waits for
 * another. While codes are made, what the next piece reads is on its way.
 * Groups that the level does from registers are read once. Blocks of 128x128
 * are done by bands of 128 rows: while a band's rows become codes, the ranges of
 * the band below are found, so that memory does not rest between two passes. Of
 * large results the level may keep that band's rows side by side in the second
 * cache until they are coded: where they come from, rows that are a power of two
 * apart share few of its sets. One scale for all: a pass for the range, the tasks'
 * parts joined (a maximum knows no order), and a pass for the codes. */
#include "backend/cpu/run_rows.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/fp8_steps.h"
#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define SIDE 128   /* of a block */
#define PANEL 64   /* blocks of a task along K, at most */
#define FEW 8      /* where wide panels are too few tasks */
#define BANDS 8    /* of a task, at most */
#define TURN 512   /* elements of a kept run that are coded before as many are looked at */
#define TOKENS 64  /* rows whose scales are put together */
#define TASKS 4    /* a thread, at least */
#define GROUPS 32  /* most of a piece; a multiple of QN_ROWS_TOGETHER */
#define PIECE 4096 /* elements of its codes, or of a piece, at most; of longer groups one is a piece */
#define FAR_PIECE 256
#define STEPS_FROM 65536 /* elements that pay for a table of their scale's codes */

typedef struct quantize_job {
    const qn_rows_set *set;
    const qn_op_desc *desc;
    const qn_args *args;
    const char *x;
    int64_t stride, m, k;
    qn_mm_real real;
    qn_rows_code code;
    int32_t granularity;
    int is_static, col, silu, stream;
    int done;                               /* x is silu's values */
    int paired;                             /* silu's values are QN_ROWS_PAIRED */
    int symmetric, divides, ue8m0, stepped; /* the rule: choose_rule() */
    float most;                             /* the largest code */
    qn_rows_bounds bounds;
    int64_t group, piece; /* elements along a row; a piece is whole groups */
    int64_t per_task;
    int64_t panel, panels, bands; /* blocks of a task along K, panels of the matrix, bands of a task */
    int64_t kept;                 /* bytes of a row of a run that is kept until it is coded; 0: runs are read twice */
    qn_rows_groups groups;
    qn_rows_groups_fn groups_known; /* NULL: groups are done step by step */
    qn_rows_rule rule;              /* one for all */
    qn_fp8_steps steps;             /* of that rule */
    qn_rows_range *parts;           /* of the tasks of the first pass */
    char *scratch;
    size_t scratch_bytes;
} quantize_job;

static char *codes_at(const quantize_job *job, int64_t m)
{
    const qn_mut_view *q = &job->args->out[QN_QUANT_OUT_Q];
    return (char *)q->data + m * q->strides[0];
}

static const char *row_at(const quantize_job *job, int64_t m)
{
    return job->x + m * job->stride;
}

/* ---- rules: the scale of a range, as docs/operators.md has them ---- */

static float fp8_most(qn_rows_code code)
{
    return code == QN_ROWS_E4M3FNUZ ? 224.0f : (code == QN_ROWS_E5M2 ? 57344.0f : 448.0f);
}

/* Divisions by that scale come out right by multiplication. */
static inline int is_tame(float scale)
{
    return scale >= 0x1p-60f && scale <= 0x1p60f;
}

static qn_rows_rule int8_asymmetric(const qn_rows_range *range)
{
    qn_rows_rule rule = {.scale = (range->high - range->low) / 255.0f, .multiply = 1, .careful = range->nan};
    if (rule.scale == 0.0f) {
        rule.scale = rule.factor = 1.0f;
        return rule;
    }
    const float z = rintf(-128.0f - range->low / rule.scale);
    rule.azp = isnan(z) ? 0 : (z < -128.0f ? -128 : (z > 127.0f ? 127 : (int32_t)z));
    rule.factor = 1.0f / rule.scale;
    rule.careful |= !is_tame(rule.scale);
    return rule;
}

static inline float amax_of(const qn_rows_range *range)
{
    return (-range->low > range->high ? -range->low : range->high) + 0.0f; /* never -0 */
}

/* Steps for quotients by a scale that comes from a bf16 amax. */
static inline qn_rows_steps steps_of(const quantize_job *job, float amax, float scale)
{
    uint32_t bits;
    memcpy(&bits, job->ue8m0 ? &scale : &amax, 4);
    const int32_t exponent = (int32_t)(bits >> 23);
    if (!job->ue8m0 && !(amax > job->bounds.least_top && scale > job->bounds.least_scale)) {
        return (qn_rows_steps){NULL, 0};
    }
    const int32_t above = job->code == QN_ROWS_E4M3FNUZ ? 7 : 8; /* of a quotient whose code is 120 */
    return job->ue8m0 ? qn_fp8_steps_at(&qn_fp8_steps_of[QN_FP8_STEPS_POWER], exponent + above)
                      : qn_fp8_steps_at(&qn_fp8_steps_of[bits >> 16 & 127], exponent - 1);
}

/* Scales that values of these largest magnitudes are divided by (fp8 of a tensor: multiplied by the inverse). tops:
 * whole vectors, what is behind `count` being any numbers. */
static void scales_of(const quantize_job *job, const float *tops, int64_t count, float *scale, float *factor)
{
    job->set->scales(&job->bounds, tops, count, scale, factor);
    for (int64_t g = 0; job->ue8m0 && g < count; g++) {
        if (!isinf(scale[g])) {
            scale[g] = qn_e8m0_to_f32(qn_f32_to_e8m0_ceil(scale[g] > 1e-10f ? scale[g] : 1e-10f));
            factor[g] = 1.0f / scale[g];
        }
    }
}

static void dividing_rules(const quantize_job *job, const float *tops, int64_t count, qn_rows_rule *rules)
{
    float scale[PANEL], factor[PANEL];
    const int32_t multiply = job->granularity == QN_PER_TENSOR;
    scales_of(job, tops, count, scale, factor);
    for (int64_t g = 0; g < count; g++) {
        const int careful = tops[g] > job->bounds.most_top || scale[g] >= job->bounds.most_scale || !is_tame(scale[g]);
        rules[g] = (qn_rows_rule){scale[g], factor[g], multiply, 0, careful, {NULL, 0}};
        if (job->stepped && !multiply && !careful) {
            rules[g].steps = steps_of(job, tops[g], scale[g]);
        }
    }
}

static qn_rows_rule int8_symmetric(const qn_rows_range *range)
{
    const float amax = amax_of(range);
    return (qn_rows_rule){.scale = amax / 127.0f,
                          .factor = amax == 0.0f ? 0.0f : 127.0f / amax,
                          .multiply = 1,
                          .careful = range->nan || !is_tame(amax)};
}

/* At most PANEL. */
static void rules_of(const quantize_job *job, const qn_rows_range *ranges, int64_t count, qn_rows_rule *rules)
{
    if (job->divides) {
        float tops[PANEL] = {0.0f};
        for (int64_t g = 0; g < count; g++) {
            tops[g] = amax_of(&ranges[g]);
        }
        dividing_rules(job, tops, count, rules);
        for (int64_t g = 0; g < count; g++) {
            rules[g].careful |= ranges[g].nan;
        }
        return;
    }
    for (int64_t g = 0; g < count; g++) {
        rules[g] = job->symmetric ? int8_symmetric(&ranges[g]) : int8_asymmetric(&ranges[g]);
    }
}

/* Which rule, and its numbers. */
static void choose_rule(quantize_job *job)
{
    const int grouped = job->granularity == QN_PER_GROUP || job->granularity == QN_PER_BLOCK;
    const int int8 = job->code == QN_ROWS_I8;
    const float bound = job->code == QN_ROWS_I8 && !job->silu ? 0.0f : job->desc->attr[QN_ATTR_SCALE_UB].f;
    job->symmetric = !int8 || job->desc->attr[QN_ATTR_SYMMETRIC].i;
    job->divides = job->symmetric && (!int8 || job->silu || grouped);
    job->ue8m0 = !job->silu && !int8 && job->desc->attr[QN_ATTR_SCALE_FORMAT].i == QN_SCALE_UE8M0;
    job->stepped = job->set->steps && job->real == QN_MM_BF16 && !job->silu &&
                   (job->code == QN_ROWS_E4M3 || job->code == QN_ROWS_E4M3FNUZ);
    job->most = int8 ? 127.0f : fp8_most(job->code);
    job->bounds = (qn_rows_bounds){
        .most = job->most,
        .most_top = bound > 0.0f && !job->silu ? bound : INFINITY,
        .most_scale = bound > 0.0f && job->silu ? bound : INFINITY,
        .least_top = grouped && !job->silu ? 1e-10f : 0.0f,
        .least_scale = grouped && !job->silu ? 0.0f : (int8 ? FLT_EPSILON : 1.0f / (job->most * 512.0f))};
}

/* Groups that the level does from registers. */
static void choose_groups(quantize_job *job)
{
    const float most = job->most * 0x1p60f; /* of a scale that is tame */
    uint32_t least_top, most_top;
    const float bottom = job->most * job->bounds.least_scale; /* a magnitude with the least scale */
    const float least = fmaxf(bottom, job->ue8m0 ? job->most * 1e-10f : job->bounds.least_top);
    memcpy(&least_top, &least, 4);
    memcpy(&most_top, job->bounds.most_top < most ? &job->bounds.most_top : &most, 4);
    job->groups = (qn_rows_groups){.entries = qn_fp8_steps_of,
                                   .most = job->most,
                                   .code = (int32_t)job->code,
                                   .power = job->ue8m0,
                                   .least_top = (least_top >> 16) + 1,
                                   .most_top = most_top >> 16};
    const int int8 = job->code == QN_ROWS_I8 && job->real == QN_MM_BF16 && job->divides && !job->silu;
    if (job->group == QN_ROWS_GROUP && !job->is_static && job->groups.most_top >= job->groups.least_top) {
        job->groups_known = job->stepped ? job->set->fp8_groups : (int8 ? job->set->int8_groups : NULL);
    }
}

/* Scale (or zero point) of row, or band, i and group j as stored: [1], [M,groups] or [groups,M]. */
static size_t scale_offset(const qn_shape *shape, const int64_t *strides, int col, int64_t i, int64_t j)
{
    if (shape->ndim < 2) {
        return 0;
    }
    return (size_t)(col ? j * strides[0] + i * 4 : i * strides[0] + j * 4);
}

/* Of groups [j, j + count) of row, or band, i. */
static void given_rules(const quantize_job *job, int64_t count, int64_t i, int64_t j, qn_rows_rule *rules)
{
    const qn_view *scale = &job->args->in[QN_QUANT_SCALE], *azp = &job->args->in[QN_QUANT_AZP];
    const int asymmetric = job->code == QN_ROWS_I8 && !job->symmetric;
    for (int64_t g = 0; g < count; g++) {
        qn_rows_rule rule = {.multiply = job->code != QN_ROWS_I8 || asymmetric, .careful = 1};
        memcpy(&rule.scale, (const char *)scale->data + scale_offset(&scale->shape, scale->strides, job->col, i, j + g),
               4);
        rule.factor = 1.0f / rule.scale;
        if (asymmetric) {
            memcpy(&rule.azp, (const char *)azp->data + scale_offset(&azp->shape, azp->strides, job->col, i, j + g), 4);
        }
        rules[g] = rule;
    }
}

static void put_rules(const quantize_job *job, const qn_rows_rule *rules, int64_t count, int64_t i, int64_t j)
{
    const qn_mut_view *scale = &job->args->out[QN_QUANT_OUT_SCALE], *azp = &job->args->out[QN_QUANT_OUT_AZP];
    char *at = (char *)scale->data + scale_offset(&scale->shape, scale->strides, job->col, i, j);
    const int64_t step = job->col ? scale->strides[0] : 4;
    for (int64_t g = 0; g < count; g++, at += step) {
        memcpy(at, &rules[g].scale, 4);
    }
    for (int64_t g = 0; azp->shape.format != QN_FORMAT_NONE && g < count; g++) {
        memcpy((char *)azp->data + scale_offset(&azp->shape, azp->strides, job->col, i, j + g), &rules[g].azp, 4);
    }
}

/* Given rules take no care where a look at the values shows that none is needed: mostly. */
static void spare_care(const quantize_job *job, const qn_rows_range *ranges, int64_t count, qn_rows_rule *rules)
{
    for (int64_t g = 0; g < count; g++) {
        qn_rows_rule *const r = &rules[g];
        const float most = job->code == QN_ROWS_I8 || r->multiply ? QN_ROWS_HELD : job->most;
        const int exact = r->multiply || job->real == QN_MM_BF16; /* quotients by the inverse: of 8 bits */
        r->careful = !exact || ranges[g].nan || !is_tame(r->scale) || !(amax_of(&ranges[g]) * r->factor <= most) ||
                     r->azp < -16384 || r->azp > 16383;
    }
}

/* ---- codes ---- */

/* Of qn_mm_real or QN_ROWS_PAIRED. */
static inline int64_t real_bytes(int32_t real)
{
    return real == QN_ROWS_PAIRED ? 4 : qn_rows_real_bytes((qn_mm_real)real);
}

/* What is looked at: order does not matter there. */
static inline int32_t seen_as(int32_t real)
{
    return real == QN_ROWS_PAIRED ? QN_MM_F32 : real;
}

/* A given zero point of any size: the sum is exact. */
static void encode_far(const quantize_job *job, const qn_rows_rule *rule, const char *x, int64_t n, int8_t *codes)
{
    float t[FAR_PIECE];
    for (int64_t i = 0; i < n; i += FAR_PIECE) {
        const int64_t count = qn_min_i64(FAR_PIECE, n - i);
        job->set->load[job->real](x + i * qn_rows_real_bytes(job->real), count, t);
        for (int64_t j = 0; j < count; j++) {
            const float v = t[j] * rule->factor;
            const double r = isnan(v) ? 0.0 : fmin(fmax(rint((double)v), -0x1p31), 0x1p31 - 1);
            codes[i + j] = (int8_t)fmin(fmax(r + (double)rule->azp, -128.0), 127.0);
        }
    }
}

static inline int is_far(const qn_rows_rule *rule)
{
    return rule->azp < -65536 || rule->azp > 65536;
}

/* How the groups of a piece are coded: by rules; or, rules NULL, as quotients by scales that need no care. */
typedef struct group_rules {
    const qn_rows_rule *rules;
    const float *scale, *factor;
} group_rules;

static void encode_groups(const quantize_job *job, const group_rules *by, int32_t real, const char *x, int64_t n,
                          int64_t group, int64_t ahead, int past, char *codes)
{
    const qn_rows_rule *rules = by->rules;
    if (!rules) {
        job->set->quotients[real][job->code](by->scale, by->factor, 1, x, n, group, ahead, past, codes);
        return;
    }
    int any_far = 0;
    for (int64_t g = 0; job->is_static && g * group < n; g++) { /* found ones are bytes */
        any_far |= is_far(&rules[g]);
    }
    if (!any_far) {
        job->set->encode[real][job->code](rules, x, n, group, ahead, past, codes);
        return;
    }
    for (int64_t i = 0; i < n; i += group, rules++) {
        const char *const from = x + i * real_bytes(real);
        const int64_t count = qn_min_i64(group, n - i);
        if (is_far(rules)) {
            encode_far(job, rules, from, count, (int8_t *)codes + i);
        } else {
            job->set->encode[real][job->code](rules, from, count, count, 0, 0, codes + i);
        }
    }
}

/* Codes of row m from column c on, past the caches where that is asked for. n: groups of rules[], or part of one. */
static void put_codes(const quantize_job *job, const group_rules *by, int32_t real, const char *x, int64_t m, int64_t c,
                      int64_t n, int64_t group, int64_t ahead, char *scratch)
{
    char *const codes = codes_at(job, m) + c;
    if (!job->stream || (qn_rows_aligned(codes) && (group >= n || group % QN_ROWS_PAST_BYTES == 0))) {
        encode_groups(job, by, real, x, n, group, ahead, job->stream, codes);
        return;
    }
    const int64_t step = group < n ? n : PIECE; /* one rule: any part of it */
    for (int64_t i = 0; i < n; i += step) {
        const int64_t count = qn_min_i64(step, n - i);
        encode_groups(job, by, real, x + i * real_bytes(real), count, qn_min_i64(group, count), ahead, 0, scratch);
        job->set->stream(codes + i, scratch, (size_t)count);
    }
}

/* Largest magnitudes of a run of groups, when they are all that is asked for and all values are finite: else 0. */
static int find_tops(const quantize_job *job, int32_t real, const char *x, int64_t n, int64_t group, float *tops)
{
    return job->symmetric && (group == 16 || group == 32 || group == 64 || group == 128) &&
           !job->set->tops[seen_as(real)](x, n, group, tops);
}

/* Ranges of a run of groups. */
static void find_ranges(const quantize_job *job, int32_t real, const char *x, int64_t n, int64_t group,
                        qn_rows_range *ranges)
{
    const int64_t size = real_bytes(real);
    float tops[PANEL];
    if (find_tops(job, real, x, n, group, tops)) {
        for (int64_t g = 0; g * group < n; g++) {
            ranges[g] = (qn_rows_range){.high = tops[g]};
        }
        return;
    }
    for (int64_t i = 0; i < n; i += group, ranges++) {
        job->set->range[seen_as(real)](x + i * size, qn_min_i64(group, n - i), 0, ranges);
    }
}

/* By ranges: of given scales, zero points, values that are not finite. count: 1 for no elements too. */
static void general_rules(const quantize_job *job, int32_t real, const char *x, int64_t m, int64_t first, int64_t n,
                          int64_t count, qn_rows_rule *rules)
{
    qn_rows_range ranges[GROUPS];
    ranges[0] = (qn_rows_range){0.0f, 0.0f, 0};
    find_ranges(job, real, x, n, job->group, ranges);
    if (job->is_static) {
        given_rules(job, count, m, first, rules);
        spare_care(job, ranges, count, rules);
    } else {
        rules_of(job, ranges, count, rules);
    }
}

/* Scales of groups [j, j + count) of row i. */
static void put_scales(const quantize_job *job, const float *scales, int64_t count, int64_t i, int64_t j)
{
    const qn_mut_view *scale = &job->args->out[QN_QUANT_OUT_SCALE];
    char *at = (char *)scale->data + scale_offset(&scale->shape, scale->strides, job->col, i, j);
    if (!job->col && job->stream) {
        job->set->stream(at, scales, (size_t)count * 4);
        return;
    }
    if (!job->col) {
        memcpy(at, scales, (size_t)count * 4);
        return;
    }
    for (int64_t g = 0; g < count; g++, at += scale->strides[0]) {
        memcpy(at, &scales[g], 4);
    }
}

/* A run of groups of row m, from column c on: x holds its values. */
static void quantize_groups(const quantize_job *job, int32_t real, const char *x, int64_t m, int64_t c, int64_t n,
                            int64_t ahead, char *scratch)
{
    float tops[GROUPS] = {0.0f}, scale[GROUPS], factor[GROUPS];
    qn_rows_rule rules[GROUPS];
    const int64_t first = c / job->group, count = qn_max_i64(1, qn_ceil_div(n, job->group));
    group_rules by = {rules, scale, factor};
    if (!job->divides || job->is_static || !find_tops(job, real, x, n, job->group, tops)) {
        general_rules(job, real, x, m, first, n, count, rules);
    } else if (!job->stepped && !job->ue8m0 && job->set->scales(&job->bounds, tops, count, scale, factor)) {
        by.rules = NULL;
        put_scales(job, scale, count, m, first);
    } else {
        dividing_rules(job, tops, count, rules);
    }
    if (by.rules) {
        put_rules(job, rules, count, m, first);
    }
    put_codes(job, &by, real, x, m, c, n, job->group, ahead, scratch);
}

/* Groups of row m from column c on, all read once; returns the elements done. */
static int64_t quantize_known(const quantize_job *job, int64_t m, int64_t c, int64_t n)
{
    float tops[GROUPS] = {0.0f}, scale[GROUPS], factor[GROUPS];
    char *const codes = codes_at(job, m) + c;
    const int64_t size = qn_rows_real_bytes(job->real), whole = n / QN_ROWS_GROUP * QN_ROWS_GROUP;
    const int64_t ahead = qn_rows_ahead(m, job->m, job->stride, job->k * size, c * size, QN_ROWS_AHEAD_BYTES);
    const int64_t done =
        job->groups_known(&job->groups, row_at(job, m) + c * size, whole, ahead, job->stream, tops, codes);
    const int64_t count = done / QN_ROWS_GROUP;
    scales_of(job, tops, count, scale, factor);
    put_scales(job, scale, count, m, c / QN_ROWS_GROUP);
    return done;
}

/* A row with scales of its own. v: silu's values of a piece. */
static void quantize_row(const quantize_job *job, int64_t m, char *scratch, float *v)
{
    if (job->k == 0 && job->granularity == QN_PER_TOKEN) {
        quantize_groups(job, (int32_t)job->real, row_at(job, m), m, 0, 0, 0, scratch); /* a scale for no elements */
        return;
    }
    const int64_t size = qn_rows_real_bytes(job->real), row = job->k * size;
    const int known = job->groups_known && (!job->stream || qn_rows_aligned(codes_at(job, m)));
    int64_t n;
    for (int64_t c = 0; c < job->k; c += n) {
        n = qn_min_i64(job->piece, job->k - c);
        if (known) {
            const int64_t done = quantize_known(job, m, c, n);
            n = done > 0 ? done : qn_min_i64(job->group, n);
            if (done > 0) {
                continue;
            }
        }
        const int64_t ahead = qn_rows_ahead(m, job->m, job->stride, row, c * size, n * size + QN_ROWS_AHEAD_BYTES);
        const char *const x = row_at(job, m) + c * size;
        if (job->silu && !job->done) {
            if (job->paired) {
                job->set->silu_paired(x, x + job->k * size, n, ahead, v);
            } else {
                job->set->silu_mul[job->real](x, x + job->k * size, n, ahead, 0, v);
            }
            quantize_groups(job, job->paired ? QN_ROWS_PAIRED : QN_MM_F32, (const char *)v, m, c, n, 0, scratch);
        } else {
            quantize_groups(job, (int32_t)job->real, x, m, c, n, ahead, scratch);
        }
    }
}

static char *scratch_of(const quantize_job *job, int32_t thread)
{
    return job->scratch + (size_t)thread * job->scratch_bytes;
}

/* Whether row m of bf16 may be coded while another is looked at. */
static int is_beside(const quantize_job *job, const qn_rows_rule *rule, int64_t m)
{
    const int known = job->code == QN_ROWS_I8 ? rule->multiply && job->real == QN_MM_BF16 : rule->steps.add != NULL;
    return job->set->beside && known && !rule->careful && (!job->stream || qn_rows_aligned(codes_at(job, m)));
}

/* Scales, or zero points, of whole rows, from row m on. */
static void put_of_rows(const quantize_job *job, const qn_mut_view *view, const void *numbers, int64_t count, int64_t m)
{
    const char *const from = numbers;
    if (job->stream && !job->col && view->strides[0] == 4) {
        job->set->stream((char *)view->data + m * 4, from, (size_t)count * 4);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy((char *)view->data + scale_offset(&view->shape, view->strides, job->col, m + i, 0), from + i * 4, 4);
    }
}

/* Rows with a scale each: one is looked at while the one above becomes codes. */
static void quantize_tokens(const quantize_job *job, int64_t m, int64_t last, char *scratch)
{
    const int64_t row = job->k * qn_rows_real_bytes(job->real);
    const qn_mut_view *scale = &job->args->out[QN_QUANT_OUT_SCALE], *azp = &job->args->out[QN_QUANT_OUT_AZP];
    float scales[TOKENS];
    int32_t azps[TOKENS];
    int64_t count = 0;
    qn_rows_range range;
    job->set->range[job->real](row_at(job, m), job->k, 0, &range);
    for (; m < last; m++) {
        const char *const x = row_at(job, m);
        qn_rows_rule rule;
        rules_of(job, &range, 1, &rule);
        scales[count] = rule.scale;
        azps[count++] = rule.azp;
        range.nan = 1;
        if (m + 1 < last && is_beside(job, &rule, m)) {
            job->set->beside(job->code, &rule, x, row_at(job, m + 1), job->k,
                             qn_rows_ahead(m + 1, job->m, job->stride, row, 0, QN_ROWS_AHEAD_BYTES), job->stream,
                             codes_at(job, m), &range);
        } else {
            put_codes(job, &(group_rules){.rules = &rule}, (int32_t)job->real, x, m, 0, job->k, job->k,
                      qn_rows_ahead(m, job->m, job->stride, row, 0, row), scratch);
        }
        if (m + 1 < last && range.nan) { /* not looked at, or it takes more than a look */
            job->set->range[job->real](row_at(job, m + 1), job->k, 0, &range);
        }
        if (count == TOKENS || m + 1 == last) {
            put_of_rows(job, scale, scales, count, m + 1 - count);
            if (azp->shape.format != QN_FORMAT_NONE) {
                put_of_rows(job, azp, azps, count, m + 1 - count);
            }
            count = 0;
        }
    }
}

static void row_task(void *user, int64_t index, int32_t thread)
{
    const quantize_job *job = user;
    char *const scratch = scratch_of(job, thread);
    float *const v = (float *)(void *)(scratch + qn_size_pad((size_t)job->k));
    const int64_t first = index * job->per_task, last = qn_min_i64(job->m, first + job->per_task);
    const int seen =
        job->set->beside && job->real == QN_MM_BF16 && (job->stepped || (job->code == QN_ROWS_I8 && !job->silu));
    if (job->granularity == QN_PER_TOKEN && seen && !job->is_static && job->k > 0) {
        quantize_tokens(job, first, last, scratch);
    } else {
        for (int64_t m = first; m < last; m++) {
            quantize_row(job, m, scratch, v);
        }
    }
    if (job->stream) {
        job->set->fence();
    }
}

/* A run of blocks of one band. */
typedef struct block_run {
    int64_t m0, m1, first, blocks, columns; /* rows, blocks along K */
    float tops[PANEL];
    int known; /* tops are all that the rules need */
} block_run;

static block_run run_of(const quantize_job *job, int64_t band, int64_t first, int64_t blocks)
{
    return (block_run){.m0 = band * SIDE,
                       .m1 = qn_min_i64(job->m, (band + 1) * SIDE),
                       .first = first,
                       .blocks = blocks,
                       .columns = qn_min_i64(job->k - first * SIDE, blocks * SIDE),
                       .known = job->divides && !job->is_static};
}

static const char *run_row(const quantize_job *job, const block_run *run, int64_t m)
{
    return row_at(job, m) + run->first * SIDE * qn_rows_real_bytes(job->real);
}

/* Row m where it is coded from. */
static const char *coded_row(const quantize_job *job, const block_run *run, int64_t m, const char *kept)
{
    return job->kept ? kept + (m - run->m0) * job->kept : run_row(job, run, m);
}

/* With row m's magnitudes from column c of the run on. */
static void look_at(const quantize_job *job, block_run *run, int64_t m, int64_t c, int64_t n, char *kept)
{
    float tops[PANEL];
    const int64_t size = qn_rows_real_bytes(job->real);
    const char *const x = run_row(job, run, m) + c * size;
    run->known = run->known && find_tops(job, (int32_t)job->real, x, n, SIDE, tops);
    for (int64_t b = 0; run->known && b < qn_ceil_div(n, SIDE); b++) {
        float *const top = &run->tops[c / SIDE + b];
        *top = tops[b] > *top ? tops[b] : *top;
    }
    if (job->kept) {
        memcpy(kept + (m - run->m0) * job->kept + c * size, x, (size_t)(n * size));
    }
}

static void block_rules(const quantize_job *job, const block_run *run, const char *kept, qn_rows_rule *rules)
{
    qn_rows_range ranges[PANEL] = {{0.0f, 0.0f, 0}}, part[PANEL];
    if (run->known) {
        dividing_rules(job, run->tops, run->blocks, rules);
        return;
    }
    for (int64_t m = run->m0; m < run->m1; m++) {
        find_ranges(job, (int32_t)job->real, coded_row(job, run, m, kept), run->columns, SIDE, part);
        for (int64_t b = 0; b < run->blocks; b++) {
            qn_rows_range_join(&ranges[b], &part[b]);
        }
    }
    if (job->is_static) {
        given_rules(job, run->blocks, run->m0 / SIDE, run->first, rules);
        spare_care(job, ranges, run->blocks, rules);
    } else {
        rules_of(job, ranges, run->blocks, rules);
    }
}

/* From x, where row m is coded from, to what is fetched meanwhile: of the band below the same row, which is looked at
 * next, or, row m being kept, the one after that, as this one has come already. */
static int64_t ahead_of(const quantize_job *job, const block_run *run, const block_run *below, int64_t m, const char *x)
{
    if (!job->kept) {
        return m + SIDE < job->m ? SIDE * job->stride : 0;
    }
    return below && m + SIDE + 1 < below->m1 ? (int64_t)((intptr_t)run_row(job, run, m + SIDE + 1) - (intptr_t)x) : 0;
}

/* Codes of a run of blocks; meanwhile the one below it is looked at, so that reading, coding and writing take turns. */
static void put_blocks(const quantize_job *job, const block_run *run, block_run *below, char *scratch, char *kept)
{
    qn_rows_rule rules[PANEL] = {{0}};
    float scale[PANEL], factor[PANEL];
    const int64_t size = qn_rows_real_bytes(job->real);
    int ruled = job->stepped;
    block_rules(job, run, kept, rules);
    put_rules(job, rules, run->blocks, run->m0 / SIDE, run->first);
    for (int64_t b = 0; b < run->blocks; b++) {
        scale[b] = rules[b].scale;
        factor[b] = rules[b].factor;
        ruled |= rules[b].careful || rules[b].multiply;
    }
    for (int64_t m = run->m0; m < run->m1; m++) {
        const char *const x = coded_row(job, run, m, kept);
        const int64_t ahead = ahead_of(job, run, below, m, x);
        for (int64_t c = 0, n; c < run->columns; c += n) {
            const int64_t b = c / SIDE;
            const group_rules by = {ruled ? rules + b : NULL, scale + b, factor + b};
            n = qn_min_i64(job->kept ? TURN : run->columns, run->columns - c);
            put_codes(job, &by, (int32_t)job->real, x + c * size, m, run->first * SIDE + c, n, SIDE, ahead, scratch);
            if (below && m + SIDE < below->m1) {
                look_at(job, below, m + SIDE, c, n, kept);
            }
        }
    }
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const quantize_job *job = user;
    const int64_t all = qn_ceil_div(job->k, SIDE), first = index % job->panels * job->panel;
    const int64_t blocks = qn_min_i64(job->panel, all - first), bands = qn_ceil_div(job->m, SIDE);
    const int64_t band = index / job->panels * job->bands, last = qn_min_i64(bands, band + job->bands);
    char *const scratch = scratch_of(job, thread), *const kept = scratch + qn_size_pad((size_t)job->k);
    block_run run = run_of(job, band, first, blocks);
    for (int64_t m = run.m0; m < run.m1; m++) {
        look_at(job, &run, m, 0, run.columns, kept);
    }
    for (int64_t i = band; i < last; i++) {
        block_run below = run_of(job, i + 1, first, blocks);
        put_blocks(job, &run, i + 1 < last ? &below : NULL, scratch, kept);
        run = below;
    }
    if (job->stream) {
        job->set->fence();
    }
}

/* ---- one scale for all ---- */

/* Tasks go backwards: what they read last, the pass that follows finds in the caches. */
static void range_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const quantize_job *job = user;
    index = qn_ceil_div(job->m, job->per_task) - 1 - index;
    const int64_t last = qn_min_i64(job->m, (index + 1) * job->per_task);
    const int64_t row = job->k * qn_rows_real_bytes(job->real);
    qn_rows_range all = {0.0f, 0.0f, 0}, part;
    for (int64_t m = index * job->per_task; m < last; m++) {
        const int64_t ahead = qn_rows_ahead(m, job->m, job->stride, row, 0, job->set->look);
        job->set->range[job->real](row_at(job, m), job->k, ahead, &part);
        qn_rows_range_join(&all, &part);
    }
    job->parts[index] = all;
}

/* A row by a given scale, read once; 0: there are values for which that is not right. */
static int put_given_row(const quantize_job *job, int64_t m)
{
    const int64_t row = job->k * qn_rows_real_bytes(job->real);
    const int64_t ahead = qn_rows_ahead(m, job->m, job->stride, row, 0, QN_ROWS_AHEAD_BYTES);
    const char *const x = row_at(job, m);
    qn_rows_rule rule = job->rule;
    rule.careful = 0;
    if (!is_beside(job, &rule, m)) {
        return 0;
    }
    qn_rows_range range;
    job->set->beside(job->code, &rule, x, x, job->k, ahead, job->stream, codes_at(job, m), &range);
    spare_care(job, &range, 1, &rule);
    return !rule.careful;
}

static void tensor_task(void *user, int64_t index, int32_t thread)
{
    const quantize_job *job = user;
    const int64_t last = qn_min_i64(job->m, (index + 1) * job->per_task);
    const int64_t row = job->k * qn_rows_real_bytes(job->real);
    for (int64_t m = index * job->per_task; m < last; m++) {
        qn_rows_rule rule = job->rule;
        int64_t distance = QN_ROWS_AHEAD_BYTES;
        if (job->is_static) {
            if (put_given_row(job, m)) {
                continue;
            }
            distance += row; /* the next row's range reads all of it */
            qn_rows_range range;
            job->set->range[job->real](row_at(job, m), job->k, 0, &range);
            spare_care(job, &range, 1, &rule);
        }
        put_codes(job, &(group_rules){.rules = &rule}, (int32_t)job->real, row_at(job, m), m, 0, job->k, job->k,
                  qn_rows_ahead(m, job->m, job->stride, row, 0, distance), scratch_of(job, thread));
    }
    if (job->stream) {
        job->set->fence();
    }
}

static void run_tensor(quantize_job *job, int64_t tasks, const qn_exec *exec)
{
    if (job->is_static) {
        given_rules(job, 1, 0, 0, &job->rule);
    } else {
        qn_rows_range all = {0.0f, 0.0f, 0};
        qn_parallel_for(exec, tasks, range_task, job);
        for (int64_t i = 0; i < tasks; i++) {
            qn_rows_range_join(&all, &job->parts[i]);
        }
        rules_of(job, &all, 1, &job->rule);
    }
    put_rules(job, &job->rule, 1, 0, 0);
    if (job->stepped && is_tame(job->rule.scale) && job->m > STEPS_FROM / qn_max_i64(1, job->k)) {
        job->rule.steps = qn_fp8_steps_make(job->set, job->code, &job->rule, &job->steps);
    }
    qn_parallel_for(exec, tasks, tensor_task, job);
}

/* ---- the kernel's functions ---- */

static int64_t row_elements(const qn_op_desc *desc)
{
    return desc->op == QN_OP_SILU_MUL_QUANT ? desc->in[0].dims[1] / 2 : desc->in[0].dims[1];
}

static int64_t row_bytes(const qn_op_desc *desc)
{
    const int64_t size = qn_rows_real_bytes(qn_rows_real(desc->in[0].format)), k = desc->in[0].dims[1];
    return k > QN_ROWS_TASK_BYTES ? QN_ROWS_TASK_BYTES : k * size;
}

static int is_large(int64_t m, int64_t k)
{
    return k > 0 && m > QN_ROWS_STREAM_BYTES / k;
}

/* A thread: codes of a row (the memory of any set of the kernel), and silu's values of a group or a kept run of blocks.
 */
static size_t thread_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m)
{
    const size_t k = (size_t)row_elements(desc);
    if (desc->op == QN_OP_SILU_MUL_QUANT) {
        return qn_size_add(qn_size_pad(k), qn_size_mul(qn_size_pad(k), 4));
    }
    const int blocks = desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_BLOCK && is_large(m, (int64_t)k);
    return qn_size_add(qn_size_pad(k), blocks ? (size_t)qn_rows_set_of(kernel, NULL)->kept : 0);
}

static size_t parts_bytes(const qn_op_desc *desc, int64_t m)
{
    const int64_t tasks = qn_ceil_div(m, qn_rows_per_task(row_bytes(desc)));
    return qn_size_pad(qn_size_mul((size_t)tasks, sizeof(qn_rows_range)));
}

size_t qn_quantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    return qn_size_add(parts_bytes(desc, m), qn_size_mul((size_t)threads, thread_bytes(kernel, desc, m)));
}

static qn_rows_code code_of(const qn_op_desc *desc)
{
    if (desc->op == QN_OP_QUANTIZE_INT8) {
        return QN_ROWS_I8;
    }
    switch (desc->attr[QN_ATTR_TYPE].i) {
    case QN_TYPE_INT8: return QN_ROWS_I8;
    case QN_TYPE_E4M3FNUZ: return QN_ROWS_E4M3FNUZ;
    case QN_TYPE_E5M2: return QN_ROWS_E5M2;
    default: return QN_ROWS_E4M3;
    }
}

/* What a task is, so that there are as many as that. */
static void choose_blocks(quantize_job *job, int64_t tasks)
{
    const int64_t bands = qn_ceil_div(job->m, SIDE), wide = bands * qn_ceil_div(job->k, SIDE * PANEL);
    const int64_t kept = job->set->kept / (SIDE * SIDE * qn_rows_real_bytes(job->real)); /* blocks */
    const int64_t narrow = kept ? bands * qn_ceil_div(job->k, SIDE * kept) : 0;
    const int keep = job->stream && narrow >= tasks;
    job->panel = keep ? kept : (wide >= tasks ? PANEL : FEW);
    job->kept = keep ? kept * SIDE * qn_rows_real_bytes(job->real) : 0;
    job->bands = qn_max_i64(1, qn_min_i64(BANDS, (keep ? narrow : wide) / tasks));
    job->panels = qn_ceil_div(job->k, SIDE * job->panel);
}

/* values: of silu, NULL: it is to be done, if any. */
static void quantize(const qn_kernel *kernel, const qn_run_call *call, const float *values)
{
    const qn_op_desc *desc = call->desc;
    const qn_view *x = &call->args->in[QN_QUANT_X];
    const int silu = desc->op == QN_OP_SILU_MUL_QUANT;
    quantize_job job = {.set = qn_rows_set_of(kernel, call->state),
                        .desc = desc,
                        .args = call->args,
                        .x = values ? (const char *)values : x->data,
                        .stride = values ? row_elements(desc) * 4 : x->strides[0],
                        .m = x->shape.dims[0],
                        .k = row_elements(desc),
                        .real = qn_rows_real(x->shape.format),
                        .code = code_of(desc),
                        .silu = silu,
                        .done = values != NULL,
                        .col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL,
                        .is_static = !silu && desc->attr[QN_ATTR_MODE].i == QN_STATIC};
    const int32_t group = desc->attr[QN_ATTR_GROUP].i;
    job.granularity = silu ? (group > 0 ? QN_PER_GROUP : QN_PER_TOKEN) : desc->attr[QN_ATTR_GRANULARITY].i;
    job.group = job.granularity == QN_PER_GROUP ? qn_min_i64(group, qn_max_i64(job.k, 1)) : qn_max_i64(job.k, 1);
    job.piece = job.group * qn_max_i64(1, qn_min_i64(GROUPS, PIECE / job.group));
    job.paired = silu && job.real == QN_MM_BF16 && (job.group == job.k || job.group % QN_MM_STEP == 0);
    job.stream = is_large(job.m, job.k);
    job.per_task = qn_rows_per_task(row_bytes(desc));
    if (job.stream) {
        job.per_task = qn_rows_per_far_task(job.per_task, job.m, qn_exec_threads(call->exec));
    }
    choose_blocks(&job, TASKS * qn_exec_threads(call->exec));
    job.parts = call->workspace;
    choose_rule(&job);
    choose_groups(&job);
    job.scratch = (char *)call->workspace + (job.m > 0 ? parts_bytes(desc, job.m) : 0);
    job.scratch_bytes = thread_bytes(kernel, desc, job.m);
    const int64_t tasks = qn_ceil_div(job.m, job.per_task);
    switch (job.granularity) {
    case QN_PER_TENSOR: run_tensor(&job, tasks, call->exec); break;
    case QN_PER_BLOCK:
        qn_parallel_for(call->exec, qn_ceil_div(job.m, SIDE * job.bands) * job.panels, block_task, &job);
        break;
    default: qn_parallel_for(call->exec, tasks, row_task, &job); break;
    }
}

void qn_quantize_run(const qn_kernel *kernel, const qn_run_call *call)
{
    quantize(kernel, call, NULL);
}

void qn_quantize_silu(const qn_run_next *next, const float *values, void *workspace, const qn_exec *exec)
{
    const qn_run_call call = {
        .desc = next->desc, .args = next->args, .workspace = workspace, .exec = exec, .state = next->state};
    quantize(next->kernel, &call, values);
}
