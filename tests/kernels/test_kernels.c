/* Every row of the CPU registry that this machine can run against the reference:
 * the shared case table and sizes around the row's tile, on the exact grid bit for
 * bit and on random values within the error model; operands, packed weights and
 * workspace between forbidden pages, strided, odd-aligned; 1, 2, 3 and 7 threads;
 * rows alone and in a batch (random ones: test_kernel_invariance.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "kernels/operands.h"
#include "op/random_cases.h"

#define SEED 20240607u
#define POISON_OUT 0xAA
#define POISON_IN 0xFF /* NaN in every float format, -1 in integers */

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

static void tensors_free(tensors *t)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(t->in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(t->want[i]);
    }
}

static qn_args dense_args(const tensors *t, void *const out[QN_MAX_OUT])
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

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static void run_plan(const qn_plan *plan, const qn_args *args, int64_t m, const qn_exec *exec, const char *what)
{
    qn_error error = {0};
    guarded workspace = guarded_make_aligned(qn_plan_workspace_bytes(plan, m, qn_exec_threads(exec)), 0xFF);
    const qn_status status = qn_run(plan, args, workspace.bytes ? workspace.data : NULL, workspace.bytes, exec, &error);
    must(status, &error, what);
    assert_true(canaries_alive(&workspace, 0xFF));
    guarded_free(&workspace);
}

/* NaN, infinities, a subnormal and large numbers among the activations. */
static int with_specials;

static void poke_specials(const tensors *t)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, 1e-42f, -1e30f, 60000.0f};
    const qn_shape *x = &t->desc.in[0];
    const int64_t columns = x->ndim > 0 ? x->dims[x->ndim - 1] : 0, size = qn_format_get_info(x->format)->block_bytes;
    const int64_t rows = columns ? qn_shape_elements(x) / columns : 0;
    for (int64_t r = 0; r < rows && r < 6; r++) {
        if (x->format == QN_F32 || x->format == QN_F16 || x->format == QN_BF16 || x->format == QN_F8_E4M3) {
            char *at = (char *)t->in[0] + (r * columns + r * 7 % columns) * size;
            qn_encode(x->format, &values[r], 1, at, NULL);
        }
    }
}

/* What the reference made of the last case, on random values and on the exact grid: kernels meet a case in turn. */
static struct {
    char text[512];
    void *want[QN_MAX_OUT];
} last[2];

static void ask_reference(const char *text, int exact, tensors *t)
{
    qn_error error = {0};
    if (!with_specials && strcmp(last[exact].text, text) == 0) {
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
    assert_true(snprintf(last[exact].text, sizeof last[exact].text, "%s", with_specials ? "" : text) <
                (int)sizeof last[exact].text);
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
static int tensors_make(const char *text, const char *kernel, int exact, tensors *t, qn_plan **plan)
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
    if (with_specials) {
        poke_specials(t);
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            must(qn_shape_bytes(&t->out[i], &t->out_bytes[i], &error), &error, text);
            t->want[i] = calloc(1, t->out_bytes[i] + 1);
        }
    }
    ask_reference(text, exact, t);
    return 1;
}

static void judge(const tensors *t, void *const got[QN_MAX_OUT], int exact, const char *kernel, const char *text)
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

static int strided_output(const tensors *t, int i)
{
    return t->out[i].ndim > 1 && !(t->desc.op == QN_OP_QUANTIZE_NVFP4 && t->desc.attr[QN_ATTR_SWIZZLED].i);
}

/* Run between forbidden pages, with packed weights when there is a blob, and keep the bits in first[] or compare with
 * them. */
