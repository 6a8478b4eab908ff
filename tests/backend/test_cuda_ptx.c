/* Device kernels where there is no GPU: the real NVRTC stops at PTX, and the stand-in driver runs that (fake/ptx.h).
 * Small cases of rows of the registry against the reference within the error model, as test_cuda_kernels does it on a
 * device; warps take turns in an order of their own in every launch, so that runs with the same bits are more than one
 * order of them. Attention on Hopper is not among them, whose operands are not all emulated. Without NVRTC it is
 * skipped.
 *
 *   test_cuda_ptx [WORD]   only cases whose text holds the word */
#include <dlfcn.h>
#include <math.h>

#include "backend/attention_cases.h"
#include "backend/cuda/mm.h"
#include "backend/fake/fake_cuda.h"
#include "base/clock.h"
#include "cli/process.h"
#include "format/format.h"
#include "kernels/common/cuda_mm.h"

static const char *word;
static fake_driver fake;
static char folder[64]; /* of programs that a later context needs again */

static void open_device(void)
{
    qn_ctx_options options;
    qn_error error = {0};
    qn_ctx_options_init(&options);
    options.cuda_library = QN_FAKE_CUDA;
    options.nvrtc_library = QN_PTX_NVRTC;
    options.cache_dir = getenv("QN_TEST_KERNEL_CACHE") ? getenv("QN_TEST_KERNEL_CACHE") : folder;
    must(qn_ctx_create(&options, &ctx, &error), &error, "a context");
    must(qn_stream_create(ctx, &stream, &error), &error, "a stream");
}

static void close_device(void)
{
    qn_stream_destroy(ctx, stream);
    qn_ctx_destroy(ctx);
    ctx = NULL;
    stream = NULL;
}

/* By device, as each has a context. */
typedef struct row {
    int major, minor;
    const char *text;
} row;

