/* quern logits: logits of a text to a safetensors file, for checking another engine. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "ids.h"

static int take_ids(cli *c, const qn_model *model, int32_t **ids, size_t *count)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = 0;
    if (c->value[OPT_IDS].set) {
        if (c->value[OPT_PROMPT].set || c->value[OPT_FILE].set)
            return cli_fail(c, EXIT_USAGE, "--ids and a text are both given");
        code = cli_parse_ids(c, c->value[OPT_IDS].s, strlen(c->value[OPT_IDS].s), ids, count);
    } else {
        code = cli_read_text(c, &text, &bytes, 1);
        if (!code)
            code = cli_tokenize(c, qn_model_tokenizer(model), text, bytes,
                                QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL, ids, count);
        free(text);
    }
    if (!code && *count == 0)
        code = cli_fail(c, EXIT_USAGE, "the text gives no tokens");
    if (!code && *count > 1048576)
        code = cli_fail(c, EXIT_USAGE, "%zu tokens are more than 1048576", *count);
    return code;
}

static int evaluate(cli *c, qn_session *session, const int32_t *ids, size_t count, size_t vocab, float *logits)
{
    qn_error error = {0};
    int all = c->value[OPT_ALL].set;
    size_t batch = (size_t)c->value[OPT_BATCH].i;
    for (size_t at = 0; at < count; at += batch) {
        size_t n = count - at < batch ? count - at : batch;
        float *out = all ? logits + at * vocab : at + n == count ? logits : NULL;
        if (cli_interrupted())
            return EXIT_SIGNAL;
        int code = cli_check(c, qn_session_eval(session, ids + at, (int32_t)n, all, out, &error), &error, PHASE_USAGE);
        if (code)
            return code;
        cli_progress(c, (double)(at + n) / (double)count, "");
    }
    cli_progress_end(c);
    return 0;
}

int verb_logits(cli *c)
{
    qn_error error = {0};
    qn_model *model = NULL;
    qn_session *session = NULL;
    int32_t *ids = NULL;
    size_t count = 0;
    float *logits = NULL;
    qn_model_info info;
    if (!c->value[OPT_OUT].set)
        return cli_fail(c, EXIT_USAGE, "--out FILE is missing: the safetensors file to write");
    int code = cli_keep_input(c, c->operands[0]);
    if (!code)
        code = cli_keep_input(c, c->value[OPT_FILE].s);
    if (!code)
        code = cli_open_model(c, c->operands[0], cli_asked_form(c), &model);
    if (!code)
        code = take_ids(c, model, &ids, &count);
    if (!code)
        code = cli_open_session(c, model, (int64_t)count, c->value[OPT_BATCH].i, &session);
    if (!code) {
        qn_model_get_info(model, &info);
        size_t rows = c->value[OPT_ALL].set ? count : 1;
        logits = cli_alloc(rows * (size_t)info.vocab_size, sizeof *logits);
        code = logits ? evaluate(c, session, ids, count, (size_t)info.vocab_size, logits) : cli_memory(c, "the logits");
        if (!code) {
            qn_shape a = qn_shape_make(QN_F32, 2, (int64_t)rows, info.vocab_size, 1, 1);
            qn_shape b = qn_shape_make(QN_I32, 1, (int64_t)count, 1, 1, 1);
            const qn_named_view views[] = {{"logits", qn_view_make(logits, &a)}, {"ids", qn_view_make(ids, &b)}};
            code = cli_check(c, qn_tensors_write(c->ctx, c->value[OPT_OUT].s, views, 2, NULL, 0, &error), &error,
                             PHASE_OUTPUT);
        }
    }
    qn_session_destroy(session);
    qn_model_close(model);
    free(logits);
    free(ids);
    return code;
}