static void run_guarded(const tensors *t, const qn_plan *plan, placement where, int64_t gap, const guarded *blob,
                        const qn_exec *exec, void *const first[QN_MAX_OUT], int compare, const char *text)
{
    guarded in[QN_MAX_IN] = {{0}}, out[QN_MAX_OUT] = {{0}};
    qn_args args;
    memset(&args, 0, sizeof args);
    int64_t dense[QN_MAX_DIMS];
    args.packed = blob ? blob->data : NULL;
    for (int i = 0; i < t->info->in_count; i++) {
        if (t->desc.in[i].format && !(blob && t->info->in[i].weight)) {
            const size_t shift = (size_t)qn_format_get_info(t->desc.in[i].format)->block_bytes;
            args.in[i].shape = t->desc.in[i];
            in[i] = guarded_make(strides_of(&t->desc.in[i], gap, args.in[i].strides), where, shift, POISON_IN);
            args.in[i].data = in[i].data;
            strides_of(&t->desc.in[i], 0, dense);
            copy_rows(&t->desc.in[i], in[i].data, args.in[i].strides, t->in[i], dense);
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            const size_t shift = (size_t)qn_format_get_info(t->out[i].format)->block_bytes;
            args.out[i].shape = t->out[i];
            out[i] = guarded_make(strides_of(&t->out[i], strided_output(t, i) ? gap : 0, args.out[i].strides), where,
                                  shift, POISON_OUT);
            args.out[i].data = out[i].data;
        }
    }
    run_plan(plan, &args, t->sizes.m, exec, text);
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format && t->sizes.m > 0) {
            char *got = calloc(1, t->out_bytes[i] + 1);
            strides_of(&t->out[i], 0, dense);
            copy_rows(&t->out[i], got, dense, out[i].data, args.out[i].strides);
            if (compare && memcmp(got, first[i], t->out_bytes[i]) != 0) {
                fail_msg("%s, %s: output %d differs (%d threads, gap %lld, placement %d, %s weights)",
                         qn_plan_kernel(plan), text, i, qn_exec_threads(exec), (long long)gap, (int)where,
                         blob ? "packed" : "stored");
            }
            if (!compare) {
                memcpy(first[i], got, t->out_bytes[i]);
            }
            /* what lies between the rows must still be poison: put the rows back to poison and look */
            memset(got, POISON_OUT, t->out_bytes[i]);
            copy_rows(&t->out[i], out[i].data, args.out[i].strides, got, dense);
            for (size_t b = 0; b < out[i].bytes; b++) {
                assert_int_equal((unsigned char)out[i].data[b], POISON_OUT);
            }
            assert_true(canaries_alive(&out[i], POISON_OUT));
            free(got);
        }
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        guarded_free(&in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        guarded_free(&out[i]);
    }
}

/* Packed weights, to be read only; no memory when the kernel packs nothing. */
static guarded pack_guarded(const tensors *t, const qn_plan *plan, const char *text)
{
    qn_error error = {0};
    const size_t bytes = qn_plan_pack_bytes(plan);
    if (bytes == 0) {
        return (guarded){0};
    }
    guarded blob = guarded_make_aligned(bytes, POISON_IN);
    void *none[QN_MAX_OUT] = {NULL};
    const qn_args args = dense_args(t, none);
    must(qn_pack(plan, &args, blob.data, bytes, &error), &error, text);
    assert_true(canaries_alive(&blob, POISON_IN));
    guarded_freeze(&blob);
    return blob;
}

static int run_case(const char *kernel, const char *text, int thorough)
{
    static int turn;
    int ran = 0;
    for (int exact = 0; exact < 2; exact++) {
        tensors t;
        qn_plan *plan = NULL;
        if (!tensors_make(text, kernel, exact, &t, &plan)) {
            tensors_free(&t);
            return 0;
        }
        assert_string_equal(qn_plan_kernel(plan), kernel);
        void *got[QN_MAX_OUT] = {NULL};
        for (int i = 0; i < t.info->out_count; i++) {
            got[i] = calloc(1, t.out_bytes[i] + 1);
        }
        guarded blob = pack_guarded(&t, plan, text);
        run_guarded(&t, plan, AT_END, 0, NULL, NULL, got, 0, text);
        if (t.sizes.m > 0) {
            judge(&t, got, exact, kernel, text);
        }
        run_guarded(&t, plan, AT_START, 3, NULL, NULL, got, 1, text);
        run_guarded(&t, plan, OFF_ALIGNMENT, exact, NULL, NULL, got, 1, text);
        if (thorough && !exact) { /* cases and rows take the pools in turn */
            const int p = turn++ % 3;
            const qn_exec exec = {.pool = pools[p]};
            run_guarded(&t, plan, AT_END, p, NULL, &exec, got, 1, text);
        }
        if (blob.map) {
            const qn_exec exec = {.pool = pools[exact]};
            run_guarded(&t, plan, AT_END, 0, &blob, NULL, got, 1, text);
            run_guarded(&t, plan, OFF_ALIGNMENT, 1, &blob, &exec, got, 1, text);
        }
        guarded_free(&blob);
        for (int i = 0; i < QN_MAX_OUT; i++) {
            free(got[i]);
        }
        qn_plan_destroy(plan);
        tensors_free(&t);
        ran = 1;
    }
    return ran;
}

