/* Llama and the architectures like it as a plain list of steps: RMSNorm, RoPE
 * (half style, as Hugging Face stores it), grouped-query attention, SwiGLU,
 * optional biases, a norm of each head of queries and keys or none, tied or
 * separate output embeddings. */
#include <stdio.h>

#include "base/error.h"
#include "model/build.h"

typedef struct llama_registers {
    int32_t stream, normed, rotated, attended, projected, gate_up, activated;
    int32_t keys, sums;              /* of KV schemes other than floats */
    qn_columns query, key, value;    /* before they are turned; values that are apart */
    qn_columns made_query, made_key; /* as products make them: the same, or before their heads are normalised */
} llama_registers;

/* Side by side, for products of the same rows; heads that are normalised have rows of their own. */
static qn_status make_query_key(qn_model *model, const qn_hparams *h, llama_registers *r, qn_error *error)
{
    const int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    const int apart = qn_build_values_apart(model);
    if (!h->head_norms) {
        int32_t all;
        QN_TRY(qn_build_register(model, "query_key", QN_F32, apart ? q + 2 * kv : q + kv, &all, error));
        r->query = r->made_query = (qn_columns){all, 0};
        r->key = r->made_key = (qn_columns){all, q};
        r->value = (qn_columns){all, q + kv};
        return QN_OK;
    }
    QN_TRY(qn_build_register(model, "made_query", QN_F32, q, &r->made_query.reg, error));
    QN_TRY(qn_build_register(model, "made_key", QN_F32, kv, &r->made_key.reg, error));
    QN_TRY(qn_build_register(model, "query", QN_F32, q, &r->query.reg, error));
    QN_TRY(qn_build_register(model, "key", QN_F32, kv, &r->key.reg, error));
    return apart ? qn_build_register(model, "value", QN_F32, kv, &r->value.reg, error) : QN_OK;
}

static qn_status make_registers(qn_model *model, const qn_hparams *h, llama_registers *r, qn_error *error)
{
    const int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    QN_TRY(qn_build_register(model, "stream", QN_F32, h->hidden, &r->stream, error));
    QN_TRY(qn_build_register(model, "normed", QN_F32, h->hidden, &r->normed, error));
    QN_TRY(make_query_key(model, h, r, error));
    r->keys = r->sums = -1;
    if (!qn_kv_exact(model->kv)) {
        QN_TRY(qn_build_register(model, "keys", QN_F32, kv, &r->keys, error));
    }
    if (model->kv->channels) {
        QN_TRY(qn_build_register(model, "sums", QN_F32, h->heads, &r->sums, error));
    }
    QN_TRY(qn_build_register(model, "rotated", QN_F32, q, &r->rotated, error));
    QN_TRY(qn_build_register(model, "attended", QN_F32, q, &r->attended, error));
    QN_TRY(qn_build_register(model, "projected", QN_F32, h->hidden, &r->projected, error));
    QN_TRY(qn_build_register(model, "gate_up", QN_F32, 2 * (int64_t)h->intermediate, &r->gate_up, error));
    QN_TRY(qn_build_register(model, "activated", QN_F32, h->intermediate, &r->activated, error));
    return QN_OK;
}

/* Room for the name of a weight of a layer. */
typedef struct names {
    char text[96];
} names;

static const char *name_of(names *n, int32_t layer, const char *part)
{
    snprintf(n->text, sizeof n->text, "model.layers.%d.%s.weight", layer, part);
    return n->text;
}

static qn_status check_shape(const qn_model *model, const char *name, int64_t n, int64_t k, qn_error *error)
{
    const qn_weight *w = qn_checkpoint_find(model->checkpoint, name);
    QN_FAIL_IF(!w, error, QN_E_FILE, "tensor %s is missing from the checkpoint", name);
    QN_FAIL_IF(w->ndim != 2 || w->n != n || w->k != k, error, QN_E_FILE,
               "tensor %s has shape [%lld,%lld], expected [%lld,%lld] from the model's configuration", name,
               (long long)w->n, (long long)w->k, (long long)n, (long long)k);
    return QN_OK;
}

/* 1 when the checkpoint has such a weight of the layer: one that holds the rows of several. */
static int has(const qn_model *model, int32_t layer, const char *part)
{
    names n;
    return qn_checkpoint_find(model->checkpoint, name_of(&n, layer, part)) != NULL;
}

