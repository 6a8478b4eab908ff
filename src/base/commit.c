/* Atomic replacement of files and folders; see commit.h for the rules. All
 * work on the parent goes through one descriptor of it, so a folder that is
 * renamed meanwhile does no harm. */
#include "base/commit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_REMOVE_DEPTH 16
#define MAX_TRIES 64

struct qn_commit {
    const qn_ctx *ctx;
    char *target;         /* path as given, without trailing slashes */
    char *name;           /* its last component */
    char *temporary;      /* path of the temporary */
    char *temporary_name; /* its last component */
    int parent;           /* descriptor of the parent folder */
    int lock;             /* descriptor of the temporary, with the owner's lock */
    int folder, force, made, finished;
};

static int remove_tree(int parent, const char *name, int depth);

/* Remove everything in the folder open as fd (which is closed). Returns 0 or -1 with errno. */
static int empty_folder(int fd, int depth)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    int result = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            remove_tree(dirfd(dir), entry->d_name, depth + 1) != 0) {
            result = -1;
        }
    }
    const int saved = errno;
    closedir(dir);
    errno = saved;
    return result;
}

/* Remove a file or folder; what is not there is fine. Links are removed, never followed. */
static int remove_tree(int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if ((errno != EISDIR && errno != EPERM) || depth > MAX_REMOVE_DEPTH) {
        return -1;
    }
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? 0 : -1;
    }
    if (empty_folder(fd, depth) != 0) {
        return -1;
    }
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

/* Remove a temporary unless a living writer holds its lock. The lock is held
 * while removing, so that a writer that made it just now waits and sees. */
static void remove_unlocked(int parent, const char *name)
{
    const int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        remove_tree(parent, name, 0);
    }
    close(fd);
}

/* ".NAME.tmp.<digits and dots>": a temporary of this target? */
static int is_temporary_of(const char *entry, const char *name)
{
    const size_t length = strlen(name);
    if (entry[0] != '.' || strncmp(entry + 1, name, length) != 0 || strncmp(entry + 1 + length, ".tmp.", 5) != 0) {
        return 0;
    }
    const char *rest = entry + 1 + length + 5;
    return *rest && strspn(rest, "0123456789.") == strlen(rest);
}

/* Remove leftovers of killed writers of the same target. Best effort: what
 * cannot be removed only takes space. */
static void remove_stale(int parent, const char *name)
{
    const int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (is_temporary_of(entry->d_name, name)) {
            remove_unlocked(parent, entry->d_name);
        }
    }
    closedir(dir);
}