static int next_kernel(int32_t *i, qn_kernel_info *info)
{
    while (qn_kernel_at(ctx, (*i)++, info) == QN_OK) {
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

static void every_row_on_the_case_table(void **state)
{
    (void)state;
    enum { MOST_ROWS = 1024 };
    static int32_t cases[MOST_ROWS];
    qn_kernel_info k;
    int32_t rows = 0, runs = 0, bench;
    const char *text;
    for (int32_t c = 0; (text = qn_case_at(c, &bench)); c++) {
        qn_op_desc desc;
        qn_error error;
        must(qn_op_desc_parse(text, &desc, &error), &error, text);
        for (int32_t i = 0; !bench && qn_kernel_at(ctx, i, &k) == QN_OK; i++) {
            assert_true(i < MOST_ROWS);
            if (k.op == desc.op && k.backend == QN_BACKEND_CPU && !k.refusal) {
                cases[i] += run_case(k.name, text, 1);
            }
        }
    }
    for (int32_t i = 0; next_kernel(&i, &k); rows++) {
        if (cases[i - 1] == 0) {
            fail_msg("%s: no case of the table reaches this row", k.name);
        }
        runs += cases[i - 1];
    }
    assert_true(rows > 0);
    print_message("%d registry rows, %d cases\n", rows, runs);
}

/* Every row of an operator on cases drawn at random; QN_TEST_CASES: how many of an operator, QN_TEST_SEED. */
static void random_cases_agree(void **state)
{
    (void)state;
    const char *const many = getenv("QN_TEST_CASES"), *const seed = getenv("QN_TEST_SEED");
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = 1 << (many ? 24 : 20)};
    qn_kernel_info k;
    int runs = 0;
    for (int c = many ? atoi(many) : 4; c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char text[512];
            random_case(&r, qn_op_at(o), text, sizeof text);
            for (int32_t i = 0; qn_kernel_at(ctx, i, &k) == QN_OK; i++) {
                if (k.op == qn_op_at(o) && k.backend == QN_BACKEND_CPU && !k.refusal) {
                    runs += run_case(k.name, text, c & 1);
                }
            }
        }
    }
    assert_true(runs > 0);
    print_message("%d random cases\n", runs);
}

