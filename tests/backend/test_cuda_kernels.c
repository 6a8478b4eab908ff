/* Every row of the CUDA registry on a device, against the reference: the shared case
 * table on the exact grid bit for bit and on random values within the error model;
 * outputs poisoned, bytes around them kept; dense, strided and off 16-byte
 * boundaries; two runs and a graph's replays the same bits. Without a device the
 * test is skipped and says why.
 *
 *   test_cuda_kernels [--brief|--sparing] [--again N] [--share FILE] [WORD [TESTS]]
 *
 * WORD          only cases whose text holds the word; TESTS: only tests of that name (with * and ?)
 * --brief       for compute-sanitizer: every case and layout once, with random values and nothing around operands; a
 *               case is named before it runs, so that a finding stands below its case
 * --sparing     the same, but only what launches a kernel that nothing before did: for a checker that takes seconds a
 *               launch
 * --again N     each case and layout with random values, then N times more, whose results have the first one's bits;
 *               elements that differ are told with the number of their run
 * --share FILE  processes that name the same file, which is not there before, deal the cases among themselves */
#include "backend/attention_cases.h"
#include "backend/launches.h"
#include "backend/turns.h"
#include "base/clock.h"
#include "kernels/structure.h"
#include "op/random_cases.h"

enum { MOST_WORK = 1 << 26 };

static const char *word;
static int rows_met, brief, sparing, left_out;
static turns deal;

static qn_ctx_options ctx_options(void)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.cache_dir = getenv("QN_TEST_KERNEL_CACHE");
    options.cubin_dir = getenv("QN_TEST_CUBINS");
    return options;
}

/* Opens the driver; where there is no device the test is skipped. */
static qn_device_info need_device(void)
{
    qn_device_info info;
    qn_error error = {0};
    if (qn_device_get_info(ctx, &info, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        skip();
    }
    return info;
}

/* A test that a checker of kernels' accesses, or many runs of a case, learn nothing from. */
static void leave_out_of_brief(const char *what)
{
    if (brief || repeats) {
        printf("left out: %s\n", what);
        skip();
    }
}

static void run_case(const qn_kernel *kernel, const char *text, const qn_op_desc *desc)
{
    static const size_t gaps[] = {0, 16, 3}, shifts[] = {0, 0, 1}; /* in elements */
    char what[512];
    int wanted[3], any = 0;
    for (size_t l = 0; l < 3; l++) {
        wanted[l] = !sparing || launches_another(kernel, text, desc, gaps[l], shifts[l]);
        any |= wanted[l];
    }
    if (!any) {
        left_out++;
        return;
    }
    if (!turns_is_mine(&deal)) {
        return;
    }
    if (brief || repeats) {
        printf("%s, %s, %d multiprocessors\n", kernel->name, text, qn_cuda_get(ctx)->device.sms);
    }
    const uint64_t start = qn_clock_ns();
    qn_plan *const plan = plan_of(kernel, text, desc);
    for (int exact = 0; exact < (brief || repeats ? 1 : 2); exact++) {
        problem p;
        problem_make(&p, text, exact);
        for (size_t l = 0; l < 3; l++) {
            if (!wanted[l]) {
                continue;
            }
            snprintf(what, sizeof what, "%s, %s, %s, gap %zu, shift %zu", kernel->name, text,
                     exact ? "exact" : "random", gaps[l], shifts[l]);
            run_layout(&p, plan, gaps[l], shifts[l], exact, brief, what);
        }
        problem_free(&p);
    }
    qn_plan_destroy(plan);
    if (brief || repeats) {
        printf("  %.2f s\n", (double)(qn_clock_ns() - start) * 1e-9);
    }
}

static void rows_agree_with_the_reference(void **state)
{
    (void)state;
    qn_error error = {0};
    const qn_device_info info = need_device();
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        if (qn_cuda_kernel_refusal(ctx, kernel)) {
            printf("%s: skipped: %s\n", kernel->name, qn_cuda_kernel_refusal(ctx, kernel));
            continue;
        }
        const char *text;
        int32_t bench;
        const int before = runs, failed = failures;
        worst = 0.0;
        for (int32_t c = 0; (text = qn_case_at(c, &bench)) != NULL; c++) {
            qn_op_desc desc;
            qn_case_cost cost;
            assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
            assert_int_equal(qn_case_get_cost(&desc, NULL, &cost, NULL), QN_OK);
            if (desc.op == kernel->op && cost.flops < MOST_WORK && cost.bytes < MOST_WORK &&
                (!word || strstr(text, word)) && !kernel->accepts(kernel, &desc)) {
                run_case(kernel, text, &desc);
            }
        }
        rows_met++;
        printf("%s: %d runs on %s, %d wrong, the largest error %.3g of the allowed\n", kernel->name, runs - before,
               info.name, failures - failed, worst);
    }
    qn_stream_destroy(ctx, stream);
    assert_true(rows_met > 0 && (runs > 0 || word || deal.file >= 0));
    assert_int_equal(failures, 0);
}

