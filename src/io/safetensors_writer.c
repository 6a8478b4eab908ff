/* Safetensors writer. The header's text is built first, so its length and every
 * tensor's place are known; it is written last, when the checksums are. */
#include "io/safetensors_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <jansson.h>
#define XXH_STATIC_LINKING_ONLY /* the state as a complete type, for our own allocation */
#include <xxhash.h>

#include "base/checked.h"
#include "base/map.h"
#include "base/text.h"
#include "format/format.h"
#include "io/safetensors.h"

#define BUFFER_BYTES ((size_t)1 << 20)
#define SUM_DIGITS 32

typedef struct item {
    char *name;
    qn_shape shape;
    uint64_t begin, end, written; /* offsets in the data section; bytes so far */
    size_t sum_at;                /* where the checksum's digits are in the header */
    XXH3_state_t *sum;            /* while the tensor is incomplete */
} item;

struct qn_safetensors_writer {
    const qn_ctx *ctx;
    char *path;
    int fd;
    item *items;
    int32_t *order; /* items as they lie in the file */
    int32_t count;
    qn_buffer header; /* with the 8 length bytes */
    uint64_t data_bytes;
    int checksums, finished;
    int ours;      /* the path is a plain file, which may be removed */
    char *pending; /* bytes not yet given to the system */
    size_t pending_bytes;
    uint64_t pending_at; /* file offset */
};

/* Place of a format in the reference writer's order: larger elements first. */
static int order_of(qn_format format)
{
    static const uint8_t order[] = {QN_U64,     QN_I64,     QN_F64, QN_F32, QN_U32,         QN_I32,
                                    QN_BF16,    QN_F16,     QN_U16, QN_I16, QN_F8_E4M3FNUZ, QN_E8M0,
                                    QN_F8_E4M3, QN_F8_E5M2, QN_I8,  QN_U8,  QN_F4_E2M1,     QN_BOOL};
    int i = 0;
    while ((size_t)i < sizeof order && order[i] != (uint8_t)format) {
        i++;
    }
    return i;
}

typedef struct sort_key {
    const char *name;
    int order;
    int32_t index;
} sort_key;

static int compare_keys(const void *a, const void *b)
{
    const sort_key *x = a, *y = b;
    return x->order != y->order ? (x->order > y->order) - (x->order < y->order) : strcmp(x->name, y->name);
}

/* Order the items, give each its range. */
static qn_status lay_out(qn_safetensors_writer *w, qn_error *error)
{
    sort_key *keys = qn_calloc(w->ctx, (size_t)w->count + 1, sizeof *keys);
    QN_FAIL_IF(!keys, error, QN_E_MEMORY, "out of memory for the header of %s", w->path);
    for (int32_t i = 0; i < w->count; i++) {
        keys[i] = (sort_key){w->items[i].name, order_of(w->items[i].shape.format), i};
    }
    qsort(keys, (size_t)w->count, sizeof *keys, compare_keys);
    for (int32_t i = 0; i < w->count; i++) {
        w->order[i] = keys[i].index;
    }
    qn_free(w->ctx, keys);
    for (int32_t i = 0; i < w->count; i++) {
        item *it = &w->items[w->order[i]];
        size_t bytes;
        if (qn_shape_bytes(&it->shape, &bytes, error) != QN_OK) {
            return qn_error_prefix(error, QN_E_SHAPE, "tensor %s", it->name);
        }
        it->begin = w->data_bytes;
        QN_FAIL_IF(qn_add_u64(w->data_bytes, bytes, &w->data_bytes) || w->data_bytes > INT64_MAX / 2, error, QN_E_SHAPE,
                   "tensor %s: the file would be larger than any disk", it->name);
        it->end = w->data_bytes;
    }
    return QN_OK;
}

/* Append text as a JSON string; 1 when it is not UTF-8. Running out of memory sets buffer->failed. */
static int add_json_string(qn_buffer *buffer, const char *text)
{
    json_t *value = json_string(text);
    if (!value) {
        return 1;
    }
    char *dumped = json_dumps(value, JSON_ENCODE_ANY);
    json_decref(value);
    if (!dumped) {
        buffer->failed = 1;
        return 0;
    }
    qn_buffer_add(buffer, dumped, strlen(dumped));
    free(dumped);
    return 0;
}

