/* Encoders of src/quant/encode.h: hand-computed cases and properties that hold for every scheme. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/fit.h"
#include "base/checked.h"
#include "base/rng.h"
#include "quant/encode.h"

/* Products by the scalar loops and by those of the best level there is here. */
static const qn_fit_set *fit_sets[2];

static qn_encoder make(const char *scheme, int64_t n, int64_t k, int search)
{
    qn_encoder e;
    qn_error error;
    assert_non_null(qn_scheme_find(scheme));
    assert_int_equal(qn_encoder_init(&e, qn_scheme_find(scheme), n, k, &error), QN_OK);
    e.search = search;
    return e;
}

static void int8_channel(void **state)
{
    (void)state;
    const float w[2][4] = {{127, -63.5f, 0.4f, 1.5f}, {0, 0, 0, 0}};
    int8_t q[2][4];
    float scale[2];
    qn_encode_sums sums = {0, 0};
    const qn_encoder e = make("int8", 2, 4, 0);
    assert_int_equal(e.scale_shape.dims[0], 2);
    assert_int_equal(e.scale_shape.dims[1], 1);
    qn_encode_rows(&e, &w[0][0], 2, q, scale, NULL, &sums);
    const int8_t expected[2][4] = {{127, -64, 0, 2}, {0, 0, 0, 0}};
    assert_memory_equal(q, expected, 8);
    assert_true(scale[0] == 1.0f && scale[1] == 1.0f);
    assert_true(fabs(sums.error - (0.25 + (double)0.4f * (double)0.4f + 0.25)) < 1e-12);
}

static void fp8_channel(void **state)
{
    (void)state;
    const float w[5] = {896, 34, 38, -0.001953125f, 0x1p-9f}; /* over 2: 448, 17 -> 16, 19 -> 20, -2^-10 -> -0 */
    uint8_t q[5];
    float scale;
    qn_encode_sums sums = {0, 0};
    const qn_encoder e = make("fp8", 1, 5, 0);
    qn_encode_rows(&e, w, 1, q, &scale, NULL, &sums);
    const uint8_t expected[5] = {0x7E, 0x58, 0x5A, 0x80, 0x00};
    assert_true(scale == 2.0f);
    assert_memory_equal(q, expected, 5);
}

/* 130 x 130: four blocks, three of them short. */
static void fp8_block_edges(void **state)
{
    (void)state;
    float *w = calloc(130 * 130, sizeof *w);
    uint8_t *q = malloc(130 * 130);
    assert_non_null(w);
    assert_non_null(q);
    w[0] = 448;
    w[127 * 130 + 127] = -224;
    w[5 * 130 + 128] = 112;
    w[128 * 130 + 3] = 896;
    w[129 * 130 + 129] = 1;
    float scale[4];
    qn_encode_sums sums = {0, 0};
    const qn_encoder e = make("fp8-block", 130, 130, 0);
    assert_int_equal(e.unit, 128);
    assert_int_equal(e.scale_shape.dims[0], 2);
    assert_int_equal(e.scale_shape.dims[1], 2);
    qn_encode_rows(&e, w, 130, q, scale, NULL, &sums);
    assert_true(scale[0] == 1.0f && scale[1] == 0.25f && scale[2] == 2.0f && scale[3] == 1.0f / 448.0f);
    assert_int_equal(q[0], 0x7E);
    assert_int_equal(q[127 * 130 + 127], 0xF6); /* -224 */
    assert_int_equal(q[5 * 130 + 128], 0x7E);
    assert_int_equal(q[128 * 130 + 3], 0x7E);
    assert_int_equal(q[129 * 130 + 129], 0x7E);
    free(w);
    free(q);
}

