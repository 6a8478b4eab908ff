/* Every row of the CPU registry that this machine can run, on cases of its own: a
 * row alone and in a batch (random ones: test_kernel_invariance.c), quotients at
 * ties, outputs that the caches do not hold, packed weights of integers. */
#include "kernels/cases.h"

/* ---- a row alone has the bits it has in a batch ---- */

#define BATCH 17

static const char *const batch_cases[] = {
    "dense_mm m=17 n=37 k=100 out=f32 b=f32",
    "dense_mm m=17 n=37 k=1100 b=bf16",
    "dense_mm m=17 n=37 k=544 out=f32 b=q4_1",
    "dense_mm m=17 n=37 k=544 b=q4_0",
    "dense_mm m=17 n=37 k=544 b=q8_0",
    "dense_mm m=17 n=37 k=544 b=q5_1",
    "dense_mm m=17 n=37 k=512 b=q6_k",
    "dense_mm m=17 n=37 k=512 b=q4_k x=bf16 out=f32",
    "dense_mm m=17 n=37 k=512 b=q3_k",
    "dense_mm m=17 n=37 k=544 b=iq4_nl out=f32",
    "dense_mm m=17 n=37 k=512 b=iq4_xs",
    "dense_mm m=17 n=37 k=512 b=i8_k",
    "dense_mm m=17 n=37 k=1100 x=bf16 b=f16 bias=1",
    "scaled_mm m=17 n=37 k=577 out=f32 scale_a=token scale_b=channel",
    "scaled_mm m=17 n=37 k=577 out=f32 a=f8_e4m3 scale_a=token scale_b=channel",
    "scaled_mm m=17 n=37 k=576 scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1",
    "block_scaled_mm m=17 n=200 k=577 out=f32",
    "block_scaled_mm m=17 n=37 k=1200 scale_layout=col",
    "nvfp4_mm m=17 n=37 k=576 out=f32",
    "nvfp4_mm m=17 n=37 k=576 a=1",
    "mxfp4_mm m=17 n=37 k=576 out=f32",
    "quantize_fp8 m=17 k=577 granularity=group",
    "quantize_fp8 m=17 k=577 granularity=token",
    "quantize_int8 m=17 k=577 granularity=token symmetric=0",
    "quantize_int8 m=17 k=577 granularity=token",
    "quantize_int8 m=17 k=577 granularity=token x=bf16",
    "quantize_int8 m=17 k=577 granularity=token symmetric=0 x=bf16",
    "quantize_int8 m=17 k=577 granularity=group x=bf16",
    "silu_mul_quant m=17 k=577",
    "silu_mul m=17 k=577",
    "rmsnorm m=17 k=577",
    "rope m=17 k=64 e=3",
    "attention m=17 n=130 k=64 e=6 g=2",
    "attention m=17 n=130 k=40 e=3 g=3 causal=0",
    "attention m=17 n=300 k=64 e=6 g=2 out=bf16",
    "attention m=17 n=513 k=16 e=4 g=4 k=f16 v=f16",
    "attention m=17 n=300 k=64 e=6 g=2 k=f16 v=f16",
    "attention m=17 n=133 k=128 e=5 g=1 k=bf16 v=bf16",
    "attention m=17 n=513 k=64 e=6 g=2 k=bf16 v=bf16",
    "attention m=17 n=300 k=40 e=3 g=3 causal=0 k=bf16 v=bf16",
    "attention m=17 n=300 k=96 e=6 g=2 k=bf16 v=bf16",
    "attention m=17 n=200 k=80 e=3 g=1 k=f16 v=f16",
    "attention m=17 n=150 k=112 e=2 g=2",
    "scaled_attention m=17 n=200 k=96 e=4 g=2",
    "scaled_attention m=17 n=300 k=64 e=6 g=2",
    "scaled_attention m=17 n=150 k=128 e=8 g=1 causal=0",
    "quantize_nvfp4 m=17 k=576 global_scale=1",
    "vq_mm m=17 n=37 k=584 out=f32",
    "vq_mm m=17 n=130 k=328 out=f32",
    "vq_mm m=17 n=130 k=6144 out=f32",
    "vq_mm m=17 n=300 k=520 format=gptvq x=bf16",
    "vq_mm m=17 n=70 k=4364 format=gptvq out=f32 x=f32",
    "vq_mm m=17 n=64 k=192 format=quip_e8p out=f32 SU=1 SV=1",
    "vq_mm m=17 n=144 k=576 format=quip_e8p codebook=E8P12RVQ4B out=f32 SU=1 SV=1",
    "vq_mm m=17 n=80 k=320 format=quip_e8p codebook=E8P12RVQ3B x=bf16",
    "quantize_mxfp4 m=17 k=96 x=bf16",
};

