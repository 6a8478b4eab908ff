/* A tokenizer from the texts of a folder: tokenizer.json (model, split rules,
 * added tokens), tokenizer_config.json (named tokens, chat template),
 * chat_template.jinja, generation_config.json (more ends of a reply).
 *
 * Every member that would change ids is either served or refused by name; what
 * only changes offsets is ignored. */
#include <jansson.h>
#include <string.h>

#include "text/bpe.h"

#define MAX_JSON_STEPS_DEPTH 4

static const char *string_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* Text of a string member for a sentence. */
static qn_shown shown(const json_t *v)
{
    return json_is_string(v) ? qn_show(json_string_value(v), json_string_length(v))
                             : qn_show(json_is_null(v) || !v ? "null" : "?", json_is_null(v) || !v ? 4 : 1);
}

/* flags: of the parser, beside its refusal of duplicates. */
static qn_status load(const char *name, qn_string text, size_t flags, json_t **out, qn_error *error)
{
    json_error_t e;
    *out = json_loadb(text.data, text.bytes, JSON_REJECT_DUPLICATES | flags, &e);
    QN_FAIL_IF(!*out, error, QN_E_FILE, "%s does not parse, line %d: %s", name, e.line,
               qn_show(e.text, strlen(e.text)).text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        QN_FAIL(error, QN_E_FILE, "%s is not an object", name);
    }
    return QN_OK;
}

/* A member that must be absent, null, false, zero or "". */
static qn_status must_be_off(const json_t *object, const char *where, const char *key, qn_error *error)
{
    const json_t *v = json_object_get(object, key);
    const int off = !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
                    (json_is_number(v) && !(json_number_value(v) > 0) && !(json_number_value(v) < 0));
    QN_FAIL_IF(!off, error, QN_E_UNSUPPORTED, "tokenizer.json: %s.%s is set, which is not served", where, key);
    return QN_OK;
}

static qn_status read_vocab(qn_tokenizer *t, json_t *model, json_t *added, qn_error *error)
{
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges"), *v;
    const char *key;
    size_t i;
    json_int_t top = -1;
    QN_FAIL_IF(!json_is_object(vocab) || !json_object_size(vocab), error, QN_E_FILE,
               "tokenizer.json: model.vocab is not an object with tokens");
    QN_FAIL_IF(!json_is_array(merges), error, QN_E_FILE, "tokenizer.json: model.merges is not a list");
    QN_FAIL_IF(json_array_size(merges) > QN_TEXT_MAX_TOKENS, error, QN_E_FILE,
               "tokenizer.json: model.merges has %zu entries, expected at most %d", json_array_size(merges),
               QN_TEXT_MAX_TOKENS);
    json_object_foreach(vocab, key, v)
    {
        QN_FAIL_IF(!json_is_integer(v), error, QN_E_FILE, "tokenizer.json: the id of token '%s' is not a whole number",
                   qn_show(key, strlen(key)).text);
        const json_int_t id = json_integer_value(v);
        QN_FAIL_IF(id < 0 || id >= t->model_vocab, error, QN_E_FILE,
                   "tokenizer.json: token '%s' has id %lld, expected 0 to %d", qn_show(key, strlen(key)).text,
                   (long long)id, t->model_vocab - 1);
        top = id > top ? id : top;
    }
    json_array_foreach(added, i, v)
    {
        const json_t *id = json_object_get(v, "id");
        QN_FAIL_IF(!json_is_integer(id) || !json_is_string(json_object_get(v, "content")), error, QN_E_FILE,
                   "tokenizer.json: added_tokens[%zu] has no id or content", i);
        QN_FAIL_IF(json_integer_value(id) < 0 || json_integer_value(id) >= t->model_vocab, error, QN_E_FILE,
                   "tokenizer.json: added token '%s' has id %lld, expected 0 to %d",
                   shown(json_object_get(v, "content")).text, (long long)json_integer_value(id), t->model_vocab - 1);
        top = json_integer_value(id) > top ? json_integer_value(id) : top;
    }
    QN_TRY(qn_vocab_reserve(t, (int32_t)top + 1, error));
    QN_TRY(qn_vocab_reserve_merges(t, (int32_t)json_array_size(merges), error));
    json_object_foreach(vocab, key, v)
    {
        QN_TRY(qn_vocab_add(t, (int32_t)json_integer_value(v), key, strlen(key), 0, error));
    }
    return QN_OK;
}

