/* Strips of rows: steps of a pass that run by one thread for some rows, one step after the other (strips.c). batch.c
 * calls. */
#ifndef QN_MODEL_STRIPS_H
#define QN_MODEL_STRIPS_H

#include "model/batch.h"

/* Fill b->strips, and let the batch's workspace be enough for all threads. 0: out of memory. */
int qn_strips_prepare(qn_batch *b);

/* How many steps from that one on the pass does by strips; 0: not this one. */
int32_t qn_strips_at(const qn_batch *b, size_t step);

/* Do them. */
qn_status qn_strips_run(qn_batch *b, size_t step, const qn_row_range *all, qn_error *error);

#endif
