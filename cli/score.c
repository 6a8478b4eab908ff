#include "score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 }; /* rows of logits at a time */

/* What the reference says of one row. */
typedef struct ref_row {
    double lse;   /* log of the sum of exp(logit) */
    double total; /* sum of exp(logit - largest) */
    int32_t top;
} ref_row;

typedef struct row_job {
    const float *logits;    /* [rows, vocab] of this model */
    const float *reference; /* [rows, vocab] of the reference */
    float *weights;         /* [rows, vocab] exp(reference logit - its largest) */
    const int32_t *targets;
    int64_t vocab;
    ref_row ref[ROWS];
    double nll[ROWS], kl[ROWS];
    int same[ROWS];
    int is_reference;
} row_job;

static int32_t largest(const float *x, int64_t n)
{
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = (int32_t)i;
    return best;
}

/* One row: nll of its target, KL against the reference, same top id. Sums run in
 * order and in double, so they do not depend on threads. */
static void score_row(void *user, int64_t row, int32_t thread)
{
    (void)thread;
    row_job *j = user;
    const float *x = j->logits + row * j->vocab, *y = j->reference + row * j->vocab;
    float *w = j->weights + row * j->vocab;
    ref_row *ref = &j->ref[row];
    int32_t top = largest(x, j->vocab);
    float most = x[top];
    double total = 0, divergence = 0;
    if (j->is_reference) {
        for (int64_t i = 0; i < j->vocab; i++) {
            w[i] = expf(x[i] - most);
            total += (double)w[i];
        }
        *ref = (ref_row){.lse = (double)most + log(total), .total = total, .top = top};
        j->kl[row] = 0;
        j->nll[row] = ref->lse - (double)x[j->targets[row]];
        j->same[row] = 1;
        return;
    }
    for (int64_t i = 0; i < j->vocab; i++) {
        total += (double)expf(x[i] - most);
        if (w[i] > 0)
            divergence += (double)w[i] * ((double)y[i] - (double)x[i]);
    }
    double lse = (double)most + log(total);
    double kl = divergence / ref->total - ref->lse + lse;
    j->kl[row] = kl < 0 ? 0 : kl; /* rounding only: it cannot be negative */
    j->nll[row] = lse - (double)x[j->targets[row]];
    j->same[row] = top == ref->top;
}

int score_cut(cli *c, score_text *t)
{
    if (t->stride <= 0 || t->stride > t->chunk)
        t->stride = t->chunk;
    if (t->count < t->chunk) {
        t->chunk = t->count;
        t->stride = t->count;
    }
    if (t->chunk < 4)
        return cli_fail(c, EXIT_INPUT, "the text has %lld tokens; scoring needs at least 4", (long long)t->count);
    t->chunks = 1 + (t->count - t->chunk) / t->stride;
    t->scored_tokens = t->chunks * (t->chunk - t->chunk / 2 - 1);
    return 0;
}

int score_open(cli *c, scored *s, const char *path, cli_form form, int64_t chunk)
{
    s->path = path;
    int code = cli_open_model(c, path, form, &s->model);
    if (code)
        return code;
    qn_model_get_info(s->model, &s->info);
    qn_model_get_kv(s->model, &s->kv);
    qn_model_get_activations(s->model, &s->activations);
    const int coded = strcmp(s->kv.scheme, QN_KV_DEFAULT) != 0;
    snprintf(s->label, sizeof s->label, "%s%s%s%s%s", s->info.scheme, s->activations.layers ? "+" : "",
             s->activations.layers ? s->activations.name : "", coded ? "+" : "", coded ? s->kv.scheme : "");
    return cli_open_session(c, s->model, chunk, c->value[OPT_BATCH].i, &s->session);
}

void score_close(scored *s)
{
    qn_session_destroy(s->session);
    qn_model_close(s->model);
    free(s->kl);
    memset(s, 0, sizeof *s);
}

static int take_rows(cli *c, scored *s, const row_job *j, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        if (!isfinite(j->nll[i]) || !isfinite(j->kl[i]))
            return cli_fail(c, EXIT_FAILED, "%s: logits after %lld scored tokens are not finite", s->path,
                            (long long)s->count);
        s->nll += j->nll[i];
        s->nll_squared += j->nll[i] * j->nll[i];
        if (s->kl)
            s->kl[s->count] = (float)j->kl[i];
        s->same_top += j->same[i];
        s->count++;
    }
    return 0;
}

/* The chunk's first half without logits, timed. */
static int eval_context(cli *c, scored *s, const int32_t *ids, int64_t count)
{
    qn_error error = {0};
    int64_t batch = c->value[OPT_BATCH].i;
    int code = cli_check(c, qn_session_truncate(s->session, 0, &error), &error, PHASE_RUN);
    double start = cli_now();
    for (int64_t at = 0; at < count && !code; at += batch) {
        int64_t n = count - at < batch ? count - at : batch;
        code = cli_interrupted() ? EXIT_SIGNAL
                                 : cli_check(c, qn_session_eval(s->session, ids + at, (int32_t)n, 0, NULL, &error),
                                             &error, PHASE_RUN);
    }
    s->context_seconds += cli_now() - start;
    s->context_tokens += (double)count;
    return code;
}

