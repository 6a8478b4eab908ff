#include "quant/outputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/map.h"

/* The linear layers of llama and what is like it; those with the same leader are one
 * matrix in most engines and therefore share their global scales. */
static const struct {
    const char *suffix, *leader;
} linears[] = {
    {".self_attn.q_proj.weight", ".self_attn.q_proj.weight"}, {".self_attn.k_proj.weight", ".self_attn.q_proj.weight"},
    {".self_attn.v_proj.weight", ".self_attn.q_proj.weight"}, {".self_attn.o_proj.weight", ".self_attn.o_proj.weight"},
    {".mlp.gate_proj.weight", ".mlp.gate_proj.weight"},       {".mlp.up_proj.weight", ".mlp.gate_proj.weight"},
    {".mlp.down_proj.weight", ".mlp.down_proj.weight"},
};

static const char embeddings[] = "model.embed_tokens.weight", output_layer[] = "lm_head.weight";

/* Row of linears[] for a name; -1 when it is none. */
static int find_linear(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        const size_t n = strlen(linears[i].suffix);
        if (length > n && strcmp(name + length - n, linears[i].suffix) == 0) {
            return (int)i;
        }
    }
    return -1;
}

/* FP8's rounding of activations cannot be made good by rounding weights; the outermost layers, and in small models
 * the inputs of attention, hold more of its error than the others (docs/quantize.md). */
int32_t qn_scheme_kept_layers(const qn_scheme *scheme, int32_t layers)
{
    return scheme->act_op == QN_OP_QUANTIZE_FP8 && layers >= 12 ? 2 : 0;
}

int32_t qn_scheme_keeps_qkv(const qn_scheme *scheme, int32_t layers, int32_t hidden)
{
    return scheme->act_op == QN_OP_QUANTIZE_FP8 && layers >= 12 && hidden < 1024;
}

qn_status qn_scheme_for_head(const qn_scheme *scheme, const qn_scheme *kept, const char *name, const qn_scheme **head,
                             qn_error *error)
{
    *head = kept;
    if (!name || strcmp(name, kept->name) == 0) {
        return QN_OK;
    }
    *head = qn_scheme_find(name);
    QN_FAIL_IF(!*head, error, QN_E_ARGUMENT, "'%s' is no scheme for the output layer", name);
    const int fits = scheme->layout == QN_LAYOUT_COMPRESSED_TENSORS &&
                     (*head)->layout == QN_LAYOUT_COMPRESSED_TENSORS && (*head)->scales == QN_SCALES_CHANNEL;
    QN_FAIL_IF(!fits, error, QN_E_ARGUMENT,
               "an output layer in %s beside weights in %s: only compressed-tensors' schemes hold one, in fp8, int8 or "
               "int8-azp",
               name, scheme->name);
    return QN_OK;
}

/* 1 for a linear weight that stays plain. */
static int is_kept(const qn_outputs *outputs, const char *name)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return 0;
    }
    const long layer = strtol(name + sizeof prefix - 1, NULL, 10);
    if (layer < outputs->keep_first || layer >= outputs->layers - outputs->keep_last) {
        return 1;
    }
    return outputs->keep_qkv && (strstr(name, ".q_proj.") || strstr(name, ".k_proj.") || strstr(name, ".v_proj."));
}

static qn_status set_kept(qn_outputs *outputs, const qn_hparams *h, const qn_quantize_options *options, qn_error *error)
{
    if (outputs->scheme->layout == QN_LAYOUT_DENSE) {
        return QN_OK;
    }
    const int32_t usual = qn_scheme_kept_layers(outputs->scheme, outputs->layers);
    outputs->keep_first = options->keep_first < 0 ? usual : options->keep_first;
    outputs->keep_last = options->keep_last < 0 ? usual : options->keep_last;
    outputs->keep_qkv =
        options->keep_qkv < 0 ? qn_scheme_keeps_qkv(outputs->scheme, outputs->layers, h->hidden) : options->keep_qkv;
    QN_FAIL_IF((int64_t)outputs->keep_first + outputs->keep_last >= outputs->layers, error, QN_E_ARGUMENT,
               "keeping %d and %d of %d layers leaves nothing to quantise; choose the scheme bf16 for that",
               outputs->keep_first, outputs->keep_last, outputs->layers);
    return QN_OK;
}

int qn_scheme_needs_calibration(const qn_scheme *scheme)
{
    return scheme->global_scale && scheme->act_op != QN_OP_NONE;
}

void qn_output_decode_row(const qn_output *output, int64_t row, float *x)
{
    const qn_weight *w = output->weight;
    const int64_t k = output->encoder.k;
    if (w->ndim == 1) {
        qn_weight_decode_vector(w, x);
    } else {
        qn_weight_decode_row(w, row, x);
    }
    for (int64_t i = 0; output->columns && i < k; i++) {
        x[i] *= output->columns[i];
    }
    for (int64_t i = 0; output->rows && i < k; i++) {
        x[i] *= output->rows[row];
    }
}

