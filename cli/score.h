/* Scoring a text: perplexity of models, and their divergence from a reference,
 * chunk by chunk with all models in step. */
#ifndef QN_CLI_SCORE_H
#define QN_CLI_SCORE_H

#include "cli.h"

/* One model under test. */
typedef struct scored {
    const char *path;
    qn_model *model;
    qn_session *session;
    qn_model_info info;
    qn_model_kv kv;
    qn_model_activations activations;
    char label[48];                         /* scheme of the weights, and what is not as it is by default */
    int64_t count;                          /* tokens scored */
    double nll, nll_squared;                /* sums over them */
    float *kl;                              /* KL(reference || this) of each, in nats; NULL for the reference itself */
    int64_t same_top;                       /* tokens where both find the same id most likely */
    double context_tokens, context_seconds; /* evaluations without logits */
} scored;

typedef struct score_text {
    const int32_t *ids;
    int64_t count;         /* of ids */
    int64_t chunk, stride; /* tokens */
    int64_t chunks;
    int64_t scored_tokens; /* of the whole text */
    int32_t bos;           /* in place of each chunk's first token; -1: none */
} score_text;

typedef struct score_summary {
    double perplexity, perplexity_error, kl_mean, kl_median, kl_99, kl_max, same_top; /* same_top in [0, 1] */
} score_summary;

/* Cut the text: fills the derived fields; fails when it is too short. */
int score_cut(cli *c, score_text *text);

/* Open model and session for chunks of that many tokens. */
int score_open(cli *c, scored *s, const char *path, cli_form form, int64_t chunk);
void score_close(scored *s);

/* Score the text with models[0..n): models[0] is the reference of the others. */
int score_run(cli *c, const score_text *text, scored *models, int n);

score_summary score_sum(const scored *s);

#endif
