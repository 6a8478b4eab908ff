/* Plans: every status, the walk over candidates, packed blobs, workspace, and what
 * qn_run must not do (allocate). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <quern/experimental.h>
#include <quern/quern.h>

#include "plan/plan.h"

/* An allocator that counts and fails at one call. */
typedef struct counter {
    long calls, fail_at, live; /* fail_at: 0 never */
} counter;

static void *count_alloc(void *user, size_t size, size_t align)
{
    counter *c = user;
    void *p = NULL;
    if (++c->calls == c->fail_at || posix_memalign(&p, align, size) != 0) {
        return NULL;
    }
    c->live++;
    return p;
}

static void count_release(void *user, void *pointer)
{
    if (pointer) {
        ((counter *)user)->live--;
        free(pointer);
    }
}

static qn_ctx *counted_ctx(counter *c, qn_isa cap)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.allocator = (qn_allocator){c, count_alloc, count_release};
    options.isa_cap = cap;
    qn_ctx *ctx = NULL;
    qn_ctx_create(&options, &ctx, NULL);
    return ctx;
}

/* A context for which this machine has no GPU, whatever it has. */
static qn_ctx *ctx_without_gpu(void)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.cuda_library = "libno-driver.so";
    qn_ctx *ctx = NULL;
    assert_int_equal(qn_ctx_create(&options, &ctx, NULL), QN_OK);
    return ctx;
}

typedef struct problem {
    qn_op_desc desc;
    qn_args args;
    void *in[QN_MAX_IN], *out[QN_MAX_OUT];
} problem;

static problem problem_make(const char *text)
{
    problem p;
    memset(&p, 0, sizeof p);
    qn_error error = {0};
    qn_shape out[QN_MAX_OUT];
    assert_int_equal(qn_op_desc_parse(text, &p.desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&p.desc, out, NULL, &error), QN_OK);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (p.desc.in[i].format) {
            size_t bytes;
            assert_int_equal(qn_shape_bytes(&p.desc.in[i], &bytes, &error), QN_OK);
            p.in[i] = calloc(1, bytes + 64);
            p.args.in[i] = qn_view_make(p.in[i], &p.desc.in[i]);
        }
    }
    assert_int_equal(qn_case_fill(&p.desc, 7, 0, p.in, &error), QN_OK);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (out[i].format) {
            size_t bytes;
            assert_int_equal(qn_shape_bytes(&out[i], &bytes, &error), QN_OK);
            p.out[i] = calloc(1, bytes + 64);
            p.args.out[i] = qn_mut_view_make(p.out[i], &out[i]);
        }
    }
    return p;
}

static void problem_free(problem *p)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(p->in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(p->out[i]);
    }
}

static void *aligned(size_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, bytes + 64), 0);
    return p;
}

