/* quern explain: candidates of a case, each with its reason; or the sources of its kernels. */
#include <stdlib.h>
#include <string.h>

#include <quern/experimental.h>

#include "cli.h"

int verb_explain(cli *c)
{
    qn_error error = {0};
    size_t bytes = 1;
    for (int i = 0; i < c->operand_count; i++)
        bytes += strlen(c->operands[i]) + 1;
    char *text = calloc(bytes, 1);
    if (!text)
        return cli_memory(c, "the case");
    for (int i = 0; i < c->operand_count; i++) {
        strcat(text, i ? " " : "");
        strcat(text, c->operands[i]);
    }
    qn_op_desc desc;
    int code = cli_check(c, qn_op_desc_parse(text, &desc, &error), &error, PHASE_USAGE);
    free(text);
    text = NULL;
    size_t room = 16384;
    for (int attempt = 0; attempt < 2 && !code; attempt++) {
        size_t length = 0;
        free(text);
        text = calloc(room, 1);
        if (!text)
            return cli_memory(c, "the explanation");
        const qn_status status = c->value[OPT_DUMP_KERNEL].set
                                     ? qn_kernel_sources(c->ctx, &desc, &c->plan, text, room, &length, &error)
                                     : qn_explain(c->ctx, &desc, &c->plan, text, room, &length, &error);
        code = cli_check(c, status, &error, PHASE_USAGE);
        if (code || length < room)
            break;
        room = length + 1;
    }
    if (!code) {
        size_t n = strlen(text);
        printf("%s%s", text, n && text[n - 1] == '\n' ? "" : "\n");
    }
    free(text);
    return code;
}
