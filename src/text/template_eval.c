/* The tree to text: statements, scopes, expressions. Recursion is counted
 * (TPL_MAX_EVAL_DEPTH) and every node is a step (TPL_MAX_STEPS). */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "text/bpe.h"
#include "text/template.h"

#define MAX_ARGUMENTS 32

static tpl_variable *find_variable(tpl *t, tpl_scope *scope, tpl_text name, int whole_chain)
{
    for (; scope; scope = whole_chain ? scope->up : NULL) {
        for (tpl_variable *v = scope->first; v; v = v->next) {
            t->steps++; /* the next charge notices */
            if (tpl_same_text(v->name, name)) {
                return v;
            }
        }
    }
    return NULL;
}

qn_status tpl_set_variable(tpl *t, tpl_text name, tpl_value value)
{
    QN_TRY(tpl_charge(t, 0));
    tpl_variable *v = find_variable(t, t->scope, name, 0);
    if (!v) {
        QN_TRY(tpl_alloc(t, sizeof *v, &v));
        v->name = name;
        v->next = t->scope->first;
        t->scope->first = v;
    }
    v->value = value;
    return QN_OK;
}

static void lookup(tpl *t, tpl_text name, tpl_value *out)
{
    const tpl_variable *v = find_variable(t, t->scope, name, 1);
    const int64_t function = v ? -1 : tpl_find_function(name);
    if (v) {
        *out = v->value;
    } else if (function >= 0) {
        *out = (tpl_value){.kind = TPL_FUNCTION, .u.i = function};
    } else {
        *out = (tpl_value){.kind = TPL_UNDEFINED, .u.s = name};
    }
}

static int is_number(tpl_value v)
{
    return v.kind == TPL_BOOL || v.kind == TPL_INT || v.kind == TPL_FLOAT;
}

static double real(tpl_value v)
{
    return v.kind == TPL_FLOAT ? v.u.d : (double)v.u.i;
}

static qn_status real_arithmetic(tpl *t, tpl_op op, double a, double b, tpl_value *out)
{
    out->kind = TPL_FLOAT;
    const int zero = !(b < 0) && !(b > 0);
    if (zero && (op == OP_DIVIDE || op == OP_FLOOR || op == OP_MODULO)) {
        TPL_FAIL(t, QN_E_ARGUMENT, "division by zero");
    }
    switch (op) {
    case OP_ADD: out->u.d = a + b; break;
    case OP_SUBTRACT: out->u.d = a - b; break;
    case OP_MULTIPLY: out->u.d = a * b; break;
    case OP_DIVIDE: out->u.d = a / b; break;
    case OP_FLOOR: out->u.d = floor(a / b); break;
    case OP_MODULO: out->u.d = a - b * floor(a / b); break;
    default: out->u.d = pow(a, b); break;
    }
    return QN_OK;
}

static qn_status int_arithmetic(tpl *t, tpl_op op, int64_t a, int64_t b, tpl_value *out)
{
    int64_t r = 0;
    int bad = 0;
    *out = tpl_int(0);
    if (op == OP_DIVIDE || (op == OP_POWER && b < 0)) {
        return real_arithmetic(t, op, (double)a, (double)b, out);
    }
    if ((op == OP_FLOOR || op == OP_MODULO) && !b) {
        TPL_FAIL(t, QN_E_ARGUMENT, "division by zero");
    }
    switch (op) {
    case OP_ADD: bad = __builtin_add_overflow(a, b, &r); break;
    case OP_SUBTRACT: bad = __builtin_sub_overflow(a, b, &r); break;
    case OP_MULTIPLY: bad = __builtin_mul_overflow(a, b, &r); break;
    case OP_FLOOR:
        bad = a == INT64_MIN && b == -1;
        r = bad ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MODULO:
        r = b == -1 ? 0 : a % b;
        r += r != 0 && (r < 0) != (b < 0) ? b : 0;
        break;
    default:
        r = 1;
        bad = b > 64 && (a > 1 || a < -1);
        if (b > 64 && !bad) { /* -1, 0 or 1 */
            b = 2 + b % 2;
        }
        for (; !bad && b > 0; b--) {
            bad = __builtin_mul_overflow(r, a, &r);
        }
    }
    if (bad) {
        TPL_FAIL(t, QN_E_ARGUMENT, "a whole number passes 64 bits");
    }
    out->u.i = r;
    return QN_OK;
}

