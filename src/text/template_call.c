/* Filters, tests, methods and functions of the template subset. A name that is
 * not in these tables is refused by name. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "text/bpe.h"
#include "text/template.h"

typedef enum text_case { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_FILTER } text_case;

static qn_status need_string(tpl *t, tpl_value v, const char *what, tpl_text *out)
{
    if (v.kind != TPL_STRING) {
        TPL_FAIL(t, QN_E_ARGUMENT, "'%s' got %s, expected a string", what, tpl_kind_name(v.kind));
    }
    *out = v.u.s;
    return tpl_charge(t, v.u.s.bytes);
}

static qn_status from_output(tpl_output o, tpl_value *out)
{
    *out = tpl_string(o.data ? o.data : "", o.bytes);
    return QN_OK;
}

/* Simple case mapping, one character to one. */
static qn_status change_case(tpl *t, tpl_text s, text_case how, tpl_value *out)
{
    tpl_output o = {0};
    int start = 1;
    for (size_t i = 0; i < s.bytes;) {
        uint32_t c = 0;
        size_t n = qn_utf8_next(s.data + i, s.bytes - i, &c);
        char text[4];
        if (!n) {
            QN_TRY(tpl_put(t, &o, s.data + i, 1));
            i++;
            continue;
        }
        const int big = how == CASE_UPPER || (how != CASE_LOWER && start);
        const utf8proc_int32_t code = (utf8proc_int32_t)c;
        const utf8proc_int32_t mapped = !big                ? utf8proc_tolower(code)
                                        : how == CASE_UPPER ? utf8proc_toupper(code)
                                                            : utf8proc_totitle(code);
        if (how == CASE_TITLE) {
            const utf8proc_category_t k = utf8proc_category(code);
            start = !(k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO);
        } else if (how == CASE_TITLE_FILTER) {
            start = tpl_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) != NULL);
        } else {
            start = 0;
        }
        i += n;
        QN_TRY(tpl_put(t, &o, text, qn_utf8_put(text, (uint32_t)mapped)));
    }
    return from_output(o, out);
}

static int in_set(uint32_t c, const tpl_text *set)
{
    if (!set) {
        return tpl_is_space(c);
    }
    for (size_t i = 0; i < set->bytes;) {
        uint32_t d = 0;
        const size_t n = qn_utf8_next(set->data + i, set->bytes - i, &d);
        if (n && c == d) {
            return 1;
        }
        i += n ? n : 1;
    }
    return 0;
}

/* sides: 1 left, 2 right; set NULL: white space. */
static qn_status strip(tpl *t, tpl_text s, const tpl_text *set, int sides, tpl_value *out)
{
    size_t begin = 0, end = s.bytes;
    uint32_t c;
    QN_TRY(tpl_charge(t, s.bytes * (set ? set->bytes + 1 : 1)));
    while ((sides & 1) && begin < end) {
        const size_t n = qn_utf8_next(s.data + begin, end - begin, &c);
        if (!n || !in_set(c, set)) {
            break;
        }
        begin += n;
    }
    while ((sides & 2) && end > begin) {
        size_t i = end - 1;
        while (i > begin && ((unsigned char)s.data[i] & 0xC0) == 0x80) {
            i--;
        }
        if (qn_utf8_next(s.data + i, end - i, &c) != end - i || !in_set(c, set)) {
            break;
        }
        end = i;
    }
    *out = tpl_string(s.data + begin, end - begin);
    return QN_OK;
}

static qn_status replace(tpl *t, tpl_text s, tpl_text from, tpl_text to, int64_t count, tpl_value *out)
{
    tpl_output o = {0};
    size_t i = 0;
    QN_TRY(tpl_charge(t, s.bytes));
    while (i <= s.bytes && count != 0) {
        const char *hit =
            from.bytes ? (s.bytes > i ? memmem(s.data + i, s.bytes - i, from.data, from.bytes) : NULL) : s.data + i;
        if (!hit) {
            break;
        }
        const size_t at = (size_t)(hit - s.data);
        QN_TRY(tpl_put(t, &o, s.data + i, at - i));
        QN_TRY(tpl_put(t, &o, to.data, to.bytes));
        i = at + from.bytes;
        if (!from.bytes) { /* before every character and at the end */
            if (i >= s.bytes) {
                break;
            }
            uint32_t c;
            const size_t n = qn_utf8_next(s.data + i, s.bytes - i, &c);
            QN_TRY(tpl_put(t, &o, s.data + i, n ? n : 1));
            i += n ? n : 1;
        }
        count -= count > 0;
    }
    if (i < s.bytes) {
        QN_TRY(tpl_put(t, &o, s.data + i, s.bytes - i));
    }
    return from_output(o, out);
}

