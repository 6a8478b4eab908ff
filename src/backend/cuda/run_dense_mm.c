/* Host side of dense_mm on Hopper: bf16 rows by bf16 weights, f16 by f16. A plan has the portable kernels (run_mm.c),
 * which take one row and operands that the bulk copies cannot take, and those of dense.c for all else. */
#include "backend/cuda/dense.h"
#include "backend/cuda/mm.h"
#include "ref/slots.h"

enum { PORTABLE_ROWS = 1 };

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *x = &desc->in[QN_DMM_X], *b = &desc->in[QN_DMM_B];
    if (x->format != b->format || (b->format != QN_BF16 && b->format != QN_F16)) {
        return "operands are not both bf16 or both f16";
    }
    if (b->dims[0] == 0 || b->dims[1] == 0) {
        return "there are no weights";
    }
    return b->dims[0] > INT32_MAX / 2 || b->dims[1] > INT32_MAX / 4 ? "N is 2^30 or K is 2^29 or more" : NULL;
}

static qn_dense_form form_of(const qn_op_desc *desc)
{
    const qn_shape *b = &desc->in[QN_DMM_B];
    const qn_format bias = desc->in[QN_DMM_BIAS].format;
    return (qn_dense_form){.n = b->dims[0],
                           .k = b->dims[1],
                           .f16 = b->format == QN_F16,
                           .out = desc->attr[QN_ATTR_OUT].i,
                           .bias = bias ? qn_cuda_float_format(bias) + 1 : 0};
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    const qn_dense_form form = form_of(desc);
    const int32_t portable = qn_cuda_mm_programs(desc, device, out);
    qn_dense_programs(&form, device, out + portable);
    return portable + QN_DENSE_PROGRAMS;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_run_call *call = run->call;
    const qn_dense_form form = form_of(call->desc);
    const qn_view *x = &call->args->in[QN_DMM_X], *b = &call->args->in[QN_DMM_B];
    const qn_mut_view *d = &call->args->out[QN_MM_OUT_D];
    QN_FAIL_IF(call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "dense_mm: M is 2^31 or more");
    const qn_dense_operands o = {.a = x->data,
                                 .b = b->data,
                                 .bias = call->args->in[QN_DMM_BIAS].data,
                                 .d = d->data,
                                 .a_row = x->strides[0],
                                 .b_row = b->strides[0],
                                 .d_row = d->strides[0],
                                 .m = (int32_t)call->sizes.m,
                                 .constant = qn_cuda_constant_weights(run)};
    return o.m <= PORTABLE_ROWS || !qn_dense_takes(&o)
               ? qn_cuda_mm_launch(run, error)
               : qn_dense_launch(run, qn_cuda_mm_program_count(call->desc), &form, &o, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda && sizes->m > PORTABLE_ROWS) {
        const qn_dense_form form = form_of(desc);
        qn_dense_describe(&form, &cuda->device, sizes->m, text);
    }
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_dense_mm_fp16_fp16_fp__sm90a_128x256", .op = QN_OP_DENSE_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts, .describe = describe, .impl = &impl},
};

const qn_cuda_family qn_cuda_dense_mm_family = {kernels, sizeof kernels};
