/* The attention engine of the CPU backend: attention.c runs it, run_attention.c and
 * run_vq_attention.c say where keys and values come from.
 *
 * Many queries: a task is a key head and a block of queries, chosen so that the
 * query heads sharing the key head give about 96 rows; it walks the chunks
 * of keys from key 0 to the last that any of its queries sees. Few queries (a
 * decoding step): a task is a chunk of keys, whose parts go to the workspace and
 * are merged in order after every round of chunks. Both do the same operations for a
 * row in the same order; memory does not grow with the keys.
 *
 * With a window the keys from qn_window_first (src/ref/slots.h) on come from recent rows; blocks of queries
 * then end where that key changes. */
#ifndef QN_BACKEND_CPU_ATTENTION_H
#define QN_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/run_rows.h"
#include "kernels/common/attention.h"

/* State of rows: largest score, sum, weighted values. */
typedef struct qn_att_state {
    float *max, *sum, *o;
} qn_att_state;

/* A thread's memory. */
typedef struct qn_att_scratch {
    float *q, *s, *k, *kt, *v;
    qn_att_state part, all;
    float *scales;  /* of a chunk's codes, made ready */
    float *own;     /* own_floats of the source */
    int64_t recent; /* with a window: the first key that the task's queries read from the recent ones */
    int64_t key[2]; /* what the source has there; -1 at the start of a task */
} qn_att_scratch;

typedef struct qn_att_job qn_att_job;

/* Keys (values 0) or values (1) [first, first + count) of a key head as floats, rows d_pad apart and padded with zeros
 * up to `rows` of them, in copy; or where they are, when they need no padding. *stride: between rows, in floats. */
typedef const float *(*qn_att_load_fn)(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count,
                                       int64_t rows, qn_att_scratch *scratch, float *copy, int64_t *stride);

struct qn_att_job {
    const qn_att_set *set;
    const qn_rows_set *rows;
    const qn_args *args; /* q, o and lse in the slots that attention and vq_attention share */
    int64_t at, queries; /* rows of q that this job is of */
    int64_t keys, heads, key_heads, d, d_pad, shared, per_task;
    float scale;
    int causal;
    const char *lens; /* i32 of row `at` on: keys that each query sees, one more than the one before; NULL: causal */
    qn_att_load_fn load;
    size_t row_bytes; /* of a key's or value's row in the views of args, if load reads them there; 0: elsewhere */
    int in_place;     /* load leaves them there */
    int stored;       /* few rows may take them there: they are of this form */
    qn_att_form form;
    const void *source;        /* of load */
    int64_t window;            /* 0: none */
    const qn_view *recents[2]; /* keys, values: [.., R, key heads, d]; offset in bytes of this job's */
    int64_t recent_at[2];
    size_t own_floats;
    int64_t phase;                       /* queries of the first block that are before this job */
    int64_t first_chunk, chunks, spread; /* few queries: of this round; tasks of a chunk */
    float *parts;                        /* of the round, then of all keys so far */
    char *scratch;
    size_t scratch_bytes;
};

/* Keys that query t of the job sees. */
int64_t qn_att_visible(const qn_att_job *job, int64_t t);

/* Rows of q of a key head, query by query, shared heads inside: `count` of them from row r on, as floats `stride`
 * apart. */
void qn_att_load_queries(const qn_att_job *job, int64_t head, int64_t r, int64_t count, float *q, int64_t stride);

/* Outputs of such rows from floats; zeros where a query sees no key. */
void qn_att_store_rows(const qn_att_job *job, int64_t head, int64_t r, int64_t count, const float *o, int64_t stride);

/* The state of one query's rows from the chunk at key `first`, in memory of qn_att_alone_bytes. */
size_t qn_att_alone_bytes(int64_t shared, int64_t d);
qn_att_state qn_att_alone(const qn_att_job *job, int64_t head, int64_t t, int64_t first, char *memory);

/* Columns that heads of d are padded to. */
int64_t qn_att_padded(int64_t d);

/* Bytes of the engine's part of a workspace. */
size_t qn_att_workspace_bytes(int64_t queries, int64_t heads, int64_t key_heads, int64_t d, size_t own_floats,
                              int32_t threads);

/* Run a job whose first fields, down to own_floats, are set; d_pad, shared and per_task are set here. */
void qn_att_run(qn_att_job *job, void *workspace, const qn_exec *exec);

#endif
