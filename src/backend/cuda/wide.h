/* Strips of weights by many rows on Hopper: which cuts of kernels/cuda/wide.h a plan has, which of them a run takes,
 * and what its launch needs. Used by run_fp4_mm.c and run_scaled_mm.c. */
#ifndef QN_BACKEND_CUDA_WIDE_H
#define QN_BACKEND_CUDA_WIDE_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/tiles.h"

/* What is multiplied: the kernels' DEPTH and so on, their limits, and what they take. */
typedef enum qn_wide_kind { QN_WIDE_NVFP4 = 0, QN_WIDE_MXFP4, QN_WIDE_I8, QN_WIDE_E4M3, QN_WIDE_KINDS } qn_wide_kind;

/* Programs of a plan, of 4-bit and of 8-bit weights; the fewest rows that strips are for, and the most of 8 bits. */
enum { QN_WIDE_FP4_PROGRAMS = 8, QN_WIDE_BYTE_PROGRAMS = 5, QN_WIDE_ROWS = 65, QN_WIDE_BYTE_ROWS = 256 };

/* A product but for its rows. */
typedef struct qn_wide_form {
    qn_wide_kind kind;
    int32_t sms;
    int64_t n, k;
} qn_wide_form;

/* Rows of x in a block, warpgroups beside each other and that take turns, parts of K; which program it is of. */
typedef struct qn_wide_cut {
    int32_t rows, groups, wk, split, program;
    double us; /* estimated */
} qn_wide_cut;

/* Parameters and size of program i, to those of the operands. */
void qn_wide_program(const qn_wide_form *form, int32_t i, qn_cuda_program *program);

/* The cut of the least estimate for m rows; the functions of the programs. */
qn_wide_cut qn_wide_choose(const qn_wide_form *form, const qn_cuda_function *functions, int64_t m);

/* Boxes of b and x; steps of rows in bytes. */
typedef struct qn_wide_boxes {
    qn_tile_boxes b, x;
} qn_wide_boxes;

qn_status qn_wide_maps(const qn_cuda_run *run, const qn_wide_form *form, const qn_wide_cut *cut, const void *b,
                       int64_t b_row, const void *x, int64_t x_row, int64_t m, qn_wide_boxes *boxes, qn_error *error);
qn_cuda_geometry qn_wide_geometry(const qn_wide_form *form, const qn_wide_cut *cut, int64_t m);

/* A cut with its estimate after `what`; the programs' for m rows, of which the best is returned. */
void qn_wide_describe_cut(const char *what, const qn_wide_cut *cut, qn_text *text);
qn_wide_cut qn_wide_describe(const qn_wide_form *form, int64_t m, qn_text *text);

#endif
