/* Shapes and views: sizes and strides of dense tensors. All arithmetic is
 * checked, because shapes come from files. */
#include <quern/view.h>

#include "base/checked.h"
#include "base/error.h"

qn_shape qn_shape_make(qn_format format, int32_t ndim, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    const int64_t dims[QN_MAX_DIMS] = {d0, d1, d2, d3};
    qn_shape shape = {.format = format, .ndim = ndim};
    for (int32_t i = 0; i < QN_MAX_DIMS; i++) {
        shape.dims[i] = i < ndim ? dims[i] : 1;
    }
    return shape;
}

static int good_ndim(const qn_shape *shape)
{
    return shape->ndim >= 0 && shape->ndim <= QN_MAX_DIMS;
}

/* A dimension of 0 wins over the overflow of the others; a negative one, which
 * no valid shape has, counts as 0. */
int64_t qn_shape_elements(const qn_shape *shape)
{
    if (!good_ndim(shape)) {
        return 0;
    }
    int64_t product = 1;
    for (int32_t i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] <= 0) {
            return 0;
        }
        if (qn_mul_i64(product, shape->dims[i], &product)) {
            product = INT64_MAX;
        }
    }
    return product;
}

qn_status qn_shape_bytes(const qn_shape *shape, size_t *bytes, qn_error *error)
{
    QN_FAIL_IF(!shape || !bytes, error, QN_E_ARGUMENT, "qn_shape_bytes: %s is NULL", shape ? "bytes" : "shape");
    QN_FAIL_IF(!good_ndim(shape), error, QN_E_ARGUMENT, "a shape of %d dimensions, expected 0 to %d", shape->ndim,
               QN_MAX_DIMS);
    int64_t rows = 1;
    int too_many = 0;
    for (int32_t i = 0; i < shape->ndim; i++) {
        const int64_t dim = shape->dims[i];
        QN_FAIL_IF(dim < 0, error, QN_E_SHAPE, "dimension %d is %lld: it is negative", i, (long long)dim);
        if (dim == 0) {
            rows = 0;
        } else if (i < shape->ndim - 1 && rows) {
            too_many |= qn_mul_i64(rows, dim, &rows);
        }
    }
    size_t row = 0, total = 0;
    QN_TRY(qn_format_row_bytes(shape->format, shape->ndim ? shape->dims[shape->ndim - 1] : 1, &row, error));
    too_many |= qn_mul_size((size_t)rows, row, &total) || total > PTRDIFF_MAX;
    QN_FAIL_IF(rows && too_many, error, QN_E_ARGUMENT,
               "a tensor of %lld x %lld x %lld x %lld elements has more bytes than memory can hold",
               (long long)shape->dims[0], (long long)shape->dims[1], (long long)shape->dims[2],
               (long long)shape->dims[3]);
    *bytes = total;
    return QN_OK;
}

/* Strides of a dense tensor. Where a dimension of 0 hides an overflow nothing is
 * ever addressed, and the stride is 0. */
static void dense_strides(const qn_shape *shape, int64_t strides[QN_MAX_DIMS])
{
    for (int32_t i = 0; i < QN_MAX_DIMS; i++) {
        strides[i] = 0;
    }
    const qn_format_info *info = qn_format_get_info(shape->format);
    if (!info || !good_ndim(shape) || shape->ndim == 0) {
        return;
    }
    strides[shape->ndim - 1] = info->block_elements == 1 ? info->block_bytes : 0;
    size_t row = 0;
    if (qn_format_row_bytes(shape->format, shape->dims[shape->ndim - 1], &row, NULL) != QN_OK) {
        return;
    }
    int64_t stride = (int64_t)row;
    for (int32_t i = shape->ndim - 2; i >= 0; i--) {
        strides[i] = stride;
        if (qn_mul_i64(stride, shape->dims[i], &stride)) {
            stride = 0;
        }
    }
}

qn_view qn_view_make(const void *data, const qn_shape *shape)
{
    qn_view view = {.data = data, .shape = *shape};
    dense_strides(shape, view.strides);
    return view;
}

qn_mut_view qn_mut_view_make(void *data, const qn_shape *shape)
{
    qn_mut_view view = {.data = data, .shape = *shape};
    dense_strides(shape, view.strides);
    return view;
}

qn_view qn_view_of(const qn_mut_view *view)
{
    qn_view out = {.data = view->data, .shape = view->shape};
    for (int32_t i = 0; i < QN_MAX_DIMS; i++) {
        out.strides[i] = view->strides[i];
    }
    return out;
}
