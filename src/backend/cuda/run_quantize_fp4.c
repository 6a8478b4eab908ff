/* Host side of quantize_nvfp4 and quantize_mxfp4: one pass, and one before it for the range of the whole tensor where
 * no global scale is given, or a launch that does both (ranges.h). */
#include <string.h>

#include "backend/cuda/mm.h"
#include "backend/cuda/ranges.h"
#include "base/checked.h"
#include "kernels/common/cuda_fp4.h"
#include "ref/slots.h"

enum {
    THREADS = 256,
    SWIZZLED_THREADS = 128, /* 8192 x 7168, global scale given: 45.4 to 43.9 us; rows as they lie 43.0 to 46.5 */
    UNROLL = 4,
    PER = 8,
    SWIZZLED_ROWS = 128, /* that swizzled scales are padded to, and blocks of a row */
    SWIZZLED_BLOCKS = 4,
    SWIZZLED_STEP = 32,    /* rows between a lane's places */
    DEPENDENT_BLOCKS = 64, /* a multiprocessor: as run_quantize.c */
    ONCE_LEAST = 860,      /* KB of x a multiprocessor from which on one launch is known to be faster */
    MOST_GRID_X = 0x7fffffff,
    MOST_GRID_Y = 65535
};
enum { ANY = 0, ALIGNED, RANGE, ALIGNED_RANGE, ONCE };

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

static int is_nvfp4(const qn_op_desc *desc)
{
    return desc->op == QN_OP_QUANTIZE_NVFP4;
}

static int has_range(const qn_op_desc *desc)
{
    return is_nvfp4(desc) && desc->in[QN_FP4_GLOBAL].format == QN_FORMAT_NONE;
}

static int is_swizzled(const qn_op_desc *desc)
{
    return is_nvfp4(desc) && desc->attr[QN_ATTR_SWIZZLED].i;
}

/* Runs of m rows may be one launch, if there are no gaps. Slots of f32 would be too large for it. */
static int is_once(const qn_op_desc *desc, const qn_cuda_device *device, int64_t m)
{
    const qn_shape *x = &desc->in[QN_FP4_X];
    return has_range(desc) && !is_swizzled(desc) && x->format != QN_F32 &&
           qn_cuda_once_takes(device, ONCE_LEAST, m * x->dims[1], x->format);
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const int32_t count = !has_range(desc)                                    ? RANGE
                          : is_once(desc, device, desc->in[QN_FP4_X].dims[0]) ? ONCE + 1
                                                                              : ONCE;
    for (int32_t i = 0; i < count; i++) {
        out[i].source = "quantize_fp4.cu";
        out[i].entry = i == ONCE ? "qn_quantize_fp4_once" : i >= RANGE ? "qn_fp4_range" : "qn_quantize_fp4";
        qn_cuda_define(&out[i], "X_FORMAT", qn_cuda_float_format(desc->in[QN_FP4_X].format));
        qn_cuda_define(&out[i], "BLOCK", is_nvfp4(desc) ? 16 : 32);
        qn_cuda_define(&out[i], "ALIGNED", i == ALIGNED || i >= ALIGNED_RANGE);
        qn_cuda_define(&out[i], "RANGED", has_range(desc));
        qn_cuda_define(&out[i], "SWIZZLED", is_swizzled(desc));
        if (i == ONCE) {
            qn_cuda_once_define(&out[i], &qn_cuda_once_wide);
        }
    }
    return count;
}

/* The range of x. */
static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    (void)threads;
    return has_range(desc) ? QN_RANGE_BYTES : 0;
}

/* Elements of 16 bits, codes and scales follow each other without gaps, from where 16 bytes of x and a word of codes
 * can be taken. */
