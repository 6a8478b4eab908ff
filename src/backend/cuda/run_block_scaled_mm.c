/* Host side of block_scaled_mm on Hopper. A plan has a cut for few rows at each of several heights, a strip or one row
 * of tiles; tiles for many rows; and the portable kernel for operands that the bulk copies cannot take. The run picks
 * by M and alignment. What the kernels expect, and which cut is best where, is the host contract at the top of each
 * source; measured exceptions are data/tuned-cuts.txt.
 *
 * The tensor core sums FP8 products with fewer bits than f32 has: the row says QN_SUMS_FP8_MMA, docs/operators.md how
 * much that may cost. */
#include <string.h>

#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "backend/cuda/tuned.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_SPLIT = 8 };

/* Programs of a plan: the portable one, tiles for many rows, then a cut for each height of few rows. Those above 128
 * have one where rows of tiles in parts of K are estimated to be faster than tiles. */
enum { PORTABLE = 0, TILES, FEW = TILES + QN_BLOCK_TILES };
static const int32_t heights[] = {
    8, 16, 32, 64, QN_STRIP_ROWS, 2 * QN_STRIP_ROWS, 3 * QN_STRIP_ROWS, 4 * QN_STRIP_ROWS};
enum { HEIGHTS = sizeof heights / sizeof *heights };
_Static_assert(FEW + HEIGHTS <= QN_CUDA_PROGRAMS, "a plan has room for that many programs");

/* How few rows are cut: a strip, or rows of tiles; neither: as many rows. */
typedef struct cut {
    int32_t none, strip;
    qn_strip s;
    qn_tile t;
    const qn_tuned *tuned; /* NULL: by the rules below */
} cut;

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

static qn_tile tile_of(int32_t i, const qn_op_desc *desc)
{
    const int may_store = qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, desc->in[QN_BMM_B].dims[0]);
    return qn_block_tile(i, may_store, QN_ONE_MATRIX);
}

/* Up to 32 rows: strips and parts of K that are resident at once, else as many as fill the card. */
static qn_strip few_strip(const qn_op_desc *desc, const qn_cuda_device *device)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    const int64_t strips = qn_ceil_div(b->dims[0], 64), blocks = qn_ceil_div(b->dims[1], 128), sms = device->sms;
    qn_strip s = {.groups = strips >= 3 * sms   ? 3
                            : strips >= 2 * sms ? 2
                                                : 1,
                  .split = 1,
                  .unroll = 2,
                  .stages = 6,
                  .occupancy = 1,
                  .pair = 1,
                  .parts = 1,
                  .teams = 1};
    if (qn_strip_deal_teams(b->dims[0], b->dims[1], device->sms, &s.groups, &s.split)) {
        s.teams = s.groups == 1 && s.split > 1 ? 2 : 1;
        s.unroll = 1;
        s.stages = 13;
        s.occupancy = s.groups > 2 ? 1 : 2;
    } else {
        while (s.split < MOST_SPLIT && 2 * s.split * qn_ceil_div(strips, s.groups) <= sms && 16 * s.split <= blocks) {
            s.split *= 2;
        }
    }
    return s;
}

/* Widths of one row of tiles, and k-blocks that a part has at least where there are several. */
enum { WIDTH_STEP = 16, LEAST_SEVERAL = 2 };

static int32_t least_width(int32_t rows)
{
    return rows == 64 ? 64 : 32;
}

static int32_t most_width(int32_t rows)
{
    return rows == 64 ? 128 : 192;
}

/* The parts of K that cost such tiles least; *cost 0: there are none. */
static int32_t best_split(int32_t rows, int32_t width, int64_t n, int64_t k, int32_t sms, double *cost)
{
    enum { LEAST_PART = 4 }; /* k-blocks */
    int32_t best = 1;
    *cost = 0.0;
    for (int32_t split = 1; split <= MOST_SPLIT && (split == 1 || qn_ceil_div(k, 128) >= (int64_t)LEAST_PART * split);
         split++) {
        const double us = qn_few_tile_cost(rows, width, split, n, k, sms);
        if (us > 0.0 && (*cost <= 0.0 || us < *cost)) {
            *cost = us;
            best = split;
        }
    }
    return best;
}

static const struct {
    int32_t groups, occupancy;
} few_strips[] = {{1, 2}, {2, 2}, {3, 1}};

static qn_strip strip_like(size_t i)
{
    return (qn_strip){few_strips[i].groups, 1, 1, 13, few_strips[i].occupancy, 1, 1, 0, 1, 0};
}

/* More rows: the least estimate of one row of tiles in parts of K, and of 33 to 64 rows, where K is short, of strips
 * that are all resident. With 65 and more these are faster where K is shorter than the estimate holds for. */
