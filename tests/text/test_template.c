/* Chat templates: byte-equal with jinja2 (templates.json, by make_templates.py), and hostile ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "small_tokenizer.h"

static qn_ctx *ctx;
static qn_tokenizer *tokenizer;
static char text[1 << 20];

static qn_status render(const char *source, const qn_chat_message *messages, size_t count, int prompt, size_t *bytes,
                        qn_error *error)
{
    memset(error, 0, sizeof *error);
    return qn_chat_render(tokenizer, source, messages, count, prompt, text, sizeof text, bytes, error);
}

static void golden(void **state)
{
    (void)state;
    json_error_t e;
    json_t *cases = json_load_file("tests/text/templates.json", 0, &e), *c;
    size_t i, failed = 0;
    assert_non_null(cases);
    assert_true(json_array_size(cases) > 200);
    json_array_foreach(cases, i, c)
    {
        qn_chat_message messages[8];
        json_t *list = json_object_get(c, "messages");
        const size_t count = json_array_size(list);
        for (size_t k = 0; k < count; k++) {
            messages[k].role = json_string_value(json_object_get(json_array_get(list, k), "role"));
            messages[k].content = json_string_value(json_object_get(json_array_get(list, k), "content"));
        }
        size_t bytes;
        qn_error error;
        const qn_status status = render(json_string_value(json_object_get(c, "template")), messages, count,
                                        json_is_true(json_object_get(c, "prompt")), &bytes, &error);
        json_t *want = json_object_get(c, "text");
        if (!want) {
            if (status != QN_E_ARGUMENT || !strstr(error.text, "line ")) {
                printf("%s: status %d, expected an error\n", json_string_value(json_object_get(c, "name")),
                       (int)status);
                failed++;
            }
        } else if (status != QN_OK || bytes != json_string_length(want) ||
                   memcmp(text, json_string_value(want), bytes) != 0) {
            printf("%s: %s\n--- got\n%.*s\n--- expected\n%s\n", json_string_value(json_object_get(c, "name")),
                   error.text, (int)bytes, text, json_string_value(want));
            failed++;
        }
    }
    json_decref(cases);
    assert_int_equal(failed, 0);
}

typedef struct hostile {
    const char *source;
    qn_status status;
    const char *says; /* part of the sentence */
} hostile;

