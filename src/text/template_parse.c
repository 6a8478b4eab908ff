/* Tokens to a tree, by recursive descent under a depth limit. */
#include <string.h>

#include "text/bpe.h"
#include "text/template.h"

static qn_status parse_expression(tpl *t, tpl_node **out);
static qn_status parse_unary(tpl *t, int with_filter, tpl_node **out);
static qn_status parse_body(tpl *t, const char *const *ends, tpl_node **out);

static const tpl_token *peek(const tpl *t)
{
    return &t->tokens[t->at];
}

static const tpl_token *take(tpl *t)
{
    const tpl_token *token = &t->tokens[t->at];
    t->line = token->line;
    t->at += token->kind != TOK_END;
    return token;
}

static int is_op(const tpl *t, const char *op)
{
    return peek(t)->kind == TOK_OP && tpl_is(peek(t)->text, op);
}

static int is_name(const tpl *t, const char *name)
{
    return peek(t)->kind == TOK_NAME && tpl_is(peek(t)->text, name);
}

static int take_op(tpl *t, const char *op)
{
    const int yes = is_op(t, op);
    t->at += (size_t)yes;
    return yes;
}

static int take_name(tpl *t, const char *name)
{
    const int yes = is_name(t, name);
    t->at += (size_t)yes;
    return yes;
}

static qn_status unexpected(tpl *t, const char *expected)
{
    const tpl_token *token = peek(t);
    t->line = token->line;
    static const char *const kinds[] = {"the end of the template",
                                        "text",
                                        "{{",
                                        "the end of the tag",
                                        "{%",
                                        "the end of the tag",
                                        "a name",
                                        "a string",
                                        "a number",
                                        "a number",
                                        "an operator"};
    if (token->kind == TOK_NAME || token->kind == TOK_OP) {
        TPL_FAIL(t, QN_E_FILE, "found '%s', expected %s", qn_show(token->text.data, token->text.bytes).text, expected);
    }
    TPL_FAIL(t, QN_E_FILE, "found %s, expected %s", kinds[token->kind], expected);
}

static qn_status expect_op(tpl *t, const char *op)
{
    return take_op(t, op) ? QN_OK : unexpected(t, op);
}

static qn_status expect_kind(tpl *t, tpl_token_kind kind, const char *what)
{
    if (peek(t)->kind != kind) {
        return unexpected(t, what);
    }
    (void)take(t);
    return QN_OK;
}

static qn_status new_node(tpl *t, tpl_node_kind kind, tpl_node **out)
{
    QN_TRY(tpl_alloc(t, sizeof **out, out));
    (*out)->kind = kind;
    (*out)->line = peek(t)->line;
    return QN_OK;
}

static qn_status enter(tpl *t)
{
    if (++t->depth > TPL_MAX_DEPTH) {
        t->line = peek(t)->line;
        TPL_FAIL(t, QN_E_FILE, "nested deeper than %d", TPL_MAX_DEPTH);
    }
    return QN_OK;
}

static qn_status expect_identifier(tpl *t, tpl_text *out)
{
    if (peek(t)->kind != TOK_NAME) {
        return unexpected(t, "a name");
    }
    *out = take(t)->text;
    return QN_OK;
}

/* Arguments after "(": list of expressions; N_ARGUMENT (name, a) for name=value. */
static qn_status parse_arguments(tpl *t, tpl_node **out)
{
    tpl_node **tail = out;
    *out = NULL;
    while (!take_op(t, ")")) {
        tpl_node *value;
        if (is_op(t, "*") || is_op(t, "**")) {
            TPL_FAIL(t, QN_E_UNSUPPORTED, "* and ** arguments are not served");
        }
        if (peek(t)->kind == TOK_NAME && t->tokens[t->at + 1].kind == TOK_OP &&
            tpl_is(t->tokens[t->at + 1].text, "=")) {
            QN_TRY(new_node(t, N_ARGUMENT, &value));
            value->name = take(t)->text;
            t->at++;
            QN_TRY(parse_expression(t, &value->a));
        } else {
            QN_TRY(parse_expression(t, &value));
        }
        *tail = value;
        tail = &value->next;
        if (!take_op(t, ",") && !is_op(t, ")")) {
            return unexpected(t, ", or )");
        }
    }
    return QN_OK;
}

