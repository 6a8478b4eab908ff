/* quantization_config, read and written from the same description of a scheme
 * row, so that the two cannot drift apart. */
#include "io/quant_config_internal.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "io/json.h"

#define MAX_NAMES 65536
#define MAX_GROUPS 64
#define MAX_PATTERN 4096
#define MATCH_LIMIT 100000

/* How compressed-tensors describes one side (weights or input activations). */
typedef struct ct_args {
    int bits;             /* 0: this side is not quantised */
    const char *type;     /* "float", "int" */
    const char *strategy; /* "channel", "token", "group", "tensor_group", "block" */
    int group, block_n, block_k;
    int symmetric;
    const char *dynamic;     /* "false", "true", "local" */
    const char *scale_dtype; /* NULL: not said */
} ct_args;

static ct_args weights_of(const qn_scheme *s)
{
    ct_args a = {.type = s->weight == QN_I8 ? "int" : "float", .symmetric = 1, .dynamic = "false"};
    a.bits = s->weight == QN_F4_E2M1 ? 4 : 8;
    switch (s->scales) {
    case QN_SCALES_CHANNEL: a.strategy = "channel"; break;
    case QN_SCALES_BLOCK:
        a.strategy = "block";
        a.block_n = s->block_n;
        a.block_k = s->block_k;
        break;
    case QN_SCALES_GROUP:
        a.strategy = s->global_scale ? "tensor_group" : "group";
        a.group = s->block_k;
        break;
    default: a.strategy = "tensor"; break;
    }
    a.scale_dtype = s->scale_format == QN_F8_E4M3 ? "torch.float8_e4m3fn"
                    : s->scale_format == QN_E8M0  ? "torch.uint8"
                                                  : NULL;
    return a;
}

static ct_args activations_of(const qn_scheme *s)
{
    ct_args a = {.type = "float", .symmetric = 1, .dynamic = s->act_static ? "false" : "true"};
    switch (s->act_op) {
    case QN_OP_QUANTIZE_FP8: a.bits = 8; break;
    case QN_OP_QUANTIZE_INT8:
        a.bits = 8;
        a.type = "int";
        a.symmetric = s->act_symmetric;
        break;
    case QN_OP_QUANTIZE_NVFP4:
        a.bits = 4;
        a.strategy = "tensor_group";
        a.group = s->act_group;
        a.dynamic = "local";
        a.scale_dtype = "torch.float8_e4m3fn";
        return a;
    case QN_OP_QUANTIZE_MXFP4:
        a.bits = 4;
        a.scale_dtype = "torch.uint8";
        break;
    default: return a;
    }
    a.strategy = s->act_granularity == QN_PER_TOKEN ? "token" : s->act_granularity == QN_PER_GROUP ? "group" : "tensor";
    a.group = s->act_granularity == QN_PER_GROUP ? s->act_group : 0;
    return a;
}

/* ---- reading ---- */

static void *pcre_alloc(size_t size, void *ctx)
{
    return qn_alloc(ctx, size);
}

static void pcre_free(void *pointer, void *ctx)
{
    qn_free(ctx, pointer);
}

static qn_status add_pattern(qn_quant_config *config, qn_name_patterns *to, const char *key, const char *text,
                             int regex, qn_error *error)
{
    qn_name_pattern *p = &to->list[to->count];
    QN_FAIL_IF(strlen(text) > MAX_PATTERN, error, QN_E_FILE, "%s holds an entry of %zu bytes, at most %d are allowed",
               key, strlen(text), MAX_PATTERN);
    if (!regex) {
        p->text = text;
        to->count++;
        return QN_OK;
    }
    if (!config->memory) {
        config->memory = pcre2_general_context_create(pcre_alloc, pcre_free, (void *)config->ctx);
        config->limits = config->memory ? pcre2_match_context_create(config->memory) : NULL;
        QN_FAIL_IF(!config->limits, error, QN_E_MEMORY, "out of memory for %s patterns", key);
        pcre2_set_match_limit(config->limits, MATCH_LIMIT);
        pcre2_set_depth_limit(config->limits, 1000);
        pcre2_set_heap_limit(config->limits, 4096);
    }
    pcre2_compile_context *compile = pcre2_compile_context_create(config->memory);
    QN_FAIL_IF(!compile, error, QN_E_MEMORY, "out of memory for %s patterns", key);
    pcre2_set_parens_nest_limit(compile, 32);
    int code = 0;
    PCRE2_SIZE at = 0;
    p->regex = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &at, compile);
    pcre2_compile_context_free(compile);
    QN_FAIL_IF(!p->regex, error, code == PCRE2_ERROR_HEAP_FAILED ? QN_E_MEMORY : QN_E_FILE,
               "%s pattern re:%.80s is not a regular expression (at %zu)", key, text, (size_t)at);
    to->count++;
    return QN_OK;
}