static qn_status add_metadata(qn_safetensors_writer *w, const char *const *metadata, int32_t count, qn_error *error)
{
    qn_buffer *h = &w->header;
    qn_map keys = qn_map_make(w->ctx);
    qn_status status = QN_OK;
    qn_buffer_print(h, "\"__metadata__\":{");
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        const char *key = metadata[2 * i], *value = metadata[2 * i + 1];
        if (!key || !value) {
            status = qn_error_set(error, QN_E_ARGUMENT, "metadata entry %d has no key or no value", (int)i);
            break;
        }
        const int added = qn_map_add(&keys, key, strlen(key), i);
        if (added != 0) {
            status = added < 0 ? qn_error_set(error, QN_E_MEMORY, "out of memory for metadata")
                               : qn_error_set(error, QN_E_ARGUMENT, "metadata key %s is given twice", key);
            break;
        }
        qn_buffer_print(h, i ? "," : "");
        int bad = add_json_string(h, key);
        qn_buffer_print(h, ":");
        bad |= add_json_string(h, value);
        if (bad) {
            status = qn_error_set(error, QN_E_ARGUMENT, "metadata entry %s is not valid UTF-8", key);
        }
    }
    qn_map_free(&keys);
    for (int32_t i = 0; w->checksums && i < w->count && status == QN_OK; i++) {
        item *it = &w->items[w->order[i]];
        char *key = qn_alloc(w->ctx, strlen(it->name) + sizeof QN_SAFETENSORS_SUM_PREFIX);
        if (!key) {
            h->failed = 1;
            break;
        }
        strcpy(key, QN_SAFETENSORS_SUM_PREFIX);
        strcat(key, it->name);
        qn_buffer_print(h, count || i ? "," : "");
        (void)add_json_string(h, key); /* the name was checked */
        qn_buffer_print(h, ":\"");
        it->sum_at = h->length;
        qn_buffer_print(h, "%0*d\"", SUM_DIGITS, 0);
        qn_free(w->ctx, key);
    }
    qn_buffer_print(h, "},");
    return status;
}

/* Build the header: 8 bytes of length, JSON, spaces up to a multiple of 8. */
static qn_status build_header(qn_safetensors_writer *w, const char *const *metadata, int32_t metadata_count,
                              qn_error *error)
{
    qn_buffer *h = &w->header;
    qn_buffer_add(h, "\0\0\0\0\0\0\0", 8);
    qn_buffer_print(h, "{");
    if (metadata_count || (w->checksums && w->count)) {
        QN_TRY(add_metadata(w, metadata, metadata_count, error));
    }
    for (int32_t i = 0; i < w->count; i++) {
        const item *it = &w->items[w->order[i]];
        (void)add_json_string(h, it->name);
        qn_buffer_print(h, ":{\"dtype\":\"%s\",\"shape\":[", qn_format_get_row(it->shape.format)->safetensors);
        for (int32_t d = 0; d < it->shape.ndim; d++) {
            qn_buffer_print(h, d ? ",%lld" : "%lld", (long long)it->shape.dims[d]);
        }
        qn_buffer_print(h, "],\"data_offsets\":[%llu,%llu]},", (unsigned long long)it->begin,
                        (unsigned long long)it->end);
    }
    if (!h->failed && h->data[h->length - 1] == ',') {
        h->length--;
    }
    qn_buffer_print(h, "}");
    while (!h->failed && h->length % 8) {
        qn_buffer_add(h, " ", 1);
    }
    QN_FAIL_IF(h->failed, error, QN_E_MEMORY, "out of memory for the header of %s", w->path);
    QN_FAIL_IF(h->length - 8 > QN_SAFETENSORS_MAX_HEADER, error, QN_E_ARGUMENT,
               "the header of %s would have %zu bytes, safetensors allows %d", w->path, h->length - 8,
               QN_SAFETENSORS_MAX_HEADER);
    for (int i = 0; i < 8; i++) {
        h->data[i] = (char)((uint64_t)(h->length - 8) >> (8 * i));
    }
    return QN_OK;
}

