/* Sessions and batches inside the library: session.c owns the KV cache of a
 * sequence, batch.c the registers and the loop that runs a model's steps. */
#ifndef QN_MODEL_SESSION_H
#define QN_MODEL_SESSION_H

#include "model/model.h"

typedef struct qn_decode_pass qn_decode_pass;

struct qn_session {
    qn_model *model;
    int32_t capacity, length;
    char **keys, **values; /* [layers] -> [capacity] rows of kv_row_bytes, in device memory for a model there */
    char **recent;         /* [layers][keys, values] -> F16 [recent_rows][kv_heads, head_dim], a ring, then as many
                              rows as a window has, to put one aside; NULL: no window */
    char *recent_memory;   /* of all of them, on the device for a model there */
    int32_t recent_rows;
    int32_t intact;      /* positions from here to length are in the recent rows */
    void *device_memory; /* of those; NULL: they are the host's */
    qn_batch *own;       /* what qn_session_eval runs in, for this sequence alone */
    int32_t before;      /* length when the batch of the moment began; -1: in no batch */
    int32_t aside;       /* 1: the window of that length is put aside, as the batch will write over it */
};

/* A batch for that many tokens a pass; several 0: it is only given one sequence at a time. */
qn_status qn_batch_make(qn_model *model, int32_t tokens, const qn_exec *exec, int several, qn_batch **out,
                        qn_error *error);

/* Make ready for single tokens of that session, whose own batch it is; of a model on a device. */
qn_status qn_batch_prepare_decode(qn_batch *batch, qn_session *session, qn_error *error);

/* NULL-safe check of one item against its session. */
qn_status qn_batch_check_item(const qn_batch_item *item, qn_error *error);

/* Before and after an evaluation of that many tokens: one that failed leaves the session as it was. */
qn_status qn_session_begin(qn_session *session, int32_t tokens, void *stream, qn_error *error);
qn_status qn_session_end(qn_session *session, int failed, void *stream, qn_error *error);

/* Tokens of the session that fit a pass: what the recent rows can take without losing those still read. */
int32_t qn_session_room(const qn_session *session);

/* Evaluate checked items of distinct sessions; on failure every length is as before. */
qn_status qn_batch_run(qn_batch *batch, const qn_batch_item *items, int32_t count, qn_error *error);

#endif
