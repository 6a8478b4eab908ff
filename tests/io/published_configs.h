/* quantization_config as other producers write it. */
#ifndef QN_TESTS_IO_PUBLISHED_CONFIGS_H
#define QN_TESTS_IO_PUBLISHED_CONFIGS_H

#include "format/scheme.h"

/* What is only read, by the rows behind those that are written, as its producers say it. */
#define CT_SIDE(type, strategy, dynamic, more)                                                                         \
    "{\"num_bits\":8,\"type\":\"" type "\",\"strategy\":\"" strategy "\",\"dynamic\":" dynamic more "}"
#define CT_SYMMETRIC(word) ",\"symmetric\":" word ",\"observer\":\"minmax\""
#define CT_CONFIG(format, weights, activations)                                                                        \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format "\",\"config_groups\":{\"group_0\":{"              \
    "\"targets\":[\"Linear\"],\"weights\":" weights ",\"input_activations\":" activations                              \
    ",\"output_activations\":null}},\"ignore\":[\"lm_head\"],\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\"}," \
    "\"quantization_status\":\"frozen\",\"sparsity_config\":{\"format\":\"dense\"},\"transform_config\":{}}"
#define MODELOPT_CONFIG(algo, more)                                                                                    \
    "{\"quant_method\":\"modelopt\",\"quant_algo\":\"" algo "\",\"ignore\":[\"lm_head\",\"model.layers.9*\"]" more "}"
static const char *const published[] = {
    CT_CONFIG("float-quantized", CT_SIDE("float", "tensor", "false", CT_SYMMETRIC("true")),
              CT_SIDE("float", "tensor", "false", CT_SYMMETRIC("true"))),
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"ignored_layers\":[\"lm_head\"],"
    "\"kv_cache_scheme\":\"static\"}",
    MODELOPT_CONFIG("FP8", ",\"kv_cache_quant_algo\":\"FP8\""),
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"modules_to_not_convert\":[\"lm_head\"],"
    "\"weight_block_size\":null}",
    MODELOPT_CONFIG("FP8_PER_CHANNEL_PER_TOKEN", ""),
    CT_CONFIG("float-quantized",
              CT_SIDE("float", "block", "false", CT_SYMMETRIC("true") ",\"block_structure\":[128,128]"),
              CT_SIDE("float", "group", "true", CT_SYMMETRIC("true") ",\"group_size\":128")),
    CT_CONFIG("int-quantized", CT_SIDE("int", "channel", "false", CT_SYMMETRIC("true")),
              CT_SIDE("int", "tensor", "false", CT_SYMMETRIC("true"))),
    CT_CONFIG("naive-quantized", CT_SIDE("int", "channel", "false", CT_SYMMETRIC("true")),
              CT_SIDE("int", "tensor", "false", CT_SYMMETRIC("false"))),
    MODELOPT_CONFIG("W4A16_NVFP4", ",\"group_size\":16"),
    MODELOPT_CONFIG("NVFP4", ",\"group_size\":16,\"kv_cache_scheme\":{\"num_bits\":8}"),
    MODELOPT_CONFIG("W4A8_NVFP4_FP8", ",\"group_size\":32"),
    MODELOPT_CONFIG("W4A8_MXFP4_FP8", ",\"group_size\":32"),
};

static inline int32_t written_rows(void)
{
    int32_t n = 0;
    while (qn_scheme_get(n)) {
        n++;
    }
    return n;
}

#endif
