/* Tokenizers of characters with marks for spaces (SentencePiece's form of BPE): every way to put the marks against ids
 * by another implementation (marks.json, marks.golden), their exports read back, texts that come back from their ids,
 * the arrays of a GGUF file against merging by scores written out plainly, and broken ones. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "golden.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

#define BOTH (QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL)
#define MARK QN_TEXT_MARK
#define VOCAB 1100

static qn_ctx *ctx;
static golden_lines lines;
static char *marks_json;
static size_t marks_bytes;

#define DECODER(strip)                                                                                                 \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK           \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}" strip "]}"
#define STRIP ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define PREPEND "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}"
#define METASPACE(rest) "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"," rest "}"

/* make_marks.py has the same list. */
static const struct {
    const char *name, *members;
    int strips;
} ways[] = {
    {"prepend",
     "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" PREPEND "," REPLACE
     "]},\"pre_tokenizer\":null," DECODER(STRIP),
     1},
    {"replace", "\"normalizer\":" REPLACE "," DECODER(""), 0},
    {"always", "\"normalizer\":null," METASPACE("\"add_prefix_space\":true") "," DECODER(STRIP), 1},
    {"first", METASPACE("\"prepend_scheme\":\"first\",\"split\":false") "," DECODER(STRIP), 1},
    {"never", METASPACE("\"prepend_scheme\":\"never\",\"split\":false") "," DECODER(""), 0},
    {"nfc",
     "\"normalizer\":{\"type\":\"NFC\"}," METASPACE(
         "\"prepend_scheme\":\"first\"") ",\"decoder\":{\"type\":\"Metaspace\","
                                         "\"replacement\":\"" MARK "\",\"prepend_scheme\":\"first\"}",
     1},
    {"unknown", METASPACE("\"prepend_scheme\":\"always\",\"split\":false") "," DECODER(STRIP), 1}, /* without bytes */
};

#define WAYS (sizeof ways / sizeof *ways)

static qn_status from_json(const char *json, size_t bytes, qn_tokenizer **out, qn_error *error)
{
    qn_tokenizer_source source = {
        .bos_id = -1, .eos_id = -1, .eot_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1, .add_eos = -1};
    source.tokenizer_json = (qn_string){json, bytes};
    memset(error, 0, sizeof *error);
    return qn_tokenizer_create(ctx, &source, VOCAB, out, error);
}

/* marks.json with the members of one way. */
static qn_status of_members(const char *members, qn_tokenizer **out, qn_error *error)
{
    const size_t end = (size_t)(strrchr(marks_json, '}') - marks_json), more = strlen(members);
    char *json = malloc(end + more + 3);
    assert_non_null(json);
    memcpy(json, marks_json, end);
    snprintf(json + end, more + 3, ",%s}", members);
    const qn_status status = from_json(json, end + more + 2, out, error);
    free(json);
    return status;
}

static qn_status of_way(size_t i, qn_tokenizer **out, qn_error *error)
{
    char *const bytes = strstr(marks_json, "\"byte_fallback\":true");
    assert_non_null(bytes);
    memcpy(bytes + 16, strcmp(ways[i].name, "unknown") == 0 ? "null" : "true", 4);
    const qn_status status = of_members(ways[i].members, out, error);
    memcpy(bytes + 16, "true", 4);
    return status;
}

static void golden_in_every_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        char prefix[32];
        qn_tokenizer *t, *again;
        qn_error error;
        snprintf(prefix, sizeof prefix, "%s ", ways[i].name);
        if (of_way(i, &t, &error) != QN_OK) {
            fail_msg("%s: %s", ways[i].name, error.text);
        }
        assert_int_equal(golden_compare(t, &lines, "tests/text/marks.golden", prefix, BOTH), 0);
        qn_buffer json = qn_buffer_make(ctx), settings = qn_buffer_make(ctx);
        assert_int_equal(qn_tokenizer_export(t, &json, &settings, &error), QN_OK);
        if (from_json(json.data, json.length, &again, &error) != QN_OK) {
            fail_msg("%s, exported: %s", ways[i].name, error.text);
        }
        assert_int_equal(golden_compare(again, &lines, "tests/text/marks.golden", prefix, BOTH), 0);
        qn_tokenizer_info info;
        qn_tokenizer_get_info(again, &info);
        assert_string_equal(info.pre, "sentencepiece");
        qn_buffer_free(&json);
        qn_buffer_free(&settings);
        qn_tokenizer_destroy(again);
        qn_tokenizer_destroy(t);
    }
}

