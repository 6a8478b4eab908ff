/* Every row of the CPU registry that this machine can run against the reference:
 * the shared case table and sizes around the row's tile, on the exact grid bit for
 * bit and on random values within the error model; operands, packed weights and
 * workspace between forbidden pages, strided, odd-aligned; 1, 2, 3 and 7 threads. */
#include "backend/backend.h"
#include "kernels/cases.h"
#include "op/large.h"
#include "op/random_cases.h"

#define POISON_IN 0xFF /* NaN in every float format, -1 in integers */

static int strided_output(const tensors *t, int i)
{
    return t->out[i].ndim > 1 && !(t->desc.op == QN_OP_QUANTIZE_NVFP4 && t->desc.attr[QN_ATTR_SWIZZLED].i);
}

/* Run between forbidden pages, with packed weights when there is a blob, and keep the bits in first[] or compare with
 * them. */
static void run_guarded(const tensors *t, const qn_plan *plan, placement where, int64_t gap, const guarded *blob,
                        const qn_exec *exec, void *const first[QN_MAX_OUT], int compare, const char *text)
{
    guarded in[QN_MAX_IN] = {{0}}, out[QN_MAX_OUT] = {{0}};
    qn_args args;
    memset(&args, 0, sizeof args);
    int64_t dense[QN_MAX_DIMS];
    args.packed = blob ? blob->data : NULL;
    for (int i = 0; i < t->info->in_count; i++) {
        if (t->desc.in[i].format && !(blob && t->info->in[i].weight)) {
            const size_t shift = (size_t)qn_format_get_info(t->desc.in[i].format)->block_bytes;
            args.in[i].shape = t->desc.in[i];
            in[i] = guarded_make(strides_of(&t->desc.in[i], gap, args.in[i].strides), where, shift, POISON_IN);
            args.in[i].data = in[i].data;
            strides_of(&t->desc.in[i], 0, dense);
            copy_rows(&t->desc.in[i], in[i].data, args.in[i].strides, t->in[i], dense);
        }
    }
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format) {
            const size_t shift = (size_t)qn_format_get_info(t->out[i].format)->block_bytes;
            args.out[i].shape = t->out[i];
            out[i] = guarded_make(strides_of(&t->out[i], strided_output(t, i) ? gap : 0, args.out[i].strides), where,
                                  shift, POISON_OUT);
            args.out[i].data = out[i].data;
        }
    }
    run_plan(plan, &args, t->sizes.m, exec, text);
    for (int i = 0; i < t->info->out_count; i++) {
        if (t->out[i].format && t->sizes.m > 0) {
            char *got = calloc(1, t->out_bytes[i] + 1);
            strides_of(&t->out[i], 0, dense);
            copy_rows(&t->out[i], got, dense, out[i].data, args.out[i].strides);
            if (compare && memcmp(got, first[i], t->out_bytes[i]) != 0) {
                fail_msg("%s, %s: output %d differs (%d threads, gap %lld, placement %d, %s weights)",
                         qn_plan_kernel(plan), text, i, qn_exec_threads(exec), (long long)gap, (int)where,
                         blob ? "packed" : "stored");
            }
            if (!compare) {
                memcpy(first[i], got, t->out_bytes[i]);
            }
            /* what lies between the rows must still be poison: put the rows back to poison and look */
            memset(got, POISON_OUT, t->out_bytes[i]);
            copy_rows(&t->out[i], out[i].data, args.out[i].strides, got, dense);
            assert_true(all_bytes_are(out[i].data, out[i].bytes, POISON_OUT));
            assert_true(canaries_alive(&out[i], POISON_OUT));
            free(got);
        }
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        guarded_free(&in[i]);
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        guarded_free(&out[i]);
    }
}

