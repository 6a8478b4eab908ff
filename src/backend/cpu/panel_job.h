/* A matmul in the panel runner's terms: bound from an operator's slots by panel_bind.c, cut into tasks that have their
 * memory by panel_grid.c, its rows made ready by panel_rows.c, computed by run_panel.c. */
#ifndef QN_BACKEND_CPU_PANEL_JOB_H
#define QN_BACKEND_CPU_PANEL_JOB_H

#include <string.h>

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

/* ---- grid and memory ---- */

#define QN_PANEL_CHUNK 1024 /* elements of a row decoded at a time; rows of digits depend on it */
#define QN_PANEL_MOST_PANELS 64 /* of a task */
#define QN_PANEL_MOST_COLS (QN_PANEL_MOST_PANELS * QN_PANEL_COLS)
#define QN_PANEL_PLACES_LINES ((int64_t)(sizeof(qn_panel_places) / QN_PANEL_LINE))
#define QN_PANEL_WORDS_LINES ((int64_t)(sizeof(qn_panel_words) / QN_PANEL_LINE))

_Static_assert(sizeof(qn_panel_words) % QN_PANEL_LINE == 0, "whole lines");
_Static_assert(sizeof(qn_panel_places) >= 3 * 2 * QN_PANEL_K, "a block of any row that is spread, of three bf16 terms");

/* Small arrays of a thread. */
typedef struct qn_panel_small {
    float values[QN_PANEL_CHUNK + QN_MM_PAD];
    float scale_b[QN_PANEL_MOST_COLS], bias[QN_PANEL_MOST_COLS]; /* of a block's columns, then zeros to a whole step */
    int32_t azp_adj[QN_PANEL_MOST_COLS];
    float row[QN_PANEL_MOST_COLS];                                /* results that silu is to be applied to */
    char lines[QN_PANEL_CHUNK / QN_PANEL_K * sizeof(qn_panel_places)]; /* of a chunk of a row, before they are spread */
    qn_mm_finish finish;
    uint8_t flags[QN_PANEL_MOST_PANELS];
    int special; /* a panel of the block is */
} qn_panel_small;

/* Rows and panels of a task. */
typedef struct qn_panel_grid {
    int64_t rows, panels;
} qn_panel_grid;

typedef struct qn_panel_memory {
    size_t rows, odd_rows, rest, scratch, total;           /* of the run */
    size_t sums, scales, pack, pack_scales, small, thread; /* of a thread, from its scratch on; kernel's at 0 */
} qn_panel_memory;

qn_panel_grid qn_panel_largest_grid(const qn_panel_set *set);
qn_panel_grid qn_panel_grid_of(const qn_panel_set *set, int64_t m, int64_t panels, int32_t threads);
qn_panel_memory qn_panel_memory_of(const qn_panel_impl *impl, const qn_op_desc *desc, int64_t m, int32_t threads);

/* Lines of so many blocks of a row; bytes from a group of rows to the next; elements from a row of sums to the next. */
int64_t qn_panel_row_lines(qn_panel_rows kind, int32_t terms, int64_t blocks);
size_t qn_panel_row_stride(const qn_panel_set *set, qn_panel_rows kind, int32_t terms, int64_t blocks);
int64_t qn_panel_sums_stride(int64_t panels);

/* What a row of sums may take of a task of at most that many panels: they, or half as many and as many of the other
 * half of a product of gates. */
int64_t qn_panel_sums_room(int64_t panels);

/* Prepared row of an expert whose rows of a begin at `first`: every expert begins a group of its own. */
int64_t qn_panel_prepared_first(int32_t group, int64_t first, int64_t expert);

/* Whether some rows of a may be such that kernels must not compute them. */
int qn_panel_has_odd_rows(const qn_panel_layout *l, qn_panel_rows kind);

/* ---- rows of a ---- */

static inline int qn_panel_is_digits(qn_panel_rows kind)
{
    return kind == QN_PANEL_ROWS_DIGITS || kind == QN_PANEL_ROWS_PLACES || kind == QN_PANEL_ROWS_WORDS;
}

static inline float qn_panel_float_at(const char *p)
{
    float value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* Line i of a prepared row. */
static inline char *qn_panel_line(const qn_panel_job *job, int64_t row, int64_t i)
{
    const int64_t group = job->set->row_group;
    return job->rows + row / group * job->row_stride + (i * group + row % group) * QN_PANEL_LINE;
}

static inline const char *qn_panel_row_scales(const qn_panel_job *job, int64_t row)
{
    const int64_t e = job->expert_rows ? row / job->expert_rows : 0;
    return job->sa + e * job->sa_expert + (row - e * job->expert_rows) * job->sa_row;
}

/* Where row r of a begins, and as an operand of its own. */
const char *qn_panel_source_row(const qn_panel_job *job, int64_t row);
qn_mm_operand qn_panel_row(const qn_panel_job *job, int64_t r);

/* Rows of a from r, to the prepared rows from `row`. */
void qn_panel_prepare_rows(const qn_panel_job *job, int64_t r, int64_t row, int64_t rows, qn_panel_small *s);

/* Whether kernels must not compute a row of a by its scales; a prepared one by its digits. */
int qn_panel_has_odd_scale(const qn_panel_job *job, int64_t row);
int qn_panel_has_odd_digits(const qn_panel_job *job, int64_t row);

#endif
