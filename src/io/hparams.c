/* Hyperparameters of llama and the architectures that are like it: from
 * config.json, from GGUF metadata, and back to config.json. What would change the computation and is
 * not implemented is refused, never skipped. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/checkpoint_internal.h"

#define MAX_SIZE (1 << 20)
#define MAX_LAYERS 4096
#define MAX_VOCABULARY (1 << 24)
#define MAX_CONTEXT (1 << 30)

qn_status qn_hparams_check(const qn_hparams *h, qn_error *error)
{
    QN_FAIL_IF(h->heads % h->kv_heads, error, QN_E_FILE, "%d attention heads do not share %d key/value heads evenly",
               (int)h->heads, (int)h->kv_heads);
    QN_FAIL_IF(h->head_dim % 2, error, QN_E_FILE, "the head size %d is odd, rotary embeddings need pairs",
               (int)h->head_dim);
    QN_FAIL_IF((int64_t)h->heads * h->head_dim > 16 * MAX_SIZE, error, QN_E_FILE,
               "%d heads of %d elements are more than any model has", (int)h->heads, (int)h->head_dim);
    return QN_OK;
}

/* ---- config.json ---- */

static qn_status get_size(const json_t *config, const char *key, int64_t high, int64_t fallback, int32_t *out,
                          qn_error *error)
{
    int64_t n = fallback;
    QN_TRY(qn_json_get_int(config, key, 1, high, &n, error));
    QN_FAIL_IF(n < 1, error, QN_E_FILE, "%s is missing", key);
    *out = (int32_t)n;
    return QN_OK;
}

/* A token id, or the first of a list of them. */
static qn_status get_id(const json_t *config, const char *key, int32_t *out, qn_error *error)
{
    const json_t *value = json_object_get(config, key);
    *out = -1;
    if (json_is_array(value)) {
        value = json_array_get(value, 0);
    }
    if (!value || json_is_null(value)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_integer(value) || json_integer_value(value) < -1 || json_integer_value(value) >= MAX_VOCABULARY,
               error, QN_E_FILE, "%s is not a token id", key);
    *out = (int32_t)json_integer_value(value);
    return QN_OK;
}

/* What config.json has said with attention_bias. */
typedef enum biases { BIAS_NEVER, BIAS_IF_SAID, BIAS_QKV } biases;

/* Families by what config.json calls them, and the architecture, by what GGUF calls it, that computes as they do. */
static const struct family {
    const char *architecture, *type, *name;
    int64_t context, kv_heads, head_dim, window; /* where the file says nothing; 0: 2048, as many as heads, hidden /
                                                    heads, none */
    biases attention;
    int mlp_bias, head_norms, asks_window; /* mlp_bias: if said; asks_window: none without use_sliding_window */
} families[] = {
    {"LlamaForCausalLM", "llama", "llama", 0, 0, 0, 0, BIAS_IF_SAID, 1, 0, 0},
    {"MistralForCausalLM", "mistral", "llama", 131072, 8, 0, 4096, BIAS_NEVER, 0, 0, 0},
    {"Qwen2ForCausalLM", "qwen2", "qwen2", 32768, 32, 0, 4096, BIAS_QKV, 0, 0, 1},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", 32768, 32, 128, 4096, BIAS_IF_SAID, 0, 1, 1},
};
enum { FAMILIES = sizeof families / sizeof *families };

static const struct family *find_family(const char *architecture, const char *type)
{
    for (int i = 0; i < FAMILIES; i++) {
        if ((!architecture || strcmp(architecture, families[i].architecture) == 0) &&
            (!type || strcmp(type, families[i].type) == 0)) {
            return &families[i];
        }
    }
    return NULL;
}

