/* Chains: neighbouring steps of a decoding pass, of one row, as few launches.
 *
 *   lookup                                          embed.cu
 *   add; add, rmsnorm                               add.cu; rmsnorm.cu
 *   [rmsnorm | silu_mul | silu_mul_quant] [quantize]
 *     1 to 3 products of the same rows, each with the
 *     sum of its bias where its operator has none
 *     [add, or the last one's copy to the cache]    mm_few.cu, mm_ring.cu
 *   two products by large weights, silu_mul of them
 *     before the next                               mm_ring.cu twice
 *   [rmsnorm, rmsnorm of heads] rope, rope into the
 *     cache, attention; then such a product, or not decode.cu, mm_few.cu
 *   the same over codes                             decode_scaled.cu, decode_coded.cu (chain_kv.c), mm_few.cu
 *   what keeps keys and values otherwise            chain_kv.c
 *
 * A pattern is taken when nothing after it reads what its kernels leave out. Every kernel is launched so that it may
 * start while the one before drains, and loads its weights meanwhile. */
#include <math.h>
#include <string.h>

#include "backend/cuda/chain.h"
#include "backend/cuda/vq.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { THREADS = 256, LOOKUP_THREADS = 128, DECODE_THREADS = 128, JOIN_THREADS = 256 };
enum { PART_KEYS = 128, MOST_HEAD = 128, TOGETHER_HEAD = 128, MOST_TOGETHER = 8 };
enum { NORM_THREADS = 1024, NORM_ITEMS = 4, JOINED_APART = 1 << 14 };
enum { LOOKUP_LEAST = 8, MOST_GRID_Y = 65535, LOOKUPS = 2 * (QN_MM_I8_K + 1) };

/* Registers of a thread allow that many quads of a row, and that many blocks of a multiprocessor (mm_few.cu); those of
 * a block that many floats of a row (mm_ring.cu). */
enum { MOST_ITEMS = 8, RESIDENT = 3, MOST_ROW = 1 << 15 };

/* Values of the parameters of kernels/cuda/mm_before.h. */
enum { PRE_NONE = 0, PRE_NORM, PRE_SILU, PRE_ATTENTION };
enum { QUANT_NONE = 0, QUANT_FP8, QUANT_FP8_GROUP, QUANT_INT8, QUANT_INT8_AZP, QUANT_NVFP4 };

/* What a pattern is matched in. */
typedef struct matcher {
    const qn_chain_step *steps;
    int32_t count;
    const int32_t *position;
    qn_cuda *cuda;
    const qn_chain_step *norms; /* two, of the heads of the query and of the key, in front of steps; NULL: none */
} matcher;

static const qn_chain_step *operator_at(const matcher *m, int32_t i, qn_op op)
{
    const qn_chain_step *s = i < m->count ? &m->steps[i] : NULL;
    return s && s->kind == QN_CHAIN_OPERATOR && s->desc->op == op ? s : NULL;
}

static const void *x_of(const qn_chain_step *s)
{
    return s->args.in[0].data;
}

/* Whether a step from `from` on reads what lies at data before it is written anew. */
static int is_needed(const matcher *m, int32_t from, const void *data)
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

static int outputs_needed(const matcher *m, int32_t from, const qn_chain_step *s)
{
    for (int j = 0; j < QN_MAX_OUT; j++) {
        if (is_needed(m, from, s->args.out[j].data)) {
            return 1;
        }
    }
    return 0;
}

/* ---- products ---- */

static int is_product(const qn_chain_step *s)
{
    if (!s || s->kind != QN_CHAIN_OPERATOR) {
        return 0;
    }
    const qn_op op = s->desc->op;
    return op == QN_OP_DENSE_MM || op == QN_OP_SCALED_MM || op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_NVFP4_MM ||
           op == QN_OP_MXFP4_MM || op == QN_OP_VQ_MM;
}

static int64_t depth_of(const qn_op_desc *desc)
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

