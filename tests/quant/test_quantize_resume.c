/* Quantising with resume: a run that ends early, by its caller or by a kill, is gone on with, and the folder has the
 * bytes of one that was not interrupted; what was damaged, or made from something else, is not taken. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "quant/quantize.h"
#include "synthetic.h"

static qn_ctx *ctx;
static char root[64], source[128], text[160], other_text[160], target[128], kept[160], reference[128];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/quern-resume-XXXXXX");
    if (!mkdtemp(root) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(text, sizeof text, "%s/" SYN_TEXT, source);
    snprintf(other_text, sizeof other_text, "%s/other.txt", source);
    snprintf(target, sizeof target, "%s/target", root);
    snprintf(kept, sizeof kept, "%s/target.unfinished", root);
    snprintf(reference, sizeof reference, "%s/reference", root);
    static syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, 22);
    const int failed =
        syn_write(ctx, source, tensors) || syn_put(source, "other.txt", "hello, hello; shell and hell\n");
    syn_free(tensors);
    return failed;
}

static int teardown(void **state)
{
    (void)state;
    syn_remove(root);
    qn_ctx_destroy(ctx);
    return 0;
}

static int stop_after(void *user, const qn_quantize_progress *p)
{
    return p->index >= *(int *)user;
}

/* At most `most` tensors; how many were taken from earlier runs in *resumed. */
static qn_status run(const char *to, const char *scheme, const char *calibration, int resume, int most,
                     int32_t *resumed, qn_error *error)
{
    qn_quantize_options o;
    qn_quantize_result result = {0};
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.calibration = calibration;
    o.resume = resume;
    o.progress = stop_after;
    o.progress_user = &most;
    const qn_status status = qn_quantize(ctx, source, to, &o, &result, error);
    *resumed = result.resumed;
    return status;
}

static void must_run(const char *to, const char *scheme, const char *calibration, int resume, int32_t resumed)
{
    qn_error error = {0};
    int32_t found;
    if (run(to, scheme, calibration, resume, SYN_TENSORS + 1, &found, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(found, resumed);
}

static void same(const char *name)
{
    char a[512], b[512];
    snprintf(a, sizeof a, "%s/%s", target, name);
    snprintf(b, sizeof b, "%s/%s", reference, name);
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    assert_true(f && g);
    int x, y;
    do {
        x = getc(f);
        y = getc(g);
        assert_int_equal(x, y);
    } while (x != EOF);
    fclose(f);
    fclose(g);
}

/* The output is whole, the same as without interruptions, and nothing else is left. */
static void must_be_the_reference(void)
{
    assert_int_equal(syn_entries(target), syn_entries(reference));
    same("model.safetensors");
    same("config.json");
    assert_int_equal(access(kept, F_OK), -1);
    assert_int_equal(syn_entries(root), 3);
}

static void must_stop(const char *scheme, int most, int files)
{
    qn_error error = {0};
    int32_t resumed;
    assert_int_equal(run(target, scheme, text, 1, most, &resumed, &error), QN_E_CANCELLED);
    assert_non_null(strstr(error.text, "target.unfinished"));
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(syn_entries(kept), files);
}

static void goes_on(void **state)
{
    (void)state;
    static const char *const schemes[] = {"gptvq-2", "nvfp4"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        must_run(reference, schemes[i], text, 0, 0);
        must_stop(schemes[i], 6, 3); /* embeddings and norms are copies */
        must_stop(schemes[i], 12, 8);
        must_run(target, schemes[i], text, 1, 8);
        must_be_the_reference();
        syn_remove(target);
        syn_remove(reference);
    }
}

static void without_it_nothing_is_kept(void **state)
{
    (void)state;
    qn_error error = {0};
    int32_t resumed;
    assert_int_equal(run(target, "gptvq-2", text, 0, 6, &resumed, &error), QN_E_CANCELLED);
    assert_non_null(strstr(error.text, "nothing was written"));
    assert_int_equal(syn_entries(root), 1);
    must_run(target, "bf16", text, 1, 0); /* no tensor takes long: no folder stays */
    assert_int_equal(syn_entries(root), 2);
    syn_remove(target);
}

static int damage(const char *path, const struct stat *s, int kind, struct FTW *place)
{
    (void)place;
    if (kind != FTW_F || !strstr(path, ".part")) {
        return 0;
    }
    FILE *f = fopen(path, "r+b");
    if (!f || fseek(f, (long)s->st_size - 3, SEEK_SET) != 0) {
        return -1;
    }
    const int c = getc(f);
    return fseek(f, -1, SEEK_CUR) != 0 || putc(c ^ 4, f) == EOF || fclose(f) != 0;
}

static void only_what_fits_is_taken(void **state)
{
    (void)state;
    must_run(reference, "gptvq-2", text, 0, 0);
    must_stop("gptvq-2", 8, 5);
    assert_int_equal(nftw(kept, damage, 4, FTW_PHYS), 0);
    must_run(target, "gptvq-2", text, 1, 0); /* damaged: made again */
    must_be_the_reference();
    syn_remove(target);
    syn_remove(reference);

    must_run(reference, "gptvq-2", other_text, 0, 0);
    must_stop("gptvq-2", 8, 5);
    must_run(target, "gptvq-2", other_text, 1, 0); /* another text: other inputs, other codes */
    must_be_the_reference();
    syn_remove(target);
    syn_remove(reference);

    FILE *f = fopen(kept, "w");
    assert_non_null(f);
    fclose(f);
    qn_error error = {0};
    int32_t resumed;
    assert_int_equal(run(target, "gptvq-2", text, 1, 99, &resumed, &error), QN_E_IO);
    assert_non_null(strstr(error.text, "target.unfinished"));
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(remove(kept), 0);
}

/* SIGKILL after 150 ms more each time, until one run gets through. */
static void kills_do_not_matter(void **state)
{
    (void)state;
    must_run(reference, "gptvq-2", text, 0, 0);
    int status = -1, runs = 0;
    while (status != 0) {
        const long wait = 150L * ++runs;
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            int32_t resumed;
            _exit(run(target, "gptvq-2", text, 1, 99, &resumed, NULL) != QN_OK);
        }
        const struct timespec t = {wait / 1000, wait % 1000 * 1000000};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        assert_true(runs < 500);
        if (status != 0 && access(target, F_OK) == 0) {
            break; /* killed between the last rename and the end: the folder may stay */
        }
    }
    print_message("%d runs\n", runs);
    syn_remove(kept);
    must_be_the_reference();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goes_on),
        cmocka_unit_test(without_it_nothing_is_kept),
        cmocka_unit_test(only_what_fits_is_taken),
        cmocka_unit_test(kills_do_not_matter),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
