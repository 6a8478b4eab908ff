/* Case strings: a descriptor as one line "op size=... attribute=... slot=..."
 * and back. Canonical order: sizes (m n k e g), attributes and slots in table
 * order; what has its default value is left out.
 *
 *     scaled_mm m=16 n=576 k=192 a=f8_e4m3 scale_a=token scale_b=channel bias=1
 *
 * A slot word gives the slot's format, or 1 for an optional slot in its default
 * format; scaled_mm's scales take tensor, token and channel, x_scale tensor and token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "op/op.h"

#define WORD 64

static int64_t *size_field(qn_sizes *sizes, char letter)
{
    switch (letter) {
    case 'm': return &sizes->m;
    case 'n': return &sizes->n;
    case 'k': return &sizes->k;
    case 'e': return &sizes->e;
    case 'g': return &sizes->g;
    default: return NULL;
    }
}

/* The word that a scale of more than one element goes by, of scaled_mm and of rows of 8-bit codes; NULL for other
 * slots. */
static const char *many_word(qn_op op, int32_t slot)
{
    if (op != QN_OP_SCALED_MM) {
        return slot == qn_op_x_scale_slot(op) ? "token" : NULL;
    }
    return slot == QN_SMM_SCALE_A ? "token" : slot == QN_SMM_SCALE_B ? "channel" : NULL;
}

static void print_attr(qn_text *text, const qn_attr_info *attr, qn_attr_value value)
{
    if (attr->kind == QN_ATTR_KIND_CHOICE) {
        if (value.i == attr->initial.i) {
            return;
        }
        const char *word = attr->values;
        for (int32_t i = 0; word && i < value.i; i++) {
            word = strchr(word, '|');
            word = word ? word + 1 : NULL;
        }
        if (word && value.i >= 0) {
            qn_text_add(text, " %s=%.*s", attr->name, (int)strcspn(word, "|"), word);
        }
    } else if (attr->kind == QN_ATTR_KIND_INT) {
        if (value.i != attr->initial.i) {
            qn_text_add(text, " %s=%d", attr->name, value.i);
        }
    } else if (memcmp(&value.f, &attr->initial.f, sizeof value.f) != 0) {
        char number[32];
        for (int digits = 1; digits <= 9; digits++) {
            snprintf(number, sizeof number, "%.*g", digits, (double)value.f);
            if (strtof(number, NULL) == value.f) {
                break;
            }
        }
        qn_text_add(text, " %s=%s", attr->name, number);
    }
}

/* Dimensions that sizes can be taken from. */
static int has_sane_shapes(const qn_op_desc *desc)
{
    for (int32_t i = 0; i < QN_MAX_IN; i++) {
        const qn_shape *shape = &desc->in[i];
        int sane = shape->ndim >= 0 && shape->ndim <= QN_MAX_DIMS;
        for (int32_t d = 0; sane && d < shape->ndim; d++) {
            sane = shape->dims[d] >= 0 && shape->dims[d] <= QN_OP_SIZE_LIMIT;
        }
        if (!sane) {
            return 0;
        }
    }
    return 1;
}

size_t qn_op_desc_print(const qn_op_desc *given, char *data, size_t capacity)
{
    qn_op_desc named = *given;
    const qn_op_desc *const desc = &named;
    qn_text text = qn_text_make(data, capacity);
    const qn_op_info *op = qn_op_get_info(desc->op);
    const qn_op_family *family = qn_op_get_family(desc->op);
    if (!op || !family) {
        qn_text_add(&text, "none");
        return text.length;
    }
    qn_text_add(&text, "%s", op->name);
    qn_sizes sizes = {0, 0, 0, 0, 0};
    const int sane = has_sane_shapes(desc);
    if (sane && family->attributes) {
        family->attributes(&named);
    }
    if (sane && family->sizes(desc, &sizes, NULL) == QN_OK) {
        for (const char *letter = family->size_names; *letter; letter++) {
            qn_text_add(&text, " %c=%lld", *letter, (long long)*size_field(&sizes, *letter));
        }
    }
    for (int32_t i = 0; i < op->attr_count; i++) {
        print_attr(&text, &op->attrs[i], desc->attr[op->attrs[i].attr]);
    }
    qn_op_layout layout;
    memset(&layout, 0, sizeof layout);
    family->layout(desc, &sizes, &layout);
    for (int32_t i = 0; i < op->in_count; i++) {
        const qn_format format = desc->in[i].format;
        if (format == QN_FORMAT_NONE) {
            continue;
        }
        const char *many = many_word(desc->op, i);
        const qn_format_info *info = qn_format_get_info(format);
        if (many && desc->in[i].ndim > 0 && (desc->in[i].ndim > 1 || desc->in[i].dims[0] != 1)) {
            qn_text_add(&text, " %s=%s", op->in[i].name, many);
        } else if (format != layout.in[i].format) {
            qn_text_add(&text, " %s=%s", op->in[i].name, info ? info->name : "?");
        } else if (!(layout.required >> i & 1)) {
            qn_text_add(&text, " %s=1", op->in[i].name);
        }
    }
    return text.length;
}

