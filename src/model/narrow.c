/* Activations in BF16: a linear layer whose weights are BF16, or 4-bit codes
 * without quantised activations, reads its rows as BF16, which is what the fast
 * kernels multiply and half the bytes. The step that makes the rows writes them
 * so at once. The residual stream, and rows that anything else reads (a
 * quantiser, GGUF blocks, F16 and F32 weights, vector-quantised ones), stay F32.
 *
 * A register that has readers of both kinds is made twice: its producer runs
 * again into the BF16 register. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/build.h"

/* The step's input of rows that may be BF16: its slot, or -1. */
static int32_t narrow_slot(const qn_step *step)
{
    const int32_t slot = step->weight ? qn_op_in_slot(step->op, "x") : -1;
    if (slot < 0 || step->in[slot].shape.format != QN_F32 || step->weight->part_count) {
        return -1;
    }
    const int plain = step->weight->scheme->scales == QN_SCALES_NONE;
    return plain && step->weight->data.shape.format != QN_BF16 ? -1 : slot;
}

static int reads(const qn_step *step, int32_t reg)
{
    int count = 0;
    for (int i = 0; i < QN_MAX_IN; i++) {
        count += step->in[i].place == QN_PLACE_REGISTER && step->in[i].index == reg;
    }
    return count;
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

/* The plan of the step with that format in place of F32: of its output (slot < 0) or of input slot. */
static qn_status plan_narrow(qn_model *model, const qn_step *step, int32_t slot, const qn_plan **plan, qn_error *error)
{
    qn_op_desc desc = *qn_plan_desc(step->plan);
    if (slot < 0) {
        desc.attr[QN_ATTR_OUT].i = QN_OUT_BF16;
    } else {
        desc.in[slot].format = QN_BF16;
    }
    return qn_build_plan(model, &desc, plan, error);
}

/* Who reads what step i writes, before it is written again. */
typedef struct readers {
    size_t end; /* past the last step to look at */
    int narrow, wide;
} readers;

static readers find_readers(const qn_model *model, size_t i, int32_t reg)
{
    readers r = {.end = i + 1};
    while (r.end < model->step_count) {
        const qn_step *step = &model->steps[r.end];
        const int32_t slot = narrow_slot(step);
        const int all = reads(step, reg);
        const int here = slot >= 0 && step->in[slot].place == QN_PLACE_REGISTER && step->in[slot].index == reg;
        r.narrow += here;
        r.wide += all - here;
        if (writes(step, reg)) {
            break;
        }
        r.end++;
    }
    return r;
}

/* Make step i, or a copy of it behind it, write BF16 and the narrow readers read that. */
static qn_status narrow_step(qn_model *model, size_t i, const readers *r, qn_error *error)
{
    const int32_t reg = model->steps[i].out[0].index;
    const qn_plan *plan;
    for (size_t j = i; j < r->end; j++) { /* all plans must exist before a step is touched */
        const int32_t slot = narrow_slot(&model->steps[j]);
        const int reader = j > i && slot >= 0 && model->steps[j].in[slot].index == reg;
        if (j == i || reader) {
            const qn_status status = plan_narrow(model, &model->steps[j], j == i ? -1 : slot, &plan, error);
            if (status == QN_E_MEMORY) {
                return status;
            }
            if (status != QN_OK) {
                return QN_OK; /* no such kernel: the rows stay F32 */
            }
        }
    }
    char name[24];
    int32_t narrow;
    snprintf(name, sizeof name, "%.18s.bf16", model->registers[reg].name);
    QN_TRY(qn_build_register(model, name, QN_BF16, (int64_t)(model->registers[reg].row_bytes / sizeof(float)), &narrow,
                             error));
    for (size_t j = i + 1; j < r->end; j++) {
        qn_step *step = &model->steps[j];
        const int32_t slot = narrow_slot(step);
        if (slot >= 0 && step->in[slot].place == QN_PLACE_REGISTER && step->in[slot].index == reg) {
            QN_TRY(plan_narrow(model, step, slot, &step->plan, error));
            step->in[slot].index = narrow;
            step->in[slot].shape.format = QN_BF16;
        }
    }
    if (r->wide) {
        QN_TRY(qn_build_repeat(model, i++, error));
    }
    qn_step *step = &model->steps[i];
    QN_TRY(plan_narrow(model, step, -1, &step->plan, error));
    step->out[0].index = narrow;
    step->out[0].shape.format = QN_BF16;
    return QN_OK;
}

qn_status qn_model_narrow(qn_model *model, qn_error *error)
{
    for (size_t i = 0; i < model->step_count; i++) {
        const qn_step *step = &model->steps[i];
        if (!step->plan || !qn_build_takes(step->op, QN_ATTR_OUT) || step->weight ||
            step->out[0].place != QN_PLACE_REGISTER || step->out[0].offset || step->out[0].shape.format != QN_F32) {
            continue;
        }
        const readers r = find_readers(model, i, step->out[0].index);
        if (r.narrow) {
            QN_TRY(narrow_step(model, i, &r, error));
        }
    }
    return QN_OK;
}