/* Expressions up to closing: N_LIST (list; flag 1: tuple). */
static qn_status parse_items(tpl *t, const char *closing, tpl_node *list)
{
    tpl_node **tail = &list->list;
    while (!take_op(t, closing)) {
        QN_TRY(parse_expression(t, tail));
        tail = &(*tail)->next;
        if (!take_op(t, ",") && !is_op(t, closing)) {
            return unexpected(t, closing);
        }
    }
    return QN_OK;
}

/* N_DICT: list of N_ARGUMENT (a key, b value). */
static qn_status parse_dict(tpl *t, tpl_node **out)
{
    QN_TRY(new_node(t, N_DICT, out));
    tpl_node **tail = &(*out)->list;
    while (!take_op(t, "}")) {
        QN_TRY(new_node(t, N_ARGUMENT, tail));
        QN_TRY(parse_expression(t, &(*tail)->a));
        QN_TRY(expect_op(t, ":"));
        QN_TRY(parse_expression(t, &(*tail)->b));
        tail = &(*tail)->next;
        if (!take_op(t, ",") && !is_op(t, "}")) {
            return unexpected(t, "}");
        }
    }
    return QN_OK;
}

static qn_status parse_parenthesis(tpl *t, tpl_node **out)
{
    if (take_op(t, ")")) {
        QN_TRY(new_node(t, N_LIST, out));
        (*out)->flag = 1;
        return QN_OK;
    }
    tpl_node *first;
    QN_TRY(parse_expression(t, &first));
    if (take_op(t, ",")) {
        QN_TRY(new_node(t, N_LIST, out));
        (*out)->flag = 1;
        (*out)->list = first;
        tpl_node rest = {0};
        QN_TRY(parse_items(t, ")", &rest));
        first->next = rest.list;
        return QN_OK;
    }
    *out = first;
    return expect_op(t, ")");
}

static qn_status parse_strings(tpl *t, tpl_node *node)
{
    size_t bytes = 0, n = 0;
    for (size_t i = t->at; t->tokens[i].kind == TOK_STRING; i++) {
        bytes += t->tokens[i].text.bytes;
    }
    char *data;
    QN_TRY(tpl_alloc(t, bytes + 1, &data));
    while (peek(t)->kind == TOK_STRING) { /* strings side by side are one string */
        const tpl_text s = take(t)->text;
        memcpy(data + n, s.data, s.bytes);
        n += s.bytes;
    }
    node->value = tpl_string(data, bytes);
    return QN_OK;
}

static qn_status parse_primary(tpl *t, tpl_node **out)
{
    const tpl_token *token = peek(t);
    QN_TRY(new_node(t, N_CONST, out));
    tpl_node *node = *out;
    if (token->kind == TOK_STRING) {
        return parse_strings(t, node);
    }
    if (token->kind == TOK_INT || token->kind == TOK_FLOAT) {
        node->value = tpl_int(token->number);
        if (token->kind == TOK_FLOAT) {
            node->value = (tpl_value){.kind = TPL_FLOAT, .u.d = token->real};
        }
        (void)take(t);
        return QN_OK;
    }
    if (token->kind == TOK_NAME) {
        const tpl_text name = take(t)->text;
        if (tpl_is(name, "true") || tpl_is(name, "True")) {
            node->value = tpl_bool(1);
        } else if (tpl_is(name, "false") || tpl_is(name, "False")) {
            node->value = tpl_bool(0);
        } else if (tpl_is(name, "none") || tpl_is(name, "None")) {
            node->value.kind = TPL_NONE;
        } else {
            node->kind = N_NAME;
            node->name = name;
        }
        return QN_OK;
    }
    if (take_op(t, "(")) {
        return parse_parenthesis(t, out);
    }
    if (take_op(t, "[")) {
        node->kind = N_LIST;
        return parse_items(t, "]", node);
    }
    if (take_op(t, "{")) {
        return parse_dict(t, out);
    }
    return unexpected(t, "an expression");
}