/* Packed weights, to be read only; no memory when the kernel packs nothing. */
static guarded pack_guarded(const tensors *t, const qn_plan *plan, const char *text)
{
    qn_error error = {0};
    const size_t bytes = qn_plan_pack_bytes(plan);
    if (bytes == 0) {
        return (guarded){0};
    }
    guarded blob = guarded_make_aligned(bytes, POISON_IN);
    void *none[QN_MAX_OUT] = {NULL};
    const qn_args args = dense_args(t, none);
    must(qn_pack(plan, &args, blob.data, bytes, &error), &error, text);
    assert_true(canaries_alive(&blob, POISON_IN));
    guarded_freeze(&blob);
    return blob;
}

/* Exact and random values, of large weights of vectors random ones only. Stored weights, which every run packs first,
 * in two placements each and a third on threads, of vectors, whose packing takes long, in one; packed ones in one each,
 * of vectors in two. */
static int run_case(const char *kernel, const char *text, int thorough)
{
    static int turn;
    int ran = 0, values = 2;
    for (int exact = 0; exact < values; exact++) {
        tensors t;
        qn_plan *plan = NULL;
        if (!tensors_make(text, kernel, exact, &t, &plan)) {
            tensors_free(&t);
            return 0;
        }
        assert_string_equal(qn_plan_kernel(plan), kernel);
        const int vectors = t.desc.op == QN_OP_VQ_MM, p = ++turn % 3;
        values = vectors && has_large_weights(&t.sizes) ? 1 : 2;
        void *got[QN_MAX_OUT] = {NULL};
        for (int i = 0; i < t.info->out_count; i++) {
            got[i] = calloc(1, t.out_bytes[i] + 1);
        }
        guarded blob = pack_guarded(&t, plan, text);
        const qn_exec exec = {.pool = pools[p]};
        run_guarded(&t, plan, AT_END, 0, vectors && blob.map ? &blob : NULL, NULL, got, 0, text);
        if (t.sizes.m > 0) {
            judge(&t, got, exact, kernel, text);
        }
        if (exact) {
            run_guarded(&t, plan, vectors && p ? AT_END : AT_START, 3, NULL, NULL, got, 1, text);
        } else {
            run_guarded(&t, plan, OFF_ALIGNMENT, turn / 2 % 2, NULL, NULL, got, 1, text);
        }
        if (thorough && !exact && !vectors) {
            run_guarded(&t, plan, AT_END, p, NULL, &exec, got, 1, text);
        }
        if (blob.map) {
            run_guarded(&t, plan, exact ? AT_END : OFF_ALIGNMENT, !exact, &blob, exact ? NULL : &exec, got, 1, text);
        }
        guarded_free(&blob);
        for (int i = 0; i < QN_MAX_OUT; i++) {
            free(got[i]);
        }
        qn_plan_destroy(plan);
        tensors_free(&t);
        ran = 1;
    }
    return ran;
}

static void every_row_on_the_case_table(void **state)
{
    (void)state;
    enum { MOST_ROWS = 1024 };
    static int32_t cases[MOST_ROWS];
    qn_kernel_info k;
    int32_t rows = 0, runs = 0, bench;
    const char *text;
    for (int32_t c = 0; (text = qn_case_at(c, &bench)); c++) {
        qn_op_desc desc;
        qn_error error;
        must(qn_op_desc_parse(text, &desc, &error), &error, text);
        for (int32_t i = 0; !bench && kernel_at(ctx, i, &k) == QN_OK; i++) {
            assert_true(i < MOST_ROWS);
            if (k.op == desc.op && k.backend == QN_BACKEND_CPU && !k.refusal) {
                cases[i] += run_case(k.name, text, 1);
            }
        }
    }
    for (int32_t i = 0; next_kernel(&i, &k); rows++) {
        if (cases[i - 1] == 0) {
            fail_msg("%s: no case of the table reaches this row", k.name);
        }
        runs += cases[i - 1];
    }
    assert_true(rows > 0);
    print_message("%d registry rows, %d cases\n", rows, runs);
}

