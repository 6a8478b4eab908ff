/* A tokenizer from the arrays of a GGUF file (metadata tokenizer.ggml.*).
 *
 * GGUF names the split rule instead of spelling it; only names whose rule is
 * certain are taken (docs/tokenizer.md lists them with their source family). */
#include <string.h>

#include "text/bpe.h"

typedef struct pre_rule {
    const char *name;
    const char *shown;
    enum { RULE_GPT2, RULE_DIGITS_GPT2, RULE_LLAMA3, RULE_QWEN2 } rule;
} pre_rule;

static const pre_rule pre_rules[] = {
    {"gpt-2", "gpt2", RULE_GPT2},
    {"gpt2", "gpt2", RULE_GPT2},
    {"default", "gpt2", RULE_GPT2},
    {"smollm", "smollm", RULE_DIGITS_GPT2},
    {"starcoder", "starcoder", RULE_DIGITS_GPT2},
    {"llama-bpe", "llama3", RULE_LLAMA3},
    {"llama3", "llama3", RULE_LLAMA3},
    {"llama-v3", "llama3", RULE_LLAMA3},
    {"qwen2", "qwen2", RULE_QWEN2},
    {"deepseek-r1-qwen", "qwen2", RULE_QWEN2},
};

static qn_status make_steps(qn_tokenizer *t, const char *pre, qn_error *error)
{
    const pre_rule *rule = NULL;
    for (size_t i = 0; i < sizeof pre_rules / sizeof *pre_rules; i++) {
        if (strcmp(pre ? pre : "gpt2", pre_rules[i].name) == 0) {
            rule = &pre_rules[i];
        }
    }
    QN_FAIL_IF(!rule, error, QN_E_UNSUPPORTED,
               "tokenizer.ggml.pre is '%s', expected gpt-2, default, smollm, starcoder, llama-bpe, llama3, qwen2 or "
               "deepseek-r1-qwen",
               qn_show(pre, strlen(pre)).text);
    t->pre = qn_strdup(t->ctx, rule->shown);
    QN_FAIL_IF(!t->pre, error, QN_E_MEMORY, "out of memory for the tokenizer");
    const char *pattern = rule->rule == RULE_LLAMA3  ? qn_pattern_llama3
                          : rule->rule == RULE_QWEN2 ? qn_pattern_qwen2
                                                     : NULL;
    if (rule->rule == RULE_DIGITS_GPT2) {
        QN_TRY(qn_split_make(t->ctx, QN_SPLIT_DIGITS, NULL, 0, 0, &t->steps[t->step_count], error));
        t->step_count++;
    }
    if (pattern) {
        QN_TRY(qn_split_make(t->ctx, QN_SPLIT_REGEX, pattern, strlen(pattern), 0, &t->steps[t->step_count], error));
        t->step_count++;
    }
    QN_TRY(qn_split_make(t->ctx, QN_SPLIT_BYTES, NULL, 0, pattern == NULL, &t->steps[t->step_count], error));
    t->step_count++;
    t->normalize = rule->rule == RULE_QWEN2;
    t->ignore_merges = rule->rule == RULE_LLAMA3;
    return QN_OK;
}

static qn_status check_id(const qn_tokenizer *t, const char *name, int32_t id, int32_t *out, qn_error *error)
{
    QN_FAIL_IF(id < -1 || id >= t->token_count || (id >= 0 && !(t->tokens[id].flags & QN_TOKEN_PRESENT)), error,
               QN_E_FILE, "tokenizer.ggml.%s_token_id is %d, expected 0 to %d", name, id, t->token_count - 1);
    *out = id;
    return QN_OK;
}

