/* Models on a device. With the stand-in driver (backend/fake): every scheme opens, a decoding pass is few launches,
 * any driver call or allocation may fail without a leak, and the CPU serves on; with it and NVRTC: the launches'
 * programs compile without spills, and as PTX they run in it: logits token by token. With a real device: logits against
 * the CPU's for every scheme, token by token and in a batch, and the same bits twice. What is missing skips its part
 * and says so.
 *
 *   test_model_device [--share FILE] [PATTERN]   only tests of such a name; processes that name the same file, which
 *                                                is not there before, deal the models on a real device among themselves
 *
 * QN_TEST_EVERY_CUBIN=1   programs of every scheme for every target, without it of one scheme for each of two targets
 * QN_TEST_MODEL           a model to compare on a real device too
 * QN_TEST_KV              a KV scheme to compare it with as well; its codebooks lie beside the model */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/device.h>
#include <quern/quern.h>

#include "backend/fake/fake_cuda.h"
#include "backend/turns.h"
#include "base/clock.h"
#include "model/device_models.h"

enum { PROMPT = 6, STEPS = 7, CONTEXT = 920, TEXT = PROMPT + STEPS };

/* A pass of the synthetic model: the lookup, five launches a layer, the output layer, however keys and values are kept.
 * With vectors of weights two norms, seven products, the values' copy, attention and its joining, SiLU, two sums at
 * least.
 */
enum { PASS_LAUNCHES = 1 + 5 * SYN_LAYERS + 1, VQ_PASS_LAUNCHES = 1 + 15 * SYN_LAYERS + 1 };

/* A text's tokens go at once up to the first of these, one by one up to the next, and so on: with codes in a second
 * part of 128 tokens, and the window; where five parts become six and seven eight. */
static const int kv_ends[] = {350, 400, 630, 650, 880, 910};
enum { KV_ENDS = sizeof kv_ends / sizeof *kv_ends, KV_TEXT = 910 };

static fake_driver fake;

/* Two norms of heads that the launch of an attention over codes of vectors does not do. */
enum { NORM_LAUNCHES = 2 * SYN_LAYERS };

/* Where the build left it or, on another machine, among the libraries beside the program. */
static const char *fake_driver_path(void)
{
    return access(QN_FAKE_CUDA, R_OK) == 0 ? QN_FAKE_CUDA : strrchr(QN_FAKE_CUDA, '/') + 1;
}

typedef struct world {
    qn_ctx *ctx;
    qn_pool *pool; /* NULL: models are opened by the calling thread */
    qn_activations activations;
    _Atomic long allocations, live; /* programs are compiled in several threads */
    long fail_at;
} world;

static void *counted_alloc(void *user, size_t size, size_t align)
{
    world *w = user;
    void *p = NULL;
    if (++w->allocations == w->fail_at || posix_memalign(&p, align, size) != 0) {
        return NULL;
    }
    w->live++;
    return p;
}

static void counted_release(void *user, void *pointer)
{
    ((world *)user)->live -= pointer != NULL;
    free(pointer);
}

static qn_status open_world(world *w, const char *driver, const char *compiler, const char *cache, long fail_at)
{
    qn_ctx_options options;
    memset(w, 0, sizeof *w);
    w->fail_at = fail_at;
    qn_ctx_options_init(&options);
    options.allocator = (qn_allocator){w, counted_alloc, counted_release};
    options.cuda_library = driver;
    options.nvrtc_library = compiler;
    options.cache_dir = cache;
    return qn_ctx_create(&options, &w->ctx, NULL);
}

static void close_world(world *w)
{
    qn_ctx_destroy(w->ctx);
    assert_int_equal(w->live, 0);
    assert_int_equal(fake.live(), 0);
}

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

static qn_status open_model(world *w, const char *path, qn_backend backend, const char *kv, qn_model **model,
                            qn_error *error)
{
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = backend;
    options.kv = kv;
    options.activations = w->activations;
    options.exec.pool = w->pool;
    return qn_model_open(w->ctx, path, &options, model, error);
}

static qn_status open_session(qn_model *model, qn_session **session, qn_error *error)
{
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = CONTEXT;
    options.batch = 5;
    return qn_session_create(model, &options, session, error);
}

