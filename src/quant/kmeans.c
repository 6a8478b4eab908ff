#include "quant/kmeans.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "base/rng.h"

#define CHUNK 64  /* rows of a task */
#define ROUNDS 16 /* in which the first centroids are drawn */

typedef struct kmeans {
    const qn_kmeans_job *job;
    const qn_fit_set *set;
    int64_t chunks;
    float *turned;        /* [vector][entries]: what points are compared with now */
    float *norms;         /* [entries] without column weights */
    int64_t first, count; /* entries of centroids that are compared with */
    float *distances;     /* a point, weighted */
    uint16_t *codes;
    float *sums, *masses; /* [chunks][entries][vector]; NULL: only look */
    double *errors;       /* a chunk */
    float *scratch;       /* scratch_floats a thread */
    size_t scratch_floats;
    int drawing; /* keep the smaller of old and new distances */
} kmeans;

static float row_weight(const qn_kmeans_job *j, int64_t row)
{
    return j->row_weights ? j->row_weights[row] : 1.0f;
}

/* The least of the lanes, the smaller entry of equals. */
static int32_t least(const float *scores, const int32_t *entries, float *score)
{
    int best = 0;
    for (int l = 1; l < QN_FIT_LANES; l++) {
        if (scores[l] < scores[best] || (scores[l] == scores[best] && entries[l] < entries[best])) {
            best = l;
        }
    }
    *score = scores[best];
    return entries[best];
}

static void compare_chunk(void *user, int64_t chunk, int32_t thread)
{
    const kmeans *m = user;
    const qn_kmeans_job *job = m->job;
    const int32_t v = job->vector;
    const int64_t first = chunk * CHUNK, rows = qn_min_i64(CHUNK, job->rows - first);
    float *norms = m->scratch + (size_t)thread * m->scratch_floats, *targets = norms + job->entries;
    float *scores = targets + CHUNK * v;
    int32_t *nearest = (int32_t *)(void *)(scores + CHUNK * QN_FIT_LANES);
    float *sums = m->sums ? m->sums + (size_t)(chunk * job->entries * v) : NULL;
    float *masses = m->sums ? m->masses + (size_t)(chunk * job->entries * v) : NULL;
    double error = 0;
    if (sums) {
        memset(sums, 0, (size_t)(job->entries * v) * sizeof *sums);
        memset(masses, 0, (size_t)(job->entries * v) * sizeof *masses);
    }
    const qn_fit_book book = {job->column_weights ? norms : m->norms, m->turned, m->count, v};
    for (int64_t g = 0; g < job->groups; g++) {
        const float *weights = job->column_weights ? job->column_weights + g * v : NULL;
        if (weights) {
            m->set->weigh(m->turned, m->count, v, weights, norms);
        }
        for (int64_t r = 0; r < rows; r++) {
            const float *x = job->x + (first + r) * job->stride + g * v;
            for (int32_t j = 0; j < v; j++) {
                targets[r * v + j] = -2 * (weights ? weights[j] : 1.0f) * x[j];
            }
        }
        m->set->nearest(&book, targets, rows, scores, nearest);
        for (int64_t r = 0; r < rows; r++) {
            const float *x = job->x + (first + r) * job->stride + g * v, rw = row_weight(job, first + r);
            const int64_t point = (first + r) * job->groups + g;
            float distance;
            const int32_t e = least(scores + r * QN_FIT_LANES, nearest + r * QN_FIT_LANES, &distance);
            for (int32_t j = 0; j < v; j++) {
                const float w = weights ? weights[j] : 1.0f;
                distance += w * x[j] * x[j];
                if (sums) {
                    sums[e * v + j] += rw * w * x[j];
                    masses[e * v + j] += rw * w;
                }
            }
            distance = distance > 0 ? distance * rw : 0;
            error += (double)distance;
            if (!m->drawing || distance < m->distances[point]) {
                m->distances[point] = distance;
            }
            if (!m->drawing && m->codes) {
                m->codes[point] = (uint16_t)e;
            }
        }
    }
    m->errors[chunk] = error;
}

/* Compare all points with centroids [first, first + count); their summed distances. */
static double compare(kmeans *m, const float *centroids, int64_t first, int64_t count, const qn_exec *exec)
{
    const int32_t v = m->job->vector;
    m->count = count;
    for (int64_t e = 0; e < count; e++) {
        for (int32_t j = 0; j < v; j++) {
            m->turned[j * count + e] = centroids[(first + e) * v + j];
        }
    }
    if (!m->job->column_weights) {
        m->set->weigh(m->turned, count, v, NULL, m->norms);
    }
    qn_parallel_for(exec, m->chunks, compare_chunk, m);
    double sum = 0;
    for (int64_t c = 0; c < m->chunks; c++) {
        sum += m->errors[c];
    }
    return sum;
}