/* Operators by what makes their kernels differ, and what their K must be a multiple of. */
static const struct {
    qn_op op;
    const char *words;
    int k_unit, has_n;
} contracts[] = {
    {QN_OP_DENSE_MM, "dense_mm b=f32 out=f32", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=bf16 x=f16 out=f32", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=bf16 x=bf16", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=f16 x=bf16 bias=1", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q4_1 out=f32", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q8_0", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q5_0 x=f16 bias=1", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q2_k out=f32", 256, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q6_k out=f16", 256, 1},
    {QN_OP_SCALED_MM, "scaled_mm out=f32 scale_a=token scale_b=channel", 1, 1},
    {QN_OP_SCALED_MM, "scaled_mm scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1", 1, 1},
    {QN_OP_SCALED_MM, "scaled_mm a=f8_e4m3 scale_a=token bias=1", 1, 1},
    {QN_OP_BLOCK_SCALED_MM, "block_scaled_mm out=f32", 1, 1},
    {QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm e=3 out=f32", 1, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm out=f32", 16, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm a=1 out=f32", 16, 1},
    {QN_OP_MXFP4_MM, "mxfp4_mm bias=1", 32, 1},
    {QN_OP_VQ_MM, "vq_mm out=f32", 8, 1},
    {QN_OP_VQ_MM, "vq_mm x=bf16 bias=1", 8, 1},
    {QN_OP_VQ_MM, "vq_mm num_codebooks=1 nbits_per_codebook=16 out=f32", 8, 1},
    {QN_OP_VQ_MM, "vq_mm format=gptvq out=f32", 4, 1},
    {QN_OP_VQ_MM, "vq_mm format=gptvq x=bf16 bias=1", 4, 1},
    {QN_OP_ATTENTION, "attention e=4 g=2", 1, 1},
    {QN_OP_QUANTIZE_FP8, "quantize_fp8 granularity=token", 1, 0},
    {QN_OP_QUANTIZE_FP8, "quantize_fp8 granularity=group x=bf16", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=token symmetric=0", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=group group=32 x=f16", 1, 0},
    {QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4 global_scale=1", 16, 0},
    {QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4 x=bf16", 32, 0},
    {QN_OP_SILU_MUL_QUANT, "silu_mul_quant x=bf16", 1, 0},
    {QN_OP_SILU_MUL, "silu_mul out=f32", 1, 0},
    {QN_OP_RMSNORM, "rmsnorm", 1, 0},
    {QN_OP_ROPE, "rope e=3", 2, 0},
};

/* Sizes that end before, at and after the multiples that tiles, panels and vectors have. */
static const int around[] = {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 576};
static const int around_m[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 130};
#define AROUND ((int)(sizeof around / sizeof *around))
#define AROUND_M ((int)(sizeof around_m / sizeof *around_m))

static const qn_kernel *registry_row(const char *name)
{
    for (int32_t i = 0;; i++) {
        const qn_kernel *kernel = qn_backend_cpu_row.kernel_at(i);
        if (!kernel || strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
}

/* Size i of a list that goes on with the tile's own: one less, it, one more, twice it and one more. */
static int size_at(const int *list, int count, int tile, int i)
{
    const int own[] = {tile - 1, tile, tile + 1, 2 * tile + 1};
    const int size = i < count ? list[i] : own[(i - count) % 4];
    return size > 0 ? size : 1;
}

static void sizes_around_the_tile(void **state)
{
    (void)state;
    qn_kernel_info k;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        const qn_kernel *row = registry_row(k.name);
        assert_non_null(row);
        for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
            /* strides without common factors: every size of every list, in ever other company */
            for (int s = 0; s < AROUND + 4 && contracts[c].op == k.op; s++) {
                const int unit = contracts[c].k_unit, m = size_at(around_m, AROUND_M, row->mr, s % (AROUND_M + 4));
                const int n = size_at(around, AROUND, row->nr, s * 5 % (AROUND + 4));
                const int kk = (size_at(around, AROUND, row->nr, s * 7 % (AROUND + 4)) + unit - 1) / unit * unit;
                char text[128];
                if (contracts[c].has_n) {
                    snprintf(text, sizeof text, "%s m=%d n=%d k=%d", contracts[c].words, m, n, kk);
                } else {
                    snprintf(text, sizeof text, "%s m=%d k=%d", contracts[c].words, m, kk);
                }
                run_case(k.name, text, 0);
            }
        }
    }
}

static void special_values_travel_as_in_the_reference(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "dense_mm m=6 n=37 k=100 out=f32",
        "dense_mm m=6 n=37 k=96 x=bf16 b=q4_1",
        "dense_mm m=6 n=37 k=96 out=f32 b=q8_0",
        "dense_mm m=6 n=37 k=256 out=f32 x=f16 b=q5_k",
        "dense_mm m=6 n=37 k=256 b=q6_k",
        "dense_mm m=6 n=9 k=70 x=f16 b=bf16 out=f16",
        "scaled_mm m=6 n=37 k=100 a=f8_e4m3 scale_a=token out=f32",
        "block_scaled_mm m=6 n=37 k=200",
        "nvfp4_mm m=6 n=37 k=48",
        "mxfp4_mm m=6 n=37 k=64 out=f16",
        "vq_mm m=6 n=37 k=104 out=f32 x=f32",
        "vq_mm m=6 n=130 k=328 out=f32 x=f32",
        "vq_mm m=6 n=37 k=600 format=gptvq out=f32 x=f32",
        "vq_mm m=6 n=80 k=576 format=quip_e8p codebook=E8P12RVQ4B out=f32 x=f32",
        "vq_mm m=6 n=80 k=576 format=quip_e8p codebook=E8P12RVQ3B out=f32 x=f32",
        "quantize_fp8 m=6 k=130 granularity=token",
        "quantize_fp8 m=6 k=130 granularity=group type=e5m2",
        "quantize_fp8 m=6 k=130 granularity=group type=e4m3fnuz x=f16",
        "quantize_fp8 m=6 k=130 granularity=group scale_format=ue8m0",
        "quantize_fp8 m=6 k=130 granularity=token mode=static",
        "quantize_int8 m=6 k=130 granularity=token",
        "quantize_int8 m=6 k=130 granularity=group",
        "quantize_int8 m=6 k=130 granularity=token symmetric=0",
        "quantize_int8 m=6 k=130 granularity=token mode=static symmetric=0",
        "quantize_mxfp4 m=6 k=96",
        "quantize_mxfp4 m=6 k=96 rule=even x=bf16",
        "quantize_nvfp4 m=6 k=96",
        "quantize_nvfp4 m=6 k=96 global_scale=1 x=f16",
        "quantize_fp8 m=6 k=130 granularity=block",
        "quantize_fp8 m=6 k=130",
        "quantize_fp8 m=6 k=130 granularity=token scale_ub=0.5",
        "quantize_int8 m=6 k=130 symmetric=0",
        "silu_mul_quant m=6 k=128",
        "silu_mul_quant m=6 k=128 type=int8",
        "silu_mul m=6 k=70 x=bf16",
        "rmsnorm m=6 k=70",
        "rope m=2 k=16 e=3",
        "attention m=4 n=70 k=16 e=4 g=2",
        "attention m=6 n=300 k=16 e=4 g=2",
    };
    qn_kernel_info k;
    with_specials = 1;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            const size_t name = strlen(qn_op_get_info(k.op)->name);
            tensors t;
            qn_plan *plan = NULL;
            if (strncmp(cases[c], qn_op_get_info(k.op)->name, name) != 0 || cases[c][name] != ' ') {
                continue;
            }
            if (tensors_make(cases[c], k.name, 0, &t, &plan)) {
                void *got[QN_MAX_OUT] = {NULL};
                for (int o = 0; o < t.info->out_count; o++) {
                    got[o] = calloc(1, t.out_bytes[o] + 1);
                }
                const qn_args args = dense_args(&t, got);
                run_plan(plan, &args, t.sizes.m, NULL, cases[c]);
                judge(&t, got, 0, k.name, cases[c]);
                for (int o = 0; o < QN_MAX_OUT; o++) {
                    free(got[o]);
                }
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
    with_specials = 0;
}

/* ---- a row alone has the bits it has in a batch ---- */

#define BATCH 17

static const char *const batch_cases[] = {
    "dense_mm m=17 n=37 k=100 out=f32 b=f32",
    "dense_mm m=17 n=37 k=1100 b=bf16",
    "dense_mm m=17 n=37 k=544 out=f32 b=q4_1",
    "dense_mm m=17 n=37 k=544 b=q4_0",
    "dense_mm m=17 n=37 k=544 b=q8_0",
    "dense_mm m=17 n=37 k=544 b=q5_1",
    "dense_mm m=17 n=37 k=512 b=q6_k",
    "dense_mm m=17 n=37 k=512 b=q4_k x=bf16 out=f32",
    "dense_mm m=17 n=37 k=512 b=q3_k",
    "dense_mm m=17 n=37 k=1100 x=bf16 b=f16 bias=1",
    "scaled_mm m=17 n=37 k=577 out=f32 scale_a=token scale_b=channel",
    "scaled_mm m=17 n=37 k=577 out=f32 a=f8_e4m3 scale_a=token scale_b=channel",
    "scaled_mm m=17 n=37 k=576 scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1",
    "block_scaled_mm m=17 n=200 k=577 out=f32",
    "block_scaled_mm m=17 n=37 k=1200 scale_layout=col",
    "nvfp4_mm m=17 n=37 k=576 out=f32",
    "nvfp4_mm m=17 n=37 k=576 a=1",
    "mxfp4_mm m=17 n=37 k=576 out=f32",
    "quantize_fp8 m=17 k=577 granularity=group",
    "quantize_fp8 m=17 k=577 granularity=token",
    "quantize_int8 m=17 k=577 granularity=token symmetric=0",
    "quantize_int8 m=17 k=577 granularity=token",
    "silu_mul_quant m=17 k=577",
    "silu_mul m=17 k=577",
    "rmsnorm m=17 k=577",
    "rope m=17 k=64 e=3",
    "attention m=17 n=130 k=64 e=6 g=2",
    "attention m=17 n=130 k=40 e=3 g=3 causal=0",
    "attention m=17 n=300 k=64 e=6 g=2 out=bf16",
    "attention m=17 n=513 k=16 e=4 g=4 k=f16 v=f16",
    "quantize_nvfp4 m=17 k=576 global_scale=1",
    "vq_mm m=17 n=37 k=584 out=f32",
    "vq_mm m=17 n=130 k=328 out=f32",
    "vq_mm m=17 n=300 k=520 format=gptvq x=bf16",
    "vq_mm m=17 n=70 k=4364 format=gptvq out=f32 x=f32",
    "vq_mm m=17 n=64 k=192 format=quip_e8p out=f32 SU=1 SV=1",
    "vq_mm m=17 n=144 k=576 format=quip_e8p codebook=E8P12RVQ4B out=f32 SU=1 SV=1",
    "vq_mm m=17 n=80 k=320 format=quip_e8p codebook=E8P12RVQ3B x=bf16",
    "quantize_mxfp4 m=17 k=96 x=bf16",
};

static int m_axis(const qn_shape *shape)
{
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] == BATCH) {
            return i;
        }
    }
    return -1;
}

