/* The table of operators: names, slots and attributes as data. Everything that
 * shows, parses or checks an operator reads it from here; what a row cannot say
 * (how shapes depend on each other) is in src/op/<family>.c. The normative text
 * is docs/operators.md. Slot numbers: src/ref/slots.h. */
#include <string.h>

#include "op/op.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof *(array)))
#define CHOICE(attr, name, words, first)                                                                               \
    {                                                                                                                  \
        attr, name, QN_ATTR_KIND_CHOICE, words,                                                                        \
        {                                                                                                              \
            .i = (first)                                                                                               \
        }                                                                                                              \
    }
#define INTEGER(attr, name, text, value)                                                                               \
    {                                                                                                                  \
        attr, name, QN_ATTR_KIND_INT, text,                                                                            \
        {                                                                                                              \
            .i = (value)                                                                                               \
        }                                                                                                              \
    }
#define REAL(attr, name, text, value)                                                                                  \
    {                                                                                                                  \
        attr, name, QN_ATTR_KIND_FLOAT, text,                                                                          \
        {                                                                                                              \
            .f = (value)                                                                                               \
        }                                                                                                              \
    }

#define FLOATS "f32|f16|bf16"
#define FLOATS_HALF "f16|bf16|f32"

#define A_GROUP INTEGER(QN_ATTR_GROUP, "group", "128", 128)
#define A_MODE CHOICE(QN_ATTR_MODE, "mode", "dynamic|static", QN_DYNAMIC)
#define A_SCALE_UB REAL(QN_ATTR_SCALE_UB, "scale_ub", "0", 0.0f)
#define A_SCALE_LAYOUT CHOICE(QN_ATTR_SCALE_LAYOUT, "scale_layout", "row|col", QN_SCALE_ROW)
#define A_SCALE_FORMAT CHOICE(QN_ATTR_SCALE_FORMAT, "scale_format", "f32|ue8m0", QN_SCALE_F32)
#define A_SYMMETRIC INTEGER(QN_ATTR_SYMMETRIC, "symmetric", "1", 1)
#define A_SWIZZLED INTEGER(QN_ATTR_SWIZZLED, "swizzled", "0", 0)
#define A_RULE CHOICE(QN_ATTR_RULE, "rule", "ceil|ocp|even", QN_RULE_CEIL)
#define A_OUT(first) CHOICE(QN_ATTR_OUT, "out", "bf16|f16|f32", first)

/* {name, shape, formats (default first), optional, weight} */
static const qn_slot_info quantize_fp8_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
    {"scale", "[1] or [M,1] or [M,ceil(K/group)] or [ceil(M/128),KB]", "f32", 1, 0},
};
static const qn_slot_info quantize_fp8_out[] = {
    {"q", "[M,K]", "f8_e4m3|f8_e5m2|u8", 0, 0},
    {"scale", "[1] or [M,1] or [M,ceil(K/group)] or [ceil(M/128),KB]", "f32", 0, 0},
};
static const qn_attr_info quantize_fp8_attrs[] = {
    CHOICE(QN_ATTR_GRANULARITY, "granularity", "tensor|token|group|block", QN_PER_TENSOR),
    A_GROUP,
    A_MODE,
    CHOICE(QN_ATTR_TYPE, "type", "e4m3fn|e4m3fnuz|e5m2", QN_TYPE_E4M3FN),
    A_SCALE_UB,
    A_SCALE_FORMAT,
    A_SCALE_LAYOUT,
};

static const qn_slot_info quantize_int8_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
    {"scale", "[1] or [M,1] or [M,ceil(K/group)]", "f32", 1, 0},
    {"azp", "[1] or [M,1] or [M,ceil(K/group)]", "i32", 1, 0},
};
static const qn_slot_info quantize_int8_out[] = {
    {"q", "[M,K]", "i8", 0, 0},
    {"scale", "[1] or [M,1] or [M,ceil(K/group)]", "f32", 0, 0},
    {"azp", "[1] or [M,1] or [M,ceil(K/group)]", "i32", 1, 0},
};
static const qn_attr_info quantize_int8_attrs[] = {
    CHOICE(QN_ATTR_GRANULARITY, "granularity", "tensor|token|group", QN_PER_TENSOR),
    A_GROUP,
    A_MODE,
    A_SYMMETRIC,
};

