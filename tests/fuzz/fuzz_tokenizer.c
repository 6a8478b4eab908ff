/* Bytes as a tokenizer.json; when it is taken, encode and decode a fixed text and the file itself, and export. */
#include <stdlib.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t ids[1 << 16];
    static char text[1 << 16];
    static const char fixed[] = "Hello,  world 123 it's\n\xC3\xA9\xF0\x9F\x98\x80<|im_end|>\xff ab";
    qn_ctx *ctx = NULL;
    qn_tokenizer *t = NULL;
    qn_error error;
    size_t count, bytes;
    if (qn_ctx_create(NULL, &ctx, &error) != QN_OK) {
        return 0;
    }
    qn_tokenizer_source source = {
        .bos_id = -1, .eos_id = -1, .eot_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1, .add_eos = -1};
    source.tokenizer_json = (qn_string){(const char *)data, size};
    if (qn_tokenizer_create(ctx, &source, 4096, &t, &error) == QN_OK) {
        const struct {
            const char *text;
            size_t bytes;
        } inputs[] = {{fixed, sizeof fixed - 1}, {(const char *)data, size < 4096 ? size : 4096}};
        for (int i = 0; i < 2; i++) {
            if (qn_tokenizer_encode(t, inputs[i].text, inputs[i].bytes, 3, ids, sizeof ids / sizeof *ids, &count,
                                    &error) == QN_OK &&
                qn_tokenizer_decode(t, ids, count, 0, text, sizeof text, &bytes, &error) == QN_E_ARGUMENT) {
                abort(); /* an id that was made must be known */
            }
        }
        qn_buffer json = qn_buffer_make(ctx), config = qn_buffer_make(ctx);
        if (qn_tokenizer_export(t, &json, &config, &error) == QN_OK) {
            qn_tokenizer *again = NULL;
            source.tokenizer_json = (qn_string){json.data, json.length};
            source.tokenizer_config_json = (qn_string){config.data, config.length};
            if (qn_tokenizer_create(ctx, &source, 4096, &again, &error) != QN_OK) {
                abort(); /* what was written must read back */
            }
            qn_tokenizer_destroy(again);
        }
        qn_buffer_free(&json);
        qn_buffer_free(&config);
    }
    qn_tokenizer_destroy(t);
    qn_ctx_destroy(ctx);
    return 0;
}