/* "model.x.weight" and "weight_scale" -> "model.x.weight_scale". */
static char *part_name(qn_ctx *ctx, const char *weight, const char *suffix)
{
    const char *dot = strrchr(weight, '.');
    const size_t stem = dot ? (size_t)(dot - weight) + 1 : 0, length = strlen(suffix);
    char *name = qn_alloc(ctx, stem + length + 1);
    if (name) {
        memcpy(name, weight, stem);
        memcpy(name + stem, suffix, length + 1);
    }
    return name;
}

static qn_status add_part(qn_output *output, int part, char *name, const qn_shape *shape, qn_error *error)
{
    QN_FAIL_IF(!name, error, QN_E_MEMORY, "out of memory planning tensor %s", output->name);
    output->names[part] = name;
    output->shapes[part] = *shape;
    size_t bytes;
    QN_TRY(qn_shape_bytes(shape, &bytes, error));
    output->bytes[part] = bytes;
    return QN_OK;
}

static qn_status plan_parts(qn_outputs *outputs, qn_output *o, qn_error *error)
{
    qn_ctx *ctx = outputs->ctx;
    const char *name = o->name;
    if (o->scheme == outputs->kept) {
        qn_shape shape = o->encoder.data_shape;
        if (o->weight->ndim == 1) {
            shape = qn_shape_make(shape.format, 1, o->weight->n, 1, 1, 1);
        }
        return add_part(o, QN_PART_DATA, qn_strdup(ctx, name), &shape, error);
    }
    const qn_scheme *scheme = o->scheme;
    if (scheme->scales == QN_SCALES_VECTOR) {
        qn_shape shapes[QN_VQ_PARTS];
        QN_TRY(qn_vq_shapes(scheme, o->encoder.n, o->encoder.k, shapes, error));
        for (int i = 0; i < scheme->vq.written; i++) {
            QN_TRY(add_part(o, QN_PART_DATA + i, part_name(ctx, name, scheme->vq.tensors[i]), &shapes[i], error));
        }
        return QN_OK;
    }
    const qn_shape one = qn_shape_make(QN_F32, 1, 1, 1, 1, 1);
    QN_TRY(add_part(o, QN_PART_DATA, part_name(ctx, name, scheme->data_suffix), &o->encoder.data_shape, error));
    if (scheme->scale_suffix) {
        QN_TRY(add_part(o, QN_PART_SCALE, part_name(ctx, name, scheme->scale_suffix), &o->encoder.scale_shape, error));
    }
    if (scheme->global_scale) {
        QN_TRY(add_part(o, QN_PART_GLOBAL, part_name(ctx, name, scheme->global_suffix), &one, error));
    }
    if (qn_scheme_needs_calibration(scheme)) {
        QN_TRY(add_part(o, QN_PART_INPUT_GLOBAL, part_name(ctx, name, scheme->act_suffix), &one, error));
    }
    return QN_OK;
}

static qn_status plan_output(qn_outputs *outputs, qn_output *o, qn_error *error)
{
    const qn_weight *w = o->weight;
    o->linear = w->ndim == 2 && find_linear(o->name) >= 0;
    o->left_out = o->linear && is_kept(outputs, o->name);
    o->linear = o->linear && !o->left_out;
    o->scheme = o->linear ? outputs->scheme : strcmp(o->name, output_layer) == 0 ? outputs->head : outputs->kept;
    QN_FAIL_IF(w->part_count, error, QN_E_UNSUPPORTED, "tensor %s is vector-quantised already", w->name);
    /* vectors are no elements to encode: of their encoder, sizes alone are used */
    const qn_scheme *scheme = o->scheme->scales != QN_SCALES_VECTOR ? o->scheme : outputs->kept;
    qn_status status = qn_encoder_init(&o->encoder, scheme, w->ndim == 1 ? 1 : w->n, w->ndim == 1 ? w->n : w->k, error);
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "tensor %s", o->name);
    }
    status = plan_parts(outputs, o, error);
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "tensor %s", o->name);
    }
    size_t before = 0, scale = 0;
    QN_TRY(qn_shape_bytes(&w->data.shape, &before, error));
    if (w->blocks) {
        before = (size_t)w->n * qn_weight_row_bytes(w);
    } else if (w->scale.shape.format != QN_FORMAT_NONE) {
        QN_TRY(qn_shape_bytes(&w->scale.shape, &scale, error));
    }
    o->bytes_before = (uint64_t)before + scale;
    return QN_OK;
}

