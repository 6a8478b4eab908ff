/* A device that is not there, of a target that a context names (qn_ctx_options.cuda_target): plans, models and sessions
 * are made as for a real one, so that their kernels are compiled and kept for a machine that has it, and nothing runs.
 *
 * It is a table of functions in the driver's place. Memory is addresses, each allocation its own, behind which there
 * is nothing; page-locked memory is memory. What goes to the device and what it is asked to do is dropped, what
 * comes back is NaN, and a graph does not start. */
#include "backend/cuda/cuda.h"

#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, NO_DEVICE = 100 };

/* Any handle: nothing looks behind it. */
#define HANDLE ((void *)(uintptr_t)PAGE)

static cu_result error_name(cu_result error, const char **text)
{
    *text = error == CU_ERROR_OUT_OF_MEMORY ? "out of memory" : "no device";
    return CU_SUCCESS;
}

static cu_result error_string(cu_result error, const char **text)
{
    *text = error == CU_ERROR_OUT_OF_MEMORY ? "no address space is left" : "kernels are only compiled for it here";
    return CU_SUCCESS;
}

static cu_result push(cu_context context)
{
    (void)context;
    return CU_SUCCESS;
}

static cu_result pop(cu_context *context)
{
    *context = NULL;
    return CU_SUCCESS;
}

static cu_result module_load(cu_module *module, const void *image)
{
    (void)image;
    *module = HANDLE;
    return CU_SUCCESS;
}

static cu_result module_unload(cu_module module)
{
    (void)module;
    return CU_SUCCESS;
}

static cu_result module_function(cu_function *function, cu_module module, const char *name)
{
    (void)module;
    (void)name;
    *function = HANDLE;
    return CU_SUCCESS;
}

static cu_result get_attribute(int32_t *value, int32_t attribute, cu_function function)
{
    (void)attribute;
    (void)function;
    *value = 0;
    return CU_SUCCESS;
}

static cu_result set_attribute(cu_function function, int32_t attribute, int32_t value)
{
    (void)function;
    (void)attribute;
    (void)value;
    return CU_SUCCESS;
}

static cu_result launch(const cu_launch_config *config, cu_function function, void **parameters, void **extra)
{
    (void)config;
    (void)function;
    (void)parameters;
    (void)extra;
    return CU_SUCCESS;
}

/* Pages with their number of bytes in the first, NULL when there are none. */
static char *pages(size_t bytes, int usable)
{
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    const size_t all = bytes + PAGE;
    char *const at = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return NULL;
    }
    if (mprotect(at, usable ? all : PAGE, PROT_READ | PROT_WRITE) != 0) {
        munmap(at, all);
        return NULL;
    }
    memcpy(at, &all, sizeof all);
    return at + PAGE;
}

static void unmap(char *pointer)
{
    size_t all;
    memcpy(&all, pointer - PAGE, sizeof all);
    munmap(pointer - PAGE, all);
}

