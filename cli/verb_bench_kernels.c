/* quern bench kernels: each case checked against the reference, then timed with
 * operands the caches cannot hold, beside the machine's ceiling of the same run. */
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include <quern/experimental.h>

#include "cli.h"
#include "device.h"
#include "kernel_info.h"

#define MOST_CHECKED 16777216.0  /* multiply-adds the reference is given */
#define ROTATED_BYTES 67108864.0 /* operands in rotation: more than the last cache holds */

enum { MOST_CEILINGS = 32, MOST_REPS = 1000 };

/* A descriptor with everything to run it. */
typedef struct bench_case {
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    void *in_data[QN_MAX_IN];
    void *out_data[QN_MAX_OUT];
    qn_args args;
    qn_plan *plan;
    void *workspace;
    size_t workspace_bytes;
} bench_case;

typedef struct ceiling {
    char name[24];
    qn_isa level;
    double value; /* 0: this machine cannot */
} ceiling;

typedef struct record {
    char text[512];
    char verified[64];
    kernel_facts facts;
    double median, least, max_error, gbps, gflops, roofline_value, percent;
    const char *roofline;
    int reps;
} record;

typedef struct bench {
    cli *c;
    ceiling ceilings[MOST_CEILINGS];
    int ceiling_count;
    json j;
    int failures, done;
} bench;

static qn_status measure_ceiling(bench *b, const char *name, qn_isa level, double *value)
{
    qn_error error;
    if (b->c->plan.backend == QN_BACKEND_CUDA)
        return qn_device_ceiling(b->c->ctx, name, value, &error);
    return qn_ceiling_measure(b->c->ctx, name, level, &b->c->exec, value, &error);
}

/* Ceiling by name, measured once a run; `again` measures once more and keeps the higher value. */
static double get_ceiling(bench *b, const char *name, qn_isa level, int again)
{
    double value = 0;
    for (int i = 0; i < b->ceiling_count; i++) {
        ceiling *k = &b->ceilings[i];
        if (k->level != level || strcmp(k->name, name) != 0)
            continue;
        if (again && measure_ceiling(b, name, level, &value) == QN_OK && value > k->value)
            k->value = value;
        return k->value;
    }
    if (measure_ceiling(b, name, level, &value) != QN_OK)
        value = 0;
    if (b->ceiling_count < MOST_CEILINGS) {
        ceiling *k = &b->ceilings[b->ceiling_count++];
        snprintf(k->name, sizeof k->name, "%s", name);
        k->level = level;
        k->value = value;
    }
    return value;
}

static void close_case(bench_case *k)
{
    qn_plan_destroy(k->plan);
    for (int i = 0; i < QN_MAX_IN; i++)
        free(k->in_data[i]);
    for (int i = 0; i < QN_MAX_OUT; i++)
        free(k->out_data[i]);
    free(k->workspace);
    memset(k, 0, sizeof *k);
}