/* Make the temporary and lock it. Returns 0, or 1 to try another name (errno EEXIST), or -1 with errno. */
static int make_temporary(qn_commit *commit)
{
    if (commit->folder) {
        if (mkdirat(commit->parent, commit->temporary_name, 0777) != 0) {
            return errno == EEXIST ? 1 : -1;
        }
        commit->made = 1;
        commit->lock = openat(commit->parent, commit->temporary_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } else {
        commit->lock =
            openat(commit->parent, commit->temporary_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (commit->lock < 0 && errno == EEXIST) {
            return 1;
        }
        commit->made = commit->lock >= 0;
    }
    if (commit->lock < 0) {
        return -1;
    }
    (void)flock(commit->lock, LOCK_EX); /* a file system without locks: leftovers just stay */
    struct stat mine, there;
    if (fstat(commit->lock, &mine) == 0 &&
        fstatat(commit->parent, commit->temporary_name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
        return 0;
    }
    close(commit->lock); /* another writer took it for a leftover before the lock was there */
    commit->lock = -1;
    commit->made = 0;
    return 1;
}

/* May the existing target be replaced? A file's links were followed: one that is left leads nowhere, or to what
 * has no name, as /dev/stdout to a pipe. */
static qn_status check_target(const qn_commit *commit, qn_error *error)
{
    struct stat st;
    if (fstatat(commit->parent, commit->name, &st, commit->folder ? AT_SYMLINK_NOFOLLOW : 0) != 0) {
        QN_FAIL_IF(errno != ENOENT, error, QN_E_IO, "cannot look at %s: %s", commit->target, strerror(errno));
        return QN_OK;
    }
    QN_FAIL_IF(!commit->force, error, QN_E_EXISTS, "%s exists already and overwriting was not asked for",
               commit->target);
    if (!commit->folder) {
        QN_FAIL_IF(!S_ISREG(st.st_mode), error, QN_E_EXISTS, "%s exists and is no plain file, so it is not replaced",
                   commit->target);
        return QN_OK;
    }
    QN_FAIL_IF(!S_ISDIR(st.st_mode), error, QN_E_EXISTS, "%s exists and is no folder, so it is not replaced",
               commit->target);
    const int fd = openat(commit->parent, commit->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        const int saved = errno;
        if (fd >= 0) {
            close(fd);
        }
        QN_FAIL(error, QN_E_IO, "cannot list %s: %s", commit->target, strerror(saved));
    }
    qn_status status = QN_OK;
    const struct dirent *entry;
    while (status == QN_OK && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
            status = qn_error_set(error, QN_E_EXISTS, "%s exists and holds the folder %s, so it is not replaced",
                                  commit->target, entry->d_name);
        }
    }
    closedir(dir);
    return status;
}

/* Split the path into parent and name, open the parent. */
static qn_status open_parent(qn_commit *commit, const char *path, qn_error *error)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    commit->target = qn_strndup(commit->ctx, path, length);
    QN_FAIL_IF(!commit->target, error, QN_E_MEMORY, "out of memory for the name of an output");
    const char *slash = strrchr(commit->target, '/');
    const char *name = slash ? slash + 1 : commit->target;
    QN_FAIL_IF(!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0, error, QN_E_ARGUMENT,
               "\"%s\" does not end in the name of a file or folder to write", path);
    const size_t parent_length = slash ? (size_t)(slash - commit->target) : 0;
    char *parent =
        slash ? qn_strndup(commit->ctx, parent_length ? commit->target : "/", parent_length ? parent_length : 1)
              : qn_strdup(commit->ctx, ".");
    commit->name = qn_strdup(commit->ctx, name);
    commit->temporary = qn_alloc(commit->ctx, length + 64);
    qn_status status = QN_OK;
    if (!parent || !commit->name || !commit->temporary) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for the name of an output");
    } else {
        commit->parent = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (commit->parent < 0) {
            status =
                qn_error_set(error, QN_E_IO, "cannot open the folder %s to write into: %s", parent, strerror(errno));
        }
    }
    qn_free(commit->ctx, parent);
    return status;
}

/* What a link to a file leads to; NULL: `path` is no link, or its end has no name. Freed by free(). */
static char *end_of_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;
}

qn_status qn_commit_begin(const qn_ctx *ctx, const char *path, int folder, int force, qn_commit **out, qn_error *error)
{
    QN_FAIL_IF(!out || !path, error, QN_E_ARGUMENT, "qn_commit_begin: path or out is NULL");
    *out = NULL;
    qn_commit *commit = qn_calloc(ctx, 1, sizeof *commit);
    QN_FAIL_IF(!commit, error, QN_E_MEMORY, "out of memory for an output");
    commit->ctx = ctx;
    commit->parent = commit->lock = -1;
    commit->folder = folder != 0;
    commit->force = force != 0;
    char *linked = folder ? NULL : end_of_link(path);
    qn_status status = open_parent(commit, linked ? linked : path, error);
    free(linked);
    if (status == QN_OK) {
        status = check_target(commit, error);
    }
    if (status == QN_OK) {
        remove_stale(commit->parent, commit->name);
        const size_t prefix = strlen(commit->target) - strlen(commit->name);
        memcpy(commit->temporary, commit->target, prefix);
        commit->temporary_name = commit->temporary + prefix;
        int made = 1;
        for (int i = 0; made == 1 && i < MAX_TRIES; i++) {
            char again[16] = "";
            if (i) {
                snprintf(again, sizeof again, ".%d", i);
            }
            snprintf(commit->temporary_name, strlen(commit->name) + 64, ".%s.tmp.%ld%s", commit->name, (long)getpid(),
                     again);
            made = make_temporary(commit);
        }
        if (made != 0) {
            status = qn_error_set(error, QN_E_IO, "cannot make %s: %s", commit->temporary, strerror(errno));
        }
    }
    if (status != QN_OK) {
        qn_commit_destroy(commit);
        return status;
    }
    *out = commit;
    return QN_OK;
}

