/* Plans: choose a kernel once, run it many times.
 *
 * qn_plan_create validates a descriptor and walks the candidates in order; the
 * scalar reference is last and accepts everything. The plan is immutable,
 * shareable and re-entrant. Rows (M) may differ at each run; every other size
 * is fixed by the plan. In qn_run: no allocation, no file, no environment, no
 * string work, no lock outside the pool.
 *
 * A CUDA plan is made only when options ask for that backend. Then every pointer
 * of qn_args, the workspace and the packed blob (made on the host by qn_pack and
 * copied) are memory of the context's device, qn_exec.stream is the stream, and
 * qn_run only enqueues: no synchronisation, so it may be captured in a graph. What
 * lies in device memory (offsets and counts of grouped operators, a blob's header)
 * is not checked. quern/device.h has memory, streams and events for callers without
 * CUDA code of their own. */
#ifndef QUERN_PLAN_H
#define QUERN_PLAN_H

#include <quern/exec.h>
#include <quern/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_plan qn_plan;

typedef enum qn_backend { QN_BACKEND_AUTO = 0, QN_BACKEND_REF = 1, QN_BACKEND_CPU = 2, QN_BACKEND_CUDA = 3 } qn_backend;

typedef struct qn_plan_options {
    size_t size;             /* sizeof(qn_plan_options), set by qn_plan_options_init */
    qn_backend backend;
    qn_isa isa;              /* force this level or refuse; QN_ISA_MAX: the best for the processor up to the context's cap */
    int32_t batch_invariant; /* devices: one reduction order for every M; the CPU always is */
    const char *kernel;      /* force the kernel of that name; NULL: choose */
} qn_plan_options;

QN_API void qn_plan_options_init(qn_plan_options *options);

/* Operands of a run, by slot of the operator. Absent optional inputs have
 * format QN_FORMAT_NONE. Inputs and outputs must not overlap unless the
 * operator says so. Rows (dims[0]) of inputs and outputs may be strided: strides[0]
 * may be any number of bytes from the dense row up; inner dimensions are dense. */
typedef struct qn_args {
    qn_view in[QN_MAX_IN];
    qn_mut_view out[QN_MAX_OUT];
    const void *packed; /* blob of qn_pack; then weight slots are not read */
} qn_args;

/* Create a plan; *out is NULL on failure. options may be NULL.
 * QN_E_ARGUMENT, QN_E_SHAPE, QN_E_FORMAT: as qn_op_desc_check.
 * QN_E_DEVICE: options force a backend or level that this machine lacks.
 * QN_E_UNSUPPORTED: no candidate accepts what options force. QN_E_MEMORY.
 * CUDA also: QN_E_JIT: the kernel is neither shipped nor cached and cannot be compiled. */
QN_API qn_status qn_plan_create(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_plan **out,
                                qn_error *error);
QN_API void qn_plan_destroy(qn_plan *plan); /* NULL is fine */

QN_API const qn_op_desc *qn_plan_desc(const qn_plan *plan);
QN_API const char *qn_plan_kernel(const qn_plan *plan); /* the chosen kernel's name */
QN_API qn_backend qn_plan_backend(const qn_plan *plan);

/* Bytes of the packed weights; 0 when the kernel reads weights as they are stored. */
QN_API size_t qn_plan_pack_bytes(const qn_plan *plan);

/* Pack the weight slots of args into blob (caller-owned, 64-byte aligned,
 * at least qn_plan_pack_bytes). The blob starts with a layout id and a
 * fingerprint of the descriptor: a stale blob is refused by qn_run.
 * QN_E_ARGUMENT, QN_E_SHAPE, QN_E_WORKSPACE, QN_E_ALIGNMENT. */
QN_API qn_status qn_pack(const qn_plan *plan, const qn_args *args, void *blob, size_t blob_bytes, qn_error *error);

/* Bytes of workspace for runs of at most m rows on that many threads; may be 0. */
QN_API size_t qn_plan_workspace_bytes(const qn_plan *plan, int64_t m, int32_t threads);

/* Run. workspace: 64-byte aligned, private to this call, may be NULL when its size is 0.
 * exec NULL: the calling thread. M = 0 does nothing and succeeds.
 * Deterministic: the same bits for any thread count and, on the CPU, each
 * output row the same bits whatever the other rows are.
 * QN_E_ARGUMENT, QN_E_SHAPE, QN_E_FORMAT: args do not fit the plan.
 * QN_E_WORKSPACE, QN_E_ALIGNMENT, QN_E_PACKED. QN_E_DEVICE: a launch failed, in the driver's words. */
QN_API qn_status qn_run(const qn_plan *plan, const qn_args *args, void *workspace, size_t workspace_bytes,
                        const qn_exec *exec, qn_error *error);

/* Candidates in order, each accepted or refused with the reason; the chosen
 * kernel, tile, packing, workspace, predicted bytes and operations, and the case
 * string. Like snprintf: returns the length it needs. qn_explain works where
 * qn_plan_create would fail for want of a candidate. */
QN_API size_t qn_plan_explain(const qn_plan *plan, char *text, size_t capacity);
QN_API qn_status qn_explain(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, char *text,
                            size_t capacity, size_t *length, qn_error *error);

QN_API const char *qn_backend_name(qn_backend backend); /* "auto", "ref", "cpu", "cuda" */
QN_API qn_status qn_backend_parse(const char *name, qn_backend *out, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
