/* Help texts, the manual page and the completion scripts, all from the table. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Prints text folded at 78 columns with that indent; the cursor is at `column`. */
static void fold(FILE *out, const char *text, int indent, int column)
{
    const int width = 78;
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)n > width) {
            fputc('\n', out);
            column = 0;
        }
        if (column < indent) {
            fprintf(out, "%*s", indent - column, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += (int)n;
        text += n;
        if (*text == '\n') {
            fputc('\n', out);
            column = 0;
        }
        if (*text)
            text++;
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const cli_option *o)
{
    char left[160];
    int n = 2;
    if (o->letter)
        n = snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name);
    else
        n = snprintf(left, sizeof left, "      --%s", o->name);
    if (o->kind != KIND_FLAG)
        n += snprintf(left + n, sizeof left - (size_t)n, " %s", o->kind == KIND_CHOICE ? "WORD" : o->value);
    fputs(left, out);
    if (n > 26) {
        fputc('\n', out);
        n = 0;
    }
    char text[512];
    int used = snprintf(text, sizeof text, "%s", o->help);
    if (o->kind == KIND_CHOICE)
        used += snprintf(text + used, sizeof text - (size_t)used, ": %s", o->value);
    if (o->initial)
        snprintf(text + used, sizeof text - (size_t)used, " (default %s)", o->initial);
    fold(out, text, 28, n < 28 ? n : 28);
}

void cli_print_help(FILE *out)
{
    const cli_verb *self = &cli_verbs[0];
    fprintf(out, "quern - %s\n\nusage: quern VERB [options] ...\n\n", self->summary);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++)
        if (strcmp(v->name, "bench") != 0)
            fprintf(out, "  %-14s %s\n", v->name, v->summary);
    fputc('\n', out);
    for (const uint8_t *o = self->options; *o; o++)
        print_option(out, &cli_options[*o]);
    fprintf(out, "\n'quern VERB --help' explains a verb, 'quern --man' prints the whole manual.\n");
}

void cli_print_verb_help(FILE *out, const cli_verb *verb)
{
    fprintf(out, "usage: quern %s [options]%s%s\n\n", verb->name, *verb->operands ? " " : "", verb->operands);
    fold(out, verb->summary, 0, 0);
    if (*verb->text) {
        fputc('\n', out);
        fold(out, verb->text, 0, 0);
    }
    fputs("\noptions:\n", out);
    for (const uint8_t *o = verb->options; *o; o++)
        print_option(out, &cli_options[*o]);
    fputs("\nexample:\n", out);
    fold(out, verb->example, 0, 0);
}

/* ---- The manual page ---- */

/* Text for roff: backslashes and dashes escaped, no line begins with a control character. */
static void roff(FILE *out, const char *text)
{
    int start = 1;
    for (const char *p = text; *p; p++) {
        if (start && (*p == '.' || *p == '\''))
            fputs("\\&", out);
        start = *p == '\n';
        if (*p == '\\')
            fputs("\\e", out);
        else if (*p == '-')
            fputs("\\-", out);
        else if (*p == '\n')
            fputs("\n.PP\n", out);
        else
            fputc(*p, out);
    }
}

static void man_options(FILE *out, const cli_verb *verb)
{
    for (const uint8_t *o = verb->options; *o; o++) {
        const cli_option *row = &cli_options[*o];
        fputs(".TP\n", out);
        if (row->letter)
            fprintf(out, "\\fB\\-%c\\fR, ", row->letter);
        fputs("\\fB\\-\\-", out);
        roff(out, row->name);
        fputs("\\fR", out);
        if (row->kind != KIND_FLAG) {
            fputs(" \\fI", out);
            roff(out, row->value);
            fputs("\\fR", out);
        }
        fputc('\n', out);
        roff(out, row->help);
        if (row->kind == KIND_INT || row->kind == KIND_FLOAT)
            fprintf(out, " (%.10g to %.17g)", row->min, row->max);
        if (row->initial) {
            fputs("; default ", out);
            roff(out, row->initial);
        }
        if (row->aliases) {
            fputs("; also", out);
            for (const char *p = row->aliases; p;) {
                size_t n = strcspn(p, "|");
                char name[64];
                snprintf(name, sizeof name, "%.*s", (int)n, p);
                fputs(" \\-\\-", out);
                roff(out, name);
                p = p[n] ? p + n + 1 : NULL;
            }
        }
        fputc('\n', out);
    }
}

