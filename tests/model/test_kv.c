/* KV schemes in the model, on a synthetic one long enough to leave the window of recent tokens: codebooks are made and
 * read back; logits are near those of plain caches; law 2 (pieces, mates, threads, levels); what truncation keeps and
 * refuses; a failed evaluation leaves what was there; broken codebook files; the bytes that are reported. */
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

#include "base/error.h"
#include "base/rng.h"
#include "model/model.h"
#include "quant/synthetic.h"

#define TOKENS 330 /* some windows and blocks */
#define SPLITS 4

static const char *const schemes[] = {"bf16", "fp8", "cq4", "cq2", "cq1"};

enum { SCHEMES = sizeof schemes / sizeof *schemes, CODED = 2, WINDOWS = 1 }; /* the first with books, with a window */

static qn_ctx *ctx;
static qn_pool *pools[3];
static char folder[] = "/tmp/quern-kv-XXXXXX";
static char model_path[64], text_path[64];
static int32_t ids[TOKENS];
static float *plain; /* logits of plain caches, [TOKENS, vocab] */

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static void book_path(const char *scheme, char path[128])
{
    snprintf(path, 128, "%s/kv-%s.safetensors", model_path, scheme);
}

static int set_up(void **state)
{
    (void)state;
    qn_ctx_options options;
    qn_error error = {QN_OK, ""};
    qn_ctx_options_init(&options);
    must(qn_ctx_create(&options, &ctx, &error), &error, "context");
    for (int i = 0; i < 3; i++) {
        must(qn_pool_create(ctx, i + 1, &pools[i], &error), &error, "pool");
    }
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(model_path, sizeof model_path, "%s/model", folder);
    syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, 11);
    const int failed = syn_write(ctx, model_path, tensors);
    syn_free(tensors);
    qn_rng rng = {.state = 5};
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(qn_rng_next(&rng) % 256);
    }
    snprintf(text_path, sizeof text_path, "%s/text", folder);
    FILE *text = fopen(text_path, "w");
    for (int i = 0; text && i < 1200; i++) {
        fputc(' ' + (int)(qn_rng_next(&rng) % 90), text);
    }
    if (!text || fclose(text) != 0) {
        return 1;
    }
    for (int i = CODED; i < SCHEMES; i++) {
        qn_kv_books_options o;
        qn_kv_books_options_init(&o);
        o.calibration = text_path;
        o.scheme = schemes[i];
        o.exec.pool = pools[1];
        qn_kv_books_result r;
        must(qn_make_kv_books(ctx, model_path, NULL, &o, &r, &error), &error, schemes[i]);
        assert_int_equal(r.layers, SYN_LAYERS);
        assert_true(r.tokens > 500 && r.bytes > 0 && r.bytes_per_token_after < r.bytes_per_token_before);
    }
    plain = malloc((size_t)TOKENS * SYN_VOCAB * sizeof *plain);
    return failed || !plain;
}

static int tear_down(void **state)
{
    (void)state;
    free(plain);
    syn_remove(folder);
    for (int i = 0; i < 3; i++) {
        qn_pool_destroy(pools[i]);
    }
    qn_ctx_destroy(ctx);
    return 0;
}

static qn_model *open_model(const char *kv, qn_isa isa)
{
    qn_model_options options;
    qn_model_options_init(&options);
    options.kv = kv;
    options.plan.isa = isa;
    qn_model *model = NULL;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, model_path, &options, &model, &error), &error, kv ? kv : "f32");
    return model;
}

static qn_session *open_session(qn_model *model, int32_t batch, int threads)
{
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = TOKENS;
    options.batch = batch;
    options.exec.pool = pools[threads - 1];
    qn_session *session = NULL;
    qn_error error = {QN_OK, ""};
    must(qn_session_create(model, &options, &session, &error), &error, "session");
    return session;
}

static void eval(qn_session *session, int32_t first, int32_t count, float *logits)
{
    qn_error error = {QN_OK, ""};
    must(qn_session_eval(session, ids + first, count, 1, logits + (size_t)first * SYN_VOCAB, &error), &error, "eval");
}

/* Mean squared difference of logits from token `first` on, relative to the variance of the plain ones. */
static double distance(const float *a, int32_t first)
{
    double sum = 0.0, squares = 0.0, mean = 0.0;
    const size_t from = (size_t)first * SYN_VOCAB, to = (size_t)TOKENS * SYN_VOCAB;
    for (size_t i = from; i < to; i++) {
        mean += (double)plain[i] / (double)(to - from);
    }
    for (size_t i = from; i < to; i++) {
        sum += ((double)a[i] - (double)plain[i]) * ((double)a[i] - (double)plain[i]);
        squares += ((double)plain[i] - mean) * ((double)plain[i] - mean);
    }
    return sum / squares;
}

