/* A column of w is cut into vectors of v rows, as VPTQ does (Liu et al. 2024): all of a
 * vector meets the same input, so that error feedback goes column by column and the
 * nearest vector in plain distance is the best one. With q = scale[column] * (a vector of the
 * first book + one of the second) + shift[column], the error is L of vq_fit.h.
 *
 *     start      scale and shift: standard deviation and mean of each column; weighted k-means of
 *                all vectors, weights the diagonal of h times scale^2; k-means of what it leaves
 *     feedback   columns that matter most first: each to w_g - sum_{i<g} d_i R_ig / R_gg, h = R R^T
 *     descent    each in turn to q_g - (d h)_g / h_gg, never to a worse one
 *     refit      books by conjugate gradients on L with the codes as they are (qn_vq_solve)
 *
 * Everything lies column by column, rows beside each other; rows go in chunks of CHUNK, which nothing crosses
 * but the books' gradients, summed in order: the bytes do not depend on the threads. Sums of two
 * vectors: the best BEAM of the first book, a lane one, each with its best of the second, then each again with the
 * other as it is. */
#include "quant/vq_columns.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "format/format.h"
#include "quant/encode.h"
#include "quant/kmeans.h"
#include "quant/vq_fit.h"

#define CHUNK 64 /* rows: whole vectors of 1, 2, 4, 8 or 16 */
#define BOOKS 2
#define BEAM 6
#define POLISH 2
#define ROUNDS 3 /* of refit and descent */
#define STEPS 5
#define MEANS 8
#define MEANS_GAIN 2e-3
#define DAMP 0.01f /* of the mean square of the inputs, added to each */

typedef struct columns {
    qn_ctx *ctx;
    const qn_exec *exec;
    const qn_fit_set *set;
    int64_t n, k, rows, stride, chunks, groups; /* rows: n in whole chunks; stride: k in whole lines; groups of rows */
    int32_t vector, entries;
    int32_t *order;         /* [k]: the column at a place */
    float *w, *q;           /* [k][rows], by places, like all below */
    float *h, *r;           /* [k][stride]; r: line g holds R_ig at i < g, and R_gg */
    float *scales, *shifts; /* [k] */
    uint16_t *codes;        /* [k][groups][BOOKS] */
    float *table;           /* [BOOKS][entries][vector] */
    float *turned, *norms;  /* [BOOKS][vector][entries]; [BOOKS][entries]: squares */
    float *scratch;         /* 2 * k * CHUNK a thread */
    int feedback;           /* of the pass */
    const float *looked_up; /* of a gathering: the table, NULL: q - w is taken */
    int diagonal;
    float *partial; /* [chunks][table] */
} columns;

static void free_all(columns *x)
{
    void *const all[] = {x->order, x->w,     x->q,      x->h,     x->r,       x->scales, x->shifts,
                         x->codes, x->table, x->turned, x->norms, x->scratch, x->partial};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        qn_free(x->ctx, all[i]);
    }
}

static int64_t table_floats(const columns *x)
{
    return (int64_t)BOOKS * x->entries * x->vector;
}

static qn_status allocate(columns *x, qn_error *error)
{
    const size_t k = (size_t)x->k, plane = k * (size_t)x->rows, square = k * (size_t)x->stride, f = sizeof(float);
    const size_t table = (size_t)table_floats(x), threads = (size_t)qn_exec_threads(x->exec);
    x->order = qn_calloc(x->ctx, k, sizeof *x->order);
    x->w = qn_calloc(x->ctx, plane, f);
    x->q = qn_calloc(x->ctx, plane, f);
    x->h = qn_calloc(x->ctx, square, f);
    x->r = qn_calloc(x->ctx, square, f);
    x->scales = qn_calloc(x->ctx, k, f);
    x->shifts = qn_calloc(x->ctx, k, f);
    x->codes = qn_calloc(x->ctx, k * (size_t)x->groups * BOOKS, sizeof *x->codes);
    x->table = qn_calloc(x->ctx, table, f);
    x->turned = qn_calloc(x->ctx, table, f);
    x->norms = qn_calloc(x->ctx, (size_t)x->entries * BOOKS, f);
    x->scratch = qn_calloc(x->ctx, 2 * k * CHUNK * threads, f);
    x->partial = qn_calloc(x->ctx, (size_t)x->chunks * table, f);
    const int failed = !x->order || !x->w || !x->q || !x->h || !x->r || !x->scales || !x->shifts || !x->codes ||
                       !x->table || !x->turned || !x->norms || !x->scratch || !x->partial;
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)x->n,
               (long long)x->k);
    return QN_OK;
}

