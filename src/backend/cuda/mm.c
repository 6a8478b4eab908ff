/* What a matrix product's operands are to device code: formats, units and cuts of few rows, parameters that follow from
 * a descriptor, the argument of a run. For run_mm.c and all others that have such products. */
#include "backend/cuda/mm.h"

#include <string.h>

#include "backend/cuda/vq.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

enum { WARPS = 8, MOST_SHARED = 40 << 10 }; /* of a block of mm_few.cu */

/* Of mm_ring.cu: bytes of a line, lines of a step (of 4-bit weights, which take longer to become operands, one, for
 * more warps); warps that keep memory busy with weights that are operands as they lie; bytes of rings asked for before
 * the row (more make it late, less leaves memory idle); what a block has beside rings and x. RING_LEAST bytes of
 * weights a multiprocessor (of 4-bit ones half) and RING_K pay: its start costs more than that of mm_few.cu. */
enum { RING_LINE = 128, RING_LINES = 2, RING_WARPS = 8, RING_DEPTH = 8 };
enum { RING_AHEAD = 100 << 10, RING_STATIC = 10 << 10, RING_LEAST = 64 << 10, RING_K = 2048 };

/* ---- formats ---- */

static const struct {
    qn_format format;
    int32_t number;
} stored_formats[] = {
    {QN_F32, QN_MM_F32},   {QN_F16, QN_MM_F16},       {QN_BF16, QN_MM_BF16},     {QN_Q4_0, QN_MM_Q4_0},
    {QN_Q4_1, QN_MM_Q4_1}, {QN_Q5_0, QN_MM_Q5_0},     {QN_Q5_1, QN_MM_Q5_1},     {QN_Q8_0, QN_MM_Q8_0},
    {QN_Q2_K, QN_MM_Q2_K}, {QN_Q3_K, QN_MM_Q3_K},     {QN_Q4_K, QN_MM_Q4_K},     {QN_Q5_K, QN_MM_Q5_K},
    {QN_Q6_K, QN_MM_Q6_K}, {QN_IQ4_NL, QN_MM_IQ4_NL}, {QN_IQ4_XS, QN_MM_IQ4_XS}, {QN_I8_K, QN_MM_I8_K},
};

int32_t qn_cuda_stored_format(qn_format format)
{
    for (size_t i = 0; i < sizeof stored_formats / sizeof *stored_formats; i++) {
        if (stored_formats[i].format == format) {
            return stored_formats[i].number;
        }
    }
    return -1;
}

int32_t qn_cuda_float_format(qn_format format)
{
    return format == QN_F32 ? QN_MM_F32 : format == QN_F16 ? QN_MM_F16 : QN_MM_BF16;
}

/* Slots of an operator's operands; -1: it has none. */
typedef struct slots {
    int32_t x, x_scale, b, b_scale, bias, b_global; /* x_scale: of rows */
} slots;

static slots slots_of(qn_op op)
{
    switch (op) {
    case QN_OP_SCALED_MM: return (slots){QN_SMM_A, QN_SMM_SCALE_A, QN_SMM_B, QN_SMM_SCALE_B, QN_SMM_BIAS, -1};
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_GROUPED_BLOCK_SCALED_MM: return (slots){QN_BMM_A, -1, QN_BMM_B, QN_BMM_SCALE_B, -1, -1};
    case QN_OP_NVFP4_MM:
        return (slots){QN_NVMM_X, QN_NVMM_X_SCALE, QN_NVMM_B, QN_NVMM_B_SCALE, QN_NVMM_BIAS, QN_NVMM_B_GLOBAL};
    case QN_OP_MXFP4_MM: return (slots){QN_MXMM_X, QN_MXMM_X_SCALE, QN_MXMM_B, QN_MXMM_B_SCALE, QN_MXMM_BIAS, -1};
    case QN_OP_VQ_MM: return (slots){QN_VQMM_X, -1, -1, -1, QN_VQMM_BIAS, -1};
    default: return (slots){QN_DMM_X, -1, QN_DMM_B, -1, QN_DMM_BIAS, -1};
    }
}

const qn_shape *qn_cuda_mm_x(const qn_op_desc *desc)
{
    return &desc->in[slots_of(desc->op).x];
}

