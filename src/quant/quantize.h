/* The quantiser's inside. qn_quantize (quern/quantize.h) is qn_quantize_with and
 * the default tuning; tests and measurements switch its parts off one by one. */
#ifndef QN_QUANT_QUANTIZE_H
#define QN_QUANT_QUANTIZE_H

#include <quern/quantize.h>

typedef struct qn_quant_tuning {
    int32_t search;    /* look for the scales of least error (quant/encode.h) */
    int32_t feedback;  /* error feedback with the inputs of a calibration run; skipped for sources whose linear
                          weights are quantised already */
    float smooth;      /* alpha of smoothing (quant/smooth.h); 0: none; below 0: what the scheme gains by */
    uint64_t products; /* bytes of products of inputs (quant/calibrate.h) in memory at a time; 0: 4 GiB */
} qn_quant_tuning;

/* What qn_quantize uses for a scheme. */
qn_quant_tuning qn_quant_default_tuning(void);

qn_status qn_quantize_with(qn_ctx *ctx, const char *input, const char *output, const qn_quantize_options *options,
                           const qn_quant_tuning *tuning, qn_quantize_result *result, qn_error *error);

#endif
