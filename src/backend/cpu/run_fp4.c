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

#define CHUNK 2048  /* elements done together; a multiple of 256 */
#define SCALES 1024 /* of a row, put together: a multiple of a chunk's */
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
    uint8_t scale[SCALES], codes[CHUNK / 2];
    int seen; /* top is of the chunk that follows */
} fp4_scratch;

static float largest_of(const fp4_job *job, int64_t m, float amax)
{
    qn_rows_range range;
    const int64_t ahead =
        qn_rows_ahead(m, job->m, job->stride, job->k * qn_rows_real_bytes(job->real), 0, job->set->look);
    job->set->range[job->real](job->x + m * job->stride, job->k, ahead, &range);
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

/* Scales of row m from block b0 on. */
static void put_scales(const fp4_job *job, int64_t m, int64_t b0, int64_t blocks, const uint8_t *scale)
{
    const qn_mut_view *out = &job->args->out[QN_FP4_OUT_SCALE];
    char *const to = (char *)out->data + m * out->strides[0] + b0;
    if (job->tiled) {
        put_tiled(job, m, b0, blocks, scale);
    } else if (job->stream) {
        job->set->stream(to, scale, (size_t)blocks);
    } else {
        memcpy(to, scale, (size_t)blocks);
    }
}

/* A chunk of row m from column c on, and the one that follows it among the rows before `last`. */
typedef struct fp4_chunk {
    const char *x, *next; /* next: NULL: there is none of the same length */
    int64_t n, ahead;
    int past;
    uint8_t *codes, *scale;
} fp4_chunk;

static fp4_chunk chunk_at(const fp4_job *job, int64_t m, int64_t last, int64_t c, fp4_scratch *s)
{
    const qn_mut_view *q = &job->args->out[QN_FP4_OUT_Q];
    const int64_t size = qn_rows_real_bytes(job->real);
    fp4_chunk k = {.n = qn_min_i64(CHUNK, job->k - c), .scale = s->scale};
    k.x = job->x + m * job->stride + c * size;
    k.ahead = qn_rows_ahead(m, job->m, job->stride, job->k * size, c * size, k.n * size + job->set->ahead);
    k.codes = (uint8_t *)q->data + m * q->strides[0] + c / 2;
    k.past = job->stream && qn_rows_aligned(k.codes);
    if (k.n % QN_ROWS_BESIDE == 0 && job->k - c >= 2 * k.n) {
        k.next = k.x + k.n * size;
    } else if (k.n % QN_ROWS_BESIDE == 0 && c + k.n == job->k && job->k >= k.n && m + 1 < last &&
               qn_min_i64(CHUNK, job->k) == k.n) {
        k.next = job->x + (m + 1) * job->stride;
    }
    return k;
}

/* Codes of a chunk; where the level does that beside them, the next one's largest magnitudes. */
static void put_codes(const fp4_job *job, const fp4_chunk *k, int special, int care, fp4_scratch *s)
{
    const int copied = job->stream && !k->past, stepped = job->stepped && !special;
    uint8_t *const codes = copied ? s->codes : k->codes;
    const int plain = !job->nvfp4 && job->real == QN_MM_BF16 && !special && care == QN_ROWS_PLAIN;
    s->seen = 0;
    if (stepped && k->next && job->set->nvfp4_beside) {
        s->seen = !job->set->nvfp4_beside(k->x, k->n, k->scale, &job->steps, k->next, k->ahead, k->past, codes, s->top);
    } else if (stepped) {
        job->set->e2m1_steps(k->x, k->n, k->scale, &job->steps, k->ahead, k->past, codes);
    } else if (plain && k->next && job->set->mxfp4_beside) {
        s->seen = !job->set->mxfp4_beside(k->x, k->n, s->factor, k->next, k->ahead, k->past, codes, s->top);
    } else {
        job->set->to_e2m1[job->real](k->x, k->n, job->block, s->factor, special || job->far ? QN_ROWS_NAN : care,
                                     k->ahead, k->past, codes);
    }
    if (copied) {
        job->set->stream(k->codes, s->codes, (size_t)(k->n / 2));
    }
}

static void fp4_row(const fp4_job *job, int64_t m, int64_t last, fp4_scratch *s)
{
    int64_t kept = 0; /* blocks whose scales are to be put */
    for (int64_t c = 0; c < job->k; c += CHUNK) {
        fp4_chunk k = chunk_at(job, m, last, c, s);
        const int64_t blocks = k.n / job->block;
        const int special = !s->seen && job->set->tops[job->real](k.x, k.n, job->block, s->top);
        int care = QN_ROWS_PLAIN;
        k.scale += kept;
        if (job->stepped && !special) {
            job->set->nvfp4_codes(job->global, s->top, blocks, k.scale);
        } else if (!job->nvfp4) {
            care = job->set->mxfp4_scales(mx_addend(job->rule), s->top, blocks, k.scale, s->factor);
        } else {
            care = job->set->nvfp4_scales(job->global, s->top, blocks, k.scale, s->factor);
        }
        put_codes(job, &k, special, care, s);
        kept += blocks;
        if (c + k.n == job->k || kept > SCALES - CHUNK / 16) {
            put_scales(job, m, (c + k.n) / job->block - kept, kept, s->scale);
            kept = 0;
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
    s->seen = 0;
    for (int64_t m = first; m < last; m++) {
        fp4_row(job, m, last, s);
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
    fp4_job job = {.set = qn_rows_set_of(kernel, call->state),
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
    if (job.stream) {
        job.per_task = qn_rows_per_far_task(job.per_task, job.m, qn_exec_threads(call->exec));
    }
    job.scratch = (char *)call->workspace + (job.m > 0 ? parts_bytes(call->desc, job.m) : 0);
    if (nvfp4) {
        find_global(&job, call->exec);
    }
    if (job.tiled) {
        job.per_task = TILE_ROWS;
    }
    qn_parallel_for(call->exec, qn_ceil_div(job.m, job.per_task), fp4_task, &job);
}
