/* The CUDA backend inside: what a context keeps of the device, and what a family
 * of kernels provides and uses.
 *
 *   load.c      dlopen, the device, statuses and sentences of failing calls
 *   compile.c   NVRTC: source and parameters to a cubin
 *   cache.c     cubins on disk: shipped ones and the cache
 *   tuned.c     measured choices of cuts
 *   program.c   programs to loaded functions; plans' state; launches
 *   registry.c  families, the backend's row, warming the cache
 *   device.c    memory, streams, events and graphs for callers without CUDA code
 *   ceiling.c   what the device reaches
 *   vq_device.c the device and its sources for the generator (src/vq)
 *   chain.c     neighbouring steps of a model as few launches; chain_kv.c those that keep keys and values
 *   run_*.c     families: which programs a descriptor needs and how to launch them; tiles.c: what products share;
 *               attention_tiles.c what attentions share; vq_cuts.c, vq_programs.c: which kernels of vq_mm, and their
 * programs
 *
 * A family is a table of qn_kernel rows whose impl is a qn_cuda_impl and whose
 * open, close and launch are QN_CUDA_HOOKS; registry.c lists it. See docs/howto/new-cuda-kernel.md. */
#ifndef QN_BACKEND_CUDA_CUDA_H
#define QN_BACKEND_CUDA_CUDA_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/cuda/api.h"
#include "base/context.h"
#include "base/error.h"
#include "base/text.h"

/* glibc cannot load a driver into a statically linked program. */
#ifdef QN_STATIC_BINARY
#define QN_CUDA_LOADS 0
#else
#define QN_CUDA_LOADS 1
#endif

/* ---- the device ---- */

typedef enum qn_cuda_target {
    QN_SM_80 = 0,
    QN_SM_86,
    QN_SM_89,
    QN_SM_90A,
    QN_SM_100A,
    QN_SM_120A,
    QN_SM_COUNT,
    QN_SM_NONE = QN_SM_COUNT
} qn_cuda_target;

#define QN_SM_BIT(target) (1u << (target))
#define QN_SM_ALL ((1u << QN_SM_COUNT) - 1)

/* "sm_90a"; NULL when it is none. */
const char *qn_cuda_target_name(qn_cuda_target target);

/* A measured choice of a cut of block_scaled_mm: tuned.h. */
#define QN_TUNED_MOST 96
typedef struct qn_tuned {
    int32_t n, k, m;
    int32_t strip;    /* 1: value is a strip's; 0: a tile's */
    int32_t value[9]; /* in the order of a line of the file */
} qn_tuned;

/* Facts that programs and launch geometry may depend on. */
typedef struct qn_cuda_device {
    qn_cuda_target target; /* QN_SM_NONE: nothing here is compiled for it */
    int32_t major, minor;
    int32_t sms;          /* multiprocessors */
    int32_t shared_bytes; /* most dynamic shared memory of a block */
    int64_t l2_bytes;
    size_t memory_bytes;
    int32_t driver_version; /* 13000: 13.0 */
    char name[128];
    int32_t tuned_count;
    qn_tuned tuned[QN_TUNED_MOST];
} qn_cuda_device;

/* A device of that target for compiling without one; plain: without a name and tuned cuts, which are read from text. */
qn_cuda_device qn_cuda_typical_device(qn_cuda_target target);
qn_cuda_device qn_cuda_plain_device(qn_cuda_target target);

/* Functions in the place of a driver's for a device that is not there. */
extern const qn_cu_api qn_cuda_absent;

/* ---- state of a context ---- */

/* A loaded cubin; several functions may be in it. */
typedef struct qn_cuda_module {
    struct qn_cuda_module *next;
    uint64_t high, low; /* of its key */
    cu_module handle;
} qn_cuda_module;

