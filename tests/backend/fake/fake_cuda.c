/* A stand-in for the CUDA driver, so that everything up to a launch is tested on
 * machines without a GPU: device memory is host memory, launches are counted. A
 * module of PTX (far_nvrtc.c makes it, maybe when it is launched first) runs, in graphs too; one that says it is
 * machine code is only looked at. Any call can be made to fail.
 *
 *   fake_setup(count, major, minor)   devices shown, their compute capability
 *   fake_sms(count)                   multiprocessors of a device, 132 at first
 *   fake_fail(n, result)              the n-th driver call from now on fails with result; 0: none
 *   fake_calls, fake_live             calls since fake_fail; things made and not yet destroyed
 *   fake_last                         the last launch
 *   fake_compiles                     compilations so far, by a stand-in for NVRTC in the same file */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/api.h"
#include "backend/fake/fake_cuda.h"
#include "backend/fake/far_nvrtc.h"
#include "backend/fake/ptx.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* found by dlsym only */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static int devices = 1, cc_major = 9, cc_minor = 0, sms = 132;
static long fail_at;
static _Atomic long calls, live; /* programs are compiled in several threads */
static int fail_with;
static fake_launch last;
static _Atomic int current; /* contexts pushed */
static uint32_t seed = 1;   /* kernels' warps take turns in an order that changes with each launch */
static char problem[300];   /* what a kernel ended with */

enum { CU_ERROR_LAUNCH_FAILED = 719, FUNCTIONS = 8 };

FAKE void fake_setup(int count, int major, int minor)
{
    devices = count;
    cc_major = major;
    cc_minor = minor;
}

