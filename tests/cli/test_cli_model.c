/* The verbs that need a real model; its path is in QN_TEST_MODEL. The greedy
 * text may not depend on threads or on how the prompt is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/process.h"

static char folder[64];
static const char *model;

static int setup(void **state)
{
    (void)state;
    return make_folder(folder);
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

static outcome run_model(const char *verb, const char *const *rest)
{
    const char *words[40] = {verb, model};
    int n = 2;
    if (strcmp(verb, "bench model") == 0) {
        words[0] = "bench";
        words[1] = "model";
        words[n++] = model;
    }
    for (int i = 0; rest[i] && n < 39; i++)
        words[n++] = rest[i];
    outcome r = run_command(folder, words);
    if (r.code != 0)
        printf("quern %s: code %d: %s\n", verb, r.code, r.err);
    return r;
}

static void greedy_text_depends_on_nothing_but_the_prompt(void **state)
{
    (void)state;
    static const char *const variants[][2] = {{"1", "512"}, {"2", "512"}, {"2", "1"}};
    const char *prompt = "The history of the grain mill begins with two flat stones, one of which";
    outcome first = {.code = -1};
    for (int i = 0; i < 3; i++) {
        const char *const rest[] = {"-p",        prompt,         "--raw",   "-n",           "64", "--greedy",
                                    "--threads", variants[i][0], "--batch", variants[i][1], NULL};
        outcome r = run_model("run", rest);
        assert_int_equal(r.code, 0);
        assert_true(r.out_bytes > 20);
        if (i == 0) {
            first = r;
            continue;
        }
        assert_string_equal(first.out, r.out);
        free_outcome(&r);
    }
    free_outcome(&first);
}

static void a_seed_gives_the_same_text_and_is_shown(void **state)
{
    (void)state;
    const char *const rest[] = {"-p", "Once upon a time", "--raw", "-n", "6", "--seed", "7", NULL};
    outcome a = run_model("run", rest), b = run_model("run", rest);
    assert_int_equal(a.code, 0);
    assert_string_equal(a.out, b.out);
    assert_non_null(strstr(a.err, "seed 7\n"));
    free_outcome(&a);
    free_outcome(&b);
}

static void a_stop_text_ends_before_itself(void **state)
{
    (void)state;
    const char *const rest[] = {"-p", "one two three four five six", "--raw", "-n", "24", "--greedy", NULL};
    outcome whole = run_model("run", rest);
    assert_int_equal(whole.code, 0);
    assert_true(whole.out_bytes > 12);
    char stop[6];
    memcpy(stop, whole.out + 6, 5); /* five bytes of the text itself, across tokens */
    stop[5] = 0;
    const char *const stopped[] = {"-p", "one two three four five six", "--raw", "-n", "24", "--greedy", "--stop", stop,
                                   NULL};
    outcome r = run_model("run", stopped);
    assert_int_equal(r.code, 0);
    assert_null(strstr(r.out, stop));
    assert_int_equal(r.out_bytes - 1, (size_t)(strstr(whole.out, stop) - whole.out));
    free_outcome(&whole);
    free_outcome(&r);
}

/* What a model has no room for is an option that cannot be: its sentence, and the code of wrong options. */
static void a_context_beyond_the_model_is_refused(void **state)
{
    (void)state;
    const char *const rest[] = {"-p", "one", "--ctx-size", "100000", NULL};
    outcome r = run_model("run", rest);
    assert_int_equal(r.code, 2);
    assert_non_null(strstr(r.err, "context length 100000 is beyond the model's 8192\n"));
    assert_int_equal(r.out_bytes, 0);
    free_outcome(&r);
}

static void ids_come_back_as_the_text(void **state)
{
    (void)state;
    const char *text = "Two mills: na\xC3\xAFve \xF0\x9F\x99\x82 caf\xC3\xA9  and\ttabs";
    const char *const rest[] = {"-p", text, NULL};
    outcome ids = run_model("tokenize", rest);
    assert_int_equal(ids.code, 0);
    ids.out[ids.out_bytes - 1] = 0;
    const char *const back[] = {"--ids", ids.out, NULL};
    outcome r = run_model("detokenize", back);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.out, text);
    free_outcome(&ids);
    free_outcome(&r);
}

static void write_text(char path[128])
{
    snprintf(path, 128, "%s/text", folder);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    for (int i = 0; i < 12; i++)
        fprintf(out, "Line %d: the miller grinds the grain between two stones and sells the flour.\n", i);
    fclose(out);
}

/* A model against itself: no divergence at all, and the ratio is one. */
static void a_model_agrees_with_itself(void **state)
{
    (void)state;
    char path[128];
    write_text(path);
    const char *const rest[] = {"-f", path, "--reference", model, "--ctx", "64", "--max-tokens", "128", "--json", NULL};
    outcome r = run_model("perplexity", rest);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\"ppl_ratio\":1,"));
    assert_non_null(strstr(r.out, "\"kl_max\":"));
    assert_non_null(strstr(r.out, "\"top1\":1}"));
    free_outcome(&r);
}

