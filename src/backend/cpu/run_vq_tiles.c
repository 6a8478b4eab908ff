/* vq_mm of gptvq: rows of x become digits once, then a task is a block of 64 rows
 * of w (many rows of x: the 256 that share books) along the whole of K, whose codes stream from front to back.
 *
 * Packed: codes [blocks of 64][2][tiles along K][2 panels][1024] (kernels/common/vq.h), books [tile rows][tiles][1024],
 * their scales, and the side section. Padding of N and K is code 0, which padded digits of 0 take out again.
 *
 * Rows of x that digits cannot hold (NaN, infinities, sizes beyond 2^+-80) are computed here in double from single
 * elements: rare, slow and as the formula has it. Grid and bits depend on shapes and the row itself only. */
#include "backend/cpu/run_vq_tiles.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "backend/cpu/vq_digits.h"
#include "base/checked.h"
#include "ref/slots.h"

/* ---- packed body ---- */

typedef struct tiles_layout {
    qn_vq_side_layout side;
    int64_t blocks, tiles, tile_rows;
    size_t books, scales, side_at, total;
} tiles_layout;

static tiles_layout layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    tiles_layout l = {.side = qn_vq_side_layout_of(desc, vq),
                      .blocks = qn_ceil_div(vq->n, QN_VQ_BLOCK),
                      .tiles = qn_ceil_div(vq->k, QN_VQ_TILE_K),
                      .tile_rows = qn_ceil_div(vq->n, QN_VQ_TILE)};
    const size_t books = qn_size_mul((size_t)l.tile_rows, (size_t)l.tiles);
    size_t at = 0;
    (void)qn_size_place(&at, qn_size_mul((size_t)l.blocks, (size_t)l.tiles), 4 * QN_VQ_TILE_BYTES);
    l.books = qn_size_place(&at, books, QN_VQ_TILE_BYTES);
    l.scales = qn_size_place(&at, books, sizeof(float));
    l.side_at = at;
    l.total = qn_size_add(at, l.side.total);
    return l;
}

/* Where the code of row n of w, elements 4 g to 4 g + 3 is. */
static int64_t code_at(const tiles_layout *l, int64_t n, int64_t g)
{
    const int64_t pair = n / (2 * QN_VQ_PANEL); /* of panels: a stream along K */
    const int64_t tile = (pair * l->tiles + g / 64) * 2 + n % (2 * QN_VQ_PANEL) / QN_VQ_PANEL;
    return tile * QN_VQ_TILE_BYTES + g % 64 / 4 * 64 + n % QN_VQ_PANEL * 4 + g % 4;
}

static void pack_body(const tiles_layout *l, const qn_vq *vq, const qn_view *bias, char *body)
{
    const qn_view *codes = &vq->tensor[QN_VQ_CODES], *books = &vq->tensor[QN_VQ_CODEBOOKS];
    memset(body, 0, l->total);
    for (int64_t n = 0; n < vq->n; n++) {
        const char *const row = (const char *)codes->data + n * codes->strides[0];
        for (int64_t g = 0; g < vq->k / 4; g++) {
            body[code_at(l, n, g)] = row[g];
        }
    }
    float *const scales = (float *)(void *)(body + l->scales);
    for (int64_t t = 0; t < l->tile_rows * l->tiles; t++) {
        uint8_t *const to = (uint8_t *)body + l->books + t * QN_VQ_TILE_BYTES;
        for (int64_t e = 0; e < 256; e++) {
            float entry[4];
            qn_vq_values(books, (t * 256 + e) * 4, 4, entry);
            for (int j = 0; j < 4; j++) {
                to[j * 256 + e] = (uint8_t)((int32_t)entry[j] + 128);
            }
        }
        scales[t] = (float)qn_vq_value(&vq->tensor[QN_VQ_CODEBOOK_SCALES], t, 1.0);
    }
    qn_vq_side_pack(&l->side, vq, bias, body + l->side_at);
}

const char *qn_vq_tiles_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_FORMAT].i != QN_VQ_GPTVQ ? "made for another vector format"
                                                       : qn_vq_side_rung_refusal(kernel, desc);
}

size_t qn_vq_tiles_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    return layout_of(desc, &vq).total;
}

void qn_vq_tiles_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    const tiles_layout l = layout_of(desc, &vq);
    pack_body(&l, &vq, &args->in[QN_VQMM_BIAS], body);
}

/* ---- running ---- */

/* Blocks a task: those that share books, so that digits of many rows are read from memory once for all of them. */
static int64_t task_blocks(int64_t m)
{
    return m > QN_VQ_ROW_GROUP ? QN_VQ_TILE / QN_VQ_BLOCK : 1;
}

static qn_vq_digits_memory memory_of(const tiles_layout *l, const qn_vq *vq, int64_t m, int32_t threads)
{
    return qn_vq_digits_memory_of(vq, m, threads, l->tiles, QN_VQ_TILES_SCRATCH, task_blocks(m) * QN_VQ_BLOCK,
                                  l->total);
}

