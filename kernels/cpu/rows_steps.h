/* bf16 to e4m3 and fnuz by integers (kernels/common/rows.h: qn_rows_steps), of levels with VEC_STEPS. Part of
 * rows_codes.h.
 *
 * Sixteen bits an element all the way, one lookup for the scale's mantissa: half
 * the operations of the way through f32. Codes below the smallest normal number
 * have fewer bits, which the sum does not know; a pair of steps where one comes
 * up is done the other way, unless all of them are small enough to be zeros. Of
 * values near a normal distribution that is one pair in hundreds. */

#ifdef VEC_STEPS
#define ROWS_STEPS 1
enum { LEAST_NORMAL = 8, MOST_NORMAL = 126 };

/* Whether one of 2 STEP elements becomes a subnormal code: below the smallest normal number, which is 128 above base,
 * by less than four binades, and something for what add[] holds. */
QN_INLINE int any_subnormal(const char *x, const qn_rows_steps *steps)
{
    const uint32_t first = steps->base - (256u * steps->add[0] + 512) * 0x10001u;
    const vi from = vi_set(first), count = vi_set((128 + 512) * 0x10001u);
    return vec_any_in(vi_load(x), from, count) | vec_any_in(vi_load(x + STEP * 2), from, count);
}

QN_INLINE int steps_known(const int format, const int code, const qn_rows_rule *rule)
{
    return format == QN_MM_BF16 && (code == QN_ROWS_E4M3 || code == QN_ROWS_E4M3FNUZ) && rule->steps.add;
}

/* Steps of the group whose largest magnitude has these bits. */
QN_INLINE qn_rows_steps steps_of_top(const qn_rows_groups *by, uint32_t top)
{
    const uint32_t mantissa = top & 127;
    const qn_rows_steps_entry *const entry = by->entries + (by->power ? QN_ROWS_STEPS_POWER : mantissa);
    /* 1.75 is the largest code's mantissa */
    const int32_t exponent = (int32_t)(top >> 7) + (by->power ? mantissa > 0x60 : -1);
    const int32_t base = exponent * 128 - entry->base + 256 * entry->add[0];
    return (qn_rows_steps){entry->add, (uint32_t)base * 0x10001u};
}

/* The same group's rule. */
QN_INLINE qn_rows_rule group_rule(const qn_rows_groups *by, uint32_t top)
{
    float scale = magnitude(QN_MM_BF16, top) / by->most;
    if (by->power) {
        uint32_t bits;
        memcpy(&bits, &scale, 4);
        bits = (bits + 0x7fffff) & 0x7f800000;
        memcpy(&scale, &bits, 4);
    }
    return (qn_rows_rule){.scale = scale, .factor = 1.0f / scale, .steps = steps_of_top(by, top)};
}

enum { GROUP_VECTORS = QN_ROWS_GROUP / STEP, GROUP_PAIRS = GROUP_VECTORS / 2 };

/* Bits of the largest magnitude of a group. */
QN_INLINE uint32_t group_top(const char *x)
{
    const vi size = vi_set(0x7fff7fff);
    vi most[2] = {vi_and(vi_load(x), size), vi_and(vi_load(x + STEP * 2), size)};
    for (int j = 2; j < GROUP_VECTORS; j++) {
        most[j & 1] = vi_umax16(most[j & 1], vi_and(vi_load(x + j * STEP * 2), size));
    }
    return vi_top16(vi_umax16(most[0], most[1]));
}

#ifdef VEC_FETCH_BETWEEN
#include "kernels/cpu/rows_later.h"
#else
enum { STEPS_PAIRS = 128 / (2 * STEP) /* checked together */ };

/* Codes of 2 STEP elements by their steps, without signs; least: of their bytes and those before. */
QN_INLINE vi pair_codes(const int how, const char *x, vi table, vi base, int64_t ahead, vi *least)
{
    vi a = vi_load(x), b = vi_load(x + STEP * 2);
    fetch_step(QN_MM_BF16, x, ahead);
    a = vec_step_codes(a, table, base);
    fetch_step(QN_MM_BF16, x + STEP * 2, ahead);
    const vi w = vi_bytes(a, vec_step_codes(b, table, base));
    *least = vi_umin8(*least, w);
    return how == MULTIPLY ? vi_umin8(w, vi_set(MOST_NORMAL * 0x01010101u)) : w;
}

