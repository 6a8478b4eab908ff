/* quern quantize: a checkpoint in another number format. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char *scheme_name_at(const void *user, int i)
{
    (void)user;
    qn_scheme_info info;
    return qn_scheme_at(i, &info) == QN_OK ? info.name : NULL;
}

static int list_schemes(const cli *c)
{
    qn_scheme_info info;
    json j = json_begin(stdout);
    if (c->value[OPT_JSON].set)
        json_open(&j, NULL, '[');
    for (int32_t i = 0; qn_scheme_at(i, &info) == QN_OK; i++) {
        if (!c->value[OPT_JSON].set) {
            printf("%-12s %-19s %s\n", info.name, info.layout, info.summary);
            continue;
        }
        json_open(&j, NULL, '{');
        json_text(&j, "name", info.name);
        json_text(&j, "layout", info.layout);
        json_text(&j, "summary", info.summary);
        json_close(&j, '}');
    }
    if (c->value[OPT_JSON].set)
        json_close(&j, ']');
    return EXIT_DONE;
}

static int check_scheme(cli *c)
{
    const char *scheme = c->value[OPT_WEIGHTS].s, *name;
    if (!scheme)
        return cli_fail(c, EXIT_USAGE, "--weights SCHEME is missing; 'quern quantize --list' shows the schemes");
    for (int i = 0; (name = scheme_name_at(NULL, i)) != NULL; i++)
        if (strcmp(name, scheme) == 0)
            return 0;
    const char *guess = cli_closest(scheme, scheme_name_at, NULL);
    if (guess)
        return cli_fail(c, EXIT_USAGE, "--weights: there is no scheme '%.60s'; did you mean '%s'?", scheme, guess);
    return cli_fail(c, EXIT_USAGE, "--weights: there is no scheme '%.60s'; 'quern quantize --list' shows them", scheme);
}

/* FIRST,LAST of --keep-layers; --keep-qkv; --head */
static int read_kept(cli *c, qn_quantize_options *options)
{
    const char *text = c->value[OPT_KEEP_LAYERS].s;
    const char *qkv = c->value[OPT_KEEP_QKV].s;
    const char *head = c->value[OPT_HEAD].s;
    options->keep_qkv = strcmp(qkv, "auto") == 0 ? -1 : strcmp(qkv, "yes") == 0;
    options->head = strcmp(head, "bf16") == 0 ? NULL : head;
    if (!text)
        return 0;
    const char *s = text;
    int32_t *const out[] = {&options->keep_first, &options->keep_last};
    for (int i = 0; i < 2; i++) {
        char *end;
        const long n = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : -1;
        if (n < 0 || n > 100000 || *end != (i ? 0 : ','))
            return cli_fail(c, EXIT_USAGE, "--keep-layers: '%.60s' is not two whole numbers like 2,2", text);
        *out[i] = (int32_t)n;
        s = end + 1;
    }
    return 0;
}

/* A bar on a terminal, a line for each tensor elsewhere. */
static int on_progress(void *user, const qn_quantize_progress *p)
{
    const cli *c = user;
    char shape[128], before[32], after[32], text[256];
    if (p->index == 0) {
        if (cli_progress_on(c))
            cli_progress(c, 0, p->name);
        return cli_interrupted();
    }
    cli_shape_text(shape, &p->shape);
    if (cli_progress_on(c)) {
        snprintf(text, sizeof text, "%d/%d %.40s", p->index, p->total, p->name);
        cli_progress(c, p->total ? (double)p->index / p->total : 1, text);
    } else if (!c->value[OPT_QUIET].set) {
        const char *dims = strchr(shape, '[');
        FILE *out = c->value[OPT_JSON].set ? stderr : stdout;
        fprintf(out, "[%4d/%4d] %-48s %-14s %8s -> %-10s %10s -> %10s  rms %.5f\n", p->index, p->total, p->name,
                dims ? dims : "", p->from, p->to, cli_size_text(before, (double)p->bytes_before),
                cli_size_text(after, (double)p->bytes_after), p->rms_error);
        if (out == stdout && cli_output_closed())
            return 1;
    }
    return cli_interrupted();
}

