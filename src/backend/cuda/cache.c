/* Cubins on disk, shipped or cached: ROOT/COMPILER/ENTRY/ with source.cu,
 * kernel.cubin, log.txt and key.txt, made under a temporary name and renamed.
 * key.txt names the entry and holds the cubin's size and checksum; an entry
 * that does not agree with it is no entry. A cache that cannot be used costs one
 * line in the log and nothing else. */
#include "backend/cuda/cuda.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/commit.h"
#include "base/file_map.h"

static char *path_of(const qn_cuda *cuda, const char *a, const char *b, const char *c, const char *d)
{
    qn_buffer text = qn_buffer_make(cuda->ctx);
    qn_buffer_print(&text, "%s/%s%s%s%s%s", a, b, c ? "/" : "", c ? c : "", d ? "/" : "", d ? d : "");
    if (text.failed) {
        qn_buffer_free(&text);
        return NULL;
    }
    return text.data;
}

/* What key.txt says of an entry. */
static void key_text(const qn_cuda_key *key, const char *cubin, size_t bytes, char text[256])
{
    const XXH128_hash_t sum = XXH3_128bits(cubin, bytes);
    snprintf(text, 256, "entry %s\ncubin %zu %016llx%016llx\n", key->entry, bytes, (unsigned long long)sum.high64,
             (unsigned long long)sum.low64);
}

/* ---- finding ---- */

int qn_cuda_read_file(const qn_cuda *cuda, const char *path, char **data, size_t *bytes)
{
    qn_file_map map;
    if (!path || qn_file_map_open(path, &map, NULL) != QN_OK) {
        return 0;
    }
    *data = qn_alloc(cuda->ctx, map.size + 1);
    if (*data) {
        memcpy(*data, map.data, map.size);
        (*data)[map.size] = 0;
        *bytes = map.size;
    }
    qn_file_map_close(&map);
    return *data != NULL;
}

static int read_entry(const qn_cuda *cuda, const char *folder, const qn_cuda_key *key, qn_cuda_image *image)
{
    char *key_path = path_of(cuda, folder, "key.txt", NULL, NULL);
    char *cubin_path = path_of(cuda, folder, "kernel.cubin", NULL, NULL);
    char *found = NULL, want[256];
    size_t found_bytes = 0;
    *image = (qn_cuda_image){0};
    const int both = qn_cuda_read_file(cuda, key_path, &found, &found_bytes) &&
                     qn_cuda_read_file(cuda, cubin_path, &image->cubin, &image->cubin_bytes);
    int good = 0;
    if (both) {
        key_text(key, image->cubin, image->cubin_bytes, want);
        good = strcmp(want, found) == 0;
    }
    if (!good) {
        qn_log(cuda->ctx, QN_LOG_WARN, "kernel cache: %s is damaged and will be made again", folder);
        qn_cuda_image_free(cuda, image);
    }
    qn_free(cuda->ctx, found);
    qn_free(cuda->ctx, key_path);
    qn_free(cuda->ctx, cubin_path);
    return good;
}

static int find_in(const qn_cuda *cuda, const char *root, const char *compiler, const qn_cuda_key *key,
                   qn_cuda_image *image)
{
    struct stat info;
    char *folder = path_of(cuda, root, compiler, key->entry, NULL);
    const int found = folder && stat(folder, &info) == 0 && read_entry(cuda, folder, key, image);
    qn_free(cuda->ctx, folder);
    return found;
}

int qn_cuda_cache_find(const qn_cuda *cuda, const char *root, const char *compiler, const qn_cuda_key *key,
                       qn_cuda_image *image)
{
    *image = (qn_cuda_image){0};
    if (compiler) {
        return find_in(cuda, root, compiler, key, image);
    }
    DIR *folders = opendir(root);
    int found = 0;
    for (const struct dirent *e; folders && !found && (e = readdir(folders));) {
        found = e->d_name[0] != '.' && find_in(cuda, root, e->d_name, key, image);
    }
    if (folders) {
        closedir(folders);
    }
    return found;
}

/* ---- storing ---- */

