/* What people read about plans and this machine: explain, doctor, the kernel list. */
#include <string.h>

#include "backend/cpu/cpuid.h"
#include "base/context.h"
#include "base/error.h"
#include "base/text.h"
#include "plan/plan.h"

static void add_case(qn_text *text, const qn_op_desc *desc)
{
    char line[1024];
    qn_op_desc_print(desc, line, sizeof line);
    qn_text_add(text, "case: %s\n", line);
}

static void add_candidates(qn_text *text, const qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options,
                           const qn_kernel *chosen)
{
    qn_walk walk = {0};
    qn_candidate c;
    int found = 0;
    qn_text_add(text, "candidates:\n");
    while (qn_walk_next(ctx, desc, options, &walk, &c)) {
        const char *verdict = c.refusal ? "refused" : "accepted";
        if (!c.refusal && !found) {
            verdict = "chosen";
            found = 1;
        }
        qn_text_add(text, "  %-8s %s%s%s\n", verdict, c.name, c.refusal ? ": " : "", c.refusal ? c.refusal : "");
    }
    if (!chosen) {
        qn_text_add(text, "chosen: none\n");
    }
}

/* How far a kernel is tested on what is here. */
static const char *status_of(const qn_ctx *ctx, const qn_kernel *kernel)
{
    for (int32_t b = 0; qn_backend_at(b); b++) {
        const qn_backend_row *backend = qn_backend_at(b);
        if (backend->backend == kernel->backend && backend->status) {
            return backend->status(ctx, kernel);
        }
    }
    return kernel->status;
}

static void add_kernel(qn_text *text, const qn_ctx *ctx, const qn_kernel *kernel, const qn_op_desc *desc,
                       const qn_sizes *sizes)
{
    qn_text_add(text, "chosen: %s\n", kernel->name);
    qn_text_add(text, "status: %s\n", status_of(ctx, kernel));
    if (kernel->mr > 0) {
        qn_text_add(text, "tile: %d rows x %d columns in registers\n", kernel->mr, kernel->nr);
    }
    if (kernel->describe) {
        kernel->describe(kernel, ctx, desc, sizes, text);
    }
    if (kernel->pack_bytes) {
        qn_text_add(text, "packing: layout %u, %zu bytes; a run without packed weights packs them again\n",
                    kernel->pack_layout, sizeof(qn_blob_header) + kernel->pack_bytes(kernel, desc));
    } else {
        qn_text_add(text, "packing: none, weights are read as they are stored\n");
    }
    const int64_t m = sizes->m > 0 ? sizes->m : 0;
    qn_text_add(text, "workspace: %zu bytes for %lld rows on 1 thread\n",
                m && kernel->workspace_bytes ? kernel->workspace_bytes(kernel, desc, m, 1) : (size_t)0, (long long)m);
    qn_case_cost cost;
    if (qn_case_get_cost(desc, NULL, &cost, NULL) == QN_OK) {
        const char *arithmetic = qn_kernel_ceiling(kernel, desc);
        qn_text_add(text, "predicted: %.0f bytes, %.0f operations, bound by %s%s%s\n", cost.bytes, cost.flops,
                    cost.memory, arithmetic ? " or " : "", arithmetic ? arithmetic : "");
    }
    if (kernel->backend == QN_BACKEND_REF) {
        qn_text_add(text, "note: the scalar reference runs on one thread, far below what this machine can do\n");
    }
}

/* What the generator decides for the chosen backend; where none is chosen, for each that has a generator. */
static void add_generated(qn_text *text, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                          const qn_plan_options *options, const qn_kernel *chosen)
{
    qn_vq_problem problem;
    if (!qn_vq_problem_of(desc, sizes, &problem)) {
        return;
    }
    for (int32_t b = 0; qn_backend_at(b); b++) {
        const qn_backend_row *backend = qn_backend_at(b);
        const int wanted = chosen ? backend->backend == chosen->backend
                                  : options->backend == QN_BACKEND_AUTO || options->backend == backend->backend;
        if (wanted && backend->vq_device) {
            qn_vq_device device;
            backend->vq_device(ctx, &device);
            qn_vq_explain(&problem, &device, text);
        }
    }
}

static size_t explain(const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes, const qn_plan_options *options,
                      char *buffer, size_t capacity)
{
    qn_text text = qn_text_make(buffer, capacity);
    const qn_kernel *chosen = NULL;
    qn_walk walk = {0};
    qn_candidate c;
    while (!chosen && qn_walk_next(ctx, desc, options, &walk, &c)) {
        chosen = c.refusal ? NULL : c.kernel;
    }
    add_case(&text, desc);
    add_candidates(&text, ctx, desc, options, chosen);
    if (chosen) {
        add_kernel(&text, ctx, chosen, desc, sizes);
    }
    add_generated(&text, ctx, desc, sizes, options, chosen);
    return text.length;
}

size_t qn_plan_explain(const qn_plan *plan, char *text, size_t capacity)
{
    return explain(plan->ctx, &plan->desc, &plan->sizes, &plan->options, text, capacity);
}

