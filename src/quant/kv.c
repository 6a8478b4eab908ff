/* Codebooks of coded KV caches (docs/kv-cache.md).
 *
 * The model runs the calibration text with plain caches; an observer of its steps
 * keeps each layer's keys, before RoPE, and values. Every group of channels of a head
 * then gets its codebook by weighted k-means: a vector weighs what an error in it would
 * do to the outputs of attention, as far as that can be told without gradients. One group is
 * one task, so that the result does not depend on the threads. */
#include "quant/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/fit.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/commit.h"
#include "base/error.h"
#include "format/format.h"
#include "io/kv_books.h"
#include "model/model.h"
#include "quant/calibrate.h"
#include "quant/folder.h"
#include "quant/kmeans.h"
#include "ref/slots.h"

#define SEQUENCE 512 /* tokens evaluated together, each sequence from an empty context */
#define MAX_TOKENS 16384
#define ITERATIONS 40
#define GAIN 1e-4
#define SEED 2405

/* What was seen of the keys or the values of a layer. */
typedef struct seen {
    float *rows;    /* [tokens][heads * size] */
    float *weights; /* [heads][tokens] */
} seen;

typedef struct collect {
    qn_ctx *ctx;
    const qn_exec *exec;
    qn_hparams h;
    int64_t tokens, first, width; /* first: token of the sequence that runs */
    seen *layers;                 /* [layers][keys, values] */
} collect;

/* ---- Weights ---- */

typedef struct weigh_job {
    collect *c;
    const qn_args *args;
    int32_t layer;
} weigh_job;

/* One key head of a layer: sum over the queries that see a token of the square of its weight in the softmax. */
static void weigh_head(void *user, int64_t head, int32_t thread)
{
    (void)thread;
    const weigh_job *job = user;
    const collect *c = job->c;
    const qn_view *q = &job->args->in[QN_ATT_Q], *k = &job->args->in[QN_ATT_K];
    const int64_t d = c->h.head_dim, shared = c->h.heads / c->h.kv_heads, queries = q->shape.dims[0];
    const float scale = c->h.rope_magnitude * c->h.rope_magnitude / sqrtf((float)d);
    float *const keys = c->layers[2 * job->layer].weights + head * c->tokens + c->first;
    float *const values = c->layers[2 * job->layer + 1].weights + head * c->tokens + c->first;
    float p[SEQUENCE];
    for (int64_t t = 0; t < queries; t++) {
        for (int64_t h = head * shared; h < (head + 1) * shared; h++) {
            const float *const query =
                (const float *)(const void *)((const char *)q->data + t * q->strides[0] + h * d * 4);
            float most = -INFINITY, sum = 0.0f;
            for (int64_t s = 0; s <= t; s++) {
                const float *const key =
                    (const float *)(const void *)((const char *)k->data + s * k->strides[0] + head * d * 4);
                float parts[4] = {0, 0, 0, 0};
                int64_t i = 0;
                for (; i + 4 <= d; i += 4) {
                    for (int j = 0; j < 4; j++) {
                        parts[j] += query[i + j] * key[i + j];
                    }
                }
                for (; i < d; i++) {
                    parts[0] += query[i] * key[i];
                }
                p[s] = (parts[0] + parts[1] + parts[2] + parts[3]) * scale;
                most = p[s] > most ? p[s] : most;
            }
            for (int64_t s = 0; s <= t; s++) {
                p[s] = expf(p[s] - most);
                sum += p[s];
            }
            for (int64_t s = 0; s <= t; s++) {
                const float w = p[s] / sum;
                values[s] += w * w;
                keys[s] += w * w * (1.0f - w) * (1.0f - w);
            }
        }
    }
}

/* ---- The run ---- */

static void keep_rows(const collect *c, const qn_view *view, int64_t from, float *to)
{
    for (int64_t m = from; m < view->shape.dims[0]; m++) {
        memcpy(to + (m - from) * c->width, (const char *)view->data + m * view->strides[0],
               (size_t)c->width * sizeof(float));
    }
}

static qn_status observe(void *user, const qn_step *step, const qn_args *args, qn_error *error)
{
    (void)error;
    collect *c = user;
    if (step->op == QN_OP_ROPE && step->out[0].place == QN_PLACE_NEW_KEYS) {
        keep_rows(c, &args->in[QN_ACT_X], 0, c->layers[2 * step->layer].rows + c->first * c->width);
    }
    if (step->op == QN_OP_ATTENTION) {
        keep_rows(c, &args->in[QN_ATT_V], 0, c->layers[2 * step->layer + 1].rows + c->first * c->width);
        weigh_job job = {c, args, step->layer};
        qn_parallel_for(c->exec, c->h.kv_heads, weigh_head, &job);
    }
    return QN_OK;
}