/* An array of names; "re:" entries are regular expressions when allowed. */
static qn_status read_patterns(qn_quant_config *config, const json_t *object, const char *key, int regex,
                               qn_name_patterns *out, qn_error *error)
{
    const json_t *list = json_object_get(object, key);
    if (!list || json_is_null(list)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_array(list) || json_array_size(list) > MAX_NAMES, error, QN_E_FILE,
               "%s is not an array of at most %d names", key, MAX_NAMES);
    out->list = qn_calloc(config->ctx, json_array_size(list) + 1, sizeof *out->list);
    QN_FAIL_IF(!out->list, error, QN_E_MEMORY, "out of memory for %s", key);
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        const char *text = json_string_value(value);
        QN_FAIL_IF(!text, error, QN_E_FILE, "%s[%zu] is not a string", key, i);
        const int is_regex = regex && strncmp(text, "re:", 3) == 0;
        QN_TRY(add_pattern(config, out, key, is_regex ? text + 3 : text, is_regex, error));
    }
    return QN_OK;
}

qn_status qn_quant_config_read_ignore(qn_quant_config *config, const char *key, int regex, qn_error *error)
{
    return read_patterns(config, config->json, key, regex, &config->ignore, error);
}

static int has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

/* [n, k] of two positive integers. */
static qn_status read_pair(const json_t *object, const char *key, int *n, int *k, qn_error *error)
{
    const json_t *pair = json_object_get(object, key);
    const json_int_t a = json_integer_value(json_array_get(pair, 0)), b = json_integer_value(json_array_get(pair, 1));
    QN_FAIL_IF(json_array_size(pair) != 2 || a < 1 || b < 1 || a > 65536 || b > 65536, error, QN_E_FILE,
               "%s is not an array of two positive integers", key);
    *n = (int)a;
    *k = (int)b;
    return QN_OK;
}

/* Scales of a KV cache are not used: what it is kept in is chosen with the model. */
static void note_kv(const qn_quant_config *config, const json_t *object, const char *key)
{
    if (has(object, key)) {
        qn_log(config->ctx, QN_LOG_INFO, "%s is not used, keys and values are kept as the model's options say", key);
    }
}

/* The word of quantization_config's fmt for an FP8 format: "e4m3" for f8_e4m3. */
static const char *fp8_word(qn_format format)
{
    return qn_format_get_info(format)->name + strlen("f8_");
}

