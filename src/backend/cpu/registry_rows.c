/* Registry of the row-wise kernels. fp stands for f32, f16 or bf16, q8 for any
 * 8-bit type the operator makes, q for any code; 1x16: one row, a vector of 16
 * (8, 4) at a time. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_rows.h"

#define ROW(runner, op_, contract, isa_, level_, nr_text, nr_, other_)                                             \
    {                                                                                                              \
        .name = "qn_" contract "__" #isa_ "_1x" nr_text, .op = (op_), .backend = QN_BACKEND_CPU, .isa = (level_),  \
        .mr = 1, .nr = (nr_), .status = "tested", .accepts = qn_rows_accepts,                                    \
        .workspace_bytes = runner##_workspace_bytes, .run = runner##_run, .open = qn_rows_open,                    \
        .impl = &(const qn_rows_impl){.set = &qn_rows__##isa_, .other = (other_)}                                  \
    }

#define LEVELS(runner, op, contract)                                                       \
    ROW(runner, op, contract, avx512, QN_ISA_AVX512, "16", 16, &qn_rows_other__avx512),    \
    ROW(runner, op, contract, avx2, QN_ISA_AVX2, "8", 8, NULL),                            \
    ROW(runner, op, contract, scalar, QN_ISA_SCALAR, "4", 4, NULL)

static const qn_kernel kernels[] = {
    LEVELS(qn_quantize, QN_OP_QUANTIZE_FP8, "quantize_fp8_fp_q8"),
    LEVELS(qn_quantize, QN_OP_QUANTIZE_INT8, "quantize_int8_fp_q8"),
    LEVELS(qn_quantize, QN_OP_SILU_MUL_QUANT, "silu_mul_quant_fp_q8"),
    LEVELS(qn_fp4, QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4_fp_nvfp4"),
    LEVELS(qn_fp4, QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4_fp_mxfp4"),
    LEVELS(qn_dequantize, QN_OP_DEQUANTIZE, "dequantize_q_f32"),
    LEVELS(qn_rows, QN_OP_SILU_MUL, "silu_mul_fp_fp"),
    LEVELS(qn_rows, QN_OP_RMSNORM, "rmsnorm_fp_fp"),
    LEVELS(qn_rows, QN_OP_ROPE, "rope_fp_f32"),
};

const qn_cpu_family qn_cpu_rows_family = {kernels, sizeof kernels / sizeof *kernels};
