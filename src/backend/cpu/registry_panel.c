/* Registry of the matmul kernels on packed panels. In names, fp stands for f32,
 * f16 or bf16: outputs are rounded once from f32. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_panel.h"

/* A level: its place in the order, processors it suits, and the level whose row decoders and epilogue it uses. */
#define LEVEL_amx QN_ISA_AMX
#define LEVEL_avx512bf16 QN_ISA_AVX512BF16
#define LEVEL_avx512vnni QN_ISA_AVX512VNNI
#define LEVEL_avx512 QN_ISA_AVX512
#define LEVEL_avx2 QN_ISA_AVX2
#define LEVEL_scalar QN_ISA_SCALAR
#define SUITS_amx QN_SUITS_ALL
#define SUITS_avx512bf16 QN_SUITS_FAST_BF16_DOTS
#define SUITS_avx512vnni QN_SUITS_ALL
#define SUITS_avx512 QN_SUITS_ALL
#define SUITS_avx2 QN_SUITS_ALL
#define SUITS_scalar QN_SUITS_ALL
#define PARTS_amx qn_mm_f32__avx512
#define PARTS_avx512bf16 qn_mm_f32__avx512
#define PARTS_avx512vnni qn_mm_f32__avx512
#define PARTS_avx512 qn_mm_f32__avx512
#define PARTS_avx2 qn_mm_f32__avx2
#define PARTS_scalar qn_mm_f32__scalar

#define ROW(op_, contract, isa_, mr_, nr_, weight_, code_)                                                         \
    {                                                                                                              \
        .name = "qn_" contract "__" #isa_ "_" #mr_ "x" #nr_, .op = (op_), .backend = QN_BACKEND_CPU,               \
        .isa = LEVEL_##isa_, .suits = SUITS_##isa_, .mr = (mr_), .nr = (nr_),                                      \
        .pack_layout = QN_PANEL_LAYOUT_ID(code_),                                                                  \
        .status = "tested", .accepts = qn_panel_accepts, .pack_bytes = qn_panel_pack_bytes, .pack = qn_panel_pack, \
        .workspace_bytes = qn_panel_workspace_bytes, .open = qn_panel_open, .takes_next = qn_panel_takes_next,     \
        .run = qn_panel_run,                                                                                       \
        .impl = &(const qn_panel_impl){.set = &qn_panel__##isa_, .parts = &PARTS_##isa_, .code = (code_),          \
                                       .weight = (weight_)}                                                        \
    }

#define LEVELS(op, contract, weight, code)               \
    ROW(op, contract, amx, 32, 32, weight, code),        \
    ROW(op, contract, avx512bf16, 6, 64, weight, code),  \
    ROW(op, contract, avx512, 6, 64, weight, code),      \
    ROW(op, contract, avx2, 6, 16, weight, code),        \
    ROW(op, contract, scalar, 2, 16, weight, code)

#define LEVELS_F32(op, contract, weight, code)           \
    ROW(op, contract, avx512, 6, 64, weight, code),      \
    ROW(op, contract, avx2, 6, 16, weight, code),        \
    ROW(op, contract, scalar, 2, 16, weight, code)

#define LEVELS_I8(op, contract, weight, code)            \
    ROW(op, contract, amx, 32, 32, weight, code),        \
    ROW(op, contract, avx512vnni, 12, 32, weight, code), \
    ROW(op, contract, avx512, 6, 64, weight, code),      \
    ROW(op, contract, avx2, 6, 16, weight, code),        \
    ROW(op, contract, scalar, 2, 16, weight, code)

/* Codes whose rows are digits have sets of their own. */
#define ROW_DIGITS(op_, contract, set_, isa_, mr_, sums_, weight_, code_)                                          \
    {                                                                                                              \
        .name = "qn_" contract "__" #isa_ "_" #mr_ "x16", .op = (op_), .backend = QN_BACKEND_CPU,                  \
        .isa = LEVEL_##isa_, .mr = (mr_), .nr = 16, .pack_layout = QN_PANEL_LAYOUT_ID(code_),                      \
        .status = "tested", .arithmetic = (sums_), .accepts = qn_panel_accepts,                                    \
        .pack_bytes = qn_panel_pack_bytes, .pack = qn_panel_pack,                                                  \
        .workspace_bytes = qn_panel_workspace_bytes, .open = qn_panel_open, .takes_next = qn_panel_takes_next,     \
        .run = qn_panel_run,                                                                                       \
        .impl = &(const qn_panel_impl){.set = &qn_##set_##__##isa_, .parts = &PARTS_##isa_, .code = (code_),       \
                                       .weight = (weight_)}                                                        \
    }

