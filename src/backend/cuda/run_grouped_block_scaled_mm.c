/* Host side of grouped_block_scaled_mm. Everywhere, and of operands without alignment, it is the portable kernel of
 * matrix products (kernels/cuda/mm_mma.cu). On Hopper only the device knows how many rows a group has, so a run may
 * take two launches: tiles, then strips for the groups of at most FEW rows, which read the weights once; each leaves
 * the other's groups out. Where sizes known here decide (no group can have more than FEW rows, or groups have many on
 * average), there is one. Rows of no group become zeros in the first, or are kept. */
#include <string.h>

#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { FEW = 64, MANY = 256, MASKED_BOX = 64 };

/* K from which tall tiles of masked groups are taken by tickets (kernels/cuda/tiles.h), in a cooperative launch. */
enum { LONG = 1024 };

/* Programs of a plan on Hopper: the portable one of any alignment, tiles, strips of several heights. */
enum { PORTABLE = 0, TILES, STRIPS = TILES + QN_BLOCK_TILES };
static const int32_t heights[] = {8, 16, 32, FEW};
enum { HEIGHTS = sizeof heights / sizeof *heights };

/* Elsewhere: of any alignment, and where units of weights are aligned tiles of two sizes. */
enum { ANY = 0, SMALL, LARGE, SMALL_TILE = 64, LARGE_TILE = 128, THREADS = 256 };

static int is_masked(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *b = &desc->in[QN_BMM_B];
    if (b->format != QN_F8_E4M3) {
        return "weights are not e4m3";
    }
    for (int i = 0; i < 3; i++) {
        if (b->dims[i] == 0) {
            return "there are no weights";
        }
        if (b->dims[i] > INT32_MAX / 2) {
            return "E, N or K is 2^30 or more";
        }
    }
    return NULL;
}

/* The width whose strips of all groups fill the card best; narrow ones read the rows of a more often. Where narrow ones
 * fill it in a few rounds they take turns: 6 groups of 20 rows of 4096 x 2048 22.7 to 19.6 us, of 4096 x 4096 35.0 to
 * 32.6. */
static qn_strip strip_of(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    qn_strip best = {
        .groups = 1, .split = 1, .unroll = 2, .stages = 8, .occupancy = 1, .pair = 1, .parts = 1, .teams = 1};
    double least = 0.0;
    for (int32_t groups = 3; groups > 0; groups--) {
        const int64_t rounds = qn_ceil_div(b->dims[0] * qn_ceil_div(b->dims[1], 64 * groups), device->sms);
        const double cost = (double)rounds * (64 * groups + rows / 2);
        if (least <= 0.0 || cost < 0.97 * least) {
            least = cost;
            best.groups = groups;
        }
    }
    const int64_t narrow = b->dims[0] * qn_ceil_div(b->dims[1], 64), rounds = qn_ceil_div(narrow, device->sms);
    if (rounds <= 3 && 20 * narrow >= 19 * rounds * device->sms) {
        best.groups = 1;
        best.teams = 2;
    }
    qn_strip_fit(&best, rows, QN_GROUP_OFFSETS);
    return best;
}

static qn_tile tile_of(int32_t program, const qn_op_desc *desc)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    const int may_store = qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, b->dims[1]) && b->dims[2] > 128;
    qn_tile t = qn_block_tile(program - TILES, may_store, is_masked(desc) ? QN_GROUPS_MASKED : QN_GROUP_OFFSETS);
    t.tickets = is_masked(desc) && program == TILES + QN_TILE_TALL && b->dims[2] >= LONG;
    return t;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const int32_t form = desc->attr[QN_ATTR_OUT].i;
    const int32_t layout = is_masked(desc) ? QN_GROUPS_MASKED : QN_GROUP_OFFSETS;
    qn_cuda_mm_group_program(desc, 0, SMALL_TILE, &out[PORTABLE]);
    for (int32_t i = TILES; i < STRIPS; i++) {
        const qn_tile t = tile_of(i, desc);
        qn_block_tile_program(&t, form, layout, &out[i]);
        if (layout == QN_GROUPS_MASKED && desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP) {
            qn_cuda_define(&out[i], "KEEP", 1);
        }
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        const qn_strip s = strip_of(desc, device, heights[i]);
        qn_strip_program(&s, heights[i], form, layout, &out[STRIPS + i]);
    }
    return STRIPS + HEIGHTS;
}

