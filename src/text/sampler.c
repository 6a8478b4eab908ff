/* Choosing the next token. All memory is taken at creation; a draw allocates
 * nothing and is a function of the options, the logits and the tokens before.
 * Probabilities are summed in double in one fixed order, best first, so that a
 * seed gives the same tokens wherever expf's double sibling gives the same bits;
 * options are ranked only as far as the draw looks. */
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
            const option moved = options[0];
            options[0] = options[i];
            options[i] = moved;
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

/* Options of which the first `sorted` are the best, best first. */
typedef struct ranking {
    option *options;
    size_t count, sorted;
} ranking;

/* At least k of them, where there are so many. */
static void rank(ranking *r, size_t k)
{
    k = k < r->count ? k : r->count;
    if (k > r->sorted) {
        sort_best(r->options + r->sorted, r->count - r->sorted, k - r->sorted);
        r->sorted = k;
    }
}

/* Integers in the order of the floats; -0 as +0, NaN beyond the infinities. */
static int32_t order_of(float x)
{
    const float y = x + 0.0f;
    int32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

#define BLOCK 512

/* The first of the greatest logits in *best; -1 when there is a NaN or +Inf, or nothing above -Inf. */
static void find_best(const float *logits, int32_t count, int32_t *best)
{
    const int32_t none = order_of(-INFINITY), beyond = order_of(INFINITY);
    int32_t most = none, least = none, at = -1;
    for (int32_t first = 0; first < count; first += BLOCK) {
        const int32_t n = count - first < BLOCK ? count - first : BLOCK;
        int32_t high = INT32_MIN, low = INT32_MAX;
        for (int32_t i = 0; i < n; i++) {
            const int32_t x = order_of(logits[first + i]);
            high = x > high ? x : high;
            low = x < low ? x : low;
        }
        least = low < least ? low : least;
        if (high > most) {
            most = high;
            at = first;
        }
    }
    *best = -1;
    if (at >= 0 && most < beyond && least >= none) {
        while (order_of(logits[at]) != most) {
            at++;
        }
        *best = at;
    }
}

/* The logits with the repeat penalty applied, without those at -Inf, into *count options; of more than `keep` the best
 * `keep` only (0: all), as a heap whose root is the worst. */
static qn_status gather(qn_sampler *s, const float *logits, size_t keep, size_t *count, qn_error *error)
{
    option *const heap = s->options_left;
    size_t n = 0;
    const float penalty =
        s->options.temperature > 0 ? s->options.repeat_penalty : 1.0f; /* greedy takes logits as they are */
    for (int32_t id = 0; id < s->vocab_size; id++) {
        float x = logits[id];
        QN_FAIL_IF(isnan(x) || x == INFINITY, error, QN_E_ARGUMENT, "logit %d is %s, expected a finite number or -Inf",
                   id, isnan(x) ? "NaN" : "+Inf");
        if (penalty != 1.0f && s->seen[id]) {
            x = x > 0 ? x / penalty : x * penalty;
            x = isinf(x) && x > 0 ? 3.402823466e38f : x;
        }
        if (keep && n == keep) {
            if (x > heap[0].logit) { /* of equals the earlier is the better */
                heap[0] = (option){.logit = x, .id = id};
                sink(heap, keep, 0);
            }
        } else if (x != -INFINITY) {
            heap[n++] = (option){.logit = x, .id = id};
            for (size_t i = keep / 2; n == keep && i-- > 0;) {
                sink(heap, keep, i);
            }
        }
    }
    QN_FAIL_IF(!n, error, QN_E_ARGUMENT, "all %d logits are -Inf, so there is nothing to draw", s->vocab_size);
    *count = n;
    return QN_OK;
}

/* weight = exp((logit - best) / temperature) of the first k; returns the sum. */
static double weigh(ranking *r, size_t k, double temperature)
{
    double sum = 0;
    const double best = (double)r->options[0].logit;
    for (size_t i = 0; i < k; i++) {
        r->options[i].weight = exp(((double)r->options[i].logit - best) / temperature);
        sum += r->options[i].weight;
    }
    return sum;
}

#define STEP 128   /* options ranked at first; then eight times as many */
#define SLACK 1e-9 /* relative; far above what sums in another order differ by */

/* Sums over options that are not ranked yet are in another order than over ranked ones. Where that could matter to a
 * comparison, rank all: then sums are in the one order that defines the result. */
static int must_rank_all(ranking *r, size_t k, double distance, double sum)
{
    if (r->sorted >= k || fabs(distance) > SLACK * sum) {
        return 0;
    }
    rank(r, k);
    return 1;
}

/* How many of the first k options top_p and min_p leave. */
static size_t cut(ranking *r, size_t k, double top_p, double min_p)
{
    double sum = weigh(r, k, 1.0), reached = 0;
    for (size_t kept = 0; kept < k; kept++) {
        if (kept == r->sorted) {
            rank(r, kept * 8 < k ? kept * 8 : k);
        }
        const double weight = r->options[kept].weight;
        if (kept > 0 && weight < min_p) { /* relative to the best, whose weight is 1; so are all behind it */
            return kept;
        }
        reached += weight;
        if (top_p < 1 && must_rank_all(r, k, reached - top_p * sum, sum)) {
            sum = weigh(r, k, 1.0);
        }
        if (top_p < 1 && reached >= top_p * sum) { /* the fewest that reach top_p */
            return kept + 1;
        }
    }
    return k;
}

/* The option at share u, 0 <= u < 1, of the first k options' weights. */
static int32_t pick(ranking *r, size_t k, double temperature, double u)
{
    double sum = weigh(r, k, temperature), rest = u * sum;
    for (size_t i = 0; i < k; i++) {
        if (i == r->sorted) {
            rank(r, i * 8 < k ? i * 8 : k);
        }
        rest -= r->options[i].weight;
        if (must_rank_all(r, k, rest, sum)) {
            return pick(r, k, temperature, u);
        }
        if (rest < 0) {
            return r->options[i].id;
        }
    }
    return r->options[0].id; /* rounding only */
}

static int32_t draw(qn_sampler *s, size_t count)
{
    const qn_sampler_options *o = &s->options;
    ranking r = {.options = s->options_left, .count = count};
    size_t k = o->top_k > 0 && (size_t)o->top_k < count ? (size_t)o->top_k : count;
    rank(&r, k < STEP ? k : STEP);
    if (o->top_p < 1 || o->min_p > 0) {
        k = cut(&r, k, (double)o->top_p, (double)o->min_p);
    }
    return pick(&r, k, (double)o->temperature, qn_rng_uniform(&s->rng));
}

qn_status qn_sampler_draw(qn_sampler *sampler, const float *logits, int32_t *id, qn_error *error)
{
    QN_FAIL_IF(!sampler || !logits || !id, error, QN_E_ARGUMENT, "draw got NULL for the sampler, logits or id");
    *id = -1;
    size_t count = 0;
    const int32_t top_k = sampler->options.top_k;
    if (sampler->options.temperature > 0) {
        const size_t keep = top_k > 0 && top_k < sampler->vocab_size ? (size_t)top_k : 0;
        QN_TRY(gather(sampler, logits, keep, &count, error));
        *id = draw(sampler, count);
    } else {
        find_best(logits, sampler->vocab_size, id);
        if (*id < 0) {
            return gather(sampler, logits, 1, &count, error); /* says why */
        }
    }
    qn_sampler_accept(sampler, *id);
    return QN_OK;
}
