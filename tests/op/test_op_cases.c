/* The case table, the filler, the reference and the error model together:
 * every test row runs through the reference; outputs are complete, repeatable,
 * the same with strided operands; the exact grid really is exact; and the error
 * model tells a right result from a slightly wrong one. */
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
#include "op/large.h"

#define SEED 7
#define PAD 48 /* bytes between rows in the strided run */

typedef struct job {
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_args args;
    void *in_data[QN_MAX_IN], *out_data[QN_MAX_OUT];
} job;

static void *take(size_t bytes, int byte)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    memset(p, byte, (bytes + 64) / 64 * 64);
    return p;
}

static size_t bytes_of(const qn_shape *shape)
{
    size_t bytes = 0;
    assert_int_equal(qn_shape_bytes(shape, &bytes, NULL), QN_OK);
    return bytes;
}

static void job_make(job *j, const char *text, int exact)
{
    qn_error error;
    memset(j, 0, sizeof *j);
    if (qn_op_desc_parse(text, &j->desc, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    assert_int_equal(qn_op_desc_check(&j->desc, j->out, NULL, NULL), QN_OK);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (qn_op_has(&j->desc, i)) {
            j->in_data[i] = take(bytes_of(&j->desc.in[i]), 0);
            j->args.in[i] = qn_view_make(j->in_data[i], &j->desc.in[i]);
        }
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (j->out[i].format != QN_FORMAT_NONE) {
            j->out_data[i] = take(bytes_of(&j->out[i]), 0xA5);
            j->args.out[i] = qn_mut_view_make(j->out_data[i], &j->out[i]);
        }
    }
    if (qn_case_fill(&j->desc, SEED, exact, j->in_data, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    assert_int_equal(qn_op_args_check(&j->desc, &j->args, NULL), QN_OK);
}

static void job_run(job *j)
{
    void *scratch = take(qn_ref_scratch_bytes(&j->desc), 0xA5);
    qn_ref_get(j->desc.op)(&j->desc, &j->args, scratch);
    free(scratch);
}

static void job_free(job *j)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        free(j->in_data[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        free(j->out_data[i]);
    }
}

static void views_of(const job *j, qn_view views[QN_MAX_OUT])
{
    memset(views, 0, sizeof(qn_view) * QN_MAX_OUT);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        views[i] = qn_view_of(&j->args.out[i]);
    }
}

/* Calls fn for every row of the table that is for testing, on random and exact values; of vectors that many weights
 * take long to decode on random ones. */
static void each_test_row(void (*fn)(const char *text, int exact))
{
    int32_t bench;
    const char *text;
    for (int32_t i = 0; (text = qn_case_at(i, &bench)) != NULL; i++) {
        qn_op_desc desc;
        qn_sizes sizes;
        qn_error error;
        if (bench) {
            continue;
        }
        fn(text, 0);
        if (qn_op_desc_parse(text, &desc, &error) != QN_OK ||
            qn_op_desc_check(&desc, (qn_shape[QN_MAX_OUT]){0}, &sizes, &error) != QN_OK) {
            fail_msg("%s: %s", text, error.text);
        }
        if (desc.op != QN_OP_VQ_MM || !has_large_weights(&sizes)) {
            fn(text, 1);
        }
    }
}

/* Tiled scales have no rows to put apart. */
static int may_be_strided(const char *text)
{
    return strstr(text, "swizzled") == NULL;
}

/* Another pattern in the outputs than they are made with: an element that is left unwritten differs. */
static void fill_anew(job *j)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (j->out_data[i]) {
            memset(j->out_data[i], 0x5A, bytes_of(&j->out[i]));
        }
    }
}

/* What a run gives is like itself, as the judge sees it. */
static void judge_itself(const job *a, const job *b, int exact)
{
    qn_view want[QN_MAX_OUT], got[QN_MAX_OUT];
    views_of(a, want);
    views_of(b, got);
    qn_case_result result;
    assert_int_equal(qn_case_judge(&a->desc, want, got, a->args.in, exact, &result, NULL), QN_OK);
    assert_true(result.pass);
    assert_true(result.max_error == 0.0);
}

