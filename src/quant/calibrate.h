/* Calibration: what the inputs of the linear layers look like on a short English
 * text, from a run of the model in floats. Gives the scale of the activations of
 * schemes that store one (nvfp4-w4a4), smoothing, and the factors of error feedback (encode.h). Used by quantize.c. */
#ifndef QN_QUANT_CALIBRATE_H
#define QN_QUANT_CALIBRATE_H

#include "quant/outputs.h"

/* What was seen of the inputs x[m,k] of one linear layer. */
typedef struct qn_observed {
    int64_t rows;
    float *channels;   /* [k]: largest |x| of each; qn_calibration_settle may use it up */
    float *squares;    /* [k,k]: X^T X, then the factor of qn_feedback_factor; NULL: not there */
    float *importance; /* [k], set by qn_calibration_settle as the next is */
    int32_t *order;    /* [k] */
} qn_observed;

/* Figures of the inputs that several layers share are with their leader (outputs.h) alone. Products take 4 K^2 bytes an
 * input, those of a large model more than a machine has: they are there of some outputs at a time. */
typedef struct qn_calibration {
    qn_ctx *ctx;
    qn_observed *list; /* one an output, in order */
    int32_t count;
    int32_t first, last; /* outputs [first, last) have products, none: both 0 */
} qn_calibration;

/* The text, one zero-terminated string. */
const char *qn_calibration_text(void);

/* The first `capacity` tokens of that text, or of the file at path; *count of them. QN_E_IO, QN_E_FILE. */
qn_status qn_calibration_encode(const char *path, const qn_model *model, int32_t *ids, size_t capacity, size_t *count,
                                qn_error *error);

/* Run the text (quantize->calibration; NULL: qn_calibration_text) through the model at `input`, in floats, on
 * quantize->exec; quantize->progress is asked at each layer.
 * most: also X^T X of as many outputs from the first on as take no more bytes, of one at least; 0: of none.
 * QN_E_IO, QN_E_FILE: the text. QN_E_UNSUPPORTED: the source's linear weights are quantised, so that their inputs
 * cannot be seen. */
qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_quantize_options *quantize,
                             const qn_outputs *outputs, uint64_t most, qn_calibration *out, qn_error *error);

/* Drop the products and run the text again, as far as need be, for those of outputs from `first` on. Bits do not depend
 * on how many are there at a time. */
qn_status qn_calibration_go_on(qn_calibration *calibration, const char *input, const qn_quantize_options *quantize,
                               const qn_outputs *outputs, int32_t first, uint64_t most, qn_error *error);

/* Bring the products that are there in line with the outputs' smoothing; factor 1: and on to the factors of error
 * feedback. Once for each run. */
void qn_calibration_settle(qn_calibration *calibration, const qn_outputs *outputs, int factor, const qn_exec *exec);
void qn_calibration_free(qn_calibration *calibration);

#endif
