#include "quant/vq_lattice.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "base/rng.h"
#include "format/format.h"
#include "format/lattice.h"
#include "ref/vq.h"

#define SCALE_1 1.03 /* root mean square of what is rounded to points: least error on normal numbers */
#define SCALE_2 0.92 /* the same for sums of two */

qn_status qn_vq_space_check(const qn_scheme *s, int64_t n, int64_t k, qn_error *error)
{
    QN_FAIL_IF(k % 64 || n % 16, error, QN_E_SHAPE, "%s packs codes of 16 rows by 64 columns, but it is %lld x %lld",
               s->name, (long long)n, (long long)k);
    QN_FAIL_IF(!qn_hadamard_base(k) || !qn_hadamard_base(n), error, QN_E_SHAPE,
               "%s needs a Hadamard transform of length %lld, and none is known", s->name,
               (long long)(qn_hadamard_base(k) ? n : k));
    return QN_OK;
}

/* ---- In ---- */

typedef struct turn_job {
    float *x;
    int64_t length, lines;       /* of each line; how many */
    int64_t step, line_step;     /* floats from one element, one line to the next */
    const float *before, *after; /* factors of the elements; NULL: none */
    int transposed;
    double *scratch; /* 2 * length a thread */
} turn_job;

static void turn_line(void *user, int64_t line, int32_t thread)
{
    const turn_job *job = user;
    double *values = job->scratch + 2 * job->length * thread;
    float *x = job->x + line * job->line_step;
    for (int64_t i = 0; i < job->length; i++) {
        values[i] = (double)x[i * job->step] * (job->before ? (double)job->before[i] : 1.0);
    }
    qn_hadamard(values, job->length, job->transposed, values + job->length);
    for (int64_t i = 0; i < job->length; i++) {
        x[i * job->step] = (float)(values[i] * (job->after ? (double)job->after[i] : 1.0));
    }
}

static qn_status turn_lines(qn_ctx *ctx, const qn_exec *exec, turn_job *job, qn_error *error)
{
    job->scratch = qn_calloc(ctx, 2 * (size_t)job->length * (size_t)qn_exec_threads(exec), sizeof *job->scratch);
    QN_FAIL_IF(!job->scratch, error, QN_E_MEMORY, "out of memory for transforms of length %lld",
               (long long)job->length);
    qn_parallel_for(exec, job->lines, turn_line, job);
    qn_free(ctx, job->scratch);
    return QN_OK;
}

static void set_signs(qn_rng *rng, float *signs, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        signs[i] = qn_rng_next(rng) >> 63 ? -1.0f : 1.0f;
    }
}

static void set_lattice(qn_vq_space *space)
{
    float *magnitudes = space->tables, *norms = magnitudes + 8 * 256, *odd = norms + 256;
    for (uint32_t a = 0; a < 256; a++) {
        float value[8], sum = 0;
        qn_e8p_magnitudes(a, value);
        for (int j = 0; j < 8; j++) {
            magnitudes[j * 256 + (int)a] = value[j];
            norms[a] += value[j] * value[j];
            sum += value[j];
        }
        odd[a] = (float)((int)sum % 2);
    }
    space->lattice = (qn_fit_lattice){magnitudes, norms, odd};
}

static float half_of(double x)
{
    const float value = (float)x;
    uint16_t stored;
    float back;
    qn_format_get_row(QN_F16)->encode(&value, 1, &stored);
    qn_format_get_row(QN_F16)->decode(&stored, 1, &back);
    return back;
}

static void set_scale(qn_vq_space *space, const qn_scheme *scheme)
{
    double sum = 0;
    for (int64_t i = 0; i < space->n * space->k; i++) {
        sum += (double)space->w[i] * (double)space->w[i];
    }
    const double rms = sqrt(sum / (double)(space->n * space->k));
    space->scale = half_of(rms / (scheme->vq.books > 1 ? SCALE_2 : SCALE_1));
    if (!(space->scale > 0) || !isfinite(space->scale)) {
        space->scale = 1;
    }
}