static qn_status join_text(tpl *t, tpl_text a, tpl_text b, tpl_value *out)
{
    char *data;
    size_t bytes;
    if (qn_add_size(a.bytes, b.bytes, &bytes) || bytes > TPL_MAX_OUTPUT) {
        TPL_FAIL(t, QN_E_FILE, "a string passes %u bytes", TPL_MAX_OUTPUT);
    }
    QN_TRY(tpl_charge(t, bytes));
    QN_TRY(tpl_alloc(t, bytes + 1, &data));
    if (a.bytes) {
        memcpy(data, a.data, a.bytes);
    }
    if (b.bytes) {
        memcpy(data + a.bytes, b.data, b.bytes);
    }
    *out = tpl_string(data, bytes);
    return QN_OK;
}

/* count copies of a string or list. */
static qn_status repeat(tpl *t, tpl_value v, int64_t count, tpl_value *out)
{
    const size_t one = v.kind == TPL_STRING ? v.u.s.bytes : v.u.list->count;
    const size_t n = count > 0 ? (size_t)count : 0;
    size_t total;
    if (qn_mul_size(one, n, &total) || total > TPL_MAX_OUTPUT) {
        TPL_FAIL(t, QN_E_FILE, "a repeated value passes %u bytes", TPL_MAX_OUTPUT);
    }
    QN_TRY(tpl_charge(t, total));
    if (v.kind == TPL_STRING) {
        char *data;
        QN_TRY(tpl_alloc(t, total + 1, &data));
        for (size_t i = 0; i < total; i += one) {
            memcpy(data + i, v.u.s.data, one);
        }
        *out = tpl_string(data, total);
        return QN_OK;
    }
    QN_TRY(tpl_new_list(t, total, out));
    for (size_t i = 0; i < total; i++) {
        out->u.list->items[i] = v.u.list->items[i % one];
    }
    return QN_OK;
}

static qn_status binary(tpl *t, tpl_op op, tpl_value a, tpl_value b, tpl_value *out)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    if (op == OP_CONCAT) {
        tpl_text x, y;
        QN_TRY(tpl_to_text(t, a, &x));
        QN_TRY(tpl_to_text(t, b, &y));
        return join_text(t, x, y, out);
    }
    if (is_number(a) && is_number(b)) {
        return a.kind == TPL_FLOAT || b.kind == TPL_FLOAT ? real_arithmetic(t, op, real(a), real(b), out)
                                                          : int_arithmetic(t, op, a.u.i, b.u.i, out);
    }
    if (op == OP_ADD && a.kind == TPL_STRING && b.kind == TPL_STRING) {
        return join_text(t, a.u.s, b.u.s, out);
    }
    if (op == OP_ADD && a.kind == TPL_LIST && b.kind == TPL_LIST) {
        const size_t n = a.u.list->count, m = b.u.list->count;
        QN_TRY(tpl_new_list(t, n + m, out));
        for (size_t i = 0; i < n + m; i++) {
            out->u.list->items[i] = i < n ? a.u.list->items[i] : b.u.list->items[i - n];
        }
        return QN_OK;
    }
    if (op == OP_MULTIPLY && (a.kind == TPL_STRING || a.kind == TPL_LIST) &&
        (b.kind == TPL_INT || b.kind == TPL_BOOL)) {
        return repeat(t, a, b.u.i, out);
    }
    if (op == OP_MODULO && a.kind == TPL_STRING) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "formatting with %% is not served");
    }
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED) {
        const tpl_text name = a.kind == TPL_UNDEFINED ? a.u.s : b.u.s;
        TPL_FAIL(t, QN_E_ARGUMENT, "'%s' is undefined", qn_show(name.data, name.bytes).text);
    }
    TPL_FAIL(t, QN_E_ARGUMENT, "'%s' between %s and %s", names[op], tpl_kind_name(a.kind), tpl_kind_name(b.kind));
}

