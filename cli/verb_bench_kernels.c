/* quern bench kernels: each case checked against the reference, then timed with
 * operands the caches cannot hold, beside the machine's ceiling of the same run. */
#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "chart.h"

/* What was measured, for the chart. */
typedef struct record_list {
    bench_record *items;
    int count, room;
} record_list;

static int keep(cli *c, record_list *list, const bench_record *r)
{
    if (list->count == list->room) {
        const int room = list->room ? 2 * list->room : 64;
        bench_record *items = realloc(list->items, (size_t)room * sizeof *items);
        if (!items)
            return cli_memory(c, "the records");
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = *r;
    return 0;
}

static void print_record(cli *c, json *j, const bench_record *r)
{
    if (!c->value[OPT_JSON].set) {
        printf("%-72s %-11s %10.1f us %8.2f GB/s %9.2f GFLOP/s %5.1f %% of %-8s %8.5g  err %.3g (%s)\n", r->text,
               r->facts.isa, r->median, r->gbps, r->gflops, r->percent, r->roofline ? r->roofline : "-",
               r->roofline_value, r->max_error, r->verified);
        fflush(stdout);
        return;
    }
    json_open(j, NULL, '{');
    json_text(j, "op", qn_op_get_info(r->op)->name);
    json_text(j, "case", r->text);
    json_text(j, "backend", r->facts.backend);
    json_text(j, "isa", r->facts.isa);
    json_text(j, "kernel", r->facts.kernel);
    json_int(j, "threads", qn_exec_threads(&c->exec));
    json_int(j, "m", r->sizes.m);
    json_int(j, "n", r->sizes.n);
    json_int(j, "k", r->sizes.k);
    json_number(j, "us_median", r->median, 6);
    json_number(j, "us_min", r->least, 6);
    json_int(j, "reps", r->reps);
    json_number(j, "gbps", r->gbps, 6);
    json_number(j, "gflops", r->gflops, 6);
    json_text(j, "roofline", r->roofline);
    json_number(j, "roofline_value", r->roofline_value, 6);
    json_number(j, "roofline_pct", r->percent, 4);
    json_number(j, "max_err", r->max_error, 4);
    json_text(j, "verified", r->verified);
    json_number(j, "rotated_bytes", r->rotated_bytes, 12);
    json_number(j, "pack_us", r->pack_us, 6);
    json_close(j, '}');
    fflush(stdout);
}

/* ---- The chart's file: a temporary name from the start, so that a path that cannot be written fails before the work,
 * and a rename at the end, so that the chart is whole or absent ---- */

typedef struct chart_file {
    FILE *out;
    char *temporary;
} chart_file;

static int open_chart(cli *c, chart_file *f)
{
    const char *path = c->value[OPT_SVG].s;
    if (!*path)
        return cli_fail(c, EXIT_USAGE, "--svg: the file name is empty");
    const size_t room = strlen(path) + 32;
    f->temporary = malloc(room);
    if (!f->temporary)
        return cli_memory(c, "a file name");
    snprintf(f->temporary, room, "%s.%ld.tmp", path, (long)getpid());
    f->out = fopen(f->temporary, "wb");
    return f->out ? 0 : cli_fail(c, EXIT_FAILED, "%s: %s", path, strerror(errno));
}

static int write_chart(cli *c, chart_file *f, const bench *b, const record_list *list)
{
    char facts[128] = "", line[256], memory[32];
    qn_doctor(c->ctx, facts, sizeof facts);
    facts[strcspn(facts, "\n")] = 0;
    const char *processor = strchr(facts, ':');
    snprintf(line, sizeof line, "%s; %d threads; %s; operands rotate over %s; quern %s",
             processor ? processor + 2 : "processor unknown", qn_exec_threads(&c->exec),
             c->value[OPT_ISA].set ? c->value[OPT_ISA].s : "every level of the machine",
             cli_size_text(memory, (double)b->arena_bytes), qn_version());
    chart_write(f->out, line, list->items, list->count, b->ceilings, b->ceiling_count);
    int bad = fflush(f->out) != 0 || ferror(f->out) || fsync(fileno(f->out)) != 0;
    bad = fclose(f->out) != 0 || bad;
    f->out = NULL;
    if (bad || rename(f->temporary, c->value[OPT_SVG].s) != 0)
        return cli_fail(c, EXIT_FAILED, "%s: %s", c->value[OPT_SVG].s, strerror(errno));
    free(f->temporary);
    f->temporary = NULL;
    return 0;
}

/* After success nothing is left to drop. */
static void drop_chart(chart_file *f)
{
    if (f->out)
        fclose(f->out);
    if (f->temporary)
        unlink(f->temporary);
    free(f->temporary);
}

/* ---- Which cases ---- */

typedef struct selection {
    const char *pattern; /* NULL: the default ones */
    regex_t filter;
    int compiled;
} selection;

static int is_wanted(const selection *s, const char *text, int32_t timed)
{
    if (!s->pattern)
        return timed == 1;
    return strcmp(s->pattern, text) == 0 || (timed && regexec(&s->filter, text, 0, NULL, 0) == 0);
}

static int select_cases(cli *c, selection *s)
{
    qn_op_desc desc;
    qn_error error;
    const char *text;
    int32_t timed = 0;
    int found = 0;
    s->pattern = c->value[OPT_FILTER].s;
    if (!s->pattern)
        return 0;
    if (regcomp(&s->filter, s->pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return cli_fail(c, EXIT_USAGE, "--filter: '%.100s' is not an extended regular expression", s->pattern);
    s->compiled = 1;
    for (int32_t i = 0; !found && (text = qn_case_at(i, &timed)) != NULL; i++)
        found = is_wanted(s, text, timed);
    /* a case string of the user's own is fine */
    if (!found && qn_op_desc_parse(s->pattern, &desc, &error) != QN_OK)
        return cli_fail(c, EXIT_USAGE, "--filter: no case matches '%.100s'", s->pattern);
    return 0;
}

/* 1, with a remark, when the device has no kernel for a case: most of the table may be such. */
static int has_no_kernel(cli *c, const char *text)
{
    qn_error error = {0};
    qn_op_desc desc;
    qn_plan *plan = NULL;
    if (c->plan.backend != QN_BACKEND_CUDA || qn_op_desc_parse(text, &desc, &error) != QN_OK)
        return 0;
    const qn_status status = qn_plan_create(c->ctx, &desc, &c->plan, &plan, &error);
    qn_plan_destroy(plan);
    if (status == QN_E_UNSUPPORTED)
        cli_note(c, "%s: skipped: %s\n", text, error.text);
    return status == QN_E_UNSUPPORTED;
}

static int measure(bench *b, const char *text, json *j, record_list *list)
{
    if (has_no_kernel(b->c, text))
        return 0;
    bench_record r;
    int ok = 0, code = bench_measure(b, text, &r, &ok);
    if (code || !ok)
        return code;
    if (r.percent > 100)
        fprintf(stderr, "%s: above the ceiling measured: its operands stay in a cache, or the machine is busy\n", text);
    print_record(b->c, j, &r);
    return keep(b->c, list, &r);
}

int verb_bench_kernels(cli *c)
{
    bench b = {.c = c};
    selection s = {0};
    record_list list = {0};
    chart_file chart = {0};
    json j = json_begin(stdout);
    const char *text;
    int32_t timed = 0;
    int found = 0, code = select_cases(c, &s);
    if (!code && c->value[OPT_SVG].set)
        code = open_chart(c, &chart);
    if (!code)
        code = bench_begin(&b, c);
    for (int32_t i = 0; !code && (text = qn_case_at(i, &timed)) != NULL && !cli_output_closed(); i++) {
        if (!is_wanted(&s, text, timed))
            continue;
        found++;
        code = cli_interrupted() ? EXIT_SIGNAL : measure(&b, text, &j, &list);
    }
    if (!code && !found && s.pattern)
        code = measure(&b, s.pattern, &j, &list);
    if (!code && chart.out)
        code = write_chart(c, &chart, &b, &list);
    if (!code && b.failures)
        code =
            cli_fail(c, EXIT_FAILED, "%d of %d cases disagree with the reference", b.failures, b.failures + list.count);
    if (s.compiled)
        regfree(&s.filter);
    drop_chart(&chart);
    bench_end(&b);
    free(list.items);
    return code;
}
