/* The text of a PTX module to instructions. Names are looked up scope by scope, as inline assembly has its own. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fake/ptx_constants.h"
#include "backend/fake/ptx_code.h"

#define TYPE_INFO(id, name, bytes, kind)                                                                               \
    {                                                                                                                  \
        name, bytes, kind                                                                                              \
    }
const ptx_type_info ptx_types[PTX_TYPE_COUNT] = {{"", 0, 0}, PTX_TYPES(TYPE_INFO)};

#define OP_NAME(id, name) name
static const char *const op_names[] = {"", PTX_OPS(OP_NAME)};
static const char *const word_names[] = {"", PTX_WORD_LIST(OP_NAME)};
_Static_assert(PTX_WORD_COUNT <= 128, "words of an instruction are two times 64 bits");

/* Words that change nothing here: caches, scopes of memory, what all lanes do alike. */
static const char idle[] =
    " rn ftz approx full uni nc aligned relaxed acquire release acq_rel gpu sys cta volatile weak no_allocate "
    "row col level proxy alias generic ca cg cs cv lu wb wt launch_dependents commit_group wait_group "
    "wait_all read mbarrier_init bulk_group m8n8 sc L1 L2 mbarrier bytes evict_first evict_last "
    "noComplete tile fence dec evict_normal evict_unchanged fractional tensormap abs L1::no_allocate L1::evict_last "
    "L1::evict_first L2::128B L2::256B L2::64B L2::evict_last L2::evict_first L1::evict_unchanged "
    "mbarrier::complete_tx::bytes ";

static const char *const specials[] = {PTX_SPECIAL_LIST(OP_NAME)};

typedef struct name_of_registers {
    char name[PTX_NAME];
    int scope, first, count; /* count 0: one register of just that name */
} name_of_registers;

typedef struct label {
    char name[PTX_NAME];
    int scope, at;
} label;

typedef struct unresolved {
    char name[PTX_NAME];
    int scope, instruction, operand;
} unresolved;

typedef struct parser {
    ptx_module *m;
    char *why;
    size_t why_bytes;
    int failed, line;
    const char *at;
    int *parents, scopes, scope_room, scope;
    name_of_registers *names;
    int name_count, name_room;
    label *labels;
    int label_count, label_room;
    unresolved *open;
    int open_count, open_room;
} parser;

static void fail(parser *p, const char *format, ...)
{
    if (!p->failed) {
        va_list list;
        va_start(list, format);
        const int used = snprintf(p->why, p->why_bytes, "line %d: ", p->line);
        vsnprintf(p->why + used, p->why_bytes - (size_t)used, format, list);
        va_end(list);
    }
    p->failed = 1;
}

/* One more of an array that grows. */
#define MORE(array, count, room)                                                                                       \
    do {                                                                                                               \
        if ((count) == (room)) {                                                                                       \
            (room) = (room) ? (room)*2 : 64;                                                                           \
            (array) = realloc((array), (size_t)(room) * sizeof *(array));                                              \
        }                                                                                                              \
        memset(&(array)[(count)++], 0, sizeof *(array));                                                               \
    } while (0)

static void copy_name(char *to, const char *from, size_t count)
{
    count = count < PTX_NAME - 1 ? count : PTX_NAME - 1;
    memcpy(to, from, count);
    to[count] = 0;
}

static int is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.' || c == ':';
}

/* ---- names ---- */

static int push_scope(parser *p)
{
    MORE(p->parents, p->scopes, p->scope_room);
    p->parents[p->scopes - 1] = p->scope;
    p->scope = p->scopes - 1;
    return p->scope;
}

static int new_registers(parser *p, int count, int bytes)
{
    ptx_module *m = p->m;
    const int first = m->registers;
    while (m->registers + count > m->register_room) {
        m->register_room = m->register_room ? m->register_room * 2 : 256;
        m->width = realloc(m->width, (size_t)m->register_room);
    }
    memset(m->width + first, bytes, (size_t)count);
    m->registers += count;
    return first;
}