/* Every row of an operator on cases drawn at random; QN_TEST_CASES: how many of an operator, QN_TEST_SEED. */
static void random_cases_agree(void **state)
{
    (void)state;
    const char *const many = getenv("QN_TEST_CASES"), *const seed = getenv("QN_TEST_SEED");
    random_cases r = {.state = seed ? strtoull(seed, NULL, 10) : SEED, .most_work = 1 << (many ? 24 : 20)};
    qn_kernel_info k;
    int runs = 0;
    for (int c = many ? atoi(many) : 4; c > 0; c--) {
        for (int32_t o = 0; qn_op_at(o) != QN_OP_NONE; o++) {
            char text[512];
            random_case(&r, qn_op_at(o), text, sizeof text);
            for (int32_t i = 0; kernel_at(ctx, i, &k) == QN_OK; i++) {
                if (k.op == qn_op_at(o) && k.backend == QN_BACKEND_CPU && !k.refusal) {
                    runs += run_case(k.name, text, c & 1);
                }
            }
        }
    }
    assert_true(runs > 0);
    print_message("%d random cases\n", runs);
}

/* Operators by what makes their kernels differ, and what their K must be a multiple of. */
static const struct {
    qn_op op;
    const char *words;
    int k_unit, has_n;
} contracts[] = {
    {QN_OP_DENSE_MM, "dense_mm b=f32 out=f32", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=bf16 x=f16 out=f32", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=bf16 x=bf16", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=f16 x=bf16 bias=1", 1, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q4_1 out=f32", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q8_0", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q5_0 x=f16 bias=1", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q2_k out=f32", 256, 1},
    {QN_OP_DENSE_MM, "dense_mm b=q6_k out=f16", 256, 1},
    {QN_OP_DENSE_MM, "dense_mm b=iq4_nl x=bf16", 32, 1},
    {QN_OP_DENSE_MM, "dense_mm b=iq4_xs out=f32", 256, 1},
    {QN_OP_DENSE_MM, "dense_mm b=i8_k out=f32", 256, 1},
    {QN_OP_SCALED_MM, "scaled_mm out=f32 scale_a=token scale_b=channel", 1, 1},
    {QN_OP_SCALED_MM, "scaled_mm scale_a=token scale_b=channel bias=f16 azp_adj=1 azp=1", 1, 1},
    {QN_OP_SCALED_MM, "scaled_mm a=f8_e4m3 scale_a=token bias=1", 1, 1},
    {QN_OP_BLOCK_SCALED_MM, "block_scaled_mm out=f32", 1, 1},
    {QN_OP_GROUPED_BLOCK_SCALED_MM, "grouped_block_scaled_mm e=3 out=f32", 1, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm out=f32", 16, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm a=1 out=f32", 16, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm x=i8 x_scale=token out=f32", 16, 1},
    {QN_OP_NVFP4_MM, "nvfp4_mm x=f8_e4m3 bias=1", 16, 1},
    {QN_OP_MXFP4_MM, "mxfp4_mm bias=1", 32, 1},
    {QN_OP_MXFP4_MM, "mxfp4_mm x=i8 x_scale=token bias=1", 32, 1},
    {QN_OP_VQ_MM, "vq_mm out=f32", 8, 1},
    {QN_OP_VQ_MM, "vq_mm x=bf16 bias=1", 8, 1},
    {QN_OP_VQ_MM, "vq_mm num_codebooks=1 nbits_per_codebook=16 out=f32", 8, 1},
    {QN_OP_VQ_MM, "vq_mm format=gptvq out=f32", 4, 1},
    {QN_OP_VQ_MM, "vq_mm format=gptvq x=bf16 bias=1", 4, 1},
    {QN_OP_ATTENTION, "attention e=4 g=2", 1, 1},
    {QN_OP_QUANTIZE_FP8, "quantize_fp8 granularity=token", 1, 0},
    {QN_OP_QUANTIZE_FP8, "quantize_fp8 granularity=group x=bf16", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=token symmetric=0", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=group group=32 x=f16", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=token x=bf16", 1, 0},
    {QN_OP_QUANTIZE_INT8, "quantize_int8 granularity=group x=bf16", 1, 0},
    {QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4 global_scale=1", 16, 0},
    {QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4 x=bf16", 32, 0},
    {QN_OP_SILU_MUL_QUANT, "silu_mul_quant x=bf16", 1, 0},
    {QN_OP_SILU_MUL, "silu_mul out=f32", 1, 0},
    {QN_OP_RMSNORM, "rmsnorm", 1, 0},
    {QN_OP_ROPE, "rope e=3", 2, 0},
    {QN_OP_ROPE, "rope e=3 factors=1", 2, 0},
};

/* Sizes that end before, at and after the multiples that tiles, panels and vectors have. */
static const int around[] = {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 576};
static const int around_m[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 130};
#define AROUND ((int)(sizeof around / sizeof *around))
#define AROUND_M ((int)(sizeof around_m / sizeof *around_m))

static const qn_kernel *registry_row(const char *name)
{
    for (int32_t i = 0;; i++) {
        const qn_kernel *kernel = qn_backend_cpu_row.kernel_at(i);
        if (!kernel || strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
}

/* Size i of a list that goes on with the tile's own: one less, it, one more, twice it and one more. */
static int size_at(const int *list, int count, int tile, int i)
{
    const int own[] = {tile - 1, tile, tile + 1, 2 * tile + 1};
    const int size = i < count ? list[i] : own[(i - count) % 4];
    return size > 0 ? size : 1;
}

static void sizes_around_the_tile(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
        /* strides without common factors: every size of every list, in ever other company */
        for (int s = 0; s < AROUND + 4; s++) {
            qn_kernel_info k;
            for (int32_t i = 0; kernel_at(ctx, i, &k) == QN_OK; i++) {
                if (k.op != contracts[c].op || k.backend != QN_BACKEND_CPU || k.refusal) {
                    continue;
                }
                const qn_kernel *row = registry_row(k.name);
                assert_non_null(row);
                const int unit = contracts[c].k_unit, m = size_at(around_m, AROUND_M, row->mr, s % (AROUND_M + 4));
                const int n = size_at(around, AROUND, row->nr, s * 5 % (AROUND + 4));
                const int kk = (size_at(around, AROUND, row->nr, s * 7 % (AROUND + 4)) + unit - 1) / unit * unit;
                char text[128];
                if (contracts[c].has_n) {
                    snprintf(text, sizeof text, "%s m=%d n=%d k=%d", contracts[c].words, m, n, kk);
                } else {
                    snprintf(text, sizeof text, "%s m=%d k=%d", contracts[c].words, m, kk);
                }
                run_case(k.name, text, 0);
            }
        }
    }
}

/* Cases by every kernel of their operators; each is taken by one at least. */
static void run_thoroughly(const char *const *cases, size_t count)
{
    for (size_t c = 0; c < count; c++) {
        qn_op_desc desc;
        qn_error error;
        qn_kernel_info k;
        int runs = 0;
        must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
        for (int32_t i = 0; next_kernel(&i, &k);) {
            runs += k.op == desc.op ? run_case(k.name, cases[c], 1) : 0;
        }
        assert_true(runs > 0);
    }
}

/* Rows that belong to no group keep the poison, which is what the reference's outputs are filled with before. */
static void rows_of_no_group_are_kept(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "grouped_block_scaled_mm m=19 n=70 k=200 e=3 tail=keep",
        "grouped_block_scaled_mm m=70 n=33 k=130 e=5 tail=keep out=f32",
        "grouped_block_scaled_mm m=9 n=33 k=70 e=3 layout=masked tail=keep",
        "grouped_block_scaled_mm m=70 n=65 k=256 e=4 layout=masked tail=keep out=f16 scale_layout=col",
    };
    run_thoroughly(cases, sizeof cases / sizeof *cases);
}

/* Keys and values are taken as they are stored by few rows where heads are whole tiles, if not whole panels. */
static void heads_of_tiles_agree(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "attention m=1 n=300 k=96 e=4 g=2 k=bf16 v=bf16",
        "attention m=3 n=131 k=80 e=6 g=2 k=f16 v=f16",
        "attention m=2 n=200 k=112 e=8 g=8",
        "attention m=5 n=17 k=48 e=2 g=1 k=bf16 v=bf16",
        "attention m=1 n=260 k=16 e=7 g=1 k=f16 v=f16",
        "attention m=4 n=150 k=160 e=3 g=1 out=bf16",
        "scaled_attention m=1 n=300 k=96 e=4 g=2",
        "scaled_attention m=2 n=140 k=160 e=6 g=2",
        "scaled_attention m=2 n=200 k=96 e=9 g=3 window=128",
    };
    run_thoroughly(cases, sizeof cases / sizeof *cases);
}

/* Entries of any width, books of any length, codes of one and of two bytes. */
static void coded_keys_agree(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "vq_attention m=2 n=70 k=128 e=4 g=2 channels=8 bits=10",
        "vq_attention m=1 n=131 k=96 e=2 g=1 rope_theta=1e+04 channels=4 bits=12",
        "vq_attention m=2 n=40 k=64 e=4 g=4 channels=2 bits=5",
        "vq_attention m=1 n=90 k=96 e=3 g=1 channels=32",
        "vq_attention m=2 n=50 k=96 e=2 g=2 channels=24 bits=6",
        "vq_attention m=1 n=40 k=96 e=2 g=2 rope_theta=1e+04 channels=12 bits=9 page=8",
        "vq_attention m=1 n=300 k=64 e=2 g=1 channels=4 bits=11 window=128",
    };
    run_thoroughly(cases, sizeof cases / sizeof *cases);
}

static void run_kernel_with(const char *kernel, const char *text)
{
    tensors t;
    qn_plan *plan = NULL;
    if (tensors_make(text, kernel, 0, &t, &plan)) {
        void *got[QN_MAX_OUT] = {NULL};
        for (int o = 0; o < t.info->out_count; o++) {
            got[o] = calloc(1, t.out_bytes[o] + 1);
        }
        const qn_args args = dense_args(&t, got);
        run_plan(plan, &args, t.sizes.m, NULL, text);
        judge(&t, got, 0, kernel, text);
        for (int o = 0; o < QN_MAX_OUT; o++) {
            free(got[o]);
        }
        qn_plan_destroy(plan);
    }
    tensors_free(&t);
}

/* Cases with such values through every kernel of theirs. */
static void run_with(int values, const char *const *cases, size_t count)
{
    with_values = values;
    for (size_t c = 0; c < count; c++) {
        qn_op_desc desc;
        qn_error error;
        qn_kernel_info k;
        must(qn_op_desc_parse(cases[c], &desc, &error), &error, cases[c]);
        for (int32_t i = 0; kernel_at(ctx, i, &k) == QN_OK; i++) {
            if (k.op == desc.op && k.backend == QN_BACKEND_CPU && !k.refusal) {
                run_kernel_with(k.name, cases[c]);
            }
        }
    }
    with_values = 0;
}

static void special_values_travel_as_in_the_reference(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "dense_mm m=6 n=37 k=100 out=f32",
        "dense_mm m=6 n=37 k=96 x=bf16 b=q4_1",
        "dense_mm m=6 n=37 k=96 out=f32 b=q8_0",
        "dense_mm m=6 n=37 k=256 out=f32 x=f16 b=q5_k",
        "dense_mm m=6 n=37 k=256 b=q6_k",
        "dense_mm m=6 n=37 k=96 b=iq4_nl",
        "dense_mm m=6 n=37 k=256 x=bf16 b=iq4_xs out=f32",
        "dense_mm m=6 n=37 k=256 x=bf16 b=i8_k out=f32",
        "dense_mm m=6 n=9 k=70 x=f16 b=bf16 out=f16",
        "scaled_mm m=6 n=37 k=100 a=f8_e4m3 scale_a=token out=f32",
        "block_scaled_mm m=6 n=37 k=200",
        "nvfp4_mm m=6 n=37 k=48",
        "nvfp4_mm m=6 n=37 k=176 a=1 out=f32",
        "nvfp4_mm m=6 n=37 k=176 x=i8 x_scale=token out=f32",
        "nvfp4_mm m=30 n=37 k=80 x=f8_e4m3 x_scale=token",
        "mxfp4_mm m=30 n=37 k=96 x=i8 x_scale=token",
        "mxfp4_mm m=6 n=37 k=64 out=f16",
        "vq_mm m=6 n=37 k=104 out=f32 x=f32",
        "vq_mm m=6 n=130 k=328 out=f32 x=f32",
        "vq_mm m=6 n=300 k=600 out=f32 x=f32",
        "vq_mm m=6 n=300 k=1000 num_codebooks=1 out=f32 x=f32",
        "vq_mm m=6 n=37 k=600 format=gptvq out=f32 x=f32",
        "vq_mm m=6 n=80 k=576 format=quip_e8p codebook=E8P12RVQ4B out=f32 x=f32",
        "vq_mm m=6 n=80 k=576 format=quip_e8p codebook=E8P12RVQ3B out=f32 x=f32",
        "quantize_fp8 m=6 k=130 granularity=token",
        "quantize_fp8 m=6 k=130 granularity=group type=e5m2",
        "quantize_fp8 m=6 k=130 granularity=group type=e4m3fnuz x=f16",
        "quantize_fp8 m=6 k=130 granularity=group scale_format=ue8m0",
        "quantize_fp8 m=6 k=130 granularity=token mode=static",
        "quantize_int8 m=6 k=130 granularity=token",
        "quantize_int8 m=6 k=130 granularity=token symmetric=0 x=bf16",
        "quantize_int8 m=6 k=390 granularity=group x=bf16",
        "quantize_int8 m=6 k=130 mode=static symmetric=0 x=f16",
        "quantize_int8 m=6 k=130 granularity=group",
        "quantize_int8 m=6 k=130 granularity=token symmetric=0",
        "quantize_int8 m=6 k=130 granularity=token mode=static symmetric=0",
        "quantize_mxfp4 m=6 k=96",
        "quantize_mxfp4 m=6 k=96 rule=even x=bf16",
        "quantize_nvfp4 m=6 k=96",
        "quantize_nvfp4 m=6 k=96 global_scale=1 x=f16",
        "quantize_fp8 m=6 k=130 granularity=block",
        "quantize_fp8 m=6 k=130",
        "quantize_fp8 m=6 k=130 granularity=token scale_ub=0.5",
        "quantize_int8 m=6 k=130 symmetric=0",
        "silu_mul_quant m=6 k=128",
        "silu_mul_quant m=6 k=128 type=int8",
        "silu_mul m=6 k=70 x=bf16",
        "rmsnorm m=6 k=70",
        "rope m=2 k=16 e=3",
        "attention m=4 n=70 k=16 e=4 g=2",
        "attention m=6 n=300 k=16 e=4 g=2",
        "attention m=2 n=300 k=64 e=4 g=2 k=f16 v=f16",
        "attention m=6 n=300 k=64 e=4 g=2 k=bf16 v=bf16",
        "attention m=12 n=300 k=16 e=4 g=1 k=bf16 v=bf16",
        "scaled_attention m=2 n=300 k=64 e=4 g=2",
    };
    run_with(SPECIALS, cases, sizeof cases / sizeof *cases);
}

/* More rows than share a panel's weights, columns that are no whole panel. */
static void odd_rows_and_panels_are_within_the_error_model(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "dense_mm m=19 n=37 k=200 x=bf16 b=bf16 out=f32",
        "dense_mm m=19 n=37 k=200 b=bf16 out=f32",
        "dense_mm m=19 n=37 k=96 b=q4_0 out=f32",
        "dense_mm m=19 n=37 k=96 x=bf16 b=q4_1 out=f32",
        "dense_mm m=19 n=37 k=160 b=q5_0 out=f32",
        "dense_mm m=19 n=37 k=160 b=q5_1 out=f32",
        "dense_mm m=19 n=37 k=96 x=bf16 b=q8_0",
        "dense_mm m=19 n=37 k=96 b=iq4_nl out=f32",
        "dense_mm m=19 n=37 k=256 b=q2_k out=f32",
        "dense_mm m=19 n=37 k=256 b=q3_k out=f32 bias=1",
        "dense_mm m=19 n=37 k=256 x=bf16 b=q4_k out=f32",
        "dense_mm m=19 n=37 k=256 b=q5_k out=f32",
        "dense_mm m=19 n=37 k=256 b=q6_k out=f32",
        "dense_mm m=19 n=37 k=256 b=iq4_xs out=f32",
        "dense_mm m=19 n=37 k=256 b=i8_k out=f32",
        "scaled_mm m=19 n=37 k=100 a=f8_e4m3 scale_a=token scale_b=channel out=f32 bias=1",
        "block_scaled_mm m=19 n=37 k=300 out=f32",
        "block_scaled_mm m=19 n=37 k=200 b=f8_e5m2 out=f32 scale_layout=col",
        "grouped_block_scaled_mm m=40 n=37 k=330 e=3 out=f32",
        "grouped_block_scaled_mm m=11 n=37 k=200 e=3 layout=masked out=f32",
        "nvfp4_mm m=19 n=37 k=176 out=f32",
        "nvfp4_mm m=19 n=37 k=176 x=bf16 out=f32",
        "nvfp4_mm m=19 n=37 k=176 a=1 out=f32",
        "nvfp4_mm m=19 n=37 k=176 x=i8 x_scale=token out=f32",
        "mxfp4_mm m=19 n=37 k=160 out=f32 bias=1",
        "mxfp4_mm m=19 n=37 k=160 x=bf16",
        "mxfp4_mm m=19 n=37 k=160 x=f16 out=f32",
        "mxfp4_mm m=19 n=37 k=160 x=i8 x_scale=token out=f32",
    };
    run_with(ODD, cases, sizeof cases / sizeof *cases);
}

static void special_keys_and_values_reach_who_sees_them(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "attention m=1 n=300 k=16 e=4 g=2 scale=0.01 k=bf16 v=bf16",
        "attention m=290 n=300 k=16 e=4 g=2 scale=0.01 k=bf16 v=bf16",
        "attention m=290 n=300 k=40 e=2 g=1 scale=0.01 k=bf16 v=bf16",
        "attention m=290 n=300 k=16 e=2 g=1 scale=0.01",
        "attention m=290 n=300 k=16 e=2 g=1 scale=0.01 k=f16 v=f16",
    };
    run_with(SPECIAL_CACHE, cases, sizeof cases / sizeof *cases);
}