typedef struct qn_cuda {
    const qn_ctx *ctx;
    char refusal[512]; /* why there is no usable device; "" when there is one */
    void *driver_handle, *nvrtc_handle;
    qn_cu_api cu;
    cu_device ordinal;
    cu_context context; /* the primary one, retained */
    qn_cuda_device device;

    pthread_mutex_t lock; /* of everything below */
    int nvrtc_tried;
    qn_nvrtc_api nvrtc;
    int32_t nvrtc_options;   /* how many of qn_cuda_options it knows */
    char compiler[64];       /* identity of NVRTC as a folder's name; "" when it is missing */
    char no_compiler[256];   /* why it is missing */
    int cache_failed;        /* the cache folder could not be used: said once, not tried again */
    qn_cuda_module *modules; /* loaded ones, until the context goes */
} qn_cuda;

/* The context's state, opened at the first call; NULL when memory ran out. */
qn_cuda *qn_cuda_get(const qn_ctx *ctx);

/* The state with a usable device. QN_E_DEVICE with the reason, QN_E_MEMORY. */
qn_status qn_cuda_require(const qn_ctx *ctx, qn_cuda **out, qn_error *error);

/* QN_OK, or a status and "CALL: driver's name of the error (its words)". Out of memory is QN_E_MEMORY. */
qn_status qn_cuda_check(const qn_cuda *cuda, cu_result result, const char *call, qn_error *error);

/* Make the context current for calls that follow; pop restores what was. */
qn_status qn_cuda_push(const qn_cuda *cuda, qn_error *error);
void qn_cuda_pop(const qn_cuda *cuda);

/* ---- programs ---- */

#define QN_CUDA_PROGRAMS 40 /* most that a plan may have */

/* One kernel function to be compiled: the fixed body with these parameters before it. */
typedef struct qn_cuda_program {
    const char *source;       /* file under kernels/cuda/ */
    const char *entry;        /* extern "C" name in it */
    int32_t shared_bytes;     /* dynamic shared memory it is launched with at most; 0: none */
    int32_t wide_clusters;    /* clusters of more than 8 blocks */
    int32_t most_shared;      /* all that can be is shared memory: blocks of two launches fit beside each other */
    int32_t cluster, threads; /* where the plan must know how many clusters of that size run at a time; 0: need not */
    int32_t kept[3];          /* what a launch wants to know of the program without working it out again */
    char params[768];         /* "#define NAME value" lines (qn_cuda_define) */
} qn_cuda_program;

/* Add "#define name value" to a program. */
void qn_cuda_define(qn_cuda_program *program, const char *name, int64_t value);

/* The frequency factors of rotary positions (kernels/cuda/turn.h) in an operand; NULL: there are none. Programs of
 * kernels that turn are told of them. */
static inline const float *qn_cuda_factors(const qn_view *operand)
{
    return operand->shape.format ? operand->data : NULL;
}

static inline void qn_cuda_define_factors(int there, qn_cuda_program *program)
{
    if (there) {
        qn_cuda_define(program, "FACTORS", 1);
    }
}

typedef struct qn_cuda_function {
    cu_function handle;
    int32_t registers, local_bytes; /* a thread's; local memory means spills */
    int32_t clusters;               /* of the program's size at a time; 0: not known */
    int32_t kept[3];                /* the program's */
} qn_cuda_function;

/* A run, as a family's launch sees it. functions[i] belongs to programs()'s i. */
typedef struct qn_cuda_run {
    const qn_kernel *kernel;
    const qn_run_call *call;
    const qn_cuda *cuda;
    const qn_cuda_device *device;
    const qn_cuda_function *functions;
    cu_stream stream;
} qn_cuda_run;

/* 1: the caller promises that no work under way in the stream writes the weights. */
static inline int32_t qn_cuda_constant_weights(const qn_cuda_run *run)
{
    return run->call->exec && run->call->exec->constant_weights;
}

