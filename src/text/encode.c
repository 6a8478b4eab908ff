/* Text to ids: added tokens are cut out first, what lies between is normalised,
 * split into pieces, and each piece, as bytes or as characters, merged by rank. The merge loop is a linked
 * list of symbols and a heap of candidate pairs, O(n log n) for a piece of n
 * bytes, without recursion. Called by applications through quern/text.h. */
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "text/bpe.h"

typedef struct symbol {
    int32_t id; /* -1: merged away */
    int32_t previous, next;
} symbol;

typedef struct candidate {
    int32_t order, at, to;
} candidate;

typedef struct encoder {
    const qn_tokenizer *t;
    int parse_special;
    const char *begin; /* of the whole text */
    const char *first; /* of what is encoded now if it begins there, normalised; NULL: it does not */
    int32_t *ids;
    size_t capacity, count;
    symbol *symbols;
    candidate *heap;
    size_t symbol_capacity, heap_count;
    qn_spans from, to;
} encoder;

static void emit(encoder *e, int32_t id)
{
    if (e->count < e->capacity) {
        e->ids[e->count] = id;
    }
    e->count++;
}

static int before(candidate a, candidate b)
{
    return a.order < b.order || (a.order == b.order && a.at < b.at);
}

static void heap_push(encoder *e, candidate c)
{
    size_t i = e->heap_count++;
    while (i && before(c, e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = c;
}

static candidate heap_pop(encoder *e)
{
    const candidate top = e->heap[0], last = e->heap[--e->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= e->heap_count) {
            break;
        }
        if (child + 1 < e->heap_count && before(e->heap[child + 1], e->heap[child])) {
            child++;
        }
        if (!before(e->heap[child], last)) {
            break;
        }
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

static void consider(encoder *e, int32_t at)
{
    const symbol *s = &e->symbols[at];
    if (s->next >= 0) {
        const int32_t rank = qn_pair_map_get(&e->t->merges, qn_pair(s->id, e->symbols[s->next].id));
        if (rank >= 0) {
            const int32_t order = e->t->merge_order ? e->t->merge_order[rank] : rank;
            heap_push(e, (candidate){order, at, e->t->merge_to[rank]});
        }
    }
}

static qn_status reserve_symbols(encoder *e, size_t bytes, qn_error *error)
{
    if (bytes <= e->symbol_capacity) {
        return QN_OK;
    }
    size_t n, heap_bytes, symbol_bytes;
    if (bytes >= INT32_MAX / 4 || qn_mul_size(bytes, 2, &n) || qn_mul_size(n, 2 * sizeof *e->heap, &heap_bytes) ||
        qn_mul_size(n, sizeof *e->symbols, &symbol_bytes)) {
        QN_FAIL(error, QN_E_ARGUMENT, "a piece of text has %zu bytes, expected fewer than %d", bytes, INT32_MAX / 4);
    }
    qn_free(e->t->ctx, e->symbols);
    qn_free(e->t->ctx, e->heap);
    e->symbols = qn_alloc(e->t->ctx, symbol_bytes);
    e->heap = qn_alloc(e->t->ctx, heap_bytes); /* at most n - 1 pairs at first and one more for each of n - 1 merges */
    e->symbol_capacity = e->symbols && e->heap ? n : 0;
    QN_FAIL_IF(!e->symbol_capacity, error, QN_E_MEMORY, "out of memory for a piece of text of %zu bytes", bytes);
    return QN_OK;
}

/* Id of a whole piece's bytes in the byte alphabet, -1 when it is no token. */
static int32_t find_piece(const qn_tokenizer *t, const char *piece, size_t bytes)
{
    char text[2048];
    if (bytes > sizeof text / 2) {
        return -1; /* longer than any token of the vocabularies that use this rule; it is merged */
    }
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        n += qn_utf8_put(text + n, qn_byte_char((unsigned char)piece[i]));
    }
    return qn_vocab_find(t, text, n);
}

static void add_symbol(encoder *e, int32_t *n, int32_t id)
{
    e->symbols[*n] = (symbol){id, *n - 1, *n + 1};
    (*n)++;
}

/* A byte the vocabulary lacks is left out when there is no unknown token. */
static int32_t byte_symbols(encoder *e, const char *piece, size_t bytes)
{
    const qn_tokenizer *t = e->t;
    int32_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = t->byte_ids[(unsigned char)piece[i]];
        if (id >= 0 || t->unk_model_id >= 0) {
            add_symbol(e, &n, id >= 0 ? id : t->unk_model_id);
        }
    }
    return n;
}

/* A character the vocabulary lacks becomes the tokens of its bytes, or the unknown token where one of those lacks too.
 */
static int32_t character_symbols(encoder *e, const char *piece, size_t bytes)
{
    const qn_tokenizer *t = e->t;
    int32_t n = 0;
    int was_unknown = 0;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t c;
        length = qn_utf8_next(piece + i, bytes - i, &c);
        const int32_t id = qn_vocab_find(t, piece + i, length);
        int known = 1;
        for (size_t k = 0; k < length && id < 0; k++) {
            known &= t->byte_ids[(unsigned char)piece[i + k]] >= 0;
        }
        if (id >= 0) {
            add_symbol(e, &n, id);
        } else if (known) {
            for (size_t k = 0; k < length; k++) {
                add_symbol(e, &n, t->byte_ids[(unsigned char)piece[i + k]]);
            }
        } else if (t->unk_model_id >= 0 && !(was_unknown && t->fuse_unk)) {
            add_symbol(e, &n, t->unk_model_id);
        }
        was_unknown = !known;
    }
    return n;
}

