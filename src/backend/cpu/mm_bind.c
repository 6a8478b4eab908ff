/* From an operator's slots to a matmul job, and the packed form of int8 weights. */
#include "backend/cpu/mm_job.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

qn_mm_fragment qn_mm_fragment_of(qn_format format)
{
    switch ((int)format) {
    case QN_F32: return QN_MM_FRAG_F32;
    case QN_F16: return QN_MM_FRAG_F16;
    case QN_BF16: return QN_MM_FRAG_BF16;
    case QN_F8_E4M3: return QN_MM_FRAG_E4M3;
    case QN_Q4_0: return QN_MM_FRAG_Q4_0;
    case QN_Q4_1: return QN_MM_FRAG_Q4_1;
    case QN_Q8_0: return QN_MM_FRAG_Q8_0;
    default: return QN_MM_ANY;
    }
}

static int present(const qn_run_call *call, int slot)
{
    return call->desc->in[slot].format != QN_FORMAT_NONE;
}

static qn_mm_operand operand(const qn_view *view)
{
    qn_mm_operand o = {.data = view->data, .stride = view->shape.ndim > 1 ? view->strides[view->shape.ndim - 2] : 0};
    const qn_format_row *row = qn_format_get_row(view->shape.format);
    o.decode = row->decode;
    o.block_elements = row->info.block_elements;
    o.block_bytes = row->info.block_bytes;
    return o;
}

static void bind_bias(qn_mm_job *job, const qn_run_call *call, int slot)
{
    if (present(call, slot)) {
        job->bias = operand(&call->args->in[slot]);
        job->unpack_bias = job->set->unpack[qn_mm_fragment_of(call->desc->in[slot].format)];
    }
}

static float one_float(const qn_run_call *call, int slot)
{
    return *(const float *)call->args->in[slot].data;
}

static void bind_x(qn_mm_job *job, const qn_run_call *call, int slot)
{
    job->a = operand(&call->args->in[slot]);
    job->unpack_a = job->set->unpack[qn_mm_fragment_of(call->desc->in[slot].format)];
    job->a_direct = call->desc->in[slot].format == QN_F32 && job->k % QN_MM_PAD == 0;
}

static void bind_scales(qn_mm_operand *o, const qn_view *scales)
{
    o->scales = scales->data;
    o->scale_stride = scales->strides[0];
}

static void bind_nvfp4(qn_mm_job *job, const qn_run_call *call)
{
    const qn_view *in = call->args->in;
    job->b = operand(&in[QN_NVMM_B]);
    bind_scales(&job->b, &in[QN_NVMM_B_SCALE]);
    if (present(call, QN_NVMM_X)) {
        bind_x(job, call, QN_NVMM_X);
        job->factor = 1.0f / one_float(call, QN_NVMM_B_GLOBAL);
    } else {
        job->a = operand(&in[QN_NVMM_A]);
        bind_scales(&job->a, &in[QN_NVMM_A_SCALE]);
        job->unpack_a = job->set->unpack[QN_MM_FRAG_NVFP4];
        job->factor = 1.0f / (one_float(call, QN_NVMM_A_GLOBAL) * one_float(call, QN_NVMM_B_GLOBAL));
    }
    bind_bias(job, call, QN_NVMM_BIAS);
}

/* A scale or vector that is [1] or has a row an element. */
static const void *vector_of(const qn_view *view, int64_t *stride)
{
    const int one = qn_shape_elements(&view->shape) == 1;
    *stride = one ? 0 : (view->shape.ndim > 1 ? view->strides[0] : 4);
    return view->data;
}

