/* Reading packed files: every number is held against the file before it is
 * used, and every byte of the file is covered by a checksum or must be zero. */
#include "io/packed_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"

struct qn_packed {
    const qn_ctx *ctx;
    qn_file_map map;
    qn_packed_header header;
    char *names; /* copies with a zero behind each */
    qn_packed_source *sources;
    qn_packed_blob *blobs;
    qn_packed_sum *sums; /* [blobs] */
    qn_map by_name;
};

const char *qn_packed_path(const qn_checkpoint *c)
{
    return c->packed_path;
}

/* ---- Parsing ---- */

static qn_status check_header(const qn_packed *p, qn_error *error)
{
    const qn_packed_header *h = &p->header;
    QN_FAIL_IF(p->map.size < sizeof *h || h->magic != QN_PACKED_MAGIC, error, QN_E_FILE, "it is no packed file");
    QN_FAIL_IF(h->version != QN_PACKED_VERSION, error, QN_E_PACKED, "it is of version %u, this version reads %u",
               h->version, QN_PACKED_VERSION);
    QN_FAIL_IF(h->file_bytes != p->map.size, error, QN_E_FILE, "it has %zu bytes, its header says %llu", p->map.size,
               (unsigned long long)h->file_bytes);
    QN_FAIL_IF(h->data_offset % QN_PACKED_PAGE != 0 || h->data_offset > h->file_bytes ||
                   h->data_offset < sizeof *h || h->index_bytes > h->data_offset - sizeof *h,
               error, QN_E_FILE, "its index does not fit the file");
    QN_FAIL_IF(h->sources > QN_PACKED_MAX_SOURCES || h->sources > h->index_bytes / sizeof(qn_packed_source) ||
                   h->blobs > QN_PACKED_MAX_BLOBS || h->blobs > h->index_bytes / sizeof(qn_packed_entry),
               error, QN_E_FILE, "its index is too short for %u files and %u blobs", h->sources, h->blobs);
    const qn_packed_sum sum = qn_packed_sum_index(h, (const char *)p->map.data + sizeof *h);
    QN_FAIL_IF(memcmp(&sum, &h->sum, sizeof sum) != 0, error, QN_E_FILE, "its index does not have its checksum");
    return QN_OK;
}

static int all_zero(const char *data, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if (data[i]) {
            return 0;
        }
    }
    return 1;
}

typedef struct cursor {
    const char *at;
    uint64_t left;
} cursor;

static qn_status take(cursor *c, void *record, size_t bytes, qn_error *error)
{
    QN_FAIL_IF(c->left < bytes, error, QN_E_FILE, "its index ends early");
    memcpy(record, c->at, bytes);
    c->at += bytes;
    c->left -= bytes;
    return QN_OK;
}

/* The name behind a record, into *names. */
static qn_status take_name(cursor *c, uint32_t bytes, char **names, const char **name, qn_error *error)
{
    const size_t padded = qn_align_up(bytes, 8);
    QN_FAIL_IF(bytes == 0 || bytes > QN_PACKED_MAX_NAME || c->left < padded, error, QN_E_FILE,
               "a name in its index has %u bytes", bytes);
    QN_FAIL_IF(memchr(c->at, 0, bytes) || !all_zero(c->at + bytes, padded - bytes), error, QN_E_FILE,
               "a name in its index is malformed");
    memcpy(*names, c->at, bytes);
    (*names)[bytes] = 0;
    *name = *names;
    *names += bytes + 1;
    c->at += padded;
    c->left -= padded;
    return QN_OK;
}

static qn_status parse_blob(qn_packed *p, int32_t i, cursor *c, char **names, uint64_t *end, qn_error *error)
{
    qn_packed_entry e;
    qn_packed_blob *blob = &p->blobs[i];
    QN_TRY(take(c, &e, sizeof e, error));
    QN_TRY(take_name(c, e.name_bytes, names, &blob->name, error));
    uint64_t padded;
    QN_FAIL_IF(e.offset != *end || e.bytes == 0 || qn_pad_u64(e.bytes, QN_ALIGN, &padded) ||
                   padded > p->header.file_bytes - e.offset,
               error, QN_E_FILE, "the blob %.200s does not fit the file", blob->name);
    *end = e.offset + padded;
    blob->data = (const char *)p->map.data + e.offset;
    blob->bytes = e.bytes;
    blob->layout = e.layout;
    blob->fingerprint = e.fingerprint;
    p->sums[i] = e.sum;
    const int added = qn_map_add(&p->by_name, blob->name, strlen(blob->name), i);
    QN_FAIL_IF(added < 0, error, QN_E_MEMORY, "out of memory for names");
    QN_FAIL_IF(added > 0, error, QN_E_FILE, "the blob %.200s is there twice", blob->name);
    return QN_OK;
}

