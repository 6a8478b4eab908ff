/* The host side of the CUDA backend on any machine: a stand-in for driver and
 * compiler (fake/fake_cuda.c) that can be told to fail at any call. What is
 * missing or fails gives a status and a sentence, nothing is leaked, and the CPU
 * goes on working in the same context. */
#include <dirent.h>
#include <dlfcn.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/device.h>
#include <quern/experimental.h>

#include "backend/fake/fake_cuda.h"

#define CASE "silu_mul_quant m=4 k=256 x=bf16"

static fake_driver fake;
static char folder[] = "/tmp/quern-cuda-XXXXXX";
static char cache[64], blocked[64];

/* ---- contexts ---- */

typedef struct setup {
    const char *cuda, *nvrtc, *cache, *cubins, *target;
    qn_jit_policy jit;
    int32_t device;
    long fail_at; /* allocation of the context that fails; 0: none */
} setup;

typedef struct world {
    qn_ctx *ctx;
    char log[4096];
    _Atomic long allocations, live;
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

static void keep_line(void *user, qn_log_level level, const char *line)
{
    world *w = user;
    const size_t used = strlen(w->log);
    snprintf(w->log + used, sizeof w->log - used, "%d %s\n", (int)level, line);
}

static qn_status open_world(world *w, const setup *s, qn_error *error)
{
    qn_ctx_options options;
    memset(w, 0, sizeof *w);
    w->fail_at = s->fail_at;
    qn_ctx_options_init(&options);
    options.allocator = (qn_allocator){w, counted_alloc, counted_release};
    options.log = keep_line;
    options.log_user = w;
    options.jit = s->jit;
    options.cache_dir = s->cache;
    options.cubin_dir = s->cubins;
    options.device = s->device;
    options.cuda_target = s->target;
    options.cuda_library = s->cuda ? s->cuda : QN_FAKE_CUDA;
    options.nvrtc_library = s->nvrtc ? s->nvrtc : QN_FAKE_CUDA;
    return qn_ctx_create(&options, &w->ctx, error);
}

static void close_world(world *w)
{
    qn_ctx_destroy(w->ctx);
    assert_int_equal(w->live, 0);
    assert_int_equal(fake.live(), 0);
}

static qn_status make_plan(world *w, const char *text, qn_backend backend, qn_plan **plan, qn_error *error)
{
    qn_op_desc desc;
    qn_plan_options options;
    assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
    qn_plan_options_init(&options);
    options.backend = backend;
    return qn_plan_create(w->ctx, &desc, &options, plan, error);
}

/* Opening a plan with this setup gives the status and a sentence that holds the words; the CPU serves on. */
static void refuses(const setup *s, qn_status want, const char *words)
{
    world w;
    qn_error error = {0};
    qn_plan *plan = NULL;
    assert_int_equal(open_world(&w, s, &error), QN_OK);
    const qn_status status = make_plan(&w, CASE, QN_BACKEND_CUDA, &plan, &error);
    if (status != want || !strstr(error.text, words)) {
        fail_msg("status %s, '%s'; expected %s, '%s'", qn_status_name(status), error.text, qn_status_name(want), words);
    }
    assert_null(plan);
    assert_int_equal(make_plan(&w, CASE, QN_BACKEND_CPU, &plan, &error), QN_OK);
    qn_plan_destroy(plan);
    close_world(&w);
}

/* A plan with this setup works; its log comes back. */
static void works(const setup *s, char log[4096])
{
    world w;
    qn_error error = {0};
    qn_plan *plan = NULL;
    assert_int_equal(open_world(&w, s, &error), QN_OK);
    if (make_plan(&w, CASE, QN_BACKEND_CUDA, &plan, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(qn_plan_backend(plan), QN_BACKEND_CUDA);
    qn_plan_destroy(plan);
    memcpy(log, w.log, sizeof w.log);
    close_world(&w);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

static void empty_cache(void)
{
    nftw(cache, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Path of a file in an entry of the cache. */
static const char *entry_file(const char *name)
{
    static char path[1024];
    char compiler[512] = "", entry[512] = "";
    const char *const roots[2] = {cache, compiler};
    char *const found[2] = {compiler, entry};
    for (int i = 0; i < 2; i++) {
        DIR *d = opendir(roots[i]);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            if (e->d_name[0] != '.') {
                snprintf(found[i], 512, "%.200s/%.200s", roots[i], e->d_name);
            }
        }
        closedir(d);
    }
    snprintf(path, sizeof path, "%s/%s", entry, name);
    return path;
}

/* ---- tests ---- */

static void a_missing_driver_is_a_reason(void **state)
{
    (void)state;
    refuses(&(setup){.cuda = "/nowhere/libcuda.so"}, QN_E_DEVICE, "/nowhere/libcuda.so");
    refuses(&(setup){.cuda = "libm.so.6"}, QN_E_DEVICE, "libm.so.6 lacks cuInit");
    fake.setup(0, 9, 0);
    refuses(&(setup){0}, QN_E_DEVICE, "CUDA_ERROR_NO_DEVICE");
    fake.setup(1, 7, 0);
    refuses(&(setup){0}, QN_E_DEVICE, "compute capability 7.0");
    fake.setup(1, 9, 0);
    refuses(&(setup){.device = 3}, QN_E_DEVICE, "device 3");
    fake.break_at(1, 100);
    refuses(&(setup){0}, QN_E_DEVICE, "cuInit: CUDA_ERROR_NO_DEVICE");
    fake.break_at(0, 0);
}

static void auto_never_takes_a_device(void **state)
{
    (void)state;
    world w;
    qn_plan *plan = NULL;
    assert_int_equal(open_world(&w, &(setup){0}, NULL), QN_OK);
    assert_int_equal(make_plan(&w, CASE, QN_BACKEND_AUTO, &plan, NULL), QN_OK);
    assert_int_equal(qn_plan_backend(plan), QN_BACKEND_CPU);
    qn_plan_destroy(plan);
    close_world(&w);
}

static void explain_and_doctor_tell(void **state)
{
    (void)state;
    world w;
    char text[8192];
    qn_op_desc desc;
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    assert_int_equal(qn_op_desc_parse("dense_mm m=3 n=9 k=64 x=f16 b=f16", &desc, NULL), QN_OK);
    assert_int_equal(qn_explain(w.ctx, &desc, &options, text, sizeof text, NULL, NULL), QN_OK);
    assert_non_null(strstr(text, "refused  qn_dense_mm_fp_any_fp__sm90a_planes: operands are both bf16 or both f16"));
    qn_doctor(w.ctx, text, sizeof text);
    assert_non_null(strstr(text, "backend cuda: yes"));
    assert_non_null(strstr(text, "device: Fake GPU, sm_90a, 132 multiprocessors"));
    assert_non_null(strstr(text, "device compiler: nvrtc-99.1-"));
    assert_non_null(strstr(text, cache));
    options.isa = QN_ISA_SCALAR;
    assert_int_equal(qn_explain(w.ctx, &desc, &options, text, sizeof text, NULL, NULL), QN_OK);
    assert_non_null(strstr(text, "refused  cuda: an instruction-set level"));
    close_world(&w);
}

static void write_tuned(const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/a", folder);
    mkdir(path, 0700); /* both may be there */
    mkdir(cache, 0700);
    snprintf(path, sizeof path, "%s/tuned-cuts.txt", cache);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* What explain says of a case in a context of its own; `log` gets what that logged. */
static void explained(const char *text, char *out, size_t room, char *log)
{
    world w;
    qn_op_desc desc;
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
    assert_int_equal(qn_explain(w.ctx, &desc, &options, out, room, NULL, NULL), QN_OK);
    memcpy(log, w.log, sizeof w.log);
    close_world(&w);
}

/* Without a tuned cut 33 to 128 rows take the one of the least estimate, which was measured to be the best or nearly;
 * portable kernels say how they are cut, too. */
static void rows_are_cut_by_estimate(void **state)
{
    (void)state;
    static const struct {
        const char *text, *cut;
    } cases[] = {
        {"block_scaled_mm m=64 n=2560 k=9728", "cut: tiles of 64 x 96, 4 parts of K, clusters of 4\n"},
        {"block_scaled_mm m=33 n=5120 k=5120", "cut: tiles of 64 x 80, 2 parts of K, clusters of 2\n"},
        {"block_scaled_mm m=64 n=28672 k=4096", "cut: tiles of 64 x 112\n"},
        {"block_scaled_mm m=48 n=10240 k=8192", "cut: tiles of 64 x 80\n"},
        {"block_scaled_mm m=64 n=17920 k=1536", "cut: strips of 192 columns, 1 part of K, clusters of 1\n"},
        {"block_scaled_mm m=64 n=9728 k=896", "cut: tiles of 64 x 80\n"},
        {"block_scaled_mm m=128 n=2560 k=8192", "cut: tiles of 128 x 96, 4 parts of K, clusters of 4\n"},
        {"block_scaled_mm m=65 n=18432 k=7168", "cut: tiles of 128 x 144\n"},
        {"block_scaled_mm m=96 n=5120 k=13824", "cut: tiles of 128 x 80, 2 parts of K, clusters of 2\n"},
        {"block_scaled_mm m=100 n=16 k=128", "cut: strips of 64 columns, 1 part of K, clusters of 1\n"},
        {"block_scaled_mm m=128 n=1000000 k=8", "cut: tiles of 128 x "},
        {"dense_mm m=64 n=4096 k=14336 b=q4_k",
         "cut: three int8 digits of x by int8 codes of b, by mma.sync: tiles of 64 x 128, 8 parts of K\n"},
        {"dense_mm m=150 n=14336 k=4096 b=q8_0", "tiles of 64 x 128, 1 part of K\n"},
        {"dense_mm m=150 n=14336 k=4096 b=q6_k", "planes of f16: 2 of x by 2 of b\n"},
        {"dense_mm m=2048 n=4096 k=14336 b=q8_0", "cut: tiles of 128 x 128, clusters of "},
        {"dense_mm m=8 n=4096 k=4096 b=q8_0", "cut: 2 rows of b a warp, 1 warp a row of b, by "},
        {"dense_mm m=64 n=4096 k=4096 b=bf16", "planes of bf16: 3 of x by 1 of b\n"},
        {"dense_mm m=9 n=4096 k=4096", "cut: tiles of 64 x "},
        {"dense_mm m=7 n=4096 k=4096", "by fused multiply-adds"},
    };
    char text[8192], log[4096];
    empty_cache();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        explained(cases[i].text, text, sizeof text, log);
        if (!strstr(text, cases[i].cut)) {
            fail_msg("%s: no \"%s\" in:\n%s", cases[i].text, cases[i].cut, text);
        }
    }
}

/* A file of tuned cuts in the cache folder is read with the device, cited by explain, and refused in one sentence. */
static void tuned_cuts_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *line, *wrong;
    } bad[] = {
        {"Fake GPU, 256 384", ":1: it is not DEVICE | N K M | CUT"},
        {"# first\nFake GPU | 256 zero 8 | tile 64 64 0", ":2: N, K and M are not three positive numbers"},
        {"Fake GPU | 256 384 8 1 | tile 64 64 0", ":1: N, K and M are not three positive numbers"},
        {"Fake GPU | 256 384 8 | plank 1", ":1: the cut is neither tile nor strip"},
        {"Fake GPU | 256 384 8 | tile 64 64 0 1", ":1: a tile has 3 or 5 numbers"},
        {"Fake GPU | 256 384 100 | tile 128 128 0 1 4", ":1: there is no such tile for that many rows"},
        {"Fake GPU | 256 384 100 | tile 128 96 0 2 2", ":1: there is no such tile for that many rows"},
        {"Fake GPU | 256 384 8 | strip 1 1 1", ":1: a strip has 9 numbers"},
        {"Fake GPU | 256 384 8 | strip 1 1 9 1 4 1 1 0 1", ":1: there is no such strip"},
        {"Fake GPU | 256 384 8 | strip 1 1 1 1 4 1 1 0 5", ":1: there is no such strip"},
        {"Fake GPU | 256 384 200 | strip 1 1 1 1 4 1 1 0 1", ":1: strips are for at most 128 rows"},
        {"Other GPU | 256 384 200 | tile 64 64 0", ":1: there is no such tile for that many rows"},
    };
    char text[8192], log[4096];
    empty_cache();
    explained("block_scaled_mm m=200 n=256 k=384", text, sizeof text, log);
    assert_non_null(strstr(text, "tiles of 256 x 128: estimate "));
    assert_non_null(strstr(text, "cut: tiles of 128 x 64\n"));
    write_tuned("# cuts\n\nFake GPU | 256 384 64 | strip 1 2 3 1 6 2 1 0 1\nOther GPU | 256 384 60 | tile 64 64 0\n"
                "Fake GPU | 256 384 150 | tile 256 128 0\nFake GPU | 256 384 128 | tile 128 96 0 1 3\nFake GPU | 256 "
                "384 4096 | tile 128 192 1");
    explained("block_scaled_mm m=200 n=256 k=384", text, sizeof text, log);
    assert_non_null(strstr(text, "cut: tiles of 256 x 128, tuned for Fake GPU at M = 150 (tuned-cuts.txt)\n"));
    explained("block_scaled_mm m=2000 n=256 k=384", text, sizeof text, log);
    assert_non_null(strstr(text, "cut: tiles of 128 x 192, stored by boxes, tuned for Fake GPU at M = 4096"));
    explained("block_scaled_mm m=40 n=256 k=384", text, sizeof text, log);
    assert_non_null(strstr(text, "cut: strips of 64 columns, 3 parts of K, clusters of 6, tuned for Fake GPU at M"));
    explained("block_scaled_mm m=100 n=256 k=384", text, sizeof text, log);
    assert_non_null(strstr(text, "cut: tiles of 128 x 96, 3 parts of K, clusters of 3, tuned for Fake GPU at M = 128"));
    explained("block_scaled_mm m=40 n=256 k=512", text, sizeof text, log);
    assert_null(strstr(text, "tuned for"));
    assert_null(strstr(log, "tuned"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_tuned(bad[i].line);
        explained("block_scaled_mm m=8 n=256 k=384", text, sizeof text, log);
        assert_null(strstr(text, "tuned for"));
        assert_non_null(strstr(log, "tuned cuts are not used: "));
        assert_non_null(strstr(log, bad[i].wrong));
    }
    empty_cache();
}

static void cubins_are_cached(void **state)
{
    (void)state;
    char log[4096];
    empty_cache();
    const long before = fake.compiles();
    works(&(setup){.cache = cache}, log);
    assert_int_equal(fake.compiles() - before, 3); /* a function each */
    assert_non_null(strstr(log, "2 compiled silu_mul_quant-sm_90a-"));
    assert_int_equal(access(entry_file("source.cu"), R_OK), 0);
    assert_int_equal(access(entry_file("log.txt"), R_OK), 0);
    works(&(setup){.cache = cache}, log);
    assert_int_equal(fake.compiles() - before, 3);
    works(&(setup){.cache = cache, .jit = QN_JIT_CACHE_ONLY}, log);
    works(&(setup){.cache = cache, .nvrtc = "/nowhere/libnvrtc.so"}, log); /* any compiler's will do then */
    assert_string_equal(log, "");
    works(&(setup){0}, log);
    assert_int_equal(fake.compiles() - before, 6);
}

/* Kernels for a device that is not here are compiled and kept as for one that is; what would be read back is NaN. */
static void a_target_needs_no_device(void **state)
{
    (void)state;
    char log[4096];
    const char *const nowhere = "/nowhere/libcuda.so";
    empty_cache();
    const long before = fake.compiles();
    works(&(setup){.cuda = nowhere, .cache = cache, .target = "sm_90a"}, log);
    assert_int_equal(fake.compiles() - before, 3);
    assert_non_null(strstr(log, "2 compiled silu_mul_quant-sm_90a-"));
    works(&(setup){.cache = cache, .jit = QN_JIT_CACHE_ONLY}, log); /* the device takes the same */
    refuses(&(setup){.target = "sm_77"}, QN_E_DEVICE, "target 'sm_77' is none of sm_80");
    world w;
    qn_error error = {0};
    void *one = NULL, *other = NULL, *stream = NULL, *graph = NULL;
    float out = 0.0f;
    assert_int_equal(open_world(&w, &(setup){.cuda = nowhere, .target = "sm_90a"}, &error), QN_OK);
    assert_int_equal(qn_device_alloc(w.ctx, (size_t)1 << 36, &one, &error), QN_OK);
    assert_int_equal(qn_device_alloc(w.ctx, 4, &other, &error), QN_OK);
    assert_ptr_not_equal(one, other);
    assert_int_equal(qn_stream_create(w.ctx, &stream, &error), QN_OK);
    assert_int_equal(qn_device_copy_in(w.ctx, other, &out, sizeof out, stream, &error), QN_OK);
    assert_int_equal(qn_device_copy_out(w.ctx, &out, other, sizeof out, stream, &error), QN_OK);
    assert_true(out != out);
    assert_int_equal(qn_graph_begin(w.ctx, stream, &error), QN_OK);
    assert_int_equal(qn_graph_end(w.ctx, stream, &graph, &error), QN_OK);
    assert_int_equal(qn_graph_launch(w.ctx, graph, stream, &error), QN_E_DEVICE);
    assert_non_null(strstr(error.text, "only compiled"));
    assert_int_equal(qn_device_alloc(w.ctx, SIZE_MAX, &graph, &error), QN_E_MEMORY);
    qn_stream_destroy(w.ctx, stream);
    qn_device_free(w.ctx, other);
    qn_device_free(w.ctx, one);
    close_world(&w);
}

static void policies_are_kept(void **state)
{
    (void)state;
    char log[4096];
    empty_cache();
    refuses(&(setup){.jit = QN_JIT_OFF, .cache = cache}, QN_E_JIT, "no shipped cubin for sm_90a");
    refuses(&(setup){.jit = QN_JIT_CACHE_ONLY, .cache = cache}, QN_E_JIT, "shipped or cached");
    refuses(&(setup){.nvrtc = "/nowhere/libnvrtc.so"}, QN_E_JIT, "/nowhere/libnvrtc.so");
    refuses(&(setup){.nvrtc = "libm.so.6"}, QN_E_JIT, "lacks nvrtcVersion");
    works(&(setup){.cache = cache}, log);
    refuses(&(setup){.jit = QN_JIT_OFF, .cache = cache}, QN_E_JIT, "no shipped cubin for sm_90a");
    const long before = fake.compiles();
    works(&(setup){.jit = QN_JIT_OFF, .cubins = cache}, log);
    assert_int_equal(fake.compiles(), before);
}

static void a_damaged_entry_is_made_again(void **state)
{
    (void)state;
    char log[4096];
    static const char *const files[] = {"kernel.cubin", "key.txt"};
    for (size_t f = 0; f < 2; f++) {
        for (int how = 0; how < 3; how++) { /* cut off, changed, gone */
            empty_cache();
            works(&(setup){.cache = cache}, log);
            const char *path = entry_file(files[f]);
            if (how == 0) {
                assert_int_equal(truncate(path, 5), 0);
            } else if (how == 1) {
                FILE *file = fopen(path, "r+b");
                assert_non_null(file);
                assert_int_equal(fseek(file, 6, SEEK_SET), 0);
                fputc('#', file);
                fclose(file);
            } else {
                assert_int_equal(unlink(path), 0);
            }
            const long before = fake.compiles();
            works(&(setup){.cache = cache}, log);
            assert_int_equal(fake.compiles() - before, 1);
            assert_non_null(strstr(log, "is damaged"));
            works(&(setup){.cache = cache}, log);
            assert_int_equal(fake.compiles() - before, 1);
            assert_string_equal(log, "");
        }
    }
}

static void a_cache_that_cannot_be_used_is_said_once(void **state)
{
    (void)state;
    char log[4096];
    works(&(setup){.cache = blocked}, log);
    const char *first = strstr(log, "1 kernel cache: ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "1 kernel cache: "));
}

static void a_source_that_does_not_compile_is_a_sentence(void **state)
{
    (void)state;
    world w;
    qn_error error = {0};
    qn_plan *plan = NULL;
    assert_int_equal(open_world(&w, &(setup){0}, NULL), QN_OK);
    /* the device's calls at its opening, then creation of the program, then its compilation */
    qn_device_info info;
    assert_int_equal(qn_device_get_info(w.ctx, &info, &error), QN_OK);
    assert_string_equal(info.target, "sm_90a");
    fake.break_at(3, 6);
    assert_int_equal(make_plan(&w, CASE, QN_BACKEND_CUDA, &plan, &error), QN_E_JIT);
    assert_non_null(strstr(error.text, "kernels/cuda/silu_mul_quant.cu for sm_90a"));
    assert_non_null(strstr(error.text, "x.cu(1): error: made to fail"));
    fake.break_at(0, 0);
    assert_int_equal(make_plan(&w, CASE, QN_BACKEND_CUDA, &plan, &error), QN_OK);
    qn_plan_destroy(plan);
    close_world(&w);
}

/* Everything a caller does with a device, in order; the first failure ends it. */
static qn_status whole_use(world *w, qn_error *error)
{
    qn_plan *plan = NULL;
    void *x = NULL, *q = NULL, *scale = NULL, *stream = NULL, *from = NULL, *to = NULL, *graph = NULL;
    qn_shape out[QN_MAX_OUT];
    static char host[4 * 512 * 2];
    qn_status status = make_plan(w, CASE, QN_BACKEND_CUDA, &plan, error);
#define NEXT(call) status = status == QN_OK ? (call) : status
    NEXT(qn_stream_create(w->ctx, &stream, error));
    NEXT(qn_event_create(w->ctx, &from, error));
    NEXT(qn_event_create(w->ctx, &to, error));
    NEXT(qn_device_alloc(w->ctx, sizeof host, &x, error));
    NEXT(qn_device_alloc(w->ctx, 4 * 256, &q, error));
    NEXT(qn_device_alloc(w->ctx, 4 * 2 * 4, &scale, error));
    NEXT(qn_device_copy_in(w->ctx, x, host, sizeof host, stream, error));
    NEXT(qn_device_fill(w->ctx, q, 0xFF, 4 * 256, stream, error));
    if (status == QN_OK) {
        qn_args args;
        memset(&args, 0, sizeof args);
        assert_int_equal(qn_op_desc_check(qn_plan_desc(plan), out, NULL, NULL), QN_OK);
        args.in[0] = qn_view_make(x, &qn_plan_desc(plan)->in[0]);
        args.out[0] = qn_mut_view_make(q, &out[0]);
        args.out[1] = qn_mut_view_make(scale, &out[1]);
        const qn_exec exec = {.stream = stream};
        const long before = w->allocations;
        NEXT(qn_event_record(w->ctx, from, stream, error));
        NEXT(qn_run(plan, &args, NULL, 0, &exec, error));
        NEXT(qn_graph_begin(w->ctx, stream, error));
        NEXT(qn_run(plan, &args, NULL, 0, &exec, error));
        assert_int_equal(w->allocations, before);
        if (status == QN_OK) {
            assert_int_equal(fake.last().block, 32);
            assert_int_equal(fake.last().grid[0], 4);
            assert_ptr_equal(fake.last().stream, stream);
            args.in[0].data = NULL;
            assert_int_equal(qn_run(plan, &args, NULL, 0, &exec, NULL), QN_E_ARGUMENT);
            args.in[0].data = (const char *)x + 1;
            assert_int_equal(qn_run(plan, &args, NULL, 0, &exec, NULL), QN_E_ALIGNMENT);
        }
    }
    NEXT(qn_graph_end(w->ctx, stream, &graph, error));
    NEXT(qn_graph_launch(w->ctx, graph, stream, error));
    NEXT(qn_event_record(w->ctx, to, stream, error));
    float ms = 0.0f;
    NEXT(qn_event_elapsed(w->ctx, from, to, &ms, error));
    NEXT(qn_device_copy_out(w->ctx, host, q, 4 * 256, stream, error));
    NEXT(qn_stream_sync(w->ctx, stream, error));
#undef NEXT
    fake.break_at(0, 0); /* what follows cannot be refused */
    qn_graph_destroy(w->ctx, graph);
    qn_event_destroy(w->ctx, from);
    qn_event_destroy(w->ctx, to);
    qn_stream_destroy(w->ctx, stream);
    qn_device_free(w->ctx, x);
    qn_device_free(w->ctx, q);
    qn_device_free(w->ctx, scale);
    qn_plan_destroy(plan);
    return status;
}

static void any_driver_call_may_fail(void **state)
{
    (void)state;
    world w;
    long most = 1;
    qn_error error;
    for (long n = 0; n <= most; n++) {
        memset(&error, 0, sizeof error);
        assert_int_equal(open_world(&w, &(setup){0}, NULL), QN_OK);
        fake.break_at(n, 2);
        qn_status status = whole_use(&w, &error);
        if (n == 0) {
            assert_int_equal(status, QN_OK);
            fake.break_at(1L << 40, 2);
            assert_int_equal(whole_use(&w, &error), QN_OK);
            most = 200;
        } else if (status == QN_OK) {
            assert_true(n > 40); /* past the last call */
            most = n;
        } else {
            assert_true(status == QN_E_MEMORY || status == QN_E_DEVICE || status == QN_E_JIT);
            assert_true(error.status == status && error.text[0]);
        }
        qn_plan *plan = NULL;
        assert_int_equal(make_plan(&w, CASE, QN_BACKEND_CPU, &plan, NULL), QN_OK);
        qn_plan_destroy(plan);
        close_world(&w);
    }
    assert_true(most < 200);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    empty_cache();
    int failed = 0, done = 0;
    for (long n = 1; n < 400 && !done; n++) {
        world w;
        qn_error error = {0};
        qn_status status = open_world(&w, &(setup){.cache = cache, .fail_at = n}, &error);
        if (status == QN_OK) {
            status = whole_use(&w, &error);
            done = w.allocations < n;
            /* without memory for the state of the backend the device counts as missing */
            assert_true(status == QN_OK || status == QN_E_MEMORY || status == QN_E_DEVICE);
            failed += status != QN_OK;
        }
        close_world(&w);
        if (n % 3 == 0) {
            empty_cache();
        }
    }
    assert_true(done && failed > 5);
}

/* The last launch of a plan whose operands begin at multiples of 4096, the second and third `offset` bytes later. */
static fake_launch last_launch(const qn_plan *plan, const char *text, uint64_t offset)
{
    qn_error error = {0};
    qn_shape out[QN_MAX_OUT];
    qn_args args;
    const qn_op_desc *desc = qn_plan_desc(plan);
    assert_int_equal(qn_op_desc_check(desc, out, NULL, NULL), QN_OK);
    memset(&args, 0, sizeof args);
    for (uint64_t i = 0; i < QN_MAX_IN; i++) { /* nobody reads them */
        const uint64_t at = ((i + 1) << 36) + (i == 1 || i == 2 ? offset : 0);
        if (desc->in[i].format != QN_FORMAT_NONE) {
            args.in[i] = qn_view_make((const void *)(uintptr_t)at, &desc->in[i]);
        }
    }
    args.out[0] = qn_mut_view_make((void *)(uintptr_t)(UINT64_C(65) << 36), &out[0]);
    args.out[1] = qn_mut_view_make((void *)(uintptr_t)(UINT64_C(66) << 36), &out[1]);
    void *const workspace = (void *)(uintptr_t)(UINT64_C(67) << 36);
    if (qn_run(plan, &args, workspace, qn_plan_workspace_bytes(plan, desc->in[0].dims[0], 1), NULL, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    return fake.last();
}

static qn_plan *plan_of(world *w, const char *text)
{
    qn_error error = {0};
    qn_plan *plan = NULL;
    if (make_plan(w, text, QN_BACKEND_CUDA, &plan, &error) != QN_OK) {
        fail_msg("%s: %s", text, error.text);
    }
    return plan;
}

/* The launch that reads codes. */
static fake_launch attention_launch(world *w, const char *text, uint64_t offset)
{
    qn_plan *const plan = plan_of(w, text);
    const fake_launch l = last_launch(plan, text, offset);
    qn_plan_destroy(plan);
    return l;
}

/* Plans of one kernel's code that differ in what their blocks keep: a later one leaves the earlier its room. */
static void plans_share_a_function(void **state)
{
    (void)state;
    static const char *const texts[] = {"vq_mm m=1 n=4096 k=4096 format=quip_e8p x=bf16 SU=1 SV=1",
                                        "vq_mm m=1 n=14336 k=4096 format=quip_e8p x=bf16 SU=1 SV=1",
                                        "vq_mm m=1 n=4096 k=4096 format=quip_e8p x=bf16 SU=1 SV=1 bias=1"};
    enum { PLANS = sizeof texts / sizeof *texts };
    world w;
    qn_plan *plans[PLANS];
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    for (int i = 0; i < PLANS; i++) {
        plans[i] = plan_of(&w, texts[i]);
    }
    for (int i = 0; i < PLANS; i++) {
        last_launch(plans[i], texts[i], 0);
        qn_plan_destroy(plans[i]);
    }
    close_world(&w);
}

/* Which kernel attention over coded keys takes, and how its blocks are cut; cases that need no second launch. */
static void coded_attention_is_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t offset;
        uint32_t block, grid[3];
    } cases[] = {
        /* two sequences of a head a block, keys by products or by pairs */
        {"vq_attention m=8 n=4096 k=128 e=32 g=32 q=f16", 0, 512, {128, 1, 1}},
        {"vq_attention m=8 n=4096 k=128 e=32 g=32 channels=2 q=f16", 0, 512, {2, 4, 16}}, /* clusters of two heads */
        {"vq_attention m=8 n=4096 k=128 e=32 g=32 channels=2", 0, 384, {2, 4, 16}},       /* two pieces of a query */
        {"vq_attention m=9 n=4096 k=128 e=32 g=32 q=f16", 0, 512, {96, 1, 1}},            /* 288 items, 3 a block */
        {"vq_attention m=3 n=200 k=128 e=4 g=4 q=f16", 0, 512, {12, 1, 1}}, /* fewer than multiprocessors */
        {"vq_attention m=16 n=200 k=128 e=32 g=8 channels=2 q=f16", 0, 256, {2, 16, 4}}, /* two of four query heads */
        /* the other table kernel: codes of odd rows, turned keys; the plain one */
        {"vq_attention m=2 n=200 k=128 e=4 g=4 q=f16", 8, 384, {4, 1, 1}},
        {"vq_attention m=2 n=200 k=128 e=4 g=4 q=f16 rope_theta=1e+04", 0, 256, {8, 1, 1}},
        {"vq_attention m=2 n=200 k=128 e=4 g=4 q=f16", 1, 128, {4, 1, 2}},
    };
    world w;
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fake_launch l = attention_launch(&w, cases[i].text, cases[i].offset);
        if (l.block != cases[i].block || memcmp(l.grid, cases[i].grid, sizeof l.grid) != 0) {
            fail_msg("%s: blocks of %u, grid %u x %u x %u", cases[i].text, l.block, l.grid[0], l.grid[1], l.grid[2]);
        }
    }
    close_world(&w);
}

/* Products of FP4 weights: how many launches, and the last one's grid down, which is the rows where planes are joined,
 * else 1. */
static void fp4_rows_become_planes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t offset;
        long launches;
        uint32_t down;
    } cases[] = {
        {"mxfp4_mm m=1 n=4096 k=4096 x=f16", 0, 1, 1},
        {"mxfp4_mm m=2 n=4096 k=4096 x=f16", 0, 3, 2},
        {"mxfp4_mm m=512 n=4096 k=4096 x=f16", 0, 3, 512},
        {"mxfp4_mm m=513 n=4096 k=4096 x=f16", 0, 3, 1}, /* weights written out */
        {"mxfp4_mm m=341 n=4096 k=4096", 0, 3, 341},
        {"mxfp4_mm m=342 n=4096 k=4096", 0, 3, 1},
        {"mxfp4_mm m=10760 n=8 k=8192", 0, 5, 1}, /* planes of 10752 rows at a time */
        {"mxfp4_mm m=86 n=4096 k=4096", 1, 1, 2}, /* tiles of any operands */
        {"nvfp4_mm m=341 n=4096 k=4096", 0, 3, 341},
        {"nvfp4_mm m=20 n=4096 k=4112", 0, 3, 1},
        {"nvfp4_mm m=20 n=4096 k=4096 x=f16", 0, 1, 1}, /* as they are */
        {"mxfp4_mm m=20 n=4096 k=4096 x=bf16", 0, 1, 1},
        {"nvfp4_mm m=1024 n=4096 k=4096 x=bf16", 0, 1, 1},
        {"nvfp4_mm m=1025 n=4096 k=4096 x=bf16", 0, 2, 1},
        {"nvfp4_mm m=600 n=2880 k=2880 x=bf16", 0, 2, 1}, /* strips are estimated to be slower */
    };
    world w;
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_plan *const plan = plan_of(&w, cases[i].text);
        const long before = fake.last().launches;
        const fake_launch l = last_launch(plan, cases[i].text, cases[i].offset);
        if (l.launches - before != cases[i].launches || l.grid[1] != cases[i].down) {
            fail_msg("%s: %ld launches, the last one of %u x %u blocks", cases[i].text, l.launches - before, l.grid[0],
                     l.grid[1]);
        }
        qn_plan_destroy(plan);
    }
    close_world(&w);
}

/* Which kernel attention takes: tiles for many queries, where sizes and places are theirs. */
static void attention_is_cut(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t offset;
        uint32_t block, grid[3];
    } cases[] = {
        {"attention m=2048 n=2048 k=128 e=32 g=8 q=f16 k=f16 v=f16", 0, 128, {128, 8, 1}},
        {"attention m=2048 n=2048 k=128 e=32 g=8 q=f16 k=f16 v=f16", 2, 128, {512, 32, 1}}, /* read in place */
        {"attention m=2048 n=2048 k=128 e=32 g=8", 4, 256, {64, 8, 1}},
        {"attention m=2048 n=2048 k=72 e=32 g=8", 0, 128, {512, 32, 1}},
        {"attention m=1 n=2048 k=128 e=32 g=8", 0, 128, {1, 32, 1}},
        {"attention m=512 n=512 k=64 e=9 g=3", 0, 128, {384, 3, 1}}, /* the join of parts */
        {"scaled_attention m=2048 n=2048 k=128 e=32 g=8 window=128", 0, 128, {128, 8, 1}},
        {"scaled_attention m=2048 n=2048 k=64 e=32 g=8", 0, 256, {64, 8, 1}}, /* factors in small heads */
    };
    world w;
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fake_launch l = attention_launch(&w, cases[i].text, cases[i].offset);
        if (l.block != cases[i].block || memcmp(l.grid, cases[i].grid, sizeof l.grid) != 0) {
            fail_msg("%s: blocks of %u, grid %u x %u x %u", cases[i].text, l.block, l.grid[0], l.grid[1], l.grid[2]);
        }
    }
    close_world(&w);
}

