/* Tensor files: read and write safetensors from C, e.g. for `quern op`. */
#ifndef QUERN_TENSORS_H
#define QUERN_TENSORS_H

#include <quern/context.h>
#include <quern/view.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qn_tensors qn_tensors;

/* Open one .safetensors file; data is mapped read-only and lives until close.
 * QN_E_IO: cannot be read. QN_E_FILE: malformed (docs/formats/safetensors.md lists
 * every check). QN_E_MEMORY. */
QN_API qn_status qn_tensors_open(qn_ctx *ctx, const char *path, qn_tensors **out, qn_error *error);
QN_API void qn_tensors_close(qn_tensors *tensors); /* NULL is fine */
QN_API int32_t qn_tensors_count(const qn_tensors *tensors);

/* Tensor i: its name and dense view; both owned by the file object. More than
 * QN_MAX_DIMS dimensions: leading ones are merged. Statuses: QN_E_ARGUMENT. */
QN_API qn_status qn_tensors_at(const qn_tensors *tensors, int32_t i, const char **name, qn_view *view, qn_error *error);

/* Index of a name; -1 when there is none. */
QN_API int32_t qn_tensors_find(const qn_tensors *tensors, const char *name);

typedef struct qn_named_view {
    const char *name;
    qn_view view; /* dense */
} qn_named_view;

/* Write a .safetensors file atomically (temporary name, fsync, rename).
 * metadata: 2*metadata_count strings key, value, ...; may be NULL with 0.
 * QN_E_ARGUMENT: duplicate or bad name. QN_E_FORMAT: a format safetensors has no
 * name for. QN_E_IO, QN_E_MEMORY. Nothing is left behind on failure. */
QN_API qn_status qn_tensors_write(qn_ctx *ctx, const char *path, const qn_named_view *tensors, int32_t count,
                                  const char *const *metadata, int32_t metadata_count, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
