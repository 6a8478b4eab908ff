/* Strict JSON for untrusted files: duplicates refused, depth bounded. */
#ifndef QN_IO_JSON_H
#define QN_IO_JSON_H

#include <jansson.h>

#include "base/context.h"
#include "base/error.h"

#define QN_JSON_MAX_DEPTH 64

/* Parse text that must be one JSON object or array, with nothing but white space after it; `what` names
 * it in messages. Caller owns *out (json_decref). QN_E_FILE, QN_E_MEMORY. */
qn_status qn_json_parse(const char *text, size_t bytes, const char *what, json_t **out, qn_error *error);

/* 1 when the bytes are valid UTF-8 without a zero byte. */
int qn_is_name_text(const char *text, size_t bytes);

/* Members of an object; absent or null ones leave *out alone, which holds the default.
 * QN_E_FILE: another type, or an integer outside [low, high]. */
qn_status qn_json_get_int(const json_t *object, const char *key, int64_t low, int64_t high, int64_t *out,
                          qn_error *error);
qn_status qn_json_get_number(const json_t *object, const char *key, double low, double high, double *out,
                             qn_error *error);
qn_status qn_json_get_bool(const json_t *object, const char *key, int *out, qn_error *error);
/* A float as the shortest decimal that reads back the same, so that 1e-5f becomes 1e-05; NULL: out of memory. */
json_t *qn_json_short_number(float value);

qn_status qn_json_get_string(const json_t *object, const char *key, const char **out, qn_error *error);

#endif
