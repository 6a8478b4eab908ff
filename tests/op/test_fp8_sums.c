/* The error model of FP8 tensor cores (QN_SUMS_FP8_MMA): a model of their sums passes it, and fails the model of f32
 * sums; a lost step of K, a lost block, a wrong scale and a lost bit of a code do not pass. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/experimental.h>

#include "format/format.h"
#include "op/op.h"
#include "ref/ref.h"

enum { SEED = 11, M = 6, N = 40, STEP = 32, BLOCK = 128, KEPT_BITS = 13 };

/* Dense operands of a block_scaled_mm case and two outputs. */
typedef struct job {
    qn_op_desc desc;
    qn_args args;
    void *in[QN_MAX_IN];
    float *want, *got;
    int64_t k;
} job;

static void job_make(job *j, int64_t k)
{
    char text[128];
    qn_shape out[QN_MAX_OUT];
    memset(j, 0, sizeof *j);
    j->k = k;
    snprintf(text, sizeof text, "block_scaled_mm m=%d n=%d k=%lld out=f32", M, N, (long long)k);
    assert_int_equal(qn_op_desc_parse(text, &j->desc, NULL), QN_OK);
    assert_int_equal(qn_op_desc_check(&j->desc, out, NULL, NULL), QN_OK);
    for (int i = 0; i < 4; i++) {
        size_t bytes = 0;
        assert_int_equal(qn_shape_bytes(&j->desc.in[i], &bytes, NULL), QN_OK);
        j->in[i] = calloc(1, bytes + 64);
        assert_non_null(j->in[i]);
        j->args.in[i] = qn_view_make(j->in[i], &j->desc.in[i]);
    }
    assert_int_equal(qn_case_fill(&j->desc, SEED, 0, j->in, NULL), QN_OK);
    j->want = calloc(M * N, sizeof *j->want);
    j->got = calloc(M * N, sizeof *j->got);
    assert_true(j->want && j->got);
    j->args.out[0] = qn_mut_view_make(j->want, &out[0]);
}

static void job_free(job *j)
{
    for (int i = 0; i < 4; i++) {
        free(j->in[i]);
    }
    free(j->want);
    free(j->got);
}

static void reference(job *j, float *to)
{
    void *scratch = malloc(qn_ref_scratch_bytes(&j->desc) + 64);
    assert_non_null(scratch);
    qn_args args = j->args;
    args.out[0].data = to;
    qn_ref_get(j->desc.op)(&j->desc, &args, scratch);
    free(scratch);
}

static qn_case_result judge(const job *j, qn_sums sums)
{
    qn_view want[QN_MAX_OUT] = {qn_view_of(&j->args.out[0])}, got[QN_MAX_OUT] = {want[0]};
    qn_case_result result;
    got[0].data = j->got;
    assert_int_equal(qn_judge(&j->desc, sums, want, got, j->args.in, 0, &result, NULL), QN_OK);
    return result;
}

static int exponent(double v)
{
    int e = 0;
    frexp(v, &e);
    return e - 1;
}

/* Products of a step and the sum so far, each cut to KEPT_BITS below the largest exponent among them; a product's is
 * the sum of its factors' exponents. */
static double step_sum(double sum, const float *a, const float *b, int64_t count)
{
    int most = sum != 0.0 ? exponent(sum) : -1000;
    for (int64_t i = 0; i < count; i++) {
        if (a[i] * b[i] != 0.0f) {
            const int e = exponent((double)a[i]) + exponent((double)b[i]);
            most = e > most ? e : most;
        }
    }
    const double unit = ldexp(1.0, most - KEPT_BITS);
    double units = trunc(sum / unit);
    for (int64_t i = 0; i < count; i++) {
        units += trunc((double)a[i] * (double)b[i] / unit);
    }
    return units * unit;
}

static void tensor_core(const job *j, float *to)
{
    float *a = malloc((size_t)j->k * sizeof *a), *b = malloc((size_t)j->k * sizeof *b);
    assert_true(a && b);
    const int64_t blocks = (j->k + BLOCK - 1) / BLOCK;
    for (int m = 0; m < M; m++) {
        assert_int_equal(qn_decode(QN_F8_E4M3, (char *)j->in[0] + m * j->k, j->k, a, NULL), QN_OK);
        for (int n = 0; n < N; n++) {
            assert_int_equal(qn_decode(QN_F8_E4M3, (char *)j->in[2] + n * j->k, j->k, b, NULL), QN_OK);
            float sum = 0.0f;
            for (int64_t kb = 0; kb < blocks; kb++) {
                const int64_t end = (kb + 1) * BLOCK < j->k ? (kb + 1) * BLOCK : j->k;
                double part = 0.0;
                for (int64_t k = kb * BLOCK; k < end; k += STEP) {
                    part = step_sum(part, a + k, b + k, end - k < STEP ? end - k : STEP);
                }
                sum += ((float *)j->in[1])[m * blocks + kb] * ((float *)j->in[3])[n / 128 * blocks + kb] * (float)part;
            }
            to[m * N + n] = sum;
        }
    }
    free(a);
    free(b);
}

