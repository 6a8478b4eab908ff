/* Products of 8-bit floats whose weights are subnormal codes in all, in part or not at all, which choose how level
 * avx2 unpacks them (kernels/cpu/panel.h, LOW_ALLOWED): the bits of a row alone, in a batch, and on a thread that
 * flushes subnormals are the same, and where every sum is exact, the reference's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>
#include <quern/experimental.h>
#include <quern/quern.h>

#include "base/rng.h"

#define SEED 20261122u
#define FLUSHES 0x8040u /* of results and of operands: bits of MXCSR */

enum { ROWS = 17, COLS = 37, DEPTH = 320, BLOCKS = (DEPTH + 127) / 128 };

static qn_ctx *ctx;
static qn_rng rng = {SEED};

static uint64_t below(uint64_t n)
{
    return qn_rng_next(&rng) % n;
}

typedef struct product {
    const char *text; /* of a plan for m rows: one %d */
    int mantissas;    /* magnitudes up to it are subnormal */
    int finite;       /* magnitudes below it are finite */
} product;

static const product products[] = {
    {"scaled_mm m=%d n=37 k=320 a=f8_e4m3 scale_a=token scale_b=channel out=f32", 7, 0x7f},
    {"block_scaled_mm m=%d n=37 k=320 out=f32", 7, 0x7f},
    {"block_scaled_mm m=%d n=37 k=320 b=f8_e5m2 out=f32", 3, 0x7c},
};

typedef struct operands {
    uint8_t a[ROWS * DEPTH], b[COLS * DEPTH];
    float scale_a[ROWS * BLOCKS], scale_b[COLS]; /* ones; as many as any of them has */
} operands;

static uint8_t signed_code(uint64_t magnitude)
{
    return (uint8_t)(magnitude | below(2) << 7);
}

/* share: of 256 weights so many are subnormal, and one in sixteen columns. tiny: rows too, so that every sum is exact.
 */
static void fill(operands *o, const product *p, uint64_t share, int tiny)
{
    for (int i = 0; i < ROWS * DEPTH; i++) {
        o->a[i] = signed_code(tiny ? below(8) : below(0x7f));
    }
    for (int i = 0; i < COLS * DEPTH; i++) {
        const uint64_t least = (uint64_t)p->mantissas + 1;
        o->b[i] = signed_code(below(256) < share ? 1 + below(least - 1) : least + below((uint64_t)p->finite - least));
    }
    for (int i = 0; i < COLS; i += 16) {
        o->b[i * DEPTH + (int)below(DEPTH)] = signed_code(1 + below((uint64_t)p->mantissas));
    }
    for (int i = 0; i < ROWS * BLOCKS; i++) {
        o->scale_a[i] = 1.0f;
    }
    for (int i = 0; i < COLS; i++) {
        o->scale_b[i] = 1.0f;
    }
}

static void run(const product *p, const qn_plan_options *options, const operands *o, int row, int m, float *out)
{
    char text[120];
    qn_error error = {0};
    qn_op_desc desc;
    qn_shape shapes[QN_MAX_OUT];
    qn_args args;
    qn_plan *plan = NULL;
    memset(&args, 0, sizeof args);
    memset(shapes, 0, sizeof shapes);
    snprintf(text, sizeof text, p->text, m);
    assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, shapes, NULL, &error), QN_OK);
    const qn_op op = desc.op;
    const int a = qn_op_in_slot(op, "a"), b = qn_op_in_slot(op, "b");
    const int scale_a = qn_op_in_slot(op, "scale_a"), scale_b = qn_op_in_slot(op, "scale_b");
    args.in[a] = qn_view_make(o->a + row * DEPTH, &desc.in[a]);
    args.in[b] = qn_view_make(o->b, &desc.in[b]);
    args.in[scale_a] = qn_view_make(o->scale_a, &desc.in[scale_a]);
    args.in[scale_b] = qn_view_make(o->scale_b, &desc.in[scale_b]);
    args.out[0] = qn_mut_view_make(out, &shapes[0]);
    assert_int_equal(qn_plan_create(ctx, &desc, options, &plan, &error), QN_OK);
    const size_t bytes = (qn_plan_workspace_bytes(plan, m, 1) + 64) / 64 * 64;
    void *workspace = aligned_alloc(64, bytes);
    assert_non_null(workspace);
    assert_int_equal(qn_run(plan, &args, workspace, bytes, NULL, &error), QN_OK);
    free(workspace);
    qn_plan_destroy(plan);
}

