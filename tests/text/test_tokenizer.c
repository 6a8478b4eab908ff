/* The tokenizer without the real model: a self-made tokenizer.json (small.json, with ids by another implementation),
 * its export read back, broken files, bad UTF-8, long pieces, buffers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "golden.h"
#include "small_tokenizer.h"
#include "text/bpe.h"

#define BOTH (QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL)

static qn_ctx *ctx;
static golden_lines lines;
static char *small_json;
static size_t small_bytes;

static qn_status from_text(const char *json, size_t bytes, const char *config, int32_t vocab, qn_tokenizer **out,
                           qn_error *error)
{
    qn_tokenizer_source source = {
        .bos_id = -1, .eos_id = -1, .eot_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1, .add_eos = -1};
    source.tokenizer_json = (qn_string){json, bytes};
    if (config) {
        source.tokenizer_config_json = (qn_string){config, strlen(config)};
    }
    memset(error, 0, sizeof *error);
    return qn_tokenizer_create(ctx, &source, vocab, out, error);
}

static void small_golden(void **state)
{
    (void)state;
    qn_tokenizer *t;
    qn_error error;
    if (from_text(small_json, small_bytes, NULL, 2000, &t, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    lines.count = 2000;
    assert_int_equal(golden_compare(t, &lines, "tests/text/small.golden", "", BOTH), 0);
    qn_tokenizer_info info;
    qn_tokenizer_get_info(t, &info);
    assert_string_equal(info.pre, "llama3");
    assert_int_equal(info.add_bos, 1);
    assert_int_equal(info.special_count, 3);
    qn_tokenizer_destroy(t);
}

static void export_reads_back(void **state)
{
    (void)state;
    static const char config[] = "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", "
                                 "\"model_max_length\": 1000000000000000019884624838656, "
                                 "\"chat_template\": \"{{ \\\"a\\\" }}\\n\"}";
    qn_tokenizer *t, *again;
    qn_error error;
    assert_int_equal(from_text(small_json, small_bytes, config, 2000, &t, &error), QN_OK);
    qn_buffer json = qn_buffer_make(ctx), settings = qn_buffer_make(ctx), json2 = qn_buffer_make(ctx),
              settings2 = qn_buffer_make(ctx);
    assert_int_equal(qn_tokenizer_export(t, &json, &settings, &error), QN_OK);
    if (from_text(json.data, json.length, settings.data, 2000, &again, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    lines.count = 2000;
    assert_int_equal(golden_compare(again, &lines, "tests/text/small.golden", "", BOTH), 0);
    qn_tokenizer_info info;
    qn_tokenizer_get_info(again, &info);
    assert_string_equal(info.chat_template, "{{ \"a\" }}\n");
    assert_int_equal(info.bos_id, 0);
    assert_int_equal(info.eos_id, 1);
    assert_true(qn_tokenizer_is_end(again, 1) && !qn_tokenizer_is_end(again, 0));
    assert_int_equal(qn_tokenizer_export(again, &json2, &settings2, &error), QN_OK);
    assert_string_equal(json.data, json2.data);
    assert_string_equal(settings.data, settings2.data);
    qn_buffer_free(&json);
    qn_buffer_free(&json2);
    qn_buffer_free(&settings);
    qn_buffer_free(&settings2);
    qn_tokenizer_destroy(t);
    qn_tokenizer_destroy(again);
}

/* Decoding the ids of a text gives its bytes (the fixture has all 256 bytes; NFC texts only). */
static void round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "Hello,  world!\n", "\t\x01\x7f 12345", "日本語 😀 привет", "a<|im_end|>b"};
    static int32_t ids[1000];
    char text[1000];
    qn_tokenizer *t;
    qn_error error;
    size_t count, bytes;
    assert_int_equal(from_text(small_json, small_bytes, NULL, 2000, &t, &error), QN_OK);
    for (size_t i = 0; i < 5; i++) {
        for (uint32_t flags = 0; flags < 4; flags++) {
            assert_int_equal(qn_tokenizer_encode(t, texts[i], strlen(texts[i]), flags, ids, 1000, &count, &error),
                             QN_OK);
            assert_int_equal(
                qn_tokenizer_decode(t, ids, count, (flags & 1) && i < 4, text, sizeof text, &bytes, &error), QN_OK);
            if (i < 4 || !(flags & 1)) {
                assert_int_equal(bytes, strlen(texts[i]));
                assert_memory_equal(text, texts[i], bytes);
            }
        }
    }
    /* bad bytes: one U+FFFD each */
    static const char bad[] = "a\xff\xc3(\xe2\x82 \xed\xa0\x80\xf0\x9f\x98";
    static const char good[] = "a\xEF\xBF\xBD\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                               "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD";
    assert_int_equal(qn_tokenizer_encode(t, bad, sizeof bad - 1, 0, ids, 1000, &count, &error), QN_OK);
    assert_int_equal(qn_tokenizer_decode(t, ids, count, 0, text, sizeof text, &bytes, &error), QN_OK);
    assert_int_equal(bytes, sizeof good - 1);
    assert_memory_equal(text, good, bytes);
    /* buffer rules */
    assert_int_equal(qn_tokenizer_encode(t, "abc", 3, BOTH, NULL, 0, &count, &error), QN_E_WORKSPACE);
    const size_t all = count;
    assert_true(all >= 3);
    ids[1] = -7;
    assert_int_equal(qn_tokenizer_encode(t, "abc", 3, BOTH, ids, 1, &count, &error), QN_E_WORKSPACE);
    assert_int_equal(count, all);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], -7);
    assert_int_equal(qn_tokenizer_encode(t, "abc", 3, 64, ids, 1, &count, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_tokenizer_encode(t, NULL, 3, 0, ids, 1, &count, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_tokenizer_encode(NULL, "a", 1, 0, ids, 1, &count, &error), QN_E_ARGUMENT);
    const int32_t none[] = {-1}, high[] = {2000}, hole[] = {1999};
    assert_int_equal(qn_tokenizer_decode(t, none, 1, 0, text, 10, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_tokenizer_decode(t, high, 1, 0, text, 10, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_tokenizer_decode(t, hole, 1, 0, text, 10, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 0);
    assert_null(qn_tokenizer_piece(t, 1999, &bytes));
    assert_null(qn_tokenizer_piece(t, -1, NULL));
    qn_tokenizer_destroy(t);
    qn_tokenizer_destroy(NULL);
}

/* One piece of 300,000 bytes, runs of spaces, many added tokens: time would show anything quadratic. */
static void long_texts(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "the", "日", "<|im_end|>", "==", "1", "e\xCC\x81", "\xff"};
    const size_t bytes = 300000;
    char *text = malloc(bytes);
    int32_t *ids = malloc(bytes * 4 * sizeof *ids);
    qn_tokenizer *t;
    qn_error error = {0};
    size_t count;
    assert_int_equal(from_text(small_json, small_bytes, NULL, 2000, &t, &error), QN_OK);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        const size_t n = strlen(units[k]), whole = bytes / n * n;
        for (size_t i = 0; i < whole; i++) {
            text[i] = units[k][i % n];
        }
        if (qn_tokenizer_encode(t, text, whole, BOTH, ids, bytes * 4, &count, &error) != QN_OK) {
            fail_msg("%s: %s", units[k], error.text);
        }
        assert_true(count > 2);
    }
    qn_tokenizer_destroy(t);
    free(ids);
    free(text);
}

typedef struct broken {
    const char *json;
    qn_status status;
} broken;

/* H: head of a good file up to the model, M: a model, T: the rest. */
#define V "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MG "\"merges\":[\"a b\"]"
#define M "\"model\":{\"type\":\"BPE\"," V "," MG "}"
#define P "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define D "\"decoder\":{\"type\":\"ByteLevel\"}"
#define F QN_E_FILE
#define U QN_E_UNSUPPORTED

static const broken cases[] = {
    {"{" M "," P "," D "}", QN_OK},
    {"", F},
    {"{", F},
    {"[]", F},
    {"null", F},
    {"{}", F},
    {"{\"a\":1,\"a\":2}", F},
    {"{" M "," P "," D "} x", F},
    {"{" M "," P "," D, F},
    {"{\"model\":7," P "," D "}", F},
    {"{\"model\":{}," P "," D "}", F},
    {"{\"model\":{\"type\":7," V "," MG "}," P "," D "}", U},
    {"{\"model\":{\"type\":\"Unigram\"," V "," MG "}," P "," D "}", U},
    {"{\"model\":{\"type\":\"WordPiece\"," V "," MG "}," P "," D "}", U},
    {"{\"model\":{\"vocab\":[]," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":\"0\"}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":0.5}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":-1}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":100}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":4294967296}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":99999999999999999999}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0,\"ab\":1}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1,\"ab\":2}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":1}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"a\\u0000\":0,\"b\":1}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"\\ud800\":0}," MG "}," P "," D "}", F},
    {"{\"model\":{\"vocab\":{\"\xff\":0}," MG "}," P "," D "}", F},
    {"{\"model\":{" V "}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":{}}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[7]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"ab\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\" \"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"a \"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"a c\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"b a\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"a b\",\"a b\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[\"a b c\"]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[[\"a\"]]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[[\"a\",\"b\",\"c\"]]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[[\"a\",7]]}," P "," D "}", F},
    {"{\"model\":{" V ",\"merges\":[[\"a\",\"b\"]]}," P "," D "}", QN_OK},
    {"{\"model\":{" V "," MG ",\"dropout\":0.1}," P "," D "}", U},
    {"{\"model\":{" V "," MG ",\"byte_fallback\":true}," P "," D "}", U},
    {"{\"model\":{" V "," MG ",\"continuing_subword_prefix\":\"##\"}," P "," D "}", U},
    {"{\"model\":{" V "," MG ",\"end_of_word_suffix\":\"</w>\"}," P "," D "}", U},
    {"{\"model\":{" V "," MG ",\"unk_token\":\"zz\"}," P "," D "}", F},
    {"{\"model\":{" V "," MG ",\"unk_token\":\"a\",\"fuse_unk\":true}," P "," D "}", U},
    {"{" M "," D "}", U},
    {"{" M ",\"pre_tokenizer\":null," D "}", U},
    {"{" M ",\"pre_tokenizer\":{}," D "}", F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Metaspace\"}," D "}", U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Digits\"}," D "}", U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}," D "}", U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Sequence\"}," D "}", F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]}," D "}", U},
    {"{" M
     ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}," D
     "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\"}," D "}", F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\"},\"behavior\":\"Isolated\"}," D "}", F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}," D "}", F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"MergedWithNext\"}," D
     "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?R)\"},\"behavior\":\"Isolated\"}," D "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"^a\"},\"behavior\":\"Isolated\"}," D "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\w\"},\"behavior\":\"Isolated\"}," D "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Isolated\"}," D
     "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}," D
     "}",
     U},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{1,3}+\"},\"behavior\":\"Isolated\"}," D
     "}",
     U},
    {"{" M
     ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Nope}\"},\"behavior\":\"Isolated\"}," D "}",
     F},
    {"{" M ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\\\\\"},\"behavior\":\"Isolated\"}," D "}",
     U},
    {"{" M "," P "}", U},
    {"{" M "," P ",\"decoder\":{\"type\":\"Metaspace\"}}", U},
    {"{" M "," P "," D ",\"normalizer\":{\"type\":\"NFKC\"}}", U},
    {"{" M "," P "," D ",\"normalizer\":{}}", F},
    {"{" M "," P "," D ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}}", QN_OK},
    {"{" M "," P "," D ",\"added_tokens\":7}", F},
    {"{" M "," P "," D ",\"added_tokens\":[7]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":3}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":-3,\"content\":\"x\"}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":77,\"content\":\"x\"}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":3,\"content\":\"\"}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":3,\"content\":\"a\"}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":7}]}", F},
    {"{" M "," P "," D ",\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":3,\"content\":\"x\"}]}", F},
    {"{" M "," P "," D ",\"post_processor\":{}}", F},
    {"{" M "," P "," D ",\"post_processor\":{\"type\":\"BertProcessing\"}}", U},
    {"{" M "," P "," D ",\"post_processor\":{\"type\":\"TemplateProcessing\"}}", F},
    {"{" M "," P "," D ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", F},
    {"{" M "," P "," D ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{}]}}", F},
    {"{" M "," P "," D
     ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}}]}}",
     F},
    {"{" M "," P "," D
     ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}},"
     "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"a\":{\"ids\":[9]}}}}",
     F},
};

