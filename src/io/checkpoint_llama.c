/* The llama architecture's list of weights: names in both worlds and shapes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "io/checkpoint_internal.h"
#include "io/checkpoint_llama.h"

const qn_llama_name qn_llama_layer_names[QN_LLAMA_LAYER_NAMES] = {
    {"attn_norm", "input_layernorm", 0}, {"ffn_norm", "post_attention_layernorm", 0},
    {"attn_q", "self_attn.q_proj", 1},   {"attn_k", "self_attn.k_proj", 1},
    {"attn_v", "self_attn.v_proj", 0},   {"attn_output", "self_attn.o_proj", 0},
    {"ffn_gate", "mlp.gate_proj", 0},    {"ffn_up", "mlp.up_proj", 0},
    {"ffn_down", "mlp.down_proj", 0},
};

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
                                                     {h->hidden, h->intermediate}};
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
    for (int i = 0; i < QN_LLAMA_LAYER_NAMES; i++) {
        const size_t length = strlen(qn_llama_layer_names[i].hf);
        if (strncmp(name + used, qn_llama_layer_names[i].hf, length) == 0 &&
            strcmp(name + used + length, ".weight") == 0) {
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
    char name[128];
    QN_TRY(drop_tied_head(c, error));
    QN_TRY(check_weight(c, "model.embed_tokens.weight", h->vocab_size, h->hidden, error));
    QN_TRY(check_weight(c, "model.norm.weight", h->hidden, 0, error));
    if (!h->tied_embeddings) {
        QN_TRY(check_weight(c, "lm_head.weight", h->vocab_size, h->hidden, error));
    }
    for (int32_t layer = 0; layer < h->layers; layer++) {
        for (int i = 0; i < QN_LLAMA_LAYER_NAMES; i++) {
            int64_t n, k;
            layer_shape(h, i, &n, &k);
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", (int)layer, qn_llama_layer_names[i].hf);
            QN_TRY(check_weight(c, name, n, k, error));
        }
    }
    for (int32_t i = 0; i < c->weight_count; i++) {
        QN_FAIL_IF(!is_expected(c, c->weights[i].name), error, QN_E_UNSUPPORTED,
                   "the weight %s is not part of a llama model of %d layers", c->weights[i].name, (int)h->layers);
    }
    return QN_OK;
}
