/* Row-wise operators: quantise by token or group, silu_mul(_quant), rmsnorm, rope.
 *
 * A task takes TASK_ROWS rows whatever the number of threads. Each row is
 * decoded to f32 in the thread's scratch and worked on there; the operations are
 * those of the reference in the same order, except that silu's exp is an f32 one. */
#include "backend/cpu/run_rows.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/mm_fragment.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/ref.h"
#include "ref/slots.h"

#define TASK_ROWS 8
#define PAD_FLOATS 64

typedef struct rows_job {
    const qn_rows_impl *impl;
    const qn_op_desc *desc;
    const qn_args *args;
    int64_t rows, k;
    qn_mm_unpack_fn unpack_x;
    qn_mm_operand x;
    void (*row)(const struct rows_job *job, int64_t row, float *in, float *v);
    char *scratch;
    size_t scratch_bytes;
    const float *weights; /* rmsnorm: decoded */
    const double *turns;  /* rope: theta^(-2i/D) */
} rows_job;

static int64_t padded(int64_t k)
{
    return (k + PAD_FLOATS - 1) / PAD_FLOATS * PAD_FLOATS;
}

static char *out_at(const qn_mut_view *out, int64_t i)
{
    return (char *)out->data + i * out->strides[0];
}

static qn_mm_real real_of(qn_format format)
{
    return format == QN_F32 ? QN_MM_F32 : (format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
}

/* ---- quantising one group ---- */

typedef struct group_rule {
    float scale, factor; /* stored scale; what v is multiplied by or divided by */
    int multiply;
    int32_t azp;
} group_rule;

static float fp8_limit(int32_t type)
{
    return type == QN_TYPE_E4M3FNUZ ? 224.0f : (type == QN_TYPE_E5M2 ? 57344.0f : 448.0f);
}

/* Codes of n values; t: n floats of scratch. */
static void encode(const rows_job *job, int32_t type, const float *v, int64_t n, const group_rule *rule, float *t,
                   void *codes)
{
    const qn_rows_set *set = job->impl->set;
    const float limit = type == QN_TYPE_E4M3FNUZ ? 224.0f : 0.0f;
    set->divide(v, rule->factor, rule->multiply, limit, n, t);
    if (type == QN_TYPE_E4M3FN) {
        set->to_e4m3(t, n, codes);
    } else if (type != QN_TYPE_INT8) {
        qn_format_get_row(type == QN_TYPE_E5M2 ? QN_F8_E5M2 : QN_F8_E4M3FNUZ)->encode(t, n, codes);
    } else if (rule->azp >= -65536 && rule->azp <= 65536) {
        set->to_i8(t, n, rule->azp, codes);
    } else {
        for (int64_t i = 0; i < n; i++) { /* a static zero point of any size */
            const double r = isnan(t[i]) ? 0.0 : fmin(fmax(rint((double)t[i]), -0x1p31), 0x1p31 - 1);
            ((int8_t *)codes)[i] = (int8_t)fmin(fmax(r + (double)rule->azp, -128.0), 127.0);
        }
    }
}

static group_rule int8_asymmetric(float low, float high)
{
    group_rule rule = {.scale = (high - low) / 255.0f, .multiply = 1};
    if (rule.scale == 0.0f) {
        rule.scale = rule.factor = 1.0f;
        return rule;
    }
    const float z = rintf(-128.0f - low / rule.scale);
    rule.azp = isnan(z) ? 0 : (z < -128.0f ? -128 : (z > 127.0f ? 127 : (int32_t)z));
    rule.factor = 1.0f / rule.scale;
    return rule;
}

static group_rule fp8_rule(const qn_op_desc *desc, float amax)
{
    const float most = fp8_limit(desc->attr[QN_ATTR_TYPE].i), bound = desc->attr[QN_ATTR_SCALE_UB].f;
    amax = bound > 0.0f && amax > bound ? bound : amax;
    float s;
    if (desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP) {
        s = (amax > 1e-10f ? amax : 1e-10f) / most;
    } else {
        const float lowest = 1.0f / (most * 512.0f);
        s = amax / most;
        s = s > lowest ? s : lowest;
    }
    if (desc->attr[QN_ATTR_SCALE_FORMAT].i == QN_SCALE_UE8M0 && !isinf(s)) {
        s = qn_e8m0_to_f32(qn_f32_to_e8m0_ceil(s > 1e-10f ? s : 1e-10f));
    }
    return (group_rule){.scale = s, .factor = s};
}

static group_rule int8_rule(const qn_op_desc *desc, float low, float high)
{
    const float amax = high > -low ? high : -low;
    if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
        return int8_asymmetric(low, high);
    }
    if (desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP) {
        const float s = (amax > 1e-10f ? amax : 1e-10f) / 127.0f;
        return (group_rule){.scale = s, .factor = s};
    }
    return (group_rule){.scale = amax / 127.0f, .factor = amax == 0.0f ? 0.0f : 127.0f / amax, .multiply = 1};
}