static void broken_files(void **state)
{
    (void)state;
    size_t failed = 0;
    assert_true(sizeof cases / sizeof *cases > 60);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_tokenizer *t = (qn_tokenizer *)&failed;
        qn_error error;
        const qn_status status = from_text(cases[i].json, strlen(cases[i].json), NULL, 10, &t, &error);
        const int said = status == QN_OK || (error.text[0] && !strchr(error.text, '\n') && !t);
        if (status != cases[i].status || !said) {
            printf("%s\n  gave %s '%s', expected %s\n", cases[i].json, qn_status_name(status), error.text,
                   qn_status_name(cases[i].status));
            failed++;
        }
        qn_tokenizer_destroy(status == QN_OK ? t : NULL);
    }
    assert_int_equal(failed, 0);
}

/* The fixture cut off at many places, and nested without end. */
static void truncated_files(void **state)
{
    (void)state;
    qn_error error;
    qn_tokenizer *t;
    for (size_t n = 0; n < small_bytes - 1; n += n < 300 ? 1 : 97) {
        assert_int_equal(from_text(small_json, n, NULL, 2000, &t, &error), QN_E_FILE);
        assert_null(t);
    }
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    assert_int_equal(from_text(deep, 100000, NULL, 10, &t, &error), QN_E_FILE);
    free(deep);
    assert_int_equal(from_text(small_json, small_bytes, "{", 2000, &t, &error), QN_E_FILE);
    assert_int_equal(from_text(small_json, small_bytes, NULL, 0, &t, &error), QN_E_ARGUMENT);
    assert_int_equal(from_text(small_json, small_bytes, NULL, 5, &t, &error), QN_E_FILE);
}

