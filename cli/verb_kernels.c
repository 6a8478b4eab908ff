/* quern kernels: the registry as this machine sees it. */
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "kernel_info.h"

kernel_facts kernel_facts_of(qn_ctx *ctx, const qn_plan *plan)
{
    kernel_facts facts = {.kernel = qn_plan_kernel(plan),
                          .backend = qn_backend_name(qn_plan_backend(plan)),
                          .isa = qn_isa_name(QN_ISA_SCALAR),
                          .level = QN_ISA_SCALAR};
    qn_kernel_info info;
    for (int32_t i = 0; facts.kernel && qn_kernel_at(ctx, i, &info) == QN_OK; i++) {
        if (strcmp(info.name, facts.kernel) == 0) {
            facts.isa = info.level;
            facts.level = info.isa;
        }
    }
    return facts;
}

int verb_kernels(cli *c)
{
    regex_t filter;
    const char *pattern = c->value[OPT_FILTER].s;
    if (pattern && regcomp(&filter, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return cli_fail(c, EXIT_USAGE, "--filter: '%.100s' is not an extended regular expression", pattern);
    qn_kernel_info info;
    json j = json_begin(stdout);
    int as_json = c->value[OPT_JSON].set;
    if (as_json)
        json_open(&j, NULL, '[');
    else
        printf("%-64s %-24s %-5s %-11s %-18s %s\n", "kernel", "operator", "where", "level", "status", "this machine");
    for (int32_t i = 0; qn_kernel_at(c->ctx, i, &info) == QN_OK; i++) {
        const qn_op_info *op = qn_op_get_info(info.op);
        if (pattern && regexec(&filter, info.name, 0, NULL, 0) != 0)
            continue;
        if (!as_json) {
            printf("%-64s %-24s %-5s %-11s %-18s %s\n", info.name, op ? op->name : "?", qn_backend_name(info.backend),
                   info.level, info.status, info.refusal ? info.refusal : "runs");
            continue;
        }
        json_open(&j, NULL, '{');
        json_text(&j, "name", info.name);
        json_text(&j, "op", op ? op->name : NULL);
        json_text(&j, "backend", qn_backend_name(info.backend));
        json_text(&j, "isa", info.level);
        json_text(&j, "status", info.status);
        json_text(&j, "refusal", info.refusal);
        json_close(&j, '}');
    }
    if (as_json)
        json_close(&j, ']');
    if (pattern)
        regfree(&filter);
    return EXIT_DONE;
}
