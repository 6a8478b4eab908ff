/* vq_mm of gptvq: rows of x become digits once, then a task is a block of 64 rows
 * of w along the whole of K, whose codes stream from front to back.
 *
 * Packed: codes [blocks of 64][2][tiles along K][2 panels][1024] (kernels/common/vq.h), books [tile rows][tiles][1024],
 * their scales, and the side section. Padding of N and K is code 0, which padded digits of 0 take out again.
 *
 * Rows of x that digits cannot hold (NaN, infinities, sizes beyond 2^+-80) are computed here in double from single
 * elements: rare, slow and as the formula has it. Grid and bits depend on shapes and the row itself only. */
#include "backend/cpu/run_vq_tiles.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "backend/cpu/vq_side.h"
#include "base/checked.h"
#include "ref/slots.h"

#define MOST_ROWS 256 /* of x a task: their digits stay in the cache beside each other */

/* ---- packed body ---- */

typedef struct tiles_layout {
    qn_vq_side_layout side;
    int64_t blocks, tiles, tile_rows;
    size_t books, scales, side_at, total;
} tiles_layout;

static size_t place(size_t *at, int64_t a, int64_t b, int64_t size)
{
    const size_t here = *at;
    *at = qn_size_pad(qn_size_add(here, qn_size_mul(qn_size_mul((size_t)a, (size_t)b), (size_t)size)));
    return here;
}

static tiles_layout layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    tiles_layout l = {.side = qn_vq_side_layout_of(desc, vq),
                      .blocks = qn_ceil_div(vq->n, QN_VQ_BLOCK),
                      .tiles = qn_ceil_div(vq->k, QN_VQ_TILE_K),
                      .tile_rows = qn_ceil_div(vq->n, QN_VQ_TILE)};
    size_t at = 0;
    (void)place(&at, l.blocks, l.tiles, 4 * QN_VQ_TILE_BYTES);
    l.books = place(&at, l.tile_rows, l.tiles, QN_VQ_TILE_BYTES);
    l.scales = place(&at, l.tile_rows, l.tiles, sizeof(float));
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
    (void)kernel;
    return desc->attr[QN_ATTR_FORMAT].i == QN_VQ_GPTVQ ? NULL : "made for another vector format";
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

/* ---- memory ---- */

typedef struct memory {
    size_t side, digits, scales, offsets, special, scratch, thread, sums, body, total;
    int64_t rows, stride; /* padded rows; bytes from a row's digits to the next, apart in the caches' sets */
} memory;

static memory memory_of(const qn_op_desc *desc, const qn_vq *vq, int64_t m, int32_t threads)
{
    const tiles_layout l = layout_of(desc, vq);
    memory at = {.rows = m > 1 ? qn_ceil_div(m, QN_VQ_ROW_GROUP) * QN_VQ_ROW_GROUP : 1};
    const size_t stride = qn_size_mul((size_t)l.tiles, QN_VQ_PLANES * QN_VQ_TILE_K);
    at.stride = stride > INT64_MAX / 2 ? INT64_MAX / 2 : (int64_t)stride + 64;
    const size_t rows = (size_t)at.rows, some = (size_t)qn_min_i64(at.rows, MOST_ROWS);
    at.digits = qn_size_pad(qn_vq_side_bytes(vq, m, threads));
    at.scales = qn_size_pad(qn_size_add(at.digits, qn_size_mul(rows, (size_t)at.stride)));
    at.offsets = qn_size_pad(qn_size_add(at.scales, qn_size_mul(qn_size_mul(rows, (size_t)l.tiles), 4)));
    at.special = qn_size_pad(qn_size_add(at.offsets, qn_size_mul(qn_size_mul(rows, (size_t)l.tiles), 16)));
    at.scratch = qn_size_pad(qn_size_add(at.special, rows));
    at.sums = QN_VQ_TILES_SCRATCH;
    at.thread = at.sums + qn_size_pad(some * QN_VQ_BLOCK * sizeof(float));
    at.body = qn_size_add(at.scratch, qn_size_mul((size_t)threads, at.thread));
    at.total = qn_size_add(at.body, l.total);
    return at;
}

size_t qn_vq_tiles_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_side_describe(desc, &vq);
    return memory_of(desc, &vq, m, threads).total;
}

