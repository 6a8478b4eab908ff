/* Host side of block_scaled_mm on Hopper. A plan has a kernel for few rows at each of several heights, one for 65 to
 * 128 rows, tiles for many rows, and a plain kernel for operands that the bulk copies cannot take; the run picks by M
 * and alignment. What the kernels expect, and which tile is best where, is the host contract at the top of each source.
 *
 * The tensor core sums FP8 products with fewer bits than f32 has: the row says QN_SUMS_FP8_MMA, docs/operators.md how
 * much that may cost. */
#include <string.h>

#include "backend/cuda/tiles.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_SPLIT = 8 };

/* Programs of a plan: plain, tiles, then the heights of the skinny kernel. FEW has one row of tiles. ANY takes any
 * alignment of d. */
enum { PLAIN = 0, TILES, FEW = TILES + QN_BLOCK_TILES, SKINNY };
static const int32_t heights[] = {8, 16, 32, 64, 128};
enum { HEIGHTS = sizeof heights / sizeof *heights };

/* Measured on an H200 with constant weights: for strips of 64 rows of b and 128-blocks of K, up to 32, 64 and 128 rows.
 */
static const struct tuned {
    int32_t strips, blocks;
    qn_strip rows32, rows64, rows128;
} tuned[] = {
    {33, 56, {1, 4, 2, 6, 2, 1, 0}, {1, 4, 2, 3, 2, 2, 0}, {2, 4, 2, 3, 1, 2, 0}},
    {64, 56, {1, 2, 2, 6, 2, 1, 0}, {1, 2, 4, 3, 1, 1, 1}, {1, 2, 2, 4, 1, 1, 0}},
    {112, 16, {2, 2, 2, 3, 2, 1, 0}, {1, 1, 2, 6, 1, 1, 1}, {1, 2, 1, 6, 1, 1, 0}},
    {112, 128, {2, 4, 2, 3, 2, 1, 0}, {2, 2, 2, 4, 1, 2, 0}, {2, 2, 2, 3, 1, 2, 0}},
    {384, 12, {3, 1, 2, 4, 1, 1, 0}, {3, 1, 1, 6, 1, 1, 0}, {2, 1, 1, 4, 1, 1, 0}},
    {512, 4, {2, 1, 2, 2, 2, 1, 0}, {2, 1, 1, 4, 2, 1, 1}, {2, 1, 1, 4, 1, 1, 0}},
};

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *b = &desc->in[QN_BMM_B];
    if (b->format != QN_F8_E4M3) {
        return "weights are not e4m3";
    }
    if (b->dims[0] == 0 || b->dims[1] == 0) {
        return "there are no weights";
    }
    return b->dims[0] > INT32_MAX || b->dims[1] > INT32_MAX ? "N or K is 2^31 or more" : NULL;
}

/* The tile of a program; FEW by N, K and the device alone. */
static qn_tile tile_of(int32_t program, const qn_op_desc *desc, const qn_cuda_device *device)
{
    const int64_t n = desc->in[QN_BMM_B].dims[0];
    if (program != FEW) {
        return qn_block_tile(program - TILES, qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, n));
    }
    const int64_t wide = qn_ceil_div(n, 192), square = qn_ceil_div(n, 128), sms = device->sms;
    if (wide <= sms && 10 * wide >= 9 * sms) {
        return (qn_tile){128, 192, 5, 1, 1, 0, 1.0};
    }
    if (square <= 2 * sms && 10 * square >= 18 * sms) {
        return (qn_tile){128, 128, 6, 1, 2, 0, 1.0};
    }
    return (qn_tile){128, 64, 9, 1, 2, 0, 1.0};
}

/* 65 to 128 rows go to FEW, else to the skinny kernel: long K wants its parts. */
static int has_few(const qn_op_desc *desc, const qn_cuda_device *device)
{
    return desc->in[QN_BMM_B].dims[1] <= 4096 || tile_of(FEW, desc, device).bn > 64;
}

