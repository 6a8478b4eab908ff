/* The whole quantiser on a small synthetic checkpoint: what is written is what the
 * encoders make, readable and checked; failures of every kind leave nothing behind. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/checked.h"
#include "base/context.h"
#include "io/checkpoint.h"
#include "quant/folder.h"
#include "quant/quantize.h"
#include "synthetic.h"

static qn_ctx *ctx;
static char root[64], source[128], sentence[160];
static syn_tensor tensors[SYN_TENSORS];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "/tmp/quern-quantize-XXXXXX");
    if (!mkdtemp(root) || qn_ctx_create(NULL, &ctx, NULL) != QN_OK) {
        return 1;
    }
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(sentence, sizeof sentence, "%s/" SYN_TEXT, source);
    syn_make(tensors, 20);
    return syn_write(ctx, source, tensors);
}

static int teardown(void **state)
{
    (void)state;
    syn_free(tensors);
    syn_remove(root);
    qn_ctx_destroy(ctx);
    return 0;
}

static const char *in_root(const char *name)
{
    static char paths[4][192];
    static int next;
    char *p = paths[next++ % 4];
    snprintf(p, 192, "%s/%s", root, name);
    return p;
}

static qn_quantize_options options_of(const char *scheme)
{
    qn_quantize_options o;
    qn_quantize_options_init(&o);
    o.scheme = scheme;
    o.calibration = sentence;
    return o;
}

/* Most tests leave the calibration run out; its own test is below. */
static qn_quant_tuning tuning = {.search = 1, .feedback = 0};

static qn_status run(qn_ctx *with, const char *from, const char *to, const qn_quantize_options *o,
                     qn_quantize_result *result, qn_error *error)
{
    return qn_quantize_with(with, from, to, o, &tuning, result, error);
}

static void must(qn_status status, const qn_error *error)
{
    if (status != QN_OK) {
        fail_msg("%s: %s", qn_status_name(status), error->text);
    }
}

static void quantize(const char *scheme, const char *from, const char *to, uint64_t shard_bytes, qn_pool *pool)
{
    qn_error error = {0};
    qn_quantize_options o = options_of(scheme);
    o.shard_bytes = shard_bytes;
    o.exec.pool = pool;
    qn_quantize_result result;
    must(run(ctx, from, to, &o, &result, &error), &error);
    assert_int_equal(result.tensors, SYN_TENSORS);
    assert_true(result.bits_per_weight > 3 && result.bits_per_weight < 33);
    assert_int_equal(syn_entries(root) > 0, 1);
}

static const syn_tensor *tensor_of(const char *name)
{
    for (int i = 0; i < SYN_TENSORS; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return &tensors[i];
        }
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static float amax_of(const char *name)
{
    const syn_tensor *t = tensor_of(name);
    float amax = 0;
    for (int64_t i = 0; i < t->n * t->k; i++) {
        amax = fmaxf(amax, fabsf(t->w[i]));
    }
    return amax;
}

/* Largest of the matrices that engines fuse with this one. */
static float shared_amax(const char *name)
{
    static const char *const groups[][3] = {{"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj", "up_proj"}};
    const char *last = strstr(name, "_proj");
    while (last > name && last[-1] != '.') {
        last--;
    }
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < 3; i++) {
            if (strncmp(last, groups[g][i], strlen(groups[g][i])) == 0) {
                float amax = 0;
                for (int j = 0; j < 3; j++) {
                    char other[128];
                    snprintf(other, sizeof other, "%.*s%s.weight", (int)(last - name), name, groups[g][j]);
                    amax = fmaxf(amax, amax_of(other));
                }
                return amax;
            }
        }
    }
    return amax_of(name);
}

