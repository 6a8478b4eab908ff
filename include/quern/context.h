/* The context: allocator, log, instruction-set cap, JIT policy.
 *
 * There are no globals. Everything the library creates hangs off a context
 * that the caller made and destroys last. A context is immutable after its
 * creation and may be shared by threads; what it keeps of a device (driver,
 * loaded kernels) it opens at first use, under a lock. */
#ifndef QUERN_CONTEXT_H
#define QUERN_CONTEXT_H

#include <quern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_ctx qn_ctx;

/* alloc returns size bytes aligned to align (a power of two >= 16) or NULL;
 * release takes what alloc gave, or NULL. Both may be called from any thread
 * that calls the library. */
typedef struct qn_allocator {
    void *user;
    void *(*alloc)(void *user, size_t size, size_t align);
    void (*release)(void *user, void *pointer);
} qn_allocator;

typedef enum qn_log_level { QN_LOG_ERROR = 0, QN_LOG_WARN = 1, QN_LOG_INFO = 2, QN_LOG_DEBUG = 3 } qn_log_level;

typedef void (*qn_log_fn)(void *user, qn_log_level level, const char *line);

/* Instruction-set levels of the CPU backend, in ascending order; each one
 * includes those before it. Pinned values. */
typedef enum qn_isa {
    QN_ISA_SCALAR = 0,      /* plain C for the baseline of the build target */
    QN_ISA_AVX2 = 1,        /* AVX2, FMA, F16C */
    QN_ISA_AVX512 = 2,      /* AVX-512 F, BW, DQ, VL */
    QN_ISA_AVX512VNNI = 3,  /* + VNNI, VBMI */
    QN_ISA_AVX512BF16 = 4,  /* + BF16 */
    QN_ISA_AMX = 5,         /* + AMX tiles with INT8 and BF16 */
    QN_ISA_COUNT = 6,
    QN_ISA_MAX = 0x7fff     /* no cap: the best level this machine has */
} qn_isa;

/* Where device kernels may come from, in the order tried. Pinned values. */
typedef enum qn_jit_policy {
    QN_JIT_ALLOW = 0,      /* shipped, cached, compiled now */
    QN_JIT_CACHE_ONLY = 1, /* shipped, cached */
    QN_JIT_OFF = 2         /* shipped */
} qn_jit_policy;

typedef struct qn_ctx_options {
    size_t size;             /* sizeof(qn_ctx_options), set by qn_ctx_options_init */
    qn_allocator allocator;  /* zero: malloc and free */
    qn_log_fn log;           /* NULL: silent */
    void *log_user;
    qn_isa isa_cap;          /* QN_ISA_MAX: no cap */
    qn_jit_policy jit;
    const char *cache_dir;   /* NULL: no kernel cache on disk; made when it is not there; copied, as all texts here */
    const char *cubin_dir;   /* device kernels made ahead of time, a folder in the cache's format; NULL: none */
    int32_t device;          /* ordinal of the GPU among those the driver shows */
    const char *cuda_library;  /* the driver's file; NULL: libcuda.so.1 */
    const char *nvrtc_library; /* the run-time compiler's file; NULL: libnvrtc.so of any version from 12 up */
    const char *cuda_target;   /* "sm_90a", ...: no driver is opened; device kernels are compiled and cached for a
                                * typical device of that target, and results read back are NaN; NULL: the driver */
} qn_ctx_options;

/* Fill the options with their defaults. */
QN_API void qn_ctx_options_init(qn_ctx_options *options);

/* Create a context; *out is NULL on failure. options may be NULL.
 * QN_E_ARGUMENT: out is NULL, or a wrong size field. QN_E_MEMORY. */
QN_API qn_status qn_ctx_create(const qn_ctx_options *options, qn_ctx **out, qn_error *error);

/* Destroy a context; NULL is fine. Everything made from it must be gone before. */
QN_API void qn_ctx_destroy(qn_ctx *ctx);

/* Name of a level ("scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"); NULL when it is none. */
QN_API const char *qn_isa_name(qn_isa isa);

/* The level with that name; QN_E_ARGUMENT when there is none. */
QN_API qn_status qn_isa_parse(const char *name, qn_isa *out, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
