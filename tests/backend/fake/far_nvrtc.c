/* NVRTC that compiles in processes of their own: sanitizers do not follow its many allocations, which takes twice the
 * time. With STOPS_AT_PTX it is asked for a virtual architecture, and what the library takes for machine code is the
 * text that the stand-in driver runs, or far_later's place in it: programs are compiled when a launch wants them,
 * unless QN_TEST_KERNEL_CACHE names a folder that keeps them. Processes then wait for the next program, as starting one
 * takes as long as some programs. One that makes machine code ends, so that its processor time is counted
 * (test_cuda_compile). */
#include <dlfcn.h>
#include <pthread.h>
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

typedef struct far_compiler {
    pid_t process;
    int socket;
} far_compiler;

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

/* Compilers that wait for a program; they end with this process. */
enum { MOST_WAITING = 8 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static far_compiler waiting[MOST_WAITING];
static int waiting_count;

/* One that waits, or a new one; 0: there is none. */
static int compiler_take(const char *file, far_compiler *c)
{
    static char path[] = QN_FAR_COMPILER, ptx[] = "ptx", cubin[] = "cubin";
    pthread_mutex_lock(&lock);
    const int found = waiting_count > 0;
    if (found) {
        *c = waiting[--waiting_count];
    }
    pthread_mutex_unlock(&lock);
    int ends[2];
    if (found || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return found;
    }
    posix_spawn_file_actions_t actions;
    char *const arguments[] = {path, (char *)(uintptr_t)file, STOPS_AT_PTX ? ptx : cubin, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    const int failed = posix_spawn(&c->process, path, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    c->socket = ends[0];
    if (failed) {
        close(ends[0]);
    }
    return !failed;
}

/* To wait for the next program, or to end; 1: all is well with it. */
static int compiler_leave(const far_compiler *c, int well)
{
    int status = -1, kept = 0;
    pthread_mutex_lock(&lock);
    if (STOPS_AT_PTX && well && waiting_count < MOST_WAITING) {
        waiting[waiting_count++] = *c;
        kept = 1;
    }
    pthread_mutex_unlock(&lock);
    if (kept) {
        return 1;
    }
    close(c->socket);
    return waitpid(c->process, &status, 0) == c->process && status == 0;
}

static __attribute__((destructor)) void end_waiting(void)
{
    while (waiting_count > 0) {
        const far_compiler *const c = &waiting[--waiting_count];
        close(c->socket);
        waitpid(c->process, NULL, 0);
    }
}

static nvrtc_result compile(work *w, int32_t count, const char *const *options)
{
    int32_t major, minor;
    const char *const file = real(&major, &minor);
    far_compiler compiler;
    if (!file || !compiler_take(file, &compiler)) {
        return file ? FAILED : MISSING;
    }
    const nvrtc_result result = converse(w, compiler.socket, count, options);
    return compiler_leave(&compiler, w->log && w->made) ? result : FAILED;
}

#if STOPS_AT_PTX
/* Programs that may be wanted, kept until the process ends. */
typedef struct later {
    struct later *next;
    work asked;
    int32_t count;
    char *options[MOST_OPTIONS];
} later;

static later *all_later;

static const char *later_text(void *program)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    later *const l = program;
    nvrtc_result result = 0;
    pthread_mutex_lock(&one);
    if (!l->asked.made) {
        result = compile(&l->asked, l->count, (const char *const *)l->options);
    }
    pthread_mutex_unlock(&one);
    if (result != 0) {
        fprintf(stderr, "%s: %s\n", l->asked.name, l->asked.log ? l->asked.log : nvrtcGetErrorString(result));
    }
    return result == 0 ? l->asked.made : NULL;
}

static const char *const *copy_list(const char *const *list, int32_t count)
{
    const size_t bytes = (size_t)count * sizeof *list;
    const char **const copy = malloc(bytes + 1);
    return copy ? memcpy(copy, list, bytes) : NULL;
}

/* 1: w has far_later's place. */
static int put_off(work *w, int32_t count, const char *const *options)
{
    far_later place = {.mark = FAR_LATER, .process = getpid(), .text = later_text};
    later *const l = calloc(1, sizeof *l);
    w->made = malloc(sizeof place);
    if (!l || !w->made) {
        free(l);
        return 0;
    }
    l->asked = (work){.source = strdup(w->source),
                      .name = strdup(w->name),
                      .contents = copy_list(w->contents, w->headers),
                      .names = copy_list(w->names, w->headers),
                      .headers = w->headers};
    for (; l->count < count; l->count++) {
        l->options[l->count] = strdup(options[l->count]);
    }
    pthread_mutex_lock(&lock);
    l->next = all_later;
    all_later = l;
    pthread_mutex_unlock(&lock);
    place.program = l;
    w->made_bytes = sizeof place;
    memcpy(w->made, &place, sizeof place);
    w->log = calloc(1, 1);
    w->log_bytes = 1;
    return w->log != NULL;
}
#endif

FAKE nvrtc_result nvrtcCompileProgram(nvrtc_program program, int32_t count, const char *const *options)
{
    static const char *const from = "--gpu-architecture=sm_";
    char architecture[64];
    const char *mine[MOST_OPTIONS];
    int32_t used = 0;
    for (int32_t i = 0; i < count && used < MOST_OPTIONS; i++) {
        if (STOPS_AT_PTX && strncmp(options[i], from, strlen(from)) == 0) {
            snprintf(architecture, sizeof architecture, "--gpu-architecture=compute_%s", options[i] + strlen(from));
            mine[used++] = architecture;
        } else if (!STOPS_AT_PTX || strncmp(options[i], "--ptxas-options", 15) != 0) {
            mine[used++] = options[i];
        }
    }
    work *const w = (work *)(void *)program;
#if STOPS_AT_PTX
    int32_t major, minor;
    if (!getenv("QN_TEST_KERNEL_CACHE")) {
        return !real(&major, &minor) ? MISSING : put_off(w, used, mine) ? 0 : FAILED;
    }
#endif
    return compile(w, used, mine);
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