static qn_status parse_fp8(qn_quant_config *config, qn_error *error)
{
    const char *activations = "dynamic", *fmt = "e4m3", *scale_fmt = "float";
    QN_TRY(qn_json_get_string(config->json, "activation_scheme", &activations, error));
    QN_TRY(qn_json_get_string(config->json, "fmt", &fmt, error));
    QN_TRY(qn_json_get_string(config->json, "scale_fmt", &scale_fmt, error));
    const int is_static = strcmp(activations, "static") == 0;
    QN_FAIL_IF(!is_static && strcmp(activations, "dynamic") != 0, error, QN_E_UNSUPPORTED,
               "activation_scheme %.40s is not supported, expected dynamic or static", activations);
    QN_FAIL_IF(strcmp(scale_fmt, "float") != 0, error, QN_E_UNSUPPORTED,
               "scale_fmt %.40s is not supported, expected none or float", scale_fmt);
    int n = 0, k = 0;
    if (has(config->json, "weight_block_size")) {
        QN_TRY(read_pair(config->json, "weight_block_size", &n, &k, error));
    }
    note_kv(config, config->json, "kv_cache_scheme");
    const qn_scheme *s;
    int known_fmt = 0, known_block = 0;
    for (int32_t i = 0; (s = qn_scheme_readable(i)) != NULL; i++) {
        const int same_fmt = s->layout == QN_LAYOUT_FP8 && strcmp(fp8_word(s->weight), fmt) == 0;
        const int same_block = same_fmt && s->block_n == n && s->block_k == k;
        if (same_block && s->act_static == is_static) {
            config->scheme = s;
            return qn_quant_config_read_ignore(
                config, has(config->json, "ignored_layers") ? "ignored_layers" : "modules_to_not_convert", 0, error);
        }
        known_fmt |= same_fmt;
        known_block |= same_block;
    }
    QN_FAIL_IF(!known_fmt, error, QN_E_UNSUPPORTED, "fmt %.40s is not supported, expected e4m3", fmt);
    QN_FAIL_IF(known_block, error, QN_E_UNSUPPORTED,
               "activation_scheme static with weight_block_size is not supported");
    QN_FAIL_IF(!n, error, QN_E_UNSUPPORTED, "fmt %.40s without weight_block_size is not supported", fmt);
    QN_FAIL(error, QN_E_UNSUPPORTED, "weight_block_size [%d, %d] is not supported, expected [128, 128]", n, k);
}

/* One side of a config group. */
static qn_status read_args(const json_t *object, const char *side, ct_args *out, qn_error *error)
{
    *out = (ct_args){.type = "int", .symmetric = 1, .dynamic = "false"};
    if (!object || json_is_null(object)) {
        return QN_OK;
    }
    QN_FAIL_IF(!json_is_object(object), error, QN_E_FILE, "%s is not an object", side);
    int64_t bits = 8, group = 0;
    QN_TRY(qn_json_get_int(object, "num_bits", 1, 64, &bits, error));
    QN_TRY(qn_json_get_int(object, "group_size", -1, 1 << 20, &group, error));
    QN_TRY(qn_json_get_string(object, "type", &out->type, error));
    QN_TRY(qn_json_get_bool(object, "symmetric", &out->symmetric, error));
    QN_TRY(qn_json_get_string(object, "strategy", &out->strategy, error));
    const json_t *dynamic = json_object_get(object, "dynamic");
    if (json_is_boolean(dynamic)) {
        out->dynamic = json_is_true(dynamic) ? "true" : "false";
    } else {
        QN_TRY(qn_json_get_string(object, "dynamic", &out->dynamic, error));
    }
    out->bits = (int)bits;
    out->group = group > 0 ? (int)group : 0;
    if (!out->strategy) {
        out->strategy = group > 0 ? "group" : group < 0 ? "channel" : "tensor";
    }
    if (has(object, "block_structure")) {
        QN_TRY(read_pair(object, "block_structure", &out->block_n, &out->block_k, error));
    }
    QN_FAIL_IF(has(object, "actorder") && !json_is_false(json_object_get(object, "actorder")), error, QN_E_UNSUPPORTED,
               "%s with actorder are not supported", side);
    return QN_OK;
}

/* Older files say "group" where the scale format makes it "tensor_group"; the one scale of a tensor is read as its
 * channels'. */
static int same_strategy(const char *wanted, const char *found)
{
    return strcmp(wanted, found) == 0 || (strcmp(wanted, "tensor_group") == 0 && strcmp(found, "group") == 0) ||
           (strcmp(wanted, "channel") == 0 && strcmp(found, "tensor") == 0);
}

static int same_args(const ct_args *wanted, const ct_args *found)
{
    if (!wanted->bits || !found->bits) {
        return !wanted->bits && !found->bits;
    }
    return wanted->bits == found->bits && strcmp(wanted->type, found->type) == 0 &&
           same_strategy(wanted->strategy, found->strategy) && wanted->group == found->group &&
           wanted->block_n == found->block_n && wanted->block_k == found->block_k &&
           wanted->symmetric == found->symmetric && strcmp(wanted->dynamic, found->dynamic) == 0;
}

/* "naive-quantized" stores elements of eight bits as the formats by their type do. */
static int same_format(const qn_scheme *s, const char *format)
{
    return strcmp(s->word, format) == 0 || (strcmp(format, "naive-quantized") == 0 && s->weight != QN_F4_E2M1);
}

