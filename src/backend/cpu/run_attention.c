/* The attention runner and its registry.
 *
 * Many queries: a task is a key head and a block of queries, chosen so that the
 * query heads sharing the key head give about QUERY_ROWS rows; it walks the chunks
 * of keys from key 0 to the last that any of its queries sees. Few queries (a
 * decoding step): a task is a chunk of keys, whose parts go to the workspace and
 * are merged in order after every ROUND chunks. Both do the same operations for a
 * row in the same order; memory does not grow with the keys. */
#include "backend/cpu/families.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/run_rows.h"
#include "backend/cpu/sizes.h"
#include "kernels/common/attention.h"
#include "ref/slots.h"

#define QUERY_ROWS 96
#define FEW 4    /* queries that are spread over the keys */
#define ROUND 32 /* chunks whose parts are kept */

typedef struct att_impl {
    const qn_att_set *set;
    const qn_rows_set *rows; /* its loads and stores convert q, k, v and o */
} att_impl;

typedef struct att_job {
    const qn_att_set *set;
    const qn_rows_set *rows;
    const qn_args *args;
    int64_t queries, keys, heads, key_heads, d, d_pad, shared, per_task;
    float scale;
    int causal;
    int64_t first_chunk, chunks, spread; /* few queries: of this round; tasks of a chunk */
    float *parts;                        /* of the round, then of all keys so far */
    char *scratch;
    size_t scratch_bytes;
} att_job;

/* State of rows: largest score, sum, weighted values. */
typedef struct att_state {
    float *max, *sum, *o;
} att_state;

typedef struct att_scratch {
    float *q, *s, *k, *kt, *v;
    att_state part, all;
} att_scratch;

static int64_t pad(int64_t d)
{
    return (int64_t)qn_size_pad((size_t)d);
}

static int64_t queries_per_task(int64_t shared)
{
    return qn_max_i64(1, QUERY_ROWS / qn_max_i64(1, shared));
}

/* Parts of a thread's scratch; base NULL: only the size. */
static size_t scratch_parts(char *base, int64_t rows, int64_t d_pad, att_scratch *s)
{
    size_t at = 0;
    float **const parts[] = {&s->q,      &s->s,        &s->k,        &s->kt,      &s->v,      &s->part.max,
                             &s->part.sum, &s->part.o, &s->all.max, &s->all.sum, &s->all.o};
    const size_t r = (size_t)rows, d = (size_t)d_pad, row = qn_size_mul(r, d);
    const size_t panel = qn_size_mul(QN_ATT_PANEL, d), chunk = qn_size_mul(QN_ATT_CHUNK, d);
    const size_t floats[] = {row, qn_size_mul(r, QN_ATT_CHUNK), panel, panel, chunk, r, r, row, r, r, row};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *parts[i] = base ? (float *)(void *)(base + at) : NULL;
        at = qn_size_pad(qn_size_add(at, qn_size_mul(floats[i], 4)));
    }
    return at;
}

/* Row i of one head of a [rows, heads, d] view. */
static const char *head_row(const qn_view *view, int64_t head, int64_t i)
{
    const int64_t size = qn_rows_real_bytes(qn_rows_real(view->shape.format));
    return (const char *)view->data + i * view->strides[0] +
           head * (view->shape.dims[1] > 1 ? view->strides[1] : view->shape.dims[2] * size);
}

/* Keys that query t sees. */
static int64_t visible_keys(const att_job *job, int64_t t)
{
    return job->causal ? qn_max_i64(0, job->keys - job->queries + t + 1) : job->keys;
}

/* Keys [first, first + count) of k or v as floats, rows d_pad apart and padded with zeros up to `rows` of them; or
 * where they are, when they need no padding. */
