/* KV schemes of a model: its codebooks (from the file beside the checkpoint), and the
 * packed form that kernels read. The steps are build.c's, the caches session.c's. */
#ifndef QN_MODEL_KV_H
#define QN_MODEL_KV_H

#include "model/model.h"

/* Find the scheme and open its codebooks, before the steps are built. */
qn_status qn_kv_prepare(qn_model *model, const char *name, qn_error *error);

/* Pack the codebooks of the steps that read them. */
qn_status qn_kv_pack(qn_model *model, qn_error *error);

/* The codebook of a layer's keys (values 0) or values. */
const qn_view *qn_kv_book(const qn_model *model, int32_t layer, int values);

void qn_kv_release(qn_model *model);

#endif