/* Random operands are run again strided, below. */
static void row_repeats(const char *text, int exact)
{
    if (!exact && may_be_strided(text)) {
        return;
    }
    job a, b;
    job_make(&a, text, exact);
    job_make(&b, text, exact);
    fill_anew(&b);
    job_run(&a);
    job_run(&b);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (a.out_data[i] && memcmp(a.out_data[i], b.out_data[i], bytes_of(&a.out[i])) != 0) {
            fail_msg("%s: output %d differs from run to run, or is not written whole", text, i);
        }
    }
    judge_itself(&a, &b, exact);
    job_free(&a);
    job_free(&b);
}

static void rows_repeat(void **state)
{
    (void)state;
    each_test_row(row_repeats);
}

/* Strides of a view whose rows are PAD bytes apart; total bytes. */
static size_t pad_strides(const qn_shape *shape, int64_t strides[QN_MAX_DIMS])
{
    size_t row = 0;
    assert_int_equal(qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL), QN_OK);
    int64_t stride = (int64_t)row + PAD;
    for (int i = shape->ndim - 2; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape->dims[i];
    }
    return (size_t)stride;
}

/* Row r of a view of any number of dimensions. */
static char *row_at(const void *data, const qn_shape *shape, const int64_t strides[QN_MAX_DIMS], int64_t r)
{
    int64_t at = 0;
    for (int i = shape->ndim - 2; i >= 0; i--) {
        at += r % shape->dims[i] * strides[i];
        r /= shape->dims[i];
    }
    return (char *)(uintptr_t)data + at;
}

static int64_t rows_of(const qn_shape *shape)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape->ndim; i++) {
        rows *= shape->dims[i];
    }
    return rows;
}

static void row_strided(const char *text, int exact)
{
    if (exact || !may_be_strided(text)) {
        return;
    }
    job a, b;
    job_make(&a, text, 0);
    job_make(&b, text, 0);
    fill_anew(&a);
    job_run(&a);
    judge_itself(&a, &a, 0);
    for (int i = 0; i < QN_MAX_IN; i++) {
        const qn_shape *shape = &b.desc.in[i];
        if (!qn_op_has(&b.desc, i) || shape->ndim < 2) {
            continue;
        }
        int64_t strides[QN_MAX_DIMS] = {0};
        char *data = take(pad_strides(shape, strides), 0x7F);
        size_t row = 0;
        assert_int_equal(qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL), QN_OK);
        for (int64_t r = 0; r < rows_of(shape); r++) {
            memcpy(row_at(data, shape, strides, r), (char *)b.in_data[i] + (size_t)r * row, row);
        }
        free(b.in_data[i]);
        b.in_data[i] = data;
        b.args.in[i].data = data;
        memcpy(b.args.in[i].strides, strides, sizeof strides);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (b.out[i].format != QN_FORMAT_NONE && b.out[i].ndim >= 2) {
            int64_t strides[QN_MAX_DIMS] = {0};
            free(b.out_data[i]);
            b.out_data[i] = take(pad_strides(&b.out[i], strides), 0xA5);
            b.args.out[i].data = b.out_data[i];
            memcpy(b.args.out[i].strides, strides, sizeof strides);
        }
    }
    job_run(&b);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (b.out[i].format == QN_FORMAT_NONE) {
            continue;
        }
        if (b.out[i].ndim < 2) {
            assert_memory_equal(b.out_data[i], a.out_data[i], bytes_of(&b.out[i]));
            continue;
        }
        size_t row = 0;
        assert_int_equal(qn_format_row_bytes(b.out[i].format, b.out[i].dims[b.out[i].ndim - 1], &row, NULL), QN_OK);
        for (int64_t r = 0; r < rows_of(&b.out[i]); r++) {
            const char *got = row_at(b.out_data[i], &b.out[i], b.args.out[i].strides, r);
            if (memcmp(got, (char *)a.out_data[i] + (size_t)r * row, row) != 0) {
                fail_msg("%s: row %lld of output %d differs with strided operands", text, (long long)r, i);
            }
            for (int p = 0; p < PAD; p++) {
                assert_int_equal((unsigned char)got[row + (size_t)p], 0xA5);
            }
        }
    }
    job_free(&a);
    job_free(&b);
}