/* impl of a CUDA row. */
typedef struct qn_cuda_impl {
    uint32_t targets; /* QN_SM_BIT of each */
    /* The programs of a descriptor that accepts() took: count, at most QN_CUDA_PROGRAMS. A pure
     * function; out is zeroed. Only what changes the code belongs into params: each distinct text is compiled. */
    int32_t (*programs)(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out);
    /* Enqueue the run. No allocation, no synchronisation, no text unless it fails. */
    qn_status (*launch)(const qn_cuda_run *run, qn_error *error);
    const void *own; /* the family's own fields */
} qn_cuda_impl;

/* Status of rows for several architectures, of which one was at hand. */
#define QN_CUDA_TESTED "tested on sm_90a"

/* The hooks every CUDA row has beside its own fields. */
#define QN_CUDA_HOOKS                                                                                                  \
    .backend = QN_BACKEND_CUDA, .open = qn_cuda_open, .close = qn_cuda_close, .launch = qn_cuda_launch_row
qn_status qn_cuda_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                       qn_error *error);
void qn_cuda_close(const qn_ctx *ctx, void *state);
qn_status qn_cuda_prepare(const qn_ctx *ctx, const qn_opening *openings, size_t count, const qn_exec *exec,
                          qn_error *error);
qn_status qn_cuda_launch_row(const qn_kernel *kernel, const qn_run_call *call, qn_error *error);

typedef struct qn_cuda_geometry {
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic, at most the program's */
    uint32_t cluster;      /* blocks of a cluster along x; 0, 1: none */
    int32_t cooperative;   /* all blocks are resident, or the launch fails */
    int32_t dependent; /* programmatic dependent launch, on sm_90 and above: may start while the kernel before drains */
} qn_cuda_geometry;

/* Enqueue function i of the run with pointers to its arguments, in order. */
qn_status qn_cuda_launch(const qn_cuda_run *run, int32_t i, const qn_cuda_geometry *geometry, void *const *arguments,
                         qn_error *error);

/* A tensor map of rank <= 5: type is a CU_TENSOR_*, dims and box in elements, innermost first,
 * strides[rank-1] in bytes from dimension 1 on (multiples of 16), swizzle a CU_SWIZZLE_*. Elements
 * outside are read as 0. QN_E_DEVICE also when the driver has no tensor maps. */
typedef struct qn_cuda_tensor {
    const void *data; /* 16-byte aligned */
    int32_t type, rank, swizzle, promotion;
    uint64_t dims[5], strides[4];
    uint32_t box[5];
} qn_cuda_tensor;
qn_status qn_cuda_tensor_map(const qn_cuda *cuda, const qn_cuda_tensor *tensor, qn_tensor_map *map, qn_error *error);

/* The loaded function of a program, from this context's modules, the shipped cubins, the cache or NVRTC,
 * as the context's policy allows. QN_E_JIT: none of those gives it. QN_E_DEVICE, QN_E_MEMORY. */
qn_status qn_cuda_function_get(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_function *out, qn_error *error);

/* ---- compiling and keeping ---- */

/* Device sources as the build embedded them; ends with a NULL name. */
typedef struct qn_cuda_source {
    const char *name; /* file under kernels/cuda/ */
    const char *text; /* zero-terminated */
    size_t bytes;
} qn_cuda_source;
extern const qn_cuda_source qn_cuda_sources[];

/* Result of a compilation, in the context's memory. */
typedef struct qn_cuda_image {
    char *cubin, *log;
    size_t cubin_bytes;
} qn_cuda_image;
void qn_cuda_image_free(const qn_cuda *cuda, qn_cuda_image *image);

/* What a program's cubin depends on besides the compiler. */
typedef struct qn_cuda_key {
    uint64_t high, low;
    qn_cuda_target target;
    char entry[128]; /* name of its folder: source, target, hash */
} qn_cuda_key;

/* Options of every compilation beside the target. */
extern const char *const qn_cuda_options[];
extern const int32_t qn_cuda_option_count;

/* Key of a program for a target. QN_E_INTERNAL: no such source is embedded. */
qn_status qn_cuda_key_make(const qn_cuda_program *program, qn_cuda_target target, qn_cuda_key *key, qn_error *error);

