/* Law 2 at the model: the logits' bits of a sequence depend neither on how its text
 * is cut into calls and passes, nor on the sequences evaluated beside it, nor on
 * threads. Random mixes, against each text evaluated alone, token by token, on one
 * thread at the same level: on a synthetic model in every scheme at every level of
 * the machine, on ones with biases and norms of heads, and on the real model (its path in QN_TEST_MODEL).
 * QN_TEST_MIXES: how many mixes (40); from 1000 on the real model too runs every scheme and level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <quern/quern.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/rng.h"
#include "quant/synthetic.h"

#define SEED 20241121u
#define TEXTS 3
#define MOST_TOKENS 16
#define MOST_MATES 4

static qn_ctx *ctx;
static qn_pool *pools[4];
static qn_rng rng = {SEED};
static const char *source; /* the model file */
static char folder[] = "/tmp/quern-batches-XXXXXX";

static int32_t below(int32_t n)
{
    return (int32_t)(qn_rng_next(&rng) % (uint64_t)n);
}

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("seed %u, %s: %s: %s", SEED, what, qn_status_name(status), error->text);
    }
}

/* A model at a level, texts, and the logits of every token of them. */
typedef struct instance {
    qn_model *model;
    const char *scheme;
    qn_isa isa;
    int32_t vocab, length[TEXTS];
    int32_t ids[TEXTS][MOST_TOKENS];
    float *logits[TEXTS]; /* [length, vocab] */
} instance;

static qn_session *session_of(const instance *m, qn_exec exec)
{
    qn_session_options options;
    qn_session_options_init(&options);
    options.context_length = MOST_TOKENS;
    options.batch = 1 + below(5);
    options.exec = exec;
    qn_session *session;
    qn_error error = {QN_OK, ""};
    must(qn_session_create(m->model, &options, &session, &error), &error, m->scheme);
    return session;
}

/* Random texts and their logits: alone, one token at a time, on the calling thread. */
static void make_texts(instance *m, int32_t most)
{
    qn_error error = {QN_OK, ""};
    for (int32_t t = 0; t < TEXTS; t++) {
        m->length[t] = 1 + below(most);
        m->logits[t] = malloc((size_t)m->length[t] * (size_t)m->vocab * sizeof(float));
        assert_non_null(m->logits[t]);
        qn_session *session = session_of(m, (qn_exec){0});
        for (int32_t i = 0; i < m->length[t]; i++) {
            m->ids[t][i] = below(m->vocab);
            must(qn_session_eval(session, &m->ids[t][i], 1, 0, m->logits[t] + (size_t)i * (size_t)m->vocab, &error),
                 &error, m->scheme);
        }
        qn_session_destroy(session);
    }
}

/* One sequence of a mix. */
typedef struct mate {
    qn_session *session;
    int32_t text, done;
} mate;

static void compare(const instance *m, const mate *s, const qn_batch_item *item, int32_t mix, int32_t threads)
{
    for (int32_t i = 0; item->logits && i < item->count; i++) {
        if (!item->all && i < item->count - 1) {
            continue;
        }
        const float *got = item->logits + (item->all ? (size_t)i * (size_t)m->vocab : 0);
        const float *want = m->logits[s->text] + (size_t)(s->done + i) * (size_t)m->vocab;
        for (int32_t v = 0; v < m->vocab; v++) {
            if (memcmp(got + v, want + v, sizeof *got) != 0) {
                fail_msg("seed %u, %s at %s, mix %d, %d threads, text %d of %d tokens, token %d: logit %d is %.9g, "
                         "alone %.9g",
                         SEED, m->scheme, qn_isa_name(m->isa), mix, threads, s->text, m->length[s->text], s->done + i,
                         v, (double)got[v], (double)want[v]);
            }
        }
    }
}

/* Random next tokens of some sequences: at least one item, in random order. */
static int32_t choose(const instance *m, mate *mates, int32_t count, qn_batch_item *items, int32_t *of, float *memory)
{
    int32_t n = 0;
    while (n == 0) {
        for (int32_t i = 0; i < count; i++) {
            const int32_t left = m->length[mates[i].text] - mates[i].done;
            if (left == 0 || below(3) == 0) {
                continue;
            }
            const int32_t j = below(n + 1); /* items in any order */
            items[n] = items[j];
            of[n] = of[j];
            const int32_t all = below(3) == 0;
            items[j] = (qn_batch_item){.session = mates[i].session,
                                       .ids = m->ids[mates[i].text] + mates[i].done,
                                       .count = below(3) ? 1 + below(left) : 1,
                                       .all = all,
                                       .logits = below(6) ? memory + (size_t)i * MOST_TOKENS * (size_t)m->vocab : NULL};
            of[j] = i;
            n++;
        }
    }
    return n;
}

