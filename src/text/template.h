/* Chat templates: an interpreter for the Jinja subset of docs/chat-template.md.
 *
 * template_lex.c  source -> tokens (white-space control happens here)
 * template_parse.c tokens -> tree
 * template_eval.c  tree -> text: statements, expressions, scopes
 * template_call.c  filters, tests, methods, functions
 * template_value.c values: text forms, comparison, lists and dicts
 * template.c       the public call
 *
 * All memory of one rendering comes from one arena with a limit and is freed at
 * its end, so nothing here frees or leaks. Every loop and every pass over text
 * is charged to a step counter: a hostile template ends with a sentence. */
#ifndef QN_TEXT_TEMPLATE_H
#define QN_TEXT_TEMPLATE_H

#include <quern/text.h>

#include "base/context.h"
#include "base/error.h"

#define TPL_MAX_DEPTH 120      /* nesting of the source */
#define TPL_MAX_EVAL_DEPTH 400 /* nesting at run time, macros included */
#define TPL_MAX_STEPS 5000000u
#define TPL_MAX_MEMORY (64u << 20)
#define TPL_MAX_OUTPUT (16u << 20)
#define TPL_MAX_RANGE 100000

typedef enum tpl_kind {
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_MACRO,
    TPL_FUNCTION,
    TPL_LOOP
} tpl_kind;

typedef struct tpl_text {
    const char *data;
    size_t bytes;
} tpl_text;

typedef struct tpl_value tpl_value;
typedef struct tpl_list {
    tpl_value *items;
    size_t count;
    int is_tuple;
} tpl_list;

typedef struct tpl_pair tpl_pair;
typedef struct tpl_dict {
    tpl_pair *pairs;
    size_t count, capacity;
} tpl_dict;

struct tpl_node;
typedef struct tpl_loop {
    const tpl_list *list;
    size_t at;
} tpl_loop;

struct tpl_value {
    tpl_kind kind;
    union {
        int64_t i; /* also bool and function number */
        double d;
        tpl_text s; /* also the name of what is undefined */
        tpl_list *list;
        tpl_dict *dict;
        const struct tpl_node *macro;
        tpl_loop *loop;
    } u;
};

struct tpl_pair {
    tpl_value key, value;
};

/* --- tokens --- */

typedef enum tpl_token_kind {
    TOK_END,
    TOK_TEXT,
    TOK_VAR_BEGIN,
    TOK_VAR_END,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INT,
    TOK_FLOAT,
    TOK_OP
} tpl_token_kind;

typedef struct tpl_token {
    tpl_token_kind kind;
    int line;
    tpl_text text; /* string: the characters after escapes; operator: its characters */
    int64_t number;
    double real;
} tpl_token;

/* --- tree --- */

typedef enum tpl_node_kind {
    /* statements */
    N_TEXT,
    N_OUTPUT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_BREAK,
    N_CONTINUE,
    N_GROUP,
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_DICT,
    N_ATTRIBUTE,
    N_INDEX,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEGATE,
    N_PLUS,
    N_AND,
    N_OR,
    N_BINARY,
    N_COMPARE,
    N_CHOICE,
    N_ARGUMENT
} tpl_node_kind;

typedef enum tpl_op {
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR,
    OP_MODULO,
    OP_POWER,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN
} tpl_op;

/* One shape for all; a, b, c and list mean what template_parse.c says beside each kind. */
typedef struct tpl_node {
    tpl_node_kind kind;
    int line;
    tpl_op op;
    int flag;
    tpl_text name;
    tpl_value value;
    struct tpl_node *a, *b, *c;
    struct tpl_node *list; /* first of a chain by next */
    struct tpl_node *next;
} tpl_node;

/* --- one rendering --- */

typedef struct tpl_chunk {
    struct tpl_chunk *next;
    size_t used, size;
} tpl_chunk;

typedef struct tpl_variable {
    tpl_text name;
    tpl_value value;
    struct tpl_variable *next;
} tpl_variable;

typedef struct tpl_scope {
    tpl_variable *first;
    struct tpl_scope *up;
} tpl_scope;

typedef struct tpl_output {
    char *data;
    size_t bytes, capacity;
} tpl_output;

typedef struct tpl {
    const qn_ctx *ctx;
    qn_error *error;
    tpl_chunk *chunks;
    size_t memory;
    uint64_t steps;
    int depth, line;
    tpl_token *tokens;
    size_t token_count, token_capacity, at;
    tpl_scope root, *scope;
    tpl_output *out;
    int signal; /* N_BREAK or N_CONTINUE on its way out of a loop body, 0: none */
    int loops;  /* loops around the place being parsed */
} tpl;