static qn_status read_merges(qn_tokenizer *t, const json_t *merges, qn_error *error)
{
    size_t i;
    json_t *m;
    json_array_foreach(merges, i, m)
    {
        const json_t *left = json_array_get(m, 0), *right = json_array_get(m, 1);
        if (json_is_string(m)) {
            const char *s = json_string_value(m), *space = strchr(s, ' ');
            QN_FAIL_IF(!space, error, QN_E_FILE, "merge %zu is '%s', expected two tokens with a space between", i,
                       shown(m).text);
            QN_TRY(qn_vocab_add_merge(t, (int32_t)i, s, (size_t)(space - s), space + 1, strlen(space + 1), error));
            continue;
        }
        QN_FAIL_IF(json_array_size(m) != 2 || !json_is_string(left) || !json_is_string(right), error, QN_E_FILE,
                   "merge %zu is neither a string nor a pair of strings", i);
        QN_TRY(qn_vocab_add_merge(t, (int32_t)i, json_string_value(left), json_string_length(left),
                                  json_string_value(right), json_string_length(right), error));
    }
    return QN_OK;
}

static qn_status read_added(qn_tokenizer *t, const json_t *added, qn_error *error)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } keys[] = {{"special", QN_TOKEN_SPECIAL},
                {"lstrip", QN_TOKEN_LSTRIP},
                {"rstrip", QN_TOKEN_RSTRIP},
                {"single_word", QN_TOKEN_SINGLE_WORD},
                {"normalized", QN_TOKEN_NORMALIZED}};
    size_t i;
    json_t *a;
    json_array_foreach(added, i, a)
    {
        const json_t *content = json_object_get(a, "content");
        const char *s = json_string_value(content);
        const size_t bytes = json_string_length(content);
        const int32_t id = (int32_t)json_integer_value(json_object_get(a, "id")),
                      there = bytes ? qn_vocab_find(t, s, bytes) : -1;
        uint32_t flags = QN_TOKEN_ADDED;
        QN_FAIL_IF(!bytes, error, QN_E_FILE, "tokenizer.json: added token %d is empty", id);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const json_t *v = json_object_get(a, keys[k].key);
            QN_FAIL_IF(v && !json_is_boolean(v), error, QN_E_FILE,
                       "tokenizer.json: %s of added token '%s' is not true or false", keys[k].key, shown(content).text);
            flags |= json_is_true(v) ? keys[k].flag : 0;
        }
        if (there >= 0) { /* it may stand in the vocabulary too, with the same id */
            QN_FAIL_IF(there != id || (t->tokens[id].flags & QN_TOKEN_ADDED), error, QN_E_FILE,
                       "tokenizer.json: added token '%s' has id %d, but the same text has id %d", shown(content).text,
                       id, there);
            t->tokens[id].flags |= flags;
        } else {
            QN_TRY(qn_vocab_add(t, id, s, bytes, flags, error));
        }
    }
    return QN_OK;
}

static qn_status add_step(qn_tokenizer *t, qn_split_kind kind, const json_t *pattern, int with_regex, int drop_between,
                          qn_error *error)
{
    QN_FAIL_IF(t->step_count >= QN_TEXT_MAX_STEPS, error, QN_E_UNSUPPORTED,
               "tokenizer.json: the pre_tokenizer has more than %d steps", QN_TEXT_MAX_STEPS);
    QN_FAIL_IF(t->step_count && t->steps[t->step_count - 1].kind == QN_SPLIT_BYTES, error, QN_E_UNSUPPORTED,
               "tokenizer.json: a pre_tokenizer step after ByteLevel is not served");
    qn_split *step = &t->steps[t->step_count];
    QN_TRY(qn_split_make(t->ctx, kind, pattern ? json_string_value(pattern) : NULL,
                         pattern ? json_string_length(pattern) : 0, with_regex, step, error));
    step->drop_between = drop_between;
    t->step_count++;
    return QN_OK;
}

