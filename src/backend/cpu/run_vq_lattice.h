/* vq_mm of quip_e8p by exact integers (kernels/common/vq.h, "Lattice"). */
#ifndef QN_BACKEND_CPU_RUN_VQ_LATTICE_H
#define QN_BACKEND_CPU_RUN_VQ_LATTICE_H

#include "backend/backend.h"
#include "kernels/common/mm.h"
#include "kernels/common/vq.h"

#define QN_VQ_LATTICE_LAYOUT 295u

typedef struct qn_vq_lattice_impl {
    const qn_vq_lattice_set *set;
    const qn_vq_lattice_rows *rows;
    const qn_mm_f32_set *parts;
} qn_vq_lattice_impl;

const char *qn_vq_lattice_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_vq_lattice_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_lattice_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_vq_lattice_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_lattice_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