static const qn_slot_info quantize_nvfp4_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
    {"global_scale", "[1]", "f32", 1, 0},
};
static const qn_slot_info quantize_nvfp4_out[] = {
    {"q", "[M,K/2]", "u8", 0, 0},
    {"scale", "[M,K/16] or [pad(M,128),pad(K/16,4)]", "f8_e4m3|u8", 0, 0},
    {"global_scale", "[1]", "f32", 0, 0},
};
static const qn_attr_info quantize_nvfp4_attrs[] = {A_SWIZZLED};

static const qn_slot_info quantize_mxfp4_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
};
static const qn_slot_info quantize_mxfp4_out[] = {
    {"q", "[M,K/2]", "u8", 0, 0},
    {"scale", "[M,K/32]", "u8", 0, 0},
};
static const qn_attr_info quantize_mxfp4_attrs[] = {A_RULE};

static const qn_slot_info dequantize_in[] = {
    {"q", "[M,K] or [M,K/2]", "f8_e4m3|f8_e5m2|f8_e4m3fnuz|i8|u8", 0, 0},
    {"scale", "as the quantize operator writes it", "f32|f8_e4m3|u8|e8m0", 0, 0},
    {"azp", "as scale", "i32", 1, 0},
    {"global_scale", "[1]", "f32", 1, 0},
};
static const qn_slot_info dequantize_out[] = {
    {"x", "[M,K]", "f32", 0, 0},
};
static const qn_attr_info dequantize_attrs[] = {
    CHOICE(QN_ATTR_FORMAT, "format", "fp8|int8|nvfp4|mxfp4", QN_QUANT_FP8),
    CHOICE(QN_ATTR_GRANULARITY, "granularity", "tensor|token|group|block", QN_PER_TENSOR),
    A_GROUP,
    A_MODE,
    CHOICE(QN_ATTR_TYPE, "type", "e4m3fn|e4m3fnuz|e5m2|int8", QN_TYPE_E4M3FN),
    A_SCALE_UB,
    A_SCALE_FORMAT,
    A_SCALE_LAYOUT,
    A_SYMMETRIC,
    A_SWIZZLED,
    A_RULE,
};

static const qn_slot_info mm_out[] = {
    {"d", "[M,N]", "bf16|f16|f32", 0, 0},
};
static const qn_slot_info scaled_mm_in[] = {
    {"a", "[M,K]", "i8|f8_e4m3", 0, 0},
    {"b", "[N,K]", "i8|f8_e4m3", 0, 1},
    {"scale_a", "[1] or [M,1]", "f32", 0, 0},
    {"scale_b", "[1] or [N,1]", "f32", 0, 1},
    {"bias", "[N]", FLOATS, 1, 1},
    {"azp_adj", "[N]", "i32", 1, 1},
    {"azp", "[M]", "i32", 1, 0},
};
static const qn_attr_info mm_attrs[] = {A_OUT(QN_OUT_BF16)};

static const qn_slot_info block_scaled_mm_in[] = {
    {"a", "[M,K]", "f8_e4m3", 0, 0},
    {"scale_a", "[M,KB] or [KB,M]", "f32", 0, 0},
    {"b", "[N,K]", "f8_e4m3|f8_e5m2", 0, 1},
    {"scale_b", "[NB,KB]", "f32", 0, 1},
};
static const qn_attr_info block_scaled_mm_attrs[] = {A_OUT(QN_OUT_BF16), A_SCALE_LAYOUT};