static qn_status read_split(qn_tokenizer *t, const json_t *p, qn_error *error)
{
    const json_t *pattern = json_object_get(p, "pattern"), *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String"), *behavior = json_object_get(p, "behavior");
    const int invert = json_is_true(json_object_get(p, "invert"));
    const int isolated = json_is_string(behavior) && strcmp(json_string_value(behavior), "Isolated") == 0;
    const int removed = json_is_string(behavior) && strcmp(json_string_value(behavior), "Removed") == 0;
    QN_FAIL_IF(!json_is_string(regex) && !json_is_string(literal), error, QN_E_FILE,
               "tokenizer.json: a Split has no pattern (Regex or String)");
    QN_FAIL_IF(!isolated && !(removed && invert), error, QN_E_UNSUPPORTED,
               "tokenizer.json: Split behavior '%s' (invert %s) is not served, expected Isolated", shown(behavior).text,
               invert ? "true" : "false");
    return add_step(t, regex ? QN_SPLIT_REGEX : QN_SPLIT_LITERAL, regex ? regex : literal, 0, removed, error);
}

static qn_status read_steps(qn_tokenizer *t, const json_t *p, int depth, qn_error *error)
{
    const char *type = string_of(p, "type");
    QN_FAIL_IF(!type, error, json_is_object(p) ? QN_E_FILE : QN_E_UNSUPPORTED,
               "tokenizer.json: pre_tokenizer is missing or has no type, expected ByteLevel or a Sequence with it");
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(p, "pretokenizers");
        size_t i;
        json_t *item;
        QN_FAIL_IF(!json_is_array(list) || depth >= MAX_JSON_STEPS_DEPTH, error, QN_E_FILE,
                   "tokenizer.json: a pre_tokenizer Sequence has no list or is nested deeper than %d",
                   MAX_JSON_STEPS_DEPTH);
        json_array_foreach(list, i, item)
        {
            QN_TRY(read_steps(t, item, depth + 1, error));
        }
        return QN_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        QN_TRY(must_be_off(p, "pre_tokenizer.ByteLevel", "add_prefix_space", error));
        const json_t *with = json_object_get(p, "use_regex");
        return add_step(t, QN_SPLIT_BYTES, NULL, !with || json_is_true(with), 0, error);
    }
    if (strcmp(type, "Digits") == 0) {
        return add_step(t, json_is_true(json_object_get(p, "individual_digits")) ? QN_SPLIT_DIGITS : QN_SPLIT_NUMBERS,
                        NULL, 0, 0, error);
    }
    if (strcmp(type, "Split") == 0) {
        return read_split(t, p, error);
    }
    QN_FAIL(error, QN_E_UNSUPPORTED,
            "tokenizer.json: pre_tokenizer '%s' is not served, expected ByteLevel, Split, Digits or Sequence",
            qn_show(type, strlen(type)).text);
}

static qn_status read_normalizer(qn_tokenizer *t, const json_t *n, int depth, qn_error *error)
{
    if (!n || json_is_null(n)) {
        return QN_OK;
    }
    const char *type = string_of(n, "type");
    QN_FAIL_IF(!type, error, QN_E_FILE, "tokenizer.json: the normalizer has no type");
    if (strcmp(type, "NFC") == 0) {
        t->normalize = 1;
        return QN_OK;
    }
    QN_FAIL_IF(strcmp(type, "Sequence") != 0 || depth >= MAX_JSON_STEPS_DEPTH, error, QN_E_UNSUPPORTED,
               "tokenizer.json: normalizer '%s' is not served, expected NFC", qn_show(type, strlen(type)).text);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(n, "normalizers"), i, item)
    {
        QN_TRY(read_normalizer(t, item, depth + 1, error));
    }
    return QN_OK;
}

