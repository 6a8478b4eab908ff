/* Registry of the float matmul kernels. In names, fp stands for f32, f16 or
 * bf16: activations are widened to f32 first and outputs rounded once, so one
 * kernel serves all three. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_mm.h"

#define TILE_scalar "2x2"
#define TILE_avx2 "4x2"
#define TILE_avx512 "4x4"
#define LEVEL_scalar QN_ISA_SCALAR, .mr = 2, .nr = 2
#define LEVEL_avx2 QN_ISA_AVX2, .mr = 4, .nr = 2
#define LEVEL_avx512 QN_ISA_AVX512, .mr = 4, .nr = 4

#define ROW(op_, contract, isa_, weight_, fragment_)                                                               \
    {                                                                                                              \
        .name = "qn_" contract "__" #isa_ "_" TILE_##isa_, .op = (op_), .backend = QN_BACKEND_CPU,                 \
        .isa = LEVEL_##isa_, .status = "tested", .accepts = qn_mm_accepts,                                       \
        .workspace_bytes = qn_mm_workspace_bytes, .run = qn_mm_run,                                                \
        .impl = &(const qn_mm_impl){.set = &qn_mm_f32__##isa_, .weight = (weight_), .fragment = (fragment_)}       \
    }

#define LEVELS(op, contract, weight, fragment)       \
    ROW(op, contract, avx512, weight, fragment),     \
    ROW(op, contract, avx2, weight, fragment),       \
    ROW(op, contract, scalar, weight, fragment)

/* int8: the sums are exact, the epilogue is that of the float kernels. */
#define ROW_I8(isa_, level_, tile_, mr_, nr_, set_)                                                                \
    {                                                                                                              \
        .name = "qn_scaled_mm_i8_i8_fp__" #isa_ "_" tile_, .op = QN_OP_SCALED_MM, .backend = QN_BACKEND_CPU,       \
        .isa = (level_), .mr = (mr_), .nr = (nr_), .pack_layout = QN_PACK_I8_ROWS, .status = "tested",           \
        .accepts = qn_mm_accepts, .pack_bytes = qn_mm_pack_bytes, .pack = qn_mm_pack,                              \
        .workspace_bytes = qn_mm_workspace_bytes, .run = qn_mm_run,                                                \
        .impl = &(const qn_mm_impl){.set = &qn_mm_f32__##set_, .i8 = &qn_mm_i8__##isa_, .weight = QN_I8}           \
    }

static const qn_kernel kernels[] = {
    ROW_I8(avx512vnni, QN_ISA_AVX512VNNI, "4x4", 4, 4, avx512),
    ROW_I8(avx512, QN_ISA_AVX512, "4x4", 4, 4, avx512),
    ROW_I8(avx2, QN_ISA_AVX2, "4x2", 4, 2, avx2),
    ROW_I8(scalar, QN_ISA_SCALAR, "2x2", 2, 2, scalar),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_f32_fp", QN_F32, QN_MM_FRAG_F32),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_f16_fp", QN_F16, QN_MM_FRAG_F16),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_bf16_fp", QN_BF16, QN_MM_FRAG_BF16),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q4_0_fp", QN_Q4_0, QN_MM_FRAG_Q4_0),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q4_1_fp", QN_Q4_1, QN_MM_FRAG_Q4_1),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q5_0_fp", QN_Q5_0, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q5_1_fp", QN_Q5_1, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q8_0_fp", QN_Q8_0, QN_MM_FRAG_Q8_0),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q2_k_fp", QN_Q2_K, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q3_k_fp", QN_Q3_K, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q4_k_fp", QN_Q4_K, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q5_k_fp", QN_Q5_K, QN_MM_ANY),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_q6_k_fp", QN_Q6_K, QN_MM_ANY),
    LEVELS(QN_OP_SCALED_MM, "scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_MM_FRAG_E4M3),
    LEVELS(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_MM_FRAG_E4M3),
    LEVELS(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm_e4m3_e5m2_fp", QN_F8_E5M2, QN_MM_FRAG_E5M2),
    LEVELS(QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_MM_FRAG_E4M3),
    LEVELS(QN_OP_NVFP4_MM, "nvfp4_mm_fp_nvfp4_fp", QN_U8, QN_MM_FRAG_NVFP4),
    LEVELS(QN_OP_MXFP4_MM, "mxfp4_mm_fp_mxfp4_fp", QN_U8, QN_MM_FRAG_MXFP4),
};

const qn_cpu_family qn_cpu_mm_family = {kernels, sizeof kernels / sizeof *kernels};