static qn_status append(tpl *t, tpl_list *list, size_t *capacity, tpl_value v)
{
    if (list->count == *capacity) {
        tpl_value grown;
        QN_TRY(tpl_new_list(t, *capacity * 2 + 8, &grown));
        *capacity = grown.u.list->count;
        if (list->count) {
            memcpy(grown.u.list->items, list->items, list->count * sizeof *list->items);
        }
        list->items = grown.u.list->items;
    }
    list->items[list->count++] = v;
    return QN_OK;
}

static qn_status split(tpl *t, tpl_text s, const tpl_text *by, int64_t most, tpl_value *out)
{
    size_t capacity = 0, i = 0;
    uint32_t c;
    QN_TRY(tpl_new_list(t, 0, out));
    if (by && !by->bytes) {
        TPL_FAIL(t, QN_E_ARGUMENT, "split got an empty separator");
    }
    while (by) {
        const char *hit = most != 0 && s.bytes > i ? memmem(s.data + i, s.bytes - i, by->data, by->bytes) : NULL;
        const size_t end = hit ? (size_t)(hit - s.data) : s.bytes;
        QN_TRY(append(t, out->u.list, &capacity, tpl_string(s.data + i, end - i)));
        if (!hit) {
            return QN_OK;
        }
        i = end + by->bytes;
        most -= most > 0;
    }
    for (;;) { /* white space: runs count once, none at the ends */
        size_t n;
        while (i < s.bytes && (n = qn_utf8_next(s.data + i, s.bytes - i, &c)) != 0 && tpl_is_space(c)) {
            i += n;
        }
        if (i >= s.bytes) {
            return QN_OK;
        }
        size_t end = i;
        if (most == 0) {
            tpl_value rest;
            QN_TRY(strip(t, (tpl_text){s.data + i, s.bytes - i}, NULL, 2, &rest));
            return append(t, out->u.list, &capacity, rest);
        }
        while (end < s.bytes && !((n = qn_utf8_next(s.data + end, s.bytes - end, &c)) != 0 && tpl_is_space(c))) {
            end += n ? n : 1;
        }
        QN_TRY(append(t, out->u.list, &capacity, tpl_string(s.data + i, end - i)));
        i = end;
        most -= most > 0;
    }
}

static qn_status starts_or_ends(tpl *t, tpl_text s, tpl_value with, int at_end, int *out)
{
    *out = 0;
    if (with.kind == TPL_LIST) {
        for (size_t i = 0; !*out && i < with.u.list->count; i++) {
            if (with.u.list->items[i].kind == TPL_STRING) {
                QN_TRY(starts_or_ends(t, s, with.u.list->items[i], at_end, out));
            }
        }
        return QN_OK;
    }
    tpl_text w = {0};
    QN_TRY(need_string(t, with, at_end ? "endswith" : "startswith", &w));
    *out = w.bytes <= s.bytes && (!w.bytes || memcmp(s.data + (at_end ? s.bytes - w.bytes : 0), w.data, w.bytes) == 0);
    return QN_OK;
}

static qn_status join(tpl *t, tpl_value in, tpl_text between, const tpl_value *attribute, tpl_value *out)
{
    tpl_list *list;
    tpl_output o = {0};
    QN_TRY(tpl_iterate(t, in, &list));
    for (size_t i = 0; i < list->count; i++) {
        tpl_value v = list->items[i];
        if (attribute) {
            QN_TRY(tpl_index(t, v, *attribute, &v));
        }
        if (i) {
            QN_TRY(tpl_put(t, &o, between.data, between.bytes));
        }
        QN_TRY(tpl_put_str(t, &o, v));
    }
    return from_output(o, out);
}

