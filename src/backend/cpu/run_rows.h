/* Row-wise kernels of the CPU backend. */
#ifndef QN_BACKEND_CPU_RUN_ROWS_H
#define QN_BACKEND_CPU_RUN_ROWS_H

#include "backend/backend.h"
#include "kernels/common/rows.h"

typedef struct qn_rows_impl {
    const qn_rows_set *set;
    const qn_mm_f32_set *mm; /* its fragments decode the inputs */
} qn_rows_impl;

const char *qn_rows_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_rows_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_rows_run(const qn_kernel *kernel, const qn_run_call *call);

/* Rows of the reference side by side, for operators without parts of their own. */
const char *qn_slices_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_slices_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_slices_run(const qn_kernel *kernel, const qn_run_call *call);

/* The reference on all rows at once, on one thread: scales shared by rows. Accepts everything. */
const char *qn_whole_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_whole_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_whole_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
