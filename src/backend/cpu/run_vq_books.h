/* vq_mm of every format through tables of floats: the portable path. */
#ifndef QN_BACKEND_CPU_RUN_VQ_BOOKS_H
#define QN_BACKEND_CPU_RUN_VQ_BOOKS_H

#include "backend/backend.h"
#include "kernels/common/mm.h"
#include "kernels/common/vq.h"

#define QN_VQ_BOOKS_LAYOUT 294u

typedef struct qn_vq_books_impl {
    const qn_vq_books_set *set;
    const qn_mm_f32_set *parts;
    qn_vq_format format;
} qn_vq_books_impl;

const char *qn_vq_books_accepts(const qn_kernel *kernel, const qn_op_desc *desc);
size_t qn_vq_books_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc);
void qn_vq_books_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
size_t qn_vq_books_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
void qn_vq_books_run(const qn_kernel *kernel, const qn_run_call *call);

#endif
