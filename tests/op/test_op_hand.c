/* Operators on inputs small enough to work out by hand; every expected number
 * is written here as it comes from docs/operators.md, without any helper. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/plan.h>

#include "ref/slots.h"

/* Run a case string through a plan of the reference. */
static void run_on(qn_backend backend, const char *text, const void *const in[QN_MAX_IN], void *const out[QN_MAX_OUT])
{
    qn_ctx *ctx = NULL;
    qn_plan *plan = NULL;
    qn_op_desc desc;
    qn_shape shapes[QN_MAX_OUT];
    qn_error error;
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = backend;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    if (qn_op_desc_parse(text, &desc, &error) != QN_OK || qn_op_desc_check(&desc, shapes, NULL, &error) != QN_OK ||
        qn_plan_create(ctx, &desc, &options, &plan, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (desc.in[i].format != QN_FORMAT_NONE) {
            args.in[i] = qn_view_make(in[i], &desc.in[i]);
        }
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (shapes[i].format != QN_FORMAT_NONE) {
            args.out[i] = qn_mut_view_make(out[i], &shapes[i]);
        }
    }
    const size_t bytes = qn_plan_workspace_bytes(plan, 64, 1);
    void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (qn_run(plan, &args, workspace, bytes, NULL, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    free(workspace);
    qn_plan_destroy(plan);
    qn_ctx_destroy(ctx);
}

static void run(const char *text, const void *const in[QN_MAX_IN], void *const out[QN_MAX_OUT])
{
    run_on(QN_BACKEND_REF, text, in, out);
}

static void fp8_token(void **state)
{
    (void)state;
    /* amax 448 and 896: scales 1 and 2 */
    const float x[2][4] = {{448.0f, 1.0f, -17.0f, 0.0f}, {896.0f, -896.0f, 3.0f, 19.0f}};
    uint8_t q[2][4];
    float scale[2];
    run("quantize_fp8 m=2 k=4 granularity=token", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 1.0f && scale[1] == 2.0f);
    /* 448 = 0x7E; 1 = 0x38; 17 lies between 16 (0x58) and 18 (0x59): tie to even; 0 */
    const uint8_t row0[4] = {0x7E, 0x38, 0xD8, 0x00};
    /* 448, -448, 1.5 = 0x3C, 9.5 between 9 (0x51) and 10 (0x52): tie to even */
    const uint8_t row1[4] = {0x7E, 0xFE, 0x3C, 0x52};
    assert_memory_equal(q[0], row0, 4);
    assert_memory_equal(q[1], row1, 4);
}

static void fp8_edges(void **state)
{
    (void)state;
    const float x[3][3] = {{0.0f, 0.0f, 0.0f}, {NAN, 448.0f, -NAN}, {INFINITY, 5.0f, -INFINITY}};
    uint8_t q[3][3];
    float scale[3];
    run("quantize_fp8 m=3 k=3 granularity=token", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 1.0f / 229376.0f && scale[1] == 1.0f && isinf(scale[2]));
    const uint8_t want[9] = {0, 0, 0, 0x7F, 0x7E, 0x7F, 0x7F, 0, 0x7F};
    assert_memory_equal(q, want, 9);
    run("quantize_fp8 m=3 k=3 granularity=group", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 1e-10f / 448.0f);
    assert_memory_equal(q, want, 9);
    run("quantize_fp8 m=3 k=3 granularity=group scale_format=ue8m0", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 0x1p-33f && scale[1] == 1.0f && isinf(scale[2]));
    const float peak[1] = {672.0f}; /* 672 / 448 = 1.5, rounds up to 2; 336 lies between 320 (0x7A) and 352: tie */
    run("quantize_fp8 m=1 k=1 granularity=group scale_format=ue8m0", (const void *[QN_MAX_IN]){peak}, (void *[4]){q, scale});
    assert_true(scale[0] == 2.0f);
    assert_int_equal(q[0][0], 0x7A);
}

static void fp8_fnuz_224(void **state)
{
    (void)state;
    const float x[4] = {224.0f, 240.0f, -0.0f, NAN}, one = 1.0f;
    uint8_t q[4];
    float scale[1];
    run("quantize_fp8 m=1 k=4 mode=static type=e4m3fnuz", (const void *[QN_MAX_IN]){x, &one}, (void *[4]){q, scale});
    const uint8_t want[4] = {0x7E, 0x7E, 0x00, 0x80}; /* 240 would be 0x7F: held to 224; no negative zero; NaN */
    assert_memory_equal(q, want, 4);
    const float y[2] = {448.0f, -224.0f};
    run("quantize_fp8 m=1 k=2 granularity=token type=e4m3fnuz", (const void *[QN_MAX_IN]){y}, (void *[4]){q, scale});
    assert_true(scale[0] == 2.0f);
    assert_int_equal(q[0], 0x7E);
    assert_int_equal(q[1], 0xF6); /* -112 = -1.75 * 2^6: exponent 6 + 8 = 14, mantissa 6 */
}

static void fp8_bounds_and_layout(void **state)
{
    (void)state;
    const float x[2][3] = {{448.0f, 1.0f, 896.0f}, {4.0f, 0.0f, 224.0f}};
    uint8_t q[2][3];
    float scale[4];
    run("quantize_fp8 m=2 k=3 granularity=group group=2 scale_layout=col", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 1.0f && scale[1] == 4.0f / 448.0f && scale[2] == 2.0f && scale[3] == 0.5f);
    run("quantize_fp8 m=2 k=3 granularity=token scale_ub=224", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    assert_true(scale[0] == 0.5f && scale[1] == 0.5f); /* amax is bounded, not the scale */
    assert_int_equal(q[0][0], 0x7E);
    assert_int_equal(q[0][1], 0x40); /* 1 / 0.5 = 2 */
}

static void int8_rules(void **state)
{
    (void)state;
    const float x[2][4] = {{127.0f, -127.0f, 0.5f, 1.5f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    int8_t q[2][4];
    float scale[2];
    int32_t azp[2];
    run("quantize_int8 m=2 k=4 granularity=token", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale});
    const int8_t want[8] = {127, -127, 0, 2, 0, 0, 0, 0}; /* halves to even */
    assert_memory_equal(q, want, 8);
    assert_true(scale[0] == 1.0f && scale[1] == 0.0f);

    const float y[2][4] = {{0.0f, 255.0f, 10.0f, NAN}, {-255.0f, 0.0f, -1.0f, -128.0f}};
    run("quantize_int8 m=2 k=4 granularity=token symmetric=0", (const void *[QN_MAX_IN]){y}, (void *[4]){q, scale, azp});
    const int8_t codes[8] = {-128, 127, -118, -128, -128, 127, 126, -1};
    assert_true(scale[0] == 1.0f && azp[0] == -128 && scale[1] == 1.0f && azp[1] == 127);
    assert_memory_equal(q, codes, 8);

    run("quantize_int8 m=2 k=4 granularity=token symmetric=0", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale, azp});
    assert_true(scale[1] == 1.0f && azp[1] == 0 && q[1][0] == 0); /* an empty range */

    const float limits[4] = {1e30f, -1e30f, 2.0f, 0.0f}, one = 1.0f;
    const int32_t z = -100;
    run("quantize_int8 m=1 k=4 mode=static symmetric=0", (const void *[QN_MAX_IN]){limits, &one, &z},
        (void *[4]){q, scale, azp});
    const int8_t saturated[4] = {127, -128, -98, -100};
    assert_memory_equal(q, saturated, 4);
}

static void nvfp4_values(void **state)
{
    (void)state;
    /* amax 6 with G = 448: sf = 448, r = 1 / (448 / 448) = 1: codes of the values themselves */
    float x[16] = {6.0f,  5.0f,  4.9f,  3.5f,  2.5f, 1.75f, 1.25f, 0.75f,
                   0.25f, 0.26f, -6.0f, -0.5f, 0.0f, 2.0f,  3.0f,  NAN};
    const float g = 448.0f;
    uint8_t q[8], scale[512];
    float global;
    run("quantize_nvfp4 m=1 k=16 global_scale=1", (const void *[QN_MAX_IN]){x, &g}, (void *[4]){q, scale, &global});
    /* 6:7 5:6(tie to 4) 4.9:6 3.5:6 2.5:4 1.75:4 1.25:2 0.75:2 0.25:0 0.26:1 -6:F -0.5:9 0:0 2:4 3:5 NaN:0 */
    const uint8_t want[8] = {0x67, 0x66, 0x44, 0x22, 0x10, 0x9F, 0x40, 0x05};
    assert_memory_equal(q, want, 8);
    assert_int_equal(scale[0], 0x7E);
    assert_true(global == 448.0f);

    run("quantize_nvfp4 m=1 k=16", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale, &global});
    assert_true(global == 448.0f); /* 2688 / 6 */
    memset(scale, 0xFF, sizeof scale);
    run("quantize_nvfp4 m=1 k=16 swizzled=1", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale, &global});
    assert_int_equal(scale[0], 0x7E);
    for (int i = 1; i < 512; i++) {
        assert_int_equal(scale[i], 0);
    }
    memset(x, 0, sizeof x);
    run("quantize_nvfp4 m=1 k=16", (const void *[QN_MAX_IN]){x}, (void *[4]){q, scale, &global});
    assert_true(global == 2688.0f * 0x1p40f && scale[0] == 0 && q[0] == 0);
}

static void mxfp4_rules(void **state)
{
    (void)state;
    float x[32] = {7.0f, 1.0f};
    uint8_t q[16], scale;
    run("quantize_mxfp4 m=1 k=32", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_int_equal(scale, 128); /* 6 * 2^0 < 7: e = 1 */
    assert_int_equal(q[0], 0x16); /* 3.5 ties to 4 (code 6), 0.5 is code 1 */
    run("quantize_mxfp4 m=1 k=32 rule=ocp", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_int_equal(scale, 127); /* floor(log2 7) - 2 = 0 */
    assert_int_equal(q[0], 0x27); /* 7 saturates to 6 */
    run("quantize_mxfp4 m=1 k=32 rule=even", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_int_equal(scale, 128); /* 7 = 1.75 * 4 moves up */
    memset(x, 0, sizeof x);
    run("quantize_mxfp4 m=1 k=32", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_int_equal(scale, 0);
}

static void scaled(void **state)
{
    (void)state;
    const int8_t a[2][3] = {{1, 2, 3}, {-128, -128, 127}}, b[2][3] = {{1, 0, -1}, {-128, -128, -128}};
    const float sa[2] = {0.5f, 2.0f}, sb[2] = {1.0f, 0.25f}, bias[2] = {10.0f, -1.0f};
    float d[2][2];
    run("scaled_mm m=2 n=2 k=3 out=f32 scale_a=token scale_b=channel bias=1", (const void *[QN_MAX_IN]){a, b, sa, sb, bias},
        (void *[4]){d});
    /* sums -2, -768; -255, 16512 */
    assert_true(d[0][0] == 9.0f && d[0][1] == -97.0f && d[1][0] == -500.0f && d[1][1] == 8255.0f);
    const int32_t adjust[2] = {0, -384}, azp[2] = {2, -1}; /* column sums of b */
    run("scaled_mm m=2 n=2 k=3 out=f32 scale_a=token scale_b=channel azp_adj=1 azp=1",
        (const void *[QN_MAX_IN]){a, b, sa, sb, NULL, adjust, azp}, (void *[4]){d});
    /* -768 + 768 = 0; 16512 - 384 = 16128 */
    assert_true(d[0][0] == -1.0f && d[0][1] == 0.0f && d[1][0] == -510.0f && d[1][1] == 8064.0f);
}

static void blocks(void **state)
{
    (void)state;
    /* K = 129: the second block holds one element; all codes are 1.0 (0x38) */
    uint8_t a[129], b[129];
    memset(a, 0x38, sizeof a);
    memset(b, 0x38, sizeof b);
    const float sa[2] = {1.0f, 100.0f}, sb[2] = {0.5f, 2.0f};
    float d;
    run("block_scaled_mm m=1 n=1 k=129 out=f32", (const void *[QN_MAX_IN]){a, sa, b, sb}, (void *[4]){&d});
    assert_true(d == 264.0f); /* 128 / 2 + 200 */
}

static void experts(void **state)
{
    (void)state;
    /* 4 rows: row 0 of no expert, 1 and 2 of expert 1, expert 0 empty, row 3 of none; N = K = 1 */
    const uint8_t a[4] = {0x7F, 0x38, 0x40, 0x7F}, b[2] = {0x38, 0x48}; /* NaN 1 2 NaN; 1, 4 */
    const float sa[4] = {NAN, 1.0f, 3.0f, NAN}, sb[2] = {1.0f, 0.5f};
    const int32_t offsets[3] = {1, 1, 3};
    float d[4] = {-1, -1, -1, -1};
    run("grouped_block_scaled_mm m=4 n=1 k=1 e=2 out=f32", (const void *[QN_MAX_IN]){a, sa, b, sb, offsets}, (void *[4]){d});
    assert_true(d[0] == 0.0f && d[1] == 2.0f && d[2] == 12.0f && d[3] == 0.0f);
}

static void nvfp4_product(void **state)
{
    (void)state;
    /* x = 1..16; b row: codes 2 (= 1.0) at even places, 0xA (= -1.0) at odd ones: sum = -8 */
    float x[16];
    uint8_t b[8];
    for (int i = 0; i < 16; i++) {
        x[i] = (float)(i + 1);
    }
    memset(b, 0xA2, sizeof b);
    const uint8_t scale = 0x40; /* 2 */
    const float global = 4.0f, bias = 0.25f;
    float d;
    run("nvfp4_mm m=1 n=1 k=16 out=f32 bias=1", (const void *[QN_MAX_IN]){x, NULL, NULL, NULL, b, &scale, &global, &bias},
        (void *[4]){&d});
    assert_true(d == -3.75f); /* -8 * 2 / 4 + 0.25 */
    uint8_t mx[16];
    float y[32];
    memset(mx, 0xA2, sizeof mx);
    for (int i = 0; i < 32; i++) {
        y[i] = (float)(i + 1);
    }
    const uint8_t e = 126;
    run("mxfp4_mm m=1 n=1 k=32 out=f32", (const void *[QN_MAX_IN]){y, mx, &e}, (void *[4]){&d});
    assert_true(d == -8.0f); /* -16 / 2 */
}

static void silu(void **state)
{
    (void)state;
    /* gate 64: silu(64) = 64 in f32; up 7, -3.5: v = 448, -224 */
    const float x[4] = {64.0f, 64.0f, 7.0f, -3.5f};
    uint8_t q[2];
    float scale;
    run("silu_mul_quant m=1 k=2", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_true(scale == 1.0f && q[0] == 0x7E && q[1] == 0xF6);
    run("silu_mul_quant m=1 k=2 scale_ub=0.5", (const void *[QN_MAX_IN]){x}, (void *[4]){q, &scale});
    assert_true(scale == 0.5f && q[0] == 0x7E && q[1] == 0xFE); /* 896 saturates; -448 */
    const float zeros[4] = {0};
    run("silu_mul_quant m=1 k=2 type=int8", (const void *[QN_MAX_IN]){zeros}, (void *[4]){q, &scale});
    assert_true(scale == 0x1p-23f && q[0] == 0);
    float y[2];
    run("silu_mul m=1 k=2 out=f32", (const void *[QN_MAX_IN]){zeros}, (void *[4]){y});
    assert_true(y[0] == 0.0f);
}

static void one_rounding(void **state)
{
    (void)state;
    /* 1 + 2^-8 + 2^-33: bf16 has 2^-7 steps at 1; through f32 it would be a tie and fall to 1 */
    const float x[3] = {1.0f, 0x1p-8f, 0x1p-33f}, ones[3] = {1.0f, 1.0f, 1.0f};
    uint16_t d;
    run("dense_mm m=1 n=1 k=3", (const void *[QN_MAX_IN]){x, ones}, (void *[4]){&d});
    assert_int_equal(d, 0x3F81);
    const float y[3] = {1.0f, 0x1p-11f, -0x1p-40f}; /* just below f16's tie at 1 + 2^-11 */
    run("dense_mm m=1 n=1 k=3 out=f16", (const void *[QN_MAX_IN]){y, ones}, (void *[4]){&d});
    assert_int_equal(d, 0x3C00);
}

static void model_operators(void **state)
{
    (void)state;
    const float x[2] = {3.0f, 4.0f}, w[2] = {1.0f, 2.0f};
    float y[2];
    run("rmsnorm m=1 k=2 eps=0", (const void *[QN_MAX_IN]){x, w}, (void *[4]){y});
    assert_true(fabsf(y[0] - 0.848528137f) < 1e-7f && fabsf(y[1] - 2.26274170f) < 3e-7f); /* 3, 8 over sqrt(12.5) */
    const int32_t pos = 1;
    run("rope m=1 k=2 e=1", (const void *[QN_MAX_IN]){x, &pos}, (void *[4]){y});
    assert_true(fabsf(y[0] - -1.74497702f) < 3e-7f && fabsf(y[1] - 4.68562217f) < 5e-7f); /* one radian */
    const int32_t two = 2;
    const float half = 2.0f; /* the frequency: one radian again */
    run("rope m=1 k=2 e=1 factors=1", (const void *[QN_MAX_IN]){x, &two, &half}, (void *[4]){y});
    assert_true(fabsf(y[0] - -1.74497702f) < 3e-7f && fabsf(y[1] - 4.68562217f) < 5e-7f);
    const float q[2] = {0.0f, 0.0f}, k[4] = {1.0f, 2.0f, 3.0f, 4.0f}, v[4] = {1.0f, 2.0f, 3.0f, 6.0f};
    run("attention m=2 n=2 k=1 e=1 g=1", (const void *[QN_MAX_IN]){q, k, v}, (void *[4]){y});
    assert_true(y[0] == 1.0f && y[1] == 1.5f);
}

/* Without rows a scale of the whole tensor is that of zeros, and is written; by every backend. */
static void no_rows(void **state)
{
    (void)state;
    const qn_backend backends[2] = {QN_BACKEND_REF, QN_BACKEND_CPU};
    for (int i = 0; i < 2; i++) {
        const float none[1] = {0.0f}, given = 0.25f;
        uint8_t q[1] = {1}, blocks[1] = {1};
        float scale = NAN;
        int32_t azp = 77;
        run_on(backends[i], "quantize_fp8 m=0 k=8", (const void *[QN_MAX_IN]){none}, (void *[4]){q, &scale});
        assert_true(scale == 1.0f / 229376.0f);
        run_on(backends[i], "quantize_fp8 m=0 k=8 mode=static", (const void *[QN_MAX_IN]){none, &given},
               (void *[4]){q, &scale});
        assert_true(scale == 0.25f);
        run_on(backends[i], "quantize_int8 m=0 k=8", (const void *[QN_MAX_IN]){none}, (void *[4]){q, &scale});
        assert_true(scale == 0.0f);
        run_on(backends[i], "quantize_int8 m=0 k=8 symmetric=0", (const void *[QN_MAX_IN]){none}, (void *[4]){q, &scale, &azp});
        assert_true(scale == 1.0f && azp == 0);
        run_on(backends[i], "quantize_nvfp4 m=0 k=16", (const void *[QN_MAX_IN]){none}, (void *[4]){q, blocks, &scale});
        assert_true(scale == 2688.0f * 0x1p40f);
        run_on(backends[i], "quantize_nvfp4 m=0 k=16 global_scale=1", (const void *[QN_MAX_IN]){none, &given},
               (void *[4]){q, blocks, &scale});
        assert_true(scale == 0.25f && q[0] == 1 && blocks[0] == 1);
    }
}

/* An infinite block scale multiplies the sum of its block: sums of both signs, of zeros, and beside a finite block. */
static void infinite_block_scale(void **state)
{
    (void)state;
    uint8_t a[3][130] = {{0}}, b[2][130] = {{0}};
    for (int k = 0; k < 128; k++) {
        a[0][k] = k % 3 == 0 ? 0x40 : 0;    /* 2, 0, 0, ... */
        a[1][k] = k % 2 == 0 ? 0x40 : 0xB8; /* 2, -1, 2, -1, ... */
        b[0][k] = 0x38;                     /* 1 */
        b[1][k] = 0xB8;                     /* -1 */
    }
    a[0][129] = b[0][129] = 0x38;
    const float scale_a[3][2] = {{INFINITY, 1.0f}, {INFINITY, 1.0f}, {INFINITY, 1.0f}}, scale_b[1][2] = {{1.0f, 1.0f}};
    const qn_backend backends[2] = {QN_BACKEND_REF, QN_BACKEND_CPU};
    for (int i = 0; i < 2; i++) {
        float d[3][2];
        run_on(backends[i], "block_scaled_mm m=3 n=2 k=130 out=f32", (const void *[QN_MAX_IN]){a, scale_a, b, scale_b},
               (void *[4]){d});
        for (int r = 0; r < 2; r++) {
            assert_true(isinf(d[r][0]) && d[r][0] > 0);
            assert_true(isinf(d[r][1]) && d[r][1] < 0);
        }
        assert_true(isnan(d[2][0]) && isnan(d[2][1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8_token),     cmocka_unit_test(fp8_edges),
        cmocka_unit_test(fp8_fnuz_224),  cmocka_unit_test(fp8_bounds_and_layout),
        cmocka_unit_test(int8_rules),    cmocka_unit_test(nvfp4_values),
        cmocka_unit_test(mxfp4_rules),   cmocka_unit_test(scaled),
        cmocka_unit_test(blocks),        cmocka_unit_test(experts),
        cmocka_unit_test(nvfp4_product), cmocka_unit_test(silu),
        cmocka_unit_test(one_rounding),  cmocka_unit_test(model_operators),
        cmocka_unit_test(no_rows),       cmocka_unit_test(infinite_block_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