static void same_bits(const float *a, const float *b, int32_t first, int32_t count, const char *what)
{
    for (size_t i = (size_t)first * SYN_VOCAB; i < (size_t)(first + count) * SYN_VOCAB; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            fail_msg("%s: token %zu, logit %zu is %.9g, wanted %.9g", what, i / SYN_VOCAB, i % SYN_VOCAB, (double)a[i],
                     (double)b[i]);
        }
    }
}

/* ---- tests ---- */

static void logits_are_near_those_of_plain_caches(void **state)
{
    (void)state;
    qn_model *model = open_model(NULL, QN_ISA_MAX);
    qn_session *session = open_session(model, 64, 2);
    eval(session, 0, TOKENS, plain);
    qn_session_destroy(session);
    qn_model_close(model);
    /* random weights are harder on codes than a language is: bounds tell right from wrong, not good from better */
    static const double bounds[SCHEMES] = {1e-4, 1e-3, 0.02, 0.1, 0.3};
    double last = 0.0;
    float *got = malloc((size_t)TOKENS * SYN_VOCAB * sizeof *got);
    for (int i = 0; i < SCHEMES; i++) {
        model = open_model(schemes[i], QN_ISA_MAX);
        session = open_session(model, 64, 2);
        eval(session, 0, TOKENS, got);
        const double far = distance(got, 200);
        printf("%s: %.6f of the variance of the logits\n", schemes[i], far);
        assert_true(far > 0.0 && far < bounds[i]);
        assert_true(far > last); /* fewer bits, farther */
        last = far;
        /* all that the first queries see is recent */
        assert_true(i < WINDOWS || distance(got, 0) < far);
        qn_session_destroy(session);
        qn_model_close(model);
    }
    free(got);
}

/* Pieces, batches, mates and threads against all tokens in calls of one. */
static void bits_depend_on_nothing_else(void **state)
{
    (void)state;
    static const qn_isa levels[] = {QN_ISA_MAX, QN_ISA_AVX2, QN_ISA_SCALAR};
    const size_t floats = (size_t)TOKENS * SYN_VOCAB;
    float *want = malloc(floats * sizeof *want), *got = malloc(floats * sizeof *got);
    qn_rng rng = {.state = 77};
    qn_error error = {QN_OK, ""};
    for (int i = 0; i < SCHEMES; i++) {
        for (int l = 0; l < (i == 0 || i == CODED + 1 ? 3 : 1); l++) {
            qn_model *model = open_model(schemes[i], levels[l]);
            qn_session *alone = open_session(model, 1, 1);
            for (int32_t t = 0; t < TOKENS; t++) {
                eval(alone, t, 1, want);
            }
            qn_session_destroy(alone);
            for (int split = 0; split < SPLITS; split++) {
                qn_session *session = open_session(model, 1 + (int32_t)(qn_rng_next(&rng) % 200), 1 + split % 3);
                qn_session *mate = open_session(model, 7, 1);
                qn_batch_options options;
                qn_batch_options_init(&options);
                options.tokens = 1 + (int32_t)(qn_rng_next(&rng) % 100);
                options.exec.pool = pools[split % 3];
                qn_batch *batch = NULL;
                must(qn_batch_create(model, &options, &batch, &error), &error, "batch");
                for (int32_t t = 0; t < TOKENS;) {
                    int32_t n = 1 + (int32_t)(qn_rng_next(&rng) % 90);
                    n = n < TOKENS - t ? n : TOKENS - t;
                    if (split % 2) {
                        eval(session, t, n, got);
                    } else { /* beside another sequence, in either order */
                        const int32_t other = qn_session_length(mate) < TOKENS - 20 ? 11 : 0;
                        qn_batch_item items[2] = {{session, ids + t, n, 1, got + (size_t)t * SYN_VOCAB},
                                                  {mate, ids + 3, other, 0, NULL}};
                        if (t % 2) {
                            const qn_batch_item first = items[0];
                            items[0] = items[1];
                            items[1] = first;
                        }
                        must(qn_batch_eval(batch, items, 2, &error), &error, "batch");
                    }
                    t += n;
                }
                same_bits(got, want, 0, TOKENS, schemes[i]);
                qn_batch_destroy(batch);
                qn_session_destroy(mate);
                qn_session_destroy(session);
            }
            qn_model_close(model);
        }
    }
    free(got);
    free(want);
}

