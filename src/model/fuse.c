/* Fusion: neighbouring steps become one fused operator where a plan accepts it.
 * Each pattern looks at a pair (producer, consumer) of steps; what was fused
 * and what could not be, with the reason, goes into the model's notes. */
#include <string.h>

#include "base/error.h"
#include "model/build.h"

static int reads(const qn_step *step, int32_t reg)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (step->in[i].place == QN_PLACE_REGISTER && step->in[i].index == reg) {
            return 1;
        }
    }
    return 0;
}

static int writes(const qn_step *step, int32_t reg)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (step->out[i].place == QN_PLACE_REGISTER && step->out[i].index == reg) {
            return 1;
        }
    }
    return 0;
}

/* 1 when nothing after step i+1 reads register reg before it is written again. */
static int only_next_reads(const qn_model *model, size_t i, int32_t reg)
{
    for (size_t j = i + 2; j < model->step_count; j++) {
        if (reads(&model->steps[j], reg)) {
            return 0;
        }
        if (writes(&model->steps[j], reg)) {
            return 1;
        }
    }
    return 1;
}

/* silu_mul followed by a per-token or per-group quantize of its output -> silu_mul_quant.
 * Returns 1 and fills *fused when the pair is one. */
static int fuse_silu_quantize(qn_model *model, size_t i, qn_step *fused)
{
    const qn_step *silu = &model->steps[i], *quantize = &model->steps[i + 1];
    if (silu->op != QN_OP_SILU_MUL || silu->out[0].place != QN_PLACE_REGISTER || !reads(quantize, silu->out[0].index)) {
        return 0;
    }
    const char *to = qn_op_get_info(quantize->op)->name;
    if (quantize->op != QN_OP_QUANTIZE_FP8 && quantize->op != QN_OP_QUANTIZE_INT8) {
        qn_buffer_print(&model->notes, "layer %d: silu_mul + %s not fused: silu_mul_quant makes 8-bit codes only\n",
                        silu->layer, to);
        return 0;
    }
    if (!only_next_reads(model, i, silu->out[0].index)) {
        qn_buffer_print(&model->notes, "layer %d: silu_mul + %s not fused: others read the product\n", silu->layer, to);
        return 0;
    }
    const qn_op_desc *q = qn_plan_desc(quantize->plan);
    if (q->attr[QN_ATTR_MODE].i == QN_STATIC) {
        qn_buffer_print(&model->notes, "layer %d: silu_mul + %s not fused: silu_mul_quant takes no given scales\n",
                        silu->layer, to);
        return 0;
    }
    qn_op_desc desc;
    memset(&desc, 0, sizeof desc);
    qn_op_desc_init(&desc, QN_OP_SILU_MUL_QUANT);
    const int int8 = quantize->op == QN_OP_QUANTIZE_INT8;
    desc.attr[QN_ATTR_TYPE].i = int8 ? QN_TYPE_INT8 : q->attr[QN_ATTR_TYPE].i;
    desc.attr[QN_ATTR_GROUP].i = q->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP ? q->attr[QN_ATTR_GROUP].i : 0;
    if (int8) {
        desc.attr[QN_ATTR_SYMMETRIC].i = q->attr[QN_ATTR_SYMMETRIC].i;
    }
    const int32_t x = qn_op_in_slot(QN_OP_SILU_MUL_QUANT, "x");
    desc.in[x] = silu->in[qn_op_in_slot(QN_OP_SILU_MUL, "x")].shape;
    qn_error reason = {QN_OK, ""};
    const qn_plan *plan;
    if (qn_build_plan(model, &desc, &plan, &reason) != QN_OK) {
        qn_buffer_print(&model->notes, "layer %d: silu_mul + %s not fused: %s\n", silu->layer, to, reason.text);
        return 0;
    }
    memset(fused, 0, sizeof *fused);
    fused->op = QN_OP_SILU_MUL_QUANT;
    fused->plan = plan;
    fused->label = quantize->label;
    fused->layer = silu->layer;
    fused->in[x] = silu->in[qn_op_in_slot(QN_OP_SILU_MUL, "x")];
    static const char *const outputs[] = {"q", "scale", "azp"};
    for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {
        const int32_t from = qn_op_out_slot(quantize->op, outputs[o]);
        const int32_t into = qn_op_out_slot(QN_OP_SILU_MUL_QUANT, outputs[o]);
        if (from >= 0 && into >= 0) {
            fused->out[into] = quantize->out[from];
        }
    }
    qn_buffer_print(&model->notes, "layer %d: silu_mul + %s -> silu_mul_quant\n", silu->layer, to);
    return 1;
}

/* ---- Linear layers side by side ---- */

