/* Ceilings: what this machine reaches with these threads, so that every speed
 * can be shown beside its roofline. Memory is measured on a buffer beyond the
 * caches, by every way to stream that a level and those below it have (the fastest
 * counts and is kept for the next time); arithmetic on loops that stay in registers
 * (kernels/cpu/<isa>/ceiling_<isa>.c). The best of several rounds counts: other
 * work on the machine only ever makes a round slower. */
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cache.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/error.h"
#include "kernels/common/ceiling.h"
#include "op/op.h"
#include "plan/plan.h"

#define MEASURE_NS UINT64_C(80000000)
#define LEAST_BYTES ((size_t)256 << 20)
#define MOST_BYTES ((size_t)1 << 30)
#define CHUNK_BYTES ((size_t)1 << 20)
#define ALU_STEPS 100000

typedef struct alu_row {
    const char *name;
    qn_isa isa;
    const qn_ceiling_loop *loop;
} alu_row;

static const alu_row alu_rows[] = {
    {"fp32_fma", QN_ISA_AVX512, &qn_ceiling_fp32__avx512},
    {"fp32_fma", QN_ISA_AVX2, &qn_ceiling_fp32__avx2},
    {"fp32_fma", QN_ISA_SCALAR, &qn_ceiling_fp32__scalar},
    {"int8_dot", QN_ISA_AVX512VNNI, &qn_ceiling_int8__avx512vnni},
    {"int8_dot", QN_ISA_AVX512, &qn_ceiling_int8__avx512},
    {"int8_dot", QN_ISA_AVX2, &qn_ceiling_int8__avx2},
    {"int8_dot", QN_ISA_SCALAR, &qn_ceiling_int8__scalar},
    {"int16_dot", QN_ISA_AVX512VNNI, &qn_ceiling_int16__avx512vnni},
    {"int16_dot", QN_ISA_AVX512, &qn_ceiling_int8__avx512}, /* of words: there is no other */
    {"int16_dot", QN_ISA_AVX2, &qn_ceiling_int8__avx2},
    {"int16_dot", QN_ISA_SCALAR, &qn_ceiling_int8__scalar},
    {"bf16_dot", QN_ISA_AVX512BF16, &qn_ceiling_bf16__avx512bf16},
    {"int8_tile", QN_ISA_AMX, &qn_ceiling_int8__amx},
    {"bf16_tile", QN_ISA_AMX, &qn_ceiling_bf16__amx},
};

typedef struct stream_row {
    qn_isa isa;
    const qn_ceiling_stream *ways;
} stream_row;

static const stream_row stream_rows[] = {
    {QN_ISA_AVX512, &qn_ceiling_stream__avx512},
    {QN_ISA_AVX2, &qn_ceiling_stream__avx2},
    {QN_ISA_SCALAR, &qn_ceiling_stream__scalar},
};
enum { STREAM_ROWS = sizeof stream_rows / sizeof *stream_rows };

struct qn_meter {
    qn_ctx *ctx;
    const qn_exec *exec;
    size_t bytes;
    char *buffer;                 /* allocated by the first measurement of memory */
    int32_t best[STREAM_ROWS][2]; /* fastest way to read, to copy, of all rows, counted from 1; 0: not known yet */
};

/* What the tasks of one round share. */
typedef struct job {
    const qn_ceiling_loop *loop;
    qn_ceiling_read_fn read;
    qn_ceiling_copy_fn copy;
    char *buffer;
    size_t bytes;
    int64_t tasks;
    uint64_t *sums; /* a cache line a task, so that no loop can be removed */
} job;

static void alu_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    const float sum = j->loop->run(ALU_STEPS);
    memcpy(&j->sums[index * 8], &sum, sizeof sum);
}

static void read_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    j->sums[index * 8] = j->read(j->buffer + (size_t)index * CHUNK_BYTES, CHUNK_BYTES);
}

static void copy_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    char *const from = j->buffer + (size_t)index * CHUNK_BYTES;
    j->copy(from + j->bytes / 2, from, CHUNK_BYTES);
}

static double one_round(job *j, qn_task_fn fn, const qn_exec *exec)
{
    const uint64_t from = qn_clock_ns();
    qn_parallel_for(exec, j->tasks, fn, j);
    return (double)(qn_clock_ns() - from) * 1e-9;
}

/* Seconds of the fastest round, or 0 when the clock stood still. The first one only wakes things up. */
static double best_round(job *j, qn_task_fn fn, const qn_exec *exec)
{
    double best = 0.0;
    const uint64_t start = qn_clock_ns();
    for (int round = 0; round < 3 || qn_clock_ns() - start < MEASURE_NS; round++) {
        const double seconds = one_round(j, fn, exec);
        if (round > 0 && seconds > 0.0 && (best == 0.0 || seconds < best)) {
            best = seconds;
        }
    }
    return best;
}

