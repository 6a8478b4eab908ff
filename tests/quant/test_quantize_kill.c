/* Kills a quantise at 50 random moments: the output is absent, the old one or
 * whole, and the next run removes what the killed one left. */
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

#include "base/clock.h"
#include "quant/quantize.h"
#include "synthetic.h"

enum { KILLS = 50 };

static char root[64], source[128], text[160], target[128], reference[128], older[128];
static const char *command; /* NULL: the library in a forked child */

static pid_t start(const char *to, const char *scheme)
{
    const pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    if (command) {
        if (!freopen("/dev/null", "w", stdout)) {
            _exit(99);
        }
        execl(command, command, "quantize", source, to, "--weights", scheme, "--calibrate", text, "--force", (char *)NULL);
        _exit(98);
    }
    qn_ctx *ctx;
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.calibration = text;
    o.force = 1;
    _exit(qn_ctx_create(NULL, &ctx, NULL) != QN_OK || qn_quantize(ctx, source, to, &o, NULL, NULL) != QN_OK);
}

static void run(const char *to, const char *scheme)
{
    int status = 0;
    const pid_t pid = start(to, scheme);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("quantising to %s ended with status %d", to, status);
    }
}

static int same_file(const char *folder_a, const char *folder_b, const char *name)
{
    char a[512], b[512];
    snprintf(a, sizeof a, "%s/%s", folder_a, name);
    snprintf(b, sizeof b, "%s/%s", folder_b, name);
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int same = f && g;
    while (same) {
        const int x = getc(f), y = getc(g);
        same = x == y;
        if (x == EOF) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    if (g) {
        fclose(g);
    }
    return same;
}

static int same_folder(const char *a, const char *b)
{
    if (syn_entries(a) != syn_entries(b)) {
        return 0;
    }
    DIR *d = opendir(b);
    int same = d != NULL;
    for (struct dirent *e = d ? readdir(d) : NULL; e && same; e = readdir(d)) {
        same = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || same_file(a, b, e->d_name);
    }
    if (d) {
        closedir(d);
    }
    return same;
}

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/quern-kill-XXXXXX");
    qn_ctx *ctx;
    if (!mkdtemp(root) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(text, sizeof text, "%s/" SYN_TEXT, source);
    snprintf(target, sizeof target, "%s/target", root);
    snprintf(reference, sizeof reference, "%s/reference", root);
    snprintf(older, sizeof older, "%s/older", root);
    static syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, 21);
    const int failed = syn_write(ctx, source, tensors);
    syn_free(tensors);
    qn_ctx_destroy(ctx);
    command = getenv("QN_CLI");
    if (!command || access(command, X_OK) != 0) {
        print_message("no command at QN_CLI (%s): the library is killed in a forked child instead\n",
                      command ? command : "not set");
        command = NULL;
    }
    return failed;
}

static int teardown(void **state)
{
    (void)state;
    syn_remove(root);
    return 0;
}

static void kill_at_random(void **state)
{
    (void)state;
    run(older, "bf16");
    const uint64_t begin = qn_clock_ns();
    run(reference, "nvfp4");
    const uint64_t whole = qn_clock_ns() - begin;
    qn_rng rng = {.state = 50};
    int absent = 0, old = 0, complete = 0, killed = 0, leftovers = 0;
    for (int i = 0; i < KILLS; i++) {
        const int replace = i % 2; /* every second time there is an older folder to replace */
        syn_remove(target);
        if (replace) {
            run(target, "bf16"); /* also removes what the last one left */
            assert_int_equal(syn_entries(root), 4);
        }
        const uint64_t wait = (uint64_t)(qn_rng_uniform(&rng) * 1.1 * (double)whole);
        const pid_t pid = start(target, "nvfp4");
        assert_true(pid > 0);
        const struct timespec t = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        nanosleep(&t, NULL);
        kill(pid, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        killed += WIFSIGNALED(status);
        leftovers += syn_entries(root) > 3 + (access(target, F_OK) == 0);
        if (access(target, F_OK) != 0) {
            assert_false(replace); /* an older folder never vanishes */
            absent++;
        } else if (same_folder(target, reference)) {
            complete++;
        } else if (replace && same_folder(target, older)) {
            old++;
        } else {
            fail_msg("kill %d after %.1f ms: the output is neither old nor whole", i, (double)wait * 1e-6);
        }
    }
    run(target, "nvfp4");
    assert_true(same_folder(target, reference));
    assert_int_equal(syn_entries(root), 4); /* no leftovers */
    print_message("seed 50, one run %.1f ms: %d kills met a running process; %d times absent, %d old, %d whole, %d with "
                  "leftovers\n",
                  (double)whole * 1e-6, killed, absent, old, complete, leftovers);
    assert_true(killed > KILLS / 3);
    assert_true(absent + old > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kill_at_random)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
