/* The attention engine (attention.h). */
#include "backend/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define QUERY_ROWS 96
#define FEW 8           /* queries that are spread over the keys */
#define ROUND 32        /* chunks whose parts are kept */
#define FEW_CODE_ROWS 8 /* of queries: more are faster by floats of codes where heads are no whole panels */

int64_t qn_att_padded(int64_t d)
{
    return (int64_t)qn_size_pad((size_t)d);
}

static int64_t queries_per_task(int64_t shared)
{
    return qn_max_i64(1, QUERY_ROWS / qn_max_i64(1, shared));
}

/* Parts of a thread's scratch; base NULL: only the size. */
static size_t scratch_parts(char *base, int64_t rows, int64_t d_pad, size_t own, qn_att_scratch *s)
{
    size_t at = 0;
    float **const parts[] = {&s->q,      &s->s,       &s->k,       &s->kt,    &s->v,      &s->part.max, &s->part.sum,
                             &s->part.o, &s->all.max, &s->all.sum, &s->all.o, &s->scales, &s->own};
    const size_t r = (size_t)rows, d = (size_t)d_pad, row = qn_size_mul(r, d);
    const size_t panel = qn_size_mul(QN_ATT_PANEL, d), chunk = qn_size_mul(QN_ATT_CHUNK, d);
    const size_t floats[] = {row, qn_size_mul(r, QN_ATT_CHUNK), panel, panel, chunk, r, r, row, r, r, row, QN_ATT_CHUNK,
                             own};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        *parts[i] = base ? (float *)(void *)(base + at) : NULL;
        at = qn_size_pad(qn_size_add(at, qn_size_mul(floats[i], 4)));
    }
    return at;
}

int64_t qn_att_visible(const qn_att_job *job, int64_t t)
{
    if (job->lens) {
        int32_t length;
        memcpy(&length, job->lens + t * 4, sizeof length);
        return length;
    }
    return job->causal ? qn_max_i64(0, job->keys - job->queries + t + 1) : job->keys;
}

/* What job->load does, the recent ones from where they are. */
static const float *load_rows(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count,
                              int64_t rows, qn_att_scratch *s, float *copy, int64_t *stride)
{
    const int64_t older = qn_max_i64(0, qn_min_i64(count, s->recent - first));
    if (!job->window || older == count) {
        return job->load(job, values, head, first, count, rows, s, copy, stride);
    }
    if (older > 0) {
        (void)job->load(job, values, head, first, older, older, s, copy, stride);
    }
    const qn_view *view = job->recents[values];
    const int32_t axis = view->shape.ndim - 3;
    const qn_mm_real real = qn_rows_real(view->shape.format);
    for (int64_t i = older; i < count; i++) {
        float *const row = copy + i * job->d_pad;
        job->rows->load[real]((const char *)view->data + job->recent_at[values] +
                                  (first + i) % view->shape.dims[axis] * view->strides[axis] +
                                  (job->key_heads > 1 ? head * view->strides[axis + 1] : 0),
                              job->d, row);
        memset(row + job->d, 0, (size_t)(job->d_pad - job->d) * 4);
    }
    memset(copy + count * job->d_pad, 0, (size_t)((rows - count) * job->d_pad) * 4);
    *stride = job->d_pad;
    return copy;
}

static const qn_att_ahead nothing;

/* Up to `count` keys or values of a head from key `first` on, to be read soon. */
static qn_att_ahead ahead_of(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count)
{
    const qn_view *view = &job->args->in[values ? QN_ATT_V : QN_ATT_K];
    if (job->row_bytes == 0) {
        return nothing;
    }
    return (qn_att_ahead){.rows = (const char *)view->data + first * view->strides[0] +
                                  (view->shape.dims[1] > 1 ? head * view->strides[1] : 0),
                          .stride = view->strides[0],
                          .bytes = (int64_t)job->row_bytes,
                          .count = qn_min_i64(count, job->keys - first)};
}

/* Keys or values that the work on those before asks for. */
static int64_t soon_of(const qn_att_job *job)
{
    return job->stored ? QN_ATT_CHUNK : QN_ATT_PANEL;
}

/* What the work on a head's keys (values 0) or values of the chunk at `first`, as they are stored, asks for: its
 * values, and `next`. Rows of a line would leave the line beside it to another head: there all heads' rows of the next
 * chunk, a share beside each head. */