static void more_cut(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows, cut *c)
{
    enum { SHORT = 8 }; /* k-blocks */
    const int64_t n = desc->in[QN_BMM_B].dims[0], k = desc->in[QN_BMM_B].dims[1], blocks = qn_ceil_div(k, 128);
    double least = 0.0;
    for (int32_t width = least_width(rows); width <= most_width(rows); width += WIDTH_STEP) {
        double cost;
        const int32_t split = best_split(rows, width, n, k, device->sms, &cost);
        if (cost > 0.0 && (least <= 0.0 || cost < least)) {
            least = cost;
            qn_few_tile(rows, width, 0, 1, split, &c->t);
        }
    }
    for (size_t i = 0; rows == 64 && i < sizeof few_strips / sizeof *few_strips; i++) {
        const qn_strip s = strip_like(i);
        const double cost = qn_few_strip_cost(&s, n, k, device->sms);
        if (cost > 0.0 && cost < least) {
            least = cost;
            c->strip = 1;
            c->s = s;
        }
    }
    if (rows > 64 && blocks < SHORT && qn_ceil_div(n, 64) <= device->sms) {
        c->strip = 1;
        c->s = (qn_strip){1, 1, 1, 13, 1, 1, 2, 0, 1, 0};
    }
}

/* Of several rows of tiles: the least estimate, or none if that of whole K is about as good. */
static void several_cut(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows, cut *c)
{
    const double gain = 0.95;
    const int64_t n = desc->in[QN_BMM_B].dims[0], k = desc->in[QN_BMM_B].dims[1];
    double whole = 0.0, least = 0.0;
    for (int32_t width = least_width(rows); width <= most_width(rows); width += WIDTH_STEP) {
        for (int32_t split = 1; split <= MOST_SPLIT && split <= qn_ceil_div(k, LEAST_SEVERAL * 128); split++) {
            const double us = qn_several_tile_cost(rows / QN_STRIP_ROWS, width, split, n, k, device->sms);
            double *const best = split > 1 ? &least : &whole;
            if (us > 0.0 && (*best <= 0.0 || us < *best)) {
                *best = us;
                if (split > 1) {
                    qn_few_tile(QN_STRIP_ROWS, width, 0, 1, split, &c->t);
                }
            }
        }
    }
    c->none =
        least <= 0.0 || least >= gain * whole || qn_tuned_find(device, n, k, rows, QN_STRIP_ROWS, INT32_MAX) != NULL;
}

/* By N, K and the device alone. */
static cut cut_of(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    if (rows > QN_STRIP_ROWS) {
        cut several = {.strip = 0};
        several_cut(desc, device, rows, &several);
        return several;
    }
    cut c = {.tuned = qn_tuned_find(device, b->dims[0], b->dims[1], rows, rows > 8 ? rows / 2 : 0, rows)};
    if (c.tuned) {
        c.strip = c.tuned->strip;
        if (c.strip) {
            c.s = qn_tuned_strip(c.tuned);
        } else {
            qn_tuned_tile(c.tuned, &c.t);
            if (c.t.store && !qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, b->dims[0])) {
                qn_few_tile(c.t.bm, c.t.bn, 0, c.t.cluster, c.t.split, &c.t);
            }
        }
    } else if (rows <= 32) {
        c.strip = 1;
        c.s = few_strip(desc, device);
    } else {
        more_cut(desc, device, rows, &c);
    }
    if (c.strip) {
        qn_strip_fit(&c.s, rows, QN_ONE_MATRIX);
        c.s.store = qn_strip_may_store(&c.s, rows) && qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, b->dims[0]);
    }
    return c;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const int32_t form = desc->attr[QN_ATTR_OUT].i;
    qn_cuda_mm_any_program(desc, &out[PORTABLE]);
    for (int32_t i = 0; i < QN_BLOCK_TILES; i++) {
        const qn_tile t = tile_of(i, desc);
        qn_block_tile_program(&t, form, QN_ONE_MATRIX, &out[TILES + i]);
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        const cut c = cut_of(desc, device, heights[i]);
        if (c.none) {
            out[FEW + i] = out[PORTABLE];
        } else if (c.strip) {
            qn_strip_program(&c.s, heights[i], form, QN_ONE_MATRIX, &out[FEW + i]);
        } else {
            qn_block_tile_program(&c.t, form, QN_ONE_MATRIX, &out[FEW + i]);
        }
    }
    return FEW + HEIGHTS;
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

static double cost_of(const qn_tile *t, int64_t m, const qn_op_desc *desc, int32_t sms)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    const int64_t tiles = qn_ceil_div(m, t->bm) * qn_ceil_div(b->dims[0], t->bn);
    return qn_tile_cost(t, (double)tiles, qn_ceil_div(b->dims[1], 128), sms);
}

/* The tile for more than 128 rows: the tuned one of the nearest number of rows, else that of the least estimated time.
 * TALL takes any d. */