static void run_mix(const instance *m, int32_t mix, float *memory)
{
    static const int32_t tokens[] = {1, 2, 3, 5, 8, 9, 16, 17, 40};
    const int32_t threads = 1 + below(4), count = 1 + below(MOST_MATES);
    const qn_exec exec = {.pool = pools[threads - 1]};
    qn_batch_options options;
    qn_batch_options_init(&options);
    options.tokens = tokens[below(9)];
    options.exec = exec;
    qn_batch *batch;
    qn_error error = {QN_OK, ""};
    must(qn_batch_create(m->model, &options, &batch, &error), &error, m->scheme);
    mate mates[MOST_MATES];
    int32_t left = 0;
    for (int32_t i = 0; i < count; i++) {
        mates[i] = (mate){.session = session_of(m, exec), .text = below(TEXTS)};
        left += m->length[mates[i].text];
    }
    while (left > 0) {
        qn_batch_item items[MOST_MATES];
        int32_t of[MOST_MATES];
        const int32_t n = choose(m, mates, count, items, of, memory);
        const qn_status status = n == 1 && below(2) ? qn_session_eval(items[0].session, items[0].ids, items[0].count,
                                                                      items[0].all, items[0].logits, &error)
                                                    : qn_batch_eval(batch, items, n, &error);
        must(status, &error, m->scheme);
        for (int32_t i = 0; i < n; i++) {
            mate *const s = &mates[of[i]];
            compare(m, s, &items[i], mix, threads);
            s->done += items[i].count;
            left -= items[i].count;
            assert_int_equal(qn_session_length(s->session), s->done);
            if (below(8) == 0) { /* and once more from an earlier place */
                const int32_t back = below(s->done + 1);
                must(qn_session_truncate(s->session, back, &error), &error, m->scheme);
                left += s->done - back;
                s->done = back;
            }
        }
    }
    for (int32_t i = 0; i < count; i++) {
        qn_session_destroy(mates[i].session);
    }
    qn_batch_destroy(batch);
}

#define STRIPS_ROWS 208 /* of a pass whose rows two threads take through many steps by themselves */

/* Whole texts again and again in one pass of more rows than are done step by step. */
static void run_together(const instance *m, int32_t most_rows, int32_t threads)
{
    enum { MOST_ITEMS = STRIPS_ROWS };
    qn_batch_options options;
    qn_batch_options_init(&options);
    options.tokens = most_rows + MOST_TOKENS;
    options.exec = (qn_exec){.pool = pools[threads - 1]};
    qn_batch *batch;
    qn_error error = {QN_OK, ""};
    must(qn_batch_create(m->model, &options, &batch, &error), &error, m->scheme);
    float *const memory = malloc((size_t)options.tokens * (size_t)m->vocab * sizeof *memory);
    assert_non_null(memory);
    mate mates[MOST_ITEMS];
    qn_batch_item items[MOST_ITEMS];
    int32_t count = 0;
    for (int32_t rows = 0; rows < most_rows; count++) {
        const int32_t t = count % TEXTS;
        mates[count] = (mate){.session = session_of(m, options.exec), .text = t};
        items[count] = (qn_batch_item){.session = mates[count].session,
                                       .ids = m->ids[t],
                                       .count = m->length[t],
                                       .all = 1,
                                       .logits = memory + (size_t)rows * (size_t)m->vocab};
        rows += m->length[t];
    }
    must(qn_batch_eval(batch, items, count, &error), &error, m->scheme);
    for (int32_t i = 0; i < count; i++) {
        compare(m, &mates[i], &items[i], -1, threads);
        qn_session_destroy(mates[i].session);
    }
    free(memory);
    qn_batch_destroy(batch);
}

