/* quern bench model: prompt processing and generation speed in llama-bench's shape. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct speed {
    const char *kind; /* "pp" or "tg" */
    int64_t tokens;
    double *seconds;
    double mean, deviation; /* tokens a second */
} speed;

/* Ids that any vocabulary has, in a fixed order that repeats nothing for long. */
static int32_t id_at(int64_t i, int32_t vocab)
{
    return (int32_t)((uint64_t)i * 7919u % (uint64_t)(vocab > 2 ? vocab - 2 : 1)) + (vocab > 2);
}

static int one_pass(cli *c, qn_session *session, const speed *t, int32_t vocab, float *logits, int32_t *ids)
{
    qn_error error = {0};
    int64_t batch = t->kind[0] == 'p' ? c->value[OPT_BATCH].i : 1;
    int code = cli_check(c, qn_session_truncate(session, 0, &error), &error, PHASE_RUN);
    for (int64_t at = 0; at < t->tokens && !code; at += batch) {
        int64_t n = t->tokens - at < batch ? t->tokens - at : batch;
        for (int64_t i = 0; i < n; i++)
            ids[i] = id_at(at + i, vocab);
        code = cli_interrupted() ? EXIT_SIGNAL
                                 : cli_check(c,
                                             qn_session_eval(session, ids, (int32_t)n, 0,
                                                             batch == 1 || at + n == t->tokens ? logits : NULL, &error),
                                             &error, PHASE_RUN);
    }
    return code;
}

static int measure(cli *c, qn_session *session, speed *t, int32_t vocab, float *logits, int32_t *ids)
{
    int reps = (int)c->value[OPT_REPETITIONS].i;
    speed warm = *t;
    warm.tokens = t->tokens < 16 ? t->tokens : 16;
    int code = one_pass(c, session, &warm, vocab, logits, ids);
    for (int i = 0; i < reps && !code; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%lld %d of %d", t->kind, (long long)t->tokens, i + 1, reps);
        cli_progress(c, (double)i / reps, text);
        double start = cli_now();
        code = one_pass(c, session, t, vocab, logits, ids);
        t->seconds[i] = cli_now() - start;
    }
    cli_progress_end(c);
    double sum = 0, squares = 0;
    for (int i = 0; i < reps && !code; i++)
        sum += (double)t->tokens / t->seconds[i];
    t->mean = sum / reps;
    for (int i = 0; i < reps && !code; i++)
        squares += pow((double)t->tokens / t->seconds[i] - t->mean, 2);
    t->deviation = reps > 1 ? sqrt(squares / (reps - 1)) : 0;
    return code;
}

static const char *backend_name(const cli *c)
{
    const char *name = c->value[OPT_BACKEND].s;
    return strcmp(name, "auto") == 0 ? "cpu" : name;
}

static void print_md(const cli *c, const qn_model_info *info, const speed *tests, int n)
{
    char name[128];
    snprintf(name, sizeof name, "%s %.2fM %s", info->architecture, (double)info->parameters / 1e6, info->scheme);
    printf("| %-28s | %10s | %10s | %-7s | %7s | %15s | %20s |\n", "model", "size", "params", "backend", "threads",
           "test", "t/s");
    printf("| %.28s | %.9s: | %.9s: | %.7s | %.6s: | %.14s: | %.19s: |\n", "----------------------------", "---------",
           "---------", "-------", "------", "--------------", "-------------------");
    for (int i = 0; i < n; i++) {
        char test[32], rate[48];
        snprintf(test, sizeof test, "%s%lld", tests[i].kind, (long long)tests[i].tokens);
        snprintf(rate, sizeof rate, "%.2f \xC2\xB1 %.2f", tests[i].mean, tests[i].deviation);
        printf("| %-28s | %6.2f MiB | %8.2f M | %-7s | %7d | %15s | %21s |\n", name, (double)info->file_bytes / 1048576,
               (double)info->parameters / 1e6, backend_name(c), qn_exec_threads(&c->exec), test, rate);
    }
    printf("\nbuild: quern %s\n", qn_version());
}

