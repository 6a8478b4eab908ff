/* What reading (packed.c), writing (packed_write.c) and identity (packed_source.c)
 * of packed files share: the bytes of the container and its checksums. */
#ifndef QN_IO_PACKED_INTERNAL_H
#define QN_IO_PACKED_INTERNAL_H

#include "io/checkpoint_internal.h"
#include "io/packed.h"

#define QN_PACKED_MAGIC UINT64_C(0x44454b4341504e51) /* "QNPACKED" */
#define QN_PACKED_VERSION 1u
#define QN_PACKED_PAGE 4096u
#define QN_PACKED_MAX_NAME 4096u
#define QN_PACKED_MAX_BLOBS 1000000u
#define QN_PACKED_PIECE ((size_t)4 << 20) /* bytes that one checksum of a tree covers */

typedef struct qn_packed_sum {
    uint64_t low, high;
} qn_packed_sum;

typedef struct qn_packed_header {
    uint64_t magic;
    uint32_t version, reserved;
    uint64_t file_bytes, data_offset, index_bytes; /* the index follows the header, blobs begin at data_offset */
    uint32_t sources, blobs;
    qn_packed_sum sum; /* of the header up to here and of the index */
} qn_packed_header;

/* Records of the index, each followed by its name and zeros up to a multiple of 8. */
typedef struct qn_packed_source {
    uint64_t bytes, inode;
    int64_t modified_ns, changed_ns; /* all zero: not to be trusted */
    qn_packed_sum sum;
    uint32_t name_bytes, reserved;
} qn_packed_source;

typedef struct qn_packed_entry {
    uint64_t offset, bytes, fingerprint;
    qn_packed_sum sum;
    uint32_t layout, name_bytes;
} qn_packed_entry;

_Static_assert(sizeof(qn_packed_header) == 64 && sizeof(qn_packed_source) == 56 && sizeof(qn_packed_entry) == 48,
               "records of packed files have no holes");

/* ---- Checksums ---- */

/* Bytes to sum; map: give their memory back when they are read. */
typedef struct qn_packed_range {
    const void *data;
    uint64_t bytes;
    const qn_file_map *map; /* NULL: leave them */
} qn_packed_range;

/* sums[i]: XXH3-128 over the XXH3-128 of the pieces of ranges[i]. QN_E_MEMORY. */
qn_status qn_packed_sum_ranges(const qn_ctx *ctx, const qn_packed_range *ranges, int32_t count, const qn_exec *exec,
                               qn_packed_sum *sums, qn_error *error);

/* Sum of header and index. */
qn_packed_sum qn_packed_sum_index(const qn_packed_header *header, const void *index);

/* ---- Identity ---- */

#define QN_PACKED_MAX_SOURCES (QN_MAX_SHARDS + 3)

/* A file whose bytes decide what the weights are. path NULL: its times are not recorded. */
typedef struct qn_source_file {
    const char *name, *path;
    const qn_file_map *map;
} qn_source_file;

/* The files of a checkpoint; returns how many. files: room for QN_PACKED_MAX_SOURCES. */
int32_t qn_packed_sources(const qn_checkpoint *c, qn_source_file *files);

/* Fill the records of the files but for their names. QN_E_IO: one changed since it was opened. QN_E_MEMORY. */
qn_status qn_packed_identify(const qn_ctx *ctx, const qn_source_file *files, int32_t count, const qn_exec *exec,
                             qn_packed_source *records, qn_error *error);

/* QN_E_PACKED when a file is not the recorded one. */
qn_status qn_packed_compare(const qn_ctx *ctx, const qn_source_file *files, const qn_packed_source *records,
                            int32_t count, int trust_times, const qn_exec *exec, qn_error *error);

#endif
