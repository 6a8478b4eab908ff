#include "quant/calibrate.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "model/model.h"

#define MAX_TOKENS 1024

typedef struct observer {
    qn_calibration *calibration;
    const qn_outputs *outputs;
    qn_map map; /* weight name -> output */
    int32_t bad; /* output whose input was not finite; -1: none */
} observer;

static void observe(void *user, const char *weight_name, const float *x, int64_t m, int64_t k)
{
    observer *o = user;
    const int32_t i = qn_map_get(&o->map, weight_name, strlen(weight_name));
    if (i < 0 || o->outputs->list[i].encoder.k != k) {
        return;
    }
    qn_observed *seen = &o->calibration->list[i];
    float amax = seen->amax;
    for (int64_t j = 0; j < m * k; j++) {
        const float a = fabsf(x[j]);
        if (!(a <= 0x1.fffffep127f)) {
            o->bad = i;
            return;
        }
        amax = a > amax ? a : amax;
        if (seen->squares) {
            seen->squares[j % k] += (double)a * (double)a;
        }
    }
    seen->amax = amax;
    seen->rows += m;
}

/* Ids of the text, cut to what the model's context holds. */
static qn_status encode_text(const qn_model *model, int32_t *ids, int32_t *count, qn_error *error)
{
    const char *text = qn_calibration_text();
    qn_model_info info;
    qn_model_get_info(model, &info);
    size_t n = 0;
    const qn_status status =
        qn_tokenizer_encode(qn_model_tokenizer(model), text, strlen(text), QN_ENCODE_ADD_SPECIAL, ids, MAX_TOKENS, &n, error);
    if (status != QN_OK && status != QN_E_WORKSPACE) {
        return status;
    }
    const size_t context = info.context_length > 0 ? (size_t)info.context_length : MAX_TOKENS;
    n = n > MAX_TOKENS ? MAX_TOKENS : n;
    *count = (int32_t)(n > context ? context : n);
    QN_FAIL_IF(*count < 1, error, QN_E_FILE, "the tokenizer makes no tokens of the calibration text");
    return QN_OK;
}

static qn_status run_text(qn_ctx *ctx, qn_model *model, const qn_exec *exec, qn_error *error)
{
    int32_t *ids = qn_alloc(ctx, MAX_TOKENS * sizeof *ids), count = 0;
    QN_FAIL_IF(!ids, error, QN_E_MEMORY, "out of memory for the calibration text");
    qn_session *session = NULL;
    qn_status status = encode_text(model, ids, &count, error);
    if (status == QN_OK) {
        qn_session_options options;
        qn_session_options_init(&options);
        options.context_length = count;
        options.batch = count < 128 ? count : 128;
        if (exec) {
            options.exec = *exec;
        }
        status = qn_session_create(model, &options, &session, error);
    }
    if (status == QN_OK) {
        status = qn_session_eval(session, ids, count, 0, NULL, error);
    }
    qn_session_destroy(session);
    qn_free(ctx, ids);
    return status;
}

/* The outputs to watch, and room for their figures. */
static qn_status prepare(qn_ctx *ctx, const qn_outputs *outputs, int importance, observer *o, qn_error *error)
{
    qn_calibration *c = o->calibration;
    c->list = qn_calloc(ctx, (size_t)outputs->count, sizeof *c->list);
    QN_FAIL_IF(!c->list, error, QN_E_MEMORY, "out of memory calibrating %d tensors", outputs->count);
    c->count = outputs->count;
    for (int32_t i = 0; i < outputs->count; i++) {
        const qn_output *output = &outputs->list[i];
        if (!output->linear) {
            continue;
        }
        const char *name = output->weight->name;
        if (importance) {
            c->list[i].squares = qn_calloc(ctx, (size_t)output->encoder.k, sizeof(double));
        }
        QN_FAIL_IF((importance && !c->list[i].squares) || qn_map_add(&o->map, name, strlen(name), i) < 0, error,
                   QN_E_MEMORY, "out of memory calibrating tensor %s", name);
    }
    return QN_OK;
}

/* Every watched layer must have been met. */
static qn_status check(const observer *o, qn_error *error)
{
    QN_FAIL_IF(o->bad >= 0, error, QN_E_FILE, "tensor %s: its input is not finite on the calibration text",
               o->outputs->list[o->bad].weight->name);
    for (int32_t i = 0; i < o->outputs->count; i++) {
        QN_FAIL_IF(o->outputs->list[i].linear && o->calibration->list[i].rows == 0, error, QN_E_UNSUPPORTED,
                   "tensor %s cannot be calibrated: the source must be plain (f32, f16, bf16 or GGUF), not quantised",
                   o->outputs->list[i].weight->name);
    }
    return QN_OK;
}

qn_status qn_calibration_run(qn_ctx *ctx, const char *input, const qn_outputs *outputs, const qn_exec *exec,
                             int importance, qn_calibration *out, qn_error *error)
{
    *out = (qn_calibration){.ctx = ctx};
    observer o = {.calibration = out, .outputs = outputs, .map = qn_map_make(ctx), .bad = -1};
    qn_model *model = NULL;
    qn_model_options options;
    qn_model_options_init(&options);
    qn_status status = prepare(ctx, outputs, importance, &o, error);
    if (status == QN_OK) {
        status = qn_model_open(ctx, input, &options, &model, error);
    }
    if (status == QN_OK) {
        qn_model_set_observer(model, observe, &o);
        status = run_text(ctx, model, exec, error);
    }
    if (status == QN_OK) {
        status = check(&o, error);
    }
    qn_model_close(model);
    qn_map_free(&o.map);
    if (status != QN_OK) {
        qn_calibration_free(out);
        return qn_error_prefix(error, status, "calibration");
    }
    return QN_OK;
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