static float as_half(float value)
{
    uint8_t stored[2];
    const qn_format_row *half = qn_format_get_row(QN_F16);
    half->encode(&value, 1, stored);
    half->decode(stored, 1, &value);
    return value;
}

/* ---- Start ---- */

/* Columns by descending diagonal, ties by number; h, damped, and its factor in that order. */
static void set_matrices(columns *x, const float *squares, float damp)
{
    const int64_t k = x->k, stride = x->stride;
    for (int64_t i = 0; i < k; i++) {
        int64_t place = i;
        while (squares && place > 0 && squares[x->order[place - 1] * (k + 1)] < squares[i * (k + 1)]) {
            x->order[place] = x->order[place - 1];
            place--;
        }
        x->order[place] = (int32_t)i;
    }
    float *const upper = x->r;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < k; j++) {
            x->h[i * stride + j] = (squares ? squares[x->order[i] * k + x->order[j]] : 0) + (i == j ? damp : 0);
        }
    }
    memcpy(upper, x->h, (size_t)(k * stride) * sizeof *upper);
    if (squares) {
        qn_feedback_upper(x->set, upper, k, stride, damp);
    }
    for (int64_t i = 0; i < k; i++) { /* turned over: line g is read along i */
        for (int64_t j = i; j < k; j++) {
            upper[j * stride + i] = upper[i * stride + j];
        }
    }
}

static void set_column(columns *x, int64_t place, const float *w)
{
    const int64_t column = x->order[place], n = x->n;
    float *const to = x->w + place * x->rows;
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < n; r++) {
        to[r] = w[r * x->k + column];
        sum += (double)to[r];
    }
    const float shift = as_half((float)(sum / (double)n));
    for (int64_t r = 0; r < n; r++) {
        squares += ((double)to[r] - (double)shift) * ((double)to[r] - (double)shift);
    }
    const float scale = as_half((float)sqrt(squares / (double)n));
    x->shifts[place] = shift;
    x->scales[place] = scale > 0 && isfinite(scale) ? scale : 1;
    for (int64_t r = n; r < x->rows; r++) {
        to[r] = shift;
    }
}

/* Books by k-means; q is where what is left lies meanwhile. */
static qn_status start(columns *x, qn_error *error)
{
    const int64_t v = x->vector;
    float *const weights = x->scratch; /* [k] */
    float *const there = qn_calloc(x->ctx, (size_t)x->rows, sizeof *there);
    uint16_t *const nearest = qn_calloc(x->ctx, (size_t)(x->k * x->groups), sizeof *nearest);
    qn_status status = QN_OK;
    if (!there || !nearest) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)x->n,
                              (long long)x->k);
    }
    for (int64_t r = 0; r < x->n && status == QN_OK; r++) {
        there[r] = 1;
    }
    for (int64_t i = 0; i < x->k && status == QN_OK; i++) {
        weights[i] = x->h[i * (x->stride + 1)] / x->h[0] * x->scales[i] * x->scales[i];
        for (int64_t r = 0; r < x->rows; r++) {
            x->q[i * x->rows + r] = (x->w[i * x->rows + r] - x->shifts[i]) / x->scales[i];
        }
    }
    for (int32_t book = 0; book < BOOKS && status == QN_OK; book++) {
        float *const table = x->table + book * x->entries * v;
        const qn_kmeans_job job = {.x = x->q,
                                   .rows = x->k,
                                   .groups = x->groups,
                                   .stride = x->rows,
                                   .vector = x->vector,
                                   .entries = x->entries,
                                   .row_weights = weights,
                                   .column_weights = there,
                                   .iterations = MEANS,
                                   .gain = MEANS_GAIN,
                                   .seed = (uint64_t)book};
        status = qn_kmeans(x->ctx, x->set, &job, x->exec, table, nearest, NULL, error);
        for (int64_t i = 0; i < x->k * x->groups && status == QN_OK; i++) {
            for (int64_t j = 0; j < v; j++) {
                x->q[i * v + j] -= table[nearest[i] * v + j];
            }
        }
    }
    qn_free(x->ctx, there);
    qn_free(x->ctx, nearest);
    return status;
}

/* ---- Passes ---- */

static void turn_books(columns *x)
{
    const int64_t v = x->vector, entries = x->entries;
    for (int64_t e = 0; e < BOOKS * entries; e++) {
        for (int64_t j = 0; j < v; j++) {
            x->turned[(e / entries * v + j) * entries + e % entries] = x->table[e * v + j];
        }
    }
    for (int64_t book = 0; book < BOOKS; book++) {
        x->set->weigh(x->turned + book * v * entries, entries, x->vector, NULL, x->norms + book * entries);
    }
}