static const float *load_keys(const att_job *job, int slot, int64_t head, int64_t first, int64_t count, int64_t rows,
                              float *copy, int64_t *stride)
{
    const qn_view *view = &job->args->in[slot];
    if (view->shape.format == QN_F32 && count == rows && job->d == job->d_pad) {
        *stride = view->strides[0] / 4;
        return (const float *)(const void *)head_row(view, head, first);
    }
    const qn_mm_real real = qn_rows_real(view->shape.format);
    for (int64_t i = 0; i < count; i++) {
        float *const row = copy + i * job->d_pad;
        job->rows->load[real](head_row(view, head, first + i), job->d, row);
        memset(row + job->d, 0, (size_t)(job->d_pad - job->d) * 4);
    }
    memset(copy + count * job->d_pad, 0, (size_t)((rows - count) * job->d_pad) * 4);
    *stride = job->d_pad;
    return copy;
}

/* The parts of rows (query by query, shared heads inside) from the chunk at key `first`. */
static void do_chunk(const att_job *job, int64_t head, int64_t t0, int64_t queries, int64_t first,
                     const att_scratch *s, const att_state *part)
{
    const qn_att_set *set = job->set;
    const int64_t shared = job->shared, rows = queries * shared;
    const int64_t count = qn_min_i64(QN_ATT_CHUNK, visible_keys(job, t0 + queries - 1) - first);
    for (int64_t k = 0; k < count; k += QN_ATT_PANEL) {
        int64_t stride;
        const float *const keys = load_keys(job, QN_ATT_K, head, first + k, qn_min_i64(QN_ATT_PANEL, count - k),
                                            QN_ATT_PANEL, s->k, &stride);
        set->transpose(keys, stride, job->d, s->kt);
        set->scores(s->q, job->d_pad, s->kt, job->d, rows, s->s + k);
    }
    int64_t v_stride, hidden = 0; /* queries that see none of the chunk */
    for (int64_t t = 0; t < queries; t++) {
        const int64_t visible = qn_min_i64(count, visible_keys(job, t0 + t) - first);
        hidden += visible <= 0;
        for (int64_t r = t * shared; visible > 0 && r < (t + 1) * shared; r++) {
            set->softmax(s->s + r * QN_ATT_CHUNK, visible, job->scale, part->max + r, part->sum + r);
        }
    }
    /* what all see first; then each query's own rest */
    const float *const v = load_keys(job, QN_ATT_V, head, first, count, count, s->v, &v_stride);
    const int64_t common = qn_min_i64(count, visible_keys(job, t0 + hidden) - first), r0 = hidden * shared;
    set->values(s->s + r0 * QN_ATT_CHUNK, v, v_stride, job->d_pad, common, rows - r0, 1, part->o + r0 * job->d_pad);
    for (int64_t t = hidden; t < queries; t++) {
        const int64_t rest = qn_min_i64(count, visible_keys(job, t0 + t) - first) - common, r = t * shared;
        if (rest > 0) {
            set->values(s->s + r * QN_ATT_CHUNK + common, v + common * v_stride, v_stride, job->d_pad, rest, shared, 0,
                        part->o + r * job->d_pad);
        }
    }
}

/* Rows of all take in their parts of the chunk at `first`, where they see any of it. */
static void merge_chunk(const att_job *job, int64_t t0, int64_t queries, int64_t first, const att_state *part,
                        const att_state *all)
{
    for (int64_t r = 0; r < queries * job->shared; r++) {
        if (visible_keys(job, t0 + r / job->shared) <= first) {
            continue;
        }
        if (first == 0) {
            all->max[r] = part->max[r];
            all->sum[r] = part->sum[r];
            memcpy(all->o + r * job->d_pad, part->o + r * job->d_pad, (size_t)job->d_pad * 4);
        } else {
            job->set->merge(all->max + r, all->sum + r, all->o + r * job->d_pad, part->max[r], part->sum[r],
                            part->o + r * job->d_pad, job->d_pad);
        }
    }
}

