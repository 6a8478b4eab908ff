/* Attention by tiles (attention_tiles.h). */
#include "backend/cpu/attention_tiles.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/sizes.h"

#define QUERY_ROWS 192
#define LOG2E 1.4426950408889634
#define FEW 8    /* queries that are spread over the keys */
#define ROUND 32 /* chunks whose states are kept */

typedef struct tiles_job {
    qn_att_job *base;
    const qn_att_tiles_set *set;
    int64_t d;                   /* padded */
    int64_t per_task, strips;    /* queries of a task; strips of their rows */
    float scale;                 /* of scores, for powers of two */
    int64_t first_chunk, chunks; /* few queries: of this round */
    char *terms;                 /* few queries: of the strips of every head */
    float *states;               /* few queries: of those of a round's chunks, then of all keys so far */
    char *scratch;
    size_t scratch_bytes;
} tiles_job;

/* A thread's memory. */
typedef struct tiles_scratch {
    char *keys, *values, *strip, *terms, *alone;
    float *q, *part, *all; /* part, all: a state of each strip */
    int64_t *sees;         /* keys that each column of them sees */
    qn_att_strip *strips;  /* of the chunk */
} tiles_scratch;

static int64_t padded(int64_t d)
{
    return qn_ceil_div(d, QN_ATT_DIMS) * QN_ATT_DIMS;
}

static int64_t queries_per_task(int64_t shared)
{
    return qn_max_i64(1, QUERY_ROWS / qn_max_i64(1, shared));
}

static int64_t strips_of(int64_t queries, int64_t shared)
{
    return qn_ceil_div(queries * shared, QN_ATT_STRIP);
}

/* base NULL: only the size. */
static size_t scratch_parts(char *base, int64_t strips, int64_t shared, int64_t d, int64_t d_pad, tiles_scratch *s)
{
    size_t at = 0;
    const size_t size = (size_t)d_pad, state = qn_size_mul(QN_ATT_STATE_FLOATS(1), size), count = (size_t)strips;
    const size_t keys = qn_size_place(&at, QN_ATT_CHUNK_BYTES(1), size);
    const size_t values = qn_size_place(&at, QN_ATT_CHUNK_BYTES(1), size);
    const size_t strip = qn_size_place(&at, QN_ATT_SCRATCH_BYTES, 1);
    const size_t terms = qn_size_place(&at, qn_size_mul(count, QN_ATT_TERMS_BYTES(1)), size);
    const size_t alone = qn_size_place(&at, qn_att_alone_bytes(shared, d), 1);
    const size_t q = qn_size_place(&at, QN_ATT_STRIP * 4, size);
    const size_t part = qn_size_place(&at, qn_size_mul(count, state), 4);
    const size_t all = qn_size_place(&at, qn_size_mul(count, state), 4);
    const size_t sees = qn_size_place(&at, qn_size_mul(count, QN_ATT_STRIP), sizeof(int64_t));
    const size_t list = qn_size_place(&at, count, sizeof(qn_att_strip));
    if (base) {
        *s = (tiles_scratch){.keys = base + keys,
                             .values = base + values,
                             .strip = base + strip,
                             .terms = base + terms,
                             .alone = base + alone,
                             .q = (float *)(void *)(base + q),
                             .part = (float *)(void *)(base + part),
                             .all = (float *)(void *)(base + all),
                             .sees = (int64_t *)(void *)(base + sees),
                             .strips = (qn_att_strip *)(void *)(base + list)};
    }
    return at;
}

static void get_scratch(const tiles_job *job, int32_t thread, tiles_scratch *s)
{
    scratch_parts(job->scratch + (size_t)thread * job->scratch_bytes, job->strips, job->base->shared, job->base->d,
                  job->d, s);
}

/* Terms of the strips of `rows` rows of a key head from row r on. */
static void load_terms(const tiles_job *job, int64_t head, int64_t r, int64_t rows, float *q, char *terms)
{
    for (int64_t i = 0; i < rows; i += QN_ATT_STRIP, terms += QN_ATT_TERMS_BYTES(job->d)) {
        memset(q, 0, (size_t)(QN_ATT_STRIP * job->d) * 4);
        qn_att_load_queries(job->base, head, r + i, qn_min_i64(QN_ATT_STRIP, rows - i), q, job->d);
        job->set->queries(q, qn_min_i64(QN_ATT_STRIP, rows - i), job->d, terms);
    }
}

