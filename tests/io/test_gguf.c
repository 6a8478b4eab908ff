/* The GGUF reader: each field of a small model spoilt in each way, files of the
 * known attack classes, every truncation, flipped bits; then the same files as
 * checkpoints. */
#include <math.h>

#include "io_cases.h"

#include "io/checkpoint_internal.h"
#include "io/gguf.h"

static bytes file;

static qn_status parse(qn_ctx *ctx, size_t size, qn_gguf *out, unsigned char **copy, qn_error *error)
{
    *copy = malloc(size ? size : 1);
    assert_non_null(*copy);
    memcpy(*copy, file.data, size);
    return qn_gguf_parse(ctx, *copy, size, "x.gguf", out, error);
}

/* Every tensor inside the file and apart from all others. */
static void check_invariants(const char *name, const qn_gguf *g, size_t size)
{
    for (int32_t i = 0; i < g->tensor_count; i++) {
        const qn_gguf_tensor *t = &g->tensors[i];
        size_t need = 0;
        assert_int_equal(qn_shape_bytes(&t->view.shape, &need, NULL), QN_OK);
        if (t->end > size || t->begin > t->end || t->end - t->begin != need || t->begin % g->alignment) {
            fail_msg("%s: tensor %s has a wrong range", name, t->name);
        }
        for (int32_t j = 0; j < i; j++) {
            const qn_gguf_tensor *u = &g->tensors[j];
            if (u->begin < t->end && t->begin < u->end) {
                fail_msg("%s: tensors %s and %s overlap", name, t->name, u->name);
            }
        }
    }
}

