/* Decoding on a device: the whole pass of one token of one sequence is one graph, made with the session. The token and
 * its position are read from page-locked memory when the graph runs, so one graph serves every position; the logits
 * come back to such memory. Steps go into it as chains where the backend has them (src/backend/backend.h), else as
 * their plans' launches. */
#include <string.h>

#include <quern/device.h>

#include "base/error.h"
#include "model/batch.h"
#include "model/device.h"

/* One entry of the pass: a chain, or a step by itself with its operands. */
typedef struct entry {
    qn_chain *chain;
    const qn_step *step;
    qn_args args;
} entry;

struct qn_decode_pass {
    qn_batch *batch;
    entry *entries;
    size_t count;
    void *graph;
    int32_t *input; /* [INPUTS], page-locked: id, position, keys it sees */
    float *logits;  /* [vocab], page-locked */
    size_t logits_bytes;
    int32_t *device_input;
};

enum { INPUTS = 3 };

/* Whether a step may be launched as it is for every position: what it reads and writes must not depend on the
 * position but through the device's memory. */
static int same_everywhere(const qn_step *step, const qn_chain_step *s)
{
    return !s->cached_out && (!s->cached_in || step->op == QN_OP_VQ_ATTENTION);
}

static qn_status out_of_memory(qn_error *error)
{
    QN_FAIL(error, QN_E_MEMORY, "out of memory for the decoding pass");
}

/* Steps to entries; *possible 0: one needs the position and has no kernel that reads it. */
static qn_status make_entries(qn_decode_pass *d, const qn_chain_step *steps, size_t count, int *possible,
                              qn_error *error)
{
    const qn_model *model = d->batch->model;
    for (size_t i = 0; i < count && *possible;) {
        int32_t taken = 0;
        entry *e = &d->entries[d->count];
        QN_TRY(model->device->chains->create(model->ctx, &steps[i], (int32_t)(count - i), d->device_input + 1,
                                             &e->chain, &taken, error));
        if (!taken) {
            e->step = &model->steps[i - 1];
            e->args = steps[i].args;
            taken = 1;
            *possible = same_everywhere(e->step, &steps[i]);
            if (!*possible) {
                qn_log(model->ctx, QN_LOG_INFO, "decoding goes step by step: layer %d, %s has no kernel for a graph",
                       e->step->layer, qn_op_get_info(e->step->op)->name);
                return QN_OK;
            }
        }
        d->count++;
        i += (size_t)taken;
    }
    return QN_OK;
}

static qn_status enqueue(const qn_decode_pass *d, qn_error *error)
{
    qn_batch *b = d->batch;
    const qn_model *model = b->model;
    QN_TRY(qn_device_copy_in(model->ctx, d->device_input, d->input, INPUTS * sizeof *d->input, b->stream, error));
    for (size_t i = 0; i < d->count; i++) {
        const entry *e = &d->entries[i];
        if (e->chain) {
            QN_TRY(model->device->chains->run(e->chain, 1, b->stream, error));
            continue;
        }
        QN_TRY(qn_run(e->step->plan, &e->args, b->workspace, b->workspace_bytes, &b->exec, error));
    }
    return qn_device_copy_out(model->ctx, d->logits, b->logits, d->logits_bytes, b->stream, error);
}

static qn_status capture(qn_decode_pass *d, qn_error *error)
{
    const qn_batch *b = d->batch;
    qn_ctx *ctx = b->model->ctx;
    QN_TRY(qn_graph_begin(ctx, b->stream, error));
    const qn_status status = enqueue(d, error);
    if (status != QN_OK) { /* the stream must leave its capture */
        qn_graph_end(ctx, b->stream, &d->graph, NULL);
        return status;
    }
    return qn_graph_end(ctx, b->stream, &d->graph, error);
}

