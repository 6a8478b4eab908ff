/* Strict safetensors parser: nothing in the header is believed before it fits
 * the file, and all of the file is accounted for. Time is linear in the header
 * but for one sort. */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/checked.h"
#include "io/json.h"
#include "format/format.h"

qn_status qn_safetensors_check_name(const char *name, size_t bytes, qn_error *error)
{
    QN_FAIL_IF(bytes == 0, error, QN_E_FILE, "a tensor has an empty name");
    QN_FAIL_IF(bytes > QN_SAFETENSORS_MAX_NAME, error, QN_E_FILE, "a tensor name has %zu bytes, at most %d are allowed",
               bytes, QN_SAFETENSORS_MAX_NAME);
    for (size_t i = 0; i < bytes; i++) {
        QN_FAIL_IF((unsigned char)name[i] < 0x20 || name[i] == 0x7f, error, QN_E_FILE,
                   "a tensor name holds the control character 0x%02x", (unsigned)(unsigned char)name[i]);
    }
    QN_FAIL_IF(!qn_is_name_text(name, bytes), error, QN_E_FILE, "a tensor name is not valid UTF-8");
    QN_FAIL_IF(bytes == 12 && memcmp(name, "__metadata__", 12) == 0, error, QN_E_FILE,
               "no tensor may be called __metadata__");
    return QN_OK;
}

void qn_safetensors_sum_text(uint64_t high, uint64_t low, char text[33])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        text[i] = digits[(high >> (60 - 4 * i)) & 15];
        text[16 + i] = digits[(low >> (60 - 4 * i)) & 15];
    }
    text[32] = 0;
}