static void rows_strided(void **state)
{
    (void)state;
    each_test_row(row_strided);
}

/* On the exact grid a sum in f32, backwards, gives the reference's bits. */
static void exact_is_exact(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "dense_mm m=3 n=9 k=1536 out=f32",        "dense_mm m=2 n=5 k=1536 out=f32 b=q4_1",
        "dense_mm m=2 n=5 k=1536 out=f32 b=q6_k", "dense_mm m=2 n=5 k=1536 out=f32 b=q5_k",
        "dense_mm m=2 n=5 k=1536 out=f32 b=q8_0", "dense_mm m=2 n=5 k=1536 out=f32 b=q3_k"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        job j;
        job_make(&j, texts[t], 1);
        job_run(&j);
        const int64_t m = j.desc.in[0].dims[0], n = j.desc.in[1].dims[0], k = j.desc.in[0].dims[1];
        float *b = take((size_t)k * sizeof *b, 0);
        size_t row = 0;
        assert_int_equal(qn_format_row_bytes(j.desc.in[1].format, k, &row, NULL), QN_OK);
        for (int64_t c = 0; c < n; c++) {
            assert_int_equal(qn_decode(j.desc.in[1].format, (char *)j.in_data[1] + (size_t)c * row, k, b, NULL), QN_OK);
            for (int64_t r = 0; r < m; r++) {
                float sum = 0.0f;
                for (int64_t i = k - 1; i >= 0; i--) {
                    sum += ((float *)j.in_data[0])[r * k + i] * b[i];
                }
                assert_true(sum == ((float *)j.out_data[0])[r * n + c]);
            }
        }
        free(b);
        job_free(&j);
    }
}

/* The judge's answer after one element of output slot `slot` was changed. */
static qn_case_result judge_changed(const char *text, int exact, int32_t slot, void (*change)(void *data))
{
    job a, b;
    job_make(&a, text, exact);
    job_make(&b, text, exact);
    job_run(&a);
    job_run(&b);
    change(b.out_data[slot]);
    qn_view want[QN_MAX_OUT], got[QN_MAX_OUT];
    views_of(&a, want);
    views_of(&b, got);
    qn_case_result result;
    assert_int_equal(qn_case_judge(&a.desc, want, got, a.args.in, exact, &result, NULL), QN_OK);
    job_free(&a);
    job_free(&b);
    return result;
}

static void last_bit(void *data)
{
    ((uint8_t *)data)[0] ^= 1;
}

static void small_part(void *data) /* of an f32: 2^-9 of itself */
{
    float v;
    memcpy(&v, data, sizeof v);
    v *= 1.0f + 0x1p-9f;
    memcpy(data, &v, sizeof v);
}

static void two_codes(void *data)
{
    uint8_t *codes = data;
    codes[0] = (uint8_t)(codes[0] ^ 0x08);
}

static void not_a_number(void *data)
{
    const float nan = __builtin_nanf("");
    memcpy(data, &nan, sizeof nan);
}