/* One text that two threads take in one pass, against one thread in short passes. */
static void run_long(const instance *m)
{
    const size_t bytes = (size_t)STRIPS_ROWS * (size_t)m->vocab * sizeof(float);
    int32_t ids[STRIPS_ROWS];
    float *logits[2];
    for (int32_t i = 0; i < STRIPS_ROWS; i++) {
        ids[i] = below(m->vocab);
    }
    for (int i = 0; i < 2; i++) {
        qn_session_options options;
        qn_session_options_init(&options);
        options.context_length = STRIPS_ROWS;
        options.batch = i ? 40 : STRIPS_ROWS;
        options.exec = (qn_exec){.pool = pools[i ? 0 : 1]};
        qn_session *session;
        qn_error error = {QN_OK, ""};
        logits[i] = malloc(bytes);
        assert_non_null(logits[i]);
        must(qn_session_create(m->model, &options, &session, &error), &error, m->scheme);
        must(qn_session_eval(session, ids, STRIPS_ROWS, 1, logits[i], &error), &error, m->scheme);
        qn_session_destroy(session);
    }
    if (memcmp(logits[0], logits[1], bytes) != 0) {
        fail_msg("seed %u, %s at %s: a long text by two threads", SEED, m->scheme, qn_isa_name(m->isa));
    }
    free(logits[0]);
    free(logits[1]);
}

/* Mixes on one scheme at one level, and passes of many rows on a small model. */
static void run_instance(const char *path, const char *scheme, qn_activations activations, qn_isa isa, int32_t most,
                         int32_t first, int32_t mixes, int small)
{
    instance m = {.scheme = scheme, .isa = isa};
    qn_model_options options;
    qn_model_options_init(&options);
    options.plan.isa = isa;
    options.activations = activations;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, path, &options, &m.model, &error), &error, scheme);
    qn_model_info info;
    qn_model_get_info(m.model, &info);
    m.vocab = info.vocab_size;
    make_texts(&m, most);
    float *memory = malloc((size_t)MOST_MATES * MOST_TOKENS * (size_t)m.vocab * sizeof *memory);
    assert_non_null(memory);
    for (int32_t i = 0; i < mixes; i++) {
        run_mix(&m, first + i, memory);
    }
    free(memory);
    run_together(&m, 40, 1 + below(4));
    if (small) {
        run_together(&m, STRIPS_ROWS, 2);
        run_long(&m);
    }
    for (int32_t t = 0; t < TEXTS; t++) {
        free(m.logits[t]);
    }
    qn_model_close(m.model);
}

/* A model of that many layers with one layer (or all) in that scheme and the others in BF16, in the test's folder.
 * One layer of a large model takes every kernel that all would take, and a fraction of the time to quantise. */
static void quantize(const char *from, const char *scheme, int32_t layers, int one, char *path, size_t capacity)
{
    char text[64];
    snprintf(text, sizeof text, "%s/text", folder);
    FILE *file = fopen(text, "w");
    assert_non_null(file);
    fputs("A quern is a hand mill: its upper stone turns on the lower one and grinds the grain between them.\n", file);
    assert_int_equal(fclose(file), 0);
    snprintf(path, capacity, "%s/%s", folder, scheme);
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.scheme = scheme;
    options.calibration = text;
    options.keep_first = one ? layers / 2 : 0;
    options.keep_last = one ? layers - layers / 2 - 1 : 0;
    options.keep_qkv = 0;
    options.exec.pool = pools[1];
    qn_quantize_result result;
    qn_error error = {QN_OK, ""};
    must(qn_quantize(ctx, from, path, &options, &result, &error), &error, scheme);
}

static void need_model(void)
{
    if (!source) {
        print_message("skipped: QN_TEST_MODEL does not name the model file\n");
        skip();
    }
}

static int32_t wanted_mixes(void)
{
    const char *text = getenv("QN_TEST_MIXES");
    const int32_t n = text ? (int32_t)strtol(text, NULL, 10) : 0;
    return n > 0 ? n : 40;
}

static int32_t layers_of(const char *model)
{
    qn_checkpoint *checkpoint;
    qn_error error = {QN_OK, ""};
    must(qn_checkpoint_open(ctx, model, &checkpoint, &error), &error, model);
    qn_model_info info;
    qn_checkpoint_get_info(checkpoint, &info);
    qn_checkpoint_close(checkpoint);
    return info.layers;
}

/* Levels of this machine. */
static int32_t levels(qn_isa list[QN_ISA_COUNT])
{
    int32_t n = 0;
    for (int i = QN_ISA_SCALAR; i < QN_ISA_COUNT; i++) {
        if (!qn_backend_cpu_row.isa_refusal(ctx, (qn_isa)i)) {
            list[n++] = (qn_isa)i;
        }
    }
    return n;
}

