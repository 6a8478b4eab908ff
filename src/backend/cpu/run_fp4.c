/* quantize_nvfp4 and quantize_mxfp4: the largest magnitude of each block, the
 * blocks' scales from it, the codes. A global scale that is not given takes a
 * pass over the tensor first. Tiled scales are written by tasks of whole tiles
 * of 128 rows, which also zero the tiles' padding. */
#include "backend/cpu/run_rows.h"

#include <float.h>
#include <string.h>

#include "backend/cpu/fp4_steps.h"
#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define CHUNK 2048 /* elements done together; a multiple of 256 */
#define TILE_ROWS 128
#define STEPS_FROM 65536 /* elements that pay for the tables of a global scale */

typedef struct fp4_job {
    const qn_rows_set *set;
    const qn_args *args;
    const char *x;
    int64_t stride, m, k, block, per_task;
    qn_mm_real real;
    int32_t rule;
    int nvfp4, tiled, stream, far; /* far: the global scale is not finite */
    float global;
    int stepped;
    qn_rows_e2m1_steps steps; /* of the global scale, where stepped is 1 */
    float *parts;
    char *scratch;
} fp4_job;

/* A thread's scratch. */
typedef struct fp4_scratch {
    float top[CHUNK / 16], factor[CHUNK / 16];
    uint8_t scale[CHUNK / 16], codes[CHUNK / 2];
} fp4_scratch;

static float largest_of(const fp4_job *job, int64_t m, float amax)
{
    qn_rows_range range;
    job->set->range[job->real](job->x + m * job->stride, job->k, &range);
    const float row = (range.high > -range.low ? range.high : -range.low) + 0.0f; /* never -0 */
    return row > amax ? row : amax;
}

/* Tasks go backwards: what they read last, the pass that follows finds in the caches. */
static void largest_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const fp4_job *job = user;
    index = qn_ceil_div(job->m, job->per_task) - 1 - index;
    const int64_t last = qn_min_i64(job->m, (index + 1) * job->per_task);
    float amax = 0.0f;
    for (int64_t m = index * job->per_task; m < last; m++) {
        amax = largest_of(job, m, amax);
    }
    job->parts[index] = amax;
}

/* What brings the magnitudes whose exponent a rule rounds up to the next one: fractions above 1.5, from 1.75 on. */
static uint32_t mx_addend(int32_t rule)
{
    return rule == QN_RULE_CEIL ? 0x3fffff : (rule == QN_RULE_EVEN ? 0x200000 : 0);
}

/* Scales of row m from block b0 on, four columns of a tile at a time: tiles follow each other along the row. */
static void put_tiled(const fp4_job *job, int64_t m, int64_t b0, int64_t blocks, const uint8_t *scale)
{
    const qn_mut_view *out = &job->args->out[QN_FP4_OUT_SCALE];
    const int64_t columns = out->shape.dims[1], stride = out->strides[0];
    int64_t at = qn_scale_swizzle(m, b0, job->k / 16);
    for (int64_t b = 0; b < blocks; b += 4, at += 4 * TILE_ROWS) {
        char *const to = (char *)out->data + (stride == columns ? at : at / columns * stride + at % columns);
        if (b + 4 <= blocks) {
            memcpy(to, scale + b, 4);
        } else {
            memcpy(to, scale + b, (size_t)(blocks - b));
        }
    }
}

static void fp4_row(const fp4_job *job, int64_t m, fp4_scratch *s)
{
    const qn_mut_view *q = &job->args->out[QN_FP4_OUT_Q], *scale = &job->args->out[QN_FP4_OUT_SCALE];
    const int64_t size = qn_rows_real_bytes(job->real);
    for (int64_t c = 0; c < job->k; c += CHUNK) {
        const int64_t n = qn_min_i64(CHUNK, job->k - c), blocks = n / job->block;
        const char *const x = job->x + m * job->stride + c * size;
        const int special = job->set->tops[job->real](x, n, job->block, s->top);
        uint8_t *const codes = (uint8_t *)q->data + m * q->strides[0] + c / 2;
        const int past = job->stream && qn_rows_aligned(codes), copied = job->stream && !past;
        const int64_t ahead =
            qn_rows_ahead(m, job->m, job->stride, job->k * size, c * size, n * size + job->set->ahead);
        const int stepped = job->stepped && !special;
        int care = QN_ROWS_PLAIN;
        if (stepped) {
            job->set->nvfp4_codes(job->global, s->top, blocks, s->scale);
        } else if (!job->nvfp4) {
            care = job->set->mxfp4_scales(mx_addend(job->rule), s->top, blocks, s->scale, s->factor);
        } else {
            care = job->set->nvfp4_scales(job->global, s->top, blocks, s->scale, s->factor);
        }
        if (job->tiled) {
            put_tiled(job, m, c / 16, blocks, s->scale);
        } else {
            memcpy((char *)scale->data + m * scale->strides[0] + c / job->block, s->scale, (size_t)blocks);
        }
        if (stepped) {
            job->set->e2m1_steps(x, n, s->scale, &job->steps, ahead, past, copied ? s->codes : codes);
        } else {
            job->set->to_e2m1[job->real](x, n, job->block, s->factor, special || job->far ? QN_ROWS_NAN : care, ahead,
                                         past, copied ? s->codes : codes);
        }
        if (copied) {
            job->set->stream(codes, s->codes, (size_t)(n / 2));
        }
    }
}