static group_rule silu_rule(const qn_op_desc *desc, float low, float high)
{
    const int32_t type = desc->attr[QN_ATTR_TYPE].i;
    const float amax = high > -low ? high : -low, bound = desc->attr[QN_ATTR_SCALE_UB].f;
    if (!desc->attr[QN_ATTR_SYMMETRIC].i) {
        return int8_asymmetric(low, high);
    }
    const float most = type == QN_TYPE_INT8 ? 127.0f : fp8_limit(type);
    const float lowest = type == QN_TYPE_INT8 ? FLT_EPSILON : 1.0f / (most * 512.0f);
    float s = amax / most;
    s = bound > 0.0f && s > bound ? bound : s;
    s = s > lowest ? s : lowest;
    return (group_rule){.scale = s, .factor = s};
}

/* Scale (or zero point) of row m, group g as stored: [1], [M,groups] or [groups,M]. */
static size_t scale_offset(const qn_shape *shape, const int64_t *strides, int col, int64_t m, int64_t g)
{
    if (shape->ndim < 2) {
        return 0;
    }
    return (size_t)(col ? g * strides[0] + m * 4 : m * strides[0] + g * 4);
}

static group_rule given_rule(const rows_job *job, int int8, int col, int64_t m, int64_t g)
{
    const qn_view *scale = &job->args->in[QN_QUANT_SCALE], *azp = &job->args->in[QN_QUANT_AZP];
    group_rule rule = {0};
    memcpy(&rule.scale, (const char *)scale->data + scale_offset(&scale->shape, scale->strides, col, m, g), 4);
    rule.factor = rule.scale;
    if (!int8 || !job->desc->attr[QN_ATTR_SYMMETRIC].i) {
        rule.factor = 1.0f / rule.scale;
        rule.multiply = 1;
    }
    if (int8 && !job->desc->attr[QN_ATTR_SYMMETRIC].i) {
        memcpy(&rule.azp, (const char *)azp->data + scale_offset(&azp->shape, azp->strides, col, m, g), 4);
    }
    return rule;
}

static void put_rule(const rows_job *job, const group_rule *rule, int col, int64_t m, int64_t g)
{
    const qn_mut_view *scale = &job->args->out[QN_QUANT_OUT_SCALE], *azp = &job->args->out[QN_QUANT_OUT_AZP];
    if (scale->shape.ndim < 2 && m > 0) {
        return; /* one for all rows: the first row's task writes it */
    }
    memcpy((char *)scale->data + scale_offset(&scale->shape, scale->strides, col, m, g), &rule->scale, 4);
    if (azp->shape.format != QN_FORMAT_NONE) {
        memcpy((char *)azp->data + scale_offset(&azp->shape, azp->strides, col, m, g), &rule->azp, 4);
    }
}

