/* quern compare: a table of models against a reference. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "score.h"

/* What a model showed besides its score. */
typedef struct sample {
    char *text; /* one line; open_memstream's */
    size_t bytes;
    double decode_rate;
} sample;

static const char default_prompt[] = "The capital of France is";

static const char *backend_name(const cli *c)
{
    const char *name = c->value[OPT_BACKEND].s;
    return strcmp(name, "auto") == 0 ? "cpu" : name; /* auto means the CPU as long as models run there only */
}

/* Greedy text after the prompt, in a session of its own. */
static int take_sample(cli *c, const scored *s, const char *prompt, sample *out)
{
    const qn_tokenizer *tokenizer = qn_model_tokenizer(s->model);
    qn_tokenizer_info info;
    qn_session *session = NULL;
    qn_sampler *sampler = NULL;
    qn_error error = {0};
    char *rendered = NULL;
    int32_t *ids = NULL;
    size_t count = 0, length = 0;
    int64_t predict = c->value[OPT_SAMPLE].i;
    qn_tokenizer_get_info(tokenizer, &info);
    int code = 0;
    if (c->value[OPT_RAW].set || !info.chat_template) {
        code = cli_tokenize(c, tokenizer, prompt, strlen(prompt), QN_ENCODE_ADD_SPECIAL, &ids, &count);
    } else {
        qn_chat_message message = {"user", prompt};
        code = cli_render_chat(c, tokenizer, &message, 1, &rendered, &length);
        if (!code)
            code = cli_tokenize(c, tokenizer, rendered, length, QN_ENCODE_PARSE_SPECIAL, &ids, &count);
    }
    qn_sampler_options options;
    qn_sampler_options_init(&options);
    options.temperature = 0;
    if (!code)
        code = cli_open_session(c, s->model, (int64_t)count + predict + 1, c->value[OPT_BATCH].i, &session);
    if (!code)
        code =
            cli_check(c, qn_sampler_create(c->ctx, &options, s->info.vocab_size, &sampler, &error), &error, PHASE_RUN);
    cli_stream stream = {.out = code ? NULL : open_memstream(&out->text, &out->bytes)};
    if (!code && !stream.out)
        code = cli_memory(c, "the text");
    if (!code) {
        cli_generation g;
        code = cli_generate(c, s->model, session, sampler, ids, count, predict, &stream, NULL, NULL, &g);
        out->decode_rate = g.decode_seconds > 0 ? g.decoded / g.decode_seconds : 0;
        cli_stream_end(&stream);
    }
    if (stream.out)
        fclose(stream.out);
    qn_sampler_destroy(sampler);
    qn_session_destroy(session);
    free(ids);
    free(rendered);
    return code;
}

static double prefill_rate(const scored *s)
{
    return s->context_seconds > 0 ? s->context_tokens / s->context_seconds : 0;
}

static void print_object(FILE *out, const cli *c, const scored *s, const scored *reference, const sample *x)
{
    score_summary r = score_sum(s), ref = score_sum(reference);
    json j = json_begin(out);
    json_open(&j, NULL, '{');
    json_text(&j, "scheme", s->label);
    json_text(&j, "activations", s->activations.name);
    json_text(&j, "kv", s->kv.scheme);
    json_int(&j, "kv_bytes_per_token", (int64_t)s->kv.bytes_per_token);
    json_text(&j, "backend", backend_name(c));
    json_number(&j, "bits_per_weight", s->info.bits_per_weight, 6);
    json_number(&j, "file_mb", (double)s->info.file_bytes / 1e6, 6);
    json_number(&j, "ppl", r.perplexity, 8);
    json_number(&j, "ppl_ratio", r.perplexity / ref.perplexity, 8);
    json_number(&j, "kl_mean", r.kl_mean, 6);
    json_number(&j, "kl_max", r.kl_max, 6);
    json_number(&j, "top1", r.same_top, 6);
    json_number(&j, "prefill_tps", prefill_rate(s), 5);
    json_number(&j, "decode_tps", x->decode_rate, 5);
    json_bytes(&j, "text", x->text ? x->text : "", x->text ? x->bytes : 0);
    json_close(&j, '}');
}

/* A text on one line, cut after about 100 characters. */
static void print_one_line(const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    int shown = 0;
    for (size_t i = 0; i < bytes && shown < 100; shown++) {
        int n = cli_utf8_length(p + i, bytes - i);
        if (n <= 0)
            break;
        if (p[i] < 0x20)
            fputc(' ', stdout);
        else
            fwrite(p + i, 1, (size_t)n, stdout);
        i += (size_t)n;
    }
    fputc('\n', stdout);
}

static void print_table(const score_text *t, const scored *models, const sample *samples, int n)
{
    score_summary ref = score_sum(&models[0]);
    printf("%-12s %7s %8s %9s %7s %9s %9s %7s %9s %9s\n", "scheme", "bits/w", "file MB", "ppl", "ratio", "KL mean",
           "KL max", "top-1 %", "prefill/s", "decode/s");
    for (int i = 0; i < n; i++) {
        const scored *s = &models[i];
        score_summary r = score_sum(s);
        printf("%-12s %7.3f %8.1f %9.4f %7.4f %9.6f %9.4f %7.2f %9.1f %9.1f\n", s->label, s->info.bits_per_weight,
               (double)s->info.file_bytes / 1e6, r.perplexity, r.perplexity / ref.perplexity, r.kl_mean, r.kl_max,
               100 * r.same_top, prefill_rate(s), samples[i].decode_rate);
    }
    printf("\n%lld tokens scored in %lld chunks of %lld; reference %s, perplexity %.4f +/- %.4f\n\n",
           (long long)models[0].count, (long long)t->chunks, (long long)t->chunk, models[0].path, ref.perplexity,
           ref.perplexity_error);
    for (int i = 0; i < n; i++) {
        printf("%-12s ", models[i].label);
        print_one_line(samples[i].text ? samples[i].text : "", samples[i].bytes);
    }
}