/* Draw `count` points by their distances, into centroids[which[i]] (which NULL: in order from `first`). */
static void draw(const kmeans *m, qn_rng *rng, float *centroids, const int32_t *which, int64_t first, int64_t count,
                 double *running)
{
    const qn_kmeans_job *job = m->job;
    const int64_t points = job->rows * job->groups;
    double sum = 0;
    for (int64_t i = 0; i < points; i++) {
        sum += (double)m->distances[i];
        running[i] = sum;
    }
    for (int64_t c = 0; c < count; c++) {
        int64_t low = 0, high = points - 1;
        const double at = qn_rng_uniform(rng) * sum;
        while (low < high) { /* the first point whose running sum is above */
            const int64_t middle = low + (high - low) / 2;
            if (running[middle] > at) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        const int64_t to = which ? which[c] : first + c;
        memcpy(centroids + to * job->vector, job->x + low / job->groups * job->stride + low % job->groups * job->vector,
               (size_t)job->vector * sizeof *centroids);
    }
}

static void start(kmeans *m, qn_rng *rng, float *centroids, double *running, const qn_exec *exec)
{
    const int64_t points = m->job->rows * m->job->groups, entries = m->job->entries;
    const int64_t step = (entries / QN_FIT_LANES + ROUNDS - 1) / ROUNDS * QN_FIT_LANES;
    for (int64_t i = 0; i < points; i++) {
        m->distances[i] = 1.0f;
    }
    m->drawing = 0; /* the first ones replace the made-up distances */
    for (int64_t e = 0; e < entries; e += step) {
        const int64_t count = qn_min_i64(step, entries - e);
        draw(m, rng, centroids, NULL, e, count, running);
        (void)compare(m, centroids, e, count, exec);
        m->drawing = 1;
    }
    m->drawing = 0;
}

/* Means of what was nearest; empty[] those nobody was nearest to. */
static int64_t move(kmeans *m, float *centroids, int32_t *empty)
{
    const int64_t entries = m->job->entries, size = entries * m->job->vector;
    for (int64_t c = 1; c < m->chunks; c++) {
        for (int64_t i = 0; i < size; i++) {
            m->sums[i] += m->sums[c * size + i];
            m->masses[i] += m->masses[c * size + i];
        }
    }
    int64_t empties = 0;
    for (int64_t e = 0; e < entries; e++) {
        float mass = 0;
        for (int64_t i = e * m->job->vector; i < (e + 1) * m->job->vector; i++) {
            mass += m->masses[i];
            if (m->masses[i] > 0) {
                centroids[i] = m->sums[i] / m->masses[i];
            }
        }
        if (!(mass > 0)) {
            empty[empties++] = (int32_t)e;
        }
    }
    return empties;
}

/* No more points than centroids: each has its own. */
static void keep_points(const qn_kmeans_job *job, float *centroids, uint16_t *codes, double *error)
{
    const int64_t points = job->rows * job->groups;
    memset(centroids, 0, (size_t)job->entries * (size_t)job->vector * sizeof *centroids);
    for (int64_t i = 0; i < points; i++) {
        memcpy(centroids + i * job->vector, job->x + i / job->groups * job->stride + i % job->groups * job->vector,
               (size_t)job->vector * sizeof *centroids);
        if (codes) {
            codes[i] = (uint16_t)i;
        }
    }
    if (error) {
        *error = 0;
    }
}

qn_status qn_kmeans(qn_ctx *ctx, const qn_fit_set *set, const qn_kmeans_job *job, const qn_exec *exec, float *centroids,
                    uint16_t *codes, double *error, qn_error *why)
{
    const size_t points = (size_t)(job->rows * job->groups), size = (size_t)job->entries * (size_t)job->vector;
    if (points <= (size_t)job->entries) {
        keep_points(job, centroids, codes, error);
        return QN_OK;
    }
    kmeans m = {.job = job, .set = set, .chunks = qn_ceil_div(job->rows, CHUNK), .codes = codes};
    m.scratch_floats = (size_t)job->entries + CHUNK * ((size_t)job->vector + 2 * QN_FIT_LANES);
    m.scratch = qn_calloc(ctx, m.scratch_floats * (size_t)qn_exec_threads(exec), sizeof(float));
    m.turned = qn_calloc(ctx, size, sizeof(float));
    m.norms = qn_calloc(ctx, (size_t)job->entries, sizeof(float));
    m.distances = qn_calloc(ctx, points + 1, sizeof(float));
    m.errors = qn_calloc(ctx, (size_t)m.chunks + 1, sizeof(double));
    float *all = qn_calloc(ctx, 2 * size * ((size_t)m.chunks + 1), sizeof(float));
    double *running = qn_calloc(ctx, points + 1, sizeof(double));
    int32_t *empty = qn_calloc(ctx, (size_t)job->entries, sizeof *empty);
    qn_status status = QN_OK;
    if (!m.scratch || !m.turned || !m.norms || !m.distances || !m.errors || !all || !running || !empty) {
        status = qn_error_set(why, QN_E_MEMORY, "out of memory for %d centroids of %zu vectors", job->entries, points);
    } else {
        qn_rng rng = {.state = job->seed};
        start(&m, &rng, centroids, running, exec);
        double last = INFINITY;
        for (int32_t i = 0; i < job->iterations; i++) {
            m.sums = all;
            m.masses = all + size * (size_t)m.chunks;
            const double now = compare(&m, centroids, 0, job->entries, exec);
            const int64_t empties = move(&m, centroids, empty);
            draw(&m, &rng, centroids, empty, 0, empties, running);
            if (!(now < last * (1 - job->gain))) {
                break;
            }
            last = now;
        }
        m.sums = NULL;
        const double now = codes || error ? compare(&m, centroids, 0, job->entries, exec) : 0;
        if (error) {
            *error = now;
        }
    }
    qn_free(ctx, empty);
    qn_free(ctx, running);
    qn_free(ctx, all);
    qn_free(ctx, m.errors);
    qn_free(ctx, m.distances);
    qn_free(ctx, m.norms);
    qn_free(ctx, m.turned);
    qn_free(ctx, m.scratch);
    return status;
}
