/* The thread pool and the ways to run a grid of tasks.
 *
 * Owns qn_pool and the choice between the calling thread, a pool and the
 * caller's own threads; every backend runs its grids through qn_parallel_for.
 * A decoding step is a chain of hundreds of jobs of a few microseconds, so what
 * counts is how soon a job starts and ends.
 *
 * A thread has a seat: one cache line with its part of the job, written by the
 * caller and watched by the worker. A job is cut into units (single tasks, or
 * runs of them when there are many), and each seat gets a neighbouring range of
 * them, so that a thread streams through memory; a thread that is done takes
 * units from the other ends of the others' ranges. A range carries the number of
 * its job and is changed by compare-and-swap only, so a thread that comes late
 * finds nothing to take and can harm nobody: the caller waits for the units, not
 * for the workers, and on a busy machine a worker that gets no processor holds
 * up nobody. Which thread gets which unit never matters to a result.
 *
 * Workers watch their seats for a while after the last job, then sleep on a
 * condition variable. While a thread waits, for a job or for the end of one, it
 * fetches what it will read next, where the caller has said what that is: between
 * the products of a decoding step memory would rest otherwise. */
#include "exec/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/context.h"
#include "base/error.h"
#include "base/floats.h"
#include "exec/processors.h"

#define MAX_THREADS 1024
#define SPIN_NS 2000000u                /* from the last job to sleep */
#define SPINS 64                        /* looks between two looks at the clock */
#define UNITS_A_THREAD 64               /* most units of a job, a thread */
#define MAX_UNITS 65535                 /* a range has 16 bits an end */
#define FIRST_NUMBER (UINT32_MAX - 500) /* numbers of jobs wrap; early, so that this is no rare event */
#define LINE 64
#define AHEAD_BYTES 262144 /* fetched ahead by a thread: a part of its second cache */
#define AHEAD_LINES 2      /* between two looks */

typedef struct seat {
    _Alignas(LINE) _Atomic uint64_t part; /* number of the job << 32 | next unit << 16 | end */
    _Atomic uint64_t finished;            /* number of the job << 32 | units this thread has done of it */
    qn_task_fn fn;                        /* the job; to be read by who has taken a unit of it */
    void *user;
    int64_t count, run; /* tasks; tasks a unit */
    _Atomic int32_t asleep;
} seat;

typedef struct worker {
    qn_pool *pool;
    int32_t thread, processor; /* -1: any */
    pthread_t handle;
    pthread_cond_t wake;
} worker;