/* The scheme row that a group describes; format: the config's, unless the group says its own. */
static qn_status find_row(const json_t *object, const char *format, const qn_scheme **scheme, qn_error *error)
{
    QN_FAIL_IF(has(object, "output_activations"), error, QN_E_UNSUPPORTED, "output_activations are not supported");
    QN_TRY(qn_json_get_string(object, "format", &format, error));
    QN_FAIL_IF(!format, error, QN_E_FILE, "quantization_config has no format");
    ct_args weights, activations;
    QN_FAIL_IF(!has(object, "weights"), error, QN_E_UNSUPPORTED, "a config group without weights is not supported");
    QN_TRY(read_args(json_object_get(object, "weights"), "weights", &weights, error));
    QN_TRY(read_args(json_object_get(object, "input_activations"), "input_activations", &activations, error));
    for (int32_t i = 0; (*scheme = qn_scheme_readable(i)) != NULL; i++) {
        if ((*scheme)->layout != QN_LAYOUT_COMPRESSED_TENSORS || !same_format(*scheme, format)) {
            continue;
        }
        const ct_args w = weights_of(*scheme), a = activations_of(*scheme);
        if (same_args(&w, &weights) && same_args(&a, &activations)) {
            return QN_OK;
        }
    }
    QN_FAIL(error, QN_E_UNSUPPORTED,
            "format %.40s with %d-bit %.10s weights (%.20s, group %d) and %d-bit activations (%.20s, %.10s) is not "
            "supported",
            format, weights.bits, weights.type, weights.strategy, weights.group, activations.bits,
            activations.bits ? activations.strategy : "none", activations.dynamic);
}

/* A group of the class Linear gives all modules their scheme; others name modules, as text or expressions. */
static qn_status read_group(qn_quant_config *config, const json_t *object, const char *format, qn_error *error)
{
    QN_FAIL_IF(!json_is_object(object), error, QN_E_UNSUPPORTED, "a config group that is no object is not supported");
    const json_t *targets = json_object_get(object, "targets");
    QN_FAIL_IF(!json_is_array(targets) || !json_array_size(targets), error, QN_E_FILE,
               "targets is not an array of names");
    qn_config_group *g = &config->groups[config->group_count];
    QN_TRY(find_row(object, format, &g->scheme, error));
    const char *first = json_string_value(json_array_get(targets, 0));
    if (first && strcmp(first, "Linear") == 0) {
        QN_FAIL_IF(json_array_size(targets) != 1, error, QN_E_UNSUPPORTED,
                   "targets with Linear and %zu others are not supported", json_array_size(targets) - 1);
        QN_FAIL_IF(config->scheme, error, QN_E_UNSUPPORTED, "two config groups have the target Linear");
        config->scheme = g->scheme;
        return QN_OK;
    }
    config->group_count++;
    QN_TRY(read_patterns(config, object, "targets", 1, &g->modules, error));
    for (int32_t i = 0; i < g->modules.count; i++) {
        const char *text = g->modules.list[i].text; /* a class has no dot; of modules, lm_head has none either */
        QN_FAIL_IF(text && !strchr(text, '.') && strcmp(text, "lm_head") != 0, error, QN_E_UNSUPPORTED,
                   "the target %.40s is not supported, expected Linear or names of modules", text);
    }
    return QN_OK;
}