static qn_status parse(qn_packed *p, qn_error *error)
{
    if (p->map.size >= sizeof p->header) {
        memcpy(&p->header, p->map.data, sizeof p->header);
    }
    QN_TRY(check_header(p, error));
    const qn_packed_header *h = &p->header;
    p->names = qn_alloc(p->ctx, (size_t)h->index_bytes + 1); /* a record is longer than the zero behind its name */
    p->sources = qn_calloc(p->ctx, (size_t)h->sources + 1, sizeof *p->sources);
    p->blobs = qn_calloc(p->ctx, (size_t)h->blobs + 1, sizeof *p->blobs);
    p->sums = qn_calloc(p->ctx, (size_t)h->blobs + 1, sizeof *p->sums);
    QN_FAIL_IF(!p->names || !p->sources || !p->blobs || !p->sums, error, QN_E_MEMORY, "out of memory for its index");
    cursor c = {(const char *)p->map.data + sizeof *h, h->index_bytes};
    char *names = p->names;
    for (uint32_t i = 0; i < h->sources; i++) {
        const char *name;
        QN_TRY(take(&c, &p->sources[i], sizeof p->sources[i], error));
        QN_TRY(take_name(&c, p->sources[i].name_bytes, &names, &name, error));
    }
    uint64_t end = h->data_offset;
    for (uint32_t i = 0; i < h->blobs; i++) {
        QN_TRY(parse_blob(p, (int32_t)i, &c, &names, &end, error));
    }
    QN_FAIL_IF(c.left || end != h->file_bytes ||
                   !all_zero(c.at, h->data_offset - sizeof *h - h->index_bytes),
               error, QN_E_FILE, "its index and its data do not fill the file");
    return QN_OK;
}

static qn_status check_sources(const qn_packed *p, const qn_checkpoint *c, int trust_times, const qn_exec *exec,
                               qn_error *error)
{
    qn_source_file *files = qn_calloc(c->ctx, QN_PACKED_MAX_SOURCES, sizeof *files);
    QN_FAIL_IF(!files, error, QN_E_MEMORY, "out of memory for its sources");
    const int32_t count = qn_packed_sources(c, files);
    qn_status status = QN_OK;
    if ((uint32_t)count != p->header.sources) {
        status = qn_error_set(error, QN_E_PACKED, "it was made from %u files, the model has %d", p->header.sources,
                              count);
    } else {
        status = qn_packed_compare(c->ctx, files, p->sources, count, trust_times, exec, error);
    }
    qn_free(c->ctx, files);
    return status;
}

qn_status qn_packed_open(const qn_checkpoint *c, const char *path, int trust_times, const qn_exec *exec,
                         qn_packed **out, qn_error *error)
{
    *out = NULL;
    struct stat st;
    if (stat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return QN_OK;
    }
    qn_packed *p = qn_calloc(c->ctx, 1, sizeof *p);
    QN_FAIL_IF(!p, error, QN_E_MEMORY, "out of memory for %s", path);
    p->ctx = c->ctx;
    p->by_name = qn_map_make(c->ctx);
    qn_status status = qn_file_map_open(path, &p->map, error);
    if (status == QN_OK) {
        status = parse(p, error);
        if (status == QN_OK) {
            status = check_sources(p, c, trust_times, exec, error);
        }
        if (status != QN_OK) {
            status = qn_error_prefix(error, status, "%s", path);
        }
    }
    if (status != QN_OK) {
        qn_packed_close(p);
        return status;
    }
    *out = p;
    return QN_OK;
}

qn_status qn_packed_check(const qn_packed *p, const qn_exec *exec, qn_error *error)
{
    const int32_t count = qn_packed_count(p);
    qn_packed_range *ranges = qn_calloc(p->ctx, (size_t)count + 1, sizeof *ranges);
    qn_packed_sum *sums = qn_calloc(p->ctx, (size_t)count + 1, sizeof *sums);
    qn_status status = ranges && sums ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for checksums");
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        ranges[i] = (qn_packed_range){p->blobs[i].data, p->blobs[i].bytes, NULL};
    }
    if (status == QN_OK) {
        status = qn_packed_sum_ranges(p->ctx, ranges, count, exec, sums, error);
    }
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        const qn_packed_blob *b = &p->blobs[i];
        if (memcmp(&sums[i], &p->sums[i], sizeof *sums) != 0 ||
            !all_zero((const char *)b->data + b->bytes, qn_align_up((size_t)b->bytes, QN_ALIGN) - b->bytes)) {
            status = qn_error_set(error, QN_E_FILE, "the blob %.200s does not have its checksum", b->name);
        }
    }
    qn_free(p->ctx, sums);
    qn_free(p->ctx, ranges);
    return status;
}

int32_t qn_packed_count(const qn_packed *packed)
{
    return (int32_t)packed->header.blobs;
}

uint64_t qn_packed_bytes(const qn_packed *packed)
{
    return packed->map.size;
}

const qn_packed_blob *qn_packed_find(const qn_packed *packed, const char *name)
{
    const int32_t i = qn_map_get(&packed->by_name, name, strlen(name));
    return i < 0 ? NULL : &packed->blobs[i];
}

void qn_packed_close(qn_packed *p)
{
    if (p) {
        qn_map_free(&p->by_name);
        qn_free(p->ctx, p->sums);
        qn_free(p->ctx, p->blobs);
        qn_free(p->ctx, p->sources);
        qn_free(p->ctx, p->names);
        qn_file_map_close(&p->map);
        qn_free(p->ctx, p);
    }
}

qn_status qn_checkpoint_packed_file(const qn_checkpoint *checkpoint, const qn_exec *exec, qn_packed_file *out,
                                    qn_error *error)
{
    QN_FAIL_IF(!checkpoint || !out, error, QN_E_ARGUMENT, "qn_checkpoint_packed_file: checkpoint or out is NULL");
    *out = (qn_packed_file){.path = checkpoint->packed_path};
    qn_packed *packed;
    QN_TRY(qn_packed_open(checkpoint, out->path, 1, exec, &packed, error));
    if (packed) {
        out->bytes = packed->map.size;
        out->blobs = qn_packed_count(packed);
        qn_packed_close(packed);
    }
    return QN_OK;
}
