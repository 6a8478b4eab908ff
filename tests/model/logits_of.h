/* Logits of a few tokens by any model of the synthetic vocabulary, from opening it to closing it. */
#ifndef QN_TESTS_LOGITS_OF_H
#define QN_TESTS_LOGITS_OF_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "quant/synthetic.h"

enum { TOKENS = 7 };

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

/* Logits [TOKENS, SYN_VOCAB] of a folder or file, evaluated `step` tokens at a time. */
static float *logits_of(qn_ctx *ctx, const char *path, qn_backend backend, int32_t step)
{
    static const int32_t ids[TOKENS] = {3, 141, 59, 26, 53, 58, 97};
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = backend;
    qn_model *model;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, path, &options, &model, &error), &error, path);
    qn_session_options session_options;
    qn_session_options_init(&session_options);
    session_options.context_length = 16;
    session_options.batch = TOKENS;
    qn_session *session;
    must(qn_session_create(model, &session_options, &session, &error), &error, path);
    float *logits = calloc((size_t)TOKENS * SYN_VOCAB, sizeof *logits);
    for (int32_t at = 0; at < TOKENS; at += step) {
        const int32_t count = TOKENS - at < step ? TOKENS - at : step;
        must(qn_session_eval(session, ids + at, count, 1, logits + (size_t)at * SYN_VOCAB, &error), &error, path);
    }
    qn_session_destroy(session);
    qn_model_close(model);
    return logits;
}

#endif
