/* Plan creation, packing and running: the public face of every kernel.
 *
 * The walk over candidates (walk.c) decides; here the choice is kept, arguments
 * are checked against it and the kernel is called. qn_run makes no allocation
 * and touches no text unless it fails. */
#include "plan/plan.h"

#include <string.h>

#include <xxhash.h>

#include "base/checked.h"
#include "base/context.h"
#include "base/error.h"
#include "base/floats.h"
#include "op/op.h"

_Static_assert(sizeof(qn_blob_header) == 64, "the packed body must stay 64-byte aligned");

/* ---- creation ---- */

void qn_plan_options_init(qn_plan_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->isa = QN_ISA_MAX;
}

qn_status qn_plan_options_get(const qn_plan_options *options, qn_plan_options *out, qn_error *error)
{
    qn_plan_options_init(out);
    if (!options) {
        return QN_OK;
    }
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_plan_options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_FAIL_IF(!qn_backend_name(options->backend), error, QN_E_ARGUMENT, "backend is %d, which is none",
               (int)options->backend);
    QN_FAIL_IF(options->isa != QN_ISA_MAX && !qn_isa_name(options->isa), error, QN_E_ARGUMENT,
               "isa is %d, which is none", (int)options->isa);
    *out = *options;
    return QN_OK;
}

/* What packed weights depend on: the operator, its weights' shapes and the layout; not on rows, level or kernel. */
static uint64_t fingerprint_of(const qn_op_desc *desc, const qn_sizes *sizes, const qn_kernel *kernel)
{
    struct {
        int64_t op, n, k, e, g;
        int32_t attr[QN_ATTR_COUNT];
        int64_t slots[QN_MAX_IN][2 + QN_MAX_DIMS];
    } key;
    memset(&key, 0, sizeof key);
    key.op = desc->op;
    key.n = sizes->n;
    key.k = sizes->k;
    key.e = sizes->e;
    key.g = sizes->g;
    for (int i = 0; i < QN_ATTR_COUNT; i++) {
        memcpy(&key.attr[i], &desc->attr[i], sizeof key.attr[i]);
    }
    const qn_op_info *info = qn_op_get_info(desc->op);
    for (int i = 0; i < info->in_count; i++) {
        if (info->in[i].weight) {
            key.slots[i][0] = desc->in[i].format;
            key.slots[i][1] = desc->in[i].ndim;
            memcpy(&key.slots[i][2], desc->in[i].dims, sizeof desc->in[i].dims);
        }
    }
    return XXH3_64bits_withSeed(&key, sizeof key, kernel->pack_layout);
}

/* What options force and this machine lacks: QN_E_DEVICE with the reason. */
static qn_status check_machine(const qn_ctx *ctx, const qn_plan_options *options, qn_error *error)
{
    for (int i = 0; qn_backend_at(i); i++) {
        const qn_backend_row *backend = qn_backend_at(i);
        const char *reason = backend->backend == options->backend ? backend->refusal(ctx) : NULL;
        QN_FAIL_IF(reason, error, QN_E_DEVICE, "backend %s: %s", backend->name, reason);
    }
    const char *reason = options->isa == QN_ISA_MAX ? NULL : qn_backend_cpu_row.isa_refusal(ctx, options->isa);
    QN_FAIL_IF(reason, error, QN_E_DEVICE, "isa %s: %s", qn_isa_name(options->isa), reason);
    return QN_OK;
}

/* The last refusal of the walk, for the sentence of a failed creation. */
static qn_status no_candidate(const qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options,
                              qn_error *error)
{
    qn_walk walk = {0};
    qn_candidate candidate, last = {NULL, "", "no kernel of that name, backend and level"};
    while (qn_walk_next(ctx, desc, options, &walk, &candidate)) {
        last = candidate;
    }
    const char *const op = qn_op_get_info(desc->op)->name;
    QN_FAIL(error, QN_E_UNSUPPORTED, "%s: no candidate accepts backend %s, isa %s%s%s (%s%s%s)", op,
            qn_backend_name(options->backend), options->isa == QN_ISA_MAX ? "max" : qn_isa_name(options->isa),
            options->kernel ? ", kernel " : "", options->kernel ? options->kernel : "", last.name,
            *last.name ? ": " : "", last.refusal);
}

