/* Builders for the io tests: byte strings, temporary folders, safetensors
 * headers, GGUF files with one field spoilt, and small llama folders. */
#ifndef TESTS_IO_IO_FILES_H
#define TESTS_IO_IO_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "base/context.h"
#include "base/text.h"

__attribute__((unused)) static qn_ctx *new_context(void)
{
    qn_ctx *ctx = NULL;
    assert_int_equal(qn_ctx_create(NULL, &ctx, NULL), QN_OK);
    return ctx;
}

/* ---- folders and files ---- */

__attribute__((unused)) static char *make_folder(void)
{
    char *path = strdup("/tmp/quern-io-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

__attribute__((unused)) static void remove_folder(char *path)
{
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
    free(path);
}

__attribute__((unused)) static void write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

__attribute__((unused)) static void write_text(const char *folder, const char *name, const char *text)
{
    write_file(folder, name, text, strlen(text));
}

/* The text of an error: one line, not empty, no full stop at the end. */
__attribute__((unused)) static void check_sentence(const char *what, const qn_error *error)
{
    const size_t length = strlen(error->text);
    if (length == 0 || strchr(error->text, '\n') || error->text[length - 1] == '.') {
        fail_msg("%s: bad error text \"%s\"", what, error->text);
    }
}

/* An error a bad file may give. */
__attribute__((unused)) static int is_file_error(qn_status status)
{
    return status == QN_E_FILE || status == QN_E_UNSUPPORTED;
}

/* ---- bytes ---- */

typedef struct bytes {
    unsigned char data[65536];
    size_t size;
} bytes;

__attribute__((unused)) static void put_bytes(bytes *b, const void *data, size_t n)
{
    assert_true(n <= sizeof b->data - b->size);
    memcpy(b->data + b->size, data, n);
    b->size += n;
}

__attribute__((unused)) static void put_le(bytes *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)(value >> (8 * i));
        put_bytes(b, &c, 1);
    }
}

/* A safetensors file of a header text and data of n bytes. */
__attribute__((unused)) static void put_safetensors(bytes *b, const char *header, size_t n)
{
    b->size = 0;
    put_le(b, strlen(header), 8);
    put_bytes(b, header, strlen(header));
    for (size_t i = 0; i < n; i++) {
        put_le(b, i & 1, 1);
    }
}

/* ---- hostile values ---- */

typedef enum spoil {
    SPOIL_NONE = 0,
    SPOIL_MISSING,
    SPOIL_DUPLICATE,
    SPOIL_ZERO,
    SPOIL_ONES, /* -1 */
    SPOIL_2_31,
    SPOIL_2_53_1,
    SPOIL_2_63,
    SPOIL_2_64_1,
    SPOIL_PLUS_1,
    SPOIL_INT_MAX,
    SPOIL_NEAR_WRAP, /* so that adding the padding or a size wraps */
    SPOIL_COUNT
} spoil;

static const char *const spoil_names[SPOIL_COUNT] = {"as it is", "missing", "twice",  "0",      "-1",     "2^31",
                                                     "2^53+1",   "2^63",    "2^64-1", "plus 1", "2^31-1", "2^64-31"};

/* JSON texts put in the place of a value; NULL: leave the member out; "twice": put it twice. */
static const char *const json_values[] = {NULL,
                                          "twice",
                                          "null",
                                          "true",
                                          "\"x\"",
                                          "0",
                                          "-1",
                                          "2147483648",
                                          "9007199254740993",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551615",
                                          "1e308",
                                          "1e999",
                                          "1.5",
                                          "{}",
                                          "[]",
                                          "[-1]",
                                          "[[[[[[[[[[]]]]]]]]]]",
                                          "overlong"};
#define JSON_VALUES ((int)(sizeof json_values / sizeof *json_values))

/* ---- GGUF ---- */

/* Writes a GGUF file whose field number `target` (in writing order) is spoilt. */
typedef struct gguf_writer {
    bytes *out;
    int field, target;
    spoil how;
    char label[100]; /* of the target */
    int is_free;     /* the target may hold any value */
} gguf_writer;

