/* Split rules, on PCRE2 with Unicode properties.
 *
 * tokenizer.json files are written for the Oniguruma engine. Where the two
 * engines read the same characters differently the pattern is either rewritten
 * (white space, \uXXXX) or refused by name (see translate), so that a pattern
 * that is taken means the same. Matches run under PCRE2's limits. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "base/error.h"
#include "text/bpe.h"

#define MAX_PATTERN 8192
#define MATCH_LIMIT 20000000u
#define DEPTH_LIMIT 2000000u
#define HEAP_LIMIT_KIB 262144u

#define SPACE_SET                                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

const char *const qn_pattern_gpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char *const qn_pattern_llama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char *const qn_pattern_qwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int qn_spans_add(qn_spans *spans, size_t begin, size_t end)
{
    if (begin == end) {
        return 0;
    }
    if (spans->count == spans->capacity) {
        size_t capacity = spans->capacity ? spans->capacity : 32, bytes;
        if (qn_mul_size(capacity, 2, &capacity) || qn_mul_size(capacity, sizeof *spans->data, &bytes)) {
            return 1;
        }
        qn_span *data = qn_alloc(spans->ctx, bytes);
        if (!data) {
            return 1;
        }
        if (spans->count) {
            memcpy(data, spans->data, spans->count * sizeof *data);
        }
        qn_free(spans->ctx, spans->data);
        spans->data = data;
        spans->capacity = capacity;
    }
    spans->data[spans->count++] = (qn_span){begin, end};
    return 0;
}

void qn_spans_free(qn_spans *spans)
{
    qn_free(spans->ctx, spans->data);
    *spans = (qn_spans){.ctx = spans->ctx};
}

static void *pcre_alloc(size_t size, void *ctx)
{
    return qn_alloc(ctx, size);
}

static void pcre_free(void *pointer, void *ctx)
{
    qn_free(ctx, pointer);
}

static qn_status refuse(qn_error *error, const char *pattern, const char *what)
{
    QN_FAIL(error, QN_E_UNSUPPORTED, "split pattern '%s' uses %s, which is outside the subset of docs/tokenizer.md",
            qn_show(pattern, strlen(pattern)).text, what);
}

/* One escape at p[0] == '\\'; *used characters are taken. */
static qn_status translate_escape(const char *pattern, const char *p, int in_class, qn_buffer *out, size_t *used,
                                  qn_error *error)
{
    const char c = p[1];
    *used = 2;
    if (c == 's') {
        qn_buffer_print(out, in_class ? "%s" : "[%s]", SPACE_SET);
    } else if (c == 'S') {
        if (in_class) {
            return refuse(error, pattern, "\\S inside a class");
        }
        qn_buffer_print(out, "[^%s]", SPACE_SET);
    } else if (c == 'p' || c == 'P') {
        const char *close = p[2] == '{' ? strchr(p, '}') : NULL;
        if (!close || close - p > 40) {
            return refuse(error, pattern, "\\p without {name}");
        }
        *used = (size_t)(close - p) + 1;
        qn_buffer_add(out, p, *used);
    } else if (c == 'u') {
        unsigned value = 0;
        for (int i = 2; i < 6; i++) {
            const char d = p[i];
            const int digit = d >= '0' && d <= '9'                 ? d - '0'
                              : (d | 32) >= 'a' && (d | 32) <= 'f' ? (d | 32) - 'a' + 10
                                                                   : -1;
            if (digit < 0) {
                return refuse(error, pattern, "\\u without four hex digits");
            }
            value = value << 4 | (unsigned)digit;
        }
        *used = 6;
        qn_buffer_print(out, "\\x{%x}", value);
    } else if (c == 'x' && p[2] == '{' && strchr(p, '}')) {
        *used = (size_t)(strchr(p, '}') - p) + 1;
        qn_buffer_add(out, p, *used);
    } else if (c && (strchr("rntfdD", c) || ((unsigned char)c < 0x80 && c > ' ' && c != '<' && c != '>' &&
                                             !((c | 32) >= 'a' && (c | 32) <= 'z') && !(c >= '0' && c <= '9')))) {
        qn_buffer_add(out, p, 2);
    } else {
        char what[32];
        snprintf(what, sizeof what, "the escape \\%c", c > ' ' && c < 0x7F ? c : '?');
        return refuse(error, pattern, what);
    }
    return QN_OK;
}

static int starts(const char *p, const char *prefix)
{
    return strncmp(p, prefix, strlen(prefix)) == 0;
}

