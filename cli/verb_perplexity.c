/* quern perplexity: how well a model predicts a text, alone or against a reference. */
#include <stdlib.h>
#include <string.h>

#include "score.h"

static void print_text(const score_text *t, const scored *models, int n)
{
    const scored *s = &models[n - 1];
    score_summary r = score_sum(s);
    printf("perplexity %.4f +/- %.4f (%lld tokens in %lld chunks of %lld, second halves)\n", r.perplexity,
           r.perplexity_error, (long long)s->count, (long long)t->chunks, (long long)t->chunk);
    if (n < 2)
        return;
    score_summary ref = score_sum(&models[0]);
    printf("reference  %.4f +/- %.4f, ratio %.4f\n", ref.perplexity, ref.perplexity_error,
           r.perplexity / ref.perplexity);
    printf("KL divergence mean %.6f, median %.6f, 99 %% %.6f, max %.6f\n", r.kl_mean, r.kl_median, r.kl_99, r.kl_max);
    printf("same top token %.3f %%\n", 100 * r.same_top);
}

static void print_json(const score_text *t, const scored *models, int n)
{
    const scored *s = &models[n - 1];
    score_summary r = score_sum(s);
    json j = json_begin(stdout);
    json_open(&j, NULL, '{');
    json_text(&j, "model", s->path);
    json_text(&j, "scheme", s->info.scheme);
    json_text(&j, "activations", s->activations.name);
    json_text(&j, "kv", s->kv.scheme);
    json_int(&j, "kv_bytes_per_token", (int64_t)s->kv.bytes_per_token);
    json_int(&j, "tokens", s->count);
    json_int(&j, "chunks", t->chunks);
    json_int(&j, "ctx", t->chunk);
    json_int(&j, "stride", t->stride);
    json_number(&j, "ppl", r.perplexity, 8);
    json_number(&j, "ppl_error", r.perplexity_error, 6);
    if (n > 1) {
        score_summary ref = score_sum(&models[0]);
        json_text(&j, "reference", models[0].path);
        json_number(&j, "reference_ppl", ref.perplexity, 8);
        json_number(&j, "ppl_ratio", r.perplexity / ref.perplexity, 8);
        json_number(&j, "kl_mean", r.kl_mean, 6);
        json_number(&j, "kl_median", r.kl_median, 6);
        json_number(&j, "kl_99", r.kl_99, 6);
        json_number(&j, "kl_max", r.kl_max, 6);
        json_number(&j, "top1", r.same_top, 6);
    }
    json_close(&j, '}');
}

int verb_perplexity(cli *c)
{
    scored models[2];
    memset(models, 0, sizeof models);
    int n = 0;
    char *text = NULL;
    size_t bytes = 0, count = 0;
    int32_t *ids = NULL;
    int64_t chunk = c->value[OPT_CHUNK].i;
    int code = cli_read_text(c, &text, &bytes, 1);
    if (!code && c->value[OPT_REFERENCE].set)
        code = score_open(c, &models[n++], c->value[OPT_REFERENCE].s, (cli_form){0}, chunk);
    if (!code)
        code = score_open(c, &models[n++], c->operands[0], cli_asked_form(c), chunk);
    if (!code)
        code = cli_tokenize(c, qn_model_tokenizer(models[0].model), text, bytes, 0, &ids, &count);
    if (!code) {
        qn_tokenizer_info info;
        qn_tokenizer_get_info(qn_model_tokenizer(models[0].model), &info);
        int64_t most = c->value[OPT_MAX_TOKENS].i;
        score_text t = {.ids = ids,
                        .count = most > 0 && most < (int64_t)count ? most : (int64_t)count,
                        .chunk = chunk,
                        .stride = c->value[OPT_STRIDE].i,
                        .bos = info.add_bos ? info.bos_id : -1};
        code = score_cut(c, &t);
        if (!code)
            code = score_run(c, &t, models, n);
        if (!code && c->value[OPT_JSON].set)
            print_json(&t, models, n);
        else if (!code)
            print_text(&t, models, n);
    }
    for (int i = 0; i < n; i++)
        score_close(&models[i]);
    free(ids);
    free(text);
    return code;
}
