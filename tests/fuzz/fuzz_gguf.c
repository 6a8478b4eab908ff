/* Any bytes as a GGUF file: every accepted tensor and string is read to its
 * last byte, and the hyperparameters are taken from the metadata. */
#include <stdlib.h>
#include <string.h>

#include "io/checkpoint_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t sum_of(const void *data, uint64_t count)
{
    const uint8_t *bytes = data;
    uint8_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum = (uint8_t)(sum + bytes[i]);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 0;
    }
    qn_gguf file;
    volatile uint8_t sum = 0;
    qn_status status = qn_gguf_parse(ctx, data, size, "fuzz", &file, &error);
    if (status == QN_OK) {
        for (int32_t i = 0; i < file.tensor_count; i++) {
            const qn_gguf_tensor *t = &file.tensors[i];
            sum = (uint8_t)(sum + sum_of(t->view.data, t->end - t->begin));
        }
        for (int32_t i = 0; i < file.value_count; i++) {
            const qn_gguf_value *v = &file.values[i];
            const unsigned char *at = v->data;
            for (uint64_t j = 0; v->type == QN_GGUF_STRING && j < v->count; j++) {
                size_t bytes;
                const char *text = qn_gguf_next_string(&at, &bytes);
                sum = (uint8_t)(sum + sum_of(text, bytes));
            }
        }
        qn_hparams hparams;
        status = qn_hparams_from_gguf(&file, &hparams, &error);
        if (status == QN_OK) {
            json_t *config = qn_hparams_to_config(&hparams);
            qn_hparams again;
            if (qn_hparams_from_config(config, &again, &error) != QN_OK || again.hidden != hparams.hidden ||
                again.rope_theta != hparams.rope_theta || again.rms_eps != hparams.rms_eps ||
                again.rope_scaled != hparams.rope_scaled || again.rope_magnitude != hparams.rope_magnitude ||
                (again.rope_scaled &&
                 memcmp(again.rope_factors, hparams.rope_factors, sizeof again.rope_factors) != 0)) {
                abort();
            }
            json_decref(config);
        }
    }
    if (status != QN_OK && ((status != QN_E_FILE && status != QN_E_UNSUPPORTED) || !error.text[0])) {
        abort();
    }
    qn_gguf_free(&file);
    qn_ctx_destroy(ctx);
    return 0;
}
