/* Products by 4-bit weights with rows that rounding to integers could hurt (kernels/cpu/avx2/fp4_avx2.c,
 * avx512vnni/fp4_words_avx512vnni.c): elements of
 * any size beside each other, large ones that meet weights of zero, small ones whose roundings all point one way, sums
 * as large as they can be, scales that are NaN or near the end of e8m0. Every row of the registry stays within the error model, and a row alone
 * has the bits that it has in a batch, of any number of rows and over many columns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <quern/experimental.h>
#include <quern/quern.h>

#include "base/rng.h"

#define SEED 20261123u

enum { ROWS = 5, COLS = 37, DEPTH = 1632 }; /* of K: more than are rounded together, and no whole block */
enum { MOST_ROWS = 29, WIDE_COLS = 293 };   /* more than kernels of few rows take at once */

static qn_ctx *ctx;
static qn_rng rng = {SEED};

static uint64_t below(uint64_t n)
{
    return qn_rng_next(&rng) % n;
}

static const char *const products[] = {
    "nvfp4_mm m=%d n=37 k=1632 out=f32",        "nvfp4_mm m=%d n=37 k=1632 x=f16 out=f32",
    "nvfp4_mm m=%d n=37 k=1632 a=1 out=f32",    "mxfp4_mm m=%d n=37 k=1632 out=f32",
    "mxfp4_mm m=%d n=37 k=1632 x=f16 out=f32",  "nvfp4_mm m=%d n=37 k=1632 x=bf16 out=f32",
    "mxfp4_mm m=%d n=37 k=1632 x=bf16 out=f32",
};

typedef enum content { WIDE, BESIDE_ZEROS, ONE_WAY, LARGEST, CONTENTS } content;

/* Weight k of the first column: 0, 1 or -1 for its sign. */
static int sign_of_weight(const uint8_t *codes, int k)
{
    const int code = codes[k / 2] >> (k % 2 * 4) & 15;
    return code & 7 ? (code & 8 ? -1 : 1) : 0;
}

/* Half of the rows are of one size: far from it others, f16 too, would be odd rows. */
static float element(content c, const uint8_t *codes, int row, int k)
{
    const float some = 0.5f + (float)below(1024) / 2048.0f;
    const float signed_one = below(2) ? some : -some;
    const int sign = sign_of_weight(codes, k);
    switch (c) {
    case WIDE: return ldexpf(signed_one, (int)below(row % 2 ? 24 : 12) - (row % 2 ? 16 : 8));
    case BESIDE_ZEROS: return sign == 0 ? signed_one * 16384.0f : signed_one * (row % 2 ? 1.0f : 0.5f);
    case LARGEST: return (float)sign * (row % 2 && k % 40 == row ? 0x1.01p-8f : 0x1.fep0f);
    default: return k % 16 == row ? 1.0f : ldexpf((float)sign, row % 2 ? -15 : -16);
    }
}

typedef struct operands {
    void *in[QN_MAX_IN];
    int64_t row_bytes[QN_MAX_IN]; /* of operands with rows */
} operands;