/* what 0: keys, 1: values, 2: pairs */
static qn_status dict_list(tpl *t, const tpl_dict *d, int what, tpl_value *out)
{
    QN_TRY(tpl_new_list(t, d->count, out));
    for (size_t i = 0; i < d->count; i++) {
        tpl_value *item = &out->u.list->items[i];
        if (what < 2) {
            *item = what ? d->pairs[i].value : d->pairs[i].key;
            continue;
        }
        QN_TRY(tpl_new_list(t, 2, item));
        item->u.list->is_tuple = 1;
        item->u.list->items[0] = d->pairs[i].key;
        item->u.list->items[1] = d->pairs[i].value;
    }
    return QN_OK;
}

static qn_status to_int(tpl *t, tpl_value in, tpl_value missing, tpl_value *out)
{
    *out = missing;
    if (in.kind == TPL_INT || in.kind == TPL_BOOL) {
        *out = tpl_int(in.u.i);
    } else if (in.kind == TPL_FLOAT && in.u.d > -9e18 && in.u.d < 9e18) {
        *out = tpl_int((int64_t)in.u.d);
    } else if (in.kind == TPL_STRING) {
        tpl_value s;
        char text[32] = {0}, *end;
        QN_TRY(strip(t, in.u.s, NULL, 3, &s));
        if (s.u.s.bytes && s.u.s.bytes < sizeof text) {
            memcpy(text, s.u.s.data, s.u.s.bytes);
            errno = 0;
            const long long i = strtoll(text, &end, 10);
            if (!*end && !errno) {
                *out = tpl_int(i);
            }
        }
    }
    return QN_OK;
}

/* select, reject, selectattr, rejectattr: first argument(s) name the attribute and the test. */
static qn_status select_items(tpl *t, tpl_value in, const tpl_value *args, size_t count, int by_attribute, int keep,
                              tpl_value *out)
{
    tpl_list *list;
    size_t capacity = 0, used = by_attribute ? 1 : 0;
    if (count < used || (count > used && args[used].kind != TPL_STRING) || (used && args[0].kind != TPL_STRING)) {
        TPL_FAIL(t, QN_E_ARGUMENT, "select expects the names of an attribute and a test");
    }
    QN_TRY(tpl_iterate(t, in, &list));
    QN_TRY(tpl_new_list(t, 0, out));
    for (size_t i = 0; i < list->count; i++) {
        tpl_value v = list->items[i];
        if (by_attribute) {
            QN_TRY(tpl_index(t, v, args[0], &v));
        }
        int yes = tpl_truth(v);
        if (count > used) {
            QN_TRY(tpl_test(t, args[used].u.s, v, args + used + 1, count - used - 1, &yes));
        }
        if (yes == keep) {
            QN_TRY(append(t, out->u.list, &capacity, list->items[i]));
        }
    }
    return QN_OK;
}

static qn_status map_items(tpl *t, tpl_value in, const tpl_value *args, size_t count, const tpl_dict *named,
                           tpl_value *out)
{
    tpl_list *list;
    const tpl_value *attribute = tpl_dict_get(named, (tpl_text){"attribute", 9});
    const tpl_value *missing = tpl_dict_get(named, (tpl_text){"default", 7});
    QN_TRY(tpl_iterate(t, in, &list));
    QN_TRY(tpl_new_list(t, list->count, out));
    if (!attribute && (!count || args[0].kind != TPL_STRING)) {
        TPL_FAIL(t, QN_E_ARGUMENT, "map expects attribute= or the name of a filter");
    }
    for (size_t i = 0; i < list->count; i++) {
        tpl_value *item = &out->u.list->items[i];
        if (attribute) {
            QN_TRY(tpl_index(t, list->items[i], *attribute, item));
            *item = item->kind == TPL_UNDEFINED && missing ? *missing : *item;
        } else {
            QN_TRY(tpl_filter(t, args[0].u.s, list->items[i], args + 1, count - 1, NULL, item));
        }
    }
    return QN_OK;
}

