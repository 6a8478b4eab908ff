/* Status codes and the error record.
 *
 * Every call that can fail returns a qn_status and takes an optional qn_error
 * as its last argument. The status is for programs, the record for people: one
 * sentence that names the tensor, attribute or file, what was found and what
 * was expected. The library never prints, exits or aborts. */
#ifndef QUERN_STATUS_H
#define QUERN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define QN_API
#else
#define QN_API __attribute__((visibility("default")))
#endif

/* Values are pinned: they never change meaning and are never reused. */
typedef enum qn_status {
    QN_OK = 0,
    QN_E_ARGUMENT = 10,    /* a parameter is out of its range, or NULL where it may not be */
    QN_E_SHAPE = 11,       /* dimensions do not fit each other or the format */
    QN_E_FORMAT = 12,      /* the element format is not one the operation takes */
    QN_E_ALIGNMENT = 13,   /* a pointer or stride is not aligned as documented */
    QN_E_WORKSPACE = 14,   /* the caller's buffer is smaller than the queried size */
    QN_E_PACKED = 15,      /* a packed blob has another layout or fingerprint than the plan */
    QN_E_UNSUPPORTED = 20, /* valid, but no kernel, backend, architecture or scheme here serves it */
    QN_E_MEMORY = 30,      /* an allocation failed */
    QN_E_JIT = 40,         /* run-time compilation failed or is not allowed */
    QN_E_DEVICE = 50,      /* the device or its driver is missing or failed */
    QN_E_IO = 60,          /* the operating system refused to open, read, write or rename */
    QN_E_FILE = 61,        /* a file's content is malformed, truncated or contradicts itself */
    QN_E_EXISTS = 62,      /* the output exists and overwriting was not asked for */
    QN_E_CANCELLED = 70,   /* the caller's callback asked to stop */
    QN_E_INTERNAL = 90     /* a bug of ours: an invariant did not hold */
} qn_status;

/* The sentence that goes with a status. Plain data, owned by the caller; the
 * library fills it only when a call fails and leaves it alone otherwise. */
typedef struct qn_error {
    qn_status status;
    char text[500]; /* zero-terminated UTF-8, one line, no trailing full stop */
} qn_error;

/* Name of a status, e.g. "QN_E_SHAPE"; "QN_E_?" for a value that is none.
 * Static storage. Thread-safe. */
QN_API const char *qn_status_name(qn_status status);

#ifdef __cplusplus
}
#endif
#endif