const qn_shape *qn_cuda_mm_b(const qn_op_desc *desc)
{
    return &desc->in[slots_of(desc->op).b];
}

int32_t qn_cuda_weight_format(const qn_op_desc *desc)
{
    if (desc->op == QN_OP_VQ_MM) {
        return qn_cuda_vq_few_format(desc);
    }
    const qn_format format = qn_cuda_mm_b(desc)->format;
    switch (desc->op) {
    case QN_OP_SCALED_MM: return format == QN_I8 ? QN_MM_I8 : QN_MM_E4M3;
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_GROUPED_BLOCK_SCALED_MM: return format == QN_F8_E5M2 ? QN_MM_E5M2_BLOCK : QN_MM_E4M3_BLOCK;
    case QN_OP_NVFP4_MM: return QN_MM_NVFP4;
    case QN_OP_MXFP4_MM: return QN_MM_MXFP4;
    default: return qn_cuda_stored_format(format);
    }
}

int32_t qn_cuda_weight_unit(int32_t format)
{
    switch (format) {
    case QN_MM_F32: return 4;
    case QN_MM_F16:
    case QN_MM_BF16:
    case QN_MM_AQLM:
    case QN_MM_GPTVQ: return 8;
    case QN_MM_VPTQ: return 1;
    case QN_MM_Q4_0:
    case QN_MM_Q4_1:
    case QN_MM_Q5_0:
    case QN_MM_Q5_1:
    case QN_MM_Q8_0:
    case QN_MM_IQ4_NL:
    case QN_MM_IQ4_XS:
    case QN_MM_MXFP4: return 32;
    default: return 16;
    }
}

int32_t qn_cuda_weight_align(int32_t format)
{
    switch (format) {
    case QN_MM_Q4_0:
    case QN_MM_Q5_0:
    case QN_MM_Q8_0:
    case QN_MM_Q3_K:
    case QN_MM_Q6_K:
    case QN_MM_IQ4_NL: return 2;
    case QN_MM_Q4_1:
    case QN_MM_Q5_1:
    case QN_MM_Q2_K:
    case QN_MM_Q4_K:
    case QN_MM_Q5_K:
    case QN_MM_IQ4_XS:
    case QN_MM_I8_K: return 4; /* blocks of whole words */
    case QN_MM_NVFP4: return 8;
    case QN_MM_AQLM:
    case QN_MM_GPTVQ:
    case QN_MM_VPTQ: return 1; /* qn_cuda_vq_few_takes knows more */
    default: return 16;
    }
}

/* Registers that a loaded unit takes, of vectors decoded; for each column. */
static int32_t unit_words(int32_t format)
{
    switch (format) {
    case QN_MM_VPTQ: return 1;
    case QN_MM_NVFP4: return 3;
    case QN_MM_AQLM:
    case QN_MM_GPTVQ: return 8;
    case QN_MM_Q8_0: return 9;
    default: return format >= QN_MM_Q2_K && format <= QN_MM_Q6_K ? 10 : 5;
    }
}

int32_t qn_cuda_row_format(const qn_op_desc *desc)
{
    if (desc->op == QN_OP_BLOCK_SCALED_MM || desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM) {
        return QN_MM_A_BLOCK;
    }
    if (desc->op == QN_OP_NVFP4_MM && desc->in[QN_NVMM_A].format) {
        return QN_MM_A_NVFP4;
    }
    const qn_format x = qn_cuda_mm_x(desc)->format;
    return x == QN_I8 ? QN_MM_A_I8 : x == QN_F8_E4M3 ? QN_MM_A_E4M3 : QN_MM_PLAIN;
}

/* ---- cuts of few rows, and parameters ---- */

/* Of eight rows that a code stands for a warp has all or, where there are few, half; and of K as small a part as the
 * device has room for. */
static qn_cuda_few vptq_shape(int64_t n, int64_t steps, int32_t sms)
{
    qn_cuda_few f = {.columns = n >= 8 * (int64_t)sms ? 8 : 4, .split = WARPS};
    while (f.split > 1 && n * f.split > (int64_t)2 * sms * WARPS * f.columns && steps <= 6 * (f.split / 2)) {
        f.split /= 2;
    }
    return f;
}