static qn_status eval_list(tpl *t, const tpl_node *node, tpl_value *out)
{
    size_t count = 0;
    for (const tpl_node *n = node->list; n; n = n->next) {
        count++;
    }
    QN_TRY(tpl_new_list(t, count, out));
    out->u.list->is_tuple = node->flag;
    count = 0;
    for (const tpl_node *n = node->list; n; n = n->next) {
        QN_TRY(tpl_eval(t, n, &out->u.list->items[count++]));
    }
    return QN_OK;
}

static qn_status eval_dict(tpl *t, const tpl_node *node, tpl_value *out)
{
    QN_TRY(tpl_new_dict(t, TPL_DICT, out));
    for (const tpl_node *n = node->list; n; n = n->next) {
        tpl_value key, value;
        QN_TRY(tpl_eval(t, n->a, &key));
        QN_TRY(tpl_eval(t, n->b, &value));
        QN_TRY(tpl_dict_set(t, out->u.dict, key, value));
    }
    return QN_OK;
}

static qn_status eval_slice(tpl *t, const tpl_node *node, tpl_value *out)
{
    tpl_value object, parts[3] = {{0}};
    const tpl_node *const nodes[3] = {node->b, node->c, node->list};
    QN_TRY(tpl_eval(t, node->a, &object));
    for (int i = 0; i < 3; i++) {
        if (nodes[i]) {
            QN_TRY(tpl_eval(t, nodes[i], &parts[i]));
        }
    }
    return tpl_slice(t, object, nodes[0] ? &parts[0] : NULL, nodes[1] ? &parts[1] : NULL, nodes[2] ? &parts[2] : NULL,
                     out);
}

static qn_status eval_compare(tpl *t, const tpl_node *node, tpl_value *out)
{
    tpl_value left, right;
    int yes = 1;
    QN_TRY(tpl_eval(t, node->a, &left));
    for (const tpl_node *n = node->list; n && yes; n = n->next) {
        QN_TRY(tpl_eval(t, n->a, &right));
        QN_TRY(tpl_compare(t, n->op, left, right, &yes));
        left = right;
    }
    *out = tpl_bool(yes);
    return QN_OK;
}

/* Evaluated arguments of a call, filter or test. */
typedef struct arguments {
    tpl_value *values;
    size_t count;
    tpl_value named;
} arguments;

static qn_status eval_arguments(tpl *t, const tpl_node *list, arguments *out)
{
    size_t count = 0;
    for (const tpl_node *n = list; n; n = n->next) {
        count++;
    }
    *out = (arguments){0};
    if (count > MAX_ARGUMENTS) {
        TPL_FAIL(t, QN_E_FILE, "a call has %zu arguments, expected at most %d", count, MAX_ARGUMENTS);
    }
    QN_TRY(tpl_new_dict(t, TPL_DICT, &out->named));
    QN_TRY(tpl_alloc(t, (count + 1) * sizeof *out->values, &out->values));
    for (const tpl_node *n = list; n; n = n->next) {
        tpl_value value;
        QN_TRY(tpl_eval(t, n->kind == N_ARGUMENT ? n->a : n, &value));
        if (n->kind == N_ARGUMENT) {
            QN_TRY(tpl_dict_set(t, out->named.u.dict, tpl_string(n->name.data, n->name.bytes), value));
        } else if (out->named.u.dict->count) {
            TPL_FAIL(t, QN_E_FILE, "a positional argument follows a named one");
        } else {
            out->values[out->count++] = value;
        }
    }
    return QN_OK;
}