static int32_t count_program(void *user, const qn_warm_info *info)
{
    int *counts = user;
    counts[info->made == NULL]++;
    return counts[0] + counts[1] == counts[2];
}

static void warming_fills_the_cache(void **state)
{
    (void)state;
    world w;
    qn_error error = {0};
    int counts[3] = {0, 0, 0}; /* made, failed; stop after */
    empty_cache();
    assert_int_equal(open_world(&w, &(setup){.cache = cache}, NULL), QN_OK);
    assert_int_equal(qn_kernels_warm(w.ctx, "sm_7", NULL, NULL, NULL, &error), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "'sm_7'"));
    const long before = fake.compiles();
    qn_exec exec = {0};
    assert_int_equal(qn_pool_create(w.ctx, 4, &exec.pool, NULL), QN_OK);
    assert_int_equal(qn_kernels_warm(w.ctx, NULL, &exec, count_program, counts, &error), QN_OK);
    qn_pool_destroy(exec.pool);
    assert_true(counts[0] > 10 && counts[1] == 0);
    assert_int_equal(fake.compiles() - before, counts[0]);
    assert_int_equal(qn_kernels_warm(w.ctx, "sm_90a", NULL, NULL, NULL, &error), QN_OK);
    assert_int_equal(fake.compiles() - before, counts[0]);
    counts[0] = 0;
    counts[2] = 3;
    assert_int_equal(qn_kernels_warm(w.ctx, "sm_90a", NULL, count_program, counts, &error), QN_E_CANCELLED);
    assert_int_equal(counts[0], 3);
    counts[0] = counts[2] = 0;
    assert_int_equal(qn_kernels_warm(w.ctx, "sm_80", NULL, count_program, counts, &error),
                     QN_E_JIT); /* the stand-in's limit */
    assert_true(counts[1] > 10 && counts[0] == 0);
    close_world(&w);
    /* nothing is compiled for a folder that takes no entries */
    assert_int_equal(open_world(&w, &(setup){.cache = "/dev/null/cache"}, NULL), QN_OK);
    const long all = fake.compiles();
    assert_int_equal(qn_kernels_warm(w.ctx, "sm_90a", NULL, NULL, NULL, &error), QN_E_IO);
    assert_non_null(strstr(error.text, "/dev/null/cache"));
    assert_int_equal(fake.compiles(), all);
    close_world(&w);
}

