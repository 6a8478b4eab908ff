/* Programs to loaded functions, what a plan of the CUDA backend keeps, and launches.
 *
 * A cubin is looked for among the loaded modules, the shipped ones, the cache,
 * and is compiled last, each as the context's policy allows. Modules stay loaded
 * until the context goes: plans come and go, a program's code does not. */
#include "backend/cuda/cuda.h"

#include <string.h>

typedef struct plan_state {
    qn_cuda *cuda;
    int32_t count;
    qn_cuda_function functions[QN_CUDA_PROGRAMS];
} plan_state;

/* ---- cubins ---- */

/* A cached cubin of the compiler at hand, or of any where there is none. */
static int find_cached(qn_cuda *cuda, const qn_cuda_key *key, qn_cuda_image *image)
{
    if (!cuda->ctx->cache_dir || cuda->cache_failed || cuda->ctx->jit == QN_JIT_OFF) {
        return 0;
    }
    qn_cuda_nvrtc(cuda, NULL); /* for its identity; without one any compiler's cubin will do */
    return qn_cuda_cache_find(cuda, cuda->ctx->cache_dir, *cuda->compiler ? cuda->compiler : NULL, key, image);
}

qn_status qn_cuda_obtain(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_target target, qn_cuda_image *image,
                         const char **made, qn_error *error)
{
    qn_cuda_key key;
    const char *from = "shipped";
    *image = (qn_cuda_image){0};
    QN_TRY(qn_cuda_key_make(program, target, &key, error));
    int found = cuda->ctx->cubin_dir && qn_cuda_cache_find(cuda, cuda->ctx->cubin_dir, NULL, &key, image);
    if (!found) {
        from = "cached";
        found = find_cached(cuda, &key, image);
    }
    if (!found) {
        const char *const name = qn_cuda_target_name(target);
        from = "compiled";
        QN_FAIL_IF(cuda->ctx->jit == QN_JIT_OFF, error, QN_E_JIT,
                   "%s: no shipped cubin for %s, and compiling is switched off", program->entry, name);
        QN_FAIL_IF(cuda->ctx->jit == QN_JIT_CACHE_ONLY, error, QN_E_JIT,
                   "%s: no cubin for %s is shipped or cached, and compiling is switched off", program->entry, name);
        QN_TRY(qn_cuda_nvrtc(cuda, error)); /* under the lock; what it leaves is read alone from here on */
        pthread_mutex_unlock(&cuda->lock);
        const qn_status status = qn_cuda_compile(cuda, program, target, image, error);
        pthread_mutex_lock(&cuda->lock);
        QN_TRY(status);
        qn_log(cuda->ctx, QN_LOG_INFO, "compiled %s", key.entry);
        qn_cuda_cache_store(cuda, program, &key, image);
    }
    if (made) {
        *made = from;
    }
    return QN_OK;
}

/* ---- modules and functions ---- */

static const qn_cuda_module *find_module(const qn_cuda *cuda, const qn_cuda_key *key)
{
    const qn_cuda_module *m = cuda->modules;
    while (m && (m->high != key->high || m->low != key->low)) {
        m = m->next;
    }
    return m;
}

static qn_status load_module(qn_cuda *cuda, const qn_cuda_program *program, cu_module *module, qn_error *error)
{
    qn_cuda_key key;
    QN_TRY(qn_cuda_key_make(program, cuda->device.target, &key, error));
    const qn_cuda_module *found = find_module(cuda, &key);
    qn_cuda_image image = {0};
    if (!found) {
        QN_TRY(qn_cuda_obtain(cuda, program, cuda->device.target, &image, NULL, error));
        found = find_module(cuda, &key); /* another thread's, made while this one's compiler worked */
    }
    if (found) {
        qn_cuda_image_free(cuda, &image);
        *module = found->handle;
        return QN_OK;
    }
    qn_cuda_module *kept = qn_calloc(cuda->ctx, 1, sizeof *kept);
    qn_status status =
        kept ? qn_cuda_check(cuda, cuda->cu.ModuleLoadData(&kept->handle, image.cubin), "cuModuleLoadData", error)
             : qn_error_set(error, QN_E_MEMORY, "out of memory for a module");
    qn_cuda_image_free(cuda, &image);
    if (status != QN_OK) {
        qn_free(cuda->ctx, kept);
        return status;
    }
    kept->high = key.high;
    kept->low = key.low;
    kept->next = cuda->modules;
    cuda->modules = kept;
    *module = kept->handle;
    return QN_OK;
}

