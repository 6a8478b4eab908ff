/* The builder: registers, shared plans, and the steps of a linear layer by its
 * weight's scheme. Everything a scheme needs is read off its row, so a scheme
 * of known kinds needs no change here. */
#include "model/build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/format.h"
#include "model/kv.h"
#include "plan/plan.h"
#include "ref/slots.h"

/* Room for one more element of an array the model owns; 1 when memory is out. */
static int grow(qn_ctx *ctx, void **array, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) {
        return 0;
    }
    const size_t wider = *capacity ? *capacity * 2 : 64;
    void *copy = qn_calloc(ctx, wider, size);
    if (!copy) {
        return 1;
    }
    if (count) {
        memcpy(copy, *array, count * size);
    }
    qn_free(ctx, *array);
    *array = copy;
    *capacity = wider;
    return 0;
}

static qn_status out_of_memory(qn_error *error)
{
    QN_FAIL(error, QN_E_MEMORY, "out of memory while preparing the model");
}

void *qn_build_own(qn_model *model, size_t bytes)
{
    if (grow(model->ctx, (void **)&model->owned, &model->owned_capacity, model->owned_count, sizeof(void *))) {
        return NULL;
    }
    void *memory = qn_alloc(model->ctx, bytes);
    if (memory) {
        model->owned[model->owned_count++] = memory;
    }
    return memory;
}

qn_status qn_build_register(qn_model *model, const char *name, qn_format format, int64_t width, int32_t *index,
                            qn_error *error)
{
    size_t bytes;
    QN_TRY(qn_format_row_bytes(format, width, &bytes, error));
    size_t i = 0;
    while (i < model->register_count && strcmp(model->registers[i].name, name) != 0) {
        i++;
    }
    if (i == model->register_count) {
        if (grow(model->ctx, (void **)&model->registers, &model->register_capacity, i, sizeof *model->registers)) {
            return out_of_memory(error);
        }
        snprintf(model->registers[i].name, sizeof model->registers[i].name, "%s", name);
        model->register_count++;
    }
    if (model->registers[i].row_bytes < bytes) {
        model->registers[i].row_bytes = bytes;
    }
    *index = (int32_t)i;
    return QN_OK;
}

qn_status qn_build_plan(qn_model *model, const qn_op_desc *desc, const qn_plan **plan, qn_error *error)
{
    for (size_t i = 0; i < model->plan_count; i++) {
        if (memcmp(qn_plan_desc(model->plans[i]), desc, sizeof *desc) == 0) {
            *plan = model->plans[i];
            return QN_OK;
        }
    }
    if (grow(model->ctx, (void **)&model->plans, &model->plan_capacity, model->plan_count, sizeof *model->plans)) {
        return out_of_memory(error);
    }
    qn_plan *made;
    QN_TRY(qn_plan_choose(model->ctx, desc, &model->plan_options, &made, error)); /* all open once steps are final */
    model->plans[model->plan_count++] = made;
    *plan = made;
    return QN_OK;
}

/* Append an empty step; NULL when memory is out. */
static qn_step *add_step(qn_model *model, int32_t layer, qn_op op, const char *label)
{
    if (grow(model->ctx, (void **)&model->steps, &model->step_capacity, model->step_count, sizeof *model->steps)) {
        return NULL;
    }
    qn_step *step = &model->steps[model->step_count++];
    memset(step, 0, sizeof *step);
    step->op = op;
    step->layer = layer;
    step->label = label ? label : "";
    return step;
}

int qn_build_takes(qn_op op, qn_attr attr)
{
    const qn_op_info *info = qn_op_get_info(op);
    for (int32_t i = 0; i < info->attr_count; i++) {
        if (info->attrs[i].attr == attr) {
            return 1;
        }
    }
    return 0;
}

qn_status qn_build_repeat(qn_model *model, size_t i, qn_error *error)
{
    if (!add_step(model, 0, QN_OP_NONE, NULL)) {
        return out_of_memory(error);
    }
    memmove(model->steps + i + 1, model->steps + i, (model->step_count - 1 - i) * sizeof *model->steps);
    model->body_steps += i < model->body_steps;
    return QN_OK;
}

void qn_build_drop_plans(qn_model *model)
{
    size_t kept = 0;
    for (size_t p = 0; p < model->plan_count; p++) {
        size_t i = 0;
        while (i < model->step_count && model->steps[i].plan != model->plans[p]) {
            i++;
        }
        if (i < model->step_count) {
            model->plans[kept++] = model->plans[p];
        } else {
            qn_plan_destroy(model->plans[p]);
        }
    }
    model->plan_count = kept;
}

static qn_operand in_register(int32_t index, qn_shape shape)
{
    return (qn_operand){.place = QN_PLACE_REGISTER, .index = index, .shape = shape};
}

