/* A row of the CUDA registry on a case: operands on host and device with bytes around them, what the reference makes of
 * them, the judgement, a second run and a graph's replay. For programs that take rows on a device (test_cuda_kernels.c)
 * or on the stand-in driver (test_cuda_ptx.c). */
#ifndef QN_TESTS_DEVICE_CASES_H
#define QN_TESTS_DEVICE_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/device.h>
#include <quern/experimental.h>

#include "backend/backend.h"
#include "backend/cuda/cuda.h"

enum { SEED = 7, POISON = 0xA5, BEHIND = 1 << 16 /* bytes behind a workspace */ };

static qn_ctx *ctx;
static void *stream;
static size_t guard = 256; /* bytes before and behind a tensor; 0 where a checker looks for accesses outside of it */
static long repeats;       /* so many runs more of a case, each with the bits of the first */
static int runs, failures;
static double worst; /* of a row: the largest error of what is allowed */
static double slack = 1.0; /* and of it what is, for operands that the error model does not speak of */

/* A tensor on the host and on the device, rows `stride` bytes apart, guard bytes on both sides. */
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

static inline void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static inline int64_t rows_of(const qn_shape *shape)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape->ndim; i++) {
        rows *= shape->dims[i];
    }
    return rows;
}

/* Copy all rows between dense memory and memory with this operand's strides. */
static inline void copy_rows(const operand *o, char *gapped, char *dense, int to_dense)
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

static inline void operand_make(operand *o, const qn_shape *shape)
{
    memset(o, 0, sizeof *o);
    o->shape = *shape;
    assert_int_equal(qn_shape_bytes(shape, &o->dense_bytes, NULL), QN_OK);
    o->dense = calloc(1, o->dense_bytes + 1);
    assert_non_null(o->dense);
}

/* Lay the operand out with that gap between rows and shift of its start, on host and device. */
static inline void operand_place(operand *o, size_t gap, size_t shift, const char *what)
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
    o->host = malloc(o->bytes + 2 * guard + 1);
    assert_non_null(o->host);
    memset(o->host, POISON, o->bytes + 2 * guard);
    void *memory = NULL;
    must(qn_device_alloc(ctx, o->bytes + 2 * guard + shift, &memory, &error), &error, what);
    o->device = (char *)memory + shift;
}

