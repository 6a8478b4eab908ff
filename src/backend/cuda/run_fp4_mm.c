/* Host side of nvfp4_mm and mxfp4_mm on Hopper. A plan has a kernel for each of several numbers of rows, cut by N, K
 * and the device, and the portable one for operands that the bulk copies cannot take; the run picks the least that
 * holds its M. Rows of x that are codes are written out as bf16 before, and of many rows the weights too: then the
 * product is that of dense.c. What the kernels expect is the host contracts at the top of kernels/cuda/fp4_mm.cu, up to
 * 16 rows fp4_mm_few.cu, and fp4_expand.cu. */
#include "backend/cuda/dense.h"
#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_SPLIT = 8, MOST_STAGES = 32, DEPTH = 256, SPAN = 4, SPANS = 3, BESIDE = 1168, LOADERS = 128 };
enum { SLICES = 4, SLICE = DEPTH / SLICES };                              /* of a stage */
enum { FEW_ROWS = 16, FEW_TILES = 8 };                                    /* of fp4_mm_few.cu */
enum { BLOCK_ROWS = 64, BLOCK_TILES = 4, MOST_WK = 3, LEAST_STAGES = 3 }; /* of fp4_mm.cu */

enum { EXPAND_THREADS = 256, EXPAND_ELEMENTS = 32 }; /* of a thread of fp4_expand.cu */

/* Programs: any alignment, one for each of some numbers of rows of x, what writes FP4 codes out, the product after it,
 * what writes rows of 8-bit codes out where x is such. */
enum { ANY = 0, CUTS };
static const int32_t heights[] = {8, 16, 32, 64, 128, 256};
enum { HEIGHTS = sizeof heights / sizeof *heights, EXPAND = CUTS + HEIGHTS, DENSE };
enum { EXPAND_BYTES = DENSE + QN_DENSE_PROGRAMS };
_Static_assert(EXPAND_BYTES < QN_CUDA_PROGRAMS, "a plan has room for that many programs");

/* Rows from which on weights are written out. Weights whose rows begin where bulk copies cannot are always. */
enum { WRITTEN_ROWS = 257, ROW_CODES = 32 };

/* Parameters of a program; wn 0: of fp4_mm.cu, whose tiles have 64 rows of b and whose wk are warpgroups, else of
 * fp4_mm_few.cu. `passes` over b have all rows of x. */
typedef struct cut {
    int32_t rows, tiles, wn, wk, split, stages, passes;
} cut;

typedef struct shape {
    int64_t n, k;
    int32_t unit, sms; /* elements with one scale */
} shape;

static shape shape_of(const qn_op_desc *desc, const qn_cuda_device *device)
{
    const int mx = desc->op == QN_OP_MXFP4_MM;
    return (shape){.n = desc->in[mx ? QN_MXMM_B : QN_NVMM_B].dims[0],
                   .k = qn_cuda_mm_depth(desc),
                   .unit = mx ? 32 : 16,
                   .sms = device->sms};
}

/* Whether rows of x are codes; of 8 bits, with scales for sums. */
static int is_coded(const qn_op_desc *desc)
{
    return qn_cuda_row_format(desc) != QN_MM_PLAIN;
}

static int is_bytes(const qn_op_desc *desc)
{
    return is_coded(desc) && qn_cuda_row_format(desc) != QN_MM_A_NVFP4;
}

/* What is multiplied. */
static qn_format format_of(const qn_op_desc *desc)
{
    return is_coded(desc) ? QN_BF16 : desc->in[desc->op == QN_OP_MXFP4_MM ? QN_MXMM_X : QN_NVMM_X].format;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const int mx = desc->op == QN_OP_MXFP4_MM;
    const qn_format x = format_of(desc);
    const qn_shape *b = &desc->in[mx ? QN_MXMM_B : QN_NVMM_B];
    if (x != QN_BF16 && (mx || x != QN_F16)) {
        return mx ? "activations are not bf16 or codes" : "activations are not bf16, f16 or codes";
    }
    if (b->dims[0] == 0 || b->dims[1] == 0) {
        return "there are no weights";
    }
    return b->dims[0] > INT32_MAX / 2 || b->dims[1] > INT32_MAX / 4 ? "N is 2^30 or K is 2^30 or more" : NULL;
}

