/* qn_kernels_warm: every program that the case table needs, made once and kept on
 * disk: for the cache of this machine, or for cubins that travel with the library. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/clock.h"

typedef struct warming {
    qn_cuda *cuda;
    qn_warm_fn fn;
    void *user;
    qn_buffer keys; /* of the programs done: key_pair after key_pair */
    int32_t stopped;
    qn_status failed;
    qn_error *error;
} warming;

typedef struct key_pair {
    uint64_t high, low;
} key_pair;

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

/* 1: the program was met before. */
static int is_done(const warming *w, const qn_cuda_key *key)
{
    const key_pair *const pairs = (const key_pair *)(const void *)w->keys.data;
    for (size_t i = 0; i < w->keys.length / sizeof *pairs; i++) {
        if (pairs[i].high == key->high && pairs[i].low == key->low) {
            return 1;
        }
    }
    return 0;
}

static void warm_program(warming *w, const qn_cuda_program *program, qn_cuda_target target, qn_warm_info *info)
{
    qn_cuda_key key;
    qn_error error = {0};
    qn_cuda_image image = {0};
    qn_status status = qn_cuda_key_make(program, target, &key, &error);
    if (status == QN_OK && is_done(w, &key)) {
        return;
    }
    const uint64_t start = qn_clock_ns();
    if (status == QN_OK) {
        const key_pair pair = {key.high, key.low};
        qn_buffer_add(&w->keys, &pair, sizeof pair);
        pthread_mutex_lock(&w->cuda->lock);
        status = qn_cuda_obtain(w->cuda, program, target, &image, &info->made, &error);
        pthread_mutex_unlock(&w->cuda->lock);
        qn_cuda_image_free(w->cuda, &image);
    }
    if (status != QN_OK) {
        info->made = NULL;
        info->error = &error;
        w->failed = w->failed ? w->failed : qn_error_set(w->error, status, "%s", error.text);
    }
    info->program = key.entry;
    info->seconds = (double)(qn_clock_ns() - start) * 1e-9;
    w->stopped = w->fn && w->fn(w->user, info) != 0;
}

static qn_status warm_case(warming *w, const qn_kernel *kernel, const qn_op_desc *desc, const char *text,
                           qn_cuda_target target)
{
    const qn_cuda_impl *impl = kernel->impl;
    const qn_cuda_device *real = &w->cuda->device;
    const qn_cuda_device device = !*w->cuda->refusal && real->target == target ? *real : qn_cuda_typical_device(target);
    qn_cuda_program *programs = qn_calloc(w->cuda->ctx, QN_CUDA_PROGRAMS, sizeof *programs);
    QN_FAIL_IF(!programs, w->error, QN_E_MEMORY, "out of memory for programs");
    const int32_t count = impl->programs(kernel, desc, &device, programs);
    for (int32_t i = 0; i < count && !w->stopped; i++) {
        qn_warm_info info = {.kernel = kernel->name, .case_text = text, .target = qn_cuda_target_name(target)};
        warm_program(w, &programs[i], target, &info);
    }
    qn_free(w->cuda->ctx, programs);
    return QN_OK;
}

static qn_status warm_kernel(warming *w, const qn_kernel *kernel, uint32_t targets)
{
    const qn_cuda_impl *impl = kernel->impl;
    const char *text;
    int32_t bench;
    for (int32_t i = 0; (text = qn_case_at(i, &bench)) != NULL; i++) {
        qn_op_desc desc;
        QN_TRY(qn_op_desc_parse(text, &desc, w->error));
        if (desc.op != kernel->op || kernel->accepts(kernel, &desc)) {
            continue;
        }
        for (int t = 0; t < QN_SM_COUNT && !w->stopped; t++) {
            if (targets & impl->targets & QN_SM_BIT(t)) {
                QN_TRY(warm_case(w, kernel, &desc, text, (qn_cuda_target)t));
            }
        }
    }
    return QN_OK;
}

qn_status qn_kernels_warm(qn_ctx *ctx, const char *targets, qn_warm_fn fn, void *user, qn_error *error)
{
    QN_FAIL_IF(!ctx, error, QN_E_ARGUMENT, "qn_kernels_warm: ctx is NULL");
    uint32_t set;
    QN_TRY(parse_targets(ctx, targets, &set, error));
    warming w = {.cuda = qn_cuda_get(ctx), .fn = fn, .user = user, .keys = qn_buffer_make(ctx), .error = error};
    QN_FAIL_IF(!w.cuda, error, QN_E_MEMORY, "out of memory for the CUDA backend");
    qn_status status = QN_OK;
    const qn_kernel *kernel;
    for (int32_t i = 0; status == QN_OK && !w.stopped && (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        status = warm_kernel(&w, kernel, set);
    }
    for (int t = 0; t < QN_SM_COUNT && status == QN_OK && !w.stopped; t++) {
        if (set & QN_SM_BIT(t)) {
            qn_warm_info info = {
                .kernel = "ceiling", .case_text = "", .target = qn_cuda_target_name((qn_cuda_target)t)};
            warm_program(&w, &qn_cuda_ceiling_program, (qn_cuda_target)t, &info);
            qn_cuda_program program;
            info.kernel = "chain";
            for (int32_t i = 0; !w.stopped && qn_cuda_chain_program(i, &program); i++) {
                warm_program(&w, &program, (qn_cuda_target)t, &info);
            }
        }
    }
    qn_buffer_free(&w.keys);
    QN_FAIL_IF(status == QN_OK && w.stopped, error, QN_E_CANCELLED, "stopped");
    return status ? status : w.failed;
}