static qn_operand constant(qn_view view)
{
    return (qn_operand){.place = QN_PLACE_CONST, .shape = view.shape, .view = view};
}

/* Finish a step: the descriptor's input shapes from its operands, the plan, the output shapes. */
static qn_status plan_step(qn_model *model, qn_step *step, qn_op_desc *desc, qn_error *error)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        desc->in[i] = step->in[i].place ? step->in[i].shape : (qn_shape){.format = QN_FORMAT_NONE};
    }
    qn_status status = qn_build_plan(model, desc, &step->plan, error);
    qn_shape out[QN_MAX_OUT];
    if (status == QN_OK) {
        status = qn_op_desc_check(desc, out, NULL, error);
    }
    for (int i = 0; status == QN_OK && i < QN_MAX_OUT; i++) {
        if (step->out[i].place) {
            step->out[i].shape = out[i];
        }
    }
    if (status != QN_OK && status != QN_E_DEVICE && step->label[0]) {
        return qn_error_prefix(error, status, "%s", step->label);
    }
    return status;
}

static qn_op_desc describe(qn_op op)
{
    qn_op_desc desc;
    memset(&desc, 0, sizeof desc);
    qn_op_desc_init(&desc, op);
    return desc;
}

static qn_shape rows_of(qn_format format, int64_t width)
{
    return qn_shape_make(format, 2, 1, width, 1, 1);
}

static qn_status find_weight(const qn_model *model, const char *name, const qn_weight **weight, qn_error *error)
{
    *weight = qn_checkpoint_find(model->checkpoint, name);
    QN_FAIL_IF(!*weight, error, QN_E_FILE, "tensor %s is missing from the checkpoint", name);
    return QN_OK;
}

/* A 1-D weight as F32, converted once. */
static qn_status vector_weight(qn_model *model, const char *name, int64_t expected, qn_view *view, qn_error *error)
{
    const qn_weight *weight;
    QN_TRY(find_weight(model, name, &weight, error));
    QN_FAIL_IF(weight->ndim != 1 || weight->n != expected, error, QN_E_FILE,
               "tensor %s has shape [%lld%s], expected [%lld]", name, (long long)weight->n,
               weight->ndim == 1 ? "" : ",...", (long long)expected);
    const qn_shape shape = qn_shape_make(QN_F32, 1, expected, 1, 1, 1);
    float *values = qn_build_own(model, (size_t)expected * sizeof(float));
    if (!values) {
        return out_of_memory(error);
    }
    qn_weight_decode_vector(weight, values);
    *view = qn_view_make(values, &shape);
    return QN_OK;
}

/* Of rows of that shape, which may be several of a token. */
static qn_status add_norm(qn_model *model, int32_t layer, int32_t in, int32_t out, qn_shape rows, const char *weight,
                          qn_error *error)
{
    qn_view gain;
    QN_TRY(vector_weight(model, weight, rows.dims[1], &gain, error));
    qn_step *step = add_step(model, layer, QN_OP_RMSNORM, qn_checkpoint_find(model->checkpoint, weight)->name);
    if (!step) {
        return out_of_memory(error);
    }
    step->in[qn_op_in_slot(QN_OP_RMSNORM, "x")] = in_register(in, rows);
    step->in[qn_op_in_slot(QN_OP_RMSNORM, "w")] = constant(gain);
    step->out[0] = in_register(out, rows);
    qn_op_desc desc = describe(QN_OP_RMSNORM);
    desc.attr[QN_ATTR_EPS].f = qn_checkpoint_hparams(model->checkpoint)->rms_eps;
    desc.attr[QN_ATTR_OUT].i = QN_OUT_F32;
    return plan_step(model, step, &desc, error);
}

qn_status qn_build_norm(qn_model *model, int32_t layer, int32_t in, int32_t out, const char *weight, qn_error *error)
{
    const qn_shape rows = rows_of(QN_F32, qn_checkpoint_hparams(model->checkpoint)->hidden);
    return add_norm(model, layer, in, out, rows, weight, error);
}

qn_status qn_build_head_norm(qn_model *model, int32_t layer, int32_t in, int32_t out, int32_t heads, const char *weight,
                             qn_error *error)
{
    const qn_shape rows = qn_shape_make(QN_F32, 2, heads, qn_checkpoint_hparams(model->checkpoint)->head_dim, 1, 1);
    return add_norm(model, layer, in, out, rows, weight, error);
}

/* ---- Linear layers ---- */

/* One number of four bytes. */
static qn_status number_constant(qn_model *model, qn_format format, const void *value, qn_operand *operand,
                                 qn_error *error)
{
    const qn_shape shape = qn_shape_make(format, 1, 1, 1, 1, 1);
    void *memory = qn_build_own(model, 4);
    if (!memory) {
        return out_of_memory(error);
    }
    memcpy(memory, value, 4);
    *operand = constant(qn_view_make(memory, &shape));
    return QN_OK;
}