static int m_axis(const qn_shape *shape)
{
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] == BATCH) {
            return i;
        }
    }
    return -1;
}

static void keep_row(qn_shape *shape, const void **data, const int64_t *strides, int64_t row)
{
    const int axis = shape->format ? m_axis(shape) : -1;
    if (axis >= 0) {
        const int64_t step = axis == shape->ndim - 1 ? qn_format_get_info(shape->format)->block_bytes : strides[axis];
        *data = (const char *)*data + row * step;
        shape->dims[axis] = 1;
    }
}

static void compare_row(const tensors *t, const qn_plan *plan, void *const batch[QN_MAX_OUT], int64_t row,
                        const char *text)
{
    qn_args args = dense_args(t, batch);
    void *alone[QN_MAX_OUT] = {NULL};
    for (int i = 0; i < t->info->in_count; i++) {
        if (!t->info->in[i].weight) {
            keep_row(&args.in[i].shape, &args.in[i].data, args.in[i].strides, row);
        }
        if ((t->desc.op == QN_OP_ATTENTION || t->desc.op == QN_OP_SCALED_ATTENTION) && i > 0 &&
            t->desc.attr[QN_ATTR_CAUSAL].i) {
            args.in[i].shape.dims[0] -= BATCH - 1 - row;
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            const int axis = m_axis(&t->out[i]); /* -1: one for all rows, and given */
            if (axis >= 0) {
                args.out[i].shape.dims[axis] = 1;
            }
            alone[i] = calloc(1, t->out_bytes[i] + 64);
            args.out[i] = qn_mut_view_make(alone[i], &args.out[i].shape);
        }
    }
    run_plan(plan, &args, 1, NULL, text);
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            int64_t strides[QN_MAX_DIMS];
            strides_of(&t->out[i], 0, strides);
            const int axis = m_axis(&t->out[i]);
            const qn_shape *one = &args.out[i].shape;
            /* rows along the first axis are contiguous; along the last, one element each */
            const int64_t size = qn_format_get_info(one->format)->block_bytes, count = qn_shape_elements(one);
            for (int64_t e = 0; e < count; e++) {
                const char *in_batch =
                    (const char *)batch[i] + (axis == 0 ? row * strides[0] + e * size : e * strides[0] + row * size);
                if (t->out[i].ndim == 1) {
                    in_batch = (const char *)batch[i] + (axis < 0 ? e : row) * size;
                }
                if (memcmp(in_batch, (const char *)alone[i] + e * size, (size_t)size) != 0) {
                    fail_msg("%s, %s: row %lld, element %lld of output %d differs alone", qn_plan_kernel(plan), text,
                             (long long)row, (long long)e, i);
                }
            }
            free(alone[i]);
        }
    }
}

