/* The argument of kernels/cuda/quantize_fp4.cu, as host and device see it. Strides are bytes.
 * Included by both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_FP4_H
#define QN_KERNELS_CUDA_FP4_H

typedef struct qn_cuda_fp4 {
    const char *x, *given; /* given: global scale, or NULL */
    char *q, *scale, *global;
    float *ranges;         /* of x, where the global scale comes from it: tensor_range.h */
    long long x_row, q_row, scale_row;
    long long m, blocks;   /* of a row */
    int rule;
} qn_cuda_fp4;

#endif
