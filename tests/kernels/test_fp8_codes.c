/* fp8 and e2m1 codes of bf16, bit for bit at every level: each mantissa of the largest magnitude with every element of
 * the 24 binades below it (of e2m1 six, and largest magnitudes of all block scales), so that ties, quotients rounded
 * twice, subnormal codes and zeros are all among them (src/backend/cpu/fp8_steps.c, fp4_steps.c). The table of steps is
 * what the reference's operations make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <quern/quern.h>

#include "backend/cpu/fp8_steps.h"
#include "format/format.h"

enum { MANTISSAS = 128, BINADES = 24, GROUP = 128, BLOCK = 16, INPUTS = 2, OUTPUTS = 3 };
enum { SCALE_BINADES = 22, BLOCKS = 6 * MANTISSAS / (BLOCK - 1) + 2 }; /* of largest magnitudes; of a row, odd */

static qn_ctx *ctx;

/* Elements of magnitudes from the largest down, signs in turn; in groups each begins with the largest. */
static void fill(uint16_t *x, int64_t m, int64_t k, int grouped)
{
    for (int64_t r = 0; r < m; r++) {
        const uint32_t most = (uint32_t)(100 + r % 7 * 9) << 7 | (uint32_t)(r % MANTISSAS);
        for (int64_t i = 0; i < k; i++) {
            const uint32_t down = (uint32_t)((i * 37 + r) % (BINADES * MANTISSAS));
            const uint32_t size = i % (grouped ? GROUP : k) == 0 ? most : (i % 11 == 10 ? 0 : most - down);
            x[r * k + i] = (uint16_t)((i & 1) << 15 | size);
        }
    }
}

static void run(const char *text, const qn_plan_options *options, void *const in[], void *const out[])
{
    qn_error error = {0};
    qn_op_desc desc;
    qn_shape shapes[QN_MAX_OUT];
    qn_sizes sizes;
    qn_args args;
    qn_plan *plan = NULL;
    memset(&args, 0, sizeof args);
    memset(shapes, 0, sizeof shapes);
    assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, shapes, &sizes, &error), QN_OK);
    for (int i = 0; i < INPUTS; i++) {
        if (desc.in[i].format) {
            args.in[i] = qn_view_make(in[i], &desc.in[i]);
        }
    }
    for (int i = 0; i < OUTPUTS; i++) {
        if (shapes[i].format) {
            args.out[i] = qn_mut_view_make(out[i], &shapes[i]);
        }
    }
    assert_int_equal(qn_plan_create(ctx, &desc, options, &plan, &error), QN_OK);
    const size_t bytes = (qn_plan_workspace_bytes(plan, sizes.m, 1) + 64) / 64 * 64;
    void *workspace = aligned_alloc(64, bytes);
    assert_non_null(workspace);
    assert_int_equal(qn_run(plan, &args, workspace, bytes, NULL, &error), QN_OK);
    free(workspace);
    qn_plan_destroy(plan);
}

/* A case at every level this machine has: codes and scales as the reference makes them. */
static void compare_of(const char *text, const uint16_t *x, float given, size_t codes, size_t scales)
{
    uint8_t *want = malloc(codes), *got = malloc(codes);
    void *want_scale = malloc(scales), *got_scale = malloc(scales);
    float global[2] = {0.0f, 0.0f};
    assert_true(want && got && want_scale && got_scale);
    memset(want_scale, 0xAA, scales);
    void *const in[INPUTS] = {(void *)(uintptr_t)x, &given}, *const want_out[OUTPUTS] = {want, want_scale, &global[0]};
    void *const got_out[OUTPUTS] = {got, got_scale, &global[1]};
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    run(text, &options, in, want_out);
    options.backend = QN_BACKEND_CPU;
    static const qn_isa levels[] = {QN_ISA_SCALAR, QN_ISA_AVX2, QN_ISA_AVX512};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        qn_error error = {0};
        qn_plan *plan = NULL;
        qn_op_desc desc;
        options.isa = levels[l];
        assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
        if (qn_plan_create(ctx, &desc, &options, &plan, &error) != QN_OK) {
            continue; /* not this machine's */
        }
        qn_plan_destroy(plan);
        memset(got, 0xAA, codes);
        memset(got_scale, 0xAA, scales);
        run(text, &options, in, got_out);
        for (size_t i = 0; i < codes; i++) {
            if (want[i] != got[i]) {
                fail_msg("%s, %s: byte %zu of the codes is %02x, expected %02x", text, qn_isa_name(levels[l]), i,
                         got[i], want[i]);
            }
        }
        assert_memory_equal(want_scale, got_scale, scales);
        assert_memory_equal(&global[0], &global[1], sizeof global[0]);
    }
    free(want);
    free(got);
    free(want_scale);
    free(got_scale);
}

