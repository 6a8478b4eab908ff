/* Folders as checkpoints: every scheme's layout, shards, spoilt config.json
 * and index files, missing and wrong tensors, verify. */
#include <math.h>

#include "io_cases.h"
#include "published_configs.h"

#include "format/format.h"
#include "io/checkpoint.h"
#include "io/quant_config.h"
#include "io/safetensors_writer.h"

static qn_ctx *ctx;
static char *folder;

static int setup(void **state)
{
    (void)state;
    ctx = new_context();
    folder = make_folder();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(folder);
    qn_ctx_destroy(ctx);
    return 0;
}

static void write_config(int key, const char *value, const char *quant)
{
    qn_buffer text = qn_buffer_make(ctx);
    make_config(&text, key, value, quant);
    write_text(folder, "config.json", text.data);
    qn_buffer_free(&text);
}

/* Tensors of the small model in a scheme; one of them may be changed by `spoil`. */
typedef struct part {
    char name[160];
    qn_shape shape;
    unsigned char fill; /* every byte, or for F32: 1 where 0, else the value */
    float value;
} part;

static part parts[80];
static int part_count;

static part *add_part(const char *module, const char *suffix, qn_shape shape, unsigned char fill, float value)
{
    part *p = &parts[part_count++];
    snprintf(p->name, sizeof p->name, "%s.%s", module, suffix);
    p->shape = shape;
    p->fill = fill;
    p->value = value;
    return p;
}

static void make_parts(const qn_scheme *s)
{
    part_count = 0;
    for (int i = 0; i < TINY_WEIGHTS; i++) {
        char module[100];
        const int n = tiny_weights[i].n, k = tiny_weights[i].k;
        snprintf(module, sizeof module, "%.*s", (int)(strlen(tiny_weights[i].hf) - 7), tiny_weights[i].hf);
        const int linear = strstr(module, "_proj") != NULL;
        if (!linear || s->scales == QN_SCALES_NONE) {
            add_part(module, "weight", qn_shape_make(s->layout ? QN_F32 : s->weight, k ? 2 : 1, n, k, 1, 1), 0, 1.0f);
            continue;
        }
        const int packed = s->weight == QN_F4_E2M1;
        add_part(module, s->data_suffix, qn_shape_make(packed ? QN_U8 : s->weight, 2, n, packed ? k / 2 : k, 1, 1),
                 packed               ? 0x42
                 : s->weight == QN_I8 ? 3
                                      : 0x38,
                 0); /* 1 then 2; 3; 1 */
        const int columns = s->scales == QN_SCALES_CHANNEL ? 1 : (k + s->block_k - 1) / s->block_k;
        const int rows = s->scales == QN_SCALES_BLOCK ? (n + s->block_n - 1) / s->block_n : n;
        const qn_format f = s->scale_format == QN_E8M0 ? QN_U8 : s->scale_format;
        add_part(module, s->scale_suffix, qn_shape_make(f, 2, rows, columns, 1, 1), f == QN_U8 ? 128 : 0x40, 2.0f);
        const qn_shape one = qn_shape_make(QN_F32, 1, 1, 1, 1, 1);
        if (s->global_suffix) {
            add_part(module, s->global_suffix, one, 0, s->global_inverse ? 0.25f : 4.0f);
        }
        if (s->act_suffix && s->act_op) {
            add_part(module, s->act_suffix, one, 0, s->global_inverse && !s->act_static ? 0.125f : 8.0f);
        }
        if (s->act_static && !s->act_symmetric && s->weight == QN_I8) {
            add_part(module, "input_zero_point", qn_shape_make(QN_I8, 1, 1, 1, 1, 1), 5, 0);
        }
    }
}

static part *find_part(const char *name)
{
    for (int i = 0; i < part_count; i++) {
        if (strcmp(parts[i].name, name) == 0) {
            return &parts[i];
        }
    }
    fail_msg("no part %s", name);
    return NULL;
}

static void drop_part(part *p)
{
    *p = parts[--part_count];
}

