/* The reference on slices of rows, side by side: what operators use that have
 * independent rows but no parts of their own yet (quantize_nvfp4 with its global
 * scale given, quantize_mxfp4, dequantize by token, group or FP4 block). And the
 * reference on all rows, for scales that rows share (the whole tensor's, 128x128
 * blocks, tiled): so the CPU backend refuses no case of these operators. */
#include "backend/cpu/run_rows.h"

#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "ref/ref.h"
#include "ref/slots.h"

#define SLICE_ROWS 8

typedef struct slice_job {
    const qn_run_call *call;
    qn_ref_fn ref;
    int64_t rows;
    char *scratch;
    size_t scratch_bytes;
} slice_job;

static int is_col(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL && desc->op == QN_OP_DEQUANTIZE;
}

static int is_int_or_fp8(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_FP8 || desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_INT8;
}

const char *qn_slices_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const int32_t granularity = desc->attr[QN_ATTR_GRANULARITY].i;
    switch ((int)desc->op) {
    case QN_OP_QUANTIZE_NVFP4:
        if (desc->attr[QN_ATTR_SWIZZLED].i) {
            return "tiled scales span rows";
        }
        return desc->in[QN_FP4_GLOBAL].format ? NULL : "the global scale is not given";
    case QN_OP_DEQUANTIZE:
        if (desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_NVFP4 && desc->attr[QN_ATTR_SWIZZLED].i) {
            return "tiled scales span rows";
        }
        return is_int_or_fp8(desc) && granularity != QN_PER_TOKEN && granularity != QN_PER_GROUP
                   ? "scales are shared by rows"
                   : NULL;
    default: return NULL;
    }
}

/* The descriptor with m rows everywhere. */
static void set_rows(qn_op_desc *desc, int64_t m)
{
    desc->in[0].dims[0] = m;
    if (desc->op == QN_OP_DEQUANTIZE) {
        for (int slot = QN_DEQ_SCALE; slot <= QN_DEQ_AZP; slot++) {
            if (desc->in[slot].format && desc->in[slot].ndim == 2) {
                desc->in[slot].dims[is_col(desc) ? 1 : 0] = m;
            }
        }
    }
}

/* The reference's scratch and SPARE bytes behind it. */
#define SPARE 64

static size_t slice_scratch(const qn_op_desc *desc)
{
    qn_op_desc slice = *desc;
    set_rows(&slice, SLICE_ROWS);
    return qn_size_add(qn_size_pad(qn_ref_scratch_bytes(&slice)), SPARE);
}

size_t qn_slices_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    return qn_size_mul((size_t)threads, slice_scratch(desc));
}

static void slice_task(void *user, int64_t index, int32_t thread)
{
    const slice_job *job = user;
    const int64_t first = index * SLICE_ROWS, rows = qn_min_i64(SLICE_ROWS, job->rows - first);
    qn_op_desc desc = *job->call->desc;
    qn_args args = *job->call->args;
    const int col = is_col(&desc);
    char *const scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    set_rows(&desc, rows);
    for (int i = 0; i < QN_MAX_IN; i++) {
        qn_view *v = &args.in[i];
        const int axis = i > 0 && col ? 1 : 0;
        if (v->shape.format && v->shape.ndim == 2 && v->data) {
            v->data = (const char *)v->data + first * (axis ? 4 : v->strides[0]);
            v->shape.dims[axis] = rows;
        }
    }
    for (int i = 0; i < QN_MAX_OUT; i++) {
        qn_mut_view *v = &args.out[i];
        if (v->shape.format && v->shape.ndim == 2 && v->data) {
            v->data = (char *)v->data + first * v->strides[0];
            v->shape.dims[0] = rows;
        } else if (v->shape.format && index > 0) {
            v->data = scratch + job->scratch_bytes - SPARE; /* one scale for all: the first slice writes it */
        }
    }
    job->ref(&desc, &args, scratch);
}

void qn_slices_run(const qn_kernel *kernel, const qn_run_call *call)
{
    if (call->args->in[0].shape.dims[0] == 0) { /* one scale given for all is still copied */
        qn_ref_get(kernel->op)(call->desc, call->args, call->workspace);
        return;
    }
    slice_job job = {.call = call,
                     .ref = qn_ref_get(kernel->op),
                     .rows = call->args->in[0].shape.dims[0],
                     .scratch = call->workspace,
                     .scratch_bytes = slice_scratch(call->desc)};
    qn_parallel_for(call->exec, qn_ceil_div(job.rows, SLICE_ROWS), slice_task, &job);
}

const char *qn_whole_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

size_t qn_whole_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    (void)threads;
    return qn_ref_scratch_bytes(desc);
}

void qn_whole_run(const qn_kernel *kernel, const qn_run_call *call)
{
    qn_ref_get(kernel->op)(call->desc, call->args, call->workspace);
}
