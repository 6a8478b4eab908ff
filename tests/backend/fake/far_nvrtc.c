/* NVRTC that stops at PTX: the real one, opened here, is asked for a virtual architecture, and what the library takes
 * for machine code is the text that the stand-in driver runs. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/api.h"
#include "backend/fake/fake_cuda.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* found by dlsym only */

static void *real(const char *name)
{
    static const char *const files[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    static void *handle;
    for (size_t i = 0; !handle && i < sizeof files / sizeof *files; i++) {
        handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return handle ? dlsym(handle, name) : NULL;
}

/* A function of the real one, by its type; 5 (no such thing) where there is none. */
#define FORWARD(type, name, ...)                                                                                       \
    void *const symbol = real(name);                                                                                   \
    type function;                                                                                                     \
    memcpy(&function, &symbol, sizeof function);                                                                       \
    return function ? function(__VA_ARGS__) : 5;

FAKE nvrtc_result nvrtcVersion(int32_t *major, int32_t *minor)
{
    typedef nvrtc_result (*type)(int32_t *, int32_t *);
    FORWARD(type, "nvrtcVersion", major, minor)
}

FAKE const char *nvrtcGetErrorString(nvrtc_result result)
{
    return result == 5 ? "there is no NVRTC" : result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC failed";
}

FAKE nvrtc_result nvrtcCreateProgram(nvrtc_program *program, const char *source, const char *name, int32_t headers,
                                     const char *const *contents, const char *const *names)
{
    typedef nvrtc_result (*type)(nvrtc_program *, const char *, const char *, int32_t, const char *const *,
                                 const char *const *);
    FORWARD(type, "nvrtcCreateProgram", program, source, name, headers, contents, names)
}

FAKE nvrtc_result nvrtcDestroyProgram(nvrtc_program *program)
{
    typedef nvrtc_result (*type)(nvrtc_program *);
    FORWARD(type, "nvrtcDestroyProgram", program)
}

FAKE nvrtc_result nvrtcCompileProgram(nvrtc_program program, int32_t count, const char *const *options)
{
    typedef nvrtc_result (*type)(nvrtc_program, int32_t, const char *const *);
    static const char *const from = "--gpu-architecture=sm_";
    char architecture[64];
    const char *mine[16];
    int32_t used = 0;
    for (int32_t i = 0; i < count && used < 16; i++) {
        if (strncmp(options[i], from, strlen(from)) == 0) {
            snprintf(architecture, sizeof architecture, "--gpu-architecture=compute_%s", options[i] + strlen(from));
            mine[used++] = architecture;
        } else if (strncmp(options[i], "--ptxas-options", 15) != 0) {
            mine[used++] = options[i];
        }
    }
    FORWARD(type, "nvrtcCompileProgram", program, used, mine)
}

FAKE nvrtc_result nvrtcGetProgramLogSize(nvrtc_program program, size_t *bytes)
{
    typedef nvrtc_result (*type)(nvrtc_program, size_t *);
    FORWARD(type, "nvrtcGetProgramLogSize", program, bytes)
}

FAKE nvrtc_result nvrtcGetProgramLog(nvrtc_program program, char *log)
{
    typedef nvrtc_result (*type)(nvrtc_program, char *);
    FORWARD(type, "nvrtcGetProgramLog", program, log)
}

FAKE nvrtc_result nvrtcGetCUBINSize(nvrtc_program program, size_t *bytes)
{
    typedef nvrtc_result (*type)(nvrtc_program, size_t *);
    FORWARD(type, "nvrtcGetPTXSize", program, bytes)
}

FAKE nvrtc_result nvrtcGetCUBIN(nvrtc_program program, char *cubin)
{
    typedef nvrtc_result (*type)(nvrtc_program, char *);
    FORWARD(type, "nvrtcGetPTX", program, cubin)
}