static int runs_here(const qn_ctx *ctx, qn_isa wanted, qn_isa row)
{
    return row <= wanted && !qn_backend_cpu_row.isa_refusal(ctx, row);
}

static qn_status measure_alu(qn_meter *meter, const char *name, qn_isa isa, double *value, qn_error *error)
{
    const alu_row *row = NULL;
    for (size_t i = 0; i < sizeof alu_rows / sizeof *alu_rows && !row; i++) {
        if (strcmp(alu_rows[i].name, name) == 0 && runs_here(meter->ctx, isa, alu_rows[i].isa)) {
            row = &alu_rows[i];
        }
    }
    QN_FAIL_IF(!row, error, QN_E_UNSUPPORTED, "ceiling %s: this machine or level has no such instruction", name);
    job j = {.loop = row->loop, .tasks = (int64_t)qn_exec_threads(meter->exec) * 4};
    j.sums = qn_calloc(meter->ctx, (size_t)j.tasks, 64);
    QN_FAIL_IF(!j.sums, error, QN_E_MEMORY, "out of memory for a ceiling");
    const double seconds = best_round(&j, alu_task, meter->exec);
    *value = seconds > 0.0 ? row->loop->operations * ALU_STEPS * (double)j.tasks / seconds * 1e-9 : 0.0;
    qn_free(meter->ctx, j.sums);
    return QN_OK;
}

/* Way w of all rows, counted from 1, into the job; 0 when there is none. */
static int take_way(job *j, int copy, int32_t w)
{
    const qn_ceiling_stream *const ways = stream_rows[(w - 1) / QN_CEILING_WAYS].ways;
    j->read = ways->read[(w - 1) % QN_CEILING_WAYS];
    j->copy = ways->copy[(w - 1) % QN_CEILING_WAYS];
    return copy ? j->copy != NULL : j->read != NULL;
}

static qn_status measure_memory(qn_meter *meter, int copy, qn_isa isa, double *value, qn_error *error)
{
    int32_t row = 0;
    while (!runs_here(meter->ctx, isa, stream_rows[row].isa)) {
        row++; /* ends: the scalar level runs everywhere */
    }
    /* wider vectors are not always faster, scalar ones never are */
    const int32_t rows = row + 1 < STREAM_ROWS ? STREAM_ROWS - 1 : STREAM_ROWS;
    if (!meter->buffer) {
        meter->buffer = qn_alloc(meter->ctx, meter->bytes);
        QN_FAIL_IF(!meter->buffer, error, QN_E_MEMORY, "out of memory for a ceiling (%zu bytes)", meter->bytes);
        qn_want_large_pages(meter->buffer, meter->bytes);
        memset(meter->buffer, 1, meter->bytes);
    }
    job j = {.buffer = meter->buffer, .bytes = meter->bytes};
    j.tasks = (int64_t)(meter->bytes / CHUNK_BYTES) / (copy ? 2 : 1);
    j.sums = qn_calloc(meter->ctx, (size_t)j.tasks, 64);
    QN_FAIL_IF(!j.sums, error, QN_E_MEMORY, "out of memory for a ceiling");
    const qn_task_fn fn = copy ? copy_task : read_task;
    int32_t *known = &meter->best[row][copy];
    double best = 0.0;
    if (*known) {
        take_way(&j, copy, *known);
        best = best_round(&j, fn, meter->exec);
    }
    /* every way in turn, so that a slow moment of the machine hits all alike; the first turn is not counted */
    for (int turn = 0, all = *known == 0; all && turn < 4; turn++) {
        for (int32_t w = row * QN_CEILING_WAYS + 1; w <= rows * QN_CEILING_WAYS; w++) {
            const double seconds = take_way(&j, copy, w) ? one_round(&j, fn, meter->exec) : 0.0;
            if (turn > 0 && seconds > 0.0 && (best == 0.0 || seconds < best)) {
                best = seconds;
                *known = w;
            }
        }
    }
    /* a copy moves every byte of its half in and out */
    *value = best > 0.0 ? (double)meter->bytes / best * 1e-9 : 0.0;
    qn_free(meter->ctx, j.sums);
    return QN_OK;
}

size_t qn_meter_advise(int32_t threads, size_t *cache_bytes)
{
    const size_t cache = qn_cpu_last_cache_bytes(threads);
    if (cache_bytes) {
        *cache_bytes = cache;
    }
    const size_t twice = cache < MOST_BYTES / 2 ? 2 * cache : MOST_BYTES;
    return twice < LEAST_BYTES ? LEAST_BYTES : twice;
}

