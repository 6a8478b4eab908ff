/* jansson with bounds. Depth is checked by a scan before parsing, because the
 * parser's own limit is far too generous for a recursive parser. */
#include "io/json.h"

#include <math.h>
#include <string.h>

#include <utf8proc.h>

/* Deepest nesting of brackets outside strings. */
static int max_depth(const char *text, size_t bytes)
{
    int depth = 0, deepest = 0, quoted = 0;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                quoted = 0;
            }
        } else if (c == '"') {
            quoted = 1;
        } else if (c == '{' || c == '[') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
            if (deepest > QN_JSON_MAX_DEPTH) {
                break;
            }
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return deepest;
}

qn_status qn_json_parse(const char *text, size_t bytes, const char *what, json_t **out, qn_error *error)
{
    *out = NULL;
    QN_FAIL_IF(max_depth(text, bytes) > QN_JSON_MAX_DEPTH, error, QN_E_FILE, "%s is nested more than %d levels deep",
               what, QN_JSON_MAX_DEPTH);
    json_error_t e;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!*out) {
        QN_FAIL_IF(json_error_code(&e) == json_error_out_of_memory, error, QN_E_MEMORY, "out of memory for %s", what);
        QN_FAIL(error, QN_E_FILE, "%s is not valid JSON: %s (line %d, column %d)", what, e.text, e.line, e.column);
    }
    return QN_OK;
}

int qn_is_name_text(const char *text, size_t bytes)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    while (bytes) {
        utf8proc_int32_t codepoint;
        const utf8proc_ssize_t n = utf8proc_iterate(p, bytes < 4 ? (utf8proc_ssize_t)bytes : 4, &codepoint);
        if (n <= 0 || codepoint <= 0) {
            return 0;
        }
        p += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static int is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

qn_status qn_json_get_int(const json_t *object, const char *key, int64_t low, int64_t high, int64_t *out,
                          qn_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (is_absent(value)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_integer(value), error, QN_E_FILE, "%s is not an integer", key);
    const int64_t n = json_integer_value(value);
    QN_FAIL_IF(n < low || n > high, error, QN_E_FILE, "%s is %lld, expected %lld to %lld", key, (long long)n,
               (long long)low, (long long)high);
    *out = n;
    return QN_OK;
}

qn_status qn_json_get_number(const json_t *object, const char *key, double low, double high, double *out,
                             qn_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (is_absent(value)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_number(value), error, QN_E_FILE, "%s is not a number", key);
    const double n = json_number_value(value);
    QN_FAIL_IF(!(n >= low && n <= high), error, QN_E_FILE, "%s is %g, expected %g to %g", key, n, low, high);
    *out = n;
    return QN_OK;
}

qn_status qn_json_get_bool(const json_t *object, const char *key, int *out, qn_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (is_absent(value)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_boolean(value), error, QN_E_FILE, "%s is neither true nor false", key);
    *out = json_is_true(value);
    return QN_OK;
}

qn_status qn_json_get_string(const json_t *object, const char *key, const char **out, qn_error *error)
{
    const json_t *value = json_object_get(object, key);
    if (is_absent(value)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_string(value), error, QN_E_FILE, "%s is not a string", key);
    *out = json_string_value(value);
    return QN_OK;
}

json_t *qn_json_short_number(float value)
{
    char text[40];
    for (int digits = 1; digits <= 9; digits++) {
        double back = 0;
        snprintf(text, sizeof text, "%.*e", digits - 1, (double)value);
        if (sscanf(text, "%lf", &back) == 1 && (float)back == value) {
            return json_real(back);
        }
    }
    return json_real((double)value);
}