/* Rewrite an Oniguruma pattern for PCRE2, or name what is outside the common subset. */
static qn_status translate(const char *pattern, qn_buffer *out, qn_error *error)
{
    int in_class = 0;
    for (const char *p = pattern; *p;) {
        size_t used = 1;
        if (*p == '\\') {
            QN_TRY(translate_escape(pattern, p, in_class, out, &used, error));
            p += used;
            continue;
        }
        if (in_class) {
            if (*p == '[') {
                return refuse(error, pattern, "a class inside a class");
            }
            if (starts(p, "&&")) {
                return refuse(error, pattern, "&& inside a class");
            }
            in_class = *p != ']';
        } else if (*p == '[') {
            in_class = 1;
            if (p[1] == '^') {
                used = 2;
            }
            if (p[used] == ']') {
                return refuse(error, pattern, "an empty class");
            }
        } else if (*p == '^' || *p == '$') {
            return refuse(error, pattern, "the anchor ^ or $");
        } else if (starts(p, "(*") || (starts(p, "(?") && !starts(p, "(?:") && !starts(p, "(?=") && !starts(p, "(?!") &&
                                       !starts(p, "(?<=") && !starts(p, "(?<!") && !starts(p, "(?>") &&
                                       !starts(p, "(?i:") && !starts(p, "(?i)"))) {
            return refuse(error, pattern, "a group other than (?: (?= (?! (?<= (?<! (?> (?i: (?i)");
        } else if (*p == '{' && (p[1] == ',' || p[1] < '0' || p[1] > '9')) {
            return refuse(error, pattern, "a { that is no {n}, {n,} or {n,m}");
        } else if (*p == '}' && (p[1] == '+' || p[1] == '?')) {
            return refuse(error, pattern, "{n,m} followed by + or ?");
        }
        qn_buffer_add(out, p, used);
        p += used;
    }
    QN_FAIL_IF(out->failed, error, QN_E_MEMORY, "out of memory for a split pattern");
    return QN_OK;
}

static qn_status compile(const qn_ctx *ctx, qn_split *split, qn_error *error)
{
    qn_buffer text = qn_buffer_make(ctx);
    qn_status status = QN_OK;
    uint32_t options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    if (split->kind == QN_SPLIT_LITERAL) {
        qn_buffer_print(&text, "%s", split->pattern);
        options |= PCRE2_LITERAL;
        options &= ~(uint32_t)PCRE2_NEVER_BACKSLASH_C;
    } else {
        options |= PCRE2_UCP;
        status = translate(split->pattern, &text, error);
    }
    pcre2_general_context *general = NULL;
    pcre2_compile_context *compiling = NULL;
    if (status == QN_OK) {
        general = pcre2_general_context_create(pcre_alloc, pcre_free, (void *)(uintptr_t)ctx);
        compiling = general ? pcre2_compile_context_create(general) : NULL;
        if (!compiling || text.failed) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory for a split pattern");
        }
    }
    if (status == QN_OK) {
        int code = 0;
        size_t at = 0;
        pcre2_set_newline(compiling, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(compiling, 50);
        split->code = pcre2_compile((PCRE2_SPTR)text.data, text.length, options, &code, &at, compiling);
        if (!split->code) {
            unsigned char why[120];
            pcre2_get_error_message(code, why, sizeof why);
            status = qn_error_set(error, code == PCRE2_ERROR_HEAP_FAILED ? QN_E_MEMORY : QN_E_FILE,
                                  "split pattern '%s' does not compile: %s",
                                  qn_show(split->pattern, strlen(split->pattern)).text, (const char *)why);
        } else {
            (void)pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
        }
    }
    pcre2_compile_context_free(compiling);
    split->memory = general;
    qn_buffer_free(&text);
    return status;
}

qn_status qn_split_make(const qn_ctx *ctx, qn_split_kind kind, const char *pattern, size_t bytes, int with_regex,
                        qn_split *out, qn_error *error)
{
    *out = (qn_split){.kind = kind, .with_regex = with_regex};
    const int has_pattern =
        kind == QN_SPLIT_REGEX || kind == QN_SPLIT_LITERAL || (kind == QN_SPLIT_BYTES && with_regex);
    if (!has_pattern) {
        return QN_OK;
    }
    if (kind == QN_SPLIT_BYTES) {
        pattern = qn_pattern_gpt2;
        bytes = strlen(pattern);
    }
    QN_FAIL_IF(!bytes || bytes > MAX_PATTERN || memchr(pattern, 0, bytes), error, QN_E_FILE,
               "a split pattern has %zu bytes, expected 1 to %d without zero bytes", bytes, MAX_PATTERN);
    QN_FAIL_IF(!qn_utf8_valid(pattern, bytes), error, QN_E_FILE, "a split pattern is not UTF-8");
    out->pattern = qn_strndup(ctx, pattern, bytes);
    QN_FAIL_IF(!out->pattern, error, QN_E_MEMORY, "out of memory for a split pattern");
    const qn_status status = compile(ctx, out, error);
    if (status != QN_OK) {
        qn_split_free(ctx, out);
    }
    return status;
}