static qn_status scalar_constant(qn_model *model, float value, qn_operand *operand, qn_error *error)
{
    return number_constant(model, QN_F32, &value, operand, error);
}

/* How the rows that meet a weight are taken: as its scheme says, or where that leaves them as they are and the options
 * do not, as the scheme int8 says. */
static const qn_scheme *activations_of(const qn_model *model, const qn_weight *weight)
{
    const qn_scheme *own = weight->scheme;
    const int changed =
        model->activations == QN_ACTIVATIONS_INT8 && own->act_op == QN_OP_NONE && own->weight == QN_F4_E2M1;
    return changed ? qn_scheme_find("int8") : own;
}

/* Whether a scheme's activations have zero points. */
static int zero_points(const qn_scheme *scheme)
{
    return scheme->act_op == QN_OP_QUANTIZE_INT8 && !scheme->act_symmetric;
}

static qn_op_desc describe_quantize(const qn_scheme *scheme)
{
    qn_op_desc desc = describe(scheme->act_op);
    desc.attr[QN_ATTR_MODE].i = scheme->act_static ? QN_STATIC : QN_DYNAMIC;
    desc.attr[QN_ATTR_GRANULARITY].i = (int32_t)scheme->act_granularity;
    if (scheme->act_op == QN_OP_QUANTIZE_FP8) {
        desc.attr[QN_ATTR_TYPE].i = (int32_t)scheme->act_type;
    }
    if (scheme->act_op == QN_OP_QUANTIZE_INT8) {
        desc.attr[QN_ATTR_SYMMETRIC].i = scheme->act_symmetric;
    }
    if (scheme->act_granularity == QN_PER_GROUP && scheme->act_op != QN_OP_QUANTIZE_NVFP4) {
        desc.attr[QN_ATTR_GROUP].i = scheme->act_group;
    }
    if (scheme->act_op == QN_OP_QUANTIZE_NVFP4) {
        desc.attr[QN_ATTR_GRANULARITY].i = 0;
    }
    return desc;
}

static int writes_register(const qn_step *step, int32_t index)
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (step->out[i].place == QN_PLACE_REGISTER && step->out[i].index == index) {
            return 1;
        }
    }
    return 0;
}

/* What a quantise operator is given of a weight's activations: NVFP4's global scale, or a static scale and zero point.
 * Values of slots; count of them. */
typedef struct given_number {
    int32_t slot;
    qn_format format;
    uint32_t bits;
} given_number;

static int given_numbers(const qn_scheme *scheme, const qn_weight *weight, given_number given[2])
{
    const int32_t global = qn_op_in_slot(scheme->act_op, "global_scale");
    const float scale = global >= 0 ? weight->input_global_scale : weight->input_scale;
    if (global < 0 && !scheme->act_static) {
        return 0;
    }
    given[0] = (given_number){global >= 0 ? global : qn_op_in_slot(scheme->act_op, "scale"), QN_F32, 0};
    memcpy(&given[0].bits, &scale, sizeof scale);
    if (!zero_points(scheme) || !scheme->act_static) {
        return 1;
    }
    given[1] = (given_number){qn_op_in_slot(scheme->act_op, "azp"), QN_I32, (uint32_t)weight->input_zero_point};
    return 2;
}

static int reads_register(const qn_step *step, int32_t index)
{
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (step->in[i].place == QN_PLACE_REGISTER && step->in[i].index == index) {
            return 1;
        }
    }
    return 0;
}

/* Index of the step that already quantised these rows this way, or -1: they have not been quantised, or in another way
 * since, for which there are the same registers. */
static int64_t same_quantize(const qn_model *model, int32_t in, const qn_op_desc *desc, const given_number *given,
                             int count)
{
    for (size_t i = model->step_count; i-- > 0;) {
        const qn_step *step = &model->steps[i];
        if (reads_register(step, in) && !step->weight) {
            int same =
                step->op == desc->op && memcmp(qn_plan_desc(step->plan)->attr, desc->attr, sizeof desc->attr) == 0;
            for (int g = 0; same && g < count; g++) {
                same = memcmp(step->in[given[g].slot].view.data, &given[g].bits, sizeof given[g].bits) == 0;
            }
            return same ? (int64_t)i : -1;
        }
        if (writes_register(step, in)) {
            return -1;
        }
    }
    return -1;
}

