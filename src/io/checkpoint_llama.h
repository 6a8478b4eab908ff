/* Names of a llama layer's weights in GGUF ("blk.N.X.weight") and Hugging Face
 * ("model.layers.N.X.weight") files. */
#ifndef QN_IO_CHECKPOINT_LLAMA_H
#define QN_IO_CHECKPOINT_LLAMA_H

#define QN_LLAMA_LAYER_NAMES 9

typedef struct qn_llama_name {
    const char *gguf, *hf;
    int rotated; /* rows are reordered in GGUF files */
} qn_llama_name;

extern const qn_llama_name qn_llama_layer_names[QN_LLAMA_LAYER_NAMES];

#endif