/* Write parts [first, last) to a file of the folder. */
static void write_parts(const char *name, int first, int last)
{
    qn_safetensors_item items[80];
    char path[400];
    static unsigned char data[16384];
    for (int i = first; i < last; i++) {
        items[i - first] = (qn_safetensors_item){parts[i].name, parts[i].shape};
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    qn_safetensors_writer *w = NULL;
    qn_error error = {0};
    assert_int_equal(qn_safetensors_writer_create(ctx, path, items, last - first, NULL, 0, 1, &w, &error), QN_OK);
    for (int i = first; i < last; i++) {
        const part *p = &parts[i];
        size_t size = 0;
        assert_int_equal(qn_shape_bytes(&p->shape, &size, NULL), QN_OK);
        assert_true(size <= sizeof data);
        memset(data, p->fill, sizeof data);
        if (p->value != 0 && qn_format_get_row(p->shape.format)->info.max > 6 &&
            qn_format_get_row(p->shape.format)->info.block_bytes > 1) {
            float values[4096];
            const int64_t n = qn_shape_elements(&p->shape);
            for (int64_t j = 0; j < n; j++) {
                values[j] = p->value;
            }
            qn_format_get_row(p->shape.format)->encode(values, n, data);
        }
        assert_int_equal(qn_safetensors_writer_put(w, i - first, data, size, &error), QN_OK);
    }
    assert_int_equal(qn_safetensors_writer_finish(w, &error), QN_OK);
    qn_safetensors_writer_destroy(w);
}

static char *quant_text(const qn_scheme *s)
{
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        if (qn_scheme_readable(written_rows() + (int32_t)i) == s) {
            return strdup(published[i]);
        }
    }
    static const char *const ignore[] = {"lm_head"};
    qn_status status;
    json_t *object = qn_quant_config_make(s, NULL, ignore, 1, &status);
    assert_int_equal(status, QN_OK);
    char *text = object ? json_dumps(object, 0) : NULL;
    json_decref(object);
    return text;
}

static qn_status open_folder(qn_checkpoint **c, qn_error *error)
{
    memset(error, 0, sizeof *error);
    return qn_checkpoint_open(ctx, folder, c, error);
}

static void make_model(const qn_scheme *s)
{
    char *quant = quant_text(s);
    write_config(-1, NULL, quant);
    free(quant);
    make_parts(s);
    write_parts("model.safetensors", 0, part_count);
}

static void test_schemes(void **state)
{
    (void)state;
    const qn_scheme *s;
    for (int32_t i = 0; (s = qn_scheme_readable(i)) != NULL; i++) {
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* tests/quant/test_vq_quantise.c */
        }
        make_model(s);
        qn_checkpoint *c = NULL;
        qn_error error;
        if (open_folder(&c, &error) != QN_OK) {
            fail_msg("%s: %s", s->name, error.text);
        }
        qn_model_info info;
        qn_checkpoint_get_info(c, &info);
        assert_string_equal(info.scheme, s->name);
        assert_string_equal(info.container, "safetensors");
        assert_int_equal(info.tied_embeddings, 1);
        assert_null(json_object_get(qn_checkpoint_config(c), "quantization_config"));
        const qn_weight *w = qn_checkpoint_find(c, "model.layers.0.mlp.down_proj.weight");
        assert_non_null(w);
        assert_int_equal(w->n, TINY_HIDDEN);
        assert_int_equal(w->k, TINY_INNER);
        float row[TINY_INNER], want[2] = {1.0f, 1.0f};
        qn_weight_decode_row(w, 31, row);
        if (s->weight == QN_I8) {
            want[0] = want[1] = 6.0f; /* 3 * 2 */
        } else if (s->weight == QN_F8_E4M3) {
            want[0] = want[1] = 2.0f; /* 1 * 2 */
        } else if (s->weight == QN_F4_E2M1) {
            want[0] = s->global_scale ? 0.5f : 2.0f; /* 1 * 2, then / 4 */
            want[1] = 2 * want[0];
        }
        assert_true(row[0] == want[0] && row[1] == want[1] && row[63] == want[1]);
        assert_ptr_equal(w->scheme, s->layout ? s : qn_scheme_dense());
        assert_true(w->input_global_scale == (s->act_op == QN_OP_QUANTIZE_NVFP4 ? 8.0f : 0.0f));
        assert_true(w->input_scale == (s->act_static ? 8.0f : 0.0f));
        assert_int_equal(w->input_zero_point, strcmp(s->name, "int8-azp-static") == 0 ? 5 : 0);
        int64_t errors = -1;
        assert_int_equal(qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, &error), QN_OK);
        assert_int_equal(errors, 0);
        qn_checkpoint_close(c);
    }
}

