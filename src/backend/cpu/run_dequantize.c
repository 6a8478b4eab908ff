/* dequantize: rows of codes to f32, part by part of what shares a scale. */
#include "backend/cpu/run_rows.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define CHUNK 2048 /* elements done together; a multiple of 128 */

typedef struct dequantize_job {
    const qn_rows_set *set;
    const qn_op_desc *desc;
    const qn_args *args;
    int64_t m, k, per_task;
    qn_rows_code code;
    int64_t group; /* fp8, int8: columns of a scale; else of a block */
    int band, col; /* scales of 128 rows; transposed */
    int fp4, nvfp4, tiled, stream;
    float global;
    char *scratch;
} dequantize_job;

typedef struct dequantize_scratch {
    float out[CHUNK], scale[CHUNK / 16];
    uint8_t codes[CHUNK / 16];
} dequantize_scratch;

static const char *scale_at(const dequantize_job *job, int slot, int64_t m, int64_t group)
{
    const qn_view *v = &job->args->in[slot];
    if (v->shape.ndim < 2) {
        return v->data;
    }
    const int64_t i = job->band ? m / 128 : m;
    return (const char *)v->data + (job->col ? group * v->strides[0] + i * 4 : i * v->strides[0] + group * 4);
}

/* A zero point of any size: the difference is exact in double. */
static void decode_far(const int8_t *codes, int64_t n, float scale, int32_t azp, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)((double)codes[i] - (double)azp) * scale;
    }
}

/* Columns [c, c + n) of a row. */
static void decode_8bit(const dequantize_job *job, int64_t m, int64_t c, int64_t n, int past, float *out)
{
    const qn_view *q = &job->args->in[QN_DEQ_Q];
    const char *const codes = (const char *)q->data + m * q->strides[0];
    const int zero_points = job->args->in[QN_DEQ_AZP].shape.format != QN_FORMAT_NONE;
    for (int64_t at = c; at < c + n;) {
        const int64_t g = at / job->group, count = qn_min_i64(c + n, (g + 1) * job->group) - at;
        float scale;
        int32_t azp = 0;
        memcpy(&scale, scale_at(job, QN_DEQ_SCALE, m, g), 4);
        if (zero_points) {
            memcpy(&azp, scale_at(job, QN_DEQ_AZP, m, g), 4);
        }
        if (azp < -65536 || azp > 65536) {
            decode_far((const int8_t *)codes + at, count, scale, azp, out + at - c);
        } else {
            job->set->decode[job->code](codes + at, count, scale, azp, past, out + at - c);
        }
        at += count;
    }
}

static void decode_fp4(const dequantize_job *job, int64_t m, int64_t c, int64_t n, dequantize_scratch *s, int past,
                       float *out)
{
    const qn_view *q = &job->args->in[QN_DEQ_Q], *scale = &job->args->in[QN_DEQ_SCALE];
    const int64_t blocks = n / job->group, first = c / job->group, columns = scale->shape.dims[1];
    const uint8_t *codes = (const uint8_t *)scale->data + m * scale->strides[0] + first;
    if (job->tiled) {
        for (int64_t b = 0; b < blocks; b += 4) {
            const int64_t at = qn_scale_swizzle(m, first + b, job->k / 16);
            memcpy(s->codes + b, (const char *)scale->data + at / columns * scale->strides[0] + at % columns,
                   (size_t)qn_min_i64(4, blocks - b));
        }
        codes = s->codes;
    }
    if (job->nvfp4) {
        job->set->from_e4m3(codes, blocks, s->scale);
    } else {
        for (int64_t b = 0; b < blocks; b++) {
            s->scale[b] = qn_e8m0_to_f32(codes[b]);
        }
    }
    job->set->from_e2m1((const uint8_t *)q->data + m * q->strides[0] + c / 2, n, job->group, s->scale, job->global,
                        past, out);
}

static void dequantize_task(void *user, int64_t index, int32_t thread)
{
    const dequantize_job *job = user;
    dequantize_scratch *const s =
        (dequantize_scratch *)(void *)(job->scratch + (size_t)thread * qn_size_pad(sizeof *s));
    const qn_mut_view *x = &job->args->out[QN_DEQ_OUT_X];
    const int64_t last = qn_min_i64(job->m, (index + 1) * job->per_task);
    for (int64_t m = index * job->per_task; m < last; m++) {
        for (int64_t c = 0; c < job->k; c += CHUNK) {
            const int64_t n = qn_min_i64(CHUNK, job->k - c);
            float *const at = (float *)(void *)((char *)x->data + m * x->strides[0]) + c;
            const int past = job->stream && qn_rows_aligned(at) && (job->group >= job->k || job->group % 4 == 0);
            const int copied = job->stream && !past;
            float *const out = copied ? s->out : at;
            if (job->fp4) {
                decode_fp4(job, m, c, n, s, past, out);
            } else {
                decode_8bit(job, m, c, n, past, out);
            }
            if (copied) {
                job->set->stream(at, out, (size_t)n * 4);
            }
        }
    }
    if (job->stream) {
        job->set->fence();
    }
}

size_t qn_dequantize_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)desc;
    (void)m;
    return qn_size_mul((size_t)threads, qn_size_pad(sizeof(dequantize_scratch)));
}

static qn_rows_code code_of(const qn_op_desc *desc)
{
    if (desc->attr[QN_ATTR_FORMAT].i == QN_QUANT_INT8) {
        return QN_ROWS_I8;
    }
    switch (desc->attr[QN_ATTR_TYPE].i) {
    case QN_TYPE_E4M3FNUZ: return QN_ROWS_E4M3FNUZ;
    case QN_TYPE_E5M2: return QN_ROWS_E5M2;
    default: return QN_ROWS_E4M3;
    }
}

void qn_dequantize_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_op_desc *desc = call->desc;
    const int32_t format = desc->attr[QN_ATTR_FORMAT].i, granularity = desc->attr[QN_ATTR_GRANULARITY].i;
    dequantize_job job = {.set = qn_rows_set_of(kernel, call->state),
                          .desc = desc,
                          .args = call->args,
                          .m = call->sizes.m,
                          .k = call->sizes.k,
                          .code = code_of(desc),
                          .nvfp4 = format == QN_QUANT_NVFP4,
                          .fp4 = format == QN_QUANT_NVFP4 || format == QN_QUANT_MXFP4,
                          .global = 1.0f,
                          .scratch = call->workspace};
    if (job.m == 0 || job.k == 0) {
        return;
    }
    job.tiled = job.nvfp4 && desc->attr[QN_ATTR_SWIZZLED].i;
    job.band = granularity == QN_PER_BLOCK;
    job.col = !job.fp4 && desc->attr[QN_ATTR_SCALE_LAYOUT].i == QN_SCALE_COL;
    job.group = granularity == QN_PER_GROUP ? desc->attr[QN_ATTR_GROUP].i : (job.band ? 128 : job.k);
    if (job.fp4) {
        job.group = job.nvfp4 ? 16 : 32;
    }
    if (job.nvfp4) {
        memcpy(&job.global, call->args->in[QN_DEQ_GLOBAL].data, 4);
    }
    job.stream = job.m > QN_ROWS_STREAM_BYTES / 4 / job.k;
    job.per_task = qn_rows_per_task(qn_min_i64(job.k, QN_ROWS_TASK_BYTES) * 4);
    qn_parallel_for(call->exec, qn_ceil_div(job.m, job.per_task), dequantize_task, &job);
}
