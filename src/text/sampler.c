/* Choosing the next token. All memory is taken at creation; a draw allocates
 * nothing and is a function of the options, the logits and the tokens before.
 * Probabilities are summed in double in one fixed order, so that a seed gives
 * the same tokens wherever expf's double sibling gives the same bits. */
#include <math.h>
#include <string.h>

#include <quern/text.h>

#include "base/context.h"
#include "base/error.h"
#include "base/rng.h"

#define MAX_VOCAB (1 << 26)
#define MAX_LAST (1 << 20)

typedef struct option {
    float logit;
    int32_t id;
    double weight;
} option;

struct qn_sampler {
    const qn_ctx *ctx;
    qn_sampler_options options;
    int32_t vocab_size;
    qn_rng rng;
    option *options_left; /* [vocab_size] */
    int32_t *last;        /* ring of the last tokens, [repeat_last] */
    int32_t last_count, last_at;
    int32_t *seen; /* [vocab_size]: how often a token is in the ring */
};

void qn_sampler_options_init(qn_sampler_options *options)
{
    if (options) {
        *options = (qn_sampler_options){.size = sizeof *options,
                                        .temperature = 0.0f,
                                        .top_k = 40,
                                        .top_p = 0.95f,
                                        .min_p = 0.05f,
                                        .repeat_penalty = 1.0f,
                                        .repeat_last = 64,
                                        .seed = 0};
    }
}

qn_status qn_sampler_create(qn_ctx *ctx, const qn_sampler_options *options, int32_t vocab_size, qn_sampler **out,
                            qn_error *error)
{
    QN_FAIL_IF(!out, error, QN_E_ARGUMENT, "sampler creation got NULL for out");
    *out = NULL;
    QN_FAIL_IF(!ctx, error, QN_E_ARGUMENT, "sampler creation got NULL for the context");
    qn_sampler_options o;
    qn_sampler_options_init(&o);
    if (options) {
        QN_FAIL_IF(options->size != sizeof *options, error, QN_E_ARGUMENT,
                   "qn_sampler_options.size is %zu, expected %zu", options->size, sizeof *options);
        o = *options;
    }
    QN_FAIL_IF(vocab_size <= 0 || vocab_size > MAX_VOCAB, error, QN_E_ARGUMENT, "vocab_size is %d, expected 1 to %d",
               vocab_size, MAX_VOCAB);
    QN_FAIL_IF(!(o.temperature >= 0) || isinf(o.temperature), error, QN_E_ARGUMENT,
               "temperature is %g, expected 0 or more", (double)o.temperature);
    QN_FAIL_IF(o.top_k < 0, error, QN_E_ARGUMENT, "top_k is %d, expected 0 (off) or more", o.top_k);
    QN_FAIL_IF(!(o.top_p > 0 && o.top_p <= 1), error, QN_E_ARGUMENT, "top_p is %g, expected more than 0 and at most 1",
               (double)o.top_p);
    QN_FAIL_IF(!(o.min_p >= 0 && o.min_p <= 1), error, QN_E_ARGUMENT, "min_p is %g, expected 0 to 1", (double)o.min_p);
    QN_FAIL_IF(!(o.repeat_penalty > 0) || isinf(o.repeat_penalty), error, QN_E_ARGUMENT,
               "repeat_penalty is %g, expected more than 0", (double)o.repeat_penalty);
    QN_FAIL_IF(o.repeat_last < 0 || o.repeat_last > MAX_LAST, error, QN_E_ARGUMENT,
               "repeat_last is %d, expected 0 to %d", o.repeat_last, MAX_LAST);
    qn_sampler *s = qn_calloc(ctx, 1, sizeof *s);
    QN_FAIL_IF(!s, error, QN_E_MEMORY, "out of memory for the sampler");
    s->ctx = ctx;
    s->options = o;
    s->vocab_size = vocab_size;
    s->rng.state = o.seed;
    s->options_left = qn_calloc(ctx, (size_t)vocab_size, sizeof *s->options_left);
    s->last = qn_calloc(ctx, (size_t)o.repeat_last + 1, sizeof *s->last);
    s->seen = qn_calloc(ctx, (size_t)vocab_size, sizeof *s->seen);
    if (!s->options_left || !s->last || !s->seen) {
        qn_sampler_destroy(s);
        QN_FAIL(error, QN_E_MEMORY, "out of memory for a sampler over %d tokens", vocab_size);
    }
    *out = s;
    return QN_OK;
}

void qn_sampler_destroy(qn_sampler *sampler)
{
    if (sampler) {
        const qn_ctx *ctx = sampler->ctx;
        qn_free(ctx, sampler->options_left);
        qn_free(ctx, sampler->last);
        qn_free(ctx, sampler->seen);
        qn_free(ctx, sampler);
    }
}

