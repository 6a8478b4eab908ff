#include "quant/vq.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/fit.h"
#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "format/format.h"
#include "quant/encode.h"
#include "quant/kmeans.h"
#include "quant/vq_columns.h"
#include "quant/vq_fit.h"
#include "quant/vq_lattice.h"

/* What a search of a book costs its entries, so large books are searched less often. */
typedef struct effort {
    int32_t entries;   /* of books up to that many */
    int32_t means;     /* iterations of k-means: where there are few points for each entry, it settles soon */
    int32_t beam;      /* sums of vectors that are kept in a search */
    int32_t polish;    /* times each vector of the best sum is chosen again */
    int32_t rounds;    /* of refit and descent */
} effort;

static const effort efforts[] = {{1024, 15, 8, 2, 3}, {16384, 6, 4, 1, 2}, {65536, 1, 4, 1, 1}};

#define LATTICE_ROUNDS 2 /* of rescaling and descent */
#define STEPS 5  /* of conjugate gradients in a refit */
#define LATTICE_BEAM 4
#define DAMP 0.01f /* of the mean square of the inputs, added to each */
#define MEANS_GAIN 2e-3

qn_status qn_vq_shapes(const qn_scheme *s, int64_t n, int64_t k, qn_shape shapes[QN_VQ_PARTS], qn_error *error)
{
    const int64_t entries = INT64_C(1) << s->vq.bits, v = s->vq.vector;
    if (s->vq.format == QN_VQ_VPTQ) { /* vectors along n, the last ones padded */
        const int64_t words = qn_ceil_div(k * s->vq.books * s->vq.bits, 32);
        shapes[0] = qn_shape_make(QN_I32, 3, 1, qn_ceil_div(n, v), words, 1);
        shapes[1] = shapes[2] = qn_shape_make(QN_F16, 2, 1, entries * v, 1, 1);
        shapes[3] = shapes[4] = qn_shape_make(QN_F16, 1, k, 1, 1, 1);
        return QN_OK;
    }
    QN_FAIL_IF(k % s->vq.vector, error, QN_E_SHAPE, "%s cuts rows into vectors of %d, but they have %lld elements",
               s->name, s->vq.vector, (long long)k);
    if (s->vq.format == QN_VQ_GPTVQ) {
        const int64_t down = qn_ceil_div(n, s->vq.tile), across = qn_ceil_div(k, s->vq.tile);
        shapes[0] = qn_shape_make(QN_U8, 2, n, k / s->vq.vector, 1, 1);
        shapes[1] = qn_shape_make(QN_I8, 4, down, across, entries, s->vq.vector);
        shapes[2] = qn_shape_make(QN_F32, 2, down, across, 1, 1);
    } else if (s->vq.format == QN_VQ_QUIP_E8P) {
        QN_TRY(qn_vq_space_check(s, n, k, error));
        shapes[0] = qn_shape_make(QN_I64, 2, n, k / 32 * s->vq.books, 1, 1);
        shapes[1] = qn_shape_make(QN_F16, 1, k, 1, 1, 1);
        shapes[2] = qn_shape_make(QN_F16, 1, n, 1, 1, 1);
        shapes[3] = qn_shape_make(QN_F32, 0, 1, 1, 1, 1);
        shapes[4] = qn_shape_make(QN_I64, 0, 1, 1, 1, 1);
    } else {
        shapes[0] = qn_shape_make(s->vq.bits > 8 ? QN_I16 : QN_I8, 3, n, k / s->vq.vector, s->vq.books, 1);
        shapes[1] = qn_shape_make(QN_F16, 4, s->vq.books, entries, 1, s->vq.vector);
        shapes[2] = qn_shape_make(QN_F16, 4, n, 1, 1, 1);
    }
    return QN_OK;
}

/* What a weight is worked on in; all but codes, scales and table change order with `order`. */
typedef struct vq_work {
    qn_vq_fit fit;
    const qn_scheme *scheme;
    const effort *effort;
    const float *source; /* [n][k] as given */
    int32_t *order;      /* [groups]: which group is at a place */
    int32_t *across_of;
    float *w, *h, *r;
    float *left;        /* [n][k]: what the books so far leave, in the source's order */
    float *importance;  /* [k] in the source's order */
    float *row_weights; /* [n] */
    float *cell_scales; /* [cells] of INT8 books */
    uint16_t *nearest;  /* codes of a start's cell */
} vq_work;