static cu_result alloc(cu_pointer *pointer, size_t bytes)
{
    *pointer = (cu_pointer)(uintptr_t)pages(bytes, 0);
    return *pointer ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

static cu_result drop(cu_pointer pointer)
{
    unmap((char *)(uintptr_t)pointer);
    return CU_SUCCESS;
}

static cu_result host_alloc(void **pointer, size_t bytes, uint32_t flags)
{
    (void)flags;
    *pointer = pages(bytes, 1);
    return *pointer ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

static cu_result host_free(void *pointer)
{
    unmap(pointer);
    return CU_SUCCESS;
}

static cu_result copy_in(cu_pointer to, const void *from, size_t bytes, cu_stream stream)
{
    (void)to;
    (void)from;
    (void)bytes;
    (void)stream;
    return CU_SUCCESS;
}

static cu_result copy_out(void *to, cu_pointer from, size_t bytes, cu_stream stream)
{
    (void)from;
    (void)stream;
    memset(to, 0xff, bytes); /* NaN: a capture may ask for it too, so it is no failure */
    return CU_SUCCESS;
}

static cu_result copy_within(cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)
{
    (void)to;
    (void)from;
    (void)bytes;
    (void)stream;
    return CU_SUCCESS;
}

static cu_result fill(cu_pointer to, uint8_t value, size_t bytes, cu_stream stream)
{
    (void)to;
    (void)value;
    (void)bytes;
    (void)stream;
    return CU_SUCCESS;
}

static cu_result stream_create(cu_stream *stream, uint32_t flags)
{
    (void)flags;
    *stream = HANDLE;
    return CU_SUCCESS;
}

static cu_result with_stream(cu_stream stream)
{
    (void)stream;
    return CU_SUCCESS;
}

static cu_result begin_capture(cu_stream stream, int32_t mode)
{
    (void)stream;
    (void)mode;
    return CU_SUCCESS;
}

static cu_result end_capture(cu_stream stream, cu_graph *graph)
{
    (void)stream;
    *graph = HANDLE;
    return CU_SUCCESS;
}

static cu_result instantiate(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    (void)graph;
    (void)flags;
    *exec = HANDLE;
    return CU_SUCCESS;
}

static cu_result graph_launch(cu_graph_exec exec, cu_stream stream)
{
    (void)exec;
    (void)stream;
    return NO_DEVICE;
}

static cu_result exec_destroy(cu_graph_exec exec)
{
    (void)exec;
    return CU_SUCCESS;
}

static cu_result graph_destroy(cu_graph graph)
{
    (void)graph;
    return CU_SUCCESS;
}

static cu_result event_create(cu_event *event, uint32_t flags)
{
    (void)flags;
    *event = HANDLE;
    return CU_SUCCESS;
}

static cu_result with_event(cu_event event)
{
    (void)event;
    return CU_SUCCESS;
}

static cu_result event_record(cu_event event, cu_stream stream)
{
    (void)event;
    (void)stream;
    return CU_SUCCESS;
}

static cu_result event_elapsed(float *milliseconds, cu_event from, cu_event to)
{
    (void)milliseconds;
    (void)from;
    (void)to;
    return NO_DEVICE;
}

static cu_result tensor_map(qn_tensor_map *map, int32_t type, uint32_t rank, void *address, const uint64_t *dims,
                            const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                            int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill_with)
{
    (void)type;
    (void)rank;
    (void)address;
    (void)dims;
    (void)strides;
    (void)box;
    (void)element_strides;
    (void)interleave;
    (void)swizzle;
    (void)promotion;
    (void)fill_with;
    memset(map, 0, sizeof *map);
    return CU_SUCCESS;
}

/* What opening a device asks of the driver is not called. */
const qn_cu_api qn_cuda_absent = {.GetErrorName = error_name,
                                  .GetErrorString = error_string,
                                  .CtxPush = push,
                                  .CtxPop = pop,
                                  .ModuleLoadData = module_load,
                                  .ModuleUnload = module_unload,
                                  .ModuleGetFunction = module_function,
                                  .FuncGetAttribute = get_attribute,
                                  .FuncSetAttribute = set_attribute,
                                  .LaunchKernelEx = launch,
                                  .MemAlloc = alloc,
                                  .MemFree = drop,
                                  .CopyIn = copy_in,
                                  .CopyOut = copy_out,
                                  .CopyWithin = copy_within,
                                  .HostAlloc = host_alloc,
                                  .HostFree = host_free,
                                  .Fill = fill,
                                  .StreamCreate = stream_create,
                                  .StreamDestroy = with_stream,
                                  .StreamSync = with_stream,
                                  .BeginCapture = begin_capture,
                                  .EndCapture = end_capture,
                                  .GraphInstantiate = instantiate,
                                  .GraphLaunch = graph_launch,
                                  .GraphExecDestroy = exec_destroy,
                                  .GraphDestroy = graph_destroy,
                                  .EventCreate = event_create,
                                  .EventDestroy = with_event,
                                  .EventRecord = event_record,
                                  .EventSync = with_event,
                                  .EventElapsed = event_elapsed,
                                  .TensorMapTiled = tensor_map};
