/* Making weights ready: what each kernel reads, in as little memory and time as
 * there can be.
 *
 * Weights that a kernel wants packed come from the packed file when it fits,
 * else they are packed here, one weight a task on all threads, the largest
 * first. A weight's pages of the source file are given back as soon as it is
 * packed, so that source and blob are not both in memory; what later needs them
 * (rows of a tied embedding) reads them from the file again. Copies that only
 * packing needs (rows put in order or together, column sums) live in a scratch a
 * thread.
 * Work goes in waves, so that the weights being packed at one time, of which
 * there are two copies, never make more than the blobs alone take at the end. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "model/build.h"
#include "plan/plan.h"

#define SLACK ((size_t)16 << 20) /* bytes that may be in memory twice at the very end */

/* A weight to make ready. */
typedef struct weight_job {
    qn_step *step;
    size_t source_bytes; /* of the file, and of its copy */
    size_t blob_bytes;   /* 0: the kernel reads the weight as it is stored */
    char *blob;
    size_t rows_bytes;  /* of a copy of the rows, in logical order or of two weights; 0: they are read in place */
    size_t scale_bytes; /* of a copy of the scales, of two weights or apart from their blocks */
    size_t sums_bytes;  /* of column sums; 0: not needed */
    char *rows, *scales, *sums; /* where they stay when nothing is packed; NULL: in the scratch */
    qn_status status;
    qn_error error;
} weight_job;

typedef struct pack_work {
    qn_model *model;
    weight_job *jobs;
    int32_t count, first; /* first: of this wave */
    char *scratch;
    size_t scratch_bytes; /* a thread, in this wave */
} pack_work;

static qn_status out_of_memory(qn_error *error)
{
    QN_FAIL(error, QN_E_MEMORY, "out of memory for the packed weights");
}

int32_t qn_weight_sums_slot(const qn_step *step)
{
    const int32_t slot = qn_op_in_slot(step->op, "azp_adj");
    return slot >= 0 && step->in[slot].place == QN_PLACE_CONST ? slot : -1;
}

/* ---- One weight ---- */

static size_t rows_of(const qn_weight *weight)
{
    size_t bytes = 0;
    if (weight->part_count) { /* rows are not what codes lie in */
        return qn_shape_bytes(&weight->data.shape, &bytes, NULL) == QN_OK ? bytes : 0;
    }
    return (size_t)weight->n * (size_t)weight->data.strides[0];
}

static size_t scales_of(const qn_weight *weight)
{
    size_t bytes = 0;
    return weight->scale.shape.format && qn_shape_bytes(&weight->scale.shape, &bytes, NULL) == QN_OK ? bytes : 0;
}

static void release(const qn_checkpoint *checkpoint, const qn_weight *weight)
{
    if (weight->blocks) {
        qn_checkpoint_release(checkpoint, weight->data.data, (size_t)weight->n * qn_weight_row_bytes(weight));
        return;
    }
    qn_checkpoint_release(checkpoint, weight->data.data, rows_of(weight));
    qn_checkpoint_release(checkpoint, weight->scale.data, scales_of(weight));
}

void qn_weight_sum_columns(const qn_weight *weight, const qn_view *rows, int32_t *sums)
{
    const int32_t times = weight->scheme->act_static ? weight->input_zero_point : 1;
    const int64_t n = rows->shape.dims[0], k = rows->shape.dims[1];
    for (int64_t i = 0; i < n; i++) {
        const int8_t *row = (const int8_t *)rows->data + i * rows->strides[0];
        int32_t sum = 0;
        for (int64_t j = 0; j < k; j++) {
            sum += row[j];
        }
        sums[i] = times * sum;
    }
}

static qn_status pack(const weight_job *job, qn_error *error)
{
    qn_args args;
    memset(&args, 0, sizeof args);
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (job->step->in[i].place == QN_PLACE_CONST) {
            args.in[i] = job->step->in[i].view;
        }
    }
    return qn_pack(job->step->plan, &args, job->blob, job->blob_bytes, error);
}