static qn_status merge_piece(encoder *e, const char *piece, size_t bytes, qn_error *error)
{
    const qn_tokenizer *t = e->t;
    if (t->ignore_merges) {
        const int32_t id = t->characters ? qn_vocab_find(t, piece, bytes) : find_piece(t, piece, bytes);
        if (id >= 0) {
            emit(e, id);
            return QN_OK;
        }
    }
    QN_TRY(reserve_symbols(e, bytes, error));
    const int32_t n = t->characters ? character_symbols(e, piece, bytes) : byte_symbols(e, piece, bytes);
    if (!n) {
        return QN_OK;
    }
    e->symbols[n - 1].next = -1;
    e->heap_count = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        consider(e, i);
    }
    while (e->heap_count) {
        const candidate c = heap_pop(e);
        symbol *s = &e->symbols[c.at];
        if (s->id < 0 || s->next < 0) {
            continue;
        }
        symbol *right = &e->symbols[s->next];
        const int32_t rank = qn_pair_map_get(&t->merges, qn_pair(s->id, right->id));
        if (rank < 0 || t->merge_to[rank] != c.to) {
            continue; /* the pair has changed since */
        }
        s->id = c.to;
        s->next = right->next;
        right->id = -1;
        if (s->next >= 0) {
            e->symbols[s->next].previous = c.at;
        }
        if (s->previous >= 0) {
            consider(e, s->previous);
        }
        consider(e, c.at);
    }
    for (int32_t i = 0; i >= 0; i = e->symbols[i].next) {
        emit(e, e->symbols[i].id);
    }
    return QN_OK;
}

/* A copy of text with marks for spaces. */
static qn_status mark_spaces(encoder *e, const char *text, size_t bytes, int before, char **out, size_t *out_bytes,
                             qn_error *error)
{
    size_t room;
    QN_FAIL_IF(qn_mul_size(bytes + 1, 3, &room), error, QN_E_ARGUMENT, "the text has %zu bytes", bytes);
    *out = qn_alloc(e->t->ctx, room);
    QN_FAIL_IF(!*out, error, QN_E_MEMORY, "out of memory for a text of %zu bytes", bytes);
    *out_bytes = qn_mark_spaces(text, bytes, before, *out);
    return QN_OK;
}

/* Merge text with marks, whole or cut before each. */
static qn_status merge_marked(encoder *e, const char *text, size_t bytes, qn_error *error)
{
    const size_t mark = sizeof QN_TEXT_MARK - 1;
    size_t done = 0;
    for (size_t i = mark; e->t->marks.split && i + mark <= bytes; i++) {
        if (memcmp(text + i, QN_TEXT_MARK, mark) == 0) {
            QN_TRY(merge_piece(e, text + done, i - done, error));
            done = i;
        }
    }
    return merge_piece(e, text + done, bytes - done, error);
}

/* The same for text without added tokens, whose spaces are marked here unless the normalizer has done it. */
static qn_status encode_characters(encoder *e, const char *text, size_t bytes, qn_error *error)
{
    const qn_marks *const marks = &e->t->marks;
    if (marks->normalizer) {
        return merge_marked(e, text, bytes, error);
    }
    const size_t mark = sizeof QN_TEXT_MARK - 1;
    const int there = text[0] == ' ' || (bytes >= mark && memcmp(text, QN_TEXT_MARK, mark) == 0);
    const int before = marks->before == QN_MARK_ALWAYS || (marks->before == QN_MARK_FIRST && text == e->first);
    char *own;
    size_t own_bytes = 0;
    QN_TRY(mark_spaces(e, text, bytes, before && !there, &own, &own_bytes, error));
    const qn_status status = merge_marked(e, own, own_bytes, error);
    qn_free(e->t->ctx, own);
    return status;
}

