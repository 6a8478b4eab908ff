/* The argument of kernels/cuda/mm_points.cu as host and device see it: up to three E8P12 weights that share the row
 * which is made in front of them. */
#ifndef QN_KERNELS_CUDA_MM_POINTS_H
#define QN_KERNELS_CUDA_MM_POINTS_H

#include "cuda_mm.h"

/* A Hadamard transform of length base * fast: Sylvester's matrix along the fast axis, a power of two, the base's along
 * the slow one. Bit j of rows[i] is set where element (i, j) of the base's is -1. */
#define QN_MM_TURN_BASE 64
typedef struct qn_cuda_mm_turn {
    int base, fast;
    float scale; /* 1 / sqrt(length) */
    unsigned long long rows[QN_MM_TURN_BASE];
} qn_cuda_mm_turn;

/* Such a transform by tensor cores (kernels/cuda/mm_turn.h): the base's rows there, bytes of shared memory. */
#define QN_MM_TURN_ROWS(base) (((base) + 15) / 16 * 16)
#define QN_MM_TURN_BYTES(base, fast)                                                                                   \
    (2 * QN_MM_TURN_ROWS(base) * (QN_MM_TURN_ROWS(base) + 8) + 6 * QN_MM_TURN_ROWS(base) * ((fast) + 8))

/* Beside a weight's codes, which are its b: signs of x and y, scales; the transform of y. */
typedef struct qn_cuda_mm_turns {
    const char *su, *sv, *wscale, *scale_wh;
    qn_cuda_mm_turn out;
} qn_cuda_mm_turns;

typedef struct qn_cuda_mm_points {
    qn_cuda_mm mm; /* first: a chain fills it as any product's */
    qn_cuda_mm_turns turns[QN_CUDA_MM_PARTS];
    qn_cuda_mm_turn in;
    float resid_inverse; /* 1 / what residuals are divided by */
} qn_cuda_mm_points;

#endif
