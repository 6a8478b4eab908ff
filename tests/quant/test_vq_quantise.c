/* Vector-quantised schemes: what is stored decodes to the error that is told, error
 * feedback lessens the error of outputs, bytes do not depend on threads, folders verify and run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "format/format.h"
#include "io/checkpoint.h"
#include "quant/quantize.h"
#include "quant/vq.h"
#include "synthetic.h"

enum { N = 288, K = 320, TOKENS = 640 };

static qn_ctx *ctx;
static qn_pool *pool;
static float w[N * K], squares[K * K];

static int setup(void **state)
{
    (void)state;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK || qn_pool_create(ctx, 3, &pool, NULL) != QN_OK) {
        return 1;
    }
    qn_rng rng = {.state = 4};
    for (int i = 0; i < N * K; i++) {
        const double u = qn_rng_uniform(&rng) + qn_rng_uniform(&rng) + qn_rng_uniform(&rng) - 1.5;
        w[i] = (float)(u * (1 + i / K % 5));
    }
    /* inputs whose channels share much of what they say */
    static float x[K];
    double common[8];
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < 8; c++) {
            common[c] = qn_rng_uniform(&rng) - 0.5;
        }
        for (int i = 0; i < K; i++) {
            x[i] = (float)(3 * common[i % 8] + common[i * 5 % 8] + qn_rng_uniform(&rng) - 0.5);
        }
        for (int i = 0; i < K; i++) {
            for (int j = 0; j < K; j++) {
                squares[i * K + j] += x[i] * x[j];
            }
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
    return 0;
}

static void *parts[QN_VQ_PARTS];
static size_t bytes[QN_VQ_PARTS];

