/* What a quantised folder will hold: one output for each weight of the
 * checkpoint, with its encoder, its tensors and the file they go to. Made by
 * quantize.c before anything is written, so that names, sizes and shapes that
 * cannot be are refused in the first second. */
#ifndef QN_QUANT_OUTPUTS_H
#define QN_QUANT_OUTPUTS_H

#include <quern/quantize.h>

#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "quant/encode.h"
#include "quant/vq.h"

enum { QN_PART_DATA = 0, QN_PART_SCALE, QN_PART_GLOBAL, QN_PART_INPUT_GLOBAL, QN_PART_COUNT };

typedef struct qn_output {
    const qn_weight *weight;
    const char *name;           /* of the weight it becomes: weight's own, but lm_head.weight made from embeddings */
    const qn_scheme *scheme;    /* how it is stored */
    qn_encoder encoder;         /* a one-dimensional weight is one row */
    int32_t linear;             /* 1: a linear layer, in the scheme; 0: stays in plain floats */
    int32_t left_out;           /* 1: a linear layer that stays in plain floats */
    int32_t leader;             /* output whose global scales this one shares (engines fuse q, k, v and gate, up) */
    char *names[QN_PART_COUNT]; /* of its tensors; NULL: has no such tensor */
    qn_shape shapes[QN_PART_COUNT];
    uint64_t bytes[QN_PART_COUNT]; /* of its tensors */
    uint64_t bytes_before;
    int32_t shard;
    int32_t first_item;            /* of its shard's items; parts follow in order */
    const float *squares;          /* [K,K] X^T X of the inputs, for vector-quantised schemes; NULL: not to be used */
    float amax, input_amax;        /* over the outputs that share them; set before writing */
    const float *rows, *columns;   /* smoothing: what row n and column k are multiplied by; NULL: 1 */
    float *own_rows, *own_columns; /* vectors that belong to this output, for itself and others */
} qn_output;

typedef struct qn_outputs {
    qn_ctx *ctx;
    const qn_scheme *scheme, *kept; /* kept: scheme of the weights that stay plain */
    const qn_scheme *head;          /* of the output layer */
    qn_output *list;
    int32_t count, shard_count;
    int32_t layers, keep_first, keep_last; /* of the model; at either end with plain linear weights */
    int32_t keep_qkv;                      /* 1: so are all q, k and v projections */
    int64_t parameters;                    /* of the model: embeddings that become the output layer too count once */
    uint64_t bytes_before, bytes_after;
} qn_outputs;

/* Layers at either end of a model of that many whose linear weights a scheme leaves in plain floats by default,
 * and whether it does so with all q, k and v projections. */
int32_t qn_scheme_kept_layers(const qn_scheme *scheme, int32_t layers);
int32_t qn_scheme_keeps_qkv(const qn_scheme *scheme, int32_t layers, int32_t hidden);

/* The scheme of the output layer beside linear weights of `scheme`: that of `name`, or by default (NULL) the plain one
 * (kept). QN_E_ARGUMENT: the name is none, or the two cannot stand in one config. */
qn_status qn_scheme_for_head(const qn_scheme *scheme, const qn_scheme *kept, const char *name, const qn_scheme **head,
                             qn_error *error);

/* Plan the outputs of a checkpoint; of options those that say what to keep are read. QN_E_ARGUMENT: all layers
 * would be kept. QN_E_SHAPE names the tensor that the scheme cannot hold. QN_E_MEMORY. */
qn_status qn_outputs_plan(qn_ctx *ctx, const qn_checkpoint *checkpoint, const qn_scheme *scheme,
                          const qn_quantize_options *options, uint64_t shard_bytes, qn_outputs *outputs,
                          qn_error *error);
void qn_outputs_free(qn_outputs *outputs);

/* Decode row `row` (0 of a one-dimensional weight), smoothed, into encoder.k floats. */
void qn_output_decode_row(const qn_output *output, int64_t row, float *x);

/* 1 when the scheme stores a scale for the activations, which only a calibration run can give. */
int qn_scheme_needs_calibration(const qn_scheme *scheme);

#endif