static qn_plan *plan_for(qn_ctx *ctx, const qn_op_desc *desc)
{
    qn_plan *plan = NULL;
    qn_error error = {0};
    if (qn_plan_create(ctx, desc, NULL, &plan, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    return plan;
}

static void creation_refuses_with_the_right_status(void **state)
{
    (void)state;
    qn_ctx *const ctx = ctx_without_gpu();
    qn_error error = {0};
    problem p = problem_make("dense_mm m=2 n=8 k=16");
    qn_plan *plan = (qn_plan *)&error;
    assert_int_equal(qn_plan_create(ctx, NULL, NULL, &plan, &error), QN_E_ARGUMENT);
    assert_null(plan);
    assert_int_equal(qn_plan_create(NULL, &p.desc, NULL, &plan, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_plan_create(ctx, &p.desc, NULL, NULL, &error), QN_E_ARGUMENT);
    qn_plan_options o;
    qn_plan_options_init(&o);
    o.size = 1;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_ARGUMENT);
    qn_plan_options_init(&o);
    o.backend = (qn_backend)9;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_ARGUMENT);
    qn_plan_options_init(&o);
    o.isa = (qn_isa)99;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_ARGUMENT);
    qn_plan_options_init(&o);
    o.backend = QN_BACKEND_CUDA;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_DEVICE);
    assert_non_null(strstr(error.text, "cuda"));
    qn_plan_options_init(&o);
    o.kernel = "qn_no_such_kernel";
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_UNSUPPORTED);
    qn_plan_options_init(&o);
    o.isa = QN_ISA_AMX;
    qn_kernel_info info;
    const qn_status amx = qn_plan_create(ctx, &p.desc, &o, &plan, &error);
    if (amx == QN_OK) {
        print_message("skipped refusal of amx: this machine has it\n");
        qn_plan_destroy(plan);
    } else {
        assert_int_equal(amx, QN_E_DEVICE);
        assert_non_null(strstr(error.text, "isa amx"));
    }
    assert_int_equal(qn_kernel_at(ctx, 100000, &info), QN_E_ARGUMENT);
    assert_int_equal(qn_kernel_at(ctx, -1, &info), QN_E_ARGUMENT);
    qn_op_desc bad = p.desc;
    bad.in[1].dims[1] = 15;
    assert_int_equal(qn_plan_create(ctx, &bad, NULL, &plan, &error), QN_E_SHAPE);
    bad = p.desc;
    bad.in[1].format = QN_I32;
    assert_int_equal(qn_plan_create(ctx, &bad, NULL, &plan, &error), QN_E_FORMAT);
    qn_plan_destroy(NULL);
    problem_free(&p);
    qn_ctx_destroy(ctx);
}

static void levels_and_backends_are_obeyed(void **state)
{
    (void)state;
    qn_error error = {0};
    problem p = problem_make("dense_mm m=2 n=8 k=16");
    for (int cap = QN_ISA_SCALAR; cap <= QN_ISA_AVX512; cap++) {
        counter c = {0};
        qn_ctx *ctx = counted_ctx(&c, (qn_isa)cap);
        qn_plan *plan = plan_for(ctx, &p.desc);
        assert_true(qn_plan_backend(plan) == QN_BACKEND_CPU);
        char want[32];
        snprintf(want, sizeof want, "__%s_", qn_isa_name((qn_isa)cap));
        qn_kernel_info info = {0};
        for (int32_t i = 0; qn_kernel_at(ctx, i, &info) == QN_OK && strcmp(info.name, qn_plan_kernel(plan)) != 0; i++) {
        }
        assert_true((int)info.isa <= cap);
        if (!strstr(qn_plan_kernel(plan), want)) {
            print_message("skipped level %s: not on this machine\n", qn_isa_name((qn_isa)cap));
        }
        qn_plan_destroy(plan);
        qn_plan_options o;
        qn_plan_options_init(&o);
        o.isa = (qn_isa)(cap + 1);
        assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_E_DEVICE);
        qn_ctx_destroy(ctx);
        assert_int_equal(c.live, 0);
    }
    counter c = {0};
    qn_ctx *ctx = counted_ctx(&c, QN_ISA_MAX);
    qn_plan_options o;
    qn_plan_options_init(&o);
    o.isa = QN_ISA_SCALAR;
    qn_plan *plan;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_OK);
    assert_non_null(strstr(qn_plan_kernel(plan), "__scalar_"));
    qn_plan_destroy(plan);
    o.backend = QN_BACKEND_REF;
    assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &plan, &error), QN_OK);
    assert_true(qn_plan_backend(plan) == QN_BACKEND_REF);
    assert_string_equal(qn_plan_kernel(plan), "qn_dense_mm__ref");
    qn_plan_destroy(plan);
    qn_ctx_destroy(ctx);
    problem_free(&p);
}

