/* From an operator's slots to a panel job. */
#include "backend/cpu/panel_job.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/mm_fragment.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

static int present(const qn_op_desc *desc, int slot)
{
    return desc->in[slot].format != QN_FORMAT_NONE;
}

static float one_float(const void *p)
{
    float value;
    memcpy(&value, p, sizeof value);
    return value;
}

qn_format qn_panel_row_format(const qn_op_desc *desc)
{
    switch ((int)desc->op) {
    case QN_OP_DENSE_MM: return desc->in[QN_DMM_X].format;
    case QN_OP_MXFP4_MM: return desc->in[QN_MXMM_X].format;
    case QN_OP_NVFP4_MM: return present(desc, QN_NVMM_X) ? desc->in[QN_NVMM_X].format : QN_U8;
    case QN_OP_SCALED_MM: return desc->in[QN_SMM_A].format;
    default: return desc->in[QN_BMM_A].format;
    }
}

int32_t qn_panel_terms(qn_format format)
{
    return format == QN_F32 ? 3 : (format == QN_F16 ? 2 : 1);
}

static void bind_a(qn_panel_job *job, const qn_view *view, qn_mm_fragment fragment)
{
    job->a =
        (qn_mm_operand){.data = view->data, .stride = view->shape.ndim > 1 ? view->strides[view->shape.ndim - 2] : 0};
    if (fragment == QN_MM_ANY && view->shape.format != QN_FORMAT_NONE) {
        const qn_format_row *row = qn_format_get_row(view->shape.format);
        job->a.decode = row->decode;
        job->a.block_elements = row->info.block_elements;
        job->a.block_bytes = row->info.block_bytes;
    }
    job->unpack_a = job->impl->parts->unpack[fragment];
}

/* Rows of 8-bit codes, of which sums are multiplied by the scale of their row after the factor of all. */
static void bind_row_scales(qn_panel_job *job, const qn_view *scale)
{
    if (scale->shape.format == QN_FORMAT_NONE) {
        return;
    }
    job->scaled = 1;
    job->scale_a = scale->data;
    job->scale_a_stride = qn_shape_elements(&scale->shape) == 1 ? 0 : (scale->shape.ndim > 1 ? scale->strides[0] : 4);
    job->scale_b = &job->factor;
    job->scale_b_step = 0;
}

static void bind_nvfp4(qn_panel_job *job)
{
    const qn_view *in = job->call->args->in;
    if (present(job->call->desc, QN_NVMM_X)) {
        bind_a(job, &in[QN_NVMM_X], qn_mm_fragment_of(in[QN_NVMM_X].shape.format));
        bind_row_scales(job, &in[QN_NVMM_X_SCALE]);
        return;
    }
    bind_a(job, &in[QN_NVMM_A], QN_MM_FRAG_NVFP4);
    job->a.scales = in[QN_NVMM_A_SCALE].data;
    job->a.scale_stride = in[QN_NVMM_A_SCALE].strides[0];
}

static void bind_scaled(qn_panel_job *job)
{
    const qn_view *in = job->call->args->in;
    bind_a(job, &in[QN_SMM_A], qn_mm_fragment_of(in[QN_SMM_A].shape.format));
    bind_row_scales(job, &in[QN_SMM_SCALE_A]);
    if (present(job->call->desc, QN_SMM_AZP)) {
        job->azp = in[QN_SMM_AZP].data;
    }
}

/* block_scaled_mm and, with a leading expert dimension, grouped_block_scaled_mm */
static void bind_blocks(qn_panel_job *job)
{
    const qn_op_desc *desc = job->call->desc;
    const qn_view *in = job->call->args->in, *sa = &in[QN_BMM_SCALE_A];
    const int col = desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    const int last = sa->shape.ndim - 1;
    bind_a(job, &in[QN_BMM_A], QN_MM_FRAG_E4M3);
    job->sa = sa->data;
    job->sa_row = col ? 4 : sa->strides[last - 1];
    job->sa_block = col ? sa->strides[last - 1] : 4;
    if (desc->op != QN_OP_GROUPED_BLOCK_SCALED_MM) {
        return;
    }
    job->experts = job->layout.experts;
    job->keep = desc->attr[QN_ATTR_TAIL].i == QN_TAIL_KEEP;
    if (desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED) {
        job->masked_m = in[QN_BMM_MASKED_M].data;
        job->expert_rows = in[QN_BMM_A].shape.dims[1];
        job->m = job->experts * job->expert_rows;
        job->a_expert = in[QN_BMM_A].strides[0];
        job->sa_expert = sa->strides[0];
        job->out_expert = job->call->args->out[QN_MM_OUT_D].strides[0];
    } else {
        job->offsets = in[QN_BMM_OFFSETS].data;
    }
}