static void operands_make(const char *text, content c, int rows, operands *o, qn_op_desc *desc)
{
    qn_error error = {0};
    char words[120];
    snprintf(words, sizeof words, text, rows);
    assert_int_equal(qn_op_desc_parse(words, desc, &error), QN_OK);
    memset(o, 0, sizeof *o);
    for (int i = 0; i < QN_MAX_IN; i++) {
        size_t bytes = 0;
        if (desc->in[i].format) {
            assert_int_equal(qn_shape_bytes(&desc->in[i], &bytes, &error), QN_OK);
            o->in[i] = calloc(1, bytes + 1);
            assert_non_null(o->in[i]);
        }
    }
    assert_int_equal(qn_case_fill(desc, SEED, 0, o->in, &error), QN_OK);
    const int x = qn_op_in_slot(desc->op, "x"), b = qn_op_in_slot(desc->op, "b");
    if (!o->in[x]) {
        const int a = qn_op_in_slot(desc->op, "a"), scales = qn_op_in_slot(desc->op, "a_scale");
        o->row_bytes[a] = DEPTH / 2;
        o->row_bytes[scales] = DEPTH / 16;
        ((uint8_t *)o->in[scales])[DEPTH / 16 + 40] = 0x7f;
        ((uint8_t *)o->in[qn_op_in_slot(desc->op, "b_scale")])[20 * (DEPTH / 16) + 7] = 0x7f;
        return;
    }
    if (desc->op == QN_OP_MXFP4_MM) { /* weights beyond f32, whose products may be within it */
        memset((uint8_t *)o->in[qn_op_in_slot(desc->op, "b_scale")] + 21 * (DEPTH / 32), 253, 9);
    }
    for (int k = 0; c == LARGEST && k < DEPTH / 2; k++) {
        ((uint8_t *)o->in[b])[k] |= 0x77; /* 6 or -6 */
    }
    const qn_format format = desc->in[x].format;
    const int64_t size = qn_format_get_info(format)->block_bytes;
    o->row_bytes[x] = DEPTH * size;
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < DEPTH; k++) {
            const float value = element(c, o->in[b], r, k);
            assert_int_equal(qn_encode(format, &value, 1, (char *)o->in[x] + (r * DEPTH + k) * size, NULL), QN_OK);
        }
    }
}

/* 0: the kernel that was asked for does not take the case. */
static int run(const char *text, const qn_plan_options *options, const operands *o, int row, int m, float *out)
{
    char words[120];
    qn_error error = {0};
    qn_op_desc desc;
    qn_shape shapes[QN_MAX_OUT];
    qn_args args;
    qn_plan *plan = NULL;
    memset(&args, 0, sizeof args);
    memset(shapes, 0, sizeof shapes);
    snprintf(words, sizeof words, text, m);
    assert_int_equal(qn_op_desc_parse(words, &desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, shapes, NULL, &error), QN_OK);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (desc.in[i].format) {
            args.in[i] = qn_view_make((const char *)o->in[i] + row * o->row_bytes[i], &desc.in[i]);
        }
    }
    args.out[0] = qn_mut_view_make(out, &shapes[0]);
    const qn_status status = qn_plan_create(ctx, &desc, options, &plan, &error);
    if (status == QN_E_UNSUPPORTED && options->kernel) {
        print_message("skip: %s: %s\n", words, error.text);
        return 0;
    }
    assert_int_equal(status, QN_OK);
    const size_t bytes = (qn_plan_workspace_bytes(plan, m, 1) + 64) / 64 * 64;
    void *workspace = aligned_alloc(64, bytes);
    assert_non_null(workspace);
    memset(out, 0xAA, (size_t)(shapes[0].dims[0] * shapes[0].dims[1]) * sizeof *out);
    assert_int_equal(qn_run(plan, &args, workspace, bytes, NULL, &error), QN_OK);
    free(workspace);
    qn_plan_destroy(plan);
    return 1;
}

static int check(const char *text, content c, const qn_op_desc *desc, const operands *o, const float *want,
                 const qn_kernel_info *kernel)
{
    static float batch[ROWS * COLS], alone[COLS];
    qn_error error = {0};
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CPU;
    options.kernel = kernel->name;
    if (!run(text, &options, o, 0, ROWS, batch)) {
        return 0;
    }
    qn_shape shapes[QN_MAX_OUT];
    qn_view wanted[QN_MAX_OUT] = {{0}}, got[QN_MAX_OUT] = {{0}}, in[QN_MAX_IN] = {{0}};
    memset(shapes, 0, sizeof shapes);
    assert_int_equal(qn_op_desc_check(desc, shapes, NULL, &error), QN_OK);
    wanted[0] = qn_view_make(want, &shapes[0]);
    got[0] = qn_view_make(batch, &shapes[0]);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (desc->in[i].format) {
            in[i] = qn_view_make(o->in[i], &desc->in[i]);
        }
    }
    qn_case_result result;
    assert_int_equal(qn_case_judge(desc, wanted, got, in, 0, &result, &error), QN_OK);
    if (!result.pass) {
        fail_msg("seed %u, %s, %s, content %d: error %g of the allowed; element %lld is %.9g, expected %.9g", SEED,
                 kernel->name, text, (int)c, result.max_error, (long long)result.index, result.got, result.want);
    }
    for (int r = 0; r < ROWS; r++) {
        run(text, &options, o, r, 1, alone);
        if (memcmp(alone, batch + r * COLS, sizeof alone) != 0) {
            fail_msg("seed %u, %s, %s, content %d: row %d alone has other bits", SEED, kernel->name, text, (int)c, r);
        }
    }
    return 1;
}