/* A kernel that does not suit the processor is taken by its name or its level, and by nobody else. */
static void unsuited_kernels_wait_to_be_asked(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    problem p = problem_make("block_scaled_mm m=2 n=128 k=128");
    qn_plan *plan = plan_for(ctx, &p.desc);
    const qn_kernel *kernel;
    int found = 0;
    for (int32_t i = 0; (kernel = qn_backend_cpu_row.kernel_at(i)); i++) {
        const char *reason = qn_backend_cpu_row.unsuited(kernel);
        if (!reason || kernel->op != p.desc.op || qn_backend_kernel_refusal(&qn_backend_cpu_row, ctx, kernel) ||
            kernel->accepts(kernel, &p.desc)) {
            continue;
        }
        found++;
        assert_string_not_equal(qn_plan_kernel(plan), kernel->name);
        char text[8192];
        size_t length;
        assert_int_equal(qn_explain(ctx, &p.desc, NULL, text, sizeof text, &length, &error), QN_OK);
        assert_non_null(strstr(text, reason));
        for (int by_name = 0; by_name < 2; by_name++) {
            qn_plan_options o;
            qn_plan_options_init(&o);
            o.kernel = by_name ? kernel->name : NULL;
            o.isa = by_name ? QN_ISA_MAX : kernel->isa;
            qn_plan *asked;
            assert_int_equal(qn_plan_create(ctx, &p.desc, &o, &asked, &error), QN_OK);
            assert_string_equal(qn_plan_kernel(asked), kernel->name);
            qn_plan_destroy(asked);
        }
    }
    if (!found) {
        print_message("skipped: every kernel that runs on this machine suits it\n");
    }
    qn_plan_destroy(plan);
    problem_free(&p);
    qn_ctx_destroy(ctx);
}

static void run_checks_its_arguments(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    problem p = problem_make("dense_mm m=3 n=8 k=17 out=f32");
    qn_plan *plan = plan_for(ctx, &p.desc);
    const size_t bytes = qn_plan_workspace_bytes(plan, 3, 1);
    assert_true(bytes > 0);
    char *ws = aligned(bytes);
    assert_int_equal(qn_run(plan, &p.args, ws, bytes, NULL, &error), QN_OK);
    assert_int_equal(qn_run(NULL, &p.args, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_run(plan, NULL, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_run(plan, &p.args, ws, bytes - 1, NULL, &error), QN_E_WORKSPACE);
    assert_int_equal(qn_run(plan, &p.args, NULL, bytes, NULL, &error), QN_E_WORKSPACE);
    assert_int_equal(qn_run(plan, &p.args, ws + 8, bytes + 8, NULL, &error), QN_E_ALIGNMENT);
    qn_args a = p.args;
    a.in[0].data = NULL;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    a = p.args;
    a.in[0].data = (const char *)a.in[0].data + 1;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ALIGNMENT);
    a = p.args;
    a.in[0].strides[0] = 18 * 4 + 2;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ALIGNMENT);
    a = p.args;
    a.in[0].strides[0] = -64;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    a = p.args;
    a.out[0].strides[0] = 4;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    a = p.args;
    a.out[0].data = p.in[1];
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "overlaps"));
    a = p.args;
    a.in[0].shape.format = QN_BF16;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_FORMAT);
    a = p.args;
    a.in[2] = a.in[0];
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_FORMAT);
    a = p.args;
    a.out[0].shape.format = QN_BF16;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_FORMAT);
    a = p.args;
    a.in[1].shape.dims[0] = 7;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_SHAPE);
    a = p.args;
    a.out[0].shape.dims[0] = 2;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_E_SHAPE);
    a = p.args;
    a.in[0].shape.dims[0] = 0;
    a.out[0].shape.dims[0] = 0;
    memset(p.out[0], 0x5A, 8);
    assert_int_equal(qn_run(plan, &a, NULL, 0, NULL, &error), QN_OK);
    assert_int_equal(*(unsigned char *)p.out[0], 0x5A);
    a.in[0].shape.dims[0] = 1; /* fewer rows than the plan's */
    a.out[0].shape.dims[0] = 1;
    assert_int_equal(qn_run(plan, &a, ws, bytes, NULL, &error), QN_OK);
    free(ws);
    qn_plan_destroy(plan);
    problem_free(&p);
    p = problem_make("grouped_block_scaled_mm m=9 n=33 k=70 e=3");
    plan = plan_for(ctx, &p.desc);
    const size_t more = qn_plan_workspace_bytes(plan, 9, 1);
    ws = aligned(more);
    ((int32_t *)p.in[4])[1] = 1000;
    assert_int_equal(qn_run(plan, &p.args, ws, more, NULL, &error), QN_E_ARGUMENT);
    free(ws);
    qn_plan_destroy(plan);
    problem_free(&p);
    qn_ctx_destroy(ctx);
}

