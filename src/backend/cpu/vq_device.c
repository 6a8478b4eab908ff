/* A core as the generator of vector-quantised kernels sees it: shared memory is L1, registers are permute tables. The
 * rates are those of the processors that docs/vq.md names; what a machine reaches is measured by the bench. */
#include "backend/cpu/vq_device.h"

#include <stdio.h>

#include "backend/cpu/cpuid.h"
#include "base/context.h"

void qn_cpu_vq_device(const qn_ctx *ctx, qn_vq_device *out)
{
    char name[49];
    qn_isa best = QN_ISA_SCALAR;
    for (int i = 0; i < QN_ISA_COUNT; i++) {
        if ((qn_isa)i <= ctx->isa_cap && !qn_cpu_refusal((qn_isa)i)) {
            best = (qn_isa)i;
        }
    }
    qn_cpu_name(name);
    const int wide = best >= QN_ISA_AVX512, dots = best >= QN_ISA_AVX512VNNI;
    *out = (qn_vq_device){.cpu = 1,
                          .units = 2,
                          .lanes = dots                  ? 64
                                   : wide                ? 16
                                   : best >= QN_ISA_AVX2 ? 8
                                                         : 1,
                          .registers = wide ? 32 * 64 : 16 * 32,
                          .shared_bytes = 48 << 10,
                          .banks = 1,
                          .bank_bytes = 64,
                          .l2_bytes = 2 << 20,
                          .clock = 3.0,
                          .read_rate = 34.0,
                          .l2_rate = 200.0,
                          .issue = 2.0,
                          .fma = wide                  ? 32.0
                                 : best >= QN_ISA_AVX2 ? 16.0
                                                       : 2.0,
                          .tensor = best >= QN_ISA_AMX ? 1024.0
                                    : dots             ? 128.0
                                                       : 0.0,
                          .launch = 5.0,
                          .lookup_share = 1.0,
                          .issue_share = 1.0,
                          .math_share = 1.0};
    snprintf(out->name, sizeof out->name, "%.40s, %s", *name ? name : "this processor", qn_isa_name(best));
}
