/* The model against an independent implementation on the same dequantised
 * weights (tests/model/make_logits_golden.py), and the law that bits do not
 * depend on threads or on how a text is cut. Needs the real model: its path in
 * QN_TEST_MODEL. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <quern/quern.h>

#define STRIDE 193
#define PROMPTS 5
#define LIMIT 2e-3

static const char *model_path(void)
{
    const char *path = getenv("QN_TEST_MODEL");
    if (!path || !*path) {
        print_message("skipped: QN_TEST_MODEL does not name the model file\n");
        skip();
    }
    return path;
}

static qn_ctx *make_ctx(void)
{
    qn_ctx *ctx;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    return ctx;
}

static void check(qn_status status, const qn_error *error)
{
    if (status != QN_OK) {
        print_error("%s: %s\n", qn_status_name(status), error->text);
    }
    assert_int_equal(status, QN_OK);
}

static qn_session *make_session(qn_model *model, int32_t batch, qn_pool *pool)
{
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = 256;
    options.batch = batch;
    options.exec.pool = pool;
    qn_session *session;
    qn_error error = {QN_OK, ""};
    check(qn_session_create(model, &options, &session, &error), &error);
    return session;
}

static qn_view golden_view(const qn_tensors *golden, const char *kind, int prompt)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, prompt);
    const int32_t i = qn_tensors_find(golden, name);
    assert_true(i >= 0);
    qn_view view;
    assert_int_equal(qn_tensors_at(golden, i, NULL, &view, NULL), QN_OK);
    return view;
}

static void logits_match_independent_implementation(void **state)
{
    (void)state;
    const char *path = model_path();
    qn_ctx *ctx = make_ctx();
    qn_error error = {QN_OK, ""};
    qn_model *model;
    check(qn_model_open(ctx, path, NULL, &model, &error), &error);
    qn_model_info info;
    qn_model_get_info(model, &info);
    qn_tensors *golden;
    check(qn_tensors_open(ctx, "tests/model/logits.safetensors", &golden, &error), &error);
    qn_pool *pool;
    check(qn_pool_create(ctx, 2, &pool, &error), &error);
    double worst = 0;
    for (int p = 0; p < PROMPTS; p++) {
        const qn_view ids = golden_view(golden, "ids", p), last = golden_view(golden, "last", p),
                      some = golden_view(golden, "some", p);
        const int32_t count = (int32_t)ids.shape.dims[0];
        assert_true(count >= 64);
        assert_int_equal(last.shape.dims[0], info.vocab_size);
        assert_int_equal(some.shape.dims[1], (info.vocab_size + STRIDE - 1) / STRIDE);
        float *logits = malloc((size_t)count * (size_t)info.vocab_size * sizeof *logits);
        assert_non_null(logits);
        qn_session *session = make_session(model, 0, pool);
        check(qn_session_eval(session, ids.data, count, 1, logits, &error), &error);
        double worst_here = 0;
        for (int32_t t = 0; t < count; t++) {
            for (int64_t v = 0; v < info.vocab_size; v++) {
                const float got = logits[(int64_t)t * info.vocab_size + v];
                if (t == count - 1) {
                    worst_here = fmax(worst_here, fabs((double)got - ((const float *)last.data)[v]));
                } else if (v % STRIDE == 0) {
                    const float want = ((const float *)some.data)[t * some.shape.dims[1] + v / STRIDE];
                    worst_here = fmax(worst_here, fabs((double)got - want));
                }
                assert_true(isfinite(got));
            }
        }
        print_message("prompt %d: %d tokens, largest difference of logits %.2e\n", p, count, worst_here);
        worst = fmax(worst, worst_here);
        qn_session_destroy(session);
        free(logits);
    }
    qn_pool_destroy(pool);
    qn_tensors_close(golden);
    qn_model_close(model);
    qn_ctx_destroy(ctx);
    assert_true(worst <= LIMIT);
}

/* One text, cut and threaded in several ways: the same bits. */
static void bits_do_not_depend_on_batches_or_threads(void **state)
{
    (void)state;
    const char *path = model_path();
    enum { COUNT = 26 };
    qn_ctx *ctx = make_ctx();
    qn_error error = {QN_OK, ""};
    qn_model *model;
    check(qn_model_open(ctx, path, NULL, &model, &error), &error);
    qn_model_info info;
    qn_model_get_info(model, &info);
    int32_t ids[COUNT];
    for (int32_t i = 0; i < COUNT; i++) {
        ids[i] = (i * 7919 + 13) % info.vocab_size;
    }
    const size_t bytes = (size_t)info.vocab_size * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    assert_non_null(want);
    assert_non_null(got);
    static const struct {
        int32_t threads, batch, step;
    } ways[] = {{1, 64, COUNT}, {2, 64, COUNT}, {3, 7, COUNT}, {2, 1, 1}, {1, 16, 11}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        qn_pool *pool;
        check(qn_pool_create(ctx, ways[w].threads, &pool, &error), &error);
        qn_session *session = make_session(model, ways[w].batch, pool);
        for (int32_t done = 0; done < COUNT; done += ways[w].step) {
            const int32_t n = ways[w].step < COUNT - done ? ways[w].step : COUNT - done;
            check(qn_session_eval(session, ids + done, n, 0, w ? got : want, &error), &error);
        }
        assert_int_equal(qn_session_length(session), COUNT);
        if (w) {
            assert_memory_equal(got, want, bytes);
        }
        /* going back over the last tokens gives the same bits again */
        check(qn_session_truncate(session, COUNT - 5, &error), &error);
        check(qn_session_eval(session, ids + COUNT - 5, 5, 0, got, &error), &error);
        assert_memory_equal(got, want, bytes);
        qn_session_destroy(session);
        qn_pool_destroy(pool);
    }
    free(want);
    free(got);
    qn_model_close(model);
    qn_ctx_destroy(ctx);
}

static void misuse_is_refused(void **state)
{
    (void)state;
    const char *path = model_path();
    qn_ctx *ctx = make_ctx();
    qn_error error = {QN_OK, ""};
    qn_model *model;
    check(qn_model_open(ctx, path, NULL, &model, &error), &error);
    qn_session *session = make_session(model, 8, NULL);
    int32_t bad = -1;
    assert_int_equal(qn_session_eval(session, &bad, 1, 0, NULL, &error), QN_E_ARGUMENT);
    bad = 1 << 30;
    assert_int_equal(qn_session_eval(session, &bad, 1, 0, NULL, &error), QN_E_ARGUMENT);
    int32_t many[300] = {0};
    assert_int_equal(qn_session_eval(session, many, 300, 0, NULL, &error), QN_E_SHAPE);
    assert_int_equal(qn_session_length(session), 0);
    assert_int_equal(qn_session_truncate(session, 1, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_session_eval(session, NULL, 0, 0, NULL, &error), QN_OK);
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = 1 << 30;
    qn_session *none;
    assert_int_equal(qn_session_create(model, &options, &none, &error), QN_E_ARGUMENT);
    assert_null(none);
    qn_session_destroy(session);
    qn_model_close(model);
    assert_int_equal(qn_model_open(ctx, "no/such/model", NULL, &model, &error), QN_E_IO);
    assert_null(model);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_independent_implementation),
        cmocka_unit_test(bits_do_not_depend_on_batches_or_threads),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