static void nvfp4_by_hand(void **state)
{
    (void)state;
    float w[32] = {6, -3, 2, 0.5f, 1.5f, 4, 0.25f, -0.75f};
    w[16] = 3; /* half the scale: 3 -> code 7 */
    w[17] = 0.5f;
    w[18] = -1.25f; /* over 0.5: -2.5 ties to -2 */
    uint8_t q[16], scale[2];
    qn_encode_sums sums = {0, 0};
    qn_encoder e = make("nvfp4", 1, 32, 0);
    assert_int_equal(e.data_shape.format, QN_U8);
    assert_int_equal(e.data_shape.dims[1], 16);
    assert_int_equal(e.scale_shape.format, QN_F8_E4M3);
    e.global_scale = qn_encode_global_scale(&e, 6);
    assert_true(e.global_scale == 256.0f); /* the power of two below 2688 / 6 */
    qn_encode_rows(&e, w, 1, q, scale, NULL, &sums);
    assert_int_equal(scale[0], 0x78); /* 256 */
    assert_int_equal(scale[1], 0x70); /* 128 */
    const uint8_t first[4] = {0xD7, 0x14, 0x63, 0xA0}; /* 6,-3  2,.5  1.5,4  .25->0,-.75->-1 */
    const uint8_t second[2] = {0x27, 0x0C};            /* 3->6, .5->1  -1.25->-2, 0 */
    assert_memory_equal(q, first, 4);
    assert_memory_equal(q + 8, second, 2);
}

static void mxfp4_by_hand(void **state)
{
    (void)state;
    float w[96] = {6, -1, 0.5f};
    w[32] = 7; /* above 6: the next power of two, 7/2 = 3.5 ties to 4 */
    w[33] = -12;
    w[34] = 2.5f; /* 1.25 ties to 1 */
    uint8_t q[48], scale[3];
    qn_encode_sums sums = {0, 0};
    const qn_encoder e = make("mxfp4", 1, 96, 0);
    assert_int_equal(e.scale_shape.format, QN_U8);
    qn_encode_rows(&e, w, 1, q, scale, NULL, &sums);
    assert_int_equal(scale[0], 127);
    assert_int_equal(scale[1], 128);
    assert_int_equal(scale[2], 127); /* zeros: 1 */
    assert_int_equal(q[0], 0xA7);
    assert_int_equal(q[1], 0x01);
    assert_int_equal(q[16], 0xF6);
    assert_int_equal(q[17], 0x02);
}

/* Blocks beyond the largest scale saturate instead of becoming NaN. */
static void scale_overflow(void **state)
{
    (void)state;
    float w[16] = {600, -700};
    uint8_t q[8], scale;
    for (int search = 0; search < 2; search++) {
        qn_encode_sums sums = {0, 0};
        qn_encoder e = make("nvfp4", 1, 16, search);
        e.global_scale = qn_encode_global_scale(&e, 6); /* of another tensor, far smaller */
        qn_encode_rows(&e, w, 1, q, &scale, NULL, &sums);
        assert_int_equal(scale, 0x7E);
        assert_int_equal(q[0], 0xF7); /* 6, -6 */
        assert_true(isfinite(sums.error));
    }
    const qn_encoder e = make("nvfp4", 1, 16, 1);
    assert_true(qn_encode_global_scale(&e, 0) == 1.0f);
    assert_true(qn_encode_global_scale(&e, 1e-44f) == 0x1p100f);
    assert_true(isfinite(1.0f / qn_encode_global_scale(&e, FLT_MAX)) && qn_encode_global_scale(&e, FLT_MAX) > 0);
}

static void bad_shapes(void **state)
{
    (void)state;
    qn_encoder e;
    qn_error error;
    assert_int_equal(qn_encoder_init(&e, qn_scheme_find("nvfp4"), 2, 24, &error), QN_E_SHAPE);
    assert_non_null(strstr(error.text, "groups of 16"));
    assert_int_equal(qn_encoder_init(&e, qn_scheme_find("mxfp4"), 2, 48, &error), QN_E_SHAPE);
    assert_int_equal(qn_encoder_init(&e, qn_scheme_find("fp8"), -1, 48, &error), QN_E_SHAPE);
}

/* ---- Properties of all schemes ---- */

static float normal(qn_rng *rng)
{
    double s = 0;
    for (int i = 0; i < 12; i++) {
        s += qn_rng_uniform(rng);
    }
    return (float)(s - 6);
}

