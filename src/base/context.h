/* The context's inside and the library's only way to memory. */
#ifndef QN_BASE_CONTEXT_H
#define QN_BASE_CONTEXT_H

#include <pthread.h>

#include <quern/context.h>

/* What a backend opens at its first use and the context closes last. */
typedef struct qn_ctx_late {
    pthread_mutex_t lock; /* held while opening */
    void *state;          /* NULL: not opened yet */
    void (*close)(void *state);
} qn_ctx_late;

struct qn_ctx {
    qn_allocator allocator;
    qn_log_fn log;
    void *log_user;
    qn_isa isa_cap;
    qn_jit_policy jit;
    char *cache_dir, *cubin_dir, *cuda_library, *nvrtc_library, *cuda_target; /* NULL: none, the default */
    int32_t device;
    qn_ctx_late *late;
};

#define QN_ALIGN 64

/* 64-byte aligned memory, not cleared; NULL when there is none. size 0 gives a valid pointer. */
void *qn_alloc(const qn_ctx *ctx, size_t size);

/* Ask for large pages in that memory, before its first use. For what is streamed through: a core reads a page of
 * 4 KiB in a quarter of a microsecond, and finding the next one costs as much. A wish; small memory is left alone. */
void qn_want_large_pages(void *memory, size_t bytes);

/* Cleared memory of count * size bytes; NULL on overflow or when there is none. */
void *qn_calloc(const qn_ctx *ctx, size_t count, size_t size);

/* Free; NULL is fine. */
void qn_free(const qn_ctx *ctx, void *pointer);

/* Copies of text; NULL when there is no memory. */
char *qn_strdup(const qn_ctx *ctx, const char *text);
char *qn_strndup(const qn_ctx *ctx, const char *text, size_t length);

__attribute__((format(printf, 3, 4))) void qn_log(const qn_ctx *ctx, qn_log_level level, const char *format, ...);

#endif