static const row rows[] = {
    {8, 0, "quantize_fp8 m=3 k=129 granularity=token"},
    {8, 0, "quantize_fp8 m=5 k=77 granularity=group group=64 type=e5m2 x=f16"},
    {8, 0, "quantize_int8 m=3 k=129 granularity=token symmetric=0"},
    {8, 0, "quantize_nvfp4 m=3 k=176"},
    {8, 0, "quantize_mxfp4 m=3 k=96 rule=even"},
    {8, 0, "silu_mul_quant m=4 k=256"},
    {8, 0, "dense_mm m=3 n=33 k=96 out=f32 b=q4_0"},
    {8, 0, "dense_mm m=3 n=40 k=72 x=bf16 b=bf16 bias=1"},
    {8, 0, "dense_mm m=19 n=40 k=72 x=bf16 b=bf16 bias=1"},
    {8, 0, "dense_mm m=9 n=70 k=33 x=f16 b=f16 out=f32"},
    {8, 0, "dense_mm m=11 n=9 k=40 x=f16 b=bf16"},
    {8, 0, "dense_mm m=9 n=20 k=544 out=f32 b=f16 bias=1"}, /* planes */
    {8, 0, "dense_mm m=12 n=9 k=77"},
    {8, 0, "dense_mm m=10 n=9 k=520 out=f32 b=bf16"},
    {8, 0, "dense_mm m=150 n=140 k=72 b=f16"},
    {8, 0, "dense_mm m=9 n=17 k=72 x=bf16 b=f16"},
    {8, 0, "dense_mm m=17 n=20 k=264 out=f32 x=bf16"},
    {8, 0, "dense_mm m=17 n=33 k=512 out=f32 b=i8_k"},
    {8, 0, "dense_mm m=9 n=131 k=96 out=f32 b=q4_0"},
    {8, 0, "dense_mm m=66 n=9 k=64 out=f32 x=f16 b=q4_1 bias=1"},
    {8, 0, "dense_mm m=2065 n=9 k=32 out=f32 b=q4_1 bias=1"}, /* more rows than are done at a time */
    {8, 0, "dense_mm m=12 n=10 k=96 out=f32 b=q5_0"},
    {8, 0, "dense_mm m=9 n=20 k=544 out=f32 x=bf16 b=q5_1"},
    {8, 0, "dense_mm m=20 n=17 k=96 out=f32 b=q8_0"},
    {8, 0, "dense_mm m=9 n=17 k=256 out=f32 b=q2_k"},
    {8, 0, "dense_mm m=10 n=9 k=256 out=f32 b=q3_k"},
    {8, 0, "dense_mm m=17 n=20 k=512 out=f32 b=q4_k bias=1"},
    {8, 0, "dense_mm m=9 n=12 k=256 out=f32 b=q5_k"},
    {8, 0, "dense_mm m=11 n=9 k=512 out=f32 b=q6_k"},
    {8, 0, "dense_mm m=9 n=9 k=96 out=f32 b=iq4_nl"},
    {8, 0, "dense_mm m=9 n=9 k=256 out=f32 b=iq4_xs"},
    {8, 0, "scaled_mm m=70 n=66 k=144 scale_a=token scale_b=channel azp_adj=1"},
    {8, 0, "block_scaled_mm m=20 n=136 k=272"},
    {8, 0, "grouped_block_scaled_mm m=90 n=136 k=272 e=3"},
    {8, 0, "grouped_block_scaled_mm m=20 n=70 k=150 e=4 out=f32 scale_layout=col"},
    {8, 0, "grouped_block_scaled_mm m=70 n=40 k=160 e=2 layout=masked out=f16"},
    {8, 0, "nvfp4_mm m=18 n=17 k=96 x=f16 bias=1"},
    {8, 0, "nvfp4_mm m=10 n=24 k=112 a=1"},
    {8, 0, "scaled_mm m=5 n=33 k=65 scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1"},
    {8, 0, "scaled_mm m=17 n=24 k=96 a=f8_e4m3 scale_a=token scale_b=channel"},
    {8, 0, "block_scaled_mm m=16 n=127 k=129"},
    {8, 0, "nvfp4_mm m=3 n=17 k=96 x=bf16"},
    {8, 0, "mxfp4_mm m=2 n=24 k=64"},
    {8, 0, "nvfp4_mm m=3 n=17 k=96 x=i8 bias=1 x_scale=token"},
    {8, 0, "mxfp4_mm m=9 n=24 k=64 x=i8"},
    {8, 0, "mxfp4_mm m=2 n=24 k=64 x=f8_e4m3 x_scale=token"},
    {8, 0, "vq_mm m=1 n=40 k=128 num_codebooks=1 in_group_size=4"},
    {8, 0, "vq_mm m=1 n=40 k=1096"},
    {8, 0, "vq_mm m=1 n=40 k=584 num_codebooks=4 x=bf16"},
    {8, 0, "vq_mm m=3 n=19 k=64"},
    {8, 0, "vq_mm m=1 n=40 k=64 format=gptvq"},
    {8, 0, "vq_mm m=40 n=40 k=64"},
    {8, 0, "vq_dequantize n=40 k=64"},
    {8, 0, "vq_attention m=2 n=65 k=64 e=4 g=2 q=f16"},
    {8, 0, "vq_attention m=2 n=63 k=64 e=4 g=2 page=7"},
    {8, 0, "vq_attention m=2 n=96 k=64 e=4 g=2 rope_theta=1e+04 window=40 page=16"},
    {8, 0, "scaled_attention m=2 n=150 k=64 e=4 g=2 window=70"},
    {8, 0, "scaled_attention m=18 n=83 k=64 e=6 g=2"},
    {8, 0, "scaled_attention m=50 n=300 k=64 e=2 g=1 window=70"},
    {8, 0, "scaled_attention m=37 n=190 k=32 e=2 g=2 window=32 causal=0 k_recent=bf16 v_recent=bf16"},
    {8, 0, "scaled_attention m=70 n=40 k=64 e=2 g=1 window=8"},
    {8, 0, "vq_mm m=1 n=48 k=64 format=quip_e8p SU=1 SV=1"},
    {8, 0, "rmsnorm m=3 k=577"},
    {8, 0, "rope m=3 k=64 e=9"},
    {8, 0, "rope m=2 k=10 e=3 theta=5e+05 style=interleaved factors=1"},
    {8, 0, "vq_attention m=2 n=65 k=64 e=4 g=2 rope_theta=5e+05 rope_factors=1"},
    {8, 0, "attention m=5 n=17 k=64 e=9 g=3"},
    {8, 0, "attention m=1 n=129 k=64 e=9 g=3 k=f16 v=f16"},
    {8, 0, "attention m=17 n=83 k=64 e=6 g=2"},
    {8, 0, "attention m=19 n=70 k=96 e=2 g=2 causal=0 q=bf16 k=bf16 v=bf16 out=bf16"},
    {8, 0, "attention m=18 n=150 k=128 e=2 g=1 q=f16 k=f16 v=f16 out=f16"},
    {8, 0, "attention m=70 n=40 k=32 e=4 g=2 k=f16 scale=0.3"},
    {8, 0, "attention m=17 n=16500 k=16 e=1 g=1"},
    {8, 0, "dense_mm m=9 n=20 k=640 x=bf16 b=bf16 bias=1"},
    {8, 0, "dense_mm m=20 n=9 k=1288 x=f16 b=f16 out=f32"},
    {8, 0, "scaled_mm m=9 n=20 k=528 scale_a=token scale_b=channel azp_adj=1 azp=1"},
    {8, 0, "scaled_mm m=66 n=9 k=528 a=f8_e4m3 scale_a=token scale_b=channel bias=f16"},
    {8, 0, "block_scaled_mm m=10 n=20 k=656"},
    {8, 0, "nvfp4_mm m=9 n=12 k=528 a=1"},
    {8, 0, "mxfp4_mm m=9 n=12 k=544 x=i8 x_scale=token bias=1"},
    {8, 0, "silu_mul m=3 k=77"},
    {8, 9, "block_scaled_mm m=3 n=65 k=383"},
    {8, 9, "nvfp4_mm m=9 n=17 k=48 x=f8_e4m3 bias=1 x_scale=token"},
    {9, 0, "quantize_fp8 m=3 k=700 x=bf16"},
    {9, 0, "quantize_fp8 m=2 k=5000 granularity=group group=100 x=f16"},
    {9, 0, "quantize_int8 m=16 k=700 symmetric=0 x=bf16"},
    {9, 0, "nvfp4_mm m=70 n=72 k=544 x=bf16"},   /* products of warpgroups: passes of few rows */
    {9, 0, "nvfp4_mm m=260 n=72 k=1056 x=bf16"}, /* strips by many rows, */
    {9, 0, "mxfp4_mm m=270 n=130 k=544 x=bf16 bias=1"},
    {9, 0, "nvfp4_mm m=280 n=65 k=800 x=f16 out=f32"},
    {9, 0, "mxfp4_mm m=40 n=72 k=992 x=bf16"}, /* rows of scales at any byte */
    {9, 0, "scaled_mm m=71 n=65 k=2080 scale_a=token scale_b=channel bias=1 azp_adj=1 azp=1"},
    {9, 0, "scaled_mm m=100 n=72 k=1040 a=f8_e4m3 scale_a=token"},
    {9, 0, "dense_mm m=70 n=72 k=200 x=bf16 b=bf16 bias=1"}, /* tiles, */
    {9, 0, "dense_mm m=20 n=72 k=264"},                      /* of planes of both */
    {9, 0, "scaled_mm m=300 n=136 k=272 scale_b=channel azp_adj=1"},
    {9, 0, "block_scaled_mm m=140 n=200 k=272"},
    {9, 0, "block_scaled_mm m=20 n=136 k=272"}, /* strips by few */
    {9, 0, "vq_mm m=20 n=72 k=256"},
    {9, 0, "quantize_nvfp4 m=3 k=176 swizzled=1 x=bf16"},
    {9, 0, "silu_mul_quant m=4 k=256 x=bf16"},
    {9, 0, "dense_mm m=1 n=40 k=72 x=bf16 b=bf16 bias=1"},
    {9, 0, "vq_mm m=3 n=40 k=64"},
    {9, 0, "vq_mm m=1 n=40 k=64 format=vptq"},
    {8, 0,
     "vq_mm m=3 n=40 k=136 format=vptq num_res_centroids=256 out=f32 x=f32 res_centroids.weight=1 perm=1"
     " weight_scale=1 weight_bias=1"},
    {9, 0,
     "vq_mm m=1 n=24 k=136 format=vptq num_centroids=65536 num_res_centroids=256 out=f32 x=f32"
     " res_centroids.weight=1 perm=1 weight_scale=1 weight_bias=1"},
    {9, 0, "vq_mm m=3 n=40 k=64 format=vptq out=f32 x=f32"},
    {9, 0, "vq_encode m=3 n=4 k=64 e=2"},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Of a device of two multiprocessors: tiles of 128 x 128, one or two a multiprocessor. */
static const row large[] = {
    {8, 0, "dense_mm m=150 n=140 k=72 x=bf16 b=bf16 bias=1"},
    {8, 0, "scaled_mm m=130 n=136 k=144 scale_a=token scale_b=channel bias=f16"},
    {8, 0, "nvfp4_mm m=97 n=120 k=96 x=bf16"},
    {8, 0, "block_scaled_mm m=140 n=200 k=272"},
    {8, 0, "mxfp4_mm m=129 n=136 k=96 x=f8_e4m3 x_scale=token"},
    {8, 0, "grouped_block_scaled_mm m=280 n=200 k=272 e=2"},
    {8, 0, "grouped_block_scaled_mm m=130 n=136 k=144 e=2 layout=masked tail=keep out=f32"},
};
enum { LARGE_ROWS = sizeof large / sizeof *large };

static void run_case(const qn_kernel *kernel, const char *text, const qn_op_desc *desc)
{
    qn_plan *const plan = plan_of(kernel, text, desc);
    for (int exact = 0; exact < 2; exact++) {
        char what[512];
        problem p;
        problem_make(&p, text, exact);
        snprintf(what, sizeof what, "%s, %s, %s", kernel->name, text, exact ? "exact, strided" : "random");
        run_layout(&p, plan, exact ? 3 : 0, exact ? 1 : 0, exact, 0, what);
        problem_free(&p);
    }
    qn_plan_destroy(plan);
}

static void run_row(const row *r)
{
    qn_error error = {0};
    qn_op_desc desc;
    const qn_kernel *kernel;
    const uint64_t begin = qn_clock_ns();
    const int before = runs;
    must(qn_op_desc_parse(r->text, &desc, &error), &error, r->text);
    for (int32_t k = 0; (kernel = qn_backend_cuda_row.kernel_at(k)); k++) {
        if (kernel->op == desc.op && !qn_cuda_kernel_refusal(ctx, kernel) && !kernel->accepts(kernel, &desc)) {
            run_case(kernel, r->text, &desc);
        }
    }
    assert_true(runs > before);
    printf("sm_%d%d %s: %d runs, %.2f s\n", r->major, r->minor, r->text, runs - before,
           (double)(qn_clock_ns() - begin) / 1e9);
}

/* Opens the device; the test is skipped where nothing compiles for it. */
static void need_compiler(void)
{
    qn_cuda *cuda;
    qn_cuda_image image = {0};
    qn_error error = {0};
    open_device();
    must(qn_cuda_require(ctx, &cuda, &error), &error, "the stand-in driver");
    const qn_status status = qn_cuda_compile(cuda, &qn_cuda_ceiling_program, cuda->device.target, &image, &error);
    qn_cuda_image_free(cuda, &image);
    if (status != QN_OK) {
        close_device();
        printf("skipped: %s\n", error.text);
        skip();
    }
}

static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    need_compiler();
    for (size_t i = 0; i < ROWS; i++) {
        const row *const r = &rows[i];
        if (i == 0 || r->major != rows[i - 1].major || r->minor != rows[i - 1].minor) {
            close_device();
            fake.setup(1, r->major, r->minor);
            open_device();
        }
        if (!word || strstr(r->text, word)) {
            run_row(r);
        }
    }
    close_device();
    fake.sms(2);
    fake.setup(1, 8, 0);
    open_device();
    for (size_t i = 0; i < LARGE_ROWS; i++) {
        if (!word || strstr(large[i].text, word)) {
            run_row(&large[i]);
        }
    }
    fake.sms(132);
    if (!word) { /* not Hopper's, whose operands are not all emulated */
        close_device();
        fake.setup(1, 8, 0);
        open_device();
        run_all_patterns("attention m=20 n=40 k=64 e=2 g=1");
        run_all_patterns("attention m=20 n=40 k=64 e=2 g=1 causal=0 q=bf16 k=bf16 v=bf16");
    }
    close_device();
    printf("%d runs, %d wrong, the largest error %.3g of the allowed\n", runs, failures, worst);
    assert_int_equal(failures, 0);
}

