/* Values of the template interpreter: Python's meaning of truth, equality,
 * order, text forms and indexing, as far as the subset needs them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"
#include "text/template.h"

#define MAX_VALUE_DEPTH 64

int tpl_is(tpl_text text, const char *word)
{
    return text.bytes == strlen(word) && memcmp(text.data, word, text.bytes) == 0;
}

int tpl_same_text(tpl_text a, tpl_text b)
{
    return a.bytes == b.bytes && (!a.bytes || memcmp(a.data, b.data, a.bytes) == 0);
}

const char *tpl_kind_name(tpl_kind kind)
{
    static const char *const names[] = {"undefined",   "none",     "a boolean",  "an integer",
                                        "a number",    "a string", "a list",     "a mapping",
                                        "a namespace", "a macro",  "a function", "the loop"};
    return names[kind];
}

int tpl_is_space(uint32_t c)
{
    return qn_is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

int tpl_truth(tpl_value v)
{
    switch (v.kind) {
    case TPL_UNDEFINED:
    case TPL_NONE: return 0;
    case TPL_BOOL:
    case TPL_INT: return v.u.i != 0;
    case TPL_FLOAT: return v.u.d < 0 || v.u.d > 0 || isnan(v.u.d);
    case TPL_STRING: return v.u.s.bytes != 0;
    case TPL_LIST: return v.u.list->count != 0;
    case TPL_DICT: return v.u.dict->count != 0;
    case TPL_NAMESPACE:
    case TPL_MACRO:
    case TPL_FUNCTION:
    case TPL_LOOP: return 1;
    }
    return 0;
}

static int is_number(tpl_value v)
{
    return v.kind == TPL_BOOL || v.kind == TPL_INT || v.kind == TPL_FLOAT;
}

static double real(tpl_value v)
{
    return v.kind == TPL_FLOAT ? v.u.d : (double)v.u.i;
}

static qn_status equal_at(tpl *t, tpl_value a, tpl_value b, int depth, int *out)
{
    *out = 0;
    QN_TRY(tpl_charge(t, a.kind == TPL_STRING ? a.u.s.bytes : 0));
    if (depth > MAX_VALUE_DEPTH) {
        TPL_FAIL(t, QN_E_FILE, "values nested deeper than %d are compared", MAX_VALUE_DEPTH);
    }
    if (is_number(a) && is_number(b)) {
        *out =
            a.kind == TPL_FLOAT || b.kind == TPL_FLOAT ? !(real(a) < real(b)) && !(real(a) > real(b)) : a.u.i == b.u.i;
        return QN_OK;
    }
    if (a.kind != b.kind) {
        return QN_OK;
    }
    *out = 1;
    if (a.kind == TPL_STRING) {
        *out = tpl_same_text(a.u.s, b.u.s);
    } else if (a.kind == TPL_LIST) {
        *out = a.u.list->count == b.u.list->count;
        for (size_t i = 0; *out && i < a.u.list->count; i++) {
            QN_TRY(equal_at(t, a.u.list->items[i], b.u.list->items[i], depth + 1, out));
        }
    } else if (a.kind == TPL_DICT) {
        *out = a.u.dict->count == b.u.dict->count;
        for (size_t i = 0; *out && i < a.u.dict->count; i++) {
            const tpl_pair *p = &a.u.dict->pairs[i];
            const tpl_value *other = p->key.kind == TPL_STRING ? tpl_dict_get(b.u.dict, p->key.u.s) : NULL;
            *out = other != NULL;
            if (other) {
                QN_TRY(equal_at(t, p->value, *other, depth + 1, out));
            }
        }
    } else if (a.kind == TPL_FUNCTION) {
        *out = a.u.i == b.u.i;
    } else if (a.kind > TPL_DICT) {
        *out = memcmp(&a.u, &b.u, sizeof(void *)) == 0;
    }
    return QN_OK;
}

qn_status tpl_equal(tpl *t, tpl_value a, tpl_value b, int *out)
{
    return equal_at(t, a, b, 0, out);
}

static qn_status contains(tpl *t, tpl_value item, tpl_value in, int *out)
{
    *out = 0;
    if (in.kind == TPL_STRING) {
        if (item.kind != TPL_STRING) {
            TPL_FAIL(t, QN_E_ARGUMENT, "'in' looks for %s in a string", tpl_kind_name(item.kind));
        }
        QN_TRY(tpl_charge(t, in.u.s.bytes));
        *out = !item.u.s.bytes || memmem(in.u.s.data, in.u.s.bytes, item.u.s.data, item.u.s.bytes) != NULL;
        return QN_OK;
    }
    if (in.kind == TPL_DICT) {
        QN_TRY(tpl_charge(t, in.u.dict->count * 16));
        *out = item.kind == TPL_STRING && tpl_dict_get(in.u.dict, item.u.s) != NULL;
        return QN_OK;
    }
    if (in.kind != TPL_LIST && in.kind != TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_ARGUMENT, "'in' looks into %s", tpl_kind_name(in.kind));
    }
    for (size_t i = 0; in.kind == TPL_LIST && !*out && i < in.u.list->count; i++) {
        QN_TRY(tpl_equal(t, item, in.u.list->items[i], out));
    }
    return QN_OK;
}

qn_status tpl_compare(tpl *t, tpl_op op, tpl_value a, tpl_value b, int *out)
{
    if (op == OP_EQ || op == OP_NE) {
        QN_TRY(tpl_equal(t, a, b, out));
        *out ^= op == OP_NE;
        return QN_OK;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        QN_TRY(contains(t, a, b, out));
        *out ^= op == OP_NOT_IN;
        return QN_OK;
    }
    int order;
    if (is_number(a) && is_number(b)) {
        if (a.kind == TPL_FLOAT || b.kind == TPL_FLOAT) {
            order = real(a) < real(b) ? -1 : real(a) > real(b);
        } else {
            order = a.u.i < b.u.i ? -1 : a.u.i > b.u.i;
        }
    } else if (a.kind == TPL_STRING && b.kind == TPL_STRING) {
        const size_t n = a.u.s.bytes < b.u.s.bytes ? a.u.s.bytes : b.u.s.bytes;
        QN_TRY(tpl_charge(t, n));
        order = n ? memcmp(a.u.s.data, b.u.s.data, n) : 0;
        order = order ? order : a.u.s.bytes < b.u.s.bytes ? -1 : a.u.s.bytes > b.u.s.bytes;
    } else {
        TPL_FAIL(t, QN_E_ARGUMENT, "%s and %s have no order", tpl_kind_name(a.kind), tpl_kind_name(b.kind));
    }
    *out = op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
    return QN_OK;
}

qn_status tpl_put(tpl *t, tpl_output *o, const char *data, size_t bytes)
{
    QN_TRY(tpl_charge(t, bytes));
    if (bytes > TPL_MAX_OUTPUT || o->bytes + bytes > TPL_MAX_OUTPUT) {
        TPL_FAIL(t, QN_E_FILE, "the text passes %u bytes", TPL_MAX_OUTPUT);
    }
    if (o->bytes + bytes > o->capacity) {
        size_t capacity = o->capacity ? o->capacity * 2 : 128;
        while (capacity < o->bytes + bytes) {
            capacity *= 2;
        }
        char *grown;
        QN_TRY(tpl_alloc(t, capacity, &grown));
        if (o->bytes) {
            memcpy(grown, o->data, o->bytes);
        }
        o->data = grown;
        o->capacity = capacity;
    }
    if (bytes) {
        memcpy(o->data + o->bytes, data, bytes);
        o->bytes += bytes;
    }
    return QN_OK;
}

/* Python's repr of a float: the shortest digits that read back the same. */
static void print_real(double d, char *text, size_t size)
{
    if (isnan(d) || isinf(d)) {
        snprintf(text, size, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    int digits = 0;
    do {
        digits++;
        snprintf(text, size, "%.*e", digits - 1, d);
    } while (digits < 17 && (strtod(text, NULL) < d || strtod(text, NULL) > d));
    const int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        const int decimals = digits - 1 - exponent;
        snprintf(text, size, "%.*f", decimals > 0 ? decimals : 1, d);
    }
}

static qn_status put_quoted(tpl *t, tpl_output *o, tpl_text s)
{
    const int has_single = s.bytes && memchr(s.data, '\'', s.bytes) != NULL;
    const int has_double = s.bytes && memchr(s.data, '"', s.bytes) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    QN_TRY(tpl_put(t, o, &quote, 1));
    for (size_t i = 0; i < s.bytes; i++) {
        const unsigned char c = (unsigned char)s.data[i];
        char text[8];
        int n = 1;
        text[0] = (char)c;
        if (c == '\n' || c == '\r' || c == '\t' || c == '\\' || c == (unsigned char)quote) {
            n = snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c);
        } else if (c < 0x20 || c == 0x7F) {
            n = snprintf(text, sizeof text, "\\x%02x", c);
        }
        QN_TRY(tpl_put(t, o, text, (size_t)n));
    }
    return tpl_put(t, o, &quote, 1);
}

