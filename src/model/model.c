/* Opening and closing models, and what can be asked of them. */
#include "model/model.h"

#include <string.h>

#include <quern/device.h>

#include "base/context.h"
#include "base/error.h"
#include "model/build.h"
#include "model/device.h"
#include "model/kv.h"
#include "plan/plan.h"
#include "text/tokenizer.h"

typedef struct family {
    const char *architecture;
    qn_status (*build)(qn_model *model, qn_error *error);
} family;

static const family families[] = {
    {.architecture = "llama", .build = qn_llama_build},
    {.architecture = "qwen2", .build = qn_llama_build},
    {.architecture = "qwen3", .build = qn_llama_build},
};

void qn_model_options_init(qn_model_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    qn_plan_options_init(&options->plan);
}

static qn_status build(qn_model *model, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].architecture, h->architecture) == 0) {
            return families[i].build(model, error);
        }
    }
    QN_FAIL(error, QN_E_UNSUPPORTED, "architecture '%s' is not one this version runs (llama, qwen2, qwen3)",
            h->architecture);
}

static qn_status open_model(qn_ctx *ctx, const char *path, const qn_model_options *options, qn_model **out,
                            qn_error *error)
{
    qn_model *model = qn_calloc(ctx, 1, sizeof *model);
    QN_FAIL_IF(!model, error, QN_E_MEMORY, "out of memory for the model");
    model->ctx = ctx;
    model->plan_options = options->plan;
    model->activations = options->activations;
    model->device = qn_backend_find(options->plan.backend);
    model->device = model->device && model->device->device ? model->device : NULL;
    model->notes = qn_buffer_make(ctx);
    qn_status status = qn_checkpoint_open(ctx, path, &model->checkpoint, error);
    const qn_tokenizer_source *const text = status == QN_OK ? qn_checkpoint_tokenizer(model->checkpoint) : NULL;
    if (text && (text->tokenizer_json.data || text->tokens)) {
        status = qn_tokenizer_create(ctx, text, qn_checkpoint_hparams(model->checkpoint)->vocab_size,
                                     &model->tokenizer, error);
    }
    if (status == QN_OK) {
        status = qn_kv_prepare(model, options->kv, error);
    }
    if (status == QN_OK) {
        status = build(model, error);
    }
    if (status == QN_OK) {
        status = options->unfused ? QN_OK : qn_model_fuse(model, !model->device, error);
    }
    if (status == QN_OK && !options->unfused) {
        status = qn_model_narrow(model, error);
    }
    if (status == QN_OK) {
        qn_build_drop_plans(model);
        status = qn_plans_open(model->plans, model->plan_count, &options->exec, error);
    }
    if (status == QN_OK) {
        status = model->device ? qn_model_upload(model, error)
                               : qn_model_pack(model, &options->exec, !options->no_packed_file, error);
    }
    if (status == QN_OK) {
        status = qn_kv_pack(model, error);
    }
    if (status != QN_OK) {
        qn_model_close(model);
        return status;
    }
    *out = model;
    return QN_OK;
}

qn_status qn_model_open(qn_ctx *ctx, const char *path, const qn_model_options *options, qn_model **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_model_open: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx || !path, error, QN_E_ARGUMENT, "qn_model_open: ctx or path is NULL");
    qn_model_options defaults;
    if (!options) {
        qn_model_options_init(&defaults);
        options = &defaults;
    }
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_model_open: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_FAIL_IF(options->activations != QN_ACTIVATIONS_STORED && options->activations != QN_ACTIVATIONS_INT8, error,
               QN_E_ARGUMENT, "qn_model_open: options.activations is %d", (int)options->activations);
    qn_error fused = {0};
    qn_status status = open_model(ctx, path, options, out, &fused);
    if (status == QN_E_JIT && !options->unfused) {
        /* steps of their own take other kernels, which may be there */
        qn_log(ctx, QN_LOG_WARN, "%s: %s; trying without fused steps", path, fused.text);
        qn_model_options apart = *options;
        apart.unfused = 1;
        return open_model(ctx, path, &apart, out, error);
    }
    return status == QN_OK ? QN_OK : qn_error_set(error, status, "%s", fused.text);
}

void qn_model_close(qn_model *model)
{
    if (!model) {
        return;
    }
    for (size_t i = 0; i < model->plan_count; i++) {
        qn_plan_destroy(model->plans[i]);
    }
    for (size_t i = 0; i < model->owned_count; i++) {
        qn_free(model->ctx, model->owned[i]);
    }
    qn_device_free(model->ctx, model->device_memory);
    qn_free(model->ctx, model->plans);
    qn_free(model->ctx, model->owned);
    qn_free(model->ctx, model->registers);
    qn_free(model->ctx, model->steps);
    qn_buffer_free(&model->notes);
    qn_tokenizer_destroy(model->tokenizer);
    qn_packed_close(model->packed);
    qn_kv_release(model);
    qn_checkpoint_close(model->checkpoint);
    qn_free(model->ctx, model);
}

void qn_model_get_info(const qn_model *model, qn_model_info *info)
{
    qn_checkpoint_get_info(model->checkpoint, info);
}

void qn_model_get_activations(const qn_model *model, qn_model_activations *activations)
{
    *activations = (qn_model_activations){model->int8_layers ? "int8" : "stored", model->int8_layers};
}

const qn_tokenizer *qn_model_tokenizer(const qn_model *model)
{
    return model->tokenizer;
}

void qn_model_set_observer(qn_model *model, qn_observe_fn observe, void *user)
{
    model->observe = observe;
    model->observe_user = user;
}

static void print_step(qn_text *text, const qn_step *step)
{
    if (step->plan) {
        qn_text_add(text, "  %-24s %-52s %s\n", qn_op_get_info(step->op)->name, qn_plan_kernel(step->plan), step->label);
    } else {
        const int adds = step->out[0].place == QN_PLACE_REGISTER;
        qn_text_add(text, "  %-24s\n", adds ? "add" : "keep recent");
    }
}

size_t qn_model_explain(const qn_model *model, char *text, size_t capacity)
{
    qn_text t = qn_text_make(text, capacity);
    qn_text_add(&t, "layer 0 of %d:\n", qn_checkpoint_hparams(model->checkpoint)->layers);
    for (size_t i = 0; i < model->body_steps && model->steps[i].layer == 0; i++) {
        print_step(&t, &model->steps[i]);
    }
    qn_text_add(&t, "output:\n");
    for (size_t i = model->body_steps; i < model->step_count; i++) {
        print_step(&t, &model->steps[i]);
    }
    qn_text_add(&t, "%zu steps, %zu distinct plans, %zu registers\n", model->step_count, model->plan_count,
                model->register_count);
    qn_text_add(&t, "fusion:\n%s", model->notes.length ? model->notes.data : "nothing to fuse\n");
    return t.length;
}