static inline void operand_send(operand *o, const char *what)
{
    qn_error error = {0};
    must(qn_device_copy_in(ctx, o->device, o->host, o->bytes + 2 * guard, stream, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
}

static inline void operand_remove(operand *o)
{
    if (o->device) {
        qn_device_free(ctx, o->device - o->shift);
    }
    free(o->host);
    o->device = o->host = NULL;
}

/* Operands of a case, zeros. */
static inline void problem_shape(problem *p, const char *text)
{
    qn_error error = {0};
    memset(p, 0, sizeof *p);
    must(qn_op_desc_parse(text, &p->desc, &error), &error, text);
    must(qn_op_desc_check(&p->desc, p->out_shape, &p->sizes, &error), &error, text);
    p->info = qn_op_get_info(p->desc.op);
    for (int i = 0; i < p->info->in_count; i++) {
        if (p->desc.in[i].format) {
            operand_make(&p->in[i], &p->desc.in[i]);
        }
    }
    for (int i = 0; i < p->info->out_count; i++) {
        if (p->out_shape[i].format) {
            operand_make(&p->out[i], &p->out_shape[i]);
        }
    }
}

/* What the reference makes of the inputs. */
static inline void problem_want(problem *p, const char *text)
{
    qn_error error = {0};
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (p->in[i].dense) {
            args.in[i] = qn_view_make(p->in[i].dense, &p->desc.in[i]);
        }
    }
    for (int i = 0; i < p->info->out_count; i++) {
        if (p->out[i].dense) {
            p->want[i] = p->want[i] ? p->want[i] : malloc(p->out[i].dense_bytes + 1);
            assert_non_null(p->want[i]);
            memset(p->want[i], POISON, p->out[i].dense_bytes + 1); /* rows that are kept, as in the device's outputs */
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

/* Without what is wanted: only the bits of one run may be those of another. */
static inline void problem_fill(problem *p, const char *text, int exact)
{
    qn_error error = {0};
    void *in[QN_MAX_IN] = {NULL};
    problem_shape(p, text);
    for (int i = 0; i < QN_MAX_IN; i++) {
        in[i] = p->in[i].dense;
    }
    must(qn_case_fill(&p->desc, SEED, exact, in, &error), &error, text);
}

/* The first eight rows of k floats with what no other test has: infinities, NaN, numbers near the ends of f32, zeros. */
static inline void odd_rows(float *x, int64_t k)
{
    x[0 * k + 5] = INFINITY;
    x[1 * k + 7] = -INFINITY;
    x[1 * k + 60] = INFINITY;
    x[2 * k + 33] = NAN;
    x[3 * k + 40] = 3e38f;
    x[4 * k + 2] = 1e-38f;
    memset(x + 5 * k, 0, (size_t)k * sizeof *x);
    for (int64_t e = 0; e < k; e++) {
        x[6 * k + e] *= 1e-33f;
        x[7 * k + e] *= 1e30f;
    }
}

static inline void problem_make(problem *p, const char *text, int exact)
{
    problem_fill(p, text, exact);
    problem_want(p, text);
}

static inline void problem_free(problem *p)
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
static inline void fetch(problem *p, const char *what)
{
    qn_error error = {0};
    for (int i = 0; i < p->info->out_count; i++) {
        operand *o = &p->out[i];
        if (!o->device) {
            continue;
        }
        char *before = malloc(o->bytes + 2 * guard + 1);
        assert_non_null(before);
        memset(before, POISON, o->bytes + 2 * guard);
        must(qn_device_copy_out(ctx, o->host, o->device, o->bytes + 2 * guard, stream, &error), &error, what);
        must(qn_stream_sync(ctx, stream, &error), &error, what);
        copy_rows(o, o->host + guard, o->dense, 1);
        copy_rows(o, before + guard, o->dense, 0);
        if (memcmp(before, o->host, o->bytes + 2 * guard) != 0) {
            WRONG("%s: output %s: bytes outside its rows were written", what, p->info->out[i].name);
        }
        free(before);
    }
}

/* Nothing where nothing is wanted. */
static inline void judge(problem *p, const qn_plan *plan, int exact, const char *what)
{
    int wanted = 0;
    for (int i = 0; i < QN_MAX_OUT; i++) {
        wanted |= p->want[i] != NULL;
    }
    if (!wanted) {
        return;
    }
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
    if (!(r.max_error <= slack)) {
        WRONG("%s: error %g of the allowed; output %d element %lld is %.9g, expected %.9g", what, r.max_error, r.slot,
              (long long)r.index, r.got, r.want);
    }
}

/* Swizzled scales have no rows to put apart. */
static inline int may_stride(const problem *p)
{
    return p->desc.op != QN_OP_QUANTIZE_NVFP4 || !p->desc.attr[QN_ATTR_SWIZZLED].i;
}

static inline void poison_outputs(problem *p, const char *what)
{
    qn_error error = {0};
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (p->out[i].device) {
            must(qn_device_fill(ctx, p->out[i].device, POISON, p->out[i].bytes + 2 * guard, stream, &error), &error,
                 what);
        }
    }
}

static inline void compare_bits(problem *p, char *const first[QN_MAX_OUT], const char *what)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (first[i] && memcmp(first[i], p->out[i].dense, p->out[i].dense_bytes) != 0) {
            WRONG("%s: output %d differs from the first run's", what, i);
        }
    }
}

/* What a run more left of an output, guards included, against what the first one did: whether it differs. */
static inline int differs(operand *o, const char *name, char *image, long run, const char *what)
{
    if (memcmp(image, o->host, o->bytes + 2 * guard) == 0) {
        return 0;
    }
    const size_t unit = (size_t)qn_format_get_info(o->shape.format)->block_bytes;
    char *const found = malloc(o->dense_bytes + 1);
    size_t count = 0;
    assert_non_null(found);
    copy_rows(o, image + guard, found, 1);
    for (size_t i = 0; i < o->dense_bytes / unit; i++) {
        if (memcmp(found + i * unit, o->dense + i * unit, unit) == 0 || count++ >= 8) {
            continue;
        }
        print_error("run %ld, output %s, element %zu: expected 0x", run, name, i);
        for (size_t b = unit; b > 0; b--) {
            print_error("%02x", (unsigned char)o->dense[i * unit + b - 1]);
        }
        print_error(", found 0x");
        for (size_t b = unit; b > 0; b--) {
            print_error("%02x", (unsigned char)found[i * unit + b - 1]);
        }
        print_error("\n");
    }
    WRONG("%s: run %ld: %zu of %zu elements of output %s differ from the first run's%s", what, run, count,
          o->dense_bytes / unit, name, count ? "" : ", but bytes outside its rows");
    free(found);
    return 1;
}

/* `count` runs more, one behind the other, each with outputs of its own, as many at a time as there is room for; every
 * second one takes weights for constant. No more after MOST_TOLD that differ. */
static inline void run_again(problem *p, const qn_plan *plan, const qn_args *args, void *workspace, size_t bytes,
                             long count, const char *what)
{
    enum { MOST_AT_A_TIME = 64, ROOM = 1 << 24, MOST_TOLD = 16 };
    qn_error error = {0};
    qn_args own = *args;
    size_t each[QN_MAX_OUT] = {0}, all = 1;
    void *device[QN_MAX_OUT] = {NULL};
    char *host[QN_MAX_OUT] = {NULL};
    for (int i = 0; i < p->info->out_count; i++) {
        each[i] = p->out[i].device ? (p->out[i].bytes + 2 * guard + p->out[i].shift + 255) / 256 * 256 : 0;
        all += each[i];
    }
    const size_t room = ROOM / all < 1 ? 1 : ROOM / all > MOST_AT_A_TIME ? MOST_AT_A_TIME : ROOM / all;
    const long at_a_time = count < (long)room ? count : (long)room;
    long done = 0, told = 0;
    for (int i = 0; i < p->info->out_count; i++) {
        if (each[i]) {
            must(qn_device_alloc(ctx, each[i] * (size_t)at_a_time, &device[i], &error), &error, what);
            host[i] = malloc(each[i] * (size_t)at_a_time);
            assert_non_null(host[i]);
        }
    }
    for (; done < count && told < MOST_TOLD; done += at_a_time) {
        const long some = count - done < at_a_time ? count - done : at_a_time;
        for (int i = 0; i < p->info->out_count; i++) {
            must(qn_device_fill(ctx, device[i], POISON, each[i] * (size_t)some, stream, &error), &error, what);
        }
        for (long r = 0; r < some; r++) {
            const qn_exec exec = {.stream = stream, .constant_weights = (int32_t)(r % 2)};
            for (int i = 0; i < p->info->out_count; i++) {
                own.out[i].data = each[i] ? (char *)device[i] + (size_t)r * each[i] + p->out[i].shift + guard : NULL;
            }
            must(qn_run(plan, &own, workspace, bytes, &exec, &error), &error, what);
        }
        for (int i = 0; i < p->info->out_count; i++) {
            must(qn_device_copy_out(ctx, host[i], device[i], each[i] * (size_t)some, stream, &error), &error, what);
        }
        must(qn_stream_sync(ctx, stream, &error), &error, what);
        for (long r = 0; r < some; r++) {
            for (int i = 0; i < p->info->out_count; i++) {
                char *const image = host[i] + (size_t)r * each[i] + p->out[i].shift;
                told += each[i] && differs(&p->out[i], p->info->out[i].name, image, done + r, what);
            }
        }
    }
    done = done < count ? done : count;
    printf("%s: %ld runs more, %ld results of them with other bits\n", what, done, told);
    runs += (int)done;
    for (int i = 0; i < p->info->out_count; i++) {
        qn_device_free(ctx, device[i]);
        free(host[i]);
    }
}

static inline qn_plan *plan_of(const qn_kernel *kernel, const char *text, const qn_op_desc *desc)
{
    qn_plan_options options;
    qn_plan *plan = NULL;
    qn_error error = {0};
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    options.kernel = kernel->name;
    must(qn_plan_create(ctx, desc, &options, &plan, &error), &error, text);
    return plan;
}

static inline void place_operands(problem *p, size_t gap, size_t shift, qn_args *args, const char *what)
{
    memset(args, 0, sizeof *args);
    for (int i = 0; i < p->info->in_count + p->info->out_count; i++) {
        const int is_in = i < p->info->in_count, slot = is_in ? i : i - p->info->in_count;
        operand *o = is_in ? &p->in[slot] : &p->out[slot];
        if (!o->dense) {
            continue;
        }
        const size_t unit = (size_t)qn_format_get_info(o->shape.format)->block_bytes;
        operand_place(o, may_stride(p) ? gap * unit : 0, shift * unit, what);
        if (is_in) {
            copy_rows(o, o->host + guard, o->dense, 0);
            args->in[slot].data = o->device + guard;
            args->in[slot].shape = o->shape;
            memcpy(args->in[slot].strides, o->strides, sizeof o->strides);
        } else {
            args->out[slot].data = o->device + guard;
            args->out[slot].shape = o->shape;
            memcpy(args->out[slot].strides, o->strides, sizeof o->strides);
        }
        operand_send(o, what);
    }
}

static inline void remove_operands(problem *p)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        operand_remove(&p->out[i]);
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        operand_remove(&p->in[i]);
    }
}

