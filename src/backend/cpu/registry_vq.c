/* Registry of the matmuls by vector-quantised weights, and of their decoding. fp stands for f32, f16 or
 * bf16: activations are widened to f32 first and outputs rounded once. */
#include "backend/cpu/families.h"
#include "backend/cpu/run_vq_books.h"
#include "backend/cpu/run_vq_dequantize.h"
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

/* One core each: with vectors of 8, of 512 bits (coarse slabs) 110 + 0.18 a row of w, 1350 + 2.1, 8.6; of 256 bits
 * (Zen 3) 145 + 0.95, 1260 + 1.7, 15.6. */
#define SUMS_COSTS_512 .cost_one = {8.0, 47.0, 0.18}, .cost_side = {130.0, 310.0, 2.1}, .cost_many = 0.96, .coarse = 1
#define SUMS_COSTS_256 .cost_one = {16.0, 16.0, 0.95}, .cost_side = {150.0, 60.0, 1.7}, .cost_many = 1.73

#define SUMS(isa_, level_, set_, parts_, costs)                                                                        \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_aqlm_fp__" #isa_ "_1x128_sums", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,             \
        .isa = (level_), .mr = 1, .nr = 128, .pack_layout = QN_VQ_SUMS_LAYOUT, .status = "tested",                     \
        .accepts = qn_vq_sums_accepts, .pack_bytes = qn_vq_sums_pack_bytes, .pack = qn_vq_sums_pack,                   \
        .workspace_bytes = qn_vq_sums_workspace_bytes, .run = qn_vq_sums_run, .impl = &(const qn_vq_sums_impl)         \
        {                                                                                                              \
            .one = &qn_vq_sums_one__##isa_, .set = &qn_vq_sums__##set_, .parts = &qn_mm_f32__##parts_, costs           \
        }                                                                                                              \
    }

#define TILES(isa_, level_, mr_, parts_)                                                                               \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_gptvq_fp__" #isa_ "_" #mr_ "x16_tiles", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,     \
        .isa = (level_), .mr = (mr_), .nr = 16, .pack_layout = QN_VQ_TILES_LAYOUT, .status = "tested",                 \
        .arithmetic = (level_) == QN_ISA_AMX ? "int8_tile" : "int8_dot", .accepts = qn_vq_tiles_accepts,               \
        .pack_bytes = qn_vq_tiles_pack_bytes, .pack = qn_vq_tiles_pack,                                                \
        .workspace_bytes = qn_vq_tiles_workspace_bytes, .run = qn_vq_tiles_run, .impl = &(const qn_vq_tiles_impl)      \
        {                                                                                                              \
            .set = &qn_vq_tiles__##isa_, .parts = &qn_mm_f32__##parts_                                                 \
        }                                                                                                              \
    }

#define LATTICE(isa_, level_, mr_, rows_, parts_)                                                                      \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_quip_e8p_fp__" #isa_ "_" #mr_ "x16_lattice", .op = QN_OP_VQ_MM,                           \
        .backend = QN_BACKEND_CPU, .isa = (level_), .mr = (mr_), .nr = 16, .pack_layout = QN_VQ_LATTICE_LAYOUT,        \
        .status = "tested", .arithmetic = (level_) == QN_ISA_AMX ? "int8_tile" : "int8_dot",                           \
        .accepts = qn_vq_lattice_accepts, .pack_bytes = qn_vq_lattice_pack_bytes, .pack = qn_vq_lattice_pack,          \
        .workspace_bytes = qn_vq_lattice_workspace_bytes, .run = qn_vq_lattice_run,                                    \
        .impl = &(const qn_vq_lattice_impl)                                                                            \
        {                                                                                                              \
            .set = &qn_vq_lattice__##isa_, .rows = &qn_vq_lattice_rows__##rows_, .parts = &qn_mm_f32__##parts_         \
        }                                                                                                              \
    }

static const qn_kernel kernels[] = {
    SUMS(amx, QN_ISA_AMX, avx512vnni, avx512, SUMS_COSTS_512),
    SUMS(avx512vnni, QN_ISA_AVX512VNNI, avx512vnni, avx512, SUMS_COSTS_512),
    TILES(amx, QN_ISA_AMX, 16, avx512),
    TILES(avx512vnni, QN_ISA_AVX512VNNI, 8, avx512),
    LATTICE(amx, QN_ISA_AMX, 16, avx512vnni, avx512),
    LATTICE(avx512vnni, QN_ISA_AVX512VNNI, 4, avx512vnni, avx512),
    SUMS(avx2, QN_ISA_AVX2, avx2, avx2, SUMS_COSTS_256),
    TILES(avx2, QN_ISA_AVX2, 2, avx2),
    LATTICE(avx2, QN_ISA_AVX2, 1, avx2, avx2),
    LEVELS("vq_mm_fp_aqlm_fp", QN_VQ_AQLM),
    LEVELS("vq_mm_fp_quip_e8p_fp", QN_VQ_QUIP_E8P),
    LEVELS("vq_mm_fp_vptq_fp", QN_VQ_VPTQ),
    LEVELS("vq_mm_fp_gptvq_fp", QN_VQ_GPTVQ),
    {.name = "qn_vq_dequantize_codes_f32__scalar_rows",
     .op = QN_OP_VQ_DEQUANTIZE,
     .backend = QN_BACKEND_CPU,
     .isa = QN_ISA_SCALAR,
     .mr = 1,
     .nr = 1,
     .status = "tested",
     .accepts = qn_vq_dequantize_accepts,
     .workspace_bytes = qn_vq_dequantize_workspace_bytes,
     .run = qn_vq_dequantize_run},
};

const qn_cpu_family qn_cpu_vq_family = {kernels, sizeof kernels / sizeof *kernels};