static qn_status run_text(collect *c, qn_model *model, const int32_t *ids, qn_error *error)
{
    const int32_t most = (int32_t)qn_min_i64(SEQUENCE, c->h.context_length);
    qn_session *session = NULL;
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = most;
    options.batch = most;
    options.exec = *c->exec;
    qn_status status = qn_session_create(model, &options, &session, error);
    for (c->first = 0; c->first < c->tokens && status == QN_OK; c->first += most) {
        status = qn_session_truncate(session, 0, error);
        if (status == QN_OK) {
            status = qn_session_eval(session, ids + c->first, (int32_t)qn_min_i64(most, c->tokens - c->first), 0, NULL,
                                     error);
        }
    }
    qn_session_destroy(session);
    return status;
}

static void collect_free(collect *c)
{
    for (int32_t i = 0; c->layers && i < 2 * c->h.layers; i++) {
        qn_free(c->ctx, c->layers[i].rows);
        qn_free(c->ctx, c->layers[i].weights);
    }
    qn_free(c->ctx, c->layers);
    c->layers = NULL;
}

static qn_status collect_init(collect *c, qn_error *error)
{
    size_t floats, bytes;
    int failed =
        qn_mul_size((size_t)c->tokens, (size_t)c->width, &floats) || qn_mul_size(floats, sizeof(float), &bytes);
    c->layers = qn_calloc(c->ctx, 2 * (size_t)c->h.layers, sizeof *c->layers);
    failed = failed || !c->layers;
    for (int32_t i = 0; i < 2 * c->h.layers && !failed; i++) {
        c->layers[i].rows = qn_alloc(c->ctx, bytes);
        c->layers[i].weights = qn_calloc(c->ctx, (size_t)c->tokens * (size_t)c->h.kv_heads, sizeof(float));
        failed = !c->layers[i].rows || !c->layers[i].weights;
    }
    QN_FAIL_IF(failed, error, QN_E_MEMORY, "out of memory for the keys and values of %lld tokens",
               (long long)c->tokens);
    return QN_OK;
}

/* Keys and values of the model on the text. */
static qn_status collect_run(collect *c, const char *path, const char *calibration, qn_error *error)
{
    qn_model *model = NULL;
    qn_model_options options;
    qn_model_options_init(&options);
    options.kv = "f32";
    options.exec = *c->exec;
    int32_t *ids = qn_calloc(c->ctx, MAX_TOKENS, sizeof *ids);
    size_t count = 0;
    qn_status status = ids ? qn_model_open(c->ctx, path, &options, &model, error)
                           : qn_error_set(error, QN_E_MEMORY, "out of memory for the calibration text");
    if (status == QN_OK) {
        status = qn_calibration_encode(calibration, model, ids, MAX_TOKENS, &count, error);
    }
    if (status == QN_OK) {
        c->h = *qn_checkpoint_hparams(model->checkpoint);
        c->width = (int64_t)c->h.kv_heads * c->h.head_dim;
        c->tokens = (int64_t)count;
        status = collect_init(c, error);
    }
    if (status == QN_OK) {
        qn_model_set_observer(model, observe, c);
        status = run_text(c, model, ids, error);
    }
    qn_model_close(model);
    qn_free(c->ctx, ids);
    return status;
}

/* ---- Fitting ---- */

typedef struct fit_job {
    const collect *c;
    const qn_kv_scheme *scheme;
    const qn_fit_set *set;
    int32_t layer;
    int64_t groups;  /* of a head */
    uint16_t *books; /* of the layer: keys, values */
    size_t book;     /* elements of one group's codebook */
    double *errors;  /* a task: weighted squares of what is left, and of all */
    qn_status *statuses;
    qn_error *why; /* a task */
} fit_job;

static double squares_of(const qn_kmeans_job *k)
{
    double sum = 0.0;
    for (int64_t r = 0; r < k->rows; r++) {
        for (int32_t j = 0; j < k->vector; j++) {
            const double v = (double)k->x[r * k->stride + j];
            sum += v * v * (k->row_weights ? (double)k->row_weights[r] : 1.0);
        }
    }
    return sum;
}