static void truncation_keeps_bits_or_refuses(void **state)
{
    (void)state;
    qn_error error = {QN_OK, ""};
    const size_t floats = (size_t)TOKENS * SYN_VOCAB;
    float *want = malloc(floats * sizeof *want), *got = malloc(floats * sizeof *got);
    qn_model *model = open_model("cq2", QN_ISA_MAX);
    qn_session *session = open_session(model, 40, 2);
    eval(session, 0, TOKENS, want);
    /* 40 tokens back are always there */
    must(qn_session_truncate(session, TOKENS - 40, &error), &error, "a little back");
    eval(session, TOKENS - 40, 40, got);
    same_bits(got, want, TOKENS - 40, 40, "after truncating a little");
    assert_int_equal(qn_session_truncate(session, 150, &error), QN_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "150"));
    assert_int_equal(qn_session_length(session), TOKENS);
    must(qn_session_truncate(session, 0, &error), &error, "to nothing");
    eval(session, 0, TOKENS, got);
    same_bits(got, want, 0, TOKENS, "after truncating to nothing");
    qn_session_destroy(session);
    qn_model_close(model);
    free(got);
    free(want);
}

/* Bytes of a whole file; free them. */
static char *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size);
    assert_int_equal(fread(data, 1, *size, f), *size);
    fclose(f);
    return data;
}

static qn_status fail_at_the_third_pass(void *user, const qn_step *step, const qn_args *args, qn_error *error)
{
    int *const count = user;
    (void)args;
    *count += step->op == QN_OP_RMSNORM && step->layer == 0;
    return *count > 5 ? qn_error_set(error, QN_E_CANCELLED, "enough") : QN_OK;
}

/* Passes that were done before one that failed wrote over the recent rows of what is there again afterwards. */
static void a_failed_evaluation_leaves_the_session(void **state)
{
    (void)state;
    enum { BEFORE = 100, MORE = 3 * 40, PASS = 40 };
    float *want = malloc((size_t)TOKENS * SYN_VOCAB * sizeof *want),
          *got = malloc((size_t)TOKENS * SYN_VOCAB * sizeof *got);
    assert_true(want && got);
    for (int i = 0; i < SCHEMES; i++) {
        qn_error error = {QN_OK, ""};
        qn_model *model = open_model(schemes[i], QN_ISA_MAX);
        qn_session *session = open_session(model, PASS, 1);
        eval(session, 0, BEFORE, want);
        eval(session, BEFORE, MORE, want);
        must(qn_session_truncate(session, 0, &error), &error, "truncate");
        eval(session, 0, BEFORE, got);
        for (int round = 0; round < 2; round++) {
            int count = 0;
            qn_model_set_observer(model, fail_at_the_third_pass, &count);
            /* other tokens than the ones that follow */
            assert_int_equal(qn_session_eval(session, ids + BEFORE + 7, 5 * PASS, 0, NULL, &error), QN_E_CANCELLED);
            qn_model_set_observer(model, NULL, NULL);
            assert_int_equal(qn_session_length(session), BEFORE);
        }
        eval(session, BEFORE, MORE, got);
        same_bits(want, got, 0, BEFORE + MORE, schemes[i]);
        qn_session_destroy(session);
        qn_model_close(model);
    }
    free(want);
    free(got);
}

