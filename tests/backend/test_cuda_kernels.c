/* Every row of the CUDA registry on a device, against the reference: the shared case
 * table on the exact grid bit for bit and on random values within the error model;
 * outputs poisoned, bytes around them kept; dense, strided and off 16-byte
 * boundaries; two runs and a graph's replays the same bits. Without a device the
 * test is skipped and says why.
 *
 *   test_cuda_kernels [WORD [TESTS]]   only cases whose text holds the word, only tests of that name (with * and ?) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/device.h>
#include <quern/experimental.h>

#include "backend/backend.h"
#include "backend/cuda/cuda.h"
#include "base/clock.h"
#include "op/random_cases.h"

enum { SEED = 7, GUARD = 256, POISON = 0xA5, MOST_WORK = 1 << 26 };

static qn_ctx *ctx;
static void *stream;
static const char *word;
static int runs, rows_met, failures;
static double worst; /* of a row: the largest error of what is allowed */

/* A tensor on the host and on the device, rows `stride` bytes apart, GUARD bytes on both sides. */
typedef struct operand {
    qn_shape shape;
    int64_t strides[QN_MAX_DIMS];
    size_t bytes; /* with gaps, without guards */
    char *host;   /* as the device has it, guards included */
    char *dense;  /* host, no gaps */
    size_t dense_bytes;
    char *device; /* of the guard before */
    size_t shift; /* bytes off the allocation's alignment */
} operand;

typedef struct problem {
    qn_op_desc desc;
    const qn_op_info *info;
    qn_shape out_shape[QN_MAX_OUT];
    qn_sizes sizes;
    operand in[QN_MAX_IN], out[QN_MAX_OUT];
    char *want[QN_MAX_OUT];
} problem;

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static qn_ctx_options ctx_options(void)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.cache_dir = getenv("QN_TEST_KERNEL_CACHE");
    options.cubin_dir = getenv("QN_TEST_CUBINS");
    return options;
}

static int64_t rows_of(const qn_shape *shape)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape->ndim; i++) {
        rows *= shape->dims[i];
    }
    return rows;
}

/* Copy all rows between dense memory and memory with this operand's strides. */
static void copy_rows(const operand *o, char *gapped, char *dense, int to_dense)
{
    size_t row = 0;
    assert_int_equal(
        qn_format_row_bytes(o->shape.format, o->shape.dims[o->shape.ndim > 0 ? o->shape.ndim - 1 : 0], &row, NULL),
        QN_OK);
    for (int64_t r = 0; r < rows_of(&o->shape); r++) {
        int64_t at = 0, rest = r;
        for (int i = o->shape.ndim - 2; i >= 0; i--) {
            at += rest % o->shape.dims[i] * o->strides[i];
            rest /= o->shape.dims[i];
        }
        memcpy(to_dense ? dense + (size_t)r * row : gapped + at, to_dense ? gapped + at : dense + (size_t)r * row, row);
    }
}

static void operand_make(operand *o, const qn_shape *shape)
{
    memset(o, 0, sizeof *o);
    o->shape = *shape;
    assert_int_equal(qn_shape_bytes(shape, &o->dense_bytes, NULL), QN_OK);
    o->dense = calloc(1, o->dense_bytes + 1);
    assert_non_null(o->dense);
}

/* Lay the operand out with that gap between rows and shift of its start, on host and device. */
static void operand_place(operand *o, size_t gap, size_t shift, const char *what)
{
    size_t row = 0;
    qn_error error = {0};
    const int n = o->shape.ndim;
    assert_int_equal(qn_format_row_bytes(o->shape.format, o->shape.dims[n > 0 ? n - 1 : 0], &row, NULL), QN_OK);
    int64_t stride = (int64_t)(row + (n > 1 ? gap : 0));
    o->bytes = n > 1 ? (size_t)stride : o->dense_bytes;
    for (int i = n - 2; i >= 0; i--) {
        o->strides[i] = stride;
        stride *= o->shape.dims[i];
        o->bytes = (size_t)stride;
    }
    o->shift = shift;
    o->host = malloc(o->bytes + 2 * GUARD);
    assert_non_null(o->host);
    memset(o->host, POISON, o->bytes + 2 * GUARD);
    void *memory = NULL;
    must(qn_device_alloc(ctx, o->bytes + 2 * GUARD + shift, &memory, &error), &error, what);
    o->device = (char *)memory + shift;
}