static qn_status copy_items(qn_safetensors_writer *w, const qn_safetensors_item *items, qn_error *error)
{
    qn_map names = qn_map_make(w->ctx);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < w->count && status == QN_OK; i++) {
        const char *name = items[i].name;
        const qn_format_row *row = qn_format_get_row(items[i].shape.format);
        if (!name) {
            status = qn_error_set(error, QN_E_ARGUMENT, "tensor %d has no name", (int)i);
        } else if (qn_safetensors_check_name(name, strlen(name), error) != QN_OK) {
            status = error && error->status == QN_E_MEMORY ? QN_E_MEMORY : QN_E_ARGUMENT;
            if (error) {
                error->status = status;
            }
        } else if (items[i].shape.ndim < 0 || items[i].shape.ndim > QN_MAX_DIMS) {
            status = qn_error_set(error, QN_E_SHAPE, "tensor %s has %d dimensions, expected 0 to %d", name,
                                  (int)items[i].shape.ndim, QN_MAX_DIMS);
        } else if (!row || !row->safetensors) {
            status = qn_error_set(error, QN_E_FORMAT, "tensor %s: safetensors has no name for the format %s", name,
                                  row ? row->info.name : "none");
        } else {
            w->items[i].shape = items[i].shape;
            w->items[i].name = qn_strdup(w->ctx, name);
            const int added = w->items[i].name ? qn_map_add(&names, w->items[i].name, strlen(name), i) : -1;
            if (added == 1) {
                status = qn_error_set(error, QN_E_ARGUMENT, "tensor name %s is given twice", name);
            } else if (added != 0) {
                status = qn_error_set(error, QN_E_MEMORY, "out of memory for tensor names");
            }
        }
    }
    qn_map_free(&names);
    return status;
}

/* Say why a write failed, with the space there is. */
static qn_status fail_write(const qn_safetensors_writer *w, int code, qn_error *error)
{
    struct statvfs fs;
    if (code == ENOSPC && fstatvfs(w->fd, &fs) == 0) {
        QN_FAIL(error, QN_E_IO, "the disk is full: %s needs %llu bytes, %llu are free", w->path,
                (unsigned long long)qn_safetensors_writer_bytes(w),
                (unsigned long long)fs.f_bavail * (unsigned long long)fs.f_frsize);
    }
    QN_FAIL(error, QN_E_IO, "cannot write %s: %s", w->path, strerror(code));
}

static qn_status open_file(qn_safetensors_writer *w, qn_error *error)
{
    w->fd = open(w->path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    QN_FAIL_IF(w->fd < 0, error, QN_E_IO, "cannot create %s: %s", w->path, strerror(errno));
    struct stat st;
    QN_FAIL_IF(fstat(w->fd, &st) != 0 || !S_ISREG(st.st_mode), error, QN_E_IO, "%s is no plain file", w->path);
    w->ours = 1;
    const off_t size = (off_t)qn_safetensors_writer_bytes(w);
    int code;
    do { /* reserve the space now, to fail in the first second */
        code = fallocate(w->fd, 0, 0, size) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        return fail_write(w, code, error);
    }
    return QN_OK;
}

qn_status qn_safetensors_writer_create(qn_ctx *ctx, const char *path, const qn_safetensors_item *items, int32_t count,
                                       const char *const *metadata, int32_t metadata_count, int checksums,
                                       qn_safetensors_writer **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_safetensors_writer_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx || !path || count < 0 || metadata_count < 0 || (count && !items) || (metadata_count && !metadata),
               error, QN_E_ARGUMENT, "qn_safetensors_writer_create: a required pointer is NULL or a count is negative");
    qn_error local = {0};
    qn_error *e = error ? error : &local;
    qn_safetensors_writer *w = qn_calloc(ctx, 1, sizeof *w);
    QN_FAIL_IF(!w, e, QN_E_MEMORY, "out of memory for the writer of %s", path);
    w->ctx = ctx;
    w->fd = -1;
    w->checksums = checksums;
    w->count = count;
    w->header = qn_buffer_make(ctx);
    w->path = qn_strdup(ctx, path);
    w->items = qn_calloc(ctx, (size_t)count + 1, sizeof *w->items);
    w->order = qn_calloc(ctx, (size_t)count + 1, sizeof *w->order);
    w->pending = qn_alloc(ctx, BUFFER_BYTES);
    qn_status status = QN_OK;
    if (!w->path || !w->items || !w->order || !w->pending) {
        status = qn_error_set(e, QN_E_MEMORY, "out of memory for the writer of %s", path);
    }
    if (status == QN_OK) {
        status = copy_items(w, items, e);
    }
    if (status == QN_OK) {
        status = lay_out(w, e);
    }
    if (status == QN_OK) {
        status = build_header(w, metadata, metadata_count, e);
    }
    if (status == QN_OK) {
        status = open_file(w, e);
    }
    if (status != QN_OK) {
        qn_safetensors_writer_destroy(w);
        return status;
    }
    *out = w;
    return QN_OK;
}

