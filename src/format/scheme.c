#include "format/scheme.h"

#include <string.h>

#include <quern/quantize.h>

#include "base/error.h"

static const qn_scheme dense = {.name = "dense",
                                .summary = "plain tensors",
                                .layout = QN_LAYOUT_DENSE,
                                .data_suffix = "weight",
                                .mm = QN_OP_DENSE_MM};

#define AQLM_TENSORS .format = QN_VQ_AQLM, .tensors = {"codes", "codebooks", "scales"}, .required = 3, .written = 3
#define VPTQ_TENSORS                                                                                                   \
    .format = QN_VQ_VPTQ, .required = 2, .written = 5,                                                                 \
    .tensors = {"indices", "centroids.weight", "res_centroids.weight",    "weight_scale", "weight_bias",               \
                "perm",    "outlier_indices",  "outlier_centroids.weight"}
#define QUIP_TENSORS                                                                                                   \
    .format = QN_VQ_QUIP_E8P, .bits = 16, .vector = 8, .required = 3, .written = 5,                                    \
    .tensors = {"Qidxs", "SU", "SV", "Wscale", "codebook_id", "scaleWH", "fuse_scales"}

/* Blocks of 128x128 of an FP8 format, activations in groups of 128. */
#define BLOCKS(element)                                                                                                \
    .weight = (element), .scales = QN_SCALES_BLOCK, .scale_format = QN_F32, .block_n = 128, .block_k = 128,            \
    .data_suffix = "weight", .act_op = QN_OP_QUANTIZE_FP8, .act_granularity = QN_PER_GROUP, .act_group = 128,          \
    .act_type = QN_TYPE_E4M3FN, .mm = QN_OP_BLOCK_SCALED_MM
#define FP8_BLOCK                                                                                                      \
    .name = "fp8-block", BLOCKS(QN_F8_E4M3),                                                                           \
    .summary = "FP8 e4m3 weights in 128x128 blocks, 1x128 dynamic FP8 activations"

