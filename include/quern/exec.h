/* Where work runs: the calling thread, a pool, the caller's own threads, or a stream.
 *
 * The library owns no hidden threads. Results never depend on which of these
 * is given nor on how many threads there are. */
#ifndef QUERN_EXEC_H
#define QUERN_EXEC_H

#include <quern/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One task: index in [0, count), thread in [0, threads). */
typedef void (*qn_task_fn)(void *user, int64_t index, int32_t thread);

/* Runs fn for every index in [0, count), in any order and on any threads, and
 * returns when all are done. Two tasks with the same thread number never run
 * at the same time. */
typedef void (*qn_parallel_for_fn)(void *parallel_user, int64_t count, qn_task_fn fn, void *task_user);

typedef struct qn_pool qn_pool;

typedef struct qn_exec {
    qn_pool *pool;                   /* a pool of the library's making, or */
    qn_parallel_for_fn parallel_for; /* the caller's own threads */
    void *parallel_user;
    int32_t threads;                 /* with parallel_for: thread numbers it uses */
    void *stream;                    /* CUDA stream for device plans */
} qn_exec;                           /* all zero (or a NULL pointer): the calling thread, default stream */

/* Create a pool of that many threads, the caller's among them; 0: as many as
 * the process may run on. QN_E_ARGUMENT: negative, above 1024, out NULL.
 * QN_E_MEMORY: also when a thread cannot be started. */
QN_API qn_status qn_pool_create(qn_ctx *ctx, int32_t threads, qn_pool **out, qn_error *error);

/* Threads of a pool, the caller's included; 1 for NULL. */
QN_API int32_t qn_pool_threads(const qn_pool *pool);

/* Stop and free; NULL is fine; no work may be running. */
QN_API void qn_pool_destroy(qn_pool *pool);

/* Run tasks on an exec (NULL: calling thread). One caller at a time per pool. */
QN_API void qn_parallel_for(const qn_exec *exec, int64_t count, qn_task_fn fn, void *user);

/* Thread numbers an exec uses: 1 for NULL. */
QN_API int32_t qn_exec_threads(const qn_exec *exec);

#ifdef __cplusplus
}
#endif
#endif