static void bind_scaled(qn_mm_job *job, const qn_run_call *call)
{
    const qn_view *in = call->args->in;
    job->scaled = 1;
    job->a = operand(&in[QN_SMM_A]);
    job->scale_a = vector_of(&in[QN_SMM_SCALE_A], &job->scale_a_stride);
    if (present(call, QN_SMM_AZP)) {
        job->azp = in[QN_SMM_AZP].data;
    }
    if (call->packed) {
        const qn_mm_packed p = qn_mm_packed_layout(call->desc);
        const char *const body = call->packed;
        job->b = (qn_mm_operand){.data = body + p.rows, .stride = p.row_bytes};
        job->column_sums = (const int32_t *)(const void *)(body + p.sums);
        job->scale_b = (const float *)(const void *)(body + p.scales);
        job->scale_b_stride = qn_shape_elements(&call->desc->in[QN_SMM_SCALE_B]) == 1 ? 0 : 4;
        if (present(call, QN_SMM_BIAS)) {
            job->bias = (qn_mm_operand){.data = body + p.bias};
            job->unpack_bias = job->set->unpack[QN_MM_FRAG_F32];
        }
        job->azp_adj = present(call, QN_SMM_AZP_ADJ) ? (const int32_t *)(const void *)(body + p.azp_adj) : NULL;
        return;
    }
    job->b = operand(&in[QN_SMM_B]);
    job->scale_b = vector_of(&in[QN_SMM_SCALE_B], &job->scale_b_stride);
    bind_bias(job, call, QN_SMM_BIAS);
    job->azp_adj = present(call, QN_SMM_AZP_ADJ) ? in[QN_SMM_AZP_ADJ].data : NULL;
}

/* block_scaled_mm and, with a leading expert dimension, grouped_block_scaled_mm */
static void bind_blocks(qn_mm_job *job, const qn_run_call *call)
{
    const qn_view *in = call->args->in, *sa = &in[QN_BMM_SCALE_A], *sb = &in[QN_BMM_SCALE_B];
    const int col = call->desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    job->a = operand(&in[QN_BMM_A]);
    job->unpack_a = job->set->unpack[QN_MM_FRAG_E4M3];
    job->b = operand(&in[QN_BMM_B]);
    job->sa = sa->data;
    job->sb = sb->data;
    const int sa_last = sa->shape.ndim - 1;
    job->sa_row = col ? 4 : sa->strides[sa_last - 1];
    job->sa_block = col ? sa->strides[sa_last - 1] : 4;
    job->sb_row = sb->strides[sb->shape.ndim - 2];
    job->sb_block = 4;
    if (call->desc->op != QN_OP_GROUPED_BLOCK_SCALED_MM) {
        return;
    }
    job->experts = in[QN_BMM_B].shape.dims[0];
    job->b_expert = in[QN_BMM_B].strides[0];
    job->b_scale_expert = sb->strides[0];
    if (call->desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED) {
        job->masked_m = in[QN_BMM_MASKED_M].data;
        job->expert_rows = in[QN_BMM_A].shape.dims[1];
        job->m = job->experts * job->expert_rows;
        job->a_expert = in[QN_BMM_A].strides[0];
        job->sa_expert = sa->strides[0];
        job->out_expert = call->args->out[QN_MM_OUT_D].strides[0];
    } else {
        job->offsets = in[QN_BMM_OFFSETS].data;
    }
}