static int32_t portable_programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                                 qn_cuda_program *out)
{
    (void)kernel;
    (void)device;
    qn_cuda_mm_group_program(desc, 0, SMALL_TILE, &out[ANY]);
    if (desc->in[QN_BMM_B].dims[2] % qn_cuda_weight_unit(qn_cuda_weight_format(desc))) {
        return ANY + 1;
    }
    qn_cuda_mm_group_program(desc, 1, SMALL_TILE, &out[SMALL]);
    qn_cuda_mm_group_program(desc, 1, LARGE_TILE, &out[LARGE]);
    return LARGE + 1;
}

/* ---- the run ---- */

/* `tail` of the kernels (groups.h): rows of d that belong to no group. */
enum { TAIL_BEFORE = 0, TAIL_ZEROS, TAIL_KEEP };

/* Device memory, steps in elements (all but d's are bytes or floats). */
typedef struct operands {
    const void *a, *b, *scale_a, *scale_b, *groups;
    void *d;
    long long a_row, a_group, b_row, b_group, scale_a_row, scale_a_block, scale_a_group, scale_b_row, scale_b_group;
    long long d_row, d_group;
    int64_t d_bytes;
    int32_t m, n, k, experts, low, high, tail, constant, masked;
} operands;

static operands operands_of(const qn_run_call *call)
{
    const qn_args *args = call->args;
    const int masked = is_masked(call->desc), row = masked ? 1 : 0;
    const qn_view *a = &args->in[QN_BMM_A], *b = &args->in[QN_BMM_B];
    const qn_view *scale_a = &args->in[QN_BMM_SCALE_A], *scale_b = &args->in[QN_BMM_SCALE_B];
    const qn_mut_view *d = &args->out[QN_MM_OUT_D];
    const int64_t scale_step = scale_a->strides[row] / 4;
    const int col = call->desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    operands o = {.a = a->data,
                  .b = b->data,
                  .scale_a = scale_a->data,
                  .scale_b = scale_b->data,
                  .groups = args->in[masked ? QN_BMM_MASKED_M : QN_BMM_OFFSETS].data,
                  .d = d->data,
                  .a_row = a->strides[row],
                  .b_row = b->strides[1],
                  .b_group = b->strides[0],
                  .scale_a_row = col ? 1 : scale_step,
                  .scale_a_block = col ? scale_step : 1,
                  .scale_a_group = masked ? scale_a->strides[0] / 4 : 0,
                  .scale_b_row = scale_b->strides[1] / 4,
                  .scale_b_group = scale_b->strides[0] / 4,
                  .d_bytes = qn_format_get_info(d->shape.format)->block_bytes,
                  .m = (int32_t)call->sizes.m,
                  .n = (int32_t)call->sizes.n,
                  .k = (int32_t)call->sizes.k,
                  .experts = (int32_t)call->sizes.e,
                  .high = INT32_MAX,
                  .tail = call->desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP ? TAIL_KEEP : TAIL_ZEROS,
                  .masked = masked};
    o.a_group = masked ? a->strides[0] : o.a_row * o.m;
    o.d_row = d->strides[row] / o.d_bytes;
    o.d_group = masked ? d->strides[0] / o.d_bytes : o.d_row * o.m;
    return o;
}

/* The first group's weight and results as the portable kernel takes them. */
static qn_cuda_mm_part part_of(const operands *o)
{
    return (qn_cuda_mm_part){.b = o->b,
                             .b_scale = o->scale_b,
                             .d = o->d,
                             .b_row = o->b_row,
                             .b_scale_row = 4 * o->scale_b_row,
                             .d_row = o->d_row * o->d_bytes,
                             .n = o->n};
}