static void texts_come_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "", " ", "  two  spaces ", "Hello,\tworld!\n", "日本語 привет", "\x01\x7f 12345"};
    static int32_t ids[1000];
    char text[1000];
    for (size_t i = 0; i + 1 < WAYS; i++) { /* the last has unknown characters */
        qn_tokenizer *t;
        qn_error error;
        size_t count, bytes;
        assert_int_equal(of_way(i, &t, &error), QN_OK);
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            const char *want = texts[j];
            /* a Metaspace adds no mark to a first space, and the decoder takes that one away */
            want += ways[i].strips && i > 0 && want[0] == ' ';
            assert_int_equal(qn_tokenizer_encode(t, texts[j], strlen(texts[j]), 0, ids, 1000, &count, &error), QN_OK);
            assert_int_equal(qn_tokenizer_decode(t, ids, count, 0, text, sizeof text, &bytes, &error), QN_OK);
            if (bytes != strlen(want) || memcmp(text, want, bytes) != 0) {
                fail_msg("%s: '%s' comes back as '%.*s'", ways[i].name, texts[j], (int)bytes, text);
            }
        }
        qn_tokenizer_destroy(t);
    }
}

/* ---- GGUF ---- */

typedef struct arrays {
    qn_string tokens[VOCAB];
    int32_t types[VOCAB];
    float scores[VOCAB];
    qn_tokenizer_source source;
} arrays;

/* The vocabulary of marks.json, with scores that are partly the same. */
static void arrays_make(arrays *a, const qn_tokenizer *t)
{
    memset(a, 0, sizeof *a);
    for (int32_t id = 0; id < t->token_count; id++) {
        const qn_token *token = &t->tokens[id];
        a->tokens[id] = (qn_string){t->texts.data + token->text_at, token->text_bytes};
        const int byte = a->tokens[id].bytes == 6 && memcmp(a->tokens[id].data, "<0x", 3) == 0;
        a->types[id] = id == 0 ? 2 : id < 3 ? 3 : byte ? 6 : token->flags & QN_TOKEN_ADDED ? 4 : 1;
        a->scores[id] = a->types[id] == 1 ? -(float)(id * 7 % 1000 / 100) : 0.0f;
    }
    a->source = (qn_tokenizer_source){.model = "llama",
                                      .tokens = a->tokens,
                                      .token_types = a->types,
                                      .scores = a->scores,
                                      .token_count = t->token_count,
                                      .bos_id = 1,
                                      .eos_id = 2,
                                      .eot_id = -1,
                                      .unk_id = 0,
                                      .pad_id = -1,
                                      .add_bos = -1,
                                      .add_eos = -1,
                                      .add_space = -1};
}

/* One piece of text: the best pair first, of equal ones the leftmost, until none is a token. */
static size_t merge_plainly(const qn_tokenizer *t, const arrays *a, const char *text, size_t bytes, int32_t *ids)
{
    static char marked[100000];
    static size_t begin[100000];
    const size_t length = qn_mark_spaces(text, bytes, 1, marked);
    size_t n = 0, count = 0;
    for (size_t i = 0; i < length; n++) {
        uint32_t c;
        begin[n] = i;
        i += qn_utf8_next(marked + i, length - i, &c);
    }
    begin[n] = length;
    for (;;) {
        size_t best = n;
        float score = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const int32_t id = qn_vocab_find(t, marked + begin[i], begin[i + 2] - begin[i]);
            if (id >= 0 && a->types[id] == 1 && (best == n || a->scores[id] > score)) {
                best = i;
                score = a->scores[id];
            }
        }
        if (best == n) {
            break;
        }
        memmove(begin + best + 1, begin + best + 2, (n - best - 1) * sizeof *begin);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        const int32_t id = qn_vocab_find(t, marked + begin[i], begin[i + 1] - begin[i]);
        if (id >= 0) {
            ids[count++] = id;
        }
        for (size_t k = begin[i]; k < begin[i + 1] && id < 0; k++) {
            char byte[8];
            snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(unsigned char)marked[k]);
            ids[count++] = qn_vocab_find(t, byte, 6);
        }
    }
    return count;
}

