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
    if (silu->op != QN_OP_SILU_MUL || silu->out[0].place != QN_PLACE_REGISTER ||
        !reads(quantize, silu->out[0].index)) {
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

qn_status qn_model_fuse(qn_model *model, qn_error *error)
{
    size_t kept = 0;
    const size_t body = model->body_steps;
    for (size_t i = 0; i < model->step_count; i++) {
        if (i == body) {
            model->body_steps = kept;
        }
        qn_step fused;
        if (i + 1 < model->step_count && fuse_silu_quantize(model, i, &fused)) {
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
