/* The CPU backend's row: which levels may run, and the families' kernels as one list. */
#include "backend/backend.h"

#include "backend/cpu/cpuid.h"
#include "backend/cpu/registry.h"
#include "backend/cpu/vq_device.h"
#include "base/context.h"

static const char *refusal(const qn_ctx *ctx)
{
    (void)ctx;
    return NULL;
}

static const char *isa_refusal(const qn_ctx *ctx, qn_isa isa)
{
    return isa > ctx->isa_cap ? "above the context's instruction-set cap" : qn_cpu_refusal(isa);
}

static const char *unsuited(const qn_kernel *kernel)
{
    return qn_cpu_unsuited(kernel->suits);
}

static const qn_kernel *kernel_at(int32_t i)
{
    for (int32_t f = 0; i >= 0; f++) {
        const qn_cpu_family family = qn_cpu_family_at(f);
        if (!family.kernels) {
            return NULL;
        }
        if (i < family.count) {
            return &family.kernels[i];
        }
        i -= family.count;
    }
    return NULL;
}

const qn_backend_row qn_backend_cpu_row = {.backend = QN_BACKEND_CPU,
                                           .name = "cpu",
                                           .refusal = refusal,
                                           .kernel_at = kernel_at,
                                           .isa_refusal = isa_refusal,
                                           .unsuited = unsuited,
                                           .vq_device = qn_cpu_vq_device};