/* ---- running ---- */

typedef struct tiles_job {
    const qn_vq_tiles_impl *impl;
    tiles_layout l;
    memory at;
    qn_vq_side side;
    const char *body;
    char *workspace;
    uint8_t *special;
} tiles_job;

static void digits_task(void *user, int64_t m, int32_t thread)
{
    (void)thread;
    const tiles_job *job = user;
    int8_t *const digits = (int8_t *)job->workspace + job->at.digits + m * job->at.stride;
    float *const scales = (float *)(void *)(job->workspace + job->at.scales) + m * job->l.tiles;
    int32_t *const offsets = (int32_t *)(void *)(job->workspace + job->at.offsets) + m * job->l.tiles * 4;
    const float *const row = job->side.rows + m * job->side.k_pad;
    job->special[m] = (uint8_t)job->impl->set->digits(row, job->side.k, digits, scales, offsets);
}

/* A row that has no digits. */
static void special_row(const tiles_job *job, int64_t m, int64_t n0, int64_t count)
{
    const qn_vq_side *side = &job->side;
    const float *const x = side->rows + m * side->k_pad;
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
    char *const scratch = job->workspace + job->at.scratch + (size_t)thread * job->at.thread;
    const int64_t parts = qn_ceil_div(side->m, MOST_ROWS), block = index / parts, m0 = index % parts * MOST_ROWS;
    const int64_t first_tile = block * QN_VQ_BLOCK / QN_VQ_TILE * l->tiles, n0 = block * QN_VQ_BLOCK;
    const qn_vq_tiles_call call = {
        .codes = (const uint8_t *)job->body + block * l->tiles * 4 * QN_VQ_TILE_BYTES,
        .books = (const uint8_t *)job->body + l->books + first_tile * QN_VQ_TILE_BYTES,
        .book_scales = (const float *)(const void *)(job->body + l->scales) + first_tile,
        .tiles = l->tiles,
        .digits = (const int8_t *)job->workspace + job->at.digits + m0 * job->at.stride,
        .digit_stride = job->at.stride,
        .scales = (const float *)(const void *)(job->workspace + job->at.scales) + m0 * l->tiles,
        .offsets = (const int32_t *)(const void *)(job->workspace + job->at.offsets) + m0 * l->tiles * 4,
        .rows = qn_min_i64(MOST_ROWS, side->m - m0),
        .sums = (float *)(void *)(scratch + job->at.sums),
        .scratch = scratch};
    const int64_t count = qn_min_i64(QN_VQ_BLOCK, side->n - n0);
    job->impl->set->mm(&call);
    for (int64_t r = 0; r < call.rows; r++) {
        memcpy(side->sums + (m0 + r) * side->n + n0, call.sums + r * QN_VQ_BLOCK, (size_t)count * sizeof(float));
        if (job->special[m0 + r]) {
            special_row(job, m0 + r, n0, count);
        }
    }
}

void qn_vq_tiles_run(const qn_kernel *kernel, const qn_run_call *call)
{
    tiles_job job = {.impl = kernel->impl, .workspace = call->workspace, .body = call->packed};
    qn_vq vq;
    qn_vq_bind(call->desc, call->args, &vq);
    if (call->sizes.m == 0 || vq.n == 0) {
        return;
    }
    job.l = layout_of(call->desc, &vq);
    job.at = memory_of(call->desc, &vq, call->sizes.m, qn_exec_threads(call->exec));
    job.special = (uint8_t *)job.workspace + job.at.special;
    if (!job.body) {
        pack_body(&job.l, &vq, &call->args->in[QN_VQMM_BIAS], job.workspace + job.at.body);
        job.body = job.workspace + job.at.body;
    }
    qn_vq_side_bind(call, &vq, job.impl->parts, job.body + job.l.side_at, job.workspace, &job.side);
    qn_vq_side_prepare(&job.side, call->exec);
    qn_parallel_for(job.side.m == 1 ? NULL : call->exec, job.side.m, digits_task, &job);
    qn_parallel_for(call->exec, job.l.blocks * qn_ceil_div(job.side.m, MOST_ROWS), block_task, &job);
    qn_vq_side_finish(&job.side, call->exec);
}