/* Products by digits and of planes, which know no infinities: rows of x with one, with NaN, near the ends of f32, of
 * zeros, and weights whose scale is no number. */
static void odd_rows_and_scales_agree(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t row, scale; /* bytes of a row of weights, and of it before an f16 scale */
    } cases[] = {{"dense_mm m=12 n=10 k=96 out=f32 b=q8_0", 3 * 34, 34},
                 {"dense_mm m=10 n=9 k=768 out=f32 b=q4_k bias=1", 3 * 144, 144},
                 {"dense_mm m=9 n=8 k=256 out=f32 b=q6_k", 210, 208},
                 {"dense_mm m=12 n=10 k=520 out=f32 b=f16", 1040, 10},
                 {"dense_mm m=9 n=9 k=104 out=f32 b=bf16 bias=1", 208, 18},
                 {"dense_mm m=9 n=9 k=77 out=f32", 308, 10}};
    fake.setup(1, 8, 0);
    need_compiler();
    const int before = failures;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const text = cases[i].text;
        problem p;
        const qn_kernel *kernel;
        int32_t at = 0;
        problem_fill(&p, text, 0);
        const int64_t k = p.desc.in[0].dims[1];
        odd_rows((float *)(void *)p.in[0].dense, k);
        uint8_t *const b = (uint8_t *)p.in[1].dense;
        memcpy(b + 2 * cases[i].row + cases[i].scale % cases[i].row, (uint8_t[2]){0x00, 0x7c}, 2); /* infinite */
        memcpy(b + 4 * cases[i].row + cases[i].scale % cases[i].row, (uint8_t[2]){0x00, 0x7e}, 2); /* NaN */
        problem_want(&p, text);
        while ((kernel = qn_backend_cuda_row.kernel_at(at)) &&
               (kernel->op != p.desc.op || qn_cuda_kernel_refusal(ctx, kernel) || kernel->accepts(kernel, &p.desc))) {
            at++;
        }
        assert_non_null(kernel);
        qn_plan *const plan = plan_of(kernel, text, &p.desc);
        run_layout(&p, plan, 0, 0, 0, 0, text);
        qn_plan_destroy(plan);
        problem_free(&p);
    }
    close_device();
    assert_int_equal(failures, before);
}