static int32_t choose_tile(const qn_op_desc *desc, const qn_cuda_device *device, int64_t m, int may_store,
                           const qn_tuned **tuned)
{
    const qn_shape *b = &desc->in[QN_BMM_B];
    const qn_tuned *entry = qn_tuned_find(device, b->dims[0], b->dims[1], m, QN_STRIP_ROWS, INT32_MAX);
    int32_t best = QN_TILE_TALL;
    double least = 0.0;
    *tuned = NULL;
    for (int32_t i = 0; i < QN_BLOCK_TILES; i++) {
        const qn_tile t = tile_of(i, desc);
        const double cost = cost_of(&t, m, desc, device->sms);
        if (t.store && !may_store) {
            continue;
        }
        if (entry && t.bm == entry->value[0] && t.bn == entry->value[1] && t.store == entry->value[2]) {
            *tuned = entry;
            return i;
        }
        if (least <= 0.0 || cost < least) {
            least = cost;
            best = i;
        }
    }
    return best;
}

/* Arguments of strips and tiles after their maps. */
enum { COMMON = 19 };
static void common_arguments(operands *o, void **to)
{
    void *const common[COMMON] = {
        &o->scale_a, &o->scale_a_row, &o->scale_a_block, &o->none,     &o->scale_b, &o->scale_b_row, &o->none,
        &o->d,       &o->d_row,       &o->none,          &o->groups,   &o->m,       &o->n,           &o->k,
        &o->experts, &o->zero,        &o->zero,          &o->constant, &o->zero};
    memcpy(to, common, sizeof common);
}