static void scores_merge_as_written_out(void **state)
{
    (void)state;
    static arrays a;
    static int32_t want[10000], got[10000];
    qn_tokenizer *json, *t;
    qn_error error = {0};
    assert_int_equal(of_way(0, &json, &error), QN_OK);
    arrays_make(&a, json);
    for (int32_t id = 3; id < a.source.token_count; id++) {
        a.types[id] = a.types[id] == 4 ? 1 : a.types[id]; /* the plain merging knows no added tokens */
    }
    if (qn_tokenizer_create(ctx, &a.source, VOCAB, &t, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    qn_tokenizer_info info;
    qn_tokenizer_get_info(t, &info);
    assert_int_equal(info.add_bos, 1);
    int compared = 0;
    for (int i = 0; i < lines.count; i += 4) {
        size_t count = 0;
        assert_int_equal(qn_tokenizer_encode(t, lines.line[i], lines.bytes[i], 0, got, 10000, &count, &error), QN_OK);
        if (!qn_utf8_valid(lines.line[i], lines.bytes[i]) || !lines.bytes[i]) {
            continue;
        }
        const size_t n = merge_plainly(json, &a, lines.line[i], lines.bytes[i], want);
        if (n != count || memcmp(want, got, n * sizeof *want) != 0) {
            fail_msg("line %d has other ids (%zu of them, expected %zu): %s", i, count, n, lines.line[i]);
        }
        compared++;
    }
    assert_true(compared > 400);
    qn_tokenizer_destroy(t);
    qn_tokenizer_destroy(json);
}

/* A text is one piece: time would show anything quadratic. */
static void long_texts(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "the ", "日", "</s>", "kernel", "\xff"};
    const size_t bytes = 300000;
    char *const text = malloc(bytes);
    int32_t *const ids = malloc(bytes * 4 * sizeof *ids);
    assert_true(text && ids);
    for (size_t i = 0; i < WAYS; i++) {
        qn_tokenizer *t;
        qn_error error = {0};
        size_t count;
        assert_int_equal(of_way(i, &t, &error), QN_OK);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            const size_t n = strlen(units[k]), whole = bytes / n * n;
            for (size_t j = 0; j < whole; j++) {
                text[j] = units[k][j % n];
            }
            assert_int_equal(qn_tokenizer_encode(t, text, whole, BOTH, ids, bytes * 4, &count, &error), QN_OK);
            assert_true(count > 1);
        }
        qn_tokenizer_destroy(t);
    }
    free(ids);
    free(text);
}

static void broken_ones(void **state)
{
    (void)state;
    static const struct {
        qn_status want;
        const char *members;
    } cases[] = {
        {QN_E_UNSUPPORTED, "\"pre_tokenizer\":null," DECODER("")},
        {QN_E_UNSUPPORTED, "\"normalizer\":" PREPEND "," DECODER("")},
        {QN_E_UNSUPPORTED, "\"normalizer\":{\"type\":\"NFC\"}," DECODER("")},
        {QN_E_UNSUPPORTED, "\"normalizer\":" REPLACE ",\"decoder\":null"},
        {QN_E_UNSUPPORTED, "\"normalizer\":" REPLACE ",\"decoder\":{\"type\":\"ByteLevel\"}"},
        {QN_E_UNSUPPORTED,
         "\"normalizer\":" REPLACE "," DECODER(",{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0}")},
        {QN_E_UNSUPPORTED, "\"normalizer\":" REPLACE "," DECODER(",{\"type\":\"WordPiece\"}")},
        {QN_E_UNSUPPORTED, "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}," DECODER("")},
        {QN_E_FILE, METASPACE("\"prepend_scheme\":\"often\"") "," DECODER("")},
        {QN_E_UNSUPPORTED, "\"normalizer\":" REPLACE "," METASPACE("\"split\":true") "," DECODER("")},
        {QN_E_UNSUPPORTED,
         "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Metaspace\"}]}," DECODER("")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_tokenizer *t;
        qn_error error;
        const qn_status status = of_members(cases[i].members, &t, &error);
        if (status != cases[i].want) {
            fail_msg("case %zu gave %s '%s', expected %s", i, qn_status_name(status), error.text,
                     qn_status_name(cases[i].want));
        }
        assert_null(t);
    }
    static arrays a;
    qn_tokenizer *json, *t;
    qn_error error = {0};
    assert_int_equal(of_way(0, &json, &error), QN_OK);
    arrays_make(&a, json);
    a.scores[500] = (float)NAN;
    assert_int_equal(qn_tokenizer_create(ctx, &a.source, VOCAB, &t, &error), QN_E_FILE);
    a.source.scores = NULL;
    assert_int_equal(qn_tokenizer_create(ctx, &a.source, VOCAB, &t, &error), QN_E_FILE);
    qn_tokenizer_destroy(json);
}

static int setup(void **state)
{
    (void)state;
    marks_json = read_whole("tests/text/marks.json", &marks_bytes);
    if (!marks_json || golden_lines_open("tests/text/lines.txt", &lines) != 0) {
        return 1;
    }
    lines.count = 2000;
    return qn_ctx_create(NULL, &ctx, NULL) != QN_OK;
}

static int teardown(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    free(lines.data);
    free(marks_json);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_in_every_way),
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(scores_merge_as_written_out),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(broken_ones),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
