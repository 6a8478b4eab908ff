/* Calibration: what the inputs of the linear layers look like on a short English
 * text, from a run of the model in floats. Gives the scale of the activations of
 * schemes that store one (nvfp4-w4a4) and the factors of error feedback (encode.h). Used by quantize.c. */
#ifndef QN_QUANT_CALIBRATE_H
#define QN_QUANT_CALIBRATE_H

#include "quant/outputs.h"

/* What was seen of the inputs x[m,k] of one linear layer. */
typedef struct qn_observed {
    float amax;
    int64_t rows;
    float *squares;    /* [k,k]: X^T X, then the factor of qn_feedback_factor; NULL: not asked for */
    float *importance; /* [k] */
} qn_observed;

/* Figures of the inputs that several layers share are with their leader (outputs.h). */
typedef struct qn_calibration {
    qn_ctx *ctx;
    qn_observed *list; /* one an output, in order */
    int32_t count;
} qn_calibration;

/* The text, one zero-terminated string. */
const char *qn_calibration_text(void);

/* Run the text through the model at `input`, in floats. feedback 1: also the
 * factors for error feedback, which take 4 K^2 bytes for each distinct input.
 * QN_E_UNSUPPORTED: the source's linear weights are quantised, so that their inputs cannot be seen. */
qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_outputs *outputs, const qn_exec *exec,
                             int feedback, qn_calibration *out, qn_error *error);
void qn_calibration_free(qn_calibration *calibration);

/* Bytes of the factors of all inputs; UINT64_MAX when that overflows. */
uint64_t qn_calibration_bytes(const qn_outputs *outputs);

#endif
