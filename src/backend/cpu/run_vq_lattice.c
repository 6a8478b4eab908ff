/* vq_mm of quip_e8p: rows of x are turned and become digits once, then a task is a
 * block of 64 rows of w along the whole of K, whose codes stream from front to back.
 *
 * Packed: the codes of each book (kernels/common/vq.h, "Lattice"), 16 bits for 8 weights as in the checkpoint, the
 * tables of magnitudes and of E8, the matrices of the Hadamard bases, and the side section.
 *
 * Rows of x that digits cannot hold (NaN, infinities, sizes beyond 2^+-80) are computed here in double from single
 * points: rare, slow and as the formula has it. Grid and bits depend on shapes and the row itself only. */
#include "backend/cpu/run_vq_lattice.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "backend/cpu/vq_digits.h"
#include "base/checked.h"
#include "format/lattice.h"
#include "ref/slots.h"

#define PANELS (QN_VQ_BLOCK / QN_VQ_PANEL)
#define TILE_UNITS (QN_VQ_TILE_K / QN_VQ_UNIT_K)

/* ---- packed body ---- */

typedef struct lattice_layout {
    qn_vq_side_layout side;
    int64_t panels, units, tiles, blocks, bases[2]; /* bases: of the turns of x and of sums; 0 or 1: no matrix */
    int32_t books, last_is_e8;
    int64_t bytes[QN_VQ_LATTICE_BOOKS]; /* of a line */
    size_t codes[QN_VQ_LATTICE_BOOKS], magnitudes, e8, mix[2], side_at, total;
} lattice_layout;

static lattice_layout layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    lattice_layout l = {.side = qn_vq_side_layout_of(desc, vq),
                        .panels = qn_ceil_div(vq->n, QN_VQ_PANEL),
                        .units = qn_ceil_div(vq->k, QN_VQ_UNIT_K),
                        .books = vq->codebook == QN_VQ_E8P12 ? 1 : 2,
                        .last_is_e8 = vq->codebook == QN_VQ_E8P12RVQ3B};
    l.tiles = qn_ceil_div(l.units, TILE_UNITS);
    l.blocks = qn_ceil_div(l.panels, PANELS);
    l.bases[0] = l.side.turns_in ? qn_hadamard_base(vq->k) : 0;
    l.bases[1] = l.side.turns_out ? qn_hadamard_base(vq->n) : 0;
    size_t at = 0;
    for (int b = 0; b < l.books; b++) {
        l.bytes[b] = b > 0 && l.last_is_e8 ? 64 : 128;
        l.codes[b] = qn_size_place(&at, qn_size_mul((size_t)l.panels, (size_t)l.units), 2 * (size_t)l.bytes[b]);
    }
    l.magnitudes = qn_size_place(&at, 1, QN_VQ_POINT_BYTES);
    l.e8 = qn_size_place(&at, (size_t)l.last_is_e8, QN_VQ_POINT_BYTES);
    for (int i = 0; i < 2; i++) {
        l.mix[i] = qn_size_place(&at, (size_t)(l.bases[i] * l.bases[i]), sizeof(float));
    }
    l.side_at = at;
    l.total = qn_size_add(at, l.side.total);
    return l;
}

/* Where a block's codes begin, and the bytes of row n, group g; the first of its codes. */
static size_t block_at(const lattice_layout *l, int b, int64_t block)
{
    return l->codes[b] + (size_t)(block * PANELS * l->units * 2 * l->bytes[b]);
}

static size_t code_at(const lattice_layout *l, int b, int64_t n, int64_t g)
{
    const int64_t block = n / QN_VQ_BLOCK, panel = n / QN_VQ_PANEL % PANELS, unit = g / 8, line = g / 4 % 2;
    const int64_t panels = qn_min_i64(PANELS, l->panels - block * PANELS), tile = unit / TILE_UNITS;
    const int64_t units = qn_min_i64(TILE_UNITS, l->units - tile * TILE_UNITS);
    const int64_t at = (tile * TILE_UNITS * panels + panel * units + unit % TILE_UNITS) * 2 + line;
    return block_at(l, b, block) + (size_t)(at * l->bytes[b] + n % QN_VQ_PANEL * 4 + g % 4);
}

static void pack_code(uint32_t code, char *to)
{
    float value[8];
    uint32_t signs = (uint32_t)__builtin_parity(code & 255); /* the shift */
    qn_e8p_decode(code, value);
    for (int i = 1; i < 8; i++) {
        signs |= (uint32_t)(value[i] < 0) << i; /* magnitudes are above the shift */
    }
    to[0] = (char)(code >> 8);
    to[64] = (char)signs;
}