FAKE void fake_sms(int count)
{
    sms = count;
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
    *text = error == 2 ? "out of memory" : error == CU_ERROR_LAUNCH_FAILED && *problem ? problem : "made to fail";
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

/* Of the CUDA programming guide's table of compute capabilities. */
static int32_t shared_kib(void)
{
    if (cc_major == 9 || cc_major == 10) {
        return 227;
    }
    return cc_major == 8 && cc_minor == 0 ? 163 : 99;
}

FAKE cu_result cuDeviceGetAttribute(int32_t *value, int32_t attribute, cu_device device)
{
    CALL();
    switch (attribute) {
    case CU_DEVICE_COMPUTE_CAPABILITY_MAJOR: *value = cc_major; break;
    case CU_DEVICE_COMPUTE_CAPABILITY_MINOR: *value = cc_minor; break;
    case CU_DEVICE_MULTIPROCESSOR_COUNT: *value = sms; break;
    case CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = shared_kib() << 10; break;
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

struct CUfunc_st {
    cu_module module;
    char *name;
    const ptx_entry *entry; /* NULL: of machine code, or not read yet */
    int32_t most_shared;    /* dynamic shared memory that launches may ask for; 0: what is left of 48 KB */
};

struct CUmod_st {
    ptx_module *ptx;
    far_later later; /* without a mark: it is there */
    struct CUfunc_st functions[FUNCTIONS];
    int count;
};

static int read_module(cu_module m, const char *text)
{
    m->ptx = ptx_load(text, problem, sizeof problem);
    if (!m->ptx) {
        fprintf(stderr, "a module that cannot be read: %s\n", problem);
    }
    return m->ptx != NULL;
}

FAKE cu_result cuModuleLoadData(cu_module *module, const void *image)
{
    CALL();
    cu_module m = calloc(1, sizeof *m);
    if (memcmp(image, FAR_LATER, sizeof FAR_LATER) == 0) {
        memcpy(&m->later, image, sizeof m->later);
    } else if (memcmp(image, "\177ELF", 4) != 0 && !read_module(m, image)) {
        free(m);
        return 200;
    }
    if (*m->later.mark && m->later.process != getpid()) {
        fprintf(stderr, "a module of another process\n");
        free(m);
        return 200;
    }
    *module = m;
    live++;
    return 0;
}

/* 1: what is to be known of the function is. */
static int read_function(cu_function f)
{
    cu_module const m = f->module;
    if (*m->later.mark && !m->ptx) {
        const char *const text = m->later.text(m->later.program);
        if (!text || !read_module(m, text)) {
            return 0;
        }
    }
    if (m->ptx && !f->entry) {
        f->entry = ptx_find(m->ptx, f->name);
    }
    return !m->ptx || f->entry;
}

FAKE cu_result cuModuleUnload(cu_module module)
{
    live -= module != NULL;
    if (module) {
        ptx_unload(module->ptx);
        for (int i = 0; i < module->count; i++) {
            free(module->functions[i].name);
        }
    }
    free(module);
    return 0;
}

FAKE cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name)
{
    CALL();
    int n = 0;
    while (n < module->count && strcmp(module->functions[n].name, name) != 0) {
        n++;
    }
    if (n == FUNCTIONS || strncmp(name, "qn_", 3) != 0 || (module->ptx && !ptx_find(module->ptx, name))) {
        return 500;
    }
    if (n == module->count) {
        module->functions[module->count++] = (struct CUfunc_st){.module = module, .name = strdup(name)};
        if (module->ptx) {
            read_function(&module->functions[n]);
        }
    }
    *function = &module->functions[n];
    return 0;
}

/* Of memory that the code names itself; of machine code it is not known. As long as nobody has read it, as much as
 * there may be, so that more is asked for wherever it might be needed. */
static int32_t own_shared(cu_function function)
{
    return function->entry ? (int32_t)ptx_shared_bytes(function->entry) : *function->module->later.mark ? 48 << 10 : 0;
}

FAKE cu_result cuFuncGetAttribute(int32_t *value, int32_t attribute, cu_function function)
{
    CALL();
    *value = attribute == CU_FUNC_NUM_REGS                        ? 32
             : attribute == CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES ? function->most_shared
             : attribute == CU_FUNC_SHARED_SIZE_BYTES             ? own_shared(function)
                                                                  : 0;
    return 0;
}

FAKE cu_result cuFuncSetAttribute(cu_function function, int32_t attribute, int32_t value)
{
    CALL();
    if (!function || !attribute || !value) {
        return 1;
    }
    if (attribute == CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        function->most_shared = value;
    }
    return 0;
}

/* ---- streams, and graphs of what they were asked for ---- */

typedef struct step {
    const ptx_entry *entry; /* NULL: a copy or a fill */
    ptx_geometry geometry;
    void *parameters;
    void *to;
    const void *from; /* NULL: a fill */
    size_t bytes;
    uint8_t value;
} step;

struct CUgraph_st {
    step *steps;
    int count, users;
};

struct CUstream_st {
    cu_graph capture; /* NULL: what is asked for is done at once */
};

struct CUgraphExec_st {
    cu_graph graph;
};

static void release_graph(cu_graph graph)
{
    if (--graph->users > 0) {
        return;
    }
    for (int i = 0; i < graph->count; i++) {
        free(graph->steps[i].parameters);
    }
    free(graph->steps);
    free(graph);
}

static cu_result do_step(const step *s)
{
    if (s->entry) {
        if (ptx_run(s->entry, &s->geometry, s->parameters, seed++, problem, sizeof problem)) {
            fprintf(stderr, "%s\n", problem);
            return CU_ERROR_LAUNCH_FAILED;
        }
    } else if (s->from) {
        memcpy(s->to, s->from, s->bytes);
    } else if (s->bytes) {
        memset(s->to, s->value, s->bytes);
    }
    return 0;
}

/* Do it, or note it down where the stream is captured. */
static cu_result ask(cu_stream stream, step s)
{
    cu_graph graph = stream ? stream->capture : NULL;
    if (!graph) {
        const cu_result result = do_step(&s);
        free(s.parameters);
        return result;
    }
    graph->steps = realloc(graph->steps, (size_t)(graph->count + 1) * sizeof *graph->steps);
    graph->steps[graph->count++] = s;
    return 0;
}

FAKE cu_result cuLaunchKernelEx(const cu_launch_config *config, cu_function function, void **parameters, void **extra)
{
    CALL();
    if (!function || !parameters || extra || config->grid[0] == 0 || config->block[0] == 0) {
        return 1;
    }
    if (!read_function(function)) {
        return 500;
    }
    const int32_t shared = function->most_shared ? function->most_shared : (48 << 10) - own_shared(function);
    if ((int32_t)config->shared_bytes > shared) {
        return 1;
    }
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        const int32_t id = config->attributes[i].id;
        if (cc_major < 9 && (id == CU_LAUNCH_CLUSTER_DIMENSION || id == CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION)) {
            return 801; /* CUDA_ERROR_NOT_SUPPORTED */
        }
    }
    last.launches++;
    memcpy(last.grid, config->grid, sizeof last.grid);
    last.block = config->block[0];
    last.stream = config->stream;
    if (!function->entry) {
        return 0;
    }
    step s = {.entry = function->entry, .parameters = malloc(ptx_parameter_bytes(function->entry) + 1)};
    ptx_pack(function->entry, parameters, s.parameters);
    memcpy(s.geometry.grid, config->grid, sizeof s.geometry.grid);
    memcpy(s.geometry.block, config->block, sizeof s.geometry.block);
    s.geometry.shared_bytes = config->shared_bytes;
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        if (config->attributes[i].id == CU_LAUNCH_CLUSTER_DIMENSION) {
            s.geometry.cluster = config->attributes[i].value.cluster.x;
        }
    }
    return ask(config->stream, s);
}