/* Inputs filled, outputs zeroed, plan made. The descriptor is set already. */
static int open_case(cli *c, bench_case *k, const qn_plan_options *options, uint64_t seed, int32_t exact)
{
    qn_error error = {0};
    size_t bytes = 0;
    int code = cli_check(c, qn_op_desc_check(&k->desc, k->out, &k->sizes, &error), &error, PHASE_RUN);
    for (int i = 0; i < QN_MAX_IN && !code; i++) {
        if (k->desc.in[i].format == QN_FORMAT_NONE)
            continue;
        code = cli_check(c, qn_shape_bytes(&k->desc.in[i], &bytes, &error), &error, PHASE_RUN);
        if (!code && !(k->in_data[i] = cli_alloc(bytes, 1)))
            code = cli_memory(c, "the inputs of a case");
        if (!code)
            k->args.in[i] = qn_view_make(k->in_data[i], &k->desc.in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT && !code; i++) {
        if (k->out[i].format == QN_FORMAT_NONE)
            continue;
        code = cli_check(c, qn_shape_bytes(&k->out[i], &bytes, &error), &error, PHASE_RUN);
        if (!code && !(k->out_data[i] = cli_alloc(bytes, 1)))
            code = cli_memory(c, "the outputs of a case");
        if (!code)
            k->args.out[i] = qn_mut_view_make(k->out_data[i], &k->out[i]);
    }
    if (!code)
        code = cli_check(c, qn_case_fill(&k->desc, seed, exact, k->in_data, &error), &error, PHASE_RUN);
    if (!code)
        code = cli_check(c, qn_plan_create(c->ctx, &k->desc, options, &k->plan, &error), &error, PHASE_RUN);
    if (!code && !plan_is_device(k->plan)) {
        k->workspace_bytes = qn_plan_workspace_bytes(k->plan, k->sizes.m, qn_exec_threads(&c->exec));
        k->workspace = cli_alloc(k->workspace_bytes, 1);
        code = k->workspace ? 0 : cli_memory(c, "the workspace of a case");
    }
    return code;
}

static int pack_case(cli *c, const bench_case *k, void **blob)
{
    qn_error error = {0};
    size_t bytes = qn_plan_pack_bytes(k->plan);
    *blob = NULL;
    if (bytes == 0)
        return 0;
    *blob = cli_alloc(bytes, 1);
    if (!*blob)
        return cli_memory(c, "packed weights");
    return cli_check(c, qn_pack(k->plan, &k->args, *blob, bytes, &error), &error, PHASE_RUN);
}

static int run_case(cli *c, const bench_case *k, const qn_args *args)
{
    qn_error error = {0};
    if (plan_is_device(k->plan))
        return device_run(c, k->plan, args, k->sizes.m);
    return cli_check(c, qn_run(k->plan, args, k->workspace, k->workspace_bytes, &c->exec, &error), &error, PHASE_RUN);
}

/* The descriptor to check: the case itself, or fewer rows of a large one with the same K. */
static int shrink(const qn_op_desc *desc, const qn_sizes *sizes, qn_op_desc *small, char verified[64])
{
    qn_case_cost cost;
    qn_error error;
    *small = *desc;
    snprintf(verified, 64, "whole");
    if (qn_case_get_cost(desc, &cost, &error) != QN_OK || cost.flops / 2 <= MOST_CHECKED)
        return 1;
    double per_row = cost.flops / 2 / (sizes->m > 0 ? (double)sizes->m : 1);
    for (int64_t m = 64; m >= 1; m /= 2) {
        if (m >= sizes->m || (per_row * (double)m > MOST_CHECKED && m > 1))
            continue;
        qn_sizes s = *sizes;
        s.m = m;
        qn_op_desc d = *desc;
        qn_shape out[QN_MAX_OUT];
        if (qn_op_desc_set_sizes(&d, &s, &error) != QN_OK || qn_op_desc_check(&d, out, NULL, &error) != QN_OK)
            continue;
        *small = d;
        snprintf(verified, 64, "m=%lld of %lld", (long long)m, (long long)sizes->m);
        return 1;
    }
    return 1; /* cannot be made smaller: checked whole */
}

/* Run a (smaller) case on the chosen kernel and on the reference, and judge. */
static int verify(cli *c, const qn_op_desc *desc, const char *kernel, int32_t exact, qn_case_result *result)
{
    qn_error error = {0};
    bench_case got, want;
    memset(&got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    got.desc = want.desc = *desc;
    qn_plan_options chosen = c->plan, reference;
    chosen.kernel = kernel;
    qn_plan_options_init(&reference);
    reference.backend = QN_BACKEND_REF;
    void *blob = NULL;
    int code = open_case(c, &got, &chosen, 1, exact);
    if (!code)
        code = open_case(c, &want, &reference, 1, exact);
    if (!code)
        code = pack_case(c, &got, &blob);
    got.args.packed = blob;
    if (!code)
        code = run_case(c, &got, &got.args);
    if (!code)
        code = run_case(c, &want, &want.args);
    if (!code) {
        qn_view a[QN_MAX_OUT], b[QN_MAX_OUT];
        memset(a, 0, sizeof a);
        memset(b, 0, sizeof b);
        for (int i = 0; i < QN_MAX_OUT; i++) {
            if (want.out[i].format == QN_FORMAT_NONE)
                continue;
            a[i] = qn_view_of(&want.args.out[i]);
            b[i] = qn_view_of(&got.args.out[i]);
        }
        code = cli_check(c, qn_case_judge(desc, a, b, want.args.in, exact, result, &error), &error, PHASE_RUN);
    }
    free(blob);
    close_case(&got);
    close_case(&want);
    return code;
}

/* Copies of the operands that must not be met in a cache: the weights (packed, or
 * the weight tensors), or, where those are the lesser part, all inputs and outputs. */
typedef struct rotation {
    qn_args *args;
    void **memory; /* a row of inputs, then outputs, a copy */
    int copies;
} rotation;

#define ROTATED_SLOTS (QN_MAX_IN + QN_MAX_OUT)

/* Bytes of each slot that is rotated. */
static int rotated_bytes(cli *c, const bench_case *k, size_t bytes[ROTATED_SLOTS])
{
    const qn_op_info *info = qn_op_get_info(k->desc.op);
    qn_error error = {0};
    size_t weights = 0, all = 0;
    int code = 0;
    for (int i = 0; i < ROTATED_SLOTS && !code; i++) {
        const qn_shape *shape = i < QN_MAX_IN ? &k->desc.in[i] : &k->out[i - QN_MAX_IN];
        bytes[i] = 0;
        if (shape->format != QN_FORMAT_NONE)
            code = cli_check(c, qn_shape_bytes(shape, &bytes[i], &error), &error, PHASE_RUN);
        all += bytes[i];
        weights += i < info->in_count && info->in[i].weight ? bytes[i] : 0;
    }
    for (int i = 0; i < ROTATED_SLOTS && weights >= all / 2; i++)
        if (i >= info->in_count || !info->in[i].weight)
            bytes[i] = 0;
    return code;
}

static int make_rotation(cli *c, const bench_case *k, void *blob, rotation *r)
{
    size_t bytes[ROTATED_SLOTS] = {0}, total = qn_plan_pack_bytes(k->plan);
    const int packed = total > 0;
    const int code = packed ? 0 : rotated_bytes(c, k, bytes);
    if (code)
        return code;
    if (packed)
        bytes[0] = total;
    for (int i = 0; i < ROTATED_SLOTS && !packed; i++)
        total += bytes[i];
    r->copies = total == 0 ? 1 : (int)fmin(4096, ceil(ROTATED_BYTES / (double)total) + 1);
    r->args = cli_alloc((size_t)r->copies, sizeof *r->args);
    r->memory = cli_alloc((size_t)r->copies * ROTATED_SLOTS, sizeof *r->memory);
    if (!r->args || !r->memory)
        return cli_memory(c, "copies of the operands");
    for (int i = 0; i < r->copies; i++) {
        r->args[i] = k->args;
        r->args[i].packed = blob;
        for (int s = 0; s < ROTATED_SLOTS && i > 0; s++) {
            if (bytes[s] == 0)
                continue;
            void *copy = cli_alloc(bytes[s], 1);
            if (!copy)
                return cli_memory(c, "copies of the operands");
            r->memory[i * ROTATED_SLOTS + s] = copy;
            if (s >= QN_MAX_IN) {
                r->args[i].out[s - QN_MAX_IN] = qn_mut_view_make(copy, &k->out[s - QN_MAX_IN]);
                continue;
            }
            memcpy(copy, packed ? blob : k->in_data[s], bytes[s]);
            if (packed)
                r->args[i].packed = copy;
            else
                r->args[i].in[s] = qn_view_make(copy, &k->desc.in[s]);
        }
    }
    return 0;
}

static void free_rotation(rotation *r)
{
    for (int i = 0; r->memory && i < r->copies * ROTATED_SLOTS; i++)
        free(r->memory[i]);
    free(r->memory);
    free(r->args);
}

/* At least 5 and at most MOST_REPS runs, about 0.1 s of them. */
static int time_case(cli *c, const bench_case *k, const rotation *r, record *out)
{
    double *us = cli_alloc(MOST_REPS, sizeof *us);
    if (!us)
        return cli_memory(c, "the times");
    int code = run_case(c, k, &r->args[0]);
    double start = cli_now();
    int n = 0;
    while (!code && n < MOST_REPS && (n < 5 || cli_now() - start < 0.1)) {
        double before = cli_now();
        code = cli_interrupted() ? EXIT_SIGNAL : run_case(c, k, &r->args[(n + 1) % r->copies]);
        us[n++] = 1e6 * (cli_now() - before);
        if (cli_now() - start > 2)
            break;
    }
    if (!code) {
        out->reps = n;
        out->median = cli_median(us, n);
        out->least = us[0];
    }
    free(us);
    return code;
}

/* The same on a device, by replays of a graph over operands that its cache cannot hold. */
static int time_device_case(cli *c, const bench_case *k, const void *blob, record *out)
{
    enum { MOST = 200 };
    double us[MOST];
    qn_args args = k->args;
    args.packed = blob;
    int code = device_time_cold(c, k->plan, &args, k->sizes.m, us, MOST, &out->reps);
    if (!code) {
        out->median = cli_median(us, out->reps);
        out->least = us[0];
    }
    return code;
}

/* A device's ceilings are those of its memory: of copying where outputs are no small part of the bytes. What does
 * many operations a byte has no ceiling yet. */
static void set_device_roofline(bench *b, const bench_case *k, record *r)
{
    qn_case_cost cost = {0};
    qn_error error;
    size_t written = 0, bytes = 0;
    if (qn_case_get_cost(&k->desc, &cost, &error) != QN_OK || r->median <= 0)
        return;
    for (int i = 0; i < QN_MAX_OUT; i++)
        if (k->out[i].format != QN_FORMAT_NONE && qn_shape_bytes(&k->out[i], &bytes, &error) == QN_OK)
            written += bytes;
    r->gbps = cost.bytes / r->median * 1e-3;
    r->gflops = cost.flops / r->median * 1e-3;
    if (cost.flops > 200 * cost.bytes)
        return;
    r->roofline = (double)written > 0.1 * cost.bytes ? "copy" : "read";
    r->roofline_value = get_ceiling(b, r->roofline, QN_ISA_MAX, 0);
    if (r->roofline_value > 0)
        r->percent = 100 * r->gbps / r->roofline_value;
}

/* The ceiling that binds: the one that takes longer for this case's bytes or operations. */
static void set_roofline(bench *b, const qn_op_desc *desc, record *r)
{
    qn_case_cost cost = {0};
    qn_error error;
    if (qn_case_get_cost(desc, &cost, &error) != QN_OK || r->median <= 0)
        return;
    r->gbps = cost.bytes / r->median * 1e-3;
    r->gflops = cost.flops / r->median * 1e-3;
    double read = get_ceiling(b, "read", r->facts.level, 0);
    double compute = cost.unit ? get_ceiling(b, cost.unit, r->facts.level, 0) : 0;
    if (compute <= 0 && cost.unit && strcmp(cost.unit, "fp32_fma") != 0) {
        compute = get_ceiling(b, "fp32_fma", r->facts.level, 0); /* the level has no such instruction */
        cost.unit = "fp32_fma";
    }
    double read_us = read > 0 ? cost.bytes / read * 1e-3 : 0,
           compute_us = compute > 0 ? cost.flops / compute * 1e-3 : 0;
    if (read_us <= 0 && compute_us <= 0)
        return;
    int by_reading = read_us >= compute_us;
    r->roofline = by_reading ? "read" : cost.unit;
    r->roofline_value = by_reading ? read : compute;
    double work = by_reading ? cost.bytes : cost.flops;
    /* above its ceiling: the ceiling was measured while the machine was busy */
    for (int i = 0; i < 3 && work / r->roofline_value * 1e-3 > r->median; i++)
        r->roofline_value = get_ceiling(b, r->roofline, r->facts.level, 1);
    r->percent = 100 * work / r->roofline_value * 1e-3 / r->median;
}

static void print_record(bench *b, const qn_op_desc *desc, const qn_sizes *sizes, const record *r)
{
    if (!b->c->value[OPT_JSON].set) {
        printf("%-72s %-11s %10.1f us %8.2f GB/s %9.2f GFLOP/s %5.1f %% of %-8s err %.3g (%s)\n", r->text, r->facts.isa,
               r->median, r->gbps, r->gflops, r->percent, r->roofline ? r->roofline : "-", r->max_error, r->verified);
        fflush(stdout);
        return;
    }
    json *j = &b->j;
    json_open(j, NULL, '{');
    json_text(j, "op", qn_op_get_info(desc->op)->name);
    json_text(j, "case", r->text);
    json_text(j, "backend", r->facts.backend);
    json_text(j, "isa", r->facts.isa);
    json_text(j, "kernel", r->facts.kernel);
    json_int(j, "threads", qn_exec_threads(&b->c->exec));
    json_int(j, "m", sizes->m);
    json_int(j, "n", sizes->n);
    json_int(j, "k", sizes->k);
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
    json_close(j, '}');
    fflush(stdout);
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

static int bench_one(bench *b, const char *text)
{
    if (has_no_kernel(b->c, text))
        return 0;
    cli *c = b->c;
    qn_error error = {0};
    bench_case k;
    rotation rotated;
    record r;
    void *blob = NULL;
    memset(&k, 0, sizeof k);
    memset(&rotated, 0, sizeof rotated);
    memset(&r, 0, sizeof r);
    snprintf(r.text, sizeof r.text, "%s", text);
    int code = cli_check(c, qn_op_desc_parse(text, &k.desc, &error), &error, PHASE_RUN);
    if (!code)
        code = open_case(c, &k, &c->plan, 1, 0);
    if (!code) {
        r.facts = kernel_facts_of(c->ctx, k.plan);
        qn_op_desc small;
        qn_case_result exact = {0}, random = {0};
        shrink(&k.desc, &k.sizes, &small, r.verified);
        code = verify(c, &small, r.facts.kernel, 1, &exact);
        if (!code)
            code = verify(c, &small, r.facts.kernel, 0, &random);
        if (!code && (!exact.pass || !random.pass)) {
            const qn_case_result *bad = exact.pass ? &random : &exact;
            b->failures++;
            fprintf(stderr, "%s: %s disagrees with the reference: output %d element %lld is %.9g, expected %.9g\n",
                    text, r.facts.kernel, bad->slot, (long long)bad->index, bad->got, bad->want);
            close_case(&k);
            return 0;
        }
        r.max_error = random.max_error;
    }
    if (!code)
        code = pack_case(c, &k, &blob);
    const int device = !code && plan_is_device(k.plan);
    if (device)
        code = time_device_case(c, &k, blob, &r);
    if (!code && !device)
        code = make_rotation(c, &k, blob, &rotated);
    if (!code && !device)
        code = time_case(c, &k, &rotated, &r);
    if (!code) {
        if (device)
            set_device_roofline(b, &k, &r);
        else
            set_roofline(b, &k.desc, &r);
        if (r.percent > 100)
            fprintf(stderr, "%s: above the ceiling measured: its operands stay in a cache, or the machine is busy\n", text);
        print_record(b, &k.desc, &k.sizes, &r);
        b->done++;
    }
    free_rotation(&rotated);
    free(blob);
    close_case(&k);
    return code;
}

int verb_bench_kernels(cli *c)
{
    bench b = {.c = c, .j = json_begin(stdout)};
    const char *pattern = c->value[OPT_FILTER].s, *text;
    regex_t filter;
    int32_t timed = 0;
    int code = 0, valid = pattern && regcomp(&filter, pattern, REG_EXTENDED | REG_NOSUB) == 0, found = 0;
    if (pattern && !valid)
        return cli_fail(c, EXIT_USAGE, "--filter: '%.100s' is not an extended regular expression", pattern);
    for (int32_t i = 0; !code && (text = qn_case_at(i, &timed)) != NULL; i++) {
        if (pattern ? strcmp(pattern, text) != 0 && regexec(&filter, text, 0, NULL, 0) != 0 : timed != 1)
            continue;
        if (!timed && strcmp(pattern, text) != 0)
            continue;
        found++;
        code = cli_interrupted() ? EXIT_SIGNAL : cli_output_closed() ? 0 : bench_one(&b, text);
        if (cli_output_closed())
            break;
    }
    if (valid)
        regfree(&filter);
    if (!code && pattern && !found) {
        qn_op_desc desc;
        qn_error error;
        if (qn_op_desc_parse(pattern, &desc, &error) != QN_OK) /* a case string of the user's own is fine */
            return cli_fail(c, EXIT_USAGE, "--filter: no case matches '%.100s'", pattern);
        code = bench_one(&b, pattern);
    }
    if (!code && b.failures)
        code = cli_fail(c, EXIT_FAILED, "%d of %d cases disagree with the reference", b.failures, b.failures + b.done);
    return code;
}
