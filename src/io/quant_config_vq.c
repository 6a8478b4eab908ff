/* quantization_config of vector-quantised checkpoints: aqlm and gptvq, whose
 * numbers hold for all modules; vptq, which describes each module; and
 * quip_params. Sizes that no row of the table has become a row of the
 * configuration's own, which is read but not written. */
#include "io/quant_config_internal.h"

#include <stdio.h>
#include <string.h>

#include "io/json.h"

/* ---- aqlm, gptvq ---- */

qn_status qn_quant_config_parse_books(qn_quant_config *config, qn_scheme_layout layout, qn_error *error)
{
    int64_t vector = 0, rows = 1, books = 1, bits = 0, tile = 0;
    QN_TRY(qn_json_get_int(config->json, "in_group_size", 1, 256, &vector, error));
    QN_TRY(qn_json_get_int(config->json, "out_group_size", 1, 256, &rows, error));
    QN_TRY(qn_json_get_int(config->json, "num_codebooks", 1, 64, &books, error));
    QN_TRY(qn_json_get_int(config->json, "nbits_per_codebook", 1, 16, &bits, error));
    QN_TRY(qn_json_get_int(config->json, "tile_size", 0, 65536, &tile, error));
    QN_FAIL_IF(!vector || !bits, error, QN_E_FILE, "%s is missing", vector ? "nbits_per_codebook" : "in_group_size");
    QN_TRY(qn_quant_config_read_ignore(config, "linear_weights_not_to_quantize", 0, error));
    const qn_scheme *s;
    for (int32_t i = 0; (s = qn_scheme_get(i)) != NULL; i++) {
        if (s->layout == layout && s->vq.vector == vector && s->vq.books == books && s->vq.bits == bits && rows == 1 &&
            s->vq.tile == tile) {
            config->scheme = s;
            return QN_OK;
        }
    }
    QN_FAIL_IF(layout != QN_LAYOUT_AQLM || tile, error, QN_E_UNSUPPORTED,
               "%d codebooks of %d bits for groups of %d x %d weights in tiles of %d are not supported", (int)books,
               (int)bits, (int)rows, (int)vector, (int)tile);
    char groups[16] = "";
    if (rows > 1) {
        snprintf(groups, sizeof groups, "g%dx%d", (int)rows, (int)vector);
    } else if (vector != 8) {
        snprintf(groups, sizeof groups, "g%d", (int)vector);
    }
    snprintf(config->own_name, sizeof config->own_name, "aqlm-%dx%d%s", (int)books, (int)bits, groups);
    config->own = *qn_scheme_find("aqlm-2x8");
    config->own.name = config->own_name;
    config->own.vq.books = (int32_t)books;
    config->own.vq.bits = (int32_t)bits;
    config->own.vq.vector = (int32_t)vector;
    config->own.vq.rows = (int32_t)rows;
    config->scheme = &config->own;
    return QN_OK;
}

/* ---- vptq ---- */

static int is_two(const json_t *layer, const char *key, int64_t main)
{
    const json_t *pair = json_object_get(layer, key);
    return json_integer_value(json_array_get(pair, 0)) <= 0 && json_integer_value(json_array_get(pair, 1)) == main;
}

/* A module that a row of the table describes. */
static int is_of_row(const json_t *layer, const qn_scheme *s)
{
    return is_two(layer, "vector_lens", s->vq.vector) && is_two(layer, "num_centroids", INT64_C(1) << s->vq.bits) &&
           is_two(layer, "num_res_centroids", INT64_C(1) << s->vq.bits) &&
           json_integer_value(json_object_get(layer, "group_num")) == 1 &&
           json_is_true(json_object_get(layer, "enable_norm")) && !json_is_true(json_object_get(layer, "enable_perm"));
}

