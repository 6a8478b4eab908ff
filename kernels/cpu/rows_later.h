/* bf16 to e4m3 and fnuz by integers, and to int8, where prefetches take turns (VEC_FETCH_BETWEEN). Part of
 * rows_steps.h.
 *
 * These loops have one pass and an even pace: a row or a group is looked at while
 * one before it becomes codes, and nothing branches on the codes. All are stored;
 * which pairs of steps have subnormal ones is kept as bits, and when a run is done
 * they are stored once more. */

enum { LATER_PAIRS = 64 /* most of a run */, LATER_GROUPS = LATER_PAIRS / GROUP_PAIRS };

/* Bits of the larger of *top and what STEP elements have. */
QN_INLINE void look_at_step(const char *x, vi *top)
{
    *top = vi_umax16(*top, vi_and(vi_load(x), vi_set(0x7fff7fff)));
}

/* Codes of 2 STEP elements; 1: some may be subnormal. beside: with a look at as many at `look`, from where on `ahead`
 * counts. */
QN_INLINE uint64_t put_pair(const int how, const int beside, vi table, vi base, const char *x, const char *look,
                            int64_t ahead, uint64_t *turn, int past, uint8_t *codes, vi top[2])
{
    vi a = vi_load(x), b = vi_load(x + STEP * 2);
    if (beside) {
        look_at_step(look, &top[0]);
    }
    fetch_between(look, ahead, &top[0], &a, turn);
    vi c = vec_step_codes(a, table, base);
    vec_together(&c, &b);
    if (beside) {
        look_at_step(look + STEP * 2, &top[1]);
    }
    fetch_between(look + STEP * 2, ahead, &top[1], &b, turn);
    const vi w = vi_bytes(c, vec_step_codes(b, table, base));
    const vi held = how == MULTIPLY ? vi_umin8(w, vi_set(MOST_NORMAL * 0x01010101u)) : w;
    vec_put_signed(codes, held, a, b, past);
    return (uint64_t)vec_any_below(w, LEAST_NORMAL);
}

/* Pairs of steps of which some codes are below LEAST_NORMAL, by bits: subnormals once more. */
#define PUT_LATER(name, code)                                                                                          \
    static __attribute__((noinline)) void put_later_##name(const qn_rows_rule *rule, const char *x, uint64_t pairs,    \
                                                           int past, uint8_t *codes)                                   \
    {                                                                                                                  \
        for (; pairs; pairs &= pairs - 1) {                                                                            \
            const int64_t i = __builtin_ctzll(pairs) * 2 * STEP;                                                       \
            if (code == QN_ROWS_E4M3 && !any_subnormal(x + i * 2, &rule->steps)) {                                     \
                continue;                                                                                              \
            }                                                                                                          \
            if (rule->multiply) {                                                                                      \
                encode_all(QN_MM_BF16, code, MULTIPLY, 0, rule, x + i * 2, 2 * STEP, 0, past, codes + i);              \
            } else {                                                                                                   \
                encode_all(QN_MM_BF16, code, QUOTIENT, 0, rule, x + i * 2, 2 * STEP, 0, past, codes + i);              \
            }                                                                                                          \
        }                                                                                                              \
    }
PUT_LATER(e4m3, QN_ROWS_E4M3)
PUT_LATER(fnuz, QN_ROWS_E4M3FNUZ) /* its zeros have no sign */

QN_INLINE void put_later(const int code, const qn_rows_rule *rule, const char *x, uint64_t pairs, int past,
                         uint8_t *codes)
{
    if (code == QN_ROWS_E4M3) {
        put_later_e4m3(rule, x, pairs, past, codes);
    } else {
        put_later_fnuz(rule, x, pairs, past, codes);
    }
}

