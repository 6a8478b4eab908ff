/* A tokenizer from the arrays of a GGUF file (metadata tokenizer.ggml.*).
 *
 * GGUF names the split rule instead of spelling it; only names whose rule is
 * certain are taken (docs/tokenizer.md lists them with their source family).
 * SentencePiece's models have scores instead of merges: these are made here. */
#include <math.h>
#include <stdlib.h>
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
    QN_TRY(qn_vocab_reserve_merges(t, source->merge_count, error));
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

/* ---- SentencePiece: a pair whose text is a token merges, the highest score first ---- */

#define MAX_SCORED_BYTES 256 /* of a token that merges make */

typedef struct scored {
    float score;
    int32_t id, at; /* the token, and where its left side ends */
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score > y->score || x->score < y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : (x->at > y->at) - (x->at < y->at);
}

/* Where ordinary tokens can be cut into two others. out may be NULL. Returns how many, -1 for too many. */
static int32_t find_merges(const qn_tokenizer_source *source, const qn_tokenizer *t, scored *out)
{
    int64_t n = 0;
    for (int32_t id = 0; id < source->token_count; id++) {
        const qn_string *s = &source->tokens[id];
        const int ordinary = t->tokens[id].flags == QN_TOKEN_PRESENT && s->bytes <= MAX_SCORED_BYTES;
        for (size_t at = 1; ordinary && at < s->bytes; at++) {
            const int32_t left = qn_vocab_find(t, s->data, at), right = qn_vocab_find(t, s->data + at, s->bytes - at);
            if (left < 0 || right < 0 || ((t->tokens[left].flags | t->tokens[right].flags) & QN_TOKEN_SPECIAL)) {
                continue;
            }
            if (out) {
                out[n] = (scored){source->scores[id], id, (int32_t)at};
            }
            n++;
        }
    }
    return n <= QN_TEXT_MAX_TOKENS ? (int32_t)n : -1;
}

static qn_status add_scored_merges(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    const int32_t count = find_merges(source, t, NULL);
    QN_FAIL_IF(count < 0, error, QN_E_FILE, "the tokens can be made of others in more than %d ways",
               QN_TEXT_MAX_TOKENS);
    scored *const all = qn_calloc(t->ctx, (size_t)count + 1, sizeof *all);
    QN_FAIL_IF(!all, error, QN_E_MEMORY, "out of memory for %d merges", count);
    (void)find_merges(source, t, all);
    qsort(all, (size_t)count, sizeof *all, by_score);
    qn_status status = qn_vocab_reserve_merges(t, count, error);
    t->merge_order = qn_calloc(t->ctx, (size_t)count + 1, sizeof *t->merge_order);
    if (status == QN_OK && !t->merge_order) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for %d merges", count);
    }
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        const int same = i > 0 && !(all[i].score < all[i - 1].score);
        t->merge_order[i] = same ? t->merge_order[i - 1] : i;
        const qn_string *s = &source->tokens[all[i].id];
        const size_t at = (size_t)all[i].at;
        status = qn_vocab_add_merge(t, i, s->data, at, s->data + at, s->bytes - at, error);
    }
    qn_free(t->ctx, all);
    return status;
}

static qn_status make_characters(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    QN_FAIL_IF(!source->scores, error, QN_E_FILE, "tokenizer.ggml.scores is missing");
    for (int32_t i = 0; i < source->token_count; i++) {
        QN_FAIL_IF(isnan(source->scores[i]), error, QN_E_FILE, "tokenizer.ggml.scores: the score of token %d is NaN",
                   i);
    }
    t->characters = t->byte_fallback = t->fuse_unk = 1;
    t->marks.normalizer = 1;
    t->marks.before = source->add_space != 0 ? QN_MARK_ALWAYS : QN_MARK_NEVER;
    t->marks.strip = source->add_space != 0;
    t->pre = qn_strdup(t->ctx, "sentencepiece");
    QN_FAIL_IF(!t->pre, error, QN_E_MEMORY, "out of memory for the tokenizer");
    return QN_OK;
}

qn_status qn_tokenizer_from_gguf(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    const int scores = source->model && strcmp(source->model, "llama") == 0;
    QN_FAIL_IF(!source->model || (!scores && strcmp(source->model, "gpt2") != 0), error, QN_E_UNSUPPORTED,
               "tokenizer.ggml.model is '%s', expected 'gpt2' or 'llama'",
               qn_show(source->model ? source->model : "", source->model ? strlen(source->model) : 0).text);
    QN_FAIL_IF(source->token_count <= 0, error, QN_E_FILE, "tokenizer.ggml.tokens has no entries");
    QN_FAIL_IF(source->token_count > t->model_vocab, error, QN_E_FILE,
               "tokenizer.ggml.tokens has %d entries, but the model knows %d", source->token_count, t->model_vocab);
    QN_FAIL_IF(!scores && (!source->merges || source->merge_count <= 0), error, QN_E_FILE,
               "tokenizer.ggml.merges is missing or empty");
    QN_TRY(scores ? make_characters(t, source, error) : make_steps(t, source->pre, error));
    QN_TRY(qn_vocab_reserve(t, source->token_count, error));
    QN_TRY(add_tokens(t, source, error));
    QN_TRY(scores ? add_scored_merges(t, source, error) : add_merges(t, source, error));
    int32_t eot = -1;
    QN_TRY(check_id(t, "bos", source->bos_id, &t->bos_id, error));
    QN_TRY(check_id(t, "eos", source->eos_id, &t->eos_id, error));
    QN_TRY(check_id(t, "eot", source->eot_id, &eot, error));
    QN_TRY(check_id(t, "unknown", source->unk_id, &t->unk_id, error));
    QN_TRY(check_id(t, "padding", source->pad_id, &t->pad_id, error));
    if (eot >= 0) {
        t->tokens[eot].flags |= QN_TOKEN_END;
    }
    t->unk_model_id = scores ? t->unk_id : -1;
    t->add_bos = (source->add_bos == 1 || (scores && source->add_bos < 0)) && t->bos_id >= 0;
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
