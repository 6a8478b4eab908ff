/* Kernel enumeration, test cases and measured ceilings: for tools, tests and
 * benches. No stability promise. */
#ifndef QUERN_EXPERIMENTAL_H
#define QUERN_EXPERIMENTAL_H

#include <quern/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One row of the kernel registry. */
typedef struct qn_kernel_info {
    const char *name;     /* qn_<op>_<act>_<wgt>_<out>[_<epi>]__<isa>_<MR>x<NR>[_<variant>] */
    qn_op op;
    qn_backend backend;
    qn_isa isa;
    const char *status;   /* "tested", "compiled, not run", "reference" */
    const char *level;    /* name of isa; for device kernels their targets in words */
    const char *refusal;  /* why this machine cannot run it; NULL when it can */
} qn_kernel_info;

/* Row i (from 0) as seen from this context's machine; QN_E_ARGUMENT past the end. */
QN_API qn_status qn_kernel_at(qn_ctx *ctx, int32_t i, qn_kernel_info *info);

/* The device sources that a plan of this descriptor compiles at run time, parameters first; for a typical device where
 * there is none. Like snprintf: *length (may be NULL) is what it needs. QN_E_UNSUPPORTED: nothing is compiled for it. */
QN_API qn_status qn_kernel_sources(qn_ctx *ctx, const qn_op_desc *desc, const qn_plan_options *options, char *text,
                                   size_t capacity, size_t *length, qn_error *error);

/* One program of qn_kernels_warm. Texts live until the callback returns. */
typedef struct qn_warm_info {
    const char *kernel, *case_text, *target;
    const char *program; /* name of its cache entry */
    const char *made;    /* "shipped", "cached", "compiled"; NULL: it failed, see error */
    double seconds;
    const qn_error *error;
} qn_warm_info;

/* Make every device kernel that a case of the table needs and put it into the context's cache
 * folder, or find it there. targets: "sm_90a,sm_80", "all", NULL: the device's. exec: where the compiler works; its
 * threads call the context's allocator and log too. fn, may be NULL, hears of each program, of one at a time but from
 * any of those threads, and stops the work by a value other than 0 (QN_E_CANCELLED).
 * QN_E_ARGUMENT: no such target. QN_E_DEVICE: targets is NULL and there is no device. QN_E_JIT: a program
 * failed (the first failure; the others were still tried). */
typedef int32_t (*qn_warm_fn)(void *user, const qn_warm_info *info);
QN_API qn_status qn_kernels_warm(qn_ctx *ctx, const char *targets, const qn_exec *exec, qn_warm_fn fn, void *user,
                                 qn_error *error);

/* What this machine can run and why not, one fact a line (quern doctor).
 * Like snprintf: returns the length it needs. */
QN_API size_t qn_doctor(qn_ctx *ctx, char *text, size_t capacity);

/* The case table shared by tests and benches: row i as a case string; NULL past the end.
 * bench is 0 for rows that only test, 1 for rows that a default bench times, 2 for more shapes to time. */
QN_API const char *qn_case_at(int32_t i, int32_t *bench);

/* Fill the inputs of a checked descriptor with reproducible values.
 * exact = 1: small integers and power-of-two scales, so that every product and
 * sum is exactly representable and all kernels must agree bit for bit;
 * 0: random values of the size a model has. in[] are dense buffers of the
 * descriptor's shapes (absent ones NULL). */
QN_API qn_status qn_case_fill(const qn_op_desc *desc, uint64_t seed, int32_t exact, void *const in[QN_MAX_IN],
                              qn_error *error);

typedef struct qn_case_result {
    int32_t pass;
    double max_error;    /* largest |got - want| over what the error model allows there; pass is <= 1 */
    double max_abs;      /* largest |got - want| */
    int32_t slot;        /* output slot and flat element of the worst one */
    int64_t index;
    double want, got;
} qn_case_result;

/* Judge outputs against the reference's outputs under the operator's error model. */
QN_API qn_status qn_case_judge(const qn_op_desc *desc, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                               const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error);

