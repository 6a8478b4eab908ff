/* A batch inside the library: what batch.c and decode.c share. */
#ifndef QN_MODEL_BATCH_H
#define QN_MODEL_BATCH_H

#include "backend/backend.h"
#include "model/session.h"

/* Rows of one sequence in a pass. */
typedef struct qn_segment {
    qn_session *session;
    int32_t first, count;
} qn_segment;

/* A row whose logits are asked for. */
typedef struct qn_wanted_row {
    int32_t row;
    float *logits;
} qn_wanted_row;

typedef struct qn_ready qn_ready; /* ready.h */

/* What strips.c keeps for a batch. */
typedef struct qn_strips {
    int32_t *steps;         /* [body_steps]: how many from each one on go by strips; NULL: none */
    int32_t most;           /* strips of a pass */
    size_t workspace_bytes; /* a thread's, of the batch's */
} qn_strips;

/* Registers, new keys and values, logits and workspace lie where the model's operands do: in the device's memory when
 * it runs there. */
struct qn_batch {
    qn_model *model;
    qn_exec exec;
    int32_t tokens;     /* most rows of a pass */
    char *operands;     /* the memory of registers, new keys and values, logits and workspace */
    char **registers;   /* [register_count] -> [tokens, row_bytes] */
    int32_t *input;     /* [3, tokens]: ids, positions, keys each token sees; page-locked for a device */
    int32_t *positions; /* the positions where operators read them; the numbers of keys follow */
    char *new_keys,
        *new_values;       /* [tokens] rows of kv_row_bytes on their way to several caches; NULL: one sequence only */
    float *logits;         /* [LOGITS_ROWS, vocab] on their way to where they are asked for; NULL: none are */
    qn_segment *segments;  /* [tokens] */
    qn_wanted_row *wanted; /* [tokens] */
    int32_t segment_count, wanted_count, rows; /* of the pass */
    char *workspace;
    size_t workspace_bytes;
    qn_strips strips;
    qn_ready *ready; /* NULL for a model on a device */

    /* Of a model on a device; else NULL. */
    void *stream;           /* all of the batch's work */
    int32_t *device_input;  /* input's copy */
    qn_chain **chains;      /* [1 + step_count]: the lookup of embeddings, then the steps that are no operators */
    qn_decode_pass *decode; /* one sequence, one token: see decode.c */
};

/* Rows of the registers as a step sees them. */
typedef struct qn_row_range {
    int32_t first, count;
    const qn_session *session; /* whose they are; NULL: of several sequences */
    float *logits;             /* [count, vocab] for the output layer */
    int32_t skipped;           /* rows of the session, or of several, in front of the first */
} qn_row_range;

/* Who runs a step: all threads together, or one of them for a strip of rows. */
typedef struct qn_lane {
    int32_t index; /* of the arguments that are kept for it (ready.h) */
    const qn_exec *exec;
    void *workspace;
    size_t workspace_bytes;
} qn_lane;

/* Operands of a step for these rows. */
void qn_batch_args(const qn_batch *b, const qn_step *step, const qn_row_range *rows, qn_args *args);

/* Whether a step belongs to one sequence: it reads its cache or writes its recent rows. */
int qn_batch_needs_session(const qn_step *step);

/* Run a step for these rows. */
qn_status qn_batch_run_step(qn_batch *b, const qn_step *step, const qn_row_range *rows, const qn_lane *lane,
                            qn_error *error);

/* Operands of a step as a step of a chain: one row from the first on. */
void qn_batch_chain_step(const qn_batch *b, const qn_step *step, const qn_session *session, qn_chain_step *out);

/* The lookup of the rows of embeddings. */
void qn_batch_lookup_step(const qn_batch *b, qn_chain_step *out);

#endif
