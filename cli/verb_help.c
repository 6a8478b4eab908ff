/* quern version, quern help [VERB], quern bench. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

int verb_version(cli *c)
{
    (void)c;
    printf("quern %s\n", qn_version());
    return EXIT_DONE;
}

int verb_help(cli *c)
{
    if (c->operand_count == 0) {
        cli_print_help(stdout);
        return EXIT_DONE;
    }
    char name[64];
    if (c->operand_count == 2)
        snprintf(name, sizeof name, "%.30s %.30s", c->operands[0], c->operands[1]);
    else
        snprintf(name, sizeof name, "%.60s", c->operands[0]);
    const cli_verb *verb = cli_verb_find(name);
    if (!verb)
        return cli_fail(c, EXIT_USAGE, "there is no verb '%s'; see 'quern --help'", name);
    cli_print_verb_help(stdout, verb);
    return EXIT_DONE;
}

int verb_bench(cli *c)
{
    if (c->operand_count == 0)
        return cli_fail(c, EXIT_USAGE, "say what to measure: 'quern bench kernels' or 'quern bench model MODEL'");
    return cli_fail(c, EXIT_USAGE, "cannot measure '%.100s'; it is 'quern bench kernels' or 'quern bench model MODEL'",
                    c->operands[0]);
}
