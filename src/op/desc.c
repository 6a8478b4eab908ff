/* Descriptors: defaults, attributes from text, shapes from sizes, and the check
 * of a whole descriptor. Everything common to all operators; what is particular
 * to one is asked of its family. Called by plans, tools and tests. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "op/op.h"

const qn_op_family *qn_op_get_family(qn_op op)
{
    switch (op) {
    case QN_OP_QUANTIZE_FP8:
    case QN_OP_QUANTIZE_INT8:
    case QN_OP_QUANTIZE_NVFP4:
    case QN_OP_QUANTIZE_MXFP4:
    case QN_OP_DEQUANTIZE: return &qn_family_quantize;
    case QN_OP_SCALED_MM:
    case QN_OP_BLOCK_SCALED_MM:
    case QN_OP_NVFP4_MM:
    case QN_OP_MXFP4_MM:
    case QN_OP_DENSE_MM: return &qn_family_matmul;
    case QN_OP_GROUPED_BLOCK_SCALED_MM: return &qn_family_grouped;
    case QN_OP_SILU_MUL_QUANT:
    case QN_OP_SILU_MUL:
    case QN_OP_RMSNORM: return &qn_family_activation;
    case QN_OP_ROPE: return &qn_family_rope;
    case QN_OP_ATTENTION:
    case QN_OP_SCALED_ATTENTION: return &qn_family_attention;
    case QN_OP_VQ_DEQUANTIZE: return &qn_family_vq;
    case QN_OP_VQ_MM: return &qn_family_vq_mm;
    case QN_OP_VQ_ENCODE: return &qn_family_vq_encode;
    case QN_OP_VQ_ATTENTION: return &qn_family_vq_attention;
    case QN_OP_NONE:
    case QN_OP_LIMIT: break;
    }
    return NULL;
}

qn_format qn_op_out_format(const qn_op_desc *desc)
{
    static const qn_format formats[] = {QN_BF16, QN_F16, QN_F32};
    const int32_t out = desc->attr[QN_ATTR_OUT].i;
    return out >= 0 && out < 3 ? formats[out] : QN_FORMAT_NONE;
}

qn_format qn_op_type_format(int32_t type)
{
    static const qn_format formats[] = {QN_F8_E4M3, QN_U8, QN_F8_E5M2, QN_I8};
    return type >= 0 && type < 4 ? formats[type] : QN_FORMAT_NONE;
}

/* Word number i of a|b|c: its start and length; 0 past the end. */
static int word_at(const char *words, int32_t i, const char **start, size_t *length)
{
    for (; i > 0; i--) {
        words = strchr(words, '|');
        if (!words) {
            return 0;
        }
        words++;
    }
    *start = words;
    *length = strcspn(words, "|");
    return 1;
}

static int32_t word_find(const char *words, const char *word)
{
    const char *start;
    size_t length;
    for (int32_t i = 0; word_at(words, i, &start, &length); i++) {
        if (strlen(word) == length && memcmp(word, start, length) == 0) {
            return i;
        }
    }
    return -1;
}

static int32_t word_count(const char *words)
{
    int32_t count = 1;
    for (; *words; words++) {
        count += *words == '|';
    }
    return count;
}

int qn_op_slot_takes(const qn_slot_info *slot, qn_format format)
{
    const qn_format_info *info = qn_format_get_info(format);
    return info && word_find(slot->formats, info->name) >= 0;
}

qn_format qn_op_slot_default(const qn_slot_info *slot)
{
    char name[32];
    const size_t length = strcspn(slot->formats, "|");
    if (length >= sizeof name) {
        return QN_FORMAT_NONE;
    }
    memcpy(name, slot->formats, length);
    name[length] = 0;
    return qn_format_find(name);
}

