/* Codebooks with the codes as they are: L (vq_fit.h) is a square form of the
 * tables' elements, lessened by conjugate gradients with the form's diagonal as
 * preconditioner. A step is one product by h and one walk over the codes. */
#include <string.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "quant/vq_fit.h"

typedef struct refit {
    qn_vq_fit *fit;
    const float *table; /* what codes are looked up in; NULL: q - w is taken */
    float *partial;     /* [chunks][across cells]: sums of a chunk of rows */
    float *scratch;     /* 2 * BAND * stride floats a thread */
    int diagonal;       /* 1: sums of the form's diagonal */
} refit;

static void look_up(const qn_vq_fit *f, const float *table, int64_t row, float *to)
{
    const int64_t v = f->vector, cell_floats = qn_vq_cell_floats(f);
    const uint16_t *codes = f->codes + row * f->groups * f->books;
    for (int64_t g = 0; g < f->groups; g++) {
        const float *cell = table + qn_vq_cell(f, row, g) * cell_floats;
        for (int64_t j = 0; j < v; j++) {
            float sum = 0;
            for (int64_t b = 0; b < f->books; b++) {
                sum += cell[(b * f->entries + codes[g * f->books + b]) * v + j];
            }
            to[g * v + j] = f->scales[row] * sum;
        }
    }
}

static void decode_task(void *user, int64_t row, int32_t thread)
{
    (void)thread;
    const qn_vq_fit *f = user;
    look_up(f, f->table, row, f->q + row * f->stride);
}

void qn_vq_decode(qn_vq_fit *f)
{
    qn_parallel_for(f->exec, f->n, decode_task, f);
}

static void chunk_task(void *user, int64_t chunk, int32_t thread)
{
    const refit *x = user;
    const qn_vq_fit *f = x->fit;
    const int64_t v = f->vector, cell_floats = qn_vq_cell_floats(f), line = f->across * cell_floats;
    float *d = x->scratch + (size_t)thread * 2 * (size_t)(QN_VQ_BAND * f->stride),
          *product = d + QN_VQ_BAND * f->stride;
    float *sums = x->partial + chunk * line;
    memset(sums, 0, (size_t)line * sizeof *sums);
    const int64_t end = qn_min_i64((chunk + 1) * QN_VQ_CHUNK, f->n);
    for (int64_t first = chunk * QN_VQ_CHUNK; first < end; first += QN_VQ_BAND) {
        const int64_t rows = qn_min_i64(QN_VQ_BAND, end - first);
        memset(d, 0, 2 * (size_t)(QN_VQ_BAND * f->stride) * sizeof *d);
        for (int64_t r = 0; r < rows && !x->diagonal; r++) {
            if (x->table) {
                look_up(f, x->table, first + r, d + r * f->stride);
                continue;
            }
            for (int64_t j = 0; j < f->k; j++) {
                d[r * f->stride + j] = f->q[(first + r) * f->stride + j] - f->w[(first + r) * f->stride + j];
            }
        }
        if (!x->diagonal) {
            f->set->add_product(product, f->stride, d, f->stride, rows, f->h, f->stride, f->k, f->stride);
        }
        for (int64_t r = 0; r < rows; r++) {
            const float scale = f->scales[first + r];
            const uint16_t *codes = f->codes + (first + r) * f->groups * f->books;
            for (int64_t j = 0; j < f->k; j++) {
                product[r * f->stride + j] *= scale;
                if (x->diagonal) {
                    product[r * f->stride + j] = scale * scale * f->h[j * f->stride + j];
                }
            }
            for (int64_t i = 0; i < f->groups * f->books; i++) {
                const int64_t g = i / f->books, b = i % f->books;
                float *to = sums + f->across_of[g] * cell_floats + (b * f->entries + codes[i]) * v;
                for (int64_t j = 0; j < v; j++) {
                    to[j] += product[r * f->stride + g * v + j];
                }
            }
        }
    }
}

