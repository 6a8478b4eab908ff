/* The contract between the attention runner (src/backend/cpu/run_attention.c)
 * and the per-level parts.
 *
 * Keys are taken in chunks of QN_ATT_CHUNK counted from key 0. A chunk gives each
 * (query, head) a part: the largest score, the sum of exponentials relative to
 * it, and the weighted sum of values. Parts are merged one after the other in
 * the order of the keys. What a row computes thus depends on the keys that it
 * sees and on nothing else: not on how queries or keys are spread over calls,
 * batches or threads. */
#ifndef QN_KERNELS_COMMON_ATTENTION_H
#define QN_KERNELS_COMMON_ATTENTION_H

#include <stdint.h>

#define QN_ATT_CHUNK 128
#define QN_ATT_PANEL 64 /* keys that are transposed together; heads are padded to a multiple of it */

/* Rows of memory that are read next, to be asked for beside the work: a decoding step reads what it reads once, and too
 * soon for the processor to have guessed it. rows NULL: none. */
typedef struct qn_att_ahead {
    const char *rows;
    int64_t stride, bytes, count; /* bytes from row to row, of a row; rows */
} qn_att_ahead;

/* s[r][key] = sum over i < d of q[r][i] kt[i][key], i ascending. q rows are q_stride floats apart, kt rows
 * QN_ATT_PANEL, s rows QN_ATT_CHUNK. */
typedef void (*qn_att_scores_fn)(const float *q, int64_t q_stride, const float *kt, int64_t d, int64_t rows, float *s,
                                 qn_att_ahead ahead);

/* One row: s of the first visible keys becomes exp(scale s - max), where max is the largest of scale s. */
typedef void (*qn_att_softmax_fn)(float *s, int64_t visible, float scale, float *max, float *sum);

/* o[r][i] = (start) or += sum over keys ascending of p[r][key] v[key][i], i < d_pad, a multiple of QN_ATT_PANEL.
 * p rows are QN_ATT_CHUNK floats apart, o rows d_pad. */
typedef void (*qn_att_values_fn)(const float *p, const float *v, int64_t v_stride, int64_t d_pad, int64_t keys,
                                 int64_t rows, int start, float *o, qn_att_ahead ahead);

/* One row: (max, sum, o) of all keys so far takes in a part. */
typedef void (*qn_att_merge_fn)(float *max, float *sum, float *o, float part_max, float part_sum, const float *part_o,
                                int64_t d_pad);

/* out[i] = o[i] / sum, i < d. */
typedef void (*qn_att_finish_fn)(const float *o, float sum, int64_t d, float *out);

/* kt[i][key] = k[key][i] of QN_ATT_PANEL keys, for i < d up to the next multiple of four; rows of k are k_stride
 * floats apart. */
typedef void (*qn_att_transpose_fn)(const float *k, int64_t k_stride, int64_t d, float *kt);

/* Keys or values of a head as they are stored: row i at rows + i * stride. scales: of QN_ATT_E4M3, made ready by
 * qn_att_ready_fn. */
typedef enum qn_att_form { QN_ATT_F32 = 0, QN_ATT_F16, QN_ATT_BF16, QN_ATT_E4M3, QN_ATT_FORMS } qn_att_form;

typedef struct qn_att_stored {
    qn_att_form form;
    const char *rows;
    int64_t stride;
    const float *scales;
} qn_att_stored;

/* Few rows: what scores and values do, the same bits, from what is stored, without floats of it in memory. d is a
 * multiple of the set's stored_dims, rows at most QN_ATT_FEW_ROWS, keys at most QN_ATT_CHUNK. scratch: of scores,
 * QN_ATT_PANEL * d floats. o rows are o_stride floats apart, of which values write d. next: the rows that are read
 * after these, all of which are asked for. */
#define QN_ATT_FEW_ROWS 32

typedef void (*qn_att_stored_scores_fn)(const float *q, int64_t q_stride, const qn_att_stored *k, int64_t d,
                                        int64_t keys, int64_t rows, float *s, float *scratch, qn_att_ahead next);
typedef void (*qn_att_stored_values_fn)(const float *p, const qn_att_stored *v, int64_t d, int64_t keys, int64_t rows,
                                        int start, float *o, int64_t o_stride, qn_att_ahead next);

