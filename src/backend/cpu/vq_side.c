/* Rows of x in front of, and sums behind the codes of vq_mm. See vq_side.h.
 *
 * Everything is by rows: a row's numbers depend on nothing else, whatever the
 * threads. Hadamard transforms are computed in double, as the reference does, where
 * the kernel brings none of its own. */
#include "backend/cpu/vq_side.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/mm_fragment.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "format/lattice.h"
#include "ref/slots.h"

static int given(const qn_op_desc *desc, int32_t tensor)
{
    return desc->in[QN_VQMM_FIRST + tensor].format != QN_FORMAT_NONE;
}

qn_vq_side_layout qn_vq_side_layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    qn_vq_side_layout l = {.has_bias = desc->in[QN_VQMM_BIAS].format != QN_FORMAT_NONE};
    l.turns_in = vq->format == QN_VQ_QUIP_E8P && given(desc, QN_VQ_SU);
    l.turns_out = vq->format == QN_VQ_QUIP_E8P && given(desc, QN_VQ_SV);
    l.has_in_scale = l.turns_in || (vq->format == QN_VQ_VPTQ && given(desc, QN_VQ_WEIGHT_SCALE));
    l.has_shift = vq->format == QN_VQ_VPTQ && given(desc, QN_VQ_WEIGHT_BIAS);
    l.has_column = vq->format == QN_VQ_VPTQ && given(desc, QN_VQ_PERM);
    l.has_out_scale =
        vq->format == QN_VQ_AQLM || l.turns_out || (vq->format == QN_VQ_QUIP_E8P && given(desc, QN_VQ_WSCALE));
    size_t at = 0;
    l.in_scale = qn_size_place(&at, l.has_in_scale ? (size_t)vq->k : 0, sizeof(float));
    l.shift = qn_size_place(&at, l.has_shift ? (size_t)vq->k : 0, sizeof(float));
    l.column = qn_size_place(&at, l.has_column ? (size_t)vq->k : 0, sizeof(float));
    l.out_scale = qn_size_place(&at, l.has_out_scale ? (size_t)vq->n : 0, sizeof(float));
    l.bias = qn_size_place(&at, l.has_bias ? (size_t)vq->n : 0, sizeof(float));
    l.total = at;
    return l;
}

void qn_vq_side_pack(const qn_vq_side_layout *l, const qn_vq *vq, const qn_view *bias, char *section)
{
    const qn_view *t = vq->tensor;
    float *const in_scale = (float *)(void *)(section + l->in_scale);
    float *const shift = (float *)(void *)(section + l->shift);
    float *const out_scale = (float *)(void *)(section + l->out_scale);
    int32_t *const column = (int32_t *)(void *)(section + l->column);
    memset(section, 0, l->total);
    for (int64_t p = 0; p < vq->k && (l->has_in_scale || l->has_shift || l->has_column); p++) {
        const int64_t c = l->has_column ? qn_vq_vptq_column(vq, p) : p;
        if (l->has_column) {
            column[p] = (int32_t)c;
        }
        if (l->turns_in) {
            in_scale[p] = (float)(qn_vq_value(&t[QN_VQ_SU], c, 1.0) / qn_vq_value(&t[QN_VQ_SCALE_WH], c, 1.0));
        } else if (l->has_in_scale) {
            in_scale[p] = (float)qn_vq_value(&t[QN_VQ_WEIGHT_SCALE], c, 1.0);
        }
        if (l->has_shift) {
            shift[p] = (float)qn_vq_value(&t[QN_VQ_WEIGHT_BIAS], c, 0.0);
        }
    }
    const double wscale = vq->format == QN_VQ_QUIP_E8P ? qn_vq_value(&t[QN_VQ_WSCALE], 0, 1.0) : 1.0;
    for (int64_t n = 0; n < vq->n && l->has_out_scale; n++) {
        out_scale[n] = vq->format == QN_VQ_AQLM ? (float)qn_vq_value(&t[QN_VQ_SCALES], n / vq->out_group, 1.0)
                                                : (float)(qn_vq_value(&t[QN_VQ_SV], n, 1.0) * wscale);
    }
    if (l->has_bias && vq->n > 0) {
        qn_format_get_row(bias->shape.format)->decode(bias->data, vq->n, (float *)(void *)(section + l->bias));
    }
}

