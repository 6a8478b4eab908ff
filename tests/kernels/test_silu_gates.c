/* silu_mul at every level this machine has, gates of all sizes beside each other: groups of steps whose gates need no
 * limit next to others that do (kernels/cpu/rows.h: VEC_NEAR), up to where a power leaves f32 and beyond, where large
 * factors make up for it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "format/format.h"

enum { GATES = 4099, STRETCH = 128 }; /* elements of one limit; no multiple of a step */

static qn_ctx *ctx;
static _Alignas(64) uint8_t x[2 * GATES * 4], workspace[1 << 20];
static float want[GATES], got[GATES];

/* A stretch has gates up to its own limit, 40 to 200: near ones, ones that are held, both. */
static float gate_at(int i)
{
    const float most = 40.0f + (float)(i / STRETCH * 23 % 161);
    return most * (float)(i * 37 % 257 - 128) / 128.0f;
}

static void fill(int format)
{
    for (int i = 0; i < 2 * GATES; i++) {
        const float up = format == 1 || i % 3 ? 0.25f + (float)(i % 16) : ldexpf(1.3f, i * 5 % 127);
        const float v = i < GATES ? gate_at(i) : up;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        const uint16_t half = format == 2 ? (uint16_t)(bits >> 16) : qn_f32_to_f16(v);
        if (format == 0) {
            memcpy(x + i * 4, &v, 4);
        } else {
            memcpy(x + i * 2, &half, 2);
        }
    }
}

/* 0: the machine lacks the level. */
static int run(const char *text, qn_backend backend, qn_isa isa, float *y)
{
    qn_error error = {0};
    qn_op_desc desc;
    qn_shape shapes[QN_MAX_OUT];
    qn_sizes sizes;
    qn_args args;
    qn_plan *plan = NULL;
    qn_plan_options options;
    memset(&args, 0, sizeof args);
    memset(shapes, 0, sizeof shapes);
    qn_plan_options_init(&options);
    options.backend = backend;
    options.isa = isa;
    assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, shapes, &sizes, &error), QN_OK);
    if (qn_plan_create(ctx, &desc, &options, &plan, &error) != QN_OK) {
        return 0;
    }
    args.in[0] = qn_view_make(x, &desc.in[0]);
    args.out[0] = qn_mut_view_make(y, &shapes[0]);
    memset(y, 0xAA, sizeof want);
    assert_true(qn_plan_workspace_bytes(plan, sizes.m, 1) <= sizeof workspace);
    assert_int_equal(qn_run(plan, &args, workspace, sizeof workspace, NULL, &error), QN_OK);
    qn_plan_destroy(plan);
    return 1;
}

static void gates_of_all_sizes(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "f16", "bf16"};
    static const qn_isa levels[] = {QN_ISA_SCALAR, QN_ISA_AVX2, QN_ISA_AVX512};
    for (int f = 0; f < 3; f++) {
        char text[64];
        snprintf(text, sizeof text, "silu_mul m=1 k=%d out=f32 x=%s", GATES, formats[f]);
        fill(f);
        assert_true(run(text, QN_BACKEND_REF, QN_ISA_SCALAR, want));
        for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
            if (!run(text, QN_BACKEND_CPU, levels[l], got)) {
                continue;
            }
            for (int i = 0; i < GATES; i++) {
                if (got[i] != want[i] && !(fabsf(got[i] - want[i]) <= 0x1p-20f * fabsf(want[i]) + 0x1p-149f)) {
                    fail_msg("%s, %s: gate %g gives %g, expected %g", text, qn_isa_name(levels[l]), (double)gate_at(i),
                             (double)got[i], (double)want[i]);
                }
            }
        }
    }
}

static int setup(void **state)
{
    (void)state;
    return qn_ctx_create(NULL, &ctx, NULL) != QN_OK;
}

static int teardown(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gates_of_all_sizes)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