/* Quantise in[M,k] as a scheme asks, for a weight; *index: of the step that holds codes and scales. */
static qn_status add_quantize(qn_model *model, int32_t layer, int32_t in, const qn_scheme *scheme,
                              const qn_weight *weight, size_t *index, qn_error *error)
{
    const qn_op op = scheme->act_op;
    qn_op_desc desc = describe_quantize(scheme);
    given_number given[2];
    const int count = given_numbers(scheme, weight, given);
    const int64_t same = same_quantize(model, in, &desc, given, count);
    if (same >= 0) {
        *index = (size_t)same;
        return QN_OK;
    }
    qn_step *step = add_step(model, layer, op, weight->name);
    if (!step) {
        return out_of_memory(error);
    }
    *index = model->step_count - 1;
    step->in[qn_op_in_slot(op, "x")] = in_register(in, rows_of(QN_F32, weight->k));
    for (int g = 0; g < count; g++) {
        QN_TRY(number_constant(model, given[g].format, &given[g].bits, &step->in[given[g].slot], error));
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        desc.in[i] = step->in[i].place ? step->in[i].shape : (qn_shape){.format = QN_FORMAT_NONE};
    }
    qn_shape out[QN_MAX_OUT];
    QN_TRY(qn_op_desc_check(&desc, out, NULL, error));
    const qn_op_info *info = qn_op_get_info(op);
    for (int i = 0; i < info->out_count; i++) {
        if (out[i].format == QN_FORMAT_NONE) {
            continue;
        }
        char name[24];
        snprintf(name, sizeof name, "%.12s.%.10s", model->registers[in].name, info->out[i].name);
        int32_t index_out;
        QN_TRY(qn_build_register(model, name, out[i].format, out[i].ndim == 2 ? out[i].dims[1] : 1, &index_out, error));
        step->out[i] = in_register(index_out, out[i]);
        step->out[i].whole = out[i].ndim == 1; /* [1] for all rows */
    }
    return plan_step(model, step, &desc, error);
}

/* Output `name` of a quantise step as input of the multiplication. */
static qn_operand output_of(const qn_model *model, size_t index, const char *name)
{
    const qn_step *step = &model->steps[index];
    return step->out[qn_op_out_slot(step->op, name)];
}

/* The activation operands of a multiplication. */
static qn_status bind_activations(qn_model *model, int32_t layer, int32_t in, const qn_weight *weight,
                                  qn_operand operands[QN_MAX_IN], qn_error *error)
{
    const qn_scheme *scheme = activations_of(model, weight);
    const qn_op mm = weight->scheme->mm;
    model->int8_layers += scheme != weight->scheme;
    if (scheme->act_op == QN_OP_NONE) {
        operands[qn_op_in_slot(mm, "x")] = in_register(in, rows_of(QN_F32, weight->k));
        return QN_OK;
    }
    size_t q = 0;
    QN_TRY(add_quantize(model, layer, in, scheme, weight, &q, error));
    const int32_t x_scale = qn_op_in_slot(mm, "x_scale");
    if (x_scale >= 0 && scheme->act_op != QN_OP_QUANTIZE_NVFP4) { /* 8 bits beside 4-bit floats */
        operands[qn_op_in_slot(mm, "x")] = output_of(model, q, "q");
        operands[x_scale] = output_of(model, q, "scale");
        return QN_OK;
    }
    operands[qn_op_in_slot(mm, "a")] = output_of(model, q, "q");
    if (mm == QN_OP_NVFP4_MM) {
        operands[qn_op_in_slot(mm, "a_scale")] = output_of(model, q, "scale");
        return scalar_constant(model, weight->input_global_scale, &operands[qn_op_in_slot(mm, "a_global")], error);
    }
    operands[qn_op_in_slot(mm, "scale_a")] = output_of(model, q, "scale");
    if (zero_points(scheme) && !scheme->act_static) {
        operands[qn_op_in_slot(mm, "azp")] = output_of(model, q, "azp");
        /* [M,1] as made, [M] as taken: the same bytes */
        qn_operand *azp = &operands[qn_op_in_slot(mm, "azp")];
        azp->shape = qn_shape_make(QN_I32, 1, 1, 1, 1, 1);
    }
    return QN_OK;
}

int32_t qn_build_scale_slot(qn_op mm)
{
    const int32_t named = qn_op_in_slot(mm, "scale_b");
    return named >= 0 ? named : qn_op_in_slot(mm, "b_scale");
}

/* The name of a weight's bias; 0: it has none. */
static int find_bias(const qn_model *model, const char *weight, char name[256])
{
    const int stem = (int)(strlen(weight) - strlen("weight"));
    return snprintf(name, 256, "%.*sbias", stem, weight) < 256 && qn_checkpoint_find(model->checkpoint, name);
}

static int takes_bias(qn_op mm)
{
    return qn_op_in_slot(mm, "bias") >= 0;
}

int qn_build_values_apart(const qn_model *model)
{
    return qn_kv_lossy(model->kv) || (model->device && !qn_kv_exact(model->kv));
}