static int find_register(parser *p, const char *name)
{
    for (int i = 0; i < PTX_SPECIALS; i++) {
        if (strcmp(name, specials[i]) == 0) {
            return i;
        }
    }
    size_t stem = strlen(name);
    while (stem > 0 && isdigit((unsigned char)name[stem - 1])) {
        stem--;
    }
    for (int scope = p->scope; scope >= 0; scope = p->parents[scope]) {
        for (int i = p->name_count - 1; i >= 0; i--) {
            const name_of_registers *n = &p->names[i];
            if (n->scope != scope) {
                continue;
            }
            if (n->count == 0 && strcmp(n->name, name) == 0) {
                return n->first;
            }
            if (n->count > 0 && strlen(n->name) == stem && strncmp(n->name, name, stem) == 0 && name[stem]) {
                const int number = atoi(name + stem);
                if (number < n->count) {
                    return n->first + number;
                }
            }
        }
    }
    return -1;
}

static int find_symbol(parser *p, const char *name)
{
    for (int scope = p->scope; scope >= 0; scope = p->parents[scope]) {
        for (int i = p->m->symbol_count - 1; i >= 0; i--) {
            if (p->m->symbols[i].scope == scope && strcmp(p->m->symbols[i].name, name) == 0) {
                return i;
            }
        }
    }
    return -1;
}

static int add_symbol(parser *p, const char *name, ptx_space space, size_t at, size_t bytes)
{
    ptx_module *m = p->m;
    MORE(m->symbols, m->symbol_count, m->symbol_room);
    ptx_symbol *s = &m->symbols[m->symbol_count - 1];
    copy_name(s->name, name, strlen(name));
    s->scope = p->scope;
    s->space = space;
    s->at = at;
    s->bytes = bytes;
    return m->symbol_count - 1;
}

static size_t aligned(size_t at, size_t unit)
{
    return (at + unit - 1) / unit * unit;
}

static ptx_type type_named(const char *word, size_t length)
{
    for (int t = 1; t < PTX_TYPE_COUNT; t++) {
        if (strlen(ptx_types[t].name) == length && strncmp(ptx_types[t].name, word, length) == 0) {
            return (ptx_type)t;
        }
    }
    return PTX_NO_TYPE;
}

/* ---- declarations ---- */

/* `.reg .b32 %r<5>, a, b` behind ".reg" */
static void registers(parser *p, const char *text)
{
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t length = strcspn(text, " \t\n");
    const ptx_type type = *text == '.' ? type_named(text + 1, length - 1) : PTX_NO_TYPE;
    if (!type) {
        fail(p, "registers of an unknown type: %.30s", text);
        return;
    }
    text += length;
    while (*text) {
        while (isspace((unsigned char)*text) || *text == ',') {
            text++;
        }
        length = 0;
        while (is_name(text[length])) {
            length++;
        }
        if (length == 0) {
            break;
        }
        MORE(p->names, p->name_count, p->name_room);
        name_of_registers *n = &p->names[p->name_count - 1];
        copy_name(n->name, text, length);
        text += length;
        n->scope = p->scope;
        if (*text == '<') {
            n->count = atoi(text + 1);
            text = strchr(text, '>') + 1;
        }
        n->first = new_registers(p, n->count ? n->count : 1, ptx_types[type].bytes);
    }
}