static void pack_tables(const lattice_layout *l, uint8_t *body)
{
    float value[8];
    for (uint32_t e = 0; e < 256; e++) {
        uint32_t odd = 0;
        qn_e8p_magnitudes(e, value);
        for (int i = 0; i < 8; i++) {
            const uint32_t m = (uint32_t)value[i];
            body[l->magnitudes + (uint32_t)i * 256 + e] = (uint8_t)(4 * m);
            odd ^= m & 1;
        }
        body[l->magnitudes + e] |= (uint8_t)(odd << 7);
        qn_e8_decode(e, value);
        for (int i = 0; i < 8 && l->last_is_e8; i++) {
            body[l->e8 + (uint32_t)i * 256 + e] = (uint8_t)((int32_t)(4.0f * value[i]) + QN_VQ_LATTICE_BIAS);
        }
    }
    for (int64_t t = 0; t < 2; t++) {
        const int64_t base = l->bases[t];
        float *const mix = (float *)(void *)(body + l->mix[t]);
        for (int64_t i = 0; i < base * base; i++) { /* x is turned by the transpose */
            const int64_t row = i / base, column = i % base;
            mix[i] = (float)qn_hadamard_sign(base, t ? row : column, t ? column : row);
        }
    }
}

static void pack_body(const lattice_layout *l, const qn_vq *vq, const qn_view *bias, char *body)
{
    memset(body, 0, l->total);
    for (int64_t n = 0; n < vq->n; n++) {
        for (int64_t g = 0; g < vq->k / 8; g++) {
            pack_code(qn_vq_quip_code(vq, n, g), body + code_at(l, 0, n, g));
            if (l->last_is_e8) {
                body[code_at(l, 1, n, g)] = (char)qn_vq_quip_residual(vq, n, g);
            } else if (l->books > 1) {
                pack_code(qn_vq_quip_residual(vq, n, g), body + code_at(l, 1, n, g));
            }
        }
    }
    pack_tables(l, (uint8_t *)body);
    qn_vq_side_pack(&l->side, vq, bias, body + l->side_at);
}

const char *qn_vq_lattice_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_FORMAT].i != QN_VQ_QUIP_E8P ? "made for another vector format"
                                                          : qn_vq_side_rung_refusal(kernel, desc);
}

size_t qn_vq_lattice_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    return layout_of(desc, &vq).total;
}

void qn_vq_lattice_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    const lattice_layout l = layout_of(desc, &vq);
    pack_body(&l, &vq, &args->in[QN_VQMM_BIAS], body);
}

/* ---- running ---- */

static qn_vq_digits_memory memory_of(const lattice_layout *l, const qn_vq *vq, int64_t m, int32_t threads)
{
    return qn_vq_digits_memory_of(vq, m, threads, l->tiles, QN_VQ_LATTICE_SCRATCH, QN_VQ_BLOCK, l->total);
}

size_t qn_vq_lattice_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    const lattice_layout l = layout_of(desc, &vq);
    return memory_of(&l, &vq, m, threads).total;
}

typedef struct lattice_job {
    const qn_vq_lattice_impl *impl;
    lattice_layout l;
    qn_vq_side side;
    qn_vq_digits digits;
    const char *body;
    double unit[QN_VQ_LATTICE_BOOKS]; /* of a book's integers */
} lattice_job;

/* Four times the values of a packed code. */
static void integers_at(const lattice_job *job, int b, int64_t n, int64_t g, int32_t value[8])
{
    const uint8_t *const body = (const uint8_t *)job->body, *const at = body + code_at(&job->l, b, n, g);
    if (job->l.bytes[b] == 64) {
        for (uint32_t i = 0; i < 8; i++) {
            value[i] = body[job->l.e8 + i * 256 + at[0]] - QN_VQ_LATTICE_BIAS;
        }
        return;
    }
    const uint8_t *const magnitudes = body + job->l.magnitudes + at[0];
    const int shifted = at[64] & 1;
    for (int i = 0; i < 8; i++) {
        const int32_t size = (magnitudes[i * 256] & 12) + 2;
        const int negative = i ? at[64] >> i & 1 : __builtin_parity(at[64] & 0xfe) ^ magnitudes[0] >> 7;
        value[i] = (negative ? -size : size) + (shifted ? -1 : 1);
    }
}