/* Parameters and body as one text; free with qn_free. NULL: no memory. */
char *qn_cuda_source_text(const qn_cuda *cuda, const qn_cuda_program *program);

/* Open NVRTC if it was not tried yet; QN_E_JIT with the reason when it is missing. Needs the lock. */
qn_status qn_cuda_nvrtc(qn_cuda *cuda, qn_error *error);

/* Compile. QN_E_JIT: the first line of the compiler's log. Needs the lock. */
qn_status qn_cuda_compile(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_target target, qn_cuda_image *image,
                          qn_error *error);

/* 1: a file's content in memory of its own, zero-terminated; 0: it is not there or cannot be read. */
int qn_cuda_read_file(const qn_cuda *cuda, const char *path, char **data, size_t *bytes);

/* Look a cubin up below a folder of compilers' folders; compiler NULL: any. 1: found. A damaged entry is
 * none and said in the log. */
int qn_cuda_cache_find(const qn_cuda *cuda, const char *root, const char *compiler, const qn_cuda_key *key,
                       qn_cuda_image *image);

/* Whether the cache folder takes entries, which is made for it. QN_E_IO, QN_E_MEMORY. */
qn_status qn_cuda_cache_check(const qn_cuda *cuda, qn_error *error);

/* Put an entry into the cache folder; a failure is said once in the log. Needs the lock. */
void qn_cuda_cache_store(qn_cuda *cuda, const qn_cuda_program *program, const qn_cuda_key *key,
                         const qn_cuda_image *image);

/* A program's cubin for a target by the policy, loaded from disk or made. `made`, may be NULL: where it
 * came from, "shipped", "cached" or "compiled". Needs the lock, and gives it away while the compiler works. */
qn_status qn_cuda_obtain(qn_cuda *cuda, const qn_cuda_program *program, qn_cuda_target target, qn_cuda_image *image,
                         const char **made, qn_error *error);

/* ---- registry ---- */

typedef struct qn_cuda_family {
    const qn_kernel *kernels;
    size_t bytes; /* sizeof the array */
} qn_cuda_family;

extern const qn_cuda_family qn_cuda_quantize_family, qn_cuda_block_scaled_mm_family,
    qn_cuda_grouped_block_scaled_mm_family, qn_cuda_scaled_mm_family, qn_cuda_mm_family, qn_cuda_activation_family,
    qn_cuda_fp4_family, qn_cuda_fp4_mm_family, qn_cuda_dense_mm_family, qn_cuda_planes_family, qn_cuda_vq_family,
    qn_cuda_vq_kv_family, qn_cuda_vq_dequantize_family, qn_cuda_attention_family, qn_cuda_scaled_attention_family;

extern const qn_backend_chains qn_cuda_chains;

/* Program i (from 0) of those that every model needs beside its operators' and that no shape changes; 0: there is
 * none. For warming. */
int qn_cuda_chain_program(int32_t i, qn_cuda_program *program);

/* A launch over m rows of k elements, a thread 8 of them at a time: kernels/cuda/add.cu and the like. */
qn_cuda_geometry qn_cuda_runs_geometry(const qn_cuda_device *device, int64_t m, int64_t k);

/* A device for the generator (vq_device.c); the context's, or a typical one. */
void qn_cuda_vq_device(const qn_cuda_device *device, qn_vq_device *out);
void qn_cuda_vq_device_of(const qn_ctx *ctx, qn_vq_device *out);

/* qn_backend_row.sources. */
void qn_cuda_sources_of(const qn_ctx *ctx, const qn_kernel *kernel, const qn_op_desc *desc, qn_text *text);

/* The program of qn_device_ceiling, for warming. */
extern const qn_cuda_program qn_cuda_ceiling_program;

/* NULL when the row runs on the context's device, else why not. */
const char *qn_cuda_kernel_refusal(const qn_ctx *ctx, const qn_kernel *kernel);

#endif
