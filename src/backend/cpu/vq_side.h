/* What every kernel of vq_mm does beside its codes: rows of x made ready (turned
 * into the order and space that codes are in), and sums finished (turned back,
 * scaled, bias, rounding). Its numbers are a section of the packed body. */
#ifndef QN_BACKEND_CPU_VQ_SIDE_H
#define QN_BACKEND_CPU_VQ_SIDE_H

#include "backend/backend.h"
#include "kernels/common/mm.h"
#include "kernels/common/vq.h"
#include "ref/vq.h"

/* Byte offsets in the section; the parts that a format lacks are not there. */
typedef struct qn_vq_side_layout {
    size_t in_scale;  /* f32[k], of decoded column p: SU / scaleWH, weight_scale */
    size_t shift;     /* f32[k]: weight_bias */
    size_t column;    /* i32[k]: original column of decoded column p */
    size_t out_scale; /* f32[n]: scales, SV * Wscale */
    size_t bias;      /* f32[n] */
    size_t total;
    int has_in_scale, has_shift, has_column, has_out_scale, has_bias, turns_in, turns_out;
} qn_vq_side_layout;

qn_vq_side_layout qn_vq_side_layout_of(const qn_op_desc *desc, const qn_vq *vq);

void qn_vq_side_pack(const qn_vq_side_layout *l, const qn_vq *vq, const qn_view *bias, char *section);

/* A run's rows and results. */
typedef struct qn_vq_side {
    qn_vq_side_layout layout;
    const char *section;
    const qn_mm_f32_set *parts;
    int64_t m, n, k, k_pad;
    const qn_view *x;
    const qn_mut_view *y;
    float *rows;   /* [m][k_pad], zeros behind k */
    float *shifts; /* [m]: sum of weight_bias x */
    float *sums;   /* [m][n], before the turn back */
    char *scratch; /* per thread */
    size_t scratch_bytes;
    qn_vq_turn_fn turn;  /* set by kernels that have one: Hadamard transforms in f32 ... */
    const float *mix[2]; /* ... and its matrices, of x and of sums */
} qn_vq_side;

/* The numbers of a descriptor of vq_mm. */
void qn_vq_side_describe(const qn_op_desc *desc, qn_vq *vq);

/* Why a kernel of byte tables, in registers where its level permutes them, else in L1, is not of the rung that the
 * descriptor asks for; NULL: it is. */
const char *qn_vq_side_rung_refusal(const qn_kernel *kernel, const qn_op_desc *desc);

/* Workspace for m rows on that many threads, and its use. */
size_t qn_vq_side_bytes(const qn_vq *vq, int64_t m, int32_t threads);
void qn_vq_side_bind(const qn_run_call *call, const qn_vq *vq, const qn_mm_f32_set *parts, const char *section,
                     char *workspace, qn_vq_side *side);

void qn_vq_side_prepare(const qn_vq_side *side, const qn_exec *exec);

/* Sums n0 to n0 + count - 1 of a row that has a NaN are that NaN, unless infinities make others; 0: they are still to be
 * computed. */
int qn_vq_side_put_nan(const qn_vq_side *side, int64_t m, int64_t n0, int64_t count);

void qn_vq_side_finish(const qn_vq_side *side, const qn_exec *exec);

#endif
