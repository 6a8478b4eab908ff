/* A GGUF file of the synthetic model's numbers as a folder of scheme nvfp4 or mxfp4 has them: codes and scales put into
 * blocks, rows of queries and keys for interleaved rotation, NVFP4's global scales as X.scale beside X.weight. */
#ifndef QN_TESTS_GGUF_FP4_H
#define QN_TESTS_GGUF_FP4_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/quern.h>

#include "quant/synthetic.h"

enum { GGUF_TENSORS = 80 };

typedef struct gguf_out {
    char *text; /* of the file, and of its data */
    size_t size;
    FILE *file;
} gguf_out;

/* Told of each tensor before it is put down: may change its name and what type, size and numbers it has. */
typedef struct gguf_tensor {
    char name[96];
    int rank;
    uint64_t dims[2]; /* innermost first */
    uint32_t type;    /* of ggml */
    void *data;       /* freed */
    size_t bytes;
} gguf_tensor;

typedef void (*gguf_spoil)(gguf_tensor *t);

static void gguf_number(FILE *f, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        fputc((int)(value >> (8 * i) & 255), f);
    }
}

static void gguf_text(FILE *f, const char *text)
{
    gguf_number(f, strlen(text), 8);
    fputs(text, f);
}

static void gguf_u32(FILE *f, const char *key, uint32_t value)
{
    gguf_text(f, key);
    gguf_number(f, 4, 4);
    gguf_number(f, value, 4);
}

static void gguf_f32(FILE *f, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_text(f, key);
    gguf_number(f, 6, 4);
    gguf_number(f, bits, 4);
}

