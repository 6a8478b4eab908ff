/* The models of test_model_device.c, small ones in every scheme, and what writes them. */
#ifndef QN_TESTS_DEVICE_MODELS_H
#define QN_TESTS_DEVICE_MODELS_H

#include <stdio.h>
#include <string.h>

#include <quern/quern.h>

#include "model/gguf_files.h"
#include "quant/quantize.h"
#include "quant/synthetic.h"

static char folder[] = "/tmp/quern-device-XXXXXX";

static const char *path_of(const char *scheme)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, scheme);
    return path;
}

static const char *const schemes[] = {"f32",  "bf16",     "f16",   "fp8-block",  "fp8-e5m2-block", "fp8",
                                      "int8", "int8-azp", "nvfp4", "nvfp4-w4a4", "mxfp4"};
enum { SCHEMES = sizeof schemes / sizeof *schemes };

/* Vectors of weights: those that chains take, and others, whose products are launches of their own, several each. */
static const char *const vq_schemes[] = {"gptvq-2", "aqlm-2x8", "aqlm-3", "aqlm-1x16",
                                         "vptq-2",  "vptq-3",   "quip-2", "quip-4"};
enum { VQ_SCHEMES = sizeof vq_schemes / sizeof *vq_schemes, VQ_CHAINED = 8 };

/* Files with blocks of codes and scales, made of those folders, or of vectors. */
static const char *const ggufs[][2] = {{"nvfp4", "nvfp4.gguf"}, {"mxfp4", "mxfp4.gguf"}, {NULL, "vectors.gguf"}};
enum { GGUFS = sizeof ggufs / sizeof *ggufs };

static const char *const kv_schemes[] = {"fp8", "bf16", "cq4", "cq2", "cq1"};
enum { KV_SCHEMES = sizeof kv_schemes / sizeof *kv_schemes };

/* Other heads than the usual model's, one of them with scaled RoPE, for keys and values that are kept as codes. */
static const struct {
    const char *name;
    syn_heads heads;
} other_heads[] = {{"heads-64", {4, 2, 64, "{\"rope_type\":\"yarn\",\"factor\":4.0}"}},
                   {"heads-128", {3, 1, 128, NULL}}};
enum { OTHER_HEADS = sizeof other_heads / sizeof *other_heads };

/* Models with biases, and with norms of heads (syn_models): a scheme of each, one of them with sums for its biases,
 * one with scaled RoPE. */
static const struct {
    const char *name, *scheme;
    int model;
    const char *rope;
} like[] = {{"like-1", "bf16", 1, NULL},
            {"like-1-fp8-block", "fp8-block", 1, NULL},
            {"like-2", "f32", 2, NULL},
            {"like-2-int8", "int8", 2, NULL},
            {"like-3-fp8-block", "fp8-block", 3, "{\"rope_type\":\"yarn\",\"factor\":4.0}"},
            {"like-4-fp8-block", "fp8-block", 4, NULL},
            {"like-4-quip", "quip-2", 4, NULL}};
enum { LIKE = sizeof like / sizeof *like, LIKE_KV = 2 }; /* which has codebooks for keys and values */

/* A layer of weights large enough for mm_ring.cu, rows of which warps' steps do not divide, with biases; on an H200
 * gate and up are large enough, and down. */
static const syn_model wide = {"LlamaForCausalLM", "llama", {3, 1, 64, NULL}, 1, 1, 1, 0, 1, 2304, 4352};
static const char *const wide_models[][2] = {
    {"wide-bf16", "bf16"},   {"wide-fp8-block", "fp8-block"},   {"wide-int8", "int8"},
    {"wide-nvfp4", "nvfp4"}, {"wide-nvfp4-w4a4", "nvfp4-w4a4"}, {"wide-mxfp4", "mxfp4"}};
enum { WIDE = sizeof wide_models / sizeof *wide_models };

/* A short text to calibrate with, for less work. */
static char calibration[128];

static int write_calibration(void)
{
    snprintf(calibration, sizeof calibration, "%s", path_of("text"));
    FILE *file = fopen(calibration, "w");
    for (int i = 0; file && i < 300; i++) {
        fputc(' ' + i * i % 89, file);
    }
    return !file || fclose(file) != 0;
}