/* All groups of a row of k floats; t: k floats of scratch. */
static void quantize_groups(const rows_job *job, int64_t m, const float *v, float *t)
{
    const qn_op_desc *desc = job->desc;
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL, silu = desc->op == QN_OP_SILU_MUL_QUANT;
    const int int8 = silu ? desc->attr[QN_ATTR_TYPE].i == QN_TYPE_INT8 : desc->op == QN_OP_QUANTIZE_INT8;
    const int32_t type = int8 ? QN_TYPE_INT8 : desc->attr[QN_ATTR_TYPE].i;
    const int grouped = silu ? desc->attr[QN_ATTR_GROUP].i > 0 : desc->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP;
    const int64_t group = grouped ? desc->attr[QN_ATTR_GROUP].i : qn_max_i64(job->k, 1);
    const int64_t groups = grouped ? qn_ceil_div(job->k, group) : 1;
    const int is_static = !silu && desc->attr[QN_ATTR_MODE].i == QN_STATIC;
    char *const codes = out_at(&job->args->out[QN_QUANT_OUT_Q], m);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t first = g * group, n = qn_min_i64(group, job->k - first);
        group_rule rule;
        if (is_static) {
            rule = given_rule(job, int8, col, m, g);
        } else {
            float low, high;
            job->impl->set->range(v + first, n, &low, &high);
            rule = silu ? silu_rule(desc, low, high)
                        : (int8 ? int8_rule(desc, low, high) : fp8_rule(desc, high > -low ? high : -low));
        }
        put_rule(job, &rule, col, m, g);
        encode(job, type, v + first, n, &rule, t, codes + first);
    }
}

/* ---- rows ---- */

static void quantize_row(const rows_job *job, int64_t m, float *in, float *v)
{
    job->unpack_x(&job->x, m, 0, job->k, in);
    quantize_groups(job, m, in, v);
}

static void silu_row(const rows_job *job, int64_t m, float *in, float *v)
{
    const int64_t half = padded(job->k);
    qn_mm_operand up = job->x;
    up.data = (const char *)up.data + job->k * job->x.block_bytes;
    job->unpack_x(&job->x, m, 0, job->k, in);
    job->unpack_x(&up, m, 0, job->k, in + half);
    job->impl->set->silu_mul(in, in + half, job->k, v);
    if (job->desc->op == QN_OP_SILU_MUL_QUANT) {
        quantize_groups(job, m, v, in);
    } else {
        const qn_mut_view *y = &job->args->out[QN_ACT_OUT_Y];
        job->impl->set->store(real_of(y->shape.format), v, job->k, out_at(y, m));
    }
}

static void rmsnorm_row(const rows_job *job, int64_t m, float *in, float *v)
{
    const qn_mut_view *y = &job->args->out[QN_ACT_OUT_Y];
    job->unpack_x(&job->x, m, 0, job->k, in);
    const double mean = job->impl->set->squares(in, job->k) / (double)job->k;
    const double factor = 1.0 / sqrt(mean + (double)job->desc->attr[QN_ATTR_EPS].f);
    job->impl->set->scale(in, factor, job->weights, job->k, v);
    job->impl->set->store(real_of(y->shape.format), v, job->k, out_at(y, m));
}

/* A row is a token: all its heads share the angles. in: a head and sines, v: a head. */
static void rope_row(const rows_job *job, int64_t m, float *in, float *v)
{
    const qn_view *x = &job->args->in[QN_ACT_X];
    const qn_mut_view *y = &job->args->out[QN_ACT_OUT_Y];
    const int64_t half = job->k / 2, heads = x->shape.dims[1];
    const int pairs = job->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED;
    double *const cosines = (double *)(void *)(in + padded(job->k)), *const sines = cosines + half;
    int32_t position;
    memcpy(&position, (const char *)job->args->in[QN_ACT_POS].data + m * 4, 4);
    for (int64_t i = 0; i < half; i++) {
        const double angle = (double)position * job->turns[i];
        cosines[i] = cos(angle);
        sines[i] = sin(angle);
    }
    for (int64_t h = 0; h < heads; h++) {
        qn_mm_operand head = job->x;
        head.data = (const char *)head.data + (heads > 1 ? h * x->strides[1] : 0);
        job->unpack_x(&head, m, 0, job->k, in);
        if (pairs) {
            job->impl->set->rotate(in, in + 1, cosines, sines, half, 2, v, v + 1);
        } else {
            job->impl->set->rotate(in, in + half, cosines, sines, half, 1, v, v + half);
        }
        memcpy(out_at(y, m) + (heads > 1 ? h * y->strides[1] : 0), v, (size_t)(2 * half) * 4);
    }
}