qn_status qn_plan_choose(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_plan **out,
                         qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_plan_create: out is NULL");
    *out = NULL;
    QN_FAIL_IF(!ctx || !desc, error, QN_E_ARGUMENT, "qn_plan_create: %s is NULL", ctx ? "desc" : "ctx");
    qn_plan_options chosen;
    QN_TRY(qn_plan_options_get(options, &chosen, error));
    qn_shape shapes[QN_MAX_OUT];
    qn_sizes sizes;
    QN_TRY(qn_op_desc_check(desc, shapes, &sizes, error));
    QN_TRY(check_machine(ctx, &chosen, error));
    qn_walk walk = {0};
    qn_candidate candidate;
    do {
        if (!qn_walk_next(ctx, desc, &chosen, &walk, &candidate)) {
            return no_candidate(ctx, desc, &chosen, error);
        }
    } while (candidate.refusal);
    const size_t length = chosen.kernel ? strlen(chosen.kernel) + 1 : 0;
    qn_plan *plan = qn_alloc(ctx, sizeof *plan + length);
    QN_FAIL_IF(!plan, error, QN_E_MEMORY, "out of memory for a plan");
    *plan = (qn_plan){.ctx = ctx, .desc = *desc, .sizes = sizes, .options = chosen, .kernel = candidate.kernel};
    memcpy(plan->out, shapes, sizeof shapes);
    if (length) {
        memcpy(plan->text, chosen.kernel, length);
        plan->options.kernel = plan->text;
    }
    plan->fingerprint = fingerprint_of(desc, &sizes, plan->kernel);
    plan->backend = qn_backend_find(plan->kernel->backend);
    *out = plan;
    return QN_OK;
}

static qn_status open_plan(qn_plan *plan, qn_error *error)
{
    const qn_kernel *kernel = plan->kernel;
    return kernel->open && !plan->state ? kernel->open(kernel, plan->ctx, &plan->desc, &plan->state, error) : QN_OK;
}

qn_status qn_plan_create(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_plan **out,
                         qn_error *error)
{
    QN_TRY(qn_plan_choose(ctx, desc, options, out, error));
    const qn_status status = open_plan(*out, error);
    if (status != QN_OK) {
        qn_plan_destroy(*out);
        *out = NULL;
    }
    return status;
}

/* Of a backend's plans that are not open: made ready all at once. */
static qn_status prepare(const qn_backend_row *backend, qn_plan *const *plans, size_t count, const qn_exec *exec,
                         qn_error *error)
{
    const qn_ctx *ctx = plans[0]->ctx;
    qn_opening *openings = qn_calloc(ctx, count, sizeof *openings);
    QN_FAIL_IF(!openings, error, QN_E_MEMORY, "out of memory for plans");
    size_t waiting = 0;
    for (size_t i = 0; i < count; i++) {
        if (plans[i]->backend == backend && plans[i]->kernel->open && !plans[i]->state) {
            openings[waiting++] = (qn_opening){plans[i]->kernel, &plans[i]->desc};
        }
    }
    const qn_status status = waiting ? backend->prepare(ctx, openings, waiting, exec, error) : QN_OK;
    qn_free(ctx, openings);
    return status;
}

qn_status qn_plans_open(qn_plan *const *plans, size_t count, const qn_exec *exec, qn_error *error)
{
    const qn_backend_row *backend;
    for (int i = 0; count && (backend = qn_backend_at(i)) != NULL; i++) {
        if (backend->prepare) {
            QN_TRY(prepare(backend, plans, count, exec, error));
        }
    }
    for (size_t i = 0; i < count; i++) {
        QN_TRY(open_plan(plans[i], error));
    }
    return QN_OK;
}

void qn_plan_destroy(qn_plan *plan)
{
    if (plan) {
        if (plan->kernel->close) {
            plan->kernel->close(plan->ctx, plan->state);
        }
        qn_free(plan->ctx, plan);
    }
}

const qn_op_desc *qn_plan_desc(const qn_plan *plan)
{
    return &plan->desc;
}

const char *qn_plan_kernel(const qn_plan *plan)
{
    return plan->kernel->name;
}

qn_backend qn_plan_backend(const qn_plan *plan)
{
    return plan->kernel->backend;
}

/* ---- arguments ---- */