static const qn_scheme schemes[] = {
    {.name = "f32",
     .summary = "FP32 weights and activations",
     .layout = QN_LAYOUT_DENSE,
     .weight = QN_F32,
     .data_suffix = "weight",
     .mm = QN_OP_DENSE_MM},
    {.name = "bf16",
     .summary = "BF16 weights and activations",
     .layout = QN_LAYOUT_DENSE,
     .weight = QN_BF16,
     .data_suffix = "weight",
     .mm = QN_OP_DENSE_MM},
    {.name = "f16",
     .summary = "FP16 weights, FP32 activations",
     .layout = QN_LAYOUT_DENSE,
     .weight = QN_F16,
     .data_suffix = "weight",
     .mm = QN_OP_DENSE_MM},
    {FP8_BLOCK, .layout = QN_LAYOUT_FP8, .scale_suffix = "weight_scale_inv"},
    {.name = "fp8-e5m2-block",
     .summary = "FP8 e5m2 weights in 128x128 blocks, 1x128 dynamic FP8 e4m3 activations",
     BLOCKS(QN_F8_E5M2),
     .layout = QN_LAYOUT_FP8,
     .scale_suffix = "weight_scale_inv"},
    {.name = "fp8",
     .summary = "FP8 e4m3 weights with a scale per output channel, per-token dynamic FP8 activations",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_F8_E4M3,
     .scales = QN_SCALES_CHANNEL,
     .scale_format = QN_F32,
     .data_suffix = "weight",
     .scale_suffix = "weight_scale",
     .act_op = QN_OP_QUANTIZE_FP8,
     .act_granularity = QN_PER_TOKEN,
     .act_type = QN_TYPE_E4M3FN,
     .mm = QN_OP_SCALED_MM,
     .word = "float-quantized"},
    {.name = "int8",
     .summary = "INT8 weights with a scale per output channel, per-token dynamic symmetric INT8 activations",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_I8,
     .scales = QN_SCALES_CHANNEL,
     .scale_format = QN_F32,
     .data_suffix = "weight",
     .scale_suffix = "weight_scale",
     .act_op = QN_OP_QUANTIZE_INT8,
     .act_granularity = QN_PER_TOKEN,
     .act_type = QN_TYPE_INT8,
     .act_symmetric = 1,
     .mm = QN_OP_SCALED_MM,
     .word = "int-quantized"},
    {.name = "int8-azp",
     .summary = "INT8 weights with a scale per output channel, per-token dynamic INT8 activations with zero points",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_I8,
     .scales = QN_SCALES_CHANNEL,
     .scale_format = QN_F32,
     .data_suffix = "weight",
     .scale_suffix = "weight_scale",
     .act_op = QN_OP_QUANTIZE_INT8,
     .act_granularity = QN_PER_TOKEN,
     .act_type = QN_TYPE_INT8,
     .act_symmetric = 0,
     .mm = QN_OP_SCALED_MM,
     .word = "int-quantized"},
    {.name = "nvfp4",
     .summary = "NVFP4 weights (W4A16): e2m1, an e4m3 scale per 16, one FP32 scale; activations as they are",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_F4_E2M1,
     .scales = QN_SCALES_GROUP,
     .scale_format = QN_F8_E4M3,
     .block_k = 16,
     .global_scale = 1,
     .data_suffix = "weight_packed",
     .scale_suffix = "weight_scale",
     .global_suffix = "weight_global_scale",
     .act_suffix = "input_global_scale",
     .mm = QN_OP_NVFP4_MM,
     .word = "nvfp4-pack-quantized"},
    {.name = "nvfp4-w4a4",
     .summary = "NVFP4 weights and activations (W4A4), the activations' FP32 scale from a calibration text",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_F4_E2M1,
     .scales = QN_SCALES_GROUP,
     .scale_format = QN_F8_E4M3,
     .block_k = 16,
     .global_scale = 1,
     .data_suffix = "weight_packed",
     .scale_suffix = "weight_scale",
     .global_suffix = "weight_global_scale",
     .act_op = QN_OP_QUANTIZE_NVFP4,
     .act_granularity = QN_PER_GROUP,
     .act_group = 16,
     .act_suffix = "input_global_scale",
     .mm = QN_OP_NVFP4_MM,
     .word = "nvfp4-pack-quantized"},
    {.name = "mxfp4",
     .summary = "MXFP4 weights (W4A16): e2m1, an e8m0 scale per 32; activations as they are",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS,
     .weight = QN_F4_E2M1,
     .scales = QN_SCALES_GROUP,
     .scale_format = QN_E8M0,
     .block_k = 32,
     .data_suffix = "weight_packed",
     .scale_suffix = "weight_scale",
     .mm = QN_OP_MXFP4_MM,
     .word = "mxfp4-pack-quantized"},
    {.name = "gptvq-2",
     .summary = "GPTVQ weights: 4 weights a code of 8 bits, an INT8 codebook per 256x256 tile; activations as they are",
     .layout = QN_LAYOUT_GPTVQ,
     .scales = QN_SCALES_VECTOR,
     .vq = {.format = QN_VQ_GPTVQ,
            .books = 1,
            .bits = 8,
            .vector = 4,
            .tile = 256,
            .tensors = {"codes", "codebooks", "codebook_scales"},
            .required = 3,
            .written = 3},
     .mm = QN_OP_VQ_MM},
    {.name = "aqlm-2x8",
     .summary = "AQLM weights: 2 codes of 8 bits for 8 weights, FP16 codebooks per layer, a scale per output channel",
     .layout = QN_LAYOUT_AQLM,
     .scales = QN_SCALES_VECTOR,
     .vq = {AQLM_TENSORS, .books = 2, .bits = 8, .vector = 8},
     .mm = QN_OP_VQ_MM},
    {.name = "aqlm-3",
     .summary = "AQLM weights: 2 codes of 12 bits for 8 weights, FP16 codebooks per layer, a scale per output channel",
     .layout = QN_LAYOUT_AQLM,
     .scales = QN_SCALES_VECTOR,
     .vq = {AQLM_TENSORS, .books = 2, .bits = 12, .vector = 8},
     .mm = QN_OP_VQ_MM},
    {.name = "aqlm-1x16",
     .summary = "AQLM weights: a code of 16 bits for 8 weights, FP16 codebooks per layer, a scale per output channel",
     .layout = QN_LAYOUT_AQLM,
     .scales = QN_SCALES_VECTOR,
     .vq = {AQLM_TENSORS, .books = 1, .bits = 16, .vector = 8},
     .mm = QN_OP_VQ_MM},
    {.name = "vptq-2",
     .summary = "VPTQ weights: codes of 8 and 8 bits for 8 rows of a column, FP16 codebooks per layer, scaled columns",
     .layout = QN_LAYOUT_VPTQ,
     .scales = QN_SCALES_VECTOR,
     .vq = {VPTQ_TENSORS, .books = 2, .bits = 8, .vector = 8},
     .mm = QN_OP_VQ_MM},
    {.name = "vptq-3",
     .summary =
         "VPTQ weights: codes of 12 and 12 bits for 8 rows of a column, FP16 codebooks per layer, scaled columns",
     .layout = QN_LAYOUT_VPTQ,
     .scales = QN_SCALES_VECTOR,
     .vq = {VPTQ_TENSORS, .books = 2, .bits = 12, .vector = 8},
     .mm = QN_OP_VQ_MM},
    {.name = "quip-2",
     .summary = "QuIP# weights: E8P lattice points, 16 bits for 8 weights, Hadamard transforms on both sides",
     .layout = QN_LAYOUT_QUIP,
     .scales = QN_SCALES_VECTOR,
     .vq = {QUIP_TENSORS, .books = 1, .codebook = QN_VQ_E8P12},
     .mm = QN_OP_VQ_MM},
    {.name = "quip-4",
     .summary = "QuIP# weights: sums of two E8P points, 32 bits for 8 weights, Hadamard transforms on both sides",
     .layout = QN_LAYOUT_QUIP,
     .scales = QN_SCALES_VECTOR,
     .vq = {QUIP_TENSORS, .books = 2, .codebook = QN_VQ_E8P12RVQ4B},
     .mm = QN_OP_VQ_MM},
};

