/* quantization_config of every scheme and of other producers, each member spoilt; groups of modules, patterns of what
 * is left plain. */
#include "io_cases.h"
#include "published_configs.h"

#include "io/quant_config.h"

static qn_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    ctx = new_context();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

/* Walk an object; at each member or element put each hostile value and call back. */
typedef void (*spoilt_fn)(const char *path, const char *value, json_t *root, void *user);

static void spoil_members(json_t *root, json_t *at, const char *path, spoilt_fn call, void *user)
{
    const char *keys[64];
    const char *member;
    json_t *value;
    int count = 0;
    json_object_foreach(at, member, value)
    {
        assert_true(count < 64);
        keys[count++] = strdup(member);
    }
    for (int i = 0; i < count; i++) {
        const char *key = keys[i];
        char name[200];
        value = json_object_get(at, key);
        snprintf(name, sizeof name, "%s.%s", path, key);
        json_t *kept = json_deep_copy(value);
        for (int v = 0; v < JSON_VALUES; v++) {
            const char *text = json_values[v];
            json_t *bad = NULL;
            if (text && strcmp(text, "overlong") == 0) {
                bad = json_sprintf("%05000d", 0);
            } else if (text && strcmp(text, "twice") != 0) {
                bad = json_loads(text, JSON_DECODE_ANY, NULL); /* NULL for numbers beyond 64 bits */
            }
            if (text && !bad) {
                continue;
            }
            if (bad) {
                json_object_set_new(at, key, bad);
            } else {
                json_object_del(at, key);
            }
            call(name, text ? text : "missing", root, user);
            json_object_set(at, key, kept);
        }
        json_decref(kept);
        spoil_members(root, json_object_get(at, key), name, call, user);
        free((void *)keys[i]);
    }
}

typedef struct tally {
    int refused, accepted;
} tally;

static void try_quant(const char *path, const char *value, json_t *root, void *user)
{
    tally *t = user;
    qn_quant_config *config = NULL;
    qn_error error = {0};
    const int quip = strncmp(path, "quip", 4) == 0;
    qn_status status = quip ? qn_quant_config_parse_quip(ctx, root, &config, &error)
                            : qn_quant_config_parse(ctx, root, &config, &error);
    if (status == QN_OK && strncmp(path, "vptq", 4) == 0) {
        qn_vq_module module;
        status = qn_quant_config_module(config, "model.layers.0.self_attn.q_proj", &module, &error);
        if (status != QN_OK) {
            qn_quant_config_destroy(config);
        }
    }
    if (status == QN_OK) {
        t->accepted++;
        qn_quant_config_destroy(config);
        assert_false(quip && (strstr(path, "codebook") && !strstr(path, "version") && strcmp(value, "twice") != 0));
        /* what decides about the numbers is never accepted with another value */
        const int absent = strcmp(value, "missing") == 0 || strcmp(value, "twice") == 0 || strcmp(value, "null") == 0;
        if ((strstr(path, "num_bits") && !strstr(path, "kv_cache") && !absent) || /* the default is 8 */
            strstr(path, "quant_method") || (strstr(path, "weight_block_size") && !absent) ||
            (strstr(path, "config_groups") && strcmp(value, "\"x\"") == 0 && !strstr(path, "_dtype") &&
             !strstr(path, "observer"))) {
            fail_msg("%s = %s was accepted", path, value);
        }
    } else if (!is_file_error(status)) {
        fail_msg("%s = %s: %s (%s)", path, value, qn_status_name(status), error.text);
    } else {
        check_sentence(path, &error);
        t->refused++;
    }
}

/* The parser of a scheme's object. */
static qn_status parse_quant(const qn_scheme *s, const json_t *object, qn_quant_config **config, qn_error *error)
{
    return strcmp(qn_quant_config_key(s), "quip_params") == 0 ? qn_quant_config_parse_quip(ctx, object, config, error)
                                                              : qn_quant_config_parse(ctx, object, config, error);
}