/* Bytes from the first to past the last byte that a view covers; strides are checked to be sane. */
static qn_status view_extent(const char *name, const qn_shape *shape, const int64_t *strides, int dense_order,
                             uint64_t *extent, qn_error *error)
{
    const qn_format_info *format = qn_format_get_info(shape->format);
    size_t row;
    *extent = 0;
    if (shape->ndim == 0) {
        *extent = (uint64_t)format->block_bytes;
        return QN_OK;
    }
    QN_TRY(qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, error));
    uint64_t total = row;
    for (int i = shape->ndim - 2; i >= 0; i--) {
        if (shape->dims[i] == 0) {
            return QN_OK;
        }
        if (shape->dims[i] == 1) {
            continue;
        }
        const int64_t stride = strides[i];
        QN_FAIL_IF(stride < 0, error, QN_E_ARGUMENT, "%s: stride %d is negative (%lld)", name, i, (long long)stride);
        QN_FAIL_IF(dense_order && (uint64_t)stride < total, error, QN_E_ARGUMENT,
                   "%s: stride %d is %lld bytes, rows overlap below %llu", name, i, (long long)stride,
                   (unsigned long long)total);
        QN_FAIL_IF(format->block_elements == 1 && stride % format->block_bytes != 0, error, QN_E_ALIGNMENT,
                   "%s: stride %d is %lld bytes, not a multiple of the element's %d", name, i, (long long)stride,
                   format->block_bytes);
        uint64_t step;
        QN_FAIL_IF(qn_mul_u64((uint64_t)stride, (uint64_t)(shape->dims[i] - 1), &step) ||
                       qn_add_u64(total, step, &total) || total > PTRDIFF_MAX,
                   error, QN_E_SHAPE, "%s: dimension %d with its stride exceeds the address space", name, i);
    }
    *extent = shape->dims[shape->ndim - 1] ? total : 0;
    return QN_OK;
}

static qn_status check_data(const char *name, const qn_shape *shape, const void *data, uint64_t extent, qn_error *error)
{
    const qn_format_info *format = qn_format_get_info(shape->format);
    QN_FAIL_IF(extent && !data, error, QN_E_ARGUMENT, "%s: data is NULL for %llu bytes", name,
               (unsigned long long)extent);
    QN_FAIL_IF(format->block_elements == 1 && (uintptr_t)data % (uintptr_t)format->block_bytes != 0, error,
               QN_E_ALIGNMENT, "%s: data is not aligned to its element's %d bytes", name, format->block_bytes);
    return QN_OK;
}

typedef struct span {
    uintptr_t first, bytes;
} span;

static int spans_overlap(span a, span b)
{
    return a.bytes && b.bytes && a.first < b.first + b.bytes && b.first < a.first + a.bytes;
}

/* Sizes that one plan serves any value of. */
static int same_sizes(qn_op op, const qn_sizes *a, const qn_sizes *b)
{
    const int any_n =
        op == QN_OP_ATTENTION || op == QN_OP_SCALED_ATTENTION || op == QN_OP_VQ_ATTENTION || op == QN_OP_VQ_ENCODE;
    return a->k == b->k && a->e == b->e && a->g == b->g && (a->n == b->n || any_n);
}

/* Shapes of a run: those of args, but the plan's for weights that a blob replaces. */
static qn_status run_shapes(const qn_plan *plan, const qn_args *args, qn_op_desc *desc, qn_shape *out, qn_sizes *sizes,
                            qn_error *error)
{
    const qn_op_info *info = qn_op_get_info(plan->desc.op);
    *desc = plan->desc;
    for (int i = 0; i < info->in_count; i++) {
        if (!(args->packed && info->in[i].weight)) {
            desc->in[i] = args->in[i].shape;
            QN_FAIL_IF(desc->in[i].format != plan->desc.in[i].format, error, QN_E_FORMAT,
                       "%s is %s, the plan was made for %s", info->in[i].name,
                       desc->in[i].format
                           ? (qn_format_get_info(desc->in[i].format) ? qn_format_get_info(desc->in[i].format)->name
                                                                     : "of no known format")
                           : "absent",
                       plan->desc.in[i].format ? qn_format_get_info(plan->desc.in[i].format)->name : "none");
        }
    }
    QN_TRY(qn_op_desc_check(desc, out, sizes, error));
    QN_FAIL_IF(!same_sizes(desc->op, sizes, &plan->sizes), error, QN_E_SHAPE,
               "%s: sizes N %lld, K %lld, E %lld, G %lld are not the plan's %lld, %lld, %lld, %lld", info->name,
               (long long)sizes->n, (long long)sizes->k, (long long)sizes->e, (long long)sizes->g,
               (long long)plan->sizes.n, (long long)plan->sizes.k, (long long)plan->sizes.e, (long long)plan->sizes.g);
    return QN_OK;
}

