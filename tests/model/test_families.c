/* Llama and the architectures like it, with biases and with norms of heads, against a forward pass written out in
 * double: FP32 weights at every level of the machine and by the reference, token by token and at once; every scheme and
 * KV scheme near them; and what the quantiser writes is the same architecture. */
#include <math.h>
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
#include "io/checkpoint.h"
#include "quant/synthetic.h"

enum { TEXT = 23 };

static qn_ctx *ctx;
static char folder[] = "/tmp/quern-families-XXXXXX";
static int32_t ids[TEXT];
static syn_tensor tensors[SYN_MODELS][SYN_MOST_TENSORS];
static int counts[SYN_MODELS];
static double *expected[SYN_MODELS]; /* [TEXT][SYN_VOCAB] */

static const char *path_of(int model, const char *scheme)
{
    static char path[2][128];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%d-%s", folder, model, scheme);
    return path[turn];
}

static void must(qn_status status, const qn_error *error, const char *what)
{
    if (status != QN_OK) {
        fail_msg("%s: %s: %s", what, qn_status_name(status), error->text);
    }
}

/* ---- a forward pass, written out ---- */

static const syn_tensor *find(int model, int layer, const char *part)
{
    char name[96];
    if (layer < 0) {
        snprintf(name, sizeof name, "model.%s", part);
    } else {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    }
    for (int i = 0; i < counts[model]; i++) {
        if (strcmp(tensors[model][i].name, name) == 0) {
            return &tensors[model][i];
        }
    }
    return NULL;
}

/* y += W x + b */
static void linear(int model, int layer, const char *part, const double *x, double *y)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", part);
    const syn_tensor *w = find(model, layer, name);
    snprintf(name, sizeof name, "%s.bias", part);
    const syn_tensor *b = find(model, layer, name);
    for (int64_t n = 0; n < w->n; n++) {
        double sum = b ? (double)b->w[n] : 0.0;
        for (int64_t k = 0; k < w->k; k++) {
            sum += (double)w->w[n * w->k + k] * x[k];
        }
        y[n] += sum;
    }
}

static void norm(const syn_tensor *w, const double *x, double *y)
{
    double squares = 0.0;
    for (int64_t i = 0; i < w->n; i++) {
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < w->n; i++) {
        y[i] = x[i] / sqrt(squares / (double)w->n + 1e-5) * (double)w->w[i];
    }
}

static void turn(double *head, int size, int position)
{
    for (int i = 0; i < size / 2; i++) {
        const double angle = position * pow(10000.0, -2.0 * i / size), u = head[i], v = head[i + size / 2];
        head[i] = u * cos(angle) - v * sin(angle);
        head[i + size / 2] = v * cos(angle) + u * sin(angle);
    }
}

enum { MOST_HEADS = 512 };
static double keys[SYN_LAYERS][TEXT][MOST_HEADS], values[SYN_LAYERS][TEXT][MOST_HEADS];

/* Norms of heads, where there are any, and turns. */
static void make_heads(int model, int layer, const char *part, int heads, int position, double *x)
{
    const int size = syn_models[model].heads.size;
    for (int h = 0; h < heads; h++) {
        if (find(model, layer, part)) {
            norm(find(model, layer, part), x + h * size, x + h * size);
        }
        turn(x + h * size, size, position);
    }
}

static void attend(int model, int layer, int position, const double *q, double *out)
{
    const syn_heads of = syn_models[model].heads;
    for (int h = 0; h < of.heads; h++) {
        const int g = h / (of.heads / of.kv_heads) * of.size;
        double weight[TEXT], sum = 0.0;
        for (int t = 0; t <= position; t++) {
            double score = 0.0;
            for (int i = 0; i < of.size; i++) {
                score += q[h * of.size + i] * keys[layer][t][g + i];
            }
            weight[t] = exp(score / sqrt((double)of.size));
            sum += weight[t];
        }
        for (int i = 0; i < of.size; i++) {
            out[h * of.size + i] = 0.0;
            for (int t = 0; t <= position; t++) {
                out[h * of.size + i] += weight[t] / sum * values[layer][t][g + i];
            }
        }
    }
}

