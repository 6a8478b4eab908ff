/* quip_e8p beside the fit: into the space its codes are in, and out of it with the
 * tensors that are stored (docs/formats/vq.md). Used by vq.c.
 *
 *     W = SV . Hout Q Hin^T . SU,   SU and SV random signs (SV with the scales)
 *
 * Hadamard transforms with random signs make any weight look like independent normal numbers and its inputs' X^T X
 * nearly one (incoherence; Tseng et al. 2024). The fit is of wt = Hout^T (SV . W . SU) Hin with h = Hin^T (SU . X^T X .
 * SU) Hin, which has the same error. At the end every row n of W gets the factor that lessens its own error most, <w,
 * q>_h / <q, q>_h, into SV. */
#ifndef QN_QUANT_VQ_LATTICE_H
#define QN_QUANT_VQ_LATTICE_H

#include "format/scheme.h"
#include "quant/vq_fit.h"

typedef struct qn_vq_space {
    qn_ctx *ctx;
    const qn_exec *exec;
    int64_t n, k;
    float *w, *squares; /* transformed [n][k]; [k][k], NULL: none */
    float *in_signs, *out_signs;
    float scale;   /* of wt's root mean square, as F16 */
    float *tables; /* the lattice's numbers */
    qn_fit_lattice lattice;
    float sizes[2]; /* of each book */
} qn_vq_space;

/* QN_E_SHAPE, naming the scheme: not of whole tiles, or no transform of that length. */
qn_status qn_vq_space_check(const qn_scheme *scheme, int64_t n, int64_t k, qn_error *error);

/* Transform w[n][k] and squares[k][k] (NULL: none). QN_E_MEMORY. */
qn_status qn_vq_space_enter(qn_ctx *ctx, const qn_exec *exec, const qn_scheme *scheme, const float *w, int64_t n,
                            int64_t k, const float *squares, qn_vq_space *space, qn_error *error);
void qn_vq_space_free(qn_vq_space *space);

/* The points of every code, book after book, as a fit's table. */
void qn_vq_space_fill(const qn_vq_space *space, const qn_scheme *scheme, float *table);

/* Qidxs, SU, SV, Wscale, codebook_id of what was fitted; order[g]: which group of wt is at place g. w, squares: as
 * entered, damp: what is added to the diagonal. *rms: relative root mean square error of the weights. QN_E_MEMORY. */
qn_status qn_vq_space_store(const qn_vq_space *space, const qn_scheme *scheme, const qn_vq_fit *fit,
                            const int32_t *order, const float *w, const float *squares, float damp, void *const *parts,
                            double *rms, qn_error *error);

#endif