static qn_status parse_compressed(qn_quant_config *config, qn_error *error)
{
    const json_t *groups = json_object_get(config->json, "config_groups");
    const char *format = NULL, *status = "compressed";
    QN_TRY(qn_json_get_string(config->json, "format", &format, error));
    QN_TRY(qn_json_get_string(config->json, "quantization_status", &status, error));
    QN_FAIL_IF(strcmp(status, "compressed") != 0 && strcmp(status, "frozen") != 0, error, QN_E_UNSUPPORTED,
               "quantization_status %.40s is not supported, expected compressed", status);
    QN_FAIL_IF(!json_is_object(groups) || json_object_size(groups) == 0, error, QN_E_FILE,
               "config_groups is not an object with a group");
    QN_FAIL_IF(json_object_size(groups) > MAX_GROUPS, error, QN_E_UNSUPPORTED,
               "config_groups has %zu groups, at most %d are supported", json_object_size(groups), MAX_GROUPS);
    const json_t *sparsity = json_object_get(config->json, "sparsity_config");
    const char *sparse = "dense";
    QN_TRY(qn_json_get_string(sparsity, "format", &sparse, error));
    QN_FAIL_IF(strcmp(sparse, "dense") != 0, error, QN_E_UNSUPPORTED,
               "sparsity_config of the format %.40s is not supported, expected dense", sparse);
    QN_FAIL_IF(has(config->json, "transform_config") &&
                   json_object_size(json_object_get(config->json, "transform_config")),
               error, QN_E_UNSUPPORTED, "transform_config is not supported");
    note_kv(config, config->json, "kv_cache_scheme");
    config->groups = qn_calloc(config->ctx, json_object_size(groups), sizeof *config->groups);
    QN_FAIL_IF(!config->groups, error, QN_E_MEMORY, "out of memory for config_groups");
    const char *name;
    json_t *object;
    json_object_foreach((json_t *)groups, name, object)
    {
        QN_TRY(read_group(config, object, format, error));
    }
    if (!config->scheme) {
        config->named_only = 1;
        config->scheme = config->groups[0].scheme;
    }
    return qn_quant_config_read_ignore(config, "ignore", 1, error);
}

/* The row of a quant_algo; `of`: the object that says it, and group_size. */
static qn_status find_algo(const json_t *of, const qn_scheme **scheme, qn_error *error)
{
    const char *algo = NULL;
    int64_t group = 0;
    QN_TRY(qn_json_get_string(of, "quant_algo", &algo, error));
    QN_TRY(qn_json_get_int(of, "group_size", 1, 1 << 20, &group, error));
    QN_FAIL_IF(!algo, error, QN_E_FILE, "there is no quant_algo");
    for (int32_t i = 0; (*scheme = qn_scheme_readable(i)) != NULL; i++) {
        const qn_scheme *s = *scheme;
        if (s->layout == QN_LAYOUT_MODELOPT && strcasecmp(s->word, algo) == 0) {
            QN_FAIL_IF(s->block_k && group && group != s->block_k && group != s->file_k, error, QN_E_UNSUPPORTED,
                       "quant_algo %s with group_size %d is not supported, expected %d", s->word, (int)group,
                       (int)(s->file_k ? s->file_k : s->block_k));
            return QN_OK;
        }
    }
    QN_FAIL(error, QN_E_UNSUPPORTED,
            "quant_algo %.40s is not supported, expected FP8, FP8_PER_CHANNEL_PER_TOKEN, NVFP4, W4A16_NVFP4, "
            "W4A8_NVFP4_FP8 or W4A8_MXFP4_FP8, or MIXED_PRECISION of them",
            algo);
}

/* quantized_layers: what each module that is quantised is in; the modules of a scheme are a group. */
static qn_status read_layers(qn_quant_config *config, const json_t *layers, qn_error *error)
{
    const size_t count = json_object_size(layers);
    QN_FAIL_IF(!count || count > MAX_NAMES, error, QN_E_FILE, "quantized_layers is not an object of at most %d modules",
               MAX_NAMES);
    config->groups = qn_calloc(config->ctx, MAX_GROUPS, sizeof *config->groups);
    QN_FAIL_IF(!config->groups, error, QN_E_MEMORY, "out of memory for quantized_layers");
    const char *module;
    json_t *layer;
    json_object_foreach((json_t *)layers, module, layer)
    {
        const qn_scheme *scheme;
        const qn_status status = find_algo(layer, &scheme, error);
        if (status != QN_OK) {
            return qn_error_prefix(error, status, "quantized_layers: %.80s", module);
        }
        int32_t g = 0;
        while (g < config->group_count && config->groups[g].scheme != scheme) {
            g++;
        }
        qn_config_group *group = &config->groups[g]; /* there are fewer rows than MAX_GROUPS */
        if (g == config->group_count) {
            config->group_count++;
            group->scheme = scheme;
            group->modules.list = qn_calloc(config->ctx, count, sizeof *group->modules.list);
            QN_FAIL_IF(!group->modules.list, error, QN_E_MEMORY, "out of memory for quantized_layers");
        }
        QN_TRY(add_pattern(config, &group->modules, "quantized_layers", module, 0, error));
    }
    config->named_only = 1;
    config->scheme = config->groups[0].scheme;
    return QN_OK;
}