/* The first of an architecture; NULL: none. */
static const struct family *find_named(const char *name, size_t bytes)
{
    for (int i = 0; i < FAMILIES; i++) {
        if (strlen(families[i].name) == bytes && memcmp(families[i].name, name, bytes) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

static qn_status check_architecture(const json_t *config, const struct family **out, qn_error *error)
{
    const char *name = NULL;
    const json_t *list = json_object_get(config, "architectures");
    const char *type = NULL;
    QN_TRY(qn_json_get_string(config, "model_type", &type, error));
    if (list && !json_is_null(list)) {
        name = json_string_value(json_array_get(list, 0));
        QN_FAIL_IF(!name, error, QN_E_FILE, "architectures is not an array of names");
        QN_FAIL_IF(
            !find_family(name, NULL), error, QN_E_UNSUPPORTED,
            "the architecture %.60s is not supported, expected LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM "
            "or Qwen3ForCausalLM",
            name);
    }
    QN_FAIL_IF(!type && (!list || json_is_null(list)), error, QN_E_FILE,
               "neither model_type nor architectures is given");
    QN_FAIL_IF(type && !find_family(NULL, type), error, QN_E_UNSUPPORTED,
               "the model type %.60s is not supported, expected llama, mistral, qwen2 or qwen3", type);
    *out = find_family(name, type);
    QN_FAIL_IF(!*out, error, QN_E_FILE, "the model type %.60s does not go with the architecture %.60s", type, name);
    return QN_OK;
}

/* Switches that change the computation. */
static qn_status get_variants(const json_t *config, const struct family *family, qn_hparams *h, qn_error *error)
{
    const char *act = "silu";
    int attention_bias = 0, mlp_bias = 0;
    double partial = 1.0;
    QN_TRY(qn_json_get_string(config, "hidden_act", &act, error));
    QN_FAIL_IF(strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0, error, QN_E_UNSUPPORTED,
               "hidden_act %.40s is not supported, expected silu", act);
    QN_TRY(qn_json_get_bool(config, "attention_bias", &attention_bias, error));
    QN_TRY(qn_json_get_bool(config, "mlp_bias", &mlp_bias, error));
    QN_FAIL_IF((attention_bias && family->attention == BIAS_NEVER) || (mlp_bias && !family->mlp_bias), error,
               QN_E_UNSUPPORTED, "%s is not supported for the model type %s",
               mlp_bias && !family->mlp_bias ? "mlp_bias" : "attention_bias", family->type);
    h->o_bias = attention_bias && family->attention == BIAS_IF_SAID;
    h->qkv_bias = h->o_bias || family->attention == BIAS_QKV;
    h->mlp_bias = mlp_bias;
    h->head_norms = family->head_norms;
    QN_TRY(qn_json_get_number(config, "partial_rotary_factor", 0.0, 1.0, &partial, error));
    QN_FAIL_IF(partial != 1.0, error, QN_E_UNSUPPORTED, "partial_rotary_factor %g is not supported", partial);
    return QN_OK;
}

/* Whether some layer attends within a window. */
static qn_status has_window(const json_t *config, const struct family *family, int64_t layers, int *out,
                            qn_error *error)
{
    int used = !family->asks_window;
    int64_t full = 28; /* layers before the first with a window */
    *out = 0;
    if (!family->window || json_is_null(json_object_get(config, "sliding_window"))) {
        return QN_OK;
    }
    QN_TRY(qn_json_get_bool(config, "use_sliding_window", &used, error));
    if (!family->asks_window || !used) {
        *out = !family->asks_window;
        return QN_OK;
    }
    QN_TRY(qn_json_get_int(config, "max_window_layers", 0, MAX_LAYERS, &full, error));
    const json_t *types = json_object_get(config, "layer_types"), *type;
    size_t i;
    json_array_foreach(types, i, type)
    {
        *out |= !json_is_string(type) || strcmp(json_string_value(type), "full_attention") != 0;
    }
    *out |= !json_is_array(types) && full < layers;
    return QN_OK;
}

/* Attention looks at all tokens: where a window would leave some out, the context ends. */
static qn_status get_context(const json_t *config, const struct family *family, int64_t layers, int32_t *out,
                             qn_error *error)
{
    int32_t window = 0;
    int windowed;
    QN_TRY(
        get_size(config, "max_position_embeddings", MAX_CONTEXT, family->context ? family->context : 2048, out, error));
    QN_TRY(has_window(config, family, layers, &windowed, error));
    if (!windowed) {
        return QN_OK;
    }
    QN_TRY(get_size(config, "sliding_window", MAX_CONTEXT, family->window, &window, error));
    *out = window < *out ? window : *out;
    return QN_OK;
}

qn_status qn_hparams_from_config(const json_t *config, qn_hparams *out, qn_error *error)
{
    qn_hparams h = {.layers = 0};
    QN_FAIL_IF(!json_is_object(config), error, QN_E_FILE, "config.json is not an object");
    const struct family *family = NULL;
    QN_TRY(check_architecture(config, &family, error));
    snprintf(h.architecture, sizeof h.architecture, "%s", family->name);
    QN_TRY(get_variants(config, family, &h, error));
    QN_TRY(get_size(config, "hidden_size", MAX_SIZE, 0, &h.hidden, error));
    QN_TRY(get_size(config, "num_hidden_layers", MAX_LAYERS, 0, &h.layers, error));
    QN_TRY(get_size(config, "num_attention_heads", MAX_SIZE, 0, &h.heads, error));
    const int64_t as_heads = !family->kv_heads || json_is_null(json_object_get(config, "num_key_value_heads"));
    QN_TRY(
        get_size(config, "num_key_value_heads", MAX_SIZE, as_heads ? h.heads : family->kv_heads, &h.kv_heads, error));
    QN_TRY(get_size(config, "intermediate_size", MAX_SIZE, 0, &h.intermediate, error));
    QN_TRY(get_size(config, "vocab_size", MAX_VOCABULARY, 0, &h.vocab_size, error));
    QN_TRY(get_context(config, family, h.layers, &h.context_length, error));
    const int64_t divided = h.hidden % h.heads == 0 ? h.hidden / h.heads : 0;
    QN_TRY(get_size(config, "head_dim", MAX_SIZE, family->head_dim ? family->head_dim : divided, &h.head_dim, error));
    double eps = 1e-6;
    int tied = 0;
    QN_TRY(qn_json_get_number(config, "rms_norm_eps", 0.0, 1.0, &eps, error));
    QN_TRY(qn_json_get_bool(config, "tie_word_embeddings", &tied, error));
    h.rms_eps = (float)eps;
    h.tied_embeddings = tied;
    QN_TRY(get_id(config, "bos_token_id", &h.bos_id, error));
    QN_TRY(get_id(config, "eos_token_id", &h.eos_id, error));
    QN_TRY(get_id(config, "pad_token_id", &h.pad_id, error));
    const char *name = "";
    QN_TRY(qn_json_get_string(config, "_name_or_path", &name, error));
    const char *slash = strrchr(name, '/');
    snprintf(h.name, sizeof h.name, "%s", slash ? slash + 1 : name);
    QN_TRY(qn_hparams_check(&h, error));
    QN_TRY(qn_rope_from_config(config, &h, error));
    *out = h;
    return QN_OK;
}

static json_t *id_or_null(int32_t id)
{
    return id >= 0 ? json_integer(id) : json_null();
}

json_t *qn_hparams_to_config(const qn_hparams *h)
{
    const struct family *family = find_named(h->architecture, strlen(h->architecture));
    json_t *config = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:b, s:s, s:b, s:b, s:o, s:o, s:o, "
        "s:s, s:b}",
        "architectures", family->architecture, "model_type", family->type, "hidden_size", (int)h->hidden,
        "num_hidden_layers", (int)h->layers, "num_attention_heads", (int)h->heads, "num_key_value_heads",
        (int)h->kv_heads, "head_dim", (int)h->head_dim, "intermediate_size", (int)h->intermediate, "vocab_size",
        (int)h->vocab_size, "max_position_embeddings", (int)h->context_length, "rope_theta",
        qn_json_short_number(h->rope_theta), "rms_norm_eps", qn_json_short_number(h->rms_eps), "tie_word_embeddings",
        (int)h->tied_embeddings, "hidden_act", "silu", "attention_bias", (int)h->o_bias, "mlp_bias", (int)h->mlp_bias,
        "bos_token_id", id_or_null(h->bos_id), "eos_token_id", id_or_null(h->eos_id), "pad_token_id",
        id_or_null(h->pad_id), "torch_dtype", "bfloat16", "use_cache", 1);
    if (config && ((family->asks_window && json_object_set_new(config, "use_sliding_window", json_false()) != 0) ||
                   ((h->rope_scaled || h->rope_magnitude != 1.0f) &&
                    json_object_set_new(config, "rope_scaling", qn_rope_to_config(h)) != 0))) {
        json_decref(config);
        return NULL;
    }
    return config;
}

/* ---- GGUF ---- */

/* A key of the architecture's own metadata: "llama.block_count". */
typedef struct gguf_key {
    char text[80];
} gguf_key;

static gguf_key key_of(const qn_hparams *h, const char *name)
{
    gguf_key key;
    snprintf(key.text, sizeof key.text, "%s.%s", h->architecture, name);
    return key;
}

static qn_status get_gguf_size(const qn_gguf *file, const qn_hparams *h, const char *name, int64_t high,
                               int64_t fallback, int32_t *out, qn_error *error)
{
    const gguf_key key = key_of(h, name);
    int64_t n = fallback;
    QN_TRY(qn_gguf_get_int(file, key.text, 1, high, &n, error));
    QN_FAIL_IF(n < 1, error, QN_E_FILE, "metadata %s is missing", key.text);
    *out = (int32_t)n;
    return QN_OK;
}

/* The architecture, and what it has that others have not. */
static qn_status get_gguf_architecture(const qn_gguf *file, qn_hparams *h, qn_error *error)
{
    const char *text;
    size_t bytes;
    QN_TRY(qn_gguf_get_string(file, "general.architecture", &text, &bytes, error));
    QN_FAIL_IF(!text, error, QN_E_FILE, "metadata general.architecture is missing");
    const struct family *family = find_named(text, bytes);
    QN_FAIL_IF(!family, error, QN_E_UNSUPPORTED,
               "the architecture %.*s is not supported, expected llama, qwen2 or qwen3", (int)(bytes > 60 ? 60 : bytes),
               text);
    snprintf(h->architecture, sizeof h->architecture, "%s", family->name);
    /* no metadata says which biases there are */
    static const char q[] = "blk.0.attn_q.bias", up[] = "blk.0.ffn_up.bias";
    h->o_bias = family->attention == BIAS_IF_SAID && qn_map_get(&file->names, q, strlen(q)) >= 0;
    h->qkv_bias = h->o_bias || family->attention == BIAS_QKV;
    h->mlp_bias = family->mlp_bias && qn_map_get(&file->names, up, strlen(up)) >= 0;
    h->head_norms = family->head_norms;
    return QN_OK;
}

static qn_status check_gguf_variants(const qn_gguf *file, const qn_hparams *h, qn_error *error)
{
    int64_t experts = 0, splits = 1;
    QN_TRY(qn_gguf_get_int(file, key_of(h, "expert_count").text, 0, INT32_MAX, &experts, error));
    QN_FAIL_IF(experts > 0, error, QN_E_UNSUPPORTED, "a model with %" PRId64 " experts is not supported", experts);
    QN_TRY(qn_gguf_get_int(file, "split.count", 0, INT32_MAX, &splits, error));
    QN_FAIL_IF(splits > 1, error, QN_E_UNSUPPORTED, "a GGUF model in %" PRId64 " files is not supported", splits);
    return QN_OK;
}

static qn_status get_gguf_id(const qn_gguf *file, const char *key, int32_t *out, qn_error *error)
{
    int64_t id = -1;
    QN_TRY(qn_gguf_get_int(file, key, -1, UINT32_MAX, &id, error));
    *out = id >= 0 && id < MAX_VOCABULARY ? (int32_t)id : -1; /* some writers put 2^32-1 for none */
    return QN_OK;
}

qn_status qn_hparams_from_gguf(const qn_gguf *file, qn_hparams *out, qn_error *error)
{
    qn_hparams h = {.layers = 0};
    QN_TRY(get_gguf_architecture(file, &h, error));
    QN_TRY(check_gguf_variants(file, &h, error));
    QN_TRY(get_gguf_size(file, &h, "embedding_length", MAX_SIZE, 0, &h.hidden, error));
    QN_TRY(get_gguf_size(file, &h, "block_count", MAX_LAYERS, 0, &h.layers, error));
    QN_TRY(get_gguf_size(file, &h, "attention.head_count", MAX_SIZE, 0, &h.heads, error));
    QN_TRY(get_gguf_size(file, &h, "attention.head_count_kv", MAX_SIZE, h.heads, &h.kv_heads, error));
    QN_TRY(get_gguf_size(file, &h, "feed_forward_length", MAX_SIZE, 0, &h.intermediate, error));
    QN_TRY(get_gguf_size(file, &h, "context_length", MAX_CONTEXT, 2048, &h.context_length, error));
    const int64_t default_dim = h.hidden % h.heads == 0 ? h.hidden / h.heads : 0;
    QN_TRY(get_gguf_size(file, &h, "attention.key_length", MAX_SIZE, default_dim, &h.head_dim, error));
    int32_t value_dim = h.head_dim, rope_dim = h.head_dim;
    QN_TRY(get_gguf_size(file, &h, "attention.value_length", MAX_SIZE, h.head_dim, &value_dim, error));
    QN_TRY(get_gguf_size(file, &h, "rope.dimension_count", MAX_SIZE, h.head_dim, &rope_dim, error));
    QN_FAIL_IF(value_dim != h.head_dim || rope_dim != h.head_dim, error, QN_E_UNSUPPORTED,
               "heads with %d key, %d value and %d rotated elements are not supported, expected equal sizes",
               (int)h.head_dim, (int)value_dim, (int)rope_dim);
    const qn_gguf_value *tokens = qn_gguf_find(file, "tokenizer.ggml.tokens");
    const int64_t token_count =
        tokens && tokens->is_array && tokens->count <= MAX_VOCABULARY ? (int64_t)tokens->count : 0;
    const int32_t embedding = qn_map_get(&file->names, "token_embd.weight", strlen("token_embd.weight"));
    const int64_t rows = embedding >= 0 ? file->tensors[embedding].view.shape.dims[0] : 0;
    QN_TRY(get_gguf_size(file, &h, "vocab_size", MAX_VOCABULARY,
                         token_count ? token_count : (rows <= MAX_VOCABULARY ? rows : 0), &h.vocab_size, error));
    double eps = 0.0;
    const gguf_key epsilon = key_of(&h, "attention.layer_norm_rms_epsilon");
    QN_FAIL_IF(!qn_gguf_find(file, epsilon.text), error, QN_E_FILE, "metadata %s is missing", epsilon.text);
    QN_TRY(qn_gguf_get_number(file, epsilon.text, 0.0, 1.0, &eps, error));
    h.rms_eps = (float)eps;
    h.tied_embeddings = qn_map_get(&file->names, "output.weight", strlen("output.weight")) < 0;
    QN_TRY(get_gguf_id(file, "tokenizer.ggml.bos_token_id", &h.bos_id, error));
    QN_TRY(get_gguf_id(file, "tokenizer.ggml.eos_token_id", &h.eos_id, error));
    QN_TRY(get_gguf_id(file, "tokenizer.ggml.padding_token_id", &h.pad_id, error));
    const char *name;
    size_t bytes;
    QN_TRY(qn_gguf_get_string(file, "general.name", &name, &bytes, error));
    if (name && bytes < sizeof h.name && qn_is_name_text(name, bytes)) {
        memcpy(h.name, name, bytes);
    }
    QN_TRY(qn_hparams_check(&h, error));
    QN_TRY(qn_rope_from_gguf(file, &h, error));
    *out = h;
    return QN_OK;
}