__attribute__((unused)) static void put_field(gguf_writer *w, const char *label, uint64_t value, int n, int is_free)
{
    const int hit = w->field++ == w->target;
    const uint64_t mask = n < 8 ? ((uint64_t)1 << (8 * n)) - 1 : UINT64_MAX, good = value;
    if (!hit || w->how == SPOIL_NONE) {
        put_le(w->out, value, n);
        return;
    }
    snprintf(w->label, sizeof w->label, "%s = %s", label, spoil_names[w->how]);
    w->is_free = is_free;
    switch (w->how) {
    case SPOIL_MISSING: return;
    case SPOIL_DUPLICATE: put_le(w->out, value, n); break;
    case SPOIL_ZERO: value = 0; break;
    case SPOIL_ONES: value = UINT64_MAX; break;
    case SPOIL_2_31: value = (uint64_t)1 << 31; break;
    case SPOIL_2_53_1: value = ((uint64_t)1 << 53) + 1; break;
    case SPOIL_2_63: value = (uint64_t)1 << 63; break;
    case SPOIL_2_64_1: value = UINT64_MAX; break;
    case SPOIL_PLUS_1: value += 1; break;
    case SPOIL_INT_MAX: value = INT32_MAX; break;
    case SPOIL_NEAR_WRAP: value = UINT64_MAX - 30; break;
    default: break;
    }
    if (w->how != SPOIL_DUPLICATE && ((value ^ good) & mask) == 0) {
        w->is_free = 1; /* the good value after all */
    }
    put_le(w->out, value, n);
}

__attribute__((unused)) static void put_string(gguf_writer *w, const char *label, const char *text, int is_free)
{
    char name[90];
    snprintf(name, sizeof name, "%s: length", label);
    put_field(w, name, strlen(text), 8, is_free);
    put_bytes(w->out, text, strlen(text));
}

__attribute__((unused)) static void put_key(gguf_writer *w, const char *key, int type)
{
    char name[90];
    put_string(w, key, key, 0);
    snprintf(name, sizeof name, "%s: type", key);
    put_field(w, name, (uint64_t)type, 4, 0);
}

__attribute__((unused)) static void put_u32_value(gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, 4);
    put_field(w, key, value, 4, 1);
}

__attribute__((unused)) static void put_f32_value(gguf_writer *w, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    put_key(w, key, 6);
    put_field(w, key, bits, 4, 1);
}

__attribute__((unused)) static void put_text_value(gguf_writer *w, const char *key, const char *text)
{
    put_key(w, key, 8);
    put_string(w, key, text, 0);
}

__attribute__((unused)) static void put_tensor(gguf_writer *w, const char *name, int rank, const uint64_t *dims,
                                               uint32_t type, uint64_t offset)
{
    char label[90];
    put_string(w, name, name, 0);
    snprintf(label, sizeof label, "%s: rank", name);
    put_field(w, label, (uint64_t)rank, 4, 0);
    for (int i = 0; i < rank; i++) {
        snprintf(label, sizeof label, "%s: dimension %d", name, i);
        put_field(w, label, dims[i], 8, 0);
    }
    snprintf(label, sizeof label, "%s: type", name);
    put_field(w, label, type, 4, 0);
    snprintf(label, sizeof label, "%s: offset", name);
    put_field(w, label, offset, 8, 0);
}

__attribute__((unused)) static void pad_to(bytes *b, size_t unit)
{
    while (b->size % unit) {
        put_le(b, 0, 1);
    }
}

/* Sizes of the small model. */
enum { TINY_HIDDEN = 32, TINY_INNER = 64, TINY_HEADS = 2, TINY_KV = 1, TINY_DIM = 16, TINY_VOCAB = 10 };

