/* Weighted k-means: the distortion of a unit Gaussian against published figures, the
 * same bits for any number of threads, weights that matter, every level of the loops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/fit.h"
#include "base/context.h"
#include "base/rng.h"
#include "kernels/operands.h"
#include "quant/kmeans.h"

static qn_ctx *ctx;
static qn_pool *pool;
static qn_exec exec;

static int setup(void **state)
{
    (void)state;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK || qn_pool_create(ctx, 0, &pool, NULL) != QN_OK) {
        return 1;
    }
    exec.pool = pool;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    qn_pool_destroy(pool);
    qn_ctx_destroy(ctx);
    return 0;
}

static float *gaussian(int64_t count, uint64_t seed)
{
    qn_rng rng = {.state = seed};
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        const double u = 1 - qn_rng_uniform(&rng), t = 2 * 3.14159265358979323846 * qn_rng_uniform(&rng);
        x[i] = (float)(sqrt(-2 * log(u)) * cos(t));
    }
    return x;
}

static void must_fit(const qn_fit_set *set, const qn_kmeans_job *job, const qn_exec *on, float *centroids,
                     uint16_t *codes, double *error)
{
    qn_error why;
    if (qn_kmeans(ctx, set, job, on, centroids, codes, error, &why) != QN_OK) {
        fail_msg("%s", why.text);
    }
}

/* Mean squared error of x[count][vector] with the nearest of the centroids; x becomes what is left. */
static double leave(float *x, int64_t count, int32_t vector, const float *centroids, int32_t entries)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        float *p = x + i * vector, best = INFINITY;
        int32_t at = 0;
        for (int32_t e = 0; e < entries; e++) {
            float d = 0;
            for (int32_t j = 0; j < vector; j++) {
                d += (p[j] - centroids[e * vector + j]) * (p[j] - centroids[e * vector + j]);
            }
            at = d < best ? e : at;
            best = d < best ? d : best;
        }
        for (int32_t j = 0; j < vector; j++) {
            p[j] -= centroids[at * vector + j];
        }
        sum += (double)best;
    }
    return sum / (double)(count * vector);
}

/* Train on one sample of a unit Gaussian, measure on another; stages of residual books. The figures are k-means'
 * own on 400,000 vectors; the few vectors of a quick test cost what `over` allows. */
static void check_anchor(int32_t vector, int32_t entries, int stages, int64_t points, const double *anchors,
                         double over)
{
    const int64_t groups = 64, rows = points / groups, fresh = 4096;
    float *x = gaussian(points * vector, 1), *y = gaussian(fresh * vector, 2);
    float *centroids = malloc((size_t)(entries * vector) * sizeof *centroids);
    uint16_t *codes = malloc((size_t)points * sizeof *codes);
    assert_true(centroids && codes);
    for (int s = 0; s < stages; s++) {
        const qn_kmeans_job job = {.x = x,
                                   .rows = rows,
                                   .groups = groups,
                                   .stride = groups * vector,
                                   .vector = vector,
                                   .entries = entries,
                                   .iterations = 40,
                                   .gain = 5e-4,
                                   .seed = 3};
        double error;
        must_fit(qn_cpu_fit(ctx), &job, &exec, centroids, codes, &error);
        double sum = 0; /* the codes say what the error says */
        for (int64_t i = 0; i < points; i++) {
            for (int32_t j = 0; j < vector; j++) {
                x[i * vector + j] -= centroids[codes[i] * vector + j];
                sum += (double)x[i * vector + j] * (double)x[i * vector + j];
            }
        }
        assert_true(fabs(sum - error) < 1e-3 * sum);
        const double mse = leave(y, fresh, vector, centroids, entries);
        print_message("v%d k%d stage %d: %.4f (anchor %.4f), on its own points %.4f\n", vector, entries, s, mse,
                      anchors[s], sum / (double)(points * vector));
        assert_true(mse < anchors[s] * (1 + over));
        assert_true(mse > anchors[s] * 0.95); /* better than what can be: measured wrongly */
    }
    free(codes);
    free(centroids);
    free(y);
    free(x);
}

