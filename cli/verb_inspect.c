/* quern inspect: what is in a checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

typedef struct format_total {
    int32_t tensors;
    double bytes, elements;
} format_total;

static void print_tokenizer_text(const qn_tokenizer_info *t)
{
    printf("tokenizer         %s, split rule %s\n", t->model, t->pre);
    printf("vocabulary        %d tokens, %d merges, %d special\n", t->vocab_size, t->merge_count, t->special_count);
    printf("special ids       bos %d, eos %d, unk %d, pad %d; adds bos %s, eos %s\n", t->bos_id, t->eos_id, t->unk_id,
           t->pad_id, t->add_bos ? "yes" : "no", t->add_eos ? "yes" : "no");
    printf("chat template     %s\n", t->chat_template ? "yes" : "no");
}

static void print_text(const qn_model_info *m, const qn_tokenizer_info *t, const char *missing)
{
    char a[32], b[32];
    printf("model             %s\n", m->name && *m->name ? m->name : m->path);
    printf("container         %s, %d file%s, %s\n", m->container, m->file_count, m->file_count == 1 ? "" : "s",
           cli_size_text(a, (double)m->file_bytes));
    printf("architecture      %s: %d layers, hidden %d, %d heads of %d (%d key/value), MLP %d\n", m->architecture,
           m->layers, m->hidden, m->heads, m->head_dim, m->kv_heads, m->intermediate);
    const int scaled = strcmp(m->rope_type, "default") != 0;
    printf("context           %d tokens, RoPE base %g%s%s, RMS epsilon %g\n", m->context_length, (double)m->rope_theta,
           scaled ? " scaled by " : "", scaled ? m->rope_type : "", (double)m->rms_eps);
    printf("embeddings        %d tokens, %s\n", m->vocab_size, m->tied_embeddings ? "tied" : "not tied");
    printf("weights           %s: %lld parameters in %d tensors, %s, %.3f bits per weight\n", m->scheme,
           (long long)m->parameters, m->tensor_count, cli_size_text(b, (double)m->tensor_bytes), m->bits_per_weight);
    if (t)
        print_tokenizer_text(t);
    else
        printf("tokenizer         not available: %s\n", missing);
}

static void print_json_head(json *j, const qn_model_info *m, const qn_tokenizer_info *t, const char *missing)
{
    json_open(j, NULL, '{');
    json_text(j, "path", m->path);
    json_text(j, "name", m->name);
    json_text(j, "container", m->container);
    json_text(j, "architecture", m->architecture);
    json_text(j, "scheme", m->scheme);
    json_int(j, "parameters", m->parameters);
    json_int(j, "tensor_bytes", (int64_t)m->tensor_bytes);
    json_int(j, "file_bytes", (int64_t)m->file_bytes);
    json_number(j, "bits_per_weight", m->bits_per_weight, 6);
    json_int(j, "tensor_count", m->tensor_count);
    json_int(j, "file_count", m->file_count);
    json_int(j, "layers", m->layers);
    json_int(j, "hidden", m->hidden);
    json_int(j, "heads", m->heads);
    json_int(j, "kv_heads", m->kv_heads);
    json_int(j, "head_dim", m->head_dim);
    json_int(j, "intermediate", m->intermediate);
    json_int(j, "vocab_size", m->vocab_size);
    json_int(j, "context_length", m->context_length);
    json_bool(j, "tied_embeddings", m->tied_embeddings);
    json_number(j, "rope_theta", (double)m->rope_theta, 9);
    json_text(j, "rope_type", m->rope_type);
    json_number(j, "rms_eps", (double)m->rms_eps, 9);
    if (!t) {
        json_text(j, "tokenizer", NULL);
        json_text(j, "tokenizer_missing", missing);
        return;
    }
    json_open(j, "tokenizer", '{');
    json_text(j, "model", t->model);
    json_text(j, "pre", t->pre);
    json_int(j, "vocab_size", t->vocab_size);
    json_int(j, "merges", t->merge_count);
    json_int(j, "special", t->special_count);
    json_int(j, "bos_id", t->bos_id);
    json_int(j, "eos_id", t->eos_id);
    json_int(j, "unk_id", t->unk_id);
    json_int(j, "pad_id", t->pad_id);
    json_bool(j, "add_bos", t->add_bos);
    json_bool(j, "add_eos", t->add_eos);
    json_bool(j, "chat_template", t->chat_template != NULL);
    json_close(j, '}');
}

static void print_formats(const qn_checkpoint *checkpoint, json *j)
{
    format_total totals[QN_FORMAT_LIMIT];
    memset(totals, 0, sizeof totals);
    qn_tensor_info t;
    for (int32_t i = 0; qn_checkpoint_tensor(checkpoint, i, &t) == QN_OK; i++) {
        format_total *f = &totals[(unsigned)t.shape.format < QN_FORMAT_LIMIT ? t.shape.format : 0];
        f->tensors++;
        f->bytes += (double)t.bytes;
        f->elements += (double)qn_shape_elements(&t.shape);
    }
    if (j)
        json_open(j, "formats", '[');
    for (int i = 0; i < QN_FORMAT_LIMIT; i++) {
        const qn_format_info *info = qn_format_get_info((qn_format)i);
        char size[32];
        if (!totals[i].tensors)
            continue;
        if (!j) {
            printf("format            %-9s %5d tensors %14.0f elements %10s\n", info ? info->name : "?",
                   totals[i].tensors, totals[i].elements, cli_size_text(size, totals[i].bytes));
            continue;
        }
        json_open(j, NULL, '{');
        json_text(j, "format", info ? info->name : NULL);
        json_int(j, "tensors", totals[i].tensors);
        json_number(j, "elements", totals[i].elements, 17);
        json_number(j, "bytes", totals[i].bytes, 17);
        json_close(j, '}');
    }
    if (j)
        json_close(j, ']');
}

/* The packed file beside the model: its size, or why it is of no use. */
static void print_packed(const qn_checkpoint *checkpoint, json *j)
{
    qn_error error = {0};
    qn_packed_file file;
    const qn_status status = qn_checkpoint_packed_file(checkpoint, NULL, &file, &error);
    char size[32];
    if (j && (status != QN_OK || file.bytes)) {
        json_open(j, "packed_file", '{');
        json_text(j, "path", file.path);
        json_bool(j, "usable", status == QN_OK);
        json_text(j, "reason", status == QN_OK ? NULL : error.text);
        json_int(j, "weights", file.blobs);
        json_int(j, "bytes", (int64_t)file.bytes);
        json_close(j, '}');
    } else if (j) {
        json_text(j, "packed_file", NULL);
    } else if (status != QN_OK) {
        printf("packed file       not usable: %s\n", error.text);
    } else if (file.bytes) {
        printf("packed file       %s: %d weights, %s\n", file.path, file.blobs,
               cli_size_text(size, (double)file.bytes));
    }
}