static qn_status prepare(qn_decode_pass *d, const qn_session *session, int *possible, qn_error *error)
{
    const qn_batch *b = d->batch;
    const qn_model *model = b->model;
    void *input = NULL, *logits = NULL, *device_input = NULL;
    QN_TRY(qn_host_alloc(model->ctx, INPUTS * sizeof *d->input, &input, error));
    d->input = input;
    QN_TRY(qn_host_alloc(model->ctx, d->logits_bytes, &logits, error));
    d->logits = logits;
    QN_TRY(qn_device_alloc(model->ctx, INPUTS * sizeof *d->input, &device_input, error));
    d->device_input = device_input;
    qn_chain_step *steps = qn_calloc(model->ctx, model->step_count + 1, sizeof *steps);
    d->entries = qn_calloc(model->ctx, model->step_count + 1, sizeof *d->entries);
    if (!steps || !d->entries) {
        qn_free(model->ctx, steps);
        return out_of_memory(error);
    }
    qn_batch_lookup_step(b, &steps[0]);
    steps[0].args.in[1].data = d->device_input;
    for (size_t i = 0; i < model->step_count; i++) {
        qn_batch_chain_step(b, &model->steps[i], session, &steps[1 + i]);
        for (int j = 0; j < QN_MAX_IN; j++) {
            const qn_place place = model->steps[i].in[j].place;
            if (place == QN_PLACE_POSITIONS || place == QN_PLACE_LENGTHS) {
                steps[1 + i].args.in[j].data = d->device_input + (place == QN_PLACE_POSITIONS ? 1 : 2);
            }
        }
    }
    const qn_status status = make_entries(d, steps, model->step_count + 1, possible, error);
    qn_free(model->ctx, steps);
    return status;
}

qn_status qn_decode_create(qn_batch *batch, qn_session *session, qn_decode_pass **out, qn_error *error)
{
    const qn_model *model = batch->model;
    *out = NULL;
    qn_decode_pass *d = qn_calloc(model->ctx, 1, sizeof *d);
    if (!d) {
        return out_of_memory(error);
    }
    d->batch = batch;
    d->logits_bytes = (size_t)qn_checkpoint_hparams(model->checkpoint)->vocab_size * sizeof(float);
    int possible = 1;
    qn_error why = {QN_OK, ""};
    qn_status status = prepare(d, session, &possible, &why);
    if (status == QN_E_JIT) { /* the operators' kernels may be shipped where those of chains are not */
        qn_log(model->ctx, QN_LOG_WARN, "decoding goes step by step: %s", why.text);
        status = QN_OK;
        possible = 0;
    } else if (status != QN_OK) {
        qn_error_set(error, status, "%s", why.text);
    }
    if (status == QN_OK && possible) {
        status = capture(d, error);
        qn_log(model->ctx, QN_LOG_DEBUG, "a decoding pass: %zu steps in %zu chains", model->step_count + 1, d->count);
    }
    if (status != QN_OK || !possible) {
        qn_decode_destroy(d);
        return status;
    }
    *out = d;
    return QN_OK;
}

void qn_decode_destroy(qn_decode_pass *d)
{
    if (!d) {
        return;
    }
    const qn_model *model = d->batch->model;
    qn_graph_destroy(model->ctx, d->graph);
    for (size_t i = 0; d->entries && i < model->step_count + 1; i++) {
        model->device->chains->destroy(model->ctx, d->entries[i].chain);
    }
    qn_free(model->ctx, d->entries);
    qn_host_free(model->ctx, d->input);
    qn_host_free(model->ctx, d->logits);
    qn_device_free(model->ctx, d->device_input);
    qn_free(model->ctx, d);
}

qn_status qn_decode_run(qn_decode_pass *d, int32_t id, int32_t position, float *logits, qn_error *error)
{
    const qn_batch *b = d->batch;
    d->input[0] = id;
    d->input[1] = position;
    d->input[2] = position + 1;
    QN_TRY(qn_graph_launch(b->model->ctx, d->graph, b->stream, error));
    QN_TRY(qn_stream_sync(b->model->ctx, b->stream, error));
    if (logits) {
        memcpy(logits, d->logits, d->logits_bytes);
    }
    return QN_OK;
}