/* Vectors that are looked for together, and what is found. */
typedef struct search {
    float targets[CHUNK * BEAM], scores[CHUNK * BEAM * QN_FIT_LANES]; /* targets: -2 times them */
    int32_t entries[CHUNK * BEAM * QN_FIT_LANES];
} search;

static void nearest(const columns *x, int32_t book, int64_t count, search *s)
{
    const qn_fit_book b = {x->norms + book * x->entries, x->turned + (int64_t)book * x->entries * x->vector, x->entries,
                           x->vector};
    x->set->nearest(&b, s->targets, count, s->scores, s->entries);
}

static int best_lane(const float *scores)
{
    int best = 0;
    for (int l = 1; l < QN_FIT_LANES; l++) {
        best = scores[l] < scores[best] ? l : best;
    }
    return best;
}

static float distance(const columns *x, const float *target, const uint16_t codes[BOOKS])
{
    const float *const a = x->table + codes[0] * x->vector;
    const float *const b = x->table + (x->entries + codes[1]) * x->vector;
    float sum = 0;
    for (int64_t j = 0; j < x->vector; j++) {
        const float d = target[j] - (a[j] + b[j]);
        sum += d * d;
    }
    return sum;
}

/* Codes of the sums nearest to targets[count][vector]; known 1: none worse than those that are there. */
static void choose(const columns *x, const float *targets, int64_t count, int known, uint16_t *codes, search *s)
{
    const int64_t v = x->vector;
    int32_t first[CHUNK * BEAM];
    float least[CHUNK];
    for (int64_t i = 0; i < count; i++) {
        least[i] = known ? distance(x, targets + i * v, codes + i * BOOKS) : INFINITY;
        for (int64_t j = 0; j < v; j++) {
            s->targets[i * v + j] = -2 * targets[i * v + j];
        }
    }
    nearest(x, 0, count, s);
    for (int64_t i = 0; i < count; i++) {
        for (int b = 0; b < BEAM; b++) {
            float *const scores = s->scores + i * QN_FIT_LANES;
            const int lane = best_lane(scores);
            first[i * BEAM + b] = s->entries[i * QN_FIT_LANES + lane];
            scores[lane] = INFINITY;
        }
    }
    for (int64_t i = 0; i < count * BEAM; i++) {
        for (int64_t j = 0; j < v; j++) {
            s->targets[i * v + j] = -2 * (targets[i / BEAM * v + j] - x->table[first[i] * v + j]);
        }
    }
    nearest(x, 1, count * BEAM, s);
    for (int64_t i = 0; i < count * BEAM; i++) {
        const int64_t at = i / BEAM;
        const int lane = best_lane(s->scores + i * QN_FIT_LANES);
        const uint16_t pair[BOOKS] = {(uint16_t)first[i], (uint16_t)s->entries[i * QN_FIT_LANES + lane]};
        const float far = distance(x, targets + at * v, pair);
        if (far < least[at]) {
            least[at] = far;
            memcpy(codes + at * BOOKS, pair, sizeof pair);
        }
    }
    for (int step = 0; step < POLISH * BOOKS; step++) { /* one book anew, the other as it is */
        const int32_t book = step % BOOKS, other = 1 - book;
        for (int64_t i = 0; i < count; i++) {
            const float *const kept = x->table + (other * x->entries + codes[i * BOOKS + other]) * v;
            for (int64_t j = 0; j < v; j++) {
                s->targets[i * v + j] = -2 * (targets[i * v + j] - kept[j]);
            }
        }
        nearest(x, book, count, s);
        for (int64_t i = 0; i < count; i++) {
            uint16_t pair[BOOKS];
            memcpy(pair, codes + i * BOOKS, sizeof pair);
            pair[book] = (uint16_t)s->entries[i * QN_FIT_LANES + best_lane(s->scores + i * QN_FIT_LANES)];
            const float far = distance(x, targets + i * v, pair);
            if (far < least[i]) {
                least[i] = far;
                memcpy(codes + i * BOOKS, pair, sizeof pair);
            }
        }
    }
}

/* q of a column's chunk from its codes. */
static void decode(const columns *x, const float *table, int64_t place, int64_t chunk, float scale, float shift,
                   float *to)
{
    const int64_t v = x->vector, some = CHUNK / v;
    const uint16_t *const codes = x->codes + (place * x->groups + chunk * some) * BOOKS;
    for (int64_t i = 0; i < some; i++) {
        const float *const a = table + codes[i * BOOKS] * v;
        const float *const b = table + (x->entries + codes[i * BOOKS + 1]) * v;
        for (int64_t j = 0; j < v; j++) {
            to[i * v + j] = scale * (a[j] + b[j]) + shift;
        }
    }
}

