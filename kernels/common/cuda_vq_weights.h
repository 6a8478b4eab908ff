/* The argument of vq_dequantize's CUDA kernel (kernels/cuda/vq_dequantize.cu), as host and device see it. Included by
 * both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_VQ_WEIGHTS_H
#define QN_KERNELS_CUDA_VQ_WEIGHTS_H

/* A tensor of floats or int8: elements are counted as if it were dense. */
typedef struct qn_cuda_vq_tensor {
    const char *data;              /* NULL: absent */
    long long dims[4], strides[4]; /* outermost first; absent dimensions in front are 1 */
    int format;                    /* QN_MM_F32, _F16, _BF16; 3: int8 */
    int bytes;                     /* of an element */
} qn_cuda_vq_tensor;

typedef struct qn_cuda_vq_weights {
    const char *codes;
    qn_cuda_vq_tensor books, scales; /* gptvq: codebook_scales */
    char *w;
    long long codes_row, codes_group, w_row;
    long long n, k;
    int codebooks, bits, in_group, out_group;
    int code_bytes; /* of a code; 0: a bit stream a row of `stream` bytes */
    long long stream;
} qn_cuda_vq_weights;

#endif