static void work_free(vq_work *x)
{
    qn_vq_fit *f = &x->fit;
    void *const all[] = {x->order,      x->across_of,   x->w,           x->h,       x->r,      x->left,
                         x->importance, x->row_weights, x->cell_scales, x->nearest, f->scales, f->q,
                         f->codes,      f->table,       f->turned,      f->norms,   f->metric, f->inverse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        qn_free(f->ctx, all[i]);
    }
}

static qn_status work_init(vq_work *x, qn_error *error)
{
    qn_vq_fit *f = &x->fit;
    qn_ctx *ctx = f->ctx;
    const size_t n = (size_t)f->n, stride = (size_t)f->stride, k = (size_t)f->k, groups = (size_t)f->groups;
    const size_t cells = (size_t)(f->down * f->across), table = cells * (size_t)qn_vq_cell_floats(f);
    const size_t norms = (size_t)f->down * groups * (size_t)f->books * (size_t)f->entries;
    const size_t metric = groups * (size_t)f->vector * (size_t)f->vector;
    x->order = qn_calloc(ctx, groups, sizeof *x->order);
    x->across_of = qn_calloc(ctx, groups, sizeof *x->across_of);
    f->w = x->w = qn_calloc(ctx, n * stride, sizeof(float));
    f->h = x->h = qn_calloc(ctx, k * stride, sizeof(float));
    f->r = x->r = qn_calloc(ctx, k * stride, sizeof(float));
    x->left = qn_calloc(ctx, n * k, sizeof(float));
    x->importance = qn_calloc(ctx, k, sizeof(float));
    x->row_weights = qn_calloc(ctx, n, sizeof(float));
    x->cell_scales = qn_calloc(ctx, cells, sizeof(float));
    x->nearest = qn_calloc(ctx, n * groups, sizeof *x->nearest);
    f->scales = qn_calloc(ctx, n, sizeof(float));
    f->q = qn_calloc(ctx, n * stride, sizeof(float));
    f->codes = qn_calloc(ctx, n * groups * (size_t)f->books, sizeof *f->codes);
    f->table = qn_calloc(ctx, table, sizeof(float));
    f->turned = qn_calloc(ctx, f->lattice ? 1 : table, sizeof(float));
    f->norms = qn_calloc(ctx, f->lattice ? groups : norms, sizeof(float));
    f->metric = qn_calloc(ctx, metric, sizeof(float));
    f->inverse = qn_calloc(ctx, f->lattice ? metric : 1, sizeof(float));
    f->across_of = x->across_of;
    const int failed = !x->order || !x->across_of || !f->w || !f->h || !f->r || !x->left || !x->importance ||
                       !x->row_weights || !x->cell_scales || !x->nearest || !f->scales || !f->q || !f->codes ||
                       !f->table || !f->turned || !f->norms || !f->metric || !f->inverse;
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)f->n,
               (long long)f->k);
    return QN_OK;
}

/* A number as the format stores it. */
static float rounded(qn_format format, float x)
{
    uint8_t stored[8];
    const qn_format_row *row = qn_format_get_row(format);
    row->encode(&x, 1, stored);
    row->decode(stored, 1, &x);
    return x;
}

/* ---- Order ---- */

/* Groups by descending importance, ties by number: what matters most first, as feedback.c orders columns. */
static void order_groups(vq_work *x)
{
    const int64_t groups = x->fit.groups, v = x->fit.vector;
    float *sums = x->fit.norms; /* not yet used */
    for (int64_t g = 0; g < groups; g++) {
        sums[g] = 0;
        for (int64_t j = 0; j < v; j++) {
            sums[g] += x->importance[g * v + j];
        }
        int64_t place = g;
        while (place > 0 && sums[x->order[place - 1]] < sums[g]) {
            x->order[place] = x->order[place - 1];
            place--;
        }
        x->order[place] = (int32_t)g;
    }
}