/* Runs without number, as test_cuda_kernels --again has them: more than at a time. */
static void more_runs_have_the_same_bits(void **state)
{
    (void)state;
    const int before = failures, first = runs;
    fake.setup(1, 8, 0);
    need_compiler();
    repeats = 70;
    run_row(&(row){8, 0, "silu_mul m=3 k=77"});
    repeats = 0;
    close_device();
    assert_true(runs - first >= 71 && (runs - first) % 71 == 0);
    assert_int_equal(failures, before);
}

/* Rows of 8-bit codes as the products of FP4 weights want them on Hopper: all codes, and rows' scales without gaps. */
static void codes_are_written_out(void **state)
{
    (void)state;
    enum { M = 5, K = 1032, PITCH = K + 24, SCALE_STEP = 12, COUNT = M * K };
    static uint8_t codes[M * PITCH], scales[M * SCALE_STEP];
    static uint16_t got[COUNT];
    float factors[M], want[K];
    void *from, *scales_from, *to, *factors_to;
    qn_error error = {0};
    qn_cuda *cuda;
    fake.setup(1, 9, 0);
    need_compiler();
    must(qn_cuda_require(ctx, &cuda, &error), &error, "the stand-in driver");
    for (int i = 0; i < M * PITCH; i++) {
        codes[i] = (uint8_t)(i * 7);
    }
    for (int m = 0; m < M; m++) {
        const float scale = 0.25f * (float)(m + 1);
        memcpy(scales + m * SCALE_STEP, &scale, sizeof scale);
    }
    must(qn_device_alloc(ctx, sizeof codes, &from, &error), &error, "codes");
    must(qn_device_alloc(ctx, sizeof scales, &scales_from, &error), &error, "scales");
    must(qn_device_alloc(ctx, sizeof got, &to, &error), &error, "results");
    must(qn_device_alloc(ctx, sizeof factors, &factors_to, &error), &error, "factors");
    must(qn_device_copy_in(ctx, from, codes, sizeof codes, stream, &error), &error, "codes");
    must(qn_device_copy_in(ctx, scales_from, scales, sizeof scales, stream, &error), &error, "scales");
    for (int i = 0; i < 2; i++) {
        qn_cuda_program program = {.source = "fp4_expand.cu", .entry = "qn_fp4_expand"};
        qn_cuda_function function;
        int64_t step = PITCH, scale_step = i ? 0 : SCALE_STEP;
        void *none = NULL;
        int32_t m_count = M, k = K, count = M;
        void *const arguments[] = {&from, &step, &scales_from, &scale_step, &to,   &factors_to,
                                   &none, &none, &m_count,     &k,          &count};
        const qn_cuda_geometry g = {.grid = {1, 1, 1}, .block = {256, 1, 1}, .dependent = 1};
        qn_cuda_define(&program, "B_FORMAT", i ? QN_MM_E4M3 : QN_MM_I8);
        qn_cuda_define(&program, "X_FORMAT", QN_MM_BF16);
        must(qn_cuda_function_get(cuda, &program, &function, &error), &error, program.source);
        const qn_cuda_run r = {.cuda = cuda, .device = &cuda->device, .functions = &function, .stream = stream};
        must(qn_cuda_push(cuda, &error), &error, "context");
        must(qn_cuda_launch(&r, 0, &g, arguments, &error), &error, program.source);
        qn_cuda_pop(cuda);
        must(qn_device_copy_out(ctx, got, to, sizeof got, stream, &error), &error, "results");
        must(qn_device_copy_out(ctx, factors, factors_to, sizeof factors, stream, &error), &error, "factors");
        must(qn_stream_sync(ctx, stream, &error), &error, "results");
        for (int m = 0; m < M; m++) {
            qn_format_get_row(i ? QN_F8_E4M3 : QN_I8)->decode(codes + m * PITCH, K, want);
            assert_true(factors[m] == 0.25f * (float)(i ? 1 : m + 1));
            for (int e = 0; e < K; e++) {
                const float v = qn_bf16_to_f32(got[m * K + e]);
                assert_true(v == want[e] || (v != v && want[e] != want[e]));
            }
        }
    }
    qn_device_free(ctx, from);
    qn_device_free(ctx, scales_from);
    qn_device_free(ctx, to);
    qn_device_free(ctx, factors_to);
    close_device();
}

