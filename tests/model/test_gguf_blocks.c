/* GGUF files at the model whose blocks are not what operators take. MXFP4 and NVFP4: the numbers of a folder of the
 * same scheme give the same bits, rows decode alike, a written packed file fits, and scales that cannot be are refused.
 * IQ and TQ: a model agrees with the floats that its rows decode to, which tests/format holds to another decoder. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/gguf_files.h"
#include "model/logits_of.h"

#include "io/checkpoint.h"

static qn_ctx *ctx;
static char folder[] = "/tmp/quern-gguf-blocks-XXXXXX";
static char source[64], path[96], quantised[96];

static void quantize(const char *scheme)
{
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.scheme = scheme;
    qn_quantize_result result;
    qn_error error = {QN_OK, ""};
    syn_remove(quantised);
    must(qn_quantize(ctx, source, quantised, &options, &result, &error), &error, scheme);
}

static void same_logits(const char *scheme, qn_backend backend)
{
    float *want = logits_of(ctx, quantised, backend, TOKENS), *got = logits_of(ctx, path, backend, TOKENS);
    if (memcmp(want, got, (size_t)TOKENS * SYN_VOCAB * sizeof *got) != 0) {
        fail_msg("%s: other logits than the folder's (%s)", scheme, backend == QN_BACKEND_REF ? "ref" : "cpu");
    }
    free(want);
    free(got);
}

static void same_rows(void)
{
    qn_checkpoint *a, *b;
    qn_error error = {QN_OK, ""};
    must(qn_checkpoint_open(ctx, quantised, &a, &error), &error, quantised);
    must(qn_checkpoint_open(ctx, path, &b, &error), &error, path);
    assert_int_equal(qn_checkpoint_weight_count(a), qn_checkpoint_weight_count(b));
    int blocks = 0;
    for (int32_t i = 0; i < qn_checkpoint_weight_count(a); i++) {
        const qn_weight *x = qn_checkpoint_weight_at(a, i), *y = qn_checkpoint_find(b, x->name);
        assert_non_null(y);
        assert_true(x->n == y->n && x->k == y->k);
        blocks += y->blocks != QN_FORMAT_NONE;
        for (int64_t row = 0; x->ndim == 2 && row < x->n; row++) {
            float want[SYN_INNER], got[SYN_INNER];
            qn_weight_decode_row(x, row, want);
            qn_weight_decode_row(y, row, got);
            for (int64_t k = 0; k < x->k; k++) {
                assert_true(want[k] == got[k]);
            }
        }
    }
    assert_int_equal(blocks, 7 * SYN_LAYERS);
    qn_checkpoint_close(a);
    qn_checkpoint_close(b);
}

static void packed_file_fits(const char *scheme)
{
    qn_model *model;
    qn_error error = {QN_OK, ""};
    qn_packed_file written;
    qn_packing_info info;
    must(qn_model_open(ctx, path, NULL, &model, &error), &error, path);
    must(qn_model_write_packed(model, NULL, 0, NULL, &written, &error), &error, path);
    qn_model_close(model);
    same_logits(scheme, QN_BACKEND_CPU);
    must(qn_model_open(ctx, path, NULL, &model, &error), &error, path);
    qn_model_get_packing(model, &info);
    assert_int_equal(info.from_file, info.weights);
    qn_model_close(model);
}

static void blocks_are_the_numbers_of_folders(void **state)
{
    (void)state;
    static const char *const schemes[] = {"nvfp4", "mxfp4"};
    for (int i = 0; i < 2; i++) {
        quantize(schemes[i]);
        snprintf(path, sizeof path, "%s/%s.gguf", folder, schemes[i]);
        assert_int_equal(gguf_write(ctx, quantised, path, NULL), 0);
        same_rows();
        same_logits(schemes[i], QN_BACKEND_REF);
        same_logits(schemes[i], QN_BACKEND_CPU);
        packed_file_fits(schemes[i]);
        qn_checkpoint *c;
        qn_model_info info;
        qn_error error = {QN_OK, ""};
        must(qn_checkpoint_open(ctx, path, &c, &error), &error, path);
        qn_checkpoint_get_info(c, &info);
        assert_string_equal(info.scheme, schemes[i]);
        qn_checkpoint_close(c);
    }
}

static double difference(const float *a, const float *b, double *largest)
{
    double most = 0;
    *largest = 0;
    for (int i = 0; i < TOKENS * SYN_VOCAB; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        *largest = fmax(*largest, fabs((double)a[i]));
    }
    return most;
}

static void vectors_are_the_floats_they_decode_to(void **state)
{
    (void)state;
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.scheme = "f32";
    qn_quantize_result result;
    qn_error error = {QN_OK, ""};
    snprintf(path, sizeof path, "%s/vectors.gguf", folder);
    assert_int_equal(gguf_write_vectors(path), 0);
    syn_remove(quantised);
    must(qn_quantize(ctx, path, quantised, &options, &result, &error), &error, path);
    float *want = logits_of(ctx, quantised, QN_BACKEND_REF, TOKENS),
          *ref = logits_of(ctx, path, QN_BACKEND_REF, TOKENS), *cpu = logits_of(ctx, path, QN_BACKEND_CPU, TOKENS);
    double largest;
    const double from_floats = difference(want, ref, &largest), from_ref = difference(ref, cpu, &largest);
    print_message("largest logit %.3g, %.2e from floats, %.2e from the reference\n", largest, from_floats, from_ref);
    assert_true(largest > 0.1 && from_floats < 1e-5 * largest && from_ref < 1e-4 * largest);
    free(want);
    free(ref);
    free(cpu);
    qn_checkpoint *c;
    must(qn_checkpoint_open(ctx, path, &c, &error), &error, path);
    int blocks = 0;
    for (int32_t i = 0; i < qn_checkpoint_weight_count(c); i++) {
        const qn_weight *w = qn_checkpoint_weight_at(c, i);
        blocks += w->blocks != QN_FORMAT_NONE;
    }
    assert_int_equal(blocks, 7 * SYN_LAYERS + 1);
    qn_checkpoint_close(c);
}

/* ---- files that say what cannot be ---- */