static void test_half_scales(void **state)
{
    (void)state;
    make_model(qn_scheme_find("fp8"));
    find_part("model.layers.0.mlp.up_proj.weight_scale")->shape.format = QN_BF16;
    find_part("model.layers.0.mlp.gate_proj.weight_scale")->shape.format = QN_F16;
    write_parts("model.safetensors", 0, part_count);
    qn_checkpoint *c = NULL;
    qn_error error;
    if (open_folder(&c, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"};
    for (int i = 0; i < 2; i++) {
        const qn_weight *w = qn_checkpoint_find(c, names[i]);
        float row[TINY_HIDDEN];
        assert_int_equal(w->scale.shape.format, QN_F32);
        qn_weight_decode_row(w, 0, row);
        assert_true(row[0] == 2.0f);
    }
    qn_checkpoint_close(c);
}

/* One scale of a tensor, of any rank, is that of each channel; scales of KV caches and zero points of 0 may be there
 * or not. */
static void test_tensor_scales(void **state)
{
    (void)state;
    const qn_scheme *s;
    for (int32_t i = written_rows(); (s = qn_scheme_readable(i)) != NULL; i++) {
        if (s->scales != QN_SCALES_CHANNEL) {
            continue;
        }
        make_model(s);
        part *scale = find_part("model.layers.0.mlp.up_proj.weight_scale");
        scale->shape = qn_shape_make(QN_BF16, 1, 1, 1, 1, 1);
        scale->shape.ndim = (int32_t)(i % 2);
        if (s->act_suffix) {
            find_part("model.layers.0.mlp.up_proj.input_scale")->shape.ndim = 0;
        }
        add_part("model.layers.0.self_attn", "k_scale", qn_shape_make(QN_F32, 1, 1, 1, 1, 1), 0, 1.0f);
        add_part("model.layers.0.self_attn.v_proj", "v_scale", qn_shape_make(QN_F32, 1, 1, 1, 1, 1), 0, 1.0f);
        if (strcmp(s->name, "int8-azp-static") == 0) {
            drop_part(find_part("model.layers.0.mlp.up_proj.input_zero_point"));
        }
        write_parts("model.safetensors", 0, part_count);
        qn_checkpoint *c = NULL;
        qn_error error;
        if (open_folder(&c, &error) != QN_OK) {
            fail_msg("%s: %s", s->name, error.text);
        }
        const qn_weight *w = qn_checkpoint_find(c, "model.layers.0.mlp.up_proj.weight");
        assert_int_equal(w->scale.shape.dims[0], w->n);
        assert_int_equal(w->input_zero_point, 0);
        float first[TINY_HIDDEN], last[TINY_HIDDEN];
        qn_weight_decode_row(w, 0, first);
        qn_weight_decode_row(w, w->n - 1, last);
        assert_memory_equal(first, last, sizeof first);
        assert_true(first[0] == (s->weight == QN_I8 ? 6.0f : 2.0f));
        qn_checkpoint_close(c);
    }
}

/* hf_quant_config.json counts where config.json says nothing. */
static void test_quant_file(void **state)
{
    (void)state;
    const qn_scheme *s;
    for (int32_t i = written_rows(); (s = qn_scheme_readable(i)) != NULL; i++) {
        if (s->layout != QN_LAYOUT_MODELOPT) {
            continue;
        }
        make_model(s);
        write_config(-1, NULL, NULL);
        static const char *const around[] = {
            "",
            "{\"quantization\":1}",
            "{\"quantization\":{\"quant_algo\":1}}",
            "{\"quantization\":{\"quant_algo\":\"MIXED_PRECISION\"}}",
            "{\"quantization\":{\"quant_algo\":\"NVFP4\",\"group_size\":32}}",
            "{\"quantization\":{\"quant_algo\":null,\"kv_cache_quant_algo\":\"FP8\"}}"};
        qn_checkpoint *c = NULL;
        qn_error error;
        for (size_t j = 0; j < sizeof around / sizeof *around; j++) {
            write_text(folder, "hf_quant_config.json", around[j]);
            assert_true(is_file_error(open_folder(&c, &error)));
            check_sentence(around[j], &error);
        }
        char text[300];
        snprintf(text, sizeof text,
                 "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"%s\",\"group_size\":%d,"
                 "\"kv_cache_quant_algo\":\"FP8\",\"exclude_modules\":[\"lm_head\"]}}",
                 s->word, s->block_k ? s->block_k : 16);
        write_text(folder, "hf_quant_config.json", text);
        if (open_folder(&c, &error) != QN_OK) {
            fail_msg("%s: %s", s->word, error.text);
        }
        assert_ptr_equal(qn_checkpoint_find(c, "model.layers.0.mlp.up_proj.weight")->scheme, s);
        qn_checkpoint_close(c);
    }
}

/* Modules whose input scale the file leaves out have dynamic rows: one of them, then all. */
static void test_dynamic_rows(void **state)
{
    (void)state;
    const qn_scheme *s;
    int found = 0;
    for (int32_t i = written_rows(); (s = qn_scheme_readable(i)) != NULL; i++) {
        for (int all = 0; s->dynamic && all < 2; all++, found++) {
            make_model(s);
            for (int p = part_count; p-- > 0;) {
                if (strstr(parts[p].name, "input_scale") && (all || strstr(parts[p].name, "layers.0.mlp.up_proj"))) {
                    drop_part(&parts[p]);
                }
            }
            write_parts("model.safetensors", 0, part_count);
            qn_checkpoint *c = NULL;
            qn_error error;
            qn_model_info info;
            if (open_folder(&c, &error) != QN_OK) {
                fail_msg("%s: %s", s->name, error.text);
            }
            qn_checkpoint_get_info(c, &info);
            assert_string_equal(info.scheme, all ? s->dynamic->name : s->name);
            assert_ptr_equal(qn_checkpoint_find(c, "model.layers.0.mlp.up_proj.weight")->scheme, s->dynamic);
            assert_ptr_equal(qn_checkpoint_find(c, "model.layers.0.mlp.down_proj.weight")->scheme,
                             all ? s->dynamic : s);
            qn_checkpoint_close(c);
        }
    }
    assert_int_equal(found, 4);
}

/* A tensor of a quantised folder changed in each way: refused, and named. */
static void test_wrong_tensors(void **state)
{
    (void)state;
    static const char module[] = "model.layers.0.self_attn.k_proj";
    const qn_scheme *s;
    int cases = 0;
    for (int32_t i = 0; (s = qn_scheme_readable(i)) != NULL; i++) {
        if (s->scales == QN_SCALES_VECTOR) {
            continue; /* tests/quant/test_vq_quantise.c */
        }
        make_model(s);
        const int total = part_count;
        for (int p = 0; p < total; p++) {
            for (int how = 0; how < 6; how++) {
                make_parts(s);
                if (strncmp(parts[p].name, module, strlen(module)) != 0 ||
                    (how == 4 && qn_shape_elements(&parts[p].shape) == 1) || /* one number of any rank is one number */
                    ((how == 0 || how == 5) && strstr(parts[p].name, "zero_point")) || /* may be left out */
                    ((how == 0 || how == 5) && s->dynamic && strstr(parts[p].name, "input_scale"))) {
                    continue;
                }
                char name[100];
                snprintf(name, sizeof name, "%.99s", parts[p].name);
                qn_shape *shape = &parts[p].shape;
                switch (how) {
                case 0: drop_part(&parts[p]); break;
                case 1: shape->format = shape->format == QN_I16 ? QN_I32 : QN_I16; break;
                case 2: shape->dims[0] += 1; break;
                case 3: shape->dims[shape->ndim - 1] = 0; break;
                case 4: shape->ndim = 3; break;
                default: snprintf(parts[p].name + strlen(parts[p].name), 3, "x"); break;
                }
                write_parts("model.safetensors", 0, part_count);
                qn_checkpoint *c = NULL;
                qn_error error;
                const qn_status status = open_folder(&c, &error);
                if (!is_file_error(status) || !strstr(error.text, module)) {
                    fail_msg("%s, %s, way %d: %s (%s)", s->name, name, how, qn_status_name(status), error.text);
                }
                check_sentence(name, &error);
                cases++;
            }
        }
    }
    print_message("%d wrong tensors\n", cases);
    assert_true(cases >= 100);
}

/* Tensors that say that there is more to the weights than the configuration tells. */
static void test_foreign_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *suffix;
    } extras[] = {{"f32", "weight_scale"},
                  {"f32", "weight_packed"},
                  {"f32", "qweight"},
                  {"fp8", "weight_scale_inv"},
                  {"fp8", "input_scale"},
                  {"fp8", "weight_global_scale"},
                  {"int8", "weight_packed"},
                  {"int8", "weight_zero_point"},
                  {"nvfp4", "weight_scale_2"},
                  {"nvfp4", "weight"},
                  {"fp8-block", "weight_scale"},
                  {"mxfp4", "weight_g_idx"},
                  {"bf16", "bias"},
                  {"f32", "weight_scale_inv"},
                  {"bf16", "scales"}};
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        make_model(qn_scheme_find(extras[i].scheme));
        add_part("model.layers.0.self_attn.k_proj", extras[i].suffix, qn_shape_make(QN_F32, 1, 16, 1, 1, 1), 0, 1.0f);
        write_parts("model.safetensors", 0, part_count);
        qn_checkpoint *c = NULL;
        qn_error error;
        const qn_status status = open_folder(&c, &error);
        if (!is_file_error(status) || !strstr(error.text, "self_attn.k_proj")) {
            fail_msg("%s with %s: %s (%s)", extras[i].scheme, extras[i].suffix, qn_status_name(status), error.text);
        }
    }
}