qn_status qn_vq_space_enter(qn_ctx *ctx, const qn_exec *exec, const qn_scheme *scheme, const float *w, int64_t n,
                            int64_t k, const float *squares, qn_vq_space *space, qn_error *error)
{
    qn_rng rng = {.state = 0x9e3779b9};
    const size_t size = (size_t)(n * k);
    *space = (qn_vq_space){.ctx = ctx, .exec = exec, .n = n, .k = k, .sizes = {1.0f, 1.0f}};
    space->w = qn_calloc(ctx, size, sizeof(float));
    space->squares = squares ? qn_calloc(ctx, (size_t)(k * k), sizeof(float)) : NULL;
    space->in_signs = qn_calloc(ctx, (size_t)k, sizeof(float));
    space->out_signs = qn_calloc(ctx, (size_t)n, sizeof(float));
    space->tables = qn_calloc(ctx, 10 * 256, sizeof(float));
    QN_FAIL_IF(!space->w || (squares && !space->squares) || !space->in_signs || !space->out_signs || !space->tables,
               error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)n, (long long)k);
    space->sizes[1] = (float)(1.0 / qn_vq_quip_resid_scale(QN_VQ_E8P12RVQ4B));
    set_signs(&rng, space->in_signs, k);
    set_signs(&rng, space->out_signs, n);
    set_lattice(space);
    memcpy(space->w, w, size * sizeof *w);
    turn_job rows = {
        .x = space->w, .length = k, .lines = n, .step = 1, .line_step = k, .before = space->in_signs, .transposed = 1};
    QN_TRY(turn_lines(ctx, exec, &rows, error));
    turn_job columns = {
        .x = space->w, .length = n, .lines = k, .step = k, .line_step = 1, .before = space->out_signs, .transposed = 1};
    QN_TRY(turn_lines(ctx, exec, &columns, error));
    if (squares) {
        memcpy(space->squares, squares, (size_t)(k * k) * sizeof *squares);
        turn_job across = {.x = space->squares,
                           .length = k,
                           .lines = k,
                           .step = 1,
                           .line_step = k,
                           .before = space->in_signs,
                           .transposed = 1};
        QN_TRY(turn_lines(ctx, exec, &across, error));
        turn_job down = across;
        down.step = k;
        down.line_step = 1;
        QN_TRY(turn_lines(ctx, exec, &down, error));
        for (int64_t i = 0; i < k; i++) { /* as even as it was */
            for (int64_t j = 0; j < i; j++) {
                space->squares[i * k + j] = space->squares[j * k + i];
            }
        }
    }
    set_scale(space, scheme);
    return QN_OK;
}

void qn_vq_space_free(qn_vq_space *space)
{
    void *const all[] = {space->w, space->squares, space->in_signs, space->out_signs, space->tables};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        qn_free(space->ctx, all[i]);
    }
}

void qn_vq_space_fill(const qn_vq_space *space, const qn_scheme *scheme, float *table)
{
    for (int32_t b = 0; b < scheme->vq.books; b++) {
        for (uint32_t code = 0; code < 65536; code++) {
            float *point = table + ((int64_t)b * 65536 + code) * 8;
            qn_e8p_decode(code, point);
            for (int j = 0; j < 8; j++) {
                point[j] *= space->sizes[b];
            }
        }
    }
}

/* ---- Out ---- */

/* The code of row, group g into the words of its part, which begins at column `first` of a row of Qidxs. */
static void put_code(uint64_t *words, int64_t k, int64_t columns, int64_t first, int64_t row, int64_t g, uint32_t code)
{
    const int64_t tile = row / 16 * (k / 64) + g / 8, word = (tile * 8 + row / 2 % 8) * 4 + g / 2 % 4;
    const int64_t i = row % 2 + 2 * (g % 2), part = k / 32;
    uint64_t *to = words + word / part * columns + first + word % part;
    *to |= (uint64_t)(code >> 8) << (8 * i);
    for (int j = 0; j < 8; j++) {
        *to |= (uint64_t)(code >> j & 1) << (32 + 4 * j + i);
    }
}

/* What rows are scaled by, and their errors. */
typedef struct scale_job {
    const qn_vq_space *space;
    const qn_fit_set *set;
    const float *w, *h; /* [n][k], [k][stride]: damped */
    float *q;           /* [n][stride]: without SV, with it afterwards */
    int64_t stride;
    uint16_t *sv;
    float *products; /* BAND * stride a thread */
    double *errors;  /* a band */
} scale_job;

static void scale_band(void *user, int64_t band, int32_t thread)
{
    const scale_job *job = user;
    const qn_vq_space *space = job->space;
    const int64_t k = space->k, stride = job->stride, first = band * QN_VQ_BAND;
    const int64_t rows = qn_min_i64(QN_VQ_BAND, space->n - first);
    float *product = job->products + thread * QN_VQ_BAND * stride;
    memset(product, 0, (size_t)(QN_VQ_BAND * stride) * sizeof *product);
    job->set->add_product(product, stride, job->q + first * stride, stride, rows, job->h, stride, k, stride);
    job->errors[band] = 0;
    for (int64_t r = 0; r < rows; r++) {
        float *q = job->q + (first + r) * stride;
        const float *w = job->w + (first + r) * k;
        double both = 0, own = 0;
        for (int64_t i = 0; i < k; i++) {
            both += (double)product[r * stride + i] * (double)w[i];
            own += (double)product[r * stride + i] * (double)q[i];
        }
        const double sign = (double)space->out_signs[first + r];
        double factor = own > 0 ? both / own : (double)space->scale * sign;
        if (!(factor * sign > 0)) {
            factor = (double)space->scale * sign; /* a row whose outputs are nothing to go by */
        }
        const float scale = half_of(factor);
        qn_format_get_row(QN_F16)->encode(&scale, 1, &job->sv[first + r]);
        for (int64_t i = 0; i < k; i++) {
            const double d = (double)q[i] * (double)scale - (double)w[i];
            job->errors[band] += d * d;
        }
    }
}

