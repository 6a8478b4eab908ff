/* A tokenizer small enough to write down, for tests that need one but not its ids. */
#ifndef QN_TESTS_SMALL_TOKENIZER_H
#define QN_TESTS_SMALL_TOKENIZER_H

#include <string.h>

#include "text/tokenizer.h"

static inline qn_status small_tokenizer(qn_ctx *ctx, const char *chat_template, qn_tokenizer **out, qn_error *error)
{
    static const qn_string tokens[] = {{"<s>", 3}, {"</s>", 4}, {"a", 1}, {"b", 1}, {"ab", 2}};
    static const int32_t types[] = {3, 3, 1, 1, 1};
    static const qn_string merges[] = {{"a b", 3}};
    const qn_tokenizer_source source = {.model = "gpt2",
                                        .pre = "gpt-2",
                                        .tokens = tokens,
                                        .token_types = types,
                                        .token_count = 5,
                                        .merges = merges,
                                        .merge_count = 1,
                                        .bos_id = 0,
                                        .eos_id = 1,
                                        .eot_id = -1,
                                        .unk_id = -1,
                                        .pad_id = -1,
                                        .add_bos = 0,
                                        .add_eos = 0,
                                        .chat_template = chat_template};
    return qn_tokenizer_create(ctx, &source, 5, out, error);
}

#endif