/* Mixes on a model as it is (scheme NULL) or quantised, at levels [from, to) of the list; returns how many. */
static int32_t run_scheme(const char *model, const char *scheme, int one, int32_t most, int32_t from, int32_t to,
                          int32_t first, int32_t share)
{
    qn_isa isas[QN_ISA_COUNT];
    (void)levels(isas);
    const char *const name = scheme ? scheme : "as it is";
    char path[1024];
    snprintf(path, sizeof path, "%s", model);
    if (scheme) {
        const uint64_t began = qn_clock_ns();
        quantize(model, scheme, layers_of(model), one, path, sizeof path);
        print_message("%s: quantised in %.1f s\n", scheme, (double)(qn_clock_ns() - began) * 1e-9);
    }
    for (int32_t i = from; i < to; i++) {
        const uint64_t began = qn_clock_ns();
        const int32_t length = one && isas[i] == QN_ISA_SCALAR ? 3 : most;
        run_instance(path, name, QN_ACTIVATIONS_STORED, isas[i], length, first, share, !one);
        if (strcmp(name, "nvfp4") == 0 || strcmp(name, "mxfp4") == 0) {
            run_instance(path, name, QN_ACTIVATIONS_INT8, isas[i], length, first, share, !one);
        }
        first += share;
        if (one) {
            print_message("%s at %s: %d mixes, %.1f s\n", name, qn_isa_name(isas[i]), share,
                          (double)(qn_clock_ns() - began) * 1e-9);
        }
    }
    if (scheme) {
        syn_remove(path);
    }
    return first;
}

static int32_t scheme_count(void)
{
    qn_scheme_info info;
    int32_t n = 0;
    while (qn_scheme_at(n, &info) == QN_OK) {
        n++;
    }
    return n;
}

/* The model as it is and in every scheme, at every level. */
static int32_t run_every_scheme(const char *model, int one, int32_t mixes)
{
    qn_isa isas[QN_ISA_COUNT];
    const int32_t isa_count = levels(isas), schemes = scheme_count(), instances = isa_count * (schemes + 1);
    const int32_t share = (mixes + instances - 1) / instances, most = mixes < 1000 ? MOST_TOKENS / 2 : MOST_TOKENS;
    int32_t done = run_scheme(model, NULL, one, most, 0, isa_count, 0, share);
    for (int32_t s = 0; s < schemes; s++) {
        qn_scheme_info info;
        assert_int_equal(qn_scheme_at(s, &info), QN_OK);
        if (mixes < 1000 && (strncmp(info.name, "aqlm", 4) == 0 || strcmp(info.name, "vptq-3") == 0)) {
            print_message("skip: %s takes long to quantise; make check-full runs it\n", info.name);
            continue;
        }
        done = run_scheme(model, info.name, one, most, 0, isa_count, done, share);
    }
    return done;
}

static void mixes_on_a_synthetic_model(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "%s/synthetic", folder);
    syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, SEED);
    assert_int_equal(syn_write(ctx, path, tensors), 0);
    syn_free(tensors);
    const uint64_t began = qn_clock_ns();
    const int32_t done = run_every_scheme(path, 0, wanted_mixes());
    print_message("seed %u: %d mixes, %.1f s\n", SEED, done, (double)(qn_clock_ns() - began) * 1e-9);
}

/* As they are, and where biases are sums of their own. */
static void mixes_on_models_with_biases_and_head_norms(void **state)
{
    (void)state;
    qn_isa isas[QN_ISA_COUNT];
    const int32_t count = levels(isas), from = count > 1 ? count - 2 : 0;
    for (int i = 1; i < SYN_MODELS; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/like-%d", folder, i);
        syn_tensor tensors[SYN_MOST_TENSORS];
        const int tensor_count = syn_make_model(tensors, SEED, &syn_models[i]);
        assert_int_equal(syn_write_model(ctx, path, tensors, tensor_count, &syn_models[i]), 0);
        syn_free_some(tensors, tensor_count);
        (void)run_scheme(path, NULL, 0, MOST_TOKENS, from, count, 0, 3);
        (void)run_scheme(path, "fp8-block", 0, MOST_TOKENS, from, count, 0, 3);
    }
}

static void mixes_on_the_real_model(void **state)
{
    (void)state;
    need_model();
    qn_isa isas[QN_ISA_COUNT];
    const int32_t mixes = wanted_mixes(), count = levels(isas), level = count > 1 ? 1 + below(count - 1) : 0;
    const int32_t done = mixes >= 1000 ? run_every_scheme(source, 1, mixes)
                                       : run_scheme(source, NULL, 1, 4, level, level + 1, 0, (mixes + 9) / 10);
    print_message("seed %u: %d mixes\n", SEED, done);
}

