/* quern warm: GPU kernels compiled ahead of time into the cache folder. */
#include <stdlib.h>

#include <quern/experimental.h>
#include <quern/model.h>

#include "cli.h"

typedef struct tally {
    int made, failed;
} tally;

static int32_t print_program(void *user, const qn_warm_info *info)
{
    tally *t = user;
    t->made += info->made != NULL;
    t->failed += info->made == NULL;
    if (info->made)
        printf("%-9s %7.1f ms  %s\n", info->made, 1e3 * info->seconds, info->program);
    else
        fprintf(stderr, "%s for %s: %s\n", info->kernel, info->target, info->error->text);
    fflush(stdout);
    return cli_interrupted() || cli_output_closed();
}

/* Opening a model makes what its prompts need, a session what decoding does: chains are cut by shapes. With a target
 * the context's device is one that is not there (cli_start). */
static int warm_model(cli *c, const char *path)
{
    qn_model *model = NULL;
    qn_session *session = NULL;
    c->plan.backend = QN_BACKEND_CUDA;
    int code = cli_open_model(c, path, (cli_form){0}, &model);
    if (!code)
        code = cli_open_session(c, model, 0, 0, &session);
    if (!code)
        printf("every kernel of %s is at hand\n", path);
    qn_session_destroy(session);
    qn_model_close(model);
    return code;
}

int verb_warm(cli *c)
{
    if (c->operand_count)
        return warm_model(c, c->operands[0]);
    tally t = {0, 0};
    qn_error error = {0};
    const char *targets = c->value[OPT_TARGET].s;
    const qn_status status = qn_kernels_warm(c->ctx, targets, &c->exec, print_program, &t, &error);
    if (status == QN_E_CANCELLED)
        return cli_interrupted() ? EXIT_SIGNAL : EXIT_DONE;
    if (t.failed && status != QN_E_IO)
        return cli_fail(c, EXIT_DEVICE, "%d of %d kernels failed", t.failed, t.failed + t.made);
    return cli_check(c, status, &error, status == QN_E_IO ? PHASE_OUTPUT : PHASE_USAGE);
}
