/* quern op: one operator on tensors from a file (docs/operators.md). */
#include <stdlib.h>
#include <string.h>

#include <quern/experimental.h>

#include "cli.h"
#include "device.h"
#include "kernel_info.h"

typedef struct op_work {
    qn_tensors *file;
    qn_op_desc desc;
    qn_args args;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    void *out_data[QN_MAX_OUT];
    qn_plan *plan;
    void *blob, *workspace;
    double pack_us; /* once, before the runs; 0: nothing to pack */
    size_t workspace_bytes;
} op_work;

static const char *op_name_at(const void *user, int i)
{
    (void)user;
    const qn_op_info *info = qn_op_get_info(qn_op_at(i));
    return info ? info->name : NULL;
}

static int find_operator(cli *c, qn_op *op)
{
    *op = qn_op_find(c->operands[0]);
    if (*op != QN_OP_NONE)
        return 0;
    const char *guess = cli_closest(c->operands[0], op_name_at, NULL);
    if (guess)
        return cli_fail(c, EXIT_USAGE, "there is no operator '%.60s'; did you mean '%s'?", c->operands[0], guess);
    return cli_fail(c, EXIT_USAGE, "there is no operator '%.60s'", c->operands[0]);
}

static int set_attributes(cli *c, qn_op_desc *desc)
{
    qn_error error = {0};
    for (int i = 1; i < c->operand_count; i++) {
        const char *word = c->operands[i], *equal = strchr(word, '=');
        char name[64];
        if (!equal || equal == word || (size_t)(equal - word) >= sizeof name)
            return cli_fail(c, EXIT_USAGE, "'%.100s' is not KEY=VALUE", word);
        snprintf(name, sizeof name, "%.*s", (int)(equal - word), word);
        int code = cli_check(c, qn_op_desc_set(desc, name, equal + 1, &error), &error, PHASE_USAGE);
        if (code)
            return code;
    }
    return 0;
}

/* Tensors of the file to input slots; a name no slot has is a mistake. */
static int take_inputs(cli *c, op_work *w)
{
    qn_error error = {0};
    const qn_op_info *info = qn_op_get_info(w->desc.op);
    char unknown[300] = "", known[200] = "";
    for (int32_t i = 0; i < qn_tensors_count(w->file); i++) {
        const char *name = NULL;
        qn_view view;
        int code = cli_check(c, qn_tensors_at(w->file, i, &name, &view, &error), &error, PHASE_INPUT);
        if (code)
            return code;
        int32_t slot = qn_op_in_slot(w->desc.op, name);
        if (slot < 0) {
            size_t n = strlen(unknown);
            snprintf(unknown + n, sizeof unknown - n, "%s'%.60s'", n ? ", " : "", name);
            continue;
        }
        w->args.in[slot] = view;
        w->desc.in[slot] = view.shape;
    }
    if (!unknown[0])
        return 0;
    for (int32_t i = 0; i < info->in_count; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", info->in[i].name);
    }
    return cli_fail(c, EXIT_INPUT, "%s has no input %s; its inputs are %s", info->name, unknown, known);
}

/* QuIP#'s file names its codebook; where K is not known otherwise, the shape of Qidxs does not. */
static int take_codebook(cli *c, op_work *w)
{
    static const struct {
        int id;
        const char *name;
    } codebooks[] = {{7, "E8P12"}, {17, "E8P12RVQ4B"}, {18, "E8P12RVQ3B"}};
    const int32_t slot = qn_op_in_slot(w->desc.op, "codebook_id");
    if (slot < 0 || !w->args.in[slot].data || w->desc.attr[QN_ATTR_CODEBOOK].i != QN_VQ_CODEBOOK_AUTO)
        return 0;
    qn_error error = {0};
    const qn_view *id = &w->args.in[slot];
    int64_t found = 0;
    if (qn_shape_elements(&id->shape) == 1 && (id->shape.format == QN_I64 || id->shape.format == QN_I32))
        memcpy(&found, id->data, id->shape.format == QN_I64 ? sizeof found : sizeof(int32_t));
    for (size_t i = 0; i < sizeof codebooks / sizeof *codebooks; i++) {
        if (codebooks[i].id == found)
            return cli_check(c, qn_op_desc_set(&w->desc, "codebook", codebooks[i].name, &error), &error, PHASE_USAGE);
    }
    return 0; /* the check of the weights refuses it */
}

static int make_outputs(cli *c, op_work *w)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        size_t bytes = 0;
        qn_error error = {0};
        if (w->out[i].format == QN_FORMAT_NONE)
            continue;
        int code = cli_check(c, qn_shape_bytes(&w->out[i], &bytes, &error), &error, PHASE_INPUT);
        if (code)
            return code;
        w->out_data[i] = cli_alloc(bytes, 1);
        if (!w->out_data[i])
            return cli_memory(c, "the outputs");
        w->args.out[i] = qn_mut_view_make(w->out_data[i], &w->out[i]);
    }
    return 0;
}