/* After "[": N_INDEX (a object, b key) or N_SLICE (a object, b begin, c end, list step). */
static qn_status parse_subscript(tpl *t, tpl_node *object, tpl_node **out)
{
    tpl_node *node, *first = NULL;
    QN_TRY(new_node(t, N_INDEX, &node));
    node->a = object;
    *out = node;
    if (!is_op(t, ":")) {
        QN_TRY(parse_expression(t, &first));
    }
    if (!take_op(t, ":")) {
        node->b = first;
        return expect_op(t, "]");
    }
    node->kind = N_SLICE;
    node->b = first;
    if (!is_op(t, ":") && !is_op(t, "]")) {
        QN_TRY(parse_expression(t, &node->c));
    }
    if (take_op(t, ":") && !is_op(t, "]")) {
        QN_TRY(parse_expression(t, &node->list));
    }
    return expect_op(t, "]");
}

/* A chain hangs to the left: each link counts as one level. */
static qn_status parse_postfix(tpl *t, tpl_node **node)
{
    for (;;) {
        tpl_node *outer;
        if (take_op(t, ".")) {
            QN_TRY(new_node(t, N_ATTRIBUTE, &outer)); /* a object, name */
            outer->a = *node;
            if (peek(t)->kind == TOK_INT) {
                outer->kind = N_INDEX;
                QN_TRY(parse_primary(t, &outer->b));
            } else {
                QN_TRY(expect_identifier(t, &outer->name));
            }
        } else if (take_op(t, "[")) {
            QN_TRY(parse_subscript(t, *node, &outer));
        } else if (take_op(t, "(")) {
            QN_TRY(new_node(t, N_CALL, &outer)); /* a callee, list arguments */
            outer->a = *node;
            QN_TRY(parse_arguments(t, &outer->list));
        } else {
            return QN_OK;
        }
        *node = outer;
    }
}

/* N_TEST: a value, name, list arguments, flag 1: negated. */
static qn_status parse_test(tpl *t, tpl_node *value, tpl_node **out)
{
    QN_TRY(new_node(t, N_TEST, out));
    tpl_node *node = *out;
    node->a = value;
    node->flag = take_name(t, "not");
    if (is_op(t, "==") || is_op(t, "!=")) {
        node->name = take(t)->text;
    } else {
        QN_TRY(expect_identifier(t, &node->name));
    }
    if (take_op(t, "(")) {
        return parse_arguments(t, &node->list);
    }
    const tpl_token_kind k = peek(t)->kind;
    const int argument = k == TOK_STRING || k == TOK_INT || k == TOK_FLOAT || is_op(t, "[") || is_op(t, "{") ||
                         (k == TOK_NAME && !is_name(t, "else") && !is_name(t, "or") && !is_name(t, "and") &&
                          !is_name(t, "is") && !is_name(t, "if") && !is_name(t, "in") && !is_name(t, "not"));
    if (argument) {
        QN_TRY(parse_primary(t, &node->list));
        return parse_postfix(t, &node->list);
    }
    return QN_OK;
}

/* N_FILTER: a value, name, list arguments. */
static qn_status parse_filters(tpl *t, tpl_node **node)
{
    for (;;) {
        tpl_node *outer;
        if (take_op(t, "|")) {
            QN_TRY(new_node(t, N_FILTER, &outer));
            outer->a = *node;
            QN_TRY(expect_identifier(t, &outer->name));
            if (take_op(t, "(")) {
                QN_TRY(parse_arguments(t, &outer->list));
            }
        } else if (take_name(t, "is")) {
            QN_TRY(parse_test(t, *node, &outer));
        } else {
            return QN_OK;
        }
        *node = outer;
    }
}

static qn_status parse_unary(tpl *t, int with_filter, tpl_node **out)
{
    QN_TRY(enter(t));
    if (is_op(t, "-") || is_op(t, "+")) {
        QN_TRY(new_node(t, is_op(t, "-") ? N_NEGATE : N_PLUS, out));
        t->at++;
        QN_TRY(parse_unary(t, 0, &(*out)->a));
    } else {
        QN_TRY(parse_primary(t, out));
    }
    QN_TRY(parse_postfix(t, out));
    if (with_filter) {
        QN_TRY(parse_filters(t, out));
    }
    t->depth--;
    return QN_OK;
}

typedef struct level {
    const char *ops[5];
    tpl_op codes[4];
} level;

