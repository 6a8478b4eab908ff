/* Matmuls on packed panels: what a registry row says beside its name. */
#ifndef QN_BACKEND_CPU_RUN_PANEL_H
#define QN_BACKEND_CPU_RUN_PANEL_H

#include "backend/backend.h"
#include "backend/cpu/panel_pack.h"
#include "kernels/common/mm.h"

typedef struct qn_panel_impl {
    const qn_panel_set *set;
    const qn_mm_f32_set *parts; /* decodes rows of a, splits them, writes outputs */
    qn_panel_code code;
    qn_format weight; /* format of the weight slot */
} qn_panel_impl;

const char *qn_panel_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_panel_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_panel_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_panel_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
qn_status qn_panel_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                        qn_error *error);
int qn_panel_takes_next(const qn_kernel *kernel, const qn_op_desc *desc, const qn_kernel *next,
                        const qn_op_desc *next_desc);
void qn_panel_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
