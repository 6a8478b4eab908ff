/* Models: checkpoints opened for looking at, and for running.
 *
 * A path is a GGUF file, a .safetensors file's folder, or a folder with
 * config.json and safetensors (one file or shards with an index). */
#ifndef QUERN_MODEL_H
#define QUERN_MODEL_H

#include <quern/plan.h>
#include <quern/text.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints: what is in the files, nothing computed ---- */

typedef struct qn_checkpoint qn_checkpoint;

typedef struct qn_model_info {
    const char *path;
    const char *container;     /* "gguf" or "safetensors" */
    const char *architecture;  /* "llama", "qwen2", "qwen3" */
    const char *name;          /* "" when the files give none */
    const char *scheme;        /* how most weights are stored: "q4_1", "bf16", "fp8-block", ... */
    int64_t parameters;        /* logical weights, tied ones once */
    uint64_t tensor_bytes;     /* bytes of tensor data */
    uint64_t file_bytes;       /* bytes of all weight files */
    double bits_per_weight;    /* tensor_bytes * 8 / parameters */
    int32_t tensor_count, file_count;
    int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab_size, context_length;
    int32_t tied_embeddings;
    float rope_theta, rms_eps;
    const char *rope_type; /* "default", or how frequencies are scaled: "linear", "llama3", "yarn", "longrope";
                            * "factors": by a table of another origin */
} qn_model_info;

typedef struct qn_tensor_info {
    const char *name; /* as in the file */
    qn_shape shape;
    uint64_t bytes;
    int32_t file; /* which weight file */
} qn_tensor_info;

/* Open and check the headers of a checkpoint; data is mapped, not read.
 * QN_E_IO: cannot be opened. QN_E_FILE: malformed. QN_E_UNSUPPORTED: an
 * architecture, tensor type or quantization_config this version does not know. QN_E_MEMORY. */
QN_API qn_status qn_checkpoint_open(qn_ctx *ctx, const char *path, qn_checkpoint **out, qn_error *error);
QN_API void qn_checkpoint_close(qn_checkpoint *checkpoint); /* NULL is fine */
QN_API void qn_checkpoint_get_info(const qn_checkpoint *checkpoint, qn_model_info *info);
QN_API qn_status qn_checkpoint_tensor(const qn_checkpoint *checkpoint, int32_t i, qn_tensor_info *info);

/* Called for each finding of qn_checkpoint_verify. severity 0: note, 1: warning, 2: error. */
typedef void (*qn_finding_fn)(void *user, int severity, const char *tensor, const char *text);

/* Read all data: non-finite values, scales that are zero, negative, NaN or
 * Inf, all-zero rows, checksums where the files carry them, the packed file when
 * there is one (damage is an error, being out of date a warning), codebooks of KV
 * schemes beside the model (damage, or being another model's, is an error). *errors counts
 * findings of severity 2. QN_E_IO, QN_E_MEMORY when reading itself fails. */
QN_API qn_status qn_checkpoint_verify(const qn_checkpoint *checkpoint, const qn_exec *exec, qn_finding_fn finding,
                                      void *user, int64_t *errors, qn_error *error);

/* A packed file (docs/formats/packed.md): the weights as the kernels read them, so that opening a model maps them
 * instead of packing. It lies as FILE.packed beside a file, as quern.packed in a folder. */
typedef struct qn_packed_file {
    const char *path; /* lives as long as the checkpoint or model, unless the caller gave it */
    uint64_t bytes;   /* of the file; 0: there is none */
    int32_t blobs;    /* weights in it */
} qn_packed_file;

/* Look at the packed file of a checkpoint: bytes 0 when there is none. The source files' content is read and compared
 * when the file system's times do not vouch for it.
 * Not usable, with the reason: QN_E_PACKED: of another version or made from other files; QN_E_FILE: malformed; QN_E_IO. */
QN_API qn_status qn_checkpoint_packed_file(const qn_checkpoint *checkpoint, const qn_exec *exec, qn_packed_file *out,
                                           qn_error *error);

/* ---- Models: plans and weights, ready to run ---- */

typedef struct qn_model qn_model;
typedef struct qn_session qn_session;

/* A KV scheme (docs/kv-cache.md). */
typedef struct qn_kv_info {
    const char *name;    /* "cq2" */
    const char *summary; /* in words */
    int32_t codebooks;   /* 1: it needs a file of codebooks made for the model (qn_make_kv_books) */
} qn_kv_info;

/* What models keep when nothing is said. */
#define QN_KV_DEFAULT "f32"

