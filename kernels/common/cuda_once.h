/* How a tensor with one scale is dealt out to the blocks of its only launch (kernels/cuda/tensor_once.h), as host and
 * device see it. Included by both sides, so plain C and no other header. */
#ifndef QN_KERNELS_CUDA_ONCE_H
#define QN_KERNELS_CUDA_ONCE_H

#define QN_ONCE_READERS 480 /* threads of a block, which one warp copies for */

typedef struct qn_cuda_deal {
    long long units;     /* of eight elements */
    unsigned int whole;  /* full slots of a block */
    unsigned int each;   /* units of what is left that a block has, if there is no less */
    unsigned int rest;   /* elements behind the last unit */
    unsigned int cached; /* slots of a block that the L2 cache is asked to keep */
} qn_cuda_deal;

#endif
