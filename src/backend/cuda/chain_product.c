/* Products of a pass, and what stands around them, as launches of a chain (chain.c): matching, and the kernel that each
 * is for. */
#include "backend/cuda/chain_match.h"

#include <string.h>

#include "backend/cuda/vq.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { THREADS = 256 };

/* Registers of a thread allow that many quads of a row, and that many blocks of a multiprocessor (mm_few.cu); those of
 * a block that many floats of a row (mm_ring.cu). */
enum { MOST_ITEMS = 8, RESIDENT = 3, MOST_ROW = 1 << 15 };

/* Values of the parameter QUANT of kernels/cuda/mm_before.h. */
enum { QUANT_NONE = 0, QUANT_FP8, QUANT_FP8_GROUP, QUANT_INT8, QUANT_INT8_AZP, QUANT_NVFP4 };

/* ---- matching ---- */

const qn_chain_step *qn_cuda_operator_at(const qn_cuda_matcher *m, int32_t i, qn_op op)
{
    const qn_chain_step *s = i < m->count ? &m->steps[i] : NULL;
    return s && s->kind == QN_CHAIN_OPERATOR && s->desc->op == op ? s : NULL;
}

const void *qn_cuda_step_x(const qn_chain_step *s)
{
    return s->args.in[0].data;
}

/* Whether a step from `from` on reads what lies at data before it is written anew. */
int qn_cuda_is_needed(const qn_cuda_matcher *m, int32_t from, const void *data)
{
    for (int32_t i = from; data && i < m->count; i++) {
        const qn_args *args = &m->steps[i].args;
        for (int j = 0; j < QN_MAX_IN; j++) {
            if (args->in[j].data == data) {
                return 1;
            }
        }
        if (m->steps[i].kind == QN_CHAIN_ADD && args->out[0].data == data) {
            return 1;
        }
        for (int j = 0; j < QN_MAX_OUT; j++) {
            if (args->out[j].data == data) {
                return 0;
            }
        }
    }
    return 0;
}

int qn_cuda_outputs_needed(const qn_cuda_matcher *m, int32_t from, const qn_chain_step *s)
{
    for (int j = 0; j < QN_MAX_OUT; j++) {
        if (qn_cuda_is_needed(m, from, s->args.out[j].data)) {
            return 1;
        }
    }
    return 0;
}

static int is_product(const qn_chain_step *s)
{
    if (!s || s->kind != QN_CHAIN_OPERATOR) {
        return 0;
    }
    const qn_op op = s->desc->op;
    return op == QN_OP_DENSE_MM || op == QN_OP_SCALED_MM || op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_NVFP4_MM ||
           op == QN_OP_MXFP4_MM || op == QN_OP_VQ_MM;
}

int64_t qn_cuda_product_depth(const qn_op_desc *desc)
{
    switch (desc->op) {
    case QN_OP_NVFP4_MM: return desc->in[QN_NVMM_B].dims[1] * 2;
    case QN_OP_MXFP4_MM: return desc->in[QN_MXMM_B].dims[1] * 2;
    case QN_OP_BLOCK_SCALED_MM: return desc->in[QN_BMM_B].dims[1];
    case QN_OP_VQ_MM: return desc->in[QN_VQMM_X].dims[1];
    default: return desc->in[1].dims[1]; /* b of dense_mm and scaled_mm */
    }
}

/* The activations a product reads. */
static const qn_view *rows_of(const qn_chain_step *s)
{
    const int quantised = s->desc->op == QN_OP_NVFP4_MM && s->desc->in[QN_NVMM_A].format;
    return &s->args.in[quantised ? QN_NVMM_A : 0];
}

static int same_product(const qn_chain_step *a, const qn_chain_step *b)
{
    qn_op_desc with = *b->desc; /* the attributes of b, but for its rows */
    with.attr[QN_ATTR_OUT_FEATURES] = a->desc->attr[QN_ATTR_OUT_FEATURES];
    if (a->desc->op != b->desc->op || rows_of(a)->data != rows_of(b)->data ||
        qn_cuda_product_depth(a->desc) != qn_cuda_product_depth(b->desc) ||
        memcmp(a->desc->attr, with.attr, sizeof with.attr) != 0 ||
        (a->desc->op == QN_OP_VQ_MM && !qn_cuda_vq_few_alike(a->desc, b->desc))) {
        return 0;
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        const int weight = qn_op_get_info(a->desc->op)->in_count > i && qn_op_get_info(a->desc->op)->in[i].weight;
        if (a->desc->in[i].format != b->desc->in[i].format || (!weight && a->args.in[i].data != b->args.in[i].data)) {
            return 0;
        }
    }
    return 1;
}