static qn_status launch_portable(const qn_cuda_run *run, int32_t program, int32_t tile, const operands *o,
                                 qn_error *error)
{
    qn_cuda_mm a;
    memset(&a, 0, sizeof a);
    a.part[0] = part_of(o);
    a.x = o->a;
    a.x_scale = o->scale_a;
    a.x_row = o->a_row;
    a.x_scale_row = 4 * o->scale_a_row;
    a.x_scale_block = 4 * o->scale_a_block;
    a.m = o->m;
    a.n = o->n;
    a.k = o->k;
    qn_cuda_mm_groups groups = {.sizes = o->groups,
                                .x = o->a_group,
                                .x_scale = 4 * o->scale_a_group,
                                .b = o->b_group,
                                .b_scale = 4 * o->scale_b_group,
                                .d = o->d_group * o->d_bytes,
                                .experts = o->experts,
                                .tail = o->tail};
    void *const arguments[] = {&a, &groups};
    const int64_t tiles = qn_ceil_div(o->m, tile), rows = o->masked ? tiles : tiles + o->experts;
    const int64_t layers = o->masked ? o->experts : 1;
    QN_FAIL_IF(rows > QN_MOST_GRID_Y || layers > QN_MOST_GRID_Y, error, QN_E_UNSUPPORTED,
               "grouped_block_scaled_mm: %d rows of %d groups are more than one launch of the portable kernel takes",
               o->m, o->experts);
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(o->n, tile), (uint32_t)rows, (uint32_t)layers},
                                .block = {THREADS, 1, 1},
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

/* Large tiles read operands half as often, but want to be one for most multiprocessors. */
static qn_status launch_anywhere(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "grouped_block_scaled_mm: 2^31 rows or more");
    const operands o = operands_of(run->call);
    const int32_t format = qn_cuda_weight_format(run->call->desc);
    const qn_cuda_mm_part part = part_of(&o);
    if (!qn_cuda_mm_aligned(format, &part, o.k) || o.b_group % qn_cuda_weight_align(format)) {
        return launch_portable(run, ANY, SMALL_TILE, &o, error);
    }
    const int64_t rows = o.masked ? o.m : o.m / o.experts;
    const int64_t large = o.experts * qn_ceil_div(rows, LARGE_TILE) * qn_ceil_div(o.n, LARGE_TILE);
    return rows > SMALL_TILE && 4 * large >= 3 * (int64_t)run->device->sms
               ? launch_portable(run, LARGE, LARGE_TILE, &o, error)
               : launch_portable(run, SMALL, SMALL_TILE, &o, error);
}

/* Arguments of tiles and strips after their maps. */
enum { COMMON = 19 };
static void common_arguments(operands *o, void **to)
{
    void *const common[COMMON] = {&o->scale_a, &o->scale_a_row, &o->scale_a_block, &o->scale_a_group,
                                  &o->scale_b, &o->scale_b_row, &o->scale_b_group, &o->d,
                                  &o->d_row,   &o->d_group,     &o->groups,        &o->m,
                                  &o->n,       &o->k,           &o->experts,       &o->low,
                                  &o->tail,    &o->constant,    &o->high};
    memcpy(to, common, sizeof common);
}

static qn_status a_map_of(const qn_cuda_run *run, const operands *o, int32_t box, qn_tensor_map *map, qn_error *error)
{
    const int32_t outer = o->masked ? o->experts : 1;
    return qn_tile_byte_map(run, o->a, o->k, o->m, outer, o->a_row, o->a_group, box, map, error);
}

