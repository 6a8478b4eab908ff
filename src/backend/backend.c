/* The table of backends, and the one that is only a row: the reference. */
#include "backend/backend.h"

#include <string.h>

#include "base/error.h"
#include "ref/ref.h"
#include "ref/slots.h"

/* ---- reference ---- */

static const char *ref_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)desc;
    return qn_ref_get(kernel->op) ? NULL : "this operator has no reference";
}

static size_t ref_workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)threads;
    qn_op_desc rows = *desc;
    rows.in[0].dims[rows.in[0].ndim == 3 && kernel->op == QN_OP_GROUPED_BLOCK_SCALED_MM ? 1 : 0] = m;
    if (kernel->op == QN_OP_NVFP4_MM) {
        rows.in[QN_NVMM_A].dims[0] = m;
    }
    return qn_ref_scratch_bytes(&rows);
}

static void ref_run(const qn_kernel *kernel, const qn_run_call *call)
{
    qn_ref_get(kernel->op)(call->desc, call->args, call->workspace);
}

#define REF(op_, name_)                                                                                               \
    {                                                                                                                 \
        .name = "qn_" name_ "__ref", .op = (op_), .backend = QN_BACKEND_REF, .isa = QN_ISA_SCALAR,                    \
        .status = "reference", .accepts = ref_accepts, .workspace_bytes = ref_workspace, .run = ref_run               \
    }

static const qn_kernel ref_kernels[] = {
    REF(QN_OP_QUANTIZE_FP8, "quantize_fp8"),
    REF(QN_OP_QUANTIZE_INT8, "quantize_int8"),
    REF(QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4"),
    REF(QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4"),
    REF(QN_OP_DEQUANTIZE, "dequantize"),
    REF(QN_OP_SCALED_MM, "scaled_mm"),
    REF(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm"),
    REF(QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm"),
    REF(QN_OP_NVFP4_MM, "nvfp4_mm"),
    REF(QN_OP_MXFP4_MM, "mxfp4_mm"),
    REF(QN_OP_DENSE_MM, "dense_mm"),
    REF(QN_OP_SILU_MUL_QUANT, "silu_mul_quant"),
    REF(QN_OP_SILU_MUL, "silu_mul"),
    REF(QN_OP_RMSNORM, "rmsnorm"),
    REF(QN_OP_ROPE, "rope"),
    REF(QN_OP_ATTENTION, "attention"),
    REF(QN_OP_SCALED_ATTENTION, "scaled_attention"),
    REF(QN_OP_VQ_DEQUANTIZE, "vq_dequantize"),
    REF(QN_OP_VQ_MM, "vq_mm"),
    REF(QN_OP_VQ_ENCODE, "vq_encode"),
    REF(QN_OP_VQ_ATTENTION, "vq_attention"),
};

static const qn_kernel *ref_kernel_at(int32_t i)
{
    return i >= 0 && (size_t)i < sizeof ref_kernels / sizeof *ref_kernels ? &ref_kernels[i] : NULL;
}

static const char *no_refusal(const qn_ctx *ctx)
{
    (void)ctx;
    return NULL;
}

static const char *no_isa_refusal(const qn_ctx *ctx, qn_isa isa)
{
    (void)ctx;
    (void)isa;
    return NULL;
}

const qn_backend_row qn_backend_ref_row = {.backend = QN_BACKEND_REF,
                                           .name = "ref",
                                           .refusal = no_refusal,
                                           .kernel_at = ref_kernel_at,
                                           .isa_refusal = no_isa_refusal};

/* ---- the table ---- */

const qn_backend_row *qn_backend_at(int32_t i)
{
    static const qn_backend_row *const rows[] = {&qn_backend_cuda_row, &qn_backend_cpu_row, &qn_backend_ref_row};
    return i >= 0 && (size_t)i < sizeof rows / sizeof *rows ? rows[i] : NULL;
}

const qn_backend_row *qn_backend_find(qn_backend backend)
{
    for (int32_t i = 0; qn_backend_at(i); i++) {
        if (qn_backend_at(i)->backend == backend) {
            return qn_backend_at(i);
        }
    }
    return NULL;
}

const char *qn_backend_name(qn_backend backend)
{
    static const char *const names[] = {"auto", "ref", "cpu", "cuda"};
    return (unsigned)backend < sizeof names / sizeof *names ? names[backend] : NULL;
}

qn_status qn_backend_parse(const char *name, qn_backend *out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_backend_parse: out is NULL");
    for (int i = QN_BACKEND_AUTO; name && i <= QN_BACKEND_CUDA; i++) {
        if (strcmp(name, qn_backend_name((qn_backend)i)) == 0) {
            *out = (qn_backend)i;
            return QN_OK;
        }
    }
    QN_FAIL(error, QN_E_ARGUMENT, "backend is '%s', expected auto, ref, cpu or cuda", name ? name : "(null)");
}
