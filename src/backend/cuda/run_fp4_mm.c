/* Host side of nvfp4_mm and mxfp4_mm with activations of 16 bits on Hopper. A plan has a kernel for each of several
 * numbers of rows, cut by N, K and the device, and the portable one for operands that the bulk copies cannot take; the
 * run picks the least that holds its M. What the kernel expects is the host contract at the top of
 * kernels/cuda/fp4_mm.cu. */
#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_SPLIT = 8, MOST_WN = 8, MOST_STAGES = 32, DEPTH = 256, SPAN = 4, LOADERS = 128 };

/* Programs: any alignment, then one for each number of rows of x in a block. */
enum { ANY = 0, CUTS };
static const int32_t heights[] = {8, 16, 32, 64, 128};
enum { HEIGHTS = sizeof heights / sizeof *heights };

/* Parameters of a program. */
typedef struct cut {
    int32_t rows, wn, wk, split, stages;
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

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const int mx = desc->op == QN_OP_MXFP4_MM;
    const qn_format x = desc->in[mx ? QN_MXMM_X : QN_NVMM_X].format;
    const qn_shape *b = &desc->in[mx ? QN_MXMM_B : QN_NVMM_B];
    if (x != QN_BF16 && (mx || x != QN_F16)) {
        return mx ? "activations are not bf16" : "activations are not bf16 or f16";
    }
    if (b->dims[0] == 0 || b->dims[1] == 0) {
        return "there are no weights";
    }
    return b->dims[0] > INT32_MAX / 2 || b->dims[1] > INT32_MAX / 4 ? "N is 2^30 or K is 2^30 or more" : NULL;
}

/* ---- how a product is cut ---- */

static int32_t stage_bytes(const cut *c)
{
    return 32 * c->wn * 128 + 512 * c->rows + 16;
}

/* Beside the stages: two spans of scales and their barriers. */
static int32_t scale_bytes(const cut *c, const shape *s)
{
    return 2 * 32 * c->wn * (SPAN * DEPTH / s->unit) + 32;
}

static int32_t shared_bytes(const cut *c, const shape *s)
{
    const int32_t ring = c->stages * stage_bytes(c) + scale_bytes(c, s), sums = 4 * c->wk * c->rows * (32 * c->wn + 4);
    return 1024 + (ring > sums ? ring : sums);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Cycles of a multiprocessor, roughly, as counted from the instructions and fitted to measurements: of a block's stage
 * what takes longest of reading, issuing and the tensor cores, with what a block costs beside its stages. Clusters of
 * four and more leave a part of the multiprocessors out. */
static double cost_of(const cut *c, const shape *s, int64_t m)
{
    const double rows = (double)qn_min_i64(m, c->rows), warps = c->wn;
    const int64_t blocks = qn_ceil_div(s->n, 32 * c->wn) * c->split * qn_ceil_div(m, c->rows);
    const int64_t stages = qn_ceil_div(qn_ceil_div(s->k, DEPTH), c->split);
    const double read = (32.0 * warps * (128 + DEPTH / s->unit) + 256.0 * rows) / 18.0;
    const double issue = warps * (650.0 + 9.5 * c->rows) / (c->wn * c->wk >= 8 ? 4.0 : 2.5);
    const double multiply = warps * c->rows * 8.0;
    return (double)qn_ceil_div(blocks, c->split >= 4 ? s->sms * 28 / 33 : s->sms) *
           ((double)stages * (100.0 + larger(read, larger(issue, multiply))) + (c->split > 1 ? 6500.0 : 4000.0));
}

/* Warps that share rows of b, as measured: more than hide the latencies hold more stages. */
static int32_t sharing_of(int32_t wn, int32_t rows)
{
    return rows == 128 ? 1 : rows >= 32 || wn < 4 ? 8 / wn : wn < 7 ? 12 / wn : 2;
}

/* The cut of a number of rows for that many rows or, of the highest, for a few times as many. */
static cut cut_of(int32_t rows, const shape *s)
{
    const int64_t blocks = qn_ceil_div(s->k, 16 * s->unit), m = rows == heights[HEIGHTS - 1] ? 4 * rows : rows;
    cut best = {0};
    double least = 0.0;
    for (int32_t wn = MOST_WN; wn >= 1; wn--) {
        if (rows == 128 && (wn % 4 != 0 || (wn > 4 && s->unit == 32))) {
            continue; /* registers change hands by groups of four warps; MXFP4's eight would spill */
        }
        for (int32_t split = 1; split <= MOST_SPLIT && split <= blocks; split *= 2) {
            cut c = {rows, wn, (int32_t)qn_min_i64(sharing_of(wn, rows), qn_ceil_div(qn_ceil_div(s->k, DEPTH), split)),
                     split, 0};
            c.stages = (int32_t)qn_min_i64((QN_TILE_SHARED - 1024 - scale_bytes(&c, s)) / stage_bytes(&c), MOST_STAGES);
            const double cost = cost_of(&c, s, m);
            if (c.stages > c.wk && shared_bytes(&c, s) <= QN_TILE_SHARED && (least <= 0.0 || cost < least)) {
                least = cost;
                best = c;
            }
        }
    }
    return best;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const shape s = shape_of(desc, device);
    const qn_format x = desc->in[desc->op == QN_OP_MXFP4_MM ? QN_MXMM_X : QN_NVMM_X].format;
    qn_cuda_mm_any_program(desc, &out[ANY]);
    for (int32_t i = 0; i < HEIGHTS; i++) {
        qn_cuda_program *p = &out[CUTS + i];
        const cut c = cut_of(heights[i], &s);
        p->source = "fp4_mm.cu";
        p->entry = "qn_fp4_mm";
        p->shared_bytes = shared_bytes(&c, &s);
        qn_cuda_mm_define(desc, p);
        qn_cuda_define(p, "A_FORMAT", QN_MM_PLAIN);
        qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(x));
        qn_cuda_define(p, "ALIGNED", 1);
        qn_cuda_define(p, "ROWS", c.rows);
        qn_cuda_define(p, "WN", c.wn);
        qn_cuda_define(p, "WK", c.wk);
        qn_cuda_define(p, "SPLIT", c.split);
        qn_cuda_define(p, "STAGES", c.stages);
    }
    return CUTS + HEIGHTS;
}