static void job_task(void *user, int64_t index, int32_t thread)
{
    const pack_work *work = user;
    weight_job *job = &work->jobs[work->first + index];
    qn_step *step = job->step;
    const qn_weight *weight = step->weight;
    const qn_checkpoint *checkpoint = work->model->checkpoint;
    char *scratch = work->scratch ? work->scratch + (size_t)thread * work->scratch_bytes : NULL;
    const qn_weight *second = step->second;
    const int32_t slot = qn_op_in_slot(step->op, "b");
    qn_view *b = slot >= 0 ? &step->in[slot].view : NULL; /* NULL: nothing is ordered or summed */
    if (job->rows_bytes) {
        char *rows = job->rows ? job->rows : scratch, *end = qn_weight_copy_rows(weight, rows);
        if (second) {
            (void)qn_weight_copy_rows(second, end);
        }
        b->data = rows;
        scratch += job->rows_bytes;
    }
    if (job->scale_bytes) {
        char *scales = job->scales ? job->scales : scratch, *end = qn_weight_copy_scales(weight, scales);
        if (second) {
            (void)qn_weight_copy_scales(second, end);
        }
        step->in[qn_build_scale_slot(step->op)].view.data = scales;
        scratch += job->scale_bytes;
    }
    if (job->sums_bytes) {
        int32_t *sums = (int32_t *)(void *)(job->sums ? job->sums : scratch);
        qn_weight_sum_columns(weight, b, sums);
        step->in[qn_weight_sums_slot(step)].view.data = sums;
    }
    if (job->blob_bytes) {
        job->status = pack(job, &job->error);
    }
    if (job->blob_bytes || job->rows_bytes) {
        release(checkpoint, weight);
        if (second) {
            release(checkpoint, second);
        }
    }
}

/* The step reads its blob from now on; what the blob was made from may be gone. */
static void use_blob(qn_step *step, const void *blob)
{
    const qn_op_info *info = qn_op_get_info(step->op);
    step->packed = blob;
    for (int32_t i = 0; i < info->in_count; i++) {
        if (info->in[i].weight) {
            step->in[i].view.data = NULL;
        }
    }
}

/* ---- All weights ---- */

static int by_size(const void *a, const void *b)
{
    const weight_job *x = a, *y = b;
    const size_t i = x->source_bytes, j = y->source_bytes;
    if (i != j) {
        return i < j ? 1 : -1;
    }
    return (x->step > y->step) - (x->step < y->step);
}

/* The steps with something to do; counts what kernels want packed. */
static void find_jobs(qn_model *model, weight_job *jobs, int32_t *count)
{
    *count = 0;
    for (size_t i = 0; i < model->step_count; i++) {
        qn_step *step = &model->steps[i];
        if (!step->weight) {
            continue;
        }
        weight_job job = {.step = step, .blob_bytes = qn_plan_pack_bytes(step->plan)};
        const qn_weight *weight = step->weight, *second = step->second;
        const size_t rows = rows_of(weight) + (second ? rows_of(second) : 0);
        job.source_bytes = rows;
        if (qn_weight_is_scattered(weight) || second) {
            job.rows_bytes = qn_align_up(rows, QN_ALIGN);
            job.source_bytes += rows;
        }
        if ((weight->blocks && scales_of(weight)) || second) {
            job.scale_bytes = qn_align_up(scales_of(weight) + (second ? scales_of(second) : 0), QN_ALIGN);
        }
        if (qn_weight_sums_slot(step) >= 0) {
            const size_t columns = (size_t)step->in[qn_weight_sums_slot(step)].shape.dims[0];
            job.sums_bytes = qn_align_up(columns * sizeof(int32_t), QN_ALIGN);
        }
        if (job.blob_bytes) {
            model->packing.weights++;
            model->packing.bytes += job.blob_bytes;
        }
        if (job.blob_bytes || job.rows_bytes || job.sums_bytes) {
            jobs[(*count)++] = job;
        }
    }
}

