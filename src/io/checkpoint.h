/* A checkpoint as the model and the quantiser see it: one list of logical
 * weights under Hugging Face names, whatever file they come from, plus the
 * hyperparameters and the tokenizer's raw material.
 *
 * GGUF names are translated (blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight).
 * GGUF files of architecture llama store q and k rows (and biases) reordered for
 * interleaved RoPE; such weights carry rope_interleaved and whoever reads rows maps them
 * back with qn_weight_source_row. */
#ifndef QN_IO_CHECKPOINT_H
#define QN_IO_CHECKPOINT_H

#include <jansson.h>

#include <quern/model.h>
#include <quern/view.h>

#include "format/scheme.h"
#include "text/source.h"

/* A tensor of a vector-quantised weight, under the name that checkpoints and operators have for it. */
typedef struct qn_weight_part {
    const char *name;
    qn_view view;
} qn_weight_part;

typedef struct qn_weight {
    const char *name;         /* logical name, e.g. "model.norm.weight" (always ends in .weight or .bias) */
    const qn_scheme *scheme;  /* how data and scales make numbers; qn_scheme_dense() for plain tensors */
    int32_t ndim;             /* logical shape: 1: [n]; 2: [n,k] */
    int64_t n, k;             /* k = 1 when ndim is 1 */
    qn_view data;             /* as stored, e.g. U8[n,k/2] for nvfp4, Q4_1[n,k] for GGUF */
    qn_view scale;            /* by the scheme; format NONE when there is none */
    qn_format blocks;         /* NONE, or the file's rows are in this format of blocks: `data` and `scale` point at them
                                 and say what copies of them are (MXFP4, NVFP4: codes and scales; others: rewritten) */
    const qn_weight_part *parts; /* vector-quantised: all tensors, `data` (the codes) first; else NULL */
    int32_t part_count;
    const qn_attr_value *attr;   /* [QN_ATTR_COUNT]: sizes that the shapes of parts leave open; NULL: none */
    float global_scale;       /* nvfp4: weight_global_scale (dequantising divides); else 0 */
    float input_global_scale; /* nvfp4 W4A4: the activations'; 0 when absent */
    float input_scale;        /* of static activations, and their zero point; else 0 */
    int32_t input_zero_point;
    int32_t rope_interleaved; /* rows are GGUF-ordered heads of this many... 0: no; else rows a head */
} qn_weight;

#define QN_ROPE_PAIRS 512 /* of a head whose frequencies may be scaled */

typedef struct qn_hparams {
    char architecture[32]; /* "llama", "qwen2", "qwen3" */
    char name[128];
    int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab_size, context_length;
    int32_t tied_embeddings;
    int32_t qkv_bias, o_bias, mlp_bias; /* 1: these products have biases */
    int32_t head_norms;                 /* 1: each head of queries and keys is normalised before it is turned */
    float rope_theta, rms_eps;
    /* Scaled RoPE: the frequency of pair i is divided by rope_factors[i] when rope_scaled is 1; queries and keys are
     * rope_magnitude as long. rope_type is for people: default, linear, llama3, yarn, longrope; factors: a table. */
    char rope_type[12];
    int32_t rope_scaled;
    float rope_factors[QN_ROPE_PAIRS], rope_magnitude;
    int32_t bos_id, eos_id, pad_id; /* -1: not given */
} qn_hparams;

const qn_hparams *qn_checkpoint_hparams(const qn_checkpoint *checkpoint);
const qn_tokenizer_source *qn_checkpoint_tokenizer(const qn_checkpoint *checkpoint);
int32_t qn_checkpoint_weight_count(const qn_checkpoint *checkpoint);
const qn_weight *qn_checkpoint_weight_at(const qn_checkpoint *checkpoint, int32_t i);

/* Weight of a logical name; NULL when there is none. */
const qn_weight *qn_checkpoint_find(const qn_checkpoint *checkpoint, const char *name);

/* config.json as parsed (folder) or as made from the metadata (GGUF), without
 * quantization_config; borrowed. What the quantiser writes into its output. */
const json_t *qn_checkpoint_config(const qn_checkpoint *checkpoint);

/* Give back the memory of mapped files: of [data, data + bytes) when that is part of one, else of nothing; or of all.
 * It stays readable, a later read brings it in again. */
void qn_checkpoint_release(const qn_checkpoint *checkpoint, const void *data, size_t bytes);
void qn_checkpoint_release_all(const qn_checkpoint *checkpoint);

/* Stored row that holds logical row `row`. */
int64_t qn_weight_source_row(const qn_weight *weight, int64_t row);

/* The file's: the format of elements, bytes of a row, where logical row `row` is. */
qn_format qn_weight_format(const qn_weight *weight);
size_t qn_weight_row_bytes(const qn_weight *weight);
const char *qn_weight_row(const qn_weight *weight, int64_t row);

/* Whether rows or scales have to be copied to be what `data` and `scale` say, rows in logical order. */
int qn_weight_is_scattered(const qn_weight *weight);

/* All rows, all scales so, one after the other; the end of what was written. */
char *qn_weight_copy_rows(const qn_weight *weight, char *to);
char *qn_weight_copy_scales(const qn_weight *weight, char *to);

/* Decode logical row `row` (k floats) exactly as the scheme defines it. Not for vector-quantised weights. */
void qn_weight_decode_row(const qn_weight *weight, int64_t row, float *destination);

/* All n elements of a weight of one dimension. */
void qn_weight_decode_vector(const qn_weight *weight, float *destination);

#endif
