/* vq_mm of aqlm with 8-bit codes by tables of partial sums (kernels/common/vq.h). */
#ifndef QN_BACKEND_CPU_RUN_VQ_SUMS_H
#define QN_BACKEND_CPU_RUN_VQ_SUMS_H

#include "backend/backend.h"
#include "kernels/common/mm.h"
#include "kernels/common/vq.h"

#define QN_VQ_SUMS_LAYOUT 293u

/* A way to multiply rows of x, up to `rows` a call, `wide` of them beside each other. Clocks that a (group, codebook)
 * of `each` rows takes, as measured: for its table, more where slabs are not coarse, for a row of w, and what an
 * element of the vector adds. */
typedef struct qn_vq_sums_way {
    const qn_vq_sums_fn *run;
    int64_t wide, rows, each;
    double table, table_fine, table_element, row, row_element;
} qn_vq_sums_way;

typedef struct qn_vq_sums_impl {
    const qn_vq_sums_set *set;
    /* Up to one that does nothing; the first takes any weights. Of processors that take 512 bits in two halves others,
     * NULL: the same. */
    const qn_vq_sums_way *ways, *ways_halved;
    int coarse; /* slabs are coarse where rows allow it */
    const qn_mm_f32_set *parts;
} qn_vq_sums_impl;

const char *qn_vq_sums_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_vq_sums_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_sums_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
qn_status qn_vq_sums_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                          qn_error *error);
size_t qn_vq_sums_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_sums_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
