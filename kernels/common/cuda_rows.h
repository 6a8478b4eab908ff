/* The argument of the row-wise CUDA kernels (kernels/cuda/segments.h), as host and
 * device see it. A segment is what shares a scale: a group of a row, or a row.
 * Strides are bytes. Included by both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_ROWS_H
#define QN_KERNELS_CUDA_ROWS_H

typedef struct qn_cuda_rows {
    const char *x;     /* [m, k], or [m, 2k]: gate, then up */
    const char *given, *given_azp; /* static quantisation: the scales, the zero points */
    char *q, *scale, *azp;
    long long x_row, given_row, given_segment, given_azp_row, given_azp_segment, q_row;
    long long scale_row, scale_segment, azp_row, azp_segment;
    long long m, k, segments, length; /* segments of a row, and the length of each but the last */
    float *ranges;                    /* of a whole tensor, where it has one scale: tensor_range.h */
    float bound;                      /* scale_ub; 0: none */
    int power_of_two;                 /* scales are rounded up to powers of two */
} qn_cuda_rows;

#endif
