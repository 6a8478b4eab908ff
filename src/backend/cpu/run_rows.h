/* Row-wise kernels of the CPU backend: one runner a group of operators, and what they share.
 *
 * A task is a run of rows of about TASK bytes, whatever the number of threads:
 * little work stays on the calling thread. Outputs too large for the caches are
 * made in the thread's scratch and copied past them. */
#ifndef QN_BACKEND_CPU_RUN_ROWS_H
#define QN_BACKEND_CPU_RUN_ROWS_H

#include "backend/backend.h"
#include "base/checked.h"
#include "format/format.h"
#include "kernels/common/rows.h"

#define QN_ROWS_TASK_BYTES 65536
#define QN_ROWS_FAR_TASK 16
#define QN_ROWS_FAR_TASKS 16                     /* a thread, at least, of those */
#define QN_ROWS_AHEAD_BYTES 8192                 /* fetched before a piece's end */
#define QN_ROWS_STREAM_BYTES ((int64_t)16 << 20) /* outputs from here on leave the caches alone */

typedef struct qn_rows_impl {
    const qn_rows_set *set;
    const qn_rows_set *other; /* of processors that are not Intel's; NULL: the same */
} qn_rows_impl;

/* A plan's state: the set of the processor. */
qn_status qn_rows_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                       qn_error *error);

static inline const qn_rows_set *qn_rows_set_of(const qn_kernel *kernel, const void *state)
{
    return state ? state : ((const qn_rows_impl *)kernel->impl)->set;
}

/* Kernels that take every case of their operators. */
const char *qn_rows_accepts(const qn_kernel *kernel, const qn_op_desc *desc);

/* silu_mul, rmsnorm, rope: run_rows.c */
size_t qn_rows_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_rows_run(const qn_kernel *kernel, const qn_run_call *call);

/* quantize_fp8, quantize_int8, silu_mul_quant: run_quantize.c */
size_t qn_quantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_quantize_run(const qn_kernel *kernel, const qn_run_call *call);

/* silu_mul_quant of silu's values, f32 rows one after the other, as its own silu gives them. */
void qn_quantize_silu(const qn_run_next *next, const float *values, void *workspace, const qn_exec *exec);

/* quantize_nvfp4, quantize_mxfp4: run_fp4.c */
size_t qn_fp4_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_fp4_run(const qn_kernel *kernel, const qn_run_call *call);

/* dequantize: run_dequantize.c */
size_t qn_dequantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_dequantize_run(const qn_kernel *kernel, const qn_run_call *call);

static inline qn_mm_real qn_rows_real(qn_format format)
{
    return format == QN_F32 ? QN_MM_F32 : (format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
}

static inline int64_t qn_rows_real_bytes(qn_mm_real real)
{
    return real == QN_MM_F32 ? 4 : 2;
}

/* Rows of a task. */
static inline int64_t qn_rows_per_task(int64_t row_bytes)
{
    return qn_max_i64(1, qn_min_i64(1024, QN_ROWS_TASK_BYTES / qn_max_i64(1, row_bytes)));
}

/* The same of large outputs: up to FAR_TASK times as many, as a thread that takes a task waits for all that it has
 * stored past the caches. */
static inline int64_t qn_rows_per_far_task(int64_t per_task, int64_t rows, int32_t threads)
{
    return qn_max_i64(per_task, qn_min_i64(per_task * QN_ROWS_FAR_TASK, rows / (QN_ROWS_FAR_TASKS * threads)));
}

/* From byte c of row m to the byte that is read `distance` bytes later, rows of row_bytes one after the other; 0: none.
 */
static inline int64_t qn_rows_ahead(int64_t m, int64_t rows, int64_t stride, int64_t row_bytes, int64_t c,
                                    int64_t distance)
{
    const int64_t down = (c + distance) / qn_max_i64(1, row_bytes);
    return m + down < rows ? distance + down * (stride - row_bytes) : 0;
}

/* Whether codes may go past the caches without being copied. */
static inline int qn_rows_aligned(const void *codes)
{
    return (uintptr_t)codes % QN_ROWS_PAST_BYTES == 0;
}

/* The range of both. */
static inline void qn_rows_range_join(qn_rows_range *a, const qn_rows_range *b)
{
    a->low = b->low < a->low ? b->low : a->low;
    a->high = b->high > a->high ? b->high : a->high;
    a->nan |= b->nan;
}

#endif