static qn_status affix(qn_tokenizer *t, const json_t *post, const json_t *special, int before, qn_error *error)
{
    const char *name = string_of(special, "id");
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(post, "special_tokens"), name ? name : ""), "ids");
    size_t i;
    json_t *v;
    QN_FAIL_IF(!name || !json_array_size(ids), error, QN_E_FILE,
               "tokenizer.json: the post_processor names '%s' without its ids",
               qn_show(name ? name : "", name ? strlen(name) : 0).text);
    int32_t *list = before ? t->prefix : t->suffix;
    int *count = before ? &t->prefix_count : &t->suffix_count;
    json_array_foreach(ids, i, v)
    {
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        QN_FAIL_IF(id < 0 || id >= t->token_count || !(t->tokens[id].flags & QN_TOKEN_PRESENT), error, QN_E_FILE,
                   "tokenizer.json: the post_processor names id %lld, which is no token", (long long)id);
        QN_FAIL_IF(*count >= QN_TEXT_MAX_AFFIX, error, QN_E_UNSUPPORTED,
                   "tokenizer.json: the post_processor adds more than %d tokens", QN_TEXT_MAX_AFFIX);
        list[(*count)++] = (int32_t)id;
    }
    return QN_OK;
}

static qn_status read_post(qn_tokenizer *t, const json_t *post, int depth, qn_error *error)
{
    if (!post || json_is_null(post)) {
        return QN_OK;
    }
    const char *type = string_of(post, "type");
    size_t i;
    json_t *item;
    QN_FAIL_IF(!type, error, QN_E_FILE, "tokenizer.json: the post_processor has no type");
    if (strcmp(type, "ByteLevel") == 0) {
        return QN_OK; /* offsets only */
    }
    if (strcmp(type, "Sequence") == 0 && depth < MAX_JSON_STEPS_DEPTH) {
        json_array_foreach(json_object_get(post, "processors"), i, item)
        {
            QN_TRY(read_post(t, item, depth + 1, error));
        }
        return QN_OK;
    }
    QN_FAIL_IF(strcmp(type, "TemplateProcessing") != 0, error, QN_E_UNSUPPORTED,
               "tokenizer.json: post_processor '%s' is not served, expected TemplateProcessing or ByteLevel",
               qn_show(type, strlen(type)).text);
    int sequences = 0;
    QN_FAIL_IF(!json_is_array(json_object_get(post, "single")), error, QN_E_FILE,
               "tokenizer.json: the post_processor has no list 'single'");
    json_array_foreach(json_object_get(post, "single"), i, item)
    {
        if (json_object_get(item, "Sequence")) {
            sequences++;
            continue;
        }
        const json_t *special = json_object_get(item, "SpecialToken");
        QN_FAIL_IF(!special, error, QN_E_FILE,
                   "tokenizer.json: post_processor.single[%zu] is no Sequence and no SpecialToken", i);
        QN_TRY(affix(t, post, special, !sequences, error));
    }
    QN_FAIL_IF(sequences != 1, error, QN_E_FILE,
               "tokenizer.json: post_processor.single has the text %d times, expected once", sequences);
    return QN_OK;
}

/* ---- characters with marks for spaces, as converters write what SentencePiece trained ---- */

static int is_type(const json_t *object, const char *type)
{
    const char *const name = string_of(object, "type");
    return name && strcmp(name, type) == 0;
}

static int is_text(const json_t *object, const char *key, const char *text)
{
    const char *const value = string_of(object, key);
    return value && strcmp(value, text) == 0;
}

/* One of the normalizers Prepend and Replace, which put marks. */
static qn_status read_mark_step(qn_tokenizer *t, const json_t *n, int *replaces, qn_error *error)
{
    if (is_type(n, "Prepend") && is_text(n, "prepend", QN_TEXT_MARK)) {
        t->marks.before = QN_MARK_ALWAYS;
        return QN_OK;
    }
    QN_FAIL_IF(
        !is_type(n, "Replace") || !is_text(json_object_get(n, "pattern"), "String", " ") ||
            !is_text(n, "content", QN_TEXT_MARK),
        error, QN_E_UNSUPPORTED,
        "tokenizer.json: normalizer '%s' without a pre_tokenizer is not served, expected Prepend and Replace that "
        "mark spaces with U+2581",
        shown(json_object_get(n, "type")).text);
    *replaces = 1;
    return QN_OK;
}

