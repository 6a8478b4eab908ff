#include "quant/smooth.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/map.h"

#define MAX_FACTOR 1024.0f

float qn_smooth_alpha(const qn_scheme *scheme)
{
    return scheme->act_op == QN_OP_QUANTIZE_INT8 || scheme->act_op == QN_OP_QUANTIZE_NVFP4 ? 0.5f : 0.0f;
}

typedef struct smoother {
    qn_ctx *ctx;
    const qn_hparams *hparams;
    qn_outputs *outputs;
    qn_calibration *calibration;
    float alpha;
    qn_map map;      /* weight name -> output */
    float *rows;     /* a row a thread, `widest` floats each */
    int64_t widest;
    int inner;       /* 1: leaders of inner inputs (o, down), 0: those behind a norm */
    float *shared;   /* 2 * widest floats */
} smoother;

/* The tensor that gives a linear layer its input. */
static const struct {
    const char *leader, *source;
    int inner; /* 1: a linear layer, 0: a norm */
} sources[] = {
    {".self_attn.q_proj.weight", ".input_layernorm.weight", 0},
    {".mlp.gate_proj.weight", ".post_attention_layernorm.weight", 0},
    {".self_attn.o_proj.weight", ".self_attn.v_proj.weight", 1},
    {".mlp.down_proj.weight", ".mlp.up_proj.weight", 1},
};

/* Row of sources[] for a leader; -1: none. */
static int source_of(const qn_output *o)
{
    const char *name = o->weight->name;
    const size_t length = strlen(name);
    for (int i = 0; i < (int)(sizeof sources / sizeof *sources); i++) {
        const size_t n = strlen(sources[i].leader);
        if (length > n && strcmp(name + length - n, sources[i].leader) == 0) {
            return i;
        }
    }
    return -1;
}

/* The output of the same layer whose name ends in `suffix`; NULL: none. */
static qn_output *beside(const smoother *s, const qn_output *o, const char *own, const char *suffix)
{
    char name[512];
    const size_t stem = strlen(o->weight->name) - strlen(own);
    if (stem + strlen(suffix) >= sizeof name) {
        return NULL;
    }
    memcpy(name, o->weight->name, stem);
    strcpy(name + stem, suffix);
    const int32_t i = qn_map_get(&s->map, name, strlen(name));
    return i >= 0 ? &s->outputs->list[i] : NULL;
}

static int wanted(const smoother *s, int32_t i)
{
    const qn_output *o = &s->outputs->list[i];
    const int source = o->linear && o->leader == i && s->calibration->list[i].channels ? source_of(o) : -1;
    return source >= 0 && sources[source].inner == s->inner;
}

/* Largest |w| of each column of the weights that share an input, into the leader's vector. */
static void column_task(void *user, int64_t index, int32_t thread)
{
    const smoother *s = user;
    if (!wanted(s, (int32_t)index)) {
        return;
    }
    float *row = s->rows + (int64_t)thread * s->widest, *amax = s->outputs->list[index].own_columns;
    for (int32_t i = 0; i < s->outputs->count; i++) {
        const qn_output *o = &s->outputs->list[i];
        if (!o->linear || o->leader != index) {
            continue;
        }
        for (int64_t r = 0; r < o->encoder.n; r++) {
            qn_output_decode_row(o, r, row);
            for (int64_t k = 0; k < o->encoder.k; k++) {
                const float a = fabsf(row[k]);
                amax[k] = a > amax[k] ? a : amax[k];
            }
        }
    }
}

/* factor[] = d of inputs x and weights w (largest of each column); 1 where either is zero. */
static void balance(const float *x, const float *w, int64_t k, float alpha, float *factor)
{
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < k; i++) {
        if (x[i] > 0 && w[i] > 0) {
            sum += (double)alpha * log((double)x[i]) - (1 - (double)alpha) * log((double)w[i]);
            count++;
        }
    }
    const double mean = count ? sum / (double)count : 0;
    for (int64_t i = 0; i < k; i++) {
        float d = 1.0f;
        if (x[i] > 0 && w[i] > 0) {
            d = (float)exp((double)alpha * log((double)x[i]) - (1 - (double)alpha) * log((double)w[i]) - mean);
            d = d > MAX_FACTOR ? MAX_FACTOR : d < 1.0f / MAX_FACTOR ? 1.0f / MAX_FACTOR : d;
        }
        factor[i] = d;
    }
}

static float *vector(smoother *s, int64_t k)
{
    return qn_calloc(s->ctx, (size_t)k, sizeof(float));
}

/* The norm takes 1/d, as far as its format can; d becomes what it took. */
static qn_status fold_norm(smoother *s, const qn_output *o, qn_output *norm, qn_error *error)
{
    float *d = o->own_columns;
    const int64_t k = o->encoder.k;
    norm->own_columns = vector(s, k);
    QN_FAIL_IF(!norm->own_columns, error, QN_E_MEMORY, "out of memory smoothing %s", norm->weight->name);
    qn_decode(norm->weight->data.shape.format, norm->weight->data.data, k, s->shared, NULL);
    for (int64_t i = 0; i < k; i++) {
        const float gain = s->shared[i];
        float less = gain / d[i];
        uint8_t code[8];
        norm->encoder.element->encode(&less, 1, code);
        norm->encoder.element->decode(code, 1, &less);
        d[i] = gain / less;
        if (!(d[i] > 0) || !isfinite(d[i])) {
            d[i] = 1.0f;
            less = gain;
        }
        norm->own_columns[i] = gain != 0 ? less / gain : 1.0f;
    }
    norm->columns = norm->own_columns;
    return QN_OK;
}