static const int64_t sizes[] = {17, 33, 64, 128, 129, 576, 1536, 4096};

static void tensor_cores_pass(void **state)
{
    (void)state;
    int beyond_f32 = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        job j;
        job_make(&j, sizes[i]);
        reference(&j, j.want);
        tensor_core(&j, j.got);
        const qn_case_result r = judge(&j, QN_SUMS_FP8_MMA), f32 = judge(&j, QN_SUMS_F32);
        printf("K %lld: %.2f of the allowed, %.1f of what f32 sums are\n", (long long)sizes[i], r.max_error,
               f32.max_error);
        assert_true(r.pass);
        assert_true(r.max_error > 0.0);
        beyond_f32 += !f32.pass;
        job_free(&j);
    }
    assert_true(beyond_f32 > 3);
}

static void lose_step(job *j)
{
    for (int m = 0; m < M; m++) {
        memset((char *)j->in[0] + (m + 1) * j->k - STEP, 0, STEP);
    }
}

static void lose_block(job *j)
{
    for (int m = 0; m < M; m++) {
        memset((char *)j->in[0] + m * j->k, 0, BLOCK);
    }
}

static void change_scale(job *j) /* a twentieth of one scale of a's block */
{
    ((float *)j->in[1])[0] *= 1.05f;
}

static void swap_scales(job *j) /* of two neighbouring blocks of b */
{
    float *scale = j->in[3], first = scale[0];
    scale[0] = scale[1];
    scale[1] = first;
}

static void drop_mantissa(job *j) /* the lowest bit of every code of b */
{
    for (int64_t i = 0; i < N * j->k; i++) {
        ((uint8_t *)j->in[2])[i] &= 0xFE;
    }
}

/* Each fault on top of a tensor core's sums, so that its errors cannot hide it. */
static void faults_do_not_pass(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*plant)(job *j);
    } faults[] = {{"a lost step of 32", lose_step},
                  {"a lost block of 128", lose_block},
                  {"a scale 5 percent off", change_scale},
                  {"scales of two blocks changed places", swap_scales},
                  {"codes without their last bit", drop_mantissa}};
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (sizes[i] < 2 * BLOCK) {
                continue;
            }
            job right, wrong;
            job_make(&right, sizes[i]);
            job_make(&wrong, sizes[i]);
            faults[f].plant(&wrong);
            reference(&right, right.want);
            tensor_core(&wrong, right.got);
            const qn_case_result r = judge(&right, QN_SUMS_FP8_MMA);
            printf("%s, K %lld: %.1f of the allowed\n", faults[f].name, (long long)sizes[i], r.max_error);
            if (r.pass) {
                fail_msg("%s passes at K %lld: %g of the allowed", faults[f].name, (long long)sizes[i], r.max_error);
            }
            job_free(&right);
            job_free(&wrong);
        }
    }
}

/* A kernel of f32 sums gets no such allowance. */
static void plans_judge_by_their_kernel(void **state)
{
    (void)state;
    job j;
    qn_ctx *ctx = NULL;
    qn_plan *plan = NULL;
    qn_plan_options options;
    qn_case_result result;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    job_make(&j, BLOCK);
    reference(&j, j.want);
    tensor_core(&j, j.got);
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_plan_create(ctx, &j.desc, &options, &plan, NULL), QN_OK);
    qn_view want[QN_MAX_OUT] = {qn_view_of(&j.args.out[0])}, got[QN_MAX_OUT] = {want[0]};
    assert_int_equal(qn_plan_judge(plan, want, got, j.args.in, 0, &result, NULL), QN_OK);
    assert_true(result.pass);
    got[0].data = j.got;
    assert_int_equal(qn_plan_judge(plan, want, got, j.args.in, 0, &result, NULL), QN_OK);
    assert_false(result.pass);
    assert_int_equal(qn_plan_judge(NULL, want, got, j.args.in, 0, &result, NULL), QN_E_ARGUMENT);
    qn_plan_destroy(plan);
    qn_ctx_destroy(ctx);
    job_free(&j);
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_cores_pass),
        cmocka_unit_test(faults_do_not_pass),
        cmocka_unit_test(plans_judge_by_their_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
