/* Backends: where kernels live, as a small table.
 *
 * A backend is one row of qn_backends[] (backend.c); a kernel is one qn_kernel
 * row of a backend's registry. Plans (src/plan) choose among kernels and call
 * them; nothing else does. A new kernel is a row; a new backend is a row here
 * and its registry. */
#ifndef QN_BACKEND_BACKEND_H
#define QN_BACKEND_BACKEND_H

#include <quern/experimental.h>
#include <quern/plan.h>

#include "base/text.h"
#include "op/op.h"
#include "vq/generator.h"

typedef struct qn_kernel qn_kernel;

/* What is behind a product and alone reads its result: silu_mul or silu_mul_quant, or the sum with other rows. */
typedef struct qn_run_next {
    const qn_kernel *kernel; /* NULL: a sum */
    const qn_op_desc *desc;  /* with the shapes of this run */
    const qn_args *args;
    void *state;     /* of its plan */
    qn_mut_view sum; /* f32 rows that the result is added to */
} qn_run_next;

/* One run: everything is checked by the plan. desc has the shapes of this run
 * (rows included), sizes are its sizes. */
typedef struct qn_run_call {
    const qn_op_desc *desc;
    qn_sizes sizes;
    const qn_args *args;
    const void *packed; /* body of the blob after its header; NULL: read the weight slots */
    void *workspace;    /* workspace_bytes() bytes, 64-byte aligned */
    const qn_exec *exec;
    void *state;             /* what the kernel's open made for the plan */
    const qn_run_next *next; /* to be run too, what lies between is lost; only with packed weights, where takes_next
                                says so, and in a workspace that is enough for either; NULL: none */
} qn_run_call;

/* Processors of one level differ in what a host kernel may live by. */
typedef enum qn_suits {
    QN_SUITS_ALL = 0,
    QN_SUITS_FAST_BF16_DOTS /* a dot of pairs of bf16 takes no longer than a multiply-add of floats */
} qn_suits;