/* Twice more in a graph: the same bits, also where the second may read weights early. */
static inline void replay(problem *p, const qn_plan *plan, const qn_args *args, void *workspace, size_t bytes,
                          const char *what)
{
    char *first[QN_MAX_OUT] = {NULL};
    void *graph = NULL;
    qn_error error = {0};
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (p->out[i].dense) {
            first[i] = malloc(p->out[i].dense_bytes + 1);
            memcpy(first[i], p->out[i].dense, p->out[i].dense_bytes);
        }
    }
    poison_outputs(p, what);
    const qn_exec constant = {.stream = stream, .constant_weights = 1};
    must(qn_graph_begin(ctx, stream, &error), &error, what);
    must(qn_run(plan, args, workspace, bytes, &constant, &error), &error, what);
    must(qn_run(plan, args, workspace, bytes, &constant, &error), &error, what);
    must(qn_graph_end(ctx, stream, &graph, &error), &error, what);
    must(qn_graph_launch(ctx, graph, stream, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
    fetch(p, what);
    compare_bits(p, first, what);
    runs += 2;
    qn_graph_destroy(ctx, graph);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(first[i]);
    }
}

/* Nothing behind the workspace may have changed. */
static inline void look_behind(const char *workspace, size_t bytes, const char *what)
{
    qn_error error = {0};
    unsigned char *const found = malloc(BEHIND);
    assert_non_null(found);
    must(qn_device_copy_out(ctx, found, workspace + bytes, BEHIND, stream, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
    size_t i = 0;
    while (i < BEHIND && found[i] == POISON) {
        i++;
    }
    if (i < BEHIND) {
        WRONG("%s: byte %zu behind a workspace of %zu was written", what, i, bytes);
    }
    free(found);
}

/* One layout of the operands: run, judge, replay. Once: one run, of which rows with an aligned gap take weights for
 * constant, and a workspace as it is allotted, so that a checker sees what is read of it before it is written. A wrong
 * result's case runs again, which tells whether it comes again and all that differs: the judge names the worst. */
static inline void run_layout(problem *p, const qn_plan *plan, size_t gap, size_t shift, int exact, int once,
                              const char *what)
{
    qn_error error = {0};
    qn_args args;
    void *workspace = NULL;
    place_operands(p, gap, shift, &args, what);
    const size_t bytes = qn_plan_workspace_bytes(plan, p->sizes.m, 1);
    if (bytes || !once) {
        must(qn_device_alloc(ctx, bytes + (once ? 0 : BEHIND), &workspace, &error), &error, what);
    }
    if (!once) {
        must(qn_device_fill(ctx, workspace, 0xFF, bytes, stream, &error), &error, what);
        must(qn_device_fill(ctx, (char *)workspace + bytes, POISON, BEHIND, stream, &error), &error, what);
    }
    const qn_exec exec = {.stream = stream, .constant_weights = once && gap && !shift};
    must(qn_run(plan, &args, workspace, bytes, &exec, &error), &error, what);
    must(qn_stream_sync(ctx, stream, &error), &error, what);
    const int before = failures;
    fetch(p, what);
    judge(p, plan, exact, what);
    runs++;
    const long more = failures > before && repeats < 4 ? 4 : repeats;
    if (more) {
        run_again(p, plan, &args, workspace, bytes, more, what);
    }
    if (!once && !repeats) {
        replay(p, plan, &args, workspace, bytes, what);
    }
    if (!once) {
        look_behind(workspace, bytes, what);
    }
    qn_device_free(ctx, workspace);
    remove_operands(p);
}

#endif
