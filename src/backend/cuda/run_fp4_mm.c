/* Host side of nvfp4_mm and mxfp4_mm on Hopper. A plan has a kernel for each of several numbers of rows, cut by N, K
 * and the device, and the portable one for operands that the bulk copies cannot take; the run picks the least that
 * holds its M. Rows of x that are codes are written out as bf16 before, and of many rows the weights too: then the
 * product is that of dense.c. What the kernels expect is the host contracts at the top of kernels/cuda/fp4_mm.cu, up to
 * 16 rows fp4_mm_few.cu, and fp4_expand.cu; above 64 rows wide.c.
 *
 * Rows of x that the kernels have no type for, of f32 and, by MXFP4, of f16, become planes of bf16 that add up to them
 * (mm_planes.cu): 3 and 2. Planes are rows behind each other, whose sums mm_join.cu adds; where weights are written out
 * dense.c adds products of planes. An infinity or a NaN of x is in the first plane and zeros are in the others, weights
 * are finite or NaN, so the others add zeros or NaN to what it has to be: nothing has to be computed again. Left out
 * are weights of 2^128 and more, which MXFP4 has: a zero times them is a NaN, here as in every product by floats. A
 * plan has all portable kernels then, which take few rows. */
#include "backend/cuda/dense.h"
#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "backend/cuda/wide.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_SPLIT = 8, MOST_STAGES = 32, DEPTH = 256, SPAN = 4, SPANS = 3, BESIDE = 1168, LOADERS = 128 };
enum { SLICES = 4, SLICE = DEPTH / SLICES };                              /* of a stage */
enum { FEW_ROWS = 16, FEW_TILES = 8 };                                    /* of fp4_mm_few.cu */
enum { BLOCK_ROWS = 64, BLOCK_TILES = 4, MOST_WK = 3, LEAST_STAGES = 3 }; /* of fp4_mm.cu */

enum { EXPAND_THREADS = 256, EXPAND_ELEMENTS = 32 }; /* of a thread of fp4_expand.cu */

/* Programs: any alignment, or of planes all portable ones, the first of which is that. */
enum { ANY = 0, MOST_PORTABLE = 9 };

/* Behind them: one for each of some numbers of rows of x, what writes FP4 codes out, the product after it; then what
 * writes rows of 8-bit codes out where x is such, or what makes planes and what joins them. */
static const int32_t heights[] = {8, 16, 32, 64, 128, 256};
enum { HEIGHTS = sizeof heights / sizeof *heights, CUTS = 0, WIDE = CUTS + HEIGHTS };
enum { EXPAND = WIDE + QN_WIDE_FP4_PROGRAMS, DENSE };
enum { EXPAND_BYTES = DENSE + QN_DENSE_PROGRAMS, PLANES = EXPAND_BYTES, JOIN, PROGRAMS };
_Static_assert(MOST_PORTABLE + PROGRAMS <= QN_CUDA_PROGRAMS, "a plan has room for that many programs");

/* Rows from which on weights are written out, and may be where that is estimated to be faster. Weights whose rows begin
 * where bulk copies cannot are always. */
enum { WRITTEN_ROWS = 1025, EITHER_ROWS = 513, ROW_CODES = 32 };

/* The same of rows that are planes, each of them counted; and rows of x up to which the portable kernels take them. */
enum { WRITTEN_PLANE_ROWS = 1025, PLAIN_ROWS = 1, JOIN_THREADS = 256 };

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
    return (shape){.n = qn_cuda_mm_b(desc)->dims[0],
                   .k = qn_cuda_mm_depth(desc),
                   .unit = desc->op == QN_OP_MXFP4_MM ? 32 : 16,
                   .sms = device->sms};
}