static qn_att_ahead beside(const qn_att_job *job, int values, int64_t head, int64_t first, qn_att_ahead next)
{
    if (!next.rows) {
        return nothing;
    }
    if (job->spread > 1 || job->row_bytes > 64 || job->args->in[QN_ATT_K].strides[1] != (int64_t)job->row_bytes) {
        return values ? next : ahead_of(job, 1, head, first, soon_of(job));
    }
    const int64_t from = first + QN_ATT_CHUNK + head * QN_ATT_CHUNK / job->key_heads;
    const int64_t end = first + QN_ATT_CHUNK + (head + 1) * QN_ATT_CHUNK / job->key_heads;
    qn_att_ahead share = from < job->keys ? ahead_of(job, values, 0, from, end - from) : nothing;
    share.bytes *= job->key_heads;
    return share;
}

/* The set that takes heads of that form and size as they are stored; NULL: none does, or whole panels are read in
 * place.
 */
static const qn_att_set *stored_set(const qn_att_job *job)
{
    const qn_att_set *set = job->set;
    while (set && (!set->stored_dims[job->form] || job->d % set->stored_dims[job->form])) {
        set = job->d == job->d_pad ? NULL : set->narrow;
    }
    return set;
}

/* The set by which few rows take keys or values as they are stored, none of them a recent one; they are then told. */
static const qn_att_set *take_stored(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count,
                                     int64_t rows, const qn_att_scratch *s, qn_att_stored *out)
{
    const qn_view *view = &job->args->in[values ? QN_ATT_V : QN_ATT_K];
    const qn_view *scales = &job->args->in[values ? QN_ATT_V_SCALE : QN_ATT_K_SCALE];
    const qn_att_set *const set = stored_set(job);
    const int64_t most = job->form == QN_ATT_E4M3 && job->d != job->d_pad ? FEW_CODE_ROWS : QN_ATT_FEW_ROWS;
    if (!job->stored || !set || rows > most || (job->window && first + count > s->recent)) {
        return NULL;
    }
    *out = (qn_att_stored){.form = job->form,
                           .rows = (const char *)view->data + first * view->strides[0] +
                                   (view->shape.dims[1] > 1 ? head * view->strides[1] : 0),
                           .stride = view->strides[0],
                           .scales = s->scales};
    const int ready =
        job->form != QN_ATT_E4M3 ||
        set->stored_ready(out, job->d, count, (const char *)scales->data + first * scales->strides[0] + head * 4,
                          scales->strides[0], s->scales);
    return ready ? set : NULL;
}

/* The scores of `count` keys of a chunk. */
static void chunk_scores(const qn_att_job *job, int64_t head, int64_t first, int64_t count, int64_t rows,
                         qn_att_scratch *s, qn_att_ahead next)
{
    const qn_att_set *set = job->set;
    qn_att_stored stored;
    const qn_att_set *const as_stored = take_stored(job, 0, head, first, count, rows, s, &stored);
    if (as_stored) {
        as_stored->stored_scores(s->q, job->d_pad, &stored, job->d, count, rows, s->s, s->kt,
                                 beside(job, 0, head, first, next));
        return;
    }
    for (int64_t k = 0; k < count; k += QN_ATT_PANEL) {
        int64_t stride;
        const float *const keys =
            load_rows(job, 0, head, first + k, qn_min_i64(QN_ATT_PANEL, count - k), QN_ATT_PANEL, s, s->k, &stride);
        set->transpose(keys, stride, job->d, s->kt);
        qn_att_ahead ahead = nothing;
        if (next.rows && k + QN_ATT_PANEL < count) {
            ahead = ahead_of(job, 0, head, first + k + QN_ATT_PANEL, QN_ATT_PANEL);
        } else if (next.rows) {
            ahead = ahead_of(job, 1, head, first, job->in_place ? QN_ATT_PANEL : QN_ATT_CHUNK);
        }
        set->scores(s->q, job->d_pad, s->kt, job->d, rows, s->s + k, ahead);
    }
}

/* The values of a chunk: as floats, or as they are stored. */
typedef struct chunk_values {
    const float *floats;
    int64_t stride;
    const qn_att_set *as_stored; /* NULL: floats */
    qn_att_stored stored;
} chunk_values;

static chunk_values values_of(const qn_att_job *job, int64_t head, int64_t first, int64_t count, int64_t rows,
                              qn_att_scratch *s)
{
    chunk_values v = {0};
    v.as_stored = take_stored(job, 1, head, first, count, rows, s, &v.stored);
    if (!v.as_stored) {
        v.floats = load_rows(job, 1, head, first, count, count, s, s->v, &v.stride);
    }
    return v;
}