/* Logits of every token of a text: the prompt in one call, which is a pass of five rows and one of one, the rest one
 * by one. */
static qn_status eval_text(qn_session *session, const int32_t *ids, int32_t vocab, float *logits, qn_error *error)
{
    qn_status status = qn_session_truncate(session, 0, error);
    if (status == QN_OK) {
        status = qn_session_eval(session, ids, PROMPT, 1, logits, error);
    }
    for (int i = PROMPT; i < TEXT && status == QN_OK; i++) {
        status = qn_session_eval(session, ids + i, 1, 0, logits + (size_t)i * (size_t)vocab, error);
    }
    return status;
}

static long driver_calls; /* of the last whole_use, before it began to close */

/* Open, evaluate, close; the first failure ends it. */
static qn_status whole_use(world *w, const char *path, const char *kv, long *launches, qn_error *error)
{
    static float logits[TEXT * SYN_VOCAB];
    int32_t ids[TEXT];
    qn_model *model = NULL;
    qn_session *session = NULL;
    qn_batch *batch = NULL;
    for (int i = 0; i < TEXT; i++) {
        ids[i] = i * 7 % SYN_VOCAB;
    }
    qn_status status = open_model(w, path, QN_BACKEND_CUDA, kv, &model, error);
    const long before = fake.last().launches;
    if (status == QN_OK) {
        status = open_session(model, &session, error);
    }
    *launches = fake.last().launches - before;
    if (status == QN_OK) {
        status = eval_text(session, ids, SYN_VOCAB, logits, error);
    }
    if (status == QN_OK) {
        assert_int_equal(qn_session_length(session), TEXT);
        status = qn_batch_create(model, NULL, &batch, error);
    }
    if (status == QN_OK) {
        const qn_batch_item item = {.session = session, .ids = ids, .count = 3, .logits = logits};
        status = qn_batch_eval(batch, &item, 1, error);
        assert_int_equal(qn_session_length(session), status == QN_OK ? TEXT + 3 : TEXT);
    }
    driver_calls = fake.calls();
    fake.break_at(0, 0); /* what follows cannot be refused */
    qn_batch_destroy(batch);
    qn_session_destroy(session);
    qn_model_close(model);
    return status;
}

static void a_pass_is_few_launches_in_every_scheme(void **state)
{
    (void)state;
    for (int i = 0; i < SCHEMES; i++) {
        world w;
        qn_error error = {0};
        long launches = 0;
        assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
        must(whole_use(&w, path_of(schemes[i]), NULL, &launches, &error), &error, schemes[i]);
        if (launches != PASS_LAUNCHES) {
            fail_msg("%s: %ld launches a token, expected %d", schemes[i], launches, PASS_LAUNCHES);
        }
        close_world(&w);
    }
    for (int i = 0; i < VQ_SCHEMES; i++) {
        world w;
        qn_error error = {0};
        long launches = 0;
        assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
        must(whole_use(&w, path_of(vq_schemes[i]), NULL, &launches, &error), &error, vq_schemes[i]);
        const int least = i < VQ_CHAINED ? PASS_LAUNCHES : VQ_PASS_LAUNCHES;
        if (launches < least || launches > (i < VQ_CHAINED ? least : 3 * least)) {
            fail_msg("%s: %ld launches a token, expected %d%s", vq_schemes[i], launches, least,
                     i < VQ_CHAINED ? "" : " to three times that");
        }
        close_world(&w);
    }
    for (int i = 0; i < KV_SCHEMES * (1 + OTHER_HEADS); i++) {
        world w;
        qn_error error = {0};
        long launches = 0;
        const char *const kv = kv_schemes[i % KV_SCHEMES];
        const char *const path = path_of(i < KV_SCHEMES ? "f32" : other_heads[i / KV_SCHEMES - 1].name);
        assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
        must(whole_use(&w, path, kv, &launches, &error), &error, kv);
        if (launches != PASS_LAUNCHES) {
            fail_msg("%s, %s: %ld launches a token, expected %d", path, kv, launches, PASS_LAUNCHES);
        }
        close_world(&w);
    }
}

