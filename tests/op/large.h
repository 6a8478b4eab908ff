/* Weights that tests run less often, since decoding and packing them takes long. */
#ifndef QN_TESTS_OP_LARGE_H
#define QN_TESTS_OP_LARGE_H

#include "op/op.h"

static inline int has_large_weights(const qn_sizes *sizes)
{
    return sizes->n * sizes->k > 1 << 19;
}

#endif