/* `.align 4 .b8 name[32] = {...}` or `.b32 name` of a space: a symbol. Returns it, or -1. */
static int variable(parser *p, const char *text, ptx_space space)
{
    size_t unit = 0, count = 1;
    ptx_type type = PTX_NO_TYPE;
    char name[PTX_NAME] = "";
    const char *values = NULL;
    while (*text && !*name) {
        while (isspace((unsigned char)*text)) {
            text++;
        }
        size_t length = 0;
        while (is_name(text[length])) {
            length++;
        }
        if (length == 0) {
            break;
        }
        if (strncmp(text, ".align", 6) == 0) {
            unit = (size_t)strtoul(text + 6, (char **)(void *)&text, 10);
            continue;
        }
        if (*text == '.') {
            const ptx_type t = type_named(text + 1, length - 1);
            type = t ? t : type;
        } else {
            copy_name(name, text, length);
        }
        text += length;
    }
    if (!*name || !type) {
        fail(p, "a variable that cannot be read");
        return -1;
    }
    const size_t size = (size_t)ptx_types[type].bytes;
    while (*text == '[') {
        count *= (size_t)strtoul(text + 1, NULL, 10);
        text = strchr(text, ']') + 1;
    }
    values = strchr(text, '=');
    unit = unit ? unit : size;
    ptx_module *m = p->m;
    size_t at = 0;
    switch (space) {
    case PTX_IN_SHARED:
        at = m->shared = aligned(m->shared, unit);
        m->shared += count * size;
        break;
    case PTX_IN_LOCAL:
        at = m->local = aligned(m->local, unit < 16 ? 16 : unit);
        m->local += count * size;
        break;
    case PTX_IN_GLOBAL: {
        at = aligned(m->memory_bytes, 16);
        const size_t all = at + count * size;
        m->memory = realloc(m->memory, all);
        memset(m->memory + m->memory_bytes, 0, all - m->memory_bytes);
        m->memory_bytes = all;
        const char *v = values ? values + 1 : "";
        for (size_t i = 0; i < count && *v; i++) {
            while (isspace((unsigned char)*v) || *v == '{' || *v == ',') {
                v++;
            }
            if (!isdigit((unsigned char)*v) && *v != '-') {
                break;
            }
            uint64_t bits;
            if (v[0] == '0' && (v[1] == 'f' || v[1] == 'd')) {
                bits = strtoull(v + 2, (char **)(void *)&v, 16);
            } else {
                bits = (uint64_t)strtoll(v, (char **)(void *)&v, 0);
            }
            memcpy(m->memory + at + i * size, &bits, size);
        }
        break;
    }
    case PTX_IN_DYNAMIC: m->dynamic_align = unit > m->dynamic_align ? unit : m->dynamic_align; break;
    case PTX_IN_PARAMETERS: break;
    }
    return add_symbol(p, name, space, at, count * size);
}

/* ---- instructions ---- */

static void trim(char *s)
{
    size_t n = strlen(s), first = 0;
    while (n > 0 && isspace((unsigned char)s[n - 1])) {
        s[--n] = 0;
    }
    while (isspace((unsigned char)s[first])) {
        first++;
    }
    memmove(s, s + first, n - first + 1);
}

/* Pieces between commas that stand in no bracket. */
static int split(char *text, char **pieces, int most)
{
    int depth = 0, count = 0;
    char *begin = text;
    for (char *c = text;; c++) {
        depth += *c == '{' || *c == '[' || *c == '(';
        depth -= *c == '}' || *c == ']' || *c == ')';
        if ((*c == ',' && depth == 0) || *c == 0) {
            const int last = *c == 0;
            *c = 0;
            trim(begin);
            if (*begin && count < most) {
                pieces[count++] = begin;
            }
            begin = c + 1;
            if (last) {
                return count;
            }
        }
    }
}

static ptx_operand operand_of(parser *p, char *s);

/* A constant expression and nothing else. */
static uint64_t constant(parser *p, char *s)
{
    const int64_t v = constant_value(&s);
    if (*s) {
        fail(p, "an expression that goes on with %s", s);
    }
    return (uint64_t)v;
}

/* A register or symbol, with "+ expression" behind it: of memory, or an address as a value. */
static void place(parser *p, char *s, ptx_operand *o)
{
    char *plus = strchr(s, '+');
    if (plus) {
        *plus = 0;
        o->value = constant(p, plus + 1);
        trim(s);
    }
    const int r = find_register(p, s);
    if (r >= 0) {
        o->base = PTX_REGISTER;
        o->index = r;
        return;
    }
    if (is_number(s)) {
        o->base = 0;
        o->value += number(s);
        return;
    }
    o->base = PTX_SYMBOL;
    o->index = find_symbol(p, s);
    if (o->index < 0) {
        fail(p, "no register or symbol %s", s);
    }
}