/* Arena memory, cleared; *out is NULL on failure. QN_E_FILE: past the limit. QN_E_MEMORY. */
qn_status tpl_alloc(tpl *t, size_t bytes, void *out);
/* Count work: one step and one more for every 16 bytes. */
qn_status tpl_charge(tpl *t, size_t bytes);
void tpl_free_all(tpl *t);

/* Fail at the current line. */
#define TPL_FAIL(t, status, ...) return tpl_fail((t), (status), __VA_ARGS__)
__attribute__((format(printf, 3, 4))) qn_status tpl_fail(tpl *t, qn_status status, const char *format, ...);

qn_status tpl_lex(tpl *t, const char *source, size_t bytes);
qn_status tpl_parse(tpl *t, tpl_node **out);
qn_status tpl_run(tpl *t, const tpl_node *body);
qn_status tpl_eval(tpl *t, const tpl_node *node, tpl_value *out);
qn_status tpl_set_variable(tpl *t, tpl_text name, tpl_value value);
qn_status tpl_call_macro(tpl *t, const tpl_node *macro, const tpl_value *args, size_t count, const tpl_dict *named,
                         tpl_value *out);

/* --- calls (template_call.c); named may be NULL --- */
qn_status tpl_filter(tpl *t, tpl_text name, tpl_value in, const tpl_value *args, size_t count, const tpl_dict *named,
                     tpl_value *out);
qn_status tpl_test(tpl *t, tpl_text name, tpl_value in, const tpl_value *args, size_t count, int *out);
qn_status tpl_method(tpl *t, tpl_value self, tpl_text name, const tpl_value *args, size_t count, const tpl_dict *named,
                     tpl_value *out);
qn_status tpl_function(tpl *t, int64_t function, const tpl_value *args, size_t count, const tpl_dict *named,
                       tpl_value *out);
int64_t tpl_find_function(tpl_text name); /* -1: none */

/* --- values (template_value.c) --- */
static inline tpl_value tpl_int(int64_t i)
{
    return (tpl_value){.kind = TPL_INT, .u.i = i};
}
static inline tpl_value tpl_bool(int b)
{
    return (tpl_value){.kind = TPL_BOOL, .u.i = b != 0};
}
static inline tpl_value tpl_string(const char *data, size_t bytes)
{
    return (tpl_value){.kind = TPL_STRING, .u.s = {data, bytes}};
}
int tpl_is(tpl_text text, const char *word);
int tpl_same_text(tpl_text a, tpl_text b);
const char *tpl_kind_name(tpl_kind kind);
int tpl_truth(tpl_value v);
qn_status tpl_equal(tpl *t, tpl_value a, tpl_value b, int *out);
qn_status tpl_compare(tpl *t, tpl_op op, tpl_value a, tpl_value b, int *out);
/* Python's str() / repr() / json.dumps(ensure_ascii=False) appended to an output in the arena. */
qn_status tpl_put(tpl *t, tpl_output *o, const char *data, size_t bytes);
qn_status tpl_put_str(tpl *t, tpl_output *o, tpl_value v);
qn_status tpl_put_json(tpl *t, tpl_output *o, tpl_value v, int indent, int level);
qn_status tpl_to_text(tpl *t, tpl_value v, tpl_text *out);
qn_status tpl_new_list(tpl *t, size_t count, tpl_value *out);
qn_status tpl_new_dict(tpl *t, tpl_kind kind, tpl_value *out);
const tpl_value *tpl_dict_get(const tpl_dict *d, tpl_text key);
qn_status tpl_dict_set(tpl *t, tpl_dict *d, tpl_value key, tpl_value value);
/* Items of anything iterable as a list (dict: keys, string: characters, undefined: none). */
qn_status tpl_iterate(tpl *t, tpl_value v, tpl_list **out);
qn_status tpl_attribute(tpl *t, tpl_value v, tpl_text name, tpl_value *out);
qn_status tpl_index(tpl *t, tpl_value v, tpl_value key, tpl_value *out);
qn_status tpl_slice(tpl *t, tpl_value v, const tpl_value *begin, const tpl_value *end, const tpl_value *step,
                    tpl_value *out);
qn_status tpl_length(tpl *t, tpl_value v, size_t *out);
int tpl_is_space(uint32_t code); /* Python's str.isspace */

#endif
