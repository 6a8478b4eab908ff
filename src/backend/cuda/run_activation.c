/* Host side of rmsnorm, silu_mul and rope. */
#include <math.h>
#include <string.h>

#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "kernels/common/cuda_activation.h"
#include "ref/slots.h"

enum {
    PER = 8,             /* elements that a thread takes at a time: kernels/cuda/runs.h */
    NORM_THREADS = 256,  /* of rows that registers do not hold */
    SHORT_THREADS = 128, /* of several short rows */
    LEAST_THREADS = 128, /* of a longer one of many, with that many items of f32, or twice as many of 16 bits, */
    SHORT_ITEMS = 2,
    LONG_ITEMS = 4, /* and from so many runs on, so that several rows have room: */
    LONG_RUNS = 1025,
    MOST_THREADS = 1024, /* registers of all of these hold MOST_ITEMS each */
    MOST_ITEMS = 4,
    EARLY_WORDS = 16, /* registers of a thread for x and weight of the norm, so that the latter comes with the former */
    EARLY_WIDE = 32,
    THREADS = 256,
    FEW_THREADS = 64, /* where full blocks would leave multiprocessors idle, */
    TURNS = 256,      /* angles of a block of rope at most */
    TURN_BLOCKS = 5,  /* of them a multiprocessor */
    MOST_GRID_X = 0x7fffffff,
    MOST_GRID_Y = 65535
};

static int32_t out_of(const qn_op_desc *desc)
{
    const int32_t out = desc->attr[QN_ATTR_OUT].i;
    return out == QN_OUT_F32 ? QN_MM_F32 : out == QN_OUT_F16 ? QN_MM_F16 : QN_MM_BF16;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *x = &desc->in[QN_ACT_X];
    return x->dims[1] > INT32_MAX / 2 || (x->ndim == 3 && x->dims[1] * x->dims[2] > INT32_MAX / 2)
               ? "a row has 2^30 elements or more"
               : NULL;
}

/* How a row's norm is cut: `team` threads with `items` runs of PER elements each; 0: registers do not hold it. */
typedef struct norm_shape {
    int32_t team, items, threads;
} norm_shape;

static norm_shape norm_of(const qn_op_desc *desc, int wide)
{
    const int64_t runs = qn_ceil_div(desc->in[QN_ACT_X].dims[1], PER);
    const int64_t items = runs < LONG_RUNS ? SHORT_ITEMS : LONG_ITEMS;
    const int64_t most = desc->in[QN_ACT_X].format == QN_F32 ? items : 2 * items;
    norm_shape s = {.team = 0, .items = 0, .threads = NORM_THREADS};
    if (runs <= 32) {
        s = (norm_shape){.team = runs <= 8 ? 8 : runs <= 16 ? 16 : 32, .items = 1, .threads = SHORT_THREADS};
    } else if (runs <= MOST_ITEMS * MOST_THREADS) {
        s.items = (int32_t)qn_max_i64(wide ? 1 : qn_min_i64(most, qn_ceil_div(runs, LEAST_THREADS)),
                                      qn_ceil_div(runs, MOST_THREADS));
        s.team = s.threads = (int32_t)(qn_ceil_div(qn_ceil_div(runs, s.items), 32) * 32);
    }
    return s;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    (void)device;
    const int norm = desc->op == QN_OP_RMSNORM, rope = desc->op == QN_OP_ROPE;
    const int32_t count = rope || (norm && norm_of(desc, 1).items == norm_of(desc, 0).items) ? 1 : 2;
    for (int32_t i = 0; i < count; i++) {
        const norm_shape s = norm_of(desc, i);
        out[i].source = rope ? "rope.cu" : norm ? "rmsnorm.cu" : "silu_mul.cu";
        out[i].entry = rope ? "qn_rope" : !norm ? "qn_silu_mul" : s.items ? "qn_rmsnorm" : "qn_rmsnorm_long";
        qn_cuda_define(&out[i], "X_FORMAT", qn_cuda_float_format(desc->in[QN_ACT_X].format));
        if (rope) {
            qn_cuda_define(&out[i], "STYLE", desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED);
            qn_cuda_define_factors(qn_op_has(desc, QN_ACT_FACTORS), &out[i]);
            continue;
        }
        qn_cuda_define(&out[i], "OUT", out_of(desc));
        if (!norm) {
            qn_cuda_define(&out[i], "SINGLE", i);
            continue;
        }
        qn_cuda_define(&out[i], "W_FORMAT", qn_cuda_float_format(desc->in[QN_ACT_W].format));
        qn_cuda_define(&out[i], "THREADS", s.threads);
        if (s.items) {
            const int32_t words =
                s.items * PER / 4 *
                ((desc->in[QN_ACT_X].format == QN_F32 ? 4 : 2) + (desc->in[QN_ACT_W].format == QN_F32 ? 4 : 2));
            qn_cuda_define(&out[i], "NORM_ITEMS", s.items);
            qn_cuda_define(&out[i], "NORM_WHOLE",
                           (int32_t)qn_min_i64(desc->in[QN_ACT_X].dims[1] / PER / s.team, s.items));
            qn_cuda_define(&out[i], "TEAM", s.team);
            qn_cuda_define(&out[i], "WEIGHTS_EARLY", words <= (i ? EARLY_WIDE : EARLY_WORDS));
        }
    }
    return count;
}

static qn_cuda_geometry norm_geometry(const qn_cuda_run *run, int64_t m, int32_t *program)
{
    const qn_op_desc *desc = run->call->desc;
    const int wide = norm_of(desc, 1).items != norm_of(desc, 0).items && m < run->device->sms;
    const norm_shape s = norm_of(desc, wide);
    *program = wide;
    return (qn_cuda_geometry){
        .grid = {(uint32_t)qn_min_i64(s.items ? qn_ceil_div(m, s.threads / s.team) : m, MOST_GRID_X), 1, 1},
        .block = {(uint32_t)s.threads, 1, 1}};
}

