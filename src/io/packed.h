/* The packed file: a model's weights as its kernels want them, written once so
 * that the next start maps them instead of packing (docs/formats/packed.md).
 *
 * A container of named blobs that does not care what is in a blob: it keeps the
 * layout id and fingerprint of each for the model to judge, a checksum over
 * every byte, and the identity of the files that the weights were read from.
 * src/model/pack.c reads and writes it, verify.c checks it. */
#ifndef QN_IO_PACKED_H
#define QN_IO_PACKED_H

#include <quern/exec.h>

#include "io/checkpoint.h"

typedef struct qn_packed qn_packed;

typedef struct qn_packed_blob {
    const char *name; /* of the weight */
    uint32_t layout;
    uint64_t fingerprint;
    const void *data; /* 64-byte aligned */
    uint64_t bytes;
} qn_packed_blob;

/* Where the packed file of a checkpoint lies: FILE.packed beside a file, quern.packed in a folder. */
const char *qn_packed_path(const qn_checkpoint *checkpoint);

/* Map the packed file at `path` and check everything but the blobs' content. *out is NULL with QN_OK when there is no
 * such file. trust_times 1: a source file whose inode, size and times are the recorded ones is taken as unchanged; its
 * content is read and compared otherwise, or always with 0.
 * QN_E_PACKED: of another version or made from other files. QN_E_FILE: malformed. QN_E_IO, QN_E_MEMORY. */
qn_status qn_packed_open(const qn_checkpoint *checkpoint, const char *path, int trust_times, const qn_exec *exec,
                         qn_packed **out, qn_error *error);

/* Read all blobs and compare their checksums. QN_E_FILE names the first that is wrong. QN_E_MEMORY. */
qn_status qn_packed_check(const qn_packed *packed, const qn_exec *exec, qn_error *error);

int32_t qn_packed_count(const qn_packed *packed);
uint64_t qn_packed_bytes(const qn_packed *packed); /* of the file */

/* Blob of that name; NULL when there is none. */
const qn_packed_blob *qn_packed_find(const qn_packed *packed, const char *name);

void qn_packed_close(qn_packed *packed); /* NULL is fine */

/* Write the packed file of a checkpoint, atomically. Names must differ. force 1: replace a file that is there.
 * QN_E_EXISTS. QN_E_IO: also when a source file changed since it was opened. QN_E_ARGUMENT: `path` is a source
 * file. QN_E_MEMORY. */
qn_status qn_packed_write(qn_ctx *ctx, const qn_checkpoint *checkpoint, const char *path, const qn_packed_blob *blobs,
                          int32_t count, int force, const qn_exec *exec, uint64_t *file_bytes, qn_error *error);

#endif
