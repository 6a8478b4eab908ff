/* `bench kernels` and `doctor --measure`: the records, the chart and its file.
 * The numbers themselves are not judged here; that each stands beside its
 * ceiling, its error and what was checked is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/process.h"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    return getenv("QN_CLI") ? make_folder(folder) : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

/* Files in the folder besides the two that keep the output. */
static int count_files(const char *name)
{
    char line[256];
    snprintf(line, sizeof line, "test $(ls -A '%s' | grep -c '^%s') -eq 0", folder, name);
    return system(line) != 0;
}

/* ---- A reader of the XML that the chart may hold: strict about what it knows, refusing the rest ---- */

static int is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == ':';
}

/* An entity at p ("&amp;"): its length; 0 when it is none of the five. */
static size_t entity(const char *p)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"};
    for (size_t i = 0; i < 5; i++)
        if (strncmp(p, known[i], strlen(known[i])) == 0)
            return strlen(known[i]);
    return 0;
}

/* Past the attributes of a tag to its '>' or '/'; NULL: malformed. */
static const char *attributes(const char *p)
{
    char seen[16][24];
    int count = 0;
    while (*p == ' ') {
        const char *name = ++p;
        while (is_name(*p))
            p++;
        const size_t n = (size_t)(p - name);
        if (n == 0 || n >= sizeof seen[0] || count == 16 || p[0] != '=' || p[1] != '"')
            return NULL;
        snprintf(seen[count], sizeof seen[0], "%.*s", (int)n, name);
        for (int i = 0; i < count; i++)
            if (strcmp(seen[i], seen[count]) == 0)
                return NULL;
        count++;
        for (p += 2; *p != '"';) {
            if (*p == 0 || *p == '<' || (*p == '&' && !entity(p)))
                return NULL;
            p += *p == '&' ? entity(p) : 1;
        }
        p++;
    }
    return p;
}

/* Elements of a well-formed document; -1, with the place shown, when it is not one. */
static int read_xml(const char *text)
{
    char open[16][24];
    int depth = 0, elements = 0, roots = 0;
    const char *p = text, *end = strstr(text, "?>\n");
    if (strncmp(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 39) != 0)
        return -1;
    for (p = end + 3; *p;) {
        if (*p != '<') {
            const int plain = (unsigned char)*p >= 0x20 || *p == '\n';
            if (*p == '>' || (*p == '&' && !entity(p)) || !plain || (depth == 0 && *p != '\n'))
                break;
            p += *p == '&' ? entity(p) : 1;
            continue;
        }
        const int closing = p[1] == '/';
        const char *name = p + 1 + closing, *after = name;
        while (is_name(*after))
            after++;
        const size_t n = (size_t)(after - name);
        if (n == 0 || n >= sizeof open[0])
            break;
        if (closing) {
            if (depth == 0 || strlen(open[depth - 1]) != n || strncmp(open[depth - 1], name, n) != 0 || *after != '>')
                break;
            depth--;
            p = after + 1;
            continue;
        }
        const char *stop = attributes(after);
        if (!stop || depth == 16)
            break;
        elements++;
        roots += depth == 0;
        if (stop[0] == '>') {
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)n, name);
            p = stop + 1;
        } else if (stop[0] == '/' && stop[1] == '>') {
            p = stop + 2;
        } else {
            break;
        }
    }
    if (*p || depth != 0 || roots != 1) {
        printf("not well-formed at: %.80s\n", p);
        return -1;
    }
    return elements;
}

static void the_reader_of_charts_is_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "<a>",         "<a></b>",         "<a></a><a></a>", "<a>&nbsp;</a>", "<a b=\"1\" b=\"2\"></a>",
        "<a b=1></a>", "<a b=\"<\"></a>", "<a>></a>",       "x<a></a>",      "<a>\x01</a>"};
    char text[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n%s", bad[i]);
        assert_int_equal(read_xml(text), -1);
    }
    assert_int_equal(read_xml("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a c=\"&lt;\"><b/>&amp;</a>\n"), 2);
}

