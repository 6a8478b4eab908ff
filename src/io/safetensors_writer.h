/* Streaming safetensors writer: the header is laid out first, tensor data comes
 * in pieces, tensors in any order. Writes exactly the file it is told to; put a
 * qn_commit (base/commit.h) around it for atomic replacement. Used by
 * qn_tensors_write and by the quantiser (one writer a shard). */
#ifndef QN_IO_SAFETENSORS_WRITER_H
#define QN_IO_SAFETENSORS_WRITER_H

#include <quern/view.h>

#include "base/context.h"
#include "base/error.h"

typedef struct qn_safetensors_item {
    const char *name;
    qn_shape shape;
} qn_safetensors_item;

typedef struct qn_safetensors_writer qn_safetensors_writer;

/* Create or truncate `path` and reserve the space of header and data. Items and
 * strings are copied. metadata: 2*metadata_count strings key, value, ... for
 * __metadata__; NULL with 0. checksums 1: also store the XXH3-128 of each tensor
 * as metadata "quern.xxh3.<tensor>" (32 hex digits), which qn_checkpoint_verify compares.
 * Data is laid out by descending element size, then by name, as the reference writer does.
 * QN_E_ARGUMENT: empty, duplicate, too long or non-UTF-8 name. QN_E_FORMAT: a
 * format that safetensors has no name for. QN_E_SHAPE. QN_E_IO (disk full: says so), QN_E_MEMORY. */
qn_status qn_safetensors_writer_create(qn_ctx *ctx, const char *path, const qn_safetensors_item *items, int32_t count,
                                       const char *const *metadata, int32_t metadata_count, int checksums,
                                       qn_safetensors_writer **out, qn_error *error);

/* Append bytes to the data of items[item]. QN_E_ARGUMENT: more than its size. QN_E_IO. */
qn_status qn_safetensors_writer_put(qn_safetensors_writer *writer, int32_t item, const void *data, size_t bytes,
                                    qn_error *error);

/* Check that every tensor is complete (QN_E_INTERNAL otherwise), write the header, flush to the disk. QN_E_IO. */
qn_status qn_safetensors_writer_finish(qn_safetensors_writer *writer, qn_error *error);

/* Bytes of the whole file. */
uint64_t qn_safetensors_writer_bytes(const qn_safetensors_writer *writer);

/* Close and free; removes the file when finish did not succeed before. NULL is fine. */
void qn_safetensors_writer_destroy(qn_safetensors_writer *writer);

#endif