/* A stored weight holds what the encoder makes of the source, and decodes to it. */
static void check_weight(const qn_scheme *scheme, const qn_weight *w)
{
    const syn_tensor *t = tensor_of(w->name);
    const int linear = strstr(w->name, "_proj") != NULL && scheme->layout != QN_LAYOUT_DENSE;
    const qn_scheme *own = linear ? scheme : scheme->layout == QN_LAYOUT_DENSE ? scheme : qn_scheme_find("bf16");
    const int64_t n = t->k ? t->n : 1, k = t->k ? t->k : t->n;
    qn_encoder e;
    assert_int_equal(qn_encoder_init(&e, own, n, k, NULL), QN_OK);
    if (own->global_scale) {
        e.global_scale = qn_encode_global_scale(&e, shared_amax(w->name));
        assert_true(w->global_scale == e.global_scale);
    }
    uint8_t *data = malloc((size_t)n * e.row_bytes), *scales = malloc((size_t)n * e.scale_row_bytes + 1);
    float *expected = malloc((size_t)k * sizeof(float)), *row = malloc((size_t)k * sizeof(float));
    assert_true(data && scales && expected && row);
    qn_encode_sums sums = {0, 0};
    qn_encode_rows(&e, t->w, n, data, scales, NULL, &sums);
    assert_memory_equal(w->data.data, data, (size_t)n * e.row_bytes);
    if (e.scale) {
        assert_memory_equal(w->scale.data, scales, (size_t)qn_ceil_div(n, e.tile_n) * e.scale_row_bytes);
    }
    for (int64_t r = 0; r < n && t->k; r++) {
        qn_weight_decode_row(w, r, row);
        e.element->decode(data + (size_t)r * e.row_bytes, k, expected);
        for (int64_t i = 0; i < k; i++) {
            float scale = 1;
            if (e.scale) {
                const int64_t s = r / e.tile_n * e.tiles_k + i / e.tile_k;
                e.scale->decode(scales + s * e.scale->info.block_bytes, 1, &scale);
            }
            const float value = own->global_scale ? expected[i] * scale / e.global_scale : expected[i] * scale;
            if (row[i] != value) {
                fail_msg("%s %s [%lld,%lld]: read back %.9g, expected %.9g", scheme->name, w->name, (long long)r,
                         (long long)i, (double)row[i], (double)value);
            }
        }
    }
    free(data), free(scales), free(expected), free(row);
}

static void print_finding(void *user, int severity, const char *tensor, const char *text)
{
    (void)user;
    if (severity > 0) {
        print_message("verify: %s: %s\n", tensor ? tensor : "-", text);
    }
}

static void check_folder(const qn_scheme *scheme, const char *folder)
{
    qn_error error = {0};
    qn_checkpoint *c;
    must(qn_checkpoint_open(ctx, folder, &c, &error), &error);
    qn_model_info info;
    qn_checkpoint_get_info(c, &info);
    assert_string_equal(info.container, "safetensors");
    if (strcmp(scheme->name, "int8-azp") != 0) {
        assert_string_equal(info.scheme, scheme->name);
    }
    assert_int_equal(qn_checkpoint_weight_count(c), SYN_TENSORS);
    for (int32_t i = 0; i < SYN_TENSORS; i++) {
        check_weight(scheme, qn_checkpoint_weight_at(c, i));
    }
    int64_t errors = -1;
    must(qn_checkpoint_verify(c, NULL, print_finding, NULL, &errors, &error), &error);
    assert_int_equal(errors, 0);
    qn_checkpoint_close(c);
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "generation_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        assert_int_equal(access(path, R_OK), 0);
    }
}

static int same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int same = f && g;
    while (same) {
        const int x = fgetc(f), y = fgetc(g);
        same = x == y;
        if (x == EOF) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    if (g) {
        fclose(g);
    }
    return same;
}

static void assert_same_folder(const char *a, const char *b)
{
    DIR *d = opendir(a);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char x[512], y[512];
        snprintf(x, sizeof x, "%s/%s", a, e->d_name);
        snprintf(y, sizeof y, "%s/%s", b, e->d_name);
        if (e->d_name[0] != '.' && !same_file(x, y)) {
            fail_msg("%s and %s differ", x, y);
        }
    }
    closedir(d);
    assert_int_equal(syn_entries(a), syn_entries(b));
}

static void every_scheme(void **state)
{
    (void)state;
    qn_pool *pool;
    assert_int_equal(qn_pool_create(ctx, 3, &pool, NULL), QN_OK);
    for (int32_t i = 0; qn_scheme_get(i); i++) {
        const qn_scheme *s = qn_scheme_get(i);
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* no elements to encode: test_vq_quantise.c */
        }
        const char *one = in_root("one"), *three = in_root("three");
        quantize(s->name, source, one, 0, NULL);
        check_folder(s, one);
        quantize(s->name, source, three, 0, pool);
        assert_same_folder(one, three);
        syn_remove(one);
        syn_remove(three);
    }
    qn_pool_destroy(pool);
    assert_int_equal(syn_entries(root), 1);
}