static void rows_task(void *user, int64_t index, int32_t thread)
{
    const rows_job *job = user;
    float *const in = (float *)(void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    float *const v = in + 3 * padded(job->k) + PAD_FLOATS;
    const int64_t last = qn_min_i64(job->rows, (index + 1) * TASK_ROWS);
    for (int64_t m = index * TASK_ROWS; m < last; m++) {
        job->row(job, m, in, v);
    }
}

/* ---- the kernel's functions ---- */

static int64_t row_elements(const qn_op_desc *desc)
{
    const qn_shape *x = &desc->in[0];
    const int64_t last = x->dims[x->ndim - 1];
    return desc->op == QN_OP_SILU_MUL || desc->op == QN_OP_SILU_MUL_QUANT ? last / 2 : last;
}

/* A thread: gate, up (or cosines and sines), values; before the threads: weights or angles. */
static size_t thread_bytes(int64_t k)
{
    return qn_size_mul(qn_size_add(qn_size_mul(4, qn_size_pad((size_t)k)), 2 * PAD_FLOATS), 4);
}

static size_t shared_bytes(int64_t k)
{
    return qn_size_mul(qn_size_add(qn_size_pad((size_t)k), PAD_FLOATS), 4);
}

size_t qn_rows_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    const int64_t k = row_elements(desc);
    return qn_size_add(shared_bytes(k), qn_size_mul((size_t)threads, thread_bytes(k)));
}

const char *qn_rows_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    if (desc->op != QN_OP_QUANTIZE_FP8 && desc->op != QN_OP_QUANTIZE_INT8) {
        return NULL;
    }
    switch (desc->attr[QN_ATTR_GRANULARITY].i) {
    case QN_PER_BLOCK: return "scales of 128x128 blocks span rows";
    case QN_PER_TENSOR:
        return desc->attr[QN_ATTR_MODE].i == QN_STATIC ? NULL : "the one scale has to be found over all rows first";
    default: return NULL;
    }
}

static void prepare(rows_job *job, const qn_run_call *call)
{
    float *const shared = call->workspace;
    const qn_view *x = &call->args->in[0];
    job->x = (qn_mm_operand){
        .data = x->data, .stride = x->strides[0], .block_bytes = qn_format_get_row(x->shape.format)->info.block_bytes};
    job->unpack_x = job->impl->mm->unpack[qn_mm_fragment_of(x->shape.format)];
    job->scratch = (char *)call->workspace + shared_bytes(job->k);
    job->scratch_bytes = thread_bytes(job->k);
    switch ((int)job->desc->op) {
    case QN_OP_RMSNORM: {
        const qn_view *w = &call->args->in[QN_ACT_W];
        const qn_mm_operand weights = {.data = w->data};
        job->impl->mm->unpack[qn_mm_fragment_of(w->shape.format)](&weights, 0, 0, job->k, shared);
        job->weights = shared;
        job->row = rmsnorm_row;
        break;
    }
    case QN_OP_ROPE: {
        double *const turns = call->workspace;
        for (int64_t i = 0; i < job->k / 2; i++) {
            turns[i] = pow((double)job->desc->attr[QN_ATTR_THETA].f, -2.0 * (double)i / (double)job->k);
        }
        job->turns = turns;
        job->row = rope_row;
        break;
    }
    case QN_OP_SILU_MUL:
    case QN_OP_SILU_MUL_QUANT: job->row = silu_row; break;
    default: job->row = quantize_row; break;
    }
}

void qn_rows_run(const qn_kernel *kernel, const qn_run_call *call)
{
    rows_job job = {.impl = kernel->impl,
                    .desc = call->desc,
                    .args = call->args,
                    .rows = call->args->in[0].shape.dims[0],
                    .k = row_elements(call->desc)};
    if (job.k == 0 && call->desc->op != QN_OP_QUANTIZE_FP8 && call->desc->op != QN_OP_QUANTIZE_INT8 &&
        call->desc->op != QN_OP_SILU_MUL_QUANT) {
        return;
    }
    if (job.rows == 0) {
        qn_ref_get(call->desc->op)(call->desc, call->args,
                                   call->workspace); /* one scale given for all is still copied */
        return;
    }
    prepare(&job, call);
    qn_parallel_for(call->exec, qn_ceil_div(job.rows, TASK_ROWS), rows_task, &job);
}