/* q - w of a chunk, 0 in rows that are not there. */
static void differences(const columns *x, int64_t place, int64_t chunk, float *d)
{
    const int64_t first = place * x->rows + chunk * CHUNK, there = qn_min_i64(CHUNK, x->n - chunk * CHUNK);
    memset(d, 0, CHUNK * sizeof *d);
    for (int64_t r = 0; r < there; r++) {
        d[r] = x->q[first + r] - x->w[first + r];
    }
}

static void pass_task(void *user, int64_t chunk, int32_t thread)
{
    const columns *x = user;
    const int64_t some = CHUNK / x->vector;
    float *const d = x->scratch + (size_t)thread * 2 * (size_t)(x->k * CHUNK);
    search s;
    for (int64_t g = 0; g < x->k && !x->feedback; g++) {
        differences(x, g, chunk, d + g * CHUNK);
    }
    for (int64_t g = 0; g < x->k; g++) {
        const int64_t at = g * x->rows + chunk * CHUNK;
        const float *const line = (x->feedback ? x->r : x->h) + g * x->stride, *const from = x->feedback ? x->w : x->q;
        float sums[CHUNK] = {0};
        x->set->add_product(sums, CHUNK, line, x->stride, 1, d, CHUNK, x->feedback ? g : x->k, CHUNK);
        for (int64_t r = 0; r < CHUNK; r++) {
            sums[r] = (from[at + r] - sums[r] / line[g] - x->shifts[g]) / x->scales[g];
        }
        choose(x, sums, some, !x->feedback, x->codes + (g * x->groups + chunk * some) * BOOKS, &s);
        decode(x, x->table, g, chunk, x->scales[g], x->shifts[g], x->q + at);
        differences(x, g, chunk, d + g * CHUNK);
    }
}

static void pass(columns *x, int feedback)
{
    turn_books(x);
    x->feedback = feedback;
    qn_parallel_for(x->exec, x->chunks, pass_task, x);
}

/* ---- Books ---- */

static void decode_task(void *user, int64_t place, int32_t thread)
{
    (void)thread;
    const columns *x = user;
    for (int64_t chunk = 0; chunk < x->chunks; chunk++) {
        float *const to = x->q + place * x->rows + chunk * CHUNK;
        decode(x, x->table, place, chunk, x->scales[place], x->shifts[place], to);
    }
}

static void gather_task(void *user, int64_t chunk, int32_t thread)
{
    const columns *x = user;
    const int64_t v = x->vector, some = CHUNK / v, there = qn_min_i64(CHUNK, x->n - chunk * CHUNK);
    float *const d = x->scratch + (size_t)thread * 2 * (size_t)(x->k * CHUNK), *const product = d + x->k * CHUNK;
    float *const sums = x->partial + chunk * table_floats(x);
    memset(sums, 0, (size_t)table_floats(x) * sizeof *sums);
    for (int64_t g = 0; g < x->k; g++) {
        if (x->looked_up) {
            decode(x, x->looked_up, g, chunk, x->scales[g], 0, d + g * CHUNK);
            memset(d + g * CHUNK + there, 0, (size_t)(CHUNK - there) * sizeof *d);
        } else {
            differences(x, g, chunk, d + g * CHUNK);
        }
    }
    if (!x->diagonal) {
        memset(product, 0, (size_t)(x->k * CHUNK) * sizeof *product);
        x->set->add_product(product, CHUNK, x->h, x->stride, x->k, d, CHUNK, x->k, CHUNK);
    }
    for (int64_t g = 0; g < x->k; g++) {
        const float scale = x->scales[g], own = scale * scale * x->h[g * (x->stride + 1)];
        const uint16_t *const codes = x->codes + (g * x->groups + chunk * some) * BOOKS;
        for (int64_t i = 0; i < some * BOOKS; i++) {
            float *const to = sums + (i % BOOKS * x->entries + codes[i]) * v;
            for (int64_t j = 0; j < v && i / BOOKS * v + j < there; j++) {
                to[j] += x->diagonal ? own : scale * product[g * CHUNK + i / BOOKS * v + j];
            }
        }
    }
}

/* qn_vq_gather_fn */
static void gather(void *user, const float *table, int diagonal, float *out)
{
    columns *x = user;
    const int64_t size = table_floats(x);
    x->looked_up = table;
    x->diagonal = diagonal;
    qn_parallel_for(x->exec, x->chunks, gather_task, x);
    memset(out, 0, (size_t)size * sizeof *out);
    for (int64_t c = 0; c < x->chunks; c++) {
        for (int64_t i = 0; i < size; i++) {
            out[i] += x->partial[c * size + i];
        }
    }
}

