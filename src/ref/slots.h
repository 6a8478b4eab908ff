/* Slot numbers of every operator, in the order of the table in src/op/op_table.c.
 * The reference, the operator layer and the kernels' runners index qn_op_desc.in
 * and qn_args by these; a test compares them with the names of the table. */
#ifndef QN_REF_SLOTS_H
#define QN_REF_SLOTS_H

enum {
    /* quantize_fp8, quantize_int8 (azp: int8 only) */
    QN_QUANT_X = 0,
    QN_QUANT_SCALE = 1,
    QN_QUANT_AZP = 2,
    QN_QUANT_OUT_Q = 0,
    QN_QUANT_OUT_SCALE = 1,
    QN_QUANT_OUT_AZP = 2,

    /* quantize_nvfp4, quantize_mxfp4 (global scale: nvfp4 only) */
    QN_FP4_X = 0,
    QN_FP4_GLOBAL = 1,
    QN_FP4_OUT_Q = 0,
    QN_FP4_OUT_SCALE = 1,
    QN_FP4_OUT_GLOBAL = 2,

    /* dequantize */
    QN_DEQ_Q = 0,
    QN_DEQ_SCALE = 1,
    QN_DEQ_AZP = 2,
    QN_DEQ_GLOBAL = 3,
    QN_DEQ_OUT_X = 0,

    /* scaled_mm */
    QN_SMM_A = 0,
    QN_SMM_B = 1,
    QN_SMM_SCALE_A = 2,
    QN_SMM_SCALE_B = 3,
    QN_SMM_BIAS = 4,
    QN_SMM_AZP_ADJ = 5,
    QN_SMM_AZP = 6,

    /* block_scaled_mm, grouped_block_scaled_mm (offsets, masked_m: grouped only) */
    QN_BMM_A = 0,
    QN_BMM_SCALE_A = 1,
    QN_BMM_B = 2,
    QN_BMM_SCALE_B = 3,
    QN_BMM_OFFSETS = 4,
    QN_BMM_MASKED_M = 5,

    /* nvfp4_mm */
    QN_NVMM_X = 0,
    QN_NVMM_A = 1,
    QN_NVMM_A_SCALE = 2,
    QN_NVMM_A_GLOBAL = 3,
    QN_NVMM_B = 4,
    QN_NVMM_B_SCALE = 5,
    QN_NVMM_B_GLOBAL = 6,
    QN_NVMM_BIAS = 7,

    /* mxfp4_mm */
    QN_MXMM_X = 0,
    QN_MXMM_B = 1,
    QN_MXMM_B_SCALE = 2,
    QN_MXMM_BIAS = 3,

    /* dense_mm */
    QN_DMM_X = 0,
    QN_DMM_B = 1,
    QN_DMM_BIAS = 2,

    /* output of every matmul */
    QN_MM_OUT_D = 0,

    /* silu_mul_quant, silu_mul, rmsnorm, rope */
    QN_ACT_X = 0,
    QN_ACT_W = 1,   /* rmsnorm */
    QN_ACT_POS = 1, /* rope */
    QN_ACT_OUT_Q = 0,
    QN_ACT_OUT_Y = 0,
    QN_ACT_OUT_SCALE = 1,
    QN_ACT_OUT_AZP = 2,

    /* attention */
    QN_ATT_Q = 0,
    QN_ATT_K = 1,
    QN_ATT_V = 2,
    QN_ATT_OUT_O = 0
};

#endif
