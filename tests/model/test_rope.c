/* Scaled RoPE in the model: logits of every scheme against an independent implementation
 * (tests/model/make_rope_golden.py) at every level and by the reference, from config.json as checkpoints have it and as
 * it is written today; what quantising keeps; coded keys turned as plain ones are. */
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

#include "base/rng.h"
#include "quant/synthetic.h"

enum { STRIDE = 3, ORIGINAL = 30, CONTEXT = 120, VOCAB = 40, MOST_TOKENS = 90 };

/* Logits are up to 4.5; another scheme's differ by several. */
#define LIMIT 1e-4

static const struct {
    const char *name, *type;
    int context;
} schemes[] = {{"default", "default", CONTEXT},       {"linear", "linear", CONTEXT},
               {"llama3", "llama3", CONTEXT},         {"yarn", "yarn", CONTEXT},
               {"yarn-ramp", "yarn", CONTEXT},        {"yarn-mscale", "yarn", CONTEXT},
               {"dynamic", "default", CONTEXT},       {"longrope-short", "longrope", ORIGINAL},
               {"longrope-same", "longrope", CONTEXT}};

enum { SCHEMES = sizeof schemes / sizeof *schemes };

static qn_ctx *ctx;
static qn_tensors *golden;
static char folder[] = "/tmp/quern-rope-XXXXXX";

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static qn_view golden_view(const char *kind, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", kind, name);
    const int32_t i = qn_tensors_find(golden, full);
    qn_view view = {0};
    if (i < 0 || qn_tensors_at(golden, i, NULL, &view, NULL) != QN_OK) {
        fail_msg("tensor %s is missing", full);
    }
    return view;
}

static void put_config(const char *kind, const char *name)
{
    char text[4096];
    const qn_view config = golden_view(kind, name);
    assert_true(config.shape.dims[0] < (int64_t)sizeof text);
    memcpy(text, config.data, (size_t)config.shape.dims[0]);
    text[config.shape.dims[0]] = 0;
    assert_int_equal(syn_put(folder, "config.json", text), 0);
}

/* BF16 as F32, since products by 16-bit weights round what they read to 16 bits. */
static qn_view widened(const qn_view *view)
{
    qn_shape shape = view->shape;
    const int64_t count = qn_shape_elements(&shape);
    uint32_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(shape.format, QN_BF16);
    for (int64_t i = 0; i < count; i++) {
        values[i] = (uint32_t)((const uint16_t *)view->data)[i] << 16;
    }
    shape.format = QN_F32;
    return qn_view_make(values, &shape);
}

static int set_up(void **state)
{
    (void)state;
    qn_error error = {QN_OK, ""};
    must(qn_ctx_create(NULL, &ctx, &error), &error, "context");
    must(qn_tensors_open(ctx, "tests/model/rope.safetensors", &golden, &error), &error, "golden file");
    assert_non_null(mkdtemp(folder));
    qn_named_view weights[64];
    const char *name;
    qn_view view;
    int32_t count = 0;
    for (int32_t i = 0; qn_tensors_at(golden, i, &name, &view, NULL) == QN_OK; i++) {
        if (strncmp(name, "weight.", 7) == 0) {
            assert_true(count < 64);
            weights[count++] = (qn_named_view){name + 7, widened(&view)};
        }
    }
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(qn_tensors_write(ctx, path, weights, count, NULL, 0, &error), &error, path);
    for (int32_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)weights[i].view.data);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    syn_remove(folder);
    qn_tensors_close(golden);
    qn_ctx_destroy(ctx);
    return 0;
}

static qn_model *open_model(const char *path, const char *kv, qn_backend backend, qn_isa isa)
{
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = backend;
    options.plan.isa = isa;
    options.kv = kv;
    qn_model *model = NULL;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, path, &options, &model, &error), &error, path);
    return model;
}

/* Logits of all tokens, `piece` of them a call. */
static void eval(qn_model *model, const int32_t *ids, int32_t count, int32_t piece, int32_t vocab, float *logits)
{
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = count;
    options.batch = 16;
    qn_session *session = NULL;
    qn_error error = {QN_OK, ""};
    must(qn_session_create(model, &options, &session, &error), &error, "session");
    for (int32_t t = 0; t < count; t += piece) {
        const int32_t n = count - t < piece ? count - t : piece;
        must(qn_session_eval(session, ids + t, n, 1, logits + (size_t)t * (size_t)vocab, &error), &error, "eval");
    }
    qn_session_destroy(session);
}

static double distance_to_golden(const char *scheme, const float *logits)
{
    const qn_view want = golden_view("logits.", scheme);
    double worst = 0.0;
    for (int64_t row = 0; row < want.shape.dims[0]; row++) {
        for (int64_t v = 0; v < VOCAB; v++) {
            const double got = (double)logits[row * STRIDE * VOCAB + v];
            worst = fmax(worst, fabs(got - (double)((const float *)want.data)[row * VOCAB + v]));
        }
    }
    return worst;
}

