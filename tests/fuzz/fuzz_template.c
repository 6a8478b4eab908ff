/* Bytes as a chat template, rendered over fixed messages. */
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 16];
    static const qn_chat_message messages[] = {
        {"system", "Be brief."}, {"user", " h\xC3\xA9llo\n"}, {"assistant", "<think>a</think>b"}};
    static const qn_string tokens[] = {{"<s>", 3}, {"</s>", 4}, {"a", 1}, {"b", 1}, {"ab", 2}}, merges[] = {{"a b", 3}};
    const qn_tokenizer_source source = {.model = "gpt2",
                                        .tokens = tokens,
                                        .token_count = 5,
                                        .merges = merges,
                                        .merge_count = 1,
                                        .bos_id = 0,
                                        .eos_id = 1,
                                        .eot_id = -1,
                                        .unk_id = -1,
                                        .pad_id = -1,
                                        .add_bos = 0,
                                        .add_eos = 0};
    qn_ctx *ctx = NULL;
    qn_tokenizer *t = NULL;
    qn_error error;
    size_t bytes;
    char *template = malloc(size + 1);
    for (size_t i = 0; i < size; i++) {
        template[i] = (char)data[i];
    }
    template[size] = 0;
    if (qn_ctx_create(NULL, &ctx, &error) == QN_OK && qn_tokenizer_create(ctx, &source, 5, &t, &error) == QN_OK) {
        (void)qn_chat_render(t, template, messages, 3, 1, text, sizeof text, &bytes, &error);
    }
    qn_tokenizer_destroy(t);
    qn_ctx_destroy(ctx);
    free(template);
    return 0;
}