static void print_json(const cli *c, const qn_model_info *info, const speed *tests, int n)
{
    int reps = (int)c->value[OPT_REPETITIONS].i;
    json j = json_begin(stdout);
    json_open(&j, NULL, '[');
    for (int i = 0; i < n; i++) {
        double mean = 0, squares = 0;
        for (int r = 0; r < reps; r++)
            mean += tests[i].seconds[r] / reps;
        for (int r = 0; r < reps; r++)
            squares += pow(tests[i].seconds[r] - mean, 2);
        json_open(&j, NULL, '{');
        json_text(&j, "build_commit", qn_version());
        json_text(&j, "backends", backend_name(c));
        json_text(&j, "model_filename", info->path);
        json_text(&j, "model_type", info->scheme);
        json_int(&j, "model_size", (int64_t)info->file_bytes);
        json_int(&j, "model_n_params", info->parameters);
        json_int(&j, "n_batch", c->value[OPT_BATCH].i);
        json_int(&j, "n_threads", qn_exec_threads(&c->exec));
        json_int(&j, "n_prompt", tests[i].kind[0] == 'p' ? tests[i].tokens : 0);
        json_int(&j, "n_gen", tests[i].kind[0] == 't' ? tests[i].tokens : 0);
        json_int(&j, "n_depth", 0);
        json_number(&j, "avg_ns", floor(1e9 * mean), 15);
        json_number(&j, "stddev_ns", reps > 1 ? floor(1e9 * sqrt(squares / (reps - 1))) : 0, 15);
        json_number(&j, "avg_ts", tests[i].mean, 8);
        json_number(&j, "stddev_ts", tests[i].deviation, 8);
        json_open(&j, "samples_ns", '[');
        for (int r = 0; r < reps; r++)
            json_number(&j, NULL, floor(1e9 * tests[i].seconds[r]), 15);
        json_close(&j, ']');
        json_open(&j, "samples_ts", '[');
        for (int r = 0; r < reps; r++)
            json_number(&j, NULL, (double)tests[i].tokens / tests[i].seconds[r], 8);
        json_close(&j, ']');
        json_close(&j, '}');
    }
    json_close(&j, ']');
}

int verb_bench_model(cli *c)
{
    speed tests[2] = {{.kind = "pp", .tokens = c->value[OPT_PROMPT_TOKENS].i},
                      {.kind = "tg", .tokens = c->value[OPT_GEN_TOKENS].i}};
    int n = 0;
    for (int i = 0; i < 2; i++)
        if (tests[i].tokens > 0)
            tests[n++] = tests[i];
    if (n == 0)
        return cli_fail(c, EXIT_USAGE, "-p and -n are both 0: nothing to measure");
    int64_t most = tests[0].tokens;
    if (n == 2 && tests[1].tokens > most)
        most = tests[1].tokens;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_info info;
    float *logits = NULL;
    int32_t *ids = cli_alloc((size_t)c->value[OPT_BATCH].i, sizeof *ids);
    int code = ids ? cli_open_model(c, c->operands[0], &model) : cli_memory(c, "the token ids");
    if (!code)
        code = cli_open_session(c, model, most, c->value[OPT_BATCH].i, &session);
    if (!code) {
        qn_model_get_info(model, &info);
        logits = cli_alloc((size_t)info.vocab_size, sizeof *logits);
        code = logits ? 0 : cli_memory(c, "the logits");
    }
    for (int i = 0; i < n && !code; i++) {
        tests[i].seconds = cli_alloc((size_t)c->value[OPT_REPETITIONS].i, sizeof(double));
        code = tests[i].seconds ? measure(c, session, &tests[i], info.vocab_size, logits, ids)
                                : cli_memory(c, "the times");
    }
    int as_json = c->value[OPT_JSON].set || strcmp(c->value[OPT_OUTPUT_FORMAT].s, "json") == 0;
    if (!code && as_json)
        print_json(c, &info, tests, n);
    else if (!code)
        print_md(c, &info, tests, n);
    for (int i = 0; i < n; i++)
        free(tests[i].seconds);
    free(logits);
    free(ids);
    qn_session_destroy(session);
    qn_model_close(model);
    return code;
}