static qn_status set_attribute(const qn_cuda *cuda, cu_function function, int32_t attribute, int32_t value,
                               qn_error *error)
{
    return qn_cuda_check(cuda, cuda->cu.FuncSetAttribute(function, attribute, value), "cuFuncSetAttribute", error);
}

/* Groups of multiprocessors differ in size, so that clusters may leave some of them idle. */
static int32_t clusters_of(const qn_cuda *cuda, const qn_cuda_program *program, cu_function function)
{
    cu_launch_attribute size;
    int32_t count = 0;
    memset(&size, 0, sizeof size);
    size.id = CU_LAUNCH_CLUSTER_DIMENSION;
    size.value.cluster.x = (uint32_t)program->cluster;
    size.value.cluster.y = size.value.cluster.z = 1;
    const cu_launch_config config = {.grid = {(uint32_t)program->cluster, 1, 1},
                                     .block = {(uint32_t)program->threads, 1, 1},
                                     .shared_bytes = (uint32_t)program->shared_bytes,
                                     .attributes = &size,
                                     .attribute_count = 1};
    return cuda->cu.MaxClusters && cuda->cu.MaxClusters(&count, function, &config) == CU_SUCCESS ? count : 0;
}

/* 48 KB need no leave, those that the code names itself counted. */
static qn_status allow_shared(const qn_cuda *cuda, const qn_cuda_program *program, cu_function function,
                              qn_error *error)
{
    int32_t own = 0, allowed = 0; /* by another program of the same code */
    QN_TRY(qn_cuda_check(cuda, cuda->cu.FuncGetAttribute(&own, CU_FUNC_SHARED_SIZE_BYTES, function),
                         "cuFuncGetAttribute", error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.FuncGetAttribute(&allowed, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, function),
                         "cuFuncGetAttribute", error));
    if (own + program->shared_bytes <= 48 << 10) {
        return QN_OK;
    }
    const int32_t bytes = program->shared_bytes > allowed ? program->shared_bytes : allowed;
    return set_attribute(cuda, function, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes, error);
}

static qn_status get_function(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_function *out, qn_error *error)
{
    cu_module module = NULL;
    QN_FAIL_IF(program->shared_bytes > cuda->device.shared_bytes, error, QN_E_UNSUPPORTED,
               "%s needs %d bytes of shared memory, a block of %s has at most %d", program->entry,
               program->shared_bytes, cuda->device.name, cuda->device.shared_bytes);
    QN_TRY(load_module(cuda, program, &module, error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.ModuleGetFunction(&out->handle, module, program->entry), "cuModuleGetFunction",
                         error));
    if (cuda->cu.FuncLoad) { /* now, not at the first launch: that may be inside a graph's capture */
        QN_TRY(qn_cuda_check(cuda, cuda->cu.FuncLoad(out->handle), "cuFuncLoad", error));
    }
    QN_TRY(qn_cuda_check(cuda, cuda->cu.FuncGetAttribute(&out->registers, CU_FUNC_NUM_REGS, out->handle),
                         "cuFuncGetAttribute", error));
    QN_TRY(qn_cuda_check(cuda, cuda->cu.FuncGetAttribute(&out->local_bytes, CU_FUNC_LOCAL_SIZE_BYTES, out->handle),
                         "cuFuncGetAttribute", error));
    QN_TRY(allow_shared(cuda, program, out->handle, error));
    if (program->most_shared) {
        QN_TRY(set_attribute(cuda, out->handle, CU_FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT, 100, error));
    }
    if (program->wide_clusters) {
        QN_TRY(set_attribute(cuda, out->handle, CU_FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, error));
    }
    if (program->cluster > 1) {
        out->clusters = clusters_of(cuda, program, out->handle);
    }
    memcpy(out->kept, program->kept, sizeof out->kept);
    return QN_OK;
}

qn_status qn_cuda_function_get(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_function *out, qn_error *error)
{
    QN_TRY(qn_cuda_push(cuda, error));
    pthread_mutex_lock(&cuda->lock);
    const qn_status status = get_function(cuda, program, out, error);
    pthread_mutex_unlock(&cuda->lock);
    qn_cuda_pop(cuda);
    return status;
}

/* ---- plans ---- */

