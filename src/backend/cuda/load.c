/* The driver and the device: opened by dlopen at the first use of a context's
 * CUDA state. Whatever is missing becomes the refusal, one sentence, and the
 * rest of the library works on. */
#include "backend/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/tuned.h"

#define DRIVER "libcuda.so.1"

/* ---- targets ---- */

typedef struct target_row {
    const char *name;
    int32_t major, minor;
    int32_t exact;                 /* its code runs on that minor number only */
    int32_t sms, shared_bytes, l2; /* of a typical device */
} target_row;

static const target_row targets[QN_SM_COUNT] = {
    [QN_SM_80] = {"sm_80", 8, 0, 0, 108, 163 << 10, 40 << 20},
    [QN_SM_86] = {"sm_86", 8, 6, 0, 84, 99 << 10, 6 << 20},
    [QN_SM_89] = {"sm_89", 8, 9, 0, 128, 99 << 10, 72 << 20},
    [QN_SM_90A] = {"sm_90a", 9, 0, 1, 132, 227 << 10, 50 << 20},
    [QN_SM_100A] = {"sm_100a", 10, 0, 1, 148, 227 << 10, 126 << 20},
    [QN_SM_120A] = {"sm_120a", 12, 0, 1, 170, 99 << 10, 96 << 20},
};

const char *qn_cuda_target_name(qn_cuda_target target)
{
    return (unsigned)target < QN_SM_COUNT ? targets[target].name : NULL;
}

static qn_cuda_target target_of(int32_t major, int32_t minor)
{
    qn_cuda_target best = QN_SM_NONE;
    for (int i = 0; i < QN_SM_COUNT; i++) {
        const target_row *t = &targets[i];
        if (t->major == major && (t->exact ? t->minor == minor : t->minor <= minor)) {
            best = (qn_cuda_target)i;
        }
    }
    return best;
}

qn_cuda_device qn_cuda_plain_device(qn_cuda_target target)
{
    const target_row *t = &targets[target];
    qn_cuda_device d = {.target = target,
                        .major = t->major,
                        .minor = t->minor,
                        .sms = t->sms,
                        .shared_bytes = t->shared_bytes,
                        .l2_bytes = t->l2};
    return d;
}

qn_cuda_device qn_cuda_typical_device(qn_cuda_target target)
{
    qn_cuda_device d = qn_cuda_plain_device(target);
    if (target == QN_SM_90A) {
        snprintf(d.name, sizeof d.name, "NVIDIA H200");
        qn_tuned_embedded(&d);
    }
    return d;
}

/* The device's tuned cuts: the embedded ones, and before them those of the cache folder's file. */
static void read_tuned(qn_cuda *cuda)
{
    char path[4096], *text = NULL;
    size_t bytes = 0;
    qn_error error = {0};
    qn_tuned_embedded(&cuda->device);
    if (!cuda->ctx->cache_dir ||
        snprintf(path, sizeof path, "%s/%s", cuda->ctx->cache_dir, QN_TUNED_FILE) >= (int)sizeof path ||
        !qn_cuda_read_file(cuda, path, &text, &bytes)) {
        return;
    }
    if (qn_tuned_read(text, path, &cuda->device, &error) != QN_OK) {
        qn_log(cuda->ctx, QN_LOG_WARN, "tuned cuts are not used: %s", error.text);
    }
    qn_free(cuda->ctx, text);
}

/* ---- calls ---- */

qn_status qn_cuda_check(const qn_cuda *cuda, cu_result result, const char *call, qn_error *error)
{
    if (result == CU_SUCCESS) {
        return QN_OK;
    }
    const char *name = NULL, *words = NULL;
    if (cuda->cu.GetErrorName(result, &name) != CU_SUCCESS || !name) {
        name = "unknown error";
    }
    if (cuda->cu.GetErrorString(result, &words) != CU_SUCCESS || !words) {
        words = "no description";
    }
    QN_FAIL(error, result == CU_ERROR_OUT_OF_MEMORY ? QN_E_MEMORY : QN_E_DEVICE, "%s: %s (%s)", call, name, words);
}

