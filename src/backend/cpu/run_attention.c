/* Attention over keys and values as they are stored (attention.h), and its
 * registry: floats, or 8-bit codes with a scale for every key and head. */
#include "backend/cpu/families.h"

#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/attention_tiles.h"
#include "ref/slots.h"

typedef struct att_impl {
    const qn_att_set *set;
    const qn_rows_set *rows;       /* its loads and stores convert q, k, v and o */
    const qn_att_tiles_set *tiles; /* NULL: none */
} att_impl;

/* Row i of one head of a [rows, heads, d] view. */
static const char *head_row(const qn_view *view, int64_t head, int64_t i)
{
    return (const char *)view->data + i * view->strides[0] + (view->shape.dims[1] > 1 ? head * view->strides[1] : 0);
}

static const float *load(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count, int64_t rows,
                         qn_att_scratch *scratch, float *copy, int64_t *stride)
{
    const qn_view *view = &job->args->in[values ? QN_ATT_V : QN_ATT_K];
    const qn_view *scales = &job->args->in[values ? QN_ATT_V_SCALE : QN_ATT_K_SCALE];
    const qn_format format = view->shape.format;
    (void)scratch;
    if (format == QN_F32 && count == rows && job->d == job->d_pad) {
        *stride = view->strides[0] / 4;
        return (const float *)(const void *)head_row(view, head, first);
    }
    const qn_mm_real real = qn_rows_real(format);
    for (int64_t i = 0; i < count; i++) {
        float *const row = copy + i * job->d_pad;
        const char *const from = head_row(view, head, first + i);
        if (format == QN_F8_E4M3) {
            float scale;
            memcpy(&scale, (const char *)scales->data + (first + i) * scales->strides[0] + head * 4, sizeof scale);
            job->rows->decode[QN_ROWS_E4M3](from, job->d, scale, 0, 0, row);
        } else {
            job->rows->load[real](from, job->d, row);
        }
        memset(row + job->d, 0, (size_t)(job->d_pad - job->d) * 4);
    }
    memset(copy + count * job->d_pad, 0, (size_t)((rows - count) * job->d_pad) * 4);
    *stride = job->d_pad;
    return copy;
}

/* 0: few rows cannot take the format as it is stored. */
static int form_of(qn_format format, qn_att_form *form)
{
    switch (format) {
    case QN_F32: *form = QN_ATT_F32; return 1;
    case QN_F16: *form = QN_ATT_F16; return 1;
    case QN_BF16: *form = QN_ATT_BF16; return 1;
    case QN_F8_E4M3: *form = QN_ATT_E4M3; return 1;
    default: return 0;
    }
}

static void att_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_sizes *z = &call->sizes;
    const att_impl *impl = kernel->impl;
    qn_att_job job = {.set = impl->set,
                      .rows = impl->rows,
                      .args = call->args,
                      .queries = z->m,
                      .keys = z->n,
                      .heads = z->e,
                      .key_heads = z->g,
                      .d = z->k,
                      .scale = call->desc->attr[QN_ATTR_SCALE].f,
                      .causal = call->desc->attr[QN_ATTR_CAUSAL].i,
                      .load = load,
                      .window = call->desc->attr[QN_ATTR_WINDOW].i,
                      .recents = {&call->args->in[QN_ATT_K_RECENT], &call->args->in[QN_ATT_V_RECENT]}};
    if (job.heads > 0 && job.key_heads > 0 && job.d > 0) {
        const qn_format format = call->args->in[QN_ATT_K].shape.format;
        if (format == call->args->in[QN_ATT_V].shape.format) {
            (void)qn_format_row_bytes(format, job.d, &job.row_bytes, NULL); /* refused: 0, nothing is asked for */
            job.in_place = format == QN_F32 && !job.window;
            job.stored = form_of(format, &job.form);
        }
        if (impl->tiles) {
            qn_att_tiles_run(&job, impl->tiles, call->workspace, call->exec);
        } else {
            qn_att_run(&job, call->workspace, call->exec);
        }
    }
}

static size_t att_workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const int64_t *q = desc->in[QN_ATT_Q].dims;
    const att_impl *impl = kernel->impl;
    if (impl->tiles) {
        return qn_att_tiles_workspace_bytes(m, q[1], desc->in[QN_ATT_K].dims[1], q[2], threads);
    }
    return qn_att_workspace_bytes(m, q[1], desc->in[QN_ATT_K].dims[1], q[2], 0, threads);
}

static const char *att_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const att_impl *impl = kernel->impl;
    return impl->tiles && (desc->in[QN_ATT_K].format != QN_BF16 || desc->in[QN_ATT_V].format != QN_BF16)
               ? "keys and values are not both BF16"
               : NULL;
}

#define ROW(op_, contract, isa_, level_, tile_, mr_, nr_)                                                              \
    {                                                                                                                  \
        .name = "qn_" contract "__" #isa_ "_" tile_, .op = (op_), .backend = QN_BACKEND_CPU, .isa = (level_),          \
        .mr = (mr_), .nr = (nr_), .status = "tested", .accepts = att_accepts, .workspace_bytes = att_workspace,        \
        .run = att_run, .impl = &(const att_impl)                                                                      \
        {                                                                                                              \
            .set = &qn_att__##isa_, .rows = &qn_rows__##isa_                                                           \
        }                                                                                                              \
    }

static const qn_kernel kernels[] = {
    {.name = "qn_attention_fp_bf16_fp__amx_32x32",
     .op = QN_OP_ATTENTION,
     .backend = QN_BACKEND_CPU,
     .isa = QN_ISA_AMX,
     .mr = 32,
     .nr = 32,
     .status = "tested",
     .accepts = att_accepts,
     .workspace_bytes = att_workspace,
     .run = att_run,
     .impl = &(const att_impl){.set = &qn_att__avx512, .rows = &qn_rows__avx512, .tiles = &qn_att_tiles__amx}},
    ROW(QN_OP_ATTENTION, "attention_fp_fp_fp", avx512, QN_ISA_AVX512, "6x64", 6, 64),
    ROW(QN_OP_ATTENTION, "attention_fp_fp_fp", avx2, QN_ISA_AVX2, "6x16", 6, 16),
    ROW(QN_OP_ATTENTION, "attention_fp_fp_fp", scalar, QN_ISA_SCALAR, "2x8", 2, 8),
    ROW(QN_OP_SCALED_ATTENTION, "scaled_attention_fp_e4m3_fp", avx512, QN_ISA_AVX512, "6x64", 6, 64),
    ROW(QN_OP_SCALED_ATTENTION, "scaled_attention_fp_e4m3_fp", avx2, QN_ISA_AVX2, "6x16", 6, 16),
    ROW(QN_OP_SCALED_ATTENTION, "scaled_attention_fp_e4m3_fp", scalar, QN_ISA_SCALAR, "2x8", 2, 8),
};

const qn_cpu_family qn_cpu_attention_family = {kernels, sizeof kernels / sizeof *kernels};