static const qn_slot_info grouped_in[] = {
    {"a", "[Mtot,K] or [E,Mmax,K]", "f8_e4m3", 0, 0},
    {"scale_a", "[Mtot,KB] or [KB,Mtot] or [E,Mmax,KB] or [E,KB,Mmax]", "f32", 0, 0},
    {"b", "[E,N,K]", "f8_e4m3", 0, 1},
    {"scale_b", "[E,NB,KB]", "f32", 0, 1},
    {"offsets", "[E+1]", "i32", 1, 0},
    {"masked_m", "[E]", "i32", 1, 0},
};
static const qn_slot_info grouped_out[] = {
    {"d", "[Mtot,N] or [E,Mmax,N]", "bf16|f16|f32", 0, 0},
};
static const qn_attr_info grouped_attrs[] = {
    CHOICE(QN_ATTR_LAYOUT, "layout", "offsets|masked", QN_LAYOUT_OFFSETS),
    A_OUT(QN_OUT_BF16),
    A_SCALE_LAYOUT,
    CHOICE(QN_ATTR_TAIL, "tail", "zeros|keep", QN_TAIL_ZEROS),
};

static const qn_slot_info nvfp4_mm_in[] = {
    {"x", "[M,K]", FLOATS "|i8|f8_e4m3", 1, 0}, {"a", "[M,K/2]", "u8", 1, 0},  {"a_scale", "[M,K/16]", "f8_e4m3", 1, 0},
    {"a_global", "[1]", "f32", 1, 0},           {"b", "[N,K/2]", "u8", 0, 1},  {"b_scale", "[N,K/16]", "f8_e4m3", 0, 1},
    {"b_global", "[1]", "f32", 0, 1},           {"bias", "[N]", FLOATS, 1, 1}, {"x_scale", "[1] or [M,1]", "f32", 1, 0},
};

static const qn_slot_info mxfp4_mm_in[] = {
    {"x", "[M,K]", FLOATS "|i8|f8_e4m3", 0, 0}, {"b", "[N,K/2]", "u8", 0, 1},
    {"b_scale", "[N,K/32]", "u8|e8m0", 0, 1},   {"bias", "[N]", FLOATS, 1, 1},
    {"x_scale", "[1] or [M,1]", "f32", 1, 0},
};

static const qn_slot_info dense_mm_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
    {"b", "[N,K]", FLOATS "|q4_0|q4_1|q5_0|q5_1|q8_0|q2_k|q3_k|q4_k|q5_k|q6_k|iq4_nl|iq4_xs|i8_k", 0, 1},
    {"bias", "[N]", FLOATS, 1, 1},
};

static const qn_slot_info x2h_in[] = {
    {"x", "[M,2K]", FLOATS, 0, 0},
};
static const qn_slot_info silu_mul_quant_out[] = {
    {"q", "[M,K]", "f8_e4m3|f8_e5m2|u8|i8", 0, 0},
    {"scale", "[M,ceil(K/group)] or [ceil(K/group),M]", "f32", 0, 0},
    {"azp", "as scale", "i32", 1, 0},
};
static const qn_attr_info silu_mul_quant_attrs[] = {
    CHOICE(QN_ATTR_TYPE, "type", "e4m3fn|e4m3fnuz|e5m2|int8", QN_TYPE_E4M3FN),
    A_GROUP,
    A_SCALE_LAYOUT,
    A_SCALE_UB,
    A_SYMMETRIC,
};

static const qn_slot_info y_out[] = {
    {"y", "[M,K]", "bf16|f16|f32", 0, 0},
};

static const qn_slot_info rmsnorm_in[] = {
    {"x", "[M,K]", FLOATS, 0, 0},
    {"w", "[K]", FLOATS, 0, 1},
};
static const qn_attr_info rmsnorm_attrs[] = {
    REAL(QN_ATTR_EPS, "eps", "1e-5", 1e-5f),
    A_OUT(QN_OUT_F32),
};