static void keep_row(qn_shape *shape, const void **data, const int64_t *strides, int64_t row)
{
    const int axis = shape->format ? m_axis(shape) : -1;
    if (axis >= 0) {
        const int64_t step = axis == shape->ndim - 1 ? qn_format_get_info(shape->format)->block_bytes : strides[axis];
        *data = (const char *)*data + row * step;
        shape->dims[axis] = 1;
    }
}

static void compare_row(const tensors *t, const qn_plan *plan, void *const batch[QN_MAX_OUT], int64_t row,
                        const char *text)
{
    qn_args args = dense_args(t, batch);
    void *alone[QN_MAX_OUT] = {NULL};
    for (int i = 0; i < t->info->in_count; i++) {
        if (!t->info->in[i].weight) {
            keep_row(&args.in[i].shape, &args.in[i].data, args.in[i].strides, row);
        }
        if (t->desc.op == QN_OP_ATTENTION && i > 0 && t->desc.attr[QN_ATTR_CAUSAL].i) {
            args.in[i].shape.dims[0] -= BATCH - 1 - row;
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            const int axis = m_axis(&t->out[i]); /* -1: one for all rows, and given */
            if (axis >= 0) {
                args.out[i].shape.dims[axis] = 1;
            }
            alone[i] = calloc(1, t->out_bytes[i] + 64);
            args.out[i] = qn_mut_view_make(alone[i], &args.out[i].shape);
        }
    }
    run_plan(plan, &args, 1, NULL, text);
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            int64_t strides[QN_MAX_DIMS];
            strides_of(&t->out[i], 0, strides);
            const int axis = m_axis(&t->out[i]);
            const qn_shape *one = &args.out[i].shape;
            /* rows along the first axis are contiguous; along the last, one element each */
            const int64_t size = qn_format_get_info(one->format)->block_bytes, count = qn_shape_elements(one);
            for (int64_t e = 0; e < count; e++) {
                const char *in_batch =
                    (const char *)batch[i] + (axis == 0 ? row * strides[0] + e * size : e * strides[0] + row * size);
                if (t->out[i].ndim == 1) {
                    in_batch = (const char *)batch[i] + (axis < 0 ? e : row) * size;
                }
                if (memcmp(in_batch, (const char *)alone[i] + e * size, (size_t)size) != 0) {
                    fail_msg("%s, %s: row %lld, element %lld of output %d differs alone", qn_plan_kernel(plan), text,
                             (long long)row, (long long)e, i);
                }
            }
            free(alone[i]);
        }
    }
}