static void fit_task(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    const fit_job *job = user;
    const collect *c = job->c;
    const int64_t heads = c->h.kv_heads, values = index / (heads * job->groups), head = index / job->groups % heads;
    const seen *s = &c->layers[2 * job->layer + values];
    const int32_t v = job->scheme->channels, entries = 1 << job->scheme->bits;
    const qn_kmeans_job k = {.x = s->rows + head * c->h.head_dim + index % job->groups * v,
                             .rows = c->tokens,
                             .groups = 1,
                             .stride = c->width,
                             .vector = v,
                             .entries = entries,
                             .row_weights = s->weights + head * c->tokens,
                             .iterations = ITERATIONS,
                             .gain = GAIN,
                             .seed = SEED + (uint64_t)index + ((uint64_t)job->layer << 32)};
    float *const centroids = qn_alloc(c->ctx, job->book * sizeof(float));
    qn_status *const status = &job->statuses[index];
    *status = centroids
                  ? qn_kmeans(c->ctx, job->set, &k, NULL, centroids, NULL, &job->errors[2 * index], &job->why[index])
                  : QN_E_MEMORY;
    job->errors[2 * index + 1] = squares_of(&k);
    for (size_t i = 0; *status == QN_OK && i < job->book; i++) {
        if (!(fabsf(centroids[i]) <= 65504.0f)) {
            *status = qn_error_set(&job->why[index], QN_E_FILE, "not finite, or too large for f16");
        }
    }
    if (*status == QN_OK) {
        qn_format_get_row(QN_F16)->encode(centroids, (int64_t)job->book, job->books + (size_t)index * job->book);
    }
    qn_free(c->ctx, centroids);
}

static qn_status fit_layer(fit_job *job, const qn_kv_books_options *options, double *rms, qn_error *error)
{
    const int64_t tasks = 2 * job->c->h.kv_heads * job->groups;
    double left = 0.0, all = 0.0;
    qn_parallel_for(&options->exec, tasks, fit_task, job);
    for (int64_t i = 0; i < tasks; i++) {
        QN_FAIL_IF(job->statuses[i] == QN_E_MEMORY, error, QN_E_MEMORY, "out of memory fitting codebooks");
        QN_FAIL_IF(job->statuses[i] != QN_OK, error, job->statuses[i], "%s of layer %d: %s",
                   i < tasks / 2 ? "keys" : "values", job->layer, job->why[i].text);
        left += job->errors[2 * i];
        all += job->errors[2 * i + 1];
    }
    *rms = all > 0.0 ? sqrt(left / all) : 0.0;
    return QN_OK;
}

static qn_status report(const fit_job *job, const qn_kv_books_options *options, double rms, qn_error *error)
{
    const qn_hparams *h = &job->c->h;
    const uint64_t plain = 2 * qn_kv_row_bytes(qn_kv_find("f32"), h->kv_heads, h->head_dim);
    char name[48];
    snprintf(name, sizeof name, "model.layers.%d.self_attn", job->layer);
    const qn_quantize_progress p = {.index = job->layer + 1,
                                    .total = h->layers,
                                    .name = name,
                                    .shape = qn_kv_book_shape(job->scheme, h->kv_heads, h->head_dim),
                                    .from = qn_kv_find("f32")->info.name,
                                    .to = job->scheme->info.name,
                                    .bytes_before = plain,
                                    .bytes_after = 2 * qn_kv_row_bytes(job->scheme, h->kv_heads, h->head_dim),
                                    .rms_error = rms};
    QN_FAIL_IF(options->progress && options->progress(options->progress_user, &p) != 0, error, QN_E_CANCELLED,
               "cancelled while fitting codebooks; nothing was written");
    return QN_OK;
}

/* Books of all layers, and the file. */
static qn_status fit_all(const collect *c, const qn_kv_scheme *scheme, const char *path,
                         const qn_kv_books_options *options, qn_error *error)
{
    const qn_shape shape = qn_kv_book_shape(scheme, c->h.kv_heads, c->h.head_dim);
    const size_t layer = 2 * (size_t)qn_shape_elements(&shape), tasks = 2 * (size_t)(shape.dims[0] * shape.dims[1]);
    uint16_t *books = qn_calloc(c->ctx, layer * (size_t)c->h.layers, sizeof *books);
    fit_job job = {.c = c,
                   .scheme = scheme,
                   .set = qn_cpu_fit(c->ctx),
                   .groups = shape.dims[1],
                   .book = (size_t)(shape.dims[2] * shape.dims[3]),
                   .errors = qn_calloc(c->ctx, 2 * tasks, sizeof(double)),
                   .statuses = qn_calloc(c->ctx, tasks, sizeof(qn_status)),
                   .why = qn_calloc(c->ctx, tasks, sizeof(qn_error))};
    qn_status status = books && job.errors && job.statuses && job.why
                           ? QN_OK
                           : qn_error_set(error, QN_E_MEMORY, "out of memory for codebooks");
    for (job.layer = 0; job.layer < c->h.layers && status == QN_OK; job.layer++) {
        double rms = 0.0;
        job.books = books + (size_t)job.layer * layer;
        status = fit_layer(&job, options, &rms, error);
        if (status == QN_OK) {
            status = report(&job, options, rms, error);
        }
    }
    if (status == QN_OK) {
        status = qn_kv_books_write(c->ctx, path, scheme, &c->h, books, error);
    }
    qn_free(c->ctx, job.why);
    qn_free(c->ctx, job.statuses);
    qn_free(c->ctx, job.errors);
    qn_free(c->ctx, books);
    return status;
}

