/* Operands of kernel tests: memory that ends, or begins, at a page that may not
 * be touched, or lies off every alignment, with poisoned gaps between rows.
 * Maps of few pages are kept for the next operand of their size, as new pages cost more than the kernels that small
 * cases run; until then AddressSanitizer takes them for freed. One thread makes operands. */
#ifndef QN_TESTS_KERNELS_OPERANDS_H
#define QN_TESTS_KERNELS_OPERANDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <quern/experimental.h>
#include <quern/quern.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif

typedef enum placement { AT_END = 0, AT_START = 1, OFF_ALIGNMENT = 2 } placement;

typedef struct guarded {
    char *map, *data;
    size_t bytes, usable;
    int frozen;
} guarded;

enum { KEPT_PAGES = 64 };
static char *kept_maps[KEPT_PAGES]; /* by pages between the forbidden ones; the first word of these is the next map */

/* Where maps of so much usable memory are kept; NULL: they are not. */
static inline char **kept_place(size_t usable)
{
    const size_t pages = usable / (size_t)sysconf(_SC_PAGESIZE);
    return pages < KEPT_PAGES ? &kept_maps[pages] : NULL;
}

/* A map whose first and last page may not be touched. */
static inline char *map_take(size_t usable)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char **const kept = kept_place(usable);
    if (kept && *kept) {
        char *const map = *kept;
        ASAN_UNPOISON_MEMORY_REGION(map + page, usable);
        memcpy(kept, map + page, sizeof *kept);
        return map;
    }
    char *const map = mmap(NULL, usable + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        abort();
    }
    mprotect(map, page, PROT_NONE);
    mprotect(map + page + usable, page, PROT_NONE);
    return map;
}

/* shift: bytes off a page boundary for OFF_ALIGNMENT; of an element. */
static inline guarded guarded_make(size_t bytes, placement where, size_t shift, int poison)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = bytes + (where == OFF_ALIGNMENT ? shift : 0);
    guarded g = {.bytes = bytes, .usable = (room + page - 1) / page * page + (room ? 0 : page)};
    g.map = map_take(g.usable);
    memset(g.map + page, poison, g.usable);
    g.data = g.map + page + (where == AT_END ? g.usable - bytes : (where == OFF_ALIGNMENT ? shift : 0));
    return g;
}

/* 64-byte aligned memory (workspace, packed weights) that ends less than 64 bytes before such a page. */
static inline guarded guarded_make_aligned(size_t bytes, int poison)
{
    guarded g = guarded_make((bytes + 63) / 64 * 64, AT_END, 0, poison);
    g.bytes = bytes;
    return g;
}

/* From now on it may be read only. */
static inline void guarded_freeze(guarded *g)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    mprotect(g->map + page, g->usable, PROT_READ);
    g->frozen = 1;
}

static inline void guarded_free(guarded *g)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char **const kept = g->map && !g->frozen ? kept_place(g->usable) : NULL;
    if (kept) {
        memcpy(g->map + page, kept, sizeof *kept);
        ASAN_POISON_MEMORY_REGION(g->map + page, g->usable);
        *kept = g->map;
    } else if (g->map) {
        munmap(g->map, g->usable + 2 * page);
    }
    g->map = NULL;
}

/* Whether each of so many bytes is that one. */
static inline int all_bytes_are(const char *p, size_t count, int byte)
{
    return count == 0 || (*(const unsigned char *)p == byte && memcmp(p, p + 1, count - 1) == 0);
}

/* Bytes of the page that belong to no row still hold the poison. */
static inline int canaries_alive(const guarded *g, int poison)
{
    const char *const first = g->map + sysconf(_SC_PAGESIZE), *const after = g->data + g->bytes;
    return all_bytes_are(first, (size_t)(g->data - first), poison) &&
           all_bytes_are(after, (size_t)(first + g->usable - after), poison);
}

/* Strides of a shape whose rows are gap elements longer than dense (0: dense). */
static inline size_t strides_of(const qn_shape *shape, int64_t gap, int64_t strides[QN_MAX_DIMS])
{
    const qn_format_info *f = qn_format_get_info(shape->format);
    size_t row = 0;
    memset(strides, 0, sizeof(int64_t) * QN_MAX_DIMS);
    if (shape->ndim == 0) {
        return (size_t)f->block_bytes;
    }
    qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL);
    int64_t step = (int64_t)row + (shape->ndim > 1 ? gap * f->block_bytes : 0);
    strides[shape->ndim - 1] = f->block_bytes;
    size_t total = row;
    for (int i = shape->ndim - 2; i >= 0; i--) {
        strides[i] = step;
        if (shape->dims[i] == 0) {
            return 0;
        }
        total += (size_t)(step * (shape->dims[i] - 1));
        step *= shape->dims[i];
    }
    return shape->dims[shape->ndim - 1] ? total : 0;
}

/* Rows of a dense tensor to or from a strided one. */
static inline void copy_rows(const qn_shape *shape, char *to, const int64_t *to_strides, const char *from,
                             const int64_t *from_strides)
{
    if (qn_shape_elements(shape) == 0) {
        return;
    }
    size_t row;
    qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL);
    int64_t rows = 1;
    for (int i = 0; i + 1 < shape->ndim; i++) {
        rows *= shape->dims[i];
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = 0, f = 0, at = r;
        for (int i = shape->ndim - 2; i >= 0; i--) {
            t += at % shape->dims[i] * to_strides[i];
            f += at % shape->dims[i] * from_strides[i];
            at /= shape->dims[i];
        }
        memcpy(to + t, from + f, row);
    }
}

/* As qn_kernel_at, which asks the processor each time what it can: on a virtual machine that takes longer than many a
 * small case. Of one context. */
static inline qn_status kernel_at(qn_ctx *from, int32_t i, qn_kernel_info *info)
{
    enum { MOST = 1024 };
    static qn_kernel_info known[MOST];
    static int32_t count;
    while (i >= count && count < MOST) {
        if (qn_kernel_at(from, count, &known[count]) != QN_OK) {
            return QN_E_ARGUMENT;
        }
        count++;
    }
    if (i >= count) {
        return qn_kernel_at(from, i, info);
    }
    *info = known[i];
    return QN_OK;
}

#endif