/* Parts of rows from r on take in keys of the chunk from `from` on; from 0 on they begin. */
static void add_values(const qn_att_job *job, const chunk_values *v, int64_t from, int64_t keys, int64_t r,
                       int64_t rows, const qn_att_scratch *s, const qn_att_state *part, qn_att_ahead next)
{
    const float *const p = s->s + r * QN_ATT_CHUNK + from;
    float *const o = part->o + r * job->d_pad;
    if (v->as_stored) {
        qn_att_stored stored = v->stored;
        stored.rows += from * stored.stride;
        stored.scales += from;
        for (int64_t i = 0; from == 0 && job->d < job->d_pad && i < rows; i++) {
            memset(o + i * job->d_pad + job->d, 0, (size_t)(job->d_pad - job->d) * sizeof *o);
        }
        v->as_stored->stored_values(p, &stored, job->d, keys, rows, from == 0, o, job->d_pad, next);
    } else {
        job->set->values(p, v->floats + from * v->stride, v->stride, job->d_pad, keys, rows, from == 0, o, next);
    }
}

/* The parts of rows (query by query, shared heads inside) from the chunk at key `first`. next: the keys that are read
 * after it; none: nothing is asked for ahead. */
static void do_chunk(const qn_att_job *job, int64_t head, int64_t t0, int64_t queries, int64_t first, qn_att_scratch *s,
                     const qn_att_state *part, qn_att_ahead next)
{
    const qn_att_set *set = job->set;
    const int64_t shared = job->shared, rows = queries * shared;
    const int64_t count = qn_min_i64(QN_ATT_CHUNK, qn_att_visible(job, t0 + queries - 1) - first);
    chunk_scores(job, head, first, count, rows, s, next);
    int64_t hidden = 0; /* queries that see none of the chunk */
    for (int64_t t = 0; t < queries; t++) {
        const int64_t visible = qn_min_i64(count, qn_att_visible(job, t0 + t) - first);
        hidden += visible <= 0;
        for (int64_t r = t * shared; visible > 0 && r < (t + 1) * shared; r++) {
            set->softmax(s->s + r * QN_ATT_CHUNK, visible, job->scale, part->max + r, part->sum + r);
        }
    }
    /* what all see first; then each query's own rest */
    const chunk_values values = values_of(job, head, first, count, rows, s);
    const int64_t common = qn_min_i64(count, qn_att_visible(job, t0 + hidden) - first), r0 = hidden * shared;
    int64_t done = 0;
    if (next.rows && job->in_place && !values.as_stored && common > QN_ATT_PANEL) {
        done = QN_ATT_PANEL; /* the first ones ask for the others */
        add_values(job, &values, 0, done, r0, rows - r0, s, part, ahead_of(job, 1, head, first + done, common - done));
    }
    add_values(job, &values, done, common - done, r0, rows - r0, s, part,
               values.as_stored ? beside(job, 1, head, first, next) : next);
    for (int64_t t = hidden; t < queries; t++) {
        const int64_t rest = qn_min_i64(count, qn_att_visible(job, t0 + t) - first) - common;
        if (rest > 0) {
            add_values(job, &values, common, rest, t * shared, shared, s, part, nothing);
        }
    }
}

