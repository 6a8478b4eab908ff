/* Host operands on a GPU: see device.h. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_COPIES = 1024, GRAPH_RUNS = 16 };

/* One copy of the operands on the device. */
typedef struct device_operands {
    qn_args args;
    void *memory[QN_MAX_IN + QN_MAX_OUT + 1]; /* inputs, outputs, packed weights */
    size_t bytes;
} device_operands;

/* A plan's run on a device. */
typedef struct device_run_state {
    cli *c;
    const qn_plan *plan;
    device_operands *copies;
    int count;
    void *workspace, *stream, *from, *to, *graph;
    size_t workspace_bytes;
    qn_exec exec;
} device_run_state;

int plan_is_device(const qn_plan *plan)
{
    return qn_plan_backend(plan) == QN_BACKEND_CUDA;
}

static int check(device_run_state *s, qn_status status, const qn_error *error)
{
    return cli_check(s->c, status, error, PHASE_RUN);
}

/* Room on the device for a tensor, filled from the host where there is something. */
static int place(device_run_state *s, const qn_shape *shape, size_t bytes, const void *host, void **memory,
                 device_operands *o)
{
    qn_error error = {0};
    int code = shape ? check(s, qn_shape_bytes(shape, &bytes, &error), &error) : 0;
    if (!code)
        code = check(s, qn_device_alloc(s->c->ctx, bytes, memory, &error), &error);
    if (!code && host)
        code = check(s, qn_device_copy_in(s->c->ctx, *memory, host, bytes, s->stream, &error), &error);
    o->bytes += bytes;
    return code;
}

/* Whether results keep what was there before in some rows. */
static int keeps_rows(const qn_op_desc *desc)
{
    return desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM && desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP;
}

static int place_operands(device_run_state *s, const qn_args *args, device_operands *o)
{
    const qn_op_info *info = qn_op_get_info(qn_plan_desc(s->plan)->op);
    int code = 0;
    for (int i = 0; i < info->in_count && !code; i++) {
        const qn_view *v = &args->in[i];
        if (v->shape.format == QN_FORMAT_NONE || (args->packed && info->in[i].weight))
            continue;
        code = place(s, &v->shape, 0, v->data, &o->memory[i], o);
        if (!code)
            o->args.in[i] = qn_view_make(o->memory[i], &v->shape);
    }
    for (int i = 0; i < info->out_count && !code; i++) {
        const qn_mut_view *v = &args->out[i];
        if (v->shape.format == QN_FORMAT_NONE)
            continue;
        void **memory = &o->memory[QN_MAX_IN + i];
        code = place(s, &v->shape, 0, keeps_rows(qn_plan_desc(s->plan)) ? v->data : NULL, memory, o);
        if (!code)
            o->args.out[i] = qn_mut_view_make(*memory, &v->shape);
    }
    if (!code && args->packed) {
        void **memory = &o->memory[QN_MAX_IN + QN_MAX_OUT];
        code = place(s, NULL, qn_plan_pack_bytes(s->plan), args->packed, memory, o);
        o->args.packed = *memory;
    }
    return code;
}

static void close_run(device_run_state *s)
{
    qn_ctx *ctx = s->c->ctx;
    for (int i = 0; s->copies && i < s->count; i++)
        for (size_t j = 0; j < sizeof s->copies[i].memory / sizeof *s->copies[i].memory; j++)
            qn_device_free(ctx, s->copies[i].memory[j]);
    free(s->copies);
    qn_device_free(ctx, s->workspace);
    qn_graph_destroy(ctx, s->graph);
    qn_event_destroy(ctx, s->from);
    qn_event_destroy(ctx, s->to);
    qn_stream_destroy(ctx, s->stream);
}

/* Stream, events, workspace and one copy of the operands. */
static int open_run(device_run_state *s, cli *c, const qn_plan *plan, const qn_args *args, int64_t m)
{
    qn_error error = {0};
    memset(s, 0, sizeof *s);
    s->c = c;
    s->plan = plan;
    s->copies = cli_alloc(MOST_COPIES, sizeof *s->copies);
    if (!s->copies)
        return cli_memory(c, "copies of the operands");
    int code = check(s, qn_stream_create(c->ctx, &s->stream, &error), &error);
    if (!code)
        code = check(s, qn_event_create(c->ctx, &s->from, &error), &error);
    if (!code)
        code = check(s, qn_event_create(c->ctx, &s->to, &error), &error);
    s->exec.stream = s->stream;
    s->exec.constant_weights = 1; /* copied in before, and the copies waited for */
    s->workspace_bytes = qn_plan_workspace_bytes(plan, m, 1);
    if (!code && s->workspace_bytes)
        code = check(s, qn_device_alloc(c->ctx, s->workspace_bytes, &s->workspace, &error), &error);
    s->count = 1;
    return code ? code : place_operands(s, args, &s->copies[0]);
}

