/* Steps of a decoding pass whose caches are not of floats, each a chain of its own: they write and read where the
 * device's position says, so that one graph serves every position.
 *
 *   keep                rows into the recent ones of a window       kv_keep.cu
 *   copy                rows, into a cache of floats too            kv_keep.cu
 *   quantize_fp8, vq_encode into a cache                            kv_keep.cu, vq_encode.cu
 *   scaled_attention over a cache                                   vq_attention_plain.cu, vq_attention_join.cu
 *
 * vq_attention needs none of this: it takes its lengths from the device. */
#include <string.h>

#include "backend/cuda/chain.h"
#include "backend/cuda/kv.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { KEEP_COLUMNS = 256, KEEP_THREADS = 128, MOST_GRID_Y = 65535 };

void qn_cuda_keep_program(qn_cuda_keep what, qn_cuda_program *program)
{
    static const char *const entries[] = {"qn_keep_recent", "qn_keep_scaled", "qn_keep_rows"};
    static const char *const zero[] = {"X_FORMAT", "TYPE", "ASYMMETRIC", "BOUNDED"};
    memset(program, 0, sizeof *program);
    program->source = "kv_keep.cu";
    program->entry = entries[what];
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        qn_cuda_define(program, zero[i], 0);
    }
}

static int dependent(const qn_chain *chain)
{
    return chain->cuda->device.major >= 9;
}

/* ---- rows into a window or a cache of floats ---- */

static void keep_arguments(const qn_args *args, const int32_t *positions, qn_cuda_chain_launch *l)
{
    const qn_view *x = &args->in[0];
    const qn_mut_view *y = &args->out[0];
    qn_cuda_kv_keep *a = &l->arguments.keep;
    *a = (qn_cuda_kv_keep){.x = x->data,
                           .y = y->data,
                           .position = positions,
                           .x_row = x->strides[0],
                           .y_row = y->strides[0],
                           .rows = (int32_t)x->shape.dims[0],
                           .width = (int32_t)x->shape.dims[1],
                           .ring = (int32_t)y->shape.dims[0]};
    l->geometry.grid[0] = (uint32_t)qn_ceil_div(a->width, KEEP_COLUMNS);
    l->geometry.grid[1] = (uint32_t)qn_min_i64(a->rows, MOST_GRID_Y);
}