static qn_status add_tokens(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    for (int32_t id = 0; id < source->token_count; id++) {
        const qn_string *s = &source->tokens[id];
        const int32_t type = source->token_types ? source->token_types[id] : 1;
        QN_FAIL_IF(!s->data && s->bytes, error, QN_E_FILE, "token %d has no text", id);
        QN_FAIL_IF(type < 0 || type > 6, error, QN_E_FILE, "token %d has type %d, expected 1 to 6", id, type);
        if (type == 5) {
            continue; /* unused: never made and decodes to nothing */
        }
        uint32_t flags = 0;
        if (type == 2 || type == 3) {
            flags = QN_TOKEN_ADDED | QN_TOKEN_SPECIAL;
        } else if (type == 4) {
            flags = QN_TOKEN_ADDED;
        }
        QN_TRY(qn_vocab_add(t, id, s->data ? s->data : "", s->bytes, flags, error));
    }
    return QN_OK;
}

static qn_status add_merges(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    for (int32_t i = 0; i < source->merge_count; i++) {
        const qn_string *s = &source->merges[i];
        const char *space = s->data && s->bytes ? memchr(s->data, ' ', s->bytes) : NULL;
        QN_FAIL_IF(!space, error, QN_E_FILE, "merge %d is '%s', expected two tokens with a space between", i,
                   qn_show(s->data ? s->data : "", s->data ? s->bytes : 0).text);
        const size_t left = (size_t)(space - s->data);
        QN_TRY(qn_vocab_add_merge(t, i, s->data, left, space + 1, s->bytes - left - 1, error));
    }
    return QN_OK;
}

qn_status qn_tokenizer_from_gguf(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    QN_FAIL_IF(source->model && strcmp(source->model, "llama") == 0, error, QN_E_UNSUPPORTED,
               "tokenizer.ggml.model is 'llama' (SentencePiece scores), which is not served; expected 'gpt2'");
    QN_FAIL_IF(!source->model || strcmp(source->model, "gpt2") != 0, error, QN_E_UNSUPPORTED,
               "tokenizer.ggml.model is '%s', expected 'gpt2'",
               qn_show(source->model ? source->model : "", source->model ? strlen(source->model) : 0).text);
    QN_FAIL_IF(source->token_count <= 0, error, QN_E_FILE, "tokenizer.ggml.tokens has no entries");
    QN_FAIL_IF(source->token_count > t->model_vocab, error, QN_E_FILE,
               "tokenizer.ggml.tokens has %d entries, but the model knows %d", source->token_count, t->model_vocab);
    QN_FAIL_IF(!source->merges || source->merge_count <= 0, error, QN_E_FILE,
               "tokenizer.ggml.merges is missing or empty");
    QN_TRY(make_steps(t, source->pre, error));
    QN_TRY(qn_vocab_reserve(t, source->token_count, source->merge_count, error));
    QN_TRY(add_tokens(t, source, error));
    QN_TRY(add_merges(t, source, error));
    int32_t eot = -1;
    QN_TRY(check_id(t, "bos", source->bos_id, &t->bos_id, error));
    QN_TRY(check_id(t, "eos", source->eos_id, &t->eos_id, error));
    QN_TRY(check_id(t, "eot", source->eot_id, &eot, error));
    QN_TRY(check_id(t, "unknown", source->unk_id, &t->unk_id, error));
    QN_TRY(check_id(t, "padding", source->pad_id, &t->pad_id, error));
    if (eot >= 0) {
        t->tokens[eot].flags |= QN_TOKEN_END;
    }
    t->add_bos = source->add_bos == 1 && t->bos_id >= 0;
    t->add_eos = source->add_eos == 1 && t->eos_id >= 0;
    if (t->add_bos) {
        t->prefix[t->prefix_count++] = t->bos_id;
    }
    if (t->add_eos) {
        t->suffix[t->suffix_count++] = t->eos_id;
    }
    if (source->chat_template && *source->chat_template) {
        QN_FAIL_IF(strlen(source->chat_template) > QN_TEXT_MAX_TEMPLATE, error, QN_E_FILE,
                   "the chat template has %zu bytes, expected at most %d", strlen(source->chat_template),
                   QN_TEXT_MAX_TEMPLATE);
        t->chat_template = qn_strdup(t->ctx, source->chat_template);
        QN_FAIL_IF(!t->chat_template, error, QN_E_MEMORY, "out of memory for the chat template");
    }
    return qn_vocab_finish(t, error);
}