qn_cuda_few qn_cuda_few_shape(int32_t format, int64_t n, int64_t k, int32_t rows, int32_t chain, int32_t sms)
{
    const int64_t unit = qn_cuda_weight_unit(format), steps = qn_max_i64(1, qn_ceil_div(qn_ceil_div(k, unit), 32));
    const int64_t warps = (int64_t)sms * WARPS, words = unit_words(format);
    const int64_t item = format == QN_MM_I8 ? 1 : 4, gap = unit > 4 && format != QN_MM_I8 ? 4 : 0;
    /* a chain's blocks go on to further columns: no more of them a warp than hide memory's latency, of vectors one */
    const int vectors = format >= QN_MM_AQLM && format <= QN_MM_VPTQ;
    /* vectors are decoded before x is there, all of a row of 576 elements: two blocks a multiprocessor then */
    const int64_t room = vectors ? 48 : 40;
    qn_cuda_few f = {.columns = n >= 16 * warps && !chain ? 4 : n >= 2 * warps && !vectors ? 2 : 1, .split = 1};
    if (format == QN_MM_VPTQ) {
        f = vptq_shape(n, steps, sms);
    }
    while (f.split < 4 && f.columns == 1 && n * f.split < warps && steps >= 2 * f.split) {
        f.split *= 2;
    }
    f.steps =
        (int32_t)qn_max_i64(1, qn_min_i64(qn_min_i64(qn_ceil_div(steps, f.split), 6), room / (f.columns * words)));
    const int64_t all = rows * qn_ceil_div(k, unit) * (unit + gap) * item;
    f.whole = chain || all <= MOST_SHARED;
    if (f.whole) {
        f.shared_bytes = (int32_t)qn_min_i64(qn_max_i64(all, 16), INT32_MAX);
        return f;
    }
    const int64_t pass = rows * 32 * (unit + gap) * item;
    while (f.steps > 1 && pass * f.steps * f.split > MOST_SHARED) {
        f.steps--;
    }
    while (f.split > 1 && pass * f.steps * f.split > MOST_SHARED) {
        f.split /= 2;
    }
    f.shared_bytes = (int32_t)(pass * f.steps * f.split);
    return f;
}

uint32_t qn_cuda_few_blocks(const qn_cuda_few *few, int64_t n)
{
    return (uint32_t)qn_ceil_div(n, (int64_t)few->columns * (WARPS / few->split));
}

void qn_cuda_few_define(const qn_cuda_few *few, int32_t rows, qn_cuda_program *program)
{
    qn_cuda_define(program, "ROWS", rows);
    qn_cuda_define(program, "COLUMNS", few->columns);
    qn_cuda_define(program, "SPLIT", few->split);
    qn_cuda_define(program, "STEPS", few->steps);
    qn_cuda_define(program, "WHOLE", few->whole);
}

/* Whether mm_ring.cu has such weights, as they lie: rows without gaps, whole lines, tiles of one weight, scales of
 * 4-bit ones that are copied as they are. */
static int ring_takes(int32_t format, int64_t row, const qn_cuda_mm_part *parts, int32_t count)
{
    const uint64_t align = format == QN_MM_NVFP4 ? 16 : format == QN_MM_MXFP4 ? 8 : 1;
    int there = row % RING_LINE == 0;
    for (int32_t i = 0; i < count; i++) {
        there = there && parts[i].b_row == row && (i + 1 == count || parts[i].n % QN_MM_RING_COLUMNS == 0) &&
                ((uint64_t)(uintptr_t)parts[i].b_scale | (uint64_t)parts[i].b_scale_row) % align == 0;
    }
    return there;
}

