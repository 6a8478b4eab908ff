/* quern doctor: what this machine can run, and why not more. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#include <quern/experimental.h>

int verb_doctor(cli *c)
{
    size_t room = qn_doctor(c->ctx, NULL, 0) + 1;
    char *text = calloc(room, 1);
    if (!text)
        return cli_memory(c, "the report");
    qn_doctor(c->ctx, text, room);
    if (!c->value[OPT_JSON].set) {
        printf("quern %s\n%s%s", qn_version(), text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
    } else {
        json j = json_begin(stdout);
        json_open(&j, NULL, '{');
        json_text(&j, "version", qn_version());
        json_open(&j, "facts", '[');
        for (const char *p = text; *p;) {
            size_t n = strcspn(p, "\n");
            json_bytes(&j, NULL, p, n);
            p += n + (p[n] == '\n');
        }
        json_close(&j, ']');
        json_close(&j, '}');
    }
    free(text);
    return EXIT_DONE;
}
