/* The public tensor file calls: a mapped safetensors file, and writing one atomically. */
#include <quern/tensors.h>

#include <string.h>

#include "base/commit.h"
#include "base/file_map.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

struct qn_tensors {
    const qn_ctx *ctx;
    qn_file_map map;
    qn_safetensors file;
};

qn_status qn_tensors_open(qn_ctx *ctx, const char *path, qn_tensors **out, qn_error *error)
{
    QN_FAIL_IF(!ctx || !path || !out, error, QN_E_ARGUMENT, "qn_tensors_open: ctx, path or out is NULL");
    *out = NULL;
    qn_tensors *t = qn_calloc(ctx, 1, sizeof *t);
    QN_FAIL_IF(!t, error, QN_E_MEMORY, "out of memory for %s", path);
    t->ctx = ctx;
    qn_status status = qn_file_map_open(path, &t->map, error);
    if (status == QN_OK) {
        status = qn_safetensors_parse(ctx, t->map.data, t->map.size, path, &t->file, error);
    }
    if (status != QN_OK) {
        qn_tensors_close(t);
        return status;
    }
    *out = t;
    return QN_OK;
}

void qn_tensors_close(qn_tensors *tensors)
{
    if (tensors) {
        qn_safetensors_free(&tensors->file);
        qn_file_map_close(&tensors->map);
        qn_free(tensors->ctx, tensors);
    }
}

int32_t qn_tensors_count(const qn_tensors *tensors)
{
    return tensors ? tensors->file.count : 0;
}

qn_status qn_tensors_at(const qn_tensors *tensors, int32_t i, const char **name, qn_view *view, qn_error *error)
{
    QN_FAIL_IF(!tensors || i < 0 || i >= tensors->file.count, error, QN_E_ARGUMENT, "there is no tensor %d", (int)i);
    if (name) {
        *name = tensors->file.tensors[i].name;
    }
    if (view) {
        *view = tensors->file.tensors[i].view;
    }
    return QN_OK;
}

int32_t qn_tensors_find(const qn_tensors *tensors, const char *name)
{
    return tensors && name ? qn_safetensors_find(&tensors->file, name) : -1;
}

/* Are the rows of a view one after the other? */
static int is_dense(const qn_view *view)
{
    if (qn_shape_elements(&view->shape) == 0) {
        return 1;
    }
    const qn_view dense = qn_view_make(view->data, &view->shape);
    for (int32_t d = 0; d + 1 < view->shape.ndim; d++) {
        if (view->shape.dims[d] > 1 && view->strides[d] != dense.strides[d]) {
            return 0;
        }
    }
    return view->data != NULL;
}

static qn_status write_all(qn_ctx *ctx, const char *path, const qn_named_view *tensors, int32_t count,
                           const char *const *metadata, int32_t metadata_count, const qn_safetensors_item *items,
                           qn_error *error)
{
    qn_safetensors_writer *writer = NULL;
    qn_status status =
        qn_safetensors_writer_create(ctx, path, items, count, metadata, metadata_count, 0, &writer, error);
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        size_t bytes = 0;
        status = qn_shape_bytes(&tensors[i].view.shape, &bytes, error);
        if (status == QN_OK) {
            status = qn_safetensors_writer_put(writer, i, tensors[i].view.data, bytes, error);
        }
    }
    if (status == QN_OK) {
        status = qn_safetensors_writer_finish(writer, error);
    }
    qn_safetensors_writer_destroy(writer);
    return status;
}

qn_status qn_tensors_write(qn_ctx *ctx, const char *path, const qn_named_view *tensors, int32_t count,
                           const char *const *metadata, int32_t metadata_count, qn_error *error)
{
    QN_FAIL_IF(!ctx || !path || count < 0 || metadata_count < 0 || (count && !tensors) || (metadata_count && !metadata),
               error, QN_E_ARGUMENT, "qn_tensors_write: a required pointer is NULL or a count is negative");
    qn_safetensors_item *items = qn_calloc(ctx, (size_t)count + 1, sizeof *items);
    QN_FAIL_IF(!items, error, QN_E_MEMORY, "out of memory for %d tensors", (int)count);
    qn_commit *commit = NULL;
    qn_status status = QN_OK;
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        items[i] = (qn_safetensors_item){tensors[i].name, tensors[i].view.shape};
        if (!is_dense(&tensors[i].view)) {
            status = qn_error_set(error, QN_E_ARGUMENT, "tensor %s is not dense or has no data",
                                  tensors[i].name ? tensors[i].name : "without a name");
        }
    }
    if (status == QN_OK) {
        status = qn_commit_begin(ctx, path, 0, 1, &commit, error);
    }
    if (status == QN_OK) {
        status = write_all(ctx, qn_commit_path(commit), tensors, count, metadata, metadata_count, items, error);
    }
    if (status == QN_OK) {
        status = qn_commit_finish(commit, error);
    }
    qn_commit_destroy(commit);
    qn_free(ctx, items);
    return status;
}
