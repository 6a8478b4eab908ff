/* The part of the CUDA driver's and NVRTC's binary interface that we use, in our
 * own words: types, constants and a table of function pointers filled by dlopen,
 * so that the library builds without a CUDA toolkit and starts without a driver.
 *
 * Names follow the documented interfaces; _v2 and the like are the symbols that
 * CUDA's own headers map plain names to. */
#ifndef QN_BACKEND_CUDA_API_H
#define QN_BACKEND_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cu_result; /* 0: success */
typedef int32_t cu_device;
typedef uint64_t cu_pointer; /* CUdeviceptr */
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;

enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_DEVICE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_L2_CACHE_SIZE = 38,
    CU_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_FUNC_SHARED_SIZE_BYTES = 1, /* of memory that the code names itself */
    CU_FUNC_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_NUM_REGS = 4,
    CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    CU_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    CU_LAUNCH_COOPERATIVE = 2,
    CU_LAUNCH_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_THREAD_LOCAL = 1
};

typedef struct cu_launch_attribute {
    int32_t id;
    int32_t pad;
    union {
        char bytes[64];
        struct {
            uint32_t x, y, z;
        } cluster;
        int32_t flag;
    } value;
} cu_launch_attribute;

typedef struct cu_launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    cu_stream stream;
    cu_launch_attribute *attributes;
    uint32_t attribute_count;
} cu_launch_config;

/* CUtensorMap: opaque, aligned to 64 bytes, passed to kernels by value. */
typedef struct qn_tensor_map {
    _Alignas(64) uint64_t opaque[16];
} qn_tensor_map;

enum {
    CU_TENSOR_U8 = 0,
    CU_TENSOR_U16 = 1,
    CU_TENSOR_I32 = 3,
    CU_TENSOR_U64 = 4,
    CU_TENSOR_F16 = 6,
    CU_TENSOR_F32 = 7,
    CU_TENSOR_BF16 = 9,
    CU_SWIZZLE_NONE = 0,
    CU_SWIZZLE_32B = 1,
    CU_SWIZZLE_64B = 2,
    CU_SWIZZLE_128B = 3,
    CU_L2_PROMOTION_NONE = 0,
    CU_L2_PROMOTION_64B = 1,
    CU_L2_PROMOTION_128B = 2,
    CU_L2_PROMOTION_256B = 3
};

/* X(member, symbol, result type, parameters): every function the backend cannot do without. */
#define QN_CU_FUNCTIONS(X)                                                                                             \
    X(Init, "cuInit", cu_result, (uint32_t flags))                                                                     \
    X(DriverGetVersion, "cuDriverGetVersion", cu_result, (int32_t * version))                                          \
    X(GetErrorName, "cuGetErrorName", cu_result, (cu_result error, const char **text))                                 \
    X(GetErrorString, "cuGetErrorString", cu_result, (cu_result error, const char **text))                             \
    X(DeviceGetCount, "cuDeviceGetCount", cu_result, (int32_t * count))                                                \
    X(DeviceGet, "cuDeviceGet", cu_result, (cu_device * device, int32_t ordinal))                                      \
    X(DeviceGetName, "cuDeviceGetName", cu_result, (char *name, int32_t bytes, cu_device device))                      \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", cu_result, (int32_t * value, int32_t attribute, cu_device device))   \
    X(DeviceTotalMem, "cuDeviceTotalMem_v2", cu_result, (size_t * bytes, cu_device device))                            \
    X(PrimaryRetain, "cuDevicePrimaryCtxRetain", cu_result, (cu_context * context, cu_device device))                  \
    X(PrimaryRelease, "cuDevicePrimaryCtxRelease_v2", cu_result, (cu_device device))                                   \
    X(CtxPush, "cuCtxPushCurrent_v2", cu_result, (cu_context context))                                                 \
    X(CtxPop, "cuCtxPopCurrent_v2", cu_result, (cu_context * context))                                                 \
    X(ModuleLoadData, "cuModuleLoadData", cu_result, (cu_module * module, const void *image))                          \
    X(ModuleUnload, "cuModuleUnload", cu_result, (cu_module module))                                                   \
    X(ModuleGetFunction, "cuModuleGetFunction", cu_result,                                                             \
      (cu_function * function, cu_module module, const char *name))                                                    \
    X(FuncGetAttribute, "cuFuncGetAttribute", cu_result, (int32_t * value, int32_t attribute, cu_function function))   \
    X(FuncSetAttribute, "cuFuncSetAttribute", cu_result, (cu_function function, int32_t attribute, int32_t value))     \
    X(LaunchKernelEx, "cuLaunchKernelEx", cu_result,                                                                   \
      (const cu_launch_config *config, cu_function function, void **parameters, void **extra))                         \
    X(MemAlloc, "cuMemAlloc_v2", cu_result, (cu_pointer * pointer, size_t bytes))                                      \
    X(MemFree, "cuMemFree_v2", cu_result, (cu_pointer pointer))                                                        \
    X(CopyIn, "cuMemcpyHtoDAsync_v2", cu_result, (cu_pointer to, const void *from, size_t bytes, cu_stream stream))    \
    X(CopyOut, "cuMemcpyDtoHAsync_v2", cu_result, (void *to, cu_pointer from, size_t bytes, cu_stream stream))         \
    X(CopyWithin, "cuMemcpyDtoDAsync_v2", cu_result, (cu_pointer to, cu_pointer from, size_t bytes, cu_stream stream)) \
    X(HostAlloc, "cuMemHostAlloc", cu_result, (void **pointer, size_t bytes, uint32_t flags))                          \
    X(HostFree, "cuMemFreeHost", cu_result, (void *pointer))                                                           \
    X(Fill, "cuMemsetD8Async", cu_result, (cu_pointer to, uint8_t value, size_t bytes, cu_stream stream))              \
    X(StreamCreate, "cuStreamCreate", cu_result, (cu_stream * stream, uint32_t flags))                                 \
    X(StreamDestroy, "cuStreamDestroy_v2", cu_result, (cu_stream stream))                                              \
    X(StreamSync, "cuStreamSynchronize", cu_result, (cu_stream stream))                                                \
    X(BeginCapture, "cuStreamBeginCapture_v2", cu_result, (cu_stream stream, int32_t mode))                            \
    X(EndCapture, "cuStreamEndCapture", cu_result, (cu_stream stream, cu_graph * graph))                               \
    X(GraphInstantiate, "cuGraphInstantiateWithFlags", cu_result,                                                      \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                                                \
    X(GraphLaunch, "cuGraphLaunch", cu_result, (cu_graph_exec exec, cu_stream stream))                                 \
    X(GraphExecDestroy, "cuGraphExecDestroy", cu_result, (cu_graph_exec exec))                                         \
    X(GraphDestroy, "cuGraphDestroy", cu_result, (cu_graph graph))                                                     \
    X(EventCreate, "cuEventCreate", cu_result, (cu_event * event, uint32_t flags))                                     \
    X(EventDestroy, "cuEventDestroy_v2", cu_result, (cu_event event))                                                  \
    X(EventRecord, "cuEventRecord", cu_result, (cu_event event, cu_stream stream))                                     \
    X(EventSync, "cuEventSynchronize", cu_result, (cu_event event))                                                    \
    X(EventElapsed, "cuEventElapsedTime", cu_result, (float *milliseconds, cu_event from, cu_event to))