static int is_scale(const gguf_tensor *t, const char *of)
{
    const size_t length = strlen(of);
    return strncmp(t->name, of, length) == 0 && strcmp(t->name + length, ".scale") == 0;
}

static void set_scale(gguf_tensor *t, float value)
{
    if (is_scale(t, "blk.1.ffn_up")) {
        memcpy(t->data, &value, sizeof value);
    }
}

static void scale_zero(gguf_tensor *t)
{
    set_scale(t, 0);
}

static void scale_negative(gguf_tensor *t)
{
    set_scale(t, -1);
}

static void scale_tiny(gguf_tensor *t)
{
    set_scale(t, 0x1p-140f);
}

static void scale_of_two(gguf_tensor *t)
{
    if (is_scale(t, "blk.1.ffn_up")) {
        t->data = realloc(t->data, 8);
        memset(t->data, 0x3f, 8);
        t->dims[0] = 2;
        t->bytes = 8;
    }
}

static void scale_of_integers(gguf_tensor *t)
{
    t->type = is_scale(t, "blk.1.ffn_up") ? 26 : t->type;
}

static void scale_of_nothing(gguf_tensor *t)
{
    if (is_scale(t, "blk.1.ffn_up")) {
        strcpy(t->name, "blk.1.attn_norm.scale");
    }
}

static void short_rows(gguf_tensor *t)
{
    t->dims[0] -= t->type == 40 && strstr(t->name, "ffn_up") ? 32 : 0;
}

static void a_bias_in_blocks(gguf_tensor *t)
{
    if (strcmp(t->name, "blk.1.ffn_up.weight") == 0) {
        strcpy(t->name, "blk.1.ffn_up.bias");
    }
}

/* Scales of activations are not looked at. */
static void input_scale(gguf_tensor *t)
{
    if (is_scale(t, "blk.1.ffn_up")) {
        strcpy(t->name, "blk.1.ffn_up.input_scale");
    }
}

static void bad_blocks_are_refused(void **state)
{
    (void)state;
    static const struct {
        gguf_spoil spoil;
        qn_status status;
        const char *says;
    } cases[] = {{scale_zero, QN_E_FILE, "blk.1.ffn_up.scale is 0"},
                 {scale_negative, QN_E_FILE, "blk.1.ffn_up.scale is -1"},
                 {scale_tiny, QN_E_FILE, "no reciprocal"},
                 {scale_of_two, QN_E_FILE, "blk.1.ffn_up.scale is not one"},
                 {scale_of_integers, QN_E_FILE, "blk.1.ffn_up.scale is not one"},
                 {scale_of_nothing, QN_E_UNSUPPORTED, "blk.1.attn_norm.scale"},
                 {short_rows, QN_E_FILE, "nvfp4"},
                 {a_bias_in_blocks, QN_E_FILE, "blk.1.ffn_up.bias"},
                 {input_scale, QN_OK, ""}};
    quantize("nvfp4");
    snprintf(path, sizeof path, "%s/bad.gguf", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_checkpoint *c = NULL;
        qn_error error = {QN_OK, ""};
        assert_int_equal(gguf_write(ctx, quantised, path, cases[i].spoil), 0);
        const qn_status status = qn_checkpoint_open(ctx, path, &c, &error);
        if (status != cases[i].status || !strstr(error.text, cases[i].says)) {
            fail_msg("case %zu: %s: %s", i, qn_status_name(status), error.text);
        }
        qn_checkpoint_close(c);
    }
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", folder);
    snprintf(quantised, sizeof quantised, "%s/quantised", folder);
    syn_tensor t[SYN_TENSORS];
    syn_make(t, 7);
    const int failed = syn_write(ctx, source, t);
    syn_free(t);
    return failed;
}

static int teardown(void **state)
{
    (void)state;
    syn_remove(folder);
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_the_numbers_of_folders),
        cmocka_unit_test(vectors_are_the_floats_they_decode_to),
        cmocka_unit_test(bad_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
