/* Scaled RoPE as files say it: config.json and GGUF metadata, good and bad, into factors of frequencies and a
 * magnitude, and back into config.json. Expected factors are transformers' (modeling_rope_utils.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "io/checkpoint_internal.h"
#include "io/io_files.h"

#define LLAMA31                                                                                                        \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,"       \
    "\"rope_type\":\"llama3\""

/* A config.json with heads of `size` elements, 131072 tokens and further members. */
static qn_status read_config(int size, const char *members, qn_hparams *h, qn_error *error)
{
    char text[4096];
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
             "\"head_dim\":%d,\"intermediate_size\":8,\"vocab_size\":8,\"max_position_embeddings\":131072,%s}",
             2 * size, size, members);
    json_t *config = NULL;
    assert_int_equal(qn_json_parse(text, strlen(text), "it", &config, error), QN_OK);
    const qn_status status = qn_hparams_from_config(config, h, error);
    json_decref(config);
    return status;
}

static void near_to(const qn_hparams *h, int pair, double want)
{
    if (!(fabs((double)h->rope_factors[pair] - want) <= 1e-6 * want)) {
        fail_msg("%s: pair %d is divided by %.9g, expected %.9g", h->rope_type, pair, (double)h->rope_factors[pair],
                 want);
    }
}

static void factors_are_those_of_transformers(void **state)
{
    (void)state;
    static const struct {
        int size;
        const char *members, *type;
        double magnitude;
        struct {
            int pair;
            double factor;
        } pairs[8];
    } cases[] = {
        {128,
         "\"rope_theta\":500000.0,\"rope_scaling\":{" LLAMA31 "}",
         "llama3",
         1.0,
         {{0, 1}, {28, 1}, {29, 1.207484}, {31, 2.026313}, {33, 3.684254}, {34, 5.257327}, {35, 8}, {63, 8}}},
        {64,
         "\"rope_parameters\":{\"rope_theta\":500000.0,\"factor\":32.0,\"low_freq_factor\":1.0,"
         "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\"}",
         "llama3",
         1.0,
         {{0, 1}, {14, 1}, {15, 1.651329}, {16, 3.292263}, {17, 9.666731}, {18, 32}, {30, 32}, {31, 32}}},
        {128,
         "\"rope_theta\":1000000.0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
         "\"original_max_position_embeddings\":32768}",
         "yarn",
         1.138629436111989,
         {{0, 1}, {22, 1}, {23, 1}, {24, 1.0461538}, {35, 2.125}, {38, 2.9565217}, {39, 3.4}, {63, 4}}},
        {8,
         "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}",
         "linear",
         1.0,
         {{0, 2.5}, {1, 2.5}, {2, 2.5}, {3, 2.5}, {0, 2.5}, {0, 2.5}, {0, 2.5}, {0, 2.5}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_hparams h;
        qn_error error = {QN_OK, ""};
        if (read_config(cases[i].size, cases[i].members, &h, &error) != QN_OK) {
            fail_msg("%s: %s", cases[i].members, error.text);
        }
        assert_string_equal(h.rope_type, cases[i].type);
        assert_int_equal(h.rope_scaled, 1);
        assert_true(fabs((double)h.rope_magnitude - cases[i].magnitude) < 1e-6);
        for (int p = 0; p < 8; p++) {
            near_to(&h, cases[i].pairs[p].pair, cases[i].pairs[p].factor);
        }
    }
}

/* Plain RoPE in all its spellings; which of two members counts; where a context ends. */
static void plain_ones_stay_plain(void **state)
{
    (void)state;
    static const struct {
        const char *members;
        float theta;
    } cases[] = {
        {"\"rope_scaling\":null", 10000.0f},
        {"\"rope_theta\":5e5,\"rope_scaling\":{}", 5e5f},
        {"\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":7e4}", 7e4f},
        {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}", 1e6f},
        {"\"rope_theta\":3e4,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}", 3e4f},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0}", 10000.0f},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":1.0}", 10000.0f},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,1]}",
         10000.0f},
        {"\"rope_theta\":2e4,\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_parameters\":{" LLAMA31 "}", 2e4f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_hparams h;
        qn_error error = {QN_OK, ""};
        if (read_config(8, cases[i].members, &h, &error) != QN_OK) {
            fail_msg("%s: %s", cases[i].members, error.text);
        }
        assert_string_equal(h.rope_type, "default");
        assert_int_equal(h.rope_scaled, 0);
        assert_true(h.rope_magnitude == 1.0f && h.rope_theta == cases[i].theta);
        assert_int_equal(h.context_length, 131072);
    }
    static const char *const longropes[] = {
        "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,2,2],\"long_factor\":[1,2,3,4],"
        "\"original_max_position_embeddings\":4096}",
        "\"original_max_position_embeddings\":4096,"
        "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,2,2],\"long_factor\":[1,2,3,4]}"};
    for (int i = 0; i < 2; i++) {
        qn_hparams h;
        qn_error error = {QN_OK, ""};
        assert_int_equal(read_config(8, longropes[i], &h, &error), QN_OK);
        assert_int_equal(h.context_length, 4096);
        near_to(&h, 2, 2.0);
        assert_true(fabs((double)h.rope_magnitude - sqrt(1.0 + log(32.0) / log(4096.0))) < 1e-6);
    }
}

