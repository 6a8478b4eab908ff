/* Tables of a tokenizer: tokens by text, merges by pair, the byte alphabet, the
 * trie of added tokens. Filled by the builders, read by encode.c. Everything
 * a file says is checked here once, so that encoding needs no checks. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "text/bpe.h"

/* Finaliser of splitmix64: every input bit reaches every output bit. */
static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t hash_text(const char *text, size_t bytes)
{
    uint64_t h = mix(bytes);
    for (; bytes >= 8; text += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        h = mix(h ^ word);
    }
    uint64_t word = 0;
    memcpy(&word, text, bytes);
    return mix(h ^ word);
}

/* A power of two at least twice count. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < count * 2) {
        size *= 2;
    }
    return size;
}

qn_status qn_pair_map_make(const qn_ctx *ctx, size_t count, qn_pair_map *out, qn_error *error)
{
    *out = (qn_pair_map){0};
    const size_t size = table_size(count);
    out->keys = qn_calloc(ctx, size, sizeof *out->keys);
    out->values = qn_calloc(ctx, size, sizeof *out->values);
    if (!out->keys || !out->values) {
        qn_pair_map_free(ctx, out);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for a tokenizer table of %zu entries", count);
    }
    memset(out->values, 0xFF, size * sizeof *out->values);
    out->mask = size - 1;
    return QN_OK;
}

void qn_pair_map_free(const qn_ctx *ctx, qn_pair_map *map)
{
    qn_free(ctx, map->keys);
    qn_free(ctx, map->values);
    *map = (qn_pair_map){0};
}

int32_t qn_pair_map_get(const qn_pair_map *map, uint64_t key)
{
    if (!map->keys) {
        return -1;
    }
    for (size_t i = mix(key) & map->mask;; i = (i + 1) & map->mask) {
        if (map->values[i] < 0 || map->keys[i] == key) {
            return map->values[i];
        }
    }
}

int qn_pair_map_put(qn_pair_map *map, uint64_t key, int32_t value)
{
    for (size_t i = mix(key) & map->mask;; i = (i + 1) & map->mask) {
        if (map->values[i] < 0) {
            map->keys[i] = key;
            map->values[i] = value;
            map->used++;
            return 0;
        }
        if (map->keys[i] == key) {
            return 1;
        }
    }
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100. */
static int stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t qn_byte_char(unsigned byte)
{
    if (stands_for_itself(byte)) {
        return byte;
    }
    if (byte <= 0x20) {
        return 0x100 + byte;
    }
    return byte == 0xAD ? 0x143 : 0x121 + (byte - 0x7F);
}

int qn_char_byte(uint32_t c)
{
    if (c < 0x100) {
        return stands_for_itself(c) ? (int)c : -1;
    }
    if (c <= 0x120) {
        return (int)(c - 0x100);
    }
    if (c <= 0x142) {
        return (int)(c - 0x121 + 0x7F);
    }
    return c == 0x143 ? 0xAD : -1;
}

qn_status qn_vocab_reserve(qn_tokenizer *t, int32_t count, qn_error *error)
{
    QN_FAIL_IF(count <= 0 || count > QN_TEXT_MAX_TOKENS, error, QN_E_FILE,
               "the tokenizer has %d tokens, expected 1 to %d", count, QN_TEXT_MAX_TOKENS);
    t->token_count = count;
    const size_t size = table_size((size_t)count);
    t->tokens = qn_calloc(t->ctx, (size_t)count, sizeof *t->tokens);
    t->by_text = qn_calloc(t->ctx, size, sizeof *t->by_text);
    QN_FAIL_IF(!t->tokens || !t->by_text, error, QN_E_MEMORY, "out of memory for a vocabulary of %d tokens", count);
    memset(t->by_text, 0xFF, size * sizeof *t->by_text);
    t->by_text_mask = size - 1;
    return QN_OK;
}

qn_status qn_vocab_reserve_merges(qn_tokenizer *t, int32_t count, qn_error *error)
{
    QN_FAIL_IF(count < 0 || count > QN_TEXT_MAX_TOKENS, error, QN_E_FILE,
               "the tokenizer has %d merges, expected 0 to %d", count, QN_TEXT_MAX_TOKENS);
    t->merge_count = count;
    t->merge_left = qn_calloc(t->ctx, (size_t)count + 1, sizeof *t->merge_left);
    t->merge_right = qn_calloc(t->ctx, (size_t)count + 1, sizeof *t->merge_right);
    t->merge_to = qn_calloc(t->ctx, (size_t)count + 1, sizeof *t->merge_to);
    QN_FAIL_IF(!t->merge_left || !t->merge_right || !t->merge_to, error, QN_E_MEMORY, "out of memory for %d merges",
               count);
    return qn_pair_map_make(t->ctx, (size_t)count, &t->merges, error);
}

int32_t qn_vocab_find(const qn_tokenizer *t, const char *text, size_t bytes)
{
    for (size_t i = hash_text(text, bytes) & t->by_text_mask;; i = (i + 1) & t->by_text_mask) {
        const int32_t id = t->by_text[i];
        if (id < 0) {
            return -1;
        }
        const qn_token *token = &t->tokens[id];
        if (token->text_bytes == bytes && memcmp(t->texts.data + token->text_at, text, bytes) == 0) {
            return id;
        }
    }
}