/* w and h into the order; h damped, then its factor. squares NULL: h is 1. */
static void set_matrices(vq_work *x, const float *squares, float damp)
{
    qn_vq_fit *f = &x->fit;
    const int64_t v = f->vector, k = f->k, stride = f->stride;
    for (int64_t i = 0; i < k; i++) {
        const int64_t from = x->order[i / v] * v + i % v;
        for (int64_t row = 0; row < f->n; row++) {
            x->w[row * stride + i] = x->source[row * k + from];
        }
        for (int64_t j = 0; j < k; j++) {
            const int64_t other = x->order[j / v] * v + j % v;
            x->h[i * stride + j] = (squares ? squares[from * k + other] : 0) + (i == j ? damp : 0);
        }
    }
    memcpy(x->r, x->h, (size_t)(k * stride) * sizeof *x->r);
    if (squares) {
        qn_feedback_upper(f->set, x->r, k, stride, damp);
    }
    for (int64_t i = 0; i < k; i++) {
        memset(x->r + i * stride, 0, (size_t)i * sizeof *x->r);
        x->across_of[i / v] = x->scheme->vq.tile ? (int32_t)(x->order[i / v] * v / x->scheme->vq.tile) : 0;
    }
}

/* ---- Start ---- */

static void set_scales(vq_work *x)
{
    qn_vq_fit *f = &x->fit;
    for (int64_t row = 0; row < f->n; row++) {
        double sum = 0;
        for (int64_t i = 0; i < f->k; i++) {
            sum += (double)x->source[row * f->k + i] * (double)x->source[row * f->k + i];
        }
        float scale = rounded(QN_F16, (float)sqrt(sum / (double)f->k));
        if (x->scheme->vq.format != QN_VQ_AQLM || !(scale > 0) || !isfinite(scale)) {
            scale = 1;
        }
        f->scales[row] = scale;
        x->row_weights[row] = scale * scale;
        for (int64_t i = 0; i < f->k; i++) {
            x->left[row * f->k + i] = x->source[row * f->k + i] / scale;
        }
    }
}

/* One book with an entry for every vector of the weight: there is nothing to fit. */
static int is_exact(const qn_vq_fit *f)
{
    return f->books == 1 && f->down * f->across == 1 && f->n * f->groups <= f->entries;
}

/* k-means of one cell and book; `left` loses the nearest vectors. */
static qn_status start_cell(vq_work *x, int64_t down, int64_t across, int32_t book, qn_error *error)
{
    qn_vq_fit *f = &x->fit;
    const int64_t v = f->vector, tile = x->scheme->vq.tile, first = down * f->cell_rows;
    const int64_t column = across * tile, columns = tile ? qn_min_i64(tile, f->k - column) : f->k;
    const int64_t rows = qn_min_i64(f->cell_rows, f->n - first);
    float *left = x->left + first * f->k + column;
    float *table = f->table + ((down * f->across + across) * f->books + book) * f->entries * v;
    const qn_kmeans_job job = {.x = left,
                               .rows = rows,
                               .groups = columns / v,
                               .stride = f->k,
                               .vector = f->vector,
                               .entries = f->entries,
                               .row_weights = x->row_weights + first,
                               .column_weights = x->importance + column,
                               .iterations = x->effort->means,
                               .gain = MEANS_GAIN,
                               .seed = (uint64_t)(down * f->across + across) * 64 + (uint64_t)book};
    const int asked = book + 1 < f->books || is_exact(f); /* for the codes */
    QN_TRY(qn_kmeans(f->ctx, f->set, &job, f->exec, table, asked ? x->nearest : NULL, NULL, error));
    for (int64_t r = 0; r < rows && book + 1 < f->books; r++) {
        for (int64_t j = 0; j < columns; j++) {
            left[r * f->k + j] -= table[x->nearest[r * job.groups + j / v] * v + j % v];
        }
    }
    return QN_OK;
}

static qn_status start(vq_work *x, qn_error *error)
{
    const qn_vq_fit *f = &x->fit;
    set_scales(x);
    for (int32_t book = 0; book < f->books; book++) {
        for (int64_t cell = 0; cell < f->down * f->across; cell++) {
            QN_TRY(start_cell(x, cell / f->across, cell % f->across, book, error));
        }
    }
    return QN_OK;
}