/* Codes by a rule's steps; bits of the largest magnitude at `look`, where that is asked for. */
QN_INLINE uint32_t steps_beside(const int code, const int how, const int beside, const qn_rows_rule *rule,
                                const char *x, const char *look, int64_t n, int64_t ahead, int past, uint8_t *codes)
{
    const vi table = vec_table16(rule->steps.add), base = vi_set(rule->steps.base);
    const int64_t whole = n / (2 * STEP) * (2 * STEP);
    vi top[2] = {vi_set(0), vi_set(0)};
    uint64_t turn = 0;
    uint32_t last = 0;
    for (int64_t i = 0, end; i < whole; i = end) {
        uint64_t later = 0;
        int64_t j = i;
        end = i + LATER_PAIRS * 2 * STEP < whole ? i + LATER_PAIRS * 2 * STEP : whole;
        for (int pair = 0; j < end; j += 2 * STEP, pair++) {
            later |= put_pair(how, beside, table, base, x + j * 2, look + j * 2, ahead, &turn, past, codes + j, top)
                     << pair;
        }
        if (later) {
            put_later(code, rule, x + i * 2, later, past, codes + i);
        }
    }
    if (whole < n) {
        last = beside ? top_of(QN_MM_BF16, look + whole * 2, n - whole) : 0;
        encode_all(QN_MM_BF16, code, how, 0, rule, x + whole * 2, n - whole, 0, 0, codes + whole);
    }
    const uint32_t most = beside ? vi_top16(vi_umax16(top[0], top[1])) : 0;
    return last > most ? last : most;
}

QN_INLINE void steps_all(const int code, const int how, const qn_rows_rule *rule, const char *x, int64_t n,
                         int64_t ahead, int past, uint8_t *codes)
{
    steps_beside(code, how, 0, rule, x, x, n, ahead, past, codes);
}

/* What int8 looks for: two vectors of largest magnitudes, or of the greatest values and the lowest ones as range_of()
 * finds them. */
typedef struct int8_look {
    vi high[2], low[2];
} int8_look;

/* int8 codes of 2 STEP elements with a look at as many at `look`, from where on `ahead` counts. */
QN_INLINE void put_int8_pair(const int how, const int signs, const rule_vectors *rule, const char *x, const char *look,
                             int64_t ahead, uint64_t *turn, int past, uint8_t *codes, int8_look *found)
{
    vi w[2];
    for (int j = 0; j < 2; j++) {
        vi v = vi_load(x + j * STEP * 2);
        if (signs) {
            const vi seen = vi_load(look + j * STEP * 2);
            found->low[j] = vi_umax16(found->low[j], seen);
            found->high[j] = vi_max16(found->high[j], seen);
        } else {
            look_at_step(look + j * STEP * 2, &found->high[j]);
        }
        fetch_between(look + j * STEP * 2, ahead, &found->high[j], &v, turn);
        const vf even = vf_bits(vi_shl(v, 16)), odd = vf_bits(vi_and(v, vi_set(0xffff0000u)));
        w[j] = vi_pairs(vi_round(scaled(how, even, rule)), vi_round(scaled(how, odd, rule)));
        w[j] = how == MULTIPLY ? vi_add16(w[j], rule->azp16) : w[j]; /* quotients have no zero point */
    }
    vi_put_bytes2(codes, w[0], w[1], 1, past);
}

/* int8 codes by a rule that multiplies and needs no care. */
QN_INLINE void int8_beside(const qn_rows_rule *rule, const char *x, const char *look, int64_t n, int64_t ahead,
                           int past, uint8_t *codes, qn_rows_range *range)
{
    const rule_vectors own = rule_load(QN_ROWS_I8, rule);
    const vi zero = vi_set(0), least = vi_set(0x80008000u);
    int8_look found = {{zero, zero}, {least, least}};
    uint64_t turn = 0;
    int64_t i = 0;
    for (; i + 2 * STEP <= n; i += 2 * STEP) {
        put_int8_pair(MULTIPLY, 1, &own, x + i * 2, look + i * 2, ahead, &turn, past, codes + i, &found);
    }
    if (i < n) {
        encode_all(QN_MM_BF16, QN_ROWS_I8, MULTIPLY, 0, rule, x + i * 2, n - i, 0, 0, codes + i);
    }
    for (char pad[STEP * 4]; i < n; i += STEP) {
        const vi seen = vi_load(n - i < STEP ? pad_step(QN_MM_BF16, look + i * 2, n - i, pad) : look + i * 2);
        found.low[0] = vi_umax16(found.low[0], seen);
        found.high[0] = vi_max16(found.high[0], seen);
    }
    range->nan = !range_of_bits(QN_MM_BF16, vi_max16(found.high[0], found.high[1]),
                                vi_umax16(found.low[0], found.low[1]), range);
}