/* Binary operators, loosest first: N_BINARY (a, b, op). */
static const level levels[] = {
    {{"+", "-", NULL}, {OP_ADD, OP_SUBTRACT}},
    {{"~", NULL}, {OP_CONCAT}},
    {{"*", "/", "//", "%", NULL}, {OP_MULTIPLY, OP_DIVIDE, OP_FLOOR, OP_MODULO}},
    {{"**", NULL}, {OP_POWER}},
};

static qn_status parse_binary(tpl *t, size_t i, tpl_node **out)
{
    if (i == sizeof levels / sizeof *levels) {
        return parse_unary(t, 1, out);
    }
    QN_TRY(parse_binary(t, i + 1, out));
    for (;;) {
        size_t k = 0;
        while (levels[i].ops[k] && !is_op(t, levels[i].ops[k])) {
            k++;
        }
        if (!levels[i].ops[k]) {
            return QN_OK;
        }
        tpl_node *node;
        QN_TRY(new_node(t, N_BINARY, &node));
        t->at++;
        node->op = levels[i].codes[k];
        node->a = *out;
        QN_TRY(parse_binary(t, i + 1, &node->b));
        *out = node;
    }
}

/* N_COMPARE: a first operand, list of N_ARGUMENT (op, a). */
static qn_status parse_compare(tpl *t, tpl_node **out)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    static const tpl_op codes[] = {OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE};
    QN_TRY(parse_binary(t, 0, out));
    tpl_node *node = NULL, **tail = NULL;
    for (;;) {
        tpl_op op = OP_ADD;
        for (size_t k = 0; k < 6; k++) {
            if (is_op(t, ops[k])) {
                op = codes[k];
            }
        }
        if (op != OP_ADD) {
            t->at++;
        } else if (take_name(t, "in")) {
            op = OP_IN;
        } else if (is_name(t, "not") && t->tokens[t->at + 1].kind == TOK_NAME &&
                   tpl_is(t->tokens[t->at + 1].text, "in")) {
            t->at += 2;
            op = OP_NOT_IN;
        } else {
            return QN_OK;
        }
        if (!node) {
            QN_TRY(new_node(t, N_COMPARE, &node));
            node->a = *out;
            *out = node;
            tail = &node->list;
        }
        QN_TRY(new_node(t, N_ARGUMENT, tail));
        (*tail)->op = op;
        QN_TRY(parse_binary(t, 0, &(*tail)->a));
        tail = &(*tail)->next;
    }
}

static qn_status parse_not(tpl *t, tpl_node **out)
{
    if (!is_name(t, "not")) {
        return parse_compare(t, out);
    }
    QN_TRY(enter(t));
    QN_TRY(new_node(t, N_NOT, out));
    t->at++;
    QN_TRY(parse_not(t, &(*out)->a));
    t->depth--;
    return QN_OK;
}

/* N_AND, N_OR: a, b. */
static qn_status parse_logic(tpl *t, int is_or, tpl_node **out)
{
    QN_TRY(is_or ? parse_logic(t, 0, out) : parse_not(t, out));
    while (take_name(t, is_or ? "or" : "and")) {
        tpl_node *node;
        QN_TRY(new_node(t, is_or ? N_OR : N_AND, &node));
        node->a = *out;
        QN_TRY(is_or ? parse_logic(t, 0, &node->b) : parse_not(t, &node->b));
        *out = node;
    }
    return QN_OK;
}

/* N_CHOICE: a if b else c; c NULL: undefined. */
static qn_status parse_expression(tpl *t, tpl_node **out)
{
    QN_TRY(enter(t));
    QN_TRY(parse_logic(t, 1, out));
    while (take_name(t, "if")) {
        tpl_node *node;
        QN_TRY(new_node(t, N_CHOICE, &node));
        node->a = *out;
        QN_TRY(parse_logic(t, 1, &node->b));
        if (take_name(t, "else")) {
            QN_TRY(parse_expression(t, &node->c));
        }
        *out = node;
    }
    t->depth--;
    return QN_OK;
}