static int same_shape(const qn_shape *a, const qn_shape *b)
{
    if (a->format != b->format || a->ndim != b->ndim) {
        return 0;
    }
    for (int i = 0; i < a->ndim; i++) {
        if (a->dims[i] != b->dims[i]) {
            return 0;
        }
    }
    return 1;
}

static qn_status check_operands(const qn_op_desc *desc, const qn_shape *out, const qn_args *args, qn_error *error)
{
    const qn_op_info *info = qn_op_get_info(desc->op);
    span in[QN_MAX_IN] = {{0, 0}};
    for (int i = 0; i < info->in_count; i++) {
        const qn_view *v = &args->in[i];
        if (desc->in[i].format == QN_FORMAT_NONE || (args->packed && info->in[i].weight)) {
            continue;
        }
        uint64_t extent;
        QN_TRY(view_extent(info->in[i].name, &v->shape, v->strides, 0, &extent, error));
        QN_TRY(check_data(info->in[i].name, &v->shape, v->data, extent, error));
        in[i] = (span){(uintptr_t)v->data, (uintptr_t)extent};
    }
    for (int i = 0; i < info->out_count; i++) {
        const qn_mut_view *v = &args->out[i];
        const char *const name = info->out[i].name;
        if (out[i].format == QN_FORMAT_NONE) {
            continue;
        }
        QN_FAIL_IF(v->shape.format != out[i].format, error, QN_E_FORMAT, "output %s is not %s", name,
                   qn_format_get_info(out[i].format)->name);
        QN_FAIL_IF(!same_shape(&v->shape, &out[i]), error, QN_E_SHAPE,
                   "output %s has %d dimensions, first %lld x %lld; expected %d, first %lld x %lld", name,
                   v->shape.ndim, (long long)v->shape.dims[0], (long long)v->shape.dims[1], out[i].ndim,
                   (long long)out[i].dims[0], (long long)out[i].dims[1]);
        uint64_t extent;
        QN_TRY(view_extent(name, &v->shape, v->strides, 1, &extent, error));
        QN_TRY(check_data(name, &v->shape, v->data, extent, error));
        const span mine = {(uintptr_t)v->data, (uintptr_t)extent};
        for (int j = 0; j < info->in_count; j++) {
            QN_FAIL_IF(spans_overlap(mine, in[j]), error, QN_E_ARGUMENT, "output %s overlaps input %s", name,
                       info->in[j].name);
        }
    }
    return QN_OK;
}

/* ---- packing ---- */

size_t qn_plan_pack_bytes(const qn_plan *plan)
{
    const qn_kernel *kernel = plan->kernel;
    if (!kernel->pack_bytes) {
        return 0;
    }
    const size_t body = kernel->pack_bytes(kernel, &plan->desc);
    return body > SIZE_MAX - sizeof(qn_blob_header) ? SIZE_MAX : sizeof(qn_blob_header) + body;
}