static void rows_of_any_content_stay_within_the_model(void **state)
{
    (void)state;
    static float want[ROWS * COLS];
    int kernels = 0;
    for (size_t i = 0; i < sizeof products / sizeof *products * CONTENTS; i++) {
        const char *const text = products[i / CONTENTS];
        const content c = (content)(i % CONTENTS);
        operands o;
        qn_op_desc desc;
        operands_make(text, c, ROWS, &o, &desc);
        qn_plan_options options;
        qn_plan_options_init(&options);
        options.backend = QN_BACKEND_REF;
        run(text, &options, &o, 0, ROWS, want);
        qn_kernel_info k;
        for (int32_t n = 0; qn_kernel_at(ctx, n, &k) == QN_OK; n++) {
            if (k.op == desc.op && k.backend == QN_BACKEND_CPU && !k.refusal) {
                kernels += check(text, c, &desc, &o, want, &k);
            }
        }
        for (int slot = 0; slot < QN_MAX_IN; slot++) {
            free(o.in[slot]);
        }
    }
    assert_true(kernels > 0);
}

/* All numbers of rows from the first on, by one kernel. */
static int check_batches(const char *text, const operands *o, const qn_kernel_info *kernel)
{
    static float alone[MOST_ROWS * WIDE_COLS], batch[MOST_ROWS * WIDE_COLS];
    static const int numbers[] = {2, 3, 4, 5, 6, 7, 8, 9, 14, 16, 18, 25, MOST_ROWS};
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CPU;
    options.kernel = kernel->name;
    for (int r = 0; r < MOST_ROWS; r++) {
        if (!run(text, &options, o, r, 1, alone + r * WIDE_COLS)) {
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        run(text, &options, o, 0, numbers[i], batch);
        for (int r = 0; r < numbers[i]; r++) {
            if (memcmp(alone + r * WIDE_COLS, batch + r * WIDE_COLS, WIDE_COLS * sizeof *batch) != 0) {
                fail_msg("seed %u, %s, %s: row %d of %d has other bits than alone", SEED, kernel->name, text, r,
                         numbers[i]);
            }
        }
    }
    return 1;
}

static void any_number_of_rows_has_the_bits_of_single_ones(void **state)
{
    (void)state;
    static const char *const wide[] = {"nvfp4_mm m=%d n=293 k=1632 out=f32", "mxfp4_mm m=%d n=293 k=1632 out=f32",
                                       "nvfp4_mm m=%d n=293 k=1632 x=bf16 out=f32",
                                       "mxfp4_mm m=%d n=293 k=1632 x=bf16 out=f32"};
    int kernels = 0;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        operands o;
        qn_op_desc desc;
        qn_kernel_info k;
        operands_make(wide[i], WIDE, MOST_ROWS, &o, &desc);
        for (int32_t n = 0; qn_kernel_at(ctx, n, &k) == QN_OK; n++) {
            if (k.op == desc.op && k.backend == QN_BACKEND_CPU && !k.refusal && k.isa > QN_ISA_SCALAR) {
                kernels += check_batches(wide[i], &o, &k);
            }
        }
        for (int slot = 0; slot < QN_MAX_IN; slot++) {
            free(o.in[slot]);
        }
    }
    if (!kernels) {
        print_message("skipped: this machine has no level above scalar\n");
        skip();
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_any_content_stay_within_the_model),
                                       cmocka_unit_test(any_number_of_rows_has_the_bits_of_single_ones)};
    return cmocka_run_group_tests(tests, start, stop);
}
