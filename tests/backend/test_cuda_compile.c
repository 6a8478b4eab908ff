/* Every device kernel compiles for every target it names, without warnings, spills
 * or local memory: what a machine without a GPU can say of them. NVRTC does it where
 * it can be loaded, else nvcc; with neither the test is skipped and says so.
 *
 * How long compiling takes is printed, in processor time, the slowest program of a source: a look is enough to see
 * that one has become slow, and a slow machine fails nothing.
 *
 * QN_TEST_EVERY_CUBIN=1        every case for every target; without it each source once for sm_90a and once for sm_80
 * QN_TEST_EVERY_CUBIN=sm_90a   every case for that target */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cuda/cuda.h"

enum { MOST = 1 << 14, MOST_SOURCES = 100, SHOWN = 8 };

/* What compiling the programs of one source took, in seconds of processor time. */
typedef struct source_times {
    const char *source, *text, *target; /* text: a case that needs the slowest */
    double slowest;
    int count, slow; /* programs, and those over half a second */
} source_times;

static qn_ctx *ctx;
static qn_cuda *cuda;
static qn_cuda_key done[MOST];
static const char *sources[MOST];
static source_times times[MOST_SOURCES];
static int count, bad;
static const char *whole; /* "1": every case and target; a target: every case for it; NULL: each source once for two */
static const char *nvcc;  /* NULL: NVRTC compiles */
static char folder[] = "/tmp/quern-nvcc-XXXXXX";