static qn_status open_programs(const qn_kernel *kernel, const qn_op_desc *desc, plan_state *state, qn_error *error)
{
    qn_cuda *cuda = state->cuda;
    const qn_cuda_impl *impl = kernel->impl;
    qn_cuda_program *programs = qn_calloc(cuda->ctx, QN_CUDA_PROGRAMS, sizeof *programs);
    QN_FAIL_IF(!programs, error, QN_E_MEMORY, "out of memory for the programs of a plan");
    state->count = impl->programs(kernel, desc, &cuda->device, programs);
    qn_status status = QN_OK;
    for (int32_t i = 0; i < state->count && status == QN_OK; i++) {
        status = qn_cuda_function_get(cuda, &programs[i], &state->functions[i], error);
    }
    qn_free(cuda->ctx, programs);
    return status;
}

qn_status qn_cuda_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                       qn_error *error)
{
    qn_cuda *cuda;
    QN_TRY(qn_cuda_require(ctx, &cuda, error));
    plan_state *made = qn_calloc(ctx, 1, sizeof *made);
    QN_FAIL_IF(!made, error, QN_E_MEMORY, "out of memory for a plan");
    made->cuda = cuda;
    const qn_status status = open_programs(kernel, desc, made, error);
    if (status != QN_OK) {
        qn_free(ctx, made);
        return status;
    }
    *state = made;
    return QN_OK;
}

void qn_cuda_close(const qn_ctx *ctx, void *state)
{
    qn_free(ctx, state);
}

/* ---- launches ---- */

qn_status qn_cuda_launch_row(const qn_kernel *kernel, const qn_run_call *call, qn_error *error)
{
    const plan_state *state = call->state;
    const qn_cuda_impl *impl = kernel->impl;
    const qn_cuda_run run = {.kernel = kernel,
                             .call = call,
                             .cuda = state->cuda,
                             .device = &state->cuda->device,
                             .functions = state->functions,
                             .stream = call->exec ? call->exec->stream : NULL};
    QN_TRY(qn_cuda_push(state->cuda, error));
    const qn_status status = impl->launch(&run, error);
    qn_cuda_pop(state->cuda);
    return status;
}

qn_status qn_cuda_launch(const qn_cuda_run *run, int32_t i, const qn_cuda_geometry *geometry, void *const *arguments,
                         qn_error *error)
{
    cu_launch_attribute attributes[3];
    uint32_t count = 0;
    memset(attributes, 0, sizeof attributes);
    if (geometry->cluster > 1) {
        attributes[count].id = CU_LAUNCH_CLUSTER_DIMENSION;
        attributes[count].value.cluster.x = geometry->cluster;
        attributes[count].value.cluster.y = attributes[count].value.cluster.z = 1;
        count++;
    }
    if (geometry->cooperative) {
        attributes[count].id = CU_LAUNCH_COOPERATIVE;
        attributes[count++].value.flag = 1;
    }
    if (geometry->dependent && run->device->major >= 9) {
        attributes[count].id = CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count++].value.flag = 1;
    }
    cu_launch_config config = {.shared_bytes = geometry->shared_bytes,
                               .stream = run->stream,
                               .attributes = attributes,
                               .attribute_count = count};
    memcpy(config.grid, geometry->grid, sizeof config.grid);
    memcpy(config.block, geometry->block, sizeof config.block);
    return qn_cuda_check(
        run->cuda, run->cuda->cu.LaunchKernelEx(&config, run->functions[i].handle, (void **)(uintptr_t)arguments, NULL),
        "cuLaunchKernelEx", error);
}

qn_status qn_cuda_tensor_map(const qn_cuda *cuda, const qn_cuda_tensor *tensor, qn_tensor_map *map, qn_error *error)
{
    static const uint32_t dense[5] = {1, 1, 1, 1, 1};
    QN_FAIL_IF(!cuda->cu.TensorMapTiled, error, QN_E_DEVICE, "the CUDA driver has no cuTensorMapEncodeTiled");
    return qn_cuda_check(cuda,
                         cuda->cu.TensorMapTiled(map, tensor->type, (uint32_t)tensor->rank,
                                                 (void *)(uintptr_t)tensor->data, tensor->dims, tensor->strides,
                                                 tensor->box, dense, 0, tensor->swizzle, tensor->promotion, 0),
                         "cuTensorMapEncodeTiled", error);
}