const char *qn_shape_text(const qn_shape *shape, char *text)
{
    const qn_format_info *info = qn_format_get_info(shape->format);
    int at = snprintf(text, 128, "%s[", info ? info->name : "?");
    for (int32_t i = 0; i < shape->ndim && i < QN_MAX_DIMS; i++) {
        at += snprintf(text + at, 128 - (size_t)at, "%s%lld", i ? "," : "", (long long)shape->dims[i]);
    }
    snprintf(text + at, 128 - (size_t)at, "]");
    return text;
}

void qn_op_desc_init(qn_op_desc *desc, qn_op op)
{
    memset(desc, 0, sizeof *desc);
    desc->op = op;
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        desc->in[i] = (qn_shape){QN_FORMAT_NONE, 0, {1, 1, 1, 1}};
    }
    const qn_op_info *info = qn_op_get_info(op);
    for (int32_t i = 0; info && i < info->attr_count; i++) {
        desc->attr[info->attrs[i].attr] = info->attrs[i].initial;
    }
}

/* The range of an attribute's value. */
static qn_status check_attr(const qn_op_info *op, const qn_attr_info *attr, qn_attr_value value, qn_error *error)
{
    if (attr->kind == QN_ATTR_KIND_CHOICE) {
        QN_FAIL_IF(value.i < 0 || value.i >= word_count(attr->values), error, QN_E_ARGUMENT,
                   "%s: attribute %s has value number %d, expected one of %s", op->name, attr->name, value.i,
                   attr->values);
        return QN_OK;
    }
    if (attr->kind == QN_ATTR_KIND_FLOAT) {
        QN_FAIL_IF(!isfinite(value.f), error, QN_E_ARGUMENT, "%s: attribute %s is %g, expected a finite number",
                   op->name, attr->name, (double)value.f);
        if (attr->attr == QN_ATTR_RESID_SCALE) {
            return QN_OK; /* checkpoints write -1 for the codebook's own */
        }
        const int positive = attr->attr == QN_ATTR_THETA;
        QN_FAIL_IF(value.f < 0.0f || (positive && value.f == 0.0f), error, QN_E_ARGUMENT,
                   "%s: attribute %s is %g, expected %s", op->name, attr->name, (double)value.f,
                   positive ? "a number above 0" : "0 or a positive number");
        return QN_OK;
    }
    if (attr->attr == QN_ATTR_GROUP) {
        QN_FAIL_IF(value.i < 0 || (value.i == 0 && op->op != QN_OP_SILU_MUL_QUANT), error, QN_E_ARGUMENT,
                   "%s: attribute %s is %d, expected a positive number", op->name, attr->name, value.i);
        return QN_OK;
    }
    if ((attr->attr >= QN_ATTR_NUM_CODEBOOKS && attr->attr <= QN_ATTR_BITS) || attr->attr == QN_ATTR_WINDOW ||
        attr->attr == QN_ATTR_PAGE) {
        QN_FAIL_IF(value.i < 0, error, QN_E_ARGUMENT, "%s: attribute %s is %d, expected 0 or a positive number",
                   op->name, attr->name, value.i);
        return QN_OK;
    }
    QN_FAIL_IF(value.i != 0 && value.i != 1, error, QN_E_ARGUMENT, "%s: attribute %s is %d, expected 0 or 1", op->name,
               attr->name, value.i);
    return QN_OK;
}