qn_status qn_explain(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, char *text, size_t capacity,
                     size_t *length, qn_error *error)
{
    QN_FAIL_IF(!ctx || !desc || (!text && capacity), error, QN_E_ARGUMENT, "qn_explain: %s is NULL",
               !ctx ? "ctx" : (!desc ? "desc" : "text"));
    qn_plan_options chosen;
    QN_TRY(qn_plan_options_get(options, &chosen, error));
    qn_sizes sizes;
    qn_shape out[QN_MAX_OUT];
    QN_TRY(qn_op_desc_check(desc, out, &sizes, error));
    const size_t n = explain(ctx, desc, &sizes, &chosen, text, capacity);
    if (length) {
        *length = n;
    }
    return QN_OK;
}

qn_status qn_kernel_sources(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, char *buffer,
                            size_t capacity, size_t *length, qn_error *error)
{
    QN_FAIL_IF(!ctx || !desc || (!buffer && capacity), error, QN_E_ARGUMENT, "qn_kernel_sources: %s is NULL",
               !ctx ? "ctx" : (!desc ? "desc" : "text"));
    qn_plan_options chosen;
    QN_TRY(qn_plan_options_get(options, &chosen, error));
    qn_sizes sizes;
    qn_shape out[QN_MAX_OUT];
    QN_TRY(qn_op_desc_check(desc, out, &sizes, error));
    for (int32_t b = 0; qn_backend_at(b); b++) {
        const qn_backend_row *backend = qn_backend_at(b);
        const int wanted = chosen.backend == QN_BACKEND_AUTO || chosen.backend == backend->backend;
        const qn_kernel *kernel;
        for (int32_t i = 0; wanted && backend->sources && (kernel = backend->kernel_at(i)); i++) {
            if (kernel->op == desc->op && (!chosen.kernel || strcmp(chosen.kernel, kernel->name) == 0) &&
                !kernel->accepts(kernel, desc)) {
                qn_text text = qn_text_make(buffer, capacity);
                backend->sources(ctx, kernel, desc, &text);
                if (length) {
                    *length = text.length;
                }
                return QN_OK;
            }
        }
    }
    QN_FAIL(error, QN_E_UNSUPPORTED, "%s: no kernel for it is compiled at run time", qn_op_get_info(desc->op)->name);
}

qn_status qn_kernel_at(qn_ctx *ctx, int32_t i, qn_kernel_info *info)
{
    if (!ctx || !info || i < 0) {
        return QN_E_ARGUMENT;
    }
    for (int32_t b = 0;; b++) {
        const qn_backend_row *backend = qn_backend_at(b);
        if (!backend) {
            return QN_E_ARGUMENT;
        }
        for (int32_t r = 0;; r++, i--) {
            const qn_kernel *kernel = backend->kernel_at(r);
            if (!kernel) {
                break;
            }
            if (i == 0) {
                const char *reason = backend->refusal(ctx);
                *info = (qn_kernel_info){.name = kernel->name,
                                         .op = kernel->op,
                                         .backend = kernel->backend,
                                         .isa = kernel->isa,
                                         .status = status_of(ctx, kernel),
                                         .level = kernel->level ? kernel->level : qn_isa_name(kernel->isa),
                                         .refusal = reason ? reason : qn_backend_kernel_refusal(backend, ctx, kernel)};
                return QN_OK;
            }
        }
    }
}

/* Kernels of a level that runs here which are passed over: a line a reason. */
static void add_unsuited(qn_text *text, qn_isa isa)
{
    const char *said = NULL;
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cpu_row.kernel_at(i)); i++) {
        const char *reason = kernel->isa == isa ? qn_backend_cpu_row.unsuited(kernel) : NULL;
        if (reason && reason != said) {
            qn_text_add(text, "  some of its kernels only when they or the level are asked for: %s\n", reason);
            said = reason;
        }
    }
}

size_t qn_doctor(qn_ctx *ctx, char *buffer, size_t capacity)
{
    qn_text text = qn_text_make(buffer, capacity);
    char name[49];
    qn_cpu_name(name);
    qn_text_add(&text, "processor: %s\n", *name ? name : "unknown");
    for (int i = 0; i < QN_ISA_COUNT; i++) {
        const char *reason = qn_backend_cpu_row.isa_refusal(ctx, (qn_isa)i);
        qn_text_add(&text, "isa %s: %s\n", qn_isa_name((qn_isa)i), reason ? reason : "yes");
        if (!reason) {
            add_unsuited(&text, (qn_isa)i);
        }
    }
    for (int32_t b = 0;; b++) {
        const qn_backend_row *backend = qn_backend_at(b);
        if (!backend) {
            break;
        }
        const char *reason = backend->refusal(ctx);
        int32_t count = 0, usable = 0;
        for (const qn_kernel *kernel; (kernel = backend->kernel_at(count)); count++) {
            usable += !reason && !qn_backend_kernel_refusal(backend, ctx, kernel);
        }
        if (reason) {
            qn_text_add(&text, "backend %s: %s\n", backend->name, reason);
        } else {
            qn_text_add(&text, "backend %s: yes, %d of %d kernels run here\n", backend->name, usable, count);
        }
        if (backend->describe) {
            backend->describe(ctx, &text);
        }
    }
    return text.length;
}