/* dtypes of the format that have no qn_format: refused as unsupported rather than as malformed. */
static int is_other_dtype(const char *dtype)
{
    static const char *const others[] = {"C64", "F6_E2M3", "F6_E3M2", "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F4"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(dtype, others[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* shape array -> view shape, with all dimensions checked. */
static qn_status read_shape(const char *name, const json_t *shape, qn_shape *out, qn_error *error)
{
    const size_t rank = json_array_size(shape);
    QN_FAIL_IF(!json_is_array(shape), error, QN_E_FILE, "tensor %s: shape is not an array", name);
    QN_FAIL_IF(rank > QN_SAFETENSORS_MAX_RANK, error, QN_E_FILE, "tensor %s: %zu dimensions, at most %d are allowed",
               name, rank, QN_SAFETENSORS_MAX_RANK);
    const size_t merged = rank > QN_MAX_DIMS ? rank - QN_MAX_DIMS : 0; /* leading ones that go into dims[0] */
    int64_t lead = 1, product = 1;
    out->ndim = (int32_t)(rank - merged);
    for (size_t i = 0; i < QN_MAX_DIMS; i++) {
        out->dims[i] = 1;
    }
    for (size_t i = 0; i < rank; i++) {
        const json_t *value = json_array_get(shape, i);
        QN_FAIL_IF(!json_is_integer(value) || json_integer_value(value) < 0, error, QN_E_FILE,
                   "tensor %s: dimension %zu is not an integer of at least 0", name, i);
        const int64_t dim = json_integer_value(value);
        QN_FAIL_IF(qn_mul_i64(product, dim, &product), error, QN_E_FILE,
                   "tensor %s: the number of elements overflows 64 bits", name);
        if (i <= merged) {
            QN_FAIL_IF(qn_mul_i64(lead, dim, &lead), error, QN_E_FILE,
                       "tensor %s: the number of elements overflows 64 bits", name);
            out->dims[0] = lead;
        } else {
            out->dims[i - merged] = dim;
        }
    }
    return QN_OK;
}

static qn_status read_offset(const char *name, const json_t *offsets, size_t i, uint64_t *out, qn_error *error)
{
    const json_t *value = json_array_get(offsets, i);
    QN_FAIL_IF(!json_is_integer(value) || json_integer_value(value) < 0, error, QN_E_FILE,
               "tensor %s: data_offsets[%zu] is not an integer of at least 0", name, i);
    *out = (uint64_t)json_integer_value(value);
    return QN_OK;
}

/* One entry of the header -> tensor, its range inside the data section of data_bytes bytes. */
static qn_status read_tensor(const char *name, const json_t *entry, const char *data, uint64_t data_bytes,
                             qn_safetensors_tensor *out, qn_error *error)
{
    QN_FAIL_IF(!json_is_object(entry), error, QN_E_FILE, "tensor %s: its entry is not an object", name);
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    QN_FAIL_IF(!dtype || !shape || !offsets || json_object_size(entry) != 3, error, QN_E_FILE,
               "tensor %s: expected exactly dtype, shape and data_offsets", name);
    QN_FAIL_IF(!json_is_string(dtype), error, QN_E_FILE, "tensor %s: dtype is not a string", name);
    const char *type = json_string_value(dtype);
    const qn_format format = qn_format_from_safetensors(type);
    if (format == QN_FORMAT_NONE) {
        QN_FAIL(error, is_other_dtype(type) ? QN_E_UNSUPPORTED : QN_E_FILE, "tensor %s: dtype %.40s is not %s", name,
                type, is_other_dtype(type) ? "supported by this version" : "one of safetensors");
    }
    qn_shape s = {.format = format};
    QN_TRY(read_shape(name, shape, &s, error));
    QN_FAIL_IF(!json_is_array(offsets) || json_array_size(offsets) != 2, error, QN_E_FILE,
               "tensor %s: data_offsets is not an array of two", name);
    uint64_t begin = 0, end = 0;
    QN_TRY(read_offset(name, offsets, 0, &begin, error));
    QN_TRY(read_offset(name, offsets, 1, &end, error));
    QN_FAIL_IF(end < begin || end > data_bytes, error, QN_E_FILE,
               "tensor %s: data_offsets [%" PRIu64 ",%" PRIu64 "] are not a range of the %" PRIu64 " data bytes", name,
               begin, end, data_bytes);
    size_t bytes = 0;
    qn_error detail = {0};
    QN_FAIL_IF(qn_shape_bytes(&s, &bytes, &detail) != QN_OK, error, QN_E_FILE, "tensor %s: %s", name, detail.text);
    QN_FAIL_IF(bytes != end - begin, error, QN_E_FILE,
               "tensor %s: its shape and dtype need %zu bytes, data_offsets give %" PRIu64, name, bytes, end - begin);
    *out = (qn_safetensors_tensor){.name = name, .view = qn_view_make(data + begin, &s), .begin = begin, .end = end};
    return QN_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    const qn_safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static qn_status check_metadata(const json_t *metadata, qn_error *error)
{
    QN_FAIL_IF(!json_is_object(metadata), error, QN_E_FILE, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        QN_FAIL_IF(!json_is_string(value), error, QN_E_FILE, "__metadata__: the value of %s is not a string", key);
    }
    return QN_OK;
}

static int is_aligned(const qn_view *view)
{
    return (uintptr_t)view->data % (uintptr_t)qn_format_get_info(view->shape.format)->block_bytes == 0;
}

/* Writers that do not sort by element size leave tensors where kernels cannot read them. */
static qn_status align_tensors(qn_safetensors *file, qn_error *error)
{
    size_t total = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const qn_safetensors_tensor *const t = &file->tensors[i];
        total += is_aligned(&t->view) ? 0 : qn_align_up((size_t)(t->end - t->begin) + 1, QN_ALIGN);
    }
    if (total == 0) {
        return QN_OK;
    }
    file->aligned = qn_alloc(file->ctx, total);
    QN_FAIL_IF(!file->aligned, error, QN_E_MEMORY, "out of memory for %zu bytes of unaligned tensors", total);
    char *to = file->aligned;
    for (int32_t i = 0; i < file->count; i++) {
        qn_safetensors_tensor *const t = &file->tensors[i];
        if (!is_aligned(&t->view)) {
            const size_t bytes = (size_t)(t->end - t->begin);
            memcpy(to, t->view.data, bytes);
            t->view.data = to;
            to += qn_align_up(bytes + 1, QN_ALIGN);
        }
    }
    return QN_OK;
}

/* All entries; then order by place and demand that they fill the data section without gap or overlap. */
static qn_status read_tensors(qn_safetensors *file, const char *data, uint64_t data_bytes, qn_error *error)
{
    json_t *root = file->json;
    const size_t entries = json_object_size(root);
    QN_FAIL_IF(entries > QN_SAFETENSORS_MAX_TENSORS, error, QN_E_FILE, "%zu tensors, at most %d are allowed", entries,
               QN_SAFETENSORS_MAX_TENSORS);
    file->tensors = qn_calloc(file->ctx, entries + 1, sizeof *file->tensors);
    QN_FAIL_IF(!file->tensors, error, QN_E_MEMORY, "out of memory for %zu tensors", entries);
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            file->metadata = entry;
            QN_TRY(check_metadata(entry, error));
            continue;
        }
        QN_TRY(qn_safetensors_check_name(name, strlen(name), error));
        QN_TRY(read_tensor(name, entry, data, data_bytes, &file->tensors[file->count], error));
        file->count++;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_tensors);
    uint64_t at = 0;
    for (int32_t i = 0; i < file->count; i++) {
        const qn_safetensors_tensor *t = &file->tensors[i];
        QN_FAIL_IF(t->begin != at, error, QN_E_FILE,
                   "tensor %s: its data begins at %" PRIu64 ", expected %" PRIu64 " (%s)", t->name, t->begin, at,
                   t->begin < at ? "it overlaps another tensor" : "there is a gap before it");
        at = t->end;
        QN_FAIL_IF(qn_map_add(&file->names, t->name, strlen(t->name), i) != 0, error, QN_E_MEMORY,
                   "out of memory for tensor names");
    }
    QN_FAIL_IF(at != data_bytes, error, QN_E_FILE,
               "the tensors end at %" PRIu64 " but the file has %" PRIu64 " data bytes", at, data_bytes);
    return align_tensors(file, error);
}

static qn_status parse(const void *data, size_t size, qn_safetensors *file, qn_error *error)
{
    const unsigned char *bytes = data;
    QN_FAIL_IF(size < 8, error, QN_E_FILE, "%zu bytes, a safetensors file has at least 8", size);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) {
        length |= (uint64_t)bytes[i] << (8 * i);
    }
    QN_FAIL_IF(length > QN_SAFETENSORS_MAX_HEADER, error, QN_E_FILE,
               "not a safetensors file: the header length is %" PRIu64 ", at most %d is allowed", length,
               QN_SAFETENSORS_MAX_HEADER);
    QN_FAIL_IF(length > size - 8, error, QN_E_FILE,
               "the header should have %" PRIu64 " bytes, the file has %zu after its first 8", length, size - 8);
    QN_FAIL_IF(length < 2 || bytes[8] != '{', error, QN_E_FILE, "the header does not begin with {");
    json_t *root = NULL;
    QN_TRY(qn_json_parse((const char *)bytes + 8, (size_t)length, "the header", &root, error));
    file->json = root;
    QN_FAIL_IF(!json_is_object(root), error, QN_E_FILE, "the header is not a JSON object");
    return read_tensors(file, (const char *)bytes + 8 + length, size - 8 - length, error);
}

qn_status qn_safetensors_parse(const qn_ctx *ctx, const void *data, size_t size, const char *where, qn_safetensors *out,
                               qn_error *error)
{
    *out = (qn_safetensors){.ctx = ctx, .names = qn_map_make(ctx)};
    const qn_status status = parse(data, size, out, error);
    if (status != QN_OK) {
        qn_safetensors_free(out);
        return qn_error_prefix(error, status, "%s", where);
    }
    return QN_OK;
}

void qn_safetensors_free(qn_safetensors *file)
{
    if (file->ctx) {
        qn_free(file->ctx, file->tensors);
        qn_free(file->ctx, file->aligned);
        qn_map_free(&file->names);
        json_decref(file->json);
    }
    *file = (qn_safetensors){0};
}

int32_t qn_safetensors_find(const qn_safetensors *file, const char *name)
{
    return qn_map_get(&file->names, name, strlen(name));
}

const char *qn_safetensors_metadata(const qn_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}
