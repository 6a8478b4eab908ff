/* Vector-quantised weights as a value: what the tensors of a checkpoint say, and
 * the one scalar decoder that defines the weights (docs/formats/vq.md).
 *
 * A qn_vq is bound from an operator's slots (vq_bind.c). The reference,
 * the error model, the packers of the CPU backend and the tests of inputs read
 * codes and values through the functions here; nothing else knows the layouts. */
#ifndef QN_REF_VQ_H
#define QN_REF_VQ_H

#include <quern/op.h>
#include <quern/plan.h>

#define QN_VQ_TILE 256 /* rows and columns that share a codebook of gptvq */
#define QN_VQ_MAX_VECTOR 256
#define QN_VQ_MAX_BOOKS 64

typedef struct qn_vq {
    qn_vq_format format;
    int64_t n, k;

    /* aqlm: codebooks x bits, vectors of in_group elements of out_group rows */
    int64_t codebooks, bits, in_group, out_group;
    int packed; /* codes are a bit stream a row, lowest bit first */

    /* quip_e8p */
    qn_vq_codebook codebook;
    double resid_scale;

    /* vptq: vectors of vector_len rows; 0 entries: none of that kind */
    int64_t vector_len, entries, res_entries, groups, group_size;
    int64_t outlier_size, outlier_len, outlier_entries;

    /* tensors by QN_VQ_* slot (src/ref/slots.h); format QN_FORMAT_NONE: absent */
    const qn_view *tensor;
} qn_vq;

/* Everything but the tensors: attributes, and what they leave open from shapes. n and k: the sizes where the caller
 * knows them; below 0: as the shapes say. Shapes need not fit together yet. */
void qn_vq_describe(const qn_op_desc *desc, int64_t n, int64_t k, qn_vq *vq);

/* The same with the tensors of a run; args must outlive vq. */
void qn_vq_bind(const qn_op_desc *desc, const qn_args *args, qn_vq *vq);

/* Bits that hold 0 to count - 1; 0 for counts below 2. */
int64_t qn_vq_bits_for(int64_t count);

/* 32-bit words of a row of vptq's packed indices for that many columns. */
int64_t qn_vq_index_words(const qn_vq *vq, int64_t columns);

/* ---- codes ---- */

/* aqlm: code of codebook c, group g of K, row group r; as stored it may be signed: 0 to 2^bits - 1 here.
 * *beyond (may be NULL) becomes 1 when the stored number is none of bits bits. */
uint32_t qn_vq_aqlm_code(const qn_vq *vq, int64_t r, int64_t g, int64_t c, int *beyond);

/* aqlm: the codes of all codebooks of a group. */
void qn_vq_aqlm_group(const qn_vq *vq, int64_t r, int64_t g, uint32_t *codes);

/* quip_e8p: the 16-bit code of row, k / 8; its residual's code (0 where the codebook has none). */
uint32_t qn_vq_quip_code(const qn_vq *vq, int64_t row, int64_t g);
uint32_t qn_vq_quip_residual(const qn_vq *vq, int64_t row, int64_t g);

/* vptq: main and residual index of rows r * vector_len on, column i of group g. */
void qn_vq_vptq_index(const qn_vq *vq, int64_t g, int64_t r, int64_t i, uint32_t *main, uint32_t *residual);

/* vptq: original column of decoded column p. */
int64_t qn_vq_vptq_column(const qn_vq *vq, int64_t p);

/* What a residual is divided by when nothing else is given: 3.45 or 2.04; 1 for E8P12. */
double qn_vq_quip_resid_scale(qn_vq_codebook codebook);

/* ---- caches of vq_attention ---- */

/* Tokens that a sequence has room for. */
int64_t qn_vq_room(const qn_op_desc *desc);

/* Codes of token t of sequence b, its first head; slot QN_VQA_K_CODES or QN_VQA_V_CODES. */
const uint8_t *qn_vq_token(const qn_op_desc *desc, const qn_args *args, int32_t slot, int64_t b, int64_t t);

/* ---- values ---- */

/* Element i of a float tensor, counted as if it were dense; absent gives the other value. */
double qn_vq_value(const qn_view *view, int64_t i, double absent);

/* Row `row` of the coded matrix: all columns, before Wscale and the transforms of quip_e8p. */
void qn_vq_decode_row(const qn_vq *vq, int64_t row, double *value);

/* Euclidean norm of the row with each element replaced by the sum of the magnitudes of its terms (codewords,
 * residual, shift): what errors of float kernels are in proportion to. */
double qn_vq_row_size(const qn_vq *vq, int64_t row);

/* Elements [first, first + count) of a float tensor as floats; they lie in one row of it. */
void qn_vq_values(const qn_view *view, int64_t first, int64_t count, float *value);

/* 1 when weights are transformed: SU or SV of quip_e8p. */
int qn_vq_transformed(const qn_vq *vq);

/* Transformed weights in two steps, of rows and of columns each on their own. A row of k, transformed along K where SU
 * is given; scratch: k. Column i of rows [n][k] of those: its n weights, not rounded yet; scratch: n. */
void qn_vq_input_row(const qn_vq *vq, int64_t row, double *value, double *scratch);
void qn_vq_output_column(const qn_vq *vq, const double *rows, int64_t i, double *column, double *scratch);

#endif