/* Rows of `before` (and its bias) take 1/d. */
static qn_status fold_rows(smoother *s, qn_output *before, const float *d, qn_error *error)
{
    const int64_t n = before->encoder.n;
    before->own_rows = vector(s, n);
    QN_FAIL_IF(!before->own_rows, error, QN_E_MEMORY, "out of memory smoothing %s", before->weight->name);
    for (int64_t i = 0; i < n; i++) {
        before->own_rows[i] = 1.0f / d[i];
    }
    before->rows = before->own_rows;
    qn_output *bias = beside(s, before, "weight", "bias");
    if (bias && bias->encoder.k == n) {
        bias->columns = before->rows;
    }
    return QN_OK;
}

/* d of o's columns, equal for all heads that read the same value head; s->shared becomes d by value column. */
static void balance_heads(smoother *s, const float *x, int64_t k, float *columns)
{
    const int64_t dim = s->hparams->head_dim, group = s->hparams->heads / s->hparams->kv_heads;
    float *most_x = s->shared, *most_w = s->shared + s->widest;
    memset(s->shared, 0, (size_t)(2 * s->widest) * sizeof(float));
    for (int64_t i = 0; i < k; i++) {
        const int64_t v = i / dim / group * dim + i % dim;
        most_x[v] = x[i] > most_x[v] ? x[i] : most_x[v];
        most_w[v] = columns[i] > most_w[v] ? columns[i] : most_w[v];
    }
    balance(most_x, most_w, k / group, s->alpha, most_x);
    for (int64_t i = 0; i < k; i++) {
        columns[i] = most_x[i / dim / group * dim + i % dim];
    }
}

/* One leader, whose own_columns hold the largest |w|: they become d, and everything follows. */
static qn_status fold(smoother *s, int32_t leader, qn_error *error)
{
    qn_output *o = &s->outputs->list[leader];
    const int row = source_of(o);
    const int64_t k = o->encoder.k, heads = s->hparams->heads, kv_heads = s->hparams->kv_heads;
    qn_output *before = beside(s, o, sources[row].leader, sources[row].source);
    const float *x = s->calibration->list[leader].channels;
    float *d = o->own_columns;
    const int grouped = strcmp(sources[row].source, ".self_attn.v_proj.weight") == 0;
    if (!before || (s->inner && !before->linear) || (!s->inner && (before->encoder.n != 1 || before->encoder.k != k))) {
        return QN_OK;
    }
    if (grouped) {
        if (k != heads * s->hparams->head_dim || before->encoder.n != kv_heads * s->hparams->head_dim) {
            return QN_OK;
        }
        balance_heads(s, x, k, d);
        QN_TRY(fold_rows(s, before, s->shared, error));
    } else {
        balance(x, d, k, s->alpha, d);
        if (s->inner && before->encoder.n != k) {
            return QN_OK;
        }
        QN_TRY(s->inner ? fold_rows(s, before, d, error) : fold_norm(s, o, before, error));
    }
    for (int32_t i = 0; i < s->outputs->count; i++) {
        if (s->outputs->list[i].linear && s->outputs->list[i].leader == leader) {
            s->outputs->list[i].columns = d;
        }
    }
    qn_observed *seen = &s->calibration->list[leader];
    for (int64_t i = 0; i < k; i++) {
        seen->channels[i] /= d[i];
    }
    return QN_OK;
}

/* All leaders of one kind. */
static qn_status fold_all(smoother *s, int inner, const qn_exec *exec, qn_error *error)
{
    s->inner = inner;
    for (int32_t i = 0; i < s->outputs->count; i++) {
        qn_output *o = &s->outputs->list[i];
        if (wanted(s, i)) {
            o->own_columns = vector(s, o->encoder.k);
            QN_FAIL_IF(!o->own_columns, error, QN_E_MEMORY, "out of memory smoothing %s", o->weight->name);
        }
    }
    qn_parallel_for(exec, s->outputs->count, column_task, s);
    for (int32_t i = 0; i < s->outputs->count; i++) {
        if (wanted(s, i)) {
            QN_TRY(fold(s, i, error));
        }
    }
    return QN_OK;
}

qn_status qn_smooth(qn_ctx *ctx, const qn_hparams *hparams, qn_outputs *outputs, qn_calibration *calibration,
                    float alpha, const qn_exec *exec, qn_error *error)
{
    smoother s = {.ctx = ctx, .hparams = hparams, .outputs = outputs, .calibration = calibration, .alpha = alpha,
                  .map = qn_map_make(ctx), .widest = 1};
    qn_status status = QN_OK;
    for (int32_t i = 0; i < outputs->count && status == QN_OK; i++) {
        const char *name = outputs->list[i].weight->name;
        s.widest = qn_max_i64(s.widest, outputs->list[i].linear ? outputs->list[i].encoder.k : 1);
        if (qn_map_add(&s.map, name, strlen(name), i) < 0) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory smoothing %d tensors", outputs->count);
        }
    }
    if (status == QN_OK) {
        s.rows = qn_calloc(ctx, (size_t)s.widest * (size_t)qn_exec_threads(exec), sizeof(float));
        s.shared = qn_calloc(ctx, 2 * (size_t)s.widest, sizeof(float));
        if (!s.rows || !s.shared) {
            status = qn_error_set(error, QN_E_MEMORY, "out of memory smoothing %d tensors", outputs->count);
        }
    }
    if (status == QN_OK) {
        status = fold_all(&s, 1, exec, error);
    }
    if (status == QN_OK) {
        status = fold_all(&s, 0, exec, error);
    }
    qn_free(ctx, s.shared);
    qn_free(ctx, s.rows);
    qn_map_free(&s.map);
    return status;
}