/* On one multiprocessor no product joins an attention's parts. */
static void parts_are_joined_by_who_attends_or_a_launch(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int more;
    } rows[] = {{"heads-64", SYN_LAYERS}, {"heads-128", 0}};
    for (int i = 0; i < 2; i++) {
        world w;
        qn_error error = {0};
        long launches = 0;
        fake.sms(1);
        assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
        must(whole_use(&w, path_of(rows[i].model), NULL, &launches, &error), &error, rows[i].model);
        if (launches != PASS_LAUNCHES + rows[i].more) {
            fail_msg("%s: %ld launches a token, expected %d", rows[i].model, launches, PASS_LAUNCHES + rows[i].more);
        }
        close_world(&w);
        fake.sms(132);
    }
}

static void biases_and_head_norms_are_part_of_launches(void **state)
{
    (void)state;
    static const char *const kvs[] = {NULL, "fp8", "cq2"};
    for (int i = 0; i < LIKE; i++) {
        for (int j = 0; j < (i == LIKE_KV ? 3 : 1); j++) {
            world w;
            qn_error error = {0};
            long launches = 0;
            const int expected = PASS_LAUNCHES + (j == 2 ? NORM_LAUNCHES : 0);
            assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
            must(whole_use(&w, path_of(like[i].name), kvs[j], &launches, &error), &error, like[i].name);
            if (launches != expected) {
                fail_msg("%s, %s: %ld launches a token, expected %d", like[i].name, kvs[j] ? kvs[j] : "f32", launches,
                         expected);
            }
            close_world(&w);
        }
    }
}

static void driver_calls_fail(const char *path, const char *kv)
{
    long failed = 0;
    for (long n = 1;; n += n < 40 ? 1 : 37) {
        world w;
        qn_error error = {0};
        long launches;
        assert_int_equal(open_world(&w, fake_driver_path(), fake_driver_path(), NULL, 0), QN_OK);
        fake.break_at(n, n % 2 ? 2 : 700);
        const qn_status status = whole_use(&w, path_of(path), kv, &launches, &error);
        qn_model *model = NULL;
        must(open_model(&w, path_of("int8-azp"), QN_BACKEND_CPU, NULL, &model, &error), &error,
             "the CPU after a failure");
        qn_model_close(model);
        close_world(&w);
        if (driver_calls < n) {
            assert_int_equal(status, QN_OK);
            break;
        }
        /* a kernel that could not be loaded is done without where the model opens unfused */
        assert_true(status == QN_OK || status == QN_E_MEMORY || status == QN_E_DEVICE || status == QN_E_JIT);
        assert_int_equal(error.text[0] == 0, status == QN_OK);
        failed += status != QN_OK;
    }
    assert_true(failed > 40);
}

static void any_driver_call_may_fail(void **state)
{
    (void)state;
    driver_calls_fail("int8-azp", NULL);
    driver_calls_fail("heads-128", NULL);
    driver_calls_fail("f32", "fp8");
    driver_calls_fail("f32", "cq2");
}

static void memory_runs_out(const char *kv)
{
    long failed = 0;
    for (long n = 1;; n += n < 40 ? 1 : 41) {
        world w;
        qn_error error = {0};
        long launches;
        if (open_world(&w, fake_driver_path(), fake_driver_path(), NULL, n) != QN_OK) {
            assert_int_equal(w.live, 0);
            continue;
        }
        const qn_status status = whole_use(&w, path_of(kv ? "f32" : "nvfp4"), kv, &launches, &error);
        const int done = w.allocations < n;
        close_world(&w);
        if (status == QN_OK && done) {
            break;
        }
        /* one that is not needed may be missing: the log's, a compiler's identity */
        assert_true(status == QN_OK || status == QN_E_MEMORY || status == QN_E_DEVICE || status == QN_E_JIT ||
                    status == QN_E_FILE);
        failed += status != QN_OK;
    }
    assert_true(failed > 20);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    memory_runs_out(NULL);
    memory_runs_out("fp8");
    memory_runs_out("cq2");
}

/* ---- the real compiler, no device ---- */

static int logs, faults;

/* A log of the compiler: no local memory, no spills. */
static int look_at_log(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)place;
    static char text[1 << 14];
    if (kind != FTW_F || strcmp(path + place->base, "log.txt") != 0) {
        return 0;
    }
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    logs++;
    for (const char *at = text; (at = strstr(at, " bytes stack frame")) != NULL; at++) {
        if (at < text + 2 || at[-1] != '0' || at[-2] != ' ') {
            faults++;
            print_error("%s: local memory or spills\n", path);
            break;
        }
    }
    return 0;
}