/* No parts of K where the strips fill the card, else those that do, of at least 8 blocks. */
static qn_strip strip_of(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    const int64_t strips = qn_ceil_div(b->dims[0], 64), blocks = qn_ceil_div(b->dims[1], 128);
    qn_strip s = {.groups = strips >= 3 * device->sms   ? 3
                            : strips >= 2 * device->sms ? 2
                                                        : 1,
                  .split = 1,
                  .unroll = rows < 64 ? 2 : 1,
                  .stages = 6,
                  .occupancy = 1,
                  .pair = 1};
    while (s.split < MOST_SPLIT && 2 * s.split * qn_ceil_div(strips, s.groups) <= device->sms &&
           16 * s.split <= blocks) {
        s.split *= 2;
    }
    for (size_t i = 0; i < sizeof tuned / sizeof *tuned; i++) {
        if (tuned[i].strips == strips && tuned[i].blocks == blocks) {
            s = rows <= 32 ? tuned[i].rows32 : rows <= 64 ? tuned[i].rows64 : tuned[i].rows128;
        }
    }
    if (rows > 64 && s.groups > 2) {
        s.groups = 2; /* sums of 128 rows need more registers than 14 warps have */
    }
    qn_strip_fit(&s, rows, QN_ONE_MATRIX);
    return s;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const int32_t form = desc->attr[QN_ATTR_OUT].i;
    out[PLAIN].source = "block_scaled_mm_plain.cu";
    out[PLAIN].entry = "qn_block_scaled_mm_plain";
    qn_cuda_define(&out[PLAIN], "OUT", form);
    qn_cuda_define(&out[PLAIN], "LAYOUT", QN_ONE_MATRIX);
    for (int32_t i = TILES; i < SKINNY; i++) {
        const qn_tile t = tile_of(i, desc, device);
        qn_block_tile_program(&t, form, QN_ONE_MATRIX, &out[i]);
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        const qn_strip s = strip_of(desc, device, heights[i]);
        qn_strip_program(&s, heights[i], form, QN_ONE_MATRIX, &out[SKINNY + i]);
    }
    return SKINNY + HEIGHTS;
}

/* ---- the run ---- */

/* Arguments of all three kernels but the first: device memory and steps in elements. */
typedef struct operands {
    const void *a, *b, *scale_a, *scale_b, *groups;
    void *d;
    long long a_row, b_row, scale_a_row, scale_a_block, scale_b_row, d_row, none;
    int32_t m, n, k, experts, zero, constant;
} operands;

static operands operands_of(const qn_run_call *call)
{
    const qn_args *args = call->args;
    const int64_t scale_step = args->in[QN_BMM_SCALE_A].strides[0] / 4;
    const int col = call->desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    const int64_t out_bytes = qn_format_get_info(args->out[QN_MM_OUT_D].shape.format)->block_bytes;
    return (operands){.a = args->in[QN_BMM_A].data,
                      .b = args->in[QN_BMM_B].data,
                      .scale_a = args->in[QN_BMM_SCALE_A].data,
                      .scale_b = args->in[QN_BMM_SCALE_B].data,
                      .d = args->out[QN_MM_OUT_D].data,
                      .a_row = args->in[QN_BMM_A].strides[0],
                      .b_row = args->in[QN_BMM_B].strides[0],
                      .scale_a_row = col ? 1 : scale_step,
                      .scale_a_block = col ? scale_step : 1,
                      .scale_b_row = args->in[QN_BMM_SCALE_B].strides[0] / 4,
                      .d_row = args->out[QN_MM_OUT_D].strides[0] / out_bytes,
                      .m = (int32_t)call->sizes.m,
                      .n = (int32_t)call->sizes.n,
                      .k = (int32_t)call->sizes.k,
                      .experts = 1};
}

static qn_status launch_plain(const qn_cuda_run *run, operands *o, qn_error *error)
{
    void *const arguments[] = {&o->a,       &o->a_row,       &o->none,          &o->b,    &o->b_row,   &o->none,
                               &o->scale_a, &o->scale_a_row, &o->scale_a_block, &o->none, &o->scale_b, &o->scale_b_row,
                               &o->none,    &o->d,           &o->d_row,         &o->none, &o->groups,  &o->m,
                               &o->n,       &o->k,           &o->experts};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(o->n, QN_PLAIN_TILE), (uint32_t)qn_ceil_div(o->m, QN_PLAIN_TILE), 1},
        .block = {QN_PLAIN_THREADS, 1, 1}};
    QN_FAIL_IF(g.grid[1] > QN_MOST_GRID_Y, error, QN_E_UNSUPPORTED,
               "block_scaled_mm: %d rows of operands that are not 16-byte aligned are more than one launch takes",
               o->m);
    return qn_cuda_launch(run, PLAIN, &g, arguments, error);
}

/* Rounds of the card that a tile takes. */
static int64_t rounds_of(const qn_tile *t, const operands *o, const qn_cuda_device *device)
{
    return qn_ceil_div(qn_ceil_div(o->m, t->bm) * qn_ceil_div(o->n, t->bn), device->sms);
}