/* The log of a compilation by nvcc in the library's place; 1: it compiled. */
static int compile_with_nvcc(const qn_cuda_program *program, qn_cuda_target target, char *log, size_t room)
{
    char path[64], command[1024];
    snprintf(path, sizeof path, "%s/k.cu", folder);
    char *text = qn_cuda_source_text(cuda, program);
    FILE *file = fopen(path, "w");
    assert_non_null(text);
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    qn_free(ctx, text);
    snprintf(command, sizeof command,
             "%s -arch=%s -cubin --std=c++17 --fmad=false -Xptxas=-v -diag-suppress 177 -Ikernels/cuda "
             "-Ikernels/common -o %s/k.cubin %s 2>&1",
             nvcc, qn_cuda_target_name(target), folder, path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    const size_t n = fread(log, 1, room - 1, pipe);
    log[n] = 0;
    return pclose(pipe) == 0;
}

/* What is wrong with a log of ptxas -v; NULL: nothing. */
static const char *fault_in(const char *log)
{
    if (strstr(log, "warning")) {
        return "a warning";
    }
    int seen = 0;
    for (const char *at = log; (at = strstr(at, " bytes stack frame")) != NULL; at++) {
        const char *number = at;
        while (number > log && number[-1] >= '0' && number[-1] <= '9') {
            number--;
        }
        seen = 1;
        if (strncmp(number, "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", 62) != 0) {
            return "local memory or spills";
        }
    }
    return seen ? NULL : "no resource usage";
}

/* Of this process and of compilers that have ended. */
static double processor_seconds(void)
{
    static const int who[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        struct rusage used;
        assert_int_equal(getrusage(who[i], &used), 0);
        sum += (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    }
    return sum;
}

static void keep_time(const char *source, const char *text, qn_cuda_target target, double seconds)
{
    source_times *t = times;
    while (t->source && strcmp(t->source, source) != 0) {
        t++;
        assert_true(t < times + MOST_SOURCES);
    }
    t->source = source;
    t->count++;
    t->slow += seconds > 0.5;
    if (seconds > t->slowest) {
        t->slowest = seconds;
        t->text = text;
        t->target = qn_cuda_target_name(target);
    }
}

static int by_time(const void *a, const void *b)
{
    const double x = ((const source_times *)a)->slowest, y = ((const source_times *)b)->slowest;
    return (x < y) - (x > y);
}

static void print_times(void)
{
    int slow = 0, n = 0;
    for (; times[n].source; n++) {
        slow += times[n].slow;
    }
    qsort(times, (size_t)n, sizeof *times, by_time);
    printf("%d cubins by %s, %d took more than 0.5 s of processor time, %d faulty\n", count,
           nvcc ? nvcc : cuda->compiler, slow, bad);
    for (int i = 0; i < n && (whole || i < SHOWN); i++) {
        const source_times *t = &times[i];
        printf("%7.0f ms  %-26s %4d programs, %d over 0.5 s; %s, %s\n", 1e3 * t->slowest, t->source, t->count, t->slow,
               t->target, t->text);
    }
}

static void compile_one(const qn_kernel *kernel, const char *text, const qn_cuda_program *program,
                        qn_cuda_target target)
{
    static char log[1 << 16];
    qn_cuda_key key;
    qn_error error = {0};
    qn_cuda_image image = {0};
    assert_int_equal(qn_cuda_key_make(program, target, &key, &error), QN_OK);
    for (int i = 0; i < count; i++) {
        if ((done[i].high == key.high && done[i].low == key.low) ||
            (!whole && done[i].target == target && strcmp(sources[i], program->source) == 0)) {
            return;
        }
    }
    assert_true(count < MOST);
    sources[count] = program->source;
    done[count++] = key;
    const double start = processor_seconds();
    int good;
    if (nvcc) {
        good = compile_with_nvcc(program, target, log, sizeof log);
    } else {
        good = qn_cuda_compile(cuda, program, target, &image, &error) == QN_OK;
        snprintf(log, sizeof log, "%s", good ? image.log : error.text);
        qn_cuda_image_free(cuda, &image);
    }
    keep_time(program->source, text, target, processor_seconds() - start);
    const char *fault = good ? fault_in(log) : "it does not compile";
    if (fault) {
        bad++;
        print_error("%s for '%s', %s, target %s: %s\n%s\n%s\n", kernel->name, text, program->entry,
                    qn_cuda_target_name(target), fault, program->params, log);
    }
}

static int takes(int target)
{
    if (whole) {
        return strcmp(whole, "1") == 0 || strcmp(whole, qn_cuda_target_name((qn_cuda_target)target)) == 0;
    }
    return target == QN_SM_80 || target == QN_SM_90A;
}

static int compile_case(const qn_kernel *kernel, const char *text, const qn_op_desc *desc)
{
    const qn_cuda_impl *impl = kernel->impl;
    for (int t = 0; t < QN_SM_COUNT; t++) {
        if (!(impl->targets & QN_SM_BIT(t)) || !takes(t)) {
            continue;
        }
        const qn_cuda_device device = qn_cuda_typical_device((qn_cuda_target)t);
        static qn_cuda_program programs[QN_CUDA_PROGRAMS];
        memset(programs, 0, sizeof programs);
        const int32_t n = impl->programs(kernel, desc, &device, programs);
        assert_in_range(n, 1, QN_CUDA_PROGRAMS);
        for (int32_t i = 0; i < n; i++) {
            assert_true(programs[i].shared_bytes <= device.shared_bytes);
            compile_one(kernel, text, &programs[i], (qn_cuda_target)t);
        }
    }
    return 1;
}

static int find_compiler(void)
{
    static const char *const places[] = {"/usr/local/cuda/bin/nvcc", "/usr/bin/nvcc", "/usr/local/bin/nvcc"};
    qn_error error = {0};
    if (qn_cuda_nvrtc(cuda, &error) == QN_OK) {
        return 1;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && !nvcc; i++) {
        nvcc = access(places[i], X_OK) == 0 ? places[i] : NULL;
    }
    if (!nvcc) {
        printf("skipped: %s, and nvcc is not installed: no device kernel was compiled\n", error.text);
    }
    return nvcc && mkdtemp(folder);
}

static void every_kernel_compiles_for_every_target(void **state)
{
    (void)state;
    if (!find_compiler()) {
        skip();
    }
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        const char *text;
        int32_t bench;
        int met = 0;
        assert_int_equal(kernel->backend, QN_BACKEND_CUDA);
        assert_true(kernel->open && kernel->close && kernel->launch && kernel->level && !kernel->run);
        for (int32_t c = 0; (text = qn_case_at(c, &bench)) != NULL; c++) {
            qn_op_desc desc;
            assert_int_equal(qn_op_desc_parse(text, &desc, NULL), QN_OK);
            if (desc.op == kernel->op && !kernel->accepts(kernel, &desc)) {
                met += compile_case(kernel, text, &desc);
            }
        }
        if (!met) {
            fail_msg("%s: no case of the table is one it accepts", kernel->name);
        }
    }
    for (int t = 0; t < QN_SM_COUNT; t++) {
        static const qn_kernel ceiling = {.name = "ceiling"}, chain = {.name = "chain"};
        static qn_cuda_program program;
        if (takes(t)) {
            compile_one(&ceiling, "the ceiling", &qn_cuda_ceiling_program, (qn_cuda_target)t);
            memset(&program, 0, sizeof program);
            for (int32_t i = 0; qn_cuda_chain_program(i, &program); i++) {
                compile_one(&chain, "a chain", &program, (qn_cuda_target)t);
                memset(&program, 0, sizeof program);
            }
        }
    }
    print_times();
    assert_true(count > 0);
    assert_int_equal(bad, 0);
}

/* Parameters, target, sources and options are in the key; the entry's name is not. */
static void keys_tell_programs_apart(void **state)
{
    (void)state;
    static qn_cuda_program a, b;
    qn_cuda_key first, second;
    memset(&a, 0, sizeof a);
    a.source = "ceiling.cu";
    a.entry = "qn_ceiling_read";
    b = a;
    b.entry = "qn_ceiling_copy";
    assert_int_equal(qn_cuda_key_make(&a, QN_SM_80, &first, NULL), QN_OK);
    assert_int_equal(qn_cuda_key_make(&b, QN_SM_80, &second, NULL), QN_OK);
    assert_string_equal(first.entry, second.entry);
    assert_int_equal(qn_cuda_key_make(&b, QN_SM_86, &second, NULL), QN_OK);
    assert_string_not_equal(first.entry, second.entry);
    qn_cuda_define(&b, "N", -5);
    assert_string_equal(b.params, "#define N -5\n");
    assert_int_equal(qn_cuda_key_make(&b, QN_SM_80, &second, NULL), QN_OK);
    assert_string_not_equal(first.entry, second.entry);
    b.source = "quantize_fp8.cu";
    assert_int_equal(qn_cuda_key_make(&b, QN_SM_80, &first, NULL), QN_OK);
    assert_string_not_equal(first.entry, second.entry);
    qn_error error = {0};
    b.source = "nothing.cu";
    assert_int_equal(qn_cuda_key_make(&b, QN_SM_80, &first, &error), QN_E_INTERNAL);
    assert_non_null(strstr(error.text, "nothing.cu"));
    for (int i = 0; i < 100; i++) {
        qn_cuda_define(&a, "TOO_MANY", i);
    }
    assert_int_equal(qn_cuda_key_make(&a, QN_SM_80, &first, &error), QN_E_INTERNAL);
}

static int open_with(const char *nvrtc)
{
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.nvrtc_library = nvrtc;
    if (qn_ctx_create(&options, &ctx, NULL) != QN_OK) {
        return -1;
    }
    cuda = qn_cuda_get(ctx);
    return cuda ? 0 : -1;
}

/* As the library finds NVRTC, and if there is one the rest by that in processes of its own (fake/far_nvrtc.c). */
static int start(void **state)
{
    (void)state;
    qn_cuda_image image = {0};
    if (open_with(NULL) != 0 || qn_cuda_nvrtc(cuda, NULL) != QN_OK) {
        return cuda ? 0 : -1;
    }
    const int made = qn_cuda_compile(cuda, &qn_cuda_ceiling_program, QN_SM_80, &image, NULL) == QN_OK;
    qn_cuda_image_free(cuda, &image);
    qn_ctx_destroy(ctx);
    return made ? open_with(QN_FAR_NVRTC) : -1;
}

static int stop(void **state)
{
    (void)state;
    char command[64];
    qn_ctx_destroy(ctx);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return nvcc ? system(command) : 0;
}

int main(void)
{
    whole = getenv("QN_TEST_EVERY_CUBIN");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_tell_programs_apart),
        cmocka_unit_test(every_kernel_compiles_for_every_target),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