static void one_sentence(qn_status status, const qn_error *error, const char *what, const char *words)
{
    if ((status != QN_E_FILE && status != QN_E_UNSUPPORTED) || !strstr(error->text, words) ||
        strchr(error->text, '\n')) {
        fail_msg("%s: %s '%s' does not say '%s'", what, qn_status_name(status), error->text, words);
    }
}

static void bad_ones_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *scaling, *words;
    } cases[] = {
        {"7", "rope_scaling: it is not an object"},
        {"[]", "it is not an object"},
        {"{\"type\":3}", "rope_scaling: type is not a string"},
        {"{\"rope_type\":\"su\"}",
         "type su is not supported, expected default, linear, llama3, yarn, longrope or dynamic"},
        {"{\"factor\":2.0}", "a factor without a rope_type"},
        {"{\"rope_type\":\"llama3\",\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5 is not supported"},
        {"{\"rope_type\":\"linear\"}", "rope_scaling: factor is missing"},
        {"{\"rope_type\":\"linear\",\"factor\":0}", "factor is 0, expected"},
        {"{\"rope_type\":\"linear\",\"factor\":-2}", "factor is -2, expected"},
        {"{\"rope_type\":\"linear\",\"factor\":\"2\"}", "factor is not a number"},
        {"{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":0}", "rope_theta is 0, expected"},
        {"{\"rope_type\":\"llama3\"}", "factor is missing"},
        {"{\"rope_type\":\"llama3\",\"factor\":0.5}", "factor is 0.5, expected 1 to"},
        {"{\"rope_type\":\"llama3\",\"factor\":8}", "low_freq_factor is missing"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}", "high_freq_factor is missing"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}",
         "original_max_position_embeddings is missing"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":8192}",
         "low_freq_factor 4 is not below high_freq_factor 4"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":0,\"high_freq_factor\":4}",
         "low_freq_factor is 0"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":0}",
         "original_max_position_embeddings is 0, expected 1 to"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":8192.5}",
         "original_max_position_embeddings is not"},
        {"{\"rope_type\":\"yarn\"}", "factor is missing"},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":1,\"beta_slow\":32}", "beta_fast 1 is below beta_slow 32"},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"rope_theta\":1}", "yarn needs a rope_theta above 1"},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":0}", "truncate is neither true nor false"},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":0}", "attention_factor is 0, expected"},
        {"{\"rope_type\":\"longrope\",\"long_factor\":[1,1,1,1]}", "short_factor is no list of 4 numbers"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1],\"long_factor\":[1,1,1,1]}",
         "short_factor is no list of 4"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,\"1\"],\"long_factor\":[1,1,1,1]}",
         "short_factor is no list"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1,0,1,1],\"long_factor\":[1,1,1,1]}",
         "the frequency of pair 1 is divided by 0, expected"},
    };
    qn_hparams h;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[600];
        qn_error error = {QN_OK, ""};
        snprintf(members, sizeof members, "\"rope_scaling\":%s", cases[i].scaling);
        one_sentence(read_config(8, members, &h, &error), &error, members, cases[i].words);
    }
    qn_error error = {QN_OK, ""};
    one_sentence(read_config(2048, "\"rope_scaling\":{" LLAMA31 "}", &h, &error), &error, "large heads",
                 "heads of 2048 elements is not supported");
}

/* ---- GGUF ---- */

static bytes file;

static qn_status read_gguf(qn_hparams *h, qn_error *error)
{
    qn_ctx *ctx = NULL;
    qn_gguf gguf;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
    char *copy = NULL;
    assert_int_equal(posix_memalign((void **)&copy, 64, file.size), 0);
    memcpy(copy, file.data, file.size);
    qn_status status = qn_gguf_parse(ctx, copy, file.size, "it", &gguf, error);
    if (status == QN_OK) {
        status = qn_hparams_from_gguf(&gguf, h, error);
        qn_gguf_free(&gguf);
    }
    free(copy);
    qn_ctx_destroy(ctx);
    return status;
}

static void clear_rope(void)
{
    memset(&tiny_rope, 0, sizeof tiny_rope);
}

static void say(const char *key, float value)
{
    tiny_rope.values[tiny_rope.count].key = key;
    tiny_rope.values[tiny_rope.count++].value = value;
}