static void rows_do_not_know_their_batch(void **state)
{
    (void)state;
    qn_kernel_info k;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof batch_cases / sizeof *batch_cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(batch_cases[c], &desc, &error), &error, batch_cases[c]);
            tensors t;
            qn_plan *plan = NULL;
            if (desc.op != k.op) {
                continue;
            }
            if (tensors_make(batch_cases[c], k.name, 0, &t, &plan)) {
                void *batch[QN_MAX_OUT] = {NULL};
                for (int o = 0; o < t.info->out_count; o++) {
                    batch[o] = calloc(1, t.out_bytes[o] + 1);
                }
                const qn_args args = dense_args(&t, batch);
                run_plan(plan, &args, BATCH, NULL, batch_cases[c]);
                for (int64_t row = 0; row < BATCH; row += 4) {
                    compare_row(&t, plan, batch, row, batch_cases[c]);
                }
                for (int o = 0; o < QN_MAX_OUT; o++) {
                    free(batch[o]);
                }
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

/* A kernel's outputs from one input, bit for bit those of the reference. */
static void same_bits(const char *text, const char *kernel, const void *x, float scalar)
{
    qn_error error = {0};
    qn_plan *plans[2];
    void *out[2][QN_MAX_OUT] = {{NULL}};
    tensors t;
    memset(&t, 0, sizeof t);
    must(qn_op_desc_parse(text, &t.desc, &error), &error, text);
    must(qn_op_desc_check(&t.desc, t.out, &t.sizes, &error), &error, text);
    t.info = qn_op_get_info(t.desc.op);
    for (int p = 0; p < 2; p++) {
        qn_plan_options options;
        qn_plan_options_init(&options);
        options.backend = p ? QN_BACKEND_REF : QN_BACKEND_CPU;
        options.kernel = p ? NULL : kernel;
        must(qn_plan_create(ctx, &t.desc, &options, &plans[p], &error), &error, text);
        for (int i = 0; i < t.info->out_count; i++) {
            if (t.out[i].format) {
                must(qn_shape_bytes(&t.out[i], &t.out_bytes[i], &error), &error, text);
                out[p][i] = calloc(1, t.out_bytes[i] + 1);
            }
        }
        qn_args args = dense_args(&t, out[p]);
        args.in[0].data = x;
        args.in[1].data = &scalar;
        run_plan(plans[p], &args, t.sizes.m, NULL, text);
        qn_plan_destroy(plans[p]);
    }
    for (int i = 0; i < t.info->out_count; i++) {
        for (size_t b = 0; b < t.out_bytes[i]; b++) {
            const uint8_t got = ((uint8_t *)out[0][i])[b], want = ((uint8_t *)out[1][i])[b];
            if (got != want) {
                fail_msg("%s, %s: byte %zu of output %d is 0x%02x, expected 0x%02x", kernel, text, b, i, got, want);
            }
        }
        free(out[0][i]);
        free(out[1][i]);
    }
}

#define OCTAVES 20 /* of magnitudes a row, 128 each: e4m3 ends 18 below the largest */

/* Row r: the largest magnitude has significand 128 + r, the others are all of 8 bits below it. */
static uint16_t *quotients_make(void)
{
    uint16_t *const x = calloc(128 * 128 * OCTAVES, sizeof *x);
    for (int r = 0; r < 128; r++) {
        for (int i = 0; i < 128 * OCTAVES; i++) {
            const uint16_t top = (uint16_t)(0x3f80 + r), bits = (uint16_t)(0x3f80 + i % 128 - i / 128 * 0x80);
            x[r * 128 * OCTAVES + i] = (uint16_t)((bits > top ? top : bits) | (i % 3 == 0 ? 0x8000 : 0));
        }
    }
    return x;
}

/* x / s rounded to a code: ties are met only where the quotient is right to the last bit. */
static void quotients_of_eight_bits_are_exact(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "quantize_fp8 m=128 k=2560 granularity=token x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=token type=e5m2 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=token type=e4m3fnuz x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=group group=2560 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=group scale_format=ue8m0 x=bf16",
        "quantize_fp8 m=128 k=2560 granularity=block x=bf16",
        "quantize_int8 m=128 k=2560 granularity=group group=2560 x=bf16",
        "quantize_int8 m=128 k=2560 granularity=group x=bf16",
        "quantize_mxfp4 m=128 k=2560 rule=even x=bf16",
        "quantize_nvfp4 m=128 k=2560 x=bf16 global_scale=1",
    };
    static const float globals[] = {900.0f, 1e-3f, 1e6f, 3e9f, 1e30f}; /* from the third on, codes are held to 6 */
    uint16_t *const x = quotients_make();
    qn_kernel_info k;
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
            for (size_t g = 0; desc.op == k.op && g < (k.op == QN_OP_QUANTIZE_NVFP4 ? 5 : 1); g++) {
                same_bits(cases[c], k.name, x, globals[g]);
            }
        }
    }
    free(x);
}

