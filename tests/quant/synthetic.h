/* A small checkpoint made of random numbers, written as a Hugging Face
 * folder: 2 layers, hidden 192, intermediate 320, tied embeddings; llama with 6 heads of 32 over 1, or what is asked
 * for. SYN_TEXT in it is a sentence to calibrate on, for tests that are not about calibration: the built-in text takes
 * seconds where kernels are sanitized. */
#ifndef QN_TESTS_SYNTHETIC_H
#define QN_TESTS_SYNTHETIC_H

#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <quern/tensors.h>

#include "base/rng.h"

enum {
    SYN_LAYERS = 2,
    SYN_HIDDEN = 192,
    SYN_INNER = 320,
    SYN_KV = 32,
    SYN_VOCAB = 300,
    SYN_TENSORS = 2 + 9 * SYN_LAYERS,
    SYN_MOST_TENSORS = 2 + 18 * SYN_LAYERS
};

#define SYN_TEXT "calibration.txt"

typedef struct syn_tensor {
    char name[96];
    int64_t n, k; /* k = 0: one-dimensional */
    float *w;
} syn_tensor;

static inline void syn_add(syn_tensor *t, int *count, const char *name, int64_t n, int64_t k, qn_rng *rng)
{
    syn_tensor *s = &t[(*count)++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->n = n;
    s->k = k;
    s->w = malloc((size_t)(n * (k ? k : 1)) * sizeof(float));
    for (int64_t i = 0; i < n * (k ? k : 1); i++) {
        /* a bell-like shape; one-dimensional ones around 1 */
        const double u = qn_rng_uniform(rng) + qn_rng_uniform(rng) + qn_rng_uniform(rng) - 1.5;
        s->w[i] = (float)(k ? u * 0.1 : strstr(name, ".bias") ? u : 1 + 0.1 * u);
    }
}

typedef struct syn_heads {
    int heads, kv_heads, size;
    const char *rope; /* rope_scaling; NULL: none */
} syn_heads;

static const syn_heads syn_usual = {SYN_HIDDEN / SYN_KV, 1, SYN_KV, NULL};

/* Llama or an architecture like it. */
typedef struct syn_model {
    const char *architecture, *type;
    syn_heads heads;
    int qkv_bias, o_bias, mlp_bias, head_norms;
    int layers, hidden, inner; /* 0: the usual ones */
} syn_model;

static inline syn_model syn_sized(const syn_model *m)
{
    syn_model sized = *m;
    sized.layers = m->layers ? m->layers : SYN_LAYERS;
    sized.hidden = m->hidden ? m->hidden : SYN_HIDDEN;
    sized.inner = m->inner ? m->inner : SYN_INNER;
    return sized;
}

static const syn_model syn_models[] = {
    {"LlamaForCausalLM", "llama", {SYN_HIDDEN / SYN_KV, 1, SYN_KV, NULL}, 0, 0, 0, 0, 0, 0, 0},
    {"Qwen2ForCausalLM", "qwen2", {4, 2, 48, NULL}, 1, 0, 0, 0, 0, 0, 0},
    {"Qwen3ForCausalLM", "qwen3", {4, 2, 64, NULL}, 0, 0, 0, 1, 0, 0, 0},
    {"Qwen3ForCausalLM", "qwen3", {3, 1, 128, NULL}, 1, 1, 0, 1, 0, 0, 0},
    {"LlamaForCausalLM", "llama", {6, 2, SYN_KV, NULL}, 1, 1, 1, 0, 0, 0, 0},
};
enum { SYN_MODELS = sizeof syn_models / sizeof *syn_models };

/* Returns how many tensors there are. */
static inline int syn_make_model(syn_tensor *t, uint64_t seed, const syn_model *m)
{
    const syn_heads h = m->heads;
    const syn_model sized = syn_sized(m);
    const int64_t hidden = sized.hidden, inner = sized.inner;
    const int64_t q = (int64_t)h.heads * h.size, kv = (int64_t)h.kv_heads * h.size;
    qn_rng rng = {.state = seed};
    int count = 0;
    char name[96];
    syn_add(t, &count, "model.embed_tokens.weight", SYN_VOCAB, hidden, &rng);
    syn_add(t, &count, "model.norm.weight", hidden, 0, &rng);
    const struct {
        const char *name;
        int64_t n, k;
        int there;
    } parts[] = {{"self_attn.q_proj.weight", q, hidden, 1},
                 {"self_attn.k_proj.weight", kv, hidden, 1},
                 {"self_attn.v_proj.weight", kv, hidden, 1},
                 {"self_attn.o_proj.weight", hidden, q, 1},
                 {"mlp.gate_proj.weight", inner, hidden, 1},
                 {"mlp.up_proj.weight", inner, hidden, 1},
                 {"mlp.down_proj.weight", hidden, inner, 1},
                 {"input_layernorm.weight", hidden, 0, 1},
                 {"post_attention_layernorm.weight", hidden, 0, 1},
                 {"self_attn.q_proj.bias", q, 0, m->qkv_bias},
                 {"self_attn.k_proj.bias", kv, 0, m->qkv_bias},
                 {"self_attn.v_proj.bias", kv, 0, m->qkv_bias},
                 {"self_attn.o_proj.bias", hidden, 0, m->o_bias},
                 {"mlp.gate_proj.bias", inner, 0, m->mlp_bias},
                 {"mlp.up_proj.bias", inner, 0, m->mlp_bias},
                 {"mlp.down_proj.bias", hidden, 0, m->mlp_bias},
                 {"self_attn.q_norm.weight", h.size, 0, m->head_norms},
                 {"self_attn.k_norm.weight", h.size, 0, m->head_norms}};
    for (int layer = 0; layer < sized.layers; layer++) {
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", layer, parts[p].name);
            if (parts[p].there) {
                syn_add(t, &count, name, parts[p].n, parts[p].k, &rng);
            }
        }
    }
    return count;
}