/* What a file says is what its config.json says, factor for factor. */
static void read_back(const char *type, const char *written)
{
    qn_hparams h, again;
    qn_error error = {QN_OK, ""};
    if (read_gguf(&h, &error) != QN_OK) {
        fail_msg("%s: %s", type, error.text);
    }
    assert_string_equal(h.rope_type, type);
    json_t *config = qn_hparams_to_config(&h);
    assert_non_null(config);
    const json_t *rope = json_object_get(config, "rope_scaling");
    const char *name = json_string_value(json_object_get(rope, "rope_type"));
    assert_string_equal(name ? name : "none", written);
    if (qn_hparams_from_config(config, &again, &error) != QN_OK) {
        fail_msg("%s: %s", type, error.text);
    }
    assert_int_equal(again.rope_scaled, h.rope_scaled);
    assert_int_equal(again.context_length, h.context_length);
    assert_true(again.rope_theta == h.rope_theta && again.rope_magnitude == h.rope_magnitude);
    if (h.rope_scaled) {
        assert_memory_equal(again.rope_factors, h.rope_factors, TINY_DIM / 2 * sizeof(float));
    }
    json_decref(config);
}

static void gguf_says_the_same(void **state)
{
    (void)state;
    enum { PAIRS = TINY_DIM / 2 };
    qn_hparams h;
    qn_error error = {QN_OK, ""};
    clear_rope();
    read_back("default", "none");
    tiny_rope.type = "none";
    say("llama.rope.scaling.factor", 4.0f);
    read_back("default", "none");
    tiny_rope.type = NULL; /* llama.cpp takes this for linear */
    read_back("linear", "linear");
    clear_rope();
    say("llama.rope.scale_linear", 2.5f);
    read_back("linear", "linear");
    assert_int_equal(read_gguf(&h, &error), QN_OK);
    near_to(&h, PAIRS - 1, 2.5);
    /* yarn has no other form that keeps a magnitude and what a table does */
    clear_rope();
    tiny_rope.type = "yarn";
    say("llama.rope.scaling.factor", 4.0f);
    say("llama.rope.scaling.original_context_length", 32.0f);
    say("llama.rope.scaling.attn_factor", 0.9f);
    read_back("yarn", "longrope");
    assert_int_equal(read_gguf(&h, &error), QN_OK);
    assert_true(fabs((double)h.rope_magnitude - 0.9 * (0.1 * log(4.0) + 1.0)) < 1e-6);
    near_to(&h, PAIRS - 1, 4.0);
    /* llama3's factors as a converter makes them: in f32 */
    float table[PAIRS + 1];
    clear_rope();
    tiny_rope.factors = table;
    tiny_rope.pairs = PAIRS;
    for (int i = 0; i < PAIRS; i++) {
        const float length = 6.2831853f * powf(10000.0f, (float)(2 * i) / TINY_DIM);
        const float smooth = (8192.0f / length - 1.0f) / 3.0f;
        table[i] = length < 2048.0f ? 1.0f : length > 8192.0f ? 8.0f : 1.0f / ((1.0f - smooth) / 8.0f + smooth);
    }
    read_back("llama3", "llama3");
    assert_int_equal(read_gguf(&h, &error), QN_OK);
    assert_true(h.rope_factors[PAIRS - 1] == 8.0f && h.rope_factors[0] == 1.0f);
    table[1] = 1.5f;
    read_back("factors", "longrope");
    say("llama.rope.scaling.factor", 2.0f);
    read_back("factors", "longrope");
    assert_int_equal(read_gguf(&h, &error), QN_OK);
    assert_true(h.rope_factors[1] == 3.0f && h.rope_factors[PAIRS - 1] == 16.0f);
    clear_rope();
    for (int i = 0; i < PAIRS; i++) {
        table[i] = 1.0f;
    }
    tiny_rope.factors = table;
    tiny_rope.pairs = PAIRS;
    read_back("default", "none");
    /* refused */
    table[3] = 0.0f;
    one_sentence(read_gguf(&h, &error), &error, "a factor of 0", "pair 3 is divided by 0");
    table[3] = NAN;
    one_sentence(read_gguf(&h, &error), &error, "a NaN", "pair 3 is divided by nan");
    table[3] = 1.0f;
    tiny_rope.pairs = PAIRS + 1;
    one_sentence(read_gguf(&h, &error), &error, "a long table", "rope_freqs.weight is no list of 8 F32 factors");
    clear_rope();
    tiny_rope.type = "longrope";
    one_sentence(read_gguf(&h, &error), &error, "longrope", "RoPE scaling of type longrope is not supported");
    tiny_rope.type = "yarn";
    say("llama.rope.scaling.yarn_ext_factor", 0.0f);
    one_sentence(read_gguf(&h, &error), &error, "ext_factor", "yarn_ext_factor is 0, only 1 is supported");
    clear_rope();
    say("llama.rope.scaling.factor", -1.0f);
    one_sentence(read_gguf(&h, &error), &error, "a negative factor", "llama.rope.scaling.factor");
    clear_rope();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_are_those_of_transformers),
        cmocka_unit_test(plain_ones_stay_plain),
        cmocka_unit_test(bad_ones_are_refused),
        cmocka_unit_test(gguf_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