qn_status qn_quant_config_parse_vptq(qn_quant_config *config, qn_error *error)
{
    static const char *const keys[] = {"config_for_layers", "shared_layer_config"};
    size_t modules = 0;
    json_t *layers, *layer;
    const char *name;
    for (int i = 0; i < 2; i++) {
        layers = json_object_get(config->json, keys[i]);
        QN_FAIL_IF(layers && !json_is_null(layers) && !json_is_object(layers), error, QN_E_FILE, "%s is not an object",
                   keys[i]);
        modules += json_object_size(layers);
    }
    QN_FAIL_IF(!modules, error, QN_E_FILE, "config_for_layers and shared_layer_config describe no module");
    config->own = *qn_scheme_find("vptq-2");
    config->own.name = "vptq";
    config->own.summary = "VPTQ weights: codes of vectors along the outputs, residuals, outlier columns, permutation";
    config->own.vq.books = config->own.vq.bits = config->own.vq.vector = 0; /* each module has its own */
    config->scheme = &config->own;
    const qn_scheme *s;
    for (int32_t r = 0; (s = qn_scheme_get(r)) != NULL; r++) {
        size_t same = 0;
        for (int i = 0; i < 2 && s->layout == QN_LAYOUT_VPTQ; i++) {
            layers = json_object_get(config->json, keys[i]);
            json_object_foreach(layers, name, layer)
            {
                same += (size_t)is_of_row(layer, s);
            }
        }
        config->scheme = same == modules ? s : config->scheme;
    }
    return qn_quant_config_read_ignore(config, "modules_to_not_convert", 0, error);
}

/* What is said of a module: by its name, or by the last part of it. NULL: nothing. */
static const json_t *find_module(const qn_quant_config *config, const char *module)
{
    const json_t *found = json_object_get(json_object_get(config->json, "config_for_layers"), module);
    const char *dot = strrchr(module, '.');
    return found ? found
                 : json_object_get(json_object_get(config->json, "shared_layer_config"), dot ? dot + 1 : module);
}

/* [outliers', main] of a key; -1 where the key is not there. */
static qn_status read_two(const json_t *layer, const char *key, int64_t two[2], qn_error *error)
{
    const json_t *pair = json_object_get(layer, key);
    two[0] = two[1] = -1;
    if (!pair) {
        return QN_OK;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(pair, i);
        QN_FAIL_IF(json_array_size(pair) != 2 || !json_is_integer(value) || json_integer_value(value) < -1 ||
                       json_integer_value(value) > 65536,
                   error, QN_E_FILE, "%s is not an array of two integers from -1 to 65536", key);
        two[i] = json_integer_value(value);
    }
    return QN_OK;
}

/* Switches of a module that mean another layout. */
static qn_status check_variants(const json_t *layer, qn_error *error)
{
    const char *dim = "out";
    int packed = 0, as_float = 0;
    QN_TRY(qn_json_get_string(layer, "vector_quant_dim", &dim, error));
    QN_TRY(qn_json_get_bool(layer, "is_indice_packed", &packed, error));
    QN_TRY(qn_json_get_bool(layer, "indices_as_float", &as_float, error));
    QN_FAIL_IF(strcmp(dim, "out") != 0, error, QN_E_UNSUPPORTED,
               "vector_quant_dim %.20s is not supported, expected out", dim);
    QN_FAIL_IF(!packed, error, QN_E_UNSUPPORTED, "indices that are not packed are not supported (is_indice_packed)");
    QN_FAIL_IF(as_float, error, QN_E_UNSUPPORTED, "indices_as_float is not supported");
    return QN_OK;
}

static void need(const qn_scheme *s, qn_vq_module *out, const char *tensor)
{
    for (int i = 0; s->vq.tensors[i]; i++) {
        out->needed |= (uint32_t)(strcmp(s->vq.tensors[i], tensor) == 0) << i;
    }
}