/* One row, few and many, by every kind of rows. */
static void negative_scales_are_plain_arithmetic(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "nvfp4_mm m=1 n=37 k=176 x=bf16 out=f32",
        "nvfp4_mm m=6 n=37 k=176 out=f32",
        "nvfp4_mm m=30 n=37 k=176 x=bf16 out=f32",
        "nvfp4_mm m=6 n=37 k=176 a=1 out=f32",
        "nvfp4_mm m=30 n=37 k=176 x=i8 x_scale=token out=f32",
    };
    run_with(NEGATIVE_SCALES, cases, sizeof cases / sizeof *cases);
}

/* Kernels that round activations or products to a power of two that the largest ones decide. */
static void outliers_stay_within_the_error_model(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "vq_mm m=6 n=130 k=2048 out=f32 x=f32",
        "vq_mm m=6 n=130 k=8192 out=f32 x=f32",
        "vq_mm m=17 n=200 k=14336 out=f32 x=f32",
        "vq_mm m=6 n=130 k=8192 num_codebooks=1 out=f32 x=f32",
        "vq_mm m=6 n=130 k=8192 format=gptvq out=f32 x=f32",
        "vq_mm m=6 n=80 k=4096 format=quip_e8p out=f32 x=f32",
        "scaled_mm m=6 n=37 k=4096 a=f8_e4m3 scale_a=token out=f32",
    };
    run_with(OUTLIERS, cases, sizeof cases / sizeof *cases);
}

