/* Atomic outputs: what is at the target before, during and after; leftovers of
 * killed writers; refusals. */
#include "io_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/commit.h"

static qn_ctx *ctx;
static char *folder, target[300];

static int setup(void **state)
{
    (void)state;
    ctx = new_context();
    folder = make_folder();
    snprintf(target, sizeof target, "%s/out", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    qn_ctx_destroy(ctx);
    return 0;
}

/* Entries of the folder besides . and .. */
static int entries(const char *path)
{
    DIR *dir = opendir(path);
    assert_non_null(dir);
    int count = -2;
    while (readdir(dir)) {
        count++;
    }
    closedir(dir);
    return count;
}

static char *text_of(const char *path)
{
    static char text[64];
    memset(text, 0, sizeof text);
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    if (fread(text, 1, sizeof text - 1, f) == 0) {
        text[0] = 0;
    }
    fclose(f);
    return text;
}

static qn_status write_output(int is_folder, int force, const char *text, qn_error *error)
{
    qn_commit *commit = NULL;
    qn_status status = qn_commit_begin(ctx, target, is_folder, force, &commit, error);
    if (status == QN_OK) {
        char path[400];
        snprintf(path, sizeof path, "%s%s", qn_commit_path(commit), is_folder ? "/a" : "");
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
        status = qn_commit_finish(commit, error);
    }
    qn_commit_destroy(commit);
    return status;
}

static void test_files(void **state)
{
    (void)state;
    qn_error error = {0};
    assert_int_equal(write_output(0, 0, "one", &error), QN_OK);
    assert_string_equal(text_of(target), "one");
    assert_int_equal(write_output(0, 0, "two", &error), QN_E_EXISTS);
    assert_string_equal(text_of(target), "one");
    assert_int_equal(write_output(0, 1, "two", &error), QN_OK);
    assert_string_equal(text_of(target), "two");
    assert_int_equal(write_output(1, 1, "three", &error), QN_E_EXISTS);
    assert_int_equal(entries(folder), 1);
}

static void test_folders(void **state)
{
    (void)state;
    qn_error error = {0};
    char inner[400];
    snprintf(inner, sizeof inner, "%s/a", target);
    assert_int_equal(write_output(1, 0, "one", &error), QN_OK);
    assert_string_equal(text_of(inner), "one");
    assert_int_equal(write_output(1, 0, "two", &error), QN_E_EXISTS);
    assert_int_equal(write_output(0, 1, "two", &error), QN_E_EXISTS);
    write_text(target, "old", "x");
    assert_int_equal(write_output(1, 1, "two", &error), QN_OK);
    assert_string_equal(text_of(inner), "two");
    assert_int_equal(entries(target), 1);
    snprintf(inner, sizeof inner, "%s/deep", target);
    assert_int_equal(mkdir(inner, 0777), 0);
    assert_int_equal(write_output(1, 1, "three", &error), QN_E_EXISTS); /* holds a folder: not ours */
    assert_int_equal(entries(target), 2);
    assert_int_equal(entries(folder), 1);
}

static void test_abort(void **state)
{
    (void)state;
    for (int is_folder = 0; is_folder < 2; is_folder++) {
        qn_commit *commit = NULL;
        assert_int_equal(qn_commit_begin(ctx, target, is_folder, 0, &commit, NULL), QN_OK);
        if (is_folder) {
            write_text(qn_commit_path(commit), "a", "x");
        }
        assert_int_equal(entries(folder), 1);
        qn_commit_destroy(commit);
        assert_int_equal(entries(folder), 0);
    }
    qn_commit_destroy(NULL);
}

/* Two writers of one target: neither takes the other's temporary for a leftover; without force the second fails. */
static void test_two_writers(void **state)
{
    (void)state;
    qn_commit *a = NULL, *b = NULL;
    qn_error error = {0};
    assert_int_equal(qn_commit_begin(ctx, target, 1, 0, &a, &error), QN_OK);
    assert_int_equal(qn_commit_begin(ctx, target, 1, 0, &b, &error), QN_OK);
    assert_string_not_equal(qn_commit_path(a), qn_commit_path(b));
    assert_int_equal(access(qn_commit_path(a), F_OK), 0);
    assert_int_equal(qn_commit_finish(a, &error), QN_OK);
    assert_int_equal(qn_commit_finish(a, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_commit_finish(b, &error), QN_E_EXISTS);
    qn_commit_destroy(a);
    qn_commit_destroy(b);
    assert_int_equal(entries(folder), 1);
}

static void test_leftovers(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/.out.tmp.1", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    write_text(path, "a", "x");
    snprintf(path, sizeof path, "%s/.out.tmp.%ld", folder, (long)getpid()); /* our own number, from an earlier life */
    assert_int_equal(mkdir(path, 0777), 0);
    write_text(folder, ".out.tmp.99.3", "x");
    write_text(folder, ".out.tmp.x", "not ours");
    write_text(folder, ".output.tmp.1", "of another target");
    qn_error error = {0};
    assert_int_equal(write_output(1, 0, "one", &error), QN_OK);
    assert_int_equal(entries(folder), 3);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "/", ".", "..", "/tmp/..", "/tmp/.", "///"};
    qn_commit *commit = NULL;
    qn_error error = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(qn_commit_begin(ctx, bad[i], 1, 1, &commit, &error), QN_E_ARGUMENT);
        assert_null(commit);
    }
    assert_int_equal(qn_commit_begin(ctx, "/nonexistent/x", 1, 1, &commit, &error), QN_E_IO);
    assert_int_equal(qn_commit_begin(ctx, "/dev/null", 0, 1, &commit, &error), QN_E_EXISTS);
    char path[400];
    snprintf(path, sizeof path, "%s///", target);
    assert_int_equal(qn_commit_begin(ctx, path, 1, 0, &commit, &error), QN_OK);
    assert_int_equal(qn_commit_finish(commit, &error), QN_OK);
    qn_commit_destroy(commit);
    assert_int_equal(access(target, F_OK), 0);
}