static const char *const gguf_names[][2] = {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
                                            {"self_attn.q_proj", "attn_q"},   {"self_attn.k_proj", "attn_k"},
                                            {"self_attn.v_proj", "attn_v"},   {"self_attn.o_proj", "attn_output"},
                                            {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
                                            {"mlp.down_proj", "ffn_down"}};

/* Name of a module in GGUF files. */
static void gguf_name(const char *module, size_t length, char out[64])
{
    int layer, used = 0;
    snprintf(out, 64, "%s", strncmp(module, "model.norm", length) == 0 ? "output_norm" : "token_embd");
    if (sscanf(module, "model.layers.%d.%n", &layer, &used) == 1 && used) {
        for (size_t i = 0; i < sizeof gguf_names / sizeof *gguf_names; i++) {
            if (strlen(gguf_names[i][0]) == length - (size_t)used &&
                strncmp(module + used, gguf_names[i][0], length - (size_t)used) == 0) {
                snprintf(out, 64, "blk.%d.%s", layer, gguf_names[i][1]);
            }
        }
    }
}

/* Row of the folder that GGUF has at `row`: heads of queries and keys have pairs of rows beside each other. */
static int64_t gguf_row(const char *name, int64_t row)
{
    const int turned = strstr(name, "attn_q") || strstr(name, "attn_k");
    const int64_t in_head = row % SYN_KV;
    return turned ? row - in_head + in_head % 2 * (SYN_KV / 2) + in_head / 2 : row;
}

static uint8_t gguf_code(const qn_view *codes, int64_t row, int64_t k)
{
    return ((const uint8_t *)codes->data)[row * codes->shape.dims[1] + k / 2] >> (k % 2 * 4) & 15;
}

/* Codes U8[n,k/2] and their scales as blocks. */
static void gguf_blocks(gguf_tensor *t, const qn_view *codes, const qn_view *scales)
{
    const int64_t n = codes->shape.dims[0], k = 2 * codes->shape.dims[1], per_row = scales->shape.dims[1];
    const int64_t unit = k / per_row, units = unit == 16 ? 4 : 1, block = units + units * unit / 2;
    t->type = unit == 16 ? 40 : 39;
    t->rank = 2;
    t->dims[0] = (uint64_t)k;
    t->dims[1] = (uint64_t)n;
    t->bytes = (size_t)(n * per_row / units * block);
    uint8_t *const to = t->data = malloc(t->bytes);
    for (int64_t i = 0; i < n * per_row; i++) {
        const int64_t from = gguf_row(t->name, i / per_row), group = i % per_row;
        uint8_t *const at = to + i / units * block;
        at[i % units] = ((const uint8_t *)scales->data)[from * per_row + group];
        for (int64_t j = 0; j < unit / 2; j++) {
            at[units + i % units * unit / 2 + j] = (uint8_t)(gguf_code(codes, from, group * unit + j) |
                                                             gguf_code(codes, from, group * unit + unit / 2 + j) << 4);
        }
    }
}

static void gguf_plain(gguf_tensor *t, const qn_view *view)
{
    size_t bytes = 0;
    const int format = view->shape.format;
    t->type = format == QN_F32 ? 0 : format == QN_F16 ? 1 : 30;
    t->rank = view->shape.ndim;
    for (int i = 0; i < t->rank; i++) {
        t->dims[i] = (uint64_t)view->shape.dims[t->rank - 1 - i];
    }
    assert(qn_shape_bytes(&view->shape, &bytes, NULL) == QN_OK);
    t->bytes = bytes;
    t->data = memcpy(malloc(bytes), view->data, bytes);
}

static qn_view gguf_part(const qn_tensors *file, const char *module, const char *suffix)
{
    char name[128];
    qn_view view = {0};
    snprintf(name, sizeof name, "%s%s", module, suffix);
    for (int32_t i = 0; i < qn_tensors_count(file); i++) {
        const char *text;
        qn_view at;
        if (qn_tensors_at(file, i, &text, &at, NULL) == QN_OK && strcmp(text, name) == 0) {
            view = at;
        }
    }
    return view;
}

/* The tensors of a folder's file, in GGUF's terms. */
static int gguf_collect(const qn_tensors *file, gguf_tensor *t)
{
    int count = 0;
    for (int32_t i = 0; i < qn_tensors_count(file); i++) {
        const char *name;
        qn_view view;
        assert(qn_tensors_at(file, i, &name, &view, NULL) == QN_OK && count + 2 <= GGUF_TENSORS);
        const char *const dot = strrchr(name, '.');
        char module[96], other[64];
        snprintf(module, sizeof module, "%.*s", (int)(dot - name), name);
        gguf_name(module, strlen(module), other);
        if (strcmp(dot, ".weight") != 0 && strcmp(dot, ".weight_packed") != 0) {
            continue;
        }
        snprintf(t[count].name, sizeof t->name, "%s.weight", other);
        if (strcmp(dot, ".weight") == 0) {
            gguf_plain(&t[count++], &view);
            continue;
        }
        const qn_view scales = gguf_part(file, module, ".weight_scale");
        const qn_view global = gguf_part(file, module, ".weight_global_scale");
        gguf_blocks(&t[count++], &view, &scales);
        if (global.data) {
            const float value = 1.0f / *(const float *)global.data;
            snprintf(t[count].name, sizeof t->name, "%s.scale", other);
            t[count].rank = 1;
            t[count].dims[0] = 1;
            t[count].bytes = 4;
            t[count].data = memcpy(malloc(4), &value, 4);
            t[count++].type = 0;
        }
    }
    return count;
}

/* FOLDER/model.safetensors, of syn_usual, as the file `path`. 0 on success. */
static int gguf_write(qn_ctx *ctx, const char *folder, const char *path, gguf_spoil spoil)
{
    char from[256];
    qn_tensors *file;
    gguf_tensor t[GGUF_TENSORS] = {0};
    snprintf(from, sizeof from, "%s/model.safetensors", folder);
    if (qn_tensors_open(ctx, from, &file, NULL) != QN_OK) {
        return 1;
    }
    const int count = gguf_collect(file, t);
    FILE *f = fopen(path, "wb");
    if (!f) {
        return 1;
    }
    gguf_number(f, 0x46554747, 4);
    gguf_number(f, 3, 4);
    gguf_number(f, (uint64_t)count, 8);
    gguf_number(f, 11, 8);
    gguf_text(f, "general.architecture");
    gguf_number(f, 8, 4);
    gguf_text(f, "llama");
    gguf_u32(f, "llama.embedding_length", SYN_HIDDEN);
    gguf_u32(f, "llama.block_count", SYN_LAYERS);
    gguf_u32(f, "llama.feed_forward_length", SYN_INNER);
    gguf_u32(f, "llama.context_length", 1024);
    gguf_u32(f, "llama.attention.head_count", SYN_HIDDEN / SYN_KV);
    gguf_u32(f, "llama.attention.head_count_kv", 1);
    gguf_u32(f, "llama.rope.dimension_count", SYN_KV);
    gguf_u32(f, "llama.vocab_size", SYN_VOCAB);
    gguf_f32(f, "llama.rope.freq_base", 10000.0f);
    gguf_f32(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    uint64_t offset = 0;
    for (int i = 0; i < count; i++) {
        if (spoil) {
            spoil(&t[i]);
        }
        gguf_text(f, t[i].name);
        gguf_number(f, (uint64_t)t[i].rank, 4);
        for (int d = 0; d < t[i].rank; d++) {
            gguf_number(f, t[i].dims[d], 8);
        }
        gguf_number(f, t[i].type, 4);
        gguf_number(f, offset, 8);
        offset += (t[i].bytes + 31) / 32 * 32;
    }
    for (int i = 0; i < count; i++) {
        while (ftell(f) % 32) {
            fputc(0, f);
        }
        fwrite(t[i].data, 1, t[i].bytes, f);
        free(t[i].data);
    }
    qn_tensors_close(file);
    return fclose(f) != 0;
}

#endif