static qn_status read_mark_normalizer(qn_tokenizer *t, const json_t *n, qn_error *error)
{
    int replaces = 0;
    size_t i;
    json_t *item;
    if (is_type(n, "Sequence")) {
        json_array_foreach(json_object_get(n, "normalizers"), i, item)
        {
            QN_TRY(read_mark_step(t, item, &replaces, error));
        }
    } else {
        QN_TRY(read_mark_step(t, n, &replaces, error));
    }
    QN_FAIL_IF(!replaces, error, QN_E_UNSUPPORTED,
               "tokenizer.json: there is no pre_tokenizer and no normalizer that marks spaces with U+2581");
    t->marks.normalizer = 1;
    return QN_OK;
}

static qn_status read_metaspace(qn_tokenizer *t, const json_t *p, qn_error *error)
{
    const json_t *scheme = json_object_get(p, "prepend_scheme"), *split = json_object_get(p, "split");
    const json_t *add = json_object_get(p, "add_prefix_space");
    QN_FAIL_IF(!is_text(p, "replacement", QN_TEXT_MARK), error, QN_E_UNSUPPORTED,
               "tokenizer.json: Metaspace with the replacement '%s' is not served, expected U+2581",
               shown(json_object_get(p, "replacement")).text);
    t->marks.split = !split || json_is_true(split);
    if (!scheme) {
        t->marks.before = add && json_is_false(add) ? QN_MARK_NEVER : QN_MARK_ALWAYS;
        return QN_OK;
    }
    QN_FAIL_IF(!is_text(p, "prepend_scheme", "always") && !is_text(p, "prepend_scheme", "first") &&
                   !is_text(p, "prepend_scheme", "never"),
               error, QN_E_FILE, "tokenizer.json: prepend_scheme '%s' is none of always, first and never",
               shown(scheme).text);
    t->marks.before = is_text(p, "prepend_scheme", "always")  ? QN_MARK_ALWAYS
                      : is_text(p, "prepend_scheme", "first") ? QN_MARK_FIRST
                                                              : QN_MARK_NEVER;
    return QN_OK;
}

/* The inverse: marks are spaces, bytes are put together, a first space may be left out. */
static qn_status read_mark_decoder(qn_tokenizer *t, const json_t *decoder, qn_error *error)
{
    size_t i;
    json_t *d;
    if (is_type(decoder, "Metaspace") && is_text(decoder, "replacement", QN_TEXT_MARK)) {
        t->marks.strip = !is_text(decoder, "prepend_scheme", "never") &&
                         !json_is_false(json_object_get(decoder, "add_prefix_space"));
        return QN_OK;
    }
    QN_FAIL_IF(!is_type(decoder, "Sequence"), error, QN_E_UNSUPPORTED,
               "tokenizer.json: decoder '%s' is not served without ByteLevel, expected a Sequence or Metaspace",
               shown(json_object_get(decoder, "type")).text);
    json_array_foreach(json_object_get(decoder, "decoders"), i, d)
    {
        const json_int_t start = json_integer_value(json_object_get(d, "start")),
                         stop = json_integer_value(json_object_get(d, "stop"));
        const int strips = is_type(d, "Strip") && is_text(d, "content", " ") && start >= 0 && start <= 1 && stop == 0;
        const int replaces = is_type(d, "Replace") && is_text(json_object_get(d, "pattern"), "String", QN_TEXT_MARK) &&
                             is_text(d, "content", " ");
        QN_FAIL_IF(
            !strips && !replaces && !is_type(d, "ByteFallback") && !is_type(d, "Fuse"), error, QN_E_UNSUPPORTED,
            "tokenizer.json: decoder '%s' is not served, expected Replace of U+2581, ByteFallback, Fuse, or Strip "
            "of one first space",
            shown(json_object_get(d, "type")).text);
        t->marks.strip |= strips && start == 1;
    }
    return QN_OK;
}

