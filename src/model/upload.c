/* Weights on a device: one block of its memory with every constant operand of the steps, each once, however many
 * steps read it. Rows come in logical order; column sums for zero points are made here. */
#include <string.h>

#include <quern/device.h>

#include "base/checked.h"
#include "base/error.h"
#include "model/build.h"
#include "model/device.h"

enum { PLACE_ALIGN = 256 };

/* A constant that has its place. */
typedef struct placed {
    const void *host;        /* NULL: column sums, which belong to one step */
    const qn_weight *weight; /* of which it is the rows, or the scales where those are copied; else NULL */
    int32_t scales;
    size_t offset, bytes;
} placed;

typedef struct upload {
    qn_model *model;
    placed *places; /* [count] */
    size_t count, capacity, bytes, largest;
    char *memory, *staging;
} upload;

static qn_status out_of_memory(qn_error *error)
{
    QN_FAIL(error, QN_E_MEMORY, "out of memory while preparing the model for the device");
}

/* The place of a constant, a new one when it has none yet. */
static qn_status place(upload *u, const qn_view *view, const qn_weight *weight, int scales, placed **out,
                       qn_error *error)
{
    size_t bytes;
    QN_TRY(qn_shape_bytes(&view->shape, &bytes, error));
    for (size_t i = 0; view->data && i < u->count; i++) {
        placed *p = &u->places[i];
        /* numbers of the same value are one: steps that read the same are known by their operands */
        if ((p->host == view->data && p->scales == scales) ||
            (p->host && !weight && !p->weight && bytes == sizeof(float) && p->bytes == bytes &&
             memcmp(p->host, view->data, bytes) == 0)) {
            *out = p;
            return QN_OK;
        }
    }
    if (u->count == u->capacity || bytes > SIZE_MAX / 2 - u->bytes) {
        return out_of_memory(error);
    }
    placed *p = &u->places[u->count++];
    *p = (placed){.host = view->data, .weight = weight, .scales = scales, .offset = u->bytes, .bytes = bytes};
    u->bytes = qn_align_up(u->bytes + bytes, PLACE_ALIGN);
    u->largest = bytes > u->largest ? bytes : u->largest;
    *out = p;
    return QN_OK;
}

/* Whether an operand is the scales of a weight that lie in blocks with its rows. */
static int is_block_scales(const qn_step *step, int slot)
{
    return step->weight && step->weight->blocks && slot == qn_build_scale_slot(step->op);
}

/* The weight whose rows, or scales of blocks, an operand is; NULL: it is no such operand. */
static const qn_weight *weight_of(const qn_step *step, int slot)
{
    return step->weight && (slot == qn_op_in_slot(step->op, "b") || is_block_scales(step, slot)) ? step->weight : NULL;
}

/* Visit every constant: u->memory NULL counts, else the steps' views move to it. */
static qn_status visit(upload *u, qn_error *error)
{
    qn_model *model = u->model;
    placed *p = NULL;
    u->count = 0;
    u->bytes = 0;
    for (size_t i = 0; i < model->step_count; i++) {
        for (int j = 0; j < QN_MAX_IN; j++) {
            qn_view *view = &model->steps[i].in[j].view;
            if (model->steps[i].in[j].place == QN_PLACE_CONST) {
                const qn_step *step = &model->steps[i];
                QN_TRY(place(u, view, weight_of(step, j), is_block_scales(step, j), &p, error));
                if (u->memory) {
                    view->data = u->memory + p->offset;
                }
            }
        }
    }
    model->table = model->embedding->data;
    QN_TRY(place(u, &model->table, model->embedding, 0, &p, error));
    if (u->memory) {
        model->table.data = u->memory + p->offset;
    }
    return QN_OK;
}

static qn_status send(const upload *u, const placed *p, qn_error *error)
{
    const void *from = p->host;
    if (p->weight && qn_weight_is_scattered(p->weight)) {
        (void)(p->scales ? qn_weight_copy_scales : qn_weight_copy_rows)(p->weight, u->staging);
        from = u->staging;
    }
    QN_TRY(qn_device_copy_in(u->model->ctx, u->memory + p->offset, from, p->bytes, NULL, error));
    if (from == u->staging) {
        QN_TRY(qn_stream_sync(u->model->ctx, NULL, error)); /* before the staging is written again */
    }
    return QN_OK;
}

/* Column sums of the weights that need them, where their places will be; before the steps' views move. */
static qn_status send_sums(const upload *u, qn_error *error)
{
    const qn_model *model = u->model;
    size_t at = 0;
    for (size_t i = 0; i < model->step_count; i++) {
        const qn_step *step = &model->steps[i];
        const int32_t slot = qn_weight_sums_slot(step);
        if (slot < 0) {
            continue;
        }
        while (at < u->count && u->places[at].host) {
            at++;
        }
        qn_weight_sum_columns(step->weight, &step->in[qn_op_in_slot(step->op, "b")].view,
                              (int32_t *)(void *)u->staging);
        QN_TRY(qn_device_copy_in(model->ctx, u->memory + u->places[at].offset, u->staging, u->places[at].bytes, NULL,
                                 error));
        QN_TRY(qn_stream_sync(model->ctx, NULL, error));
        at++;
    }
    return QN_OK;
}

static qn_status send_all(upload *u, qn_error *error)
{
    QN_TRY(visit(u, error));
    u->staging = qn_alloc(u->model->ctx, u->largest);
    if (!u->staging) {
        return out_of_memory(error);
    }
    void *memory = NULL;
    QN_TRY(qn_device_alloc(u->model->ctx, u->bytes, &memory, error));
    u->memory = u->model->device_memory = memory;
    QN_TRY(send_sums(u, error));
    for (size_t i = 0; i < u->count; i++) {
        if (u->places[i].host) {
            QN_TRY(send(u, &u->places[i], error));
        }
    }
    QN_TRY(qn_stream_sync(u->model->ctx, NULL, error));
    return visit(u, error);
}

qn_status qn_model_upload(qn_model *model, qn_error *error)
{
    QN_FAIL_IF(model->embedding->scheme->scales != QN_SCALES_NONE, error, QN_E_UNSUPPORTED,
               "tensor %s: embeddings with scales are not run on a device", model->embedding->name);
    QN_FAIL_IF(model->embedding->rope_interleaved, error, QN_E_FILE, "tensor %s: rows of embeddings are reordered",
               model->embedding->name);
    for (size_t i = 0; i < model->plan_count; i++) {
        QN_FAIL_IF(qn_plan_pack_bytes(model->plans[i]), error, QN_E_UNSUPPORTED,
                   "%s packs its weights, which models on a device do not", qn_plan_kernel(model->plans[i]));
    }
    upload u = {.model = model, .capacity = model->step_count * QN_MAX_IN + 1};
    u.places = qn_calloc(model->ctx, u.capacity, sizeof *u.places);
    if (!u.places) {
        return out_of_memory(error);
    }
    const qn_status status = send_all(&u, error);
    qn_free(model->ctx, u.staging);
    qn_free(model->ctx, u.places);
    qn_checkpoint_release_all(model->checkpoint);
    return status;
}