qn_status qn_pack(const qn_plan *plan, const qn_args *args, void *blob, size_t blob_bytes, qn_error *error)
{
    QN_FAIL_IF(!plan || !args || !blob, error, QN_E_ARGUMENT, "qn_pack: %s is NULL",
               !plan ? "plan" : (!args ? "args" : "blob"));
    const size_t need = qn_plan_pack_bytes(plan);
    QN_FAIL_IF(need == 0, error, QN_E_ARGUMENT, "%s reads weights as they are stored, there is nothing to pack",
               plan->kernel->name);
    QN_FAIL_IF(blob_bytes < need, error, QN_E_WORKSPACE, "the blob has %zu bytes, the packed weights need %zu",
               blob_bytes, need);
    QN_FAIL_IF((uintptr_t)blob % QN_ALIGN != 0, error, QN_E_ALIGNMENT, "the blob is not aligned to %d bytes", QN_ALIGN);
    const qn_op_info *info = qn_op_get_info(plan->desc.op);
    for (int i = 0; i < info->in_count; i++) {
        const qn_view *v = &args->in[i];
        if (!info->in[i].weight || plan->desc.in[i].format == QN_FORMAT_NONE) {
            continue;
        }
        QN_FAIL_IF(!same_shape(&v->shape, &plan->desc.in[i]), error, QN_E_SHAPE,
                   "weight %s does not have the plan's format and shape", info->in[i].name);
        uint64_t extent;
        QN_TRY(view_extent(info->in[i].name, &v->shape, v->strides, 0, &extent, error));
        QN_TRY(check_data(info->in[i].name, &v->shape, v->data, extent, error));
    }
    if (!plan->backend->device) {
        QN_TRY(qn_op_weights_check(&plan->desc, args, error));
    }
    const qn_blob_header header = {.magic = QN_BLOB_MAGIC,
                                   .version = QN_BLOB_VERSION,
                                   .layout = plan->kernel->pack_layout,
                                   .fingerprint = plan->fingerprint,
                                   .bytes = need};
    memcpy(blob, &header, sizeof header);
    const uint32_t floats = qn_floats_set();
    plan->kernel->pack(plan->kernel, &plan->desc, args, (char *)blob + sizeof header);
    qn_floats_restore(floats);
    return QN_OK;
}

qn_status qn_plan_check_blob(const qn_plan *plan, const void *blob, qn_error *error)
{
    QN_FAIL_IF(!plan->kernel->pack_bytes, error, QN_E_PACKED, "%s takes no packed weights", plan->kernel->name);
    QN_FAIL_IF((uintptr_t)blob % QN_ALIGN != 0, error, QN_E_ALIGNMENT, "the packed blob is not aligned to %d bytes",
               QN_ALIGN);
    if (plan->backend->device) {
        return QN_OK; /* its header is where only the device can read it */
    }
    qn_blob_header header;
    memcpy(&header, blob, sizeof header);
    QN_FAIL_IF(header.magic != QN_BLOB_MAGIC || header.version != QN_BLOB_VERSION, error, QN_E_PACKED,
               "the packed blob is none of this version");
    QN_FAIL_IF(header.layout != plan->kernel->pack_layout, error, QN_E_PACKED,
               "the packed blob has layout %u, %s expects %u", header.layout, plan->kernel->name,
               plan->kernel->pack_layout);
    QN_FAIL_IF(header.fingerprint != plan->fingerprint || header.bytes != qn_plan_pack_bytes(plan), error, QN_E_PACKED,
               "the packed blob was made for another descriptor or kernel");
    return QN_OK;
}

/* ---- running ---- */

/* SIZE_MAX: more than there can be. */
static size_t workspace_for(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    if (m <= 0 || !kernel->workspace_bytes) {
        return 0;
    }
    const size_t bytes = kernel->workspace_bytes(kernel, desc, m, threads > 0 ? threads : 1);
    return bytes > SIZE_MAX - QN_ALIGN ? SIZE_MAX : qn_align_up(bytes, QN_ALIGN);
}

size_t qn_plan_workspace_bytes(const qn_plan *plan, int64_t m, int32_t threads)
{
    return workspace_for(plan->kernel, &plan->desc, m, threads);
}

/* Without rows there still is the scale of a whole tensor to write. */
static int has_elements(const qn_shape out[QN_MAX_OUT])
{
    for (int i = 0; i < QN_MAX_OUT; i++) {
        int64_t elements = out[i].format ? 1 : 0;
        for (int d = 0; d < out[i].ndim; d++) {
            elements = out[i].dims[d] ? elements : 0;
        }
        if (elements) {
            return 1;
        }
    }
    return 0;
}