qn_status qn_op_desc_set(qn_op_desc *desc, const char *name, const char *value, qn_error *error)
{
    QN_FAIL_IF(!desc || !name || !value, error, QN_E_ARGUMENT, "qn_op_desc_set: a parameter is NULL");
    const qn_op_info *op = qn_op_get_info(desc->op);
    QN_FAIL_IF(!op, error, QN_E_ARGUMENT, "operator number %d is none", (int)desc->op);
    const qn_attr_info *attr = NULL;
    for (int32_t i = 0; i < op->attr_count; i++) {
        if (strcmp(op->attrs[i].name, name) == 0) {
            attr = &op->attrs[i];
        }
    }
    if (!attr) {
        char known[300];
        qn_text text = qn_text_make(known, sizeof known);
        for (int32_t i = 0; i < op->attr_count; i++) {
            qn_text_add(&text, "%s%s", i ? ", " : "", op->attrs[i].name);
        }
        QN_FAIL(error, QN_E_ARGUMENT, "%s has no attribute '%.60s'; its attributes are %s", op->name, name, known);
    }
    qn_attr_value parsed = {.i = 0};
    if (attr->kind == QN_ATTR_KIND_CHOICE) {
        parsed.i = word_find(attr->values, value);
        QN_FAIL_IF(parsed.i < 0, error, QN_E_ARGUMENT, "%s: attribute %s is '%s', expected one of %s", op->name, name,
                   value, attr->values);
    } else if (attr->kind == QN_ATTR_KIND_INT) {
        char *end = NULL;
        errno = 0;
        const long long number = strtoll(value, &end, 10);
        QN_FAIL_IF(end == value || *end || errno || number < INT32_MIN || number > INT32_MAX, error, QN_E_ARGUMENT,
                   "%s: attribute %s is '%s', expected an integer", op->name, name, value);
        parsed.i = (int32_t)number;
    } else {
        char *end = NULL;
        parsed.f = strtof(value, &end);
        QN_FAIL_IF(end == value || *end, error, QN_E_ARGUMENT, "%s: attribute %s is '%s', expected a number", op->name,
                   name, value);
    }
    QN_TRY(check_attr(op, attr, parsed, error));
    desc->attr[attr->attr] = parsed;
    return QN_OK;
}

static qn_status check_sizes(const qn_op_info *op, const qn_sizes *sizes, qn_error *error)
{
    const int64_t values[] = {sizes->m, sizes->n, sizes->k, sizes->e, sizes->g};
    for (int i = 0; i < 5; i++) {
        QN_FAIL_IF(values[i] < 0 || values[i] > QN_OP_SIZE_LIMIT, error, QN_E_SHAPE,
                   "%s: size %c is %lld, expected 0 to 2^48", op->name, "mnkeg"[i], (long long)values[i]);
    }
    return QN_OK;
}

qn_status qn_op_desc_set_sizes(qn_op_desc *desc, const qn_sizes *sizes, qn_error *error)
{
    QN_FAIL_IF(!desc || !sizes, error, QN_E_ARGUMENT, "qn_op_desc_set_sizes: a parameter is NULL");
    const qn_op_info *op = qn_op_get_info(desc->op);
    const qn_op_family *family = qn_op_get_family(desc->op);
    QN_FAIL_IF(!op || !family, error, QN_E_ARGUMENT, "operator number %d is none", (int)desc->op);
    QN_TRY(check_sizes(op, sizes, error));
    qn_op_layout layout;
    memset(&layout, 0, sizeof layout);
    family->layout(desc, sizes, &layout);
    for (int32_t i = 0; i < op->in_count; i++) {
        const int present = qn_op_has(desc, i);
        if (present || (layout.required >> i & 1)) {
            const qn_format format = present ? desc->in[i].format : layout.in[i].format;
            desc->in[i] = layout.in[i];
            desc->in[i].format = format;
        }
    }
    return family->rules(desc, sizes, error);
}

static qn_status check_slot(const qn_op_info *op, int32_t slot, const qn_shape *shape, qn_error *error)
{
    const qn_slot_info *info = &op->in[slot];
    char text[128];
    QN_FAIL_IF(shape->ndim < 0 || shape->ndim > QN_MAX_DIMS, error, QN_E_SHAPE,
               "%s: input %s has %d dimensions, expected at most %d", op->name, info->name, shape->ndim, QN_MAX_DIMS);
    QN_FAIL_IF(!qn_op_slot_takes(info, shape->format), error, QN_E_FORMAT, "%s: input %s is %s, expected %s", op->name,
               info->name, qn_shape_text(shape, text), info->formats);
    for (int32_t i = 0; i < shape->ndim; i++) {
        QN_FAIL_IF(shape->dims[i] < 0 || shape->dims[i] > QN_OP_SIZE_LIMIT, error, QN_E_SHAPE,
                   "%s: input %s has dimension %lld, expected 0 to 2^48", op->name, info->name,
                   (long long)shape->dims[i]);
    }
    return QN_OK;
}