/* A scale per output channel or tensor, codes of eight bits on both sides. */
#define CHANNEL(element)                                                                                               \
    .weight = (element), .scales = QN_SCALES_CHANNEL, .scale_format = QN_F32, .data_suffix = "weight",                 \
    .scale_suffix = "weight_scale", .mm = QN_OP_SCALED_MM
#define FP8_STATIC                                                                                                     \
    .name = "fp8-static", CHANNEL(QN_F8_E4M3),                                                                         \
    .summary = "FP8 e4m3 weights with a scale per tensor or channel, FP8 activations with a scale from the file",      \
    .act_op = QN_OP_QUANTIZE_FP8, .act_granularity = QN_PER_TENSOR, .act_type = QN_TYPE_E4M3FN, .act_static = 1,       \
    .act_suffix = "input_scale"
#define FP8_TOKEN                                                                                                      \
    .name = "fp8", CHANNEL(QN_F8_E4M3),                                                                                \
    .summary = "FP8 e4m3 weights with a scale per tensor or channel, per-token dynamic FP8 activations",               \
    .act_op = QN_OP_QUANTIZE_FP8, .act_granularity = QN_PER_TOKEN, .act_type = QN_TYPE_E4M3FN
#define INT8_STATIC                                                                                                    \
    CHANNEL(QN_I8), .act_op = QN_OP_QUANTIZE_INT8, .act_granularity = QN_PER_TENSOR, .act_type = QN_TYPE_INT8,         \
                    .act_static = 1, .act_suffix = "input_scale"
#define FP8_ROWS .act_op = QN_OP_QUANTIZE_FP8, .act_type = QN_TYPE_E4M3FN
#define NVFP4_MODELOPT                                                                                                 \
    .layout = QN_LAYOUT_MODELOPT, .weight = QN_F4_E2M1, .scales = QN_SCALES_GROUP, .scale_format = QN_F8_E4M3,         \
    .block_k = 16, .global_scale = 1, .global_inverse = 1, .data_suffix = "weight", .scale_suffix = "weight_scale",    \
    .global_suffix = "weight_scale_2", .act_suffix = "input_scale", .mm = QN_OP_NVFP4_MM

/* ModelOpt's W4A8: it writes groups of 32 for NVFP4, and input scales only where it was given a text. */
#define NVFP4_FP8 NVFP4_MODELOPT, FP8_ROWS, .file_k = 32, .word = "W4A8_NVFP4_FP8"
#define MXFP4_FP8                                                                                                      \
    FP8_ROWS, .layout = QN_LAYOUT_MODELOPT, .weight = QN_F4_E2M1, .scales = QN_SCALES_GROUP, .scale_format = QN_E8M0,  \
              .block_k = 32, .data_suffix = "weight", .scale_suffix = "weight_scale", .act_suffix = "input_scale",     \
              .mm = QN_OP_MXFP4_MM, .word = "W4A8_MXFP4_FP8"
