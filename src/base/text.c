#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void qn_text_add(qn_text *text, const char *format, ...)
{
    const size_t room = text->length < text->capacity ? text->capacity - text->length : 0;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(room ? text->data + text->length : NULL, room, format, args);
    va_end(args);
    if (n > 0) {
        text->length += (size_t)n;
    }
}

static int buffer_reserve(qn_buffer *buffer, size_t more)
{
    if (buffer->failed) {
        return 1;
    }
    if (more >= SIZE_MAX / 4 || buffer->length >= SIZE_MAX / 4) {
        buffer->failed = 1;
        return 1;
    }
    const size_t need = buffer->length + more + 1;
    if (need > buffer->capacity) {
        size_t capacity = buffer->capacity ? buffer->capacity * 2 : 256;
        if (capacity < need) {
            capacity = need;
        }
        char *data = qn_alloc(buffer->ctx, capacity);
        if (!data) {
            buffer->failed = 1;
            return 1;
        }
        if (buffer->length) {
            memcpy(data, buffer->data, buffer->length);
        }
        qn_free(buffer->ctx, buffer->data);
        buffer->data = data;
        buffer->capacity = capacity;
    }
    return 0;
}

void qn_buffer_add(qn_buffer *buffer, const void *data, size_t bytes)
{
    if (buffer_reserve(buffer, bytes)) {
        return;
    }
    if (bytes) {
        memcpy(buffer->data + buffer->length, data, bytes);
        buffer->length += bytes;
    }
    buffer->data[buffer->length] = 0;
}

void qn_buffer_print(qn_buffer *buffer, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    if (n >= 0 && !buffer_reserve(buffer, (size_t)n)) {
        vsnprintf(buffer->data + buffer->length, (size_t)n + 1, format, again);
        buffer->length += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void qn_buffer_free(qn_buffer *buffer)
{
    qn_free(buffer->ctx, buffer->data);
    *buffer = (qn_buffer){.ctx = buffer->ctx};
}