/* Split and merge normalised text without added tokens. */
static qn_status encode_plain(encoder *e, const char *text, size_t bytes, qn_error *error)
{
    const qn_tokenizer *t = e->t;
    if (t->characters) {
        return encode_characters(e, text, bytes, error);
    }
    e->from.count = 0;
    QN_FAIL_IF(qn_spans_add(&e->from, 0, bytes), error, QN_E_MEMORY, "out of memory while splitting text");
    for (int i = 0; i < t->step_count; i++) {
        e->to.count = 0;
        QN_TRY(qn_split_apply(&t->steps[i], text, &e->from, &e->to, error));
        const qn_spans swap = e->from;
        e->from = e->to;
        e->to = swap;
    }
    for (size_t i = 0; i < e->from.count; i++) {
        const qn_span s = e->from.data[i];
        QN_TRY(merge_piece(e, text + s.begin, s.end - s.begin, error));
    }
    return QN_OK;
}

static int is_word(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

/* Code point that ends before at, 0 at the beginning. */
static uint32_t char_before(const char *text, size_t at, size_t *begin)
{
    uint32_t c = 0;
    size_t i = at;
    while (i > 0 && ((unsigned char)text[--i] & 0xC0) == 0x80) {
    }
    *begin = i;
    if (at) {
        (void)qn_utf8_next(text + i, at - i, &c);
    }
    return c;
}

/* Longest added token at this place, -1: none. */
static int32_t trie_match(const encoder *e, const qn_trie *trie, const char *text, size_t bytes, size_t *length)
{
    int32_t node = 0, found = -1;
    for (size_t i = 0; i < bytes; i++) {
        node = qn_pair_map_get(&trie->edges, qn_pair(node, (unsigned char)text[i]));
        if (node < 0) {
            break;
        }
        const int32_t id = trie->token[node];
        if (id >= 0 && (e->parse_special || !(e->t->tokens[id].flags & QN_TOKEN_SPECIAL))) {
            found = id;
            *length = i + 1;
        }
    }
    return found;
}

typedef qn_status (*segment_fn)(encoder *e, const char *text, size_t bytes, qn_error *error);

/* Cut added tokens out of text; what lies between goes to rest. */
static qn_status cut_added(encoder *e, const qn_trie *trie, const char *text, size_t bytes, segment_fn rest,
                           qn_error *error)
{
    if (!trie->node_count) {
        return bytes ? rest(e, text, bytes, error) : QN_OK;
    }
    size_t done = 0;
    for (size_t i = 0; i < bytes;) {
        size_t length = 0;
        const int32_t id = trie_match(e, trie, text + i, bytes - i, &length);
        if (id < 0) {
            i++;
            continue;
        }
        const uint32_t flags = e->t->tokens[id].flags;
        size_t begin = i, end = i + length, at;
        uint32_t c = 0;
        i = end;
        if (flags & QN_TOKEN_SINGLE_WORD) {
            const int left = begin > 0 && is_word(char_before(text, begin, &at));
            const int right = end < bytes && qn_utf8_next(text + end, bytes - end, &c) && is_word(c);
            if (left || right) {
                continue;
            }
        }
        if (flags & QN_TOKEN_LSTRIP) {
            while (begin > done && qn_is_white_space(char_before(text, begin, &at))) {
                begin = at;
            }
        }
        if (flags & QN_TOKEN_RSTRIP) {
            size_t n;
            while (end < bytes && (n = qn_utf8_next(text + end, bytes - end, &c)) != 0 && qn_is_white_space(c)) {
                end += n;
            }
        }
        if (begin > done) {
            QN_TRY(rest(e, text + done, begin - done, error));
        }
        emit(e, id);
        done = end > done ? end : done;
        i = i < done ? done : i;
    }
    return done < bytes ? rest(e, text + done, bytes - done, error) : QN_OK;
}

/* NFC of text in context memory; *out is text itself when nothing changes it. */
static qn_status normalize(const qn_ctx *ctx, const char *text, size_t bytes, char **out, size_t *out_bytes,
                           qn_error *error)
{
    size_t ascii = 0;
    while (ascii < bytes && (unsigned char)text[ascii] < 0x80) {
        ascii++;
    }
    *out = NULL;
    if (ascii == bytes) {
        return QN_OK;
    }
    const utf8proc_option_t options = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
    const utf8proc_ssize_t n =
        utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, NULL, 0, options);
    size_t need;
    QN_FAIL_IF(n < 0 || qn_mul_size((size_t)n + 1, sizeof(utf8proc_int32_t), &need), error, QN_E_ARGUMENT,
               "text of %zu bytes cannot be normalised", bytes);
    utf8proc_int32_t *codes = qn_alloc(ctx, need);
    QN_FAIL_IF(!codes, error, QN_E_MEMORY, "out of memory while normalising text");
    (void)utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, codes, n, options);
    const utf8proc_ssize_t length = utf8proc_reencode(codes, n, options);
    if (length < 0) {
        qn_free(ctx, codes);
        QN_FAIL(error, QN_E_ARGUMENT, "text of %zu bytes cannot be normalised", bytes);
    }
    *out = (char *)codes;
    *out_bytes = (size_t)length;
    return QN_OK;
}

