/* Registry of the matmuls by vector-quantised weights. fp stands for f32, f16 or
 * bf16: activations are widened to f32 first and outputs rounded once. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_vq_books.h"
#include "backend/cpu/run_vq_lattice.h"
#include "backend/cpu/run_vq_sums.h"
#include "backend/cpu/run_vq_tiles.h"

#define TILE_scalar "2x2"
#define TILE_avx2 "4x2"
#define TILE_avx512 "4x4"
#define LEVEL_scalar QN_ISA_SCALAR, .mr = 2, .nr = 2
#define LEVEL_avx2 QN_ISA_AVX2, .mr = 4, .nr = 2
#define LEVEL_avx512 QN_ISA_AVX512, .mr = 4, .nr = 4

#define BOOKS(contract, isa_, format_)                                                                                 \
    {                                                                                                                  \
        .name = "qn_" contract "__" #isa_ "_" TILE_##isa_ "_books", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,      \
        .isa = LEVEL_##isa_, .pack_layout = QN_VQ_BOOKS_LAYOUT, .status = "tested", .accepts = qn_vq_books_accepts,    \
        .pack_bytes = qn_vq_books_pack_bytes, .pack = qn_vq_books_pack,                                                \
        .workspace_bytes = qn_vq_books_workspace_bytes, .run = qn_vq_books_run, .impl = &(const qn_vq_books_impl)      \
        {                                                                                                              \
            .set = &qn_vq_books__##isa_, .parts = &qn_mm_f32__##isa_, .format = (format_)                              \
        }                                                                                                              \
    }

#define LEVELS(contract, format)                                                                                       \
    BOOKS(contract, avx512, format), BOOKS(contract, avx2, format), BOOKS(contract, scalar, format)

#define SUMS(isa_, level_)                                                                                             \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_aqlm_fp__" #isa_ "_1x128_sums", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,             \
        .isa = (level_), .mr = 1, .nr = 128, .pack_layout = QN_VQ_SUMS_LAYOUT, .status = "tested",                     \
        .accepts = qn_vq_sums_accepts, .pack_bytes = qn_vq_sums_pack_bytes, .pack = qn_vq_sums_pack,                   \
        .workspace_bytes = qn_vq_sums_workspace_bytes, .run = qn_vq_sums_run, .impl = &(const qn_vq_sums_impl)         \
        {                                                                                                              \
            .one = &qn_vq_sums_one__##isa_, .set = &qn_vq_sums__avx512vnni, .parts = &qn_mm_f32__avx512                \
        }                                                                                                              \
    }

#define TILES(isa_, level_, mr_)                                                                                       \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_gptvq_fp__" #isa_ "_" #mr_ "x16_tiles", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,     \
        .isa = (level_), .mr = (mr_), .nr = 16, .pack_layout = QN_VQ_TILES_LAYOUT, .status = "tested",                 \
        .arithmetic = (level_) == QN_ISA_AMX ? "int8_tile" : "int8_dot", .accepts = qn_vq_tiles_accepts,               \
        .pack_bytes = qn_vq_tiles_pack_bytes, .pack = qn_vq_tiles_pack,                                                \
        .workspace_bytes = qn_vq_tiles_workspace_bytes, .run = qn_vq_tiles_run, .impl = &(const qn_vq_tiles_impl)      \
        {                                                                                                              \
            .set = &qn_vq_tiles__##isa_, .parts = &qn_mm_f32__avx512                                                   \
        }                                                                                                              \
    }

#define LATTICE(isa_, level_, mr_)                                                                                     \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_quip_e8p_fp__" #isa_ "_" #mr_ "x16_lattice", .op = QN_OP_VQ_MM,                           \
        .backend = QN_BACKEND_CPU, .isa = (level_), .mr = (mr_), .nr = 16, .pack_layout = QN_VQ_LATTICE_LAYOUT,        \
        .status = "tested", .arithmetic = (level_) == QN_ISA_AMX ? "int8_tile" : "int8_dot",                           \
        .accepts = qn_vq_lattice_accepts, .pack_bytes = qn_vq_lattice_pack_bytes, .pack = qn_vq_lattice_pack,          \
        .workspace_bytes = qn_vq_lattice_workspace_bytes, .run = qn_vq_lattice_run,                                    \
        .impl = &(const qn_vq_lattice_impl)                                                                            \
        {                                                                                                              \
            .set = &qn_vq_lattice__##isa_, .rows = &qn_vq_lattice_rows__avx512vnni, .parts = &qn_mm_f32__avx512        \
        }                                                                                                              \
    }

static const qn_kernel kernels[] = {
    SUMS(amx, QN_ISA_AMX),
    SUMS(avx512vnni, QN_ISA_AVX512VNNI),
    TILES(amx, QN_ISA_AMX, 16),
    TILES(avx512vnni, QN_ISA_AVX512VNNI, 8),
    LATTICE(amx, QN_ISA_AMX, 16),
    LATTICE(avx512vnni, QN_ISA_AVX512VNNI, 4),
    LEVELS("vq_mm_fp_aqlm_fp", QN_VQ_AQLM),
    LEVELS("vq_mm_fp_quip_e8p_fp", QN_VQ_QUIP_E8P),
    LEVELS("vq_mm_fp_vptq_fp", QN_VQ_VPTQ),
    LEVELS("vq_mm_fp_gptvq_fp", QN_VQ_GPTVQ),
};

const qn_cpu_family qn_cpu_vq_family = {kernels, sizeof kernels / sizeof *kernels};