/* A product, or a few neighbours that read the same rows and differ in weights alone, and what stands around. */
typedef struct product {
    const qn_chain_step *before, *quantize, *mm[QN_CUDA_MM_PARTS], *add, *copy; /* copy: of the last one's results */
    const qn_chain_step *bias[QN_CUDA_MM_PARTS]; /* sums of biases that mm has no place for: all or none */
    int32_t parts, taken, pre, quant, floors;
    int32_t silu;      /* 1: of two weights, whose results become silu_mul of them */
    qn_format rounded; /* of the row before its quantisation */
} product;

static int same_product(const qn_chain_step *a, const qn_chain_step *b)
{
    qn_op_desc with = *b->desc; /* the attributes of b, but for its rows */
    with.attr[QN_ATTR_OUT_FEATURES] = a->desc->attr[QN_ATTR_OUT_FEATURES];
    if (a->desc->op != b->desc->op || rows_of(a)->data != rows_of(b)->data || depth_of(a->desc) != depth_of(b->desc) ||
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

static int dense_f32(const qn_view *v)
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
static int is_bias(const matcher *m, int32_t i, const qn_chain_step *mm)
{
    const qn_chain_step *s = i < m->count ? &m->steps[i] : NULL;
    const qn_mut_view *d = &mm->args.out[0];
    return s && s->kind == QN_CHAIN_ADD && s->args.in[0].strides[0] == 0 && s->args.out[0].data == d->data &&
           d->shape.format == QN_F32 && s->args.in[0].shape.dims[1] == d->shape.dims[1];
}

/* Take step *i as one more product of p, with its bias. */
static int take_product(const matcher *m, int32_t *i, product *p)
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
static int is_kept(const matcher *m, int32_t i, const qn_chain_step *mm)
{
    const qn_chain_step *s = &m->steps[i];
    const qn_mut_view *d = &mm->args.out[0];
    return s->kind == QN_CHAIN_COPY && s->cached_out & 1 && x_of(s) == d->data && !mm->cached_out &&
           d->shape.format == QN_F32 && s->args.in[0].shape.dims[1] == d->shape.dims[1] &&
           !is_needed(m, i + 1, d->data);
}

/* Match a product from step i on, its rows made by `from` (an attention; NULL: the steps themselves say). */
static int match_product(const matcher *m, int32_t i, const qn_chain_step *from, product *p)
{
    memset(p, 0, sizeof *p);
    const int32_t start = i;
    p->before = from;
    p->pre = from ? PRE_ATTENTION : PRE_NONE;
    if (!from) {
        const qn_chain_step *norm = operator_at(m, i, QN_OP_RMSNORM), *silu = operator_at(m, i, QN_OP_SILU_MUL);
        const qn_chain_step *both = operator_at(m, i, QN_OP_SILU_MUL_QUANT);
        if (norm || silu || both) {
            p->before = norm ? norm : silu ? silu : both;
            p->pre = norm ? PRE_NORM : PRE_SILU;
            i++;
        }
        if (both) {
            p->quantize = both;
            p->floors = 1;
        }
    }
    if (p->before &&
        (!dense_f32(&p->before->args.in[0]) || (p->pre == PRE_NORM && !dense_f32(&p->before->args.in[QN_ACT_W])))) {
        return 0;
    }
    const void *row = p->before && !p->quantize ? p->before->args.out[0].data : NULL;
    p->rounded = p->before && !p->quantize ? p->before->args.out[0].shape.format : QN_F32;
    if (!p->quantize && i < m->count && m->steps[i].kind == QN_CHAIN_OPERATOR && quant_of(&m->steps[i]) > 0 &&
        m->steps[i].desc->op != QN_OP_SILU_MUL_QUANT) {
        p->quantize = &m->steps[i++];
        if ((row && x_of(p->quantize) != row) || (!row && !dense_f32(&p->quantize->args.in[0]))) {
            return 0;
        }
    }
    p->quant = p->quantize ? quant_of(p->quantize) : QUANT_NONE;
    const qn_chain_step *mm = i < m->count ? &m->steps[i] : NULL;
    const void *input = p->quantize ? p->quantize->args.out[0].data : row;
    if (p->quant < 0 || !is_product(mm) || !fits(mm, p->quant) || (input && rows_of(mm)->data != input) ||
        (!input && !dense_f32(rows_of(mm)))) {
        return 0;
    }
    while (take_product(m, &i, p)) {
    }
    if (p->parts == 1 && i < m->count && m->steps[i].kind == QN_CHAIN_ADD &&
        x_of(&m->steps[i]) == mm->args.out[0].data && mm->args.out[0].shape.format == QN_F32 &&
        !is_needed(m, i + 1, mm->args.out[0].data)) {
        p->add = &m->steps[i++];
    }
    if (i < m->count && is_kept(m, i, p->mm[p->parts - 1])) {
        p->copy = &m->steps[i++];
    }
    if ((p->before && outputs_needed(m, i, p->before)) || (p->quantize && outputs_needed(m, i, p->quantize))) {
        return 0;
    }
    p->taken = i - start;
    return 1;
}

static qn_cuda_mm product_arguments(const matcher *m, const product *p)
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
    a.k = (int32_t)depth_of(p->mm[0]->desc);
    a.position = m->position;
    a.x = p->before ? p->before->args.in[0].data : p->quantize ? p->quantize->args.in[0].data : rows_of(p->mm[0])->data;
    if (p->pre == PRE_NORM) {
        a.norm = p->before->args.in[QN_ACT_W].data;
        a.eps = p->before->desc->attr[QN_ATTR_EPS].f;
    }
    if (p->quant == QUANT_NVFP4) {
        a.x_global = p->quantize->args.in[QN_FP4_GLOBAL].data;
    }
    return a;
}

/* What stands before a product, and whether it is added. */
static void define_before(const product *p, qn_cuda_program *program)
{
    qn_cuda_define(program, "X_FORMAT", 0);
    qn_cuda_define(program, "PRE", p->pre);
    qn_cuda_define(program, "ROUND", qn_cuda_float_format(p->rounded));
    qn_cuda_define(program, "QUANT", p->quant);
    qn_cuda_define(program, "FLOORS", p->floors);
    qn_cuda_define(program, "ADD", p->add != NULL);
}

/* Products of E8P12 weights between transforms. */
static qn_status make_points(const matcher *m, const product *p, qn_cuda_chain_launch *l, int *possible,
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

static int points_take(const matcher *m, const product *p)
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
static int pays(const matcher *m, const product *p, const qn_cuda_mm *a, const qn_cuda_few *few)
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
static int define_few(const matcher *m, const product *p, const qn_cuda_mm *a, qn_cuda_program *program,
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
static int define_ring(const matcher *m, const product *p, const qn_cuda_mm *a, qn_cuda_program *program,
                       qn_cuda_geometry *geometry)
{
    const int32_t format = qn_cuda_weight_format(p->mm[0]->desc);
    const int fp4 = format == QN_MM_NVFP4 || format == QN_MM_MXFP4;
    const qn_format x = fp4 || format == QN_MM_BF16 ? QN_BF16 : format == QN_MM_F16 ? QN_F16 : QN_FORMAT_NONE;
    const int exact = x == QN_FORMAT_NONE || p->rounded == x || p->quant == QUANT_NVFP4;
    const int two = p->pre == PRE_NORM || p->pre == PRE_SILU; /* the row and its gains, or its other half */
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
static qn_status make_product(const matcher *m, const product *p, qn_cuda_chain_launch *l, int *possible,
                              qn_error *error)
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

/* ---- attention ---- */

/* Norms of the heads of the query and of the key, where steps begin with them; 0: they are none that the kernels of an
 * attention do for themselves. */
static int match_head_norms(const matcher *m)
{
    const qn_chain_step *norms[2] = {operator_at(m, 0, QN_OP_RMSNORM), operator_at(m, 1, QN_OP_RMSNORM)};
    for (int i = 0; i < 2; i++) {
        const qn_chain_step *norm = norms[i], *rope = operator_at(m, 2 + i, QN_OP_ROPE);
        if (!norm || !rope) {
            return 0;
        }
        const int64_t *dims = rope->desc->in[0].dims, heads = dims[1], size = dims[2];
        const qn_view *x = &norm->args.in[0];
        if (!dense_f32(x) || !dense_f32(&norm->args.in[QN_ACT_W]) || norm->args.out[0].shape.format != QN_F32 ||
            norm->args.out[0].data != x_of(rope) || x->shape.dims[0] != heads || x->shape.dims[1] != size ||
            x->strides[0] != size * 4 || norm->desc->attr[QN_ATTR_EPS].f != norms[0]->desc->attr[QN_ATTR_EPS].f) {
            return 0;
        }
    }
    return 1;
}

qn_cuda_head_norms qn_cuda_head_norms_of(const qn_chain_step *norms)
{
    if (!norms) {
        return (qn_cuda_head_norms){NULL, NULL, 0.0f};
    }
    return (qn_cuda_head_norms){.q = norms[0].args.in[QN_ACT_W].data,
                                .k = norms[1].args.in[QN_ACT_W].data,
                                .eps = norms[0].desc->attr[QN_ATTR_EPS].f};
}

/* The three steps before an attention's product; 1: they are what decode.cu does. */
static int match_attention(const matcher *m)
{
    const qn_chain_step *query = operator_at(m, 0, QN_OP_ROPE), *key = operator_at(m, 1, QN_OP_ROPE);
    const qn_chain_step *attention = operator_at(m, 2, QN_OP_ATTENTION);
    if (!query || !key || !attention || !(key->cached_out & 1) || query->cached_out) {
        return 0;
    }
    const qn_op_desc *d = attention->desc;
    const int64_t size = d->in[QN_ATT_Q].dims[2], step = size * 4;
    const qn_args *args = &attention->args;
    const int f32 = d->in[QN_ATT_Q].format == QN_F32 && d->in[QN_ATT_K].format == QN_F32 &&
                    d->in[QN_ATT_V].format == QN_F32 && query->desc->in[0].format == QN_F32 &&
                    key->desc->in[0].format == QN_F32;
    const int same_turn =
        memcmp(query->desc->attr, key->desc->attr, sizeof key->desc->attr) == 0 &&
        qn_cuda_factors(&query->args.in[QN_ACT_FACTORS]) == qn_cuda_factors(&key->args.in[QN_ACT_FACTORS]) &&
        query->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_HALF;
    const int dense = query->args.in[0].strides[1] == step && key->args.in[0].strides[1] == step &&
                      args->in[QN_ATT_K].strides[1] == step && args->in[QN_ATT_V].strides[1] == step &&
                      args->in[QN_ATT_K].strides[0] == args->in[QN_ATT_V].strides[0];
    return f32 && same_turn && dense && size % 8 == 0 && size <= MOST_HEAD && d->attr[QN_ATTR_CAUSAL].i &&
           attention->cached_in == (1u << QN_ATT_K | 1u << QN_ATT_V) &&
           args->in[QN_ATT_Q].data == query->args.out[0].data && args->in[QN_ATT_K].data == key->args.out[0].data &&
           !is_needed(m, 3, query->args.out[0].data) && (uint64_t)args->in[QN_ATT_K].strides[0] % 16 == 0 &&
           ((uint64_t)(uintptr_t)args->in[QN_ATT_K].data | (uint64_t)(uintptr_t)args->in[QN_ATT_V].data) % 16 == 0;
}

/* Query heads of a block: where heads are long all that share a key head, or as many as have room; of short ones each
 * by itself, as few keys take longer in fewer blocks. */
static int64_t queries_together(int64_t group, int64_t size)
{
    int64_t together = size < TOGETHER_HEAD ? 1 : qn_min_i64(group, MOST_TOGETHER);
    while (group % together != 0) {
        together--;
    }
    return together;
}

static void decode_program(int64_t size, int64_t together, int normed, const char *entry, qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = "decode.cu";
    program->entry = entry;
    qn_cuda_define(program, "SIZE", size);
    qn_cuda_define(program, "GROUP", together);
    qn_cuda_define(program, "NORM", normed);
}

static qn_status make_attention(const matcher *m, int64_t parts, qn_chain *chain, qn_error *error)
{
    const qn_chain_step *query = &m->steps[0], *key = &m->steps[1], *attention = &m->steps[2];
    const qn_op_desc *d = attention->desc;
    const int64_t heads = d->in[QN_ATT_Q].dims[1], size = d->in[QN_ATT_Q].dims[2];
    const float scale = d->attr[QN_ATTR_SCALE].f;
    qn_cuda_chain_launch *l = &chain->launches[0];
    l->arguments.decode = (qn_cuda_decode){.q = x_of(m->norms ? &m->norms[0] : query),
                                           .k = x_of(m->norms ? &m->norms[1] : key),
                                           .norms = qn_cuda_head_norms_of(m->norms),
                                           .keys = key->args.out[0].data,
                                           .values = attention->args.in[QN_ATT_V].data,
                                           .partials = (char *)(uintptr_t)chain->partials,
                                           .position = m->position,
                                           .row = attention->args.in[QN_ATT_K].strides[0],
                                           .heads = (int32_t)heads,
                                           .group = (int32_t)(heads / d->in[QN_ATT_K].dims[1]),
                                           .scale = scale == 0.0f ? (float)(1.0 / sqrt((double)size)) : scale,
                                           .log2_theta = log2((double)query->desc->attr[QN_ATTR_THETA].f),
                                           .factors = qn_cuda_factors(&query->args.in[QN_ACT_FACTORS])};
    qn_cuda_program program;
    const int64_t together = queries_together(l->arguments.decode.group, size);
    decode_program(size, together, m->norms != NULL, "qn_decode_attention", &program);
    qn_cuda_define_factors(l->arguments.decode.factors != NULL, &program);
    program.shared_bytes = (int32_t)(PART_KEYS * size * 4);
    l->geometry = (qn_cuda_geometry){.grid = {(uint32_t)parts, (uint32_t)(heads / together), 1},
                                     .block = {DECODE_THREADS, 1, 1},
                                     .shared_bytes = (uint32_t)program.shared_bytes,
                                     .dependent = 1};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* The parts as a row of floats, where what follows is no product that joins them itself. */
static qn_status make_join(const matcher *m, const qn_chain_step *attention, float *out, qn_chain *chain,
                           qn_error *error)
{
    qn_cuda_chain_launch *l = &chain->launches[1];
    const int64_t *q = attention->desc->in[QN_ATT_Q].dims;
    qn_cuda_program program;
    decode_program(q[2], 1, 0, "qn_decode_join", &program);
    l->arguments.decode = (qn_cuda_decode){
        .partials = (char *)(uintptr_t)chain->partials, .out = out, .position = m->position, .heads = (int32_t)q[1]};
    l->geometry = (qn_cuda_geometry){.grid = {(uint32_t)q[1], 1, 1}, .block = {JOIN_THREADS, 1, 1}, .dependent = 1};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* Whether a product puts its row of that length together itself: each of its blocks reads all parts then, which costs
 * more than a launch that does so once where blocks are many and rows are long. */
static int joins_parts(const matcher *m, const product *p, int64_t length)
{
    return p->mm[0]->args.out[0].shape.dims[1] * length < (int64_t)m->cuda->device.sms * JOINED_APART;
}

/* Steps up to an attention that leaves parts, and what puts these together: a product, or nothing else. */
static qn_status make_attended(const matcher *m, int32_t steps, int kept, qn_chain *chain, int32_t *taken,
                               qn_error *error)
{
    const qn_chain_step *attention = &m->steps[steps - 1];
    const int64_t *q = attention->desc->in[QN_ATT_Q].dims;
    const int64_t *k = attention->args.in[1].shape.dims; /* of one sequence, where it says so */
    const int64_t room = attention->desc->op == QN_OP_VQ_ATTENTION ? k[1] : k[0];
    const int64_t parts = qn_max_i64(1, qn_ceil_div(room, PART_KEYS));
    const size_t bytes = (size_t)(parts * q[1] * (q[2] + 4)) * sizeof(float),
                 row = (size_t)(q[1] * q[2]) * sizeof(float);
    product p;
    int possible = match_product(m, steps, attention, &p);
    const int apart = possible && !joins_parts(m, &p, q[1] * q[2]);
    qn_cuda_chain_launch *const last = &chain->launches[apart ? 2 : 1];
    if (possible) {
        p.pre = apart ? PRE_NONE : PRE_ATTENTION;
        QN_TRY(make_product(m, &p, last, &possible, error));
    }
    if (!possible && attention->args.out[0].shape.format != QN_F32) {
        return QN_OK;
    }
    QN_TRY(qn_cuda_push(m->cuda, error));
    const cu_result result = m->cuda->cu.MemAlloc(&chain->partials, bytes + row);
    qn_cuda_pop(m->cuda);
    QN_TRY(qn_cuda_check(m->cuda, result, "cuMemAlloc", error));
    QN_TRY(kept ? qn_cuda_chain_decode_kept(m->steps, m->norms, m->position, parts, chain, error)
                : make_attention(m, parts, chain, error));
    char *const partials = (char *)(uintptr_t)chain->partials;
    chain->count = possible && apart ? 3 : 2;
    *taken = steps + (possible ? p.taken : 0);
    if (!possible) {
        return make_join(m, attention, attention->args.out[0].data, chain, error);
    }
    qn_cuda_mm *a = &last->arguments.mm;
    if (apart) {
        a->x = partials + bytes;
        return make_join(m, attention, (float *)(void *)a->x, chain, error);
    }
    a->partials = partials;
    a->heads = (int32_t)q[1];
    a->head_size = a->k / a->heads;
    return QN_OK;
}

/* ---- lookup, add ---- */

static void lookup_program(int32_t format, int32_t aligned, qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = "embed.cu";
    program->entry = "qn_embed";
    qn_cuda_define(program, "B_FORMAT", format);
    qn_cuda_define(program, "ALIGNED", aligned);
}

static void add_program(qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = "add.cu";
    program->entry = "qn_add";
}

int qn_cuda_chain_program(int32_t i, qn_cuda_program *program)
{
    if (i == 0) {
        add_program(program);
    } else if (i > LOOKUPS) {
        qn_cuda_keep_program((qn_cuda_keep)qn_min_i64(i - LOOKUPS - 1, QN_CUDA_KEEP_COUNT - 1), program);
    } else {
        lookup_program((i - 1) / 2, (i - 1) % 2, program);
    }
    return i <= LOOKUPS + QN_CUDA_KEEP_COUNT;
}

static qn_status make_lookup(const matcher *m, qn_cuda_chain_launch *l, int *possible, qn_error *error)
{
    const qn_chain_step *s = &m->steps[0];
    const qn_view *table = &s->args.in[0];
    const int32_t format = qn_cuda_stored_format(table->shape.format);
    const int64_t k = table->shape.dims[1];
    *possible = format >= 0 && k <= INT32_MAX;
    if (!*possible) {
        return QN_OK;
    }
    const qn_cuda_mm_part rows = {.b = table->data, .b_row = table->strides[0]};
    qn_cuda_program program;
    lookup_program(format, qn_cuda_mm_aligned(format, &rows, k), &program);
    l->arguments.embed = (qn_cuda_embed){.ids = s->args.in[1].data,
                                         .b = table->data,
                                         .y = s->args.out[0].data,
                                         .b_row = table->strides[0],
                                         .y_row = s->args.out[0].strides[0],
                                         .k = (int32_t)k};
    const int64_t parts = k / (qn_max_i64(qn_cuda_weight_unit(format), LOOKUP_LEAST) * LOOKUP_THREADS);
    l->geometry = (qn_cuda_geometry){.grid = {1, (uint32_t)qn_max_i64(qn_min_i64(parts, MOST_GRID_Y), 1), 1},
                                     .block = {LOOKUP_THREADS, 1, 1}};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

static qn_status make_add(const matcher *m, qn_cuda_chain_launch *l, qn_error *error)
{
    const qn_args *args = &m->steps[0].args;
    qn_cuda_program program;
    add_program(&program);
    const int64_t k = args->out[0].shape.dims[1];
    l->arguments.activation = (qn_cuda_activation){.w = args->in[0].data,
                                                   .y = args->out[0].data,
                                                   .w_row = args->in[0].strides[0],
                                                   .y_row = args->out[0].strides[0],
                                                   .m = 1,
                                                   .k = k};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* A sum, and the norm of it that no product of a chain makes for itself; *possible 0: there is none. */
static qn_status make_normed(const matcher *m, qn_cuda_chain_launch *l, int *possible, qn_error *error)
{
    const qn_chain_step *s = &m->steps[0], *norm = operator_at(m, 1, QN_OP_RMSNORM);
    const matcher rest = {.steps = m->steps + 1, .count = m->count - 1, .position = m->position, .cuda = m->cuda};
    const qn_mut_view *sum = &s->args.out[0];
    const int64_t k = sum->shape.dims[1], items = qn_ceil_div(k, 4 * NORM_THREADS);
    *possible = norm && x_of(norm) == sum->data && dense_f32(&norm->args.in[0]) && dense_f32(&s->args.in[0]) &&
                dense_f32(&norm->args.in[QN_ACT_W]) && norm->args.in[0].shape.dims[1] == k && k % 4 == 0 &&
                items <= NORM_ITEMS;
    if (!*possible) {
        return QN_OK;
    }
    product p;
    int chained = match_product(&rest, 0, NULL, &p);
    if (chained) {
        QN_TRY(make_product(&rest, &p, l, &chained, error));
    }
    *possible = !chained;
    if (!*possible) {
        return QN_OK;
    }
    qn_cuda_program program = {.source = "rmsnorm.cu", .entry = "qn_add_rmsnorm"};
    qn_cuda_define(&program, "OUT", qn_cuda_float_format(norm->args.out[0].shape.format));
    qn_cuda_define(&program, "THREADS", NORM_THREADS);
    qn_cuda_define(&program, "ITEMS", items);
    memset(&l->arguments, 0, sizeof l->arguments);
    l->arguments.activation = (qn_cuda_activation){.x = sum->data,
                                                   .added = s->args.in[0].data,
                                                   .sum = sum->data,
                                                   .w = norm->args.in[QN_ACT_W].data,
                                                   .y = norm->args.out[0].data,
                                                   .eps = norm->desc->attr[QN_ATTR_EPS].f,
                                                   .k = k};
    l->geometry = (qn_cuda_geometry){.grid = {1, 1, 1}, .block = {NORM_THREADS, 1, 1}, .dependent = 1};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* ---- the chain ---- */

/* An attention with all that comes before it. */
static qn_status make_turned(const matcher *m, qn_chain *chain, int32_t *taken, qn_error *error)
{
    const int32_t kept = qn_cuda_chain_kept(m->steps, m->count, m->norms != NULL);
    if (kept && !is_needed(m, kept, m->steps[0].args.out[0].data) &&
        !is_needed(m, kept, m->steps[1].args.out[0].data) && !is_needed(m, kept, m->steps[kept - 1].args.out[1].data)) {
        QN_TRY(make_attended(m, kept, 1, chain, taken, error));
    }
    return *taken || !match_attention(m) ? QN_OK : make_attended(m, 3, 0, chain, taken, error);
}

/* Whether products q read nothing of p but silu_mul of its two halves, which nothing else reads. */
static int feeds(const matcher *m, const product *p, const product *q)
{
    if (p->parts != 2 || p->add || p->copy || q->pre != PRE_SILU) {
        return 0;
    }
    const qn_mut_view *gate = &p->mm[0]->args.out[0], *up = &p->mm[1]->args.out[0];
    const int64_t k = depth_of(q->mm[0]->desc);
    return gate->data == x_of(q->before) && (char *)up->data == (char *)gate->data + k * 4 &&
           gate->shape.format == QN_F32 && up->shape.format == QN_F32 && gate->shape.dims[1] == k &&
           up->shape.dims[1] == k && k % 8 == 0 && !is_needed(m, p->taken + q->taken, gate->data) &&
           !is_needed(m, p->taken + q->taken, up->data);
}

/* Gate and up, then down: with silu_mul where the first ones' sums are, not in every block of the last. */
static qn_status make_gated(const matcher *m, const product *p, qn_chain *chain, int32_t *taken, qn_error *error)
{
    matcher rest = {m->steps + p->taken, m->count - p->taken, m->position, m->cuda, NULL};
    product gated = *p, down;
    int possible = rest.count > 0 && match_product(&rest, 0, NULL, &down) && feeds(m, p, &down);
    if (possible) {
        gated.silu = 1;
        down.pre = PRE_NONE;
        QN_TRY(make_product(m, &gated, &chain->launches[0], &possible, error));
    }
    if (possible) {
        QN_TRY(make_product(&rest, &down, &chain->launches[1], &possible, error));
    }
    if (possible) {
        chain->count = 2;
        *taken = p->taken + down.taken;
    }
    return QN_OK;
}

static qn_status make(const matcher *m, qn_chain *chain, int32_t *taken, qn_error *error)
{
    int possible = 1;
    product p;
    chain->kind = m->steps[0].kind;
    if (match_head_norms(m)) {
        matcher rest = {m->steps + 2, m->count - 2, m->position, m->cuda, m->steps};
        QN_TRY(make_turned(&rest, chain, taken, error));
        *taken += *taken ? 2 : 0;
        return QN_OK;
    }
    QN_TRY(make_turned(m, chain, taken, error));
    if (*taken) {
        return QN_OK;
    }
    QN_TRY(qn_cuda_chain_kv(m->steps, m->count, m->position, chain, taken, error));
    if (*taken) {
        return QN_OK;
    }
    if (m->steps[0].kind != QN_CHAIN_OPERATOR) {
        chain->count = *taken = 1;
        if (m->steps[0].kind == QN_CHAIN_ADD) {
            QN_TRY(make_normed(m, &chain->launches[0], &possible, error));
            if (possible) {
                chain->kind = QN_CHAIN_OPERATOR; /* of one row */
                *taken = 2;
                return QN_OK;
            }
            return make_add(m, &chain->launches[0], error);
        }
        QN_TRY(make_lookup(m, &chain->launches[0], &possible, error));
        *taken = possible;
        return QN_OK;
    }
    if (match_product(m, 0, NULL, &p)) {
        QN_TRY(make_gated(m, &p, chain, taken, error));
        if (*taken) {
            return QN_OK;
        }
        QN_TRY(make_product(m, &p, &chain->launches[0], &possible, error));
        chain->count = 1;
        *taken = possible ? p.taken : 0;
    }
    return QN_OK;
}

static void destroy(const qn_ctx *ctx, qn_chain *chain)
{
    if (!chain) {
        return;
    }
    if (chain->partials && qn_cuda_push(chain->cuda, NULL) == QN_OK) {
        chain->cuda->cu.MemFree(chain->partials);
        qn_cuda_pop(chain->cuda);
    }
    qn_free(ctx, chain);
}

static qn_status create(const qn_ctx *ctx, const qn_chain_step *steps, int32_t count, const int32_t *position,
                        qn_chain **out, int32_t *taken, qn_error *error)
{
    *out = NULL;
    *taken = 0;
    matcher m = {.steps = steps, .count = count, .position = position};
    QN_TRY(qn_cuda_require(ctx, &m.cuda, error));
    qn_chain *chain = qn_calloc(ctx, 1, sizeof *chain);
    QN_FAIL_IF(!chain, error, QN_E_MEMORY, "out of memory for a chain of steps");
    chain->cuda = m.cuda;
    const qn_status status = make(&m, chain, taken, error);
    if (status == QN_OK && *taken) {
        *out = chain;
    } else {
        destroy(ctx, chain);
    }
    return status;
}

static qn_status run(const qn_chain *chain, int32_t rows, void *stream, qn_error *error)
{
    QN_TRY(qn_cuda_push(chain->cuda, error));
    qn_status status = QN_OK;
    for (int32_t i = 0; i < chain->count && status == QN_OK; i++) {
        qn_cuda_chain_launch l = chain->launches[i];
        void *const pointers[] = {&l.arguments};
        if (chain->kind == QN_CHAIN_LOOKUP) {
            l.geometry.grid[0] = (uint32_t)rows;
        } else if (chain->kind == QN_CHAIN_ADD) {
            l.arguments.activation.m = rows;
            l.geometry = qn_cuda_runs_geometry(&chain->cuda->device, rows, l.arguments.activation.k);
        }
        const qn_cuda_run r = {
            .cuda = chain->cuda, .device = &chain->cuda->device, .functions = &l.function, .stream = stream};
        status = qn_cuda_launch(&r, 0, &l.geometry, pointers, error);
    }
    qn_cuda_pop(chain->cuda);
    return status;
}

const qn_backend_chains qn_cuda_chains = {.create = create, .run = run, .keep = qn_cuda_chain_keep, .destroy = destroy};
