/* Host side of attention: the portable kernels (kernels/cuda/attention.cu) for one query and for what tiles
 * (attention_tiles.h) do not take. */
#include <math.h>
#include <string.h>

#include "backend/cuda/attention_tiles.h"
#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "kernels/common/cuda_activation.h"
#include "ref/slots.h"

enum { MOST_GRID_Y = 65535, THREADS = 128, WARPS = THREADS / 32, MOST_SIZE = 256, MANY_QUERIES = 16 };

/* Programs of a plan: for few and for many queries, keys of any alignment and aligned ones; then those of tiles. */
enum { FEW = 0, MANY = 1, ALIGNED = 2 };

static int32_t portable_count(const qn_op_desc *desc)
{
    return desc->in[QN_ATT_Q].dims[2] % 8 == 0 ? 4 : 2;
}

static int32_t dims_of(const qn_op_desc *desc)
{
    return (int32_t)qn_ceil_div(desc->in[QN_ATT_Q].dims[2], 32);
}

static int32_t queries_of(int32_t program, int32_t dims)
{
    return program & MANY ? (dims <= 2 ? 8 : dims <= 4 ? 4 : 2) : 1;
}

static int32_t shared_of(int32_t queries, int32_t dims)
{
    return 4 * (queries * dims * 32 + WARPS * queries * (32 + dims * 32 + 2));
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *q = &desc->in[QN_ATT_Q];
    if (q->dims[2] > MOST_SIZE || q->dims[2] == 0) {
        return "the head size is 0 or above 256";
    }
    return q->dims[1] > MOST_GRID_Y || q->dims[0] > INT32_MAX || desc->in[QN_ATT_K].dims[0] > INT32_MAX
               ? "there are too many heads, queries or keys"
               : NULL;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const int32_t dims = dims_of(desc), count = portable_count(desc);
    for (int32_t i = 0; i < count; i++) {
        out[i].source = "attention.cu";
        out[i].entry = "qn_attention";
        out[i].shared_bytes = shared_of(queries_of(i, dims), dims);
        qn_cuda_define(&out[i], "Q_FORMAT", qn_cuda_float_format(desc->in[QN_ATT_Q].format));
        qn_cuda_define(&out[i], "K_FORMAT", qn_cuda_float_format(desc->in[QN_ATT_K].format));
        qn_cuda_define(&out[i], "V_FORMAT", qn_cuda_float_format(desc->in[QN_ATT_V].format));
        qn_cuda_define(&out[i], "OUT", qn_cuda_float_format(qn_op_out_format(desc)));
        qn_cuda_define(&out[i], "QUERIES", queries_of(i, dims));
        qn_cuda_define(&out[i], "DIMS", dims);
        qn_cuda_define(&out[i], "ALIGNED", i >= ALIGNED);
    }
    if (qn_cuda_tiles_refusal(desc)) {
        return count;
    }
    qn_cuda_tiles_programs(desc, device, out + count);
    return count + QN_CUDA_TILES_PROGRAMS;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    return qn_cuda_tiles_refusal(desc) ? 0 : qn_cuda_tiles_workspace(desc, m);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    if (!qn_cuda_tiles_refusal(desc) && qn_cuda_tiles_take(desc, run->call->args, run->call->sizes.m)) {
        return qn_cuda_tiles_launch(run, portable_count(desc), error);
    }
    const qn_view *q = &run->call->args->in[QN_ATT_Q], *k = &run->call->args->in[QN_ATT_K];
    const qn_view *v = &run->call->args->in[QN_ATT_V];
    const qn_mut_view *o = &run->call->args->out[QN_ATT_OUT_O];
    const qn_sizes *s = &run->call->sizes;
    const float scale = desc->attr[QN_ATTR_SCALE].f;
    qn_cuda_attention a = {.q = q->data,
                           .k = k->data,
                           .v = v->data,
                           .o = o->data,
                           .q_row = q->strides[0],
                           .q_head = q->strides[1],
                           .k_row = k->strides[0],
                           .k_head = k->strides[1],
                           .v_row = v->strides[0],
                           .v_head = v->strides[1],
                           .o_row = o->strides[0],
                           .o_head = o->strides[1],
                           .queries = (int32_t)s->m,
                           .keys = (int32_t)s->n,
                           .heads = (int32_t)s->e,
                           .group = s->g > 0 ? (int32_t)(s->e / s->g) : 1,
                           .size = (int32_t)s->k,
                           .causal = desc->attr[QN_ATTR_CAUSAL].i,
                           .scale = scale == 0.0f ? (float)(1.0 / sqrt((double)s->k)) : scale};
    void *const arguments[] = {&a};
    if (s->e == 0) {
        return QN_OK;
    }
    const int aligned = s->k % 8 == 0 && ((uint64_t)(uintptr_t)a.k | (uint64_t)a.k_row | (uint64_t)a.k_head) % 16 == 0;
    const int32_t program = (aligned ? ALIGNED : 0) + (s->m >= MANY_QUERIES ? MANY : FEW), dims = dims_of(desc);
    const int32_t queries = queries_of(program, dims);
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(s->m, queries), (uint32_t)s->e, 1},
                                .block = {THREADS, 1, 1},
                                .shared_bytes = (uint32_t)shared_of(queries, dims),
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda) {
        qn_cuda_tiles_describe(desc, &cuda->device, sizes, text);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_attention_fp_fp_fp__sm80_8x32", .op = QN_OP_ATTENTION, .level = "sm_80 and later",
     .status = QN_CUDA_TESTED, .accepts = accepts, .workspace_bytes = workspace, .describe = describe, .impl = &impl},
};

const qn_cuda_family qn_cuda_attention_family = {kernels, sizeof kernels};
