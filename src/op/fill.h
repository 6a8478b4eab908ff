/* What the files that make operand values share (fill.c, fill_vq.c). */
#ifndef QN_OP_FILL_H
#define QN_OP_FILL_H

#include "base/rng.h"
#include "op/op.h"

typedef struct qn_filler {
    qn_rng rng;
    int exact;
} qn_filler;

/* An integer from low to high. */
int64_t qn_fill_pick(qn_filler *f, int64_t low, int64_t high);

/* Element i of a dense tensor becomes value. */
void qn_fill_put(qn_format format, void *data, int64_t i, float value);

/* A dense tensor: about normal with that deviation, exact: integers in [-2, 2]; positive scales of a typical size,
 * exact: 1/2, 1, 2; int8 codes; int32 in a range. */
void qn_fill_values(qn_filler *f, const qn_shape *shape, void *data, double deviation);
void qn_fill_scales(qn_filler *f, const qn_shape *shape, void *data, double typical);
void qn_fill_int8(qn_filler *f, const qn_shape *shape, void *data);
void qn_fill_int32(qn_filler *f, const qn_shape *shape, void *data, int64_t low, int64_t high);

/* A slot of the vector-quantised operators. */
void qn_fill_vq(qn_filler *f, const qn_op_desc *desc, int32_t slot, void *data);

#endif