static qn_status describe_vptq(const qn_scheme *s, const json_t *layer, qn_vq_module *out, qn_error *error)
{
    int64_t vectors[2], entries[2], residual[2], in = 0, rows = 0, groups = 1, group_size = 0, outliers = 0;
    int norm = 0, perm = 0;
    QN_FAIL_IF(!json_is_object(layer), error, QN_E_FILE, "its description is not an object");
    QN_TRY(check_variants(layer, error));
    QN_TRY(read_two(layer, "vector_lens", vectors, error));
    QN_TRY(read_two(layer, "num_centroids", entries, error));
    QN_TRY(read_two(layer, "num_res_centroids", residual, error));
    QN_TRY(qn_json_get_int(layer, "in_features", 1, INT32_MAX, &in, error));
    QN_TRY(qn_json_get_int(layer, "out_features", 1, INT32_MAX, &rows, error));
    QN_TRY(qn_json_get_int(layer, "group_num", 1, 65536, &groups, error));
    QN_TRY(qn_json_get_int(layer, "group_size", -1, INT32_MAX, &group_size, error));
    QN_TRY(qn_json_get_int(layer, "outlier_size", 0, INT32_MAX, &outliers, error));
    QN_TRY(qn_json_get_bool(layer, "enable_norm", &norm, error));
    QN_TRY(qn_json_get_bool(layer, "enable_perm", &perm, error));
    QN_FAIL_IF(!in || !rows, error, QN_E_FILE, "%s is missing", in ? "out_features" : "in_features");
    QN_FAIL_IF(vectors[1] < 1 || entries[1] < 2, error, QN_E_FILE,
               "vector_lens and num_centroids are %d and %d, expected at least 1 and 2", (int)vectors[1],
               (int)entries[1]);
    QN_FAIL_IF(outliers > in, error, QN_E_FILE, "outlier_size is %d of %d columns", (int)outliers, (int)in);
    const int with_outliers = vectors[0] > 1 && entries[0] > 0;
    QN_FAIL_IF(with_outliers != (outliers > 0), error, QN_E_FILE,
               "outlier_size is %d, but vector_lens and num_centroids of the outliers are %d and %d", (int)outliers,
               (int)vectors[0], (int)entries[0]);
    QN_FAIL_IF(residual[0] > 0, error, QN_E_UNSUPPORTED, "residual centroids of outliers are not supported");
    const int64_t each = (in - outliers + groups - 1) / groups;
    QN_FAIL_IF(group_size > 0 && group_size != each, error, QN_E_UNSUPPORTED,
               "group_size %d is not supported, expected %d for %d columns in %d groups", (int)group_size, (int)each,
               (int)(in - outliers), (int)groups);
    out->attr[QN_ATTR_IN_FEATURES].i = (int32_t)in;
    out->attr[QN_ATTR_OUT_FEATURES].i = (int32_t)rows;
    out->attr[QN_ATTR_VECTOR_LEN].i = (int32_t)vectors[1];
    out->attr[QN_ATTR_NUM_CENTROIDS].i = (int32_t)entries[1];
    out->attr[QN_ATTR_GROUP_NUM].i = (int32_t)groups;
    if (residual[1] > 0) {
        out->attr[QN_ATTR_NUM_RES_CENTROIDS].i = (int32_t)residual[1];
        need(s, out, "res_centroids.weight");
    }
    if (with_outliers) {
        out->attr[QN_ATTR_OUTLIER_SIZE].i = (int32_t)outliers;
        out->attr[QN_ATTR_OUTLIER_VECTOR_LEN].i = (int32_t)vectors[0];
        out->attr[QN_ATTR_NUM_OUTLIER_CENTROIDS].i = (int32_t)entries[0];
        need(s, out, "outlier_indices");
        need(s, out, "outlier_centroids.weight");
    }
    if (perm) {
        need(s, out, "perm");
    }
    if (norm) {
        need(s, out, "weight_scale");
        need(s, out, "weight_bias");
    }
    out->allowed = out->needed;
    return QN_OK;
}

/* ---- quip_params ---- */

