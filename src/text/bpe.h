/* The inside of a tokenizer, shared by the files of src/text that build it
 * (from_gguf.c, from_json.c), use it (encode.c, tokenizer.c) and write it out
 * (export.c). Nothing outside src/text includes this.
 *
 * A token has two forms: its text as the vocabulary file spells it (byte-level
 * alphabet, one character a byte; or characters with a mark for a space, as
 * SentencePiece has it) and its piece, the bytes it stands for. */
#ifndef QN_TEXT_BPE_H
#define QN_TEXT_BPE_H

#include <quern/text.h>

#include "base/error.h"
#include "text/split.h"
#include "text/source.h"

enum {
    QN_TOKEN_PRESENT = 1,      /* the id has a token */
    QN_TOKEN_ADDED = 2,        /* found in text before anything else is split */
    QN_TOKEN_SPECIAL = 4,      /* control token */
    QN_TOKEN_LSTRIP = 8,       /* takes the white space before it */
    QN_TOKEN_RSTRIP = 16,      /* takes the white space after it */
    QN_TOKEN_SINGLE_WORD = 32, /* only where no word character touches it */
    QN_TOKEN_NORMALIZED = 64,  /* looked for in normalised text, after the others */
    QN_TOKEN_END = 128         /* ends a reply */
};

#define QN_TEXT_MAX_TOKENS (1 << 24)
#define QN_TEXT_MAX_TEMPLATE (1 << 20)
#define QN_TEXT_MAX_STEPS 16
#define QN_TEXT_MAX_AFFIX 8
#define QN_TEXT_MAX_ADDED_BYTES 1024
#define QN_TEXT_MARK "\xE2\x96\x81" /* U+2581 stands for a space where symbols are characters */

typedef struct qn_token {
    size_t text_at, piece_at;
    uint32_t text_bytes, piece_bytes;
    uint32_t flags;
} qn_token;

/* Open-addressing table u64 -> i32; grows never, its capacity is fixed at creation. */
typedef struct qn_pair_map {
    uint64_t *keys;
    int32_t *values; /* -1: free slot */
    size_t mask, used;
} qn_pair_map;

/* Added tokens as a byte trie in one pair map: (node, byte) -> node. */
typedef struct qn_trie {
    qn_pair_map edges;
    int32_t *token; /* of each node, -1: none */
    int32_t node_count;
} qn_trie;

/* Where marks come from when symbols are characters. */
typedef struct qn_marks {
    enum { QN_MARK_NEVER, QN_MARK_ALWAYS, QN_MARK_FIRST } before; /* one more before a text between added tokens;
                                                                     FIRST: only before the first */
    int normalizer; /* 1: before added tokens of normalised text are found, and unasked; 0: after, where there is none */
    int split;      /* 1: a piece begins at each mark; 0: a text is one piece */
    int strip;      /* 1: decoding leaves out one space at the beginning */
} qn_marks;

struct qn_tokenizer {
    const qn_ctx *ctx;
    char *pre, *chat_template;
    int32_t model_vocab; /* ids the model knows */
    int32_t token_count;
    qn_token *tokens;
    qn_buffer texts, pieces;
    int32_t *by_text; /* hash table of ids, -1: free */
    size_t by_text_mask;
    int characters; /* 1: symbols are characters, and bytes only where a character is no token; 0: bytes */
    qn_marks marks;
    int byte_fallback; /* characters: one that is no token becomes the tokens <0xHH> of its bytes */
    int32_t byte_ids[256]; /* token of each single byte, -1: none */

    int32_t merge_count;
    int32_t *merge_left, *merge_right, *merge_to; /* [merge_count] */
    int32_t *merge_order; /* [merge_count]: which goes first, of equal ones the leftmost; NULL: the rank */
    qn_pair_map merges;   /* (left, right) -> rank */
    int fuse_unk;                                 /* characters: unknown ones beside each other are one token */
    int ignore_merges;                            /* a whole piece that is a token is that token */

    int normalize; /* 1: NFC */
    int step_count;
    qn_split steps[QN_TEXT_MAX_STEPS];

    qn_trie added, added_normalized;
    int32_t special_count;
    int32_t bos_id, eos_id, unk_id, pad_id;
    int32_t unk_model_id; /* what a byte or character without a token becomes; -1: it is left out */
    int32_t add_bos, add_eos;
    int prefix_count, suffix_count;
    int32_t prefix[QN_TEXT_MAX_AFFIX], suffix[QN_TEXT_MAX_AFFIX];
};

/* --- tables (vocab.c) --- */

qn_status qn_pair_map_make(const qn_ctx *ctx, size_t count, qn_pair_map *out, qn_error *error);
void qn_pair_map_free(const qn_ctx *ctx, qn_pair_map *map);
/* Value of a key, -1 when absent. An empty map (keys NULL) holds nothing. */
int32_t qn_pair_map_get(const qn_pair_map *map, uint64_t key);
/* Keep the first value of a key; returns 1 when the key was there already. */
int qn_pair_map_put(qn_pair_map *map, uint64_t key, int32_t value);

static inline uint64_t qn_pair(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Make room for count tokens, none present; for count merges. */
qn_status qn_vocab_reserve(qn_tokenizer *t, int32_t count, qn_error *error);
qn_status qn_vocab_reserve_merges(qn_tokenizer *t, int32_t count, qn_error *error);
/* Put a token; its piece is derived from its text. QN_E_FILE: id out of range or taken, text not UTF-8 or taken. */
qn_status qn_vocab_add(qn_tokenizer *t, int32_t id, const char *text, size_t bytes, uint32_t flags, qn_error *error);
/* Id of a text, -1 when there is none. */
int32_t qn_vocab_find(const qn_tokenizer *t, const char *text, size_t bytes);
/* Add merge number rank, both sides as texts. */
qn_status qn_vocab_add_merge(qn_tokenizer *t, int32_t rank, const char *left, size_t left_bytes, const char *right,
                             size_t right_bytes, qn_error *error);
/* After all tokens are there: byte table, tries of added tokens, ends of replies, counts. */
qn_status qn_vocab_finish(qn_tokenizer *t, qn_error *error);

/* Text with a mark for each space and, if asked, one before it; out has room for 3 * (bytes + 1). Returns its bytes. */
size_t qn_mark_spaces(const char *text, size_t bytes, int before, char *out);

/* The byte-level alphabet: the character of a byte, and the byte of a character or -1. */
uint32_t qn_byte_char(unsigned byte);
int qn_char_byte(uint32_t character);

/* --- UTF-8 (utf8.c) --- */

/* Length of the valid character at p (1..4) and its code point, 0 when there is none. */
size_t qn_utf8_next(const char *p, size_t bytes, uint32_t *code);
size_t qn_utf8_put(char *out, uint32_t code);
int qn_utf8_valid(const char *p, size_t bytes);
int qn_is_white_space(uint32_t code);

/* --- builders --- */

qn_status qn_tokenizer_from_gguf(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error);
qn_status qn_tokenizer_from_json(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error);

/* Text of bytes that is safe to print in a sentence: cut to what fits. */
typedef struct qn_shown {
    char text[64];
} qn_shown;
qn_shown qn_show(const char *data, size_t bytes);

#endif
