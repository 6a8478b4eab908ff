/* vq_dequantize on the CPU: what the registry names. */
#ifndef QN_BACKEND_CPU_RUN_VQ_DEQUANTIZE_H
#define QN_BACKEND_CPU_RUN_VQ_DEQUANTIZE_H

#include "backend/backend.h"

const char *qn_vq_dequantize_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_vq_dequantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_dequantize_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
