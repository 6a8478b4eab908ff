/* Host side of the row-wise quantisers: quantize_fp8, quantize_int8 and silu_mul_quant.
 *
 * A plan has up to three functions of its own: the one-pass kernel that its shape
 * allows (a team of lanes a group, or registers of a block a row), the same spread
 * over more threads, and one that any alignment, stride and length is left to at the
 * run: the same again, loose, or the plain one where there is none. Where a whole
 * tensor shares a scale that is to be found, two more find its range first, and
 * one does everything for large tensors (ranges.h); blocks of 128 x 128 have
 * two programs of their own. */
#include <string.h>

#include "backend/cuda/ranges.h"
#include "base/checked.h"
#include "kernels/common/cuda_rows.h"
#include "ref/slots.h"

enum {
    PER = 8,        /* elements of a lane: kernels/cuda/rows.h */
    MOST_ITEMS = 4, /* lanes' worth in a thread's registers */
    MOST_THREADS = 1024,
    TEAM_THREADS = 256,
    LOOSE_UNROLL = 2, /* and blocks a multiprocessor: accesses of several widths take registers */
    LOOSE_BLOCKS = 4,
    LOOSE_ONE_BLOCKS = 6, /* of one segment a team */
    WIDE_THREADS = 128,
    WIDE_WAVES = 8, /* teams spread wide up to that many blocks a multiprocessor */
    PLAIN_THREADS = 128,
    UNROLL = 4,       /* segments of a team, one after the other, with all loads in flight */
    SHORT_UNROLL = 2, /* of silu's two loads in rows that would leave a block too few threads, and of f32 */
    SHORT_VECTORS = 768,
    DEPENDENT_BLOCKS = 64, /* up to that many a multiprocessor, starting early gains; wider launches lose by it */
    MOST_GRID_X = 0x7fffffff,
    MOST_GRID_Y = 65535,
    SPAN = 128,         /* rows and columns of a block with one scale */
    SPAN_THREADS = 256, /* that hold it in registers */
    SPAN_BLOCKS = 2     /* of them a multiprocessor */
};

/* The programs of a plan. PLAIN takes any alignment. WIDE: as FAST, but spread over more threads (a row over a whole
 * block, a segment a team), for runs of so few rows that multiprocessors would idle. LOOSE_WIDE, of rows that end
 * within a lane, is PLAIN so, and the second program. */
enum { PLAIN = 0, FAST = 1, WIDE = 2, LOOSE_WIDE = 3 };

/* How the segments of a descriptor are worked on. */
typedef struct shape_plan {
    int64_t k, segments, length;
    int32_t lanes;                    /* of a team; 0: no team kernel */
    int32_t items, threads;           /* of a block a row; 0: no row kernel */
    int32_t wide_items, wide_threads; /* of the same in WIDE */
    int32_t wide;                     /* there is a WIDE program, if lanes are whole */
    int32_t whole;                    /* rows end with a lane */
} shape_plan;

static int is_silu(const qn_op_desc *desc)
{
    return desc->op == QN_OP_SILU_MUL_QUANT;
}

static int is_int8(const qn_op_desc *desc)
{
    return desc->op == QN_OP_QUANTIZE_INT8;
}

static int is_static(const qn_op_desc *desc)
{
    return !is_silu(desc) && desc->attr[QN_ATTR_MODE].i == QN_STATIC;
}

static int is_per(const qn_op_desc *desc, int32_t granularity)
{
    return !is_silu(desc) && desc->attr[QN_ATTR_GRANULARITY].i == granularity;
}

/* A row has several scales. */
static int is_grouped(const qn_op_desc *desc)
{
    return is_silu(desc) ? desc->attr[QN_ATTR_GROUP].i > 0 : is_per(desc, QN_PER_GROUP) || is_per(desc, QN_PER_BLOCK);
}

/* A launch before finds the range. */
static int is_ranged(const qn_op_desc *desc)
{
    return !is_static(desc) && is_per(desc, QN_PER_TENSOR);
}

/* Blocks of SPAN x SPAN have scales that are to be found. */
static int is_blocked(const qn_op_desc *desc)
{
    return !is_static(desc) && is_per(desc, QN_PER_BLOCK);
}

