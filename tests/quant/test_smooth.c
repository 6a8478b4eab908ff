/* Smoothing changes what is stored, not what the model computes; layers that are kept; the calibration text. */
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
static char root[64], source[128], sentence[160], out[128];
static syn_tensor tensors[SYN_TENSORS];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/quern-smooth-XXXXXX");
    if (!mkdtemp(root) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(sentence, sizeof sentence, "%s/" SYN_TEXT, source);
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

static qn_status try_quantize(const char *scheme, float smooth, int32_t first, int32_t last, const char *text,
                              qn_error *error)
{
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.force = 1;
    o.keep_first = first;
    o.keep_last = last;
    o.calibration = text;
    const qn_quant_tuning tuning = {.search = 1, .smooth = smooth};
    return qn_quantize_with(ctx, source, out, &o, &tuning, NULL, error);
}

static void quantize(const char *scheme, float smooth, const char *text)
{
    qn_error error = {0};
    must(try_quantize(scheme, smooth, -1, -1, text, &error), &error);
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
        quantize("f32", alphas[i], sentence);
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
    quantize("f32", 0.5f, sentence);
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
        quantize("int8", i ? -1.0f : 0.0f, NULL); /* the built-in text */
        float *after = logits_of(out);
        d[i] = distance(before, after);
        free(after);
    }
    print_message("int8: %.4f plain, %.4f smoothed\n", d[0], d[1]);
    assert_true(d[1] < d[0]);
    free(before);
}

/* Layers that are kept are BF16 in the file, named in the configuration, and read back. */
static void kept_layers(void **state)
{
    (void)state;
    static const char *const schemes[] = {"fp8", "fp8-block", "int8-azp", "nvfp4-w4a4", "mxfp4"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        for (int last = 0; last < 2; last++) {
            qn_error error = {0};
            must(try_quantize(schemes[i], -1.0f, !last, last, sentence, &error), &error);
            qn_checkpoint *c;
            must(qn_checkpoint_open(ctx, out, &c, &error), &error);
            qn_model_info info;
            qn_checkpoint_get_info(c, &info);
            assert_true(strncmp(info.scheme, schemes[i], 4) == 0);
            assert_true(info.bits_per_weight > 6 && info.bits_per_weight < 16);
            for (int layer = 0; layer < SYN_LAYERS; layer++) {
                char name[96];
                snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", layer);
                const qn_weight *w = qn_checkpoint_find(c, name);
                assert_non_null(w);
                assert_int_equal(w->scheme->scales == QN_SCALES_NONE, layer == last);
                assert_int_equal(w->data.shape.format == QN_BF16, layer == last);
            }
            int64_t errors = -1;
            must(qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, &error), &error);
            assert_int_equal(errors, 0);
            qn_checkpoint_close(c);
            float *logits = logits_of(out);
            assert_true(isfinite(logits[0]));
            free(logits);
        }
    }
    qn_error error = {0};
    assert_int_equal(try_quantize("fp8", 0, 1, 1, NULL, &error), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "2 layers"));
    assert_int_equal(try_quantize("fp8", 0, -2, 0, NULL, &error), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "-2"));
}

/* Another calibration text gives other weights, the same one the same; a missing or empty one is refused. */
static void calibration_text(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/text", root);
    qn_error error = {0};
    uint8_t first[SYN_HIDDEN], again[SYN_HIDDEN];
    for (int i = 0; i < 3; i++) {
        const char *text = i < 2 ? "Hello, hello, all the hills are still here." : "0123456789 \xc3\xa9";
        assert_int_equal(syn_put(root, "text", text), 0);
        must(try_quantize("int8", 0.5f, 0, 0, path, &error), &error);
        qn_checkpoint *c;
        must(qn_checkpoint_open(ctx, out, &c, &error), &error);
        const qn_weight *w = qn_checkpoint_find(c, "model.layers.1.self_attn.q_proj.weight");
        memcpy(i ? again : first, w->data.data, SYN_HIDDEN);
        qn_checkpoint_close(c);
        assert_int_equal(i && memcmp(first, again, SYN_HIDDEN) != 0, i == 2);
    }
    assert_int_equal(syn_put(root, "text", ""), 0);
    assert_int_equal(try_quantize("int8", 0.5f, 0, 0, path, &error), QN_E_FILE);
    assert_non_null(strstr(error.text, "no tokens"));
    snprintf(path, sizeof path, "%s/missing", root);
    assert_int_equal(try_quantize("int8", 0.5f, 0, 0, path, &error), QN_E_IO);
    assert_non_null(strstr(error.text, "missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits),
        cmocka_unit_test(folds),
        cmocka_unit_test(helps_int8),
        cmocka_unit_test(kept_layers),
        cmocka_unit_test(calibration_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