/* A link stays and what it leads to is replaced; one to something that is no file is left alone. */
static void test_links(void **state)
{
    (void)state;
    char file[400];
    qn_error error = {0};
    qn_commit *commit = NULL;
    write_text(folder, "file", "old");
    snprintf(file, sizeof file, "%s/file", folder);
    assert_int_equal(symlink("file", target), 0);
    assert_int_equal(write_output(0, 1, "new", &error), QN_OK);
    struct stat st;
    assert_int_equal(lstat(target, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_string_equal(text_of(file), "new");

    static const char *const not_files[] = {"/dev/null", "/dev", "out"};
    for (size_t i = 0; i < sizeof not_files / sizeof *not_files; i++) {
        assert_int_equal(unlink(target), 0);
        assert_int_equal(symlink(not_files[i], target), 0);
        const qn_status want = strcmp(not_files[i], "out") == 0 ? QN_E_IO : QN_E_EXISTS; /* a link to itself */
        assert_int_equal(qn_commit_begin(ctx, target, 0, 1, &commit, &error), want);
        assert_null(commit);
        assert_int_equal(lstat(target, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
    }
}

/* A child that replaces the target over and over is killed at many moments: the
 * target is always the whole old or a whole new one, and the next writer cleans up. */
static void test_killed(void **state)
{
    (void)state;
    qn_error error = {0};
    char inner[400];
    snprintf(inner, sizeof inner, "%s/a", target);
    assert_int_equal(write_output(1, 0, "whole", &error), QN_OK);
    for (int i = 0; i < 60; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (;;) {
                (void)write_output(1, 1, "whole", &error);
            }
        }
        usleep((useconds_t)(500 + 137 * i));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        const char *text = text_of(inner);
        if (!text || strcmp(text, "whole") != 0) {
            fail_msg("kill %d: the target holds %s", i, text ? text : "nothing");
        }
    }
    assert_int_equal(write_output(1, 1, "last", &error), QN_OK);
    assert_int_equal(entries(folder), 1);
    assert_string_equal(text_of(inner), "last");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_writers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_leftovers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