/* Every row of an operator on cases drawn at random; QN_TEST_CASES: how many of an operator, QN_TEST_SEED. */
static void random_cases_agree(void **state)
{
    (void)state;
    const char *const many = getenv("QN_TEST_CASES"), *const seed = getenv("QN_TEST_SEED");
    leave_out_of_brief("random cases: kernels and paths are those of the case table");
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = 1 << (many ? 26 : 22)};
    qn_error error = {0};
    need_device();
    const int before = failures, first = runs;
    worst = 0.0;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (int c = many ? atoi(many) : 2; c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char text[512];
            qn_op_desc desc;
            const qn_kernel *kernel;
            random_case(&r, qn_op_at(o), text, sizeof text);
            must(qn_op_desc_parse(text, &desc, &error), &error, text);
            for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
                if (kernel->op == desc.op && (!word || strstr(text, word)) && !qn_cuda_kernel_refusal(ctx, kernel) &&
                    !kernel->accepts(kernel, &desc)) {
                    run_case(kernel, text, &desc);
                }
            }
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("random cases: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* One case on every row that takes it, without the reference. */
static void run_large(const char *text, const qn_op_desc *desc, size_t gap, size_t shift)
{
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        char what[640];
        problem p;
        if (kernel->op != desc->op || (word && !strstr(text, word)) || qn_cuda_kernel_refusal(ctx, kernel) ||
            kernel->accepts(kernel, desc) || !turns_is_mine(&deal)) {
            continue;
        }
        qn_plan *const plan = plan_of(kernel, text, desc);
        snprintf(what, sizeof what, "%s, %s, large, gap %zu, shift %zu", kernel->name, text, gap, shift);
        problem_fill(&p, text, 0);
        run_layout(&p, plan, gap, shift, 0, 0, what);
        problem_free(&p);
        qn_plan_destroy(plan);
    }
}

/* Cases that the reference takes too long for: nothing outside of outputs and workspace is written, and three runs have
 * the same bits. Those of the case table, and QN_TEST_LARGE random ones of every operator. */
static void large_cases_keep_to_their_memory(void **state)
{
    (void)state;
    enum { MOST_BYTES = 1 << 30 };
    const char *const many = getenv("QN_TEST_LARGE"), *const seed = getenv("QN_TEST_SEED"), *text;
    leave_out_of_brief("large cases: kernels and paths are those of the case table");
    if (!many) {
        printf("skipped: minutes of one process; QN_TEST_LARGE=0 asks for them\n");
        skip();
    }
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = MOST_BYTES, .most_times = 12};
    qn_error error = {0};
    need_device();
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    int32_t bench;
    for (int32_t c = 0; (text = qn_case_at(c, &bench)) != NULL; c++) {
        qn_op_desc desc;
        qn_case_cost cost;
        must(qn_op_desc_parse(text, &desc, &error), &error, text);
        must(qn_case_get_cost(&desc, NULL, &cost, &error), &error, text);
        if ((cost.flops >= MOST_WORK || cost.bytes >= MOST_WORK) && cost.bytes < MOST_BYTES) {
            run_large(text, &desc, 0, 0);
        }
    }
    for (int c = atoi(many); c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char drawn[512];
            qn_op_desc desc;
            random_case(&r, qn_op_at(o), drawn, sizeof drawn);
            must(qn_op_desc_parse(drawn, &desc, &error), &error, drawn);
            run_large(drawn, &desc, c % 2 ? 0 : 3, c % 2 ? 0 : 1);
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("large cases: %d runs, %d wrong\n", runs - first, failures - before);
    assert_int_equal(failures, before);
}

/* A tuned cut as its line names it, on a card of so many multiprocessors (0: all): few make blocks go on from tile to
 * tile. */
static void run_cut(qn_cuda *cuda, const char *text, int32_t strip, const int32_t *value, int32_t sms)
{
    const qn_cuda_device kept = cuda->device;
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, out, &sizes, NULL), QN_OK);
    cuda->device.tuned_count = value != NULL;
    cuda->device.tuned[0] =
        (qn_tuned){.n = (int32_t)sizes.n, .k = (int32_t)sizes.k, .m = (int32_t)sizes.m, .strip = strip};
    if (value) {
        memcpy(cuda->device.tuned[0].value, value, sizeof cuda->device.tuned[0].value);
    }
    cuda->device.sms = sms ? sms : kept.sms;
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        if (kernel->op == desc.op && kernel->sums == QN_SUMS_FP8_MMA && !kernel->accepts(kernel, &desc)) {
            run_case(kernel, text, &desc);
        }
    }
    cuda->device = kept;
}

/* The device, if it is one that has tiles and bulk copies; else the test is skipped. */
static qn_cuda *need_hopper(void)
{
    qn_cuda *cuda;
    qn_error error = {0};
    if (qn_cuda_require(ctx, &cuda, &error) != QN_OK || cuda->device.target != QN_SM_90A) {
        printf("skipped: %s\n", *error.text ? error.text : "the device is no sm_90a");
        skip();
    }
    return cuda;
}