/* Pairs of steps of which some codes are below LEAST_NORMAL, before they are stored: subnormals once more. */
#define PUT_SMALL(name, code)                                                                                          \
    static __attribute__((noinline)) void put_small_##name(const qn_rows_rule *rule, const char *x, const vi *w,       \
                                                           int pairs, int past, uint8_t *codes)                        \
    {                                                                                                                  \
        for (int j = 0; j < pairs; j++, x += 4 * STEP, codes += 2 * STEP) {                                            \
            if (code == QN_ROWS_E4M3 && !any_subnormal(x, &rule->steps)) {                                             \
                vec_put_signed(codes, w[j], vi_load(x), vi_load(x + 2 * STEP), past);                                  \
            } else if (rule->multiply) {                                                                               \
                encode_all(QN_MM_BF16, code, MULTIPLY, 0, rule, x, 2 * STEP, 0, past, codes);                          \
            } else {                                                                                                   \
                encode_all(QN_MM_BF16, code, QUOTIENT, 0, rule, x, 2 * STEP, 0, past, codes);                          \
            }                                                                                                          \
        }                                                                                                              \
    }
PUT_SMALL(e4m3, QN_ROWS_E4M3)
PUT_SMALL(fnuz, QN_ROWS_E4M3FNUZ) /* its zeros have no sign */

QN_INLINE void put_small(const int code, const qn_rows_rule *rule, const char *x, const vi *w, int pairs, int past,
                         uint8_t *codes)
{
    if (code == QN_ROWS_E4M3) {
        put_small_e4m3(rule, x, w, pairs, past, codes);
    } else {
        put_small_fnuz(rule, x, w, pairs, past, codes);
    }
}

/* Some pairs of steps. A code of theirs that was stored past the caches could not be stored again soon, so all are
 * looked at first. */
QN_INLINE void put_pairs(const int code, const int how, const int pairs, const qn_rows_rule *rule, vi table, vi base,
                         const char *x, int64_t ahead, int past, uint8_t *codes)
{
    vi w[STEPS_PAIRS], least = vi_set(~0u);
    for (int j = 0; j < pairs; j++) {
        const char *const p = x + j * 4 * STEP;
        w[j] = pair_codes(how, p, table, base, ahead, &least);
    }
    if (vec_any_below(least, LEAST_NORMAL)) {
        put_small(code, rule, x, w, pairs, past, codes);
        return;
    }
    for (int j = 0; j < pairs; j++) {
        const char *const p = x + j * 4 * STEP;
        vec_put_signed(codes + j * 2 * STEP, w[j], vi_load(p), vi_load(p + STEP * 2), past);
    }
}

QN_INLINE void steps_all(const int code, const int how, const qn_rows_rule *rule, const char *x, int64_t n,
                         int64_t ahead, int past, uint8_t *codes)
{
    const vi table = vec_table16(rule->steps.add), base = vi_set(rule->steps.base);
    int64_t i = 0;
    for (; i + STEPS_PAIRS * 2 * STEP <= n; i += STEPS_PAIRS * 2 * STEP) {
        put_pairs(code, how, STEPS_PAIRS, rule, table, base, x + i * 2, ahead, past, codes + i);
    }
    for (; i + 2 * STEP <= n; i += 2 * STEP) {
        put_pairs(code, how, 1, rule, table, base, x + i * 2, ahead, past, codes + i);
    }
    if (i < n) {
        encode_all(QN_MM_BF16, code, how, 0, rule, x + i * 2, n - i, 0, 0, codes + i);
    }
}

/* 0: some codes are subnormal. */
QN_INLINE int group_codes(const qn_rows_steps *steps, const char *x, int64_t ahead, int past, uint8_t *codes)
{
    const vi table = vec_table16(steps->add), base = vi_set(steps->base);
    vi w[GROUP_PAIRS], least = vi_set(~0u);
    for (int j = 0; j < GROUP_PAIRS; j++) {
        w[j] = pair_codes(QUOTIENT, x + j * 4 * STEP, table, base, ahead, &least);
    }
    if (vec_any_below(least, LEAST_NORMAL)) {
        return 0;
    }
    for (int j = 0; j < GROUP_PAIRS; j++) {
        const char *const p = x + j * 4 * STEP;
        vec_put_signed(codes + j * 2 * STEP, w[j], vi_load(p), vi_load(p + STEP * 2), past);
    }
    return 1;
}

/* What group_codes has left: rarely, so that its codes are kept in registers. */
QN_INLINE void put_small_group(const int code, const qn_rows_rule *rule, const char *x, int past, uint8_t *codes)
{
    const vi table = vec_table16(rule->steps.add), base = vi_set(rule->steps.base);
    vi w[GROUP_PAIRS], least = vi_set(~0u);
    for (int j = 0; j < GROUP_PAIRS; j++) {
        w[j] = pair_codes(QUOTIENT, x + j * 4 * STEP, table, base, 0, &least);
    }
    put_small(code, rule, x, w, GROUP_PAIRS, past, codes);
}

