/* qn_checkpoint_verify: reads all data once. Weights are judged in parallel,
 * findings are collected and reported in file order by the calling thread, so
 * that the report does not depend on threads. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include <quern/exec.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/format.h"
#include "io/checkpoint_internal.h"
#include "io/kv_books.h"
#include "io/packed.h"

typedef struct count_at {
    int64_t count, first;
} count_at;

/* What was seen in one weight. */
typedef struct weight_report {
    count_at bad_codes;  /* element: the stored code itself is NaN or Inf */
    count_at bad_values; /* element: finite code, non-finite number */
    count_at zero_rows;
    count_at bad_scales, negative_scales, zero_scales; /* flat index */
} weight_report;

typedef struct verify_job {
    const qn_checkpoint *c;
    weight_report *reports;
    uint8_t *sum_state; /* per file tensor: 0 no checksum, 1 right, 2 wrong */
    float *rows;        /* per thread: row_elements floats */
    int64_t row_elements;
} verify_job;

static void note(count_at *c, int64_t index)
{
    if (c->count++ == 0) {
        c->first = index;
    }
}

static void judge_scale(const qn_format_row *codec, const void *scale, int64_t index, weight_report *r)
{
    float value;
    codec->decode(scale, 1, &value);
    if (!isfinite(value)) {
        note(&r->bad_scales, index);
    } else if (value < 0.0f) {
        note(&r->negative_scales, index);
    } else if (value == 0.0f) {
        note(&r->zero_scales, index);
    }
}

/* buffer: a row of floats. */
static void judge_scales(const qn_weight *w, float *buffer, weight_report *r)
{
    if (w->scale.shape.format == QN_FORMAT_NONE) {
        return;
    }
    const qn_format format = w->scale.shape.format == QN_U8 ? w->scheme->scale_format : w->scale.shape.format;
    const qn_format_row *codec = qn_format_get_row(format);
    const int64_t rows = w->blocks ? w->n : 1, count = qn_shape_elements(&w->scale.shape) / rows;
    const char *scales = w->scale.data;
    for (int64_t row = 0; row < rows; row++) {
        if (w->blocks) {
            qn_fp4_blocks_scales(w->blocks, qn_weight_row(w, row), w->k, (uint8_t *)buffer);
            scales = (const char *)buffer;
        }
        for (int64_t i = 0; i < count; i++) {
            judge_scale(codec, scales + i * codec->info.block_bytes, row * count + i, r);
        }
    }
}

/* Codebooks and scales of a vector-quantised weight; any code is one of an entry. */
static void judge_parts(const qn_weight *w, weight_report *r)
{
    for (int32_t p = 0; p < w->part_count; p++) {
        const qn_view *part = &w->parts[p].view;
        const qn_format format = part->shape.format;
        const qn_format_row *codec = qn_format_get_row(format);
        const int is_float = format == QN_F32 || format == QN_F16 || format == QN_BF16;
        for (int64_t i = 0; is_float && i < qn_shape_elements(&part->shape); i++) {
            float value;
            codec->decode((const char *)part->data + i * codec->info.block_bytes, 1, &value);
            if (!isfinite(value)) {
                note(&r->bad_scales, i);
            }
        }
    }
}

/* Codes of a quantised row, without their scales. */
static void judge_codes(const qn_weight *w, int64_t row, float *buffer, weight_report *r)
{
    qn_format_get_row(w->scheme->weight)->decode(qn_weight_row(w, row), w->k, buffer);
    for (int64_t k = 0; k < w->k; k++) {
        if (!isfinite(buffer[k])) {
            note(&r->bad_codes, row * w->k + k);
        }
    }
}

static void judge_weight(void *user, int64_t index, int32_t thread)
{
    verify_job *job = user;
    const qn_weight *w = &job->c->weights[index];
    weight_report *r = &job->reports[index];
    float *buffer = job->rows + thread * job->row_elements;
    const int quantised = w->scheme->scales != QN_SCALES_NONE;
    judge_scales(w, buffer, r);
    judge_parts(w, r);
    for (int64_t row = 0; row < w->n && !w->part_count; row++) {
        int64_t nonzero = 0;
        if (quantised && !w->blocks) { /* every code of those is a number */
            judge_codes(w, row, buffer, r);
        }
        qn_weight_decode_row(w, row, buffer);
        for (int64_t k = 0; k < w->k; k++) {
            if (!isfinite(buffer[k])) {
                note(&r->bad_values, row * w->k + k);
            }
            nonzero += buffer[k] != 0.0f;
        }
        if (!nonzero && w->ndim == 2) {
            note(&r->zero_rows, row);
        }
    }
}

