/* Broken files through the command: `quern inspect FILE` exits 3 and says why
 * in exactly one line on stderr. A fixed sample of the tables in io_cases.h. */
#include "io_cases.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#define WANTED 220

extern char **environ;

/* Run the command; stderr goes to the file `err`, stdout nowhere. Returns the exit code, -1 for a signal. */
static int run(const char *command, const char *path, const char *err)
{
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    char *argv[] = {(char *)command, (char *)"inspect", (char *)path, NULL};
    pid_t pid;
    assert_int_equal(posix_spawn(&pid, command, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void judge(const char *command, const char *path, const char *err, const char *name)
{
    char text[4096] = "";
    const int code = run(command, path, err);
    FILE *f = fopen(err, "rb");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    if (code != 3 || n == 0 || strchr(text, '\n') != text + n - 1) {
        fail_msg("%s: exit %d, stderr \"%s\"", name, code, text);
    }
}

static void test_inspect(void **state)
{
    (void)state;
    static bytes file;
    const char *command = getenv("QN_CLI");
    if (!command || access(command, X_OK) != 0) {
        print_message("skipped: QN_CLI does not name the built command (%s)\n", command ? command : "not set");
        skip();
    }
    qn_ctx *ctx = new_context();
    char *folder = make_folder(), st[300], gguf[300], err[300], name[120];
    snprintf(st, sizeof st, "%s/model.safetensors", folder);
    snprintf(gguf, sizeof gguf, "%s/model.gguf", folder);
    snprintf(err, sizeof err, "%s/stderr", folder);
    qn_buffer config = qn_buffer_make(ctx);
    make_config(&config, -1, NULL, NULL);
    write_text(folder, "config.json", config.data);
    int done = 0;
    const int gguf_cases = gguf_fields() * (SPOIL_COUNT - 1);
    for (int i = 0; i < ST_CASES; i += 4) {
        if (st_case(ctx, i, &file, name) == MUST_FAIL) {
            write_file(folder, "model.safetensors", file.data, file.size);
            judge(command, done & 1 ? folder : st, err, name);
            done++;
        }
    }
    for (int i = 0; i < gguf_cases && done < WANTED; i += 11) {
        if (gguf_case(i, &file, name) == MUST_FAIL) {
            write_file(folder, "model.gguf", file.data, file.size);
            judge(command, gguf, err, name);
            done++;
        }
    }
    print_message("%d broken files through %s inspect\n", done, command);
    assert_true(done >= 200);
    qn_buffer_free(&config);
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inspect)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
