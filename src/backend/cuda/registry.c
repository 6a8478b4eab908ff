/* The backend's row: its families in order of preference, and what refuses them. */
#include "backend/cuda/cuda.h"

#include <string.h>

static const qn_cuda_family *const families[] = {&qn_cuda_block_scaled_mm_family,
                                                 &qn_cuda_grouped_block_scaled_mm_family,
                                                 &qn_cuda_scaled_mm_family,
                                                 &qn_cuda_quantize_family,
                                                 &qn_cuda_fp4_mm_family,
                                                 &qn_cuda_dense_mm_family,
                                                 &qn_cuda_planes_family,
                                                 &qn_cuda_mm_family,
                                                 &qn_cuda_activation_family,
                                                 &qn_cuda_attention_family,
                                                 &qn_cuda_fp4_family,
                                                 &qn_cuda_vq_family,
                                                 &qn_cuda_vq_kv_family,
                                                 &qn_cuda_scaled_attention_family,
                                                 &qn_cuda_vq_dequantize_family};

static const qn_kernel *kernel_at(int32_t i)
{
    for (size_t f = 0; i >= 0 && f < sizeof families / sizeof *families; f++) {
        const int32_t count = (int32_t)(families[f]->bytes / sizeof(qn_kernel));
        if (i < count) {
            return &families[f]->kernels[i];
        }
        i -= count;
    }
    return NULL;
}

static const char *refusal(const qn_ctx *ctx)
{
    const qn_cuda *cuda = qn_cuda_get(ctx);
    return !cuda ? "out of memory" : *cuda->refusal ? cuda->refusal : NULL;
}

const char *qn_cuda_kernel_refusal(const qn_ctx *ctx, const qn_kernel *kernel)
{
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const qn_cuda_impl *impl = kernel->impl;
    if (!cuda || *cuda->refusal) {
        return refusal(ctx);
    }
    return impl->targets & QN_SM_BIT(cuda->device.target) ? NULL : "made for another architecture than the device's";
}

static const char *status(const qn_ctx *ctx, const qn_kernel *kernel)
{
    static const char *const untested[QN_SM_COUNT] = {
        [QN_SM_80] = "compiled, not run, for sm_80",     [QN_SM_86] = "compiled, not run, for sm_86",
        [QN_SM_89] = "compiled, not run, for sm_89",     [QN_SM_100A] = "compiled, not run, for sm_100a",
        [QN_SM_120A] = "compiled, not run, for sm_120a",
    };
    const qn_cuda *cuda = qn_cuda_get(ctx);
    const char *text = cuda && !*cuda->refusal ? untested[cuda->device.target] : NULL;
    return text ? text : kernel->status;
}

static void describe(const qn_ctx *ctx, qn_text *text)
{
    static const char *const policies[] = {"compiling allowed", "cached and shipped kernels only",
                                           "shipped kernels only"};
    qn_cuda *cuda = qn_cuda_get(ctx);
    if (!cuda) {
        return;
    }
    const qn_cuda_device *d = &cuda->device;
    if (!*cuda->refusal) {
        qn_text_add(text, "device: %s, %s, %d multiprocessors, %.1f GB, driver for CUDA %d.%d\n", d->name,
                    qn_cuda_target_name(d->target), d->sms, (double)d->memory_bytes * 1e-9, d->driver_version / 1000,
                    d->driver_version % 1000 / 10);
    }
    pthread_mutex_lock(&cuda->lock);
    qn_cuda_nvrtc(cuda, NULL);
    qn_text_add(text, "device compiler: %s\n", *cuda->compiler ? cuda->compiler : cuda->no_compiler);
    pthread_mutex_unlock(&cuda->lock);
    qn_text_add(text, "kernel cache: %s, %s\n", ctx->cache_dir ? ctx->cache_dir : "none", policies[ctx->jit]);
    qn_text_add(text, "shipped kernels: %s\n", ctx->cubin_dir ? ctx->cubin_dir : "none");
}

const qn_backend_row qn_backend_cuda_row = {.backend = QN_BACKEND_CUDA,
                                            .name = "cuda",
                                            .refusal = refusal,
                                            .kernel_at = kernel_at,
                                            .kernel_refusal = qn_cuda_kernel_refusal,
                                            .status = status,
                                            .describe = describe,
                                            .vq_device = qn_cuda_vq_device_of,
                                            .sources = qn_cuda_sources_of,
                                            .prepare = qn_cuda_prepare,
                                            .device = 1,
                                            .chains = &qn_cuda_chains};
