/* A row of the CPU registry on a case: operands, what the reference makes of them, the judgement. For programs that
 * take every row (test_kernels.c, test_kernel_rows.c). */
#ifndef QN_TESTS_KERNELS_CASES_H
#define QN_TESTS_KERNELS_CASES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/operands.h"
#include "kernels/structure.h"

#define SEED 20240607u
#define POISON_OUT 0xAA

static qn_ctx *ctx;
static qn_pool *pools[3];
static const int32_t pool_threads[3] = {2, 3, 7};

typedef struct tensors {
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    const qn_op_info *info;
    void *in[QN_MAX_IN];    /* dense */
    void *want[QN_MAX_OUT]; /* dense */
    size_t out_bytes[QN_MAX_OUT];
} tensors;

static inline void tensors_free(tensors *t)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(t->in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(t->want[i]);
    }
}

static inline qn_args dense_args(const tensors *t, void *const out[QN_MAX_OUT])
{
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < t->info->in_count; i++) {
        if (t->desc.in[i].format) {
            args.in[i] = qn_view_make(t->in[i], &t->desc.in[i]);
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            args.out[i] = qn_mut_view_make(out[i], &t->out[i]);
        }
    }
    return args;
}

static inline void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static inline void run_plan(const qn_plan *plan, const qn_args *args, int64_t m, const qn_exec *exec, const char *what)
{
    qn_error error = {0};
    guarded workspace = guarded_make_aligned(qn_plan_workspace_bytes(plan, m, qn_exec_threads(exec)), 0xFF);
    const qn_status status = qn_run(plan, args, workspace.bytes ? workspace.data : NULL, workspace.bytes, exec, &error);
    must(status, &error, what);
    assert_true(canaries_alive(&workspace, 0xFF));
    guarded_free(&workspace);
}

/* What a test puts among the values of a case: 0, nothing. */
enum { SPECIALS = 1, SPECIAL_CACHE, NEGATIVE_SCALES, OUTLIERS, ODD, STRUCTURED, STRUCTURED_SIZES };
static int with_values;

/* Row r of the activations, `columns` elements: NaN, infinities, a subnormal and large numbers, one a row. */
static inline void poke_special(qn_format format, char *row, int64_t columns, int64_t r)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 1e-42f, -1e30f, 60000.0f};
    if (r < 6) {
        qn_encode(format, &values[r], 1, row + r * 7 % columns * qn_format_get_info(format)->block_bytes, NULL);
    }
}

/* Elements far larger than the others, some or many; from the fifth row on all equal. */
static inline void poke_outliers(qn_format format, char *row, int64_t columns, int64_t r)
{
    static const float sizes[] = {1e3f, 1e4f, 1e5f, 1e6f};
    const int64_t size = qn_format_get_info(format)->block_bytes, step = r % 2 ? 61 : columns;
    for (int64_t i = r < 4 ? r * 83 % columns : 0; i < columns; i += r < 4 ? step : 1) {
        const float value = r < 4 ? sizes[r] * (float)(1 - i % 3) : 1.1f;
        qn_encode(format, &value, 1, row + i * size, NULL);
    }
}

/* A key that is infinite, a value that is, one that is NaN and a key that is, far enough from each other that queries
 * see none, some or all. */
static inline void poke_cache(const tensors *t)
{
    static const float values[] = {-INFINITY, INFINITY, NAN, NAN};
    for (int i = 0; i < 4; i++) {
        const int32_t slot = i == 0 || i == 3 ? QN_ATT_K : QN_ATT_V;
        const qn_shape *rows = &t->desc.in[slot];
        const int64_t key = rows->dims[0] * (i + 1) / 5, row = rows->dims[1] * rows->dims[2];
        const int64_t size = qn_format_get_info(rows->format)->block_bytes;
        qn_encode(rows->format, &values[i], 1, (char *)t->in[slot] + (key * row + i) * size, NULL);
    }
}

/* Every third block scale of NVFP4 weights, some of them zeros. */
static inline void poke_scales(const tensors *t)
{
    uint8_t *const scales = t->in[QN_NVMM_B_SCALE];
    for (int64_t i = 0; i < qn_shape_elements(&t->desc.in[QN_NVMM_B_SCALE]); i += 3) {
        scales[i] = (uint8_t)(i % 33 ? scales[i] | 0x80 : 0x80);
    }
}

