/* Memory maps of input files. A file that shrinks while it is mapped makes
 * later reads fault; the check below catches it before long readings, not during. */
#include "base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* Map the open file. */
static qn_status map_descriptor(int fd, const char *path, qn_file_map *out, qn_error *error)
{
    struct stat before, after;
    QN_FAIL_IF(fstat(fd, &before) != 0, error, QN_E_IO, "cannot look at %s: %s", path, strerror(errno));
    QN_FAIL_IF(!S_ISREG(before.st_mode), error, QN_E_IO, "%s is no plain file", path);
    QN_FAIL_IF(before.st_size < 0 || (uint64_t)before.st_size > SIZE_MAX / 2, error, QN_E_IO,
               "%s is too large to map (%lld bytes)", path, (long long)before.st_size);
    const size_t size = (size_t)before.st_size;
    void *mapping = NULL;
    if (size) {
        mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        QN_FAIL_IF(mapping == MAP_FAILED, error, errno == ENOMEM ? QN_E_MEMORY : QN_E_IO, "cannot map %s: %s", path,
                   strerror(errno));
    }
    if (fstat(fd, &after) != 0 || after.st_size != before.st_size) {
        if (mapping) {
            munmap(mapping, size);
        }
        QN_FAIL(error, QN_E_IO, "%s changes its size while it is read", path);
    }
    *out = (qn_file_map){.data = mapping ? mapping : "",
                         .size = size,
                         .mapping = mapping,
                         .device = (uint64_t)after.st_dev,
                         .inode = (uint64_t)after.st_ino,
                         .modified_ns = nanoseconds(&after.st_mtim),
                         .changed_ns = nanoseconds(&after.st_ctim)};
    return QN_OK;
}

qn_status qn_file_map_open(const char *path, qn_file_map *out, qn_error *error)
{
    *out = (qn_file_map){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    QN_FAIL_IF(fd < 0, error, QN_E_IO, "cannot open %s: %s", path, strerror(errno));
    const qn_status status = map_descriptor(fd, path, out, error);
    close(fd);
    return status;
}

qn_status qn_file_map_check(const qn_file_map *map, const char *path, qn_error *error)
{
    struct stat st;
    QN_FAIL_IF(stat(path, &st) != 0, error, QN_E_IO, "cannot look at %s: %s", path, strerror(errno));
    QN_FAIL_IF((uint64_t)st.st_size != map->size, error, QN_E_IO,
               "%s had %zu bytes when it was opened and has %lld now", path, map->size, (long long)st.st_size);
    QN_FAIL_IF((uint64_t)st.st_dev != map->device || (uint64_t)st.st_ino != map->inode ||
                   nanoseconds(&st.st_mtim) != map->modified_ns,
               error, QN_E_IO, "%s was replaced or written to after it was opened", path);
    return QN_OK;
}

int qn_file_map_is(const qn_file_map *map, const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && (uint64_t)st.st_dev == map->device && (uint64_t)st.st_ino == map->inode;
}

int qn_file_map_holds(const qn_file_map *map, const void *data, size_t bytes)
{
    const uintptr_t first = (uintptr_t)map->data, at = (uintptr_t)data;
    return map->mapping && at >= first && at - first <= map->size && bytes <= map->size - (at - first);
}

/* A fault maps a window of this size around it, so what neighbours' reading brought in goes with it. */
#define FAULT_AROUND ((size_t)65536)

void qn_file_map_release(const qn_file_map *map, const void *data, size_t bytes)
{
    const size_t at = (size_t)((uintptr_t)data - (uintptr_t)map->data);
    const size_t first = at / FAULT_AROUND * FAULT_AROUND;
    const size_t left = map->size - at - bytes, more = FAULT_AROUND - 1 - (at + bytes - 1) % FAULT_AROUND;
    if (map->mapping && bytes) {
        (void)madvise((char *)map->mapping + first, at + bytes + (more < left ? more : left) - first, MADV_DONTNEED);
    }
}

void qn_file_map_close(qn_file_map *map)
{
    if (map->mapping) {
        munmap(map->mapping, map->size);
    }
    *map = (qn_file_map){0};
}
