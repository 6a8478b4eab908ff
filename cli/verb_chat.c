/* quern chat: a conversation in the terminal. The KV cache of earlier turns is
 * kept: of each turn's rendered conversation only what differs is evaluated. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"

typedef struct chat {
    cli *c;
    qn_model *model;
    qn_session *session;
    qn_sampler *sampler;
    qn_chat_message *messages;
    size_t count, room;
    int32_t *history; /* ids in the session */
    size_t length;
} chat;

static int add_message(chat *t, const char *role, const char *content)
{
    if (t->count == t->room) {
        size_t room = t->room * 2 + 8;
        qn_chat_message *larger = realloc(t->messages, room * sizeof *larger);
        if (!larger)
            return cli_memory(t->c, "the conversation");
        t->messages = larger;
        t->room = room;
    }
    char *copy = strdup(content);
    if (!copy)
        return cli_memory(t->c, "the conversation");
    t->messages[t->count++] = (qn_chat_message){role, copy};
    return 0;
}

static void drop_messages(chat *t, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        free((char *)(uintptr_t)t->messages[i].content);
    if (from == to)
        return;
    memmove(t->messages + from, t->messages + to, (t->count - to) * sizeof *t->messages);
    t->count -= to - from;
}

/* Forget everything but, with keep_system, the system message. */
static void reset(chat *t, int keep_system)
{
    qn_error error;
    size_t keep = keep_system && t->count && strcmp(t->messages[0].role, "system") == 0;
    drop_messages(t, keep, t->count);
    qn_session_truncate(t->session, 0, &error);
    t->length = 0;
}

/* Ids of the whole conversation; drops the oldest turns until they leave room for a reply. */
static int conversation_ids(chat *t, int32_t **ids, size_t *count)
{
    const qn_tokenizer *tokenizer = qn_model_tokenizer(t->model);
    int64_t capacity = qn_session_capacity(t->session);
    int64_t reserve = capacity / 4 < 256 ? capacity / 4 : 256;
    for (;;) {
        char *text = NULL;
        size_t bytes = 0;
        int code = cli_render_chat(t->c, tokenizer, t->messages, t->count, &text, &bytes);
        if (!code)
            code = cli_tokenize(t->c, tokenizer, text, bytes, QN_ENCODE_PARSE_SPECIAL, ids, count);
        free(text);
        if (code)
            return code;
        size_t first = strcmp(t->messages[0].role, "system") == 0;
        if ((int64_t)*count + reserve <= capacity || t->count - first < 3)
            return 0;
        drop_messages(t, first, first + 2);
        cli_note(t->c, "(the context is full: the oldest turn is dropped)\n");
        free(*ids);
    }
}

static int reply(chat *t)
{
    cli *c = t->c;
    qn_error error = {0};
    int32_t *ids = NULL;
    size_t count = 0, same = 0, bytes = 0;
    char *text = NULL;
    int code = conversation_ids(t, &ids, &count);
    if (code)
        return code;
    while (same < count && same < t->length && ids[same] == t->history[same])
        same++;
    if (same == count && same)
        same--; /* the last token is evaluated again for its logits */
    qn_status status = qn_session_truncate(t->session, (int32_t)same, &error);
    if (status == QN_E_UNSUPPORTED) { /* too far back for a window of recent tokens: all is evaluated again */
        same = 0;
        status = qn_session_truncate(t->session, 0, &error);
    }
    code = cli_check(c, status, &error, PHASE_RUN);
    t->length = same;
    FILE *copy = code ? NULL : open_memstream(&text, &bytes);
    if (!code && !copy)
        code = cli_memory(c, "the reply");
    if (!code) {
        cli_generation g;
        cli_stream stream = {.out = stdout, .copy = copy, .stops = c->stops, .stop_count = c->stop_count, .live = 1};
        code = cli_generate(c, t->model, t->session, t->sampler, ids + same, count - same, c->value[OPT_PREDICT].i,
                            &stream, t->history, &t->length, &g);
        cli_stream_end(&stream);
        fputc('\n', stdout);
        if (cli_interrupted())
            cli_note(c, "(stopped)\n");
        cli_interrupt_clear();
    }
    if (copy)
        fclose(copy);
    if (!code)
        code = add_message(t, "assistant", text ? text : "");
    free(text);
    free(ids);
    return code;
}

/* One line of input: 1 goes on, 0 ends. */
static int handle_line(chat *t, char *line, int *code)
{
    size_t n = strlen(line);
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        line[--n] = 0;
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)
        return 0;
    if (strcmp(line, "/reset") == 0) {
        reset(t, 1);
    } else if (strncmp(line, "/system", 7) == 0 && (line[7] == ' ' || !line[7])) {
        reset(t, 0);
        if (line[7] && line[8])
            *code = add_message(t, "system", line + 8);
    } else if (line[0] == '/') {
        cli_note(t->c, "/reset, /system TEXT and /exit are the commands\n");
    } else if (n) {
        *code = add_message(t, "user", line);
        if (!*code)
            *code = reply(t);
    }
    return !*code && !cli_output_closed();
}

int verb_chat(cli *c)
{
    chat t = {.c = c};
    char *line = NULL;
    size_t room = 0;
    qn_tokenizer_info info;
    int code = cli_open_model(c, c->operands[0], cli_asked_form(c), &t.model);
    if (!code && !qn_model_tokenizer(t.model))
        code = cli_fail(c, EXIT_INPUT, "%s: the model has no tokenizer", c->operands[0]);
    if (!code) {
        qn_tokenizer_get_info(qn_model_tokenizer(t.model), &info);
        if (!info.chat_template)
            code = cli_fail(c, EXIT_INPUT, "%s: the model has no chat template; use 'quern run'", c->operands[0]);
    }
    if (!code)
        code = cli_open_session(c, t.model, c->value[OPT_CTX_SIZE].i, c->value[OPT_BATCH].i, &t.session);
    if (!code)
        code = cli_make_sampler(c, t.model, &t.sampler);
    if (!code) {
        t.history = cli_alloc((size_t)qn_session_capacity(t.session) + 1, sizeof *t.history);
        code = t.history ? 0 : cli_memory(c, "the conversation");
    }
    if (!code && c->value[OPT_SYSTEM].set)
        code = add_message(&t, "system", c->value[OPT_SYSTEM].s);
    int go_on = !code, terminal = isatty(STDIN_FILENO);
    while (go_on) {
        if (terminal)
            cli_note(c, "> ");
        if (getline(&line, &room, stdin) < 0)
            break;
        go_on = handle_line(&t, line, &code);
    }
    if (terminal && !code)
        cli_note(c, "\n");
    drop_messages(&t, 0, t.count);
    free(t.messages);
    free(t.history);
    free(line);
    qn_sampler_destroy(t.sampler);
    qn_session_destroy(t.session);
    qn_model_close(t.model);
    return code;
}