/* Groups of QN_ROWS_GROUP by their rules, until one has subnormal codes. */
QN_INLINE int64_t known_in_turn(const qn_rows_rule *rules, const char *x, int64_t n, int64_t ahead, int past,
                                uint8_t *codes)
{
    for (int64_t i = 0; i < n; i += QN_ROWS_GROUP, rules++) {
        if (!group_codes(&rules->steps, x + i * 2, ahead, past, codes + i)) {
            return i;
        }
    }
    return n;
}

QN_INLINE void encode_known(const int code, const qn_rows_rule *rules, const char *x, int64_t n, int64_t ahead,
                            int past, uint8_t *codes)
{
    for (int64_t i = 0; i < n; i += QN_ROWS_GROUP) {
        i += known_in_turn(rules + i / QN_ROWS_GROUP, x + i * 2, n - i, ahead, past, codes + i);
        if (i < n) {
            put_small_group(code, rules + i / QN_ROWS_GROUP, x + i * 2, past, codes + i);
        }
    }
}

/* Until a group has subnormal codes. The next group's largest magnitude is on its way while a group is coded: what
 * follows from it takes as long as that. */
QN_INLINE int64_t groups_in_turn(const qn_rows_groups *by, const char *x, int64_t n, int64_t ahead, int past,
                                 float *top, uint8_t *codes)
{
    uint32_t bits = group_top(x);
    for (int64_t i = 0; i < n; i += QN_ROWS_GROUP) {
        if (bits - by->least_top > by->most_top - by->least_top) {
            return i;
        }
        const qn_rows_steps steps = steps_of_top(by, bits);
        *top++ = magnitude(QN_MM_BF16, bits);
        const int64_t next = i + QN_ROWS_GROUP;
        bits = group_top(x + (next < n ? next : i) * 2);
        if (!group_codes(&steps, x + i * 2, ahead, past, codes + i)) {
            return i;
        }
    }
    return n;
}

/* What no table knows: some codes of a group are subnormal. */
QN_INLINE void group_small(const int code, const qn_rows_groups *by, uint32_t top, const char *x, int past,
                           uint8_t *codes)
{
    const qn_rows_rule rule = group_rule(by, top);
    put_small_group(code, &rule, x, past, codes);
}

static int64_t rows_fp8_groups(const qn_rows_groups *by, const void *x, int64_t n, int64_t ahead, int past, float *top,
                               void *codes)
{
    const char *const p = x;
    uint8_t *const q = codes;
    for (int64_t i = 0; i < n; i += QN_ROWS_GROUP) {
        i += groups_in_turn(by, p + i * 2, n - i, ahead, past, top + i / QN_ROWS_GROUP, q + i);
        if (i == n) {
            return n;
        }
        const uint32_t bits = group_top(p + i * 2);
        if (bits - by->least_top > by->most_top - by->least_top) {
            return i;
        }
        if (by->code == QN_ROWS_E4M3) {
            group_small(QN_ROWS_E4M3, by, bits, p + i * 2, past, q + i);
        } else {
            group_small(QN_ROWS_E4M3FNUZ, by, bits, p + i * 2, past, q + i);
        }
    }
    return n;
}
#endif

QN_INLINE void encode_by_steps(const int code, const qn_rows_rule *rules, const char *x, int64_t n, int64_t group,
                               int64_t ahead, int past, uint8_t *codes)
{
    const int multiply = rules->multiply;
    if (group == QN_ROWS_GROUP && !multiply) {
        const int64_t whole = n / group * group;
        encode_known(code, rules, x, whole, ahead, past, codes);
        rules += whole / group;
        x += whole * 2;
        codes += whole;
        n -= whole;
    }
    for (int64_t i = 0; i < n; i += group, rules++) {
        const int64_t count = n - i < group ? n - i : group;
        if (multiply) {
            steps_all(code, MULTIPLY, rules, x + i * 2, count, ahead, past, codes + i);
        } else {
            steps_all(code, QUOTIENT, rules, x + i * 2, count, ahead, past, codes + i);
        }
    }
}
#else
#define ROWS_STEPS 0
QN_INLINE int steps_known(const int format, const int code, const qn_rows_rule *rule)
{
    (void)format;
    (void)code;
    (void)rule;
    return 0;
}

QN_INLINE void encode_by_steps(const int code, const qn_rows_rule *rules, const char *x, int64_t n, int64_t group,
                               int64_t ahead, int past, uint8_t *codes)
{
    (void)code;
    (void)rules;
    (void)x;
    (void)n;
    (void)group;
    (void)ahead;
    (void)past;
    (void)codes;
}
#endif