/* ---- The verb ---- */

static outcome bench(const char *filter, const char *svg, int json)
{
    const char *words[16] = {"bench", "kernels", "--memory", "8", "--quiet", "--filter", filter};
    int n = 7;
    if (json)
        words[n++] = "--json";
    if (svg) {
        words[n++] = "--svg";
        words[n++] = svg;
    }
    return run_command(folder, words);
}

static void records_stand_beside_ceiling_and_error(void **state)
{
    (void)state;
    static const char *const fields[] = {"\"op\":\"scaled_mm\"", "\"us_median\":",     "\"roofline\":\"",
                                         "\"roofline_value\":",  "\"roofline_pct\":",  "\"max_err\":",
                                         "\"verified\":\"",      "\"rotated_bytes\":", "\"pack_us\":"};
    outcome r = bench("scaled_mm m=8 n=64 k=128", NULL, 1);
    if (r.code != 0)
        printf("%s\n", r.err);
    assert_int_equal(r.code, 0);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_non_null(strstr(r.out, fields[i]));
    assert_non_null(strstr(r.out, "\"verified\":\"whole\""));
    free_outcome(&r);
    /* operators that work row by row are held against a copy of their bytes */
    r = bench("silu_mul m=64 k=512", NULL, 1);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\"roofline\":\"copy\""));
    free_outcome(&r);
}

/* A case too large for the reference says what was checked in its place, and keeps the rows that choose the path. */
static void a_large_case_says_what_was_checked(void **state)
{
    (void)state;
    outcome r = bench("scaled_mm m=64 n=1024 k=1024", NULL, 1);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, "\"verified\":\"n=256 of 1024\""));
    free_outcome(&r);
}

static void a_chart_is_well_formed(void **state)
{
    (void)state;
    char path[128];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/chart.svg", folder);
    outcome r = bench("^(rmsnorm|rope|silu_mul) m=(1|8) ", path, 0);
    if (r.code != 0)
        printf("%s\n", r.err);
    assert_int_equal(r.code, 0);
    int lines = 0, bars = 0;
    for (const char *p = r.out; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    char *text = slurp(path, &bytes);
    assert_non_null(text);
    assert_true(lines >= 3);
    assert_true(read_xml(text) > 4 * lines);
    for (const char *p = text; (p = strstr(p, "class=\"track\"")) != NULL; p++)
        bars++;
    assert_int_equal(bars, lines);
    assert_non_null(strstr(text, ">rmsnorm<"));
    assert_non_null(strstr(text, "copy"));
    free(text);
    free_outcome(&r);
    assert_false(count_files("chart.svg."));
}

/* An unwritable path fails before anything is measured, a failing selection leaves the old chart alone. */
static void a_failure_leaves_no_chart(void **state)
{
    (void)state;
    char path[128];
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/no/such/folder.svg", folder);
    outcome r = bench("rmsnorm m=1 k=576", path, 0);
    assert_int_equal(r.code, 1);
    assert_int_equal(r.out_bytes, 0);
    assert_non_null(strstr(r.err, "no/such/folder.svg"));
    free_outcome(&r);
    snprintf(path, sizeof path, "%s/kept.svg", folder);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fputs("old", out);
    fclose(out);
    r = bench("no_such_case", path, 0);
    assert_int_equal(r.code, 2);
    free_outcome(&r);
    char *text = slurp(path, &bytes);
    assert_string_equal(text, "old");
    free(text);
    assert_false(count_files("kept.svg."));
    r = bench("rmsnorm m=1 k=576", folder, 0); /* a folder cannot be replaced by a file */
    assert_int_equal(r.code, 1);
    free_outcome(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reader_of_charts_is_strict), cmocka_unit_test(records_stand_beside_ceiling_and_error),
        cmocka_unit_test(a_large_case_says_what_was_checked), cmocka_unit_test(a_chart_is_well_formed),
        cmocka_unit_test(a_failure_leaves_no_chart)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