int qn_build_writes_values(const qn_model *model, const char *name)
{
    char bias[256];
    const qn_op mm = qn_checkpoint_find(model->checkpoint, name)->scheme->mm;
    return !(model->device && mm == QN_OP_VQ_MM) && (takes_bias(mm) || !find_bias(model, name, bias));
}

/* The weight operands of a multiplication by the weight's scheme, as they lie in the file: qn_model_pack makes them
 * what the kernel reads. */
static qn_status bind_weight(qn_model *model, const qn_weight *weight, const char *name, qn_operand operands[QN_MAX_IN],
                             qn_error *error)
{
    const qn_scheme *scheme = weight->scheme;
    const qn_op mm = scheme->mm;
    for (int32_t i = 0; i < weight->part_count; i++) {
        operands[qn_op_in_slot(mm, weight->parts[i].name)] = constant(weight->parts[i].view);
    }
    if (!weight->part_count) {
        operands[qn_op_in_slot(mm, "b")] = constant(weight->data);
    }
    if (scheme->scales != QN_SCALES_NONE && scheme->scales != QN_SCALES_VECTOR) {
        operands[qn_build_scale_slot(mm)] = constant(weight->scale);
    }
    if (scheme->global_scale) {
        QN_TRY(scalar_constant(model, weight->global_scale, &operands[qn_op_in_slot(mm, "b_global")], error));
    }
    if (zero_points(scheme)) {
        const qn_shape sums = qn_shape_make(QN_I32, 1, weight->n, 1, 1, 1);
        operands[qn_op_in_slot(mm, "azp_adj")] = constant(qn_view_make(NULL, &sums)); /* made by qn_model_pack */
    }
    char bias[256];
    if (takes_bias(mm) && find_bias(model, name, bias)) {
        qn_view view;
        QN_TRY(vector_weight(model, bias, weight->n, &view, error));
        operands[qn_op_in_slot(mm, "bias")] = constant(view);
    }
    return QN_OK;
}

/* The sum of a product and its bias, whose operator has no place for it. */
static qn_status add_bias(qn_model *model, const qn_step *product, const char *name, qn_error *error)
{
    const qn_shape row = rows_of(QN_F32, product->weight->n);
    const qn_operand sum = product->out[0];
    const int32_t layer = product->layer;
    qn_view view;
    QN_TRY(vector_weight(model, name, product->weight->n, &view, error));
    qn_buffer_print(&model->notes, "layer %d: %s is added by itself: %s takes no bias\n", layer, name,
                    qn_op_get_info(product->op)->name);
    qn_step *step = add_step(model, layer, QN_OP_NONE, ""); /* product is not valid from here on */
    if (!step) {
        return out_of_memory(error);
    }
    view = qn_view_make(view.data, &row);
    view.strides[0] = 0; /* one row for all */
    step->in[0] = constant(view);
    step->out[0] = sum;
    return QN_OK;
}

static qn_status add_multiply(qn_model *model, int32_t layer, int32_t in, const char *name, qn_operand out,
                              qn_error *error)
{
    const qn_weight *weight;
    QN_TRY(find_weight(model, name, &weight, error));
    QN_FAIL_IF(weight->ndim != 2, error, QN_E_FILE, "tensor %s has %d dimension, expected 2", name, weight->ndim);
    qn_operand operands[QN_MAX_IN];
    memset(operands, 0, sizeof operands);
    qn_status status = bind_activations(model, layer, in, weight, operands, error);
    if (status == QN_OK) {
        status = bind_weight(model, weight, name, operands, error);
    }
    if (status != QN_OK) {
        return qn_error_prefix(error, status, "%s", name);
    }
    const qn_op mm = weight->scheme->mm;
    qn_step *step = add_step(model, layer, mm, weight->name);
    if (!step) {
        return out_of_memory(error);
    }
    memcpy(step->in, operands, sizeof operands);
    step->weight = weight;
    step->out[0] = out;
    qn_op_desc desc = describe(mm);
    desc.attr[QN_ATTR_OUT].i =
        out.place == QN_PLACE_NEW_VALUES && model->kv->format == QN_BF16 ? QN_OUT_BF16 : QN_OUT_F32;
    if (mm == QN_OP_VQ_MM) {
        desc.attr[QN_ATTR_FORMAT].i = (int32_t)weight->scheme->vq.format;
        for (int a = QN_ATTR_NUM_CODEBOOKS; weight->attr && a <= QN_ATTR_OUT_FEATURES; a++) {
            desc.attr[a] = weight->attr[a];
        }
    }
    QN_TRY(plan_step(model, step, &desc, error));
    char bias[256];
    return !takes_bias(mm) && find_bias(model, name, bias) ? add_bias(model, step, bias, error) : QN_OK;
}

