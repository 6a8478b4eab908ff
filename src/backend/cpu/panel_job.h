/* A matmul in the panel runner's terms: bound from an operator's slots by
 * panel_bind.c, computed by run_panel.c. */
#ifndef QN_BACKEND_CPU_PANEL_JOB_H
#define QN_BACKEND_CPU_PANEL_JOB_H

#include "backend/cpu/run_panel.h"

typedef struct qn_panel_job {
    const qn_panel_impl *impl;
    const qn_panel_set *set; /* of the run's rows */
    const qn_run_call *call;
    qn_panel_layout layout;
    int64_t m, n, k; /* m: rows of a of all experts */

    /* weights: sections of the blob; panels NULL: tasks pack the panels they need */
    const char *panels, *rest;
    const uint8_t *flags;
    const float *block_scales;

    /* experts: 1 and no offsets for a plain matmul */
    int64_t experts, expert_rows;          /* expert_rows > 0: rows an expert has room for (masked layout) */
    const int32_t *offsets, *masked_m;
    int keep;                              /* rows that no expert owns stay as they are */
    int64_t a_expert, sa_expert, out_expert; /* bytes from expert to expert */

    /* rows of a, and as the kernels take them */
    qn_mm_operand a;
    qn_mm_unpack_fn unpack_a;
    qn_format a_format;
    qn_panel_rows kind;
    int32_t terms;
    qn_panel_rounding rounding; /* QN_PANEL_ROWS_DIGITS, _PLACES, _WORDS */
    char *rows;
    int64_t row_stride;
    uint8_t *odd_rows; /* 1: kernels must not compute the row, by its scales or elements; NULL: they may compute all */

    /* 128-blocks: scale of row r, block i is at sa + r * sa_row + i * sa_block (bytes) */
    const char *sa;
    int64_t sa_row, sa_block;

    /* epilogue */
    int32_t scaled;
    float factor;
    qn_mm_real out_real;
    const char *scale_a;    /* stride 0: one for all rows */
    int64_t scale_a_stride;
    const float *scale_b;   /* scaled: [1] or [n] */
    int64_t scale_b_step;   /* elements */
    const float *bias;      /* NULL: none */
    const int32_t *azp_adj, *azp;
    char *out;
    int64_t out_stride;
    int32_t adds; /* 1: to what is there */

    /* grid and per-thread memory; span: panels that are dealt out, of gates for those of the other half too */
    int64_t task_rows, task_panels, span;
    char *scratch;
    size_t scratch_bytes;
} qn_panel_job;

/* Kernels for m rows: the row's own, or those it leaves few rows to. */
const qn_panel_set *qn_panel_set_of(const qn_panel_impl *impl, int64_t m);

/* Everything but rows, weights' sections when nothing is packed, grid and scratch. */
void qn_panel_bind(const qn_kernel *kernel, const qn_run_call *call, qn_panel_job *job);

/* The sections of `rest` (layout.scales and on). */
void qn_panel_bind_rest(qn_panel_job *job, const char *rest);

/* bf16 terms that hold a value of that format exactly. */
int32_t qn_panel_terms(qn_format format);

/* Format of the operand that rows of a are read from. */
qn_format qn_panel_row_format(const qn_op_desc *desc);

#endif
