#include "base/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"

#define LARGE_BYTES ((size_t)8 << 20) /* a few large pages */

static void *default_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    void *p = NULL;
    return posix_memalign(&p, align, size ? size : 1) == 0 ? p : NULL;
}

static void default_release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

void qn_ctx_options_init(qn_ctx_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->isa_cap = QN_ISA_MAX;
}

/* Copies of the options' texts and room for late state; 0 when memory ran out. */
static int fill_ctx(qn_ctx *ctx, const qn_ctx_options *options)
{
    const struct {
        const char *from;
        char **to;
    } texts[] = {{options->cache_dir, &ctx->cache_dir},
                 {options->cubin_dir, &ctx->cubin_dir},
                 {options->cuda_library, &ctx->cuda_library},
                 {options->nvrtc_library, &ctx->nvrtc_library},
                 {options->cuda_target, &ctx->cuda_target}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].from && !(*texts[i].to = qn_strdup(ctx, texts[i].from))) {
            return 0;
        }
    }
    ctx->late = qn_calloc(ctx, 1, sizeof *ctx->late);
    return ctx->late && pthread_mutex_init(&ctx->late->lock, NULL) == 0;
}

qn_status qn_ctx_create(const qn_ctx_options *options, qn_ctx **out, qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "qn_ctx_create: out is NULL");
    *out = NULL;
    qn_ctx_options defaults;
    if (!options) {
        qn_ctx_options_init(&defaults);
        options = &defaults;
    }
    QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
               "qn_ctx_create: options.size is %zu, this library expects %zu", options->size, sizeof *options);
    QN_FAIL_IF((unsigned)options->jit > QN_JIT_OFF, error, QN_E_ARGUMENT, "qn_ctx_create: jit is %d, which is none",
               (int)options->jit);
    QN_FAIL_IF(options->device < 0, error, QN_E_ARGUMENT, "qn_ctx_create: device is %d, expected 0 or more",
               options->device);
    QN_FAIL_IF(!options->allocator.alloc != !options->allocator.release, error, QN_E_ARGUMENT,
               "qn_ctx_create: the allocator needs both alloc and release");
    qn_allocator a = options->allocator;
    if (!a.alloc) {
        a.alloc = default_alloc;
        a.release = default_release;
    }
    qn_ctx *ctx = a.alloc(a.user, sizeof *ctx, QN_ALIGN);
    QN_FAIL_IF(!ctx, error, QN_E_MEMORY, "out of memory for the context (%zu bytes)", sizeof *ctx);
    *ctx = (qn_ctx){.allocator = a,
                    .log = options->log,
                    .log_user = options->log_user,
                    .isa_cap = options->isa_cap,
                    .jit = options->jit,
                    .device = options->device};
    if (!fill_ctx(ctx, options)) {
        qn_ctx_destroy(ctx);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for the context's options");
    }
    *out = ctx;
    return QN_OK;
}

void qn_ctx_destroy(qn_ctx *ctx)
{
    if (ctx) {
        if (ctx->late) {
            if (ctx->late->state) {
                ctx->late->close(ctx->late->state);
            }
            pthread_mutex_destroy(&ctx->late->lock);
            qn_free(ctx, ctx->late);
        }
        qn_free(ctx, ctx->cache_dir);
        qn_free(ctx, ctx->cubin_dir);
        qn_free(ctx, ctx->cuda_library);
        qn_free(ctx, ctx->nvrtc_library);
        qn_free(ctx, ctx->cuda_target);
        const qn_allocator a = ctx->allocator;
        a.release(a.user, ctx);
    }
}

void *qn_alloc(const qn_ctx *ctx, size_t size)
{
    return ctx->allocator.alloc(ctx->allocator.user, size ? size : 1, QN_ALIGN);
}

void qn_want_large_pages(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t lost = (page - (uintptr_t)memory % page) % page; /* before the first whole page */
    if (bytes >= LARGE_BYTES && lost < bytes) {
        (void)madvise((char *)memory + lost, (bytes - lost) / page * page, MADV_HUGEPAGE);
    }
#else
    (void)memory;
    (void)bytes;
#endif
}

void *qn_calloc(const qn_ctx *ctx, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    void *p = qn_alloc(ctx, bytes);
    if (p) {
        memset(p, 0, bytes);
    }
    return p;
}

void qn_free(const qn_ctx *ctx, void *pointer)
{
    if (pointer) {
        ctx->allocator.release(ctx->allocator.user, pointer);
    }
}

char *qn_strndup(const qn_ctx *ctx, const char *text, size_t length)
{
    char *copy = qn_alloc(ctx, length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

char *qn_strdup(const qn_ctx *ctx, const char *text)
{
    return qn_strndup(ctx, text, strlen(text));
}

void qn_log(const qn_ctx *ctx, qn_log_level level, const char *format, ...)
{
    if (ctx->log) {
        char line[512];
        va_list args;
        va_start(args, format);
        vsnprintf(line, sizeof line, format, args);
        va_end(args);
        ctx->log(ctx->log_user, level, line);
    }
}

static const char *const isa_names[QN_ISA_COUNT] = {"scalar", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};

const char *qn_isa_name(qn_isa isa)
{
    return (unsigned)isa < QN_ISA_COUNT ? isa_names[isa] : NULL;
}

qn_status qn_isa_parse(const char *name, qn_isa *out, qn_error *error)
{
    for (int i = 0; name && i < QN_ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) == 0) {
            *out = (qn_isa)i;
            return QN_OK;
        }
    }
    QN_FAIL(error, QN_E_ARGUMENT,
            "isa is '%s', expected scalar, avx2, avx512, avx512vnni, avx512bf16 or amx", name ? name : "(null)");
}
