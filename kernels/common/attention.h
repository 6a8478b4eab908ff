/* The contract between the attention runner (src/backend/cpu/run_attention.c)
 * and the per-level parts. Keys are taken in blocks of QN_ATT_KEYS counted from
 * key 0, whatever the queries are: the operations of one (query, head) are the
 * same in every batch. */
#ifndef QN_KERNELS_COMMON_ATTENTION_H
#define QN_KERNELS_COMMON_ATTENTION_H

#include <stdint.h>

#define QN_ATT_KEYS 64
#define QN_ATT_LANES 16 /* floats of state a row keeps for its sum */

/* s[r][key] = sum over i < d of q[r][i] kt[i][key], i ascending. q rows q_stride floats apart,
 * kt rows and s rows QN_ATT_KEYS floats. */
typedef void (*qn_att_scores_fn)(const float *q, int64_t q_stride, const float *kt, int64_t d, int64_t rows, float *s);

/* One row: s of the first visible keys becomes exp(scale s - max); max, lanes of the sum and o (d_pad floats)
 * are brought to the new maximum. */
typedef void (*qn_att_softmax_fn)(float *s, int64_t visible, float scale, float *max, float *lanes, float *o,
                                  int64_t d_pad);

/* o[r][i] += sum over keys ascending of p[r][key] v[key][i], i < d_pad (a multiple of QN_ATT_KEYS). */
typedef void (*qn_att_values_fn)(const float *p, const float *v, int64_t d_pad, int64_t keys, int64_t rows, float *o);

/* out[i] = o[i] / sum of lanes, i < d. */
typedef void (*qn_att_finish_fn)(const float *o, const float *lanes, int64_t d, float *out);

/* kt[i][key] = k[key][i] for i < d and QN_ATT_KEYS keys; rows of k are k_stride floats. */
typedef void (*qn_att_transpose_fn)(const float *k, int64_t k_stride, int64_t d, float *kt);

typedef struct qn_att_set {
    qn_att_scores_fn scores;
    qn_att_softmax_fn softmax;
    qn_att_values_fn values;
    qn_att_finish_fn finish;
    qn_att_transpose_fn transpose;
} qn_att_set;

extern const qn_att_set qn_att__scalar, qn_att__avx2, qn_att__avx512;

#endif