/* An fp8 case whose rows take all mantissas. given: the scale of mode=static. */
static void compare(const char *text, int64_t m, int64_t k, int grouped, const float *given)
{
    uint16_t *x = malloc((size_t)(m * k) * 2);
    assert_non_null(x);
    fill(x, m, k, grouped);
    compare_of(text, x, given ? *given : 0.0f, (size_t)(m * k), (size_t)(m * (k / GROUP + 1)) * 4);
    free(x);
}

/* nvfp4 with a global scale: a row has a largest magnitude, each block of it other elements. */
static void compare_fp4(float global)
{
    const int64_t m = SCALE_BINADES * MANTISSAS, k = BLOCKS * BLOCK;
    uint16_t *x = malloc((size_t)(m * k) * 2);
    uint32_t least;
    char text[96];
    const float bottom = 0x1.8p-9f / global; /* its block scale is e4m3's least, or rounds to zero below */
    memcpy(&least, &bottom, sizeof least);
    assert_non_null(x);
    for (int64_t r = 0; r < m; r++) {
        const uint32_t most = (least >> 23 << 7) + (uint32_t)r;
        for (int64_t i = 0; i < k; i++) {
            const uint32_t down = (uint32_t)(i / BLOCK * (BLOCK - 1) + (i % BLOCK ? i % BLOCK - 1 : 0));
            x[r * k + i] = (uint16_t)((i & 1) << 15 | (i % BLOCK ? most - down : most));
        }
    }
    snprintf(text, sizeof text, "quantize_nvfp4 m=%lld k=%lld x=bf16 global_scale=1", (long long)m, (long long)k);
    compare_of(text, x, global, (size_t)(m * k / 2), (size_t)(m * k / BLOCK));
    free(x);
}

static void test_rows(void **state)
{
    (void)state;
    static const char *const types[] = {"e4m3fn", "e4m3fnuz"};
    for (int t = 0; t < 2; t++) {
        char text[160];
        snprintf(text, sizeof text, "quantize_fp8 m=128 k=3331 granularity=token type=%s x=bf16", types[t]);
        compare(text, 128, 3331, 0, NULL);
        snprintf(text, sizeof text, "quantize_fp8 m=128 k=3332 granularity=group type=%s x=bf16", types[t]);
        compare(text, 128, 3332, 1, NULL);
        snprintf(text, sizeof text, "quantize_fp8 m=130 k=3331 granularity=token scale_format=ue8m0 type=%s x=bf16",
                 types[t]);
        compare(text, 130, 3331, 0, NULL);
        snprintf(text, sizeof text, "quantize_fp8 m=128 k=3332 granularity=group scale_format=ue8m0 type=%s x=bf16",
                 types[t]);
        compare(text, 128, 3332, 1, NULL);
        snprintf(text, sizeof text, "quantize_fp8 m=256 k=1025 granularity=block type=%s x=bf16", types[t]);
        compare(text, 256, 1025, 0, NULL);
    }
}

/* One scale, its table made in the run; given ones that elements go beyond, and with ties. */
static void test_one_scale(void **state)
{
    (void)state;
    static const float given[] = {0x1p-20f,        0x1.8p-22f,      0x1.24924ap-18f,
                                  0x1.b6db6cp-24f, 0x1.000002p-10f, 0x1.fffffep-15f};
    compare("quantize_fp8 m=64 k=3331 x=bf16", 64, 3331, 0, NULL);
    compare("quantize_fp8 m=64 k=3331 type=e4m3fnuz x=bf16", 64, 3331, 0, NULL);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        compare("quantize_fp8 m=64 k=3331 mode=static x=bf16", 64, 3331, 0, &given[i]);
    }
}