static qn_status to_json(tpl *t, tpl_value in, const tpl_value *args, size_t count, const tpl_dict *named,
                         tpl_value *out)
{
    tpl_output o = {0};
    const tpl_value *indent = count ? &args[0] : tpl_dict_get(named, (tpl_text){"indent", 6});
    const tpl_value *ascii = tpl_dict_get(named, (tpl_text){"ensure_ascii", 12});
    const size_t known = (size_t)(!count && indent) + (size_t)(ascii != NULL);
    if (count > 1 || (named && named->count != known) || (ascii && tpl_truth(*ascii)) ||
        (indent && indent->kind != TPL_INT && indent->kind != TPL_NONE) ||
        (indent && indent->kind == TPL_INT && (indent->u.i < 0 || indent->u.i > 16))) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "tojson takes only indent (0 to 16) and ensure_ascii=false");
    }
    QN_TRY(tpl_put_json(t, &o, in, indent && indent->kind == TPL_INT ? (int)indent->u.i : -1, 0));
    return from_output(o, out);
}

typedef enum filter_id {
    F_TRIM,
    F_UPPER,
    F_LOWER,
    F_TITLE,
    F_CAPITALIZE,
    F_LENGTH,
    F_COUNT,
    F_JOIN,
    F_FIRST,
    F_LAST,
    F_DEFAULT,
    F_D,
    F_TOJSON,
    F_REPLACE,
    F_LIST,
    F_ITEMS,
    F_STRING,
    F_INT,
    F_SAFE,
    F_ABS,
    F_REVERSE,
    F_SELECTATTR,
    F_REJECTATTR,
    F_SELECT,
    F_REJECT,
    F_MAP,
    F_END
} filter_id;

static const char *const filter_names[F_END] = {
    "trim", "upper",   "lower",   "title",      "capitalize", "length", "count",  "join",   "first",
    "last", "default", "d",       "tojson",     "replace",    "list",   "items",  "string", "int",
    "safe", "abs",     "reverse", "selectattr", "rejectattr", "select", "reject", "map"};

static const tpl_value *argument(const tpl_value *args, size_t count, size_t i, const tpl_dict *named, const char *name)
{
    return i < count ? &args[i] : tpl_dict_get(named, (tpl_text){name, strlen(name)});
}

static qn_status filter_text(tpl *t, filter_id id, tpl_value in, const tpl_value *args, size_t count,
                             const tpl_dict *named, tpl_value *out)
{
    static const text_case cases[] = {[F_UPPER] = CASE_UPPER,
                                      [F_LOWER] = CASE_LOWER,
                                      [F_TITLE] = CASE_TITLE_FILTER,
                                      [F_CAPITALIZE] = CASE_CAPITALIZE};
    tpl_text s, a, b;
    QN_TRY(tpl_to_text(t, in, &s)); /* these filters take anything as its text */
    if (id == F_TRIM) {
        const tpl_value *set = argument(args, count, 0, named, "chars");
        if (set && set->kind == TPL_STRING) {
            return strip(t, s, &set->u.s, 3, out);
        }
        return strip(t, s, NULL, 3, out);
    }
    if (id == F_REPLACE) {
        const tpl_value *most = argument(args, count, 2, named, "count");
        if (count < 2) {
            TPL_FAIL(t, QN_E_ARGUMENT, "replace expects two strings");
        }
        QN_TRY(need_string(t, args[0], "replace", &a));
        QN_TRY(need_string(t, args[1], "replace", &b));
        return replace(t, s, a, b, most && most->kind == TPL_INT ? most->u.i : -1, out);
    }
    if (id == F_STRING || id == F_SAFE) {
        *out = tpl_string(s.data, s.bytes);
        return QN_OK;
    }
    return change_case(t, s, cases[id], out);
}

static qn_status reverse(tpl *t, tpl_value in, tpl_value *out)
{
    const tpl_value step = tpl_int(-1);
    return tpl_slice(t, in, NULL, NULL, &step, out);
}