static qn_status put_word(tpl *t, tpl_output *o, const char *word)
{
    return tpl_put(t, o, word, strlen(word));
}

static qn_status put_scalar(tpl *t, tpl_output *o, tpl_value v)
{
    char text[64];
    if (v.kind == TPL_INT) {
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
    } else {
        print_real(v.u.d, text, sizeof text);
    }
    return put_word(t, o, text);
}

static qn_status put_repr(tpl *t, tpl_output *o, tpl_value v, int depth)
{
    if (depth > MAX_VALUE_DEPTH) {
        TPL_FAIL(t, QN_E_FILE, "a value nested deeper than %d is printed", MAX_VALUE_DEPTH);
    }
    QN_TRY(tpl_charge(t, 0));
    switch (v.kind) {
    case TPL_UNDEFINED: return put_word(t, o, "Undefined");
    case TPL_NONE: return put_word(t, o, "None");
    case TPL_BOOL: return put_word(t, o, v.u.i ? "True" : "False");
    case TPL_INT:
    case TPL_FLOAT: return put_scalar(t, o, v);
    case TPL_STRING: return put_quoted(t, o, v.u.s);
    case TPL_LIST:
        QN_TRY(put_word(t, o, v.u.list->is_tuple ? "(" : "["));
        for (size_t i = 0; i < v.u.list->count; i++) {
            QN_TRY(put_word(t, o, i ? ", " : ""));
            QN_TRY(put_repr(t, o, v.u.list->items[i], depth + 1));
        }
        return put_word(t, o, !v.u.list->is_tuple ? "]" : v.u.list->count == 1 ? ",)" : ")");
    case TPL_DICT:
        QN_TRY(put_word(t, o, "{"));
        for (size_t i = 0; i < v.u.dict->count; i++) {
            QN_TRY(put_word(t, o, i ? ", " : ""));
            QN_TRY(put_repr(t, o, v.u.dict->pairs[i].key, depth + 1));
            QN_TRY(put_word(t, o, ": "));
            QN_TRY(put_repr(t, o, v.u.dict->pairs[i].value, depth + 1));
        }
        return put_word(t, o, "}");
    case TPL_NAMESPACE:
    case TPL_MACRO:
    case TPL_FUNCTION:
    case TPL_LOOP: break;
    }
    TPL_FAIL(t, QN_E_UNSUPPORTED, "printing %s is not served", tpl_kind_name(v.kind));
}