static qn_status read_marks(qn_tokenizer *t, const json_t *root, qn_error *error)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer"), *normalizer = json_object_get(root, "normalizer");
    QN_TRY(read_mark_decoder(t, json_object_get(root, "decoder"), error));
    if (!is_type(pre, "Metaspace")) {
        return read_mark_normalizer(t, normalizer, error);
    }
    QN_TRY(read_metaspace(t, pre, error));
    return read_normalizer(t, normalizer, 0, error);
}

/* The last step must be ByteLevel, and the decoder its inverse. */
static qn_status check_bytes(const qn_tokenizer *t, const json_t *decoder, qn_error *error)
{
    QN_FAIL_IF(!t->step_count || t->steps[t->step_count - 1].kind != QN_SPLIT_BYTES, error, QN_E_UNSUPPORTED,
               "tokenizer.json: the pre_tokenizer has no ByteLevel step, and is no Metaspace alone");
    const char *type = string_of(decoder, "type");
    QN_FAIL_IF(!type || strcmp(type, "ByteLevel") != 0, error, QN_E_UNSUPPORTED,
               "tokenizer.json: decoder '%s' is not served, expected ByteLevel",
               shown(json_object_get(decoder, "type")).text);
    return QN_OK;
}

static qn_status read_tokenizer_json(qn_tokenizer *t, json_t *root, qn_error *error)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const char *type = string_of(model, "type");
    QN_FAIL_IF(!json_is_object(model), error, QN_E_FILE, "tokenizer.json has no model");
    QN_FAIL_IF(json_object_get(model, "type") && (!type || strcmp(type, "BPE") != 0), error, QN_E_UNSUPPORTED,
               "tokenizer.json: model type '%s' is not served, expected BPE",
               shown(json_object_get(model, "type")).text);
    QN_FAIL_IF(added && !json_is_null(added) && !json_is_array(added), error, QN_E_FILE,
               "tokenizer.json: added_tokens is not a list");
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        QN_TRY(must_be_off(model, "model", off[i], error));
    }
    t->characters = !pre || json_is_null(pre) || is_type(pre, "Metaspace");
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    if (!t->characters) {
        QN_TRY(must_be_off(model, "model", "byte_fallback", error));
    }
    QN_TRY(read_vocab(t, model, added, error));
    QN_TRY(read_merges(t, json_object_get(model, "merges"), error));
    QN_TRY(read_added(t, added, error));
    const json_t *unk = json_object_get(model, "unk_token");
    if (json_is_string(unk)) {
        if (!t->characters) {
            QN_TRY(must_be_off(model, "model", "fuse_unk", error));
        }
        t->unk_model_id = qn_vocab_find(t, json_string_value(unk), json_string_length(unk));
        QN_FAIL_IF(t->unk_model_id < 0, error, QN_E_FILE, "tokenizer.json: model.unk_token '%s' is no token",
                   shown(unk).text);
        t->unk_id = t->unk_model_id;
    }
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    if (t->characters) {
        QN_TRY(read_marks(t, root, error));
    } else {
        QN_TRY(read_steps(t, pre, 0, error));
        QN_TRY(read_normalizer(t, json_object_get(root, "normalizer"), 0, error));
        QN_TRY(check_bytes(t, json_object_get(root, "decoder"), error));
    }
    return read_post(t, json_object_get(root, "post_processor"), 0, error);
}

/* bos_token and its like: a string or {"content": string}; an unknown text is no token. */
static void named_token(const qn_tokenizer *t, const json_t *config, const char *key, int32_t *id)
{
    const json_t *v = json_object_get(config, key);
    v = json_is_object(v) ? json_object_get(v, "content") : v;
    if (json_is_string(v) && json_string_length(v)) {
        const int32_t found = qn_vocab_find(t, json_string_value(v), json_string_length(v));
        *id = found >= 0 ? found : *id;
    }
}