/* Element i of a tensor becomes that many times what it was; count of them. */
static inline void poke_times(const tensors *t, int32_t slot, int64_t i, int64_t count, float factor)
{
    const qn_format format = t->desc.in[slot].format;
    const int64_t size = qn_format_get_info(format)->block_bytes;
    char *p = (char *)t->in[slot] + i * size;
    for (int64_t j = 0; j < count; j++, p += size) {
        float value;
        qn_decode(format, p, 1, &value, NULL);
        value *= factor;
        qn_encode(format, &value, 1, p, NULL);
    }
}

/* Weights, rows of x and scales that kernels leave to src/backend/cpu/panel_exact.c, beside others: two rows of three
 * far below 1, columns 16 to 31 too, one code or scale of column 20 NaN, scales of blocks beyond what their products
 * may be, one NaN. */
static inline void poke_odd(const tensors *t)
{
    const qn_op op = t->desc.op;
    const int32_t b = qn_op_in_slot(op, "b"), sa = qn_op_in_slot(op, "scale_a"), sb = qn_op_in_slot(op, "scale_b"),
                  scales = qn_op_in_slot(op, "b_scale");
    const qn_shape *x = &t->desc.in[0];
    const int64_t k = t->sizes.k;
    for (int64_t r = 0; r < t->sizes.m && (x->format == QN_F32 || x->format == QN_BF16); r++) {
        poke_times(t, 0, r * k, k, r % 3 ? 0x1p-70f : 1.0f);
    }
    if (t->desc.in[b].format == QN_BF16) {
        poke_times(t, b, 16 * k, 16 * k, 0x1p-110f);
    } else if (t->desc.in[b].format == QN_F8_E4M3 || t->desc.in[b].format == QN_F8_E5M2) {
        ((uint8_t *)t->in[b])[20 * k + 5] = 0x7f;
    }
    if (scales >= 0) { /* mxfp4: 2^-126 */
        ((uint8_t *)t->in[scales])[20 * (k / (op == QN_OP_NVFP4_MM ? 16 : 32)) + 1] = op == QN_OP_NVFP4_MM ? 0x7f : 1;
    }
    if (op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_GROUPED_BLOCK_SCALED_MM) {
        const int64_t count = qn_shape_elements(&t->desc.in[sa]);
        for (int64_t i = 1; i < count; i += 5) {
            poke_times(t, sa, i, 1, i % 2 ? 1e-22f : 1e22f);
        }
        poke_times(t, sa, count / 2, 1, NAN);
        poke_times(t, sb, 0, 1, 1e-22f);
    }
}

static inline void poke_values(const tensors *t)
{
    if (with_values == ODD) {
        poke_odd(t);
        return;
    }
    if (with_values == SPECIAL_CACHE) {
        poke_cache(t);
        return;
    }
    if (with_values == NEGATIVE_SCALES) {
        poke_scales(t);
        return;
    }
    if (with_values >= STRUCTURED) {
        structure_operands(&t->desc, t->in, with_values == STRUCTURED_SIZES);
        return;
    }
    const qn_shape *x = &t->desc.in[0];
    const int64_t columns = x->ndim > 0 ? x->dims[x->ndim - 1] : 0;
    const int64_t rows = columns ? qn_shape_elements(x) / columns : 0;
    if (x->format == QN_F32 || x->format == QN_F16 || x->format == QN_BF16 || x->format == QN_F8_E4M3) {
        for (int64_t r = 0; r < rows; r++) {
            char *const row = (char *)t->in[0] + r * columns * qn_format_get_info(x->format)->block_bytes;
            (with_values == SPECIALS ? poke_special : poke_outliers)(x->format, row, columns, r);
        }
    }
}

/* What the reference made of the last case, on random values and on the exact grid: kernels meet a case in turn. */
static struct {
    char text[512];
    int values;
    void *want[QN_MAX_OUT];
} last[2];