qn_status tpl_put_str(tpl *t, tpl_output *o, tpl_value v)
{
    if (v.kind == TPL_STRING) {
        return tpl_put(t, o, v.u.s.data, v.u.s.bytes);
    }
    return v.kind == TPL_UNDEFINED ? QN_OK : put_repr(t, o, v, 0);
}

static qn_status put_json_string(tpl *t, tpl_output *o, tpl_text s)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    QN_TRY(put_word(t, o, "\""));
    for (size_t i = 0; i < s.bytes; i++) {
        const unsigned char c = (unsigned char)s.data[i];
        const char *known = c ? strchr(from, c) : NULL;
        char text[8];
        int n = 1;
        text[0] = (char)c;
        if (known) {
            n = snprintf(text, sizeof text, "\\%c", to[known - from]);
        } else if (c < 0x20) {
            n = snprintf(text, sizeof text, "\\u%04x", c);
        }
        QN_TRY(tpl_put(t, o, text, (size_t)n));
    }
    return put_word(t, o, "\"");
}

static qn_status put_indent(tpl *t, tpl_output *o, int indent, int level)
{
    if (indent < 0) {
        return QN_OK;
    }
    QN_TRY(put_word(t, o, "\n"));
    for (int i = 0; i < indent * level; i++) {
        QN_TRY(put_word(t, o, " "));
    }
    return QN_OK;
}