static void launches_compile_for_every_target(void **state)
{
    (void)state;
    static const struct {
        int major, minor;
    } targets[] = {{8, 0}, {9, 0}, {8, 6}, {8, 9}, {10, 0}, {12, 0}};
    const int every = getenv("QN_TEST_EVERY_CUBIN") != NULL;
    static const char *const few[] = {"vptq-2", "nvfp4-w4a4"};
    const char *const compiler = access(QN_FAR_NVRTC, R_OK) == 0 ? QN_FAR_NVRTC : NULL;
    const int weights = every ? SCHEMES + VQ_SCHEMES : 1, kept = every ? KV_SCHEMES : 1;
    char cache[160];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    for (int t = 0; t < (every ? 6 : 2); t++) {
        for (int i = 0; i < weights + kept; i++) {
            world w;
            qn_error error = {0};
            qn_model *model = NULL;
            qn_session *session = NULL;
            fake.setup(1, targets[t].major, targets[t].minor);
            assert_int_equal(open_world(&w, fake_driver_path(), compiler, cache, 0), QN_OK);
            must(qn_pool_create(w.ctx, 3, &w.pool, &error), &error, "a pool");
            const char *const scheme = i >= weights  ? "f32"
                                       : !every      ? few[t]
                                       : i < SCHEMES ? schemes[i]
                                                     : vq_schemes[i - SCHEMES];
            const char *const kv = i >= weights ? kv_schemes[every ? i - weights : t] : NULL;
            qn_status status = open_model(&w, path_of(scheme), QN_BACKEND_CUDA, kv, &model, &error);
            if (status == QN_E_JIT && strstr(error.text, "NVRTC")) {
                printf("skipped: %s\n", error.text);
                qn_pool_destroy(w.pool);
                close_world(&w);
                fake.setup(1, 9, 0);
                skip();
            }
            must(status, &error, scheme);
            must(open_session(model, &session, &error), &error, scheme);
            qn_session_destroy(session);
            qn_model_close(model);
            qn_pool_destroy(w.pool);
            close_world(&w);
        }
    }
    fake.setup(1, 9, 0);
    nftw(cache, look_at_log, 8, FTW_PHYS);
    printf("%d programs compiled, %d faulty\n", logs, faults);
    assert_true(logs > 20);
    assert_int_equal(faults, 0);
}

/* A folder made by opening a model is what it opens from when nothing may be compiled: quern warm MODEL, --jit off. */
static void models_open_from_shipped_kernels(void **state)
{
    (void)state;
    char cache[160];
    snprintf(cache, sizeof cache, "%s/cache", folder);
    if (logs == 0) {
        printf("skipped: no kernels were compiled\n");
        skip();
    }
    for (int shipped = 0; shipped < 2; shipped++) {
        qn_ctx *ctx;
        qn_ctx_options options;
        qn_error error = {0};
        qn_model *model = NULL;
        qn_session *session = NULL;
        qn_ctx_options_init(&options);
        options.cuda_library = fake_driver_path();
        options.jit = QN_JIT_OFF;
        options.cubin_dir = shipped ? cache : NULL;
        must(qn_ctx_create(&options, &ctx, &error), &error, "context");
        world w = {.ctx = ctx};
        qn_status status = open_model(&w, path_of("nvfp4-w4a4"), QN_BACKEND_CUDA, NULL, &model, &error);
        if (status == QN_OK) {
            status = open_session(model, &session, &error);
        }
        assert_int_equal(status, shipped ? QN_OK : QN_E_JIT);
        qn_session_destroy(session);
        qn_model_close(model);
        qn_ctx_destroy(ctx);
        assert_int_equal(fake.live(), 0);
    }
}

/* ---- a real device ---- */

static turns deal;

static double largest_difference(const float *a, const float *b, size_t n, double *largest)
{
    double worst = 0.0;
    *largest = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || d != d ? d : worst;
        *largest = fabs((double)a[i]) > *largest ? fabs((double)a[i]) : *largest;
    }
    return worst;
}