/* Rows of integers (W4A8, W4A4) and, at avx512vnni, of bf16 have kernels of their own. */
#define LEVELS_FP4(op, contract, name, weight, code)                                            \
    ROW(op, contract, amx, 32, 32, weight, code),                                               \
    ROW(op, contract, avx512bf16, 6, 64, weight, code),                                         \
    ROW_DIGITS(op, name "_mm_i8_" name "_fp", bytes, avx512vnni, 12, "int8_dot", weight, code), \
    ROW_DIGITS(op, name "_mm_bf16_" name "_fp", fp4, avx512vnni, 6, "int16_dot", weight, code), \
    ROW(op, contract, avx512, 6, 64, weight, code),                                             \
    ROW_DIGITS(op, name "_mm_i8_" name "_fp", bytes, avx2, 4, "int8_dot", weight, code),        \
    ROW_DIGITS(op, contract, fp4, avx2, 1, "int8_dot", weight, code),                           \
    ROW(op, contract, scalar, 2, 16, weight, code)

#define LEVELS_GROUPS(contract, weight, code)                                              \
    ROW_DIGITS(QN_OP_DENSE_MM, contract, groups, amx, 16, "bf16_tile", weight, code),      \
    ROW_DIGITS(QN_OP_DENSE_MM, contract, groups, avx512vnni, 8, "int8_dot", weight, code), \
    ROW_DIGITS(QN_OP_DENSE_MM, contract, groups, avx2, 4, "int8_dot", weight, code)

static const qn_kernel kernels[] = {
    LEVELS_I8(QN_OP_SCALED_MM, "scaled_mm_i8_i8_fp", QN_I8, QN_PANEL_I8),
    LEVELS(QN_OP_SCALED_MM, "scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_PANEL_E4M3),
    LEVELS(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_PANEL_E4M3),
    LEVELS(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm_e4m3_e5m2_fp", QN_F8_E5M2, QN_PANEL_E5M2),
    LEVELS(QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm_e4m3_e4m3_fp", QN_F8_E4M3, QN_PANEL_E4M3),
    LEVELS_FP4(QN_OP_NVFP4_MM, "nvfp4_mm_fp_nvfp4_fp", "nvfp4", QN_U8, QN_PANEL_NVFP4),
    LEVELS_FP4(QN_OP_MXFP4_MM, "mxfp4_mm_fp_mxfp4_fp", "mxfp4", QN_U8, QN_PANEL_MXFP4),
    LEVELS(QN_OP_DENSE_MM, "dense_mm_fp_bf16_fp", QN_BF16, QN_PANEL_BF16),
    LEVELS_F32(QN_OP_DENSE_MM, "dense_mm_fp_f32_fp", QN_F32, QN_PANEL_F32),
    LEVELS_GROUPS("dense_mm_fp_q4_0_fp", QN_Q4_0, QN_PANEL_G4),
    LEVELS_GROUPS("dense_mm_fp_q4_1_fp", QN_Q4_1, QN_PANEL_G4M),
    LEVELS_GROUPS("dense_mm_fp_q5_0_fp", QN_Q5_0, QN_PANEL_G5),
    LEVELS_GROUPS("dense_mm_fp_q5_1_fp", QN_Q5_1, QN_PANEL_G5M),
    LEVELS_GROUPS("dense_mm_fp_q8_0_fp", QN_Q8_0, QN_PANEL_G8),
    LEVELS_GROUPS("dense_mm_fp_q2_k_fp", QN_Q2_K, QN_PANEL_S2M),
    LEVELS_GROUPS("dense_mm_fp_q3_k_fp", QN_Q3_K, QN_PANEL_S3),
    LEVELS_GROUPS("dense_mm_fp_q4_k_fp", QN_Q4_K, QN_PANEL_S4M),
    LEVELS_GROUPS("dense_mm_fp_q5_k_fp", QN_Q5_K, QN_PANEL_S5M),
    LEVELS_GROUPS("dense_mm_fp_q6_k_fp", QN_Q6_K, QN_PANEL_S6),
    LEVELS_GROUPS("dense_mm_fp_iq4_nl_fp", QN_IQ4_NL, QN_PANEL_G4T),
    LEVELS_GROUPS("dense_mm_fp_iq4_xs_fp", QN_IQ4_XS, QN_PANEL_S4T),
    LEVELS_GROUPS("dense_mm_fp_i8_k_fp", QN_I8_K, QN_PANEL_S8),
};

const qn_cpu_family qn_cpu_panel_family = {kernels, sizeof kernels / sizeof *kernels};