static int make_plan(cli *c, op_work *w)
{
    qn_error error = {0};
    int code = cli_check(c, qn_plan_create(c->ctx, &w->desc, &c->plan, &w->plan, &error), &error, PHASE_RUN);
    if (code)
        return code;
    size_t pack_bytes = qn_plan_pack_bytes(w->plan);
    if (pack_bytes) {
        w->blob = cli_alloc(pack_bytes, 1);
        if (!w->blob)
            return cli_memory(c, "the packed weights");
        const double start = cli_now();
        code = cli_check(c, qn_pack(w->plan, &w->args, w->blob, pack_bytes, &error), &error, PHASE_INPUT);
        if (code)
            return code;
        w->pack_us = 1e6 * (cli_now() - start);
        w->args.packed = w->blob;
    }
    if (plan_is_device(w->plan))
        return 0;
    w->workspace_bytes = qn_plan_workspace_bytes(w->plan, w->sizes.m, qn_exec_threads(&c->exec));
    w->workspace = cli_alloc(w->workspace_bytes, 1);
    return w->workspace ? 0 : cli_memory(c, "the workspace");
}

static int run_once(cli *c, op_work *w)
{
    qn_error error = {0};
    if (plan_is_device(w->plan))
        return device_run(c, w->plan, &w->args, w->sizes.m);
    return cli_check(c, qn_run(w->plan, &w->args, w->workspace, w->workspace_bytes, &c->exec, &error), &error,
                     PHASE_INPUT);
}

static int write_outputs(cli *c, op_work *w)
{
    qn_error error = {0};
    const qn_op_info *info = qn_op_get_info(w->desc.op);
    qn_named_view views[QN_MAX_OUT];
    int32_t count = 0;
    for (int i = 0; i < info->out_count && i < QN_MAX_OUT; i++) {
        if (w->out[i].format == QN_FORMAT_NONE)
            continue;
        views[count].name = info->out[i].name;
        views[count].view = qn_view_of(&w->args.out[i]);
        if (w->out[i].format == QN_F8_E4M3FNUZ) /* safetensors has no name for it */
            views[count].view.shape.format = QN_U8;
        count++;
    }
    return cli_check(c, qn_tensors_write(c->ctx, c->value[OPT_OUT].s, views, count, NULL, 0, &error), &error,
                     PHASE_OUTPUT);
}

static int time_runs(cli *c, op_work *w)
{
    int count = (int)c->value[OPT_REPEAT].i;
    double *us = cli_alloc((size_t)count, sizeof *us);
    if (!us)
        return cli_memory(c, "the times");
    const int device = plan_is_device(w->plan);
    int code = device ? device_time_runs(c, w->plan, &w->args, w->sizes.m, us, count) : 0;
    for (int i = 0; i < count && !code && !device; i++) {
        double start = cli_now();
        code = cli_interrupted() ? EXIT_SIGNAL : run_once(c, w);
        us[i] = 1e6 * (cli_now() - start);
    }
    if (!code) {
        qn_case_cost cost = {0};
        qn_error error = {0};
        char text[512];
        qn_op_desc_print(&w->desc, text, sizeof text);
        double median = cli_median(us, count);
        kernel_facts facts = kernel_facts_of(c->ctx, w->plan);
        int known = qn_case_get_cost(&w->desc, w->args.in, &cost, &error) == QN_OK && median > 0;
        json j = json_begin(stdout);
        json_open(&j, NULL, '{');
        json_text(&j, "op", qn_op_get_info(w->desc.op)->name);
        json_text(&j, "case", text);
        json_text(&j, "backend", facts.backend);
        json_text(&j, "isa", facts.isa);
        json_text(&j, "kernel", facts.kernel);
        json_number(&j, "threads", qn_exec_threads(&c->exec), 6);
        json_number(&j, "pack_us", w->pack_us, 6);
        json_number(&j, "us_median", median, 6);
        json_number(&j, "gbps", known ? cost.bytes / median * 1e-3 : 0, 6);
        json_number(&j, "gflops", known ? cost.flops / median * 1e-3 : 0, 6);
        json_close(&j, '}');
    }
    free(us);
    return code;
}

int verb_op(cli *c)
{
    op_work w;
    memset(&w, 0, sizeof w);
    qn_error error = {0};
    qn_op op;
    int code = find_operator(c, &op);
    if (code)
        return code;
    qn_op_desc_init(&w.desc, op);
    code = set_attributes(c, &w.desc);
    if (!code && !c->value[OPT_IN].set)
        code = cli_fail(c, EXIT_USAGE, "--in FILE is missing: the safetensors file with the inputs");
    if (!code && !c->value[OPT_OUT].set)
        code = cli_fail(c, EXIT_USAGE, "--out FILE is missing: the safetensors file to write");
    if (!code)
        code = cli_keep_input(c, c->value[OPT_IN].s);
    if (!code)
        code = cli_check(c, qn_tensors_open(c->ctx, c->value[OPT_IN].s, &w.file, &error), &error, PHASE_INPUT);
    if (!code)
        code = take_inputs(c, &w);
    if (!code)
        code = take_codebook(c, &w);
    if (!code) { /* what is out of range now are attributes that do not go together */
        qn_status status = qn_op_desc_check(&w.desc, w.out, &w.sizes, &error);
        code = cli_check(c, status, &error, status == QN_E_ARGUMENT ? PHASE_USAGE : PHASE_INPUT);
    }
    if (!code)
        code = make_outputs(c, &w);
    if (!code)
        code = make_plan(c, &w);
    if (!code)
        code = run_once(c, &w);
    if (!code && c->value[OPT_REPEAT].i > 0)
        code = time_runs(c, &w);
    if (!code && cli_interrupted())
        code = EXIT_SIGNAL;
    if (!code)
        code = write_outputs(c, &w);
    qn_plan_destroy(w.plan);
    qn_tensors_close(w.file);
    for (int i = 0; i < QN_MAX_OUT; i++)
        free(w.out_data[i]);
    free(w.blob);
    free(w.workspace);
    return code;
}
