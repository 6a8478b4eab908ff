/* A tokenizer as the two files that Hugging Face's loaders read. Called when a
 * quantised model is written. Reading the result back gives the same ids. */
#include <string.h>

#include "text/bpe.h"
#include "text/tokenizer.h"

static void put_text(qn_buffer *b, const char *s, size_t bytes)
{
    qn_buffer_add(b, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            qn_buffer_print(b, "\\%c", c);
        } else if (c < 0x20) {
            qn_buffer_print(b, "\\u%04x", c);
        } else {
            qn_buffer_add(b, s + i, 1);
        }
    }
    qn_buffer_add(b, "\"", 1);
}

static void put_token(const qn_tokenizer *t, qn_buffer *b, int32_t id)
{
    put_text(b, t->texts.data + t->tokens[id].text_at, t->tokens[id].text_bytes);
}

static const char *yes(uint32_t flag)
{
    return flag ? "true" : "false";
}

static void put_added(const qn_tokenizer *t, qn_buffer *b)
{
    const char *comma = "";
    qn_buffer_print(b, "  \"added_tokens\": [");
    for (int32_t id = 0; id < t->token_count; id++) {
        const uint32_t f = t->tokens[id].flags;
        if ((f & QN_TOKEN_ADDED) && t->tokens[id].text_bytes) {
            qn_buffer_print(b, "%s\n    {\"id\": %d, \"content\": ", comma, id);
            put_token(t, b, id);
            qn_buffer_print(
                b, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s}",
                yes(f & QN_TOKEN_SINGLE_WORD), yes(f & QN_TOKEN_LSTRIP), yes(f & QN_TOKEN_RSTRIP),
                yes(f & QN_TOKEN_NORMALIZED), yes(f & QN_TOKEN_SPECIAL));
            comma = ",";
        }
    }
    qn_buffer_print(b, "\n  ],\n");
}

static void put_normalizer(const qn_tokenizer *t, qn_buffer *b)
{
    if (!t->marks.normalizer) {
        qn_buffer_print(b, "  \"normalizer\": %s,\n", t->normalize ? "{\"type\": \"NFC\"}" : "null");
        return;
    }
    qn_buffer_print(b, "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [");
    if (t->marks.before != QN_MARK_NEVER) {
        qn_buffer_print(b, "{\"type\": \"Prepend\", \"prepend\": \"%s\"}, ", QN_TEXT_MARK);
    }
    qn_buffer_print(b, "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"%s\"}]},\n",
                    QN_TEXT_MARK);
}

static void put_marks(const qn_tokenizer *t, qn_buffer *b)
{
    static const char *const schemes[] = {"never", "always", "first"};
    if (t->marks.normalizer) {
        qn_buffer_print(b, "  \"pre_tokenizer\": null,\n");
        return;
    }
    qn_buffer_print(b,
                    "  \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"%s\", \"prepend_scheme\": "
                    "\"%s\", \"split\": %s},\n",
                    QN_TEXT_MARK, schemes[t->marks.before], yes((uint32_t)t->marks.split));
}

static void put_decoder(const qn_tokenizer *t, qn_buffer *b)
{
    if (!t->characters) {
        qn_buffer_print(b,
                        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                        "\"use_regex\": true},\n");
        return;
    }
    qn_buffer_print(b,
                    "  \"decoder\": {\"type\": \"Sequence\", \"decoders\": [\n    {\"type\": \"Replace\", \"pattern\": "
                    "{\"String\": \"%s\"}, \"content\": \" \"},\n    {\"type\": \"ByteFallback\"},\n    {\"type\": "
                    "\"Fuse\"}%s\n  ]},\n",
                    QN_TEXT_MARK,
                    t->marks.strip ? ",\n    {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}"
                                   : "");
}