static void forward(int model, int position, double *logits)
{
    const syn_heads of = syn_models[model].heads;
    double x[SYN_HIDDEN], normed[SYN_HIDDEN];
    const syn_tensor *embedding = find(model, -1, "embed_tokens.weight");
    for (int i = 0; i < SYN_HIDDEN; i++) {
        x[i] = (double)embedding->w[ids[position] * SYN_HIDDEN + i];
    }
    for (int l = 0; l < SYN_LAYERS; l++) {
        double q[MOST_HEADS] = {0}, attended[MOST_HEADS], gate[SYN_INNER] = {0}, up[SYN_INNER] = {0};
        memset(keys[l][position], 0, sizeof keys[l][position]);
        memset(values[l][position], 0, sizeof values[l][position]);
        norm(find(model, l, "input_layernorm.weight"), x, normed);
        linear(model, l, "self_attn.q_proj", normed, q);
        linear(model, l, "self_attn.k_proj", normed, keys[l][position]);
        linear(model, l, "self_attn.v_proj", normed, values[l][position]);
        make_heads(model, l, "self_attn.q_norm.weight", of.heads, position, q);
        make_heads(model, l, "self_attn.k_norm.weight", of.kv_heads, position, keys[l][position]);
        attend(model, l, position, q, attended);
        linear(model, l, "self_attn.o_proj", attended, x);
        norm(find(model, l, "post_attention_layernorm.weight"), x, normed);
        linear(model, l, "mlp.gate_proj", normed, gate);
        linear(model, l, "mlp.up_proj", normed, up);
        for (int i = 0; i < SYN_INNER; i++) {
            gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        }
        linear(model, l, "mlp.down_proj", gate, x);
    }
    norm(find(model, -1, "norm.weight"), x, normed);
    memset(logits, 0, SYN_VOCAB * sizeof *logits);
    linear(model, -1, "embed_tokens", normed, logits);
}

/* ---- the library ---- */

/* Logits of all tokens: some at once, then one by one. Returns the largest difference as part of the largest logit. */
static double distance(int model, const char *path, const qn_model_options *options, const char *what)
{
    static float logits[TEXT * SYN_VOCAB];
    qn_model *m;
    qn_session *session;
    qn_session_options room;
    qn_error error = {QN_OK, ""};
    must(qn_model_open(ctx, path, options, &m, &error), &error, what);
    qn_session_options_init(&room);
    room.context_length = TEXT;
    room.batch = 7;
    must(qn_session_create(m, &room, &session, &error), &error, what);
    must(qn_session_eval(session, ids, TEXT - 5, 1, logits, &error), &error, what);
    for (int i = TEXT - 5; i < TEXT; i++) {
        must(qn_session_eval(session, ids + i, 1, 0, logits + i * SYN_VOCAB, &error), &error, what);
    }
    double worst = 0.0, largest = 0.0;
    for (int i = 0; i < TEXT * SYN_VOCAB; i++) {
        const double d = fabs((double)logits[i] - expected[model][i]);
        worst = d > worst || d != d ? d : worst;
        largest = fmax(largest, fabs(expected[model][i]));
    }
    qn_session_destroy(session);
    qn_model_close(m);
    return worst / largest;
}

static void floats_agree_at_every_level(void **state)
{
    (void)state;
    for (int i = 0; i < SYN_MODELS; i++) {
        qn_model_options options;
        qn_model_options_init(&options);
        for (int isa = QN_ISA_SCALAR; isa <= QN_ISA_COUNT; isa++) {
            options.plan.backend = isa < QN_ISA_COUNT ? QN_BACKEND_CPU : QN_BACKEND_REF;
            options.plan.isa = isa < QN_ISA_COUNT ? (qn_isa)isa : QN_ISA_MAX;
            if (isa < QN_ISA_COUNT && qn_backend_cpu_row.isa_refusal(ctx, (qn_isa)isa)) {
                continue;
            }
            const double d = distance(i, path_of(i, "source"), &options, syn_models[i].type);
            if (!(d < 1e-5)) {
                fail_msg("model %d (%s), level %d: logits differ by %g", i, syn_models[i].type, isa, d);
            }
        }
    }
}