static qn_wide_form wide_form(const qn_op_desc *desc, const qn_cuda_device *device)
{
    return (qn_wide_form){.kind = desc->op == QN_OP_MXFP4_MM ? QN_WIDE_MXFP4 : QN_WIDE_NVFP4,
                          .sms = device->sms,
                          .n = qn_cuda_mm_b(desc)->dims[0],
                          .k = qn_cuda_mm_depth(desc)};
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

/* Planes that rows of x become; 0: none. */
static int32_t planes_of(const qn_op_desc *desc)
{
    const qn_format x = qn_cuda_mm_x(desc)->format;
    return is_coded(desc) ? 0 : x == QN_F32 ? 3 : x == QN_F16 && desc->op == QN_OP_MXFP4_MM ? 2 : 0;
}

/* What is multiplied. */
static qn_format format_of(const qn_op_desc *desc)
{
    return is_coded(desc) || planes_of(desc) ? QN_BF16 : qn_cuda_mm_x(desc)->format;
}

/* Programs before those of this file. */
static int32_t portable_count(const qn_op_desc *desc)
{
    return planes_of(desc) ? qn_cuda_mm_own_count(desc) : 1;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *b = qn_cuda_mm_b(desc);
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

/* With what all cuts take, of narrow weights, beside strips of wide.h. */
static double us_of(const cut *c, const shape *s)
{
    return 0.3 + 1.05 * cost_of(c, s);
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
    const qn_format bias = qn_cuda_mm_bias(desc);
    const int32_t planes = planes_of(desc);
    return (qn_dense_form){.n = qn_cuda_mm_b(desc)->dims[0],
                           .k = qn_cuda_mm_depth(desc),
                           .f16 = format_of(desc) == QN_F16,
                           .out = desc->attr[QN_ATTR_OUT].i,
                           .scaled = QN_DENSE_SCALED,
                           .bias = bias ? qn_cuda_float_format(bias) + 1 : 0,
                           .a_planes = planes,
                           .b_planes = planes ? 1 : 0};
}

/* Parameters of products, and of what joins them. */
static void define_operands(const qn_op_desc *desc, qn_format bias, qn_cuda_program *p)
{
    qn_cuda_mm_define(desc, bias, p);
    qn_cuda_define(p, "A_FORMAT", qn_cuda_row_format(desc));
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(format_of(desc)));
    qn_cuda_define(p, "ALIGNED", 1);
}

/* Products of planes are f32 and as they are; what joins them does the rest. */
static void product_program(const qn_op_desc *desc, qn_cuda_program *p)
{
    const int32_t planes = planes_of(desc);
    qn_op_desc product = *desc;
    if (planes) {
        product.attr[QN_ATTR_OUT].i = QN_OUT_F32;
    }
    define_operands(&product, planes ? QN_FORMAT_NONE : qn_cuda_mm_bias(desc), p);
    qn_cuda_define(p, "SUMS_ONLY", planes > 0);
}

static void cut_program(const qn_op_desc *desc, const cut *c, const shape *s, qn_cuda_program *p)
{
    p->source = c->wn ? "fp4_mm_few.cu" : "fp4_mm.cu";
    p->entry = c->wn ? "qn_fp4_mm_few" : "qn_fp4_mm";
    p->shared_bytes = shared_bytes(c, s);
    product_program(desc, p);
    qn_cuda_define(p, "ROWS", c->rows);
    qn_cuda_define(p, "TILES", c->tiles);
    if (c->wn) {
        qn_cuda_define(p, "WN", c->wn);
    }
    qn_cuda_define(p, "WK", c->wk);
    qn_cuda_define(p, "SPLIT", c->split);
    qn_cuda_define(p, "STAGES", c->stages);
}

static void expand_program(int32_t format, int32_t x, qn_cuda_program *p)
{
    p->source = "fp4_expand.cu";
    p->entry = "qn_fp4_expand";
    qn_cuda_define(p, "B_FORMAT", format);
    qn_cuda_define(p, "X_FORMAT", x);
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const shape s = shape_of(desc, device);
    const qn_dense_form dense = dense_form(desc);
    const int32_t x = qn_cuda_float_format(format_of(desc)), planes = planes_of(desc);
    qn_cuda_program *const own = out + portable_count(desc);
    if (planes) {
        (void)qn_cuda_mm_own_programs(desc, device, out);
        qn_cuda_planes_program(qn_cuda_float_format(qn_cuda_mm_x(desc)->format), planes, 0, &own[PLANES]);
        own[JOIN].source = "mm_join.cu";
        own[JOIN].entry = "qn_mm_join";
        define_operands(desc, qn_cuda_mm_bias(desc), &own[JOIN]);
    } else {
        qn_cuda_mm_any_program(desc, &out[ANY]);
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        const cut c = cut_of(heights[i], &s);
        cut_program(desc, &c, &s, &own[CUTS + i]);
    }
    for (int32_t i = 0; i < QN_WIDE_FP4_PROGRAMS; i++) {
        const qn_wide_form f = wide_form(desc, device);
        own[WIDE + i].source = "fp4_mm_wide.cu";
        own[WIDE + i].entry = "qn_fp4_mm_wide";
        product_program(desc, &own[WIDE + i]);
        qn_wide_program(&f, i, &own[WIDE + i]);
    }
    expand_program(qn_cuda_weight_format(desc), x, &own[EXPAND]);
    if (is_bytes(desc)) {
        expand_program(qn_cuda_row_format(desc) == QN_MM_A_I8 ? QN_MM_I8 : QN_MM_E4M3, x, &own[EXPAND_BYTES]);
    }
    qn_dense_programs(&dense, device, own + DENSE);
    return portable_count(desc) + (planes ? PROGRAMS : EXPAND_BYTES + is_bytes(desc));
}

/* ---- the run ---- */

/* Rows of x that are multiplied at a time, and where a workspace has what is written out, these rows or their planes,
 * weights, what sums of columns and of rows are multiplied by, and sums of planes. */
typedef struct work {
    int64_t rows;
    size_t x, weights, factors, row_scales, sums, total;
} work;

static size_t place(size_t *at, int64_t rows, int64_t row_bytes)
{
    const size_t here = *at;
    *at += (size_t)(qn_ceil_div(rows * row_bytes, 128) * 128);
    return here;
}

static int is_written(const qn_op_desc *desc, int64_t m)
{
    const int32_t planes = planes_of(desc);
    const int many = planes ? planes * m >= WRITTEN_PLANE_ROWS : m >= WRITTEN_ROWS;
    return many || qn_cuda_mm_depth(desc) % ROW_CODES != 0;
}

static int may_be_written(const qn_op_desc *desc, int64_t m)
{
    return is_written(desc, m) || (!planes_of(desc) && m >= EITHER_ROWS);
}

/* Microseconds of writing weights out and multiplying by them; how fast was measured on an H200. */
static double written_us(const qn_op_desc *desc, const qn_cuda_device *device, int64_t m)
{
    const qn_dense_form f = dense_form(desc);
    return qn_dense_us(&f, device, m) + 1.0 + (double)f.n * (double)f.k / 2.15e6;
}

/* wide: the best cut otherwise. */
static int is_better_written(const qn_op_desc *desc, const qn_cuda_device *device, int64_t m, const qn_wide_cut *wide)
{
    return is_written(desc, m) || (may_be_written(desc, m) && written_us(desc, device, m) < wide->us);
}

static work work_of(const qn_op_desc *desc, int64_t m, int written)
{
    const qn_dense_form f = dense_form(desc);
    const int64_t planes = planes_of(desc);
    work w = {.rows = planes && written ? qn_cuda_planes_at_once(m, planes * 2 * f.k) : m};
    w.x = place(&w.total, is_coded(desc) ? m : planes * w.rows, 2 * f.k);
    w.weights = place(&w.total, written ? f.n : 0, 2 * f.k);
    w.factors = place(&w.total, written ? f.n + QN_DENSE_PAD : 0, 4);
    w.row_scales = place(&w.total, written && is_bytes(desc) ? m : 0, 4);
    w.sums = place(&w.total, written ? 0 : planes * m, 4 * f.n);
    return w;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    const int32_t planes = planes_of(desc);
    if (!planes) {
        return work_of(desc, m, may_be_written(desc, m)).total;
    }
    const int64_t rows[] = {m, qn_min_i64(m, (WRITTEN_PLANE_ROWS - 1) / planes)}; /* fewer rows may have more sums */
    size_t most = qn_cuda_mm_own_workspace(desc, m);                              /* of operands at any address too */
    for (int32_t i = 0; i < 2 && m > PLAIN_ROWS; i++) {
        const size_t total = work_of(desc, rows[i], is_written(desc, rows[i])).total;
        most = total > most ? total : most;
    }
    return most;
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
    return qn_cuda_launch(run, portable_count(run->call->desc) + program, &g, arguments, error);
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

/* Rows of x as planes of bf16, behind each other. */
static qn_status make_planes(const qn_cuda_run *run, const qn_cuda_mm *a, const work *w, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const int64_t row = 2 * (int64_t)a->k;
    qn_cuda_planes p = {.from = a->x,
                        .to = (char *)run->call->workspace + w->x,
                        .from_row = a->x_row,
                        .to_row = row,
                        .to_plane = a->m * row,
                        .k = a->k};
    return qn_cuda_planes_make(run, portable_count(desc) + PLANES, &p, a->m, planes_of(desc), 0, error);
}

/* Some rows of x, or all, by weights that are written out. */
static qn_status launch_dense(const qn_cuda_run *run, const qn_cuda_mm *a, const work *w, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_cuda_mm_part *b = &a->part[0];
    const qn_dense_form form = dense_form(desc);
    qn_dense_operands o = {.a = a->x,
                           .a_row = a->x_row,
                           .b = (char *)run->call->workspace + w->weights,
                           .b_row = 2 * form.k,
                           .bias = b->bias,
                           .row_scale = is_bytes(desc) ? floats_at(run, w->row_scales) : NULL,
                           .column_scale = floats_at(run, w->factors),
                           .d = b->d,
                           .d_row = b->d_row,
                           .m = a->m};
    if (form.a_planes) {
        QN_TRY(make_planes(run, a, w, error));
        o.a = (char *)run->call->workspace + w->x;
        o.a_row = 2 * form.k;
    }
    return qn_dense_launch(run, portable_count(desc) + DENSE, &form, &o, error);
}

static qn_status launch_written(const qn_cuda_run *run, const qn_cuda_mm *a, const work *w, qn_error *error)
{
    const qn_cuda_mm_part *b = &a->part[0];
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
    QN_TRY(expand(run, EXPAND, &c, error));
    qn_cuda_mm some = *a;
    for (int64_t m = 0; m < a->m; m += w->rows) {
        some.m = (int32_t)qn_min_i64(w->rows, a->m - m);
        some.x = a->x + m * a->x_row;
        some.part[0].d = b->d + m * b->d_row;
        QN_TRY(launch_dense(run, &some, w, error));
    }
    return QN_OK;
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

/* Many rows of 16-bit floats by weights as they are. */
static qn_status launch_wide(const qn_cuda_run *run, qn_cuda_mm *a, const qn_wide_form *form, qn_wide_cut c,
                             qn_error *error)
{
    const qn_cuda_mm_part *b = &a->part[0];
    int32_t constant = qn_cuda_constant_weights(run);
    qn_wide_boxes boxes;
    QN_TRY(qn_wide_maps(run, form, &c, b->b, b->b_row, a->x, a->x_row, a->m, &boxes, error));
    void *const arguments[] = {&boxes.b.all, &boxes.x.all, &boxes.b.last, &boxes.x.last, a, &c.split, &constant};
    const qn_cuda_geometry g = qn_wide_geometry(form, &c, a->m);
    return qn_cuda_launch(run, portable_count(run->call->desc) + WIDE + c.program, &g, arguments, error);
}

/* Whether the copy engine can take scales; copied by threads they slow down fp4_mm.cu 1.5 to 3 times, byte by byte of
 * up to 64 rows too, and strips hardly. */
static int takes_scales(const qn_cuda_mm_part *b)
{
    return qn_tile_aligned(b->b_scale, b->b_scale_row, 0);
}

/* Rows of 16-bit floats by weights as they are. */
static qn_status launch_cut(const qn_cuda_run *run, qn_cuda_mm *a, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_cuda_mm_part *b = &a->part[0];
    const shape s = shape_of(desc, run->device);
    int32_t i = 0;
    while (i + 1 < HEIGHTS && heights[i] < a->m) {
        i++;
    }
    const cut c = cut_of(heights[i], &s);
    const int by_bytes = (uint64_t)(uintptr_t)b->b_scale % 4 != 0 || b->b_scale_row % 4 != 0;
    if (a->m >= (by_bytes ? FEW_ROWS + 1 : QN_WIDE_ROWS)) {
        const qn_wide_form f = wide_form(desc, run->device);
        const qn_wide_cut wide = qn_wide_choose(&f, run->functions + portable_count(desc) + WIDE, a->m);
        if (a->m > heights[i] || !takes_scales(b) || wide.us <= us_of(&c, &s)) {
            return launch_wide(run, a, &f, wide, error);
        }
    }
    qn_tensor_map codes, scales, x;
    QN_TRY(qn_tile_byte_map(run, b->b, s.k / 2, s.n, 1, b->b_row, b->b_row * s.n, strip_of(&c), &codes, error));
    scales = codes; /* not read without */
    int32_t mapped = takes_scales(b), constant = qn_cuda_constant_weights(run);
    if (mapped) {
        QN_TRY(scale_map(run, b, &s, &c, &scales, error));
    }
    int whole = s.k % SLICE == 0;
    QN_TRY(x_map(run, a, &s, &c, whole, &x, error));
    void *const arguments[] = {&codes, &scales, &x, a, &whole, &mapped, &constant};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)(qn_ceil_div(s.n, strip_of(&c)) * c.split), (uint32_t)qn_ceil_div(a->m, c.rows), 1},
        .block = {(uint32_t)(threads_of(&c) + LOADERS), 1, 1},
        .shared_bytes = (uint32_t)shared_bytes(&c, &s),
        .cluster = (uint32_t)c.split,
        .dependent = 1};
    return qn_cuda_launch(run, portable_count(desc) + CUTS + i, &g, arguments, error);
}

