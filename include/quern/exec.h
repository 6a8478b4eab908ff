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
    int32_t threads; /* with parallel_for: thread numbers it uses */
    void *stream;    /* CUDA stream for device plans */
    /* Device plans: 1 promises that no work under way in the stream writes the weights and their scales; they may then be
     * read before that work is done. For weights that stay, as a model's do. */
    int32_t constant_weights;
} qn_exec;           /* all zero (or a NULL pointer): the calling thread, default stream */

typedef struct qn_pool_options {
    size_t size;     /* sizeof(qn_pool_options), set by qn_pool_options_init */
    int32_t threads; /* the caller's among them; 0: as many as the process may run on */
    int32_t pin;     /* 1: workers stay on one processor each; 0: the system moves them */
} qn_pool_options;

/* threads 0, pin 1. */
QN_API void qn_pool_options_init(qn_pool_options *options);

/* Create a pool. The process may run on the processors of its affinity mask, and
 * on no more of them than the quota of its control groups grants.
 *
 * pin: when there are at least as many processors in the mask as threads, each
 * worker keeps to one of its own, one of every core first. The thread that calls
 * is the application's and stays as it is; qn_pool_processor(pool, 0) names the
 * processor that was left to it. Turn pinning off where several programs share the
 * processors and none leaves them free, or where the application moves its threads.
 *
 * Workers watch for the next job for 2 ms after the last one, then sleep; with more
 * threads than processors (or quota) they sleep at once.
 *
 * QN_E_ARGUMENT: options.size, threads negative or above 1024, out, ctx or options
 * NULL. QN_E_MEMORY: also when a thread cannot be started. */
QN_API qn_status qn_pool_create_with(qn_ctx *ctx, const qn_pool_options *options, qn_pool **out, qn_error *error);

/* The same with that many threads (0: as many as the process may run on) and the defaults. */
QN_API qn_status qn_pool_create(qn_ctx *ctx, int32_t threads, qn_pool **out, qn_error *error);

/* Threads of a pool, the caller's included; 1 for NULL. */
QN_API int32_t qn_pool_threads(const qn_pool *pool);

/* The processor that thread is pinned to (thread 0, the caller: that is left to it); -1: none. */
QN_API int32_t qn_pool_processor(const qn_pool *pool, int32_t thread);

/* Stop and free; NULL is fine; no work may be running. */
QN_API void qn_pool_destroy(qn_pool *pool);

/* Run tasks on an exec (NULL: calling thread). A pool runs one job at a time: a call
 * from inside a task, or from another thread while the pool is busy, does all of its
 * tasks on the thread that makes it, as thread 0. */
QN_API void qn_parallel_for(const qn_exec *exec, int64_t count, qn_task_fn fn, void *user);

/* Thread numbers an exec uses: 1 for NULL. */
QN_API int32_t qn_exec_threads(const qn_exec *exec);

#ifdef __cplusplus
}
#endif
#endif
