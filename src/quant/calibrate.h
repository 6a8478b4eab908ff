/* Calibration: what the inputs of the linear layers look like on a short English
 * text, from a run of the model in floats. Gives the scale of the activations of
 * schemes that store one (nvfp4-w4a4) and, where asked, the importance of each
 * column. Used by quantize.c. */
#ifndef QN_QUANT_CALIBRATE_H
#define QN_QUANT_CALIBRATE_H

#include "quant/outputs.h"

/* What was seen of the inputs x[m,k] of one linear layer. */
typedef struct qn_observed {
    float amax;
    int64_t rows;
    double *squares; /* [k]: sums of x^2; NULL: not asked for */
} qn_observed;

typedef struct qn_calibration {
    qn_ctx *ctx;
    qn_observed *list; /* one an output, in order */
    int32_t count;
} qn_calibration;

/* The text (about 600 words of plain English, ours), one zero-terminated string. */
const char *qn_calibration_text(void);

/* Run the text through the model at `input`. importance 1: squares too. */
qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_outputs *outputs, const qn_exec *exec,
                             int importance, qn_calibration *out, qn_error *error);
void qn_calibration_free(qn_calibration *calibration);

#endif
