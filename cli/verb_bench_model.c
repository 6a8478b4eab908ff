/* quern bench model: prompt processing and generation speed in llama-bench's
 * shape, and how far decoding is from the machine's memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

typedef struct speed {
    const char *kind; /* "pp" or "tg" */
    int64_t tokens;
    double *seconds;
    double mean, deviation; /* tokens a second */
} speed;

/* What a token must read, and what this machine and process did. */
typedef struct limits {
    double bytes_per_token; /* weights as the file stores them, without an embedding table of which one row is read,
                               and keys and values of the context in front of the tests */
    double read_gbps;       /* measured after the tests; 0: it could not be */
    double cache_bytes;     /* last-level caches */
    qn_model_kv kv;
    qn_model_activations activations;
    double load_seconds; /* opening and packing */
    double peak_rss;     /* bytes, before the ceiling's own memory; 0: not known */
} limits;

/* Ids that any vocabulary has, in a fixed order that repeats nothing for long. */
static int32_t id_at(int64_t i, int32_t vocab)
{
    return (int32_t)((uint64_t)i * 7919u % (uint64_t)(vocab > 2 ? vocab - 2 : 1)) + (vocab > 2);
}

/* Evaluate the ids of places first to before end. logits: of the last one, or of each where they come one by one; NULL:
 * not wanted. */
static int eval(cli *c, qn_session *session, int64_t first, int64_t end, int64_t batch, int32_t vocab, float *logits,
                int32_t *ids)
{
    qn_error error = {0};
    int code = 0;
    for (int64_t at = first; at < end && !code; at += batch) {
        int64_t n = end - at < batch ? end - at : batch;
        for (int64_t i = 0; i < n; i++)
            ids[i] = id_at(at + i, vocab);
        code = cli_interrupted() ? EXIT_SIGNAL
                                 : cli_check(c,
                                             qn_session_eval(session, ids, (int32_t)n, 0,
                                                             batch == 1 || at + n == end ? logits : NULL, &error),
                                             &error, PHASE_RUN);
    }
    return code;
}

/* The context in front of a test: kept from the pass before, where the cache allows that. */
static int rewind_to(cli *c, qn_session *session, int64_t depth, int32_t vocab, int32_t *ids)
{
    qn_error error = {0};
    if (qn_session_length(session) >= depth && qn_session_truncate(session, (int32_t)depth, &error) == QN_OK)
        return 0;
    int code = cli_check(c, qn_session_truncate(session, 0, &error), &error, PHASE_RUN);
    return code ? code : eval(c, session, 0, depth, c->value[OPT_BATCH].i, vocab, NULL, ids);
}

/* A test once. */
static int one_pass(cli *c, qn_session *session, const speed *t, int32_t vocab, float *logits, int32_t *ids,
                    double *seconds)
{
    const int64_t depth = c->value[OPT_DEPTH].i, batch = t->kind[0] == 'p' ? c->value[OPT_BATCH].i : 1;
    int code = rewind_to(c, session, depth, vocab, ids);
    const double start = cli_now();
    if (!code)
        code = eval(c, session, depth, depth + t->tokens, batch, vocab, logits, ids);
    *seconds = cli_now() - start;
    return code;
}

