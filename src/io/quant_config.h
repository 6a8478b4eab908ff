/* quantization_config of config.json: which scheme the linear weights of a
 * folder are in, and which of them it leaves alone. Reads "fp8" (of blocks, as DeepSeek has it, or of tensors),
 * "compressed-tensors", "modelopt" (also as hf_quant_config.json), "aqlm", "vptq", "gptvq", and QuIP#'s quip_params;
 * writes the same for the quantiser, but for modelopt. All from the rows of format/scheme.h. */
#ifndef QN_IO_QUANT_CONFIG_H
#define QN_IO_QUANT_CONFIG_H

#include <jansson.h>

#include "base/context.h"
#include "base/error.h"
#include "format/scheme.h"

typedef struct qn_quant_config qn_quant_config;

/* Parse the object. QN_E_FILE: malformed. QN_E_UNSUPPORTED: a method, format or
 * strategy that no scheme row describes, named. */
qn_status qn_quant_config_parse(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error);

/* The same for the object of hf_quant_config.json; *out NULL with QN_OK: it quantises no weights. */
qn_status qn_quant_config_parse_file(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error);

/* The same for the object quip_params. */
qn_status qn_quant_config_parse_quip(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error);
void qn_quant_config_destroy(qn_quant_config *config); /* NULL is fine */

/* Scheme of the linear weights: of a config with several groups, the one of all that no other names. */
const qn_scheme *qn_quant_config_scheme(const qn_quant_config *config);

/* Scheme of one linear module ("lm_head"), by the groups' targets; qn_scheme_dense() when no group is for it. NULL: out
 * of memory. */
const qn_scheme *qn_quant_config_scheme_of(const qn_quant_config *config, const char *module);

/* 1 when the linear module ("model.layers.0.self_attn.q_proj") is left unquantised, 0 when not, -1: out of memory. */
int qn_quant_config_ignores(const qn_quant_config *config, const char *module);

/* What is said of a vector-quantised module: sizes, as attributes of the operators, and of the scheme's tensors
 * (bit i: vq.tensors[i]) those that must be there and those that may. QN_E_FILE, QN_E_UNSUPPORTED. */
typedef struct qn_vq_module {
    qn_attr_value attr[QN_ATTR_COUNT];
    uint32_t needed, allowed;
} qn_vq_module;
qn_status qn_quant_config_module(const qn_quant_config *config, const char *module, qn_vq_module *out, qn_error *error);

/* Key in config.json that the object of a scheme goes under. */
const char *qn_quant_config_key(const qn_scheme *scheme);

/* The object to put into config.json for a scheme, with the output layer in `head` (NULL: in none); ignore: names of
 * the linear modules left unquantised (normally just "lm_head"). NULL with *status QN_OK for dense schemes, which have
 * none; NULL with QN_E_MEMORY. New reference. */
json_t *qn_quant_config_make(const qn_scheme *scheme, const qn_scheme *head, const char *const *ignore,
                             int32_t ignore_count, qn_status *status);

/* Say of a quantised module [n,k] what its scheme's config says of each (vptq; others: nothing). bias: 1 when it has
 * one. 1: out of memory. */
int qn_quant_config_add_module(json_t *quantization, const qn_scheme *scheme, const char *module, int64_t n, int64_t k,
                               int bias);

#endif