qn_status qn_plan_check_run(const qn_plan *plan, const qn_args *args, const void *workspace, size_t workspace_bytes,
                            const qn_exec *exec, qn_checked *out, qn_error *error)
{
    qn_shape shapes[QN_MAX_OUT];
    if (args->packed) {
        QN_TRY(qn_plan_check_blob(plan, args->packed, error));
    }
    QN_TRY(run_shapes(plan, args, &out->desc, shapes, &out->sizes, error));
    QN_TRY(check_operands(&out->desc, shapes, args, error));
    if (!plan->backend->device) {
        QN_TRY(qn_op_args_check(&out->desc, args, error));
    }
    out->empty = out->sizes.m == 0 && !has_elements(shapes);
    if (out->empty) {
        return QN_OK;
    }
    const qn_kernel *kernel = plan->kernel;
    const size_t need = workspace_for(kernel, &out->desc, out->sizes.m, qn_exec_threads(exec));
    QN_FAIL_IF(need && (!workspace || workspace_bytes < need), error, QN_E_WORKSPACE,
               "the workspace has %zu bytes, %s needs %zu", workspace ? workspace_bytes : 0, kernel->name, need);
    QN_FAIL_IF(need && (uintptr_t)workspace % QN_ALIGN != 0, error, QN_E_ALIGNMENT,
               "the workspace is not aligned to %d bytes", QN_ALIGN);
    return QN_OK;
}

static qn_run_call call_of(const qn_plan *plan, const qn_checked *checked, const qn_args *args, void *workspace,
                           const qn_exec *exec)
{
    return (qn_run_call){.desc = &checked->desc,
                         .sizes = checked->sizes,
                         .args = args,
                         .packed = args->packed ? (const char *)args->packed + sizeof(qn_blob_header) : NULL,
                         .workspace = workspace,
                         .exec = exec,
                         .state = plan->state};
}

qn_status qn_plan_run_checked(const qn_plan *plan, const qn_checked *checked, const qn_args *args, void *workspace,
                              const qn_exec *exec, qn_error *error)
{
    const qn_kernel *kernel = plan->kernel;
    const qn_run_call call = call_of(plan, checked, args, workspace, exec);
    if (checked->empty) {
        return QN_OK;
    }
    if (kernel->launch) {
        return kernel->launch(kernel, &call, error);
    }
    const uint32_t floats = qn_floats_set();
    kernel->run(kernel, &call);
    qn_floats_restore(floats);
    return QN_OK;
}

int qn_plan_takes_next(const qn_plan *plan, const qn_plan *next)
{
    const qn_kernel *kernel = plan->kernel;
    return kernel->takes_next &&
           kernel->takes_next(kernel, &plan->desc, next ? next->kernel : NULL, next ? &next->desc : NULL);
}

static void run_with(const qn_plan *plan, const qn_checked *checked, const qn_args *args, const qn_run_next *next,
                     void *workspace, const qn_exec *exec)
{
    qn_run_call call = call_of(plan, checked, args, workspace, exec);
    call.next = next;
    if (!checked->empty) {
        const uint32_t floats = qn_floats_set();
        plan->kernel->run(plan->kernel, &call);
        qn_floats_restore(floats);
    }
}

void qn_plan_run_two(const qn_plan *plan, const qn_checked *checked, const qn_args *args, const qn_plan *next,
                     const qn_checked *next_checked, const qn_args *next_args, void *workspace, const qn_exec *exec)
{
    const qn_run_next second = {
        .kernel = next->kernel, .desc = &next_checked->desc, .args = next_args, .state = next->state};
    run_with(plan, checked, args, &second, workspace, exec);
}

void qn_plan_run_sum(const qn_plan *plan, const qn_checked *checked, const qn_args *args, const qn_mut_view *sum,
                     void *workspace, const qn_exec *exec)
{
    run_with(plan, checked, args, &(qn_run_next){.sum = *sum}, workspace, exec);
}

qn_status qn_run(const qn_plan *plan, const qn_args *args, void *workspace, size_t workspace_bytes, const qn_exec *exec,
                 qn_error *error)
{
    QN_FAIL_IF(!plan || !args, error, QN_E_ARGUMENT, "qn_run: %s is NULL", plan ? "args" : "plan");
    qn_checked checked;
    QN_TRY(qn_plan_check_run(plan, args, workspace, workspace_bytes, exec, &checked, error));
    return qn_plan_run_checked(plan, &checked, args, workspace, exec, error);
}

/* ---- judging ---- */

qn_status qn_plan_judge(const qn_plan *plan, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                        const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error)
{
    QN_FAIL_IF(!plan, error, QN_E_ARGUMENT, "qn_plan_judge: plan is NULL");
    return qn_judge(&plan->desc, plan->kernel->sums, want, got, in, exact, result, error);
}
