/* The raw material a tokenizer is built from: either the texts of a folder or
 * the arrays of a GGUF file. Filled by src/io, read by src/text; all pointers
 * belong to the checkpoint and outlive the tokenizer's creation only. */
#ifndef QN_TEXT_SOURCE_H
#define QN_TEXT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct qn_string {
    const char *data; /* not zero-terminated; NULL: absent */
    size_t bytes;
} qn_string;

typedef struct qn_tokenizer_source {
    /* a folder: whole files */
    qn_string tokenizer_json, tokenizer_config_json, chat_template_jinja, generation_config_json;
    /* a GGUF file: metadata tokenizer.ggml.* */
    const char *model, *pre; /* "gpt2", "llama"; "smollm"; NULL: absent */
    const qn_string *tokens;
    const int32_t *token_types; /* NULL: absent; 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte */
    const float *scores; /* NULL: absent */
    int32_t token_count;
    const qn_string *merges; /* "left right" */
    int32_t merge_count;
    int32_t bos_id, eos_id, eot_id, unk_id, pad_id; /* -1: absent */
    int32_t add_bos, add_eos, add_space;            /* -1: absent */
    const char *chat_template;                      /* NULL: absent */
} qn_tokenizer_source;

#endif
