/* Programs made ahead. qn_kernels_warm: every one that the case table needs, kept on disk: for the cache of this
 * machine, or for cubins that travel with the library. qn_cuda_prepare: those of plans that are about to be opened,
 * loaded. The compiler takes its time and works in many threads, so all programs are listed first and then shared
 * out. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/clock.h"

typedef struct warm_job {
    qn_cuda_program program;
    qn_cuda_key key;
    qn_cuda_target target;
    const char *kernel, *case_text;
} warm_job;

typedef struct warming {
    qn_cuda *cuda;
    qn_buffer jobs;       /* warm_job after warm_job, no program twice */
    size_t next;          /* the job that the next thread takes; under the backend's lock */
    pthread_mutex_t tell; /* over all below: fn hears of one program at a time */
    qn_warm_fn fn;
    void *user;
    int32_t stopped, cancelled; /* cancelled: by fn */
    qn_status failed;
    qn_error *error;
} warming;

/* Set of targets from their names. */
static qn_status parse_targets(qn_ctx *ctx, const char *text, uint32_t *set, qn_error *error)
{
    *set = 0;
    if (!text) {
        qn_cuda *cuda;
        QN_TRY(qn_cuda_require(ctx, &cuda, error));
        *set = QN_SM_BIT(cuda->device.target);
        return QN_OK;
    }
    if (strcmp(text, "all") == 0) {
        *set = QN_SM_ALL;
        return QN_OK;
    }
    for (const char *p = text; *p;) {
        const size_t length = strcspn(p, ",");
        uint32_t bit = 0;
        for (int t = 0; t < QN_SM_COUNT; t++) {
            const char *const name = qn_cuda_target_name((qn_cuda_target)t);
            bit = strlen(name) == length && memcmp(name, p, length) == 0 ? QN_SM_BIT(t) : bit;
        }
        QN_FAIL_IF(!bit, error, QN_E_ARGUMENT,
                   "target '%.*s' is none of all, sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a", (int)length, p);
        *set |= bit;
        p += length + (p[length] == ',');
    }
    QN_FAIL_IF(!*set, error, QN_E_ARGUMENT, "no target is named");
    return QN_OK;
}

/* ---- what to make ---- */

static const warm_job *jobs_of(const warming *w)
{
    return (const warm_job *)(const void *)w->jobs.data;
}

static qn_status add_program(warming *w, const warm_job *like, const qn_cuda_program *program)
{
    warm_job job = *like;
    job.program = *program;
    QN_TRY(qn_cuda_key_make(program, job.target, &job.key, w->error));
    const warm_job *const jobs = jobs_of(w);
    for (size_t i = 0; i < w->jobs.length / sizeof *jobs; i++) {
        if (jobs[i].key.high == job.key.high && jobs[i].key.low == job.key.low) {
            return QN_OK;
        }
    }
    qn_buffer_add(&w->jobs, &job, sizeof job);
    QN_FAIL_IF(w->jobs.failed, w->error, QN_E_MEMORY, "out of memory for programs");
    return QN_OK;
}

static qn_status add_case(warming *w, const qn_kernel *kernel, const qn_op_desc *desc, const warm_job *like)
{
    const qn_cuda_impl *impl = kernel->impl;
    const qn_cuda_device *real = &w->cuda->device;
    const qn_cuda_device device =
        !*w->cuda->refusal && real->target == like->target ? *real : qn_cuda_typical_device(like->target);
    qn_cuda_program *programs = qn_calloc(w->cuda->ctx, QN_CUDA_PROGRAMS, sizeof *programs);
    QN_FAIL_IF(!programs, w->error, QN_E_MEMORY, "out of memory for programs");
    const int32_t count = impl->programs(kernel, desc, &device, programs);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < count && status == QN_OK; i++) {
        status = add_program(w, like, &programs[i]);
    }
    qn_free(w->cuda->ctx, programs);
    return status;
}

static qn_status add_kernel(warming *w, const qn_kernel *kernel, qn_cuda_target target)
{
    warm_job job = {.target = target, .kernel = kernel->name};
    int32_t bench;
    for (int32_t i = 0; (job.case_text = qn_case_at(i, &bench)) != NULL; i++) {
        qn_op_desc desc;
        QN_TRY(qn_op_desc_parse(job.case_text, &desc, w->error));
        if (desc.op == kernel->op && !kernel->accepts(kernel, &desc)) {
            QN_TRY(add_case(w, kernel, &desc, &job));
        }
    }
    return QN_OK;
}

static qn_status add_target(warming *w, qn_cuda_target target)
{
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        const qn_cuda_impl *impl = kernel->impl;
        if (impl->targets & QN_SM_BIT(target)) {
            QN_TRY(add_kernel(w, kernel, target));
        }
    }
    warm_job job = {.target = target, .kernel = "ceiling", .case_text = ""};
    QN_TRY(add_program(w, &job, &qn_cuda_ceiling_program));
    job.kernel = "chain";
    qn_cuda_program program;
    for (int32_t i = 0; qn_cuda_chain_program(i, &program); i++) {
        QN_TRY(add_program(w, &job, &program));
    }
    return QN_OK;
}

/* ---- making it ---- */