/* Keys and values of a head from key `first` on, as tiles; values only up to the first that is special, whose place in
 * the chunk is returned; none: count. */
static int64_t load_chunk(const tiles_job *job, int64_t head, int64_t first, int64_t count, const tiles_scratch *s)
{
    int64_t plain[2];
    const char *rows[2];
    for (int values = 0; values < 2; values++) {
        const qn_view *view = &job->base->args->in[values ? QN_ATT_V : QN_ATT_K];
        rows[values] = (const char *)view->data + first * view->strides[0] +
                       (view->shape.dims[1] > 1 ? head * view->strides[1] : 0);
        plain[values] = (values ? job->set->values : job->set->keys)(
            rows[values], view->strides[0], count, job->base->d, job->d, values ? s->values : s->keys);
    }
    const int64_t least = qn_min_i64(plain[0], plain[1]);
    if (plain[1] < count) {
        memset(s->values, 0, (size_t)QN_ATT_CHUNK_BYTES(job->d));
        (void)job->set->values(rows[1], job->base->args->in[QN_ATT_V].strides[0], plain[1], job->base->d, job->d,
                               s->values);
    }
    return least;
}

/* How many keys the columns of the strips of `rows` rows from row r on see. */
static void load_sees(const tiles_job *job, int64_t r, int64_t rows, int64_t *sees)
{
    for (int64_t i = 0; i < strips_of(rows, 1) * QN_ATT_STRIP; i++) {
        const int64_t row = qn_min_i64(i, rows - 1);
        sees[i] = i < qn_ceil_div(rows, 16) * 16 ? qn_att_visible(job->base, (r + row) / job->base->shared) : 0;
    }
}

/* Of `count` keys from `first` on. 0: the strip sees none. */
static int32_t sees_of(const int64_t *sees, int64_t first, int64_t count, int32_t here[QN_ATT_STRIP])
{
    int32_t most = 0;
    for (int i = 0; i < QN_ATT_STRIP; i++) {
        here[i] = (int32_t)qn_max_i64(0, qn_min_i64(sees[i] - first, count));
        most = here[i] > most ? here[i] : most;
    }
    return most;
}

/* States of rows that see special keys of the chunk, one query after the other. */
static void special_rows(const tiles_job *job, int64_t head, int64_t r, int64_t rows, int64_t first, int64_t plain,
                         const int32_t *sees, const tiles_scratch *s, float *state)
{
    const int64_t shared = job->base->shared;
    for (int64_t i = 0; i < rows; i++) {
        if (sees[i] <= plain) {
            continue;
        }
        const qn_att_state own = qn_att_alone(job->base, head, (r + i) / shared, first, s->alone);
        const int64_t h = (r + i) % shared;
        state[i] = own.max[h] * (float)LOG2E;
        state[QN_ATT_STRIP + i] = own.sum[h];
        for (int64_t j = 0; j < job->base->d; j++) {
            state[(2 + j) * QN_ATT_STRIP + i] = own.o[h * job->base->d_pad + j];
        }
    }
}

/* States, in `states`, of the strips of rows from row r on from the chunk of `count` keys from `first` on. Returns how
 * many strips see any of it: the last ones. */
static int64_t do_chunk(const tiles_job *job, int64_t head, int64_t r, int64_t rows, int64_t first, int64_t count,
                        const char *terms, const tiles_scratch *s, float *states)
{
    const int64_t plain = load_chunk(job, head, first, count, s), all = strips_of(rows, 1);
    int64_t hidden = 0;
    for (int64_t i = 0; i < all; i++) {
        qn_att_strip *const strip = &s->strips[i - hidden];
        hidden += sees_of(s->sees + i * QN_ATT_STRIP, first, count, strip->visible) == 0;
        strip->terms = terms + i * QN_ATT_TERMS_BYTES(job->d);
        strip->rows = qn_min_i64(QN_ATT_STRIP, rows - i * QN_ATT_STRIP);
        strip->state = states + i * QN_ATT_STATE_FLOATS(job->d);
    }
    job->set->strips(s->strips, all - hidden, s->keys, s->values, job->d, job->scale, s->strip);
    for (int64_t i = hidden; plain < count && i < all; i++) {
        const qn_att_strip *const strip = &s->strips[i - hidden];
        special_rows(job, head, r + i * QN_ATT_STRIP, strip->rows, first, plain, strip->visible, s, strip->state);
    }
    return all - hidden;
}