static ptx_operand vector(parser *p, char *s)
{
    ptx_operand o = {.kind = PTX_VECTOR, .second = -1};
    char *pieces[128];
    s[strlen(s) - 1] = 0;
    o.count = split(s + 1, pieces, 128);
    o.parts = malloc((size_t)(o.count ? o.count : 1) * sizeof *o.parts);
    for (int i = 0; i < o.count; i++) {
        o.parts[i] = strcmp(pieces[i], "_") == 0 ? -1 : find_register(p, pieces[i]);
        if (o.parts[i] < 0 && is_number(pieces[i])) {
            ptx_module *m = p->m;
            MORE(m->constants, m->constant_count, m->constant_room);
            o.parts[i] = m->constants[m->constant_count - 1].index = new_registers(p, 1, 8);
            m->constants[m->constant_count - 1].value = number(pieces[i]);
        } else if (o.parts[i] < 0 && strcmp(pieces[i], "_") != 0) {
            fail(p, "no register %s", pieces[i]);
        }
    }
    return o;
}

static ptx_operand operand_of(parser *p, char *s)
{
    ptx_operand o = {.second = -1};
    trim(s);
    if (*s == '!') {
        o = operand_of(p, s + 1);
        o.negated = 1;
        return o;
    }
    if (*s == '{') {
        return vector(p, s);
    }
    if (*s == '[') {
        s[strlen(s) - 1] = 0;
        s++;
        trim(s);
        char *pieces[2];
        if (split(s, pieces, 2) == 2) { /* of a tensor, by coordinates */
            o = vector(p, pieces[1]);
        }
        o.kind = PTX_MEMORY;
        place(p, pieces[0], &o);
        return o;
    }
    if (strcmp(s, "_") == 0) {
        o.kind = PTX_REGISTER;
        o.index = -1;
        return o;
    }
    char *bar = strchr(s, '|');
    if (bar) {
        *bar = 0;
        char *second = bar + 1;
        trim(second);
        o = operand_of(p, s);
        o.second = strcmp(second, "_") == 0 ? -1 : find_register(p, second);
        return o;
    }
    if (is_number(s) || *s == '(') {
        o.kind = PTX_NUMBER;
        o.value = *s == '(' ? constant(p, s) : number(s);
        return o;
    }
    o.index = find_register(p, s);
    if (o.index >= 0) {
        o.kind = PTX_REGISTER;
        return o;
    }
    char *plus = strchr(s, '+');
    if (plus || find_symbol(p, s) >= 0) {
        place(p, s, &o);
        o.kind = PTX_SYMBOL;
        return o;
    }
    o.kind = PTX_LABEL; /* further on, as a rule */
    MORE(p->open, p->open_count, p->open_room);
    unresolved *u = &p->open[p->open_count - 1];
    copy_name(u->name, s, strlen(s));
    u->scope = p->scope;
    u->instruction = p->m->instructions;
    u->operand = -1; /* the caller knows */
    return o;
}

static int is_idle(const char *word)
{
    char between[64];
    snprintf(between, sizeof between, " %s ", word);
    return strstr(idle, between) != NULL;
}

/* "ld.global.v4.f32" into op, words and types; what is not known here is PTX_NO_OP, which may stand where nothing goes.
 */
static void name_of(char *name, ptx_instruction *i)
{
    int types = 0;
    char *word = strtok(name, ".");
    for (int op = 1; op < PTX_RETURNED; op++) {
        if (strcmp(op_names[op], word) == 0) {
            i->op = (ptx_op)op;
        }
    }
    while (i->op && (word = strtok(NULL, ".")) != NULL) {
        const ptx_type type = type_named(word, strlen(word));
        int known = 0;
        if (type) {
            if (types < 4) {
                i->types[types++] = type;
            }
            i->from = i->type;
            i->type = type;
            continue;
        }
        if (i->op == PTX_WGMMA && sscanf(word, "m64n%dk%d", &i->columns, &i->depth) == 2) {
            continue;
        }
        for (int w = 1; w < PTX_WORD_COUNT; w++) {
            if (strcmp(word_names[w], word) == 0) {
                i->words[w / 64] |= UINT64_C(1) << w % 64;
                known = 1;
            }
        }
        if (!known && !is_idle(word)) {
            i->op = PTX_NO_OP;
        }
    }
}

