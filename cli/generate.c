#include "generate.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- The stream ---- */

static void emit(const cli_stream *s, const void *bytes, size_t count)
{
    fwrite(bytes, 1, count, s->out);
    if (s->copy)
        fwrite(bytes, 1, count, s->copy);
}

/* Write the characters of held[0, limit); an incomplete one at the end stays unless `last`. Returns bytes used. */
static size_t write_characters(cli_stream *s, size_t limit, int last)
{
    const unsigned char *p = (const unsigned char *)s->held;
    size_t i = 0;
    while (i < limit) {
        int n = cli_utf8_length(p + i, limit - i);
        if (n == 0 && !last)
            break;
        if (n <= 0) {
            emit(s, "\xEF\xBF\xBD", 3);
            i++;
            while (n == 0 && i < limit) /* the whole unfinished character becomes one */
                i++;
            continue;
        }
        emit(s, p + i, (size_t)n);
        i += (size_t)n;
    }
    if (i && s->live)
        fflush(s->out);
    return i;
}

/* Offset of the first stop text in held, or `used`; *keep: bytes at the end that may begin one. */
static size_t find_stop(const cli_stream *s, size_t *keep)
{
    size_t first = s->used;
    *keep = 0;
    for (int i = 0; i < s->stop_count; i++) {
        size_t n = strlen(s->stops[i]);
        if (n == 0)
            continue;
        for (size_t at = 0; at < s->used && at < first; at++) {
            size_t left = s->used - at;
            if (memcmp(s->held + at, s->stops[i], left < n ? left : n) != 0)
                continue;
            if (left >= n)
                first = at;
            else if (left > *keep)
                *keep = left;
        }
    }
    return first;
}

int cli_stream_push(cli *c, cli_stream *s, const char *bytes, size_t count)
{
    if (s->stopped || count == 0)
        return 0;
    if (s->used + count > s->room) {
        size_t room = (s->used + count) * 2 + 256;
        char *larger = realloc(s->held, room);
        if (!larger)
            return cli_memory(c, "the text");
        s->held = larger;
        s->room = room;
    }
    memcpy(s->held + s->used, bytes, count);
    s->used += count;
    size_t keep, first = find_stop(s, &keep);
    if (first < s->used) {
        write_characters(s, first, 1);
        s->used = 0;
        s->stopped = 1;
        return 0;
    }
    size_t done = write_characters(s, s->used - keep, 0);
    memmove(s->held, s->held + done, s->used - done);
    s->used -= done;
    return 0;
}

void cli_stream_end(cli_stream *s)
{
    if (!s->stopped && s->used)
        write_characters(s, s->used, 1);
    free(s->held);
    s->held = NULL;
    s->used = s->room = 0;
}

/* ---- The loop ---- */

int cli_make_sampler(cli *c, const qn_model *model, qn_sampler **sampler)
{
    qn_error error = {0};
    qn_model_info info;
    qn_model_get_info(model, &info);
    qn_sampler_options o;
    qn_sampler_options_init(&o);
    o.temperature = c->value[OPT_GREEDY].set ? 0.0f : (float)c->value[OPT_TEMP].f;
    o.top_k = (int32_t)c->value[OPT_TOP_K].i;
    o.top_p = (float)c->value[OPT_TOP_P].f;
    o.min_p = (float)c->value[OPT_MIN_P].f;
    o.repeat_penalty = (float)c->value[OPT_REPEAT_PENALTY].f;
    o.repeat_last = (int32_t)c->value[OPT_REPEAT_LAST].i;
    o.seed = (uint64_t)c->value[OPT_SEED].i;
    if (o.temperature > 0) {
        if (!c->value[OPT_SEED].set) {
            uint32_t drawn = 0;
            if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
                drawn = (uint32_t)(1e6 * cli_now());
            o.seed = drawn;
        }
        cli_note(c, "seed %llu\n", (unsigned long long)o.seed);
    }
    return cli_check(c, qn_sampler_create(c->ctx, &o, info.vocab_size, sampler, &error), &error, PHASE_USAGE);
}

static int eval_prompt(cli *c, qn_session *session, const int32_t *ids, size_t count, float *logits)
{
    qn_error error = {0};
    size_t batch = (size_t)c->value[OPT_BATCH].i;
    if (batch == 0)
        batch = 512;
    for (size_t at = 0; at < count; at += batch) {
        size_t n = count - at < batch ? count - at : batch;
        if (cli_interrupted())
            return EXIT_SIGNAL;
        int code =
            cli_check(c, qn_session_eval(session, ids + at, (int32_t)n, 0, at + n == count ? logits : NULL, &error),
                      &error, PHASE_RUN);
        if (code)
            return code;
    }
    return 0;
}

int cli_generate(cli *c, qn_model *model, qn_session *session, qn_sampler *sampler, const int32_t *ids, size_t count,
                 int64_t predict, cli_stream *stream, int32_t *history, size_t *length, cli_generation *r)
{
    qn_error error = {0};
    qn_model_info info;
    const qn_tokenizer *tokenizer = qn_model_tokenizer(model);
    memset(r, 0, sizeof *r);
    qn_model_get_info(model, &info);
    int64_t room = (int64_t)qn_session_capacity(session) - qn_session_length(session);
    if (count == 0)
        return cli_fail(c, EXIT_USAGE, "the prompt is empty: it gives no tokens");
    if ((int64_t)count > room)
        return cli_fail(c, EXIT_USAGE,
                        "the prompt has %zu tokens, the context has room for %lld; give a larger --ctx-size", count,
                        (long long)room);
    float *logits = cli_alloc((size_t)info.vocab_size, sizeof *logits);
    if (!logits)
        return cli_memory(c, "the logits");
    r->prompt_tokens = (int32_t)count;
    r->end = "length";
    double start = cli_now();
    int code = eval_prompt(c, session, ids, count, logits);
    r->prompt_seconds = cli_now() - start;
    for (size_t i = 0; i < count && !code; i++) {
        qn_sampler_accept(sampler, ids[i]);
        if (history)
            history[(*length)++] = ids[i];
    }
    while (!code && (predict < 0 || r->generated < predict)) {
        int32_t id = -1;
        code = cli_check(c, qn_sampler_draw(sampler, logits, &id, &error), &error, PHASE_RUN);
        if (code)
            break;
        if (r->generated == 0)
            r->first_seconds = cli_now() - start;
        if (qn_tokenizer_is_end(tokenizer, id)) {
            r->end = "end of text";
            break;
        }
        r->generated++;
        size_t bytes = 0;
        const char *piece = qn_tokenizer_piece(tokenizer, id, &bytes);
        if (piece && !qn_tokenizer_is_special(tokenizer, id))
            code = cli_stream_push(c, stream, piece, bytes);
        if (stream->stopped)
            r->end = "stop text";
        else if (cli_interrupted())
            r->end = "interrupted";
        else if (qn_session_length(session) >= qn_session_capacity(session))
            r->end = "context full";
        else if (!(stream->live && cli_output_closed())) {
            if (code || r->generated == predict)
                break;
            double before = cli_now();
            code = cli_check(c, qn_session_eval(session, &id, 1, 0, logits, &error), &error, PHASE_RUN);
            r->decode_seconds += cli_now() - before;
            r->decoded++;
            if (history && !code)
                history[(*length)++] = id;
            continue;
        }
        break;
    }
    free(logits);
    return code;
}