static void rows_do_not_know_their_batch(void **state)
{
    (void)state;
    qn_kernel_info k;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof batch_cases / sizeof *batch_cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(batch_cases[c], &desc, &error), &error, batch_cases[c]);
            tensors t;
            qn_plan *plan = NULL;
            if (desc.op != k.op) {
                continue;
            }
            if (tensors_make(batch_cases[c], k.name, 0, &t, &plan)) {
                void *batch[QN_MAX_OUT] = {NULL};
                for (int o = 0; o < t.info->out_count; o++) {
                    batch[o] = calloc(1, t.out_bytes[o] + 1);
                }
                const qn_args args = dense_args(&t, batch);
                run_plan(plan, &args, BATCH, NULL, batch_cases[c]);
                for (int64_t row = 0; row < BATCH; row += 4) {
                    compare_row(&t, plan, batch, row, batch_cases[c]);
                }
                for (int o = 0; o < QN_MAX_OUT; o++) {
                    free(batch[o]);
                }
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

/* A kernel's outputs from one input, bit for bit those of the reference. */
static void same_bits(const char *text, const char *kernel, const void *x, float scalar)
{
    qn_error error = {0};
    qn_plan *plans[2];
    void *out[2][QN_MAX_OUT] = {{NULL}};
    tensors t;
    memset(&t, 0, sizeof t);
    must(qn_op_desc_parse(text, &t.desc, &error), &error, text);
    must(qn_op_desc_check(&t.desc, t.out, &t.sizes, &error), &error, text);
    t.info = qn_op_get_info(t.desc.op);
    for (int p = 0; p < 2; p++) {
        qn_plan_options options;
        qn_plan_options_init(&options);
        options.backend = p ? QN_BACKEND_REF : QN_BACKEND_CPU;
        options.kernel = p ? NULL : kernel;
        must(qn_plan_create(ctx, &t.desc, &options, &plans[p], &error), &error, text);
        for (int i = 0; i < t.info->out_count; i++) {
            if (t.out[i].format) {
                must(qn_shape_bytes(&t.out[i], &t.out_bytes[i], &error), &error, text);
                out[p][i] = calloc(1, t.out_bytes[i] + 1);
            }
        }
        qn_args args = dense_args(&t, out[p]);
        args.in[0].data = x;
        args.in[1].data = &scalar;
        run_plan(plans[p], &args, t.sizes.m, NULL, text);
        qn_plan_destroy(plans[p]);
    }
    for (int i = 0; i < t.info->out_count; i++) {
        for (size_t b = 0; b < t.out_bytes[i]; b++) {
            const uint8_t got = ((uint8_t *)out[0][i])[b], want = ((uint8_t *)out[1][i])[b];
            if (got != want) {
                fail_msg("%s, %s: byte %zu of output %d is 0x%02x, expected 0x%02x", kernel, text, b, i, got, want);
            }
        }
        free(out[0][i]);
        free(out[1][i]);
    }
}

#define OCTAVES 20 /* of magnitudes a row, 128 each: e4m3 ends 18 below the largest */

/* Row r: the largest magnitude has significand 128 + r, the others are all of 8 bits below it. */
static uint16_t *quotients_make(void)
{
    uint16_t *const x = calloc(128 * 128 * OCTAVES, sizeof *x);
    for (int r = 0; r < 128; r++) {
        for (int i = 0; i < 128 * OCTAVES; i++) {
            const uint16_t top = (uint16_t)(0x3f80 + r), bits = (uint16_t)(0x3f80 + i % 128 - i / 128 * 0x80);
            x[r * 128 * OCTAVES + i] = (uint16_t)((bits > top ? top : bits) | (i % 3 == 0 ? 0x8000 : 0));
        }
    }
    return x;
}

/* x / s rounded to a code: ties are met only where the quotient is right to the last bit. */
static void quotients_of_eight_bits_are_exact(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "quantize_fp8 m=128 k=2560 granularity=token x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=token type=e5m2 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=token type=e4m3fnuz x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=group group=2560 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=group scale_format=ue8m0 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=block x=bf16",
        "quantize_int8 m=128 k=2560 granularity=group group=2560 x=bf16",
        "quantize_mxfp4 m=128 k=2560 rule=even x=bf16",
        "quantize_nvfp4 m=128 k=2560 x=bf16 global_scale=1",
    };
    static const float globals[] = {900.0f, 1e-3f, 1e6f, 3e9f, 1e30f}; /* from the third on, codes are held to 6 */
    uint16_t *const x = quotients_make();
    qn_kernel_info k;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
            for (size_t g = 0; desc.op == k.op && g < (k.op == QN_OP_QUANTIZE_NVFP4 ? 5 : 1); g++) {
                same_bits(cases[c], k.name, x, globals[g]);
            }
        }
    }
    free(x);
}