qn_status qn_meter_create(qn_ctx *ctx, const qn_exec *exec, size_t memory_bytes, qn_meter **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_meter_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx, error, QN_E_ARGUMENT, "qn_meter_create: ctx is NULL");
    qn_meter *meter = qn_calloc(ctx, 1, sizeof *meter);
    QN_FAIL_IF(!meter, error, QN_E_MEMORY, "out of memory for a meter");
    const size_t bytes = memory_bytes ? memory_bytes : qn_meter_advise(qn_exec_threads(exec), NULL);
    *meter = (qn_meter){.ctx = ctx, .exec = exec, .bytes = bytes / (2 * CHUNK_BYTES) * (2 * CHUNK_BYTES)};
    if (meter->bytes == 0) {
        meter->bytes = 2 * CHUNK_BYTES;
    }
    *out = meter;
    return QN_OK;
}

void qn_meter_destroy(qn_meter *meter)
{
    if (meter) {
        qn_free(meter->ctx, meter->buffer);
        qn_free(meter->ctx, meter);
    }
}

qn_status qn_meter_measure(qn_meter *meter, const char *name, qn_isa isa, double *value, qn_error *error)
{
    QN_FAIL_IF(!meter || !name || !value, error, QN_E_ARGUMENT, "qn_meter_measure: %s is NULL",
               !meter ? "meter" : (!name ? "name" : "value"));
    *value = 0.0;
    QN_FAIL_IF(isa != QN_ISA_MAX && !qn_isa_name(isa), error, QN_E_ARGUMENT, "isa is %d, which is none", (int)isa);
    if (isa != QN_ISA_MAX) {
        const char *reason = qn_backend_cpu_row.isa_refusal(meter->ctx, isa);
        QN_FAIL_IF(reason, error, QN_E_UNSUPPORTED, "isa %s: %s", qn_isa_name(isa), reason);
    }
    if (strcmp(name, "read") == 0 || strcmp(name, "copy") == 0) {
        return measure_memory(meter, name[0] == 'c', isa, value, error);
    }
    static const char *const others[] = {"fp32_fma", "bf16_dot", "int8_dot", "int16_dot", "bf16_tile", "int8_tile"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(others[i], name) == 0) {
            return measure_alu(meter, name, isa, value, error);
        }
    }
    QN_FAIL(error, QN_E_ARGUMENT,
            "ceiling is '%s', expected read, copy, fp32_fma, bf16_dot, int8_dot, int16_dot, bf16_tile or int8_tile", name);
}

qn_status qn_ceiling_measure(qn_ctx *ctx, const char *name, qn_isa isa, const qn_exec *exec, double *value,
                             qn_error *error)
{
    QN_FAIL_IF(!ctx || !name || !value, error, QN_E_ARGUMENT, "qn_ceiling_measure: %s is NULL",
               !ctx ? "ctx" : (!name ? "name" : "value"));
    *value = 0.0;
    qn_meter *meter = NULL;
    QN_TRY(qn_meter_create(ctx, exec, 0, &meter, error));
    const qn_status status = qn_meter_measure(meter, name, isa, value, error);
    qn_meter_destroy(meter);
    return status;
}

static int multiplies(qn_op op)
{
    return op == QN_OP_SCALED_MM || op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_GROUPED_BLOCK_SCALED_MM ||
           op == QN_OP_NVFP4_MM || op == QN_OP_MXFP4_MM || op == QN_OP_DENSE_MM || op == QN_OP_ATTENTION ||
           op == QN_OP_SCALED_ATTENTION || op == QN_OP_VQ_MM || op == QN_OP_VQ_ATTENTION || op == QN_OP_VQ_ENCODE;
}

const char *qn_kernel_ceiling(const qn_kernel *kernel, const qn_op_desc *desc)
{
    if (kernel->arithmetic || kernel->backend == QN_BACKEND_CUDA || !multiplies(kernel->op)) {
        return kernel->arithmetic;
    }
    if (kernel->op == QN_OP_SCALED_MM && desc->in[QN_SMM_A].format == QN_I8) {
        return kernel->isa >= QN_ISA_AMX ? "int8_tile" : "int8_dot";
    }
    if (kernel->isa < QN_ISA_AVX512BF16) {
        return "fp32_fma";
    }
    return kernel->isa >= QN_ISA_AMX ? "bf16_tile" : "bf16_dot";
}

const char *qn_plan_ceiling(const qn_plan *plan)
{
    return qn_kernel_ceiling(plan->kernel, &plan->desc);
}