static const qn_slot_info rope_in[] = {
    {"x", "[M,E,K]", FLOATS, 0, 0},
    {"pos", "[M]", "i32", 0, 0},
    {"factors", "[K/2]", "f32", 1, 1},
};
static const qn_slot_info rope_out[] = {
    {"y", "[M,E,K]", "f32", 0, 0},
};
static const qn_attr_info rope_attrs[] = {
    REAL(QN_ATTR_THETA, "theta", "10000", 10000.0f),
    CHOICE(QN_ATTR_STYLE, "style", "half|interleaved", QN_ROPE_HALF),
};

static const qn_slot_info attention_in[] = {
    {"q", "[M,E,K]", FLOATS, 0, 0},
    {"k", "[N,G,K]", FLOATS, 0, 0},
    {"v", "[N,G,K]", FLOATS, 0, 0},
};
static const qn_slot_info attention_out[] = {
    {"o", "[M,E,K]", FLOATS, 0, 0},
};
static const qn_slot_info scaled_attention_in[] = {
    {"q", "[M,E,K]", FLOATS, 0, 0},
    {"k", "[N,G,K]", "f8_e4m3", 0, 0},
    {"v", "[N,G,K]", "f8_e4m3", 0, 0},
    {"k_scale", "[N,G]", "f32", 0, 0},
    {"v_scale", "[N,G]", "f32", 0, 0},
    {"k_recent", "[R,G,K]", FLOATS_HALF, 1, 0},
    {"v_recent", "[R,G,K]", FLOATS_HALF, 1, 0},
};
static const qn_attr_info scaled_attention_attrs[] = {
    REAL(QN_ATTR_SCALE, "scale", "0", 0.0f),
    INTEGER(QN_ATTR_CAUSAL, "causal", "1", 1),
    A_OUT(QN_OUT_F32),
    INTEGER(QN_ATTR_WINDOW, "window", "0", 0),
};
static const qn_attr_info attention_attrs[] = {
    REAL(QN_ATTR_SCALE, "scale", "0", 0.0f),
    INTEGER(QN_ATTR_CAUSAL, "causal", "1", 1),
    A_OUT(QN_OUT_F32),
};

#define A_LEVEL CHOICE(QN_ATTR_LEVEL, "level", "auto|gc|sc|o1|o2|o3|o4", QN_VQ_LEVEL_AUTO)
#define A_VQ                                                                                                           \
    CHOICE(QN_ATTR_FORMAT, "format", "aqlm|quip_e8p|vptq|gptvq", QN_VQ_AQLM),                                          \
        INTEGER(QN_ATTR_NUM_CODEBOOKS, "num_codebooks", "0", 0), INTEGER(QN_ATTR_NBITS, "nbits_per_codebook", "0", 0), \
        INTEGER(QN_ATTR_IN_GROUP, "in_group_size", "0", 0), INTEGER(QN_ATTR_OUT_GROUP, "out_group_size", "0", 0),      \
        CHOICE(QN_ATTR_CODEBOOK, "codebook", "auto|E8P12|E8P12RVQ3B|E8P12RVQ4B", QN_VQ_CODEBOOK_AUTO),                 \
        REAL(QN_ATTR_RESID_SCALE, "resid_scale_override", "0", 0.0f),                                                  \
        INTEGER(QN_ATTR_VECTOR_LEN, "vector_len", "0", 0), INTEGER(QN_ATTR_NUM_CENTROIDS, "num_centroids", "0", 0),    \
        INTEGER(QN_ATTR_NUM_RES_CENTROIDS, "num_res_centroids", "0", 0),                                               \
        INTEGER(QN_ATTR_GROUP_NUM, "group_num", "0", 0), INTEGER(QN_ATTR_OUTLIER_SIZE, "outlier_size", "0", 0),        \
        INTEGER(QN_ATTR_OUTLIER_VECTOR_LEN, "outlier_vector_len", "0", 0),                                             \
        INTEGER(QN_ATTR_NUM_OUTLIER_CENTROIDS, "num_outlier_centroids", "0", 0),                                       \
        INTEGER(QN_ATTR_IN_FEATURES, "in_features", "0", 0), INTEGER(QN_ATTR_OUT_FEATURES, "out_features", "0", 0)