/* Take blobs that fit from the packed file; drops their jobs. */
static void take_from_file(qn_model *model, const char *path, const qn_exec *exec, weight_job *jobs, int32_t *count)
{
    qn_error why = {QN_OK, ""};
    qn_packed *file = NULL;
    qn_status status = qn_packed_open(model->checkpoint, path, 1, exec, &file, &why);
    if (status == QN_OK && file && (status = qn_packed_check(file, exec, &why)) != QN_OK) {
        qn_error_prefix(&why, status, "%s", path);
    }
    if (status != QN_OK) {
        qn_log(model->ctx, QN_LOG_WARN, "the packed file is not used, weights are packed in memory: %s", why.text);
    }
    int32_t kept = 0, refused = 0;
    for (int32_t i = 0; i < *count; i++) {
        weight_job *job = &jobs[i];
        const qn_packed_blob *blob = NULL;
        if (file && status == QN_OK && job->blob_bytes) {
            blob = qn_packed_find(file, job->step->label);
            if (!blob || blob->bytes != job->blob_bytes ||
                qn_plan_check_blob(job->step->plan, blob->data, &why) != QN_OK) {
                blob = NULL;
                refused++;
            }
        }
        if (blob) {
            use_blob(job->step, blob->data);
            model->packing.from_file++;
        } else {
            jobs[kept++] = *job;
        }
    }
    *count = kept;
    if (refused) {
        qn_log(model->ctx, QN_LOG_WARN,
               "%d of %d weights are not in %s as the kernels chosen here read them, and are "
               "packed in memory",
               refused, model->packing.weights, path);
    }
    if (model->packing.from_file) {
        model->packed = file;
        model->packing.file = path;
    } else {
        qn_packed_close(file);
    }
}

/* Memory for what stays. */
static qn_status prepare(pack_work *work, qn_error *error)
{
    size_t total = 0;
    for (int32_t i = 0; i < work->count; i++) {
        const weight_job *job = &work->jobs[i];
        size_t own = job->blob_bytes ? job->blob_bytes : job->rows_bytes + job->scale_bytes + job->sums_bytes;
        if (own > SIZE_MAX - QN_ALIGN || qn_add_size(total, qn_align_up(own, QN_ALIGN), &total)) {
            return out_of_memory(error);
        }
    }
    char *memory = total ? qn_build_own(work->model, total) : NULL;
    if (total && !memory) {
        return out_of_memory(error);
    }
    qn_want_large_pages(memory, total);
    for (int32_t i = 0; i < work->count; i++) {
        weight_job *job = &work->jobs[i];
        if (job->blob_bytes) {
            job->blob = memory;
            memory += qn_align_up(job->blob_bytes, QN_ALIGN);
        } else {
            job->rows = job->rows_bytes ? memory : NULL;
            memory += job->rows_bytes;
            job->scales = job->scale_bytes ? memory : NULL;
            memory += job->scale_bytes;
            job->sums = job->sums_bytes ? memory : NULL;
            memory += job->sums_bytes;
        }
    }
    return QN_OK;
}

static size_t made_bytes(const weight_job *job)
{
    return job->blob_bytes ? job->blob_bytes : job->rows_bytes + job->scale_bytes;
}

/* Jobs of the next wave, at least one: with what is done and what is being read they fit what all take at the end. */
static int32_t wave_of(const pack_work *work, size_t done, size_t total, int32_t threads)
{
    size_t made = done, reading = 0;
    int32_t count = 0;
    while (work->first + count < work->count) {
        const weight_job *job = &work->jobs[work->first + count];
        made += made_bytes(job);
        reading += count < threads ? job->source_bytes : 0; /* sorted: the largest ones */
        if (count && made + reading > total + SLACK) {
            break;
        }
        count++;
    }
    return count;
}

/* The jobs from work->first on, with a scratch for what only they need. */
static qn_status run_wave(pack_work *work, int32_t count, const qn_exec *exec, qn_error *error)
{
    work->scratch_bytes = 0;
    for (int32_t i = work->first; i < work->first + count; i++) {
        const weight_job *job = &work->jobs[i];
        const size_t bytes = job->blob_bytes ? job->rows_bytes + job->scale_bytes + job->sums_bytes : 0;
        work->scratch_bytes = bytes > work->scratch_bytes ? bytes : work->scratch_bytes;
    }
    size_t all;
    const int failed = qn_mul_size(work->scratch_bytes, (size_t)qn_exec_threads(exec), &all);
    work->scratch = work->scratch_bytes && !failed ? qn_alloc(work->model->ctx, all) : NULL;
    if (work->scratch_bytes && !work->scratch) {
        return out_of_memory(error);
    }
    qn_parallel_for(exec, count, job_task, work);
    qn_free(work->model->ctx, work->scratch);
    return QN_OK;
}