/* Rows as planes of 16-bit floats, for products on Hopper: bf16 planes are all of a number, f16 planes 22 bits of it or
 * 2^-39 of the row's largest; what is no number is in the first plane alone. */
static void rows_become_planes(void **state)
{
    (void)state;
    enum { M = 3, K = 4128, PLANES = 3, PAD = 5, ROW = K * 4 + 32 };
    static const struct {
        qn_format format;
        int32_t planes, f16;
    } cases[] = {{QN_F32, 3, 0}, {QN_F16, 2, 0}, {QN_F32, 2, 1}, {QN_BF16, 1, 1}, {QN_Q4_0, 2, 1}, {QN_Q5_1, 2, 1}};
    static uint8_t stored[M * ROW];
    static uint16_t got[PLANES * M * K];
    static float want[K];
    void *from, *to, *scales_to, *odd_to;
    float scales[M + PAD];
    int32_t odd;
    uint64_t draw = 1;
    qn_error error = {0};
    qn_cuda *cuda;
    fake.setup(1, 9, 0);
    need_compiler();
    must(qn_cuda_require(ctx, &cuda, &error), &error, "the stand-in driver");
    must(qn_device_alloc(ctx, sizeof stored, &from, &error), &error, "rows");
    must(qn_device_alloc(ctx, sizeof got, &to, &error), &error, "planes");
    must(qn_device_alloc(ctx, sizeof scales, &scales_to, &error), &error, "scales");
    must(qn_device_alloc(ctx, sizeof odd, &odd_to, &error), &error, "the word");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int32_t planes = cases[c].planes, f16 = cases[c].f16, number = qn_cuda_stored_format(cases[c].format);
        const int blocks = number > QN_MM_BF16, k = blocks ? K : K - 3;
        for (int i = 0; i < M * ROW; i++) {
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            stored[i] = (uint8_t)(draw >> 56);
        }
        for (int m = 0; blocks && m < M; m++) { /* scales that are numbers; all other bits may be any */
            const int bytes = cases[c].format == QN_Q4_0 ? 18 : 24;
            for (int b = 0; b < K / 32; b++) {
                stored[m * ROW + b * bytes + 1] &= 0x3f;
                stored[m * ROW + b * bytes + 3] &= bytes == 24 ? 0x3f : 0xff;
            }
        }
        qn_cuda_program program = {.source = "mm_planes.cu", .entry = "qn_mm_planes"};
        qn_cuda_function function;
        qn_cuda_planes p = {.from = from,
                            .to = to,
                            .scales = scales_to,
                            .odd = odd_to,
                            .from_row = ROW,
                            .to_row = 2 * K,
                            .to_plane = 2 * M * K,
                            .k = k,
                            .pad = f16 ? PAD : 0};
        void *const arguments[] = {&p};
        const qn_cuda_geometry g = {
            .grid = {M, 1, 1}, .block = {96, 1, 1}, .shared_bytes = 96 * 64 * 3, .dependent = 1};
        program.shared_bytes = 96 * 64 * 3;
        qn_cuda_define(&program, "B_FORMAT", number);
        qn_cuda_define(&program, "PLANES", planes);
        qn_cuda_define(&program, "HALF", f16);
        must(qn_device_copy_in(ctx, from, stored, sizeof stored, stream, &error), &error, "rows");
        must(qn_cuda_function_get(cuda, &program, &function, &error), &error, program.source);
        const qn_cuda_run r = {.cuda = cuda, .device = &cuda->device, .functions = &function, .stream = stream};
        must(qn_cuda_push(cuda, &error), &error, "context");
        must(qn_cuda_launch(&r, 0, &g, arguments, &error), &error, program.source);
        qn_cuda_pop(cuda);
        must(qn_device_copy_out(ctx, got, to, sizeof got, stream, &error), &error, "planes");
        must(qn_device_copy_out(ctx, scales, scales_to, sizeof scales, stream, &error), &error, "scales");
        must(qn_device_copy_out(ctx, &odd, odd_to, sizeof odd, stream, &error), &error, "the word");
        must(qn_stream_sync(ctx, stream, &error), &error, "planes");
        assert_int_equal(odd, 0);
        assert_true(!f16 || (scales[M] == 1.0f && scales[M + PAD - 1] == 1.0f));
        for (int m = 0; m < M; m++) {
            double most = 0.0;
            qn_format_get_row(cases[c].format)->decode(stored + m * ROW, blocks ? K : k, want);
            for (int e = 0; e < k; e++) {
                most = isfinite(want[e]) && fabs((double)want[e]) > most ? fabs((double)want[e]) : most;
            }
            for (int e = 0; e < k; e++) {
                double sum = 0.0;
                for (int plane = 0; plane < planes; plane++) {
                    const uint16_t bits = got[plane * M * K + m * K + e];
                    const double v = (double)(f16 ? qn_f16_to_f32(bits) : qn_bf16_to_f32(bits));
                    assert_true(isfinite(want[e]) || plane == 0 || v == 0.0);
                    sum += v;
                }
                sum *= f16 ? (double)scales[m] : 1.0;
                const double size = fabs((double)want[e]), left = fabs(sum - (double)want[e]);
                const double bits = planes == 1 ? 0x1p-8 : 0x1p-22;
                const double allowed = f16 ? fmax(size * bits, most * 0x1p-39) : 0x1p-126;
                assert_true(isnan(want[e]) ? isnan(sum) : isinf(want[e]) ? sum == (double)want[e] : left <= allowed);
            }
        }
    }
    qn_device_free(ctx, from);
    qn_device_free(ctx, to);
    qn_device_free(ctx, scales_to);
    qn_device_free(ctx, odd_to);
    close_device();
}