static const struct {
    const char *gguf, *hf;
    int n, k; /* k = 0: a vector */
} tiny_weights[] = {{"token_embd.weight", "model.embed_tokens.weight", TINY_VOCAB, TINY_HIDDEN},
                    {"output_norm.weight", "model.norm.weight", TINY_HIDDEN, 0},
                    {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight", TINY_HIDDEN, 0},
                    {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight", TINY_HIDDEN, 0},
                    {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight", 32, TINY_HIDDEN},
                    {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight", 16, TINY_HIDDEN},
                    {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight", 16, TINY_HIDDEN},
                    {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight", TINY_HIDDEN, 32},
                    {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight", TINY_INNER, TINY_HIDDEN},
                    {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight", TINY_INNER, TINY_HIDDEN},
                    {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", TINY_HIDDEN, TINY_INNER}};
#define TINY_WEIGHTS ((int)(sizeof tiny_weights / sizeof *tiny_weights))

/* What put_tiny_gguf writes: llama, or an architecture like it, or llama with biases of its attention. */
static const char *tiny_architecture = "llama";
__attribute__((unused)) static int tiny_biases;

/* Vectors that are there beside the weights, element i being i. */
static const struct {
    const char *gguf, *hf;
    int n;
} tiny_vectors[] = {{"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias", 32},
                    {"blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias", 16},
                    {"blk.0.attn_v.bias", "model.layers.0.self_attn.v_proj.bias", 16},
                    {"blk.0.attn_output.bias", "model.layers.0.self_attn.o_proj.bias", TINY_HIDDEN},
                    {"blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight", TINY_DIM},
                    {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight", TINY_DIM}};
#define TINY_VECTORS ((int)(sizeof tiny_vectors / sizeof *tiny_vectors))

static int has_tiny_vector(int i)
{
    return i < 3   ? tiny_biases || strcmp(tiny_architecture, "qwen2") == 0
           : i < 4 ? tiny_biases
                   : strcmp(tiny_architecture, "qwen3") == 0;
}
/* What is said of RoPE beside its base, where anything is; counts as fields too. */
static struct {
    const char *type;
    int count, pairs;
    struct {
        const char *key;
        float value;
    } values[6];
    const float *factors; /* rope_freqs.weight, [pairs] */
} tiny_rope;

/* A whole GGUF model of one layer: vectors F32, embedding and matrices Q8_0 (zero bytes, d = 1 in
 * row 0 of each block). Field `target` is spoilt; -1: none. Returns the number of fields. */
__attribute__((unused)) static int put_tiny_gguf(bytes *out, int target, spoil how, char label[100], int *is_free)
{
    gguf_writer w = {.out = out, .target = target, .how = how};
    out->size = 0;
    put_field(&w, "magic", 0x46554747, 4, 0);
    put_field(&w, "version", 3, 4, 0);
    int vectors = 0;
    for (int i = 0; i < TINY_VECTORS; i++) {
        vectors += has_tiny_vector(i);
    }
    put_field(&w, "tensor count", (uint64_t)(TINY_WEIGHTS + vectors + (tiny_rope.factors != NULL)), 8, 0);
    put_field(&w, "metadata count", (uint64_t)(18 + (tiny_rope.type != NULL) + tiny_rope.count), 8, 0);
    put_text_value(&w, "general.architecture", tiny_architecture);
    put_text_value(&w, "general.name", "tiny");
    put_u32_value(&w, "general.alignment", 32);
    const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {{"embedding_length", TINY_HIDDEN},    {"block_count", 1},
                 {"attention.head_count", TINY_HEADS}, {"attention.head_count_kv", TINY_KV},
                 {"feed_forward_length", TINY_INNER},  {"context_length", 128},
                 {"rope.dimension_count", TINY_DIM}};
    char key[80];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", tiny_architecture, sizes[i].name);
        put_u32_value(&w, key, sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", tiny_architecture);
    put_f32_value(&w, key, 10000.0f);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", tiny_architecture);
    put_f32_value(&w, key, 1e-5f);
    if (tiny_rope.type) {
        put_text_value(&w, "llama.rope.scaling.type", tiny_rope.type);
    }
    for (int i = 0; i < tiny_rope.count; i++) {
        const char *name = tiny_rope.values[i].key;
        if (strstr(name, "length")) {
            put_u32_value(&w, name, (uint32_t)tiny_rope.values[i].value);
        } else {
            put_f32_value(&w, name, tiny_rope.values[i].value);
        }
    }
    put_text_value(&w, "tokenizer.ggml.model", "gpt2");
    put_key(&w, "tokenizer.ggml.tokens", 9);
    put_field(&w, "tokens: element type", 8, 4, 0);
    put_field(&w, "tokens: count", TINY_VOCAB, 8, 0);
    for (int i = 0; i < TINY_VOCAB; i++) {
        const char text[2] = {(char)('a' + i), 0};
        put_string(&w, "tokens: string", text, 0);
    }
    put_key(&w, "tokenizer.ggml.token_type", 9);
    put_field(&w, "token_type: element type", 5, 4, 0);
    put_field(&w, "token_type: count", TINY_VOCAB, 8, 0);
    for (int i = 0; i < TINY_VOCAB; i++) {
        put_le(out, 1, 4);
    }
    put_key(&w, "tokenizer.ggml.merges", 9);
    put_field(&w, "merges: element type", 8, 4, 0);
    put_field(&w, "merges: count", 1, 8, 0);
    put_string(&w, "merges: string", "a b", 0);
    put_u32_value(&w, "tokenizer.ggml.bos_token_id", 1);
    put_key(&w, "tokenizer.ggml.add_bos_token", 7);
    put_field(&w, "add_bos_token", 1, 1, 1);
    uint64_t offset = 0, tensor_bytes[TINY_WEIGHTS];
    for (int i = 0; i < TINY_WEIGHTS; i++) {
        const int k = tiny_weights[i].k, n = tiny_weights[i].n;
        const uint64_t dims[2] = {(uint64_t)(k ? k : n), (uint64_t)n};
        put_tensor(&w, tiny_weights[i].gguf, k ? 2 : 1, dims, k ? 8 : 0, offset);
        tensor_bytes[i] = k ? (uint64_t)n * (uint64_t)k / 32 * 34 : (uint64_t)n * 4;
        offset += (tensor_bytes[i] + 31) / 32 * 32;
    }
    for (int i = 0; i < TINY_VECTORS; i++) {
        const uint64_t n = (uint64_t)tiny_vectors[i].n;
        if (has_tiny_vector(i)) {
            put_tensor(&w, tiny_vectors[i].gguf, 1, &n, 0, offset);
            offset += (n * 4 + 31) / 32 * 32;
        }
    }
    if (tiny_rope.factors) {
        const uint64_t dims[1] = {(uint64_t)tiny_rope.pairs};
        put_tensor(&w, "rope_freqs.weight", 1, dims, 0, offset);
    }
    pad_to(out, 32);
    for (int i = 0; i < TINY_WEIGHTS; i++) {
        const size_t begin = out->size;
        for (uint64_t j = 0; j < tensor_bytes[i]; j++) {
            const int k = tiny_weights[i].k;
            /* Q8_0: f16 1.0, then codes that count up with the row; F32: 1.0 */
            const uint64_t row = k ? j / ((uint64_t)k / 32 * 34) : 0;
            static const unsigned char one[4] = {0, 0, 0x80, 0x3f};
            put_le(out, k ? (j % 34 == 1 ? 0x3c : j % 34 == 0 ? 0 : row + 1) : one[j % 4], 1);
        }
        if (i + 1 < TINY_WEIGHTS || vectors) {
            pad_to(out, 32);
        }
        assert_true(out->size >= begin);
    }
    for (int i = 0; i < TINY_VECTORS; i++) {
        for (int j = 0; has_tiny_vector(i) && j < tiny_vectors[i].n; j++) {
            const float value = (float)j;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            put_le(out, bits, 4);
        }
        pad_to(out, 32);
    }
    if (tiny_rope.factors) {
        pad_to(out, 32);
        put_bytes(out, tiny_rope.factors, (size_t)tiny_rope.pairs * sizeof(float));
    }
    if (label) {
        snprintf(label, 100, "%s", w.label);
    }
    if (is_free) {
        *is_free = w.is_free;
    }
    return w.field;
}

/* ---- llama folders ---- */

static const char *const tiny_config_keys[][2] = {{"architectures", "[\"LlamaForCausalLM\"]"},
                                                  {"model_type", "\"llama\""},
                                                  {"hidden_size", "32"},
                                                  {"num_hidden_layers", "1"},
                                                  {"num_attention_heads", "2"},
                                                  {"num_key_value_heads", "1"},
                                                  {"head_dim", "16"},
                                                  {"intermediate_size", "64"},
                                                  {"vocab_size", "10"},
                                                  {"max_position_embeddings", "128"},
                                                  {"rms_norm_eps", "1e-05"},
                                                  {"rope_theta", "10000.0"},
                                                  {"rope_scaling", "null"},
                                                  {"tie_word_embeddings", "true"},
                                                  {"hidden_act", "\"silu\""},
                                                  {"attention_bias", "false"},
                                                  {"bos_token_id", "1"},
                                                  {"eos_token_id", "2"},
                                                  {"quantization_config", "null"}};
#define TINY_CONFIG_KEYS ((int)(sizeof tiny_config_keys / sizeof *tiny_config_keys))

/* config.json with member `key` given another value (see json_values); quant: text of quantization_config or NULL. */
__attribute__((unused)) static void make_config(qn_buffer *out, int key, const char *value, const char *quant)
{
    qn_buffer_print(out, "{\"unknown\": {\"a\": [1, 2]}");
    for (int i = 0; i < TINY_CONFIG_KEYS; i++) {
        const char *name = tiny_config_keys[i][0], *text = tiny_config_keys[i][1];
        if (quant && strcmp(name, "quantization_config") == 0) {
            text = quant;
        }
        if (i != key) {
            qn_buffer_print(out, ", \"%s\": %s", name, text);
        } else if (value && strcmp(value, "twice") == 0) {
            qn_buffer_print(out, ", \"%s\": %s, \"%s\": %s", name, text, name, text);
        } else if (value && strcmp(value, "overlong") == 0) {
            qn_buffer_print(out, ", \"%s\": \"%05000d\"", name, 0);
        } else if (value) {
            qn_buffer_print(out, ", \"%s\": %s", name, value);
        }
    }
    qn_buffer_print(out, "}");
}

#endif
