/* GGUF files. gguf_write: of the synthetic model's numbers as a folder of scheme nvfp4 or mxfp4 has them, codes and
 * scales put into blocks, rows of queries and keys for interleaved rotation, NVFP4's global scales as X.scale beside
 * X.weight. gguf_write_vectors: a model of its own whose matrices are random blocks of the IQ and TQ formats. */
#ifndef QN_TESTS_GGUF_FILES_H
#define QN_TESTS_GGUF_FILES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/quern.h>

#include "quant/synthetic.h"

enum { GGUF_TENSORS = 80 };

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

static void gguf_must(int holds)
{
    if (!holds) {
        fprintf(stderr, "the folder is not what gguf_write expects\n");
        abort();
    }
}

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
    const qn_format format = view->shape.format;
    t->type = format == QN_F32 ? 0 : format == QN_F16 ? 1 : 30;
    t->rank = view->shape.ndim;
    for (int i = 0; i < t->rank; i++) {
        t->dims[i] = (uint64_t)view->shape.dims[t->rank - 1 - i];
    }
    gguf_must(qn_shape_bytes(&view->shape, &bytes, NULL) == QN_OK);
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
        const char *name = "";
        qn_view view = {0};
        gguf_must(qn_tensors_at(file, i, &name, &view, NULL) == QN_OK && count + 2 <= GGUF_TENSORS);
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

/* Sizes of a model, as its metadata have them. */
typedef struct gguf_sizes {
    uint32_t hidden, inner, heads, head;
} gguf_sizes;

/* Writes the file and frees the tensors' numbers. */
static int gguf_put(const char *path, gguf_tensor *t, int count, gguf_sizes sizes, gguf_spoil spoil)
{
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
    gguf_u32(f, "llama.embedding_length", sizes.hidden);
    gguf_u32(f, "llama.block_count", SYN_LAYERS);
    gguf_u32(f, "llama.feed_forward_length", sizes.inner);
    gguf_u32(f, "llama.context_length", 1024);
    gguf_u32(f, "llama.attention.head_count", sizes.heads);
    gguf_u32(f, "llama.attention.head_count_kv", 1);
    gguf_u32(f, "llama.rope.dimension_count", sizes.head);
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
    return fclose(f) != 0;
}

/* FOLDER/model.safetensors, of syn_usual, as the file `path`. 0 on success. */
static inline int gguf_write(qn_ctx *ctx, const char *folder, const char *path, gguf_spoil spoil)
{
    char from[256];
    qn_tensors *file;
    gguf_tensor t[GGUF_TENSORS] = {0};
    snprintf(from, sizeof from, "%s/model.safetensors", folder);
    if (qn_tensors_open(ctx, from, &file, NULL) != QN_OK) {
        return 1;
    }
    const int count = gguf_collect(file, t);
    qn_tensors_close(file);
    return gguf_put(path, t, count, (gguf_sizes){SYN_HIDDEN, SYN_INNER, SYN_HIDDEN / SYN_KV, SYN_KV}, spoil);
}

/* ---- random blocks ---- */

enum { GGUF_HIDDEN = 512, GGUF_INNER = 256, GGUF_HEADS = 8, GGUF_HEAD = 64, GGUF_BLOCK = 256 };

/* Formats of 256 elements, where their f16 scale lies (of IQ1_M in the upper nibbles from there on), and one that makes
 * weights of usual size. */
static const struct {
    uint32_t type;
    int bytes, at;
    float d;
} gguf_vectors[] = {{16, 66, 0, 0.0008f}, {17, 74, 0, 0.0008f},  {22, 82, 0, 0.0008f},
                    {18, 98, 0, 0.0004f}, {21, 110, 0, 0.0004f}, {19, 50, 0, 0.006f},
                    {29, 56, 48, 0.006f}, {34, 54, 52, 0.05f},   {35, 66, 64, 0.05f}};
enum { GGUF_VECTORS = sizeof gguf_vectors / sizeof *gguf_vectors };

