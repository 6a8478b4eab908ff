/* Scaled RoPE. Whatever a configuration calls its scaling (linear, llama3, yarn, longrope, GGUF's table) comes out as
 * one factor for each pair of a head, by which the frequency theta^(-2i/D) is divided, and a magnitude that queries and
 * keys are multiplied by. Only that is known beyond this file (docs/adr/0011-scaled-rope.md); formulas are those of
 * transformers' modeling_rope_utils.py. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/checkpoint_internal.h"

#define LEAST_FACTOR 1e-3
#define MOST_FACTOR 1e9
#define MOST_POSITION (1 << 30)
#define PI 3.14159265358979323846

/* Parameters of a scheme; 0 where not given. */
typedef struct scaling {
    double factor;
    double low, high;  /* llama3: low_freq_factor, high_freq_factor */
    double fast, slow; /* yarn: beta_fast, beta_slow */
    double magnitude;  /* attention_factor */
    int whole;         /* yarn: the ramp begins and ends at whole pairs (truncate) */
    int64_t original;  /* original_max_position_embeddings */
} scaling;

static double frequency(const qn_hparams *h, int32_t i)
{
    return pow((double)h->rope_theta, -2.0 * (double)i / (double)h->head_dim);
}

/* Of llama 3.1 and its successors, but for the factor. */
static const scaling llama3 = {.low = 1.0, .high = 4.0, .original = 8192};

/* Long waves are stretched, short ones stay, those between are blended by how many fit into the original context. */
static double llama3_factor(const qn_hparams *h, const scaling *s, int32_t i)
{
    const double waves = (double)s->original * frequency(h, i) / (2.0 * PI);
    const double smooth = fmin(fmax((waves - s->low) / (s->high - s->low), 0.0), 1.0);
    return 1.0 / ((1.0 - smooth) / s->factor + smooth);
}

/* The pair whose wave fits that many times into the original context. */
static double yarn_pair(const qn_hparams *h, const scaling *s, double waves)
{
    return (double)h->head_dim * log((double)s->original / (waves * 2.0 * PI)) / (2.0 * log((double)h->rope_theta));
}

static double yarn_factor(const qn_hparams *h, const scaling *s, int32_t i)
{
    const double fast = yarn_pair(h, s, s->fast), slow = yarn_pair(h, s, s->slow);
    const double low = fmax(s->whole ? floor(fast) : fast, 0.0);
    const double high = fmin(s->whole ? ceil(slow) : slow, (double)h->head_dim - 1.0);
    const double ramp = fmin(fmax(((double)i - low) / (high == low ? 0.001 : high - low), 0.0), 1.0);
    return 1.0 / (ramp / s->factor + (1.0 - ramp));
}

static double yarn_magnitude(double factor, double by)
{
    return factor <= 1.0 ? 1.0 : 0.1 * by * log(factor) + 1.0;
}

static qn_status set_type(qn_hparams *h, const char *type, qn_error *error)
{
    QN_FAIL_IF(h->head_dim / 2 > QN_ROPE_PAIRS, error, QN_E_UNSUPPORTED,
               "scaling of heads of %d elements is not supported, expected at most %d", (int)h->head_dim,
               2 * QN_ROPE_PAIRS);
    snprintf(h->rope_type, sizeof h->rope_type, "%s", type);
    return QN_OK;
}

/* A table of ones is none. */
static qn_status check_factors(qn_hparams *h, qn_error *error)
{
    h->rope_scaled = 0;
    QN_FAIL_IF(!(h->rope_magnitude >= (float)LEAST_FACTOR && h->rope_magnitude <= (float)MOST_FACTOR), error, QN_E_FILE,
               "queries and keys are multiplied by %g, expected %g to %g", (double)h->rope_magnitude, LEAST_FACTOR,
               MOST_FACTOR);
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        const float factor = h->rope_factors[i];
        QN_FAIL_IF(!(factor >= (float)LEAST_FACTOR && factor <= (float)MOST_FACTOR), error, QN_E_FILE,
                   "the frequency of pair %d is divided by %g, expected %g to %g", (int)i, (double)factor, LEAST_FACTOR,
                   MOST_FACTOR);
        h->rope_scaled |= factor != 1.0f;
    }
    if (!h->rope_scaled && h->rope_magnitude == 1.0f) {
        snprintf(h->rope_type, sizeof h->rope_type, "default");
    }
    return QN_OK;
}