static int32_t block_threads(int64_t vectors, int32_t items)
{
    return (int32_t)(qn_ceil_div(qn_ceil_div(vectors, items), 32) * 32);
}

static shape_plan plan_shape(const qn_op_desc *desc)
{
    const int64_t columns = desc->in[0].dims[1], k = is_silu(desc) ? columns / 2 : columns;
    const int grouped = is_grouped(desc);
    shape_plan p = {.k = k,
                    .length = is_per(desc, QN_PER_BLOCK) ? SPAN
                              : grouped                  ? desc->attr[QN_ATTR_GROUP].i
                                                         : qn_max_i64(k, 1)};
    p.segments = grouped ? qn_ceil_div(k, p.length) : 1;
    const int64_t lanes = p.length / PER;
    p.whole = k % PER == 0;
    if (k == 0 || is_blocked(desc) || k > (int64_t)PER * WIDE_THREADS * MOST_GRID_Y) {
        return p;
    }
    if (p.length % PER == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0) {
        p.lanes = (int32_t)lanes;
        p.wide = 1;
    } else if (p.segments == 1 && k <= (int64_t)PER * MOST_ITEMS * MOST_THREADS) {
        const int64_t vectors = qn_ceil_div(k, PER);
        p.items = (int32_t)qn_min_i64(MOST_ITEMS, qn_ceil_div(vectors, 128));
        p.threads = block_threads(vectors, p.items);
        p.wide_items = (int32_t)qn_ceil_div(vectors, MOST_THREADS);
        p.wide_threads = block_threads(vectors, p.wide_items);
        p.wide = p.wide_items != p.items;
    }
    return p;
}

static int32_t unroll_of(const qn_op_desc *desc, const shape_plan *p, int32_t program)
{
    const int heavy = is_silu(desc) && (p->k / PER < SHORT_VECTORS || desc->in[0].format == QN_F32);
    if (program == WIDE || program == LOOSE_WIDE) {
        return 1;
    }
    if (program == PLAIN) {
        return is_silu(desc) && desc->in[0].format != QN_F32 ? 1 : LOOSE_UNROLL;
    }
    return heavy ? SHORT_UNROLL : UNROLL;
}

/* As many blocks a multiprocessor as the registers of the segments in flight allow: f32 takes twice those of 16 bits.
 */
static int32_t team_blocks(const qn_op_desc *desc, const shape_plan *p, int32_t program)
{
    const int32_t most = desc->in[0].format == QN_F32 && is_silu(desc) ? 5 : 6, unroll = unroll_of(desc, p, program);
    if (program == PLAIN || program == LOOSE_WIDE) {
        return unroll == 1 ? LOOSE_ONE_BLOCKS : LOOSE_BLOCKS;
    }
    return program == WIDE ? 1 : unroll == UNROLL ? 4 : most;
}

static int32_t x_format(const qn_op_desc *desc)
{
    const qn_format format = desc->in[0].format;
    return format == QN_F32 ? 0 : format == QN_F16 ? 1 : 2;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    return qn_ceil_div(desc->in[0].dims[1], SPAN) > MOST_GRID_X ? "K is 2^38 or more" : NULL;
}

/* A tensor's range. */
static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    (void)threads;
    return is_ranged(desc) ? QN_RANGE_BYTES : 0;
}

/* Programs of an operator's own, without those that find a range. */
static int32_t own_programs(const qn_op_desc *desc, const shape_plan *p)
{
    if (!p->whole) {
        return p->lanes ? 2 : 1;
    }
    return p->wide ? 3 : p->lanes || p->items || is_blocked(desc) ? 2 : 1;
}

/* KB of x a multiprocessor from which on one launch was faster on an H200, 7168 columns of bf16: codes that take more
 * instructions want larger tensors. */
static int32_t once_least(const qn_op_desc *desc)
{
    return !is_int8(desc) ? 80 : desc->attr[QN_ATTR_SYMMETRIC].i ? 216 : 430;
}

/* Codes of e4m3fnuz would need more registers than there are. */
static int may_be_once(const qn_op_desc *desc)
{
    return is_ranged(desc) && (is_int8(desc) || desc->attr[QN_ATTR_TYPE].i != QN_TYPE_E4M3FNUZ);
}

