/* The list of weights of llama and the architectures like it: names in both worlds and shapes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "io/checkpoint_internal.h"
#include "io/checkpoint_llama.h"

const qn_llama_name qn_llama_layer_names[QN_LLAMA_LAYER_NAMES] = {
    {"attn_norm", "input_layernorm", 0},    {"ffn_norm", "post_attention_layernorm", 0},
    {"attn_q", "self_attn.q_proj", 1},      {"attn_k", "self_attn.k_proj", 1},
    {"attn_v", "self_attn.v_proj", 0},      {"attn_output", "self_attn.o_proj", 0},
    {"ffn_gate", "mlp.gate_proj", 0},       {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},       {"attn_q_norm", "self_attn.q_norm", 0},
    {"attn_k_norm", "self_attn.k_norm", 0},
};

enum { QKV = 2, OUTPUT = 5, MLP = 6, HEAD_NORMS = 9 }; /* the first of each */

/* How many of the weights a layer has. */
static int weight_names(const qn_hparams *h)
{
    return h->head_norms ? QN_LLAMA_LAYER_NAMES : HEAD_NORMS;
}

/* Whether a layer has a bias of weight i. */
static int has_bias(const qn_hparams *h, int i)
{
    return i < QKV ? 0 : i < OUTPUT ? h->qkv_bias : i < MLP ? h->o_bias : i < HEAD_NORMS ? h->mlp_bias : 0;
}

/* n and k of layer weight i; k = 0: a vector. */
static void layer_shape(const qn_hparams *h, int i, int64_t *n, int64_t *k)
{
    const int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    const int64_t shapes[QN_LLAMA_LAYER_NAMES][2] = {{h->hidden, 0},
                                                     {h->hidden, 0},
                                                     {q, h->hidden},
                                                     {kv, h->hidden},
                                                     {kv, h->hidden},
                                                     {h->hidden, q},
                                                     {h->intermediate, h->hidden},
                                                     {h->intermediate, h->hidden},
                                                     {h->hidden, h->intermediate},
                                                     {h->head_dim, 0},
                                                     {h->head_dim, 0}};
    *n = shapes[i][0];
    *k = shapes[i][1];
}

static qn_status check_weight(const qn_checkpoint *c, const char *name, int64_t n, int64_t k, qn_error *error)
{
    const qn_weight *w = qn_checkpoint_find(c, name);
    QN_FAIL_IF(!w, error, QN_E_FILE, "the weight %s is missing", name);
    QN_FAIL_IF(w->ndim != (k ? 2 : 1), error, QN_E_FILE, "the weight %s has %d dimensions, expected %d", name,
               (int)w->ndim, k ? 2 : 1);
    QN_FAIL_IF(w->n != n || w->k != (k ? k : 1), error, QN_E_FILE,
               "the weight %s is %" PRId64 " x %" PRId64 ", the hyperparameters say %" PRId64 " x %" PRId64, name, w->n,
               w->k, n, k ? k : 1);
    return QN_OK;
}

/* The rows of several layers in one vector-quantised weight: it stands for weights [first, last] of a layer. */
static const struct {
    const char *name;
    int first, last;
} fused[] = {{"self_attn.qkv_proj", QKV, QKV + 2}, {"mlp.upgate_proj", MLP, MLP + 1}};

#define FUSED (sizeof fused / sizeof *fused)

/* The fused weight of a layer; NULL: it has none. */
static const qn_weight *find_fused(const qn_checkpoint *c, int32_t layer, size_t i)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, fused[i].name);
    const qn_weight *w = qn_checkpoint_find(c, name);
    return w && w->part_count ? w : NULL;
}

/* A weight of a layer and, where there is one, its bias. */
static qn_status check_part(const qn_checkpoint *c, int32_t layer, const char *part, int64_t n, int64_t k, int biased,
                            qn_error *error)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, part);
    QN_TRY(check_weight(c, name, n, k, error));
    if (biased) {
        snprintf(name, sizeof name, "model.layers.%d.%s.bias", (int)layer, part);
        QN_TRY(check_weight(c, name, n, 0, error));
    }
    return QN_OK;
}