static void broken_arrays(void **state)
{
    (void)state;
    static const qn_string tokens[] = {{"a", 1}, {"b", 1}, {"ab", 2}}, twice[] = {{"a", 1}, {"b", 1}, {"a", 1}};
    static const qn_string not_utf8[] = {{"a", 1}, {"\xff", 1}, {"ab", 2}}, merges[] = {{"a b", 3}},
                           bad_merge[] = {{"ab", 2}};
    static const qn_string unknown[] = {{"a c", 3}}, makes_none[] = {{"b a", 3}}, null_merge[] = {{NULL, 0}};
    static const int32_t types[] = {1, 1, 9};
    const qn_tokenizer_source good = {.model = "gpt2",
                                      .pre = "gpt-2",
                                      .tokens = tokens,
                                      .token_count = 3,
                                      .merges = merges,
                                      .merge_count = 1,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .eot_id = -1,
                                      .unk_id = -1,
                                      .pad_id = -1,
                                      .add_bos = -1,
                                      .add_eos = -1};
    qn_tokenizer_source s[18];
    qn_status want[18];
    size_t n = 0;
#define CASE(status, change)                                                                                           \
    s[n] = good;                                                                                                       \
    s[n].change;                                                                                                       \
    want[n++] = status
    CASE(QN_OK, pre = NULL);
    CASE(QN_OK, bos_id = 2);
    CASE(QN_E_UNSUPPORTED, pre = "nosuch");
    CASE(QN_E_FILE, model = "llama"); /* no scores */
    CASE(QN_E_UNSUPPORTED, model = NULL);
    CASE(QN_E_UNSUPPORTED, tokens = NULL);
    CASE(QN_E_FILE, tokens = twice);
    CASE(QN_E_FILE, tokens = not_utf8);
    CASE(QN_E_FILE, token_types = types);
    CASE(QN_E_FILE, token_count = 0);
    CASE(QN_E_FILE, token_count = 11);
    CASE(QN_E_FILE, merges = bad_merge);
    CASE(QN_E_FILE, merges = unknown);
    CASE(QN_E_FILE, merges = makes_none);
    CASE(QN_E_FILE, merges = null_merge);
    CASE(QN_E_FILE, merge_count = 0);
    CASE(QN_E_FILE, eos_id = 3);
    CASE(QN_E_FILE, bos_id = -2);
    for (size_t i = 0; i < n; i++) {
        qn_tokenizer *t;
        qn_error error = {0};
        const qn_status status = qn_tokenizer_create(ctx, &s[i], 10, &t, &error);
        if (status != want[i]) {
            fail_msg("array case %zu gave %s '%s', expected %s", i, qn_status_name(status), error.text,
                     qn_status_name(want[i]));
        }
        qn_tokenizer_destroy(t);
    }
}