void qn_panel_bind_rest(qn_panel_job *job, const char *rest)
{
    const qn_panel_layout *l = &job->layout;
    const qn_op_desc *desc = job->call->desc;
    job->rest = rest;
    if (desc->op == QN_OP_SCALED_MM) {
        job->scale_b = (const float *)(const void *)rest;
        job->scale_b_step = l->scale_count == 1 ? 0 : 1;
    }
    if (desc->op == QN_OP_NVFP4_MM) {
        const float a_global = present(desc, QN_NVMM_X) ? 1.0f : one_float(job->call->args->in[QN_NVMM_A_GLOBAL].data);
        job->factor = 1.0f / (a_global * one_float(rest));
    }
    job->bias = l->has_bias ? (const float *)(const void *)(rest + l->bias - l->scales) : NULL;
    job->azp_adj = l->has_azp_adj ? (const int32_t *)(const void *)(rest + l->azp_adj - l->scales) : NULL;
}

const qn_panel_set *qn_panel_set_of(const qn_panel_impl *impl, int64_t m)
{
    return impl->set->few && m <= impl->set->few_rows ? impl->set->few : impl->set;
}

void qn_panel_bind(const qn_kernel *kernel, const qn_run_call *call, qn_panel_job *job)
{
    const qn_panel_impl *impl = kernel->impl;
    const qn_mut_view *out = &call->args->out[QN_MM_OUT_D];
    *job = (qn_panel_job){.impl = impl, .call = call, .m = call->sizes.m, .n = call->sizes.n, .k = call->sizes.k};
    job->layout = qn_panel_layout_of(call->desc, impl->code);
    job->experts = 1;
    job->factor = 1.0f;
    job->set = qn_panel_set_of(impl, job->m);
    job->kind = impl->code == QN_PANEL_I8 ? job->set->rows_i8 : job->set->rows_f;
    job->a_format = qn_panel_row_format(call->desc);
    job->terms = job->kind == QN_PANEL_ROWS_BF16 ? qn_panel_terms(job->a_format) : 1;
    job->rounding = (qn_panel_rounding){.code = impl->code,
                                        .most_error = (2.0f * sqrtf((float)job->k) + 16.0f) * 0x1p-25f,
                                        .rows = job->m}; /* half of what sums may be off by */
    switch ((int)kernel->op) {
    case QN_OP_DENSE_MM: bind_a(job, &call->args->in[QN_DMM_X], qn_mm_fragment_of(job->a_format)); break;
    case QN_OP_MXFP4_MM:
        bind_a(job, &call->args->in[QN_MXMM_X], qn_mm_fragment_of(job->a_format));
        bind_row_scales(job, &call->args->in[QN_MXMM_X_SCALE]);
        break;
    case QN_OP_NVFP4_MM: bind_nvfp4(job); break;
    case QN_OP_SCALED_MM: bind_scaled(job); break;
    default: bind_blocks(job); break;
    }
    if (call->packed) {
        const char *const body = call->packed;
        job->panels = body;
        job->flags = (const uint8_t *)body + job->layout.flags;
        job->block_scales = (const float *)(const void *)(body + job->layout.block_scales);
        qn_panel_bind_rest(job, body + job->layout.scales);
    }
    job->out = out->data;
    job->out_stride = out->strides[out->shape.ndim - 2];
    job->out_real = out->shape.format == QN_F32 ? QN_MM_F32 : (out->shape.format == QN_F16 ? QN_MM_F16 : QN_MM_BF16);
}
