/* Sampler: order of the filters, determinism, the distribution itself, edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/text.h>

#define VOCAB 8
#define DRAWS 20000

static qn_ctx *ctx;

static qn_sampler *make(qn_sampler_options o, int32_t vocab)
{
    qn_sampler *s = NULL;
    qn_error error = {0};
    if (qn_sampler_create(ctx, &o, vocab, &s, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    return s;
}

static qn_sampler_options plain(float temperature, uint64_t seed)
{
    qn_sampler_options o;
    qn_sampler_options_init(&o);
    o.temperature = temperature;
    o.top_k = 0;
    o.top_p = 1;
    o.min_p = 0;
    o.seed = seed;
    return o;
}

static void count_draws(qn_sampler_options o, const float *logits, int *counts)
{
    qn_sampler *s = make(o, VOCAB);
    memset(counts, 0, VOCAB * sizeof *counts);
    for (int i = 0; i < DRAWS; i++) {
        int32_t id;
        assert_int_equal(qn_sampler_draw(s, logits, &id, NULL), QN_OK);
        counts[id]++;
    }
    qn_sampler_destroy(s);
}

static void greedy(void **state)
{
    (void)state;
    qn_sampler *s = make(plain(0, 1), 4);
    const float ties[] = {1, 3, 3, 2}, low[] = {-INFINITY, -INFINITY, -5, -INFINITY};
    int32_t id;
    assert_int_equal(qn_sampler_draw(s, ties, &id, NULL), QN_OK);
    assert_int_equal(id, 1);
    assert_int_equal(qn_sampler_draw(s, low, &id, NULL), QN_OK);
    assert_int_equal(id, 2);
    qn_sampler_destroy(s);
}

/* Pearson's chi-square with 7 degrees of freedom: above 24.3 once in 1,000; the seed is fixed, so it holds or not. */
static void distribution(void **state)
{
    (void)state;
    const float logits[VOCAB] = {0, 0.5f, 1, 1.5f, 2, -1, -2, 0.25f};
    const float temperatures[] = {0.5f, 1, 2};
    for (int k = 0; k < 3; k++) {
        int counts[VOCAB];
        double p[VOCAB], sum = 0, chi = 0;
        for (int i = 0; i < VOCAB; i++) {
            p[i] = exp((double)logits[i] / (double)temperatures[k]);
            sum += p[i];
        }
        count_draws(plain(temperatures[k], 42), logits, counts);
        for (int i = 0; i < VOCAB; i++) {
            const double expected = DRAWS * p[i] / sum, off = counts[i] - expected;
            chi += off * off / expected;
        }
        printf("seed 42, temperature %g: chi-square %.2f\n", (double)temperatures[k], chi);
        assert_true(chi < 24.3);
    }
}

static void filters(void **state)
{
    (void)state;
    const float logits[VOCAB] = {0, 1, 2, 3, 4, 5, 6, 7};
    int counts[VOCAB];
    qn_sampler_options o = plain(1, 7);
    o.top_k = 3;
    count_draws(o, logits, counts);
    assert_true(counts[5] && counts[6] && counts[7] && !counts[4]);
    o.top_k = 1;
    count_draws(o, logits, counts);
    assert_int_equal(counts[7], DRAWS);
    o.top_k = 1000;
    count_draws(o, logits, counts);
    assert_true(counts[3] > 0);
    o = plain(5, 7);
    o.top_p = 0.64f; /* at temperature 1 the best has 0.632 */
    count_draws(o, logits, counts);
    assert_true(counts[6] && counts[7] && !counts[5]);
    o.top_p = 1e-6f;
    count_draws(o, logits, counts);
    assert_int_equal(counts[7], DRAWS);
    o = plain(5, 7);
    o.min_p = 0.1f; /* exp(-2) = 0.135 stays, exp(-3) = 0.050 goes */
    count_draws(o, logits, counts);
    assert_true(counts[5] && !counts[4]);
    o.min_p = 1;
    count_draws(o, logits, counts);
    assert_int_equal(counts[7], DRAWS);
}

/* Equal logits at the edge of top-k: the lower ids stay. */
static void top_k_ties(void **state)
{
    (void)state;
    const float logits[VOCAB] = {1, 1, 1, 1, 1, 1, 1, 1};
    int counts[VOCAB];
    qn_sampler_options o = plain(1, 3);
    o.top_k = 2;
    count_draws(o, logits, counts);
    assert_int_equal(counts[0] + counts[1], DRAWS);
    assert_true(counts[0] && counts[1]);
}

static void repeat_penalty(void **state)
{
    (void)state;
    const float logits[2] = {2, 1.9f};
    qn_sampler_options o = plain(1e-6f, 3);
    int32_t id;
    o.repeat_penalty = 2;
    o.repeat_last = 1;
    qn_sampler *s = make(o, 2);
    for (int i = 0; i < 6; i++) { /* the one drawn last is weaker: they take turns */
        assert_int_equal(qn_sampler_draw(s, logits, &id, NULL), QN_OK);
        assert_int_equal(id, i % 2);
    }
    qn_sampler_destroy(s);
    const float negative[2] = {-1, -1.5f};
    s = make(o, 2);
    qn_sampler_accept(s, 0); /* a negative logit is multiplied */
    qn_sampler_accept(s, -1);
    qn_sampler_accept(s, 2);
    assert_int_equal(qn_sampler_draw(s, negative, &id, NULL), QN_OK);
    assert_int_equal(id, 1);
    qn_sampler_destroy(s);
    o.repeat_last = 0;
    s = make(o, 2);
    qn_sampler_accept(s, 0);
    assert_int_equal(qn_sampler_draw(s, logits, &id, NULL), QN_OK);
    assert_int_equal(id, 0);
    qn_sampler_destroy(s);
}