qn_status tpl_filter(tpl *t, tpl_text name, tpl_value in, const tpl_value *args, size_t count, const tpl_dict *named,
                     tpl_value *out)
{
    filter_id id = F_TRIM;
    while (id < F_END && !tpl_is(name, filter_names[id])) {
        id++;
    }
    tpl_list *list;
    size_t n;
    QN_TRY(tpl_charge(t, 0));
    switch (id) {
    case F_END: TPL_FAIL(t, QN_E_UNSUPPORTED, "the filter '%s' is not served", qn_show(name.data, name.bytes).text);
    case F_TRIM:
    case F_UPPER:
    case F_LOWER:
    case F_TITLE:
    case F_CAPITALIZE:
    case F_REPLACE:
    case F_STRING:
    case F_SAFE: return filter_text(t, id, in, args, count, named, out);
    case F_LENGTH:
    case F_COUNT:
        QN_TRY(tpl_length(t, in, &n));
        *out = tpl_int((int64_t)n);
        return QN_OK;
    case F_JOIN: {
        const tpl_value *by = argument(args, count, 0, named, "d");
        tpl_text between = {"", 0};
        if (by) {
            QN_TRY(tpl_to_text(t, *by, &between));
        }
        return join(t, in, between, argument(args, count, 1, named, "attribute"), out);
    }
    case F_FIRST:
    case F_LAST:
        QN_TRY(tpl_iterate(t, in, &list));
        *out = (tpl_value){.kind = TPL_UNDEFINED, .u.s = {"an item of an empty list", 24}};
        if (list->count) {
            *out = list->items[id == F_FIRST ? 0 : list->count - 1];
        }
        return QN_OK;
    case F_DEFAULT:
    case F_D: {
        const tpl_value *value = argument(args, count, 0, named, "default_value");
        const tpl_value *falsy = argument(args, count, 1, named, "boolean");
        const int missing = in.kind == TPL_UNDEFINED || (falsy && tpl_truth(*falsy) && !tpl_truth(in));
        *out = !missing ? in : value ? *value : tpl_string("", 0);
        return QN_OK;
    }
    case F_TOJSON: return to_json(t, in, args, count, named, out);
    case F_LIST:
        QN_TRY(tpl_iterate(t, in, &list));
        QN_TRY(tpl_new_list(t, list->count, out));
        if (list->count) {
            memcpy(out->u.list->items, list->items, list->count * sizeof *list->items);
        }
        return QN_OK;
    case F_ITEMS:
        if (in.kind == TPL_UNDEFINED) {
            return tpl_new_list(t, 0, out);
        }
        if (in.kind != TPL_DICT) {
            TPL_FAIL(t, QN_E_ARGUMENT, "items got %s, expected a mapping", tpl_kind_name(in.kind));
        }
        return dict_list(t, in.u.dict, 2, out);
    case F_INT: {
        const tpl_value *missing = argument(args, count, 0, named, "default");
        return to_int(t, in, missing ? *missing : tpl_int(0), out);
    }
    case F_ABS:
        if ((in.kind != TPL_INT || in.u.i == INT64_MIN) && in.kind != TPL_FLOAT) {
            TPL_FAIL(t, QN_E_ARGUMENT, "abs got %s", tpl_kind_name(in.kind));
        }
        *out = in;
        if (in.kind == TPL_INT && in.u.i < 0) {
            out->u.i = -in.u.i;
        } else if (in.kind == TPL_FLOAT && in.u.d < 0) {
            out->u.d = -in.u.d;
        }
        return QN_OK;
    case F_REVERSE: return reverse(t, in, out);
    case F_SELECTATTR:
    case F_REJECTATTR: return select_items(t, in, args, count, 1, id == F_SELECTATTR, out);
    case F_SELECT:
    case F_REJECT: return select_items(t, in, args, count, 0, id == F_SELECT, out);
    case F_MAP: return map_items(t, in, args, count, named, out);
    }
    return QN_OK;
}