size_t qn_mark_spaces(const char *text, size_t bytes, int before, char *out)
{
    const size_t mark = sizeof QN_TEXT_MARK - 1;
    size_t n = 0;
    if (before) {
        memcpy(out, QN_TEXT_MARK, mark);
        n = mark;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == ' ') {
            memcpy(out + n, QN_TEXT_MARK, mark);
            n += mark;
        } else {
            out[n++] = text[i];
        }
    }
    return n;
}

/* The byte that a token <0xHH> stands for, -1: it is another token. */
static int byte_of(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789ABCDEF";
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const char *const high = memchr(digits, text[3], 16), *const low = memchr(digits, text[4], 16);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

/* Append what characters stand for: marks are spaces, <0xHH> is a byte. */
static void add_characters(qn_tokenizer *t, qn_token *token, const char *text, size_t bytes)
{
    const size_t mark = sizeof QN_TEXT_MARK - 1;
    const int byte = byte_of(text, bytes);
    const char one = (char)byte;
    token->piece_at = t->pieces.length;
    if (byte >= 0) {
        qn_buffer_add(&t->pieces, &one, 1);
    }
    for (size_t i = 0; i < bytes && byte < 0;) {
        const int space = bytes - i >= mark && memcmp(text + i, QN_TEXT_MARK, mark) == 0;
        qn_buffer_add(&t->pieces, space ? " " : text + i, 1);
        i += space ? mark : 1;
    }
    token->piece_bytes = (uint32_t)(t->pieces.length - token->piece_at);
}

/* Append what the text stands for: its bytes when all characters are of the byte alphabet, else the text itself. */
static void add_piece(qn_tokenizer *t, qn_token *token, const char *text, size_t bytes)
{
    uint32_t c = 0;
    int mapped = 1;
    if (t->characters) {
        add_characters(t, token, text, bytes);
        return;
    }
    token->piece_at = t->pieces.length;
    for (size_t i = 0; i < bytes && mapped;) {
        i += qn_utf8_next(text + i, bytes - i, &c);
        const int byte = qn_char_byte(c);
        const char out = (char)byte;
        mapped = byte >= 0;
        if (mapped) {
            qn_buffer_add(&t->pieces, &out, 1);
        }
    }
    if (!mapped) {
        t->pieces.length = token->piece_at;
        qn_buffer_add(&t->pieces, text, bytes);
    }
    token->piece_bytes = (uint32_t)(t->pieces.length - token->piece_at);
}

qn_status qn_vocab_add(qn_tokenizer *t, int32_t id, const char *text, size_t bytes, uint32_t flags, qn_error *error)
{
    QN_FAIL_IF(id < 0 || id >= t->token_count, error, QN_E_FILE, "token '%s' has id %d, expected 0 to %d",
               qn_show(text, bytes).text, id, t->token_count - 1);
    QN_FAIL_IF(bytes > (1u << 20), error, QN_E_FILE, "token %d has %zu bytes, expected at most %u", id, bytes,
               1u << 20);
    QN_FAIL_IF(!qn_utf8_valid(text, bytes), error, QN_E_FILE, "the text of token %d is not UTF-8", id);
    qn_token *token = &t->tokens[id];
    QN_FAIL_IF(token->flags & QN_TOKEN_PRESENT, error, QN_E_FILE, "two tokens have id %d: '%s' and '%s'", id,
               qn_show(t->texts.data + token->text_at, token->text_bytes).text, qn_show(text, bytes).text);
    const int32_t other = bytes ? qn_vocab_find(t, text, bytes) : -1;
    QN_FAIL_IF(other >= 0, error, QN_E_FILE, "tokens %d and %d have the same text '%s'", other, id,
               qn_show(text, bytes).text);
    token->flags = flags | QN_TOKEN_PRESENT;
    token->text_at = t->texts.length;
    token->text_bytes = (uint32_t)bytes;
    qn_buffer_add(&t->texts, text, bytes);
    add_piece(t, token, text, bytes);
    QN_FAIL_IF(t->texts.failed || t->pieces.failed, error, QN_E_MEMORY, "out of memory for the texts of %d tokens",
               t->token_count);
    if (bytes) { /* an empty text is never found in text */
        size_t i = hash_text(text, bytes) & t->by_text_mask;
        while (t->by_text[i] >= 0) {
            i = (i + 1) & t->by_text_mask;
        }
        t->by_text[i] = id;
    }
    return QN_OK;
}

qn_status qn_vocab_add_merge(qn_tokenizer *t, int32_t rank, const char *left, size_t left_bytes, const char *right,
                             size_t right_bytes, qn_error *error)
{
    QN_FAIL_IF(!left_bytes || !right_bytes, error, QN_E_FILE, "merge %d has an empty side", rank);
    const int32_t a = qn_vocab_find(t, left, left_bytes), b = qn_vocab_find(t, right, right_bytes);
    QN_FAIL_IF(a < 0 || b < 0, error, QN_E_FILE, "merge %d names '%s', which is no token", rank,
               a < 0 ? qn_show(left, left_bytes).text : qn_show(right, right_bytes).text);
    const size_t bytes = left_bytes + right_bytes;
    char small[256], *both = small;
    if (bytes > sizeof small) {
        both = qn_alloc(t->ctx, bytes);
        QN_FAIL_IF(!both, error, QN_E_MEMORY, "out of memory for merge %d", rank);
    }
    memcpy(both, left, left_bytes);
    memcpy(both + left_bytes, right, right_bytes);
    const int32_t to = qn_vocab_find(t, both, bytes);
    const qn_shown shown = qn_show(both, bytes);
    if (both != small) {
        qn_free(t->ctx, both);
    }
    QN_FAIL_IF(to < 0, error, QN_E_FILE, "merge %d makes '%s', which is no token", rank, shown.text);
    t->merge_left[rank] = a;
    t->merge_right[rank] = b;
    t->merge_to[rank] = to;
    QN_FAIL_IF(qn_pair_map_put(&t->merges, qn_pair(a, b), rank), error, QN_E_FILE, "merge %d repeats merge %d ('%s')",
               rank, qn_pair_map_get(&t->merges, qn_pair(a, b)), shown.text);
    return QN_OK;
}

/* Put every added token that is (not) looked for in normalised text into one trie. */
static qn_status build_trie(qn_tokenizer *t, uint32_t normalized, qn_trie *trie, qn_error *error)
{
    size_t total = 0;
    for (int32_t id = 0; id < t->token_count; id++) {
        const qn_token *token = &t->tokens[id];
        if ((token->flags & QN_TOKEN_ADDED) && (token->flags & QN_TOKEN_NORMALIZED) == normalized) {
            QN_FAIL_IF(token->text_bytes > QN_TEXT_MAX_ADDED_BYTES, error, QN_E_FILE,
                       "added token %d has %u bytes, expected at most %d", id, token->text_bytes,
                       QN_TEXT_MAX_ADDED_BYTES);
            total += t->marks.normalizer ? 3 * ((size_t)token->text_bytes + 1) : token->text_bytes;
        }
    }
    QN_FAIL_IF(total >= INT32_MAX / 2, error, QN_E_FILE, "the added tokens have %zu bytes together", total);
    if (!total) {
        return QN_OK;
    }
    QN_TRY(qn_pair_map_make(t->ctx, total + 1, &trie->edges, error));
    trie->token = qn_alloc(t->ctx, (total + 1) * sizeof *trie->token);
    QN_FAIL_IF(!trie->token, error, QN_E_MEMORY, "out of memory for the added tokens");
    memset(trie->token, 0xFF, (total + 1) * sizeof *trie->token);
    trie->node_count = 1;
    for (int32_t id = 0; id < t->token_count; id++) {
        const qn_token *token = &t->tokens[id];
        if (!(token->flags & QN_TOKEN_ADDED) || (token->flags & QN_TOKEN_NORMALIZED) != normalized ||
            !token->text_bytes) {
            continue;
        }
        char marked[3 * (QN_TEXT_MAX_ADDED_BYTES + 1)];
        const char *text = t->texts.data + token->text_at;
        size_t bytes = token->text_bytes;
        if (normalized && t->marks.normalizer) {
            bytes = qn_mark_spaces(text, bytes, t->marks.before != QN_MARK_NEVER, marked);
            text = marked;
        }
        int32_t node = 0;
        for (size_t i = 0; i < bytes; i++) {
            const uint64_t key = qn_pair(node, (unsigned char)text[i]);
            int32_t next = qn_pair_map_get(&trie->edges, key);
            if (next < 0) {
                next = trie->node_count++;
                qn_pair_map_put(&trie->edges, key, next);
            }
            node = next;
        }
        trie->token[node] = id;
    }
    return QN_OK;
}

qn_status qn_vocab_finish(qn_tokenizer *t, qn_error *error)
{
    static const char *const ends[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>",
                                       "<|end|>",    "<end_of_turn>", "</s>",       "<|return|>"};
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        const size_t bytes = t->characters ? (size_t)snprintf(text, sizeof text, "<0x%02X>", byte)
                                           : qn_utf8_put(text, qn_byte_char(byte));
        t->byte_ids[byte] = t->characters && !t->byte_fallback ? -1 : qn_vocab_find(t, text, bytes);
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int32_t id = qn_vocab_find(t, ends[i], strlen(ends[i]));
        if (id >= 0 && (t->tokens[id].flags & QN_TOKEN_SPECIAL)) {
            t->tokens[id].flags |= QN_TOKEN_END;
        }
    }
    if (t->eos_id >= 0) {
        t->tokens[t->eos_id].flags |= QN_TOKEN_END;
    }
    t->special_count = 0;
    for (int32_t id = 0; id < t->token_count; id++) {
        t->special_count += (t->tokens[id].flags & QN_TOKEN_SPECIAL) != 0;
    }
    QN_TRY(build_trie(t, 0, &t->added, error));
    return build_trie(t, QN_TOKEN_NORMALIZED, &t->added_normalized, error);
}
