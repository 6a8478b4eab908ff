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

typedef struct qn_kernel qn_kernel;

/* One run: everything is checked by the plan. desc has the shapes of this run
 * (rows included), sizes are its sizes. */
typedef struct qn_run_call {
    const qn_op_desc *desc;
    qn_sizes sizes;
    const qn_args *args;
    const void *packed; /* body of the blob after its header; NULL: read the weight slots */
    void *workspace;    /* workspace_bytes() bytes, 64-byte aligned */
    const qn_exec *exec;
} qn_run_call;

struct qn_kernel {
    const char *name; /* qn_<op>_<act>_<wgt>_<out>__<isa>_<MR>x<NR>, or qn_<op>__ref */
    qn_op op;
    qn_backend backend;
    qn_isa isa;
    int32_t mr, nr;       /* rows and columns of the register tile; 0: none */
    uint32_t pack_layout; /* id of the packed layout; 0: reads weights as they are stored */
    const char *status;   /* "tested", "compiled, not run", "reference" */
    const char *arithmetic; /* ceiling of its multiply-adds ("int8_dot", ...); NULL: see qn_kernel_ceiling */
    /* NULL when the kernel can compute this descriptor, else why not (static text). */
    const char *(*accepts)(const qn_kernel *kernel, const qn_op_desc *desc);
    /* Bytes of the packed body (without header); NULL function: packs nothing. */
    size_t (*pack_bytes)(const qn_kernel *kernel, const qn_op_desc *desc);
    void (*pack)(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body);
    /* Bytes for at most m rows on that many threads; NULL function: none. */
    size_t (*workspace_bytes)(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads);
    void (*run)(const qn_kernel *kernel, const qn_run_call *call);
    const void *impl; /* the family's own fields (fragments, tiles) */
};

typedef struct qn_backend_row {
    qn_backend backend;
    const char *name;
    /* NULL when the backend works on this machine, else why not. */
    const char *(*refusal)(const qn_ctx *ctx);
    /* Kernels in order of preference; NULL past the end. */
    const qn_kernel *(*kernel_at)(int32_t i);
    /* NULL when the machine and the context's cap allow that level, else why not. */
    const char *(*isa_refusal)(const qn_ctx *ctx, qn_isa isa);
} qn_backend_row;

/* Backend i in order of preference; NULL past the end. */
const qn_backend_row *qn_backend_at(int32_t i);

extern const qn_backend_row qn_backend_ref_row;
extern const qn_backend_row qn_backend_cpu_row;
extern const qn_backend_row qn_backend_cuda_row;

#endif
