/* quern doctor: what this machine can run, which level each operator got, and why not more. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define SLOW_PERCENT 10.0 /* of the roofline: below it a kernel is said to be slow */

/* An operator on the operands that models give it; rows for --measure. */
typedef struct family {
    const char *name, *text; /* text: a case without its rows */
    int rows[2];
} family;

static const family families[] = {
    {"scaled_mm int8", "scaled_mm m=%d n=2048 k=2048 scale_a=token scale_b=channel", {1, 256}},
    {"scaled_mm fp8", "scaled_mm m=%d n=2048 k=2048 a=f8_e4m3 scale_a=token scale_b=channel", {1, 256}},
    {"block_scaled_mm", "block_scaled_mm m=%d n=2048 k=2048", {1, 256}},
    {"grouped_block_scaled_mm", "grouped_block_scaled_mm m=%d n=1024 k=1024 e=2", {2, 256}},
    {"nvfp4_mm W4A16", "nvfp4_mm m=%d n=2048 k=2048 x=bf16", {1, 256}},
    {"nvfp4_mm W4A8", "nvfp4_mm m=%d n=2048 k=2048 x=i8 x_scale=token", {1, 256}},
    {"nvfp4_mm W4A4", "nvfp4_mm m=%d n=2048 k=2048 a=1", {1, 256}},
    {"mxfp4_mm W4A16", "mxfp4_mm m=%d n=2048 k=2048 x=bf16", {1, 256}},
    {"mxfp4_mm W4A8", "mxfp4_mm m=%d n=2048 k=2048 x=i8 x_scale=token", {1, 256}},
    {"dense_mm bf16", "dense_mm m=%d n=2048 k=2048 x=bf16 b=bf16", {1, 256}},
    {"dense_mm f32", "dense_mm m=%d n=2048 k=2048", {1, 256}},
    {"dense_mm q4_0", "dense_mm m=%d n=2048 k=2048 b=q4_0", {1, 256}},
    {"quantize_fp8", "quantize_fp8 m=%d k=4096 granularity=group x=bf16", {1, 1024}},
    {"quantize_int8", "quantize_int8 m=%d k=4096 granularity=token x=bf16", {1, 1024}},
    {"quantize_nvfp4", "quantize_nvfp4 m=%d k=4096 x=bf16", {1, 1024}},
    {"quantize_mxfp4", "quantize_mxfp4 m=%d k=4096 x=bf16", {1, 1024}},
    {"dequantize", "dequantize m=%d k=4096 granularity=token", {1, 1024}},
    {"silu_mul_quant", "silu_mul_quant m=%d k=4096 x=bf16", {1, 1024}},
    {"silu_mul", "silu_mul m=%d k=4096 out=f32", {1, 1024}},
    {"rmsnorm", "rmsnorm m=%d k=4096", {1, 1024}},
    {"rope", "rope m=%d k=128 e=32", {1, 1024}},
    {"attention", "attention m=%d n=1024 k=128 e=8 g=2", {1, 128}},
    {"scaled_attention", "scaled_attention m=%d n=1024 k=128 e=8 g=2", {1, 128}},
    {"vq_mm aqlm-2x8", "vq_mm m=%d n=2048 k=2048", {1, 256}},
    {"vq_mm aqlm-1x16", "vq_mm m=%d n=2048 k=2048 num_codebooks=1 nbits_per_codebook=16", {1, 256}},
    {"vq_mm gptvq", "vq_mm m=%d n=2048 k=2048 format=gptvq", {1, 256}},
    {"vq_mm quip_e8p", "vq_mm m=%d n=2048 k=2048 format=quip_e8p SU=1 SV=1", {1, 256}},
    {"vq_mm vptq", "vq_mm m=%d n=2048 k=2048 format=vptq out_features=2048 res_centroids.weight=1", {1, 256}},
    {"vq_dequantize", "vq_dequantize n=%d k=2048", {256, 2048}},
    {"vq_attention", "vq_attention m=%d n=1024 k=128 e=8 g=2", {1, 8}},
    {"vq_encode", "vq_encode m=%d k=128 n=1 e=8", {1, 128}},
};
enum { FAMILIES = sizeof families / sizeof *families };

typedef struct finding {
    kernel_facts facts;
    const char *next,
        *lacks;              /* the level above for which kernels exist, and why it is not taken; NULL: there is none */
    bench_record records[2]; /* --measure */
    int measured;
} finding;

static const char *case_text(const family *f, int rows, char text[256])
{
    const char *hole = strstr(f->text, "%d");
    snprintf(text, 256, "%.*s%d%s", (int)(hole - f->text), f->text, rows, hole + 2);
    return text;
}

/* The lowest level above the chosen one that has a kernel for the case and cannot run it here: explain's candidates
 * say which kernels are refused for the machine alone. */
static int find_next(cli *c, const qn_op_desc *desc, finding *f)
{
    qn_error error = {0};
    qn_kernel_info info;
    size_t room = 0;
    int best = QN_ISA_COUNT;
    int code = cli_check(c, qn_explain(c->ctx, desc, NULL, NULL, 0, &room, &error), &error, PHASE_RUN);
    char *text = code ? NULL : calloc(room + 1, 1);
    if (!code && !text)
        return cli_memory(c, "the report");
    if (!code)
        code = cli_check(c, qn_explain(c->ctx, desc, NULL, text, room + 1, NULL, &error), &error, PHASE_RUN);
    for (int32_t i = 0; !code && qn_kernel_at(c->ctx, i, &info) == QN_OK; i++) {
        char line[512];
        if (info.op != desc->op || info.backend != QN_BACKEND_CPU || !info.refusal ||
            (int)info.isa <= (int)f->facts.level || (int)info.isa >= best)
            continue;
        snprintf(line, sizeof line, " %s: %s\n", info.name, info.refusal);
        if (strstr(text, line)) {
            best = (int)info.isa;
            f->next = qn_isa_name(info.isa);
            f->lacks = info.refusal;
        }
    }
    free(text);
    return code;
}