/* qn_vq_gather_fn: the sums over all rows, for every cell. */
static void gather(void *user, const float *table, int diagonal, float *out)
{
    refit *x = user;
    const qn_vq_fit *f = x->fit;
    const int64_t line = f->across * qn_vq_cell_floats(f), chunks = qn_ceil_div(f->n, QN_VQ_CHUNK);
    x->table = table;
    x->diagonal = diagonal;
    qn_parallel_for(f->exec, chunks, chunk_task, x);
    memset(out, 0, (size_t)(f->down * line) * sizeof *out);
    for (int64_t c = 0; c < chunks; c++) {
        float *to = out + c * QN_VQ_CHUNK / f->cell_rows * line;
        for (int64_t i = 0; i < line; i++) {
            to[i] += x->partial[c * line + i];
        }
    }
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* size floats each: left (minus the gradient's half), scaled (by the diagonal), direction, image, diagonal. */
void qn_vq_solve(qn_vq_gather_fn sums, void *user, int steps, float *table, int64_t size, float *work)
{
    float *left = work, *scaled = work + size, *way = work + 2 * size, *image = work + 3 * size;
    float *diagonal = work + 4 * size;
    sums(user, NULL, 0, left);
    sums(user, NULL, 1, diagonal);
    for (int64_t i = 0; i < size; i++) {
        left[i] = diagonal[i] > 0 ? -left[i] : 0;
        diagonal[i] = diagonal[i] > 0 ? 1 / diagonal[i] : 0; /* nobody's entries stay */
        scaled[i] = way[i] = left[i] * diagonal[i];
    }
    double force = dot(left, scaled, size);
    const double enough = 1e-6 * force;
    for (int s = 0; s < steps && force > enough; s++) {
        sums(user, way, 0, image);
        const double curve = dot(way, image, size);
        if (!(curve > 0)) {
            break;
        }
        const float length = (float)(force / curve);
        for (int64_t i = 0; i < size; i++) {
            table[i] += length * way[i];
            left[i] -= length * image[i];
            scaled[i] = left[i] * diagonal[i];
        }
        const double last = force;
        force = dot(left, scaled, size);
        const float turn = (float)(force / last);
        for (int64_t i = 0; i < size; i++) {
            way[i] = scaled[i] + turn * way[i];
        }
    }
}

qn_status qn_vq_refit(qn_vq_fit *f, int steps, qn_error *error)
{
    const int64_t line = f->across * qn_vq_cell_floats(f), size = f->down * line;
    const int64_t chunks = qn_ceil_div(f->n, QN_VQ_CHUNK);
    refit x = {.fit = f};
    x.partial = qn_calloc(f->ctx, (size_t)(chunks * line) + 1, sizeof(float));
    x.scratch =
        qn_calloc(f->ctx, 2 * (size_t)(QN_VQ_BAND * f->stride) * (size_t)qn_exec_threads(f->exec), sizeof(float));
    float *work = qn_calloc(f->ctx, 5 * (size_t)size + 1, sizeof *work);
    const int failed = !x.partial || !x.scratch || !work;
    if (!failed) {
        qn_vq_solve(gather, &x, steps, f->table, size, work);
        qn_vq_decode(f);
    }
    qn_free(f->ctx, work);
    qn_free(f->ctx, x.scratch);
    qn_free(f->ctx, x.partial);
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for %d codebooks", f->books);
    return QN_OK;
}

/* ---- One factor for all scales ---- */

typedef struct rescale {
    const qn_vq_fit *fit;
    float *scratch;     /* BAND * stride floats a thread */
    double *both, *own; /* <w, q>_h and <q, q>_h of a band */
} rescale;

static void rescale_task(void *user, int64_t band, int32_t thread)
{
    const rescale *x = user;
    const qn_vq_fit *f = x->fit;
    const int64_t first = band * QN_VQ_BAND, rows = qn_min_i64(QN_VQ_BAND, f->n - first);
    const float *q = f->q + first * f->stride, *w = f->w + first * f->stride;
    float *product = x->scratch + thread * QN_VQ_BAND * f->stride;
    memset(product, 0, (size_t)(QN_VQ_BAND * f->stride) * sizeof *product);
    f->set->add_product(product, f->stride, q, f->stride, rows, f->h, f->stride, f->k, f->stride);
    x->both[band] = dot(product, w, rows * f->stride);
    x->own[band] = dot(product, q, rows * f->stride);
}

qn_status qn_vq_rescale(qn_vq_fit *f, qn_error *error)
{
    const int64_t bands = qn_ceil_div(f->n, QN_VQ_BAND);
    rescale x = {.fit = f};
    x.scratch = qn_calloc(f->ctx, (size_t)(QN_VQ_BAND * f->stride) * (size_t)qn_exec_threads(f->exec), sizeof(float));
    x.both = qn_calloc(f->ctx, 2 * (size_t)bands + 1, sizeof *x.both);
    const int failed = !x.scratch || !x.both;
    if (!failed) {
        double both = 0, own = 0;
        x.own = x.both + bands;
        qn_parallel_for(f->exec, bands, rescale_task, &x);
        for (int64_t b = 0; b < bands; b++) {
            both += x.both[b];
            own += x.own[b];
        }
        for (int64_t row = 0; both > 0 && own > 0 && row < f->n; row++) {
            f->scales[row] *= (float)(both / own);
        }
        qn_vq_decode(f);
    }
    qn_free(f->ctx, x.both);
    qn_free(f->ctx, x.scratch);
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)f->n,
               (long long)f->k);
    return QN_OK;
}