/* modelopt: object says it, in config.json or hf_quant_config.json. */
static qn_status parse_modelopt(qn_quant_config *config, const json_t *object, qn_error *error)
{
    const char *algo = "";
    note_kv(config, object, "kv_cache_quant_algo");
    note_kv(config, object, "kv_cache_scheme");
    QN_TRY(qn_json_get_string(object, "quant_algo", &algo, error));
    QN_TRY(strcasecmp(algo, "MIXED_PRECISION") == 0
               ? read_layers(config, json_object_get(object, "quantized_layers"), error)
               : find_algo(object, &config->scheme, error));
    return read_patterns(config, object, has(object, "ignore") ? "ignore" : "exclude_modules", 0, &config->ignore,
                         error);
}

static qn_status begin(const qn_ctx *ctx, const json_t *object, const char *key, qn_quant_config **config,
                       qn_quant_config **out, qn_error *error)
{
    *out = NULL;
    QN_FAIL_IF(!json_is_object(object), error, QN_E_FILE, "%s is not an object", key);
    *config = qn_calloc(ctx, 1, sizeof **config);
    QN_FAIL_IF(!*config, error, QN_E_MEMORY, "out of memory for %s", key);
    (*config)->ctx = ctx;
    (*config)->json = json_incref((json_t *)object);
    return QN_OK;
}

static qn_status finish(qn_quant_config *config, const char *key, qn_status status, qn_quant_config **out,
                        qn_error *error)
{
    if (status != QN_OK) {
        qn_quant_config_destroy(config);
        return qn_error_prefix(error, status, "%s", key);
    }
    *out = config;
    return QN_OK;
}

qn_status qn_quant_config_parse(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error)
{
    const char *method = NULL;
    qn_quant_config *config = NULL;
    QN_TRY(begin(ctx, object, "quantization_config", &config, out, error));
    qn_status status = qn_json_get_string(object, "quant_method", &method, error);
    if (status == QN_OK && !method) {
        status = qn_error_set(error, QN_E_FILE, "there is no quant_method");
    }
    if (status != QN_OK) {
        return finish(config, "quantization_config", status, out, error);
    }
    if (strcmp(method, "fp8") == 0) {
        status = parse_fp8(config, error);
    } else if (strcmp(method, "compressed-tensors") == 0) {
        status = parse_compressed(config, error);
    } else if (strcmp(method, "modelopt") == 0) {
        const json_t *inner = json_object_get(object, "quantization");
        status = parse_modelopt(config, json_is_object(inner) ? inner : object, error);
    } else if (strcmp(method, "aqlm") == 0) {
        status = qn_quant_config_parse_books(config, QN_LAYOUT_AQLM, error);
    } else if (strcmp(method, "gptvq") == 0) {
        status = qn_quant_config_parse_books(config, QN_LAYOUT_GPTVQ, error);
    } else if (strcmp(method, "vptq") == 0) {
        status = qn_quant_config_parse_vptq(config, error);
    } else {
        status = qn_error_set(
            error, QN_E_UNSUPPORTED,
            "quant_method %.40s is not supported, expected fp8, compressed-tensors, modelopt, aqlm, gptvq or vptq",
            method);
    }
    return finish(config, "quantization_config", status, out, error);
}

qn_status qn_quant_config_parse_file(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error)
{
    const json_t *inner = json_object_get(object, "quantization");
    *out = NULL;
    if (json_is_object(inner) && !has(inner, "quant_algo")) {
        return QN_OK;
    }
    qn_quant_config *config = NULL;
    QN_TRY(begin(ctx, inner, "quantization", &config, out, error));
    return finish(config, "quantization", parse_modelopt(config, inner, error), out, error);
}

qn_status qn_quant_config_parse_quip(const qn_ctx *ctx, const json_t *object, qn_quant_config **out, qn_error *error)
{
    qn_quant_config *config = NULL;
    QN_TRY(begin(ctx, object, "quip_params", &config, out, error));
    return finish(config, "quip_params", qn_quant_config_parse_lattice(config, error), out, error);
}

