/* NVRTC that compiles in a process of its own: sanitizers do not follow its many allocations, which takes twice the
 * time. With STOPS_AT_PTX it is asked for a virtual architecture, and what the library takes for machine code is the
 * text that the stand-in driver runs. */
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/api.h"
#include "backend/fake/fake_cuda.h"
#include "backend/fake/far_nvrtc.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* found by dlsym only */

enum { MISSING = 5, FAILED = 11, MOST_OPTIONS = 16 };

typedef struct work {
    const char *source, *name;
    const char *const *contents, *const *names; /* of the library's, which outlive it */
    int32_t headers;
    char *log, *made;
    uint64_t log_bytes, made_bytes;
} work;

/* The file of the real one; NULL: there is none. */
static const char *real(int32_t *major, int32_t *minor)
{
    static const char *const files[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        void *const handle = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
        void *const symbol = handle ? dlsym(handle, "nvrtcVersion") : NULL;
        nvrtc_result (*version)(int32_t *, int32_t *);
        memcpy(&version, &symbol, sizeof symbol);
        if (version && version(major, minor) == 0) {
            return files[i];
        }
    }
    return NULL;
}

FAKE nvrtc_result nvrtcVersion(int32_t *major, int32_t *minor)
{
    return real(major, minor) ? 0 : MISSING;
}

FAKE const char *nvrtcGetErrorString(nvrtc_result result)
{
    return result == MISSING ? "there is no NVRTC" : result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC failed";
}

FAKE nvrtc_result nvrtcCreateProgram(nvrtc_program *program, const char *source, const char *name, int32_t headers,
                                     const char *const *contents, const char *const *names)
{
    work *const w = calloc(1, sizeof *w);
    if (!w) {
        return FAILED;
    }
    *w = (work){.source = source, .name = name, .contents = contents, .names = names, .headers = headers};
    *program = (nvrtc_program)(void *)w;
    return 0;
}

FAKE nvrtc_result nvrtcDestroyProgram(nvrtc_program *program)
{
    work *const w = (work *)(void *)*program;
    free(w->log);
    free(w->made);
    free(w);
    *program = NULL;
    return 0;
}

static int send_all(int to, const char *const *texts, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (!far_send_text(to, texts[i], strlen(texts[i]))) {
            return 0;
        }
    }
    return 1;
}

/* Over the socket of a compiler that runs. */
static nvrtc_result converse(work *w, int socket, int32_t count, const char *const *options)
{
    const char *const source[] = {w->source, w->name};
    nvrtc_result result;
    if (!far_send(socket, &count, sizeof count) || !send_all(socket, options, count) || !send_all(socket, source, 2) ||
        !far_send(socket, &w->headers, sizeof w->headers) || !send_all(socket, w->contents, w->headers) ||
        !send_all(socket, w->names, w->headers) || !far_receive(socket, &result, sizeof result)) {
        return FAILED;
    }
    w->log = far_receive_text(socket, &w->log_bytes);
    w->made = far_receive_text(socket, &w->made_bytes);
    return w->log && w->made ? result : FAILED;
}

FAKE nvrtc_result nvrtcCompileProgram(nvrtc_program program, int32_t count, const char *const *options)
{
    static const char *const from = "--gpu-architecture=sm_";
    static char compiler[] = QN_FAR_COMPILER, ptx[] = "ptx", cubin[] = "cubin";
    char architecture[64];
    const char *mine[MOST_OPTIONS];
    int32_t used = 0, major, minor;
    for (int32_t i = 0; i < count && used < MOST_OPTIONS; i++) {
        if (STOPS_AT_PTX && strncmp(options[i], from, strlen(from)) == 0) {
            snprintf(architecture, sizeof architecture, "--gpu-architecture=compute_%s", options[i] + strlen(from));
            mine[used++] = architecture;
        } else if (!STOPS_AT_PTX || strncmp(options[i], "--ptxas-options", 15) != 0) {
            mine[used++] = options[i];
        }
    }
    const char *const file = real(&major, &minor);
    int ends[2], status = -1;
    if (!file || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return file ? FAILED : MISSING;
    }
    pid_t child;
    posix_spawn_file_actions_t actions;
    char *const arguments[] = {compiler, (char *)(uintptr_t)file, STOPS_AT_PTX ? ptx : cubin, NULL};
    nvrtc_result result = FAILED;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    if (posix_spawn(&child, compiler, &actions, NULL, arguments, environ) == 0) {
        close(ends[1]);
        ends[1] = -1;
        result = converse((work *)(void *)program, ends[0], used, mine);
        waitpid(child, &status, 0);
    }
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    if (ends[1] >= 0) {
        close(ends[1]);
    }
    return status == 0 ? result : FAILED;
}

FAKE nvrtc_result nvrtcGetProgramLogSize(nvrtc_program program, size_t *bytes)
{
    *bytes = ((const work *)(void *)program)->log_bytes;
    return 0;
}

FAKE nvrtc_result nvrtcGetProgramLog(nvrtc_program program, char *log)
{
    const work *const w = (const work *)(void *)program;
    memcpy(log, w->log, w->log_bytes);
    return 0;
}

FAKE nvrtc_result nvrtcGetCUBINSize(nvrtc_program program, size_t *bytes)
{
    *bytes = ((const work *)(void *)program)->made_bytes;
    return 0;
}

FAKE nvrtc_result nvrtcGetCUBIN(nvrtc_program program, char *cubin)
{
    const work *const w = (const work *)(void *)program;
    memcpy(cubin, w->made, w->made_bytes);
    return 0;
}