static int32_t best_of(const float *logits, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* A model's text on both backends. Quantised activations may take the neighbouring code where a value lies between
 * two, so the distance is of that size. */
static void compare(world *w, const char *path, const char *what, double allowed)
{
    if (!turns_is_mine(&deal)) {
        return;
    }
    qn_error error = {0};
    qn_model *models[2];
    qn_session *sessions[2];
    qn_model_info info;
    must(open_model(w, path, QN_BACKEND_CUDA, NULL, &models[0], &error), &error, what);
    must(open_model(w, path, QN_BACKEND_CPU, NULL, &models[1], &error), &error, what);
    qn_model_get_info(models[0], &info);
    const size_t vocab = (size_t)info.vocab_size;
    float *logits[3];
    int32_t ids[TEXT];
    for (int i = 0; i < TEXT; i++) {
        ids[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)info.vocab_size);
    }
    for (int i = 0; i < 2; i++) {
        must(open_session(models[i], &sessions[i], &error), &error, what);
    }
    for (int i = 0; i < 3; i++) {
        logits[i] = calloc(TEXT * vocab, sizeof(float));
        assert_non_null(logits[i]);
        must(eval_text(sessions[i == 1], ids, info.vocab_size, logits[i], &error), &error, what);
    }
    double largest, worst = largest_difference(logits[1], logits[0], TEXT * vocab, &largest);
    int same = 0;
    for (size_t i = 0; i < TEXT; i++) {
        same += best_of(logits[0] + i * vocab, info.vocab_size) == best_of(logits[1] + i * vocab, info.vocab_size);
    }
    printf("%-16s largest logit %.3g, difference to the CPU %.3g, the same best token %d of %d\n", what, largest, worst,
           same, TEXT);
    if (!(worst <= allowed * largest)) {
        fail_msg("%s: logits differ by %g, allowed are %g", what, worst, allowed * largest);
    }
    assert_memory_equal(logits[0], logits[2], TEXT * vocab * sizeof(float));
    /* in a batch of two sequences */
    qn_batch *batch;
    qn_session *other;
    must(open_session(models[0], &other, &error), &error, what);
    must(qn_session_truncate(sessions[0], 0, &error), &error, what);
    must(qn_batch_create(models[0], NULL, &batch, &error), &error, what);
    const qn_batch_item items[] = {{.session = sessions[0], .ids = ids, .count = TEXT, .all = 1, .logits = logits[2]},
                                   {.session = other, .ids = ids + 2, .count = 4}};
    must(qn_batch_eval(batch, items, 2, &error), &error, what);
    worst = largest_difference(logits[1], logits[2], TEXT * vocab, &largest);
    if (!(worst <= allowed * largest)) {
        fail_msg("%s, in a batch: logits differ by %g, allowed are %g", what, worst, allowed * largest);
    }
    qn_batch_destroy(batch);
    qn_session_destroy(other);
    for (int i = 0; i < 2; i++) {
        qn_session_destroy(sessions[i]);
        qn_model_close(models[i]);
    }
    for (int i = 0; i < 3; i++) {
        free(logits[i]);
    }
}

/* A text longer than the window, the end of it token by token, and all of it beside another sequence. A code may be
 * the neighbouring one where a value lies between two. */