/* The rows' planes by weights as they are, and the sums of a row's planes. */
static qn_status launch_planes(const qn_cuda_run *run, qn_cuda_mm *a, const work *w, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const int32_t planes = planes_of(desc);
    qn_cuda_mm rows = *a;
    QN_TRY(make_planes(run, a, w, error));
    rows.x = (char *)run->call->workspace + w->x;
    rows.x_row = 2 * (int64_t)a->k;
    rows.m = planes * a->m;
    rows.part[0].d = (char *)run->call->workspace + w->sums;
    rows.part[0].d_row = 4 * (int64_t)a->n;
    QN_TRY(launch_cut(run, &rows, error));
    qn_cuda_mm_cut join = {.parts = rows.part[0].d, .depth = (int)qn_ceil_div(a->k, planes)};
    void *const arguments[] = {a, &join};
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(a->n, JOIN_THREADS), (uint32_t)a->m, 1},
                                .block = {JOIN_THREADS, 1, 1},
                                .dependent = 1};
    return qn_cuda_launch(run, portable_count(desc) + JOIN, &g, arguments, error);
}

/* Whether operands are where bulk copies want them, or words where they are written out; planes are made of rows
 * anywhere. */
static int takes(const qn_op_desc *desc, const qn_cuda_mm *a, int written)
{
    const uint64_t x_align = planes_of(desc) ? 1 : !is_coded(desc) ? 16 : is_bytes(desc) ? 8 : 4;
    return ((uint64_t)(uintptr_t)a->part[0].b | (uint64_t)a->part[0].b_row) % (written ? 4 : 16) == 0 &&
           ((uint64_t)(uintptr_t)a->x | (uint64_t)a->x_row) % x_align == 0;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    const qn_op_desc *desc = run->call->desc;
    const qn_wide_form f = wide_form(desc, run->device);
    const qn_wide_cut wide =
        a.m < EITHER_ROWS ? (qn_wide_cut){0} : qn_wide_choose(&f, run->functions + portable_count(desc) + WIDE, a.m);
    const int written = is_better_written(desc, run->device, a.m, &wide), planes = planes_of(desc) > 0;
    if ((planes && a.m <= PLAIN_ROWS) || !takes(desc, &a, written)) {
        return planes ? qn_cuda_mm_own_launch(run, error) : qn_cuda_mm_launch_any(run, ANY, error);
    }
    const work w = work_of(desc, a.m, written);
    if (is_coded(desc)) {
        QN_TRY(expand_x(run, &a, &w, written, error));
        a.x = (char *)run->call->workspace + w.x;
        a.x_row = 2 * (int64_t)a.k;
    }
    return written  ? launch_written(run, &a, &w, error)
           : planes ? launch_planes(run, &a, &w, error)
                    : launch_cut(run, &a, error);
}