/* The range that a largest magnitude makes. */
QN_INLINE qn_rows_range range_of_top(uint32_t top)
{
    return (qn_rows_range){.high = magnitude(QN_MM_BF16, top), .nan = top > infinity_bits(QN_MM_BF16)};
}

static void rows_beside(qn_rows_code code, const qn_rows_rule *rule, const void *x, const void *look, int64_t n,
                        int64_t ahead, int past, void *codes, qn_rows_range *range)
{
    if (code == QN_ROWS_I8) {
        int8_beside(rule, x, look, n, ahead, past, codes, range);
    } else if (code == QN_ROWS_E4M3) {
        *range = range_of_top(rule->multiply
                                  ? steps_beside(QN_ROWS_E4M3, MULTIPLY, 1, rule, x, look, n, ahead, past, codes)
                                  : steps_beside(QN_ROWS_E4M3, QUOTIENT, 1, rule, x, look, n, ahead, past, codes));
    } else {
        *range = range_of_top(rule->multiply
                                  ? steps_beside(QN_ROWS_E4M3FNUZ, MULTIPLY, 1, rule, x, look, n, ahead, past, codes)
                                  : steps_beside(QN_ROWS_E4M3FNUZ, QUOTIENT, 1, rule, x, look, n, ahead, past, codes));
    }
}

/* The two pairs, or more, of a group; bits as put_pair's. */
QN_INLINE uint64_t put_group(const qn_rows_steps *steps, const char *x, int64_t ahead, uint64_t *turn, int past,
                             uint8_t *codes)
{
    const vi table = vec_table16(steps->add), base = vi_set(steps->base);
    uint64_t later = 0;
    vi none[2] = {table, table};
    for (int j = 0; j < GROUP_PAIRS; j++) {
        const char *const p = x + j * 4 * STEP;
        later |= put_pair(QUOTIENT, 0, table, base, p, p, ahead, turn, past, codes + j * 2 * STEP, none) << j;
    }
    return later;
}

/* What is left of a run of groups, and the first one of them. */
QN_INLINE uint64_t next_later(uint64_t *later, int64_t *group)
{
    *group = __builtin_ctzll(*later) / GROUP_PAIRS;
    const uint64_t all = ((uint64_t)1 << GROUP_PAIRS) - 1, pairs = *later >> *group * GROUP_PAIRS & all;
    *later &= ~(all << *group * GROUP_PAIRS);
    return pairs;
}

/* Groups of QN_ROWS_GROUP by their rules. */
QN_INLINE void encode_known(const int code, const qn_rows_rule *rules, const char *x, int64_t n, int64_t ahead,
                            int past, uint8_t *codes)
{
    uint64_t turn = 0;
    const int64_t groups = n / QN_ROWS_GROUP;
    for (int64_t i = 0, end; i < groups; i = end) {
        uint64_t later = 0;
        int64_t g = i;
        end = i + LATER_GROUPS < groups ? i + LATER_GROUPS : groups;
        for (int at = 0; g < end; g++, at += GROUP_PAIRS) {
            later |=
                put_group(&rules[g].steps, x + g * QN_ROWS_GROUP * 2, ahead, &turn, past, codes + g * QN_ROWS_GROUP)
                << at;
        }
        while (later) {
            const uint64_t pairs = next_later(&later, &g);
            g += i;
            put_later(code, &rules[g], x + g * QN_ROWS_GROUP * 2, pairs, past, codes + g * QN_ROWS_GROUP);
        }
    }
}

QN_INLINE int within(const qn_rows_groups *by, uint32_t top)
{
    return top - by->least_top <= by->most_top - by->least_top;
}

/* Some groups, until one whose largest magnitude is not within the limits; returns how many. What follows from a
 * group's largest magnitude takes longer than its codes, so it is found while the second before is coded. */