static void stale_blobs_are_refused(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    problem p = problem_make("scaled_mm m=3 n=8 k=70"), q = problem_make("scaled_mm m=3 n=9 k=70");
    problem d = problem_make("dense_mm m=3 n=8 k=70 b=f16");
    qn_plan *plan = plan_for(ctx, &p.desc), *other = plan_for(ctx, &q.desc), *dense = plan_for(ctx, &d.desc);
    const size_t bytes = qn_plan_pack_bytes(plan), room = 4096 + bytes + qn_plan_pack_bytes(other);
    char *blob = aligned(room), *ws = aligned(1 << 20);
    assert_int_equal(qn_pack(plan, &p.args, blob, bytes - 1, &error), QN_E_WORKSPACE);
    assert_int_equal(qn_pack(plan, &p.args, blob + 8, bytes, &error), QN_E_ALIGNMENT);
    assert_int_equal(qn_pack(plan, &q.args, blob, bytes, &error), QN_E_SHAPE);
    assert_int_equal(qn_pack(plan, &p.args, NULL, bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pack(dense, &d.args, blob, room, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_plan_pack_bytes(dense), 0);
    assert_int_equal(qn_pack(plan, &p.args, blob, bytes, &error), QN_OK);
    p.args.packed = q.args.packed = d.args.packed = blob;
    assert_int_equal(qn_run(plan, &p.args, ws, 1 << 20, NULL, &error), QN_OK);
    assert_int_equal(qn_run(other, &q.args, ws, 1 << 20, NULL, &error), QN_E_PACKED);
    assert_int_equal(qn_run(dense, &d.args, ws, 1 << 20, NULL, &error), QN_E_PACKED);
    for (size_t at = 0; at < 32; at += 4) { /* magic, version, layout, fingerprint, size */
        blob[at] = (char)(blob[at] ^ 1);
        assert_int_equal(qn_run(plan, &p.args, ws, 1 << 20, NULL, &error), QN_E_PACKED);
        blob[at] = (char)(blob[at] ^ 1);
    }
    p.args.packed = blob + 4;
    assert_int_equal(qn_run(plan, &p.args, ws, 1 << 20, NULL, &error), QN_E_ALIGNMENT);
    free(blob);
    free(ws);
    qn_plan_destroy(plan);
    qn_plan_destroy(other);
    qn_plan_destroy(dense);
    problem_free(&p);
    problem_free(&q);
    problem_free(&d);
    qn_ctx_destroy(ctx);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    problem p = problem_make("dense_mm m=3 n=8 k=17");
    for (long n = 1;; n++) {
        counter c = {0};
        qn_ctx *ctx = counted_ctx(&c, QN_ISA_MAX);
        const long before = c.live;
        qn_error error = {0};
        qn_plan_options o;
        qn_plan_options_init(&o);
        o.kernel = "qn_dense_mm__ref";
        qn_plan *plan = NULL;
        qn_pool *pool = NULL;
        double value;
        c.fail_at = c.calls + n;
        const qn_status made = qn_plan_create(ctx, &p.desc, &o, &plan, &error);
        const qn_status pooled = qn_pool_create(ctx, 3, &pool, &error);
        const qn_status measured =
            n > 5 ? QN_OK : qn_ceiling_measure(ctx, "fp32_fma", QN_ISA_SCALAR, NULL, &value, &error);
        assert_true(made == QN_OK || (made == QN_E_MEMORY && !plan));
        assert_true(pooled == QN_OK || (pooled == QN_E_MEMORY && !pool));
        assert_true(measured == QN_OK || measured == QN_E_MEMORY);
        const int failed = made != QN_OK || pooled != QN_OK || measured != QN_OK;
        qn_pool_destroy(pool);
        qn_plan_destroy(plan);
        assert_int_equal(c.live, before);
        qn_ctx_destroy(ctx);
        assert_int_equal(c.live, 0);
        if (!failed) {
            assert_true(n > 3);
            break;
        }
    }
    problem_free(&p);
}

static void run_allocates_nothing(void **state)
{
    (void)state;
    counter c = {0};
    qn_ctx *ctx = counted_ctx(&c, QN_ISA_MAX);
    qn_pool *pool = NULL;
    assert_int_equal(qn_pool_create(ctx, 2, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    int32_t bench;
    const char *text;
    for (int32_t i = 0; (text = qn_case_at(i, &bench)); i += 3) {
        if (bench) {
            continue;
        }
        problem p = problem_make(text);
        qn_plan *plan = plan_for(ctx, &p.desc);
        qn_sizes sizes;
        assert_int_equal(qn_op_desc_check(&p.desc, NULL, &sizes, NULL), QN_OK);
        const size_t bytes = qn_plan_workspace_bytes(plan, sizes.m, 2);
        void *ws = aligned(bytes);
        qn_error error = {0};
        const long calls = c.calls;
        if (qn_run(plan, &p.args, ws, bytes, &exec, &error) != QN_OK) {
            fail_msg("%s: %s", text, error.text);
        }
        assert_int_equal(c.calls, calls);
        free(ws);
        qn_plan_destroy(plan);
        problem_free(&p);
    }
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
    assert_int_equal(c.live, 0);
}

/* A product that is added to other rows: the bits of both by themselves; the product is not written. */
static void sums_are_those_of_two_runs(void **state)
{
    (void)state;
    int32_t bench, taken = 0;
    const char *text;
    for (qn_isa isa = QN_ISA_SCALAR; isa <= QN_ISA_AMX; isa++) {
        qn_ctx *ctx = counted_ctx(&(counter){0}, isa);
        for (int32_t i = 0; (text = qn_case_at(i, &bench)); i++) {
            if (bench) {
                continue;
            }
            problem p = problem_make(text);
            qn_plan *plan = plan_for(ctx, &p.desc);
            const int64_t m = p.args.out[0].shape.dims[0], n = p.args.out[0].shape.dims[1], stride = n + 5;
            qn_error error = {0};
            if (m * n == 0 || !qn_plan_takes_next(plan, NULL)) {
                qn_plan_destroy(plan);
                problem_free(&p);
                continue;
            }
            const size_t bytes = qn_plan_workspace_bytes(plan, m, 1), all = (size_t)(m * stride) * sizeof(float);
            void *const ws = aligned(bytes);
            float *const want = aligned(all), *const got = aligned(all), *const product = p.out[0];
            for (int64_t j = 0; j < m * stride; j++) {
                want[j] = got[j] = (float)(j * 37 % 101 - 50) * 0.3f;
            }
            qn_checked checked;
            assert_int_equal(qn_plan_check_run(plan, &p.args, ws, bytes, NULL, &checked, &error), QN_OK);
            assert_int_equal(qn_plan_run_checked(plan, &checked, &p.args, ws, NULL, &error), QN_OK);
            for (int64_t j = 0; j < m * n; j++) {
                want[j / n * stride + j % n] += product[j];
                product[j] = 7.0f;
            }
            qn_mut_view sum = qn_mut_view_make(got, &p.args.out[0].shape);
            sum.strides[0] = stride * (int64_t)sizeof(float);
            qn_plan_run_sum(plan, &checked, &p.args, &sum, ws, NULL);
            for (int64_t j = 0; j < m * n; j++) {
                assert_true(product[j] == 7.0f);
            }
            if (memcmp(got, want, all) != 0) {
                fail_msg("%s: %s", qn_plan_kernel(plan), text);
            }
            taken++;
            free(ws);
            free(want);
            free(got);
            qn_plan_destroy(plan);
            problem_free(&p);
        }
        qn_ctx_destroy(ctx);
    }
    assert_true(taken > 20);
}

static void explain_tells_the_choice(void **state)
{
    (void)state;
    qn_ctx *const ctx = ctx_without_gpu();
    qn_error error = {0};
    problem p = problem_make("scaled_mm m=3 n=8 k=70");
    qn_plan *plan = plan_for(ctx, &p.desc);
    char text[4096], small[16];
    size_t length = qn_plan_explain(plan, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, qn_plan_kernel(plan)));
    assert_non_null(strstr(text, "refused  cuda"));
    assert_non_null(strstr(text, "case: scaled_mm"));
    assert_non_null(strstr(text, "packing: layout 262"));
    assert_int_equal(qn_plan_explain(plan, small, sizeof small), length);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_int_equal(qn_plan_explain(plan, NULL, 0), length);
    qn_plan_options o;
    qn_plan_options_init(&o);
    o.backend = QN_BACKEND_CUDA;
    assert_int_equal(qn_explain(ctx, &p.desc, &o, text, sizeof text, &length, &error), QN_OK);
    assert_non_null(strstr(text, "chosen: none"));
    /* sizes that no machine has are explained, not computed with */
    qn_op_desc huge;
    if (qn_op_desc_parse("dense_mm m=1000000000 n=1000000000 k=1000000000", &huge, &error) == QN_OK) {
        assert_int_equal(qn_explain(ctx, &huge, NULL, text, sizeof text, &length, &error), QN_OK);
    }
    assert_true(qn_doctor(ctx, text, sizeof text) > 0);
    assert_non_null(strstr(text, "isa scalar: yes"));
    qn_plan_destroy(plan);
    problem_free(&p);
    qn_ctx_destroy(ctx);
}

static void names_of_kernels_are_unique(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    qn_kernel_info a, b;
    for (int32_t i = 0; qn_kernel_at(ctx, i, &a) == QN_OK; i++) {
        for (int32_t j = i + 1; qn_kernel_at(ctx, j, &b) == QN_OK; j++) {
            assert_string_not_equal(a.name, b.name);
        }
        const char *op = qn_op_get_info(a.op)->name;
        assert_int_equal(strncmp(a.name + 3, op, strlen(op)), 0);
    }
    qn_ctx_destroy(ctx);
}

/* A workspace for at most m rows is one for fewer, with every kernel of every backend. */
static void a_workspace_serves_fewer_rows(void **state)
{
    (void)state;
    const qn_backend_row *const backends[] = {&qn_backend_ref_row, &qn_backend_cpu_row, &qn_backend_cuda_row};
    static const int64_t rows[] = {1,  2,   3,   4,   5,   8,   9,   16,  17,  31,   32,   33,   64,  65,
                                   96, 127, 128, 129, 256, 257, 512, 513, 700, 1024, 1500, 2048, 4096};
    const char *text;
    int32_t bench;
    for (int32_t c = 0; (text = qn_case_at(c, &bench)) != NULL; c++) {
        qn_op_desc desc;
        assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
        for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
            const qn_kernel *kernel;
            for (int32_t i = 0; (kernel = backends[b]->kernel_at(i)); i++) {
                if (kernel->op != desc.op || !kernel->workspace_bytes || kernel->accepts(kernel, &desc)) {
                    continue;
                }
                size_t before = 0;
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                    const size_t bytes = kernel->workspace_bytes(kernel, &desc, rows[r], 2);
                    if (bytes < before) {
                        fail_msg("%s, %s: %zu bytes for %lld rows, %zu for fewer", kernel->name, text, bytes,
                                 (long long)rows[r], before);
                    }
                    before = bytes;
                }
            }
        }
    }
}

static void ceilings_have_names(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    double value = 0;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_ceiling_measure(ctx, "fp32_fma", QN_ISA_SCALAR, NULL, &value, &error), QN_OK);
    assert_true(value > 0);
    assert_int_equal(qn_ceiling_measure(ctx, "bf16_dot", QN_ISA_SCALAR, NULL, &value, &error), QN_E_UNSUPPORTED);
    assert_int_equal(qn_ceiling_measure(ctx, "speed", QN_ISA_MAX, NULL, &value, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_ceiling_measure(ctx, NULL, QN_ISA_MAX, NULL, &value, &error), QN_E_ARGUMENT);
    qn_ctx_destroy(ctx);
}

static void a_meter_measures_every_level(void **state)
{
    (void)state;
    static const char *const names[] = {"read", "copy", "fp32_fma", "int8_dot", "int16_dot"};
    counter c = {0};
    qn_ctx *ctx = counted_ctx(&c, QN_ISA_MAX);
    const long before = c.live;
    qn_error error = {0};
    qn_pool *pool = NULL;
    qn_meter *meter = NULL;
    assert_int_equal(qn_pool_create(ctx, 2, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    size_t cache = 1;
    const size_t advised = qn_meter_advise(2, &cache);
    assert_true(advised >= (size_t)256 << 20 && advised <= (size_t)1 << 30);
    assert_true(advised >= 2 * cache || advised == (size_t)1 << 30);
    assert_int_equal(qn_meter_create(ctx, &exec, 3 << 20, &meter, &error), QN_OK);
    int measured = 0;
    for (int isa = 0; isa < QN_ISA_COUNT; isa++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            double first = 0, again = 0;
            const qn_status status = qn_meter_measure(meter, names[i], (qn_isa)isa, &first, &error);
            if (status == QN_E_UNSUPPORTED) {
                assert_true(isa > 0);
                continue;
            }
            assert_int_equal(status, QN_OK);
            assert_int_equal(qn_meter_measure(meter, names[i], (qn_isa)isa, &again, &error), QN_OK);
            assert_true(first > 0 && again > 0);
            measured++;
        }
    }
    assert_true(measured >= 4);
    qn_meter_destroy(meter);
    /* the buffer that cannot be had */
    assert_int_equal(qn_meter_create(ctx, NULL, 0, &meter, &error), QN_OK);
    double value;
    c.fail_at = c.calls + 1;
    assert_int_equal(qn_meter_measure(meter, "read", QN_ISA_SCALAR, &value, &error), QN_E_MEMORY);
    qn_meter_destroy(meter);
    qn_meter_destroy(NULL);
    assert_int_equal(qn_meter_create(NULL, NULL, 0, &meter, &error), QN_E_ARGUMENT);
    assert_null(meter);
    qn_pool_destroy(pool);
    assert_int_equal(c.live, before);
    qn_ctx_destroy(ctx);
}

/* The ceiling follows the kernel that was chosen, not the best the machine has. */
static void a_plan_names_its_ceiling(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *ceiling; /* at level scalar */
    } rows[] = {{"scaled_mm m=1 n=8 k=64", "int8_dot"},
                {"scaled_mm m=1 n=8 k=64 a=f8_e4m3", "fp32_fma"},
                {"dense_mm m=1 n=8 k=64", "fp32_fma"},
                {"rmsnorm m=1 k=64", NULL}};
    qn_ctx *ctx = NULL;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_op_desc desc;
        qn_plan *plan = NULL;
        qn_plan_options o;
        qn_plan_options_init(&o);
        o.isa = QN_ISA_SCALAR;
        assert_int_equal(qn_op_desc_parse(rows[i].text, &desc, NULL), QN_OK);
        assert_int_equal(qn_plan_create(ctx, &desc, &o, &plan, NULL), QN_OK);
        const char *name = qn_plan_ceiling(plan);
        assert_true(rows[i].ceiling ? name && strcmp(name, rows[i].ceiling) == 0 : !name);
        qn_plan_destroy(plan);
    }
    qn_ctx_destroy(ctx);
}