static double quantise(const qn_scheme *s, const float *h, const qn_exec *exec)
{
    qn_shape shapes[QN_VQ_PARTS];
    qn_error error;
    assert_int_equal(qn_vq_shapes(s, N, K, shapes, &error), QN_OK);
    for (int i = 0; i < s->vq.written; i++) {
        assert_int_equal(qn_shape_bytes(&shapes[i], &bytes[i], &error), QN_OK);
        parts[i] = calloc(1, bytes[i]);
        assert_non_null(parts[i]);
    }
    double rms = 0;
    if (qn_vq_quantise(ctx, s, w, N, K, h, exec, parts, &rms, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    return rms;
}

static void release(void)
{
    for (int i = 0; i < QN_VQ_PARTS; i++) {
        free(parts[i]);
        parts[i] = NULL;
    }
}

static float half(const void *from, int64_t i)
{
    float x;
    qn_format_get_row(QN_F16)->decode((const uint8_t *)from + 2 * i, 1, &x);
    return x;
}

/* The bits of vptq's stream from `first` on. */
static uint32_t bits_at(const uint32_t *stream, int64_t first, int count)
{
    uint32_t value = 0;
    for (int64_t i = 0; i < count; i++) {
        value |= (stream[(first + i) / 32] >> (first + i) % 32 & 1) << i;
    }
    return value;
}

/* Element [n][k] by docs/formats/vq.md. */
static float element(const qn_scheme *s, int64_t n, int64_t k)
{
    if (s->vq.format == QN_VQ_VPTQ) {
        const int bits = s->vq.bits;
        const uint32_t *stream = (const uint32_t *)parts[0] + n / 8 * ((K * 2 * bits + 31) / 32);
        const uint32_t word = bits_at(stream, k * 2 * bits, 2 * bits), main = word & ((1u << bits) - 1);
        const float sum = half(parts[1], main * 8 + n % 8) + half(parts[2], (word >> bits) * 8 + n % 8);
        return half(parts[3], k) * sum + half(parts[4], k);
    }
    if (s->vq.format == QN_VQ_GPTVQ) {
        const int64_t cell = n / 256 * 2 + k / 256;
        const int code = ((const uint8_t *)parts[0])[n * (K / 4) + k / 4];
        return ((const float *)parts[2])[cell] * (float)((const int8_t *)parts[1])[(cell * 256 + code) * 4 + k % 4];
    }
    const int64_t entries = INT64_C(1) << s->vq.bits, at = (n * (K / 8) + k / 8) * s->vq.books;
    float sum = 0;
    for (int64_t c = 0; c < s->vq.books; c++) {
        const int64_t code = s->vq.bits > 8 ? ((const int16_t *)parts[0])[at + c] : ((const int8_t *)parts[0])[at + c];
        sum += half(parts[1], (c * entries + (code & (entries - 1))) * 8 + k % 8);
    }
    return half(parts[2], n) * sum;
}

/* The weights that the operator makes of the parts (its decoding: tests/op/test_vq.c). */
static const float *dequantise(const qn_scheme *s)
{
    static float values[N * K];
    qn_shape shapes[QN_VQ_PARTS], out[QN_MAX_OUT];
    qn_error error;
    qn_op_desc desc;
    qn_args args;
    qn_plan_options options;
    qn_plan *plan;
    assert_int_equal(qn_vq_shapes(s, N, K, shapes, &error), QN_OK);
    qn_op_desc_init(&desc, QN_OP_VQ_DEQUANTIZE);
    memset(&args, 0, sizeof args);
    desc.attr[QN_ATTR_FORMAT].i = (int32_t)s->vq.format;
    for (int i = 0; i < s->vq.written; i++) {
        const int32_t slot = qn_op_in_slot(desc.op, s->vq.tensors[i]);
        desc.in[slot] = shapes[i].ndim ? shapes[i] : qn_shape_make(shapes[i].format, 1, 1, 1, 1, 1);
        args.in[slot] = qn_view_make(parts[i], &desc.in[slot]);
    }
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    assert_int_equal(qn_op_desc_check(&desc, out, NULL, &error), QN_OK);
    assert_int_equal(qn_plan_create(ctx, &desc, &options, &plan, &error), QN_OK);
    args.out[0] = qn_mut_view_make(values, &out[0]);
    const size_t room = qn_plan_workspace_bytes(plan, N, 1);
    void *workspace = aligned_alloc(64, (room + 64) / 64 * 64);
    assert_int_equal(qn_run(plan, &args, workspace, room, NULL, &error), QN_OK);
    free(workspace);
    qn_plan_destroy(plan);
    return values;
}

/* Relative root mean square errors of the weights and of the outputs. */
static void errors(const qn_scheme *s, double *weights, double *outputs)
{
    static double d[K];
    double sum = 0, of = 0, loss = 0, whole = 0;
    const float *values = s->vq.format == QN_VQ_QUIP_E8P ? dequantise(s) : NULL;
    for (int64_t n = 0; n < N; n++) {
        for (int64_t k = 0; k < K; k++) {
            d[k] = (double)(values ? values[n * K + k] : element(s, n, k)) - (double)w[n * K + k];
            sum += d[k] * d[k];
            of += (double)w[n * K + k] * (double)w[n * K + k];
        }
        for (int64_t i = 0; i < K; i++) {
            for (int64_t j = 0; j < K; j++) {
                loss += d[i] * d[j] * (double)squares[i * K + j];
                whole += (double)w[n * K + i] * (double)w[n * K + j] * (double)squares[i * K + j];
            }
        }
    }
    *weights = sqrt(sum / of);
    *outputs = sqrt(loss / whole);
}

static void feedback_lessens_the_error(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double weights, gain; /* most error of the weights without feedback; what it leaves of the outputs' */
    } schemes[] = {{"gptvq-2", 0.40, 0.7}, {"aqlm-2x8", 0.40, 0.7}, {"aqlm-3", 0.15, 0.7}, {"vptq-2", 0.40, 0.7},
                   {"vptq-3", 0.15, 0.7},  {"quip-2", 0.31, 0.7},   {"quip-4", 0.10, 0.7}};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const qn_scheme *s = qn_scheme_find(schemes[i].name);
        double rms[2], weights[2], outputs[2];
        for (int with = 0; with < 2; with++) {
            rms[with] = quantise(s, with ? squares : NULL, &(qn_exec){.pool = pool});
            errors(s, &weights[with], &outputs[with]);
            assert_true(fabs(rms[with] - weights[with]) < 1e-3 * rms[with]);
            release();
        }
        print_message("%s: weights %.4f, with feedback %.4f; outputs %.4f, with feedback %.4f\n", s->name, weights[0],
                      weights[1], outputs[0], outputs[1]);
        assert_true(weights[0] < schemes[i].weights);
        assert_true(outputs[1] < schemes[i].gain * outputs[0]);
    }
}

/* Of weights whose inputs are all alike, beam search and books fitted together lose less than k-means and k-means of
 * the residuals. */
static void a_joint_fit_beats_greedy_residuals(void **state)
{
    (void)state;
    static float alike[K * K];
    const qn_scheme *s = qn_scheme_find("aqlm-2x8");
    const qn_exec exec = {.pool = pool};
    for (int i = 0; i < K; i++) {
        alike[i * K + i] = TOKENS;
    }
    const double greedy = quantise(s, NULL, &exec);
    release();
    const double fitted = quantise(s, alike, &exec);
    release();
    print_message("mean square error: greedy %.4f, fitted %.4f\n", greedy * greedy, fitted * fitted);
    assert_true(fitted * fitted < 0.95 * greedy * greedy);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    static const char *const schemes[] = {"gptvq-2", "aqlm-2x8", "vptq-2", "quip-4"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        const qn_scheme *s = qn_scheme_find(schemes[i]);
        void *first[QN_VQ_PARTS];
        const double alone = quantise(s, squares, NULL);
        memcpy(first, parts, sizeof first);
        memset(parts, 0, sizeof parts);
        const double together = quantise(s, squares, &(qn_exec){.pool = pool});
        assert_true(alone == together);
        for (int p = 0; p < s->vq.written; p++) {
            assert_memory_equal(first[p], parts[p], bytes[p]);
            free(first[p]);
        }
        release();
    }
}

