/* Host side of block_scaled_mm on Hopper. A plan has a kernel for few rows at each
 * of several heights, one for many rows, and a plain one for operands that the bulk
 * copies cannot take; the run picks by M and alignment. What the kernels expect is
 * the host contract at the top of each source.
 *
 * Hopper's FP8 products are summed with about 14 bits inside one instruction, so random values may pass the error
 * model of docs/operators.md, which supposes f32 sums (measured: up to 5.3 times it, at small K); the exact grid
 * agrees bit for bit. The row's status says so. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/checked.h"
#include "ref/slots.h"

enum {
    BM = 128,
    BN = 128,
    STAGES = 6,
    TILE_GROUPS = 2,
    TILE_THREADS = 128 + 128 * TILE_GROUPS,
    SKINNY_GROUPS = 1,
    SKINNY_UNROLL = 2,
    SKINNY_THREADS = 128 * SKINNY_GROUPS + 64,
    STRIP = 64 * SKINNY_GROUPS,
    MOST_SHARED = 232448,
    MOST_SPLIT = 8,
    PLAIN_TILE = 64,
    PLAIN_THREADS = 256,
    MOST_GRID_Y = 65535
};

/* Programs of a plan: plain, tiles, then the heights of the skinny kernel. */
enum { PLAIN = 0, TILES = 1, SKINNY = 2 };
static const int32_t heights[] = {8, 16, 32, 64, 128};
enum { HEIGHTS = sizeof heights / sizeof *heights };

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

/* Parts of K: as many blocks as the device holds at once, of whole 128-blocks. */
static int32_t split_of(int64_t n, int64_t k, const qn_cuda_device *device)
{
    const int64_t strips = qn_ceil_div(n, STRIP), blocks = qn_ceil_div(k, 128);
    int32_t split = 1;
    while (split < MOST_SPLIT && 2 * split * strips <= device->sms && 2 * split <= blocks) {
        split *= 2;
    }
    return split;
}

/* Stages of the skinny kernel's ring and the shared memory they take. */
static int32_t skinny_stages(int32_t rows, int32_t *shared_bytes)
{
    const int32_t stage = SKINNY_UNROLL * (8192 * SKINNY_GROUPS + 128 * rows + 4 * (rows + 4)) + 16;
    const int32_t stages = (MOST_SHARED - 512 - 1024) / stage;
    *shared_bytes = 1024 + stages * stage;
    return stages;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const qn_shape *b = &desc->in[QN_BMM_B];
    for (int32_t i = 0; i < SKINNY + HEIGHTS; i++) {
        qn_cuda_define(&out[i], "OUT", desc->attr[QN_ATTR_OUT].i);
        qn_cuda_define(&out[i], "LAYOUT", 0);
    }
    out[PLAIN].source = "block_scaled_mm_plain.cu";
    out[PLAIN].entry = "qn_block_scaled_mm_plain";
    out[TILES].source = "block_scaled_mm.cu";
    out[TILES].entry = "qn_block_scaled_mm";
    out[TILES].shared_bytes = 1024 + STAGES * (128 * (BM + BN) + 4 * (BM + 4) + 16);
    qn_cuda_define(&out[TILES], "BM", BM);
    qn_cuda_define(&out[TILES], "BN", BN);
    qn_cuda_define(&out[TILES], "STAGES", STAGES);
    qn_cuda_define(&out[TILES], "CLUSTER", 1);
    qn_cuda_define(&out[TILES], "GROUPS", TILE_GROUPS);
    qn_cuda_define(&out[TILES], "STORE", 0); /* tiles leave through registers: no map of d */
    qn_cuda_define(&out[TILES], "PARTS", 1);
    for (int32_t i = 0; i < HEIGHTS; i++) {
        qn_cuda_program *p = &out[SKINNY + i];
        p->source = "block_scaled_mm_skinny.cu";
        p->entry = "qn_block_scaled_mm_skinny";
        qn_cuda_define(p, "ROWS", heights[i]);
        qn_cuda_define(p, "GROUPS", SKINNY_GROUPS);
        qn_cuda_define(p, "PAIR", 1);
        qn_cuda_define(p, "SPLIT", split_of(b->dims[0], b->dims[1], device));
        qn_cuda_define(p, "UNROLL", SKINNY_UNROLL);
        qn_cuda_define(p, "STAGES", skinny_stages(heights[i], &p->shared_bytes));
        qn_cuda_define(p, "OCCUPANCY", 1);
        qn_cuda_define(p, "EARLY", 0);
    }
    return SKINNY + HEIGHTS;
}

/* ---- the run ---- */

