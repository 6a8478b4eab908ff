/* A stand-in for the CUDA driver, so that everything up to a launch is tested on
 * machines without a GPU: device memory is host memory, modules are only looked
 * at, launches are counted. Any call can be made to fail.
 *
 *   fake_setup(count, major, minor)   devices shown, their compute capability
 *   fake_fail(n, result)              the n-th driver call from now on fails with result; 0: none
 *   fake_calls, fake_live             calls since fake_fail; things made and not yet destroyed
 *   fake_last                         the last launch
 *   fake_compiles                     compilations so far, by a stand-in for NVRTC in the same file */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/api.h"
#include "backend/fake/fake_cuda.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* found by dlsym only */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static int devices = 1, cc_major = 9, cc_minor = 0;
static long fail_at;
static _Atomic long calls, live; /* programs are compiled in several threads */
static int fail_with;
static fake_launch last;
static _Atomic int current; /* contexts pushed */

FAKE void fake_setup(int count, int major, int minor)
{
    devices = count;
    cc_major = major;
    cc_minor = minor;
}

FAKE void fake_fail(long n, int result)
{
    fail_at = n;
    fail_with = result;
    calls = 0;
}

FAKE long fake_calls(void)
{
    return calls;
}

FAKE long fake_live(void)
{
    return live + current;
}

FAKE fake_launch fake_last(void)
{
    return last;
}

/* Every call of the driver starts so. */
#define CALL()                                                                                                         \
    do {                                                                                                               \
        if (++calls == fail_at) {                                                                                      \
            return fail_with;                                                                                          \
        }                                                                                                              \
    } while (0)

FAKE cu_result cuInit(uint32_t flags)
{
    CALL();
    return flags ? 1 : 0;
}

FAKE cu_result cuDriverGetVersion(int32_t *version)
{
    CALL();
    *version = 13000;
    return 0;
}

FAKE cu_result cuGetErrorName(cu_result error, const char **text)
{
    *text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
    return 0;
}

FAKE cu_result cuGetErrorString(cu_result error, const char **text)
{
    *text = error == 2 ? "out of memory" : "made to fail";
    return 0;
}

FAKE cu_result cuDeviceGetCount(int32_t *count)
{
    CALL();
    *count = devices;
    return devices ? 0 : 100;
}

FAKE cu_result cuDeviceGet(cu_device *device, int32_t ordinal)
{
    CALL();
    *device = ordinal;
    return 0;
}

FAKE cu_result cuDeviceGetName(char *name, int32_t bytes, cu_device device)
{
    CALL();
    snprintf(name, (size_t)bytes, "Fake GPU");
    return 0;
}

FAKE cu_result cuDeviceGetAttribute(int32_t *value, int32_t attribute, cu_device device)
{
    CALL();
    switch (attribute) {
    case CU_DEVICE_COMPUTE_CAPABILITY_MAJOR: *value = cc_major; break;
    case CU_DEVICE_COMPUTE_CAPABILITY_MINOR: *value = cc_minor; break;
    case CU_DEVICE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
    case CU_DEVICE_L2_CACHE_SIZE: *value = 50 << 20; break;
    default: return 1;
    }
    return 0;
}

FAKE cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    CALL();
    *bytes = (size_t)1 << 34;
    return 0;
}

FAKE cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    CALL();
    *context = (cu_context)(void *)&devices;
    live++;
    return 0;
}

FAKE cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    live--;
    return 0;
}

FAKE cu_result cuCtxPushCurrent_v2(cu_context context)
{
    CALL();
    current++;
    return context ? 0 : 201;
}

FAKE cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    *context = (cu_context)(void *)&devices;
    current--;
    return 0;
}

FAKE cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    CALL();
    if (memcmp(image, "\177ELF", 4) != 0) {
        return 200;
    }
    *module = (cu_module)(void *)&live;
    live++;
    return 0;
}

FAKE cu_result cuModuleUnload(cu_module module)
{
    live -= module != NULL;
    return 0;
}

FAKE cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
    CALL();
    *function = (cu_function)(void *)module;
    return strncmp(name, "qn_", 3) == 0 ? 0 : 500;
}

FAKE cu_result cuFuncGetAttribute(int32_t *value, int32_t attribute, cu_function function)
{
    CALL();
    *value = attribute == CU_FUNC_NUM_REGS ? 32 : 0;
    return 0;
}

FAKE cu_result cuFuncSetAttribute(cu_function function, int32_t attribute, int32_t value)
{
    CALL();
    return function && attribute && value ? 0 : 1;
}

FAKE cu_result cuLaunchKernelEx(const cu_launch_config *config, cu_function function, void **parameters, void **extra)
{
    CALL();
    if (!function || !parameters || extra || config->grid[0] == 0 || config->block[0] == 0) {
        return 1;
    }
    last.launches++;
    memcpy(last.grid, config->grid, sizeof last.grid);
    last.block = config->block[0];
    last.stream = config->stream;
    return 0;
}

FAKE cu_result cuTensorMapEncodeTiled(qn_tensor_map *map, int32_t type, uint32_t rank, void *address,
                                      const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                      const uint32_t *element_strides, int32_t interleave, int32_t swizzle,
                                      int32_t promotion, int32_t fill)
{
    CALL();
    memset(map, 0, sizeof *map);
    return rank >= 1 && rank <= 5 && dims[0] && box[0] && (uintptr_t)address % 16 == 0 ? 0 : 1;
}

FAKE cu_result cuMemAlloc_v2(cu_pointer *pointer, size_t bytes)
{
    CALL();
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    live += p != NULL;
    *pointer = (cu_pointer)(uintptr_t)p;
    return p ? 0 : 2;
}