/* mkdir -p; the name is changed and put back while at it. */
static qn_status make_folders(char *path, qn_error *error)
{
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at) {
            continue;
        }
        const char kept = *at;
        *at = 0;
        const int failed = mkdir(path, 0777) != 0 && errno != EEXIST;
        const int why = errno;
        *at = kept;
        QN_FAIL_IF(failed, error, QN_E_IO, "cannot make the folder %s: %s", path, strerror(why));
        if (!kept) {
            return QN_OK;
        }
    }
}

static qn_status write_file(const qn_cuda *cuda, const char *folder, const char *name, const char *data, size_t bytes,
                            qn_error *error)
{
    char *path = path_of(cuda, folder, name, NULL, NULL);
    QN_FAIL_IF(!path, error, QN_E_MEMORY, "out of memory for a file's name");
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    qn_free(cuda->ctx, path);
    QN_FAIL_IF(file < 0, error, QN_E_IO, "cannot create %s: %s", name, strerror(errno));
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = write(file, data + done, bytes - done);
        if (n <= 0 && errno != EINTR) {
            break;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    const int why = errno;
    const int closed = close(file) == 0;
    QN_FAIL_IF(done < bytes || !closed, error, QN_E_IO, "cannot write %s: %s", name, strerror(why));
    return QN_OK;
}

static qn_status write_entry(const qn_cuda *cuda, const char *folder, const qn_cuda_program *program,
                             const qn_cuda_key *key, const qn_cuda_image *image, qn_error *error)
{
    char text[256];
    char *source = qn_cuda_source_text(cuda, program);
    QN_FAIL_IF(!source, error, QN_E_MEMORY, "out of memory for a source");
    const char *const log = image->log ? image->log : "";
    key_text(key, image->cubin, image->cubin_bytes, text);
    qn_status status = write_file(cuda, folder, "source.cu", source, strlen(source), error);
    qn_free(cuda->ctx, source);
    QN_TRY(status);
    QN_TRY(write_file(cuda, folder, "log.txt", log, strlen(log), error));
    QN_TRY(write_file(cuda, folder, "kernel.cubin", image->cubin, image->cubin_bytes, error));
    return write_file(cuda, folder, "key.txt", text, strlen(text), error);
}

static qn_status store(const qn_cuda *cuda, const qn_cuda_program *program, const qn_cuda_key *key,
                       const qn_cuda_image *image, qn_error *error)
{
    char *parent = path_of(cuda, cuda->ctx->cache_dir, cuda->compiler, NULL, NULL);
    char *folder = path_of(cuda, cuda->ctx->cache_dir, cuda->compiler, key->entry, NULL);
    qn_commit *commit = NULL;
    qn_status status = parent && folder ? make_folders(parent, error)
                                        : qn_error_set(error, QN_E_MEMORY, "out of memory for a folder's name");
    if (status == QN_OK) {
        status = qn_commit_begin(cuda->ctx, folder, 1, 1, &commit, error);
    }
    if (status == QN_OK) {
        status = write_entry(cuda, qn_commit_path(commit), program, key, image, error);
    }
    if (status == QN_OK) {
        status = qn_commit_finish(commit, error);
    }
    qn_commit_destroy(commit);
    qn_free(cuda->ctx, folder);
    qn_free(cuda->ctx, parent);
    return status;
}

qn_status qn_cuda_cache_check(const qn_cuda *cuda, qn_error *error)
{
    char *folder = path_of(cuda, cuda->ctx->cache_dir, cuda->compiler, NULL, NULL);
    QN_FAIL_IF(!folder, error, QN_E_MEMORY, "out of memory for a folder's name");
    qn_status status = make_folders(folder, error);
    if (status == QN_OK && access(folder, W_OK | X_OK) != 0) {
        status = qn_error_set(error, QN_E_IO, "cannot write to the folder %s: %s", folder, strerror(errno));
    }
    qn_free(cuda->ctx, folder);
    return status == QN_OK ? QN_OK : qn_error_prefix(error, status, "kernel cache");
}

void qn_cuda_cache_store(qn_cuda *cuda, const qn_cuda_program *program, const qn_cuda_key *key,
                         const qn_cuda_image *image)
{
    qn_error error = {0};
    if (cuda->ctx->cache_dir && !cuda->cache_failed && store(cuda, program, key, image, &error) != QN_OK) {
        cuda->cache_failed = 1;
        qn_log(cuda->ctx, QN_LOG_WARN, "kernel cache: %s is not used: %s", cuda->ctx->cache_dir, error.text);
    }
}
