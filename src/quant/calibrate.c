#include "quant/calibrate.h"

#include "base/error.h"

qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_outputs *outputs, const qn_exec *exec,
                             int importance, qn_calibration *out, qn_error *error)
{
    (void)input;
    (void)exec;
    (void)importance;
    *out = (qn_calibration){.ctx = ctx};
    QN_FAIL(error, QN_E_UNSUPPORTED, "scheme %s needs a calibration run, which needs the model",
            outputs->scheme->name);
}

void qn_calibration_free(qn_calibration *calibration)
{
    for (int32_t i = 0; i < calibration->count; i++) {
        qn_free(calibration->ctx, calibration->list[i].squares);
    }
    if (calibration->list) {
        qn_free(calibration->ctx, calibration->list);
    }
    calibration->list = NULL;
    calibration->count = 0;
}