/* Runs of m rows may be one launch, if there are no gaps: ranges.h. */
static int is_once(const qn_op_desc *desc, const qn_cuda_device *device, int64_t m)
{
    const qn_shape *x = &desc->in[0];
    return may_be_once(desc) && qn_cuda_once_takes(device, once_least(desc), m * x->dims[1], x->format);
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const shape_plan p = plan_shape(desc);
    const int silu = is_silu(desc), int8 = is_int8(desc);
    const int blocked = is_blocked(desc);
    const int32_t cuts = own_programs(desc, &p), ranges = cuts + 2 * is_ranged(desc);
    const int32_t count = ranges + is_once(desc, device, desc->in[0].dims[0]);
    for (int32_t i = 0; i < count; i++) {
        const int32_t shared = cuts > 1 || i >= ranges ? FAST : PLAIN; /* the text of ranges' programs */
        const int32_t own = i >= cuts ? shared : i == FAST && !p.whole ? LOOSE_WIDE : i;
        const int wide = own == WIDE;
        const shape_plan cut = i < ranges ? p : (shape_plan){0}; /* the only launch is the same for all rows */
        out[i].source = silu ? "silu_mul_quant.cu" : int8 ? "quantize_int8.cu" : "quantize_fp8.cu";
        qn_cuda_define(&out[i], "X_FORMAT", x_format(desc));
        qn_cuda_define(&out[i], "TYPE", int8 ? QN_TYPE_INT8 : desc->attr[QN_ATTR_TYPE].i);
        qn_cuda_define(&out[i], "LANES", cut.lanes);
        qn_cuda_define(&out[i], "UNROLL", unroll_of(desc, &p, own));
        qn_cuda_define(&out[i], "TEAM_BLOCKS", team_blocks(desc, &p, own));
        qn_cuda_define(&out[i], "LOOSE", own == PLAIN || own == LOOSE_WIDE);
        qn_cuda_define(&out[i], "ITEMS", wide ? cut.wide_items : cut.items);
        qn_cuda_define(&out[i], "THREADS", wide ? cut.wide_threads : cut.threads);
        qn_cuda_define(&out[i], "ASYMMETRIC", (silu || int8) && !desc->attr[QN_ATTR_SYMMETRIC].i);
        qn_cuda_define(&out[i], "BOUNDED", desc->attr[QN_ATTR_SCALE_UB].f > 0.0f);
        qn_cuda_define(&out[i], "SPAN_ROWS", is_per(desc, QN_PER_BLOCK) ? SPAN : 1);
        qn_cuda_define(&out[i], "RANGED", is_ranged(desc));
        qn_cuda_define(&out[i], "BLOCKED", blocked);
        if (!silu) {
            qn_cuda_define(&out[i], "STATIC", is_static(desc));
            qn_cuda_define(&out[i], "GROUPED", is_grouped(desc));
        }
        if (!silu && !int8) {
            qn_cuda_define(&out[i], "MULTIPLY", is_static(desc) || is_per(desc, QN_PER_TENSOR));
        }
        if (i >= ranges) {
            qn_cuda_once_define(&out[i], &qn_cuda_once_narrow);
        }
    }
    static const char *const entries[3][7] = {
        {"qn_quantize_fp8_plain", "qn_quantize_fp8_row", "qn_quantize_fp8_team", "qn_quantize_fp8_range_plain",
         "qn_quantize_fp8_range", "qn_quantize_fp8_once", "qn_quantize_fp8_block"},
        {"qn_quantize_int8_plain", "qn_quantize_int8_row", "qn_quantize_int8_team", "qn_quantize_int8_range_plain",
         "qn_quantize_int8_range", "qn_quantize_int8_once", "qn_quantize_int8_block"},
        {"qn_silu_mul_quant_plain", "qn_silu_mul_quant_row", "qn_silu_mul_quant_team"},
    };
    const char *const *const names = entries[silu ? 2 : int8];
    for (int32_t i = PLAIN; i < count; i++) {
        out[i].entry = names[blocked ? 6 : i >= cuts ? 3 + i - cuts : p.lanes ? 2 : p.items ? 1 : 0];
    }
    return count;
}

/* ---- the run ---- */

