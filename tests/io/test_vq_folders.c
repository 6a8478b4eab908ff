/* Folders of vector-quantised models as they are published: a small llama whose
 * tensors and config.json are written here, each in its format's own layout, opens,
 * decodes to what docs/formats/vq.md says, and gives the logits of the same model in F32. What does
 * not fit together is refused in a sentence. */
#include <math.h>

#include "base/rng.h"
#include "format/format.h"
#include "io/checkpoint.h"
#include "io/io_files.h"
#include "op/quip_reference.h"
#include "quant/synthetic.h"

#include <quern/experimental.h>

enum { HIDDEN = 128, INNER = 192, KV = 64, VOCAB = 288, TOKENS = 6, MOST = 80 };

static qn_ctx *ctx;
static qn_rng rng;
static uint8_t e8p[256][8];

/* ---- a folder in the making ---- */

typedef struct folder {
    char names[MOST][96];
    qn_named_view views[MOST];
    int32_t count;
} folder;

static void *put(folder *f, const char *module, const char *name, qn_format format, int ndim, int64_t a, int64_t b,
                 int64_t c, int64_t d)
{
    const qn_shape shape = qn_shape_make(format, ndim, a, b, c, d);
    size_t size;
    assert_int_equal(qn_shape_bytes(&shape, &size, NULL), QN_OK);
    void *data = calloc(1, size + 1);
    assert_non_null(data);
    assert_true(f->count < MOST);
    snprintf(f->names[f->count], sizeof f->names[0], "%s.%s", module, name);
    f->views[f->count] = (qn_named_view){f->names[f->count], qn_view_make(data, &shape)};
    f->count++;
    return data;
}

static void empty(folder *f)
{
    for (int32_t i = 0; i < f->count; i++) {
        free((void *)(uintptr_t)f->views[i].view.data);
    }
    f->count = 0;
}

static int64_t below(int64_t n)
{
    return (int64_t)(qn_rng_next(&rng) % (uint64_t)n);
}

static uint16_t some_half(double size)
{
    return qn_f32_to_f16((float)((2 * qn_rng_uniform(&rng) - 1) * size));
}

static double value_of(uint16_t half)
{
    return (double)qn_f16_to_f32(half);
}

static void halves(uint16_t *to, int64_t n, double size)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = some_half(size);
    }
}

/* ---- the formats: each makes the tensors of a module and its weights w[n][k] ---- */

typedef struct style {
    const char *name, *key; /* of the scheme; of config.json's object */
    void (*make)(const struct style *s, folder *f, const char *module, int64_t n, int64_t k, float *w);
    int books, bits, group, rows; /* aqlm */
    qn_vq_codebook codebook;      /* quip */
    int fused, rescale;
    double residual;                                        /* resid_scale_override; 0: none */
    int vector, entries, res, outliers, groups, norm, perm; /* vptq */
    int loose;                                              /* decoded to within rounding only */
} style;

static void aqlm(const style *s, folder *f, const char *module, int64_t n, int64_t k, float *w)
{
    const int64_t entries = INT64_C(1) << s->bits, groups = k / s->group, rows = n / s->rows;
    void *codes = put(f, module, "codes", s->bits > 8 ? QN_I16 : QN_I8, 3, rows, groups, s->books, 1);
    uint16_t *book = put(f, module, "codebooks", QN_F16, 4, s->books, entries, s->rows, s->group);
    uint16_t *scales = put(f, module, "scales", QN_F16, 4, rows, 1, 1, 1);
    halves(book, s->books * entries * s->rows * s->group, 1);
    halves(scales, rows, 0.2);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            double sum[64] = {0};
            for (int64_t c = 0; c < s->books; c++) {
                const int64_t code = below(entries), at = (r * groups + g) * s->books + c;
                const int64_t stored = code >= entries / 2 ? code - entries : code;
                if (s->bits > 8) {
                    ((int16_t *)codes)[at] = (int16_t)stored;
                } else {
                    ((int8_t *)codes)[at] = (int8_t)stored;
                }
                for (int64_t j = 0; j < s->rows * s->group; j++) {
                    sum[j] += value_of(book[(c * entries + code) * s->rows * s->group + j]);
                }
            }
            for (int64_t j = 0; j < s->rows * s->group; j++) {
                w[(r * s->rows + j / s->group) * k + g * s->group + j % s->group] =
                    (float)(sum[j] * value_of(scales[r]));
            }
        }
    }
}

/* [n] or [n][k] by H, rows or columns: dense. */
static void transform(const double *from, int64_t n, int64_t stride, double *to)
{
    int64_t size = n;
    while (size % 2 == 0) {
        size /= 2;
    }
    size = size == 1 ? 1 : size * 4; /* of the lengths here */
    static char base[172 * 172];
    base_matrix((int)size, base);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            sum += dense_sign(base, size, n / size, i, j) * from[j * stride];
        }
        to[i] = sum / sqrt((double)n);
    }
}