static int is_few(const qn_cuda_device *device, int64_t m, int64_t k)
{
    return m * qn_ceil_div(k, PER) < (int64_t)device->sms * THREADS;
}

qn_cuda_geometry qn_cuda_runs_geometry(const qn_cuda_device *device, int64_t m, int64_t k)
{
    const int64_t runs = qn_ceil_div(k, PER), threads = is_few(device, m, k) ? FEW_THREADS : THREADS;
    const int64_t across = qn_ceil_div(runs, qn_ceil_div(runs, threads)), down = qn_max_i64(threads / across, 1);
    return (qn_cuda_geometry){
        .grid = {(uint32_t)qn_ceil_div(runs, across), (uint32_t)qn_min_i64(qn_ceil_div(m, down), MOST_GRID_Y), 1},
        .block = {(uint32_t)across, (uint32_t)down, 1},
        .dependent = 1};
}

/* How rope is dealt out to blocks of so many threads: kernels/cuda/rope.cu. */
typedef struct rope_cut {
    int64_t threads, rows, beside, tiles;
} rope_cut;

static rope_cut rope_cut_of(const qn_cuda_activation *a, int interleaved, int64_t span, int64_t threads)
{
    rope_cut c = {.threads = threads, .rows = threads / span};
    c.beside = threads / (qn_ceil_div(span, interleaved ? 2 : 4) * c.rows);
    c.tiles = qn_ceil_div(a->m, c.rows);
    return c;
}

static qn_cuda_geometry rope_geometry(const qn_cuda_run *run, const qn_cuda_activation *a)
{
    const int interleaved = run->call->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED;
    const int64_t half = a->k / 2, span = qn_min_i64(half, TURNS), parts = qn_ceil_div(half, span);
    const int64_t sms = run->device->sms;
    rope_cut c = rope_cut_of(a, interleaved, span, TURNS);
    if (c.tiles * parts * qn_ceil_div(a->heads, c.beside) < sms * TURN_BLOCKS) {
        c = rope_cut_of(a, interleaved, span, qn_max_i64(FEW_THREADS, qn_ceil_div(span, 32) * 32));
    }
    /* angles are made once where that leaves enough blocks, which have about the same number of tiles each */
    const int64_t blocks = c.tiles * parts, most = sms * TURN_BLOCKS * TURNS / c.threads;
    const int64_t shares = qn_max_i64(qn_min_i64(most / blocks, qn_ceil_div(a->heads, c.beside)), 1);
    const int64_t each = qn_ceil_div(blocks * shares, most);
    return (qn_cuda_geometry){
        .grid = {(uint32_t)parts, (uint32_t)qn_min_i64(qn_ceil_div(c.tiles, each), MOST_GRID_Y), (uint32_t)shares},
        .block = {(uint32_t)c.threads, 1, 1}};
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_view *x = &run->call->args->in[QN_ACT_X], *w = &run->call->args->in[QN_ACT_W];
    const qn_mut_view *y = &run->call->args->out[QN_ACT_OUT_Y];
    const int rope = desc->op == QN_OP_ROPE;
    qn_cuda_activation a = {.x = x->data,
                            .w = w->data,
                            .y = y->data,
                            .x_row = x->strides[0],
                            .y_row = y->strides[0],
                            .x_head = x->strides[1],
                            .y_head = y->strides[1],
                            .m = x->shape.dims[0],
                            .k = rope ? x->shape.dims[2] : y->shape.dims[1],
                            .heads = rope ? (int32_t)x->shape.dims[1] : 1,
                            .eps = desc->attr[QN_ATTR_EPS].f,
                            .log2_theta = log2((double)desc->attr[QN_ATTR_THETA].f),
                            .factors = rope ? qn_cuda_factors(&run->call->args->in[QN_ACT_FACTORS]) : NULL};
    void *const arguments[] = {&a};
    int32_t program = 0;
    if (a.m == 0 || (rope ? a.k / 2 * a.heads : a.k) == 0) {
        return QN_OK;
    }
    qn_cuda_geometry g;
    if (rope) {
        g = rope_geometry(run, &a);
    } else if (desc->op == QN_OP_RMSNORM) {
        g = norm_geometry(run, a.m, &program);
    } else {
        program = is_few(run->device, a.m, a.k);
        g = qn_cuda_runs_geometry(run->device, a.m, a.k);
        if (program) {
            g = (qn_cuda_geometry){
                .grid = {(uint32_t)qn_ceil_div(a.k, THREADS), (uint32_t)qn_min_i64(a.m, MOST_GRID_Y), 1},
                .block = {THREADS, 1, 1}};
        }
    }
    g.dependent = 1;
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = launch};

#define ROW(op_, contract, accepts_, impl_)                                                                            \
    {                                                                                                                  \
        QN_CUDA_HOOKS, .name = "qn_" contract, .op = (op_), .level = "sm_80 and later", .status = QN_CUDA_TESTED,      \
                       .accepts = accepts_, .impl = impl_                                                              \
    }

static const qn_kernel kernels[] = {
    ROW(QN_OP_RMSNORM, "rmsnorm_fp_fp__sm80_rows", accepts, &impl),
    ROW(QN_OP_SILU_MUL, "silu_mul_fp_fp__sm80_rows", accepts, &impl),
    ROW(QN_OP_ROPE, "rope_fp_f32__sm80_rows", accepts, &impl),
};

const qn_cuda_family qn_cuda_activation_family = {kernels, sizeof kernels};