static qn_status refit(columns *x, qn_error *error)
{
    const int64_t size = table_floats(x);
    float *const work = qn_calloc(x->ctx, 5 * (size_t)size, sizeof *work);
    QN_FAIL_IF(!work, error, QN_E_MEMORY, "out of memory for codebooks of %d vectors", x->entries);
    qn_vq_solve(gather, x, STEPS, x->table, size, work);
    qn_free(x->ctx, work);
    qn_parallel_for(x->exec, x->k, decode_task, x);
    return QN_OK;
}

static void round_books(columns *x)
{
    for (int64_t i = 0; i < table_floats(x); i++) {
        x->table[i] = as_half(x->table[i]);
    }
    qn_parallel_for(x->exec, x->k, decode_task, x);
}

/* ---- Store ---- */

static void store(const columns *x, int bits, void *const parts[QN_VQ_PARTS])
{
    const int64_t v = x->vector, rows = qn_ceil_div(x->n, v), line = qn_ceil_div(x->k * 2 * bits, 32);
    const int64_t book = x->entries * v;
    const qn_format_row *half = qn_format_get_row(QN_F16);
    uint32_t *const stream = parts[0];
    memset(stream, 0, (size_t)(rows * line) * sizeof *stream);
    for (int64_t place = 0; place < x->k; place++) {
        const int64_t column = x->order[place], first = column * 2 * bits;
        for (int64_t r = 0; r < rows; r++) {
            const uint16_t *const codes = x->codes + (place * x->groups + r) * BOOKS;
            const uint64_t word = ((uint64_t)codes[1] << bits | codes[0]) << first % 32;
            stream[r * line + first / 32] |= (uint32_t)word;
            if (word >> 32) {
                stream[r * line + first / 32 + 1] |= (uint32_t)(word >> 32);
            }
        }
        half->encode(x->scales + place, 1, (uint8_t *)parts[3] + 2 * column);
        half->encode(x->shifts + place, 1, (uint8_t *)parts[4] + 2 * column);
    }
    for (int b = 0; b < BOOKS; b++) {
        half->encode(x->table + b * book, book, parts[1 + b]);
    }
}

static double relative_error(const columns *x)
{
    double error = 0, weight = 0;
    for (int64_t i = 0; i < x->k; i++) {
        for (int64_t r = 0; r < x->n; r++) {
            const double w = (double)x->w[i * x->rows + r], d = (double)x->q[i * x->rows + r] - w;
            error += d * d;
            weight += w * w;
        }
    }
    return weight > 0 ? sqrt(error / weight) : 0;
}

static qn_status fit(columns *x, int feedback, qn_error *error)
{
    QN_TRY(start(x, error));
    pass(x, 1);
    for (int i = 0; i < ROUNDS && feedback; i++) {
        QN_TRY(refit(x, error));
        if (i + 1 < ROUNDS) {
            pass(x, 0);
        }
    }
    round_books(x);
    pass(x, 0);
    return QN_OK;
}

qn_status qn_vq_columns_quantise(qn_ctx *ctx, const qn_fit_set *set, const qn_scheme *scheme, const float *w, int64_t n,
                                 int64_t k, const float *squares, const qn_exec *exec, void *const parts[QN_VQ_PARTS],
                                 double *rms, qn_error *error)
{
    columns x = {.ctx = ctx,
                 .exec = exec,
                 .set = set,
                 .n = n,
                 .k = k,
                 .stride = (int64_t)qn_align_up((size_t)k, QN_FIT_LANES),
                 .chunks = qn_ceil_div(n, CHUNK),
                 .vector = scheme->vq.vector,
                 .entries = 1 << scheme->vq.bits};
    x.rows = x.chunks * CHUNK;
    x.groups = x.rows / x.vector;
    double trace = 0;
    for (int64_t i = 0; i < k && squares; i++) {
        trace += (double)squares[i * (k + 1)];
    }
    const float damp = (float)(trace / (double)k) * DAMP;
    qn_status status = allocate(&x, error);
    if (status == QN_OK) {
        set_matrices(&x, squares, squares && damp > 0 ? damp : 1);
        for (int64_t i = 0; i < k; i++) {
            set_column(&x, i, w);
        }
        status = fit(&x, squares != NULL, error);
    }
    if (status == QN_OK) {
        store(&x, scheme->vq.bits, parts);
        *rms = relative_error(&x);
    }
    free_all(&x);
    return status;
}
