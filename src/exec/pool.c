/* The thread pool and the ways to run a grid of tasks.
 *
 * Owns qn_pool and the choice between the calling thread, a pool and the
 * caller's own threads; every backend runs its grids through qn_parallel_for.
 * Workers spin for a short while between jobs, because a decoding step is a
 * chain of jobs a few microseconds apart, and sleep on a condition variable
 * after that. Indices are handed out in runs from one atomic counter; which
 * thread gets which index never matters to a result.
 *
 * A worker joins a job through its gate and the caller waits only for those that
 * joined: on a busy machine a worker that gets no processor holds up nobody. */
#include <quern/exec.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/context.h"
#include "base/error.h"

#define MAX_THREADS 1024
#define SPINS 4000
#define OPEN (UINT64_C(1) << 31)
#define INSIDE (OPEN - 1)

typedef struct worker {
    qn_pool *pool;
    int32_t thread;
    pthread_t handle;
} worker;

struct qn_pool {
    const qn_ctx *ctx;
    int32_t threads, started; /* started: workers that exist, threads - 1 when complete */
    int spins;                /* 0 when there are more threads than processors */
    worker *workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;

    /* The job: written by the caller while the gate is closed and nobody is inside. */
    qn_task_fn fn;
    void *user;
    int64_t count, run;
    _Atomic int64_t next;
    _Atomic uint64_t gate;    /* number of the job << 32 | OPEN | workers inside */
    _Atomic int32_t sleepers; /* workers about to sleep or asleep */
    _Atomic int caller_sleeps;
    _Atomic int stop;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void take_tasks(qn_pool *pool, int32_t thread)
{
    for (;;) {
        const int64_t first = atomic_fetch_add_explicit(&pool->next, pool->run, memory_order_relaxed);
        if (first >= pool->count) {
            return;
        }
        const int64_t last = pool->count - first < pool->run ? pool->count : first + pool->run;
        for (int64_t i = first; i < last; i++) {
            pool->fn(pool->user, i, thread);
        }
    }
}

static uint32_t job_number(uint64_t gate)
{
    return (uint32_t)(gate >> 32);
}

/* Wait until there is a job after number seen; returns its number, or seen when the pool stops. */
static uint32_t wait_for_job(qn_pool *pool, uint32_t seen)
{
    for (int i = 0; i < pool->spins; i++) {
        const uint32_t number = job_number(atomic_load_explicit(&pool->gate, memory_order_acquire));
        if (number != seen) {
            return number;
        }
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
            return seen;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    /* Raised before the gate is looked at, as the caller opens the gate before it
     * looks at sleepers: one of the two sees the other. */
    atomic_fetch_add(&pool->sleepers, 1);
    uint32_t number;
    while ((number = job_number(atomic_load(&pool->gate))) == seen && !atomic_load(&pool->stop)) {
        pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return number;
}

/* Step inside the open gate of that job; 0 when it is closed or another job's. */
static int join_job(qn_pool *pool, uint32_t number)
{
    uint64_t gate = atomic_load(&pool->gate);
    while (job_number(gate) == number && (gate & OPEN)) {
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) {
            return 1;
        }
    }
    return 0;
}

static void *work(void *argument)
{
    worker *const self = argument;
    qn_pool *const pool = self->pool;
    uint32_t seen = 0;
    for (;;) {
        const uint32_t number = wait_for_job(pool, seen);
        if (number == seen) {
            return NULL;
        }
        seen = number;
        if (join_job(pool, number)) {
            take_tasks(pool, self->thread);
            const uint64_t before = atomic_fetch_sub(&pool->gate, 1);
            if ((before & INSIDE) == 1 && atomic_load(&pool->caller_sleeps)) {
                pthread_mutex_lock(&pool->mutex);
                pthread_cond_signal(&pool->done);
                pthread_mutex_unlock(&pool->mutex);
            }
        }
    }
}

static void pool_run(qn_pool *pool, int64_t count, qn_task_fn fn, void *user)
{
    pool->fn = fn;
    pool->user = user;
    pool->count = count;
    pool->run = count / ((int64_t)pool->threads * 16);
    if (pool->run < 1) {
        pool->run = 1;
    }
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    /* The number wraps after 2^32 jobs; workers only compare it with the last one they saw. */
    const uint32_t number = job_number(atomic_load_explicit(&pool->gate, memory_order_relaxed)) + 1;
    atomic_store(&pool->gate, (uint64_t)number << 32 | OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    take_tasks(pool, 0);
    atomic_fetch_and(&pool->gate, ~OPEN);
    for (int i = 0; i < pool->spins; i++) {
        if ((atomic_load_explicit(&pool->gate, memory_order_acquire) & INSIDE) == 0) {
            return;
        }
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, 1);
    while ((atomic_load(&pool->gate) & INSIDE) != 0) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static int32_t processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
        return CPU_COUNT(&set);
    }
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n <= MAX_THREADS ? (int32_t)n : 1;
}

qn_status qn_pool_create(qn_ctx *ctx, int32_t threads, qn_pool **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_pool_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx, error, QN_E_ARGUMENT, "qn_pool_create: ctx is NULL");
    QN_FAIL_IF(threads < 0 || threads > MAX_THREADS, error, QN_E_ARGUMENT, "threads is %d, expected 0 to %d", threads,
               MAX_THREADS);
    const int32_t available = processors();
    if (threads == 0) {
        threads = available < MAX_THREADS ? available : MAX_THREADS;
    }
    qn_pool *pool = qn_calloc(ctx, 1, sizeof *pool);
    QN_FAIL_IF(!pool, error, QN_E_MEMORY, "out of memory for a thread pool");
    pool->ctx = ctx;
    pool->threads = threads;
    pool->spins = threads <= available ? SPINS : 0;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = qn_calloc(ctx, (size_t)threads, sizeof *pool->workers);
    if (!pool->workers) {
        qn_pool_destroy(pool);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for %d threads", threads);
    }
    for (int32_t i = 0; i < threads - 1; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){.pool = pool, .thread = i + 1};
        if (pthread_create(&w->handle, NULL, work, w) != 0) {
            qn_pool_destroy(pool);
            QN_FAIL(error, QN_E_MEMORY, "thread %d of %d could not be started", i + 2, threads);
        }
        pool->started++;
    }
    *out = pool;
    return QN_OK;
}

int32_t qn_pool_threads(const qn_pool *pool)
{
    return pool ? pool->threads : 1;
}

void qn_pool_destroy(qn_pool *pool)
{
    if (!pool) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t i = 0; i < pool->started; i++) {
        pthread_join(pool->workers[i].handle, NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    const qn_ctx *ctx = pool->ctx;
    qn_free(ctx, pool->workers);
    qn_free(ctx, pool);
}

void qn_parallel_for(const qn_exec *exec, int64_t count, qn_task_fn fn, void *user)
{
    if (count <= 0) {
        return;
    }
    if (exec && count > 1) {
        if (exec->pool && exec->pool->threads > 1) {
            pool_run(exec->pool, count, fn, user);
            return;
        }
        if (!exec->pool && exec->parallel_for) {
            exec->parallel_for(exec->parallel_user, count, fn, user);
            return;
        }
    }
    for (int64_t i = 0; i < count; i++) {
        fn(user, i, 0);
    }
}

int32_t qn_exec_threads(const qn_exec *exec)
{
    if (!exec) {
        return 1;
    }
    if (exec->pool) {
        return exec->pool->threads;
    }
    return exec->parallel_for && exec->threads > 0 ? exec->threads : 1;
}