/* ---- how a product is cut ---- */

/* Rows of b that a block has, threads that multiply, and parts of sums that it leaves. */
static int32_t strip_of(const cut *c)
{
    return c->wn ? 16 * c->tiles * c->wn : 64 * c->tiles;
}

static int32_t threads_of(const cut *c)
{
    return c->wn ? 32 * SLICES * c->wn * c->wk : 128 * c->wk;
}

static int32_t parts_of(const cut *c)
{
    return c->wn ? SLICES * c->wk : c->wk;
}

static int32_t stage_bytes(const cut *c)
{
    return strip_of(c) * 128 + 512 * c->rows + (c->wn ? 16 : 24);
}

/* Beside the stages: spans of scales, barriers and a table. */
static int32_t scale_bytes(const cut *c, const shape *s)
{
    return SPANS * strip_of(c) * (SPAN * DEPTH / s->unit) + BESIDE;
}

/* What the blocks of a cluster send each other. */
static int32_t given_bytes(const cut *c)
{
    return c->split > 1 ? 16 + 64 * c->split * (int32_t)qn_ceil_div(c->rows * strip_of(c) / 16, c->split) : 0;
}

static int32_t shared_bytes(const cut *c, const shape *s)
{
    const int32_t ring = c->stages * stage_bytes(c) + scale_bytes(c, s);
    const int32_t sums = 4 * parts_of(c) * c->rows * (strip_of(c) + 4);
    return 1024 + (ring > sums ? ring : sums) + given_bytes(c);
}