/* config.json: each member with each value. */
static void test_config(void **state)
{
    (void)state;
    make_model(qn_scheme_find("f32"));
    int refused = 0, accepted = 0;
    for (int key = 0; key < TINY_CONFIG_KEYS; key++) {
        for (int v = 0; v < JSON_VALUES; v++) {
            const char *name = tiny_config_keys[key][0], *value = json_values[v] ? json_values[v] : "missing";
            write_config(key, json_values[v], NULL);
            qn_checkpoint *c = NULL;
            qn_error error;
            const qn_status status = open_folder(&c, &error);
            if (status == QN_OK) {
                /* optional members may be absent; ids, theta and the context length may be other numbers */
                const int optional = strstr("max_position_embeddings rms_norm_eps rope_theta rope_scaling "
                                            "tie_word_embeddings hidden_act attention_bias bos_token_id eos_token_id "
                                            "quantization_config head_dim architectures model_type",
                                            name) != NULL;
                const int number = strcmp(name, "rope_theta") == 0 || strcmp(name, "rms_norm_eps") == 0 ||
                                   strstr(name, "_token_id") || strcmp(name, "max_position_embeddings") == 0 ||
                                   strcmp(name, "rope_scaling") == 0 || strcmp(name, "attention_bias") == 0 ||
                                   strcmp(name, "tie_word_embeddings") == 0;
                const int absent = strcmp(value, "missing") == 0 || strcmp(value, "null") == 0;
                if (!(absent && optional) && !number) {
                    fail_msg("%s = %s was accepted", name, value);
                }
                if (strcmp(value, "twice") == 0 || strcmp(value, "overlong") == 0 || strcmp(value, "\"x\"") == 0) {
                    fail_msg("%s = %s was accepted", name, value);
                }
                accepted++;
                qn_checkpoint_close(c);
            } else {
                if (!is_file_error(status)) {
                    fail_msg("%s = %s: %s (%s)", name, value, qn_status_name(status), error.text);
                }
                check_sentence(name, &error);
                refused++;
            }
        }
    }
    print_message("%d configurations refused, %d accepted\n", refused, accepted);
    assert_true(refused >= 250);
    write_config(-1, NULL, NULL);
}

