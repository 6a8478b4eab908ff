/* quern pack: write the packed file of a model. */
#include "cli.h"

static void print_result(const cli *c, const qn_packed_file *file, const qn_packing_info *packing)
{
    if (!c->value[OPT_JSON].set) {
        char size[32];
        printf("%s: %d weights, %s, packed in %.3f s\n", file->path, file->blobs,
               cli_size_text(size, (double)file->bytes), packing->seconds);
        return;
    }
    json j = json_begin(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "path", file->path);
    json_int(&j, "weights", file->blobs);
    json_int(&j, "bytes", (int64_t)file->bytes);
    json_number(&j, "seconds", packing->seconds, 4);
    json_close(&j, '}');
}

int verb_pack(cli *c)
{
    qn_error error = {0};
    qn_model *model = NULL;
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan = c->plan;
    options.exec = c->exec;
    options.no_packed_file = 1;
    int code = cli_check(c, qn_model_open(c->ctx, c->operands[0], &options, &model, &error), &error, PHASE_INPUT);
    if (!code) {
        qn_packed_file file;
        qn_packing_info packing;
        qn_model_get_packing(model, &packing);
        code = cli_check(c,
                         qn_model_write_packed(model, c->value[OPT_OUT].s, c->value[OPT_FORCE].set, &c->exec, &file,
                                               &error),
                         &error, PHASE_OUTPUT);
        if (!code)
            print_result(c, &file, &packing);
    }
    qn_model_close(model);
    return code;
}
