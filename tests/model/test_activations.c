/* Rows of 4-bit float layers in INT8 (qn_model_options.activations) on a synthetic model: near the reference, near
 * the model without, the same bits however a text is cut and for any number of threads at every level, and one
 * quantisation for all that read the same rows. Mixes of sequences are in test_model_batches.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "quant/synthetic.h"

enum { TOKENS = 9, COUNT = TOKENS * SYN_VOCAB };

static qn_ctx *ctx;
static qn_pool *two;
static char folder[] = "/tmp/quern-activations-XXXXXX";
static char source[64];

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static void quantize(const char *scheme, char path[128])
{
    char text[128];
    snprintf(path, 128, "%s/%s", folder, scheme);
    snprintf(text, sizeof text, "%s/" SYN_TEXT, source);
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.scheme = scheme;
    options.calibration = text;
    qn_quantize_result result;
    qn_error error = {QN_OK, ""};
    must(qn_quantize(ctx, source, path, &options, &result, &error), &error, scheme);
}

static qn_model *open_model(const char *path, qn_activations activations, qn_backend backend, qn_isa isa)
{
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = backend;
    options.plan.isa = isa;
    options.activations = activations;
    qn_model *model;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, path, &options, &model, &error), &error, path);
    return model;
}

/* Logits of all tokens, `step` of them at a time. */
static void evaluate(qn_model *model, int32_t step, qn_pool *pool, float logits[COUNT])
{
    static const int32_t ids[TOKENS] = {3, 141, 59, 26, 53, 58, 97, 93, 2};
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = 16;
    options.exec.pool = pool;
    qn_session *session;
    qn_error error = {QN_OK, ""};
    must(qn_session_create(model, &options, &session, &error), &error, "session");
    for (int32_t at = 0; at < TOKENS; at += step) {
        const int32_t count = TOKENS - at < step ? TOKENS - at : step;
        must(qn_session_eval(session, ids + at, count, 1, logits + (size_t)at * SYN_VOCAB, &error), &error, "eval");
    }
    qn_session_destroy(session);
}

static double apart(const float *a, const float *b)
{
    double sum = 0, norm = 0;
    for (int i = 0; i < COUNT; i++) {
        sum += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)b[i], 2);
    }
    return sqrt(sum / norm);
}

static int times(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += strlen(word)) {
        n++;
    }
    return n;
}

/* q, k, v share their rows, gate and up theirs; those of down come out of the fused step. */
static void check_steps(const qn_model *model)
{
    static char text[16384];
    assert_true(qn_model_explain(model, text, sizeof text) < sizeof text);
    *strstr(text, "output:") = 0;
    assert_int_equal(times(text, "  quantize_int8 "), 3);
    assert_int_equal(times(text, "  silu_mul_quant "), 1);
}

static void int8_rows_beside_4_bit_floats(void **state)
{
    (void)state;
    static const char *const schemes[] = {"nvfp4", "mxfp4"};
    static float stored[COUNT], want[COUNT], got[COUNT], again[COUNT];
    for (size_t s = 0; s < 2; s++) {
        char path[128];
        quantize(schemes[s], path);
        qn_model *model = open_model(path, QN_ACTIVATIONS_STORED, QN_BACKEND_REF, QN_ISA_MAX);
        evaluate(model, TOKENS, NULL, stored);
        qn_model_close(model);
        model = open_model(path, QN_ACTIVATIONS_INT8, QN_BACKEND_REF, QN_ISA_MAX);
        evaluate(model, TOKENS, NULL, want);
        qn_model_close(model);
        const double moved = apart(want, stored);
        assert_true(moved > 1e-4 && moved < 0.2);
        for (int isa = QN_ISA_SCALAR; isa < QN_ISA_COUNT; isa++) {
            qn_model_options options;
            qn_model_options_init(&options);
            options.plan.isa = (qn_isa)isa;
            options.activations = QN_ACTIVATIONS_INT8;
            if (qn_model_open(ctx, path, &options, &model, NULL) != QN_OK) {
                continue; /* a level that this machine lacks */
            }
            qn_model_activations a;
            qn_model_get_activations(model, &a);
            assert_string_equal(a.name, "int8");
            assert_int_equal(a.layers, 7 * SYN_LAYERS);
            check_steps(model);
            evaluate(model, TOKENS, NULL, got);
            const double wrong = apart(got, want);
            print_message("%s at %s: %.1e of the logits from the reference, %.1e from stored\n", schemes[s],
                          qn_isa_name((qn_isa)isa), wrong, moved);
            assert_true(wrong < 5e-3);
            evaluate(model, 1, NULL, again);
            assert_memory_equal(got, again, sizeof got);
            evaluate(model, 4, two, again);
            assert_memory_equal(got, again, sizeof got);
            qn_model_close(model);
        }
        syn_remove(path);
    }
}

/* Nothing to change: the same bits, and the model says so. */
static void other_models_stay_as_they_are(void **state)
{
    (void)state;
    static const char *const schemes[] = {"bf16", "int8", "nvfp4-w4a4"};
    static float want[COUNT], got[COUNT];
    for (size_t s = 0; s < sizeof schemes / sizeof *schemes; s++) {
        char path[128];
        quantize(schemes[s], path);
        qn_model *model = open_model(path, QN_ACTIVATIONS_STORED, QN_BACKEND_CPU, QN_ISA_MAX);
        evaluate(model, TOKENS, NULL, want);
        qn_model_close(model);
        model = open_model(path, QN_ACTIVATIONS_INT8, QN_BACKEND_CPU, QN_ISA_MAX);
        evaluate(model, TOKENS, NULL, got);
        assert_memory_equal(got, want, sizeof got);
        qn_model_activations a;
        qn_model_get_activations(model, &a);
        assert_string_equal(a.name, "stored");
        assert_int_equal(a.layers, 0);
        qn_model_close(model);
        syn_remove(path);
    }
    qn_model_options options;
    qn_model_options_init(&options);
    options.activations = (qn_activations)2;
    qn_model *model;
    qn_error error;
    assert_int_equal(qn_model_open(ctx, source, &options, &model, &error), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "activations"));
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK || qn_pool_create(ctx, 2, &two, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", folder);
    syn_tensor t[SYN_TENSORS];
    syn_make(t, 11);
    const int failed = syn_write(ctx, source, t);
    syn_free(t);
    return failed;
}

static int teardown(void **state)
{
    (void)state;
    syn_remove(folder);
    qn_pool_destroy(two);
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_rows_beside_4_bit_floats),
        cmocka_unit_test(other_models_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