/* ---- for people ---- */

/* How more than 64 rows are cut: strips for so many, or passes of fewer where a plan has them; 1: weights are written
 * out instead. */
static int describe_many(const qn_op_desc *desc, const qn_cuda_device *device, int64_t rows, qn_text *text)
{
    const shape s = shape_of(desc, device);
    const qn_wide_form f = wide_form(desc, device);
    const qn_wide_cut wide = qn_wide_describe(&f, rows, text);
    int32_t i = 0;
    while (i < HEIGHTS && heights[i] < rows) {
        i++;
    }
    if (i < HEIGHTS && s.k / s.unit % 16 == 0) {
        const cut c = cut_of(heights[i], &s);
        const int fewer = us_of(&c, &s) < wide.us;
        qn_text_add(text, "%s%d passes of %d rows: estimate %.1f us\n", fewer ? "cut: " : "", c.passes, c.rows,
                    us_of(&c, &s));
        if (fewer) {
            return 0;
        }
    }
    if (is_better_written(desc, device, rows, &wide)) {
        return 1;
    }
    qn_wide_describe_cut("cut: strips", &wide, text);
    return 0;
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const int32_t planes = planes_of(desc);
    if (planes && sizes->m <= PLAIN_ROWS) {
        qn_cuda_mm_own_describe(ctx, desc, sizes, text);
        return;
    }
    if (planes) {
        qn_text_add(text, "planes of bf16: %d of x\n", planes);
    }
    const int64_t rows = (planes ? planes : 1) * sizes->m;
    int written = is_written(desc, sizes->m);
    if (cuda && rows >= QN_WIDE_ROWS && !written) {
        written = describe_many(desc, &cuda->device, rows, text);
    }
    if (cuda && sizes->m > 0 && written) {
        const qn_dense_form form = dense_form(desc);
        qn_text_add(text, "weights written out as %s\n", form.f16 ? "f16" : "bf16");
        qn_dense_describe(&form, &cuda->device, sizes->m, text);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_nvfp4_mm_any_nvfp4_fp__sm90a_mma", .op = QN_OP_NVFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .describe = describe, .workspace_bytes = workspace, .impl = &impl},
    {QN_CUDA_HOOKS, .name = "qn_mxfp4_mm_fp_mxfp4_fp__sm90a_mma", .op = QN_OP_MXFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .describe = describe, .workspace_bytes = workspace, .impl = &impl},
};

const qn_cuda_family qn_cuda_fp4_mm_family = {kernels, sizeof kernels};