qn_status tpl_put_json(tpl *t, tpl_output *o, tpl_value v, int indent, int level)
{
    if (level > MAX_VALUE_DEPTH) {
        TPL_FAIL(t, QN_E_FILE, "a value nested deeper than %d is printed", MAX_VALUE_DEPTH);
    }
    QN_TRY(tpl_charge(t, 0));
    const char *comma = indent < 0 ? ", " : ",";
    if (v.kind == TPL_NONE) {
        return put_word(t, o, "null");
    }
    if (v.kind == TPL_BOOL) {
        return put_word(t, o, v.u.i ? "true" : "false");
    }
    if (v.kind == TPL_INT || v.kind == TPL_FLOAT) {
        return put_scalar(t, o, v);
    }
    if (v.kind == TPL_STRING) {
        return put_json_string(t, o, v.u.s);
    }
    if (v.kind != TPL_LIST && v.kind != TPL_DICT) {
        TPL_FAIL(t, QN_E_ARGUMENT, "tojson got %s", tpl_kind_name(v.kind));
    }
    const int is_list = v.kind == TPL_LIST;
    const size_t count = is_list ? v.u.list->count : v.u.dict->count;
    QN_TRY(put_word(t, o, is_list ? "[" : "{"));
    for (size_t i = 0; i < count; i++) {
        QN_TRY(put_word(t, o, i ? comma : ""));
        QN_TRY(put_indent(t, o, indent, level + 1));
        if (!is_list) {
            tpl_text key;
            QN_TRY(tpl_to_text(t, v.u.dict->pairs[i].key, &key));
            QN_TRY(put_json_string(t, o, key));
            QN_TRY(put_word(t, o, ": "));
        }
        QN_TRY(tpl_put_json(t, o, is_list ? v.u.list->items[i] : v.u.dict->pairs[i].value, indent, level + 1));
    }
    if (count) {
        QN_TRY(put_indent(t, o, indent, level));
    }
    return put_word(t, o, is_list ? "]" : "}");
}

qn_status tpl_to_text(tpl *t, tpl_value v, tpl_text *out)
{
    if (v.kind == TPL_STRING) {
        *out = v.u.s;
        return QN_OK;
    }
    tpl_output o = {0};
    QN_TRY(tpl_put_str(t, &o, v));
    *out = (tpl_text){o.data ? o.data : "", o.bytes};
    return QN_OK;
}

qn_status tpl_new_list(tpl *t, size_t count, tpl_value *out)
{
    tpl_list *list;
    QN_TRY(tpl_charge(t, count));
    QN_TRY(tpl_alloc(t, sizeof *list, &list));
    if (count > TPL_MAX_MEMORY / sizeof *list->items) {
        TPL_FAIL(t, QN_E_FILE, "a list of %zu items passes the memory limit", count);
    }
    QN_TRY(tpl_alloc(t, count * sizeof *list->items, &list->items));
    list->count = count;
    *out = (tpl_value){.kind = TPL_LIST, .u.list = list};
    return QN_OK;
}

qn_status tpl_new_dict(tpl *t, tpl_kind kind, tpl_value *out)
{
    out->kind = kind;
    return tpl_alloc(t, sizeof *out->u.dict, &out->u.dict);
}

const tpl_value *tpl_dict_get(const tpl_dict *d, tpl_text key)
{
    for (size_t i = 0; d && i < d->count; i++) {
        if (d->pairs[i].key.kind == TPL_STRING && tpl_same_text(d->pairs[i].key.u.s, key)) {
            return &d->pairs[i].value;
        }
    }
    return NULL;
}

qn_status tpl_dict_set(tpl *t, tpl_dict *d, tpl_value key, tpl_value value)
{
    if (key.kind != TPL_STRING) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "a mapping with %s as a key is not served", tpl_kind_name(key.kind));
    }
    QN_TRY(tpl_charge(t, d->count * 16));
    for (size_t i = 0; i < d->count; i++) {
        if (tpl_same_text(d->pairs[i].key.u.s, key.u.s)) {
            d->pairs[i].value = value;
            return QN_OK;
        }
    }
    if (d->count == d->capacity) {
        const size_t capacity = d->capacity ? d->capacity * 2 : 4;
        tpl_pair *pairs;
        QN_TRY(tpl_alloc(t, capacity * sizeof *pairs, &pairs));
        if (d->count) {
            memcpy(pairs, d->pairs, d->count * sizeof *pairs);
        }
        d->pairs = pairs;
        d->capacity = capacity;
    }
    d->pairs[d->count++] = (tpl_pair){key, value};
    return QN_OK;
}

