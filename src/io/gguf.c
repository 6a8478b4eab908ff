/* Strict GGUF parser. A cursor over the mapped file hands out bytes only after
 * comparing with what is left; every count is first held against the bytes its
 * elements need at least, so nothing is allocated for a count that cannot be true. */
#include "io/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "format/format.h"
#include "io/json.h"

#define MAGIC 0x46554747u /* "GGUF" */

typedef struct cursor {
    const unsigned char *data;
    size_t size, at;
} cursor;

/* The next n bytes; NULL when the file ends before. */
static const unsigned char *take(cursor *c, uint64_t n)
{
    if (n > c->size - c->at) {
        return NULL;
    }
    const unsigned char *p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

static uint64_t load(const unsigned char *p, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

static qn_status take_uint(cursor *c, size_t bytes, const char *what, uint64_t *out, qn_error *error)
{
    const unsigned char *p = take(c, bytes);
    QN_FAIL_IF(!p, error, QN_E_FILE, "the file ends at byte %zu, inside %s", c->size, what);
    *out = load(p, bytes);
    return QN_OK;
}

/* Length-prefixed string. */
static qn_status take_string(cursor *c, const char *what, const char **text, size_t *bytes, qn_error *error)
{
    uint64_t length = 0;
    QN_TRY(take_uint(c, 8, what, &length, error));
    const size_t left = c->size - c->at;
    const unsigned char *p = take(c, length);
    QN_FAIL_IF(!p, error, QN_E_FILE, "%s has a length of %" PRIu64 " bytes, the file has %zu left", what, length, left);
    *text = (const char *)p;
    *bytes = (size_t)length;
    return QN_OK;
}

/* A key or tensor name, copied and zero-terminated. */
static qn_status take_name(cursor *c, const qn_ctx *ctx, const char *what, char **out, qn_error *error)
{
    const char *text = NULL;
    size_t bytes = 0;
    QN_TRY(take_string(c, what, &text, &bytes, error));
    QN_FAIL_IF(bytes == 0 || bytes > QN_GGUF_MAX_NAME, error, QN_E_FILE, "%s has %zu bytes, expected 1 to %d", what,
               bytes, QN_GGUF_MAX_NAME);
    for (size_t i = 0; i < bytes; i++) {
        QN_FAIL_IF((unsigned char)text[i] < 0x20 || text[i] == 0x7f, error, QN_E_FILE,
                   "%s holds the control character 0x%02x", what, (unsigned)(unsigned char)text[i]);
    }
    QN_FAIL_IF(!qn_is_name_text(text, bytes), error, QN_E_FILE, "%s is not valid UTF-8", what);
    *out = qn_strndup(ctx, text, bytes);
    QN_FAIL_IF(!*out, error, QN_E_MEMORY, "out of memory for %s", what);
    return QN_OK;
}

/* Bytes of a fixed-size type; 0 for strings, arrays and unknown types. */
static size_t type_bytes(uint64_t type)
{
    static const uint8_t bytes[QN_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < QN_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

/* Skip count elements of a type, checking that they are inside the file. */
static qn_status skip_elements(cursor *c, uint64_t type, uint64_t count, const char *key, qn_error *error)
{
    if (type == QN_GGUF_STRING) {
        QN_FAIL_IF(count > (c->size - c->at) / 8, error, QN_E_FILE,
                   "metadata %s has %" PRIu64 " strings, the file has %zu bytes left", key, count, c->size - c->at);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t length = 0;
            const unsigned char *p = take(c, 8);
            if (p) {
                length = load(p, 8);
            }
            QN_FAIL_IF(!p || !take(c, length), error, QN_E_FILE,
                       "metadata %s: string %" PRIu64 " goes beyond the end of the file", key, i);
        }
        return QN_OK;
    }
    uint64_t bytes = 0;
    QN_FAIL_IF(qn_mul_u64(count, type_bytes(type), &bytes) || bytes > c->size - c->at, error, QN_E_FILE,
               "metadata %s has %" PRIu64 " elements of %zu bytes, the file has %zu bytes left", key, count,
               type_bytes(type), c->size - c->at);
    const unsigned char *p = take(c, bytes);
    for (uint64_t i = 0; type == QN_GGUF_BOOL && i < count; i++) {
        QN_FAIL_IF(p[i] > 1, error, QN_E_FILE, "metadata %s: %u is no bool, expected 0 or 1", key, (unsigned)p[i]);
    }
    return QN_OK;
}

static qn_status read_value(cursor *c, const qn_ctx *ctx, qn_gguf_value *value, qn_error *error)
{
    QN_TRY(take_name(c, ctx, "a metadata key", &value->key, error));
    uint64_t type = 0;
    QN_TRY(take_uint(c, 4, value->key, &type, error));
    value->count = 1;
    if (type == QN_GGUF_ARRAY) {
        value->is_array = 1;
        QN_TRY(take_uint(c, 4, value->key, &type, error));
        QN_TRY(take_uint(c, 8, value->key, &value->count, error));
        QN_FAIL_IF(type == QN_GGUF_ARRAY, error, QN_E_UNSUPPORTED, "metadata %s is an array of arrays", value->key);
    }
    QN_FAIL_IF(type >= QN_GGUF_TYPE_COUNT, error, QN_E_FILE, "metadata %s has type %" PRIu64 ", expected 0 to %d",
               value->key, type, QN_GGUF_TYPE_COUNT - 1);
    value->type = (qn_gguf_type)type;
    const size_t begin = c->at;
    value->data = c->data + begin;
    QN_TRY(skip_elements(c, type, value->count, value->key, error));
    value->bytes = c->at - begin;
    return QN_OK;
}

static qn_status read_metadata(cursor *c, qn_gguf *file, uint64_t count, qn_error *error)
{
    file->values = qn_calloc(file->ctx, (size_t)count + 1, sizeof *file->values);
    QN_FAIL_IF(!file->values, error, QN_E_MEMORY, "out of memory for %" PRIu64 " metadata entries", count);
    for (uint64_t i = 0; i < count; i++) {
        qn_gguf_value *value = &file->values[file->value_count++];
        QN_TRY(read_value(c, file->ctx, value, error));
        const int added = qn_map_add(&file->keys, value->key, strlen(value->key), file->value_count - 1);
        QN_FAIL_IF(added < 0, error, QN_E_MEMORY, "out of memory for %" PRIu64 " metadata entries", count);
        QN_FAIL_IF(added > 0, error, QN_E_FILE, "metadata %s is there twice", value->key);
    }
    return QN_OK;
}

/* Names of the ggml types that have no qn_format, for the message. */
static const char *type_name(uint64_t type)
{
    static const struct {
        uint8_t type;
        const char *name;
    } names[] = {{9, "Q8_1"}, {15, "Q8_K"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].type == type) {
            return names[i].name;
        }
    }
    return "unknown";
}

/* One tensor description; *bytes receives the size of its data, view.data stays NULL. */
static qn_status read_tensor(cursor *c, const qn_ctx *ctx, qn_gguf_tensor *t, qn_error *error)
{
    QN_TRY(take_name(c, ctx, "a tensor name", &t->name, error));
    uint64_t rank = 0, dims[QN_MAX_DIMS] = {0}, type = 0;
    QN_TRY(take_uint(c, 4, t->name, &rank, error));
    QN_FAIL_IF(rank < 1 || rank > QN_MAX_DIMS, error, QN_E_FILE,
               "tensor %s has %" PRIu64 " dimensions, expected 1 to %d", t->name, rank, QN_MAX_DIMS);
    int64_t product = 1;
    for (uint64_t i = 0; i < rank; i++) {
        QN_TRY(take_uint(c, 8, t->name, &dims[i], error));
        QN_FAIL_IF(dims[i] < 1 || dims[i] > INT64_MAX || qn_mul_i64(product, (int64_t)dims[i], &product), error,
                   QN_E_FILE,
                   "tensor %s: dimension %" PRIu64 " is %" PRIu64 ": it is zero or the number of elements overflows",
                   t->name, i, dims[i]);
    }
    QN_TRY(take_uint(c, 4, t->name, &type, error));
    QN_TRY(take_uint(c, 8, t->name, &t->begin, error));
    const qn_format format = qn_format_from_gguf((uint32_t)type);
    QN_FAIL_IF(format == QN_FORMAT_NONE, error, QN_E_UNSUPPORTED,
               "tensor %s has the GGML type %" PRIu64 " (%s), which this version does not read", t->name, type,
               type_name(type));
    qn_shape shape = {.format = format, .ndim = (int32_t)rank};
    for (uint64_t i = 0; i < QN_MAX_DIMS; i++) {
        shape.dims[i] = i < rank ? (int64_t)dims[rank - 1 - i] : 1;
    }
    size_t bytes = 0;
    qn_error detail = {0};
    QN_FAIL_IF(qn_shape_bytes(&shape, &bytes, &detail) != QN_OK, error, QN_E_FILE, "tensor %s: %s", t->name,
               detail.text);
    t->view = qn_view_make(NULL, &shape);
    QN_FAIL_IF(qn_add_u64(t->begin, bytes, &t->end), error, QN_E_FILE,
               "tensor %s: offset %" PRIu64 " plus %zu bytes overflows", t->name, t->begin, bytes);
    return QN_OK;
}

static int compare_begin(const void *a, const void *b)
{
    const qn_gguf_tensor *x = *(qn_gguf_tensor *const *)a, *y = *(qn_gguf_tensor *const *)b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

/* Ranges: aligned, inside the file, none on another. */
static qn_status place_tensors(qn_gguf *file, const cursor *c, qn_error *error)
{
    uint64_t data_at = 0;
    QN_FAIL_IF(qn_pad_u64(c->at, file->alignment, &data_at), error, QN_E_FILE, "the tensor data begins beyond 64 bits");
    if (file->tensor_count == 0) {
        file->data_at = data_at;
        return QN_OK;
    }
    QN_FAIL_IF(data_at > c->size, error, QN_E_FILE,
               "the tensor data should begin at byte %" PRIu64 ", the file has %zu bytes", data_at, c->size);
    file->data_at = data_at;
    const uint64_t room = c->size - data_at;
    qn_gguf_tensor **sorted = qn_calloc(file->ctx, (size_t)file->tensor_count, sizeof *sorted);
    QN_FAIL_IF(!sorted, error, QN_E_MEMORY, "out of memory for %d tensors", (int)file->tensor_count);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < file->tensor_count && status == QN_OK; i++) {
        qn_gguf_tensor *t = sorted[i] = &file->tensors[i];
        if (t->begin % file->alignment) {
            status = qn_error_set(error, QN_E_FILE, "tensor %s: offset %" PRIu64 " is not a multiple of %" PRIu64,
                                  t->name, t->begin, file->alignment);
        } else if (t->end > room) {
            status = qn_error_set(error, QN_E_FILE,
                                  "tensor %s: its data would end at byte %" PRIu64
                                  " of the data section, the file has %" PRIu64,
                                  t->name, t->end, room);
        }
    }
    if (status == QN_OK) {
        qsort(sorted, (size_t)file->tensor_count, sizeof *sorted, compare_begin);
    }
    for (int32_t i = 1; i < file->tensor_count && status == QN_OK; i++) {
        if (sorted[i]->begin < sorted[i - 1]->end) {
            status =
                qn_error_set(error, QN_E_FILE, "tensor %s overlaps tensor %s", sorted[i]->name, sorted[i - 1]->name);
        }
    }
    qn_free(file->ctx, sorted);
    for (int32_t i = 0; i < file->tensor_count && status == QN_OK; i++) {
        qn_gguf_tensor *t = &file->tensors[i];
        t->begin += data_at;
        t->end += data_at;
        t->view.data = c->data + t->begin;
    }
    return status;
}

static qn_status parse(qn_gguf *file, cursor *c, qn_error *error)
{
    uint64_t magic = 0, version = 0, tensors = 0, values = 0;
    QN_TRY(take_uint(c, 4, "the magic number", &magic, error));
    QN_FAIL_IF(magic != MAGIC, error, QN_E_FILE, "not a GGUF file: it begins with 0x%08" PRIx64, magic);
    QN_TRY(take_uint(c, 4, "the version", &version, error));
    QN_FAIL_IF(version == 1 || (version & 0xffff) == 0, error, QN_E_UNSUPPORTED,
               "GGUF version %" PRIu64 " is not read here, expected 2 or 3%s", version,
               version == 1 ? "" : " (is it big-endian?)");
    QN_FAIL_IF(version != 2 && version != 3, error, QN_E_UNSUPPORTED,
               "GGUF version %" PRIu64 " is not read here, expected 2 or 3", version);
    QN_TRY(take_uint(c, 8, "the tensor count", &tensors, error));
    QN_TRY(take_uint(c, 8, "the metadata count", &values, error));
    const uint64_t left = c->size - c->at;
    /* The least a metadata entry takes is 8+1+4+1 bytes, a tensor 8+1+4+8+4+8. */
    QN_FAIL_IF(values > left / 14 || values > INT32_MAX - 1, error, QN_E_FILE,
               "%" PRIu64 " metadata entries do not fit in %" PRIu64 " bytes", values, left);
    QN_FAIL_IF(tensors > left / 33 || tensors > INT32_MAX - 1, error, QN_E_FILE,
               "%" PRIu64 " tensors do not fit in %" PRIu64 " bytes", tensors, left);
    QN_TRY(read_metadata(c, file, values, error));
    int64_t alignment = 32;
    QN_TRY(qn_gguf_get_int(file, "general.alignment", 1, QN_GGUF_MAX_ALIGNMENT, &alignment, error));
    QN_FAIL_IF(alignment & (alignment - 1), error, QN_E_FILE,
               "metadata general.alignment is %" PRId64 ", expected a power of two", alignment);
    file->alignment = (uint64_t)alignment;
    QN_FAIL_IF(tensors > (c->size - c->at) / 33, error, QN_E_FILE,
               "%" PRIu64 " tensors do not fit in the %zu bytes after the metadata", tensors, c->size - c->at);
    file->tensors = qn_calloc(file->ctx, (size_t)tensors + 1, sizeof *file->tensors);
    QN_FAIL_IF(!file->tensors, error, QN_E_MEMORY, "out of memory for %" PRIu64 " tensors", tensors);
    for (uint64_t i = 0; i < tensors; i++) {
        qn_gguf_tensor *t = &file->tensors[file->tensor_count++];
        QN_TRY(read_tensor(c, file->ctx, t, error));
        const int added = qn_map_add(&file->names, t->name, strlen(t->name), file->tensor_count - 1);
        QN_FAIL_IF(added < 0, error, QN_E_MEMORY, "out of memory for %" PRIu64 " tensors", tensors);
        QN_FAIL_IF(added > 0, error, QN_E_FILE, "tensor %s is there twice", t->name);
    }
    return place_tensors(file, c, error);
}

qn_status qn_gguf_parse(const qn_ctx *ctx, const void *data, size_t size, const char *where, qn_gguf *out,
                        qn_error *error)
{
    *out = (qn_gguf){.ctx = ctx, .keys = qn_map_make(ctx), .names = qn_map_make(ctx)};
    cursor c = {data, size, 0};
    const qn_status status = parse(out, &c, error);
    if (status != QN_OK) {
        qn_gguf_free(out);
        return qn_error_prefix(error, status, "%s", where);
    }
    return QN_OK;
}

void qn_gguf_free(qn_gguf *file)
{
    if (file->ctx) {
        for (int32_t i = 0; i < file->value_count; i++) {
            qn_free(file->ctx, file->values[i].key);
        }
        for (int32_t i = 0; i < file->tensor_count; i++) {
            qn_free(file->ctx, file->tensors[i].name);
        }
        qn_free(file->ctx, file->values);
        qn_free(file->ctx, file->tensors);
        qn_map_free(&file->keys);
        qn_map_free(&file->names);
    }
    *file = (qn_gguf){0};
}

const qn_gguf_value *qn_gguf_find(const qn_gguf *file, const char *key)
{
    const int32_t i = qn_map_get(&file->keys, key, strlen(key));
    return i < 0 ? NULL : &file->values[i];
}

/* Element at p of an integer type; 1 when it is none or does not fit. */
static int load_int(qn_gguf_type type, const unsigned char *p, int64_t *out)
{
    switch (type) {
    case QN_GGUF_U8: *out = p[0]; return 0;
    case QN_GGUF_I8: *out = (int8_t)p[0]; return 0;
    case QN_GGUF_U16: *out = (int64_t)load(p, 2); return 0;
    case QN_GGUF_I16: *out = (int16_t)load(p, 2); return 0;
    case QN_GGUF_U32: *out = (int64_t)load(p, 4); return 0;
    case QN_GGUF_I32: *out = (int32_t)load(p, 4); return 0;
    case QN_GGUF_I64: *out = (int64_t)load(p, 8); return 0;
    case QN_GGUF_U64: *out = load(p, 8) > INT64_MAX ? INT64_MAX : (int64_t)load(p, 8); return 0;
    default: return 1;
    }
}

int64_t qn_gguf_int_at(const qn_gguf_value *value, uint64_t i)
{
    int64_t n = 0;
    (void)load_int(value->type, value->data + i * type_bytes(value->type), &n);
    return n;
}

qn_status qn_gguf_get_int(const qn_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                          qn_error *error)
{
    const qn_gguf_value *value = qn_gguf_find(file, key);
    if (!value) {
        return QN_OK;
    }
    int64_t n = 0;
    QN_FAIL_IF(value->is_array || load_int(value->type, value->data, &n) != 0, error, QN_E_FILE,
               "metadata %s is not an integer", key);
    QN_FAIL_IF(n < low || n > high, error, QN_E_FILE, "metadata %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
               key, n, low, high);
    *out = n;
    return QN_OK;
}

qn_status qn_gguf_get_number(const qn_gguf *file, const char *key, double low, double high, double *out,
                             qn_error *error)
{
    const qn_gguf_value *value = qn_gguf_find(file, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(value->is_array || (value->type != QN_GGUF_F32 && value->type != QN_GGUF_F64), error, QN_E_FILE,
               "metadata %s is not a floating-point number", key);
    double n;
    if (value->type == QN_GGUF_F32) {
        float f;
        memcpy(&f, value->data, sizeof f);
        n = (double)f;
    } else {
        memcpy(&n, value->data, sizeof n);
    }
    QN_FAIL_IF(!(n >= low && n <= high), error, QN_E_FILE, "metadata %s is %g, expected %g to %g", key, n, low, high);
    *out = n;
    return QN_OK;
}

qn_status qn_gguf_get_bool(const qn_gguf *file, const char *key, int *out, qn_error *error)
{
    const qn_gguf_value *value = qn_gguf_find(file, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(value->is_array || value->type != QN_GGUF_BOOL, error, QN_E_FILE, "metadata %s is not a bool", key);
    *out = value->data[0];
    return QN_OK;
}

qn_status qn_gguf_get_string(const qn_gguf *file, const char *key, const char **text, size_t *bytes, qn_error *error)
{
    *text = NULL;
    *bytes = 0;
    const qn_gguf_value *value = qn_gguf_find(file, key);
    if (!value) {
        return QN_OK;
    }
    QN_FAIL_IF(value->is_array || value->type != QN_GGUF_STRING, error, QN_E_FILE, "metadata %s is not a string", key);
    const unsigned char *cursor_ = value->data;
    *text = qn_gguf_next_string(&cursor_, bytes);
    return QN_OK;
}

const char *qn_gguf_next_string(const unsigned char **at, size_t *bytes)
{
    *bytes = (size_t)load(*at, 8); /* was checked against the file */
    const char *text = (const char *)*at + 8;
    *at += 8 + *bytes;
    return text;
}
