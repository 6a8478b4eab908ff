/* Facts of the kernel a plan chose, as records show them. */
#ifndef QN_CLI_KERNEL_INFO_H
#define QN_CLI_KERNEL_INFO_H

#include <quern/experimental.h>

typedef struct kernel_facts {
    const char *kernel, *backend, *isa; /* isa: the level, or a device kernel's targets */
    qn_isa level;
} kernel_facts;

kernel_facts kernel_facts_of(qn_ctx *ctx, const qn_plan *plan);

#endif
