/* Error records: how every module fails. Used by all layers.
 *
 *     QN_FAIL(error, QN_E_SHAPE, "tensor %s has %lld rows, expected %lld", ...);  // returns the status
 *     QN_FAIL_IF(bad, error, QN_E_ARGUMENT, "...");
 *     QN_TRY(call(..., error));                                                     // passes a failure on
 */
#ifndef QN_BASE_ERROR_H
#define QN_BASE_ERROR_H

#include <quern/status.h>

/* Fill the record (NULL is fine; the text is made one line of valid UTF-8) and return status. */
__attribute__((format(printf, 3, 4))) qn_status qn_error_set(qn_error *error, qn_status status, const char *format, ...);

/* Put "prefix: " before the text that is there. Returns error->status (or status when error is NULL). */
__attribute__((format(printf, 3, 4))) qn_status qn_error_prefix(qn_error *error, qn_status status, const char *format,
                                                                ...);

#define QN_FAIL(error, status, ...) return qn_error_set((error), (status), __VA_ARGS__)

#define QN_FAIL_IF(condition, error, status, ...)                    \
    do {                                                             \
        if (condition) {                                             \
            return qn_error_set((error), (status), __VA_ARGS__);     \
        }                                                            \
    } while (0)

#define QN_TRY(call)                        \
    do {                                    \
        const qn_status qn_try_ = (call);   \
        if (qn_try_ != QN_OK) {             \
            return qn_try_;                 \
        }                                   \
    } while (0)

#endif
