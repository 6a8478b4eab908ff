/* The generator without a device: levels restrict the list, choices fit the device they are for, conflicts are as
 * probability has them, and explain says all of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <quern/experimental.h>

#include "backend/cuda/cuda.h"
#include "base/rng.h"
#include "vq/generator.h"

static qn_vq_device device_of(qn_cuda_target target)
{
    const qn_cuda_device typical = qn_cuda_typical_device(target);
    qn_vq_device d;
    qn_cuda_vq_device(&typical, &d);
    return d;
}

static qn_vq_problem problem_of(const char *text)
{
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    qn_error error = {0};
    qn_vq_problem p;
    assert_int_equal(qn_op_desc_parse(text, &desc, &error), QN_OK);
    assert_int_equal(qn_op_desc_check(&desc, out, &sizes, &error), QN_OK);
    assert_true(qn_vq_problem_of(&desc, &sizes, &p));
    return p;
}

static void problems_say_what_a_format_is(void **state)
{
    (void)state;
    qn_vq_problem p = problem_of("vq_mm m=1 n=4096 k=4096");
    assert_int_equal(p.vector, 8);
    assert_int_equal(p.bits, 8);
    assert_int_equal(p.books, 2);
    assert_int_equal(p.entry_bytes, 16);
    p = problem_of("vq_mm m=1 n=4096 k=4096 nbits_per_codebook=12 codes=u8");
    assert_int_equal(p.stored_bits, 12);
    assert_int_equal(p.entries, 4096);
    p = problem_of("vq_mm m=1 n=4096 k=4096 format=quip_e8p");
    assert_int_equal(p.scope, QN_VQ_SCOPE_MODEL);
    assert_int_equal(p.entries, 512); /* as exact integers: 1/4 added and subtracted */
    assert_int_equal(p.entry_bytes, 4);
    p = problem_of("vq_mm m=3 n=4096 k=4096 format=quip_e8p");
    assert_int_equal(p.entries, 256);
    assert_int_equal(p.entry_bytes, 4);
    p = problem_of("vq_mm m=9 n=4096 k=4096 format=gptvq");
    assert_int_equal(p.scope, QN_VQ_SCOPE_TILE);
    assert_int_equal(p.entry_bytes, 8);
    p = problem_of("vq_mm m=1 n=4096 k=4096 format=vptq out_features=4096");
    assert_true(p.along_n);
    p = problem_of("vq_attention m=2 n=4096 k=128 e=32 g=8 channels=2");
    assert_int_equal(p.use, QN_VQ_USE_ATTENTION);
    assert_int_equal(p.vector, 2);
    assert_int_equal(p.kv_heads, 8);
}

static const char *const cases[] = {
    "vq_mm m=1 n=28672 k=8192",
    "vq_mm m=64 n=28672 k=8192",
    "vq_mm m=1 n=19 k=64",
    "vq_mm m=2048 n=4096 k=14336 num_codebooks=1 nbits_per_codebook=16",
    "vq_mm m=1 n=4096 k=4096 nbits_per_codebook=12 codes=u8",
    "vq_mm m=5 n=4096 k=4096 format=gptvq",
    "vq_mm m=1 n=4096 k=4096 format=quip_e8p codebook=E8P12RVQ4B",
    "vq_mm m=3 n=4096 k=4096 format=vptq out_features=4096 num_centroids=65536",
    "vq_mm m=0 n=8 k=16",
    "vq_mm m=2 n=3 k=0",
    "vq_attention m=1 n=4096 k=128 e=32 g=32",
    "vq_attention m=8 n=0 k=128 e=32 g=8",
};

static void choices_fit_every_device_and_level(void **state)
{
    (void)state;
    for (int t = 0; t < QN_SM_COUNT; t++) {
        const qn_vq_device d = device_of((qn_cuda_target)t);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            qn_vq_problem p = problem_of(cases[i]);
            for (int level = QN_VQ_LEVEL_AUTO; level <= QN_VQ_LEVEL_O4; level++) {
                qn_vq_choice list[QN_VQ_CANDIDATES];
                p.level = (qn_vq_level)level;
                const int32_t count = qn_vq_candidates(&p, &d, list);
                assert_in_range(count, 1, QN_VQ_CANDIDATES);
                for (int32_t c = 0; c < count; c++) {
                    assert_true(level == QN_VQ_LEVEL_AUTO || list[c].level == (qn_vq_level)level);
                    assert_true(list[c].shared_bytes <= d.shared_bytes);
                    assert_int_equal(list[c].form == QN_VQ_FORM_SUMS ? p.entries
                                                                     : list[c].shared_entries + list[c].global_entries,
                                     p.entries);
                    assert_true(list[c].us > 0.0 && list[c].us < 1e9 && list[c].split >= 1);
                    assert_true(c == 0 || list[c].us >= list[c - 1].us);
                }
            }
        }
    }
}

