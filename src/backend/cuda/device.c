/* quern/device.h: the driver's memory, streams, events and graphs, each call with
 * the context's device current and its failure in the driver's words. */
#include <quern/device.h>

#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"

/* The usable state of ctx with its device current. */
static qn_status enter(const qn_ctx *ctx, const char *call, int missing, qn_cuda **cuda, qn_error *error)
{
    QN_FAIL_IF(!ctx || missing, error, QN_E_ARGUMENT, "%s: %s is NULL", call, ctx ? "a pointer" : "ctx");
    QN_TRY(qn_cuda_require(ctx, cuda, error));
    return qn_cuda_push(*cuda, error);
}

static qn_status leave(const qn_cuda *cuda, cu_result result, const char *call, qn_error *error)
{
    qn_cuda_pop(cuda);
    return qn_cuda_check(cuda, result, call, error);
}

/* One driver call between enter and leave. */
#define CALL(name, missing, function, ...)                                                                             \
    do {                                                                                                               \
        qn_cuda *cuda;                                                                                                 \
        QN_TRY(enter(ctx, name, missing, &cuda, error));                                                               \
        return leave(cuda, cuda->cu.function(__VA_ARGS__), "cu" #function, error);                                     \
    } while (0)

/* The same where nobody hears of a failure. */
#define RELEASE(thing, function, value)                                                                                \
    do {                                                                                                               \
        qn_cuda *cuda;                                                                                                 \
        if ((thing) && enter(ctx, #function, 0, &cuda, NULL) == QN_OK) {                                               \
            leave(cuda, cuda->cu.function(value), #function, NULL);                                                    \
        }                                                                                                              \
    } while (0)

static cu_pointer address(const void *pointer)
{
    return (cu_pointer)(uintptr_t)pointer;
}

qn_status qn_device_get_info(qn_ctx *ctx, qn_device_info *info, qn_error *error)
{
    QN_FAIL_IF(!ctx || !info, error, QN_E_ARGUMENT, "qn_device_get_info: %s is NULL", ctx ? "info" : "ctx");
    qn_cuda *cuda;
    QN_TRY(qn_cuda_require(ctx, &cuda, error));
    const qn_cuda_device *d = &cuda->device;
    memset(info, 0, sizeof *info);
    memcpy(info->name, d->name, sizeof info->name);
    snprintf(info->target, sizeof info->target, "%s", qn_cuda_target_name(d->target));
    info->multiprocessors = d->sms;
    info->driver_version = d->driver_version;
    info->memory_bytes = d->memory_bytes;
    info->l2_bytes = (uint64_t)d->l2_bytes;
    return QN_OK;
}

qn_status qn_device_alloc(qn_ctx *ctx, size_t bytes, void **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_device_alloc: out is NULL");
    *out = NULL;
    qn_cuda *cuda;
    cu_pointer pointer = 0;
    QN_TRY(enter(ctx, "qn_device_alloc", 0, &cuda, error));
    const qn_status status = leave(cuda, cuda->cu.MemAlloc(&pointer, bytes ? bytes : 1), "cuMemAlloc", error);
    if (status == QN_OK) {
        *out = (void *)(uintptr_t)pointer;
    } else {
        qn_error_prefix(error, status, "%zu bytes of device memory", bytes);
    }
    return status;
}

void qn_device_free(qn_ctx *ctx, void *pointer)
{
    RELEASE(pointer, MemFree, address(pointer));
}

qn_status qn_device_copy_in(qn_ctx *ctx, void *device, const void *host, size_t bytes, void *stream, qn_error *error)
{
    if (bytes == 0) {
        return QN_OK;
    }
    CALL("qn_device_copy_in", !device || !host, CopyIn, address(device), host, bytes, stream);
}

qn_status qn_device_copy_out(qn_ctx *ctx, void *host, const void *device, size_t bytes, void *stream, qn_error *error)
{
    if (bytes == 0) {
        return QN_OK;
    }
    CALL("qn_device_copy_out", !device || !host, CopyOut, host, address(device), bytes, stream);
}

qn_status qn_device_copy(qn_ctx *ctx, void *to, const void *from, size_t bytes, void *stream, qn_error *error)
{
    if (bytes == 0) {
        return QN_OK;
    }
    CALL("qn_device_copy", !to || !from, CopyWithin, address(to), address(from), bytes, stream);
}

qn_status qn_host_alloc(qn_ctx *ctx, size_t bytes, void **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_host_alloc: out is NULL");
    *out = NULL;
    CALL("qn_host_alloc", 0, HostAlloc, out, bytes ? bytes : 1, 0);
}

void qn_host_free(qn_ctx *ctx, void *pointer)
{
    RELEASE(pointer, HostFree, pointer);
}

qn_status qn_device_fill(qn_ctx *ctx, void *device, uint8_t value, size_t bytes, void *stream, qn_error *error)
{
    if (bytes == 0) {
        return QN_OK;
    }
    CALL("qn_device_fill", !device, Fill, address(device), value, bytes, stream);
}

qn_status qn_stream_create(qn_ctx *ctx, void **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_stream_create: out is NULL");
    *out = NULL;
    CALL("qn_stream_create", 0, StreamCreate, (cu_stream *)out, CU_STREAM_NON_BLOCKING);
}

void qn_stream_destroy(qn_ctx *ctx, void *stream)
{
    RELEASE(stream, StreamDestroy, stream);
}

qn_status qn_stream_sync(qn_ctx *ctx, void *stream, qn_error *error)
{
    CALL("qn_stream_sync", 0, StreamSync, stream);
}

qn_status qn_event_create(qn_ctx *ctx, void **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_event_create: out is NULL");
    *out = NULL;
    CALL("qn_event_create", 0, EventCreate, (cu_event *)out, 0);
}

void qn_event_destroy(qn_ctx *ctx, void *event)
{
    RELEASE(event, EventDestroy, event);
}

qn_status qn_event_record(qn_ctx *ctx, void *event, void *stream, qn_error *error)
{
    CALL("qn_event_record", !event, EventRecord, event, stream);
}

qn_status qn_event_elapsed(qn_ctx *ctx, void *from, void *to, float *milliseconds, qn_error *error)
{
    qn_cuda *cuda;
    QN_TRY(enter(ctx, "qn_event_elapsed", !from || !to || !milliseconds, &cuda, error));
    cu_result result = cuda->cu.EventSync(to);
    if (result == CU_SUCCESS) {
        result = cuda->cu.EventElapsed(milliseconds, from, to);
    }
    return leave(cuda, result, "cuEventElapsedTime", error);
}

qn_status qn_graph_begin(qn_ctx *ctx, void *stream, qn_error *error)
{
    CALL("qn_graph_begin", !stream, BeginCapture, stream, CU_CAPTURE_THREAD_LOCAL);
}

qn_status qn_graph_end(qn_ctx *ctx, void *stream, void **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_graph_end: out is NULL");
    *out = NULL;
    qn_cuda *cuda;
    cu_graph graph = NULL;
    QN_TRY(enter(ctx, "qn_graph_end", !stream, &cuda, error));
    cu_result result = cuda->cu.EndCapture(stream, &graph);
    if (result == CU_SUCCESS) {
        result = cuda->cu.GraphInstantiate((cu_graph_exec *)out, graph, 0);
        cuda->cu.GraphDestroy(graph);
    }
    return leave(cuda, result, "cuGraphInstantiate", error);
}

qn_status qn_graph_launch(qn_ctx *ctx, void *graph, void *stream, qn_error *error)
{
    CALL("qn_graph_launch", !graph, GraphLaunch, graph, stream);
}

void qn_graph_destroy(qn_ctx *ctx, void *graph)
{
    RELEASE(graph, GraphExecDestroy, graph);
}