static int examine(cli *c, const family *f, finding *out)
{
    qn_error error = {0};
    qn_op_desc desc;
    qn_plan *plan = NULL;
    char text[256];
    int code = cli_check(c, qn_op_desc_parse(case_text(f, f->rows[0], text), &desc, &error), &error, PHASE_RUN);
    if (!code)
        code = cli_check(c, qn_plan_create(c->ctx, &desc, NULL, &plan, &error), &error, PHASE_RUN);
    if (!code) {
        out->facts = kernel_facts_of(c->ctx, plan);
        code = find_next(c, &desc, out);
    }
    qn_plan_destroy(plan);
    return code;
}

static int measure_all(cli *c, finding *findings)
{
    bench b;
    char text[256];
    int code = bench_begin(&b, c), ok;
    for (int i = 0; i < FAMILIES && !code; i++) {
        for (int r = 0; r < 2 && !code; r++) {
            cli_progress(c, (i + 0.5 * r) / FAMILIES, families[i].name);
            code = cli_interrupted() ? EXIT_SIGNAL
                                     : bench_measure(&b, case_text(&families[i], families[i].rows[r], text),
                                                     &findings[i].records[r], &ok);
            findings[i].measured += !code && ok;
        }
    }
    cli_progress_end(c);
    if (!code && b.failures)
        code = cli_fail(c, EXIT_FAILED, "%d cases disagree with the reference", b.failures);
    bench_end(&b);
    return code;
}

/* One row touches too few bytes to fill the memory of operators without weights; only their many rows are judged. */
static int is_slow(const finding *f, int r)
{
    const qn_op_info *info = qn_op_get_info(f->records[r].op);
    int weights = 0;
    for (int i = 0; i < info->in_count; i++)
        weights |= info->in[i].weight;
    return f->records[r].roofline && f->records[r].percent < SLOW_PERCENT && (r == 1 || weights);
}

static void print_finding(const family *f, const finding *found)
{
    printf("%-24s %-11s", f->name, found->facts.isa);
    if (found->measured == 2) {
        for (int r = 0; r < 2; r++)
            printf(" rows %-4d %5.1f %% of %-9s", f->rows[r], found->records[r].percent,
                   found->records[r].roofline ? found->records[r].roofline : "-");
        printf("%s", is_slow(found, 0) || is_slow(found, 1) ? " SLOW" : "");
    } else if (found->next) {
        printf(" next: %s (%s)", found->next, found->lacks);
    } else {
        printf(" the highest level it is made for");
    }
    printf("\n");
}

static void print_json(const char *text, const finding *findings)
{
    json j = json_begin(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "version", qn_version());
    json_open(&j, "facts", '[');
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        json_bytes(&j, NULL, p, n);
        p += n + (p[n] == '\n');
    }
    json_close(&j, ']');
    json_open(&j, "operators", '[');
    for (int i = 0; i < FAMILIES; i++) {
        const finding *f = &findings[i];
        json_open(&j, NULL, '{');
        json_text(&j, "operator", families[i].name);
        json_text(&j, "kernel", f->facts.kernel);
        json_text(&j, "isa", f->facts.isa);
        json_text(&j, "next_isa", f->next);
        json_text(&j, "lacks", f->lacks);
        if (f->measured == 2) {
            json_open(&j, "measured", '[');
            for (int r = 0; r < 2; r++) {
                json_open(&j, NULL, '{');
                json_text(&j, "case", f->records[r].text);
                json_number(&j, "us_median", f->records[r].median, 6);
                json_text(&j, "roofline", f->records[r].roofline);
                json_number(&j, "roofline_pct", f->records[r].percent, 4);
                json_bool(&j, "slow", is_slow(f, r));
                json_close(&j, '}');
            }
            json_close(&j, ']');
        }
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

int verb_doctor(cli *c)
{
    const size_t room = qn_doctor(c->ctx, NULL, 0) + 1;
    char *text = calloc(room, 1);
    finding *findings = calloc(FAMILIES, sizeof *findings);
    int code = text && findings ? 0 : cli_memory(c, "the report"), slow = 0;
    if (!code)
        qn_doctor(c->ctx, text, room);
    for (int i = 0; i < FAMILIES && !code; i++)
        code = examine(c, &families[i], &findings[i]);
    if (!code && c->value[OPT_MEASURE].set)
        code = measure_all(c, findings);
    if (!code && c->value[OPT_JSON].set) {
        print_json(text, findings);
    } else if (!code) {
        printf("quern %s\n%s%s\n", qn_version(), text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
        for (int i = 0; i < FAMILIES; i++) {
            print_finding(&families[i], &findings[i]);
            slow += findings[i].measured == 2 && (is_slow(&findings[i], 0) || is_slow(&findings[i], 1));
        }
        if (c->value[OPT_MEASURE].set)
            printf("%d of %d operators below %.0f %% of their roofline\n", slow, FAMILIES, SLOW_PERCENT);
    }
    free(findings);
    free(text);
    return code;
}
