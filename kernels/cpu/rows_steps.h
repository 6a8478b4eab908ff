/* bf16 to e4m3 and fnuz by integers (kernels/common/rows.h: qn_rows_steps). Part of rows_codes.h.
 *
 * Of levels with VEC_STEPS (avx2: at avx512 the way through f32 waits less for memory, though it computes longer).
 * Sixteen bits an element all the way, one lookup for the scale's mantissa: half
 * the operations of the way through f32. Codes below the smallest normal number
 * have fewer bits, which the sum does not know; a pair of steps where one comes
 * up is done the other way, unless all of them are small enough to be zeros. Of
 * values near a normal distribution that is one pair in hundreds. */

#ifdef VEC_STEPS
#define ROWS_STEPS 1
enum { LEAST_NORMAL = 8, MOST_NORMAL = 126, STEPS_PAIRS = 128 / (2 * STEP) /* checked together */ };

/* Whether one of 2 STEP elements becomes a subnormal code: below the smallest normal number, which is 128 above base,
 * by less than four binades, and something for what add[] holds. */
QN_INLINE int any_subnormal(const char *x, const qn_rows_steps *steps)
{
    const uint32_t first = steps->base - (256u * steps->add[0] + 512) * 0x10001u;
    const vi from = vi_set(first), count = vi_set((128 + 512) * 0x10001u);
    return vec_any_in(vi_load(x), from, count) | vec_any_in(vi_load(x + STEP * 2), from, count);
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

QN_INLINE int steps_known(const int format, const int code, const qn_rows_rule *rule)
{
    return format == QN_MM_BF16 && (code == QN_ROWS_E4M3 || code == QN_ROWS_E4M3FNUZ) && rule->steps.add;
}

/* Some pairs of steps. A code of theirs that was stored past the caches could not be stored again soon, so all are
 * looked at first. */
QN_INLINE void put_pairs(const int code, const int how, const int pairs, const qn_rows_rule *rule, vi table, vi base,
                         const char *x, int64_t ahead, int past, uint8_t *codes)
{
    vi w[STEPS_PAIRS], least = vi_set(~0u);
    for (int j = 0; j < pairs; j++) {
        const char *const p = x + j * 4 * STEP;
        fetch_step(QN_MM_BF16, p, ahead);
        fetch_step(QN_MM_BF16, p + STEP * 2, ahead);
        w[j] = vi_bytes(vec_step_codes(vi_load(p), table, base), vec_step_codes(vi_load(p + STEP * 2), table, base));
        w[j] = how == MULTIPLY ? vi_umin8(w[j], vi_set(MOST_NORMAL * 0x01010101u)) : w[j];
        least = vi_umin8(least, w[j]);
    }
    if (vec_any_below(least, LEAST_NORMAL)) {
        if (code == QN_ROWS_E4M3) {
            put_small_e4m3(rule, x, w, pairs, past, codes);
        } else {
            put_small_fnuz(rule, x, w, pairs, past, codes);
        }
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

QN_INLINE void encode_by_steps(const int code, const qn_rows_rule *rules, const char *x, int64_t n, int64_t group,
                               int64_t ahead, int past, uint8_t *codes)
{
    const int multiply = rules->multiply;
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
