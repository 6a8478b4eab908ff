/* Writing packed files: the index is laid out from the blobs in memory, then
 * header, index and blobs go to a temporary file that is renamed when flushed. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/commit.h"
#include "base/text.h"
#include "io/packed_internal.h"

typedef struct layout {
    qn_packed_header header;
    qn_buffer index;
    qn_packed_source *sources;
    qn_packed_sum *sums; /* [count] of the blobs */
} layout;

static const char zeros[QN_PACKED_PAGE];

static void add_name(qn_buffer *index, const char *name)
{
    const size_t bytes = strlen(name);
    qn_buffer_add(index, name, bytes);
    qn_buffer_add(index, zeros, qn_align_up(bytes, 8) - bytes);
}

static qn_status check_blobs(const qn_ctx *ctx, const qn_packed_blob *blobs, int32_t count, qn_error *error)
{
    QN_FAIL_IF(count < 0 || (uint32_t)count > QN_PACKED_MAX_BLOBS, error, QN_E_ARGUMENT, "%d blobs are too many",
               count);
    qn_map names = qn_map_make(ctx);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        const size_t length = strlen(blobs[i].name);
        const int added = qn_map_add(&names, blobs[i].name, length, i);
        if (added < 0) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory for names");
        } else if (added > 0 || !length || length > QN_PACKED_MAX_NAME || !blobs[i].bytes) {
            status = qn_error_set(error, QN_E_ARGUMENT, "the blob %.200s is there twice, or name or blob is empty",
                                  blobs[i].name);
        }
    }
    qn_map_free(&names);
    return status;
}

static qn_status sum_blobs(const qn_ctx *ctx, const qn_packed_blob *blobs, int32_t count, const qn_exec *exec,
                           qn_packed_sum *sums, qn_error *error)
{
    qn_packed_range *ranges = qn_calloc(ctx, (size_t)count + 1, sizeof *ranges);
    QN_FAIL_IF(!ranges, error, QN_E_MEMORY, "out of memory for checksums");
    for (int32_t i = 0; i < count; i++) {
        ranges[i] = (qn_packed_range){blobs[i].data, blobs[i].bytes, NULL};
    }
    const qn_status status = qn_packed_sum_ranges(ctx, ranges, count, exec, sums, error);
    qn_free(ctx, ranges);
    return status;
}

/* Bytes of the index: known before it is made, because offsets in it depend on it. */
static size_t index_bytes(const qn_source_file *files, int32_t sources, const qn_packed_blob *blobs, int32_t count)
{
    size_t bytes = (size_t)sources * sizeof(qn_packed_source) + (size_t)count * sizeof(qn_packed_entry);
    for (int32_t i = 0; i < sources; i++) {
        bytes += qn_align_up(strlen(files[i].name), 8);
    }
    for (int32_t i = 0; i < count; i++) {
        bytes += qn_align_up(strlen(blobs[i].name), 8);
    }
    return bytes;
}

static qn_status lay_out(layout *l, const qn_checkpoint *c, const qn_source_file *files, int32_t sources,
                         const qn_packed_blob *blobs, int32_t count, const qn_exec *exec, qn_error *error)
{
    QN_TRY(qn_packed_identify(c->ctx, files, sources, exec, l->sources, error));
    QN_TRY(sum_blobs(c->ctx, blobs, count, exec, l->sums, error));
    const size_t index = index_bytes(files, sources, blobs, count);
    l->header = (qn_packed_header){.magic = QN_PACKED_MAGIC,
                                   .version = QN_PACKED_VERSION,
                                   .data_offset = qn_align_up(sizeof l->header + index, QN_PACKED_PAGE),
                                   .index_bytes = index,
                                   .sources = (uint32_t)sources,
                                   .blobs = (uint32_t)count};
    for (int32_t i = 0; i < sources; i++) {
        l->sources[i].name_bytes = (uint32_t)strlen(files[i].name);
        qn_buffer_add(&l->index, &l->sources[i], sizeof l->sources[i]);
        add_name(&l->index, files[i].name);
    }
    uint64_t at = l->header.data_offset;
    for (int32_t i = 0; i < count; i++) {
        const qn_packed_entry entry = {.offset = at,
                                       .bytes = blobs[i].bytes,
                                       .fingerprint = blobs[i].fingerprint,
                                       .sum = l->sums[i],
                                       .layout = blobs[i].layout,
                                       .name_bytes = (uint32_t)strlen(blobs[i].name)};
        qn_buffer_add(&l->index, &entry, sizeof entry);
        add_name(&l->index, blobs[i].name);
        uint64_t padded;
        QN_FAIL_IF(qn_pad_u64(blobs[i].bytes, QN_ALIGN, &padded) || qn_add_u64(at, padded, &at), error, QN_E_SHAPE,
                   "the packed weights are too large");
    }
    QN_FAIL_IF(l->index.failed, error, QN_E_MEMORY, "out of memory for the index");
    l->header.file_bytes = at;
    l->header.sum = qn_packed_sum_index(&l->header, l->index.data);
    return QN_OK;
}