qn_status qn_build_linear(qn_model *model, int32_t layer, int32_t in, int32_t out, int64_t column, int to_values,
                          const char *weight, qn_error *error)
{
    qn_operand target = {.place = to_values ? QN_PLACE_NEW_VALUES : QN_PLACE_REGISTER,
                         .index = to_values ? layer : out,
                         .offset = column * (int64_t)sizeof(float)};
    return add_multiply(model, layer, in, weight, target, error);
}

qn_status qn_build_output(qn_model *model, int32_t in, const char *weight, qn_error *error)
{
    return add_multiply(model, -1, in, weight, (qn_operand){.place = QN_PLACE_REGISTER, .index = -1}, error);
}

/* ---- The other operators ---- */

/* The factors of the model's frequencies, where it has scaled ones: one operand, whatever reads it. */
static void bind_factors(const qn_hparams *h, qn_op op, const char *slot, qn_operand in[QN_MAX_IN])
{
    if (h->rope_scaled) {
        const qn_shape shape = qn_shape_make(QN_F32, 1, h->head_dim / 2, 1, 1, 1);
        in[qn_op_in_slot(op, slot)] = constant(qn_view_make(h->rope_factors, &shape));
    }
}

qn_status qn_build_rope(qn_model *model, int32_t layer, int32_t in, int64_t column, int32_t out, int to_keys,
                        int32_t heads, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    qn_step *step = add_step(model, layer, QN_OP_ROPE, to_keys ? "keys" : "queries");
    if (!step) {
        return out_of_memory(error);
    }
    const qn_shape shape = qn_shape_make(QN_F32, 3, 1, heads, h->head_dim, 1);
    qn_operand *x = &step->in[qn_op_in_slot(QN_OP_ROPE, "x")];
    *x = in_register(in, shape);
    x->offset = column * (int64_t)sizeof(float);
    step->in[qn_op_in_slot(QN_OP_ROPE, "pos")] =
        (qn_operand){.place = QN_PLACE_POSITIONS, .shape = qn_shape_make(QN_I32, 1, 1, 1, 1, 1)};
    bind_factors(h, QN_OP_ROPE, "factors", step->in);
    step->out[0] = to_keys ? (qn_operand){.place = QN_PLACE_NEW_KEYS, .index = layer} : in_register(out, shape);
    qn_op_desc desc = describe(QN_OP_ROPE);
    desc.attr[QN_ATTR_THETA].f = h->rope_theta;
    desc.attr[QN_ATTR_STYLE].i = QN_ROPE_HALF;
    return plan_step(model, step, &desc, error);
}

/* The new rows of a cache: [M] rows of that shape. */
static qn_operand new_rows(int32_t layer, int values, size_t offset, qn_shape shape)
{
    return (qn_operand){.place = values ? QN_PLACE_NEW_VALUES : QN_PLACE_NEW_KEYS,
                        .index = layer,
                        .offset = (int64_t)offset,
                        .shape = shape};
}

static qn_operand recent(int32_t layer, int values, qn_shape shape)
{
    return (qn_operand){
        .place = values ? QN_PLACE_RECENT_VALUES : QN_PLACE_RECENT_KEYS, .index = layer, .whole = 1, .shape = shape};
}

/* Codes and scales of columns of in, a head a group. */
static qn_status keep_scaled(qn_model *model, int32_t layer, int32_t in, int64_t column, int values, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    qn_step *step = add_step(model, layer, QN_OP_QUANTIZE_FP8, values ? "values" : "keys");
    if (!step) {
        return out_of_memory(error);
    }
    qn_operand *x = &step->in[qn_op_in_slot(QN_OP_QUANTIZE_FP8, "x")];
    *x = in_register(in, rows_of(QN_F32, (int64_t)h->kv_heads * h->head_dim));
    x->offset = column * (int64_t)sizeof(float);
    const qn_shape any = {.format = QN_FORMAT_NONE}; /* set with the plan */
    step->out[qn_op_out_slot(QN_OP_QUANTIZE_FP8, "q")] = new_rows(layer, values, 0, any);
    step->out[qn_op_out_slot(QN_OP_QUANTIZE_FP8, "scale")] =
        new_rows(layer, values, qn_kv_scales_at(h->kv_heads, h->head_dim), any);
    qn_op_desc desc = describe(QN_OP_QUANTIZE_FP8);
    desc.attr[QN_ATTR_GRANULARITY].i = QN_PER_GROUP;
    desc.attr[QN_ATTR_GROUP].i = h->head_dim;
    return plan_step(model, step, &desc, error);
}

