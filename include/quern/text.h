/* Text: tokenizer, chat template, sampler. */
#ifndef QUERN_TEXT_H
#define QUERN_TEXT_H

#include <quern/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tokenizer is immutable and may be shared by threads. It belongs to the
 * model it came from (qn_model_tokenizer). */
typedef struct qn_tokenizer qn_tokenizer;

#define QN_ENCODE_ADD_SPECIAL 1u   /* put BOS/EOS where the model's tokenizer says so */
#define QN_ENCODE_PARSE_SPECIAL 2u /* text of special tokens becomes those tokens */

/* Token ids of UTF-8 text (bad UTF-8 is taken byte by byte as U+FFFD).
 * Writes at most capacity ids, always sets *count to all there are; a too
 * small buffer is QN_E_WORKSPACE. ids may be NULL when capacity is 0. */
QN_API qn_status qn_tokenizer_encode(const qn_tokenizer *tokenizer, const char *text, size_t text_bytes, uint32_t flags,
                                     int32_t *ids, size_t capacity, size_t *count, qn_error *error);

/* Bytes of one token; special tokens give their text. Not always whole UTF-8
 * characters. NULL and length 0 when id is none. Owned by the tokenizer. */
QN_API const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id, size_t *bytes);

/* Text of ids; skip_special leaves special tokens out. Buffer rules as encode, without a final zero. */
QN_API qn_status qn_tokenizer_decode(const qn_tokenizer *tokenizer, const int32_t *ids, size_t count, int skip_special,
                                     char *text, size_t capacity, size_t *bytes, qn_error *error);

typedef struct qn_tokenizer_info {
    const char *model; /* "bpe" */
    const char *pre;   /* split rule, e.g. "gpt2", "llama3"; "sentencepiece": characters with marks for spaces */
    int32_t vocab_size;
    int32_t merge_count;
    int32_t special_count;
    int32_t bos_id, eos_id, unk_id, pad_id; /* -1: none */
    int32_t add_bos, add_eos;
    const char *chat_template; /* NULL: none */
} qn_tokenizer_info;

QN_API void qn_tokenizer_get_info(const qn_tokenizer *tokenizer, qn_tokenizer_info *info);

/* 1 when the token ends a reply (EOS, end of turn, end of text). */
QN_API int qn_tokenizer_is_end(const qn_tokenizer *tokenizer, int32_t id);

/* 1 when the token is special (control), 0 otherwise. */
QN_API int qn_tokenizer_is_special(const qn_tokenizer *tokenizer, int32_t id);

typedef struct qn_chat_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8 */
} qn_chat_message;

/* Render a chat template (the Jinja subset of docs/chat-template.md) over
 * messages. text_template NULL: the tokenizer's own. Buffer rules as decode.
 * QN_E_UNSUPPORTED: no template, or a construct outside the subset, named with
 * its line. QN_E_FILE: it does not parse, or steps, depth or output pass their limits.
 * QN_E_ARGUMENT: the template raised an error (its sentence is given). */
QN_API qn_status qn_chat_render(const qn_tokenizer *tokenizer, const char *text_template,
                                const qn_chat_message *messages, size_t message_count, int add_generation_prompt,
                                char *text, size_t capacity, size_t *bytes, qn_error *error);

/* Sampling. Order: temperature 0 = greedy (lowest id wins ties), else
 * repeat penalty, top-k, top-p, min-p, temperature, draw. Deterministic for a seed. */
typedef struct qn_sampler_options {
    size_t size;          /* sizeof(qn_sampler_options), set by qn_sampler_options_init */
    float temperature;    /* 0: greedy */
    int32_t top_k;        /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    int32_t repeat_last;  /* tokens it looks back */
    uint64_t seed;
} qn_sampler_options;

typedef struct qn_sampler qn_sampler;

QN_API void qn_sampler_options_init(qn_sampler_options *options);
QN_API qn_status qn_sampler_create(qn_ctx *ctx, const qn_sampler_options *options, int32_t vocab_size, qn_sampler **out,
                                   qn_error *error);
QN_API void qn_sampler_destroy(qn_sampler *sampler);

/* Draw the next token from logits[vocab_size] and remember it. Non-finite
 * logits: -Inf never drawn; NaN or +Inf is QN_E_ARGUMENT. */
QN_API qn_status qn_sampler_draw(qn_sampler *sampler, const float *logits, int32_t *id, qn_error *error);

/* Tell the sampler of a token it did not draw (the prompt). */
QN_API void qn_sampler_accept(qn_sampler *sampler, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