static qn_status check_layer(const qn_model *model, const qn_hparams *h, int32_t l, qn_error *error)
{
    const int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    names n;
    if (has(model, l, "self_attn.qkv_proj")) {
        QN_TRY(check_shape(model, name_of(&n, l, "self_attn.qkv_proj"), q + 2 * kv, h->hidden, error));
    } else {
        QN_TRY(check_shape(model, name_of(&n, l, "self_attn.q_proj"), q, h->hidden, error));
        QN_TRY(check_shape(model, name_of(&n, l, "self_attn.k_proj"), kv, h->hidden, error));
        QN_TRY(check_shape(model, name_of(&n, l, "self_attn.v_proj"), kv, h->hidden, error));
    }
    QN_TRY(check_shape(model, name_of(&n, l, "self_attn.o_proj"), h->hidden, q, error));
    if (has(model, l, "mlp.upgate_proj")) {
        const int64_t both = 2 * (int64_t)h->intermediate;
        QN_TRY(check_shape(model, name_of(&n, l, "mlp.upgate_proj"), both, h->hidden, error));
    } else {
        QN_TRY(check_shape(model, name_of(&n, l, "mlp.gate_proj"), h->intermediate, h->hidden, error));
        QN_TRY(check_shape(model, name_of(&n, l, "mlp.up_proj"), h->intermediate, h->hidden, error));
    }
    QN_TRY(check_shape(model, name_of(&n, l, "mlp.down_proj"), h->hidden, h->intermediate, error));
    return QN_OK;
}

static qn_status build_product(qn_model *model, int32_t l, int32_t in, qn_columns out, const char *weight,
                               qn_error *error)
{
    return qn_build_linear(model, l, in, out.reg, out.column, 0, weight, error);
}

/* Queries, keys and values out of one product; what is not where it lies by itself is copied. */
static qn_status build_fused_qkv(qn_model *model, const qn_hparams *h, const llama_registers *r, int32_t l,
                                 qn_error *error)
{
    names n;
    int32_t whole;
    const int64_t q = (int64_t)h->heads * h->head_dim, kv = (int64_t)h->kv_heads * h->head_dim;
    QN_TRY(qn_build_register(model, "query_key", QN_F32, q + 2 * kv, &whole, error));
    QN_TRY(qn_build_linear(model, l, r->normed, whole, 0, 0, name_of(&n, l, "self_attn.qkv_proj"), error));
    if (h->head_norms) {
        QN_TRY(qn_build_copy(model, l, whole, 0, r->made_query.reg, 0, 0, q, error));
        QN_TRY(qn_build_copy(model, l, whole, q, r->made_key.reg, 0, 0, kv, error));
    }
    if (!qn_build_values_apart(model)) {
        return qn_build_copy(model, l, whole, q + kv, 0, 0, 1, kv, error);
    }
    return h->head_norms ? qn_build_copy(model, l, whole, q + kv, r->value.reg, 0, 0, kv, error) : QN_OK;
}

/* Queries and keys; values too, or where they are kept when that is as they are. */
static qn_status build_qkv(qn_model *model, const qn_hparams *h, const llama_registers *r, int32_t l, qn_error *error)
{
    names n;
    if (has(model, l, "self_attn.qkv_proj")) {
        return build_fused_qkv(model, h, r, l, error);
    }
    QN_TRY(build_product(model, l, r->normed, r->made_query, name_of(&n, l, "self_attn.q_proj"), error));
    QN_TRY(build_product(model, l, r->normed, r->made_key, name_of(&n, l, "self_attn.k_proj"), error));
    const char *const values = name_of(&n, l, "self_attn.v_proj");
    if (qn_build_values_apart(model)) {
        return build_product(model, l, r->normed, r->value, values, error);
    }
    if (!qn_build_writes_values(model, values)) { /* a copy can */
        QN_TRY(qn_build_linear(model, l, r->normed, r->attended, 0, 0, values, error));
        return qn_build_copy(model, l, r->attended, 0, 0, 0, 1, (int64_t)h->kv_heads * h->head_dim, error);
    }
    return qn_build_linear(model, l, r->normed, 0, 0, 1, values, error);
}