static const hostile hostiles[] = {
    {"{{", QN_E_FILE, "line 1"},
    {"{%", QN_E_FILE, "no %}"},
    {"\n\n{{ 'x }}", QN_E_FILE, "line 3"},
    {"{# never", QN_E_FILE, "comment"},
    {"{% if %}", QN_E_FILE, "expression"},
    {"{% if a %}x", QN_E_FILE, "template ends"},
    {"{% endif %}", QN_E_FILE, "endif"},
    {"{% for %}", QN_E_FILE, "name"},
    {"{% for x y %}", QN_E_FILE, "expected in"},
    {"{% for x in y %}", QN_E_FILE, "else"},
    {"{{ a b }}", QN_E_FILE, "end of the tag"},
    {"{{ (1 }}", QN_E_FILE, "unexpected"},
    {"{{ 1 ) }}", QN_E_FILE, "unexpected"},
    {"{{ [1, }}", QN_E_FILE, "line 1"},
    {"{{ 99999999999999999999 }}", QN_E_FILE, "range"},
    {"{{ '\\ud800' }}", QN_E_FILE, "escape"},
    {"{{ '\\xZZ' }}", QN_E_FILE, "escape"},
    {"{{ ` }}", QN_E_FILE, "character"},
    {"{% break %}", QN_E_FILE, "outside a loop"},
    {"{% nonsense %}", QN_E_FILE, "nonsense"},
    {"{% include 'x' %}", QN_E_UNSUPPORTED, "include"},
    {"{% raw %}{% endraw %}", QN_E_UNSUPPORTED, "raw"},
    {"{% for x in [1] recursive %}{% endfor %}", QN_E_UNSUPPORTED, "recursive"},
    {"{{ 'a' | nosuch }}", QN_E_UNSUPPORTED, "nosuch"},
    {"{{ 'a' is nosuch }}", QN_E_UNSUPPORTED, "nosuch"},
    {"{{ 'a'.format(1) }}", QN_E_UNSUPPORTED, "format"},
    {"{{ 'a'.__class__.__mro__ }}", QN_E_ARGUMENT, "__mro__"},
    {"{{ [].append(1) }}", QN_E_UNSUPPORTED, "append"},
    {"{{ nosuch() }}", QN_E_UNSUPPORTED, "nosuch"},
    {"{{ '%s' % 1 }}", QN_E_UNSUPPORTED, "formatting"},
    {"{{ f(*x) }}", QN_E_UNSUPPORTED, "arguments"},
    {"{{ {1: 2} }}", QN_E_UNSUPPORTED, "key"},
    {"{{ messages.x.y }}", QN_E_ARGUMENT, "undefined"},
    {"{{ 1 // 0 }}", QN_E_ARGUMENT, "zero"},
    {"{{ 5 % 0 }}", QN_E_ARGUMENT, "zero"},
    {"{{ 9223372036854775807 + 1 }}", QN_E_ARGUMENT, "64 bits"},
    {"{{ 9223372036854775807 * 9 }}", QN_E_ARGUMENT, "64 bits"},
    {"{{ 9 ** 99 }}", QN_E_ARGUMENT, "64 bits"},
    {"{{ (-9223372036854775807 - 1) // -1 }}", QN_E_ARGUMENT, "64 bits"},
    {"{{ [1] < 'a' }}", QN_E_ARGUMENT, "order"},
    {"{{ -'a' }}", QN_E_ARGUMENT, "sign"},
    {"{{ range(1, 2, 0) }}", QN_E_ARGUMENT, "step"},
    {"{{ 'abc'[::0] }}", QN_E_ARGUMENT, "step"},
    {"{{ 1[0:1] }}", QN_E_ARGUMENT, "sliced"},
    {"{% for x in 5 %}{% endfor %}", QN_E_ARGUMENT, "iterated"},
    {"{% set a, b = [1] %}", QN_E_ARGUMENT, "values"},
    {"{% set x.y = 1 %}", QN_E_ARGUMENT, "namespace"},
    {"{{ none() }}", QN_E_ARGUMENT, "called"},
    {"{{ raise_exception('no') }}", QN_E_ARGUMENT, "no"},
    {"{{ range(1000000000) }}", QN_E_FILE, "range"},
    {"{{ 'x' * 1000000000 }}", QN_E_FILE, "repeated"},
    {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", QN_E_FILE, "more than"},
    {"{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}", QN_E_FILE, "more than"},
    {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", QN_E_FILE, "nested"},
    {"{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", QN_E_FILE, "nested"},
    {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", QN_E_ARGUMENT, "takes"},
    {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", QN_E_ARGUMENT, "takes"},
    {"{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
     QN_E_FILE, "chat template"},
    {"{% set ns = namespace(s=[1, 2]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", QN_E_FILE,
     "chat template"},
    {"{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}", QN_E_FILE,
     "nested"},
    {"{% set ns = namespace(s='a') %}{% for i in range(22) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
     "{% for i in range(100000) %}{{ ns.s.replace('b', 'c') | length }}{% endfor %}",
     QN_E_FILE, "chat template"},
    {"{{ 'aaaaaaaaaa'.replace('a', 'b' * 10000000) }}", QN_E_FILE, "chat template"},
    {"{{ namespace(a=1) }}", QN_E_UNSUPPORTED, "printing"},
    {"{{ strftime_now('%Q') }}", QN_E_UNSUPPORTED, "strftime_now"},
    {"\xff{{ 1 }}", QN_E_FILE, "UTF-8"},
    {"{{ namespace(a=1) | tojson }}", QN_E_ARGUMENT, "tojson"},
};

static void hostile_templates(void **state)
{
    (void)state;
    const qn_chat_message message = {"user", "hi"};
    size_t bytes, failed = 0;
    qn_error error;
    for (size_t i = 0; i < sizeof hostiles / sizeof *hostiles; i++) {
        const qn_status status = render(hostiles[i].source, &message, 1, 0, &bytes, &error);
        if (status != hostiles[i].status || !strstr(error.text, hostiles[i].says) || strchr(error.text, '\n')) {
            printf("%s\n  gave %s '%s', expected %s '%s'\n", hostiles[i].source, qn_status_name(status), error.text,
                   qn_status_name(hostiles[i].status), hostiles[i].says);
            failed++;
        }
    }
    assert_int_equal(failed, 0);
}

/* Source made of one text many times. */
static void deep(const char *head, const char *unit, size_t count, const char *tail, qn_status want)
{
    const size_t n = strlen(unit), h = strlen(head);
    char *source = malloc(h + n * count + strlen(tail) + 1);
    memcpy(source, head, h);
    for (size_t i = 0; i < count; i++) {
        memcpy(source + h + i * n, unit, n);
    }
    strcpy(source + h + n * count, tail);
    const qn_chat_message message = {"user", "hi"};
    size_t bytes;
    qn_error error;
    const qn_status status = render(source, &message, 1, 0, &bytes, &error);
    if (status != want) {
        printf("%s%s... gave %s '%s'\n", head, unit, qn_status_name(status), error.text);
    }
    free(source);
    assert_int_equal(status, want);
}

static void deep_templates(void **state)
{
    (void)state;
    deep("{{ ", "(", 20000, "1", QN_E_FILE);
    deep("{{ ", "[", 20000, "1", QN_E_FILE);
    deep("{{ ", "{'a':", 20000, "1", QN_E_FILE);
    deep("{{ ", "not ", 20000, "1 }}", QN_E_FILE);
    deep("{{ ", "-", 20000, "1 }}", QN_E_FILE);
    deep("{{ 1", " + 1", 20000, " }}", QN_E_FILE);
    deep("{{ 1", " ~ 1", 20000, " }}", QN_E_FILE);
    deep("{{ 1", " or 1", 20000, " }}", QN_E_FILE);
    deep("{{ 'a'", " | trim", 20000, " }}", QN_E_FILE);
    deep("{{ a", "['x']", 20000, " }}", QN_E_FILE);
    deep("{{ a", ".x", 20000, " }}", QN_E_FILE);
    deep("{{ 1", " if 1 else 1", 20000, " }}", QN_E_FILE);
    deep("", "{% if 1 %}", 20000, "", QN_E_FILE);
    deep("", "{% for x in [1] %}", 20000, "", QN_E_FILE);
    deep("", "{% macro f() %}", 20000, "", QN_E_FILE);
    deep("{% set x %}", "{% set y %}", 20000, "", QN_E_FILE);
    deep("{{ f(", "f(", 20000, "1", QN_E_FILE);
    deep("{% if 0 %}", "{% elif 0 %}", 20000, "{% endif %}", QN_OK);
    deep("", "{{ 1 }}", 20000, "", QN_OK);
    deep("", "{% set a = 1 %}", 20000, "", QN_OK);
    deep("{{ [", "1,", 100000, "] | length }}", QN_OK);
    deep("", "x", (1 << 20) + 1, "", QN_E_FILE);
}

static void buffers(void **state)
{
    (void)state;
    const qn_chat_message message = {"user", "hi"};
    char small[4] = "???";
    size_t bytes = 9;
    qn_error error = {0};
    assert_int_equal(qn_chat_render(tokenizer, NULL, &message, 1, 1, NULL, 0, &bytes, &error), QN_E_WORKSPACE);
    assert_int_equal(bytes, strlen("user:hi+"));
    assert_int_equal(qn_chat_render(tokenizer, NULL, &message, 1, 1, small, 3, &bytes, &error), QN_E_WORKSPACE);
    assert_memory_equal(small, "use", 4);
    assert_int_equal(qn_chat_render(tokenizer, NULL, &message, 1, 1, text, sizeof text, &bytes, &error), QN_OK);
    assert_memory_equal(text, "user:hi+", 8);
    assert_int_equal(qn_chat_render(tokenizer, "", NULL, 0, 1, NULL, 0, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(qn_chat_render(NULL, "", NULL, 0, 1, NULL, 0, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_chat_render(tokenizer, "", NULL, 1, 1, NULL, 0, &bytes, &error), QN_E_ARGUMENT);
    const qn_chat_message bad = {"user", NULL};
    assert_int_equal(qn_chat_render(tokenizer, "", &bad, 1, 1, NULL, 0, &bytes, &error), QN_E_ARGUMENT);
    qn_tokenizer *none = NULL;
    assert_int_equal(small_tokenizer(ctx, NULL, &none, &error), QN_OK);
    assert_int_equal(qn_chat_render(none, NULL, &message, 1, 1, NULL, 0, &bytes, &error), QN_E_UNSUPPORTED);
    qn_tokenizer_destroy(none);
}

/* The date itself changes: its form and its date are checked. */
static void date(void **state)
{
    (void)state;
    size_t bytes;
    qn_error error;
    assert_int_equal(render("{{ strftime_now('%d %b %Y') }}", NULL, 0, 0, &bytes, &error), QN_OK);
    assert_int_equal(bytes, strlen("26 Jul 2024"));
    assert_true(text[2] == ' ' && text[6] == ' ' && text[7] == '2');
}

int main(void)
{
    qn_error error = {0};
    if (qn_ctx_create(NULL, &ctx, &error) != QN_OK ||
        small_tokenizer(ctx, "{{ messages[0].role }}:{{ messages[0].content }}{{ '+' if add_generation_prompt }}",
                        &tokenizer, &error) != QN_OK) {
        printf("cannot set up: %s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(hostile_templates),
                                       cmocka_unit_test(deep_templates), cmocka_unit_test(buffers),
                                       cmocka_unit_test(date)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_tokenizer_destroy(tokenizer);
    qn_ctx_destroy(ctx);
    return failed;
}