/* Of such runs: what is no element is told, too. */
static void other_bits_are_told(void **state)
{
    (void)state;
    const qn_shape shape = {.ndim = 2, .dims = {2, 3}, .format = QN_F16};
    const int before = failures;
    operand o;
    open_device();
    operand_make(&o, &shape);
    operand_place(&o, 4, 0, "an operand");
    copy_rows(&o, o.host + guard, o.dense, 0);
    char *const image = malloc(o.bytes + 2 * guard);
    assert_non_null(image);
    memcpy(image, o.host, o.bytes + 2 * guard);
    assert_false(differs(&o, "y", image, 0, "the same"));
    image[guard + 10] ^= 1; /* the second row's first element, behind a gap of 4 bytes */
    assert_true(differs(&o, "y", image, 1, "a bit, as it is to be told"));
    image[guard + 10] ^= 1;
    image[guard + 6] ^= 1;
    assert_true(differs(&o, "y", image, 2, "a byte of a gap, as it is to be told"));
    assert_int_equal(failures, before + 2);
    failures = before;
    free(image);
    operand_remove(&o);
    free(o.dense);
    close_device();
}

static int start(void **state)
{
    (void)state;
    fake.handle = dlopen(QN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (!fake.handle || make_folder(folder) != 0) {
        fprintf(stderr, "the stand-in driver: %s\n", fake.handle ? "no temporary folder" : dlerror());
        return -1;
    }
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"fake_setup", &fake.setup}, {"fake_sms", &fake.sms}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(fake.handle, symbols[i].name);
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    fake.sms(4); /* less work where it is cut into as many pieces */
    return 0;
}

static int stop(void **state)
{
    (void)state;
    remove_folder(folder);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    word = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(odd_rows_and_scales_agree),
        cmocka_unit_test(more_runs_have_the_same_bits),
        cmocka_unit_test(codes_are_written_out),
        cmocka_unit_test(rows_become_planes),
        cmocka_unit_test(other_bits_are_told),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