/* Scale a code is multiplied by, from what was stored. */
static float stored_scale(const qn_encoder *e, const uint8_t *scales, int64_t row, int64_t column)
{
    if (!e->scale) {
        return 1;
    }
    float v;
    const int64_t i = row / e->tile_n * e->tiles_k + column / e->tile_k;
    e->scale->decode(scales + i * e->scale->info.block_bytes, 1, &v);
    return v;
}

/* Half the distance to the next value of the element format at |x| units, or more. */
static double half_step(qn_format format, double x)
{
    int bits, least, e;
    switch (format) {
    case QN_I8: return 0.5;
    case QN_F8_E4M3: bits = 3, least = -6; break;
    case QN_F8_E5M2: bits = 2, least = -14; break;
    case QN_F4_E2M1: bits = 1, least = 0; break;
    case QN_BF16: bits = 7, least = -126; break;
    case QN_F16: bits = 10, least = -14; break;
    default: bits = 23, least = -126; break;
    }
    frexp(x, &e);
    e = e - 1 < least ? least : e - 1;
    return ldexp(0.5, e - bits);
}

static void check_scheme(const qn_scheme *s, int64_t n, int64_t k, float magnitude, int search, double *rms)
{
    qn_rng rng = {.state = (uint64_t)(n * 1000 + k)};
    float *w = malloc((size_t)(n * k) * sizeof *w), *row = malloc((size_t)k * sizeof *row);
    uint8_t *data = malloc((size_t)(n * k) * 4), *scales = malloc((size_t)(n * k) * 4 + 4);
    assert_true(w && row && data && scales);
    float amax = 0;
    for (int64_t i = 0; i < n * k; i++) {
        w[i] = (i / k) % 7 == 3 ? 0 : normal(&rng) * magnitude; /* some rows of zeros */
        amax = fmaxf(amax, fabsf(w[i]));
    }
    qn_encoder e = make(s->name, n, k, search);
    if (s->global_scale) {
        e.global_scale = qn_encode_global_scale(&e, amax);
    }
    qn_encode_sums sums = {0, 0}, parts = {0, 0};
    qn_encode_rows(&e, w, n, data, scales, NULL, &sums);
    /* in pieces: the same bytes */
    uint8_t *again = malloc((size_t)(n * k) * 4), *scales2 = malloc((size_t)(n * k) * 4 + 4);
    assert_true(again && scales2);
    for (int64_t r = 0; r < n; r += e.unit) {
        qn_encode_rows(&e, w + r * k, qn_min_i64(e.unit, n - r), again + (size_t)r * e.row_bytes,
                       scales2 + (size_t)(r / e.tile_n) * e.scale_row_bytes, NULL, &parts);
    }
    assert_memory_equal(data, again, (size_t)n * e.row_bytes);
    assert_memory_equal(scales, scales2, (size_t)qn_ceil_div(n, e.tile_n) * e.scale_row_bytes);

    double error = 0;
    for (int64_t r = 0; r < n; r++) {
        e.element->decode(data + (size_t)r * e.row_bytes, k, row);
        for (int64_t i = 0; i < k; i++) {
            const double scale = (double)stored_scale(&e, scales, r, i) / (double)e.global_scale;
            assert_true(isfinite(scale) && scale > 0 && isfinite(row[i]));
            const double x = (double)w[r * k + i] / scale, back = (double)row[i];
            error += (x - back) * (x - back) * scale * scale;
            if (w[r * k + i] == 0) {
                assert_true(back == 0);
            }
            const double top = e.grid ? (double)e.grid->max : (double)FLT_MAX;
            if (fabs(x) <= top && fabs(x - back) > half_step(s->weight, x) * (1 + 1e-5)) {
                fail_msg("%s [%lld,%lld] magnitude %g: element [%lld,%lld] = %g units became %g", s->name, (long long)n,
                         (long long)k, (double)magnitude, (long long)r, (long long)i, x, back);
            }
            if (!search && e.grid && s->scale_format == QN_F32) {
                assert_true(fabs(x) <= top * (1 + 1e-6)); /* nothing clipped by the plain rule */
            }
        }
    }
    assert_true(fabs(error - sums.error) <= 1e-4 * error + 1e-300);
    *rms = sums.weight > 0 ? sqrt(sums.error / sums.weight) : 0;
    free(w), free(row), free(data), free(scales), free(again), free(scales2);
}