static int same_operand(const qn_operand *a, const qn_operand *b)
{
    return a->place == b->place && a->index == b->index && a->offset == b->offset && a->whole == b->whole;
}

/* Why the weights of two linear layers cannot be the rows of one; NULL when they can. */
static const char *cannot_join(const qn_step *a, const qn_step *b)
{
    const qn_weight *x = a->weight, *y = b->weight;
    if (x->part_count || y->part_count) {
        return "each has codebooks of its own";
    }
    if (x->scheme != y->scheme || x->data.shape.format != y->data.shape.format || x->k != y->k ||
        x->scale.shape.format != y->scale.shape.format || x->data.strides[0] != y->data.strides[0]) {
        return "they are stored differently";
    }
    if (x->global_scale != y->global_scale || x->input_global_scale != y->input_global_scale ||
        x->input_zero_point != y->input_zero_point) {
        return "their tensors' scales differ";
    }
    if (x->scheme->scales == QN_SCALES_BLOCK && x->n % x->scheme->block_n != 0) {
        return "the first ends inside a block of scales";
    }
    const int32_t bias = qn_op_in_slot(a->op, "bias");
    return bias >= 0 && (a->in[bias].place || b->in[bias].place) ? "they have biases" : NULL;
}

/* Linear layers that read the same rows and write side by side. */
static int side_by_side(const qn_step *a, const qn_step *b)
{
    if (!a->weight || !b->weight || a->second || a->op != b->op || a->out[0].place != QN_PLACE_REGISTER ||
        b->out[0].place != QN_PLACE_REGISTER || a->out[0].index < 0 || a->out[0].index != b->out[0].index ||
        b->out[0].offset != a->out[0].offset + a->weight->n * (int64_t)sizeof(float)) {
        return 0;
    }
    const qn_op_info *info = qn_op_get_info(a->op);
    for (int32_t i = 0; i < info->in_count; i++) {
        if (!info->in[i].weight && !same_operand(&a->in[i], &b->in[i])) {
            return 0;
        }
    }
    return 1;
}

/* Two linear layers -> one whose weight has the rows of both, where it is packed anyway. */
static int fuse_linear(qn_model *model, size_t i, qn_step *fused)
{
    const qn_step *a = &model->steps[i], *b = &model->steps[i + 1];
    if (!side_by_side(a, b)) {
        return 0;
    }
    const char *why = cannot_join(a, b);
    qn_error reason = {QN_OK, ""};
    const qn_plan *plan = NULL;
    *fused = *a;
    if (!why) {
        const qn_op_info *info = qn_op_get_info(a->op);
        qn_op_desc desc = *qn_plan_desc(a->plan);
        const int32_t slots[] = {qn_op_in_slot(a->op, "b"), qn_build_scale_slot(a->op),
                                 qn_op_in_slot(a->op, "azp_adj")};
        for (int s = 0; s < 3; s++) {
            if (slots[s] >= 0 && a->in[slots[s]].place && info->in[slots[s]].weight) {
                desc.in[slots[s]].dims[0] += b->in[slots[s]].shape.dims[0];
                fused->in[slots[s]].shape = fused->in[slots[s]].view.shape = desc.in[slots[s]];
            }
        }
        if (qn_build_plan(model, &desc, &plan, &reason) != QN_OK) {
            why = reason.text;
        } else if (!qn_plan_pack_bytes(plan)) {
            why = "their kernel reads weights as they are stored";
        }
    }
    if (why) {
        qn_buffer_print(&model->notes, "layer %d: %s and the next not joined: %s\n", a->layer, a->label, why);
        return 0;
    }
    fused->plan = plan;
    fused->second = b->weight;
    fused->out[0].shape.dims[1] += b->out[0].shape.dims[1];
    qn_buffer_print(&model->notes, "layer %d: %s and the next joined\n", a->layer, a->label);
    return 1;
}

qn_status qn_model_fuse(qn_model *model, int join, qn_error *error)
{
    size_t kept = 0;
    const size_t body = model->body_steps;
    for (size_t i = 0; i < model->step_count; i++) {
        if (i == body) {
            model->body_steps = kept;
        }
        qn_step fused;
        if (i + 1 < model->step_count &&
            (fuse_silu_quantize(model, i, &fused) || (join && fuse_linear(model, i, &fused)))) {
            model->steps[i + 1] = fused; /* the pair's second place; the first is dropped */
            continue;
        }
        if (kept != i) {
            model->steps[kept] = model->steps[i];
        }
        kept++;
    }
    model->step_count = kept;
    QN_FAIL_IF(model->notes.failed, error, QN_E_MEMORY, "out of memory while preparing the model");
    return QN_OK;
}
