/* A model on a device: its weights there (upload.c), and the decoding pass as one graph (decode.c). */
#ifndef QN_MODEL_DEVICE_H
#define QN_MODEL_DEVICE_H

#include "model/session.h"

/* Copy every constant operand of the steps to the device, rows in logical order, and let the steps read the copies.
 * Takes the place of qn_model_pack. */
qn_status qn_model_upload(qn_model *model, qn_error *error);

/* The decoding pass of a session in its own batch as a graph. *out NULL and QN_OK: the device has no kernels for some
 * steps in it, and tokens go one by one through the steps (said in the log). */
qn_status qn_decode_create(qn_batch *batch, qn_session *session, qn_decode_pass **out, qn_error *error);

/* Append one token and give its logits, f32[vocab]; NULL: none. */
qn_status qn_decode_run(qn_decode_pass *decode, int32_t id, int32_t position, float *logits, qn_error *error);

void qn_decode_destroy(qn_decode_pass *decode);

#endif