static void free_patterns(const qn_quant_config *config, qn_name_patterns *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        pcre2_code_free(p->list[i].regex);
    }
    qn_free(config->ctx, p->list);
}

void qn_quant_config_destroy(qn_quant_config *config)
{
    if (!config) {
        return;
    }
    free_patterns(config, &config->ignore);
    for (int32_t i = 0; i < config->group_count; i++) {
        free_patterns(config, &config->groups[i].modules);
    }
    qn_free(config->ctx, config->groups);
    pcre2_match_context_free(config->limits);
    pcre2_general_context_free(config->memory);
    json_decref(config->json);
    qn_free(config->ctx, config);
}

const qn_scheme *qn_quant_config_scheme(const qn_quant_config *config)
{
    return config->scheme;
}

/* "lm_head", "mlp", "model.layers.0": the module itself, its last components, or a module above it. */
static int names_module(const char *text, const char *module)
{
    const size_t a = strlen(text), b = strlen(module);
    if (a > b || a == 0) {
        return 0;
    }
    const int ends = strcmp(module + b - a, text) == 0 && (a == b || module[b - a - 1] == '.');
    const int begins = strncmp(module, text, a) == 0 && (module[a] == 0 || module[a] == '.');
    return ends || begins;
}

/* "model.layers.0.self_attn*": * is any text. Such a name without one may be short, as above. */
static int names_pattern(const char *text, const char *module)
{
    const char *star = NULL, *from = NULL, *t = text, *m = module;
    while (*m) { /* the last star takes as little as it can */
        if (*t == '*') {
            star = t++;
            from = m;
        } else if (*t == *m) {
            t++;
            m++;
        } else if (star) {
            t = star + 1;
            m = ++from;
        } else {
            return names_module(text, module);
        }
    }
    while (*t == '*') {
        t++;
    }
    return !*t;
}

/* "lm_head.weight": the module's weight. */
static int names_weight(const char *text, const char *module)
{
    const size_t length = strlen(module);
    return strncmp(text, module, length) == 0 && (text[length] == 0 || strcmp(text + length, ".weight") == 0);
}

/* 1: one of the patterns is the module; -1: out of memory. fits: how a name that is no expression is compared. */
static int matches(const qn_quant_config *config, const qn_name_patterns *list, int (*fits)(const char *, const char *),
                   const char *module)
{
    for (int32_t i = 0; i < list->count; i++) {
        const qn_name_pattern *p = &list->list[i];
        if (p->text) {
            if (fits(p->text, module)) {
                return 1;
            }
            continue;
        }
        pcre2_match_data *match = pcre2_match_data_create(1, config->memory);
        const int found = match ? pcre2_match(p->regex, (PCRE2_SPTR)module, strlen(module), 0, 0, match, config->limits)
                                : PCRE2_ERROR_NOMEMORY;
        pcre2_match_data_free(match);
        if (found >= 0 || found == PCRE2_ERROR_NOMEMORY) {
            return found >= 0 ? 1 : -1;
        }
    }
    return 0;
}

static int is_module(const char *text, const char *module)
{
    return strcmp(text, module) == 0;
}

int qn_quant_config_ignores(const qn_quant_config *config, const char *module)
{
    const qn_scheme *s = config->scheme;
    return matches(config, &config->ignore,
                   s->scales == QN_SCALES_VECTOR               ? names_weight
                   : s->layout == QN_LAYOUT_COMPRESSED_TENSORS ? is_module
                   : s->layout == QN_LAYOUT_MODELOPT           ? names_pattern
                                                               : names_module,
                   module);
}

const qn_scheme *qn_quant_config_scheme_of(const qn_quant_config *config, const char *module)
{
    for (int32_t i = 0; i < config->group_count; i++) {
        const int found = matches(config, &config->groups[i].modules, is_module, module);
        if (found) {
            return found > 0 ? config->groups[i].scheme : NULL;
        }
    }
    return config->named_only ? qn_scheme_dense() : config->scheme;
}

/* ---- writing ---- */