#ifdef __SSE__
static void call_backwards(void *user, int64_t count, qn_task_fn fn, void *task)
{
    (void)user;
    for (int64_t i = count; i > 0; i--) {
        fn(task, i - 1, 0);
    }
}

/* Subnormals, and numbers that round, whatever the threads of the application are set to. */
static void the_callers_rounding_does_not_matter(void **state)
{
    (void)state;
    static const char *const cases[] = {"dense_mm m=9 n=40 k=64 b=f32 out=f32", "silu_mul m=9 k=200 out=f32",
                                        "quantize_int8 m=9 k=64 granularity=token mode=static"};
    enum { MOST = 4096 };
    static float in[3][MOST], out[2][MOST];
    qn_ctx *ctx = ctx_without_gpu();
    const uint32_t before = _mm_getcsr();
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        qn_op_desc desc;
        qn_shape shapes[QN_MAX_OUT] = {{0}};
        qn_sizes sizes;
        qn_args args = {0};
        qn_plan *plan = NULL;
        size_t bytes = 0;
        static _Alignas(64) char workspace[1 << 20];
        assert_int_equal(qn_op_desc_parse(cases[c], &desc, NULL), QN_OK);
        assert_int_equal(qn_op_desc_check(&desc, shapes, &sizes, NULL), QN_OK);
        assert_int_equal(qn_plan_create(ctx, &desc, NULL, &plan, NULL), QN_OK);
        assert_true(qn_plan_workspace_bytes(plan, sizes.m, 1) <= sizeof workspace);
        for (int s = 0; s < 3 && desc.in[s].format; s++) {
            for (int i = 0; i < MOST; i++) {
                in[s][i] = (float)(i * 37 % 101 - 50) * (i % 3 ? 1e-40f : 0.1f);
            }
            args.in[s] = qn_view_make(in[s], &desc.in[s]);
        }
        assert_int_equal(qn_shape_bytes(&shapes[0], &bytes, NULL), QN_OK);
        for (int turn = 0; turn < 3; turn++) { /* as they should be; another rounding; on other threads, too */
            qn_exec exec = {.parallel_for = turn == 2 ? call_backwards : NULL, .threads = 1};
            args.out[0] = qn_mut_view_make(out[turn > 0], &shapes[0]);
            static float more[MOST];
            for (int o = 1; o < QN_MAX_OUT && shapes[o].format; o++) {
                args.out[o] = qn_mut_view_make(more, &shapes[o]);
            }
            memset(out[turn > 0], 0xAA, sizeof out[0]);
            _mm_setcsr(turn ? 0xFFC0u : 0x1F80u); /* towards zero, subnormals are zeros */
            const qn_status status = qn_run(plan, &args, workspace, sizeof workspace, &exec, NULL);
            const uint32_t after = _mm_getcsr();
            _mm_setcsr(before);
            assert_int_equal(status, QN_OK);
            assert_int_equal(after & ~0x3Fu, turn ? 0xFFC0u : 0x1F80u);
            assert_memory_equal(out[turn > 0], out[0], bytes);
        }
        qn_plan_destroy(plan);
    }
    qn_ctx_destroy(ctx);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_refuses_with_the_right_status),
        cmocka_unit_test(levels_and_backends_are_obeyed),
        cmocka_unit_test(unsuited_kernels_wait_to_be_asked),
        cmocka_unit_test(run_checks_its_arguments),
        cmocka_unit_test(stale_blobs_are_refused),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(run_allocates_nothing),
        cmocka_unit_test(sums_are_those_of_two_runs),
        cmocka_unit_test(explain_tells_the_choice),
        cmocka_unit_test(names_of_kernels_are_unique),
        cmocka_unit_test(a_workspace_serves_fewer_rows),
        cmocka_unit_test(ceilings_have_names),
        cmocka_unit_test(a_meter_measures_every_level),
        cmocka_unit_test(a_plan_names_its_ceiling),
#ifdef __SSE__
        cmocka_unit_test(the_callers_rounding_does_not_matter),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
