/* A matmul in the runner's terms: bound from an operator's slots by mm_bind.c,
 * computed by run_mm.c. */
#ifndef QN_BACKEND_CPU_MM_JOB_H
#define QN_BACKEND_CPU_MM_JOB_H

#include "backend/cpu/run_mm.h"

typedef struct qn_mm_job {
    const qn_mm_f32_set *set;
    const qn_mm_i8_set *i8;
    qn_mm_unpack_fn unpack_a, unpack_b;
    int64_t m, n, k, k_pad; /* m: all rows of a's panel */

    /* experts: 1 and no offsets for a plain matmul */
    int64_t experts, expert_rows;  /* expert_rows > 0: rows a expert has room for (masked layout) */
    const int32_t *offsets, *masked_m;
    qn_mm_operand a, b;            /* of expert 0 */
    int64_t a_expert, b_expert, b_scale_expert, out_expert; /* bytes from expert to expert */

    int a_direct, b_direct;        /* rows that need no unpacking */
    char *a_panel;                 /* [m][k_pad] */
    int64_t a_panel_stride;

    /* 128-blocks: scale of row r, block i is at sa + r * sa_row + i * sa_block (bytes) */
    const char *sa, *sb;
    int64_t sa_row, sa_block, sa_expert, sb_row, sb_block;

    /* epilogue */
    int32_t scaled;
    float factor;
    qn_mm_real out_real;
    const float *scale_a; /* step 0: one for all rows */
    int64_t scale_a_stride;
    const float *scale_b;
    int64_t scale_b_stride;
    qn_mm_operand bias;
    qn_mm_unpack_fn unpack_bias; /* NULL: no bias */
    const int32_t *azp_adj, *azp, *column_sums;
    char *out;
    int64_t out_stride;

    /* per thread */
    char *scratch;
    size_t scratch_bytes;
    size_t lanes_at, small_at; /* offsets inside: panel at 0, lanes, small arrays */
} qn_mm_job;

/* Fill everything but panels and scratch. */
void qn_mm_bind(const qn_kernel *kernel, const qn_run_call *call, qn_mm_job *job);

/* Fragment that decodes a plain element format; QN_MM_ANY for the others. */
qn_mm_fragment qn_mm_fragment_of(qn_format format);

/* Offsets inside the packed body. */
typedef struct qn_mm_packed {
    size_t rows, sums, scales, bias, azp_adj, total;
    int64_t row_bytes;
} qn_mm_packed;
qn_mm_packed qn_mm_packed_layout(const qn_op_desc *desc);

#endif