/* ---- Store ---- */

/* Books as the format stores them. */
static void round_books(vq_work *x)
{
    const qn_vq_fit *f = &x->fit;
    const int64_t size = qn_vq_cell_floats(f);
    for (int64_t cell = 0; cell < f->down * f->across; cell++) {
        float *table = f->table + cell * size, amax = 0;
        for (int64_t i = 0; i < size; i++) {
            amax = fabsf(table[i]) > amax ? fabsf(table[i]) : amax;
        }
        const float scale = amax > 0 ? amax / 127 : 1;
        x->cell_scales[cell] = scale;
        for (int64_t i = 0; i < size; i++) {
            table[i] =
                x->scheme->vq.format == QN_VQ_GPTVQ ? scale * nearbyintf(table[i] / scale) : rounded(QN_F16, table[i]);
        }
    }
}

static void store(const vq_work *x, void *const parts[QN_VQ_PARTS])
{
    const qn_vq_fit *f = &x->fit;
    const int64_t size = qn_vq_cell_floats(f);
    for (int64_t i = 0; i < f->n * f->groups * f->books; i++) {
        const int64_t book = i % f->books, place = i / f->books % f->groups, row = i / f->books / f->groups;
        const int64_t to = (row * f->groups + x->order[place]) * f->books + book;
        if (x->scheme->vq.bits > 8) {
            ((uint16_t *)parts[0])[to] = f->codes[i]; /* two's complement of the code's bits, below */
        } else {
            ((uint8_t *)parts[0])[to] = (uint8_t)f->codes[i];
        }
        if (x->scheme->vq.bits > 8 && f->codes[i] >= f->entries / 2) {
            ((int16_t *)parts[0])[to] = (int16_t)(f->codes[i] - f->entries);
        }
    }
    if (x->scheme->vq.format == QN_VQ_GPTVQ) {
        for (int64_t i = 0; i < f->down * f->across * size; i++) {
            ((int8_t *)parts[1])[i] = (int8_t)nearbyintf(f->table[i] / x->cell_scales[i / size]);
        }
        memcpy(parts[2], x->cell_scales, (size_t)(f->down * f->across) * sizeof(float));
    } else {
        const qn_format_row *half = qn_format_get_row(QN_F16);
        half->encode(f->table, size, parts[1]);
        half->encode(f->scales, f->n, parts[2]);
    }
}

/* ---- One weight ---- */

static qn_status fit_lattice(vq_work *x, int feedback, qn_error *error)
{
    qn_vq_fit *f = &x->fit;
    QN_TRY(qn_vq_pass(f, 1, NULL, error));
    for (int i = 0; i < LATTICE_ROUNDS && feedback; i++) {
        QN_TRY(qn_vq_rescale(f, error));
        QN_TRY(qn_vq_pass(f, 0, NULL, error));
    }
    return QN_OK;
}

static qn_status fit(vq_work *x, int feedback, qn_error *error)
{
    qn_vq_fit *f = &x->fit;
    if (f->lattice) {
        return fit_lattice(x, feedback, error);
    }
    if (is_exact(f)) {
        for (int64_t i = 0; i < f->n * f->groups; i++) {
            f->codes[i] = x->nearest[i / f->groups * f->groups + x->order[i % f->groups]];
        }
        round_books(x);
        qn_vq_decode(f);
        return QN_OK;
    }
    if (!feedback) {
        round_books(x);
        return qn_vq_pass(f, 1, NULL, error);
    }
    QN_TRY(qn_vq_pass(f, 1, NULL, error));
    for (int i = 0; i < x->effort->rounds; i++) {
        QN_TRY(qn_vq_refit(f, STEPS, error));
        QN_TRY(qn_vq_pass(f, 0, NULL, error));
    }
    QN_TRY(qn_vq_refit(f, STEPS, error));
    round_books(x);
    qn_vq_decode(f);
    return qn_vq_pass(f, 0, NULL, error);
}