/* As many stages as fit; 1: they are enough. */
static int fit(cut *c, const shape *s)
{
    const int32_t room = QN_TILE_SHARED - 1024 - scale_bytes(c, s) - given_bytes(c);
    c->stages = (int32_t)qn_min_i64(room / stage_bytes(c), MOST_STAGES);
    return c->stages > c->wk && shared_bytes(c, s) <= QN_TILE_SHARED;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Cycles of a multiprocessor, roughly, that fp4_mm_few.cu takes, as counted from the instructions and fitted to
 * measurements: 12 or 16 warps issue at that share of the schedulers' rate, a stage costs its warps a wait, sums of
 * other blocks come slowly, and clusters of four and more leave a part of the multiprocessors out. */
static double cost_of_few(const cut *c, const shape *s)
{
    const int32_t strip = strip_of(c), columns = c->rows / 8;
    const int64_t blocks = qn_ceil_div(s->n, strip) * c->split;
    const int64_t stages = qn_ceil_div(qn_ceil_div(s->k, DEPTH), c->split);
    const double read = (strip * (128.0 + DEPTH / s->unit) + 128.0 * c->rows) / 18.0;
    const double issue = c->wn * (c->tiles * (84.0 + 4.0 * columns) + 10.0 * columns + 60.0);
    const double sums = c->split > 1 ? 1500.0 + parts_of(c) * c->rows * strip * c->split / 12.0 : 0.0;
    const double rounds = (double)qn_ceil_div(stages, c->wk) * c->wk;
    return (double)qn_ceil_div(blocks, c->split >= 4 ? qn_max_i64(1, s->sms * 28 / 33) : s->sms) *
           (rounds * (350.0 + larger(read, issue / (c->wn == 1 ? 0.72 : 0.66))) + sums + 4500.0);
}

static cut few_cut_of(int32_t rows, const shape *s)
{
    const int64_t parts = qn_ceil_div(s->k, 16 * s->unit);
    cut best = {0};
    double least = 0.0;
    for (int32_t wn = 1; wn <= 2; wn++) {
        for (int32_t tiles = wn == 1 ? 1 : 3; tiles <= FEW_TILES; tiles++) {
            for (int32_t split = 1; split <= MOST_SPLIT && split <= parts; split *= 2) {
                const int64_t stages = qn_ceil_div(qn_ceil_div(s->k, DEPTH), split);
                cut c = {rows, tiles, wn, (int32_t)qn_min_i64(wn == 1 ? 3 : 2, stages), split, 0, 1};
                const double cost = cost_of_few(&c, s);
                const int spills = wn == 2 && rows == FEW_ROWS && (tiles == FEW_TILES || (s->unit == 32 && split > 2));
                if (!spills && fit(&c, s) && (least <= 0.0 || cost < least)) {
                    least = cost;
                    best = c;
                }
            }
        }
    }
    return best;
}

/* Microseconds of fp4_mm.cu but for what all cuts take, fitted to measurements: ten N and K with 32 and 64 rows. */
static double cost_of(const cut *c, const shape *s)
{
    static const struct {
        double stage, tile, waiting; /* of a stage; of one with fewer warpgroups to hide its waits */
        double strip, strip_tile, parts;
    } fits[] = {{0.18, 0.21, 0.04, 1.4, 0.7, 0.3}, {0.44, 0.25, 0.02, 1.0, 1.2, 1.1}};
    const int32_t i = c->rows > 32;
    const double stages = (double)qn_ceil_div(qn_ceil_div(s->k, DEPTH), c->split), tiles = c->tiles;
    const double tile = fits[i].tile + (c->wk < MOST_WK ? fits[i].waiting : 0.0);
    const int64_t strips = qn_ceil_div(s->n, strip_of(c)) * c->passes;
    return (double)qn_ceil_div(strips, (int64_t)qn_tile_clusters(c->split, s->sms)) *
               (stages * (fits[i].stage + tile * tiles) + fits[i].strip + fits[i].strip_tile * tiles) +
           (c->split > 1 ? fits[i].parts : 0.0);
}

/* Stages that warpgroups hold are not under way: as many warpgroups as leave one, and two at least. */
static cut cut_of(int32_t height, const shape *s)
{
    if (height <= FEW_ROWS) {
        return few_cut_of(height, s);
    }
    const int32_t rows = height < BLOCK_ROWS ? height : BLOCK_ROWS;
    const int64_t parts = qn_ceil_div(s->k, 16 * s->unit);
    cut best = {0};
    double least = 0.0;
    for (int32_t tiles = 1; tiles <= BLOCK_TILES; tiles++) {
        for (int32_t split = 1; split <= MOST_SPLIT && split <= parts; split++) {
            const int32_t clusters = qn_tile_clusters(split, s->sms), passes = height / rows;
            cut c = {rows, tiles, 0, 1, split, 0, passes};
            if (clusters == 0 || (split > 1 && qn_ceil_div(s->n, strip_of(&c)) * passes > clusters) || !fit(&c, s) ||
                c.stages < LEAST_STAGES) {
                continue;
            }
            const int64_t stages = qn_ceil_div(qn_ceil_div(s->k, DEPTH), split);
            c.wk = (int32_t)qn_min_i64(qn_min_i64(MOST_WK, c.stages - 1), stages);
            const double cost = cost_of(&c, s);
            const int spills = s->unit == 32 && tiles > 2 && (rows > 32 || c.wk == MOST_WK);
            if (!spills && shared_bytes(&c, s) <= QN_TILE_SHARED && (least <= 0.0 || cost < least)) {
                least = cost;
                best = c;
            }
        }
    }
    return best;
}

static qn_dense_form dense_form(const qn_op_desc *desc)
{
    const int mx = desc->op == QN_OP_MXFP4_MM;
    const qn_format bias = desc->in[mx ? QN_MXMM_BIAS : QN_NVMM_BIAS].format;
    return (qn_dense_form){.n = desc->in[mx ? QN_MXMM_B : QN_NVMM_B].dims[0],
                           .k = qn_cuda_mm_depth(desc),
                           .f16 = format_of(desc) == QN_F16,
                           .out = desc->attr[QN_ATTR_OUT].i,
                           .scaled = 1,
                           .bias = bias ? qn_cuda_float_format(bias) + 1 : 0};
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const shape s = shape_of(desc, device);
    const qn_dense_form dense = dense_form(desc);
    const int32_t x = qn_cuda_float_format(format_of(desc));
    qn_cuda_mm_any_program(desc, &out[ANY]);
    out[EXPAND].source = "fp4_expand.cu";
    out[EXPAND].entry = "qn_fp4_expand";
    qn_cuda_define(&out[EXPAND], "B_FORMAT", qn_cuda_weight_format(desc));
    qn_cuda_define(&out[EXPAND], "X_FORMAT", x);
    if (is_bytes(desc)) {
        out[EXPAND_BYTES].source = out[EXPAND].source;
        out[EXPAND_BYTES].entry = out[EXPAND].entry;
        qn_cuda_define(&out[EXPAND_BYTES], "B_FORMAT", qn_cuda_row_format(desc) == QN_MM_A_I8 ? QN_MM_I8 : QN_MM_E4M3);
        qn_cuda_define(&out[EXPAND_BYTES], "X_FORMAT", x);
    }
    qn_dense_programs(&dense, device, out + DENSE);
    for (int32_t i = 0; i < HEIGHTS; i++) {
        qn_cuda_program *p = &out[CUTS + i];
        const cut c = cut_of(heights[i], &s);
        p->source = c.wn ? "fp4_mm_few.cu" : "fp4_mm.cu";
        p->entry = c.wn ? "qn_fp4_mm_few" : "qn_fp4_mm";
        p->shared_bytes = shared_bytes(&c, &s);
        qn_cuda_mm_define(desc, qn_cuda_mm_bias(desc), p);
        qn_cuda_define(p, "A_FORMAT", qn_cuda_row_format(desc));
        qn_cuda_define(p, "X_FORMAT", x);
        qn_cuda_define(p, "ALIGNED", 1);
        qn_cuda_define(p, "ROWS", c.rows);
        qn_cuda_define(p, "TILES", c.tiles);
        if (c.wn) {
            qn_cuda_define(p, "WN", c.wn);
        }
        qn_cuda_define(p, "WK", c.wk);
        qn_cuda_define(p, "SPLIT", c.split);
        qn_cuda_define(p, "STAGES", c.stages);
    }
    return EXPAND_BYTES + is_bytes(desc);
}

/* ---- the run ---- */

/* Where a workspace has what is written out: rows of x, weights, what sums of columns and of rows are multiplied by. */
typedef struct work {
    size_t x, weights, factors, row_scales, total;
} work;

static size_t place(size_t *at, int64_t rows, int64_t row_bytes)
{
    const size_t here = *at;
    *at += (size_t)(qn_ceil_div(rows * row_bytes, 128) * 128);
    return here;
}

static int is_written(const qn_op_desc *desc, int64_t m)
{
    return m >= WRITTEN_ROWS || qn_cuda_mm_depth(desc) % ROW_CODES != 0;
}

static work work_of(const qn_op_desc *desc, int64_t m)
{
    const qn_dense_form f = dense_form(desc);
    const int written = is_written(desc, m);
    work w = {0};
    w.x = place(&w.total, is_coded(desc) ? m : 0, 2 * f.k);
    w.weights = place(&w.total, written ? f.n : 0, 2 * f.k);
    w.factors = place(&w.total, written ? f.n + QN_DENSE_PAD : 0, 4);
    w.row_scales = place(&w.total, written && is_bytes(desc) ? m : 0, 4);
    return w;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    return work_of(desc, m).total;
}

/* Rows of codes to be written out, as fp4_expand.cu has them. */
typedef struct coded {
    const void *codes, *scales, *global, *x_global;
    int64_t row, scale_row;
    char *to;
    float *factors; /* NULL: none */
    int32_t rows, k, count;
} coded;

static float *floats_at(const qn_cuda_run *run, size_t offset)
{
    return (float *)(void *)((char *)run->call->workspace + offset);
}

static qn_status expand(const qn_cuda_run *run, int32_t program, coded *c, qn_error *error)
{
    void *const arguments[] = {&c->codes,  &c->row,      &c->scales, &c->scale_row, &c->to,   &c->factors,
                               &c->global, &c->x_global, &c->rows,   &c->k,         &c->count};
    const int64_t blocks = qn_ceil_div((int64_t)c->rows * c->k, EXPAND_THREADS * EXPAND_ELEMENTS);
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_min_i64(blocks, (int64_t)run->device->sms * 8), 1, 1},
                                .block = {EXPAND_THREADS, 1, 1},
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static qn_status expand_x(const qn_cuda_run *run, const qn_cuda_mm *a, const work *w, int written, qn_error *error)
{
    const int bytes = is_bytes(run->call->desc);
    coded c = {.codes = a->x,
               .scales = a->x_scale,
               .row = a->x_row,
               .scale_row = a->x_scale_row,
               .to = (char *)run->call->workspace + w->x,
               .factors = bytes && written ? floats_at(run, w->row_scales) : NULL,
               .rows = a->m,
               .k = a->k,
               .count = a->m};
    return expand(run, bytes ? EXPAND_BYTES : EXPAND, &c, error);
}

static qn_status launch_written(const qn_cuda_run *run, const qn_cuda_mm *a, const work *w, qn_error *error)
{
    const qn_cuda_mm_part *b = &a->part[0];
    const qn_dense_form form = dense_form(run->call->desc);
    coded c = {.codes = b->b,
               .scales = b->b_scale,
               .global = b->b_global,
               .x_global = a->x_global,
               .row = b->b_row,
               .scale_row = b->b_scale_row,
               .to = (char *)run->call->workspace + w->weights,
               .factors = floats_at(run, w->factors),
               .rows = b->n,
               .k = a->k,
               .count = b->n + QN_DENSE_PAD};
    const qn_dense_operands o = {.a = a->x,
                                 .a_row = a->x_row,
                                 .b = c.to,
                                 .b_row = 2 * form.k,
                                 .bias = b->bias,
                                 .row_scale = is_bytes(run->call->desc) ? floats_at(run, w->row_scales) : NULL,
                                 .column_scale = c.factors,
                                 .d = b->d,
                                 .d_row = b->d_row,
                                 .m = a->m};
    QN_TRY(expand(run, EXPAND, &c, error));
    return qn_dense_launch(run, DENSE, &form, &o, error);
}

/* Scales of a span of the strip's rows, as the kernel's scale_at() has them. */
static qn_status scale_map(const qn_cuda_run *run, const qn_cuda_mm_part *b, const shape *s, const cut *c,
                           qn_tensor_map *map, qn_error *error)
{
    const uint32_t row = (uint32_t)(SPAN * DEPTH / s->unit);
    const qn_cuda_tensor tensor = {.data = b->b_scale,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = row == 64 ? CU_SWIZZLE_64B : CU_SWIZZLE_32B,
                                   .promotion = CU_L2_PROMOTION_64B,
                                   .dims = {(uint64_t)(s->k / s->unit), (uint64_t)s->n, 1},
                                   .strides = {(uint64_t)b->b_scale_row, (uint64_t)(b->b_scale_row * s->n)},
                                   .box = {row, (uint32_t)strip_of(c), 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

/* Rows of x; whole: its boxes have a stage's slices. */
static qn_status x_map(const qn_cuda_run *run, const qn_cuda_mm *a, const shape *s, const cut *c, int whole,
                       qn_tensor_map *map, qn_error *error)
{
    if (!whole) {
        return qn_tile_byte_map(run, a->x, 2 * s->k, a->m, 1, a->x_row, a->x_row * a->m, c->rows, map, error);
    }
    const qn_cuda_tensor tensor = {.data = a->x,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .promotion = CU_L2_PROMOTION_128B,
                                   .dims = {2 * SLICE, (uint64_t)a->m, (uint64_t)(s->k / SLICE)},
                                   .strides = {(uint64_t)a->x_row, 2 * SLICE},
                                   .box = {2 * SLICE, (uint32_t)c->rows, SLICES}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    const qn_cuda_mm_part *b = &a.part[0];
    const qn_op_desc *desc = run->call->desc;
    const int written = is_written(desc, a.m);
    const uint64_t x_align = !is_coded(desc) ? 16 : is_bytes(desc) ? 8 : 4;
    if (((uint64_t)(uintptr_t)b->b | (uint64_t)b->b_row) % (written ? 4 : 16) != 0 ||
        ((uint64_t)(uintptr_t)a.x | (uint64_t)a.x_row) % x_align != 0) {
        return qn_cuda_mm_launch_any(run, ANY, error);
    }
    const work w = work_of(desc, a.m);
    if (is_coded(desc)) {
        QN_TRY(expand_x(run, &a, &w, written, error));
        a.x = (char *)run->call->workspace + w.x;
        a.x_row = 2 * (int64_t)a.k;
    }
    if (written) {
        return launch_written(run, &a, &w, error);
    }
    const shape s = shape_of(desc, run->device);
    int32_t i = 0;
    while (i + 1 < HEIGHTS && heights[i] < a.m) {
        i++;
    }
    const cut c = cut_of(heights[i], &s);
    qn_tensor_map codes, scales, x;
    QN_TRY(qn_tile_byte_map(run, b->b, s.k / 2, s.n, 1, b->b_row, b->b_row * s.n, strip_of(&c), &codes, error));
    scales = codes; /* not read without */
    int32_t mapped = qn_tile_aligned(b->b_scale, b->b_scale_row, 0), constant = qn_cuda_constant_weights(run);
    if (mapped) {
        QN_TRY(scale_map(run, b, &s, &c, &scales, error));
    }
    int whole = s.k % SLICE == 0;
    QN_TRY(x_map(run, &a, &s, &c, whole, &x, error));
    void *const arguments[] = {&codes, &scales, &x, &a, &whole, &mapped, &constant};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)(qn_ceil_div(s.n, strip_of(&c)) * c.split), (uint32_t)qn_ceil_div(a.m, c.rows), 1},
        .block = {(uint32_t)(threads_of(&c) + LOADERS), 1, 1},
        .shared_bytes = (uint32_t)shared_bytes(&c, &s),
        .cluster = (uint32_t)c.split,
        .dependent = 1};
    return qn_cuda_launch(run, CUTS + i, &g, arguments, error);
}

/* ---- for people ---- */

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda && sizes->m > 0 && is_written(desc, sizes->m)) {
        const qn_dense_form form = dense_form(desc);
        qn_text_add(text, "weights written out as %s\n", form.f16 ? "f16" : "bf16");
        qn_dense_describe(&form, &cuda->device, sizes->m, text);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_nvfp4_mm_fp16_nvfp4_fp__sm90a_mma", .op = QN_OP_NVFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .describe = describe, .workspace_bytes = workspace, .impl = &impl},
    {QN_CUDA_HOOKS, .name = "qn_mxfp4_mm_bf16_mxfp4_fp__sm90a_mma", .op = QN_OP_MXFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .describe = describe, .workspace_bytes = workspace, .impl = &impl},
};

const qn_cuda_family qn_cuda_fp4_mm_family = {kernels, sizeof kernels};
