/* Every allocation of the text layer fails once: a status comes back, nothing leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden.h"
#include "small_tokenizer.h"

typedef struct failing {
    long left; /* allocations until one fails; below 0: none fails */
    int failed;
} failing;

static void *failing_alloc(void *user, size_t size, size_t align)
{
    failing *f = user;
    void *p = NULL;
    if (f->left == 0) {
        f->left = -1;
        f->failed = 1;
        return NULL;
    }
    f->left -= f->left > 0;
    return posix_memalign(&p, align, size) == 0 ? p : NULL;
}

static void failing_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

typedef qn_status (*work_fn)(qn_ctx *ctx, qn_error *error);

static qn_status work_arrays(qn_ctx *ctx, qn_error *error)
{
    static const char template[] =
        "{% macro f(a) %}<{{ a | tojson }}>{% endmacro %}{% for m in messages %}{{ f([m.role, "
        "m.content.split()]) }}{{ ns }}{% endfor %}{% set x = 'a' ~ 'b' * 100000 %}{{ x | length }}";
    const qn_chat_message message = {"user", "h i"};
    static char text[4096];
    int32_t ids[64];
    size_t count, bytes;
    qn_tokenizer *t;
    qn_status status = small_tokenizer(ctx, template, &t, error);
    if (status == QN_OK) {
        status = qn_tokenizer_encode(t, "ab abab\xff aab", 12, 3, ids, 64, &count, error);
    }
    if (status == QN_OK) {
        status = qn_chat_render(t, NULL, &message, 1, 1, text, sizeof text, &bytes, error);
    }
    qn_tokenizer_destroy(t);
    return status;
}

static qn_status work_folder(qn_ctx *ctx, qn_error *error)
{
    size_t bytes = 0, count = 0;
    char *json = read_whole("tests/text/small.json", &bytes);
    qn_tokenizer_source source = {.tokenizer_json = {json, bytes}};
    qn_tokenizer *t;
    int32_t ids[64];
    qn_status status = qn_tokenizer_create(ctx, &source, 2000, &t, error);
    if (status == QN_OK) {
        status = qn_tokenizer_encode(t, "the e\xCC\x81 kernel==  x", 18, 3, ids, 64, &count, error);
    }
    qn_buffer a = qn_buffer_make(ctx), b = qn_buffer_make(ctx);
    if (status == QN_OK) {
        status = qn_tokenizer_export(t, &a, &b, error);
    }
    qn_buffer_free(&a);
    qn_buffer_free(&b);
    qn_tokenizer_destroy(t);
    free(json);
    return status;
}

static qn_status work_scores(qn_ctx *ctx, qn_error *error)
{
    static const qn_string tokens[] = {{"<unk>", 5},
                                       {"<s>", 3},
                                       {"\xE2\x96\x81", 3},
                                       {"a", 1},
                                       {"\xE2\x96\x81"
                                        "a",
                                        4}};
    static const int32_t types[] = {2, 3, 1, 1, 1};
    static const float scores[] = {0, 0, -2, -3, -1};
    const qn_tokenizer_source source = {.model = "llama",
                                        .tokens = tokens,
                                        .token_types = types,
                                        .scores = scores,
                                        .token_count = 5,
                                        .bos_id = 1,
                                        .eos_id = -1,
                                        .eot_id = -1,
                                        .unk_id = 0,
                                        .pad_id = -1,
                                        .add_bos = -1,
                                        .add_eos = -1,
                                        .add_space = -1};
    qn_tokenizer *t;
    int32_t ids[64];
    size_t count = 0;
    qn_status status = qn_tokenizer_create(ctx, &source, 5, &t, error);
    if (status == QN_OK) {
        status = qn_tokenizer_encode(t, "a  a<s>b", 8, 3, ids, 64, &count, error);
    }
    if (status == QN_OK) { /* <s>, mark a, mark, mark a, <s>, mark, unknown */
        static const int32_t want[] = {1, 4, 2, 4, 1, 2, 0};
        assert_int_equal(count, 7);
        assert_memory_equal(ids, want, sizeof want);
    }
    qn_tokenizer_destroy(t);
    return status;
}

static qn_status work_sampler(qn_ctx *ctx, qn_error *error)
{
    qn_sampler *s;
    const qn_status status = qn_sampler_create(ctx, NULL, 10, &s, error);
    qn_sampler_destroy(s);
    return status;
}

static void fail_each(work_fn work)
{
    for (long n = 0;; n++) {
        failing f = {.left = -1};
        qn_ctx_options o;
        qn_ctx *ctx;
        qn_error error = {0};
        qn_ctx_options_init(&o);
        o.allocator = (qn_allocator){&f, failing_alloc, failing_release};
        assert_int_equal(qn_ctx_create(&o, &ctx, &error), QN_OK);
        f.left = n;
        const qn_status status = work(ctx, &error);
        const int failed = f.failed;
        qn_ctx_destroy(ctx);
        if (!failed) {
            printf("%ld allocations, each failed once\n", n);
            assert_int_equal(status, QN_OK);
            assert_true(n > 2);
            return;
        }
        if (status != QN_E_MEMORY && status != QN_OK) { /* optional memory (the pattern compiler's) may fail unseen */
            fail_msg("allocation %ld: %s '%s'", n, qn_status_name(status), error.text);
        }
    }
}

static void arrays(void **state)
{
    (void)state;
    fail_each(work_arrays);
}

static void folder(void **state)
{
    (void)state;
    fail_each(work_folder);
}

static void scores(void **state)
{
    (void)state;
    fail_each(work_scores);
}

static void sampler(void **state)
{
    (void)state;
    fail_each(work_sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arrays), cmocka_unit_test(folder), cmocka_unit_test(scores),
                                       cmocka_unit_test(sampler)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