qn_status qn_quant_config_parse_lattice(qn_quant_config *config, qn_error *error)
{
    static const struct {
        const char *word;
        qn_vq_codebook codebook;
    } books[] = {{"E8P12", QN_VQ_E8P12}, {"E8P12RVQ4B", QN_VQ_E8P12RVQ4B}, {"E8P12RVQ3B", QN_VQ_E8P12RVQ3B}};
    const char *word = NULL, *type = "torch.int64";
    int64_t size = 8, rank = 0;
    int split = 0;
    double residual = -1;
    QN_TRY(qn_json_get_string(config->json, "codebook", &word, error));
    QN_TRY(qn_json_get_string(config->json, "idx_dtype", &type, error));
    QN_TRY(qn_json_get_int(config->json, "codesz", 1, 64, &size, error));
    QN_TRY(qn_json_get_int(config->json, "lora_rank", -1, INT32_MAX, &rank, error));
    QN_TRY(qn_json_get_bool(config->json, "outlier_channel_split", &split, error));
    QN_TRY(qn_json_get_bool(config->json, "rescale_WH", &config->rescale, error));
    QN_TRY(qn_json_get_number(config->json, "resid_scale_override", -1e6, 1e6, &residual, error));
    QN_FAIL_IF(!word, error, QN_E_FILE, "codebook is missing");
    QN_TRY(qn_quant_config_read_ignore(config, "modules_to_not_convert", 0, error));
    QN_FAIL_IF(strcmp(type, "torch.int64") != 0 && strcmp(type, "int64") != 0, error, QN_E_UNSUPPORTED,
               "idx_dtype %.40s is not supported, expected torch.int64", type);
    QN_FAIL_IF(size != 8, error, QN_E_UNSUPPORTED, "codesz %d is not supported, expected 8", (int)size);
    QN_FAIL_IF(rank > 0, error, QN_E_UNSUPPORTED, "lora_rank %d is not supported, expected 0", (int)rank);
    QN_FAIL_IF(split, error, QN_E_UNSUPPORTED, "outlier_channel_split is not supported");
    for (size_t b = 0; b < sizeof books / sizeof *books; b++) {
        const qn_scheme *s;
        if (strcmp(word, books[b].word) != 0) {
            continue;
        }
        config->resid_scale = residual > 0 && books[b].codebook != QN_VQ_E8P12 ? (float)residual : 0.0f;
        for (int32_t i = 0; (s = qn_scheme_get(i)) != NULL; i++) {
            if (s->layout == QN_LAYOUT_QUIP && s->vq.codebook == books[b].codebook) {
                config->scheme = s;
                return QN_OK;
            }
        }
        config->own = *qn_scheme_find("quip-4");
        config->own.name = "quip-3";
        config->own.summary = "QuIP# weights: E8P lattice points with residuals of one bit, 24 bits for 8 weights";
        config->own.vq.codebook = books[b].codebook;
        config->scheme = &config->own;
        return QN_OK;
    }
    QN_FAIL(error, QN_E_UNSUPPORTED, "codebook %.40s is not supported, expected E8P12, E8P12RVQ3B or E8P12RVQ4B", word);
}

/* ---- One module ---- */

qn_status qn_quant_config_module(const qn_quant_config *config, const char *module, qn_vq_module *out, qn_error *error)
{
    const qn_scheme *s = config->scheme;
    memset(out, 0, sizeof *out);
    out->needed = (1u << s->vq.required) - 1;
    out->attr[QN_ATTR_FORMAT].i = (int32_t)s->vq.format;
    switch (s->vq.format) {
    case QN_VQ_VPTQ: {
        const json_t *layer = find_module(config, module);
        QN_FAIL_IF(!layer, error, QN_E_FILE, "config_for_layers says nothing about %s", module);
        const qn_status status = describe_vptq(s, layer, out, error);
        return status == QN_OK ? QN_OK : qn_error_prefix(error, status, "config_for_layers: %s", module);
    }
    case QN_VQ_QUIP_E8P:
        out->attr[QN_ATTR_CODEBOOK].i = (int32_t)s->vq.codebook;
        out->attr[QN_ATTR_RESID_SCALE].f = config->resid_scale;
        for (int i = 0; s->vq.tensors[i]; i++) {
            const int scale = strcmp(s->vq.tensors[i], "scaleWH") == 0;
            out->needed |= (uint32_t)(scale && config->rescale) << i;
            out->allowed |= (uint32_t)(!scale || config->rescale) << i;
        }
        return QN_OK;
    case QN_VQ_AQLM:
        out->attr[QN_ATTR_NUM_CODEBOOKS].i = s->vq.books;
        out->attr[QN_ATTR_NBITS].i = s->vq.bits;
        out->attr[QN_ATTR_IN_GROUP].i = s->vq.vector;
        out->attr[QN_ATTR_OUT_GROUP].i = s->vq.rows ? s->vq.rows : 1;
        break;
    case QN_VQ_GPTVQ: break;
    }
    out->allowed = out->needed;
    return QN_OK;
}