static json_t *args_object(const ct_args *a)
{
    if (!a->bits) {
        return json_null();
    }
    json_t *o = json_pack("{s:i, s:s, s:b, s:s}", "num_bits", a->bits, "type", a->type, "symmetric", a->symmetric,
                          "strategy", a->strategy);
    json_t *dynamic =
        strcmp(a->dynamic, "local") == 0 ? json_string("local") : json_boolean(strcmp(a->dynamic, "true") == 0);
    int bad = !o || json_object_set_new(o, "dynamic", dynamic) != 0;
    bad = bad || json_object_set_new(o, "group_size", a->group ? json_integer(a->group) : json_null()) != 0;
    if (!bad && a->block_n) {
        bad = json_object_set_new(o, "block_structure", json_pack("[i,i]", a->block_n, a->block_k)) != 0;
    }
    if (!bad && a->scale_dtype) {
        bad = json_object_set_new(o, "scale_dtype", json_string(a->scale_dtype)) != 0;
    }
    if (!bad && a->scale_dtype && strcmp(a->scale_dtype, "torch.uint8") == 0) { /* as the public MXFP4 presets */
        bad = json_object_set_new(o, "zp_dtype", json_string(a->scale_dtype)) != 0;
    }
    if (!bad && strcmp(a->dynamic, "local") == 0) { /* loaders ask for the observer of static scales */
        bad = json_object_set_new(o, "observer", json_string("static_minmax")) != 0;
    }
    if (bad) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *make_group(const qn_scheme *scheme, const char *target)
{
    const ct_args w = weights_of(scheme), a = activations_of(scheme);
    json_t *weights = args_object(&w), *activations = args_object(&a);
    if (!weights || !activations) {
        json_decref(weights);
        json_decref(activations);
        return NULL;
    }
    return json_pack("{s:[s], s:o, s:o, s:n, s:s}", "targets", target, "weights", weights, "input_activations",
                     activations, "output_activations", "format", scheme->word);
}

static json_t *make_compressed(const qn_scheme *scheme, const qn_scheme *head, json_t *ignore)
{
    const int mixed = head && strcmp(head->word, scheme->word) != 0;
    json_t *groups = json_object();
    int bad = !groups || json_object_set_new(groups, "group_0", make_group(scheme, "Linear")) != 0;
    bad = bad || (head && json_object_set_new(groups, "group_1", make_group(head, "lm_head")) != 0);
    json_t *made =
        bad ? NULL
            : json_pack("{s:s, s:s, s:s, s:O, s:O, s:n, s:n}", "quant_method", "compressed-tensors", "format",
                        mixed ? "mixed-precision" : scheme->word, "quantization_status", "compressed", "config_groups",
                        groups, "ignore", ignore, "kv_cache_scheme", "global_compression_ratio");
    json_decref(groups);
    return made;
}

const char *qn_quant_config_key(const qn_scheme *scheme)
{
    return scheme->layout == QN_LAYOUT_QUIP ? "quip_params" : "quantization_config";
}

json_t *qn_quant_config_make(const qn_scheme *scheme, const qn_scheme *head, const char *const *ignore,
                             int32_t ignore_count, qn_status *status)
{
    *status = QN_OK;
    if (scheme->layout == QN_LAYOUT_DENSE) {
        return NULL;
    }
    if (scheme->scales == QN_SCALES_VECTOR) {
        json_t *vq = qn_quant_config_make_vq(scheme, ignore, ignore_count);
        *status = vq ? QN_OK : QN_E_MEMORY;
        return vq;
    }
    json_t *list = json_array(), *made = NULL;
    int bad = !list;
    for (int32_t i = 0; !bad && i < ignore_count; i++) {
        bad = json_array_append_new(list, json_string(ignore[i])) != 0;
    }
    if (!bad && scheme->layout == QN_LAYOUT_FP8) {
        made = json_pack("{s:s, s:s, s:s, s:[i,i], s:O}", "quant_method", "fp8", "fmt", fp8_word(scheme->weight),
                         "activation_scheme", "dynamic", "weight_block_size", scheme->block_n, scheme->block_k,
                         "modules_to_not_convert", list);
    } else if (!bad) {
        made = make_compressed(scheme, head, list);
    }
    json_decref(list);
    if (!made) {
        *status = QN_E_MEMORY;
    }
    return made;
}