void qn_sampler_accept(qn_sampler *sampler, int32_t id)
{
    if (!sampler || id < 0 || id >= sampler->vocab_size || !sampler->options.repeat_last) {
        return;
    }
    if (sampler->last_count == sampler->options.repeat_last) {
        sampler->seen[sampler->last[sampler->last_at]]--;
    } else {
        sampler->last_count++;
    }
    sampler->last[sampler->last_at] = id;
    sampler->last_at = (sampler->last_at + 1) % sampler->options.repeat_last;
    sampler->seen[id]++;
}

/* Total order: higher logit first, then lower id. */
static int better(const option *a, const option *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Sink entry i of a heap whose root is the worst of its entries. */
static void sink(option *heap, size_t count, size_t i)
{
    const option moved = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && better(&heap[child], &heap[child + 1])) {
            child++;
        }
        if (!better(&moved, &heap[child])) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Bring the best k of count to the front, best first: O(count log k). */
static void sort_best(option *options, size_t count, size_t k)
{
    for (size_t i = k / 2; i-- > 0;) {
        sink(options, k, i);
    }
    for (size_t i = k; i < count; i++) {
        if (better(&options[i], &options[0])) {
            options[0] = options[i];
            sink(options, k, 0);
        }
    }
    for (size_t n = k; n > 1; n--) {
        const option worst = options[0];
        options[0] = options[n - 1];
        options[n - 1] = worst;
        sink(options, n - 1, 0);
    }
}

/* The candidates with the repeat penalty applied, without those at -Inf. */
static qn_status gather(qn_sampler *s, const float *logits, size_t *count, qn_error *error)
{
    size_t n = 0;
    const float penalty =
        s->options.temperature > 0 ? s->options.repeat_penalty : 1.0f; /* greedy takes logits as they are */
    for (int32_t id = 0; id < s->vocab_size; id++) {
        float x = logits[id];
        QN_FAIL_IF(isnan(x) || x == INFINITY, error, QN_E_ARGUMENT, "logit %d is %s, expected a finite number or -Inf",
                   id, isnan(x) ? "NaN" : "+Inf");
        if (s->seen[id] && penalty != 1.0f) {
            x = x > 0 ? x / penalty : x * penalty;
            x = isinf(x) && x > 0 ? 3.402823466e38f : x;
        }
        if (x != -INFINITY) {
            s->options_left[n++] = (option){.logit = x, .id = id};
        }
    }
    QN_FAIL_IF(!n, error, QN_E_ARGUMENT, "all %d logits are -Inf, so there is nothing to draw", s->vocab_size);
    *count = n;
    return QN_OK;
}

/* weight = exp((logit - best) / temperature); returns the sum. */
static double weigh(option *options, size_t count, double temperature)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        options[i].weight = exp(((double)options[i].logit - (double)options[0].logit) / temperature);
        sum += options[i].weight;
    }
    return sum;
}

static int32_t draw(qn_sampler *s, size_t count)
{
    const qn_sampler_options *o = &s->options;
    option *left = s->options_left;
    size_t k = o->top_k > 0 && (size_t)o->top_k < count ? (size_t)o->top_k : count;
    sort_best(left, count, k);
    if (o->top_p < 1 || o->min_p > 0) {
        double sum = weigh(left, k, 1.0), reached = 0;
        size_t kept = 0;
        while (kept < k) { /* the fewest that reach top_p */
            reached += left[kept++].weight;
            if (o->top_p < 1 && reached >= (double)o->top_p * sum) {
                break;
            }
        }
        k = kept;
        while (k > 1 && left[k - 1].weight < (double)o->min_p) { /* relative to the best, whose weight is 1 */
            k--;
        }
    }
    const double sum = weigh(left, k, (double)o->temperature);
    double r = qn_rng_uniform(&s->rng) * sum;
    for (size_t i = 0; i < k; i++) {
        r -= left[i].weight;
        if (r < 0) {
            return left[i].id;
        }
    }
    return left[0].id; /* rounding only */
}

qn_status qn_sampler_draw(qn_sampler *sampler, const float *logits, int32_t *id, qn_error *error)
{
    QN_FAIL_IF(!sampler || !logits || !id, error, QN_E_ARGUMENT, "draw got NULL for the sampler, logits or id");
    *id = -1;
    size_t count = 0;
    QN_TRY(gather(sampler, logits, &count, error));
    if (sampler->options.temperature > 0) {
        *id = draw(sampler, count);
    } else {
        size_t best = 0;
        for (size_t i = 1; i < count; i++) {
            best = better(&sampler->options_left[i], &sampler->options_left[best]) ? i : best;
        }
        *id = sampler->options_left[best].id;
    }
    qn_sampler_accept(sampler, *id);
    return QN_OK;
}
