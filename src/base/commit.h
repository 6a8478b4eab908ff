/* Atomic outputs: a file or folder is written under a temporary name next to
 * its place and renamed when it is whole. At whatever point the process dies,
 * the target is absent, the old one, or complete.
 *
 *     QN_TRY(qn_commit_begin(ctx, "out/model", 1, force, &commit, error));
 *     ... write below qn_commit_path(commit) ...
 *     status = qn_commit_finish(commit, error);
 *     qn_commit_destroy(commit);   // removes the temporary when finish was not reached or failed
 *
 * The temporary is called .NAME.tmp.PID. Its owner holds a lock on it, so the
 * next writer of the same target recognises leftovers of killed ones, whoever
 * has their process number now, and removes them. */
#ifndef QN_BASE_COMMIT_H
#define QN_BASE_COMMIT_H

#include "base/context.h"
#include "base/error.h"

typedef struct qn_commit qn_commit;

/* Start an output at `path`. folder 1: make an empty temporary folder; 0: an
 * empty temporary file. Its parent folder must exist. force 1: an existing
 * target is replaced by finish; a folder only when it holds nothing but plain
 * files (no folders), so that a mistyped path costs little. Where a file's path is
 * a link, what it leads to is the target: links stay.
 * QN_E_EXISTS: the target exists and force is 0, or may not be replaced.
 * QN_E_ARGUMENT: not a usable name ("", "/", ends in "." or ".."). QN_E_IO, QN_E_MEMORY. */
qn_status qn_commit_begin(const qn_ctx *ctx, const char *path, int folder, int force, qn_commit **out, qn_error *error);

/* The temporary file or folder to write to; valid until destroy. */
const char *qn_commit_path(const qn_commit *commit);

/* Flush file, or all files of the folder and the folder, to the disk, put it in
 * the target's place in one step, flush the parent folder. QN_E_EXISTS: the
 * target appeared meanwhile and force is 0. QN_E_IO. */
qn_status qn_commit_finish(qn_commit *commit, qn_error *error);

/* Free; when finish did not succeed before, remove the temporary. NULL is fine. */
void qn_commit_destroy(qn_commit *commit);

#endif