/* Arguments of all three kernels but the first: device memory and steps in elements. */
typedef struct operands {
    const void *a, *b, *scale_a, *scale_b, *groups;
    void *d;
    long long a_row, b_row, scale_a_row, scale_a_block, scale_b_row, d_row, none;
    int32_t m, n, k, experts;
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

static int may_copy(const operands *o)
{
    return ((uint64_t)(uintptr_t)o->a | (uint64_t)(uintptr_t)o->b | (uint64_t)o->a_row | (uint64_t)o->b_row) % 16 == 0;
}

/* The map of a matrix of bytes in boxes of 128 columns. */
static qn_status make_map(const qn_cuda_run *run, const void *data, int64_t rows, int64_t k, int64_t step, uint32_t box,
                          qn_tensor_map *map, qn_error *error)
{
    const qn_cuda_tensor tensor = {.data = data,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .promotion = CU_L2_PROMOTION_256B,
                                   .dims = {(uint64_t)k, (uint64_t)rows, 1},
                                   .strides = {(uint64_t)step, (uint64_t)(step * rows)},
                                   .box = {128, box, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

static qn_status launch_plain(const qn_cuda_run *run, operands *o, qn_error *error)
{
    void *const arguments[] = {&o->a,       &o->a_row,       &o->none,          &o->b,    &o->b_row,   &o->none,
                               &o->scale_a, &o->scale_a_row, &o->scale_a_block, &o->none, &o->scale_b, &o->scale_b_row,
                               &o->none,    &o->d,           &o->d_row,         &o->none, &o->groups,  &o->m,
                               &o->n,       &o->k,           &o->experts};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(o->n, PLAIN_TILE), (uint32_t)qn_ceil_div(o->m, PLAIN_TILE), 1},
        .block = {PLAIN_THREADS, 1, 1}};
    QN_FAIL_IF(g.grid[1] > MOST_GRID_Y, error, QN_E_UNSUPPORTED,
               "block_scaled_mm: %d rows of operands that are not 16-byte aligned are more than one launch takes",
               o->m);
    return qn_cuda_launch(run, PLAIN, &g, arguments, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "block_scaled_mm: M is 2^31 or more");
    operands o = operands_of(run->call);
    if (!may_copy(&o)) {
        return launch_plain(run, &o, error);
    }
    int32_t height = 0;
    while (height < HEIGHTS && heights[height] < o.m) {
        height++;
    }
    const int skinny = height < HEIGHTS;
    qn_tensor_map a_map, b_map;
    QN_TRY(make_map(run, o.a, o.m, o.k, o.a_row, skinny ? (uint32_t)heights[height] : BM, &a_map, error));
    QN_TRY(make_map(run, o.b, o.n, o.k, o.b_row, skinny ? STRIP : BN, &b_map, error));
    void *common[] = {&o.scale_a, &o.scale_a_row, &o.scale_a_block, &o.none, &o.scale_b, &o.scale_b_row,
                      &o.none,    &o.d,           &o.d_row,         &o.none, &o.groups,  &o.m,
                      &o.n,       &o.k,           &o.experts};
    void *arguments[3 + sizeof common / sizeof *common] = {&a_map, &b_map, &b_map}; /* tiles: a third map, not used */
    memcpy(&arguments[skinny ? 2 : 3], common, sizeof common);
    qn_cuda_geometry g = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .dependent = 1};
    if (skinny) {
        int32_t shared = 0;
        skinny_stages(heights[height], &shared);
        g.cluster = (uint32_t)split_of(o.n, o.k, run->device);
        g.grid[0] = (uint32_t)qn_ceil_div(o.n, STRIP) * g.cluster;
        g.block[0] = SKINNY_THREADS;
        g.shared_bytes = (uint32_t)shared;
        return qn_cuda_launch(run, SKINNY + height, &g, arguments, error);
    }
    const int64_t tiles = qn_ceil_div(o.m, BM) * qn_ceil_div(o.n, BN);
    g.grid[0] = (uint32_t)qn_min_i64(run->device->sms, tiles);
    g.block[0] = TILE_THREADS;
    g.shared_bytes = 1024 + STAGES * (128 * (BM + BN) + 4 * (BM + 4) + 16);
    return qn_cuda_launch(run, TILES, &g, arguments, error);
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_block_scaled_mm_e4m3_e4m3_fp__sm90a_128x128", .op = QN_OP_BLOCK_SCALED_MM,
     .level = "sm_90a", .status = "exact grid only", .accepts = accepts, .impl = &impl},
};

const qn_cuda_family qn_cuda_block_scaled_mm_family = {kernels, sizeof kernels};
