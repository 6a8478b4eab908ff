/* Template source to tokens, with white-space control as transformers sets it:
 * trim_blocks (a newline after a block tag goes) and lstrip_blocks (blanks
 * before a block tag that begins its line go). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/bpe.h"
#include "text/template.h"

typedef struct lexer {
    tpl *t;
    const char *s;
    size_t n, i;
    int line;
} lexer;

static qn_status push(lexer *x, tpl_token token)
{
    tpl *t = x->t;
    if (t->token_count == t->token_capacity) {
        const size_t capacity = t->token_capacity ? t->token_capacity * 2 : 256;
        tpl_token *tokens;
        QN_TRY(tpl_alloc(t, capacity * sizeof *tokens, &tokens));
        if (t->token_count) {
            memcpy(tokens, t->tokens, t->token_count * sizeof *tokens);
        }
        t->tokens = tokens;
        t->token_capacity = capacity;
    }
    token.line = x->line;
    t->tokens[t->token_count++] = token;
    return QN_OK;
}

static int at(const lexer *x, size_t i, const char *word)
{
    const size_t n = strlen(word);
    return i + n <= x->n && memcmp(x->s + i, word, n) == 0;
}

static void count_lines(lexer *x, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        x->line += x->s[i] == '\n';
    }
}

/* Characters of white space at i, 0: none. */
static size_t space_at(const lexer *x, size_t i)
{
    uint32_t c;
    const size_t n = i < x->n ? qn_utf8_next(x->s + i, x->n - i, &c) : 0;
    return n && tpl_is_space(c) ? n : 0;
}

static void skip_space(lexer *x)
{
    size_t n;
    while ((n = space_at(x, x->i)) != 0) {
        x->i += n;
    }
}

/* End of text without the white space it ends with. */
static size_t strip_end(const char *s, size_t begin, size_t end)
{
    while (end > begin) {
        size_t i = end - 1;
        while (i > begin && ((unsigned char)s[i] & 0xC0) == 0x80) {
            i--;
        }
        uint32_t c;
        if (qn_utf8_next(s + i, end - i, &c) != end - i || !tpl_is_space(c)) {
            break;
        }
        end = i;
    }
    return end;
}

static unsigned hex_digits(const char *p, size_t digits, int *bad)
{
    unsigned value = 0;
    for (size_t i = 0; i < digits; i++) {
        const char d = p[i];
        const int digit = d >= '0' && d <= '9'                 ? d - '0'
                          : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                               : -1;
        *bad |= digit < 0;
        value = value << 4 | (unsigned)(digit & 15);
    }
    return value;
}