static void load_queries(const att_job *job, int64_t head, int64_t t0, int64_t queries, float *q)
{
    const qn_view *view = &job->args->in[QN_ATT_Q];
    for (int64_t r = 0; r < queries * job->shared; r++) {
        job->rows->load[qn_rows_real(view->shape.format)](
            head_row(view, head * job->shared + r % job->shared, t0 + r / job->shared), job->d, q + r * job->d_pad);
    }
}

/* value: d floats of scratch */
static void finish(const att_job *job, int64_t head, int64_t t0, int64_t queries, const att_state *all, float *value)
{
    const qn_mut_view *out = &job->args->out[QN_ATT_OUT_O];
    const qn_mm_real real = qn_rows_real(out->shape.format);
    for (int64_t r = 0; r < queries * job->shared; r++) {
        const int64_t t = t0 + r / job->shared;
        char *const o = (char *)out->data + t * out->strides[0] +
                        (head * job->shared + r % job->shared) * (job->heads > 1 ? out->strides[1] : 0);
        if (visible_keys(job, t) > 0) {
            job->set->finish(all->o + r * job->d_pad, all->sum[r], job->d, value);
            job->rows->store[real](value, job->d, o);
        } else {
            memset(o, 0, (size_t)(job->d * qn_rows_real_bytes(real)));
        }
    }
}

static void get_scratch(const att_job *job, int32_t thread, att_scratch *s)
{
    scratch_parts(job->scratch + (size_t)thread * job->scratch_bytes, job->per_task * job->shared, job->d_pad, s);
}

/* ---- many queries ---- */

/* The last queries, which see most, first. */
static void many_task(void *user, int64_t index, int32_t thread)
{
    const att_job *job = user;
    const int64_t blocks = qn_ceil_div(job->queries, job->per_task);
    const int64_t head = index % job->key_heads, t0 = (blocks - 1 - index / job->key_heads) * job->per_task;
    const int64_t queries = qn_min_i64(job->per_task, job->queries - t0);
    att_scratch s;
    get_scratch(job, thread, &s);
    load_queries(job, head, t0, queries, s.q);
    for (int64_t first = 0; first < visible_keys(job, t0 + queries - 1); first += QN_ATT_CHUNK) {
        do_chunk(job, head, t0, queries, first, &s, &s.part);
        merge_chunk(job, t0, queries, first, &s.part, &s.all);
    }
    finish(job, head, t0, queries, &s.all, s.k);
}

/* ---- few queries ---- */

/* Floats of one chunk's states of all rows. */
static int64_t state_floats(int64_t rows, int64_t d_pad)
{
    return rows * (d_pad + 2);
}

/* The state of a key head's rows in slot i of the parts; slot ROUND holds that of all keys so far. */
static att_state state_at(const att_job *job, int64_t i, int64_t head)
{
    const int64_t rows = job->queries * job->shared;
    float *const base = job->parts + (i * job->key_heads + head) * state_floats(rows, job->d_pad);
    return (att_state){.max = base, .sum = base + rows, .o = base + 2 * rows};
}

static void few_task(void *user, int64_t index, int32_t thread)
{
    const att_job *job = user;
    const int64_t slot = index / job->spread, heads = job->key_heads / job->spread, h0 = index % job->spread * heads;
    att_scratch s;
    get_scratch(job, thread, &s);
    for (int64_t head = h0; head < h0 + heads; head++) {
        const att_state part = state_at(job, slot, head);
        load_queries(job, head, 0, job->queries, s.q);
        do_chunk(job, head, 0, job->queries, (job->first_chunk + slot) * QN_ATT_CHUNK, &s, &part);
    }
}