void cli_print_man(FILE *out)
{
    const cli_verb *self = &cli_verbs[0];
    fprintf(out, ".TH QUERN 1 \"\" \"quern %s\" \"User Commands\"\n.SH NAME\nquern \\- ", qn_version());
    roff(out, self->summary);
    fputs("\n.SH SYNOPSIS\n.B quern\n\\fIVERB\\fR [\\fIoptions\\fR] ...\n.SH DESCRIPTION\n", out);
    roff(out, self->text);
    fputs("\n.PP\nOptions are written \\fB\\-\\-name\\fR \\fIvalue\\fR, \\fB\\-\\-name\\fR=\\fIvalue\\fR, \\fB\\-n\\fR "
          "\\fIvalue\\fR or \\fB\\-n\\fR\\fIvalue\\fR, anywhere after the verb; \\fB\\-\\-\\fR ends them.\n"
          ".SH OPTIONS\n",
          out);
    man_options(out, self);
    fputs(".SH VERBS\n", out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++) {
        fprintf(out, ".SS quern %s ", v->name);
        roff(out, v->operands);
        fputc('\n', out);
        roff(out, v->summary);
        fputs(".\n", out);
        if (*v->text) {
            fputs(".PP\n", out);
            roff(out, v->text);
            fputc('\n', out);
        }
        man_options(out, v);
    }
    fputs(".SH EXIT STATUS\n"
          "0 done, 1 failure, 2 usage, 3 bad input file, 4 out of memory, 5 device, 130 interrupted.\n"
          ".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nRespected: nothing is coloured.\n.TP\n.B TERM\n"
          "No progress bar when it is \\fBdumb\\fR.\n"
          ".SH EXAMPLES\n.nf\n",
          out);
    roff(out, self->example);
    fputs("\n.fi\n", out);
}

/* ---- Completion ---- */

/* The words after `quern VERB` for one verb: --name and -letter. */
static void option_words(FILE *out, const cli_verb *verb)
{
    for (const uint8_t *o = verb->options; *o; o++)
        fprintf(out, "%s--%s", o == verb->options ? "" : " ", cli_options[*o].name);
}

static void choice_words(FILE *out, const char *words)
{
    for (const char *p = words; *p; p++)
        fputc(*p == '|' ? ' ' : *p, out);
}

static void completion_bash(FILE *out)
{
    fputs("# bash completion for quern\n_quern()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} words=\n"
          "    [[ $verb == bench && $COMP_CWORD -gt 2 ]] && verb=\"bench ${COMP_WORDS[2]}\"\n    case $prev in\n",
          out);
    for (int i = 1; i < OPT_LIMIT; i++) {
        if (cli_options[i].kind == KIND_CHOICE && i != OPT_OUTPUT_FORMAT) {
            fprintf(out, "    --%s) COMPREPLY=($(compgen -W \"", cli_options[i].name);
            choice_words(out, cli_options[i].value);
            fputs("\" -- \"$cur\")); return ;;\n", out);
        }
    }
    fputs("    esac\n    if [[ $COMP_CWORD -eq 1 ]]; then\n        words=\"", out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++)
        if (!strchr(v->name, ' '))
            fprintf(out, "%s ", v->name);
    option_words(out, &cli_verbs[0]);
    fputs("\"\n    else\n        case $verb in\n", out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++) {
        fprintf(out, "        \"%s\") words=\"", v->name);
        if (strcmp(v->name, "bench") == 0)
            fputs("kernels model ", out);
        option_words(out, v);
        fputs("\" ;;\n", out);
    }
    fputs("        esac\n    fi\n"
          "    if [[ $cur == -* || $COMP_CWORD -eq 1 || ( $verb == bench && $COMP_CWORD -eq 2 ) ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
          "    else\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
          "complete -o filenames -F _quern quern\n",
          out);
}