static void finish(const tiles_job *job, int64_t head, int64_t r, int64_t rows, float *all, float *o)
{
    job->set->rows(all, job->d, rows, o);
    qn_att_store_rows(job->base, head, r, rows, o, job->d);
}

/* ---- many queries ---- */

/* The last queries, which see most, first. */
static void many_task(void *user, int64_t index, int32_t thread)
{
    const tiles_job *job = user;
    const qn_att_job *base = job->base;
    const int64_t blocks = qn_ceil_div(base->queries, job->per_task), head = index % base->key_heads;
    const int64_t t0 = (blocks - 1 - index / base->key_heads) * job->per_task;
    const int64_t queries = qn_min_i64(job->per_task, base->queries - t0);
    const int64_t r0 = t0 * base->shared, rows = queries * base->shared;
    const int64_t keys = qn_att_visible(base, t0 + queries - 1);
    tiles_scratch s;
    get_scratch(job, thread, &s);
    load_terms(job, head, r0, rows, s.q, s.terms);
    load_sees(job, r0, rows, s.sees);
    for (int64_t first = 0; first < keys; first += QN_ATT_CHUNK) {
        const int64_t seeing =
            do_chunk(job, head, r0, rows, first, qn_min_i64(QN_ATT_CHUNK, keys - first), s.terms, &s, s.part);
        for (int64_t i = 0; i < seeing; i++) {
            const int64_t at = (strips_of(rows, 1) - seeing + i) * QN_ATT_STATE_FLOATS(job->d);
            job->set->join(s.all + at, s.part + at, s.strips[i].visible, job->d, first == 0);
        }
    }
    for (int64_t r = 0; r < rows; r += QN_ATT_STRIP) {
        finish(job, head, r0 + r, qn_min_i64(QN_ATT_STRIP, rows - r),
               s.all + r / QN_ATT_STRIP * QN_ATT_STATE_FLOATS(job->d), s.q);
    }
}

/* ---- few queries ---- */

/* Of a strip of a head: in slot `i` of the states; slot ROUND is that of all keys so far. */
static float *state_at(const tiles_job *job, int64_t i, int64_t head, int64_t strip)
{
    return job->states + ((i * job->base->key_heads + head) * job->strips + strip) * QN_ATT_STATE_FLOATS(job->d);
}

static char *terms_at(const tiles_job *job, int64_t head, int64_t strip)
{
    return job->terms + (head * job->strips + strip) * QN_ATT_TERMS_BYTES(job->d);
}

static void few_task(void *user, int64_t index, int32_t thread)
{
    const tiles_job *job = user;
    const qn_att_job *base = job->base;
    const int64_t slot = index / base->key_heads, head = index % base->key_heads, rows = base->queries * base->shared;
    const int64_t first = (job->first_chunk + slot) * QN_ATT_CHUNK;
    const int64_t count = qn_min_i64(QN_ATT_CHUNK, qn_att_visible(base, base->queries - 1) - first);
    tiles_scratch s;
    get_scratch(job, thread, &s);
    load_sees(job, 0, rows, s.sees);
    (void)do_chunk(job, head, 0, rows, first, count, terms_at(job, head, 0), &s, state_at(job, slot, head, 0));
}