static const char *stored_sum(const qn_checkpoint *c, const qn_file_tensor *t)
{
    if (!c->files[t->file].safetensors.metadata) {
        return NULL;
    }
    char key[QN_SAFETENSORS_MAX_NAME + sizeof QN_SAFETENSORS_SUM_PREFIX];
    snprintf(key, sizeof key, "%s%s", QN_SAFETENSORS_SUM_PREFIX, t->name);
    return qn_safetensors_metadata(&c->files[t->file].safetensors, key);
}

static void judge_sum(void *user, int64_t index, int32_t thread)
{
    verify_job *job = user;
    (void)thread;
    const qn_file_tensor *t = &job->c->tensors[index];
    const char *wanted = stored_sum(job->c, t);
    if (wanted) {
        const XXH128_hash_t hash = XXH3_128bits(t->view.data, (size_t)t->bytes);
        char found[33];
        qn_safetensors_sum_text(hash.high64, hash.low64, found);
        job->sum_state[index] = strcmp(found, wanted) == 0 ? 1 : 2;
    }
}

typedef struct sink {
    qn_finding_fn finding;
    void *user;
    int64_t errors;
} sink;

__attribute__((format(printf, 4, 5))) static void report(sink *s, int severity, const char *tensor, const char *format,
                                                         ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    s->errors += severity == 2;
    if (s->finding) {
        s->finding(s->user, severity, tensor, text);
    }
}

static void report_weight(sink *s, const qn_weight *w, const weight_report *r)
{
    const int64_t k = w->k;
    if (r->bad_codes.count) {
        report(s, 2, w->name, "%" PRId64 " stored codes are NaN or Inf, the first at [%" PRId64 ", %" PRId64 "]",
               r->bad_codes.count, r->bad_codes.first / k, r->bad_codes.first % k);
    }
    if (r->bad_scales.count) {
        report(s, 2, w->name, "%" PRId64 " scales are NaN or Inf, the first at %" PRId64, r->bad_scales.count,
               r->bad_scales.first);
    }
    if (r->negative_scales.count) {
        report(s, 2, w->name, "%" PRId64 " scales are negative, the first at %" PRId64, r->negative_scales.count,
               r->negative_scales.first);
    }
    if (r->zero_scales.count) {
        /* An 8-bit block scale may round to zero; a channel's never should. */
        const int severity = w->scheme->scales == QN_SCALES_GROUP ? 0 : 1;
        report(s, severity, w->name, "%" PRId64 " scales are zero, the first at %" PRId64, r->zero_scales.count,
               r->zero_scales.first);
    }
    if (r->bad_values.count && !r->bad_codes.count && !r->bad_scales.count) {
        report(s, 2, w->name, "%" PRId64 " weights are NaN or Inf, the first at [%" PRId64 ", %" PRId64 "]",
               r->bad_values.count, r->bad_values.first / k, r->bad_values.first % k);
    }
    if (r->zero_rows.count) {
        report(s, 0, w->name, "%" PRId64 " rows are all zero, the first is row %" PRId64, r->zero_rows.count,
               r->zero_rows.first);
    }
}

/* The packed file, when there is one: an error when it is damaged, a warning when it is only of no use. */
static qn_status verify_packed(const qn_checkpoint *c, const qn_exec *exec, sink *s)
{
    qn_error why = {QN_OK, ""};
    qn_packed *packed = NULL;
    qn_status status = qn_packed_open(c, qn_packed_path(c), 0, exec, &packed, &why);
    if (status == QN_OK && packed) {
        status = qn_packed_check(packed, exec, &why);
        if (status == QN_OK) {
            report(s, 0, "packed file", "%d weights, made from these files", qn_packed_count(packed));
        }
    }
    qn_packed_close(packed);
    if (status != QN_OK && status != QN_E_MEMORY) {
        report(s, status == QN_E_PACKED ? 1 : 2, "packed file", "%s", why.text);
    }
    return status == QN_E_MEMORY ? status : QN_OK;
}