/* What is refused leaves every session as it was. */
static void misuse_is_refused(void **state)
{
    (void)state;
    need_model();
    qn_model *model, *other;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, source, NULL, &model, &error), &error, source);
    must(qn_model_open(ctx, source, NULL, &other, &error), &error, source);
    qn_model_info info;
    qn_model_get_info(model, &info);
    const instance m = {.model = model, .scheme = "as it is"}, n = {.model = other, .scheme = "as it is"};
    qn_batch *batch = (qn_batch *)&error;
    qn_batch_options options;
    qn_batch_options_init(&options);
    options.tokens = -1;
    assert_int_equal(qn_batch_create(model, &options, &batch, &error), QN_E_ARGUMENT);
    assert_null(batch);
    options.tokens = 4;
    options.size--;
    assert_int_equal(qn_batch_create(model, &options, &batch, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_batch_create(NULL, NULL, &batch, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_batch_create(model, NULL, NULL, &error), QN_E_ARGUMENT);
    options.size++;
    must(qn_batch_create(model, &options, &batch, &error), &error, "batch");
    qn_session *a = session_of(&m, (qn_exec){0}), *b = session_of(&m, (qn_exec){0}), *c = session_of(&n, (qn_exec){0});
    const int32_t ids[MOST_TOKENS + 1] = {5, 6, 7}, beyond[2] = {1, info.vocab_size}, negative[1] = {-1};
    const qn_batch_item good = {.session = a, .ids = ids, .count = 2};
    const struct {
        qn_batch_item item;
        qn_status status;
        const char *says;
    } cases[] = {
        {{.session = NULL, .ids = ids, .count = 1}, QN_E_ARGUMENT, "NULL"},
        {{.session = a, .ids = ids, .count = 1}, QN_E_ARGUMENT, "already"},
        {{.session = c, .ids = ids, .count = 1}, QN_E_ARGUMENT, "another model"},
        {{.session = b, .ids = NULL, .count = 1}, QN_E_ARGUMENT, "ids is NULL"},
        {{.session = b, .ids = ids, .count = -1}, QN_E_ARGUMENT, "count is -1"},
        {{.session = b, .ids = beyond, .count = 2}, QN_E_ARGUMENT, "vocabulary"},
        {{.session = b, .ids = negative, .count = 1}, QN_E_ARGUMENT, "vocabulary"},
        {{.session = b, .ids = ids, .count = MOST_TOKENS + 1}, QN_E_SHAPE, "do not fit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_batch_item items[2] = {good, cases[i].item};
        assert_int_equal(qn_batch_eval(batch, items, 2, &error), cases[i].status);
        assert_non_null(strstr(error.text, cases[i].says));
        assert_non_null(strstr(error.text, "item 1"));
        assert_int_equal(qn_session_length(a), 0);
        assert_int_equal(qn_session_length(b), 0);
    }
    assert_int_equal(qn_batch_eval(NULL, &good, 1, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_batch_eval(batch, NULL, 1, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_batch_eval(batch, &good, -1, &error), QN_E_ARGUMENT);
    must(qn_batch_eval(batch, NULL, 0, &error), &error, "nothing");
    /* still good for use, an empty item beside it; and a full context can be filled to the last place */
    const qn_batch_item both[3] = {{.session = b, .ids = NULL, .count = 0}, good};
    must(qn_batch_eval(batch, both, 2, &error), &error, "both");
    assert_int_equal(qn_session_length(a), 2);
    assert_int_equal(qn_session_length(b), 0);
    const qn_batch_item rest[2] = {{.session = a, .ids = ids, .count = MOST_TOKENS - 2},
                                   {.session = b, .ids = ids, .count = MOST_TOKENS}};
    must(qn_batch_eval(batch, rest, 2, &error), &error, "rest");
    assert_int_equal(qn_session_length(a), MOST_TOKENS);
    assert_int_equal(qn_session_length(b), MOST_TOKENS);
    qn_session_destroy(a);
    qn_session_destroy(b);
    qn_session_destroy(c);
    qn_batch_destroy(batch);
    qn_batch_destroy(NULL);
    qn_model_close(other);
    qn_model_close(model);
}

static int start(void **state)
{
    (void)state;
    source = getenv("QN_TEST_MODEL");
    source = source && *source ? source : NULL;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK || !mkdtemp(folder)) {
        return 1;
    }
    for (int32_t i = 0; i < 4; i++) {
        if (qn_pool_create(ctx, i + 1, &pools[i], NULL) != QN_OK) {
            return 1;
        }
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        qn_pool_destroy(pools[i]);
    }
    qn_ctx_destroy(ctx);
    syn_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_on_a_synthetic_model),
        cmocka_unit_test(mixes_on_models_with_biases_and_head_norms),
        cmocka_unit_test(mixes_on_the_real_model),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