static void tell(warming *w, const warm_job *job, qn_status status, qn_warm_info *info)
{
    info->kernel = job->kernel;
    info->case_text = job->case_text;
    info->target = qn_cuda_target_name(job->target);
    info->program = job->key.entry;
    pthread_mutex_lock(&w->tell);
    if (!w->stopped && status != QN_OK) {
        w->failed = w->failed ? w->failed : qn_error_set(w->error, status, "%s", info->error->text);
        w->stopped = status == QN_E_IO;
    }
    w->cancelled = w->cancelled || (w->fn && w->fn(w->user, info) != 0);
    w->stopped = w->stopped || w->cancelled;
    pthread_mutex_unlock(&w->tell);
}

static int is_stopped(warming *w)
{
    pthread_mutex_lock(&w->tell);
    const int stopped = w->stopped;
    pthread_mutex_unlock(&w->tell);
    return stopped;
}

/* Compiling what then is lost helps nobody: the cache must take entries, now and all the while. */
static qn_status check_cache(qn_cuda *cuda, qn_error *error)
{
    qn_status status = QN_OK;
    pthread_mutex_lock(&cuda->lock);
    if (cuda->ctx->cache_dir && cuda->ctx->jit == QN_JIT_ALLOW && qn_cuda_nvrtc(cuda, NULL) == QN_OK) {
        status = qn_cuda_cache_check(cuda, error);
    }
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

/* One thread's work: the next program, as long as there is one. */
static void make_programs(void *user, int64_t index, int32_t thread)
{
    (void)index, (void)thread;
    warming *w = user;
    const size_t count = w->jobs.length / sizeof(warm_job);
    while (!is_stopped(w)) {
        qn_error error = {0};
        qn_cuda_image image = {0};
        qn_warm_info info = {0};
        pthread_mutex_lock(&w->cuda->lock);
        const warm_job *const job = w->next < count ? &jobs_of(w)[w->next++] : NULL;
        const uint64_t start = qn_clock_ns();
        qn_status status =
            job ? qn_cuda_obtain(w->cuda, &job->program, job->target, &image, &info.made, &error) : QN_OK;
        if (status == QN_OK && job && w->cuda->cache_failed) {
            status = qn_error_set(&error, QN_E_IO, "kernel cache: %s cannot be written to", w->cuda->ctx->cache_dir);
            info.made = NULL;
        }
        pthread_mutex_unlock(&w->cuda->lock);
        qn_cuda_image_free(w->cuda, &image);
        if (!job) {
            return;
        }
        info.seconds = (double)(qn_clock_ns() - start) * 1e-9;
        info.error = status == QN_OK ? NULL : &error;
        tell(w, job, status, &info);
    }
}

qn_status qn_kernels_warm(qn_ctx *ctx, const char *targets, const qn_exec *exec, qn_warm_fn fn, void *user,
                          qn_error *error)
{
    QN_FAIL_IF(!ctx, error, QN_E_ARGUMENT, "qn_kernels_warm: ctx is NULL");
    uint32_t set;
    QN_TRY(parse_targets(ctx, targets, &set, error));
    warming w = {.cuda = qn_cuda_get(ctx), .fn = fn, .user = user, .jobs = qn_buffer_make(ctx), .error = error};
    QN_FAIL_IF(!w.cuda, error, QN_E_MEMORY, "out of memory for the CUDA backend");
    qn_status status = check_cache(w.cuda, error);
    for (int t = 0; t < QN_SM_COUNT && status == QN_OK; t++) {
        if (set & QN_SM_BIT(t)) {
            status = add_target(&w, (qn_cuda_target)t);
        }
    }
    if (status == QN_OK) {
        pthread_mutex_init(&w.tell, NULL);
        qn_parallel_for(exec, qn_exec_threads(exec), make_programs, &w);
        pthread_mutex_destroy(&w.tell);
        status = w.failed;
    }
    qn_buffer_free(&w.jobs);
    QN_FAIL_IF(w.cancelled, error, QN_E_CANCELLED, "stopped");
    return status;
}

/* ---- plans about to be opened ---- */

static void load_program(void *user, int64_t index, int32_t thread)
{
    (void)thread;
    warming *w = user;
    qn_error error = {0};
    qn_cuda_function function;
    if (is_stopped(w)) {
        return;
    }
    const qn_status status = qn_cuda_function_get(w->cuda, &jobs_of(w)[index].program, &function, &error);
    if (status != QN_OK) {
        pthread_mutex_lock(&w->tell);
        w->failed = w->stopped ? w->failed : qn_error_set(w->error, status, "%s", error.text);
        w->stopped = 1;
        pthread_mutex_unlock(&w->tell);
    }
}

qn_status qn_cuda_prepare(const qn_ctx *ctx, const qn_opening *openings, size_t count, const qn_exec *exec,
                          qn_error *error)
{
    warming w = {.jobs = qn_buffer_make(ctx), .error = error};
    QN_TRY(qn_cuda_require(ctx, &w.cuda, error));
    qn_status status = QN_OK;
    for (size_t i = 0; i < count && status == QN_OK; i++) {
        const warm_job job = {.target = w.cuda->device.target};
        status = add_case(&w, openings[i].kernel, openings[i].desc, &job);
    }
    if (status == QN_OK) {
        pthread_mutex_init(&w.tell, NULL);
        qn_parallel_for(exec, (int64_t)(w.jobs.length / sizeof(warm_job)), load_program, &w);
        pthread_mutex_destroy(&w.tell);
        status = w.failed;
    }
    qn_buffer_free(&w.jobs);
    return status;
}