struct qn_kernel {
    const char *name; /* qn_<op>_<act>_<wgt>_<out>__<isa>_<MR>x<NR>, or qn_<op>__ref */
    qn_op op;
    qn_backend backend;
    qn_isa isa;
    int32_t mr, nr;         /* rows and columns of the register tile; 0: none */
    uint32_t pack_layout;   /* id of the packed layout; 0: reads weights as they are stored */
    qn_suits suits;         /* on other processors it is taken only when it or its level is asked for */
    const char *level;      /* device kernels: the targets in words, e.g. "sm_90a"; NULL: the name of isa */
    const char *status;     /* "tested", "compiled, not run", "reference" */
    qn_sums sums;           /* of a matmul: what the error model allows it */
    const char *arithmetic; /* ceiling of its multiply-adds ("int8_dot", ...); NULL: see qn_kernel_ceiling */
    /* NULL when the kernel can compute this descriptor, else why not (static text). */
    const char *(*accepts)(const qn_kernel *kernel, const qn_op_desc *desc);
    /* Bytes of the packed body (without header); NULL function: packs nothing. */
    size_t (*pack_bytes)(const qn_kernel *kernel, const qn_op_desc *desc);
    void (*pack)(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
    /* Bytes for at most m rows on that many threads; NULL function: none. */
    size_t (*workspace_bytes)(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
    /* Whether a run can do the operator behind this one too, or next NULL the sum, with the bits of both by themselves.
     * NULL function: no. */
    int (*takes_next)(const qn_kernel *kernel, const qn_op_desc *desc, const qn_kernel *next,
                      const qn_op_desc *next_desc);
    /* Host kernels: compute. Device kernels have launch instead, which enqueues the work on exec's stream. */
    void (*run)(const qn_kernel *kernel, const qn_run_call *call);
    qn_status (*launch)(const qn_kernel *kernel, const qn_run_call *call, qn_error *error);
    /* What a plan of this kernel keeps, made with the plan and freed with it; NULL functions: nothing. */
    qn_status (*open)(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                      qn_error *error);
    void (*close)(const qn_ctx *ctx, void *state);
    /* Lines for explain on how the kernel is cut for this descriptor and these sizes; NULL function: none. */
    void (*describe)(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text);
    const void *impl; /* the family's own fields (fragments, tiles) */
};

/* ---- Chains: what a device does with neighbouring steps of a model in as few launches as it can ---- */

typedef enum qn_chain_kind {
    QN_CHAIN_OPERATOR = 0, /* desc */
    QN_CHAIN_ADD,          /* out[0] += in[0], f32; of in[0] there is one row for all where its rows do not move */
    QN_CHAIN_LOOKUP,       /* out[0] = rows of the table in[0] by the ids in[1] */
    QN_CHAIN_KEEP,         /* row position % R of out[0], F16 [R, ...], = rows of in[0], f32 */
    QN_CHAIN_COPY          /* out[0] = rows of in[0], f32 */
} qn_chain_kind;

/* One step with its operands in device memory, of one row. What it computes is the operator's definition; how many
 * steps a launch covers and what of the operands between them is written is the backend's affair. */
typedef struct qn_chain_step {
    qn_chain_kind kind;
    const qn_op_desc *desc; /* of an operator */
    qn_args args;
    uint32_t cached_in;  /* bit per input: rows of a cache up to the position; its view has them all */
    uint32_t cached_out; /* bit per output: the cache's row at the position */
} qn_chain_step;

typedef struct qn_chain qn_chain;

typedef struct qn_backend_chains {
    /* Take the first steps of a list that ends where their results are last needed. *taken: how many; 0, and *out
     * NULL: none, as they are no pattern that has a kernel here. position: in device memory, where kernels read it.
     * Weights must not change while the chain lives. QN_E_MEMORY, QN_E_JIT, QN_E_DEVICE. */
    qn_status (*create)(const qn_ctx *ctx, const qn_chain_step *steps, int32_t count, const int32_t *position,
                        qn_chain **out, int32_t *taken, qn_error *error);
    /* Enqueue. rows: of ADD and LOOKUP, else 1. No allocation, no synchronisation. */
    qn_status (*run)(const qn_chain *chain, int32_t rows, void *stream, qn_error *error);
    /* Enqueue a KEEP or COPY of these rows in place of those it was made with; positions: of a KEEP. */
    qn_status (*keep)(const qn_chain *chain, const qn_args *args, const int32_t *positions, void *stream,
                      qn_error *error);
    void (*destroy)(const qn_ctx *ctx, qn_chain *chain);
} qn_backend_chains;

/* A kernel and the descriptor that a plan of it will be opened with. */
typedef struct qn_opening {
    const qn_kernel *kernel;
    const qn_op_desc *desc;
} qn_opening;

typedef struct qn_backend_row {
    qn_backend backend;
    const char *name;
    /* NULL when the backend works on this machine, else why not. */
    const char *(*refusal)(const qn_ctx *ctx);
    /* Kernels in order of preference; NULL past the end. */
    const qn_kernel *(*kernel_at)(int32_t i);
    /* NULL when the machine and the context's cap allow that level, else why not. NULL function: no levels. */
    const char *(*isa_refusal)(const qn_ctx *ctx, qn_isa isa);
    /* The same for one kernel; NULL function: as its level. */
    const char *(*kernel_refusal)(const qn_ctx *ctx, const qn_kernel *kernel);
    /* NULL when the kernel suits the processor, else what does not. NULL function: all do. */
    const char *(*unsuited)(const qn_kernel *kernel);
    /* How far the kernel is tested on the device at hand. NULL function: as its row says. */
    const char *(*status)(const qn_ctx *ctx, const qn_kernel *kernel);
    /* Lines for qn_doctor, where the backend works and where not; NULL function: none. */
    void (*describe)(const qn_ctx *ctx, qn_text *text);
    /* The machine as the generator sees it; without a device, a typical one. NULL function: it has no generated
     * kernels. */
    void (*vq_device)(const qn_ctx *ctx, qn_vq_device *device);
    /* The sources that a kernel of this descriptor is compiled from, one after the other. NULL function: none. */
    void (*sources)(const qn_ctx *ctx, const qn_kernel *kernel, const qn_op_desc *desc, qn_text *text);
    /* Make ready, in exec's threads, what takes long in opening plans of these kernels, so that each then opens at
     * once. QN_E_MEMORY, QN_E_JIT, QN_E_DEVICE. NULL function: nothing does. */
    qn_status (*prepare)(const qn_ctx *ctx, const qn_opening *openings, size_t count, const qn_exec *exec,
                         qn_error *error);
    /* Operands, workspace and packed weights of a run are device memory. */
    int32_t device;
    const qn_backend_chains *chains; /* NULL: none */
} qn_backend_row;

/* Backend i in order of preference; NULL past the end. */
const qn_backend_row *qn_backend_at(int32_t i);

/* The row of a backend; never NULL for a kernel's. */
const qn_backend_row *qn_backend_find(qn_backend backend);

/* NULL when this machine and context can run the kernel, else why not. */
static inline const char *qn_backend_kernel_refusal(const qn_backend_row *backend, const qn_ctx *ctx,
                                                    const qn_kernel *kernel)
{
    return backend->kernel_refusal ? backend->kernel_refusal(ctx, kernel) : backend->isa_refusal(ctx, kernel->isa);
}

extern const qn_backend_row qn_backend_ref_row;
extern const qn_backend_row qn_backend_cpu_row;
extern const qn_backend_row qn_backend_cuda_row;

#endif
