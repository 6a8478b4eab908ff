/* Cases to measure: their operands, the check against the reference, the copies in rotation. See bench.h. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

#define MOST_CHECKED 16777216.0       /* multiply-adds the reference is given, when a smaller case can do */
#define MOST_CHECKED_ROWS 134217728.0 /* before rows are given up that decide the kernel's path */
#define MOST_FILLED 4194304.0         /* elements filled one by one; larger tensors repeat them */
#define PAGE 4096

enum { CHECKED_ROWS = 64, CHECKED_COLUMNS = 128 };

void bench_case_close(bench_case *k)
{
    qn_plan_destroy(k->plan);
    for (int i = 0; i < QN_MAX_IN; i++)
        free(k->in_data[i]);
    for (int i = 0; i < QN_MAX_OUT; i++)
        free(k->out_data[i]);
    free(k->workspace);
    memset(k, 0, sizeof *k);
}

static int is_matmul(qn_op op)
{
    return op == QN_OP_SCALED_MM || op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_GROUPED_BLOCK_SCALED_MM ||
           op == QN_OP_NVFP4_MM || op == QN_OP_MXFP4_MM || op == QN_OP_DENSE_MM;
}

/* The same case with other rows and columns; 0 when it cannot be. */
static int resize(const qn_op_desc *desc, const qn_sizes *sizes, int64_t m, int64_t n, qn_op_desc *out)
{
    qn_error error;
    qn_shape shapes[QN_MAX_OUT];
    qn_sizes s = *sizes;
    s.m = m;
    s.n = n;
    *out = *desc;
    return qn_op_desc_set_sizes(out, &s, &error) == QN_OK && qn_op_desc_check(out, shapes, NULL, &error) == QN_OK;
}

/* Fill the inputs. Tensors of a large case repeat the bytes of a smaller one's: every row and every scale stays one
 * that the filler made. Experts' offsets depend on the sizes, so grouped cases are filled whole. */
static int fill(cli *c, bench_case *k, int32_t exact)
{
    const qn_sizes *s = &k->sizes;
    qn_error error = {0};
    qn_op_desc small = k->desc;
    const int whole = k->desc.op == QN_OP_GROUPED_BLOCK_SCALED_MM || !is_matmul(k->desc.op) ||
                      (double)s->k * (double)(s->m + s->n) <= MOST_FILLED ||
                      !resize(&k->desc, s, s->m < CHECKED_ROWS ? s->m : CHECKED_ROWS,
                              s->n < 2 * CHECKED_COLUMNS ? s->n : 2 * CHECKED_COLUMNS, &small);
    if (whole)
        return cli_check(c, qn_case_fill(&k->desc, 1, exact, k->in_data, &error), &error, PHASE_RUN);
    void *part[QN_MAX_IN] = {NULL};
    size_t part_bytes[QN_MAX_IN] = {0};
    int code = 0;
    for (int i = 0; i < QN_MAX_IN && !code; i++) {
        if (small.in[i].format == QN_FORMAT_NONE)
            continue;
        code = cli_check(c, qn_shape_bytes(&small.in[i], &part_bytes[i], &error), &error, PHASE_RUN);
        if (!code && !(part[i] = cli_alloc(part_bytes[i], 1)))
            code = cli_memory(c, "the inputs of a case");
    }
    if (!code)
        code = cli_check(c, qn_case_fill(&small, 1, exact, part, &error), &error, PHASE_RUN);
    for (int i = 0; i < QN_MAX_IN; i++) {
        size_t bytes = 0;
        if (!code && part[i] && part_bytes[i] && qn_shape_bytes(&k->desc.in[i], &bytes, &error) == QN_OK)
            for (size_t at = 0; at < bytes; at += part_bytes[i])
                memcpy((char *)k->in_data[i] + at, part[i], bytes - at < part_bytes[i] ? bytes - at : part_bytes[i]);
        free(part[i]);
    }
    return code;
}

int bench_case_open(cli *c, bench_case *k, const qn_plan_options *options, int32_t exact)
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
        code = fill(c, k, exact);
    if (!code)
        code = cli_check(c, qn_plan_create(c->ctx, &k->desc, options, &k->plan, &error), &error, PHASE_RUN);
    if (!code && !plan_is_device(k->plan)) {
        k->workspace_bytes = qn_plan_workspace_bytes(k->plan, k->sizes.m, qn_exec_threads(&c->exec));
        k->workspace = cli_alloc(k->workspace_bytes, 1);
        code = k->workspace ? 0 : cli_memory(c, "the workspace of a case");
    }
    return code;
}

int bench_case_pack(cli *c, const bench_case *k, void **blob)
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

int bench_case_run(cli *c, const bench_case *k, const qn_args *args)
{
    qn_error error = {0};
    if (plan_is_device(k->plan))
        return device_run(c, k->plan, args, k->sizes.m);
    return cli_check(c, qn_run(k->plan, args, k->workspace, k->workspace_bytes, &c->exec, &error), &error, PHASE_RUN);
}

