/* A model inside the library: weights made ready, and the list of steps that
 * turns token ids into logits.
 *
 * model.c opens a checkpoint and owns everything; llama.c writes the step list
 * of its family through the builder (build.h); fuse.c replaces neighbouring
 * steps by fused operators, narrow.c lets linear layers read BF16; pack.c makes
 * the weights ready; kv.c knows how keys and values are kept; session.c owns KV
 * caches, batch.c runs the list, on operands that ready.c keeps for many tokens. */
#ifndef QN_MODEL_MODEL_H
#define QN_MODEL_MODEL_H

#include <quern/model.h>

#include "backend/backend.h"
#include "base/context.h"
#include "base/text.h"
#include "io/checkpoint.h"
#include "io/kv_books.h"
#include "io/packed.h"

/* Where an operand of a step lives. */
typedef enum qn_place {
    QN_PLACE_NONE = 0,
    QN_PLACE_REGISTER,   /* rows of a session register, from column `offset` */
    QN_PLACE_CONST,      /* a weight or other constant: view */
    QN_PLACE_POSITIONS,  /* I32[M]: position of each token */
    QN_PLACE_LENGTHS,    /* I32[M]: keys each token sees, one more than its position */
    QN_PLACE_KEYS,       /* the layer's cached keys [S, kv_heads, head_dim], the new ones among them */
    QN_PLACE_VALUES,
    QN_PLACE_RECENT_KEYS,   /* the layer's recent keys F16[R, kv_heads, head_dim], row position % R */
    QN_PLACE_RECENT_VALUES,
    QN_PLACE_NEW_KEYS,   /* the rows of the cache the M new tokens go to */
    QN_PLACE_NEW_VALUES
} qn_place;

typedef struct qn_operand {
    qn_place place;
    int32_t index;       /* register, or layer of the cache */
    int64_t offset;      /* bytes into a register's or cache's row */
    int32_t whole;       /* 1: one tensor for all rows, not a row a token */
    qn_shape shape;      /* dims[0] of registers and caches is set at run time; of four dimensions dims[1], where
                            dims[0] is a batch: of 1, or of the queries that read the same cache. Here it is what one
                            token has: 1, or the heads that are all of a register's row */
    qn_view view;        /* QN_PLACE_CONST */
} qn_operand;

/* One step: an operator run by a plan; or, plan NULL, x += y on registers (y: or one constant row for all), x = y, or a
 * register's rows into the recent keys or values. */
typedef struct qn_step {
    const qn_plan *plan;
    int32_t copies;      /* 1: x = y */
    qn_op op;
    const char *label;   /* logical name of the weight or "" */
    qn_operand in[QN_MAX_IN], out[QN_MAX_OUT];
    const qn_weight *weight; /* of a linear layer */
    const qn_weight *second; /* whose rows follow those of weight, one multiplication for both; NULL: none */
    const void *packed;      /* the blob; NULL: the weight's operands are read as they are */
    int32_t layer;
} qn_step;

/* Row storage of a session: batch rows of row_bytes each. */
typedef struct qn_register {
    char name[24];
    size_t row_bytes;
} qn_register;

/* Called before every step that is an operator, with its operands, for calibration. Anything but QN_OK ends the
 * evaluation with it. */
typedef qn_status (*qn_observe_fn)(void *user, const qn_step *step, const qn_args *args, qn_error *error);

struct qn_model {
    qn_ctx *ctx;
    qn_checkpoint *checkpoint;
    qn_tokenizer *tokenizer;
    qn_plan_options plan_options;

    qn_plan **plans;     /* distinct plans, shared by steps */
    size_t plan_count, plan_capacity;
    void **owned;        /* packed weights, converted scales, ... */
    size_t owned_count, owned_capacity;
    qn_register *registers;
    size_t register_count, register_capacity;
    qn_step *steps;
    size_t step_count, step_capacity;
    size_t body_steps;   /* steps before the final norm: run for all rows; the rest for rows whose logits are asked */
    int32_t reg_stream;  /* the residual stream, where embeddings go */
    const qn_weight *embedding;
    qn_buffer notes;     /* what was fused and what could not be */
    qn_packed *packed;   /* the packed file that blobs lie in; NULL: none */
    qn_packing_info packing;

    qn_activations activations;
    int32_t int8_layers; /* linear layers whose rows are INT8 because of that */

    const qn_kv_scheme *kv;
    size_t kv_row_bytes; /* of a token's keys (or values) in a layer's cache */
    qn_kv_books kv_books;
    char *kv_path;       /* of the codebooks; NULL: the scheme has none */

    qn_observe_fn observe;
    void *observe_user;

    const qn_backend_row *device; /* where operands live; NULL: host memory */
    void *device_memory;          /* the weights there */
    qn_view table;                /* the embeddings there */
};

/* Set or clear (NULL) the observer. Not while a session runs. */
void qn_model_set_observer(qn_model *model, qn_observe_fn observe, void *user);

#endif