static qn_status keep_template(qn_tokenizer *t, const char *data, size_t bytes, qn_error *error)
{
    QN_FAIL_IF(bytes > QN_TEXT_MAX_TEMPLATE || memchr(data, 0, bytes), error, QN_E_FILE,
               "the chat template has %zu bytes, expected at most %d without zero bytes", bytes, QN_TEXT_MAX_TEMPLATE);
    qn_free(t->ctx, t->chat_template);
    t->chat_template = qn_strndup(t->ctx, data, bytes);
    QN_FAIL_IF(!t->chat_template, error, QN_E_MEMORY, "out of memory for the chat template");
    return QN_OK;
}

static qn_status read_config(qn_tokenizer *t, const json_t *config, qn_error *error)
{
    const json_t *template = json_object_get(config, "chat_template");
    named_token(t, config, "bos_token", &t->bos_id);
    named_token(t, config, "eos_token", &t->eos_id);
    named_token(t, config, "unk_token", &t->unk_id);
    named_token(t, config, "pad_token", &t->pad_id);
    if (json_is_array(template)) { /* a list of named ones */
        size_t i;
        json_t *item;
        json_array_foreach(template, i, item)
        {
            const char *name = string_of(item, "name");
            if (name && strcmp(name, "default") == 0) {
                template = json_object_get(item, "template");
                break;
            }
        }
    }
    return json_is_string(template) ? keep_template(t, json_string_value(template), json_string_length(template), error)
                                    : QN_OK;
}

static void mark_end(qn_tokenizer *t, const json_t *id)
{
    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < t->token_count) {
        t->tokens[json_integer_value(id)].flags |= QN_TOKEN_END;
    }
}

static void read_generation(qn_tokenizer *t, const json_t *generation)
{
    const json_t *eos = json_object_get(generation, "eos_token_id");
    size_t i;
    json_t *v;
    mark_end(t, eos);
    json_array_foreach(eos, i, v)
    {
        mark_end(t, v);
    }
}

static const char *name_steps(const qn_tokenizer *t)
{
    const qn_split *first = &t->steps[0];
    if (t->characters) {
        return "sentencepiece";
    }
    if (t->step_count == 1) {
        return first->with_regex ? "gpt2" : "bytes";
    }
    if (t->step_count == 2 && first->kind == QN_SPLIT_DIGITS && t->steps[1].with_regex) {
        return "smollm";
    }
    if (t->step_count == 2 && first->kind == QN_SPLIT_REGEX && !t->steps[1].with_regex) {
        return strcmp(first->pattern, qn_pattern_llama3) == 0  ? "llama3"
               : strcmp(first->pattern, qn_pattern_qwen2) == 0 ? "qwen2"
                                                               : "custom";
    }
    return "custom";
}

qn_status qn_tokenizer_from_json(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    json_t *root = NULL, *config = NULL, *generation = NULL;
    qn_status status = load("tokenizer.json", source->tokenizer_json, 0, &root, error);
    if (status == QN_OK) {
        status = read_tokenizer_json(t, root, error);
    }
    json_decref(root);
    if (status == QN_OK && source->tokenizer_config_json.data) {
        /* no integer of it is read, and model_max_length is often 10^30 */
        status = load("tokenizer_config.json", source->tokenizer_config_json, JSON_DECODE_INT_AS_REAL, &config, error);
        if (status == QN_OK) {
            status = read_config(t, config, error);
        }
        json_decref(config);
    }
    if (status == QN_OK && source->chat_template_jinja.data) {
        status = keep_template(t, source->chat_template_jinja.data, source->chat_template_jinja.bytes, error);
    }
    if (status == QN_OK && source->generation_config_json.data) {
        status = load("generation_config.json", source->generation_config_json, 0, &generation, error);
        if (status == QN_OK) {
            read_generation(t, generation);
        }
        json_decref(generation);
    }
    if (status != QN_OK) {
        return status;
    }
    t->add_bos = t->prefix_count > 0;
    t->add_eos = t->suffix_count > 0;
    t->pre = qn_strdup(t->ctx, name_steps(t));
    QN_FAIL_IF(!t->pre, error, QN_E_MEMORY, "out of memory for the tokenizer");
    return qn_vocab_finish(t, error);
}