static void test_quant_config(void **state)
{
    (void)state;
    tally t = {0};
    const qn_scheme *s;
    for (int32_t i = 0; (s = qn_scheme_get(i)) != NULL; i++) {
        static const char *const ignore[] = {"lm_head"};
        qn_status status;
        qn_error error = {0};
        json_t *object = qn_quant_config_make(s, NULL, ignore, 1, &status);
        if (!object) {
            assert_int_equal(s->layout, QN_LAYOUT_DENSE);
            continue;
        }
        /* where a scheme's config describes modules, there is one at least */
        assert_int_equal(qn_quant_config_add_module(object, s, "model.layers.0.self_attn.q_proj", 64, 128, 0), 0);
        qn_quant_config *config = NULL;
        if (parse_quant(s, object, &config, &error) != QN_OK) {
            fail_msg("%s: %s", s->name, error.text);
        }
        assert_ptr_equal(qn_quant_config_scheme(config), s);
        assert_int_equal(qn_quant_config_ignores(config, "lm_head"), 1);
        assert_int_equal(qn_quant_config_ignores(config, "model.layers.0.mlp.up_proj"), 0);
        qn_quant_config_destroy(config);
        spoil_members(object, object, s->name, try_quant, &t);
        json_decref(object);
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        json_t *object = json_loads(published[i], 0, NULL);
        qn_quant_config *config = NULL;
        qn_error error = {0};
        if (qn_quant_config_parse(ctx, object, &config, &error) != QN_OK) {
            fail_msg("%s: %s", published[i], error.text);
        }
        assert_ptr_equal(qn_quant_config_scheme(config), qn_scheme_readable(written_rows() + (int32_t)i));
        assert_int_equal(qn_quant_config_ignores(config, "lm_head"), 1);
        assert_int_equal(qn_quant_config_ignores(config, "model.layers.0.mlp.up_proj"), 0);
        assert_int_equal(qn_quant_config_ignores(config, "model.layers.9.mlp.up_proj"),
                         qn_quant_config_scheme(config)->layout == QN_LAYOUT_MODELOPT);
        qn_quant_config_destroy(config);
        spoil_members(object, object, "published", try_quant, &t);
        json_decref(object);
    }
    static const char vptq[] =
        "{\"quant_method\":\"vptq\",\"config_for_layers\":{\"model.layers.0.self_attn.q_proj\":{\"in_features\":128,"
        "\"out_features\":64,\"vector_lens\":[4,8],\"num_centroids\":[32,256],\"num_res_centroids\":[-1,16],"
        "\"group_num\":2,\"group_size\":60,\"outlier_size\":8,\"indices_as_float\":false,\"enable_norm\":true,"
        "\"enable_perm\":true,\"is_indice_packed\":true,\"bias\":false,\"vector_quant_dim\":\"out\"}},"
        "\"modules_to_not_convert\":[\"lm_head\"]}";
    json_t *object = json_loads(vptq, 0, NULL);
    assert_non_null(object);
    const int32_t before = t.accepted;
    spoil_members(object, object, "vptq", try_quant, &t);
    assert_true(t.accepted > before);
    json_decref(object);
    print_message("%d quantization_configs refused, %d accepted\n", t.refused, t.accepted);
    assert_true(t.refused >= 300);
}