/* ---- The check ---- */

/* The descriptor to check: the case itself, or one with the same K and fewer columns, and only then fewer rows: rows
 * decide which path of a kernel runs, so up to CHECKED_ROWS of them stay as long as the reference can bear it. */
static void shrink(const qn_op_desc *desc, const qn_sizes *sizes, qn_op_desc *small, char verified[64])
{
    qn_case_cost cost;
    qn_error error;
    *small = *desc;
    snprintf(verified, 64, "whole");
    if (qn_case_get_cost(desc, NULL, &cost, &error) != QN_OK || cost.flops / 2 <= MOST_CHECKED)
        return;
    const int columns = is_matmul(desc->op);
    int64_t m = sizes->m, n = sizes->n;
    double each = cost.flops / 2 / (double)(m > 0 ? m : 1) / (columns ? (double)n : 1);
    if (columns && each * (double)m * CHECKED_COLUMNS <= MOST_CHECKED)
        n = (int64_t)(MOST_CHECKED / each / (double)m) / CHECKED_COLUMNS * CHECKED_COLUMNS;
    else if (columns)
        n = n < CHECKED_COLUMNS ? n : CHECKED_COLUMNS;
    each *= columns ? (double)n : 1;
    if (each * (double)m > MOST_CHECKED && m > CHECKED_ROWS)
        m = CHECKED_ROWS;
    while (each * (double)m > MOST_CHECKED_ROWS && m > 1)
        m /= 2;
    qn_op_desc d;
    if (!resize(desc, sizes, m, n, &d))
        return; /* cannot be made smaller: checked whole */
    *small = d;
    if (m != sizes->m && n != sizes->n)
        snprintf(verified, 64, "m=%lld of %lld, n=%lld of %lld", (long long)m, (long long)sizes->m, (long long)n,
                 (long long)sizes->n);
    else if (m != sizes->m)
        snprintf(verified, 64, "m=%lld of %lld", (long long)m, (long long)sizes->m);
    else if (n != sizes->n)
        snprintf(verified, 64, "n=%lld of %lld", (long long)n, (long long)sizes->n);
}

/* Run a case on the chosen kernel and on the reference, and judge. */
static int check(cli *c, const qn_op_desc *desc, const char *kernel, int32_t exact, qn_case_result *result)
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
    int code = bench_case_open(c, &got, &chosen, exact);
    if (!code)
        code = bench_case_open(c, &want, &reference, exact);
    if (!code)
        code = bench_case_pack(c, &got, &blob);
    got.args.packed = blob;
    if (!code)
        code = bench_case_run(c, &got, &got.args);
    if (!code)
        code = bench_case_run(c, &want, &want.args);
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
        code = cli_check(c, qn_plan_judge(got.plan, a, b, want.args.in, exact, result, &error), &error, PHASE_RUN);
    }
    free(blob);
    bench_case_close(&got);
    bench_case_close(&want);
    return code;
}

int bench_case_verify(cli *c, const bench_case *k, const char *kernel, char verified[64], qn_case_result *worst)
{
    qn_op_desc small;
    qn_case_result exact = {0}, random = {0};
    shrink(&k->desc, &k->sizes, &small, verified);
    int code = check(c, &small, kernel, 1, &exact);
    if (!code)
        code = check(c, &small, kernel, 0, &random);
    *worst = exact.pass ? random : exact;
    return code;
}

/* ---- The rotation ---- */

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

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

int bench_rotation_make(cli *c, const bench_case *k, void *blob, int most, char *arena, size_t arena_bytes, rotation *r)
{
    size_t bytes[ROTATED_SLOTS] = {0}, packed = blob ? qn_plan_pack_bytes(k->plan) : 0, total = 0, room = 0, used = 0;
    const int code = packed ? 0 : rotated_bytes(c, k, bytes);
    if (code)
        return code;
    if (packed)
        bytes[0] = packed;
    for (int s = 0; s < ROTATED_SLOTS; s++) {
        total += bytes[s];
        room += pages(bytes[s]);
    }
    /* the case's own operands count as a copy */
    r->copies = total == 0 || arena_bytes / room < 1 ? 1 : (int)fmin(most, floor((double)(arena_bytes / room)) + 1);
    r->bytes = (double)total * r->copies;
    r->args = cli_alloc((size_t)r->copies, sizeof *r->args);
    if (!r->args)
        return cli_memory(c, "copies of the operands");
    for (int i = 0; i < r->copies; i++) {
        r->args[i] = k->args;
        r->args[i].packed = blob;
        for (int s = 0; s < ROTATED_SLOTS && i > 0; s++) {
            if (bytes[s] == 0)
                continue;
            char *copy = arena + used;
            used += pages(bytes[s]);
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