static void properties(void **state)
{
    (void)state;
    static const float magnitudes[] = {0.02f, 1.0f, 300.0f};
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {9, 32}, {5, 160}, {130, 288}, {257, 127}, {129, 320}};
    for (int32_t i = 0; qn_scheme_get(i); i++) {
        const qn_scheme *s = qn_scheme_get(i);
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* no elements to encode: test_vq_quantise.c */
        }
        for (size_t j = 0; j < sizeof shapes / sizeof *shapes; j++) {
            qn_encoder e;
            if (qn_encoder_init(&e, s, shapes[j][0], shapes[j][1], NULL) == QN_E_SHAPE) {
                assert_int_equal(s->scales, QN_SCALES_GROUP); /* only groups refuse a K */
                continue;
            }
            for (size_t m = 0; m < 3; m++) {
                double plain, searched;
                check_scheme(s, shapes[j][0], shapes[j][1], magnitudes[m], 0, &plain);
                check_scheme(s, shapes[j][0], shapes[j][1], magnitudes[m], 1, &searched);
                assert_true(searched <= plain * (1 + 1e-6));
                if (j == 4 && m == 0) {
                    print_message("%-11s relative rms error %.5f, with the search %.5f\n", s->name, plain, searched);
                }
            }
        }
    }
}

/* Far ends of the float range: no NaN, no zero scale, nothing beyond the format. */
static void extremes(void **state)
{
    (void)state;
    static const float values[] = {1e-45f, 1e-40f, FLT_MIN, 1e-30f, 1e30f, FLT_MAX};
    for (int32_t i = 0; qn_scheme_get(i); i++) {
        const qn_scheme *s = qn_scheme_get(i);
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* no elements to encode: test_vq_quantise.c */
        }
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            for (int search = 0; search < 2; search++) {
                float w[2 * 64] = {0}, row[64];
                uint8_t data[2 * 64 * 4], scales[2 * 64 * 4];
                w[0] = values[v];
                w[1] = -values[v];
                w[2] = values[v] * 0.5f;
                w[64] = values[v] * 0.25f;
                qn_encoder e = make(s->name, 2, 64, search);
                if (s->global_scale) {
                    e.global_scale = qn_encode_global_scale(&e, values[v]);
                }
                qn_encode_sums sums = {0, 0};
                qn_encode_rows(&e, w, 2, data, scales, NULL, &sums);
                if (!e.scale) {
                    continue;
                }
                for (int r = 0; r < 2; r++) {
                    e.element->decode(data + (size_t)r * e.row_bytes, 64, row);
                    for (int c = 0; c < 64; c++) {
                        const float scale = stored_scale(&e, scales, r, c);
                        if (!isfinite(row[c]) || !isfinite(scale) || !(scale > 0) || fabsf(row[c]) > e.grid->max) {
                            fail_msg("%s of %g: code %g, scale %g", s->name, (double)values[v], (double)row[c],
                                     (double)scale);
                        }
                    }
                    assert_true(row[0] >= 0 && row[1] <= 0);
                }
            }
        }
    }
}

/* A column that matters more is met more exactly. */
static void importance(void **state)
{
    (void)state;
    qn_rng rng = {.state = 9};
    float w[64 * 64], weights[64];
    for (int i = 0; i < 64 * 64; i++) {
        w[i] = normal(&rng);
    }
    for (int i = 0; i < 64; i++) {
        weights[i] = i % 16 == 5 ? 100.0f : 1.0f;
    }
    for (int32_t j = 0; qn_scheme_get(j); j++) {
        const qn_scheme *s = qn_scheme_get(j);
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* no elements to encode: test_vq_quantise.c */
        }
        qn_encoder e = make(s->name, 64, 64, 1);
        e.global_scale = s->global_scale ? qn_encode_global_scale(&e, 6) : 1;
        double error[2];
        for (int pass = 0; pass < 2; pass++) {
            uint8_t data[64 * 64 * 4], scales[64 * 64 * 4];
            float row[64];
            qn_encode_sums sums = {0, 0};
            e.importance = pass ? weights : NULL;
            qn_encode_rows(&e, w, 64, data, scales, NULL, &sums);
            error[pass] = 0;
            for (int r = 0; r < 64; r++) {
                e.element->decode(data + (size_t)r * e.row_bytes, 64, row);
                for (int c = 0; c < 64; c++) {
                    const double d = (double)w[r * 64 + c] - (double)row[c] * (double)stored_scale(&e, scales, r, c) /
                                                                 (double)e.global_scale;
                    error[pass] += (double)weights[c] * d * d;
                }
            }
        }
        assert_true(error[1] <= error[0] * (1 + 1e-6));
        if (s->scales == QN_SCALES_GROUP) {
            assert_true(error[1] < 0.99 * error[0]);
        }
    }
}