/* The tensors of every vector format, named as checkpoints name them (slots: QN_VQ_*). */
#define VQ_TENSORS                                                                                                     \
    {"codes", "[N/out_group,K/in_group,C] or packed [N/out_group,bytes]; gptvq [N,K/4]", "i8|i16|u8|u16", 1, 1},       \
        {"codebooks", "[C,2^bits,out_group,in_group]; gptvq [NT,KT,256,4]", FLOATS_HALF "|i8", 1, 1},                  \
        {"scales", "[N/out_group,1,1,1] or [N/out_group]", FLOATS_HALF, 1, 1},                                         \
        {"codebook_scales", "[NT,KT]", "f32", 1, 1}, {"Qidxs", "[N,words]", "i64", 1, 1},                              \
        {"SU", "[K]", FLOATS_HALF, 1, 1}, {"SV", "[N]", FLOATS_HALF, 1, 1}, {"Wscale", "[1]", FLOATS, 1, 1},           \
        {"scaleWH", "[K]", FLOATS, 1, 1}, {"codebook_id", "[1]", "i64|i32", 1, 1},                                     \
        {"centroids.weight", "[groups,num_centroids*vector_len]", FLOATS_HALF, 1, 1},                                  \
        {"res_centroids.weight", "[groups,num_res_centroids*vector_len]", FLOATS_HALF, 1, 1},                          \
        {"indices", "[groups,ceil(N/vector_len),words]", "i32", 1, 1},                                                 \
        {"outlier_centroids.weight", "[1,num_outlier_centroids*outlier_vector_len]", FLOATS_HALF, 1, 1},               \
        {"outlier_indices", "[1,ceil(N/outlier_vector_len),outlier_size]", "i16|u16", 1, 1},                           \
        {"perm", "[K]", "i16|u16", 1, 1}, {"weight_scale", "[K]", FLOATS_HALF, 1, 1},                                  \
    {                                                                                                                  \
        "weight_bias", "[K]", FLOATS_HALF, 1, 1                                                                        \
    }

static const qn_slot_info vq_dequantize_in[] = {VQ_TENSORS};
static const qn_slot_info vq_dequantize_out[] = {
    {"w", "[N,K]", "f32", 0, 0},
};
static const qn_attr_info vq_dequantize_attrs[] = {A_VQ};

static const qn_slot_info vq_mm_in[] = {{"x", "[M,K]", FLOATS_HALF, 0, 0}, VQ_TENSORS, {"bias", "[N]", FLOATS, 1, 1}};
static const qn_slot_info vq_mm_out[] = {
    {"y", "[M,N]", "f16|bf16|f32", 0, 0},
};
static const qn_attr_info vq_mm_attrs[] = {A_VQ, A_OUT(QN_OUT_F16), A_LEVEL};

static const qn_slot_info vq_encode_in[] = {
    {"x", "[N,M,E,K]", FLOATS, 0, 0},
    {"codebook", "[E,K/channels,2^bits,channels]", FLOATS_HALF, 0, 1},
};
static const qn_slot_info vq_encode_out[] = {
    {"codes", "[N,M,E,K/channels]", "u8|u16", 0, 0},
};
static const qn_attr_info vq_encode_attrs[] = {
    INTEGER(QN_ATTR_CHANNELS, "channels", "0", 0),
    INTEGER(QN_ATTR_BITS, "bits", "0", 0),
};