FAKE cu_result cuTensorMapEncodeTiled(qn_tensor_map *map, int32_t type, uint32_t rank, void *address,
                                      const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                      const uint32_t *element_strides, int32_t interleave, int32_t swizzle,
                                      int32_t promotion, int32_t fill)
{
    CALL();
    static const uint32_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    memset(map, 0, sizeof *map);
    if (rank < 1 || rank > 5 || !dims[0] || !box[0] || (uintptr_t)address % 16 != 0) {
        return 1;
    }
    if (rank == 3 && type < (int32_t)(sizeof bytes / sizeof *bytes)) { /* others are not emulated */
        ptx_tensor t = {
            .kind = PTX_TENSOR, .data = (uintptr_t)address, .bytes = bytes[type], .swizzle = (uint32_t)swizzle};
        memcpy(t.dims, dims, sizeof t.dims);
        memcpy(t.strides, strides, sizeof t.strides);
        memcpy(t.box, box, sizeof t.box);
        memcpy(map, &t, sizeof t);
    }
    return 0;
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
    return ask(stream, (step){.to = (void *)(uintptr_t)to, .from = from, .bytes = bytes});
}

FAKE cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
    CALL();
    return ask(stream, (step){.to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes});
}

FAKE cu_result cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)
{
    CALL();
    const void *const source = (const void *)(uintptr_t)from;
    return ask(stream, (step){.to = (void *)(uintptr_t)to, .from = source, .bytes = bytes});
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
    return ask(stream, (step){.to = (void *)(uintptr_t)to, .value = value, .bytes = bytes});
}

FAKE cu_result cuStreamCreate(cu_stream *stream, uint32_t flags)
{
    CALL();
    *stream = calloc(1, sizeof **stream);
    live++;
    return 0;
}

FAKE cu_result cuStreamDestroy_v2(cu_stream stream)
{
    if (stream->capture) {
        release_graph(stream->capture);
    }
    free(stream);
    live--;
    return 0;
}

/* Events are a byte of memory each. */
FAKE cu_result cuEventCreate(cu_event *event, uint32_t flags)
{
    CALL();
    *event = (cu_event)malloc(1);
    live++;
    return 0;
}

FAKE cu_result cuEventDestroy_v2(cu_event event)
{
    free(event);
    live--;
    return 0;
}

FAKE cu_result cuStreamBeginCapture_v2(cu_stream stream, int32_t mode)
{
    CALL();
    if (!stream || mode != CU_CAPTURE_THREAD_LOCAL) {
        return 1;
    }
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->users = 1;
    return 0;
}

/* A capture that fails to end is over all the same. */
FAKE cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    cu_graph captured = stream->capture;
    stream->capture = NULL;
    if (++calls == fail_at) {
        release_graph(captured);
        return fail_with;
    }
    live++;
    *graph = captured;
    return 0;
}

FAKE cu_result cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    CALL();
    *exec = malloc(sizeof **exec);
    (*exec)->graph = graph;
    graph->users++;
    live++;
    return 0;
}

FAKE cu_result cuGraphExecDestroy(cu_graph_exec exec)
{
    release_graph(exec->graph);
    free(exec);
    live--;
    return 0;
}

FAKE cu_result cuGraphDestroy(cu_graph graph)
{
    release_graph(graph);
    live--;
    return 0;
}

FAKE cu_result cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    CALL();
    cu_result result = exec ? 0 : 1;
    for (int i = 0; exec && i < exec->graph->count && result == 0; i++) {
        result = do_step(&exec->graph->steps[i]);
    }
    return result;
}

FAKE cu_result cuStreamSynchronize(cu_stream stream)
{
    CALL();
    return 0;
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