/* With error feedback: the same whatever the number of threads, and of products that are there at a time. */
static void feedback(void **state)
{
    (void)state;
    qn_pool *pool;
    assert_int_equal(qn_pool_create(ctx, 3, &pool, NULL), QN_OK);
    tuning.feedback = 1;
    static const char *const schemes[] = {"nvfp4-w4a4", "fp8-block", "int8", "mxfp4", "gptvq-2"};
    static const uint64_t products[] = {1, 300000, 700000}; /* of one input, of two, of a layer or so */
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        quantize(schemes[i], source, in_root("one"), 0, NULL);
        quantize(schemes[i], source, in_root("three"), 0, pool);
        assert_same_folder(in_root("one"), in_root("three"));
        tuning.products = products[i % 3];
        quantize(schemes[i], source, in_root("few"), 0, pool);
        tuning.products = 0;
        assert_same_folder(in_root("one"), in_root("few"));
        qn_checkpoint *c;
        assert_int_equal(qn_checkpoint_open(ctx, in_root("one"), &c, NULL), QN_OK);
        int64_t errors = -1;
        qn_error error = {0};
        must(qn_checkpoint_verify(c, NULL, print_finding, NULL, &errors, &error), &error);
        assert_int_equal(errors, 0);
        qn_checkpoint_close(c);
        syn_remove(in_root("one"));
        syn_remove(in_root("three"));
        syn_remove(in_root("few"));
    }
    tuning.feedback = 0;
    qn_pool_destroy(pool);
}

static void shards(void **state)
{
    (void)state;
    const char *out = in_root("shards");
    quantize("fp8-block", source, out, 100000, NULL);
    check_folder(qn_scheme_find("fp8-block"), out);
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", out);
    assert_int_equal(access(path, R_OK), 0);
    assert_true(syn_entries(out) > 8);
    syn_remove(out);
}

/* A quantised folder is a source like any other. */
static void again(void **state)
{
    (void)state;
    quantize("nvfp4", source, in_root("first"), 0, NULL);
    quantize("bf16", in_root("first"), in_root("second"), 0, NULL);
    qn_checkpoint *a, *b;
    assert_int_equal(qn_checkpoint_open(ctx, in_root("first"), &a, NULL), QN_OK);
    assert_int_equal(qn_checkpoint_open(ctx, in_root("second"), &b, NULL), QN_OK);
    float x[SYN_INNER], y[SYN_INNER];
    const char *name = "model.layers.1.mlp.down_proj.weight";
    qn_weight_decode_row(qn_checkpoint_find(a, name), 7, x);
    qn_weight_decode_row(qn_checkpoint_find(b, name), 7, y);
    for (int i = 0; i < SYN_INNER; i++) {
        assert_true(qn_bf16_to_f32(qn_f32_to_bf16(x[i])) == y[i]);
    }
    qn_checkpoint_close(a);
    qn_checkpoint_close(b);
    syn_remove(in_root("first"));
    syn_remove(in_root("second"));
}

/* An output layer with a scheme of its own: read back with it, from the tied embeddings, which stay; and quantised
 * again. */
static void output_layer(void **state)
{
    (void)state;
    static const char *const bodies[] = {"nvfp4", "int8", "mxfp4"}, *const heads[] = {"int8", "int8-azp", "fp8"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        qn_error error = {0};
        qn_quantize_options o = options_of(bodies[i]);
        o.head = heads[i];
        qn_quantize_result result;
        must(run(ctx, source, in_root("first"), &o, &result, &error), &error);
        assert_int_equal(result.tensors, SYN_TENSORS + 1);
        quantize("bf16", source, in_root("plain"), 0, NULL);
        qn_checkpoint *a, *plain;
        must(qn_checkpoint_open(ctx, in_root("first"), &a, &error), &error);
        must(qn_checkpoint_open(ctx, in_root("plain"), &plain, &error), &error);
        qn_model_info info;
        qn_checkpoint_get_info(a, &info);
        assert_string_equal(info.scheme, bodies[i]);
        assert_int_equal(qn_checkpoint_hparams(a)->tied_embeddings, 0);
        const qn_weight *head = qn_checkpoint_find(a, "lm_head.weight");
        const qn_weight *embeddings = qn_checkpoint_find(a, "model.embed_tokens.weight");
        const qn_weight *before = qn_checkpoint_find(plain, "model.embed_tokens.weight");
        assert_non_null(head);
        const int azp = strcmp(heads[i], "int8-azp") == 0; /* weights of the two INT8 schemes are stored alike */
        assert_int_equal(strcmp(head->scheme->name, heads[i]) == 0 || azp, 1);
        assert_ptr_equal(embeddings->scheme, qn_scheme_dense());
        for (int64_t row = 0; row < SYN_VOCAB; row++) {
            float x[SYN_HIDDEN], y[SYN_HIDDEN], z[SYN_HIDDEN], amax = 0;
            qn_weight_decode_row(head, row, x);
            qn_weight_decode_row(embeddings, row, y);
            qn_weight_decode_row(before, row, z);
            assert_memory_equal(y, z, sizeof y);
            for (int k = 0; k < SYN_HIDDEN; k++) {
                amax = fmaxf(amax, fabsf(y[k]));
            }
            for (int k = 0; k < SYN_HIDDEN; k++) {
                assert_true(fabsf(x[k] - y[k]) <= amax * (strcmp(heads[i], "fp8") == 0 ? 0x1p-4f : 0x1p-6f));
            }
        }
        qn_checkpoint_close(a);
        qn_checkpoint_close(plain);
        o.head = NULL;
        o.scheme = "bf16"; /* the layer's own weight goes on beside the embeddings */
        must(run(ctx, in_root("first"), in_root("second"), &o, &result, &error), &error);
        assert_int_equal(result.tensors, SYN_TENSORS + 1);
        syn_remove(in_root("first"));
        syn_remove(in_root("second"));
        syn_remove(in_root("plain"));
    }
}