/* An expression, or several with commas as a tuple. */
static qn_status parse_tuple(tpl *t, tpl_node **out)
{
    QN_TRY(parse_expression(t, out));
    if (!is_op(t, ",")) {
        return QN_OK;
    }
    tpl_node *list;
    QN_TRY(new_node(t, N_LIST, &list));
    list->flag = 1;
    list->list = *out;
    tpl_node **tail = &(*out)->next;
    while (take_op(t, ",") && peek(t)->kind != TOK_BLOCK_END && peek(t)->kind != TOK_VAR_END) {
        QN_TRY(parse_expression(t, tail));
        tail = &(*tail)->next;
    }
    *out = list;
    return QN_OK;
}

static qn_status end_block(tpl *t)
{
    return expect_kind(t, TOK_BLOCK_END, "the end of the tag");
}

/* N_IF: list of N_ARGUMENT (a condition, NULL for else; b body). */
static qn_status parse_if(tpl *t, tpl_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    tpl_node **tail = &node->list;
    for (int is_else = 0; !is_else;) {
        tpl_node *branch;
        QN_TRY(new_node(t, N_ARGUMENT, &branch));
        *tail = branch;
        tail = &branch->next;
        QN_TRY(parse_tuple(t, &branch->a));
        QN_TRY(end_block(t));
        QN_TRY(parse_body(t, ends, &branch->b));
        if (take_name(t, "elif")) {
            continue;
        }
        is_else = 1;
        if (take_name(t, "else")) {
            QN_TRY(end_block(t));
            QN_TRY(new_node(t, N_ARGUMENT, &branch));
            *tail = branch;
            QN_TRY(parse_body(t, last, &branch->b));
        }
    }
    t->at++; /* endif */
    return end_block(t);
}

/* Names with commas, in parentheses or not: a chain of N_NAME. */
static qn_status parse_targets(tpl *t, tpl_node **out)
{
    const int open = take_op(t, "(");
    tpl_node **tail = out;
    do {
        QN_TRY(new_node(t, N_NAME, tail));
        QN_TRY(expect_identifier(t, &(*tail)->name));
        tail = &(*tail)->next;
    } while (take_op(t, ","));
    return open ? expect_op(t, ")") : QN_OK;
}

/* N_FOR: list targets, a sequence, b body, c: N_ARGUMENT (a condition or NULL, b else body). */
static qn_status parse_for(tpl *t, tpl_node *node)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    QN_TRY(parse_targets(t, &node->list));
    if (!take_name(t, "in")) {
        return unexpected(t, "in");
    }
    QN_TRY(new_node(t, N_ARGUMENT, &node->c));
    /* "if" after the sequence filters the loop, so the sequence is no inline if */
    QN_TRY(enter(t));
    QN_TRY(parse_logic(t, 1, &node->a));
    t->depth--;
    if (take_name(t, "if")) {
        QN_TRY(parse_expression(t, &node->c->a));
    }
    if (is_name(t, "recursive")) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "recursive loops are not served");
    }
    QN_TRY(end_block(t));
    t->loops++;
    QN_TRY(parse_body(t, ends, &node->b));
    t->loops--;
    if (take_name(t, "else")) {
        QN_TRY(end_block(t));
        QN_TRY(parse_body(t, last, &node->c->b));
    }
    t->at++; /* endfor */
    return end_block(t);
}

/* N_SET: list targets, name when it sets an attribute of a namespace, a value. N_SET_BLOCK: list, b body. */
static qn_status parse_set(tpl *t, tpl_node *node)
{
    static const char *const ends[] = {"endset", NULL};
    QN_TRY(parse_targets(t, &node->list));
    if (take_op(t, ".")) {
        QN_TRY(expect_identifier(t, &node->name));
    }
    if (take_op(t, "=")) {
        QN_TRY(parse_tuple(t, &node->a));
        return end_block(t);
    }
    if (is_op(t, "|")) {
        TPL_FAIL(t, QN_E_UNSUPPORTED, "a set block with a filter is not served");
    }
    node->kind = N_SET_BLOCK;
    QN_TRY(end_block(t));
    QN_TRY(parse_body(t, ends, &node->b));
    t->at++; /* endset */
    return end_block(t);
}