static inline void syn_make_heads(syn_tensor *t, uint64_t seed, syn_heads h)
{
    const syn_model m = {"LlamaForCausalLM", "llama", h, 0, 0, 0, 0, 0, 0, 0};
    syn_make_model(t, seed, &m);
}

static inline void syn_make(syn_tensor *t, uint64_t seed)
{
    syn_make_heads(t, seed, syn_usual);
}

static inline void syn_free_some(syn_tensor *t, int count)
{
    for (int i = 0; i < count; i++) {
        free(t[i].w);
    }
}

static inline void syn_free(syn_tensor *t)
{
    syn_free_some(t, SYN_TENSORS);
}

static inline int syn_put(const char *folder, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f) {
        return 1;
    }
    const int failed = fputs(text, f) < 0;
    return fclose(f) != 0 || failed;
}

/* Byte-level BPE of 256 bytes, two merges and one special token. */
static inline int syn_put_tokenizer(const char *folder)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return 1;
    }
    fprintf(
        f,
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":258,\"content\":"
        "\"<|end|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\","
        "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    int other = 256;
    for (int b = 0; b < 256; b++) {
        const int plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        fprintf(f, "\"\\u%04x\":%d,", plain ? b : other++, b);
    }
    fprintf(f, "\"he\":256,\"ll\":257,\"<|end|>\":258},\"merges\":[\"h e\",\"l l\"]}}\n");
    fclose(f);
    const int failed = syn_put(folder, "tokenizer.json", text) ||
                       syn_put(folder, "tokenizer_config.json",
                               "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"eos_token\":\"<|end|>\"}\n") ||
                       syn_put(folder, "special_tokens_map.json", "{\"eos_token\":\"<|end|>\"}\n") ||
                       syn_put(folder, "generation_config.json", "{\"eos_token_id\":258}\n");
    free(text);
    return failed;
}

/* Write the folder (made if absent); 0 on success. */
static inline int syn_write_model(qn_ctx *ctx, const char *folder, const syn_tensor *t, int count, const syn_model *m)
{
    mkdir(folder, 0777);
    qn_named_view views[SYN_MOST_TENSORS];
    for (int i = 0; i < count; i++) {
        const qn_shape shape =
            t[i].k ? qn_shape_make(QN_F32, 2, t[i].n, t[i].k, 1, 1) : qn_shape_make(QN_F32, 1, t[i].n, 1, 1, 1);
        views[i] = (qn_named_view){t[i].name, qn_view_make(t[i].w, &shape)};
    }
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    qn_error error;
    if (qn_tensors_write(ctx, path, views, count, NULL, 0, &error) != QN_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    char config[900];
    const syn_model sized = syn_sized(m);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"hidden_act\":\"silu\","
             "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,"
             "\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":300,\"max_position_embeddings\":1024,"
             "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"rope_scaling\":%s,\"tie_word_embeddings\":true,"
             "\"torch_dtype\":\"float32\",\"attention_bias\":%s,\"mlp_bias\":%s,\"eos_token_id\":258}\n",
             m->architecture, m->type, sized.hidden, sized.inner, sized.layers, m->heads.heads, m->heads.kv_heads,
             m->heads.size, m->heads.rope ? m->heads.rope : "null", m->o_bias ? "true" : "false",
             m->mlp_bias ? "true" : "false");
    return syn_put_tokenizer(folder) || syn_put(folder, "config.json", config) ||
           syn_put(
               folder, SYN_TEXT,
               "A quern is a hand mill: its upper stone turns on the lower one and grinds the grain between them.\n");
}

static inline int syn_write_heads(qn_ctx *ctx, const char *folder, const syn_tensor *t, syn_heads h)
{
    const syn_model m = {"LlamaForCausalLM", "llama", h, 0, 0, 0, 0, 0, 0, 0};
    return syn_write_model(ctx, folder, t, SYN_TENSORS, &m);
}

static inline int syn_write(qn_ctx *ctx, const char *folder, const syn_tensor *t)
{
    return syn_write_heads(ctx, folder, t, syn_usual);
}

static inline int syn_remove_one(const char *path, const struct stat *s, int kind, struct FTW *place)
{
    (void)s, (void)kind, (void)place;
    return remove(path);
}

/* Remove a folder and all in it. */
static inline void syn_remove(const char *folder)
{
    nftw(folder, syn_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Entries of a folder, "." and ".." aside; -1 when it is none. */
static inline int syn_entries(const char *folder)
{
    DIR *d = opendir(folder);
    if (!d) {
        return -1;
    }
    int count = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return count;
}

#endif