static double relative_error(const qn_vq_fit *f)
{
    double error = 0, weight = 0;
    for (int64_t i = 0; i < f->n * f->stride; i++) {
        const double d = (double)f->q[i] - (double)f->w[i];
        error += d * d;
        weight += (double)f->w[i] * (double)f->w[i];
    }
    return weight > 0 ? sqrt(error / weight) : 0;
}

/* The books of a lattice need no start. */
static void start_lattice(vq_work *x, const qn_vq_space *space)
{
    for (int64_t row = 0; row < x->fit.n; row++) {
        x->fit.scales[row] = space->scale;
    }
    qn_vq_space_fill(space, x->scheme, x->fit.table);
}

/* x is set but for what is allocated; space NULL: the weight is fitted as it is. */
static qn_status quantise(vq_work *x, const float *squares, const qn_vq_space *space, const float *w,
                          const float *given, void *const parts[QN_VQ_PARTS], double *rms, qn_error *error)
{
    const int64_t k = x->fit.k;
    double trace = 0;
    QN_TRY(work_init(x, error));
    for (int64_t i = 0; i < k && squares; i++) {
        trace += (double)squares[i * (k + 1)];
    }
    float damp = (float)(trace / (double)k) * DAMP;
    damp = squares && damp > 0 ? damp : 1;
    for (int64_t i = 0; i < k; i++) {
        x->importance[i] = squares ? (squares[i * (k + 1)] + damp) / (float)(trace / (double)k + (double)damp) : 1;
    }
    order_groups(x);
    set_matrices(x, squares, damp);
    if (space) {
        start_lattice(x, space);
    } else {
        QN_TRY(start(x, error));
    }
    QN_TRY(fit(x, squares != NULL, error));
    if (space) {
        return qn_vq_space_store(space, x->scheme, &x->fit, x->order, w, given, damp, parts, rms, error);
    }
    store(x, parts);
    *rms = relative_error(&x->fit);
    return QN_OK;
}

qn_status qn_vq_quantise(qn_ctx *ctx, const qn_scheme *scheme, const float *w, int64_t n, int64_t k,
                         const float *squares, const qn_exec *exec, void *const parts[QN_VQ_PARTS], double *rms,
                         qn_error *error)
{
    if (scheme->vq.format == QN_VQ_VPTQ) {
        return qn_vq_columns_quantise(ctx, qn_cpu_fit(ctx), scheme, w, n, k, squares, exec, parts, rms, error);
    }
    const int32_t tile = scheme->vq.tile;
    const int lattice = scheme->vq.format == QN_VQ_QUIP_E8P;
    qn_vq_space space = {.ctx = ctx};
    vq_work x = {.scheme = scheme, .effort = efforts, .source = w};
    while (x.effort->entries < 1 << scheme->vq.bits) {
        x.effort++;
    }
    x.fit = (qn_vq_fit){.ctx = ctx,
                        .exec = exec,
                        .set = qn_cpu_fit(ctx),
                        .n = n,
                        .k = k,
                        .stride = (int64_t)qn_align_up((size_t)k, QN_FIT_LANES),
                        .groups = k / scheme->vq.vector,
                        .vector = scheme->vq.vector,
                        .books = scheme->vq.books,
                        .entries = 1 << scheme->vq.bits,
                        .beam = lattice ? LATTICE_BEAM : (squares ? x.effort->beam : 1),
                        .polish = lattice ? 1 : x.effort->polish,
                        .cell_rows = tile ? tile : (int64_t)qn_align_up((size_t)n, QN_VQ_CHUNK),
                        .across = tile ? qn_ceil_div(k, tile) : 1,
                        .down = tile ? qn_ceil_div(n, tile) : 1};
    qn_status status = QN_OK;
    if (lattice) {
        status = qn_vq_space_enter(ctx, exec, scheme, w, n, k, squares, &space, error);
        x.source = space.w;
        x.fit.lattice = &space.lattice;
        x.fit.sizes = space.sizes;
    }
    if (status == QN_OK) {
        const float *h = lattice ? space.squares : squares;
        status = quantise(&x, h, lattice ? &space : NULL, w, squares, parts, rms, error);
    }
    work_free(&x);
    qn_vq_space_free(&space);
    return status;
}
