/* Smoothing changes what is stored, not what the model computes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/context.h"
#include "io/checkpoint.h"
#include "quant/quantize.h"
#include "synthetic.h"

enum { TOKENS = 40 };

static qn_ctx *ctx;
static char root[64], source[128], out[128];
static syn_tensor tensors[SYN_TENSORS];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/quern-smooth-XXXXXX");
    if (!mkdtemp(root) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(out, sizeof out, "%s/out", root);
    syn_make(tensors, 7);
    for (int i = 0; i < SYN_TENSORS; i++) { /* norms that make some columns large, and one of zero */
        if (!tensors[i].k) {
            tensors[i].w[5] = 30;
            tensors[i].w[77] = -12;
            tensors[i].w[9] = 0;
        }
    }
    return syn_write(ctx, source, tensors);
}

static int teardown(void **state)
{
    (void)state;
    syn_free(tensors);
    syn_remove(root);
    qn_ctx_destroy(ctx);
    return 0;
}

static void must(qn_status status, const qn_error *error)
{
    if (status != QN_OK) {
        fail_msg("%s: %s", qn_status_name(status), error->text);
    }
}

static void quantize(const char *scheme, float smooth)
{
    qn_error error = {0};
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.force = 1;
    const qn_quant_tuning tuning = {.search = 1, .smooth = smooth};
    must(qn_quantize_with(ctx, source, out, &o, &tuning, NULL, &error), &error);
}

/* Logits of some text; the caller frees. */
static float *logits_of(const char *folder)
{
    qn_error error = {0};
    qn_model *model;
    qn_session *session;
    qn_model_options mo;
    qn_model_options_init(&mo);
    must(qn_model_open(ctx, folder, &mo, &model, &error), &error);
    qn_session_options so;
    qn_session_options_init(&so);
    so.context_length = TOKENS;
    must(qn_session_create(model, &so, &session, &error), &error);
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * i * 7 + 3) % 250;
    }
    float *logits = malloc(TOKENS * SYN_VOCAB * sizeof *logits);
    assert_non_null(logits);
    must(qn_session_eval(session, ids, TOKENS, 1, logits, &error), &error);
    qn_session_destroy(session);
    qn_model_close(model);
    return logits;
}

/* Largest difference over the largest value. */
static double distance(const float *a, const float *b)
{
    double most = 0, value = 0;
    for (int i = 0; i < TOKENS * SYN_VOCAB; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        value = fmax(value, fabs((double)a[i]));
    }
    return most / value;
}

static void same_logits(void **state)
{
    (void)state;
    float *before = logits_of(source);
    static const float alphas[] = {0.3f, 0.5f, 0.8f};
    for (int i = 0; i < 3; i++) {
        quantize("f32", alphas[i]);
        float *after = logits_of(out);
        const double d = distance(before, after);
        print_message("alpha %.1f: logits differ by %.2g of the largest\n", (double)alphas[i], d);
        assert_true(d < 1e-4);
        free(after);
    }
    free(before);
}

/* It happened: weights, norm, v rows and up rows are other numbers, and balanced with each other. */
static void folds(void **state)
{
    (void)state;
    quantize("f32", 0.5f);
    qn_checkpoint *a, *b;
    assert_int_equal(qn_checkpoint_open(ctx, source, &a, NULL), QN_OK);
    assert_int_equal(qn_checkpoint_open(ctx, out, &b, NULL), QN_OK);
    int changed = 0;
    for (int32_t i = 0; i < SYN_TENSORS; i++) {
        const qn_weight *w = qn_checkpoint_weight_at(a, i), *v = qn_checkpoint_find(b, w->name);
        assert_non_null(v);
        const size_t bytes = (size_t)(w->n * (w->ndim == 2 ? w->k : 1)) * sizeof(float);
        changed += memcmp(w->data.data, v->data.data, bytes) != 0;
    }
    assert_int_equal(changed, 9 * SYN_LAYERS); /* not the embedding and the last norm */
    const float *norm = qn_checkpoint_find(a, "model.layers.0.input_layernorm.weight")->data.data;
    const float *less = qn_checkpoint_find(b, "model.layers.0.input_layernorm.weight")->data.data;
    assert_true(less[5] < 0.5f * norm[5] && less[77] > 0.7f * norm[77] && less[9] == 0);
    qn_checkpoint_close(a);
    qn_checkpoint_close(b);
}

/* A norm kept in BF16 takes no rounding: with INT8, smoothing makes the logits better by far. */
static void helps_int8(void **state)
{
    (void)state;
    float *before = logits_of(source);
    double d[2];
    for (int i = 0; i < 2; i++) {
        quantize("int8", i ? -1.0f : 0.0f);
        float *after = logits_of(out);
        d[i] = distance(before, after);
        free(after);
    }
    print_message("int8: %.4f plain, %.4f smoothed\n", d[0], d[1]);
    assert_true(d[1] < d[0]);
    free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits),
        cmocka_unit_test(folds),
        cmocka_unit_test(helps_int8),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
