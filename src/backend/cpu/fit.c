#include "backend/cpu/fit.h"

#include "backend/cpu/cpuid.h"
#include "base/context.h"

const qn_fit_set *qn_cpu_fit(const qn_ctx *ctx)
{
    static const struct {
        qn_isa isa;
        const qn_fit_set *set;
    } levels[] = {{QN_ISA_AVX512, &qn_fit__avx512}, {QN_ISA_AVX2, &qn_fit__avx2}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (levels[i].isa <= ctx->isa_cap && !qn_cpu_refusal(levels[i].isa)) {
            return levels[i].set;
        }
    }
    return &qn_fit__scalar;
}