static void test_anchors(void **state)
{
    (void)state;
    check_anchor(1, 16, 1, 65536, (const double[]){0.0095}, 0.03); /* Lloyd-Max; a book has whole lanes */
    check_anchor(2, 256, 1, 262144, (const double[]){0.0082}, 0.03);
    check_anchor(4, 256, 1, 262144, (const double[]){0.0976}, 0.02);
    check_anchor(8, 256, 2, 262144, (const double[]){0.322, 0.1056}, 0.03);
    if (getenv("QN_TEST_EVERY_ANCHOR")) {
        check_anchor(8, 4096, 2, 131072, (const double[]){0.172, 0.0305}, 0.08);
    } else {
        print_message("skip: 4096 entries take minutes under sanitizers; make check-full sets QN_TEST_EVERY_ANCHOR\n");
    }
}

static void test_threads_do_not_matter(void **state)
{
    (void)state;
    const int64_t rows = 300, groups = 24;
    float *x = gaussian(rows * groups * 4, 5), *weights = gaussian(groups * 4, 6);
    for (int64_t i = 0; i < groups * 4; i++) {
        weights[i] = weights[i] * weights[i] + 0.01f;
    }
    const qn_kmeans_job job = {.x = x,
                               .rows = rows,
                               .groups = groups,
                               .stride = groups * 4,
                               .vector = 4,
                               .entries = 64,
                               .column_weights = weights,
                               .iterations = 8,
                               .seed = 9};
    static float a[64 * 4], b[64 * 4];
    static uint16_t codes[2][300 * 24];
    must_fit(qn_cpu_fit(ctx), &job, NULL, a, codes[0], NULL);
    for (int32_t threads = 2; threads <= 5; threads++) {
        qn_pool *other;
        assert_int_equal(qn_pool_create(ctx, threads, &other, NULL), QN_OK);
        must_fit(qn_cpu_fit(ctx), &job, &(qn_exec){.pool = other}, b, codes[1], NULL);
        qn_pool_destroy(other);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
    }
    free(weights);
    free(x);
}

/* Columns and rows of large weight end up with less error than without weights. */
static void test_weights(void **state)
{
    (void)state;
    const int64_t rows = 256, groups = 16;
    float *x = gaussian(rows * groups * 4, 7), columns[64], heavy[256];
    for (int i = 0; i < 64; i++) {
        columns[i] = i % 4 == 1 ? 100.0f : 1.0f;
    }
    for (int i = 0; i < 256; i++) {
        heavy[i] = i < 16 ? 1000.0f : 1.0f;
    }
    double plain[2] = {0}, weighted[2] = {0};
    for (int with = 0; with < 3; with++) {
        const qn_kmeans_job job = {.x = x,
                                   .rows = rows,
                                   .groups = groups,
                                   .stride = groups * 4,
                                   .vector = 4,
                                   .entries = 32,
                                   .row_weights = with == 2 ? heavy : NULL,
                                   .column_weights = with == 1 ? columns : NULL,
                                   .iterations = 20,
                                   .seed = 11};
        static float c[32 * 4];
        static uint16_t codes[256 * 16];
        must_fit(qn_cpu_fit(ctx), &job, NULL, c, codes, NULL);
        double sum[2] = {0};
        for (int64_t i = 0; i < rows * groups * 4; i++) {
            const double d = (double)(x[i] - c[codes[i / 4] * 4 + i % 4]);
            sum[0] += i % 4 == 1 ? d * d : 0;
            sum[1] += i / (groups * 4) < 16 ? d * d : 0;
        }
        for (int s = 0; s < 2; s++) {
            plain[s] = with == 0 ? sum[s] : plain[s];
            weighted[s] = with == s + 1 ? sum[s] : weighted[s];
        }
    }
    print_message("%g of %g, %g of %g\n", weighted[0], plain[0], weighted[1], plain[1]);
    assert_true(weighted[0] < 0.2 * plain[0]);
    assert_true(weighted[1] < 0.85 * plain[1]);
    free(x);
}