static void run_few(att_job *job, const qn_exec *exec)
{
    const int64_t chunks = qn_ceil_div(visible_keys(job, job->queries - 1), QN_ATT_CHUNK);
    for (job->first_chunk = 0; job->first_chunk < chunks; job->first_chunk += ROUND) {
        job->chunks = qn_min_i64(ROUND, chunks - job->first_chunk);
        job->spread = job->chunks < 8 ? job->key_heads : 1;
        qn_parallel_for(exec, job->chunks * job->spread, few_task, job);
        for (int64_t i = 0; i < job->chunks; i++) {
            for (int64_t head = 0; head < job->key_heads; head++) {
                const att_state part = state_at(job, i, head), all = state_at(job, ROUND, head);
                merge_chunk(job, 0, job->queries, (job->first_chunk + i) * QN_ATT_CHUNK, &part, &all);
            }
        }
    }
    for (int64_t head = 0; head < job->key_heads; head++) {
        const att_state all = state_at(job, ROUND, head);
        finish(job, head, 0, job->queries, &all, (float *)(void *)job->scratch);
    }
}

/* ---- the kernel's functions ---- */

static size_t parts_bytes(int64_t queries, int64_t heads, int64_t d_pad)
{
    const size_t row = qn_size_mul((size_t)d_pad + 2, 4);
    return qn_size_pad(qn_size_mul(qn_size_mul((size_t)qn_min_i64(queries, FEW), (size_t)heads),
                                   qn_size_mul(ROUND + 1, row)));
}

static void att_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_sizes *z = &call->sizes;
    const att_impl *impl = kernel->impl;
    att_job job = {.set = impl->set,
                   .rows = impl->rows,
                   .args = call->args,
                   .queries = z->m,
                   .keys = z->n,
                   .heads = z->e,
                   .key_heads = z->g,
                   .d = z->k,
                   .d_pad = pad(z->k),
                   .scale = call->desc->attr[QN_ATTR_SCALE].f,
                   .causal = call->desc->attr[QN_ATTR_CAUSAL].i,
                   .parts = call->workspace};
    if (job.heads == 0 || job.key_heads == 0 || job.d == 0) {
        return;
    }
    if (job.scale == 0.0f) {
        job.scale = (float)(1.0 / sqrt((double)job.d));
    }
    job.shared = job.heads / job.key_heads;
    job.per_task = queries_per_task(job.shared);
    job.scratch = (char *)call->workspace + parts_bytes(job.queries, job.heads, job.d_pad);
    att_scratch none;
    job.scratch_bytes = scratch_parts(NULL, job.per_task * job.shared, job.d_pad, &none);
    if (job.queries <= FEW && job.queries <= job.per_task) {
        run_few(&job, call->exec);
    } else {
        qn_parallel_for(call->exec, job.key_heads * qn_ceil_div(job.queries, job.per_task), many_task, &job);
    }
}

static size_t att_workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    const int64_t heads = desc->in[QN_ATT_Q].dims[1], key_heads = desc->in[QN_ATT_K].dims[1];
    const int64_t shared = key_heads > 0 ? heads / key_heads : 0, d_pad = pad(desc->in[QN_ATT_Q].dims[2]);
    att_scratch none;
    const size_t thread = scratch_parts(NULL, queries_per_task(shared) * shared, d_pad, &none);
    return qn_size_add(parts_bytes(m, heads, d_pad), qn_size_mul((size_t)threads, thread));
}

static const char *att_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

#define ROW(isa_, level_, tile_, mr_, nr_)                                                                         \
    {                                                                                                              \
        .name = "qn_attention_fp_fp_fp__" #isa_ "_" tile_, .op = QN_OP_ATTENTION, .backend = QN_BACKEND_CPU,      \
        .isa = (level_), .mr = (mr_), .nr = (nr_), .status = "tested", .accepts = att_accepts,                   \
        .workspace_bytes = att_workspace, .run = att_run,                                                          \
        .impl = &(const att_impl){.set = &qn_att__##isa_, .rows = &qn_rows__##isa_}                                \
    }

static const qn_kernel kernels[] = {
    ROW(avx512, QN_ISA_AVX512, "6x64", 6, 64),
    ROW(avx2, QN_ISA_AVX2, "6x16", 6, 16),
    ROW(scalar, QN_ISA_SCALAR, "2x8", 2, 8),
};

const qn_cpu_family qn_cpu_attention_family = {kernels, sizeof kernels / sizeof *kernels};