static void test_broken(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    const int cases = gguf_fields() * (SPOIL_COUNT - 1);
    char *folder = make_folder(), path[300];
    int parser = 0, whole = 0, passed = 0;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    for (int i = 0; i < cases; i++) {
        char name[120];
        const verdict want = gguf_case(i, &file, name);
        qn_gguf g;
        unsigned char *copy;
        qn_error error = {0};
        const qn_status status = parse(ctx, file.size, &g, &copy, &error);
        if (status == QN_OK) {
            check_invariants(name, &g, file.size);
        } else if (!is_file_error(status)) {
            fail_msg("case %d, %s: status %s (%s)", i, name, qn_status_name(status), error.text);
        } else {
            check_sentence(name, &error);
            parser++;
        }
        qn_gguf_free(&g);
        free(copy);
        if (status == QN_OK) { /* the parser may take it; the checkpoint reader must see what is wrong */
            write_file(folder, "x.gguf", file.data, file.size);
            qn_checkpoint *c = NULL;
            const qn_status opened = qn_checkpoint_open(ctx, path, &c, &error);
            if (opened == QN_OK) {
                passed++;
            }
            if ((opened == QN_OK && want == MUST_FAIL) || (opened != QN_OK && !is_file_error(opened)) ||
                (opened != QN_OK && want == MUST_PASS)) {
                fail_msg("case %d, %s: status %s (%s)", i, name, qn_status_name(opened), error.text);
            }
            if (opened != QN_OK) {
                check_sentence(name, &error);
                whole++;
            }
            qn_checkpoint_close(c);
        }
    }
    print_message("%d cases: %d refused by the parser, %d by the checkpoint, %d are valid\n", cases, parser, whole,
                  passed);
    assert_true(parser + whole >= 300);
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

/* Files of the published attack classes, each put together by hand. */
typedef struct attack {
    const char *name;
    uint32_t version;
    uint64_t tensors, values;
    const char *key; /* one metadata entry: its type, array type and count; NULL: none */
    uint32_t type, array_type;
    uint64_t count;
    uint32_t rank; /* tensor "t" */
    uint64_t dims[5];
    uint32_t tensor_type;
    uint64_t offset;
    int twice; /* put the tensor or the key twice */
} attack;

static const attack attacks[] = {
    {.name = "metadata count far beyond the file", .version = 3, .values = UINT64_MAX},
    {.name = "metadata count that wraps when multiplied", .version = 3, .values = (uint64_t)1 << 60},
    {.name = "tensor count far beyond the file", .version = 3, .tensors = UINT64_MAX},
    {.name = "tensor count that wraps when multiplied", .version = 3, .tensors = (uint64_t)1 << 58},
    {.name = "version 0", .version = 0},
    {.name = "version 1", .version = 1},
    {.name = "version 4", .version = 4},
    {.name = "big-endian version", .version = 0x03000000},
    {.name = "array of strings longer than the file",
     .version = 3,
     .values = 1,
     .key = "k",
     .type = 9,
     .array_type = 8,
     .count = (uint64_t)1 << 61},
    {.name = "array whose bytes wrap",
     .version = 3,
     .values = 1,
     .key = "k",
     .type = 9,
     .array_type = 12,
     .count = ((uint64_t)1 << 61) + 1},
    {.name = "array of unknown type", .version = 3, .values = 1, .key = "k", .type = 9, .array_type = 13, .count = 1},
    {.name = "array of arrays", .version = 3, .values = 1, .key = "k", .type = 9, .array_type = 9, .count = 1},
    {.name = "value of unknown type", .version = 3, .values = 1, .key = "k", .type = 255},
    {.name = "key with a line break", .version = 3, .values = 1, .key = "k\n", .type = 4},
    {.name = "key that is not UTF-8", .version = 3, .values = 1, .key = "k\xff", .type = 4},
    {.name = "same key twice", .version = 3, .values = 2, .key = "k", .type = 4, .twice = 1},
    {.name = "alignment 0", .version = 3, .values = 1, .key = "general.alignment", .type = 4, .count = 0},
    {.name = "alignment 24", .version = 3, .values = 1, .key = "general.alignment", .type = 4, .count = 24},
    {.name = "alignment 2^17", .version = 3, .values = 1, .key = "general.alignment", .type = 4, .count = 1 << 17},
    {.name = "alignment 2^31", .version = 3, .values = 1, .key = "general.alignment", .type = 4, .count = 1u << 31},
    {.name = "alignment 2^63",
     .version = 3,
     .values = 1,
     .key = "general.alignment",
     .type = 10,
     .count = (uint64_t)1 << 63},
    {.name = "alignment is a string", .version = 3, .values = 1, .key = "general.alignment", .type = 8, .count = 0},
    {.name = "alignment is a float", .version = 3, .values = 1, .key = "general.alignment", .type = 6, .count = 0},
    {.name = "rank 0", .version = 3, .tensors = 1, .rank = 0},
    {.name = "rank 5", .version = 3, .tensors = 1, .rank = 5, .dims = {1, 1, 1, 1, 1}},
    {.name = "rank 2^32-1", .version = 3, .tensors = 1, .rank = UINT32_MAX, .dims = {1, 1, 1, 1, 1}},
    {.name = "dimension 0", .version = 3, .tensors = 1, .rank = 2, .dims = {0, 4}},
    {.name = "dimension -1", .version = 3, .tensors = 1, .rank = 2, .dims = {UINT64_MAX, 4}},
    {.name = "elements wrap to 0",
     .version = 3,
     .tensors = 1,
     .rank = 2,
     .dims = {(uint64_t)1 << 32, (uint64_t)1 << 32}},
    {.name = "elements wrap to 4", .version = 3, .tensors = 1, .rank = 2, .dims = {((uint64_t)1 << 62) + 1, 4}},
    {.name = "F32 bytes wrap to 0", .version = 3, .tensors = 1, .rank = 1, .dims = {(uint64_t)1 << 62}},
    {.name = "F32 bytes wrap to 4", .version = 3, .tensors = 1, .rank = 1, .dims = {((uint64_t)1 << 62) + 1}},
    {.name = "Q4_0 bytes wrap",
     .version = 3,
     .tensors = 1,
     .rank = 1,
     .tensor_type = 2,
     .dims = {((uint64_t)1 << 60) + 512}},
    {.name = "Q4_0 row of 33", .version = 3, .tensors = 1, .rank = 1, .tensor_type = 2, .dims = {33}},
    {.name = "Q6_K row of 128", .version = 3, .tensors = 1, .rank = 1, .tensor_type = 14, .dims = {128}},
    {.name = "padding wraps the sum of sizes",
     .version = 3,
     .tensors = 1,
     .rank = 1,
     .dims = {((uint64_t)1 << 61) - 1}},
    {.name = "data beyond the file by one element", .version = 3, .tensors = 1, .rank = 1, .dims = {17}},
    {.name = "exabyte tensor", .version = 3, .tensors = 1, .rank = 4, .dims = {1 << 20, 1 << 20, 1 << 18, 1}},
    {.name = "offset beyond the file", .version = 3, .tensors = 1, .rank = 1, .dims = {4}, .offset = 1 << 20},
    {.name = "offset not aligned", .version = 3, .tensors = 1, .rank = 1, .dims = {4}, .offset = 4},
    {.name = "offset + size wraps", .version = 3, .tensors = 1, .rank = 1, .dims = {16}, .offset = UINT64_MAX - 31},
    {.name = "offset 2^63", .version = 3, .tensors = 1, .rank = 1, .dims = {4}, .offset = (uint64_t)1 << 63},
    {.name = "same tensor twice", .version = 3, .tensors = 2, .rank = 1, .dims = {4}, .twice = 1},
    {.name = "tensor type 4, removed long ago", .version = 3, .tensors = 1, .rank = 1, .dims = {32}, .tensor_type = 4},
    {.name = "tensor type Q8_K", .version = 3, .tensors = 1, .rank = 1, .dims = {256}, .tensor_type = 15},
    {.name = "tensor type 255", .version = 3, .tensors = 1, .rank = 1, .dims = {32}, .tensor_type = 255},
    {.name = "tensor type 2^32-1", .version = 3, .tensors = 1, .rank = 1, .dims = {32}, .tensor_type = UINT32_MAX},
    {.name = "tensor type 2^31", .version = 3, .tensors = 1, .rank = 1, .dims = {32}, .tensor_type = 1u << 31},
};

static void put_attack(const attack *a)
{
    file.size = 0;
    put_bytes(&file, "GGUF", 4);
    put_le(&file, a->version, 4);
    put_le(&file, a->tensors, 8);
    put_le(&file, a->values, 8);
    for (int i = 0; a->key && i < 1 + a->twice; i++) {
        put_le(&file, strlen(a->key), 8);
        put_bytes(&file, a->key, strlen(a->key));
        put_le(&file, a->type, 4);
        if (a->type == 9) {
            put_le(&file, a->array_type, 4);
            put_le(&file, a->count, 8);
        } else {
            put_le(&file, a->count, a->type >= 8 ? 8 : 4);
        }
    }
    for (int i = 0; a->tensors && i < 1 + a->twice; i++) {
        put_le(&file, 1, 8);
        put_bytes(&file, "t", 1);
        put_le(&file, a->rank, 4);
        for (uint32_t d = 0; d < a->rank && d < 5; d++) {
            put_le(&file, a->dims[d], 8);
        }
        put_le(&file, a->tensor_type, 4);
        put_le(&file, a->offset + (uint64_t)i * 32, 8);
    }
    pad_to(&file, 32);
    for (int i = 0; i < 64; i++) {
        put_le(&file, 0, 1);
    }
}

static void test_attacks(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        qn_gguf g;
        unsigned char *copy;
        qn_error error = {0};
        put_attack(&attacks[i]);
        const qn_status status = parse(ctx, file.size, &g, &copy, &error);
        if (!is_file_error(status)) {
            fail_msg("%s: status %s (%s)", attacks[i].name, qn_status_name(status), error.text);
        }
        check_sentence(attacks[i].name, &error);
        if (attacks[i].tensor_type >= 20 && !strstr(error.text, "tensor t ")) {
            fail_msg("%s: the tensor is not named: %s", attacks[i].name, error.text);
        }
        free(copy);
    }
    qn_ctx_destroy(ctx);
}

