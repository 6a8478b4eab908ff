/* Encoders: rows of floats to codes and scales, for any scheme of the table.
 *
 * A scheme's weight [N,K] is cut into tiles that share a scale: a row (channel),
 * block_n x block_k (block, short at the edges) or 1 x block_k (group). One
 * routine serves them all; the formats come from their table rows. Called by
 * quantize.c, a few rows at a time, so that no tensor is ever expanded whole.
 *
 *     plain rule   scale = amax / max of the element format        (float scales)
 *                  scale = code nearest G * amax / max             (e4m3 scales; G the global scale, or 1)
 *                  scale = smallest power of two >= amax / max     (e8m0 scales)
 *     search       of the plain scale and a few around it, the one with the least sum of
 *                  importance[k] * (w - decoded)^2 over the tile; the plain one wins ties
 *
 *     feedback     rounding that makes good what earlier columns lost (below)
 *
 * A tile of zeros has scale 1; scales are finite and above zero. */
#ifndef QN_QUANT_ENCODE_H
#define QN_QUANT_ENCODE_H

#include "format/format.h"
#include "format/scheme.h"
#include "kernels/common/fit.h"

/* The values of an element format: steps of 2^(e - mantissa) at 2^e, not finer
 * than at 2^e_min, up to max. max 0: not described, no search. */
typedef struct qn_grid {
    qn_format format;
    int32_t mantissa;
    float least; /* 2^e_min */
    float max;
} qn_grid;

typedef struct qn_encoder {
    /* set by qn_encoder_init */
    const qn_scheme *scheme;
    const qn_format_row *element, *scale; /* scale NULL: none */
    const qn_grid *grid;                  /* NULL: none known */
    int64_t n, k;
    int64_t tile_n, tile_k;       /* elements that share a scale */
    int64_t unit;                 /* rows are encoded in multiples of this from row 0 (the last ones may be fewer) */
    int64_t tiles_k;              /* scales a tile row */
    size_t row_bytes;             /* bytes of a row of codes */
    size_t scale_row_bytes;       /* bytes of a tile row of scales; 0: none */
    qn_shape data_shape, scale_shape; /* of the stored tensors, in formats files have names for */
    int32_t code_low, code_high;  /* scales of one byte: codes that are finite and above zero */
    int32_t code_octave;          /* and how many of them from a value to its double; 0: not of one byte */
    /* the caller's to change before encoding */
    int32_t search;               /* 1 */
    float global_scale;           /* schemes with one: qn_encode_global_scale(amax of the tensor); initially 1 */
    const float *importance;      /* [K], weights of the squared errors; NULL: all 1 */
    const float *feedback;        /* [K,K] of qn_feedback_factor; NULL: each weight is rounded for itself */
    const int32_t *order;         /* [K] of the same */
    const qn_fit_set *set;        /* whose products feedback is added by; initially the scalar ones */
} qn_encoder;

typedef struct qn_encode_sums {
    double error, weight; /* sums of (w - decoded)^2 and w^2 */
} qn_encode_sums;

/* Prepare for a weight of n rows and k columns. QN_E_SHAPE: k does not fill
 * whole groups or bytes. QN_E_FORMAT: a format of the scheme has no codec. */
qn_status qn_encoder_init(qn_encoder *encoder, const qn_scheme *scheme, int64_t n, int64_t k, qn_error *error);

/* Second scale of a tensor (or of tensors that share it) with that absolute
 * maximum: the largest power of two up to (scale max * element max) / amax, which
 * is 2688 / amax for NVFP4; 1 when amax is 0, at most 2^100. A power of two, so that
 * (code * scale) / G and code * (scale / G) are the same number: readers differ
 * in that order. It costs no accuracy and leaves room above amax. */
float qn_encode_global_scale(const qn_encoder *encoder, float amax);

/* Floats of scratch that qn_encode_rows needs for that many rows. */
size_t qn_encode_scratch(const qn_encoder *encoder, int64_t rows);

/* Error feedback. With h = X^T X of the inputs X the layer meets, the error of its
 * outputs is d h d^T for a row's error d = q - w. Columns are put in descending order of h's
 * diagonal (ties by number): the ones that matter most go first, while there are most columns left to
 * make good what they lose. In that order factor h + damp = R R^T, R upper; the sum becomes
 * sum_j R[j][j]^2 (d_j + sum_{i<j} d_i R[i][j] / R[j][j])^2, so column j is rounded towards
 * w_j + sum_{i<j} (w_i - q_i) R[i][j] / R[j][j] (LDLQ; Chee et al. 2023; the same as GPTQ,
 * Frantar et al. 2022, from the other end). All scales are chosen first, from w and importance.
 * h[K,K], symmetric, is replaced: row j holds R[i][j] / R[j][j] at i < j. importance[K] becomes the diagonal
 * of h + damp over its mean, by column; order[j] is the column at place j. damp: part of the mean of h's
 * diagonal that is added to it. scratch: K floats. */
void qn_feedback_factor(const qn_fit_set *set, float *h, int64_t k, float damp, float *importance, int32_t *order,
                        float *scratch);

/* h[k][stride] = R R^T, symmetric, positive: R into its upper triangle; a pivot's square is at least `least`. */
void qn_feedback_upper(const qn_fit_set *set, float *h, int64_t k, int64_t stride, float least);

/* Encode `rows` finite rows w[rows,K], the first one at a multiple of unit.
 * data: row_bytes a row; scales: scale_row_bytes a tile row (may be NULL when there
 * are none). scratch: qn_encode_scratch floats, NULL when that is 0. sums is added to. Thread-safe. */
void qn_encode_rows(const qn_encoder *encoder, const float *w, int64_t rows, void *data, void *scales, float *scratch,
                    qn_encode_sums *sums);

#endif