/* Leaders, by name. */
static qn_status find_leaders(qn_outputs *outputs, qn_error *error)
{
    qn_map map = qn_map_make(outputs->ctx);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < outputs->count && status == QN_OK; i++) {
        const char *name = outputs->list[i].name;
        outputs->list[i].leader = i;
        if (qn_map_add(&map, name, strlen(name), i) < 0) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory planning %d tensors", outputs->count);
        }
    }
    for (int32_t i = 0; i < outputs->count && status == QN_OK; i++) {
        qn_output *o = &outputs->list[i];
        const char *name = o->name;
        const int row = o->linear ? find_linear(name) : -1;
        if (row < 0) {
            continue;
        }
        char leader[512];
        const size_t stem = strlen(name) - strlen(linears[row].suffix);
        if (stem + strlen(linears[row].leader) < sizeof leader) {
            memcpy(leader, name, stem);
            strcpy(leader + stem, linears[row].leader);
            const int32_t found = qn_map_get(&map, leader, strlen(leader));
            o->leader = found >= 0 && outputs->list[found].linear ? found : i;
        }
    }
    qn_map_free(&map);
    return status;
}

/* Fill one file after the other; the tensors of a weight stay together. */
static qn_status cut_shards(qn_outputs *outputs, uint64_t shard_bytes, qn_error *error)
{
    uint64_t used = 0;
    int32_t items = 0;
    outputs->shard_count = 1;
    for (int32_t i = 0; i < outputs->count; i++) {
        qn_output *o = &outputs->list[i];
        uint64_t bytes = 0;
        int32_t parts = 0;
        for (int p = 0; p < QN_PART_COUNT; p++) {
            QN_FAIL_IF(qn_add_u64(bytes, o->bytes[p], &bytes), error, QN_E_SHAPE, "tensor %s is too large", o->name);
            parts += o->names[p] != NULL;
        }
        if (items && (bytes > shard_bytes || used > shard_bytes - bytes)) {
            outputs->shard_count++;
            used = 0;
            items = 0;
        }
        o->shard = outputs->shard_count - 1;
        o->first_item = items;
        items += parts;
        used += bytes;
        QN_FAIL_IF(qn_add_u64(outputs->bytes_after, bytes, &outputs->bytes_after) ||
                       qn_add_u64(outputs->bytes_before, o->bytes_before, &outputs->bytes_before),
                   error, QN_E_SHAPE, "the checkpoint is too large");
        outputs->parameters += strcmp(o->name, o->weight->name) == 0 ? o->encoder.n * o->encoder.k : 0;
    }
    return QN_OK;
}

qn_status qn_outputs_plan(qn_ctx *ctx, const qn_checkpoint *checkpoint, const qn_scheme *scheme,
                          const qn_quantize_options *options, uint64_t shard_bytes, qn_outputs *outputs,
                          qn_error *error)
{
    *outputs = (qn_outputs){.ctx = ctx, .scheme = scheme, .layers = qn_checkpoint_hparams(checkpoint)->layers};
    outputs->kept = scheme->layout == QN_LAYOUT_DENSE ? scheme : qn_scheme_find("bf16");
    const int32_t stored = qn_checkpoint_weight_count(checkpoint);
    QN_FAIL_IF(stored < 1, error, QN_E_FILE, "the checkpoint has no weights");
    QN_TRY(qn_scheme_for_head(scheme, outputs->kept, options->head, &outputs->head, error));
    /* embeddings that are the output layer too stay as they are; the layer gets its own weight */
    const int untie = outputs->head != outputs->kept && qn_checkpoint_hparams(checkpoint)->tied_embeddings;
    const int32_t count = stored + untie;
    QN_TRY(set_kept(outputs, qn_checkpoint_hparams(checkpoint), options, error));
    outputs->list = qn_calloc(ctx, (size_t)count, sizeof *outputs->list);
    QN_FAIL_IF(!outputs->list, error, QN_E_MEMORY, "out of memory planning %d tensors", count);
    outputs->count = count;
    qn_status status = QN_OK;
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        qn_output *o = &outputs->list[i];
        o->weight = i < stored ? qn_checkpoint_weight_at(checkpoint, i) : qn_checkpoint_find(checkpoint, embeddings);
        o->name = i < stored ? o->weight->name : output_layer;
        status = plan_output(outputs, &outputs->list[i], error);
    }
    if (status == QN_OK) {
        status = find_leaders(outputs, error);
    }
    if (status == QN_OK) {
        status = cut_shards(outputs, shard_bytes, error);
    }
    if (status != QN_OK) {
        qn_outputs_free(outputs);
    }
    return status;
}

void qn_outputs_free(qn_outputs *outputs)
{
    for (int32_t i = 0; i < outputs->count; i++) {
        for (int p = 0; p < QN_PART_COUNT; p++) {
            qn_free(outputs->ctx, outputs->list[i].names[p]);
        }
        qn_free(outputs->ctx, outputs->list[i].own_rows);
        qn_free(outputs->ctx, outputs->list[i].own_columns);
    }
    qn_free(outputs->ctx, outputs->list);
    outputs->list = NULL;
    outputs->count = 0;
}