static void compare_kv(world *w, const char *path, const char *kv, double allowed)
{
    if (!turns_is_mine(&deal)) {
        return;
    }
    qn_error error = {0};
    qn_model *models[2];
    qn_session *sessions[2], *other;
    qn_batch *batch;
    qn_model_info info;
    must(open_model(w, path, QN_BACKEND_CUDA, kv, &models[0], &error), &error, kv);
    must(open_model(w, path, QN_BACKEND_CPU, kv, &models[1], &error), &error, kv);
    qn_model_get_info(models[0], &info);
    const size_t vocab = (size_t)info.vocab_size;
    float *logits[3];
    int32_t ids[KV_TEXT];
    for (int i = 0; i < KV_TEXT; i++) {
        ids[i] = (int32_t)((uint32_t)i * 7919u % (uint32_t)info.vocab_size);
    }
    for (int i = 0; i < 3; i++) {
        logits[i] = calloc(KV_TEXT * vocab, sizeof(float));
        assert_non_null(logits[i]);
    }
    for (int i = 0; i < 2; i++) {
        must(open_session(models[i], &sessions[i], &error), &error, kv);
        for (int e = 0, at = 0; e < KV_ENDS; e++) {
            for (int step = e % 2 ? 1 : kv_ends[e] - at; at < kv_ends[e]; at += step) {
                must(qn_session_eval(sessions[i], ids + at, step, 1, logits[i] + (size_t)at * vocab, &error), &error,
                     kv);
            }
        }
    }
    must(open_session(models[0], &other, &error), &error, kv);
    must(qn_session_truncate(sessions[0], 0, &error), &error, kv);
    must(qn_batch_create(models[0], NULL, &batch, &error), &error, kv);
    const qn_batch_item items[] = {
        {.session = sessions[0], .ids = ids, .count = KV_TEXT, .all = 1, .logits = logits[2]},
        {.session = other, .ids = ids + 2, .count = 200}};
    must(qn_batch_eval(batch, items, 2, &error), &error, kv);
    for (int i = 0; i < 3; i += 2) {
        double largest, worst = largest_difference(logits[1], logits[i], KV_TEXT * vocab, &largest);
        int same = 0;
        for (size_t t = 0; t < KV_TEXT; t++) {
            same += best_of(logits[i] + t * vocab, info.vocab_size) == best_of(logits[1] + t * vocab, info.vocab_size);
        }
        printf("%s, kv %-4s %-8s largest logit %.3g, difference to the CPU %.3g, the same best token %d of %d\n",
               strrchr(path, '/') + 1, kv, i ? "a batch" : "alone", largest, worst, same, KV_TEXT);
        if (!(worst <= allowed * largest) || same < KV_TEXT * 97 / 100) {
            fail_msg("%s: logits differ by %g, allowed are %g", kv, worst, allowed * largest);
        }
    }
    qn_batch_destroy(batch);
    qn_session_destroy(other);
    for (int i = 0; i < 2; i++) {
        qn_session_destroy(sessions[i]);
        qn_model_close(models[i]);
    }
    for (int i = 0; i < 3; i++) {
        free(logits[i]);
    }
}

/* ---- the real compiler and the stand-in driver, which runs PTX ---- */

enum { DECODED = 4, CODED_PROMPT = 162 }; /* beyond the window: the first two rows of it are read as codes */

/* A prompt, then token by token on both backends; of wide models one, which takes as long as many. */
static void compare_decoding(world *w, const char *scheme, const char *kv, int prompt, double allowed)
{
    const int decoded = strncmp(scheme, "wide", 4) == 0 ? 1 : DECODED;
    static float logits[2][(DECODED + 1) * SYN_VOCAB];
    int32_t ids[CODED_PROMPT + DECODED];
    const uint64_t begin = qn_clock_ns();
    char what[64];
    qn_error error = {0};
    snprintf(what, sizeof what, "%s, keys and values in %s", scheme, kv ? kv : "f32");
    for (int i = 0; i < prompt + decoded; i++) {
        ids[i] = i * 7919 % SYN_VOCAB;
    }
    for (int i = 0; i < 2; i++) {
        qn_model *model;
        qn_session *session;
        must(open_model(w, path_of(scheme), i ? QN_BACKEND_CPU : QN_BACKEND_CUDA, kv, &model, &error), &error, what);
        must(open_session(model, &session, &error), &error, what);
        must(qn_session_eval(session, ids, prompt, 0, logits[i], &error), &error, what);
        for (int j = 0; j < decoded; j++) {
            must(qn_session_eval(session, ids + prompt + j, 1, 0, logits[i] + (j + 1) * SYN_VOCAB, &error), &error,
                 what);
        }
        qn_session_destroy(session);
        qn_model_close(model);
    }
    double largest, worst = largest_difference(logits[1], logits[0], (size_t)(decoded + 1) * SYN_VOCAB, &largest);
    printf("%s: largest logit %.3g, difference to the CPU %.3g, %.1f s\n", what, largest, worst,
           (double)(qn_clock_ns() - begin) / 1e9);
    if (!(worst <= allowed * largest)) {
        fail_msg("%s: logits differ by %g, allowed are %g", what, worst, allowed * largest);
    }
}

