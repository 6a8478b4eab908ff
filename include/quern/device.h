/* Device memory, streams, events and graphs for callers without CUDA code.
 *
 * Programs that have CUDA of their own need none of this: a plan of the CUDA
 * backend takes their pointers and their stream (qn_exec.stream is a CUstream or
 * cudaStream_t of the device's primary context). All calls go to the driver that
 * the context loaded; a NULL stream is the default stream. Nothing here keeps
 * anything: what a call makes is the caller's to destroy, before the context.
 *
 * Every function: QN_E_DEVICE with the driver's own name of the error, or why
 * there is no device; QN_E_MEMORY: the device or the host has none left;
 * QN_E_ARGUMENT: a pointer is NULL. Thread-safe. */
#ifndef QUERN_DEVICE_H
#define QUERN_DEVICE_H

#include <quern/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_device_info {
    char name[128];
    char target[16]; /* what kernels are compiled for: "sm_90a" */
    int32_t multiprocessors;
    int32_t driver_version; /* 13000: CUDA 13.0 */
    uint64_t memory_bytes, l2_bytes;
} qn_device_info;

/* Facts of the context's device. */
QN_API qn_status qn_device_get_info(qn_ctx *ctx, qn_device_info *info, qn_error *error);

/* Device memory, aligned to 256 bytes; *out is NULL on failure. bytes 0 gives a valid pointer. */
QN_API qn_status qn_device_alloc(qn_ctx *ctx, size_t bytes, void **out, qn_error *error);

/* Free; NULL is fine. Waits for work that uses it, as the driver does. */
QN_API void qn_device_free(qn_ctx *ctx, void *pointer);

/* Host to device and back, in the stream's order. Host memory must stay until the stream is
 * synchronised; from ordinary (pageable) memory the call itself may wait. */
QN_API qn_status qn_device_copy_in(qn_ctx *ctx, void *device, const void *host, size_t bytes, void *stream,
                                   qn_error *error);
QN_API qn_status qn_device_copy_out(qn_ctx *ctx, void *host, const void *device, size_t bytes, void *stream,
                                    qn_error *error);

/* Device to device, in the stream's order; the two must not overlap. */
QN_API qn_status qn_device_copy(qn_ctx *ctx, void *to, const void *from, size_t bytes, void *stream, qn_error *error);

/* Page-locked host memory: copies from and to it do not wait, and graphs may hold them. *out is NULL on failure. */
QN_API qn_status qn_host_alloc(qn_ctx *ctx, size_t bytes, void **out, qn_error *error);
QN_API void qn_host_free(qn_ctx *ctx, void *pointer); /* NULL is fine */

/* Set every byte. */
QN_API qn_status qn_device_fill(qn_ctx *ctx, void *device, uint8_t value, size_t bytes, void *stream, qn_error *error);

/* A stream that does not wait for the default one; *out is NULL on failure. */
QN_API qn_status qn_stream_create(qn_ctx *ctx, void **out, qn_error *error);
QN_API void qn_stream_destroy(qn_ctx *ctx, void *stream); /* NULL is fine */

/* Wait for everything enqueued on a stream; a failure of a kernel shows here. */
QN_API qn_status qn_stream_sync(qn_ctx *ctx, void *stream, qn_error *error);

/* A mark in a stream's order, for timing; *out is NULL on failure. */
QN_API qn_status qn_event_create(qn_ctx *ctx, void **out, qn_error *error);
QN_API void qn_event_destroy(qn_ctx *ctx, void *event); /* NULL is fine */
QN_API qn_status qn_event_record(qn_ctx *ctx, void *event, void *stream, qn_error *error);

/* Milliseconds between two recorded events; waits for the second. */
QN_API qn_status qn_event_elapsed(qn_ctx *ctx, void *from, void *to, float *milliseconds, qn_error *error);

/* Record what is enqueued on a stream (not the default one) between begin and end instead of running it;
 * end gives a graph that qn_graph_launch runs as often as wanted. *out is NULL on failure. */
QN_API qn_status qn_graph_begin(qn_ctx *ctx, void *stream, qn_error *error);
QN_API qn_status qn_graph_end(qn_ctx *ctx, void *stream, void **out, qn_error *error);
QN_API qn_status qn_graph_launch(qn_ctx *ctx, void *graph, void *stream, qn_error *error);
QN_API void qn_graph_destroy(qn_ctx *ctx, void *graph); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
