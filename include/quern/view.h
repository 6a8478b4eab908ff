/* Views: shapes and non-owning tensors.
 *
 * dims[0] is the outermost dimension; sizes are in elements, strides in bytes.
 * The last dimension is always dense: its stride is that of the format. A view
 * never frees anything; its memory belongs to whoever made it. */
#ifndef QUERN_VIEW_H
#define QUERN_VIEW_H

#include <quern/format.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_MAX_DIMS 4

typedef struct qn_shape {
    qn_format format; /* QN_FORMAT_NONE: the tensor is absent */
    int32_t ndim;
    int64_t dims[QN_MAX_DIMS]; /* unused ones are 1 */
} qn_shape;

typedef struct qn_view {
    const void *data; /* may be NULL when the view has no elements */
    qn_shape shape;
    int64_t strides[QN_MAX_DIMS]; /* bytes from one index to the next; [ndim-1] is not read */
} qn_view;

typedef struct qn_mut_view {
    void *data;
    qn_shape shape;
    int64_t strides[QN_MAX_DIMS];
} qn_mut_view;

/* A shape of ndim <= 4 dimensions. */
QN_API qn_shape qn_shape_make(qn_format format, int32_t ndim, int64_t d0, int64_t d1, int64_t d2, int64_t d3);

/* Elements; 1 for ndim 0; saturates at INT64_MAX. */
QN_API int64_t qn_shape_elements(const qn_shape *shape);

/* Bytes of the dense tensor. QN_E_SHAPE, QN_E_ARGUMENT: as qn_format_row_bytes. */
QN_API qn_status qn_shape_bytes(const qn_shape *shape, size_t *bytes, qn_error *error);

/* Dense row-major views. The shape must be one qn_shape_bytes accepts. */
QN_API qn_view qn_view_make(const void *data, const qn_shape *shape);
QN_API qn_mut_view qn_mut_view_make(void *data, const qn_shape *shape);

/* Read-only view of a mutable one. */
QN_API qn_view qn_view_of(const qn_mut_view *view);

#ifdef __cplusplus
}
#endif
#endif
