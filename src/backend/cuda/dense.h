/* Products of 16-bit floats on Hopper for whoever has such operands (kernels/cuda/dense_mm.cu): dense_mm itself
 * (run_dense_mm.c, run_planes.c) and products of weights that were written out before (run_vq.c, run_fp4_mm.c). */
#ifndef QN_BACKEND_CUDA_DENSE_H
#define QN_BACKEND_CUDA_DENSE_H

#include "backend/cuda/cuda.h"

enum { QN_DENSE_PROGRAMS = 8, QN_DENSE_PAD = 256 };

/* What the programs are made for. */
typedef struct qn_dense_form {
    int64_t n, k;
    int32_t f16;    /* operands are f16, else bf16 */
    int32_t out;    /* QN_OUT_* */
    int32_t scaled; /* QN_DENSE_* */
    int32_t bias;   /* 0 none, 1 f32, 2 f16, 3 bf16 */
    int32_t a_planes, b_planes; /* that add up to operands (mm_planes.cu); 0: they are not planes */
} qn_dense_form;

/* Scales: of rows and columns, the rows' may be ones; of rows alone; of both as planes have them. */
enum { QN_DENSE_UNSCALED = 0, QN_DENSE_SCALED, QN_DENSE_ROWS, QN_DENSE_BOTH };

/* A run's operands in device memory; steps of rows in bytes. */
typedef struct qn_dense_operands {
    const void *a, *b, *bias;
    const float *row_scale, *column_scale; /* of a scaled form; column_scale: with QN_DENSE_PAD more than N that may be
                                              read */
    void *d;
    int64_t a_row, b_row, d_row, a_plane, b_plane;
    int64_t n;           /* columns that there are of the form's; 0: all */
    int32_t m, constant; /* constant: work under way in the stream does not write b */
    int32_t *odd;        /* of planes: set to 1 where a result is not finite; NULL: is not */
} qn_dense_operands;

/* The programs of a form: QN_DENSE_PROGRAMS. */
void qn_dense_programs(const qn_dense_form *form, const qn_cuda_device *device, qn_cuda_program *out);

/* Whether the bulk copies can take a and b. */
int qn_dense_takes(const qn_dense_operands *operands);

/* Enqueue the product; the form's programs are the run's from `first` on. M, N and K at least 1. */
qn_status qn_dense_launch(const qn_cuda_run *run, int32_t first, const qn_dense_form *form,
                          const qn_dense_operands *operands, qn_error *error);

/* Microseconds that the product of m rows is estimated at. */
double qn_dense_us(const qn_dense_form *form, const qn_cuda_device *device, int64_t m);

/* The candidates with their estimates, and the choice. */
void qn_dense_describe(const qn_dense_form *form, const qn_cuda_device *device, int64_t m, qn_text *text);

#endif