qn_cuda_ring qn_cuda_ring_shape(int32_t format, const qn_cuda_mm_part *parts, int32_t count, int64_t n, int64_t k,
                                const qn_cuda_device *device)
{
    const qn_cuda_ring none = {.threads = 0};
    const int halves = format == QN_MM_F16 || format == QN_MM_BF16;
    const int blocked = format == QN_MM_E4M3_BLOCK || format == QN_MM_E5M2_BLOCK;
    const int fp4 = format == QN_MM_NVFP4 || format == QN_MM_MXFP4;
    const int64_t row = halves ? 2 * k : fp4 ? k / 2 : k, lines = row / RING_LINE;
    const int64_t least = (int64_t)device->sms * (fp4 ? RING_LEAST / 2 : RING_LEAST);
    if ((!halves && !blocked && !fp4 && format != QN_MM_E4M3 && format != QN_MM_I8) || device->major < 9 ||
        k < RING_K || n * row < least || !ring_takes(format, row, parts, count)) {
        return none;
    }
    const int32_t in_step = fp4 ? 1 : RING_LINES;
    const int64_t x = k * (format == QN_MM_I8 ? 1 : 2) + (blocked ? lines * 4 : 0), begin = qn_ceil_div(x, 16) * 16;
    const int64_t room = device->shared_bytes - RING_STATIC - begin;
    const int64_t scales = fp4 ? QN_MM_RING_COLUMNS * (2 * RING_LINE / qn_cuda_weight_unit(format)) : 16;
    const int64_t slot = in_step * (QN_MM_RING_COLUMNS * RING_LINE + scales), most = qn_ceil_div(lines, in_step);
    /* codes need more warps to become operands, if these have room for two steps under way */
    const int64_t many = qn_min_i64(most, halves ? RING_WARPS : 2 * RING_WARPS);
    const int64_t warps = room / (many * slot) < 3 ? qn_min_i64(most, RING_WARPS) : many;
    const int64_t depth = qn_min_i64(room / (warps * slot), RING_DEPTH);
    if (depth < 2) {
        return none;
    }
    const int64_t ahead = qn_max_i64(1, qn_min_i64(depth - 1, RING_AHEAD / (warps * slot)));
    return (qn_cuda_ring){.k = (int32_t)k,
                          .edge = parts[count - 1].n % QN_MM_RING_COLUMNS != 0,
                          .threads = (int32_t)(32 * warps),
                          .lines = in_step,
                          .depth = (int32_t)depth,
                          .ahead = (int32_t)ahead,
                          .begin = (int32_t)begin,
                          .shared_bytes = (int32_t)(begin + depth * warps * slot)};
}

void qn_cuda_ring_define(const qn_cuda_ring *ring, qn_cuda_program *program)
{
    program->source = "mm_ring.cu";
    program->entry = "qn_mm_ring";
    program->shared_bytes = ring->shared_bytes;
    qn_cuda_define(program, "K", ring->k);
    qn_cuda_define(program, "EDGE", ring->edge);
    qn_cuda_define(program, "THREADS", ring->threads);
    qn_cuda_define(program, "DEPTH", ring->depth);
    qn_cuda_define(program, "LINES", ring->lines);
    qn_cuda_define(program, "AHEAD", ring->ahead);
    qn_cuda_define(program, "RING", ring->begin);
}

qn_format qn_cuda_mm_bias(const qn_op_desc *desc)
{
    const int32_t bias = slots_of(desc->op).bias;
    return bias >= 0 ? desc->in[bias].format : QN_FORMAT_NONE;
}