static int start(void **state)
{
    (void)state;
    fake.handle = dlopen(QN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (!fake.handle || !mkdtemp(folder)) {
        return -1;
    }
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"fake_setup", &fake.setup}, {"fake_fail", &fake.break_at}, {"fake_calls", &fake.calls},
                   {"fake_live", &fake.live},   {"fake_last", &fake.last},     {"fake_compiles", &fake.compiles}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(fake.handle, symbols[i].name);
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    snprintf(cache, sizeof cache, "%s/a/cache", folder);
    snprintf(blocked, sizeof blocked, "%s/file/cache", folder);
    char path[64];
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *file = fopen(path, "w");
    return file && fclose(file) == 0 ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_driver_is_a_reason),
        cmocka_unit_test(auto_never_takes_a_device),
        cmocka_unit_test(explain_and_doctor_tell),
        cmocka_unit_test(rows_are_cut_by_estimate),
        cmocka_unit_test(tuned_cuts_are_read),
        cmocka_unit_test(cubins_are_cached),
        cmocka_unit_test(a_target_needs_no_device),
        cmocka_unit_test(policies_are_kept),
        cmocka_unit_test(a_damaged_entry_is_made_again),
        cmocka_unit_test(a_cache_that_cannot_be_used_is_said_once),
        cmocka_unit_test(a_source_that_does_not_compile_is_a_sentence),
        cmocka_unit_test(any_driver_call_may_fail),
        cmocka_unit_test(memory_may_run_out_anywhere),
        cmocka_unit_test(coded_attention_is_cut),
        cmocka_unit_test(fp4_rows_become_planes),
        cmocka_unit_test(attention_is_cut),
        cmocka_unit_test(plans_share_a_function),
        cmocka_unit_test(warming_fills_the_cache),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