/* ---- config.json ---- */

static qn_status need(const json_t *rope, const char *key, double low, double *out, qn_error *error)
{
    *out = 0.0;
    QN_TRY(qn_json_get_number(rope, key, low, MOST_FACTOR, out, error));
    QN_FAIL_IF(*out == 0.0, error, QN_E_FILE, "%s is missing", key);
    return QN_OK;
}

/* Some files have it beside rope_scaling, which comes first. */
static qn_status get_original(const json_t *config, const json_t *rope, int64_t *out, qn_error *error)
{
    QN_TRY(qn_json_get_int(rope, "original_max_position_embeddings", 1, MOST_POSITION, out, error));
    return qn_json_get_int(config, "original_max_position_embeddings", 1, MOST_POSITION, out, error);
}

static qn_status read_linear(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error)
{
    (void)config;
    scaling s = {0};
    QN_TRY(need(rope, "factor", LEAST_FACTOR, &s.factor, error));
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        h->rope_factors[i] = (float)s.factor;
    }
    return QN_OK;
}

static qn_status read_llama3(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error)
{
    scaling s = {0};
    QN_TRY(need(rope, "factor", 1.0, &s.factor, error));
    QN_TRY(need(rope, "low_freq_factor", LEAST_FACTOR, &s.low, error));
    QN_TRY(need(rope, "high_freq_factor", LEAST_FACTOR, &s.high, error));
    QN_TRY(get_original(config, rope, &s.original, error));
    QN_FAIL_IF(!s.original, error, QN_E_FILE, "original_max_position_embeddings is missing");
    QN_FAIL_IF(s.low >= s.high, error, QN_E_FILE, "low_freq_factor %g is not below high_freq_factor %g", s.low, s.high);
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        h->rope_factors[i] = (float)llama3_factor(h, &s, i);
    }
    return QN_OK;
}

static void make_yarn(const scaling *s, qn_hparams *h)
{
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        h->rope_factors[i] = (float)yarn_factor(h, s, i);
    }
    h->rope_magnitude = (float)s->magnitude;
}

/* What both containers leave to defaults, and what must hold. */
static qn_status check_yarn(const qn_hparams *h, scaling *s, qn_error *error)
{
    s->fast = s->fast > 0.0 ? s->fast : 32.0;
    s->slow = s->slow > 0.0 ? s->slow : 1.0;
    s->original = s->original ? s->original : h->context_length;
    QN_FAIL_IF(s->fast < s->slow, error, QN_E_FILE, "beta_fast %g is below beta_slow %g", s->fast, s->slow);
    QN_FAIL_IF(!(h->rope_theta > 1.0f), error, QN_E_FILE, "yarn needs a rope_theta above 1");
    return QN_OK;
}

static qn_status read_yarn(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error)
{
    scaling s = {.whole = 1};
    double scale = 0.0, all = 0.0;
    QN_TRY(need(rope, "factor", 1.0, &s.factor, error));
    QN_TRY(qn_json_get_number(rope, "beta_fast", 0.0, MOST_FACTOR, &s.fast, error));
    QN_TRY(qn_json_get_number(rope, "beta_slow", 0.0, MOST_FACTOR, &s.slow, error));
    QN_TRY(qn_json_get_number(rope, "attention_factor", LEAST_FACTOR, MOST_FACTOR, &s.magnitude, error));
    QN_TRY(qn_json_get_number(rope, "mscale", 0.0, MOST_FACTOR, &scale, error));
    QN_TRY(qn_json_get_number(rope, "mscale_all_dim", 0.0, MOST_FACTOR, &all, error));
    QN_TRY(qn_json_get_bool(rope, "truncate", &s.whole, error));
    QN_TRY(get_original(config, rope, &s.original, error));
    QN_TRY(check_yarn(h, &s, error));
    if (s.magnitude == 0.0) {
        s.magnitude = scale > 0.0 && all > 0.0 ? yarn_magnitude(s.factor, scale) / yarn_magnitude(s.factor, all)
                                               : yarn_magnitude(s.factor, 1.0);
    }
    make_yarn(&s, h);
    return QN_OK;
}