/* h = R R^T, R upper: sizes around those of its blocks, rows farther apart than they are long. */
static void factor_sizes(void **state)
{
    (void)state;
    enum { MOST = 300, APART = MOST + 3 };
    static const int64_t sizes[] = {1, 15, 16, 31, 32, 33, 45, 160, 161, 193, MOST};
    static float h[MOST * APART], upper[MOST * APART];
    qn_rng rng = {.state = 5};
    for (int64_t i = 0; i < MOST; i++) {
        for (int64_t j = 0; j <= i; j++) {
            h[i * APART + j] = h[j * APART + i] = normal(&rng) + (i == j ? 2 * MOST : 0);
        }
    }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes * 2; s++) {
        const int64_t k = sizes[s / 2];
        memcpy(upper, h, sizeof h);
        qn_feedback_upper(fit_sets[s % 2], upper, k, APART, 1);
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = i; j < k; j++) {
                double sum = 0;
                for (int64_t l = j; l < k; l++) {
                    sum += (double)upper[i * APART + l] * (double)upper[j * APART + l];
                }
                assert_true(fabs(sum - (double)h[i * APART + j]) < 1e-3);
            }
            for (int64_t j = k; j < APART; j++) {
                assert_true(upper[i * APART + j] == h[i * APART + j]);
            }
        }
    }
}