struct qn_pool {
    /* Read by all, written when made. */
    const qn_ctx *ctx;
    int32_t threads, started; /* started: workers that exist, threads - 1 when complete */
    uint64_t spin_ns;         /* 0: sleep at once, for more threads than there are processors for */
    seat *seats;              /* [threads] */
    worker *workers;          /* [threads], the first is the caller */
    pthread_mutex_t mutex;
    pthread_cond_t done;
    _Atomic int stop, caller_sleeps;
    /* The hint: written by the caller at times, read by all. */
    _Alignas(LINE) _Atomic uint32_t ahead_number;
    _Atomic uintptr_t ahead_data;
    _Atomic size_t ahead_bytes;
    /* The caller's. */
    _Alignas(LINE) _Atomic uint32_t number; /* of the last job */
    _Atomic int busy;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t number_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* ---- units ---- */

/* Take a unit of that job from a seat, from the front of one's own and from the end of another's; -1: none left. */
static int32_t take_unit(seat *from, uint32_t number, int own)
{
    uint64_t part = atomic_load_explicit(&from->part, memory_order_acquire);
    for (;;) {
        const int32_t next = (int32_t)(part >> 16 & 0xFFFF), end = (int32_t)(part & 0xFFFF);
        if (number_of(part) != number || next >= end) {
            return -1;
        }
        const uint64_t rest = own ? part + (1u << 16) : part - 1;
        if (atomic_compare_exchange_weak_explicit(&from->part, &part, rest, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            return own ? next : end - 1;
        }
    }
}

/* Do units of that job until there are none to take; returns how many. */
static uint32_t do_units(qn_pool *pool, int32_t thread, uint32_t number)
{
    const seat *const self = &pool->seats[thread];
    uint32_t units = 0;
    for (int32_t i = 0; i < pool->threads; i++) {
        const int32_t from = thread + i < pool->threads ? thread + i : thread + i - pool->threads;
        for (int32_t unit; (unit = take_unit(&pool->seats[from], number, i == 0)) >= 0; units++) {
            const int64_t first = unit * self->run;
            const int64_t last = self->count - first < self->run ? self->count : first + self->run;
            for (int64_t task = first; task < last; task++) {
                self->fn(self->user, task, thread);
            }
        }
    }
    return units;
}

/* ---- reading ahead ---- */

/* What a waiting thread has still to fetch. */
typedef struct reading {
    uint32_t number; /* of the hint */
    const char *at, *end;
} reading;

void qn_exec_ahead(const qn_exec *exec, const void *data, size_t bytes)
{
    qn_pool *const pool = exec ? exec->pool : NULL;
    if (!pool || pool->threads == 1) {
        return;
    }
    /* who reads while this is written fetches too much or the wrong bytes once */
    atomic_store_explicit(&pool->ahead_data, (uintptr_t)data, memory_order_relaxed);
    atomic_store_explicit(&pool->ahead_bytes, data ? bytes : 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->ahead_number, 1, memory_order_release);
}

/* A few lines of a thread's share; 0 when there is nothing to fetch. */
static int read_ahead(qn_pool *pool, int32_t thread, reading *r)
{
    const uint32_t number = atomic_load_explicit(&pool->ahead_number, memory_order_acquire);
    if (r->number != number) {
        const size_t bytes = atomic_load_explicit(&pool->ahead_bytes, memory_order_relaxed);
        const size_t share = bytes / (size_t)pool->threads;
        r->number = number;
        r->at = (const char *)atomic_load_explicit(&pool->ahead_data, memory_order_relaxed) + share * (size_t)thread;
        r->end = r->at + (share < AHEAD_BYTES ? share : AHEAD_BYTES);
    }
    if (r->at >= r->end) {
        return 0;
    }
    for (int i = 0; i < AHEAD_LINES; i++, r->at += LINE) {
        __builtin_prefetch(r->at, 0, 2);
    }
    return 1;
}

/* ---- workers ---- */

/* Sleep until the seat has a job after number seen, or the pool stops. */
static void sleep_for_job(worker *self, seat *mine, uint32_t seen)
{
    qn_pool *const pool = self->pool;
    pthread_mutex_lock(&pool->mutex);
    /* Both sides change pool->number between what they tell and what they look at: the worker
     * tells that it is asleep and looks at its seat, the caller writes the seats and looks who
     * is asleep. One of the two comes second there and sees what the other told. */
    atomic_store_explicit(&mine->asleep, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->number, 0, memory_order_acq_rel);
    while (number_of(atomic_load_explicit(&mine->part, memory_order_acquire)) == seen && !atomic_load(&pool->stop)) {
        pthread_cond_wait(&self->wake, &pool->mutex);
    }
    atomic_store_explicit(&mine->asleep, 0, memory_order_relaxed);
    pthread_mutex_unlock(&pool->mutex);
}

/* Wait until the seat has a job after number seen; returns its number, or seen when the pool stops. */
static uint32_t wait_for_job(worker *self, seat *mine, uint32_t seen)
{
    qn_pool *const pool = self->pool;
    reading next = {0};
    uint32_t number, latest = atomic_load_explicit(&pool->number, memory_order_relaxed);
    uint64_t deadline = pool->spin_ns ? qn_clock_ns() + pool->spin_ns : 0;
    while (pool->spin_ns && !atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
        for (int i = 0; i < SPINS; i++) {
            number = number_of(atomic_load_explicit(&mine->part, memory_order_acquire));
            if (number != seen) {
                return number;
            }
            if (!read_ahead(pool, self->thread, &next)) {
                relax();
            }
        }
        if (qn_clock_ns() >= deadline) {
            /* jobs too small for this seat count as well */
            number = atomic_load_explicit(&pool->number, memory_order_relaxed);
            if (number == latest) {
                break;
            }
            latest = number;
            deadline = qn_clock_ns() + pool->spin_ns;
        }
    }
    sleep_for_job(self, mine, seen);
    return number_of(atomic_load_explicit(&mine->part, memory_order_acquire));
}

static void *work(void *argument)
{
    worker *const self = argument;
    qn_pool *const pool = self->pool;
    seat *const mine = &pool->seats[self->thread];
    uint32_t seen = FIRST_NUMBER;
    (void)qn_floats_set(); /* a thread begins with its creator's */
    for (uint32_t number; (number = wait_for_job(self, mine, seen)) != seen;) {
        seen = number;
        const uint32_t units = do_units(pool, self->thread, number);
        if (units == 0) {
            continue;
        }
        /* An exchange, as the caller reads by one before it sleeps: see sleep_for_job. */
        atomic_exchange_explicit(&mine->finished, (uint64_t)number << 32 | units, memory_order_acq_rel);
        if (atomic_load_explicit(&pool->caller_sleeps, memory_order_relaxed)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
    return NULL;
}

/* ---- the caller ---- */

static uint32_t units_finished(qn_pool *pool, uint32_t number, int32_t parts, int going_to_sleep)
{
    uint32_t units = 0;
    for (int32_t t = 1; t < parts; t++) {
        _Atomic uint64_t *const finished = &pool->seats[t].finished;
        const uint64_t word = going_to_sleep ? atomic_fetch_add_explicit(finished, 0, memory_order_acq_rel)
                                             : atomic_load_explicit(finished, memory_order_acquire);
        units += number_of(word) == number ? (uint32_t)word : 0;
    }
    return units;
}

/* Wait until the workers have done that many units. */
static void wait_for_units(qn_pool *pool, uint32_t number, int32_t parts, uint32_t units)
{
    uint64_t deadline = 0;
    reading next = {0};
    do {
        for (int i = 0; i < SPINS; i++) {
            if (units_finished(pool, number, parts, 0) == units) {
                return;
            }
            if (!read_ahead(pool, 0, &next)) {
                relax();
            }
        }
        const uint64_t now = pool->spin_ns ? qn_clock_ns() : 0;
        deadline = deadline ? deadline : now + pool->spin_ns;
        if (now >= deadline) {
            break;
        }
    } while (1);
    pthread_mutex_lock(&pool->mutex);
    atomic_store_explicit(&pool->caller_sleeps, 1, memory_order_relaxed);
    while (units_finished(pool, number, parts, 1) != units) {
        pthread_cond_wait(&pool->done, &pool->mutex);
    }
    atomic_store_explicit(&pool->caller_sleeps, 0, memory_order_relaxed);
    pthread_mutex_unlock(&pool->mutex);
}

/* The number of the next job, never 0. */
static uint32_t next_number(qn_pool *pool)
{
    const uint32_t number = atomic_load_explicit(&pool->number, memory_order_relaxed) + 1;
    if (number != 0) {
        return number;
    }
    /* wrapped: nothing of the last round may be taken for news of the next one */
    for (int32_t t = 0; t < pool->threads; t++) {
        atomic_store_explicit(&pool->seats[t].finished, 0, memory_order_relaxed);
    }
    return 1;
}

static void pool_run(qn_pool *pool, int64_t count, qn_task_fn fn, void *user)
{
    const int64_t most =
        (int64_t)pool->threads * UNITS_A_THREAD < MAX_UNITS ? (int64_t)pool->threads * UNITS_A_THREAD : MAX_UNITS;
    const int64_t run = count / most + (count % most != 0);
    const int64_t units = count / run + (count % run != 0);
    const int32_t parts = units < pool->threads ? (int32_t)units : pool->threads;
    const uint32_t number = next_number(pool);
    for (int32_t t = 0; t < parts; t++) {
        seat *const s = &pool->seats[t];
        s->fn = fn;
        s->user = user;
        s->count = count;
        s->run = run;
        const uint64_t next = (uint64_t)(units * t / parts), end = (uint64_t)(units * (t + 1) / parts);
        atomic_store_explicit(&s->part, (uint64_t)number << 32 | next << 16 | end, memory_order_release);
    }
    atomic_exchange_explicit(&pool->number, number, memory_order_acq_rel);
    for (int32_t t = 1; t < parts; t++) {
        if (atomic_load_explicit(&pool->seats[t].asleep, memory_order_relaxed)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->workers[t].wake);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
    const uint32_t own = do_units(pool, 0, number);
    wait_for_units(pool, number, parts, (uint32_t)units - own);
}

/* A job on the application's own threads. */
typedef struct foreign {
    qn_task_fn fn;
    void *user;
} foreign;

static void foreign_task(void *user, int64_t index, int32_t thread)
{
    const foreign *const job = user;
    const uint32_t floats = qn_floats_set();
    job->fn(job->user, index, thread);
    qn_floats_restore(floats);
}

void qn_parallel_for(const qn_exec *exec, int64_t count, qn_task_fn fn, void *user)
{
    if (count <= 0) {
        return;
    }
    if (exec && count > 1) {
        qn_pool *const pool = exec->pool;
        if (pool && pool->threads > 1 && !atomic_exchange_explicit(&pool->busy, 1, memory_order_acquire)) {
            pool_run(pool, count, fn, user);
            atomic_store_explicit(&pool->busy, 0, memory_order_release);
            return;
        }
        if (!pool && exec->parallel_for) {
            foreign job = {fn, user};
            exec->parallel_for(exec->parallel_user, count, foreign_task, &job);
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

/* ---- making and ending ---- */

void qn_pool_options_init(qn_pool_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->pin = 1;
}

static void pin(worker *w, int32_t processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)processor, &set);
    /* a system that refuses leaves the thread where it is */
    if (pthread_setaffinity_np(w->handle, sizeof set, &set) == 0) {
        w->processor = processor;
    }
}

static qn_status start_workers(qn_pool *pool, const qn_processors *processors, int pinned, qn_error *error)
{
    for (int32_t t = 0; t < pool->threads; t++) {
        atomic_init(&pool->seats[t].part, (uint64_t)FIRST_NUMBER << 32);
        pool->workers[t] = (worker){.pool = pool, .thread = t, .processor = -1};
        pthread_cond_init(&pool->workers[t].wake, NULL);
    }
    if (pinned) {
        pool->workers[0].processor = processors->ids[0];
    }
    for (int32_t t = 1; t < pool->threads; t++) {
        worker *const w = &pool->workers[t];
        QN_FAIL_IF(pthread_create(&w->handle, NULL, work, w) != 0, error, QN_E_MEMORY,
                   "thread %d of %d could not be started", t + 1, pool->threads);
        pool->started++;
        if (pinned) {
            pin(w, processors->ids[t]);
        }
    }
    return QN_OK;
}

qn_status qn_pool_create_with(qn_ctx *ctx, const qn_pool_options *options, qn_pool **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_pool_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx || !options, error, QN_E_ARGUMENT, "qn_pool_create: %s is NULL", !ctx ? "ctx" : "options");
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_pool_create: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_FAIL_IF(options->threads < 0 || options->threads > MAX_THREADS, error, QN_E_ARGUMENT,
               "threads is %d, expected 0 to %d", options->threads, MAX_THREADS);
    qn_processors processors;
    qn_processors_get("", &processors);
    const double quota = qn_processors_quota("");
    const double share = quota > 0 && quota < processors.count ? quota : processors.count;
    int32_t threads = options->threads;
    if (threads == 0) {
        threads = (int32_t)share + (share > (int32_t)share);
    }
    qn_pool *pool = qn_calloc(ctx, 1, sizeof *pool);
    QN_FAIL_IF(!pool, error, QN_E_MEMORY, "out of memory for a thread pool");
    pool->ctx = ctx;
    pool->threads = threads;
    pool->spin_ns = threads <= share ? SPIN_NS : 0;
    atomic_init(&pool->number, FIRST_NUMBER);
    atomic_init(&pool->ahead_number, 1); /* 0: a thread that has not looked */
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->seats = qn_calloc(ctx, (size_t)threads, sizeof *pool->seats);
    pool->workers = pool->seats ? qn_calloc(ctx, (size_t)threads, sizeof *pool->workers) : NULL;
    if (!pool->workers) {
        qn_pool_destroy(pool);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for %d threads", threads);
    }
    const qn_status status =
        start_workers(pool, &processors, options->pin && processors.known && threads <= processors.count, error);
    if (status != QN_OK) {
        qn_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return QN_OK;
}

qn_status qn_pool_create(qn_ctx *ctx, int32_t threads, qn_pool **out, qn_error *error)
{
    qn_pool_options options;
    qn_pool_options_init(&options);
    options.threads = threads;
    return qn_pool_create_with(ctx, &options, out, error);
}

int32_t qn_pool_threads(const qn_pool *pool)
{
    return pool ? pool->threads : 1;
}

int32_t qn_pool_processor(const qn_pool *pool, int32_t thread)
{
    return pool && thread >= 0 && thread < pool->threads ? pool->workers[thread].processor : -1;
}

void qn_pool_destroy(qn_pool *pool)
{
    if (!pool) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, 1);
    for (int32_t t = 1; t <= pool->started; t++) {
        pthread_cond_signal(&pool->workers[t].wake);
    }
    pthread_mutex_unlock(&pool->mutex);
    for (int32_t t = 1; t <= pool->started; t++) {
        pthread_join(pool->workers[t].handle, NULL);
    }
    for (int32_t t = 0; pool->workers && t < pool->threads; t++) {
        pthread_cond_destroy(&pool->workers[t].wake);
    }
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->mutex);
    const qn_ctx *ctx = pool->ctx;
    qn_free(ctx, pool->workers);
    qn_free(ctx, pool->seats);
    qn_free(ctx, pool);
}
