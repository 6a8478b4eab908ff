/* The real model's vocabulary (QN_TEST_MODEL names its GGUF file) over 10,000 golden lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "golden.h"
#include "gguf_vocab.h"
#include "text/tokenizer.h"

static qn_ctx *ctx;
static qn_tokenizer *tokenizer;
static golden_lines lines;

static void same_ids_parsed(void **state)
{
    (void)state;
    assert_int_equal(golden_compare(tokenizer, &lines, "tests/text/smollm2.golden", "", QN_ENCODE_PARSE_SPECIAL), 0);
}

static void same_ids_plain(void **state)
{
    (void)state;
    assert_int_equal(golden_compare(tokenizer, &lines, "tests/text/smollm2.golden", "plain-", 0), 0);
}

int main(void)
{
    const char *path = getenv("QN_TEST_MODEL");
    if (!path || !*path) {
        printf(
            "SKIP: QN_TEST_MODEL does not name the GGUF file of SmolLM2-135M-Instruct; its vocabulary is not tested\n");
        return 0;
    }
    gguf_vocab vocab;
    qn_error error = {0};
    if (gguf_vocab_open(path, &vocab) || golden_lines_open("tests/text/lines.txt", &lines) ||
        qn_ctx_create(NULL, &ctx, &error) != QN_OK ||
        qn_tokenizer_create(ctx, &vocab.source, vocab.source.token_count, &tokenizer, &error) != QN_OK) {
        printf("cannot set up with %s: %s\n", path, error.text);
        return 1;
    }
    gguf_vocab_close(&vocab);
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_ids_parsed), cmocka_unit_test(same_ids_plain)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_tokenizer_destroy(tokenizer);
    qn_ctx_destroy(ctx);
    free(lines.data);
    return failed;
}