static void operand_send(operand *o, const char *what)
{
    qn_error error = {0};
    must(qn_device_copy_in(ctx, o->device, o->host, o->bytes + 2 * GUARD, stream, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
}

static void operand_remove(operand *o)
{
    if (o->device) {
        qn_device_free(ctx, o->device - o->shift);
    }
    free(o->host);
    o->device = o->host = NULL;
}

static void problem_make(problem *p, const char *text, int exact)
{
    qn_error error = {0};
    memset(p, 0, sizeof *p);
    must(qn_op_desc_parse(text, &p->desc, &error), &error, text);
    must(qn_op_desc_check(&p->desc, p->out_shape, &p->sizes, &error), &error, text);
    p->info = qn_op_get_info(p->desc.op);
    void *in[QN_MAX_IN] = {NULL};
    for (int i = 0; i < p->info->in_count; i++) {
        if (p->desc.in[i].format) {
            operand_make(&p->in[i], &p->desc.in[i]);
            in[i] = p->in[i].dense;
        }
    }
    must(qn_case_fill(&p->desc, SEED, exact, in, &error), &error, text);
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (in[i]) {
            args.in[i] = qn_view_make(in[i], &p->desc.in[i]);
        }
    }
    for (int i = 0; i < p->info->out_count; i++) {
        if (p->out_shape[i].format) {
            operand_make(&p->out[i], &p->out_shape[i]);
            p->want[i] = calloc(1, p->out[i].dense_bytes + 1);
            args.out[i] = qn_mut_view_make(p->want[i], &p->out_shape[i]);
        }
    }
    qn_plan_options options;
    qn_plan *plan = NULL;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    must(qn_plan_create(ctx, &p->desc, &options, &plan, &error), &error, text);
    const size_t bytes = qn_plan_workspace_bytes(plan, p->sizes.m, 1);
    void *workspace = NULL;
    assert_int_equal(posix_memalign(&workspace, 64, bytes + 64), 0);
    must(qn_run(plan, &args, workspace, bytes, NULL, &error), &error, text);
    free(workspace);
    qn_plan_destroy(plan);
}

static void problem_free(problem *p)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(p->in[i].dense);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(p->out[i].dense);
        free(p->want[i]);
    }
}

/* A note that does not end the test, so that one run on a device tells everything. */
#define WRONG(...)                                                                                                     \
    do {                                                                                                               \
        failures++;                                                                                                    \
        print_error(__VA_ARGS__);                                                                                      \
        print_error("\n");                                                                                             \
    } while (0)

/* Fetch the outputs into `dense`; nothing outside their rows may have changed. */
static void fetch(problem *p, const char *what)
{
    qn_error error = {0};
    for (int i = 0; i < p->info->out_count; i++) {
        operand *o = &p->out[i];
        if (!o->device) {
            continue;
        }
        char *before = malloc(o->bytes + 2 * GUARD);
        assert_non_null(before);
        memset(before, POISON, o->bytes + 2 * GUARD);
        must(qn_device_copy_out(ctx, o->host, o->device, o->bytes + 2 * GUARD, stream, &error), &error, what);
        must(qn_stream_sync(ctx, stream, &error), &error, what);
        copy_rows(o, o->host + GUARD, o->dense, 1);
        copy_rows(o, before + GUARD, o->dense, 0);
        if (memcmp(before, o->host, o->bytes + 2 * GUARD) != 0) {
            WRONG("%s: output %s: bytes outside its rows were written", what, p->info->out[i].name);
        }
        free(before);
    }
}

static void judge(problem *p, const qn_plan *plan, int exact, const char *what)
{
    qn_view want[QN_MAX_OUT], got[QN_MAX_OUT], in[QN_MAX_IN];
    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    memset(in, 0, sizeof in);
    for (int i = 0; i < p->info->in_count; i++) {
        if (p->desc.in[i].format) {
            in[i] = qn_view_make(p->in[i].dense, &p->desc.in[i]);
        }
    }
    for (int i = 0; i < p->info->out_count; i++) {
        if (p->out_shape[i].format) {
            want[i] = qn_view_make(p->want[i], &p->out_shape[i]);
            got[i] = qn_view_make(p->out[i].dense, &p->out_shape[i]);
        }
    }
    qn_case_result r;
    qn_error error = {0};
    must(qn_plan_judge(plan, want, got, in, exact, &r, &error), &error, what);
    worst = r.max_error > worst ? r.max_error : worst;
    if (!r.pass) {
        WRONG("%s: error %g of the allowed; output %d element %lld is %.9g, expected %.9g", what, r.max_error, r.slot,
              (long long)r.index, r.got, r.want);
    }
}