static const qn_slot_info vq_attention_in[] = {
    {"q", "[M,E,K]", FLOATS, 0, 0},
    {"k_codes", "[M,N,G,K/channels], paged [pages,page,G,K/channels]", "u8|u16", 0, 0},
    {"v_codes", "[M,N,G,K/channels], paged [pages,page,G,K/channels]", "u8|u16", 0, 0},
    {"k_codebook", "[G,K/channels,2^bits,channels]", FLOATS_HALF, 0, 1},
    {"v_codebook", "[G,K/channels,2^bits,channels]", FLOATS_HALF, 0, 1},
    {"seq_lens", "[M]", "i32", 0, 0},
    {"k_recent", "[M,R,G,K]", FLOATS_HALF, 1, 0},
    {"v_recent", "[M,R,G,K]", FLOATS_HALF, 1, 0},
    {"rope_factors", "[K/2]", "f32", 1, 1},
    {"pages", "[M,N/page]", "i32", 1, 0},
};
static const qn_slot_info vq_attention_out[] = {
    {"o", "[M,E,K]", "f32", 0, 0},
    {"lse", "[M,E]", "f32", 0, 0},
};
static const qn_attr_info vq_attention_attrs[] = {
    REAL(QN_ATTR_SCALE, "scale", "0", 0.0f),
    REAL(QN_ATTR_ROPE_THETA, "rope_theta", "0", 0.0f),
    CHOICE(QN_ATTR_STYLE, "rope_style", "half|interleaved", QN_ROPE_HALF),
    INTEGER(QN_ATTR_CHANNELS, "channels", "0", 0),
    INTEGER(QN_ATTR_BITS, "bits", "0", 0),
    INTEGER(QN_ATTR_WINDOW, "window", "0", 0),
    INTEGER(QN_ATTR_PAGE, "page", "0", 0),
    A_LEVEL,
};

#define ROW(id, text_name, text, ins, outs, attributes)                                                                \
    {                                                                                                                  \
        .op = id, .name = text_name, .summary = text, .in_count = COUNT(ins), .out_count = COUNT(outs),                \
        .attr_count = COUNT(attributes), .in = ins, .out = outs, .attrs = attributes                                   \
    }