static int find_entry(const ptx_module *m, const char *name)
{
    for (int i = 0; i < m->entry_count; i++) {
        if (strcmp(m->entries[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* call (results), function, (arguments): operand 0 and 2 name symbols, 1 the function. */
static void call(parser *p, char **pieces, int count, ptx_instruction *i)
{
    char *results = count > 0 && pieces[0][0] == '(' ? pieces[0] : NULL, *name = pieces[results ? 1 : 0];
    char *arguments = count > (results ? 2 : 1) ? pieces[results ? 2 : 1] : NULL;
    char *lists[2] = {results, arguments};
    i->operand[1].value = (uint64_t)(int64_t)find_entry(p->m, name);
    if (find_entry(p->m, name) < 0) {
        fail(p, "no function %s", name);
        return;
    }
    for (int l = 0; l < 2; l++) {
        ptx_operand *o = &i->operand[l * 2];
        char *names[16];
        if (!lists[l]) {
            continue;
        }
        lists[l][strlen(lists[l]) - 1] = 0;
        o->count = split(lists[l] + 1, names, 16);
        o->parts = malloc((size_t)(o->count ? o->count : 1) * sizeof *o->parts);
        for (int k = 0; k < o->count; k++) {
            o->parts[k] = find_symbol(p, names[k]);
            if (o->parts[k] < 0) {
                fail(p, "no parameter %s", names[k]);
            }
        }
    }
    i->count = 3;
}

static void instruction(parser *p, char *text)
{
    ptx_module *m = p->m;
    ptx_instruction i = {.guard = -1, .line = p->line};
    if (*text == '@') {
        text++;
        i.guard_negated = *text == '!';
        text += i.guard_negated;
        const size_t length = strcspn(text, " \t\n");
        char name[PTX_NAME];
        copy_name(name, text, length);
        i.guard = find_register(p, name);
        if (i.guard < 0) {
            fail(p, "no predicate %s", name);
        }
        text += length;
        text += strspn(text, " \t\n");
    }
    const size_t length = strcspn(text, " \t\n");
    char name[PTX_NAME * 2];
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    text += length;
    name_of(name, &i);
    char *pieces[PTX_OPERANDS + 4];
    const int count = i.op ? split(text, pieces, PTX_OPERANDS + 4) : 0;
    if (i.op == PTX_CALL) {
        call(p, pieces, count, &i);
    } else if (count > PTX_OPERANDS) {
        fail(p, "more operands than %d", PTX_OPERANDS);
    } else {
        i.count = count - ptx_has(&i, PTX_W_HINT); /* the policy comes last */
        for (int k = 0; k < count && !p->failed; k++) {
            const int open = p->open_count;
            i.operand[k] = operand_of(p, pieces[k]);
            for (int u = open; u < p->open_count; u++) {
                p->open[u].operand = k;
            }
        }
    }
    MORE(m->code, m->instructions, m->code_room);
    m->code[m->instructions - 1] = i;
    if (i.op == PTX_CALL) { /* where results are taken over */
        MORE(m->code, m->instructions, m->code_room);
        m->code[m->instructions - 1] = (ptx_instruction){.op = PTX_RETURNED, .guard = -1, .line = p->line};
    }
}

/* ---- statements ---- */

/* Text up to one of the characters, which is passed; NULL at the end. Lines are counted. */
static char *take(parser *p, const char *ends, char *end)
{
    const char *begin = p->at;
    int quoted = 0, depth = 0; /* braces of vectors and of values */
    while (*p->at && (quoted || depth || !strchr(ends, *p->at))) {
        quoted ^= *p->at == '"';
        p->line += *p->at == '\n';
        depth += *p->at == '{' && p->at > begin;
        depth -= *p->at == '}' && depth > 0;
        p->at++;
    }
    if (!*p->at) {
        return NULL;
    }
    char *text = malloc((size_t)(p->at - begin) + 1);
    memcpy(text, begin, (size_t)(p->at - begin));
    text[p->at - begin] = 0;
    *end = *p->at++;
    trim(text);
    return text;
}

static void blank(parser *p)
{
    while (isspace((unsigned char)*p->at)) {
        p->line += *p->at++ == '\n';
    }
}

/* "name:" ahead, and not "a::b" */
static int at_label(const parser *p, size_t *length)
{
    size_t n = 0;
    while (isalnum((unsigned char)p->at[n]) || p->at[n] == '_' || p->at[n] == '$' || p->at[n] == '%') {
        n++;
    }
    *length = n;
    return n > 0 && p->at[n] == ':' && p->at[n + 1] != ':';
}

static void declare(parser *p, char *text)
{
    if (strncmp(text, ".reg", 4) == 0) {
        registers(p, text + 4);
    } else if (strncmp(text, ".shared", 7) == 0) {
        variable(p, text + 7, PTX_IN_SHARED);
    } else if (strncmp(text, ".local", 6) == 0) {
        variable(p, text + 6, PTX_IN_LOCAL);
    } else if (strncmp(text, ".param", 6) == 0) {
        variable(p, text + 6, PTX_IN_LOCAL);
    } else if (strncmp(text, ".pragma", 7) != 0) {
        fail(p, "%.30s is not known here", text);
    }
}

/* What stands between a function's braces; the first is passed. */
static void body(parser *p)
{
    for (int depth = 1; depth > 0 && !p->failed;) {
        size_t length;
        blank(p);
        if (*p->at == '{') {
            p->at++;
            depth++;
            push_scope(p);
        } else if (*p->at == '}') {
            p->at++;
            depth--;
            p->scope = p->parents[p->scope];
        } else if (at_label(p, &length)) {
            MORE(p->labels, p->label_count, p->label_room);
            label *l = &p->labels[p->label_count - 1];
            copy_name(l->name, p->at, length);
            l->scope = p->scope;
            l->at = p->m->instructions;
            p->at += length + 1;
        } else {
            char end = 0;
            char *text = take(p, ";", &end);
            if (!text) {
                fail(p, "a function without an end");
                return;
            }
            if (*text == '.') {
                declare(p, text);
            } else if (*text) {
                instruction(p, text);
            }
            free(text);
        }
    }
}

/* Parameters between brackets: symbols, in order. */
static void parameters(parser *p, char *text, ptx_entry *e, int results)
{
    char *pieces[32];
    const int count = split(text, pieces, 32);
    for (int i = 0; i < count && !p->failed; i++) {
        char *at = strstr(pieces[i], ".param");
        if (!at) {
            fail(p, "a parameter that cannot be read");
            return;
        }
        const int s = variable(p, at + 6, e->is_kernel ? PTX_IN_PARAMETERS : PTX_IN_LOCAL);
        if (s < 0) {
            return;
        }
        if (!e->is_kernel) {
            *(results ? &e->result[e->results++] : &e->argument[e->arguments++]) = s;
            continue;
        }
        const char *align = strstr(pieces[i], ".align");
        ptx_symbol *symbol = &p->m->symbols[s];
        symbol->at = aligned(e->parameter_bytes, align ? (size_t)strtoul(align + 6, NULL, 10) : symbol->bytes);
        e->parameter_at[e->parameters] = symbol->at;
        e->parameter_size[e->parameters++] = symbol->bytes;
        e->parameter_bytes = symbol->at + symbol->bytes;
    }
}

/* `.visible .entry name(...)` or `.func (...) name(...)`; the word that says which is passed. */
static void function(parser *p, int is_kernel)
{
    ptx_module *m = p->m;
    char end = 0, *result = NULL;
    blank(p);
    if (*p->at == '(') {
        p->at++;
        result = take(p, ")", &end);
    }
    char *name = take(p, "({;", &end), *list = NULL;
    if (end == '(') {
        list = take(p, ")", &end);
        char *rest = take(p, "{;", &end);
        free(rest);
    }
    trim(name);
    int e = find_entry(m, name);
    if (e < 0) {
        if (m->entry_count == (int)(sizeof m->entries / sizeof *m->entries)) {
            fail(p, "too many functions");
        } else {
            e = m->entry_count++;
            m->entries[e] = (ptx_entry){.module = m, .is_kernel = is_kernel};
            copy_name(m->entries[e].name, name, strlen(name));
        }
    }
    if (!p->failed) {
        ptx_entry *entry = &m->entries[e];
        const int outside = p->scope, again = entry->arguments + entry->results > 0;
        push_scope(p);
        entry->start = m->instructions;
        if (again) { /* declared before: the same parameters by the names that are used now */
            entry->arguments = entry->results = 0;
        }
        if (result) {
            parameters(p, result, entry, 1);
        }
        if (list) {
            parameters(p, list, entry, 0);
        }
        if (end == '{') {
            body(p);
        }
        p->scope = outside;
    }
    free(result);
    free(name);
    free(list);
}

static void resolve(parser *p)
{
    for (int u = 0; u < p->open_count && !p->failed; u++) {
        int found = -1;
        for (int scope = p->open[u].scope; scope >= 0 && found < 0; scope = p->parents[scope]) {
            for (int l = 0; l < p->label_count; l++) {
                if (p->labels[l].scope == scope && strcmp(p->labels[l].name, p->open[u].name) == 0) {
                    found = p->labels[l].at;
                }
            }
        }
        if (found < 0) {
            fail(p, "no register, symbol or label %s", p->open[u].name);
        } else {
            p->m->code[p->open[u].instruction].operand[p->open[u].operand].value = (uint64_t)found;
        }
    }
}

static void module(parser *p)
{
    while (!p->failed) {
        blank(p);
        if (!*p->at) {
            return;
        }
        const char *line = p->at;
        const size_t length = strcspn(line, " \t\n");
        if (strncmp(line, ".version", length) == 0 || strncmp(line, ".target", length) == 0 ||
            strncmp(line, ".address_size", length) == 0) {
            p->at += strcspn(line, "\n");
        } else if (strncmp(line, ".entry", length) == 0 || strncmp(line, ".func", length) == 0) {
            p->at += length;
            function(p, line[1] == 'e');
        } else if (strncmp(line, ".visible", length) == 0 || strncmp(line, ".weak", length) == 0 ||
                   strncmp(line, ".extern", length) == 0) {
            p->at += length;
        } else if (strncmp(line, ".shared", length) == 0 || strncmp(line, ".global", length) == 0 ||
                   strncmp(line, ".const", length) == 0) {
            char end = 0;
            char *text = take(p, ";", &end);
            const int dynamic = line[1] == 's' && text && strstr(text, "[]");
            if (text) {
                variable(p, text + length, dynamic ? PTX_IN_DYNAMIC : line[1] == 's' ? PTX_IN_SHARED : PTX_IN_GLOBAL);
            }
            free(text);
        } else {
            fail(p, "%.30s is not known here", line);
        }
    }
}

ptx_module *ptx_load(const char *text, char *why, size_t why_bytes)
{
    parser p = {.why = why, .why_bytes = why_bytes, .line = 1, .scope = -1};
    p.m = calloc(1, sizeof *p.m);
    p.m->text = strdup(text);
    for (char *c = p.m->text; (c = strstr(c, "//")) != NULL;) {
        while (*c && *c != '\n') {
            *c++ = ' ';
        }
    }
    p.at = p.m->text;
    push_scope(&p);
    new_registers(&p, PTX_SPECIALS, 8);
    module(&p);
    resolve(&p);
    free(p.parents);
    free(p.names);
    free(p.labels);
    free(p.open);
    if (p.failed) {
        ptx_unload(p.m);
        return NULL;
    }
    return p.m;
}

void ptx_unload(ptx_module *m)
{
    if (!m) {
        return;
    }
    for (int i = 0; i < m->instructions; i++) {
        for (int k = 0; k < PTX_OPERANDS; k++) {
            free(m->code[i].operand[k].parts);
        }
    }
    free(m->code);
    free(m->symbols);
    free(m->width);
    free(m->constants);
    free(m->memory);
    free(m->text);
    free(m);
}

const ptx_entry *ptx_find(const ptx_module *m, const char *name)
{
    const int e = find_entry(m, name);
    return e >= 0 && m->entries[e].is_kernel ? &m->entries[e] : NULL;
}

size_t ptx_parameter_bytes(const ptx_entry *e)
{
    return e->parameter_bytes;
}

void ptx_pack(const ptx_entry *e, void *const *values, void *to)
{
    for (int i = 0; i < e->parameters; i++) {
        memcpy((char *)to + e->parameter_at[i], values[i], e->parameter_size[i]);
    }
}
