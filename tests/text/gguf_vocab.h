/* Just enough of a GGUF reader for the tokenizer tests: the tokenizer.* metadata
 * of a trusted file, without the library's own reader, so that the two are independent. */
#ifndef QN_TESTS_GGUF_VOCAB_H
#define QN_TESTS_GGUF_VOCAB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/source.h"

typedef struct gguf_vocab {
    char *data;
    size_t bytes, at;
    qn_tokenizer_source source;
    char *text[4];
    int texts;
} gguf_vocab;

static inline uint64_t gguf_number(gguf_vocab *v, size_t bytes)
{
    uint64_t x = 0;
    if (v->at + bytes > v->bytes) {
        fprintf(stderr, "the model file ends inside its metadata\n");
        abort();
    }
    memcpy(&x, v->data + v->at, bytes);
    v->at += bytes;
    return x;
}

static inline qn_string gguf_text(gguf_vocab *v)
{
    qn_string s;
    s.bytes = (size_t)gguf_number(v, 8);
    if (s.bytes > v->bytes - v->at) {
        abort();
    }
    s.data = v->data + v->at;
    v->at += s.bytes;
    return s;
}

static inline size_t gguf_size(uint64_t type)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < 13 ? sizes[type] : 0;
}

static inline int gguf_is(qn_string key, const char *name)
{
    return key.bytes == strlen(name) && memcmp(key.data, name, key.bytes) == 0;
}

static inline const char *gguf_keep(gguf_vocab *v, qn_string s)
{
    char *copy = calloc(1, s.bytes + 1);
    memcpy(copy, s.data, s.bytes);
    v->text[v->texts++] = copy;
    return copy;
}

static inline void gguf_array(gguf_vocab *v, qn_string key)
{
    const uint64_t type = gguf_number(v, 4), count = gguf_number(v, 8);
    if (type == 8) {
        qn_string *list = calloc((size_t)count + 1, sizeof *list);
        for (uint64_t i = 0; i < count; i++) {
            list[i] = gguf_text(v);
        }
        if (gguf_is(key, "tokenizer.ggml.tokens")) {
            v->source.tokens = list;
            v->source.token_count = (int32_t)count;
        } else if (gguf_is(key, "tokenizer.ggml.merges")) {
            v->source.merges = list;
            v->source.merge_count = (int32_t)count;
        } else {
            free(list);
        }
        return;
    }
    if (gguf_is(key, "tokenizer.ggml.token_type")) {
        int32_t *types = calloc((size_t)count + 1, sizeof *types);
        memcpy(types, v->data + v->at, (size_t)count * sizeof *types);
        v->source.token_types = types;
    }
    v->at += (size_t)count * gguf_size(type);
}

/* Read the vocabulary of a GGUF file; 0 on success. */
static inline int gguf_vocab_open(const char *path, gguf_vocab *v)
{
    memset(v, 0, sizeof *v);
    qn_tokenizer_source *s = &v->source;
    s->bos_id = s->eos_id = s->eot_id = s->unk_id = s->pad_id = s->add_bos = s->add_eos = -1;
    FILE *f = fopen(path, "rb");
    if (!f) {
        return 1;
    }
    v->data = malloc(64u << 20);
    v->bytes = fread(v->data, 1, 64u << 20, f);
    fclose(f);
    v->at = 16;
    for (uint64_t n = gguf_number(v, 8); n > 0; n--) {
        const qn_string key = gguf_text(v);
        const uint64_t type = gguf_number(v, 4);
        if (type == 9) {
            gguf_array(v, key);
        } else if (type == 8) {
            const qn_string value = gguf_text(v);
            if (gguf_is(key, "tokenizer.ggml.model")) {
                s->model = gguf_keep(v, value);
            } else if (gguf_is(key, "tokenizer.ggml.pre")) {
                s->pre = gguf_keep(v, value);
            } else if (gguf_is(key, "tokenizer.chat_template")) {
                s->chat_template = gguf_keep(v, value);
            }
        } else {
            const int32_t value = (int32_t)gguf_number(v, gguf_size(type));
            static const char *const names[] = {"bos_token_id",     "eos_token_id",  "eot_token_id", "unknown_token_id",
                                                "padding_token_id", "add_bos_token", "add_eos_token"};
            int32_t *const targets[] = {&s->bos_id, &s->eos_id,  &s->eot_id, &s->unk_id,
                                        &s->pad_id, &s->add_bos, &s->add_eos};
            for (int i = 0; i < 7; i++) {
                if (key.bytes > 15 && memcmp(key.data, "tokenizer.ggml.", 15) == 0 &&
                    key.bytes == 15 + strlen(names[i]) && memcmp(key.data + 15, names[i], key.bytes - 15) == 0) {
                    *targets[i] = value;
                }
            }
        }
    }
    return 0;
}

static inline void gguf_vocab_close(gguf_vocab *v)
{
    free((void *)(uintptr_t)v->source.tokens);
    free((void *)(uintptr_t)v->source.merges);
    free((void *)(uintptr_t)v->source.token_types);
    for (int i = 0; i < v->texts; i++) {
        free(v->text[i]);
    }
    free(v->data);
}

#endif