static qn_status make_keep(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    qn_cuda_keep_program(s->kind == QN_CHAIN_COPY ? QN_CUDA_KEEP_ROWS : QN_CUDA_KEEP_RECENT, &program);
    l->geometry = (qn_cuda_geometry){.grid = {1, 1, 1}, .block = {KEEP_THREADS, 1, 1}, .dependent = dependent(chain)};
    keep_arguments(&s->args, position, l);
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

qn_status qn_cuda_chain_keep(const qn_chain *chain, const qn_args *args, const int32_t *positions, void *stream,
                             qn_error *error)
{
    qn_cuda_chain_launch l = chain->launches[0];
    void *const pointers[] = {&l.arguments};
    keep_arguments(args, positions, &l);
    const qn_cuda_run r = {
        .cuda = chain->cuda, .device = &chain->cuda->device, .functions = &l.function, .stream = stream};
    QN_TRY(qn_cuda_push(chain->cuda, error));
    const qn_status status = qn_cuda_launch(&r, 0, &l.geometry, pointers, error);
    qn_cuda_pop(chain->cuda);
    return status;
}

/* ---- codes into a cache ---- */

static int is_plain_fp8(const qn_chain_step *s)
{
    const qn_op_desc *d = s->desc;
    const qn_view *x = &s->args.in[QN_QUANT_X];
    const int32_t group = d->attr[QN_ATTR_GROUP].i;
    return d->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP && group > 0 && group <= QN_CUDA_KV_SIZE &&
           x->shape.format == QN_F32 && x->shape.dims[1] % group == 0 && d->attr[QN_ATTR_TYPE].i == QN_TYPE_E4M3FN &&
           d->attr[QN_ATTR_MODE].i != QN_STATIC && !(d->attr[QN_ATTR_SCALE_UB].f > 0.0f) &&
           d->attr[QN_ATTR_SCALE_FORMAT].i != QN_SCALE_UE8M0;
}

static qn_status make_scaled(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    const qn_view *x = &s->args.in[QN_QUANT_X];
    const qn_mut_view *q = &s->args.out[QN_QUANT_OUT_Q], *scale = &s->args.out[QN_QUANT_OUT_SCALE];
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    qn_cuda_keep_program(QN_CUDA_KEEP_SCALED, &program);
    l->arguments.keep = (qn_cuda_kv_keep){.x = x->data,
                                          .y = q->data,
                                          .scale = scale->data,
                                          .position = position,
                                          .x_row = x->strides[0],
                                          .y_row = q->strides[0],
                                          .scale_row = scale->strides[0],
                                          .rows = 1,
                                          .size = s->desc->attr[QN_ATTR_GROUP].i};
    const int64_t heads = x->shape.dims[1] / s->desc->attr[QN_ATTR_GROUP].i;
    l->geometry =
        (qn_cuda_geometry){.grid = {(uint32_t)heads, 1, 1}, .block = {32, 1, 1}, .dependent = dependent(chain)};
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

static qn_status make_encode(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    memset(&program, 0, sizeof program);
    qn_cuda_encode_program(s->desc, &program);
    l->arguments.encode = qn_cuda_encode_arguments(&s->args);
    l->arguments.encode.position = position;
    l->geometry = qn_cuda_encode_geometry(&l->arguments.encode, &chain->cuda->device);
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

/* ---- attention ---- */

static qn_status make_attention(const qn_chain_step *s, const int32_t *position, qn_chain *chain, int32_t *taken,
                                qn_error *error)
{
    const qn_cuda *cuda = chain->cuda;
    qn_cuda_program programs[QN_CUDA_CHAIN_LAUNCHES];
    qn_cuda_geometry geometries[QN_CUDA_CHAIN_LAUNCHES];
    qn_cuda_vq_attention a;
    const int32_t count = qn_cuda_scaled_attention_chain(s->desc, &s->args, &cuda->device, programs, geometries, &a);
    if (count == 0) {
        *taken = 0;
        return QN_OK;
    }
    QN_TRY(qn_cuda_push(cuda, error));
    const cu_result result = cuda->cu.MemAlloc(&chain->partials, (size_t)a.all_parts * (size_t)a.heads *
                                                                     (size_t)(a.size + 2) * sizeof(float));
    qn_cuda_pop(cuda);
    QN_TRY(qn_cuda_check(cuda, result, "cuMemAlloc", error));
    a.partials = (char *)(uintptr_t)chain->partials;
    a.position = position;
    chain->count = count;
    for (int32_t i = 0; i < count; i++) {
        qn_cuda_chain_launch *l = &chain->launches[i];
        l->arguments.kv = a;
        l->geometry = geometries[i];
        QN_TRY(qn_cuda_function_get(chain->cuda, &programs[i], &l->function, error));
    }
    return QN_OK;
}

qn_status qn_cuda_chain_kv(const qn_chain_step *s, const int32_t *position, qn_chain *chain, int32_t *taken,
                           qn_error *error)
{
    *taken = 1;
    if (s->kind == QN_CHAIN_KEEP || s->kind == QN_CHAIN_COPY) {
        return make_keep(s, s->kind == QN_CHAIN_COPY && !s->cached_out ? NULL : position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_QUANTIZE_FP8 && s->cached_out && is_plain_fp8(s)) {
        return make_scaled(s, position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_VQ_ENCODE && s->cached_out) {
        return make_encode(s, position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_SCALED_ATTENTION && s->cached_in) {
        return make_attention(s, position, chain, taken, error);
    }
    *taken = 0;
    return QN_OK;
}
