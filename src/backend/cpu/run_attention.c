/* The attention runner and its registry.
 *
 * Grid: one task a (key head, block of queries), the block chosen so that the
 * query heads sharing a key head give about QUERY_ROWS rows. A task walks the
 * keys in blocks of QN_ATT_KEYS from key 0 to the last that any of its queries
 * sees, with a running maximum a row; memory does not grow with the keys. */
#include "backend/cpu/families.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/mm_fragment.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "kernels/common/attention.h"
#include "ref/slots.h"

#define QUERY_ROWS 48

typedef struct att_impl {
    const qn_att_set *set;
    const qn_mm_f32_set *mm; /* its fragments decode q, k and v */
} att_impl;

typedef struct att_job {
    const att_impl *impl;
    const qn_args *args;
    int64_t queries, keys, heads, key_heads, d, d_pad, shared, per_task;
    float scale;
    int causal;
    char *scratch;
    size_t scratch_bytes;
} att_job;

typedef struct att_scratch {
    float *q, *o, *s, *k, *kt, *v, *max, *lanes;
} att_scratch;

static int64_t queries_per_task(int64_t shared)
{
    return qn_max_i64(1, QUERY_ROWS / qn_max_i64(1, shared));
}

/* Parts of a thread's scratch; base NULL: only the size. */
static size_t scratch_parts(char *base, int64_t rows, int64_t d_pad, att_scratch *s)
{
    size_t at = 0;
    float **const parts[] = {&s->q, &s->o, &s->s, &s->k, &s->kt, &s->v, &s->max, &s->lanes};
    const size_t r = (size_t)rows, d = (size_t)d_pad, row = qn_size_mul(r, d), block = qn_size_mul(QN_ATT_KEYS, d);
    const size_t floats[] = {row, row, qn_size_mul(r, QN_ATT_KEYS), block, block, block, r, qn_size_mul(r, QN_ATT_LANES)};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *parts[i] = base ? (float *)(void *)(base + at) : NULL;
        at = qn_size_pad(qn_size_add(at, qn_size_mul(floats[i], 4)));
    }
    return at;
}

static int64_t pad(int64_t d)
{
    return (int64_t)qn_size_pad((size_t)d);
}

/* Rows of one head of a [rows, heads, d] view. */
static qn_mm_operand head_rows(const qn_view *view, int64_t head)
{
    const int64_t size = qn_format_get_row(view->shape.format)->info.block_bytes;
    return (qn_mm_operand){.data = (const char *)view->data +
                                   head * (view->shape.dims[1] > 1 ? view->strides[1] : view->shape.dims[2] * size),
                           .stride = view->strides[0]};
}

static qn_mm_unpack_fn decoder(const att_job *job, int slot)
{
    return job->impl->mm->unpack[qn_mm_fragment_of(job->args->in[slot].shape.format)];
}

/* Keys that query t sees. */
static int64_t visible_keys(const att_job *job, int64_t t)
{
    return job->causal ? qn_max_i64(0, job->keys - job->queries + t + 1) : job->keys;
}

static void load_block(const att_job *job, int64_t head, int64_t first, int64_t count, const att_scratch *s)
{
    const qn_mm_operand k = head_rows(&job->args->in[QN_ATT_K], head), v = head_rows(&job->args->in[QN_ATT_V], head);
    const qn_mm_unpack_fn get_k = decoder(job, QN_ATT_K), get_v = decoder(job, QN_ATT_V);
    for (int64_t i = 0; i < count; i++) {
        get_k(&k, first + i, 0, job->d, s->k + i * job->d_pad);
        get_v(&v, first + i, 0, job->d, s->v + i * job->d_pad);
    }
    memset(s->k + count * job->d_pad, 0, (size_t)((QN_ATT_KEYS - count) * job->d_pad) * 4);
    job->impl->set->transpose(s->k, job->d_pad, job->d, s->kt);
}

/* All rows (query by query, shared heads inside) against one block of keys. */
static void do_block(const att_job *job, int64_t t0, int64_t queries, int64_t first, int64_t count,
                     const att_scratch *s)
{
    const qn_att_set *set = job->impl->set;
    set->scores(s->q, job->d_pad, s->kt, job->d, queries * job->shared, s->s);
    int64_t full = 0; /* rows at the end that see the whole block */
    for (int64_t t = 0; t < queries; t++) {
        const int64_t visible = qn_min_i64(count, visible_keys(job, t0 + t) - first);
        if (visible <= 0) {
            continue;
        }
        for (int64_t h = 0; h < job->shared; h++) {
            const int64_t r = t * job->shared + h;
            set->softmax(s->s + r * QN_ATT_KEYS, visible, job->scale, s->max + r, s->lanes + r * QN_ATT_LANES,
                         s->o + r * job->d_pad, job->d_pad);
        }
        const int64_t r = t * job->shared;
        if (visible < count) {
            set->values(s->s + r * QN_ATT_KEYS, s->v, job->d_pad, visible, job->shared, s->o + r * job->d_pad);
        } else {
            full += job->shared;
        }
    }
    const int64_t r = queries * job->shared - full;
    set->values(s->s + r * QN_ATT_KEYS, s->v, job->d_pad, count, full, s->o + r * job->d_pad);
}