qn_status tpl_test(tpl *t, tpl_text name, tpl_value in, const tpl_value *args, size_t count, int *out)
{
    static const struct {
        const char *name;
        unsigned kinds; /* bits of the kinds for which it holds */
    } by_kind[] = {
        {"undefined", 1u << TPL_UNDEFINED},
        {"none", 1u << TPL_NONE},
        {"string", 1u << TPL_STRING},
        {"mapping", 1u << TPL_DICT},
        {"boolean", 1u << TPL_BOOL},
        {"integer", 1u << TPL_INT},
        {"float", 1u << TPL_FLOAT},
        {"number", 1u << TPL_BOOL | 1u << TPL_INT | 1u << TPL_FLOAT},
        {"iterable", 1u << TPL_UNDEFINED | 1u << TPL_STRING | 1u << TPL_LIST | 1u << TPL_DICT},
        {"sequence", 1u << TPL_UNDEFINED | 1u << TPL_STRING | 1u << TPL_LIST | 1u << TPL_DICT},
        {"callable", 1u << TPL_MACRO | 1u << TPL_FUNCTION},
        {"defined", ~(1u << TPL_UNDEFINED)},
    };
    static const struct {
        const char *name;
        tpl_op op;
    } by_order[] = {{"equalto", OP_EQ}, {"eq", OP_EQ}, {"==", OP_EQ}, {"ne", OP_NE}, {"!=", OP_NE},
                    {"lt", OP_LT},      {"le", OP_LE}, {"gt", OP_GT}, {"ge", OP_GE}, {"in", OP_IN}};
    QN_TRY(tpl_charge(t, 0));
    for (size_t i = 0; i < sizeof by_kind / sizeof *by_kind; i++) {
        if (tpl_is(name, by_kind[i].name)) {
            *out = (by_kind[i].kinds >> in.kind & 1) != 0;
            return QN_OK;
        }
    }
    for (size_t i = 0; i < sizeof by_order / sizeof *by_order; i++) {
        if (tpl_is(name, by_order[i].name)) {
            if (count != 1) {
                TPL_FAIL(t, QN_E_ARGUMENT, "the test '%s' expects one value", by_order[i].name);
            }
            return tpl_compare(t, by_order[i].op, in, args[0], out);
        }
    }
    if (tpl_is(name, "true") || tpl_is(name, "false")) {
        *out = in.kind == TPL_BOOL && in.u.i == tpl_is(name, "true");
        return QN_OK;
    }
    const int odd = tpl_is(name, "odd");
    if (odd || tpl_is(name, "even") || tpl_is(name, "divisibleby")) {
        const int64_t by = tpl_is(name, "divisibleby") ? (count == 1 && args[0].kind == TPL_INT ? args[0].u.i : 0) : 2;
        if (in.kind != TPL_INT || !by) {
            TPL_FAIL(t, QN_E_ARGUMENT, "the test '%s' got %s", qn_show(name.data, name.bytes).text,
                     tpl_kind_name(in.kind));
        }
        *out = (by == -1 || in.u.i % by == 0) != odd;
        return QN_OK;
    }
    TPL_FAIL(t, QN_E_UNSUPPORTED, "the test '%s' is not served", qn_show(name.data, name.bytes).text);
}

static qn_status string_method(tpl *t, tpl_text s, tpl_text name, const tpl_value *args, size_t count,
                               const tpl_dict *named, tpl_value *out)
{
    static const char *const strips[] = {"lstrip", "rstrip", "strip"};
    static const char *const cases[] = {"upper", "lower", "capitalize", "title"};
    tpl_text a, b;
    for (int i = 0; i < 3; i++) {
        if (tpl_is(name, strips[i])) {
            if (count && args[0].kind != TPL_NONE) {
                QN_TRY(need_string(t, args[0], strips[i], &a));
                return strip(t, s, &a, i + 1, out);
            }
            return strip(t, s, NULL, i + 1, out);
        }
    }
    for (int i = 0; i < 4; i++) {
        if (tpl_is(name, cases[i])) {
            return change_case(t, s, (text_case)i, out);
        }
    }
    if (tpl_is(name, "split")) {
        const tpl_value *most = argument(args, count, 1, named, "maxsplit");
        const int64_t n = most && most->kind == TPL_INT ? most->u.i : -1;
        if (count && args[0].kind != TPL_NONE) {
            QN_TRY(need_string(t, args[0], "split", &a));
            return split(t, s, &a, n, out);
        }
        return split(t, s, NULL, n, out);
    }
    if ((tpl_is(name, "startswith") || tpl_is(name, "endswith")) && count == 1) {
        int yes;
        QN_TRY(starts_or_ends(t, s, args[0], tpl_is(name, "endswith"), &yes));
        *out = tpl_bool(yes);
        return QN_OK;
    }
    if (tpl_is(name, "replace") && count >= 2) {
        QN_TRY(need_string(t, args[0], "replace", &a));
        QN_TRY(need_string(t, args[1], "replace", &b));
        return replace(t, s, a, b, count > 2 && args[2].kind == TPL_INT ? args[2].u.i : -1, out);
    }
    if (tpl_is(name, "join") && count == 1) {
        return join(t, args[0], s, NULL, out);
    }
    if (tpl_is(name, "find") && count == 1) {
        QN_TRY(need_string(t, args[0], "find", &a));
        const char *hit = !a.bytes ? s.data : s.bytes ? memmem(s.data, s.bytes, a.data, a.bytes) : NULL;
        size_t n = 0;
        if (hit) {
            QN_TRY(tpl_length(t, tpl_string(s.data, (size_t)(hit - s.data)), &n));
        }
        *out = tpl_int(hit ? (int64_t)n : -1);
        return QN_OK;
    }
    TPL_FAIL(t, QN_E_UNSUPPORTED, "the method '%s' of a string with %zu arguments is not served",
             qn_show(name.data, name.bytes).text, count);
}

