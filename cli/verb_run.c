/* quern run: text after a prompt. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

/* The prompt's text: operand, --prompt, --file or stdin. */
static int read_prompt(cli *c, char **text, size_t *bytes)
{
    if (c->operand_count == 2) {
        if (c->value[OPT_PROMPT].set || c->value[OPT_FILE].set)
            return cli_fail(c, EXIT_USAGE, "a prompt is given twice: '%.60s' and --prompt or --file", c->operands[1]);
        cli_option_id id = strcmp(c->operands[1], "-") == 0 ? OPT_FILE : OPT_PROMPT;
        c->value[id].set = 1;
        c->value[id].s = c->operands[1];
    }
    return cli_read_text(c, text, bytes, 1);
}

/* Ids of the text, through the chat template when there is one and --raw is not given. */
static int prompt_ids(cli *c, const qn_tokenizer *tokenizer, const char *text, size_t bytes, int32_t **ids,
                      size_t *count)
{
    qn_tokenizer_info info;
    if (!tokenizer)
        return cli_fail(c, EXIT_INPUT, "%s: the model has no tokenizer", c->operands[0]);
    qn_tokenizer_get_info(tokenizer, &info);
    if (c->value[OPT_RAW].set || !info.chat_template)
        return cli_tokenize(c, tokenizer, text, bytes, QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL, ids, count);
    qn_chat_message messages[2];
    size_t n = 0;
    if (c->value[OPT_SYSTEM].set)
        messages[n++] = (qn_chat_message){"system", c->value[OPT_SYSTEM].s};
    messages[n++] = (qn_chat_message){"user", text};
    char *rendered = NULL;
    size_t length = 0;
    int code = cli_render_chat(c, tokenizer, messages, n, &rendered, &length);
    if (!code)
        code = cli_tokenize(c, tokenizer, rendered, length, QN_ENCODE_PARSE_SPECIAL, ids, count);
    free(rendered);
    return code;
}

static double per_second(double count, double seconds)
{
    return seconds > 0 ? count / seconds : 0;
}

static void print_timings(const cli *c, const qn_model *model, const cli_generation *g, double load_seconds)
{
    qn_packing_info packing;
    qn_model_kv kv;
    qn_model_activations activations;
    qn_model_get_packing(model, &packing);
    qn_model_get_kv(model, &kv);
    qn_model_get_activations(model, &activations);
    double prompt_rate = per_second(g->prompt_tokens, g->prompt_seconds);
    double decode_rate = per_second(g->decoded, g->decode_seconds);
    if (!c->value[OPT_JSON_TIMINGS].set) {
        cli_note(c, "prompt %d tokens %.1f tok/s, generated %d tokens %.1f tok/s, first token after %.3f s (%s)\n",
                 g->prompt_tokens, prompt_rate, g->generated, decode_rate, g->first_seconds, g->end);
        return;
    }
    json j = json_begin(stderr);
    json_open(&j, NULL, '{');
    json_number(&j, "load_ms", 1e3 * load_seconds, 6);
    json_number(&j, "pack_ms", 1e3 * packing.seconds, 6);
    json_int(&j, "packed_bytes", (int64_t)packing.bytes);
    json_text(&j, "packed_file", packing.file);
    json_text(&j, "activations", activations.name);
    json_text(&j, "kv", kv.scheme);
    json_int(&j, "kv_bytes_per_token", (int64_t)kv.bytes_per_token);
    json_int(&j, "prompt_n", g->prompt_tokens);
    json_number(&j, "prompt_ms", 1e3 * g->prompt_seconds, 6);
    json_number(&j, "prompt_per_second", prompt_rate, 6);
    json_int(&j, "predicted_n", g->generated);
    json_number(&j, "predicted_ms", 1e3 * g->decode_seconds, 6);
    json_number(&j, "predicted_per_second", decode_rate, 6);
    json_number(&j, "ttft_ms", 1e3 * g->first_seconds, 6);
    json_text(&j, "finish", g->end);
    json_close(&j, '}');
}

int verb_run(cli *c)
{
    char *text = NULL;
    size_t bytes = 0, count = 0;
    int32_t *ids = NULL;
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_sampler *sampler = NULL;
    cli_stream stream = {.out = stdout, .stops = c->stops, .stop_count = c->stop_count, .live = 1};
    cli_generation g;
    double start = cli_now(), load = 0;
    int code = read_prompt(c, &text, &bytes);
    if (!code)
        code = cli_open_model(c, c->operands[0], cli_asked_form(c), &model);
    if (!code)
        code = prompt_ids(c, qn_model_tokenizer(model), text, bytes, &ids, &count);
    if (!code)
        code = cli_open_session(c, model, c->value[OPT_CTX_SIZE].i, c->value[OPT_BATCH].i, &session);
    if (!code)
        code = cli_make_sampler(c, model, &sampler);
    if (!code) {
        load = cli_now() - start;
        code = cli_generate(c, model, session, sampler, ids, count, c->value[OPT_PREDICT].i, &stream, NULL, NULL, &g);
        cli_stream_end(&stream);
    }
    if (!code) {
        fputc('\n', stdout);
        fflush(stdout);
        print_timings(c, model, &g, load);
    }
    qn_sampler_destroy(sampler);
    qn_session_destroy(session);
    qn_model_close(model);
    free(ids);
    free(text);
    return code;
}