static qn_status launch_strips(const qn_cuda_run *run, operands *o, int32_t program, const qn_strip *s, int32_t rows,
                               qn_error *error)
{
    qn_tensor_map a_map, b_map, d_map;
    void *arguments[3 + COMMON] = {&a_map, &b_map, &d_map};
    QN_TRY(qn_tile_byte_map(run, o->a, o->k, o->m, 1, o->a_row, o->a_row * o->m, rows / s->pair, &a_map, error));
    QN_TRY(qn_tile_byte_map(run, o->b, o->k, o->n, 1, o->b_row, o->b_row * o->n, 64 * s->groups, &b_map, error));
    d_map = b_map; /* not read without STORE */
    if (s->store) {
        QN_TRY(qn_tile_out_map(run, o->d, o->n, o->m, 1, 2 * o->d_row, 2 * o->d_row * o->m, &d_map, error));
    }
    const int32_t cluster = s->pair * s->split;
    o->constant = o->constant && !s->late;
    common_arguments(o, arguments + 3);
    const qn_cuda_geometry g = {.grid = {(uint32_t)(qn_ceil_div(o->n, 64 * s->groups * s->pair) * cluster), 1, 1},
                                .block = {qn_strip_threads(s, rows, QN_ONE_MATRIX), 1, 1},
                                .shared_bytes = (uint32_t)qn_strip_shared(s, rows, QN_ONE_MATRIX),
                                .cluster = (uint32_t)cluster,
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static qn_status launch_tiles(const qn_cuda_run *run, operands *o, int32_t program, const qn_tile *t, qn_error *error)
{
    qn_tile_boxes a, b;
    qn_tensor_map d_map;
    void *arguments[5 + COMMON] = {&a.all, &b.all, &d_map, &a.last, &b.last};
    QN_TRY(qn_tile_byte_boxes(run, o->a, o->k, o->m, 1, o->a_row, o->a_row * o->m, t->bm / t->cluster, &a, error));
    QN_TRY(qn_tile_byte_boxes(run, o->b, o->k, o->n, 1, o->b_row, o->b_row * o->n, t->bn, &b, error));
    d_map = b.all; /* not read without STORE */
    if (t->store) {
        QN_TRY(qn_tile_out_map(run, o->d, o->n, o->m, 1, 2 * o->d_row, 2 * o->d_row * o->m, &d_map, error));
    }
    common_arguments(o, arguments + 5);
    const int64_t blocks = qn_ceil_div(o->m, t->bm) * qn_ceil_div(o->n, (int64_t)t->bn * t->cluster) * t->cluster;
    qn_cuda_geometry g = qn_tile_geometry(run->device, t->cluster, blocks, qn_tile_shared(t));
    g.block[0] = qn_tile_threads(t);
    if (t->split > 1) {
        g.cluster = (uint32_t)t->split;
        g.grid[0] = (uint32_t)(blocks * t->split);
    }
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "block_scaled_mm: M is 2^31 or more");
    const qn_op_desc *desc = run->call->desc;
    operands o = operands_of(run->call);
    o.constant = qn_cuda_constant_weights(run);
    if (!qn_tile_aligned(o.a, o.a_row, 0) || !qn_tile_aligned(o.b, o.b_row, 0)) {
        return qn_cuda_mm_launch_any(run, PORTABLE, error);
    }
    const int boxes = qn_tile_aligned(o.d, 2 * o.d_row, 0);
    for (int32_t i = 0; i < HEIGHTS; i++) {
        if (o.m > heights[i]) {
            continue;
        }
        const cut c = cut_of(desc, run->device, heights[i]);
        if (c.none) {
            break;
        }
        if (boxes || !(c.strip ? c.s.store : c.t.store)) {
            return c.strip ? launch_strips(run, &o, FEW + i, &c.s, heights[i], error)
                           : launch_tiles(run, &o, FEW + i, &c.t, error);
        }
    }
    const qn_tuned *tuned;
    const int32_t i = choose_tile(desc, run->device, o.m, boxes, &tuned);
    const qn_tile t = tile_of(i, desc);
    return launch_tiles(run, &o, TILES + i, &t, error);
}

/* ---- for people ---- */

/* What more_cut compares, each width with the parts of K that suit it best. */
static void add_few_candidates(const qn_op_desc *desc, const qn_cuda_device *device, int32_t rows, qn_text *text)
{
    const int64_t n = desc->in[QN_BMM_B].dims[0], k = desc->in[QN_BMM_B].dims[1];
    for (int32_t width = least_width(rows); width <= most_width(rows); width += WIDTH_STEP) {
        double cost;
        const int32_t split = best_split(rows, width, n, k, device->sms, &cost);
        if (cost > 0.0) {
            qn_text_add(text, "tiles of %d x %d, %d part%s of K: estimate %.2f us\n", rows, width, split,
                        split > 1 ? "s" : "", cost);
        }
    }
    for (size_t i = 0; rows == 64 && i < sizeof few_strips / sizeof *few_strips; i++) {
        const qn_strip s = strip_like(i);
        const double cost = qn_few_strip_cost(&s, n, k, device->sms);
        if (cost > 0.0) {
            qn_text_add(text, "strips of %d columns: estimate %.2f us\n", 64 * s.groups, cost);
        }
    }
}

static int32_t height_of(int64_t m)
{
    return m <= QN_STRIP_ROWS ? qn_strip_height(m) : (int32_t)(qn_ceil_div(m, QN_STRIP_ROWS) * QN_STRIP_ROWS);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const qn_cuda_device *device = cuda ? &cuda->device : NULL;
    const qn_tuned *tuned = NULL;
    if (!device || sizes->m < 1) {
        return;
    }
    const int32_t rows = sizes->m <= heights[HEIGHTS - 1] ? height_of(sizes->m) : 0;
    const cut c = rows ? cut_of(desc, device, rows) : (cut){.none = 1};
    if (!c.none) {
        tuned = c.tuned;
        if (rows > 32 && rows <= QN_STRIP_ROWS) {
            add_few_candidates(desc, device, rows, text);
        }
        if (c.strip) {
            qn_text_add(text, "cut: strips of %d columns, %d part%s of K, clusters of %d", 64 * c.s.groups, c.s.split,
                        c.s.split > 1 ? "s" : "", c.s.pair * c.s.split);
        } else {
            qn_text_add(text, "cut: tiles of %d x %d%s", c.t.bm, c.t.bn, c.t.store ? ", stored by boxes" : "");
            if (c.t.cluster * c.t.split > 1) {
                qn_text_add(text, ", %d part%s of K, clusters of %d", c.t.split, c.t.split > 1 ? "s" : "",
                            c.t.cluster * c.t.split);
            }
        }
    } else {
        const int32_t chosen = choose_tile(desc, device, sizes->m, 1, &tuned);
        for (int32_t i = 0; i < QN_BLOCK_TILES; i++) {
            const qn_tile t = tile_of(i, desc);
            qn_text_add(text, "tiles of %d x %d%s: estimate %.3g\n", t.bm, t.bn, t.store ? ", stored by boxes" : "",
                        cost_of(&t, sizes->m, desc, device->sms));
        }
        const qn_tile t = tile_of(chosen, desc);
        qn_text_add(text, "cut: tiles of %d x %d%s", t.bm, t.bn, t.store ? ", stored by boxes" : "");
    }
    if (tuned) {
        qn_text_add(text, ", tuned for %s at M = %d (" QN_TUNED_FILE ")", device->name, tuned->m);
    }
    qn_text_add(text, "\n");
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_block_scaled_mm_e4m3_e4m3_fp__sm90a_128x128", .op = QN_OP_BLOCK_SCALED_MM,
     .level = "sm_90a", .sums = QN_SUMS_FP8_MMA, .status = "tested", .accepts = accepts, .describe = describe,
     .impl = &impl},
};

const qn_cuda_family qn_cuda_block_scaled_mm_family = {kernels, sizeof kernels};