static const qn_scheme nvfp4_fp8 = {NVFP4_FP8, .name = "nvfp4-w4a8",
                                    .summary = "NVFP4 weights, per-token dynamic FP8 activations (W4A8)",
                                    .act_granularity = QN_PER_TOKEN};
static const qn_scheme mxfp4_fp8 = {MXFP4_FP8, .name = "mxfp4-w4a8",
                                    .summary = "MXFP4 weights, per-token dynamic FP8 activations (W4A8)",
                                    .act_granularity = QN_PER_TOKEN};

static const qn_scheme published[] = {
    {FP8_STATIC, .layout = QN_LAYOUT_COMPRESSED_TENSORS, .word = "float-quantized"},
    {FP8_STATIC, .layout = QN_LAYOUT_FP8},
    {FP8_STATIC, .layout = QN_LAYOUT_MODELOPT, .word = "FP8"},
    {FP8_TOKEN, .layout = QN_LAYOUT_FP8},
    {FP8_TOKEN, .layout = QN_LAYOUT_MODELOPT, .word = "FP8_PER_CHANNEL_PER_TOKEN"},
    {FP8_BLOCK, .layout = QN_LAYOUT_COMPRESSED_TENSORS, .scale_suffix = "weight_scale", .word = "float-quantized"},
    {INT8_STATIC, .name = "int8-static",
     .summary = "INT8 weights with a scale per tensor or channel, INT8 activations with a scale from the file",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS, .act_symmetric = 1, .word = "int-quantized"},
    {INT8_STATIC, .name = "int8-azp-static",
     .summary = "INT8 weights with a scale per tensor or channel, INT8 activations with a zero point from the file",
     .layout = QN_LAYOUT_COMPRESSED_TENSORS, .act_symmetric = 0, .word = "int-quantized"},
    {NVFP4_MODELOPT, .name = "nvfp4",
     .summary = "NVFP4 weights (W4A16): e2m1, an e4m3 scale per 16, one FP32 scale; activations as they are",
     .word = "W4A16_NVFP4"},
    {NVFP4_MODELOPT, .name = "nvfp4-w4a4", .summary = "NVFP4 weights and activations (W4A4)",
     .act_op = QN_OP_QUANTIZE_NVFP4, .act_granularity = QN_PER_GROUP, .act_group = 16, .word = "NVFP4"},
    {NVFP4_FP8, .name = "nvfp4-w4a8-static",
     .summary = "NVFP4 weights, FP8 activations with a scale from the file (W4A8)", .act_granularity = QN_PER_TENSOR,
     .act_static = 1, .dynamic = &nvfp4_fp8},
    {MXFP4_FP8, .name = "mxfp4-w4a8-static",
     .summary = "MXFP4 weights, FP8 activations with a scale from the file (W4A8)", .act_granularity = QN_PER_TENSOR,
     .act_static = 1, .dynamic = &mxfp4_fp8},
};

#define COUNT(table) ((int32_t)(sizeof(table) / sizeof *(table)))

const qn_scheme *qn_scheme_readable(int32_t i)
{
    const int32_t rest = i - COUNT(schemes);
    return rest < 0 ? qn_scheme_get(i) : rest < COUNT(published) ? &published[rest] : NULL;
}

const qn_scheme *qn_scheme_get(int32_t i)
{
    return i >= 0 && i < COUNT(schemes) ? &schemes[i] : NULL;
}

const qn_scheme *qn_scheme_find(const char *name)
{
    for (int32_t i = 0; name && i < COUNT(schemes); i++) {
        if (strcmp(schemes[i].name, name) == 0) {
            return &schemes[i];
        }
    }
    return NULL;
}

const qn_scheme *qn_scheme_dense(void)
{
    return &dense;
}

qn_status qn_scheme_at(int32_t i, qn_scheme_info *info)
{
    const qn_scheme *scheme = qn_scheme_get(i);
    if (!scheme || !info) {
        return QN_E_ARGUMENT;
    }
    static const char *const layouts[] = {"dense", "deepseek-fp8", "compressed-tensors", "aqlm", "gptvq",
                                          "vptq",  "quip"};
    *info = (qn_scheme_info){scheme->name, scheme->summary, layouts[scheme->layout]};
    return QN_OK;
}