/* Scales of codes, one every `stride` bytes, as those two take them. 0: a code is NaN or a scale so large that they
 * cannot. */
typedef int (*qn_att_ready_fn)(const qn_att_stored *codes, int64_t d, int64_t keys, const char *scales, int64_t stride,
                               float *ready);

typedef struct qn_att_set qn_att_set;
struct qn_att_set {
    qn_att_scores_fn scores;
    qn_att_softmax_fn softmax;
    qn_att_values_fn values;
    qn_att_merge_fn merge;
    qn_att_finish_fn finish;
    qn_att_transpose_fn transpose;
    int32_t stored_dims[QN_ATT_FORMS]; /* what d is a multiple of for the next three; 0: they do not take the form */
    qn_att_stored_scores_fn stored_scores;
    qn_att_stored_values_fn stored_values;
    qn_att_ready_fn stored_ready;
    const qn_att_set *narrow; /* takes stored rows of other d, with the same bits; NULL: none does */
};

extern const qn_att_set qn_att__scalar, qn_att__avx2, qn_att__avx512;

/* ---- keys and values of BF16 on tiles (level amx) ----
 *
 * Rows of q, (query, head) pairs of a key head, are taken as columns, QN_ATT_STRIP of them a strip: scores are K q^T,
 * outputs V^T p^T. A row of q and its weights p are three bf16 terms each, the upper halves of what the terms before
 * left, so products with keys and values are those of floats. d: the head size padded to a multiple of QN_ATT_DIMS. */
#define QN_ATT_STRIP 32
#define QN_ATT_DIMS 32
#define QN_ATT_TERMS 3

/* Bytes of the terms of a strip, of a chunk of keys or values, of scratch; floats of a state: max and sum of each
 * column, then weighted values [d][QN_ATT_STRIP]. */
#define QN_ATT_TERMS_BYTES(d) ((d)*QN_ATT_STRIP * 2 * QN_ATT_TERMS)
#define QN_ATT_CHUNK_BYTES(d) ((d)*QN_ATT_CHUNK * 2)
#define QN_ATT_SCRATCH_BYTES (QN_ATT_CHUNK * QN_ATT_STRIP * (4 + 2 * QN_ATT_TERMS))
#define QN_ATT_STATE_FLOATS(d) ((2 + (d)) * QN_ATT_STRIP)

/* Terms of `rows` rows of q, d floats apart; behind them are zeros up to a whole strip. */
typedef void (*qn_att_queries_fn)(const float *q, int64_t rows, int64_t d, char *terms);

/* Keys or values of a chunk, rows of `width` elements `stride` bytes apart, as tiles; zeros from `count` on to the
 * next 32. Returns the first with an element that is infinite or NaN; none: count. */
typedef int64_t (*qn_att_tiles_fn)(const char *rows, int64_t stride, int64_t count, int64_t width, int64_t d,
                                   char *tiles);

/* A strip to be given its state from a chunk. scale: scores times it are exponents of two, largest ones too.
 * visible[column]: keys of the chunk that it sees, one of them more than 0; columns that are no rows have that of the
 * last row, and 0 where sixteen have no row. */
typedef struct qn_att_strip {
    const char *terms;
    int64_t rows;
    int32_t visible[QN_ATT_STRIP];
    float *state;
} qn_att_strip;

typedef void (*qn_att_strips_fn)(const qn_att_strip *strips, int64_t count, const char *keys, const char *values,
                                 int64_t d, float scale, char *scratch);

/* The state of all keys so far takes in that of a chunk, where a column sees any of it; the first chunk's it becomes.
 */
typedef void (*qn_att_join_fn)(float *all, const float *part, const int32_t *visible, int64_t d, int first);

/* Rows of o, d floats apart, from a state, which is used up. All of each sixteen that have a row. */
typedef void (*qn_att_rows_fn)(float *all, int64_t d, int64_t rows, float *o);

typedef struct qn_att_tiles_set {
    qn_att_queries_fn queries;
    qn_att_tiles_fn keys, values;
    qn_att_strips_fn strips;
    qn_att_join_fn join;
    qn_att_rows_fn rows;
} qn_att_tiles_set;

extern const qn_att_tiles_set qn_att_tiles__amx;

#endif