/* A pattern that runs without end is stopped. */
static void hostile_pattern(void **state)
{
    (void)state;
    static const char json[] =
        "{" M ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":"
        "{\"Regex\":\"(a|aa|b?)+c\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\"}]}," D "}";
    char text[64];
    qn_tokenizer *t;
    qn_error error;
    size_t count;
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "dc", 2);
    assert_int_equal(from_text(json, strlen(json), NULL, 10, &t, &error), QN_OK);
    assert_int_equal(qn_tokenizer_encode(t, text, sizeof text, 0, NULL, 0, &count, &error), QN_E_FILE);
    qn_tokenizer_destroy(t);
}

/* White space is exactly Unicode's 25 characters; what PCRE2 10.42 (Unicode 14) does not know yet is documented. */
static void character_classes(void **state)
{
    (void)state;
    qn_split space, letter;
    qn_error error;
    size_t spaces = 0;
    assert_int_equal(qn_split_make(ctx, QN_SPLIT_REGEX, "\\s", 2, 0, &space, &error), QN_OK);
    assert_int_equal(qn_split_make(ctx, QN_SPLIT_REGEX, "\\p{L}", 5, 0, &letter, &error), QN_OK);
    for (uint32_t c = 0; c < 0x11000; c++) {
        char text[8];
        const size_t n = qn_utf8_put(text, c);
        text[n] = 1; /* neither */
        qn_spans in = {.ctx = ctx}, out = {.ctx = ctx};
        if (c < 0xD800 || c > 0xDFFF) {
            assert_int_equal(qn_spans_add(&in, 0, n + 1), 0);
            assert_int_equal(qn_split_apply(&space, text, &in, &out, &error), QN_OK);
            assert_int_equal(out.count == 2, qn_is_white_space(c));
            spaces += out.count == 2;
        }
        qn_spans_free(&in);
        qn_spans_free(&out);
    }
    assert_int_equal(spaces, 25);
    char text[8];
    const size_t n = qn_utf8_put(text, 0x31350); /* a Han letter since Unicode 15 */
    text[n] = 1;
    qn_spans in = {.ctx = ctx}, out = {.ctx = ctx};
    assert_int_equal(qn_spans_add(&in, 0, n + 1), 0);
    assert_int_equal(qn_split_apply(&letter, text, &in, &out, &error), QN_OK);
    printf("U+31350 (letter since Unicode 15) is %sa letter for this PCRE2\n", out.count == 2 ? "" : "not ");
    qn_spans_free(&in);
    qn_spans_free(&out);
    qn_split_free(ctx, &space);
    qn_split_free(ctx, &letter);
}

int main(void)
{
    qn_error error = {0};
    small_json = read_whole("tests/text/small.json", &small_bytes);
    if (!small_json || golden_lines_open("tests/text/lines.txt", &lines) || lines.count != GOLDEN_LINES ||
        qn_ctx_create(NULL, &ctx, &error) != QN_OK) {
        printf("cannot set up: run in the source root\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_golden),  cmocka_unit_test(export_reads_back), cmocka_unit_test(round_trip),
        cmocka_unit_test(long_texts),    cmocka_unit_test(broken_files),      cmocka_unit_test(truncated_files),
        cmocka_unit_test(broken_arrays), cmocka_unit_test(hostile_pattern),   cmocka_unit_test(character_classes)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_ctx_destroy(ctx);
    free(small_json);
    free(lines.data);
    return failed;
}