static qn_status eval_call(tpl *t, const tpl_node *node, tpl_value *out)
{
    arguments a;
    tpl_value callee;
    if (node->a->kind == N_ATTRIBUTE) {
        tpl_value self;
        QN_TRY(tpl_eval(t, node->a->a, &self));
        QN_TRY(eval_arguments(t, node->list, &a));
        t->line = node->line;
        return tpl_method(t, self, node->a->name, a.values, a.count, a.named.u.dict, out);
    }
    QN_TRY(tpl_eval(t, node->a, &callee));
    QN_TRY(eval_arguments(t, node->list, &a));
    t->line = node->line;
    if (callee.kind == TPL_FUNCTION) {
        return tpl_function(t, callee.u.i, a.values, a.count, a.named.u.dict, out);
    }
    if (callee.kind == TPL_MACRO) {
        return tpl_call_macro(t, callee.u.macro, a.values, a.count, a.named.u.dict, out);
    }
    if (callee.kind == TPL_UNDEFINED) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "the function '%s' is not known",
                 qn_show(callee.u.s.data, callee.u.s.bytes).text);
    }
    TPL_FAIL(t, QN_E_ARGUMENT, "%s is called", tpl_kind_name(callee.kind));
}

static qn_status eval_filter_or_test(tpl *t, const tpl_node *node, tpl_value *out)
{
    tpl_value value;
    arguments a;
    QN_TRY(tpl_eval(t, node->a, &value));
    QN_TRY(eval_arguments(t, node->list, &a));
    t->line = node->line;
    if (node->kind == N_FILTER) {
        return tpl_filter(t, node->name, value, a.values, a.count, a.named.u.dict, out);
    }
    int yes;
    QN_TRY(tpl_test(t, node->name, value, a.values, a.count, &yes));
    *out = tpl_bool(yes != node->flag);
    return QN_OK;
}

static qn_status eval_sign(tpl *t, const tpl_node *node, tpl_value *out)
{
    QN_TRY(tpl_eval(t, node->a, out));
    if (!is_number(*out)) {
        TPL_FAIL(t, QN_E_ARGUMENT, "a sign before %s", tpl_kind_name(out->kind));
    }
    if (node->kind == N_NEGATE && out->kind == TPL_FLOAT) {
        out->u.d = -out->u.d;
        return QN_OK;
    }
    return node->kind == N_NEGATE ? int_arithmetic(t, OP_SUBTRACT, 0, out->u.i, out) : QN_OK;
}

static qn_status eval_inner(tpl *t, const tpl_node *node, tpl_value *out)
{
    tpl_value a, b;
    switch (node->kind) {
    case N_CONST: *out = node->value; return QN_OK;
    case N_NAME: lookup(t, node->name, out); return QN_OK;
    case N_LIST: return eval_list(t, node, out);
    case N_DICT: return eval_dict(t, node, out);
    case N_ATTRIBUTE:
        QN_TRY(tpl_eval(t, node->a, &a));
        t->line = node->line;
        return tpl_attribute(t, a, node->name, out);
    case N_INDEX:
        QN_TRY(tpl_eval(t, node->a, &a));
        QN_TRY(tpl_eval(t, node->b, &b));
        t->line = node->line;
        return tpl_index(t, a, b, out);
    case N_SLICE: return eval_slice(t, node, out);
    case N_CALL: return eval_call(t, node, out);
    case N_FILTER:
    case N_TEST: return eval_filter_or_test(t, node, out);
    case N_NOT:
        QN_TRY(tpl_eval(t, node->a, &a));
        *out = tpl_bool(!tpl_truth(a));
        return QN_OK;
    case N_NEGATE:
    case N_PLUS: return eval_sign(t, node, out);
    case N_AND:
    case N_OR:
        QN_TRY(tpl_eval(t, node->a, out));
        return tpl_truth(*out) == (node->kind == N_OR) ? QN_OK : tpl_eval(t, node->b, out);
    case N_BINARY:
        QN_TRY(tpl_eval(t, node->a, &a));
        QN_TRY(tpl_eval(t, node->b, &b));
        t->line = node->line;
        return binary(t, node->op, a, b, out);
    case N_COMPARE: return eval_compare(t, node, out);
    case N_CHOICE:
        QN_TRY(tpl_eval(t, node->b, &b));
        *out = (tpl_value){.kind = TPL_UNDEFINED, .u.s = {"the value of an if without else", 31}};
        if (tpl_truth(b)) {
            return tpl_eval(t, node->a, out);
        }
        return node->c ? tpl_eval(t, node->c, out) : QN_OK;
    default: break;
    }
    TPL_FAIL(t, QN_E_INTERNAL, "node %d is no expression", (int)node->kind);
}