static void judge_decides(void **state)
{
    (void)state;
    /* one ulp passes at random, never on the exact grid */
    assert_true(judge_changed("block_scaled_mm m=3 n=9 k=300 out=f32", 0, 0, last_bit).pass);
    assert_false(judge_changed("block_scaled_mm m=3 n=9 k=300 out=f32", 1, 0, last_bit).pass);
    assert_true(judge_changed("rmsnorm m=3 k=576", 1, 0, last_bit).pass);
    static const char *const products[] = {
        "block_scaled_mm m=3 n=9 k=300 out=f32",
        "scaled_mm m=3 n=9 k=300 out=f32",
        "scaled_mm m=3 n=9 k=300 out=f32 a=f8_e4m3",
        "nvfp4_mm m=3 n=9 k=160 out=f32",
        "nvfp4_mm m=3 n=9 k=160 out=f32 a=1",
        "mxfp4_mm m=3 n=9 k=160 out=f32",
        "dense_mm m=3 n=9 k=300 out=f32",
        "dense_mm m=3 n=9 k=256 out=f32 b=q4_k",
        "grouped_block_scaled_mm m=6 n=9 k=300 e=2 out=f32",
        "rmsnorm m=3 k=100",
        "silu_mul m=3 k=100 out=f32",
        "rope m=3 k=64 e=2",
        "dequantize m=3 k=100 granularity=token",
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const qn_case_result r = judge_changed(products[i], 0, 0, small_part);
        if (r.pass || r.slot != 0 || r.index != 0) {
            fail_msg("%s: an error of 2^-9 is judged %g at %lld", products[i], r.max_error, (long long)r.index);
        }
        assert_false(judge_changed(products[i], 0, 0, not_a_number).pass);
    }
    assert_true(judge_changed("quantize_fp8 m=8 k=300 granularity=token", 0, 0, last_bit).pass);
    assert_false(judge_changed("quantize_fp8 m=8 k=300 granularity=token", 1, 0, last_bit).pass);
    assert_false(judge_changed("quantize_fp8 m=8 k=300 granularity=token", 0, 0, two_codes).pass);
    assert_false(judge_changed("quantize_fp8 m=8 k=300 granularity=token", 0, 1, small_part).pass);
    assert_false(judge_changed("quantize_nvfp4 m=8 k=64", 0, 2, small_part).pass);
    assert_false(judge_changed("attention m=1 n=1 k=64 e=9 g=3", 0, 0, small_part).pass);
}

static void fill_is_reproducible(void **state)
{
    (void)state;
    job a, b;
    job_make(&a, "scaled_mm m=5 n=33 k=65 scale_a=token bias=1", 0);
    job_make(&b, "scaled_mm m=5 n=33 k=65 scale_a=token bias=1", 0);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (a.in_data[i]) {
            assert_memory_equal(a.in_data[i], b.in_data[i], bytes_of(&a.desc.in[i]));
        }
    }
    assert_int_equal(qn_case_fill(&a.desc, SEED + 1, 0, a.in_data, NULL), QN_OK);
    assert_memory_not_equal(a.in_data[0], b.in_data[0], bytes_of(&a.desc.in[0]));
    void *none[QN_MAX_IN] = {NULL};
    assert_int_equal(qn_case_fill(&a.desc, SEED, 0, none, NULL), QN_E_ARGUMENT);
    job_free(&a);
    job_free(&b);
}

static void costs(void **state)
{
    (void)state;
    qn_op_desc desc;
    qn_case_cost cost;
    assert_int_equal(qn_op_desc_parse("scaled_mm m=2 n=3 k=4 out=f32", &desc, NULL), QN_OK);
    assert_int_equal(qn_case_get_cost(&desc, NULL, &cost, NULL), QN_OK);
    assert_true(cost.flops == 48.0);
    assert_true(cost.bytes == 2 * 4 + 3 * 4 + 4 + 4 + 2 * 3 * 4);
    assert_string_equal(cost.memory, "read");
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=2 n=3 k=4 e=5 layout=masked", &desc, NULL), QN_OK);
    assert_int_equal(qn_case_get_cost(&desc, NULL, &cost, NULL), QN_OK);
    assert_true(cost.flops == 240.0);
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=1 n=3 k=4 e=2", &desc, NULL), QN_OK);
    assert_int_equal(qn_case_get_cost(&desc, NULL, &cost, NULL), QN_OK);
    assert_true(cost.bytes == 4 + 4 + (3 * 4 + 4) + 3 * 4 + 3 * 2); /* one of the two experts has no row */
    const int32_t offsets[] = {1, 1, 3}, masked_m[] = {2, 0};
    qn_view in[QN_MAX_IN] = {0};
    in[QN_BMM_OFFSETS].data = offsets;
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=4 n=3 k=4 e=2", &desc, NULL), QN_OK);
    assert_int_equal(qn_case_get_cost(&desc, in, &cost, NULL), QN_OK);
    assert_true(cost.flops == 2 * 2 * 3 * 4);
    assert_true(cost.bytes == 2 * (4 + 4) + (3 * 4 + 4) + 3 * 4 + 4 * 3 * 2); /* zeros of two rows are written */
    in[QN_BMM_MASKED_M].data = masked_m;
    assert_int_equal(qn_op_desc_parse("grouped_block_scaled_mm m=4 n=3 k=4 e=2 layout=masked tail=keep", &desc, NULL),
                     QN_OK);
    assert_int_equal(qn_case_get_cost(&desc, in, &cost, NULL), QN_OK);
    assert_true(cost.flops == 2 * 2 * 3 * 4);
    assert_true(cost.bytes == 2 * (4 + 4) + (3 * 4 + 4) + 2 * 4 + 2 * 3 * 2);
}