static void kernels_without_a_device_agree_with_the_cpu(void **state)
{
    (void)state;
    static const struct {
        int major, sms; /* multiprocessors: few, for less work; on one no product joins an attention's parts */
        const char *scheme, *kv;
        int prompt;
    } rows[] = {
        {8, 1, "nvfp4.gguf", NULL, PROMPT},       {8, 8, "int8-azp", NULL, PROMPT},
        {8, 1, "gptvq-2", NULL, PROMPT},          {9, 8, "bf16", NULL, 1},
        {8, 1, "aqlm-2x8", NULL, 1},              {8, 8, "aqlm-1x16", NULL, 1},
        {9, 1, "aqlm-3", NULL, 1},                {9, 8, "vptq-2", NULL, 1},
        {9, 1, "quip-2", NULL, 1},                {9, 8, "quip-4", NULL, 1},
        {9, 1, "f32", "cq2", CODED_PROMPT},       {8, 8, "like-1", NULL, PROMPT},
        {8, 1, "like-1-fp8-block", NULL, 1},      {9, 8, "like-2", NULL, PROMPT},
        {8, 1, "like-2-int8", "fp8", 1},          {8, 8, "like-2", "cq2", 1},
        {9, 1, "like-3-fp8-block", NULL, 1},      {9, 8, "like-4-fp8-block", "fp8", 1},
        {9, 1, "heads-64", NULL, 1},              {9, 8, "heads-64", "fp8", 1},
        {9, 1, "mxfp4.gguf", NULL, 1},            {8, 8, "vectors.gguf", NULL, PROMPT},
        {9, 1, "vectors.gguf", NULL, 1},          {9, 8, "heads-128", NULL, 1},
        {9, 1, "wide-bf16", NULL, 1},             {9, 8, "wide-fp8-block", NULL, 1},
        {9, 1, "wide-int8", NULL, 1},             {9, 8, "wide-nvfp4", NULL, 1},
        {9, 1, "wide-mxfp4", NULL, 1},            {8, 8, "like-2", "bf16", PROMPT},
        {9, 1, "heads-128", "bf16", 1},           {8, 1, "heads-128", "fp8", CODED_PROMPT},
    };
    qn_error error = {0};
    char cache[96];
    snprintf(cache, sizeof cache, "%s/ptx", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        world w;
        qn_model *model = NULL;
        fake.sms(rows[i].sms);
        fake.setup(1, rows[i].major, 0);
        assert_int_equal(open_world(&w, fake_driver_path(), QN_PTX_NVRTC, cache, 0), QN_OK);
        const qn_status status = open_model(&w, path_of(rows[i].scheme), QN_BACKEND_CUDA, rows[i].kv, &model, &error);
        qn_model_close(model);
        const int without = status == QN_E_JIT && strstr(error.text, "NVRTC");
        if (!without) {
            printf("sm_%d0, ", rows[i].major);
            compare_decoding(&w, rows[i].scheme, rows[i].kv, rows[i].prompt, 5e-3);
        }
        close_world(&w);
        if (without) {
            printf("skipped: %s\n", error.text);
            break;
        }
    }
    fake.setup(1, 9, 0);
    fake.sms(132);
}

