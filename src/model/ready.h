/* Steps of a batch on the CPU whose operands are resolved and checked once for many tokens (ready.c). batch.c calls. */
#ifndef QN_MODEL_READY_H
#define QN_MODEL_READY_H

#include "model/batch.h"
#include "plan/plan.h"

/* The blobs of the steps are checked here. lanes: most that run a step at a time, each with rows of its own. */
qn_status qn_ready_create(const qn_model *model, int32_t lanes, qn_ready **out, qn_error *error);
void qn_ready_destroy(const qn_ctx *ctx, qn_ready *ready); /* NULL is fine */

/* A pass begins: caches are longer than they were. */
void qn_ready_begin(qn_ready *ready);

/* Whether qn_ready_run does the step for these rows; of a step that reads a cache they are of one sequence. */
int qn_ready_takes(const qn_ready *ready, size_t step, const qn_row_range *rows, const qn_lane *lane);

/* Whether qn_ready_run has done the step along with the one before. */
int qn_ready_did(const qn_ready *ready, size_t step, const qn_row_range *rows, const qn_lane *lane);

qn_status qn_ready_run(qn_batch *b, size_t step, const qn_row_range *rows, const qn_lane *lane, qn_error *error);

/* Weights of the product after this one; NULL: none, or the step is no product of packed weights. */
const void *qn_ready_next(const qn_ready *ready, size_t step, size_t *bytes);

#endif
