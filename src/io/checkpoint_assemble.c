/* Logical weights from a folder's tensors: data, scales and global scales that
 * belong together by name, held against the scheme's row. A tensor that belongs
 * to quantised data nobody described is an error, never skipped: the numbers
 * would be wrong without it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/format.h"
#include "io/checkpoint_internal.h"

/* Suffixes that say that a module is quantised. */
static const char *const part_suffixes[] = {"weight_packed",       "weight_scale",       "weight_scale_inv",
                                            "weight_global_scale", "input_global_scale", "weight_scale_2",
                                            "input_scale",         "input_zero_point"};

/* Parts whose meaning is not implemented. */
static const char *const refused_suffixes[] = {"weight_zero_point",
                                               "weight_g_idx",
                                               "activation_scale",
                                               "act_scale",
                                               "pre_quant_scale",
                                               "qweight",
                                               "qzeros",
                                               "scales",
                                               "g_idx",
                                               "weight_shape",
                                               "SCB"};

static const char zero_point_suffix[] = "input_zero_point";

static int has_zero_point(const qn_scheme *s)
{
    return s->act_static && !s->act_symmetric && s->act_op == QN_OP_QUANTIZE_INT8;
}

static int is_one_of(const char *text, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, list[i]) == 0) {
            return 1;
        }
    }
    return 0;
}
#define IS_ONE_OF(text, list) is_one_of((text), (list), sizeof(list) / sizeof *(list))

/* module.suffix as text of the checkpoint; NULL when there is no memory. */
char *qn_checkpoint_part_name(qn_checkpoint *c, const char *module, size_t length, const char *suffix)
{
    char *name = qn_checkpoint_own(c, length + strlen(suffix) + 2, 1);
    if (name) {
        memcpy(name, module, length);
        name[length] = '.';
        strcpy(name + length + 1, suffix);
    }
    return name;
}

/* The scheme that a module would be in; NULL with QN_OK: no weights of this checkpoint are quantised. */
static qn_status scheme_of(qn_checkpoint *c, const char *module, size_t length, const qn_scheme **scheme,
                           qn_error *error)
{
    *scheme = NULL;
    if (!c->quant) {
        return QN_OK;
    }
    char *name = qn_checkpoint_own_text(c, module, length);
    *scheme = name ? qn_quant_config_scheme_of(c->quant, name) : NULL;
    QN_FAIL_IF(!*scheme, error, QN_E_MEMORY, "out of memory for tensor names");
    return QN_OK;
}

const qn_file_tensor *qn_checkpoint_find_part(qn_checkpoint *c, const char *module, size_t length, const char *suffix,
                                              qn_status *status, qn_error *error)
{
    if (!suffix) {
        return NULL;
    }
    const char *name = qn_checkpoint_part_name(c, module, length, suffix);
    if (!name) {
        *status = qn_error_set(error, QN_E_MEMORY, "out of memory for tensor names");
        return NULL;
    }
    return qn_checkpoint_file_tensor(c, name);
}

/* A stored tensor of exactly this shape; a trailing dimension of 1 may be left out. */
static qn_status check_shape(const qn_file_tensor *t, int64_t d0, int64_t d1, qn_error *error)
{
    const qn_shape *s = &t->view.shape;
    const int fits =
        (s->ndim == 2 && s->dims[0] == d0 && s->dims[1] == d1) || (s->ndim == 1 && s->dims[0] == d0 && d1 == 1);
    QN_FAIL_IF(!fits, error, QN_E_FILE,
               "tensor %s has %d dimensions, %" PRId64 " x %" PRId64 ", expected %" PRId64 " x %" PRId64, t->name,
               (int)s->ndim, s->dims[0], s->dims[1], d0, d1);
    return QN_OK;
}

/* Scales as the kernels take them: F32 [rows, columns], converted when stored shorter; one of a whole tensor for each
 * channel. */
