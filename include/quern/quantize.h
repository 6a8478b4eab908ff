/* Schemes and the quantiser. */
#ifndef QUERN_QUANTIZE_H
#define QUERN_QUANTIZE_H

#include <quern/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A scheme: how the linear weights of a checkpoint are stored and how the
 * activations that meet them are quantised. */
typedef struct qn_scheme_info {
    const char *name;    /* "fp8-block" */
    const char *summary; /* "FP8 e4m3, 128x128 weight blocks, 1x128 dynamic activations" */
    const char *layout;  /* "dense", "deepseek-fp8", "compressed-tensors", "aqlm", "gptvq", "vptq", "quip" */
} qn_scheme_info;

/* Scheme i in table order; QN_E_ARGUMENT past the end. */
QN_API qn_status qn_scheme_at(int32_t i, qn_scheme_info *info);

typedef struct qn_quantize_progress {
    int32_t index, total; /* tensors done, of how many */
    const char *name;
    qn_shape shape;
    const char *from, *to;
    uint64_t bytes_before, bytes_after;
    double rms_error; /* relative root mean square error of the weights; 0 for copies */
} qn_quantize_progress;

/* Return 0 to go on, anything else to cancel. Called from one thread at a time:
 * with index 0 while the source model is calibrated (only name and total are set
 * then), and after each tensor. */
typedef int (*qn_quantize_progress_fn)(void *user, const qn_quantize_progress *progress);

typedef struct qn_quantize_options {
    size_t size; /* sizeof(qn_quantize_options), set by qn_quantize_options_init */
    const char *scheme;
    int32_t force;        /* replace an existing output folder */
    uint64_t shard_bytes; /* most bytes a weight file; 0: 4 GB */
    qn_exec exec;
    qn_quantize_progress_fn progress;
    void *progress_user;
    int32_t keep_first, keep_last; /* layers at either end whose linear weights stay BF16; -1: the scheme's default */
    int32_t keep_qkv;        /* 1: the q, k and v projections stay BF16, 0: they do not; -1: the scheme's default */
    const char *head;        /* scheme of the output layer (lm_head): "fp8", "int8" or "int8-azp" beside a scheme of
                              * compressed-tensors; NULL, "bf16": it stays plain. Embeddings that it shares stay as
                              * they are, and the folder gets a weight of its own for it */
    const char *calibration; /* text file for the calibration run; NULL: a built-in text */
    const char *kv;          /* also write codebooks of this KV scheme (qn_kv_at); NULL: none */
    int32_t pack;            /* 1: also write the packed file (quern/model.h) into the folder */
    int32_t resume;          /* 1: keep each tensor that took long in OUTPUT.unfinished until the folder is whole, and
                              * take those that an interrupted run left there */
} qn_quantize_options;

typedef struct qn_quantize_result {
    int32_t tensors;
    int32_t resumed; /* of them, taken from an interrupted run */
    int64_t parameters;
    uint64_t bytes_before, bytes_after;
    double bits_per_weight;
    double seconds;
    uint64_t packed_bytes; /* of the packed file; 0: none was asked for */
} qn_quantize_result;

/* keep_first, keep_last and keep_qkv -1, everything else 0. */
QN_API void qn_quantize_options_init(qn_quantize_options *options);

/* Write folder `output` (model-*.safetensors, config.json, tokenizer files)
 * from the checkpoint at `input`. Everything is written under a temporary name
 * in the parent folder and renamed when complete: `output` is absent, the old
 * one, or whole; leftovers of a killed run are removed by the next. With resume 1 the run after an interrupted one goes
 * on with its finished tensors and writes the same bytes as one that was not interrupted: a tensor is taken when all
 * that its codes depend on is the same.
 * QN_E_ARGUMENT: unknown scheme or one that no output layer has, layers to keep below -1 or all of them. QN_E_EXISTS:
 * output exists, force is 0. QN_E_UNSUPPORTED: pack is 1 and no kernel of this machine packs such weights. QN_E_FILE:
 * non-finite weights (tensor and index named). QN_E_IO, QN_E_MEMORY, QN_E_CANCELLED. */
QN_API qn_status qn_quantize(qn_ctx *ctx, const char *input, const char *output, const qn_quantize_options *options,
                             qn_quantize_result *result, qn_error *error);

/* ---- Codebooks of KV schemes ---- */

typedef struct qn_kv_books_options {
    size_t size;             /* sizeof(qn_kv_books_options), set by qn_kv_books_options_init */
    const char *scheme;      /* one of qn_kv_at with codebooks */
    const char *calibration; /* text file for the calibration run; NULL: a built-in text */
    int32_t force;           /* replace an existing file */
    qn_exec exec;
    qn_quantize_progress_fn progress; /* index counts layers; the bytes are a token's keys and values in that layer */
    void *progress_user;
} qn_kv_books_options;

typedef struct qn_kv_books_result {
    int32_t layers, tokens;                                 /* tokens: of the calibration run */
    uint64_t bytes;                                         /* of the file */
    uint64_t bytes_per_token_before, bytes_per_token_after; /* of keys and values in all layers */
    double seconds;
} qn_kv_books_result;

/* Everything 0. */
QN_API void qn_kv_books_options_init(qn_kv_books_options *options);

/* Run a text through the model at `model`, fit codebooks to its keys (before RoPE) and values by k-means, and write
 * them atomically to `path`; NULL: where opening the model finds them. The result does not depend on the threads.
 * QN_E_ARGUMENT: the scheme has no codebooks or is none. QN_E_EXISTS: force is 0. QN_E_UNSUPPORTED: the head size is no
 * multiple of the channels coded together. QN_E_FILE: keys or values that are not finite. Statuses of qn_model_open;
 * QN_E_IO, QN_E_MEMORY, QN_E_CANCELLED. result may be NULL. */
QN_API qn_status qn_make_kv_books(qn_ctx *ctx, const char *model, const char *path, const qn_kv_books_options *options,
                                  qn_kv_books_result *result, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