static inline void ask_reference(const char *text, int exact, tensors *t)
{
    qn_error error = {0};
    if (last[exact].values == with_values && strcmp(last[exact].text, text) == 0) {
        for (int i = 0; i < t->info->out_count; i++) {
            if (t->want[i]) {
                memcpy(t->want[i], last[exact].want[i], t->out_bytes[i]);
            }
        }
        return;
    }
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    qn_plan *reference;
    must(qn_plan_create(ctx, &t->desc, &options, &reference, &error), &error, text);
    const qn_args args = dense_args(t, t->want);
    run_plan(reference, &args, t->sizes.m, NULL, text);
    qn_plan_destroy(reference);
    assert_true(snprintf(last[exact].text, sizeof last[exact].text, "%s", text) < (int)sizeof last[exact].text);
    last[exact].values = with_values;
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(last[exact].want[i]);
        last[exact].want[i] = NULL;
        if (t->want[i]) {
            last[exact].want[i] = malloc(t->out_bytes[i] + 1);
            memcpy(last[exact].want[i], t->want[i], t->out_bytes[i]);
        }
    }
}

/* Inputs and the reference's outputs of a case; 0 when the kernel takes none of it. */
static inline int tensors_make(const char *text, const char *kernel, int exact, tensors *t, qn_plan **plan)
{
    qn_error error = {0};
    memset(t, 0, sizeof *t);
    must(qn_op_desc_parse(text, &t->desc, &error), &error, text);
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.kernel = kernel;
    options.backend = QN_BACKEND_CPU;
    const qn_status status = qn_plan_create(ctx, &t->desc, &options, plan, &error);
    if (status == QN_E_UNSUPPORTED) {
        return 0;
    }
    must(status, &error, text);
    must(qn_op_desc_check(&t->desc, t->out, &t->sizes, &error), &error, text);
    t->info = qn_op_get_info(t->desc.op);
    for (int i = 0; i < t->info->in_count; i++) {
        size_t bytes = 0;
        if (t->desc.in[i].format) {
            must(qn_shape_bytes(&t->desc.in[i], &bytes, &error), &error, text);
            t->in[i] = calloc(1, bytes + 1);
        }
    }
    must(qn_case_fill(&t->desc, SEED, exact, t->in, &error), &error, text);
    if (with_values) {
        poke_values(t);
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            must(qn_shape_bytes(&t->out[i], &t->out_bytes[i], &error), &error, text);
            t->want[i] = malloc(t->out_bytes[i] + 1);
            memset(t->want[i], POISON_OUT, t->out_bytes[i] + 1); /* rows that are kept, as in the kernel's outputs */
        }
    }
    ask_reference(text, exact, t);
    return 1;
}

static inline void judge(const tensors *t, void *const got[QN_MAX_OUT], int exact, const char *kernel, const char *text)
{
    qn_error error = {0};
    qn_view want[QN_MAX_OUT] = {{0}}, have[QN_MAX_OUT] = {{0}}, in[QN_MAX_IN] = {{0}};
    for (int i = 0; i < t->info->in_count; i++) {
        if (t->desc.in[i].format) {
            in[i] = qn_view_make(t->in[i], &t->desc.in[i]);
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            want[i] = qn_view_make(t->want[i], &t->out[i]);
            have[i] = qn_view_make(got[i], &t->out[i]);
        }
    }
    qn_case_result r;
    must(qn_case_judge(&t->desc, want, have, in, exact, &r, &error), &error, text);
    if (!r.pass) {
        fail_msg("%s, %s, %s grid, seed %u: error %g of the allowed; output %d element %lld is %.9g, expected %.9g",
                 kernel, text, exact ? "exact" : "random", SEED, r.max_error, r.slot, (long long)r.index, r.got,
                 r.want);
    }
}

static inline int next_kernel(int32_t *i, qn_kernel_info *info)
{
    while (kernel_at(ctx, (*i)++, info) == QN_OK) {
        if (info->backend != QN_BACKEND_CPU) {
            continue;
        }
        if (info->refusal) {
            print_message("skipped %s: %s\n", info->name, info->refusal);
            continue;
        }
        return 1;
    }
    return 0;
}

static inline int start(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED);
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        if (qn_pool_create(ctx, pool_threads[i], &pools[i], NULL) != QN_OK) {
            return 1;
        }
    }
    return 0;
}

static inline int stop(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * QN_MAX_OUT; i++) {
        free(last[i / QN_MAX_OUT].want[i % QN_MAX_OUT]);
    }
    for (int i = 0; i < 3; i++) {
        qn_pool_destroy(pools[i]);
    }
    qn_ctx_destroy(ctx);
    return 0;
}

#endif