/* Outputs too large for the caches take another way to memory. */
static void large_outputs_are_the_same(void **state)
{
    (void)state;
    qn_kernel_info k;
    static const char *const cases[] = {
        "quantize_fp8 m=4100 k=4111 x=bf16", /* rows at every alignment */
        "quantize_fp8 m=2050 k=8256 granularity=group x=bf16",
        "quantize_fp8 m=2050 k=8256 granularity=block x=bf16",
        "quantize_fp8 m=2050 k=8257 granularity=block mode=static", /* blocks that are kept, rows at every alignment */
        "quantize_int8 m=2050 k=8256 granularity=token symmetric=0 x=f16",
        "quantize_int8 m=2050 k=8256 granularity=token symmetric=0 x=bf16",
        "quantize_int8 m=2050 k=8256 granularity=group x=bf16",
        "quantize_mxfp4 m=2060 k=16480 x=bf16", /* codes of every other row are not aligned */
        "silu_mul_quant m=2050 k=8256 x=bf16",
        "dequantize m=1100 k=4111 granularity=token",
        "silu_mul m=1100 k=4111 out=f32 x=bf16",
        "dequantize m=1100 k=4112 format=nvfp4",
        "rmsnorm m=1100 k=4111",
        "rope m=1100 k=128 e=33",
    };
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            qn_op_desc desc;
            qn_error error;
            must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
            tensors t;
            qn_plan *plan = NULL;
            if (desc.op != k.op) {
                continue;
            }
            if (tensors_make(cases[c], k.name, 0, &t, &plan)) {
                void *got[QN_MAX_OUT] = {NULL};
                for (int o = 0; o < t.info->out_count; o++) {
                    got[o] = aligned_alloc(64, t.out_bytes[o] / 64 * 64 + 64);
                }
                const qn_args args = dense_args(&t, got);
                const qn_exec exec = {.pool = pools[0]};
                run_plan(plan, &args, t.sizes.m, &exec, cases[c]);
                judge(&t, got, 0, k.name, cases[c]);
                for (int o = 0; o < QN_MAX_OUT; o++) {
                    free(got[o]);
                }
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

/* The wide sums of int8 wrap like int32, and packed weights give the same bits. */
static void packed_weights_give_the_same_bits(void **state)
{
    (void)state;
    qn_kernel_info k;
    static const char *const cases[] = {
        "scaled_mm m=5 n=37 k=577 out=f32 scale_a=token scale_b=channel",
        "scaled_mm m=9 n=64 k=64 scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1",
        "scaled_mm m=1 n=33 k=1 bias=1 azp_adj=1", "scaled_mm m=3 n=5 k=0 bias=1"};
    for (int32_t i = 0; next_kernel(&i, &k);) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases && k.op == QN_OP_SCALED_MM; c++) {
            tensors t;
            qn_plan *plan = NULL;
            if (tensors_make(cases[c], k.name, 0, &t, &plan)) {
                qn_error error = {0};
                const size_t bytes = qn_plan_pack_bytes(plan);
                void *blob = NULL;
                assert_true(bytes > 64);
                assert_int_equal(posix_memalign(&blob, 64, bytes), 0);
                void *got[2][QN_MAX_OUT] = {{calloc(1, t.out_bytes[0] + 1)}, {calloc(1, t.out_bytes[0] + 1)}};
                qn_args args = dense_args(&t, got[0]);
                must(qn_pack(plan, &args, blob, bytes, &error), &error, cases[c]);
                run_plan(plan, &args, t.sizes.m, NULL, cases[c]);
                judge(&t, got[0], 0, k.name, cases[c]);
                args = dense_args(&t, got[1]);
                args.packed = blob;
                for (int s = 0; s < t.info->in_count; s++) {
                    if (t.info->in[s].weight) {
                        args.in[s] = (qn_view){0};
                    }
                }
                run_plan(plan, &args, t.sizes.m, NULL, cases[c]);
                assert_memory_equal(got[0][0], got[1][0], t.out_bytes[0]);
                free(got[0][0]);
                free(got[1][0]);
                free(blob);
                qn_plan_destroy(plan);
            }
            tensors_free(&t);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_know_their_batch),
        cmocka_unit_test(quotients_of_eight_bits_are_exact),
        cmocka_unit_test(large_outputs_are_the_same),
        cmocka_unit_test(packed_weights_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