static void gguf_random_blocks(gguf_tensor *t, int which, int64_t n, int64_t k, qn_rng *rng)
{
    const int bytes = gguf_vectors[which].bytes, at = gguf_vectors[which].at;
    const int64_t blocks = n * k / GGUF_BLOCK;
    t->type = gguf_vectors[which].type;
    t->rank = 2;
    t->dims[0] = (uint64_t)k;
    t->dims[1] = (uint64_t)n;
    t->bytes = (size_t)(blocks * bytes);
    uint8_t *to = t->data = malloc(t->bytes);
    for (size_t i = 0; i < t->bytes; i++) {
        to[i] = (uint8_t)(qn_rng_next(rng) >> 40);
    }
    for (int64_t b = 0; b < blocks; b++, to += bytes) {
        uint16_t d;
        const float value = gguf_vectors[which].d * (float)(0.5 + qn_rng_uniform(rng));
        qn_encode(QN_F16, &value, 1, &d, NULL);
        if (at == 48) {
            for (int i = 0; i < 4; i++) {
                to[49 + 2 * i] = (uint8_t)((to[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
            }
        } else {
            memcpy(to + at, &d, 2);
        }
        for (int i = 0; t->type == 35 && i < 64; i++) {
            to[i] &= (uint8_t) ~(to[i] >> 1 & 0x55); /* no digit is 3 */
        }
    }
}

static void gguf_floats(gguf_tensor *t, int64_t n, int64_t k, float around, qn_rng *rng)
{
    const int64_t count = n * (k ? k : 1);
    t->rank = k ? 2 : 1;
    t->dims[0] = (uint64_t)(k ? k : n);
    t->dims[1] = (uint64_t)n;
    t->bytes = (size_t)count * sizeof(float);
    float *const to = t->data = malloc(t->bytes);
    for (int64_t i = 0; i < count; i++) {
        to[i] = around + (float)(qn_rng_uniform(rng) - 0.5) * 0.5f;
    }
}

/* 0 on success. */
static inline int gguf_write_vectors(const char *path)
{
    static const struct {
        const char *name;
        int64_t n, k;
    } parts[] = {{"attn_norm", GGUF_HIDDEN, 0},         {"ffn_norm", GGUF_HIDDEN, 0},
                 {"attn_q", GGUF_HIDDEN, GGUF_HIDDEN},  {"attn_k", GGUF_HEAD, GGUF_HIDDEN},
                 {"attn_v", GGUF_HEAD, GGUF_HIDDEN},    {"attn_output", GGUF_HIDDEN, GGUF_HIDDEN},
                 {"ffn_gate", GGUF_INNER, GGUF_HIDDEN}, {"ffn_up", GGUF_INNER, GGUF_HIDDEN},
                 {"ffn_down", GGUF_HIDDEN, GGUF_INNER}};
    gguf_tensor t[GGUF_TENSORS] = {0};
    qn_rng rng = {.state = 23};
    int count = 2, which = 0;
    snprintf(t[0].name, sizeof t->name, "token_embd.weight");
    gguf_random_blocks(&t[0], 4, SYN_VOCAB, GGUF_HIDDEN, &rng);
    snprintf(t[1].name, sizeof t->name, "output_norm.weight");
    gguf_floats(&t[1], GGUF_HIDDEN, 0, 1, &rng);
    for (int layer = 0; layer < SYN_LAYERS; layer++) {
        for (size_t p = 0; p < sizeof parts / sizeof *parts; p++, count++) {
            snprintf(t[count].name, sizeof t->name, "blk.%d.%s.weight", layer, parts[p].name);
            if (parts[p].k) {
                gguf_random_blocks(&t[count], which++ % GGUF_VECTORS, parts[p].n, parts[p].k, &rng);
            } else {
                gguf_floats(&t[count], parts[p].n, 0, 1, &rng);
            }
        }
    }
    return gguf_put(path, t, count, (gguf_sizes){GGUF_HIDDEN, GGUF_INNER, GGUF_HEADS, GGUF_HEAD}, NULL);
}

#endif