static qn_status deeper(tpl *t, int line)
{
    t->line = line;
    if (t->depth >= TPL_MAX_EVAL_DEPTH) {
        TPL_FAIL(t, QN_E_FILE, "nested deeper than %d at run time", TPL_MAX_EVAL_DEPTH);
    }
    t->depth++;
    return tpl_charge(t, 0);
}

qn_status tpl_eval(tpl *t, const tpl_node *node, tpl_value *out)
{
    *out = (tpl_value){0};
    QN_TRY(deeper(t, node->line));
    QN_TRY(eval_inner(t, node, out));
    t->depth--;
    return QN_OK;
}

/* Run a body with its own output; the text it makes. */
static qn_status capture(tpl *t, const tpl_node *body, tpl_value *out)
{
    tpl_output own = {0}, *before = t->out;
    t->out = &own;
    QN_TRY(tpl_run(t, body));
    t->out = before;
    *out = tpl_string(own.data ? own.data : "", own.bytes);
    return QN_OK;
}

qn_status tpl_call_macro(tpl *t, const tpl_node *macro, const tpl_value *args, size_t count, const tpl_dict *named,
                         tpl_value *out)
{
    tpl_scope scope = {.up = &t->root}, *before = t->scope;
    size_t i = 0, used = 0;
    QN_TRY(deeper(t, t->line));
    for (const tpl_node *p = macro->list; p; p = p->next, i++) {
        const tpl_value *by_name = tpl_dict_get(named, p->name);
        tpl_value value = {.kind = TPL_UNDEFINED, .u.s = p->name};
        if (i < count) {
            value = args[i];
        } else if (by_name) {
            value = *by_name;
            used++;
        } else if (p->a) {
            t->scope = &scope;
            QN_TRY(tpl_eval(t, p->a, &value));
        }
        t->scope = &scope;
        QN_TRY(tpl_set_variable(t, p->name, value));
    }
    if (count > i || (named && used != named->count)) {
        TPL_FAIL(t, QN_E_ARGUMENT, "the macro '%s' takes %zu arguments",
                 qn_show(macro->name.data, macro->name.bytes).text, i);
    }
    t->scope = &scope;
    QN_TRY(capture(t, macro->b, out));
    t->scope = before;
    t->depth--;
    return QN_OK;
}

/* Give the targets their values: one name, or as many as the value has items. */
static qn_status assign(tpl *t, const tpl_node *targets, tpl_value value)
{
    if (!targets->next) {
        return tpl_set_variable(t, targets->name, value);
    }
    tpl_list *items;
    QN_TRY(tpl_iterate(t, value, &items));
    size_t i = 0;
    for (const tpl_node *n = targets; n; n = n->next, i++) {
        if (i < items->count) {
            QN_TRY(tpl_set_variable(t, n->name, items->items[i]));
        }
    }
    if (i != items->count) {
        TPL_FAIL(t, QN_E_ARGUMENT, "%zu names get %zu values", i, items->count);
    }
    return QN_OK;
}

/* The items for which the condition of "for ... if" holds. */
static qn_status filter_items(tpl *t, const tpl_node *node, const tpl_list *in, tpl_list **out)
{
    tpl_value kept;
    tpl_scope *before = t->scope;
    QN_TRY(tpl_new_list(t, in->count, &kept));
    kept.u.list->count = 0;
    for (size_t i = 0; i < in->count; i++) {
        tpl_scope scope = {.up = before};
        tpl_value yes;
        t->scope = &scope;
        QN_TRY(assign(t, node->list, in->items[i]));
        QN_TRY(tpl_eval(t, node->c->a, &yes));
        if (tpl_truth(yes)) {
            kept.u.list->items[kept.u.list->count++] = in->items[i];
        }
    }
    t->scope = before;
    *out = kept.u.list;
    return QN_OK;
}

