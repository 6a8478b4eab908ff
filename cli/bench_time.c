/* Measuring: ceilings between the cases, and a case beside the ceiling nearest in time. See bench.h.
 *
 * Two things keep a case's operands out of the caches: its copies rotate, and
 * the memory ceiling, measured right before it, reads through more than the
 * caches hold. A copy is met again only when all of them together are more than
 * that, or never. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define CASE_SECONDS 0.15
#define LONGEST_SECONDS 2.0
#define CEILING_SECONDS 5.0 /* arithmetic ceilings older than that are measured again before a case */

#define DEVICE_FLOPS_A_BYTE 200 /* above it a device's memory does not bind */

enum { LEAST_REPS = 5, MOST_REPS = 1000, DEVICE_REPS = 200 };

/* The number behind `name` in a file of "name   123 kB" lines or, without a name, the first one; -1: none. */
static double number_in(const char *path, const char *name)
{
    char line[256];
    double value = -1;
    FILE *in = fopen(path, "r");
    while (in && value < 0 && fgets(line, sizeof line, in)) {
        const char *p = line;
        if (name && strncmp(p, name, strlen(name)) != 0)
            continue;
        p += name ? strlen(name) : 0;
        char *end;
        value = strtod(p, &end);
        value = end == p ? -1 : value;
        if (!name)
            break;
    }
    if (in)
        fclose(in);
    return value;
}

/* Bytes this process may still take: of the machine, of its control group. 0: not known. */
static double free_bytes(void)
{
    double machine = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    double most = number_in("/sys/fs/cgroup/memory.max", NULL), used = number_in("/sys/fs/cgroup/memory.current", NULL);
    if (most >= 0 && used >= 0 && (machine < 0 || most - used < machine))
        return fmax(most - used, 1);
    return fmax(machine, 0);
}

double bench_peak_bytes(void)
{
    return fmax(number_in("/proc/self/status", "VmHWM:") * 1024, 0);
}

size_t bench_memory(cli *c, size_t *cache_bytes)
{
    char wanted[32], got[32];
    size_t bytes = qn_meter_advise(qn_exec_threads(&c->exec), cache_bytes);
    const double room = free_bytes() / 4; /* the meter's memory, the copies, and as much again for the operands */
    if (room > 0 && (double)bytes > room)
        bytes = (size_t)room;
    if (c->value[OPT_MEMORY].i > 0)
        bytes = (size_t)c->value[OPT_MEMORY].i << 20;
    if (bytes < 2 * *cache_bytes)
        cli_note(c, "note: measuring with %s, less than twice the last-level caches (%s): a part may stay in them\n",
                 cli_size_text(got, (double)bytes), cli_size_text(wanted, (double)*cache_bytes));
    return bytes;
}

int bench_begin(bench *b, cli *c)
{
    qn_error error = {0};
    memset(b, 0, sizeof *b);
    b->c = c;
    if (c->plan.backend == QN_BACKEND_CUDA)
        return 0; /* operands rotate in the device's memory */
    b->arena_bytes = bench_memory(c, &b->cache_bytes);
    b->arena = cli_alloc(b->arena_bytes, 1);
    if (!b->arena)
        return cli_memory(c, "copies of the operands");
    return cli_check(c, qn_meter_create(c->ctx, &c->exec, b->arena_bytes, &b->meter, &error), &error, PHASE_RUN);
}

void bench_end(bench *b)
{
    qn_meter_destroy(b->meter);
    free(b->arena);
}

static qn_status measure_ceiling(bench *b, const char *name, qn_isa level, double *value)
{
    qn_error error;
    if (!b->meter)
        return qn_device_ceiling(b->c->ctx, name, value, &error);
    return qn_meter_measure(b->meter, name, level, value, &error);
}