static void print_tensors(const qn_checkpoint *checkpoint, json *j)
{
    qn_tensor_info t;
    char shape[128], size[32];
    if (j)
        json_open(j, "tensors", '[');
    for (int32_t i = 0; qn_checkpoint_tensor(checkpoint, i, &t) == QN_OK; i++) {
        const qn_format_info *info = qn_format_get_info(t.shape.format);
        if (!j) {
            printf("%-56s %-24s %10s\n", t.name, cli_shape_text(shape, &t.shape), cli_size_text(size, (double)t.bytes));
            continue;
        }
        json_open(j, NULL, '{');
        json_text(j, "name", t.name);
        json_text(j, "format", info ? info->name : NULL);
        json_open(j, "shape", '[');
        for (int d = 0; d < t.shape.ndim && d < QN_MAX_DIMS; d++)
            json_int(j, NULL, t.shape.dims[d]);
        json_close(j, ']');
        json_int(j, "bytes", (int64_t)t.bytes);
        json_int(j, "file", t.file);
        json_close(j, '}');
    }
    if (j)
        json_close(j, ']');
}

int verb_inspect(cli *c)
{
    qn_error error = {0};
    qn_checkpoint *checkpoint = NULL;
    qn_model *model = NULL;
    int code = cli_check(c, qn_checkpoint_open(c->ctx, c->operands[0], &checkpoint, &error), &error, PHASE_INPUT);
    if (code)
        return code;
    /* The tokenizer belongs to the model; a model this version cannot run can still be looked at. */
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.backend = QN_BACKEND_REF;
    qn_status status = qn_model_open(c->ctx, c->operands[0], &options, &model, &error);
    if (status != QN_OK && status != QN_E_UNSUPPORTED)
        code = cli_check(c, status, &error, PHASE_INPUT);
    if (!code) {
        qn_model_info info;
        qn_tokenizer_info t;
        qn_checkpoint_get_info(checkpoint, &info);
        const qn_tokenizer *tokenizer = model ? qn_model_tokenizer(model) : NULL;
        if (tokenizer)
            qn_tokenizer_get_info(tokenizer, &t);
        const char *missing = status == QN_OK ? "the files carry none" : error.text;
        json j = json_begin(stdout);
        json *out = c->value[OPT_JSON].set ? &j : NULL;
        if (out)
            print_json_head(out, &info, tokenizer ? &t : NULL, missing);
        else
            print_text(&info, tokenizer ? &t : NULL, missing);
        print_packed(checkpoint, out);
        print_formats(checkpoint, out);
        if (c->value[OPT_TENSORS].set)
            print_tensors(checkpoint, out);
        if (out)
            json_close(out, '}');
    }
    qn_model_close(model);
    qn_checkpoint_close(checkpoint);
    return code;
}