static void write_all(const char *path, const char *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static void refused(const char *kv, qn_status status, const char *word)
{
    qn_model_options options;
    qn_model_options_init(&options);
    options.kv = kv;
    qn_model *model = NULL;
    qn_error error = {QN_OK, ""};
    assert_int_equal(qn_model_open(ctx, model_path, &options, &model, &error), status);
    assert_null(model);
    if (!strstr(error.text, word) || strchr(error.text, '\n')) {
        fail_msg("'%s' does not hold '%s', or is no one sentence", error.text, word);
    }
}

static char finding[400];

static void find(void *user, int32_t severity, const char *tensor, const char *text)
{
    (void)user;
    if (strcmp(tensor, "kv-cq2.safetensors") == 0) {
        snprintf(finding, sizeof finding, "%d %s", (int)severity, text);
    }
}

/* What `quern verify` says of the codebooks of cq2: its number of errors, and words that it holds. */
static void verified(int64_t wanted, const char *words)
{
    qn_error error = {QN_OK, ""};
    qn_checkpoint *checkpoint = NULL;
    int64_t errors = -1;
    qn_exec exec = {.pool = pools[1]};
    finding[0] = 0;
    must(qn_checkpoint_open(ctx, model_path, &checkpoint, &error), &error, "open");
    must(qn_checkpoint_verify(checkpoint, &exec, find, NULL, &errors, &error), &error, "verify");
    qn_checkpoint_close(checkpoint);
    assert_int_equal(errors, wanted);
    if (words ? !strstr(finding, words) : finding[0] != 0) {
        fail_msg("'%s' does not hold '%s'", finding, words ? words : "nothing");
    }
}

static void codebook_files_are_checked(void **state)
{
    (void)state;
    char path[128], aside[140], other[128];
    qn_error error = {QN_OK, ""};
    book_path("cq2", path);
    book_path("cq4", other);
    size_t size, other_size;
    char *good = read_all(path, &size), *wrong = read_all(other, &other_size);
    verified(0, "0 codebooks of KV scheme cq2");
    refused("q9", QN_E_ARGUMENT, "q9");
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    refused("cq2", QN_E_IO, "quern quantize MODEL --kv cq2");
    verified(0, NULL);
    write_all(path, good, size / 2); /* cut */
    refused("cq2", QN_E_FILE, "kv-cq2");
    verified(1, "2 ");
    write_all(path, wrong, other_size); /* another scheme's */
    refused("cq2", QN_E_FILE, "this model needs");
    verified(1, "this model needs");
    good[size - 5] ^= 1; /* one bit */
    write_all(path, good, size);
    refused("cq2", QN_E_FILE, "checksum");
    verified(1, "checksum");
    good[size - 5] ^= 1;
    write_all(path, good, size);
    qn_model_close(open_model("cq2", QN_ISA_MAX));
    /* made again it is the same, on other threads; not without force */
    qn_kv_books_options o;
    qn_kv_books_options_init(&o);
    o.scheme = "cq2";
    o.calibration = text_path;
    o.exec.pool = pools[2];
    assert_int_equal(qn_make_kv_books(ctx, model_path, NULL, &o, NULL, &error), QN_E_EXISTS);
    o.force = 1;
    must(qn_make_kv_books(ctx, model_path, NULL, &o, NULL, &error), &error, "again");
    size_t again_size;
    char *again = read_all(path, &again_size);
    assert_int_equal(again_size, size);
    assert_memory_equal(again, good, size);
    o.scheme = "fp8";
    assert_int_equal(qn_make_kv_books(ctx, model_path, NULL, &o, NULL, &error), QN_E_ARGUMENT);
    free(again);
    free(wrong);
    free(good);
}

static void bytes_are_those_kept(void **state)
{
    (void)state;
    /* SYN_KV channels of keys and as many of values in each layer */
    static const uint64_t bytes[] = {2 * SYN_LAYERS * SYN_KV * 2, 2 * SYN_LAYERS * (SYN_KV + 4 * SYN_KV / 32),
                                     SYN_LAYERS * SYN_KV, SYN_LAYERS * SYN_KV / 2, SYN_LAYERS * SYN_KV / 4};
    qn_model_kv kv;
    qn_kv_info info;
    qn_model *model = open_model(NULL, QN_ISA_MAX);
    qn_model_get_kv(model, &kv);
    assert_string_equal(kv.scheme, "f32");
    assert_true(kv.bytes_per_token == 2 * SYN_LAYERS * SYN_KV * 4 && kv.window == 0 && !kv.file);
    qn_model_close(model);
    for (int i = 0; i < SCHEMES; i++) {
        model = open_model(schemes[i], QN_ISA_MAX);
        qn_model_get_kv(model, &kv);
        assert_int_equal(qn_kv_at(i + 1, &info), QN_OK);
        assert_string_equal(kv.scheme, info.name);
        assert_int_equal(kv.bytes_per_token, bytes[i]);
        assert_int_equal(kv.bytes_per_recent_token, i < WINDOWS ? 0 : 2 * SYN_LAYERS * SYN_KV * 2);
        assert_int_equal(kv.codebook_bytes > 0, info.codebooks);
        qn_model_close(model);
    }
    assert_int_equal(qn_kv_at(SCHEMES + 1, &info), QN_E_ARGUMENT);
}

/* Codebooks written with the weights. */
static void quantised_folders_bring_their_codebooks(void **state)
{
    (void)state;
    char out[80], path[128];
    qn_error error = {QN_OK, ""};
    snprintf(out, sizeof out, "%s/int8", folder);
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = "int8";
    o.kv = "fp8";
    assert_int_equal(qn_quantize(ctx, model_path, out, &o, NULL, &error), QN_E_ARGUMENT);
    o.kv = "cq2";
    o.calibration = text_path;
    o.exec.pool = pools[1];
    must(qn_quantize(ctx, model_path, out, &o, NULL, &error), &error, "quantize");
    snprintf(path, sizeof path, "%s/config.json", out);
    size_t size;
    char *config = read_all(path, &size);
    config[size - 1] = 0;
    assert_non_null(strstr(config, "quern_kv_cache"));
    free(config);
    qn_model_options options;
    qn_model_options_init(&options);
    options.kv = "cq2";
    qn_model *model = NULL;
    must(qn_model_open(ctx, out, &options, &model, &error), &error, "open");
    qn_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_plain_caches),
        cmocka_unit_test(bits_depend_on_nothing_else),
        cmocka_unit_test(truncation_keeps_bits_or_refuses),
        cmocka_unit_test(a_failed_evaluation_leaves_the_session),
        cmocka_unit_test(codebook_files_are_checked),
        cmocka_unit_test(bytes_are_those_kept),
        cmocka_unit_test(quantised_folders_bring_their_codebooks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