/* Swizzled scales have no rows to put apart. */
static int may_stride(const problem *p)
{
    return p->desc.op != QN_OP_QUANTIZE_NVFP4 || !p->desc.attr[QN_ATTR_SWIZZLED].i;
}

static void poison_outputs(problem *p, const char *what)
{
    qn_error error = {0};
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (p->out[i].device) {
            must(qn_device_fill(ctx, p->out[i].device, POISON, p->out[i].bytes + 2 * GUARD, stream, &error), &error,
                 what);
        }
    }
}

static void compare_bits(problem *p, char *const first[QN_MAX_OUT], const char *what)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (first[i] && memcmp(first[i], p->out[i].dense, p->out[i].dense_bytes) != 0) {
            WRONG("%s: output %d differs from the first run's", what, i);
        }
    }
}

/* One layout of the operands: run, judge, run again, replay in a graph. */
static void run_layout(problem *p, const qn_plan *plan, size_t gap, size_t shift, int exact, const char *what)
{
    qn_error error = {0};
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < p->info->in_count + p->info->out_count; i++) {
        const int is_in = i < p->info->in_count, slot = is_in ? i : i - p->info->in_count;
        operand *o = is_in ? &p->in[slot] : &p->out[slot];
        if (!o->dense) {
            continue;
        }
        const size_t unit = (size_t)qn_format_get_info(o->shape.format)->block_bytes;
        operand_place(o, may_stride(p) ? gap * unit : 0, shift * unit, what);
        if (is_in) {
            copy_rows(o, o->host + GUARD, o->dense, 0);
            args.in[slot].data = o->device + GUARD;
            args.in[slot].shape = o->shape;
            memcpy(args.in[slot].strides, o->strides, sizeof o->strides);
        } else {
            args.out[slot].data = o->device + GUARD;
            args.out[slot].shape = o->shape;
            memcpy(args.out[slot].strides, o->strides, sizeof o->strides);
        }
        operand_send(o, what);
    }
    void *workspace = NULL, *graph = NULL;
    const size_t bytes = qn_plan_workspace_bytes(plan, p->sizes.m, 1);
    if (bytes) {
        must(qn_device_alloc(ctx, bytes, &workspace, &error), &error, what);
        must(qn_device_fill(ctx, workspace, 0xFF, bytes, stream, &error), &error, what);
    }
    const qn_exec exec = {.stream = stream};
    must(qn_run(plan, &args, workspace, bytes, &exec, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
    fetch(p, what);
    judge(p, plan, exact, what);
    char *first[QN_MAX_OUT] = {NULL};
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (p->out[i].dense) {
            first[i] = malloc(p->out[i].dense_bytes + 1);
            memcpy(first[i], p->out[i].dense, p->out[i].dense_bytes);
        }
    }
    poison_outputs(p, what);
    const qn_exec constant = {.stream = stream, .constant_weights = 1}; /* the second may read them early */
    must(qn_graph_begin(ctx, stream, &error), &error, what);
    must(qn_run(plan, &args, workspace, bytes, &constant, &error), &error, what);
    must(qn_run(plan, &args, workspace, bytes, &constant, &error), &error, what);
    must(qn_graph_end(ctx, stream, &graph, &error), &error, what);
    must(qn_graph_launch(ctx, graph, stream, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
    fetch(p, what);
    compare_bits(p, first, what);
    runs += 3;
    qn_graph_destroy(ctx, graph);
    qn_device_free(ctx, workspace);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(first[i]);
        operand_remove(&p->out[i]);
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        operand_remove(&p->in[i]);
    }
}

static void run_case(const qn_kernel *kernel, const char *text, const qn_op_desc *desc)
{
    qn_plan_options options;
    qn_plan *plan = NULL;
    qn_error error = {0};
    char what[512];
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    options.kernel = kernel->name;
    must(qn_plan_create(ctx, desc, &options, &plan, &error), &error, text);
    for (int exact = 0; exact < 2; exact++) {
        static const size_t gaps[] = {0, 16, 3}, shifts[] = {0, 0, 1}; /* in elements */
        problem p;
        problem_make(&p, text, exact);
        for (size_t l = 0; l < 3; l++) {
            snprintf(what, sizeof what, "%s, %s, %s, gap %zu, shift %zu", kernel->name, text,
                     exact ? "exact" : "random", gaps[l], shifts[l]);
            run_layout(&p, plan, gaps[l], shifts[l], exact, what);
        }
        problem_free(&p);
    }
    qn_plan_destroy(plan);
}

static void rows_agree_with_the_reference(void **state)
{
    (void)state;
    qn_error error = {0};
    qn_device_info info;
    if (qn_device_get_info(ctx, &info, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        skip();
    }
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        if (qn_cuda_kernel_refusal(ctx, kernel)) {
            printf("%s: skipped: %s\n", kernel->name, qn_cuda_kernel_refusal(ctx, kernel));
            continue;
        }
        const char *text;
        int32_t bench;
        const int before = runs, failed = failures;
        worst = 0.0;
        for (int32_t c = 0; (text = qn_case_at(c, &bench)) != NULL; c++) {
            qn_op_desc desc;
            qn_case_cost cost;
            assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
            assert_int_equal(qn_case_get_cost(&desc, &cost, NULL), QN_OK);
            if (desc.op == kernel->op && cost.flops < MOST_WORK && cost.bytes < MOST_WORK &&
                (!word || strstr(text, word)) && !kernel->accepts(kernel, &desc)) {
                run_case(kernel, text, &desc);
            }
        }
        rows_met++;
        printf("%s: %d runs on %s, %d wrong, the largest error %.3g of the allowed\n", kernel->name, runs - before,
               info.name, failures - failed, worst);
    }
    qn_stream_destroy(ctx, stream);
    assert_true(rows_met > 0 && (runs > 0 || word));
    assert_int_equal(failures, 0);
}

/* Every row of an operator on cases drawn at random; QN_TEST_CASES: how many of an operator, QN_TEST_SEED. */
static void random_cases_agree(void **state)
{
    (void)state;
    const char *const many = getenv("QN_TEST_CASES"), *const seed = getenv("QN_TEST_SEED");
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = 1 << (many ? 26 : 22)};
    qn_error error = {0};
    qn_device_info info;
    if (qn_device_get_info(ctx, &info, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        skip();
    }
    const int before = failures, first = runs;
    worst = 0.0;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (int c = many ? atoi(many) : 2; c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char text[512];
            qn_op_desc desc;
            const qn_kernel *kernel;
            random_case(&r, qn_op_at(o), text, sizeof text);
            must(qn_op_desc_parse(text, &desc, &error), &error, text);
            for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
                if (kernel->op == desc.op && (!word || strstr(text, word)) && !qn_cuda_kernel_refusal(ctx, kernel) &&
                    !kernel->accepts(kernel, &desc)) {
                    run_case(kernel, text, &desc);
                }
            }
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("random cases: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* A tuned cut as its line names it, on a card of so many multiprocessors (0: all): few make blocks go on from tile to
 * tile. */
static void run_cut(qn_cuda *cuda, const char *text, int32_t strip, const int32_t *value, int32_t sms)
{
    const qn_cuda_device kept = cuda->device;
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, out, &sizes, NULL), QN_OK);
    cuda->device.tuned_count = value != NULL;
    cuda->device.tuned[0] =
        (qn_tuned){.n = (int32_t)sizes.n, .k = (int32_t)sizes.k, .m = (int32_t)sizes.m, .strip = strip};
    if (value) {
        memcpy(cuda->device.tuned[0].value, value, sizeof cuda->device.tuned[0].value);
    }
    cuda->device.sms = sms ? sms : kept.sms;
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        if (kernel->op == desc.op && kernel->sums == QN_SUMS_FP8_MMA && !kernel->accepts(kernel, &desc)) {
            run_case(kernel, text, &desc);
        }
    }
    cuda->device = kept;
}

