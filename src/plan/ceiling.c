/* qn_ceiling_measure: what this machine reaches with these threads, so that
 * every speed can be shown beside its roofline. Memory is measured on buffers
 * far beyond the caches, arithmetic on loops that stay in registers
 * (kernels/cpu/<isa>/ceiling_<isa>.c). The best of several rounds counts. */
#include <string.h>

#include "backend/backend.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/error.h"
#include "kernels/common/ceiling.h"

#define MEASURE_NS UINT64_C(250000000)
#define BUFFER_BYTES ((size_t)192 << 20)
#define CHUNK_BYTES ((size_t)1 << 20)
#define ALU_STEPS 200000

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
    {"bf16_dot", QN_ISA_AVX512BF16, &qn_ceiling_bf16__avx512bf16},
    {"int8_tile", QN_ISA_AMX, &qn_ceiling_int8__amx},
    {"bf16_tile", QN_ISA_AMX, &qn_ceiling_bf16__amx},
};

typedef struct job {
    const alu_row *row;
    char *buffer;  /* memory: BUFFER_BYTES */
    int64_t tasks;
    uint64_t *sums; /* a cache line a task, so that reads are not removed */
} job;

static void alu_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    const float sum = j->row->loop->run(ALU_STEPS);
    memcpy(&j->sums[index * 8], &sum, sizeof sum);
}

static void read_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    const uint64_t *p = (const uint64_t *)(const void *)(j->buffer + (size_t)index * CHUNK_BYTES);
    uint64_t s[8] = {0};
    for (size_t i = 0; i < CHUNK_BYTES / 8; i += 8) {
        for (int l = 0; l < 8; l++) {
            s[l] ^= p[i + (size_t)l];
        }
    }
    j->sums[index * 8] = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

static void copy_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    job *j = user;
    char *const from = j->buffer + (size_t)index * CHUNK_BYTES;
    memcpy(from + BUFFER_BYTES / 2, from, CHUNK_BYTES);
}

/* Seconds of the fastest round, or 0 when the clock stood still. */
static double best_round(job *j, qn_task_fn fn, const qn_exec *exec)
{
    double best = 0.0;
    const uint64_t start = qn_clock_ns();
    for (int round = 0; round < 2 || qn_clock_ns() - start < MEASURE_NS; round++) {
        const uint64_t from = qn_clock_ns();
        qn_parallel_for(exec, j->tasks, fn, j);
        const double seconds = (double)(qn_clock_ns() - from) * 1e-9;
        if (round > 0 && seconds > 0.0 && (best == 0.0 || seconds < best)) {
            best = seconds;
        }
    }
    return best;
}

static qn_status measure_alu(qn_ctx *ctx, const char *name, qn_isa isa, const qn_exec *exec, double *value,
                             qn_error *error)
{
    const alu_row *row = NULL;
    for (size_t i = 0; i < sizeof alu_rows / sizeof *alu_rows && !row; i++) {
        const int fits = isa == QN_ISA_MAX || alu_rows[i].isa <= isa;
        if (strcmp(alu_rows[i].name, name) == 0 && fits && !qn_backend_cpu_row.isa_refusal(ctx, alu_rows[i].isa)) {
            row = &alu_rows[i];
        }
    }
    QN_FAIL_IF(!row, error, QN_E_UNSUPPORTED, "ceiling %s: this machine or level has no such instruction", name);
    job j = {.row = row, .tasks = (int64_t)qn_exec_threads(exec) * 4};
    j.sums = qn_calloc(ctx, (size_t)j.tasks, 64);
    QN_FAIL_IF(!j.sums, error, QN_E_MEMORY, "out of memory for a ceiling");
    const double seconds = best_round(&j, alu_task, exec);
    *value = seconds > 0.0 ? row->loop->operations * ALU_STEPS * (double)j.tasks / seconds * 1e-9 : 0.0;
    qn_free(ctx, j.sums);
    return QN_OK;
}

static qn_status measure_memory(qn_ctx *ctx, int copy, const qn_exec *exec, double *value, qn_error *error)
{
    job j = {.tasks = (int64_t)(BUFFER_BYTES / CHUNK_BYTES) / (copy ? 2 : 1)};
    qn_status status = QN_OK;
    j.buffer = qn_alloc(ctx, BUFFER_BYTES);
    j.sums = qn_calloc(ctx, (size_t)j.tasks, 64);
    if (!j.buffer || !j.sums) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for a ceiling (%zu bytes)", BUFFER_BYTES);
    } else {
        memset(j.buffer, 1, BUFFER_BYTES);
        const double seconds = best_round(&j, copy ? copy_task : read_task, exec);
        /* a copy moves every byte twice */
        *value = seconds > 0.0 ? (double)BUFFER_BYTES / seconds * 1e-9 : 0.0;
    }
    qn_free(ctx, j.sums);
    qn_free(ctx, j.buffer);
    return status;
}

qn_status qn_ceiling_measure(qn_ctx *ctx, const char *name, qn_isa isa, const qn_exec *exec, double *value,
                             qn_error *error)
{
    QN_FAIL_IF(!ctx || !name || !value, error, QN_E_ARGUMENT, "qn_ceiling_measure: %s is NULL",
               !ctx ? "ctx" : (!name ? "name" : "value"));
    *value = 0.0;
    QN_FAIL_IF(isa != QN_ISA_MAX && !qn_isa_name(isa), error, QN_E_ARGUMENT, "isa is %d, which is none", (int)isa);
    if (isa != QN_ISA_MAX) {
        const char *reason = qn_backend_cpu_row.isa_refusal(ctx, isa);
        QN_FAIL_IF(reason, error, QN_E_UNSUPPORTED, "isa %s: %s", qn_isa_name(isa), reason);
    }
    if (strcmp(name, "read") == 0 || strcmp(name, "copy") == 0) {
        return measure_memory(ctx, name[0] == 'c', exec, value, error);
    }
    for (size_t i = 0; i < sizeof alu_rows / sizeof *alu_rows; i++) {
        if (strcmp(alu_rows[i].name, name) == 0) {
            return measure_alu(ctx, name, isa, exec, value, error);
        }
    }
    QN_FAIL(error, QN_E_ARGUMENT, "ceiling is '%s', expected read, copy, fp32_fma, bf16_dot or int8_dot", name);
}