static qn_status lex_string(lexer *x)
{
    const char quote = x->s[x->i];
    size_t end = x->i + 1, n = 0;
    while (end < x->n && x->s[end] != quote) {
        end += x->s[end] == '\\' ? 2 : 1;
    }
    if (end >= x->n) {
        TPL_FAIL(x->t, QN_E_FILE, "a string has no end");
    }
    char *out;
    QN_TRY(tpl_alloc(x->t, end - x->i + 8, &out));
    for (size_t i = x->i + 1; i < end; i++) {
        static const char from[] = "nrtabfv\\'\"", to[] = "\n\r\t\a\b\f\v\\'\"";
        if (x->s[i] != '\\') {
            out[n++] = x->s[i];
            continue;
        }
        const char c = x->s[++i];
        const char *known = c ? strchr(from, c) : NULL;
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (known) {
            out[n++] = to[known - from];
        } else if (digits) {
            int bad = i + digits >= end;
            const unsigned code = bad ? 0 : hex_digits(x->s + i + 1, digits, &bad);
            if (bad || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
                TPL_FAIL(x->t, QN_E_FILE, "a string has a bad \\%c escape", c);
            }
            n += qn_utf8_put(out + n, code);
            i += digits;
        } else if (c == '\n') {
            continue;
        } else if (c >= '0' && c <= '7') {
            unsigned code = 0;
            size_t k = 0;
            for (; k < 3 && i < end && x->s[i] >= '0' && x->s[i] <= '7'; k++, i++) {
                code = code * 8 + (unsigned)(x->s[i] - '0');
            }
            i--;
            n += qn_utf8_put(out + n, code);
        } else {
            out[n++] = '\\';
            out[n++] = c;
        }
    }
    QN_TRY(push(x, (tpl_token){.kind = TOK_STRING, .text = {out, n}}));
    count_lines(x, x->i, end);
    x->i = end + 1;
    return QN_OK;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static qn_status lex_number(lexer *x)
{
    char text[64];
    size_t n = 0, i = x->i;
    int real = 0;
    for (; i < x->n && n < sizeof text - 1; i++) {
        const char c = x->s[i];
        if (c == '.' && !real && i + 1 < x->n && is_digit(x->s[i + 1])) {
            real = 1;
        } else if ((c | 32) == 'e' && i + 1 < x->n &&
                   (is_digit(x->s[i + 1]) ||
                    ((x->s[i + 1] == '+' || x->s[i + 1] == '-') && i + 2 < x->n && is_digit(x->s[i + 2])))) {
            real = 2;
            text[n++] = c;
            i++;
            if (n >= sizeof text - 1) {
                break;
            }
            text[n++] = x->s[i];
            continue;
        } else if (c == '_' && i + 1 < x->n && is_digit(x->s[i + 1])) {
            continue;
        } else if (!is_digit(c)) {
            break;
        }
        text[n++] = x->s[i];
    }
    text[n] = 0;
    tpl_token token = {.kind = real ? TOK_FLOAT : TOK_INT};
    errno = 0;
    if (real) {
        token.real = strtod(text, NULL);
    } else {
        token.number = strtoll(text, NULL, 10);
    }
    if (errno || n >= sizeof text - 1) {
        TPL_FAIL(x->t, QN_E_FILE, "the number %s is out of range", text);
    }
    x->i = i;
    return push(x, token);
}

/* Tokens of a tag up to and with its end; closing is "%}" or "}}". */
static qn_status lex_tag(lexer *x, const char *closing, tpl_token_kind end_kind)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ","};
    size_t open = 0;
    for (;;) {
        const size_t before = x->i;
        skip_space(x);
        count_lines(x, before, x->i);
        x->t->line = x->line;
        if (x->i >= x->n) {
            TPL_FAIL(x->t, QN_E_FILE, "a tag has no %s", closing);
        }
        const char c = x->s[x->i];
        if (!open) {
            const size_t sign = (c == '-' || c == '+') && at(x, x->i + 1, closing);
            if (sign || at(x, x->i, closing)) {
                QN_TRY(push(x, (tpl_token){.kind = end_kind}));
                x->i += sign + 2;
                if (sign && c == '-') {
                    skip_space(x);
                } else if (!sign && end_kind == TOK_BLOCK_END && x->i < x->n && x->s[x->i] == '\n') {
                    x->i++;
                }
                count_lines(x, before, x->i);
                return QN_OK;
            }
        }
        if (c == '\'' || c == '"') {
            QN_TRY(lex_string(x));
            continue;
        }
        if (is_digit(c)) {
            QN_TRY(lex_number(x));
            continue;
        }
        if (((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_') {
            const size_t begin = x->i;
            while (x->i < x->n && (((x->s[x->i] | 32) >= 'a' && (x->s[x->i] | 32) <= 'z') || x->s[x->i] == '_' ||
                                   is_digit(x->s[x->i]))) {
                x->i++;
            }
            QN_TRY(push(x, (tpl_token){.kind = TOK_NAME, .text = {x->s + begin, x->i - begin}}));
            continue;
        }
        size_t k = 0;
        while (k < sizeof ops / sizeof *ops && !at(x, x->i, ops[k])) {
            k++;
        }
        if (k == sizeof ops / sizeof *ops) {
            TPL_FAIL(x->t, QN_E_FILE, "the character '%s' has no meaning in a tag", qn_show(x->s + x->i, 1).text);
        }
        QN_TRY(push(x, (tpl_token){.kind = TOK_OP, .text = {ops[k], strlen(ops[k])}}));
        x->i += strlen(ops[k]);
        if (strchr("[({", c)) {
            open++;
        } else if (strchr("])}", c)) {
            if (!open) {
                TPL_FAIL(x->t, QN_E_FILE, "an unexpected '%c'", c);
            }
            open--;
        }
    }
}

static qn_status lex_comment(lexer *x)
{
    while (x->i < x->n && !at(x, x->i, "#}")) {
        x->i++;
    }
    if (x->i >= x->n) {
        TPL_FAIL(x->t, QN_E_FILE, "a comment has no #}");
    }
    const char sign = x->s[x->i - 1];
    x->i += 2;
    if (sign == '-') {
        skip_space(x);
    } else if (sign != '+' && x->i < x->n && x->s[x->i] == '\n') {
        x->i++;
    }
    return QN_OK;
}

/* Line ends become line feeds and the last one goes, as Jinja reads its source. */
static qn_status clean_source(tpl *t, const char *source, size_t bytes, lexer *x)
{
    char *s;
    size_t n = 0;
    QN_TRY(tpl_alloc(t, bytes + 1, &s));
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r') {
            s[n++] = '\n';
            i += i + 1 < bytes && source[i + 1] == '\n';
        } else {
            s[n++] = source[i];
        }
    }
    n -= n > 0 && s[n - 1] == '\n';
    *x = (lexer){.t = t, .s = s, .n = n, .line = 1};
    return QN_OK;
}

qn_status tpl_lex(tpl *t, const char *source, size_t bytes)
{
    lexer x;
    QN_TRY(clean_source(t, source, bytes, &x));
    int line_starting = 1;
    while (x.i < x.n) {
        const size_t begin = x.i;
        while (x.i < x.n && !at(&x, x.i, "{{") && !at(&x, x.i, "{%") && !at(&x, x.i, "{#")) {
            x.i++;
        }
        const size_t tag = x.i;
        const char kind = tag < x.n ? x.s[tag + 1] : 0;
        const char sign = kind && tag + 2 < x.n ? x.s[tag + 2] : 0;
        size_t end = tag;
        if (kind && sign == '-') {
            end = strip_end(x.s, begin, tag);
        } else if (kind && kind != '{' && sign != '+') {
            size_t line = tag;
            while (line > begin && x.s[line - 1] != '\n') {
                line--;
            }
            if ((line > begin || line_starting) && strip_end(x.s, line, tag) == line) {
                end = line;
            }
        }
        if (end > begin) {
            QN_TRY(push(&x, (tpl_token){.kind = TOK_TEXT, .text = {x.s + begin, end - begin}}));
        }
        count_lines(&x, begin, tag);
        t->line = x.line;
        if (!kind) {
            break;
        }
        x.i = tag + 2 + (sign == '-' || sign == '+');
        if (kind == '#') {
            QN_TRY(lex_comment(&x));
            count_lines(&x, tag, x.i);
        } else {
            QN_TRY(push(&x, (tpl_token){.kind = kind == '{' ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN}));
            QN_TRY(lex_tag(&x, kind == '{' ? "}}" : "%}", kind == '{' ? TOK_VAR_END : TOK_BLOCK_END));
        }
        line_starting = x.s[x.i - 1] == '\n';
    }
    return push(&x, (tpl_token){.kind = TOK_END});
}