/* Steps from row to row and from segment to segment of a tensor of scales; the scale of a whole tensor has none. */
static void scale_steps(const qn_op_desc *desc, const qn_shape *shape, const int64_t *strides, long long *row,
                        long long *segment)
{
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL && is_grouped(desc);
    const int64_t across = shape->ndim == 2 ? strides[0] : 4;
    *row = is_per(desc, QN_PER_TENSOR) ? 0 : col ? 4 : across;
    *segment = col ? across : 4;
}

static qn_cuda_rows arguments_of(const qn_run_call *call, const shape_plan *p)
{
    const qn_op_desc *desc = call->desc;
    const qn_args *args = call->args;
    qn_cuda_rows a;
    memset(&a, 0, sizeof a);
    a.x = args->in[0].data;
    a.x_row = args->in[0].strides[0];
    a.q = args->out[0].data;
    a.q_row = args->out[0].strides[0];
    a.scale = args->out[1].data;
    scale_steps(desc, &args->out[1].shape, args->out[1].strides, &a.scale_row, &a.scale_segment);
    if (args->out[2].shape.format != QN_FORMAT_NONE) {
        a.azp = args->out[2].data;
        scale_steps(desc, &args->out[2].shape, args->out[2].strides, &a.azp_row, &a.azp_segment);
    }
    if (is_static(desc)) {
        a.given = args->in[QN_QUANT_SCALE].data;
        scale_steps(desc, &args->in[QN_QUANT_SCALE].shape, args->in[QN_QUANT_SCALE].strides, &a.given_row,
                    &a.given_segment);
        if (is_int8(desc) && args->in[QN_QUANT_AZP].shape.format != QN_FORMAT_NONE) {
            a.given_azp = args->in[QN_QUANT_AZP].data;
            scale_steps(desc, &args->in[QN_QUANT_AZP].shape, args->in[QN_QUANT_AZP].strides, &a.given_azp_row,
                        &a.given_azp_segment);
        }
    }
    a.m = call->sizes.m;
    a.k = p->k;
    a.segments = p->segments;
    a.length = p->length;
    a.bound = desc->attr[QN_ATTR_SCALE_UB].f;
    a.power_of_two = desc->attr[QN_ATTR_SCALE_FORMAT].i == QN_SCALE_UE8M0;
    return a;
}

/* Rows start at 16-byte boundaries, and up after gate too. */
static int is_aligned(const qn_cuda_rows *a, const qn_op_desc *desc)
{
    const int64_t element = desc->in[0].format == QN_F32 ? 4 : 2;
    const uint64_t x = (uint64_t)(uintptr_t)a->x | (uint64_t)a->x_row | (uint64_t)(is_silu(desc) ? a->k * element : 0);
    const uint64_t q = (uint64_t)(uintptr_t)a->q | (uint64_t)a->q_row;
    return x % 16 == 0 && q % PER == 0;
}

/* Codes and elements follow each other without gaps, from where 16 bytes of x and a lane's codes can be taken. */
static int is_gapless(const qn_cuda_rows *a, const qn_op_desc *desc)
{
    const int64_t element = desc->in[0].format == QN_F32 ? 4 : 2;
    return (a->m == 1 || (a->x_row == a->k * element && a->q_row == a->k)) && (uintptr_t)a->x % 16 == 0 &&
           (uintptr_t)a->q % PER == 0;
}

/* The range of a tensor. */
static qn_status launch_ranges(const qn_cuda_run *run, qn_cuda_rows *a, int32_t program, qn_error *error)
{
    const int64_t row = a->k * (run->call->desc->in[0].format == QN_F32 ? 4 : 2);
    qn_cuda_ranges r = qn_cuda_ranges_of(run->device, a->m, a->k, a->x_row, row);
    void *const arguments[] = {a, QN_RANGES_ARGUMENTS(&r)};
    a->ranges = run->call->workspace;
    return qn_cuda_launch(run, program, &r.geometry, arguments, error);
}