qn_status tpl_method(tpl *t, tpl_value self, tpl_text name, const tpl_value *args, size_t count, const tpl_dict *named,
                     tpl_value *out)
{
    static const char *const lists[] = {"keys", "values", "items"};
    if (self.kind == TPL_STRING) {
        QN_TRY(tpl_charge(t, self.u.s.bytes));
        return string_method(t, self.u.s, name, args, count, named, out);
    }
    if (self.kind == TPL_DICT) {
        for (int i = 0; i < 3; i++) {
            if (tpl_is(name, lists[i])) {
                return dict_list(t, self.u.dict, i, out);
            }
        }
        if (tpl_is(name, "get") && count >= 1 && args[0].kind == TPL_STRING) {
            QN_TRY(tpl_charge(t, self.u.dict->count * 16));
            const tpl_value *found = tpl_dict_get(self.u.dict, args[0].u.s);
            *out = found ? *found : count > 1 ? args[1] : (tpl_value){.kind = TPL_NONE};
            return QN_OK;
        }
    }
    if (self.kind == TPL_DICT || self.kind == TPL_NAMESPACE) {
        const tpl_value *found = tpl_dict_get(self.u.dict, name);
        if (found && found->kind == TPL_MACRO) {
            return tpl_call_macro(t, found->u.macro, args, count, named, out);
        }
    }
    if (self.kind == TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_ARGUMENT, "'%s' is undefined, so it has no '%s'", qn_show(self.u.s.data, self.u.s.bytes).text,
                 qn_show(name.data, name.bytes).text);
    }
    TPL_FAIL(t, QN_E_UNSUPPORTED, "the method '%s' of %s is not served", qn_show(name.data, name.bytes).text,
             tpl_kind_name(self.kind));
}

/* --- functions --- */

enum { FN_RAISE, FN_RANGE, FN_NAMESPACE, FN_DICT, FN_STRFTIME, FN_END };
static const char *const function_names[FN_END] = {"raise_exception", "range", "namespace", "dict", "strftime_now"};

int64_t tpl_find_function(tpl_text name)
{
    for (int i = 0; i < FN_END; i++) {
        if (tpl_is(name, function_names[i])) {
            return i;
        }
    }
    return -1;
}

static qn_status make_range(tpl *t, const tpl_value *args, size_t count, tpl_value *out)
{
    int64_t n[3] = {0, 0, 1};
    for (size_t i = 0; i < count && i < 3; i++) {
        if (args[i].kind != TPL_INT || args[i].u.i > INT32_MAX || args[i].u.i < -INT32_MAX) {
            TPL_FAIL(t, QN_E_ARGUMENT, "range got %s, expected whole numbers of 32 bits", tpl_kind_name(args[i].kind));
        }
        n[i] = args[i].u.i;
    }
    if (count < 1 || count > 3 || !n[2]) {
        TPL_FAIL(t, QN_E_ARGUMENT, "range expects one to three numbers and a step other than 0");
    }
    const int64_t from = count == 1 ? 0 : n[0], to = count == 1 ? n[0] : n[1], by = n[2];
    const int64_t items =
        by > 0 ? (to > from ? (to - from + by - 1) / by : 0) : (from > to ? (from - to - by - 1) / -by : 0);
    if (items > TPL_MAX_RANGE) {
        TPL_FAIL(t, QN_E_FILE, "range has %lld items, expected at most %d", (long long)items, TPL_MAX_RANGE);
    }
    QN_TRY(tpl_new_list(t, (size_t)items, out));
    for (int64_t i = 0; i < items; i++) {
        out->u.list->items[i] = tpl_int(from + i * by);
    }
    return QN_OK;
}