/* Groups that name modules go before the one of all linear modules; without that one the others are plain. */
static void test_config_groups(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.0.mlp.up_proj"};
    const qn_scheme *body = qn_scheme_find("nvfp4"), *head = qn_scheme_find("int8");
    qn_status status;
    qn_error error = {0};
    qn_quant_config *config = NULL;
    json_t *object = qn_quant_config_make(body, head, names, 1, &status);
    assert_int_equal(qn_quant_config_parse(ctx, object, &config, &error), QN_OK);
    assert_ptr_equal(qn_quant_config_scheme(config), body);
    assert_ptr_equal(qn_quant_config_scheme_of(config, "lm_head"), head);
    assert_ptr_equal(qn_quant_config_scheme_of(config, "model.layers.0.mlp.down_proj"), body);
    assert_int_equal(qn_quant_config_ignores(config, "lm_head"), 0);
    assert_int_equal(qn_quant_config_ignores(config, names[0]), 1);
    qn_quant_config_destroy(config);

    json_t *groups = json_object_get(object, "config_groups");
    json_t *targets = json_object_get(json_object_get(groups, "group_0"), "targets");
    static const struct {
        const char *target;
        qn_status status;
    } cases[] = {{"re:.*\\.mlp\\..*", QN_OK},
                 {"model.layers.1.mlp.down_proj", QN_OK},
                 {"Embedding", QN_E_UNSUPPORTED},
                 {"re:(", QN_E_FILE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_array_set_new(targets, 0, json_string(cases[i].target));
        assert_int_equal(qn_quant_config_parse(ctx, object, &config, &error), cases[i].status);
        if (cases[i].status == QN_OK) {
            assert_ptr_equal(qn_quant_config_scheme_of(config, "model.layers.1.mlp.down_proj"), body);
            assert_ptr_equal(qn_quant_config_scheme_of(config, "model.layers.1.self_attn.q_proj"), qn_scheme_dense());
            assert_ptr_equal(qn_quant_config_scheme_of(config, "lm_head"), head);
            qn_quant_config_destroy(config);
        } else {
            check_sentence(cases[i].target, &error);
        }
    }
    static const char mixed[] =
        "{\"quant_method\":\"modelopt\",\"quant_algo\":\"MIXED_PRECISION\",\"quantized_layers\":{"
        "\"model.layers.0.self_attn.q_proj\":{\"quant_algo\":\"FP8\"},\"model.layers.0.mlp.up_proj\":"
        "{\"quant_algo\":\"NVFP4\",\"group_size\":16},\"model.layers.0.self_attn.k_proj\":{\"quant_algo\":\"FP8\"}}}";
    json_t *layers = json_loads(mixed, 0, NULL);
    assert_int_equal(qn_quant_config_parse(ctx, layers, &config, &error), QN_OK);
    assert_string_equal(qn_quant_config_scheme_of(config, "model.layers.0.self_attn.k_proj")->word, "FP8");
    assert_string_equal(qn_quant_config_scheme_of(config, "model.layers.0.mlp.up_proj")->word, "NVFP4");
    assert_ptr_equal(qn_quant_config_scheme_of(config, "model.layers.1.mlp.up_proj"), qn_scheme_dense());
    qn_quant_config_destroy(config);
    tally t = {0};
    spoil_members(layers, layers, "mixed", try_quant, &t);
    assert_true(t.refused > 50);
    json_decref(layers);
    json_array_set_new(targets, 0, json_string("Linear"));
    json_object_set_new(groups, "group_2", json_deep_copy(json_object_get(groups, "group_0")));
    assert_int_equal(qn_quant_config_parse(ctx, object, &config, &error), QN_E_UNSUPPORTED);
    check_sentence("two groups", &error);
    json_decref(object);
}

static void test_ignore_patterns(void **state)
{
    (void)state;
    static const char *const ignore[] = {"lm_head", "re:.*self_attn.*", "re:^model\\.layers\\.[02]\\.mlp"};
    qn_status status;
    qn_quant_config *config = NULL;
    json_t *object = qn_quant_config_make(qn_scheme_find("fp8"), NULL, ignore, 3, &status);
    assert_int_equal(qn_quant_config_parse(ctx, object, &config, NULL), QN_OK);
    assert_int_equal(qn_quant_config_ignores(config, "model.layers.1.self_attn.q_proj"), 1);
    assert_int_equal(qn_quant_config_ignores(config, "model.layers.2.mlp.up_proj"), 1);
    assert_int_equal(qn_quant_config_ignores(config, "model.layers.1.mlp.up_proj"), 0);
    assert_int_equal(qn_quant_config_ignores(config, "xlm_head"), 0);
    qn_quant_config_destroy(config);
    json_decref(object);
    static const char *const bad[] = {"re:(", "re:[", "re:\\", "re:(?<x", "re:*"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        object = qn_quant_config_make(qn_scheme_find("fp8"), NULL, &bad[i], 1, &status);
        assert_int_equal(qn_quant_config_parse(ctx, object, &config, NULL), QN_E_FILE);
        json_decref(object);
    }
    /* a pattern made to backtrack for ever stops at its limit */
    static const char *const slow[] = {"re:(a+)+$"};
    object = qn_quant_config_make(qn_scheme_find("fp8"), NULL, slow, 1, &status);
    assert_int_equal(qn_quant_config_parse(ctx, object, &config, NULL), QN_OK);
    assert_int_equal(qn_quant_config_ignores(config, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
                     0);
    qn_quant_config_destroy(config);
    json_decref(object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quant_config, setup, teardown),
        cmocka_unit_test_setup_teardown(test_config_groups, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ignore_patterns, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
