/* Compilations by the machine's NVRTC, asked for one after the other over the socket that is its standard input
 * (far_nvrtc.h), until that is closed. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/api.h"
#include "backend/fake/far_nvrtc.h"

enum { SOCKET = 0, MOST = 64 };

/* NVRTC's functions. */
typedef struct nvrtc {
    nvrtc_result (*create)(nvrtc_program *, const char *, const char *, int32_t, const char *const *,
                           const char *const *);
    nvrtc_result (*compile)(nvrtc_program, int32_t, const char *const *);
    nvrtc_result (*destroy)(nvrtc_program *);
    nvrtc_result (*log_size)(nvrtc_program, size_t *), (*made_size)(nvrtc_program, size_t *);
    nvrtc_result (*get_log)(nvrtc_program, char *), (*get_made)(nvrtc_program, char *);
} nvrtc;

/* A function of it, by its type. */
#define FIND(handle, name, function)                                                                                   \
    do {                                                                                                               \
        void *const symbol = dlsym(handle, name);                                                                      \
        memcpy(&(function), &symbol, sizeof symbol);                                                                   \
        if (!symbol) {                                                                                                 \
            fprintf(stderr, "far_compiler: NVRTC lacks %s\n", name);                                                   \
            return 0;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int find(nvrtc *n, const char *file, int ptx)
{
    void *const handle = dlopen(file, RTLD_NOW);
    if (!handle) {
        fprintf(stderr, "far_compiler: no NVRTC\n");
        return 0;
    }
    FIND(handle, "nvrtcCreateProgram", n->create);
    FIND(handle, "nvrtcCompileProgram", n->compile);
    FIND(handle, "nvrtcDestroyProgram", n->destroy);
    FIND(handle, "nvrtcGetProgramLogSize", n->log_size);
    FIND(handle, "nvrtcGetProgramLog", n->get_log);
    FIND(handle, ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize", n->made_size);
    FIND(handle, ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN", n->get_made);
    return 1;
}

/* What a request holds, in the order of its texts. */
typedef struct request {
    int32_t options, headers, count;
    char *texts[3 * MOST + 2];
} request;

static int take_texts(request *r, int32_t count)
{
    uint64_t size;
    for (int32_t i = 0; i < count; i++, r->count++) {
        r->texts[r->count] = far_receive_text(SOCKET, &size);
        if (!r->texts[r->count]) {
            return 0;
        }
    }
    return 1;
}

/* All of it but the options' count, which has come. */
static int take_request(request *r)
{
    return r->options <= MOST && take_texts(r, r->options + 2) && far_receive(SOCKET, &r->headers, sizeof r->headers) &&
           r->headers <= MOST && take_texts(r, 2 * r->headers);
}

/* 1: it was answered. */
static int answer(const nvrtc *n, const request *r)
{
    const char *const *const source = (const char *const *)r->texts + r->options;
    const char *const *const contents = source + 2;
    nvrtc_program program = NULL;
    size_t log_bytes = 0, made_bytes = 0;
    nvrtc_result result = n->create(&program, source[0], source[1], r->headers, contents, contents + r->headers);
    if (result == 0) {
        result = n->compile(program, r->options, (const char *const *)r->texts);
        n->log_size(program, &log_bytes);
        if (result == 0) {
            n->made_size(program, &made_bytes);
        }
    }
    char *const log = calloc(1, log_bytes + 1), *const made = calloc(1, made_bytes + 1);
    const int whole = log && made && (!log_bytes || n->get_log(program, log) == 0) &&
                      (!made_bytes || n->get_made(program, made) == 0);
    const int sent = whole && far_send(SOCKET, &result, sizeof result) && far_send_text(SOCKET, log, log_bytes) &&
                     far_send_text(SOCKET, made, made_bytes);
    if (!whole) {
        fprintf(stderr, "far_compiler: no result\n");
    }
    if (program) {
        n->destroy(&program);
    }
    free(log);
    free(made);
    return sent;
}

int main(int argc, char **argv)
{
    static request r;
    nvrtc n;
    int well = argc > 1 && find(&n, argv[1], argc > 2 && strcmp(argv[2], "ptx") == 0);
    while (well && far_receive(SOCKET, &r.options, sizeof r.options)) {
        r.count = 0;
        well = take_request(&r);
        if (well) {
            well = answer(&n, &r);
        } else {
            fprintf(stderr, "far_compiler: no whole request\n");
        }
        while (r.count > 0) {
            free(r.texts[--r.count]);
        }
    }
    return !well;
}