static void put_steps(const qn_tokenizer *t, qn_buffer *b)
{
    if (t->characters) {
        put_marks(t, b);
        return;
    }
    qn_buffer_print(b, "  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    for (int i = 0; i < t->step_count; i++) {
        const qn_split *s = &t->steps[i];
        qn_buffer_print(b, "%s\n    ", i ? "," : "");
        if (s->kind == QN_SPLIT_BYTES) {
            qn_buffer_print(b,
                            "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                            "\"use_regex\": %s}",
                            yes((uint32_t)s->with_regex));
        } else if (s->kind == QN_SPLIT_REGEX || s->kind == QN_SPLIT_LITERAL) {
            qn_buffer_print(
                b, "{\"type\": \"Split\", \"pattern\": {\"%s\": ", s->kind == QN_SPLIT_REGEX ? "Regex" : "String");
            put_text(b, s->pattern, strlen(s->pattern));
            qn_buffer_print(b, "}, \"behavior\": \"%s\", \"invert\": %s}", s->drop_between ? "Removed" : "Isolated",
                            yes((uint32_t)s->drop_between));
        } else {
            qn_buffer_print(b, "{\"type\": \"Digits\", \"individual_digits\": %s}", yes(s->kind == QN_SPLIT_DIGITS));
        }
    }
    qn_buffer_print(b, "\n  ]},\n");
}

static void put_affixes(const qn_tokenizer *t, qn_buffer *b, int pair)
{
    const char *comma = "";
    for (int part = 0; part < 1 + pair; part++) {
        for (int i = 0; i < t->prefix_count; i++) {
            qn_buffer_print(b, "%s{\"SpecialToken\": {\"id\": ", comma);
            put_token(t, b, t->prefix[i]);
            qn_buffer_print(b, ", \"type_id\": %d}}", part);
            comma = ", ";
        }
        qn_buffer_print(b, "%s{\"Sequence\": {\"id\": \"%c\", \"type_id\": %d}}", comma, 'A' + part, part);
        comma = ", ";
        for (int i = 0; i < t->suffix_count; i++) {
            qn_buffer_print(b, "%s{\"SpecialToken\": {\"id\": ", comma);
            put_token(t, b, t->suffix[i]);
            qn_buffer_print(b, ", \"type_id\": %d}}", part);
        }
    }
}

static void put_post(const qn_tokenizer *t, qn_buffer *b)
{
    if (!t->prefix_count && !t->suffix_count) {
        qn_buffer_print(b, "  \"post_processor\": null,\n");
        return;
    }
    qn_buffer_print(b, "  \"post_processor\": {\"type\": \"TemplateProcessing\",\n    \"single\": [");
    put_affixes(t, b, 0);
    qn_buffer_print(b, "],\n    \"pair\": [");
    put_affixes(t, b, 1);
    qn_buffer_print(b, "],\n    \"special_tokens\": {");
    const char *comma = "";
    for (int i = 0; i < t->prefix_count + t->suffix_count; i++) {
        const int32_t id = i < t->prefix_count ? t->prefix[i] : t->suffix[i - t->prefix_count];
        int seen = 0;
        for (int k = 0; k < i; k++) {
            seen |= id == (k < t->prefix_count ? t->prefix[k] : t->suffix[k - t->prefix_count]);
        }
        if (!seen) {
            qn_buffer_print(b, "%s", comma);
            put_token(t, b, id);
            qn_buffer_print(b, ": {\"id\": ");
            put_token(t, b, id);
            qn_buffer_print(b, ", \"ids\": [%d], \"tokens\": [", id);
            put_token(t, b, id);
            qn_buffer_print(b, "]}");
            comma = ", ";
        }
    }
    qn_buffer_print(b, "}},\n");
}