static void refuse(const char *from, const char *to, const qn_quantize_options *o, qn_status expected,
                   const char *words)
{
    qn_error error = {0};
    const int before = syn_entries(root);
    const qn_status status = run(ctx, from, to, o, NULL, &error);
    if (status != expected || !strstr(error.text, words)) {
        fail_msg("expected %s with '%s', got %s: %s", qn_status_name(expected), words, qn_status_name(status),
                 error.text);
    }
    assert_int_equal(syn_entries(root), before);
}

static void refusals(void **state)
{
    (void)state;
    qn_quantize_options o = options_of("q17");
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "q17");
    o = options_of(NULL);
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "scheme");
    o = options_of("nvfp4");
    o.head = "q17";
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "q17");
    o.head = "nvfp4";
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "output layer");
    o = options_of("fp8-block");
    o.head = "int8";
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "fp8-block");
    o = options_of("fp8");
    refuse(in_root("nothing"), in_root("out"), &o, QN_E_IO, "nothing");
    refuse(source, in_root("no/such/parent"), &o, QN_E_IO, "no/such");
    refuse(source, source, &o, QN_E_ARGUMENT, "input");
    o.force = 1;
    refuse(source, source, &o, QN_E_ARGUMENT, "input");
    refuse(source, root, &o, QN_E_ARGUMENT, "input");
    o.force = 0;
    quantize("fp8", source, in_root("out"), 0, NULL);
    refuse(source, in_root("out"), &o, QN_E_EXISTS, "out");
    o.force = 1;
    o.scheme = "int8";
    qn_error error = {0};
    must(run(ctx, source, in_root("out"), &o, NULL, &error), &error);
    check_folder(qn_scheme_find("int8"), in_root("out"));
    syn_remove(in_root("out"));
    o.size = 3;
    refuse(source, in_root("out"), &o, QN_E_ARGUMENT, "size");
    assert_int_equal(qn_folder_check_space(root, UINT64_MAX / 2, &error), QN_E_IO);
    assert_non_null(strstr(error.text, "MB free"));
    assert_int_equal(qn_folder_check_space(root, 1, &error), QN_OK);
}

static void bad_values(void **state)
{
    (void)state;
    char bad[192];
    snprintf(bad, sizeof bad, "%s/bad", root);
    syn_tensor *t = &tensors[2 + 9 + 5]; /* layer 1, up_proj */
    assert_string_equal(t->name, "model.layers.1.mlp.up_proj.weight");
    static const float values[] = {NAN, INFINITY, -INFINITY};
    float *place = &t->w[100 * t->k + 33];
    const float kept = *place;
    for (int i = 0; i < 3; i++) {
        *place = values[i];
        assert_int_equal(syn_write(ctx, bad, tensors), 0);
        qn_quantize_options o = options_of(i ? "fp8-block" : "nvfp4");
        refuse(bad, in_root("out"), &o, QN_E_FILE, "model.layers.1.mlp.up_proj.weight: element [100, 33]");
    }
    *place = 1e6f;
    assert_int_equal(syn_write(ctx, bad, tensors), 0);
    qn_quantize_options o = options_of("f16");
    refuse(bad, in_root("out"), &o, QN_E_FILE, "1e+06");
    *place = kept;
    syn_remove(bad);
}

