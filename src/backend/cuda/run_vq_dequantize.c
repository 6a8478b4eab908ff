/* Host side of vq_dequantize: aqlm and gptvq. The other formats are refused with a sentence. */
#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "kernels/common/cuda_vq_weights.h"
#include "ref/slots.h"
#include "ref/vq.h"

enum { THREADS = 256, MOST_GRID_Y = 65535, INT8_FORMAT = 3 };

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    switch ((qn_vq_format)desc->attr[QN_ATTR_FORMAT].i) {
    case QN_VQ_AQLM:
    case QN_VQ_GPTVQ: return NULL;
    case QN_VQ_QUIP_E8P: return "quip_e8p is not decoded on a GPU by this operator";
    case QN_VQ_VPTQ: break;
    }
    return "vptq is not decoded on a GPU by this operator";
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    (void)device;
    out->source = "vq_dequantize.cu";
    out->entry = "qn_vq_dequantize";
    qn_cuda_define(out, "TILES", desc->attr[QN_ATTR_FORMAT].i == QN_VQ_GPTVQ);
    return 1;
}

static qn_cuda_vq_tensor tensor_of(const qn_view *view)
{
    qn_cuda_vq_tensor t = {.dims = {1, 1, 1, 1}};
    if (view->shape.format == QN_FORMAT_NONE) {
        return t;
    }
    t.data = view->data;
    t.format = view->shape.format == QN_I8 ? INT8_FORMAT : qn_cuda_float_format(view->shape.format);
    t.bytes = view->shape.format == QN_I8 ? 1 : view->shape.format == QN_F32 ? 4 : 2;
    for (int32_t d = 0; d < view->shape.ndim; d++) {
        t.dims[4 - view->shape.ndim + d] = view->shape.dims[d];
        t.strides[4 - view->shape.ndim + d] = view->strides[d];
    }
    return t;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    qn_vq vq;
    qn_vq_bind(run->call->desc, run->call->args, &vq);
    const int tiles = vq.format == QN_VQ_GPTVQ;
    const qn_view *codes = &vq.tensor[QN_VQ_CODES];
    const qn_mut_view *w = &run->call->args->out[QN_VQ_OUT_W];
    qn_cuda_vq_weights a = {.codes = codes->data,
                            .books = tensor_of(&vq.tensor[QN_VQ_CODEBOOKS]),
                            .scales = tensor_of(&vq.tensor[tiles ? QN_VQ_CODEBOOK_SCALES : QN_VQ_SCALES]),
                            .w = w->data,
                            .codes_row = codes->strides[0],
                            .codes_group = codes->strides[1],
                            .w_row = w->strides[0],
                            .n = vq.n,
                            .k = vq.k,
                            .codebooks = (int32_t)vq.codebooks,
                            .bits = (int32_t)vq.bits,
                            .in_group = tiles ? 4 : (int32_t)vq.in_group,
                            .out_group = (int32_t)vq.out_group,
                            .code_bytes = vq.packed                                                      ? 0
                                          : codes->shape.format == QN_I8 || codes->shape.format == QN_U8 ? 1
                                                                                                         : 2,
                            .stream = codes->shape.dims[1]};
    if (a.n == 0 || a.k == 0) {
        return QN_OK;
    }
    void *const arguments[] = {&a};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(a.k / a.in_group, THREADS), (uint32_t)qn_min_i64(a.n, MOST_GRID_Y), 1},
        .block = {THREADS, 1, 1},
        .dependent = 1};
    return qn_cuda_launch(run, 0, &g, arguments, error);
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_vq_dequantize_codes_f32__sm80_groups", .op = QN_OP_VQ_DEQUANTIZE,
     .level = "sm_80 and later", .status = QN_CUDA_TESTED, .accepts = accepts, .impl = &impl},
};

const qn_cuda_family qn_cuda_vq_dequantize_family = {kernels, sizeof kernels};
