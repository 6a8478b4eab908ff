/* Names of a layer's weights in GGUF ("blk.N.X.weight") and Hugging Face
 * ("model.layers.N.X.weight") files, of llama and the architectures like it; biases are X.bias. */
#ifndef QN_IO_CHECKPOINT_LLAMA_H
#define QN_IO_CHECKPOINT_LLAMA_H

#define QN_LLAMA_LAYER_NAMES 11

typedef struct qn_llama_name {
    const char *gguf, *hf;
    int rotated; /* rows are reordered in GGUF files of llama */
} qn_llama_name;

extern const qn_llama_name qn_llama_layer_names[QN_LLAMA_LAYER_NAMES];

#endif