static qn_status float_scale(qn_checkpoint *c, const qn_file_tensor *t, int64_t rows, int64_t columns, qn_view *out,
                             qn_error *error)
{
    const qn_format format = t->view.shape.format;
    QN_FAIL_IF(format != QN_F32 && format != QN_BF16 && format != QN_F16, error, QN_E_FILE,
               "tensor %s is in the format %s, expected f32, bf16 or f16", t->name, qn_format_get_info(format)->name);
    const int one = columns == 1 && qn_shape_elements(&t->view.shape) == 1;
    if (!one) {
        QN_TRY(check_shape(t, rows, columns, error));
    }
    const qn_shape shape = qn_shape_make(QN_F32, 2, rows, columns, 1, 1);
    const void *data = t->view.data;
    if (one || format != QN_F32 || (uintptr_t)data % sizeof(float)) {
        int64_t count = 0;
        float *copy = qn_mul_i64(rows, columns, &count) ? NULL : qn_checkpoint_own(c, (size_t)count, sizeof *copy);
        QN_FAIL_IF(!copy, error, QN_E_MEMORY, "out of memory for %s", t->name);
        qn_format_get_row(format)->decode(data, one ? 1 : count, copy);
        for (int64_t i = 1; one && i < count; i++) {
            copy[i] = copy[0];
        }
        data = copy;
    }
    *out = qn_view_make(data, &shape);
    return QN_OK;
}

qn_status qn_checkpoint_one_float(const qn_file_tensor *t, float *out, qn_error *error)
{
    const qn_format format = t->view.shape.format;
    QN_FAIL_IF((format != QN_F32 && format != QN_BF16 && format != QN_F16) || qn_shape_elements(&t->view.shape) != 1,
               error, QN_E_FILE, "tensor %s is not one f32, bf16 or f16 number", t->name);
    qn_format_get_row(format)->decode(t->view.data, 1, out);
    QN_FAIL_IF(!(*out > 0.0f) || isinf(*out), error, QN_E_FILE, "tensor %s is %g, expected a positive finite number",
               t->name, (double)*out);
    return QN_OK;
}

/* Data tensor against the scheme; sets the logical shape. */
static qn_status check_data(const qn_scheme *s, const qn_file_tensor *t, qn_weight *w, qn_error *error)
{
    const qn_shape *shape = &t->view.shape;
    const int packed = s->weight == QN_F4_E2M1;
    const qn_format wanted = packed ? QN_U8 : s->weight;
    QN_FAIL_IF(shape->format != wanted, error, QN_E_FILE, "tensor %s is in the format %s, the scheme %s expects %s",
               t->name, qn_format_get_info(shape->format)->name, s->name, qn_format_get_info(wanted)->name);
    QN_FAIL_IF(shape->ndim != 2 || shape->dims[0] < 1 || shape->dims[1] < 1, error, QN_E_FILE,
               "tensor %s has %d dimensions, %" PRId64 " x %" PRId64 ", expected a matrix", t->name, (int)shape->ndim,
               shape->dims[0], shape->dims[1]);
    w->ndim = 2;
    w->n = shape->dims[0];
    QN_FAIL_IF(qn_mul_i64(shape->dims[1], packed ? 2 : 1, &w->k), error, QN_E_FILE, "tensor %s: its size overflows",
               t->name);
    QN_FAIL_IF(s->scales == QN_SCALES_GROUP && w->k % s->block_k, error, QN_E_FILE,
               "tensor %s has rows of %" PRId64 " elements, the scheme %s expects a multiple of %d", t->name, w->k,
               s->name, (int)s->block_k);
    w->data = t->view;
    return QN_OK;
}

/* Scales of groups that each are several of the scheme's: as often as they stand for one. */
static qn_status repeat_scales(qn_checkpoint *c, const qn_scheme *s, const qn_file_tensor *t, qn_weight *w,
                               qn_error *error)
{
    const int64_t stored = w->k / s->file_k, times = s->file_k / s->block_k;
    QN_TRY(check_shape(t, w->n, stored, error));
    const size_t bytes = (size_t)qn_format_get_info(s->scale_format)->block_bytes;
    const int64_t count = w->n * stored * times;
    char *copy = qn_checkpoint_own(c, (size_t)count, bytes);
    QN_FAIL_IF(!copy, error, QN_E_MEMORY, "out of memory for %s", t->name);
    for (int64_t i = 0; i < count; i++) {
        memcpy(copy + (size_t)i * bytes, (const char *)t->view.data + (size_t)(i / times) * bytes, bytes);
    }
    const qn_shape shape = qn_shape_make(s->scale_format, 2, w->n, stored * times, 1, 1);
    w->scale = qn_view_make(copy, &shape);
    return QN_OK;
}