/* Rows of all take in their parts of the chunk at `first`, where they see any of it. */
static void merge_chunk(const qn_att_job *job, int64_t t0, int64_t queries, int64_t first, const qn_att_state *part,
                        const qn_att_state *all)
{
    for (int64_t r = 0; r < queries * job->shared; r++) {
        if (qn_att_visible(job, t0 + r / job->shared) <= first) {
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

void qn_att_load_queries(const qn_att_job *job, int64_t head, int64_t r, int64_t count, float *q, int64_t stride)
{
    const qn_view *view = &job->args->in[QN_ATT_Q];
    const qn_mm_real real = qn_rows_real(view->shape.format);
    const int64_t step = job->heads > 1 ? view->strides[1] : 0;
    for (const int64_t end = r + count; r < end; r++, q += stride) {
        job->rows->load[real]((const char *)view->data + (job->at + r / job->shared) * view->strides[0] +
                                  (head * job->shared + r % job->shared) * step,
                              job->d, q);
    }
}

/* Where the output of row r of a key head goes. */
static char *output_row(const qn_att_job *job, int64_t head, int64_t r)
{
    const qn_mut_view *out = &job->args->out[QN_ATT_OUT_O];
    return (char *)out->data + (job->at + r / job->shared) * out->strides[0] +
           (head * job->shared + r % job->shared) * (job->heads > 1 ? out->strides[1] : 0);
}

void qn_att_store_rows(const qn_att_job *job, int64_t head, int64_t r, int64_t count, const float *o, int64_t stride)
{
    const qn_mm_real real = qn_rows_real(job->args->out[QN_ATT_OUT_O].shape.format);
    for (const int64_t end = r + count; r < end; r++, o += stride) {
        char *const to = output_row(job, head, r);
        if (qn_att_visible(job, r / job->shared) > 0) {
            job->rows->store[real](o, job->d, to);
        } else {
            memset(to, 0, (size_t)(job->d * qn_rows_real_bytes(real)));
        }
    }
}

/* value: d floats of scratch */
static void finish(const qn_att_job *job, int64_t head, int64_t t0, int64_t queries, const qn_att_state *all,
                   float *value)
{
    const qn_mut_view *lse = &job->args->out[QN_VQA_OUT_LSE]; /* of vq_attention */
    for (int64_t r = 0; r < queries * job->shared; r++) {
        const int64_t t = t0 + r / job->shared, h = head * job->shared + r % job->shared;
        if (lse->shape.format != QN_FORMAT_NONE) {
            const float all_keys = qn_att_visible(job, t) > 0 ? all->max[r] + logf(all->sum[r]) : -INFINITY;
            memcpy((char *)lse->data + (job->at + t) * lse->strides[0] + h * 4, &all_keys, sizeof all_keys);
        }
        if (qn_att_visible(job, t) > 0) {
            job->set->finish(all->o + r * job->d_pad, all->sum[r], job->d, value);
        }
        qn_att_store_rows(job, head, t0 * job->shared + r, 1, value, job->d_pad);
    }
}

/* The scratch of a task whose last query is t. */
static void get_scratch(const qn_att_job *job, int32_t thread, int64_t t, qn_att_scratch *s)
{
    scratch_parts(job->scratch + (size_t)thread * job->scratch_bytes, job->per_task * job->shared, job->d_pad,
                  job->own_floats, s);
    s->recent = qn_window_first(qn_att_visible(job, t), job->window);
    s->key[0] = s->key[1] = -1;
}

/* ---- many queries ---- */

/* The last queries, which see most, first. */
static void many_task(void *user, int64_t index, int32_t thread)
{
    const qn_att_job *job = user;
    const int64_t blocks = qn_ceil_div(job->phase + job->queries, job->per_task), head = index % job->key_heads;
    const int64_t start = (blocks - 1 - index / job->key_heads) * job->per_task - job->phase;
    const int64_t t0 = qn_max_i64(0, start), queries = qn_min_i64(start + job->per_task, job->queries) - t0;
    qn_att_scratch s;
    get_scratch(job, thread, t0 + queries - 1, &s);
    qn_att_load_queries(job, head, t0 * job->shared, queries * job->shared, s.q, job->d_pad);
    for (int64_t first = 0; first < qn_att_visible(job, t0 + queries - 1); first += QN_ATT_CHUNK) {
        do_chunk(job, head, t0, queries, first, &s, &s.part, nothing);
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
static qn_att_state state_at(const qn_att_job *job, int64_t i, int64_t head)
{
    const int64_t rows = job->queries * job->shared;
    float *const base = job->parts + (i * job->key_heads + head) * state_floats(rows, job->d_pad);
    return (qn_att_state){.max = base, .sum = base + rows, .o = base + 2 * rows};
}

static void few_task(void *user, int64_t index, int32_t thread)
{
    const qn_att_job *job = user;
    const int64_t slot = index / job->spread, heads = job->key_heads / job->spread, h0 = index % job->spread * heads;
    qn_att_scratch s;
    get_scratch(job, thread, job->queries - 1, &s);
    for (int64_t head = h0; head < h0 + heads; head++) {
        const qn_att_state part = state_at(job, slot, head);
        qn_att_load_queries(job, head, 0, job->queries * job->shared, s.q, job->d_pad);
        const int64_t first = (job->first_chunk + slot) * QN_ATT_CHUNK;
        const int last = head + 1 == h0 + heads; /* then this thread's next task, as a rule */
        const int64_t after = last && first + QN_ATT_CHUNK < job->keys ? first + QN_ATT_CHUNK : first;
        do_chunk(job, head, 0, job->queries, first, &s, &part,
                 ahead_of(job, 0, last ? h0 : head + 1, after, soon_of(job)));
    }
}

static void run_few(qn_att_job *job, const qn_exec *exec)
{
    const int64_t chunks = qn_ceil_div(qn_att_visible(job, job->queries - 1), QN_ATT_CHUNK);
    for (job->first_chunk = 0; job->first_chunk < chunks; job->first_chunk += ROUND) {
        job->chunks = qn_min_i64(ROUND, chunks - job->first_chunk);
        job->spread = job->chunks < 8 ? job->key_heads : 1;
        qn_parallel_for(exec, job->chunks * job->spread, few_task, job);
        for (int64_t i = 0; i < job->chunks; i++) {
            for (int64_t head = 0; head < job->key_heads; head++) {
                const qn_att_state part = state_at(job, i, head), all = state_at(job, ROUND, head);
                merge_chunk(job, 0, job->queries, (job->first_chunk + i) * QN_ATT_CHUNK, &part, &all);
            }
        }
    }
    for (int64_t head = 0; head < job->key_heads; head++) {
        const qn_att_state all = state_at(job, ROUND, head);
        finish(job, head, 0, job->queries, &all, (float *)(void *)job->scratch);
    }
}

/* ---- one query by itself ---- */

size_t qn_att_alone_bytes(int64_t shared, int64_t d)
{
    qn_att_scratch none;
    return scratch_parts(NULL, shared, qn_att_padded(d), 0, &none);
}

qn_att_state qn_att_alone(const qn_att_job *job, int64_t head, int64_t t, int64_t first, char *memory)
{
    qn_att_scratch s;
    scratch_parts(memory, job->shared, job->d_pad, 0, &s);
    qn_att_load_queries(job, head, t * job->shared, job->shared, s.q, job->d_pad);
    do_chunk(job, head, t, 1, first, &s, &s.part, nothing);
    return s.part;
}

/* ---- running ---- */

static size_t parts_bytes(int64_t queries, int64_t heads, int64_t d_pad)
{
    const size_t row = qn_size_mul((size_t)d_pad + 2, 4);
    return qn_size_pad(
        qn_size_mul(qn_size_mul((size_t)qn_min_i64(queries, FEW), (size_t)heads), qn_size_mul(ROUND + 1, row)));
}

size_t qn_att_workspace_bytes(int64_t queries, int64_t heads, int64_t key_heads, int64_t d, size_t own_floats,
                              int32_t threads)
{
    const int64_t shared = key_heads > 0 ? heads / key_heads : 0, d_pad = qn_att_padded(d);
    qn_att_scratch none;
    const size_t thread = scratch_parts(NULL, queries_per_task(shared) * shared, d_pad, own_floats, &none);
    return qn_size_add(parts_bytes(queries, heads, d_pad), qn_size_mul((size_t)threads, thread));
}

void qn_att_run(qn_att_job *job, void *workspace, const qn_exec *exec)
{
    qn_att_scratch none;
    job->d_pad = qn_att_padded(job->d);
    job->shared = job->heads / job->key_heads;
    job->per_task = queries_per_task(job->shared);
    job->phase = 0;
    if (job->window) {
        /* position of the first query, which may be before the first key */
        const int64_t at = job->lens ? qn_att_visible(job, 0) - 1 : job->keys - (job->causal ? job->queries : 1);
        int64_t per = QN_WINDOW_BLOCK;
        while (per > job->per_task) {
            per /= 2;
        }
        job->per_task = per;
        job->phase = (at % per + per) % per;
    }
    job->parts = workspace;
    job->scratch = (char *)workspace + parts_bytes(job->queries, job->heads, job->d_pad);
    job->scratch_bytes = scratch_parts(NULL, job->per_task * job->shared, job->d_pad, job->own_floats, &none);
    if (job->scale == 0.0f) {
        job->scale = (float)(1.0 / sqrt((double)job->d));
    }
    if (job->queries <= FEW && job->phase + job->queries <= job->per_task) {
        run_few(job, exec);
    } else {
        qn_parallel_for(exec, job->key_heads * qn_ceil_div(job->phase + job->queries, job->per_task), many_task, job);
    }
}