/* Bytes of the character at i; a stray byte counts as one character. */
static size_t step_of(tpl_text s, size_t i)
{
    uint32_t c;
    const size_t n = qn_utf8_next(s.data + i, s.bytes - i, &c);
    return n ? n : 1;
}

qn_status tpl_length(tpl *t, tpl_value v, size_t *out)
{
    *out = 0;
    if (v.kind == TPL_STRING) {
        QN_TRY(tpl_charge(t, v.u.s.bytes));
        for (size_t i = 0; i < v.u.s.bytes; i += step_of(v.u.s, i)) {
            ++*out;
        }
    } else if (v.kind == TPL_LIST) {
        *out = v.u.list->count;
    } else if (v.kind == TPL_DICT) {
        *out = v.u.dict->count;
    } else if (v.kind != TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_ARGUMENT, "%s has no length", tpl_kind_name(v.kind));
    }
    return QN_OK;
}

qn_status tpl_iterate(tpl *t, tpl_value v, tpl_list **out)
{
    tpl_value list;
    size_t count;
    if (v.kind == TPL_LIST) {
        *out = v.u.list;
        return QN_OK;
    }
    if (v.kind != TPL_STRING && v.kind != TPL_DICT && v.kind != TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_ARGUMENT, "%s cannot be iterated over", tpl_kind_name(v.kind));
    }
    QN_TRY(tpl_length(t, v, &count));
    QN_TRY(tpl_new_list(t, count, &list));
    *out = list.u.list;
    for (size_t i = 0, at = 0; i < count; i++) {
        if (v.kind == TPL_DICT) {
            (*out)->items[i] = v.u.dict->pairs[i].key;
        } else {
            const size_t n = step_of(v.u.s, at);
            (*out)->items[i] = tpl_string(v.u.s.data + at, n);
            at += n;
        }
    }
    return QN_OK;
}

static void loop_attribute(const tpl_loop *loop, tpl_text name, tpl_value *out)
{
    const int64_t at = (int64_t)loop->at, count = (int64_t)loop->list->count;
    if (tpl_is(name, "index")) {
        *out = tpl_int(at + 1);
    } else if (tpl_is(name, "index0")) {
        *out = tpl_int(at);
    } else if (tpl_is(name, "revindex")) {
        *out = tpl_int(count - at);
    } else if (tpl_is(name, "revindex0")) {
        *out = tpl_int(count - at - 1);
    } else if (tpl_is(name, "first")) {
        *out = tpl_bool(at == 0);
    } else if (tpl_is(name, "last")) {
        *out = tpl_bool(at == count - 1);
    } else if (tpl_is(name, "length")) {
        *out = tpl_int(count);
    } else if (tpl_is(name, "previtem") && at > 0) {
        *out = loop->list->items[at - 1];
    } else if (tpl_is(name, "nextitem") && at < count - 1) {
        *out = loop->list->items[at + 1];
    }
}

qn_status tpl_attribute(tpl *t, tpl_value v, tpl_text name, tpl_value *out)
{
    *out = (tpl_value){.kind = TPL_UNDEFINED, .u.s = name};
    if (v.kind == TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_ARGUMENT, "'%s' is undefined, so it has no '%s'", qn_show(v.u.s.data, v.u.s.bytes).text,
                 qn_show(name.data, name.bytes).text);
    }
    if (v.kind == TPL_DICT || v.kind == TPL_NAMESPACE) {
        QN_TRY(tpl_charge(t, v.u.dict->count * 16));
        const tpl_value *found = tpl_dict_get(v.u.dict, name);
        *out = found ? *found : *out;
    } else if (v.kind == TPL_LOOP) {
        loop_attribute(v.u.loop, name, out);
    }
    return QN_OK;
}