static void quip(const style *s, folder *f, const char *module, int64_t n, int64_t k, float *w)
{
    const int64_t groups = k / 8;
    const int two = s->codebook == QN_VQ_E8P12RVQ4B, three = s->codebook == QN_VQ_E8P12RVQ3B;
    const int64_t columns = k / 32 * (two ? 2 : 1) + (three ? k / 64 : 0);
    uint64_t *words = put(f, module, "Qidxs", QN_I64, 2, n, columns, 1, 1);
    uint16_t *su = put(f, module, "SU", QN_F16, 1, k, 1, 1, 1), *sv = put(f, module, "SV", QN_F16, 1, n, 1, 1, 1);
    float *scale = put(f, module, "Wscale", QN_F32, 0, 1, 1, 1, 1);
    int64_t *id = put(f, module, "codebook_id", QN_I64, 0, 1, 1, 1, 1);
    uint16_t *wh = s->rescale ? put(f, module, "scaleWH", QN_F16, 1, k, 1, 1, 1) : NULL;
    double *q = calloc((size_t)(n * k), sizeof *q), *column = calloc((size_t)(n + k), sizeof *column);
    uint16_t *codes = calloc((size_t)(2 * n * groups), sizeof *codes), *second = codes + n * groups;
    *scale = 0.5f;
    *id = two ? 17 : (three ? 18 : 7);
    for (int64_t i = 0; i < k; i++) {
        su[i] = qn_f32_to_f16(below(2) ? 1.0f : -1.0f);
        if (wh) {
            wh[i] = qn_f32_to_f16((float)(0.5 + qn_rng_uniform(&rng)));
        }
    }
    for (int64_t i = 0; i < n; i++) {
        sv[i] = qn_f32_to_f16(below(2) ? 0.25f : -0.125f);
    }
    for (int64_t i = 0; i < n * groups; i++) {
        double more[8] = {0};
        codes[i] = (uint16_t)below(65536);
        second[i] = two ? (uint16_t)below(65536) : 0;
        e8p_value(e8p, codes[i], q + i * 8);
        if (two) {
            e8p_value(e8p, second[i], more);
        } else if (three) { /* a root that is easily named: byte 56 is the origin, 241 + i is 2 e_i */
            const int root = (int)below(2) ? 56 : 241 + (int)below(8);
            more[root == 56 ? 0 : root - 241] = root == 56 ? 0 : 2;
            words[i / groups * columns + k / 32 + i % groups / 8] |= (uint64_t)root << (8 * (i % 8));
        }
        for (int j = 0; j < 8; j++) {
            q[i * 8 + j] += more[j] / (s->residual > 0 ? s->residual : (two ? 3.45 : 2.04));
        }
    }
    e8p_pack(codes, n, groups, words, columns, 0);
    if (two) {
        e8p_pack(second, n, groups, words, columns, k / 32);
    }
    for (int64_t r = 0; r < n; r++) {
        transform(q + r * k, k, 1, column);
        memcpy(q + r * k, column, (size_t)k * sizeof *q);
    }
    int64_t part[3] = {n, 0, 0};
    float fuse[3] = {1, 1, 1};
    if (strstr(module, "qkv_proj") || strstr(module, "upgate_proj")) {
        const int qkv = strstr(module, "qkv_proj") != NULL;
        static const float scales[3] = {0.5f, 2.0f, 1.5f};
        float *stored = put(f, module, "fuse_scales", QN_F32, 1, qkv ? 3 : 2, 1, 1, 1);
        memcpy(stored, scales, (qkv ? 3 : 2) * sizeof *stored);
        memcpy(fuse, scales, sizeof fuse);
        part[0] = qkv ? HIDDEN : INNER;
        part[1] = qkv ? KV : INNER;
        part[2] = qkv ? KV : 0;
    }
    for (int64_t c = 0; c < k; c++) {
        transform(q + c, n, k, column);
        for (int64_t r = 0; r < n; r++) {
            const float factor = fuse[r < part[0] ? 0 : (r < part[0] + part[1] ? 1 : 2)];
            w[r * k + c] = (float)(column[r] * value_of(sv[r]) * (double)factor * (double)*scale * value_of(su[c]) /
                                   (wh ? value_of(wh[c]) : 1));
        }
    }
    free(codes);
    free(column);
    free(q);
}

static int bits_for(int count)
{
    int bits = 0;
    while ((1 << bits) < count) {
        bits++;
    }
    return bits;
}