static qn_status check_scale(qn_checkpoint *c, const qn_scheme *s, const qn_file_tensor *t, qn_weight *w,
                             qn_error *error)
{
    const qn_format format = t->view.shape.format;
    switch (s->scales) {
    case QN_SCALES_CHANNEL: return float_scale(c, t, w->n, 1, &w->scale, error);
    case QN_SCALES_BLOCK:
        return float_scale(c, t, qn_ceil_div(w->n, s->block_n), qn_ceil_div(w->k, s->block_k), &w->scale, error);
    default: break;
    }
    const int is_bytes = s->scale_format == QN_E8M0 && (format == QN_U8 || format == QN_E8M0);
    QN_FAIL_IF(format != s->scale_format && !is_bytes, error, QN_E_FILE,
               "tensor %s is in the format %s, the scheme %s expects %s", t->name, qn_format_get_info(format)->name,
               s->name, is_bytes || s->scale_format == QN_E8M0 ? "u8" : qn_format_get_info(s->scale_format)->name);
    if (s->file_k && w->k % s->file_k == 0 && qn_shape_elements(&t->view.shape) < w->n * (w->k / s->block_k)) {
        return repeat_scales(c, s, t, w, error);
    }
    QN_TRY(check_shape(t, w->n, w->k / s->block_k, error));
    qn_shape shape = qn_shape_make(is_bytes ? QN_U8 : format, 2, w->n, w->k / s->block_k, 1, 1);
    w->scale = qn_view_make(t->view.data, &shape);
    return QN_OK;
}

/* The number of a module's tensor of that suffix, which must be there. */
static qn_status part_float(qn_checkpoint *c, const qn_file_tensor *data, size_t length, const char *suffix, float *out,
                            qn_error *error)
{
    qn_status status = QN_OK;
    const qn_file_tensor *t = qn_checkpoint_find_part(c, data->name, length, suffix, &status, error);
    QN_TRY(status);
    QN_FAIL_IF(!t, error, QN_E_FILE, "tensor %s has no %s beside it", data->name, suffix);
    return qn_checkpoint_one_float(t, out, error);
}

/* A scale of quantisers, by which dequantising divides, from a file that may hold the reciprocal. */
static qn_status global_scale(qn_checkpoint *c, const qn_scheme *s, const qn_file_tensor *data, size_t length,
                              const char *suffix, float *out, qn_error *error)
{
    QN_TRY(part_float(c, data, length, suffix, out, error));
    const float inverse = 1.0f / *out;
    QN_FAIL_IF(s->global_inverse && isinf(inverse), error, QN_E_FILE, "tensor %.*s.%s is %g, which has no reciprocal",
               (int)length, data->name, suffix, (double)*out);
    *out = s->global_inverse ? inverse : *out;
    return QN_OK;
}

/* The zero point of static activations; writers leave out those that are 0. */
static qn_status zero_point(qn_checkpoint *c, const qn_file_tensor *data, size_t length, int32_t *out, qn_error *error)
{
    qn_status status = QN_OK;
    const qn_file_tensor *t = qn_checkpoint_find_part(c, data->name, length, zero_point_suffix, &status, error);
    QN_TRY(status);
    QN_FAIL_IF(t && (t->view.shape.format != QN_I8 || qn_shape_elements(&t->view.shape) != 1), error, QN_E_FILE,
               "tensor %s is not one i8 number", t->name);
    *out = t ? *(const int8_t *)t->view.data : 0;
    return QN_OK;
}

/* One quantised module: module is the name without suffix, of `length` bytes. */
static qn_status add_quantised(qn_checkpoint *c, const qn_scheme *s, const qn_file_tensor *data, size_t length,
                               const qn_file_tensor *scale, qn_error *error)
{
    qn_status status = QN_OK;
    if (s->dynamic && !qn_checkpoint_find_part(c, data->name, length, s->act_suffix, &status, error)) {
        QN_TRY(status);
        s = s->dynamic;
    }
    qn_weight w = {.scheme = s, .name = qn_checkpoint_part_name(c, data->name, length, "weight")};
    QN_FAIL_IF(!w.name, error, QN_E_MEMORY, "out of memory for tensor names");
    QN_TRY(check_data(s, data, &w, error));
    QN_TRY(check_scale(c, s, scale, &w, error));
    if (s->global_suffix) {
        QN_TRY(global_scale(c, s, data, length, s->global_suffix, &w.global_scale, error));
    }
    if (s->act_op == QN_OP_QUANTIZE_NVFP4) {
        QN_TRY(global_scale(c, s, data, length, s->act_suffix, &w.input_global_scale, error));
    }
    if (s->act_static) {
        QN_TRY(part_float(c, data, length, s->act_suffix, &w.input_scale, error));
    }
    if (has_zero_point(s)) {
        QN_TRY(zero_point(c, data, length, &w.input_zero_point, error));
    }
    return qn_checkpoint_add_weight(c, &w, error);
}

