/* Registry of dense_mm on weights read as they are stored. In names, fp stands for
 * f32, f16 or bf16: activations are widened to f32 first and outputs rounded
 * once, so one kernel serves all three. Higher levels have packed panels for the GGUF block formats. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_dense.h"

#define TILE_scalar "2x2"
#define TILE_avx2 "4x2"
#define TILE_avx512 "4x4"
#define LEVEL_scalar QN_ISA_SCALAR, .mr = 2, .nr = 2
#define LEVEL_avx2 QN_ISA_AVX2, .mr = 4, .nr = 2
#define LEVEL_avx512 QN_ISA_AVX512, .mr = 4, .nr = 4

#define ROW(contract, isa_, weight_, fragment_)                                                                    \
    {                                                                                                              \
        .name = "qn_" contract "__" #isa_ "_" TILE_##isa_, .op = QN_OP_DENSE_MM, .backend = QN_BACKEND_CPU,        \
        .isa = LEVEL_##isa_, .status = "tested", .accepts = qn_dense_accepts,                                      \
        .workspace_bytes = qn_dense_workspace_bytes, .run = qn_dense_run,                                          \
        .impl = &(const qn_dense_impl){.set = &qn_mm_f32__##isa_, .weight = (weight_), .fragment = (fragment_)}    \
    }

#define LEVELS(contract, weight, fragment)       \
    ROW(contract, avx512, weight, fragment),     \
    ROW(contract, avx2, weight, fragment),       \
    ROW(contract, scalar, weight, fragment)

static const qn_kernel kernels[] = {
    LEVELS("dense_mm_fp_f16_fp", QN_F16, QN_MM_FRAG_F16),
    ROW("dense_mm_fp_q4_0_fp", scalar, QN_Q4_0, QN_MM_ANY),
    ROW("dense_mm_fp_q4_1_fp", scalar, QN_Q4_1, QN_MM_ANY),
    ROW("dense_mm_fp_q5_0_fp", scalar, QN_Q5_0, QN_MM_ANY),
    ROW("dense_mm_fp_q5_1_fp", scalar, QN_Q5_1, QN_MM_ANY),
    ROW("dense_mm_fp_q8_0_fp", scalar, QN_Q8_0, QN_MM_ANY),
    ROW("dense_mm_fp_q2_k_fp", scalar, QN_Q2_K, QN_MM_ANY),
    ROW("dense_mm_fp_q3_k_fp", scalar, QN_Q3_K, QN_MM_ANY),
    ROW("dense_mm_fp_q4_k_fp", scalar, QN_Q4_K, QN_MM_ANY),
    ROW("dense_mm_fp_q5_k_fp", scalar, QN_Q5_K, QN_MM_ANY),
    ROW("dense_mm_fp_q6_k_fp", scalar, QN_Q6_K, QN_MM_ANY),
    ROW("dense_mm_fp_iq4_nl_fp", scalar, QN_IQ4_NL, QN_MM_ANY),
    ROW("dense_mm_fp_iq4_xs_fp", scalar, QN_IQ4_XS, QN_MM_ANY),
    ROW("dense_mm_fp_i8_k_fp", scalar, QN_I8_K, QN_MM_ANY),
};

const qn_cpu_family qn_cpu_dense_family = {kernels, sizeof kernels / sizeof *kernels};
