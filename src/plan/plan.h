/* Plans inside the library: the object, the candidate walk and the packed blob's header. */
#ifndef QN_PLAN_PLAN_H
#define QN_PLAN_PLAN_H

#include "backend/backend.h"

struct qn_plan {
    const qn_ctx *ctx;
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_sizes sizes;
    qn_plan_options options; /* kernel points into text */
    const qn_kernel *kernel;
    const qn_backend_row *backend;
    void *state; /* of kernel->open */
    uint64_t fingerprint;
    char text[]; /* copy of options.kernel */
};

/* One candidate of a walk, in order of preference. */
typedef struct qn_candidate {
    const qn_kernel *kernel;  /* NULL: the whole backend, see name */
    const char *name;
    const char *refusal;      /* NULL: accepted */
} qn_candidate;

/* State of the walk: zero it first. */
typedef struct qn_walk {
    int32_t backend, isa, row;
} qn_walk;

/* The next candidate for the descriptor; 0 when there is none left. */
int qn_walk_next(const qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_walk *walk,
                 qn_candidate *candidate);

/* Copy options into *out (defaults when NULL) and check them. */
qn_status qn_plan_options_get(const qn_plan_options *options, qn_plan_options *out, qn_error *error);

/* qn_plan_create in two halves, for many plans: the choice, and what the kernels of all of them keep, of one backend at
 * a time made ready in exec's threads. Until it is opened a plan can be asked, not run. */
qn_status qn_plan_choose(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, qn_plan **out,
                         qn_error *error);
qn_status qn_plans_open(qn_plan *const *plans, size_t count, const qn_exec *exec, qn_error *error);

/* The arithmetic ceiling of a kernel for this descriptor, by its row, else by its level and operands; NULL: memory
 * alone bounds it (src/plan/ceiling.c). */
const char *qn_kernel_ceiling(const qn_kernel *kernel, const qn_op_desc *desc);

/* First 64 bytes of a packed blob. */
typedef struct qn_blob_header {
    uint64_t magic;
    uint32_t version, layout; /* layout: qn_kernel.pack_layout */
    uint64_t fingerprint;     /* of operator, attributes, sizes, weight shapes and kernel */
    uint64_t bytes;           /* of the whole blob */
    uint64_t reserved[4];
} qn_blob_header;

/* Whether the plan can run on a blob of at least its header's bytes. QN_E_ALIGNMENT, QN_E_PACKED. */
qn_status qn_plan_check_blob(const qn_plan *plan, const void *blob, qn_error *error);

/* What a run finds out about its arguments. Good for all of the same plan that differ in addresses alone. */
typedef struct qn_checked {
    qn_op_desc desc; /* with the shapes of the run */
    qn_sizes sizes;
    int32_t empty;   /* there is nothing to compute */
} qn_checked;

/* The two halves of qn_run: a caller who runs a plan again and again on operands of its own checks them once. */
qn_status qn_plan_check_run(const qn_plan *plan, const qn_args *args, const void *workspace, size_t workspace_bytes,
                            const qn_exec *exec, qn_checked *out, qn_error *error);
qn_status qn_plan_run_checked(const qn_plan *plan, const qn_checked *checked, const qn_args *args, void *workspace,
                              const qn_exec *exec, qn_error *error);

/* Whether the second plan's operator, which alone reads the result of the first one, can be run along with it; NULL:
 * the sum of its result and other rows. */
int qn_plan_takes_next(const qn_plan *plan, const qn_plan *next);

/* Both, as two runs of them: the bits are the same. What the first one gives is lost; its weights must be packed. */
void qn_plan_run_two(const qn_plan *plan, const qn_checked *checked, const qn_args *args, const qn_plan *next,
                     const qn_checked *next_checked, const qn_args *next_args, void *workspace, const qn_exec *exec);

/* The plan, its result added to rows of f32 that are none of its operands; what its output says is not written. */
void qn_plan_run_sum(const qn_plan *plan, const qn_checked *checked, const qn_args *args, const qn_mut_view *sum,
                     void *workspace, const qn_exec *exec);

#define QN_BLOB_MAGIC UINT64_C(0x314b434150564e51)
#define QN_BLOB_VERSION 1u

#endif