/* Codes of columns of in. */
static qn_status keep_coded(qn_model *model, int32_t layer, int32_t in, int64_t column, int values, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    qn_step *step = add_step(model, layer, QN_OP_VQ_ENCODE, values ? "values" : "keys");
    if (!step) {
        return out_of_memory(error);
    }
    qn_operand *x = &step->in[qn_op_in_slot(QN_OP_VQ_ENCODE, "x")];
    *x = in_register(in, qn_shape_make(QN_F32, 4, 1, 1, h->kv_heads, h->head_dim));
    x->offset = column * (int64_t)sizeof(float);
    step->in[qn_op_in_slot(QN_OP_VQ_ENCODE, "codebook")] = constant(*qn_kv_book(model, layer, values));
    step->out[0] = new_rows(layer, values, 0, (qn_shape){.format = QN_FORMAT_NONE});
    qn_op_desc desc = describe(QN_OP_VQ_ENCODE);
    return plan_step(model, step, &desc, error);
}

/* Columns of in as a cache of another format keeps them. */
static qn_status keep_rounded(qn_model *model, int32_t layer, int32_t in, int64_t column, int values, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    qn_step *step = add_step(model, layer, QN_OP_NONE, "");
    if (!step) {
        return out_of_memory(error);
    }
    const int64_t width = (int64_t)h->kv_heads * h->head_dim;
    step->copies = 1;
    step->in[0] = in_register(in, rows_of(QN_F32, width));
    step->in[0].offset = column * (int64_t)sizeof(float);
    step->out[0] = new_rows(layer, values, 0, rows_of(model->kv->format, width));
    return QN_OK;
}

/* Columns of in into the recent rows. */
static qn_status keep_recent(qn_model *model, int32_t layer, int32_t in, int64_t column, int values, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    qn_step *step = add_step(model, layer, QN_OP_NONE, "");
    if (!step) {
        return out_of_memory(error);
    }
    step->in[0] = in_register(in, rows_of(QN_F32, (int64_t)h->kv_heads * h->head_dim));
    step->in[0].offset = column * (int64_t)sizeof(float);
    step->out[0] = recent(layer, values, qn_shape_make(QN_F16, 3, 1, h->kv_heads, h->head_dim, 1));
    return QN_OK;
}

qn_status qn_build_keep(qn_model *model, int32_t layer, qn_columns keys, qn_columns values, int32_t rotated,
                        qn_error *error)
{
    const int32_t heads = qn_checkpoint_hparams(model->checkpoint)->kv_heads;
    QN_TRY(qn_build_rope(model, layer, keys.reg, keys.column, rotated, 0, heads, error));
    if (!qn_kv_lossy(model->kv)) {
        QN_TRY(keep_rounded(model, layer, rotated, 0, 0, error));
        return qn_build_values_apart(model) ? keep_rounded(model, layer, values.reg, values.column, 1, error) : QN_OK;
    }
    QN_TRY(keep_recent(model, layer, rotated, 0, 0, error));
    QN_TRY(keep_recent(model, layer, values.reg, values.column, 1, error));
    if (model->kv->scaled) {
        QN_TRY(keep_scaled(model, layer, rotated, 0, 0, error));
        return keep_scaled(model, layer, values.reg, values.column, 1, error);
    }
    QN_TRY(keep_coded(model, layer, keys.reg, keys.column, 0, error));
    return keep_coded(model, layer, values.reg, values.column, 1, error);
}

static qn_operand cached(int32_t layer, int values, size_t offset, qn_shape shape)
{
    return (qn_operand){
        .place = values ? QN_PLACE_VALUES : QN_PLACE_KEYS, .index = layer, .offset = (int64_t)offset, .shape = shape};
}

/* The operands that a KV scheme's attention reads beside q, and its attributes; planned for the longest context, so
 * that the workspace serves every length. */