static int score_chunk(cli *c, const score_text *t, const int32_t *ids, scored *models, int n, float *first,
                       float *other, row_job *j)
{
    qn_error error = {0};
    int code = 0;
    int64_t half = t->chunk / 2;
    for (int m = 0; m < n && !code; m++)
        code = eval_context(c, &models[m], ids, half);
    for (int64_t at = half; at < t->chunk - 1 && !code;) {
        int64_t rows = t->chunk - 1 - at;
        if (rows > ROWS)
            rows = ROWS;
        if (rows > c->value[OPT_BATCH].i)
            rows = c->value[OPT_BATCH].i;
        for (int m = 0; m < n && !code; m++) {
            float *logits = m == 0 ? first : other;
            if (cli_interrupted())
                return EXIT_SIGNAL;
            code = cli_check(c, qn_session_eval(models[m].session, ids + at, (int32_t)rows, 1, logits, &error), &error,
                             PHASE_RUN);
            if (code)
                break;
            j->logits = logits;
            j->reference = first;
            j->targets = ids + at + 1;
            j->is_reference = m == 0;
            qn_parallel_for(&c->exec, rows, score_row, j);
            code = take_rows(c, &models[m], j, rows);
        }
        at += rows;
    }
    return code;
}

int score_run(cli *c, const score_text *t, scored *models, int n)
{
    int64_t vocab = models[0].info.vocab_size;
    for (int m = 1; m < n; m++) {
        if (models[m].info.vocab_size != vocab)
            return cli_fail(c, EXIT_INPUT, "%s has a vocabulary of %d tokens, %s one of %d: they cannot be compared",
                            models[m].path, models[m].info.vocab_size, models[0].path, models[0].info.vocab_size);
        models[m].kl = cli_alloc((size_t)t->scored_tokens, sizeof(float));
        if (!models[m].kl)
            return cli_memory(c, "the divergences");
    }
    size_t floats = (size_t)vocab * ROWS;
    float *first = cli_alloc(floats, sizeof *first), *weights = cli_alloc(floats, sizeof *weights);
    float *other = n > 1 ? cli_alloc(floats, sizeof *other) : first;
    int32_t *ids = cli_alloc((size_t)t->chunk, sizeof *ids);
    row_job *j = cli_alloc(1, sizeof *j);
    int code = first && weights && other && ids && j ? 0 : cli_memory(c, "the logits");
    for (int64_t i = 0; i < t->count && !code; i++)
        if (t->ids[i] < 0 || t->ids[i] >= vocab)
            code =
                cli_fail(c, EXIT_INPUT, "token id %d is outside the vocabulary of %lld", t->ids[i], (long long)vocab);
    if (!code) {
        j->weights = weights;
        j->vocab = vocab;
    }
    for (int64_t k = 0; k < t->chunks && !code; k++) {
        memcpy(ids, t->ids + k * t->stride, (size_t)t->chunk * sizeof *ids);
        if (t->bos >= 0)
            ids[0] = t->bos;
        code = score_chunk(c, t, ids, models, n, first, other, j);
        scored *last = &models[n - 1];
        char text[80];
        snprintf(text, sizeof text, "chunk %lld of %lld, perplexity %.4f", (long long)k + 1, (long long)t->chunks,
                 last->count ? exp(last->nll / (double)last->count) : 0.0);
        if (!code)
            cli_progress(c, (double)(k + 1) / (double)t->chunks, text);
    }
    cli_progress_end(c);
    free(first);
    if (n > 1)
        free(other);
    free(weights);
    free(ids);
    free(j);
    return code;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

score_summary score_sum(const scored *s)
{
    score_summary r = {0};
    double n = (double)s->count, mean = s->nll / n;
    double variance = s->nll_squared / n - mean * mean;
    r.perplexity = exp(mean);
    r.perplexity_error = n > 1 && variance > 0 ? r.perplexity * sqrt(variance / (n - 1)) : 0;
    r.same_top = (double)s->same_top / n;
    if (!s->kl)
        return r;
    for (int64_t i = 0; i < s->count; i++)
        r.kl_mean += (double)s->kl[i] / n;
    qsort(s->kl, (size_t)s->count, sizeof *s->kl, compare_floats);
    r.kl_median = (double)s->kl[s->count / 2];
    r.kl_99 = (double)s->kl[(s->count - 1) * 99 / 100];
    r.kl_max = (double)s->kl[s->count - 1];
    return r;
}