/* A tensor that carries a module's numbers: X.weight or X.weight_packed. */
static qn_status add_data(qn_checkpoint *c, const qn_file_tensor *t, size_t length, const char *suffix, qn_error *error)
{
    const qn_scheme *s;
    QN_TRY(scheme_of(c, t->name, length, &s, error));
    qn_status status = QN_OK;
    const qn_file_tensor *scale =
        s ? qn_checkpoint_find_part(c, t->name, length, s->scale_suffix, &status, error) : NULL;
    QN_TRY(status);
    const qn_format format = t->view.shape.format;
    const int plain = format == QN_F32 || format == QN_F16 || format == QN_BF16;
    if (s && s->scale_suffix && strcmp(suffix, s->data_suffix) == 0 && (scale || !plain)) {
        QN_FAIL_IF(!scale, error, QN_E_FILE, "tensor %s is in the format %s but has no %s beside it", t->name,
                   qn_format_get_info(format)->name, s->scale_suffix);
        char *module = qn_checkpoint_own_text(c, t->name, length);
        QN_FAIL_IF(!module, error, QN_E_MEMORY, "out of memory for tensor names");
        const int ignored = qn_quant_config_ignores(c->quant, module);
        QN_FAIL_IF(ignored < 0, error, QN_E_MEMORY, "out of memory for quantization_config");
        QN_FAIL_IF(ignored, error, QN_E_FILE, "%s is quantised although quantization_config leaves it out", module);
        return add_quantised(c, s, t, length, scale, error);
    }
    QN_FAIL_IF(strcmp(suffix, "weight") != 0, error, QN_E_FILE, "tensor %s does not belong to %s", t->name,
               s ? s->name : "a checkpoint without quantization_config");
    return qn_checkpoint_add_dense(c, t->name, t, 0, error);
}

/* A scale of any kind: the scheme has such a part and the data is there. */
static qn_status check_part(qn_checkpoint *c, const qn_file_tensor *t, size_t length, const char *suffix,
                            qn_error *error)
{
    const qn_scheme *s;
    QN_TRY(scheme_of(c, t->name, length, &s, error));
    QN_FAIL_IF(!s, error, QN_E_FILE, "tensor %s is there although config.json has no quantization_config", t->name);
    const char *const suffixes[] = {s->scale_suffix, s->global_suffix, s->act_suffix,
                                    has_zero_point(s) ? zero_point_suffix : NULL};
    int known = 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        known |= suffixes[i] && strcmp(suffix, suffixes[i]) == 0;
    }
    QN_FAIL_IF(!known, error, QN_E_FILE, "tensor %s does not belong to the scheme %s", t->name, s->name);
    qn_status status = QN_OK;
    const qn_file_tensor *data = qn_checkpoint_find_part(c, t->name, length, s->data_suffix, &status, error);
    QN_TRY(status);
    QN_FAIL_IF(!data, error, QN_E_FILE, "tensor %s has no %s beside it", t->name, s->data_suffix);
    return QN_OK;
}

qn_status qn_checkpoint_assemble(qn_checkpoint *c, qn_error *error)
{
    for (int32_t i = 0; i < c->tensor_count; i++) {
        const qn_file_tensor *t = &c->tensors[i];
        const char *dot = strrchr(t->name, '.');
        if (!dot) {
            QN_FAIL(error, QN_E_UNSUPPORTED, "tensor %s is not part of a %s model", t->name, c->hparams.architecture);
        }
        const size_t length = (size_t)(dot - t->name);
        const char *suffix = dot + 1;
        int taken = 0;
        QN_TRY(qn_checkpoint_assemble_vq(c, t, &taken, error));
        if (taken) {
            continue;
        }
        if (strcmp(suffix, "weight") == 0 || strcmp(suffix, "weight_packed") == 0) {
            QN_TRY(add_data(c, t, length, suffix, error));
        } else if (strcmp(suffix, "bias") == 0) {
            QN_TRY(qn_checkpoint_add_dense(c, t->name, t, 0, error));
        } else if (IS_ONE_OF(suffix, part_suffixes)) {
            QN_TRY(check_part(c, t, length, suffix, error));
        } else {
            QN_FAIL_IF(IS_ONE_OF(suffix, refused_suffixes), error, QN_E_UNSUPPORTED, "tensor %s: a %s is not supported",
                       t->name, suffix);
            qn_log(c->ctx, QN_LOG_DEBUG, "tensor %s is not used", t->name);
        }
    }
    return QN_OK;
}