int qn_cuda_dense_f32(const qn_view *v)
{
    return v->shape.format == QN_F32 && (uint64_t)(uintptr_t)v->data % 16 == 0;
}

/* How mm_before.h quantises as this step does; -1: it does not. */
static int32_t quant_of(const qn_chain_step *s)
{
    const qn_op_desc *d = s->desc;
    const int32_t granularity = d->attr[QN_ATTR_GRANULARITY].i;
    if (d->op == QN_OP_QUANTIZE_FP8) {
        if (d->attr[QN_ATTR_MODE].i != QN_DYNAMIC || d->attr[QN_ATTR_TYPE].i != QN_TYPE_E4M3FN ||
            d->attr[QN_ATTR_SCALE_UB].f > 0.0f || d->attr[QN_ATTR_SCALE_FORMAT].i != QN_SCALE_F32) {
            return -1;
        }
        return granularity == QN_PER_TOKEN                                      ? QUANT_FP8
               : granularity == QN_PER_GROUP && d->attr[QN_ATTR_GROUP].i == 128 ? QUANT_FP8_GROUP
                                                                                : -1;
    }
    if (d->op == QN_OP_QUANTIZE_INT8) {
        const int token = granularity == QN_PER_TOKEN && d->attr[QN_ATTR_MODE].i == QN_DYNAMIC;
        return !token ? -1 : d->attr[QN_ATTR_SYMMETRIC].i ? QUANT_INT8 : QUANT_INT8_AZP;
    }
    if (d->op == QN_OP_QUANTIZE_NVFP4) {
        return d->in[QN_FP4_GLOBAL].format && !d->attr[QN_ATTR_SWIZZLED].i ? QUANT_NVFP4 : -1;
    }
    if (d->op == QN_OP_SILU_MUL_QUANT && d->attr[QN_ATTR_SCALE_UB].f == 0.0f) {
        const int32_t group = d->attr[QN_ATTR_GROUP].i, type = d->attr[QN_ATTR_TYPE].i;
        if (type == QN_TYPE_INT8) {
            return group ? -1 : d->attr[QN_ATTR_SYMMETRIC].i ? QUANT_INT8 : QUANT_INT8_AZP;
        }
        return type != QN_TYPE_E4M3FN ? -1 : group == 0 ? QUANT_FP8 : group == 128 ? QUANT_FP8_GROUP : -1;
    }
    return -1;
}

/* The quantisation that a product's operator takes. */
static int fits(const qn_chain_step *mm, int32_t quant)
{
    switch (mm->desc->op) {
    case QN_OP_SCALED_MM:
        return mm->desc->in[QN_SMM_A].format == QN_I8 ? quant == QUANT_INT8 || quant == QUANT_INT8_AZP
                                                      : quant == QUANT_FP8;
    case QN_OP_BLOCK_SCALED_MM: return quant == QUANT_FP8_GROUP;
    case QN_OP_NVFP4_MM:
    case QN_OP_MXFP4_MM: { /* rows of 8-bit codes are for a plan */
        const int32_t rows = qn_cuda_row_format(mm->desc);
        return rows == QN_MM_PLAIN ? quant == QUANT_NONE : rows == QN_MM_A_NVFP4 && quant == QUANT_NVFP4;
    }
    default: return quant == QUANT_NONE;
    }
}

/* Whether step i adds a bias to a product's results, which are used by nothing before. */
static int is_bias(const qn_cuda_matcher *m, int32_t i, const qn_chain_step *mm)
{
    const qn_chain_step *s = i < m->count ? &m->steps[i] : NULL;
    const qn_mut_view *d = &mm->args.out[0];
    return s && s->kind == QN_CHAIN_ADD && s->args.in[0].strides[0] == 0 && s->args.out[0].data == d->data &&
           d->shape.format == QN_F32 && s->args.in[0].shape.dims[1] == d->shape.dims[1];
}

/* Take step *i as one more product of p, with its bias. */
static int take_product(const qn_cuda_matcher *m, int32_t *i, qn_cuda_product *p)
{
    const qn_chain_step *mm = *i < m->count ? &m->steps[*i] : NULL;
    if (p->parts == QN_CUDA_MM_PARTS || !is_product(mm)) {
        return 0;
    }
    const int biased = is_bias(m, *i + 1, mm);
    if (p->parts > 0 && (biased != (p->bias[0] != NULL) || !same_product(p->mm[0], mm))) {
        return 0;
    }
    p->bias[p->parts] = biased ? mm + 1 : NULL;
    p->mm[p->parts++] = mm;
    *i += 1 + biased;
    return 1;
}