static qn_status write_at(qn_safetensors_writer *w, const char *data, size_t bytes, uint64_t offset, qn_error *error)
{
    while (bytes) {
        const ssize_t n = pwrite(w->fd, data, bytes, (off_t)offset);
        if (n < 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail_write(w, errno, error);
        }
        QN_FAIL_IF(n == 0, error, QN_E_IO, "cannot write %s: the system takes no more bytes", w->path);
        data += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return QN_OK;
}

static qn_status flush_pending(qn_safetensors_writer *w, qn_error *error)
{
    QN_TRY(write_at(w, w->pending, w->pending_bytes, w->pending_at, error));
    w->pending_bytes = 0;
    return QN_OK;
}

/* Feed the tensor's checksum; when the tensor is complete put the digits into the header. */
static qn_status add_to_sum(qn_safetensors_writer *w, item *it, const void *data, size_t bytes, qn_error *error)
{
    if (!it->sum) {
        it->sum = qn_alloc(w->ctx, sizeof *it->sum);
        QN_FAIL_IF(!it->sum, error, QN_E_MEMORY, "out of memory for the checksum of %s", it->name);
        XXH3_128bits_reset(it->sum);
    }
    XXH3_128bits_update(it->sum, data, bytes);
    return QN_OK;
}

static void end_sum(qn_safetensors_writer *w, item *it)
{
    const XXH128_hash_t hash = it->sum ? XXH3_128bits_digest(it->sum) : XXH3_128bits(NULL, 0);
    char digits[SUM_DIGITS + 1];
    qn_safetensors_sum_text(hash.high64, hash.low64, digits);
    memcpy(w->header.data + it->sum_at, digits, SUM_DIGITS);
    qn_free(w->ctx, it->sum);
    it->sum = NULL;
}

qn_status qn_safetensors_writer_put(qn_safetensors_writer *w, int32_t index, const void *data, size_t bytes,
                                    qn_error *error)
{
    QN_FAIL_IF(index < 0 || index >= w->count, error, QN_E_ARGUMENT, "there is no tensor %d to write", (int)index);
    item *it = &w->items[index];
    QN_FAIL_IF(bytes > it->end - it->begin - it->written, error, QN_E_ARGUMENT,
               "tensor %s has %llu bytes, %llu were given", it->name, (unsigned long long)(it->end - it->begin),
               (unsigned long long)(it->written + bytes));
    if (!bytes) {
        return QN_OK;
    }
    if (w->checksums) {
        QN_TRY(add_to_sum(w, it, data, bytes, error));
    }
    const uint64_t offset = w->header.length + it->begin + it->written;
    if (w->pending_bytes && (offset != w->pending_at + w->pending_bytes || bytes > BUFFER_BYTES - w->pending_bytes)) {
        QN_TRY(flush_pending(w, error));
    }
    if (bytes > BUFFER_BYTES) {
        QN_TRY(write_at(w, data, bytes, offset, error));
    } else {
        if (!w->pending_bytes) {
            w->pending_at = offset;
        }
        memcpy(w->pending + w->pending_bytes, data, bytes);
        w->pending_bytes += bytes;
    }
    it->written += bytes;
    return QN_OK;
}

qn_status qn_safetensors_writer_finish(qn_safetensors_writer *w, qn_error *error)
{
    for (int32_t i = 0; i < w->count; i++) {
        item *it = &w->items[i];
        QN_FAIL_IF(it->written != it->end - it->begin, error, QN_E_INTERNAL,
                   "tensor %s has %llu bytes, only %llu were written", it->name,
                   (unsigned long long)(it->end - it->begin), (unsigned long long)it->written);
        if (w->checksums) {
            end_sum(w, it);
        }
    }
    QN_TRY(flush_pending(w, error));
    QN_TRY(write_at(w, w->header.data, w->header.length, 0, error));
    if (ftruncate(w->fd, (off_t)qn_safetensors_writer_bytes(w)) != 0 || fsync(w->fd) != 0) {
        return fail_write(w, errno, error);
    }
    w->finished = 1;
    const int closed = close(w->fd);
    w->fd = -1;
    QN_FAIL_IF(closed != 0 && errno != EINTR, error, QN_E_IO, "cannot close %s: %s", w->path, strerror(errno));
    return QN_OK;
}

uint64_t qn_safetensors_writer_bytes(const qn_safetensors_writer *w)
{
    return w->header.length + w->data_bytes;
}

void qn_safetensors_writer_destroy(qn_safetensors_writer *w)
{
    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        close(w->fd);
        if (w->ours && !w->finished) {
            unlink(w->path);
        }
    }
    for (int32_t i = 0; w->items && i < w->count; i++) {
        qn_free(w->ctx, w->items[i].name);
        qn_free(w->ctx, w->items[i].sum);
    }
    qn_buffer_free(&w->header);
    qn_free(w->ctx, w->items);
    qn_free(w->ctx, w->order);
    qn_free(w->ctx, w->pending);
    qn_free(w->ctx, w->path);
    qn_free(w->ctx, w);
}