/* Scheme i in table order; QN_E_ARGUMENT past the end. */
QN_API qn_status qn_kv_at(int32_t i, qn_kv_info *info);

/* How linear layers take their rows. Those that a checkpoint wants quantised always are. */
typedef enum qn_activations {
    QN_ACTIVATIONS_STORED = 0, /* as the checkpoint says */
    QN_ACTIVATIONS_INT8        /* beside 4-bit floats (NVFP4, MXFP4) for which it says nothing: in INT8, symmetric, a
                                * scale a token, which is found while running (docs/quantize.md) */
} qn_activations;

/* A model whose options name a device's backend has its weights, caches and registers in the device's memory; what goes
 * in and out of the functions below is host memory all the same. Its sessions and batches work on streams of their own
 * and return when their work is done. */
typedef struct qn_model_options {
    size_t size;                 /* sizeof(qn_model_options), set by qn_model_options_init */
    qn_plan_options plan;        /* backend and level for every operator */
    qn_exec exec;                /* threads for packing, and for compiling a device's kernels, which then call the
                                  * context's allocator and log too; used by qn_model_open only */
    int32_t no_packed_file;      /* 1: pack in memory, also when there is a packed file */
    const char *kv;              /* how keys and values of earlier tokens are kept: a name of qn_kv_at; NULL: QN_KV_DEFAULT */
    int32_t unfused;             /* 1: each linear layer is a step of its own and reads F32 rows (calibration) */
    qn_activations activations;
} qn_model_options;

QN_API void qn_model_options_init(qn_model_options *options);

/* Open a checkpoint, create the plans of every layer, pack weights where the
 * kernels want it or map them from the packed file. One that cannot be used
 * (stale, damaged, of another version) is never an error: the reason goes to the
 * log, and so does one weight's blob that the chosen kernel does not read.
 * Immutable afterwards; sessions may share it across threads.
 * Statuses of qn_checkpoint_open and qn_plan_create. options.activations: QN_E_ARGUMENT: none of the enum's; that no
 * layer could take rows so is no error (qn_model_get_activations). options.kv: QN_E_ARGUMENT: no such scheme; QN_E_IO:
 * there are no codebooks, and the sentence says how to make them; QN_E_FILE: they are damaged or another model's;
 * QN_E_UNSUPPORTED: not on a device, or the head size is no multiple of the channels coded together. */
QN_API qn_status qn_model_open(qn_ctx *ctx, const char *path, const qn_model_options *options, qn_model **out,
                               qn_error *error);
QN_API void qn_model_close(qn_model *model);
QN_API void qn_model_get_info(const qn_model *model, qn_model_info *info);
/* The model's own; NULL if the checkpoint has none (no tokenizer.json, no GGUF tokens): such a model takes ids. */
QN_API const qn_tokenizer *qn_model_tokenizer(const qn_model *model);

/* How the weights of an open model were made ready. */
typedef struct qn_packing_info {
    int32_t weights;   /* weights that their kernels read packed */
    int32_t from_file; /* of them: mapped from the packed file */
    uint64_t bytes;    /* of all blobs */
    double seconds;    /* for packing, and for checking the packed file */
    const char *file;  /* the packed file in use; NULL: none */
} qn_packing_info;

/* Fill *info; its text lives as long as the model. */
QN_API void qn_model_get_packing(const qn_model *model, qn_packing_info *info);

/* Write the packed file of an open model, atomically. path NULL: where opening finds it. force 1: replace one that is
 * there. QN_E_UNSUPPORTED: no kernel of this model packs. QN_E_EXISTS: force is 0. QN_E_IO: also when a weight file
 * changed since the model was opened. QN_E_ARGUMENT: also when path is one of them. QN_E_MEMORY. */
QN_API qn_status qn_model_write_packed(qn_model *model, const char *path, int32_t force, const qn_exec *exec,
                                       qn_packed_file *out, qn_error *error);

/* Operators of one layer in order with their kernels, and what was fused, as text. Like snprintf. */
QN_API size_t qn_model_explain(const qn_model *model, char *text, size_t capacity);

/* How an open model keeps keys and values. */
typedef struct qn_model_kv {
    const char *scheme;       /* "f32" */
    uint64_t bytes_per_token; /* of keys and values of all layers, scales included */
    int32_t window;           /* tokens before a block of queries that are read as F16; 0: all are kept as they are */
    uint64_t bytes_per_recent_token; /* besides; a session keeps the window, 32 and its `batch` of them */
    uint64_t codebook_bytes;  /* of the file; 0: the scheme has none */
    const char *file;         /* NULL: none */
} qn_model_kv;

