/* quern verify: read all data of a checkpoint and report what is wrong. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct findings {
    int as_json;
    json j;
    int64_t count[3];
} findings;

static void on_finding(void *user, int severity, const char *tensor, const char *text)
{
    static const char *const words[] = {"note", "warning", "error"};
    findings *f = user;
    int level = severity < 0 ? 0 : severity > 2 ? 2 : severity;
    f->count[level]++;
    if (!f->as_json) {
        printf("%s: %s%s%s\n", words[level], tensor ? tensor : "", tensor && *tensor ? ": " : "", text);
        return;
    }
    json_open(&f->j, NULL, '{');
    json_text(&f->j, "severity", words[level]);
    json_text(&f->j, "tensor", tensor);
    json_text(&f->j, "text", text);
    json_close(&f->j, '}');
}

int verb_verify(cli *c)
{
    qn_error error = {0};
    qn_checkpoint *checkpoint = NULL;
    findings f = {.as_json = c->value[OPT_JSON].set, .j = json_begin(stdout)};
    int64_t errors = 0;
    int code = cli_check(c, qn_checkpoint_open(c->ctx, c->operands[0], &checkpoint, &error), &error, PHASE_INPUT);
    if (code)
        return code;
    qn_model_info info;
    qn_checkpoint_get_info(checkpoint, &info);
    if (f.as_json) {
        json_open(&f.j, NULL, '{');
        json_text(&f.j, "path", info.path);
        json_int(&f.j, "tensors", info.tensor_count);
        json_open(&f.j, "findings", '[');
    }
    code =
        cli_check(c, qn_checkpoint_verify(checkpoint, &c->exec, on_finding, &f, &errors, &error), &error, PHASE_INPUT);
    if (f.as_json) {
        json_close(&f.j, ']');
        json_int(&f.j, "errors", errors);
        json_int(&f.j, "warnings", f.count[1]);
        json_bool(&f.j, "ok", !code && errors == 0);
        json_close(&f.j, '}');
    } else if (!code) {
        char size[32];
        printf("%s: %d tensors, %s: %lld errors, %lld warnings, %lld notes\n", info.path, info.tensor_count,
               cli_size_text(size, (double)info.tensor_bytes), (long long)errors, (long long)f.count[1],
               (long long)f.count[0]);
    }
    if (!code && errors)
        code = cli_fail(c, EXIT_INPUT, "%s: %lld errors found", info.path, (long long)errors);
    qn_checkpoint_close(checkpoint);
    return code;
}