static void vptq(const style *s, folder *f, const char *module, int64_t n, int64_t k, float *w)
{
    const int64_t v = s->vector, rows = (n + v - 1) / v, main = k - s->outliers, each = main / s->groups;
    const int bits = bits_for(s->entries), more = s->res ? bits_for(s->res) : 0;
    const int64_t words = (each * (bits + more) + 31) / 32;
    uint32_t *indices = put(f, module, "indices", QN_I32, 3, s->groups, rows, words, 1);
    uint16_t *centroids = put(f, module, "centroids.weight", QN_F16, 2, s->groups, s->entries * v, 1, 1);
    uint16_t *res = s->res ? put(f, module, "res_centroids.weight", QN_F16, 2, s->groups, s->res * v, 1, 1) : NULL;
    uint16_t *perm = s->perm ? put(f, module, "perm", QN_I16, 1, k, 1, 1, 1) : NULL;
    uint16_t *scale = s->norm ? put(f, module, "weight_scale", QN_F16, 1, k, 1, 1, 1) : NULL;
    uint16_t *bias = s->norm ? put(f, module, "weight_bias", QN_F16, 1, k, 1, 1, 1) : NULL;
    const int64_t vo = 4, outlier_rows = (n + vo - 1) / vo, outlier_entries = 32;
    uint16_t *outlier_books = NULL, *outlier_codes = NULL;
    if (s->outliers) {
        outlier_books = put(f, module, "outlier_centroids.weight", QN_F16, 2, 1, outlier_entries * vo, 1, 1);
        outlier_codes = put(f, module, "outlier_indices", QN_I16, 3, 1, outlier_rows, s->outliers, 1);
        halves(outlier_books, outlier_entries * vo, 0.3);
    }
    halves(centroids, s->groups * s->entries * v, 0.2);
    for (int64_t i = 0; i < s->groups * s->res * v; i++) {
        res[i] = some_half(0.05);
    }
    for (int64_t i = 0; s->norm && i < k; i++) {
        scale[i] = qn_f32_to_f16((float)(0.5 + qn_rng_uniform(&rng)));
        bias[i] = some_half(0.1);
    }
    int64_t *column = calloc((size_t)k, sizeof *column);
    for (int64_t i = 0; i < k; i++) { /* a shuffle from the inside */
        const int64_t j = s->perm ? below(i + 1) : i;
        column[i] = column[j];
        column[j] = i;
    }
    for (int64_t i = 0; s->perm && i < k; i++) {
        perm[i] = (uint16_t)column[i];
    }
    for (int64_t p = 0; p < k; p++) {
        const int64_t c = column[p];
        const int64_t g = p < s->outliers ? 0 : (p - s->outliers) / each,
                      i = p < s->outliers ? p : (p - s->outliers) % each;
        const int64_t length = p < s->outliers ? vo : v;
        for (int64_t r = 0; r < (n + length - 1) / length; r++) {
            const int64_t code = below(p < s->outliers ? outlier_entries : s->entries),
                          second = s->res ? below(s->res) : 0;
            if (p < s->outliers) {
                outlier_codes[r * s->outliers + p] = (uint16_t)code;
            } else {
                const uint64_t word = (uint64_t)code | (uint64_t)second << bits;
                for (int b = 0; b < bits + more; b++) {
                    const int64_t at = i * (bits + more) + b;
                    indices[(g * rows + r) * words + at / 32] |= (uint32_t)(word >> b & 1) << (at % 32);
                }
            }
            for (int64_t j = 0; j < length && r * length + j < n; j++) {
                double sum = p < s->outliers ? value_of(outlier_books[code * vo + j])
                                             : value_of(centroids[(g * s->entries + code) * v + j]);
                sum += s->res && p >= s->outliers ? value_of(res[(g * s->res + second) * v + j]) : 0;
                w[(r * length + j) * k + c] =
                    (float)((s->norm ? value_of(scale[c]) : 1) * sum + (s->norm ? value_of(bias[c]) : 0));
            }
        }
    }
    free(column);
}

/* ---- the model ---- */

static const char model_config[] =
    "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\",\"hidden_size\":128,"
    "\"intermediate_size\":192,\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":288,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":true";

typedef struct part {
    const char *name;
    int64_t n, k;
} part;

static const part plain_parts[] = {{"self_attn.q_proj", HIDDEN, HIDDEN}, {"self_attn.k_proj", KV, HIDDEN},
                                   {"self_attn.v_proj", KV, HIDDEN},     {"self_attn.o_proj", HIDDEN, HIDDEN},
                                   {"mlp.gate_proj", INNER, HIDDEN},     {"mlp.up_proj", INNER, HIDDEN},
                                   {"mlp.down_proj", HIDDEN, INNER}};
static const part fused_parts[] = {{"self_attn.qkv_proj", HIDDEN + 2 * KV, HIDDEN},
                                   {"self_attn.o_proj", HIDDEN, HIDDEN},
                                   {"mlp.upgate_proj", 2 * INNER, HIDDEN},
                                   {"mlp.down_proj", HIDDEN, INNER}};