/* Hout Q Hin^T . SU of the codes. */
static qn_status leave(const qn_vq_space *space, const qn_vq_fit *fit, const int32_t *order, float *q, qn_error *error)
{
    for (int64_t row = 0; row < fit->n; row++) {
        for (int64_t i = 0; i < fit->k; i++) {
            const int64_t to = order[i / 8] * 8 + i % 8;
            q[row * fit->stride + to] = fit->q[row * fit->stride + i] / fit->scales[row];
        }
    }
    turn_job rows = {
        .x = q, .length = fit->k, .lines = fit->n, .step = 1, .line_step = fit->stride, .after = space->in_signs};
    QN_TRY(turn_lines(space->ctx, space->exec, &rows, error));
    turn_job columns = {.x = q, .length = fit->n, .lines = fit->k, .step = fit->stride, .line_step = 1};
    return turn_lines(space->ctx, space->exec, &columns, error);
}

/* SV, and the error of the weights with it. */
static qn_status set_sv(const qn_vq_space *space, const qn_vq_fit *fit, const int32_t *order, const float *w,
                        const float *squares, float damp, uint16_t *sv, double *rms, qn_error *error)
{
    qn_ctx *ctx = space->ctx;
    const int64_t n = space->n, k = space->k, stride = fit->stride, bands = qn_ceil_div(n, QN_VQ_BAND);
    const size_t threads = (size_t)qn_exec_threads(space->exec);
    float *h = qn_calloc(ctx, (size_t)(k * stride), sizeof *h);
    scale_job job = {.space = space, .set = fit->set, .w = w, .h = h, .stride = stride, .sv = sv};
    job.q = qn_calloc(ctx, (size_t)(n * stride), sizeof *job.q);
    job.products = qn_calloc(ctx, (size_t)(QN_VQ_BAND * stride) * threads, sizeof *job.products);
    job.errors = qn_calloc(ctx, (size_t)bands + 1, sizeof *job.errors);
    qn_status status = QN_OK;
    if (!h || !job.q || !job.products || !job.errors) {
        status =
            qn_error_set(error, QN_E_MEMORY, "out of memory for a weight of %lld x %lld", (long long)n, (long long)k);
    } else {
        status = leave(space, fit, order, job.q, error);
    }
    if (status == QN_OK) {
        double errors = 0, all = 0;
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = 0; j < k; j++) {
                h[i * stride + j] = (squares ? squares[i * k + j] : 0) + (i == j ? damp : 0);
            }
        }
        qn_parallel_for(space->exec, bands, scale_band, &job);
        for (int64_t b = 0; b < bands; b++) {
            errors += job.errors[b];
        }
        for (int64_t i = 0; i < n * k; i++) {
            all += (double)w[i] * (double)w[i];
        }
        *rms = all > 0 ? sqrt(errors / all) : 0;
    }
    qn_free(ctx, job.errors);
    qn_free(ctx, job.products);
    qn_free(ctx, job.q);
    qn_free(ctx, h);
    return status;
}

qn_status qn_vq_space_store(const qn_vq_space *space, const qn_scheme *scheme, const qn_vq_fit *fit,
                            const int32_t *order, const float *w, const float *squares, float damp, void *const *parts,
                            double *rms, qn_error *error)
{
    const int64_t k = space->k, columns = k / 32 * fit->books;
    const int64_t id = scheme->vq.codebook == QN_VQ_E8P12RVQ4B ? 17 : 7;
    const float one = 1;
    memset(parts[0], 0, (size_t)(space->n * columns) * sizeof(uint64_t));
    for (int64_t i = 0; i < fit->n * fit->groups * fit->books; i++) {
        const int64_t book = i % fit->books, g = order[i / fit->books % fit->groups];
        put_code(parts[0], k, columns, book * (k / 32), i / fit->books / fit->groups, g, fit->codes[i]);
    }
    qn_format_get_row(QN_F16)->encode(space->in_signs, k, parts[1]);
    memcpy(parts[3], &one, sizeof one);
    memcpy(parts[4], &id, sizeof id);
    return set_sv(space, fit, order, w, squares, damp, parts[2], rms, error);
}
