/* String builder with snprintf's contract, and a growing one. */
#ifndef QN_BASE_TEXT_H
#define QN_BASE_TEXT_H

#include <stddef.h>

#include "base/context.h"

/* Appends to a caller's buffer; length counts what it would need. */
typedef struct qn_text {
    char *data;
    size_t capacity, length;
} qn_text;

static inline qn_text qn_text_make(char *data, size_t capacity)
{
    if (capacity) {
        data[0] = 0;
    }
    return (qn_text){data, capacity, 0};
}

__attribute__((format(printf, 2, 3))) void qn_text_add(qn_text *text, const char *format, ...);

/* Grows in the context's memory; failed is set when memory ran out (further
 * adds do nothing). data is zero-terminated once anything was added. */
typedef struct qn_buffer {
    const qn_ctx *ctx;
    char *data;
    size_t length, capacity;
    int failed;
} qn_buffer;

static inline qn_buffer qn_buffer_make(const qn_ctx *ctx)
{
    return (qn_buffer){.ctx = ctx};
}
void qn_buffer_add(qn_buffer *buffer, const void *data, size_t bytes);
__attribute__((format(printf, 2, 3))) void qn_buffer_print(qn_buffer *buffer, const char *format, ...);
void qn_buffer_free(qn_buffer *buffer);

#endif