size_t qn_vq_tiles_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    const tiles_layout l = layout_of(desc, &vq);
    return memory_of(&l, &vq, m, threads).total;
}

typedef struct tiles_job {
    const qn_vq_tiles_impl *impl;
    tiles_layout l;
    qn_vq_side side;
    qn_vq_digits digits;
    const char *body;
} tiles_job;

/* A row that has no digits. */
static void special_row(const tiles_job *job, int64_t m, int64_t n0, int64_t count)
{
    const qn_vq_side *side = &job->side;
    const float *const x = side->rows + m * side->k_pad;
    if (qn_vq_side_put_nan(side, m, n0, count)) {
        return;
    }
    for (int64_t n = n0; n < n0 + count; n++) {
        double sum = 0.0;
        for (int64_t i = 0; i < side->k; i++) {
            const int64_t tile = n / QN_VQ_TILE * job->l.tiles + i / QN_VQ_TILE_K;
            const uint8_t code = (uint8_t)job->body[code_at(&job->l, n, i / 4)];
            const uint8_t *const book = (const uint8_t *)job->body + job->l.books + tile * QN_VQ_TILE_BYTES;
            const float scale = ((const float *)(const void *)(job->body + job->l.scales))[tile];
            sum += (double)(scale * (float)(book[i % 4 * 256 + code] - 128)) * (double)x[i];
        }
        side->sums[m * side->n + n] = (float)sum;
    }
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const tiles_job *job = user;
    const qn_vq_side *side = &job->side;
    const tiles_layout *l = &job->l;
    const qn_vq_digits *d = &job->digits;
    char *const scratch = d->workspace + d->at.scratch + (size_t)thread * d->at.thread;
    const int64_t parts = qn_ceil_div(side->m, QN_VQ_DIGITS_ROWS), blocks = task_blocks(side->m);
    const int64_t block = index / parts * blocks, m0 = index % parts * QN_VQ_DIGITS_ROWS;
    const int64_t first_tile = block * QN_VQ_BLOCK / QN_VQ_TILE * l->tiles;
    const qn_vq_tiles_call call = {.codes = (const uint8_t *)job->body + block * l->tiles * 4 * QN_VQ_TILE_BYTES,
                                   .books = (const uint8_t *)job->body + l->books + first_tile * QN_VQ_TILE_BYTES,
                                   .book_scales = (const float *)(const void *)(job->body + l->scales) + first_tile,
                                   .tiles = l->tiles,
                                   .blocks = qn_min_i64(blocks, l->blocks - block),
                                   .k = side->k,
                                   .panels = qn_min_i64(blocks * QN_VQ_BLOCK / QN_VQ_PANEL,
                                                        qn_ceil_div(side->n - block * QN_VQ_BLOCK, QN_VQ_PANEL)),
                                   .digits = qn_vq_digits_row(d, m0),
                                   .digit_stride = d->at.stride,
                                   .scales = qn_vq_digits_scales(d, m0),
                                   .offsets = qn_vq_digits_offsets(d, m0),
                                   .rows = qn_min_i64(QN_VQ_DIGITS_ROWS, side->m - m0),
                                   .sums = (float *)(void *)(scratch + d->at.sums),
                                   .scratch = scratch};
    job->impl->set->mm(&call);
    for (int64_t r = 0; r < call.rows; r++) {
        for (int64_t b = 0; b < call.blocks; b++) {
            const int64_t n0 = (block + b) * QN_VQ_BLOCK, count = qn_min_i64(QN_VQ_BLOCK, side->n - n0);
            memcpy(side->sums + (m0 + r) * side->n + n0, call.sums + (b * call.rows + r) * QN_VQ_BLOCK,
                   (size_t)count * sizeof(float));
            if (qn_vq_digits_special(d, m0 + r)) {
                special_row(job, m0 + r, n0, count);
            }
        }
    }
}

void qn_vq_tiles_run(const qn_kernel *kernel, const qn_run_call *call)
{
    tiles_job job = {.impl = kernel->impl, .body = call->packed};
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
                                .fn = job.impl->set->digits};
    if (!job.body) {
        pack_body(&job.l, &vq, &call->args->in[QN_VQMM_BIAS], workspace + job.digits.at.body);
        job.body = workspace + job.digits.at.body;
    }
    qn_vq_side_bind(call, &vq, job.impl->parts, job.body + job.l.side_at, workspace, &job.side);
    qn_vq_side_prepare(&job.side, call->exec);
    qn_vq_digits_make(&job.digits, call->exec);
    qn_parallel_for(call->exec,
                    qn_ceil_div(job.l.blocks, task_blocks(job.side.m)) * qn_ceil_div(job.side.m, QN_VQ_DIGITS_ROWS),
                    block_task, &job);
    qn_vq_side_finish(&job.side, call->exec);
}
