/* A CUDA device as the generator of vector-quantised kernels sees it, and the sources it generates. Rates are those
 * measured on an H200 (bench/results/), scaled for other targets by what their makers publish. */
#include "backend/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

/* By target: clock in GHz, read rate and L2 rate in GB/s, 16-bit multiply-adds of a multiprocessor and clock. */
static const struct {
    double clock, read_rate, l2_rate, tensor;
} rates[QN_SM_COUNT] = {
    [QN_SM_80] = {1.41, 1750, 3800, 1024},   [QN_SM_86] = {1.70, 620, 1800, 512},
    [QN_SM_89] = {2.30, 920, 4000, 512},     [QN_SM_90A] = {1.75, 4200, 5500, 1280},
    [QN_SM_100A] = {1.85, 7000, 9000, 1280}, [QN_SM_120A] = {2.40, 1600, 6000, 512},
};

void qn_cuda_vq_device(const qn_cuda_device *device, qn_vq_device *out)
{
    *out = (qn_vq_device){.units = device->sms,
                          .lanes = 32,
                          .registers = 256 << 10,
                          .shared_bytes = device->shared_bytes,
                          .banks = 32,
                          .bank_bytes = 4,
                          .l2_bytes = device->l2_bytes,
                          .clock = rates[device->target].clock,
                          .read_rate = rates[device->target].read_rate,
                          .l2_rate = rates[device->target].l2_rate,
                          .issue = 4.0,
                          .fma = 128.0,
                          .tensor = rates[device->target].tensor,
                          .wide = device->target == QN_SM_90A ? 1600.0 : 0.0,
                          .dense = device->target == QN_SM_90A ? 1500.0 : 0.0,
                          .exchange = device->target == QN_SM_90A ? 21.0 : 0.0,
                          .write_rate = 0.8 * rates[device->target].read_rate,
                          .launch = 4.0,
                          .lookup_share = 0.85,
                          .issue_share = 0.55,
                          .math_share = 0.6};
    snprintf(out->name, sizeof out->name, "%.63s", *device->name ? device->name : qn_cuda_target_name(device->target));
}

/* The context's device, or one like those that were measured. */
static qn_cuda_device device_of(const qn_ctx *ctx)
{
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda && !*cuda->refusal && cuda->device.target != QN_SM_NONE) {
        return cuda->device;
    }
    qn_cuda_device typical = qn_cuda_plain_device(QN_SM_90A);
    snprintf(typical.name, sizeof typical.name, "a device of sm_90a (none here)");
    return typical;
}

void qn_cuda_vq_device_of(const qn_ctx *ctx, qn_vq_device *out)
{
    const qn_cuda_device device = device_of(ctx);
    qn_cuda_vq_device(&device, out);
}

void qn_cuda_sources_of(const qn_ctx *ctx, const qn_kernel *kernel, const qn_op_desc *desc, qn_text *text)
{
    const qn_cuda_impl *impl = kernel->impl;
    const qn_cuda_device device = device_of(ctx);
    qn_cuda *cuda = qn_cuda_get(ctx);
    qn_cuda_program *programs = qn_calloc(ctx, QN_CUDA_PROGRAMS, sizeof *programs);
    const int32_t count = programs && cuda ? impl->programs(kernel, desc, &device, programs) : 0;
    for (int32_t i = 0; i < count; i++) {
        char *source = qn_cuda_source_text(cuda, &programs[i]);
        qn_text_add(text, "// %s: program %d of %d, %s\n%s%s", kernel->name, i + 1, count, programs[i].entry,
                    source ? source : "out of memory", i + 1 < count ? "\n" : "");
        qn_free(ctx, source);
    }
    qn_free(ctx, programs);
}