/* Outputs too large for the caches take another way to memory. */
static void large_outputs_are_the_same(void **state)
{
    (void)state;
    qn_kernel_info k;
    static const char *const cases[] = {
        "quantize_fp8 m=4100 k=4111 x=bf16", /* rows at every alignment */
        "quantize_fp8 m=2050 k=8256 granularity=group x=bf16",
        "quantize_fp8 m=2050 k=8256 granularity=block x=bf16",
        "quantize_int8 m=2050 k=8256 granularity=token symmetric=0 x=f16",
        "quantize_mxfp4 m=2060 k=16480 x=bf16", /* codes of every other row are not aligned */
        "silu_mul_quant m=2050 k=8256 x=bf16",
        "dequantize m=1100 k=4111 granularity=token",
        "silu_mul m=1100 k=4111 out=f32 x=bf16",
        "dequantize m=1100 k=4112 format=nvfp4",
        "rmsnorm m=1100 k=4111",
        "rope m=1100 k=128 e=33",
    };
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
            tensors t;
            qn_plan *plan = NULL;
            if (desc.op != k.op) {
                continue;
            }
            if (tensors_make(cases[c], k.name, 0, &t, &plan)) {
                void *got[QN_MAX_OUT] = {NULL};
                for (int o = 0; o < t.info->out_count; o++) {
                    got[o] = aligned_alloc(64, t.out_bytes[o] / 64 * 64 + 64);
                }
                const qn_args args = dense_args(&t, got);
                const qn_exec exec = {.pool = pools[0]};
                run_plan(plan, &args, t.sizes.m, &exec, cases[c]);
                judge(&t, got, 0, k.name, cases[c]);
                for (int o = 0; o < QN_MAX_OUT; o++) {
                    free(got[o]);
                }
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

/* The wide sums of int8 wrap like int32, and packed weights give the same bits. */
static void packed_weights_give_the_same_bits(void **state)
{
    (void)state;
    qn_kernel_info k;
    static const char *const cases[] = {
        "scaled_mm m=5 n=37 k=577 out=f32 scale_a=token scale_b=channel",
        "scaled_mm m=9 n=64 k=64 scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1",
        "scaled_mm m=1 n=33 k=1 bias=1 azp_adj=1", "scaled_mm m=3 n=5 k=0 bias=1"};
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases && k.op == QN_OP_SCALED_MM; c++) {
            tensors t;
            qn_plan *plan = NULL;
            if (tensors_make(cases[c], k.name, 0, &t, &plan)) {
                qn_error error = {0};
                const size_t bytes = qn_plan_pack_bytes(plan);
                void *blob = NULL;
                assert_true(bytes > 64);
                assert_int_equal(posix_memalign(&blob, 64, bytes), 0);
                void *got[2][QN_MAX_OUT] = {{calloc(1, t.out_bytes[0] + 1)}, {calloc(1, t.out_bytes[0] + 1)}};
                qn_args args = dense_args(&t, got[0]);
                must(qn_pack(plan, &args, blob, bytes, &error), &error, cases[c]);
                run_plan(plan, &args, t.sizes.m, NULL, cases[c]);
                judge(&t, got[0], 0, k.name, cases[c]);
                args = dense_args(&t, got[1]);
                args.packed = blob;
                for (int s = 0; s < t.info->in_count; s++) {
                    if (t.info->in[s].weight) {
                        args.in[s] = (qn_view){0};
                    }
                }
                run_plan(plan, &args, t.sizes.m, NULL, cases[c]);
                assert_memory_equal(got[0][0], got[1][0], t.out_bytes[0]);
                free(got[0][0]);
                free(got[1][0]);
                free(blob);
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

static int start(void **state)
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

static int stop(void **state)
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

int main(int argc, char **argv)
{
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_on_the_case_table),
        cmocka_unit_test(random_cases_agree),
        cmocka_unit_test(sizes_around_the_tile),
        cmocka_unit_test(special_values_travel_as_in_the_reference),
        cmocka_unit_test(rows_do_not_know_their_batch),
        cmocka_unit_test(quotients_of_eight_bits_are_exact),
        cmocka_unit_test(large_outputs_are_the_same),
        cmocka_unit_test(packed_weights_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
