/* The pool: every index once, thread numbers in range and never shared at a time,
 * adaptors, many jobs after each other, more threads than processors, sleeping
 * workers, jobs inside jobs, pinning, and what is read of processors and quota. Run
 * it with ThreadSanitizer too (QN_THREAD_SANITIZE). */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "exec/pool.h"
#include "exec/processors.h"

#define MOST 4096

typedef struct seen {
    _Atomic int32_t times[MOST];
    _Atomic int32_t busy[32]; /* of each thread of the largest pool here */
    _Atomic int32_t bad;
    int64_t plain[MOST]; /* written without atomics: each index has one owner */
    int32_t threads;
} seen;

static void note(void *user, int64_t index, int32_t thread)
{
    seen *s = user;
    if (thread < 0 || thread >= s->threads || atomic_fetch_add(&s->busy[thread], 1) != 0) {
        atomic_fetch_add(&s->bad, 1);
    }
    atomic_fetch_add(&s->times[index], 1);
    s->plain[index] += index;
    atomic_fetch_sub(&s->busy[thread], 1);
}

static void check_job(const qn_exec *exec, int64_t count)
{
    static seen s;
    memset(&s, 0, sizeof s);
    s.threads = qn_exec_threads(exec);
    assert_true(s.threads <= (int32_t)(sizeof s.busy / sizeof *s.busy));
    qn_parallel_for(exec, count, note, &s);
    assert_int_equal(atomic_load(&s.bad), 0);
    for (int64_t i = 0; i < MOST; i++) {
        assert_int_equal(atomic_load(&s.times[i]), i < count ? 1 : 0);
        assert_int_equal(s.plain[i], i < count ? i : 0);
    }
}

static void every_index_runs_once(void **state)
{
    (void)state;
    static const int32_t threads[] = {1, 2, 3, 7};
    static const int64_t counts[] = {0, 1, 2, 3, 15, 64, 65, 127, 1000, MOST - 1, MOST};
    qn_ctx *ctx;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    for (size_t t = 0; t < 4; t++) {
        qn_pool *pool;
        assert_int_equal(qn_pool_create(ctx, threads[t], &pool, NULL), QN_OK);
        assert_int_equal(qn_pool_threads(pool), threads[t]);
        const qn_exec exec = {.pool = pool};
        for (int round = 0; round < 4; round++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                check_job(&exec, counts[c]);
            }
            usleep((useconds_t)round * 1000); /* let workers fall asleep */
        }
        qn_pool_destroy(pool);
    }
    check_job(NULL, 100);
    qn_ctx_destroy(ctx);
}

static void count_up(void *user, int64_t index, int32_t thread)
{
    (void)index;
    (void)thread;
    atomic_fetch_add((_Atomic int64_t *)user, 1);
}

static void many_short_jobs(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 3, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    _Atomic int64_t total = 0;
    for (int i = 0; i < 3000; i++) {
        qn_parallel_for(&exec, 5, count_up, &total);
        assert_int_equal(atomic_load(&total), 5 * (i + 1));
    }
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

/* More threads than any machine of the tests has processors, and jobs of every small size. */
static void many_jobs_on_too_many_threads(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 24, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    _Atomic int64_t total = 0;
    int64_t want = 0;
    for (int i = 0; i < 400; i++) {
        want += i % 60;
        qn_parallel_for(&exec, i % 60, count_up, &total);
        assert_int_equal(atomic_load(&total), want);
    }
    check_job(&exec, MOST);
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

/* Many indices a unit: nothing is lost where a range is cut into runs. */
static void count_sum(void *user, int64_t index, int32_t thread)
{
    ((int64_t *)user)[thread * 8] += index;
}

static void large_counts_are_cut_into_runs(void **state)
{
    (void)state;
    static const int64_t counts[] = {200000, 262143, 262145, 1000003};
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 3, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        int64_t sums[3 * 8] = {0};
        qn_parallel_for(&exec, counts[c], count_sum, sums);
        assert_int_equal(sums[0] + sums[8] + sums[16], counts[c] * (counts[c] - 1) / 2);
    }
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

/* Pools that end while their workers watch, sleep, or have not begun. */
static void pools_end_while_idle(void **state)
{
    (void)state;
    static const useconds_t idle[] = {0, 100, 1000, 4000};
    qn_ctx *ctx;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    for (int i = 0; i < 48; i++) {
        qn_pool *pool;
        assert_int_equal(qn_pool_create(ctx, 1 + i % 5, &pool, NULL), QN_OK);
        const qn_exec exec = {.pool = pool};
        _Atomic int64_t total = 0;
        if (i % 3) {
            qn_parallel_for(&exec, i, count_up, &total);
            assert_int_equal(atomic_load(&total), i);
        }
        usleep(idle[i % 4]);
        qn_pool_destroy(pool);
    }
    qn_ctx_destroy(ctx);
}

typedef struct nested {
    const qn_exec *exec;
    _Atomic int64_t inner;
    _Atomic int32_t bad;
} nested;

typedef struct inner_job {
    nested *n;
    pthread_t thread;
} inner_job;

static void inner_task(void *user, int64_t index, int32_t thread)
{
    inner_job *job = user;
    if (thread != 0 || !pthread_equal(pthread_self(), job->thread)) {
        atomic_fetch_add(&job->n->bad, 1);
    }
    atomic_fetch_add(&job->n->inner, index);
}

static void outer_task(void *user, int64_t index, int32_t thread)
{
    (void)index;
    (void)thread;
    nested *n = user;
    inner_job job = {.n = n, .thread = pthread_self()};
    qn_parallel_for(n->exec, 10, inner_task, &job);
}

static void jobs_inside_jobs_run_where_they_are(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 3, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    nested n = {.exec = &exec};
    for (int i = 1; i <= 50; i++) {
        qn_parallel_for(&exec, 40, outer_task, &n);
        assert_int_equal(atomic_load(&n.inner), (int64_t)i * 40 * 45);
        assert_int_equal(atomic_load(&n.bad), 0);
    }
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

/* Two threads that share a pool: one of them has it, the other does its tasks itself. */
static void *share_pool(void *argument)
{
    const qn_exec *exec = argument;
    for (int i = 0; i < 500; i++) {
        _Atomic int64_t total = 0;
        qn_parallel_for(exec, 9, count_up, &total);
        if (atomic_load(&total) != 9) {
            return argument;
        }
    }
    return NULL;
}

static void callers_may_share_a_pool(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 2, &pool, NULL), QN_OK);
    qn_exec exec = {.pool = pool};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, share_pool, &exec), 0);
    assert_null(share_pool(&exec));
    void *failed;
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