static qn_status run_waves(pack_work *work, const qn_exec *exec, qn_error *error)
{
    size_t total = 0, done = 0;
    for (int32_t i = 0; i < work->count; i++) {
        total += made_bytes(&work->jobs[i]);
    }
    for (work->first = 0; work->first < work->count;) {
        const int32_t count = wave_of(work, done, total, qn_exec_threads(exec));
        QN_TRY(run_wave(work, count, exec, error));
        for (int32_t end = work->first + count; work->first < end; work->first++) {
            done += made_bytes(&work->jobs[work->first]);
        }
    }
    return QN_OK;
}

static qn_status pack_all(pack_work *work, const qn_exec *exec, qn_error *error)
{
    qsort(work->jobs, (size_t)work->count, sizeof *work->jobs, by_size);
    QN_TRY(prepare(work, error));
    QN_TRY(run_waves(work, exec, error));
    for (int32_t i = 0; i < work->count; i++) {
        const weight_job *job = &work->jobs[i];
        QN_FAIL_IF(job->status != QN_OK, error, job->status, "%s: %s", job->step->label, job->error.text);
        if (job->blob) {
            use_blob(job->step, job->blob);
        }
    }
    return QN_OK;
}

static void report(const qn_model *model)
{
    const qn_packing_info *p = &model->packing;
    if (p->file) {
        qn_log(model->ctx, QN_LOG_INFO, "weights: %d of %d packed ones, %.1f MB, mapped from %s, ready in %.3f s",
               p->from_file, p->weights, 1e-6 * (double)p->bytes, p->file, p->seconds);
    } else if (p->weights) {
        qn_log(model->ctx, QN_LOG_INFO, "weights: %d packed in memory, %.1f MB, ready in %.3f s", p->weights,
               1e-6 * (double)p->bytes, p->seconds);
    }
}

qn_status qn_model_pack(qn_model *model, const qn_exec *exec, int use_file, qn_error *error)
{
    const uint64_t start = qn_clock_ns();
    pack_work work = {.model = model};
    work.jobs = qn_calloc(model->ctx, model->step_count + 1, sizeof *work.jobs);
    if (!work.jobs) {
        return out_of_memory(error);
    }
    find_jobs(model, work.jobs, &work.count);
    if (use_file && model->packing.weights) {
        take_from_file(model, qn_packed_path(model->checkpoint), exec, work.jobs, &work.count);
    }
    const qn_status status = pack_all(&work, exec, error);
    qn_free(model->ctx, work.jobs);
    qn_checkpoint_release_all(model->checkpoint);
    model->packing.seconds = 1e-9 * (double)(qn_clock_ns() - start);
    if (status == QN_OK) {
        report(model);
    }
    return status;
}

/* ---- The packed file ---- */

void qn_model_get_packing(const qn_model *model, qn_packing_info *info)
{
    *info = model->packing;
}

qn_status qn_model_write_packed(qn_model *model, const char *path, int32_t force, const qn_exec *exec,
                                qn_packed_file *out, qn_error *error)
{
    QN_FAIL_IF(!model || !out, error, QN_E_ARGUMENT, "qn_model_write_packed: model or out is NULL");
    *out = (qn_packed_file){.path = path ? path : qn_packed_path(model->checkpoint)};
    QN_FAIL_IF(!model->packing.weights, error, QN_E_UNSUPPORTED,
               "no kernel chosen for this model packs weights, so there is nothing to write");
    qn_packed_blob *blobs = qn_calloc(model->ctx, (size_t)model->packing.weights, sizeof *blobs);
    if (!blobs) {
        return out_of_memory(error);
    }
    for (size_t i = 0; i < model->step_count; i++) {
        const qn_step *step = &model->steps[i];
        if (step->packed && step->weight) {
            qn_blob_header header;
            memcpy(&header, step->packed, sizeof header);
            blobs[out->blobs++] = (qn_packed_blob){.name = step->label,
                                                   .layout = header.layout,
                                                   .fingerprint = header.fingerprint,
                                                   .data = step->packed,
                                                   .bytes = header.bytes};
        }
    }
    const qn_status status =
        qn_packed_write(model->ctx, model->checkpoint, out->path, blobs, out->blobs, force, exec, &out->bytes, error);
    qn_free(model->ctx, blobs);
    return status;
}