/* Written under a temporary name and renamed: the file is whole or absent. */
static int write_jsonl(cli *c, const scored *models, const sample *samples, int n)
{
    const char *path = c->value[OPT_JSONL].s;
    size_t room = strlen(path) + 32;
    char *temporary = malloc(room);
    if (!temporary)
        return cli_memory(c, "a file name");
    snprintf(temporary, room, "%s.%ld.tmp", path, (long)getpid());
    FILE *out = fopen(temporary, "wb");
    int code = out ? 0 : cli_fail(c, EXIT_FAILED, "%s: %s", path, strerror(errno));
    if (out) {
        for (int i = 0; i < n; i++)
            print_object(out, c, &models[i], &models[0], &samples[i]);
        int bad = fflush(out) != 0 || fsync(fileno(out)) != 0;
        bad = fclose(out) != 0 || bad;
        if (bad || rename(temporary, path) != 0) {
            code = cli_fail(c, EXIT_FAILED, "%s: %s", path, strerror(errno));
            unlink(temporary);
        }
    }
    free(temporary);
    return code;
}

static int score_all(cli *c, const char *text, size_t bytes, scored *models, sample *samples, int n, score_text *t)
{
    int32_t *ids = NULL;
    size_t count = 0;
    qn_tokenizer_info info;
    const qn_tokenizer *tokenizer = qn_model_tokenizer(models[0].model);
    int code = cli_tokenize(c, tokenizer, text, bytes, 0, &ids, &count);
    if (!code) {
        qn_tokenizer_get_info(tokenizer, &info);
        int64_t most = c->value[OPT_MAX_TOKENS].i;
        *t = (score_text){.ids = ids,
                          .count = most > 0 && most < (int64_t)count ? most : (int64_t)count,
                          .chunk = c->value[OPT_CHUNK].i,
                          .bos = info.add_bos ? info.bos_id : -1};
        code = score_cut(c, t);
    }
    if (!code)
        code = score_run(c, t, models, n);
    const char *prompt = c->value[OPT_PROMPT].set ? c->value[OPT_PROMPT].s : default_prompt;
    for (int i = 0; i < n && !code; i++)
        code = cli_interrupted() ? EXIT_SIGNAL : take_sample(c, &models[i], prompt, &samples[i]);
    if (!code && cli_interrupted())
        code = EXIT_SIGNAL;
    free(ids);
    return code;
}

/* Take +WORD off the end of a path that is not a file's: what it says of the form; 0: there is none. */
static int take_word(char *path, cli_form *form)
{
    char *const mark = strrchr(path, '+');
    qn_kv_info info;
    if (!mark || access(path, F_OK) == 0)
        return 0;
    int known = strcmp(mark + 1, "int8") == 0;
    if (known)
        form->activations = QN_ACTIVATIONS_INT8;
    for (int32_t j = 0; !known && qn_kv_at(j, &info) == QN_OK; j++) {
        known = strcmp(mark + 1, info.name) == 0;
        if (known)
            form->kv = info.name;
    }
    if (known)
        *mark = 0;
    return known;
}

/* The model of an operand: what its words do not say is as the options say, of the reference as by default. *path is
 * the operand without them, the caller's to free. */
static int open_operand(cli *c, scored *s, int i, char **path)
{
    cli_form form = {0};
    if (i)
        form = cli_asked_form(c);
    *path = strdup(c->operands[i]);
    if (!*path)
        return cli_memory(c, "the models");
    while (take_word(*path, &form)) {
    }
    return score_open(c, s, *path, form, c->value[OPT_CHUNK].i);
}

int verb_compare(cli *c)
{
    int n = c->operand_count;
    char *text = NULL;
    size_t bytes = 0;
    score_text t;
    if (!c->value[OPT_FILE].set)
        return cli_fail(c, EXIT_USAGE, "--file FILE is missing: the text to score (- is stdin)");
    scored *models = cli_alloc((size_t)n, sizeof *models);
    sample *samples = cli_alloc((size_t)n, sizeof *samples);
    char **paths = cli_alloc((size_t)n, sizeof *paths);
    int code = models && samples && paths ? cli_read_file(c, c->value[OPT_FILE].s, &text, &bytes)
                                          : cli_memory(c, "the models");
    for (int i = 0; i < n && !code; i++) {
        cli_progress(c, 0, c->operands[i]);
        code = open_operand(c, &models[i], i, &paths[i]);
    }
    if (!code)
        code = score_all(c, text, bytes, models, samples, n, &t);
    cli_progress_end(c);
    if (!code && c->value[OPT_JSONL].set)
        code = write_jsonl(c, models, samples, n);
    if (!code && c->value[OPT_JSON].set) {
        for (int i = 0; i < n; i++)
            print_object(stdout, c, &models[i], &models[0], &samples[i]);
    } else if (!code) {
        print_table(&t, models, samples, n);
    }
    for (int i = 0; i < n && models && samples && paths; i++) {
        score_close(&models[i]);
        free(samples[i].text);
        free(paths[i]);
    }
    free(paths);
    free(models);
    free(samples);
    free(text);
    return code;
}
