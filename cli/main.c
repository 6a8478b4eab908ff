/* The command `quern`: finds the verb, parses its options, runs it, maps what
 * happened to an exit code. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char *verb_name_at(const void *user, int i)
{
    (void)user;
    return cli_verbs[i + 1].name;
}

static int unknown_verb(cli *c, const char *word)
{
    const char *guess = cli_closest(word, verb_name_at, NULL);
    if (guess)
        return cli_fail(c, EXIT_USAGE, "unknown verb '%.100s'; did you mean '%s'?", word, guess);
    return cli_fail(c, EXIT_USAGE, "unknown verb '%.100s'; see 'quern --help'", word);
}

/* quern --help, --version, --man, --completion, or nothing at all. */
static int run_command_itself(cli *c)
{
    if (c->value[OPT_VERSION].set)
        return verb_version(c);
    if (c->value[OPT_MAN].set)
        cli_print_man(stdout);
    else if (c->value[OPT_COMPLETION].set)
        cli_print_completion(stdout, c->value[OPT_COMPLETION].s);
    else if (c->value[OPT_HELP].set)
        cli_print_help(stdout);
    else
        return cli_fail(c, EXIT_USAGE, "no verb given; see 'quern --help'");
    return EXIT_DONE;
}

static int run_verb(cli *c, int argc, char **argv)
{
    c->verb = &cli_verbs[0];
    int used = 1;
    if (argc > 1 && argv[1][0] != '-') {
        const cli_verb *verb = NULL;
        char two[64];
        if (argc > 2 && (size_t)snprintf(two, sizeof two, "%s %s", argv[1], argv[2]) < sizeof two)
            verb = cli_verb_find(two);
        if (verb)
            used = 3;
        else if (strchr(argv[1], ' ') == NULL && (verb = cli_verb_find(argv[1])) != NULL)
            used = 2;
        if (!verb)
            return unknown_verb(c, argv[1]);
        c->verb = verb;
    }
    int code = cli_parse(c, argc - used, argv + used);
    if (code)
        return code;
    if (c->verb == &cli_verbs[0])
        return run_command_itself(c);
    if (c->value[OPT_HELP].set) {
        cli_print_verb_help(stdout, c->verb);
        return EXIT_DONE;
    }
    code = cli_start(c);
    return code ? code : c->verb->run(c);
}

int main(int argc, char **argv)
{
    cli c;
    memset(&c, 0, sizeof c);
    cli_signals();
    int code = run_verb(&c, argc, argv);
    cli_progress_end(&c);
    cli_end(&c);
    int written = cli_flush(&c);
    if (cli_interrupted())
        return EXIT_SIGNAL;
    return code ? code : written;
}
