/* Checksums of packed files, and the identity of what they were made from.
 *
 * A source file is known by its content. Reading it all at each start would
 * cost as much as loading, so its inode, size and both times are recorded too:
 * the time of the last status change cannot be set by programs, so a file with
 * all of them unchanged is unchanged. Any difference (a copy, a checkout, an
 * edit) has the content compared. */
#include "io/packed_internal.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <xxhash.h>

#include "base/checked.h"

/* ---- Checksums ---- */

typedef struct sum_job {
    const qn_packed_range *ranges;
    const int64_t *first; /* [count + 1]: number of each range's first piece */
    int32_t count;
    qn_packed_sum *pieces;
} sum_job;

static qn_packed_sum sum_of(XXH128_hash_t hash)
{
    return (qn_packed_sum){hash.low64, hash.high64};
}

static void sum_piece(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const sum_job *job = user;
    int32_t low = 0, high = job->count - 1; /* the last range whose first piece is at most index */
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (job->first[middle] <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const qn_packed_range *r = &job->ranges[low];
    const uint64_t at = (uint64_t)(index - job->first[low]) * QN_PACKED_PIECE;
    const size_t bytes = r->bytes - at < QN_PACKED_PIECE ? (size_t)(r->bytes - at) : QN_PACKED_PIECE;
    const char *data = (const char *)r->data + at;
    job->pieces[index] = sum_of(XXH3_128bits(data, bytes));
    if (r->map) {
        qn_file_map_release(r->map, data, bytes);
    }
}

qn_status qn_packed_sum_ranges(const qn_ctx *ctx, const qn_packed_range *ranges, int32_t count, const qn_exec *exec,
                               qn_packed_sum *sums, qn_error *error)
{
    int64_t *first = qn_calloc(ctx, (size_t)count + 1, sizeof *first);
    QN_FAIL_IF(!first, error, QN_E_MEMORY, "out of memory for checksums");
    for (int32_t i = 0; i < count; i++) {
        const uint64_t pieces = ranges[i].bytes / QN_PACKED_PIECE + (ranges[i].bytes % QN_PACKED_PIECE != 0);
        first[i + 1] = first[i] + (int64_t)pieces;
    }
    sum_job job = {.ranges = ranges, .first = first, .count = count};
    job.pieces = qn_calloc(ctx, (size_t)first[count] + 1, sizeof *job.pieces);
    if (!job.pieces) {
        qn_free(ctx, first);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for checksums");
    }
    qn_parallel_for(exec, first[count], sum_piece, &job);
    for (int32_t i = 0; i < count; i++) {
        sums[i] = sum_of(XXH3_128bits(job.pieces + first[i], (size_t)(first[i + 1] - first[i]) * sizeof *job.pieces));
    }
    qn_free(ctx, job.pieces);
    qn_free(ctx, first);
    return QN_OK;
}

qn_packed_sum qn_packed_sum_index(const qn_packed_header *header, const void *index)
{
    const XXH64_hash_t seed = XXH3_64bits(header, offsetof(qn_packed_header, sum));
    return sum_of(XXH3_128bits_withSeed(index, (size_t)header->index_bytes, seed));
}

/* ---- Identity ---- */

int32_t qn_packed_sources(const qn_checkpoint *c, qn_source_file *files)
{
    int32_t count = 0;
    for (int32_t i = 0; i < c->file_count && i < QN_MAX_SHARDS; i++) {
        const char *path = c->files[i].path, *slash = strrchr(path, '/');
        files[count++] = (qn_source_file){slash ? slash + 1 : path, path, &c->files[i].map};
    }
    static const struct {
        int slot;
        const char *name;
    } texts[] = {{QN_TEXT_CONFIG, "config.json"},
                 {QN_TEXT_INDEX, "model.safetensors.index.json"},
                 {QN_TEXT_QUANT, "hf_quant_config.json"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (c->texts[texts[i].slot].data) {
            files[count++] = (qn_source_file){texts[i].name, NULL, &c->texts[texts[i].slot]};
        }
    }
    return count;
}

static int64_t nanoseconds(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

/* Whether a change right now could leave the file's times as they are: clocks of file systems tick coarsely. */
static int too_fresh(int64_t changed_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t tick = changed_ns % 1000000000 ? 50000000 : 2000000000;
    return nanoseconds(&now) - changed_ns < tick;
}

qn_status qn_packed_identify(const qn_ctx *ctx, const qn_source_file *files, int32_t count, const qn_exec *exec,
                             qn_packed_source *records, qn_error *error)
{
    qn_packed_range *ranges = qn_calloc(ctx, (size_t)count + 1, sizeof *ranges);
    qn_packed_sum *sums = qn_calloc(ctx, (size_t)count + 1, sizeof *sums);
    qn_status status = ranges && sums ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for checksums");
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        ranges[i] = (qn_packed_range){files[i].map->data, files[i].map->size, files[i].map};
    }
    if (status == QN_OK) {
        status = qn_packed_sum_ranges(ctx, ranges, count, exec, sums, error);
    }
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        const qn_file_map *map = files[i].map;
        records[i].bytes = map->size;
        records[i].sum = sums[i];
        if (!files[i].path) {
            continue;
        }
        status = qn_file_map_check(map, files[i].path, error);
        if (status == QN_OK && !too_fresh(map->changed_ns)) {
            records[i].inode = map->inode;
            records[i].modified_ns = map->modified_ns;
            records[i].changed_ns = map->changed_ns;
        }
    }
    qn_free(ctx, sums);
    qn_free(ctx, ranges);
    return status;
}

/* Whether the file is the one that was recorded, by all that the file system says of it. */
static int same_times(const qn_file_map *map, const qn_packed_source *record)
{
    return record->changed_ns && map->inode == record->inode && map->modified_ns == record->modified_ns &&
           map->changed_ns == record->changed_ns;
}

static qn_status compare_content(const qn_ctx *ctx, const qn_source_file *files, const qn_packed_source *records,
                                 const int32_t *doubted, int32_t count, const qn_exec *exec, qn_packed_range *ranges,
                                 qn_packed_sum *sums, qn_error *error)
{
    for (int32_t i = 0; i < count; i++) {
        const qn_file_map *map = files[doubted[i]].map;
        ranges[i] = (qn_packed_range){map->data, map->size, map};
    }
    QN_TRY(qn_packed_sum_ranges(ctx, ranges, count, exec, sums, error));
    for (int32_t i = 0; i < count; i++) {
        QN_FAIL_IF(memcmp(&sums[i], &records[doubted[i]].sum, sizeof *sums) != 0, error, QN_E_PACKED,
                   "%s is not what it was made from", files[doubted[i]].name);
    }
    return QN_OK;
}

qn_status qn_packed_compare(const qn_ctx *ctx, const qn_source_file *files, const qn_packed_source *records,
                            int32_t count, int trust_times, const qn_exec *exec, qn_error *error)
{
    int32_t *doubted = qn_calloc(ctx, (size_t)count + 1, sizeof *doubted), doubts = 0;
    qn_packed_range *ranges = qn_calloc(ctx, (size_t)count + 1, sizeof *ranges);
    qn_packed_sum *sums = qn_calloc(ctx, (size_t)count + 1, sizeof *sums);
    qn_status status =
        doubted && ranges && sums ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for checksums");
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        if (files[i].map->size != records[i].bytes) {
            status = qn_error_set(error, QN_E_PACKED, "%s has %zu bytes, it was made from %llu", files[i].name,
                                  files[i].map->size, (unsigned long long)records[i].bytes);
        } else if (!trust_times || !same_times(files[i].map, &records[i])) {
            doubted[doubts++] = i;
        }
    }
    if (status == QN_OK) {
        status = compare_content(ctx, files, records, doubted, doubts, exec, ranges, sums, error);
    }
    qn_free(ctx, sums);
    qn_free(ctx, ranges);
    qn_free(ctx, doubted);
    return status;
}
