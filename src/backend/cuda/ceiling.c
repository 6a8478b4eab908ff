/* qn_device_ceiling: what the device's memory reaches, with kernels of our own
 * (kernels/cuda/ceiling.cu) over 2 GB, the best of several launches. */
#include <string.h>

#include <quern/device.h>

#include "backend/cuda/cuda.h"

enum { THREADS = 512, ROUNDS = 12 };

#define BUFFER_BYTES ((size_t)2 << 30)

typedef struct bench {
    qn_ctx *ctx;
    qn_cuda *cuda;
    qn_cuda_function function;
    char *from, *to;
    uint64_t words; /* of 16 bytes */
    void *start, *stop;
} bench;

const qn_cuda_program qn_cuda_ceiling_program = {.source = "ceiling.cu", .entry = "qn_ceiling_read"};

static qn_status launch(const bench *b, qn_error *error)
{
    cu_launch_config config = {.grid = {(uint32_t)b->cuda->device.sms * 4, 1, 1}, .block = {THREADS, 1, 1}};
    const char *from = b->from;
    char *to = b->to;
    uint64_t words = b->words;
    void *arguments[] = {&from, &words, &to};
    QN_TRY(qn_cuda_push(b->cuda, error));
    const cu_result result = b->cuda->cu.LaunchKernelEx(&config, b->function.handle, arguments, NULL);
    qn_cuda_pop(b->cuda);
    return qn_cuda_check(b->cuda, result, "cuLaunchKernelEx", error);
}

static qn_status measure(const bench *b, double bytes, double *value, qn_error *error)
{
    for (int i = 0; i < ROUNDS; i++) {
        float ms = 0.0f;
        QN_TRY(qn_event_record(b->ctx, b->start, NULL, error));
        QN_TRY(launch(b, error));
        QN_TRY(qn_event_record(b->ctx, b->stop, NULL, error));
        QN_TRY(qn_event_elapsed(b->ctx, b->start, b->stop, &ms, error));
        const double rate = ms > 0.0f ? bytes / (double)ms * 1e-6 : 0.0;
        *value = i > 1 && rate > *value ? rate : *value;
    }
    return QN_OK;
}

static qn_status prepare(bench *b, int copy, qn_error *error)
{
    qn_cuda_program program = qn_cuda_ceiling_program;
    program.entry = copy ? "qn_ceiling_copy" : program.entry;
    QN_TRY(qn_cuda_function_get(b->cuda, &program, &b->function, error));
    QN_TRY(qn_event_create(b->ctx, &b->start, error));
    QN_TRY(qn_event_create(b->ctx, &b->stop, error));
    void *memory = NULL;
    QN_TRY(qn_device_alloc(b->ctx, BUFFER_BYTES, &memory, error));
    b->from = memory;
    b->words = (copy ? BUFFER_BYTES / 2 : BUFFER_BYTES) / 16;
    b->to = b->from + (copy ? BUFFER_BYTES / 2 : 0);
    return qn_device_fill(b->ctx, memory, 0x5A, BUFFER_BYTES, NULL, error);
}

qn_status qn_device_ceiling(qn_ctx *ctx, const char *name, double *value, qn_error *error)
{
    QN_FAIL_IF(!ctx || !name || !value, error, QN_E_ARGUMENT, "qn_device_ceiling: %s is NULL",
               !ctx    ? "ctx"
               : !name ? "name"
                       : "value");
    *value = 0.0;
    const int copy = strcmp(name, "copy") == 0;
    QN_FAIL_IF(!copy && strcmp(name, "read") != 0, error, QN_E_ARGUMENT,
               "the ceiling of a device is '%s', expected read or copy", name);
    bench b = {.ctx = ctx};
    QN_TRY(qn_cuda_require(ctx, &b.cuda, error));
    qn_status status = prepare(&b, copy, error);
    if (status == QN_OK) {
        status = measure(&b, (double)BUFFER_BYTES, value, error);
    }
    qn_device_free(ctx, b.from);
    qn_event_destroy(ctx, b.start);
    qn_event_destroy(ctx, b.stop);
    return status;
}