static void test_truncated(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
    qn_gguf g;
    unsigned char *copy;
    qn_error error = {0};
    for (size_t size = 0; size < file.size; size += size < 3000 ? 1 : 61) {
        assert_true(is_file_error(parse(ctx, size, &g, &copy, &error)));
        check_sentence("truncated", &error);
        free(copy);
    }
    assert_int_equal(parse(ctx, file.size - 1, &g, &copy, &error), QN_E_FILE);
    free(copy);
    assert_int_equal(parse(ctx, file.size, &g, &copy, &error), QN_OK);
    check_invariants("whole", &g, file.size);
    qn_gguf_free(&g);
    free(copy);
    qn_ctx_destroy(ctx);
}

static void test_flipped(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
    for (size_t bit = 0; bit < 8 * 2000; bit++) {
        qn_gguf g;
        unsigned char *copy;
        qn_error error = {0};
        file.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        const qn_status status = parse(ctx, file.size, &g, &copy, &error);
        if (status == QN_OK) {
            check_invariants("flipped bit", &g, file.size);
        } else {
            assert_true(is_file_error(status));
            check_sentence("flipped bit", &error);
        }
        qn_gguf_free(&g);
        free(copy);
        file.data[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    qn_ctx_destroy(ctx);
}

/* The good file: names, shapes, tokenizer, and the order of q's rows. */
static void test_good(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    char *folder = make_folder(), path[300];
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
    write_file(folder, "x.gguf", file.data, file.size);
    qn_checkpoint *c = NULL;
    qn_error error = {0};
    if (qn_checkpoint_open(ctx, path, &c, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    qn_model_info info;
    qn_checkpoint_get_info(c, &info);
    assert_string_equal(info.container, "gguf");
    assert_string_equal(info.scheme, "q8_0");
    assert_string_equal(info.name, "tiny");
    assert_int_equal(info.parameters, 10 * 32 + 3 * 32 + 32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32);
    assert_int_equal(info.file_bytes, file.size);
    assert_int_equal(info.tied_embeddings, 1);
    for (int i = 0; i < TINY_WEIGHTS; i++) {
        const qn_weight *w = qn_checkpoint_find(c, tiny_weights[i].hf);
        assert_non_null(w);
        assert_int_equal(w->n, tiny_weights[i].n);
        assert_int_equal(w->k, tiny_weights[i].k ? tiny_weights[i].k : 1);
        assert_int_equal(w->rope_interleaved, strstr(w->name, "q_proj") || strstr(w->name, "k_proj") ? 16 : 0);
    }
    /* stored row r holds r + 1 everywhere; logical rows 0, 1, 8, 9, 17 of a head of 16 lie at 0, 2, 1, 3, 18 */
    const qn_weight *q = qn_checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight");
    static const int logical[] = {0, 1, 8, 9, 17}, stored[] = {0, 2, 1, 3, 18};
    for (int i = 0; i < 5; i++) {
        float row[TINY_HIDDEN];
        assert_int_equal(qn_weight_source_row(q, logical[i]), stored[i]);
        qn_weight_decode_row(q, logical[i], row);
        assert_true(row[0] == (float)(stored[i] + 1) && row[31] == (float)(stored[i] + 1));
    }
    const qn_tokenizer_source *t = qn_checkpoint_tokenizer(c);
    assert_string_equal(t->model, "gpt2");
    assert_null(t->pre);
    assert_int_equal(t->token_count, TINY_VOCAB);
    assert_int_equal(t->merge_count, 1);
    assert_memory_equal(t->merges[0].data, "a b", 3);
    assert_int_equal(t->tokens[9].bytes, 1);
    assert_int_equal(t->tokens[9].data[0], 'j');
    assert_int_equal(t->token_types[9], 1);
    assert_int_equal(t->bos_id, 1);
    assert_int_equal(t->eos_id, -1);
    assert_int_equal(t->add_bos, 1);
    assert_int_equal(t->add_eos, -1);
    int64_t errors = -1;
    assert_int_equal(qn_checkpoint_verify(c, NULL, NULL, NULL, &errors, &error), QN_OK);
    assert_int_equal(errors, 0);
    assert_int_equal(json_integer_value(json_object_get(qn_checkpoint_config(c), "head_dim")), 16);
    assert_true(json_is_true(json_object_get(qn_checkpoint_config(c), "tie_word_embeddings")));
    qn_checkpoint_close(c);
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

/* Architectures like llama: their own metadata, biases and norms of heads, rows in order; llama's biases are reordered
 * as its rows are. */
static void test_like_llama(void **state)
{
    (void)state;
    qn_ctx *ctx = new_context();
    char *folder = make_folder(), path[300];
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    static const struct {
        const char *architecture, *class;
        int biases, o_bias;
    } cases[] = {{"qwen2", "Qwen2ForCausalLM", 0, 0},
                 {"qwen3", "Qwen3ForCausalLM", 0, 0},
                 {"qwen3", "Qwen3ForCausalLM", 1, 1},
                 {"llama", "LlamaForCausalLM", 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int llama = strcmp(cases[i].architecture, "llama") == 0;
        tiny_architecture = cases[i].architecture;
        tiny_biases = cases[i].biases;
        put_tiny_gguf(&file, -1, SPOIL_NONE, NULL, NULL);
        write_file(folder, "x.gguf", file.data, file.size);
        qn_checkpoint *c = NULL;
        qn_error error = {0};
        if (qn_checkpoint_open(ctx, path, &c, &error) != QN_OK) {
            fail_msg("%s: %s", cases[i].architecture, error.text);
        }
        const json_t *config = qn_checkpoint_config(c);
        assert_string_equal(qn_checkpoint_hparams(c)->architecture, cases[i].architecture);
        assert_string_equal(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
                            cases[i].class);
        assert_string_equal(json_string_value(json_object_get(config, "model_type")), cases[i].architecture);
        assert_int_equal(json_is_true(json_object_get(config, "attention_bias")), cases[i].o_bias);
        qn_hparams again;
        assert_int_equal(qn_hparams_from_config(config, &again, &error), QN_OK);
        assert_int_equal(again.qkv_bias, qn_checkpoint_hparams(c)->qkv_bias);
        assert_int_equal(again.head_norms, qn_checkpoint_hparams(c)->head_norms);
        for (int j = 0; j < TINY_VECTORS; j++) {
            const qn_weight *w = qn_checkpoint_find(c, tiny_vectors[j].hf);
            assert_int_equal(w != NULL, has_tiny_vector(j));
            float values[32];
            if (w) {
                qn_weight_decode_vector(w, values);
                const int turned = llama && j < 2;
                assert_int_equal(w->rope_interleaved, turned ? 16 : 0);
                assert_true(values[1] == (turned ? 2.0f : 1.0f) && values[8] == (turned ? 1.0f : 8.0f));
            }
        }
        assert_int_equal(qn_checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight")->rope_interleaved,
                         llama ? 16 : 0);
        qn_checkpoint_close(c);
    }
    tiny_architecture = "llama";
    tiny_biases = 0;
    remove_folder(folder);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),    cmocka_unit_test(test_like_llama), cmocka_unit_test(test_broken),
        cmocka_unit_test(test_attacks), cmocka_unit_test(test_truncated),  cmocka_unit_test(test_flipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