static void run_few(tiles_job *job, const qn_exec *exec)
{
    const qn_att_job *base = job->base;
    const int64_t keys = qn_att_visible(base, base->queries - 1), rows = base->queries * base->shared;
    const int64_t chunks = qn_ceil_div(keys, QN_ATT_CHUNK);
    tiles_scratch s;
    get_scratch(job, 0, &s);
    load_sees(job, 0, rows, s.sees); /* thread 0's tasks write the same there */
    for (int64_t head = 0; head < base->key_heads; head++) {
        load_terms(job, head, 0, rows, s.q, terms_at(job, head, 0));
    }
    for (job->first_chunk = 0; job->first_chunk < chunks; job->first_chunk += ROUND) {
        job->chunks = qn_min_i64(ROUND, chunks - job->first_chunk);
        qn_parallel_for(exec, job->chunks * base->key_heads, few_task, job);
        for (int64_t i = 0; i < job->chunks; i++) {
            const int64_t first = (job->first_chunk + i) * QN_ATT_CHUNK;
            for (int64_t strip = 0; strip < job->strips; strip++) {
                const int64_t r = strip * QN_ATT_STRIP;
                int32_t sees[QN_ATT_STRIP];
                if (sees_of(s.sees + r, first, QN_ATT_CHUNK, sees) == 0) {
                    continue;
                }
                for (int64_t head = 0; head < base->key_heads; head++) {
                    job->set->join(state_at(job, ROUND, head, strip), state_at(job, i, head, strip), sees, job->d,
                                   first == 0);
                }
            }
        }
    }
    for (int64_t head = 0; head < base->key_heads; head++) {
        for (int64_t strip = 0; strip < job->strips; strip++) {
            const int64_t r = strip * QN_ATT_STRIP;
            finish(job, head, r, qn_min_i64(QN_ATT_STRIP, rows - r), state_at(job, ROUND, head, strip), s.q);
        }
    }
}

/* ---- running ---- */

/* What few queries keep, then the threads' memory; job NULL: only the size. */
static size_t workspace_parts(int64_t queries, int64_t key_heads, int64_t shared, int64_t d, char *base, tiles_job *job)
{
    const int few = queries <= FEW;
    const size_t d_pad = (size_t)padded(d), strips = (size_t)strips_of(few ? queries : 0, shared);
    const size_t each = qn_size_mul((size_t)key_heads, strips);
    size_t at = 0;
    const size_t terms = qn_size_place(&at, qn_size_mul(each, QN_ATT_TERMS_BYTES(1)), d_pad);
    const size_t states = qn_size_place(&at, qn_size_mul(qn_size_mul(each, ROUND + 1), 4), QN_ATT_STATE_FLOATS(d_pad));
    if (job) {
        job->terms = base + terms;
        job->states = (float *)(void *)(base + states);
        job->scratch = base + at;
    }
    return at;
}

static int64_t task_strips(int64_t queries, int64_t shared)
{
    return strips_of(queries <= FEW ? queries : queries_per_task(shared), shared);
}

static size_t bytes_of(int64_t queries, int64_t shared, int64_t key_heads, int64_t d, int32_t threads)
{
    tiles_scratch none;
    const size_t thread = scratch_parts(NULL, task_strips(queries, shared), shared, d, padded(d), &none);
    return qn_size_add(workspace_parts(queries, key_heads, shared, d, NULL, NULL),
                       qn_size_mul((size_t)threads, thread));
}

size_t qn_att_tiles_workspace_bytes(int64_t queries, int64_t heads, int64_t key_heads, int64_t d, int32_t threads)
{
    const int64_t shared = key_heads > 0 ? heads / key_heads : 0;
    const size_t bytes = bytes_of(queries, shared, key_heads, d, threads);
    const size_t few = bytes_of(qn_min_i64(queries, FEW), shared, key_heads, d, threads); /* runs may be smaller */
    return bytes > few ? bytes : few;
}

void qn_att_tiles_run(qn_att_job *base, const qn_att_tiles_set *set, void *workspace, const qn_exec *exec)
{
    tiles_scratch none;
    base->d_pad = qn_att_padded(base->d);
    base->shared = base->heads / base->key_heads;
    if (base->scale == 0.0f) {
        base->scale = (float)(1.0 / sqrt((double)base->d));
    }
    tiles_job job = {.base = base,
                     .set = set,
                     .d = padded(base->d),
                     .scale = (float)((double)base->scale * LOG2E),
                     .per_task = queries_per_task(base->shared),
                     .strips = task_strips(base->queries, base->shared)};
    workspace_parts(base->queries, base->key_heads, base->shared, base->d, workspace, &job);
    job.scratch_bytes = scratch_parts(NULL, job.strips, base->shared, base->d, job.d, &none);
    if (base->queries <= FEW) {
        run_few(&job, exec);
    } else {
        qn_parallel_for(exec, base->key_heads * qn_ceil_div(base->queries, job.per_task), many_task, &job);
    }
}