static int measure(cli *c, qn_session *session, speed *t, int32_t vocab, float *logits, int32_t *ids)
{
    int reps = (int)c->value[OPT_REPETITIONS].i;
    speed warm = *t;
    warm.tokens = t->tokens < 16 ? t->tokens : 16;
    double seconds;
    int code = one_pass(c, session, &warm, vocab, logits, ids, &seconds);
    for (int i = 0; i < reps && !code; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s%lld %d of %d", t->kind, (long long)t->tokens, i + 1, reps);
        cli_progress(c, (double)i / reps, text);
        code = one_pass(c, session, t, vocab, logits, ids, &t->seconds[i]);
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

static double bytes_per_token(cli *c, const qn_model_info *info)
{
    qn_checkpoint *checkpoint = NULL;
    qn_tensor_info tensor;
    qn_error error;
    double bytes = (double)info->tensor_bytes;
    if (info->tied_embeddings || qn_checkpoint_open(c->ctx, info->path, &checkpoint, &error) != QN_OK)
        return bytes;
    for (int32_t i = 0; qn_checkpoint_tensor(checkpoint, i, &tensor) == QN_OK; i++)
        if (strcmp(tensor.name, "token_embd.weight") == 0 || strstr(tensor.name, "embed_tokens"))
            bytes -= (double)tensor.bytes;
    qn_checkpoint_close(checkpoint);
    return bytes;
}

/* The read ceiling of the processor, with the caches gone past as in `bench kernels`. */
static void measure_processor(cli *c, limits *l)
{
    qn_meter *meter = NULL;
    qn_error error;
    size_t cache = 0;
    const size_t memory = bench_memory(c, &cache);
    l->cache_bytes = (double)cache;
    if (qn_meter_create(c->ctx, &c->exec, memory, &meter, &error) == QN_OK)
        (void)qn_meter_measure(meter, "read", c->plan.isa, &l->read_gbps, &error);
    qn_meter_destroy(meter);
}

static void measure_device(cli *c, limits *l)
{
    qn_device_info info;
    qn_error error;
    if (qn_device_get_info(c->ctx, &info, &error) == QN_OK)
        l->cache_bytes = (double)info.l2_bytes;
    (void)qn_device_ceiling(c->ctx, "read", &l->read_gbps, &error);
}

static void measure_limits(cli *c, const qn_model_info *info, limits *l)
{
    l->peak_rss = bench_peak_bytes();
    l->bytes_per_token = bytes_per_token(c, info) + (double)l->kv.bytes_per_token * (double)c->value[OPT_DEPTH].i;
    if (c->plan.backend == QN_BACKEND_CUDA)
        measure_device(c, l);
    else
        measure_processor(c, l);
    if (l->bytes_per_token < l->cache_bytes)
        cli_note(c, "note: the weights of a token fit the last-level cache; decoding may pass the read ceiling\n");
}

/* Tokens a second that reading the weights allows; 0: not known. */
static double decode_limit(const limits *l)
{
    return l->bytes_per_token > 0 ? 1e9 * l->read_gbps / l->bytes_per_token : 0;
}

static void print_limits(const limits *l, const speed *tests, int n)
{
    char bytes[32], peak[32];
    printf("\ndecode reads %s a token", cli_size_text(bytes, l->bytes_per_token));
    if (l->read_gbps > 0)
        printf("; at %.2f GB/s, measured now, that is at most %.2f t/s", l->read_gbps, decode_limit(l));
    for (int i = 0; i < n && l->read_gbps > 0; i++)
        if (tests[i].kind[0] == 't')
            printf(", of which %.1f %% are reached", 100 * tests[i].mean / decode_limit(l));
    printf("\nkeys and values %s, %s a token of context", l->kv.scheme,
           cli_size_text(bytes, (double)l->kv.bytes_per_token));
    if (l->activations.layers)
        printf("\nactivations of %d linear layers %s", l->activations.layers, l->activations.name);
    printf("\nload and packing %.2f s, peak memory %s\n", l->load_seconds, cli_size_text(peak, l->peak_rss));
}

static void print_md(const cli *c, const qn_model_info *info, const speed *tests, int n, const limits *l)
{
    char name[128];
    snprintf(name, sizeof name, "%s %.2fM %s", info->architecture, (double)info->parameters / 1e6, info->scheme);
    printf("| %-28s | %10s | %10s | %-7s | %7s | %15s | %20s |\n", "model", "size", "params", "backend", "threads",
           "test", "t/s");
    printf("| %.28s | %.9s: | %.9s: | %.7s | %.6s: | %.14s: | %.19s: |\n", "----------------------------", "---------",
           "---------", "-------", "------", "--------------", "-------------------");
    for (int i = 0; i < n; i++) {
        char test[64], rate[48];
        snprintf(test, sizeof test, "%s%lld", tests[i].kind, (long long)tests[i].tokens);
        if (c->value[OPT_DEPTH].i > 0)
            snprintf(test + strlen(test), sizeof test - strlen(test), " @ d%lld", (long long)c->value[OPT_DEPTH].i);
        snprintf(rate, sizeof rate, "%.2f \xC2\xB1 %.2f", tests[i].mean, tests[i].deviation);
        printf("| %-28s | %6.2f MiB | %8.2f M | %-7s | %7d | %15s | %21s |\n", name, (double)info->file_bytes / 1048576,
               (double)info->parameters / 1e6, backend_name(c), qn_exec_threads(&c->exec), test, rate);
    }
    print_limits(l, tests, n);
    printf("\nbuild: quern %s\n", qn_version());
}

static void print_json(const cli *c, const qn_model_info *info, const speed *tests, int n, const limits *l)
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
        json_int(&j, "n_depth", c->value[OPT_DEPTH].i);
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
        json_number(&j, "bytes_per_token", l->bytes_per_token, 15);
        json_number(&j, "read_gbps", l->read_gbps, 6);
        json_number(&j, "decode_roofline_pct",
                    tests[i].kind[0] == 't' && decode_limit(l) > 0 ? 100 * tests[i].mean / decode_limit(l) : NAN, 5);
        json_text(&j, "activations", l->activations.name);
        json_text(&j, "kv", l->kv.scheme);
        json_int(&j, "kv_bytes_per_token", (int64_t)l->kv.bytes_per_token);
        json_number(&j, "load_seconds", l->load_seconds, 5);
        json_number(&j, "peak_rss_bytes", l->peak_rss, 15);
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
    most += c->value[OPT_DEPTH].i;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_model_info info;
    float *logits = NULL;
    limits l = {0};
    int32_t *ids = cli_alloc((size_t)c->value[OPT_BATCH].i, sizeof *ids);
    const double start = cli_now();
    int code = ids ? cli_open_model(c, c->operands[0], cli_asked_form(c), &model) : cli_memory(c, "the token ids");
    l.load_seconds = cli_now() - start;
    if (!code)
        code = cli_open_session(c, model, most, c->value[OPT_BATCH].i, &session);
    if (!code) {
        qn_model_get_info(model, &info);
        qn_model_get_kv(model, &l.kv);
        qn_model_get_activations(model, &l.activations);
        logits = cli_alloc((size_t)info.vocab_size, sizeof *logits);
        code = logits ? 0 : cli_memory(c, "the logits");
    }
    for (int i = 0; i < n && !code; i++) {
        tests[i].seconds = cli_alloc((size_t)c->value[OPT_REPETITIONS].i, sizeof(double));
        code = tests[i].seconds ? measure(c, session, &tests[i], info.vocab_size, logits, ids)
                                : cli_memory(c, "the times");
    }
    int as_json = c->value[OPT_JSON].set || strcmp(c->value[OPT_OUTPUT_FORMAT].s, "json") == 0;
    if (!code)
        measure_limits(c, &info, &l);
    if (!code && as_json)
        print_json(c, &info, tests, n, &l);
    else if (!code)
        print_md(c, &info, tests, n, &l);
    for (int i = 0; i < n; i++)
        free(tests[i].seconds);
    free(logits);
    free(ids);
    qn_session_destroy(session);
    qn_model_close(model);
    return code;
}
