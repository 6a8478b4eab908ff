/* Attention over keys and values of BF16 by tiles (kernels/common/attention.h), with the tasks of the engine
 * (attention.h) and its chunks. A chunk with an infinite or NaN element is taken as it is by the queries that see no
 * such key; the others, by themselves, go the engine's way. */
#ifndef QN_BACKEND_CPU_ATTENTION_TILES_H
#define QN_BACKEND_CPU_ATTENTION_TILES_H

#include "backend/cpu/attention.h"

size_t qn_att_tiles_workspace_bytes(int64_t queries, int64_t heads, int64_t key_heads, int64_t d, int32_t threads);

/* Run a job as qn_att_run does; the engine's set is that of the queries by themselves. */
void qn_att_tiles_run(qn_att_job *job, const qn_att_tiles_set *set, void *workspace, const qn_exec *exec);

#endif