static void fp4_task(void *user, int64_t index, int32_t thread)
{
    const fp4_job *job = user;
    fp4_scratch *const s = (fp4_scratch *)(void *)(job->scratch + (size_t)thread * qn_size_pad(sizeof *s));
    const int64_t first = index * job->per_task, last = qn_min_i64(job->m, first + job->per_task);
    const qn_mut_view *scale = &job->args->out[QN_FP4_OUT_SCALE];
    for (int64_t r = first; job->tiled && r < first + TILE_ROWS; r++) {
        memset((char *)scale->data + r * scale->strides[0], 0, (size_t)scale->shape.dims[1]);
    }
    for (int64_t m = first; m < last; m++) {
        fp4_row(job, m, s);
    }
    if (job->stream) {
        job->set->fence();
    }
}

static int64_t row_bytes(const qn_op_desc *desc)
{
    const int64_t k = desc->in[0].dims[1];
    return k > QN_ROWS_TASK_BYTES ? QN_ROWS_TASK_BYTES : k * qn_rows_real_bytes(qn_rows_real(desc->in[0].format));
}

static size_t parts_bytes(const qn_op_desc *desc, int64_t m)
{
    return qn_size_pad(qn_size_mul((size_t)qn_ceil_div(m, qn_rows_per_task(row_bytes(desc))), sizeof(float)));
}

size_t qn_fp4_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    return qn_size_add(parts_bytes(desc, m), qn_size_mul((size_t)threads, qn_size_pad(sizeof(fp4_scratch))));
}

static void find_global(fp4_job *job, const qn_exec *exec)
{
    const qn_view *given = &job->args->in[QN_FP4_GLOBAL];
    if (given->shape.format != QN_FORMAT_NONE) {
        memcpy(&job->global, given->data, 4);
    } else {
        const int64_t tasks = qn_ceil_div(job->m, job->per_task);
        float amax = 0x1p-40f;
        qn_parallel_for(exec, tasks, largest_task, job);
        for (int64_t i = 0; i < tasks; i++) {
            amax = job->parts[i] > amax ? job->parts[i] : amax;
        }
        job->global = 2688.0f / (amax < FLT_MAX ? amax : FLT_MAX);
    }
    job->far = !(job->global > 0x1p-126f && job->global < 0x1p126f);
    job->stepped = job->set->steps && job->real == QN_MM_BF16 && job->global >= 0x1p-60f && job->global <= 0x1p60f &&
                   job->m > STEPS_FROM / qn_max_i64(1, job->k);
    if (job->stepped) {
        qn_fp4_steps_make(job->global, &job->steps);
    }
    memcpy(job->args->out[QN_FP4_OUT_GLOBAL].data, &job->global, 4);
}

void qn_fp4_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_view *x = &call->args->in[QN_FP4_X];
    const int nvfp4 = kernel->op == QN_OP_QUANTIZE_NVFP4;
    fp4_job job = {.set = ((const qn_rows_impl *)kernel->impl)->set,
                   .args = call->args,
                   .x = x->data,
                   .stride = x->strides[0],
                   .m = x->shape.dims[0],
                   .k = x->shape.dims[1],
                   .block = nvfp4 ? 16 : 32,
                   .real = qn_rows_real(x->shape.format),
                   .rule = call->desc->attr[QN_ATTR_RULE].i,
                   .nvfp4 = nvfp4,
                   .tiled = nvfp4 && call->desc->attr[QN_ATTR_SWIZZLED].i,
                   .parts = call->workspace};
    job.stream = job.k > 0 && job.m > 2 * QN_ROWS_STREAM_BYTES / job.k;
    job.per_task = qn_rows_per_task(row_bytes(call->desc));
    job.scratch = (char *)call->workspace + (job.m > 0 ? parts_bytes(call->desc, job.m) : 0);
    if (nvfp4) {
        find_global(&job, call->exec);
    }
    if (job.tiled) {
        job.per_task = TILE_ROWS;
    }
    qn_parallel_for(call->exec, qn_ceil_div(job.m, job.per_task), fp4_task, &job);
}