static void bind_cache(const qn_model *model, int32_t layer, qn_step *step, qn_op_desc *desc)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    const qn_kv_scheme *kv = model->kv;
    static const char *const names[3][2] = {{"k", "v"}, {"k_codes", "v_codes"}, {"k_codebook", "v_codebook"}};
    for (int values = 0; values < 2; values++) {
        const int64_t rows = QN_KV_WINDOW + QN_WINDOW_BLOCK; /* at least; a session has as many as it needs */
        if (qn_kv_lossy(kv)) {
            step->in[qn_op_in_slot(step->op, values ? "v_recent" : "k_recent")] =
                recent(layer, values,
                       kv->channels ? qn_shape_make(QN_F16, 4, 1, rows, h->kv_heads, h->head_dim)
                                    : qn_shape_make(QN_F16, 3, rows, h->kv_heads, h->head_dim, 1));
        }
        if (kv->channels) {
            const qn_shape codes =
                qn_shape_make(QN_U8, 4, 1, h->context_length, h->kv_heads, h->head_dim / kv->channels);
            step->in[qn_op_in_slot(step->op, names[1][values])] = cached(layer, values, 0, codes);
            step->in[qn_op_in_slot(step->op, names[2][values])] = constant(*qn_kv_book(model, layer, values));
            continue;
        }
        step->in[qn_op_in_slot(step->op, names[0][values])] =
            cached(layer, values, 0, qn_shape_make(kv->format, 3, h->context_length, h->kv_heads, h->head_dim, 1));
        if (kv->scaled) {
            step->in[qn_op_in_slot(step->op, values ? "v_scale" : "k_scale")] =
                cached(layer, values, qn_kv_scales_at(h->kv_heads, h->head_dim),
                       qn_shape_make(QN_F32, 2, h->context_length, h->kv_heads, 1, 1));
        }
    }
    desc->attr[QN_ATTR_WINDOW].i = qn_kv_lossy(kv) ? QN_KV_WINDOW : 0;
    if (kv->channels) {
        step->in[qn_op_in_slot(step->op, "seq_lens")] =
            (qn_operand){.place = QN_PLACE_LENGTHS, .shape = qn_shape_make(QN_I32, 1, 1, 1, 1, 1)};
        bind_factors(h, step->op, "rope_factors", step->in);
        desc->attr[QN_ATTR_ROPE_THETA].f = h->rope_theta;
        desc->attr[QN_ATTR_STYLE].i = QN_ROPE_HALF;
    } else {
        desc->attr[QN_ATTR_OUT].i = QN_OUT_F32;
    }
}

qn_status qn_build_attention(qn_model *model, int32_t layer, int32_t in, int32_t out, int32_t sums, qn_error *error)
{
    const qn_hparams *h = qn_checkpoint_hparams(model->checkpoint);
    const qn_op op =
        model->kv->channels ? QN_OP_VQ_ATTENTION : (model->kv->scaled ? QN_OP_SCALED_ATTENTION : QN_OP_ATTENTION);
    qn_step *step = add_step(model, layer, op, "");
    if (!step) {
        return out_of_memory(error);
    }
    const qn_shape rows = qn_shape_make(QN_F32, 3, 1, h->heads, h->head_dim, 1);
    qn_op_desc desc = describe(op);
    if (h->rope_magnitude != 1.0f) { /* of queries and keys: scores have its square */
        const double magnitude = (double)h->rope_magnitude;
        desc.attr[QN_ATTR_SCALE].f = (float)(magnitude * magnitude / sqrt((double)h->head_dim));
    }
    step->in[qn_op_in_slot(op, "q")] = in_register(in, rows);
    bind_cache(model, layer, step, &desc);
    step->out[0] = in_register(out, rows);
    if (op == QN_OP_VQ_ATTENTION) {
        step->out[qn_op_out_slot(op, "lse")] = in_register(sums, rows_of(QN_F32, h->heads));
    }
    return plan_step(model, step, &desc, error);
}

qn_status qn_build_silu_mul(qn_model *model, int32_t layer, int32_t in, int32_t out, int64_t width, qn_error *error)
{
    qn_step *step = add_step(model, layer, QN_OP_SILU_MUL, "");
    if (!step) {
        return out_of_memory(error);
    }
    step->in[qn_op_in_slot(QN_OP_SILU_MUL, "x")] = in_register(in, rows_of(QN_F32, 2 * width));
    step->out[0] = in_register(out, rows_of(QN_F32, width));
    qn_op_desc desc = describe(QN_OP_SILU_MUL);
    desc.attr[QN_ATTR_OUT].i = QN_OUT_F32;
    return plan_step(model, step, &desc, error);
}

qn_status qn_build_copy(qn_model *model, int32_t layer, int32_t in, int64_t column, int32_t out, int64_t to_column,
                        int to_values, int64_t width, qn_error *error)
{
    qn_step *step = add_step(model, layer, QN_OP_NONE, "");
    if (!step) {
        return out_of_memory(error);
    }
    step->copies = 1;
    step->in[0] = in_register(in, rows_of(QN_F32, width));
    step->in[0].offset = column * (int64_t)sizeof(float);
    step->out[0] = in_register(out, rows_of(QN_F32, width));
    step->out[0].offset = to_column * (int64_t)sizeof(float);
    if (to_values) {
        step->out[0] = new_rows(layer, 1, 0, rows_of(model->kv->format, width));
    }
    return QN_OK;
}

qn_status qn_build_add(qn_model *model, int32_t layer, int32_t into, int32_t in, int64_t width, qn_error *error)
{
    qn_step *step = add_step(model, layer, QN_OP_NONE, "");
    if (!step) {
        return out_of_memory(error);
    }
    step->in[0] = in_register(in, rows_of(QN_F32, width));
    step->out[0] = in_register(into, rows_of(QN_F32, width));
    return QN_OK;
}