static qn_status launch_strips(const qn_cuda_run *run, operands *o, qn_error *error)
{
    int32_t height = 0;
    while (height < HEIGHTS - 1 && heights[height] < o->m) {
        height++;
    }
    const qn_strip s = strip_of(run->call->desc, run->device, heights[height]);
    qn_tensor_map a_map, b_map;
    QN_TRY(a_map_of(run, o, heights[height], &a_map, error));
    QN_TRY(qn_tile_byte_map(run, o->b, o->k, o->n, o->experts, o->b_row, o->b_group, 64 * s.groups, &b_map, error));
    void *arguments[3 + COMMON] = {&a_map, &b_map, &b_map};
    common_arguments(o, arguments + 3);
    const int64_t strips = o->experts * qn_ceil_div(o->n, 64 * s.groups);
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_min_i64((int64_t)run->device->sms * s.occupancy, strips), 1, 1},
                                .block = {qn_strip_threads(&s, heights[height], QN_GROUP_OFFSETS), 1, 1},
                                .shared_bytes = (uint32_t)qn_strip_shared(&s, heights[height], QN_GROUP_OFFSETS),
                                .dependent = 1};
    return qn_cuda_launch(run, STRIPS + height, &g, arguments, error);
}

/* The tile of the least estimated time where every group has its share of the rows, or two thirds of the most, and
 * wastes half a tile. Of masked groups lower than a tall tile, whole products are left out. Measured beside the
 * estimate: where groups are masked, tiles of three warpgroups gain, and wide ones. Tall ones, taken by tickets, are
 * best where K is long and a group has five to eight of them; elsewhere they lose up to a tenth. */
static double cost_of(int32_t i, const qn_op_desc *desc, const operands *o, int32_t sms)
{
    const double rows = o->masked ? 2.0 / 3.0 * o->m : (double)o->m / o->experts;
    const qn_tile t = tile_of(TILES + i, desc);
    const double high = o->masked && o->m <= 256 ? (o->m + t.bm - 1) / t.bm : rows / t.bm + 0.5;
    const double tiles = o->experts * high * (double)qn_ceil_div(o->n, t.bn);
    const double cost = qn_tile_cost(&t, tiles, qn_ceil_div(o->k, 128), sms);
    if (o->masked && o->m <= 256 && t.bm == 256) {
        return cost * 0.85;
    }
    if (o->masked) {
        const int three = i == QN_TILE_THREE || i == QN_TILE_THREE_STORED;
        const int gains = t.tickets && o->k >= 5 * LONG && o->m >= 5 * t.bm && o->m <= 8 * t.bm;
        return cost * (gains ? 0.85 : three || i == QN_TILE_TALL ? 0.94 : i == QN_TILE_WIDE ? 0.97 : 1.0);
    }
    return cost;
}

static int32_t choose_tile(const qn_op_desc *desc, const operands *o, int32_t sms, int may_store)
{
    int32_t best = QN_TILE_ANY;
    double least = 0.0;
    for (int32_t i = 0; i < QN_BLOCK_TILES; i++) {
        const qn_tile t = tile_of(TILES + i, desc);
        const double cost = cost_of(i, desc, o, sms);
        if (((!t.store && !t.held) || may_store) && (least <= 0.0 || cost < least)) {
            least = cost;
            best = i;
        }
    }
    return TILES + best;
}