/* The device, if it is one that has tiles and bulk copies; else the test is skipped. */
static qn_cuda *need_hopper(void)
{
    qn_cuda *cuda;
    qn_error error = {0};
    if (qn_cuda_require(ctx, &cuda, &error) != QN_OK || cuda->device.target != QN_SM_90A) {
        printf("skipped: %s\n", *error.text ? error.text : "the device is no sm_90a");
        skip();
    }
    return cuda;
}

/* Small cases choose few of the cuts that there are: all of them here. */
static void every_cut_agrees(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t strip, value[9];
    } cuts[] = {
        {"block_scaled_mm m=600 n=392 k=272", 0, {256, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {192, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {192, 128, 1}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 192, 1}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 160, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 64, 0}},
        {"block_scaled_mm m=900 n=392 k=200", 0, {256, 128, 0}},
        {"block_scaled_mm m=900 n=392 k=200", 0, {192, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=100", 0, {256, 128, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {256, 128, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {192, 128, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {192, 128, 1}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {128, 192, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 64, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 96, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 128, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 96, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 192, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 64, 0, 1, 2}},
        {"block_scaled_mm m=60 n=392 k=656 scale_layout=col out=f16", 0, {64, 48, 0, 1, 3}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 128, 1, 1, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 96, 0, 1, 4}},
        {"block_scaled_mm m=100 n=392 k=1040 out=f32", 0, {128, 128, 0, 1, 2}},
        {"block_scaled_mm m=100 n=392 k=1040", 0, {128, 192, 0, 1, 3}},
        {"block_scaled_mm m=128 n=264 k=1040 scale_layout=col", 0, {128, 128, 0, 1, 8}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 0, 2, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 1, 2, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {1, 2, 4, 1, 6, 2, 2, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {2, 1, 2, 2, 3, 1, 2, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {3, 4, 2, 1, 4, 1, 1, 1, 1}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 3, 1, 9, 1, 2, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {1, 4, 1, 2, 4, 1, 2, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {2, 2, 2, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {1, 2, 2, 2, 3, 2, 1, 0, 2}},
        {"block_scaled_mm m=60 n=392 k=1040", 1, {1, 1, 1, 1, 9, 1, 1, 0, 4}},
        {"block_scaled_mm m=60 n=392 k=272", 1, {1, 1, 2, 1, 4, 1, 1, 0, 3}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {2, 1, 2, 2, 3, 1, 1, 0, 2}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 3, 1, 9, 1, 1, 0, 2}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {3, 1, 1, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=1040", 1, {1, 1, 1, 1, 13, 1, 1, 0, 3}},
        {"block_scaled_mm m=60 n=392 k=656 out=f16", 1, {2, 1, 1, 1, 13, 1, 1, 0, 2}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {2, 1, 1, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 1, 2, 4, 1, 1, 0, 2}},
        {"block_scaled_mm m=10 n=392 k=656", 1, {1, 1, 2, 1, 6, 2, 2, 0, 2}},
        {"block_scaled_mm m=10 n=392 k=656", 1, {2, 2, 3, 2, 4, 2, 2, 0, 1}},
    };
    static const char *const groups[] = {
        "grouped_block_scaled_mm m=900 n=392 k=272 e=3",
        "grouped_block_scaled_mm m=600 n=136 k=656 e=2 out=f16",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2 out=f32",
        "grouped_block_scaled_mm m=300 n=392 k=272 e=3 layout=masked",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2 layout=masked",
        "grouped_block_scaled_mm m=400 n=120 k=656 e=2 layout=masked out=f32",
        "grouped_block_scaled_mm m=200 n=520 k=656 e=2 layout=masked scale_layout=col",
        "grouped_block_scaled_mm m=700 n=200 k=400 e=5 layout=masked", /* tiles of several heights */
        "grouped_block_scaled_mm m=256 n=200 k=200 e=5 layout=masked", /* results leave out of all stages of a tile */
        "grouped_block_scaled_mm m=1500 n=392 k=200 e=3",
        "grouped_block_scaled_mm m=40 n=64 k=656 e=3 layout=masked", /* one multiprocessor: teams */
        "grouped_block_scaled_mm m=60 n=64 k=400 e=2"};
    static const int32_t cards[] = {0, 1, 5};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (size_t c = 0; c < 2 && (!word || strstr(cuts[i].text, word)); c++) {
            run_cut(cuda, cuts[i].text, cuts[i].strip, cuts[i].value, cards[c]);
        }
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(groups[i], word)); c++) {
            run_cut(cuda, groups[i], 0, NULL, cards[c]);
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("cuts: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before, worst);
    assert_int_equal(failures, before);
}

/* Small cases take few of the ways that products of 16-bit floats, E8P12's runs, and vector-quantised weights' tiles
 * with many rows of x are dealt: cards of few multiprocessors more. */
static void every_deal_agrees(void **state)
{
    (void)state;
    static const char *const cases[] = {"dense_mm m=300 n=392 k=264 x=bf16 b=bf16 bias=1",
                                        "dense_mm m=600 n=200 k=200 x=f16 b=f16 out=f32",
                                        "dense_mm m=130 n=520 k=328 x=bf16 b=bf16 out=f16",
                                        "dense_mm m=40 n=328 k=1032 x=bf16 b=bf16 out=f32",
                                        "vq_mm m=1 n=6144 k=1024 format=quip_e8p out=f32 SU=1 SV=1",
                                        "vq_mm m=2 n=1024 k=5120 format=quip_e8p SU=1 SV=1",
                                        "vq_mm m=2 n=9000 k=3008 format=gptvq",
                                        "vq_mm m=2 n=1500 k=5056 format=gptvq",
                                        "vq_mm m=40 n=1272 k=1280 out=f32",
                                        "vq_mm m=64 n=1280 k=1280 format=quip_e8p SU=1 SV=1",
                                        "vq_mm m=70 n=600 k=2304 format=gptvq out=f32",
                                        "vq_mm m=140 n=600 k=1792"};
    static const int32_t cards[] = {1, 2, 4, 6, 12};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const qn_cuda_device kept = cuda->device;
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_op_desc desc;
        assert_int_equal(qn_op_desc_parse(cases[i], &desc, NULL), QN_OK);
        const qn_kernel *kernel = desc.op == QN_OP_VQ_MM ? qn_cuda_vq_family.kernels : qn_cuda_dense_mm_family.kernels;
        assert_null(kernel->accepts(kernel, &desc));
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(cases[i], word)); c++) {
            cuda->device.sms = cards[c];
            run_case(kernel, cases[i], &desc);
        }
    }
    cuda->device = kept;
    qn_stream_destroy(ctx, stream);
    printf("deals: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before, worst);
    assert_int_equal(failures, before);
}

/* Tensors with one scale in one launch, on cards of so few multiprocessors that small ones are large: what just fits
 * shared memory, and with it registers, and with them the ring, one slot more, and many; with elements left over. */
static void whole_tensors_agree(void **state)
{
    (void)state;
    static const char *const cases[] = {"quantize_fp8 m=12 k=7680 x=bf16",
                                        "quantize_fp8 m=1 k=153600 type=e5m2 x=f16",
                                        "quantize_fp8 m=24 k=7680 scale_format=ue8m0 x=bf16",
                                        "quantize_fp8 m=25 k=7680 type=e5m2 scale_ub=0.5 x=bf16",
                                        "quantize_fp8 m=61 k=7553",
                                        "quantize_fp8 m=120 k=7553 x=bf16",
                                        "quantize_int8 m=24 k=7681 x=f16",
                                        "quantize_int8 m=61 k=7553 x=bf16",
                                        "quantize_int8 m=33 k=7680 symmetric=0 x=bf16",
                                        "quantize_int8 m=61 k=7553 symmetric=0",
                                        "quantize_int8 m=120 k=7553 symmetric=0 x=f16",
                                        "quantize_nvfp4 m=33 k=15360 x=bf16",
                                        "quantize_nvfp4 m=300 k=3088 x=f16"};
    static const int32_t cards[] = {1, 2, 5};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const qn_cuda_device kept = cuda->device;
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_op_desc desc;
        assert_int_equal(qn_op_desc_parse(cases[i], &desc, NULL), QN_OK);
        const qn_kernel *const kernel = desc.op == QN_OP_QUANTIZE_NVFP4
                                            ? qn_cuda_fp4_family.kernels
                                            : &qn_cuda_quantize_family.kernels[desc.op != QN_OP_QUANTIZE_FP8];
        assert_int_equal(kernel->op, desc.op);
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(cases[i], word)); c++) {
            cuda->device.sms = cards[c];
            run_case(kernel, cases[i], &desc);
        }
    }
    cuda->device = kept;
    qn_stream_destroy(ctx, stream);
    printf("whole tensors: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* Milliseconds until there is a plan of that case in a new context and, in `second`, of another one. */
static double plan_ms(const char *text, double *second)
{
    qn_ctx *fresh;
    qn_op_desc desc;
    qn_error error = {0};
    qn_plan_options options;
    qn_plan *plans[2];
    double ms[2];
    const qn_ctx_options context = ctx_options();
    must(qn_ctx_create(&context, &fresh, &error), &error, "context");
    must(qn_op_desc_parse(text, &desc, &error), &error, text);
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    qn_device_info info;
    must(qn_device_get_info(fresh, &info, &error), &error, "device"); /* opens the driver */
    for (int i = 0; i < 2; i++) {
        const uint64_t start = qn_clock_ns();
        must(qn_plan_create(fresh, &desc, &options, &plans[i], &error), &error, text);
        ms[i] = (double)(qn_clock_ns() - start) * 1e-6;
    }
    qn_plan_destroy(plans[0]);
    qn_plan_destroy(plans[1]);
    qn_ctx_destroy(fresh);
    *second = ms[1];
    return ms[0];
}

/* A plan whose kernels were made before: out of files once, then out of memory. */
static void warm_plans_are_quick(void **state)
{
    (void)state;
    static const char *const texts[] = {"block_scaled_mm m=16 n=4096 k=7168", "nvfp4_mm m=8 n=4096 k=4096 x=bf16",
                                        "quantize_fp8 m=8 k=7168 granularity=group x=bf16"};
    qn_error error = {0};
    qn_device_info info;
    if (qn_device_get_info(ctx, &info, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        skip();
    }
    const int before = failures;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double made, read, again;
        made = plan_ms(texts[i], &again);
        read = plan_ms(texts[i], &again);
        printf("plan of '%s': %.2f ms first, %.2f ms out of files, %.3f ms again\n", texts[i], made, read, again);
        if (again > 5.0) {
            WRONG("%s: a second plan took %.2f ms", texts[i], again);
        }
    }
    assert_int_equal(failures, before);
}

/* Compiled code needs no local memory: asked of the driver, for every function a case needs whose cubin is at hand.
 * Those of cases that are only timed may not be: compiling them all takes minutes, and test_cuda_compile looks at them
 * without a device. */
static void functions_do_not_spill(void **state)
{
    (void)state;
    qn_ctx *made;
    qn_cuda *cuda;
    qn_error error = {0};
    qn_ctx_options options = ctx_options();
    options.jit = QN_JIT_CACHE_ONLY;
    must(qn_ctx_create(&options, &made, &error), &error, "context");
    if (qn_cuda_require(made, &cuda, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        qn_ctx_destroy(made);
        skip();
    }
    const int before = failures;
    const qn_kernel *kernel;
    int functions = 0, absent = 0;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        const char *text;
        int32_t bench;
        const qn_cuda_impl *impl = kernel->impl;
        for (int32_t c = 0; !qn_cuda_kernel_refusal(ctx, kernel) && (text = qn_case_at(c, &bench)) != NULL; c++) {
            static qn_cuda_program programs[QN_CUDA_PROGRAMS];
            qn_op_desc desc;
            assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
            if (desc.op != kernel->op || kernel->accepts(kernel, &desc) || (word && !strstr(text, word))) {
                continue;
            }
            memset(programs, 0, sizeof programs);
            const int32_t count = impl->programs(kernel, &desc, &cuda->device, programs);
            for (int32_t p = 0; p < count; p++) {
                qn_cuda_function f = {0};
                const qn_status status = qn_cuda_function_get(cuda, &programs[p], &f, &error);
                absent += status == QN_E_JIT;
                if (status != QN_E_JIT) {
                    must(status, &error, text);
                    functions++;
                }
                if (f.local_bytes) {
                    WRONG("%s, %s: %s has %d bytes of local memory", kernel->name, text, programs[p].entry,
                          f.local_bytes);
                }
            }
        }
    }
    printf("%d functions looked at, %d skipped: neither shipped nor cached\n", functions, absent);
    qn_ctx_destroy(made);
    assert_true(functions > 0 || word || !(options.cache_dir || options.cubin_dir));
    assert_int_equal(failures, before);
}

static int start(void **state)
{
    (void)state;
    const qn_ctx_options options = ctx_options();
    return qn_ctx_create(&options, &ctx, NULL) == QN_OK ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is stopped has told what it did */
    word = argc > 1 && *argv[1] ? argv[1] : NULL;
    if (argc > 2) {
        cmocka_set_test_filter(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_agree_with_the_reference),
        cmocka_unit_test(random_cases_agree),
        cmocka_unit_test(every_cut_agrees),
        cmocka_unit_test(every_deal_agrees),
        cmocka_unit_test(whole_tensors_agree),
        cmocka_unit_test(warm_plans_are_quick),
        cmocka_unit_test(functions_do_not_spill), /* after it: it looks at what that compiled */
    };
    return cmocka_run_group_tests(tests, start, stop);
}