static qn_status read_factors(const json_t *rope, const char *key, const qn_hparams *h, float *out, qn_error *error)
{
    const json_t *list = json_object_get(rope, key);
    const size_t count = (size_t)h->head_dim / 2;
    QN_FAIL_IF(!json_is_array(list) || json_array_size(list) != count, error, QN_E_FILE, "%s is no list of %zu numbers",
               key, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *factor = json_array_get(list, i);
        QN_FAIL_IF(!json_is_number(factor), error, QN_E_FILE, "%s is no list of %zu numbers", key, count);
        out[i] = (float)json_number_value(factor);
    }
    return QN_OK;
}

/* The long factors are for texts beyond the original context: where they are others, the context ends there. */
static qn_status read_longrope(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error)
{
    scaling s = {.original = h->context_length};
    float beyond[QN_ROPE_PAIRS];
    QN_TRY(read_factors(rope, "short_factor", h, h->rope_factors, error));
    QN_TRY(read_factors(rope, "long_factor", h, beyond, error));
    QN_TRY(get_original(config, rope, &s.original, error));
    s.factor = (double)h->context_length / (double)s.original;
    QN_TRY(qn_json_get_number(rope, "factor", LEAST_FACTOR, MOST_FACTOR, &s.factor, error));
    s.magnitude = s.factor > 1.0 && s.original > 1 ? sqrt(1.0 + log(s.factor) / log((double)s.original)) : 1.0;
    QN_TRY(qn_json_get_number(rope, "attention_factor", LEAST_FACTOR, MOST_FACTOR, &s.magnitude, error));
    h->rope_magnitude = (float)s.magnitude;
    if (memcmp(beyond, h->rope_factors, (size_t)h->head_dim / 2 * sizeof *beyond) != 0 &&
        s.original < h->context_length) {
        h->context_length = (int32_t)s.original;
    }
    return QN_OK;
}

static const struct {
    const char *type;
    qn_status (*read)(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error);
} schemes[] = {{"linear", read_linear}, {"llama3", read_llama3}, {"yarn", read_yarn}, {"longrope", read_longrope}};

#define SCHEMES (sizeof schemes / sizeof *schemes)

static qn_status read_scaling(const json_t *config, const json_t *rope, qn_hparams *h, qn_error *error)
{
    const char *type = "default";
    double theta = (double)h->rope_theta, partial = 1.0;
    QN_FAIL_IF(!json_is_object(rope), error, QN_E_FILE, "it is not an object");
    QN_TRY(qn_json_get_string(rope, "type", &type, error));
    QN_TRY(qn_json_get_string(rope, "rope_type", &type, error));
    QN_TRY(qn_json_get_number(rope, "partial_rotary_factor", 0.0, 1.0, &partial, error));
    QN_FAIL_IF(partial != 1.0, error, QN_E_UNSUPPORTED, "partial_rotary_factor %g is not supported", partial);
    QN_TRY(qn_json_get_number(rope, "rope_theta", 1.0, 1e30, &theta, error));
    h->rope_theta = (float)theta;
    /* the factors of dynamic follow the length of a text; up to max_position_embeddings, where the context ends, they
     * are 1 */
    if (strcmp(type, "dynamic") == 0) {
        return QN_OK;
    }
    if (strcmp(type, "default") == 0) {
        double factor = 1.0;
        QN_TRY(qn_json_get_number(rope, "factor", 0.0, MOST_FACTOR, &factor, error));
        QN_FAIL_IF(factor != 1.0, error, QN_E_UNSUPPORTED, "a factor without a rope_type is not supported");
        return QN_OK;
    }
    size_t i = 0;
    while (i < SCHEMES && strcmp(type, schemes[i].type) != 0) {
        i++;
    }
    QN_FAIL_IF(i == SCHEMES, error, QN_E_UNSUPPORTED,
               "the type %.40s is not supported, expected default, linear, llama3, yarn, longrope or dynamic", type);
    QN_TRY(set_type(h, type, error));
    QN_TRY(schemes[i].read(config, rope, h, error));
    return check_factors(h, error);
}