/* Whether step i does nothing but bring a product's results to the cache's row at the position. */
static int is_kept(const qn_cuda_matcher *m, int32_t i, const qn_chain_step *mm)
{
    const qn_chain_step *s = &m->steps[i];
    const qn_mut_view *d = &mm->args.out[0];
    return s->kind == QN_CHAIN_COPY && s->cached_out & 1 && s->args.out[0].shape.format == QN_F32 &&
           qn_cuda_step_x(s) == d->data && !mm->cached_out && d->shape.format == QN_F32 &&
           s->args.in[0].shape.dims[1] == d->shape.dims[1] && !qn_cuda_is_needed(m, i + 1, d->data);
}

/* Match a product from step i on, its rows made by `from` (an attention; NULL: the steps themselves say). */
int qn_cuda_match_product(const qn_cuda_matcher *m, int32_t i, const qn_chain_step *from, qn_cuda_product *p)
{
    memset(p, 0, sizeof *p);
    const int32_t start = i;
    p->before = from;
    p->pre = from ? QN_CUDA_PRE_ATTENTION : QN_CUDA_PRE_NONE;
    if (!from) {
        const qn_chain_step *norm = qn_cuda_operator_at(m, i, QN_OP_RMSNORM),
                            *silu = qn_cuda_operator_at(m, i, QN_OP_SILU_MUL);
        const qn_chain_step *both = qn_cuda_operator_at(m, i, QN_OP_SILU_MUL_QUANT);
        if (norm || silu || both) {
            p->before = norm ? norm : silu ? silu : both;
            p->pre = norm ? QN_CUDA_PRE_NORM : QN_CUDA_PRE_SILU;
            i++;
        }
        if (both) {
            p->quantize = both;
            p->floors = 1;
        }
    }
    if (p->before && (!qn_cuda_dense_f32(&p->before->args.in[0]) ||
                      (p->pre == QN_CUDA_PRE_NORM && !qn_cuda_dense_f32(&p->before->args.in[QN_ACT_W])))) {
        return 0;
    }
    const void *row = p->before && !p->quantize ? p->before->args.out[0].data : NULL;
    p->rounded = p->before && !p->quantize ? p->before->args.out[0].shape.format : QN_F32;
    if (!p->quantize && i < m->count && m->steps[i].kind == QN_CHAIN_OPERATOR && quant_of(&m->steps[i]) > 0 &&
        m->steps[i].desc->op != QN_OP_SILU_MUL_QUANT) {
        p->quantize = &m->steps[i++];
        if ((row && qn_cuda_step_x(p->quantize) != row) || (!row && !qn_cuda_dense_f32(&p->quantize->args.in[0]))) {
            return 0;
        }
    }
    p->quant = p->quantize ? quant_of(p->quantize) : QUANT_NONE;
    const qn_chain_step *mm = i < m->count ? &m->steps[i] : NULL;
    const void *input = p->quantize ? p->quantize->args.out[0].data : row;
    if (p->quant < 0 || !is_product(mm) || !fits(mm, p->quant) || (input && rows_of(mm)->data != input) ||
        (!input && !qn_cuda_dense_f32(rows_of(mm)))) {
        return 0;
    }
    while (take_product(m, &i, p)) {
    }
    if (p->parts == 1 && i < m->count && m->steps[i].kind == QN_CHAIN_ADD &&
        qn_cuda_step_x(&m->steps[i]) == mm->args.out[0].data && mm->args.out[0].shape.format == QN_F32 &&
        !qn_cuda_is_needed(m, i + 1, mm->args.out[0].data)) {
        p->add = &m->steps[i++];
    }
    if (i < m->count && is_kept(m, i, p->mm[p->parts - 1])) {
        p->copy = &m->steps[i++];
    }
    if ((p->before && qn_cuda_outputs_needed(m, i, p->before)) ||
        (p->quantize && qn_cuda_outputs_needed(m, i, p->quantize))) {
        return 0;
    }
    p->taken = i - start;
    return 1;
}