static qn_status run_for(tpl *t, const tpl_node *node)
{
    tpl_value sequence;
    tpl_list *list;
    QN_TRY(tpl_eval(t, node->a, &sequence));
    t->line = node->line;
    QN_TRY(tpl_iterate(t, sequence, &list));
    if (node->c->a) {
        QN_TRY(filter_items(t, node, list, &list));
    }
    if (!list->count) {
        return tpl_run(t, node->c->b);
    }
    tpl_scope *before = t->scope;
    for (size_t i = 0; i < list->count; i++) {
        tpl_scope scope = {.up = before};
        tpl_loop *loop;
        t->scope = &scope;
        QN_TRY(tpl_alloc(t, sizeof *loop, &loop));
        *loop = (tpl_loop){list, i};
        QN_TRY(assign(t, node->list, list->items[i]));
        QN_TRY(tpl_set_variable(t, (tpl_text){"loop", 4}, (tpl_value){.kind = TPL_LOOP, .u.loop = loop}));
        QN_TRY(tpl_run(t, node->b));
        const int signal = t->signal;
        t->signal = 0;
        if (signal == N_BREAK) {
            break;
        }
    }
    t->scope = before;
    return QN_OK;
}

static qn_status run_if(tpl *t, const tpl_node *node)
{
    for (const tpl_node *n = node->list; n; n = n->next) {
        tpl_value yes = tpl_bool(1);
        if (n->a) {
            QN_TRY(tpl_eval(t, n->a, &yes));
        }
        if (tpl_truth(yes)) {
            return tpl_run(t, n->b);
        }
    }
    return QN_OK;
}

static qn_status run_set(tpl *t, const tpl_node *node)
{
    tpl_value value;
    if (node->kind == N_SET_BLOCK) {
        QN_TRY(capture(t, node->b, &value));
    } else {
        QN_TRY(tpl_eval(t, node->a, &value));
    }
    t->line = node->line;
    if (!node->name.bytes) {
        return assign(t, node->list, value);
    }
    tpl_value object;
    lookup(t, node->list->name, &object);
    if (object.kind != TPL_NAMESPACE) {
        TPL_FAIL(t, QN_E_ARGUMENT, "'%s' is %s, and only a namespace has attributes that can be set",
                 qn_show(node->list->name.data, node->list->name.bytes).text, tpl_kind_name(object.kind));
    }
    return tpl_dict_set(t, object.u.dict, tpl_string(node->name.data, node->name.bytes), value);
}

qn_status tpl_run(tpl *t, const tpl_node *body)
{
    for (const tpl_node *n = body; n && !t->signal; n = n->next) {
        tpl_value value;
        QN_TRY(deeper(t, n->line));
        switch (n->kind) {
        case N_TEXT: QN_TRY(tpl_put(t, t->out, n->name.data, n->name.bytes)); break;
        case N_OUTPUT:
            QN_TRY(tpl_eval(t, n->a, &value));
            QN_TRY(tpl_put_str(t, t->out, value));
            break;
        case N_IF: QN_TRY(run_if(t, n)); break;
        case N_FOR: QN_TRY(run_for(t, n)); break;
        case N_SET:
        case N_SET_BLOCK: QN_TRY(run_set(t, n)); break;
        case N_MACRO: QN_TRY(tpl_set_variable(t, n->name, (tpl_value){.kind = TPL_MACRO, .u.macro = n})); break;
        case N_BREAK:
        case N_CONTINUE: t->signal = (int)n->kind; break;
        case N_GROUP: QN_TRY(tpl_run(t, n->list)); break;
        default: TPL_FAIL(t, QN_E_INTERNAL, "node %d is no statement", (int)n->kind);
        }
        t->depth--;
    }
    return QN_OK;
}
