/* Calibration: what the inputs of the linear layers look like on a short English
 * text, from a run of the model in floats. Gives the scale of the activations of
 * schemes that store one (nvfp4-w4a4) and the factors of error feedback (encode.h). Used by quantize.c. */
#ifndef QN_QUANT_CALIBRATE_H
#define QN_QUANT_CALIBRATE_H

#include "quant/outputs.h"

/* What was seen of the inputs x[m,k] of one linear layer. */
typedef struct qn_observed {
    int64_t rows;
    float *channels;   /* [k]: largest |x| of each; qn_calibration_factor uses it up */
    float *squares;    /* [k,k]: X^T X, then the factor of qn_feedback_factor; NULL: not asked for */
    float *importance; /* [k], set by qn_calibration_factor as the next is */
    int32_t *order;    /* [k] */
} qn_observed;

/* Figures of the inputs that several layers share are with their leader (outputs.h) alone. */
typedef struct qn_calibration {
    qn_ctx *ctx;
    qn_observed *list; /* one an output, in order */
    int32_t count;
} qn_calibration;

/* The text, one zero-terminated string. */
const char *qn_calibration_text(void);

/* The first `capacity` tokens of that text, or of the file at path; *count of them. QN_E_IO, QN_E_FILE. */
qn_status qn_calibration_encode(const char *path, const qn_model *model, int32_t *ids, size_t capacity, size_t *count,
                                qn_error *error);

/* Run the text (quantize->calibration; NULL: qn_calibration_text) through the model at `input`, in floats, on
 * quantize->exec; quantize->progress is asked after each sequence.
 * feedback 1: also X^T X, which takes 4 K^2 bytes for each distinct input. QN_E_IO, QN_E_FILE: the text.
 * QN_E_UNSUPPORTED: the source's linear weights are quantised, so that their inputs cannot be seen. */
qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_quantize_options *quantize,
                             const qn_outputs *outputs, int feedback, qn_calibration *out, qn_error *error);

/* From X^T X to the factors of error feedback. */
void qn_calibration_factor(qn_calibration *calibration, const qn_outputs *outputs, const qn_exec *exec);
void qn_calibration_free(qn_calibration *calibration);

/* Bytes of the factors of all inputs; UINT64_MAX when that overflows. */
uint64_t qn_calibration_bytes(const qn_outputs *outputs);

#endif