static void logits_match_an_independent_implementation(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        qn_backend backend;
        qn_isa isa;
    } ways[] = {{"reference", QN_BACKEND_REF, QN_ISA_MAX},
                {"scalar", QN_BACKEND_CPU, QN_ISA_SCALAR},
                {"avx2", QN_BACKEND_CPU, QN_ISA_AVX2},
                {"best", QN_BACKEND_CPU, QN_ISA_MAX}};
    static float logits[MOST_TOKENS * VOCAB], pieces[MOST_TOKENS * VOCAB];
    const int32_t *ids = golden_view("ids", "").data;
    for (int s = 0; s < SCHEMES; s++) {
        const int32_t count = schemes[s].context < MOST_TOKENS ? schemes[s].context : MOST_TOKENS;
        for (int saved = 0; saved < 2; saved++) {
            put_config(saved ? "saved." : "config.", schemes[s].name);
            for (int w = 0; w < 4; w++) {
                qn_model *model = open_model(folder, NULL, ways[w].backend, ways[w].isa);
                qn_model_info info;
                qn_model_get_info(model, &info);
                assert_string_equal(info.rope_type, schemes[s].type);
                assert_int_equal(info.context_length, schemes[s].context);
                eval(model, ids, count, count, VOCAB, logits);
                const double far = distance_to_golden(schemes[s].name, logits);
                printf("%s, %s: off by %.2e\n", schemes[s].name, ways[w].name, far);
                assert_true(far < LIMIT);
                if (ways[w].backend == QN_BACKEND_CPU) {
                    eval(model, ids, count, 7, VOCAB, pieces);
                    assert_memory_equal(pieces, logits, (size_t)count * VOCAB * sizeof *logits);
                }
                qn_model_close(model);
            }
        }
    }
}

/* What is written says the same, and is said the same way. */
static void quantising_keeps_the_scaling(void **state)
{
    (void)state;
    char out[128], path[160], text[8192];
    snprintf(out, sizeof out, "%s-out", folder);
    static float logits[MOST_TOKENS * VOCAB];
    const int32_t *ids = golden_view("ids", "").data;
    for (int s = 1; s < 4; s++) {
        put_config("config.", schemes[s].name);
        qn_quantize_options options;
        qn_quantize_options_init(&options);
        options.scheme = "f32";
        qn_error error = {QN_OK, ""};
        must(qn_quantize(ctx, folder, out, &options, NULL, &error), &error, schemes[s].name);
        qn_model *model = open_model(out, NULL, QN_BACKEND_CPU, QN_ISA_MAX);
        eval(model, ids, MOST_TOKENS, MOST_TOKENS, VOCAB, logits);
        assert_true(distance_to_golden(schemes[s].name, logits) < LIMIT);
        qn_model_close(model);
        snprintf(path, sizeof path, "%s/config.json", out);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
        assert_non_null(strstr(text, "\"rope_scaling\""));
        assert_non_null(strstr(text, schemes[s].type));
        syn_remove(out);
    }
}

/* Tokens beyond the window are read from codes, whose keys attention turns; those of another scheme are far off. */
static void coded_keys_are_turned_alike(void **state)
{
    (void)state;
    enum { TOKENS = 330, FIRST = 200 };
    static const syn_heads heads = {
        .heads = 6,
        .kv_heads = 1,
        .size = 32,
        .rope = "{\"rope_type\":\"yarn\",\"factor\":16.0,\"original_max_position_embeddings\":64}"};
    static float plain[TOKENS * SYN_VOCAB], coded[TOKENS * SYN_VOCAB];
    int32_t ids[TOKENS];
    char path[128], text[160];
    snprintf(path, sizeof path, "%s/synthetic", folder);
    syn_tensor tensors[SYN_TENSORS];
    syn_make_heads(tensors, 11, heads);
    assert_int_equal(syn_write_heads(ctx, path, tensors, heads), 0);
    syn_free(tensors);
    qn_rng rng = {.state = 5};
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(qn_rng_next(&rng) % 256);
    }
    snprintf(text, sizeof text, "%s/text", folder);
    FILE *f = fopen(text, "w");
    assert_non_null(f);
    for (int i = 0; i < 1200; i++) {
        fputc(' ' + (int)(qn_rng_next(&rng) % 90), f);
    }
    fclose(f);
    qn_kv_books_options options;
    qn_kv_books_options_init(&options);
    options.calibration = text;
    options.scheme = "cq4";
    qn_error error = {QN_OK, ""};
    must(qn_make_kv_books(ctx, path, NULL, &options, NULL, &error), &error, "cq4");
    static const char *const kinds[] = {NULL, "fp8", "cq4"};
    for (int k = 0; k < 3; k++) {
        qn_model *model = open_model(path, kinds[k], QN_BACKEND_CPU, QN_ISA_MAX);
        eval(model, ids, TOKENS, 64, SYN_VOCAB, k ? coded : plain);
        qn_model_close(model);
        double sum = 0.0, squares = 0.0;
        for (size_t i = (size_t)FIRST * SYN_VOCAB; i < (size_t)TOKENS * SYN_VOCAB && k; i++) {
            sum += ((double)coded[i] - (double)plain[i]) * ((double)coded[i] - (double)plain[i]);
            squares += (double)plain[i] * (double)plain[i];
        }
        if (k) {
            printf("%s: %.6f of the logits' squares\n", kinds[k], sum / squares);
            assert_true(sum / squares < (k == 1 ? 1e-3 : 0.05));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_an_independent_implementation),
        cmocka_unit_test(quantising_keeps_the_scaling),
        cmocka_unit_test(coded_keys_are_turned_alike),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
