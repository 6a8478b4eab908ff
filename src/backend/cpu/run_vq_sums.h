/* vq_mm of aqlm with 8-bit codes by tables of partial sums (kernels/common/vq.h). */
#ifndef QN_BACKEND_CPU_RUN_VQ_SUMS_H
#define QN_BACKEND_CPU_RUN_VQ_SUMS_H

#include "backend/backend.h"
#include "kernels/common/mm.h"
#include "kernels/common/vq.h"

#define QN_VQ_SUMS_LAYOUT 293u

/* Clocks a (group, codebook) of some rows of x, measured: an element of the vector, always, a row of w. */
typedef struct qn_vq_sums_cost {
    double element, table, row;
} qn_vq_sums_cost;

typedef struct qn_vq_sums_impl {
    const qn_vq_sums_fn *one; /* row of x, or some one by one */
    const qn_vq_sums_set *set;
    qn_vq_sums_cost cost_one, cost_side;
    double cost_many; /* an element of the vector and one more, a row of w */
    int coarse;       /* slabs are coarse where rows allow it */
    const qn_mm_f32_set *parts;
} qn_vq_sums_impl;

const char *qn_vq_sums_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_vq_sums_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_sums_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_vq_sums_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_sums_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