static int is_gapless(const qn_cuda_fp4 *a)
{
    return (a->m == 1 || (a->x_row == a->blocks * 32 && a->q_row == a->blocks * 8 && a->scale_row == a->blocks)) &&
           (uintptr_t)a->x % 16 == 0 && (uintptr_t)a->q % 4 == 0 && a->m * a->blocks <= UINT32_MAX;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_args *args = run->call->args;
    const qn_view *x = &args->in[QN_FP4_X];
    const qn_mut_view *scale = &args->out[QN_FP4_OUT_SCALE];
    qn_cuda_fp4 a;
    memset(&a, 0, sizeof a);
    a.x = x->data;
    a.given = is_nvfp4(desc) ? args->in[QN_FP4_GLOBAL].data : NULL;
    a.q = args->out[QN_FP4_OUT_Q].data;
    a.scale = scale->data;
    a.global = is_nvfp4(desc) ? args->out[QN_FP4_OUT_GLOBAL].data : NULL;
    a.x_row = x->strides[0];
    a.q_row = args->out[QN_FP4_OUT_Q].strides[0];
    a.scale_row = scale->strides[0];
    a.m = x->shape.dims[0];
    a.blocks = x->shape.dims[1] / (is_nvfp4(desc) ? 16 : 32);
    a.rule = desc->attr[QN_ATTR_RULE].i;
    void *const arguments[] = {&a};
    const int padded = a.m % SWIZZLED_ROWS != 0 || a.blocks % SWIZZLED_BLOCKS != 0;
    if (is_swizzled(desc) && padded && a.m > 0 && a.blocks > 0) { /* the padding between is part of the output */
        const size_t bytes = (size_t)(scale->shape.dims[0] * scale->shape.dims[1]);
        QN_TRY(qn_cuda_check(run->cuda, run->cuda->cu.Fill((cu_pointer)(uintptr_t)a.scale, 0, bytes, run->stream),
                             "cuMemsetD8Async", error));
    }
    if (is_once(desc, run->device, a.m) && is_gapless(&a)) {
        a.ranges = run->call->workspace;
        return qn_cuda_once_launch(run, ONCE, &qn_cuda_once_wide, &a, a.m * x->shape.dims[1], x->shape.format, error);
    }
    const int64_t along = is_swizzled(desc) ? 1 : UNROLL; /* places of a lane in a row */
    const int64_t threads = is_swizzled(desc) ? SWIZZLED_THREADS : THREADS;
    const int64_t chunks = qn_ceil_div(x->shape.dims[1], threads * along * PER);
    QN_FAIL_IF(chunks > MOST_GRID_Y, error, QN_E_UNSUPPORTED,
               "%s: rows of %lld elements are more than one launch takes", run->kernel->name,
               (long long)x->shape.dims[1]);
    /* as many blocks a row as full ones would be, all of about the same size */
    const int64_t vectors = qn_ceil_div(x->shape.dims[1], PER), warps = qn_max_i64(chunks, 1) * along * 32;
    qn_cuda_geometry g = {.grid = {1, (uint32_t)qn_max_i64(chunks, 1), 1},
                          .block = {(uint32_t)qn_max_i64(32 * qn_ceil_div(vectors, warps), 32), 1, 1}};
    const uint64_t at = (uint64_t)(uintptr_t)a.x | (uint64_t)a.x_row;
    const int aligned = at % 16 == 0;
    if (has_range(desc) && a.m > 0 && a.blocks > 0) {
        const int64_t k = x->shape.dims[1], bytes = x->shape.format == QN_F32 ? 4 : 2;
        qn_cuda_ranges r = qn_cuda_ranges_of(run->device, a.m, k, a.x_row, k * bytes);
        void *const range_arguments[] = {&a, QN_RANGES_ARGUMENTS(&r)};
        a.ranges = run->call->workspace;
        QN_TRY(qn_cuda_launch(run, aligned ? ALIGNED_RANGE : RANGE, &r.geometry, range_arguments, error));
    }
    const int64_t rows =
        !is_swizzled(desc) ? a.m : a.m / SWIZZLED_ROWS * SWIZZLED_STEP + qn_min_i64(a.m % SWIZZLED_ROWS, SWIZZLED_STEP);
    g.grid[0] = (uint32_t)qn_max_i64(1, qn_min_i64(rows, MOST_GRID_X));
    g.dependent = rows * g.grid[1] <= (int64_t)run->device->sms * DEPENDENT_BLOCKS;
    const int whole = aligned && ((uint64_t)(uintptr_t)a.q | (uint64_t)a.q_row) % 4 == 0;
    return qn_cuda_launch(run, whole ? ALIGNED : ANY, &g, arguments, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const qn_shape *x = &desc->in[QN_FP4_X];
    if (cuda && has_range(desc) && !is_swizzled(desc) && x->format != QN_F32) {
        qn_cuda_once_describe(&cuda->device, &qn_cuda_once_wide, ONCE_LEAST, sizes->m * x->dims[1], x->format, text);
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
    ROW(QN_OP_QUANTIZE_NVFP4, "quantize_nvfp4_fp"),
    ROW(QN_OP_QUANTIZE_MXFP4, "quantize_mxfp4_fp"),
};

const qn_cuda_family qn_cuda_fp4_family = {kernels, sizeof kernels};