/* As many centroids as different points: no error, and no number that is none where nobody is nearest. */
static void test_few_points(void **state)
{
    (void)state;
    float x[20 * 4], c[64 * 4];
    for (int i = 0; i < 80; i++) {
        x[i] = (float)(i / 4 % 5); /* five different points */
    }
    const qn_kmeans_job job = {
        .x = x, .rows = 10, .groups = 2, .stride = 8, .vector = 4, .entries = 64, .iterations = 30, .seed = 1};
    double error;
    must_fit(qn_cpu_fit(ctx), &job, NULL, c, NULL, &error);
    assert_true(error >= 0 && error < 1e-6);
    for (int i = 0; i < 64 * 4; i++) {
        assert_true(isfinite(c[i]));
    }
}

/* A copy that a page ends which may not be touched: builds with sanitizers do not check what these loops read. */
static guarded ended(const float *x, int64_t count)
{
    guarded g = guarded_make((size_t)count * sizeof *x, AT_END, 0, 0xFF);
    memcpy(g.data, x, g.bytes);
    return g;
}

static const float *floats(const guarded *g)
{
    return (const float *)(const void *)g->data;
}

/* Each level's loops against plain sums in double. */
static void test_levels(void **state)
{
    (void)state;
    const struct {
        qn_isa isa;
        const qn_fit_set *set;
    } levels[] = {{QN_ISA_SCALAR, &qn_fit__scalar}, {QN_ISA_AVX2, &qn_fit__avx2}, {QN_ISA_AVX512, &qn_fit__avx512}};
    float *book = gaussian(8 * 96, 12), *norms = gaussian(96, 13), *targets = gaussian(7 * 8, 14);
    float *a = gaussian(7 * 21, 15), *b = gaussian(21 * 112, 16), *out = gaussian(7 * 112, 17);
    for (size_t i = 0; i < 3; i++) {
        if (qn_cpu_refusal(levels[i].isa)) {
            print_message("skip: %s\n", qn_isa_name(levels[i].isa));
            continue;
        }
        for (int32_t v = 1; v <= 8; v++) {
            float scores[7 * QN_FIT_LANES];
            int32_t entries[7 * QN_FIT_LANES];
            guarded on[3] = {ended(norms, 96), ended(book, v * 96), ended(targets, 7 * v)};
            const qn_fit_book ends = {floats(&on[0]), floats(&on[1]), 96, v};
            levels[i].set->nearest(&ends, floats(&on[2]), 7, scores, entries);
            for (int n = 0; n < 3; n++) {
                guarded_free(&on[n]);
            }
            for (int r = 0; r < 7 * QN_FIT_LANES; r++) {
                double least = INFINITY;
                int at = -1;
                for (int e = r % QN_FIT_LANES; e < 96; e += QN_FIT_LANES) {
                    double s = (double)norms[e];
                    for (int j = 0; j < v; j++) {
                        s += (double)targets[r / QN_FIT_LANES * v + j] * (double)book[j * 96 + e];
                    }
                    at = s < least ? e : at;
                    least = s < least ? s : least;
                }
                assert_int_equal(entries[r], at);
                assert_true(fabs((double)scores[r] - least) < 1e-5);
            }
        }
        for (int64_t columns = 16; columns <= 96; columns += 16) {
            float got[7 * 112];
            memcpy(got, out, sizeof got);
            guarded on[2] = {ended(a, 7 * 21), ended(b, 20 * 112 + columns)};
            levels[i].set->add_product(got, 112, floats(&on[0]), 21, 7, floats(&on[1]), 112, 21, columns);
            guarded_free(&on[0]);
            guarded_free(&on[1]);
            for (int e = 0; e < 7 * 112; e++) {
                double s = (double)out[e];
                for (int d = 0; d < 21 && e % 112 < columns; d++) {
                    s += (double)a[e / 112 * 21 + d] * (double)b[d * 112 + e % 112];
                }
                assert_true(fabs((double)got[e] - s) < 1e-4);
            }
        }
    }
    free(out);
    free(b);
    free(a);
    free(targets);
    free(norms);
    free(book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),  cmocka_unit_test(test_anchors),    cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_weights), cmocka_unit_test(test_few_points),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