/* The program of the least estimated time. */
static int32_t choose_tile(const qn_cuda_run *run, const operands *o)
{
    static const int32_t candidates[] = {TILES + QN_TILE_TALL, TILES + QN_TILE_WIDE, TILES + QN_TILE_ANY};
    const int misaligned = ((uint64_t)(uintptr_t)o->d | (uint64_t)(2 * o->d_row)) % 16 != 0;
    if (o->m <= 128) {
        return FEW;
    }
    int32_t best = TILES + QN_TILE_ANY;
    double least = 0.0;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++) {
        const qn_tile t = tile_of(candidates[i], run->call->desc, run->device);
        const int64_t rounds = rounds_of(&t, o, run->device);
        const double cost = (double)rounds * t.bm * t.bn / t.weight;
        if ((t.store && misaligned) || (least > 0.0 && cost >= least)) {
            continue;
        }
        least = cost;
        best = i == 0 && rounds > 3 ? TILES + QN_TILE_TALL_PAIR : candidates[i];
    }
    return best;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "block_scaled_mm: M is 2^31 or more");
    operands o = operands_of(run->call);
    o.constant = qn_cuda_constant_weights(run);
    if (!qn_tile_aligned(o.a, o.a_row, 0) || !qn_tile_aligned(o.b, o.b_row, 0)) {
        return launch_plain(run, &o, error);
    }
    int32_t height = 0;
    while (height < HEIGHTS && heights[height] < o.m) {
        height++;
    }
    const int skinny = height < HEIGHTS && (o.m <= 64 || !has_few(run->call->desc, run->device));
    const int32_t program = skinny ? SKINNY + height : choose_tile(run, &o);
    qn_tensor_map a_map, b_map, d_map;
    void *common[] = {&o.scale_a, &o.scale_a_row, &o.scale_a_block, &o.none,     &o.scale_b, &o.scale_b_row, &o.none,
                      &o.d,       &o.d_row,       &o.none,          &o.groups,   &o.m,       &o.n,           &o.k,
                      &o.experts, &o.zero,        &o.zero,          &o.constant, &o.zero};
    void *arguments[3 + sizeof common / sizeof *common] = {&a_map, &b_map, &d_map};
    memcpy(&arguments[skinny ? 2 : 3], common, sizeof common);
    if (skinny) {
        const qn_strip s = strip_of(run->call->desc, run->device, heights[height]);
        QN_TRY(
            qn_tile_byte_map(run, o.a, o.k, o.m, 1, o.a_row, o.a_row * o.m, heights[height] / s.pair, &a_map, error));
        QN_TRY(qn_tile_byte_map(run, o.b, o.k, o.n, 1, o.b_row, o.b_row * o.n, 64 * s.groups, &b_map, error));
        const int32_t cluster = s.pair * s.split;
        o.constant = o.constant && !s.late;
        const qn_cuda_geometry g = {.grid = {(uint32_t)(qn_ceil_div(o.n, 64 * s.groups * s.pair) * cluster), 1, 1},
                                    .block = {128 * (uint32_t)s.groups + 64, 1, 1},
                                    .shared_bytes = (uint32_t)qn_strip_shared(&s, heights[height], QN_ONE_MATRIX),
                                    .cluster = (uint32_t)cluster,
                                    .dependent = 1};
        return qn_cuda_launch(run, program, &g, arguments, error);
    }
    const qn_tile t = tile_of(program, run->call->desc, run->device);
    QN_TRY(qn_tile_byte_map(run, o.a, o.k, o.m, 1, o.a_row, o.a_row * o.m, t.bm / t.cluster, &a_map, error));
    QN_TRY(qn_tile_byte_map(run, o.b, o.k, o.n, 1, o.b_row, o.b_row * o.n, t.bn, &b_map, error));
    d_map = b_map; /* not read without STORE */
    if (t.store) {
        QN_TRY(qn_tile_out_map(run, o.d, o.n, o.m, 1, 2 * o.d_row, 2 * o.d_row * o.m, &d_map, error));
    }
    const int64_t blocks = qn_ceil_div(o.m, t.bm) * qn_ceil_div(o.n, (int64_t)t.bn * t.cluster) * t.cluster;
    const qn_cuda_geometry g = qn_tile_geometry(run->device, t.cluster, blocks, qn_tile_shared(&t));
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_block_scaled_mm_e4m3_e4m3_fp__sm90a_128x128", .op = QN_OP_BLOCK_SCALED_MM,
     .level = "sm_90a", .sums = QN_SUMS_FP8_MMA, .status = "tested", .accepts = accepts, .impl = &impl},
};

const qn_cuda_family qn_cuda_block_scaled_mm_family = {kernels, sizeof kernels};