const char *qn_commit_path(const qn_commit *commit)
{
    return commit->temporary;
}

/* Flush the plain files of the temporary folder. */
static qn_status sync_files(const qn_commit *commit, qn_error *error)
{
    const int fd = openat(commit->lock, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        const int saved = errno;
        if (fd >= 0) {
            close(fd);
        }
        QN_FAIL(error, QN_E_IO, "cannot list %s: %s", commit->temporary, strerror(saved));
    }
    qn_status status = QN_OK;
    const struct dirent *entry;
    while (status == QN_OK && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        const int file = openat(fd, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file < 0 || fsync(file) != 0) {
            status = qn_error_set(error, QN_E_IO, "cannot flush %s/%s to the disk: %s", commit->temporary,
                                  entry->d_name, strerror(errno));
        }
        if (file >= 0) {
            close(file);
        }
    }
    closedir(dir);
    return status;
}

/* Put the temporary in the target's place. Returns 0 or -1 with errno. */
static int put_in_place(const qn_commit *commit)
{
    const int p = commit->parent;
    const char *from = commit->temporary_name, *to = commit->name;
    if (!commit->force) {
        if (renameat2(p, from, p, to, RENAME_NOREPLACE) == 0) {
            return 0;
        }
        if (errno != ENOSYS && errno != EINVAL) {
            return -1;
        }
        if (faccessat(p, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0) { /* a file system without NOREPLACE */
            errno = EEXIST;
            return -1;
        }
        return renameat(p, from, p, to);
    }
    if (renameat(p, from, p, to) == 0) { /* no target, a file, or an empty folder */
        return 0;
    }
    if (!commit->folder || (errno != ENOTEMPTY && errno != EEXIST)) {
        return -1;
    }
    if (renameat2(p, from, p, to, RENAME_EXCHANGE) == 0) {
        (void)remove_tree(p, from, 0); /* the old one; a rest is a leftover for the next writer */
        return 0;
    }
    if (errno != ENOSYS && errno != EINVAL) {
        return -1;
    }
    /* No exchange on this file system: the target is absent for a moment. */
    char aside[300];
    const int n = snprintf(aside, sizeof aside, "%s.0", from);
    if (n < 0 || (size_t)n >= sizeof aside || renameat(p, to, p, aside) != 0) {
        return -1;
    }
    if (renameat(p, from, p, to) != 0) {
        const int saved = errno;
        (void)renameat(p, aside, p, to);
        errno = saved;
        return -1;
    }
    (void)remove_tree(p, aside, 0);
    return 0;
}

qn_status qn_commit_finish(qn_commit *commit, qn_error *error)
{
    QN_FAIL_IF(commit->finished, error, QN_E_ARGUMENT, "qn_commit_finish: %s is finished already", commit->target);
    if (commit->folder) {
        QN_TRY(sync_files(commit, error));
    }
    QN_FAIL_IF(fsync(commit->lock) != 0, error, QN_E_IO, "cannot flush %s to the disk: %s", commit->temporary,
               strerror(errno));
    QN_TRY(check_target(commit, error));
    if (put_in_place(commit) != 0) {
        QN_FAIL_IF(errno == EEXIST || errno == ENOTEMPTY, error, QN_E_EXISTS,
                   "%s appeared while its replacement was written, and overwriting was not asked for", commit->target);
        QN_FAIL(error, QN_E_IO, "cannot rename %s to %s: %s", commit->temporary, commit->target, strerror(errno));
    }
    commit->finished = 1;
    QN_FAIL_IF(fsync(commit->parent) != 0 && errno != EINVAL && errno != EROFS, error, QN_E_IO,
               "cannot flush the folder of %s to the disk: %s", commit->target, strerror(errno));
    return QN_OK;
}

void qn_commit_destroy(qn_commit *commit)
{
    if (!commit) {
        return;
    }
    if (commit->made && !commit->finished) {
        (void)remove_tree(commit->parent, commit->temporary_name, 0);
    }
    if (commit->lock >= 0) {
        close(commit->lock);
    }
    if (commit->parent >= 0) {
        close(commit->parent);
    }
    qn_free(commit->ctx, commit->target);
    qn_free(commit->ctx, commit->name);
    qn_free(commit->ctx, commit->temporary);
    qn_free(commit->ctx, commit);
}