static int is_given(const json_t *value)
{
    return value && !json_is_null(value) && !(json_is_object(value) && json_object_size(value) == 0);
}

qn_status qn_rope_from_config(const json_t *config, qn_hparams *h, qn_error *error)
{
    double theta = 10000.0;
    QN_TRY(qn_json_get_number(config, "rope_theta", 1.0, 1e30, &theta, error));
    h->rope_theta = (float)theta;
    h->rope_magnitude = 1.0f;
    snprintf(h->rope_type, sizeof h->rope_type, "default");
    const char *key = is_given(json_object_get(config, "rope_scaling")) ? "rope_scaling" : "rope_parameters";
    const json_t *rope = json_object_get(config, key);
    const qn_status status = is_given(rope) ? read_scaling(config, rope, h, error) : QN_OK;
    return status == QN_OK ? status : qn_error_prefix(error, status, "%s", key);
}

static json_t *factor_list(const qn_hparams *h)
{
    json_t *list = json_array();
    for (int32_t i = 0; list && i < h->head_dim / 2; i++) {
        if (json_array_append_new(list, qn_json_short_number(h->rope_factors[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *qn_rope_to_config(const qn_hparams *h)
{
    json_t *const last = qn_json_short_number(h->rope_factors[h->head_dim / 2 - 1]);
    if (strcmp(h->rope_type, "linear") == 0) {
        return json_pack("{s:s, s:o}", "rope_type", h->rope_type, "factor", last);
    }
    if (strcmp(h->rope_type, "llama3") == 0) {
        return json_pack("{s:s, s:o, s:f, s:f, s:i}", "rope_type", h->rope_type, "factor", last, "low_freq_factor",
                         llama3.low, "high_freq_factor", llama3.high, "original_max_position_embeddings",
                         (int)llama3.original);
    }
    json_decref(last);
    return json_pack("{s:s, s:f, s:o, s:i, s:o, s:o}", "rope_type", "longrope", "factor", 1.0, "attention_factor",
                     qn_json_short_number(h->rope_magnitude), "original_max_position_embeddings",
                     (int)h->context_length, "short_factor", factor_list(h), "long_factor", factor_list(h));
}

/* ---- GGUF ---- */

static qn_status get_number(const qn_gguf *file, const qn_hparams *h, const char *name, double low, double *out,
                            qn_error *error)
{
    char key[96];
    snprintf(key, sizeof key, "%s.rope.%s", h->architecture, name);
    return qn_gguf_get_number(file, key, low, 1e30, out, error);
}

/* none 0, linear 1, yarn 2; a file that does not say means linear, with a factor if there is one. */
static qn_status get_type(const qn_gguf *file, const qn_hparams *h, int *out, qn_error *error)
{
    static const char *const types[] = {"none", "linear", "yarn"};
    char key[96];
    const char *text;
    size_t bytes;
    snprintf(key, sizeof key, "%s.rope.scaling.type", h->architecture);
    QN_TRY(qn_gguf_get_string(file, key, &text, &bytes, error));
    *out = text ? 3 : 1;
    for (int i = 0; i < 3 && text; i++) {
        *out = bytes == strlen(types[i]) && memcmp(text, types[i], bytes) == 0 ? i : *out;
    }
    QN_FAIL_IF(*out == 3, error, QN_E_UNSUPPORTED,
               "RoPE scaling of type %.*s is not supported, expected none, linear or yarn",
               (int)(bytes > 60 ? 60 : bytes), text);
    return QN_OK;
}

static qn_status gguf_yarn(const qn_gguf *file, qn_hparams *h, double factor, qn_error *error)
{
    scaling s = {.factor = factor, .whole = 1};
    double attention = 1.0;
    char key[96];
    static const char *const fixed[][2] = {
        {"scaling.yarn_ext_factor", "1"}, {"scaling.yarn_attn_factor", "1"}, {"scaling.yarn_log_multiplier", "0"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const double want = fixed[i][1][0] - '0';
        double value = want;
        QN_TRY(get_number(file, h, fixed[i][0], -1e30, &value, error));
        QN_FAIL_IF(value != want, error, QN_E_UNSUPPORTED, "metadata %s.rope.%s is %g, only %s is supported",
                   h->architecture, fixed[i][0], value, fixed[i][1]);
    }
    QN_TRY(get_number(file, h, "scaling.yarn_beta_fast", 0.0, &s.fast, error));
    QN_TRY(get_number(file, h, "scaling.yarn_beta_slow", 0.0, &s.slow, error));
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", h->architecture);
    QN_TRY(qn_gguf_get_int(file, key, 1, MOST_POSITION, &s.original, error));
    QN_TRY(get_number(file, h, "scaling.attn_factor", LEAST_FACTOR, &attention, error));
    s.magnitude = attention * yarn_magnitude(factor, 1.0);
    QN_TRY(check_yarn(h, &s, error));
    make_yarn(&s, h);
    return QN_OK;
}

/* A file keeps llama3's factors alone, as its converter has rounded them: where they are that, those of config.json are
 * taken, so that a model is the same from both. */
static int take_llama3(qn_hparams *h)
{
    const int32_t pairs = h->head_dim / 2;
    scaling s = llama3;
    float factors[QN_ROPE_PAIRS];
    s.factor = (double)h->rope_factors[pairs - 1];
    int same = s.factor >= 1.0 && h->rope_magnitude == 1.0f;
    for (int32_t i = 0; i < pairs && same; i++) {
        factors[i] = (float)llama3_factor(h, &s, i);
        same = fabsf(h->rope_factors[i] - factors[i]) <= 1e-5f * factors[i];
    }
    if (same) {
        memcpy(h->rope_factors, factors, (size_t)pairs * sizeof *factors);
    }
    return same;
}

/* rope_freqs.weight, by which frequencies are divided too. */
static qn_status multiply_table(const qn_gguf *file, qn_hparams *h, qn_error *error)
{
    const int32_t at = qn_map_get(&file->names, QN_ROPE_TABLE, strlen(QN_ROPE_TABLE));
    if (at < 0) {
        return QN_OK;
    }
    const qn_view *view = &file->tensors[at].view;
    QN_FAIL_IF(view->shape.format != QN_F32 || view->shape.ndim != 1 || view->shape.dims[0] != h->head_dim / 2, error,
               QN_E_FILE, "tensor %s is no list of %d F32 factors", QN_ROPE_TABLE, (int)h->head_dim / 2);
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        float factor;
        memcpy(&factor, (const char *)view->data + (size_t)i * sizeof factor, sizeof factor);
        h->rope_factors[i] *= factor;
    }
    snprintf(h->rope_type, sizeof h->rope_type, "%s", take_llama3(h) ? "llama3" : "factors");
    return QN_OK;
}

qn_status qn_rope_from_gguf(const qn_gguf *file, qn_hparams *h, qn_error *error)
{
    int type;
    double theta = 10000.0, factor = 0.0;
    QN_TRY(get_number(file, h, "freq_base", 1.0, &theta, error));
    h->rope_theta = (float)theta;
    h->rope_magnitude = 1.0f;
    snprintf(h->rope_type, sizeof h->rope_type, "default");
    QN_TRY(get_type(file, h, &type, error));
    QN_TRY(get_number(file, h, "scale_linear", 0.0, &factor, error)); /* its old name */
    QN_TRY(get_number(file, h, "scaling.factor", 0.0, &factor, error));
    factor = type == 0 || factor == 0.0 ? 1.0 : factor;
    if (type != 2 && factor == 1.0 && qn_map_get(&file->names, QN_ROPE_TABLE, strlen(QN_ROPE_TABLE)) < 0) {
        return QN_OK;
    }
    QN_TRY(set_type(h, type == 2 ? "yarn" : "linear", error));
    for (int32_t i = 0; i < h->head_dim / 2; i++) {
        h->rope_factors[i] = (float)factor;
    }
    if (type == 2) {
        QN_TRY(gguf_yarn(file, h, factor, error));
    }
    QN_TRY(multiply_table(file, h, error));
    return check_factors(h, error);
}
