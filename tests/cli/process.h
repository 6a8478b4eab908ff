/* Runs the command as a process and keeps what it wrote. Folders of tests, too. */
#ifndef QN_TEST_CLI_PROCESS_H
#define QN_TEST_CLI_PROCESS_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct outcome {
    int code; /* exit status; 1000 + signal when it was killed */
    char *out, *err;
    size_t out_bytes, err_bytes;
} outcome;

static inline char *slurp(const char *path, size_t *bytes)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        return NULL;
    fseek(in, 0, SEEK_END);
    long n = ftell(in);
    rewind(in);
    char *text = calloc((size_t)n + 1, 1);
    *bytes = text ? fread(text, 1, (size_t)n, in) : 0;
    fclose(in);
    return text;
}

/* argv ends with NULL and does not hold the command itself; folder keeps the two output files. */
static inline outcome run_command(const char *folder, const char *const *argv)
{
    outcome r = {.code = -1};
    char out[512], err[512];
    const char *words[64] = {getenv("QN_CLI")};
    for (int i = 0; argv[i] && i < 60; i++)
        words[i + 1] = argv[i];
    snprintf(out, sizeof out, "%s/stdout", folder);
    snprintf(err, sizeof err, "%s/stderr", folder);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int o = open(out, O_CREAT | O_TRUNC | O_WRONLY, 0600), e = open(err, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        int in = open("/dev/null", O_RDONLY);
        if (o < 0 || e < 0 || in < 0 || dup2(in, 0) < 0 || dup2(o, 1) < 0 || dup2(e, 2) < 0)
            _exit(126);
        execv(words[0], (char *const *)(const void *)words);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return r;
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    r.out = slurp(out, &r.out_bytes);
    r.err = slurp(err, &r.err_bytes);
    return r;
}

static inline void free_outcome(outcome *r)
{
    free(r->out);
    free(r->err);
}

/* Words of a line, separated by single blanks; returned in `words`, ended by NULL; `line` is cut up. */
static inline void split_words(char *line, const char *words[64])
{
    int n = 0;
    for (char *p = strtok(line, " "); p && n < 63; p = strtok(NULL, " "))
        words[n++] = p;
    words[n] = NULL;
}

/* A fresh folder for this test's files. */
static inline int make_folder(char folder[64])
{
    snprintf(folder, 64, "/tmp/quern-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline void remove_folder(const char *folder)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf -- '%s'", folder);
    if (system(line) != 0)
        printf("could not remove %s\n", folder);
}

#endif