/* Fill *kv; its text lives as long as the model. */
QN_API void qn_model_get_kv(const qn_model *model, qn_model_kv *kv);

/* How the linear layers of an open model take their rows. */
typedef struct qn_model_activations {
    const char *name; /* "stored", or "int8" where there are layers that the options changed */
    int32_t layers;   /* those; 0: the checkpoint's own for all */
} qn_model_activations;

/* Fill *activations; its text is constant. */
QN_API void qn_model_get_activations(const qn_model *model, qn_model_activations *activations);

typedef struct qn_session_options {
    size_t size;            /* sizeof(qn_session_options), set by qn_session_options_init */
    int32_t context_length; /* 0: the model's, at most 4096 */
    int32_t batch;          /* most tokens evaluated at once; 0: 512 */
    qn_exec exec;           /* borrowed; must outlive the session */
} qn_session_options;

QN_API void qn_session_options_init(qn_session_options *options);
QN_API qn_status qn_session_create(qn_model *model, const qn_session_options *options, qn_session **out,
                                   qn_error *error);
QN_API void qn_session_destroy(qn_session *session);

/* Tokens in the KV cache. */
QN_API int32_t qn_session_length(const qn_session *session);
QN_API int32_t qn_session_capacity(const qn_session *session);

/* Forget all tokens from position length on. QN_E_ARGUMENT: beyond what is there. QN_E_UNSUPPORTED: a KV scheme with a
 * window keeps recent tokens only, and those before `length` are not among them any more; 0 always works. */
QN_API qn_status qn_session_truncate(qn_session *session, int32_t length, qn_error *error);

/* Append count tokens and give logits: all = 0: of the last token, f32[vocab];
 * 1: of each, f32[count, vocab]; logits NULL: none. The bits do not depend on
 * how a text is cut into calls, nor on threads; on a device two runs have the same bits, but one
 * token by itself may be summed in another order than among others.
 * QN_E_ARGUMENT: an id outside the vocabulary, count < 0. QN_E_SHAPE: the
 * context is full (nothing was appended). QN_E_DEVICE: the device failed, in the driver's words (nothing was
 * appended). */
QN_API qn_status qn_session_eval(qn_session *session, const int32_t *ids, int32_t count, int all, float *logits,
                                 qn_error *error);

/* ---- Batches: a step of several sequences in one call ---- */

typedef struct qn_batch qn_batch;

typedef struct qn_batch_options {
    size_t size;    /* sizeof(qn_batch_options), set by qn_batch_options_init */
    int32_t tokens; /* most tokens of all sequences evaluated at once; 0: 512. Bounds the batch's memory. */
    qn_exec exec;   /* borrowed; must outlive the batch */
} qn_batch_options;

/* New tokens of one sequence. */
typedef struct qn_batch_item {
    qn_session *session;
    const int32_t *ids;
    int32_t count; /* of ids; 0: nothing to do for this sequence */
    int32_t all;   /* as in qn_session_eval */
    float *logits; /* f32[vocab], or f32[count, vocab] with all; NULL: none. Must not overlap another item's. */
} qn_batch_item;

QN_API void qn_batch_options_init(qn_batch_options *options);

/* Create a batch: the memory that sequences of this model are evaluated in. It owns
 * no sequence; sessions come and go between calls. Sessions that are evaluated in
 * batches only can be created with a `batch` of 1 to be small. options may be NULL.
 * QN_E_ARGUMENT: model or out NULL, options.size, tokens < 0. QN_E_MEMORY. */
QN_API qn_status qn_batch_create(qn_model *model, const qn_batch_options *options, qn_batch **out, qn_error *error);
QN_API void qn_batch_destroy(qn_batch *batch); /* NULL is fine */

/* Append each item's tokens to its session and give its logits, as qn_session_eval
 * would one after the other, with the same bits (on a device see there): they depend neither on the other
 * items, nor on their order, nor on batch.tokens, nor on threads. Rows of all
 * sequences go through each linear layer together; attention runs sequence by
 * sequence. More tokens than batch.tokens are evaluated in several passes.
 * Nothing is allocated. One call at a time per batch and per session.
 * On failure every session is as it was; logits may have been written in part.
 * QN_E_ARGUMENT: batch or a session NULL, a session of another model or twice in
 * items, an id outside the vocabulary, a negative count. QN_E_SHAPE: a context is full. */
QN_API qn_status qn_batch_eval(qn_batch *batch, const qn_batch_item *items, int32_t count, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