static int in_a_group(const job *j, int64_t row)
{
    const int32_t *offsets = j->in_data[QN_BMM_OFFSETS], *masked_m = j->in_data[QN_BMM_MASKED_M];
    if (masked_m) {
        const int64_t rows = j->out[0].dims[1];
        return row % rows < masked_m[row / rows];
    }
    return row >= offsets[0] && row < offsets[j->desc.in[QN_BMM_OFFSETS].dims[0] - 1];
}

/* Two rows before the first group and one behind the last, as the filler has none. */
static void narrow_offsets(job *j)
{
    int32_t *offsets = j->in_data[QN_BMM_OFFSETS];
    const int32_t last = (int32_t)j->out[0].dims[0] - 1;
    for (int64_t e = 0; offsets && e < j->desc.in[QN_BMM_OFFSETS].dims[0]; e++) {
        offsets[e] = offsets[e] < 2 ? 2 : offsets[e] > last ? last : offsets[e];
    }
}

/* Rows of no group: zeros, or what was there before; nothing else differs, and the judge sees one that was touched. */
static void tail_is_zeros_or_kept(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"grouped_block_scaled_mm m=19 n=33 k=70 e=3", "grouped_block_scaled_mm m=19 n=33 k=70 e=3 tail=keep"},
        {"grouped_block_scaled_mm m=9 n=33 k=70 e=3 layout=masked",
         "grouped_block_scaled_mm m=9 n=33 k=70 e=3 layout=masked tail=keep"}};
    for (int i = 0; i < 4; i++) {
        job zeros, kept;
        job_make(&zeros, texts[i / 2][0], i % 2);
        job_make(&kept, texts[i / 2][1], i % 2);
        narrow_offsets(&zeros);
        narrow_offsets(&kept);
        job_run(&zeros);
        job_run(&kept);
        const size_t bytes = bytes_of(&kept.out[0]), row_bytes = 33 * 2;
        char poison[33 * 2];
        char *const was = zeros.out_data[0], *const is = kept.out_data[0];
        memset(poison, 0xA5, sizeof poison);
        char *last = NULL;
        for (size_t row = 0; row < bytes / row_bytes; row++) {
            const int own = in_a_group(&kept, (int64_t)row);
            assert_memory_equal(is + row * row_bytes, own ? was + row * row_bytes : poison, row_bytes);
            last = own ? last : was + row * row_bytes;
        }
        assert_non_null(last);
        memcpy(was, is, bytes);
        qn_view want[QN_MAX_OUT], got[QN_MAX_OUT];
        views_of(&kept, want);
        views_of(&zeros, got);
        for (int touched = 0; touched < 2; touched++) {
            qn_case_result result;
            last[5] = (char)(touched ? 0 : last[5]);
            assert_int_equal(qn_case_judge(&kept.desc, want, got, kept.args.in, i % 2, &result, NULL), QN_OK);
            assert_int_equal(result.pass, !touched);
        }
        job_free(&zeros);
        job_free(&kept);
    }
}

int main(void)
{
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_repeat),           cmocka_unit_test(rows_strided),
        cmocka_unit_test(exact_is_exact),        cmocka_unit_test(judge_decides),
        cmocka_unit_test(fill_is_reproducible),  cmocka_unit_test(costs),
        cmocka_unit_test(tail_is_zeros_or_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