/* N_MACRO: name, list of N_ARGUMENT (name, a default or NULL), b body. */
static qn_status parse_macro(tpl *t, tpl_node *node)
{
    static const char *const ends[] = {"endmacro", NULL};
    QN_TRY(expect_identifier(t, &node->name));
    QN_TRY(expect_op(t, "("));
    tpl_node **tail = &node->list;
    while (!take_op(t, ")")) {
        QN_TRY(new_node(t, N_ARGUMENT, tail));
        QN_TRY(expect_identifier(t, &(*tail)->name));
        if (take_op(t, "=")) {
            QN_TRY(parse_expression(t, &(*tail)->a));
        }
        tail = &(*tail)->next;
        if (!take_op(t, ",") && !is_op(t, ")")) {
            return unexpected(t, ", or )");
        }
    }
    QN_TRY(end_block(t));
    const int loops = t->loops;
    t->loops = 0;
    QN_TRY(parse_body(t, ends, &node->b));
    t->loops = loops;
    t->at++; /* endmacro */
    return end_block(t);
}

static qn_status parse_statement(tpl *t, tpl_node **out)
{
    static const char *const generation_ends[] = {"endgeneration", NULL};
    tpl_text name;
    QN_TRY(expect_identifier(t, &name));
    QN_TRY(new_node(t, N_GROUP, out));
    tpl_node *node = *out;
    if (tpl_is(name, "if")) {
        node->kind = N_IF;
        return parse_if(t, node);
    }
    if (tpl_is(name, "for")) {
        node->kind = N_FOR;
        return parse_for(t, node);
    }
    if (tpl_is(name, "set")) {
        node->kind = N_SET;
        return parse_set(t, node);
    }
    if (tpl_is(name, "macro")) {
        node->kind = N_MACRO;
        return parse_macro(t, node);
    }
    if (tpl_is(name, "break") || tpl_is(name, "continue")) {
        if (!t->loops) {
            TPL_FAIL(t, QN_E_FILE, "'%s' outside a loop", qn_show(name.data, name.bytes).text);
        }
        node->kind = tpl_is(name, "break") ? N_BREAK : N_CONTINUE;
        return end_block(t);
    }
    if (tpl_is(name, "generation")) { /* marks the reply for training; the text is what counts here */
        QN_TRY(end_block(t));
        QN_TRY(parse_body(t, generation_ends, &node->list));
        t->at++;
        return end_block(t);
    }
    static const char *const others[] = {"raw",   "filter", "call", "include",    "import", "from",  "extends",
                                         "block", "do",     "with", "autoescape", "trans",  "print", NULL};
    for (size_t i = 0; others[i]; i++) {
        if (tpl_is(name, others[i])) {
            TPL_FAIL(t, QN_E_UNSUPPORTED, "the tag '%s' is not served", others[i]);
        }
    }
    TPL_FAIL(t, QN_E_FILE, "'%s' is no tag that may stand here", qn_show(name.data, name.bytes).text);
}

/* Statements up to a tag whose name is in ends; the tag's name is the next token then. ends NULL: to the end. */
static qn_status parse_body(tpl *t, const char *const *ends, tpl_node **out)
{
    tpl_node **tail = out;
    *out = NULL;
    QN_TRY(enter(t));
    for (;;) {
        const tpl_token *token = peek(t);
        t->line = token->line;
        if (token->kind == TOK_END) {
            if (ends) {
                TPL_FAIL(t, QN_E_FILE, "the template ends, expected '%s'", ends[0]);
            }
            break;
        }
        (void)take(t);
        if (token->kind == TOK_TEXT) {
            QN_TRY(new_node(t, N_TEXT, tail));
            (*tail)->name = token->text;
        } else if (token->kind == TOK_VAR_BEGIN) {
            QN_TRY(new_node(t, N_OUTPUT, tail));
            QN_TRY(parse_tuple(t, &(*tail)->a));
            QN_TRY(expect_kind(t, TOK_VAR_END, "the end of the tag"));
        } else {
            int found = 0;
            for (size_t i = 0; ends && ends[i]; i++) {
                found |= is_name(t, ends[i]);
            }
            if (found) {
                break;
            }
            QN_TRY(parse_statement(t, tail));
        }
        tail = &(*tail)->next;
    }
    t->depth--;
    return QN_OK;
}

qn_status tpl_parse(tpl *t, tpl_node **out)
{
    t->at = 0;
    t->depth = 0;
    return parse_body(t, NULL, out);
}