/* Error feedback: the factor is R R^T = h + damp, and the error that counts, d h d^T, shrinks. */
static void feedback(void **state)
{
    (void)state;
    enum { N = 80, K = 288 }; /* more rows and columns than go together */
    qn_rng rng = {.state = 11};
    static float w[N * K], h[K * K], factor[K * K], importances[K], row[K];
    static int32_t order[K];
    static uint8_t data[N * K * 4], scales[N * K * 4], again[N * K * 4], scales_again[N * K * 4];
    for (int i = 0; i < N * K; i++) {
        w[i] = normal(&rng);
    }
    for (int t = 0; t < 600; t++) { /* inputs that hang together */
        float x[K];
        const float common = normal(&rng);
        for (int i = 0; i < K; i++) {
            x[i] = common + normal(&rng) * (i % 5 ? 0.5f : 2.0f) + (i ? 0.5f * x[i - 1] : 0);
        }
        for (int i = 0; i < K * K; i++) {
            h[i] += x[i / K] * x[i % K];
        }
    }
    memcpy(factor, h, sizeof h);
    qn_feedback_factor(&qn_fit__scalar, factor, K, 0.01f, importances, order, row);
    double mean = 0, trace = 0;
    for (int i = 0; i < K; i++) {
        mean += (double)importances[i] / K;
        trace += (double)h[i * K + i] / K;
    }
    assert_true(fabs(mean - 1) < 1e-5);
    for (int i = 1; i < K; i++) { /* descending, ties by number */
        const float a = h[order[i - 1] * (K + 1)], b = h[order[i] * (K + 1)];
        assert_true(a > b || (a == b && order[i - 1] < order[i]));
    }
    /* h[i][j] = sum_k A[i][k] A[j][k] pivots[k], A unit upper, in that order; pivots from the last column up */
    double pivots[K];
    for (int k = K - 1; k >= 0; k--) {
        pivots[k] = (double)h[order[k] * (K + 1)] + 0.01 * trace;
        for (int l = k + 1; l < K; l++) {
            pivots[k] -= (double)factor[l * K + k] * (double)factor[l * K + k] * pivots[l];
        }
        assert_true(pivots[k] > 0);
    }
    for (int i = 0; i < K; i += 7) {
        for (int j = i; j < K; j += 5) {
            double sum = 0;
            for (int k = j; k < K; k++) {
                const double a = k == i ? 1 : (double)factor[k * K + i], b = k == j ? 1 : (double)factor[k * K + j];
                sum += a * b * pivots[k];
            }
            const double expected = (double)h[order[i] * K + order[j]] + (i == j ? 0.01 * trace : 0);
            assert_true(fabs(sum - expected) < 1e-3 * trace);
        }
    }
    for (int32_t s = 0; qn_scheme_get(s); s++) {
        const qn_scheme *scheme = qn_scheme_get(s);
        if (scheme->scales == QN_SCALES_NONE || scheme->scales == QN_SCALES_VECTOR) {
            continue;
        }
        double error[3];
        for (int pass = 0; pass < 3; pass++) { /* without, by either set */
            qn_encoder e = make(scheme->name, N, K, 1);
            e.set = fit_sets[pass ? pass - 1 : 0];
            e.global_scale = scheme->global_scale ? qn_encode_global_scale(&e, 6) : 1;
            e.feedback = pass ? factor : NULL;
            e.importance = pass ? importances : NULL;
            e.order = pass ? order : NULL;
            float *scratch = malloc(qn_encode_scratch(&e, N) * sizeof(float) + 1);
            assert_non_null(scratch);
            qn_encode_sums sums = {0, 0};
            qn_encode_rows(&e, w, N, data, scales, scratch, &sums);
            if (e.unit == 1) { /* rows in other portions: the same bytes */
                for (int64_t r = 0; r < N; r += 7) {
                    qn_encode_rows(&e, w + r * K, qn_min_i64(7, N - r), again + (size_t)r * e.row_bytes,
                                   scales_again + (size_t)r * e.scale_row_bytes, scratch, &sums);
                }
                assert_memory_equal(data, again, N * e.row_bytes);
                assert_memory_equal(scales, scales_again, N * e.scale_row_bytes);
            }
            free(scratch);
            error[pass] = 0;
            for (int r = 0; r < N; r++) {
                double d[K];
                e.element->decode(data + (size_t)r * e.row_bytes, K, row);
                for (int i = 0; i < K; i++) {
                    const double scale = (double)stored_scale(&e, scales, r, i) / (double)e.global_scale;
                    assert_true(isfinite(row[i]) && isfinite(scale) && scale > 0);
                    d[i] = (double)row[i] * scale - (double)w[r * K + i];
                }
                for (int i = 0; i < K * K; i++) {
                    error[pass] += d[i / K] * (double)h[i] * d[i % K];
                }
            }
        }
        print_message("%-11s error of the outputs with feedback: %.2f of that without\n", scheme->name,
                      error[1] / error[0]);
        assert_true(error[1] < 0.7 * error[0]);
        assert_true(fabs(error[2] - error[1]) < 0.1 * error[1]);
    }
    /* inputs that were never met */
    memset(factor, 0, sizeof factor);
    qn_feedback_factor(&qn_fit__scalar, factor, K, 0.01f, importances, order, row);
    for (int i = 0; i < K; i++) {
        assert_true(importances[i] == 1.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_channel),  cmocka_unit_test(fp8_channel),    cmocka_unit_test(fp8_block_edges),
        cmocka_unit_test(nvfp4_by_hand), cmocka_unit_test(mxfp4_by_hand),  cmocka_unit_test(scale_overflow),
        cmocka_unit_test(bad_shapes),    cmocka_unit_test(properties),     cmocka_unit_test(extremes),
        cmocka_unit_test(importance),    cmocka_unit_test(feedback),       cmocka_unit_test(factor_sizes),
    };
    qn_ctx *ctx = NULL;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    fit_sets[0] = &qn_fit__scalar;
    fit_sets[1] = qn_cpu_fit(ctx);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_ctx_destroy(ctx);
    return failed;
}