qn_status qn_cuda_push(const qn_cuda *cuda, qn_error *error)
{
    return qn_cuda_check(cuda, cuda->cu.CtxPush(cuda->context), "cuCtxPushCurrent", error);
}

void qn_cuda_pop(const qn_cuda *cuda)
{
    cu_context was;
    cuda->cu.CtxPop(&was);
}

/* ---- opening ---- */

/* dlsym into a table of function pointers, which is an array of them in the rows' order. */
static const char *resolve(void *handle, const char *const *names, size_t count, void *table)
{
    for (size_t i = 0; i < count; i++) {
        void *const symbol = dlsym(handle, names[i]);
        if (!symbol) {
            return names[i];
        }
        memcpy((char *)table + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return NULL;
}

#define NAME(member, symbol, type, parameters) symbol,

static int load_driver(qn_cuda *cuda)
{
    static const char *const needed[] = {QN_CU_FUNCTIONS(NAME)};
    static const char *const optional[] = {QN_CU_OPTIONAL(NAME)};
    _Static_assert(sizeof(qn_cu_api) == (sizeof needed + sizeof optional), "the table holds function pointers only");
    if (!QN_CUDA_LOADS) {
        snprintf(cuda->refusal, sizeof cuda->refusal, "a statically linked program cannot load the CUDA driver");
        return 0;
    }
    const char *const file = cuda->ctx->cuda_library ? cuda->ctx->cuda_library : DRIVER;
    cuda->driver_handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cuda->driver_handle) {
        const char *why = dlerror();
        snprintf(cuda->refusal, sizeof cuda->refusal, "the CUDA driver cannot be loaded (%s)", why ? why : file);
        return 0;
    }
    const char *missing = resolve(cuda->driver_handle, needed, sizeof needed / sizeof *needed, &cuda->cu);
    if (missing) {
        snprintf(cuda->refusal, sizeof cuda->refusal, "%s lacks %s: it is no CUDA driver, or too old", file, missing);
        return 0;
    }
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        resolve(cuda->driver_handle, &optional[i], 1, (char *)&cuda->cu + sizeof needed + i * sizeof(void *));
    }
    return 1;
}

static qn_status get_attribute(const qn_cuda *cuda, int32_t attribute, int32_t *value, qn_error *error)
{
    return qn_cuda_check(cuda, cuda->cu.DeviceGetAttribute(value, attribute, cuda->ordinal), "cuDeviceGetAttribute",
                         error);
}

static qn_status read_device(qn_cuda *cuda, qn_error *error)
{
    qn_cuda_device *d = &cuda->device;
    int32_t l2 = 0;
    QN_TRY(qn_cuda_check(cuda, cuda->cu.DriverGetVersion(&d->driver_version), "cuDriverGetVersion", error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.DeviceGetName(d->name, (int32_t)sizeof d->name - 1, cuda->ordinal),
                         "cuDeviceGetName", error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.DeviceTotalMem(&d->memory_bytes, cuda->ordinal), "cuDeviceTotalMem", error));
    QN_TRY(get_attribute(cuda, CU_DEVICE_COMPUTE_CAPABILITY_MAJOR, &d->major, error));
    QN_TRY(get_attribute(cuda, CU_DEVICE_COMPUTE_CAPABILITY_MINOR, &d->minor, error));
    QN_TRY(get_attribute(cuda, CU_DEVICE_MULTIPROCESSOR_COUNT, &d->sms, error));
    QN_TRY(get_attribute(cuda, CU_DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &d->shared_bytes, error));
    QN_TRY(get_attribute(cuda, CU_DEVICE_L2_CACHE_SIZE, &l2, error));
    d->l2_bytes = l2;
    d->target = target_of(d->major, d->minor);
    QN_FAIL_IF(d->target == QN_SM_NONE, error, QN_E_DEVICE,
               "%s has compute capability %d.%d, which no kernel here is compiled for", d->name, d->major, d->minor);
    return QN_OK;
}

