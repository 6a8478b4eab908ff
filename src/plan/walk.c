/* The candidate walk: backends in order, levels from the best down, then the
 * registry's order; each candidate with NULL or the reason it is refused. */
#include "plan/plan.h"

#include <string.h>

static const char *refuse(const qn_ctx *ctx, const qn_backend_row *backend, const qn_op_desc *desc,
                          const qn_plan_options *options, const qn_kernel *kernel)
{
    if (options->kernel && strcmp(options->kernel, kernel->name) != 0) {
        return "another kernel is asked for";
    }
    if (options->isa != QN_ISA_MAX && kernel->isa > options->isa) {
        return "above the level asked for";
    }
    /* what it is made for first: the machine need not be blamed for what would not run elsewhere either */
    const char *reason = kernel->accepts(kernel, desc);
    if (!reason) {
        reason = qn_backend_kernel_refusal(backend, ctx, kernel);
    }
    if (!reason && backend->unsuited && !options->kernel && options->isa != kernel->isa) {
        reason = backend->unsuited(kernel);
    }
    return reason;
}

/* A forced level that the machine lacks refuses everything. A device's operands live in its own
 * memory, so it is never chosen for a caller who did not say so. */
static const char *refuse_backend(const qn_ctx *ctx, const qn_backend_row *backend, const qn_plan_options *options)
{
    if (options->backend != QN_BACKEND_AUTO && options->backend != backend->backend) {
        return "another backend is asked for";
    }
    if (backend->device && options->backend == QN_BACKEND_AUTO) {
        return "only when asked for by name: its operands are device memory";
    }
    if (backend->device && options->isa != QN_ISA_MAX) {
        return "an instruction-set level is asked for, which is a thing of the cpu";
    }
    const char *reason = backend->refusal(ctx);
    if (!reason && options->isa != QN_ISA_MAX) {
        reason = qn_backend_cpu_row.isa_refusal(ctx, options->isa);
    }
    return reason;
}

int qn_walk_next(const qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_walk *walk,
                 qn_candidate *candidate)
{
    for (const qn_backend_row *backend; (backend = qn_backend_at(walk->backend));
         *walk = (qn_walk){walk->backend + 1, 0, 0}) {
        const char *reason = refuse_backend(ctx, backend, options);
        if (reason) {
            *candidate = (qn_candidate){NULL, backend->name, reason};
            *walk = (qn_walk){walk->backend + 1, 0, 0};
            return 1;
        }
        for (; walk->isa < QN_ISA_COUNT; walk->isa++, walk->row = 0) {
            const qn_isa isa = (qn_isa)(QN_ISA_COUNT - 1 - walk->isa);
            for (const qn_kernel *kernel; (kernel = backend->kernel_at(walk->row));) {
                walk->row++;
                if (kernel->op == desc->op && kernel->isa == isa) {
                    *candidate = (qn_candidate){kernel, kernel->name, refuse(ctx, backend, desc, options, kernel)};
                    return 1;
                }
            }
        }
    }
    return 0;
}
