/* The public call for chat templates, and the arena and limits of one rendering. */
#include "text/template.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/bpe.h"

#define CHUNK (64u << 10)

qn_status tpl_fail(tpl *t, qn_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return qn_error_set(t->error, status, "chat template, line %d: %s", t->line, text);
}

qn_status tpl_alloc(tpl *t, size_t bytes, void *out)
{
    void *none = NULL;
    memcpy(out, &none, sizeof none);
    if (bytes > TPL_MAX_MEMORY || t->memory + bytes > TPL_MAX_MEMORY) {
        TPL_FAIL(t, QN_E_FILE, "it uses more than %u bytes of memory", TPL_MAX_MEMORY);
    }
    bytes = (bytes + 15) & ~(size_t)15;
    const size_t head = (sizeof(tpl_chunk) + 15) & ~(size_t)15;
    if (!t->chunks || t->chunks->size - t->chunks->used < bytes) {
        const size_t size = bytes > CHUNK / 4 ? bytes : CHUNK;
        tpl_chunk *chunk = qn_alloc(t->ctx, head + size);
        if (!chunk) {
            TPL_FAIL(t, QN_E_MEMORY, "out of memory");
        }
        *chunk = (tpl_chunk){.size = size};
        if (t->chunks && size != CHUNK) { /* a block of its own goes behind the one still in use */
            chunk->next = t->chunks->next;
            t->chunks->next = chunk;
        } else {
            chunk->next = t->chunks;
            t->chunks = chunk;
        }
        t->memory += size;
        chunk->used = bytes;
        void *p = (char *)chunk + head;
        memset(p, 0, bytes);
        memcpy(out, &p, sizeof p);
        return QN_OK;
    }
    void *p = (char *)t->chunks + head + t->chunks->used;
    t->chunks->used += bytes;
    memset(p, 0, bytes);
    memcpy(out, &p, sizeof p);
    return QN_OK;
}

void tpl_free_all(tpl *t)
{
    while (t->chunks) {
        tpl_chunk *next = t->chunks->next;
        qn_free(t->ctx, t->chunks);
        t->chunks = next;
    }
}

qn_status tpl_charge(tpl *t, size_t bytes)
{
    t->steps += 1 + bytes / 16;
    if (t->steps > TPL_MAX_STEPS) {
        TPL_FAIL(t, QN_E_FILE, "it takes more than %u steps", TPL_MAX_STEPS);
    }
    return QN_OK;
}

static tpl_text text_of(const char *s)
{
    return (tpl_text){s, strlen(s)};
}

static qn_status set_token(tpl *t, const qn_tokenizer *tokenizer, const char *name, int32_t id)
{
    if (id < 0) {
        return QN_OK; /* stays undefined */
    }
    const qn_token *token = &tokenizer->tokens[id];
    return tpl_set_variable(t, text_of(name), tpl_string(tokenizer->texts.data + token->text_at, token->text_bytes));
}

/* What a template sees, as transformers passes it. */
static qn_status set_context(tpl *t, const qn_tokenizer *tokenizer, const qn_chat_message *messages, size_t count,
                             int add_generation_prompt)
{
    tpl_value list;
    QN_TRY(tpl_new_list(t, count, &list));
    for (size_t i = 0; i < count; i++) {
        tpl_value *m = &list.u.list->items[i];
        QN_TRY(tpl_new_dict(t, TPL_DICT, m));
        QN_TRY(
            tpl_dict_set(t, m->u.dict, tpl_string("role", 4), tpl_string(messages[i].role, strlen(messages[i].role))));
        QN_TRY(tpl_dict_set(t, m->u.dict, tpl_string("content", 7),
                            tpl_string(messages[i].content, strlen(messages[i].content))));
    }
    QN_TRY(tpl_set_variable(t, text_of("messages"), list));
    QN_TRY(tpl_set_variable(t, text_of("add_generation_prompt"), tpl_bool(add_generation_prompt)));
    QN_TRY(tpl_set_variable(t, text_of("tools"), (tpl_value){.kind = TPL_NONE}));
    QN_TRY(tpl_set_variable(t, text_of("documents"), (tpl_value){.kind = TPL_NONE}));
    if (tokenizer) {
        QN_TRY(set_token(t, tokenizer, "bos_token", tokenizer->bos_id));
        QN_TRY(set_token(t, tokenizer, "eos_token", tokenizer->eos_id));
        QN_TRY(set_token(t, tokenizer, "unk_token", tokenizer->unk_id));
        QN_TRY(set_token(t, tokenizer, "pad_token", tokenizer->pad_id));
    }
    return QN_OK;
}

static qn_status render(tpl *t, const char *source, const qn_tokenizer *tokenizer, const qn_chat_message *messages,
                        size_t count, int add_generation_prompt)
{
    tpl_node *body;
    const size_t bytes = strlen(source);
    t->line = 1;
    if (bytes > QN_TEXT_MAX_TEMPLATE) {
        TPL_FAIL(t, QN_E_FILE, "it has %zu bytes, expected at most %d", bytes, QN_TEXT_MAX_TEMPLATE);
    }
    if (!qn_utf8_valid(source, bytes)) {
        TPL_FAIL(t, QN_E_FILE, "it is not UTF-8");
    }
    QN_TRY(tpl_lex(t, source, bytes));
    QN_TRY(tpl_parse(t, &body));
    t->depth = 0;
    QN_TRY(set_context(t, tokenizer, messages, count, add_generation_prompt));
    return tpl_run(t, body);
}

qn_status qn_chat_render(const qn_tokenizer *tokenizer, const char *text_template, const qn_chat_message *messages,
                         size_t message_count, int add_generation_prompt, char *text, size_t capacity, size_t *bytes,
                         qn_error *error)
{
    QN_FAIL_IF(!tokenizer || !bytes || (!messages && message_count) || (!text && capacity), error, QN_E_ARGUMENT,
               "chat rendering got NULL for the tokenizer, messages, text or bytes");
    *bytes = 0;
    for (size_t i = 0; i < message_count; i++) {
        QN_FAIL_IF(!messages[i].role || !messages[i].content, error, QN_E_ARGUMENT,
                   "message %zu has NULL for its role or content", i);
    }
    const char *source = text_template ? text_template : tokenizer->chat_template;
    QN_FAIL_IF(!source, error, QN_E_UNSUPPORTED, "the model has no chat template");
    tpl_output out = {0};
    tpl t = {.ctx = tokenizer->ctx, .error = error, .out = &out};
    t.scope = &t.root;
    qn_status status = render(&t, source, tokenizer, messages, message_count, add_generation_prompt);
    if (status == QN_OK) {
        *bytes = out.bytes;
        if (out.bytes) {
            memcpy(text ? text : (char[1]){0}, out.data, capacity < out.bytes ? capacity : out.bytes);
        }
        if (out.bytes > capacity) {
            status = qn_error_set(error, QN_E_WORKSPACE, "the text has %zu bytes, but there is room for %zu", out.bytes,
                                  capacity);
        }
    }
    tpl_free_all(&t);
    return status;
}