static void print_totals(const cli *c, const qn_quantize_result *r)
{
    char before[32], after[32];
    if (!c->value[OPT_JSON].set) {
        printf("%s: %d tensors, %lld parameters, %s -> %s, %.3f bits per weight, %.1f s\n", c->operands[1], r->tensors,
               (long long)r->parameters, cli_size_text(before, (double)r->bytes_before),
               cli_size_text(after, (double)r->bytes_after), r->bits_per_weight, r->seconds);
        if (r->resumed)
            printf("%d of them were finished by an interrupted run\n", r->resumed);
        if (r->packed_bytes)
            printf("packed file: %s\n", cli_size_text(after, (double)r->packed_bytes));
        return;
    }
    json j = json_begin(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "input", c->operands[0]);
    json_text(&j, "output", c->operands[1]);
    json_text(&j, "scheme", c->value[OPT_WEIGHTS].s);
    json_int(&j, "tensors", r->tensors);
    json_int(&j, "resumed", r->resumed);
    json_int(&j, "parameters", r->parameters);
    json_int(&j, "bytes_before", (int64_t)r->bytes_before);
    json_int(&j, "bytes_after", (int64_t)r->bytes_after);
    json_number(&j, "bits_per_weight", r->bits_per_weight, 6);
    json_number(&j, "seconds", r->seconds, 4);
    json_int(&j, "packed_bytes", (int64_t)r->packed_bytes);
    json_close(&j, '}');
}

/* Codebooks of a KV scheme beside the model. */
static int make_books(cli *c)
{
    qn_error error = {0};
    char size[32], plain[32], coded[32];
    qn_kv_books_options options;
    qn_kv_books_result r = {0};
    qn_kv_books_options_init(&options);
    options.scheme = c->value[OPT_KV_BOOKS].s;
    options.calibration = c->value[OPT_CALIBRATE].s;
    options.force = c->value[OPT_FORCE].set;
    options.exec = c->exec;
    options.progress = on_progress;
    options.progress_user = c;
    qn_status status = qn_make_kv_books(c->ctx, c->operands[0], NULL, &options, &r, &error);
    cli_progress_end(c);
    if (status == QN_E_CANCELLED && !cli_interrupted() && cli_output_closed())
        return EXIT_DONE;
    int code = cli_check(c, status, &error, PHASE_OUTPUT);
    if (code)
        return code;
    if (!c->value[OPT_JSON].set) {
        printf("%s: codebooks of %s for %d layers, %s, from %d tokens; a token's keys and values %s -> %s, %.1f s\n",
               c->operands[0], options.scheme, r.layers, cli_size_text(size, (double)r.bytes), r.tokens,
               cli_size_text(plain, (double)r.bytes_per_token_before),
               cli_size_text(coded, (double)r.bytes_per_token_after), r.seconds);
        return 0;
    }
    json j = json_begin(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "input", c->operands[0]);
    json_text(&j, "kv", options.scheme);
    json_int(&j, "layers", r.layers);
    json_int(&j, "tokens", r.tokens);
    json_int(&j, "bytes", (int64_t)r.bytes);
    json_int(&j, "kv_bytes_per_token_before", (int64_t)r.bytes_per_token_before);
    json_int(&j, "kv_bytes_per_token", (int64_t)r.bytes_per_token_after);
    json_number(&j, "seconds", r.seconds, 4);
    json_close(&j, '}');
    return 0;
}

/* What is written: a folder with OUT, else codebooks of a KV scheme. */
static int check_operands(cli *c)
{
    if (c->operand_count == 2)
        return check_scheme(c);
    if (!c->value[OPT_KV_BOOKS].set || c->value[OPT_WEIGHTS].set)
        return cli_fail(c, EXIT_USAGE,
                        "too few arguments; usage: quern quantize MODEL OUT --weights SCHEME, or "
                        "quern quantize MODEL --kv SCHEME");
    return 0;
}

int verb_quantize(cli *c)
{
    qn_error error = {0};
    qn_checkpoint *input = NULL;
    if (c->value[OPT_LIST].set)
        return list_schemes(c);
    int code = check_operands(c);
    /* opened here first, so that a bad input is told from a failing output */
    if (!code)
        code = cli_check(c, qn_checkpoint_open(c->ctx, c->operands[0], &input, &error), &error, PHASE_INPUT);
    qn_checkpoint_close(input);
    if (code)
        return code;
    if (c->operand_count == 1)
        return make_books(c);
    qn_quantize_options options;
    qn_quantize_result result = {0};
    qn_quantize_options_init(&options);
    options.scheme = c->value[OPT_WEIGHTS].s;
    options.force = c->value[OPT_FORCE].set;
    options.exec = c->exec;
    options.progress = on_progress;
    options.progress_user = c;
    options.calibration = c->value[OPT_CALIBRATE].s;
    options.pack = c->value[OPT_PACK].set;
    options.resume = c->value[OPT_RESUME].set;
    options.kv = c->value[OPT_KV_BOOKS].s;
    code = read_kept(c, &options);
    if (code)
        return code;
    qn_status status = qn_quantize(c->ctx, c->operands[0], c->operands[1], &options, &result, &error);
    cli_progress_end(c);
    if (status == QN_E_CANCELLED && !cli_interrupted() && cli_output_closed())
        return EXIT_DONE; /* nobody reads: end quietly, without output */
    code = cli_check(c, status, &error, PHASE_OUTPUT);
    if (!code)
        print_totals(c, &result);
    return code;
}
