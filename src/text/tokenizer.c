/* Making, asking and decoding: everything of a tokenizer that is not encoding
 * (encode.c), chat templates (template*.c) or export (export.c). */
#include "text/tokenizer.h"

#include <string.h>

#include "text/bpe.h"

qn_status qn_tokenizer_create(qn_ctx *ctx, const qn_tokenizer_source *source, int32_t vocab_size, qn_tokenizer **out,
                              qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "tokenizer creation got NULL for out");
    *out = NULL;
    QN_FAIL_IF(!ctx || !source, error, QN_E_ARGUMENT, "tokenizer creation got NULL for the context or the source");
    QN_FAIL_IF(vocab_size <= 0, error, QN_E_ARGUMENT, "vocab_size is %d, expected more than 0", vocab_size);
    qn_tokenizer *t = qn_calloc(ctx, 1, sizeof *t);
    QN_FAIL_IF(!t, error, QN_E_MEMORY, "out of memory for the tokenizer");
    t->ctx = ctx;
    t->texts = qn_buffer_make(ctx);
    t->pieces = qn_buffer_make(ctx);
    t->model_vocab = vocab_size;
    t->bos_id = t->eos_id = t->unk_id = t->pad_id = t->unk_model_id = -1;
    qn_status status;
    if (source->tokenizer_json.data) {
        status = qn_tokenizer_from_json(t, source, error);
    } else if (source->tokens) {
        status = qn_tokenizer_from_gguf(t, source, error);
    } else {
        status = qn_error_set(error, QN_E_UNSUPPORTED,
                              "the model has no tokenizer that is known here (tokenizer.json or GGUF tokens)");
    }
    if (status != QN_OK) {
        qn_tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return QN_OK;
}

static void trie_free(const qn_ctx *ctx, qn_trie *trie)
{
    qn_pair_map_free(ctx, &trie->edges);
    qn_free(ctx, trie->token);
}

void qn_tokenizer_destroy(qn_tokenizer *t)
{
    if (!t) {
        return;
    }
    const qn_ctx *ctx = t->ctx;
    for (int i = 0; i < t->step_count; i++) {
        qn_split_free(ctx, &t->steps[i]);
    }
    trie_free(ctx, &t->added);
    trie_free(ctx, &t->added_normalized);
    qn_pair_map_free(ctx, &t->merges);
    qn_free(ctx, t->merge_left);
    qn_free(ctx, t->merge_right);
    qn_free(ctx, t->merge_to);
    qn_free(ctx, t->merge_order);
    qn_free(ctx, t->by_text);
    qn_free(ctx, t->tokens);
    qn_buffer_free(&t->texts);
    qn_buffer_free(&t->pieces);
    qn_free(ctx, t->pre);
    qn_free(ctx, t->chat_template);
    qn_free(ctx, t);
}

const char *qn_tokenizer_piece(const qn_tokenizer *tokenizer, int32_t id, size_t *bytes)
{
    if (bytes) {
        *bytes = 0;
    }
    if (!tokenizer || id < 0 || id >= tokenizer->token_count || !(tokenizer->tokens[id].flags & QN_TOKEN_PRESENT)) {
        return NULL;
    }
    const qn_token *token = &tokenizer->tokens[id];
    if (bytes) {
        *bytes = token->piece_bytes;
    }
    return tokenizer->pieces.data ? tokenizer->pieces.data + token->piece_at : "";
}

qn_status qn_tokenizer_decode(const qn_tokenizer *tokenizer, const int32_t *ids, size_t count, int skip_special,
                              char *text, size_t capacity, size_t *bytes, qn_error *error)
{
    QN_FAIL_IF(!tokenizer || !bytes || (!ids && count) || (!text && capacity), error, QN_E_ARGUMENT,
               "decode got NULL for the tokenizer, ids, text or bytes");
    *bytes = 0;
    size_t need = 0;
    int strip = tokenizer->marks.strip;
    for (size_t i = 0; i < count; i++) {
        QN_FAIL_IF(ids[i] < 0 || ids[i] >= tokenizer->model_vocab, error, QN_E_ARGUMENT,
                   "id %zu is %d, expected 0 to %d", i, ids[i], tokenizer->model_vocab - 1);
        size_t n;
        const char *piece = qn_tokenizer_piece(tokenizer, ids[i], &n);
        if (!piece || (skip_special && qn_tokenizer_is_special(tokenizer, ids[i]))) {
            continue;
        }
        if (strip && n && piece[0] == ' ') {
            piece++;
            n--;
        }
        strip = 0;
        if (need < capacity && n) {
            memcpy(text + need, piece, n < capacity - need ? n : capacity - need);
        }
        need += n;
    }
    *bytes = need;
    QN_FAIL_IF(need > capacity, error, QN_E_WORKSPACE, "the text has %zu bytes, but there is room for %zu", need,
               capacity);
    return QN_OK;
}

void qn_tokenizer_get_info(const qn_tokenizer *tokenizer, qn_tokenizer_info *info)
{
    if (!info) {
        return;
    }
    memset(info, 0, sizeof *info);
    if (!tokenizer) {
        return;
    }
    *info = (qn_tokenizer_info){.model = "bpe",
                                .pre = tokenizer->pre,
                                .vocab_size = tokenizer->token_count,
                                .merge_count = tokenizer->merge_count,
                                .special_count = tokenizer->special_count,
                                .bos_id = tokenizer->bos_id,
                                .eos_id = tokenizer->eos_id,
                                .unk_id = tokenizer->unk_id,
                                .pad_id = tokenizer->pad_id,
                                .add_bos = tokenizer->add_bos,
                                .add_eos = tokenizer->add_eos,
                                .chat_template = tokenizer->chat_template};
}

static int has_flag(const qn_tokenizer *tokenizer, int32_t id, uint32_t flag)
{
    return tokenizer && id >= 0 && id < tokenizer->token_count && (tokenizer->tokens[id].flags & flag) != 0;
}

int qn_tokenizer_is_end(const qn_tokenizer *tokenizer, int32_t id)
{
    return has_flag(tokenizer, id, QN_TOKEN_END);
}

int qn_tokenizer_is_special(const qn_tokenizer *tokenizer, int32_t id)
{
    return has_flag(tokenizer, id, QN_TOKEN_SPECIAL);
}
