#include "model/kv.h"

#include <string.h>

#include "base/error.h"
#include "model/build.h"

static qn_status open_books(qn_model *model, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    const char *name = model->kv->info.name;
    QN_FAIL_IF(h->head_dim % model->kv->channels != 0, error, QN_E_UNSUPPORTED,
               "KV scheme %s codes %d channels together, the heads of this model have %d", name, model->kv->channels,
               h->head_dim);
    model->kv_path = qn_kv_books_path(model->ctx, model->checkpoint, model->kv);
    QN_FAIL_IF(!model->kv_path, error, QN_E_MEMORY, "out of memory for the codebooks of keys and values");
    qn_error why = {QN_OK, ""};
    const qn_status status = qn_kv_books_open(model->ctx, model->kv_path, model->kv, h, &model->kv_books, &why);
    QN_FAIL_IF(status == QN_E_IO, error, QN_E_IO,
               "KV scheme %s needs codebooks made for this model: make them with 'quern quantize MODEL --kv %s' (%s)",
               name, name, why.text);
    QN_FAIL_IF(status != QN_OK, error, status, "codebooks of KV scheme %s: %s", name, why.text);
    return QN_OK;
}

qn_status qn_kv_prepare(qn_model *model, const char *name, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    model->kv = qn_kv_find(name);
    QN_FAIL_IF(!model->kv, error, QN_E_ARGUMENT, "'%s' is no scheme of keys and values", name);
    model->kv_row_bytes = qn_kv_row_bytes(model->kv, h->kv_heads, h->head_dim);
    return model->kv->channels ? open_books(model, error) : QN_OK;
}

const qn_view *qn_kv_book(const qn_model *model, int32_t layer, int values)
{
    return &model->kv_books.views[2 * layer + values];
}

qn_status qn_kv_pack(qn_model *model, qn_error *error)
{
    for (size_t i = 0; i < model->step_count; i++) {
        qn_step *step = &model->steps[i];
        if (step->op != QN_OP_VQ_ENCODE && step->op != QN_OP_VQ_ATTENTION) {
            continue;
        }
        const size_t bytes = qn_plan_pack_bytes(step->plan);
        void *blob = bytes ? qn_build_own(model, bytes) : NULL;
        QN_FAIL_IF(bytes && !blob, error, QN_E_MEMORY, "out of memory for the codebooks of keys and values");
        if (!blob) {
            continue; /* the kernel reads them as they are */
        }
        qn_args args;
        memset(&args, 0, sizeof args);
        for (int j = 0; j < QN_MAX_IN; j++) {
            if (step->in[j].place == QN_PLACE_CONST) {
                args.in[j] = step->in[j].view;
            }
        }
        QN_TRY(qn_pack(step->plan, &args, blob, bytes, error));
        step->packed = blob;
    }
    return QN_OK;
}

void qn_kv_release(qn_model *model)
{
    qn_kv_books_close(model->ctx, &model->kv_books);
    qn_free(model->ctx, model->kv_path);
}

void qn_model_get_kv(const qn_model *model, qn_model_kv *kv)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    const uint64_t layers = (uint64_t)h->layers;
    const uint64_t recent = 2 * layers * (uint64_t)h->kv_heads * (uint64_t)h->head_dim * 2;
    *kv = (qn_model_kv){.scheme = model->kv->info.name,
                        .bytes_per_token = 2 * layers * model->kv_row_bytes,
                        .window = qn_kv_lossy(model->kv) ? QN_KV_WINDOW : 0,
                        .bytes_per_recent_token = qn_kv_lossy(model->kv) ? recent : 0,
                        .codebook_bytes = model->kv_books.map.size,
                        .file = model->kv_path};
}