/* Next word of *text into word; 0 at the end, -1 when it is too long. */
static int next_word(const char **text, char word[WORD])
{
    const char *p = *text + strspn(*text, " \t\n");
    const size_t length = strcspn(p, " \t\n");
    *text = p + length;
    if (length >= WORD) {
        return -1;
    }
    memcpy(word, p, length);
    word[length] = 0;
    return length > 0;
}

static qn_status parse_slot(qn_op_desc *desc, const qn_op_info *op, int32_t slot, const char *value, qn_error *error)
{
    const qn_slot_info *info = &op->in[slot];
    const char *many = many_word(desc->op, slot);
    if (many && (strcmp(value, many) == 0 || strcmp(value, "tensor") == 0)) {
        const int is_many = strcmp(value, many) == 0;
        desc->in[slot] = qn_shape_make(QN_F32, is_many ? 2 : 1, 1, 1, 1, 1);
        return QN_OK;
    }
    qn_format format = qn_format_find(value);
    if (strcmp(value, "1") == 0 && info->optional) {
        format = qn_op_slot_default(info);
    }
    QN_FAIL_IF(format == QN_FORMAT_NONE || !qn_op_slot_takes(info, format), error, QN_E_ARGUMENT,
               "%s: input %s is '%s', expected %s%s%s", op->name, info->name, value, info->formats,
               many ? "|tensor|" : "", many ? many : "");
    desc->in[slot].format = format;
    return QN_OK;
}

static qn_status parse_word(qn_op_desc *desc, const qn_op_info *op, const char *size_names, char *word, qn_sizes *sizes,
                            qn_error *error)
{
    char *value = strchr(word, '=');
    QN_FAIL_IF(!value || value == word, error, QN_E_ARGUMENT, "%s: the word '%s' is not key=value", op->name, word);
    *value++ = 0;
    const size_t digits = strspn(value, "0123456789");
    if (!word[1] && strchr(size_names, word[0]) && digits > 0 && !value[digits]) {
        QN_FAIL_IF(digits > 15, error, QN_E_ARGUMENT, "%s: size %s is %s, expected at most 2^48", op->name, word,
                   value);
        *size_field(sizes, word[0]) = strtoll(value, NULL, 10);
        return QN_OK;
    }
    for (int32_t i = 0; i < op->attr_count; i++) {
        if (strcmp(op->attrs[i].name, word) == 0) {
            return qn_op_desc_set(desc, word, value, error);
        }
    }
    const int32_t slot = qn_op_in_slot(desc->op, word);
    QN_FAIL_IF(slot < 0 && !word[1] && strchr(size_names, word[0]), error, QN_E_ARGUMENT,
               "%s: size %s is '%s', expected a whole number", op->name, word, value);
    QN_FAIL_IF(slot < 0, error, QN_E_ARGUMENT, "%s has no size, attribute or input '%s'", op->name, word);
    return parse_slot(desc, op, slot, value, error);
}

qn_status qn_op_desc_parse(const char *text, qn_op_desc *desc, qn_error *error)
{
    QN_FAIL_IF(!text || !desc, error, QN_E_ARGUMENT, "qn_op_desc_parse: a parameter is NULL");
    char word[WORD];
    int more = next_word(&text, word);
    const qn_op id = more > 0 ? qn_op_find(word) : QN_OP_NONE;
    QN_FAIL_IF(id == QN_OP_NONE, error, QN_E_ARGUMENT, "'%s' is not an operator", more > 0 ? word : "");
    const qn_op_info *op = qn_op_get_info(id);
    const qn_op_family *family = qn_op_get_family(id);
    qn_op_desc_init(desc, id);
    qn_sizes sizes = {-1, -1, -1, -1, -1};
    while ((more = next_word(&text, word)) != 0) {
        QN_FAIL_IF(more < 0, error, QN_E_ARGUMENT, "%s: a word is longer than %d characters", op->name, WORD - 1);
        QN_TRY(parse_word(desc, op, family->size_names, word, &sizes, error));
    }
    for (const char *letter = "mnkeg"; *letter; letter++) {
        int64_t *field = size_field(&sizes, *letter);
        const int used = strchr(family->size_names, *letter) != NULL;
        QN_FAIL_IF(used && *field < 0, error, QN_E_ARGUMENT, "%s: size %c is missing (write %c=NUMBER)", op->name,
                   *letter, *letter);
        if (!used) {
            *field = 0;
        }
    }
    QN_TRY(qn_op_desc_set_sizes(desc, &sizes, error));
    return qn_op_desc_check(desc, NULL, NULL, error);
}