/* Functions that older drivers lack; NULL then. */
#define QN_CU_OPTIONAL(X)                                                                                              \
    X(FuncLoad, "cuFuncLoad", cu_result, (cu_function function))                                                       \
    X(MaxClusters, "cuOccupancyMaxActiveClusters", cu_result,                                                          \
      (int32_t * count, cu_function function, const cu_launch_config *config))                                         \
    X(TensorMapTiled, "cuTensorMapEncodeTiled", cu_result,                                                             \
      (qn_tensor_map * map, int32_t type, uint32_t rank, void *address, const uint64_t *dims, const uint64_t *strides, \
       const uint32_t *box, const uint32_t *element_strides, int32_t interleave, int32_t swizzle, int32_t promotion,   \
       int32_t fill))

#define QN_CU_MEMBER(member, symbol, type, parameters) type(*member) parameters;

typedef struct qn_cu_api {
    QN_CU_FUNCTIONS(QN_CU_MEMBER)
    QN_CU_OPTIONAL(QN_CU_MEMBER)
} qn_cu_api;

/* ---- NVRTC ---- */

typedef int32_t nvrtc_result; /* 0: success, 6: the source does not compile */
typedef struct _nvrtcProgram *nvrtc_program;

#define QN_NVRTC_FUNCTIONS(X)                                                                                          \
    X(Version, "nvrtcVersion", nvrtc_result, (int32_t * major, int32_t * minor))                                       \
    X(GetErrorString, "nvrtcGetErrorString", const char *, (nvrtc_result result))                                      \
    X(CreateProgram, "nvrtcCreateProgram", nvrtc_result,                                                               \
      (nvrtc_program * program, const char *source, const char *name, int32_t headers, const char *const *contents,    \
       const char *const *names))                                                                                      \
    X(DestroyProgram, "nvrtcDestroyProgram", nvrtc_result, (nvrtc_program * program))                                  \
    X(CompileProgram, "nvrtcCompileProgram", nvrtc_result,                                                             \
      (nvrtc_program program, int32_t count, const char *const *options))                                              \
    X(GetLogSize, "nvrtcGetProgramLogSize", nvrtc_result, (nvrtc_program program, size_t * bytes))                     \
    X(GetLog, "nvrtcGetProgramLog", nvrtc_result, (nvrtc_program program, char *log))                                  \
    X(GetCubinSize, "nvrtcGetCUBINSize", nvrtc_result, (nvrtc_program program, size_t * bytes))                        \
    X(GetCubin, "nvrtcGetCUBIN", nvrtc_result, (nvrtc_program program, char *cubin))

typedef struct qn_nvrtc_api {
    QN_NVRTC_FUNCTIONS(QN_CU_MEMBER)
} qn_nvrtc_api;

#endif