static qn_status check_layer(const qn_checkpoint *c, int32_t layer, qn_error *error)
{
    char name[128];
    int present[QN_LLAMA_LAYER_NAMES] = {0};
    int64_t n, k = 0;
    for (size_t f = 0; f < FUSED; f++) {
        const qn_weight *w = find_fused(c, layer, f);
        int64_t rows = 0;
        for (int i = fused[f].first; w && i <= fused[f].last; i++) {
            layer_shape(&c->hparams, i, &n, &k);
            rows += n;
            present[i] = 1;
        }
        if (w) {
            QN_TRY(check_part(c, layer, fused[f].name, rows, k, has_bias(&c->hparams, fused[f].first), error));
        }
    }
    for (int i = 0; i < weight_names(&c->hparams); i++) {
        const char *part = qn_llama_layer_names[i].hf;
        layer_shape(&c->hparams, i, &n, &k);
        if (!present[i]) {
            QN_TRY(check_part(c, layer, part, n, k, has_bias(&c->hparams, i), error));
        } else {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, part);
            QN_FAIL_IF(qn_checkpoint_find(c, name), error, QN_E_FILE,
                       "the weight %s is there although its layer has a fused one", name);
        }
    }
    return QN_OK;
}

/* The bias of a vector-quantised weight, which may have one whatever the architecture says. */
static int is_vector_bias(const qn_checkpoint *c, const qn_weight *w)
{
    const size_t length = strlen(w->name);
    char name[160];
    if (length < 5 || length >= sizeof name - 2 || strcmp(w->name + length - 5, ".bias") != 0) {
        return 0;
    }
    snprintf(name, sizeof name, "%.*sweight", (int)length - 4, w->name);
    const qn_weight *of = qn_checkpoint_find(c, name);
    return of && of->part_count && w->ndim == 1 && w->n == of->n;
}

/* Is it one of the names the architecture has? */
static int is_expected(const qn_checkpoint *c, const char *name)
{
    const qn_hparams *h = &c->hparams;
    if (strcmp(name, "model.embed_tokens.weight") == 0 || strcmp(name, "model.norm.weight") == 0 ||
        strcmp(name, "lm_head.weight") == 0) {
        return 1;
    }
    int layer = -1, used = 0;
    if (sscanf(name, "model.layers.%6d.%n", &layer, &used) != 1 || !used || layer < 0 || layer >= h->layers) {
        return 0;
    }
    for (int i = 0; i < weight_names(h); i++) {
        const size_t length = strlen(qn_llama_layer_names[i].hf);
        const char *const suffix = name + used + length;
        if (strncmp(name + used, qn_llama_layer_names[i].hf, length) == 0 &&
            (strcmp(suffix, ".weight") == 0 || (has_bias(h, i) && strcmp(suffix, ".bias") == 0))) {
            return 1;
        }
    }
    for (size_t i = 0; i < FUSED; i++) {
        const qn_weight *w = find_fused(c, layer, i);
        if (w && strcmp(w->name, name) == 0) {
            return 1;
        }
    }
    return 0;
}

/* A declared tie wins over a stored output matrix, as in the public loaders. */
static qn_status drop_tied_head(qn_checkpoint *c, qn_error *error)
{
    const int32_t i = qn_map_get(&c->weight_names, "lm_head.weight", strlen("lm_head.weight"));
    if (i < 0) {
        c->hparams.tied_embeddings = 1;
        return QN_OK;
    }
    if (!c->hparams.tied_embeddings) {
        return QN_OK;
    }
    qn_map names = qn_map_make(c->ctx);
    memmove(&c->weights[i], &c->weights[i + 1], (size_t)(c->weight_count - i - 1) * sizeof *c->weights);
    c->weight_count--;
    int failed = 0;
    for (int32_t j = 0; j < c->weight_count; j++) {
        failed |= qn_map_add(&names, c->weights[j].name, strlen(c->weights[j].name), j) != 0;
    }
    qn_map_free(&c->weight_names);
    c->weight_names = names;
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for weight names");
    return QN_OK;
}

qn_status qn_checkpoint_check_llama(qn_checkpoint *c, qn_error *error)
{
    const qn_hparams *h = &c->hparams;
    QN_TRY(drop_tied_head(c, error));
    QN_TRY(check_weight(c, "model.embed_tokens.weight", h->vocab_size, h->hidden, error));
    QN_TRY(check_weight(c, "model.norm.weight", h->hidden, 0, error));
    if (!h->tied_embeddings) {
        QN_TRY(check_weight(c, "lm_head.weight", h->vocab_size, h->hidden, error));
    }
    for (int32_t layer = 0; layer < h->layers; layer++) {
        QN_TRY(check_layer(c, layer, error));
    }
    for (int32_t i = 0; i < c->weight_count; i++) {
        QN_FAIL_IF(!is_expected(c, c->weights[i].name) && !is_vector_bias(c, &c->weights[i]), error, QN_E_UNSUPPORTED,
                   "the weight %s is not part of a %s model of %d layers", c->weights[i].name, h->architecture,
                   (int)h->layers);
    }
    return QN_OK;
}