/* ---- Calls ---- */

void qn_kv_books_options_init(qn_kv_books_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

qn_status qn_kv_books_check(const char *scheme, qn_error *error)
{
    const qn_kv_scheme *found = scheme ? qn_kv_find(scheme) : NULL;
    QN_FAIL_IF(!found || !found->info.codebooks, error, QN_E_ARGUMENT, "'%s' is no KV scheme with codebooks",
               scheme ? scheme : "(null)");
    return QN_OK;
}

/* Where opening the model finds its codebooks; also refuses what can be refused before anything runs. */
static qn_status find_place(qn_ctx *ctx, const char *model, const qn_kv_scheme *scheme, char **path, qn_error *error)
{
    qn_checkpoint *checkpoint = NULL;
    QN_TRY(qn_checkpoint_open(ctx, model, &checkpoint, error));
    const int32_t size = qn_checkpoint_hparams(checkpoint)->head_dim;
    qn_status status = QN_OK;
    if (size % scheme->channels != 0) {
        status = qn_error_set(error, QN_E_UNSUPPORTED,
                              "KV scheme %s codes %d channels together, the heads of this model have %d",
                              scheme->info.name, scheme->channels, size);
    } else {
        *path = qn_kv_books_path(ctx, checkpoint, scheme);
        status = *path ? QN_OK : qn_error_set(error, QN_E_MEMORY, "out of memory for a path");
    }
    qn_checkpoint_close(checkpoint);
    return status;
}

qn_status qn_make_kv_books(qn_ctx *ctx, const char *model, const char *path, const qn_kv_books_options *options,
                           qn_kv_books_result *result, qn_error *error)
{
    const uint64_t start = qn_clock_ns();
    QN_FAIL_IF(!ctx || !model || !options, error, QN_E_ARGUMENT,
               "qn_make_kv_books: ctx, model and options must not be NULL");
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_make_kv_books: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_TRY(qn_kv_books_check(options->scheme, error));
    const qn_kv_scheme *scheme = qn_kv_find(options->scheme);
    char *place = NULL;
    QN_TRY(find_place(ctx, model, scheme, &place, error));
    path = path ? path : place;
    collect c = {.ctx = ctx, .exec = &options->exec};
    qn_kv_books made = {0};
    qn_commit *commit = NULL;
    qn_status status = qn_commit_begin(ctx, path, 0, options->force, &commit, error);
    if (status == QN_OK) {
        status = collect_run(&c, model, options->calibration, error);
    }
    if (status == QN_OK) {
        status = fit_all(&c, scheme, qn_commit_path(commit), options, error);
    }
    if (status == QN_OK) {
        status = qn_commit_finish(commit, error);
    }
    if (status == QN_OK && result) {
        status = qn_kv_books_open(ctx, path, scheme, &c.h, &made, error);
        const size_t layers = 2 * (size_t)c.h.layers;
        *result = (qn_kv_books_result){
            .layers = c.h.layers,
            .tokens = (int32_t)c.tokens,
            .bytes = made.map.size,
            .bytes_per_token_before = layers * qn_kv_row_bytes(qn_kv_find("f32"), c.h.kv_heads, c.h.head_dim),
            .bytes_per_token_after = layers * qn_kv_row_bytes(scheme, c.h.kv_heads, c.h.head_dim),
            .seconds = (double)(qn_clock_ns() - start) * 1e-9};
        qn_kv_books_close(ctx, &made);
    }
    qn_commit_destroy(commit);
    collect_free(&c);
    qn_free(ctx, place);
    return status;
}

qn_status qn_kv_books_of_folder(qn_ctx *ctx, const char *input, const char *folder, const qn_quantize_options *options,
                                qn_error *error)
{
    qn_kv_books_options o;
    qn_kv_books_options_init(&o);
    o.scheme = options->kv;
    o.calibration = options->calibration;
    o.exec = options->exec;
    o.progress = options->progress;
    o.progress_user = options->progress_user;
    char name[40];
    qn_kv_books_name(qn_kv_find(options->kv), name);
    char *path = qn_folder_path(ctx, folder, name);
    QN_FAIL_IF(!path, error, QN_E_MEMORY, "out of memory for a path");
    const qn_status status = qn_make_kv_books(ctx, input, path, &o, NULL, error);
    qn_free(ctx, path);
    return status;
}