static void norm(folder *f, const char *module)
{
    float *w = put(f, module, "weight", QN_F32, 1, HIDDEN, 1, 1, 1);
    for (int64_t i = 0; i < HIDDEN; i++) {
        w[i] = (float)(0.75 + 0.5 * qn_rng_uniform(&rng));
    }
}

static void module_name(char *to, size_t size, const char *name)
{
    snprintf(to, size, "model.layers.0.%s", name);
}

/* What the fused module of decoded rows w is in a plain model. */
static void put_plain(folder *plain, const part *p, const float *w)
{
    static const char *const qkv[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    static const char *const up_gate[] = {"mlp.up_proj", "mlp.gate_proj"};
    const int is_qkv = strcmp(p->name, "self_attn.qkv_proj") == 0, is_up = strcmp(p->name, "mlp.upgate_proj") == 0;
    const char *const *names = is_qkv ? qkv : (is_up ? up_gate : &p->name);
    char module[96];
    for (int64_t row = 0, i = 0; row < p->n; i++) {
        const int64_t n = is_qkv ? (i ? KV : HIDDEN) : (is_up ? INNER : p->n);
        module_name(module, sizeof module, names[i]);
        memcpy(put(plain, module, "weight", QN_F32, 2, n, p->k, 1, 1), w + row * p->k, (size_t)(n * p->k) * sizeof *w);
        row += n;
    }
}

/* Tensors of the coded model and of the same in F32; weights[i]: decoded, of part i. */
static void make_model(const style *s, folder *coded, folder *plain, float **weights)
{
    const part *parts = s->fused ? fused_parts : plain_parts;
    const int count = s->fused ? 4 : 7;
    char module[96];
    float *table = put(coded, "model.embed_tokens", "weight", QN_F32, 2, VOCAB, HIDDEN, 1, 1);
    for (int64_t i = 0; i < VOCAB * HIDDEN; i++) {
        table[i] = (float)(2 * qn_rng_uniform(&rng) - 1);
    }
    norm(coded, "model.norm");
    norm(coded, "model.layers.0.input_layernorm");
    norm(coded, "model.layers.0.post_attention_layernorm");
    for (int32_t i = 0; i < coded->count; i++) {
        const qn_shape *shape = &coded->views[i].view.shape;
        char *name = coded->names[i];
        const size_t stem = strlen(name) - strlen(".weight");
        snprintf(module, sizeof module, "%.*s", (int)stem, name);
        void *to = put(plain, module, "weight", QN_F32, shape->ndim, shape->dims[0], shape->dims[1], 1, 1);
        memcpy(to, coded->views[i].view.data, (size_t)qn_shape_elements(shape) * sizeof(float));
    }
    for (int i = 0; i < count; i++) {
        weights[i] = calloc((size_t)(parts[i].n * parts[i].k), sizeof(float));
        module_name(module, sizeof module, parts[i].name);
        s->make(s, coded, module, parts[i].n, parts[i].k, weights[i]);
        put_plain(plain, &parts[i], weights[i]);
    }
}

static void describe_module(const style *s, const part *p, char *text, size_t size)
{
    const int main = (int)p->k - s->outliers;
    snprintf(text, size,
             "{\"in_features\":%d,\"out_features\":%d,\"vector_lens\":[%d,%d],\"num_centroids\":[%d,%d],"
             "\"num_res_centroids\":[-1,%d],\"group_num\":%d,\"group_size\":%d,\"outlier_size\":%d,"
             "\"indices_as_float\":false,\"enable_norm\":%s,\"enable_perm\":%s,\"is_indice_packed\":true,"
             "\"bias\":false,\"vector_quant_dim\":\"out\"}",
             (int)p->k, (int)p->n, s->outliers ? 4 : -1, s->vector, s->outliers ? 32 : -1, s->entries,
             s->res ? s->res : -1, s->groups, main / s->groups, s->outliers, s->norm ? "true" : "false",
             s->perm ? "true" : "false");
}

static void config_text(const style *s, char *text, size_t size)
{
    static const char *const codebooks[] = {"", "E8P12", "E8P12RVQ3B", "E8P12RVQ4B"};
    char object[8192];
    if (s->make == aqlm) {
        snprintf(object, sizeof object,
                 "{\"quant_method\":\"aqlm\",\"in_group_size\":%d,\"out_group_size\":%d,\"num_codebooks\":%d,"
                 "\"nbits_per_codebook\":%d,\"linear_weights_not_to_quantize\":[\"lm_head.weight\","
                 "\"model.embed_tokens.weight\"]}",
                 s->group, s->rows, s->books, s->bits);
    } else if (s->make == quip) {
        snprintf(object, sizeof object,
                 "{\"codebook\":\"%s\",\"codebook_version\":1,\"codesz\":8,\"idx_dtype\":\"torch.int64\","
                 "\"lora_rank\":0,\"packsz\":4,\"rescale_WH\":%s,\"resid_scale_override\":%g,\"model_version\":1}",
                 codebooks[s->codebook], s->rescale ? "true" : "false", s->residual > 0 ? s->residual : -1.0);
    } else {
        int at = snprintf(object, sizeof object, "{\"quant_method\":\"vptq\",\"config_for_layers\":{");
        for (int i = 0; i < 7; i++) { /* k_proj by what is shared */
            char one[512];
            describe_module(s, &plain_parts[i], one, sizeof one);
            at += snprintf(object + at, sizeof object - (size_t)at, "%s\"%s%s\":%s", i ? "," : "",
                           i == 1 ? "unused." : "model.layers.0.", plain_parts[i].name, one);
        }
        char one[512];
        describe_module(s, &plain_parts[1], one, sizeof one);
        snprintf(object + at, sizeof object - (size_t)at,
                 "},\"shared_layer_config\":{\"k_proj\":%s},\"modules_to_not_convert\":[\"lm_head\"]}", one);
    }
    snprintf(text, size, "{%s,\"%s\":%s}", model_config, s->key, object);
}

static void write_model(const char *path, const folder *f, const char *config)
{
    qn_error error = {0};
    char file[300];
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    unlink(file);
    if (qn_tensors_write(ctx, file, f->views, f->count, NULL, 0, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    write_text(path, "config.json", config);
}

/* ---- what must come out ---- */

static void check_decode(const style *s, const qn_checkpoint *c, const part *p, const float *want)
{
    char module[96];
    snprintf(module, sizeof module, "model.layers.0.%s.weight", p->name);
    const qn_weight *w = qn_checkpoint_find(c, module);
    assert_non_null(w);
    assert_true(w->n == p->n && w->k == p->k);
    qn_error error = {0};
    qn_op_desc desc;
    qn_shape out[QN_MAX_OUT];
    qn_args args;
    qn_plan_options options;
    qn_plan *plan;
    qn_op_desc_init(&desc, QN_OP_VQ_DEQUANTIZE);
    memset(&args, 0, sizeof args);
    desc.attr[QN_ATTR_FORMAT].i = (int32_t)w->scheme->vq.format;
    for (int a = QN_ATTR_NUM_CODEBOOKS; w->attr && a <= QN_ATTR_OUT_FEATURES; a++) {
        desc.attr[a] = w->attr[a];
    }
    for (int32_t i = 0; i < w->part_count; i++) {
        const int32_t slot = qn_op_in_slot(desc.op, w->parts[i].name);
        desc.in[slot] = w->parts[i].view.shape;
        args.in[slot] = w->parts[i].view;
    }
    qn_plan_options_init(&options);
    options.backend = QN_BACKEND_REF;
    assert_int_equal(qn_op_desc_check(&desc, out, NULL, &error), QN_OK);
    assert_int_equal(qn_plan_create(ctx, &desc, &options, &plan, &error), QN_OK);
    float *got = calloc((size_t)(p->n * p->k), sizeof *got);
    args.out[0] = qn_mut_view_make(got, &out[0]);
    const size_t room = qn_plan_workspace_bytes(plan, p->n, 1);
    void *workspace = aligned_alloc(64, (room + 64) / 64 * 64);
    if (qn_run(plan, &args, workspace, room, NULL, &error) != QN_OK) {
        fail_msg("%s %s: %s", s->name, p->name, error.text);
    }
    for (int64_t i = 0; i < p->n * p->k; i++) {
        const float loose = s->loose ? 2e-6f * (1.0f + fabsf(want[i])) : 0.0f;
        if (!(fabsf(got[i] - want[i]) <= loose)) {
            fail_msg("%s %s: element %lld is %.9g, expected %.9g", s->name, p->name, (long long)i, (double)got[i],
                     (double)want[i]);
        }
    }
    free(workspace);
    free(got);
    qn_plan_destroy(plan);
}

static void run_model(const char *path, float *logits)
{
    qn_error error = {0};
    qn_model_options options;
    qn_model *model;
    qn_session_options how;
    qn_session *session;
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) {
        ids[i] = (i * 37 + 5) % VOCAB;
    }
    qn_model_options_init(&options);
    if (qn_model_open(ctx, path, &options, &model, &error) != QN_OK) {
        fail_msg("%s", error.text);
    }
    assert_null(qn_model_tokenizer(model)); /* the folders have none; a model of ids does without */
    qn_session_options_init(&how);
    how.context_length = TOKENS;
    assert_int_equal(qn_session_create(model, &how, &session, &error), QN_OK);
    assert_int_equal(qn_session_eval(session, ids, TOKENS, 1, logits, &error), QN_OK);
    qn_session_destroy(session);
    qn_model_close(model);
}

static const style styles[] = {
    {.name = "aqlm-2x8", .key = "quantization_config", .make = aqlm, .books = 2, .bits = 8, .group = 8, .rows = 1},
    {.name = "aqlm-3", .key = "quantization_config", .make = aqlm, .books = 2, .bits = 12, .group = 8, .rows = 1},
    {.name = "aqlm-1x16g16",
     .key = "quantization_config",
     .make = aqlm,
     .books = 1,
     .bits = 16,
     .group = 16,
     .rows = 1},
    {.name = "aqlm-8x8g32", .key = "quantization_config", .make = aqlm, .books = 8, .bits = 8, .group = 32, .rows = 1},
    {.name = "aqlm-3x5g2x4", .key = "quantization_config", .make = aqlm, .books = 3, .bits = 5, .group = 4, .rows = 2},
    {.name = "vptq", .key = "quantization_config", .make = vptq, .vector = 8, .entries = 256, .groups = 1},
    {.name = "vptq",
     .key = "quantization_config",
     .make = vptq,
     .vector = 6, /* rows are padded */
     .entries = 1024,
     .res = 64,
     .outliers = 8,
     .groups = 2,
     .norm = 1,
     .perm = 1},
    {.name = "quip-2", .key = "quip_params", .make = quip, .codebook = QN_VQ_E8P12, .loose = 1, .rescale = 1},
    {.name = "quip-3", .key = "quip_params", .make = quip, .codebook = QN_VQ_E8P12RVQ3B, .loose = 1},
    {.name = "quip-4",
     .key = "quip_params",
     .make = quip,
     .codebook = QN_VQ_E8P12RVQ4B,
     .residual = 3.6,
     .fused = 1,
     .loose = 1},
};

#define STYLES ((int)(sizeof styles / sizeof *styles))

static void published_folders(void **state)
{
    (void)state;
    char *coded_path = make_folder(), *plain_path = make_folder();
    for (int i = 0; i < STYLES; i++) {
        const style *s = &styles[i];
        static folder coded, plain;
        float *weights[7] = {NULL}, logits[2][TOKENS * VOCAB];
        char config[12000];
        rng.state = 100 + (uint64_t)i;
        make_model(s, &coded, &plain, weights);
        config_text(s, config, sizeof config);
        write_model(coded_path, &coded, config);
        snprintf(config, sizeof config, "{%s}", model_config);
        write_model(plain_path, &plain, config);

        qn_error error = {0};
        qn_checkpoint *c;
        if (qn_checkpoint_open(ctx, coded_path, &c, &error) != QN_OK) {
            fail_msg("%s: %s", s->name, error.text);
        }
        qn_model_info info;
        qn_checkpoint_get_info(c, &info);
        assert_string_equal(info.scheme, s->name);
        for (int p = 0; p < (s->fused ? 4 : 7); p++) {
            check_decode(s, c, (s->fused ? fused_parts : plain_parts) + p, weights[p]);
        }
        qn_checkpoint_close(c);

        run_model(coded_path, logits[0]);
        run_model(plain_path, logits[1]);
        double worst = 0, most = 0;
        for (int j = 0; j < TOKENS * VOCAB; j++) {
            worst = fmax(worst, fabs((double)logits[0][j] - (double)logits[1][j]));
            most = fmax(most, fabs((double)logits[1][j]));
        }
        print_message("%-13s logits up to %.1f, off by %.1e\n", s->name, most, worst);
        assert_true(most > 1 && worst < 1e-3 * most);
        for (int p = 0; p < 7; p++) {
            free(weights[p]);
        }
        empty(&coded);
        empty(&plain);
    }
    remove_folder(coded_path);
    remove_folder(plain_path);
}

/* ---- what is refused ---- */

typedef struct fault {
    int style;             /* of styles[] */
    const char *from, *to; /* in config.json; NULL: as it is */
    const char *drop;      /* tensors that end in this are left out; NULL: none */
    const char *cut;       /* tensor that ends in this: its dimension `at` becomes `size` */
    int at, size;
    qn_status status;
    const char *word;
} fault;

static const fault faults[] = {
    {.style = 0, .drop = "q_proj.codebooks", .status = QN_E_FILE, .word = "has no codebooks beside it"},
    {.style = 0, .drop = "v_proj.codes", .status = QN_E_FILE, .word = "has no codes beside it"},
    {.style = 0, .cut = "q_proj.scales", .at = 0, .size = 64, .status = QN_E_FILE, .word = "scales"},
    {.style = 0, .cut = "q_proj.codebooks", .at = 1, .size = 128, .status = QN_E_FILE, .word = "codebooks"},
    {.style = 0, .cut = "o_proj.codes", .at = 0, .size = 64, .status = QN_E_FILE, .word = "o_proj"},
    {.style = 0, .from = "\"num_codebooks\":2", .to = "\"num_codebooks\":3", .status = QN_E_FILE, .word = ",3]"},
    {.style = 0, .from = "\"in_group_size\":8", .to = "\"in_group_size\":0", .status = QN_E_FILE, .word = "in_group"},
    {.style = 0, .from = "\"in_group_size\":8,", .to = "", .status = QN_E_FILE, .word = "in_group_size is missing"},
    {.style = 0,
     .from = "\"lm_head.weight\"",
     .to = "\"model.layers.0.self_attn.k_proj.weight\"",
     .status = QN_E_FILE,
     .word = "leaves it out"},
    {.style = 0, .from = "\"aqlm\"", .to = "\"bitnet\"", .status = QN_E_UNSUPPORTED, .word = "bitnet"},
    {.style = 6,
     .from = "\"model.layers.0.self_attn.q_proj\"",
     .to = "\"model.layers.9.self_attn.q_proj\"",
     .status = QN_E_FILE,
     .word = "says nothing about model.layers.0.self_attn.q_proj"},
    {.style = 6,
     .from = "\"config_for_layers\":{",
     .to = "\"config_for_layers\":[",
     .status = QN_E_FILE,
     .word = "JSON"},
    {.style = 6,
     .from = "\"vector_lens\":[4,6]",
     .to = "\"vector_lens\":[4]",
     .status = QN_E_FILE,
     .word = "vector_lens is not an array of two"},
    {.style = 6, .from = "\"vector_lens\":[4,6]", .to = "\"vector_lens\":[4,8]", .status = QN_E_FILE, .word = "q_proj"},
    {.style = 6,
     .from = "\"num_centroids\":[32,1024]",
     .to = "\"num_centroids\":[32,512]",
     .status = QN_E_FILE,
     .word = "q_proj"},
    {.style = 6,
     .from = "\"is_indice_packed\":true",
     .to = "\"is_indice_packed\":false",
     .status = QN_E_UNSUPPORTED,
     .word = "is_indice_packed"},
    {.style = 6,
     .from = "\"vector_quant_dim\":\"out\"",
     .to = "\"vector_quant_dim\":\"in\"",
     .status = QN_E_UNSUPPORTED,
     .word = "vector_quant_dim in"},
    {.style = 6,
     .from = "\"num_res_centroids\":[-1,64]",
     .to = "\"num_res_centroids\":[16,64]",
     .status = QN_E_UNSUPPORTED,
     .word = "residual centroids of outliers"},
    {.style = 6,
     .from = "\"group_size\":60",
     .to = "\"group_size\":64",
     .status = QN_E_UNSUPPORTED,
     .word = "group_size 64"},
    {.style = 6,
     .from = "\"outlier_size\":8",
     .to = "\"outlier_size\":0",
     .status = QN_E_FILE,
     .word = "outlier_size is 0"},
    {.style = 6,
     .from = "\"enable_perm\":true",
     .to = "\"enable_perm\":false",
     .status = QN_E_FILE,
     .word = "perm is there although"},
    {.style = 6, .drop = "down_proj.res_centroids.weight", .status = QN_E_FILE, .word = "has no res_centroids.weight"},
    {.style = 6, .cut = "gate_proj.perm", .at = 0, .size = 127, .status = QN_E_FILE, .word = "gate_proj"},
    {.style = 6, .cut = "gate_proj.indices", .at = 1, .size = 31, .status = QN_E_FILE, .word = "gate_proj"},
    {.style = 7, .drop = "o_proj.SU", .status = QN_E_FILE, .word = "has no SU beside it"},
    {.style = 7, .drop = "o_proj.scaleWH", .status = QN_E_FILE, .word = "has no scaleWH beside it"},
    {.style = 7,
     .from = "\"rescale_WH\":true",
     .to = "\"rescale_WH\":false",
     .status = QN_E_FILE,
     .word = "scaleWH is there although"},
    {.style = 7, .cut = "o_proj.SV", .at = 0, .size = 88, .status = QN_E_UNSUPPORTED, .word = "no Hadamard"},
    {.style = 7, .cut = "o_proj.SV", .at = 0, .size = 64, .status = QN_E_FILE, .word = "SV"},
    {.style = 7, .from = "\"E8P12\"", .to = "\"E8P12RVQ4B\"", .status = QN_E_FILE, .word = "Qidxs"},
    {.style = 7, .from = "\"E8P12\"", .to = "\"D4\"", .status = QN_E_UNSUPPORTED, .word = "codebook D4"},
    {.style = 7, .from = "torch.int64", .to = "torch.int16", .status = QN_E_UNSUPPORTED, .word = "torch.int16"},
    {.style = 7,
     .from = "\"lora_rank\":0",
     .to = "\"lora_rank\":64",
     .status = QN_E_UNSUPPORTED,
     .word = "lora_rank 64"},
    {.style = 7,
     .from = "\"quip_params\":",
     .to = "\"quantization_config\":{\"quant_method\":\"aqlm\"},\"quip_params\":",
     .status = QN_E_FILE,
     .word = "in_group_size is missing"},
    {.style = 9,
     .cut = "qkv_proj.fuse_scales",
     .at = 0,
     .size = 2,
     .status = QN_E_FILE,
     .word = "fuse_scales is not 3"},
    {.style = 9, .drop = "upgate_proj.Qidxs", .status = QN_E_FILE, .word = "upgate_proj"},
    {.style = 9, .cut = "upgate_proj.Qidxs", .at = 0, .size = 368, .status = QN_E_FILE, .word = "upgate_proj"},
};

static int ends_in(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

/* The folder with its fault; what stays of a tensor keeps its first bytes. */
static void write_fault(const char *path, const style *s, const fault *bad, const folder *f)
{
    char config[12000], changed[13000];
    static folder spoilt;
    spoilt = *f;
    int hits = bad->from != NULL;
    for (int32_t i = 0; i < spoilt.count; i++) {
        if (bad->drop && ends_in(f->names[i], bad->drop)) {
            hits++;
            spoilt.views[i] = spoilt.views[--spoilt.count];
        }
    }
    for (int32_t i = 0; i < spoilt.count; i++) {
        if (bad->cut && ends_in(spoilt.views[i].name, bad->cut)) {
            hits++;
            qn_shape shape = spoilt.views[i].view.shape;
            assert_true(bad->size < shape.dims[bad->at]);
            shape.dims[bad->at] = bad->size;
            spoilt.views[i].view = qn_view_make(spoilt.views[i].view.data, &shape);
        }
    }
    config_text(s, config, sizeof config);
    const char *at = bad->from ? strstr(config, bad->from) : config;
    assert_non_null(at);
    assert_true(hits > 0);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config, bad->from ? bad->to : "",
             at + (bad->from ? strlen(bad->from) : 0));
    write_model(path, &spoilt, changed);
}

static void broken_folders(void **state)
{
    (void)state;
    char *path = make_folder();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const fault *bad = &faults[i];
        static folder coded, plain;
        float *weights[7] = {NULL};
        rng.state = 7;
        make_model(&styles[bad->style], &coded, &plain, weights);
        write_fault(path, &styles[bad->style], bad, &coded);
        qn_error error = {0};
        qn_checkpoint *c = NULL;
        const qn_status status = qn_checkpoint_open(ctx, path, &c, &error);
        check_sentence(bad->word, &error);
        if (status != bad->status || !strstr(error.text, bad->word)) {
            fail_msg("%s: %s \"%s\", expected %s with \"%s\"", styles[bad->style].name, qn_status_name(status),
                     error.text, qn_status_name(bad->status), bad->word);
        }
        assert_null(c);
        for (int p = 0; p < 7; p++) {
            free(weights[p]);
        }
        empty(&coded);
        empty(&plain);
    }
    remove_folder(path);
}

/* Values that only the codes show: found when the model is opened. */
static void broken_values(void **state)
{
    (void)state;
    static const struct {
        int style;
        const char *tensor, *word;
    } bad[] = {{0, "q_proj.codebooks", "finite"},
               {6, "q_proj.perm", "perm"},
               {7, "q_proj.codebook_id", "codebook_id"},
               {2, "down_proj.codebooks", "finite"}};
    char *path = make_folder();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const style *s = &styles[bad[i].style];
        static folder coded, plain;
        float *weights[7] = {NULL};
        char config[12000];
        make_model(s, &coded, &plain, weights);
        for (int32_t t = 0; t < coded.count; t++) {
            if (ends_in(coded.names[t], bad[i].tensor)) {
                memset((void *)(uintptr_t)coded.views[t].view.data, 0xFF, 2); /* a NaN, or beyond */
            }
        }
        config_text(s, config, sizeof config);
        write_model(path, &coded, config);
        qn_error error = {0};
        qn_model_options options;
        qn_model *model = NULL;
        qn_model_options_init(&options);
        const qn_status status = qn_model_open(ctx, path, &options, &model, &error);
        check_sentence(bad[i].word, &error);
        if (status != QN_E_ARGUMENT || !strstr(error.text, bad[i].word)) {
            fail_msg("%s: %s \"%s\"", bad[i].tensor, qn_status_name(status), error.text);
        }
        for (int p = 0; p < 7; p++) {
            free(weights[p]);
        }
        empty(&coded);
        empty(&plain);
    }
    remove_folder(path);
}

static int setup(void **state)
{
    (void)state;
    e8p_table(e8p);
    return qn_ctx_create(NULL, &ctx, NULL) != QN_OK;
}

static int teardown(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_folders),
        cmocka_unit_test(broken_folders),
        cmocka_unit_test(broken_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
