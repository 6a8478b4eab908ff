/* The pool: every index once, thread numbers in range and never shared at a time,
 * adaptors, many jobs after each other, sleeping workers. Run it with
 * ThreadSanitizer too (QN_THREAD_SANITIZE). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/quern.h>

#define MOST 4096

typedef struct seen {
    _Atomic int32_t times[MOST];
    _Atomic int32_t busy[16];
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
    static const int64_t counts[] = {0, 1, 2, 3, 15, 64, 1000, MOST};
    qn_ctx *ctx;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    for (size_t t = 0; t < 4; t++) {
        qn_pool *pool;
        assert_int_equal(qn_pool_create(ctx, threads[t], &pool, NULL), QN_OK);
        assert_int_equal(qn_pool_threads(pool), threads[t]);
        const qn_exec exec = {.pool = pool};
        for (int round = 0; round < 4; round++) {
            for (size_t c = 0; c < 8; c++) {
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
    assert_int_equal(qn_pool_create(ctx, 0, &pool, &error), QN_OK);
    assert_true(qn_pool_threads(pool) >= 1);
    qn_pool_destroy(pool);
    qn_pool_destroy(NULL);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_runs_once),
        cmocka_unit_test(many_short_jobs),
        cmocka_unit_test(the_callers_threads_are_used),
        cmocka_unit_test(bad_counts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
