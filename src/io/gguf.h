/* GGUF reader (versions 2 and 3, little-endian): metadata by key, tensors with
 * views into the file. docs/formats/gguf.md lists every check. */
#ifndef QN_IO_GGUF_H
#define QN_IO_GGUF_H

#include <quern/view.h>

#include "base/context.h"
#include "base/error.h"
#include "base/map.h"

#define QN_GGUF_MAX_NAME 4096
#define QN_GGUF_MAX_ALIGNMENT 65536

typedef enum qn_gguf_type {
    QN_GGUF_U8 = 0,
    QN_GGUF_I8,
    QN_GGUF_U16,
    QN_GGUF_I16,
    QN_GGUF_U32,
    QN_GGUF_I32,
    QN_GGUF_F32,
    QN_GGUF_BOOL,
    QN_GGUF_STRING,
    QN_GGUF_ARRAY,
    QN_GGUF_U64,
    QN_GGUF_I64,
    QN_GGUF_F64,
    QN_GGUF_TYPE_COUNT
} qn_gguf_type;

typedef struct qn_gguf_value {
    char *key;
    qn_gguf_type type; /* of the value, or of an array's elements */
    int32_t is_array;
    uint64_t count;            /* elements of an array; 1 else */
    const unsigned char *data; /* first element as in the file; all of it lies inside the file */
    size_t bytes;
} qn_gguf_value;

typedef struct qn_gguf_tensor {
    char *name;
    qn_view view;        /* outermost dimension first */
    uint64_t begin, end; /* bytes of the file */
} qn_gguf_tensor;

typedef struct qn_gguf {
    const qn_ctx *ctx;
    qn_gguf_value *values;
    int32_t value_count;
    qn_gguf_tensor *tensors;
    int32_t tensor_count;
    qn_map keys, names;
    uint64_t alignment, data_at;
} qn_gguf;

/* Parse a whole file in memory; data must outlive the result. `where` names the file in messages.
 * QN_E_FILE; QN_E_UNSUPPORTED: version 1, big-endian, a tensor type without qn_format (tensor named), nested
 * arrays; QN_E_MEMORY. */
qn_status qn_gguf_parse(const qn_ctx *ctx, const void *data, size_t size, const char *where, qn_gguf *out,
                        qn_error *error);
void qn_gguf_free(qn_gguf *file); /* fine for a zeroed one */

/* Value of a key; NULL when there is none. */
const qn_gguf_value *qn_gguf_find(const qn_gguf *file, const char *key);

/* Typed access. An absent key leaves *out alone, which holds the default. QN_E_FILE: another
 * type (any integer type serves for an integer, f32 and f64 for a number), or outside [low, high]. */
qn_status qn_gguf_get_int(const qn_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                          qn_error *error);
qn_status qn_gguf_get_number(const qn_gguf *file, const char *key, double low, double high, double *out,
                             qn_error *error);
qn_status qn_gguf_get_bool(const qn_gguf *file, const char *key, int *out, qn_error *error);

/* String into the file, not zero-terminated; *text NULL when absent. */
qn_status qn_gguf_get_string(const qn_gguf *file, const char *key, const char **text, size_t *bytes, qn_error *error);

/* Step through the strings of an array: *cursor starts at value->data. */
const char *qn_gguf_next_string(const unsigned char **cursor, size_t *bytes);

/* Element i of an integer array. */
int64_t qn_gguf_int_at(const qn_gguf_value *value, uint64_t i);

#endif
