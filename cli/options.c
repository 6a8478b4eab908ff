/* Parsing a command line by the table.
 *
 * Accepted: --name value, --name=value, -n value, -nvalue, "--" before operands
 * that start with a dash, options and operands in any order. The first mistake
 * ends parsing with one sentence. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const cli_verb *cli_verb_find(const char *name)
{
    for (const cli_verb *v = cli_verbs + 1; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

int cli_verb_takes(const cli_verb *verb, cli_option_id id)
{
    for (const uint8_t *o = verb->options; *o != OPT_END; o++)
        if (*o == id)
            return 1;
    return 0;
}

/* Damerau-Levenshtein distance of short words (adjacent swap counts one); 99 for long ones. */
static int distance(const char *a, const char *b)
{
    enum { MOST = 31 };
    size_t n = strlen(a), m = strlen(b);
    if (n > MOST || m > MOST)
        return 99;
    int d[MOST + 1][MOST + 1];
    for (size_t i = 0; i <= n; i++)
        d[i][0] = (int)i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *cli_closest(const char *word, const char *(*next)(const void *user, int i), const void *user)
{
    size_t length = strlen(word);
    int limit = length <= 2 ? 0 : length <= 4 ? 1 : length <= 8 ? 2 : 3;
    const char *best = NULL;
    int best_distance = limit + 1;
    const char *candidate;
    for (int i = 0; (candidate = next(user, i)) != NULL; i++) {
        int d = distance(word, candidate);
        if (length >= 3 && strncmp(word, candidate, length) == 0 && d > limit)
            d = limit; /* a beginning of the word */
        if (d < best_distance) {
            best_distance = d;
            best = candidate;
        }
    }
    return best;
}

/* 1 when word is one of the '|'-separated words; *position counts from 0. */
static int in_words(const char *words, const char *word, size_t length, int64_t *position)
{
    int64_t at = 0;
    for (const char *p = words; p; at++) {
        const char *bar = strchr(p, '|');
        size_t n = bar ? (size_t)(bar - p) : strlen(p);
        if (n == length && strncmp(p, word, n) == 0) {
            if (position)
                *position = at;
            return 1;
        }
        p = bar ? bar + 1 : NULL;
    }
    return 0;
}

static const char *option_name_at(const void *user, int i)
{
    const cli_verb *verb = user;
    return verb->options[i] == OPT_END ? NULL : cli_options[verb->options[i]].name;
}

static cli_option_id find_long(const cli_verb *verb, const char *name, size_t length)
{
    for (const uint8_t *o = verb->options; *o != OPT_END; o++) {
        const cli_option *row = &cli_options[*o];
        if ((strlen(row->name) == length && strncmp(row->name, name, length) == 0) ||
            (row->aliases && in_words(row->aliases, name, length, NULL)))
            return (cli_option_id)*o;
    }
    return OPT_END;
}

static cli_option_id find_letter(const cli_verb *verb, char letter)
{
    for (const uint8_t *o = verb->options; *o != OPT_END; o++)
        if (cli_options[*o].letter == letter)
            return (cli_option_id)*o;
    return OPT_END;
}

/* Text to the option's value; shown is how the user wrote the option. */
static int set_value(cli *c, cli_option_id id, const char *text, const char *shown)
{
    const cli_option *row = &cli_options[id];
    cli_value *v = &c->value[id];
    char *end = NULL;
    errno = 0;
    switch (row->kind) {
    case KIND_FLAG: v->i = 1; break;
    case KIND_INT: {
        long long n = strtoll(text, &end, 10);
        if (end == text || *end || (*text != '-' && *text != '+' && (*text < '0' || *text > '9')))
            return cli_fail(c, EXIT_USAGE, "%s: '%s' is not a whole number", shown, text);
        if (errno == ERANGE || (double)n < row->min || (double)n > row->max)
            return cli_fail(c, EXIT_USAGE, "%s: %s is outside %.0f to %.0f", shown, text, row->min, row->max);
        v->i = n;
        break;
    }
    case KIND_FLOAT: {
        double f = strtod(text, &end);
        if (end == text || *end || isnan(f))
            return cli_fail(c, EXIT_USAGE, "%s: '%s' is not a number", shown, text);
        if (f < row->min || f > row->max)
            return cli_fail(c, EXIT_USAGE, "%s: %s is outside %g to %g", shown, text, row->min, row->max);
        v->f = f;
        break;
    }
    case KIND_CHOICE:
        if (!in_words(row->value, text, strlen(text), &v->i))
            return cli_fail(c, EXIT_USAGE, "%s: '%s' is none of %s", shown, text, row->value);
        break;
    case KIND_LIST: c->stops[c->stop_count++] = text; break;
    case KIND_TEXT: break;
    }
    v->s = text;
    return 0;
}

static int unknown_option(cli *c, const char *shown, const char *name)
{
    const char *guess = cli_closest(name, option_name_at, c->verb);
    if (guess)
        return cli_fail(c, EXIT_USAGE, "unknown option %s; did you mean --%s?", shown, guess);
    return cli_fail(c, EXIT_USAGE, "unknown option %s; see 'quern %s%s--help'", shown, c->verb->name,
                    *c->verb->name ? " " : "");
}

/* One option at argv[*i]; moves *i to its last word. */
static int parse_option(cli *c, int argc, char **argv, int *i)
{
    char *word = argv[*i];
    char shown[64];
    cli_option_id id;
    const char *value = NULL;
    if (word[1] == '-') {
        size_t length = strcspn(word + 2, "=");
        snprintf(shown, sizeof shown, "--%.*s", (int)(length > 48 ? 48 : length), word + 2);
        id = find_long(c->verb, word + 2, length);
        if (id == OPT_END)
            return unknown_option(c, shown, shown + 2);
        if (word[2 + length] == '=')
            value = word + 3 + length;
    } else {
        snprintf(shown, sizeof shown, "-%c", word[1]);
        id = find_letter(c->verb, word[1]);
        if (id == OPT_END) {
            snprintf(shown, sizeof shown, "%.50s", word);
            return unknown_option(c, shown, word + 1);
        }
        if (word[2])
            value = word + 2;
    }
    const cli_option *row = &cli_options[id];
    if (row->kind == KIND_FLAG) {
        if (value)
            return cli_fail(c, EXIT_USAGE, "%s takes no value, '%.100s' was given", shown, value);
    } else if (!value) {
        if (*i + 1 >= argc)
            return cli_fail(c, EXIT_USAGE, "%s needs a value (%s)", shown, row->value);
        value = argv[++*i];
    }
    if (c->value[id].set && row->kind != KIND_LIST && row->kind != KIND_FLAG)
        return cli_fail(c, EXIT_USAGE, "%s is given twice", shown);
    int code = set_value(c, id, value, shown);
    c->value[id].set = 1;
    return code;
}

static int set_defaults(cli *c)
{
    for (const uint8_t *o = c->verb->options; *o != OPT_END; o++) {
        const cli_option *row = &cli_options[*o];
        if (!row->initial || row->kind == KIND_FLAG || row->kind == KIND_LIST)
            continue;
        char shown[64];
        snprintf(shown, sizeof shown, "--%s", row->name);
        int code = set_value(c, (cli_option_id)*o, row->initial, shown);
        if (code)
            return code;
    }
    return 0;
}

static int check_operands(cli *c)
{
    const cli_verb *verb = c->verb;
    if (verb->model_first && c->value[OPT_MODEL].set) {
        memmove(c->operands + 1, c->operands, (size_t)c->operand_count * sizeof *c->operands);
        c->operands[0] = c->value[OPT_MODEL].s;
        c->operand_count++;
    }
    if (c->operand_count < verb->min_operands)
        return cli_fail(c, EXIT_USAGE, "too few arguments; usage: quern %s %s", verb->name, verb->operands);
    if (verb->max_operands >= 0 && c->operand_count > verb->max_operands)
        return cli_fail(c, EXIT_USAGE, "unexpected argument '%.200s'; usage: quern %s [options] %s",
                        c->operands[verb->max_operands], verb->name, verb->operands);
    return 0;
}

int cli_parse(cli *c, int argc, char **argv)
{
    c->operands = cli_alloc((size_t)argc + 2, sizeof *c->operands);
    c->stops = cli_alloc((size_t)argc + 1, sizeof *c->stops);
    if (!c->operands || !c->stops)
        return cli_memory(c, "the command line");
    int code = set_defaults(c);
    int only_operands = 0;
    for (int i = 0; i < argc && !code; i++) {
        if (!only_operands && strcmp(argv[i], "--") == 0)
            only_operands = 1;
        else if (!only_operands && argv[i][0] == '-' && argv[i][1])
            code = parse_option(c, argc, argv, &i);
        else
            c->operands[c->operand_count++] = argv[i];
    }
    /* help wins over whatever else is missing, not over a mistake before it */
    if (code || c->value[OPT_HELP].set)
        return code;
    if (cli_verb_takes(c->verb, OPT_LIST) && c->value[OPT_LIST].set)
        return 0;
    return check_operands(c);
}