QN_INLINE int64_t groups_in_turn(const qn_rows_groups *by, const char *x, int64_t groups, int64_t ahead, int past,
                                 float *top, uint8_t *codes, uint64_t *later)
{
    uint32_t bits[2] = {group_top(x), group_top(x + (groups > 1 ? QN_ROWS_GROUP * 2 : 0))};
    uint64_t turn = 0;
    *later = 0;
    for (int64_t g = 0; g < groups; g++) {
        const char *const p = x + g * QN_ROWS_GROUP * 2;
        const uint32_t own = bits[0];
        if (!within(by, own)) {
            return g;
        }
        const qn_rows_steps steps = steps_of_top(by, own);
        top[g] = magnitude(QN_MM_BF16, own);
        bits[0] = bits[1];
        bits[1] = group_top(p + (g + 2 < groups ? 2 * QN_ROWS_GROUP * 2 : 0));
        *later |= put_group(&steps, p, ahead, &turn, past, codes + g * QN_ROWS_GROUP) << g * GROUP_PAIRS;
    }
    return groups;
}

/* Some groups by their own scales, and the tops of all; as groups_in_turn. */
static int64_t rows_int8_groups(const qn_rows_groups *by, const void *x, int64_t n, int64_t ahead, int past, float *top,
                                void *codes)
{
    const int64_t groups = n / QN_ROWS_GROUP;
    const char *p = x;
    uint8_t *q = codes;
    uint32_t bits[2] = {0, 0};
    for (int64_t g = 0; g < 2 && g < groups; g++) {
        bits[g] = group_top(p + g * QN_ROWS_GROUP * 2);
    }
    uint64_t turn = 0;
    for (int64_t g = 0; g < groups; g++, p += QN_ROWS_GROUP * 2, q += QN_ROWS_GROUP) {
        const uint32_t own = bits[0];
        if (!within(by, own)) {
            return g * QN_ROWS_GROUP;
        }
        const float scale = magnitude(QN_MM_BF16, own) / by->most;
        const qn_rows_rule rule = {.scale = scale, .factor = 1.0f / scale};
        const rule_vectors vectors = rule_load(QN_ROWS_I8, &rule);
        const char *const look = p + (g + 2 < groups ? 2 * QN_ROWS_GROUP * 2 : 0);
        int8_look found = {.high = {vi_set(0), vi_set(0)}};
        top[g] = magnitude(QN_MM_BF16, own);
        for (int j = 0; j < GROUP_PAIRS; j++) {
            const int64_t at = j * 4 * STEP;
            put_int8_pair(QUOTIENT, 0, &vectors, p + at, look + at, ahead, &turn, past, q + j * 2 * STEP, &found);
        }
        bits[0] = bits[1];
        bits[1] = vi_top16(vi_umax16(found.high[0], found.high[1]));
    }
    return groups * QN_ROWS_GROUP;
}

static int64_t rows_fp8_groups(const qn_rows_groups *by, const void *x, int64_t n, int64_t ahead, int past, float *top,
                               void *codes)
{
    const char *p = x;
    uint8_t *q = codes;
    int64_t done = 0;
    for (int64_t left = n / QN_ROWS_GROUP; left > 0;) {
        uint64_t later;
        const int64_t most = left < LATER_GROUPS ? left : LATER_GROUPS;
        const int64_t groups = groups_in_turn(by, p, most, ahead, past, top, q, &later);
        while (later) {
            int64_t g;
            const uint64_t pairs = next_later(&later, &g);
            uint32_t bits;
            memcpy(&bits, &top[g], 4);
            const qn_rows_rule rule = group_rule(by, bits >> 16);
            put_later((int)by->code, &rule, p + g * QN_ROWS_GROUP * 2, pairs, past, q + g * QN_ROWS_GROUP);
        }
        done += groups * QN_ROWS_GROUP;
        if (groups < most) {
            break;
        }
        left -= groups;
        p += groups * QN_ROWS_GROUP * 2;
        q += groups * QN_ROWS_GROUP;
        top += groups;
    }
    return done;
}