/* Byte range of count characters from character begin. */
static tpl_text characters(tpl_text s, size_t begin, size_t count)
{
    size_t i = 0;
    for (; begin > 0 && i < s.bytes; begin--) {
        i += step_of(s, i);
    }
    size_t end = i;
    for (; count > 0 && end < s.bytes; count--) {
        end += step_of(s, end);
    }
    return (tpl_text){s.data + i, end - i};
}

qn_status tpl_index(tpl *t, tpl_value v, tpl_value key, tpl_value *out)
{
    if (key.kind == TPL_STRING) {
        return tpl_attribute(t, v, key.u.s, out);
    }
    *out = (tpl_value){.kind = TPL_UNDEFINED, .u.s = {"element", 7}};
    if (v.kind == TPL_UNDEFINED) {
        return tpl_attribute(t, v, out->u.s, out);
    }
    if ((v.kind == TPL_LIST || v.kind == TPL_STRING) && (key.kind == TPL_INT || key.kind == TPL_BOOL)) {
        size_t count;
        QN_TRY(tpl_length(t, v, &count));
        const int64_t i = key.u.i < 0 ? key.u.i + (int64_t)count : key.u.i;
        if (i >= 0 && i < (int64_t)count) {
            *out = v.kind == TPL_LIST ? v.u.list->items[i]
                                      : (tpl_value){.kind = TPL_STRING, .u.s = characters(v.u.s, (size_t)i, 1)};
        }
    }
    return QN_OK;
}

static int64_t bound(const tpl_value *v, int64_t missing, int64_t count, int64_t low, int64_t high)
{
    if (!v || v->kind == TPL_NONE) {
        return missing;
    }
    const int64_t i = v->u.i < 0 ? v->u.i + count : v->u.i;
    return i < low ? low : i > high ? high : i;
}

qn_status tpl_slice(tpl *t, tpl_value v, const tpl_value *begin, const tpl_value *end, const tpl_value *step,
                    tpl_value *out)
{
    const tpl_value *const parts[] = {begin, end, step};
    for (int i = 0; i < 3; i++) {
        if (parts[i] && parts[i]->kind != TPL_INT && parts[i]->kind != TPL_NONE) {
            TPL_FAIL(t, QN_E_ARGUMENT, "a slice has %s as a bound", tpl_kind_name(parts[i]->kind));
        }
    }
    const int64_t by = step && step->kind == TPL_INT ? step->u.i : 1;
    if (v.kind != TPL_LIST && v.kind != TPL_STRING) {
        TPL_FAIL(t, QN_E_ARGUMENT, "%s cannot be sliced", tpl_kind_name(v.kind));
    }
    if (!by || by > INT32_MAX || by < INT32_MIN) {
        TPL_FAIL(t, QN_E_ARGUMENT, "a slice has the step %lld", (long long)by);
    }
    size_t length;
    QN_TRY(tpl_length(t, v, &length));
    const int64_t n = (int64_t)length;
    const int64_t from = by > 0 ? bound(begin, 0, n, 0, n) : bound(begin, n - 1, n, -1, n - 1);
    const int64_t to = by > 0 ? bound(end, n, n, 0, n) : bound(end, -1, n, -1, n - 1);
    if (v.kind == TPL_STRING && by == 1) {
        *out = (tpl_value){.kind = TPL_STRING,
                           .u.s = characters(v.u.s, (size_t)from, to > from ? (size_t)(to - from) : 0)};
        return QN_OK;
    }
    const int64_t count =
        by > 0 ? (to > from ? (to - from + by - 1) / by : 0) : (from > to ? (from - to - by - 1) / -by : 0);
    tpl_list *items;
    QN_TRY(tpl_iterate(t, v, &items));
    tpl_value list;
    QN_TRY(tpl_new_list(t, (size_t)count, &list));
    list.u.list->is_tuple = items->is_tuple;
    tpl_output text = {0};
    for (int64_t i = 0; i < count; i++) {
        const tpl_value item = items->items[from + i * by];
        list.u.list->items[i] = item;
        if (v.kind == TPL_STRING) {
            QN_TRY(tpl_put(t, &text, item.u.s.data, item.u.s.bytes));
        }
    }
    *out = v.kind == TPL_STRING ? tpl_string(text.data ? text.data : "", text.bytes) : list;
    return QN_OK;
}
