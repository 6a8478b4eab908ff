/* Registry of the kernels on coded KV caches. fp stands for f32, f16 or bf16, q for
 * codes of 8 or 16 bits. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_kv.h"

#define ENCODE(isa_, level_, tile_, mr_)                                                                           \
    {                                                                                                              \
        .name = "qn_vq_encode_fp_fp_q__" #isa_ "_" tile_, .op = QN_OP_VQ_ENCODE, .backend = QN_BACKEND_CPU,        \
        .isa = (level_), .mr = (mr_), .nr = QN_FIT_LANES, .pack_layout = QN_KV_ENCODE_LAYOUT, .status = "tested",  \
        .accepts = qn_kv_accepts, .pack_bytes = qn_vq_encode_pack_bytes, .pack = qn_vq_encode_pack,                \
        .workspace_bytes = qn_vq_encode_workspace_bytes, .run = qn_vq_encode_run,                                  \
        .impl = &(const qn_kv_impl){.rows = &qn_rows__##isa_, .fit = &qn_fit__##isa_}                              \
    }

#define ATTENTION(isa_, level_, tile_, mr_, nr_)                                                                   \
    {                                                                                                              \
        .name = "qn_vq_attention_fp_q_fp__" #isa_ "_" tile_, .op = QN_OP_VQ_ATTENTION, .backend = QN_BACKEND_CPU,  \
        .isa = (level_), .mr = (mr_), .nr = (nr_), .pack_layout = QN_KV_ATTENTION_LAYOUT, .status = "tested",      \
        .accepts = qn_kv_accepts, .pack_bytes = qn_vq_attention_pack_bytes, .pack = qn_vq_attention_pack,          \
        .workspace_bytes = qn_vq_attention_workspace_bytes, .run = qn_vq_attention_run,                            \
        .impl = &(const qn_kv_impl){.rows = &qn_rows__##isa_, .att = &qn_att__##isa_, .kv = &qn_kv__##isa_}        \
    }

static const qn_kernel kernels[] = {
    ENCODE(avx512, QN_ISA_AVX512, "4x16", 4),
    ENCODE(avx2, QN_ISA_AVX2, "2x16", 2),
    ENCODE(scalar, QN_ISA_SCALAR, "2x16", 2),
    ATTENTION(avx512, QN_ISA_AVX512, "6x64", 6, 64),
    ATTENTION(avx2, QN_ISA_AVX2, "6x16", 6, 16),
    ATTENTION(scalar, QN_ISA_SCALAR, "2x8", 2, 8),
};

const qn_cpu_family qn_cpu_kv_family = {kernels, sizeof kernels / sizeof *kernels};