static qn_status encode_normalized(encoder *e, const char *text, size_t bytes, qn_error *error)
{
    char *own = NULL;
    size_t own_bytes = bytes;
    if (e->t->marks.normalizer) {
        QN_TRY(mark_spaces(e, text, bytes, e->t->marks.before != QN_MARK_NEVER, &own, &own_bytes, error));
    } else if (e->t->normalize) {
        QN_TRY(normalize(e->t->ctx, text, bytes, &own, &own_bytes, error));
    }
    e->first = text != e->begin ? NULL : own ? own : text;
    const qn_status status =
        cut_added(e, &e->t->added_normalized, own ? own : text, own ? own_bytes : bytes, encode_plain, error);
    qn_free(e->t->ctx, own);
    return status;
}

/* A copy with U+FFFD for every byte that is part of no valid character; NULL copy when text is valid. */
static qn_status make_valid(const qn_ctx *ctx, const char *text, size_t bytes, char **copy, size_t *copy_bytes,
                            qn_error *error)
{
    *copy = NULL;
    if (qn_utf8_valid(text, bytes)) {
        return QN_OK;
    }
    size_t room, n = 0;
    QN_FAIL_IF(qn_mul_size(bytes, 3, &room), error, QN_E_ARGUMENT, "the text has %zu bytes", bytes);
    char *out = qn_alloc(ctx, room);
    QN_FAIL_IF(!out, error, QN_E_MEMORY, "out of memory for a text of %zu bytes", bytes);
    for (size_t i = 0; i < bytes;) {
        uint32_t c;
        const size_t length = qn_utf8_next(text + i, bytes - i, &c);
        if (length) {
            memcpy(out + n, text + i, length);
            n += length;
            i += length;
        } else {
            n += qn_utf8_put(out + n, 0xFFFD);
            i++;
        }
    }
    *copy = out;
    *copy_bytes = n;
    return QN_OK;
}

qn_status qn_tokenizer_encode(const qn_tokenizer *tokenizer, const char *text, size_t text_bytes, uint32_t flags,
                              int32_t *ids, size_t capacity, size_t *count, qn_error *error)
{
    QN_FAIL_IF(!tokenizer || !count || (!text && text_bytes) || (!ids && capacity), error, QN_E_ARGUMENT,
               "encode got NULL for the tokenizer, text, ids or count");
    *count = 0;
    QN_FAIL_IF(flags & ~(QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL), error, QN_E_ARGUMENT,
               "encode flags are %u, expected a sum of QN_ENCODE_* values", flags);
    const qn_ctx *ctx = tokenizer->ctx;
    encoder e = {.t = tokenizer,
                 .parse_special = (flags & QN_ENCODE_PARSE_SPECIAL) != 0,
                 .ids = ids,
                 .capacity = capacity,
                 .from = {.ctx = ctx},
                 .to = {.ctx = ctx}};
    char *copy;
    size_t bytes = text_bytes;
    QN_TRY(make_valid(ctx, text, text_bytes, &copy, &bytes, error));
    for (int i = 0; (flags & QN_ENCODE_ADD_SPECIAL) && i < tokenizer->prefix_count; i++) {
        emit(&e, tokenizer->prefix[i]);
    }
    e.begin = copy ? copy : text;
    qn_status status = cut_added(&e, &tokenizer->added, e.begin, bytes, encode_normalized, error);
    for (int i = 0; (flags & QN_ENCODE_ADD_SPECIAL) && i < tokenizer->suffix_count; i++) {
        emit(&e, tokenizer->suffix[i]);
    }
    if (status == QN_OK) {
        *count = e.count;
        if (e.count > capacity) {
            status = qn_error_set(error, QN_E_WORKSPACE, "the text has %zu tokens, but there is room for %zu", e.count,
                                  capacity);
        }
    }
    qn_spans_free(&e.from);
    qn_spans_free(&e.to);
    qn_free(ctx, e.symbols);
    qn_free(ctx, e.heap);
    qn_free(ctx, copy);
    return status;
}