static void att_task(void *user, int64_t index, int32_t thread)
{
    const att_job *job = user;
    const int64_t head = index % job->key_heads, t0 = index / job->key_heads * job->per_task;
    const int64_t queries = qn_min_i64(job->per_task, job->queries - t0), rows = queries * job->shared;
    att_scratch s;
    scratch_parts(job->scratch + (size_t)thread * job->scratch_bytes, job->per_task * job->shared, job->d_pad, &s);
    const qn_mm_unpack_fn get_q = decoder(job, QN_ATT_Q);
    for (int64_t r = 0; r < rows; r++) {
        const qn_mm_operand q = head_rows(&job->args->in[QN_ATT_Q], head * job->shared + r % job->shared);
        get_q(&q, t0 + r / job->shared, 0, job->d, s.q + r * job->d_pad);
        s.max[r] = -INFINITY;
    }
    memset(s.o, 0, (size_t)(rows * job->d_pad) * 4);
    memset(s.lanes, 0, (size_t)(rows * QN_ATT_LANES) * 4);
    const int64_t last = qn_min_i64(job->keys, visible_keys(job, t0 + queries - 1));
    for (int64_t first = 0; first < last; first += QN_ATT_KEYS) {
        const int64_t count = qn_min_i64(QN_ATT_KEYS, last - first);
        load_block(job, head, first, count, &s);
        do_block(job, t0, queries, first, count, &s);
    }
    const qn_mut_view *out = &job->args->out[QN_ATT_OUT_O];
    for (int64_t r = 0; r < rows; r++) {
        char *const o = (char *)out->data + (t0 + r / job->shared) * out->strides[0] +
                        (head * job->shared + r % job->shared) * (job->heads > 1 ? out->strides[1] : 0);
        if (visible_keys(job, t0 + r / job->shared) > 0) {
            job->impl->set->finish(s.o + r * job->d_pad, s.lanes + r * QN_ATT_LANES, job->d, (float *)(void *)o);
        } else {
            memset(o, 0, (size_t)job->d * 4);
        }
    }
}

static void att_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_sizes *z = &call->sizes;
    att_job job = {.impl = kernel->impl,
                   .args = call->args,
                   .queries = z->m,
                   .keys = z->n,
                   .heads = z->e,
                   .key_heads = z->g,
                   .d = z->k,
                   .d_pad = pad(z->k),
                   .scale = call->desc->attr[QN_ATTR_SCALE].f,
                   .causal = call->desc->attr[QN_ATTR_CAUSAL].i,
                   .scratch = call->workspace};
    if (job.heads == 0 || job.key_heads == 0 || job.d == 0) {
        return;
    }
    if (job.scale == 0.0f) {
        job.scale = (float)(1.0 / sqrt((double)job.d));
    }
    job.shared = job.heads / job.key_heads;
    job.per_task = queries_per_task(job.shared);
    att_scratch none;
    job.scratch_bytes = scratch_parts(NULL, job.per_task * job.shared, job.d_pad, &none);
    qn_parallel_for(call->exec, job.key_heads * qn_ceil_div(job.queries, job.per_task), att_task, &job);
}

static size_t att_workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)m;
    const int64_t heads = desc->in[QN_ATT_Q].dims[1], key_heads = desc->in[QN_ATT_K].dims[1];
    const int64_t shared = key_heads > 0 ? heads / key_heads : 0;
    att_scratch none;
    return qn_size_mul((size_t)threads, scratch_parts(NULL, queries_per_task(shared) * shared,
                                                      pad(desc->in[QN_ATT_Q].dims[2]), &none));
}

static const char *att_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

#define ROW(isa_, level_, tile_, mr_, nr_)                                                                         \
    {                                                                                                              \
        .name = "qn_attention_fp_fp_f32__" #isa_ "_" tile_, .op = QN_OP_ATTENTION, .backend = QN_BACKEND_CPU,      \
        .isa = (level_), .mr = (mr_), .nr = (nr_), .status = "tested", .accepts = att_accepts,                   \
        .workspace_bytes = att_workspace, .run = att_run,                                                          \
        .impl = &(const att_impl){.set = &qn_att__##isa_, .mm = &qn_mm_f32__##isa_}                                \
    }

static const qn_kernel kernels[] = {
    ROW(avx512, QN_ISA_AVX512, "4x64", 4, 64),
    ROW(avx2, QN_ISA_AVX2, "4x16", 4, 16),
    ROW(scalar, QN_ISA_SCALAR, "4x8", 4, 8),
};

const qn_cpu_family qn_cpu_attention_family = {kernels, sizeof kernels / sizeof *kernels};