static void check(const product *p, const operands *o, int tiny, uint64_t share, const qn_kernel_info *kernel)
{
    static float batch[ROWS * COLS], want[ROWS * COLS], few[4 * COLS];
    qn_plan_options options;
    qn_plan_options_init(&options);
    if (tiny) {
        options.backend = QN_BACKEND_REF;
        run(p, &options, o, 0, ROWS, want);
    }
    options.backend = QN_BACKEND_CPU;
    options.kernel = kernel->name;
    memset(batch, 0xAA, sizeof batch);
    run(p, &options, o, 0, ROWS, batch);
    if (tiny && memcmp(batch, want, sizeof batch) != 0) {
        fail_msg("seed %u, %s, %s, %d of 256 subnormal: not the reference's", SEED, kernel->name, p->text, (int)share);
    }
    for (int m = 1; m <= 4; m++) {
        for (int flush = 0; flush < (kernel->isa == QN_ISA_SCALAR ? 1 : 2); flush++) { /* scalar decodes rows by them */
            memset(few, 0xAA, sizeof few);
#if defined(__x86_64__)
            const unsigned before = _mm_getcsr();
            _mm_setcsr(flush ? before | FLUSHES : before);
#endif
            run(p, &options, o, m, m, few);
#if defined(__x86_64__)
            _mm_setcsr(before);
#endif
            if (memcmp(few, batch + m * COLS, (size_t)(m * COLS) * sizeof *few) != 0) {
                fail_msg("seed %u, %s, %s, %d of 256 subnormal: rows %d to %d differ from the batch's%s", SEED,
                         kernel->name, p->text, (int)share, m, 2 * m - 1, flush ? " on a thread that flushes" : "");
            }
        }
    }
}

static void subnormal_weights_change_no_bit(void **state)
{
    (void)state;
    static const uint64_t shares[] = {0, 128, 256};
    operands *const o = malloc(sizeof *o);
    assert_non_null(o);
    int kernels = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        qn_op_desc desc;
        char text[120];
        qn_error error = {0};
        snprintf(text, sizeof text, products[i].text, ROWS);
        assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
        for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
            for (int tiny = 0; tiny < 2; tiny++) {
                fill(o, &products[i], shares[s], tiny && shares[s] == 256);
                qn_kernel_info k;
                for (int32_t n = 0; qn_kernel_at(ctx, n, &k) == QN_OK; n++) {
                    qn_plan *plan = NULL;
                    qn_plan_options options;
                    qn_plan_options_init(&options);
                    options.backend = QN_BACKEND_CPU;
                    options.kernel = k.name;
                    if (k.op != desc.op || k.backend != QN_BACKEND_CPU || k.refusal ||
                        qn_plan_create(ctx, &desc, &options, &plan, &error) != QN_OK) {
                        continue;
                    }
                    qn_plan_destroy(plan);
                    check(&products[i], o, tiny && shares[s] == 256, shares[s], &k);
                    kernels++;
                }
            }
        }
    }
    free(o);
    assert_true(kernels > 0);
}

static int start(void **state)
{
    (void)state;
    return qn_ctx_create(NULL, &ctx, NULL) == QN_OK ? 0 : 1;
}

static int stop(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(subnormal_weights_change_no_bit)};
    return cmocka_run_group_tests(tests, start, stop);
}