/* ---- the run ---- */

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
                                   .box = {row, (uint32_t)(32 * c->wn), 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    const qn_cuda_mm_part *b = &a.part[0];
    if (!qn_tile_aligned(b->b, b->b_row, 0) || !qn_tile_aligned(a.x, a.x_row, 0)) {
        return qn_cuda_mm_launch_any(run, ANY, error);
    }
    const shape s = shape_of(run->call->desc, run->device);
    int32_t i = 0;
    while (i + 1 < HEIGHTS && heights[i] < a.m) {
        i++;
    }
    const cut c = cut_of(heights[i], &s);
    const int64_t passes = qn_ceil_div(a.m, c.rows);
    QN_FAIL_IF(passes > QN_MOST_GRID_Y, error, QN_E_UNSUPPORTED, "%s: %d rows are more than one launch takes",
               run->kernel->name, a.m);
    qn_tensor_map codes, scales;
    QN_TRY(qn_tile_byte_map(run, b->b, s.k / 2, s.n, 1, b->b_row, b->b_row * s.n, 32 * c.wn, &codes, error));
    scales = codes; /* not read without */
    int32_t mapped = qn_tile_aligned(b->b_scale, b->b_scale_row, 0), constant = qn_cuda_constant_weights(run);
    if (mapped) {
        QN_TRY(scale_map(run, b, &s, &c, &scales, error));
    }
    void *const arguments[] = {&codes, &scales, &a, &mapped, &constant};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(qn_ceil_div(s.n, 32 * c.wn) * c.split), (uint32_t)passes, 1},
                                .block = {(uint32_t)(32 * c.wn * c.wk + LOADERS), 1, 1},
                                .shared_bytes = (uint32_t)shared_bytes(&c, &s),
                                .cluster = (uint32_t)c.split,
                                .dependent = 1};
    return qn_cuda_launch(run, CUTS + i, &g, arguments, error);
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_nvfp4_mm_fp16_nvfp4_fp__sm90a_mma", .op = QN_OP_NVFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .impl = &impl},
    {QN_CUDA_HOOKS, .name = "qn_mxfp4_mm_bf16_mxfp4_fp__sm90a_mma", .op = QN_OP_MXFP4_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .impl = &impl},
};

const qn_cuda_family qn_cuda_fp4_mm_family = {kernels, sizeof kernels};