static qn_status put(int fd, const char *path, const void *data, uint64_t bytes, qn_error *error)
{
    const char *at = data;
    while (bytes) {
        const size_t most = (size_t)1 << 30;
        const ssize_t n = write(fd, at, bytes < most ? (size_t)bytes : most);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        QN_FAIL_IF(n <= 0, error, QN_E_IO, "cannot write %s: %s", path,
                   n < 0 ? strerror(errno) : "nothing was written");
        at += n;
        bytes -= (uint64_t)n;
    }
    return QN_OK;
}

static qn_status put_all(const layout *l, const char *path, const qn_packed_blob *blobs, int32_t count, qn_error *error)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    QN_FAIL_IF(fd < 0, error, QN_E_IO, "cannot write %s: %s", path, strerror(errno));
    qn_status status = QN_OK;
    int code; /* reserve the space now, to fail before the work */
    do {
        code = fallocate(fd, 0, 0, (off_t)l->header.file_bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        status = qn_error_set(error, QN_E_IO, "cannot write %llu bytes to %s: %s",
                              (unsigned long long)l->header.file_bytes, path, strerror(code));
    }
    if (status == QN_OK) {
        status = put(fd, path, &l->header, sizeof l->header, error);
    }
    if (status == QN_OK) {
        status = put(fd, path, l->index.data, l->index.length, error);
    }
    if (status == QN_OK) {
        status = put(fd, path, zeros, l->header.data_offset - sizeof l->header - l->index.length, error);
    }
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        status = put(fd, path, blobs[i].data, blobs[i].bytes, error);
        if (status == QN_OK) {
            status = put(fd, path, zeros, qn_align_up((size_t)blobs[i].bytes, QN_ALIGN) - blobs[i].bytes, error);
        }
    }
    if (close(fd) != 0 && status == QN_OK) {
        status = qn_error_set(error, QN_E_IO, "cannot write %s: %s", path, strerror(errno));
    }
    return status;
}

static qn_status write_file(qn_ctx *ctx, const layout *l, const char *path, const qn_packed_blob *blobs, int32_t count,
                            int force, qn_error *error)
{
    qn_commit *commit = NULL;
    qn_status status = qn_commit_begin(ctx, path, 0, force, &commit, error);
    if (status == QN_OK) {
        status = put_all(l, qn_commit_path(commit), blobs, count, error);
    }
    if (status == QN_OK) {
        status = qn_commit_finish(commit, error);
    }
    qn_commit_destroy(commit);
    return status;
}

qn_status qn_packed_write(qn_ctx *ctx, const qn_checkpoint *c, const char *path, const qn_packed_blob *blobs,
                          int32_t count, int force, const qn_exec *exec, uint64_t *file_bytes, qn_error *error)
{
    QN_TRY(check_blobs(ctx, blobs, count, error));
    layout l = {.index = qn_buffer_make(ctx)};
    qn_source_file *files = qn_calloc(ctx, QN_PACKED_MAX_SOURCES, sizeof *files);
    l.sources = qn_calloc(ctx, QN_PACKED_MAX_SOURCES, sizeof *l.sources);
    l.sums = qn_calloc(ctx, (size_t)count + 1, sizeof *l.sums);
    qn_status status = files && l.sources && l.sums
                           ? QN_OK
                           : qn_error_set(error, QN_E_MEMORY, "out of memory for the index of %s", path);
    const int32_t source_count = status == QN_OK ? qn_packed_sources(c, files) : 0;
    for (int32_t i = 0; i < source_count && status == QN_OK; i++) {
        if (qn_file_map_is(files[i].map, path)) {
            status = qn_error_set(error, QN_E_ARGUMENT, "the packed file %s would replace %s, which it is made from",
                                  path, files[i].name);
        }
    }
    if (status == QN_OK) {
        status = lay_out(&l, c, files, source_count, blobs, count, exec, error);
    }
    if (status == QN_OK) {
        status = write_file(ctx, &l, path, blobs, count, force, error);
    }
    *file_bytes = l.header.file_bytes;
    qn_buffer_free(&l.index);
    qn_free(ctx, l.sums);
    qn_free(ctx, l.sources);
    qn_free(ctx, files);
    return status;
}