/* ---- processors ---- */

static void note_processor(void *user, int64_t index, int32_t thread)
{
    (void)index;
    ((_Atomic int32_t *)user)[thread] = sched_getcpu();
    usleep(200); /* so that every thread gets some */
}

static void workers_stay_on_their_processors(void **state)
{
    (void)state;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    const int32_t threads = CPU_COUNT(&before) < 4 ? CPU_COUNT(&before) : 4;
    qn_ctx *ctx;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    for (int32_t pin = 0; pin < 2; pin++) {
        qn_pool_options options;
        qn_pool_options_init(&options);
        assert_int_equal(options.pin, 1);
        options.threads = threads;
        options.pin = pin;
        qn_pool *pool;
        assert_int_equal(qn_pool_create_with(ctx, &options, &pool, NULL), QN_OK);
        _Atomic int32_t on[4] = {-1, -1, -1, -1};
        const qn_exec exec = {.pool = pool};
        qn_parallel_for(&exec, 40, note_processor, on);
        for (int32_t t = 0; t < threads; t++) {
            const int32_t processor = qn_pool_processor(pool, t);
            assert_int_equal(processor >= 0, pin);
            for (int32_t u = 0; pin && u < t; u++) {
                assert_int_not_equal(processor, qn_pool_processor(pool, u));
            }
            if (pin) {
                assert_true(CPU_ISSET((size_t)processor, &before));
                /* a worker may have had no unit at all */
                assert_true(t == 0 || on[t] == -1 || on[t] == processor);
            }
        }
        assert_int_equal(qn_pool_processor(pool, threads), -1);
        assert_int_equal(qn_pool_processor(pool, -1), -1);
        qn_pool_destroy(pool);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
    }
    qn_pool *crowded;
    assert_int_equal(qn_pool_create(ctx, CPU_COUNT(&before) + 1, &crowded, NULL), QN_OK);
    assert_int_equal(qn_pool_processor(crowded, 1), -1);
    qn_pool_destroy(crowded);
    assert_int_equal(qn_pool_processor(NULL, 0), -1);
    qn_ctx_destroy(ctx);
}

static void put_file(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
}

/* Hints change between jobs and outlive their memory; jobs are what they were. */
static void hints_change_no_job(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, 2, &pool, NULL), QN_OK);
    const qn_exec exec = {.pool = pool};
    const size_t sizes[] = {0, 1, 64, 1000, 1 << 20, 3 << 20};
    for (int round = 0; round < 200; round++) {
        const size_t bytes = sizes[(size_t)round % (sizeof sizes / sizeof *sizes)];
        char *const data = malloc(bytes + 1);
        assert_non_null(data);
        qn_exec_ahead(&exec, data, bytes);
        check_job(&exec, round % 40);
        free(data);
        check_job(&exec, round % 7);
        if (round % 5 == 0) {
            qn_exec_ahead(&exec, NULL, 0);
        }
    }
    qn_exec_ahead(NULL, pool, 1);
    qn_exec_ahead(&(qn_exec){0}, pool, 1);
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
}

