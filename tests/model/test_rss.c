/* Peak memory of `quern run`: no more than the weights, what the KV cache holds
 * of a short text, and 60 MB. The real model (QN_TEST_MODEL) as it is, and
 * quantised without calibration, with and without a packed file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <quern/quern.h>

#include "quant/quantize.h"
#include "quant/synthetic.h"

#if defined(__has_feature)
#define CLANG_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CLANG_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || CLANG_SANITIZER
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define ALLOWED 60e6

/* Peak resident bytes of the command, which must succeed. */
static double peak_of(const char *model, const char *more)
{
    const char *words[] = {getenv("QN_CLI"), "run", model, "-p", "Why is the sky blue?", "-n", "4",
                           "--greedy",       "-q",  more,  NULL};
    const pid_t child = fork();
    if (child == 0) {
        const int null = open("/dev/null", O_RDWR);
        if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0) {
            _exit(126);
        }
        execv(words[0], (char *const *)(const void *)words);
        _exit(127);
    }
    int status = 0;
    struct rusage usage;
    assert_true(child > 0 && wait4(child, &status, 0, &usage) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 1024.0 * (double)usage.ru_maxrss;
}

/* In a process of its own: a child's peak counts from that of the process it was forked from. */
static void quantize(const char *model, const char *scheme, const char *folder)
{
    const pid_t child = fork();
    if (child == 0) {
        qn_ctx *ctx;
        qn_error error = {QN_OK, ""};
        qn_quantize_options o;
        qn_quantize_options_init(&o);
        o.scheme = scheme;
        o.pack = 1;
        const qn_quant_tuning tuning = {.search = 0};
        if (qn_ctx_create(NULL, &ctx, &error) != QN_OK ||
            qn_quantize_with(ctx, model, folder, &o, &tuning, NULL, &error) != QN_OK) {
            fprintf(stderr, "%s\n", error.text);
            _exit(1);
        }
        _exit(0);
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static double size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (double)st.st_size;
}

static void expect_bounded(const char *name, const char *model, double weights, const char *more)
{
    const double peak = peak_of(model, more);
    print_message("%-24s %6.1f MB of weights, peak %6.1f MB\n", name, 1e-6 * weights, 1e-6 * peak);
    assert_true(peak <= weights + ALLOWED);
}

static void peak_memory_is_bounded(void **state)
{
    (void)state;
    const char *model = getenv("QN_TEST_MODEL");
    if (SANITIZED || !model || !*model) {
        print_message("skipped: %s\n",
                      SANITIZED ? "sanitizers take memory of their own" : "QN_TEST_MODEL does not name the model file");
        skip();
    }
    expect_bounded("the file itself", model, size_of(model), "--raw");
    char root[] = "/tmp/quern-rss-XXXXXX", folder[64], file[96];
    assert_non_null(mkdtemp(root));
    static const char *const schemes[] = {"int8-azp", "nvfp4", "bf16"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        snprintf(folder, sizeof folder, "%s/%s", root, schemes[i]);
        snprintf(file, sizeof file, "%s/model.safetensors", folder);
        quantize(model, schemes[i], folder);
        const double weights = size_of(file);
        char name[40];
        snprintf(name, sizeof name, "%s, packed file", schemes[i]);
        expect_bounded(name, folder, weights, "--raw");
        expect_bounded(schemes[i], folder, weights, "--no-packed");
    }
    syn_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(peak_memory_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
