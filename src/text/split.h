/* Split rules (pre-tokenizers): cut text into pieces before merging. Used by
 * encode.c and by the builders; the only part of Quern that knows PCRE2. */
#ifndef QN_TEXT_SPLIT_H
#define QN_TEXT_SPLIT_H

#include <quern/status.h>

#include "base/text.h"

typedef enum qn_split_kind {
    QN_SPLIT_REGEX = 1,   /* matches and what lies between them */
    QN_SPLIT_LITERAL = 2, /* the same for a plain string */
    QN_SPLIT_DIGITS = 3,  /* each numeric character alone */
    QN_SPLIT_NUMBERS = 4, /* each run of numeric characters */
    QN_SPLIT_BYTES = 5    /* byte-level alphabet; with_regex adds the GPT-2 rule */
} qn_split_kind;

typedef struct qn_split {
    qn_split_kind kind;
    int with_regex;   /* QN_SPLIT_BYTES */
    int drop_between; /* regex, literal: text between the matches is left out */
    int trim_offsets; /* kept for export only */
    char *pattern;    /* regex, literal: as the file wrote it */
    void *code;       /* compiled */
    void *memory;     /* PCRE2's memory functions */
} qn_split;

/* A growing list of pieces [begin, end). */
typedef struct qn_span {
    size_t begin, end;
} qn_span;

typedef struct qn_spans {
    const qn_ctx *ctx;
    qn_span *data;
    size_t count, capacity;
} qn_spans;

int qn_spans_add(qn_spans *spans, size_t begin, size_t end); /* 1: out of memory; empty pieces are not kept */
void qn_spans_free(qn_spans *spans);

/* The split rules of the known families, for files that name instead of spell them. */
extern const char *const qn_pattern_gpt2, *const qn_pattern_llama3, *const qn_pattern_qwen2;

/* Fill a rule; pattern is copied. QN_E_UNSUPPORTED: a regex construct whose meaning differs between engines. */
qn_status qn_split_make(const qn_ctx *ctx, qn_split_kind kind, const char *pattern, size_t bytes, int with_regex,
                        qn_split *out, qn_error *error);
void qn_split_free(const qn_ctx *ctx, qn_split *split);

/* Cut each piece of in (of valid UTF-8 text) and append the results to out. */
qn_status qn_split_apply(const qn_split *split, const char *text, const qn_spans *in, qn_spans *out, qn_error *error);

#endif
