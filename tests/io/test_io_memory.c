/* Memory that runs out at every single allocation, once and from then on, while
 * a file is opened, verified or written: QN_E_MEMORY, nothing leaks, and the
 * context works afterwards. */
#include "io_files.h"

#include <quern/tensors.h>

typedef struct limited {
    int64_t calls, fail_at; /* the call that fails; < 0: none */
    int for_good;           /* all later ones fail too */
} limited;

static void *limited_alloc(void *user, size_t size, size_t align)
{
    limited *l = user;
    const int64_t call = l->calls++;
    if (l->fail_at >= 0 && (call == l->fail_at || (l->for_good && call > l->fail_at))) {
        return NULL;
    }
    void *p = NULL;
    return posix_memalign(&p, align, size) == 0 ? p : NULL;
}

static void limited_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

typedef qn_status (*operation)(qn_ctx *ctx, const char *path, qn_error *error);

static qn_status open_and_verify(qn_ctx *ctx, const char *path, qn_error *error)
{
    qn_checkpoint *c = NULL;
    int64_t errors;
    qn_status status = qn_checkpoint_open(ctx, path, &c, error);
    if (status == QN_OK) {
        status = qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, error);
    } else {
        assert_null(c);
    }
    qn_checkpoint_close(c);
    return status;
}

static qn_status write_tensors(qn_ctx *ctx, const char *path, qn_error *error)
{
    static const float data[4] = {1, 2, 3, 4};
    const qn_shape shape = qn_shape_make(QN_F32, 2, 2, 2, 1, 1);
    const qn_named_view views[] = {{"a", qn_view_make(data, &shape)}, {"b", qn_view_make(data, &shape)}};
    static const char *const metadata[] = {"k", "v"};
    return qn_tensors_write(ctx, path, views, 2, metadata, 1, error);
}

static void try_all(const char *name, operation call, const char *path)
{
    limited l = {.fail_at = -1};
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.allocator = (qn_allocator){&l, limited_alloc, limited_release};
    qn_ctx *ctx = NULL;
    qn_error error = {0};
    assert_int_equal(qn_ctx_create(&options, &ctx, &error), QN_OK);
    l.calls = 0;
    if (call(ctx, path, &error) != QN_OK) {
        fail_msg("%s: %s", name, error.text);
    }
    const int64_t total = l.calls;
    for (int64_t i = 0; i < 2 * total; i++) {
        l = (limited){.fail_at = i / 2, .for_good = i & 1};
        const qn_status status = call(ctx, path, &error);
        if (status != QN_E_MEMORY) {
            fail_msg("%s: allocation %lld of %lld failed, status %s", name, (long long)(i / 2), (long long)total,
                     qn_status_name(status));
        }
        check_sentence(name, &error);
    }
    l = (limited){.fail_at = -1};
    assert_int_equal(call(ctx, path, &error), QN_OK);
    print_message("%s: %lld allocations\n", name, (long long)total);
    qn_ctx_destroy(ctx);
}

static void test_all(void **state)
{
    (void)state;
    static bytes file;
    char *folder = make_folder(), path[300];
    put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
    write_file(folder, "x.gguf", file.data, file.size);
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    try_all("open a GGUF file", open_and_verify, path);
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    try_all("write a tensor file", write_tensors, path);
    /* a quantised folder: one int8 projection, the rest plain */
    qn_ctx *ctx = new_context();
    qn_buffer config = qn_buffer_make(ctx);
    make_config(&config, -1, NULL,
                "{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"g\":{"
                "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"},"
                "\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}}},"
                "\"ignore\":[\"lm_head\",\"re:.*v_proj\"]}");
    write_text(folder, "config.json", config.data);
    qn_buffer_free(&config);
    static const uint16_t zeros[4096];
    qn_named_view views[32];
    int32_t count = 0;
    for (int i = 0; i < TINY_WEIGHTS; i++) {
        const int n = tiny_weights[i].n, k = tiny_weights[i].k, q = strstr(tiny_weights[i].hf, "q_proj") != NULL;
        const qn_shape shape = qn_shape_make(q ? QN_I8 : QN_BF16, k ? 2 : 1, n, k, 1, 1);
        views[count++] = (qn_named_view){tiny_weights[i].hf, qn_view_make(zeros, &shape)};
        if (q) {
            const qn_shape scale = qn_shape_make(QN_BF16, 2, n, 1, 1, 1);
            views[count++] =
                (qn_named_view){"model.layers.0.self_attn.q_proj.weight_scale", qn_view_make(zeros, &scale)};
        }
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    qn_error error = {0};
    assert_int_equal(qn_tensors_write(ctx, path, views, count, NULL, 0, &error), QN_OK);
    try_all("open a quantised folder", open_and_verify, folder);
    qn_ctx_destroy(ctx);
    remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