void qn_mm_bind(const qn_kernel *kernel, const qn_run_call *call, qn_mm_job *job)
{
    const qn_mm_impl *impl = kernel->impl;
    const qn_mut_view *out = &call->args->out[QN_MM_OUT_D];
    *job = (qn_mm_job){.set = impl->set, .i8 = impl->i8, .m = call->sizes.m, .n = call->sizes.n, .k = call->sizes.k};
    job->k_pad = (job->k + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    job->experts = 1;
    job->factor = 1.0f;
    job->unpack_b = impl->set->unpack[impl->fragment];
    switch ((int)kernel->op) {
    case QN_OP_DENSE_MM:
        bind_x(job, call, QN_DMM_X);
        job->b = operand(&call->args->in[QN_DMM_B]);
        job->b_direct = impl->fragment == QN_MM_FRAG_F32 && job->k % QN_MM_PAD == 0;
        bind_bias(job, call, QN_DMM_BIAS);
        break;
    case QN_OP_MXFP4_MM:
        bind_x(job, call, QN_MXMM_X);
        job->b = operand(&call->args->in[QN_MXMM_B]);
        bind_scales(&job->b, &call->args->in[QN_MXMM_B_SCALE]);
        bind_bias(job, call, QN_MXMM_BIAS);
        break;
    case QN_OP_NVFP4_MM: bind_nvfp4(job, call); break;
    case QN_OP_SCALED_MM:
        job->unpack_a = impl->i8 ? impl->i8->unpack_a : impl->set->unpack[QN_MM_FRAG_E4M3];
        bind_scaled(job, call);
        job->b_direct = impl->i8 && (call->packed || job->k % QN_MM_PAD == 0);
        break;
    default: bind_blocks(job, call); break;
    }
    job->out = out->data;
    job->out_stride = out->strides[out->shape.ndim - 2];
    job->out_real = out->shape.format == QN_F32 ? QN_MM_F32 : (out->shape.format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
}

/* ---- packed int8 weights ---- */

static size_t place(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at = qn_size_pad(qn_size_add(here, bytes));
    return here;
}

qn_mm_packed qn_mm_packed_layout(const qn_op_desc *desc)
{
    const int64_t n = desc->in[QN_SMM_B].dims[0], k = desc->in[QN_SMM_B].dims[1];
    qn_mm_packed p = {.row_bytes = (int64_t)qn_size_pad((size_t)k)};
    size_t at = 0;
    p.rows = place(&at, qn_size_mul((size_t)n, (size_t)p.row_bytes));
    p.sums = place(&at, (size_t)n * 4);
    p.scales = place(&at, (size_t)qn_shape_elements(&desc->in[QN_SMM_SCALE_B]) * 4);
    p.bias = place(&at, desc->in[QN_SMM_BIAS].format ? (size_t)n * 4 : 0);
    p.azp_adj = place(&at, desc->in[QN_SMM_AZP_ADJ].format ? (size_t)n * 4 : 0);
    p.total = at;
    return p;
}

size_t qn_mm_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    return qn_mm_packed_layout(desc).total;
}

void qn_mm_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    const qn_mm_packed p = qn_mm_packed_layout(desc);
    const int64_t n = desc->in[QN_SMM_B].dims[0], k = desc->in[QN_SMM_B].dims[1];
    char *const base = body;
    const qn_view *b = &args->in[QN_SMM_B], *scale = &args->in[QN_SMM_SCALE_B];
    memset(base, 0, p.total);
    for (int64_t r = 0; r < n; r++) {
        const int8_t *src = (const int8_t *)b->data + r * b->strides[0];
        int64_t sum = 0;
        for (int64_t i = 0; i < k; i++) {
            sum += src[i];
        }
        if (k) {
            memcpy(base + p.rows + r * p.row_bytes, src, (size_t)k);
        }
        const int32_t low = (int32_t)(uint32_t)sum;
        memcpy(base + p.sums + r * 4, &low, 4);
    }
    int64_t stride;
    const char *const scales = vector_of(scale, &stride);
    for (int64_t i = 0; i < qn_shape_elements(&scale->shape); i++) {
        memcpy(base + p.scales + i * 4, scales + i * stride, 4);
    }
    if (desc->in[QN_SMM_BIAS].format && n) {
        qn_format_get_row(desc->in[QN_SMM_BIAS].format)
            ->decode(args->in[QN_SMM_BIAS].data, n, (float *)(void *)(base + p.bias));
    }
    if (desc->in[QN_SMM_AZP_ADJ].format && n) {
        memcpy(base + p.azp_adj, args->in[QN_SMM_AZP_ADJ].data, (size_t)n * 4);
    }
}