double bench_ceiling_get(bench *b, const char *name, qn_isa level, double seconds)
{
    bench_ceiling *k = b->ceilings, *end = b->ceilings + b->ceiling_count;
    while (k < end && (k->level != level || strcmp(k->name, name) != 0))
        k++;
    if (k == end) {
        if (b->ceiling_count == BENCH_CEILINGS)
            return 0;
        b->ceiling_count++;
        snprintf(k->name, sizeof k->name, "%s", name);
        k->level = level;
        k->value = k->best = 0;
    } else if (cli_now() - k->when <= seconds) {
        return k->value;
    }
    if (measure_ceiling(b, name, level, &k->value) != QN_OK)
        k->value = 0;
    k->best = fmax(k->best, k->value);
    k->when = cli_now();
    return k->value;
}

/* ---- One case ---- */

/* Times runs over the copies; `once` is how long one took. */
static int time_runs(cli *c, const bench_case *k, const rotation *r, int reps, bench_record *out)
{
    double *us = cli_alloc((size_t)reps, sizeof *us);
    if (!us)
        return cli_memory(c, "the times");
    int code = 0, n = 0;
    const double start = cli_now();
    while (!code && n < reps) {
        const double before = cli_now();
        code = cli_interrupted() ? EXIT_SIGNAL : bench_case_run(c, k, &r->args[(n + 1) % r->copies]);
        us[n++] = 1e6 * (cli_now() - before);
        if (cli_now() - start > LONGEST_SECONDS)
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

/* The level of the memory ceiling: a forced one, else whatever the machine does best. */
static qn_isa memory_level(const bench *b)
{
    return b->c->plan.isa;
}

/* The ceiling that binds: the one that takes longer for this case's bytes or operations. Both were measured before the
 * case; the one that binds is measured after it too and the higher value counts, so that a moment in which the machine
 * was busy with something else does not pass for what it can do. */
static void set_roofline(bench *b, const bench_case *k, const char *memory_name, bench_record *r)
{
    const char *arithmetic = qn_plan_ceiling(k->plan);
    if (r->median <= 0)
        return;
    r->gbps = r->bytes / r->median * 1e-3;
    r->gflops = r->flops / r->median * 1e-3;
    double memory = bench_ceiling_get(b, memory_name, memory_level(b), INFINITY);
    double compute = arithmetic ? bench_ceiling_get(b, arithmetic, r->facts.level, CEILING_SECONDS) : 0;
    /* what plain multiply-adds of the level reach is reachable too: some processors have a bf16 dot at half their rate
     */
    const int is_plain = !arithmetic || strcmp(arithmetic, "fp32_fma") == 0;
    const double plain = is_plain ? 0 : bench_ceiling_get(b, "fp32_fma", r->facts.level, CEILING_SECONDS);
    if (plain > compute) {
        arithmetic = "fp32_fma";
        compute = plain;
    }
    const double memory_us = memory > 0 ? r->bytes / memory * 1e-3 : 0,
                 compute_us = compute > 0 ? r->flops / compute * 1e-3 : 0;
    if (memory_us <= 0 && compute_us <= 0)
        return;
    const int by_memory = memory_us >= compute_us;
    const double work = by_memory ? r->bytes : r->flops;
    r->roofline = by_memory ? memory_name : arithmetic;
    r->roofline_value = fmax(by_memory ? memory : compute,
                             bench_ceiling_get(b, r->roofline, by_memory ? memory_level(b) : r->facts.level, -1));
    r->percent = 100 * work / r->roofline_value * 1e-3 / r->median;
}

/* A device's ceilings are those of its memory: of copying where outputs are no small part of the bytes. What does
 * many operations a byte has no ceiling yet. */
static void set_device_roofline(bench *b, const bench_case *k, bench_record *r)
{
    qn_error error;
    size_t written = 0, bytes = 0;
    for (int i = 0; i < QN_MAX_OUT; i++)
        if (k->out[i].format != QN_FORMAT_NONE && qn_shape_bytes(&k->out[i], &bytes, &error) == QN_OK)
            written += bytes;
    r->gbps = r->bytes / r->median * 1e-3;
    r->gflops = r->flops / r->median * 1e-3;
    if (r->flops > DEVICE_FLOPS_A_BYTE * r->bytes)
        return;
    const char *name = (double)written > 0.1 * r->bytes ? "copy" : "read";
    const double value = bench_ceiling_get(b, name, QN_ISA_MAX, INFINITY);
    if (value <= 0)
        return;
    r->roofline = name;
    r->roofline_value = value;
    r->percent = 100 * r->gbps / value;
}

/* By replays of a graph over operands that the device's cache cannot hold. */
static int measure_on_device(bench *b, const bench_case *k, const void *blob, bench_record *r)
{
    double us[DEVICE_REPS];
    qn_args args = k->args;
    args.packed = blob;
    const int code = device_time_cold(b->c, k->plan, &args, k->sizes.m, us, DEVICE_REPS, &r->reps, &r->rotated_bytes);
    if (code)
        return code;
    r->median = cli_median(us, r->reps);
    r->least = us[0];
    if (r->median > 0)
        set_device_roofline(b, k, r);
    return 0;
}

static int measure_opened(bench *b, bench_case *k, bench_record *r)
{
    cli *c = b->c;
    qn_error error = {0};
    qn_case_cost cost;
    rotation rotated;
    void *blob = NULL;
    memset(&rotated, 0, sizeof rotated);
    int code = cli_check(c, qn_case_get_cost(&k->desc, k->args.in, &cost, &error), &error, PHASE_RUN);
    double start = cli_now();
    if (!code)
        code = bench_case_pack(c, k, &blob);
    r->pack_us = blob ? 1e6 * (cli_now() - start) : 0;
    r->bytes = cost.bytes;
    r->flops = cost.flops;
    if (!code && plan_is_device(k->plan)) {
        code = measure_on_device(b, k, blob, r);
        free(blob);
        return code;
    }
    qn_args first = k->args;
    first.packed = blob;
    start = cli_now();
    if (!code)
        code = bench_case_run(c, k, &first);
    const double once = cli_now() - start;
    const int reps = (int)fmax(once > LONGEST_SECONDS / 2 ? 1 : LEAST_REPS, fmin(MOST_REPS, CASE_SECONDS / once));
    if (!code)
        code = bench_rotation_make(c, k, blob, reps + 1, b->arena, b->arena_bytes, &rotated);
    if (!code) {
        r->rotated_bytes = rotated.bytes;
        bench_ceiling_get(b, cost.memory, memory_level(b), -1); /* nearest in time, and empties the caches */
        code = bench_case_run(c, k, &rotated.args[0]);          /* the pool awake, the code in the cache */
    }
    if (!code)
        code = time_runs(c, k, &rotated, reps, r);
    if (!code)
        set_roofline(b, k, cost.memory, r);
    free(rotated.args);
    free(blob);
    return code;
}

int bench_measure(bench *b, const char *text, bench_record *r, int *ok)
{
    cli *c = b->c;
    qn_error error = {0};
    qn_case_result worst = {0};
    bench_case k;
    memset(&k, 0, sizeof k);
    memset(r, 0, sizeof *r);
    *ok = 0;
    snprintf(r->text, sizeof r->text, "%s", text);
    int code = cli_check(c, qn_op_desc_parse(text, &k.desc, &error), &error, PHASE_RUN);
    if (!code)
        code = bench_case_open(c, &k, &c->plan, 0);
    if (!code) {
        r->op = k.desc.op;
        r->sizes = k.sizes;
        r->facts = kernel_facts_of(c->ctx, k.plan);
        code = bench_case_verify(c, &k, r->facts.kernel, r->verified, &worst);
    }
    r->max_error = worst.max_error;
    if (!code && !worst.pass) {
        b->failures++;
        fprintf(stderr, "%s: %s disagrees with the reference: output %d element %lld is %.9g, expected %.9g\n", text,
                r->facts.kernel, worst.slot, (long long)worst.index, worst.got, worst.want);
    } else if (!code) {
        code = measure_opened(b, &k, r);
        *ok = !code;
    }
    bench_case_close(&k);
    return code;
}