/* MODEL+SCHEME keeps keys and values so; what is no scheme belongs to the name of the file. */
static void models_are_compared_with_caches_of_their_own(void **state)
{
    (void)state;
    char path[128], coded[1024], absent[1024], both[1024];
    write_text(path);
    snprintf(coded, sizeof coded, "%s+fp8", model);
    snprintf(absent, sizeof absent, "%s+fp9", model);
    const char *const rest[] = {coded, "-f", path, "--ctx", "16", "--max-tokens", "16", "-n", "2", "--json", NULL};
    outcome r = run_model("compare", rest);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\"kv\":\"f32\""));
    assert_non_null(strstr(r.out, "+fp8\",\"activations\":\"stored\",\"kv\":\"fp8\""));
    free_outcome(&r);
    snprintf(both, sizeof both, "%s+int8+fp8", model); /* no layer of this model can have its rows in INT8 */
    const char *const changed[] = {both, "-f", path, "--ctx", "16", "--max-tokens", "16", "-n", "2", "--json", NULL};
    r = run_model("compare", changed);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "+fp8\",\"activations\":\"stored\",\"kv\":\"fp8\""));
    assert_non_null(strstr(r.err, "int8 activations change nothing"));
    free_outcome(&r);
    const char *const wrong[] = {absent, "-f", path, NULL};
    r = run_model("compare", wrong);
    assert_int_equal(r.code, 3);
    assert_non_null(strstr(r.err, "+fp9"));
    free_outcome(&r);
}

/* Interrupted early or late: exit code 130 and nothing under the final name, or done and whole. */
static void an_interrupted_quantize_leaves_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char line[1024];
        snprintf(line, sizeof line,
                 "'%s' quantize '%s' %s/copy --weights %s >%s/log 2>&1 & p=$!; sleep 0.%d; kill -INT $p 2>/dev/null; "
                 "wait $p; c=$?; if [ $c = 130 ]; then [ \"$(ls -A %s | grep -c copy)\" = 0 ]; "
                 "else [ $c = 0 ] && [ -f %s/copy/config.json ] && rm -r %s/copy; fi",
                 getenv("QN_CLI"), model, folder, i ? "bf16" : "int8", folder, 3 + 3 * i, folder, folder, folder);
        assert_int_equal(system(line), 0);
    }
}

/* The table's first columns are llama-bench's; the record says how far decoding is from the memory. */
static void a_bench_of_the_model_tells_its_limits(void **state)
{
    (void)state;
    const char *const table[] = {"-p", "8", "-n", "4", "-r", "1", "--memory", "8", "--quiet", NULL};
    outcome r = run_model("bench model", table);
    assert_int_equal(r.code, 0);
    assert_int_equal(strncmp(r.out, "| model ", 8), 0);
    assert_non_null(strstr(r.out, " pp8 |"));
    assert_non_null(strstr(r.out, " tg4 |"));
    assert_non_null(strstr(r.out, "decode reads "));
    assert_non_null(strstr(r.out, "peak memory "));
    free_outcome(&r);
    const char *const json[] = {"-p", "8", "-n", "4", "-r", "1", "--memory", "8", "--quiet", "-o", "json", NULL};
    r = run_model("bench model", json);
    assert_int_equal(r.code, 0);
    static const char *const fields[] = {
        "\"avg_ts\":",       "\"bytes_per_token\":", "\"read_gbps\":", "\"decode_roofline_pct\":",
        "\"load_seconds\":", "\"peak_rss_bytes\":"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_non_null(strstr(r.out, fields[i]));
    free_outcome(&r);
}

/* A context in front of the tests is part of what a token reads. */
static void a_bench_of_the_model_goes_deep(void **state)
{
    (void)state;
    double bytes[2];
    for (int deep = 0; deep < 2; deep++) {
        const char *const words[] = {"-p",       "8", "-n",      "4",    "-r",  "2",  "-d",   deep ? "40" : "0",
                                     "--memory", "8", "--quiet", "--kv", "fp8", "-o", "json", NULL};
        outcome r = run_model("bench model", words);
        assert_int_equal(r.code, 0);
        assert_non_null(strstr(r.out, deep ? "\"n_depth\":40" : "\"n_depth\":0"));
        const char *const at = strstr(r.out, "\"bytes_per_token\":"), *const kv =
                                                                          strstr(r.out, "\"kv_bytes_per_token\":");
        assert_non_null(at);
        assert_non_null(kv);
        bytes[deep] = strtod(strchr(at, ':') + 1, NULL) - (deep ? 40 * strtod(strchr(kv, ':') + 1, NULL) : 0);
        free_outcome(&r);
    }
    assert_true(bytes[0] == bytes[1]);
    const char *const table[] = {"-p", "8", "-n", "0", "-r", "1", "-d", "20", "--memory", "8", "--quiet", NULL};
    outcome r = run_model("bench model", table);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, " pp8 @ d20 |"));
    free_outcome(&r);
}

int main(void)
{
    model = getenv("QN_TEST_MODEL");
    if (!getenv("QN_CLI")) {
        printf("QN_CLI does not name the command: nothing can be tested\n");
        return 1;
    }
    if (!model || access(model, R_OK) != 0) {
        printf("skipped: QN_TEST_MODEL does not name a readable model (%s)\n", model ? model : "not set");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_text_depends_on_nothing_but_the_prompt),
                                       cmocka_unit_test(a_seed_gives_the_same_text_and_is_shown),
                                       cmocka_unit_test(a_stop_text_ends_before_itself),
                                       cmocka_unit_test(a_context_beyond_the_model_is_refused),
                                       cmocka_unit_test(ids_come_back_as_the_text),
                                       cmocka_unit_test(a_model_agrees_with_itself),
                                       cmocka_unit_test(models_are_compared_with_caches_of_their_own),
                                       cmocka_unit_test(a_bench_of_the_model_tells_its_limits),
                                       cmocka_unit_test(a_bench_of_the_model_goes_deep),
                                       cmocka_unit_test(an_interrupted_quantize_leaves_nothing)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
