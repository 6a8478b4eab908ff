/* Slot numbers of every operator, in the order of the table in src/op/op_table.c.
 * The reference, the operator layer and the kernels' runners index qn_op_desc.in
 * and qn_args by these; a test compares them with the names of the table. */
#ifndef QN_REF_SLOTS_H
#define QN_REF_SLOTS_H

#include <stdint.h>

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
    QN_NVMM_X_SCALE = 8,

    /* mxfp4_mm */
    QN_MXMM_X = 0,
    QN_MXMM_B = 1,
    QN_MXMM_B_SCALE = 2,
    QN_MXMM_BIAS = 3,
    QN_MXMM_X_SCALE = 4,

    /* dense_mm */
    QN_DMM_X = 0,
    QN_DMM_B = 1,
    QN_DMM_BIAS = 2,

    /* output of every matmul */
    QN_MM_OUT_D = 0,

    /* silu_mul_quant, silu_mul, rmsnorm, rope */
    QN_ACT_X = 0,
    QN_ACT_W = 1,       /* rmsnorm */
    QN_ACT_POS = 1,     /* rope */
    QN_ACT_FACTORS = 2, /* rope */
    QN_ACT_OUT_Q = 0,
    QN_ACT_OUT_Y = 0,
    QN_ACT_OUT_SCALE = 1,
    QN_ACT_OUT_AZP = 2,

    /* attention */
    QN_ATT_Q = 0,
    QN_ATT_K = 1,
    QN_ATT_V = 2,
    QN_ATT_K_SCALE = 3,
    QN_ATT_V_SCALE = 4,
    QN_ATT_K_RECENT = 5,
    QN_ATT_V_RECENT = 6,
    QN_ATT_OUT_O = 0,

    /* tensors of vector-quantised weights: vq_dequantize; in vq_mm each is one later, after x */
    QN_VQ_CODES = 0,
    QN_VQ_CODEBOOKS = 1,
    QN_VQ_SCALES = 2,
    QN_VQ_CODEBOOK_SCALES = 3,
    QN_VQ_QIDXS = 4,
    QN_VQ_SU = 5,
    QN_VQ_SV = 6,
    QN_VQ_WSCALE = 7,
    QN_VQ_SCALE_WH = 8,
    QN_VQ_CODEBOOK_ID = 9,
    QN_VQ_CENTROIDS = 10,
    QN_VQ_RES_CENTROIDS = 11,
    QN_VQ_INDICES = 12,
    QN_VQ_OUTLIER_CENTROIDS = 13,
    QN_VQ_OUTLIER_INDICES = 14,
    QN_VQ_PERM = 15,
    QN_VQ_WEIGHT_SCALE = 16,
    QN_VQ_WEIGHT_BIAS = 17,
    QN_VQ_TENSORS = 18,
    QN_VQ_OUT_W = 0,

    /* vq_mm */
    QN_VQMM_X = 0,
    QN_VQMM_FIRST = 1, /* slot of QN_VQ_CODES */
    QN_VQMM_BIAS = 19,

    /* vq_encode */
    QN_VQE_X = 0,
    QN_VQE_CODEBOOK = 1,
    QN_VQE_OUT_CODES = 0,

    /* vq_attention */
    QN_VQA_Q = 0,
    QN_VQA_K_CODES = 1,
    QN_VQA_V_CODES = 2,
    QN_VQA_K_CODEBOOK = 3,
    QN_VQA_V_CODEBOOK = 4,
    QN_VQA_SEQ_LENS = 5,
    QN_VQA_K_RECENT = 6,
    QN_VQA_V_RECENT = 7,
    QN_VQA_ROPE_FACTORS = 8,
    QN_VQA_PAGES = 9,
    QN_VQA_OUT_O = 0,
    QN_VQA_OUT_LSE = 1
};

/* With a window, queries in blocks of this many positions read the same keys from the recent ones: the query at
 * position n - 1, which sees n keys, those from this key on. So a block of queries shares what it decodes. */
#define QN_WINDOW_BLOCK 32

static inline int64_t qn_window_first(int64_t n, int64_t window)
{
    const int64_t first = n > 0 ? (n - 1) / QN_WINDOW_BLOCK * QN_WINDOW_BLOCK - window : 0;
    return first > 0 ? first : 0;
}

#endif