static void same_seed_same_tokens(void **state)
{
    (void)state;
    float logits[500];
    for (int i = 0; i < 500; i++) {
        logits[i] = (float)((i * 7919) % 101) / 10.0f;
    }
    int differ = 0;
    qn_sampler_options o = plain(1, 11);
    o.top_k = 100;
    o.top_p = 0.9f;
    qn_sampler *a = make(o, 500), *b = make(o, 500);
    o.seed = 12;
    qn_sampler *c = make(o, 500);
    for (int i = 0; i < 200; i++) {
        int32_t x, y, z;
        assert_int_equal(qn_sampler_draw(a, logits, &x, NULL), QN_OK);
        assert_int_equal(qn_sampler_draw(b, logits, &y, NULL), QN_OK);
        assert_int_equal(qn_sampler_draw(c, logits, &z, NULL), QN_OK);
        assert_int_equal(x, y);
        differ += x != z;
    }
    assert_true(differ > 100);
    qn_sampler_destroy(a);
    qn_sampler_destroy(b);
    qn_sampler_destroy(c);
}

static void bad_logits(void **state)
{
    (void)state;
    const float temperatures[] = {0, 1};
    for (int k = 0; k < 2; k++) {
        const float none[2] = {-INFINITY, -INFINITY}, nan[2] = {0, NAN}, inf[2] = {INFINITY, 0},
                    one[2] = {-INFINITY, -3e38f};
        const float huge[2] = {3e38f, -3e38f};
        qn_sampler *s = make(plain(temperatures[k], 1), 2);
        qn_error error = {0};
        int32_t id = 5;
        assert_int_equal(qn_sampler_draw(s, none, &id, &error), QN_E_ARGUMENT);
        assert_int_equal(id, -1);
        assert_int_equal(qn_sampler_draw(s, nan, &id, &error), QN_E_ARGUMENT);
        assert_int_equal(qn_sampler_draw(s, inf, &id, &error), QN_E_ARGUMENT);
        assert_int_equal(qn_sampler_draw(s, NULL, &id, &error), QN_E_ARGUMENT);
        assert_int_equal(qn_sampler_draw(NULL, one, &id, &error), QN_E_ARGUMENT);
        assert_int_equal(qn_sampler_draw(s, one, &id, &error), QN_OK);
        assert_int_equal(id, 1);
        assert_int_equal(qn_sampler_draw(s, huge, &id, &error), QN_OK);
        assert_int_equal(id, 0);
        qn_sampler_destroy(s);
    }
    qn_sampler *s = make(plain(1, 1), 1);
    const float single[1] = {-7};
    int32_t id;
    assert_int_equal(qn_sampler_draw(s, single, &id, NULL), QN_OK);
    assert_int_equal(id, 0);
    qn_sampler_destroy(s);
    qn_sampler_destroy(NULL);
}

static void bad_options(void **state)
{
    (void)state;
    qn_sampler *s;
    qn_error error;
#define BAD(change)                                                                                                    \
    do {                                                                                                               \
        qn_sampler_options o = plain(1, 1);                                                                            \
        o.change;                                                                                                      \
        error.text[0] = 0;                                                                                             \
        assert_int_equal(qn_sampler_create(ctx, &o, 4, &s, &error), QN_E_ARGUMENT);                                    \
        assert_null(s);                                                                                                \
        assert_true(error.text[0]);                                                                                    \
    } while (0)
    BAD(size = 1);
    BAD(temperature = -1);
    BAD(temperature = NAN);
    BAD(temperature = INFINITY);
    BAD(top_k = -1);
    BAD(top_p = 0);
    BAD(top_p = 1.5f);
    BAD(top_p = NAN);
    BAD(min_p = -0.1f);
    BAD(min_p = NAN);
    BAD(repeat_penalty = 0);
    BAD(repeat_penalty = NAN);
    BAD(repeat_last = -1);
    BAD(repeat_last = INT32_MAX);
    const qn_sampler_options o = plain(1, 1);
    assert_int_equal(qn_sampler_create(ctx, &o, 0, &s, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_sampler_create(NULL, &o, 4, &s, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_sampler_create(ctx, &o, 4, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_sampler_create(ctx, NULL, 4, &s, &error), QN_OK);
    qn_sampler_destroy(s);
}

int main(void)
{
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy),         cmocka_unit_test(distribution),
                                       cmocka_unit_test(filters),        cmocka_unit_test(top_k_ties),
                                       cmocka_unit_test(repeat_penalty), cmocka_unit_test(same_seed_same_tokens),
                                       cmocka_unit_test(bad_logits),     cmocka_unit_test(bad_options)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_ctx_destroy(ctx);
    return failed;
}