/* ---- Writing ---- */

static json_t *make_quip(const qn_scheme *scheme, json_t *ignore)
{
    const int two = scheme->vq.codebook == QN_VQ_E8P12RVQ4B;
    return json_pack("{s:s, s:i, s:i, s:s, s:i, s:i, s:b, s:f, s:i, s:O}", "codebook", two ? "E8P12RVQ4B" : "E8P12",
                     "codebook_version", two ? 0 : 1, "codesz", 8, "idx_dtype", "torch.int64", "lora_rank", 0, "packsz",
                     two ? 2 : 4, "rescale_WH", 0, "resid_scale_override", -1.0, "model_version", 1,
                     "modules_to_not_convert", ignore);
}

json_t *qn_quant_config_make_vq(const qn_scheme *scheme, const char *const *ignore, int32_t ignore_count)
{
    const int aqlm = scheme->layout != QN_LAYOUT_QUIP && scheme->layout != QN_LAYOUT_VPTQ; /* its loader compares with
                                                                                            * names of weights */
    json_t *list = json_array(), *made = NULL;
    int bad = !list;
    for (int32_t i = 0; !bad && i < ignore_count; i++) {
        bad = json_array_append_new(list, json_sprintf("%s%s", ignore[i], aqlm ? ".weight" : "")) != 0;
    }
    if (!bad && scheme->layout == QN_LAYOUT_QUIP) {
        made = make_quip(scheme, list);
    } else if (!bad && scheme->layout == QN_LAYOUT_VPTQ) {
        made = json_pack("{s:s, s:{}, s:{}, s:O}", "quant_method", "vptq", "config_for_layers", "shared_layer_config",
                         "modules_to_not_convert", list);
    } else if (!bad) {
        made = json_pack("{s:s, s:i, s:i, s:i, s:i, s:O}", "quant_method",
                         scheme->layout == QN_LAYOUT_AQLM ? "aqlm" : "gptvq", "in_group_size", scheme->vq.vector,
                         "out_group_size", 1, "num_codebooks", scheme->vq.books, "nbits_per_codebook", scheme->vq.bits,
                         "linear_weights_not_to_quantize", list);
    }
    if (made && scheme->vq.tile && json_object_set_new(made, "tile_size", json_integer(scheme->vq.tile)) != 0) {
        json_decref(made);
        made = NULL;
    }
    json_decref(list);
    return made;
}

int qn_quant_config_add_module(json_t *quantization, const qn_scheme *scheme, const char *module, int64_t n, int64_t k,
                               int bias)
{
    const int entries = 1 << scheme->vq.bits;
    if (scheme->layout != QN_LAYOUT_VPTQ) {
        return 0;
    }
    json_t *layer =
        json_pack("{s:I, s:I, s:[i,i], s:[i,i], s:[i,i], s:i, s:I, s:i, s:b, s:b, s:b, s:b, s:b, s:s}", "in_features",
                  (json_int_t)k, "out_features", (json_int_t)n, "vector_lens", -1, scheme->vq.vector, "num_centroids",
                  -1, entries, "num_res_centroids", -1, entries, "group_num", 1, "group_size", (json_int_t)k,
                  "outlier_size", 0, "indices_as_float", 0, "enable_norm", 1, "enable_perm", 0, "is_indice_packed", 1,
                  "bias", bias, "vector_quant_dim", "out");
    return !layer || json_object_set_new(json_object_get(quantization, "config_for_layers"), module, layer) != 0;
}
