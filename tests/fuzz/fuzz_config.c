/* Any text as config.json (hyperparameters and quantization_config) and as a shard index. */
#include <stdlib.h>

#include "io/checkpoint_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge(qn_status status, const qn_error *error)
{
    if (status != QN_OK && ((status != QN_E_FILE && status != QN_E_UNSUPPORTED) || !error->text[0])) {
        abort();
    }
}

/* What is accepted can be written, unless it is only read, and what is written can be read. */
static void check_round_trip(const qn_ctx *ctx, const qn_quant_config *quant)
{
    if (qn_scheme_find(qn_quant_config_scheme(quant)->name) != qn_quant_config_scheme(quant)) {
        return;
    }
    qn_status status;
    qn_error error = {0};
    qn_quant_config *again = NULL;
    json_t *made = qn_quant_config_make(qn_quant_config_scheme(quant), NULL, NULL, 0, &status);
    if (!made || qn_quant_config_parse(ctx, made, &again, &error) != QN_OK ||
        qn_quant_config_scheme(again) != qn_quant_config_scheme(quant)) {
        abort();
    }
    qn_quant_config_destroy(again);
    json_decref(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    json_t *json = NULL;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 0;
    }
    judge(qn_json_parse((const char *)data, size, "fuzz", &json, &error), &error);
    if (json) {
        qn_hparams hparams;
        judge(qn_hparams_from_config(json, &hparams, &error), &error);
        qn_quant_config *quant = NULL;
        judge(qn_quant_config_parse(ctx, json_object_get(json, "quantization_config"), &quant, &error), &error);
        if (quant) {
            (void)qn_quant_config_ignores(quant, "model.layers.0.self_attn.q_proj");
            check_round_trip(ctx, quant);
            qn_quant_config_destroy(quant);
        }
        judge(qn_quant_config_parse_file(ctx, json, &quant, &error), &error);
        if (quant) {
            (void)qn_quant_config_ignores(quant, "model.layers.0.self_attn.q_proj");
            (void)qn_quant_config_scheme_of(quant, "model.layers.0.self_attn.q_proj");
            qn_quant_config_destroy(quant);
        }
        const json_t *map;
        judge(qn_index_check(json, &map, &error), &error);
    }
    json_decref(json);
    qn_ctx_destroy(ctx);
    return 0;
}