/* ---- memory ---- */

static int64_t padded(int64_t k)
{
    return (k + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
}

typedef struct memory {
    size_t rows, shifts, sums, scratch, thread, total;
} memory;

static memory memory_of(const qn_vq *vq, int64_t m, int32_t threads)
{
    const size_t k = (size_t)padded(vq->k), n = (size_t)qn_max_i64(vq->n, 1);
    memory at = {0};
    at.shifts = qn_size_pad(qn_size_mul((size_t)m, qn_size_mul(k, 4)));
    at.sums = qn_size_add(at.shifts, qn_size_pad(qn_size_mul((size_t)m, 4)));
    at.scratch = qn_size_pad(qn_size_add(at.sums, qn_size_mul((size_t)m, qn_size_mul(n, 4))));
    at.thread = qn_size_pad(qn_size_mul(2 * sizeof(double), (size_t)qn_max_i64((int64_t)k, vq->n)));
    at.total = qn_size_add(at.scratch, qn_size_mul((size_t)threads, at.thread));
    return at;
}

size_t qn_vq_side_bytes(const qn_vq *vq, int64_t m, int32_t threads)
{
    return memory_of(vq, m, threads).total;
}

void qn_vq_side_bind(const qn_run_call *call, const qn_vq *vq, const qn_mm_f32_set *parts, const char *section,
                     char *workspace, qn_vq_side *side)
{
    const memory at = memory_of(vq, call->sizes.m, qn_exec_threads(call->exec));
    *side = (qn_vq_side){.layout = qn_vq_side_layout_of(call->desc, vq),
                         .section = section,
                         .parts = parts,
                         .m = call->sizes.m,
                         .n = vq->n,
                         .k = vq->k,
                         .k_pad = padded(vq->k),
                         .x = &call->args->in[QN_VQMM_X],
                         .y = &call->args->out[QN_MM_OUT_D],
                         .rows = (float *)(void *)(workspace + at.rows),
                         .shifts = (float *)(void *)(workspace + at.shifts),
                         .sums = (float *)(void *)(workspace + at.sums),
                         .scratch = workspace + at.scratch,
                         .scratch_bytes = at.thread};
}

/* ---- rows ---- */

static const float *floats_at(const qn_vq_side *side, size_t offset)
{
    return (const float *)(const void *)(side->section + offset);
}

static void turn(const qn_vq_side *side, float *row, int64_t n, int transposed, int32_t thread)
{
    double *const values = (double *)(void *)(side->scratch + (size_t)thread * side->scratch_bytes);
    if (side->turn) {
        side->turn(row, n, qn_hadamard_base(n), side->mix[!transposed], (float *)(void *)values);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        values[i] = (double)row[i];
    }
    qn_hadamard(values, n, transposed, values + n);
    for (int64_t i = 0; i < n; i++) {
        row[i] = (float)values[i];
    }
}

static void prepare_task(void *user, int64_t m, int32_t thread)
{
    const qn_vq_side *side = user;
    const qn_vq_side_layout *l = &side->layout;
    const qn_mm_operand x = {.data = side->x->data, .stride = side->x->strides[0]};
    float *const row = side->rows + m * side->k_pad;
    side->parts->unpack[qn_mm_fragment_of(side->x->shape.format)](&x, m, 0, side->k, row);
    double sum = 0.0;
    if (l->has_column) {
        float *const from = (float *)(void *)(side->scratch + (size_t)thread * side->scratch_bytes);
        const int32_t *const column = (const int32_t *)(const void *)(side->section + l->column);
        memcpy(from, row, (size_t)side->k * sizeof *from);
        for (int64_t p = 0; p < side->k; p++) {
            row[p] = from[column[p]];
        }
    }
    for (int64_t p = 0; p < side->k && l->has_shift; p++) {
        sum += (double)row[p] * (double)floats_at(side, l->shift)[p];
    }
    side->shifts[m] = (float)sum;
    for (int64_t p = 0; p < side->k && l->has_in_scale; p++) {
        row[p] *= floats_at(side, l->in_scale)[p];
    }
    if (l->turns_in) {
        turn(side, row, side->k, 1, thread);
    }
}

void qn_vq_side_prepare(const qn_vq_side *side, const qn_exec *exec)
{
    qn_parallel_for(side->m == 1 ? NULL : exec, side->k > 0 ? side->m : 0, prepare_task, (void *)(uintptr_t)side);
}

int qn_vq_side_put_nan(const qn_vq_side *side, int64_t m, int64_t n0, int64_t count)
{
    const float *x = side->rows + m * side->k_pad;
    int infinities = 0, nans = 0;
    for (int64_t i = 0; i < side->k; i++) {
        infinities += fabsf(x[i]) == HUGE_VALF;
        nans += x[i] != x[i];
    }
    if (infinities || !nans) {
        return 0;
    }
    while (*x == *x) { /* the first, as sums in the order of K have it */
        x++;
    }
    for (int64_t n = n0; n < n0 + count; n++) {
        side->sums[m * side->n + n] = *x;
    }
    return 1;
}

static void finish_task(void *user, int64_t m, int32_t thread)
{
    const qn_vq_side *side = user;
    const qn_vq_side_layout *l = &side->layout;
    const qn_format format = side->y->shape.format;
    float *const sums = side->sums + m * side->n;
    char *const out = (char *)side->y->data + m * side->y->strides[0];
    const float shift = l->has_shift && side->k > 0 ? side->shifts[m] : 0.0f;
    float scales[QN_MM_COLS], bias[QN_MM_COLS];
    qn_mm_finish f = {.scaled = 1, .unit = 1.0f, .scale_b = scales, .bias = l->has_bias || l->has_shift ? bias : NULL};
    f.out = format == QN_F32 ? QN_MM_F32 : (format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
    if (l->turns_out) {
        turn(side, sums, side->n, 0, thread);
    }
    for (int64_t n = 0; n < side->n; n += QN_MM_COLS) {
        const int64_t count = qn_min_i64(QN_MM_COLS, side->n - n);
        float values[QN_MM_COLS] = {0};
        memcpy(values, sums + n, (size_t)count * sizeof *values);
        for (int64_t i = 0; i < QN_MM_COLS; i++) {
            scales[i] = l->has_out_scale && i < count ? floats_at(side, l->out_scale)[n + i] : 1.0f;
            bias[i] = (l->has_bias && i < count ? floats_at(side, l->bias)[n + i] : 0.0f) + shift;
        }
        side->parts->finish(&f, (qn_mm_sums){values, QN_MM_PIECE}, 1.0f, 0, count,
                            out + n * (format == QN_F32 ? 4 : 2));
    }
}

void qn_vq_side_finish(const qn_vq_side *side, const qn_exec *exec)
{
    qn_parallel_for(side->m == 1 ? NULL : exec, side->m, finish_task, (void *)(uintptr_t)side);
}

void qn_vq_side_describe(const qn_op_desc *desc, qn_vq *vq)
{
    qn_vq_describe(desc, -1, desc->in[QN_VQMM_X].dims[1], vq);
}

const char *qn_vq_side_rung_refusal(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    if (kernel->isa >= QN_ISA_AVX512VNNI) {
        return level == QN_VQ_LEVEL_AUTO || level >= QN_VQ_LEVEL_O2 ? NULL
                                                                    : "tables in registers are of level o2 and above";
    }
    return level != QN_VQ_LEVEL_GC ? NULL : "byte tables in L1 are of level sc and above";
}
