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

/* Run, wide, rows, each, clocks: table, of fine slabs, an element of it, a row of w, an element of that. Of one core
 * each; up to eight rows beside each other are as fast by 256 bits, where 512 are two halves faster. */
#define WAYS_512(isa_)                                                                                                 \
    static const qn_vq_sums_way ways_##isa_[] = {                                                                      \
        {&qn_vq_sums_one__##isa_, 1, 2, 1, 47.0, 45.0, 8.0, 0.18, 0.0},                                                \
        {&qn_vq_sums__avx2.side, 8, 8, 8, 60.0, 0.0, 150.0, 1.7, 0.0},                                                 \
        {&qn_vq_sums__avx512vnni.side, 16, 16, 16, 310.0, 0.0, 130.0, 2.1, 0.0},                                       \
        {&qn_vq_sums__avx512vnni.many, 16, 16, 16, 0.0, 0.0, 0.0, 0.96, 0.96},                                         \
        {.run = NULL}}
WAYS_512(amx);
WAYS_512(avx512vnni);
static const qn_vq_sums_way ways_halved[] = {{&qn_vq_sums_one__avx512vnni, 1, 2, 1, 0.0, 80.0, 21.0, 0.18, 0.0},
                                             {&qn_vq_sums__avx2.side, 8, 8, 8, 250.0, 0.0, 155.0, 1.3, 0.0},
                                             {&qn_vq_sums__avx512vnni.side, 16, 16, 16, 700.0, 0.0, 210.0, 2.1, 0.0},
                                             {&qn_vq_sums__avx512vnni.many, 16, 16, 16, 0.0, 0.0, 0.0, 0.6, 1.22},
                                             {.run = NULL}};
static const qn_vq_sums_way ways_avx2[] = {{&qn_vq_sums_one__avx2, 1, 1, 1, 16.0, 0.0, 16.0, 0.95, 0.0},
                                           {&qn_vq_sums__avx2.side, 8, 8, 8, 60.0, 0.0, 150.0, 1.7, 0.0},
                                           {&qn_vq_sums__avx2.many, 16, 16, 16, 0.0, 0.0, 0.0, 1.73, 1.73},
                                           {.run = NULL}};

#define SUMS(isa_, level_, set_, parts_, halved_)                                                                      \
    {                                                                                                                  \
        .name = "qn_vq_mm_fp_aqlm_fp__" #isa_ "_1x128_sums", .op = QN_OP_VQ_MM, .backend = QN_BACKEND_CPU,             \
        .isa = (level_), .mr = 1, .nr = 128, .pack_layout = QN_VQ_SUMS_LAYOUT, .status = "tested",                     \
        .accepts = qn_vq_sums_accepts, .pack_bytes = qn_vq_sums_pack_bytes, .pack = qn_vq_sums_pack,                   \
        .open = qn_vq_sums_open, .workspace_bytes = qn_vq_sums_workspace_bytes, .run = qn_vq_sums_run,                 \
        .impl = &(const qn_vq_sums_impl)                                                                               \
        {                                                                                                              \
            .set = &qn_vq_sums__##set_, .parts = &qn_mm_f32__##parts_, .ways = ways_##isa_, .ways_halved = (halved_),  \
            .coarse = (level_) >= QN_ISA_AVX512VNNI                                                                    \
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
    SUMS(amx, QN_ISA_AMX, avx512vnni, avx512, NULL),
    SUMS(avx512vnni, QN_ISA_AVX512VNNI, avx512vnni, avx512, ways_halved),
    TILES(amx, QN_ISA_AMX, 16, avx512),
    TILES(avx512vnni, QN_ISA_AVX512VNNI, 8, avx512),
    LATTICE(amx, QN_ISA_AMX, 16, avx512vnni, avx512),
    LATTICE(avx512vnni, QN_ISA_AVX512VNNI, 4, avx512vnni, avx512),
    SUMS(avx2, QN_ISA_AVX2, avx2, avx2, NULL),
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
