/* Read-only memory map of a whole file. */
#ifndef QN_BASE_FILE_MAP_H
#define QN_BASE_FILE_MAP_H

#include "base/context.h"
#include "base/error.h"

typedef struct qn_file_map {
    const void *data; /* never NULL once open; a valid pointer for an empty file too */
    size_t size;
    void *mapping; /* what munmap gets; NULL: nothing */
    uint64_t device, inode;
    int64_t modified_ns, changed_ns; /* of the content; of content, name or owner, which no program can set back */
} qn_file_map;

/* Map the plain file at `path` (links are followed). QN_E_IO: it is not there, is no
 * plain file, cannot be read, or changes its size while being opened. */
qn_status qn_file_map_open(const char *path, qn_file_map *out, qn_error *error);

/* QN_E_IO when the file at `path` is not the one that was mapped any more: replaced, resized or rewritten. */
qn_status qn_file_map_check(const qn_file_map *map, const char *path, qn_error *error);

/* Whether `path` leads to the mapped file, whatever its name. */
int qn_file_map_is(const qn_file_map *map, const char *path);

/* Whether [data, data + bytes) lies in the map. */
int qn_file_map_holds(const qn_file_map *map, const void *data, size_t bytes);

/* Give back the memory of [data, data + bytes), a part of the map, and of a little around it. All of it stays
 * readable: a later read brings it in again. */
void qn_file_map_release(const qn_file_map *map, const void *data, size_t bytes);

/* Unmap; fine for a zeroed one. */
void qn_file_map_close(qn_file_map *map);

#endif