/* Families that compute the same as llama, and where their context ends. */
static void test_families(void **state)
{
    (void)state;
    static const struct {
        const char *members;
        qn_status status;
        int context;
    } cases[] = {
        {"\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":null", QN_OK, 8192},
        {"\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":100", QN_OK, 100},
        {"\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":9000", QN_OK, 8192},
        {"\"model_type\":\"mistral\"", QN_OK, 4096},
        {"\"architectures\":[\"MistralForCausalLM\"]", QN_OK, 4096},
        {"\"model_type\":\"llama\",\"sliding_window\":100", QN_OK, 8192},
        {"\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"llama\"", QN_E_FILE, 0},
        {"\"model_type\":\"mistral\",\"sliding_window\":0", QN_E_FILE, 0},
        {"\"model_type\":\"mixtral\"", QN_E_UNSUPPORTED, 0},
        {"\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mistral\"", QN_E_UNSUPPORTED, 0},
    };
    make_model(qn_scheme_find("f32"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1000];
        snprintf(text, sizeof text,
                 "{%s,\"hidden_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                 "\"head_dim\":16,\"intermediate_size\":64,\"vocab_size\":10,\"max_position_embeddings\":8192,"
                 "\"tie_word_embeddings\":true}",
                 cases[i].members);
        write_text(folder, "config.json", text);
        qn_checkpoint *c = NULL;
        qn_error error;
        const qn_status status = open_folder(&c, &error);
        if (status != cases[i].status) {
            fail_msg("%s: %s (%s)", cases[i].members, qn_status_name(status), error.text);
        }
        if (status == QN_OK) {
            assert_int_equal(qn_checkpoint_hparams(c)->context_length, cases[i].context);
            qn_checkpoint_close(c);
        }
    }
    write_config(-1, NULL, NULL);
}

/* Biases and norms of heads: there when the architecture or the configuration says so, and then all of them. */
static void test_biases_and_head_norms(void **state)
{
    (void)state;
    static const struct {
        const char *members, *without; /* a tensor that is left out */
        int qkv, o, mlp, norms;        /* tensors that are there */
        qn_status status;
        const char *word; /* of the sentence; or the context's end */
    } cases[] = {
        {"\"model_type\":\"qwen2\"", "", 1, 0, 0, 0, QN_OK, "8192"},
        {"\"model_type\":\"qwen2\",\"use_sliding_window\":false,\"sliding_window\":100", "", 1, 0, 0, 0, QN_OK, "8192"},
        {"\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":100,\"max_window_layers\":0", "", 1,
         0, 0, 0, QN_OK, "100"},
        {"\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":100", "", 1, 0, 0, 0, QN_OK, "8192"},
        {"\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"sliding_window\":100,\"layer_types\":"
         "[\"full_attention\"],\"max_window_layers\":0",
         "", 0, 0, 0, 1, QN_OK, "8192"},
        {"\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"sliding_window\":100,\"layer_types\":"
         "[\"sliding_attention\"]",
         "", 0, 0, 0, 1, QN_OK, "100"},
        {"\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":true", "", 1, 1, 0, 1, QN_OK, "8192"},
        {"\"model_type\":\"llama\",\"attention_bias\":true", "", 1, 1, 0, 0, QN_OK, "8192"},
        {"\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true", "", 1, 1, 1, 0, QN_OK, "8192"},
        {"\"model_type\":\"qwen2\"", "k_proj.bias", 1, 0, 0, 0, QN_E_FILE, "k_proj.bias is missing"},
        {"\"model_type\":\"qwen3\"", "q_norm.weight", 0, 0, 0, 1, QN_E_FILE, "q_norm.weight is missing"},
        {"\"model_type\":\"llama\",\"attention_bias\":true", "o_proj.bias", 1, 1, 0, 0, QN_E_FILE,
         "o_proj.bias is missing"},
        {"\"model_type\":\"qwen2\"", "", 1, 1, 0, 0, QN_E_UNSUPPORTED, "o_proj.bias is not part of a qwen2 model"},
        {"\"model_type\":\"qwen2\"", "", 1, 0, 0, 1, QN_E_UNSUPPORTED, "_norm.weight is not part of"},
        {"\"model_type\":\"qwen3\"", "", 1, 0, 0, 1, QN_E_UNSUPPORTED, "_proj.bias is not part of"},
        {"\"model_type\":\"llama\"", "", 0, 0, 1, 0, QN_E_UNSUPPORTED, "_proj.bias is not part of a llama model"},
        {"\"model_type\":\"qwen3\",\"mlp_bias\":true", "", 0, 0, 1, 1, QN_E_UNSUPPORTED, "mlp_bias"},
        {"\"model_type\":\"mistral\",\"attention_bias\":true", "", 1, 1, 0, 0, QN_E_UNSUPPORTED, "attention_bias"},
        {"\"model_type\":\"qwen2_moe\"", "", 1, 0, 0, 0, QN_E_UNSUPPORTED, "qwen2_moe"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct {
            const char *module, *suffix;
            int n, there;
        } extra[] = {
            {"self_attn.q_proj", "bias", 32, cases[i].qkv},    {"self_attn.k_proj", "bias", 16, cases[i].qkv},
            {"self_attn.v_proj", "bias", 16, cases[i].qkv},    {"self_attn.o_proj", "bias", 32, cases[i].o},
            {"mlp.gate_proj", "bias", 64, cases[i].mlp},       {"mlp.up_proj", "bias", 64, cases[i].mlp},
            {"mlp.down_proj", "bias", 32, cases[i].mlp},       {"self_attn.q_norm", "weight", 16, cases[i].norms},
            {"self_attn.k_norm", "weight", 16, cases[i].norms}};
        make_parts(qn_scheme_find("f32"));
        for (size_t j = 0; j < sizeof extra / sizeof *extra; j++) {
            char module[100], name[120];
            snprintf(module, sizeof module, "model.layers.0.%s", extra[j].module);
            snprintf(name, sizeof name, "%s.%s", module, extra[j].suffix);
            if (extra[j].there && !(cases[i].without[0] && strstr(name, cases[i].without))) {
                add_part(module, extra[j].suffix, qn_shape_make(QN_F32, 1, extra[j].n, 1, 1, 1), 0, 1.0f);
            }
        }
        write_parts("model.safetensors", 0, part_count);
        char text[1000];
        snprintf(text, sizeof text,
                 "{%s,\"hidden_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                 "\"head_dim\":16,\"intermediate_size\":64,\"vocab_size\":10,\"max_position_embeddings\":8192,"
                 "\"tie_word_embeddings\":true}",
                 cases[i].members);
        write_text(folder, "config.json", text);
        qn_checkpoint *c = NULL;
        qn_error error;
        const qn_status status = open_folder(&c, &error);
        if (status != cases[i].status || (status != QN_OK && !strstr(error.text, cases[i].word))) {
            fail_msg("%s: %s (%s)", cases[i].members, qn_status_name(status), error.text);
        }
        if (status == QN_OK) {
            const qn_hparams *h = qn_checkpoint_hparams(c);
            assert_int_equal(h->context_length, atoi(cases[i].word));
            assert_int_equal(h->qkv_bias, cases[i].qkv);
            assert_int_equal(h->o_bias, cases[i].o);
            assert_int_equal(h->mlp_bias, cases[i].mlp);
            assert_int_equal(h->head_norms, cases[i].norms);
            qn_checkpoint_close(c);
        }
    }
    make_model(qn_scheme_find("f32"));
    write_config(-1, NULL, NULL);
}

static void test_shards(void **state)
{
    (void)state;
    make_model(qn_scheme_find("bf16"));
    char path[400];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    const int half = part_count / 2;
    write_parts("model-00001-of-00002.safetensors", 0, half);
    write_parts("model-00002-of-00002.safetensors", half, part_count);
    static const char *const bad[] = {"../model-00001-of-00002.safetensors",
                                      "/etc/passwd",
                                      "x/y.safetensors",
                                      "",
                                      ".safetensors",
                                      "..",
                                      "model.bin",
                                      "a\\\\b.safetensors",
                                      "a\\nb.safetensors",
                                      "none.safetensors",
                                      "model-00002-of-00002.safetensors"};
    for (int b = -3; b < (int)(sizeof bad / sizeof *bad); b++) {
        qn_buffer text = qn_buffer_make(ctx);
        qn_buffer_print(&text, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
        for (int i = 0; i < part_count; i++) {
            if (b == -2 && i == 3) {
                continue; /* a tensor that the index does not name */
            }
            const char *shard = i < half ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
            qn_buffer_print(&text, "%s\"%s\": \"%s\"", i ? ", " : "", parts[i].name, i == 0 && b >= 0 ? bad[b] : shard);
        }
        qn_buffer_print(&text, b == -1 ? ", \"model.none\": \"model-00001-of-00002.safetensors\"}}" : "}}");
        write_text(folder, "model.safetensors.index.json", text.data);
        qn_buffer_free(&text);
        qn_checkpoint *c = NULL;
        qn_error error;
        const qn_status status = open_folder(&c, &error);
        const qn_status want = b == -3 ? QN_OK : QN_E_FILE;
        if (status != want && !(b >= 0 && strcmp(bad[b], "none.safetensors") == 0 && status == QN_E_IO)) {
            fail_msg("index case %d: %s (%s)", b, qn_status_name(status), error.text);
        }
        if (status == QN_OK) {
            qn_model_info info;
            qn_checkpoint_get_info(c, &info);
            assert_int_equal(info.file_count, 2);
            qn_tensor_info tensor;
            assert_int_equal(qn_checkpoint_tensor(c, info.tensor_count - 1, &tensor), QN_OK);
            assert_int_equal(tensor.file, 1);
            assert_int_equal(qn_checkpoint_tensor(c, info.tensor_count, &tensor), QN_E_ARGUMENT);
        }
        qn_checkpoint_close(c);
    }
    static const char *const texts[] = {"",
                                        "[]",
                                        "{}",
                                        "{\"weight_map\": []}",
                                        "{\"weight_map\": {}}",
                                        "{\"weight_map\": 1}",
                                        "{\"weight_map\": {\"a\": 1}}",
                                        "{\"weight_map\": {\"a\": null}}",
                                        "{",
                                        "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(folder, "model.safetensors.index.json", texts[i]);
        qn_checkpoint *c = NULL;
        qn_error error;
        assert_int_equal(open_folder(&c, &error), QN_E_FILE);
        check_sentence("index", &error);
    }
}

static void test_single_and_absent(void **state)
{
    (void)state;
    make_model(qn_scheme_find("f16"));
    char path[400];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    qn_checkpoint *c = NULL;
    qn_error error = {0};
    assert_int_equal(qn_checkpoint_open(ctx, path, &c, &error), QN_OK);
    qn_checkpoint_close(c);
    assert_int_equal(qn_checkpoint_open(ctx, "/nonexistent/model", &c, &error), QN_E_IO);
    assert_null(c);
    write_text(folder, "model.bin", "\x80\x02}q");
    snprintf(path, sizeof path, "%s/model.bin", folder);
    assert_int_equal(qn_checkpoint_open(ctx, path, &c, &error), QN_E_UNSUPPORTED);
    assert_non_null(strstr(error.text, "pickle"));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_folder(&c, &error), QN_E_IO);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_folder(&c, &error), QN_E_IO);
}

static void count_finding(void *user, int severity, const char *tensor, const char *text)
{
    int *counts = user;
    assert_non_null(tensor);
    assert_null(strchr(text, '\n'));
    counts[severity]++;
}

/* Spoilt data: verify finds it, and nothing else. */
static void test_verify(void **state)
{
    (void)state;
    static const struct {
        const char *scheme, *tensor;
        unsigned char fill;
        float value;
        int severity;
    } cases[] = {
        {"f32", "model.layers.0.mlp.up_proj.weight", 0, NAN, 2},
        {"bf16", "model.layers.0.mlp.up_proj.weight", 0, INFINITY, 2},
        {"f32", "model.norm.weight", 0, -INFINITY, 2},
        {"f32", "model.layers.0.mlp.up_proj.weight", 0, 0.0f, 0},
        {"fp8", "model.layers.0.mlp.up_proj.weight", 0x7f, 0, 2},
        {"fp8-block", "model.layers.0.mlp.up_proj.weight", 0xff, 0, 2},
        {"fp8", "model.layers.0.mlp.up_proj.weight_scale", 0, NAN, 2},
        {"int8", "model.layers.0.mlp.up_proj.weight_scale", 0, -1.0f, 2},
        {"fp8-block", "model.layers.0.mlp.up_proj.weight_scale_inv", 0, INFINITY, 2},
        {"nvfp4", "model.layers.0.mlp.up_proj.weight_scale", 0x7f, 0, 2},
        {"nvfp4", "model.layers.0.mlp.up_proj.weight_scale", 0x81, 0, 2},
        {"mxfp4", "model.layers.0.mlp.up_proj.weight_scale", 0xff, 0, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_model(qn_scheme_find(cases[i].scheme));
        part *p = find_part(cases[i].tensor);
        p->fill = cases[i].fill;
        p->value = cases[i].value;
        write_parts("model.safetensors", 0, part_count);
        qn_checkpoint *c = NULL;
        qn_error error;
        int counts[3] = {0};
        int64_t errors = 0;
        if (open_folder(&c, &error) != QN_OK) {
            fail_msg("%s: %s", cases[i].tensor, error.text);
        }
        assert_int_equal(qn_checkpoint_verify(c, NULL, count_finding, counts, &errors, &error), QN_OK);
        if (counts[cases[i].severity] != 1 || errors != counts[2] || counts[0] + counts[1] + counts[2] != 1) {
            fail_msg("%s %s: findings %d %d %d", cases[i].scheme, cases[i].tensor, counts[0], counts[1], counts[2]);
        }
        qn_checkpoint_close(c);
    }
    /* one flipped bit of data, values still fine: the checksum tells */
    make_model(qn_scheme_find("f32"));
    char path[400];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -4, SEEK_END);
    fputc(1, f);
    fclose(f);
    qn_checkpoint *c = NULL;
    qn_error error;
    int counts[3] = {0};
    int64_t errors = 0;
    assert_int_equal(open_folder(&c, &error), QN_OK);
    assert_int_equal(qn_checkpoint_verify(c, NULL, count_finding, counts, &errors, &error), QN_OK);
    assert_int_equal(errors, 1);
    /* a file that shrinks under us is an error, not a fault */
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(qn_checkpoint_verify(c, NULL, count_finding, counts, &errors, &error), QN_E_IO);
    qn_checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_schemes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_scales, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tensor_scales, setup, teardown),
        cmocka_unit_test_setup_teardown(test_quant_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dynamic_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_config, setup, teardown),
        cmocka_unit_test_setup_teardown(test_families, setup, teardown),
        cmocka_unit_test_setup_teardown(test_biases_and_head_norms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shards, setup, teardown),
        cmocka_unit_test_setup_teardown(test_single_and_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(test_verify, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