/* English names whatever the locale; local time. */
static qn_status strftime_now(tpl *t, tpl_text format, tpl_value *out)
{
    static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                         "July",    "August",   "September", "October", "November", "December"};
    static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    const time_t now = time(NULL);
    struct tm tm = {0};
    localtime_r(&now, &tm);
    tpl_output o = {0};
    for (size_t i = 0; i < format.bytes; i++) {
        if (format.data[i] != '%') {
            QN_TRY(tpl_put(t, &o, format.data + i, 1));
            continue;
        }
        const char c = ++i < format.bytes ? format.data[i] : 0;
        char text[32];
        qn_text w = qn_text_make(text, sizeof text);
        switch (c) {
        case 'd': qn_text_add(&w, "%02d", tm.tm_mday); break;
        case 'm': qn_text_add(&w, "%02d", tm.tm_mon + 1); break;
        case 'Y': qn_text_add(&w, "%d", tm.tm_year + 1900); break;
        case 'y': qn_text_add(&w, "%02d", tm.tm_year % 100); break;
        case 'H': qn_text_add(&w, "%02d", tm.tm_hour); break;
        case 'M': qn_text_add(&w, "%02d", tm.tm_min); break;
        case 'S': qn_text_add(&w, "%02d", tm.tm_sec); break;
        case 'B': qn_text_add(&w, "%s", months[tm.tm_mon]); break;
        case 'b': qn_text_add(&w, "%.3s", months[tm.tm_mon]); break;
        case 'A': qn_text_add(&w, "%s", days[tm.tm_wday]); break;
        case 'a': qn_text_add(&w, "%.3s", days[tm.tm_wday]); break;
        case '%': qn_text_add(&w, "%%"); break;
        default: TPL_FAIL(t, QN_E_UNSUPPORTED, "strftime_now serves %%d %%m %%Y %%y %%H %%M %%S %%B %%b %%A %%a only");
        }
        QN_TRY(tpl_put(t, &o, text, w.length));
    }
    return from_output(o, out);
}

qn_status tpl_function(tpl *t, int64_t function, const tpl_value *args, size_t count, const tpl_dict *named,
                       tpl_value *out)
{
    tpl_text s = {"", 0};
    QN_TRY(tpl_charge(t, 0));
    if (function == FN_RANGE) {
        return make_range(t, args, count, out);
    }
    if (function == FN_NAMESPACE || function == FN_DICT) {
        if (count > 1 || (count && args[0].kind != TPL_DICT)) {
            TPL_FAIL(t, QN_E_ARGUMENT, "%s expects name=value", function_names[function]);
        }
        QN_TRY(tpl_new_dict(t, function == FN_DICT ? TPL_DICT : TPL_NAMESPACE, out));
        const tpl_dict *const sources[] = {count ? args[0].u.dict : NULL, named};
        for (int k = 0; k < 2; k++) {
            for (size_t i = 0; sources[k] && i < sources[k]->count; i++) {
                QN_TRY(tpl_dict_set(t, out->u.dict, sources[k]->pairs[i].key, sources[k]->pairs[i].value));
            }
        }
        return QN_OK;
    }
    if (count) {
        QN_TRY(tpl_to_text(t, args[0], &s));
    }
    if (function == FN_STRFTIME) {
        return strftime_now(t, s, out);
    }
    TPL_FAIL(t, QN_E_ARGUMENT, "the template says: %.*s", (int)(s.bytes < 300 ? s.bytes : 300), s.data);
}