/* The same for outputs of a plan, on inputs of the plan's shapes, and with what the error model allows the sums of its
 * kernel (docs/operators.md): FP8 tensor cores keep fewer bits than f32. */
QN_API qn_status qn_plan_judge(const qn_plan *plan, const qn_view want[QN_MAX_OUT], const qn_view got[QN_MAX_OUT],
                               const qn_view in[QN_MAX_IN], int32_t exact, qn_case_result *result, qn_error *error);

/* Bytes a run must move, as the formats store them (weights, scales, activations, results), and operations it must do
 * (2 per multiply-add). in: NULL, or the operands in host memory, whose sizes of groups then say which experts' weights
 * and which rows a grouped product reads; without them all rows count, and as many experts as these can be of. */
typedef struct qn_case_cost {
    double bytes, flops;
    const char *memory; /* the memory ceiling that applies: "read"; "copy" where results are much of the bytes */
} qn_case_cost;
QN_API qn_status qn_case_get_cost(const qn_op_desc *desc, const qn_view in[QN_MAX_IN], qn_case_cost *cost,
                                  qn_error *error);

/* The arithmetic ceiling that a kernel's multiply-adds meet: the row's own word, else by its level and operands.
 * NULL: an operator that works row by row, which memory bounds (a copy of the same bytes), and a device's kernel,
 * whose arithmetic has no measured ceiling. */
QN_API const char *qn_plan_ceiling(const qn_plan *plan);

/* ---- Ceilings: what this machine reaches at best ----
 *
 * "read" and "copy" in GB/s (a copy counts both directions), over memory that
 * the caches cannot hold; "fp32_fma", "bf16_dot", "int8_dot", "int16_dot",
 * "bf16_tile" and "int8_tile" in GFLOP/s (two per multiply-add), out of
 * registers. Each is the best loop of the given level or below, on the exec's
 * threads. */

typedef struct qn_meter qn_meter;

/* Twice the last-level caches that this many threads see, at least 256 MiB and
 * at most 1 GiB: the memory that "read" and "copy" go through by default.
 * *cache_bytes (may be NULL): those caches, 0 when the processor does not tell.
 * Below 2 * cache_bytes a part may stay in a cache and a ceiling come out too high. */
QN_API size_t qn_meter_advise(int32_t threads, size_t *cache_bytes);

/* Create a meter that measures on exec (kept, not owned; NULL: the calling thread).
 * memory_bytes 0: what qn_meter_advise says; the memory is allocated by the first
 * "read" or "copy" and kept. *out is NULL on failure. QN_E_ARGUMENT, QN_E_MEMORY. */
QN_API qn_status qn_meter_create(qn_ctx *ctx, const qn_exec *exec, size_t memory_bytes, qn_meter **out,
                                 qn_error *error);
QN_API void qn_meter_destroy(qn_meter *meter); /* NULL is fine */

/* Measure now, about 0.1 s; the first "read" and the first "copy" of a level try every way
 * that the level has and take about 1 s. A "read" or "copy" also empties the caches of anything else.
 * QN_E_UNSUPPORTED: the machine or level has no such instruction. QN_E_ARGUMENT, QN_E_MEMORY. */
QN_API qn_status qn_meter_measure(qn_meter *meter, const char *name, qn_isa isa, double *value, qn_error *error);

/* One measurement with a meter of its own. Statuses of qn_meter_measure. */
QN_API qn_status qn_ceiling_measure(qn_ctx *ctx, const char *name, qn_isa isa, const qn_exec *exec, double *value,
                                    qn_error *error);

/* The same of the context's device, with buffers far beyond its caches: "read", "copy" in GB/s (a copy counts
 * the bytes read and those written). QN_E_ARGUMENT: no such name. QN_E_DEVICE, QN_E_JIT, QN_E_MEMORY. */
QN_API qn_status qn_device_ceiling(qn_ctx *ctx, const char *name, double *value, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
