/* Matmul kernels of the CPU backend: what a registry row says beside its name. */
#ifndef QN_BACKEND_CPU_RUN_MM_H
#define QN_BACKEND_CPU_RUN_MM_H

#include "backend/backend.h"
#include "kernels/common/mm.h"

typedef struct qn_mm_impl {
    const qn_mm_f32_set *set; /* its finish serves the int8 kernels too */
    const qn_mm_i8_set *i8;   /* not NULL: exact int8 tiles */
    qn_format weight;         /* format of the weight slot */
    qn_mm_fragment fragment;  /* how weight rows are unpacked */
} qn_mm_impl;

const char *qn_mm_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_mm_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_mm_run(const qn_kernel *kernel, const qn_run_call *call);

/* Packed weights of the int8 kernels: rows padded to 64, column sums, scales, bias, azp_adj. */
#define QN_PACK_I8_ROWS 1u
size_t qn_mm_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_mm_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);

#endif