void qn_cuda_mm_define(const qn_op_desc *desc, qn_format bias, qn_cuda_program *program)
{
    const int32_t out = desc->attr[QN_ATTR_OUT].i;
    const int scaled = desc->op == QN_OP_SCALED_MM;
    qn_cuda_define(program, "B_FORMAT", qn_cuda_weight_format(desc));
    qn_cuda_define(program, "OUT", out == QN_OUT_F32 ? QN_MM_F32 : out == QN_OUT_F16 ? QN_MM_F16 : QN_MM_BF16);
    qn_cuda_define(program, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
    qn_cuda_define(program, "AZP",
                   !scaled || !desc->in[QN_SMM_AZP_ADJ].format ? 0
                   : desc->in[QN_SMM_AZP].format               ? 2
                                                               : 1);
}

int64_t qn_cuda_mm_depth(const qn_op_desc *desc)
{
    const slots s = slots_of(desc->op);
    const int fp4 = desc->op == QN_OP_NVFP4_MM || desc->op == QN_OP_MXFP4_MM;
    return desc->in[s.b].dims[1] * (fp4 ? 2 : 1);
}

int64_t qn_cuda_code_group(int32_t format)
{
    return format == QN_MM_Q2_K || format == QN_MM_Q3_K || format == QN_MM_Q6_K || format == QN_MM_I8_K ? 16 : 32;
}

/* ---- a run's operands ---- */

/* Step from one scale, zero point or the like to the next; 0: there is one for all. */
static int64_t vector_step(const qn_view *v)
{
    if (v->shape.ndim == 2) {
        return v->strides[0];
    }
    return v->shape.ndim == 0 || v->shape.dims[0] == 1 ? 0 : 4;
}

static int64_t scale_step(const qn_view *v)
{
    return v->shape.ndim == 2 && v->shape.dims[0] == 1 ? 0 : vector_step(v);
}

qn_cuda_mm_part qn_cuda_mm_part_of(const qn_op_desc *desc, const qn_args *args)
{
    const slots s = slots_of(desc->op);
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    qn_cuda_mm_part p = {.d = d->data, .d_row = d->strides[0]};
    if (desc->op == QN_OP_VQ_MM) {
        qn_cuda_vq_few_bind(desc, args, &p);
    } else {
        p.b = args->in[s.b].data;
        p.b_row = args->in[s.b].strides[0];
        p.n = (int32_t)desc->in[s.b].dims[0];
    }
    if (s.b_scale >= 0) {
        const qn_view *scale = &args->in[s.b_scale];
        p.b_scale = scale->data;
        p.b_scale_row = desc->op == QN_OP_SCALED_MM ? scale_step(scale) : scale->strides[0];
    }
    p.b_global = s.b_global >= 0 ? args->in[s.b_global].data : NULL;
    p.bias = s.bias >= 0 ? args->in[s.bias].data : NULL;
    p.azp_adj = desc->op == QN_OP_SCALED_MM ? args->in[QN_SMM_AZP_ADJ].data : NULL;
    return p;
}

int qn_cuda_mm_aligned(int32_t format, const qn_cuda_mm_part *part, int64_t k)
{
    const uint64_t align = (uint64_t)qn_cuda_weight_align(format);
    return k % qn_cuda_weight_unit(format) == 0 && ((uint64_t)(uintptr_t)part->b | (uint64_t)part->b_row) % align == 0;
}

qn_cuda_mm qn_cuda_mm_arguments(const qn_run_call *call)
{
    const qn_op_desc *desc = call->desc;
    const qn_view *in = call->args->in;
    qn_cuda_mm a;
    memset(&a, 0, sizeof a);
    a.part[0] = qn_cuda_mm_part_of(desc, call->args);
    a.m = (int32_t)qn_min_i64(call->sizes.m, INT32_MAX);
    a.n = a.part[0].n;
    a.k = (int32_t)qn_cuda_mm_depth(desc);
    const slots s = slots_of(desc->op);
    const qn_view *x = &in[s.x];
    if (s.x_scale >= 0 && desc->in[s.x_scale].format) {
        a.x_scale = in[s.x_scale].data;
        a.x_scale_row = scale_step(&in[s.x_scale]);
    }
    if (desc->op == QN_OP_SCALED_MM) {
        a.azp = in[QN_SMM_AZP].data;
        a.azp_row = in[QN_SMM_AZP].shape.ndim == 2 ? in[QN_SMM_AZP].strides[0] : 4;
    } else if (desc->op == QN_OP_BLOCK_SCALED_MM) {
        const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
        const int64_t step = in[QN_BMM_SCALE_A].strides[0];
        a.x_scale = in[QN_BMM_SCALE_A].data;
        a.x_scale_row = col ? 4 : step;
        a.x_scale_block = col ? step : 4;
    } else if (desc->op == QN_OP_NVFP4_MM && desc->in[QN_NVMM_A].format) {
        x = &in[QN_NVMM_A];
        a.x_scale = in[QN_NVMM_A_SCALE].data;
        a.x_scale_row = in[QN_NVMM_A_SCALE].strides[0];
        a.x_global = in[QN_NVMM_A_GLOBAL].data;
    }
    a.x = x->data;
    a.x_row = x->strides[0];
    return a;
}