/* Biases left out would make 0.9 or more. */
static void every_scheme_is_near(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        double allowed;
    } rows[] = {{"f32", 1e-5},  {"bf16", 2e-2},      {"f16", 3e-3},      {"fp8-block", 0.15},
                {"fp8", 0.15},  {"int8", 0.06},      {"int8-azp", 0.06}, {"nvfp4", 0.35},
                {"mxfp4", 0.4}, {"nvfp4-w4a4", 0.4}, {"quip-4", 0.35}};
    for (int i = 1; i < SYN_MODELS; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s/" SYN_TEXT, path_of(i, "source"));
        /* the last one, which takes as long as all others, of the first model and the last */
        const int outer = i == 1 || i == SYN_MODELS - 1;
        for (size_t s = 0; s < sizeof rows / sizeof *rows - !outer; s++) {
            qn_quantize_options options;
            qn_quantize_result result;
            qn_error error = {QN_OK, ""};
            char path[128];
            snprintf(path, sizeof path, "%s", path_of(i, rows[s].scheme));
            qn_quantize_options_init(&options);
            options.scheme = rows[s].scheme;
            options.calibration = text;
            options.keep_first = options.keep_last = options.keep_qkv = 0;
            must(qn_quantize(ctx, path_of(i, "source"), path, &options, &result, &error), &error, rows[s].scheme);
            const double d = distance(i, path, NULL, rows[s].scheme);
            printf("%s, model %d, %s: %.2g\n", syn_models[i].type, i, rows[s].scheme, d);
            if (!(d < rows[s].allowed)) {
                fail_msg("model %d (%s), %s: logits differ by %g", i, syn_models[i].type, rows[s].scheme, d);
            }
            qn_checkpoint *checkpoint;
            must(qn_checkpoint_open(ctx, path, &checkpoint, &error), &error, path);
            const qn_hparams *h = qn_checkpoint_hparams(checkpoint);
            assert_string_equal(h->architecture, syn_models[i].type);
            assert_int_equal(h->qkv_bias, syn_models[i].qkv_bias);
            assert_int_equal(h->o_bias, syn_models[i].o_bias);
            assert_int_equal(h->mlp_bias, syn_models[i].mlp_bias);
            assert_int_equal(h->head_norms, syn_models[i].head_norms);
            qn_checkpoint_close(checkpoint);
            syn_remove(path);
        }
    }
}

static void kv_schemes_are_near(void **state)
{
    (void)state;
    for (int i = 1; i < SYN_MODELS; i++) {
        qn_kv_books_options books;
        qn_kv_books_result result;
        qn_model_options options;
        qn_error error = {QN_OK, ""};
        char text[128];
        snprintf(text, sizeof text, "%s/" SYN_TEXT, path_of(i, "source"));
        qn_model_options_init(&options);
        options.kv = "fp8";
        const double d = distance(i, path_of(i, "source"), &options, "fp8");
        qn_kv_books_options_init(&books);
        books.scheme = "cq4";
        books.calibration = text;
        must(qn_make_kv_books(ctx, path_of(i, "source"), NULL, &books, &result, &error), &error, "books");
        options.kv = "cq4";
        const double e = distance(i, path_of(i, "source"), &options, "cq4"); /* all of the text is within the window */
        if (!(d < 1e-2) || !(e < 1e-2)) {
            fail_msg("model %d (%s): logits differ by %g with fp8, by %g with cq4", i, syn_models[i].type, d, e);
        }
    }
}

static int start(void **state)
{
    (void)state;
    if (qn_ctx_create(NULL, &ctx, NULL) != QN_OK || !mkdtemp(folder)) {
        return 1;
    }
    for (int t = 0; t < TEXT; t++) {
        ids[t] = (t * 7919 + 13) % SYN_VOCAB;
    }
    for (int i = 0; i < SYN_MODELS; i++) {
        counts[i] = syn_make_model(tensors[i], 40 + (uint64_t)i, &syn_models[i]);
        expected[i] = malloc(TEXT * SYN_VOCAB * sizeof(double));
        if (!expected[i] || syn_write_model(ctx, path_of(i, "source"), tensors[i], counts[i], &syn_models[i])) {
            return 1;
        }
        for (int t = 0; t < TEXT; t++) {
            forward(i, t, expected[i] + t * SYN_VOCAB);
        }
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < SYN_MODELS; i++) {
        syn_free_some(tensors[i], counts[i]);
        free(expected[i]);
    }
    qn_ctx_destroy(ctx);
    syn_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats_agree_at_every_level),
        cmocka_unit_test(every_scheme_is_near),
        cmocka_unit_test(kv_schemes_are_near),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
