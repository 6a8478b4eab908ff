#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <quern/version.h>

/* Control characters would break the one-line promise, stray bytes the UTF-8
 * one: names from hostile files end up in these texts. */
static void make_printable(char *text)
{
    unsigned char *p = (unsigned char *)text;
    while (*p) {
        size_t n = 1;
        if (*p >= 0xC2 && *p <= 0xDF) {
            n = 2;
        } else if (*p >= 0xE0 && *p <= 0xEF) {
            n = 3;
        } else if (*p >= 0xF0 && *p <= 0xF4) {
            n = 4;
        }
        int good = n > 1 || (*p >= 0x20 && *p < 0x7F);
        for (size_t i = 1; good && i < n; i++) {
            good = (p[i] & 0xC0) == 0x80;
        }
        if (good) {
            p += n;
        } else {
            *p++ = '?';
        }
    }
}

qn_status qn_error_set(qn_error *error, qn_status status, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
        make_printable(error->text);
    }
    return status;
}

qn_status qn_error_prefix(qn_error *error, qn_status status, const char *format, ...)
{
    if (error) {
        char old[sizeof error->text];
        memcpy(old, error->text, sizeof old);
        va_list args;
        va_start(args, format);
        int n = vsnprintf(error->text, sizeof error->text, format, args);
        va_end(args);
        if (n >= 0 && (size_t)n < sizeof error->text) {
            /* What does not fit is cut off. */
            const size_t used = (size_t)n, room = sizeof error->text - used;
            if (room > 2) {
                memcpy(error->text + used, ": ", 2);
                memcpy(error->text + used + 2, old, room - 2);
                error->text[sizeof error->text - 1] = 0;
            }
        }
        make_printable(error->text);
    }
    return status;
}

const char *qn_status_name(qn_status status)
{
    switch (status) {
    case QN_OK: return "QN_OK";
    case QN_E_ARGUMENT: return "QN_E_ARGUMENT";
    case QN_E_SHAPE: return "QN_E_SHAPE";
    case QN_E_FORMAT: return "QN_E_FORMAT";
    case QN_E_ALIGNMENT: return "QN_E_ALIGNMENT";
    case QN_E_WORKSPACE: return "QN_E_WORKSPACE";
    case QN_E_PACKED: return "QN_E_PACKED";
    case QN_E_UNSUPPORTED: return "QN_E_UNSUPPORTED";
    case QN_E_MEMORY: return "QN_E_MEMORY";
    case QN_E_JIT: return "QN_E_JIT";
    case QN_E_DEVICE: return "QN_E_DEVICE";
    case QN_E_IO: return "QN_E_IO";
    case QN_E_FILE: return "QN_E_FILE";
    case QN_E_EXISTS: return "QN_E_EXISTS";
    case QN_E_CANCELLED: return "QN_E_CANCELLED";
    case QN_E_INTERNAL: return "QN_E_INTERNAL";
    }
    return "QN_E_?";
}

const char *qn_version(void)
{
    return QN_VERSION_STRING;
}
