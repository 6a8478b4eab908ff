#include "io/kv_books.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "io/packed.h"
#include "io/safetensors_writer.h"

#define NAME_BYTES 64

static void tensor_name(int32_t i, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "model.layers.%d.self_attn.%s_codebook", i / 2, i % 2 ? "v" : "k");
}

void qn_kv_books_name(const qn_kv_scheme *scheme, char name[40])
{
    snprintf(name, 40, "kv-%.20s.safetensors", scheme->info.name);
}

char *qn_kv_books_path(const qn_ctx *ctx, const qn_checkpoint *checkpoint, const qn_kv_scheme *scheme)
{
    char name[40];
    qn_kv_books_name(scheme, name);
    /* as its packed file lies: FOLDER/quern.packed, FILE.packed */
    const char *packed = qn_packed_path(checkpoint), *slash = strrchr(packed, '/');
    const char *last = slash ? slash + 1 : packed;
    const size_t length =
        strcmp(last, "quern.packed") == 0 && slash ? (size_t)(slash - packed) : strlen(packed) - strlen(".packed");
    char *path = qn_alloc(ctx, length + sizeof name + 1);
    if (path) {
        memcpy(path, packed, length);
        path[length] = packed[length];
        strcpy(path + length + 1, name);
    }
    return path;
}

/* The tensor's data against the checksum that the file gives. */
static qn_status check_sum(const qn_safetensors *file, const qn_safetensors_tensor *t, const char *path,
                           qn_error *error)
{
    char key[sizeof QN_SAFETENSORS_SUM_PREFIX + NAME_BYTES], found[33];
    snprintf(key, sizeof key, "%s%s", QN_SAFETENSORS_SUM_PREFIX, t->name);
    const char *wanted = qn_safetensors_metadata(file, key);
    const XXH128_hash_t sum = XXH3_128bits(t->view.data, (size_t)(t->end - t->begin));
    qn_safetensors_sum_text(sum.high64, sum.low64, found);
    QN_FAIL_IF(!wanted || strcmp(wanted, found) != 0, error, QN_E_FILE, "%s: tensor %s %s", path, t->name,
               wanted ? "does not have the checksum that the file gives" : "has no checksum");
    return QN_OK;
}

static qn_status check_tensor(const qn_kv_books *b, const qn_shape *want, int32_t i, const char *path, qn_view *view,
                              qn_error *error)
{
    char name[NAME_BYTES];
    tensor_name(i, name);
    const int32_t at = qn_safetensors_find(&b->file, name);
    QN_FAIL_IF(at < 0, error, QN_E_FILE, "%s: tensor %s is missing", path, name);
    const qn_safetensors_tensor *t = &b->file.tensors[at];
    int same = t->view.shape.format == want->format && t->view.shape.ndim == 4;
    for (int d = 0; d < 4; d++) {
        same = same && t->view.shape.dims[d] == want->dims[d];
    }
    QN_FAIL_IF(!same, error, QN_E_FILE, "%s: tensor %s is not F16[%lld,%lld,%lld,%lld], which this model needs", path,
               name, (long long)want->dims[0], (long long)want->dims[1], (long long)want->dims[2],
               (long long)want->dims[3]);
    QN_TRY(check_sum(&b->file, t, path, error));
    const uint8_t *data = t->view.data;
    for (uint64_t e = 0; e < (t->end - t->begin) / 2; e++) {
        QN_FAIL_IF((data[2 * e + 1] & 0x7c) == 0x7c, error, QN_E_FILE, "%s: element %llu of tensor %s is not finite",
                   path, (unsigned long long)e, name);
    }
    *view = t->view;
    return QN_OK;
}

qn_status qn_kv_books_open(const qn_ctx *ctx, const char *path, const qn_kv_scheme *scheme, const qn_hparams *hparams,
                           qn_kv_books *out, qn_error *error)
{
    memset(out, 0, sizeof *out);
    QN_TRY(qn_file_map_open(path, &out->map, error));
    qn_status status = qn_safetensors_parse(ctx, out->map.data, out->map.size, path, &out->file, error);
    const int32_t count = 2 * hparams->layers;
    if (status == QN_OK) {
        out->views = qn_calloc(ctx, (size_t)count, sizeof *out->views);
        status = out->views ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for %s", path);
    }
    if (status == QN_OK && out->file.count != count) {
        status = qn_error_set(error, QN_E_FILE, "%s has %d tensors, the codebooks of %d layers are %d", path,
                              out->file.count, hparams->layers, count);
    }
    const qn_shape want = qn_kv_book_shape(scheme, hparams->kv_heads, hparams->head_dim);
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        status = check_tensor(out, &want, i, path, &out->views[i], error);
    }
    if (status != QN_OK) {
        qn_kv_books_close(ctx, out);
    }
    return status;
}

void qn_kv_books_close(const qn_ctx *ctx, qn_kv_books *books)
{
    qn_free(ctx, books->views);
    qn_safetensors_free(&books->file);
    qn_file_map_close(&books->map);
    memset(books, 0, sizeof *books);
}

qn_status qn_kv_books_write(qn_ctx *ctx, const char *path, const qn_kv_scheme *scheme, const qn_hparams *hparams,
                            const uint16_t *books, qn_error *error)
{
    const qn_shape shape = qn_kv_book_shape(scheme, hparams->kv_heads, hparams->head_dim);
    const int32_t count = 2 * hparams->layers;
    qn_safetensors_item *items = qn_calloc(ctx, (size_t)count, sizeof *items);
    char(*names)[NAME_BYTES] = qn_calloc(ctx, (size_t)count, sizeof *names);
    const char *const metadata[] = {"format", "quern-kv", "quern.kv", scheme->info.name};
    const size_t elements = (size_t)qn_shape_elements(&shape);
    qn_safetensors_writer *writer = NULL;
    qn_status status = items && names ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for %s", path);
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        tensor_name(i, names[i]);
        items[i] = (qn_safetensors_item){.name = names[i], .shape = shape};
    }
    if (status == QN_OK) {
        status = qn_safetensors_writer_create(ctx, path, items, count, metadata, 2, 1, &writer, error);
    }
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        status = qn_safetensors_writer_put(writer, i, books + (size_t)i * elements, elements * sizeof *books, error);
    }
    if (status == QN_OK) {
        status = qn_safetensors_writer_finish(writer, error);
    }
    qn_safetensors_writer_destroy(writer);
    qn_free(ctx, names);
    qn_free(ctx, items);
    return status;
}