static const qn_op_info table[] = {
    ROW(QN_OP_QUANTIZE_FP8, "quantize_fp8",
        "q = fp8(x / scale), scale = amax / FMAX over tensor, token, group or block", quantize_fp8_in, quantize_fp8_out,
        quantize_fp8_attrs),
    ROW(QN_OP_QUANTIZE_INT8, "quantize_int8", "q = sat8(round(x / scale) + azp), x = scale * (q - azp)",
        quantize_int8_in, quantize_int8_out, quantize_int8_attrs),
    ROW(QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4", "x = e2m1(q) * scale / global_scale, an e4m3 scale per 16 elements",
        quantize_nvfp4_in, quantize_nvfp4_out, quantize_nvfp4_attrs),
    ROW(QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4", "x = e2m1(q) * 2^(scale-127), an e8m0 scale per 32 elements",
        quantize_mxfp4_in, quantize_mxfp4_out, quantize_mxfp4_attrs),
    ROW(QN_OP_DEQUANTIZE, "dequantize", "x from the outputs of a quantize operator", dequantize_in, dequantize_out,
        dequantize_attrs),
    ROW(QN_OP_SCALED_MM, "scaled_mm", "d = scale_a * (scale_b * (a b^T - azp azp_adj)) + bias", scaled_mm_in, mm_out,
        mm_attrs),
    ROW(QN_OP_BLOCK_SCALED_MM, "block_scaled_mm",
        "d = sum over 128-blocks of K of scale_a[m,kb] scale_b[n/128,kb] a[m,k] b[n,k]", block_scaled_mm_in, mm_out,
        block_scaled_mm_attrs),
    ROW(QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm", "block_scaled_mm of each expert's rows by its own b",
        grouped_in, grouped_out, grouped_attrs),
    ROW(QN_OP_NVFP4_MM, "nvfp4_mm", "d = x b^T (+ bias), b and maybe x as quantize_nvfp4 writes them", nvfp4_mm_in,
        mm_out, mm_attrs),
    ROW(QN_OP_MXFP4_MM, "mxfp4_mm", "d = x b^T (+ bias), b as quantize_mxfp4 writes it", mxfp4_mm_in, mm_out, mm_attrs),
    ROW(QN_OP_DENSE_MM, "dense_mm", "d = x b^T (+ bias), b of a float or a GGUF block format", dense_mm_in, mm_out,
        mm_attrs),
    ROW(QN_OP_SILU_MUL_QUANT, "silu_mul_quant", "q, scale = quantize(silu(x[:, :K]) * x[:, K:]) in groups along K",
        x2h_in, silu_mul_quant_out, silu_mul_quant_attrs),
    ROW(QN_OP_SILU_MUL, "silu_mul", "y = silu(x[:, :K]) * x[:, K:]", x2h_in, y_out, mm_attrs),
    ROW(QN_OP_RMSNORM, "rmsnorm", "y = x / sqrt(mean(x^2) + eps) * w", rmsnorm_in, y_out, rmsnorm_attrs),
    ROW(QN_OP_ROPE, "rope", "y = x with pairs rotated by pos * theta^(-2i/K) (/ factors[i])", rope_in, rope_out,
        rope_attrs),
    ROW(QN_OP_ATTENTION, "attention", "o = softmax(scale q k^T) v, query t of M sees keys 0..N-M+t when causal",
        attention_in, attention_out, attention_attrs),
    ROW(QN_OP_SCALED_ATTENTION, "scaled_attention", "attention over 8-bit keys and values, a scale for each and head",
        scaled_attention_in, attention_out, scaled_attention_attrs),
    ROW(QN_OP_VQ_DEQUANTIZE, "vq_dequantize",
        "w from vector-quantised weights: codes into codebooks, scales, transforms", vq_dequantize_in,
        vq_dequantize_out, vq_dequantize_attrs),
    ROW(QN_OP_VQ_MM, "vq_mm", "y = x w^T (+ bias), w as vq_dequantize gives it", vq_mm_in, vq_mm_out, vq_mm_attrs),
    ROW(QN_OP_VQ_ENCODE, "vq_encode", "codes of the nearest centroids, a codebook for every channel group of a head",
        vq_encode_in, vq_encode_out, vq_encode_attrs),
    ROW(QN_OP_VQ_ATTENTION, "vq_attention", "o = softmax(scale q k^T) v, one query a sequence, k and v as codes",
        vq_attention_in, vq_attention_out, vq_attention_attrs),
};

const qn_op_info *qn_op_get_info(qn_op op)
{
    for (int32_t i = 0; i < COUNT(table); i++) {
        if (table[i].op == op) {
            return &table[i];
        }
    }
    return NULL;
}

qn_op qn_op_at(int32_t i)
{
    return i >= 0 && i < COUNT(table) ? table[i].op : QN_OP_NONE;
}

qn_op qn_op_find(const char *name)
{
    for (int32_t i = 0; name && i < COUNT(table); i++) {
        if (strcmp(table[i].name, name) == 0) {
            return table[i].op;
        }
    }
    return QN_OP_NONE;
}

static int32_t find_slot(const qn_slot_info *slots, int32_t count, const char *name)
{
    for (int32_t i = 0; name && i < count; i++) {
        if (strcmp(slots[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int32_t qn_op_in_slot(qn_op op, const char *name)
{
    const qn_op_info *info = qn_op_get_info(op);
    return info ? find_slot(info->in, info->in_count, name) : -1;
}

int32_t qn_op_out_slot(qn_op op, const char *name)
{
    const qn_op_info *info = qn_op_get_info(op);
    return info ? find_slot(info->out, info->out_count, name) : -1;
}
