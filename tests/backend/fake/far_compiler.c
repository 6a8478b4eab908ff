/* One compilation by the machine's NVRTC, asked for over the socket that is its standard input (far_nvrtc.h). */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/api.h"
#include "backend/fake/far_nvrtc.h"

enum { SOCKET = 0, MOST = 64 };

/* A function of it, by its type. */
#define FIND(handle, name, function)                                                                                   \
    do {                                                                                                               \
        void *const symbol = dlsym(handle, name);                                                                      \
        memcpy(&(function), &symbol, sizeof symbol);                                                                   \
        if (!symbol) {                                                                                                 \
            fprintf(stderr, "far_compiler: NVRTC lacks %s\n", name);                                                   \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static int texts(const char **to, int32_t count)
{
    uint64_t size;
    for (int32_t i = 0; i < count; i++) {
        to[i] = far_receive_text(SOCKET, &size);
        if (!to[i]) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    const char *options[MOST], *source[2], *contents[MOST], *names[MOST];
    int32_t count, headers;
    const int ptx = argc > 2 && strcmp(argv[2], "ptx") == 0;
    void *const handle = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!handle || !far_receive(SOCKET, &count, sizeof count) || count > MOST || !texts(options, count) ||
        !texts(source, 2) || !far_receive(SOCKET, &headers, sizeof headers) || headers > MOST ||
        !texts(contents, headers) || !texts(names, headers)) {
        fprintf(stderr, "far_compiler: %s\n", handle ? "no whole request" : "no NVRTC");
        return 1;
    }
    nvrtc_result (*create)(nvrtc_program *, const char *, const char *, int32_t, const char *const *,
                           const char *const *);
    nvrtc_result (*compile)(nvrtc_program, int32_t, const char *const *);
    nvrtc_result (*log_size)(nvrtc_program, size_t *), (*made_size)(nvrtc_program, size_t *);
    nvrtc_result (*get_log)(nvrtc_program, char *), (*get_made)(nvrtc_program, char *);
    FIND(handle, "nvrtcCreateProgram", create);
    FIND(handle, "nvrtcCompileProgram", compile);
    FIND(handle, "nvrtcGetProgramLogSize", log_size);
    FIND(handle, "nvrtcGetProgramLog", get_log);
    FIND(handle, ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize", made_size);
    FIND(handle, ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN", get_made);
    nvrtc_program program = NULL;
    size_t log_bytes = 0, made_bytes = 0;
    nvrtc_result result = create(&program, source[0], source[1], headers, contents, names);
    if (result == 0) {
        result = compile(program, count, options);
        log_size(program, &log_bytes);
        if (result == 0) {
            made_size(program, &made_bytes);
        }
    }
    char *const log = calloc(1, log_bytes + 1), *const made = calloc(1, made_bytes + 1);
    if (!log || !made || (log_bytes && get_log(program, log) != 0) || (made_bytes && get_made(program, made) != 0)) {
        fprintf(stderr, "far_compiler: no result\n");
        return 1;
    }
    return !(far_send(SOCKET, &result, sizeof result) && far_send_text(SOCKET, log, log_bytes) &&
             far_send_text(SOCKET, made, made_bytes));
}