/* Same dimensions; a tensor without dimensions serves where [1] is asked. */
static int same_dims(const qn_shape *a, const qn_shape *want)
{
    if (a->ndim == 0 && want->ndim == 1 && want->dims[0] == 1) {
        return 1;
    }
    if (a->ndim != want->ndim) {
        return 0;
    }
    for (int32_t i = 0; i < a->ndim; i++) {
        if (a->dims[i] != want->dims[i]) {
            return 0;
        }
    }
    return 1;
}

qn_status qn_op_desc_check(const qn_op_desc *desc, qn_shape *out, qn_sizes *sizes, qn_error *error)
{
    QN_FAIL_IF(!desc, error, QN_E_ARGUMENT, "qn_op_desc_check: desc is NULL");
    const qn_op_info *op = qn_op_get_info(desc->op);
    const qn_op_family *family = qn_op_get_family(desc->op);
    QN_FAIL_IF(!op || !family, error, QN_E_ARGUMENT, "operator number %d is none", (int)desc->op);
    for (int32_t i = 0; i < op->attr_count; i++) {
        QN_TRY(check_attr(op, &op->attrs[i], desc->attr[op->attrs[i].attr], error));
    }
    qn_sizes s = {0, 0, 0, 0, 0};
    qn_op_layout layout;
    memset(&layout, 0, sizeof layout);
    family->layout(desc, &s, &layout);
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        if (!qn_op_has(desc, i)) {
            QN_FAIL_IF(layout.required >> i & 1, error, QN_E_FORMAT, "%s: input %s is missing, expected %s %s",
                       op->name, op->in[i].name, op->in[i].formats, op->in[i].shape);
            continue;
        }
        QN_FAIL_IF(i >= op->in_count, error, QN_E_ARGUMENT, "%s has no input number %d", op->name, i);
        QN_FAIL_IF(!(layout.allowed >> i & 1), error, QN_E_FORMAT,
                   "%s: input %s is given, but these attributes and inputs do not use it", op->name, op->in[i].name);
        QN_TRY(check_slot(op, i, &desc->in[i], error));
    }
    QN_TRY(family->sizes(desc, &s, error));
    QN_TRY(check_sizes(op, &s, error));
    QN_TRY(family->rules(desc, &s, error));
    memset(&layout, 0, sizeof layout);
    family->layout(desc, &s, &layout);
    char found[128], want[128];
    size_t bytes;
    for (int32_t i = 0; i < op->in_count; i++) {
        if (qn_op_has(desc, i)) {
            layout.in[i].format = desc->in[i].format;
            QN_FAIL_IF(!same_dims(&desc->in[i], &layout.in[i]), error, QN_E_SHAPE,
                       "%s: input %s is %s, expected %s (%s)", op->name, op->in[i].name,
                       qn_shape_text(&desc->in[i], found), qn_shape_text(&layout.in[i], want), op->in[i].shape);
            QN_TRY(qn_shape_bytes(&desc->in[i], &bytes, error));
        }
    }
    for (int32_t i = 0; i < op->out_count; i++) {
        if (layout.out[i].format != QN_FORMAT_NONE) {
            QN_TRY(qn_shape_bytes(&layout.out[i], &bytes, error));
        }
    }
    if (out) {
        memcpy(out, layout.out, sizeof layout.out);
    }
    if (sizes) {
        *sizes = s;
    }
    return QN_OK;
}
