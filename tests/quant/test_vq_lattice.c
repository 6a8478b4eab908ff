/* The search for E8P points: at every level the nearest of all 65536 in each lane, codes
 * that decode to the point that was measured, and the distortion of a unit Gaussian against the
 * figures of the codebooks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/fit.h"
#include "base/context.h"
#include "base/rng.h"
#include "format/lattice.h"
#include "quant/vq_lattice.h"

static qn_ctx *ctx;
static qn_vq_space space; /* for its tables */
static float points[65536][8];

static int setup(void **state)
{
    (void)state;
    static float w[16 * 64];
    w[5] = 1.0f;
    for (uint32_t c = 0; c < 65536; c++) {
        qn_e8p_decode(c, points[c]);
    }
    return qn_ctx_create(NULL, &ctx, NULL) != QN_OK ||
           qn_vq_space_enter(ctx, NULL, qn_scheme_find("quip-2"), w, 16, 64, NULL, &space, NULL) != QN_OK;
}

static int teardown(void **state)
{
    (void)state;
    qn_vq_space_free(&space);
    qn_ctx_destroy(ctx);
    return 0;
}

static void gaussian(qn_rng *rng, float x[8], double size)
{
    for (int i = 0; i < 8; i++) {
        const double u = 1 - qn_rng_uniform(rng), t = 2 * 3.14159265358979323846 * qn_rng_uniform(rng);
        x[i] = (float)(size * sqrt(-2 * log(u)) * cos(t));
    }
}

static float distance(const float *x, const float *c)
{
    float sum = 0;
    for (int i = 0; i < 8; i++) {
        sum += (x[i] - c[i]) * (x[i] - c[i]);
    }
    return sum;
}

static void nearest_of_all(void **state)
{
    (void)state;
    const struct {
        qn_isa isa;
        const qn_fit_set *set;
    } levels[] = {{QN_ISA_SCALAR, &qn_fit__scalar}, {QN_ISA_AVX2, &qn_fit__avx2}, {QN_ISA_AVX512, &qn_fit__avx512}};
    enum { ROWS = 60 };
    qn_rng rng = {.state = 21};
    float x[ROWS][8], least[ROWS][QN_FIT_LANES];
    for (int r = 0; r < ROWS; r++) { /* small, usual, far out, and a point itself */
        gaussian(&rng, x[r], r % 4 == 0 ? 0.2 : (r % 4 == 1 ? 1.03 : 3));
        if (r % 4 == 3) {
            memcpy(x[r], points[qn_rng_next(&rng) & 65535], sizeof x[r]);
        }
        for (int l = 0; l < QN_FIT_LANES; l++) {
            least[r][l] = INFINITY;
        }
        for (int c = 0; c < 65536; c++) {
            float *to = &least[r][(c >> 8) % QN_FIT_LANES];
            *to = fminf(*to, distance(x[r], points[c]));
        }
    }
    for (size_t i = 0; i < 3; i++) {
        if (qn_cpu_refusal(levels[i].isa)) {
            print_message("skip: %s\n", qn_isa_name(levels[i].isa));
            continue;
        }
        float scores[ROWS][QN_FIT_LANES];
        int32_t entries[ROWS][QN_FIT_LANES];
        levels[i].set->nearest_e8p(&space.lattice, x[0], ROWS, scores[0], entries[0]);
        for (int r = 0; r < ROWS; r++) {
            for (int l = 0; l < QN_FIT_LANES; l++) {
                const int32_t e = entries[r][l];
                assert_true(e >= 0 && e < 512 && e % QN_FIT_LANES == l);
                const uint32_t code = qn_e8p_encode((uint32_t)e & 255, e >> 8, x[r]);
                const float found = distance(x[r], points[code]);
                assert_int_equal(code >> 8, e & 255);
                assert_true(fabsf(found - least[r][l]) <= 1e-5f * (1 + least[r][l]));
                assert_true(fabsf(scores[r][l] - least[r][l]) <= 1e-4f * (1 + least[r][l]));
            }
        }
    }
}

/* Nearest point of x, and what is left of it. */
static void round_off(float x[8], float size)
{
    float scores[QN_FIT_LANES], scaled[8];
    int32_t entries[QN_FIT_LANES];
    int best = 0;
    for (int i = 0; i < 8; i++) {
        scaled[i] = x[i] / size;
    }
    qn_cpu_fit(ctx)->nearest_e8p(&space.lattice, scaled, 1, scores, entries);
    for (int l = 1; l < QN_FIT_LANES; l++) {
        best = scores[l] < scores[best] ? l : best;
    }
    const float *point = points[qn_e8p_encode((uint32_t)entries[best] & 255, entries[best] >> 8, scaled)];
    for (int i = 0; i < 8; i++) {
        x[i] -= point[i] * size;
    }
}

static void anchors(void **state)
{
    (void)state;
    enum { COUNT = 40000 };
    static const struct {
        int books;
        double scale, mse;
    } rows[] = {{1, 1.03, 0.0919}, {2, 0.92, 0.0089}};
    for (int a = 0; a < 2; a++) {
        qn_rng rng = {.state = 5};
        double sum = 0;
        for (int n = 0; n < COUNT; n++) {
            float x[8];
            static const float origin[8] = {0};
            gaussian(&rng, x, rows[a].scale);
            round_off(x, 1.0f);
            if (rows[a].books > 1) {
                round_off(x, 1.0f / 3.45f);
            }
            sum += (double)distance(x, origin);
        }
        const double mse = sum / (COUNT * 8 * rows[a].scale * rows[a].scale);
        print_message("%d of E8P: %.4f (anchor %.4f)\n", rows[a].books, mse, rows[a].mse);
        assert_true(mse < 1.02 * rows[a].mse && mse > 0.95 * rows[a].mse);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nearest_of_all),
        cmocka_unit_test(anchors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