/* Whether a scheme leaves activations as they are. */
static int plain_rows(const char *scheme)
{
    static const char *const plain[] = {"f32", "bf16", "f16", "nvfp4", "mxfp4"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(scheme, plain[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static void logits_agree_with_the_cpu(void **state)
{
    (void)state;
    world w;
    qn_error error = {0};
    qn_device_info info;
    assert_int_equal(open_world(&w, NULL, NULL, getenv("QN_TEST_KERNEL_CACHE"), 0), QN_OK);
    if (qn_device_get_info(w.ctx, &info, &error) != QN_OK) {
        printf("skipped: %s\n", error.text);
        qn_ctx_destroy(w.ctx);
        skip();
    }
    must(qn_pool_create(w.ctx, 8, &w.pool, &error), &error, "a pool"); /* programs are compiled by its threads */
    for (int i = 0; i < SCHEMES; i++) {
        compare(&w, path_of(schemes[i]), schemes[i], i == 0 ? 2e-5 : plain_rows(schemes[i]) ? 1e-2 : 5e-2);
    }
    w.activations = QN_ACTIVATIONS_INT8;
    compare(&w, path_of("nvfp4"), "nvfp4, int8 activations", 5e-2);
    compare(&w, path_of("mxfp4"), "mxfp4, int8 activations", 5e-2);
    w.activations = QN_ACTIVATIONS_STORED;
    for (int i = 0; i < GGUFS; i++) {
        compare(&w, path_of(ggufs[i][1]), ggufs[i][1], 1e-2);
    }
    for (int i = 0; i < VQ_SCHEMES; i++) {
        compare(&w, path_of(vq_schemes[i]), vq_schemes[i], 2e-2);
    }
    for (int i = 0; i < LIKE; i++) {
        const int exact = strcmp(like[i].scheme, "f32") == 0, plain = exact || strcmp(like[i].scheme, "bf16") == 0;
        compare(&w, path_of(like[i].name), like[i].name, exact ? 2e-5 : plain ? 1e-2 : 8e-2);
    }
    for (int i = 0; i < WIDE; i++) {
        compare(&w, path_of(wide_models[i][0]), wide_models[i][0], plain_rows(wide_models[i][1]) ? 1e-2 : 5e-2);
    }
    compare_kv(&w, path_of("like-2"), "f32", 2e-5);
    compare_kv(&w, path_of("like-2"), "fp8", 5e-2);
    compare_kv(&w, path_of("like-2"), "cq2", 5e-2);
    compare_kv(&w, path_of("f32"), "f32", 2e-5);
    compare_kv(&w, path_of("nvfp4"), "f32", 1e-2);
    compare_kv(&w, path_of("quip-2"), "f32", 2e-2);
    compare_kv(&w, path_of("heads-64"), "f32", 2e-5);
    compare_kv(&w, path_of("heads-128"), "f32", 2e-5);
    for (int i = 0; i < KV_SCHEMES; i++) {
        compare_kv(&w, path_of("f32"), kv_schemes[i], 5e-2);
        for (int j = 0; j < OTHER_HEADS; j++) {
            compare_kv(&w, path_of(other_heads[j].name), kv_schemes[i], 5e-2);
        }
    }
    const char *model = getenv("QN_TEST_MODEL"), *kv = getenv("QN_TEST_KV");
    if (model) {
        compare(&w, model, "QN_TEST_MODEL", 1e-3);
    }
    if (model && kv) {
        compare_kv(&w, model, kv, 5e-2);
    }
    qn_pool_destroy(w.pool);
    qn_ctx_destroy(w.ctx);
    turns_close(&deal);
    assert_int_equal(w.live, 0);
}

static int start(void **state)
{
    (void)state;
    fake.handle = dlopen(fake_driver_path(), RTLD_NOW | RTLD_LOCAL);
    if (!fake.handle || !mkdtemp(folder)) {
        fprintf(stderr, "the stand-in driver: %s\n", fake.handle ? "no temporary folder" : dlerror());
        return -1;
    }
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"fake_setup", &fake.setup},      {"fake_sms", &fake.sms},   {"fake_fail", &fake.break_at},
                   {"fake_calls", &fake.calls},      {"fake_live", &fake.live}, {"fake_last", &fake.last},
                   {"fake_compiles", &fake.compiles}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(fake.handle, symbols[i].name);
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    qn_ctx *ctx;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return -1;
    }
    const int failed = write_models(ctx);
    qn_ctx_destroy(ctx);
    return failed ? -1 : 0;
}

static int stop(void **state)
{
    (void)state;
    syn_remove(folder);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is stopped has told what it did */
    const char *const share = argc > 2 && strcmp(argv[1], "--share") == 0 ? argv[2] : NULL;
    const int at = share ? 3 : 1;
    if (at < argc) {
        cmocka_set_test_filter(argv[at]);
    }
    if (!turns_open(&deal, share)) {
        perror(share);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pass_is_few_launches_in_every_scheme),
        cmocka_unit_test(parts_are_joined_by_who_attends_or_a_launch),
        cmocka_unit_test(biases_and_head_norms_are_part_of_launches),
        cmocka_unit_test(any_driver_call_may_fail),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(launches_compile_for_every_target),
        cmocka_unit_test(models_open_from_shipped_kernels),
        cmocka_unit_test(kernels_without_a_device_agree_with_the_cpu),
        cmocka_unit_test(logits_agree_with_the_cpu),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