typedef struct steps {
    int calls, stop_at;
    double rms;
} steps;

static int count_steps(void *user, const qn_quantize_progress *p)
{
    steps *s = user;
    s->calls++;
    assert_int_equal(p->index, s->calls);
    assert_int_equal(p->total, SYN_TENSORS);
    assert_true(p->name && p->from && p->to && p->bytes_before && p->bytes_after);
    s->rms = fmax(s->rms, p->rms_error);
    return s->calls == s->stop_at;
}

static void progress_and_cancel(void **state)
{
    (void)state;
    steps s = {0};
    qn_quantize_options o = options_of("nvfp4");
    o.progress = count_steps;
    o.progress_user = &s;
    for (s.stop_at = 1; s.stop_at <= SYN_TENSORS; s.stop_at += 5, s.calls = 0) {
        refuse(source, in_root("out"), &o, QN_E_CANCELLED, "cancelled");
    }
    s = (steps){0};
    assert_int_equal(run(ctx, source, in_root("out"), &o, NULL, NULL), QN_OK);
    assert_int_equal(s.calls, SYN_TENSORS);
    assert_true(s.rms > 0.05 && s.rms < 0.12);
    syn_remove(in_root("out"));
}

/* A disk that refuses to take more: a limit on the size of files. */
static void full_disk(void **state)
{
    (void)state;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    qn_quantize_options o = options_of("fp8");
    static const rlim_t limits[] = {0, 500, 4096, 100000, 300000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        small = old;
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        qn_error error = {0};
        const qn_status status = run(ctx, source, in_root("out"), &o, NULL, &error);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, QN_E_IO);
        assert_int_equal(syn_entries(root), 1);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* ---- Allocation failures ---- */

typedef struct faults {
    long calls, fail_at, live;
} faults;

static void *faulty_alloc(void *user, size_t size, size_t align)
{
    faults *f = user;
    void *p = NULL;
    if (__atomic_add_fetch(&f->calls, 1, __ATOMIC_RELAXED) == f->fail_at ||
        posix_memalign(&p, align, size ? size : 1)) {
        return NULL;
    }
    __atomic_add_fetch(&f->live, 1, __ATOMIC_RELAXED);
    return p;
}

static void faulty_release(void *user, void *pointer)
{
    __atomic_sub_fetch(&((faults *)user)->live, pointer != NULL, __ATOMIC_RELAXED);
    free(pointer);
}

static void no_memory(void **state)
{
    (void)state;
    faults f = {0, -1, 0};
    qn_ctx_options co;
    qn_ctx_options_init(&co);
    co.allocator = (qn_allocator){&f, faulty_alloc, faulty_release};
    qn_ctx *own;
    assert_int_equal(qn_ctx_create(&co, &own, NULL), QN_OK);
    const long base = f.live;
    qn_quantize_options o = options_of("nvfp4");
    o.force = 1;
    f.calls = 0;
    assert_int_equal(run(own, source, in_root("out"), &o, NULL, NULL), QN_OK);
    const long total = f.calls;
    syn_remove(in_root("out"));
    long tried = 0, failed = 0;
    for (long n = 1; n <= total; n += n < 60 ? 1 : 1 + total / 60) {
        f.calls = 0;
        f.fail_at = n;
        qn_error error = {0};
        const qn_status status = run(own, source, in_root("out"), &o, NULL, &error);
        f.fail_at = -1;
        tried++;
        failed += status != QN_OK;
        if ((status != QN_E_MEMORY && status != QN_OK) || f.live != base) {
            fail_msg("allocation %ld of %ld: %s (%s), %ld blocks left", n, total, qn_status_name(status), error.text,
                     f.live - base);
        }
        if (status == QN_OK) {
            syn_remove(in_root("out"));
        }
        assert_int_equal(syn_entries(root), 1);
    }
    print_message("%ld of %ld allocations made to fail, %ld gave out-of-memory\n", tried, total, failed);
    assert_true(failed > tried / 2);
    qn_ctx_destroy(own);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scheme), cmocka_unit_test(feedback),
        cmocka_unit_test(shards),       cmocka_unit_test(again),
        cmocka_unit_test(output_layer), cmocka_unit_test(refusals),
        cmocka_unit_test(bad_values),   cmocka_unit_test(progress_and_cancel),
        cmocka_unit_test(full_disk),    cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