/* Groups that a level may do from registers between others: zeros, NaN, infinities, largest magnitudes at the limits of
 * the scales' floors, of what is divided by multiplication and of the format. */
static void compare_odd(const char *text, int64_t m, int64_t k)
{
    static const uint16_t tops[] = {0x3f80, 0x0000, 0x7fc0, 0x7f80, 0x2edb, 0x2edc, 0x0001, 0x617f, 0x6180, 0x61df,
                                    0x61e0, 0x61e1, 0x7f7f, 0x40a1, 0x3f60, 0x3f61, 0x3aff, 0x3b00, 0x3b01};
    uint16_t *x = malloc((size_t)(m * k) * 2);
    assert_non_null(x);
    for (int64_t r = 0; r < m; r++) {
        for (int64_t i = 0; i < k; i++) {
            /* down a block of rows the same, so that granularity=block has each of them too */
            const uint16_t top = tops[(r / GROUP * 5 + i / GROUP * 3) % (int64_t)(sizeof tops / sizeof *tops)];
            const int64_t down = (i * 37 + r * 11) % (10 * MANTISSAS);
            const int is_top = i % GROUP == r % GROUP, plain = top < 0x7f80;
            const int64_t size = is_top ? top : (plain ? top - down : 0x3f80 - down);
            x[r * k + i] = (uint16_t)((i & 1) << 15 | (size > 0 ? size : 0));
        }
    }
    compare_of(text, x, 0.0f, (size_t)(m * k), (size_t)(m * (k / GROUP + 1)) * 4);
    free(x);
}

static void test_odd_groups(void **state)
{
    (void)state;
    static const char *const attributes[] = {"",
                                             " scale_format=ue8m0",
                                             " scale_ub=1.5",
                                             " scale_ub=1e-12",
                                             " type=e4m3fnuz",
                                             " type=e4m3fnuz scale_format=ue8m0"};
    for (size_t a = 0; a < sizeof attributes / sizeof *attributes; a++) {
        char text[160];
        snprintf(text, sizeof text, "quantize_fp8 m=300 k=4500 granularity=group x=bf16%s", attributes[a]);
        compare_odd(text, 300, 4500);
        snprintf(text, sizeof text, "quantize_fp8 m=2500 k=300 granularity=block x=bf16%s", attributes[a]);
        compare_odd(text, 2500, 300);
        /* rows as long as a group: of them the scale has the floor */
        snprintf(text, sizeof text, "quantize_fp8 m=2500 k=128 granularity=token x=bf16%s", attributes[a]);
        compare_odd(text, 2500, 128);
    }
}

static void test_fp4(void **state)
{
    (void)state;
    static const float given[] = {1.0f, 0x1.24924ap3f, 0x1.5p-5f, 0x1.fffffep20f, 0x1.b6db6cp-40f, 0x1.000002p11f};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        compare_fp4(given[i]);
    }
}

/* Rows of the table, from codes by the reference's operations. */
static void test_table(void **state)
{
    (void)state;
    for (int a = 0; a <= QN_FP8_STEPS_POWER; a++) {
        const qn_fp8_steps *steps = &qn_fp8_steps_of[a];
        const float scale = a < MANTISSAS ? (float)(MANTISSAS + a) / 8.0f / 448.0f : 0x1p-5f;
        for (int m = 0; m < MANTISSAS; m++) { /* of half the elements that base is for: codes are 8 less */
            const int code = qn_f32_to_e4m3((float)(MANTISSAS + m) / 32.0f / scale);
            assert_int_equal((m + steps->base + steps->add[m / 8]) >> 4, code + 8);
        }
        assert_true(steps->add[0] < 64);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_one_scale), cmocka_unit_test(test_odd_groups),
        cmocka_unit_test(test_fp4),  cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