static qn_cuda_mm product_arguments(const qn_cuda_matcher *m, const qn_cuda_product *p)
{
    qn_cuda_mm a;
    memset(&a, 0, sizeof a);
    for (int32_t i = 0; i < p->parts; i++) {
        const qn_chain_step *mm = p->mm[i];
        a.part[i] = qn_cuda_mm_part_of(mm->desc, &mm->args);
        a.part[i].d_position = mm->cached_out & 1 ? mm->args.out[0].strides[0] : 0;
        if (p->bias[i]) {
            a.part[i].bias = p->bias[i]->args.in[0].data;
        }
        a.n += a.part[i].n;
    }
    if (p->add) {
        a.part[0].d = p->add->args.out[0].data;
    }
    if (p->copy) {
        a.part[p->parts - 1].d = p->copy->args.out[0].data;
        a.part[p->parts - 1].d_position = p->copy->args.out[0].strides[0];
    }
    a.m = 1;
    a.k = (int32_t)qn_cuda_product_depth(p->mm[0]->desc);
    a.position = m->position;
    a.x = p->before ? p->before->args.in[0].data : p->quantize ? p->quantize->args.in[0].data : rows_of(p->mm[0])->data;
    if (p->pre == QN_CUDA_PRE_NORM) {
        a.norm = p->before->args.in[QN_ACT_W].data;
        a.eps = p->before->desc->attr[QN_ATTR_EPS].f;
    }
    if (p->quant == QUANT_NVFP4) {
        a.x_global = p->quantize->args.in[QN_FP4_GLOBAL].data;
    }
    return a;
}

/* What stands before a product, and whether it is added. */
static void define_before(const qn_cuda_product *p, qn_cuda_program *program)
{
    qn_cuda_define(program, "X_FORMAT", 0);
    qn_cuda_define(program, "PRE", p->pre);
    qn_cuda_define(program, "ROUND", qn_cuda_float_format(p->rounded));
    qn_cuda_define(program, "QUANT", p->quant);
    qn_cuda_define(program, "FLOORS", p->floors);
    qn_cuda_define(program, "ADD", p->add != NULL);
}