static void quota_and_cores_are_read(void **state)
{
    (void)state;
    char root[] = "/tmp/quern-pool-XXXXXX";
    assert_non_null(mkdtemp(root));
    const char *const none = root;
    assert_true(qn_processors_quota(none) == 0);
    put_file(root, "proc/self/cgroup", "0::/a/b\n");
    assert_true(qn_processors_quota(root) == 0);
    put_file(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_true(qn_processors_quota(root) == 0);
    put_file(root, "sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_true(qn_processors_quota(root) == 2.5);
    put_file(root, "sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_true(qn_processors_quota(root) == 1.5);
    put_file(root, "sys/fs/cgroup/a/b/cpu.max", "garbage\n");
    assert_true(qn_processors_quota(root) == 1.5);
    put_file(root, "proc/self/cgroup", "5:cpuset:/c\n4:cpu,cpuacct:/c/d\nnot a line\n");
    assert_true(qn_processors_quota(root) == 0);
    put_file(root, "sys/fs/cgroup/cpu/c/d/cpu.cfs_quota_us", "-1\n");
    put_file(root, "sys/fs/cgroup/cpu/c/d/cpu.cfs_period_us", "100000\n");
    assert_true(qn_processors_quota(root) == 0);
    put_file(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
    put_file(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_true(qn_processors_quota(root) == 3);

    /* pairs of processors a core: the second of a pair comes after all firsts */
    qn_processors p;
    qn_processors_get(root, &p);
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    assert_int_equal(p.count, CPU_COUNT(&mask));
    for (int32_t i = 0; i < p.count; i++) {
        char name[96], list[32];
        const int32_t id = p.ids[i];
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", id);
        snprintf(list, sizeof list, id % 4 < 2 ? "%d,%d\n" : "%d-%d\n", id / 2 * 2, id / 2 * 2 + 1);
        put_file(root, name, list);
        assert_true(CPU_ISSET((size_t)id, &mask));
    }
    qn_processors_get(root, &p);
    assert_int_equal(p.count, CPU_COUNT(&mask));
    int seconds = 0;
    for (int32_t i = 0; i < p.count; i++) {
        const int second = p.ids[i] % 2 == 1 && CPU_ISSET((size_t)(p.ids[i] - 1), &mask);
        assert_true(second >= seconds);
        seconds = second;
    }
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void own_parallel_for(void *user, int64_t count, qn_task_fn fn, void *task_user)
{
    ++*(int *)user;
    for (int64_t i = count - 1; i >= 0; i--) {
        fn(task_user, i, (int32_t)(i % 4));
    }
}

static void the_callers_threads_are_used(void **state)
{
    (void)state;
    int calls = 0;
    const qn_exec exec = {.parallel_for = own_parallel_for, .parallel_user = &calls, .threads = 4};
    assert_int_equal(qn_exec_threads(&exec), 4);
    check_job(&exec, 77);
    assert_int_equal(calls, 1);
    assert_int_equal(qn_exec_threads(NULL), 1);
    assert_int_equal(qn_pool_threads(NULL), 1);
}

static void bad_counts_are_refused(void **state)
{
    (void)state;
    qn_ctx *ctx;
    qn_pool *pool;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    assert_int_equal(qn_pool_create(ctx, -1, &pool, &error), QN_E_ARGUMENT);
    assert_null(pool);
    assert_int_equal(qn_pool_create(ctx, 1025, &pool, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pool_create(ctx, 1, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pool_create(NULL, 1, &pool, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pool_create_with(ctx, NULL, &pool, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pool_create_with(ctx, &(qn_pool_options){.size = 1}, &pool, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_pool_create(ctx, 0, &pool, &error), QN_OK);
    assert_true(qn_pool_threads(pool) >= 1);
    qn_pool_destroy(pool);
    qn_pool_destroy(NULL);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once),         cmocka_unit_test(many_short_jobs),
        cmocka_unit_test(many_jobs_on_too_many_threads), cmocka_unit_test(large_counts_are_cut_into_runs),
        cmocka_unit_test(pools_end_while_idle),          cmocka_unit_test(jobs_inside_jobs_run_where_they_are),
        cmocka_unit_test(callers_may_share_a_pool),      cmocka_unit_test(workers_stay_on_their_processors),
        cmocka_unit_test(hints_change_no_job),           cmocka_unit_test(quota_and_cores_are_read),
        cmocka_unit_test(the_callers_threads_are_used),  cmocka_unit_test(bad_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