/* Text inside single quotes of a shell. */
static void quoted(FILE *out, const char *text, int zsh)
{
    fputc('\'', out);
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            fputs(zsh ? "'\\''" : "\\'", out);
        else if (zsh && (*p == '[' || *p == ']' || *p == ':'))
            fprintf(out, "\\%c", *p);
        else
            fputc(*p, out);
    }
    fputc('\'', out);
}

static void zsh_option(FILE *out, const cli_option *o)
{
    char text[600];
    fprintf(out, "            '--%s", o->name);
    if (o->kind != KIND_FLAG)
        fputc('=', out);
    snprintf(text, sizeof text, "%s", o->help);
    fputs("['", out);
    quoted(out, text, 1);
    fputs("']", out);
    if (o->kind == KIND_CHOICE) {
        fputs(":word:(", out);
        choice_words(out, o->value);
        fputc(')', out);
    } else if (o->kind != KIND_FLAG) {
        fprintf(out, ":%s:%s", o->value,
                strcmp(o->value, "FILE") == 0 || strcmp(o->value, "MODEL") == 0 ? "_files" : "");
    }
    fputs("' \\\n", out);
}

static void completion_zsh(FILE *out)
{
    fputs("#compdef quern\n_quern() {\n    local -a verbs\n    verbs=(\n", out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++) {
        if (!strchr(v->name, ' ')) {
            fprintf(out, "        '%s:'", v->name);
            quoted(out, v->summary, 1);
            fputc('\n', out);
        }
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        _arguments \\\n", out);
    for (const uint8_t *o = cli_verbs[0].options; *o; o++)
        zsh_option(out, &cli_options[*o]);
    fputs("            && return\n        return\n    fi\n    local verb=${words[2]}\n"
          "    [[ $verb == bench && -n ${words[3]} && CURRENT -gt 3 ]] && verb=\"bench ${words[3]}\"\n    case $verb "
          "in\n",
          out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++) {
        fprintf(out, "    '%s')\n        _arguments \\\n", v->name);
        for (const uint8_t *o = v->options; *o; o++)
            zsh_option(out, &cli_options[*o]);
        fprintf(out, "            %s ;;\n",
                strcmp(v->name, "bench") == 0 ? "'*:what:(kernels model)'" : "'*:file:_files'");
    }
    fputs("    esac\n}\ncompdef _quern quern\n", out);
}

static void completion_fish(FILE *out)
{
    fputs("# fish completion for quern\n", out);
    for (const cli_verb *v = cli_verbs + 1; v->name; v++) {
        if (strchr(v->name, ' '))
            continue;
        fprintf(out, "complete -c quern -n __fish_use_subcommand -a %s -d ", v->name);
        quoted(out, v->summary, 0);
        fputc('\n', out);
    }
    for (const cli_verb *v = cli_verbs; v->name; v++) {
        const char *space = strchr(v->name, ' ');
        for (const uint8_t *o = v->options; *o; o++) {
            const cli_option *row = &cli_options[*o];
            if (!*v->name)
                fputs("complete -c quern -n __fish_use_subcommand", out);
            else if (space)
                fprintf(out,
                        "complete -c quern -n '__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s'",
                        (int)(space - v->name), v->name, space + 1);
            else
                fprintf(out, "complete -c quern -n '__fish_seen_subcommand_from %s'", v->name);
            fprintf(out, " -l %s", row->name);
            if (row->letter)
                fprintf(out, " -s %c", row->letter);
            if (row->kind == KIND_CHOICE) {
                fputs(" -x -a '", out);
                choice_words(out, row->value);
                fputc('\'', out);
            } else if (row->kind != KIND_FLAG) {
                fputs(" -r", out);
            }
            fputs(" -d ", out);
            quoted(out, row->help, 0);
            fputc('\n', out);
        }
    }
    fputs("complete -c quern -n '__fish_seen_subcommand_from bench' -a 'kernels model'\n", out);
}

void cli_print_completion(FILE *out, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        completion_bash(out);
    else if (strcmp(shell, "zsh") == 0)
        completion_zsh(out);
    else
        completion_fish(out);
}