/* Products of E8P12 weights between transforms. */
static qn_status make_points(const qn_cuda_matcher *m, const qn_cuda_product *p, qn_cuda_chain_launch *l, int *possible,
                             qn_error *error)
{
    qn_cuda_mm_points *a = &l->arguments.points;
    qn_cuda_program program;
    memset(&program, 0, sizeof program);
    memset(a, 0, sizeof *a);
    a->mm = product_arguments(m, p);
    for (int32_t i = 0; i < p->parts; i++) {
        qn_cuda_mm_points_bind(p->mm[i]->desc, &p->mm[i]->args, i, a);
    }
    l->geometry = qn_cuda_mm_points_define(p->mm[0]->desc, a, p->parts, &program);
    *possible = program.shared_bytes <= m->cuda->device.shared_bytes - 2048;
    if (!*possible) {
        return QN_OK;
    }
    define_before(p, &program);
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

static int points_take(const qn_cuda_matcher *m, const qn_cuda_product *p)
{
    for (int32_t i = 0; i < p->parts; i++) {
        if (p->mm[i]->desc->op != QN_OP_VQ_MM ||
            !qn_cuda_mm_points_takes(p->mm[i]->desc, &p->mm[i]->args, &m->cuda->device)) {
            return 0;
        }
    }
    return 1;
}

/* Whether vectors of weights are cheaper in a chain than by the kernels of their plans. */
static int pays(const qn_cuda_matcher *m, const qn_cuda_product *p, const qn_cuda_mm *a, const qn_cuda_few *few)
{
    const qn_op_desc *descs[QN_CUDA_MM_PARTS] = {NULL};
    for (int32_t i = 0; i < p->parts; i++) {
        descs[i] = p->mm[i]->desc;
    }
    const int32_t beside = (p->before != NULL) + (p->add != NULL) + (p->copy != NULL);
    const int32_t raws = few->columns * few->steps * qn_cuda_weight_unit(qn_cuda_weight_format(descs[0]));
    return qn_cuda_vq_few_pays(descs, p->parts, beside, a, few, raws > 32 ? 2 : RESIDENT, m->cuda);
}

/* A product by mm_few.cu; 0: it is not for that. */
static int define_few(const qn_cuda_matcher *m, const qn_cuda_product *p, const qn_cuda_mm *a, qn_cuda_program *program,
                      qn_cuda_geometry *geometry)
{
    const qn_op_desc *desc = p->mm[0]->desc;
    const int32_t sms = m->cuda->device.sms, items = (int32_t)qn_ceil_div(a->k, 4 * THREADS);
    if (p->silu || items > MOST_ITEMS) {
        return 0;
    }
    const qn_cuda_few few = qn_cuda_few_shape(qn_cuda_weight_format(desc), a->n, a->k, 1, 1, sms);
    program->source = "mm_few.cu";
    program->entry = "qn_mm_few";
    program->shared_bytes = few.shared_bytes;
    if (desc->op == QN_OP_VQ_MM) {
        for (int32_t i = 0; i < p->parts; i++) {
            if (!qn_cuda_vq_few_takes(p->mm[i]->desc, &p->mm[i]->args, a->n)) {
                return 0;
            }
        }
        if (!pays(m, p, a, &few)) {
            return 0;
        }
        program->shared_bytes += qn_cuda_vq_few_define(desc, a, few.columns * (THREADS / 32 / few.split), program);
    }
    qn_cuda_few_define(&few, 1, program);
    qn_cuda_define(program, "CHAIN", 1);
    qn_cuda_define(program, "ITEMS", items);
    const int64_t blocks = qn_min_i64(qn_cuda_few_blocks(&few, a->n), (int64_t)sms * RESIDENT);
    *geometry = (qn_cuda_geometry){.grid = {(uint32_t)blocks, 1, 1}, .block = {THREADS, 1, 1}};
    return 1;
}

/* The same by mm_ring.cu, where the row is of numbers that its operand is made of and registers of a block hold it. */
static int define_ring(const qn_cuda_matcher *m, const qn_cuda_product *p, const qn_cuda_mm *a,
                       qn_cuda_program *program, qn_cuda_geometry *geometry)
{
    const int32_t format = qn_cuda_weight_format(p->mm[0]->desc);
    const int fp4 = format == QN_MM_NVFP4 || format == QN_MM_MXFP4;
    const qn_format x = fp4 || format == QN_MM_BF16 ? QN_BF16 : format == QN_MM_F16 ? QN_F16 : QN_FORMAT_NONE;
    const int exact = x == QN_FORMAT_NONE || p->rounded == x || p->quant == QUANT_NVFP4;
    const int two =
        p->pre == QN_CUDA_PRE_NORM || p->pre == QN_CUDA_PRE_SILU; /* the row and its gains, or its other half */
    const qn_cuda_ring ring = qn_cuda_ring_shape(format, a->part, p->parts, a->n, a->k, &m->cuda->device);
    if (!ring.threads || !exact || a->k > MOST_ROW / (1 + two)) {
        return 0;
    }
    qn_cuda_ring_define(&ring, program);
    qn_cuda_define(program, "SILU", p->silu);
    qn_cuda_define(program, "ITEMS", qn_ceil_div(a->k, 4 * ring.threads));
    const int64_t tiles = qn_ceil_div(a->n, QN_MM_RING_COLUMNS);
    *geometry = (qn_cuda_geometry){.grid = {(uint32_t)qn_min_i64(tiles, m->cuda->device.sms), 1, 1},
                                   .block = {(uint32_t)ring.threads, 1, 1}};
    return 1;
}

/* The launch of a product; *possible 0: its weights or sizes are not for a chain's kernels. */
qn_status qn_cuda_make_product(const qn_cuda_matcher *m, const qn_cuda_product *p, qn_cuda_chain_launch *l,
                               int *possible, qn_error *error)
{
    if (!p->silu && points_take(m, p)) {
        return make_points(m, p, l, possible, error);
    }
    qn_cuda_mm *a = &l->arguments.mm;
    *a = product_arguments(m, p);
    const qn_op_desc *desc = p->mm[0]->desc;
    const int32_t format = qn_cuda_weight_format(desc);
    *possible = format >= 0;
    for (int32_t i = 0; i < p->parts && *possible; i++) {
        *possible = qn_cuda_mm_aligned(format, &a->part[i], a->k);
    }
    qn_cuda_program program;
    memset(&program, 0, sizeof program);
    *possible =
        *possible && (define_ring(m, p, a, &program, &l->geometry) || define_few(m, p, a, &program, &l->geometry));
    if (!*possible || program.shared_bytes > m->cuda->device.shared_bytes - 2048) {
        *possible = 0;
        return QN_OK;
    }
    static const int32_t act[] = {QN_MM_PLAIN, QN_MM_A_E4M3, QN_MM_A_BLOCK, QN_MM_A_I8, QN_MM_A_I8, QN_MM_A_NVFP4};
    qn_cuda_mm_define(desc, p->bias[0] ? QN_F32 : qn_cuda_mm_bias(desc), &program);
    qn_cuda_define(&program, "A_FORMAT", act[p->quant]);
    qn_cuda_define(&program, "ALIGNED", 1);
    define_before(p, &program);
    l->geometry.shared_bytes = (uint32_t)program.shared_bytes;
    l->geometry.dependent = 1;
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}