/* A row that has no digits. */
static void special_row(const lattice_job *job, int64_t m, int64_t n0, int64_t count)
{
    const qn_vq_side *side = &job->side;
    const float *const x = side->rows + m * side->k_pad;
    if (qn_vq_side_put_nan(side, m, n0, count)) {
        return;
    }
    for (int64_t n = n0; n < n0 + count; n++) {
        double sum = 0.0;
        for (int64_t g = 0; g < side->k / 8; g++) {
            double weight[8] = {0};
            for (int b = 0; b < job->l.books; b++) {
                int32_t value[8];
                integers_at(job, b, n, g, value);
                for (int i = 0; i < 8; i++) {
                    weight[i] += (double)value[i] * job->unit[b];
                }
            }
            for (int i = 0; i < 8; i++) {
                sum += weight[i] * (double)x[g * 8 + i];
            }
        }
        side->sums[m * side->n + n] = (float)sum;
    }
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const lattice_job *job = user;
    const qn_vq_side *side = &job->side;
    const lattice_layout *l = &job->l;
    const qn_vq_digits *d = &job->digits;
    char *const scratch = d->workspace + d->at.scratch + (size_t)thread * d->at.thread;
    const int64_t parts = qn_ceil_div(side->m, QN_VQ_DIGITS_ROWS), block = index / parts,
                  m0 = index % parts * QN_VQ_DIGITS_ROWS;
    const int64_t n0 = block * QN_VQ_BLOCK, count = qn_min_i64(QN_VQ_BLOCK, side->n - n0);
    const uint8_t *const body = (const uint8_t *)job->body;
    qn_vq_lattice_call call = {.books = l->books,
                               .last_is_e8 = l->last_is_e8,
                               .magnitudes = body + l->magnitudes,
                               .e8 = body + l->e8,
                               .panels = qn_min_i64(PANELS, l->panels - block * PANELS),
                               .units = l->units,
                               .digits = qn_vq_digits_row(d, m0),
                               .digit_stride = d->at.stride,
                               .scales = qn_vq_digits_scales(d, m0),
                               .offsets = qn_vq_digits_offsets(d, m0),
                               .rows = qn_min_i64(QN_VQ_DIGITS_ROWS, side->m - m0),
                               .sums = (float *)(void *)(scratch + d->at.sums),
                               .scratch = scratch};
    for (int b = 0; b < l->books; b++) {
        call.codes[b] = body + block_at(l, b, block);
        call.unit[b] = (float)job->unit[b];
    }
    job->impl->set->mm(&call);
    for (int64_t r = 0; r < call.rows; r++) {
        memcpy(side->sums + (m0 + r) * side->n + n0, call.sums + r * QN_VQ_BLOCK, (size_t)count * sizeof(float));
        if (qn_vq_digits_special(d, m0 + r)) {
            special_row(job, m0 + r, n0, count);
        }
    }
}

void qn_vq_lattice_run(const qn_kernel *kernel, const qn_run_call *call)
{
    lattice_job job = {.impl = kernel->impl, .body = call->packed};
    char *const workspace = call->workspace;
    qn_vq vq;
    qn_vq_bind(call->desc, call->args, &vq);
    if (call->sizes.m == 0 || vq.n == 0) {
        return;
    }
    job.l = layout_of(call->desc, &vq);
    job.digits = (qn_vq_digits){.at = memory_of(&job.l, &vq, call->sizes.m, qn_exec_threads(call->exec)),
                                .side = &job.side,
                                .workspace = workspace,
                                .tiles = job.l.tiles,
                                .fn = job.impl->rows->digits};
    job.unit[0] = 0.25;
    job.unit[1] = 0.25 / vq.resid_scale;
    if (!job.body) {
        pack_body(&job.l, &vq, &call->args->in[QN_VQMM_BIAS], workspace + job.digits.at.body);
        job.body = workspace + job.digits.at.body;
    }
    qn_vq_side_bind(call, &vq, job.impl->parts, job.body + job.l.side_at, workspace, &job.side);
    job.side.turn = job.impl->rows->turn;
    for (int i = 0; i < 2; i++) {
        job.side.mix[i] = (const float *)(const void *)(job.body + job.l.mix[i]);
    }
    qn_vq_side_prepare(&job.side, call->exec);
    qn_vq_digits_make(&job.digits, call->exec);
    qn_parallel_for(call->exec, job.l.blocks * qn_ceil_div(job.side.m, QN_VQ_DIGITS_ROWS), block_task, &job);
    qn_vq_side_finish(&job.side, call->exec);
}