FAKE cu_result cuMemFree_v2(cu_pointer pointer)
{
    free((void *)(uintptr_t)pointer);
    live--;
    return 0;
}

FAKE cu_result cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t bytes, cu_stream stream)
{
    CALL();
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

FAKE cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
    CALL();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

FAKE cu_result cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)
{
    CALL();
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

FAKE cu_result cuMemHostAlloc(void **pointer, size_t bytes, uint32_t flags)
{
    CALL();
    *pointer = malloc(bytes);
    live += *pointer != NULL;
    return *pointer && !flags ? 0 : 2;
}

FAKE cu_result cuMemFreeHost(void *pointer)
{
    free(pointer);
    live--;
    return 0;
}

FAKE cu_result cuMemsetD8Async(cu_pointer to, uint8_t value, size_t bytes, cu_stream stream)
{
    CALL();
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

/* Streams, events and graphs are a byte of memory each. */
#define MAKER(name, type, ...)                                                                                         \
    FAKE cu_result name(type *out, __VA_ARGS__)                                                                        \
    {                                                                                                                  \
        CALL();                                                                                                        \
        *out = (type)malloc(1);                                                                                        \
        live++;                                                                                                        \
        return 0;                                                                                                      \
    }
#define DESTROYER(name, type)                                                                                          \
    FAKE cu_result name(type thing)                                                                                    \
    {                                                                                                                  \
        free(thing);                                                                                                   \
        live--;                                                                                                        \
        return 0;                                                                                                      \
    }

MAKER(cuStreamCreate, cu_stream, uint32_t flags)
DESTROYER(cuStreamDestroy_v2, cu_stream)
MAKER(cuEventCreate, cu_event, uint32_t flags)
DESTROYER(cuEventDestroy_v2, cu_event)
MAKER(cuGraphInstantiateWithFlags, cu_graph_exec, cu_graph graph, unsigned long long flags)
DESTROYER(cuGraphExecDestroy, cu_graph_exec)
DESTROYER(cuGraphDestroy, cu_graph)

FAKE cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    CALL();
    *graph = (cu_graph)malloc(1);
    live++;
    return 0;
}

FAKE cu_result cuStreamSynchronize(cu_stream stream)
{
    CALL();
    return 0;
}

FAKE cu_result cuStreamBeginCapture_v2(cu_stream stream, int32_t mode)
{
    CALL();
    return stream && mode == CU_CAPTURE_THREAD_LOCAL ? 0 : 1;
}

FAKE cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    CALL();
    return exec ? 0 : 1;
}

FAKE cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    CALL();
    return event ? 0 : 1;
}

FAKE cu_result cuEventSynchronize(cu_event event)
{
    CALL();
    return event ? 0 : 1;
}

FAKE cu_result cuEventElapsedTime(float *milliseconds, cu_event from, cu_event to)
{
    CALL();
    *milliseconds = 0.5f;
    return from && to ? 0 : 1;
}

/* ---- NVRTC: any text with "__global__" in it compiles, to a cubin that holds its length ---- */

static _Atomic long compiles;

FAKE long fake_compiles(void)
{
    return compiles;
}

struct _nvrtcProgram {
    char cubin[64];
    int good;
};

FAKE nvrtc_result nvrtcVersion(int32_t *major, int32_t *minor)
{
    *major = 99;
    *minor = 1;
    return 0;
}

FAKE const char *nvrtcGetErrorString(nvrtc_result result)
{
    return result == 6 ? "NVRTC_ERROR_COMPILATION" : result ? "NVRTC_ERROR_FAKE" : "NVRTC_SUCCESS";
}

FAKE nvrtc_result nvrtcCreateProgram(nvrtc_program *program, const char *source, const char *name, int32_t headers,
                                     const char *const *contents, const char *const *names)
{
    CALL();
    for (int32_t i = 0; i < headers; i++) {
        if (!strstr(names[i], ".h") || !contents[i][0]) {
            return 3;
        }
    }
    *program = calloc(1, sizeof **program);
    snprintf((*program)->cubin, sizeof(*program)->cubin, "\177ELF %s %zu", name, strlen(source));
    (*program)->good = strstr(source, "__global__") || strstr(source, "segments.h");
    live++;
    return 0;
}

FAKE nvrtc_result nvrtcDestroyProgram(nvrtc_program *program)
{
    free(*program);
    live--;
    return 0;
}

FAKE nvrtc_result nvrtcCompileProgram(nvrtc_program program, int32_t count, const char *const *options)
{
    if (++calls == fail_at) {
        program->good = 0;
    }
    compiles++;
    return program->good && count > 0 && strcmp(options[0], "--gpu-architecture=sm_90a") == 0 ? 0 : 6;
}

FAKE nvrtc_result nvrtcGetProgramLogSize(nvrtc_program program, size_t *bytes)
{
    CALL();
    *bytes = program->good ? 1 : sizeof "x.cu(1): error: made to fail\n";
    return 0;
}

FAKE nvrtc_result nvrtcGetProgramLog(nvrtc_program program, char *log)
{
    CALL();
    strcpy(log, program->good ? "" : "x.cu(1): error: made to fail\n");
    return 0;
}

FAKE nvrtc_result nvrtcGetCUBINSize(nvrtc_program program, size_t *bytes)
{
    CALL();
    *bytes = strlen(program->cubin);
    return 0;
}

FAKE nvrtc_result nvrtcGetCUBIN(nvrtc_program program, char *cubin)
{
    CALL();
    memcpy(cubin, program->cubin, strlen(program->cubin));
    return 0;
}