/* What a measured H200 does with the named schemes (docs/vq.md). */
static void the_known_best_are_chosen(void **state)
{
    (void)state;
    const qn_vq_device d = device_of(QN_SM_90A);
    qn_vq_problem p = problem_of("vq_mm m=1 n=28672 k=8192");
    assert_int_equal(qn_vq_choose(&p, &d).form, QN_VQ_FORM_SUMS);
    p = problem_of("vq_mm m=8 n=28672 k=8192");
    qn_vq_choice c = qn_vq_choose(&p, &d);
    assert_int_equal(c.form, QN_VQ_FORM_TENSOR);
    assert_int_equal(c.level, QN_VQ_LEVEL_O4);
    assert_int_equal(c.copies, 8);
    p = problem_of("vq_mm m=1 n=11008 k=4096 format=quip_e8p codebook=E8P12RVQ4B");
    assert_int_equal(qn_vq_choose(&p, &d).level, QN_VQ_LEVEL_O4);
    p = problem_of("vq_mm m=1 n=4096 k=14336 num_codebooks=1 nbits_per_codebook=16");
    c = qn_vq_choose(&p, &d);
    assert_int_equal(c.slices, 5); /* of 1 MB */
    assert_in_range(c.shared_entries * c.slices, 65536, 65540);
    assert_int_equal(c.global_entries, 0);
    p = problem_of("vq_mm m=1 n=28672 k=8192 num_codebooks=1 nbits_per_codebook=16");
    c = qn_vq_choose(&p, &d);
    assert_int_equal(c.form, QN_VQ_FORM_SUMS); /* whose tables are exchanged */
    assert_int_equal(c.slices, 8);
    p = problem_of("vq_mm m=5 n=4096 k=14336 num_codebooks=1 nbits_per_codebook=16");
    c = qn_vq_choose(&p, &d);
    assert_int_equal(c.slices, 1);
    assert_in_range(c.shared_entries, 1, 65535);
    p = problem_of("vq_mm m=1 n=11008 k=4096 num_codebooks=4 in_group_size=16"); /* no kernel of sums takes it */
    assert_int_equal(qn_vq_choose(&p, &d).form, QN_VQ_FORM_TENSOR);
}

/* Lanes that read entries at random: the fullest bank group, by trial. */
static void conflicts_are_those_of_chance(void **state)
{
    (void)state;
    const qn_vq_device d = device_of(QN_SM_90A);
    qn_rng rng = {3};
    static const struct {
        int32_t bytes, lanes;
    } widths[] = {{16, 8}, {8, 16}, {4, 32}};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        double total = 0.0;
        for (int trial = 0; trial < 4000; trial++) {
            int held[32] = {0}, most = 0;
            for (int i = 0; i < widths[w].lanes; i++) {
                const int at = (int)(qn_rng_next(&rng) >> 33) % widths[w].lanes;
                most = ++held[at] > most ? held[at] : most;
            }
            total += most;
        }
        const double got = qn_vq_conflicts(&d, widths[w].bytes, 1);
        assert_true(got > 0.95 * total / 4000 && got < 1.05 * total / 4000);
        assert_true(qn_vq_conflicts(&d, widths[w].bytes, widths[w].lanes) == 1.0);
    }
}

static void explain_prints_the_decision(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    qn_op_desc desc;
    static char text[1 << 20];
    assert_int_equal(qn_ctx_create(NULL, &ctx, &error), QN_OK);
    assert_int_equal(qn_op_desc_parse("vq_mm m=1 n=4096 k=4096 level=o1", &desc, &error), QN_OK);
    qn_plan_options options;
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_CUDA;
    size_t length = 0;
    assert_int_equal(qn_explain(ctx, &desc, &options, text, sizeof text, &length, &error), QN_OK);
    assert_non_null(strstr(text, "generator: VQ<8,8,2>"));
    assert_non_null(strstr(text, "level o1"));
    assert_int_equal(qn_kernel_sources(ctx, &desc, &options, text, sizeof text, &length, &error), QN_OK);
    assert_true(length < sizeof text);
    assert_non_null(strstr(text, "#define COPIES"));
    assert_non_null(strstr(text, "qn_vq_tensor"));
    options.backend = QN_BACKEND_CPU;
    assert_int_equal(qn_kernel_sources(ctx, &desc, &options, text, sizeof text, &length, &error), QN_E_UNSUPPORTED);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(problems_say_what_a_format_is), cmocka_unit_test(choices_fit_every_device_and_level),
        cmocka_unit_test(the_known_best_are_chosen),     cmocka_unit_test(conflicts_are_those_of_chance),
        cmocka_unit_test(explain_prints_the_decision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
