/* The CPU's kernels on coded KV caches: rows of registry_kv.c. */
#ifndef QN_BACKEND_CPU_RUN_KV_H
#define QN_BACKEND_CPU_RUN_KV_H

#include "backend/cpu/run_rows.h"
#include "kernels/common/attention.h"
#include "kernels/common/fit.h"
#include "kernels/common/kv.h"

#define QN_KV_ENCODE_LAYOUT 0x6b76656eu    /* packed codebooks of vq_encode */
#define QN_KV_ATTENTION_LAYOUT 0x6b766174u /* of vq_attention */

typedef struct qn_kv_impl {
    const qn_rows_set *rows;
    const qn_fit_set *fit; /* vq_encode */
    const qn_att_set *att; /* vq_attention */
    const qn_kv_set *kv;
} qn_kv_impl;

const char *qn_kv_accepts(const qn_kernel *kernel, const qn_op_desc *desc);

/* vq_encode: run_vq_encode.c */
size_t qn_vq_encode_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_encode_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_vq_encode_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_encode_run(const qn_kernel *kernel, const qn_run_call *call);

/* vq_attention: run_vq_attention.c */
size_t qn_vq_attention_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_attention_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_vq_attention_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_attention_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