static int enqueue(device_run_state *s, int copy)
{
    qn_error error = {0};
    return check(s, qn_run(s->plan, &s->copies[copy].args, s->workspace, s->workspace_bytes, &s->exec, &error), &error);
}

static int wait(device_run_state *s)
{
    qn_error error = {0};
    return check(s, qn_stream_sync(s->c->ctx, s->stream, &error), &error);
}

static int fetch(device_run_state *s, const qn_args *args)
{
    int code = 0;
    for (int i = 0; i < QN_MAX_OUT && !code; i++) {
        size_t bytes = 0;
        qn_error error = {0};
        if (args->out[i].shape.format == QN_FORMAT_NONE)
            continue;
        code = check(s, qn_shape_bytes(&args->out[i].shape, &bytes, &error), &error);
        if (!code && bytes)
            code = check(s,
                         qn_device_copy_out(s->c->ctx, args->out[i].data, s->copies[0].memory[QN_MAX_IN + i], bytes,
                                            s->stream, &error),
                         &error);
    }
    return code ? code : wait(s);
}

int device_run(cli *c, const qn_plan *plan, const qn_args *args, int64_t m)
{
    device_run_state s;
    int code = open_run(&s, c, plan, args, m);
    if (!code)
        code = enqueue(&s, 0);
    if (!code)
        code = fetch(&s, args);
    close_run(&s);
    return code;
}

/* What `graph` or, without one, copy 0 takes. */
static int time_once(device_run_state *s, double *us)
{
    qn_error error = {0};
    float ms = 0;
    int code = check(s, qn_event_record(s->c->ctx, s->from, s->stream, &error), &error);
    if (!code)
        code = s->graph ? check(s, qn_graph_launch(s->c->ctx, s->graph, s->stream, &error), &error) : enqueue(s, 0);
    if (!code)
        code = check(s, qn_event_record(s->c->ctx, s->to, s->stream, &error), &error);
    if (!code)
        code = check(s, qn_event_elapsed(s->c->ctx, s->from, s->to, &ms, &error), &error);
    *us = 1e3 * (double)ms;
    return code;
}

int device_time_runs(cli *c, const qn_plan *plan, const qn_args *args, int64_t m, double *us, int count)
{
    device_run_state s;
    int code = open_run(&s, c, plan, args, m);
    if (!code)
        code = enqueue(&s, 0);
    for (int i = 0; i < count && !code; i++)
        code = cli_interrupted() ? EXIT_SIGNAL : time_once(&s, &us[i]);
    close_run(&s);
    return code;
}

/* More copies until all together are four times the cache. */
static int add_copies(device_run_state *s, const qn_args *args)
{
    qn_device_info info;
    qn_error error = {0};
    int code = check(s, qn_device_get_info(s->c->ctx, &info, &error), &error);
    const double wanted = 4.0 * (double)(code ? 0 : info.l2_bytes);
    while (!code && s->count < MOST_COPIES && (double)s->count * (double)s->copies[0].bytes < wanted)
        code = place_operands(s, args, &s->copies[s->count++]);
    return code;
}

int device_time_cold(cli *c, const qn_plan *plan, const qn_args *args, int64_t m, double *us, int most, int *count,
                     double *bytes)
{
    device_run_state s;
    qn_error error = {0};
    int code = open_run(&s, c, plan, args, m);
    if (!code)
        code = add_copies(&s, args);
    *bytes = code ? 0 : (double)s.count * (double)s.copies[0].bytes;
    const int runs = s.count > GRAPH_RUNS ? s.count : GRAPH_RUNS;
    if (!code)
        code = enqueue(&s, 0);
    if (!code)
        code = check(&s, qn_graph_begin(c->ctx, s.stream, &error), &error);
    for (int i = 0; i < runs && !code; i++)
        code = enqueue(&s, i % s.count);
    if (!code)
        code = check(&s, qn_graph_end(c->ctx, s.stream, &s.graph, &error), &error);
    double warm = 0, start = cli_now();
    for (int i = 0; i < 3 && !code; i++)
        code = time_once(&s, &warm);
    for (*count = 0; !code && *count < most && (*count < 5 || cli_now() - start < 0.1); ++*count) {
        code = cli_interrupted() ? EXIT_SIGNAL : time_once(&s, &us[*count]);
        us[*count] /= runs;
    }
    close_run(&s);
    return code;
}