void qn_split_free(const qn_ctx *ctx, qn_split *split)
{
    pcre2_code_free(split->code);
    pcre2_general_context_free(split->memory);
    qn_free(ctx, split->pattern);
    *split = (qn_split){0};
}

static qn_status split_numbers(const qn_split *split, const char *text, qn_span in, qn_spans *out, qn_error *error)
{
    size_t begin = in.begin;
    int was = 0;
    for (size_t i = in.begin; i < in.end;) {
        uint32_t c = 0;
        const size_t n = qn_utf8_next(text + i, in.end - i, &c);
        const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        const int is = k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
        if (is != was || (is && split->kind == QN_SPLIT_DIGITS)) {
            QN_FAIL_IF(qn_spans_add(out, begin, i), error, QN_E_MEMORY, "out of memory while splitting text");
            begin = i;
        }
        was = is;
        i += n ? n : 1;
    }
    QN_FAIL_IF(qn_spans_add(out, begin, in.end), error, QN_E_MEMORY, "out of memory while splitting text");
    return QN_OK;
}

static qn_status split_regex(const qn_split *split, const char *text, qn_span in, qn_spans *out,
                             pcre2_match_data *match, pcre2_match_context *limits, qn_error *error)
{
    const char *subject = text + in.begin;
    const size_t bytes = in.end - in.begin;
    size_t at = 0, done = 0;
    while (at <= bytes) {
        int rc = pcre2_match(split->code, (PCRE2_SPTR)subject, bytes, at, PCRE2_NO_UTF_CHECK, match, limits);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
            rc = pcre2_match(split->code, (PCRE2_SPTR)subject, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                             limits);
        }
        if (rc == PCRE2_ERROR_NOMATCH) {
            break;
        }
        QN_FAIL_IF(rc < 0, error, rc == PCRE2_ERROR_NOMEMORY ? QN_E_MEMORY : QN_E_FILE,
                   "split pattern '%s' passes its limits on this text (PCRE2 error %d)",
                   qn_show(split->pattern, strlen(split->pattern)).text, rc);
        const size_t *range = pcre2_get_ovector_pointer(match);
        if ((!split->drop_between && qn_spans_add(out, in.begin + done, in.begin + range[0])) ||
            qn_spans_add(out, in.begin + range[0], in.begin + range[1])) {
            QN_FAIL(error, QN_E_MEMORY, "out of memory while splitting text");
        }
        done = range[1];
        at = range[1];
        if (range[1] == range[0]) { /* an empty match only cuts */
            uint32_t c;
            const size_t n = at < bytes ? qn_utf8_next(subject + at, bytes - at, &c) : 1;
            at += n ? n : 1;
        }
    }
    QN_FAIL_IF(!split->drop_between && qn_spans_add(out, in.begin + done, in.end), error, QN_E_MEMORY,
               "out of memory while splitting text");
    return QN_OK;
}

qn_status qn_split_apply(const qn_split *split, const char *text, const qn_spans *in, qn_spans *out, qn_error *error)
{
    pcre2_match_data *match = NULL;
    pcre2_match_context *limits = NULL;
    qn_status status = QN_OK;
    if (split->code) {
        match = pcre2_match_data_create(1, split->memory);
        limits = pcre2_match_context_create(split->memory);
        if (!match || !limits) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory while splitting text");
            goto done;
        }
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        pcre2_set_depth_limit(limits, DEPTH_LIMIT);
        pcre2_set_heap_limit(limits, HEAP_LIMIT_KIB);
    }
    for (size_t i = 0; i < in->count && status == QN_OK; i++) {
        if (split->code) {
            status = split_regex(split, text, in->data[i], out, match, limits, error);
        } else if (split->kind == QN_SPLIT_BYTES) {
            if (qn_spans_add(out, in->data[i].begin, in->data[i].end)) {
                status = qn_error_set(error, QN_E_MEMORY, "out of memory while splitting text");
            }
        } else {
            status = split_numbers(split, text, in->data[i], out, error);
        }
    }
done:
    pcre2_match_context_free(limits);
    pcre2_match_data_free(match);
    return status;
}