static qn_status launch_blocks(const qn_cuda_run *run, qn_cuda_rows *a, qn_error *error)
{
    void *const arguments[] = {a};
    const int fast = a->k % PER == 0 && is_aligned(a, run->call->desc);
    const int64_t across = qn_ceil_div(a->k, SPAN), down = qn_ceil_div(a->m, SPAN);
    if (down == 0) {
        return QN_OK;
    }
    /* as many as are resident, each with its share of about the same size */
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_min_i64(across * down, (int64_t)run->device->sms * SPAN_BLOCKS), 1, 1},
        .block = {SPAN_THREADS, 1, 1},
        .dependent = 1};
    return qn_cuda_launch(run, fast ? FAST : PLAIN, &g, arguments, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const shape_plan p = plan_shape(desc);
    qn_cuda_rows a = arguments_of(run->call, &p);
    void *const arguments[] = {&a};
    qn_cuda_geometry g = {.grid = {(uint32_t)qn_min_i64(qn_max_i64(a.m, 1), MOST_GRID_X), 1, 1}, .block = {1, 1, 1}};
    if (p.segments == 0) {
        return QN_OK; /* groups of no columns */
    }
    if (is_blocked(desc)) {
        return launch_blocks(run, &a, error);
    }
    if (a.m == 0) { /* the scale of a whole tensor is written even so */
        a.m = 1;
        a.k = 0;
    }
    const int64_t vectors = p.segments * p.lanes;
    const int fast = (p.lanes || p.items) && p.whole && a.k && is_aligned(&a, desc);
    if (is_once(desc, run->device, a.m) && is_gapless(&a, desc)) {
        a.ranges = run->call->workspace;
        return qn_cuda_once_launch(run, own_programs(desc, &p) + 2, &qn_cuda_once_narrow, &a, a.m * a.k,
                                   desc->in[0].format, error);
    }
    if (is_ranged(desc) && a.m && a.k) {
        QN_TRY(launch_ranges(run, &a, own_programs(desc, &p) + (a.k % PER == 0 && is_aligned(&a, desc)), error));
    }
    const int64_t full = p.lanes ? qn_ceil_div(a.m * qn_ceil_div(vectors, TEAM_THREADS), WIDE_WAVES) : a.m;
    const int few = p.wide && full < run->device->sms, wide = fast && few;
    const int32_t kind = wide ? WIDE : fast ? FAST : few && p.lanes && !p.whole ? LOOSE_WIDE : PLAIN;
    if (p.lanes) { /* as many blocks a row as full ones would be, all of about the same size */
        const int64_t unroll = unroll_of(desc, &p, kind), threads = few ? WIDE_THREADS : TEAM_THREADS;
        const int64_t blocks = qn_ceil_div(vectors, threads * unroll);
        g.block[0] = (uint32_t)(qn_ceil_div(qn_ceil_div(vectors, blocks * unroll), 32) * 32);
        g.grid[1] = (uint32_t)qn_ceil_div(vectors, (int64_t)g.block[0] * unroll);
    } else if (p.items) {
        g.block[0] = (uint32_t)(wide ? p.wide_threads : p.threads);
    } else {
        g.block[0] = PLAIN_THREADS;
        g.grid[1] = (uint32_t)qn_min_i64(p.segments, MOST_GRID_Y);
    }
    g.dependent = (int64_t)g.grid[0] * g.grid[1] <= (int64_t)run->device->sms * DEPENDENT_BLOCKS;
    return qn_cuda_launch(run, kind == LOOSE_WIDE ? 1 : kind, &g, arguments, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda && may_be_once(desc)) {
        qn_cuda_once_describe(&cuda->device, &qn_cuda_once_narrow, once_least(desc), sizes->m * desc->in[0].dims[1],
                              desc->in[0].format, text);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = launch};

#define ROW(op_, contract)                                                                                             \
    {                                                                                                                  \
        QN_CUDA_HOOKS, .name = "qn_" contract "__sm80_rows", .op = (op_), .level = "sm_80 and later",                  \
                       .status = QN_CUDA_TESTED, .accepts = accepts, .describe = describe,                             \
                       .workspace_bytes = workspace, .impl = &impl                                                     \
    }

static const qn_kernel kernels[] = {
    ROW(QN_OP_QUANTIZE_FP8, "quantize_fp8_fp_q8"),
    ROW(QN_OP_QUANTIZE_INT8, "quantize_int8_fp_i8"),
    ROW(QN_OP_SILU_MUL_QUANT, "silu_mul_quant_fp_q8"),
};

const qn_cuda_family qn_cuda_quantize_family = {kernels, sizeof kernels};
