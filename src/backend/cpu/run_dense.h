/* dense_mm on weights read as they are stored (f16 and the GGUF block formats):
 * what a registry row says beside its name. */
#ifndef QN_BACKEND_CPU_RUN_DENSE_H
#define QN_BACKEND_CPU_RUN_DENSE_H

#include "backend/backend.h"
#include "kernels/common/mm.h"

typedef struct qn_dense_impl {
    const qn_mm_f32_set *set;
    qn_format weight;
    qn_mm_fragment fragment; /* how weight rows are unpacked */
} qn_dense_impl;

const char *qn_dense_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_dense_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_dense_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
