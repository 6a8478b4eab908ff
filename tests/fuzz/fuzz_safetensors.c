/* Any bytes as a safetensors file: every accepted tensor is read to its last byte. */
#include <stdlib.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 0;
    }
    qn_safetensors file;
    const qn_status status = qn_safetensors_parse(ctx, data, size, "fuzz", &file, &error);
    if (status == QN_OK) {
        volatile uint8_t sum = 0;
        for (int32_t i = 0; i < file.count; i++) {
            const uint8_t *bytes = file.tensors[i].view.data;
            for (uint64_t b = 0; b < file.tensors[i].end - file.tensors[i].begin; b++) {
                sum = (uint8_t)(sum + bytes[b]);
            }
            if (qn_safetensors_find(&file, file.tensors[i].name) != i) {
                abort();
            }
        }
    } else if ((status != QN_E_FILE && status != QN_E_UNSUPPORTED) || !error.text[0]) {
        abort();
    }
    qn_safetensors_free(&file);
    qn_ctx_destroy(ctx);
    return 0;
}