static qn_status launch_tiles(const qn_cuda_run *run, operands *o, qn_error *error)
{
    const int may_store = qn_tile_aligned(o->d, o->d_row * o->d_bytes, o->d_group * o->d_bytes);
    const int32_t program = choose_tile(run->call->desc, o, run->device->sms, may_store);
    const qn_tile t = tile_of(program, run->call->desc);
    qn_tile_boxes b;
    qn_tensor_map a_map, d_map;
    QN_TRY(a_map_of(run, o, o->masked ? MASKED_BOX : t.bm / t.cluster, &a_map, error));
    QN_TRY(qn_tile_byte_boxes(run, o->b, o->k, o->n, o->experts, o->b_row, o->b_group, t.bn, &b, error));
    d_map = b.all; /* not read without STORE */
    if (t.store || t.held) {
        QN_TRY(qn_tile_out_map(run, o->d, o->n, o->m, o->masked ? o->experts : 1, o->d_row * o->d_bytes,
                               o->d_group * o->d_bytes, &d_map, error));
    }
    void *arguments[5 + COMMON] = {&a_map, &b.all, &d_map, &a_map, &b.last};
    common_arguments(o, arguments + 5);
    const int64_t most = qn_ceil_div(o->m, t.bm), rows = o->masked ? most * o->experts : most + o->experts;
    const int64_t blocks = rows * qn_ceil_div(o->n, (int64_t)t.bn * t.cluster) * t.cluster;
    qn_cuda_geometry g = qn_tile_geometry(run->device, t.cluster, blocks, qn_tile_shared(&t));
    g.block[0] = qn_tile_threads(&t);
    if (t.tickets) { /* no more than run at a time */
        const int64_t clusters = run->functions[program].clusters;
        g.cooperative = 1;
        g.grid[0] = clusters > 0 ? (uint32_t)qn_min_i64(g.grid[0], clusters * t.cluster) : g.grid[0];
    }
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "grouped_block_scaled_mm: 2^31 rows or more");
    operands o = operands_of(run->call);
    if (!qn_tile_aligned(o.a, o.a_row, o.a_group) || !qn_tile_aligned(o.b, o.b_row, o.b_group)) {
        return launch_portable(run, PORTABLE, SMALL_TILE, &o, error);
    }
    const int tiles = o.m > FEW, strips = o.masked || o.m / o.experts <= MANY;
    if (tiles) {
        o.low = strips ? FEW : 0;
        QN_TRY(launch_tiles(run, &o, error));
        o.low = 0;
        o.high = FEW;
        o.tail = TAIL_BEFORE;
    }
    return strips ? launch_strips(run, &o, error) : QN_OK;
}

/* ---- for people ---- */

/* Which groups have how many rows is known on the device alone: the estimate is of shares as choose_tile takes them. */
static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (!cuda || sizes->m < 1 || sizes->m > INT32_MAX) {
        return;
    }
    const operands o = {.m = (int32_t)sizes->m,
                        .n = (int32_t)sizes->n,
                        .k = (int32_t)sizes->k,
                        .experts = (int32_t)sizes->e,
                        .masked = is_masked(desc)};
    if (o.m > FEW) {
        const int32_t chosen = choose_tile(desc, &o, cuda->device.sms, 1) - TILES;
        for (int32_t i = 0; i <= QN_BLOCK_TILES; i++) {
            const int32_t at = i < QN_BLOCK_TILES ? i : chosen;
            const qn_tile t = tile_of(TILES + at, desc);
            qn_text_add(text, "%s of %d x %d%s: estimate %.3g\n", i < QN_BLOCK_TILES ? "tiles" : "cut: tiles", t.bm,
                        t.bn, t.store ? ", stored by boxes" : "", cost_of(at, desc, &o, cuda->device.sms));
        }
    }
    if (o.masked || o.m / o.experts <= MANY) {
        const int32_t rows = qn_strip_height(o.m < FEW ? o.m : FEW);
        qn_text_add(text, "cut: strips of %d columns for groups of up to %d rows\n",
                    64 * strip_of(desc, &cuda->device, rows).groups, FEW);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};
static const qn_cuda_impl portable = {.targets = QN_SM_ALL, .programs = portable_programs, .launch = launch_anywhere};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_grouped_block_scaled_mm_e4m3_e4m3_fp__sm90a_128x128",
     .op = QN_OP_GROUPED_BLOCK_SCALED_MM, .level = "sm_90a", .sums = QN_SUMS_FP8_MMA, .status = "tested",
     .accepts = accepts, .describe = describe, .impl = &impl},
    {QN_CUDA_HOOKS, .name = "qn_grouped_block_scaled_mm_e4m3_e4m3_fp__sm80_64x64", .op = QN_OP_GROUPED_BLOCK_SCALED_MM,
     .level = "sm_80 and later", .status = QN_CUDA_TESTED, .accepts = accepts, .impl = &portable},
};

const qn_cuda_family qn_cuda_grouped_block_scaled_mm_family = {kernels, sizeof kernels};