static qn_status open_device(qn_cuda *cuda, qn_error *error)
{
    int32_t count = 0;
    const int32_t wanted = cuda->ctx->device;
    QN_TRY(qn_cuda_check(cuda, cuda->cu.Init(0), "cuInit", error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.DeviceGetCount(&count), "cuDeviceGetCount", error));
    QN_FAIL_IF(wanted >= count, error, QN_E_DEVICE, "device %d is asked for, the CUDA driver shows %d", wanted, count);
    QN_TRY(qn_cuda_check(cuda, cuda->cu.DeviceGet(&cuda->ordinal, wanted), "cuDeviceGet", error));
    QN_TRY(read_device(cuda, error));
    return qn_cuda_check(cuda, cuda->cu.PrimaryRetain(&cuda->context, cuda->ordinal), "cuDevicePrimaryCtxRetain",
                         error);
}

/* The named target's device, which is not there. */
static void open_absent(qn_cuda *cuda)
{
    for (int t = 0; t < QN_SM_COUNT; t++) {
        if (strcmp(targets[t].name, cuda->ctx->cuda_target) == 0) {
            cuda->cu = qn_cuda_absent;
            cuda->device = qn_cuda_typical_device((qn_cuda_target)t);
            cuda->device.memory_bytes = SIZE_MAX / 2;
            snprintf(cuda->device.name, sizeof cuda->device.name, "a typical %s, not here", targets[t].name);
            return;
        }
    }
    snprintf(cuda->refusal, sizeof cuda->refusal,
             "target '%.32s' is none of sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a", cuda->ctx->cuda_target);
}

static void close_state(void *state)
{
    qn_cuda *cuda = state;
    if (cuda->context || cuda->ctx->cuda_target) {
        const int current = cuda->context && cuda->cu.CtxPush(cuda->context) == CU_SUCCESS;
        for (qn_cuda_module *m = cuda->modules, *next; m; m = next) {
            next = m->next;
            cuda->cu.ModuleUnload(m->handle);
            qn_free(cuda->ctx, m);
        }
        if (current) {
            qn_cuda_pop(cuda);
        }
        if (cuda->context) {
            cuda->cu.PrimaryRelease(cuda->ordinal);
        }
    }
    if (cuda->nvrtc_handle) {
        dlclose(cuda->nvrtc_handle);
    }
    if (cuda->driver_handle) {
        dlclose(cuda->driver_handle);
    }
    pthread_mutex_destroy(&cuda->lock);
    qn_free(cuda->ctx, cuda);
}

static qn_cuda *open_state(const qn_ctx *ctx)
{
    qn_cuda *cuda = qn_calloc(ctx, 1, sizeof *cuda);
    if (!cuda) {
        return NULL;
    }
    cuda->ctx = ctx;
    pthread_mutex_init(&cuda->lock, NULL);
    qn_error error = {0};
    if (ctx->cuda_target) {
        open_absent(cuda);
    } else if (load_driver(cuda)) {
        if (open_device(cuda, &error) != QN_OK) {
            snprintf(cuda->refusal, sizeof cuda->refusal, "%s", error.text);
        } else {
            read_tuned(cuda);
        }
    }
    return cuda;
}

qn_cuda *qn_cuda_get(const qn_ctx *ctx)
{
    qn_ctx_late *late = ctx->late;
    pthread_mutex_lock(&late->lock);
    if (!late->state) {
        late->state = open_state(ctx);
        late->close = close_state;
    }
    qn_cuda *cuda = late->state;
    pthread_mutex_unlock(&late->lock);
    return cuda;
}

qn_status qn_cuda_require(const qn_ctx *ctx, qn_cuda **out, qn_error *error)
{
    qn_cuda *cuda = qn_cuda_get(ctx);
    QN_FAIL_IF(!cuda, error, QN_E_MEMORY, "out of memory for the CUDA backend");
    QN_FAIL_IF(*cuda->refusal, error, QN_E_DEVICE, "backend cuda: %s", cuda->refusal);
    *out = cuda;
    return QN_OK;
}