/* "left right" where no token has a space, pairs otherwise (older readers know only the first form). */
static void put_model(const qn_tokenizer *t, qn_buffer *b)
{
    int spaces = 0;
    for (int32_t i = 0; i < t->merge_count && !spaces; i++) {
        const qn_token *l = &t->tokens[t->merge_left[i]], *r = &t->tokens[t->merge_right[i]];
        spaces = memchr(t->texts.data + l->text_at, ' ', l->text_bytes) != NULL ||
                 memchr(t->texts.data + r->text_at, ' ', r->text_bytes) != NULL;
    }
    qn_buffer_print(b, "  \"model\": {\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    if (t->unk_model_id >= 0) {
        put_token(t, b, t->unk_model_id);
    } else {
        qn_buffer_print(b, "null");
    }
    qn_buffer_print(b,
                    ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": %s,\n"
                    "    \"byte_fallback\": %s, \"ignore_merges\": %s,\n    \"vocab\": {",
                    yes((uint32_t)t->fuse_unk), yes((uint32_t)t->byte_fallback), yes((uint32_t)t->ignore_merges));
    const char *comma = "";
    for (int32_t id = 0; id < t->token_count; id++) {
        if ((t->tokens[id].flags & QN_TOKEN_PRESENT) && t->tokens[id].text_bytes) {
            qn_buffer_print(b, "%s\n      ", comma);
            put_token(t, b, id);
            qn_buffer_print(b, ": %d", id);
            comma = ",";
        }
    }
    qn_buffer_print(b, "\n    },\n    \"merges\": [");
    for (int32_t i = 0; i < t->merge_count; i++) {
        const qn_token *l = &t->tokens[t->merge_left[i]], *r = &t->tokens[t->merge_right[i]];
        qn_buffer_print(b, "%s\n      ", i ? "," : "");
        if (spaces) {
            qn_buffer_print(b, "[");
            put_token(t, b, t->merge_left[i]);
            qn_buffer_print(b, ", ");
            put_token(t, b, t->merge_right[i]);
            qn_buffer_print(b, "]");
        } else {
            qn_buffer both = qn_buffer_make(t->ctx);
            qn_buffer_add(&both, t->texts.data + l->text_at, l->text_bytes);
            qn_buffer_add(&both, " ", 1);
            qn_buffer_add(&both, t->texts.data + r->text_at, r->text_bytes);
            b->failed |= both.failed;
            if (!both.failed) {
                put_text(b, both.data, both.length);
            }
            qn_buffer_free(&both);
        }
    }
    qn_buffer_print(b, "\n    ]\n  }\n}\n");
}

static void put_config(const qn_tokenizer *t, qn_buffer *b)
{
    const struct {
        const char *name;
        int32_t id;
    } named[] = {
        {"bos_token", t->bos_id}, {"eos_token", t->eos_id}, {"unk_token", t->unk_id}, {"pad_token", t->pad_id}};
    qn_buffer_print(b, "{\n  \"add_prefix_space\": false,\n  \"add_bos_token\": %s,\n  \"add_eos_token\": %s,\n",
                    yes((uint32_t)t->add_bos), yes((uint32_t)t->add_eos));
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        qn_buffer_print(b, "  \"%s\": ", named[i].name);
        if (named[i].id >= 0) {
            put_token(t, b, named[i].id);
        } else {
            qn_buffer_print(b, "null");
        }
        qn_buffer_print(b, ",\n");
    }
    if (t->chat_template) {
        qn_buffer_print(b, "  \"chat_template\": ");
        put_text(b, t->chat_template, strlen(t->chat_template));
        qn_buffer_print(b, ",\n");
    }
    qn_buffer_print(
        b, "  \"clean_up_tokenization_spaces\": false,\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
}

qn_status qn_tokenizer_export(const qn_tokenizer *tokenizer, qn_buffer *tokenizer_json,
                              qn_buffer *tokenizer_config_json, qn_error *error)
{
    QN_FAIL_IF(!tokenizer || !tokenizer_json || !tokenizer_config_json, error, QN_E_ARGUMENT,
               "tokenizer export got NULL for the tokenizer or a buffer");
    QN_FAIL_IF(tokenizer->chat_template && !qn_utf8_valid(tokenizer->chat_template, strlen(tokenizer->chat_template)),
               error, QN_E_FILE, "the chat template is not UTF-8");
    qn_buffer *b = tokenizer_json;
    qn_buffer_print(b, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(tokenizer, b);
    put_normalizer(tokenizer, b);
    put_steps(tokenizer, b);
    put_post(tokenizer, b);
    put_decoder(tokenizer, b);
    put_model(tokenizer, b);
    put_config(tokenizer, tokenizer_config_json);
    QN_FAIL_IF(b->failed || tokenizer_config_json->failed, error, QN_E_MEMORY,
               "out of memory while writing the tokenizer");
    return QN_OK;
}