/* A checkpoint in a scheme, as it is nothing kept as it was. */
static int write_quantised(qn_ctx *ctx, const char *source, const char *name, const char *scheme)
{
    qn_quantize_options options;
    qn_quantize_result result;
    qn_error error = {0};
    qn_quantize_options_init(&options);
    const qn_quant_tuning tuning = {.search = 0}; /* any codes will do */
    options.scheme = scheme;
    options.calibration = calibration;
    options.keep_first = options.keep_last = 0;
    options.keep_qkv = 0;
    if (qn_quantize_with(ctx, source, path_of(name), &options, &tuning, &result, &error) == QN_OK) {
        return 0;
    }
    fprintf(stderr, "%s: %s\n", name, error.text);
    return 1;
}

static int write_books(qn_ctx *ctx, const char *name, const char *scheme)
{
    qn_kv_books_options options;
    qn_kv_books_result result;
    qn_error error = {0};
    qn_kv_books_options_init(&options);
    options.scheme = scheme;
    options.calibration = calibration;
    if (qn_make_kv_books(ctx, path_of(name), NULL, &options, &result, &error) == QN_OK) {
        return 0;
    }
    fprintf(stderr, "%s: %s\n", scheme, error.text);
    return 1;
}

static int write_ggufs(qn_ctx *ctx)
{
    int failed = 0;
    for (int i = 0; i < GGUFS && !failed; i++) {
        char from[128];
        if (ggufs[i][0]) {
            snprintf(from, sizeof from, "%s", path_of(ggufs[i][0]));
            failed = gguf_write(ctx, from, path_of(ggufs[i][1]), NULL);
        } else {
            failed = gguf_write_vectors(path_of(ggufs[i][1]));
        }
    }
    return failed;
}

/* The models of `like`. */
static int write_like(qn_ctx *ctx)
{
    int failed = 0;
    for (int i = 0; i < LIKE && !failed; i++) {
        syn_model m = syn_models[like[i].model];
        m.heads.rope = like[i].rope;
        syn_tensor tensors[SYN_MOST_TENSORS];
        const int count = syn_make_model(tensors, 13, &m);
        char source[128];
        snprintf(source, sizeof source, "%s", path_of("like"));
        failed = syn_write_model(ctx, source, tensors, count, &m) ||
                 write_quantised(ctx, source, like[i].name, like[i].scheme) ||
                 (i == LIKE_KV && write_books(ctx, like[i].name, "cq2"));
        syn_free_some(tensors, count);
        syn_remove(source);
    }
    return failed;
}

static int write_wide(qn_ctx *ctx)
{
    syn_tensor tensors[SYN_MOST_TENSORS];
    const int count = syn_make_model(tensors, 14, &wide);
    for (int i = 0; i < count; i++) {
        if (strstr(tensors[i].name, "gate_proj.weight")) {
            tensors[i].w[3 * wide.hidden + 700] = 20.0f; /* its block's scale in mxfp4 is 4 */
        }
    }
    char source[128];
    snprintf(source, sizeof source, "%s", path_of("wide"));
    int failed = syn_write_model(ctx, source, tensors, count, &wide);
    for (int i = 0; i < WIDE && !failed; i++) {
        failed = write_quantised(ctx, source, wide_models[i][0], wide_models[i][1]);
    }
    syn_free_some(tensors, count);
    syn_remove(source);
    return failed;
}

/* All of them; 0 on success. */
static int write_models(qn_ctx *ctx)
{
    syn_tensor tensors[SYN_TENSORS];
    syn_make(tensors, 11);
    char source[128];
    snprintf(source, sizeof source, "%s", path_of("source"));
    int failed = write_calibration() || syn_write(ctx, source, tensors);
    for (int i = 0; i < SCHEMES + VQ_SCHEMES && !failed; i++) {
        const char *const scheme = i < SCHEMES ? schemes[i] : vq_schemes[i - SCHEMES];
        failed = write_quantised(ctx, source, scheme, scheme);
    }
    for (int i = 0; i < OTHER_HEADS && !failed; i++) {
        syn_tensor others[SYN_TENSORS];
        syn_make_heads(others, 12, other_heads[i].heads);
        failed = syn_write_heads(ctx, path_of(other_heads[i].name), others, other_heads[i].heads);
        syn_free(others);
    }
    for (int i = 0; i < KV_SCHEMES * (1 + OTHER_HEADS) && !failed; i++) {
        const char *const scheme = kv_schemes[i % KV_SCHEMES];
        if (scheme[0] == 'c') { /* others have none */
            failed = write_books(ctx, i < KV_SCHEMES ? "f32" : other_heads[i / KV_SCHEMES - 1].name, scheme);
        }
    }
    failed = failed || write_ggufs(ctx) || write_like(ctx) || write_wide(ctx);
    syn_free(tensors);
    return failed;
}

#endif