/* Small cases choose few of the cuts that there are: all of them here. */
static void every_cut_agrees(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t strip, value[9];
    } cuts[] = {
        {"block_scaled_mm m=600 n=392 k=272", 0, {256, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {192, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {192, 128, 1}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 192, 1}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 160, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=272", 0, {128, 64, 0}},
        {"block_scaled_mm m=900 n=392 k=200", 0, {256, 128, 0}},
        {"block_scaled_mm m=900 n=392 k=200", 0, {192, 128, 0}},
        {"block_scaled_mm m=600 n=392 k=100", 0, {256, 128, 0}},
        {"block_scaled_mm m=900 n=600 k=500", 0, {256, 128, 0}}, /* all of K in the ring */
        {"block_scaled_mm m=900 n=600 k=500", 0, {192, 128, 1}},
        {"block_scaled_mm m=900 n=600 k=500", 0, {128, 192, 1}},
        {"block_scaled_mm m=900 n=600 k=240", 0, {192, 128, 1}},
        {"block_scaled_mm m=900 n=600 k=100", 0, {128, 192, 1}},
        {"block_scaled_mm m=900 n=600 k=700", 0, {128, 160, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {256, 128, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {192, 128, 0}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {192, 128, 1}},
        {"block_scaled_mm m=300 n=264 k=1040 scale_layout=col", 0, {128, 192, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 64, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 96, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 128, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 96, 0}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 192, 0}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 64, 0, 1, 2}},
        {"block_scaled_mm m=60 n=392 k=656 scale_layout=col out=f16", 0, {64, 48, 0, 1, 3}},
        {"block_scaled_mm m=60 n=392 k=656", 0, {64, 128, 1, 1, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 96, 0, 1, 4}},
        {"block_scaled_mm m=100 n=392 k=1040 out=f32", 0, {128, 128, 0, 1, 2}},
        {"block_scaled_mm m=100 n=392 k=1040", 0, {128, 192, 0, 1, 3}},
        {"block_scaled_mm m=128 n=264 k=1040 scale_layout=col", 0, {128, 128, 0, 1, 8}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 0, 2, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 64, 1, 2, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {1, 2, 4, 1, 6, 2, 2, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {2, 1, 2, 2, 3, 1, 2, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {3, 4, 2, 1, 4, 1, 1, 1, 1}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 3, 1, 9, 1, 2, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {1, 4, 1, 2, 4, 1, 2, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {2, 2, 2, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {1, 2, 2, 2, 3, 2, 1, 0, 2}},
        {"block_scaled_mm m=60 n=392 k=1040", 1, {1, 1, 1, 1, 9, 1, 1, 0, 4}},
        {"block_scaled_mm m=60 n=392 k=272", 1, {1, 1, 2, 1, 4, 1, 1, 0, 3}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {2, 1, 2, 2, 3, 1, 1, 0, 2}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 3, 1, 9, 1, 1, 0, 2}},
        {"block_scaled_mm m=60 n=392 k=656", 1, {3, 1, 1, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=1040", 1, {1, 1, 1, 1, 13, 1, 1, 0, 3}},
        {"block_scaled_mm m=60 n=392 k=1040", 1, {1, 1, 1, 1, 6, 2, 1, 0, 2}},
        {"block_scaled_mm m=60 n=392 k=1300", 1, {3, 1, 1, 1, 7, 1, 1, 0, 1}},
        {"block_scaled_mm m=30 n=392 k=1300", 1, {3, 1, 1, 1, 8, 1, 1, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=656 out=f16", 1, {2, 1, 1, 1, 13, 1, 1, 0, 2}},
        {"block_scaled_mm m=100 n=392 k=656", 1, {2, 1, 1, 1, 6, 1, 1, 0, 1}},
        {"block_scaled_mm m=100 n=392 k=1040", 1, {1, 1, 1, 2, 4, 1, 1, 0, 2}},
        {"block_scaled_mm m=10 n=392 k=656", 1, {1, 1, 2, 1, 6, 2, 2, 0, 2}},
        {"block_scaled_mm m=10 n=392 k=656", 1, {2, 2, 3, 2, 4, 2, 2, 0, 1}},
        {"block_scaled_mm m=60 n=392 k=2600", 0, {64, 80, 0, 1, 5}},
        {"block_scaled_mm m=60 n=392 k=656 out=f32", 0, {64, 112, 0, 1, 2}},
        {"block_scaled_mm m=40 n=392 k=4104", 0, {64, 128, 0, 1, 8}},
        {"block_scaled_mm m=100 n=392 k=656", 0, {128, 144, 0, 1, 1}},
        {"block_scaled_mm m=100 n=392 k=2600 scale_layout=col", 0, {128, 160, 0, 1, 4}},
        {"block_scaled_mm m=70 n=392 k=1040", 0, {128, 32, 0, 1, 2}},
        {"block_scaled_mm m=8 n=392 k=4104", 1, {1, 1, 8, 1, 13, 2, 1, 0, 2}},
        {"block_scaled_mm m=30 n=392 k=4104", 1, {3, 1, 4, 1, 13, 1, 1, 0, 1}},
    };
    static const char *const groups[] = {
        "grouped_block_scaled_mm m=900 n=392 k=272 e=3",
        "grouped_block_scaled_mm m=600 n=136 k=656 e=2 out=f16",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2 out=f32",
        "grouped_block_scaled_mm m=300 n=392 k=272 e=3 layout=masked",
        "grouped_block_scaled_mm m=300 n=120 k=656 e=2 layout=masked",
        "grouped_block_scaled_mm m=400 n=120 k=656 e=2 layout=masked out=f32",
        "grouped_block_scaled_mm m=200 n=520 k=656 e=2 layout=masked scale_layout=col",
        "grouped_block_scaled_mm m=700 n=200 k=400 e=5 layout=masked", /* tiles of several heights */
        "grouped_block_scaled_mm m=256 n=200 k=200 e=5 layout=masked", /* results leave out of all stages of a tile */
        "grouped_block_scaled_mm m=1500 n=392 k=200 e=3",
        "grouped_block_scaled_mm m=40 n=64 k=656 e=3 layout=masked", /* one multiprocessor: teams */
        "grouped_block_scaled_mm m=60 n=64 k=400 e=2",
        "grouped_block_scaled_mm m=700 n=200 k=400 e=5 layout=masked tail=keep",
        "grouped_block_scaled_mm m=40 n=64 k=656 e=3 layout=masked tail=keep",
        "grouped_block_scaled_mm m=300 n=33 k=130 e=3 layout=masked tail=keep", /* the plain kernel */
        "grouped_block_scaled_mm m=900 n=392 k=272 e=3 tail=keep",
        "grouped_block_scaled_mm m=256 n=264 k=1040 e=9 layout=masked", /* few multiprocessors: tiles by tickets */
        "grouped_block_scaled_mm m=256 n=264 k=1100 e=9 layout=masked tail=keep",
        "grouped_block_scaled_mm m=256 n=264 k=1040 e=9 layout=masked out=f32"};
    static const int32_t cards[] = {0, 1, 5};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        for (size_t c = 0; c < 2 && (!word || strstr(cuts[i].text, word)); c++) {
            run_cut(cuda, cuts[i].text, cuts[i].strip, cuts[i].value, cards[c]);
        }
    }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(groups[i], word)); c++) {
            run_cut(cuda, groups[i], 0, NULL, cards[c]);
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("cuts: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before, worst);
    assert_int_equal(failures, before);
}

/* The first row of a family that takes a case. */
static const qn_kernel *row_of(const qn_cuda_family *family, const qn_op_desc *desc)
{
    size_t k = 0;
    while (k < family->bytes / sizeof(qn_kernel) &&
           (family->kernels[k].op != desc->op || family->kernels[k].accepts(&family->kernels[k], desc))) {
        k++;
    }
    assert_true(k < family->bytes / sizeof(qn_kernel));
    return &family->kernels[k];
}

/* Small cases take few of the ways that products of 16-bit floats, of scaled FP8 and INT8 and of FP4 weights, E8P12's
 * runs, and vector-quantised weights' tiles with many rows of x are dealt: cards of few multiprocessors more. */
static void every_deal_agrees(void **state)
{
    (void)state;
    static const char *const cases[] = {"dense_mm m=300 n=392 k=264 x=bf16 b=bf16 bias=1",
                                        "dense_mm m=600 n=200 k=200 x=f16 b=f16 out=f32",
                                        "dense_mm m=130 n=520 k=328 x=bf16 b=bf16 out=f16",
                                        "dense_mm m=40 n=328 k=1032 x=bf16 b=bf16 out=f32",
                                        "vq_mm m=1 n=6144 k=1024 format=quip_e8p out=f32 SU=1 SV=1",
                                        "vq_mm m=2 n=1024 k=5120 format=quip_e8p SU=1 SV=1",
                                        "vq_mm m=2 n=1024 k=20480 format=quip_e8p SU=1 SV=1", /* clusters of two */
                                        "vq_mm m=2 n=9000 k=3008 format=gptvq",
                                        "vq_mm m=2 n=1500 k=5056 format=gptvq",
                                        "vq_mm m=2 n=250 k=5056 format=gptvq bias=1",
                                        "vq_mm m=1 n=250 k=18496 format=gptvq out=f32",
                                        "vq_mm m=2 n=900 k=18496 format=gptvq bias=1", /* parts that a launch adds */
                                        "vq_mm m=40 n=1272 k=1280 out=f32",
                                        "vq_mm m=64 n=1280 k=1280 format=quip_e8p SU=1 SV=1",
                                        "vq_mm m=70 n=600 k=2304 format=gptvq out=f32",
                                        "vq_mm m=140 n=600 k=1792",
                                        "nvfp4_mm m=1 n=392 k=4128 x=bf16",
                                        "nvfp4_mm m=9 n=392 k=8224 x=bf16 bias=1",
                                        "nvfp4_mm m=16 n=1400 k=2080 x=f16 out=f32",
                                        "nvfp4_mm m=7 n=1000 k=4096 a=1",
                                        "nvfp4_mm m=30 n=392 k=2080 x=bf16",
                                        "nvfp4_mm m=60 n=520 k=1056 x=bf16",
                                        "nvfp4_mm m=70 n=392 k=1056 x=f16 bias=1",
                                        "mxfp4_mm m=200 n=136 k=544 x=bf16",
                                        "nvfp4_mm m=3 n=392 k=1040 x=bf16 bias=1", /* rows of codes not at 16 bytes */
                                        "nvfp4_mm m=40 n=200 k=272 x=f16",
                                        "mxfp4_mm m=5 n=392 k=4128 x=bf16",
                                        "mxfp4_mm m=16 n=1400 k=2080 x=bf16 out=f32",
                                        "mxfp4_mm m=60 n=520 k=1056 x=bf16",
                                        "nvfp4_mm m=13 n=1000 k=4096 x=i8 bias=1 x_scale=token",
                                        "nvfp4_mm m=70 n=392 k=1056 x=f8_e4m3 x_scale=token",
                                        "mxfp4_mm m=30 n=392 k=2080 x=i8 x_scale=token",
                                        "nvfp4_mm m=90 n=393 k=544 x=bf16", /* strips for many rows */
                                        "nvfp4_mm m=100 n=200 k=2080 x=bf16",
                                        "nvfp4_mm m=300 n=136 k=4128 x=f16 out=f32 bias=1",
                                        "nvfp4_mm m=130 n=1000 k=1040 a=1",
                                        "nvfp4_mm m=600 n=250 k=800 x=bf16 out=f16",
                                        "mxfp4_mm m=200 n=328 k=2080 x=bf16 bias=1",
                                        "mxfp4_mm m=150 n=1500 k=2880 x=bf16",
                                        "mxfp4_mm m=1100 n=100 k=544 x=bf16",
                                        "mxfp4_mm m=80 n=72 k=8192 x=bf16 out=f32",
                                        "nvfp4_mm m=3 n=392 k=4128 bias=1",
                                        "nvfp4_mm m=20 n=520 k=1056 out=f32",
                                        "nvfp4_mm m=40 n=392 k=1040",
                                        "mxfp4_mm m=8 n=1000 k=4096 x=f16",
                                        "mxfp4_mm m=100 n=392 k=1056 x=f16 bias=1",
                                        "mxfp4_mm m=90 n=520 k=2080 out=f32",
                                        "dense_mm m=150 n=392 k=1040",
                                        "dense_mm m=150 n=392 k=1040 out=f32 bias=1",
                                        "dense_mm m=40 n=520 k=2072 b=f16",
                                        "dense_mm m=300 n=200 k=1040 out=f32 b=bf16",
                                        "dense_mm m=12 n=1400 k=2080 out=f32",
                                        "dense_mm m=70 n=392 k=1048 x=f16 b=bf16",
                                        /* 128 x 256, warpgroups apart; with three stages; few k-blocks; a long K */
                                        "scaled_mm m=600 n=512 k=560 scale_a=token scale_b=channel azp_adj=1 azp=1",
                                        "scaled_mm m=600 n=1000 k=528 out=f16 scale_b=channel bias=f16 azp_adj=1 azp=1",
                                        "scaled_mm m=600 n=512 k=272 scale_a=token scale_b=channel bias=1",
                                        "scaled_mm m=300 n=512 k=2320 scale_a=token azp_adj=1",
                                        /* all of K in the ring, where b stays of int8 */
                                        "scaled_mm m=900 n=1400 k=500 scale_a=token scale_b=channel azp_adj=1 azp=1",
                                        "scaled_mm m=900 n=1400 k=240 scale_a=token scale_b=channel bias=1",
                                        "scaled_mm m=900 n=1400 k=100 scale_b=channel",
                                        "scaled_mm m=900 n=1400 k=500 out=f32 scale_b=channel bias=1",
                                        "scaled_mm m=900 n=1000 k=500 a=f8_e4m3 scale_a=token scale_b=channel",
                                        /* 128 x 192, 128 x 128, by lanes */
                                        "scaled_mm m=600 n=328 k=1040 scale_a=token scale_b=channel",
                                        "scaled_mm m=600 n=640 k=1040 scale_a=token scale_b=channel azp_adj=1",
                                        "scaled_mm m=600 n=520 k=700 out=f32 scale_a=token scale_b=channel azp_adj=1",
                                        "scaled_mm m=900 n=512 k=560 a=f8_e4m3 scale_a=token scale_b=channel",
                                        "scaled_mm m=600 n=328 k=1040 a=f8_e4m3 scale_b=channel bias=bf16",
                                        "scaled_mm m=600 n=512 k=1040 out=f32 a=f8_e4m3 scale_b=channel",
                                        /* strips for many rows */
                                        "scaled_mm m=70 n=200 k=2080 scale_a=token scale_b=channel azp_adj=1 azp=1",
                                        "scaled_mm m=90 n=393 k=1040 out=f32 scale_b=channel bias=1",
                                        "scaled_mm m=130 n=136 k=4112 out=f16 scale_a=token bias=f16 azp_adj=1",
                                        "scaled_mm m=200 n=520 k=8208 scale_a=token scale_b=channel",
                                        "scaled_mm m=256 n=72 k=1040 scale_a=token scale_b=channel azp_adj=1",
                                        "scaled_mm m=75 n=328 k=2064 a=f8_e4m3 scale_a=token scale_b=channel bias=bf16",
                                        "scaled_mm m=110 n=200 k=8208 a=f8_e4m3 scale_b=channel",
                                        "scaled_mm m=190 n=393 k=1040 out=f32 a=f8_e4m3 scale_a=token",
                                        "scaled_mm m=250 n=1000 k=528 out=f16 a=f8_e4m3 scale_b=channel"};
    static const int32_t cards[] = {1, 2, 4, 6, 12};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const qn_cuda_device kept = cuda->device;
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_op_desc desc;
        assert_int_equal(qn_op_desc_parse(cases[i], &desc, NULL), QN_OK);
        const int dense = desc.op == QN_OP_DENSE_MM, same = desc.in[0].format == desc.in[1].format;
        const qn_cuda_family *const family = desc.op == QN_OP_VQ_MM                ? &qn_cuda_vq_family
                                             : desc.op == QN_OP_SCALED_MM          ? &qn_cuda_scaled_mm_family
                                             : !dense                              ? &qn_cuda_fp4_mm_family
                                             : same && desc.in[0].format != QN_F32 ? &qn_cuda_dense_mm_family
                                                                                   : &qn_cuda_planes_family;
        const qn_kernel *const kernel = row_of(family, &desc);
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(cases[i], word)); c++) {
            cuda->device.sms = cards[c];
            run_case(kernel, cases[i], &desc);
        }
    }
    cuda->device = kept;
    qn_stream_destroy(ctx, stream);
    printf("deals: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before, worst);
    assert_int_equal(failures, before);
}

/* An infinity or NaN in the place of a weight. */
static void put_odd_weight(problem *p, int64_t row, int64_t column, int nan)
{
    const qn_format format = p->desc.in[1].format;
    const uint32_t bits = format == QN_F16 ? nan ? 0x7e00 : 0x7c00 : nan ? 0x7fc00000 : 0xff800000;
    uint8_t *const at = (uint8_t *)p->in[1].dense;
    const int64_t i = row * p->desc.in[1].dims[1] + column;
    if (format == QN_F32) {
        memcpy(at + 4 * i, &bits, 4);
    } else {
        memcpy(at + 2 * i, &(uint16_t){(uint16_t)(format == QN_F16 ? bits : bits >> 16)}, 2);
    }
}

/* Products of planes of 16-bit floats: rows of x and weights that are no numbers or near the ends of f32, more rows and
 * columns than become planes at a time, and sums all of whose products are equal. */
static void planes_agree(void **state)
{
    (void)state;
    enum { ODD_NUMBERS, MANY_ROWS, EQUAL_PRODUCTS };
    static const struct {
        const char *text;
        int what;
    } cases[] = {{"dense_mm m=12 n=10 k=96 out=f32", ODD_NUMBERS},
                 {"dense_mm m=9 n=136 k=203 out=f32 bias=1", ODD_NUMBERS},
                 {"dense_mm m=70 n=72 k=1032 out=f32 b=f16", ODD_NUMBERS},
                 {"dense_mm m=9 n=8 k=256 out=f32 b=bf16", ODD_NUMBERS},
                 {"dense_mm m=9 n=8452 k=8192 out=f32 bias=1", MANY_ROWS},
                 {"dense_mm m=4108 n=8 k=8192 out=f32", MANY_ROWS},
                 {"dense_mm m=2812 n=8 k=8192 b=bf16", MANY_ROWS},
                 {"dense_mm m=9 n=200 k=14336 out=f32", EQUAL_PRODUCTS},
                 {"dense_mm m=130 n=72 k=14336 out=f32 b=f16", EQUAL_PRODUCTS},
                 {"dense_mm m=130 n=72 k=14336 out=f32 b=bf16", EQUAL_PRODUCTS},
                 {"mxfp4_mm m=12 n=72 k=1120 out=f32", ODD_NUMBERS},
                 {"mxfp4_mm m=90 n=72 k=1120 out=f32 bias=1", ODD_NUMBERS},
                 {"mxfp4_mm m=10760 n=8 k=8192", MANY_ROWS}};
    leave_out_of_brief("planes of odd numbers: kernels and paths are those of the case table");
    need_hopper();
    qn_error error = {0};
    const int before = failures, first = runs;
    worst = 0.0;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const text = cases[i].text;
        if ((word && !strstr(text, word)) || !turns_is_mine(&deal)) {
            continue;
        }
        problem p;
        problem_fill(&p, text, 0);
        const int64_t m = p.desc.in[0].dims[0], n = p.desc.in[1].dims[0], k = p.desc.in[0].dims[1];
        const int mx = p.desc.op == QN_OP_MXFP4_MM;
        float *const x = (float *)(void *)p.in[0].dense;
        if (cases[i].what == ODD_NUMBERS) {
            odd_rows(x, k);
            if (mx) {
                ((uint8_t *)p.in[QN_MXMM_B_SCALE].dense)[4 * (k / 32) + 1] = 255;
            } else {
                put_odd_weight(&p, 2, 3, 0);
                put_odd_weight(&p, 4, 60, 1);
            }
        } else if (cases[i].what == EQUAL_PRODUCTS) {
            for (int64_t e = 0; e < m * k; e++) {
                x[e] = 1.1f;
            }
            for (int64_t e = 1; e < n * k; e++) {
                const int64_t size = p.desc.in[1].format == QN_F32 ? 4 : 2;
                memcpy((uint8_t *)p.in[1].dense + e * size, p.in[1].dense, (size_t)size);
            }
        }
        problem_want(&p, text);
        const qn_kernel *const kernel = row_of(mx ? &qn_cuda_fp4_mm_family : &qn_cuda_planes_family, &p.desc);
        qn_plan *const plan = plan_of(kernel, text, &p.desc);
        run_layout(&p, plan, 0, 0, 0, 0, text);
        qn_plan_destroy(plan);
        problem_free(&p);
    }
    qn_stream_destroy(ctx, stream);
    printf("planes: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* What sums whose roundings agree may be off by, of what the error model allows random ones (docs/operators.md): errors
 * of blocks of 128 in FP8 tensor cores all have a sign, and where all of K stays in the tensor core so have its own. */
static double slack_of(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_format x = desc->in[0].format, b = desc->in[1].format;
    const double k = (double)desc->in[0].dims[1];
    return kernel->sums == QN_SUMS_FP8_MMA ? sqrt(k / 128.0)
           : desc->op == QN_OP_DENSE_MM && x == b && (x == QN_F16 || x == QN_BF16) ? 2.0
                                                                                   : 1.0;
}

/* Sums that random operands would not find wrong, by every kernel that takes them. */
static void structured_operands_agree(void **state)
{
    (void)state;
    static const char *const cases[] = {"dense_mm m=9 n=24 k=8192 out=f32",
                                        "dense_mm m=1 n=24 k=14336 x=bf16 b=bf16 out=f32",
                                        "dense_mm m=8 n=24 k=14336 x=bf16 b=bf16 out=f32",
                                        "dense_mm m=136 n=264 k=14336 x=bf16 b=bf16 out=f32",
                                        "dense_mm m=8 n=24 k=14336 x=f16 b=f16 out=f32",
                                        "dense_mm m=136 n=264 k=14336 x=f16 b=f16 out=f32",
                                        "dense_mm m=136 n=72 k=8192 x=bf16 b=f16 out=f32",
                                        "dense_mm m=24 n=24 k=4096 b=q4_1 out=f32",
                                        "scaled_mm m=24 n=24 k=8192 a=f8_e4m3 out=f32",
                                        "scaled_mm m=24 n=24 k=8192 a=f8_e4m3 scale_a=token scale_b=channel out=f32",
                                        "block_scaled_mm m=24 n=24 k=8192 out=f32",
                                        "block_scaled_mm m=136 n=136 k=8192 out=f32",
                                        "nvfp4_mm m=24 n=24 k=14336 x=bf16 out=f32",
                                        "mxfp4_mm m=24 n=24 k=8192 x=bf16 out=f32",
                                        "nvfp4_mm m=24 n=24 k=14336 out=f32",
                                        "nvfp4_mm m=136 n=72 k=14336 out=f32",
                                        "mxfp4_mm m=24 n=24 k=8192 x=f16 out=f32",
                                        "silu_mul m=8 k=304 out=f32",
                                        "rmsnorm m=8 k=4096",
                                        "attention m=70 n=700 k=128 e=3 g=1",
                                        "attention m=1 n=4100 k=64 e=2 g=2 k=f16 v=f16 causal=0"};
    leave_out_of_brief("structured operands: kernels and paths are those of the case table");
    need_device();
    qn_error error = {0};
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const text = cases[i];
        const qn_kernel *kernel;
        if (word && !strstr(text, word)) {
            continue;
        }
        for (int32_t j = 0; (kernel = qn_backend_cuda_row.kernel_at(j)); j++) {
            qn_op_desc desc;
            must(qn_op_desc_parse(text, &desc, &error), &error, text);
            if (kernel->op != desc.op || qn_cuda_kernel_refusal(ctx, kernel) || kernel->accepts(kernel, &desc) ||
                !turns_is_mine(&deal)) {
                continue;
            }
            problem p;
            void *in[QN_MAX_IN];
            problem_fill(&p, text, 0);
            for (int s = 0; s < QN_MAX_IN; s++) {
                in[s] = p.in[s].dense;
            }
            structure_operands(&p.desc, in, 0);
            problem_want(&p, text);
            worst = 0.0;
            slack = slack_of(kernel, &p.desc);
            qn_plan *const plan = plan_of(kernel, text, &p.desc);
            run_layout(&p, plan, 0, 0, 0, 0, text);
            slack = 1.0;
            printf("structured, %s, %s: error %.3g of the allowed\n", kernel->name, text, worst);
            qn_plan_destroy(plan);
            problem_free(&p);
        }
    }
    qn_stream_destroy(ctx, stream);
    printf("structured: %d runs, %d wrong\n", runs - first, failures - before);
    assert_int_equal(failures, before);
}

/* Tensors with one scale in one launch, on cards of so few multiprocessors that small ones are large: what just fits
 * shared memory, and with it registers, and with them the ring, one slot more, and many; with elements left over. */
static void whole_tensors_agree(void **state)
{
    (void)state;
    static const char *const cases[] = {"quantize_fp8 m=12 k=7680 x=bf16",
                                        "quantize_fp8 m=1 k=153600 type=e5m2 x=f16",
                                        "quantize_fp8 m=24 k=7680 scale_format=ue8m0 x=bf16",
                                        "quantize_fp8 m=25 k=7680 type=e5m2 scale_ub=0.5 x=bf16",
                                        "quantize_fp8 m=61 k=7553",
                                        "quantize_fp8 m=120 k=7553 x=bf16",
                                        "quantize_int8 m=24 k=7681 x=f16",
                                        "quantize_int8 m=61 k=7553 x=bf16",
                                        "quantize_int8 m=33 k=7680 symmetric=0 x=bf16",
                                        "quantize_int8 m=61 k=7553 symmetric=0",
                                        "quantize_int8 m=120 k=7553 symmetric=0 x=f16",
                                        "quantize_nvfp4 m=33 k=15360 x=bf16",
                                        "quantize_nvfp4 m=300 k=3088 x=f16"};
    static const int32_t cards[] = {1, 2, 5};
    qn_cuda *const cuda = need_hopper();
    qn_error error = {0};
    const qn_cuda_device kept = cuda->device;
    const int before = failures, first = runs;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    sparing = 0; /* what is done hangs on sizes */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_op_desc desc;
        assert_int_equal(qn_op_desc_parse(cases[i], &desc, NULL), QN_OK);
        const qn_kernel *const kernel = desc.op == QN_OP_QUANTIZE_NVFP4
                                            ? qn_cuda_fp4_family.kernels
                                            : &qn_cuda_quantize_family.kernels[desc.op != QN_OP_QUANTIZE_FP8];
        assert_int_equal(kernel->op, desc.op);
        for (size_t c = 0; c < sizeof cards / sizeof *cards && (!word || strstr(cases[i], word)); c++) {
            cuda->device.sms = cards[c];
            run_case(kernel, cases[i], &desc);
        }
    }
    cuda->device = kept;
    qn_stream_destroy(ctx, stream);
    printf("whole tensors: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* Milliseconds until there is a plan of that case in a new context and, in `second`, of another one. */
static double plan_ms(const char *text, double *second)
{
    qn_ctx *fresh;
    qn_op_desc desc;
    qn_error error = {0};
    qn_plan_options options;
    qn_plan *plans[2];
    double ms[2];
    const qn_ctx_options context = ctx_options();
    must(qn_ctx_create(&context, &fresh, &error), &error, "context");
    must(qn_op_desc_parse(text, &desc, &error), &error, text);
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    qn_device_info info;
    must(qn_device_get_info(fresh, &info, &error), &error, "device"); /* opens the driver */
    for (int i = 0; i < 2; i++) {
        const uint64_t start = qn_clock_ns();
        must(qn_plan_create(fresh, &desc, &options, &plans[i], &error), &error, text);
        ms[i] = (double)(qn_clock_ns() - start) * 1e-6;
    }
    qn_plan_destroy(plans[0]);
    qn_plan_destroy(plans[1]);
    qn_ctx_destroy(fresh);
    *second = ms[1];
    return ms[0];
}

/* A plan whose kernels were made before: out of files once, then out of memory. */
static void warm_plans_are_quick(void **state)
{
    (void)state;
    static const char *const texts[] = {"block_scaled_mm m=16 n=4096 k=7168", "nvfp4_mm m=8 n=4096 k=4096 x=bf16",
                                        "quantize_fp8 m=8 k=7168 granularity=group x=bf16"};
    leave_out_of_brief("plans' times");
    need_device();
    const int before = failures;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        double made, read, again;
        made = plan_ms(texts[i], &again);
        read = plan_ms(texts[i], &again);
        printf("plan of '%s': %.2f ms first, %.2f ms out of files, %.3f ms again\n", texts[i], made, read, again);
        if (again > 5.0) {
            WRONG("%s: a second plan took %.2f ms", texts[i], again);
        }
    }
    assert_int_equal(failures, before);
}

static void patterns_of_attention_agree(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "attention m=300 n=300 k=64 e=2 g=1",
        "attention m=40 n=1500 k=128 e=2 g=1 causal=0",
        "attention m=300 n=300 k=96 e=2 g=1 q=bf16 k=bf16 v=bf16",
        "attention m=300 n=300 k=128 e=2 g=1 q=f16 k=f16 v=f16",
        "attention m=300 n=300 k=64 e=2 g=1 k=f16 v=f16",
    };
    leave_out_of_brief("patterns of attention: kernels and paths are those of the case table");
    qn_error error = {0};
    need_device();
    const int before = failures, first = runs;
    worst = 0.0;
    must(qn_stream_create(ctx, &stream, &error), &error, "stream");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        run_all_patterns(texts[i]);
    }
    qn_stream_destroy(ctx, stream);
    printf("patterns: %d runs, %d wrong, the largest error %.3g of the allowed\n", runs - first, failures - before,
           worst);
    assert_int_equal(failures, before);
}

/* Compiled code needs no local memory: asked of the driver, for every function a case needs whose cubin is at hand.
 * Those of cases that are only timed may not be: compiling them all takes minutes, and test_cuda_compile looks at them
 * without a device. */
static void functions_do_not_spill(void **state)
{
    (void)state;
    qn_ctx *made;
    qn_cuda *cuda;
    qn_error error = {0};
    leave_out_of_brief("functions' local memory: nothing is launched");
    qn_ctx_options options = ctx_options();
    options.jit = QN_JIT_CACHE_ONLY;
    must(qn_ctx_create(&options, &made, &error), &error, "context");
    if (qn_cuda_require(made, &cuda, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        qn_ctx_destroy(made);
        skip();
    }
    const int before = failures;
    const qn_kernel *kernel;
    int functions = 0, absent = 0;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        const char *text;
        int32_t bench;
        const qn_cuda_impl *impl = kernel->impl;
        for (int32_t c = 0; !qn_cuda_kernel_refusal(ctx, kernel) && (text = qn_case_at(c, &bench)) != NULL; c++) {
            static qn_cuda_program programs[QN_CUDA_PROGRAMS];
            qn_op_desc desc;
            assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
            if (desc.op != kernel->op || kernel->accepts(kernel, &desc) || (word && !strstr(text, word))) {
                continue;
            }
            memset(programs, 0, sizeof programs);
            const int32_t count = impl->programs(kernel, &desc, &cuda->device, programs);
            for (int32_t p = 0; p < count; p++) {
                qn_cuda_function f = {0};
                const qn_status status = qn_cuda_function_get(cuda, &programs[p], &f, &error);
                absent += status == QN_E_JIT;
                if (status != QN_E_JIT) {
                    must(status, &error, text);
                    functions++;
                }
                if (f.local_bytes) {
                    WRONG("%s, %s: %s has %d bytes of local memory", kernel->name, text, programs[p].entry,
                          f.local_bytes);
                }
            }
        }
    }
    printf("%d functions looked at, %d skipped: neither shipped nor cached\n", functions, absent);
    qn_ctx_destroy(made);
    assert_true(functions > 0 || word || !(options.cache_dir || options.cubin_dir));
    assert_int_equal(failures, before);
}

static int start(void **state)
{
    (void)state;
    const qn_ctx_options options = ctx_options();
    if (qn_ctx_create(&options, &ctx, NULL) != QN_OK) {
        return -1;
    }
    if (sparing && !*qn_cuda_get(ctx)->refusal) {
        launches_open(&options);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    if (left_out) {
        printf("left out: %d cases, which launch no other kernels than those before\n", left_out);
    }
    turns_close(&deal);
    qn_ctx_destroy(launches.ctx);
    qn_ctx_destroy(ctx);
    return 0;
}

int main(int argc, char **argv)
{
    const char *share = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is stopped has told what it did */
    int at = 1;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--brief") == 0) {
            brief = 1;
        } else if (strcmp(argv[at], "--sparing") == 0) {
            brief = sparing = 1;
        } else if (strcmp(argv[at], "--again") == 0 && at + 1 < argc && atol(argv[at + 1]) > 0) {
            repeats = atol(argv[++at]);
        } else if (strcmp(argv[at], "--share") == 0 && at + 1 < argc) {
            share = argv[++at];
        } else {
            fprintf(stderr, "test_cuda_kernels [--brief|--sparing] [--again N] [--share FILE] [WORD [TESTS]]\n");
            return 2;
        }
    }
    guard = brief ? 0 : guard;
    word = at < argc && *argv[at] ? argv[at] : NULL;
    if (at + 1 < argc) {
        cmocka_set_test_filter(argv[at + 1]);
    }
    if (!turns_open(&deal, share)) {
        perror(share);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_agree_with_the_reference),
        cmocka_unit_test(random_cases_agree),
        cmocka_unit_test(large_cases_keep_to_their_memory),
        cmocka_unit_test(every_cut_agrees),
        cmocka_unit_test(every_deal_agrees),
        cmocka_unit_test(planes_agree),
        cmocka_unit_test(structured_operands_agree),
        cmocka_unit_test(whole_tensors_agree),
        cmocka_unit_test(patterns_of_attention_agree),
        cmocka_unit_test(warm_plans_are_quick),
        cmocka_unit_test(functions_do_not_spill), /* after it: it looks at what that compiled */
    };
    return cmocka_run_group_tests(tests, start, stop);
}
