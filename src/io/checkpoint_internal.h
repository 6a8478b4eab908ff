/* The checkpoint object, shared by the files checkpoint*.c: opening fills the
 * file tensors, a layout-specific part turns them into logical weights, and the
 * architecture check holds those against the hyperparameters. */
#ifndef QN_IO_CHECKPOINT_INTERNAL_H
#define QN_IO_CHECKPOINT_INTERNAL_H

#include "base/file_map.h"
#include "base/map.h"
#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/quant_config.h"
#include "io/safetensors.h"

#define QN_MAX_SHARDS 4096
#define QN_MAX_TEXT_BYTES ((size_t)1 << 28) /* config.json, tokenizer.json, ... */

typedef struct qn_file_tensor {
    const char *name;
    qn_view view;
    uint64_t bytes;
    int32_t file;
} qn_file_tensor;

typedef struct qn_weight_file {
    char *path;
    qn_file_map map;
    qn_safetensors safetensors;
} qn_weight_file;

typedef struct qn_owned {
    struct qn_owned *next;
} qn_owned;

enum {
    QN_TEXT_CONFIG = 0,
    QN_TEXT_INDEX,
    QN_TEXT_TOKENIZER,
    QN_TEXT_TOKENIZER_CONFIG,
    QN_TEXT_TEMPLATE,
    QN_TEXT_GENERATION,
    QN_TEXT_QUANT,
    QN_TEXT_COUNT
};

struct qn_checkpoint {
    const qn_ctx *ctx;
    char *path;
    char *packed_path; /* where its packed file lies */
    const char *container;
    qn_weight_file *files;
    int32_t file_count;
    qn_gguf gguf;
    qn_file_map texts[QN_TEXT_COUNT];
    qn_file_tensor *tensors;
    int32_t tensor_count;
    qn_map tensor_names;
    qn_weight *weights;
    int32_t weight_count, weight_capacity;
    qn_map weight_names;
    json_t *config;
    qn_quant_config *quant; /* NULL: plain tensors */
    qn_hparams hparams;
    qn_tokenizer_source tokenizer;
    qn_owned *owned;
    const char *scheme_name;
    int64_t parameters;
    uint64_t tensor_bytes, file_bytes;
};

/* Memory that lives as long as the checkpoint, cleared; NULL when there is none. */
void *qn_checkpoint_own(qn_checkpoint *c, size_t count, size_t size);
char *qn_checkpoint_own_text(qn_checkpoint *c, const char *text, size_t bytes);

/* Append a logical weight; its name must live as long as the checkpoint. QN_E_FILE: there is one of that name. */
qn_status qn_checkpoint_add_weight(qn_checkpoint *c, const qn_weight *weight, qn_error *error);

/* File tensor of a name; NULL when there is none. */
const qn_file_tensor *qn_checkpoint_file_tensor(const qn_checkpoint *c, const char *name);

/* A plain tensor as a weight. QN_E_FILE: not one or two dimensions; QN_E_UNSUPPORTED: a format that is no weight's. */
qn_status qn_checkpoint_add_dense(qn_checkpoint *c, const char *name, const qn_file_tensor *tensor,
                                  int32_t rope_interleaved, qn_error *error);

/* Parts of qn_checkpoint_open. */
qn_status qn_checkpoint_open_gguf(qn_checkpoint *c, qn_error *error);
qn_status qn_checkpoint_open_folder(qn_checkpoint *c, const char *folder, const char *single, qn_error *error);
qn_status qn_checkpoint_assemble(qn_checkpoint *c, qn_error *error);

/* Of assembling: module.suffix, the module given by its length, as text of the checkpoint (NULL: out of memory), and
 * the tensor of that name (NULL: none, or *status is an error, or suffix is NULL). */
char *qn_checkpoint_part_name(qn_checkpoint *c, const char *module, size_t length, const char *suffix);
const qn_file_tensor *qn_checkpoint_find_part(qn_checkpoint *c, const char *module, size_t length, const char *suffix,
                                              qn_status *status, qn_error *error);

/* A tensor of one number, which must be positive and finite. */
qn_status qn_checkpoint_one_float(const qn_file_tensor *t, float *out, qn_error *error);

/* Take a tensor of a vector-quantised module; *taken 0: it is none. */
qn_status qn_checkpoint_assemble_vq(qn_checkpoint *c, const qn_file_tensor *t, int *taken, qn_error *error);

/* Hyperparameters from a config.json object; tied_embeddings as declared. */
qn_status qn_hparams_from_config(const json_t *config, qn_hparams *out, qn_error *error);
qn_status qn_hparams_from_gguf(const qn_gguf *file, qn_hparams *out, qn_error *error);

/* The parts of these that RoPE takes (rope.c): theta and scaling; head_dim, context_length and architecture are known
 * and checked. A longrope whose factors change with a text's length lowers context_length to where they do. */
#define QN_ROPE_TABLE "rope_freqs.weight" /* GGUF's tensor of factors */
qn_status qn_rope_from_config(const json_t *config, qn_hparams *hparams, qn_error *error);
qn_status qn_rope_from_gguf(const qn_gguf *file, qn_hparams *hparams, qn_error *error);

/* rope_scaling of scaled RoPE; NULL: out of memory. */
json_t *qn_rope_to_config(const qn_hparams *hparams);

/* config.json object that says the same; NULL: out of memory. */
json_t *qn_hparams_to_config(const qn_hparams *hparams);

/* Ranges that go together: heads, sizes. */
qn_status qn_hparams_check(const qn_hparams *hparams, qn_error *error);

/* The weights against the architecture: all there, in shape, none besides; sets tied_embeddings. */
qn_status qn_checkpoint_check_llama(qn_checkpoint *c, qn_error *error);

/* weight_map of a parsed model.safetensors.index.json: checked to be names to plain shard file names. */
qn_status qn_index_check(const json_t *index, const json_t **weight_map, qn_error *error);

#endif