/* Codebooks of KV schemes that lie beside the model: damaged ones, or another model's, are errors. */
static qn_status verify_kv_books(const qn_checkpoint *c, sink *s)
{
    const qn_hparams *h = qn_checkpoint_hparams(c);
    qn_kv_info info;
    for (int32_t i = 0; qn_kv_at(i, &info) == QN_OK; i++) {
        const qn_kv_scheme *scheme = qn_kv_find(info.name);
        if (!scheme->channels) {
            continue;
        }
        qn_error why = {QN_OK, ""};
        qn_kv_books books = {0};
        char name[40], *path = qn_kv_books_path(c->ctx, c, scheme);
        if (!path) {
            return QN_E_MEMORY;
        }
        qn_kv_books_name(scheme, name);
        const int there = access(path, F_OK) == 0, fits = h->head_dim % scheme->channels == 0;
        qn_status status = QN_OK;
        if (there && fits) {
            status = qn_kv_books_open(c->ctx, path, scheme, h, &books, &why);
            qn_kv_books_close(c->ctx, &books);
        }
        qn_free(c->ctx, path);
        if (status == QN_E_MEMORY) {
            return status;
        }
        if (there && !fits) {
            report(s, 2, name, "its vectors have %d channels, the heads of this model %d", scheme->channels,
                   h->head_dim);
        } else if (status != QN_OK) {
            report(s, 2, name, "%s", why.text);
        } else if (there) {
            report(s, 0, name, "codebooks of KV scheme %s, right for this model", info.name);
        }
    }
    return QN_OK;
}

qn_status qn_checkpoint_verify(const qn_checkpoint *c, const qn_exec *exec, qn_finding_fn finding, void *user,
                               int64_t *errors, qn_error *error)
{
    QN_FAIL_IF(!c || !errors, error, QN_E_ARGUMENT, "qn_checkpoint_verify: checkpoint or errors is NULL");
    *errors = 0;
    for (int32_t i = 0; i < c->file_count; i++) {
        QN_TRY(qn_file_map_check(&c->files[i].map, c->files[i].path, error));
    }
    verify_job job = {.c = c, .row_elements = 1};
    for (int32_t i = 0; i < c->weight_count; i++) {
        job.row_elements = qn_max_i64(job.row_elements, c->weights[i].k);
    }
    size_t floats = 0;
    const int too_large = qn_mul_size((size_t)job.row_elements, (size_t)qn_exec_threads(exec), &floats);
    job.reports = qn_calloc(c->ctx, (size_t)c->weight_count + 1, sizeof *job.reports);
    job.sum_state = qn_calloc(c->ctx, (size_t)c->tensor_count + 1, 1);
    job.rows = too_large ? NULL : qn_calloc(c->ctx, floats, sizeof *job.rows);
    qn_status status = QN_OK;
    if (!job.reports || !job.sum_state || !job.rows) {
        status = qn_error_set(error, QN_E_MEMORY, "out of memory for verifying %s", c->path);
    } else {
        sink s = {.finding = finding, .user = user};
        qn_parallel_for(exec, c->tensor_count, judge_sum, &job);
        qn_parallel_for(exec, c->weight_count, judge_weight, &job);
        for (int32_t i = 0; i < c->tensor_count; i++) {
            if (job.sum_state[i] == 2) {
                report(&s, 2, c->tensors[i].name, "the data does not have the checksum that its file gives");
            }
        }
        for (int32_t i = 0; i < c->weight_count; i++) {
            report_weight(&s, &c->weights[i], &job.reports[i]);
        }
        if (verify_kv_books(c, &s) != QN_OK) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory for verifying the codebooks of %s", c->path);
        } else if (verify_packed(c, exec, &s) != QN_OK) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory for verifying %s", c->packed_path);
        }
        *errors = s.errors;
    }
    for (int32_t i = 0; i < c->file_count && status == QN_OK; i++) {
        status = qn_file_map_check(&c->files[i].map, c->files[i].path, error);
    }
    qn_free(c->ctx, job.reports);
    qn_free(c->ctx, job.sum_state);
    qn_free(c->ctx, job.rows);
    return status;
}