static qn_status build_gate_up(qn_model *model, const qn_hparams *h, const llama_registers *r, int32_t l,
                               qn_error *error)
{
    names n;
    const int64_t width = h->intermediate;
    if (has(model, l, "mlp.upgate_proj")) { /* up before gate */
        int32_t both;
        QN_TRY(qn_build_register(model, "up_gate", QN_F32, 2 * width, &both, error));
        QN_TRY(qn_build_linear(model, l, r->normed, both, 0, 0, name_of(&n, l, "mlp.upgate_proj"), error));
        QN_TRY(qn_build_copy(model, l, both, width, r->gate_up, 0, 0, width, error));
        return qn_build_copy(model, l, both, 0, r->gate_up, width, 0, width, error);
    }
    QN_TRY(qn_build_linear(model, l, r->normed, r->gate_up, 0, 0, name_of(&n, l, "mlp.gate_proj"), error));
    return qn_build_linear(model, l, r->normed, r->gate_up, width, 0, name_of(&n, l, "mlp.up_proj"), error);
}

/* Queries turned, keys turned and kept, values kept. */
static qn_status build_turned(qn_model *model, const qn_hparams *h, const llama_registers *r, int32_t l,
                              qn_error *error)
{
    names n;
    if (h->head_norms) {
        QN_TRY(qn_build_head_norm(model, l, r->made_query.reg, r->query.reg, h->heads,
                                  name_of(&n, l, "self_attn.q_norm"), error));
        QN_TRY(qn_build_head_norm(model, l, r->made_key.reg, r->key.reg, h->kv_heads,
                                  name_of(&n, l, "self_attn.k_norm"), error));
    }
    QN_TRY(qn_build_rope(model, l, r->query.reg, r->query.column, r->rotated, 0, h->heads, error));
    return !qn_kv_exact(model->kv) ? qn_build_keep(model, l, r->key, r->value, r->keys, error)
                                   : qn_build_rope(model, l, r->key.reg, r->key.column, 0, 1, h->kv_heads, error);
}

static qn_status build_layer(qn_model *model, const qn_hparams *h, const llama_registers *r, int32_t l, qn_error *error)
{
    names n;
    QN_TRY(check_layer(model, h, l, error));
    QN_TRY(qn_build_norm(model, l, r->stream, r->normed, name_of(&n, l, "input_layernorm"), error));
    QN_TRY(build_qkv(model, h, r, l, error));
    QN_TRY(build_turned(model, h, r, l, error));
    QN_TRY(qn_build_attention(model, l, r->rotated, r->attended, r->sums, error));
    QN_TRY(qn_build_linear(model, l, r->attended, r->projected, 0, 0, name_of(&n, l, "self_attn.o_proj"), error));
    QN_TRY(qn_build_add(model, l, r->stream, r->projected, h->hidden, error));

    QN_TRY(qn_build_norm(model, l, r->stream, r->normed, name_of(&n, l, "post_attention_layernorm"), error));
    QN_TRY(build_gate_up(model, h, r, l, error));
    QN_TRY(qn_build_silu_mul(model, l, r->gate_up, r->activated, h->intermediate, error));
    QN_TRY(qn_build_linear(model, l, r->activated, r->projected, 0, 0, name_of(&n, l, "mlp.down_proj"), error));
    QN_TRY(qn_build_add(model, l, r->stream, r->projected, h->hidden, error));
    return QN_OK;
}

qn_status qn_llama_build(qn_model *model, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    static const char embedding[] = "model.embed_tokens.weight";
    QN_TRY(check_shape(model, embedding, h->vocab_size, h->hidden, error));
    model->embedding = qn_checkpoint_find(model->checkpoint, embedding);
    llama_registers r = {0};
    QN_TRY(make_registers(model, h, &r, error));
    model->reg_stream = r.stream;
    for (int32_t l = 0; l < h->layers; l++) {
        QN_TRY(build_layer(model, h, &r, l, error));
    }
    model->body_steps = model->step_count;
    QN_TRY(qn_build_norm(model, -1, r.stream, r.normed, "model.norm.weight", error));
    return qn_build_output(model, r.normed, h->tied_embeddings ? embedding : "lm_head.weight", error);
}