/* Sums that random operands would not find wrong. */
static void structured_operands_stay_within_the_error_model(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "vq_mm m=8 n=100 k=4096 out=f32 x=f32",
        "vq_mm m=1 n=100 k=14336 out=f32 x=f32",
        "vq_mm m=8 n=48 k=4096 format=gptvq out=f32 x=f32",
        "vq_mm m=1 n=48 k=14336 format=gptvq out=f32 x=f32",
        "dense_mm m=8 n=17 k=8192 b=f32 out=f32",
        "dense_mm m=8 n=17 k=14336 b=bf16 x=bf16 out=f32",
        "dense_mm m=8 n=17 k=14336 b=f16 x=f16 out=f32",
        "dense_mm m=8 n=17 k=4096 b=q4_1 out=f32",
        "scaled_mm m=8 n=17 k=8192 a=f8_e4m3 out=f32",
        "block_scaled_mm m=8 n=17 k=8192 out=f32",
        "nvfp4_mm m=8 n=17 k=8192 out=f32",
        "mxfp4_mm m=8 n=17 k=8192 out=f32",
        "nvfp4_mm m=8 n=17 k=14336 x=bf16 out=f32",
        "mxfp4_mm m=40 n=33 k=8192 x=bf16 out=f32",
        "nvfp4_mm m=8 n=17 k=8192 a=1 out=f32",
        "nvfp4_mm m=8 n=17 k=14336 x=i8 x_scale=token out=f32",
        "mxfp4_mm m=30 n=33 k=8192 x=i8 out=f32",
        "silu_mul m=8 k=300 out=f32",
        "rmsnorm m=8 k=4096",
        "attention m=8 n=300 k=64 e=4 g=2",
        "attention m=8 n=300 k=64 e=4 g=2 k=bf16 v=bf16",
        "attention m=70 n=700 k=128 e=3 g=1 k=bf16 v=bf16",
        "attention m=1 n=4100 k=64 e=2 g=2 k=bf16 v=bf16 causal=0",
    };
    run_with(STRUCTURED, cases, sizeof cases / sizeof *cases);
    run_with(STRUCTURED_SIZES, cases, 4);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_on_the_case_table),
        cmocka_unit_test(random_cases_agree),
        cmocka_unit_test(sizes_around_the_tile),
        cmocka_unit_test(rows_of_no_group_are_kept),
        cmocka_unit_test(heads_of_tiles_agree),
        cmocka_unit_test(coded_keys_agree),
        cmocka_unit_test(special_values_travel_as_in_the_reference),
        cmocka_unit_test(odd_rows_and_panels_are_within_the_error_model),
        cmocka_unit_test(special_keys_and_values_reach_who_sees_them),
        cmocka_unit_test(negative_scales_are_plain_arithmetic),
        cmocka_unit_test(outliers_stay_within_the_error_model),
        cmocka_unit_test(structured_operands_stay_within_the_error_model),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