static void print_finding(void *user, int severity, const char *tensor, const char *text)
{
    (void)user;
    if (severity > 0) {
        print_message("verify: %s: %s\n", tensor ? tensor : "-", text);
    }
}

/* The folder: written, verified, read back under its name, and the model runs. */
static void folders(void **state)
{
    (void)state;
    char root[64] = "/tmp/quern-vq-XXXXXX", source[80], text[112], out[80];
    assert_non_null(mkdtemp(root));
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(text, sizeof text, "%s/" SYN_TEXT, source);
    snprintf(out, sizeof out, "%s/out", root);
    static syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, 20);
    assert_int_equal(syn_write(ctx, source, tensors), 0);
    static const char *const schemes[] = {"gptvq-2", "aqlm-2x8", "aqlm-3", "aqlm-1x16",
                                          "vptq-2",  "vptq-3",   "quip-2", "quip-4"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        qn_quantize_options options;
        qn_quantize_options_init(&options);
        options.scheme = schemes[i];
        options.calibration = text;
        options.force = 1;
        options.keep_last = i > 0; /* one layer of two shows it */
        qn_error error = {0};
        if (qn_quantize(ctx, source, out, &options, NULL, &error) != QN_OK) {
            fail_msg("%s: %s", schemes[i], error.text);
        }
        qn_checkpoint *c;
        assert_int_equal(qn_checkpoint_open(ctx, out, &c, NULL), QN_OK);
        qn_model_info info;
        qn_checkpoint_get_info(c, &info);
        assert_string_equal(info.scheme, schemes[i]);
        int64_t findings = -1;
        assert_int_equal(qn_checkpoint_verify(c, NULL, print_finding, NULL, &findings, &error), QN_OK);
        assert_int_equal(findings, 0);
        qn_checkpoint_close(c);
        qn_model_options how;
        qn_model_options_init(&how);
        qn_model *model;
        if (qn_model_open(ctx, out, &how, &model, &error) != QN_OK) {
            fail_msg("%s: %s", schemes[i], error.text);
        }
        qn_model_close(model);
        /* what is quantised this way is no source for another scheme */
        options.scheme = "int8";
        char again[96];
        snprintf(again, sizeof again, "%s/again", root);
        assert_int_equal(qn_quantize(ctx, out, again, &options, NULL, &error), QN_E_UNSUPPORTED);
    }
    syn_free(tensors);
    syn_remove(root);
}

/* A book with room for every vector of the weight loses no more than FP16 does. */
static void large_books_are_exact(void **state)
{
    (void)state;
    const qn_scheme *s = qn_scheme_find("aqlm-1x16");
    double weights, outputs;
    const double rms = quantise(s, squares, &(qn_exec){.pool = pool});
    errors(s, &weights, &outputs);
    release();
    print_message("aqlm-1x16: weights %.6f, outputs %.6f\n", weights, outputs);
    assert_true(weights < 5e-4 && fabs(rms - weights) < 1e-3 * weights);
}

/* A weight that the format has no place for. */
static void shapes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        int64_t n, k;
        const char *word;
    } bad[] = {{"quip-2", 24, 64, "16 rows by 64"},
               {"quip-4", 32, 96, "16 rows by 64"},
               {"quip-2", 64, 64 * 11, "length 704"},
               {"quip-2", 16 * 19, 64, "length 304"},
               {"aqlm-2x8", 8, 12, "vectors of 8"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_shape shapes[QN_VQ_PARTS];
        qn_error error = {0};
        const qn_status status = qn_vq_shapes(qn_scheme_find(bad[i].scheme), bad[i].n, bad[i].k, shapes, &error);
        if (status != QN_E_SHAPE || !strstr(error.text, bad[i].word)) {
            fail_msg("%s: %s \"%s\"", bad[i].scheme, qn_status_name(status), error.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feedback_lessens_the_error), cmocka_unit_test(a_joint_fit_beats_greedy_residuals),
        cmocka_unit_test(threads_do_not_matter),      cmocka_unit_test(shapes_are_refused),
        cmocka_unit_test(large_books_are_exact),      cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
